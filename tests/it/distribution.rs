//! Distributors in virtual time: what workers that share a store of last runs save, what five updates come to, and how
//! offsets are let go.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "small numbers of a test's own"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use geofold::base::clock::{Clock, Instant};
use geofold::base::ids::ShardId;
use geofold::base::random::Random;
use geofold::base::retry::RetryPolicy;
use geofold::support::telemetry::Metrics;
use geofold::worker::dead_letter::{DeadLetter, DeadLetterSink};
use geofold::worker::distribution::action::{JobAction, RunFailure};
use geofold::worker::distribution::last_runs::LastRuns;
use geofold::worker::distribution::memcached::Memcached;
use geofold::worker::distribution::scheduler::{JobKey, ShardChange};
use geofold::worker::distribution::{
    DistributionSubscription, Distributor, DistributorDependencies, Job, Released,
};
use tokio_util::sync::CancellationToken;

/// tokio's clock.
#[derive(Debug)]
struct Virtual(tokio::time::Instant);

impl Clock for Virtual {
    fn now(&self) -> Instant {
        Instant::from_start(Duration::from_secs(3600) + self.0.elapsed())
    }
}

/// What a run does here: takes its time, and is written down.
struct Noted {
    runs: Arc<Mutex<Vec<Run>>>,
    start: tokio::time::Instant,
    worker: usize,
    takes: Duration,
    /// Each run takes the first of them, while there is one.
    failures: Mutex<Vec<RunFailure>>,
}

#[derive(Debug, Clone)]
struct Run {
    worker: usize,
    shard: ShardId,
    began: Duration,
    ended: Duration,
    notice: String,
    succeeded: bool,
}

impl JobAction for Noted {
    fn run<'a>(
        &'a self,
        shard: &'a ShardId,
        notice: &'a Bytes,
        _: Duration,
    ) -> BoxFuture<'a, Result<(), RunFailure>> {
        async move {
            let began = self.start.elapsed();
            tokio::time::sleep(self.takes).await;
            let failure = self.failures.lock().unwrap().pop();
            let notice = String::from_utf8(notice.to_vec()).unwrap();
            let ended = self.start.elapsed();
            let succeeded = failure.is_none();
            let run = Run { worker: self.worker, shard: shard.clone(), began, ended, notice, succeeded };
            self.runs.lock().unwrap().push(run);
            failure.map_or(Ok(()), Err)
        }
        .boxed()
    }
}

/// Keeps letters.
#[derive(Default)]
struct Letters(Mutex<Vec<DeadLetter>>);

impl DeadLetterSink for Letters {
    fn deliver(&self, letters: Vec<DeadLetter>) -> BoxFuture<'_, ()> {
        self.0.lock().unwrap().extend(letters);
        async {}.boxed()
    }
}

/// Workers with a distributor each.
struct World {
    start: tokio::time::Instant,
    runs: Arc<Mutex<Vec<Run>>>,
    letters: Arc<Letters>,
    metrics: Arc<Metrics>,
    distributors: Vec<Arc<Distributor>>,
    stop: CancellationToken,
}

struct Options {
    workers: usize,
    interval: Duration,
    takes: Duration,
    gate: bool,
    failures: Vec<RunFailure>,
    give_up_after: Option<Duration>,
    /// Each has connections of its own to this memcached; otherwise all of them share one memory.
    memcached: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 1,
            interval: Duration::from_millis(400),
            takes: Duration::from_millis(30),
            gate: true,
            failures: Vec::new(),
            give_up_after: None,
            memcached: None,
        }
    }
}

