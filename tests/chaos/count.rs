//! The count that owes nothing to the audit: how many documents each index has, as `_count` says, against a tally of the
//! topic that knows no truth, no map and no versions. It keeps where each id was last, by the nearest of the cities that
//! documents are near, and asks `geofold shards locate` for the index of each city.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use crate::records::{self, What};
use crate::support::{CITIES, Event, World, text};

/// Documents that are alive, by index, as the topic has them and as Elasticsearch has them.
pub struct Count {
    pub topic: BTreeMap<String, u64>,
    pub elasticsearch: BTreeMap<String, u64>,
}

impl Count {
    pub fn documents(&self) -> u64 {
        self.topic.values().sum()
    }

    /// The indices in which the two differ.
    pub fn differences(&self) -> Vec<String> {
        let counts = self.elasticsearch.iter().map(|(index, count)| {
            let topic = self.topic.get(index).copied().unwrap_or_default();
            (topic != *count)
                .then(|| format!("{index} has {count} documents, and the topic has {topic} for it"))
        });
        let elsewhere = self.topic.keys().filter(|index| !self.elasticsearch.contains_key(*index));
        let missing = elsewhere.map(|index| format!("{index} was not counted"));
        counts.flatten().chain(missing).collect()
    }
}

pub fn count(world: &World) -> Count {
    let indices: Vec<String> = CITIES.iter().map(|city| index_of(world, *city)).collect();
    let mut cities: HashMap<String, usize> = HashMap::new();
    records::read(world, |record| match record.what {
        What::Write(Event::Index { id, document }) => {
            cities.extend(nearest_city(&document).map(|city| (id, city)));
        }
        What::Write(Event::Patch { id, patch }) => {
            if let (Some(city), Some(city_now)) = (nearest_city(&patch), cities.get_mut(&id)) {
                *city_now = city;
            }
        }
        What::Write(Event::Delete { id }) => drop(cities.remove(&id)),
        What::Write(Event::Touch { .. }) | What::Bad(_) => {}
    });
    let mut topic = BTreeMap::new();
    for city in cities.into_values() {
        *topic.entry(indices[city].clone()).or_default() += 1;
    }
    let elasticsearch = indices.into_iter().map(|index| {
        world.stack.ask("POST", &format!("/{index}/_refresh"), None);
        let count = world.stack.ask("GET", &format!("/{index}/_count"), None)["count"].as_u64().unwrap();
        (index, count)
    });
    Count { elasticsearch: elasticsearch.collect(), topic }
}

fn nearest_city(content: &Value) -> Option<usize> {
    let (lat, lon) = (content["location"]["lat"].as_f64()?, content["location"]["lon"].as_f64()?);
    CITIES.iter().position(|(north, east)| (lat - north).abs() < 0.1 && (lon - east).abs() < 0.1)
}

fn index_of(world: &World, (lat, lon): (f64, f64)) -> String {
    let located = world.geofold(&["shards", "locate", "--json", &lat.to_string(), &lon.to_string()]);
    assert!(located.status.success(), "{}", text(&located));
    let located: Value = serde_json::from_slice(&located.stdout).unwrap();
    located["index"].as_str().unwrap().to_owned()
}
