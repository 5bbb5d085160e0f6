//! The tables of counts, and the one transaction that changes them.
//!
//! | table | what a row says |
//! |---|---|
//! | `tag` | so many documents have this value of this facet; no row is none |
//! | `tag_list` | a version of the counts: when, from how many increments, and its cloud |
//! | `increment` | this increment came with that version |
//! | `merged_to` | of this partition of documents, everything below this position is counted |
//! | `increment_offset` | of this partition of the increments' topic, everything below this offset is merged |
//! | `increment_topic` | the increments' topic is this one, with so many partitions |
//! | `collector` | who merges; its beat changes as long as that one lives |
//!
//! What is read from `merged_to`, `increment_offset` and `collector` is read inside the transaction that changes it. So a
//! collector that was frozen and comes back, or two that merge at once, find out, and change nothing.

use std::collections::BTreeMap;

use super::batch::{DocumentsPartition, IncrementBatch, IncrementsPartition, NetDelta};
use super::cloud::{Cloud, TopN};
use crate::base::position::Position;
use crate::io::database::{
    Column, Database, DatabaseError, DatabaseRow, Lock, Migrations, SchemaStep, Sql, SqlValue, Transaction,
};
use crate::ops::tally::recount::{CountDifference, FacetCounts, differences};

/// The tables of counts.
pub const MIGRATIONS: Migrations = Migrations {
    tables: "counts",
    steps: &[SchemaStep {
        name: "counts, versions, what is merged, who merges",
        statements: &[
            Sql {
                // By bytes, as everything else here orders texts.
                postgres: "CREATE TABLE tag (facet text COLLATE \"C\" NOT NULL, value text COLLATE \"C\" NOT NULL, \
                           count bigint NOT NULL, PRIMARY KEY (facet, value))",
                sqlite: "CREATE TABLE tag (facet text NOT NULL, value text NOT NULL, count bigint NOT NULL, \
                         PRIMARY KEY (facet, value)) WITHOUT ROWID",
            },
            Sql {
                postgres: "CREATE INDEX tag_by_count ON tag (facet, count DESC, value)",
                sqlite: "CREATE INDEX tag_by_count ON tag (facet, count DESC, value)",
            },
            Sql {
                postgres: "CREATE TABLE tag_list (version bigint PRIMARY KEY, created timestamptz NOT NULL DEFAULT now(), \
                           increments bigint NOT NULL, cloud bytea NOT NULL)",
                sqlite: "CREATE TABLE tag_list (version bigint PRIMARY KEY, \
                         created text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), \
                         increments bigint NOT NULL, cloud blob NOT NULL)",
            },
            Sql {
                postgres: "CREATE TABLE increment (id text PRIMARY KEY, version bigint NOT NULL)",
                sqlite: "CREATE TABLE increment (id text PRIMARY KEY, version bigint NOT NULL)",
            },
            Sql {
                postgres: "CREATE INDEX increment_by_version ON increment (version)",
                sqlite: "CREATE INDEX increment_by_version ON increment (version)",
            },
            Sql {
                postgres: "CREATE TABLE merged_to (topic text NOT NULL, \"partition\" bigint NOT NULL, \
                           position bigint NOT NULL, PRIMARY KEY (topic, \"partition\"))",
                sqlite: "CREATE TABLE merged_to (topic text NOT NULL, \"partition\" bigint NOT NULL, \
                         position bigint NOT NULL, PRIMARY KEY (topic, \"partition\"))",
            },
            Sql {
                postgres: "CREATE TABLE increment_offset (\"partition\" bigint PRIMARY KEY, next bigint NOT NULL)",
                sqlite: "CREATE TABLE increment_offset (\"partition\" bigint PRIMARY KEY, next bigint NOT NULL)",
            },
            Sql {
                postgres: "CREATE TABLE increment_topic (topic text PRIMARY KEY, topic_id text, partitions bigint NOT NULL)",
                sqlite: "CREATE TABLE increment_topic (topic text PRIMARY KEY, topic_id text, partitions bigint NOT NULL)",
            },
            Sql {
                postgres: "CREATE TABLE collector (what text PRIMARY KEY, holder text NOT NULL, beat bigint NOT NULL)",
                sqlite: "CREATE TABLE collector (what text PRIMARY KEY, holder text NOT NULL, beat bigint NOT NULL)",
            },
            Sql {
                postgres: "INSERT INTO collector (what, holder, beat) VALUES ('merge', '', 0)",
                sqlite: "INSERT INTO collector (what, holder, beat) VALUES ('merge', '', 0)",
            },
        ],
    }],
};

