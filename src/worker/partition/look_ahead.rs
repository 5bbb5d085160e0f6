//! When a partition is read ahead, and what comes of it.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Instant;
use crate::core::look_ahead::LookAhead;
use crate::worker::look_ahead::{AheadReader, Asking, Reading};

/// How long a partition writes nothing for the sake of a read. One that takes longer helps what is written after it.
const MAX_HOLD: Duration = Duration::from_secs(10);
/// Pause after too little waited.
const SHORT_PAUSE: Duration = Duration::from_secs(10);
/// Pause after a read that was not worth it, or failed; twice as long after each further one.
const PAUSE: Duration = Duration::from_secs(60);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(3600);

/// Reads ahead while a partition is far behind: its memory is full, so that most records are written one by one.
pub(super) struct ReadAhead {
    /// `None`: records are never passed over.
    reader: Option<Arc<dyn AheadReader>>,
    partition: i32,
    state: State,
    pause: Duration,
}

enum State {
    /// Nothing to do before this, if that is set.
    Idle(Option<Instant>),
    Asking(Asking),
    /// Nothing is written before `held_until`, if that is set, unless the read ends.
    Reading {
        reading: Reading,
        held_until: Option<Instant>,
    },
}

/// What [`ReadAhead::next`] waits for.
pub(super) enum ReadAheadEvent {
    /// So much waits that it is to be read ahead.
    IsFarBehind,
    /// Too little waits for that.
    IsNear,
    /// What was found.
    Found(Box<LookAhead>),
    /// Why nothing was found.
    Failed(String),
}

impl ReadAhead {
    pub(super) fn new(reader: Option<Arc<dyn AheadReader>>, partition: i32) -> Self {
        Self { reader, partition, state: State::Idle(None), pause: PAUSE }
    }

