//! Which geoshard is refreshed next. Pure: takes requests, answers and the time; returns refreshes to start and waiters
//! served.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::clock::Instant;
use crate::base::ids::ShardId;

/// Pending refreshes; `W` is a waiter.
#[derive(Debug)]
pub struct Queue<W> {
    shards: BTreeMap<ShardId, Shard<W>>,
    running: usize,
    max_running: usize,
}

#[derive(Debug)]
struct Shard<W> {
    /// Writes since the last refresh began.
    unseen: Option<Unseen<W>>,
    /// The refresh in flight: its start and the writes it will show.
    running: Option<(Instant, Unseen<W>)>,
    /// Earliest start of the next refresh.
    not_before: Option<Instant>,
}

/// Writes not known to be shown by a refresh.
#[derive(Debug)]
struct Unseen<W> {
    /// When the oldest was requested.
    since: Instant,
    /// When a refresh is due.
    due: Instant,
    waiters: Vec<W>,
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
    pub fn request(&mut self, shard: ShardId, waiter: W, within: Duration, now: Instant) {
        let due = now + within;
        let shard =
            self.shards.entry(shard).or_insert(Shard { unseen: None, running: None, not_before: None });
        match &mut shard.unseen {
            Some(unseen) => {
                unseen.due = unseen.due.min(due);
                unseen.waiters.push(waiter);
            }
            None => shard.unseen = Some(Unseen { since: now, due, waiters: vec![waiter] }),
        }
    }

    /// Starts the due refreshes, longest waiting first, one per geoshard at a time.
    pub fn start(&mut self, now: Instant) -> Vec<ShardId> {
        let mut due: Vec<(Instant, ShardId)> = self
            .shards
            .iter()
            .filter_map(|(id, shard)| Some((shard.due_at()?, shard.unseen.as_ref()?.since, id)))
            .filter(|(at, ..)| *at <= now)
            .map(|(_, since, id)| (since, id.clone()))
            .collect();
        due.sort_unstable();
        due.truncate(self.max_running.saturating_sub(self.running));
        for (_, id) in &due {
            if let Some(shard) = self.shards.get_mut(id) {
                shard.running = shard.unseen.take().map(|unseen| (now, unseen));
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
            if shard.unseen.is_none() && shard.not_before.is_none_or(|at| at <= now) {
                self.shards.remove(id);
            }
        }
        seen.waiters
    }

    /// The refresh of `id` has failed; it is retried at `again_at` for waiters that go on. Returns the others.
    pub fn failed(&mut self, id: &ShardId, again_at: Instant, goes_on: impl Fn(&W) -> bool) -> Vec<W> {
        let Some((_, mut unseen)) = self.end(id) else { return Vec::new() };
        let Some(shard) = self.shards.get_mut(id) else { return Vec::new() };
        shard.not_before = Some(again_at);
        let (left, gone): (Vec<W>, Vec<W>) = unseen.waiters.into_iter().partition(goes_on);
        unseen.waiters = left;
        if let Some(later) = shard.unseen.take() {
            unseen.due = unseen.due.min(later.due);
            unseen.waiters.extend(later.waiters);
        }
        shard.unseen = (!unseen.waiters.is_empty()).then_some(unseen);
        gone
    }

    fn end(&mut self, id: &ShardId) -> Option<(Instant, Unseen<W>)> {
        let ended = self.shards.get_mut(id)?.running.take()?;
        self.running -= 1;
        Some(ended)
    }

    /// Drops waiters that are gone.
    pub fn retain(&mut self, waits: impl Fn(&W) -> bool) {
        for shard in self.shards.values_mut() {
            if let Some(unseen) = &mut shard.unseen {
                unseen.waiters.retain(&waits);
            }
            shard.unseen.take_if(|unseen| unseen.waiters.is_empty());
        }
    }

    /// When the next refresh is due; `None` if that depends on a request or an answer.
    pub fn next_due(&self) -> Option<Instant> {
        if self.running >= self.max_running {
            return None;
        }
        self.shards.values().filter_map(Shard::due_at).min()
    }

    /// When the oldest invisible write was requested.
    pub fn oldest(&self) -> Option<Instant> {
        let all = self.shards.values().flat_map(|shard| {
            let running = shard.running.as_ref().map(|(_, unseen)| unseen);
            shard.unseen.iter().chain(running)
        });
        all.map(|unseen| unseen.since).min()
    }

    /// Drops geoshards without state.
    pub fn tidy(&mut self, now: Instant) {
        self.shards.retain(|_, shard| {
            shard.unseen.is_some() || shard.running.is_some() || shard.not_before.is_some_and(|at| at > now)
        });
    }
}

impl<W> Shard<W> {
    fn due_at(&self) -> Option<Instant> {
        if self.running.is_some() {
            return None;
        }
        let due = self.unseen.as_ref()?.due;
        Some(self.not_before.map_or(due, |not_before| due.max(not_before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::testing::shard;

    fn at(millis: u64) -> Instant {
        Instant::from_start(Duration::from_millis(millis))
    }

    const SOON: Duration = Duration::from_millis(100);

    #[test]
    fn writes_during_a_refresh_wait_for_the_next() {
        let mut queue = Queue::new(4);
        queue.request(shard("a"), 1, SOON, at(0));
        queue.request(shard("a"), 2, SOON, at(50));
        assert_eq!((queue.start(at(99)), queue.next_due()), (vec![], Some(at(100))));
        assert_eq!(queue.start(at(100)), [shard("a")]);
        queue.request(shard("a"), 3, Duration::ZERO, at(101));
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
}
