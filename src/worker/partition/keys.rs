//! Checks that the keys of the partition are where `kafka.partitioner` puts them; otherwise records that geofold
//! produces would go to other partitions.

use super::Task;
use crate::io::kafka::partitioner::{OtherPartitioner, Verdict};

impl Task {
    /// Adds the key of a record; returns another partitioner if that one explains the sample.
    pub(super) fn other_partitioner(&mut self, key: Option<&[u8]>) -> Option<OtherPartitioner> {
        let sample = self.sample.as_mut()?;
        let bench = &self.partition.bench;
        let before = sample.len();
        sample.add(key?, self.partition.number, bench.partitions);
        // Checked at powers of two only: more keys give more certainty.
        if sample.len() == before || !sample.len().is_power_of_two() {
            return None;
        }
        let verdict = sample.verdict(bench.partitioner);
        if sample.is_full() {
            self.sample = None;
        }
        match verdict {
            Verdict::Other(other) => return Some(other),
            Verdict::Unexplained { keys, wrong } if self.sample.is_none() => tracing::warn!(
                partition = self.partition.number,
                keys,
                wrong,
                partitioner = %bench.partitioner,
                "keys are not where kafka.partitioner puts them, nor where another known one does; if producers choose partitions by a \
                 rule of their own, set it to \"custom\""
            ),
            Verdict::Unexplained { .. } | Verdict::Explained | Verdict::Unknown => {}
        }
        None
    }
}
