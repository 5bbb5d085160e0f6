//! Promise 1, as searches see it: a document that is there all the time is found by every search over the geoshards, also while it moves,
//! at Elasticsearch's default refresh interval, and whatever becomes of its workers.
//!
//! `GEOFOLD_SEARCHES=50000` looks for longer; `GEOFOLD_MOVES__VISIBILITY=realtime` shows that it would notice.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{CITIES, Event, Random, Truth, World, WorldOptions, seed, wait_for};

const PATIENCE: Duration = Duration::from_secs(300);
/// Documents that go from city to city, and how long each stays.
const TRAVELLERS: usize = 20;
const STAY: Duration = Duration::from_millis(1_500);
/// Searches at the same time.
const SEARCHERS: usize = 2;
/// A search that takes longer than `moves.search_grace` may miss.
const GRACE: Duration = Duration::from_secs(1);
/// A worker sleeps for so long: its group gives it up before, and it does not know when it wakes.
const FROZEN: Duration = Duration::from_secs(10);

fn wanted_searches() -> usize {
    std::env::var("GEOFOLD_SEARCHES").map_or(4_000, |text| text.parse().unwrap())
}

#[test]
fn no_search_misses_a_traveller_while_workers_are_killed_and_frozen() {
    let seed = seed("no_search_misses_a_traveller");
    let session = ("kafka", "session_timeout = \"6s\"".to_owned());
    let heartbeat = ("kafka", "heartbeat_interval = \"500ms\"".to_owned());
    let revoke = ("shutdown", "revoke = \"3s\"".to_owned());
    let config = vec![session, heartbeat, revoke];
    let world = World::new(WorldOptions { config, ..WorldOptions::default() });
    let mut truth = Truth::new();
    let trip = |n: usize, random: &mut Random| {
        let (lat, lon) = CITIES[random.below(CITIES.len() as u64) as usize];
        let document = json!({"location": {"lat": lat, "lon": lon}, "n": n});
        Event::Index { id: format!("t{}", n % TRAVELLERS), document }
    };
    let mut random = Random::new(seed);
    let (mut first, second) = (Some(world.worker()), world.worker());
    second.wait_until_ready();
    let arrivals: Vec<Event> = (0..TRAVELLERS).map(|n| trip(n, &mut random)).collect();
    world.send(&arrivals);
    arrivals.iter().for_each(|event| truth.apply(event));
    world.wait_until_committed(PATIENCE);
    let shards: BTreeSet<String> = CITIES
        .iter()
        .map(|(lat, lon)| truth.shard_of(&json!({"location": {"lat": lat, "lon": lon}})).to_owned())
        .collect();
    let names: Vec<String> = shards.iter().map(|shard| format!("{}-{shard}", world.name)).collect();
    let path = format!("/{}/_search", names.join(","));
    let is_found = |id: &str| {
        let body = json!({"query": {"ids": {"values": [id]}}, "_source": false, "size": 5});
        let answer = world.stack.ask("POST", &path, Some(body));
        !answer["hits"]["hits"].as_array().unwrap().is_empty()
    };
    for n in 0..TRAVELLERS {
        wait_for("a traveller to be found", PATIENCE, || is_found(&format!("t{n}")).then_some(()));
    }

    let (done, searches, late) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let missed = Mutex::new(Vec::new());
    let began = Instant::now();
    let search = |mut random: Random| {
        while !done.load(Ordering::Relaxed) {
            let id = format!("t{}", random.below(TRAVELLERS as u64));
            let asked = Instant::now();
            let found = is_found(&id);
            if asked.elapsed() >= GRACE {
                late.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            searches.fetch_add(1, Ordering::Relaxed);
            if !found {
                missed.lock().unwrap().push(format!("{id} after {:?}", began.elapsed()));
            }
        }
    };
    let moves = std::thread::scope(|scope| {
        for n in 0..SEARCHERS {
            let random = Random::new(seed ^ n as u64);
            scope.spawn(move || search(random));
        }
        let feed = world.feed();
        let mut third = None;
        let (mut is_frozen, mut is_thawed) = (false, false);
        let mut n = TRAVELLERS;
        // What follows the thaw is looked at as well.
        let end = Duration::from_secs(30);
        while !is_thawed || searches.load(Ordering::Relaxed) < wanted_searches() || began.elapsed() < end {
            let passed = began.elapsed();
            assert!(passed < 4 * PATIENCE, "{searches:?} searches in {passed:?}");
            let event = trip(n, &mut random);
            truth.apply(&event);
            // What else is written keeps the server busy.
            let others = (0..10).map(|other| {
                let (lat, lon) = CITIES[other];
                Event::Index {
                    id: format!("o{other}-{}", n % 50),
                    document: json!({"location": {"lat": lat, "lon": lon}, "n": n}),
                }
            });
            let events: Vec<Event> = others.chain([event]).collect();
            events[..10].iter().for_each(|event| truth.apply(event));
            feed.send(&events.iter().map(Event::to_raw).collect::<Vec<_>>());
            n += 1;
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
            std::thread::sleep(STAY / TRAVELLERS as u32);
        }
        feed.flush();
        world.wait_until_committed(PATIENCE);
        done.store(true, Ordering::Relaxed);
        let workers = [Some(second), third];
        let moves: f64 =
            workers.iter().flatten().map(|worker| worker.metric("geofold_moves_total", "")).sum();
        world.assert_holds(&truth);
        workers.into_iter().flatten().for_each(crate::support::Worker::stop);
        moves
    });
    let missed = missed.into_inner().unwrap();
    println!("{searches:?} searches, {late:?} late ones, {moves} moves, {} missed", missed.len());
    assert!(
        missed.is_empty(),
        "{} of {searches:?} searches: {:?}",
        missed.len(),
        &missed[..missed.len().min(20)]
    );
    assert!(moves > 100.0, "{moves} moves: too few to have tested anything");
}
