//! Reading increments: a consumer that is assigned its partitions by hand, at offsets that come from the database.
//!
//! It is no member of a consumer group. Which collector merges is decided in the database, where the counts are; a group
//! would be a second opinion, and its rebalances a second way to wait. The group's name is there only to show Kafka's
//! tools how far merging is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::Message;
use rdkafka::statistics::Statistics;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::batch::{BadIncrement, IncrementBatch, IncrementsPartition, read_increment};
use super::store::{KnownTopic, Start};
use crate::io::kafka::lost_brokers::LostBrokers;
use crate::io::kafka::{TopicFactsError, login, topic_facts};
use crate::support::config::Config;

/// How long a question to the brokers may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a poll: the interval between checks of time and signals.
const POLL: Duration = Duration::from_millis(50);
/// How long closing may take before the consumer is left alone.
const CLOSING: Duration = Duration::from_secs(5);

/// Settings of a member of a group, which the reader is not.
const MEMBERSHIP: [&str; 5] = [
    "group.protocol",
    "group.remote.assignor",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "heartbeat.interval.ms",
];

/// Why reading cannot go on. Counts need every increment, so that none is passed over by itself.
#[derive(Debug, Error)]
pub enum IncrementReadError {
    /// The consumer could not be made.
    #[error("could not create the kafka consumer: {0}; check [kafka] in the configuration")]
    Client(KafkaError),
    /// The topic is not there.
    #[error("the topic of increments, {topic}, does not exist; create it: docs/counts.md says how")]
    NoTopic {
        /// Its name.
        topic: String,
    },
    /// The brokers do not answer, or not well. It passes.
    #[error("asking the brokers about {topic}: {reason}")]
    Brokers {
        /// The topic of increments.
        topic: String,
        /// The error.
        reason: String,
    },
    /// A record cannot be merged.
    #[error(
        "the record at {topic}, partition {partition}, offset {offset}, is no increment: {reason}; counts that leave it \
         out may be wrong. See what wrote it, then start with --skip {partition}:{offset} to pass over it"
    )]
    BadRecord {
        /// The topic of increments.
        topic: String,
        /// Its partition.
        partition: IncrementsPartition,
        /// The record's offset.
        offset: i64,
        /// The problem.
        reason: BadIncrement,
    },
    /// Increments are gone that were not merged.
    #[error(
        "increments of {topic} are lost: {what}. Counts without them are wrong; --accept-loss continues with the rest, \
         and docs/counts.md says how counts are made anew"
    )]
    Lost {
        /// The topic of increments.
        topic: String,
        /// Which, and how that is known.
        what: String,
    },
}

impl IncrementReadError {
    /// Whether a retry may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Brokers { .. })
    }
}

/// The consumer's callbacks: log lines, and where partitions end.
struct Context {
    topic: String,
    /// For each partition, the offset after its last record, as the consumer knows it.
    ends: Mutex<BTreeMap<IncrementsPartition, i64>>,
    lost_brokers: LostBrokers,
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, source: Option<&str>) -> login::TokenResult {
        login::token(source)
    }

    fn stats(&self, statistics: Statistics) {
        self.lost_brokers.note(&statistics);
        let Some(topic) = statistics.topics.get(&self.topic) else { return };
        let ends = topic
            .partitions
            .values()
            .filter(|partition| partition.partition >= 0 && partition.hi_offset >= 0);
        let ends = ends.map(|partition| (partition.partition, partition.hi_offset)).collect();
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = ends;
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(%error, reason, "kafka client");
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if (level as i32) <= (RDKafkaLogLevel::Warning as i32) {
            tracing::warn!(target: "librdkafka", facility, "{message}");
        } else {
            tracing::debug!(target: "librdkafka", facility, "{message}");
        }
    }
}

impl ConsumerContext for Context {
    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::debug!(%error, "committing the merged offsets to kafka failed; the database has them");
        }
    }
}

/// How much is read for one merge.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadLimits {
    /// Maximum increments.
    pub increments: usize,
    /// Maximum bytes; at least one record.
    pub bytes: usize,
    /// How long is waited for more.
    pub time: Duration,
}

/// Records to skip, by an operator's decision.
#[derive(Debug, Clone, Default)]
pub struct Allowances {
    /// Records to skip if they cannot be merged.
    pub skip: BTreeSet<(IncrementsPartition, i64)>,
    /// Go on although increments were lost.
    pub accept_loss: bool,
}

/// Reads one topic of increments. Its methods block.
pub(super) struct Reader {
    /// `None` only while it is dropped.
    consumer: Option<BaseConsumer<Context>>,
    topic: String,
    allowances: Allowances,
    /// For each partition: the offset of the next record.
    next: BTreeMap<IncrementsPartition, i64>,
}

