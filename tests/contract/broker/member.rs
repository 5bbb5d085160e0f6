//! A member of a consumer group, as geofold's poll thread is one: it polls on a thread of its own, and remembers.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use geofold::io::kafka::commit_with_answer;
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaResult;
use rdkafka::message::Message;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::{Broker, wait_for};

/// First argument of this very program when it is to be a member that is killed.
pub const CONSUME: &str = "--consume";

/// How a group shares its partitions out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Classic; everybody gives everything back first.
    Range,
    /// Classic; only what moves is given back.
    CooperativeSticky,
    /// `group.protocol=consumer`: the broker decides.
    Consumer,
}

impl Protocol {
    pub const ALL: [Self; 3] = [Self::Range, Self::CooperativeSticky, Self::Consumer];

    fn set(self, client: &mut ClientConfig) {
        match self {
            Self::Range => client.set("partition.assignment.strategy", "range"),
            Self::CooperativeSticky => client.set("partition.assignment.strategy", "cooperative-sticky"),
            Self::Consumer => client.set("group.protocol", "consumer"),
        };
        if self != Self::Consumer {
            client.set("session.timeout.ms", "3000").set("heartbeat.interval.ms", "300");
        }
    }
}

#[derive(Debug, Default)]
pub struct Seen {
    pub assigned: BTreeSet<i32>,
    /// Each revocation, in order.
    pub revoked: Vec<Vec<i32>>,
    /// Partition, offset and key of each record, in order.
    pub records: Vec<(i32, i64, String)>,
    /// Answers to commits.
    pub commits: Vec<Result<Vec<(i32, i64)>, String>>,
}

struct Context(Arc<Mutex<Seen>>);

impl ClientContext for Context {}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            let partitions: Vec<i32> = list.elements().iter().map(|element| element.partition()).collect();
            let mut seen = self.0.lock().unwrap();
            seen.assigned.retain(|partition| !partitions.contains(partition));
            seen.revoked.push(partitions);
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            self.0.lock().unwrap().assigned.extend(list.elements().iter().map(|element| element.partition()));
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { -1 };
        let committed = offsets.elements().iter().map(|e| (e.partition(), offset(e.offset()))).collect();
        let answer = result.map(|()| committed).map_err(|error| error.to_string());
        self.0.lock().unwrap().commits.push(answer);
    }
}

/// See the file's first lines. Leaves the group when it is dropped.
pub struct Member {
    topic: String,
    consumer: Arc<BaseConsumer<Context>>,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    polling: Option<JoinHandle<()>>,
}

fn join(
    client: &mut ClientConfig,
    topic: &str,
    group: &str,
    protocol: Protocol,
) -> (BaseConsumer<Context>, Arc<Mutex<Seen>>) {
    protocol.set(client);
    client
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("fetch.wait.max.ms", "100");
    let seen = Arc::<Mutex<Seen>>::default();
    let consumer: BaseConsumer<Context> = client.create_with_context(Context(seen.clone())).unwrap();
    consumer.subscribe(&[topic]).unwrap();
    (consumer, seen)
}

impl Member {
    /// Joins the case's group.
    pub fn join(broker: &Broker, topic: &str, protocol: Protocol) -> Self {
        let (consumer, seen) = join(&mut broker.client(), topic, &broker.name("group"), protocol);
        let (consumer, stop) = (Arc::new(consumer), Arc::new(AtomicBool::new(false)));
        let polling = std::thread::spawn({
            let (consumer, seen, stop) = (consumer.clone(), seen.clone(), stop.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    // Errors pass, or show in what is not seen.
                    if let Some(Ok(message)) = consumer.poll(Duration::from_millis(20)) {
                        let key = String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned();
                        seen.lock().unwrap().records.push((message.partition(), message.offset(), key));
                    }
                }
            }
        });
        Self { topic: topic.to_owned(), consumer, seen, stop, polling: Some(polling) }
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    pub fn owns(&self) -> usize {
        self.seen().assigned.len()
    }

    pub fn wait_until_owns(&self, partitions: usize) {
        wait_for(&format!("{partitions} partitions"), || (self.owns() == partitions).then_some(()));
    }

    pub fn wait_until_read(&self, records: usize) {
        wait_for(&format!("{records} records"), || (self.seen().records.len() >= records).then_some(()));
    }

    /// Commits, as geofold does, without waiting.
    pub fn commit(&self, offsets: &[(i32, i64)]) -> KafkaResult<()> {
        let mut list = TopicPartitionList::new();
        for &(partition, offset) in offsets {
            list.add_partition_offset(&self.topic, partition, Offset::Offset(offset)).unwrap();
        }
        commit_with_answer(&self.consumer, &list)
    }

    /// Leaves the group.
    pub fn leave(self) {}
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(polling) = self.polling.take() {
            let _ = polling.join();
        }
    }
}

/// A member in a process of its own, to be killed.
pub struct Victim(Child);

impl Victim {
    pub fn start(broker: &Broker, topic: &str, protocol: Protocol) -> Self {
        let number = Protocol::ALL.iter().position(|other| *other == protocol).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([CONSUME, &broker.address, topic, &broker.name("group"), &number.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    /// Waits for the first record that it reads, then kills it with -9.
    pub fn kill_after_reading(mut self) {
        let mut first = [0];
        std::io::Read::read_exact(self.0.stdout.as_mut().unwrap(), &mut first).unwrap();
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What this program does as a [`Victim`]: reads, commits nothing, and says when it has read something.
pub fn consume_until_killed(arguments: &[String]) {
    let [address, topic, group, protocol] = arguments else { panic!("{arguments:?}") };
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", address);
    let (consumer, _) = join(&mut client, topic, group, Protocol::ALL[protocol.parse::<usize>().unwrap()]);
    loop {
        if let Some(Ok(_)) = consumer.poll(Duration::from_millis(20)) {
            std::io::stdout().write_all(b"r").and_then(|()| std::io::stdout().flush()).unwrap();
        }
    }
}
