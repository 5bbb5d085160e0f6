//! A Kafka broker inside this process: librdkafka's mock cluster, on loopback, in memory.
//!
//! It has consumer groups of both protocols, keeps the last 5 MiB of each partition, and forgets everything when it is
//! dropped. Other processes on this machine can connect to it.

use std::time::Duration;

use rdkafka::error::KafkaResult;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

/// A broker that lives as long as this value.
pub struct EmbeddedBroker {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

impl EmbeddedBroker {
    /// What one partition holds before its oldest records are dropped, in bytes as they were sent.
    pub const PARTITION_BYTES: u64 = 5 << 20;

    /// Starts a broker on free ports of loopback.
    pub fn start() -> KafkaResult<Self> {
        Ok(Self { cluster: MockCluster::new(1)? })
    }

    /// For `bootstrap.servers`.
    pub fn address(&self) -> String {
        self.cluster.bootstrap_servers()
    }

    /// Makes a topic.
    pub fn create_topic(&self, name: &str, partitions: i32) -> KafkaResult<()> {
        self.cluster.create_topic(name, partitions, 1)
    }

    /// Takes the broker off the network, or brings it back. What it holds stays.
    pub fn set_down(&self, down: bool) -> KafkaResult<()> {
        const BROKER: i32 = 1;
        if down { self.cluster.broker_down(BROKER) } else { self.cluster.broker_up(BROKER) }
    }

    /// Every answer takes this much longer.
    pub fn set_round_trip(&self, delay: Duration) -> KafkaResult<()> {
        self.cluster.broker_round_trip_time(1, delay)
    }
}
