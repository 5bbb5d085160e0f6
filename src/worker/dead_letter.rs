//! Dead letters: records and folds that cannot be applied, with the reason.
//!
//! The offset of a record may be committed only after the broker has acknowledged its dead letter.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers, OwnedHeaders};

use crate::base::fnv::fnv1a;
use crate::base::headers;
use crate::base::ids::DocId;
use crate::base::retry::RetryPolicy;
use crate::core::fold::{Base, Content, Fold};
use crate::core::mover::Refusal;
use crate::io::kafka::resilient_producer::{DeliveryVerdict, Message, ResilientProducer, Undelivered};

/// One message for the dead-letter topic.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The record's key, byte for byte.
    pub key: Option<Bytes>,
    /// The record's value, or the folded write.
    pub value: Option<Bytes>,
    /// The record's own headers; for a fold, `geofold-op` alone.
    pub headers: OwnedHeaders,
    /// Reason code.
    pub reason: &'static str,
    /// The step that refused it: `decode`, `fold`, `write` or `distribution`.
    pub stage: &'static str,
    /// Human-readable detail.
    pub detail: String,
    /// Where the record came from.
    pub origin: Origin,
}

/// The record or records that a dead letter covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Topic.
    pub topic: Arc<str>,
    /// Partition.
    pub partition: i32,
    /// Offset of the first record; the only one, unless a fold was refused.
    pub first_offset: i64,
    /// Offset of the last record.
    pub last_offset: i64,
}

impl DeadLetter {
    /// The dead letters of a refused fold: one, or one per patch if the patches do not compose. Its records are gone: of
    /// their headers only the operation is there.
    pub fn for_fold(
        id: &DocId,
        fold: &Fold,
        refusal: &Refusal,
        stage: &'static str,
        topic: Arc<str>,
        partition: i32,
    ) -> Vec<Self> {
        let origin =
            Origin { topic, partition, first_offset: fold.first.offset(), last_offset: fold.last.offset() };
        let letter = |op: &'static str, value: Option<Bytes>| Self {
            key: Some(Bytes::copy_from_slice(id.as_str().as_bytes())),
            value,
            headers: OwnedHeaders::new().insert(Header { key: headers::OP_HEADER, value: Some(op) }),
            reason: refusal.reason,
            stage,
            detail: refusal.detail.clone(),
            origin: origin.clone(),
        };
        match &fold.content {
            Content::Index { doc, .. } => vec![letter("index", Some(doc.clone()))],
            Content::Delete => vec![letter("delete", None)],
            Content::Touch => vec![letter("touch", None)],
            Content::Refeed => vec![letter("refeed", None)],
            Content::Patch { over, patches } => {
                let before = match over {
                    Base::Stored => None,
                    Base::Nothing => Some(letter("delete", None)),
                    Base::Refed => Some(letter("refeed", None)),
                };
                let patches = patches.iter().map(|patch| letter("patch", Some(patch.clone())));
                before.into_iter().chain(patches).collect()
            }
        }
    }

    /// Its key, value and headers in the given form.
    fn in_form(&self, form: &Form) -> (Option<Bytes>, Option<Bytes>, OwnedHeaders) {
        let key = match form.has_key {
            true => self.key.clone(),
            false => Some(self.key_hash()),
        };
        let value = match form.has_value {
            true => self.value.clone(),
            // Not null: that would be a tombstone.
            false => Some(Bytes::new()),
        };
        (key, value, self.headers_in(form))
    }

    /// Replaces the key, or the record's coordinates if it has no key: compaction keeps one message per key.
    fn key_hash(&self) -> Bytes {
        let Origin { topic, partition, last_offset, .. } = &self.origin;
        let hash = match &self.key {
            Some(key) => fnv1a(key.iter().copied()),
            None => fnv1a(format!("{topic}/{partition}/{last_offset}").bytes()),
        };
        format!("{hash:016x}").into()
    }

    /// The record's headers and geofold's own.
    fn headers_in(&self, form: &Form) -> OwnedHeaders {
        let mut headers = OwnedHeaders::new_with_capacity(self.headers.count() + 11);
        let bytes_of = |part: &Option<Bytes>| part.as_ref().map_or(0, Bytes::len).to_string();
        if form.has_value {
            for header in self.headers.iter() {
                headers = headers.insert(header);
            }
        } else {
            headers = headers
                .insert(Header { key: headers::VALUE_LEFT_OUT_HEADER, value: Some(&bytes_of(&self.value)) });
        }
        if !form.has_key {
            headers = headers
                .insert(Header { key: headers::KEY_LEFT_OUT_HEADER, value: Some(&bytes_of(&self.key)) });
        }
        if let Some(reason) = &form.reason {
            headers = headers.insert(Header { key: headers::LEFT_OUT_REASON_HEADER, value: Some(reason) });
        }
        let detail = match form.has_value || form.has_key {
            true => &self.detail,
            false => &self.detail[..self.detail.floor_char_boundary(SHORT_DETAIL_BYTES)],
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let facts: [(&str, &str); 8] = [
            (headers::REASON_HEADER, self.reason),
            (headers::STAGE_HEADER, self.stage),
            (headers::DETAIL_HEADER, detail),
            (headers::TOPIC_HEADER, &self.origin.topic),
            (headers::PARTITION_HEADER, &self.origin.partition.to_string()),
            (headers::OFFSET_HEADER, &self.origin.last_offset.to_string()),
            (headers::FIRST_OFFSET_HEADER, &self.origin.first_offset.to_string()),
            (headers::TIME_HEADER, &now.as_millis().to_string()),
        ];
        facts
            .into_iter()
            .fold(headers, |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
    }
}

/// Bytes of detail in the smallest form.
const SHORT_DETAIL_BYTES: usize = 256;

/// How much of a dead letter is sent. One that is refused permanently would block its partition forever; the headers
/// say where the original is, for as long as its topic keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Form {
    /// Includes the value and the record's own headers.
    has_value: bool,
    /// Includes the key or its absence; otherwise a hash.
    has_key: bool,
    /// The error that refused the previous form.
    reason: Option<String>,
}

