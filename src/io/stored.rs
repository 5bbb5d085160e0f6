//! A document of the meta index that several processes change: read, and written by compare-and-set.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::base::ids::DocId;
use crate::io::elastic::{BulkOp, CallError, Elastic, Get, GetAnswer, Index, SeqNo, WriteCondition};

/// Attempts to change a record: at least as many processes may change it at once.
const ATTEMPTS: u32 = 8;

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
    #[error("{id:?} in the meta index could not be read or written: {error}")]
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
    #[error(
        "{id:?} in the meta index was changed by another process meanwhile: nothing was written; try again"
    )]
    Conflict {
        /// `_id`.
        id: String,
    },
}

impl RecordError {
    /// The stored form is none.
    fn unreadable(id: &DocId, error: &serde_json::Error) -> Self {
        Self::Unreadable { id: id.to_string(), error: error.to_string() }
    }

    fn call(id: &DocId, error: CallError) -> Self {
        Self::Call { id: id.to_string(), error }
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
        let mut found = read_all(self.elastic, std::slice::from_ref(self.id), self.timeout).await?;
        Ok(found.pop().flatten())
    }

    /// The same, parsed from JSON.
    pub async fn read_as<T: DeserializeOwned>(&self) -> Result<Option<(T, SeqNo)>, RecordError> {
        let mut found = read_all_as(self.elastic, std::slice::from_ref(self.id), self.timeout).await?;
        Ok(found.pop().flatten())
    }

    /// Writes it if it is unchanged since it was read (`None`: if it does not exist).
    pub async fn write(&self, record: &impl Serialize, over: Option<SeqNo>) -> Result<(), RecordError> {
        // Serializing texts, numbers and maps into a Vec cannot fail.
        let source = serde_json::to_vec(record).unwrap_or_default().into();
        let guard = over.map_or(WriteCondition::Absent, WriteCondition::Unchanged);
        let op = BulkOp::Index { index: Index::Meta, id: self.id.clone(), guard, source };
        let failed = |error| RecordError::call(self.id, error);
        let answers = self.elastic.bulk(&[op], self.timeout).await.map_err(failed)?;
        match answers.first() {
            Some(answer) if answer.status < 300 => Ok(()),
            Some(answer) if answer.status == 409 => Err(RecordError::Conflict { id: self.id.to_string() }),
            Some(answer) => {
                let status = answer.status.to_string();
                let reason = answer.error.as_ref().map_or(status, ToString::to_string);
                Err(RecordError::Refused { id: self.id.to_string(), reason })
            }
            None => Err(failed(CallError::Undecodable("an empty answer to a bulk".to_owned()))),
        }
    }

