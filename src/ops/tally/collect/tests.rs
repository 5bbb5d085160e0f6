//! Merging on both databases, and collectors that replace each other on an embedded broker.

use std::collections::BTreeMap;

use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use tokio::task::JoinHandle;

use super::batch::{IncrementBatch, IncrementsPartition};
use super::cloud::{Cloud, TopN};
use super::history::SimulatedHistory;
use super::*;
use crate::base::clock::BootClock;
use crate::base::position::Position;
use crate::base::random::Random;
use crate::core::counting::increment::{Delta, Edge, Increment};
use crate::io::database::tests::{Fresh, each};
use crate::io::database::{Database, Lock};
use crate::ops::tally::recount::FacetCounts;
use crate::support::supervisor::Supervisor;
use crate::testkit::embedded::broker::EmbeddedBroker;

const PATIENCE: Duration = Duration::from_secs(120);
const TOP: usize = 3;

fn store(database: &Database) -> CountStore {
    CountStore::new(database.clone(), TOP, 5)
}

fn topic(partitions: i32) -> KnownTopic {
    KnownTopic { topic: "increments".to_owned(), topic_id: Some("id".to_owned()), partitions }
}

/// A store in which `me` merges, from the beginning of one partition.
async fn led(database: &Database, me: &str) -> CountStore {
    let store = store(database);
    store.prepare().await.unwrap();
    let start = store.take_over(me, &store.leader().await.unwrap()).await.unwrap().unwrap();
    assert_eq!(start, Start::default());
    assert!(store.settle(me, &topic(1), &BTreeMap::from([(0, 0)])).await.unwrap());
    store
}

/// A batch of partition 0 that begins at `from`.
fn batch(from: i64, increments: &[Increment]) -> IncrementBatch {
    let mut batch = IncrementBatch::default();
    for (offset, increment) in (from..).zip(increments) {
        batch.take(0, from, offset, Some(increment.clone()));
    }
    batch
}

fn done(merge: MergeOutcome) -> MergedBatch {
    match merge {
        MergeOutcome::Done(merged) => *merged,
        other => panic!("{other:?}"),
    }
}

/// The cloud that all counts come to.
fn recomputed(counts: &[(String, String, i64)]) -> BTreeMap<String, Vec<(String, i64)>> {
    let mut facets: BTreeMap<String, Vec<(String, i64)>> = BTreeMap::new();
    for (facet, value, count) in counts.iter().filter(|(.., count)| *count > 0) {
        facets.entry(facet.clone()).or_default().push((value.clone(), *count));
    }
    for values in facets.values_mut() {
        values.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(&other.0)));
        values.truncate(TOP);
    }
    facets
}

fn shown(cloud: &Cloud) -> BTreeMap<String, Vec<(String, i64)>> {
    let best = |facet| cloud.top_of(facet).map(TopN::best_of_test).unwrap_or_default();
    let all = cloud.facets().map(|facet| (facet.to_owned(), best(facet)));
    all.filter(|(_, values)| !values.is_empty()).collect()
}

impl TopN {
    fn best_of_test(&self) -> Vec<(String, i64)> {
        self.best(TOP).to_vec()
    }
}

#[tokio::test]
async fn counts_and_cloud_match_the_documents_despite_duplicates() {
    for Fresh { database, .. } in &each().await {
        let store = led(database, "me").await;
        let mut history = SimulatedHistory::new(7, "documents", 3, 40);
        let mut random = Random::new(8);
        let (mut next, mut sent, mut versions) = (0, Vec::new(), 0);
        for _ in 0..30 {
            let mut increments = Vec::new();
            for _ in 0..random.below(6) + 1 {
                let increment = history.next_increment(random.below(12));
                sent.push(increment.clone());
                increments.push(increment);
                if random.below(3) == 0 {
                    // Sent long ago, and again now.
                    let again = usize::try_from(random.below(sent.len() as u64)).unwrap();
                    increments.push(sent[again].clone());
                }
            }
            let merged = done(store.merge("me", &batch(next, &increments)).await.unwrap());
            next += i64::try_from(increments.len()).unwrap();
            versions += 1;
            assert_eq!(merged.version.number, versions);
            assert_eq!(merged.negative, 0);
            let counts = store.counts().await.unwrap();
            assert!(counts.iter().all(|(.., count)| *count > 0), "rows of 0 are gone: {counts:?}");
            assert_eq!(shown(&merged.version.cloud), recomputed(&counts));
        }
        done(store.merge("me", &batch(next, &history.last_increments())).await.unwrap());
        assert_eq!(store.counts().await.unwrap(), history.counts());
        let latest = store.later_than(0).await.unwrap().unwrap();
        assert_eq!(shown(&latest.cloud), recomputed(&history.counts()));
        assert!(latest.created.starts_with("20") && latest.created.ends_with('Z'), "{}", latest.created);
        assert_eq!(store.later_than(latest.number).await.unwrap(), None);

        let mut look = database.read("looking").await.unwrap();
        let rows = look.rows("SELECT COUNT(*), MIN(version) FROM tag_list", &[]).await.unwrap();
        assert_eq!((rows[0].int(0).unwrap(), rows[0].int(1).unwrap()), (5, latest.number - 4));
        let rows = look.rows("SELECT MIN(version) FROM increment", &[]).await.unwrap();
        assert!(rows[0].int(0).unwrap() >= latest.number - 4);
    }
}

