//! What the index should hold, worked out naively: each event applied to a map, one after the other, with code of its own.

use std::collections::BTreeMap;

use geofold::base::geo::GeoPoint;
use geofold::geoshard::GeoshardMap;
use serde_json::{Value, json};

use super::{Random, Raw};

/// Cities, each in a geoshard of its own on the tests' map.
pub const CITIES: [(f64, f64); 12] = [
    (48.8566, 2.3522),
    (40.7128, -74.0060),
    (35.6762, 139.6503),
    (-33.8688, 151.2093),
    (-23.5505, -46.6333),
    (28.6139, 77.2090),
    (30.0444, 31.2357),
    (55.7558, 37.6173),
    (6.5244, 3.3792),
    (34.0522, -118.2437),
    (1.3521, 103.8198),
    (-17.7134, 178.0650),
];

/// One write to the topic.
#[derive(Debug, Clone)]
pub enum Event {
    Index { id: String, document: Value },
    Patch { id: String, patch: Value },
    Delete { id: String },
    Touch { id: String },
}

impl Event {
    /// The line that `geofold send` reads.
    pub fn to_line(&self) -> String {
        match self {
            Self::Index { id, document } => format!("{id}\t{document}"),
            Self::Patch { id, patch } => format!("{id}\tpatch\t{patch}"),
            Self::Delete { id } => format!("{id}\tdelete\t"),
            Self::Touch { id } => format!("{id}\ttouch\t"),
        }
    }

    /// The record that `geofold send` makes of it.
    pub fn to_raw(&self) -> Raw {
        let (id, op, value) = match self {
            Self::Index { id, document } => (id, "index", Some(document.to_string())),
            Self::Patch { id, patch } => (id, "patch", Some(patch.to_string())),
            Self::Delete { id } => (id, "delete", None),
            Self::Touch { id } => (id, "touch", None),
        };
        Raw {
            partition: None,
            key: Some(id.clone().into_bytes()),
            value: value.map(String::into_bytes),
            headers: vec![("geofold-op", op.to_owned())],
        }
    }
}

/// See the file's first lines.
pub struct Truth {
    pub documents: BTreeMap<String, Value>,
    /// Patches and touches of documents that were not there.
    pub missing: u64,
    map: GeoshardMap,
}

impl Truth {
    pub fn new() -> Self {
        let map = include_str!("map-12.json");
        Self { documents: BTreeMap::new(), missing: 0, map: GeoshardMap::from_json(map).unwrap() }
    }

    /// From now on documents belong where this map says.
    pub fn use_map(&mut self, map: GeoshardMap) {
        self.map = map;
    }

    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Index { id, document } => {
                self.documents.insert(id.clone(), document.clone());
            }
            Event::Delete { id } => {
                self.documents.remove(id);
            }
            Event::Patch { id, patch } => match self.documents.get_mut(id) {
                Some(document) => merge(document, patch),
                None => self.missing += 1,
            },
            Event::Touch { id } => self.missing += u64::from(!self.documents.contains_key(id)),
        }
    }

    pub fn shard_of(&self, document: &Value) -> &str {
        let location = &document["location"];
        let (lat, lon) = (location["lat"].as_f64().unwrap(), location["lon"].as_f64().unwrap());
        self.map.locate(GeoPoint::new(lat, lon).unwrap()).as_str()
    }
}

/// RFC 7386, as its pseudo code has it.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], change);
        }
    }
}

/// A day of events over `ids` documents: new ones, steps within a city, far moves, ping-pong, patches with and without a
/// location, deletes, and documents that come back.
pub fn random_events(random: &mut Random, count: usize, ids: u64) -> Vec<Event> {
    let mut events = Vec::with_capacity(count);
    while events.len() < count {
        // A few ids are hot.
        let number = if random.below(4) == 0 { random.below(ids.div_ceil(50)) } else { random.below(ids) };
        let id = format!("p{number}");
        let sequence = events.len();
        let near = |random: &mut Random, city: usize| {
            let (lat, lon) = CITIES[city];
            let step = |random: &mut Random| random.below(1000) as f64 / 100_000.0;
            json!({"lat": lat + step(random), "lon": lon + step(random)})
        };
        let home = (number % CITIES.len() as u64) as usize;
        let away = random.below(CITIES.len() as u64) as usize;
        match random.below(20) {
            0..=9 => {
                let location = near(random, home);
                events.push(Event::Index {
                    id,
                    document: json!({"location": location, "n": sequence, "at": "home"}),
                });
            }
            10..=12 => {
                let location = near(random, away);
                events.push(Event::Index {
                    id,
                    document: json!({"location": location, "n": sequence, "tags": ["a", "b"]}),
                });
            }
            13 => {
                // Ping-pong: there and back within milliseconds.
                for city in [away, home, away, home] {
                    let location = near(random, city);
                    let document = json!({"location": location, "n": events.len()});
                    events.push(Event::Index { id: id.clone(), document });
                }
            }
            14..=15 => events.push(Event::Patch {
                id,
                patch: json!({"n": sequence, "tags": null, "mood": {"is": sequence % 7}}),
            }),
            16 => {
                let location = near(random, away);
                events.push(Event::Patch { id, patch: json!({"location": location}) });
            }
            17 => events.push(Event::Touch { id }),
            _ => events.push(Event::Delete { id }),
        }
    }
    events.truncate(count);
    events
}
