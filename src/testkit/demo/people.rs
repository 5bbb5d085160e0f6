//! Simulated people, and the expected state of the index. Pure, from a seed.
//!
//! They wake up in real cities, walk, commute, and sometimes fly; some ping-pong between two continents within
//! milliseconds; a few are celebrities, written all the time; a few live between two cities and fly to and fro; some leave
//! and come back; and now and then a record is poison. The same seed gives the same events, and so the same truth, on every machine: no clock, no floats that are
//! not whole hundred-thousandths of a degree.

use crate::base::fnv::fnv1a;
use crate::base::geo::GeoPoint;
use crate::base::random::Random;
use crate::geoshard::cities::{CITIES, City};

/// Coordinates are whole numbers of this part of a degree (about a metre).
const PARTS: i64 = 100_000;
/// The first few people are written far more often than others.
const CELEBRITIES: u64 = 5;
/// The next fly to and fro, some of them more often than others.
const FLIERS: u64 = 200;
const MOODS: [&str; 6] = ["curious", "glad", "tired", "hungry", "in love", "lost"];

/// Expected state of a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PersonState {
    /// Latitude, in hundred-thousandths of a degree.
    pub lat: i64,
    /// Longitude, in hundred-thousandths of a degree.
    pub lon: i64,
    /// Number of the event that wrote it last.
    pub event: u64,
    /// Index into [`MOODS`].
    mood: usize,
}

impl PersonState {
    /// The mood's word.
    pub(super) fn mood(&self) -> &'static str {
        MOODS[self.mood % MOODS.len()]
    }

    /// As a point; every one of the simulation is on the globe.
    pub(super) fn point(&self) -> Option<GeoPoint> {
        // A float holds every number of hundred-thousandths exactly enough: the document's text reads the same.
        let degrees = |parts: i64| degrees(parts).parse().ok();
        GeoPoint::new(degrees(self.lat)?, degrees(self.lon)?).ok()
    }

    fn document(&self, name: &str) -> String {
        let Self { event, .. } = self;
        format!(
            r#"{{"name":"{name}","location":{},"event":{event},"mood":"{}"}}"#,
            self.location(),
            self.mood()
        )
    }

    fn location(&self) -> String {
        format!(r#"{{"lat":{},"lon":{}}}"#, degrees(self.lat), degrees(self.lon))
    }
}

/// Hundred-thousandths of a degree as a decimal number of degrees.
fn degrees(parts: i64) -> String {
    let sign = if parts < 0 { "-" } else { "" };
    let parts = parts.unsigned_abs();
    let whole = PARTS.unsigned_abs();
    format!("{sign}{}.{:05}", parts / whole, parts % whole)
}

/// One record to produce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    /// The document's id.
    pub key: String,
    /// The value; `None` deletes.
    pub value: Option<String>,
    /// Whether the value is a merge patch.
    pub is_patch: bool,
}

#[derive(Debug)]
struct Person {
    home: usize,
    state: Option<PersonState>,
    has_left: bool,
}

/// See the top of this file.
#[derive(Debug)]
pub(super) struct People {
    random: Random,
    people: Vec<Person>,
    /// People in the order in which they wake up; the rest of them are asleep.
    asleep: Vec<u32>,
    /// Events that are to follow at once: the rest of a ping-pong.
    pending: Vec<Event>,
    events: u64,
    poison: u64,
}

impl People {
    /// `count` people who have not appeared yet.
    pub(super) fn new(count: u32, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let inhabitants: u64 = CITIES.iter().map(|city| u64::from(city.3)).sum();
        let people = (0..count)
            .map(|_| {
                let mut at = random.below(inhabitants);
                let home = CITIES.iter().position(|city| {
                    let lives_here = at < u64::from(city.3);
                    at = at.saturating_sub(u64::from(city.3));
                    lives_here
                });
                Person { home: home.unwrap_or(0), state: None, has_left: false }
            })
            .collect();
        let mut asleep: Vec<u32> = (0..count).collect();
        for last in (1..asleep.len()).rev() {
            let other = random.below(last as u64 + 1);
            asleep.swap(last, usize::try_from(other).unwrap_or(0));
        }
        Self { random, people, asleep, pending: Vec::new(), events: 0, poison: 0 }
    }

