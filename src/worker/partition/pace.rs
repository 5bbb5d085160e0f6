//! When the next batch starts. Pure.

use std::time::Duration;

use tokio::time::Instant as RuntimeInstant;

use super::Mode;
use crate::base::clock::{Clock, Instant};
use crate::base::retry::{Delays, RetryPolicy};
use crate::core::mover::UNANSWERED;
use crate::worker::ledger::{Ledger, Settlement};
use crate::worker::limits::Batching;

/// Maximum time that due sweeps wait to be batched.
const MAX_SWEEP_LINGER: Duration = Duration::from_secs(1);

/// Interval of the shared tick for partitions that are behind, unless `batch.linger` is longer: what is read meanwhile is folded, and
/// a state that is old already need not be written soon.
const LINGER_BEHIND: Duration = Duration::from_secs(1);

/// One moment on both clocks: entries are dated by the boot-time clock, and the runtime waits by its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub boot: Instant,
    pub runtime: RuntimeInstant,
}

impl Now {
    pub(super) fn of(clock: &dyn Clock) -> Self {
        Self { boot: clock.now(), runtime: RuntimeInstant::now() }
    }

    /// When the runtime's clock shows `due`; now, if that is past.
    pub(super) fn runtime_at(self, due: Instant) -> RuntimeInstant {
        self.runtime + due.since(self.boot)
    }
}

/// What the next batch may hold, as far as its time depends on it.
#[derive(Debug, Clone, Default)]
pub(super) struct Backlog {
    /// Documents not handed out yet.
    pub pending: usize,
    /// Bytes of all folds.
    pub bytes: usize,
    /// When the oldest pending document became dirty.
    pub pending_since: Option<Instant>,
    /// Offsets read from the oldest pending document on.
    pub read: u64,
    /// Offsets to be read, as far as is known.
    pub unread: u64,
    /// When the next sweep is due.
    pub next_sweep: Option<Instant>,
    /// When the next entry outside the dirty set is due.
    pub next_retry: Option<Instant>,
    /// An entry of an earlier batch only lacks an answer.
    pub has_unanswered: bool,
    /// Something may be handed out now.
    pub has_due_work: bool,
    /// Placements are to be cleared of swept leftovers.
    pub has_clears: bool,
    /// No record is queued.
    pub is_queue_empty: bool,
    /// A limit keeps the partition from being read.
    pub is_reading_stopped: bool,
    /// The worker is at its memory limit, and this partition holds its share of it.
    pub is_memory_limit_reached: bool,
}

impl Backlog {
    pub(super) fn of(ledger: &Ledger, now: Instant) -> Self {
        Self {
            pending: ledger.pending(),
            bytes: ledger.bytes(),
            pending_since: ledger.pending_since(),
            read: ledger.read_since_pending(),
            next_sweep: ledger.next_sweep(),
            next_retry: ledger.next_retry(),
            has_unanswered: ledger.has_unanswered(),
            has_due_work: ledger.has_due_work(now) || ledger.has_due_sweeps(now),
            ..Self::default()
        }
    }

    /// How long a pending document waits for others: longer if what is unread takes longer than that to read, as fast as since then, and
    /// is being read.
    fn linger(&self, batching: &Batching, now: Instant) -> Duration {
        let longer = LINGER_BEHIND.min(batching.max_dirty_age / 2).max(batching.linger);
        let spent = self.pending_since.map_or(Duration::ZERO, |since| now.since(since));
        let is_behind = self.unread as f64 * spent.as_secs_f64() > self.read as f64 * longer.as_secs_f64();
        if is_behind && !self.is_reading_stopped { longer } else { batching.linger }
    }

    /// Whether a batch starts without waiting for the linger tick.
    fn is_urgent(&self, mode: Mode, batching: &Batching) -> bool {
        (mode == Mode::Drain && (self.has_due_work || self.has_clears))
            || self.pending >= batching.max_documents
            || (self.pending > 0 && self.bytes >= batching.max_bytes)
            // At the memory limit no further records can come. Without this, only `memory.total` would be written per
            // linger.
            || (self.pending > 0 && self.is_memory_limit_reached)
            // No batch follows that could carry the clears.
            || (self.pending == 0 && self.has_clears && self.is_queue_empty)
    }
}

