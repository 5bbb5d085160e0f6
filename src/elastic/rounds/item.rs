//! What `_bulk` and `_mget` have in common, and how they differ: all that the sending of a round needs to know of either.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{BulkOutcome, Company, GetOutcome, RequestKind, Rounds};
use crate::elastic::answer::{BulkVerdict, GetVerdict, judge_bulk, judge_get};
use crate::elastic::{BulkAnswer, BulkOp, CallError, Get, GetAnswer, ItemError, encode};
use crate::sabotage::{self, Sabotage};

/// What an answer to one item leaves to do.
pub(super) enum Verdict<O> {
    Settled(O),
    Again(ItemError),
    Unauthorized(ItemError),
}

/// One operation of a round.
pub(super) trait Item: Send + Sync + Sized {
    type Answer;
    type Outcome;
    const KIND: RequestKind;
    const UNANSWERED: Self::Outcome;

    fn bytes(&self) -> usize;
    /// With whom they go, if not on their own.
    fn company<'a>(rounds: &'a Rounds, items: &[Self]) -> Option<&'a Arc<Company>>;
    fn send<'a>(
        rounds: &'a Rounds,
        company: Option<&'a Arc<Company>>,
        items: &'a [Self],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<Self::Answer>, CallError>>;
    fn judge(&self, answer: Self::Answer) -> Verdict<Self::Outcome>;
    /// The outcome of an item whose request, of it alone, was refused as too large or invalid; `None` if it can only be
    /// tried again.
    fn refused(error: &CallError) -> Option<Self::Outcome>;
}

impl Item for BulkOp {
    type Answer = BulkAnswer;
    type Outcome = BulkOutcome;
    const KIND: RequestKind = RequestKind::Bulk;
    const UNANSWERED: BulkOutcome = BulkOutcome::Unanswered;

    fn bytes(&self) -> usize {
        encode::bulk_op_bytes(self)
    }

    fn company<'a>(rounds: &'a Rounds, items: &[Self]) -> Option<&'a Arc<Company>> {
        rounds.company.as_ref().filter(|_| Company::suits(items, &rounds.limits))
    }

    fn send<'a>(
        rounds: &'a Rounds,
        company: Option<&'a Arc<Company>>,
        items: &'a [Self],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<BulkAnswer>, CallError>> {
        match company {
            Some(company) => company.bulk(items, &rounds.limits, timeout).boxed(),
            None => rounds.elastic.bulk(items, timeout),
        }
    }

    fn judge(&self, answer: BulkAnswer) -> Verdict<BulkOutcome> {
        Verdict::Settled(match judge_bulk(self, answer) {
            BulkVerdict::Done { stamp } => BulkOutcome::Done { stamp },
            BulkVerdict::Conflict => BulkOutcome::Conflict,
            BulkVerdict::NotFound => BulkOutcome::NotFound,
            BulkVerdict::Refused(error) => BulkOutcome::Refused(error),
            BulkVerdict::Again(_) if sabotage::is(Sabotage::SkipRetry) => BulkOutcome::Done { stamp: None },
            BulkVerdict::Again(error) => return Verdict::Again(error),
            BulkVerdict::Unauthorized(error) => return Verdict::Unauthorized(error),
        })
    }

    fn refused(error: &CallError) -> Option<BulkOutcome> {
        let CallError::Status { status, kind, reason, .. } = error else {
            return None;
        };
        let kind = if kind.is_empty() { "request_refused".to_owned() } else { kind.clone() };
        Some(BulkOutcome::Refused(ItemError { status: *status, kind, reason: reason.clone() }))
    }
}

impl Item for Get {
    type Answer = GetAnswer;
    type Outcome = GetOutcome;
    const KIND: RequestKind = RequestKind::Mget;
    const UNANSWERED: GetOutcome = GetOutcome::Unanswered;

    fn bytes(&self) -> usize {
        encode::mget_get_bytes(self)
    }

    fn company<'a>(_: &'a Rounds, _: &[Self]) -> Option<&'a Arc<Company>> {
        None
    }

    fn send<'a>(
        rounds: &'a Rounds,
        _: Option<&'a Arc<Company>>,
        items: &'a [Self],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
        rounds.elastic.mget(items, timeout)
    }

    fn judge(&self, answer: GetAnswer) -> Verdict<GetOutcome> {
        Verdict::Settled(match judge_get(answer) {
            GetVerdict::Found(found) => GetOutcome::Found(found),
            GetVerdict::Missing => GetOutcome::Missing,
            GetVerdict::Again(error) => return Verdict::Again(error),
            GetVerdict::Unauthorized(error) => return Verdict::Unauthorized(error),
        })
    }

    fn refused(_: &CallError) -> Option<GetOutcome> {
        None
    }
}