    /// Whether it is time to ask how much waits.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        let is_time =
            matches!(self.state, State::Idle(not_before) if not_before.is_none_or(|then| then <= now));
        self.reader.is_some() && is_time
    }

    /// Asks whether enough waits from this offset on to keep so many documents of it.
    pub(super) fn ask(&mut self, from: i64, documents: usize) {
        let asking = self.reader.as_ref().map(|reader| reader.is_far_behind(self.partition, from, documents));
        self.state = asking.map_or(State::Idle(None), State::Asking);
    }

    /// Reads from where this begins, and holds back writes.
    pub(super) fn read(&mut self, into: LookAhead, now: Instant) {
        self.begin(into, Some(now + MAX_HOLD));
    }

    /// Reads on, beside the writes.
    pub(super) fn read_on(&mut self, into: LookAhead) {
        self.begin(into, None);
    }

    fn begin(&mut self, into: LookAhead, held_until: Option<Instant>) {
        let reading = self.reader.as_ref().map(|reader| reader.read(self.partition, into));
        self.state = reading.map_or(State::Idle(None), |reading| State::Reading { reading, held_until });
    }

    /// Until when nothing is to be written, unless the read ends before: what it finds makes most writes needless.
    pub(super) fn held_until(&self) -> Option<Instant> {
        match self.state {
            State::Reading { held_until, .. } => held_until,
            State::Idle(_) | State::Asking(_) => None,
        }
    }

    /// The answer, or the end of the read; pending while there is neither.
    pub(super) async fn next(&mut self) -> ReadAheadEvent {
        let event = match &mut self.state {
            State::Idle(_) => std::future::pending().await,
            State::Asking(asking) => match asking.await {
                Ok(true) => ReadAheadEvent::IsFarBehind,
                Ok(false) => ReadAheadEvent::IsNear,
                Err(error) => ReadAheadEvent::Failed(error),
            },
            State::Reading { reading, .. } => match reading.await {
                Ok(found) => ReadAheadEvent::Found(Box::new(found)),
                Err(error) => ReadAheadEvent::Failed(error),
            },
        };
        self.state = State::Idle(None);
        event
    }

    /// Too little waits.
    pub(super) fn is_near(&mut self, now: Instant) {
        self.state = State::Idle(Some(now + SHORT_PAUSE));
    }

    /// What was found, if it is worth it.
    pub(super) fn found(&mut self, found: LookAhead, now: Instant) -> Option<LookAhead> {
        let (superseded, records) = (found.superseded(), found.end().abs_diff(found.start()));
        let is_worth_it = found.is_worth_it(records);
        tracing::info!(partition = self.partition, records, superseded, is_worth_it, "read ahead");
        if is_worth_it {
            self.pause = PAUSE;
            return Some(found);
        }
        self.pause(now);
        None
    }

    /// Nothing was found, because of this.
    pub(super) fn failed(&mut self, error: &str, now: Instant) {
        tracing::warn!(partition = self.partition, error, "could not read ahead");
        self.pause(now);
    }

    fn pause(&mut self, now: Instant) {
        self.state = State::Idle(Some(now + self.pause));
        self.pause = (self.pause * 2).min(MAX_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::base::ids::DocId;

    const NOW: Instant = Instant::from_start(Duration::from_secs(5));

    /// Finds so many writes of one document among 80 records, if so many wait.
    struct Log {
        writes: i64,
        is_long: bool,
    }

    impl AheadReader for Log {
        fn is_far_behind(&self, _: i32, from: i64, documents: usize) -> Asking {
            assert_eq!((from, documents), (10, 7));
            let is_long = self.is_long;
            async move { Ok(is_long) }.boxed()
        }

        fn read(&self, _: i32, mut found: LookAhead) -> Reading {
            assert_eq!(found.start(), 20);
            let id = DocId::from_key(Some(b"a")).unwrap();
            (20..20 + self.writes).for_each(|offset| found.found_whole(&id, offset));
            found.ended(100);
            async move { Ok(found) }.boxed()
        }
    }

    fn asking(writes: i64, is_long: bool) -> ReadAhead {
        let mut ahead = ReadAhead::new(Some(Arc::new(Log { writes, is_long })), 3);
        assert!(ahead.next().now_or_never().is_none() && ahead.may_ask(NOW));
        ahead.ask(10, 7);
        assert!(!ahead.may_ask(NOW) && ahead.held_until().is_none(), "it goes on writing");
        ahead
    }

    #[test]
    fn a_read_that_saves_too_little_is_not_used() {
        for (writes, is_used) in [(11, true), (10, false)] {
            let mut ahead = asking(writes, true);
            assert!(matches!(ahead.next().now_or_never(), Some(ReadAheadEvent::IsFarBehind)));
            ahead.read(LookAhead::new(20, 7), NOW);
            assert!(!ahead.may_ask(NOW) && ahead.held_until() == Some(NOW + MAX_HOLD));
            let Some(ReadAheadEvent::Found(found)) = ahead.next().now_or_never() else {
                panic!("nothing found")
            };
            assert_eq!(ahead.found(*found, NOW).is_some(), is_used, "{writes}");
            assert_eq!(ahead.held_until(), None);
            assert_eq!((ahead.may_ask(NOW), ahead.may_ask(NOW + PAUSE)), (is_used, true));
        }
    }

    #[test]
    fn where_little_waits_nothing_is_read_and_after_a_failure_the_pauses_grow() {
        let mut ahead = asking(11, false);
        assert!(matches!(ahead.next().now_or_never(), Some(ReadAheadEvent::IsNear)));
        ahead.is_near(NOW);
        assert!(!ahead.may_ask(NOW) && ahead.may_ask(NOW + SHORT_PAUSE));
        for pause in [PAUSE, PAUSE * 2, PAUSE * 4] {
            ahead.failed("no broker", NOW);
            let at = [pause / 2, pause].map(|passed| ahead.may_ask(NOW + passed));
            assert_eq!(at, [false, true], "{pause:?}");
        }
        (0..9).for_each(|_| ahead.failed("no broker", NOW));
        assert!(ahead.may_ask(NOW + MAX_PAUSE));
        assert!(!ReadAhead::new(None, 3).may_ask(NOW));
    }
}
