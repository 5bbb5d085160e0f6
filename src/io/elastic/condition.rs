//! Elasticsearch's rules for versions, once: whether a write is carried out, and which version the document has then. The stand-in, the
//! dry run and the stores of the tests keep them; `tests/contract` holds the stand-in to what real servers do.

use super::{BulkOp, SeqNo, WriteCondition};

/// The condition of a write. `V` is a version, `S` the state that compare-and-set compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionCondition<V, S> {
    /// None; the version counts up.
    Any,
    /// `op_type=create`: only if there is no document.
    Absent,
    /// `version_type=external`: only over a lower version.
    External(V),
    /// `version_type=external_gte`: only over a lower or equal version.
    ExternalOrEqual(V),
    /// `if_seq_no` and `if_primary_term`: only over a document in exactly this state.
    Unchanged(S),
}

/// Versions that increase when a write brings none.
pub trait DocumentVersion: Copy + PartialOrd {
    /// That of a document that was never there.
    const FIRST: Self;

    /// The one after this.
    #[must_use]
    fn next(self) -> Self;
}

impl DocumentVersion for u64 {
    const FIRST: Self = 1;

    fn next(self) -> Self {
        self.saturating_add(1)
    }
}

impl DocumentVersion for i64 {
    const FIRST: Self = 1;

    fn next(self) -> Self {
        self.saturating_add(1)
    }
}

impl<V: Copy + PartialOrd, S: PartialEq> VersionCondition<V, S> {
    /// Whether the write is carried out; otherwise it is a version conflict. `known` is the version of the document or of the
    /// tombstone that is left of it, `live` the state of the document if it is there.
    pub fn allows(&self, known: Option<V>, live: Option<S>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => live.is_none(),
            Self::External(new) => known.is_none_or(|known| known < *new),
            Self::ExternalOrEqual(new) => known.is_none_or(|known| known <= *new),
            Self::Unchanged(state) => live.is_some_and(|live| live == *state),
        }
    }

    /// The version that a write leaves: the one that came with it, or the next.
    pub fn version_after(&self, known: Option<V>) -> V
    where
        V: DocumentVersion,
    {
        match self {
            Self::External(new) | Self::ExternalOrEqual(new) => *new,
            Self::Any | Self::Absent | Self::Unchanged(_) => known.map_or(V::FIRST, V::next),
        }
    }

    /// Both: the version that the write leaves, or `None` if it is a version conflict.
    pub fn next_version(&self, known: Option<V>, live: Option<S>) -> Option<V>
    where
        V: DocumentVersion,
    {
        self.allows(known, live).then(|| self.version_after(known))
    }
}

impl From<&WriteCondition> for VersionCondition<u64, SeqNo> {
    fn from(guard: &WriteCondition) -> Self {
        match *guard {
            WriteCondition::External(at) => Self::External(at.version()),
            WriteCondition::ExternalOrEqual(at) => Self::ExternalOrEqual(at.version()),
            WriteCondition::Absent => Self::Absent,
            WriteCondition::Unchanged(stamp) => Self::Unchanged(stamp),
        }
    }
}

impl From<&BulkOp> for VersionCondition<u64, SeqNo> {
    fn from(op: &BulkOp) -> Self {
        match op {
            BulkOp::Index { guard, .. } => guard.into(),
            BulkOp::Delete { version, .. } => Self::External(version.version()),
            BulkOp::Remove { stamp, .. } => Self::Unchanged(*stamp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::VersionCondition::{self, Absent, Any, External, ExternalOrEqual, Unchanged};

    #[test]
    fn a_write_is_carried_out_on_its_condition_and_leaves_its_version() {
        type Case = (VersionCondition<u64, char>, Option<u64>, Option<char>, Option<u64>);
        let cases: [Case; 17] = [
            // Nothing was ever there.
            (Any, None, None, Some(1)),
            (Absent, None, None, Some(1)),
            (External(0), None, None, Some(0)),
            (ExternalOrEqual(7), None, None, Some(7)),
            (Unchanged('a'), None, None, None),
            // A document.
            (Any, Some(7), Some('a'), Some(8)),
            (Absent, Some(7), Some('a'), None),
            (External(7), Some(7), Some('a'), None),
            (External(8), Some(7), Some('a'), Some(8)),
            (ExternalOrEqual(6), Some(7), Some('a'), None),
            (ExternalOrEqual(7), Some(7), Some('a'), Some(7)),
            (Unchanged('a'), Some(7), Some('a'), Some(8)),
            (Unchanged('b'), Some(7), Some('a'), None),
            // A tombstone keeps the version but is no document.
            (Absent, Some(7), None, Some(8)),
            (External(7), Some(7), None, None),
            (External(8), Some(7), None, Some(8)),
            (Unchanged('a'), Some(7), None, None),
        ];
        for (condition, known, live, after) in cases {
            assert_eq!(condition.next_version(known, live), after, "{condition:?} over {known:?} {live:?}");
        }
    }
}