#[tokio::test]
async fn replaced_collector_or_wrong_position_merges_nothing() {
    for Fresh { database, .. } in &each().await {
        let store = led(database, "one").await;
        let mut history = SimulatedHistory::new(1, "documents", 1, 5);
        let first = [history.next_increment(5)];
        let seen = store.leader().await.unwrap();
        assert!(store.beat("one").await.unwrap());
        assert_eq!(store.take_over("two", &seen).await.unwrap(), None, "the first is alive");
        done(store.merge("one", &batch(0, &first)).await.unwrap());
        assert_eq!(
            store.merge("one", &batch(0, &first)).await.unwrap(),
            MergeOutcome::Moved,
            "merged already"
        );
        assert_eq!(store.merge("one", &batch(2, &first)).await.unwrap(), MergeOutcome::Moved, "a gap");

        let start = store.take_over("two", &store.leader().await.unwrap()).await.unwrap().unwrap();
        assert_eq!(start.offsets, BTreeMap::from([(0, 1)]));
        assert_eq!(start.topic, Some(topic(1)));
        let second = [history.next_increment(5)];
        assert_eq!(store.merge("one", &batch(1, &second)).await.unwrap(), MergeOutcome::Moved);
        assert!(!store.beat("one").await.unwrap());
        assert!(!store.settle("one", &topic(2), &BTreeMap::new()).await.unwrap());
        store.step_down("one").await.unwrap();
        assert_eq!(store.leader().await.unwrap().holder, "two");

        if database.name().starts_with("postgres") {
            let mut other = database.begin("holding the lock").await.unwrap();
            other.lock(Lock::Merge).await.unwrap();
            assert_eq!(store.merge("two", &batch(1, &second)).await.unwrap(), MergeOutcome::Busy);
            other.rollback().await.unwrap();
        }
        done(store.merge("two", &batch(1, &second)).await.unwrap());
        store.step_down("two").await.unwrap();
        assert_eq!(store.leader().await.unwrap().holder, "");
    }
}

#[tokio::test]
async fn counts_below_zero_are_kept_and_reported() {
    for Fresh { database, .. } in &each().await {
        let store = led(database, "me").await;
        let mut increment = SimulatedHistory::new(1, "documents", 1, 1).last_increments().remove(0);
        let mut delta = Delta::default();
        delta.add("tags", "red", -1);
        increment.edges = vec![Edge { pos: Position::from_version(0), delta }];
        let merged = done(store.merge("me", &batch(0, &[increment])).await.unwrap());
        assert_eq!((merged.negative, merged.values), (1, 1));
        assert_eq!(store.counts().await.unwrap(), [("tags".to_owned(), "red".to_owned(), -1)]);
        assert_eq!(shown(&merged.version.cloud), BTreeMap::new());
    }
}

