//! When a partition is read ahead, and what comes of it.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Instant;
use crate::core::look_ahead::LookAhead;
use crate::worker::look_ahead::{AheadReader, Reading};

/// Pause after a read that was not worth it, or failed; twice as long after each further one.
const PAUSE: Duration = Duration::from_secs(60);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(3600);
/// What it must save to be worth it: one record of so many.
const WORTH: u64 = 8;

/// Reads ahead while a partition is far behind: its memory is full, so that most records are written one by one.
pub(super) struct ReadAhead {
    /// `None`: records are never passed over.
    reader: Option<Arc<dyn AheadReader>>,
    partition: i32,
    reading: Option<Reading>,
    not_before: Option<Instant>,
    pause: Duration,
}

impl ReadAhead {
    pub(super) fn new(reader: Option<Arc<dyn AheadReader>>, partition: i32) -> Self {
        Self { reader, partition, reading: None, not_before: None, pause: PAUSE }
    }

    /// Whether a read may begin.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        let is_time = self.not_before.is_none_or(|then| then <= now);
        self.reader.is_some() && self.reading.is_none() && is_time
    }

    /// Begins at this offset, unless another partition is read.
    pub(super) fn begin(&mut self, from: i64, documents: usize) {
        self.reading = self.reader.as_ref().and_then(|reader| reader.read(self.partition, from, documents));
    }

    /// What was found, if it is worth it; pending while nothing is read.
    pub(super) async fn found(&mut self) -> Option<LookAhead> {
        let Some(reading) = &mut self.reading else { return std::future::pending().await };
        let found = reading.await;
        self.reading = None;
        match found {
            Ok(found) => {
                let (superseded, records) = (found.superseded(), found.end().abs_diff(found.start()));
                let is_worth_it = superseded.saturating_mul(WORTH) >= records.max(1);
                let partition = self.partition;
                tracing::info!(partition, records, superseded, is_worth_it, "read ahead");
                Some(found).filter(|_| is_worth_it)
            }
            Err(error) => {
                tracing::warn!(partition = self.partition, %error, "could not read ahead");
                None
            }
        }
    }

    /// What was found is used, or there is nothing.
    pub(super) fn settle(&mut self, is_used: bool, now: Instant) {
        if is_used {
            return self.pause = PAUSE;
        }
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::base::ids::DocId;

    /// Finds so many writes of one document among 80 records.
    struct Log(i64);

    impl AheadReader for Log {
        fn read(&self, _: i32, from: i64, documents: usize) -> Option<Reading> {
            assert_eq!((from, documents), (20, 7));
            let mut found = LookAhead::new(from, documents);
            let id = DocId::from_key(Some(b"a")).unwrap();
            (20..20 + self.0).for_each(|offset| found.found_whole(&id, offset));
            found.ended(100);
            Some(async move { Ok(found) }.boxed())
        }
    }

    #[test]
    fn a_read_that_saves_too_little_is_not_used() {
        let now = Instant::from_start(Duration::from_secs(5));
        for (writes, is_used) in [(11, true), (10, false)] {
            let mut ahead = ReadAhead::new(Some(Arc::new(Log(writes))), 3);
            assert!(ahead.found().now_or_never().is_none() && ahead.may_begin(now));
            ahead.begin(20, 7);
            assert!(!ahead.may_begin(now));
            assert_eq!(ahead.found().now_or_never().unwrap().is_some(), is_used, "{writes}");
            ahead.settle(is_used, now);
            assert_eq!(ahead.may_begin(now), is_used);
            assert!(ahead.may_begin(now + PAUSE));
        }
        assert!(!ReadAhead::new(None, 3).may_begin(now));
    }
}
