//! What several modules' tests share: a search server in memory, a clock that follows tokio's, a small map, a
//! collector in memory, a source of truth and a schema registry over HTTP.

mod clock;
mod elastic;
mod http;
mod registry;
pub(crate) mod source;
mod tally;
pub(crate) mod tls;

use std::sync::Arc;

use crate::base::ids::{DocId, ShardId};
use crate::base::position::{Epoch, Position};
use crate::core::decode::LocationPath;
use crate::core::mover::{OnMissing, Rules};
use crate::geoshard::GeoshardMap;

pub(crate) use clock::TokioClock;
pub(crate) use elastic::MemoryElastic;
pub(crate) use registry::TestRegistry;
pub(crate) use tally::{Merger, recount};

/// A document's id.
pub(crate) fn id(id: &str) -> DocId {
    DocId::from_key(Some(id.as_bytes())).unwrap()
}

/// A geoshard's id.
pub(crate) fn shard(id: &str) -> ShardId {
    ShardId::new(id).unwrap()
}

/// The position of the record at `offset`, in the default epoch.
pub(crate) fn at(offset: i64) -> Position {
    Position::new(Epoch::default(), offset).unwrap()
}

/// One geoshard for each face of S2's cube: `f0` around 0°/0°, `f1` around 0°/90°, `f2` around the north pole, and so on.
pub(crate) fn six_faces() -> Arc<GeoshardMap> {
    let ranges: Vec<String> = (0_u64..6)
        .map(|face| {
            let from = if face == 0 { 0 } else { (face << 61) + 1 };
            format!(r#"{{"from":"{from:016x}","shard":"f{face}"}}"#)
        })
        .collect();
    let json = format!(r#"{{"version":1,"name":"faces","cells":"s2","ranges":[{}]}}"#, ranges.join(","));
    Arc::new(GeoshardMap::from_json(&json).unwrap())
}

/// Documents have `location`; what is missing goes to the dead letters.
pub(crate) fn rules() -> Rules {
    Rules {
        map: six_faces(),
        location: LocationPath::new("location").unwrap(),
        on_missing: OnMissing::DeadLetter,
        other_map: None,
        announce_all: false,
        tally: None,
    }
}
