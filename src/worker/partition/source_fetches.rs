//! Requests of a partition to the source of truth. Documents that wait for an answer are in no batch; the ledger tracks
//! them.

use tokio::sync::mpsc;

use crate::core::mover::{Refusal, SourceAnswer};
use crate::worker::refeed::{FetchRequest, FetchResponse, Held, SourceFetcher};

/// Answers taken in one go before the batch in flight is polled again.
const ANSWERS_AT_ONCE: usize = 512;

/// The requests in flight.
pub(super) struct SourceFetches {
    /// `None`: no source of truth is configured.
    fetcher: Option<SourceFetcher>,
    answers: mpsc::UnboundedReceiver<FetchResponse>,
    /// Handed out with each request.
    answer_to: mpsc::UnboundedSender<FetchResponse>,
}

impl SourceFetches {
    pub(super) fn new(fetcher: Option<SourceFetcher>) -> Self {
        let (answer_to, answers) = mpsc::unbounded_channel();
        Self { fetcher, answers, answer_to }
    }

    /// Requests a document. Without a source this gives its answer: a refusal.
    pub(super) fn request(&self, request: FetchRequest) -> Option<FetchResponse> {
        let Some(fetcher) = &self.fetcher else {
            let detail = "no source of truth is configured: set [source] (docs/refeed.md)".to_owned();
            let answer = SourceAnswer::Unusable(Refusal { reason: "no_source", detail });
            return Some(FetchResponse { request, answer, held: Held::none() });
        };
        fetcher.request(request, self.answer_to.clone());
        None
    }

    /// The next answer; pending while there is none.
    pub(super) async fn answered(&mut self) -> FetchResponse {
        match self.answers.recv().await {
            Some(answer) => answer,
            // This holds a sender.
            None => std::future::pending().await,
        }
    }

    /// This answer and those that have come since, a bounded number.
    pub(super) fn with_queued(&mut self, first: FetchResponse) -> impl Iterator<Item = FetchResponse> {
        let queued = std::iter::from_fn(|| self.answers.try_recv().ok());
        std::iter::once(first).chain(queued.take(ANSWERS_AT_ONCE))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::base::ids::DocId;
    use crate::testkit::testing::at;
    use crate::worker::refeed::FetchWaiter;

    fn request(id: &str) -> (FetchRequest, FetchWaiter) {
        FetchRequest::new(DocId::from_key(Some(id.as_bytes())).unwrap(), at(1))
    }

    #[test]
    fn without_a_source_the_answer_is_a_refusal() {
        let (asked, _waiter) = request("a");
        let answer = SourceFetches::new(None).request(asked.clone()).unwrap();
        assert_eq!(answer.request, asked);
        assert!(matches!(answer.answer, SourceAnswer::Unusable(Refusal { reason: "no_source", .. })));
    }

    #[test]
    fn answers_that_have_come_are_taken_together() {
        let (fetcher, mut requests) = SourceFetcher::stand_in();
        let mut fetches = SourceFetches::new(Some(fetcher));
        assert!(fetches.answered().now_or_never().is_none());
        let waiters: Vec<FetchWaiter> = ["a", "b", "c"]
            .map(|id| {
                let (request, waiter) = request(id);
                assert!(fetches.request(request).is_none());
                waiter
            })
            .into();
        while let Ok(request) = requests.try_recv() {
            request.answer(SourceAnswer::Gone);
        }
        let first = fetches.answered().now_or_never().unwrap();
        let ids: Vec<DocId> = fetches.with_queued(first).map(|answer| answer.request.id).collect();
        assert_eq!(ids.iter().map(DocId::as_str).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(fetches.answered().now_or_never().is_none());
        drop(waiters);
    }
}
