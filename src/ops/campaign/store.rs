//! Creates, shows and controls campaigns. Runners use `reserve.rs`.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error;

use super::next::{Speed, rate, seconds_left};
use super::schema::{MIGRATIONS, timed};
use super::{CampaignAction, CampaignState, Command, RefusedCommand, chunk};
use crate::io::database::{Database, DatabaseError, DatabaseRow, Lock, Sql, SqlValue, Transaction};
pub use crate::support::config::campaigns::MAX_RATE;

/// Maximum ids retried, or chunks deleted, per transaction.
const AT_ONCE: i64 = 1_000;

/// Maximum heartbeat age of a campaign whose list is being written; after that its writer counts as dead.
pub const BROKEN_OFF: Duration = Duration::from_secs(60);

/// Maximum length of a campaign's name, in bytes.
pub const MAX_NAME_BYTES: usize = 200;

/// Whether a campaign may have this name. PostgreSQL takes no text with a NUL.
pub fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES && !name.contains('\0')
}

/// A failed operation.
#[derive(Debug, Error)]
pub enum CampaignStoreError {
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// There is no such campaign.
    #[error("campaign {0} does not exist; `geofold campaign list` shows all")]
    Unknown(i64),
    /// It may not be done to it.
    #[error("campaign {0}: {1}")]
    Refused(i64, RefusedCommand),
}

impl CampaignStoreError {
    /// Whether the same may work later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Database(error) if error.is_passing())
    }
}

/// A campaign to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCampaign {
    /// Display name.
    pub name: String,
    /// Action for each document.
    pub action: CampaignAction,
    /// Where its records go.
    pub topic: String,
    /// Which documents, in words.
    pub selection: String,
    /// Ids in one chunk, 1 to [`chunk::MAX_IDS`].
    pub chunk: u32,
    /// Ids per second of all runners together; `None`: no limit.
    pub rate: Option<u32>,
    /// If it is one of those that are made every so often: how often. Their name is unique then in each such period.
    pub every: Option<Duration>,
    /// If a request made it: that request's key, which no other campaign has. `campaign watch` runs these.
    pub request: Option<String>,
    /// Whether it may have no ids at all.
    pub may_be_empty: bool,
}

/// The current status of a campaign.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CampaignStatus {
    /// Its number.
    pub id: i64,
    /// Display name.
    pub name: String,
    /// Action for each document.
    pub action: CampaignAction,
    /// Where its records go.
    pub topic: String,
    /// Which documents, in words.
    pub selection: String,
    /// State.
    pub state: CampaignState,
    /// The writer of its list sent no heartbeat for [`BROKEN_OFF`].
    pub broken_off: bool,
    /// Ids in its list.
    pub ids: i64,
    /// Ids acknowledged by the broker.
    pub produced: i64,
    /// Ids that failed.
    pub failed: i64,
    /// Chunks.
    pub chunks: i64,
    /// Chunks that were never handed out.
    pub chunks_fresh: i64,
    /// Chunks that a runner works on.
    pub chunks_at_work: i64,
    /// Chunks with an expired lease: they will be handed out again.
    pub chunks_expired: i64,
    /// Maximum ids per second; 0: no limit.
    pub rate_limit: i64,
    /// Ids per second, lately.
    pub rate: f64,
    /// Seconds until it is done at this rate; `None` if nothing moves.
    pub seconds_left: Option<f64>,
    /// When it was made, in microseconds since 1970, as all times here; 0 is never.
    pub created: i64,
    /// When the first token was handed out.
    pub started: i64,
    /// When it was over.
    pub ended: i64,
    /// Now, by the database's clock.
    pub now: i64,
}

impl CampaignStatus {
    /// Ids that are over, well or not.
    pub fn done(&self) -> i64 {
        self.produced.saturating_add(self.failed)
    }

    /// As JSON, with some of the ids that failed as `failures`.
    pub fn to_json(&self, failed: &[Failed]) -> Value {
        let mut value = json!(self);
        let failure =
            |failed: &Failed| json!({"id": String::from_utf8_lossy(&failed.id), "reason": failed.reason});
        value["failures"] = failed.iter().map(failure).collect();
        value
    }
}

/// An id that failed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The id's bytes.
    pub id: Vec<u8>,
    /// Why.
    pub reason: String,
}

/// Campaigns in a database.
#[derive(Debug, Clone)]
pub struct CampaignStore {
    pub(super) database: Database,
}

