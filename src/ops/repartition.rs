//! Partitions that were added to the topic: when they may be read (protocol, "More partitions").
//!
//! Workers go on with the old partitions meanwhile. The new epoch, in which they read all, may begin once every record is committed
//! that a producer wrote to an old partition before it knew the new ones: then each key's records in its new partition come after
//! those in its old one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::group::stopped_partitions;
use super::records::{RecordsError, RecordsReader, ask};
use crate::base::clock::Clock;
use crate::base::figures;
use crate::base::position::Epoch;
use crate::base::progress::{Progress, Tell};
use crate::io::elastic::Elastic;
use crate::io::meta::{AddedPartitions, EpochNeeded, TopicFacts};
use crate::io::stored::{RecordError, StoredRecord};
use crate::support::config::Config;

/// Interval of looks at committed offsets.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of questions which partitions are stopped.
const STOPPED_INTERVAL: Duration = Duration::from_secs(10);

/// What is known of the producers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Producers {
    /// They write, and know of new partitions within this time.
    Know(Duration),
    /// All of them are stopped.
    Stopped,
    /// Nothing: what waits may be read out of order.
    Unknown,
}

/// How, and where.
pub struct Repartition<'a> {
    /// The workers' configuration.
    pub config: &'a Config,
    /// The search server.
    pub elastic: &'a dyn Elastic,
    /// Measures the waits.
    pub clock: &'a dyn Clock,
    /// Of the topic.
    pub producers: Producers,
    /// Receives progress.
    pub tell: Tell<'a>,
    /// Ends it.
    pub stop: CancellationToken,
}

/// The old partitions are drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Number of old partitions.
    pub old: i32,
    /// Number of all.
    pub all: i32,
    /// The epoch in use.
    pub epoch: Epoch,
}

/// New partitions may not be read yet. Running the same command again resumes it.
#[derive(Debug, Error)]
pub enum RepartitionError {
    /// Kafka.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// The meta index.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// No worker ever ran.
    #[error("no worker has read this topic yet: nothing has to be done, a first worker reads all partitions")]
    NothingRemembered,
    /// Another epoch, or another topic of this name.
    #[error(transparent)]
    Positions(#[from] EpochNeeded),
    /// None were added.
    #[error(
        "the topic has {0} partitions, as in the epoch in use: add partitions first (kafka-topics --alter --partitions)"
    )]
    NothingAdded(i32),
    /// Keys may have moved between old partitions.
    #[error(
        "the topic has {found} partitions and had {remembered}; {found} is no multiple of {remembered}, so keys also move between old partitions, and workers read none: with --producers-stopped, if nothing waits (geofold status), or else with --accept-disorder"
    )]
    NotAMultiple {
        /// Number before.
        remembered: i32,
        /// Number now.
        found: i32,
    },
    /// A worker that started meanwhile wrote over what this command remembers, or more were added.
    #[error("more partitions were added, or a worker started just when this command did: repeat the command")]
    Overwritten,
    /// Producers write.
    #[error(
        "partition {0} receives records although all producers are stopped (--producers-stopped): find who writes, and repeat the command"
    )]
    ProducersWrite(i32),
}

