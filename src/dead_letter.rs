//! What goes to the dead-letter topic, and how: a record or fold that can not be carried out, with the reason.
//!
//! Only when the broker has acknowledged a dead letter may the offset of its record pass.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Headers, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;

use crate::ids::DocId;
use crate::mover::Refusal;
use crate::retry::RetryPolicy;
use crate::write::{Base, Content, Fold};

/// One message for the dead-letter topic.
#[derive(Debug, Clone)]
pub struct Letter {
    /// The record's key, byte for byte.
    pub key: Option<Bytes>,
    /// The record's value, or the folded write.
    pub value: Option<Bytes>,
    /// The record's own headers; for a fold, `geofold-op` alone.
    pub headers: OwnedHeaders,
    /// Why it is here.
    pub reason: &'static str,
    /// Where in the way of a write it was refused: `decode`, `fold` or `write`.
    pub stage: &'static str,
    /// For a person.
    pub detail: String,
    /// Where it came from.
    pub origin: Origin,
}

/// The record or records that a letter stands for.
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

impl Letter {
    /// The letters for a refused fold: one, or one per patch where patches do not compose.
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
            headers: OwnedHeaders::new().insert(Header { key: crate::decode::OP_HEADER, value: Some(op) }),
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

    /// The record's headers, and what geofold has to say about it.
    fn all_headers(&self, size: Size) -> OwnedHeaders {
        let mut headers = OwnedHeaders::new_with_capacity(self.headers.count() + 9);
        match size {
            Size::Whole => {
                for header in self.headers.iter() {
                    headers = headers.insert(header);
                }
            }
            Size::NoticeOnly => {
                let bytes = self.value.as_ref().map_or(0, Bytes::len).to_string();
                headers = headers.insert(Header { key: LEFT_OUT_HEADER, value: Some(&bytes) });
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let facts: [(&str, &str); 8] = [
            ("geofold-error-reason", self.reason),
            ("geofold-error-stage", self.stage),
            ("geofold-error-detail", &self.detail),
            ("geofold-error-topic", &self.origin.topic),
            ("geofold-error-partition", &self.origin.partition.to_string()),
            ("geofold-error-offset", &self.origin.last_offset.to_string()),
            ("geofold-error-first-offset", &self.origin.first_offset.to_string()),
            ("geofold-error-time", &now.as_millis().to_string()),
        ];
        facts
            .into_iter()
            .fold(headers, |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
    }
}

/// Says that a letter's value and the record's own headers were left out, and how many bytes the value has.
pub const LEFT_OUT_HEADER: &str = "geofold-value-left-out";

/// How much of a letter is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    /// Key, value, headers.
    Whole,
    /// What geofold has to say, with an empty value: the topic does not take the whole. An offset that waited for it would
    /// hold up its partition for good; the record itself is where the headers say, for as long as its topic keeps it.
    NoticeOnly,
}

/// Where letters are handed in. One implementation produces to Kafka; a test keeps them.
pub trait LetterBox: Send + Sync {
    /// Returns once every letter is acknowledged; tries for as long as it takes. Dropping the future gives up, and then
    /// the records' offsets stay where they are.
    fn deliver(&self, letters: Vec<Letter>) -> BoxFuture<'_, ()>;
}

/// The way to the dead-letter topic. Cheap to clone.
#[derive(Clone)]
pub struct DeadLetters {
    producer: FutureProducer,
    topic: Arc<str>,
    retry: RetryPolicy,
}

impl std::fmt::Debug for DeadLetters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetters").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl DeadLetters {
    /// Sends to `topic` through `producer`.
    pub fn new(producer: FutureProducer, topic: &str, retry: RetryPolicy) -> Self {
        Self { producer, topic: topic.into(), retry }
    }

    async fn deliver_all(&self, letters: Vec<Letter>) {
        for letter in letters {
            let mut delays = self.retry.delays();
            let mut size = Size::Whole;
            while let Err(error) = self.produce(&letter, size).await {
                if size == Size::Whole
                    && error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge)
                {
                    size = Size::NoticeOnly;
                    tracing::warn!(
                        topic = %self.topic,
                        partition = letter.origin.partition,
                        offset = letter.origin.last_offset,
                        "a dead letter is larger than the dead-letter topic or the producer takes: it is sent without its \
                         value; raise max.message.bytes there and message.max.bytes in [kafka.producer_properties]"
                    );
                    continue;
                }
                let delay = delays.next(None);
                tracing::warn!(
                    topic = %self.topic,
                    partition = letter.origin.partition,
                    offset = letter.origin.last_offset,
                    %error,
                    ?delay,
                    "a dead letter could not be delivered; the offset waits for it"
                );
                tokio::time::sleep(delay).await;
            }
        }
    }

    async fn produce(&self, letter: &Letter, size: Size) -> Result<(), KafkaError> {
        let mut record: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(&self.topic).headers(letter.all_headers(size));
        record.key = letter.key.as_deref();
        record.payload = match size {
            Size::Whole => letter.value.as_deref(),
            // Not null: that would be a tombstone.
            Size::NoticeOnly => Some(&[]),
        };
        self.producer
            .send(record, Timeout::After(Duration::from_secs(5)))
            .await
            .map(drop)
            .map_err(|(error, _)| error)
    }
}

impl LetterBox for DeadLetters {
    fn deliver(&self, letters: Vec<Letter>) -> BoxFuture<'_, ()> {
        self.deliver_all(letters).boxed()
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::message::{BorrowedHeaders, Message};

    use super::*;
    use crate::embedded::broker::EmbeddedBroker;

    fn letter(offset: i64, value_bytes: usize) -> Letter {
        Letter {
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

    #[tokio::test]
    async fn a_letter_that_the_topic_does_not_take_whole_is_sent_without_its_value() {
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("dead", 1).unwrap();
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", broker.address());
        let producer = client.clone().set("message.max.bytes", "2000").create().unwrap();
        let retry = RetryPolicy { initial: Duration::from_millis(10), max: Duration::from_millis(10) };
        let dead_letters = DeadLetters::new(producer, "dead", retry);
        let delivery = dead_letters.deliver(vec![letter(7, 10), letter(8, 5000), letter(9, 10)]);
        tokio::time::timeout(Duration::from_secs(30), delivery)
            .await
            .expect("one letter holds up the others");

        let consumer: BaseConsumer =
            client.set("group.id", "g").set("auto.offset.reset", "earliest").create().unwrap();
        consumer.subscribe(&["dead"]).unwrap();
        let mut seen = Vec::new();
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while seen.len() < 3 {
            assert!(std::time::Instant::now() < until, "only {seen:?} came");
            // Nothing may mean a rebalance.
            let Some(message) = consumer.poll(Duration::from_millis(500)) else { continue };
            let message = message.unwrap();
            let headers = message.headers().unwrap();
            assert_eq!(header(headers, "geofold-error-partition"), Some("3"));
            seen.push((
                header(headers, "geofold-error-offset").unwrap().to_owned(),
                message.payload().map(<[u8]>::len),
                header(headers, LEFT_OUT_HEADER).map(str::to_owned),
                header(headers, "own").map(str::to_owned),
            ));
        }
        let whole = |offset: &str| (offset.to_owned(), Some(10), None, Some("header".to_owned()));
        assert_eq!(seen, [whole("7"), ("8".to_owned(), Some(0), Some("5000".to_owned()), None), whole("9")]);
    }
}
