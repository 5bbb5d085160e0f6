//! What geofold needs of Kafka beyond rust-rdkafka: a topic's id and number of partitions before it is worked on,
//! commits whose answer comes back, brokers that are found again, and a producer that survives a fatal error of its client.

#[cfg(test)]
mod fenced_broker;
pub mod login;
pub mod lost_brokers;
mod native;
pub mod partitioner;
pub(crate) mod resilient_producer;

use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedHeaders, OwnedHeaders};
use rdkafka::metadata::MetadataBroker;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use thiserror::Error;

use self::login::{Login, NoToken};
#[cfg(test)]
pub(crate) use self::native::produce_with_header;
pub use self::native::{Fetched, FetchedRecord, RecordQueue};
use crate::support::config::{Config, Properties};

/// A consumer that has no context of its own.
pub type PlainConsumer = BaseConsumer<Login>;

/// A consumer of these settings, logged in if they name a source of tokens.
///
/// # Errors
/// If librdkafka refuses the settings, or there is no token.
pub fn plain_consumer(settings: &ClientConfig) -> KafkaResult<PlainConsumer> {
    let consumer = settings.create_with_context(Login)?;
    logged_in(&consumer)?;
    Ok(consumer)
}

/// The consumer, for a request: with the token of now, if it uses one and is not polled.
///
/// # Errors
/// If there is no token.
pub fn logged_in(consumer: &PlainConsumer) -> KafkaResult<&PlainConsumer> {
    login::log_in(consumer.client()).map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
    Ok(consumer)
}

/// librdkafka's configuration from plain settings.
pub fn client_config(properties: &Properties) -> ClientConfig {
    let mut client = ClientConfig::new();
    for (key, value) in properties.iter() {
        client.set(key, value);
    }
    client
}

/// A setting of `[kafka.properties]` or `[kafka.producer_properties]` that librdkafka does not take.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("kafka.{table}: librdkafka refuses {key} = {value:?}: {reason}; correct it, or remove it")]
pub struct BadProperty {
    table: &'static str,
    key: String,
    value: String,
    reason: String,
}

/// Asks librdkafka whether it takes the settings of both clients. Sends nothing.
///
/// # Errors
/// With the first one that it does not take.
pub fn check_properties(config: &Config) -> Result<(), BadProperty> {
    let clients = [
        ("properties", config.consumer_properties()),
        ("producer_properties", config.topic_producer_properties()),
    ];
    for (table, properties) in clients {
        // Other errors show when a client is made.
        if let Err(KafkaError::ClientConfig(_, reason, key, _)) =
            client_config(&properties).create_native_config()
        {
            let value = properties.shown(&key).to_owned();
            return Err(BadProperty { table, key, value, reason });
        }
    }
    Ok(())
}

/// Compressions that geofold can read.
pub const CODECS: [&str; 4] = ["gzip", "snappy", "lz4", "zstd"];

/// Those of [`CODECS`] that this build's librdkafka has. A topic with records of another one cannot be read.
pub fn codecs() -> Vec<&'static str> {
    let native = ClientConfig::new().create_native_config();
    let features = native.and_then(|native| native.get("builtin.features")).unwrap_or_default();
    let built_in: Vec<&str> = features.split(',').map(str::trim).collect();
    CODECS.into_iter().filter(|codec| built_in.contains(codec)).collect()
}

/// For the beginning of `main`: keeps OpenSSL, if it is built in, from cleaning up when the process exits.
///
/// It would do so while threads that spoke TLS, librdkafka's and the runtime's, may still be ending; such a thread then uses what
/// was just freed, and the process dies of SIGSEGV after all its work was done (tests/security, `leaving`).
pub(crate) fn skip_openssl_atexit() {
    #[cfg(feature = "tls")]
    openssl_sys::init(); // OPENSSL_INIT_NO_ATEXIT
}

/// Commits `offsets` without waiting; the answer comes through the context's `commit_callback`, in a later `poll`.
///
/// # Errors
/// If librdkafka does not even try: the consumer is in no group, or is closing.
pub fn commit_with_answer<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    offsets: &TopicPartitionList,
) -> KafkaResult<()> {
    native::commit_with_answer(consumer, offsets)
}

/// A copy of headers. A name that is not valid UTF-8 gets replacement characters; rust-rdkafka's own functions panic at it.
pub fn owned_headers(headers: &BorrowedHeaders) -> OwnedHeaders {
    native::owned_headers(headers)
}