impl Form {
    const WHOLE: Self = Self { has_value: true, has_key: true, reason: None };

    /// The form to send after this one was refused permanently; `None` if nothing is left to omit. Each form is tried
    /// once.
    fn smaller(&self, letter_has_key: bool, refused: DeliveryVerdict, reason: String) -> Option<Self> {
        let (has_value, has_key) = match (refused, self.has_value, self.has_key) {
            (DeliveryVerdict::Retry, ..) | (_, false, false) => return None,
            // A compacted topic takes no message without a key; given one, it also takes the value.
            (DeliveryVerdict::Invalid, true, true) if !letter_has_key => (true, false),
            (_, true, has_key) => (false, has_key),
            (_, false, true) => (false, false),
        };
        Some(Self { has_value, has_key, reason: Some(reason) })
    }
}

/// Delivers dead letters: to Kafka, or into a test's memory.
pub trait DeadLetterSink: Send + Sync {
    /// Returns once every dead letter is acknowledged; retries without limit. Dropping the future abandons them, and
    /// the records' offsets are not committed.
    fn deliver(&self, letters: Vec<DeadLetter>) -> BoxFuture<'_, ()>;
}

/// Delivers to the dead-letter topic.
pub struct DeadLetterProducer {
    producer: ResilientProducer,
    topic: Arc<str>,
    retry: RetryPolicy,
}

impl std::fmt::Debug for DeadLetterProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetters").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl DeadLetterProducer {
    /// Produces to `topic` with these settings.
    ///
    /// # Errors
    /// If librdkafka refuses the settings.
    pub fn new(settings: ClientConfig, topic: &str, retry: RetryPolicy) -> Result<Self, KafkaError> {
        let producer = ResilientProducer::new(settings, "dead letters")?;
        Ok(Self { producer, topic: topic.into(), retry })
    }

    async fn deliver_until_acknowledged(&self, letter: &DeadLetter) {
        let mut delays = self.retry.delays();
        let mut form = Form::WHOLE;
        loop {
            let (key, value, headers) = letter.in_form(&form);
            let message = Message {
                topic: &self.topic,
                key: key.as_deref(),
                value: value.as_deref(),
                headers: Some(headers),
            };
            let Err(Undelivered { verdict, error }) = self.producer.send(&message).await else { return };
            let Origin { partition, last_offset: offset, .. } = letter.origin;
            if let Some(smaller) = form.smaller(letter.key.is_some(), verdict, error.to_string()) {
                form = smaller;
                tracing::warn!(
                    topic = %self.topic,
                    partition,
                    offset,
                    %error,
                    without_value = !form.has_value,
                    without_key = !form.has_key,
                    "the dead-letter topic does not take a letter as it is: parts of it are left out; see max.message.bytes and \
                     cleanup.policy of that topic, and message.max.bytes in [kafka.producer_properties]"
                );
                continue;
            }
            let delay = delays.next(None);
            tracing::warn!(
                topic = %self.topic,
                partition,
                offset,
                %error,
                ?delay,
                "a dead letter could not be delivered; the offset waits for it"
            );
            tokio::time::sleep(delay).await;
        }
    }
}