    /// The next record.
    pub(super) fn next_event(&mut self) -> Event {
        self.events += 1;
        if let Some(event) = self.pending.pop() {
            return event;
        }
        if let Some(early) = self.asleep.pop() {
            return self.wake_up(early as usize);
        }
        let (somebody, flies) = match self.random.below(16) {
            0 | 1 => (self.random.below(CELEBRITIES), false),
            2 | 3 => {
                let often = 1 + self.random.below(FLIERS);
                (CELEBRITIES + self.random.below(often), true)
            }
            _ => (self.random.bits(), false),
        };
        let who = usize::try_from(somebody % (self.people.len() as u64).max(1)).unwrap_or(0);
        if self.people[who].state.is_none() {
            return self.wake_up(who);
        }
        if flies {
            return self.fly_to_and_fro(who);
        }
        match self.random.below(1000) {
            0..=699 => self.walk(who, 300),
            700..=899 => self.walk(who, 20_000),
            900..=919 => self.fly(who),
            920..=929 => self.ping_pong(who),
            930..=979 => self.change_mood(who),
            980..=988 => self.step_by_patch(who),
            989..=997 => self.leave(who),
            _ => self.poison(),
        }
    }

    /// How many events there were.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// Whether a ping-pong is unfinished: the model is ahead of the records sent.
    pub(super) fn is_midway(&self) -> bool {
        !self.pending.is_empty()
    }

    /// How many of them were poison.
    pub(super) fn poison_sent(&self) -> u64 {
        self.poison
    }

    /// The keys of the poison that was sent.
    pub(super) fn poison_keys(&self) -> impl Iterator<Item = String> {
        (1..=self.poison).map(poison_key)
    }

    /// Everyone's name and expected state; `None` for a deleted or missing person.
    pub(super) fn truth(&self) -> impl Iterator<Item = (String, Option<PersonState>)> {
        self.people.iter().enumerate().map(|(who, person)| (name(who), person.state))
    }

    /// Celebrities and fliers that never leave: once in the index, they stay.
    pub(super) fn faithful(&self) -> impl Iterator<Item = String> {
        let in_sight =
            self.people.iter().enumerate().take_while(|(who, _)| (*who as u64) < CELEBRITIES + FLIERS);
        in_sight.filter(|(_, person)| !person.has_left).map(|(who, _)| name(who))
    }

    /// One number for the whole truth (FNV-1a, 64 bits): the same events give the same.
    pub(super) fn digest(&self) -> u64 {
        let lines = self.truth().map(|(name, state)| {
            let line = state.map_or_else(|| format!("{name} left"), |state| state.document(&name));
            line + "\n"
        });
        fnv1a(lines.flat_map(String::into_bytes))
    }

    fn wake_up(&mut self, who: usize) -> Event {
        let City(_, lat, lon, _) = CITIES[self.people[who].home];
        let state = self.near(lat, lon, 15_000);
        self.index(who, state)
    }

    fn walk(&mut self, who: usize, parts: i64) -> Event {
        let Some(old) = self.people[who].state else { return self.wake_up(who) };
        let state = PersonState {
            lat: (old.lat + self.random.within(parts)).clamp(-90 * PARTS, 90 * PARTS),
            lon: (old.lon + self.random.within(parts)).clamp(-180 * PARTS, 180 * PARTS),
            event: self.events,
            ..old
        };
        self.index(who, state)
    }

    fn fly(&mut self, who: usize) -> Event {
        let there = self.somewhere();
        self.index(who, there)
    }

    /// From home to the other side of the world, or back.
    fn fly_to_and_fro(&mut self, who: usize) -> Event {
        let home = self.people[who].home;
        let City(_, lat, lon, _) = CITIES[home];
        let is_home =
            self.people[who].state.is_some_and(|state| (state.lat - hundredths(lat)).abs() <= 15_000);
        let City(_, lat, lon, _) =
            if is_home { CITIES[(home + CITIES.len() / 2) % CITIES.len()] } else { City("", lat, lon, 0) };
        let there = self.near(lat, lon, 15_000);
        self.index(who, there)
    }

    /// There and back, and there and back, within milliseconds.
    fn ping_pong(&mut self, who: usize) -> Event {
        let (there, here) = (self.somewhere(), self.somewhere());
        let mut events: Vec<Event> = (0..4)
            .map(|turn| {
                let state =
                    PersonState { event: self.events + turn, ..if turn % 2 == 0 { there } else { here } };
                self.index(who, state)
            })
            .collect();
        let first = events.remove(0);
        events.reverse();
        self.pending = events;
        first
    }

