//! Promise 1, as searches see it: a document that is there all the time is found by every search over the geoshards, also while it moves,
//! at Elasticsearch's default refresh interval, while workers fail, and while the map is changed.
//!
//! `GEOFOLD_SEARCHES=50000` looks for longer, without pauses; `GEOFOLD_MOVES__VISIBILITY=realtime` shows that it would notice: while one map is live.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use geofold::base::ids::ShardId;
use geofold::geoshard::GeoshardMap;
use serde_json::{Value, json};

use crate::support::world::Feed;
use crate::support::{
    CITIES, Event, Random, TIMEOUT, Truth, Worker, World, WorldOptions, seed, text, wait_at_most,
};

/// A test may take so long.
const LONGEST: Duration = Duration::from_secs(1_200);
/// Documents that go from city to city, and how long each stays.
const TRAVELLERS: usize = 20;
const STAY: Duration = Duration::from_millis(1_500);
/// Documents that are written once, where the map is changed.
const RESIDENTS: usize = 300;
/// Searches at the same time.
const SEARCHERS: usize = 2;
/// A search that takes longer than `moves.search_grace` may miss.
pub const GRACE: Duration = Duration::from_secs(1);
/// A worker sleeps for so long: its group gives it up before, and it does not know when it wakes.
const FROZEN: Duration = Duration::from_secs(10);
/// `batch.timeout` where the map is changed. A reader may keep a cover for as long (docs/cover.md), and so do the searchers.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// What is written all the time, and what the index has to hold then.
struct Writer<'a> {
    world: &'a World,
    feed: Feed,
    truth: Truth,
    random: Random,
    trips: usize,
}

impl<'a> Writer<'a> {
    /// All travellers and so many residents are in the index when this returns.
    fn new(world: &'a World, seed: u64, residents: usize) -> Self {
        let (feed, truth, random) = (world.feed(), Truth::new(), Random::new(seed));
        let mut writer = Self { world, feed, truth, random, trips: 0 };
        let residents = (0..residents).map(|n| document(format!("r{n}"), n % CITIES.len(), n));
        let mut events: Vec<Event> = residents.collect();
        events.extend((0..TRAVELLERS).map(|_| writer.trip()));
        writer.send(&events);
        writer.wait_until_committed();
        writer
    }

    /// The next traveller goes somewhere; what else is written keeps the server busy.
    fn go_on(&mut self) {
        let n = self.trips;
        let others = (0..10).map(|city| document(format!("o{city}-{}", n % 50), city, n));
        let events: Vec<Event> = others.chain([self.trip()]).collect();
        self.send(&events);
        std::thread::sleep(STAY / TRAVELLERS as u32);
    }

    fn trip(&mut self) -> Event {
        let n = self.trips;
        self.trips += 1;
        document(format!("t{}", n % TRAVELLERS), self.random.below(CITIES.len() as u64) as usize, n)
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

fn document(id: String, city: usize, n: usize) -> Event {
    let (lat, lon) = CITIES[city];
    Event::Index { id, document: json!({"location": {"lat": lat, "lon": lon}, "n": n}) }
}

/// Where a reader looks.
#[derive(Debug, Clone)]
struct Cover {
    indices: String,
    /// The versions of the maps in force.
    maps: Value,
}

/// All geoshards that are in force, as a query service asks for them.
fn cover_of_the_globe(worker: &Worker) -> Cover {
    let answer = wait_at_most("a worker that knows which maps are in force", TIMEOUT, || {
        let answer = worker.get("/shards/cover?top=90&left=-180&bottom=-90&right=180");
        answer.filter(|(status, _)| *status == 200)
    });
    let answer: Value = serde_json::from_str(&answer.1).unwrap();
    let indices = answer["indices"].as_array().unwrap().iter().map(|index| index.as_str().unwrap());
    Cover { indices: indices.collect::<Vec<_>>().join(","), maps: answer["map_versions"].clone() }
}

/// Searches for one document after the other, and what came of them.
struct Searches<'a> {
    world: &'a World,
    residents: usize,
    /// How many are enough.
    wanted: usize,
    /// How long a searcher waits before its next search.
    pause: Duration,
    began: Instant,
    is_over: AtomicBool,
    count: AtomicUsize,
    late: AtomicUsize,
    missed: Mutex<Vec<String>>,
}

/// Ends the searches when it goes, also in a panic.
struct Searching<'a>(&'a AtomicBool);

