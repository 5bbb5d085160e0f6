//! Which partition a producer puts a key into, and by which rule the keys of a topic were put where they are.
//!
//! A document's records have an order only within one partition. The clients of Kafka do not agree on where a key belongs: Java
//! takes murmur2, librdkafka (Python, Go, .NET, Node, Rust) CRC32 by default, Sarama FNV-1a. What geofold writes
//! into the topic has to follow the rule of those who write there.

use std::collections::HashSet;
use std::fmt;

use thiserror::Error;

use super::native;
use crate::support::config::Partitioner;

/// The rules that can be computed.
const KNOWN: [Partitioner; 3] = [Partitioner::Murmur2, Partitioner::Crc32, Partitioner::Fnv1a];

/// So many different keys are needed for a verdict. Keys of a topic with two partitions are in the right one by chance half of
/// the time: 16 of them once in 65,000 times.
const KEYS_NEEDED: usize = 16;

/// Maximum keys in a sample.
const KEYS_AT_MOST: usize = 256;

/// A rule explains a sample if at most one key in so many is elsewhere: records that earlier versions of geofold, or a tool, put
/// into the wrong partition.
const STRAYS_ONE_IN: usize = 16;

impl Partitioner {
    /// The partition of `key` among `partitions`; `None` if that cannot be computed.
    pub fn partition_of(self, key: &[u8], partitions: i32) -> Option<i32> {
        native::partition_of(self, key, partitions)
    }

    /// librdkafka's name of it. A key that cannot be computed is never left to librdkafka.
    pub fn of_librdkafka(self) -> &'static str {
        match self {
            Self::Murmur2 | Self::Custom => "murmur2_random",
            Self::Crc32 => "consistent_random",
            Self::Fnv1a => "fnv1a_random",
        }
    }
}

/// Keys, and whether they are where each rule puts them.
#[derive(Debug, Clone, Default)]
pub struct KeySample {
    /// Hashes of the keys.
    seen: HashSet<u64, ahash::RandomState>,
    /// In the order of [`KNOWN`].
    explained: [usize; KNOWN.len()],
}

/// The keys of a topic are not where the configured rule puts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{wrong} of {keys} keys are not in the partitions where kafka.partitioner = {configured} puts them, but where {found} does: set \
     kafka.partitioner = {found}"
)]
pub struct OtherPartitioner {
    /// The configured rule.
    pub configured: Partitioner,
    /// The one that explains the keys.
    pub found: Partitioner,
    /// Keys in the sample.
    pub keys: usize,
    /// Those of them that the configured rule does not explain.
    pub wrong: usize,
}

/// Result of comparing a sample with the configured partitioner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionerVerdict {
    /// Too few keys, only one partition, or a rule that cannot be computed.
    Unknown,
    /// The keys are where it puts them.
    Explained,
    /// Another rule puts them there.
    Other(OtherPartitioner),
    /// No known rule does: so many keys of so many are elsewhere.
    Unexplained {
        /// Keys in the sample.
        keys: usize,
        /// Those of them that are not where the configured rule puts them.
        wrong: usize,
    },
}

impl KeySample {
    /// Whether it has all the keys that it takes.
    pub fn is_full(&self) -> bool {
        self.seen.len() >= KEYS_AT_MOST
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether it has no key.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Takes in a key that was found in `partition`. Producers put records with an empty key, or none, anywhere.
    pub fn add(&mut self, key: &[u8], partition: i32, partitions: i32) {
        let hash = self.seen.hasher().hash_one(key);
        if key.is_empty() || partitions < 2 || self.is_full() || !self.seen.insert(hash) {
            return;
        }
        for (rule, explained) in KNOWN.into_iter().zip(&mut self.explained) {
            *explained += usize::from(rule.partition_of(key, partitions) == Some(partition));
        }
    }

    /// Compares the sample with `configured`.
    pub fn verdict(&self, configured: Partitioner) -> PartitionerVerdict {
        let keys = self.seen.len();
        let Some(place) = KNOWN.iter().position(|rule| *rule == configured) else {
            return PartitionerVerdict::Unknown;
        };
        if keys < KEYS_NEEDED {
            return PartitionerVerdict::Unknown;
        }
        let explains = |place: usize| keys - self.explained[place] <= keys / STRAYS_ONE_IN;
        let wrong = keys - self.explained[place];
        if explains(place) {
            return PartitionerVerdict::Explained;
        }
        match (0..KNOWN.len()).find(|&other| explains(other)) {
            Some(other) => {
                PartitionerVerdict::Other(OtherPartitioner { configured, found: KNOWN[other], keys, wrong })
            }
            None => PartitionerVerdict::Unexplained { keys, wrong },
        }
    }
}

impl fmt::Display for Partitioner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Murmur2 => "\"murmur2\"",
            Self::Crc32 => "\"crc32\"",
            Self::Fnv1a => "\"fnv1a\"",
            Self::Custom => "\"custom\"",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rdkafka::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    use rdkafka::{Message, Offset, TopicPartitionList};

