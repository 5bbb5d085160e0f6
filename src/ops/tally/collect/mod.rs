//! `geofold collect`: increments become counts, each exactly once.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | standing by, taking over, merging, stepping down |
//! | `batch.rs` | increments as they came, judged; what they change together (pure) |
//! | `cloud.rs` | the values that most documents have, kept up to date by changes (pure) |
//! | `store.rs` | the tables, and the one transaction that changes them |
//! | `reader.rs` | the increments' topic, read from where the database says |
//! | `notify.rs` | a record about each version |
//! | `http.rs` | the cloud, its stream, metrics, health |
//! | `svg.rs` | the cloud as a picture |
//! | `history.rs` | increments generated from a seed, and their counts: for tests and measurements |
//!
//! Several collectors run. One merges: the one whose name is in the table `collector`, with a number that it raises all
//! the time. The others look at that number, and when it has not changed for a while, by their own clock, one of them puts
//! its name there. No clocks are compared, and nothing depends on who believes to be the one: every merge checks name and
//! offsets inside its own transaction, under a lock, and changes nothing if they are not as expected.

pub mod batch;
pub mod cloud;
#[doc(hidden)]
pub mod history;
pub mod http;
mod notify;
mod reader;
pub mod store;
pub mod svg;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use self::notify::Notifier;
pub use self::reader::{Allowances, IncrementReadError};
use self::reader::{ReadLimits, Reader};
use self::store::{CountStore, CountsVersion, KnownTopic, Leader, MergeOutcome, MergedBatch, Start};
use crate::io::database::DatabaseError;
use crate::support::config::Config;
use crate::support::telemetry::collector::{CollectorMetrics, EdgesLabel};
use crate::support::telemetry::health::Health;
use crate::support::telemetry::metrics::level;

/// Maximum interval between checks of the leader.
const LOOK: Duration = Duration::from_millis(500);
/// Between two tries to get the lock of merging.
const LOCKED: Duration = Duration::from_millis(100);
/// Interval of checks that the topic is still the same one.
const TOPIC_INTERVAL: Duration = Duration::from_secs(30);

/// The part of the collector's health that is about the database.
pub const DATABASE: &str = "database";
/// The part that is about Kafka.
pub const KAFKA: &str = "kafka";

/// Why a collector failed.
#[derive(Debug, Error)]
pub enum CollectError {
    /// A permanent database error.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Increments cannot be read, and could not later.
    #[error(transparent)]
    Read(#[from] IncrementReadError),
    /// The thread that reads panicked.
    #[error(
        "reading increments ended unexpectedly; this is a defect in geofold, please report it with the log"
    )]
    Panicked,
}

impl CollectError {
    fn is_passing(&self) -> bool {
        match self {
            Self::Database(error) => error.is_passing(),
            Self::Read(error) => error.is_passing(),
            Self::Panicked => false,
        }
    }

    fn part(&self) -> &'static str {
        match self {
            Self::Database(_) => DATABASE,
            Self::Read(_) | Self::Panicked => KAFKA,
        }
    }
}

/// A collector's dependencies.
pub struct Collector {
    /// Where counts are.
    pub store: CountStore,
    /// Records to skip, by an operator's decision.
    pub allowances: Allowances,
    /// Counters.
    pub metrics: Arc<CollectorMetrics>,
    /// Liveness and readiness.
    pub health: Arc<Health>,
    /// The latest version that is known here.
    pub latest: watch::Sender<Option<Arc<CountsVersion>>>,
    /// Notifies of versions.
    pub notifier: Option<Notifier>,
    /// Told once: step down and end.
    pub stop: CancellationToken,
}

/// Why merging ended for now.
enum Ended {
    /// Told to stop.
    Stopped,
    /// Another collector merges, or has merged.
    Replaced,
}

impl Collector {
    /// Stands by and merges in turn, until told to stop.
    ///
    /// # Errors
    /// See [`CollectError`]; what passes is waited for. Nothing is merged twice or left out in any case.
    pub async fn run(mut self, config: &Config) -> Result<(), CollectError> {
        let me = name();
        tracing::info!(name = me, database = self.store.name(), "collector begins");
        let retry = config.retry.policy();
        let mut delays = retry.delays();
        let mut reader = Some(Reader::new(config, self.allowances.clone())?);
        let mut prepared = false;
        while !self.stop.is_cancelled() {
            let turn = self.turn(config, &me, &mut reader, &mut prepared).await;
            self.metrics.leading.set(0);
            match turn {
                Ok(()) => delays = retry.delays(),
                Err(error) if error.is_passing() => {
                    let delay = delays.next(None);
                    tracing::warn!(%error, ?delay, "the collector retries");
                    self.health.not_ready(error.part(), error.to_string());
                    self.wait(delay).await;
                }
                Err(error) => {
                    self.leave(&me).await;
                    return Err(error);
                }
            }
        }
        self.leave(&me).await;
        // Off the runtime's threads: closing waits for the brokers.
        let _ = tokio::task::spawn_blocking(move || drop(reader)).await;
        Ok(())
    }

