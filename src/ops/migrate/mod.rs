//! Runs a change of the map from start to end while writes continue (protocol, "Changing the map").
//!
//! Only the record of the maps ([`crate::io::maps`]) outlives a crash. Each stage first waits for its conditions, again after a
//! restart: time since the record changed is counted from when this process first read it. So a process may end after any step,
//! and the next one continues.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the stages in order, and their conditions |
//! | `place.rs` | finds misplaced documents and touches them |
//! | `retire.rs` | deletes indices that no map needs any more |
//! | `status.rs` | progress, for `--status` |
//! | `error.rs` | errors |

mod error;
mod place;
mod retire;
mod status;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub use crate::io::send::topic::TopicError;
pub use error::MigrateError;
pub use status::MigrationStatus;

use crate::base::clock::{Clock, Instant};
use crate::base::figures;
use crate::base::ids::ShardId;
use crate::base::progress::Progress;
use crate::base::sabotage::{self, Sabotage};
use crate::core::decode::LocationPath;
use crate::geoshard::GeoshardMap;
use crate::io::claims::Claim;
use crate::io::elastic::{Elastic, Index};
use crate::io::indices::{self, WantedIndex};
use crate::io::maps::{MapChangeStage, MapsRecord, MapsState, MapsStore, OffsetFloor, Stored};
use crate::io::meta::TopicFacts;
use crate::io::send::topic::SendTopic;
use crate::io::stored::{RecordError, StoredRecord};
use crate::ops::group::stopped_partitions;
use crate::support::config::Config;

/// Interval of checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of lines about an unmet condition.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Beyond two batch deadlines: for the last request of the last batch to arrive.
const MARGIN: Duration = Duration::from_secs(1);

/// Pause after a transient error.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Minimum request timeout: refreshes and scans of whole indices take long.
const MIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Receives progress.
pub type Listener = Arc<dyn Fn(Progress<'_>) + Send + Sync>;

/// A change of the map.
pub struct Migration {
    config: Config,
    elastic: Arc<dyn Elastic>,
    clock: Arc<dyn Clock>,
    topic: SendTopic,
    location: LocationPath,
    /// The map in the configuration's file.
    configured: Arc<GeoshardMap>,
    /// Touches per second, at most.
    touch_rate: NonZeroU32,
    /// Reads every document, not only those in places that change their geoshard.
    scans_all: bool,
    listener: Listener,
}

/// Which map is to remain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// The new one.
    Forward,
    /// The old one.
    Back,
}

/// The record, and when this process first read it in this state.
struct Seen {
    stored: Stored,
    since: Instant,
}

impl Migration {
    /// Connects to Kafka. `config` and `configured` are those of the workers.
    pub async fn connect(
        config: &Config,
        elastic: Arc<dyn Elastic>,
        clock: Arc<dyn Clock>,
        configured: Arc<GeoshardMap>,
        location: LocationPath,
        touch_rate: NonZeroU32,
        listener: Listener,
    ) -> Result<Self, MigrateError> {
        let topic = SendTopic::connect(config, elastic.clone()).await?;
        let config = config.clone();
        Ok(Self {
            config,
            elastic,
            clock,
            topic,
            location,
            configured,
            touch_rate,
            scans_all: false,
            listener,
        })
    }

    /// If so, reads every document, and moves those misplaced for other reasons too.
    pub fn scanning_all(self, scans_all: bool) -> Self {
        Self { scans_all, ..self }
    }

