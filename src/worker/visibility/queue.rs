//! Which geoshard is refreshed next. Pure: takes requests, answers, counts and the time; returns refreshes to start and waiters
//! served.
//!
//! A waiter is served by a refresh that began after its request. That is one of the worker, or one that Elasticsearch makes
//! periodically, known from its counts ([`RefreshCounts`]). If Elasticsearch already refreshes the geoshard, another refresh
//! would double the costliest work beside the writes, so requests wait longer for the periodic one.
//!
//! The life of a request in its geoshard ([`Shard`]): `requested`, then `asked` while a request for the counts is in flight, then
//! `counted` with these counts; from any of them into `running`, the worker's refresh, or served by a later count.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::clock::Instant;
use crate::base::ids::ShardId;
use crate::io::elastic::refreshes::RefreshCounts;

/// After a refresh by Elasticsearch was observed, it is taken to refresh the geoshard periodically for this long. Its default
/// interval is 1 s, but with many geoshards under load a round of refreshes takes 4 s.
const BY_ITSELF: Duration = Duration::from_secs(5);

/// When a request is due.
#[derive(Debug, Clone, Copy)]
pub struct Within {
    /// Delay after the request if Elasticsearch does not refresh periodically.
    pub usual: Duration,
    /// Delay after the request if it does.
    pub at_most: Duration,
}

impl Within {
    /// Without delay.
    pub const NOW: Self = Self { usual: Duration::ZERO, at_most: Duration::ZERO };
}

/// Pending refreshes; `W` is a waiter.
#[derive(Debug)]
pub struct Queue<W> {
    shards: BTreeMap<ShardId, Shard<W>>,
    running: usize,
    max_running: usize,
}

#[derive(Debug)]
struct Shard<W> {
    /// Writes since the last refresh began and the last counts were asked for.
    requested: Option<PendingWrites<W>>,
    /// Writes made before the request for counts in flight was sent.
    asked: Option<PendingWrites<W>>,
    /// Writes that were there before counts were taken, oldest first, with these counts.
    counted: Vec<(RefreshCounts, PendingWrites<W>)>,
    /// The refresh in flight: its start and the writes it will show.
    running: Option<(Instant, PendingWrites<W>)>,
    /// Earliest start of the next refresh.
    not_before: Option<Instant>,
    last: LastCounts,
}

/// What the last counts of a geoshard say.
#[derive(Debug, Default)]
struct LastCounts {
    counts: Option<(Instant, RefreshCounts)>,
    /// Refreshes of the worker that may have ended since they were taken.
    own: u64,
    /// Those of them that ended while the next counts were asked for: either those or the counts after them include one.
    own_while_asked: u64,
    /// Whether new ones are asked for.
    is_asked: bool,
    /// When refreshes of others were seen last.
    others_at: Option<Instant>,
}

/// Writes not known to be shown by a refresh.
#[derive(Debug)]
struct PendingWrites<W> {
    /// When the oldest was requested.
    since: Instant,
    /// When a refresh is due, where Elasticsearch does not refresh by itself.
    due: Instant,
    /// When it is due in any case.
    overdue: Instant,
    waiters: Vec<W>,
}

impl<W> PendingWrites<W> {
    fn and(self, other: Self) -> Self {
        let (mut older, newer) = if other.since < self.since { (other, self) } else { (self, other) };
        older.due = older.due.min(newer.due);
        older.overdue = older.overdue.min(newer.overdue);
        older.waiters.extend(newer.waiters);
        older
    }
}

impl<W> Queue<W> {
    /// At most `max_running` refreshes at once.
    pub fn new(max_running: usize) -> Self {
        Self { shards: BTreeMap::new(), running: 0, max_running }
    }

    /// Applies to later refreshes; running ones continue.
    pub fn set_max_running(&mut self, max_running: usize) {
        self.max_running = max_running;
    }

    /// `shard` was written before `now`: a refresh is due `within` this time.
    pub fn request(&mut self, shard: ShardId, waiter: W, within: Within, now: Instant) {
        let shard = self.shards.entry(shard).or_insert_with(Shard::new);
        let (due, overdue) = (now + within.usual, now + within.at_most);
        shard.put_back(PendingWrites { since: now, due, overdue, waiters: vec![waiter] });
    }

