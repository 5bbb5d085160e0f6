//! The load of a topic, as all workers and routers add to it: rates by cell, and a profile by hour.
//!
//! - **Cells**: each has two counts, one that halves every day and one that halves every hour. Divided by how long a count lives,
//!   they are rates: that of a day, free of day and night, and that of now. At most [`MAX_CELLS`] are kept, those with the most.
//! - **Profile**: writes and searches of each hour of the last two weeks, for large cells ([`PROFILE_LEVEL`], some 1,000 km wide: a
//!   time zone or less), of which there are 384. An hour of a week overwrites that of two weeks before. Hours in which nobody
//!   counted are not taken for quiet ones: each hour says when it was counted.
//!
//! What decays does so from the time of the last change on ([`LoadRecord::add`]), not with the time of reading.

use std::collections::BTreeMap;

use s2::cellid::CellID;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::counter::{LoadDelta, PlaceCounts, coarse};
use crate::base::geo::GeoPoint;
use crate::geoshard::cell;
use crate::geoshard::map::GeoshardMap;

/// Cells that are kept. Level 7 has 98,304 of them, most of which are sea.
pub const MAX_CELLS: usize = 20_000;
/// The level of the cells that the profile is kept for.
pub const PROFILE_LEVEL: u64 = 3;
/// Hours of a week.
pub const WEEK: u64 = 168;
/// Hours that the profile goes back.
const PROFILE_HOURS: u64 = SLOTS as u64;
const SLOTS: usize = 336;
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// A cell with less than this left is dropped.
const LEAST: f64 = 0.01;

/// Everything that is remembered of a topic's load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadRecord {
    /// When counting began, in seconds since 1970.
    pub since: u64,
    /// The last change, in seconds since 1970.
    pub at: u64,
    /// By token of the S2 cell.
    #[serde(with = "cells_by_token")]
    cells: BTreeMap<u64, CellCounts>,
    /// For each hour of the profile: which one it is, in hours since 1970, or 0.
    #[serde(deserialize_with = "all_hours")]
    hours: Vec<u64>,
    #[serde(with = "profile_by_token")]
    profile: BTreeMap<u64, Profile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct CellCounts {
    /// Halve every day.
    day: PlaceCounts,
    /// Halve every hour.
    hour: PlaceCounts,
}

/// By hour: writes and searches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Profile {
    #[serde(deserialize_with = "all_hours")]
    writes: Vec<f64>,
    #[serde(deserialize_with = "all_hours")]
    queries: Vec<f64>,
}

/// The rates of a cell, all per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CellRates {
    /// The cell.
    pub cell: CellID,
    /// Over some days.
    pub day: PlaceCounts,
    /// Over an hour or two.
    pub now: PlaceCounts,
}

/// What the profile is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadMeasure {
    /// Documents written.
    Writes,
    /// Searches.
    Queries,
}

impl Default for Profile {
    fn default() -> Self {
        Self { writes: vec![0.0; SLOTS], queries: vec![0.0; SLOTS] }
    }
}

/// What is left of a count after so many seconds.
fn left(seconds: u64, half_life: u64) -> f64 {
    0.5_f64.powf(seconds as f64 / half_life as f64)
}

/// The seconds that a count of something even, counted for `age`, stands for.
fn lifetime(age: u64, half_life: u64) -> f64 {
    let lives = half_life as f64 / std::f64::consts::LN_2;
    (lives * (1.0 - left(age, half_life))).max(1.0)
}

fn slot(hour: u64) -> usize {
    usize::try_from(hour % PROFILE_HOURS).unwrap_or_default()
}

impl LoadRecord {
    /// Nothing counted yet.
    pub fn new(now: u64) -> Self {
        Self { since: now, at: now, cells: BTreeMap::new(), hours: vec![0; SLOTS], profile: BTreeMap::new() }
    }