impl Drop for Searching<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a> Searches<'a> {
    /// Each document is found once before they begin.
    fn new(world: &'a World, residents: usize, cover: &Cover) -> Self {
        // Without a pause they take all that Elasticsearch can do, which in the gate others need.
        let (wanted, pause) = match std::env::var("GEOFOLD_SEARCHES") {
            Ok(text) => (text.parse().unwrap(), Duration::ZERO),
            Err(_) => (1_500, Duration::from_millis(25)),
        };
        let searches = Self {
            world,
            residents,
            wanted,
            pause,
            began: Instant::now(),
            is_over: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
            missed: Mutex::new(Vec::new()),
        };
        let travellers = (0..TRAVELLERS).map(|n| format!("t{n}"));
        for id in travellers.chain((0..residents).map(|n| format!("r{n}"))) {
            wait_at_most(&id, TIMEOUT, || searches.finds(&id, cover).then_some(()));
        }
        Self { began: Instant::now(), ..searches }
    }

    /// A cover may be older than the last retirement. So its reader leaves out what does not exist any more (docs/cover.md):
    /// an index is deleted when it is empty and no map in force needs it.
    fn finds(&self, id: &str, cover: &Cover) -> bool {
        let path = format!("/{}/_search?ignore_unavailable=true", cover.indices);
        let body = json!({"query": {"ids": {"values": [id]}}, "_source": false, "size": 5});
        let answer = self.world.stack.ask("POST", &path, Some(body));
        !answer["hits"]["hits"].as_array().unwrap().is_empty()
    }

    /// They go on until what this gives is dropped. `cover` is asked for anew when an answer is as old as it may be.
    fn begin<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        cover: &'scope (impl Fn() -> Cover + Sync),
        seed: u64,
    ) -> Searching<'scope> {
        for n in 0..SEARCHERS {
            scope.spawn(move || self.search(cover, Random::new(seed ^ n as u64)));
        }
        Searching(&self.is_over)
    }

    fn search(&self, cover: impl Fn() -> Cover, mut random: Random) {
        while !self.is_over() {
            // From here on it gets older.
            let (known, since) = (cover(), Instant::now());
            while since.elapsed() < DEADLINE && !self.is_over() {
                self.search_once(&self.somebody(&mut random), &known);
                std::thread::sleep(self.pause);
            }
        }
    }

    fn search_once(&self, id: &str, cover: &Cover) {
        let asked = Instant::now();
        let is_found = self.finds(id, cover);
        if asked.elapsed() >= GRACE {
            self.late.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        if !is_found {
            let missed = format!("{id} by maps {} after {:?}", cover.maps, self.began.elapsed());
            self.missed.lock().unwrap().push(missed);
        }
    }

    /// Travellers as often as residents, if there are any.
    fn somebody(&self, random: &mut Random) -> String {
        if self.residents > 0 && random.below(2) == 0 {
            format!("r{}", random.below(self.residents as u64))
        } else {
            format!("t{}", random.below(TRAVELLERS as u64))
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn are_enough(&self) -> bool {
        let (count, passed) = (self.count.load(Ordering::Relaxed), self.began.elapsed());
        assert!(passed < LONGEST, "{count} searches in {passed:?}");
        count >= self.wanted || self.is_over()
    }

    fn assert_none_missed(&self, moves: f64) {
        let (count, late, missed) = (&self.count, &self.late, self.missed.lock().unwrap());
        let passed = self.began.elapsed().as_secs();
        println!(
            "{count:?} searches in {passed} s, {late:?} late ones, {moves} moves, {} missed",
            missed.len()
        );
        let some = &missed[..missed.len().min(20)];
        assert!(missed.is_empty(), "{} of {count:?} searches: {some:?}", missed.len());
    }
}

fn moves(workers: &[&Worker]) -> f64 {
    workers.iter().map(|worker| worker.metric("geofold_moves_total", "")).sum()
}

#[test]
fn no_search_misses_a_traveller_while_workers_are_killed_and_frozen() {
    let seed = seed("no_search_misses_a_traveller");
    let session = ("kafka", "session_timeout = \"6s\"".to_owned());
    let heartbeat = ("kafka", "heartbeat_interval = \"500ms\"".to_owned());
    let revoke = ("shutdown", "revoke_timeout = \"3s\"".to_owned());
    let config = vec![session, heartbeat, revoke];
    let world = World::new(WorldOptions { config, ..WorldOptions::default() });
    let (mut first, second, mut third) = (Some(world.worker()), world.worker(), None);
    second.wait_until_ready();
    let mut writer = Writer::new(&world, seed, 0);
    // No worker is asked while the searches go on: it may be killed or frozen.
    let known = cover_of_the_globe(&second);
    let cover = || known.clone();
    let searches = Searches::new(&world, 0, &known);
    std::thread::scope(|scope| {
        let _searching = searches.begin(scope, &cover, seed);
        let (mut is_frozen, mut is_thawed) = (false, false);
        // What follows the thaw is looked at as well.
        let end = Duration::from_secs(30);
        while !is_thawed || !searches.are_enough() || searches.began.elapsed() < end {
            writer.go_on();
            let passed = searches.began.elapsed();
            if passed > Duration::from_secs(6)
                && let Some(worker) = first.take()
            {
                worker.kill();
                third = Some(world.worker());
            }
            if passed > Duration::from_secs(14) && !is_frozen {
                second.signal("STOP");
                is_frozen = true;
            }
            if passed > Duration::from_secs(14) + FROZEN && !is_thawed {
                second.signal("CONT");
                is_thawed = true;
            }
        }
        writer.wait_until_committed();
    });
    let third = third.unwrap();
    let moves = moves(&[&second, &third]);
    world.assert_holds(&writer.truth);
    searches.assert_none_missed(moves);
    assert!(moves > 100.0, "{moves} moves: too few to have tested anything");
    second.stop();
    third.stop();
}

/// Version 1 is the tests' map. By an even version each document is elsewhere: half of the geoshards have an index of their own,
/// the others change places, so that documents go where others come from. By an odd version all is as at first.
pub fn map_of(version: u64) -> GeoshardMap {
    let first = GeoshardMap::from_json(include_str!("support/map-12.json")).unwrap();
    let shards: Vec<ShardId> = first.ranges().map(|(_, shard)| shard.clone()).collect();
    let shard = |n: usize| match (version % 2, n % 2) {
        (1, _) => shards[n].clone(),
        (_, 0) => ShardId::new(&format!("s{}", 20 + n)).unwrap(),
        _ => shards[(n + 2) % shards.len()].clone(),
    };
    let ranges = first.ranges().enumerate().map(|(n, (range, _))| (range.start, shard(n)));
    GeoshardMap::new(version, "the same ranges", ranges.collect()).unwrap()
}

/// As in docs/operations.md.
pub fn change_map(world: &World, map: &GeoshardMap) {
    let changed = world.geofold(&["shards", "migrate", "--to", &written(world, map)]);
    assert!(text(&changed).contains("change completed"), "{}", text(&changed));
    retire(world, map);
}

/// The same, while the command is killed twice and a worker once, at random moments. Gives the worker that takes the place of that one.
fn change_map_despite_kills(world: &World, map: &GeoshardMap, worker: Worker, random: &mut Random) -> Worker {
    let file = written(world, map);
    let migrate = ["shards", "migrate", "--to", file.as_str()];
    let mut some_time = || Duration::from_millis(500 + random.below(20_000));
    world.geofold_killed(&migrate, some_time());
    worker.kill();
    let next = world.worker();
    world.geofold_killed(&migrate, some_time());
    let changed = world.geofold(&migrate);
    let is_done = ["change completed", "already in force"].iter().any(|end| text(&changed).contains(end));
    assert!(is_done, "{}", text(&changed));
    retire(world, map);
    next
}

fn written(world: &World, map: &GeoshardMap) -> String {
    let file = world.dir().join("next-map.json");
    std::fs::write(&file, map.to_json()).unwrap();
    file.to_str().unwrap().to_owned()
}

fn retire(world: &World, map: &GeoshardMap) {
    world.configure_map(map);
    let retired = world.geofold(&["shards", "migrate", "--retire"]);
    assert!(text(&retired).contains("6 indices deleted"), "{}", text(&retired));
}

/// Two workers, the first of which is asked for covers. `change` makes the map of a version the one in force; it is given the second
/// worker, and gives the worker that then takes part. Gives how often the map was changed, and the moves that living workers have made.
fn searched_while_the_map_is_changed(
    seed: u64,
    mut change: impl FnMut(&World, &GeoshardMap, Worker) -> Worker + Send,
) -> (u64, f64) {
    let deadline = ("batch", format!("timeout = \"{}s\"", DEADLINE.as_secs()));
    let timeout = ("elasticsearch", "request_timeout = \"4500ms\"".to_owned());
    let revoke = ("shutdown", "revoke_timeout = \"3s\"".to_owned());
    let interval = ("commit", "interval = \"300ms\"".to_owned());
    let session = ("kafka", "session_timeout = \"6s\"".to_owned());
    let heartbeat = ("kafka", "heartbeat_interval = \"500ms\"".to_owned());
    let config = vec![deadline, timeout, revoke, interval, session, heartbeat];
    let world = World::new(WorldOptions { config, ..WorldOptions::default() });
    let [first, mut second] = [world.worker(), world.worker()];
    first.wait_until_ready();
    second.wait_until_ready();
    let mut writer = Writer::new(&world, seed, RESIDENTS);
    let cover = || cover_of_the_globe(&first);
    let searches = Searches::new(&world, RESIDENTS, &cover());
    let (version, second) = std::thread::scope(|scope| {
        let _searching = searches.begin(scope, &cover, seed);
        let (world, searches) = (&world, &searches);
        // There and back at least: indices that were deleted are made again.
        let changing = scope.spawn(move || {
            let mut version = 1;
            while version < 3 || !searches.are_enough() {
                version += 1;
                second = change(world, &map_of(version), second);
            }
            (version, second)
        });
        while !changing.is_finished() {
            writer.go_on();
        }
        writer.wait_until_committed();
        changing.join().unwrap()
    });
    let (changes, moves) = (version - 1, moves(&[&first, &second]));
    println!("the map was changed {changes} times");
    writer.truth.use_map(map_of(version));
    world.assert_holds(&writer.truth);
    searches.assert_none_missed(moves);
    first.stop();
    second.stop();
    (changes, moves)
}

#[test]
fn no_search_misses_a_document_while_the_map_is_changed() {
    let seed = seed("no_search_misses_a_document");
    let (changes, moves) = searched_while_the_map_is_changed(seed, |world, map, second| {
        change_map(world, map);
        second
    });
    let fewest = changes as f64 * RESIDENTS as f64 + 100.0;
    assert!(moves > fewest, "{moves} moves: {changes} changes need more than {fewest}");
}

#[test]
fn no_search_misses_a_document_while_a_map_change_is_killed() {
    let seed = seed("no_search_misses_a_document_while_a_map_change_is_killed");
    let mut random = Random::new(seed);
    let (changes, moves) = searched_while_the_map_is_changed(seed, |world, map, second| {
        change_map_despite_kills(world, map, second, &mut random)
    });
    // About half of them are of the worker that was never killed.
    let fewest = changes as f64 * RESIDENTS as f64 / 4.0;
    assert!(moves > fewest, "{moves} moves: {changes} changes need more than {fewest}");
}