    /// Waits for leadership, and merges until it ends.
    async fn turn(
        &mut self,
        config: &Config,
        me: &str,
        reader: &mut Option<Reader>,
        prepared: &mut bool,
    ) -> Result<(), CollectError> {
        if !*prepared {
            self.store.prepare().await?;
            *prepared = true;
        }
        let Some(start) = self.stand_by(config.collector.takeover_timeout, me).await? else { return Ok(()) };
        let taken = match reader.take() {
            Some(reader) => reader,
            None => Reader::new(config, self.allowances.clone())?,
        };
        let mut lead = Lead { collector: self, config, me, reader: Some(taken) };
        let ended = lead.merge_all(start).await;
        *reader = lead.rest().await;
        if let Err(CollectError::Read(_)) = &ended {
            // Perhaps another collector reaches the brokers.
            self.store.step_down(me).await?;
        }
        match ended? {
            Ended::Replaced => tracing::info!("another collector merges now; this one is on standby"),
            Ended::Stopped => {}
        }
        Ok(())
    }

    /// Waits until there is no leader, and takes over; `None` if stopped.
    async fn stand_by(&mut self, takeover: Duration, me: &str) -> Result<Option<Start>, CollectError> {
        let mut seen = Leader::default();
        let mut since = Instant::now();
        let mut first = true;
        while !self.stop.is_cancelled() {
            self.health.poll_heartbeat();
            let now = self.store.leader().await?;
            if first || now != seen {
                (seen, since, first) = (now, Instant::now(), false);
            }
            self.look_for_version().await?;
            let free = seen.holder.is_empty() || seen.holder == me;
            if !free {
                // Whether Kafka answers, and the database can be written, is known and matters to the one who merges.
                self.ready(&[DATABASE, KAFKA, Health::STARTUP]);
            }
            if free || since.elapsed() >= takeover {
                if let Some(start) = self.store.take_over(me, &seen).await? {
                    // Not before: a full disk can be read.
                    self.ready(&[DATABASE]);
                    tracing::info!(before = seen.holder, "this collector merges now");
                    return Ok(Some(start));
                }
                first = true;
            }
            self.wait(LOOK.min(takeover / 4)).await;
        }
        Ok(None)
    }

    fn ready(&self, parts: &[&str]) {
        parts.iter().for_each(|part| self.health.ready(part));
    }

    async fn look_for_version(&self) -> Result<(), CollectError> {
        let known = self.latest.borrow().as_ref().map_or(0, |version| version.number);
        if let Some(version) = self.store.later_than(known).await? {
            self.publish(version);
        }
        Ok(())
    }

    fn publish(&self, version: CountsVersion) {
        self.metrics.version.set(version.number);
        self.latest.send_replace(Some(Arc::new(version)));
    }

    async fn wait(&self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn leave(&self, me: &str) {
        if let Err(error) = self.store.step_down(me).await {
            tracing::info!(%error, "could not step down; another collector takes over after collector.takeover_timeout");
        }
    }
}

/// A collector in the time in which it merges.
struct Lead<'a> {
    collector: &'a mut Collector,
    config: &'a Config,
    me: &'a str,
    /// `None` while another thread has it.
    reader: Option<Reader>,
}

