//! Sends one round of operations and brings back what became of each, in order.
//!
//! A round is cut by count and bytes into requests that go out side by side. Each holds a permit of a semaphore that all
//! partitions share for its whole life, its waits between attempts included: a server that pushes back is asked by fewer,
//! not by more. Only the items that deserve it are sent again, with backoff and without a limit in number, until the
//! [`Lease`] ends. Once it has, nothing more is sent; an item without an answer is then `Unanswered`, which says nothing
//! about whether it was carried out.

mod item;
mod observer;

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use thiserror::Error;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::item::{Item, Verdict};
use self::observer::Waiting;
pub use self::observer::{RequestKind, RoundsObserver, Unobserved};
use super::answer::{CallVerdict, judge_call};
use super::{BulkOp, CallError, Elastic, Found, Get, Index, ItemError, Stamp};
use crate::clock::{Clock, Instant};
use crate::retry::RetryPolicy;

/// Bounds of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Operations, at least one.
    pub max_operations: usize,
    /// Bytes of the body. A single operation above it is sent alone.
    pub max_bytes: usize,
    /// How long to wait for an answer; the rest of the lease, if that is less.
    pub request_timeout: Duration,
}

/// For how long a batch may send.
#[derive(Debug, Clone)]
pub struct Lease {
    /// Nothing is sent at or after this.
    pub deadline: Instant,
    /// Nothing is sent once this is cancelled; requests in flight are abandoned, waits end at once.
    pub cancel: CancellationToken,
}

impl Lease {
    /// The time that is left; `None` once the lease has ended.
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        let left = self.deadline.since(now);
        (!left.is_zero() && !self.cancel.is_cancelled()).then_some(left)
    }
}

/// What became of a bulk operation. See [`BulkVerdict`](super::answer::BulkVerdict).
#[derive(Debug, Clone, PartialEq)]
pub enum BulkOutcome {
    /// Carried out.
    Done {
        /// The state it left, if it is a placement's.
        stamp: Option<Stamp>,
    },
    /// 409: the condition does not hold.
    Conflict,
    /// A delete found nothing.
    NotFound,
    /// The document is not acceptable.
    Refused(ItemError),
    /// The lease ended first. It may or may not have been carried out.
    Unanswered,
}

/// What became of a get. See [`GetVerdict`](super::answer::GetVerdict).
#[derive(Debug, Clone, PartialEq)]
pub enum GetOutcome {
    /// It is there.
    Found(Found),
    /// It is not there.
    Missing,
    /// The lease ended first.
    Unanswered,
}

/// Why the worker must stop instead of trying again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Halt {
    /// 401 or 403. Trying again would lock accounts and help nobody.
    #[error(
        "elasticsearch refuses geofold's credentials ({0}); check elasticsearch.username, password or api_key, and the privileges on the indices"
    )]
    Unauthorized(String),
}

/// Sends rounds. Cheap to clone; one for all partitions, or one each with the same permits.
#[derive(Clone)]
pub struct Rounds {
    /// Where to.
    pub elastic: Arc<dyn Elastic>,
    /// How many requests the whole worker may have under way. Never closed.
    pub permits: Arc<Semaphore>,
    /// Bounds of one request.
    pub limits: Limits,
    /// Delays between attempts.
    pub retry: RetryPolicy,
    /// The clock that leases are measured by.
    pub clock: Arc<dyn Clock>,
    /// Who is told.
    pub observer: Arc<dyn RoundsObserver>,
}

impl Rounds {
    /// Carries out operations. One outcome for each, in order.
    pub async fn bulk(&self, ops: Vec<BulkOp>, lease: &Lease) -> Result<Vec<BulkOutcome>, Halt> {
        self.round(ops, lease).await
    }

    /// Reads documents. One outcome for each, in order.
    pub async fn mget(&self, gets: Vec<Get>, lease: &Lease) -> Result<Vec<GetOutcome>, Halt> {
        self.round(gets, lease).await
    }

