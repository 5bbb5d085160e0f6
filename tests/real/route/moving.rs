//! Searches through the router while documents move between geoshards, and while the map is changed: a document that is there
//! throughout, and matches throughout, is in every answer that it belongs to, and once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use geofold::base::geo::GeoPoint;
use geofold::geoshard::GeoshardMap;
use s2::cellid::CellID;
use s2::latlng::LatLng;
use serde_json::{Value, json};

use super::judge;
use super::queries::Queries;
use super::router::{Target, routed};
use super::wanted_queries;
use crate::reference::{away, power};
use crate::support::world::Feed;
use crate::support::{
    CITIES, Event, Random, StopOnDrop, TIMEOUT, Truth, World, WorldOptions, seed, wait_at_most,
};
use crate::visibility::{DEADLINE, GRACE, change_map, map_of};

/// A test may take so long.
const LONGEST: Duration = Duration::from_secs(3_600);
/// Documents that stay where they are.
const RESIDENTS: usize = 400;
/// Documents at each border that go from side to side of it.
const WANDERERS: usize = 8;
/// How far from the border, in metres.
const WAY: f64 = 3_000.0;
/// Documents that go from city to city.
const TRAVELLERS: usize = 20;
/// Between two writes of documents that move.
const PAUSE: Duration = Duration::from_millis(20);
/// Such writes, at least, while searches go on.
const STEPS: usize = 800;
const SEARCHERS: u64 = 3;
/// More than there are documents.
const ALL: usize = 2_000;

/// What is written, and where.
struct Writer<'a> {
    world: &'a World,
    feed: Feed,
    truth: Truth,
    random: Random,
    borders: &'a [GeoPoint],
    steps: usize,
}

impl<'a> Writer<'a> {
    /// Everything is in the index when this returns.
    fn new(world: &'a World, seed: u64, borders: &'a [GeoPoint], residents: &[GeoPoint]) -> Self {
        let (feed, truth, random) = (world.feed(), Truth::new(), Random::new(seed));
        let mut writer = Self { world, feed, truth, random, borders, steps: 0 };
        let mut events: Vec<Event> =
            residents.iter().enumerate().map(|(n, &place)| document(format!("r{n}"), place, n)).collect();
        events.extend((0..writer.movers()).map(|_| writer.next_move()));
        writer.send(&events);
        writer.wait_until_committed();
        writer
    }

    fn movers(&self) -> usize {
        self.borders.len() * WANDERERS + TRAVELLERS
    }

    fn go_on(&mut self) {
        let next = self.next_move();
        self.send(&[next]);
        std::thread::sleep(PAUSE);
    }

    fn next_move(&mut self) -> Event {
        let (n, step) = (self.steps % self.movers(), self.steps);
        self.steps += 1;
        let wanderers = self.borders.len() * WANDERERS;
        if n < wanderers {
            let (border, distance) = (n / WANDERERS, WAY * self.random.share());
            let place = away(&mut self.random, self.borders[border], distance);
            return document(format!("w{border}-{}", n % WANDERERS), place, step);
        }
        let (lat, lon) = CITIES[usize::try_from(self.random.below(CITIES.len() as u64)).unwrap()];
        document(format!("t{}", n - wanderers), GeoPoint::new(lat, lon).unwrap(), step)
    }

    fn send(&mut self, events: &[Event]) {
        events.iter().for_each(|event| self.truth.apply(event));
        self.feed.send(&events.iter().map(Event::to_raw).collect::<Vec<_>>());
    }

    fn wait_until_committed(&self) {
        self.feed.flush();
        self.world.wait_until_committed(TIMEOUT);
    }
}

fn document(id: String, place: GeoPoint, n: usize) -> Event {
    let location = json!({"lat": place.lat(), "lon": place.lon()});
    Event::Index { document: json!({"uid": id, "location": location, "n": n, "parity": n % 2}), id }
}

/// Points on borders of the map, with as good as half of what is around on either side.
fn borders(map: &GeoshardMap, random: &mut Random) -> Vec<GeoPoint> {
    let starts = map.ranges().map(|(range, _)| range.start).skip(1);
    let points = starts.map(|start| {
        let point = LatLng::from(CellID(start));
        GeoPoint::new(point.lat.deg(), point.lng.deg()).unwrap()
    });
    let is_between = |point: &GeoPoint| {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for _ in 0..40 {
            let distance = WAY * random.share();
            *counts.entry(map.locate(away(random, *point, distance)).to_string()).or_default() += 1;
        }
        counts.values().filter(|&&count| count >= 8).count() >= 2
    };
    points.filter(is_between).take(4).collect()
}

