//! Output of `geofold shards show`, `locate` and `cover`: text through `Display`, JSON through `Serialize`.

use std::collections::BTreeMap;
use std::fmt;

use s2::cellid::CellID;
use serde::Serialize;

use super::LiveMaps;
use super::cell::{self, share_of_globe, tiles};
use super::cities::largest_cities;
use super::cover::{Shape, cover_live};
use super::load::CellLoad;
use super::load::amount;
use super::map::GeoshardMap;
use crate::base::figures::count;
use crate::base::geo::GeoPoint;
use crate::base::ids::ShardId;
use crate::base::requests::Index;

/// Description of a map.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MapDescription {
    /// The map's name.
    pub name: String,
    /// The map's version.
    pub version: u64,
    /// Number of ranges.
    pub ranges: usize,
    /// Its geoshards, by id.
    pub shards: Vec<ShardDescription>,
}

/// One geoshard of a map.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShardDescription {
    /// Its id.
    pub shard: ShardId,
    /// The name of its index.
    pub index: String,
    /// Its largest city, if it has one of the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub around: Option<&'static str>,
    /// Number of ranges.
    pub ranges: usize,
    /// Part of the globe's surface, 0 to 1.
    pub share_of_globe: f64,
    /// Token of the S2 cell at the start of its first range, for S2 viewers.
    pub first_cell: String,
    /// Its contents, if points were given.
    #[serde(flatten)]
    pub load: Option<ShardContents>,
}

/// The contents of a geoshard.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ShardContents {
    /// Sum of its points' loads.
    pub load: f64,
    /// Its load over the mean of the map's geoshards; 0 if nothing has load.
    pub over_mean: f64,
    /// Its points.
    pub points: u64,
}

/// The location of a point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Located {
    /// Latitude in degrees.
    pub lat: f64,
    /// Longitude in degrees.
    pub lon: f64,
    /// Token of the point's S2 leaf cell.
    pub cell: String,
    /// The geoshard.
    pub shard: ShardId,
    /// The geoshard's largest city, if it has one of the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub around: Option<&'static str>,
    /// The name of its index.
    pub index: String,
    /// The version of the map used.
    pub map_version: u64,
}

/// The geoshards that a search must query.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Covered {
    /// Their ids, sorted.
    pub shards: Vec<ShardId>,
    /// The names of their indices, in the same order.
    pub indices: Vec<String>,
    /// The versions of the maps used: two while the map is changed, the older first.
    pub map_versions: Vec<u64>,
    /// Their largest cities for the text, in the same order, if asked for.
    #[serde(skip)]
    around: Vec<Option<&'static str>>,
}

/// Describes `map`, with indices named `<prefix>-<shard>`.
pub fn show(map: &GeoshardMap, prefix: &str) -> MapDescription {
    let mut shards: Vec<_> = map
        .shards()
        .iter()
        .zip(largest_cities(map))
        .map(|(shard, around)| ShardDescription {
            shard: shard.clone(),
            index: Index::Geoshard(shard.clone()).name(prefix),
            around,
            ranges: 0,
            share_of_globe: 0.0,
            first_cell: String::new(),
            load: None,
        })
        .collect();
    let mut ranges = 0;
    for (range, owner) in map.ranges() {
        ranges += 1;
        let shard = &mut shards[map.shards().partition_point(|known| known < owner)];
        if shard.ranges == 0 {
            shard.first_cell = tiles(range.clone()).next().map(|cell| cell.to_token()).unwrap_or_default();
        }
        shard.ranges += 1;
        shard.share_of_globe += share_of_globe(range);
    }
    MapDescription { name: map.name().to_owned(), version: map.version(), ranges, shards }
}

