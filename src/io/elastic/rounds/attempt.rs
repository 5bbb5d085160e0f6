//! The answers of one attempt to carry out operations.

use std::time::Duration;

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
