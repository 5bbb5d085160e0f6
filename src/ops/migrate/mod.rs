//! Takes a change of the map from its beginning to its end, while writes go on (protocol, "Changing the map").
//!
//! All that has to outlive a crash is the record of the maps ([`crate::io::maps`]). Each stage begins with waiting for what must
//! have happened before it may end, and what was waited for before a crash is waited for again: time since the record changed
//! is counted from when this process first saw it. So any step may be the last one of a process, and the next goes on.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the stages in their order; what is waited for |
//! | `place.rs` | finds what is not where the map says, and touches it |
//! | `retire.rs` | deletes indices that no map needs any more |
//! | `status.rs` | how far a change is, for people |
//! | `error.rs` | why it cannot go on |

mod error;
mod place;
mod retire;
mod status;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub use crate::io::send::topic::TopicError;
pub use error::MigrateError;
pub use status::Status;

use crate::base::clock::{Clock, Instant};
use crate::base::ids::ShardId;
use crate::base::sabotage::{self, Sabotage};
use crate::core::decode::LocationPath;
use crate::geoshard::GeoshardMap;
use crate::io::claims::Claim;
use crate::io::elastic::{Elastic, Get, GetAnswer, Index};
use crate::io::indices::{self, WantedIndex};
use crate::io::maps::{Floor, MapsRecord, MapsState, MapsStore, Stage, StoreError, Stored};
use crate::io::meta::TopicFacts;
use crate::io::send::topic::Topic;
use crate::support::config::Config;

/// How often it is looked whether something that is waited for has come.
const LOOK: Duration = Duration::from_millis(500);
/// How often it is said that it has not.
const SAY: Duration = Duration::from_secs(10);
/// Beyond two batch deadlines: for the last request of the last batch to arrive.
const MARGIN: Duration = Duration::from_secs(1);

/// How long to wait after an error that may pass.
const AFTER_ERROR: Duration = Duration::from_secs(2);
/// How long a request may take, at least: refreshing and scanning whole indices is not the hot path.
const LONG: Duration = Duration::from_secs(30);

/// Where progress is told, a line at a time.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// What a change of the map stands on.
pub struct Migration {
    config: Config,
    elastic: Arc<dyn Elastic>,
    clock: Arc<dyn Clock>,
    topic: Topic,
    location: LocationPath,
    /// The map in the configuration's file.
    configured: Arc<GeoshardMap>,
    /// Touches per second, at most.
    touch_rate: NonZeroU32,
    /// Every document is looked at, not only those in places that change their geoshard.
    scans_all: bool,
    tell: Tell,
}

/// Where it is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Forward,
    Back,
}

