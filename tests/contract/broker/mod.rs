//! What geofold asks of a Kafka broker, asked of the embedded one and, where GEOFOLD_TEST_KAFKA is set, of a real one.

mod commits;
mod groups;
mod member;
mod outages;
mod records;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use geofold::testkit::embedded::broker::EmbeddedBroker;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

pub(crate) use crate::wait::{TIMEOUT, wait_for};
pub use member::{CONSUME, consume_until_killed};

/// Cases that one broker is asked at the same time; most of their time they wait for a group.
const SIDE_BY_SIDE: usize = 4;

/// One thing that both brokers must do alike.
pub struct Case {
    name: &'static str,
    run: fn(&Broker),
}

/// Makes `pub const CASES` of functions `fn(&Broker)`.
#[macro_export]
macro_rules! broker_cases {
    ($($name:ident),* $(,)?) => {
        pub const CASES: &[super::Case] = &[$(super::Case {
            name: concat!(module_path!(), "::", stringify!($name)),
            run: $name,
        }),*];
    };
}

/// A broker to ask, and names on it that no other case uses.
pub struct Broker {
    pub address: String,
    prefix: String,
    kind: Kind,
}

enum Kind {
    Embedded(Arc<EmbeddedBroker>),
    Real,
}

/// Something to produce.
#[derive(Default)]
pub struct Sent<'a> {
    pub partition: Option<i32>,
    pub key: Option<&'a str>,
    pub value: Option<&'a str>,
    pub header: Option<(&'a str, &'a str)>,
}

impl Broker {
    /// What every client begins with.
    pub fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.address);
        client
    }

    /// A name of this case's own.
    pub fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// Makes a topic; gives its name.
    pub fn create_topic(&self, partitions: i32) -> String {
        let topic = self.name("topic");
        match &self.kind {
            Kind::Embedded(broker) => broker.create_topic(&topic, partitions).unwrap(),
            Kind::Real => {
                let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
                let new = NewTopic::new(&topic, partitions, TopicReplication::Fixed(1));
                let options = AdminOptions::new();
                let made = futures::executor::block_on(admin.create_topics([&new], &options)).unwrap();
                made.into_iter().for_each(|made| drop(made.unwrap()));
            }
        }
        topic
    }

    /// Produces, in this order, and waits until all is acknowledged.
    pub fn produce(&self, topic: &str, records: &[Sent<'_>]) {
        let producer: BaseProducer = self.client().set("partitioner", "murmur2_random").create().unwrap();
        for sent in records {
            let mut record: BaseRecord<'_, str, str> = BaseRecord::to(topic);
            (record.partition, record.key, record.payload) = (sent.partition, sent.key, sent.value);
            if let Some((key, value)) = sent.header {
                record = record.headers(OwnedHeaders::new().insert(Header { key, value: Some(value) }));
            }
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(TIMEOUT).unwrap();
    }

    /// `count` records to each of so many partitions, with keys `partition-number`.
    pub fn produce_to_each(&self, topic: &str, partitions: i32, count: usize) {
        let keys: Vec<(i32, String)> = (0..partitions)
            .flat_map(|partition| (0..count).map(move |n| (partition, format!("{partition}-{n}"))))
            .collect();
        let sent = |(partition, key): &'static (i32, String)| Sent {
            partition: Some(*partition),
            key: Some(key),
            value: Some("{}"),
            header: None,
        };
        // A few names, for the life of a test.
        let keys: &'static [(i32, String)] = Box::leak(keys.into_boxed_slice());
        self.produce(topic, &keys.iter().map(sent).collect::<Vec<_>>());
    }

    /// Takes the broker away for a while, what it holds excepted. A real one needs the stack that it came from.
    pub fn interrupt(&self, pause: Duration) {
        match &self.kind {
            Kind::Embedded(broker) => {
                broker.set_down(true).unwrap();
                std::thread::sleep(pause);
                broker.set_down(false).unwrap();
            }
            Kind::Real => {
                let dir = std::env::var("GEOFOLD_STACK_DIR").unwrap();
                let script = concat!(env!("CARGO_MANIFEST_DIR"), "/dev/stack");
                let told = Command::new(script).args(["--dir", &dir, "restart", "kafka"]).output().unwrap();
                assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
            }
        }
    }
}

/// Asks both brokers at the same time; says how it went, and whether all went well.
pub fn run(is_wanted: impl Fn(&str) -> bool) -> (String, bool) {
    let wanted = |cases: &'static [Case]| cases.iter().filter(|case| is_wanted(case.name));
    let cases: Vec<&Case> =
        [commits::CASES, groups::CASES, records::CASES].into_iter().flat_map(&wanted).collect();
    let outages: Vec<&Case> = wanted(outages::CASES).collect();
    let mut targets = vec![("embedded", None)];
    match std::env::var("GEOFOLD_TEST_KAFKA") {
        Ok(address) => targets.push(("kafka", Some(address))),
        Err(_) => println!("real Kafka: skipped, GEOFOLD_TEST_KAFKA is not set"),
    }
    let ask = |(target, address): &(&str, Option<String>)| {
        let is_shared = address.is_some();
        let stack = is_shared.then(crate::share_stack);
        let ok = run_all(&cases, SIDE_BY_SIDE, target, address.as_deref());
        drop(stack);
        // No test of this or another program uses the broker while it is stopped.
        let _alone = (is_shared && !outages.is_empty()).then(crate::have_stack_alone);
        ok + run_all(&outages, 1, target, address.as_deref())
    };
    let passed: Vec<usize> = std::thread::scope(|scope| {
        let asked: Vec<_> = targets.iter().map(|target| scope.spawn(|| ask(target))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let all = cases.len() + outages.len();
    let mut summary = format!("contract: {all} cases of a broker");
    for ((target, _), ok) in targets.iter().zip(&passed) {
        summary.push_str(&format!(", {target} {ok} ok"));
    }
    (summary, passed.iter().all(|ok| *ok == all))
}

/// How many cases passed, of which so many run at the same time; each one that did not is named.
fn run_all(cases: &[&Case], side_by_side: usize, target: &str, address: Option<&str>) -> usize {
    let (next, passed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let one_after_the_other = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = case.name.trim_start_matches("contract::");
            let is_ok = catch_unwind(AssertUnwindSafe(|| (case.run)(&broker_for(name, address)))).is_ok();
            println!("{target:<13} {}  {name}", if is_ok { "ok    " } else { "FAILED" });
            passed.fetch_add(usize::from(is_ok), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| (0..side_by_side).for_each(|_| drop(scope.spawn(one_after_the_other))));
    passed.into_inner()
}

/// The real broker at this address, or an embedded one of the case's own, since some are taken off the network.
fn broker_for(case: &str, address: Option<&str>) -> Broker {
    let prefix = format!("contract-{}-{}", std::process::id(), case.replace("::", "-"));
    if let Some(address) = address {
        return Broker { address: address.to_owned(), prefix, kind: Kind::Real };
    }
    let broker = EmbeddedBroker::start().unwrap();
    broker.set_initial_rebalance_delay(Duration::ZERO);
    Broker { address: broker.address().to_owned(), prefix, kind: Kind::Embedded(Arc::new(broker)) }
}