impl DeadLetterSink for DeadLetterProducer {
    fn deliver(&self, letters: Vec<DeadLetter>) -> BoxFuture<'_, ()> {
        async move {
            for letter in letters {
                self.deliver_until_acknowledged(&letter).await;
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::message::{BorrowedHeaders, Message as _};
    use rdkafka::types::RDKafkaRespErr;
    use rdkafka::{Offset, TopicPartitionList};

    use super::*;
    use crate::testkit::embedded::broker::{BrokerCall, EmbeddedBroker};

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn letter(offset: i64, value_bytes: usize) -> DeadLetter {
        DeadLetter {
            key: Some(Bytes::from_static(b"id")),
            value: Some(Bytes::from(vec![b'x'; value_bytes])),
            headers: OwnedHeaders::new().insert(Header { key: "own", value: Some("header") }),
            reason: "not_json",
            stage: "decode",
            detail: "what is wrong".to_owned(),
            origin: Origin { topic: "topic".into(), partition: 3, first_offset: offset, last_offset: offset },
        }
    }

    fn header<'a>(headers: &'a BorrowedHeaders, key: &str) -> Option<&'a str> {
        let value = headers.iter().find(|header| header.key == key)?.value?;
        Some(std::str::from_utf8(value).unwrap())
    }

    /// A dead letter as found in the topic.
    #[derive(Debug, PartialEq, Default)]
    struct Seen {
        offset: String,
        key: Option<String>,
        value_bytes: Option<usize>,
        value_left_out: Option<String>,
        key_left_out: Option<String>,
        left_out_reason: Option<String>,
        own: Option<String>,
    }

    /// A broker with an empty dead-letter topic.
    struct World {
        broker: EmbeddedBroker,
        client: ClientConfig,
    }

    impl World {
        fn new() -> Self {
            let broker = EmbeddedBroker::start().unwrap();
            broker.create_topic("dead", 1).unwrap();
            let mut client = ClientConfig::new();
            client.set("bootstrap.servers", broker.address());
            Self { broker, client }
        }

        /// Delivers them through a producer with this size limit.
        async fn deliver(&self, max_bytes: usize, letters: Vec<DeadLetter>) -> Vec<Seen> {
            let count = letters.len();
            let retry = RetryPolicy { initial: Duration::from_millis(10), max: Duration::from_millis(10) };
            let mut settings = self.client.clone();
            settings.set("message.max.bytes", max_bytes.to_string()).set("enable.idempotence", "true");
            let dead_letters = DeadLetterProducer::new(settings, "dead", retry).unwrap();
            let delivery = dead_letters.deliver(letters);
            tokio::time::timeout(TIMEOUT, delivery).await.expect("one letter holds up the others");
            self.read(count)
        }

        fn read(&self, count: usize) -> Vec<Seen> {
            let mut client = self.client.clone();
            let consumer: BaseConsumer = client.set("group.id", "g").create().unwrap();
            let mut partition = TopicPartitionList::new();
            partition.add_partition_offset("dead", 0, Offset::Beginning).unwrap();
            consumer.assign(&partition).unwrap();
            let mut seen = Vec::new();
            let until = std::time::Instant::now() + TIMEOUT;
            while seen.len() < count {
                assert!(std::time::Instant::now() < until, "only {seen:?} came");
                let Some(message) = consumer.poll(Duration::from_millis(500)) else { continue };
                let message = message.unwrap();
                let headers = message.headers().unwrap();
                assert_eq!(header(headers, "geofold-error-partition"), Some("3"));
                let text = |key| header(headers, key).map(str::to_owned);
                seen.push(Seen {
                    offset: text("geofold-error-offset").unwrap(),
                    key: message.key().map(|key| String::from_utf8_lossy(key).into_owned()),
                    value_bytes: message.payload().map(<[u8]>::len),
                    value_left_out: text(headers::VALUE_LEFT_OUT_HEADER),
                    key_left_out: text(headers::KEY_LEFT_OUT_HEADER),
                    left_out_reason: text(headers::LEFT_OUT_REASON_HEADER),
                    own: text("own"),
                });
            }
            seen
        }
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn whole(offset: &str) -> Seen {
        let (key, own) = (text("id"), text("header"));
        Seen { offset: offset.to_owned(), key, value_bytes: Some(10), own, ..Seen::default() }
    }

    #[test]
    fn refused_forms_shrink_step_by_step() {
        let form = |has_value, has_key| Form { has_value, has_key, reason: text("why") };
        let next =
            |form: &Form, letter_has_key, refused| form.smaller(letter_has_key, refused, "why".to_owned());
        for refused in [DeliveryVerdict::TooLarge, DeliveryVerdict::Invalid] {
            assert_eq!(next(&Form::WHOLE, true, refused), Some(form(false, true)));
            for letter_has_key in [true, false] {
                assert_eq!(next(&form(false, true), letter_has_key, refused), Some(form(false, false)));
                assert_eq!(next(&form(true, false), letter_has_key, refused), Some(form(false, false)));
                assert_eq!(next(&form(false, false), letter_has_key, refused), None, "nothing is left");
            }
        }
        assert_eq!(
            next(&Form::WHOLE, false, DeliveryVerdict::Invalid),
            Some(form(true, false)),
            "it only lacks a key"
        );
        assert_eq!(next(&Form::WHOLE, false, DeliveryVerdict::TooLarge), Some(form(false, true)));
        for has_value in [true, false] {
            for has_key in [true, false] {
                assert_eq!(
                    next(&form(has_value, has_key), true, DeliveryVerdict::Retry),
                    None,
                    "it may pass"
                );
            }
        }
    }

