//! Rounds against a server that answers by script, in virtual time: senders here, the queue in `queue.rs`, ceiling and concurrency
//! in `limits.rs`.

mod limits;
mod queue;

use std::sync::Mutex;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::*;
use crate::base::ids::{DocId, ShardId};
use crate::io::elastic::{AdminAnswer, AdminCall, BulkAnswer, GetAnswer, WriteCondition, encode};

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

    /// The same, with each response delayed by `seconds`.
    fn slow(&self, seconds: u64) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(|_, ids| all(ids, 200)),
            latency: Duration::from_secs(seconds),
            start: self.start,
            calls: Mutex::default(),
        })
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
    fn mget<'a>(&'a self, gets: &'a [Get], _: Duration) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
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

    fn bulk_refs<'a>(&'a self, ops: &'a [&'a BulkOp], timeout: Duration) -> BoxFuture<'a, Reply> {
        async move {
            let id = |op: &&BulkOp| op.id().to_string();
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

/// Counts observed events.
#[derive(Default)]
struct Counts {
    /// Of each request.
    bytes: Mutex<Vec<usize>>,
    /// Operations of each request, and how long it took.
    requests: Mutex<Vec<(usize, Duration)>>,
    /// The same of what each batch wrote or read.
    batches: Mutex<Vec<(usize, Duration)>>,
    retried: Mutex<Vec<(&'static str, usize)>>,
    waiting: Mutex<i64>,
    throttled: Mutex<Duration>,
}

impl RoundsObserver for Counts {
    fn request(&self, _: RequestKind, items: usize, bytes: usize, took: Duration, _: bool) {
        self.bytes.lock().unwrap().push(bytes);
        self.requests.lock().unwrap().push((items, took));
    }
    fn answered(&self, _: RequestKind, items: usize, _: usize, took: Duration, _: bool) {
        self.batches.lock().unwrap().push((items, took));
    }
    fn retry(&self, label: &'static str, items: usize) {
        self.retried.lock().unwrap().push((label, items));
    }
    fn waiting(&self, delta: i64) {
        *self.waiting.lock().unwrap() += delta;
    }
    fn throttled(&self, waited: Duration) {
        *self.throttled.lock().unwrap() += waited;
    }
}

struct Bench {
    elastic: Arc<Scripted>,
    counts: Arc<Counts>,
    rounds: RequestSender,
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
    let rounds = RequestSender {
        elastic: elastic.clone(),
        permits: Arc::new(Semaphore::new(1)),
        queue: None,
        server: Arc::default(),
        look: 0,
        limits: RequestLimits {
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

/// As [`bench`], with a queue and requests of forty operations at most.
fn bench_with_queue(script: impl Fn(usize, &[String]) -> Reply + Send + Sync + 'static) -> Bench {
    let mut bench = bench(script);
    bench.rounds.limits.max_operations = 40;
    bench.with_queue()
}

impl Bench {
    /// Puts a queue before the sender as it is now.
    fn with_queue(mut self) -> Self {
        self.rounds = self.rounds.with_queue();
        self
    }

    /// When each call came, in hundredths of a second: the runtime may wait a millisecond longer.
    fn hundredths(&self) -> Vec<u128> {
        self.elastic.times().iter().map(|time| time.as_millis() / 10).collect()
    }

    /// Writes these at that time.
    async fn bulk_at(&self, millis: u64, ids: &str, lease: &RequestDeadline) -> Vec<BulkOutcome> {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        self.rounds.bulk(ops(ids), lease).await.unwrap()
    }

    /// Writes `a`, and shortly afterwards, during its request, `b` and `c`, each by itself.
    async fn a_then_b_and_c(&self) -> (Vec<BulkOutcome>, Vec<BulkOutcome>, Vec<BulkOutcome>) {
        let lease = lease(60);
        tokio::join!(
            self.bulk_at(0, "a", &lease),
            self.bulk_at(10, "b", &lease),
            self.bulk_at(20, "c", &lease)
        )
    }
}

fn lease(secs: u64) -> RequestDeadline {
    RequestDeadline {
        deadline: Instant::from_start(Duration::from_secs(secs)),
        cancel: CancellationToken::new(),
    }
}

/// One operation for each letter; each digit is that of the geoshard which the letters behind it go to, instead of the
/// placements.
fn ops(text: &str) -> Vec<BulkOp> {
    let mut index = Index::Placements;
    let mut ops = Vec::new();
    for char in text.chars() {
        if char.is_ascii_digit() {
            index = Index::Geoshard(ShardId::new(&format!("s{char}")).unwrap());
            continue;
        }
        let id = DocId::from_key(Some(char.to_string().as_bytes())).unwrap();
        let (guard, source) = (WriteCondition::Absent, Bytes::from_static(b"{}"));
        ops.push(BulkOp::Index { index: index.clone(), id, guard, source });
    }
    ops
}

fn gets(ids: &str) -> Vec<Get> {
    let id = |id: char| DocId::from_key(Some(id.to_string().as_bytes())).unwrap();
    ids.chars().map(|letter| Get::realtime(Index::Placements, id(letter))).collect()
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
async fn only_failed_items_are_retried_and_order_is_kept() {
    let bench = bench(|call, ids| match call {
        0 => Ok(vec![item(201), item(429), item(409), item(503)]),
        1 => Ok(vec![item(201), item(429)]),
        _ => all(ids, 200),
    });
    let outcomes = bench.rounds.bulk(ops("abcd"), &lease(60)).await.unwrap();
    assert_eq!(outcomes, [DONE, DONE, BulkOutcome::Conflict, DONE]);
    assert_eq!(bench.elastic.calls(), ["abcd", "bd", "d"]);
    assert_eq!(*bench.counts.retried.lock().unwrap(), [("429", 1), ("503", 1), ("429", 1)]);
    let bytes = ["abcd", "bd", "d"].map(|ids| ops(ids).iter().map(encode::bulk_op_bytes).sum::<usize>());
    assert_eq!(*bench.counts.bytes.lock().unwrap(), bytes);
    assert_eq!(*bench.counts.waiting.lock().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn round_is_split_by_count_and_bytes_and_sent_concurrently() {
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
async fn oversized_request_is_halved_down_to_the_refused_item() {
    let bench = bench(|_, ids| match ids {
        ids if ids.iter().any(|id| id == "c") => status(413, None),
        ids => all(ids, 200),
    });
    let outcomes = bench.rounds.bulk(ops("abcd"), &lease(60)).await.unwrap();
    assert!(matches!(&outcomes[..], [DONE, DONE, BulkOutcome::Refused(error), DONE] if error.status == 413));
    assert_eq!(bench.elastic.calls(), ["abcd", "ab", "cd", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn oversized_response_is_split_and_refuses_nothing() {
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
async fn permit_is_kept_between_attempts() {
    let bench = bench(|call, ids| if call < 3 { status(503, None) } else { all(ids, 200) });
    let (first, second) = (lease(60), lease(60));
    let (a, b) = tokio::join!(bench.rounds.bulk(ops("a"), &first), bench.rounds.bulk(ops("b"), &second));
    assert_eq!((a.unwrap(), b.unwrap()), (vec![DONE], vec![DONE]));
    assert_eq!(bench.elastic.calls(), ["a", "a", "a", "a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn past_the_deadline_nothing_is_sent_and_items_stay_unanswered() {
    let bench = bench(|_, ids| Ok(ids.iter().map(|id| item(if id == "a" { 200 } else { 429 })).collect()));
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
    let slow = bench.elastic.slow(100);
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
async fn refused_credentials_halt_the_round_after_a_few_attempts() {
    let whole = bench(|_, _| status(401, None));
    let halted = whole.rounds.bulk(ops("ab"), &lease(60)).await;
    assert!(matches!(halted, Err(Halt::Unauthorized(_))), "{halted:?}");
    let seconds: Vec<u64> = whole.elastic.times().iter().map(Duration::as_secs).collect();
    assert_eq!(seconds, [0, 2, 6, 14, 30]);

    let single = bench(|call, ids| match call {
        0 => Ok(vec![item(201), item(403)]),
        _ => all(ids, 403),
    });
    assert!(matches!(single.rounds.bulk(ops("ab"), &lease(60)).await, Err(Halt::Unauthorized(_))));
    assert_eq!(single.elastic.calls(), ["ab", "b", "b", "b", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_shorter_does_not_hide_that_it_lasts() {
    let bench = bench(|_, _| status(401, None));
    let mut ended = Ok(Vec::new());
    for n in 1..=7 {
        ended = bench.rounds.bulk(ops("a"), &lease(5 * n)).await;
        if ended.is_err() {
            break;
        }
    }
    assert!(matches!(ended, Err(Halt::Unauthorized(_))), "{ended:?}");
    assert!(bench.elastic.start.elapsed() >= Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_single_refusal_of_credentials_is_tried_again_and_says_so() {
    for first in [401, 403] {
        for of_an_item in [true, false] {
            let told = Arc::new(Told::default());
            let mut bench = bench(move |call, ids| match call {
                0 if of_an_item => Ok(vec![item(201), item(first)]),
                0 => status(first, None),
                _ => all(ids, 200),
            });
            bench.rounds.server = Arc::new(ServerState::new(ServerLimits::default(), told.clone()));
            assert_eq!(bench.rounds.bulk(ops("ab"), &lease(60)).await.unwrap(), [DONE, DONE]);
            assert_eq!(bench.elastic.calls(), if of_an_item { ["ab", "b"] } else { ["ab", "ab"] });
            assert_eq!(*told.0.lock().unwrap(), ["credentials refused", "credentials taken"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn while_credentials_are_refused_one_request_at_a_time_tries() {
    let start = tokio::time::Instant::now();
    let bench = bench_with_queue(move |_, ids| {
        if start.elapsed() < Duration::from_secs(10) { status(401, None) } else { all(ids, 200) }
    });
    bench.rounds.permits.add_permits(3);
    let lease = lease(60);
    // The others come later, and reads hold every permit.
    let reads = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let reads = (0..4).map(|_| bench.rounds.mget(gets("r"), &lease));
        try_join_all(reads).await.unwrap()
    };
    let writes = ["b", "c", "d"].map(|ids| bench.bulk_at(1_000, ids, &lease));
    let (first, writes, _) =
        tokio::join!(bench.bulk_at(0, "a", &lease), futures::future::join_all(writes), reads);
    assert!(first == [DONE] && writes.iter().flatten().all(|outcome| *outcome == DONE));
    let times = bench.elastic.times();
    let early: Vec<u64> = times.iter().map(Duration::as_secs).filter(|seconds| *seconds < 14).collect();
    assert_eq!(early, [0, 2, 6], "{times:?}");
    assert_eq!(times.len(), 9, "a probe, four reads, and the other writes together");
}

/// Records changes of the server's state.
#[derive(Default)]
struct Told(Mutex<Vec<&'static str>>);

impl ServerObserver for Told {
    fn credentials_refused(&self, reason: Option<&str>) {
        let text = if reason.is_some() { "credentials refused" } else { "credentials taken" };
        self.0.lock().unwrap().push(text);
    }
    fn index_at_fault(&self, _: &Index, error: Option<&ItemError>) {
        self.0.lock().unwrap().push(if error.is_some() { "index refuses" } else { "index takes" });
    }
}

fn bench_that_believes_two_refusals(
    script: impl Fn(usize, &[String]) -> Reply + Send + Sync + 'static,
) -> (Bench, Arc<Told>) {
    let (mut bench, told) = (bench(script), Arc::new(Told::default()));
    let limits = ServerLimits { refusals: 3, ..ServerLimits::default() };
    bench.rounds.server = Arc::new(ServerState::new(limits, told.clone()));
    (bench, told)
}

#[tokio::test(start_paused = true)]
async fn index_refusing_every_document_is_retried() {
    let start = tokio::time::Instant::now();
    let (bench, told) = bench_that_believes_two_refusals(move |_, ids| {
        all(ids, if start.elapsed() < Duration::from_secs(20) { 400 } else { 200 })
    });
    let outcomes = bench.rounds.bulk(ops("abcd"), &lease(60)).await.unwrap();
    let refused = |outcome: &BulkOutcome| matches!(outcome, BulkOutcome::Refused(_));
    assert_eq!(outcomes.iter().filter(|outcome| refused(outcome)).count(), 2, "{outcomes:?}");
    assert_eq!(outcomes[2..], [DONE, DONE]);
    assert_eq!(*told.0.lock().unwrap(), ["index refuses", "index takes"]);
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_operation_that_are_refused_count_as_well() {
    let (bench, told) = bench_that_believes_two_refusals(|_, _| status(413, None));
    for id in ["a", "b"] {
        let outcome = bench.rounds.bulk(ops(id), &lease(60)).await.unwrap();
        assert!(matches!(outcome[..], [BulkOutcome::Refused(_)]), "{outcome:?}");
    }
    assert_eq!(bench.rounds.bulk(ops("c"), &lease(60)).await.unwrap(), [BulkOutcome::Unanswered]);
    assert_eq!(*told.0.lock().unwrap(), ["index refuses"]);
}

#[tokio::test(start_paused = true)]
async fn success_in_an_index_blames_refusals_on_documents() {
    let (bench, told) = bench_that_believes_two_refusals(|_, ids| {
        Ok(ids.iter().map(|id| item(if id == "d" { 200 } else { 400 })).collect())
    });
    let outcomes = bench.rounds.bulk(ops("abcd"), &lease(60)).await.unwrap();
    assert!(outcomes[..3].iter().all(|outcome| matches!(outcome, BulkOutcome::Refused(_))), "{outcomes:?}");
    assert!(told.0.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn retry_honours_retry_after() {
    let bench = bench(|call, ids| if call == 0 { status(429, Some(7)) } else { all(ids, 200) });
    assert_eq!(bench.rounds.bulk(ops("a"), &lease(60)).await.unwrap(), [DONE]);
    let times = bench.elastic.times();
    assert!(times[1] >= Duration::from_millis(7_100) && times[1] <= Duration::from_secs(8), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn response_with_too_few_items_is_an_error() {
    let bench = bench(|call, ids| if call == 0 { Ok(vec![item(200)]) } else { all(ids, 200) });
    assert_eq!(bench.rounds.bulk(ops("ab"), &lease(60)).await.unwrap(), [DONE, DONE]);
    assert_eq!(bench.elastic.calls(), ["ab", "ab"]);
    assert_eq!(*bench.counts.retried.lock().unwrap(), [("undecodable", 2)]);
}