/// Searches one after the other, and what came of them.
struct Searches<'a> {
    target: Target,
    /// One index with the residents alone.
    whole: Target,
    borders: &'a [GeoPoint],
    residents: &'a [GeoPoint],
    began: Instant,
    is_over: AtomicBool,
    count: AtomicUsize,
    late: AtomicUsize,
    /// By status; an answer of another status than 200 is no answer.
    refused: Mutex<BTreeMap<u16, usize>>,
    faults: Mutex<Vec<String>>,
}

impl Searches<'_> {
    /// Until enough searches are over.
    fn search(&self, seed: u64) {
        let mut random = Random::new(seed);
        while !self.is_over.load(Ordering::Relaxed) {
            let seed = random.bits();
            let (body, moving) = self.query(seed);
            let expected = self.expected(&body, &moving);
            let asked = Instant::now();
            let answer = self.target.search(&body);
            let is_late = asked.elapsed() >= GRACE;
            if answer.status != 200 {
                *self.refused.lock().unwrap().entry(answer.status).or_default() += 1;
                if answer.status != 503 {
                    self.fault(&body, &format!("status {}: {}", answer.status, answer.body));
                }
                continue;
            }
            self.count.fetch_add(1, Ordering::Relaxed);
            if let Err(wrong) = doubles(&answer.body) {
                self.fault(&body, &wrong);
            }
            // Such a one may miss (docs/protocol.md, "What searches find").
            if is_late {
                self.late.fetch_add(1, Ordering::Relaxed);
            } else if let Err(wrong) = is_complete(&body, &answer.body, &expected) {
                self.fault(&body, &wrong);
            }
        }
    }

    fn fault(&self, body: &Value, wrong: &str) {
        let after = self.began.elapsed();
        let wrong: String = wrong.chars().take(2_000).collect();
        self.faults.lock().unwrap().push(format!("after {after:?}: {wrong}\nquery: {body}"));
    }

    /// A query, and the moving documents that match it wherever they are.
    fn query(&self, seed: u64) -> (Value, BTreeSet<String>) {
        let mut random = Random::new(seed);
        let mut queries = Queries::new(random.bits(), self.residents);
        let wanderers = |border: usize| (0..WANDERERS).map(move |n| format!("w{border}-{n}"));
        let (shape, moving) = match random.below(4) {
            // All around a border: it contains every document that moves there.
            0 => {
                let border = usize::try_from(random.below(self.borders.len() as u64)).unwrap();
                let off = 2_000.0 * random.share();
                let middle = away(&mut random, self.borders[border], off);
                let metres = off + WAY + 10.0 + power(&mut random, 0.0, 4.0);
                let middle = json!({"lat": middle.lat(), "lon": middle.lon()});
                let shape = json!({"geo_distance": {"distance": format!("{metres}m"), "location": middle}});
                (shape, wanderers(border).collect())
            }
            1 => {
                let travellers = (0..TRAVELLERS).map(|n| format!("t{n}"));
                let everywhere = (0..self.borders.len()).flat_map(wanderers).chain(travellers).collect();
                (json!({"match_all": {}}), everywhere)
            }
            _ => (queries.constraint(), BTreeSet::new()),
        };
        let sort = match random.below(3) {
            0 => json!([{"n": "asc"}]),
            1 => json!([{"uid": "desc"}]),
            _ => {
                let from = self.residents[usize::try_from(random.below(RESIDENTS as u64)).unwrap()];
                json!([{"_geo_distance": {"location": {"lat": from.lat(), "lon": from.lon()}}}])
            }
        };
        // A short list is complete up to its last hit.
        let size = if random.below(3) == 0 { 1 + usize::try_from(random.below(60)).unwrap() } else { ALL };
        let body =
            json!({"query": {"bool": {"filter": [shape]}}, "sort": sort, "size": size, "_source": ["uid"]});
        (body, moving)
    }

    /// The ids that an answer has to have, each with its sort value where that is always the same.
    fn expected(&self, body: &Value, moving: &BTreeSet<String>) -> BTreeMap<String, Option<Value>> {
        let mut body = body.clone();
        body["size"] = json!(ALL);
        let residents = self.whole.search(&body).body;
        let residents = judge::hits(&residents).unwrap();
        let resident = |hit: &&Value| (judge::id(hit).to_owned(), Some(hit["sort"].clone()));
        let mut expected: BTreeMap<String, Option<Value>> = residents.iter().map(resident).collect();
        let has_names = body["sort"][0].get("uid").is_some();
        expected.extend(moving.iter().map(|id| (id.clone(), has_names.then(|| json!([id])))));
        expected
    }

    fn are_enough(&self, wanted: usize) -> bool {
        let (count, passed) = (self.count.load(Ordering::Relaxed), self.began.elapsed());
        assert!(passed < LONGEST, "{count} searches in {passed:?}");
        count >= wanted || self.faults.lock().unwrap().len() >= 20
    }

    fn assert_none_wrong(self, moves: f64) {
        let (count, late) = (self.count.into_inner(), self.late.into_inner());
        let (refused, faults) = (self.refused.into_inner().unwrap(), self.faults.into_inner().unwrap());
        println!(
            "{count} searches in {} s, {late} late ones, {moves} moves, refused: {refused:?}, {} wrong",
            self.began.elapsed().as_secs(),
            faults.len()
        );
        let some = &faults[..faults.len().min(5)];
        assert!(faults.is_empty(), "{} of {count} searches:\n{}", faults.len(), some.join("\n\n"));
        assert!(refused.values().sum::<usize>() * 20 < count, "too many were refused: {refused:?}");
        assert!(late * 2 < count, "{late} of {count} searches were late: too many to have tested anything");
    }
}