    /// Starts or continues the change to `new`, until it is the only map. Creates missing indices of `wanted`.
    pub async fn forward(&self, new: Arc<GeoshardMap>, wanted: &[WantedIndex]) -> Result<(), MigrateError> {
        let stored = self.store().read().await?;
        let record = self.record_or_configured(stored.as_ref()).await?;
        let begun = record.begin(new)?;
        if begun != record {
            // Moves refresh before old copies are deleted; fail now if that privilege is missing.
            let old = record.deciding().shards().to_vec();
            self.refresh(&old).await?;
            let timeout = self.timeout();
            let prefix = &self.config.elasticsearch.prefix;
            let tell = |progress: Progress<'_>| self.tell(progress);
            let report = indices::create_missing(&*self.elastic, prefix, wanted, timeout, &tell).await?;
            if let Some(wrong) = report.differences.iter().find(|difference| !difference.problem.is_warning())
            {
                let doing = format!("use the index {}", wrong.index);
                return Err(MigrateError::Refused { doing, status: 200, reason: wrong.problem.to_string() });
            }
            self.say(format!("{} indices created, {} existed", report.created.len(), report.existing.len()));
            self.store().write(&begun, stored.map(|stored| stored.stamp)).await?;
            self.say(format!(
                "both maps announced, generation {}; writes continue by {}",
                begun.generation,
                record.deciding().fingerprint()
            ));
        }
        self.run_stages(Direction::Forward).await
    }

    /// Aborts the change, and runs until the old map is the only one again.
    pub async fn abort(&self) -> Result<(), MigrateError> {
        let stored = self.store().read().await?.ok_or(crate::io::maps::BadStep::NoChange)?;
        let aborted = stored.record.abort()?;
        if aborted != stored.record {
            self.store().write(&aborted, Some(stored.stamp)).await?;
            self.say(format!("change aborted, generation {}", aborted.generation));
        }
        self.run_stages(Direction::Back).await
    }

