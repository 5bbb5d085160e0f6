//! Reads records of a topic as a member of no group: nothing is committed, and no worker loses a partition.
//!
//! All calls block. Kafka reads forward only, so the last record of a key is searched backwards in windows: the newest offsets first,
//! each window four times as large as the one after it.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{Message, Offset, TopicPartitionList};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::io::kafka::{
    PlainConsumer, TopicFactsError, TopicFactsFound, add_leader_epochs, client_config, leader_epoch,
    logged_in, plain_consumer, set_leader_epoch, topic_facts,
};
use crate::support::blocking::blocking;
use crate::support::config::Config;
use crate::worker::record::Record;

/// How long the brokers may take to answer a request.
const TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);
/// How long no record may come while one is expected.
const MAX_SILENCE: Duration = Duration::from_secs(20);
/// Offsets of the first window of a search backwards.
const FIRST_WINDOW: u64 = 4096;
/// How much larger the next window is.
const GROWTH: u64 = 4;

/// The topic cannot be read.
#[derive(Debug, Error)]
pub enum RecordsError {
    /// A question was not answered, or a record could not be had.
    #[error("cannot {doing}: {error}; look at [kafka] and the brokers")]
    Kafka {
        /// The operation.
        doing: &'static str,
        /// In librdkafka's words.
        error: KafkaError,
    },
    /// The topic cannot be described.
    #[error("could not describe the topic {topic}: {error}")]
    Describe {
        /// The topic.
        topic: String,
        /// Why not.
        error: TopicFactsError,
    },
    /// The user may not read it.
    #[error("cannot read the topic {topic}: the brokers refuse it; give this user the ACL Read on the topic")]
    Refused {
        /// The topic.
        topic: String,
    },
    /// Offsets cannot be committed from outside.
    #[error(
        "the group {group} has members: workers own the committed offsets. Stop all workers of the group, wait until they have ended \
         (kafka.session_timeout after a kill), and repeat the command"
    )]
    GroupHasMembers {
        /// The group.
        group: String,
    },
    /// Nothing came for too long.
    #[error("partition {partition} of {topic}: offset {offset} was not read within {MAX_SILENCE:?}")]
    Silent {
        /// The topic.
        topic: String,
        /// Its partition.
        partition: i32,
        /// The next offset.
        offset: i64,
    },
    /// A signal.
    #[error("interrupted; nothing was changed")]
    Interrupted,
}

/// Asks about the configured topic, on a thread for calls that block.
pub(super) async fn ask<T: Send + 'static>(
    config: &Config,
    stop: &CancellationToken,
    question: impl FnOnce(&RecordsReader) -> Result<T, RecordsError> + Send + 'static,
) -> Result<T, RecordsError> {
    let (config, stop) = (config.clone(), stop.clone());
    blocking(move || question(&RecordsReader::new(&config, &config.kafka.topic, stop)?)).await
}

/// How brokers refuse an offset from outside a group that has members.
fn has_members(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::UnknownMemberId
                | Code::IllegalGeneration
                | Code::RebalanceInProgress
                | Code::StaleMemberEpoch
                | Code::FencedMemberEpoch
        )
    )
}

fn while_doing(doing: &'static str) -> impl Fn(KafkaError) -> RecordsError {
    move |error| RecordsError::Kafka { doing, error }
}

/// How much may be read.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// Offsets.
    pub records: u64,
    /// Time.
    pub time: Duration,
}

/// One record, with the time that its producer or its broker gave it.
#[derive(Debug, Clone)]
pub struct Dated {
    /// The record.
    pub record: Record,
    /// Milliseconds since 1970.
    pub time_ms: Option<i64>,
}

/// The result of a search for the last record of a key.
#[derive(Debug, Clone)]
pub struct LastOfKey {
    /// The record; `None` if there is none in `searched`.
    pub found: Option<Dated>,
    /// The offsets that were read.
    pub searched: Range<i64>,
    /// Whether the answer is final: it was found, or everything was read.
    pub is_complete: bool,
}

/// A topic and a client for it.
pub struct RecordsReader {
    consumer: PlainConsumer,
    topic: String,
    group: String,
    stop: CancellationToken,
}

impl RecordsReader {
    /// Makes a client; connects at the first request. `stop` ends every search.
    pub fn new(config: &Config, topic: &str, stop: CancellationToken) -> Result<Self, RecordsError> {
        let mut client = client_config(&config.consumer_properties());
        // Each statistic would be a log line of thousands of characters.
        client.set("statistics.interval.ms", "0");
        // Retention may remove the start of a range while it is read.
        client.set("auto.offset.reset", "earliest");
        let consumer = plain_consumer(&client).map_err(while_doing("make a kafka client"))?;
        Ok(Self { consumer, topic: topic.to_owned(), group: config.kafka.group_id.clone(), stop })
    }