fn doubles(answer: &Value) -> Result<(), String> {
    judge::envelope(answer)?;
    judge::no_doubles(&judge::hits(answer)?)
}

/// A list that is shorter than its limit has all of them; another one has all that come before its last hit.
fn is_complete(
    body: &Value,
    answer: &Value,
    expected: &BTreeMap<String, Option<Value>>,
) -> Result<(), String> {
    let hits = judge::hits(answer)?;
    let found: BTreeSet<&str> = hits.iter().map(|hit| judge::id(hit)).collect();
    let is_full = Some(hits.len() as u64) == body["size"].as_u64();
    let last = hits.last().filter(|_| is_full).map(|hit| &hit["sort"][0]);
    let is_descending = body["sort"][0]["uid"] == "desc";
    let is_before_last = |rank: &Option<Value>| match (last, rank) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(last), Some(rank)) => match (rank[0].as_f64().zip(last.as_f64()), is_descending) {
            (Some((rank, last)), _) => rank < last,
            (None, true) => rank[0].as_str() > last.as_str(),
            (None, false) => rank[0].as_str() < last.as_str(),
        },
    };
    let missing: Vec<&String> = expected
        .iter()
        .filter(|(id, rank)| is_before_last(rank) && !found.contains(id.as_str()))
        .map(|(id, _)| id)
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("{missing:?} of {} are missing among {} hits", expected.len(), hits.len())),
    }
}

/// The residents once more, in one index.
fn write_whole(world: &World, residents: &[GeoPoint]) -> Target {
    let index = format!("{}-whole", world.name);
    world.stack.ask("PUT", &format!("/{index}"), Some(json!({"mappings": mappings()})));
    let lines: String = residents
        .iter()
        .enumerate()
        .map(|(n, &place)| {
            let Event::Index { id, document } = document(format!("r{n}"), place, n) else { unreachable!() };
            format!("{}\n{document}\n", json!({"index": {"_index": index, "_id": id}}))
        })
        .collect();
    assert_eq!(world.stack.bulk(&lines)["errors"], false);
    world.stack.ask("POST", &format!("/{index}/_refresh"), None);
    Target::indices(world, "-whole")
}

/// A geoshard without a document has every field that queries sort by.
fn mappings() -> Value {
    json!({"properties": {
        "location": {"type": "geo_point"}, "uid": {"type": "keyword"},
        "n": {"type": "long"}, "parity": {"type": "long"},
    }})
}