/// The offset after everything taken of a partition, including offsets without records. `None`: nothing taken since the
/// assignment.
pub fn position<C: ConsumerContext>(consumer: &BaseConsumer<C>, topic: &str, partition: i32) -> Option<i64> {
    let mut asked = TopicPartitionList::with_capacity(1);
    asked.add_partition(topic, partition);
    native::positions(consumer, &asked)?;
    let element = asked.find_partition(topic, partition)?;
    if let Offset::Offset(offset) = element.offset() { Some(offset) } else { None }
}

/// The leader epoch of an offset in a list.
pub fn leader_epoch(list: &TopicPartitionList, topic: &str, partition: i32) -> Option<i32> {
    Some(native::leader_epoch(list, topic, partition)).filter(|epoch| *epoch >= 0)
}

/// Sets the leader epoch beside an offset of a list.
pub fn set_leader_epoch(list: &mut TopicPartitionList, topic: &str, partition: i32, epoch: i32) {
    native::set_leader_epoch(list, topic, partition, epoch);
}

/// Sets leader epochs of offsets to commit: that of the newest record polled. It is at least as new as everything before the
/// offset, and missing from the log if the log was truncated.
pub fn add_leader_epochs<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    offsets: &mut TopicPartitionList,
) {
    let mut known = Vec::with_capacity(offsets.count());
    let positions = offsets.clone();
    if native::positions(consumer, &positions).is_none() {
        return;
    }
    for (offset, position) in offsets.elements().iter().zip(positions.elements()) {
        if let (Offset::Offset(offset), Offset::Offset(polled)) = (offset.offset(), position.offset())
            && offset <= polled
            && let Some(epoch) = leader_epoch(&positions, topic, position.partition())
        {
            known.push((position.partition(), epoch));
        }
    }
    for (partition, epoch) in known {
        set_leader_epoch(offsets, topic, partition, epoch);
    }
}

/// A partition's first offset as the last answer with records has told, without asking; negative if none has.
pub fn known_beginning<C: ConsumerContext>(consumer: &BaseConsumer<C>, topic: &str, partition: i32) -> i64 {
    native::known_ends(consumer, topic, partition).0
}

/// A partition's end, open transactions included, as the last answer with records has told, without asking; negative if none has.
pub fn known_end<C: ConsumerContext>(consumer: &BaseConsumer<C>, topic: &str, partition: i32) -> i64 {
    native::known_ends(consumer, topic, partition).1
}

/// Keeps what is fetched of a partition in a queue of its own, until it is [let through](RecordQueue::let_through). When that is full
/// (`queued.max.messages.kbytes`), librdkafka stops fetching. Unlike a pause it discards nothing. `false`: unknown partition.
///
/// A partition that was once held back is so again at its next assignment.
pub fn hold_back<C: ConsumerContext>(consumer: &BaseConsumer<C>, topic: &str, partition: i32) -> bool {
    native::hold_back(consumer, topic, partition)
}

/// How many events wait for the consumer's poll, which serves one each time.
pub fn waiting_events<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> usize {
    native::waiting_events(consumer)
}

/// A queue for records alone, so that events of the consumer, such as rebalances, need not wait for them.
///
/// # Errors
/// Without memory.
pub fn record_queue<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> KafkaResult<RecordQueue<'_, C>> {
    RecordQueue::new(consumer).ok_or_else(|| KafkaError::ClientCreation("no queue for records".to_owned()))
}

/// For the mock cluster inside a client: how long a new consumer group waits for more members. Does nothing if the client
/// has none.
pub(crate) fn set_initial_rebalance_delay<C: ClientContext>(client: &Client<C>, delay: Duration) {
    native::set_initial_rebalance_delay(client, delay);
}

/// A topic as the brokers describe it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicFactsFound {
    /// Kafka's topic id, as printed by `kafka-topics --describe`; re-creating the topic changes it. `None` from brokers before
    /// Kafka 2.8.
    pub topic_id: Option<String>,
    /// Number of partitions.
    pub partitions: i32,
}

/// A topic could not be described.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TopicFactsError {
    /// The brokers do not know the topic.
    #[error("the topic does not exist")]
    Missing,
    /// The user may not describe the topic.
    #[error("access denied: {0}")]
    Denied(String),
    /// The brokers and this client did not agree on TLS, or on who the user is.
    #[error("not let in: {0}")]
    NotLetIn(String),
    /// There is no token to log in with.
    #[error(transparent)]
    NoToken(#[from] NoToken),
    /// No broker answered in time.
    #[error("no broker answered: {0}")]
    Unreachable(String),
    /// Anything else, in librdkafka's words.
    #[error("{0}")]
    Other(String),
}

