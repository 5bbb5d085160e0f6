//! Border crossings of tracks: consecutive positions of moving objects.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;
use thiserror::Error;

use super::map::GeoshardMap;
use crate::base::geo::GeoPoint;

/// Maximum number of tracks: about 500 MB with short ids.
pub const MAX_TRACKS: usize = 5_000_000;

/// How many writes of a sample cross a border.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Crossings {
    /// Number of tracks.
    pub tracks: usize,
    /// Positions after the first of each.
    pub writes: u64,
    /// Those in another geoshard than the position before.
    pub crossings: u64,
    /// Crossings over writes, 0 to 1.
    pub share: f64,
}

/// The limit on tracks is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("there are tracks of more than {MAX_TRACKS} ids; a sample of them is enough")]
pub struct TooManyTracks;

/// Follows tracks over a map.
#[derive(Debug)]
pub struct TrackFollower<'m> {
    map: &'m GeoshardMap,
    last: HashMap<Box<str>, usize, ahash::RandomState>,
    writes: u64,
    crossings: u64,
}

impl<'m> TrackFollower<'m> {
    /// Without tracks.
    pub fn new(map: &'m GeoshardMap) -> Self {
        Self { map, last: HashMap::default(), writes: 0, crossings: 0 }
    }

    /// The next position of `id`.
    pub fn step(&mut self, id: &str, point: GeoPoint) -> Result<(), TooManyTracks> {
        let owner = self.map.locate_index(point);
        if let Some(last) = self.last.get_mut(id) {
            self.writes += 1;
            self.crossings += u64::from(*last != owner);
            *last = owner;
            return Ok(());
        }
        if self.last.len() >= MAX_TRACKS {
            return Err(TooManyTracks);
        }
        self.last.insert(id.into(), owner);
        Ok(())
    }

    /// The crossings so far.
    pub fn crossings(&self) -> Crossings {
        let &Self { writes, crossings, .. } = self;
        let share = if writes == 0 { 0.0 } else { crossings as f64 / writes as f64 };
        Crossings { tracks: self.last.len(), writes, crossings, share }
    }
}

impl fmt::Display for Crossings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tracks, writes, crossings, share } = self;
        let percent = share * 100.0;
        write!(f, "writes that cross a border: {percent:.3} % ({crossings} of {writes}, {tracks} tracks)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::ShardId;

    #[test]
    fn write_crosses_if_its_geoshard_differs_from_the_last() {
        let shard = |id| ShardId::new(id).unwrap();
        let map = GeoshardMap::new(1, "", vec![(0, shard("a")), (1 << 61 | 1, shard("b"))]).unwrap();
        let mut follower = TrackFollower::new(&map);
        for (id, lon) in [("x", 0.0), ("y", 90.0), ("x", 1.0), ("x", 90.0), ("y", 91.0), ("x", 0.0)] {
            follower.step(id, GeoPoint::new(0.0, lon).unwrap()).unwrap();
        }
        let seen = follower.crossings();
        assert_eq!(seen, Crossings { tracks: 2, writes: 4, crossings: 2, share: 0.5 });
        assert_eq!(seen.to_string(), "writes that cross a border: 50.000 % (2 of 4, 2 tracks)");
        assert_eq!(TrackFollower::new(&map).crossings().share, 0.0);
    }
}