/// Searches while `change` is at work, if anything, and documents move.
fn search_while_documents_move(
    seed: u64,
    config: Vec<(&'static str, String)>,
    wanted: usize,
    change: impl FnOnce(&World, &Searches<'_>, usize) -> Option<GeoshardMap> + Send,
) {
    let mut random = Random::new(seed);
    let map = map_of(1);
    let borders = borders(&map, &mut random);
    assert!(borders.len() >= 2, "{borders:?}");
    let residents: Vec<GeoPoint> = (0..RESIDENTS)
        .map(|n| match n % 4 {
            0 => {
                let distance = power(&mut random, 0.0, 4.5);
                away(&mut random, borders[n % borders.len()], distance)
            }
            _ => {
                let (lat, lon) = CITIES[n % CITIES.len()];
                let distance = power(&mut random, 1.0, 6.0);
                away(&mut random, GeoPoint::new(lat, lon).unwrap(), distance)
            }
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.json");
    std::fs::write(&template, json!({"mappings": mappings()}).to_string()).unwrap();
    let mut config = config;
    config.push(("geoshards", format!("index_template = {template:?}")));
    let world = World::new(WorldOptions { config, ..WorldOptions::default() });
    let [first, second] = [world.worker(), world.worker()];
    first.wait_until_ready();
    second.wait_until_ready();
    let mut writer = Writer::new(&world, random.bits(), &borders, &residents);
    let whole = write_whole(&world, &residents);
    world.stack.ask("POST", &format!("/{}-s*/_refresh", world.name), None);
    let (_router, target) = routed(&world);
    let searches = Searches {
        target,
        whole,
        borders: &borders,
        residents: &residents,
        began: Instant::now(),
        is_over: AtomicBool::new(false),
        count: AtomicUsize::new(0),
        late: AtomicUsize::new(0),
        refused: Mutex::default(),
        faults: Mutex::default(),
    };
    let all = residents.len() + writer.movers();
    wait_at_most("all documents", TIMEOUT, || {
        let answer = searches.target.search(&json!({"size": ALL, "_source": false}));
        (answer.body["hits"]["hits"].as_array()?.len() == all).then_some(())
    });
    let map = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&searches.is_over);
        for n in 0..SEARCHERS {
            let (searches, seed) = (&searches, seed ^ (n + 1) << 32);
            scope.spawn(move || searches.search(seed));
        }
        let changing = scope.spawn(|| change(&world, &searches, wanted));
        while !changing.is_finished() || !searches.are_enough(wanted) || writer.steps < STEPS {
            writer.go_on();
        }
        writer.wait_until_committed();
        changing.join().unwrap()
    });
    let moves: f64 = [&first, &second].iter().map(|worker| worker.metric("geofold_moves_total", "")).sum();
    if let Some(map) = map {
        writer.truth.use_map(map);
    }
    world.assert_holds(&writer.truth);
    searches.assert_none_wrong(moves);
    assert!(moves > 50.0, "{moves} moves: too few to have tested anything");
    first.stop();
    second.stop();
}

#[test]
fn no_search_misses_or_doubles_a_document_while_it_moves() {
    let seed = seed("no_search_misses_or_doubles_a_document_while_it_moves");
    search_while_documents_move(seed, Vec::new(), wanted_queries(1_500), |_, _, _| None);
}

#[test]
fn no_search_misses_or_doubles_a_document_while_the_map_changes() {
    let seed = seed("no_search_misses_or_doubles_a_document_while_the_map_changes");
    let config = vec![
        ("batch", format!("timeout = \"{}s\"", DEADLINE.as_secs())),
        ("elasticsearch", "request_timeout = \"4500ms\"".to_owned()),
        ("shutdown", "revoke_timeout = \"3s\"".to_owned()),
        ("commit", "interval = \"300ms\"".to_owned()),
        ("route", "timeout = \"4s\"".to_owned()),
    ];
    search_while_documents_move(seed, config, wanted_queries(1_500), |world, searches, wanted| {
        let mut version = 1;
        while version < 3 || !searches.are_enough(wanted) {
            version += 1;
            change_map(world, &map_of(version));
        }
        println!("the map was changed {} times", version - 1);
        Some(map_of(version))
    });
}