    /// Makes what was written to these indices visible to searches. `false`: the lease ended first. It takes no permit:
    /// nothing is sent with it that Elasticsearch would have to work off.
    pub async fn refresh(&self, indices: &[Index], lease: &Lease) -> bool {
        let mut delays = self.retry.delays();
        while let Some(left) = lease.time_left(self.clock.now()) {
            let timeout = left.min(self.limits.request_timeout);
            let answer = tokio::select! {
                biased;
                answer = self.elastic.refresh(indices, timeout) => answer,
                () = lease.cancel.cancelled() => return false,
            };
            let Err(error) = answer else { return true };
            warn!(
                %error,
                indices = indices.len(),
                "moved documents can not be made visible, so their old copies stay for now; a refresh needs the index privilege maintenance"
            );
            self.pause(delays.next(None), lease).await;
        }
        false
    }

    async fn round<I: Item>(&self, items: Vec<I>, lease: &Lease) -> Result<Vec<I::Outcome>, Halt> {
        let requests = cut(items, &self.limits).into_iter().map(|items| self.request(items, lease));
        Ok(try_join_all(requests).await?.into_iter().flatten().collect())
    }

    /// One request and all its repetitions.
    async fn request<I: Item>(&self, items: Vec<I>, lease: &Lease) -> Result<Vec<I::Outcome>, Halt> {
        let mut outcomes: Vec<_> = items.iter().map(|_| I::UNANSWERED).collect();
        let Some(_permit) = self.permit(lease).await else {
            return Ok(outcomes);
        };
        // Usually one part; a request that was too large leaves its halves here, the earlier on top.
        let mut parts = vec![Part { slots: (0..items.len()).collect(), items }];
        while let Some(part) = parts.pop() {
            if let Some((left, right)) = self.part(part, &mut outcomes, lease).await? {
                parts.extend([right, left]);
            }
        }
        Ok(outcomes)
    }

    /// Sends a part until it has its outcomes or the lease ends; or gives its halves, to be sent instead.
    async fn part<I: Item>(
        &self,
        mut part: Part<I>,
        outcomes: &mut [I::Outcome],
        lease: &Lease,
    ) -> Result<Option<(Part<I>, Part<I>)>, Halt> {
        let mut delays = self.retry.delays();
        for attempt in 1_u32.. {
            let Some(answers) = self.send(&part.items, lease).await else {
                return Ok(None);
            };
            let (label, reason, after) = match answers {
                Ok(answers) => {
                    let Some(failure) = part.settle(answers, outcomes, &*self.observer)? else {
                        return Ok(None);
                    };
                    (failure.label(), failure.to_string(), None)
                }
                Err(error) => {
                    let after = match judge_call(&error) {
                        CallVerdict::Unauthorized => return Err(Halt::Unauthorized(error.to_string())),
                        CallVerdict::Split if part.items.len() > 1 => {
                            self.observer.retry(error.label(), part.items.len());
                            warn!(reason = error.label(), %error, items = part.items.len(), "request halved");
                            return Ok(Some(part.halve()));
                        }
                        CallVerdict::Split => {
                            if let Some(refused) = I::refused(&error) {
                                part.set(outcomes, refused);
                                return Ok(None);
                            }
                            None
                        }
                        CallVerdict::Again { after } => after,
                    };
                    self.observer.retry(error.label(), part.items.len());
                    (error.label(), error.to_string(), after)
                }
            };
            let delay = delays.next(after);
            warn!(
                reason = label,
                error = reason,
                items = part.items.len(),
                attempt,
                ?delay,
                "request to be repeated"
            );
            self.pause(delay, lease).await;
        }
        Ok(None)
    }

    /// One attempt; `None` if the lease has ended, or was cancelled meanwhile.
    async fn send<I: Item>(&self, items: &[I], lease: &Lease) -> Option<Result<Vec<I::Answer>, CallError>> {
        let started = self.clock.now();
        let timeout = lease.time_left(started)?.min(self.limits.request_timeout);
        let answers = tokio::select! {
            // An answer that is there is used, even if the lease ended with it.
            biased;
            answers = I::send(&*self.elastic, items, timeout) => answers,
            () = lease.cancel.cancelled() => return None,
        };
        let answers = answers.and_then(|answers| {
            if answers.len() == items.len() {
                return Ok(answers);
            }
            let (got, sent) = (answers.len(), items.len());
            Err(CallError::Undecodable(format!("{got} items for {sent} that were sent")))
        });
        let bytes = items.iter().map(I::bytes).sum();
        let took = self.clock.now().since(started);
        self.observer.request(I::KIND, items.len(), bytes, took, answers.is_ok());
        Some(answers)
    }

