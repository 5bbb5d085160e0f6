//! A Kafka broker inside this process: librdkafka's mock cluster, on loopback, in memory.
//!
//! It has consumer groups of both protocols, keeps the last 5 MiB of each partition, and forgets everything when it is
//! dropped. Compressed batches are kept as they come. Other processes on this machine can connect to it. What geofold asks of a broker, it is held to by the same
//! cases as a real one (`tests/contract/broker`). Known to be missing: transactions, tiers of offsets by time, compaction,
//! security; of several partitions' ends only what a reader fetches.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, DefaultProducerContext, Producer};
use rdkafka::types::{RDKafkaApiKey, RDKafkaErrorCode, RDKafkaRespErr};

use crate::io::kafka::set_initial_rebalance_delay;

/// The number that the cluster gives to its only node.
const NODE: i32 = 1;

/// A broker that lives as long as this value.
pub struct EmbeddedBroker {
    /// Has the cluster inside.
    host: BaseProducer,
    address: String,
}

/// A kind of request that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerCall {
    /// A consumer commits offsets.
    Commit,
    /// A consumer fetches records.
    Fetch,
    /// A producer sends records.
    Produce,
    /// An idempotent producer asks for its id.
    InitProducer,
    /// A client looks for its group's coordinator.
    FindCoordinator,
}

impl From<BrokerCall> for RDKafkaApiKey {
    fn from(call: BrokerCall) -> Self {
        match call {
            BrokerCall::Commit => Self::OffsetCommit,
            BrokerCall::Fetch => Self::Fetch,
            BrokerCall::Produce => Self::Produce,
            BrokerCall::InitProducer => Self::InitProducerId,
            BrokerCall::FindCoordinator => Self::FindCoordinator,
        }
    }
}

impl EmbeddedBroker {
    /// Maximum bytes per partition, as sent; the oldest records are dropped beyond that.
    pub const PARTITION_BYTES: u64 = 5 << 20;

    /// Starts a broker on free ports of loopback.
    pub fn start() -> KafkaResult<Self> {
        let host = ClientConfig::new().set("test.mock.num.brokers", NODE.to_string()).create()?;
        let address = cluster(&host)?.bootstrap_servers();
        Ok(Self { host, address })
    }

    fn cluster(&self) -> KafkaResult<MockCluster<'_, DefaultProducerContext>> {
        cluster(&self.host)
    }

    /// For `bootstrap.servers`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Makes a topic.
    pub fn create_topic(&self, name: &str, partitions: i32) -> KafkaResult<()> {
        self.cluster()?.create_topic(name, partitions, 1)
    }

    /// Disconnects the broker from the network, or reconnects it. It keeps its records.
    pub fn set_down(&self, down: bool) -> KafkaResult<()> {
        let cluster = self.cluster()?;
        if down { cluster.broker_down(NODE) } else { cluster.broker_up(NODE) }
    }

    /// Every answer takes this much longer.
    pub fn set_round_trip(&self, delay: Duration) -> KafkaResult<()> {
        self.cluster()?.broker_round_trip_time(NODE, delay)
    }

    /// How long a new group waits for more members before it begins; 3 s if never set, as with a real broker.
    pub fn set_initial_rebalance_delay(&self, delay: Duration) {
        set_initial_rebalance_delay(self.host.client(), delay);
    }

    /// The next requests of this kind fail, one with each of these.
    pub fn fail_next(&self, call: BrokerCall, errors: &[RDKafkaRespErr]) -> KafkaResult<()> {
        self.cluster()?.request_errors(call.into(), errors);
        Ok(())
    }
}

/// It is made with the client, and goes with it.
fn cluster(host: &BaseProducer) -> KafkaResult<MockCluster<'_, DefaultProducerContext>> {
    host.client().mock_cluster().ok_or(KafkaError::MockCluster(RDKafkaErrorCode::Fail))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
    use rdkafka::{Offset, TopicPartitionList};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(120);

    /// A member of a new group, with its partition, and how long that took.
    fn member(broker: &EmbeddedBroker) -> (BaseConsumer, Duration) {
        broker.create_topic("t", 1).unwrap();
        let mut client = ClientConfig::new();
        client
            .set("bootstrap.servers", broker.address())
            .set("group.id", "g")
            .set("session.timeout.ms", "6000");
        let member: BaseConsumer = client.set("enable.auto.commit", "false").create().unwrap();
        member.subscribe(&["t"]).unwrap();
        let began = Instant::now();
        while member.assignment().unwrap().count() == 0 {
            assert!(began.elapsed() < TIMEOUT, "no partition");
            member.poll(Duration::from_millis(10));
        }
        (member, began.elapsed())
    }

    fn commit(member: &BaseConsumer, offset: i64) -> KafkaResult<()> {
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset("t", 0, Offset::Offset(offset))?;
        member.commit(&offsets, CommitMode::Sync)
    }

    #[test]
    fn a_commit_fails_as_planned_and_only_then() {
        let broker = EmbeddedBroker::start().unwrap();
        broker.set_initial_rebalance_delay(Duration::ZERO);
        let (member, _) = member(&broker);
        broker
            .fail_next(BrokerCall::Commit, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS])
            .unwrap();
        let refused = commit(&member, 1).unwrap_err();
        assert_eq!(refused.rdkafka_error_code(), Some(RDKafkaErrorCode::RebalanceInProgress));
        commit(&member, 1).unwrap();
    }

    #[test]
    fn a_new_group_waits_for_its_initial_delay() {
        let broker = EmbeddedBroker::start().unwrap();
        // Longer than the 3 s of librdkafka's mock.
        broker.set_initial_rebalance_delay(Duration::from_secs(5));
        assert!(member(&broker).1 > Duration::from_millis(4900));
    }

    #[test]
    fn responses_are_delayed_and_missing_while_down() {
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("t", 1).unwrap();
        let client: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", broker.address()).create().unwrap();
        let ask = |timeout| client.fetch_metadata(Some("t"), timeout).map(drop);
        ask(TIMEOUT).unwrap();
        broker.set_round_trip(Duration::from_millis(300)).unwrap();
        let began = Instant::now();
        ask(TIMEOUT).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
        broker.set_round_trip(Duration::ZERO).unwrap();
        broker.set_down(true).unwrap();
        assert!(ask(Duration::from_millis(500)).is_err());
        broker.set_down(false).unwrap();
        ask(TIMEOUT).unwrap();
    }
}
