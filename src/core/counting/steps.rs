//! The effects of a fold's records on their document's facets, as far as the records tell.

use super::facets::Facets;

/// The facets after each record of a fold. An in-place write needs all of them: an owner that folded less may have
/// recorded an intermediate state (docs/tally.md, "In place").
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Steps {
    /// No record touched any, or nothing is counted.
    #[default]
    Untouched,
    /// These, after each record that set any; the others touched none.
    All(Facets),
    /// A patch touched some without the document at hand; or they changed within the fold; or there is no document.
    Unclear,
}

impl Steps {
    /// Adds those of a later fold of the same document.
    pub(crate) fn absorb(&mut self, newer: Self) {
        match (&*self, newer) {
            (_, Self::Untouched) => {}
            (Self::Untouched, newer) => *self = newer,
            (Self::All(before), Self::All(after)) if *before == after => {}
            _ => *self = Self::Unclear,
        }
    }

    /// Approximate heap bytes.
    pub fn bytes(&self) -> usize {
        if let Self::All(facets) = self { facets.bytes() } else { 0 }
    }
}
