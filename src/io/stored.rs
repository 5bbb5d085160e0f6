//! A document of the meta index that several processes change: read, and written by compare-and-set.

use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use crate::base::ids::DocId;
use crate::io::elastic::{BulkOp, CallError, Elastic, Get, GetAnswer, Index, SeqNo, WriteCondition};

/// One document.
pub struct StoredRecord<'a> {
    elastic: &'a dyn Elastic,
    id: &'a DocId,
    timeout: Duration,
}

/// It could not be read or written.
#[derive(Debug, Error)]
pub enum RecordError {
    /// No usable answer.
    #[error("elasticsearch did not answer about {id:?} in the meta index: {error}")]
    Call {
        /// `_id`.
        id: String,
        /// Why not.
        error: CallError,
    },
    /// The item was refused.
    #[error(
        "the meta index refused {id:?}: {reason}; `geofold shards create` makes the index, `geofold check` looks at it"
    )]
    Refused {
        /// `_id`.
        id: String,
        /// In its words.
        reason: String,
    },
    /// It is there, but not what it should be.
    #[error(
        "{id:?} in the meta index cannot be read: {error}; a newer version of geofold may have written it"
    )]
    Unreadable {
        /// `_id`.
        id: String,
        /// The parse error.
        error: String,
    },
    /// Another process has changed it since it was read.
    #[error("{id:?} in the meta index was changed by another process meanwhile")]
    Conflict {
        /// `_id`.
        id: String,
    },
}

impl RecordError {
    /// The stored form is none.
    pub fn unreadable(id: &DocId, error: &serde_json::Error) -> Self {
        Self::Unreadable { id: id.to_string(), error: error.to_string() }
    }

    /// Whether the same may work later.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Call { .. } | Self::Refused { .. } | Self::Conflict { .. })
    }
}

impl<'a> StoredRecord<'a> {
    /// The document `id`; each request may take `timeout`.
    pub fn new(elastic: &'a dyn Elastic, id: &'a DocId, timeout: Duration) -> Self {
        Self { elastic, id, timeout }
    }

    /// Its content, if it is there, and its state.
    pub async fn read(&self) -> Result<Option<(Bytes, SeqNo)>, RecordError> {
        let get = Get::realtime(Index::Meta, self.id.clone());
        let answers = self.elastic.mget(&[get], self.timeout).await.map_err(|error| self.call(error))?;
        match answers.into_iter().next() {
            Some(GetAnswer::Missing) => Ok(None),
            Some(GetAnswer::Found(found)) => Ok(Some((found.source.clone(), found.stamp))),
            Some(GetAnswer::Failed(error)) => Err(self.refused(error.to_string())),
            None => Err(self.call(CallError::Undecodable("an empty answer".to_owned()))),
        }
    }

    /// Writes it if it is unchanged since it was read (`None`: if it does not exist).
    pub async fn write(&self, source: Bytes, over: Option<SeqNo>) -> Result<(), RecordError> {
        let guard = over.map_or(WriteCondition::Absent, WriteCondition::Unchanged);
        let op = BulkOp::Index { index: Index::Meta, id: self.id.clone(), guard, source };
        let answers = self.elastic.bulk(&[op], self.timeout).await.map_err(|error| self.call(error))?;
        match answers.first() {
            Some(answer) if answer.status < 300 => Ok(()),
            Some(answer) if answer.status == 409 => Err(RecordError::Conflict { id: self.id.to_string() }),
            Some(answer) => {
                let status = answer.status.to_string();
                Err(self.refused(answer.error.as_ref().map_or(status, ToString::to_string)))
            }
            None => Err(self.call(CallError::Undecodable("an empty answer to a bulk".to_owned()))),
        }
    }

    fn call(&self, error: CallError) -> RecordError {
        RecordError::Call { id: self.id.to_string(), error }
    }

    fn refused(&self, reason: String) -> RecordError {
        RecordError::Refused { id: self.id.to_string(), reason }
    }
}

/// `_id` of a document about a topic.
pub fn key(text: String) -> DocId {
    #[expect(clippy::expect_used, reason = "topic names have 249 bytes at most, by Kafka's own rule")]
    DocId::from_key(Some(text.as_bytes())).expect("a topic name fits an id")
}
