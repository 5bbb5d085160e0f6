//! Whether documents without a cached placement are expected to be new. Then their placements are created without being read before.

/// Placements looked at before the expectation changes.
const WINDOW: u32 = 256;

/// Of a window, so many may exist: each costs a create that fails and an attempt that starts over, which is more than the read that
/// the others save.
const MAX_EXISTING: u32 = WINDOW / 16;

/// What the last placements were that were not cached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewDocuments {
    missing: u32,
    existing: u32,
    are_expected: bool,
}

impl NewDocuments {
    /// They are expected from the start. Only for tests: an owner that knows nothing reads.
    pub fn expected() -> Self {
        Self { are_expected: true, ..Self::default() }
    }

    /// Whether to create placements without reading them before.
    pub(super) fn are_expected(self) -> bool {
        self.are_expected
    }

    /// A placement that was not cached was read or created, and was `missing` until then or not.
    pub(super) fn saw(&mut self, missing: bool) {
        let seen = if missing { &mut self.missing } else { &mut self.existing };
        *seen += 1;
        if self.missing + self.existing == WINDOW {
            *self = Self { are_expected: self.existing <= MAX_EXISTING, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(documents: impl IntoIterator<Item = (u32, bool)>) -> NewDocuments {
        let mut new = NewDocuments::default();
        for (count, missing) in documents {
            (0..count).for_each(|_| new.saw(missing));
        }
        new
    }

    #[test]
    fn nearly_all_of_a_whole_window_must_be_new() {
        for (documents, are_expected) in [
            (vec![], false),
            (vec![(255, true)], false),
            (vec![(256, true)], true),
            (vec![(16, false), (240, true)], true),
            (vec![(17, false), (239, true)], false),
            (vec![(256, true), (255, false)], true),
            (vec![(256, true), (239, true), (17, false)], false),
            (vec![(256, true), (256, false), (255, true)], false),
            (vec![(256, true), (256, false), (256, true)], true),
        ] {
            assert_eq!(after(documents.clone()).are_expected(), are_expected, "{documents:?}");
        }
        assert!(NewDocuments::expected().are_expected());
    }
}
