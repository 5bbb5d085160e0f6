//! Folds of one document that become one.

use std::sync::Arc;

use super::separate::untried;
use super::{Dirty, Undeliverable};
use crate::base::ids::DocId;
use crate::base::sabotage::{self, Sabotage};
use crate::core::fold::{Fold, Rejected};
use crate::core::mover::{Refusal, Rules};

/// Merges folds, and counts the bytes that all of a ledger's hold.
#[derive(Debug, Clone)]
pub(super) struct Merger {
    pub(super) rules: Rules,
    /// Memory cost of all folds, in bytes.
    pub(super) bytes: usize,
    /// Folds that rejected a newer record; delivered with the next settlement.
    pub(super) rejected: Vec<Undeliverable>,
}

impl Merger {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, bytes: 0, rejected: Vec::new() }
    }

    /// Folds a newer value of a document into an older one.
    pub(super) fn merge(&mut self, id: &DocId, older: &mut Dirty, mut newer: Dirty) {
        if sabotage::is(Sabotage::LoseAFold) {
            Arc::make_mut(&mut newer.fold).content = older.fold.content.clone();
        }
        self.bytes -= older.bytes + newer.bytes;
        older.since = older.since.min(newer.since);
        // Combined, the rejected and the new patches may make a valid document.
        let newest = match older.unmerged.take() {
            Some(mut patches) => {
                let absorbed = Arc::make_mut(&mut patches)
                    .absorb(Arc::unwrap_or_clone(newer.fold), &self.rules.location);
                debug_assert!(absorbed.is_ok(), "patches absorb everything: {absorbed:?}");
                patches
            }
            None => newer.fold,
        };
        let is_whole = newer.unmerged.is_some();
        let absorbed = self.absorb(&mut older.fold, newest);
        debug_assert!(
            absorbed.is_ok() || !is_whole,
            "only a whole document rejects patches, and nothing rejects one"
        );
        older.unmerged = match absorbed {
            Ok(()) => newer.unmerged,
            Err(rejected) if rejected.fold.separable().is_some() => Some(Arc::new(rejected.fold)),
            Err(rejected) => {
                self.refuse(id, &mut older.fold, *rejected, None);
                None
            }
        };
        older.bytes = older.held_bytes(id);
        self.bytes += older.bytes;
    }

    /// `older` is unchanged if it rejects `newer`.
    pub(super) fn absorb(&self, older: &mut Arc<Fold>, newer: Arc<Fold>) -> Result<(), Box<Rejected>> {
        Arc::make_mut(older).absorb(Arc::unwrap_or_clone(newer), &self.rules.location)
    }

    /// What `older` rejects becomes a dead letter. `unread`: why its records could not be read again.
    pub(super) fn refuse(
        &mut self,
        id: &DocId,
        older: &mut Arc<Fold>,
        rejected: Rejected,
        unread: Option<&str>,
    ) {
        Arc::make_mut(older).pass(&rejected.fold);
        let (reason, stage, mut detail) = (rejected.reason(), rejected.stage(), rejected.to_string());
        if let Some(why) = unread {
            detail.push_str(&untried(&rejected.fold, why));
        }
        let refusal = Refusal { reason, detail };
        self.rejected.push(Undeliverable {
            id: id.clone(),
            fold: rejected.fold,
            refusal,
            stage,
            record: None,
        });
    }
}
