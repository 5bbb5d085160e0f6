//! A week of the world in virtual time: people who sleep at night, a city that grows, a festival. The autopilot's own planner keeps the map
//! balanced; a map that nobody changes is beside it.
//!
//! Everything is aggregated by place and hour, so that a week takes seconds; there is no server. What decides is what decides in
//! production: [`LoadRecord`], its forecast, [`score`] and [`decide`]. The first week only fills the profile.

mod show;

use std::collections::{HashMap, VecDeque};

use s2::cellid::CellID;

use crate::base::geo::GeoPoint;
use crate::base::ids::ShardId;
use crate::base::random::Random;
use crate::geoshard::balance::decide::{BalanceHistory, BalanceLimits, BalanceStep, LoadView, decide};
use crate::geoshard::balance::nodes::{HourlyLoad, place};
use crate::geoshard::balance::{Weights, by_shard, score};
use crate::geoshard::cell;
use crate::geoshard::cities::{CITIES, City};
use crate::geoshard::load::{CellLoad, ExpectedCell, LoadDelta, LoadRecord, Over, PlaceCounts};
use crate::geoshard::map::GeoshardMap;
use crate::geoshard::plan::{By, CellLoads, CellOptions, MapPlan, Naming, PlanOptions};

const HOUR: u64 = 3600;
/// Hours of a week: what is shown begins after the first one.
pub const WEEK: u64 = 168;
/// A Monday, 00:00 UTC: hour 0, in hours since 1970.
pub const MONDAY: u64 = 2_922 * WEEK + 4 * 24;
/// Hours from one decision to the next.
const DECIDES_EVERY: u64 = 2;
/// S2 level of the places.
const PLACES: u64 = 8;
/// S2 level that load is counted by.
const COUNTED: u64 = 7;
/// Writes and searches of a person in a busy hour.
const WRITES: f64 = 0.5;
const SEARCHES: f64 = 0.25;

/// What happens.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Of the people's places.
    pub seed: u64,
    /// How many people there are.
    pub people: usize,
    /// Geoshards.
    pub shards: usize,
    /// The city that grows, and by how much a day.
    pub growing: (&'static str, f64),
    /// What many people come for.
    pub festival: Festival,
    /// What the autopilot may do.
    pub limits: BalanceLimits,
    /// Nodes, for the comparison of placements.
    pub nodes: usize,
}

/// A place that many people come to for some days.
#[derive(Debug, Clone, Copy)]
pub struct Festival {
    /// Latitude of its middle.
    pub lat: f64,
    /// Longitude of its middle.
    pub lon: f64,
    /// The first hour of the second week.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Visitors, as a part of all people; they write and search there, and their documents stay at home.
    pub visitors: f64,
}

/// Visitors are within so many degrees.
const AROUND: f64 = 0.8;

/// One hour of the second week.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hour {
    /// Largest load over mean with the map that nobody changes. The load is that of the last 24 hours.
    pub unchanged: f64,
    /// With the autopilot's.
    pub autopilot: f64,
    /// What the autopilot expected for the next 24 hours.
    pub expected: f64,
}

/// One day of the second week.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Day {
    /// Changes of the map.
    pub changes: usize,
    /// The part of all documents that moved.
    pub moved: f64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Week {
    /// The hours of the second week.
    pub hours: Vec<Hour>,
    /// Its days.
    pub days: Vec<Day>,
    /// The most that moved within any 24 hours, as a part of all documents.
    pub most_moved: f64,
    /// Documents that came back within two days to a geoshard that they had left, as a part of all.
    pub returned: f64,
    /// Largest load of a node in an hour over the mean: placed along the curve, and with time zones mixed.
    pub nodes: Option<(f64, f64)>,
}

/// Where some people live.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its cell.
    pub cell: CellID,
    /// Where its documents are.
    pub point: GeoPoint,
    /// How many live there at the beginning.
    people: f64,
    grows: bool,
    is_festive: bool,
}

