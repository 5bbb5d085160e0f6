//! What the coming hours will bring.
//!
//! People do next Tuesday what they did last Tuesday, a little more or less. So the forecast for an hour of a large cell is what
//! happened there a week before, times how much more the last day had than the same day of the week before. In the first
//! week it is what happened a day before, or as many days as it takes. A cell has the share of its large cell that it had over
//! the last day. Where nothing is known of an hour, the rate of the last day stands for it.

use std::collections::BTreeMap;

use s2::cellid::CellID;

use super::counter::coarse;
use super::record::{CellRates, LoadMeasure, LoadRecord, WEEK};

/// How the coming hours are made one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// Their mean.
    #[default]
    Mean,
    /// The largest.
    Max,
}

/// What is expected of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpectedCell {
    /// The cell.
    pub cell: CellID,
    /// Documents written, per second.
    pub writes: f64,
    /// Searches, per second.
    pub queries: f64,
}

/// A day and its hours.
const DAY_HOURS: u64 = 24;
/// Growth from week to week beyond this is taken for something else.
const MOST_GROWTH: f64 = 3.0;

impl LoadRecord {
    /// The load of each cell over the next `hours` after `now` (seconds since 1970), the present one being the first; in the
    /// order of the curve.
    pub fn expected(&self, now: u64, hours: u64, over: Over) -> Vec<ExpectedCell> {
        let first = now / 3600;
        self.expected_of(&(first..first + hours.max(1)).collect::<Vec<_>>(), first, over)
    }

    /// The load of each cell in one hour, counted since 1970, as expected at `now`.
    pub fn expected_in(&self, now: u64, hour: u64) -> Vec<ExpectedCell> {
        self.expected_of(&[hour], now / 3600, Over::Mean)
    }

    fn expected_of(&self, hours: &[u64], present: u64, over: Over) -> Vec<ExpectedCell> {
        let cells: Vec<CellRates> = self.rates().collect();
        let mut of_coarse: BTreeMap<u64, [f64; 2]> = BTreeMap::new();
        for rates in &cells {
            let sums = of_coarse.entry(coarse(rates.cell).0).or_default();
            sums[0] += rates.day.writes;
            sums[1] += rates.day.queries;
        }
        // How many times the rate of a day the hours have.
        let factors: BTreeMap<u64, [f64; 2]> = of_coarse
            .into_iter()
            .map(|(cell, [writes, queries])| {
                let factor = |measure, rate| self.factor(CellID(cell), measure, rate, hours, present, over);
                (cell, [factor(LoadMeasure::Writes, writes), factor(LoadMeasure::Queries, queries)])
            })
            .collect();
        let expected = |rates: &CellRates| {
            let [writes, queries] = factors.get(&coarse(rates.cell).0).copied().unwrap_or([1.0; 2]);
            let CellRates { cell, day, .. } = *rates;
            ExpectedCell { cell, writes: day.writes * writes, queries: day.queries * queries }
        };
        cells.iter().map(expected).collect()
    }

    fn factor(
        &self,
        cell: CellID,
        measure: LoadMeasure,
        rate: f64,
        hours: &[u64],
        present: u64,
        over: Over,
    ) -> f64 {
        if rate <= 0.0 {
            return 1.0;
        }
        let growth = self.growth(cell, measure, present);
        let each = hours.iter().map(|&hour| {
            let expected = self.before(cell, measure, hour, present, growth);
            expected.map_or(1.0, |count| count / 3600.0 / rate)
        });
        match over {
            Over::Mean => each.sum::<f64>() / hours.len() as f64,
            Over::Max => each.fold(0.0, f64::max),
        }
    }

    /// The count of `hour` as the hours before `present` suggest.
    fn before(
        &self,
        cell: CellID,
        measure: LoadMeasure,
        hour: u64,
        present: u64,
        growth: f64,
    ) -> Option<f64> {
        let is_over = |earlier: &u64| *earlier < present;
        let weeks = (1..=2).map(|weeks| hour.saturating_sub(weeks * WEEK)).filter(is_over);
        if let Some(count) = weeks.filter_map(|hour| self.of_hour(cell, measure, hour)).next() {
            return Some(count * growth);
        }
        let days = (1..=7).map(|days| hour.saturating_sub(days * DAY_HOURS)).filter(is_over);
        days.filter_map(|hour| self.of_hour(cell, measure, hour)).next()
    }

