//! Names on a map: a geoshard's id and its largest city, as large as there is room for.

use crate::geoshard::cities::{City, largest};
use crate::geoshard::map::GeoshardMap;

/// Height of the largest ids, in degrees.
pub(super) const SIZE: f64 = 3.6;
/// Height of a city's name, in that of an id.
pub(super) const CITY_SIZE: f64 = 0.72;
/// Width of a letter, in its height: wide enough for most fonts.
const LETTER: f64 = 0.62;
/// What is tried in turn: whether at the city, or where the geoshard has most room, and how large, in the largest size.
const TRIES: [(bool, f64); 15] = [
    (true, 1.0),
    (true, 0.7),
    (true, 0.5),
    (false, 1.0),
    (false, 0.7),
    (false, 0.5),
    (true, 0.35),
    (false, 0.35),
    (true, 0.25),
    (false, 0.25),
    (true, 0.17),
    (false, 0.17),
    (true, 0.1),
    (false, 0.1),
    (false, 0.05),
];

/// A name, and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct MapLabel {
    /// Of the geoshard, in the order of the map.
    pub shard: usize,
    /// Its id.
    pub id: String,
    /// Its largest city.
    pub city: Option<&'static str>,
    /// Longitude and latitude of its middle, in degrees.
    pub at: (f64, f64),
    /// Height of its id, in degrees.
    pub size: f64,
}

/// A label's part of the map, in degrees.
#[derive(Debug, Clone, Copy)]
struct Spot {
    at: (f64, f64),
    half_width: f64,
    half_height: f64,
}

impl Spot {
    fn of(id: &str, city: Option<&str>, at: (f64, f64), size: f64) -> Self {
        let letters = |text: &str| f64::from(u32::try_from(text.chars().count()).unwrap_or(u32::MAX));
        let city_width = city.map_or(0.0, |city| letters(city) * CITY_SIZE);
        let lines = if city.is_some() { 1.0 + CITY_SIZE } else { 1.0 };
        Self {
            at,
            half_width: letters(id).max(city_width) * LETTER * size / 2.0,
            half_height: lines * size * 1.1 / 2.0,
        }
    }

    fn covers(&self, at: (f64, f64)) -> bool {
        (self.at.0 - at.0).abs() < self.half_width && (self.at.1 - at.1).abs() < self.half_height
    }

    fn overlaps(&self, other: &Self) -> bool {
        (self.at.0 - other.at.0).abs() < self.half_width + other.half_width
            && (self.at.1 - other.at.1).abs() < self.half_height + other.half_height
    }

    /// The same, pushed into the frame.
    fn within_frame(mut self) -> Self {
        let clamp = |at: f64, most: f64| at.clamp(-most.max(0.0), most.max(0.0));
        self.at = (clamp(self.at.0, 180.0 - self.half_width), clamp(self.at.1, 90.0 - self.half_height));
        self
    }
}

/// The names of geoshards, those of large cities first; one for which there is no room at all has none. `interiors`: a place inside
/// of each.
pub(super) fn labels(map: &GeoshardMap, interiors: &[(f64, f64)]) -> Vec<MapLabel> {
    let cities = largest(map);
    let mut order: Vec<usize> = (0..map.shards().len()).collect();
    order.sort_by_key(|shard| std::cmp::Reverse(cities[*shard].map(|City(.., people)| *people)));
    let place = |shard: usize| cities[shard].map_or(interiors[shard], |City(_, lat, lon, _)| (*lon, *lat));
    let (mut labels, mut taken): (Vec<MapLabel>, Vec<Spot>) = (Vec::new(), Vec::new());
    for (at_city, size) in TRIES {
        let size = size * SIZE;
        order.retain(|&shard| {
            let id = map.shards()[shard].as_str();
            let city = cities[shard];
            let name = city.map(|City(name, ..)| *name);
            let at = if at_city { place(shard) } else { interiors[shard] };
            let spot = Spot::of(id, name, at, size).within_frame();
            // A name on the place of another geoshard would leave no room for that one's.
            let mut others = (0..cities.len()).filter(|other| *other != shard);
            let is_free = !taken.iter().any(|other| spot.overlaps(other))
                && !others.any(|other| spot.covers(place(other)));
            if is_free {
                taken.push(spot);
                labels.push(MapLabel { shard, id: id.to_owned(), city: name, at: spot.at, size });
            }
            !is_free
        });
    }
    labels
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::drawing::Grid;
    use super::*;

    fn sample() -> Vec<MapLabel> {
        let map = GeoshardMap::load(Path::new("config/map-55.json")).unwrap();
        labels(&map, &Grid::new(&map).interiors(map.shards().len()))
    }

    #[test]
    fn every_geoshard_of_the_sample_map_has_a_name_and_most_are_large() {
        let labels = sample();
        let mut shards: Vec<usize> = labels.iter().map(|label| label.shard).collect();
        shards.sort_unstable();
        assert_eq!(shards, Vec::from_iter(0..55));
        let large = labels.iter().filter(|label| label.size >= SIZE / 2.0).count();
        assert!(large >= 35, "{large}");
        assert!(labels.iter().any(|label| label.city == Some("Lagos")));
    }

    #[test]
    fn names_do_not_overlap_and_are_within_the_frame() {
        let boxes: Vec<Spot> =
            sample().iter().map(|label| Spot::of(&label.id, label.city, label.at, label.size)).collect();
        for (number, one) in boxes.iter().enumerate() {
            assert!(!boxes[..number].iter().any(|other| one.overlaps(other)), "{one:?}");
            assert!(one.at.0.abs() + one.half_width <= 180.001 && one.at.1.abs() + one.half_height <= 90.001);
        }
    }
}