/// Which places went from where to where and when: what came back soon after was moved for nothing.
#[derive(Debug, Default)]
pub struct Moves {
    /// By place: when it left which geoshard.
    left: HashMap<usize, Vec<(u64, ShardId)>>,
    /// Hour and part of all documents of each change.
    changes: Vec<(u64, f64)>,
    /// Documents that came back within two days, as a part of all.
    pub returned: f64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            seed: 7,
            people: 12_000,
            shards: 30,
            growing: ("Delhi", 0.03),
            // East of Paris, Thursday evening to Sunday night.
            festival: Festival {
                lat: 48.8,
                lon: 2.9,
                first: 3 * 24 + 16,
                last: 6 * 24 + 22,
                visitors: 0.025,
            },
            limits: BalanceLimits {
                start_above: 1.15,
                stop_below: 1.08,
                cool_down: 6 * HOUR,
                cells: CellOptions { level: 7, split_above: 0.1 },
                ..BalanceLimits::default()
            },
            nodes: 6,
        }
    }
}

/// How busy people are, 0 to 1, at this longitude and hour.
fn busy(lon: f64, hour: u64) -> f64 {
    let local = (hour % 24) as f64 + lon / 15.0;
    // The busiest hour is 19:00, the quietest 07:00.
    let day = 0.5 + 0.5 * ((local - 19.0) / 24.0 * std::f64::consts::TAU).cos();
    // 1 January 1970 was a Thursday.
    let is_weekend = [2, 3].contains(&(hour / 24 % 7));
    (0.1 + 0.9 * day) * if is_weekend { 1.1 } else { 1.0 }
}

impl Scenario {
    /// Where people live, in the order of the curve.
    pub fn places(&self) -> Vec<Place> {
        let mut random = Random::new(self.seed);
        let all: u64 = CITIES.iter().map(|City(.., thousands)| u64::from(*thousands)).sum();
        let mut places: HashMap<u64, Place> = HashMap::new();
        let near = |random: &mut Random| (0..6).map(|_| random.share()).sum::<f64>() * 0.5 - 1.5;
        for City(name, lat, lon, thousands) in CITIES {
            let people = u64::from(*thousands) * self.people as u64 / all;
            for _ in 0..people.max(1) {
                let (lat, lon) = (lat + near(&mut random), lon + near(&mut random));
                let Ok(point) = GeoPoint::new(lat, lon.clamp(-180.0, 180.0)) else { continue };
                let cell = CellID(cell::leaf(point)).parent(PLACES);
                let Festival { lat: middle, lon: centre, .. } = self.festival;
                let is_near = (point.lat() - middle).abs() < AROUND && (point.lon() - centre).abs() < AROUND;
                let place = places.entry(cell.0).or_insert(Place {
                    cell,
                    point,
                    people: 0.0,
                    grows: *name == self.growing.0,
                    is_festive: is_near,
                });
                place.people += 1.0;
            }
        }
        let mut places: Vec<Place> = places.into_values().collect();
        places.sort_unstable_by_key(|place| place.cell.0);
        places
    }

    /// The visitors of a place of the festival.
    pub fn visitors(&self, places: &[Place]) -> f64 {
        let there = places.iter().filter(|place| place.is_festive).count();
        self.festival.visitors * self.people as f64 / there.max(1) as f64
    }

    /// The people of a place at an hour counted from the beginning.
    pub fn people(&self, place: &Place, hour: u64) -> f64 {
        let days = hour.saturating_sub(WEEK) as f64 / 24.0;
        place.people * if place.grows { (1.0 + self.growing.1).powf(days) } else { 1.0 }
    }

    /// What happens at a place in an hour.
    pub fn counts(&self, place: &Place, visitors: f64, hour: u64) -> PlaceCounts {
        let Festival { first, last, .. } = self.festival;
        let is_on = place.is_festive && (WEEK + first..=WEEK + last).contains(&hour);
        let people = self.people(place, hour) + if is_on { visitors } else { 0.0 };
        let busy = busy(place.point.lon(), MONDAY + hour) * people;
        PlaceCounts {
            writes: busy * WRITES,
            bytes: busy * WRITES * 500.0,
            queries: busy * SEARCHES,
            seconds: 0.0,
        }
    }

