//! The document that an entry yields: its own, or the stored one or the source's with its patches.

use bytes::Bytes;

use super::{Decision, NewestCopy, again_outcome};
use crate::base::ids::ShardId;
use crate::base::position::Position;
use crate::base::sabotage::{self, Sabotage};
use crate::core::fold::{Base, Content, Fold};
use crate::core::mover::{Done, OnMissing, Outcome, Refusal, RetryState, Rules, SourceAnswer};
use crate::core::placement::KnownPlacement;

/// A patch of a document that is not there: none of its fold is any better by itself.
pub(super) const MISSING_DOCUMENT: &str = "missing_document";

/// The document that the entry yields, given the copy.
pub(super) enum Wanted {
    /// Write this.
    Document(Bytes, Made),
    /// The copy found is at least as new, in the placement's own shard.
    Written(NewestCopy),
    /// No document.
    Gone(Outcome),
    /// Cannot be decided now.
    Settle(Outcome),
}

/// The origin of a document's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    /// Records and stored copies: every worker with the same record makes the same document.
    Logged,
    /// The placement's `fetched`.
    Recorded,
    /// The source's answer, which may differ at the next request.
    Fetched,
}

/// Whether the source may be asked and its answer used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceUse {
    MayBeAsked,
    /// The decision at the entry's position stands: a document from elsewhere would contradict it.
    IsNotAsked,
}

/// The position of the refeed that the content rests on; or of the delete, if patches follow it and missing documents
/// are fetched.
pub(super) fn refed_at(rules: &Rules, fold: &Fold) -> Option<Position> {
    let rests_on_it = match &fold.content {
        Content::Refeed | Content::Patch { over: Base::Refed, .. } => true,
        Content::Patch { over: Base::Nothing, .. } => rules.on_missing == OnMissing::Refeed,
        _ => false,
    };
    fold.whole_at.filter(|_| rests_on_it)
}