impl Reader {
    /// For the configured brokers and topic. Nothing is dialled yet.
    ///
    /// # Errors
    /// If librdkafka refuses the settings.
    pub(super) fn new(config: &Config, allowances: Allowances) -> Result<Self, IncrementReadError> {
        let settings = config.consumer_properties().into_iter();
        let mut client: ClientConfig =
            settings.filter(|(key, _)| !MEMBERSHIP.contains(&key.as_str())).collect();
        client.set("group.id", config.collector_group());
        // A deleted offset is an error here, never a reason to start elsewhere.
        client.set("auto.offset.reset", "error").set("enable.partition.eof", "false");
        let topic = config.increments_topic();
        let context =
            Context { topic: topic.clone(), ends: Mutex::default(), lost_brokers: LostBrokers::default() };
        let consumer = client.create_with_context(context).map_err(IncrementReadError::Client)?;
        Ok(Self { consumer: Some(consumer), topic, allowances, next: BTreeMap::new() })
    }

    /// The current topic.
    pub(super) fn topic(&self) -> Result<KnownTopic, IncrementReadError> {
        let topic = self.topic.clone();
        let Some(consumer) = &self.consumer else { return Err(self.brokers("the consumer is closed")) };
        match topic_facts(consumer.client(), &topic, TIMEOUT) {
            Ok(found) => Ok(KnownTopic { topic, topic_id: found.topic_id, partitions: found.partitions }),
            Err(TopicFactsError::Missing) => Err(IncrementReadError::NoTopic { topic }),
            Err(error) => Err(self.brokers(error)),
        }
    }

    /// Goes to where merging stands, and gives the offsets that reading begins at.
    ///
    /// # Errors
    /// If increments between there and the first one that the topic still has are lost, or the topic is another one.
    pub(super) fn begin_at(
        &mut self,
        start: &Start,
        topic: &KnownTopic,
    ) -> Result<BTreeMap<IncrementsPartition, i64>, IncrementReadError> {
        let accept = self.allowances.accept_loss;
        if let Some(known) = &start.topic
            && let Some(what) = another_topic(known, topic)
            && !accept
        {
            return Err(IncrementReadError::Lost { topic: self.topic.clone(), what });
        }
        let same = start.topic.as_ref().is_none_or(|known| another_topic(known, topic).is_none());
        let mut offsets = BTreeMap::new();
        for partition in 0..topic.partitions {
            let (low, high) = self.watermarks(partition)?;
            let stored = start.offsets.get(&partition).copied().filter(|_| same);
            // A topic that is read for the first time is read from its first record, which has offset 0.
            let wanted = stored.unwrap_or(0);
            let there = (low..=high).contains(&wanted);
            if !there && !accept {
                let what = format!(
                    "partition {partition} is merged up to offset {wanted}, and has records from {low} to {high} now"
                );
                return Err(IncrementReadError::Lost { topic: self.topic.clone(), what });
            }
            offsets.insert(partition, if there { wanted } else { low });
        }
        self.assign(&offsets)?;
        Ok(offsets)
    }

    fn watermarks(&self, partition: IncrementsPartition) -> Result<(i64, i64), IncrementReadError> {
        let Some(consumer) = &self.consumer else { return Err(self.brokers("the consumer is closed")) };
        consumer.fetch_watermarks(&self.topic, partition, TIMEOUT).map_err(|error| self.brokers(error))
    }

    fn assign(&mut self, offsets: &BTreeMap<IncrementsPartition, i64>) -> Result<(), IncrementReadError> {
        let mut list = TopicPartitionList::with_capacity(offsets.len());
        for (partition, offset) in offsets {
            let added = list.add_partition_offset(&self.topic, *partition, Offset::Offset(*offset));
            added.map_err(|error| self.brokers(error))?;
        }
        let Some(consumer) = &self.consumer else { return Err(self.brokers("the consumer is closed")) };
        consumer.assign(&list).map_err(|error| self.brokers(error))?;
        self.next = offsets.clone();
        Ok(())
    }

    /// Stops reading, for as long as another collector merges.
    pub(super) fn rest(&mut self) {
        self.next.clear();
        if let Some(consumer) = &self.consumer
            && let Err(error) = consumer.unassign()
        {
            tracing::warn!(%error, "the collector could not stop reading");
        }
    }

    /// Reads until a limit is met, or told to stop: what there is then.
    ///
    /// # Errors
    /// If a record cannot be merged, or is gone. What was read before it is lost with the error, and read again.
    pub(super) fn gather(
        &mut self,
        limits: ReadLimits,
        stop: &CancellationToken,
    ) -> Result<IncrementBatch, IncrementReadError> {
        let until = Instant::now() + limits.time;
        let mut batch = IncrementBatch::default();
        while batch.increments.len() < limits.increments && batch.bytes < limits.bytes {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || stop.is_cancelled() {
                break;
            }
            self.take_one(&mut batch, left.min(POLL))?;
        }
        Ok(batch)
    }