#[tokio::test]
async fn merging_continues_after_a_correction() {
    for Fresh { database, .. } in &each().await {
        let store = led(database, "me").await;
        let mut history = SimulatedHistory::new(3, "documents", 1, 40);
        let first = history.next_increment(200);
        done(store.merge("me", &batch(0, &[first])).await.unwrap());
        let counts = store.counts().await.unwrap();
        // One count too high, one missing, one that no document has.
        let mut found: FacetCounts =
            counts.iter().map(|(facet, value, count)| ((facet.clone(), value.clone()), *count)).collect();
        let mut falsified = found.clone();
        let of_test = |value: &str| ("of-test".to_owned(), value.to_owned());
        falsified.insert(of_test("only kept"), 3);
        falsified.insert(of_test("both"), 7);
        assert_eq!(store.correct(&falsified).await.unwrap().len(), 2);
        found.insert(of_test("both"), 2);
        found.insert(of_test("only found"), 1);

        let wrong = store.correct(&found).await.unwrap();
        let said: Vec<_> =
            wrong.iter().map(|wrong| (wrong.value.as_str(), wrong.counted, wrong.found)).collect();
        assert_eq!(said, [("both", 7, 2), ("only found", 0, 1), ("only kept", 3, 0)]);
        assert_eq!(store.correct(&found).await.unwrap(), []);
        let version = store.later_than(0).await.unwrap().unwrap();
        assert_eq!(version.number, 3, "nothing to correct makes no version");
        assert_eq!(shown(&version.cloud), recomputed(&store.counts().await.unwrap()));

        let second = history.next_increment(200);
        done(store.merge("me", &batch(1, &[second])).await.unwrap());
        let mut expected = history.counts();
        expected.extend(
            [("of-test", "both", 2), ("of-test", "only found", 1)]
                .map(|(facet, value, count)| (facet.to_owned(), value.to_owned(), count)),
        );
        expected.sort();
        assert_eq!(store.counts().await.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_facet_whose_best_values_all_fall_is_read_anew_and_only_then() {
    for Fresh { database, .. } in &each().await {
        let store = led(database, "me").await;
        let increment = |offset: u64, changes: &[(usize, i64)]| {
            let mut delta = Delta::default();
            changes.iter().for_each(|(value, by)| delta.add("tags", &format!("v{value:02}"), *by));
            let edges = vec![Edge { pos: Position::from_version(offset), delta }];
            let to = Position::from_version(offset + 1);
            Increment { id: offset.to_string(), topic: "documents".to_owned(), partition: 0, to, edges }
        };
        let capacity = Cloud::capacity(TOP);
        let rise: Vec<_> = (0..capacity + 5).map(|value| (value, 50)).collect();
        let few: Vec<_> = (0..5).map(|value| (value, -49)).collect();
        let most: Vec<_> = (5..capacity).map(|value| (value, -50)).collect();
        for (offset, (changes, read)) in (0i64..).zip([(rise, 0), (few, 0), (most, 1)]) {
            let increments = [increment(offset.unsigned_abs(), &changes)];
            let merged = done(store.merge("me", &batch(offset, &increments)).await.unwrap());
            assert_eq!(merged.boards_read, read, "{offset}");
            assert_eq!(shown(&merged.version.cloud), recomputed(&store.counts().await.unwrap()), "{offset}");
        }
    }
}

/// Collectors of one database and one embedded broker.
struct Rig {
    broker: EmbeddedBroker,
    config: Config,
    _folder: tempfile::TempDir,
}

struct Running {
    task: JoinHandle<Result<(), CollectError>>,
    stop: CancellationToken,
    latest: watch::Receiver<Option<Arc<CountsVersion>>>,
    metrics: Arc<CollectorMetrics>,
}

const PARTITIONS: IncrementsPartition = 2;

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("documents-increments", PARTITIONS).unwrap();
        let mut config = Config::default();
        config.kafka.brokers = vec![broker.address().to_owned()];
        config.database.url =
            format!("sqlite:{}", folder.path().join("counts.db").display()).parse().unwrap();
        config.collector.merge_interval = Duration::from_millis(30);
        config.collector.takeover_timeout = Duration::from_millis(400);
        config.retry.max_backoff = Duration::from_millis(500);
        Self { broker, config, _folder: folder }
    }

    async fn store(&self) -> CountStore {
        let store = CountStore::new(Database::open(&self.config.database).await.unwrap(), TOP, 5);
        store.prepare().await.unwrap();
        store
    }

    async fn start(&self, allowances: Allowances) -> Running {
        let metrics = CollectorMetrics::new().unwrap();
        let health = Health::with_gauge(Arc::new(BootClock), metrics.ready.clone(), PATIENCE);
        let (latest, reader) = watch::channel(None);
        let stop = CancellationToken::new();
        let collector = Collector {
            store: self.store().await,
            allowances,
            metrics: metrics.clone(),
            health,
            latest,
            notifier: Notifier::start(&self.config, metrics.clone(), &Supervisor::new().0).unwrap(),
            stop: stop.clone(),
        };
        let config = self.config.clone();
        let task = tokio::spawn(async move { collector.run(&config).await });
        Running { task, stop, latest: reader, metrics }
    }

    fn producer(&self) -> FutureProducer {
        ClientConfig::new().set("bootstrap.servers", self.broker.address()).create().unwrap()
    }
}

async fn send(producer: &FutureProducer, increments: &[Increment]) {
    for increment in increments {
        let (key, value) = (increment.key(), increment.to_json());
        let partition = increment.partition % PARTITIONS;
        let record = FutureRecord::to("documents-increments").key(&key).payload(&value).partition(partition);
        producer.send(record, Timeout::After(PATIENCE)).await.unwrap();
    }
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition().await {
            sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("in vain: {what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn collectors_that_end_at_any_time_count_every_change_once() {
    let rig = Rig::new();
    let producer = rig.producer();
    let mut history = SimulatedHistory::new(3, "documents", 4, 30);
    let mut random = Random::new(4);
    let mut running = vec![rig.start(Allowances::default()).await, rig.start(Allowances::default()).await];
    for round in 0..8 {
        let increments: Vec<Increment> = (0..20).map(|_| history.next_increment(random.below(8))).collect();
        send(&producer, &increments).await;
        // Every second one is stopped in order, the others are killed.
        let gone = running.remove(0);
        if round % 2 == 0 {
            gone.stop.cancel();
            gone.task.await.unwrap().unwrap();
        } else {
            gone.task.abort();
        }
        running.push(rig.start(Allowances::default()).await);
    }
    send(&producer, &history.last_increments()).await;
    let (store, expected) = (rig.store().await, history.counts());
    until("the counts are right", async || store.counts().await.unwrap() == expected).await;
    let version = store.later_than(0).await.unwrap().unwrap().number;
    for collector in running {
        let mut latest = collector.latest.clone();
        let seen = latest.wait_for(|seen| seen.as_ref().is_some_and(|seen| seen.number >= version));
        tokio::time::timeout(PATIENCE, seen).await.unwrap().unwrap();
        collector.stop.cancel();
        collector.task.await.unwrap().unwrap();
    }
    assert_eq!(store.leader().await.unwrap().holder, "", "the last one stepped down");
    assert_eq!(store.counts().await.unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_increment_ends_the_collector_until_skipped() {
    let rig = Rig::new();
    let producer = rig.producer();
    let mut history = SimulatedHistory::new(5, "documents", 1, 3);
    send(&producer, &[history.next_increment(3)]).await;
    let bad = FutureRecord::to("documents-increments").key("k").payload("{}").partition(0);
    producer.send(bad, Timeout::After(PATIENCE)).await.unwrap();
    send(&producer, &history.last_increments()).await;

    let collector = rig.start(Allowances::default()).await;
    let error = tokio::time::timeout(PATIENCE, collector.task).await.unwrap().unwrap().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("--skip 0:1") && text.contains("not the JSON"), "{text}");

    let skip = Allowances { skip: [(0, 1)].into(), accept_loss: false };
    let collector = rig.start(skip).await;
    let store = rig.store().await;
    let expected = history.counts();
    until("the rest is merged", async || store.counts().await.unwrap() == expected).await;
    until("it is counted", async || collector.metrics.increments.get() >= 1).await;
    collector.stop.cancel();
    collector.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn collector_is_not_ready_before_its_topic_exists() {
    let mut rig = Rig::new();
    let collector = rig.start(Allowances::default()).await;
    until("it is ready", async || collector.metrics.ready.get() == 1).await;
    collector.stop.cancel();
    collector.task.await.unwrap().unwrap();

    rig.config.tally.topic = Some("nowhere".to_owned());
    let collector = rig.start(Allowances::default()).await;
    let error = tokio::time::timeout(PATIENCE, collector.task).await.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("does not exist; create it"), "{error}");
    assert_eq!(collector.metrics.ready.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_topic_is_refused_until_the_loss_is_accepted() {
    let rig = Rig::new();
    let store = rig.store().await;
    let start = store.take_over("before", &store.leader().await.unwrap()).await.unwrap().unwrap();
    assert_eq!(start, Start::default());
    let elsewhere = KnownTopic { partitions: 1, topic_id: None, ..topic(1) };
    let elsewhere = KnownTopic { topic: "documents-increments".to_owned(), ..elsewhere };
    assert!(store.settle("before", &elsewhere, &BTreeMap::from([(0, 99)])).await.unwrap());
    store.step_down("before").await.unwrap();

    let collector = rig.start(Allowances::default()).await;
    let error = tokio::time::timeout(PATIENCE, collector.task).await.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("had 1"), "{error}");

    let mut history = SimulatedHistory::new(6, "documents", 2, 3);
    history.next_increment(4);
    let producer = rig.producer();
    let collector = rig.start(Allowances { accept_loss: true, ..Allowances::default() }).await;
    send(&producer, &history.last_increments()).await;
    until("the new topic is read from its beginning", async || store.later_than(0).await.unwrap().is_some())
        .await;
    collector.stop.cancel();
    collector.task.await.unwrap().unwrap();
}
