//! Which maps are live: one, or two while a map is changed (protocol, "Changing the map").

use std::sync::Arc;

use super::GeoshardMap;

/// The maps by which documents may be placed at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveMaps {
    /// The usual state.
    One(Arc<GeoshardMap>),
    /// A map is being changed: a document is where either of them says.
    Two {
        /// The map that documents were placed by before the change.
        old: Arc<GeoshardMap>,
        /// The map that they are placed by after it.
        new: Arc<GeoshardMap>,
    },
}

impl LiveMaps {
    /// All of them: a reader has to look where any of them says.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<GeoshardMap>> {
        let (first, second) = match self {
            LiveMaps::One(map) => (map, None),
            LiveMaps::Two { old, new } => (old, Some(new)),
        };
        std::iter::once(first).chain(second)
    }
}
