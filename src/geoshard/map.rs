//! The geoshard map: which geoshard a point belongs to.
//!
//! A map cuts the line of S2 leaf cells ([`cell`](super::cell)) into ranges and assigns each to a geoshard. A range begins at its
//! `from` and ends where the next begins, the first at the start of the globe and the last at its end, so every
//! point belongs to exactly one geoshard by construction: gaps and overlaps cannot be expressed. To find a
//! point's geoshard, in any language: take its S2 leaf cell id as an unsigned 64-bit number, then the last range whose
//! `from` is not above it. The file:
//!
//! ```json
//! {
//!   "version": 1,
//!   "name": "world",
//!   "cells": "s2",
//!   "ranges": [
//!     {"from": "0000000000000000", "shard": "s00"},
//!     {"from": "1000000000000001", "shard": "s01"}
//!   ]
//! }
//! ```
//!
//! Ids are 16 hexadecimal digits in a string, since JSON numbers lose bits above 2^53 in many languages.

use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::cell::{END_OF_GLOBE, FIRST_LEAF, Leaf};
use crate::base::fnv::fnv1a;
use crate::base::ids::ShardId;

/// Maximum number of ranges: the table must stay in the CPU's cache, and more would be a mistake.
pub const MAX_RANGES: usize = 10_000;

/// The only cell system.
const CELLS: &str = "s2";

/// A loaded and validated map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "MapFile", into = "MapFile")]
pub struct GeoshardMap {
    version: u64,
    name: String,
    /// Where each range begins: 0 first, then leaf cell ids, strictly ascending.
    starts: Vec<u64>,
    /// For each range, the index of its geoshard in `shards`.
    owners: Vec<usize>,
    /// Sorted and distinct.
    shards: Vec<ShardId>,
}