const ADD_COUNTS: Sql = Sql {
    postgres: "INSERT INTO tag (facet, value, count) SELECT * FROM UNNEST($1::text[], $2::text[], $3::bigint[]) \
               ON CONFLICT (facet, value) DO UPDATE SET count = tag.count + EXCLUDED.count \
               RETURNING facet, value, count",
    sqlite: "INSERT INTO tag (facet, value, count) \
             SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each($1) WHERE true \
             ON CONFLICT (facet, value) DO UPDATE SET count = count + EXCLUDED.count \
             RETURNING facet, value, count",
};

const REMOVE_COUNTS: Sql = Sql {
    postgres: "DELETE FROM tag USING UNNEST($1::text[], $2::text[]) AS gone (facet, value) \
               WHERE tag.facet = gone.facet AND tag.value = gone.value",
    sqlite: "DELETE FROM tag WHERE (facet, value) IN (SELECT value ->> 0, value ->> 1 FROM json_each($1))",
};

const SET_MERGED_TO: Sql = Sql {
    postgres: "INSERT INTO merged_to (topic, \"partition\", position) \
               SELECT * FROM UNNEST($1::text[], $2::bigint[], $3::bigint[]) \
               ON CONFLICT (topic, \"partition\") DO UPDATE SET position = EXCLUDED.position",
    sqlite: "INSERT INTO merged_to (topic, \"partition\", position) \
             SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each($1) WHERE true \
             ON CONFLICT (topic, \"partition\") DO UPDATE SET position = EXCLUDED.position",
};

const SET_OFFSETS: Sql = Sql {
    postgres: "INSERT INTO increment_offset (\"partition\", next) SELECT * FROM UNNEST($1::bigint[], $2::bigint[]) \
               ON CONFLICT (\"partition\") DO UPDATE SET next = EXCLUDED.next",
    sqlite: "INSERT INTO increment_offset (\"partition\", next) SELECT value ->> 0, value ->> 1 FROM json_each($1) \
             WHERE true ON CONFLICT (\"partition\") DO UPDATE SET next = EXCLUDED.next",
};

const ADD_INCREMENTS: Sql = Sql {
    postgres: "INSERT INTO increment (id, version) SELECT * FROM UNNEST($1::text[], $2::bigint[]) \
               ON CONFLICT (id) DO NOTHING",
    sqlite: "INSERT INTO increment (id, version) SELECT value ->> 0, value ->> 1 FROM json_each($1) \
             WHERE true ON CONFLICT (id) DO NOTHING",
};

const SELECT_LATEST: Sql = Sql {
    postgres: "SELECT version, to_char(created AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), increments, cloud \
               FROM tag_list ORDER BY version DESC LIMIT 1",
    sqlite: "SELECT version, created, increments, cloud FROM tag_list ORDER BY version DESC LIMIT 1",
};

/// A version of the counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountsVersion {
    /// Its number; each merge makes the next one.
    pub number: i64,
    /// When it was made, by the database's clock: `2026-11-21T10:00:00.000Z`.
    pub created: String,
    /// How many increments were merged into it.
    pub increments: i64,
    /// The values that most documents have.
    pub cloud: Cloud,
}

/// The increments' topic, as the database remembers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownTopic {
    /// Its name.
    pub topic: String,
    /// Kafka's id of it.
    pub topic_id: Option<String>,
    /// Its number of partitions.
    pub partitions: i32,
}

/// Who merges, and a number that changes as long as that one lives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leader {
    /// The leader; empty if there is none.
    pub holder: String,
    /// Changes with each sign of life.
    pub beat: i64,
}

/// Where a collector that takes over begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    /// For each partition that was ever read: the next offset.
    pub offsets: BTreeMap<IncrementsPartition, i64>,
    /// The increments' topic, if it was ever read.
    pub topic: Option<KnownTopic>,
}

/// Outcome of merging a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeOutcome {
    /// It is in this version.
    Done(Box<MergedBatch>),
    /// Another transaction holds the lock: nothing happened, try again.
    Busy,
    /// Another collector leads, or the merged offsets are not where this batch starts: nothing changed, start over.
    Moved,
}