    /// Adds what was counted until `now`. What is known by geoshard only is spread over the cells of the geoshard in `map`.
    /// A `now` before the last change, by a clock that is behind, counts as that.
    pub fn add(&mut self, delta: &LoadDelta, map: &GeoshardMap, now: u64) {
        let now = now.max(self.at);
        self.decay(now);
        let mut added: BTreeMap<u64, PlaceCounts> =
            delta.cells.iter().map(|(&cell, &counts)| (cell, counts)).collect();
        for (cell, counts) in self.spread(delta, map) {
            added.entry(cell).or_default().add(counts);
        }
        let at = slot(now / HOUR);
        if self.hours[at] != now / HOUR {
            self.hours[at] = now / HOUR;
            for profile in self.profile.values_mut() {
                (profile.writes[at], profile.queries[at]) = (0.0, 0.0);
            }
        }
        for (cell, counts) in added {
            let kept = self.cells.entry(cell).or_default();
            kept.day.add(counts);
            kept.hour.add(counts);
            let profile = self.profile.entry(coarse(CellID(cell)).0).or_default();
            profile.writes[at] += counts.writes;
            profile.queries[at] += counts.queries;
        }
        self.drop_least();
    }

    fn decay(&mut self, now: u64) {
        let passed = now.saturating_sub(self.at);
        let (day, hour) = (left(passed, DAY), left(passed, HOUR));
        for counts in self.cells.values_mut() {
            *counts = CellCounts { day: counts.day.times(day), hour: counts.hour.times(hour) };
        }
        self.cells.retain(|_, counts| counts.day.writes + counts.day.queries >= LEAST);
        self.at = now;
    }

    /// Counts of geoshards as counts of their cells, in the proportion of the writes that are known by place.
    fn spread(&self, delta: &LoadDelta, map: &GeoshardMap) -> Vec<(u64, PlaceCounts)> {
        if delta.shards.is_empty() {
            return Vec::new();
        }
        let known = self.cells.iter().map(|(&cell, counts)| (cell, counts.day.writes));
        let counted = delta.cells.iter().map(|(&cell, counts)| (cell, counts.writes));
        let owned = |cell: u64| &map.shards()[map.owner_of_leaf(CellID(cell).range_min().0)];
        #[derive(Default)]
        struct Known {
            writes: f64,
            cells: Vec<(u64, f64)>,
        }
        let mut of_shard: BTreeMap<&str, Known> = BTreeMap::new();
        for (cell, writes) in known.chain(counted).filter(|(_, writes)| *writes > 0.0) {
            let known = of_shard.entry(owned(cell).as_str()).or_default();
            known.writes += writes;
            known.cells.push((cell, writes));
        }
        let mut spread = Vec::new();
        for (shard, counts) in &delta.shards {
            match of_shard.get(shard.as_str()) {
                Some(known) => {
                    let share = |writes: f64| counts.times(writes / known.writes);
                    spread.extend(known.cells.iter().map(|(cell, writes)| (*cell, share(*writes))));
                }
                // Nothing better is known: where its first range begins.
                None => {
                    let first = map.ranges().find(|(_, of)| *of == shard).map(|(range, _)| range.start | 1);
                    spread.extend(first.map(|leaf| (CellID(leaf).parent(PROFILE_LEVEL).0, *counts)));
                }
            }
        }
        spread
    }

    /// A quarter of the cells goes at a time: dropping one at a time would look at all of them each time.
    fn drop_least(&mut self) {
        if self.cells.len() <= MAX_CELLS {
            return;
        }
        let weight = |counts: &CellCounts| counts.day.writes + counts.day.queries;
        let mut weights: Vec<f64> = self.cells.values().map(weight).collect();
        weights.sort_unstable_by(f64::total_cmp);
        let mut to_drop = weights.len() - MAX_CELLS * 3 / 4;
        let limit = weights[to_drop];
        self.cells.retain(|_, counts| {
            let drops = to_drop > 0 && weight(counts) <= limit;
            to_drop -= usize::from(drops);
            !drops
        });
    }

    /// Seconds for which the load is known at `now`: since counting began, but for hours that are forgotten.
    pub fn covered(&self, now: u64) -> u64 {
        let known = self.hours.iter().filter(|hour| **hour + PROFILE_HOURS > now / HOUR);
        known.min().map_or(0, |first| now.saturating_sub(self.since.max(first * HOUR)))
    }

