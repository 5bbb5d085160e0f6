//! Reads the records of a refused fold again to apply them one by one. Meanwhile their document is in no batch; the
//! ledger tracks it.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};

use crate::base::ids::DocId;
use crate::worker::ledger;
use crate::worker::record::Record;
use crate::worker::reread::RecordReader;

/// Documents of a partition that are tried record by record at once. The others wait: their records may be many times
/// what their folds hold, and while Elasticsearch does not answer none of them is done.
const MAX_DOCUMENTS: usize = 4;

/// The records of a document's fold, or why they cannot be read.
pub(super) type RecordsRead = (DocId, Result<Vec<Record>, String>);

/// The reads in flight.
pub(super) struct Rereads {
    reader: Arc<dyn RecordReader>,
    partition: i32,
    in_flight: FuturesUnordered<BoxFuture<'static, RecordsRead>>,
}

impl Rereads {
    pub(super) fn new(reader: Arc<dyn RecordReader>, partition: i32) -> Self {
        Self { reader, partition, in_flight: FuturesUnordered::new() }
    }

    /// Documents whose records may be requested now, if those of `tried` documents are being tried.
    pub(super) fn room(&self, tried: usize) -> usize {
        MAX_DOCUMENTS.saturating_sub(self.in_flight.len() + tried)
    }

    /// Requests the records of a fold.
    pub(super) fn request(&mut self, ledger::Reread { id, offsets }: ledger::Reread) {
        let records = self.reader.read(self.partition, offsets);
        self.in_flight.push(records.map(|records| (id, records)).boxed());
    }

    /// The records of the next fold; pending while none is requested.
    pub(super) async fn read(&mut self) -> RecordsRead {
        match self.in_flight.next().await {
            Some(read) => read,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a record for each offset.
    struct Log;

    impl RecordReader for Log {
        fn read(&self, _: i32, offsets: Vec<i64>) -> BoxFuture<'static, Result<Vec<Record>, String>> {
            let record = |offset| Record { offset, key: None, value: None, headers: None };
            let records = offsets.into_iter().map(record).collect();
            async move { Ok(records) }.boxed()
        }
    }

    #[test]
    fn documents_tried_at_once_are_bounded() {
        let mut rereads = Rereads::new(Arc::new(Log), 3);
        assert!(rereads.read().now_or_never().is_none());
        assert_eq!((rereads.room(0), rereads.room(1), rereads.room(9)), (4, 3, 0));
        let id = DocId::from_key(Some(b"a")).unwrap();
        rereads.request(ledger::Reread { id: id.clone(), offsets: vec![3, 5] });
        assert_eq!(rereads.room(1), 2);
        let (read, records) = rereads.read().now_or_never().unwrap();
        assert_eq!(read, id);
        assert_eq!(records.unwrap().iter().map(|record| record.offset).collect::<Vec<_>>(), [3, 5]);
        assert_eq!(rereads.room(0), 4);
    }
}