    /// Changes it. Where another process was faster it is read and changed again; after eight attempts that is an error. `change` takes
    /// the record, if there is one, and gives what to write, with a result; `None` leaves it as it is.
    pub async fn update<T: Serialize + DeserializeOwned, R>(
        &self,
        mut change: impl FnMut(Option<T>) -> Option<(T, R)>,
    ) -> Result<Option<R>, RecordError> {
        let mut attempt = 1;
        loop {
            let (record, stamp) = self.read_as().await?.unzip();
            let Some((record, result)) = change(record) else { return Ok(None) };
            match self.write(&record, stamp).await {
                Ok(()) => return Ok(Some(result)),
                Err(RecordError::Conflict { .. }) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// The contents and states of several documents, in the order of `ids`, in one request.
pub async fn read_all(
    elastic: &dyn Elastic,
    ids: &[DocId],
    timeout: Duration,
) -> Result<Vec<Option<(Bytes, SeqNo)>>, RecordError> {
    let Some(first) = ids.first() else { return Ok(Vec::new()) };
    let failed = |error| RecordError::call(first, error);
    let gets: Vec<Get> = ids.iter().map(|id| Get::realtime(Index::Meta, id.clone())).collect();
    let answers = elastic.mget(&gets, timeout).await.map_err(failed)?;
    if answers.len() != ids.len() {
        let what = format!("{} answers to {} gets", answers.len(), ids.len());
        return Err(failed(CallError::Undecodable(what)));
    }
    let read = |(id, answer): (&DocId, GetAnswer)| match answer {
        GetAnswer::Missing => Ok(None),
        GetAnswer::Found(found) => Ok(Some((found.source, found.stamp))),
        GetAnswer::Failed(error) => {
            Err(RecordError::Refused { id: id.to_string(), reason: error.to_string() })
        }
    };
    ids.iter().zip(answers).map(read).collect()
}

/// [`read_all`], parsed from JSON.
pub async fn read_all_as<T: DeserializeOwned>(
    elastic: &dyn Elastic,
    ids: &[DocId],
    timeout: Duration,
) -> Result<Vec<Option<(T, SeqNo)>>, RecordError> {
    let found = read_all(elastic, ids, timeout).await?;
    let parsed = |id: &DocId, (source, stamp): (Bytes, SeqNo)| match serde_json::from_slice(&source) {
        Ok(value) => Ok((value, stamp)),
        Err(error) => Err(RecordError::unreadable(id, &error)),
    };
    ids.iter().zip(found).map(|(id, found)| found.map(|found| parsed(id, found)).transpose()).collect()
}

/// `_id` of a document about a topic.
pub fn key(text: String) -> DocId {
    #[expect(clippy::expect_used, reason = "topic names have 249 bytes at most, by Kafka's own rule")]
    DocId::from_key(Some(text.as_bytes())).expect("a topic name fits an id")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    use serde_json::Value;

    use super::*;
    use crate::io::elastic::scripted::Scripted;
    use crate::io::elastic::{BulkAnswer, FoundDocument, ItemError};

    const STAMP: SeqNo = SeqNo { seq_no: 4, primary_term: 1 };

    fn refused() -> ItemError {
        ItemError {
            status: 503,
            kind: "unavailable_shards_exception".to_owned(),
            reason: "no shard".to_owned(),
        }
    }

    fn found(source: &'static str) -> GetAnswer {
        GetAnswer::Found(FoundDocument { version: 1, stamp: STAMP, source: source.into() })
    }

    #[tokio::test]
    async fn each_answer_to_a_read_has_its_meaning() {
        let read = async |answer: GetAnswer| {
            let elastic = Scripted { get: Box::new(move |_| answer.clone()), ..Scripted::default() };
            let id = key("a".to_owned());
            StoredRecord::new(&elastic, &id, Duration::ZERO).read_as::<Value>().await
        };
        assert_eq!(read(GetAnswer::Missing).await.unwrap(), None);
        assert_eq!(read(found("[1]")).await.unwrap(), Some((serde_json::json!([1]), STAMP)));
        assert!(matches!(read(found("[1")).await, Err(RecordError::Unreadable { id, .. }) if id == "a"));
        assert!(matches!(read(GetAnswer::Failed(refused())).await, Err(RecordError::Refused { .. })));
    }

    #[tokio::test]
    async fn of_several_each_has_its_own_answer_and_one_that_fails_is_named() {
        let by_id = |get: &Get| match get.id.as_str() {
            "a" => found("1"),
            "b" => GetAnswer::Missing,
            _ => GetAnswer::Failed(refused()),
        };
        let elastic = Scripted { get: Box::new(by_id), ..Scripted::default() };
        let read = async |ids: &[&str]| {
            let ids: Vec<DocId> = ids.iter().map(|id| key((*id).to_owned())).collect();
            read_all(&elastic, &ids, Duration::ZERO).await
        };
        let one = Some((Bytes::from("1"), STAMP));
        assert_eq!(read(&["b", "a"]).await.unwrap(), [None, one]);
        assert!(matches!(read(&["a", "c"]).await, Err(RecordError::Refused { id, .. }) if id == "c"));
        assert_eq!(read(&[]).await.unwrap(), []);
    }

    #[tokio::test]
    async fn of_two_writes_over_the_same_state_one_is_a_conflict() {
        let write = async |status: u16| {
            let answer =
                BulkAnswer { status, stamp: None, error: (status >= 300).then(|| Box::new(refused())) };
            let elastic = Scripted { bulk: Box::new(move |_| vec![answer.clone()]), ..Scripted::default() };
            let id = key("a".to_owned());
            StoredRecord::new(&elastic, &id, Duration::ZERO).write(&1, Some(STAMP)).await
        };
        assert!(write(200).await.is_ok());
        assert!(matches!(write(409).await, Err(RecordError::Conflict { .. })));
        assert!(matches!(write(503).await, Err(RecordError::Refused { .. })));
    }

    /// Changes 7 to 8 where so many other processes are faster, one after the other: what came out, and how often it was written.
    async fn update(others: u32) -> (Result<Option<i32>, RecordError>, u32) {
        let writes = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&writes);
        let bulk = move |_: &[BulkOp]| {
            let status = if count.fetch_add(1, Relaxed) < others { 409 } else { 200 };
            vec![BulkAnswer { status, stamp: None, error: None }]
        };
        let get = |_: &Get| found("7");
        let elastic = Scripted { get: Box::new(get), bulk: Box::new(bulk), ..Scripted::default() };
        let id = key("a".to_owned());
        let stored = StoredRecord::new(&elastic, &id, Duration::ZERO);
        let result = stored.update(|number: Option<i32>| number.map(|number| (number + 1, number))).await;
        (result, writes.load(Relaxed))
    }

    #[tokio::test]
    async fn a_change_is_tried_again_where_another_process_was_faster_and_not_for_ever() {
        assert!(matches!(update(0).await, (Ok(Some(7)), 1)));
        assert!(matches!(update(ATTEMPTS - 1).await, (Ok(Some(7)), ATTEMPTS)));
        assert!(matches!(update(ATTEMPTS).await, (Err(RecordError::Conflict { .. }), ATTEMPTS)));
    }

    #[tokio::test]
    async fn a_record_that_is_to_stay_as_it_is_is_not_written() {
        let never = |_: &[BulkOp]| unreachable!("nothing is to be written");
        let elastic = Scripted { bulk: Box::new(never), ..Scripted::default() };
        let id = key("a".to_owned());
        let stored = StoredRecord::new(&elastic, &id, Duration::ZERO);
        assert_eq!(stored.update(|_: Option<i32>| None::<(i32, ())>).await.unwrap(), None);
    }
}
