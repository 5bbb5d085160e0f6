//! Checks that the keys of the partition are where `kafka.partitioner` puts them; otherwise records that geofold
//! produces would go to other partitions.

use crate::io::kafka::partitioner::{KeySample, OtherPartitioner, PartitionerVerdict};
use crate::support::config::Partitioner;

/// The first keys of one partition.
pub(super) struct KeyCheck {
    configured: Partitioner,
    partition: i32,
    partitions: i32,
    /// `None` once it was large enough.
    sample: Option<KeySample>,
}

impl KeyCheck {
    pub(super) fn new(configured: Partitioner, partition: i32, partitions: i32) -> Self {
        Self { configured, partition, partitions, sample: Some(KeySample::default()) }
    }

    /// Adds the key of a record; returns another partitioner if that one explains the sample.
    pub(super) fn add(&mut self, key: Option<&[u8]>) -> Option<OtherPartitioner> {
        let sample = self.sample.as_mut()?;
        let before = sample.len();
        sample.add(key?, self.partition, self.partitions);
        // Checked at powers of two only: more keys give more certainty.
        if sample.len() == before || !sample.len().is_power_of_two() {
            return None;
        }
        let verdict = sample.verdict(self.configured);
        if sample.is_full() {
            self.sample = None;
        }
        match verdict {
            PartitionerVerdict::Other(other) => return Some(other),
            PartitionerVerdict::Unexplained { keys, wrong } if self.sample.is_none() => tracing::warn!(
                partition = self.partition,
                keys,
                wrong,
                partitioner = %self.configured,
                "keys are not where kafka.partitioner puts them, nor where another known one does; if producers choose partitions by a \
                 rule of their own, set it to \"custom\""
            ),
            PartitionerVerdict::Unexplained { .. }
            | PartitionerVerdict::Explained
            | PartitionerVerdict::Unknown => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITIONS: i32 = 7;

    /// Keys that `by` puts into partition 3.
    fn keys(by: Partitioner) -> impl Iterator<Item = String> {
        (0..)
            .map(|n| format!("key-{n}"))
            .filter(move |key| by.partition_of(key.as_bytes(), PARTITIONS) == Some(3))
    }

    fn found(by: Partitioner) -> Option<OtherPartitioner> {
        let mut check = KeyCheck::new(Partitioner::Murmur2, 3, PARTITIONS);
        assert!(check.add(None).is_none(), "a record without a key says nothing");
        keys(by).take(5_000).find_map(|key| check.add(Some(key.as_bytes())))
    }

    #[test]
    fn only_keys_of_another_partitioner_are_reported() {
        assert!(found(Partitioner::Murmur2).is_none());
        assert!(found(Partitioner::Crc32).is_some());
    }
}