impl Repartition<'_> {
    /// Waits until the old partitions are drained, and remembers it.
    ///
    /// # Errors
    /// See [`RepartitionError`]. From its first wait on geofold writes no records of its own until the epoch is raised.
    pub async fn run(&self) -> Result<Drained, RepartitionError> {
        let (remembered, all) = self.added().await?;
        let (old, epoch) = (remembered.partitions, remembered.epoch);
        let drained = Drained { old, all, epoch };
        let added = |is_drained| AddedPartitions { partitions: all, is_drained };
        if remembered.added == Some(added(true)) {
            return Ok(drained);
        }
        // ⚠ Before the wait: what geofold's own commands have decided to write by then is written within it.
        self.remember(&TopicFacts { added: Some(added(false)), ..remembered }).await?;
        match self.producers {
            Producers::Know(age) => self.wait(age).await?,
            Producers::Stopped => self.nothing_comes(all).await?,
            Producers::Unknown => {}
        }
        if self.producers != Producers::Unknown {
            self.drain(old).await?;
        }
        let (remembered, found) = self.added().await?;
        if found != all || remembered.added != Some(added(false)) {
            return Err(RepartitionError::Overwritten);
        }
        self.remember(&TopicFacts { added: Some(added(true)), ..remembered }).await?;
        Ok(drained)
    }

    /// What is remembered of the topic, and how many partitions it has now.
    async fn added(&self) -> Result<(TopicFacts, i32), RepartitionError> {
        let topic = &self.config.kafka.topic;
        let found = ask(self.config, &self.stop, RecordsReader::describe).await?;
        let id = TopicFacts::key(topic);
        let stored = StoredRecord::new(self.elastic, &id, self.config.elasticsearch.request_timeout);
        let Some((remembered, _)) = stored.read_as::<TopicFacts>().await? else {
            return Err(RepartitionError::NothingRemembered);
        };
        let now = TopicFacts::found(self.config.positions.epoch, found);
        let all = judge(&remembered, &now, self.producers)?;
        Ok((remembered, all))
    }

    async fn remember(&self, facts: &TopicFacts) -> Result<(), RepartitionError> {
        let id = TopicFacts::key(&self.config.kafka.topic);
        // Not by compare-and-set: the next epoch's facts are written by their external version, the epoch.
        let op = facts.remember(&self.config.kafka.topic);
        let answers = self.elastic.bulk(&[op], self.config.elasticsearch.request_timeout).await;
        let answers = answers.map_err(|error| RecordError::Call { id: id.to_string(), error })?;
        match answers.first().and_then(|answer| answer.error.as_ref()) {
            None => Ok(()),
            Some(error) => Err(RecordError::Refused { id: id.to_string(), reason: error.to_string() }.into()),
        }
    }

    async fn wait(&self, age: Duration) -> Result<(), RepartitionError> {
        let began = self.clock.now();
        loop {
            let passed = self.clock.now().since(began);
            if passed >= age {
                return Ok(());
            }
            let for_what = "every producer to know the new partitions (metadata.max.age.ms)";
            (self.tell)(Progress::Wait { for_what, left: age - passed });
            self.pause().await?;
        }
    }

    /// Fails if a partition grows within two looks.
    async fn nothing_comes(&self, all: i32) -> Result<(), RepartitionError> {
        let before = self.ranges(all).await?;
        self.pause().await?;
        let after = self.ranges(all).await?;
        let end =
            |ranges: &BTreeMap<i32, Range<i64>>, partition| ranges.get(&partition).map(|range| range.end);
        let grown = (0..all).find(|&partition| end(&before, partition) != end(&after, partition));
        grown.map_or(Ok(()), |partition| Err(RepartitionError::ProducersWrite(partition)))
    }

    /// Waits until everything that is in the first `old` partitions now is committed.
    async fn drain(&self, old: i32) -> Result<(), RepartitionError> {
        let ends = self.ranges(old).await?;
        let mut most = 0;
        let mut asked_at = self.clock.now();
        loop {
            let committed = self.committed(old).await?;
            let left: u64 = behind(&ends, &committed).map(|(_, lag)| lag).sum();
            if left == 0 {
                return Ok(());
            }
            most = left.max(most);
            let what = "records of the old partitions committed";
            (self.tell)(Progress::Done { what, done: most - left, of: Some(most) });
            if self.clock.now().since(asked_at) >= STOPPED_INTERVAL {
                asked_at = self.clock.now();
                let waits = |partition: &i32| {
                    behind(&ends, &committed).any(|(number, lag)| number == *partition && lag > 0)
                };
                for (partition, reason) in stopped_partitions(self.config).await {
                    if waits(&partition) {
                        let line = format!("partition {partition} is stopped: {reason} (geofold status)");
                        (self.tell)(Progress::Happened(&line));
                    }
                }
            }
            self.pause().await?;
        }
    }

    async fn ranges(&self, partitions: i32) -> Result<BTreeMap<i32, Range<i64>>, RecordsError> {
        ask(self.config, &self.stop, move |reader| reader.ranges(partitions)).await
    }

    async fn committed(&self, partitions: i32) -> Result<BTreeMap<i32, i64>, RecordsError> {
        ask(self.config, &self.stop, move |reader| reader.committed(0..partitions)).await
    }

    async fn pause(&self) -> Result<(), RecordsError> {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => Ok(()),
            () = self.stop.cancelled() => Err(RecordsError::Interrupted),
        }
    }
}

