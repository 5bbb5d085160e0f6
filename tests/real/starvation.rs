//! Promise 4, no starvation: a document that is written all the time is still written to Elasticsearch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{CITIES, Event, Faults, Proxy, World, WorldOptions, wait_for};

#[test]
fn a_document_written_all_the_time_is_never_older_in_elasticsearch_than_max_dirty_age() {
    const MAX_DIRTY_AGE: Duration = Duration::from_secs(1);
    /// Kafka, the poll thread, the write itself, and a machine that has other things to do.
    const SLACK: Duration = Duration::from_secs(14);
    /// How long it is looked at: a document that starves is as old as that.
    const WATCHED: Duration = Duration::from_secs(18);
    let world = World::new(WorldOptions {
        partitions: 1,
        config: vec![
            ("batch", "max_documents = 100".to_owned()),
            ("batch", format!("max_dirty_age = \"{MAX_DIRTY_AGE:?}\"")),
        ],
    });
    // Slow enough that there is always more to write than goes into a batch.
    let proxy = Proxy::start(&world.stack.elasticsearch, 1);
    proxy.set(Faults { bulk_delay: Duration::from_millis(100), ..Faults::default() });
    let (lat, lon) = CITIES[0];
    let began = Instant::now();
    let event = |id: String| {
        let document =
            json!({"location": {"lat": lat, "lon": lon}, "at": began.elapsed().as_millis() as u64});
        Event::Index { id, document }.to_raw()
    };
    world.produce(&[event("hot".to_owned())]);
    let worker = world.worker_behind(&proxy);
    world.wait_until_committed(Duration::from_secs(180));
    let index = world.copies()["hot"][0].index.clone();

    let over = AtomicBool::new(false);
    let oldest = std::thread::scope(|scope| {
        scope.spawn(|| {
            let feed = world.feed();
            let mut next = 0_u64;
            while !over.load(Ordering::Relaxed) {
                // 2,000 others in turn, 800 a second, and between them the hot one.
                let records = (0..10).map(|n| {
                    if n % 5 == 0 {
                        return event("hot".to_owned());
                    }
                    next += 1;
                    event(format!("other{}", next % 2_000))
                });
                feed.send(&records.collect::<Vec<_>>());
                std::thread::sleep(Duration::from_millis(8));
            }
        });
        let mut oldest = Duration::ZERO;
        let watch_from = began.elapsed();
        while began.elapsed() < watch_from + WATCHED {
            let copy = world.stack.ask("GET", &format!("/{index}/_doc/hot"), None);
            let at = Duration::from_millis(copy["_source"]["at"].as_u64().unwrap()).max(watch_from);
            oldest = oldest.max(began.elapsed().saturating_sub(at));
            std::thread::sleep(Duration::from_millis(50));
        }
        over.store(true, Ordering::Relaxed);
        oldest
    });
    let (total, folded) =
        (worker.metric("geofold_records_total", ""), worker.metric("geofold_records_done_total", "folded"));
    let waiting = worker.metric("geofold_dirty_ids", "");
    eprintln!("oldest {oldest:?}, {total} records, {folded} folded, {waiting} documents waiting at the end");
    assert!(oldest < MAX_DIRTY_AGE + SLACK, "the hot document was {oldest:?} old in elasticsearch");
    assert!(
        total > 3_000.0 && folded > 500.0,
        "{total} records, {folded} folded: too few to have tested anything"
    );
    proxy.set(Faults::default());
    wait_for("the end of the backlog", Duration::from_secs(180), || {
        world.offsets().iter().all(|(committed, end)| committed == end).then_some(())
    });
    worker.stop();
}
