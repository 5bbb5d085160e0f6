//! Records come back as they went in, and topics can be described.

use std::time::Duration;

use geofold::io::kafka::{TopicFactsError, topic_facts};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use super::{Broker, Sent, TIMEOUT, wait_for};
use crate::broker_cases;

broker_cases![
    key_value_tombstone_and_header_come_back_in_order,
    records_of_every_codec_come_back,
    ends_and_beginnings_are_told,
    a_key_goes_where_the_java_clients_put_it,
    a_topic_is_described_and_a_missing_one_is_missing,
];

fn reader(broker: &Broker, topic: &str) -> BaseConsumer {
    let reader: BaseConsumer = broker.client().set("group.id", "reader").create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    reader.assign(&list).unwrap();
    reader
}

fn key_value_tombstone_and_header_come_back_in_order(broker: &Broker) {
    let topic = broker.create_topic(1);
    let sent = [
        Sent { key: Some("a"), value: Some("{\"n\": 1.10}"), ..Sent::default() },
        Sent { key: Some("a"), value: Some("{}"), header: Some(("geofold-op", "patch")), ..Sent::default() },
        Sent { key: Some("ä\u{1f30d}"), value: None, ..Sent::default() },
        Sent { key: None, value: Some(""), ..Sent::default() },
    ];
    broker.produce(&topic, &sent);
    let reader = reader(broker, &topic);
    for (offset, sent) in (0..).zip(&sent) {
        let message = reader.poll(TIMEOUT).unwrap().unwrap();
        assert_eq!((message.partition(), message.offset()), (0, offset));
        assert_eq!(message.key(), sent.key.map(str::as_bytes));
        assert_eq!(message.payload(), sent.value.map(str::as_bytes));
        let header = message.headers().and_then(|headers| headers.iter().next());
        let header =
            header.map(|header| (header.key, header.value.map(|value| std::str::from_utf8(value).unwrap())));
        assert_eq!(header, sent.header.map(|(key, value)| (key, Some(value))));
    }
}

fn records_of_every_codec_come_back(broker: &Broker) {
    let topic = broker.create_topic(1);
    let codecs = ["none", "gzip", "snappy", "lz4", "zstd"];
    let value = |codec: &str, n: usize| format!("{{\"n\":{n},\"text\":\"{}\"}}", codec.repeat(100));
    for codec in codecs {
        let producer: BaseProducer =
            broker.client().set("compression.codec", codec).set("linger.ms", "50").create().unwrap();
        for n in 0..20 {
            let (key, value) = (format!("{codec}-{n}"), value(codec, n));
            producer
                .send(BaseRecord::to(&topic).partition(0).key(&key).payload(&value))
                .map_err(|(error, _)| error)
                .unwrap();
        }
        producer.flush(TIMEOUT).unwrap();
    }
    let reader = reader(broker, &topic);
    for (codec, n) in codecs.into_iter().flat_map(|codec| (0..20).map(move |n| (codec, n))) {
        let message = reader.poll(TIMEOUT).unwrap().unwrap();
        assert_eq!(message.key(), Some(format!("{codec}-{n}").as_bytes()));
        assert_eq!(message.payload(), Some(value(codec, n).as_bytes()), "{codec} {n}");
    }
}

fn ends_and_beginnings_are_told(broker: &Broker) {
    let topic = broker.create_topic(2);
    broker.produce(&topic, &[Sent { partition: Some(1), value: Some("{}"), ..Sent::default() }]);
    let reader = reader(broker, &topic);
    assert_eq!(reader.fetch_watermarks(&topic, 0, TIMEOUT).unwrap(), (0, 0));
    assert_eq!(reader.fetch_watermarks(&topic, 1, TIMEOUT).unwrap(), (0, 1));
}

fn a_key_goes_where_the_java_clients_put_it(broker: &Broker) {
    let topic = broker.create_topic(8);
    // By murmur2, as Kafka's own clients; computed with independent code.
    let keys = [("1", 7), ("person-4711", 4), ("ada", 5)];
    let sent = keys.map(|(key, _)| Sent { key: Some(key), value: Some("{}"), ..Sent::default() });
    broker.produce(&topic, &sent);
    let reader = reader(broker, &topic);
    for partition in 0..8 {
        let expected = i64::from(keys.iter().any(|(_, wanted)| *wanted == partition));
        let (_, end) = reader.fetch_watermarks(&topic, partition, TIMEOUT).unwrap();
        assert_eq!(end, expected, "partition {partition}");
    }
}

fn a_topic_is_described_and_a_missing_one_is_missing(broker: &Broker) {
    let topic = broker.create_topic(3);
    let client: BaseConsumer = broker.client().create().unwrap();
    // The broker may learn of a topic after the controller has acknowledged it.
    let facts = wait_for("the topic", || topic_facts(client.client(), &topic, Duration::from_secs(300)).ok());
    assert_eq!(facts.partitions, 3);
    let missing = topic_facts(client.client(), &broker.name("missing"), Duration::from_secs(300));
    assert!(matches!(missing, Err(TopicFactsError::Missing)), "{missing:?}");
}