    /// How many cells are kept.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The rates of all cells as of the last change, in the order of the curve.
    pub fn rates(&self) -> impl Iterator<Item = CellRates> {
        let age = self.at.saturating_sub(self.since);
        let [day, hour] = [DAY, HOUR].map(|half_life| 1.0 / lifetime(age, half_life));
        self.cells.iter().map(move |(&cell, counts)| CellRates {
            cell: CellID(cell),
            day: counts.day.times(day),
            now: counts.hour.times(hour),
        })
    }

    /// Writes and searches everywhere in an hour (since 1970), if it is known.
    pub fn hour_total(&self, hour: u64) -> Option<[f64; 2]> {
        let sum = |measure| -> Option<f64> {
            self.of_hour(CellID(0), measure, hour)?;
            self.profile.keys().map(|&cell| self.of_hour(CellID(cell), measure, hour)).sum()
        };
        Some([sum(LoadMeasure::Writes)?, sum(LoadMeasure::Queries)?])
    }

    /// What happened in a large cell in an hour (since 1970), if it is known.
    pub(super) fn of_hour(&self, coarse: CellID, measure: LoadMeasure, hour: u64) -> Option<f64> {
        let at = slot(hour);
        if hour == 0 || self.hours[at] != hour {
            return None;
        }
        let Some(profile) = self.profile.get(&coarse.0) else { return Some(0.0) };
        Some(match measure {
            LoadMeasure::Writes => profile.writes[at],
            LoadMeasure::Queries => profile.queries[at],
        })
    }
}

impl CellRates {
    /// The middle of the cell.
    pub fn middle(&self) -> Option<GeoPoint> {
        cell::middle(self.cell)
    }
}

