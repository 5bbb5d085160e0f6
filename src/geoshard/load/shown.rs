//! What people are shown of the load: the hottest places, the rates of each geoshard, the last hours.

use serde::Serialize;

use super::counter::PlaceCounts;
use super::record::{CellRates, LoadRecord};
use crate::geoshard::cities;
use crate::geoshard::map::GeoshardMap;

/// A place with much load; rates are per second, over some days.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HotPlace {
    /// Token of the S2 cell.
    pub cell: String,
    /// The nearest city.
    pub place: String,
    /// Latitude of its middle.
    pub lat: f64,
    /// Longitude of its middle.
    pub lon: f64,
    /// The geoshard of its middle.
    pub shard: String,
    /// Documents written.
    pub writes: f64,
    /// Their bytes.
    pub bytes: f64,
    /// Searches.
    pub queries: f64,
    /// Seconds that they took.
    pub seconds: f64,
    /// The last hour or two over these days.
    pub trend: f64,
}

/// Writes and searches everywhere, per second, by hour.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Hours {
    /// When the first hour began, in seconds since 1970.
    pub first: u64,
    /// Documents written; `None` where nobody counted.
    pub writes: Vec<Option<f64>>,
    /// Searches.
    pub queries: Vec<Option<f64>>,
}

impl LoadRecord {
    /// The places with the most writes and searches.
    pub fn hottest(&self, map: &GeoshardMap, most: usize) -> Vec<HotPlace> {
        let weight = |counts: &PlaceCounts| counts.writes + counts.queries;
        let mut rates: Vec<CellRates> = self.rates().collect();
        rates.sort_by(|one, other| weight(&other.day).total_cmp(&weight(&one.day)));
        let hot = |rates: &CellRates| {
            let middle = rates.middle()?;
            let PlaceCounts { writes, bytes, queries, seconds } = rates.day;
            Some(HotPlace {
                cell: rates.cell.to_token(),
                place: cities::name(middle),
                lat: middle.lat(),
                lon: middle.lon(),
                shard: map.locate(middle).to_string(),
                writes,
                bytes,
                queries,
                seconds,
                trend: weight(&rates.now) / weight(&rates.day).max(f64::MIN_POSITIVE),
            })
        };
        rates.iter().take(most).filter_map(hot).collect()
    }

    /// Writes and searches of each geoshard per second, over some days, in the order of [`GeoshardMap::shards`]. A cell that several
    /// geoshards share is divided by area.
    pub fn rates_by_shard(&self, map: &GeoshardMap) -> Vec<[f64; 2]> {
        let mut sums = vec![[0.0; 2]; map.shards().len()];
        let (starts, owners) = map.table();
        for CellRates { cell, day, .. } in self.rates() {
            let (mut from, end) = (cell.range_min().0 - 1, cell.range_max().0 + 1);
            let whole = (end - from) as f64;
            let mut range = starts.partition_point(|&start| start <= from) - 1;
            while from < end {
                let to = starts.get(range + 1).map_or(end, |&start| start.min(end));
                let part = (to - from) as f64 / whole;
                let sum = &mut sums[owners[range]];
                sum[0] += day.writes * part;
                sum[1] += day.queries * part;
                (from, range) = (to, range + 1);
            }
        }
        sums
    }