impl TopicFactsError {
    /// The error of a topic request, by librdkafka's code.
    pub fn from_code(code: RDKafkaErrorCode, reason: &str) -> Self {
        use RDKafkaErrorCode as Code;
        let words = if reason.is_empty() { code.to_string() } else { reason.to_owned() };
        match code {
            Code::UnknownTopicOrPartition | Code::UnknownTopic => Self::Missing,
            Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => Self::Denied(words),
            Code::SaslAuthenticationFailed | Code::Authentication | Code::SSL => Self::NotLetIn(words),
            Code::OperationTimedOut
            | Code::RequestTimedOut
            | Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::BrokerNotAvailable
            | Code::LeaderNotAvailable
            | Code::NetworkException
            | Code::Resolve => Self::Unreachable(words),
            _ => Self::Other(words),
        }
    }

    fn other(words: &str) -> Self {
        Self::Other(words.to_owned())
    }
}

/// Asks the brokers about `topic`. Blocks for `timeout` and a second at most.
///
/// `client` should be a consumer's: a producer's asks the brokers to create a topic that they do not know, unless
/// `allow.auto.create.topics` is set to `false`.
pub fn topic_facts<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    timeout: Duration,
) -> Result<TopicFactsFound, TopicFactsError> {
    let begin = Instant::now();
    login::log_in(client)?;
    let metadata = client.fetch_metadata(Some(topic), timeout).map_err(|error| {
        lost_brokers::find_brokers_again(client);
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        TopicFactsError::from_code(code, "")
    })?;
    let answered = metadata.orig_broker_id();
    let broker = metadata.brokers().iter().map(MetadataBroker::id).max_by_key(|&id| id == answered);
    let broker =
        broker.ok_or_else(|| TopicFactsError::Unreachable("the cluster names no broker".to_owned()))?;
    native::describe_topic(client, broker, topic, timeout.saturating_sub(begin.elapsed()))
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rdkafka::consumer::{BaseConsumer, Consumer, Rebalance};
    use rdkafka::message::{Header, Headers};
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    use rdkafka::{ClientConfig, Message};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn consumer(brokers: &str) -> BaseConsumer {
        ClientConfig::new().set("bootstrap.servers", brokers).set("group.id", "g").create().unwrap()
    }

    /// Records in the first partition of `documents`.
    fn produce_ten(brokers: &str) {
        let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
        for _ in 0..10 {
            producer.send(BaseRecord::<(), str>::to("documents").partition(0).payload("{}")).unwrap();
        }
        producer.flush(PATIENCE).unwrap();
    }

    #[test]
    fn every_codec_of_kafka_is_in_this_build() {
        assert_eq!(codecs(), CODECS);
    }

    #[test]
    fn a_topic_is_described_and_never_created() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("documents", 3, 1).unwrap();
        let consumer = consumer(&cluster.bootstrap_servers());
        let ask = |topic| topic_facts(consumer.client(), topic, Duration::from_secs(10));

        let found = ask("documents").unwrap();
        assert_eq!(found.partitions, 3);
        assert_eq!(ask("documents").unwrap(), found, "the id must be stable");
        for _ in 0..2 {
            assert_eq!(ask("absent"), Err(TopicFactsError::Missing));
        }
        assert!(matches!(ask(""), Err(TopicFactsError::Other(_))));
        assert!(matches!(ask("a\0b"), Err(TopicFactsError::Other(_))));
    }

    #[test]
    fn headers_are_copied_in_their_order() {
        let header = |key, value| Header { key, value };
        let all = [header("a", Some(b"1".as_slice())), header("b", None), header("a", Some(b"".as_slice()))];
        let given = all.iter().cloned().fold(OwnedHeaders::new(), OwnedHeaders::insert);
        let copied = owned_headers(given.as_borrowed());
        assert!(copied.iter().eq(all));
        assert_eq!(owned_headers(OwnedHeaders::new().as_borrowed()).count(), 0);
    }

    /// Offsets of records that come within `patience`, at most as many as `wanted`.
    fn taken<C: ConsumerContext>(
        records: &RecordQueue<'_, C>,
        wanted: usize,
        patience: Duration,
    ) -> Vec<i64> {
        let (mut taken, begin) = (Vec::new(), Instant::now());
        while taken.len() < wanted && begin.elapsed() < patience {
            records.take_each(patience.saturating_sub(begin.elapsed()), |fetched| {
                let Fetched::Record(record) = fetched else { panic!("no record: {fetched:?}") };
                taken.push(record.offset());
                taken.len() < wanted
            });
        }
        taken
    }

    #[test]
    fn records_held_back_arrive_once_they_are_let_through_also_after_an_assignment() {
        const AT_ONCE: Duration = Duration::from_millis(300);
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("documents", 1, 1).unwrap();
        let brokers = cluster.bootstrap_servers();
        let consumer = consumer(&brokers);
        let queue = record_queue(&consumer).unwrap();
        let assign = |offset| {
            let mut list = TopicPartitionList::new();
            list.add_partition_offset("documents", 0, Offset::Offset(offset)).unwrap();
            consumer.assign(&list).unwrap();
        };
        let read = |offsets: Range<i64>| {
            let wanted: Vec<_> = offsets.collect();
            assert_eq!(taken(&queue, wanted.len(), PATIENCE), wanted);
        };
        let nothing = || assert_eq!(taken(&queue, 1, AT_ONCE), [0; 0]);

        produce_ten(&brokers);
        assert!(hold_back(&consumer, "documents", 0));
        assign(0);
        nothing();
        assert!(queue.let_through("documents", 0));
        read(0..10);
        assert!(hold_back(&consumer, "documents", 0));
        produce_ten(&brokers);
        nothing();
        assert!(queue.let_through("documents", 0));
        read(10..20);

        assert!(hold_back(&consumer, "documents", 0));
        consumer.unassign().unwrap();
        assign(5);
        nothing();
        assert!(queue.let_through("documents", 0));
        read(5..20);
        assert!(consumer.poll(AT_ONCE).is_none(), "no record came among the events");
    }

    /// Counts partitions that were revoked.
    #[derive(Default)]
    struct Revoked(AtomicUsize);

    impl ClientContext for Revoked {}

    impl ConsumerContext for Revoked {
        fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
            match rebalance {
                Rebalance::Assign(_) => assert!(hold_back(consumer, "documents", 0)),
                Rebalance::Revoke(list) => self.0.store(list.count(), Ordering::Relaxed),
                Rebalance::Error(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn a_rebalance_does_not_wait_for_records() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("documents", 1, 1).unwrap();
        let brokers = cluster.bootstrap_servers();
        produce_ten(&brokers);
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &brokers).set("group.id", "g").set("auto.offset.reset", "earliest");
        let consumer: BaseConsumer<Revoked> = config.create_with_context(Revoked::default()).unwrap();
        let queue = record_queue(&consumer).unwrap();
        let revoked = || consumer.context().0.load(Ordering::Relaxed);
        consumer.subscribe(&["documents"]).unwrap();
        let begin = Instant::now();
        while consumer.assignment().unwrap().count() == 0 && begin.elapsed() < PATIENCE {
            assert!(consumer.poll(Duration::from_millis(10)).is_none());
        }
        assert!(queue.let_through("documents", 0));
        assert_eq!(taken(&queue, 1, PATIENCE), [0], "and nine wait");

        assert_eq!(waiting_events(&consumer), 0);
        consumer.unsubscribe();
        while waiting_events(&consumer) == 0 && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        while revoked() == 0 && begin.elapsed() < PATIENCE {
            assert!(consumer.poll(Duration::from_millis(10)).is_none());
        }
        assert_eq!(revoked(), 1);
        assert_eq!(taken(&queue, 1, Duration::from_millis(300)), [0; 0], "the next owner reads them");
    }

    #[test]
    fn a_record_comes_whole_and_a_partition_s_end_after_the_last() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("documents", 1, 1).unwrap();
        let brokers = cluster.bootstrap_servers();
        let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", &brokers).create().unwrap();
        let headers = OwnedHeaders::new().insert(Header { key: "a", value: Some("1") });
        let record = BaseRecord::to("documents").partition(0).key("k").payload("{}").headers(headers.clone());
        producer.send(record).unwrap();
        producer.send(BaseRecord::<str, str>::to("documents").partition(0)).unwrap();
        producer.flush(PATIENCE).unwrap();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &brokers).set("group.id", "g").set("enable.partition.eof", "true");
        let consumer: BaseConsumer = config.create().unwrap();
        let queue = record_queue(&consumer).unwrap();
        assert!(hold_back(&consumer, "documents", 0) && queue.let_through("documents", 0));
        let mut list = TopicPartitionList::new();
        list.add_partition_offset("documents", 0, Offset::Beginning).unwrap();
        consumer.assign(&list).unwrap();
        let (mut found, mut end, begin) = (Vec::new(), None, Instant::now());
        while end.is_none() && begin.elapsed() < PATIENCE {
            queue.take_each(PATIENCE, |fetched| {
                match fetched {
                    Fetched::Record(record) => {
                        let text = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
                        let (key, value) = (text(record.key()), text(record.value()));
                        found.push((record.partition(), record.offset(), key, value, record.headers()));
                    }
                    Fetched::End(partition) => {
                        end = Some((partition, position(&consumer, "documents", partition)))
                    }
                    Fetched::Error(error) => panic!("{error}"),
                }
                true
            });
        }
        let first = (0, 0, Some(b"k".to_vec()), Some(b"{}".to_vec()), true);
        let second = (0, 1, None, None, false);
        assert!(found[0].4.as_ref().is_some_and(|found| found.iter().eq(headers.iter())));
        let found: Vec<_> = found
            .into_iter()
            .map(|(partition, offset, key, value, headers)| {
                (partition, offset, key, value, headers.is_some())
            })
            .collect();
        assert_eq!(found, [first, second]);
        assert_eq!(end, Some((0, Some(2))));
    }

    #[test]
    fn a_panic_in_the_taker_reaches_its_caller_and_loses_no_other_record() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("documents", 1, 1).unwrap();
        let brokers = cluster.bootstrap_servers();
        produce_ten(&brokers);
        let consumer = consumer(&brokers);
        let queue = record_queue(&consumer).unwrap();
        assert!(hold_back(&consumer, "documents", 0) && queue.let_through("documents", 0));
        let mut list = TopicPartitionList::new();
        list.add_partition_offset("documents", 0, Offset::Offset(0)).unwrap();
        consumer.assign(&list).unwrap();
        let panics = catch_unwind(AssertUnwindSafe(|| {
            // A wait may also end with an event of librdkafka's own.
            (0..10).for_each(|_| queue.take_each(PATIENCE, |_| panic!("on purpose")));
        }));
        assert_eq!(panics.unwrap_err().downcast_ref(), Some(&"on purpose"));
        assert_eq!(taken(&queue, 9, PATIENCE), (1..10).collect::<Vec<_>>());
    }

    #[test]
    fn where_a_partition_begins_and_ends_is_known_once_it_is_read() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("documents", 1, 1).unwrap();
        let brokers = cluster.bootstrap_servers();
        produce_ten(&brokers);
        let consumer = consumer(&brokers);
        let ends = || [known_beginning, known_end].map(|known| known(&consumer, "documents", 0));
        assert!(ends().iter().all(|offset| *offset < 0), "{:?}", ends());
        let mut from_the_sixth = TopicPartitionList::new();
        from_the_sixth.add_partition_offset("documents", 0, Offset::Offset(5)).unwrap();
        consumer.assign(&from_the_sixth).unwrap();
        let record = std::iter::repeat_with(|| consumer.poll(PATIENCE)).take(10).flatten().next();
        assert_eq!(record.map(|record| record.unwrap().offset()), Some(5));
        assert_eq!(ends(), [0, 10]);
        assert!(known_end(&consumer, "documents", 1) < 0 && known_end(&consumer, "d\0", 0) < 0);
    }

    #[test]
    fn brokers_that_are_not_there_are_unreachable_within_the_timeout() {
        // Nothing listens on the discard port; no name has to be resolved for it.
        let consumer = consumer("127.0.0.1:9");
        let begin = Instant::now();
        let answer = topic_facts(consumer.client(), "documents", Duration::from_millis(300));
        assert!(matches!(answer, Err(TopicFactsError::Unreachable(_))), "{answer:?}");
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    }

    #[test]
    fn codes_that_mean_a_wrong_setup_differ_from_those_that_pass() {
        use RDKafkaErrorCode as Code;
        let of = |code| TopicFactsError::from_code(code, "why");
        assert_eq!(of(Code::UnknownTopicOrPartition), TopicFactsError::Missing);
        assert_eq!(of(Code::Authentication), TopicFactsError::NotLetIn("why".into()));
        assert_eq!(of(Code::TopicAuthorizationFailed), TopicFactsError::Denied("why".into()));
        assert_eq!(of(Code::AllBrokersDown), TopicFactsError::Unreachable("why".into()));
        assert_eq!(of(Code::InvalidTopic), TopicFactsError::Other("why".into()));
    }
}