impl Lead<'_> {
    async fn merge_all(&mut self, start: Start) -> Result<Ended, CollectError> {
        let topic = self.blocking(|reader| reader.topic()).await?;
        let (known, begin) = (topic.clone(), start.clone());
        let offsets = self.blocking(move |reader| reader.begin_at(&begin, &known)).await?;
        self.collector.ready(&[KAFKA, Health::STARTUP]);
        let settled = start.topic.as_ref() == Some(&topic) && start.offsets == offsets;
        if !settled && !self.collector.store.settle(self.me, &topic, &offsets).await? {
            return Ok(Ended::Replaced);
        }
        self.collector.metrics.leading.set(1);
        self.tell_of_latest();
        let settings = &self.config.collector;
        let limits = ReadLimits {
            increments: settings.max_increments,
            bytes: settings.max_bytes.as_usize(),
            time: settings.merge_interval,
        };
        let mut topic_seen = Instant::now();
        loop {
            self.collector.health.poll_heartbeat();
            if self.collector.stop.is_cancelled() {
                return Ok(Ended::Stopped);
            }
            if topic_seen.elapsed() >= TOPIC_INTERVAL {
                topic_seen = Instant::now();
                self.look_at_topic(&topic).await?;
            }
            let stop = self.collector.stop.clone();
            let (batch, lag) =
                self.blocking(move |reader| Ok((reader.gather(limits, &stop)?, reader.lag()))).await?;
            self.collector.metrics.lag.set(lag);
            if batch.is_empty() {
                if !self.collector.store.beat(self.me).await? {
                    return Ok(Ended::Replaced);
                }
                continue;
            }
            let began = Instant::now();
            match self.merge(&batch).await? {
                Some(merged) => {
                    self.count(&batch, &merged, began.elapsed());
                    let read = batch.read;
                    self.blocking(move |reader| {
                        reader.show_progress(read.iter().map(|(partition, (_, next))| (*partition, *next)));
                        Ok(())
                    })
                    .await?;
                }
                None => return Ok(Ended::Replaced),
            }
        }
    }

    /// `None` if another collector leads, or if stopped.
    async fn merge(&self, batch: &batch::IncrementBatch) -> Result<Option<MergedBatch>, CollectError> {
        while !self.collector.stop.is_cancelled() {
            match self.collector.store.merge(self.me, batch).await? {
                MergeOutcome::Done(merged) => return Ok(Some(*merged)),
                MergeOutcome::Moved => return Ok(None),
                // One that is on its way out, or frozen: the server ends it.
                MergeOutcome::Busy => self.collector.wait(LOCKED).await,
            }
        }
        Ok(None)
    }

    fn count(&self, batch: &batch::IncrementBatch, merged: &MergedBatch, took: Duration) {
        let metrics = &self.collector.metrics;
        metrics.merges.inc();
        metrics.increments.inc_by(batch.increments.len() as u64);
        metrics.edges.of(EdgesLabel::Applied).inc_by(merged.edges_applied);
        metrics.edges.of(EdgesLabel::Skipped).inc_by(merged.edges_skipped);
        metrics.values.inc_by(merged.values as u64);
        metrics.boards_read.inc_by(merged.boards_read as u64);
        metrics.merge_seconds.observe(took.as_secs_f64());
        metrics.negative.set(level(merged.negative));
        if merged.negative > 0 {
            tracing::warn!(
                values = merged.negative,
                "counts below 0: documents were removed that had never been counted; recount (docs/counts.md)"
            );
        }
        tracing::debug!(
            version = merged.version.number,
            increments = batch.increments.len(),
            edges = merged.edges_applied,
            skipped = merged.edges_skipped,
            ?took,
            "merged"
        );
        self.collector.publish(merged.version.clone());
        self.tell_of_latest();
    }

    /// Again after a takeover, too: the one before may have ended between its merge and its word of it.
    fn tell_of_latest(&self) {
        let latest = self.collector.latest.borrow().clone();
        if let (Some(notifier), Some(version)) = (&self.collector.notifier, latest) {
            notifier.notify(version);
        }
    }

    async fn look_at_topic(&mut self, topic: &KnownTopic) -> Result<(), CollectError> {
        match self.blocking(|reader| reader.topic()).await {
            // A change ends this leadership; the next one handles it.
            Ok(now) if now != *topic => Err(IncrementReadError::Brokers {
                topic: topic.topic.clone(),
                reason: "the topic has changed".to_owned(),
            }
            .into()),
            Ok(_) => Ok(()),
            Err(CollectError::Read(error)) if error.is_passing() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Runs a blocking function on a blocking thread.
    async fn blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Reader) -> Result<T, IncrementReadError> + Send + 'static,
    ) -> Result<T, CollectError> {
        let Some(mut reader) = self.reader.take() else { return Err(CollectError::Panicked) };
        let done = tokio::task::spawn_blocking(move || {
            let result = work(&mut reader);
            (reader, result)
        });
        let (reader, result) = done.await.map_err(|_| CollectError::Panicked)?;
        self.reader = Some(reader);
        Ok(result?)
    }

    /// Stops reading, and gives the reader back.
    async fn rest(mut self) -> Option<Reader> {
        // A reader that is lost was lost with an error already.
        let _ = self
            .blocking(|reader| {
                reader.rest();
                Ok(())
            })
            .await;
        self.reader.take()
    }
}

/// A name that no other collector has.
fn name() -> String {
    // Its keys are random, and different each time.
    let random = RandomState::new().hash_one(std::process::id());
    format!("{}-{random:016x}", std::process::id())
}