/// The pauses between the batches of a partition.
#[derive(Debug)]
pub(super) struct BatchPace {
    retry: RetryPolicy,
    delays: Delays,
    /// Earliest start of the next batch after one without progress.
    not_before: Option<RuntimeInstant>,
    /// When returned entries are due again.
    again_at: Option<RuntimeInstant>,
}

impl BatchPace {
    pub(super) fn new(retry: RetryPolicy) -> Self {
        Self { retry, delays: retry.delays(), not_before: None, again_at: None }
    }

    /// When the next batch may start; `None` if only an event can tell.
    pub(super) fn due_at(
        &self,
        backlog: &Backlog,
        mode: Mode,
        batching: &Batching,
        now: Now,
    ) -> Option<RuntimeInstant> {
        let at_once = backlog.is_urgent(mode, batching).then_some(now.runtime);
        // Partitions flush on a shared tick so that small writes share requests (`elastic::rounds::BulkQueue`).
        let tick = |since: Instant, interval| now.runtime_at(since.next_of(interval));
        let lingered = backlog.pending_since.map(|since| tick(since, backlog.linger(batching, now.boot)));
        // Sweeps hold the watermark, so they wait less than a long configured linger.
        let swept = backlog.next_sweep.map(|due| tick(due, batching.linger.min(MAX_SWEEP_LINGER)));
        let unanswered = self.again_at.filter(|_| backlog.has_unanswered);
        let retried = backlog.next_retry.map(|due| {
            let due = now.runtime_at(due);
            self.again_at.map_or(due, |again_at| due.max(again_at))
        });
        let due = [at_once, lingered, swept, unanswered, retried].into_iter().flatten().min()?;
        Some(self.not_before.map_or(due, |not_before| due.max(not_before)))
    }

    /// A batch starts.
    pub(super) fn batch_started(&mut self) {
        (self.not_before, self.again_at) = (None, None);
    }

