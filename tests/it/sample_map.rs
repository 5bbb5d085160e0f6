//! The map that is shipped as an example must be one that can be used.

use std::collections::BTreeSet;
use std::path::Path;

use geofold::base::geo::GeoPoint;
use geofold::geoshard::describe::show;
use geofold::geoshard::map::GeoshardMap;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");

fn sample() -> GeoshardMap {
    GeoshardMap::load(Path::new(PATH)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_sample_map_has_55_geoshards_that_are_the_globe() {
    let map = sample();
    assert_eq!((map.version(), map.shards().len(), map.ranges().count()), (1, 55, 55));
    let described = show(&map, "people");
    assert_eq!(described.shards[54].index, "people-s54");
    let sum: f64 = described.shards.iter().map(|shard| shard.share_of_globe).sum();
    assert!((sum - 1.0).abs() < 1e-3, "{sum}");
}

#[test]
fn far_cities_of_the_sample_map_are_in_different_geoshards_and_near_places_in_one() {
    let map = sample();
    let at = |lat, lon| map.locate(GeoPoint::new(lat, lon).unwrap()).as_str().to_owned();
    let cities = [
        at(48.8566, 2.3522),    // Paris
        at(51.5074, -0.1278),   // London
        at(40.7128, -74.0060),  // New York
        at(35.6762, 139.6503),  // Tokyo
        at(-23.5505, -46.6333), // São Paulo
        at(-26.2041, 28.0473),  // Johannesburg
    ];
    assert_eq!(BTreeSet::from(cities.clone()).len(), cities.len(), "{cities:?}");
    assert_eq!(at(48.8566, 2.3522), at(48.8049, 2.1204), "Paris and Versailles");
}

#[test]
fn the_sample_map_file_is_as_to_json_writes_it() {
    assert_eq!(std::fs::read_to_string(PATH).unwrap(), sample().to_json());
}
