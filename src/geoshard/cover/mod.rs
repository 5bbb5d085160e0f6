//! The cover of a shape: the geoshards that a search within it must query.
//!
//! The promise is that no hit is outside: for every document that Elasticsearch finds within the shape, its geoshard is in the
//! cover. The cover is also minimal up to the margin: a geoshard is in it only if one of its cells comes
//! within the margin of the shape. `docs/cover.md` and `docs/cover.py` state the rule for other languages, `tests/vectors/cover.json` has
//! test cases.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | [`cover`], and the shape's relation to a cell |
//! | `shape.rs` | [`Shape`]: circle, box and polygon; validation and parsing |
//! | `cell.rs` | a cell in the coordinates of its face, its children, and its bounds in degrees |
//! | `boxes.rs` | the other way round: boxes that hold what lies in ranges of the curve |
//! | `walk.rs` | down from the six faces to the map's own borders |
//! | `circle.rs` | a circle against a cell, on the sphere |
//! | `distance.rs` | how far each geoshard is from a point |
//! | `planar.rs` | box and polygon against a cell, in degrees |

pub mod boxes;
mod cell;
mod circle;
mod distance;
mod planar;
mod shape;
mod walk;

use std::collections::BTreeSet;

use self::cell::Cell;
use self::circle::CoverCircle;
pub use self::circle::{MARGIN_METRES, WHOLE_GLOBE_METRES};
pub use self::distance::distances;
use self::planar::Planar;
pub use self::shape::{BadShape, MAX_VERTICES, Shape};
use super::{GeoshardMap, LiveMaps};
use crate::base::ids::ShardId;

/// Relation of a shape, grown by its margin, to a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    /// Disjoint.
    Outside,
    /// They intersect.
    Meets,
    /// They may intersect: smaller cells decide.
    Near,
    /// The cell is within the shape or its margin.
    Inside,
}

/// A shape as seen by the walk.
trait Territory {
    fn relation(&self, cell: &Cell) -> Relation;
}

/// The geoshards of `map` that may hold a point within `shape`, sorted.
pub fn cover(map: &GeoshardMap, shape: &Shape) -> Vec<ShardId> {
    let found = match shape {
        Shape::Circle { centre, radius } => match CoverCircle::new(*centre, *radius) {
            Some(circle) => walk::walk(map, &circle),
            None => vec![true; map.shards().len()],
        },
        Shape::Box { top, left, bottom, right } => {
            walk::walk(map, &Planar::from_box(*top, *left, *bottom, *right))
        }
        Shape::Polygon { vertices } => walk::walk(map, &Planar::from_polygon(vertices)),
    };
    map.shards().iter().zip(found).filter(|(_, is_in)| *is_in).map(|(shard, _)| shard.clone()).collect()
}

/// The geoshards that may hold a point within `shape` under any live map, sorted, each once.
///
/// While a map is changed a document may be where either map says, so a search must query both covers.
pub fn cover_live(maps: &LiveMaps, shape: &Shape) -> Vec<ShardId> {
    let all: BTreeSet<ShardId> = maps.iter().flat_map(|map| cover(map, shape)).collect();
    all.into_iter().collect()
}
