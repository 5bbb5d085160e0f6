//! The live maps: one, or two while a map is changed (protocol, "Changing the map").

use std::sync::Arc;

use super::GeoshardMap;

/// The maps by which documents may be placed at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveMaps {
    /// The usual state.
    One(Arc<GeoshardMap>),
    /// A map is being changed: a document may be where either map says.
    Two {
        /// The map before the change.
        old: Arc<GeoshardMap>,
        /// The map after the change.
        new: Arc<GeoshardMap>,
    },
}

impl LiveMaps {
    /// All live maps: a reader must look in the geoshards of each.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<GeoshardMap>> {
        let (first, second) = match self {
            LiveMaps::One(map) => (map, None),
            LiveMaps::Two { old, new } => (old, Some(new)),
        };
        std::iter::once(first).chain(second)
    }
}
