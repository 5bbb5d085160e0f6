//! The documents of a race: people, spread evenly over the geoshards of a map, who take a step every round.

use anyhow::{Context, Result, ensure};
use geofold::base::geo::GeoPoint;
use geofold::base::ids::{DocId, ShardId};
use geofold::geoshard::map::GeoshardMap;
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
pub struct Random(geofold::base::random::Random);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(geofold::base::random::Random::new(seed))
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

/// A map of fewer geoshards: each of those has neighbours of `map` in it.
pub fn fewer_geoshards(map: &GeoshardMap, geoshards: usize) -> Result<GeoshardMap> {
    let all = map.shards().len();
    ensure!(
        (1..=all).contains(&geoshards),
        "of {all} geoshards {geoshards} cannot be made: choose 1 to {all}"
    );
    let mut ranges: Vec<(u64, ShardId)> = Vec::new();
    for (range, shard) in map.ranges() {
        let number = map.shards().iter().position(|one| one == shard).context("a geoshard of the map")?;
        let shard = ShardId::new(&format!("s{:02}", number * geoshards / all))?;
        if ranges.last().is_none_or(|(_, last)| *last != shard) {
            ranges.push((range.start, shard));
        }
    }
    Ok(GeoshardMap::new(1, &format!("{geoshards} geoshards"), ranges)?)
}

/// A person and their place.
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

    /// The document as a record.
    fn event(&self, number: usize, step: u32) -> Event {
        let (id, shard) = (self.id.clone(), self.shard.clone());
        Event { number, id, shard, value: Some(self.document(step)), patch: false }
    }
}

/// A record of a person.
#[derive(Debug, Clone)]
pub struct Event {
    /// Who, by number.
    pub number: usize,
    /// The document's id.
    pub id: DocId,
    /// Where the document goes.
    pub shard: ShardId,
    /// The document, or the patch; `None` deletes.
    pub value: Option<String>,
    /// Whether the value is a patch.
    pub patch: bool,
}

/// Everybody.
pub struct Crowd {
    /// By number.
    pub people: Vec<Person>,
    map: GeoshardMap,
    random: Random,
}

impl Crowd {
    /// As many people as asked for, evenly over the map's geoshards. Their ids begin with `name`.
    pub fn new(map: GeoshardMap, name: &str, people: usize) -> Result<Self> {
        let mut crowd = Self { people: Vec::with_capacity(people), map, random: Random::new(55) };
        for number in 0..people {
            let (at, shard) = crowd.place()?;
            let id = DocId::from_key(Some(format!("{name}-{number:07}").as_bytes())).context("an id")?;
            let profile = crowd.profile(number);
            crowd.people.push(Person { id, at, shard, profile });
        }
        Ok(crowd)
    }

    /// Others in the same world; their ids begin with `name`.
    pub fn others(&self, name: &str, people: usize) -> Result<Self> {
        Self::new(self.map.clone(), name, people)
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
        (0..self.people.len()).try_for_each(|number| self.send_elsewhere(number))
    }

    /// A person moves to another geoshard.
    fn send_elsewhere(&mut self, number: usize) -> Result<()> {
        let (at, shard) = loop {
            let place = self.place()?;
            if place.1 != self.people[number].shard {
                break place;
            }
        };
        let person = &mut self.people[number];
        (person.at, person.shard) = (at, shard);
        Ok(())
    }

    /// Everybody's document, once, in a random order.
    pub fn documents(&mut self, step: u32) -> Vec<Event> {
        let mut order: Vec<usize> = (0..self.people.len()).collect();
        self.random.shuffle(&mut order);
        order.into_iter().map(|number| self.people[number].event(number, step)).collect()
    }

    /// So many writes, all of them of the first `ids` people, at random.
    pub fn hot_writes(&mut self, writes: usize, ids: usize, step: u32) -> Vec<Event> {
        (0..writes)
            .map(|_| {
                let number = self.random.index(ids.min(self.people.len()));
                self.people[number].event(number, step)
            })
            .collect()
    }

    /// A day: of a hundred events 90 are steps, 5 moves, 3 patches, 1 new person and 1 deletion.
    /// Only people who were added on a day are deleted. Also returns how many were added and deleted.
    pub fn day(&mut self, events: usize, step: u32) -> Result<(Vec<Event>, usize, usize)> {
        let residents = self.people.len();
        let (mut day, mut came, mut left) = (Vec::with_capacity(events), residents, residents);
        for _ in 0..events {
            let number = self.random.index(residents);
            day.push(match self.random.below(100) {
                0..90 => self.people[number].event(number, step),
                90..95 => {
                    self.send_elsewhere(number)?;
                    self.people[number].event(number, step)
                }
                95..98 => Event {
                    patch: true,
                    value: Some(format!(r#"{{"age":{},"step":{step}}}"#, 18 + self.random.below(60))),
                    ..self.people[number].event(number, step)
                },
                98 if left < came => {
                    left += 1;
                    Event { value: None, ..self.people[left - 1].event(left - 1, step) }
                }
                _ => {
                    let (at, shard) = self.place()?;
                    let id = DocId::from_key(Some(format!("day{step}-{came:07}").as_bytes()))?;
                    let profile = self.profile(came);
                    self.people.push(Person { id, at, shard, profile });
                    came += 1;
                    self.people[came - 1].event(came - 1, step)
                }
            });
        }
        self.people.truncate(residents);
        Ok((day, came - residents, left - residents))
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
