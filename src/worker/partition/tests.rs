//! The partition task against a search server in memory, on tokio's paused time where nothing depends on the real one.

mod refeed;
mod schemas;
mod tally;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use bytes::Bytes;
use futures::future::BoxFuture;
use rdkafka::message::{Header, OwnedHeaders};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::*;
use crate::config::{Format, KeyForm};
use crate::dead_letter::{Letter, Origin};
use crate::decode::OP_HEADER;
use crate::distribution::action::{Action, Failure};
use crate::distribution::last_runs::LastRuns;
use crate::distribution::{Job, Surroundings};
use crate::elastic::rounds;
use crate::geoshard::GeoshardMap;
use crate::ids::{DocId, ShardId};
use crate::maps::{Floor, MapsStore, Watcher};
use crate::mover::OnMissing;
use crate::tally::facets::FacetRules;
use crate::testing::{MemoryElastic, TokioClock, rules};
use crate::worker::budget::{Budget, Limits};

/// Bounds that no test meets by accident.
const WIDE: Limits = Limits { total: usize::MAX, per_partition: usize::MAX };

/// Keeps letters; acknowledges them only while it is open.
struct KeptLetters {
    letters: Mutex<Vec<Letter>>,
    open: watch::Sender<bool>,
}

impl LetterBox for KeptLetters {
    fn deliver(&self, letters: Vec<Letter>) -> BoxFuture<'_, ()> {
        async move {
            let mut open = self.open.subscribe();
            let _ = open.wait_for(|open| *open).await;
            self.letters.lock().unwrap().extend(letters);
        }
        .boxed()
    }
}

/// One partition task with everything around it.
struct Rig {
    elastic: Arc<MemoryElastic>,
    clock: Arc<TokioClock>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    letters: Arc<KeptLetters>,
    memory: Memory,
    budget: Arc<Budget>,
    meter: Arc<Meter>,
    published: Arc<Published>,
    records: mpsc::Sender<Record>,
    mode: watch::Sender<Mode>,
    cancel: CancellationToken,
    fatal: mpsc::UnboundedReceiver<Halt>,
    task: JoinHandle<()>,
    watermark: Option<i64>,
    /// For all requests to the server.
    permits: Arc<Semaphore>,
    /// For all batches.
    turns: Arc<Semaphore>,
    /// Where limits are published.
    limits: watch::Sender<limits::Limits>,
    /// Told when to look; see [`Rig::following`].
    watcher: Option<Watcher>,
}

fn batching() -> Batching {
    Batching {
        max_documents: 100,
        max_bytes: 1 << 20,
        linger: Duration::from_millis(200),
        max_dirty_age: Duration::from_secs(10),
        deadline: Duration::from_secs(60),
    }
}

/// Succeeds only while it is open, and remembers of which geoshards it did.
struct Endpoint {
    open: AtomicBool,
    told: Mutex<Vec<(ShardId, String)>>,
}

impl Endpoint {
    fn new(is_open: bool) -> Arc<Self> {
        Arc::new(Self { open: is_open.into(), told: Mutex::default() })
    }
}

impl Action for Endpoint {
    fn run<'a>(
        &'a self,
        shard: &'a ShardId,
        notice: &'a Bytes,
        _: Duration,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if !self.open.load(Ordering::SeqCst) {
                return Err(Failure { reason: "closed".to_owned(), for_good: false });
            }
            self.told.lock().unwrap().push((shard.clone(), String::from_utf8(notice.to_vec()).unwrap()));
            Ok(())
        }
        .boxed()
    }
}

/// A job with a gate, if there is an action for it.
fn distributor(
    letters: &Arc<KeptLetters>,
    clock: &Arc<TokioClock>,
    metrics: &Arc<Metrics>,
    action: Option<Arc<dyn Action>>,
) -> Option<Arc<Distributor>> {
    let job = Job {
        name: "notify".into(),
        gate: true,
        interval: Duration::from_millis(400),
        timeout: Duration::from_secs(10),
        give_up_after: None,
        action: action?,
        store_key: String::new(),
        metrics: metrics.distribution("notify"),
    };
    let around = Surroundings {
        topic: "topic".into(),
        last_runs: Arc::new(LastRuns::in_memory()),
        dead_letters: Some(letters.clone()),
        retry: RetryPolicy { initial: Duration::from_millis(100), max: Duration::from_secs(1) },
        clock: clock.clone(),
    };
    let distributor = Distributor::new(vec![job], around);
    tokio::spawn(distributor.clone().run(CancellationToken::new()));
    Some(distributor)
}

impl Rig {
    fn distributing(endpoint: &Arc<Endpoint>) -> Self {
        Self::build(batching(), true, false, None, Some(endpoint.clone()))
    }

    fn start() -> Self {
        Self::with(batching(), true)
    }

    fn with(batching: Batching, has_dead_letters: bool) -> Self {
        Self::build(batching, has_dead_letters, false, None, None)
    }

    /// Follows the record of the maps, as often as [`Rig::look`] is called.
    fn following() -> Self {
        Self::build(batching(), true, true, None, None)
    }

    fn build(
        batching: Batching,
        has_dead_letters: bool,
        follows: bool,
        counts: Option<(FacetRules, Arc<Counting>)>,
        action: Option<Arc<dyn Action>>,
    ) -> Self {
        Self::build_with(
            batching,
            has_dead_letters,
            follows,
            counts,
            action,
            (OnMissing::DeadLetter, None, None),
            None,
        )
    }