    /// Runs stages until one map is left. After a transient error the stage restarts, but the time since the record changed
    /// still counts.
    async fn run_stages(&self, direction: Direction) -> Result<(), MigrateError> {
        let mut last: Option<Seen> = None;
        loop {
            let seen = match (self.read_record().await, last.take()) {
                (Ok(seen), Some(last)) if last.stored == seen.stored => Ok(last),
                (seen, _) => seen,
            };
            let went = match &seen {
                Ok(seen) => self.stage(direction, seen).await,
                Err(_) => Ok(true),
            };
            match (went, seen) {
                (Ok(false), _) => return Ok(()),
                (Ok(true), Ok(_)) => {}
                (Err(error), seen) if error.is_transient() => {
                    self.say(format!("{error}; retrying this stage"));
                    tokio::time::sleep(RETRY_PAUSE).await;
                    last = seen.ok();
                }
                (Ok(true), Err(error)) if error.is_transient() => {
                    self.say(format!("{error}; retrying"));
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                (Err(error), _) | (_, Err(error)) => return Err(error),
            }
        }
    }

    /// Completes one stage; `false` if there is none left.
    async fn stage(&self, direction: Direction, seen: &Seen) -> Result<bool, MigrateError> {
        let (record, epoch) = (&seen.stored.record, self.config.positions.epoch);
        let (next, what) = match &record.state {
            MapsState::One { map, .. } => {
                self.say(format!("{} is the only map in force", map.fingerprint()));
                return Ok(false);
            }
            MapsState::Two { stage, .. }
                if (direction == Direction::Back) != (*stage == MapChangeStage::Returning) =>
            {
                return Err(MigrateError::OtherDirection);
            }
            MapsState::Two { stage: MapChangeStage::Announced, .. } => {
                let floor = self.all_confirmed_announcement(seen).await?;
                (record.activate(epoch, floor)?, "the new map decides")
            }
            MapsState::Two { .. } => {
                let floor = self.all_placed(seen).await?;
                (record.finish(epoch, floor)?, "all documents are placed")
            }
        };
        // If its answer is lost, the next look shows whether it was written.
        self.store().write(&next, Some(seen.stored.stamp)).await?;
        self.say(format!("{what}, generation {}", next.generation));
        Ok(true)
    }

    /// [`MapChangeStage::Announced`]: no worker writes in place any more, and everything written in place is committed.
    async fn all_confirmed_announcement(&self, seen: &Seen) -> Result<OffsetFloor, MigrateError> {
        if sabotage::is(Sabotage::ActivateUnconfirmed) {
            return Ok(OffsetFloor::new());
        }
        self.all_acting_by(seen).await?;
        // What was written in place under the old map must not be read again under the new one: its copy is at its own
        // version, and no delete at that version would remove it.
        self.all_committed(seen).await
    }

    /// [`MapChangeStage::Moving`] and [`MapChangeStage::Returning`]: all workers decide by one map, and every document is where it says.
    async fn all_placed(&self, seen: &Seen) -> Result<OffsetFloor, MigrateError> {
        self.all_acting_by(seen).await?;
        // Earlier decisions are carried out before the scan.
        self.all_committed(seen).await?;
        self.place_all(seen).await?;
        self.all_committed(seen).await
    }

    /// Waits until every partition's owner has confirmed this generation, and until batches of earlier ones have ended.
    async fn all_acting_by(&self, seen: &Seen) -> Result<(), MigrateError> {
        let generation = seen.stored.record.generation;
        let mut waiting = Waiting::since(self.clock.now());
        let what = format!("partitions have confirmed generation {generation}");
        let claims = loop {
            let claims = match self.store().claims(self.topic.partitions()).await {
                Ok(claims) => claims,
                Err(error @ RecordError::Call { .. }) => {
                    waiting.report(self, || error.to_string());
                    self.pause(seen).await?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let is_behind =
                |found: &Option<Claim>| found.as_ref().is_none_or(|claim| claim.generation < generation);
            let behind: Vec<String> = claims
                .iter()
                .enumerate()
                .filter(|(_, found)| is_behind(found))
                .map(|(partition, found)| unconfirmed(partition, found.as_ref()))
                .collect();
            if behind.is_empty() {
                break claims;
            }
            let all = claims.len() as u64;
            self.tell(Progress::Done { what: &what, done: all - behind.len() as u64, of: Some(all) });
            waiting.report(self, || format!("not confirmed yet: {}", some_of(&behind)));
            self.pause(seen).await?;
        };
        let deadlines = claims.iter().flatten().map(Claim::deadline);
        let deadline = deadlines.fold(self.config.batch.timeout, Duration::max);
        let grace = deadline * 2 + MARGIN;
        self.say(format!(
            "every partition has confirmed generation {generation}; earlier batches end within {} from its start",
            figures::time(grace)
        ));
        loop {
            let passed = self.clock.now().since(seen.since);
            if passed > grace {
                return Ok(());
            }
            self.tell(Progress::Wait { for_what: "earlier batches to end", left: grace - passed });
            self.pause(seen).await?;
        }
    }

    /// Waits until everything that is in the topic now is committed. Returns the ends of the partitions.
    async fn all_committed(&self, seen: &Seen) -> Result<OffsetFloor, MigrateError> {
        let ends = self.topic.ends().await?;
        let mut waiting = Waiting::since(self.clock.now());
        let mut most = 0;
        loop {
            let behind = self.topic.behind(&ends).await?;
            if behind.is_empty() {
                return Ok(ends);
            }
            let lag = |(partition, done): (&i32, &i64)| {
                ends.get(partition).map_or(0, |end| end.saturating_sub((*done).max(0)))
            };
            let lag = u64::try_from(behind.iter().map(lag).sum::<i64>()).unwrap_or_default();
            most = lag.max(most);
            let what = "records committed that were in the topic";
            self.tell(Progress::Done { what, done: most - lag, of: Some(most) });
            let each = |(partition, done): (&i32, &i64)| {
                format!("partition {partition} (at {done} of {})", ends.get(partition).copied().unwrap_or(0))
            };
            if waiting.is_due(self) {
                let stopped = stopped_partitions(&self.config).await;
                for (partition, reason) in
                    stopped.iter().filter(|(partition, _)| behind.contains_key(partition))
                {
                    self.say(format!(
                        "partition {partition} is stopped: {reason}; the change waits for it (geofold status)"
                    ));
                }
            }
            waiting.report(self, || {
                format!("not committed yet: {}", some_of(&behind.iter().map(each).collect::<Vec<_>>()))
            });
            self.pause(seen).await?;
        }
    }

    /// Waits a little. Fails if the record has changed meanwhile.
    async fn pause(&self, seen: &Seen) -> Result<(), MigrateError> {
        tokio::time::sleep(POLL_INTERVAL).await;
        self.is_unchanged(seen).await
    }

    /// Fails if the record is not as it was seen.
    async fn is_unchanged(&self, seen: &Seen) -> Result<(), MigrateError> {
        match self.store().read().await {
            Ok(now) if now.as_ref() == Some(&seen.stored) => Ok(()),
            Ok(_) => Err(MigrateError::OtherDirection),
            // It will answer again; the decision after the wait is made by compare-and-set.
            Err(RecordError::Call { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn read_record(&self) -> Result<Seen, MigrateError> {
        let stored = self.store().read().await?.ok_or(crate::io::maps::BadStep::NoChange)?;
        Ok(Seen { stored, since: self.clock.now() })
    }

    /// The record; without one, that of the configured map if the workers use it.
    async fn record_or_configured(&self, stored: Option<&Stored>) -> Result<MapsRecord, MigrateError> {
        let id = TopicFacts::key(&self.config.kafka.topic);
        let facts = StoredRecord::new(&*self.elastic, &id, self.timeout()).read_as::<TopicFacts>().await?;
        let (facts, _) = facts.ok_or(MigrateError::NoStoredState)?;
        let epoch = self.config.positions.epoch;
        if facts.epoch != epoch {
            let (configured, remembered) = (epoch.get(), facts.epoch.get());
            return Err(MigrateError::OtherEpoch { configured, remembered });
        }
        if let Some(stored) = stored {
            return Ok(stored.record.clone());
        }
        let configured = self.configured.fingerprint();
        match facts.map {
            Some(remembered) if remembered != configured => {
                Err(MigrateError::OtherMap { configured, remembered })
            }
            _ => Ok(MapsRecord::unwritten(self.configured.clone(), epoch)),
        }
    }

    async fn refresh(&self, shards: &[ShardId]) -> Result<(), MigrateError> {
        let indices: Vec<Index> = shards.iter().cloned().map(Index::Geoshard).collect();
        let doing = "refresh the geoshards (the index privilege maintenance allows it)";
        let timeout = self.timeout();
        self.elastic.refresh(&indices, timeout).await.map_err(|error| MigrateError::Call { doing, error })
    }

    fn timeout(&self) -> Duration {
        self.config.elasticsearch.request_timeout.max(MIN_TIMEOUT)
    }

    fn store(&self) -> MapsStore<'_> {
        MapsStore::new(&*self.elastic, &self.config.kafka.topic, self.timeout())
    }

    fn say(&self, line: impl AsRef<str>) {
        self.tell(Progress::Happened(line.as_ref()));
    }

    fn tell(&self, progress: Progress<'_>) {
        (self.listener)(progress);
    }
}

/// Reports what a condition lacks at intervals. On a healthy system it is met before the first one ends.
struct Waiting {
    last: Instant,
}

impl Waiting {
    fn since(now: Instant) -> Self {
        Self { last: now }
    }

    fn is_due(&self, migration: &Migration) -> bool {
        migration.clock.now().since(self.last) >= PROGRESS_INTERVAL
    }

    fn report(&mut self, migration: &Migration, line: impl FnOnce() -> String) {
        if self.is_due(migration) {
            self.last = migration.clock.now();
            migration.say(line());
        }
    }
}

/// A partition whose owner has not confirmed, and what is known of that owner.
fn unconfirmed(partition: usize, found: Option<&Claim>) -> String {
    match found {
        None => format!("partition {partition} (no claim; does a worker of this version own it?)"),
        Some(Claim { generation, owner, .. }) => {
            format!("partition {partition} (its owner at generation {generation} was {owner})")
        }
    }
}

/// The first few of a list, and how many more there are.
fn some_of(all: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = all.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
