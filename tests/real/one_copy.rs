//! Promise 1, one copy: a document is in the geoshard that its location belongs to, and nowhere else; on its way it may be
//! seen twice, never not at all.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    CITIES, Event, Faults, Proxy, Random, TIMEOUT, Truth, World, WorldOptions, ask_for, random_events, seed,
};

#[test]
fn after_many_moves_every_placement_names_the_one_geoshard_with_the_copy_and_no_leftovers() {
    let seed = seed("after_many_moves_every_placement_names");
    let small_batches = ("batch", "max_documents = 50".to_owned());
    let world = World::new(WorldOptions { config: vec![small_batches], ..WorldOptions::default() });
    let mut truth = Truth::new();
    let events = random_events(&mut Random::new(seed), 3_000, 300);
    events.iter().for_each(|event| truth.apply(event));

    let worker = world.worker();
    worker.wait_until_ready();
    // One after the other, or a fast reader folds all moves of a document into one write.
    for some in events.chunks(600) {
        world.send(some);
        world.wait_until_committed(TIMEOUT);
    }
    world.assert_holds(&truth);
    assert_eq!(world.wrong_placements(&truth), [""; 0]);
    // Leftovers are cleared in a later bulk; with nothing else to do, that is soon. A delete that was sent twice leaves them.
    let mut named = Vec::new();
    let cleared = ask_for(Duration::from_secs(20), || {
        named = world.with_leftovers();
        named.is_empty().then_some(())
    });
    let retries = worker.metric("geofold_elasticsearch_retries_total", "");
    assert!(cleared.is_some() || retries > 0.0, "these name leftovers: {named:?}");
    let moves = worker.metric("geofold_moves_total", "");
    let deleted = world.placements().values().filter(|placement| placement["deleted"] == true).count();
    assert!(moves > 30.0 && deleted > 5, "{moves} moves, {deleted} deletes: too few to have tested anything");
    worker.stop();
}

#[test]
fn a_reader_never_finds_a_moving_document_in_neither_of_its_two_places() {
    /// Looks that are enough to have tested something.
    const LOOKS: usize = 200;
    /// Every write to Elasticsearch takes at least this long, so that a gap could not be missed.
    const SLOW: Duration = Duration::from_millis(200);
    /// From one look to the next: far shorter than a gap would be.
    const PAUSE: Duration = Duration::from_millis(10);
    let linger = ("batch", "linger = \"10ms\"".to_owned());
    // The old copy goes as soon as may be: what searches find is another test's (`visibility.rs`).
    let realtime = ("moves", "visibility = \"realtime\"".to_owned());
    let world = World::new(WorldOptions { partitions: 1, config: vec![linger, realtime] });
    let proxy = Proxy::start(&world.stack.elasticsearch, 1);
    proxy.set(Faults { bulk_delay: SLOW, ..Faults::default() });
    let mut truth = Truth::new();
    let version = |n: usize| {
        let (lat, lon) = CITIES[n % 2];
        let document = json!({"location": {"lat": lat, "lon": lon}, "n": n});
        Event::Index { id: "traveller".to_owned(), document }
    };
    let worker = world.worker_behind(&proxy);
    worker.wait_until_ready();
    world.produce(&[version(0).to_raw(), version(1).to_raw()]);
    truth.apply(&version(1));
    world.wait_until_committed(TIMEOUT);

    let places = CITIES[..2].iter().map(|(lat, lon)| {
        let shard = truth.shard_of(&json!({"location": {"lat": lat, "lon": lon}})).to_owned();
        json!({"_index": format!("{}-{shard}", world.name), "_id": "traveller"})
    });
    let both = json!({"docs": places.collect::<Vec<_>>()});
    let done = AtomicBool::new(false);
    let (looks, seen_twice) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
    let last = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(PAUSE);
                let began = Instant::now();
                let answer = world.stack.ask("POST", "/_mget?realtime=true", Some(both.clone()));
                // The two reads are not one snapshot. A move takes two writes, so only a look shorter than one counts.
                if began.elapsed() > SLOW / 2 {
                    continue;
                }
                let found =
                    answer["docs"].as_array().unwrap().iter().filter(|doc| doc["found"] == true).count();
                assert!(found > 0, "in neither place: {answer}");
                looks.fetch_add(1, Ordering::Relaxed);
                seen_twice.fetch_add(usize::from(found == 2), Ordering::Relaxed);
            }
        });
        let moves = worker.metric("geofold_moves_total", "");
        let (began, mut n, mut is_enough) = (Instant::now(), 1, false);
        // As long as it takes: a busy machine has fewer looks that count.
        while !reading.is_finished() {
            n += 1;
            world.produce(&[version(n).to_raw()]);
            world.wait_until_committed(TIMEOUT);
            let moved = worker.metric("geofold_moves_total", "") - moves;
            let seen = (looks.load(Ordering::Relaxed), seen_twice.load(Ordering::Relaxed));
            is_enough = moved > 15.0 && seen.0 > LOOKS && seen.1 > 0;
            if is_enough || began.elapsed() > TIMEOUT {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        reading.join().unwrap();
        assert!(
            is_enough,
            "{n} moves, {looks:?} looks, {seen_twice:?} of them twice: too few to have tested anything"
        );
        n
    });
    truth.apply(&version(last));
    world.assert_holds(&truth);
    worker.stop();
}
