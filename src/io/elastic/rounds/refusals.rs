//! Distinguishes an index that refuses everything from bad documents.
//!
//! A missing ingest pipeline, an alias without a write index, a changed mapping: Elasticsearch answers 400 for each document,
//! as for a bad one. Believing these would send the whole stream to the dead-letter topic and commit it. So an index that
//! refuses many different documents alike, with no success in between, counts as faulty: its refusals are retried until a
//! document succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::ids::DocId;
use crate::io::elastic::{Index, ItemError};

/// Which refusals are believed. Pure.
#[derive(Debug)]
struct IndexFaults {
    /// So many different documents, refused alike, are too many; 0: none are.
    most: usize,
    indices: BTreeMap<Index, Alike>,
}

/// Refusals of an index since its last success.
#[derive(Debug, Default)]
struct Alike {
    /// Distinct documents by error type, at most `most` of each.
    by_kind: BTreeMap<String, BTreeSet<DocId>>,
    is_at_fault: bool,
}

impl IndexFaults {
    /// The index took a document. Gives whether it was taken for the one at fault before.
    fn took(&mut self, index: &Index) -> bool {
        self.indices.remove(index).is_some_and(|alike| alike.is_at_fault)
    }

    /// The index refused a document.
    fn refused(&mut self, index: &Index, id: &DocId, kind: &str) -> Belief {
        if self.most == 0 {
            return Belief::Believed;
        }
        let alike = self.indices.entry(index.clone()).or_default();
        if alike.is_at_fault {
            return Belief::IndexAtFault { is_news: false };
        }
        let ids = alike.by_kind.entry(kind.to_owned()).or_default();
        ids.insert(id.clone());
        if ids.len() < self.most {
            return Belief::Believed;
        }
        *alike = Alike { is_at_fault: true, ..Alike::default() };
        Belief::IndexAtFault { is_news: true }
    }
}

/// Whom a refusal is put down to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Belief {
    /// The document.
    Believed,
    /// The index.
    IndexAtFault {
        /// It was not before.
        is_news: bool,
    },
}

/// Shared by all partitions of a worker. Its lock is taken only for answers with a refusal, and while an index has refused
/// something and taken nothing since.
pub(super) struct Refusals {
    is_watching: AtomicBool,
    faults: Mutex<IndexFaults>,
}

/// A document that an index refused.
pub(super) struct RefusedItem<'a> {
    /// Its place among the items.
    pub(super) place: usize,
    pub(super) index: &'a Index,
    pub(super) id: &'a DocId,
    pub(super) error: ItemError,
}

/// The result of judging one response.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// Positions of items that were refused because of the index.
    pub(super) to_be_repeated: BTreeSet<usize>,
    /// Indices that are taken for the ones at fault since now.
    pub(super) at_fault: Vec<(Index, ItemError)>,
    /// Indices that were, and have taken a document.
    pub(super) well: Vec<Index>,
}

impl Refusals {
    pub(super) fn new(most: usize) -> Self {
        let faults = IndexFaults { most, indices: BTreeMap::new() };
        Self { is_watching: AtomicBool::new(false), faults: Mutex::new(faults) }
    }

    /// Whether answers without a refusal matter.
    pub(super) fn is_watching(&self) -> bool {
        self.is_watching.load(Ordering::Acquire)
    }

    /// Judges one response: accepted and refused items. Successes of an index count before refusals in the same response.
    pub(super) fn judge(&self, took: &BTreeSet<&Index>, refused: Vec<RefusedItem<'_>>) -> Judged {
        let mut judged = Judged::default();
        let mut faults = self.lock();
        judged.well.extend(took.iter().filter(|index| faults.took(index)).map(|index| (*index).clone()));
        for RefusedItem { place, index, id, error } in refused {
            if took.contains(index) {
                continue;
            }
            match faults.refused(index, id, &error.kind) {
                Belief::Believed => {}
                Belief::IndexAtFault { is_news } => {
                    judged.to_be_repeated.insert(place);
                    if is_news {
                        judged.at_fault.push((index.clone(), error));
                    }
                }
            }
        }
        self.is_watching.store(!faults.indices.is_empty(), Ordering::Release);
        judged
    }

    fn lock(&self) -> MutexGuard<'_, IndexFaults> {
        // No code that holds the lock can leave it half changed.
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> DocId {
        DocId::from_key(Some(n.to_string().as_bytes())).unwrap()
    }

    fn faults(most: usize) -> IndexFaults {
        IndexFaults { most, indices: BTreeMap::new() }
    }

    const AT_FAULT: Belief = Belief::IndexAtFault { is_news: false };
    const NOW_AT_FAULT: Belief = Belief::IndexAtFault { is_news: true };

    #[test]
    fn equal_refusals_blame_the_index_until_one_succeeds() {
        let mut faults = faults(3);
        let index = Index::Meta;
        assert_eq!(faults.refused(&index, &id(1), "a"), Belief::Believed);
        assert_eq!(faults.refused(&index, &id(1), "a"), Belief::Believed, "the same document");
        assert_eq!(faults.refused(&index, &id(2), "a"), Belief::Believed);
        assert_eq!(faults.refused(&index, &id(3), "b"), Belief::Believed, "another type of error");
        assert_eq!(faults.refused(&Index::Placements, &id(4), "a"), Belief::Believed, "another index");
        assert_eq!(faults.refused(&index, &id(5), "a"), NOW_AT_FAULT);
        assert_eq!(faults.refused(&index, &id(1), "b"), AT_FAULT);
        assert!(faults.took(&index) && !faults.took(&index));
        assert_eq!(faults.refused(&index, &id(5), "a"), Belief::Believed);
    }

    #[test]
    fn bad_documents_among_good_ones_are_believed_however_many() {
        let mut faults = faults(3);
        for n in 0..100 {
            assert_eq!(faults.refused(&Index::Meta, &id(n), "a"), Belief::Believed);
            if n % 2 == 1 {
                assert!(!faults.took(&Index::Meta));
            }
        }
    }

    #[test]
    fn without_a_bound_every_refusal_is_believed() {
        let mut faults = faults(0);
        assert!((0..1000).all(|n| faults.refused(&Index::Meta, &id(n), "a") == Belief::Believed));
        assert!(faults.indices.is_empty());
    }
}