/// The record, and since when this process knows that it is so.
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
        tell: Tell,
    ) -> Result<Self, MigrateError> {
        let topic = Topic::connect(config, elastic.clone()).await?;
        let config = config.clone();
        Ok(Self { config, elastic, clock, topic, location, configured, touch_rate, scans_all: false, tell })
    }

    /// Looks at every document, if so: also at those that are misplaced for other reasons than the change.
    pub fn scanning_all(self, scans_all: bool) -> Self {
        Self { scans_all, ..self }
    }

    /// Begins the change to `new`, or goes on with it, until `new` is the only map. `wanted`: its indices; those that are
    /// missing are created.
    pub async fn forward(&self, new: Arc<GeoshardMap>, wanted: &[WantedIndex]) -> Result<(), MigrateError> {
        let stored = self.store().read().await?;
        let record = self.record_or_configured(stored.as_ref()).await?;
        let begun = record.begin(new)?;
        if begun != record {
            // Moves are made visible before old copies go: whether that is allowed shows here, and not half-way.
            let old = record.deciding().shards().to_vec();
            self.refresh(&old).await?;
            let timeout = self.timeout();
            let prefix = &self.config.elasticsearch.prefix;
            let report = indices::create_missing(&*self.elastic, prefix, wanted, timeout).await?;
            if let Some(wrong) = report.differences.iter().find(|difference| !difference.problem.is_warning())
            {
                let doing = format!("use the index {}", wrong.index);
                return Err(MigrateError::Refused { doing, status: 200, reason: wrong.problem.to_string() });
            }
            self.say(format!(
                "{} indices created, {} were there",
                report.created.len(),
                report.existing.len()
            ));
            self.store().write(&begun, stored.map(|stored| stored.stamp)).await?;
            self.say(format!(
                "both maps are announced, generation {}; writes go on by {}",
                begun.generation,
                record.deciding().fingerprint()
            ));
        }
        self.go_on(Course::Forward).await
    }

    /// Calls the change off, and goes on until the old map is the only one again.
    pub async fn abort(&self) -> Result<(), MigrateError> {
        let stored = self.store().read().await?.ok_or(crate::io::maps::BadStep::NoChange)?;
        let called_off = stored.record.abort()?;
        if called_off != stored.record {
            self.store().write(&called_off, Some(stored.stamp)).await?;
            self.say(format!("the change is called off, generation {}", called_off.generation));
        }
        self.go_on(Course::Back).await
    }

    /// Stage after stage until one map is left. What did not answer is asked again: a stage begins anew then, but for the
    /// time that has passed since the record changed.
    async fn go_on(&self, course: Course) -> Result<(), MigrateError> {
        let mut last: Option<Seen> = None;
        loop {
            let seen = match (self.look().await, last.take()) {
                (Ok(seen), Some(last)) if last.stored == seen.stored => Ok(last),
                (seen, _) => seen,
            };
            let went = match &seen {
                Ok(seen) => self.stage(course, seen).await,
                Err(_) => Ok(true),
            };
            match (went, seen) {
                (Ok(false), _) => return Ok(()),
                (Ok(true), Ok(_)) => {}
                (Err(error), seen) if error.may_pass() => {
                    self.say(format!("{error}; repeating this stage"));
                    tokio::time::sleep(AFTER_ERROR).await;
                    last = seen.ok();
                }
                (Ok(true), Err(error)) if error.may_pass() => {
                    self.say(format!("{error}; asking again"));
                    tokio::time::sleep(AFTER_ERROR).await;
                }
                (Err(error), _) | (_, Err(error)) => return Err(error),
            }
        }
    }

    /// One stage to its end; `false` if there is none left.
    async fn stage(&self, course: Course, seen: &Seen) -> Result<bool, MigrateError> {
        let (record, epoch) = (&seen.stored.record, self.config.positions.epoch);
        let (next, what) = match &record.state {
            MapsState::One { map, .. } => {
                self.say(format!("{} is the only map in force", map.fingerprint()));
                return Ok(false);
            }
            MapsState::Two { stage, .. } if (course == Course::Back) != (*stage == Stage::Returning) => {
                return Err(MigrateError::OtherCourse);
            }
            MapsState::Two { stage: Stage::Announced, .. } => {
                let floor = self.everybody_announces(seen).await?;
                (record.activate(epoch, floor)?, "the new map decides")
            }
            MapsState::Two { .. } => {
                let floor = self.everything_is_placed(seen).await?;
                (record.finish(epoch, floor)?, "everything is in its place")
            }
        };
        // If its answer is lost, the next look shows whether it was written.
        self.store().write(&next, Some(seen.stored.stamp)).await?;
        self.say(format!("{what}, generation {}", next.generation));
        Ok(true)
    }

    /// [`Stage::Announced`]: nobody writes in place any more, and all that was written in place is committed.
    async fn everybody_announces(&self, seen: &Seen) -> Result<Floor, MigrateError> {
        if sabotage::is(Sabotage::ActivateUnconfirmed) {
            return Ok(Floor::new());
        }
        self.everybody_acts_by(seen).await?;
        // What was written in place under the old map must not be read again under the new one: its copy is at its own
        // version, and no delete at that version would remove it.
        self.everything_is_committed(seen).await
    }

    /// [`Stage::Moving`] and [`Stage::Returning`]: everybody decides by one map, and every document is where it says.
    async fn everything_is_placed(&self, seen: &Seen) -> Result<Floor, MigrateError> {
        self.everybody_acts_by(seen).await?;
        // What was decided before that is carried out before it is looked where documents are.
        self.everything_is_committed(seen).await?;
        self.place_all(seen).await?;
        self.everything_is_committed(seen).await
    }

    /// Waits until every partition's owner has confirmed this generation, and until no batch is under way any more that
    /// began by an earlier one, whoever sends it.
    async fn everybody_acts_by(&self, seen: &Seen) -> Result<(), MigrateError> {
        let generation = seen.stored.record.generation;
        let mut saying = Saying::default();
        let claims = loop {
            let claims = match self.store().claims(self.topic.partitions()).await {
                Ok(claims) => claims,
                Err(error @ StoreError::Call(_)) => {
                    saying.say(self, || error.to_string());
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
            saying.say(self, || format!("not confirmed yet: {}", some_of(&behind)));
            self.pause(seen).await?;
        };
        let theirs = claims.iter().flatten().map(Claim::deadline);
        let deadline = theirs.fold(self.config.batch.deadline, Duration::max);
        let grace = deadline * 2 + MARGIN;
        self.say(format!(
            "every partition has confirmed generation {generation}; waiting until {grace:?} have passed since it began"
        ));
        while self.clock.now().since(seen.since) <= grace {
            self.pause(seen).await?;
        }
        Ok(())
    }

    /// Waits until everything that is in the topic now is committed. Gives the ends of the partitions.
    async fn everything_is_committed(&self, seen: &Seen) -> Result<Floor, MigrateError> {
        let ends = self.topic.ends().await?;
        let mut saying = Saying::default();
        loop {
            let behind = self.topic.behind(&ends).await?;
            if behind.is_empty() {
                return Ok(ends);
            }
            let each = |(partition, done): (&i32, &i64)| {
                format!("partition {partition} (at {done} of {})", ends.get(partition).copied().unwrap_or(0))
            };
            saying.say(self, || {
                format!("not committed yet: {}", some_of(&behind.iter().map(each).collect::<Vec<_>>()))
            });
            self.pause(seen).await?;
        }
    }

    /// Waits a little. Fails if the record has changed meanwhile.
    async fn pause(&self, seen: &Seen) -> Result<(), MigrateError> {
        tokio::time::sleep(LOOK).await;
        self.is_still(seen).await
    }

    /// Fails if the record is not as it was seen.
    async fn is_still(&self, seen: &Seen) -> Result<(), MigrateError> {
        match self.store().read().await {
            Ok(now) if now.as_ref() == Some(&seen.stored) => Ok(()),
            Ok(_) => Err(MigrateError::OtherCourse),
            // It will answer again; whatever is decided after all the waiting is decided by compare-and-set.
            Err(StoreError::Call(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn look(&self) -> Result<Seen, MigrateError> {
        let stored = self.store().read().await?.ok_or(crate::io::maps::BadStep::NoChange)?;
        Ok(Seen { stored, since: self.clock.now() })
    }

    /// The record; where there is none, the one that the configuration stands for, if it is the workers'.
    async fn record_or_configured(&self, stored: Option<&Stored>) -> Result<MapsRecord, MigrateError> {
        let doing = "read what is remembered of the topic";
        let get = Get { index: Index::Meta, id: TopicFacts::key(&self.config.kafka.topic) };
        let answers = self.elastic.mget(&[get], self.timeout()).await;
        let answers = answers.map_err(|error| MigrateError::Call { doing, error })?;
        let refused = |reason| MigrateError::Refused { doing: doing.to_owned(), status: 200, reason };
        let facts: TopicFacts = match answers.into_iter().next() {
            Some(GetAnswer::Found(found)) => {
                serde_json::from_slice(&found.source).map_err(|error| refused(error.to_string()))?
            }
            Some(GetAnswer::Missing) => return Err(MigrateError::NothingRemembered),
            Some(GetAnswer::Failed(error)) => return Err(refused(error.to_string())),
            None => return Err(refused("an empty answer".to_owned())),
        };
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
        self.config.elasticsearch.request_timeout.max(LONG)
    }

    fn store(&self) -> MapsStore<'_> {
        MapsStore::new(&*self.elastic, &self.config.kafka.topic, self.timeout())
    }

    fn say(&self, line: impl AsRef<str>) {
        (self.tell)(line.as_ref());
    }
}

/// Says at first and then now and again what is waited for.
#[derive(Default)]
struct Saying {
    last: Option<Instant>,
}

impl Saying {
    fn say(&mut self, migration: &Migration, line: impl FnOnce() -> String) {
        let now = migration.clock.now();
        if self.last.is_none_or(|last| now.since(last) >= SAY) {
            self.last = Some(now);
            migration.say(line());
        }
    }
}

/// A partition whose owner has not confirmed, and what is known of that owner.
fn unconfirmed(partition: usize, found: Option<&Claim>) -> String {
    match found {
        None => format!("partition {partition} (it never has been; does a worker of this version own it?)"),
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