    /// Starts the due refreshes, longest waiting first, one per geoshard at a time.
    pub fn start(&mut self, now: Instant) -> Vec<ShardId> {
        let mut due: Vec<(Instant, ShardId)> = self
            .shards
            .iter()
            .filter(|(_, shard)| shard.due_at().is_some_and(|at| at <= now))
            .filter_map(|(id, shard)| Some((shard.waiting().map(|writes| writes.since).min()?, id.clone())))
            .collect();
        due.sort_unstable();
        due.truncate(self.max_running.saturating_sub(self.running));
        for (_, id) in &due {
            if let Some(shard) = self.shards.get_mut(id) {
                shard.running = shard.take_all().map(|writes| (now, writes));
                self.running += 1;
            }
        }
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// The refresh of `id` has succeeded: returns its waiters. The geoshard then pauses for as long as the refresh
    /// took, so that constant writes do not occupy a server thread.
    pub fn succeeded(&mut self, id: &ShardId, now: Instant) -> Vec<W> {
        let Some((began, seen)) = self.end(id) else { return Vec::new() };
        if let Some(shard) = self.shards.get_mut(id) {
            shard.not_before = Some(now + now.since(began));
        }
        seen.waiters
    }

    /// The refresh of `id` has failed; it is retried at `again_at` for waiters that go on. Returns the others.
    pub fn failed(&mut self, id: &ShardId, again_at: Instant, goes_on: impl Fn(&W) -> bool) -> Vec<W> {
        let Some((_, mut writes)) = self.end(id) else { return Vec::new() };
        let Some(shard) = self.shards.get_mut(id) else { return Vec::new() };
        shard.not_before = Some(again_at);
        let (left, gone): (Vec<W>, Vec<W>) = writes.waiters.into_iter().partition(goes_on);
        writes.waiters = left;
        if !writes.waiters.is_empty() {
            shard.put_back(writes);
        }
        gone
    }

    fn end(&mut self, id: &ShardId) -> Option<(Instant, PendingWrites<W>)> {
        let shard = self.shards.get_mut(id)?;
        let ended = shard.running.take()?;
        self.running -= 1;
        shard.last.own += 1;
        shard.last.own_while_asked += u64::from(shard.last.is_asked);
        Some(ended)
    }

    /// The geoshards with waiters: their refreshes are counted now. [`Queue::counted`] or [`Queue::not_counted`] follows.
    pub fn begin_count(&mut self) -> Vec<ShardId> {
        let mut wanted = Vec::new();
        for (id, shard) in &mut self.shards {
            if shard.waiting().next().is_none() {
                continue;
            }
            shard.asked = match (shard.asked.take(), shard.requested.take()) {
                (Some(asked), Some(writes)) => Some(asked.and(writes)),
                (asked, writes) => asked.or(writes),
            };
            shard.last.is_asked = true;
            wanted.push(id.clone());
        }
        wanted
    }

    /// Takes the counts of `id` that [`Queue::begin_count`] asked for; not empty ones. Returns the waiters that Elasticsearch's own
    /// refreshes have served.
    pub fn counted(&mut self, id: &ShardId, counts: RefreshCounts, now: Instant) -> Vec<W> {
        let Some(shard) = self.shards.get_mut(id) else { return Vec::new() };
        let mut served = Vec::new();
        let mut waiting = Vec::new();
        for (baseline, writes) in std::mem::take(&mut shard.counted) {
            if counts.show_what_was_written_before(&baseline) {
                served.extend(writes.waiters);
            } else if counts.continue_from(&baseline) {
                waiting.push((baseline, writes));
            } else {
                waiting.push((counts.clone(), writes));
            }
        }
        waiting.extend(shard.asked.take().map(|writes| (counts.clone(), writes)));
        shard.counted = waiting;
        shard.last.update(counts, now, shard.running.is_some());
        served
    }

    /// No counts have come for `id`.
    pub fn not_counted(&mut self, id: &ShardId) {
        if let Some(shard) = self.shards.get_mut(id) {
            shard.last.stop_asking();
            if let Some(asked) = shard.asked.take() {
                shard.put_back(asked);
            }
        }
    }

    /// Drops waiters that are gone.
    pub fn retain(&mut self, waits: impl Fn(&W) -> bool) {
        let retain = |writes: &mut PendingWrites<W>| {
            writes.waiters.retain(&waits);
            !writes.waiters.is_empty()
        };
        for shard in self.shards.values_mut() {
            shard.requested.take_if(|writes| !retain(writes));
            shard.asked.take_if(|writes| !retain(writes));
            shard.counted.retain_mut(|(_, writes)| retain(writes));
        }
    }

    /// When the next refresh is due; `None` if that depends on a request or an answer.
    pub fn next_due(&self) -> Option<Instant> {
        if self.running >= self.max_running {
            return None;
        }
        self.shards.values().filter_map(Shard::due_at).min()
    }

    /// Whether a write waits for a refresh that has not begun.
    pub fn has_waiting(&self) -> bool {
        self.shards.values().any(|shard| shard.waiting().next().is_some())
    }

    /// When the oldest invisible write was requested.
    pub fn oldest(&self) -> Option<Instant> {
        let all = self.shards.values().flat_map(|shard| {
            let running = shard.running.as_ref().map(|(_, writes)| writes);
            shard.waiting().chain(running)
        });
        all.map(|writes| writes.since).min()
    }

    /// Drops geoshards without state.
    pub fn tidy(&mut self, now: Instant) {
        self.shards.retain(|_, shard| {
            shard.waiting().next().is_some()
                || shard.running.is_some()
                || shard.not_before.is_some_and(|at| at > now)
                || shard.last.by_itself_until().is_some_and(|until| until > now)
        });
    }
}

impl<W> Shard<W> {
    fn new() -> Self {
        Self {
            requested: None,
            asked: None,
            counted: Vec::new(),
            running: None,
            not_before: None,
            last: LastCounts::default(),
        }
    }

