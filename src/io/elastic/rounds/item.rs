//! The differences between `_bulk` and `_mget` that sending a round depends on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::attempt::{Answers, Attempt};
use super::refusals::RefusedItem;
use super::{BulkOutcome, GetOutcome, RequestKind, RequestSender, ServerState};
use crate::base::clock::Instant;
use crate::base::sabotage::{self, Sabotage};
use crate::io::elastic::answer::{BulkVerdict, GetVerdict, judge_bulk, judge_get};
use crate::io::elastic::{BulkAnswer, BulkOp, CallError, Get, GetAnswer, Index, ItemError, encode};

/// How to proceed after an item's response.
pub(super) enum ItemVerdict<O> {
    Settled(O),
    Again(ItemError),
    Unauthorized(ItemError),
}

/// One operation of a round.
pub(super) trait Item: Clone + Send + Sync {
    type Answer;
    type Outcome;
    const KIND: RequestKind;
    const UNANSWERED: Self::Outcome;

    fn bytes(&self) -> usize;
    fn index(&self) -> &Index;
    /// Carries them out through the sender's queue, if it has one for such items. Nothing is sent at or after the deadline.
    fn queued<'a>(
        _: &'a RequestSender,
        _: &'a Arc<Vec<Self>>,
        _: Instant,
    ) -> Option<BoxFuture<'a, Attempt<Self::Answer>>> {
        None
    }
    /// Carries them out by a request of their own.
    fn send<'a>(
        rounds: &'a RequestSender,
        items: &'a [Self],
        timeout: Duration,
    ) -> BoxFuture<'a, Answers<Self::Answer>>;
    fn judge(&self, answer: Self::Answer) -> ItemVerdict<Self::Outcome>;
    /// Whether the server had too much to do to carry it out.
    fn is_overload(answer: &Self::Answer) -> bool;
    /// The error of an outcome that is a refusal.
    fn error_of(outcome: Self::Outcome) -> Option<ItemError>;
    /// Places of items that the answer refuses although the fault is their index's.
    fn not_the_documents(
        items: &[Self],
        answers: &[Option<Self::Answer>],
        server: &ServerState,
    ) -> BTreeSet<usize>;
    /// The outcome of an item whose single-item request was refused as too large or invalid; `None` if it can only be retried.
    fn refused(&self, error: &CallError, server: &ServerState) -> Option<Self::Outcome>;
}

impl Item for BulkOp {
    type Answer = BulkAnswer;
    type Outcome = BulkOutcome;
    const KIND: RequestKind = RequestKind::Bulk;
    const UNANSWERED: BulkOutcome = BulkOutcome::Unanswered;

    fn bytes(&self) -> usize {
        encode::bulk_op_bytes(self)
    }

    fn index(&self) -> &Index {
        self.address().0
    }

    fn queued<'a>(
        rounds: &'a RequestSender,
        ops: &'a Arc<Vec<Self>>,
        deadline: Instant,
    ) -> Option<BoxFuture<'a, Attempt<BulkAnswer>>> {
        Some(rounds.queue.as_ref()?.bulk(ops, &rounds.limits, deadline).boxed())
    }

    fn send<'a>(
        rounds: &'a RequestSender,
        ops: &'a [Self],
        timeout: Duration,
    ) -> BoxFuture<'a, Answers<BulkAnswer>> {
        rounds.elastic.bulk(ops, timeout)
    }

    fn judge(&self, answer: BulkAnswer) -> ItemVerdict<BulkOutcome> {
        ItemVerdict::Settled(match judge_bulk(self, answer) {
            BulkVerdict::Done { stamp } => BulkOutcome::Done { stamp },
            BulkVerdict::Conflict => BulkOutcome::Conflict,
            BulkVerdict::NotFound => BulkOutcome::NotFound,
            BulkVerdict::Refused(error) => BulkOutcome::Refused(error),
            BulkVerdict::Again(_) if sabotage::is(Sabotage::SkipRetry) => BulkOutcome::Done { stamp: None },
            BulkVerdict::Again(error) => return ItemVerdict::Again(error),
            BulkVerdict::Unauthorized(error) => return ItemVerdict::Unauthorized(error),
        })
    }

    fn is_overload(answer: &BulkAnswer) -> bool {
        answer.status == 429
    }

    fn error_of(outcome: BulkOutcome) -> Option<ItemError> {
        match outcome {
            BulkOutcome::Refused(error) => Some(error),
            _ => None,
        }
    }

    fn not_the_documents(
        ops: &[Self],
        answers: &[Option<BulkAnswer>],
        server: &ServerState,
    ) -> BTreeSet<usize> {
        let may_refuse = |answer: &BulkAnswer| {
            answer.error.is_some() && matches!(answer.status, 400..=499) && answer.status != 409
        };
        if !server.refusals.is_watching() && !answers.iter().flatten().any(may_refuse) {
            return BTreeSet::new();
        }
        // Deletes are carried out even where no document is taken.
        fn taken<'a>((_, op, answer): (usize, &'a BulkOp, &BulkAnswer)) -> Option<&'a Index> {
            match op {
                BulkOp::Index { index, .. } if matches!(answer.status, 200..=299) => Some(index),
                _ => None,
            }
        }
        let slots = ops.iter().zip(answers).enumerate();
        let answered = slots.filter_map(|(place, (op, answer))| Some((place, op, answer.as_ref()?)));
        let took = answered.clone().filter_map(taken).collect();
        let refused =
            answered.filter(|(_, _, answer)| may_refuse(answer)).filter_map(|(place, op, answer)| {
                let BulkVerdict::Refused(error) = judge_bulk(op, answer.clone()) else { return None };
                let (index, id) = op.address();
                Some(RefusedItem { place, index, id, error })
            });
        server.not_the_documents(&took, refused.collect())
    }

    fn refused(&self, error: &CallError, server: &ServerState) -> Option<BulkOutcome> {
        let CallError::Status { status, kind, reason, .. } = error else {
            return None;
        };
        let kind = if kind.is_empty() { "request_refused".to_owned() } else { kind.clone() };
        let error = ItemError { status: *status, kind, reason: reason.clone() };
        let (index, id) = self.address();
        let refused = RefusedItem { place: 0, index, id, error: error.clone() };
        let is_believed = server.not_the_documents(&BTreeSet::new(), vec![refused]).is_empty();
        is_believed.then_some(BulkOutcome::Refused(error))
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

    fn index(&self) -> &Index {
        &self.index
    }

    fn send<'a>(
        rounds: &'a RequestSender,
        gets: &'a [Self],
        timeout: Duration,
    ) -> BoxFuture<'a, Answers<GetAnswer>> {
        rounds.elastic.mget_again(gets, rounds.look, timeout)
    }

    fn judge(&self, answer: GetAnswer) -> ItemVerdict<GetOutcome> {
        ItemVerdict::Settled(match judge_get(answer) {
            GetVerdict::Found(found) => GetOutcome::Found(found),
            GetVerdict::Missing => GetOutcome::Missing,
            GetVerdict::Again(error) => return ItemVerdict::Again(error),
            GetVerdict::Unauthorized(error) => return ItemVerdict::Unauthorized(error),
        })
    }

    fn is_overload(_: &GetAnswer) -> bool {
        // Its slots have no status.
        false
    }

    fn error_of(_: GetOutcome) -> Option<ItemError> {
        None
    }

    fn not_the_documents(_: &[Self], _: &[Option<GetAnswer>], _: &ServerState) -> BTreeSet<usize> {
        BTreeSet::new()
    }

    fn refused(&self, _: &CallError, _: &ServerState) -> Option<GetOutcome> {
        None
    }
}