/// A merge that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedBatch {
    /// The new version.
    pub version: CountsVersion,
    /// Edges that were counted.
    pub edges_applied: u64,
    /// Edges that had been counted before.
    pub edges_skipped: u64,
    /// Values whose count changed.
    pub values: usize,
    /// Values whose count is now below 0.
    pub negative: usize,
    /// Facets whose top-N list was read again.
    pub boards_read: usize,
}

/// Counts in a database.
#[derive(Debug, Clone)]
pub struct CountStore {
    database: Database,
    top: usize,
    keep_versions: u32,
}

impl CountStore {
    /// With a cloud of the best `top` values of each facet, and the last `keep_versions` versions.
    pub fn new(database: Database, top: usize, keep_versions: u32) -> Self {
        Self { database, top, keep_versions }
    }

    /// Makes the tables that are missing.
    pub async fn prepare(&self) -> Result<(), DatabaseError> {
        self.database.migrate(&MIGRATIONS).await
    }

    /// Where it is, without secrets.
    pub fn name(&self) -> &str {
        self.database.name()
    }

    /// Who merges.
    pub async fn leader(&self) -> Result<Leader, DatabaseError> {
        let mut transaction = self.database.read("looking who merges").await?;
        let leader = read_leader(&mut transaction).await?;
        transaction.rollback().await?;
        Ok(leader)
    }

    /// Takes over leadership, if `seen` is still current. `None` if another collector was faster.
    pub async fn take_over(&self, me: &str, seen: &Leader) -> Result<Option<Start>, DatabaseError> {
        let mut transaction = self.database.begin("taking over").await?;
        if !transaction.try_lock(Lock::Merge).await? || read_leader(&mut transaction).await? != *seen {
            transaction.rollback().await?;
            return Ok(None);
        }
        let sql = "UPDATE collector SET holder = $1, beat = beat + 1 WHERE what = 'merge'";
        transaction.execute(sql, &[SqlValue::Text(me)]).await?;
        let offsets = read_offsets(&mut transaction).await?;
        let rows = transaction.rows("SELECT topic, topic_id, partitions FROM increment_topic", &[]).await?;
        let mut topic = None;
        for row in &rows {
            topic = Some(KnownTopic {
                topic: transaction.cell(row.text(0))?,
                topic_id: transaction.cell(row.maybe_text(1))?,
                partitions: partition(transaction.cell(row.int(2))?),
            });
        }
        transaction.commit().await?;
        Ok(Some(Start { offsets, topic }))
    }