    fn put_back(&mut self, writes: PendingWrites<W>) {
        self.requested = Some(match self.requested.take() {
            Some(there) => there.and(writes),
            None => writes,
        });
    }

    /// All that waits for a refresh that has not begun.
    fn waiting(&self) -> impl Iterator<Item = &PendingWrites<W>> {
        let counted = self.counted.iter().map(|(_, writes)| writes);
        counted.chain(&self.asked).chain(&self.requested)
    }

    fn take_all(&mut self) -> Option<PendingWrites<W>> {
        let counted = std::mem::take(&mut self.counted).into_iter().map(|(_, writes)| writes);
        counted.chain(self.asked.take()).chain(self.requested.take()).reduce(PendingWrites::and)
    }

    /// When its next refresh may start; `None` until a request or an answer comes. Rules of time belong here: both
    /// [`Queue::start`] and [`Queue::next_due`] follow it, and [`Queue::tidy`] must keep a geoshard while a rule needs its state.
    fn due_at(&self) -> Option<Instant> {
        if self.running.is_some() {
            return None;
        }
        let by_itself_until = self.last.by_itself_until();
        let due = |writes: &PendingWrites<W>| match by_itself_until {
            Some(until) => writes.due.max(until).min(writes.overdue),
            None => writes.due,
        };
        let due = self.waiting().map(due).min()?;
        Some(self.not_before.map_or(due, |not_before| due.max(not_before)))
    }
}

impl LastCounts {
    /// `is_refreshing`: the worker has a refresh in flight, which may have ended.
    fn update(&mut self, counts: RefreshCounts, now: Instant, is_refreshing: bool) {
        let own = self.own + u64::from(is_refreshing);
        self.own = self.own_while_asked;
        self.stop_asking();
        let last = self.counts.replace((now, counts));
        if let (Some((at, last)), Some((_, counts))) = (last, &self.counts)
            && now.since(at) <= BY_ITSELF
            && counts.more_than(&last) > own
        {
            self.others_at = Some(now);
        }
    }

    fn stop_asking(&mut self) {
        (self.is_asked, self.own_while_asked) = (false, 0);
    }

