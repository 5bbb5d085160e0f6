//! Increments of a counting worker.

use super::*;

const INCREMENTS: &str = "documents-increments";

impl World {
    /// With live counts; some increments are refused at first, and commits, too.
    fn counting_config(&self) -> Config {
        let mut config = self.config();
        config.tally.geoshard = true;
        config.tally.facets =
            [("round", "round"), ("n", "n")].map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        config.tally.emit_interval = Duration::from_millis(50);
        config
    }

    /// All increments in their topic, in order.
    fn increments(&self) -> Vec<Increment> {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", self.broker.bootstrap_servers()).set("group.id", "merger");
        let reader: BaseConsumer = client.set("enable.partition.eof", "true").create().unwrap();
        let mut list = TopicPartitionList::new();
        for partition in [0, 1] {
            list.add_partition_offset(INCREMENTS, partition, Offset::Beginning).unwrap();
        }
        reader.assign(&list).unwrap();
        let (mut increments, mut ends) = (Vec::new(), std::collections::BTreeSet::new());
        let limit = std::time::Instant::now() + PATIENCE;
        while ends.len() < 2 {
            assert!(std::time::Instant::now() < limit, "the topic of increments has no end");
            match reader.poll(Duration::from_millis(200)) {
                Some(Ok(message)) => {
                    let increment = Increment::from_json(message.payload().unwrap()).unwrap();
                    assert_eq!(message.key(), Some(increment.key().as_bytes()));
                    increments.push(increment);
                }
                Some(Err(rdkafka::error::KafkaError::PartitionEOF(partition))) => {
                    ends.insert(partition);
                }
                Some(Err(error)) => panic!("{error}"),
                None => {}
            }
        }
        increments
    }

    /// Merges all increments, twice, and compares them with the index.
    fn assert_counted(&self, config: &Config) {
        let rules = FacetRules::configured(&config.tally).unwrap();
        let increments = self.increments();
        let mut names: Vec<&str> = increments.iter().map(|increment| increment.id.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), increments.len(), "each has a name of its own");
        let mut merger = Merger::default();
        increments.iter().chain(&increments).for_each(|increment| merger.merge(increment));
        let documents = self.elastic.ids();
        assert_eq!(merger.counts, recount(&rules, documents.iter().flat_map(|id| self.elastic.copies(id))));
        assert!(!merger.counts.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn increments_equal_a_recount_despite_crashes_and_failed_commits() {
    let mut world = World::new();
    world.broker.create_topic(INCREMENTS, 2, 1).unwrap();
    let config = world.counting_config();
    world.produce(1, 200, 0);
    let first = world.start(&config);
    until("the first owns all", || first.owned() == i64::from(PARTITIONS)).await;
    // Increments are acknowledged while the commits of their offsets fail.
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 6];
    world.broker.request_errors(RDKafkaApiKey::OffsetCommit, &refused);
    world.produce(2, 200, 0);
    let second = world.start(&config);
    until("the second owns its share", || second.owned() > 0 && first.owned() + second.owned() == 4).await;
    world.produce(3, 200, 0);
    // An abort: work in flight is left as it is.
    first.task.abort();
    until("the second owns all", || second.owned() == i64::from(PARTITIONS)).await;
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 3];
    world.broker.request_errors(RDKafkaApiKey::Produce, &refused);
    world.produce(4, 200, 0);
    let third = world.start(&config);
    world.produce(5, 40, 0);
    world.until_done().await;
    world.assert_counted(&config);
    second.stop().await.unwrap();
    world.produce(6, 40, 0);
    world.until_done().await;
    third.stop().await.unwrap();
    world.assert_counted(&config);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_committed_while_increments_are_refused() {
    let mut world = World::new();
    world.broker.create_topic(INCREMENTS, 2, 1).unwrap();
    let config = world.counting_config();
    world.produce(1, 40, 0);
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 100_000];
    world.broker.request_errors(RDKafkaApiKey::Produce, &refused);
    let worker = world.start(&config);
    let written = || world.elastic.ids() == world.wanted.keys().cloned().collect();
    until("documents do not wait", written).await;
    until("it was tried", || worker.gauge("geofold_tally_increments_total{result=\"failed\"}") > 4).await;
    // The start offset may be committed: nothing is below it.
    assert!(world.committed().values().all(|offset| *offset == 0), "{:?}", world.committed());
    world.broker.clear_request_errors(RDKafkaApiKey::Produce);
    world.until_done().await;
    worker.stop().await.unwrap();
    world.assert_counted(&config);
}
