//! A consumer that does nothing with what it reads: how fast could anybody be who reads this topic with librdkafka?

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use crate::field::costs;
use crate::process::cpu_seconds;
use crate::report::Lap;

/// Without a record for so long, there are no more.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A lap of this in a process of its own: the last `records` records of a topic.
pub fn lap(brokers: &str, topic: &str, records: usize, stack: &Path) -> Result<Lap> {
    let before = costs(stack, std::process::id())?;
    let output = Command::new(std::env::current_exe()?)
        .args(["--consume", brokers, topic, &records.to_string()])
        .args(["--kafka", brokers, "--elasticsearch", "-", "--stack", "-"])
        .stderr(Stdio::inherit())
        .output()?;
    let after = costs(stack, std::process::id())?;
    let text = String::from_utf8(output.stdout)?;
    let mut numbers = text.split_whitespace().map(str::parse::<f64>);
    let (Some(Ok(seconds)), Some(Ok(cpu))) = (numbers.next(), numbers.next()) else {
        bail!("the consumer failed: {}", output.status);
    };
    let (before, after) = ([0.0, before[1], before[2]], [cpu, after[1], after[2]]);
    Ok(Lap::new(records, Duration::from_secs_f64(seconds), before, after))
}

/// Reads the last `records` records of a topic, and prints the seconds and the CPU seconds that it took.
pub fn run(brokers: &str, topic: &str, records: usize) -> Result<()> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "nobody")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .create()?;
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT)?;
    let partitions = metadata.topics().first().context("the topic")?.partitions();
    let mut list = TopicPartitionList::new();
    // Evenly, as good as it gets: a record more or less in a partition does not matter.
    let each = i64::try_from(records / partitions.len())?;
    let mut not_read = partitions.len();
    for partition in partitions {
        let (low, high) = consumer.fetch_watermarks(topic, partition.id(), TIMEOUT)?;
        // The last offset is the end of the transaction.
        let from = (high - 1 - each).max(low);
        list.add_partition_offset(topic, partition.id(), Offset::Offset(from))?;
    }
    let cpu = cpu_seconds(std::process::id())?;
    consumer.assign(&list)?;
    let (mut seen, mut bytes) = (0, 0);
    let mut between: Option<(Instant, Instant)> = None;
    // Offsets do not tell how many records are left: some are ends of transactions.
    while not_read > 0 {
        match consumer.poll(TIMEOUT).context("no more records came")? {
            Ok(message) => {
                let now = Instant::now();
                between = Some((between.map_or(now, |(first, _)| first), now));
                seen += 1;
                bytes += message.payload().map_or(0, <[u8]>::len);
            }
            Err(KafkaError::PartitionEOF(_)) => not_read -= 1,
            Err(error) => return Err(error.into()),
        }
    }
    let (first, last) = between.context("nothing to read")?;
    let seconds = (last - first).as_secs_f64();
    println!("{seconds} {}", cpu_seconds(std::process::id())? - cpu);
    eprintln!("consumed {seen} records, {bytes} bytes");
    Ok(())
}