impl MapDescription {
    /// Adds the contents of each geoshard, in the order of [`GeoshardMap::shards`].
    pub fn with_loads(mut self, loads: &[CellLoad]) -> Self {
        let mean = loads.iter().map(|load| load.load).sum::<f64>() / loads.len().max(1) as f64;
        for (shard, &CellLoad { load, points }) in self.shards.iter_mut().zip(loads) {
            let over_mean = if mean > 0.0 { load / mean } else { 0.0 };
            shard.load = Some(ShardContents { load, over_mean, points });
        }
        self
    }
}

/// The geoshard of `point` in `map`, and its index `<prefix>-<shard>`.
pub fn locate(map: &GeoshardMap, prefix: &str, point: GeoPoint) -> Located {
    let shard = map.locate(point).clone();
    Located {
        lat: point.lat(),
        lon: point.lon(),
        cell: CellID(cell::leaf(point)).to_token(),
        index: Index::Geoshard(shard.clone()).name(prefix),
        around: largest_cities(map)[map.locate_index(point)],
        shard,
        map_version: map.version(),
    }
}

/// The geoshards that may hold a point within `shape` under any live map, and their indices.
pub fn covered(maps: &LiveMaps, prefix: &str, shape: &Shape) -> Covered {
    let shards = cover_live(maps, shape);
    Covered {
        indices: shards.iter().map(|shard| Index::Geoshard(shard.clone()).name(prefix)).collect(),
        shards,
        map_versions: maps.iter().map(|map| map.version()).collect(),
        around: Vec::new(),
    }
}

impl Covered {
    /// With the largest city of each geoshard in the text; by the newest map that has the geoshard.
    pub fn with_cities(mut self, maps: &LiveMaps) -> Self {
        let mut cities = BTreeMap::new();
        for map in maps.iter() {
            cities.extend(map.shards().iter().zip(largest_cities(map)));
        }
        self.around = self.shards.iter().map(|shard| cities.get(shard).copied().flatten()).collect();
        self
    }
}

