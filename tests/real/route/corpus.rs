//! The same documents twice: in geoshards, kept by a real worker through Kafka, and in one index, written by the test.

use std::collections::BTreeSet;
use std::time::Duration;

use geofold::base::geo::GeoPoint;
use geofold::base::ids::ShardId;
use geofold::geoshard::GeoshardMap;
use geofold::geoshard::cell::leaf;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::router::Target;
use crate::cover::{map_through, places};
use crate::reference::below;
use crate::support::{Event, Random, TIMEOUT, World, WorldOptions, wait_at_most};

pub const TAGS: [&str; 12] = [
    "art", "books", "chess", "climbing", "cooking", "dogs", "films", "hiking", "jazz", "running", "tea",
    "travel",
];
pub const WORDS: [&str; 16] = [
    "quiet", "river", "morning", "coffee", "mountain", "garden", "music", "winter", "letter", "bridge",
    "ocean", "lantern", "market", "story", "train", "window",
];
/// In another order by bytes than by what a reader expects.
pub const NICKS: [&str; 8] = ["ana", "Ana", "änne", "zoë", "Zed", "łukasz", "東京", "🦊fox"];

/// How the globe is cut.
#[derive(Debug, Clone, Copy)]
pub enum Cut {
    /// Twelve geoshards of many ranges each, all over the globe, cut at the documents.
    Scattered,
    /// Twenty geoshards of one range each, with as many documents in each.
    Compact,
}

/// See the file's first line.
pub struct Corpus {
    pub world: World,
    pub places: Vec<GeoPoint>,
    pub whole: Target,
    pub geoshards: Target,
    /// Its files are named by the configuration.
    _folder: TempDir,
}

impl Corpus {
    /// Documents are written elsewhere first, and move; some are deleted.
    pub fn new(random: &mut Random, cut: Cut) -> Self {
        Self::on(random, cut, World::new)
    }

    /// The same while no other test runs.
    pub fn alone(random: &mut Random, cut: Cut) -> Self {
        Self::on(random, cut, World::alone)
    }

    fn on(random: &mut Random, cut: Cut, world: impl FnOnce(WorldOptions) -> World) -> Self {
        let places = places(random);
        let map = match cut {
            Cut::Scattered => map_through(random, &places),
            Cut::Compact => compact_map(&places, 20),
        };
        let folder = tempfile::tempdir().unwrap();
        let [file, template] = ["map.json", "template.json"].map(|name| folder.path().join(name));
        std::fs::write(&file, map.to_json()).unwrap();
        std::fs::write(&template, json!({"mappings": mappings()}).to_string()).unwrap();
        let world = world(WorldOptions {
            config: vec![
                ("geoshards", format!("map = {file:?}")),
                ("geoshards", format!("index_template = {template:?}")),
                // A search may take long on a busy machine.
                ("route", "timeout = \"60s\"".to_owned()),
            ],
            ..WorldOptions::default()
        });
        let documents: Vec<Value> =
            places.iter().enumerate().map(|(n, &place)| document(random, n, place, &places)).collect();
        move_through_a_worker(random, &world, &documents, &places);
        write_whole(&world, &documents);
        let corpus = Self {
            places,
            whole: Target::indices(&world, "-whole"),
            geoshards: Target::indices(&world, "-s*"),
            world,
            _folder: folder,
        };
        let all = json!({"query": {"match_all": {}}});
        for target in [&corpus.whole, &corpus.geoshards] {
            assert_eq!(target.count(&all).body["count"], documents.len(), "documents in {}", target.index());
        }
        corpus
    }
}

fn mappings() -> Value {
    json!({"dynamic": false, "properties": {
        "location": {"type": "geo_point"},
        "work": {"type": "geo_point"},
        "uid": {"type": "keyword"},
        "name": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "bio": {"type": "text"},
        "tags": {"type": "keyword"},
        "nick": {"type": "keyword"},
        "age": {"type": "integer"},
        "rating": {"type": "double"},
        "marks": {"type": "integer"},
        "joined": {"type": "date"},
        "active": {"type": "boolean"},
        "profile": {"properties": {"height": {"type": "short"}, "langs": {"type": "keyword"}}},
    }})
}

fn pick<'a>(random: &mut Random, from: &[&'a str]) -> &'a str {
    from[below(random, from.len())]
}

