//! Asks the brokers for the latest records, and compares where their keys are with `kafka.partitioner`.
//!
//! A worker compares the records that it reads, so that it need not wait for this.

use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::{Message, Offset, TopicPartitionList};

use super::CheckFinding;
use crate::io::kafka::partitioner::{KeySample, PartitionerVerdict};
use crate::io::kafka::{client_config, plain_consumer, topic_facts};
use crate::support::config::Config;

const ABOUT: &str = "partitioner";

/// Records read at the end of each partition.
const RECORDS: i64 = 64;

/// Reading ends after this long without a record.
const SILENCE: Duration = Duration::from_secs(1);

/// Compares; `None` if the brokers do not answer or the topic does not exist, which other checks report.
pub(super) async fn look(config: &Config, timeout: Duration) -> Option<CheckFinding> {
    let of = config.clone();
    let sampled = tokio::task::spawn_blocking(move || sample(&of, timeout)).await.ok()?;
    Some(judge(config, &sampled.ok()?))
}

fn sample(config: &Config, timeout: Duration) -> Result<KeySample, KafkaError> {
    let topic = &config.kafka.topic;
    let mut client = client_config(&config.consumer_properties());
    client.set("allow.auto.create.topics", "false").set("statistics.interval.ms", "0");
    // The last records of a short partition may begin before its first one.
    client.set("auto.offset.reset", "earliest").set("enable.partition.eof", "false");
    let consumer = plain_consumer(&client)?;
    let mut sample = KeySample::default();
    let Ok(found) = topic_facts(consumer.client(), topic, timeout) else { return Err(KafkaError::Canceled) };
    let mut latest = TopicPartitionList::new();
    for partition in 0..found.partitions {
        latest.add_partition_offset(topic, partition, Offset::OffsetTail(RECORDS))?;
    }
    consumer.assign(&latest)?;
    let began = Instant::now();
    let mut last = Instant::now();
    while !sample.is_full() && began.elapsed() < timeout && last.elapsed() < SILENCE {
        let Some(Ok(record)) = consumer.poll(SILENCE) else { continue };
        last = Instant::now();
        sample.add(record.key().unwrap_or_default(), record.partition(), found.partitions);
    }
    Ok(sample)
}

fn judge(config: &Config, sample: &KeySample) -> CheckFinding {
    let partitioner = config.kafka.partitioner;
    match sample.verdict(partitioner) {
        PartitionerVerdict::Unknown => {
            CheckFinding::ok(ABOUT, format_args!("{partitioner}; there are too few keys to compare"))
        }
        PartitionerVerdict::Explained => CheckFinding::ok(
            ABOUT,
            format_args!("{partitioner}: {} keys are where it puts them", sample.len()),
        ),
        PartitionerVerdict::Other(other) => CheckFinding::error(ABOUT, other),
        PartitionerVerdict::Unexplained { keys, wrong } => CheckFinding::warning(
            ABOUT,
            format_args!(
                "{wrong} of {keys} keys are not where kafka.partitioner = {partitioner} puts them, nor where another known one does: \
                 give all producers one partitioner, or set kafka.partitioner = \"custom\" if they use another rule"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

    use super::super::CheckLevel;
    use super::*;
    use crate::support::config::Partitioner;

    #[tokio::test]
    async fn keys_are_compared_with_the_configured_partitioner() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("documents", 5, 1).unwrap();
        let mut config = Config::default();
        config.kafka.brokers = vec![cluster.bootstrap_servers()];
        let compared = async |partitioner| {
            let mut config = config.clone();
            config.kafka.partitioner = partitioner;
            look(&config, Duration::from_secs(20)).await.unwrap()
        };
        assert!(compared(Partitioner::Murmur2).await.message.contains("too few"));
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", cluster.bootstrap_servers()).set("partitioner", "consistent_random");
        let producer: BaseProducer = client.create().unwrap();
        for n in 0..200 {
            let key = format!("k{n}");
            producer.send(BaseRecord::<str, str>::to("documents").key(&key).payload("{}")).unwrap();
        }
        producer.flush(Duration::from_secs(20)).unwrap();
        let refused = compared(Partitioner::Murmur2).await;
        assert_eq!(refused.level, CheckLevel::Error);
        assert!(refused.message.ends_with("set kafka.partitioner = \"crc32\""), "{refused}");
        assert_eq!(compared(Partitioner::Crc32).await.level, CheckLevel::Ok);
        assert_eq!(compared(Partitioner::Custom).await.level, CheckLevel::Ok);
        config.kafka.topic = "absent".to_owned();
        assert_eq!(look(&config, Duration::from_secs(2)).await, None);
    }
}