    /// A batch ended.
    pub(super) fn batch_ended(&mut self, settlement: &Settlement, linger: Duration, now: RuntimeInstant) {
        let goes_on = settlement.again.is_empty() || settlement.made_progress();
        if goes_on {
            self.delays = self.retry.delays();
        }
        if !settlement.again.is_empty() {
            // If other entries make progress, wait a linger before retrying, so that one stuck entry does not shrink every batch.
            let pause = if goes_on { linger } else { self.delays.next(None) };
            self.again_at = Some(now + pause);
            // Elasticsearch does not answer: other requests would fail, too.
            let is_unanswered = settlement.again.contains_key(UNANSWERED);
            self.not_before = self.again_at.filter(|_| is_unanswered && !goes_on);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    const BATCHING: Batching = Batching {
        max_documents: 10,
        max_bytes: 1_000,
        linger: Duration::from_secs(5),
        max_dirty_age: Duration::from_secs(10),
        deadline: Duration::from_secs(60),
    };

    /// The boot-time clock shows 12 s.
    fn now() -> Now {
        Now { boot: at(12), runtime: RuntimeInstant::now() }
    }

    fn at(second: u64) -> Instant {
        Instant::from_start(Duration::from_secs(second))
    }

    fn pace() -> BatchPace {
        BatchPace::new(RetryPolicy { initial: SECOND, max: SECOND })
    }

    /// In how many seconds a batch starts.
    fn due_in(pace: &BatchPace, backlog: &Backlog, mode: Mode, now: Now) -> Option<u64> {
        let due = pace.due_at(backlog, mode, &BATCHING, now)?;
        Some(due.saturating_duration_since(now.runtime).as_secs())
    }

    fn settled(again: Option<&'static str>, indexed: u64) -> Settlement {
        Settlement {
            indexed,
            again: again.into_iter().map(|reason| (reason, 1)).collect(),
            ..Settlement::default()
        }
    }

    #[test]
    fn what_is_dirty_waits_for_the_shared_tick_unless_the_batch_is_full() {
        let (pace, now) = (pace(), now());
        let due_in = |backlog: Backlog| due_in(&pace, &backlog, Mode::Run, now);
        let dirty = Backlog { pending: 1, pending_since: Some(at(11)), ..Backlog::default() };
        assert_eq!(due_in(Backlog::default()), None);
        assert_eq!(due_in(dirty.clone()), Some(3), "the tick at 15 s");
        assert_eq!(due_in(Backlog { pending: 10, ..dirty.clone() }), Some(0));
        assert_eq!(due_in(Backlog { bytes: 1_000, ..dirty.clone() }), Some(0));
        assert_eq!(due_in(Backlog { is_memory_limit_reached: true, ..dirty.clone() }), Some(0));
        assert_eq!(due_in(Backlog { next_sweep: Some(at(13)), ..dirty }), Some(2), "a tick of one second");
    }

    #[test]
    fn who_cannot_catch_up_within_a_second_waits_so_long() {
        let behind = |unread, linger, max_dirty_age| {
            let batching = Batching {
                linger: Duration::from_millis(linger),
                max_dirty_age: Duration::from_millis(max_dirty_age),
                ..BATCHING
            };
            // 100 offsets in half a second.
            let since = Some(Instant::from_start(Duration::from_millis(11_500)));
            let backlog =
                Backlog { pending: 1, pending_since: since, read: 100, unread, ..Backlog::default() };
            backlog.linger(&batching, at(12)).as_millis()
        };
        assert_eq!(
            [0, 200, 201, u64::MAX].map(|unread| behind(unread, 200, 10_000)),
            [200, 200, 1_000, 1_000]
        );
        assert_eq!(
            [100, 101].map(|unread| behind(unread, 200, 1_000)),
            [200, 500],
            "half of the age that is allowed"
        );
        assert_eq!(behind(u64::MAX, 700, 1_000), 700, "a longer one stays");
        let stopped = Backlog {
            pending_since: Some(at(11)),
            read: 1,
            unread: 1_000,
            is_reading_stopped: true,
            ..Backlog::default()
        };
        let short = Batching { linger: Duration::from_millis(200), ..BATCHING };
        assert_eq!(stopped.linger(&short, at(12)), short.linger, "nothing comes meanwhile");
        let nothing = Backlog { unread: 1_000, ..Backlog::default() };
        assert_eq!(nothing.linger(&BATCHING, at(12)), BATCHING.linger);
    }

    #[test]
    fn clears_go_alone_only_if_no_record_is_queued() {
        let (pace, now) = (pace(), now());
        let clears = Backlog { has_clears: true, ..Backlog::default() };
        let alone = Backlog { is_queue_empty: true, ..clears.clone() };
        assert_eq!(due_in(&pace, &clears, Mode::Run, now), None);
        assert_eq!(due_in(&pace, &alone, Mode::Run, now), Some(0));
        assert_eq!(due_in(&pace, &clears, Mode::Drain, now), Some(0));
    }

    #[test]
    fn stopping_worker_starts_a_batch_at_once_if_there_is_work() {
        let (pace, now) = (pace(), now());
        let work = Backlog { has_due_work: true, ..Backlog::default() };
        assert_eq!(due_in(&pace, &work, Mode::Run, now), None);
        assert_eq!(due_in(&pace, &work, Mode::Drain, now), Some(0));
        assert_eq!(due_in(&pace, &Backlog::default(), Mode::Drain, now), None);
    }

    #[test]
    fn batch_without_an_answer_delays_every_other_one() {
        let (mut pace, now) = (pace(), now());
        let full = Backlog { pending: 10, has_unanswered: true, ..Backlog::default() };
        pace.batch_ended(&settled(Some(UNANSWERED), 0), BATCHING.linger, now.runtime);
        let not_before = pace.not_before.unwrap();
        assert!(not_before <= now.runtime + SECOND);
        assert_eq!(pace.due_at(&full, Mode::Run, &BATCHING, now), Some(not_before));
        pace.batch_started();
        assert_eq!(due_in(&pace, &full, Mode::Run, now), Some(0));
    }

    #[test]
    fn stuck_entry_waits_a_linger_while_others_make_progress() {
        let (mut pace, now) = (pace(), now());
        pace.batch_ended(&settled(Some(UNANSWERED), 1), BATCHING.linger, now.runtime);
        let stuck = Backlog { has_unanswered: true, ..Backlog::default() };
        assert_eq!(due_in(&pace, &stuck, Mode::Run, now), Some(5));
        let retry = Backlog { next_retry: Some(at(13)), ..Backlog::default() };
        assert_eq!(due_in(&pace, &retry, Mode::Run, now), Some(5));
        let full = Backlog { pending: 10, ..stuck };
        assert_eq!(due_in(&pace, &full, Mode::Run, now), Some(0));
        pace.batch_started();
        pace.batch_ended(&settled(None, 1), BATCHING.linger, now.runtime);
        assert_eq!(due_in(&pace, &retry, Mode::Run, now), Some(1));
    }
}