    fn documents(&self, places: &[Place], map: &GeoshardMap, hour: u64) -> CellLoads {
        let mut documents = CellLoads::within(12, map);
        for place in places {
            let people = self.people(place, hour);
            // A few thousand cells are far below the limit.
            let _ = documents.add_cell(place.cell, CellLoad { load: people, points: 1 });
        }
        documents
    }

    /// What really was the load of a day, before `hour`.
    fn load(&self, places: &[Place], day: &[PlaceCounts], map: &GeoshardMap, hour: u64) -> CellLoads {
        let rates = places.iter().zip(day).map(|(place, counts)| ExpectedCell {
            cell: place.cell,
            writes: counts.writes,
            queries: counts.queries,
        });
        let rates: Vec<ExpectedCell> = rates.collect();
        let documents = self.documents(places, map, hour);
        score(&documents, &rates, Weights::default(), map).unwrap_or(documents)
    }

    /// Largest load over mean of what really was the load of a day, before `hour`.
    pub fn over_mean(&self, places: &[Place], day: &[PlaceCounts], map: &GeoshardMap, hour: u64) -> f64 {
        let people: Vec<f64> = places.iter().map(|place| self.people(place, hour)).collect();
        let sum = |of: fn(&PlaceCounts) -> f64| day.iter().map(of).sum::<f64>();
        let (all, writes, queries) =
            (people.iter().sum::<f64>(), sum(|day| day.writes), sum(|day| day.queries));
        let mut shards = vec![0.0; map.shards().len()];
        for ((place, people), day) in places.iter().zip(people).zip(day) {
            let load = people / all + day.writes / writes + day.queries / queries;
            shards[map.locate_index(place.point)] += load / 3.0;
        }
        shards.iter().copied().fold(0.0, f64::max) * shards.len() as f64
    }

    /// Runs both weeks.
    pub fn run(&self) -> Week {
        let places = self.places();
        let visitors = self.visitors(&places);
        let start = self.first_map(&places);
        let mut map = start.clone();
        let mut record = LoadRecord::new(MONDAY * HOUR);
        let mut history = BalanceHistory::default();
        let (mut hours, mut days) = (Vec::new(), vec![Day::default(); 7]);
        let mut moves = Moves::default();
        let mut expected = 1.0;
        let mut recent: VecDeque<Vec<PlaceCounts>> = VecDeque::new();
        let mut day = vec![PlaceCounts::default(); places.len()];
        for hour in 0..2 * WEEK {
            let now = (MONDAY + hour) * HOUR;
            if hour >= WEEK && hour % DECIDES_EVERY == 0 {
                let documents = self.documents(&places, &map, hour);
                let forecast = record.expected(now, 24, Over::Mean);
                let forecast = score(&documents, &forecast, Weights::default(), &map);
                let forecast = forecast.unwrap_or_else(|_| documents.clone());
                let view = LoadView {
                    map: &map,
                    documents: &documents,
                    now: &forecast,
                    forecast: &forecast,
                    counted_for: Some(record.covered(now)),
                };
                let decision = decide(&history, view, &self.limits, now);
                history.is_correcting = decision.is_correcting;
                expected = decision.forecast;
                if let BalanceStep::Change(proposal) = decision.step {
                    let new = proposal.change.map;
                    history.begins(now, proposal.documents);
                    history.last_change = Some(now);
                    let share = moves.note(self, &places, (&map, &new), hour);
                    let number = usize::try_from((hour - WEEK) / 24).unwrap_or_default();
                    days[number].changes += 1;
                    days[number].moved += share;
                    map = new;
                }
            }
            if hour >= WEEK {
                let over_mean = |map: &GeoshardMap| self.over_mean(&places, &day, map, hour);
                hours.push(Hour { unchanged: over_mean(&start), autopilot: over_mean(&map), expected });
            }
            let mut delta = LoadDelta::default();
            let counts: Vec<PlaceCounts> =
                places.iter().map(|place| self.counts(place, visitors, hour)).collect();
            for ((place, counts), day) in places.iter().zip(&counts).zip(&mut day) {
                delta.cells.entry(place.cell.parent(COUNTED).0).or_default().add(*counts);
                day.add(*counts);
            }
            recent.push_back(counts);
            if recent.len() > 24 {
                let oldest = recent.pop_front().unwrap_or_default();
                day.iter_mut().zip(oldest).for_each(|(day, counts)| day.add(counts.times(-1.0)));
            }
            record.add(&delta, &map, now + HOUR / 2);
        }
        let (most_moved, returned) = (moves.most_within_a_day(), moves.returned);
        Week { hours, days, most_moved, returned, nodes: Some(self.nodes(&places, &map)) }
    }

