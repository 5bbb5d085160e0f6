//! A runner on a broker inside the process, and a SQLite.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use rdkafka::ClientConfig;
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Headers;
use rdkafka::{Offset, TopicPartitionList};

use super::*;
use crate::base::ids::{DocId, ShardId};
use crate::base::position::{Epoch, Position};
use crate::core::placement::Placement;
use crate::io::database::tests::{Fresh, each};
use crate::io::elastic::{BulkOp, Elastic, Index, WriteCondition};
use crate::io::send::Destinations;
use crate::ops::campaign::create::SortOptions;
use crate::ops::campaign::store::NewCampaign;
use crate::ops::campaign::watch::Watch;
use crate::ops::campaign::{Command, chunk};
use crate::support::config::Config;
use crate::testkit::embedded::broker::EmbeddedBroker;
use crate::testkit::testing::{MemoryElastic, six_faces};

const TOPIC: &str = "documents";
const PATIENCE: Duration = Duration::from_secs(60);

struct Rig {
    broker: EmbeddedBroker,
    store: CampaignStore,
    /// Of the placements.
    elastic: Arc<MemoryElastic>,
    _fresh: Fresh,
}

impl Rig {
    async fn new() -> Self {
        let fresh = each().await.swap_remove(0);
        let store = CampaignStore::new(fresh.database.clone());
        store.prepare().await.unwrap();
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic(TOPIC, 2).unwrap();
        Self { broker, store, elastic: MemoryElastic::for_map(&six_faces()), _fresh: fresh }
    }

    async fn runner(&self, lease: Duration) -> Runner {
        let properties = BTreeMap::from([
            ("bootstrap.servers".to_owned(), self.broker.address().to_owned()),
            ("message.timeout.ms".to_owned(), "1000".to_owned()),
        ]);
        let retry = RetryPolicy { initial: Duration::from_millis(10), max: Duration::from_millis(100) };
        let destinations = Destinations::new(&Config::default(), self.elastic.clone());
        let connecting = move || Producing::connect(&properties, TOPIC, destinations, retry);
        let connecting = tokio::task::spawn_blocking(connecting);
        let producing = connecting.await.unwrap().unwrap();
        let times = RunTimes { lease, drain: Duration::ZERO, retry };
        Runner::new(self.store.clone(), producing, TOPIC, times)
    }

    async fn campaign(&self, topic: &str, rate: Option<u32>, chunks: &[&[&[u8]]]) -> i64 {
        let new = NewCampaign {
            may_be_empty: true,
            name: "a test".to_owned(),
            action: CampaignAction::Refeed,
            topic: topic.to_owned(),
            selection: "a list".to_owned(),
            chunk: 3,
            rate,
            every: None,
            request: None,
        };
        let id = self.store.create(&new).await.unwrap().unwrap();
        for ids in chunks {
            let mut bytes = Vec::new();
            ids.iter().for_each(|id| chunk::push(&mut bytes, id));
            let count = i64::try_from(ids.len()).unwrap();
            assert!(self.store.append(id, &[bytes], count).await.unwrap());
        }
        assert!(self.store.seal(id, false).await.unwrap());
        id
    }