impl Decision<'_> {
    /// The document's content after this entry.
    pub(super) fn wanted(
        &self,
        known: Option<&KnownPlacement>,
        placed_in: Option<&ShardId>,
        copy: Option<NewestCopy>,
        source: SourceUse,
    ) -> Result<Wanted, Refusal> {
        let fold = &self.entry.fold;
        match &fold.content {
            Content::Index { doc, .. } => return Ok(Wanted::Document(doc.clone(), Made::Logged)),
            Content::Delete => return Ok(Wanted::Gone(Outcome::Done(Done::Deleted))),
            // The delete before the patch stands even if the patch fails.
            Content::Patch { over: Base::Nothing, .. } if self.rules.on_missing != OnMissing::Refeed => {
                return self.made_of_nothing(source);
            }
            Content::Patch { .. } | Content::Touch | Content::Refeed => {}
        }
        let refed_at = refed_at(self.rules, fold);
        if let Some(copy) = copy.filter(|copy| refed_at.is_none_or(|refed_at| copy.version >= refed_at)) {
            let is_elsewhere = Some(&copy.shard) != placed_in;
            let ignores_newer = is_elsewhere && sabotage::is(Sabotage::IgnoreNewerLeftover);
            if copy.version < fold.last || ignores_newer {
                let made = if copy.is_recorded { Made::Recorded } else { Made::Logged };
                let document = self.applied_to(Some(&copy.source))?;
                return Ok(Wanted::Document(document, made));
            }
            if copy.is_recorded {
                return Ok(Wanted::Document(copy.source, Made::Recorded));
            }
            if !is_elsewhere {
                return Ok(Wanted::Written(copy));
            }
            return Ok(Wanted::Settle(again_outcome("newer_copy_elsewhere", RetryState::default())));
        }
        let since = refed_at.map(|refed_at| known.filter(|known| known.placement.pos >= refed_at));
        match since {
            // No decision since the refeed.
            Some(None) => return self.refed(source),
            // The earlier decision was made from the answer "gone".
            Some(Some(known)) if known.placement.shard.is_none() => {
                return match fold.content {
                    Content::Refeed => Ok(Wanted::Gone(Outcome::Done(Done::Deleted))),
                    _ => self.made_of_nothing(source),
                };
            }
            _ => {}
        }
        if !self.is_surely_missing(known) {
            if sabotage::is(Sabotage::NothingFoundIsDone) {
                return Ok(Wanted::Settle(Outcome::Done(Done::AlreadyApplied)));
            }
            return Ok(Wanted::Settle(self.look_again(known)));
        }
        if refed_at.is_some() {
            return self.refed(source);
        }
        Ok(match self.made_of_nothing(source)? {
            // The placement stays: no record has deleted the document, and a copy in flight relies on it. Unless the
            // source says "gone": an owner with another answer must not place the document by the recorded one.
            Wanted::Gone(outcome)
                if self.rules.on_missing != OnMissing::Refeed
                    && !sabotage::is(Sabotage::MissingIsDeleted)
                    || sabotage::is(Sabotage::GoneIsNotRecorded) =>
            {
                Wanted::Settle(outcome)
            }
            wanted => wanted,
        })
    }

    /// Whether a document made of patches has a location: that depends on the fold they are in. The owner that recorded a decision
    /// may have had another fold.
    pub(super) fn has_location(&self, document: &[u8]) -> Result<(), Refusal> {
        let is_patched = matches!(self.entry.fold.content, Content::Patch { .. });
        if !is_patched || sabotage::is(Sabotage::ResumedIsNotTakenApart) {
            return Ok(());
        }
        self.rules.locate_document(document).map(drop)
    }

    /// The fold's content over a stored document. Called only for folds that yield a document.
    fn applied_to(&self, stored: Option<&[u8]>) -> Result<Bytes, Refusal> {
        let content = &self.entry.fold.content;
        let applied = match content {
            // The patch applies to the source's document after the delete.
            Content::Patch { over: Base::Nothing, patches } if self.rules.on_missing == OnMissing::Refeed => {
                let over_refed = Content::Patch { over: Base::Refed, patches: patches.clone() };
                over_refed.apply_to(stored, &self.rules.location)
            }
            _ => content.apply_to(stored, &self.rules.location),
        };
        match applied {
            Ok(Some(document)) => Ok(document),
            Ok(None) => {
                Err(Refusal { reason: "no_document", detail: "nothing is left of the document".to_owned() })
            }
            Err(error) => Err(Refusal { reason: error.reason(), detail: error.to_string() }),
        }
    }

    /// The result of patches or touches of a missing document (protocol, "on_missing").
    fn made_of_nothing(&self, source: SourceUse) -> Result<Wanted, Refusal> {
        match self.rules.on_missing {
            OnMissing::Refeed => self.refed(source),
            OnMissing::Create if self.entry.fold.content != Content::Touch => {
                Ok(self.made_of_patches(Made::Logged))
            }
            _ => Ok(Wanted::Gone(self.missing_outcome())),
        }
    }

    fn made_of_patches(&self, made: Made) -> Wanted {
        let document = self.applied_to(None).and_then(|document| {
            self.rules.locate_document(&document)?;
            Ok(document)
        });
        match document {
            Ok(document) => Wanted::Document(document, made),
            Err(refusal) => Wanted::Gone(Outcome::DeadLetter(refusal.into())),
        }
    }

    /// The content of a refeed (protocol, "Refeed"): the source's document with later changes applied.
    fn refed(&self, source: SourceUse) -> Result<Wanted, Refusal> {
        if source == SourceUse::IsNotAsked {
            let refusal = Refusal {
                reason: MISSING_DOCUMENT,
                detail: "the document was fetched and placed at this position, and removed since by something else than \
                         geofold; refeed it again"
                    .to_owned(),
            };
            return Ok(Wanted::Settle(Outcome::DeadLetter(refusal.into())));
        }
        let Some(answer) = self.entry.source_answer() else { return Ok(Wanted::Settle(Outcome::Fetch)) };
        let content = &self.entry.fold.content;
        let wanted = match (answer, content) {
            (SourceAnswer::Document(document), _) => self.applied_to(Some(document)).and_then(|document| {
                self.rules.locate_document(&document)?;
                Ok(Wanted::Document(document, Made::Fetched))
            }),
            (SourceAnswer::Unusable(refusal), _) => Err(refusal.clone()),
            (SourceAnswer::Gone, Content::Refeed) => Ok(Wanted::Gone(Outcome::Done(Done::Deleted))),
            (SourceAnswer::Gone, Content::Patch { over: Base::Refed, .. })
                if self.rules.on_missing == OnMissing::Create =>
            {
                Ok(self.made_of_patches(Made::Fetched))
            }
            (SourceAnswer::Gone, _) => Ok(Wanted::Gone(self.missing_outcome())),
        };
        match (wanted, content) {
            // The delete before the patch stands.
            (Err(refusal), Content::Patch { over: Base::Nothing, .. }) => {
                Ok(Wanted::Gone(Outcome::DeadLetter(refusal.into())))
            }
            (wanted, _) => wanted,
        }
    }

    pub(super) fn missing_outcome(&self) -> Outcome {
        // No write is lost: the producer of the touch did not know that the document is gone.
        if self.entry.fold.content == Content::Touch {
            return Outcome::Done(Done::NothingToPlace);
        }
        // The source confirms it: no write is lost.
        if matches!(self.rules.on_missing, OnMissing::Drop | OnMissing::Refeed) {
            return Outcome::Done(Done::Dropped);
        }
        let refusal = Refusal {
            reason: MISSING_DOCUMENT,
            detail: "a patch of a document that is not in the index".to_owned(),
        };
        Outcome::DeadLetter(refusal.into())
    }
}