    /// The client.
    pub fn consumer(&self) -> Result<&PlainConsumer, RecordsError> {
        logged_in(&self.consumer).map_err(while_doing("log in"))
    }

    /// The topic as the brokers describe it.
    pub fn describe(&self) -> Result<TopicFactsFound, RecordsError> {
        let found = topic_facts(self.consumer.client(), &self.topic, TIMEOUT);
        found.map_err(|error| RecordsError::Describe { topic: self.topic.clone(), error })
    }

    /// The number of partitions.
    pub fn partitions(&self) -> Result<i32, RecordsError> {
        Ok(self.describe()?.partitions)
    }

    /// The first offset of a partition, and the one after its last.
    pub fn range(&self, partition: i32) -> Result<Range<i64>, RecordsError> {
        let asked = self.consumer()?.fetch_watermarks(&self.topic, partition, TIMEOUT);
        let (low, high) = asked.map_err(while_doing("ask where a partition begins and ends"))?;
        Ok(low..high)
    }

    /// The same of the first `partitions` partitions, with two requests to each broker.
    pub fn ranges(&self, partitions: i32) -> Result<BTreeMap<i32, Range<i64>>, RecordsError> {
        // Brokers take these two for times, and know what they mean.
        let low = self.offsets_at(partitions, Offset::Beginning)?;
        let high = self.offsets_at(partitions, Offset::End)?;
        Ok(low.into_iter().zip(high).map(|((partition, low), (_, high))| (partition, low..high)).collect())
    }

    fn offsets_at(&self, partitions: i32, time: Offset) -> Result<BTreeMap<i32, i64>, RecordsError> {
        if partitions <= 0 {
            return Ok(BTreeMap::new());
        }
        let ask = || -> KafkaResult<BTreeMap<i32, i64>> {
            let mut asked = TopicPartitionList::new();
            for partition in 0..partitions {
                asked.add_partition_offset(&self.topic, partition, time)?;
            }
            let answer = logged_in(&self.consumer)?.offsets_for_times(asked, TIMEOUT)?;
            let offset =
                |element: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| match element.offset() {
                    Offset::Offset(offset) => Ok((element.partition(), offset)),
                    _ => Err(KafkaError::MetadataFetch(RDKafkaErrorCode::NoOffset)),
                };
            let elements = answer.elements().into_iter();
            elements.map(|element| element.error().and_then(|()| offset(element))).collect()
        };
        ask().map_err(while_doing("ask where partitions begin and end"))
    }

    /// The group's committed offset of each of these partitions that has one.
    pub fn committed(&self, partitions: Range<i32>) -> Result<BTreeMap<i32, i64>, RecordsError> {
        let mut asked = TopicPartitionList::new();
        for partition in partitions {
            asked.add_partition(&self.topic, partition);
        }
        let answer = self.consumer()?.committed_offsets(asked, TIMEOUT);
        let answer = answer.map_err(while_doing("ask for the group's committed offsets"))?;
        let offset =
            |element: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| match element.offset() {
                Offset::Offset(offset) => Some((element.partition(), offset)),
                _ => None,
            };
        Ok(answer.elements().into_iter().filter_map(offset).collect())
    }

    /// Commits offsets of a group without members: partition, offset of the next record, and the epoch of the leader that wrote the one
    /// before, if it is known. The broker refuses them while the group has members.
    pub fn commit(&self, offsets: &[(i32, i64, Option<i32>)]) -> Result<(), RecordsError> {
        let mut list = TopicPartitionList::new();
        for &(partition, offset, epoch) in offsets {
            list.add_partition_offset(&self.topic, partition, Offset::Offset(offset))
                .map_err(while_doing("name the offsets"))?;
            if let Some(epoch) = epoch {
                set_leader_epoch(&mut list, &self.topic, partition, epoch);
            }
        }
        match self.consumer()?.commit(&list, CommitMode::Sync) {
            Ok(()) => Ok(()),
            Err(error) if has_members(&error) => {
                Err(RecordsError::GroupHasMembers { group: self.group.clone() })
            }
            Err(error) => Err(while_doing("commit the offsets")(error)),
        }
    }

    /// Passes the records of a partition in this range to `each`, in order, until that breaks. Returns the offset up to which was
    /// read.
    pub fn read(
        &self,
        partition: i32,
        range: Range<i64>,
        until: Option<Instant>,
        each: impl FnMut(Dated) -> ControlFlow<()>,
    ) -> Result<i64, RecordsError> {
        if range.is_empty() {
            return Ok(range.end);
        }
        let result = self.read_assigned(partition, range, until, each);
        self.consumer.unassign().map_err(while_doing("end reading"))?;
        result
    }

