//! People where people live, what they say about themselves, and what is searched for. The same on every run.

use anyhow::Result;
use geofold::base::geo::{Distance, GeoPoint};
use geofold::base::random::Random;
use geofold::geoshard::cover::Shape;
use serde_json::{Value, json};

use crate::people;

const SEED: u64 = 23;
const WORDS: u64 = 5_000;
const TAGS: u64 = 200;
const METRES_PER_MILE: f64 = 1_609.344;

/// See the file's first line.
pub struct Crowd {
    pub places: Vec<GeoPoint>,
}

/// A search.
pub struct Question {
    pub body: Value,
    pub shape: Shape,
}

impl Crowd {
    pub fn new(people: usize) -> Result<Self> {
        let mut random = Random::new(SEED);
        let place = |_| {
            let (lat, lon) = people::home(&mut random);
            Ok(GeoPoint::new(lat, lon)?)
        };
        Ok(Self { places: (0..people).map(place).collect::<Result<_>>()? })
    }

    /// One person's document, about 500 bytes; `step` is what a write changes.
    pub fn document(&self, n: usize, step: u64) -> String {
        let mut random = Random::new(SEED ^ (n as u64) << 20);
        let place = self.places[n];
        let mut tags: Vec<String> = (0..2 + random.below(6)).map(|_| tag(few(&mut random, TAGS))).collect();
        tags.sort();
        tags.dedup();
        let bio: Vec<String> = (0..15 + random.below(30)).map(|_| word(few(&mut random, WORDS))).collect();
        json!({
            "location": {"lat": place.lat(), "lon": place.lon()},
            "name": format!("{} {}", word(few(&mut random, WORDS)), word(few(&mut random, WORDS))),
            "age": 18 + random.below(60),
            "height": 150 + random.below(50),
            "active": random.below(3) == 0,
            "tags": tags,
            "bio": bio.join(" "),
            "seen": step,
        })
        .to_string()
    }

    /// A search around a person: by a tag, an age and a word.
    pub fn question(&self, miles: u32, seed: u64) -> Question {
        let mut random = Random::new(SEED ^ 0xdead ^ seed << 16 ^ u64::from(miles) << 56);
        let (centre, shape) = self.around(&mut random, f64::from(miles));
        let age = 18 + random.below(40);
        let filter = json!([
            geo_distance(centre, f64::from(miles)),
            {"term": {"tags": tag(random.below(20))}},
            {"range": {"age": {"gte": age, "lte": age + 20}}},
        ]);
        let text = [word(random.below(100)), word(random.below(100))].join(" ");
        let query = json!({"bool": {"must": [{"match": {"bio": text}}], "filter": filter}});
        Question { body: json!({"query": query, "size": 20}), shape }
    }

    /// The nearest, with a filter; without a radius, anywhere.
    pub fn nearest(&self, miles: Option<u32>, size: usize, seed: u64) -> Question {
        let mut random = Random::new(SEED ^ 0xbeef ^ seed << 16);
        // Half of the Earth's circumference is the globe.
        let (centre, shape) = self.around(&mut random, miles.map_or(12_500.0, f64::from));
        let mut filter = vec![json!({"term": {"tags": tag(random.below(20))}})];
        filter.extend(miles.map(|miles| geo_distance(centre, f64::from(miles))));
        let from = json!({"lat": centre.lat(), "lon": centre.lon()});
        let body = json!({
            "query": {"bool": {"filter": filter}}, "size": size, "track_total_hits": false,
            "sort": [{"_geo_distance": {"location": from, "order": "asc", "unit": "m"}}],
        });
        Question { body, shape }
    }

    fn around(&self, random: &mut Random, miles: f64) -> (GeoPoint, Shape) {
        let centre = self.places[usize::try_from(random.below(self.places.len() as u64)).unwrap_or(0)];
        let radius =
            Distance::from_metres(miles * METRES_PER_MILE).unwrap_or_else(|_| unreachable!("a radius"));
        (centre, Shape::circle(centre, radius))
    }
}

fn geo_distance(centre: GeoPoint, miles: f64) -> Value {
    let centre = json!({"lat": centre.lat(), "lon": centre.lon()});
    json!({"geo_distance": {"distance": format!("{miles}mi"), "location": centre}})
}

/// Low numbers more often, as words are.
fn few(random: &mut Random, n: u64) -> u64 {
    (0..2).fold(random.below(n), |most, _| random.below(1 + most))
}

fn tag(n: u64) -> String {
    format!("tag{n}")
}

/// A word for a number: syllables.
fn word(n: u64) -> String {
    const SYLLABLES: [&str; 17] = [
        "ka", "lo", "mi", "re", "su", "ta", "ve", "no", "di", "pa", "gu", "fe", "hy", "bo", "zi", "ro", "le",
    ];
    let syllable = |n: u64| SYLLABLES[usize::try_from(n % 17).unwrap_or(0)];
    [n, n / 17, n / 289 + 3].map(syllable).concat()
}
