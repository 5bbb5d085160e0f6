//! Requests of a partition to the source of truth. Documents that wait for an answer are in no batch; the ledger tracks
//! them.

use super::Task;
use crate::core::mover::{Refusal, SourceAnswer};
use crate::worker::refeed::{FetchResponse, Held};

/// Answers taken in one go before the batch in flight is polled again.
const ANSWERS_AT_ONCE: usize = 512;

impl Task {
    /// Requests the documents that the last batch needs from the source.
    pub(super) fn ask_source(&mut self) {
        for question in self.ledger.take_questions() {
            match &self.partition.bench.refeed {
                Some(feeder) => feeder.ask(question, self.asked.clone()),
                None => {
                    let detail = "no source of truth is configured: set [source] (docs/refeed.md)";
                    let refusal = Refusal { reason: "no_source", detail: detail.to_owned() };
                    self.ledger.answered(&question, SourceAnswer::Unusable(refusal), Held::none());
                }
            }
        }
    }

    pub(super) fn source_answered(&mut self, first: FetchResponse) {
        let mut next = Some(first);
        for _ in 0..ANSWERS_AT_ONCE {
            let Some(FetchResponse { question, said, held }) = next else { break };
            self.ledger.answered(&question, said, held);
            next = self.answers.try_recv().ok();
        }
        if let Some(FetchResponse { question, said, held }) = next {
            self.ledger.answered(&question, said, held);
        }
        self.count_held();
    }
}