impl std::fmt::Display for Drained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { old, all, epoch } = *self;
        write!(
            f,
            "the {old} old partitions are drained: stop all workers, raise positions.epoch above {epoch} everywhere, and start them; they then read all {} partitions",
            figures::count(u64::from(all.unsigned_abs()))
        )
    }
}

/// The new number of partitions, if workers may come to read them.
fn judge(remembered: &TopicFacts, now: &TopicFacts, producers: Producers) -> Result<i32, RepartitionError> {
    let (old, found) = (remembered.partitions, now.partitions);
    match TopicFacts::allows(remembered, now) {
        Err(EpochNeeded::OtherPartitions { .. })
            if found > old && !matches!(producers, Producers::Know(_)) =>
        {
            Ok(found)
        }
        Err(EpochNeeded::OtherPartitions { .. }) if found > old => {
            Err(RepartitionError::NotAMultiple { remembered: old, found })
        }
        Err(error) => Err(error.into()),
        Ok(()) if found == old || now.epoch != remembered.epoch => Err(RepartitionError::NothingAdded(found)),
        Ok(()) => Ok(found),
    }
}

/// How far the commits of each partition are behind its end. Nothing is ever committed in an empty partition.
fn behind(
    ends: &BTreeMap<i32, Range<i64>>,
    committed: &BTreeMap<i32, i64>,
) -> impl Iterator<Item = (i32, u64)> {
    ends.iter().map(|(&partition, range)| {
        let done = committed.get(&partition).copied().unwrap_or(range.start).max(range.start);
        (partition, u64::try_from(range.end - done).unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(epoch: u32, partitions: i32) -> TopicFacts {
        let (epoch, topic_id) = (Epoch::new(epoch).unwrap(), Some("a".to_owned()));
        TopicFacts { epoch, topic_id, partitions, map: None, added: None }
    }

    #[test]
    fn only_partitions_that_were_added_in_this_epoch_are_waited_for() {
        let remembered = facts(2, 4);
        let judged = |now: &TopicFacts, stopped| {
            let producers = if stopped { Producers::Stopped } else { Producers::Know(Duration::ZERO) };
            judge(&remembered, now, producers).map_err(|error| error.to_string())
        };
        assert_eq!(judged(&facts(2, 8), false), Ok(8));
        assert_eq!(judged(&facts(2, 6), true), Ok(6));
        for (now, stopped, words) in [
            (facts(2, 6), false, "6 is no multiple of 4"),
            (facts(2, 4), true, "add partitions first"),
            (facts(2, 3), true, "has 3 partitions and had 4"),
            (facts(3, 8), false, "with positions.epoch 2 before you raise it"),
            (facts(3, 4), false, "add partitions first"),
            (facts(1, 8), false, "epoch 2 was in use"),
            (TopicFacts { topic_id: Some("b".to_owned()), ..facts(2, 8) }, false, "created anew"),
        ] {
            let refused = judged(&now, stopped).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_partition_is_behind_until_its_end_is_committed() {
        let ends = [(0, 5..9), (1, 0..0), (2, 3..3), (3, 0..4)].into();
        let lags: Vec<u64> = behind(&ends, &[(0, 7), (3, 4)].into()).map(|(_, lag)| lag).collect();
        assert_eq!(lags, [2, 0, 0, 0]);
        assert_eq!(behind(&ends, &[].into()).map(|(_, lag)| lag).sum::<u64>(), 8);
    }
}
