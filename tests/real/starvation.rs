//! Promise 4, no starvation: a document that is written all the time is still written to Elasticsearch.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{CITIES, Event, Faults, Proxy, StopOnDrop, World, WorldOptions, wait_at_most};
use crate::wait::TIMEOUT;

#[test]
fn a_document_written_all_the_time_is_written_to_elasticsearch_all_the_time() {
    const MAX_DOCUMENTS: u32 = 100;
    /// A document that starves is not written once while there is more to write than goes into a batch, however long one waits.
    const WRITTEN: usize = 5;
    let world = World::new(WorldOptions {
        partitions: 1,
        config: vec![
            ("batch", format!("max_documents = {MAX_DOCUMENTS}")),
            ("batch", "max_dirty_age = \"1s\"".to_owned()),
        ],
    });
    // Slow enough that there is always more to write than goes into a batch.
    let proxy = Proxy::start(&world.stack.elasticsearch, 1);
    proxy.set(Faults { bulk_delay: Duration::from_millis(200), ..Faults::default() });
    let (lat, lon) = CITIES[0];
    let began = Instant::now();
    let event = |id: String| {
        let document =
            json!({"location": {"lat": lat, "lon": lon}, "at": began.elapsed().as_millis() as u64});
        Event::Index { id, document }.to_raw()
    };
    world.produce(&[event("hot".to_owned())]);
    let worker = world.worker_behind(&proxy);
    world.wait_until_committed(TIMEOUT);
    let index = world.copies()["hot"][0].index.clone();

    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let feed = world.feed();
            let mut next = 0_u64;
            while !over.load(Ordering::Relaxed) {
                // 500 others in turn, 800 a second, and between them the hot one.
                let records = (0..10).map(|n| {
                    if n % 5 == 0 {
                        return event("hot".to_owned());
                    }
                    next += 1;
                    event(format!("other{}", next % 500))
                });
                feed.send(&records.collect::<Vec<_>>());
                std::thread::sleep(Duration::from_millis(8));
            }
        });
        let _stop = StopOnDrop(&over);
        let mut written = BTreeSet::new();
        wait_at_most("the hot document to be written again and again while others wait", TIMEOUT, || {
            let copy = world.stack.ask("GET", &format!("/{index}/_doc/hot"), None);
            written.insert(copy["_source"]["at"].as_u64().unwrap());
            if worker.metric("geofold_dirty_documents", "") <= MAX_DOCUMENTS.into() {
                written.clear();
            }
            (written.len() >= WRITTEN).then_some(())
        });
    });
    assert!(
        worker.metric("geofold_records_processed_total", "folded") > 0.0,
        "the hot document was written one by one"
    );
    proxy.set(Faults::default());
    wait_at_most("the end of the backlog", TIMEOUT, || {
        world.offsets().iter().all(|(committed, end)| committed == end).then_some(())
    });
    worker.stop();
}