    /// The `count` hours that end with that of the last change; of this one, as much as is over.
    pub fn last_hours(&self, count: u64) -> Hours {
        let last = self.at / 3600;
        let first = (last + 1).saturating_sub(count);
        let of = |hour: u64| -> Option<[f64; 2]> {
            let begun = self.since.max(hour * 3600);
            let seconds = self.at.min((hour + 1) * 3600).saturating_sub(begun).max(60) as f64;
            Some(self.hour_total(hour)?.map(|count| count / seconds))
        };
        let hours: Vec<Option<[f64; 2]>> = (first..=last).map(of).collect();
        let measure = |index: usize| hours.iter().map(|hour| hour.map(|both| both[index])).collect();
        Hours { first: first * 3600, writes: measure(0), queries: measure(1) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use s2::cellid::CellID;

    use super::super::counter::LoadDelta;
    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::base::ids::ShardId;
    use crate::geoshard::cell;

    const BEGIN: u64 = 480_000 * 3600;

    fn map(starts: &[(u64, &str)]) -> GeoshardMap {
        let ranges = starts.iter().map(|&(start, id)| (start, ShardId::new(id).unwrap())).collect();
        GeoshardMap::new(1, "", ranges).unwrap()
    }

    fn counted(cells: &[(CellID, f64, f64)]) -> LoadDelta {
        let count = |&(cell, writes, queries): &(CellID, f64, f64)| {
            (cell.0, PlaceCounts { writes, queries, ..PlaceCounts::default() })
        };
        LoadDelta { cells: cells.iter().map(count).collect::<HashMap<_, _, _>>(), ..LoadDelta::default() }
    }

    fn at(lat: f64, lon: f64) -> CellID {
        CellID(cell::leaf(GeoPoint::new(lat, lon).unwrap())).parent(7)
    }

    #[test]
    fn the_hottest_places_come_first_with_their_names_and_trend() {
        let map = map(&[(0, "a"), (2 << 61 | 1, "b")]);
        let mut record = LoadRecord::new(BEGIN);
        record.add(&counted(&[(at(48.8, 2.3), 90.0, 0.0), (at(19.1, 72.9), 30.0, 70.0)]), &map, BEGIN);
        // It stops in Mumbai.
        record.add(&counted(&[(at(48.8, 2.3), 1.0, 0.0)]), &map, BEGIN + 6 * 3600);
        record.add(&counted(&[(at(48.8, 2.3), 10_000.0, 0.0)]), &map, BEGIN + 12 * 3600);
        let hottest = record.hottest(&map, 1);
        assert_eq!((hottest[0].place.as_str(), hottest[0].shard.as_str(), hottest.len()), ("Paris", "b", 1));
        let both = record.hottest(&map, 9);
        assert_eq!((both[1].place.as_str(), both[1].shard.as_str()), ("Mumbai", "a"));
        assert!(both[0].trend > 1.0 && both[1].trend < 0.01, "{both:?}");
    }

    #[test]
    fn a_cell_that_geoshards_share_is_divided() {
        let cell = CellID::from_face(0).child_begin_at_level(3);
        let quarter = (cell.range_max().0 - cell.range_min().0) / 4;
        let [from, to] = [cell.range_min().0 + quarter, cell.range_max().0 - quarter].map(|leaf| leaf | 1);
        let map = map(&[(0, "a"), (from, "b"), (to, "a")]);
        let mut record = LoadRecord::new(BEGIN);
        record.add(&counted(&[(cell, 100.0, 40.0), (at(0.0, 90.0), 8.0, 0.0)]), &map, BEGIN);
        let per_second = record.rates().map(|rates| rates.day.writes).sum::<f64>() / 108.0;
        for (sum, expected) in record.rates_by_shard(&map).iter().zip([[58.0, 20.0], [50.0, 20.0]]) {
            for (rate, expected) in sum.iter().zip(expected) {
                assert!((rate / per_second - expected).abs() < 1e-3, "{sum:?}");
            }
        }
    }

    #[test]
    fn hours_are_rates_and_the_present_one_is_as_long_as_it_has_lasted() {
        let map = map(&[(0, "a")]);
        let mut record = LoadRecord::new(BEGIN);
        for (hour, minutes) in [(0, 59), (2, 10)] {
            record.add(&counted(&[(at(0.0, 0.0), 600.0, 60.0)]), &map, BEGIN + hour * 3600 + minutes * 60);
        }
        let hours = record.last_hours(4);
        assert_eq!(hours.first, BEGIN - 3600);
        assert_eq!(hours.writes, [None, Some(600.0 / 3600.0), None, Some(1.0)]);
        assert_eq!(hours.queries[3], Some(0.1));
    }
}