impl World {
    fn new(options: Options) -> Self {
        let start = tokio::time::Instant::now();
        let runs = Arc::<Mutex<Vec<Run>>>::default();
        let letters = Arc::<Letters>::default();
        let metrics = Metrics::new().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(Virtual(start));
        let stop = CancellationToken::new();
        let memory = Arc::new(LastRuns::in_memory());
        let store = || match &options.memcached {
            None => memory.clone(),
            Some(address) => {
                let failures = metrics.distribution_store_failures.clone();
                let memcached = Memcached::new(address, Duration::from_millis(100));
                Arc::new(LastRuns::in_memcached(memcached, clock.clone(), failures))
            }
        };
        // What an earlier run left in a memcached is not this one's.
        let store_key =
            format!("test:{:x}:", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
        let distributors = (0..options.workers).map(|worker| {
            let action = Noted {
                runs: runs.clone(),
                start,
                worker,
                takes: options.takes,
                failures: Mutex::new(options.failures.clone()),
            };
            let job = Job {
                name: "notify".into(),
                gate: options.gate,
                interval: options.interval,
                timeout: Duration::from_secs(10),
                give_up_after: options.give_up_after,
                action: Arc::new(action),
                store_key: store_key.clone(),
                metrics: metrics.distribution("notify"),
            };
            let around = DistributorDependencies {
                topic: "documents".into(),
                last_runs: store(),
                dead_letters: Some(letters.clone()),
                retry: RetryPolicy { initial: Duration::from_millis(100), max: Duration::from_millis(1000) },
                clock: clock.clone(),
            };
            let distributor = Distributor::new(vec![job], around);
            tokio::spawn(distributor.clone().run(stop.clone()));
            distributor
        });
        let distributors = distributors.collect();
        Self { start, runs, letters, metrics, distributors, stop }
    }

    fn runs(&self) -> Vec<Run> {
        self.runs.lock().unwrap().clone()
    }

    fn store_failures(&self) -> u64 {
        self.metrics.distribution_store_failures.get()
    }

    /// The value of a counter of the job.
    fn counted(&self, name: &str) -> u64 {
        let text = self.metrics.render().unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("geofold_distribution_{name}")));
        line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn shard(n: usize) -> ShardId {
    ShardId::new(&format!("s{n:02}")).unwrap()
}

fn change(offset: i64) -> ShardChange {
    ShardChange { documents: 1, offsets: Some((offset, offset)), moved_to: BTreeSet::new() }
}

fn request(subscription: &mut DistributionSubscription, shard: ShardId, offset: i64) -> (u64, Vec<JobKey>) {
    subscription.request(&BTreeMap::from([(shard, change(offset))]), Some(offset + 1))
}

async fn until(world: &World, ms: u64) {
    tokio::time::sleep_until(world.start + Duration::from_millis(ms)).await;
}

#[tokio::test(start_paused = true)]
async fn five_updates_of_one_geoshard_on_two_workers() {
    let world = World::new(Options { workers: 2, ..Options::default() });
    let mut subscriptions: Vec<_> = world.distributors.iter().map(|d| d.subscribe(0)).collect();
    // The first run makes the record that both share.
    request(&mut subscriptions[0], shard(0), 0);
    until(&world, 1000).await;
    world.runs.lock().unwrap().clear();
    let before = (world.counted("requested"), world.counted("redundant"));
    let mut story = Vec::new();
    for (n, (at, worker)) in [(1000, 0), (1100, 1), (1250, 0), (1350, 1), (1415, 1)].into_iter().enumerate() {
        until(&world, at).await;
        request(&mut subscriptions[worker], shard(0), 10 + n as i64);
        story.push(format!("{at:>5} ms  update {} on worker {worker}", n + 1));
    }
    until(&world, 5000).await;
    let runs = world.runs();
    for run in &runs {
        let (began, ended) = (run.began.as_millis(), run.ended.as_millis());
        story.push(format!(
            "{began:>5} ms  run of notify:{} on worker {}, until {ended} ms",
            run.shard, run.worker
        ));
    }
    story.sort();
    let requested = world.counted("requested") - before.0;
    let redundant = world.counted("redundant") - before.1;
    story.push(format!("requested {requested}, runs {}, redundant {redundant}", runs.len()));
    println!("{}", story.join("\n"));
    assert_eq!((requested, runs.len(), redundant), (5, 2, 2));
    assert_eq!((runs[0].worker, runs[1].worker), (0, 1));
    assert!(runs[0].began >= Duration::from_millis(1400), "the first waits for coalescer");
    assert!(runs[1].began >= Duration::from_millis(1815), "the fifth came while the first run was under way");
}

/// Runs that were seen, and those that one perfect scheduler would run: for each geoshard at the end of the interval that
/// begins with the first update that is not served yet.
struct Seen {
    runs: usize,
    perfect: usize,
    /// Calls of the store that failed.
    store_failures: u64,
}

impl Seen {
    fn ratio(&self) -> f64 {
        self.runs as f64 / self.perfect as f64
    }
}

/// 1,000 updates a second on 55 geoshards, for so many seconds, by workers that share a store; and how many runs that takes.
async fn busy(workers: usize, seconds: u64, memcached: Option<String>) -> Seen {
    const SHARDS: usize = 55;
    const PARTITIONS: usize = 8;
    const INTERVAL: Duration = Duration::from_millis(500);
    let is_real = memcached.is_some();
    let options = Options { workers, interval: INTERVAL, memcached, ..Options::default() };
    let world = World::new(Options { gate: false, ..options });
    let mut subscriptions: Vec<_> = (0..PARTITIONS)
        .map(|partition| world.distributors[partition % workers].subscribe(partition as i32))
        .collect();
    let mut random = Random::new(7);
    let mut updates: Vec<(Duration, ShardId)> = Vec::new();
    // Batches of each partition, 200 ms after their first record, as batch.linger has it.
    let mut waiting: Vec<BTreeMap<ShardId, ShardChange>> = vec![BTreeMap::new(); PARTITIONS];
    let mut batch_at = [None; PARTITIONS];
    for ms in 0..seconds * 1000 {
        until(&world, ms).await;
        let partition = random.below(PARTITIONS as u64) as usize;
        waiting[partition].insert(shard(random.below(SHARDS as u64) as usize), change(ms as i64));
        batch_at[partition].get_or_insert(ms + 200);
        for partition in 0..PARTITIONS {
            if batch_at[partition].is_some_and(|at| at <= ms) {
                batch_at[partition] = None;
                let changes = std::mem::take(&mut waiting[partition]);
                updates.extend(changes.keys().map(|shard| (world.start.elapsed(), shard.clone())));
                subscriptions[partition].request(&changes, None);
            }
        }
    }
    until(&world, seconds * 1000 + 5_000).await;
    // A machine that is busy with other things may be late; nothing may be missing.
    let patience = Duration::from_secs(if is_real { 60 } else { 2 });
    let runs = world.runs();
    let mut begun: BTreeMap<&ShardId, Vec<Duration>> = BTreeMap::new();
    runs.iter().for_each(|run| begun.entry(&run.shard).or_default().push(run.began));
    for (at, shard) in &updates {
        let is_covered = begun[shard].iter().any(|began| began >= at && *began <= *at + patience);
        assert!(is_covered, "the update of {shard} at {at:?} has no run after it");
    }
    let mut served: BTreeMap<&ShardId, Duration> = BTreeMap::new();
    let mut perfect = 0;
    for (at, shard) in &updates {
        if served.get(shard).is_none_or(|until| at > until) {
            served.insert(shard, *at + INTERVAL);
            perfect += 1;
        }
    }
    let seen = Seen { runs: runs.len(), perfect, store_failures: world.store_failures() };
    println!(
        "{workers} workers, {seconds} s: {} runs for {} changes of a geoshard by a batch; a perfect scheduler: {perfect}; ratio \
         {:.3}; {} calls of the store failed",
        seen.runs,
        updates.len(),
        seen.ratio(),
        seen.store_failures
    );
    seen
}

#[tokio::test(start_paused = true)]
async fn four_workers_that_share_a_store_run_hardly_more_than_one_perfect_scheduler_would() {
    // One distributor that hears of every update at once is what is called perfect.
    assert!(busy(1, 60, None).await.ratio() <= 1.0);
    let ratio = busy(4, 60, None).await.ratio();
    assert!(ratio <= 1.3, "{ratio}");
}

/// In real time, on the memcached that the environment names: `dev/stack up --memcached`. Without one there is nothing to see.
#[tokio::test]
async fn four_workers_that_share_a_real_memcached_run_hardly_more_than_one_perfect_scheduler_would() {
    let Ok(memcached) = std::env::var("GEOFOLD_TEST_MEMCACHED") else { return };
    let seconds =
        std::env::var("GEOFOLD_DISTRIBUTION_SECONDS").map_or(15, |seconds| seconds.parse().unwrap());
    let seen = busy(4, seconds, Some(memcached)).await;
    // What memcached does not answer in time is run; a machine that is that busy proves nothing about the ratio.
    assert!(seen.ratio() <= 1.3 || seen.store_failures > 0, "{}", seen.ratio());
}

#[tokio::test(start_paused = true)]
async fn waiters_learn_of_success_of_a_run_that_began_later() {
    let failures = vec![RunFailure { reason: "503".to_owned(), for_good: false }; 3];
    let world = World::new(Options { failures, ..Options::default() });
    let mut subscription = world.distributors[0].subscribe(4);
    let (ticket, keys) = request(&mut subscription, shard(1), 7);
    let key = JobKey { job: 0, shard: shard(1) };
    assert_eq!(keys, std::slice::from_ref(&key));
    let released = subscription.released().await;
    assert_eq!(released, Released { key, ticket });
    let runs = world.runs();
    assert_eq!(runs.iter().map(|run| run.succeeded).collect::<Vec<_>>(), [false, false, false, true]);
    let notice: serde_json::Value = serde_json::from_str(&runs[3].notice).unwrap();
    assert_eq!(
        notice,
        serde_json::json!({
            "job": "notify", "shard": "s01", "topic": "documents", "documents": 1,
            "partitions": [
                {"partition": 4, "documents": 1, "first_offset": 7, "last_offset": 7, "watermark": 8}
            ],
        })
    );
}

#[tokio::test(start_paused = true)]
async fn permanent_or_lasting_failure_becomes_a_dead_letter_and_releases_offsets() {
    let refused = RunFailure { reason: "410 Gone".to_owned(), for_good: true };
    let down = RunFailure { reason: "503".to_owned(), for_good: false };
    for (failure, reason, limit) in
        [(refused, "distribution_refused", 3600), (down, "distribution_failed", 10)]
    {
        let world = World::new(Options {
            failures: vec![failure; 1000],
            give_up_after: Some(Duration::from_secs(limit)),
            ..Options::default()
        });
        let mut subscription = world.distributors[0].subscribe(4);
        request(&mut subscription, shard(1), 7);
        subscription.released().await;
        let letters = world.letters.0.lock().unwrap();
        let [letter] = &letters[..] else { panic!("{letters:?}") };
        assert_eq!((letter.reason, letter.stage), (reason, "distribution"));
        assert_eq!((letter.origin.partition, letter.origin.first_offset), (4, 7));
        assert_eq!(letter.key.as_deref(), Some(&b"s01"[..]));
        assert_eq!(world.counted("abandoned"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_geoshard_that_can_not_be_run_holds_up_no_other() {
    let world = World::new(Options { takes: Duration::from_secs(5), ..Options::default() });
    let mut subscription = world.distributors[0].subscribe(4);
    for n in 0..20 {
        request(&mut subscription, shard(n), n as i64);
    }
    let mut most = 0;
    for _ in 0..20 {
        subscription.released().await;
        let runs = world.runs();
        let at_once = |run: &Run| runs.iter().filter(|r| r.began <= run.began && run.began < r.ended).count();
        most = most.max(runs.iter().map(at_once).max().unwrap_or(0));
    }
    assert!((2..=8).contains(&most), "{most} at once");
}