    #[test]
    fn smallest_form_is_small_for_any_record() {
        let mut letter = letter(1, 1 << 20);
        letter.key = Some(vec![b'k'; 1 << 20].into());
        letter.detail = "ä".repeat(1 << 20);
        letter.headers = letter.headers.insert(Header { key: "large", value: Some(&"v".repeat(1 << 20)) });
        let form = Form { has_value: false, has_key: false, reason: text("why") };
        let (key, value, headers) = letter.in_form(&form);
        let headers = headers.iter().map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len));
        let bytes = key.unwrap().len() + value.unwrap().len() + headers.sum::<usize>();
        assert!(bytes < 1000, "{bytes}");
    }

    #[test]
    fn key_hash_is_stable_and_unique_without_a_key() {
        let hash = |key: Option<&'static [u8]>, offset| {
            DeadLetter { key: key.map(Bytes::from_static), ..letter(offset, 1) }.key_hash()
        };
        assert_eq!(hash(Some(b"a"), 1), &b"af63dc4c8601ec8c"[..], "documented: FNV-1a of 64 bits");
        assert_eq!(hash(Some(b"a"), 1), hash(Some(b"a"), 2));
        assert_ne!(hash(Some(b"a"), 1), hash(Some(b"b"), 1));
        assert_ne!(hash(None, 1), hash(None, 2));
    }

    #[tokio::test]
    async fn letter_too_large_for_the_client_loses_its_value_or_key() {
        let world = World::new();
        let mut large_key = letter(10, 10);
        large_key.key = Some(vec![b'k'; 5000].into());
        let letters = vec![letter(7, 10), letter(8, 5000), letter(9, 10), large_key];
        let too_large = "Message production error: MessageSizeTooLarge (Broker: Message size too large)";
        let notice = |offset: &str, key, value_left_out: &str, key_left_out| Seen {
            offset: offset.to_owned(),
            key,
            value_bytes: Some(0),
            value_left_out: text(value_left_out),
            key_left_out,
            left_out_reason: text(too_large),
            own: None,
        };
        let hash = format!("{:016x}", fnv1a([b'k'; 5000]));
        assert_eq!(
            world.deliver(2000, letters).await,
            [
                whole("7"),
                notice("8", text("id"), "5000", None),
                whole("9"),
                notice("10", Some(hash), "10", text("5000")),
            ]
        );
    }

    #[tokio::test]
    async fn letter_refused_repeatedly_shrinks_until_delivered() {
        let world = World::new();
        // Each form is tried in a batch and alone.
        let invalid = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD;
        world.broker.fail_next(BrokerCall::Produce, &[invalid; 4]).unwrap();
        let seen = world.deliver(1_000_000, vec![letter(7, 10), letter(8, 10)]).await;
        assert_eq!(seen[0].value_left_out, text("10"), "{seen:?}");
        assert_eq!(seen[0].key_left_out, text("2"), "{seen:?}");
        assert!(
            seen[0].left_out_reason.as_ref().is_some_and(|why| why.contains("InvalidRecord")),
            "{seen:?}"
        );
        assert_eq!(seen[1], whole("8"));
    }

    #[tokio::test]
    async fn refused_letter_without_a_key_gets_one_and_keeps_its_value() {
        let world = World::new();
        let invalid = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD;
        world.broker.fail_next(BrokerCall::Produce, &[invalid; 2]).unwrap();
        let without_key = DeadLetter { key: None, ..letter(7, 10) };
        let seen = world.deliver(1_000_000, vec![without_key]).await;
        assert_eq!(seen[0].key_left_out, text("0"), "{seen:?}");
        assert_eq!(seen[0].key.as_ref().map(String::len), Some(16), "{seen:?}");
        assert_eq!((seen[0].value_bytes, &seen[0].own), (Some(10), &text("header")));
    }

    #[tokio::test]
    async fn letter_refused_with_its_batch_is_sent_whole_when_alone() {
        for error in [
            // Refused with its batch; accepted alone.
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP,
        ] {
            let world = World::new();
            world.broker.fail_next(BrokerCall::Produce, &[error]).unwrap();
            assert_eq!(world.deliver(1_000_000, vec![letter(7, 10)]).await, [whole("7")], "{error:?}");
        }
    }
}