    fn change_mood(&mut self, who: usize) -> Event {
        let mood = usize::try_from(self.random.below(MOODS.len() as u64)).unwrap_or(0);
        let event = self.events;
        let Some(state) = &mut self.people[who].state else { return self.wake_up(who) };
        (state.mood, state.event) = (mood, event);
        let patch = format!(r#"{{"mood":"{}","event":{event}}}"#, state.mood());
        Event { key: name(who), value: Some(patch), is_patch: true }
    }

    fn step_by_patch(&mut self, who: usize) -> Event {
        let there = self.somewhere();
        let Some(state) = &mut self.people[who].state else { return self.wake_up(who) };
        *state = PersonState { mood: state.mood, ..there };
        let patch = format!(r#"{{"location":{},"event":{}}}"#, state.location(), state.event);
        Event { key: name(who), value: Some(patch), is_patch: true }
    }

    fn leave(&mut self, who: usize) -> Event {
        self.people[who].state = None;
        self.people[who].has_left = true;
        Event { key: name(who), value: None, is_patch: false }
    }

    fn poison(&mut self) -> Event {
        self.poison += 1;
        let value = match self.poison % 3 {
            0 => r#"{"location":{"lat":100.0,"lon":0.0}}"#,
            1 => r#"{"name":"nowhere"}"#,
            _ => r#"{"name":"#,
        };
        Event { key: poison_key(self.poison), value: Some(value.to_owned()), is_patch: false }
    }

    fn somewhere(&mut self) -> PersonState {
        let city = usize::try_from(self.random.below(CITIES.len() as u64)).unwrap_or(0);
        let City(_, lat, lon, _) = CITIES[city];
        self.near(lat, lon, 15_000)
    }

    fn near(&mut self, lat: f64, lon: f64, parts: i64) -> PersonState {
        PersonState {
            lat: (hundredths(lat) + self.random.within(parts)).clamp(-90 * PARTS, 90 * PARTS),
            lon: (hundredths(lon) + self.random.within(parts)).clamp(-180 * PARTS, 180 * PARTS),
            event: self.events,
            mood: 0,
        }
    }

    fn index(&mut self, who: usize, state: PersonState) -> Event {
        self.people[who].state = Some(state);
        let key = name(who);
        let value = state.document(&key);
        Event { key, value: Some(value), is_patch: false }
    }
}

/// Degrees of the table, which have two decimals, as [`PARTS`].
fn hundredths(degrees: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 18,000")]
    let hundredths = (degrees * 100.0).round() as i64;
    hundredths * (PARTS / 100)
}

fn poison_key(number: u64) -> String {
    format!("poison{number}")
}

fn name(who: usize) -> String {
    format!("person{who}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_events_and_another_seed_others() {
        let events = |seed| {
            let mut people = People::new(200, seed);
            (0..5000).map(|_| people.next_event()).collect::<Vec<_>>()
        };
        assert_eq!(events(1), events(1));
        assert_ne!(events(1), events(2));
    }

    #[test]
    fn the_truth_is_what_the_events_say_applied_one_by_one() {
        let mut people = People::new(100, 7);
        let mut stored: BTreeMap<String, Value> = BTreeMap::new();
        for _ in 0..20_000 {
            let Event { key, value, is_patch } = people.next_event();
            if key.starts_with("poison") {
                continue;
            }
            match value.map(|value| serde_json::from_str::<Value>(&value).unwrap()) {
                None => drop(stored.remove(&key)),
                Some(patch) if is_patch => {
                    let document = stored.get_mut(&key).unwrap().as_object_mut().unwrap();
                    document.extend(patch.as_object().unwrap().clone());
                }
                Some(document) => drop(stored.insert(key, document)),
            }
        }
        // A ping-pong that is not over yet is not in the topic yet.
        let unsent: Vec<String> = people.pending.iter().map(|event| event.key.clone()).collect();
        let mut compared = 0;
        for (name, state) in people.truth().filter(|(name, _)| !unsent.contains(name)) {
            let expected = state.map(|state| serde_json::from_str::<Value>(&state.document(&name)).unwrap());
            assert_eq!(stored.get(&name), expected.as_ref(), "{name}");
            compared += 1;
        }
        assert!(compared > 90);
        assert!(people.poison_sent() > 0);
    }

    #[test]
    fn the_digest_tells_truths_apart() {
        let digest = |seed, events| {
            let mut people = People::new(50, seed);
            (0..events).for_each(|_| drop(people.next_event()));
            people.digest()
        };
        assert_eq!(digest(1, 1000), digest(1, 1000));
        assert_ne!(digest(1, 1000), digest(2, 1000));
        assert_ne!(digest(1, 1000), digest(1, 1010));
    }

    #[test]
    fn degrees_are_decimal_numbers() {
        assert_eq!(degrees(4_885_660), "48.85660");
        assert_eq!(degrees(-7), "-0.00007");
    }
}