    fn read_assigned(
        &self,
        partition: i32,
        range: Range<i64>,
        until: Option<Instant>,
        mut each: impl FnMut(Dated) -> ControlFlow<()>,
    ) -> Result<i64, RecordsError> {
        self.assign(partition, range.start).map_err(while_doing("choose where to begin"))?;
        let (mut next, mut heard, mut last_error) = (range.start, Instant::now(), None);
        loop {
            if self.stop.is_cancelled() {
                break Err(RecordsError::Interrupted);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                break Ok(next);
            }
            match self.consumer.poll(POLL) {
                None => {}
                // For a reader of committed records a partition also ends where a transaction is under way.
                Some(Err(KafkaError::PartitionEOF(_))) => break Ok(range.end),
                Some(Err(error)) if is_refusal(&error) => {
                    break Err(RecordsError::Refused { topic: self.topic.clone() });
                }
                Some(Err(error)) => last_error = Some(error),
                Some(Ok(message)) if message.partition() != partition || message.offset() < next => {}
                Some(Ok(message)) => {
                    heard = Instant::now();
                    next = message.offset() + 1;
                    if message.offset() >= range.end {
                        break Ok(range.end);
                    }
                    let dated =
                        Dated { record: Record::copy_of(&message), time_ms: message.timestamp().to_millis() };
                    if each(dated).is_break() || next >= range.end {
                        break Ok(next);
                    }
                }
            }
            if heard.elapsed() >= MAX_SILENCE {
                let silent = || RecordsError::Silent { topic: self.topic.clone(), partition, offset: next };
                break Err(last_error.map_or_else(silent, while_doing("read the topic")));
            }
        }
    }

    /// With `assign` and without `subscribe`, the client joins no group.
    fn assign(&self, partition: i32, offset: i64) -> KafkaResult<()> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, partition, Offset::Offset(offset))?;
        self.consumer.assign(&list)
    }

    /// The record at this offset, or the next one in the range; `None` if there is none.
    pub fn first(&self, partition: i32, range: Range<i64>) -> Result<Option<Dated>, RecordsError> {
        let mut first = None;
        self.read(partition, range, None, |dated| {
            first = Some(dated);
            ControlFlow::Break(())
        })?;
        Ok(first)
    }

    /// The same with the epoch of the leader that wrote it, if the broker tells it.
    pub fn first_with_epoch(
        &self,
        partition: i32,
        range: Range<i64>,
    ) -> Result<Option<(Dated, Option<i32>)>, RecordsError> {
        if range.is_empty() {
            return Ok(None);
        }
        let mut first = None;
        let read = self.read_assigned(partition, range, None, |dated| {
            first = Some(dated);
            ControlFlow::Break(())
        });
        let found = first.map(|dated| {
            let mut position = TopicPartitionList::new();
            let next = Offset::Offset(dated.record.offset + 1);
            let epoch = position.add_partition_offset(&self.topic, partition, next).ok().and_then(|()| {
                add_leader_epochs(&self.consumer, &self.topic, &mut position);
                leader_epoch(&position, &self.topic, partition)
            });
            (dated, epoch)
        });
        self.consumer.unassign().map_err(while_doing("end reading"))?;
        read?;
        Ok(found)
    }

    /// The last record of `key` in the range. `say` gets how many offsets were read, of how many at most.
    pub fn last_of_key(
        &self,
        partition: i32,
        key: &[u8],
        range: Range<i64>,
        bound: Bound,
        say: &mut dyn FnMut(u64, u64),
    ) -> Result<LastOfKey, RecordsError> {
        let until = Instant::now() + bound.time;
        let most = offsets(&range).min(bound.records);
        let mut done: u64 = 0;
        let mut start = range.end;
        for window in windows(range.clone(), bound.records) {
            let mut last = None;
            let end = window.end;
            let reached = self.read(partition, window.clone(), Some(until), |dated| {
                if dated.record.key.as_deref() == Some(key) {
                    last = Some(dated);
                }
                done += 1;
                if done.is_multiple_of(FIRST_WINDOW) {
                    say(done.min(most), most);
                }
                ControlFlow::Continue(())
            })?;
            if reached < end {
                // What was found may not be the last one.
                return Ok(LastOfKey { found: None, searched: start..range.end, is_complete: false });
            }
            start = window.start;
            if last.is_some() {
                return Ok(LastOfKey { found: last, searched: start..range.end, is_complete: true });
            }
        }
        let is_complete = start <= range.start || range.is_empty();
        Ok(LastOfKey { found: None, searched: start..range.end, is_complete })
    }
}

fn is_refusal(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::TopicAuthorizationFailed)
}

fn offsets(range: &Range<i64>) -> u64 {
    u64::try_from(range.end.saturating_sub(range.start)).unwrap_or(0)
}

