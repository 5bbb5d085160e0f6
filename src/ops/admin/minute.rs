//! A line in the log once a minute: what the worker did, and how much is left to do.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::status::{PageCounters, PartitionRow, PartitionState, StatusSource};

const EVERY: Duration = Duration::from_secs(60);

/// What happened between two readings, and how things are at the second.
#[derive(Debug, Clone, PartialEq)]
struct Minute {
    /// Per second: records read, written to a geoshard, folded into newer ones, and documents moved.
    read: f64,
    written: f64,
    folded: f64,
    moved: f64,
    /// In all.
    retries: u64,
    dead_letters: u64,
    /// Now.
    lag: i64,
    oldest_dirty: f64,
    partitions: usize,
    stopped: usize,
}

impl Minute {
    fn between(
        before: &PageCounters,
        now: &PageCounters,
        passed: Duration,
        partitions: &[PartitionRow],
    ) -> Self {
        let per_second = |now: u64, before: u64| {
            let rate = now.saturating_sub(before) as f64 / passed.as_secs_f64().max(1.0);
            (rate * 10.0).round() / 10.0
        };
        let oldest_dirty = partitions.iter().map(|one| one.oldest_dirty_seconds).fold(0.0, f64::max);
        Self {
            read: per_second(now.records, before.records),
            written: per_second(now.indexed, before.indexed),
            folded: per_second(now.folded, before.folded),
            moved: per_second(now.moves, before.moves),
            retries: now.retries.saturating_sub(before.retries),
            dead_letters: now.dead_letters.saturating_sub(before.dead_letters),
            lag: partitions.iter().filter_map(|one| one.lag).sum(),
            oldest_dirty: (oldest_dirty * 10.0).round() / 10.0,
            partitions: partitions.len(),
            stopped: partitions.iter().filter(|one| one.state == PartitionState::Stopped).count(),
        }
    }

    fn log(&self) {
        let Self { read, written, folded, moved, retries, dead_letters, .. } = self;
        tracing::info!(
            partitions = self.partitions,
            stopped = self.stopped,
            lag = self.lag,
            oldest_dirty_seconds = self.oldest_dirty,
            read,
            written,
            folded,
            moved,
            retries,
            dead_letters,
            "the last minute; read, written, folded and moved per second"
        );
    }
}

impl StatusSource {
    /// Logs a line about every minute, until `stop`.
    pub async fn log_each_minute(self: Arc<Self>, stop: CancellationToken) {
        let mut before = self.counters();
        // A late line is about more than a minute.
        let mut since = tokio::time::Instant::now();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            let now = self.counters();
            Minute::between(&before, &now, since.elapsed(), &self.partitions()).log();
            (before, since) = (now, tokio::time::Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::telemetry::events::tests::lines_of;

    fn partition(state: PartitionState, lag: Option<i64>, oldest_dirty_seconds: f64) -> PartitionRow {
        PartitionRow {
            partition: 0,
            state,
            lag,
            watermark: None,
            committed: None,
            in_flight: 0,
            parked: 0,
            dirty_documents: 0,
            dirty_bytes: 0,
            oldest_dirty_seconds,
        }
    }

    #[test]
    fn a_minute_has_rates_of_what_was_done_and_what_is_left() {
        let counters = |records, indexed, folded, moves, retries, dead_letters| PageCounters {
            records,
            indexed,
            folded,
            moves,
            retries,
            dead_letters,
        };
        let (before, now) = (counters(100, 50, 10, 5, 7, 1), counters(6_100, 3_050, 2_410, 11, 9, 1));
        let partitions = [
            partition(PartitionState::Running, Some(40), 0.26),
            partition(PartitionState::Stopped, Some(2), 31.04),
            partition(PartitionState::Starting, None, 0.0),
        ];
        let minute = Minute::between(&before, &now, EVERY, &partitions);
        let line = lines_of(tracing::Level::INFO, || minute.log());
        for part in [
            "partitions=3 stopped=1 lag=42 oldest_dirty_seconds=31.0",
            "read=100.0 written=50.0 folded=40.0 moved=0.1 retries=2 dead_letters=0",
        ] {
            assert!(line.contains(part), "{line}");
        }
        // The process was stopped for a while, and time passes while it counts.
        let late = Minute::between(&before, &now, EVERY * 10, &[]);
        assert_eq!((late.read, late.lag, late.oldest_dirty), (10.0, 0, 0.0));
    }
}