const CREATE: Sql = timed!(
    "INSERT INTO campaign (name, action, topic, selection, state, chunk, rate, request, created, beat) \
     VALUES ($1, $2, $3, $4, 'creating', $5, $6, NULLIF($7, ''), ",
    ", ",
    ") ON CONFLICT (request) DO NOTHING RETURNING id"
);

/// Creates a period's campaign, if there is none and the previous one is over.
const CREATE_PERIODIC: Sql = timed!(
    "INSERT INTO campaign (name, action, topic, selection, state, chunk, rate, periodic, period, created, beat) \
     SELECT $1, $2, $3, $4, 'creating', $5, $6, $1, ",
    " / $7, ",
    ", ",
    " WHERE NOT EXISTS (SELECT 1 FROM campaign WHERE periodic = $1 AND state IN ('creating', 'ready', 'paused')) \
     ON CONFLICT (periodic, period) DO NOTHING RETURNING id"
);

/// Who was writing this list has ended; the period is free for another.
const GIVE_UP_BROKEN_OFF: Sql = timed!(
    "UPDATE campaign SET state = 'cancelled', period = NULL, ended = ",
    " WHERE periodic = $1 AND state = 'creating' AND beat < ",
    " - $2"
);

/// The same of a request: its key is free for its repetition.
const GIVE_UP_BROKEN_OFF_REQUEST: Sql = timed!(
    "UPDATE campaign SET state = 'cancelled', request = NULL, ended = ",
    " WHERE request = $1 AND state = 'creating' AND beat < ",
    " - $2"
);

const REQUESTED_AND_OVER: Sql = timed!(
    "SELECT id FROM campaign WHERE request IS NOT NULL AND state IN ('cancelled', 'done') AND ended < ",
    " - $1 ORDER BY id"
);

const APPEND: Sql = timed!(
    "UPDATE campaign SET tokens = tokens + $2, ids = ids + $3, beat = ",
    " WHERE id = $1 AND state = 'creating' RETURNING tokens"
);

const BEAT: Sql = timed!("UPDATE campaign SET beat = ", " WHERE id = $1 AND state = 'creating'");

const SEAL: Sql = timed!("UPDATE campaign SET state = $2, beat = ", " WHERE id = $1 AND state = 'creating'");

const GIVE_UP: Sql = timed!(
    "UPDATE campaign SET state = 'cancelled', period = NULL, request = NULL, ended = ",
    " WHERE id = $1 AND state = 'creating'"
);

const CHANGE: Sql = timed!(
    "UPDATE campaign SET state = $2, window_ids = 0, window_rate = 0, window_start = ",
    ", ended = CASE WHEN $3 = 1 THEN ",
    " ELSE 0 END WHERE id = $1"
);

/// A new rate also shortens the wait for the next token.
const SET_RATE: Sql = timed!(
    "UPDATE campaign SET rate = $2, free_at = CASE WHEN $2 = 0 THEN 0 WHEN free_at > ",
    " + chunk * 1000000 / $3 THEN ",
    " + chunk * 1000000 / $3 ELSE free_at END WHERE id = $1"
);

const STATUS: Sql = timed!(
    "SELECT id, name, action, topic, selection, state, beat, ids, produced, failed, tokens, next_token, rate, \
     window_start, window_ids, window_rate, created, started, ended, ",
    ", (SELECT count(*) FROM campaign_lease l WHERE l.campaign = c.id), \
     (SELECT count(*) FROM campaign_lease l WHERE l.campaign = c.id AND l.expires <= ",
    ") FROM campaign c WHERE ($1 = 0 OR id = $1) ORDER BY id"
);

impl CampaignStore {
    /// Campaigns in this database.
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// Makes the tables that are missing.
    pub async fn prepare(&self) -> Result<(), DatabaseError> {
        self.database.migrate(&MIGRATIONS).await
    }

    /// Closes the connections that are not in use.
    pub async fn close(&self) {
        self.database.close().await;
    }