    /// A permit to send; `None` if the lease ends first.
    async fn permit(&self, lease: &Lease) -> Option<SemaphorePermit<'_>> {
        let left = lease.time_left(self.clock.now())?;
        let _waiting = Waiting::begin(&*self.observer);
        tokio::select! {
            biased;
            () = lease.cancel.cancelled() => None,
            permit = self.permits.acquire() => permit.ok(),
            () = tokio::time::sleep(left) => None,
        }
    }

    /// Waits for the next attempt, or for the end of the lease. The permit is kept even if the delay outlasts the lease:
    /// leaving early would bring the same items back with a fresh lease, and past what the server asked for.
    async fn pause(&self, delay: Duration, lease: &Lease) {
        let Some(left) = lease.time_left(self.clock.now()) else {
            return;
        };
        let _waiting = Waiting::begin(&*self.observer);
        tokio::select! {
            biased;
            () = lease.cancel.cancelled() => {}
            () = tokio::time::sleep(delay.min(left)) => {}
        }
    }
}

/// Items that are sent together, and where their outcomes go.
struct Part<I> {
    items: Vec<I>,
    slots: Vec<usize>,
}

impl<I: Item> Part<I> {
    /// Records what is settled and keeps what has to be sent again; gives one of the reasons, if there is any left.
    fn settle(
        &mut self,
        answers: Vec<I::Answer>,
        outcomes: &mut [I::Outcome],
        observer: &dyn RoundsObserver,
    ) -> Result<Option<ItemError>, Halt> {
        let mut first = None;
        let (items, slots) = (std::mem::take(&mut self.items), std::mem::take(&mut self.slots));
        for ((item, slot), answer) in items.into_iter().zip(slots).zip(answers) {
            match item.judge(answer) {
                Verdict::Settled(outcome) => outcomes[slot] = outcome,
                Verdict::Unauthorized(error) => return Err(Halt::Unauthorized(error.to_string())),
                Verdict::Again(error) => {
                    observer.retry(error.label(), 1);
                    first.get_or_insert(error);
                    self.items.push(item);
                    self.slots.push(slot);
                }
            }
        }
        Ok(first)
    }

    fn set(&self, outcomes: &mut [I::Outcome], outcome: I::Outcome) {
        if let [slot] = self.slots[..] {
            outcomes[slot] = outcome;
        }
    }

    fn halve(mut self) -> (Self, Self) {
        let middle = self.items.len() / 2;
        let right = Self { items: self.items.split_off(middle), slots: self.slots.split_off(middle) };
        (self, right)
    }
}