    fn take_one(&mut self, batch: &mut IncrementBatch, wait: Duration) -> Result<(), IncrementReadError> {
        let Some(consumer) = &self.consumer else { return Ok(()) };
        consumer.context().lost_brokers.find_again(consumer.client());
        let message = match consumer.poll(wait) {
            None => return Ok(()),
            Some(Ok(message)) => message,
            Some(Err(KafkaError::MessageConsumption(Code::AutoOffsetReset | Code::OffsetOutOfRange))) => {
                let what = "records were deleted before they were merged".to_owned();
                return Err(IncrementReadError::Lost { topic: self.topic.clone(), what });
            }
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => return Err(self.brokers(error)),
            // The client recovers by itself; lasting errors show in the lag.
            Some(Err(error)) => {
                tracing::warn!(%error, "kafka consumer");
                return Ok(());
            }
        };
        let (partition, offset) = (message.partition(), message.offset());
        // A record of an assignment that was given up meanwhile.
        let Some(expected) = self.next.get(&partition).copied().filter(|next| offset >= *next) else {
            return Ok(());
        };
        if offset > expected && !self.allowances.accept_loss {
            let what = format!(
                "partition {partition} has no record from offset {expected} to {}; is the topic compacted? It must not be",
                offset - 1
            );
            return Err(IncrementReadError::Lost { topic: self.topic.clone(), what });
        }
        let increment = match read_increment(message.payload()) {
            Ok(increment) => Some(increment),
            Err(reason) if self.allowances.skip.contains(&(partition, offset)) => {
                tracing::warn!(partition, offset, %reason, "skipped a record that is not an increment, as requested");
                None
            }
            Err(reason) => {
                return Err(IncrementReadError::BadRecord {
                    topic: self.topic.clone(),
                    partition,
                    offset,
                    reason,
                });
            }
        };
        batch.bytes += message.payload().map_or(0, <[u8]>::len);
        batch.take(partition, expected, offset, increment);
        self.next.insert(partition, offset + 1);
        Ok(())
    }

    /// Commits the merged offsets, to show progress in Kafka's tools.
    pub(super) fn show_progress(&self, offsets: impl Iterator<Item = (IncrementsPartition, i64)>) {
        let mut list = TopicPartitionList::new();
        for (partition, next) in offsets {
            // Fails for offsets below 0 only.
            let _ = list.add_partition_offset(&self.topic, partition, Offset::Offset(next));
        }
        if let Some(consumer) = &self.consumer
            && list.count() > 0
            && let Err(error) = consumer.commit(&list, CommitMode::Async)
        {
            tracing::debug!(%error, "committing the merged offsets to kafka failed; the database has them");
        }
    }

    /// Unread records as far as the consumer knows; updated every few seconds.
    pub(super) fn lag(&self) -> i64 {
        let Some(consumer) = &self.consumer else { return 0 };
        let ends = consumer.context().ends.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = |(partition, next): (&IncrementsPartition, &i64)| {
            (ends.get(partition).unwrap_or(next) - next).max(0)
        };
        self.next.iter().map(behind).sum()
    }

    fn brokers(&self, reason: impl std::fmt::Display) -> IncrementReadError {
        IncrementReadError::Brokers { topic: self.topic.clone(), reason: reason.to_string() }
    }
}

impl Drop for Reader {
    /// librdkafka closes without a limit, so it is given a thread, and left to it after a while.
    fn drop(&mut self) {
        let Some(consumer) = self.consumer.take() else { return };
        let (closed, wait) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("close consumer".to_owned()).spawn(move || {
            drop(consumer);
            // The receiver is gone if closing took too long.
            let _ = closed.send(());
        });
        if thread.is_ok() && wait.recv_timeout(CLOSING).is_err() {
            tracing::warn!("timed out closing the kafka consumer; exiting anyway");
        }
    }
}

/// Why the topic is not the one that was read before.
fn another_topic(known: &KnownTopic, now: &KnownTopic) -> Option<String> {
    if known.topic != now.topic {
        return Some(format!("counts were merged from the topic {} until now", known.topic));
    }
    if known.topic_id.is_some() && now.topic_id.is_some() && known.topic_id != now.topic_id {
        return Some("the topic was deleted and recreated, with unmerged increments".to_owned());
    }
    if known.partitions != now.partitions {
        return Some(format!(
            "the topic has {} partitions and had {}: increments of one source are out of order, so that later ones may \
             have been merged before earlier ones",
            now.partitions, known.partitions
        ));
    }
    None
}