fn document(random: &mut Random, n: usize, place: GeoPoint, places: &[GeoPoint]) -> Value {
    let work = places[below(random, places.len())];
    let words = 3 + below(random, 10);
    let bio: Vec<&str> = (0..words).map(|_| pick(random, &WORDS)).collect();
    let tags: BTreeSet<&str> = (0..random.below(5)).map(|_| pick(random, &TAGS)).collect();
    let marks: Vec<u64> = (0..random.below(4)).map(|_| random.below(6)).collect();
    let mut document = json!({
        "uid": format!("u{n:05}"),
        "name": format!("{} {}", pick(random, &WORDS), pick(random, &NICKS)),
        "bio": bio.join(" "),
        "tags": tags,
        "marks": marks,
        // Few different ones, so that there are ties.
        "age": 18 + random.below(30),
        "joined": format!("2026-{:02}-{:02}", 1 + random.below(12), 1 + random.below(28)),
        "active": random.below(3) > 0,
        "location": {"lat": place.lat(), "lon": place.lon()},
        "work": {"lat": work.lat(), "lon": work.lon()},
        "profile": {"height": 150 + random.below(50), "langs": [pick(random, &["de", "en", "fr", "ja"])]},
    });
    if random.below(4) > 0 {
        document["nick"] = json!(pick(random, &NICKS));
    }
    if random.below(5) > 0 {
        document["rating"] = json!(random.share() * 5.0);
    }
    document
}

fn id(n: usize) -> String {
    format!("d{n}")
}

fn move_through_a_worker(random: &mut Random, world: &World, documents: &[Value], places: &[GeoPoint]) {
    let elsewhere: Vec<Event> = documents
        .iter()
        .enumerate()
        .map(|(n, document)| {
            let place = places[below(random, places.len())];
            let mut document = document.clone();
            document["location"] = json!({"lat": place.lat(), "lon": place.lon()});
            document["bio"] = json!("an earlier version");
            Event::Index { id: id(n), document }
        })
        .collect();
    let deleted = (0..200).map(|n| Event::Index { id: format!("x{n}"), document: documents[n].clone() });
    world.send(&elsewhere.into_iter().chain(deleted).collect::<Vec<_>>());
    let worker = world.worker();
    worker.wait_until_ready();
    world.wait_until_committed(TIMEOUT);
    let here = |(n, document): (usize, &Value)| Event::Index { id: id(n), document: document.clone() };
    let gone = (0..200).map(|n| Event::Delete { id: format!("x{n}") });
    world.send(&documents.iter().enumerate().map(here).chain(gone).collect::<Vec<_>>());
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    purge(world);
}

/// What was deleted or written again counts in the statistics of terms until it is merged away, which Elasticsearch does not do before
/// its next look at what replicas may still need, every 30 s.
fn purge(world: &World) {
    let all = |path: &str| world.stack.ask("POST", &format!("/{}-s*/{path}", world.name), None);
    wait_at_most("deleted documents to be purged", TIMEOUT, || {
        all("_flush?force=true");
        all("_forcemerge?max_num_segments=1");
        all("_refresh");
        let stats = world.stack.ask("GET", &format!("/{}-s*/_stats/docs", world.name), None);
        if stats["_all"]["total"]["docs"]["deleted"] == 0 {
            return Some(());
        }
        std::thread::sleep(Duration::from_secs(2));
        None
    });
}

/// The index that is not sharded. Its name begins with the world's, which deletes what is called so in the end.
fn write_whole(world: &World, documents: &[Value]) {
    let index = format!("{}-whole", world.name);
    let settings = json!({"number_of_shards": 1, "number_of_replicas": 0});
    let body = json!({"settings": settings, "mappings": mappings()});
    world.stack.ask("PUT", &format!("/{index}"), Some(body));
    for (first, part) in documents.chunks(1_000).enumerate() {
        let lines: String = part
            .iter()
            .enumerate()
            .map(|(n, document)| {
                let action = json!({"index": {"_index": index, "_id": id(1_000 * first + n)}});
                format!("{action}\n{document}\n")
            })
            .collect();
        let answer = world.stack.bulk(&lines);
        assert_eq!(answer["errors"], false, "{answer}");
    }
    world.stack.ask("POST", &format!("/{index}/_refresh"), None);
}

/// So many geoshards of one range each, with as many of the points in each.
pub fn compact_map(places: &[GeoPoint], geoshards: usize) -> GeoshardMap {
    let mut cells: Vec<u64> = places.iter().map(|&place| leaf(place)).collect();
    cells.sort_unstable();
    let cuts: BTreeSet<u64> = (1..geoshards).map(|n| cells[n * cells.len() / geoshards]).collect();
    let starts = std::iter::once(0).chain(cuts.into_iter().filter(|&cut| cut > 1));
    let ranges = starts.enumerate().map(|(n, start)| (start, ShardId::new(&format!("s{n:02}")).unwrap()));
    GeoshardMap::new(1, "as many documents in each", ranges.collect()).unwrap()
}
