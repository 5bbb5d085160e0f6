//! The documents of a race: people, spread evenly over the geoshards of a map, who take a step every round.

use anyhow::{Context, Result};
use geofold::geo::GeoPoint;
use geofold::geoshard::map::GeoshardMap;
use geofold::ids::{DocId, ShardId};
use s2::cellid::CellID;
use s2::latlng::LatLng;

/// Settings and mappings of the geoshards' indices in a race: a profile as an application would map it.
pub const INDEX_TEMPLATE: &str = r#"{
  "mappings": {
    "dynamic": "strict",
    "properties": {
      "id": {"type": "keyword"},
      "name": {"type": "text"},
      "age": {"type": "short"},
      "tags": {"type": "keyword"},
      "about": {"type": "text"},
      "location": {"type": "geo_point"},
      "step": {"type": "integer"}
    }
  }
}
"#;

const WORDS: &[&str] = &[
    "coffee",
    "mountains",
    "cinema",
    "running",
    "guitar",
    "travel",
    "cooking",
    "photography",
    "swimming",
    "books",
    "dancing",
    "football",
    "painting",
    "sailing",
    "theatre",
    "cycling",
    "gardens",
    "history",
    "climbing",
    "jazz",
    "pottery",
    "chess",
    "hiking",
    "languages",
    "museums",
    "opera",
    "surfing",
    "tennis",
];

/// The same race on every machine.
pub struct Random(geofold::random::Random);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(geofold::random::Random::new(seed))
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// A number below `end`, as an index.
    pub fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap_or(0)
    }

    /// Fisher and Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.index(at + 1));
        }
    }
}

/// Somebody, and where they are.
pub struct Person {
    /// The document's id.
    pub id: DocId,
    /// Where they are now.
    pub at: GeoPoint,
    /// The geoshard that `at` is in.
    pub shard: ShardId,
    /// Everything in their document that stays as it is.
    profile: String,
}

impl Person {
    /// The document: about 600 bytes.
    pub fn document(&self, step: u32) -> String {
        let (lat, lon) = (self.at.lat(), self.at.lon());
        format!(
            r#"{{"id":"{}",{},"location":{{"lat":{lat:.6},"lon":{lon:.6}}},"step":{step}}}"#,
            self.id.as_str(),
            self.profile
        )
    }
}

/// Everybody.
pub struct Crowd {
    /// By number.
    pub people: Vec<Person>,
    map: GeoshardMap,
    random: Random,
}

impl Crowd {
    /// As many people as asked for, evenly over the map's geoshards.
    pub fn new(map: GeoshardMap, people: usize) -> Result<Self> {
        let mut crowd = Self { people: Vec::with_capacity(people), map, random: Random::new(55) };
        for number in 0..people {
            let (at, shard) = crowd.place()?;
            let id = DocId::from_key(Some(format!("person-{number:07}").as_bytes())).context("an id")?;
            let profile = crowd.profile(number);
            crowd.people.push(Person { id, at, shard, profile });
        }
        Ok(crowd)
    }

    /// Everybody takes a step of some metres and stays in their geoshard.
    pub fn take_a_step(&mut self) -> Result<()> {
        /// About ten metres to the north or the south.
        const STEP_DEGREES: f64 = 0.0001;
        for person in &mut self.people {
            let step = if self.random.below(2) == 0 { STEP_DEGREES } else { -STEP_DEGREES };
            let at = GeoPoint::new((person.at.lat() + step).clamp(-90.0, 90.0), person.at.lon())?;
            if *self.map.locate(at) == person.shard {
                person.at = at;
            }
        }
        Ok(())
    }

    /// Everybody travels to another geoshard.
    pub fn travel(&mut self) -> Result<()> {
        for number in 0..self.people.len() {
            let (at, shard) = loop {
                let place = self.place()?;
                if place.1 != self.people[number].shard {
                    break place;
                }
            };
            let person = &mut self.people[number];
            (person.at, person.shard) = (at, shard);
        }
        Ok(())
    }

    /// Everybody's number, shuffled; those of whom `last` is true come last.
    pub fn shuffled(&mut self, last: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.people.len()).collect();
        self.random.shuffle(&mut order);
        order.sort_by_key(|&number| last(number));
        order
    }

    /// A place in a geoshard, each geoshard as likely as the next.
    fn place(&mut self) -> Result<(GeoPoint, ShardId)> {
        let ranges: Vec<_> = self.map.ranges().collect();
        let (range, _) = &ranges[self.random.index(ranges.len())];
        // Leaf cells have odd numbers.
        let leaf = CellID((range.start + self.random.below(range.end - range.start)) | 1);
        let place = LatLng::from(leaf);
        // As many digits as the document has: what is rounded must not change geoshard.
        let round = |degrees: f64| (degrees * 1e6).round() / 1e6;
        let at = GeoPoint::new(round(place.lat.deg()), round(place.lng.deg()))?;
        Ok((at, self.map.locate(at).clone()))
    }

    fn profile(&mut self, number: usize) -> String {
        let mut words = |count: usize, separator: &str| {
            let words: Vec<&str> = (0..count).map(|_| WORDS[self.random.index(WORDS.len())]).collect();
            words.join(separator)
        };
        let (tags, about) = (words(4, "\",\""), words(52, " "));
        let age = 18 + number % 60;
        format!(r#""name":"Person {number}","age":{age},"tags":["{tags}"],"about":"{about}""#)
    }
}
