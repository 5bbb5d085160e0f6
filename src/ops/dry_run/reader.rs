//! Reads the topic as a member of no group: nothing is committed, and no worker loses a partition.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Message, Offset, TopicPartitionList};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::io::kafka::{PlainConsumer, TopicFactsError, client_config, plain_consumer, topic_facts};
use crate::support::config::Config;
use crate::worker::record::Record;

const TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The group's committed offsets, where a worker would continue; without one, the beginning.
    Committed,
    /// The beginning of each partition.
    Earliest,
    /// The first record of each partition at or after this time, in milliseconds since 1970.
    Time(i64),
}

/// The topic cannot be read.
#[derive(Debug, Error)]
pub enum DryRunReadError {
    /// A question was not answered, or a record could not be had.
    #[error("cannot {doing}: {error}")]
    Kafka {
        /// The operation.
        doing: &'static str,
        /// In librdkafka's words.
        error: KafkaError,
    },
    /// The topic cannot be described.
    #[error("could not describe the topic: {0}")]
    Describe(#[from] TopicFactsError),
}

fn while_doing(doing: &'static str) -> impl Fn(KafkaError) -> DryRunReadError {
    move |error| DryRunReadError::Kafka { doing, error }
}

/// Reads each partition from `from` to where it ends now, `limit` records in all, and sends them on. Blocks; returns when
/// all is read, the receiver is gone, or `stop` is cancelled.
///
/// # Errors
/// See [`DryRunReadError`].
pub fn read(
    config: &Config,
    from: From,
    limit: u64,
    records: &mpsc::Sender<(i32, Record)>,
    stop: &CancellationToken,
) -> Result<(), DryRunReadError> {
    let topic = config.kafka.topic.as_str();
    let properties = client_config(&config.consumer_properties());
    let consumer = plain_consumer(&properties).map_err(while_doing("make a kafka client"))?;
    let partitions = topic_facts(consumer.client(), topic, TIMEOUT)?.partitions;
    let mut ends = BTreeMap::new();
    let starts = starts(&consumer, topic, partitions, from, &mut ends)?;
    let mut assigned = TopicPartitionList::new();
    for (&partition, &offset) in &starts {
        if offset < ends[&partition] {
            assigned
                .add_partition_offset(topic, partition, Offset::Offset(offset))
                .map_err(while_doing("choose where to begin"))?;
        }
    }
    // With `assign` and without `subscribe`, the client joins no group.
    consumer.assign(&assigned).map_err(while_doing("choose partitions"))?;
    let mut open: BTreeSet<i32> = assigned.elements().iter().map(|element| element.partition()).collect();
    let mut left = limit;
    while left > 0 && !open.is_empty() && !stop.is_cancelled() {
        match consumer.poll(POLL) {
            None => {}
            // Also where a transaction is under way: for a reader of committed records, the partition ends there.
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                open.remove(&partition);
            }
            Some(Err(error)) => return Err(while_doing("read the topic")(error)),
            Some(Ok(message)) => {
                let (partition, offset) = (message.partition(), message.offset());
                if !open.contains(&partition) {
                    continue;
                }
                if offset + 1 >= ends[&partition] {
                    open.remove(&partition);
                }
                // Later records belong to the next run.
                if offset < ends[&partition] {
                    left -= 1;
                    if records.blocking_send((partition, Record::copy_of(&message))).is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
    Ok(())
}

/// Where each partition is read from; `ends` gets where it ends.
fn starts(
    consumer: &PlainConsumer,
    topic: &str,
    partitions: i32,
    from: From,
    ends: &mut BTreeMap<i32, i64>,
) -> Result<BTreeMap<i32, i64>, DryRunReadError> {
    let mut lows = BTreeMap::new();
    for partition in 0..partitions {
        let (low, high) = consumer
            .fetch_watermarks(topic, partition, TIMEOUT)
            .map_err(while_doing("ask where a partition begins and ends"))?;
        lows.insert(partition, low);
        ends.insert(partition, high);
    }
    let found = match from {
        From::Earliest => BTreeMap::new(),
        From::Committed => offsets(
            consumer
                .committed_offsets(all(topic, partitions, Offset::Invalid), TIMEOUT)
                .map_err(while_doing("ask for the group's committed offsets"))?,
        ),
        From::Time(millis) => offsets(at_time(consumer, topic, partitions, millis)?),
    };
    Ok(lows
        .into_iter()
        .map(|(partition, low)| {
            let start = match (from, found.get(&partition)) {
                (_, Some(offset)) => (*offset).max(low),
                // Nothing is as late as that.
                (From::Time(_), None) => ends[&partition],
                (_, None) => low,
            };
            (partition, start)
        })
        .collect())
}

fn at_time(
    consumer: &PlainConsumer,
    topic: &str,
    partitions: i32,
    millis: i64,
) -> Result<TopicPartitionList, DryRunReadError> {
    let doing = while_doing("ask which records came after that time");
    let asked = all(topic, partitions, Offset::Offset(millis));
    consumer.offsets_for_times(asked, TIMEOUT).map_err(doing)
}

fn all(topic: &str, partitions: i32, offset: Offset) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        // Any offset fits into a list.
        let added: KafkaResult<()> = list.add_partition_offset(topic, partition, offset);
        debug_assert_eq!(added, Ok(()));
    }
    list
}

fn offsets(list: TopicPartitionList) -> BTreeMap<i32, i64> {
    list.elements()
        .iter()
        .filter_map(|element| match element.offset() {
            Offset::Offset(offset) => Some((element.partition(), offset)),
            _ => None,
        })
        .collect()
}