    fn build_with(
        batching: Batching,
        has_dead_letters: bool,
        follows: bool,
        counts: Option<(FacetRules, Arc<Counting>)>,
        action: Option<Arc<dyn Action>>,
        (on_missing, refeed, registry): (OnMissing, Option<Feeder>, Option<Registry>),
        elastic: Option<Arc<MemoryElastic>>,
    ) -> Self {
        let (tally, counting) = counts.unzip();
        let rules = Rules { tally, on_missing, ..rules() };
        let elastic = elastic.unwrap_or_else(|| MemoryElastic::for_map(&rules.map));
        elastic.set_faults(|faults| faults.delay = Duration::from_millis(10));
        let clock = Arc::new(TokioClock::new());
        let metrics = Metrics::new().unwrap();
        let health = Health::new(clock.clone(), metrics.clone(), Duration::from_secs(30));
        health.ready(Health::STARTUP);
        let retry = RetryPolicy { initial: Duration::from_millis(100), max: Duration::from_secs(1) };
        let permits = Arc::new(Semaphore::new(4));
        let turns = Arc::new(Semaphore::new(2));
        let rounds = Rounds {
            elastic: elastic.clone(),
            permits: permits.clone(),
            company: None,
            limits: rounds::Limits {
                max_operations: 1000,
                max_bytes: 1 << 20,
                request_timeout: Duration::from_secs(20),
            },
            retry,
            clock: clock.clone(),
            observer: metrics.clone(),
        };
        let memory = Memory::new(rounds.clone(), "topic");
        let letters = Arc::new(KeptLetters { letters: Mutex::default(), open: watch::Sender::new(true) });
        let epoch = Epoch::new(1).unwrap();
        let format = if registry.is_some() { Format::Registry } else { Format::Json };
        let (watcher, maps) = if follows {
            let configured = MapsRecord::unwritten(rules.map.clone(), epoch);
            let (watcher, maps) = Watcher::new(
                elastic.clone(),
                "topic",
                configured,
                batching.deadline,
                clock.clone(),
                metrics.clone(),
            );
            (Some(watcher), maps)
        } else {
            (None, MapsReader::fixed(rules.map.clone(), clock.clone()))
        };
        let (limits, followed) = watch::channel(limits::Limits {
            batching,
            requests: rounds.limits,
            max_in_flight: 4,
            memory: Limits { total: usize::MAX, per_partition: usize::MAX },
        });
        let (fatal_sender, fatal) = mpsc::unbounded_channel();
        let bench = Bench {
            topic: "topic".into(),
            partitions: i32::MAX,
            epoch,
            batching,
            limits: followed,
            decoder: Decoder::new(rules.location.clone(), epoch, 1 << 20).in_forms(format, KeyForm::Text),
            registry,
            maps,
            owner: "test".into(),
            rules,
            rounds,
            turns: turns.clone(),
            memory: memory.clone(),
            refeed,
            distributor: distributor(&letters, &clock, &metrics, action),
            dead_letters: has_dead_letters.then(|| letters.clone() as Arc<dyn LetterBox>),
            counting,
            retry,
            traces: Traces::default(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            health: health.clone(),
            fatal: fatal_sender,
        };
        let (records, records_receiver) = mpsc::channel(4096);
        let (mode, mode_receiver) = watch::channel(Mode::Run);
        let budget = Budget::new();
        let meter = Arc::new(Meter::new(budget.clone()));
        let published = Published::new();
        let cancel = CancellationToken::new();
        let partition = Partition {
            number: 0,
            bench: Arc::new(bench),
            records: records_receiver,
            mode: mode_receiver,
            cancel: cancel.clone(),
            meter: meter.clone(),
            published: published.clone(),
            cached_placements: NonZeroUsize::new(1000).unwrap(),
            metrics: metrics.partition(0),
        };
        let task = tokio::spawn(partition.run());
        Self {
            elastic,
            clock,
            metrics,
            health,
            letters,
            memory,
            budget,
            meter,
            published,
            records,
            mode,
            cancel,
            fatal,
            task,
            watermark: None,
            permits,
            turns,
            limits,
            watcher,
        }
    }

    /// The watcher reads the record.
    async fn look(&self) {
        self.watcher.as_ref().unwrap().look().await;
    }

    /// Changes the record of the maps; the task does not know it before [`Rig::look`].
    async fn set_maps(&self, record: &MapsRecord) {
        let store = MapsStore::new(&*self.elastic, "topic", Duration::from_secs(10));
        let over = store.read().await.unwrap().map(|stored| stored.stamp);
        store.write(record, over).await.unwrap();
    }

    /// The generation that partition 0's owner has confirmed.
    async fn confirmed(&self) -> Option<u64> {
        let store = MapsStore::new(&*self.elastic, "topic", Duration::from_secs(10));
        store.confirmations(1).await.unwrap().pop().flatten().map(|confirmation| confirmation.generation)
    }

    fn send(&self, offset: i64, id: &str, value: Option<&str>, op: Option<&str>) {
        let headers = op.map(|op| OwnedHeaders::new().insert(Header { key: OP_HEADER, value: Some(op) }));
        let copy = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let record = Record { offset, key: Some(copy(id)), value: value.map(copy), headers };
        self.meter.enqueued(record.bytes());
        assert!(self.records.try_send(record).is_ok());
    }

    /// A document at 1° north, and as far east as `lon`; `n` tells it from others.
    fn index(&self, offset: i64, id: &str, lon: i32, n: i64) {
        self.send(offset, id, Some(&document(lon, n)), None);
    }

    fn bad(&self, offset: i64, id: &str) {
        self.send(offset, id, Some("{"), None);
    }

    /// What must hold at every step.
    fn check(&mut self) {
        let watermark = self.published.watermark();
        assert!(watermark >= self.watermark, "the watermark went back");
        self.watermark = watermark;
        let counts = self.counts();
        assert_eq!(counts["in"], counts["done"] + counts["in_flight"], "{counts:?}");
        assert_eq!(self.budget.held(), self.meter.held());
    }

    /// Sums of the record metrics, and each outcome.
    fn counts(&self) -> BTreeMap<String, i64> {
        let mut counts: BTreeMap<String, i64> =
            ["in", "done", "in_flight"].map(|key| (key.to_owned(), 0)).into();
        for line in self.metrics.render().unwrap().lines() {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let mut count =
                |key: &str| *counts.entry(key.to_owned()).or_default() += value.parse::<i64>().unwrap();
            if series.starts_with("geofold_records_total{") {
                count("in");
            } else if series.starts_with("geofold_records_in_flight{") {
                count("in_flight");
            } else if series.starts_with("geofold_records_done_total{") {
                count("done");
                count(series.split("outcome=\"").nth(1).unwrap().split('"').next().unwrap());
            }
        }
        counts
    }

    /// Lets time pass until `wanted`, checking all along.
    async fn until(&mut self, what: &str, wanted: impl Fn(&Self) -> bool) {
        let limit = TokioInstant::now() + Duration::from_secs(300);
        while !wanted(self) {
            assert!(TokioInstant::now() < limit, "never came: {what}; {:?}", self.counts());
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.check();
        }
    }

    async fn until_watermark(&mut self, offset: i64) {
        self.until(&format!("watermark {offset}"), |rig| rig.published.watermark() == Some(offset)).await;
    }

    async fn pass(&mut self, time: Duration) {
        let end = TokioInstant::now() + time;
        while TokioInstant::now() < end {
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.check();
        }
    }

    async fn until_ended(&mut self) {
        self.until("the task's end", |rig| rig.task.is_finished()).await;
        assert!(self.published.drained());
    }

    fn letters(&self) -> Vec<(i64, i64, &'static str, &'static str)> {
        let letters = self.letters.letters.lock().unwrap();
        let origin = |letter: &Letter| {
            let Origin { first_offset, last_offset, .. } = letter.origin;
            (first_offset, last_offset, letter.stage, letter.reason)
        };
        let mut letters: Vec<_> = letters.iter().map(origin).collect();
        letters.sort_unstable();
        letters
    }
}

fn document(lon: i32, n: i64) -> String {
    format!(r#"{{"location":[{lon},1],"n":{n}}}"#)
}

fn shards(copies: &[(ShardId, String)]) -> Vec<&str> {
    copies.iter().map(|(shard, _)| shard.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn records_become_documents_in_their_geoshards_and_the_watermark_follows() {
    let mut rig = Rig::start();
    rig.index(7, "a", 1, 1);
    rig.index(8, "b", 91, 1);
    rig.index(9, "a", 92, 2);
    rig.until_watermark(10).await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
    assert_eq!(rig.elastic.document("a"), Some(document(92, 2)));
    rig.index(12, "a", 2, 3);
    rig.send(13, "b", None, None);
    rig.until_watermark(14).await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f0"]);
    assert_eq!(rig.elastic.document("a"), Some(document(2, 3)));
    assert_eq!(rig.elastic.document("b"), None);
    let counts = rig.counts();
    assert_eq!((counts["in"], counts["indexed"], counts["folded"], counts["deleted"]), (5, 3, 1, 1));
    assert_eq!(rig.meter.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_document_leaves_at_the_next_of_the_moments_that_all_partitions_have() {
    let began = TokioInstant::now();
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 0);
    rig.until_watermark(1).await;
    for (offset, (comes_at, leaves_at)) in (1..).zip([(250, 400), (410, 600), (790, 800), (801, 1_000)]) {
        sleep_until(began + Duration::from_millis(comes_at)).await;
        let calls = rig.elastic.calls();
        rig.index(offset, "a", 1, offset);
        sleep_until(began + Duration::from_millis(leaves_at - 2)).await;
        assert_eq!(rig.elastic.calls(), calls, "too early");
        rig.until_watermark(offset + 1).await;
        let left_at = began.elapsed();
        assert!(left_at < Duration::from_millis(leaves_at + 50), "{left_at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_does_not_wait() {
    let linger = Duration::from_secs(3600);
    let mut rig = Rig::with(Batching { max_documents: 3, linger, ..batching() }, true);
    for offset in 0..7 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
    }
    rig.until_watermark(6).await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.published.watermark(), Some(6), "the seventh waits for company");

    let mut rig = Rig::with(Batching { max_bytes: 2000, linger, ..batching() }, true);
    for offset in 0..7 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
    }
    rig.until("a batch by bytes", |rig| rig.published.watermark() > Some(0)).await;
}

#[tokio::test(start_paused = true)]
async fn limits_are_followed_without_a_record_that_would_wake_the_task() {
    let linger = Duration::from_secs(3600);
    let mut rig = Rig::with(Batching { linger, ..batching() }, true);
    for offset in 0..5 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
    }
    rig.pass(Duration::from_secs(60)).await;
    assert!(rig.elastic.ids().is_empty(), "they wait for company");
    rig.limits.send_modify(|limits| limits.batching.max_documents = 2);
    rig.until_watermark(4).await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.published.watermark(), Some(4), "the fifth waits for one more");
    rig.limits.send_modify(|limits| limits.batching.linger = Duration::from_millis(1));
    rig.until_watermark(5).await;
}

#[tokio::test(start_paused = true)]
async fn limits_are_followed_between_two_batches_and_not_in_the_middle_of_one() {
    let mut rig = Rig::with(Batching { max_documents: 3, ..batching() }, true);
    let three = |rig: &Rig, from: i64| {
        for offset in from..from + 3 {
            rig.index(offset, &format!("d{offset}"), 1, 1);
        }
    };
    // The first reads what is remembered of the partition, too.
    three(&rig, 0);
    rig.until_watermark(3).await;
    let begun = rig.elastic.calls();
    three(&rig, 3);
    rig.until_watermark(6).await;
    let of_a_batch = rig.elastic.calls() - begun;
    let begun = rig.elastic.calls();
    three(&rig, 6);
    rig.until("its first call", |rig| rig.elastic.calls() > begun).await;
    rig.limits.send_modify(|limits| limits.requests.max_operations = 1);
    rig.until_watermark(9).await;
    assert_eq!(rig.elastic.calls(), begun + of_a_batch, "it ends as it began");
    three(&rig, 9);
    rig.until_watermark(12).await;
    assert_eq!(rig.elastic.calls(), begun + 4 * of_a_batch, "one operation in each request");
}

#[tokio::test(start_paused = true)]
async fn leftovers_are_cleared_even_if_nothing_comes_that_the_clears_could_ride_on() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    let calls = rig.elastic.calls();
    rig.index(1, "a", 91, 2);
    rig.until_watermark(2).await;
    // Write-ahead, write, delete; and then the clear.
    rig.until("the clear", |rig| rig.elastic.calls() == calls + 4).await;
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(rig.elastic.calls(), calls + 4, "and once only");
}

#[tokio::test(start_paused = true)]
async fn a_revoked_partition_finishes_its_batch_and_starts_none() {
    let mut rig = Rig::with(Batching { max_documents: 2, ..batching() }, true);
    for offset in 0..5 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
    }
    rig.until("the batch has begun", |rig| rig.elastic.calls() >= 2).await;
    rig.mode.send(Mode::FinishBatch).unwrap();
    rig.until_ended().await;
    assert_eq!(rig.published.watermark(), Some(2));
    assert_eq!(rig.elastic.ids().len(), 2);
    assert_eq!(rig.counts()["in_flight"], 3);
    rig.metrics.drop_partition(0);
    assert_eq!(rig.counts()["handed_over"], 3);
    drop(rig.meter);
    drop(rig.records);
    assert_eq!(rig.budget.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_worker_writes_all_that_is_dirty() {
    let linger = Duration::from_secs(3600);
    let mut rig = Rig::with(Batching { max_documents: 3, linger, ..batching() }, true);
    for offset in 0..8 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
    }
    rig.until("all were read", |rig| rig.counts()["in"] == 8).await;
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
    assert_eq!(rig.published.watermark(), Some(8));
    assert_eq!(rig.elastic.ids().len(), 8);
}

#[tokio::test(start_paused = true)]
async fn an_idle_partition_ends_at_once_and_never_asked_elasticsearch() {
    for mode in [Mode::Drain, Mode::FinishBatch] {
        let mut rig = Rig::start();
        rig.pass(Duration::from_secs(1)).await;
        rig.mode.send(mode).unwrap();
        rig.until_ended().await;
        assert_eq!((rig.elastic.calls(), rig.published.watermark()), (0, None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_waits_for_its_first_look_at_the_meta_index_lets_go_at_once() {
    for mode in [Mode::Drain, Mode::FinishBatch] {
        let mut rig = Rig::start();
        rig.elastic.set_faults(|faults| faults.down = true);
        rig.index(0, "a", 1, 1);
        rig.pass(Duration::from_secs(1)).await;
        let told_at = TokioInstant::now();
        rig.mode.send(mode).unwrap();
        rig.until_ended().await;
        assert!(told_at.elapsed() < Duration::from_millis(50), "{:?}", told_at.elapsed());
        assert_eq!(rig.published.watermark(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_partition_sends_nothing_more() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.delay = Duration::from_secs(5));
    let calls = rig.elastic.calls();
    rig.index(1, "b", 1, 1);
    rig.until("a request is under way", |rig| rig.elastic.calls() > calls).await;
    rig.cancel.cancel();
    rig.until_ended().await;
    let calls = rig.elastic.calls();
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!((rig.elastic.calls(), rig.elastic.document("b")), (calls, None));
    assert_eq!(rig.published.watermark(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn bad_records_go_to_the_dead_letters_and_hold_the_watermark_until_they_are_there() {
    let mut rig = Rig::start();
    rig.letters.open.send_replace(false);
    rig.index(0, "a", 1, 1);
    rig.bad(1, "b");
    rig.index(2, "c", 1, 1);
    rig.send(3, "", Some("{}"), None);
    rig.until_watermark(1).await;
    rig.pass(Duration::from_secs(100)).await;
    assert_eq!(rig.published.watermark(), Some(1));
    assert_eq!(rig.elastic.ids().len(), 2);
    rig.letters.open.send_replace(true);
    rig.until_watermark(4).await;
    let letters = [(1, 1, "decode", "unparsable_json"), (3, 3, "decode", "bad_key")];
    assert_eq!(rig.letters(), letters);
    assert_eq!((rig.counts()["dead_lettered"], rig.counts()["in_flight"]), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn letters_under_way_count_as_held_bytes() {
    let mut rig = Rig::start();
    rig.letters.open.send_replace(false);
    rig.bad(0, "a");
    rig.until("it was read", |rig| rig.counts()["in"] == 1).await;
    let one = rig.meter.held();
    assert!(one > 0);
    for offset in 1..100 {
        rig.bad(offset, "a");
    }
    rig.until("all were read", |rig| rig.counts()["in"] == 100).await;
    assert_eq!(rig.meter.held(), 100 * one);
    assert!(!rig.meter.may_read(Limits { total: 50 * one, per_partition: usize::MAX }, false));
    rig.letters.open.send_replace(true);
    rig.until_watermark(100).await;
    assert_eq!(rig.meter.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn at_the_bound_of_memory_nobody_waits_for_records_that_do_not_come() {
    const LINGER: Duration = Duration::from_secs(3600);
    let mut rig = Rig::with(Batching { linger: LINGER, max_dirty_age: 2 * LINGER, ..batching() }, true);
    for offset in [0, 1] {
        rig.index(offset, "a", 1, offset);
        rig.until("it was read", |rig| rig.counts()["in"] == offset + 1).await;
        tokio::time::sleep(LINGER / 10).await;
        assert_eq!(rig.published.watermark().unwrap_or(0), offset, "it waits for others");
        rig.meter.set_at_bound(Some(rig.meter.held() + 1));
        tokio::time::sleep(LINGER / 10).await;
        assert_eq!(rig.published.watermark().unwrap_or(0), offset, "others have more");
        let told = TokioInstant::now();
        rig.meter.set_at_bound(Some(rig.meter.held()));
        rig.until_watermark(offset + 1).await;
        // Long before it looks after its gauges.
        assert!(told.elapsed() < Duration::from_millis(50), "{:?}", told.elapsed());
        rig.meter.set_at_bound(None);
    }
}

#[tokio::test(start_paused = true)]
async fn refused_and_spoiled_documents_become_letters_that_say_which_step_refused_them() {
    let mut rig = Rig::start();
    rig.elastic.set_faults(|faults| faults.refused_ids = ["bad".to_owned()].into());
    rig.index(0, "bad", 1, 1);
    rig.index(1, "bad", 1, 2);
    rig.index(2, "a", 1, 1);
    rig.send(3, "a", Some(r#"{"location":{"lat":null}}"#), Some("patch"));
    rig.send(4, "ghost", Some(r#"{"n":5}"#), Some("patch"));
    rig.until_watermark(5).await;
    assert_eq!(
        rig.letters(),
        [
            (0, 1, "write", "refused_by_elasticsearch"),
            (3, 3, "fold", "bad_location"),
            (4, 4, "write", "missing_document"),
        ]
    );
    assert_eq!(rig.elastic.document("a"), Some(document(1, 1)));
    assert_eq!(rig.counts()["dead_lettered"] + rig.counts()["folded"], 4);
}

#[tokio::test(start_paused = true)]
async fn without_a_dead_letter_topic_a_bad_record_stops_the_partition_but_not_what_came_before() {
    let mut rig = Rig::with(batching(), false);
    rig.index(0, "a", 1, 1);
    rig.bad(1, "b");
    rig.index(2, "c", 1, 1);
    rig.until_watermark(1).await;
    rig.pass(Duration::from_secs(100)).await;
    assert_eq!((rig.published.watermark(), rig.elastic.document("c")), (Some(1), None));
    assert!(rig.health.missing()[&stopped_part(0)].contains("no dead-letter topic"));
    assert_eq!(rig.meter.held(), 0, "what it will not read takes no memory from others");
    assert!(rig.records.is_closed(), "so that the poll thread pauses it");
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_partition_drains_what_came_before() {
    let linger = Duration::from_secs(3600);
    let mut rig = Rig::with(Batching { linger, ..batching() }, false);
    rig.index(0, "a", 1, 1);
    rig.bad(1, "b");
    rig.until("it was read", |rig| rig.counts()["in"] == 2).await;
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
    assert_eq!((rig.published.watermark(), rig.elastic.ids().len()), (Some(1), 1));
}

#[tokio::test(start_paused = true)]
async fn a_rewound_partition_is_refused() {
    let mut rig = Rig::start();
    let far = rig.clock.now() + Duration::from_secs(60);
    let lease = Lease { deadline: far, cancel: CancellationToken::new() };
    rig.memory.remember_watermarks(Epoch::new(1).unwrap(), &[(0, 100)], &lease).await.unwrap();
    rig.index(99, "a", 1, 1);
    rig.index(100, "a", 1, 2);
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!((rig.published.watermark(), rig.elastic.ids().len()), (None, 0));
    assert!(rig.health.missing()[&stopped_part(0)].contains("rewound"));
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
}

#[tokio::test(start_paused = true)]
async fn offsets_that_go_back_stop_the_partition_before_the_watermark_does() {
    let mut rig = Rig::start();
    rig.index(100, "a", 1, 1);
    rig.until_watermark(101).await;
    rig.index(101, "b", 1, 1);
    rig.index(40, "c", 1, 2);
    rig.until_watermark(102).await;
    rig.pass(Duration::from_secs(60)).await;
    assert!(rig.health.missing()[&stopped_part(0)].contains("raise positions.epoch above 1"));
    assert_eq!((rig.published.watermark(), rig.elastic.document("c")), (Some(102), None));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_the_client_hands_over_twice_in_a_row_is_taken_once() {
    let mut rig = Rig::start();
    rig.index(100, "a", 1, 1);
    rig.index(101, "b", 1, 1);
    rig.index(101, "b", 1, 1);
    rig.bad(102, "c");
    rig.bad(102, "c");
    rig.index(103, "d", 1, 1);
    rig.until_watermark(104).await;
    assert_eq!(rig.health.missing().get(&stopped_part(0)), None);
    assert_eq!((rig.counts()["in"], rig.letters.letters.lock().unwrap().len(), rig.meter.held()), (4, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn another_record_at_the_offset_of_the_last_one_stops_the_partition() {
    let mut rig = Rig::start();
    rig.index(100, "a", 1, 1);
    rig.index(100, "a", 1, 2);
    rig.until("it says so", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    assert!(rig.health.missing()[&stopped_part(0)].contains("raise positions.epoch above 1"));
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_halt_the_worker() {
    for first_too in [true, false] {
        let mut rig = Rig::start();
        rig.index(0, "a", 1, 1);
        if !first_too {
            rig.until_watermark(1).await;
        }
        rig.elastic.set_faults(|faults| faults.unauthorized = true);
        rig.index(1, "b", 1, 1);
        rig.index(2, "c", 1, 1);
        let watermark = rig.published.watermark();
        assert!(matches!(rig.fatal.recv().await, Some(Halt::Unauthorized(_))));
        let calls = rig.elastic.calls();
        rig.pass(Duration::from_secs(60)).await;
        assert_eq!((rig.elastic.calls(), rig.published.watermark()), (calls, watermark));
        rig.mode.send(if first_too { Mode::Drain } else { Mode::FinishBatch }).unwrap();
        rig.until_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_minute_without_elasticsearch_loses_nothing_and_stops_reading() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.down = true);
    for offset in 1..50 {
        rig.index(offset, &format!("d{}", offset % 7), i32::try_from(offset).unwrap(), offset);
    }
    rig.pass(Duration::from_secs(9)).await;
    assert!(rig.meter.may_read(WIDE, false));
    rig.pass(Duration::from_secs(51)).await;
    assert_eq!(rig.published.watermark(), Some(1));
    assert!(!rig.meter.may_read(WIDE, false), "the oldest is dirty for too long");
    rig.elastic.set_faults(|faults| faults.down = false);
    rig.until_watermark(50).await;
    rig.until("it may read on", |rig| rig.meter.may_read(WIDE, true)).await;
    for last in 43..50_i64 {
        let document = document(i32::try_from(last).unwrap(), last);
        assert_eq!(rig.elastic.document(&format!("d{}", last % 7)), Some(document));
    }
    assert_eq!(rig.meter.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn failing_calls_items_and_lost_replies_only_delay() {
    let mut rig = Rig::start();
    for round in 0..20_i64 {
        rig.elastic.set_faults(|faults| {
            faults.failing_calls = usize::from(round % 3 == 0);
            faults.pushed_back_items = usize::from(round % 2 == 0) * 3;
            faults.lost_replies = usize::from(round % 5 < 2);
        });
        for n in 0..10 {
            let lon = i32::try_from((round * 37 + n * 11) % 180).unwrap();
            rig.index(round * 10 + n, &format!("d{}", n % 4), lon, round);
        }
        rig.pass(Duration::from_millis(130)).await;
    }
    rig.until_watermark(200).await;
    for n in 6..10_i64 {
        let lon = i32::try_from((19 * 37 + n * 11) % 180).unwrap();
        assert_eq!(rig.elastic.document(&format!("d{}", n % 4)), Some(document(lon, 19)));
    }
    assert_eq!((rig.counts()["in_flight"], rig.meter.held()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_done_is_tried_again_with_pauses() {
    let mut rig = Rig::start();
    // Its placement was damaged by somebody: it comes back from every batch.
    damage_placement(&rig, "broken").await;
    rig.index(0, "broken", 1, 1);
    rig.pass(Duration::from_secs(5)).await;
    let (calls, asked) = (rig.elastic.calls(), rig.clock.asked());
    rig.pass(Duration::from_secs(100)).await;
    let (calls, asked) = (rig.elastic.calls() - calls, rig.clock.asked() - asked);
    assert!((50..2_000).contains(&calls), "{calls} requests in 100 s, pauses of up to 1 s");
    assert!(asked < 100_000, "{asked} looks at the clock in 100 s");
    assert_eq!(rig.published.watermark(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_never_gets_done_does_not_make_the_batches_of_others_small() {
    let mut rig = Rig::start();
    damage_placement(&rig, "broken").await;
    rig.index(0, "broken", 1, 1);
    rig.pass(Duration::from_secs(1)).await;
    let calls = rig.elastic.calls();
    for n in 1..400 {
        rig.index(n, &format!("d{n}"), 1, 1);
        rig.pass(Duration::from_millis(50)).await;
    }
    let seconds = 20;
    let batches_at_most = seconds * 5;
    let calls = rig.elastic.calls() - calls;
    assert!(calls < batches_at_most * 5, "{calls} requests in {seconds} s with a linger of 200 ms");
    assert!(rig.elastic.ids().len() > 380);
}

async fn damage_placement(rig: &Rig, id: &str) {
    use crate::elastic::{BulkOp, Elastic, Guard, Index};
    let id = DocId::from_key(Some(id.as_bytes())).unwrap();
    let source = Bytes::from_static(b"[]");
    let op = BulkOp::Index { index: Index::Placements, id, guard: Guard::Absent, source };
    rig.elastic.bulk(&[op], Duration::from_secs(1)).await.unwrap();
}

/// On real time: a loop that spins would keep paused time from going on.
#[tokio::test]
async fn waiting_for_letters_while_finishing_does_not_spin() {
    for mode in [Mode::FinishBatch, Mode::Drain] {
        let linger = Duration::from_millis(1);
        let mut rig = Rig::with(Batching { linger, max_documents: 1, ..batching() }, true);
        rig.letters.open.send_replace(false);
        rig.bad(0, "a");
        rig.until("the letter is under way", |rig| rig.counts()["in"] == 1).await;
        if mode == Mode::FinishBatch {
            rig.elastic.set_faults(|faults| faults.delay = Duration::from_millis(200));
            rig.index(1, "b", 1, 1);
            rig.index(2, "c", 1, 1);
            rig.until("all were read", |rig| rig.counts()["in"] == 3).await;
        }
        rig.mode.send(mode).unwrap();
        rig.until("nothing but the letter is left", |rig| rig.counts()["in_flight"] <= 2).await;
        let asked = rig.clock.asked();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let asked = rig.clock.asked() - asked;
        assert!(asked < 200, "{asked} looks at the clock in 300 ms");
        assert!(!rig.task.is_finished(), "the letter may still arrive in time");
        rig.letters.open.send_replace(true);
        rig.until_ended().await;
        assert_eq!(rig.published.watermark(), Some(if mode == Mode::FinishBatch { 2 } else { 1 }));
    }
}

/// On real time, as above.
#[tokio::test]
async fn a_halted_partition_does_not_spin() {
    let mut rig = Rig::with(Batching { linger: Duration::from_millis(1), ..batching() }, true);
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.unauthorized = true);
    rig.index(1, "b", 1, 1);
    rig.until("the batch is under way", |rig| rig.counts()["in"] == 2).await;
    rig.index(2, "c", 1, 1);
    assert!(rig.fatal.recv().await.is_some());
    let asked = rig.clock.asked();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let asked = rig.clock.asked() - asked;
    assert!(asked < 200, "{asked} looks at the clock in 300 ms");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_stops_its_partition_for_all_to_see() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.panics = true);
    rig.index(1, "b", 1, 1);
    rig.until_ended().await;
    assert!(rig.health.missing()[&stopped_part(0)].contains("defect"));
    assert!(rig.records.is_closed());
    assert_eq!((rig.published.watermark(), rig.meter.held()), (Some(1), 0));
}

#[tokio::test(start_paused = true)]
async fn gauges_keep_up_while_records_never_pause() {
    let (max_bytes, linger) = (1 << 24, Duration::from_secs(30));
    let mut rig = Rig::with(Batching { max_documents: 10_000, max_bytes, linger, ..batching() }, true);
    for offset in 0..4000 {
        rig.index(offset, &format!("d{offset}"), 1, 1);
        if offset % 10 == 0 {
            rig.pass(Duration::from_millis(50)).await;
        }
    }
    let text = rig.metrics.render().unwrap();
    let dirty =
        text.lines().find_map(|line| line.strip_prefix("geofold_dirty_ids{partition=\"0\"} ")).unwrap();
    assert!(dirty.parse::<i64>().unwrap() > 1000, "{dirty}");
}

/// Bulk operations on placements that writing `id` once more takes.
async fn placements_written(rig: &mut Rig, offset: i64, id: &str) -> usize {
    let before = rig.elastic.placement_writes();
    rig.index(offset, id, 10, offset);
    rig.until_watermark(offset + 1).await;
    rig.elastic.placement_writes() - before
}

#[tokio::test(start_paused = true)]
async fn after_a_gap_every_placement_is_written_until_no_zombie_can_act_any_more() {
    let mut rig = Rig::start();
    assert_eq!(placements_written(&mut rig, 0, "a").await, 1, "a new document");
    assert_eq!(placements_written(&mut rig, 1, "a").await, 0, "in place");
    // Compaction took 2 to 6.
    assert_eq!(placements_written(&mut rig, 7, "a").await, 1, "a zombie may act on what was taken");
    rig.pass(Duration::from_secs(61)).await;
    assert_eq!(placements_written(&mut rig, 8, "a").await, 0, "in place again");
}

#[tokio::test(start_paused = true)]
async fn what_was_cached_before_a_suspension_is_not_believed() {
    let mut rig = Rig::start();
    rig.index(0, "a", 10, 0);
    rig.until_watermark(1).await;
    let reads = rig.elastic.placement_reads();
    rig.clock.suspend(Duration::from_secs(3600));
    rig.index(1, "a", 10, 1);
    rig.until_watermark(2).await;
    assert_eq!(rig.elastic.placement_reads(), reads + 1, "read again");
}

#[tokio::test(start_paused = true)]
async fn what_was_cached_while_zombies_could_act_is_read_again_once_and_only_once() {
    let mut rig = Rig::start();
    rig.index(0, "a", 10, 0);
    rig.until_watermark(1).await;
    let mut reads = Vec::new();
    for (offset, later) in [(1, 30), (2, 31), (3, 61), (4, 1)] {
        rig.pass(Duration::from_secs(later)).await;
        let before = rig.elastic.placement_reads();
        rig.index(offset, "a", 10, offset);
        rig.until_watermark(offset + 1).await;
        reads.push(rig.elastic.placement_reads() - before);
    }
    assert_eq!(reads, [0, 1, 0, 0], "after a batch deadline it is read again");
}

#[tokio::test(start_paused = true)]
async fn a_drained_partition_leaves_no_placement_with_leftovers_that_are_gone() {
    let mut rig = Rig::start();
    rig.index(0, "a", 0, 0);
    rig.until_watermark(1).await;
    rig.index(1, "a", 90, 1);
    rig.until("the move is read", |rig| rig.counts()["in"] == 2).await;
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
    assert!(!rig.elastic.placement("a").contains("leftovers"), "{}", rig.elastic.placement("a"));
}

/// Two geoshards of the six faces: the half of the globe that has longitude 91° is `f1`, and longitude 1° is `f3`.
fn two_halves() -> Arc<GeoshardMap> {
    let shard = |id| ShardId::new(id).unwrap();
    let ranges = vec![(0, shard("f3")), (1 << 61 | 1, shard("f1")), (2 << 61 | 1, shard("f3"))];
    Arc::new(GeoshardMap::new(2, "halves", ranges).unwrap())
}

fn unwritten() -> MapsRecord {
    MapsRecord::unwritten(rules().map, Epoch::new(1).unwrap())
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_before_the_maps_are_known_nor_once_what_is_known_is_old() {
    let mut rig = Rig::following();
    rig.index(0, "a", 1, 1);
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(rig.elastic.ids().len(), 0, "nothing is known yet");
    assert_eq!(rig.counts()["in"], 0, "nor is it known where a record points to");
    rig.look().await;
    rig.until_watermark(1).await;
    rig.pass(Duration::from_secs(61)).await;
    rig.index(1, "a", 1, 2);
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(rig.published.watermark(), Some(1), "what is known is too old");
    rig.look().await;
    rig.until_watermark(2).await;
    assert_eq!(rig.confirmed().await, None, "without a record there is nothing to confirm");
}

#[tokio::test(start_paused = true)]
async fn an_owner_confirms_what_it_acts_by_before_it_sends_anything_and_when_it_has_nothing_to_do() {
    let mut rig = Rig::following();
    let announced = unwritten().begin(two_halves()).unwrap();
    rig.set_maps(&announced).await;
    rig.look().await;
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.confirmed().await, Some(1), "an idle partition");
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;

    let moving = announced.activate(Epoch::new(1).unwrap(), Floor::new()).unwrap();
    rig.set_maps(&moving).await;
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.confirmed().await, Some(1), "not before it is known");
    rig.elastic.set_faults(|faults| faults.meta_is_blocked = true);
    rig.look().await;
    rig.index(1, "a", 1, 2);
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f0"], "not confirmed yet");
    rig.elastic.set_faults(|faults| faults.meta_is_blocked = false);
    rig.until_watermark(2).await;
    assert_eq!(rig.confirmed().await, Some(2));
    assert_eq!(shards(&rig.elastic.copies("a")), ["f3"], "the new map decides");
}

/// A confirmation holds a permit. Whoever waits for another permit meanwhile, and forgets it, waits for ever.
#[tokio::test(start_paused = true)]
async fn a_confirmation_under_way_does_not_keep_the_first_record_waiting() {
    let mut rig = Rig::following();
    let _others_at_work = rig.permits.clone().acquire_many_owned(3).await.unwrap();
    rig.set_maps(&unwritten().begin(two_halves()).unwrap()).await;
    rig.look().await;
    rig.elastic.set_faults(|faults| faults.delay = Duration::from_secs(3));
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.permits.available_permits(), 0, "it is under way");
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    assert_eq!(rig.confirmed().await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_is_stopped_at_its_first_record_holds_no_permit() {
    let mut rig = Rig::following();
    let lease =
        Lease { deadline: rig.clock.now() + Duration::from_secs(60), cancel: CancellationToken::new() };
    rig.memory.remember_watermarks(Epoch::new(1).unwrap(), &[(0, 100)], &lease).await.unwrap();
    rig.set_maps(&unwritten().begin(two_halves()).unwrap()).await;
    rig.look().await;
    rig.elastic.set_faults(|faults| faults.down = true);
    rig.pass(Duration::from_secs(1)).await;
    rig.index(99, "a", 1, 1);
    rig.elastic.set_faults(|faults| {
        faults.down = false;
        faults.delay = Duration::from_secs(3);
    });
    rig.until("it is stopped", |rig| rig.health.missing().contains_key(&stopped_part(0))).await;
    rig.until("it holds nothing", |rig| rig.permits.available_permits() == 4).await;
}

#[tokio::test(start_paused = true)]
async fn while_two_maps_are_live_every_entry_writes_its_placement_and_moves_are_seen_before_old_copies_go() {
    let mut rig = Rig::following();
    rig.look().await;
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    assert_eq!(placements_written(&mut rig, 1, "a").await, 0, "in place");
    rig.set_maps(&unwritten().begin(two_halves()).unwrap()).await;
    rig.look().await;
    assert_eq!(placements_written(&mut rig, 2, "a").await, 1);
    assert_eq!(rig.elastic.refreshes(), 0, "nothing has moved");
    rig.index(3, "a", 91, 4);
    rig.until("both copies", |rig| rig.elastic.copies("a").len() == 2).await;
    let both_since = TokioInstant::now();
    rig.until_watermark(4).await;
    assert_eq!(rig.elastic.refreshes(), 1);
    assert!(both_since.elapsed() >= Duration::from_secs(1), "{:?}", both_since.elapsed());
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
}

#[tokio::test(start_paused = true)]
async fn old_copies_stay_while_new_ones_can_not_be_made_visible() {
    let mut rig = Rig::following();
    rig.set_maps(&unwritten().begin(two_halves()).unwrap()).await;
    rig.look().await;
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.refreshes_fail = true);
    rig.index(1, "a", 91, 2);
    for _ in 0..5 {
        rig.pass(Duration::from_secs(30)).await;
        rig.look().await;
    }
    assert_eq!(shards(&rig.elastic.copies("a")), ["f0", "f1"]);
    assert_eq!(rig.published.watermark(), Some(1));
    rig.elastic.set_faults(|faults| faults.refreshes_fail = false);
    rig.until_watermark(2).await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_still_holds_what_was_done_before_the_map_changed_sends_nothing() {
    let mut rig = Rig::following();
    rig.look().await;
    rig.index(7, "a", 1, 1);
    rig.until_watermark(8).await;
    let announced = unwritten().begin(two_halves()).unwrap();
    let moving = announced.activate(Epoch::new(1).unwrap(), Floor::from([(0, 10)])).unwrap();
    rig.set_maps(&moving).await;
    rig.index(8, "a", 1, 2);
    rig.look().await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(rig.elastic.document("a"), Some(document(1, 1)));
    assert_eq!(rig.published.watermark(), Some(8));
    let reasons = rig.health.missing();
    assert!(reasons[&stopped_part(0)].contains("the map was changed"), "{reasons:?}");
}

/// Otherwise some hundred partitions with a slow server wait for one another until all their batches have ended, for ever.
#[tokio::test(start_paused = true)]
async fn a_batch_that_waits_for_its_turn_has_all_of_its_time_when_that_comes() {
    let mut rig = Rig::start();
    let others_at_work = rig.turns.clone().acquire_many_owned(2).await.unwrap();
    rig.index(0, "a", 1, 1);
    rig.pass(3 * batching().deadline).await;
    assert!(rig.elastic.copies("a").is_empty(), "it has not begun");
    rig.index(1, "a", 1, 2);
    drop(others_at_work);
    rig.until_watermark(2).await;
    assert_eq!(rig.turns.available_permits(), 2, "given back");
    assert_eq!(shards(&rig.elastic.copies("a")).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_is_revoked_while_it_waits_for_its_turn_ends_at_once_and_writes_nothing() {
    let mut rig = Rig::start();
    let _others_at_work = rig.turns.clone().acquire_many_owned(2).await.unwrap();
    rig.index(0, "a", 1, 1);
    rig.pass(Duration::from_secs(5)).await;
    rig.mode.send(Mode::FinishBatch).unwrap();
    rig.until("it has ended", |rig| rig.task.is_finished()).await;
    assert!(rig.elastic.copies("a").is_empty());
}

#[tokio::test(start_paused = true)]
async fn offsets_wait_for_what_must_follow_a_change_from_the_assignment_on() {
    let endpoint = Endpoint::new(false);
    let mut rig = Rig::distributing(&endpoint);
    rig.index(0, "a", 0, 1);
    rig.until("the document", |rig| rig.elastic.document("a").is_some()).await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(rig.published.watermark(), None, "not even what was there before is known to be told");
    endpoint.open.store(true, Ordering::SeqCst);
    rig.until_watermark(1).await;
    let told: BTreeSet<ShardId> =
        endpoint.told.lock().unwrap().iter().map(|(shard, _)| shard.clone()).collect();
    assert_eq!(told, rules().map.shards().iter().cloned().collect());

    // One that moves: its old geoshard is told of, too, and not before its new one.
    endpoint.told.lock().unwrap().clear();
    endpoint.open.store(false, Ordering::SeqCst);
    rig.index(1, "a", 90, 2);
    rig.until("the move", |rig| rig.counts().get("indexed") == Some(&2)).await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(rig.published.watermark(), Some(1));
    endpoint.open.store(true, Ordering::SeqCst);
    rig.until_watermark(2).await;
    let told = endpoint.told.lock().unwrap().clone();
    let shard = |lon: f64| rules().map.locate(crate::geo::GeoPoint::new(0.0, lon).unwrap()).clone();
    assert_eq!(told.iter().map(|(shard, _)| shard).collect::<Vec<_>>(), [&shard(90.0), &shard(0.0)]);
    assert!(told[0].1.contains("\"watermark\":2"), "{}", told[0].1);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_goes_runs_what_it_owes_at_once_and_is_given_the_time_for_it() {
    let endpoint = Endpoint::new(true);
    let mut rig = Rig::distributing(&endpoint);
    rig.index(0, "a", 0, 1);
    rig.until_watermark(1).await;
    for (offset, mode) in [(1, Mode::Drain)] {
        rig.index(offset, "a", 0, offset + 1);
        rig.pass(Duration::from_millis(250)).await;
        let before = tokio::time::Instant::now();
        rig.mode.send(mode).unwrap();
        rig.until_ended().await;
        assert!(
            before.elapsed() < Duration::from_millis(200),
            "it waited for company: {:?}",
            before.elapsed()
        );
        assert_eq!(rig.published.watermark(), Some(offset + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn holds_of_a_geoshard_are_bounded_and_the_lowest_offset_stays_held() {
    let endpoint = Endpoint::new(true);
    let mut rig = Rig::distributing(&endpoint);
    rig.index(0, "a", 0, 1);
    rig.until_watermark(1).await;
    endpoint.open.store(false, Ordering::SeqCst);
    for offset in 1..40 {
        rig.index(offset, &format!("d{offset}"), 0, offset);
        rig.pass(Duration::from_millis(300)).await;
    }
    assert_eq!(rig.published.watermark(), Some(1));
    endpoint.open.store(true, Ordering::SeqCst);
    rig.until_watermark(40).await;
}
