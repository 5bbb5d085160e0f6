//! One attempt to carry out operations, and what each request says of the server.

use std::future::Future;
use std::marker::PhantomData;
use std::time::Duration;

use super::adaptive::is_overload;
use super::item::Item;
use super::{RequestKind, RequestLimits, RoundsObserver, ServerState};
use crate::base::clock::Clock;
use crate::base::concurrency_limit::EndedRequest;
use crate::io::elastic::CallError;
use crate::io::elastic::answer::{CallVerdict, judge_call};

/// The answers of one request, one per operation; or why there are none.
pub(super) type Answers<A> = Result<Vec<A>, CallError>;

/// The answers of one attempt, which may be several requests.
pub(super) struct Attempt<A> {
    /// One per operation, in order; `None` where its request failed as a whole.
    pub(super) answers: Vec<Option<A>>,
    /// Why there are such. Of several reasons the one that asks for most.
    pub(super) error: Option<CallError>,
}

impl<A> Attempt<A> {
    /// No answer yet.
    pub(super) fn unanswered(operations: usize) -> Self {
        Self { answers: (0..operations).map(|_| None).collect(), error: None }
    }

    /// Of one request with all operations.
    pub(super) fn of(operations: usize, answers: Answers<A>) -> Self {
        match answers {
            Ok(answers) => Self { answers: answers.into_iter().map(Some).collect(), error: None },
            Err(error) => Self { error: Some(error), ..Self::unanswered(operations) },
        }
    }

    /// Adds the answers of a request with the operations at these places.
    pub(super) fn add(&mut self, slots: &[usize], answers: Answers<A>) {
        match answers {
            Ok(answers) => {
                for (&slot, answer) in slots.iter().zip(answers) {
                    self.answers[slot] = Some(answer);
                }
            }
            Err(error) => self.fail(error),
        }
    }

    /// Some operations have no answer for this reason.
    pub(super) fn fail(&mut self, error: CallError) {
        if self.error.as_ref().is_none_or(|other| weight(other) < weight(&error)) {
            self.error = Some(error);
        }
    }
}

/// What an error asks for: new credentials before smaller requests, these before a pause, a long one before a short one.
fn weight(error: &CallError) -> (u8, Option<Duration>) {
    match judge_call(error) {
        CallVerdict::Unauthorized => (2, None),
        CallVerdict::Split => (1, None),
        CallVerdict::Again { after } => (0, after),
    }
}

/// One request, from its sending to its answers.
pub(super) struct SentRequest<'a, I> {
    operations: usize,
    bytes: usize,
    timeout: Duration,
    limits: &'a RequestLimits,
    items: PhantomData<I>,
}

impl<'a, I: Item> SentRequest<'a, I> {
    /// `bytes`: an upper bound of its body.
    pub(super) fn new(operations: usize, bytes: usize, timeout: Duration, limits: &'a RequestLimits) -> Self {
        Self { operations, bytes, timeout, limits, items: PhantomData }
    }

    /// Waits for the answers, checks their number, and tells the observer and the server's state of them.
    pub(super) async fn answers(
        self,
        request: impl Future<Output = Answers<I::Answer>>,
        server: &ServerState,
        clock: &dyn Clock,
        observer: &dyn RoundsObserver,
    ) -> Answers<I::Answer> {
        let started = clock.now();
        let in_flight = server.concurrency.begin();
        let answers = request.await.and_then(|answers| {
            if answers.len() == self.operations {
                return Ok(answers);
            }
            let (got, sent) = (answers.len(), self.operations);
            Err(CallError::Undecodable(format!("{got} items for {sent} that were sent")))
        });
        let now = clock.now();
        // A proxy may answer 5xx while the server still executes the request.
        if matches!(
            answers,
            Err(CallError::Connection(_) | CallError::Timeout(_) | CallError::Status { status: 500.., .. })
        ) {
            server.gave_up(now);
        }
        let took = now.since(started);
        observer.request(I::KIND, self.operations, self.bytes, took, answers.is_ok());
        if server.concurrency.adapts() {
            let is_rejected = match &answers {
                Ok(answers) => answers.iter().any(I::is_overload),
                // Near the end of the lease there is too little time for an answer.
                Err(error) => is_overload(error, self.timeout == self.limits.request_timeout),
            };
            let is_large = I::KIND == RequestKind::Bulk && self.limits.is_large(self.operations, self.bytes);
            // Other failures say nothing of how much the server has to do.
            if is_rejected || answers.is_ok() {
                let ended = EndedRequest {
                    took,
                    operations: is_large.then_some(self.operations),
                    is_rejected,
                    in_flight: in_flight.at_start,
                };
                server.concurrency.ended(&ended, now);
            }
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_errors_the_one_that_asks_for_most_counts_in_any_order() {
        let status = |status, seconds: Option<u64>| CallError::Status {
            status,
            kind: String::new(),
            reason: String::new(),
            retry_after: seconds.map(Duration::from_secs),
        };
        let graver = [
            status(503, None),
            status(503, Some(1)),
            status(429, Some(7)),
            status(413, None),
            status(401, None),
        ];
        for pair in graver.windows(2) {
            for errors in [[&pair[0], &pair[1]], [&pair[1], &pair[0]]] {
                let mut attempt = Attempt::<()>::unanswered(2);
                errors.into_iter().for_each(|error| attempt.fail(error.clone()));
                assert_eq!(attempt.error.map(|error| error.to_string()), Some(pair[1].to_string()));
            }
        }
    }
}