/// `{"47a1": [writes, bytes, searches, seconds, and the four of the hour]}`, rounded.
mod cells_by_token {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        cells: &BTreeMap<u64, CellCounts>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(cells.iter().map(|(&cell, CellCounts { day, hour })| {
            let numbers = [day, hour].map(|of| [of.writes, of.bytes, of.queries, of.seconds]);
            (CellID(cell).to_token(), numbers.concat().into_iter().map(rounded).collect::<Vec<_>>())
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<u64, CellCounts>, D::Error> {
        let of = |numbers: &[f64]| PlaceCounts {
            writes: numbers[0],
            bytes: numbers[1],
            queries: numbers[2],
            seconds: numbers[3],
        };
        let read = |(token, numbers): (String, [f64; 8])| {
            let (day, hour) = numbers.split_at(4);
            Ok((cell_of::<D::Error>(&token)?, CellCounts { day: of(day), hour: of(hour) }))
        };
        BTreeMap::<String, [f64; 8]>::deserialize(from)?.into_iter().map(read).collect()
    }

    pub(super) fn cell_of<E: Error>(token: &str) -> Result<u64, E> {
        let cell = CellID::from_token(token);
        match cell.is_valid() {
            true => Ok(cell.0),
            false => Err(E::custom(format!("{token:?} is no token of an S2 cell"))),
        }
    }
}

mod profile_by_token {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        profiles: &BTreeMap<u64, Profile>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let all = |numbers: &[f64]| numbers.iter().copied().map(rounded).collect::<Vec<_>>();
        to.collect_map(profiles.iter().map(|(&cell, Profile { writes, queries })| {
            let profile = Profile { writes: all(writes), queries: all(queries) };
            (CellID(cell).to_token(), profile)
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<u64, Profile>, D::Error> {
        let read = BTreeMap::<String, Profile>::deserialize(from)?;
        read.into_iter()
            .map(|(token, profile)| Ok((cells_by_token::cell_of::<D::Error>(&token)?, profile)))
            .collect()
    }
}

/// A number for each hour of the profile.
fn all_hours<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let numbers = Vec::deserialize(from)?;
    match numbers.len() {
        SLOTS => Ok(numbers),
        other => Err(D::Error::custom(format!("a profile has {SLOTS} hours, not {other}"))),
    }
}

/// To a thousandth: the record is written as text.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::super::counter::LoadCounter;
    use super::*;
    use crate::base::ids::ShardId;
    use std::time::Duration;

    const BEGIN: u64 = 480_000 * HOUR;

    fn point(lat: f64, lon: f64) -> GeoPoint {
        GeoPoint::new(lat, lon).unwrap()
    }

    fn two() -> GeoshardMap {
        let id = |id: &str| ShardId::new(id).unwrap();
        GeoshardMap::new(1, "two", vec![(0, id("a")), (1 << 61 | 1, id("b"))]).unwrap()
    }

    fn wrote(count: usize, at: GeoPoint) -> LoadDelta {
        let mut counter = LoadCounter::new(7);
        (0..count).for_each(|_| counter.wrote(at, 10));
        counter.take()
    }

    #[test]
    fn an_even_stream_has_its_rate_from_the_beginning_on() {
        let mut record = LoadRecord::new(BEGIN);
        for minute in 1..=48 * 60 {
            record.add(&wrote(6, point(0.0, 0.0)), &two(), BEGIN + minute * 60);
            if [10, 60, 600, 48 * 60].contains(&minute) {
                let rates: Vec<_> = record.rates().collect();
                assert_eq!(rates.len(), 1);
                for rate in [rates[0].day.writes, rates[0].now.writes, rates[0].now.bytes / 10.0] {
                    assert!((rate - 0.1).abs() < 0.002, "minute {minute}: {rate}");
                }
            }
        }
        // What stops is soon 0 now, and half after a day.
        record.add(&LoadDelta::default(), &two(), BEGIN + 72 * HOUR);
        let rate = record.rates().next().unwrap();
        assert!(rate.now.writes < 1e-6 && (rate.day.writes - 0.043).abs() < 0.002, "{rate:?}");
        record.add(&LoadDelta::default(), &two(), BEGIN + 40 * DAY);
        assert!(record.is_empty());
    }

    #[test]
    fn writes_known_by_geoshard_only_are_spread_over_its_cells() {
        let mut record = LoadRecord::new(BEGIN);
        record.add(&wrote(3, point(0.0, 0.0)), &two(), BEGIN);
        let mut delta = wrote(1, point(10.0, 10.0));
        delta.cells.extend(wrote(5, point(0.0, 100.0)).cells);
        delta
            .shards
            .insert(ShardId::new("a").unwrap(), PlaceCounts { writes: 8.0, ..PlaceCounts::default() });
        record.add(&delta, &two(), BEGIN);
        let mut writes: Vec<f64> = record.cells.values().map(|counts| counts.day.writes).collect();
        writes.sort_unstable_by(f64::total_cmp);
        // 3 + 6, 1 + 2, and 5 elsewhere.
        assert_eq!(writes, [3.0, 5.0, 9.0]);
        // Nothing is known of the geoshard.
        let mut record = LoadRecord::new(BEGIN);
        let shards = BTreeMap::from([(
            ShardId::new("b").unwrap(),
            PlaceCounts { writes: 8.0, ..PlaceCounts::default() },
        )]);
        record.add(&LoadDelta { shards, ..LoadDelta::default() }, &two(), BEGIN);
        let only = record.rates().next().unwrap();
        assert_eq!(two().locate(only.middle().unwrap()).as_str(), "b");
    }

    #[test]
    fn the_profile_keeps_the_hours_in_which_somebody_counted() {
        let mut record = LoadRecord::new(BEGIN);
        let hour = BEGIN / HOUR;
        let (here, at) = (coarse(CellID(cell::leaf(point(0.0, 0.0)))), point(0.0, 0.0));
        record.add(&wrote(3, at), &two(), BEGIN);
        record.add(&wrote(4, at), &two(), BEGIN + 600);
        record.add(&wrote(5, at), &two(), BEGIN + 3 * HOUR);
        let of = |record: &LoadRecord, hour| record.of_hour(here, LoadMeasure::Writes, hour);
        assert_eq!([0, 1, 2, 3].map(|n| of(&record, hour + n)), [Some(7.0), None, None, Some(5.0)]);
        assert_eq!(record.of_hour(here, LoadMeasure::Queries, hour), Some(0.0));
        assert_eq!(record.of_hour(CellID::from_face(5), LoadMeasure::Writes, hour), Some(0.0));
        // Two weeks later the hour is overwritten, a week later it is not.
        record.add(&wrote(1, at), &two(), BEGIN + WEEK * HOUR);
        assert_eq!([0, WEEK].map(|n| of(&record, hour + n)), [Some(7.0), Some(1.0)]);
        record.add(&wrote(2, at), &two(), BEGIN + 2 * WEEK * HOUR);
        assert_eq!([0, 2 * WEEK].map(|n| of(&record, hour + n)), [None, Some(2.0)]);
        // A clock that is behind changes the present hour.
        record.add(&wrote(2, at), &two(), BEGIN);
        assert_eq!([0, 2 * WEEK].map(|n| of(&record, hour + n)), [None, Some(4.0)]);
    }

    #[test]
    fn it_covers_the_time_since_counting_began_and_two_weeks_at_most() {
        let mut record = LoadRecord::new(BEGIN + 600);
        assert_eq!(record.covered(BEGIN + 600), 0);
        record.add(&wrote(1, point(0.0, 0.0)), &two(), BEGIN + 600);
        for seconds in [0, 60, DAY, 13 * DAY] {
            assert_eq!(record.covered(BEGIN + 600 + seconds), seconds);
        }
        // Nobody counted for two weeks: what was before tells nothing.
        assert_eq!(record.covered(BEGIN + 14 * DAY), 0);
        record.add(&wrote(1, point(0.0, 0.0)), &two(), BEGIN + 15 * DAY);
        assert_eq!(record.covered(BEGIN + 15 * DAY + 90), 90);
        // A clock that is behind.
        assert_eq!(record.covered(BEGIN), 0);
    }

    #[test]
    fn it_is_read_as_it_was_written_but_for_rounding() {
        let mut record = LoadRecord::new(BEGIN);
        let mut counter = LoadCounter::new(7);
        counter.searched(point(48.8, 2.3), Duration::from_millis(125));
        record.add(&counter.take(), &two(), BEGIN);
        record.add(&wrote(3, point(0.0, 0.0)), &two(), BEGIN + 60);
        let text = serde_json::to_string(&record).unwrap();
        let again: LoadRecord = serde_json::from_str(&text).unwrap();
        assert_eq!((again.since, again.at, again.len()), (BEGIN, BEGIN + 60, 2));
        let difference = |(one, other): (CellRates, CellRates)| (one.day.queries - other.day.queries).abs();
        assert!(record.rates().zip(again.rates()).map(difference).all(|off| off < 1e-3));
        let rounded = serde_json::to_string(&again).unwrap();
        assert_eq!(serde_json::from_str::<LoadRecord>(&rounded).unwrap(), again);
        for bad in [
            text.replacen("\"hours\":[", "\"hours\":[1,", 1),
            text.replacen("\"writes\":[", "\"writes\":[1,", 1),
            text.replacen("\"queries\":[", "\"queries\":[1,", 1),
            text.replacen("\"cells\":{\"", "\"cells\":{\"x", 1),
        ] {
            assert_ne!(bad, text);
            assert!(serde_json::from_str::<LoadRecord>(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_so_many_cells_are_kept_and_those_with_the_most() {
        let mut record = LoadRecord::new(BEGIN);
        let mut delta = LoadDelta::default();
        let first = CellID::from_face(0).child_begin_at_level(8);
        let mut cell = first;
        for n in 0..=MAX_CELLS {
            delta.cells.insert(cell.0, PlaceCounts { writes: 1.0 + n as f64, ..PlaceCounts::default() });
            cell = cell.next();
        }
        record.add(&delta, &two(), BEGIN);
        assert_eq!(record.len(), MAX_CELLS * 3 / 4);
        assert!(!record.cells.contains_key(&first.0) && record.cells.contains_key(&cell.prev().0));
    }
}
