//! Reads the records of a refused fold again to apply them one by one. Meanwhile their document is in no batch; the
//! ledger tracks it.

use futures::future::FutureExt;

use super::Task;
use crate::base::ids::DocId;
use crate::core::decode::{RawRecord, Undecoded};
use crate::core::write::Write;
use crate::support::telemetry::metrics::Outcome as Counted;
use crate::worker::record::Record;

/// So many documents of a partition are tried record by record at once. The others wait: their records may be many times what their folds
/// hold, and while Elasticsearch is away none of them is done.
const TRIED_AT_ONCE: usize = 4;

/// The records of a document's fold, or why they cannot be had.
pub(super) type Came = (DocId, Result<Vec<Record>, String>);

impl Task {
    /// Asks for the records of folds that could not be written, of as many as may be tried at once.
    pub(super) fn read_again(&mut self) {
        let Some(reread) = &self.partition.bench.reread else { return };
        let room = TRIED_AT_ONCE.saturating_sub(self.rereading.len() + self.ledger.tried());
        for question in self.ledger.take_rereads(room) {
            let records = reread.read(self.partition.number, question.offsets);
            self.rereading.push(records.map(|records| (question.id, records)).boxed());
        }
    }

    pub(super) fn records_came(&mut self, (id, records): Came) {
        let writes = records.and_then(|records| {
            records.into_iter().map(|record| Ok((self.decode_again(&id, &record)?, record))).collect()
        });
        let now = self.now();
        // As if folded with the records that compaction kept.
        let gone = self.ledger.reread(&id, writes, now);
        self.metrics.record_done(Counted::Folded, gone.into());
        self.send_rejected();
        self.read_again();
        self.count_held();
    }

    fn decode_again(&mut self, id: &DocId, record: &Record) -> Result<Write, String> {
        let offset = record.offset;
        let raw = RawRecord {
            partition: self.partition.number,
            offset,
            key: record.key.as_deref(),
            value: record.value.clone(),
            op: record.op(),
        };
        match self.partition.bench.decoder.decode(raw, &mut self.schemas) {
            Ok(write) if write.id == *id => Ok(write),
            Ok(_) => Err(format!("offset {offset} now holds another document")),
            Err(Undecoded::Bad(bad)) => Err(format!("offset {offset} can no longer be decoded: {bad}")),
            Err(Undecoded::Lacks(_)) => Err(format!("the schema of offset {offset} is no longer available")),
        }
    }
}