/// Cuts items into requests, in order and none of them empty.
fn cut<I: Item>(items: Vec<I>, limits: &Limits) -> Vec<Vec<I>> {
    let is_one =
        items.len() <= limits.max_operations && items.iter().map(I::bytes).sum::<usize>() <= limits.max_bytes;
    if is_one {
        return if items.is_empty() { Vec::new() } else { vec![items] };
    }
    let mut requests: Vec<Vec<I>> = Vec::new();
    let mut bytes = 0_usize;
    for item in items {
        let size = item.bytes();
        match requests.last_mut() {
            Some(last) if last.len() < limits.max_operations && bytes + size <= limits.max_bytes => {
                bytes += size;
                last.push(item);
            }
            _ => {
                bytes = size;
                requests.push(vec![item]);
            }
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;
    use crate::elastic::{AdminAnswer, AdminCall, BulkAnswer, GetAnswer, Guard, encode};
    use crate::ids::DocId;

    /// Follows tokio's paused time.
    #[derive(Debug)]
    struct TestClock(tokio::time::Instant);

    impl Clock for TestClock {
        fn now(&self) -> Instant {
            Instant::from_start(self.0.elapsed())
        }
    }

    type Reply = Result<Vec<BulkAnswer>, CallError>;
    type Script = Box<dyn Fn(usize, &[String]) -> Reply + Send + Sync>;

    /// Answers the nth call (from 0), with its ids, by `script`, after `latency`; remembers when each call came.
    struct Scripted {
        script: Script,
        latency: Duration,
        start: tokio::time::Instant,
        calls: Mutex<Vec<(Duration, String)>>,
    }

    impl Scripted {
        /// The ids of each call, in order of arrival.
        fn calls(&self) -> Vec<String> {
            self.calls.lock().unwrap().iter().map(|(_, ids)| ids.clone()).collect()
        }

        fn times(&self) -> Vec<Duration> {
            self.calls.lock().unwrap().iter().map(|(at, _)| *at).collect()
        }

        async fn reply(&self, ids: Vec<String>) -> Reply {
            let call = {
                let mut calls = self.calls.lock().unwrap();
                calls.push((self.start.elapsed(), ids.join("")));
                calls.len() - 1
            };
            tokio::time::sleep(self.latency).await;
            (self.script)(call, &ids)
        }
    }

    impl Elastic for Scripted {
        fn mget<'a>(
            &'a self,
            gets: &'a [Get],
            _: Duration,
        ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
            async move {
                let answers = self.reply(gets.iter().map(|get| get.id.to_string()).collect()).await?;
                let answer = |answer: BulkAnswer| match answer.error {
                    Some(error) => GetAnswer::Failed(ItemError { status: 0, ..*error }),
                    None => GetAnswer::Missing,
                };
                Ok(answers.into_iter().map(answer).collect())
            }
            .boxed()
        }

        fn bulk<'a>(&'a self, ops: &'a [BulkOp], timeout: Duration) -> BoxFuture<'a, Reply> {
            async move {
                let id = |op: &BulkOp| op.id().to_string();
                let reply = self.reply(ops.iter().map(id).collect());
                tokio::time::timeout(timeout, reply).await.unwrap_or(Err(CallError::Timeout(timeout)))
            }
            .boxed()
        }

        fn refresh<'a>(&'a self, indices: &'a [Index], _: Duration) -> BoxFuture<'a, Result<(), CallError>> {
            async move { self.reply(vec![format!("refresh {}", indices.len())]).await.map(drop) }.boxed()
        }

        fn admin<'a>(&'a self, _: AdminCall, _: Duration) -> BoxFuture<'a, Result<AdminAnswer, CallError>> {
            unreachable!("rounds never call it")
        }
    }

    /// Sums up what it is told.
    #[derive(Default)]
    struct Counts {
        retried: Mutex<Vec<(&'static str, usize)>>,
        waiting: Mutex<i64>,
    }

    impl RoundsObserver for Counts {
        fn request(&self, _: RequestKind, _: usize, _: usize, _: Duration, _: bool) {}
        fn retry(&self, label: &'static str, items: usize) {
            self.retried.lock().unwrap().push((label, items));
        }
        fn waiting(&self, delta: i64) {
            *self.waiting.lock().unwrap() += delta;
        }
    }

    struct Bench {
        elastic: Arc<Scripted>,
        counts: Arc<Counts>,
        rounds: Rounds,
    }

    /// Four operations a request, one permit, 100 ms a call, delays up to a second.
    fn bench(script: impl Fn(usize, &[String]) -> Reply + Send + Sync + 'static) -> Bench {
        let start = tokio::time::Instant::now();
        let elastic = Arc::new(Scripted {
            script: Box::new(script),
            latency: Duration::from_millis(100),
            start,
            calls: Mutex::default(),
        });
        let counts = Arc::new(Counts::default());
        let rounds = Rounds {
            elastic: elastic.clone(),
            permits: Arc::new(Semaphore::new(1)),
            limits: Limits {
                max_operations: 4,
                max_bytes: 1 << 20,
                request_timeout: Duration::from_secs(10),
            },
            retry: RetryPolicy { initial: Duration::from_millis(100), max: Duration::from_secs(1) },
            clock: Arc::new(TestClock(start)),
            observer: counts.clone(),
        };
        Bench { elastic, counts, rounds }
    }

    fn lease(secs: u64) -> Lease {
        Lease { deadline: Instant::from_start(Duration::from_secs(secs)), cancel: CancellationToken::new() }
    }

    /// One operation for each letter.
    fn ops(ids: &str) -> Vec<BulkOp> {
        let op = |id: char| BulkOp::Index {
            index: Index::Placements,
            id: DocId::from_key(Some(id.to_string().as_bytes())).unwrap(),
            guard: Guard::Absent,
            source: Bytes::from_static(b"{}"),
        };
        ids.chars().map(op).collect()
    }

    fn gets(ids: &str) -> Vec<Get> {
        let id = |id: char| DocId::from_key(Some(id.to_string().as_bytes())).unwrap();
        ids.chars().map(|letter| Get { index: Index::Placements, id: id(letter) }).collect()
    }

    fn item(status: u16) -> BulkAnswer {
        let error = ItemError { status, kind: format!("type_{status}"), reason: String::new() };
        BulkAnswer { status, stamp: None, error: (status >= 400).then(|| Box::new(error)) }
    }

    fn all(ids: &[String], status: u16) -> Reply {
        Ok(ids.iter().map(|_| item(status)).collect())
    }

    fn status(status: u16, retry_after: Option<u64>) -> Reply {
        let retry_after = retry_after.map(Duration::from_secs);
        Err(CallError::Status { status, kind: String::new(), reason: String::new(), retry_after })
    }

    const DONE: BulkOutcome = BulkOutcome::Done { stamp: None };

    #[tokio::test(start_paused = true)]
    async fn only_failed_items_are_sent_again_and_outcomes_keep_their_order() {
        let bench = bench(|call, ids| match call {
            0 => Ok(vec![item(201), item(429), item(409), item(503)]),
            1 => Ok(vec![item(201), item(429)]),
            _ => all(ids, 200),
        });
        let outcomes = bench.rounds.bulk(ops("abcd"), &lease(60)).await.unwrap();
        assert_eq!(outcomes, [DONE, DONE, BulkOutcome::Conflict, DONE]);
        assert_eq!(bench.elastic.calls(), ["abcd", "bd", "d"]);
        assert_eq!(*bench.counts.retried.lock().unwrap(), [("429", 1), ("503", 1), ("429", 1)]);
        assert_eq!(*bench.counts.waiting.lock().unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_is_cut_by_count_and_by_bytes_and_goes_out_side_by_side() {
        let mut bench = bench(|_, ids| all(ids, 200));
        bench.rounds.permits = Arc::new(Semaphore::new(3));
        assert_eq!(bench.rounds.bulk(ops("abcdefghi"), &lease(60)).await.unwrap(), vec![DONE; 9]);
        assert_eq!(bench.elastic.calls(), ["abcd", "efgh", "i"]);
        assert_eq!(bench.elastic.times(), [Duration::ZERO; 3]);

        bench.rounds.limits.max_bytes = 2 * encode::bulk_op_bytes(&ops("a")[0]);
        bench.rounds.bulk(ops("abc"), &lease(60)).await.unwrap();
        bench.rounds.limits.max_bytes = 1;
        bench.rounds.bulk(ops("xy"), &lease(60)).await.unwrap();
        assert_eq!(bench.elastic.calls()[3..], ["ab", "c", "x", "y"]);
        assert!(bench.rounds.bulk(Vec::new(), &lease(60)).await.unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_too_large_is_halved_down_to_the_one_that_is_refused() {
        let bench = bench(|_, ids| match ids {
            ids if ids.iter().any(|id| id == "c") => status(413, None),
            ids => all(ids, 200),
        });
        let outcomes = bench.rounds.bulk(ops("abcd"), &lease(60)).await.unwrap();
        assert!(
            matches!(&outcomes[..], [DONE, DONE, BulkOutcome::Refused(error), DONE] if error.status == 413)
        );
        assert_eq!(bench.elastic.calls(), ["abcd", "ab", "cd", "c", "d"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_too_large_is_asked_for_in_halves_and_refuses_nothing() {
        let large = || Err(CallError::TooLarge { bytes: 2, most: 1 });
        let bench = bench(move |call, ids| if call < 2 { large() } else { all(ids, 200) });
        assert_eq!(bench.rounds.bulk(ops("ab"), &lease(60)).await.unwrap(), [DONE, DONE]);
        assert_eq!(bench.elastic.calls(), ["ab", "a", "a", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_get_is_never_refused_but_asked_again() {
        let bench = bench(|call, ids| if call == 0 { status(413, None) } else { all(ids, 200) });
        assert_eq!(bench.rounds.mget(gets("a"), &lease(60)).await.unwrap(), [GetOutcome::Missing]);
        assert_eq!(bench.elastic.calls(), ["a", "a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_failed_is_looked_up_again_alone() {
        let bench = bench(|call, ids| if call == 0 { Ok(vec![item(200), item(404)]) } else { all(ids, 200) });
        assert_eq!(bench.rounds.mget(gets("ab"), &lease(60)).await.unwrap(), vec![GetOutcome::Missing; 2]);
        assert_eq!(bench.elastic.calls(), ["ab", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_permit_is_kept_between_attempts_so_that_no_other_request_overtakes() {
        let bench = bench(|call, ids| if call < 3 { status(503, None) } else { all(ids, 200) });
        let (first, second) = (lease(60), lease(60));
        let (a, b) = tokio::join!(bench.rounds.bulk(ops("a"), &first), bench.rounds.bulk(ops("b"), &second));
        assert_eq!((a.unwrap(), b.unwrap()), (vec![DONE], vec![DONE]));
        assert_eq!(bench.elastic.calls(), ["a", "a", "a", "a", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn past_the_deadline_nothing_is_sent_and_items_stay_unanswered() {
        let bench =
            bench(|_, ids| Ok(ids.iter().map(|id| item(if id == "a" { 200 } else { 429 })).collect()));
        let outcomes = bench.rounds.bulk(ops("abcde"), &lease(5)).await.unwrap();
        assert_eq!(outcomes[0], DONE);
        assert_eq!(outcomes[1..], vec![BulkOutcome::Unanswered; 4]);
        let sent = bench.elastic.calls().len();
        assert!(bench.elastic.times().iter().all(|&at| at < Duration::from_secs(5)));
        // The other request never got the permit, and an ended lease sends nothing at all.
        assert!(!bench.elastic.calls().contains(&"e".to_owned()));
        assert_eq!(bench.rounds.bulk(ops("z"), &lease(5)).await.unwrap(), [BulkOutcome::Unanswered]);
        assert_eq!(bench.elastic.calls().len(), sent);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_no_longer_than_the_lease_has_left() {
        let mut bench = bench(|_, ids| all(ids, 200));
        let slow = Arc::new(Scripted {
            script: Box::new(|_, ids| all(ids, 200)),
            latency: Duration::from_secs(100),
            start: bench.elastic.start,
            calls: Mutex::default(),
        });
        bench.rounds.elastic = slow.clone();
        assert_eq!(bench.rounds.bulk(ops("a"), &lease(3)).await.unwrap(), [BulkOutcome::Unanswered]);
        assert_eq!(bench.elastic.start.elapsed(), Duration::from_secs(3));
        assert_eq!(slow.calls(), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_lease_abandons_requests_and_ends_waits_at_once() {
        for cancel_at in [50, 150] {
            // In flight at 50 ms; waiting for the Retry-After at 150 ms. The second request waits for the permit.
            let bench = bench(|_, _| status(429, Some(30)));
            let lease = lease(60);
            let cancel = lease.cancel.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(cancel_at)).await;
                cancel.cancel();
            });
            let outcomes = bench.rounds.bulk(ops("abcde"), &lease).await.unwrap();
            assert_eq!(outcomes, vec![BulkOutcome::Unanswered; 5]);
            assert_eq!(bench.elastic.calls(), ["abcd"]);
            assert_eq!(bench.elastic.start.elapsed(), Duration::from_millis(cancel_at));
            assert_eq!(bench.rounds.permits.available_permits(), 1);
            assert_eq!(*bench.counts.waiting.lock().unwrap(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_credentials_halt_the_round() {
        let whole = bench(|_, _| status(401, None));
        assert!(matches!(whole.rounds.bulk(ops("ab"), &lease(60)).await, Err(Halt::Unauthorized(_))));
        let single = bench(|_, _| Ok(vec![item(201), item(403)]));
        assert!(matches!(single.rounds.bulk(ops("ab"), &lease(60)).await, Err(Halt::Unauthorized(_))));
        assert_eq!(single.elastic.calls(), ["ab"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_attempt_comes_no_sooner_than_the_server_asked_for() {
        let bench = bench(|call, ids| if call == 0 { status(429, Some(7)) } else { all(ids, 200) });
        assert_eq!(bench.rounds.bulk(ops("a"), &lease(60)).await.unwrap(), [DONE]);
        let times = bench.elastic.times();
        assert!(times[1] >= Duration::from_millis(7_100) && times[1] <= Duration::from_secs(8), "{times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_with_too_few_items_is_no_answer() {
        let bench = bench(|call, ids| if call == 0 { Ok(vec![item(200)]) } else { all(ids, 200) });
        assert_eq!(bench.rounds.bulk(ops("ab"), &lease(60)).await.unwrap(), [DONE, DONE]);
        assert_eq!(bench.elastic.calls(), ["ab", "ab"]);
        assert_eq!(*bench.counts.retried.lock().unwrap(), [("undecodable", 2)]);
    }
}