    use super::*;

    const PARTITIONS: i32 = 12;

    fn keys() -> Vec<String> {
        (0..200).map(|n| format!("{}{n}", "käse".repeat(n % 5))).collect()
    }

    fn sample(partition_of: impl Fn(&str) -> i32) -> KeySample {
        let mut sample = KeySample::default();
        keys().iter().for_each(|key| sample.add(key.as_bytes(), partition_of(key), PARTITIONS));
        sample
    }

    #[test]
    fn keys_are_put_where_librdkafka_puts_them() {
        const PATIENCE: Duration = Duration::from_secs(60);
        let cluster = MockCluster::new(1).unwrap();
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "g");
        for rule in KNOWN {
            let topic = rule.of_librdkafka();
            cluster.create_topic(topic, PARTITIONS, 1).unwrap();
            let producer: BaseProducer = client.clone().set("partitioner", topic).create().unwrap();
            for key in keys() {
                producer.send(BaseRecord::<str, str>::to(topic).key(&key).payload("{}")).unwrap();
            }
            producer.flush(PATIENCE).unwrap();
            let consumer: BaseConsumer = client.create().unwrap();
            let mut all = TopicPartitionList::new();
            for partition in 0..PARTITIONS {
                all.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
            }
            consumer.assign(&all).unwrap();
            for _ in keys() {
                let record = consumer.poll(PATIENCE).unwrap().unwrap();
                let key = record.key().unwrap();
                assert_eq!(rule.partition_of(key, PARTITIONS), Some(record.partition()), "{rule} {key:?}");
            }
        }
    }

    #[test]
    fn the_rule_behind_the_keys_is_found_by_name() {
        for rule in KNOWN {
            let sample = sample(|key| rule.partition_of(key.as_bytes(), PARTITIONS).unwrap());
            assert_eq!(sample.verdict(rule), PartitionerVerdict::Explained);
            assert_eq!(sample.verdict(Partitioner::Custom), PartitionerVerdict::Unknown);
            for other in KNOWN.into_iter().filter(|other| *other != rule) {
                let PartitionerVerdict::Other(found) = sample.verdict(other) else {
                    panic!("{rule} {other}")
                };
                assert_eq!((found.found, found.keys), (rule, 200));
                assert!(found.to_string().ends_with(&format!("set kafka.partitioner = {rule}")), "{found}");
            }
        }
    }

    #[test]
    fn keys_that_no_rule_explains_accuse_no_rule() {
        let by_length = sample(|key| i32::try_from(key.len()).unwrap() % PARTITIONS);
        assert!(matches!(
            by_length.verdict(Partitioner::Murmur2),
            PartitionerVerdict::Unexplained { keys: 200, .. }
        ));
        // Two producers that do not agree.
        let mixed = sample(|key| {
            let rule = if key.ends_with('7') { Partitioner::Murmur2 } else { Partitioner::Crc32 };
            rule.partition_of(key.as_bytes(), PARTITIONS).unwrap()
        });
        assert!(matches!(mixed.verdict(Partitioner::Murmur2), PartitionerVerdict::Unexplained { .. }));
    }

    #[test]
    fn few_keys_one_partition_and_strays_prove_nothing() {
        let mut few = KeySample::default();
        for n in 0..KEYS_NEEDED - 1 {
            for _ in 0..3 {
                few.add(format!("{n}").as_bytes(), 11, PARTITIONS);
            }
        }
        few.add(b"", 0, PARTITIONS);
        assert_eq!(
            (few.len(), few.verdict(Partitioner::Murmur2)),
            (KEYS_NEEDED - 1, PartitionerVerdict::Unknown)
        );
        let mut alone = KeySample::default();
        keys().iter().for_each(|key| alone.add(key.as_bytes(), 0, 1));
        assert_eq!(alone.verdict(Partitioner::Murmur2), PartitionerVerdict::Unknown);
        let strays = sample(|key| {
            let at = Partitioner::Murmur2.partition_of(key.as_bytes(), PARTITIONS).unwrap();
            if key.ends_with("07") { (at + 1) % PARTITIONS } else { at }
        });
        assert_eq!(strays.verdict(Partitioner::Murmur2), PartitionerVerdict::Explained);
    }
}
