//! A topic whose producers compress, each in another way, is read as one.

use std::collections::BTreeSet;

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::json;

use crate::support::{CITIES, Event, TIMEOUT, Truth, World, WorldOptions};

/// By Kafka's numbers, which stand in a batch's attributes.
const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
/// Of each codec.
const DOCUMENTS: usize = 200;

#[test]
fn documents_of_every_codec_arrive() {
    let world = World::new(WorldOptions { partitions: 1, ..WorldOptions::default() });
    let mut truth = Truth::new();
    for (number, codec) in CODECS.iter().enumerate() {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &world.stack.kafka)
            .set("compression.codec", *codec)
            .set("linger.ms", "50")
            .create()
            .unwrap();
        for n in 0..DOCUMENTS {
            // Some documents are written by two codecs, the later of which has to win.
            let id = if n % 10 == 0 { format!("shared-{n}") } else { format!("{codec}-{n}") };
            let (lat, lon) = CITIES[(n + number) % CITIES.len()];
            let text = format!("{codec} {n} ").repeat(40);
            let document = json!({"location": {"lat": lat, "lon": lon}, "codec": codec, "text": text});
            let value = document.to_string();
            producer
                .send(BaseRecord::to(&world.name).key(&id).payload(&value))
                .map_err(|(error, _)| error)
                .unwrap();
            truth.apply(&Event::Index { id, document });
        }
        producer.flush(TIMEOUT).unwrap();
    }
    assert_eq!(codecs_on_disk(&world), (0..5).collect::<BTreeSet<u8>>(), "batches of {CODECS:?}");
    let worker = world.worker();
    world.wait_until_committed(TIMEOUT);
    world.assert_holds(&truth);
    worker.stop();
}

/// The codecs of the batches in the broker's log of the only partition: the low bits of each batch's attributes.
fn codecs_on_disk(world: &World) -> BTreeSet<u8> {
    let folder = world.stack.dir().join(format!("kafka/data/{}-0", world.name));
    let log = std::fs::read(folder.join("00000000000000000000.log")).unwrap();
    let mut codecs = BTreeSet::new();
    let mut rest = log.as_slice();
    // Offset (8 bytes), length of what follows (4), leader epoch (4), magic (1), checksum (4), attributes (2).
    while rest.len() > 23 {
        let length = u32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize;
        assert_eq!(rest[16], 2, "the form of the batch");
        codecs.insert(rest[22] & 7);
        rest = &rest[12 + length..];
    }
    codecs
}