/// Why a map is unusable.
#[derive(Debug, Error)]
pub enum MapError {
    /// The file could not be read.
    #[error("cannot read the geoshard map {path}: {source}{}", advice_on_reading(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The file does not hold a valid map.
    #[error("the geoshard map {path} cannot be used: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The defect.
        source: Box<MapError>,
    },
    /// An empty file.
    #[error("it is empty; make a map with `geofold shards plan`")]
    Empty,
    /// Not JSON, a missing or unknown key, a value of the wrong type, or a bad geoshard id.
    #[error("not a geoshard map: {0}")]
    Json(#[from] serde_json::Error),
    /// Versions distinguish two live maps; 0 stands for none.
    #[error("version is 0; count versions from 1")]
    VersionZero,
    /// Made for another cell system.
    #[error("cells is {0:?}, but only {CELLS:?} is known")]
    Cells(String),
    /// No ranges.
    #[error("ranges is empty; give at least one range, from \"0000000000000000\"")]
    NoRanges,
    /// More than [`MAX_RANGES`].
    #[error("there are {0} ranges, but {MAX_RANGES} at most are allowed; use larger cells")]
    TooManyRanges(usize),
    /// Points before the first range would have no geoshard.
    #[error(
        "ranges[0] begins at {from:?}, but the first must begin at the start of the globe, \"0000000000000000\""
    )]
    LateStart {
        /// Where the first range begins.
        from: String,
    },
    /// Not the id of a leaf cell.
    #[error(
        "ranges[{index}] begins at {from:?}, which is no S2 leaf cell id: \
         16 hexadecimal digits, an odd number, below \"c000000000000000\""
    )]
    BadCell {
        /// Which range, from 0.
        index: usize,
        /// Where it begins.
        from: String,
    },
    /// Unsorted, or the same start twice.
    #[error(
        "ranges[{index}] begins at {from:?}, not above the range before it; sort the ranges, each start once"
    )]
    NotAscending {
        /// Which range, from 0.
        index: usize,
        /// Where it begins.
        from: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapFile {
    version: u64,
    name: String,
    cells: String,
    ranges: Vec<RangeFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RangeFile {
    from: String,
    shard: ShardId,
}

impl GeoshardMap {
    /// Makes a map of ranges given by their first leaf cell, in order. The first may begin at 0 or at [`FIRST_LEAF`].
    pub fn new(version: u64, name: &str, ranges: Vec<(u64, ShardId)>) -> Result<Self, MapError> {
        if version == 0 {
            return Err(MapError::VersionZero);
        }
        let Some((first, _)) = ranges.first() else {
            return Err(MapError::NoRanges);
        };
        if ranges.len() > MAX_RANGES {
            return Err(MapError::TooManyRanges(ranges.len()));
        }
        if *first > FIRST_LEAF {
            return Err(MapError::LateStart { from: hex(*first) });
        }

        let mut starts: Vec<u64> = ranges.iter().map(|(from, _)| *from).collect();
        for (index, pair) in starts.windows(2).enumerate() {
            let (index, from) = (index + 1, pair[1]);
            // Only leaf ids, so that no range is empty between an even number and the odd one above it.
            if from % 2 == 0 || from >= END_OF_GLOBE {
                return Err(MapError::BadCell { index, from: hex(from) });
            }
            if from <= pair[0].max(FIRST_LEAF) {
                return Err(MapError::NotAscending { index, from: hex(from) });
            }
        }
        starts[0] = 0;

        let mut shards: Vec<ShardId> = ranges.iter().map(|(_, shard)| shard.clone()).collect();
        shards.sort_unstable();
        shards.dedup();
        let owners = ranges.iter().map(|(_, shard)| shards.partition_point(|known| known < shard)).collect();
        Ok(Self { version, name: name.to_owned(), starts, owners, shards })
    }

    /// Parses and validates a map.
    pub fn from_json(json: &str) -> Result<Self, MapError> {
        if json.trim().is_empty() {
            return Err(MapError::Empty);
        }
        serde_json::from_str::<MapFile>(json)?.try_into()
    }

    /// Reads and validates a map file. Errors name the file.
    pub fn load(path: &Path) -> Result<Self, MapError> {
        let json =
            fs::read_to_string(path).map_err(|source| MapError::Read { path: path.to_owned(), source })?;
        Self::from_json(&json)
            .map_err(|source| MapError::File { path: path.to_owned(), source: Box::new(source) })
    }

    /// The map as a file: one range per line and a final line break, so that versions can be compared.
    pub fn to_json(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut json = format!(
            "{{\n  \"version\": {},\n  \"name\": {},\n  \"cells\": {},\n  \"ranges\": [",
            self.version,
            quoted(&self.name),
            quoted(CELLS)
        );
        for (index, (range, shard)) in self.ranges().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(
                json,
                "{comma}\n    {{\"from\": {}, \"shard\": \"{shard}\"}}",
                quoted(&hex(range.start))
            );
        }
        json.push_str("\n  ]\n}\n");
        json
    }

    /// The map's version, at least 1.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Identifies this map: its version, and a 64-bit FNV-1a hash of its content. The same on every machine.
    pub fn fingerprint(&self) -> String {
        format!("{}-{:016x}", self.version, fnv1a(self.to_json().bytes()))
    }

    /// The map's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All geoshards, sorted, each once.
    pub fn shards(&self) -> &[ShardId] {
        &self.shards
    }

    /// All ranges in curve order: leaf cell ids and owner.
    pub fn ranges(&self) -> impl Iterator<Item = (Range<u64>, &ShardId)> {
        let ends = self.starts.iter().skip(1).copied().chain([END_OF_GLOBE]);
        let owners = self.owners.iter().map(|&owner| &self.shards[owner]);
        self.starts.iter().zip(ends).map(|(&start, end)| start..end).zip(owners)
    }

    /// Where each range begins, in order, and for each the index of its owner in [`Self::shards`].
    pub(super) fn table(&self) -> (&[u64], &[usize]) {
        (&self.starts, &self.owners)
    }

    /// The geoshard that a point belongs to.
    pub fn locate(&self, at: impl Into<Leaf>) -> &ShardId {
        &self.shards[self.locate_index(at)]
    }

    /// The index in [`Self::shards`] of the geoshard that a point belongs to.
    pub fn locate_index(&self, at: impl Into<Leaf>) -> usize {
        self.owner_of_leaf(at.into().id())
    }

    /// The index in [`Self::shards`] of the geoshard that a leaf cell belongs to.
    pub(super) fn owner_of_leaf(&self, leaf: u64) -> usize {
        // At least one start is not above any leaf: the first is 0.
        self.owners[self.starts.partition_point(|&start| start <= leaf) - 1]
    }
}

impl TryFrom<MapFile> for GeoshardMap {
    type Error = MapError;

    fn try_from(file: MapFile) -> Result<Self, MapError> {
        if file.cells != CELLS {
            return Err(MapError::Cells(file.cells));
        }
        let mut ranges = Vec::with_capacity(file.ranges.len());
        for (index, RangeFile { from, shard }) in file.ranges.into_iter().enumerate() {
            let well_formed = from.len() == 16 && from.bytes().all(|digit| digit.is_ascii_hexdigit());
            match u64::from_str_radix(&from, 16) {
                Ok(id) if well_formed => ranges.push((id, shard)),
                _ => return Err(MapError::BadCell { index, from }),
            }
        }
        Self::new(file.version, &file.name, ranges)
    }
}

impl From<GeoshardMap> for MapFile {
    fn from(map: GeoshardMap) -> Self {
        let range = |(range, shard): (Range<u64>, &ShardId)| RangeFile {
            from: hex(range.start),
            shard: shard.clone(),
        };
        Self {
            version: map.version,
            name: map.name.clone(),
            cells: CELLS.to_owned(),
            ranges: map.ranges().map(range).collect(),
        }
    }
}

fn hex(id: u64) -> String {
    format!("{id:016x}")
}

fn advice_on_reading(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; make one with `geofold shards plan`, or correct the path (geoshards.map)"
        }
        io::ErrorKind::InvalidData => "; a map is JSON, in UTF-8",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::geoshard::cell;

    fn point(lat: f64, lon: f64) -> GeoPoint {
        GeoPoint::new(lat, lon).unwrap()
    }

    fn file(ranges: &str) -> String {
        format!(r#"{{"version": 3, "name": "test", "cells": "s2", "ranges": [{ranges}]}}"#)
    }

    fn refusal(json: &str) -> String {
        GeoshardMap::from_json(json).unwrap_err().to_string()
    }

    #[test]
    fn geoshard_may_own_several_ranges() {
        let map = GeoshardMap::from_json(&file(
            r#"{"from":"0000000000000000","shard":"b"},
               {"from":"2000000000000001","shard":"a"},
               {"from":"A000000000000001","shard":"b"}"#,
        ))
        .unwrap();
        assert_eq!((map.version(), map.name()), (3, "test"));
        assert_eq!(map.shards().iter().map(ShardId::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(map.locate(point(0.0, 0.0)).as_str(), "b");
        assert_eq!(map.locate(point(0.0, 90.0)).as_str(), "a");
        assert_eq!(map.locate(point(-90.0, 0.0)).as_str(), "b");
        assert_eq!(map.locate_index(point(-90.0, 0.0)), 1);
    }

    #[test]
    fn invalid_map_is_refused_with_the_reason() {
        let first = r#"{"from":"0000000000000000","shard":"a"}"#;
        let after = |from: &str| file(&format!(r#"{first},{{"from":"{from}","shard":"b"}}"#));
        assert!(GeoshardMap::from_json(&after("0000000000000003")).is_ok());
        for (json, says) in [
            (file(""), "ranges is empty"),
            (
                file(r#"{"from":"0000000000000003","shard":"a"}"#),
                "the first must begin at the start of the globe",
            ),
            (file(r#"{"from":"0","shard":"a"}"#), "ranges[0] begins at \"0\", which is no S2 leaf cell id"),
            (after("0000000000000001"), "ranges[1] begins at \"0000000000000001\", not above"),
            (after("1000000000000000"), "an odd number"),
            (after("c000000000000001"), "below \"c000000000000000\""),
            (after("+000000000000003"), "16 hexadecimal digits"),
            (after("0x00000000000003"), "16 hexadecimal digits"),
            (after("00000000000000003"), "16 hexadecimal digits"),
            (file(&[first, first].join(",")), "ranges[1]"),
            (
                file(&format!(
                    r#"{first},{{"from":"3000000000000001","shard":"b"}},{{"from":"1000000000000001","shard":"c"}}"#
                )),
                "ranges[2] begins at \"1000000000000001\", not above",
            ),
            (file(r#"{"from":"0000000000000000","shard":"A"}"#), "cannot be a geoshard's id"),
            (file(r#"{"from":"0000000000000000","shard":"a","to":"x"}"#), "unknown field `to`"),
            (file(first).replace("\"name\"", "\"title\""), "unknown field `title`"),
            (file(first).replace("\"version\": 3,", ""), "missing field `version`"),
            (file(first).replace('3', "0"), "version is 0"),
            (file(first).replace("\"s2\"", "\"h3\""), "cells is \"h3\""),
            ("{".to_owned(), "not a geoshard map"),
        ] {
            let error = refusal(&json);
            assert!(error.contains(says), "{json}: {error}");
        }
        let many: Vec<_> = (0..=MAX_RANGES as u64).map(|n| (2 * n + 1, ShardId::new("a").unwrap())).collect();
        assert!(matches!(GeoshardMap::new(1, "", many), Err(MapError::TooManyRanges(10_001))));
    }

    #[test]
    fn file_error_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.json");
        assert!(GeoshardMap::load(&path).unwrap_err().to_string().contains("map.json"));
        fs::write(&path, file("")).unwrap();
        let error = GeoshardMap::load(&path).unwrap_err().to_string();
        assert!(error.contains("map.json") && error.contains("ranges is empty"), "{error}");
    }

    /// Ordinary places, and those where projections fail: poles, ±180, edges and corners of the cube's faces.
    fn points() -> impl Strategy<Value = GeoPoint> {
        let corner = (1.0_f64 / 2.0_f64.sqrt()).atan().to_degrees();
        let lat = prop_oneof![
            4 => -90.0..=90.0,
            1 => prop::sample::select(vec![-90.0, -corner, -45.0, -0.0, 0.0, 45.0, corner, 90.0]),
        ];
        let lon = prop_oneof![
            4 => -180.0..=180.0,
            1 => prop::sample::select(vec![-180.0, -135.0, -90.0, -45.0, -0.0, 0.0, 45.0, 90.0, 135.0, 180.0]),
        ];
        (lat, lon).prop_map(|(lat, lon)| point(lat, lon))
    }

    fn maps() -> impl Strategy<Value = GeoshardMap> {
        let cuts = prop::collection::btree_set((3..END_OF_GLOBE).prop_map(|id| id | 1), 0..80);
        (cuts, prop::collection::vec(0..20_u8, 80)).prop_map(|(cuts, owners)| {
            let ranges = std::iter::once(0)
                .chain(cuts)
                .zip(owners)
                .map(|(from, owner)| (from, ShardId::new(&format!("s{owner:02}")).unwrap()))
                .collect();
            GeoshardMap::new(7, "random \"map\"", ranges).unwrap()
        })
    }

    proptest! {
        #[test]
        fn every_point_belongs_to_the_range_of_its_leaf(map in maps(), points in prop::collection::vec(points(), 50)) {
            for point in points {
                let leaf = cell::leaf(point);
                prop_assert!(leaf % 2 == 1 && leaf < END_OF_GLOBE);
                let owners: Vec<_> =
                    map.ranges().filter(|(range, _)| range.contains(&leaf)).map(|(_, shard)| shard).collect();
                prop_assert_eq!(owners, vec![map.locate(point)]);
                prop_assert_eq!(&map.shards()[map.locate_index(point)], map.locate(point));
            }
        }

        #[test]
        fn range_starts_at_its_first_leaf(map in maps()) {
            let ranges: Vec<_> = map.ranges().collect();
            for (range, shard) in &ranges {
                prop_assert_eq!(&map.shards()[map.owner_of_leaf(range.start | 1)], *shard);
                prop_assert_eq!(&map.shards()[map.owner_of_leaf(range.end - 1 - range.end % 2)], *shard);
            }
        }

        #[test]
        fn map_survives_writing_and_reading(map in maps()) {
            prop_assert_eq!(GeoshardMap::from_json(&map.to_json()).unwrap(), map);
        }
    }
}