    /// Begins a campaign without ids; no runner touches it until [`CampaignStore::seal`]. `None`: the period has one, or the last one
    /// of this name is not over, or the request has made one before.
    pub async fn create(&self, new: &NewCampaign) -> Result<Option<i64>, DatabaseError> {
        let mut transaction = self.database.begin("making a campaign").await?;
        let mut values = vec![
            SqlValue::Text(&new.name),
            SqlValue::Text(new.action.as_str()),
            SqlValue::Text(&new.topic),
            SqlValue::Text(&new.selection),
            SqlValue::Int(new.chunk.clamp(1, chunk::MAX_IDS).into()),
            SqlValue::Int(new.rate.unwrap_or(0).min(MAX_RATE).into()),
        ];
        let rows = match new.every {
            None => {
                let request = new.request.as_deref().unwrap_or_default();
                let broken_off = [SqlValue::Text(request), SqlValue::Int(micros(BROKEN_OFF))];
                transaction.execute(GIVE_UP_BROKEN_OFF_REQUEST, &broken_off).await?;
                values.push(SqlValue::Text(request));
                transaction.rows(CREATE, &values).await?
            }
            Some(every) => {
                transaction.lock(Lock::Campaign).await?;
                let broken_off = [SqlValue::Text(&new.name), SqlValue::Int(micros(BROKEN_OFF))];
                transaction.execute(GIVE_UP_BROKEN_OFF, &broken_off).await?;
                values.push(SqlValue::Int(micros(every).max(1)));
                transaction.rows(CREATE_PERIODIC, &values).await?
            }
        };
        let id = match rows.first() {
            Some(row) => Some(transaction.cell(row.int(0))?),
            None => None,
        };
        transaction.commit().await?;
        Ok(id)
    }

