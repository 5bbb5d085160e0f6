//! What goes on while the map changes: documents are written, moved and deleted, and others are searched for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use geofold::base::random::Random;
use geofold::geoshard::cities::CITIES;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::{Value, json};

use super::{Scenario, shard_of};
use crate::wait::TIMEOUT;

/// Documents that never move of themselves and are never deleted: what the reader asks for.
pub(super) const STEADY: u64 = 900;
/// Documents that are written, moved and deleted all the time.
const BUSY: u64 = 400;
/// Writes per second.
const RATE: u64 = 100;

impl Scenario {
    /// Starts a writer that runs until stopped; the steady documents are in the topic when this returns.
    pub fn writer(&self) -> Writer {
        let producer: BaseProducer =
            self.client().set("partitioner", self.partitioner).set("linger.ms", "5").create().unwrap();
        let mut writing = Writing {
            producer,
            topic: self.name.clone(),
            random: Random::new(7),
            truth: BTreeMap::new(),
            deleted_last: None,
            n: 0,
        };
        for number in 0..STEADY {
            let location = writing.place();
            writing.index(&format!("s{number}"), location);
        }
        writing.producer.flush(TIMEOUT).unwrap();
        let steady = writing.truth.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            // Does not make up for lost time: on a busy machine the worker would fall behind without end.
            while !told.load(SeqCst) {
                (0..RATE / 100).for_each(|_| writing.event());
                writing.producer.poll(Duration::ZERO);
                std::thread::sleep(Duration::from_millis(10));
            }
            writing.producer.flush(TIMEOUT).unwrap();
            writing.truth
        });
        Writer { stop, thread, steady }
    }

    /// A reader that requests every steady document repeatedly, in the geoshards of both maps.
    pub fn reader(&self, writer: &Writer) -> Reader {
        let mut groups: BTreeMap<BTreeSet<String>, Vec<String>> = BTreeMap::new();
        for (id, document) in &writer.steady {
            let both = [&self.old, &self.new].map(|map| format!("{}-{}", self.name, shard_of(map, document)));
            groups.entry(both.into_iter().collect()).or_default().push(id.clone());
        }
        // Those that move first, and more often.
        let (moving, staying): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(indices, _)| indices.len() == 2);
        assert!(moving.len() > 10, "the maps are too much alike");
        let stop = Arc::new(AtomicBool::new(false));
        let (told, http, url) = (stop.clone(), self.http.clone(), self.elasticsearch.clone());
        let thread = std::thread::spawn(move || {
            let (mut polls, mut missed) = (0_u64, Vec::new());
            let mut turn = 0;
            while !told.load(SeqCst) {
                let asked: Vec<_> = moving.iter().chain(staying.get(turn % staying.len())).collect();
                let searches: String =
                    asked.iter().map(|(indices, ids)| search_by_ids(indices, ids)).collect();
                let request = http.post(format!("{url}/_msearch"));
                let request = request.header("content-type", "application/x-ndjson").body(searches);
                let answer: Value = request.send().unwrap().json().unwrap();
                let responses = answer["responses"].as_array().unwrap();
                assert_eq!(responses.len(), asked.len());
                for (response, (_, ids)) in responses.iter().zip(asked) {
                    let hits = response["hits"]["hits"].as_array().unwrap();
                    let found: BTreeSet<&str> = hits.iter().map(|hit| hit["_id"].as_str().unwrap()).collect();
                    missed.extend(ids.iter().filter(|id| !found.contains(id.as_str())).cloned());
                    polls += 1;
                }
                turn += 1;
                std::thread::sleep(Duration::from_millis(200));
            }
            (polls, missed)
        });
        Reader { stop, thread }
    }
}

/// One search of a request with several: its line of indices, and its line of what is asked.
fn search_by_ids(indices: &BTreeSet<String>, ids: &[String]) -> String {
    let header = json!({"index": indices, "ignore_unavailable": true});
    let query = json!({"query": {"ids": {"values": ids}}, "size": 2 * ids.len(), "_source": false});
    format!("{header}\n{query}\n")
}

struct Writing {
    producer: BaseProducer,
    topic: String,
    random: Random,
    truth: BTreeMap<String, Value>,
    deleted_last: Option<String>,
    n: u64,
}

impl Writing {
    fn place(&mut self) -> Value {
        let city = &CITIES[usize::try_from(self.random.below(CITIES.len() as u64)).unwrap()];
        let mut step = || self.random.below(4000) as f64 / 1000.0 - 2.0;
        json!({"lat": city.1 + step(), "lon": (city.2 + step()).clamp(-180.0, 180.0)})
    }

    fn send(&mut self, id: &str, op: &str, value: Option<&Value>) {
        self.n += 1;
        let value = value.map(Value::to_string);
        let headers = OwnedHeaders::new().insert(Header { key: "geofold-op", value: Some(op) });
        let mut record: BaseRecord<'_, str, str> = BaseRecord::to(&self.topic).key(id).headers(headers);
        record.payload = value.as_deref();
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
    }

    fn index(&mut self, id: &str, location: Value) {
        let document = json!({"location": location, "n": self.n});
        self.send(id, "index", Some(&document));
        self.truth.insert(id.to_owned(), document);
    }

    /// As the command does that changes the map, if it looked before the delete; and of a document that never was.
    fn touch_what_is_gone(&mut self, deleted: String) {
        self.send(&format!("{deleted}-never"), "touch", None);
        if let Some(earlier) = self.deleted_last.replace(deleted)
            && !self.truth.contains_key(&earlier)
        {
            self.send(&earlier, "touch", None);
        }
    }

    /// A busy document is written, moved, patched or deleted; or a steady one is patched.
    fn event(&mut self) {
        let kind = self.random.below(10);
        let id = match kind {
            9 => format!("s{}", self.random.below(STEADY)),
            _ => format!("b{}", self.random.below(BUSY)),
        };
        let location = self.place();
        let n = self.n;
        match (kind, self.truth.get_mut(&id)) {
            (0..=4, _) | (_, None) => self.index(&id, location),
            (5, Some(document)) => {
                document["location"] = location.clone();
                self.send(&id, "patch", Some(&json!({"location": location})));
            }
            (6, Some(_)) => {
                self.truth.remove(&id);
                self.send(&id, "delete", None);
                self.touch_what_is_gone(id);
            }
            (_, Some(document)) => {
                document["n"] = json!(n);
                self.send(&id, "patch", Some(&json!({"n": n})));
            }
        }
    }
}

pub struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<BTreeMap<String, Value>>,
    steady: BTreeMap<String, Value>,
}

impl Writer {
    /// Gives what the index must hold.
    pub fn stop(self) -> BTreeMap<String, Value> {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap()
    }
}

pub struct Reader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Vec<String>)>,
}

impl Reader {
    /// How often it asked, and what it missed.
    pub fn stop(self) -> (u64, Vec<String>) {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap()
    }
}