impl fmt::Display for MapDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, ranges, shards } = self;
        writeln!(f, "map {name:?}, version {version}: {} geoshards in {ranges} ranges", shards.len())?;
        let ids = shards.iter().map(|shard| shard.shard.as_str().len());
        let wide = ids.chain(["shard".len()]).max().unwrap_or_default();
        let has_load = shards.iter().any(|shard| shard.load.is_some());
        let columns = if has_load { "          load  of mean     points" } else { "" };
        writeln!(f, "{:wide$}  ranges  % of globe{columns}  first cell        around", "shard")?;
        for ShardDescription { shard, around, ranges, share_of_globe, first_cell, load, .. } in shards {
            let percent = share_of_globe * 100.0;
            write!(f, "{:wide$}  {ranges:>6}  {percent:>10.4}", shard.as_str())?;
            if let Some(ShardContents { load, over_mean, points }) = load {
                write!(f, "  {:>12}  {over_mean:>7.3}  {:>9}", amount(*load), count(*points))?;
            }
            match around {
                Some(city) => writeln!(f, "  {first_cell:<16}  {city}")?,
                None => writeln!(f, "  {first_cell}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lat, lon, cell, shard, around, index, map_version } = self;
        write!(f, "{lat},{lon} (S2 cell {cell}) is in geoshard {shard}")?;
        if let Some(city) = around {
            write!(f, ", around {city}")?;
        }
        writeln!(f, ", index {index}, by map version {map_version}")
    }
}

impl fmt::Display for Covered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let versions: Vec<String> = self.map_versions.iter().map(u64::to_string).collect();
        let (count, plural) = (self.shards.len(), if self.shards.len() == 1 { "" } else { "s" });
        writeln!(f, "{count} geoshard{plural} by map version {}", versions.join(" and "))?;
        let wide = self.shards.iter().map(|shard| shard.as_str().len()).chain(["shard".len()]).max();
        let wide = wide.unwrap_or_default();
        let wide_index =
            self.indices.iter().map(String::len).chain(["index".len()]).max().unwrap_or_default();
        let title = if self.around.is_empty() { "" } else { "around" };
        writeln!(f, "{}", format!("{:wide$}  {:wide_index$}  {title}", "shard", "index").trim_end())?;
        let cities = self.around.iter().copied().chain(std::iter::repeat(None));
        for ((shard, index), city) in self.shards.iter().zip(&self.indices).zip(cities) {
            let line = format!("{:wide$}  {index:wide_index$}  {}", shard.as_str(), city.unwrap_or_default());
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> GeoshardMap {
        let shard = |id| ShardId::new(id).unwrap();
        let ranges = vec![
            (0, shard("rest")),
            (0x4000_0000_0000_0001, shard("north")),
            (0x6000_0000_0000_0001, shard("rest")),
        ];
        GeoshardMap::new(2, "poles", ranges).unwrap()
    }

    #[test]
    fn map_is_shown_as_a_table_of_its_geoshards() {
        assert_eq!(
            show(&map(), "places").to_string(),
            "map \"poles\", version 2: 2 geoshards in 3 ranges\n\
             shard  ranges  % of globe  first cell        around\n\
             north       1     16.6667  5                 Moscow\n\
             rest        2     83.3333  1                 Tokyo\n"
        );
    }

    #[test]
    fn contents_of_geoshards_are_shown_where_known() {
        let loads = [CellLoad { load: 30.0, points: 3 }, CellLoad { load: 10.0, points: 2 }];
        let shown = show(&map(), "places").with_loads(&loads);
        assert_eq!(
            shown.to_string(),
            "map \"poles\", version 2: 2 geoshards in 3 ranges\n\
             shard  ranges  % of globe          load  of mean     points  first cell        around\n\
             north       1     16.6667            30    1.500          3  5                 Moscow\n\
             rest        2     83.3333            10    0.500          2  1                 Tokyo\n"
        );
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!((&json["shards"][0]["over_mean"], &json["shards"][1]["points"]), (&1.5.into(), &2.into()));
        let without = serde_json::to_value(show(&map(), "places")).unwrap();
        assert_eq!(without["shards"][0].get("load"), None);
    }

    #[test]
    fn json_has_index_names() {
        let json = serde_json::to_value(show(&map(), "places")).unwrap();
        assert_eq!(json["shards"][0]["index"], "places-north");
        assert_eq!(json["shards"][1]["ranges"], 2);
    }

    #[test]
    fn point_is_located_in_its_geoshard_and_index() {
        let located = locate(&map(), "places", GeoPoint::new(0.0, 0.0).unwrap());
        assert_eq!(
            located.to_string(),
            "0,0 (S2 cell 1000000000000001) is in geoshard rest, around Tokyo, index places-rest, by map version 2\n"
        );
        assert_eq!(locate(&map(), "places", GeoPoint::new(90.0, 0.0).unwrap()).shard.as_str(), "north");
    }

    #[test]
    fn cover_is_shown_with_its_indices() {
        let one = LiveMaps::One(map().into());
        let circle = Shape::parse_circle("45,0,1km").unwrap();
        assert_eq!(
            covered(&one, "places", &circle).to_string(),
            "2 geoshards by map version 2\n\
             shard  index\n\
             north  places-north\n\
             rest   places-rest\n"
        );
        assert_eq!(
            covered(&one, "places", &circle).with_cities(&one).to_string(),
            "2 geoshards by map version 2\n\
             shard  index         around\n\
             north  places-north  Moscow\n\
             rest   places-rest   Tokyo\n"
        );
        let two = LiveMaps::Two { old: map().into(), new: map().into() };
        let pole = covered(&two, "places", &Shape::parse_circle("90,0,1km").unwrap());
        assert!(pole.to_string().starts_with("1 geoshard by map version 2 and 2\n"), "{pole}");
        let json = serde_json::to_value(pole).unwrap();
        assert_eq!(json["indices"], serde_json::json!(["places-north"]));
        assert_eq!(json["map_versions"], serde_json::json!([2, 2]));
    }
}