    /// Of the load of the first day.
    pub fn first_map(&self, places: &[Place]) -> GeoshardMap {
        #[expect(clippy::expect_used, reason = "one geoshard of the whole globe is a map")]
        let globe =
            GeoshardMap::new(1, "globe", vec![(0, ShardId::new("s").expect("an id"))]).expect("a map");
        let day = |place| {
            let mut sum = PlaceCounts::default();
            (0..24).for_each(|hour| sum.add(self.counts(place, 0.0, hour)));
            sum
        };
        let load = self.load(places, &places.iter().map(day).collect::<Vec<_>>(), &globe, 24);
        let options =
            PlanOptions { level: 7, split_above: 0.1, counts: self.shards..=self.shards, by: By::Cv };
        let plan = MapPlan::make(&load, &options).ok();
        plan.and_then(|plan| plan.map(1, "week", &Naming::Fresh).ok()).unwrap_or(globe)
    }

    /// The peak of a node by hour, for the last day.
    fn nodes(&self, places: &[Place], map: &GeoshardMap) -> (f64, f64) {
        let visitors = self.visitors(places);
        let hours = (2 * WEEK - 24..2 * WEEK).map(|hour| {
            let mut load = CellLoads::within(12, map);
            for place in places {
                let PlaceCounts { writes, queries, .. } = self.counts(place, visitors, hour);
                let _ = load.add_cell(place.cell, CellLoad { load: writes + queries, points: 1 });
            }
            by_shard(map, &load)
        });
        let hours: Vec<Vec<f64>> = hours.collect();
        let of_shard = |(n, shard): (usize, &ShardId)| HourlyLoad {
            shard: shard.clone(),
            copies: 1,
            hours: hours.iter().map(|hour| hour[n]).collect(),
        };
        let loads: Vec<HourlyLoad> = map.shards().iter().enumerate().map(of_shard).collect();
        let placement = place(&loads, self.nodes);
        (placement.peak_in_order, placement.peak)
    }
}

impl Moves {
    /// Notes a change of the map; gives the part of all documents that it moves.
    pub fn note(
        &mut self,
        scenario: &Scenario,
        places: &[Place],
        (old, new): (&GeoshardMap, &GeoshardMap),
        hour: u64,
    ) -> f64 {
        let (mut moved, mut returned, mut all) = (0.0, 0.0, 0.0);
        for (number, place) in places.iter().enumerate() {
            let people = scenario.people(place, hour);
            all += people;
            let (from, to) = (old.locate(place.point), new.locate(place.point));
            if from == to {
                continue;
            }
            moved += people;
            let left = self.left.entry(number).or_default();
            if left.iter().any(|(at, shard)| shard == to && at + 48 > hour) {
                returned += people;
            }
            left.push((hour, from.clone()));
        }
        self.changes.push((hour, moved / all));
        self.returned += returned / all;
        moved / all
    }

    /// The most that moved within any 24 hours, as a part of all documents.
    pub fn most_within_a_day(&self) -> f64 {
        let until = |(end, _): &(u64, f64)| -> f64 {
            let day = self.changes.iter().filter(|(hour, _)| hour <= end && hour + 24 > *end);
            day.map(|(_, share)| share).sum()
        };
        self.changes.iter().map(until).fold(0.0, f64::max)
    }
}