    /// Appends chunks, each made by [`chunk::push`], with `ids` ids in all. False if the campaign was cancelled meanwhile.
    pub async fn append(&self, id: i64, chunks: &[Vec<u8>], ids: i64) -> Result<bool, DatabaseError> {
        let mut transaction = self.database.begin("writing ids of a campaign").await?;
        let count = i64::try_from(chunks.len()).unwrap_or(i64::MAX);
        let values = [SqlValue::Int(id), SqlValue::Int(count), SqlValue::Int(ids)];
        let rows = transaction.rows(APPEND, &values).await?;
        let Some(row) = rows.first() else {
            transaction.rollback().await?;
            return Ok(false);
        };
        let last = transaction.cell(row.int(0))?;
        write_chunks(&mut transaction, id, last - count + 1, chunks).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Keeps ids that cannot be ids of documents with the campaign, as failed. False if it was cancelled meanwhile.
    pub async fn append_failed(&self, id: i64, failed: &[Failed]) -> Result<bool, DatabaseError> {
        let mut transaction = self.database.begin("writing ids of a campaign").await?;
        let count = i64::try_from(failed.len()).unwrap_or(i64::MAX);
        let sql =
            "UPDATE campaign SET ids = ids + $2, failed = failed + $2 WHERE id = $1 AND state = 'creating'";
        if transaction.execute(sql, &[SqlValue::Int(id), SqlValue::Int(count)]).await? == 0 {
            transaction.rollback().await?;
            return Ok(false);
        }
        write_failed(&mut transaction, id, failed).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// A sign of life of who writes the list; false if the campaign was cancelled meanwhile.
    pub async fn beat(&self, id: i64) -> Result<bool, DatabaseError> {
        self.change_one("writing ids of a campaign", BEAT, &[SqlValue::Int(id)]).await
    }

    /// The list is whole: runners may begin, unless it is to be `paused` at first. False if it was cancelled meanwhile.
    pub async fn seal(&self, id: i64, paused: bool) -> Result<bool, DatabaseError> {
        let state = if paused { CampaignState::Paused } else { CampaignState::Ready };
        self.change_one(
            "ending a campaign's list",
            SEAL,
            &[SqlValue::Int(id), SqlValue::Text(state.as_str())],
        )
        .await
    }

    /// The list will not become whole. Its period is free for another.
    pub async fn give_up(&self, id: i64) -> Result<bool, DatabaseError> {
        self.change_one("giving up a campaign's list", GIVE_UP, &[SqlValue::Int(id)]).await
    }

    async fn change_one(
        &self,
        doing: &'static str,
        sql: impl Into<Sql>,
        values: &[SqlValue<'_>],
    ) -> Result<bool, DatabaseError> {
        let mut transaction = self.database.begin(doing).await?;
        let changed = transaction.execute(sql, values).await? == 1;
        transaction.commit().await?;
        Ok(changed)
    }

    /// Pauses, resumes or cancels. Gives the state after it.
    pub async fn execute(&self, id: i64, command: Command) -> Result<CampaignState, CampaignStoreError> {
        let mut transaction = self.database.begin("changing a campaign").await?;
        let before = lock_state(&mut transaction, id).await?.ok_or(CampaignStoreError::Unknown(id))?;
        let after = command.apply(before).map_err(|refused| CampaignStoreError::Refused(id, refused))?;
        if after != before {
            let is_over = i64::from(after.is_over());
            let values = [SqlValue::Int(id), SqlValue::Text(after.as_str()), SqlValue::Int(is_over)];
            transaction.execute(CHANGE, &values).await?;
        }
        transaction.commit().await?;
        Ok(after)
    }

    /// From now on it goes this fast, at most; runners at work follow with their next sign of life.
    pub async fn set_rate(&self, id: i64, rate: Option<u32>) -> Result<(), CampaignStoreError> {
        let rate = i64::from(rate.unwrap_or(0).min(MAX_RATE));
        let values = [SqlValue::Int(id), SqlValue::Int(rate), SqlValue::Int(rate.max(1))];
        match self.change_one("setting a campaign's rate", SET_RATE, &values).await? {
            true => Ok(()),
            false => Err(CampaignStoreError::Unknown(id)),
        }
    }

    /// Gives the ids that failed new tokens, behind all others. Gives how many there were.
    pub async fn retry(&self, id: i64) -> Result<u64, CampaignStoreError> {
        // Those that fail meanwhile are for the next time.
        let mut up_to = i64::MAX;
        let mut retried = 0;
        loop {
            let mut transaction = self.database.begin("retrying failed ids of a campaign").await?;
            let before = lock_state(&mut transaction, id).await?.ok_or(CampaignStoreError::Unknown(id))?;
            let after =
                Command::Retry.apply(before).map_err(|refused| CampaignStoreError::Refused(id, refused))?;
            if up_to == i64::MAX {
                let sql = "SELECT COALESCE(MAX(number), 0) FROM campaign_failed WHERE campaign = $1";
                let rows = transaction.rows(sql, &[SqlValue::Int(id)]).await?;
                up_to = first_int(&transaction, &rows)?;
            }
            let sql = "SELECT f.number, f.id, c.chunk FROM campaign_failed f JOIN campaign c ON c.id = f.campaign \
                       WHERE f.campaign = $1 AND f.number <= $2 ORDER BY f.number LIMIT $3";
            let rows = transaction
                .rows(sql, &[SqlValue::Int(id), SqlValue::Int(up_to), SqlValue::Int(AT_ONCE)])
                .await?;
            let Some(last) = rows.last() else {
                transaction.rollback().await?;
                return Ok(retried);
            };
            let (number, size) = (transaction.cell(last.int(0))?, transaction.cell(last.int(2))?);
            let size = usize::try_from(size).unwrap_or(1).max(1);
            let mut chunks = Vec::new();
            for some in rows.chunks(size) {
                let mut chunk = Vec::new();
                for row in some {
                    chunk::push(&mut chunk, &transaction.cell(row.maybe_bytes(1))?.unwrap_or_default());
                }
                chunks.push(chunk);
            }
            let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
            let sql = "DELETE FROM campaign_failed WHERE campaign = $1 AND number <= $2";
            transaction.execute(sql, &[SqlValue::Int(id), SqlValue::Int(number)]).await?;
            let sql = "UPDATE campaign SET tokens = tokens + $2, failed = failed - $3, state = $4, ended = 0 \
                       WHERE id = $1 RETURNING tokens";
            let added = i64::try_from(chunks.len()).unwrap_or(i64::MAX);
            let values = [
                SqlValue::Int(id),
                SqlValue::Int(added),
                SqlValue::Int(count),
                SqlValue::Text(after.as_str()),
            ];
            let rows = transaction.rows(sql, &values).await?;
            let last = first_int(&transaction, &rows)?;
            write_chunks(&mut transaction, id, last - added + 1, &chunks).await?;
            transaction.commit().await?;
            retried += count.unsigned_abs();
        }
    }

    /// Forgets a campaign that is over, with its list and its failures.
    pub async fn remove(&self, id: i64) -> Result<(), CampaignStoreError> {
        let mut transaction = self.database.begin("looking at a campaign").await?;
        let state = lock_state(&mut transaction, id).await?.ok_or(CampaignStoreError::Unknown(id))?;
        transaction.rollback().await?;
        Command::Remove.apply(state).map_err(|refused| CampaignStoreError::Refused(id, refused))?;
        // A piece at a time; the campaign itself goes last, so that what is left of it can be removed again.
        for sql in [
            "DELETE FROM campaign_failed WHERE campaign = $1 AND number IN \
             (SELECT number FROM campaign_failed WHERE campaign = $1 ORDER BY number LIMIT $2)",
            "DELETE FROM campaign_chunk WHERE campaign = $1 AND token IN \
             (SELECT token FROM campaign_chunk WHERE campaign = $1 ORDER BY token LIMIT $2)",
        ] {
            loop {
                let mut transaction = self.database.begin("removing a campaign").await?;
                let gone = transaction.execute(sql, &[SqlValue::Int(id), SqlValue::Int(AT_ONCE)]).await?;
                transaction.commit().await?;
                if gone == 0 {
                    break;
                }
            }
        }
        let mut transaction = self.database.begin("removing a campaign").await?;
        for sql in ["DELETE FROM campaign_lease WHERE campaign = $1", "DELETE FROM campaign WHERE id = $1"] {
            transaction.execute(sql, &[SqlValue::Int(id)]).await?;
        }
        Ok(transaction.commit().await?)
    }

    /// How a campaign stands.
    pub async fn status(&self, id: i64) -> Result<CampaignStatus, CampaignStoreError> {
        self.statuses(id.max(1)).await?.pop().ok_or(CampaignStoreError::Unknown(id))
    }

    /// How all campaigns stand, the oldest first.
    pub async fn list(&self) -> Result<Vec<CampaignStatus>, DatabaseError> {
        self.statuses(0).await
    }

    async fn statuses(&self, id: i64) -> Result<Vec<CampaignStatus>, DatabaseError> {
        let mut transaction = self.database.read("looking at campaigns").await?;
        let rows = transaction.rows(STATUS, &[SqlValue::Int(id)]).await?;
        let statuses = rows.iter().map(|row| read_status(&transaction, row)).collect();
        transaction.rollback().await?;
        statuses
    }

    /// Campaigns of this periodic name, the oldest first: number and state.
    pub async fn of_periodic(&self, name: &str) -> Result<Vec<(i64, CampaignState)>, DatabaseError> {
        let sql = "SELECT id, state FROM campaign WHERE periodic = $1 ORDER BY id";
        self.states(sql, &[SqlValue::Text(name)]).await
    }

    /// The campaign that the request with this key has made.
    pub async fn of_request(&self, key: &str) -> Result<Option<i64>, DatabaseError> {
        let sql = "SELECT id, state FROM campaign WHERE request = $1";
        Ok(self.states(sql, &[SqlValue::Text(key)]).await?.pop().map(|(id, _)| id))
    }

    /// Campaigns for this topic that requests have made and that have work left, the oldest first.
    pub async fn requested(&self, topic: &str) -> Result<Vec<i64>, DatabaseError> {
        let sql = "SELECT id, state FROM campaign WHERE request IS NOT NULL AND state = 'ready' AND topic = $1 ORDER BY id";
        Ok(self.states(sql, &[SqlValue::Text(topic)]).await?.into_iter().map(|(id, _)| id).collect())
    }

    /// Campaigns that requests have made and that were over so long ago, the oldest first.
    pub async fn requested_and_over(&self, since: Duration) -> Result<Vec<i64>, DatabaseError> {
        let mut transaction = self.database.read("looking at campaigns").await?;
        let rows = transaction.rows(REQUESTED_AND_OVER, &[SqlValue::Int(micros(since))]).await?;
        let found = rows.iter().map(|row| transaction.cell(row.int(0))).collect();
        transaction.rollback().await?;
        found
    }

    /// Number and state of the campaigns that `sql` finds.
    async fn states(
        &self,
        sql: &'static str,
        values: &[SqlValue<'_>],
    ) -> Result<Vec<(i64, CampaignState)>, DatabaseError> {
        let mut transaction = self.database.read("looking at campaigns").await?;
        let rows = transaction.rows(sql, values).await?;
        let read = |row: &DatabaseRow| {
            let state = word(&transaction, transaction.cell(row.text(1))?)?;
            Ok((transaction.cell(row.int(0))?, state))
        };
        let found = rows.iter().map(read).collect();
        transaction.rollback().await?;
        found
    }

    /// Up to `most` ids that failed, the first ones first.
    pub async fn failed(&self, id: i64, most: u32) -> Result<Vec<Failed>, DatabaseError> {
        let mut transaction = self.database.read("reading failed ids of a campaign").await?;
        let sql = "SELECT id, reason FROM campaign_failed WHERE campaign = $1 ORDER BY number LIMIT $2";
        let rows = transaction.rows(sql, &[SqlValue::Int(id), SqlValue::Int(most.into())]).await?;
        let mut failed = Vec::with_capacity(rows.len());
        for row in &rows {
            failed.push(Failed {
                id: transaction.cell(row.maybe_bytes(0))?.unwrap_or_default(),
                reason: transaction.cell(row.text(1))?,
            });
        }
        transaction.rollback().await?;
        Ok(failed)
    }
}

/// Microseconds, as the database counts.
pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn first_int(transaction: &Transaction, rows: &[DatabaseRow]) -> Result<i64, DatabaseError> {
    match rows.first() {
        Some(row) => transaction.cell(row.int(0)),
        None => Err(transaction.unreadable("an answer without a row".to_owned())),
    }
}

pub(super) fn word<T: std::str::FromStr<Err = super::UnknownWord>>(
    transaction: &Transaction,
    word: String,
) -> Result<T, DatabaseError> {
    word.parse().map_err(|error: super::UnknownWord| transaction.unreadable(error.to_string()))
}

/// The state of a campaign, which stays so until the transaction is over; `None` if there is no such campaign.
pub(super) async fn lock_state(
    transaction: &mut Transaction,
    id: i64,
) -> Result<Option<CampaignState>, DatabaseError> {
    let sql = Sql {
        postgres: "SELECT state FROM campaign WHERE id = $1 FOR UPDATE",
        sqlite: "SELECT state FROM campaign WHERE id = $1",
    };
    let rows = transaction.rows(sql, &[SqlValue::Int(id)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let state = transaction.cell(row.text(0))?;
    Ok(Some(word(transaction, state)?))
}

async fn write_chunks(
    transaction: &mut Transaction,
    id: i64,
    first: i64,
    chunks: &[Vec<u8>],
) -> Result<(), DatabaseError> {
    let sql = "INSERT INTO campaign_chunk (campaign, token, ids) VALUES ($1, $2, $3)";
    for (token, chunk) in (first..).zip(chunks) {
        transaction.execute(sql, &[SqlValue::Int(id), SqlValue::Int(token), SqlValue::Bytes(chunk)]).await?;
    }
    Ok(())
}

pub(super) async fn write_failed(
    transaction: &mut Transaction,
    id: i64,
    failed: &[Failed],
) -> Result<(), DatabaseError> {
    let sql = "INSERT INTO campaign_failed (campaign, id, reason) VALUES ($1, $2, $3)";
    for Failed { id: failed, reason } in failed {
        // PostgreSQL takes no text with a NUL.
        let reason = reason.replace('\0', " ");
        transaction
            .execute(sql, &[SqlValue::Int(id), SqlValue::Bytes(failed), SqlValue::Text(&reason)])
            .await?;
    }
    Ok(())
}

fn read_status(transaction: &Transaction, row: &DatabaseRow) -> Result<CampaignStatus, DatabaseError> {
    let int = |column| transaction.cell(row.int(column));
    let text = |column| transaction.cell(row.text(column));
    let state = word(transaction, text(5)?)?;
    let (ids, produced, failed, tokens, next_token) = (int(7)?, int(8)?, int(9)?, int(10)?, int(11)?);
    let (now, leases, expired) = (int(19)?, int(20)?, int(21)?);
    let speed = Speed { window_start: int(13)?, window_ids: int(14)?, window_rate: int(15)? };
    let rate = if state == CampaignState::Ready { rate(&speed, now) } else { 0.0 };
    Ok(CampaignStatus {
        id: int(0)?,
        name: text(1)?,
        action: word(transaction, text(2)?)?,
        topic: text(3)?,
        selection: text(4)?,
        state,
        broken_off: state == CampaignState::Creating && now.saturating_sub(int(6)?) > micros(BROKEN_OFF),
        ids,
        produced,
        failed,
        chunks: tokens,
        chunks_fresh: (tokens + 1 - next_token).max(0),
        chunks_at_work: leases - expired,
        chunks_expired: expired,
        rate_limit: int(12)?,
        rate,
        seconds_left: seconds_left(ids - produced - failed, rate).filter(|_| !state.is_over()),
        created: int(16)?,
        started: int(17)?,
        ended: int(18)?,
        now,
    })
}