    /// Fixes topic and start offsets before the first merge; false if another collector leads.
    pub async fn settle(
        &self,
        me: &str,
        topic: &KnownTopic,
        offsets: &BTreeMap<IncrementsPartition, i64>,
    ) -> Result<bool, DatabaseError> {
        let mut transaction = self.database.begin("settling what is read").await?;
        transaction.lock(Lock::Merge).await?;
        if read_leader(&mut transaction).await?.holder != me {
            transaction.rollback().await?;
            return Ok(false);
        }
        transaction.execute("DELETE FROM increment_topic", &[]).await?;
        let sql = match topic.topic_id {
            Some(_) => "INSERT INTO increment_topic (topic, partitions, topic_id) VALUES ($1, $2, $3)",
            None => "INSERT INTO increment_topic (topic, partitions) VALUES ($1, $2)",
        };
        let mut values = vec![SqlValue::Text(&topic.topic), SqlValue::Int(topic.partitions.into())];
        values.extend(topic.topic_id.as_deref().map(SqlValue::Text));
        transaction.execute(sql, &values).await?;
        transaction.execute("DELETE FROM increment_offset", &[]).await?;
        write_offsets(&mut transaction, offsets.iter().map(|(partition, next)| (*partition, *next))).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// The leader's heartbeat; false if another collector leads.
    pub async fn beat(&self, me: &str) -> Result<bool, DatabaseError> {
        let mut transaction = self.database.begin("giving a sign of life").await?;
        let sql = "UPDATE collector SET beat = beat + 1 WHERE what = 'merge' AND holder = $1";
        let mine = transaction.execute(sql, &[SqlValue::Text(me)]).await? == 1;
        transaction.commit().await?;
        Ok(mine)
    }

    /// Stops being the one who merges, so that another need not wait.
    pub async fn step_down(&self, me: &str) -> Result<(), DatabaseError> {
        let mut transaction = self.database.begin("stepping down").await?;
        let sql = "UPDATE collector SET holder = '', beat = beat + 1 WHERE what = 'merge' AND holder = $1";
        transaction.execute(sql, &[SqlValue::Text(me)]).await?;
        transaction.commit().await
    }

    /// The latest version, if it is later than `known`.
    pub async fn later_than(&self, known: i64) -> Result<Option<CountsVersion>, DatabaseError> {
        let mut transaction = self.database.read("reading the cloud").await?;
        let rows = transaction.rows("SELECT COALESCE(MAX(version), 0) FROM tag_list", &[]).await?;
        let latest = match rows.first() {
            Some(row) => transaction.cell(row.int(0))?,
            None => 0,
        };
        let version = if latest > known { read_latest(&mut transaction).await? } else { None };
        transaction.rollback().await?;
        Ok(version)
    }

    /// All counts, in order: for tests and tools.
    pub async fn counts(&self) -> Result<Vec<(String, String, i64)>, DatabaseError> {
        let mut transaction = self.database.read("reading counts").await?;
        let rows = transaction.rows("SELECT facet, value, count FROM tag ORDER BY facet, value", &[]).await?;
        let mut counts = Vec::with_capacity(rows.len());
        for row in &rows {
            counts.push(read_count(&transaction, row)?);
        }
        transaction.rollback().await?;
        Ok(counts)
    }

    /// Merges a batch, as `me`, in one transaction.
    pub async fn merge(&self, me: &str, batch: &IncrementBatch) -> Result<MergeOutcome, DatabaseError> {
        let mut transaction = self.database.begin("merging increments").await?;
        if !transaction.try_lock(Lock::Merge).await? {
            transaction.rollback().await?;
            return Ok(MergeOutcome::Busy);
        }
        let sql = "UPDATE collector SET beat = beat + 1 WHERE what = 'merge' AND holder = $1";
        let mine = transaction.execute(sql, &[SqlValue::Text(me)]).await? == 1;
        let offsets = read_offsets(&mut transaction).await?;
        let follows = |(partition, (from, _)): (&IncrementsPartition, &(i64, i64))| {
            offsets.get(partition) == Some(from)
        };
        if !mine || !batch.read.iter().all(follows) {
            transaction.rollback().await?;
            return Ok(MergeOutcome::Moved);
        }

        let merged_to = read_merged_to(&mut transaction, &batch.sources()).await?;
        let net = batch.net(merged_to);
        write_merged_to(&mut transaction, &net.merged_to).await?;
        let read = batch.read.iter().map(|(partition, (_, next))| (*partition, *next));
        write_offsets(&mut transaction, read).await?;
        let (counts, boards_read) = self.apply(&mut transaction, &net, batch).await?;
        let version = read_latest(&mut transaction).await?;
        transaction.commit().await?;
        let Some(version) = version else { return Ok(MergeOutcome::Moved) };
        Ok(MergeOutcome::Done(Box::new(MergedBatch {
            version,
            edges_applied: net.edges_applied,
            edges_skipped: net.edges_skipped,
            values: counts.len(),
            negative: counts.iter().filter(|(count, _)| count.2 < 0).count(),
            boards_read,
        })))
    }

    /// Sets every count to `found`, in one transaction and as a new version. Returns the differences. Merged offsets stay as
    /// they are: `found` must include all merged increments and no others.
    pub async fn correct(&self, found: &FacetCounts) -> Result<Vec<CountDifference>, DatabaseError> {
        let mut transaction = self.database.begin("correcting counts").await?;
        transaction.lock(Lock::Merge).await?;
        let mut kept = FacetCounts::new();
        for row in &transaction.rows("SELECT facet, value, count FROM tag", &[]).await? {
            let (facet, value, count) = read_count(&transaction, row)?;
            kept.insert((facet, value), count);
        }
        let wrong = differences(&kept, found);
        let change = |wrong: &CountDifference| {
            (wrong.facet.clone(), wrong.value.clone(), wrong.found.saturating_sub(wrong.counted))
        };
        let net = NetDelta { changes: wrong.iter().map(change).collect(), ..NetDelta::default() };
        if !wrong.is_empty() {
            self.apply(&mut transaction, &net, &IncrementBatch::default()).await?;
        }
        transaction.commit().await?;
        Ok(wrong)
    }

    /// Applies `net` to counts and cloud, as a new version. Returns each changed count with its change, and how many top-N
    /// lists were read again.
    async fn apply(
        &self,
        transaction: &mut Transaction,
        net: &NetDelta,
        batch: &IncrementBatch,
    ) -> Result<(Vec<(Count, i64)>, usize), DatabaseError> {
        let counts = add_counts(transaction, net).await?;
        let latest = read_latest(transaction).await?;
        let (number, mut cloud) = latest.map_or((1, Cloud::default()), |last| (last.number + 1, last.cloud));
        let changed =
            counts.iter().map(|(count, by)| (count.0.as_str(), count.1.as_str(), count.2 - by, count.2));
        cloud.place(changed, self.top);
        let short = cloud.short(self.top);
        for facet in &short {
            let list = read_top(transaction, facet, Cloud::capacity(self.top)).await?;
            cloud.set_top(facet, list);
        }
        self.write_version(transaction, number, batch, &cloud).await?;
        Ok((counts, short.len()))
    }

    async fn write_version(
        &self,
        transaction: &mut Transaction,
        number: i64,
        batch: &IncrementBatch,
        cloud: &Cloud,
    ) -> Result<(), DatabaseError> {
        // Plain texts and numbers cannot fail to be written.
        let blob = serde_json::to_vec(cloud).unwrap_or_default();
        let increments = i64::try_from(batch.increments.len()).unwrap_or(i64::MAX);
        let sql = "INSERT INTO tag_list (version, increments, cloud) VALUES ($1, $2, $3)";
        let values = [SqlValue::Int(number), SqlValue::Int(increments), SqlValue::Bytes(&blob)];
        transaction.execute(sql, &values).await?;
        let ids: Vec<&str> = batch.increments.iter().map(|increment| increment.id.as_str()).collect();
        let versions = vec![number; ids.len()];
        transaction.with_rows(ADD_INCREMENTS, &[Column::Text(&ids), Column::Int(&versions)]).await?;
        let oldest = [SqlValue::Int(number - i64::from(self.keep_versions))];
        transaction.execute("DELETE FROM tag_list WHERE version <= $1", &oldest).await?;
        transaction.execute("DELETE FROM increment WHERE version <= $1", &oldest).await?;
        Ok(())
    }
}

fn partition(number: i64) -> IncrementsPartition {
    IncrementsPartition::try_from(number).unwrap_or(IncrementsPartition::MAX)
}

async fn read_leader(transaction: &mut Transaction) -> Result<Leader, DatabaseError> {
    let sql = "SELECT holder, beat FROM collector WHERE what = 'merge'";
    let rows = transaction.rows(sql, &[]).await?;
    let Some(row) = rows.first() else { return Ok(Leader::default()) };
    Ok(Leader { holder: transaction.cell(row.text(0))?, beat: transaction.cell(row.int(1))? })
}

async fn read_offsets(
    transaction: &mut Transaction,
) -> Result<BTreeMap<IncrementsPartition, i64>, DatabaseError> {
    let rows = transaction.rows("SELECT \"partition\", next FROM increment_offset", &[]).await?;
    let mut offsets = BTreeMap::new();
    for row in &rows {
        offsets.insert(partition(transaction.cell(row.int(0))?), transaction.cell(row.int(1))?);
    }
    Ok(offsets)
}

async fn write_offsets(
    transaction: &mut Transaction,
    offsets: impl Iterator<Item = (IncrementsPartition, i64)>,
) -> Result<(), DatabaseError> {
    let (partitions, next): (Vec<i64>, Vec<i64>) =
        offsets.map(|(partition, next)| (i64::from(partition), next)).unzip();
    transaction.with_rows(SET_OFFSETS, &[Column::Int(&partitions), Column::Int(&next)]).await?;
    Ok(())
}

/// What is counted of these sources; nothing of those that have no row.
async fn read_merged_to(
    transaction: &mut Transaction,
    sources: &[DocumentsPartition],
) -> Result<BTreeMap<DocumentsPartition, Position>, DatabaseError> {
    let rows = transaction.rows("SELECT topic, \"partition\", position FROM merged_to", &[]).await?;
    let mut merged_to = BTreeMap::new();
    for row in &rows {
        let source = (transaction.cell(row.text(0))?, partition(transaction.cell(row.int(1))?));
        let position = u64::try_from(transaction.cell(row.int(2))?).unwrap_or_default();
        if sources.binary_search(&source).is_ok() {
            merged_to.insert(source, Position::from_version(position));
        }
    }
    Ok(merged_to)
}

async fn write_merged_to(
    transaction: &mut Transaction,
    merged_to: &BTreeMap<DocumentsPartition, Position>,
) -> Result<(), DatabaseError> {
    let topics: Vec<&str> = merged_to.keys().map(|(topic, _)| topic.as_str()).collect();
    let partitions: Vec<i64> = merged_to.keys().map(|(_, partition)| i64::from(*partition)).collect();
    let positions: Vec<i64> =
        merged_to.values().map(|to| i64::try_from(to.version()).unwrap_or(i64::MAX)).collect();
    let columns = [Column::Text(&topics), Column::Int(&partitions), Column::Int(&positions)];
    transaction.with_rows(SET_MERGED_TO, &columns).await?;
    Ok(())
}

fn read_count(transaction: &Transaction, row: &DatabaseRow) -> Result<(String, String, i64), DatabaseError> {
    Ok((transaction.cell(row.text(0))?, transaction.cell(row.text(1))?, transaction.cell(row.int(2))?))
}

type Count = (String, String, i64);

/// Applies the changes, and gives every count that changed, as it is now, with its change. Rows that came to 0 go.
async fn add_counts(
    transaction: &mut Transaction,
    net: &NetDelta,
) -> Result<Vec<(Count, i64)>, DatabaseError> {
    let facets: Vec<&str> = net.changes.iter().map(|(facet, ..)| facet.as_str()).collect();
    let values: Vec<&str> = net.changes.iter().map(|(_, value, _)| value.as_str()).collect();
    let changes: Vec<i64> = net.changes.iter().map(|(.., by)| *by).collect();
    let columns = [Column::Text(&facets), Column::Text(&values), Column::Int(&changes)];
    let rows = transaction.with_rows(ADD_COUNTS, &columns).await?;
    let mut counts = Vec::with_capacity(rows.len());
    for row in &rows {
        counts.push(read_count(transaction, row)?);
    }
    // The answer has an order of its own.
    counts.sort_unstable();
    let counts: Vec<(Count, i64)> = counts.into_iter().zip(changes).collect();
    let gone = || counts.iter().filter(|(count, _)| count.2 == 0);
    let facets: Vec<&str> = gone().map(|(count, _)| count.0.as_str()).collect();
    let values: Vec<&str> = gone().map(|(count, _)| count.1.as_str()).collect();
    transaction.with_rows(REMOVE_COUNTS, &[Column::Text(&facets), Column::Text(&values)]).await?;
    Ok(counts)
}

async fn read_latest(transaction: &mut Transaction) -> Result<Option<CountsVersion>, DatabaseError> {
    let rows = transaction.rows(SELECT_LATEST, &[]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let blob = transaction.cell(row.maybe_bytes(3))?.unwrap_or_default();
    let cloud = serde_json::from_slice(&blob)
        .map_err(|error| transaction.unreadable(format!("the cloud in tag_list: {error}")))?;
    Ok(Some(CountsVersion {
        number: transaction.cell(row.int(0))?,
        created: transaction.cell(row.text(1))?,
        increments: transaction.cell(row.int(2))?,
        cloud,
    }))
}

async fn read_top(
    transaction: &mut Transaction,
    facet: &str,
    capacity: usize,
) -> Result<TopN, DatabaseError> {
    let sql =
        "SELECT value, count FROM tag WHERE facet = $1 AND count > 0 ORDER BY count DESC, value LIMIT $2";
    let limit = i64::try_from(capacity + 1).unwrap_or(i64::MAX);
    let rows = transaction.rows(sql, &[SqlValue::Text(facet), SqlValue::Int(limit)]).await?;
    let mut best = Vec::with_capacity(rows.len());
    for row in &rows {
        best.push((transaction.cell(row.text(0))?, transaction.cell(row.int(1))?));
    }
    Ok(TopN::from_counts(best, capacity))
}