    fn by_itself_until(&self) -> Option<Instant> {
        self.others_at.map(|at| at + BY_ITSELF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::testing::shard;

    fn at(millis: u64) -> Instant {
        Instant::from_start(Duration::from_millis(millis))
    }

    /// Elasticsearch's own refreshes are not counted.
    const SOON: Within = Within { usual: Duration::from_millis(100), at_most: Duration::from_secs(10) };

    #[test]
    fn writes_during_a_refresh_wait_for_the_next() {
        let mut queue = Queue::new(4);
        queue.request(shard("a"), 1, SOON, at(0));
        queue.request(shard("a"), 2, SOON, at(50));
        assert_eq!((queue.start(at(99)), queue.next_due()), (vec![], Some(at(100))));
        assert_eq!(queue.start(at(100)), [shard("a")]);
        queue.request(shard("a"), 3, Within::NOW, at(101));
        assert_eq!((queue.start(at(110)), queue.next_due()), (vec![], None), "one of a geoshard at a time");
        assert_eq!(queue.succeeded(&shard("a"), at(140)), [1, 2]);
        assert_eq!((queue.start(at(179)), queue.next_due()), (vec![], Some(at(180))), "it took 40");
        assert_eq!(queue.oldest(), Some(at(101)));
        assert_eq!(queue.start(at(180)), [shard("a")]);
        assert_eq!(queue.succeeded(&shard("a"), at(200)), [3]);
        queue.tidy(at(220));
        assert!(queue.shards.is_empty());
    }

    #[test]
    fn concurrent_refreshes_are_bounded_and_start_longest_first() {
        let mut queue = Queue::new(2);
        for (n, id) in ["d", "a", "c", "b"].into_iter().enumerate() {
            queue.request(shard(id), n, SOON, at(n as u64));
        }
        assert_eq!(queue.start(at(200)), [shard("d"), shard("a")]);
        assert_eq!(queue.next_due(), None, "an answer has to come");
        assert_eq!(queue.start(at(200)), []);
        queue.succeeded(&shard("d"), at(210));
        assert_eq!(queue.start(at(210)), [shard("c")]);

        queue.set_max_running(1);
        queue.succeeded(&shard("a"), at(220));
        assert_eq!(queue.start(at(220)), [], "one is still under way");
        queue.succeeded(&shard("c"), at(230));
        assert_eq!(queue.start(at(230)), [shard("b")]);
    }

    #[test]
    fn failed_refresh_is_retried_for_waiters_that_go_on() {
        let mut queue = Queue::new(1);
        queue.request(shard("a"), 1, SOON, at(0));
        queue.request(shard("a"), 2, SOON, at(0));
        assert_eq!(queue.start(at(100)), [shard("a")]);
        queue.request(shard("a"), 3, SOON, at(150));
        assert_eq!(queue.failed(&shard("a"), at(500), |waiter| *waiter != 2), [2]);
        assert_eq!((queue.start(at(499)), queue.oldest()), (vec![], Some(at(0))));
        assert_eq!(queue.start(at(500)), [shard("a")]);
        assert_eq!(queue.succeeded(&shard("a"), at(501)), [1, 3]);

        queue.request(shard("a"), 4, SOON, at(600));
        queue.retain(|waiter| *waiter != 4);
        assert_eq!((queue.next_due(), queue.start(at(900))), (None, vec![]), "there is no waiter");
    }

    const NONE: [u8; 0] = [];

    /// Counts of one copy.
    fn one(refreshes: u64) -> RefreshCounts {
        RefreshCounts::of([("0 node", refreshes)])
    }

    fn count(queue: &mut Queue<u8>, refreshes: u64, now: u64) -> Vec<u8> {
        queue.begin_count();
        queue.counted(&shard("a"), one(refreshes), at(now))
    }

    const PATIENT: Within = Within { usual: Duration::from_secs(1), at_most: Duration::from_secs(10) };

    #[test]
    fn two_more_refreshes_of_elasticsearch_show_what_was_there_before_the_count() {
        let mut queue = Queue::new(4);
        queue.request(shard("a"), 1, PATIENT, at(0));
        assert_eq!(queue.begin_count(), [shard("a")]);
        queue.request(shard("a"), 2, PATIENT, at(10));
        assert_eq!(queue.counted(&shard("a"), one(7), at(20)), NONE);
        assert_eq!(queue.begin_count(), [shard("a")]);
        assert_eq!(
            queue.counted(&shard("a"), one(8), at(520)),
            NONE,
            "it may have begun before 1 was written"
        );
        queue.begin_count();
        assert_eq!(queue.counted(&shard("a"), one(9), at(1_520)), [1], "2 was written while 7 was asked for");
        queue.begin_count();
        assert_eq!(queue.counted(&shard("a"), one(10), at(2_520)), [2]);
        assert!(!queue.has_waiting());
    }

    #[test]
    fn a_geoshard_that_elasticsearch_refreshes_is_left_to_it_for_a_while() {
        let mut queue = Queue::new(4);
        queue.request(shard("a"), 1, PATIENT, at(0));
        assert_eq!(queue.next_due(), Some(at(1_000)));
        count(&mut queue, 1, 100);
        assert_eq!(queue.next_due(), Some(at(1_000)), "nothing is known of the time before");
        count(&mut queue, 2, 600);
        assert_eq!(queue.next_due(), Some(at(5_600)));
        assert_eq!(queue.start(at(5_599)), []);
        assert_eq!(queue.start(at(5_600)), [shard("a")]);
        assert_eq!(queue.succeeded(&shard("a"), at(5_610)), [1]);
    }

    #[test]
    fn a_write_that_counts_never_show_is_refreshed_at_last() {
        let mut queue = Queue::new(4);
        queue.request(shard("a"), 1, PATIENT, at(0));
        // One copy is refreshed, the other is another one each time.
        for n in 0..20 {
            queue.begin_count();
            let other = format!("0 node {n}");
            let counts = RefreshCounts::of([("0 first", n), (other.as_str(), 1)]);
            assert_eq!(queue.counted(&shard("a"), counts, at(n * 500)), NONE);
        }
        assert_eq!(queue.next_due(), Some(at(10_000)));
        assert_eq!(queue.start(at(10_000)), [shard("a")]);
    }

    #[test]
    fn a_refresh_of_the_worker_is_not_taken_for_one_of_elasticsearch() {
        // It ends before, while, or after counts are asked for that include it, or do not.
        for (ends, counts) in [(3, [1, 2, 2]), (5, [1, 2, 2]), (5, [1, 1, 2]), (7, [1, 2, 2]), (7, [1, 1, 2])]
        {
            let mut queue = Queue::new(4);
            queue.request(shard("a"), 1, Within::NOW, at(0));
            count(&mut queue, counts[0], 1);
            queue.start(at(2));
            queue.request(shard("a"), 2, PATIENT, at(2));
            let end = |queue: &mut Queue<u8>, now| {
                if ends == now {
                    assert_eq!(queue.succeeded(&shard("a"), at(now)), [1]);
                }
            };
            end(&mut queue, 3);
            queue.begin_count();
            end(&mut queue, 5);
            queue.counted(&shard("a"), one(counts[1]), at(6));
            end(&mut queue, 7);
            count(&mut queue, counts[2], 500);
            assert_eq!(queue.next_due(), Some(at(1_002)), "ended at {ends}, counts {counts:?}");
            count(&mut queue, 3, 600);
            queue.request(shard("a"), 3, PATIENT, at(600));
            assert_eq!(queue.next_due(), Some(at(5_600)), "one of Elasticsearch");
        }
    }

    #[test]
    fn a_geoshard_that_elasticsearch_no_longer_refreshes_is_refreshed() {
        let mut queue = Queue::new(4);
        queue.request(shard("a"), 1, PATIENT, at(0));
        count(&mut queue, 1, 0);
        assert_eq!(count(&mut queue, 3, 500), [1]);
        queue.request(shard("a"), 2, PATIENT, at(1_000));
        assert_eq!(queue.next_due(), Some(at(5_500)), "5 s after the last");
        assert_eq!(queue.start(at(5_500)), [shard("a")]);
        assert_eq!(queue.succeeded(&shard("a"), at(5_500)), [2]);
        queue.request(shard("a"), 3, PATIENT, at(5_500));
        assert_eq!(queue.next_due(), Some(at(6_500)));
    }

    #[test]
    fn another_copy_or_lower_counts_begin_anew() {
        let both = |first, second| RefreshCounts::of([("0 first", first), ("0 second", second)]);
        let mut queue = Queue::new(4);
        queue.request(shard("a"), 1, PATIENT, at(0));
        let mut count = |counts| {
            queue.begin_count();
            queue.counted(&shard("a"), counts, at(10))
        };
        count(one(5));
        assert_eq!(count(RefreshCounts::of([("0 node", 9), ("0 second", 1)])), NONE, "a new copy");
        assert_eq!(count(both(1, 3)), NONE, "the first is another one");
        assert_eq!(count(both(3, 4)), NONE, "both have to show it");
        assert_eq!(count(both(2, 5)), NONE, "it was restarted");
        assert_eq!(count(both(4, 7)), [1]);
    }

    #[test]
    fn counts_that_do_not_come_change_nothing() {
        let mut queue = Queue::new(4);
        queue.request(shard("a"), 1, PATIENT, at(0));
        queue.begin_count();
        queue.not_counted(&shard("a"));
        queue.request(shard("a"), 2, PATIENT, at(5));
        queue.begin_count();
        assert_eq!(queue.start(at(1_000)), [shard("a")], "while counts are awaited");
        assert_eq!(queue.counted(&shard("a"), one(1), at(1_001)), NONE);
        assert_eq!(queue.succeeded(&shard("a"), at(1_002)), [1, 2]);

        queue.request(shard("a"), 3, PATIENT, at(1_100));
        queue.begin_count();
        queue.counted(&shard("a"), one(2), at(1_101));
        queue.request(shard("a"), 4, PATIENT, at(1_102));
        queue.retain(|waiter| *waiter != 3);
        assert_eq!(queue.oldest(), Some(at(1_102)));
    }
}