/// The windows of a search backwards, newest first, `most` offsets in all.
fn windows(range: Range<i64>, most: u64) -> impl Iterator<Item = Range<i64>> {
    let (mut end, mut left, mut size) = (range.end, most, FIRST_WINDOW);
    std::iter::from_fn(move || {
        let length = size.min(left).min(offsets(&(range.start..end)));
        if length == 0 {
            return None;
        }
        let start = end - i64::try_from(length).unwrap_or(i64::MAX);
        let window = start..end;
        (end, left, size) = (start, left - length, size.saturating_mul(GROWTH));
        Some(window)
    })
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    use rdkafka::types::RDKafkaRespErr;

    use super::*;
    use crate::testkit::embedded::broker::{BrokerCall, EmbeddedBroker};

    const BOUND: Bound = Bound { records: u64::MAX, time: Duration::from_secs(60) };

    fn reader(broker: &EmbeddedBroker) -> RecordsReader {
        let mut config = Config::default();
        config.kafka.brokers = vec![broker.address().to_owned()];
        RecordsReader::new(&config, "t", CancellationToken::new()).unwrap()
    }

    fn produce(broker: &EmbeddedBroker, keys: impl IntoIterator<Item = String>) {
        let producer: BaseProducer =
            ClientConfig::new().set("bootstrap.servers", broker.address()).create().unwrap();
        for key in keys {
            producer.send(BaseRecord::to("t").key(&key).payload("{}").partition(0)).unwrap();
        }
        producer.flush(TIMEOUT).unwrap();
    }

    #[test]
    fn windows_cover_the_range_once_newest_first() {
        for (range, most) in [(0..0, 9), (5..6, 9), (0..100_000, u64::MAX), (7..100_000, 50_000)] {
            let all: Vec<Range<i64>> = windows(range.clone(), most).collect();
            let mut end = range.end;
            for window in &all {
                assert_eq!(window.end, end);
                assert!(!window.is_empty());
                end = window.start;
            }
            assert_eq!(offsets(&(end..range.end)), offsets(&range).min(most), "{range:?}");
        }
    }

    #[test]
    fn last_record_of_a_key_is_found_behind_many_others() {
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("t", 1).unwrap();
        let others = |n: usize| (0..n).map(|n| format!("k{}", n % 7));
        let wanted = ["wanted".to_owned()];
        produce(&broker, wanted.iter().cloned().chain(others(10)).chain(wanted.clone()).chain(others(9000)));
        let reader = reader(&broker);
        let range = reader.range(0).unwrap();
        assert_eq!((range.clone(), reader.partitions().unwrap()), (0..9012, 1));
        let find = |key: &str, bound| {
            reader.last_of_key(0, key.as_bytes(), range.clone(), bound, &mut |_, _| {}).unwrap()
        };
        let found = find("wanted", BOUND);
        assert_eq!((found.found.unwrap().record.offset, found.is_complete), (11, true));
        let near = find("k3", BOUND);
        assert!(
            near.found.unwrap().record.offset > 9000 && near.searched.start > 4000,
            "{:?}",
            near.searched
        );
        let absent = find("absent", BOUND);
        assert!(absent.found.is_none() && absent.is_complete && absent.searched == range);
        let bounded = find("wanted", Bound { records: 5000, ..BOUND });
        assert!(bounded.found.is_none() && !bounded.is_complete && bounded.searched == (4012..9012));
        let late = find("k3", Bound { time: Duration::ZERO, ..BOUND });
        assert!(late.found.is_none() && !late.is_complete, "{late:?}");
        assert_eq!(reader.first(0, 5..9012).unwrap().unwrap().record.offset, 5);
    }

    #[test]
    fn ranges_of_all_partitions_are_those_of_each() {
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("t", 3).unwrap();
        produce(&broker, (0..7).map(|n| n.to_string()));
        let reader = reader(&broker);
        let ranges = reader.ranges(3).unwrap();
        assert_eq!(ranges, (0..3).map(|partition| (partition, reader.range(partition).unwrap())).collect());
        assert_eq!((&ranges[&0], &ranges[&2]), (&(0..7), &(0..0)));
        assert_eq!(reader.ranges(0).unwrap(), BTreeMap::new());
        assert!(reader.ranges(4).is_err(), "there is no fourth partition");
    }

    #[test]
    fn topic_that_may_not_be_read_is_named_at_once() {
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("t", 1).unwrap();
        produce(&broker, ["k".to_owned()]);
        let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 50];
        broker.fail_next(BrokerCall::Fetch, &refused).unwrap();
        let begun = Instant::now();
        let error = reader(&broker).first(0, 0..1).unwrap_err();
        assert!(matches!(&error, RecordsError::Refused { topic } if topic == "t"), "{error}");
        assert!(begun.elapsed() < MAX_SILENCE, "it waited for records");
    }
}
