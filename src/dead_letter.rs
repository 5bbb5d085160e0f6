//! What goes to the dead-letter topic, and how: a record or fold that can not be carried out, with the reason.
//!
//! Only when the broker has acknowledged a dead letter may the offset of its record pass.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use rdkafka::error::KafkaError;
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
            Content::Patch { over, patches } => {
                let deleted_before = (*over == Base::Nothing).then(|| letter("delete", None));
                let patches = patches.iter().map(|patch| letter("patch", Some(patch.clone())));
                deleted_before.into_iter().chain(patches).collect()
            }
        }
    }

    /// The record's headers, and what geofold has to say about it.
    fn all_headers(&self) -> OwnedHeaders {
        let mut headers = OwnedHeaders::new_with_capacity(self.headers.count() + 8);
        for header in self.headers.iter() {
            headers = headers.insert(header);
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
            while let Err(error) = self.produce(&letter).await {
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

    async fn produce(&self, letter: &Letter) -> Result<(), KafkaError> {
        let mut record: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(&self.topic).headers(letter.all_headers());
        record.key = letter.key.as_deref();
        record.payload = letter.value.as_deref();
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
