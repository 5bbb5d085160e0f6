//! What the records of a fold did to their document's facets, one after the other, as far as they tell.

use super::facets::Facets;

/// The facets after each of the records that one fold was made of. What a fold is written in place for must be known of
/// each: whoever folded less may have recorded what is between (docs/tally.md, "In place").
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Steps {
    /// No record touched any, or nothing is counted.
    #[default]
    Untouched,
    /// These, after each that made any; the others touched none.
    All(Facets),
    /// A patch touched some, of a document that was not at hand; or they changed within the fold; or there is no document.
    Unclear,
}

impl Steps {
    /// Takes in those of a later fold of the same document.
    pub(crate) fn absorb(&mut self, newer: Self) {
        match (&*self, newer) {
            (_, Self::Untouched) => {}
            (Self::Untouched, newer) => *self = newer,
            (Self::All(before), Self::All(after)) if *before == after => {}
            _ => *self = Self::Unclear,
        }
    }

    /// Bytes that they hold on the heap, about.
    pub fn bytes(&self) -> usize {
        if let Self::All(facets) = self { facets.bytes() } else { 0 }
    }
}