    /// The last day over the same day a week before, 1 if one of the two is not known.
    fn growth(&self, cell: CellID, measure: LoadMeasure, present: u64) -> f64 {
        let day = |back: u64| -> Option<f64> {
            let hour = |n: u64| self.of_hour(cell, measure, present.saturating_sub(n + back));
            (1..=DAY_HOURS).map(hour).sum()
        };
        match (day(0), day(WEEK)) {
            (Some(now), Some(before)) if before > 0.0 => (now / before).clamp(1.0 / MOST_GROWTH, MOST_GROWTH),
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::counter::{LoadDelta, PlaceCounts};
    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::base::ids::ShardId;
    use crate::geoshard::GeoshardMap;
    use crate::geoshard::cell;

    /// Hour 0 of a day.
    const BEGIN: u64 = 480_000 * 3600;

    fn map() -> GeoshardMap {
        GeoshardMap::new(1, "one", vec![(0, ShardId::new("a").unwrap())]).unwrap()
    }

    fn leaf(lat: f64, lon: f64) -> CellID {
        CellID(cell::leaf(GeoPoint::new(lat, lon).unwrap())).parent(7)
    }

    /// So many writes at noon as at midnight, times three; twice as many at weekends; and half of it in each of two cells.
    fn writes(hour: u64) -> f64 {
        let (of_day, day) = (hour % 24, hour / 24 % 7);
        let noon = 12 - of_day.abs_diff(12);
        (3600.0 + 600.0 * noon as f64) * if day >= 5 { 2.0 } else { 1.0 }
    }

    /// Counted for so many hours, with this growth from week to week.
    fn counted(hours: u64, growth: f64) -> LoadRecord {
        let mut record = LoadRecord::new(BEGIN);
        for hour in 0..hours {
            let writes = writes(hour) * growth.powf((hour / WEEK) as f64) / 2.0;
            let mut delta = LoadDelta::default();
            for cell in [leaf(1.0, 1.0), leaf(2.0, 1.0)] {
                delta.cells.insert(cell.0, PlaceCounts { writes, ..PlaceCounts::default() });
            }
            // In the middle of the hour, as if it were spread over it.
            record.add(&delta, &map(), BEGIN + hour * 3600 + 1800);
        }
        record.add(&LoadDelta::default(), &map(), BEGIN + hours * 3600);
        record
    }

    fn total(cells: &[ExpectedCell]) -> f64 {
        cells.iter().map(|cell| cell.writes).sum::<f64>() * 3600.0
    }

    #[test]
    fn the_forecast_is_the_week_before_times_the_growth() {
        for (hours, growth) in [(2 * WEEK, 1.0), (2 * WEEK, 1.5), (2 * WEEK - 40, 1.2)] {
            let record = counted(hours, growth);
            let now = BEGIN + hours * 3600;
            for ahead in [0, 5, 30, 60, 100] {
                let hour = hours + ahead;
                let really = writes(hour) * growth.powf((hour / WEEK) as f64);
                // The growth shows after a day of the new week.
                let expected = total(&record.expected_in(now, BEGIN / 3600 + hour));
                // What is a day's share of its large cell is off by the day that is decaying.
                assert!(
                    (expected / really - 1.0).abs() < 0.05 || hour / WEEK != (hours - 1) / WEEK,
                    "{hours} {growth} {ahead}: {expected} {really}"
                );
            }
        }
    }

    #[test]
    fn in_the_first_week_it_is_the_day_before() {
        let record = counted(30, 1.0);
        let now = BEGIN + 30 * 3600;
        // The hours 24 to 29 a day later, 6 and those after it a day later.
        for (ahead, like) in [(0, 6), (6, 12), (18, 24), (20, 26), (42, 24)] {
            let expected = total(&record.expected_in(now, BEGIN / 3600 + 30 + ahead));
            assert!((expected / writes(like) - 1.0).abs() < 0.01, "{ahead}: {expected} {}", writes(like));
        }
        let mean = total(&record.expected(now, 24, Over::Mean));
        let really = (6..30).map(writes).sum::<f64>() / 24.0;
        assert!((mean / really - 1.0).abs() < 0.01, "{mean} {really}");
        let max = total(&record.expected(now, 24, Over::Max));
        assert!((max / writes(12) - 1.0).abs() < 0.01, "{max}");
    }

    #[test]
    fn without_a_profile_it_is_the_rate_of_the_last_day() {
        let mut record = LoadRecord::new(BEGIN);
        let cells =
            [(leaf(1.0, 1.0).0, PlaceCounts { writes: 360.0, queries: 36.0, ..PlaceCounts::default() })];
        record.add(
            &LoadDelta { cells: cells.into_iter().collect(), ..LoadDelta::default() },
            &map(),
            BEGIN + 360,
        );
        let expected = record.expected(BEGIN + 360, 24, Over::Mean);
        assert_eq!(expected.len(), 1);
        assert!((expected[0].writes - 1.0).abs() < 0.01 && (expected[0].queries - 0.1).abs() < 0.001);
        assert_eq!(LoadRecord::new(BEGIN).expected(BEGIN, 24, Over::Max), []);
    }
}