    /// The keys in the topic, sorted; asserts that each record is a refeed.
    fn keys(&self) -> Vec<String> {
        let client: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.broker.address())
            .set("group.id", "reader")
            // A commit would be an event for which `poll` returns no record.
            .set("enable.auto.commit", "false")
            .create()
            .unwrap();
        let mut keys = Vec::new();
        for partition in 0..2 {
            let (low, high) = client.fetch_watermarks(TOPIC, partition, PATIENCE).unwrap();
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(TOPIC, partition, Offset::Beginning).unwrap();
            client.assign(&list).unwrap();
            for _ in low..high {
                let record = client.poll(PATIENCE).unwrap().unwrap();
                let header = record.headers().unwrap().get(0);
                assert_eq!((header.key, header.value), ("geofold-op", Some(&b"refeed"[..])));
                assert!(record.payload().is_none());
                keys.push(String::from_utf8(record.key().unwrap().to_vec()).unwrap());
            }
        }
        keys.sort();
        keys
    }

    /// Changes the database behind the store's back.
    async fn execute(&self, sql: String) {
        let mut transaction = self.store.database.begin("meddling").await.unwrap();
        transaction.execute(Box::leak(sql.into_boxed_str()) as &'static str, &[]).await.unwrap();
        transaction.commit().await.unwrap();
    }

    async fn until(
        &self,
        what: &str,
        id: i64,
        is_so: impl Fn(&crate::ops::campaign::store::CampaignStatus) -> bool,
    ) {
        let began = Instant::now();
        while !is_so(&self.store.status(id).await.unwrap()) {
            assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn runner_sends_each_id_and_keeps_failures() {
    let rig = Rig::new().await;
    let long = [b'x'; 600];
    let id = rig.campaign(TOPIC, None, &[&[b"a", b"b", &long], &["é".as_bytes()]]).await;
    let runner = rig.runner(PATIENCE).await;
    let stop = CancellationToken::new();
    assert_eq!(runner.run(id, &stop).await.unwrap(), Ended::Over(CampaignState::Done));
    assert_eq!(rig.keys(), ["a", "b", "é"]);
    let status = rig.store.status(id).await.unwrap();
    assert_eq!((status.produced, status.failed), (3, 1));
    assert!(rig.store.failed(id, 9).await.unwrap()[0].reason.contains("600 bytes"));
}

#[tokio::test]
async fn a_record_goes_to_the_partition_that_the_placement_names() {
    let rig = Rig::new().await;
    let ids: Vec<String> = (0..8).map(|n| format!("d{n}")).collect();
    let pos = Position::new(Epoch::new(1).unwrap(), 5).unwrap();
    let placements = ids.iter().map(|id| BulkOp::Index {
        index: Index::Placements,
        id: DocId::from_key(Some(id.as_bytes())).unwrap(),
        guard: WriteCondition::Absent,
        source: Placement::new(pos, Some(ShardId::new("f0").unwrap()), []).by_partition(Some(1)).to_json(),
    });
    rig.elastic.bulk(&placements.collect::<Vec<_>>(), PATIENCE).await.unwrap();
    let chunk: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
    let id = rig.campaign(TOPIC, None, &[&chunk]).await;
    let runner = rig.runner(PATIENCE).await;
    assert_eq!(runner.run(id, &CancellationToken::new()).await.unwrap(), Ended::Over(CampaignState::Done));
    assert_eq!(rig.keys(), ids);
    let group: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", rig.broker.address()).create().unwrap();
    let ends = [0, 1].map(|partition| group.fetch_watermarks(TOPIC, partition, PATIENCE).unwrap().1);
    assert_eq!(ends, [0, 8]);
}

#[tokio::test]
async fn a_chunk_is_not_done_while_the_broker_does_not_acknowledge_it() {
    let rig = Rig::new().await;
    let id = rig.campaign(TOPIC, None, &[&[b"a", b"b"]]).await;
    let runner = rig.runner(PATIENCE).await;
    rig.broker.set_down(true).unwrap();
    let stop = CancellationToken::new();
    let work = async {
        rig.until("the chunk at work", id, |status| status.chunks_at_work == 1).await;
        // Longer than the client waits for an acknowledgement: its records are sent again.
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            assert_eq!(rig.store.status(id).await.unwrap().produced, 0);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        rig.broker.set_down(false).unwrap();
    };
    let (ended, ()) = tokio::join!(runner.run(id, &stop), work);
    assert_eq!(ended.unwrap(), Ended::Over(CampaignState::Done));
    let mut keys = rig.keys();
    keys.dedup();
    assert_eq!(keys, ["a", "b"]);
}

#[tokio::test]
async fn a_lease_is_extended_while_work_goes_on_and_a_runner_that_lost_it_stops() {
    let rig = Rig::new().await;
    let id = rig.campaign(TOPIC, None, &[&[b"a"]]).await;
    let lease = Duration::from_secs(3);
    let runner = rig.runner(lease).await;
    // So that the chunk does not come to its end.
    rig.broker.set_down(true).unwrap();
    let stop = CancellationToken::new();
    let ask = async || rig.store.reserve(id, "other", PATIENCE).await.unwrap();
    let work = async {
        rig.until("the chunk at work", id, |status| status.chunks_at_work == 1).await;
        let began = Instant::now();
        while began.elapsed() < 2 * lease {
            let other = ask().await;
            assert!(matches!(other, Reservation::Wait(_)), "{other:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // As if it had been frozen meanwhile.
        let other = loop {
            let mut transaction = rig.store.database.begin("meddling").await.unwrap();
            transaction.execute("UPDATE campaign_lease SET expires = 1", &[]).await.unwrap();
            transaction.commit().await.unwrap();
            if let Reservation::Chunk(lease) = ask().await {
                break lease;
            }
        };
        assert!(rig.store.finish(&other, 1, &[]).await.unwrap());
    };
    // The broker stays down: the run ends only because it checks its lease.
    let (ended, ()) = tokio::join!(runner.run(id, &stop), work);
    assert_eq!(ended.unwrap(), Ended::Over(CampaignState::Done));
    let status = rig.store.status(id).await.unwrap();
    assert_eq!((status.produced, status.failed), (1, 0));
}

#[tokio::test]
async fn a_signal_ends_a_run_and_gives_its_chunk_back() {
    let rig = Rig::new().await;
    let many: Vec<Vec<u8>> = (0..3000).map(|number| format!("id-{number}").into_bytes()).collect();
    let many: Vec<&[u8]> = many.iter().map(Vec::as_slice).collect();
    let id = rig.campaign(TOPIC, Some(1), &[&many]).await;
    let runner = rig.runner(PATIENCE).await;
    let stop = CancellationToken::new();
    let work = async {
        rig.until("the chunk at work", id, |status| status.chunks_at_work == 1).await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(runner.run(id, &stop), work);
    assert_eq!(ended.unwrap(), Ended::Stopped);
    let status = rig.store.status(id).await.unwrap();
    assert_eq!((status.chunks_at_work, status.chunks_expired), (0, 1), "nobody waits for its end");
}

#[tokio::test]
async fn a_campaign_for_another_topic_is_not_run() {
    let rig = Rig::new().await;
    let id = rig.campaign("elsewhere", None, &[&[b"a"]]).await;
    let runner = rig.runner(PATIENCE).await;
    let stop = CancellationToken::new();
    let refused = runner.run(id, &stop).await.unwrap_err();
    assert!(matches!(refused, RunError::OtherTopic { .. }), "{refused}");
    let unknown = runner.run(999, &stop).await.unwrap_err();
    assert!(unknown.to_string().contains("campaign 999 does not exist"), "{unknown}");
    assert_eq!(rig.keys(), [""; 0]);
}

#[tokio::test]
async fn watchers_run_what_requests_have_made_leave_what_is_paused_and_forget_what_is_old() {
    let rig = Rig::new().await;
    let made = async |key: &str, ids: &[&[u8]]| {
        let id = rig.campaign(TOPIC, None, &[ids]).await;
        rig.execute(format!("UPDATE campaign SET request = '{key}' WHERE id = {id}")).await;
        id
    };
    let (first, second, paused) =
        (made("k1", &[b"a", b"b"]).await, made("k2", &[b"c"]).await, made("k3", &[b"d"]).await);
    let by_hand = rig.campaign(TOPIC, None, &[&[b"e"]]).await;
    rig.store.execute(paused, Command::Pause).await.unwrap();
    let (runner, stop) = (rig.runner(PATIENCE).await, CancellationToken::new());
    let watch = Watch {
        store: &rig.store,
        runner: &runner,
        elastic: &*rig.elastic,
        prefix: "geofold",
        timeout: PATIENCE,
        sort_options: SortOptions { folder: std::env::temp_dir(), memory: 1 << 20 },
        retry: RetryPolicy { initial: Duration::from_millis(10), max: Duration::from_millis(100) },
    };
    let ending = async {
        for id in [first, second] {
            rig.until("a campaign of a request", id, |status| status.state == CampaignState::Done).await;
        }
        stop.cancel();
    };
    let (watched, ()) = futures::join!(watch.run_requested(&stop), ending);
    watched.unwrap();
    assert_eq!(rig.keys(), ["a", "b", "c"], "not what is paused, nor what nobody asked to be run");
    assert_eq!(rig.store.status(by_hand).await.unwrap().state, CampaignState::Ready);
    // A week later.
    rig.execute(format!("UPDATE campaign SET ended = ended - 8 * 86400 * 1000000 WHERE id = {first}")).await;
    let stop = CancellationToken::new();
    let (watched, ()) = futures::join!(watch.run_requested(&stop), async {
        while rig.store.status(first).await.is_ok() {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    });
    watched.unwrap();
    assert!(rig.store.status(second).await.is_ok());
}
