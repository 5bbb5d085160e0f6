//! Promise 5 at its limits: a backlog and ids that no memory would hold, more partitions than anybody has, the longest id,
//! the largest document.
//!
//! Sizes come from the environment, so that what is run on every change takes a minute or two, and the large figures in
//! docs/reliability.md can be had again, with an optimised worker:
//!
//! ```text
//! export GEOFOLD_LIMITS_RECORDS=5000000 GEOFOLD_LIMITS_PARTITIONS=10000
//! export GEOFOLD_STACK_KAFKA_HEAP=2g GEOFOLD_WORKER_BINARY="$PWD/target/release/geofold"
//! cargo test --features real-services --test real limits
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    CITIES, Event, Proxy, Random, Raw, TIMEOUT, Truth, Worker, World, WorldOptions, wait_at_most,
};

const MIB: f64 = 1_048_576.0;

fn size(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn resident(worker: &Worker) -> f64 {
    worker.metric("process_resident_memory_bytes", "") / MIB
}

fn at(n: usize, document: serde_json::Value) -> serde_json::Value {
    let (lat, lon) = CITIES[n % CITIES.len()];
    let mut document = document;
    document["location"] = json!({"lat": lat, "lon": lon});
    document
}

/// The issue's two in one: a backlog of millions of records and a dead Elasticsearch, where every record is another
/// document and all ids together are (with 5 million records) more than a gigabyte.
#[test]
fn a_backlog_of_distinct_documents_and_a_dead_elasticsearch_stop_fetching_and_take_no_more_memory() {
    const PARTITIONS: i32 = 8;
    /// What a worker may take beyond `memory.total`, in MiB, while Elasticsearch is dead: librdkafka's queue (4) and one
    /// answer of the broker (8) as configured below, both once more while they are copied, and what the allocator keeps.
    const BEYOND: f64 = 48.0;
    /// And while it works the backlog off: besides, the batches in work (1 MiB for each partition) as requests and answers.
    const BEYOND_AT_WORK: f64 = 160.0;
    let records = size("GEOFOLD_LIMITS_RECORDS", 200_000);
    let bound_mib = 32;
    let world = World::alone(WorldOptions {
        partitions: PARTITIONS,
        config: vec![
            ("memory", format!("total = \"{bound_mib}MiB\"")),
            ("memory", "per_partition = \"8MiB\"".to_owned()),
            ("memory", "cached_placements = 10000".to_owned()),
            ("batch", "max_bytes = \"1MiB\"".to_owned()),
            // Nothing but the bound is to stop the reading.
            ("batch", "max_dirty_age = \"1h\"".to_owned()),
            ("documents", "max_bytes = \"64KiB\"".to_owned()),
            ("elasticsearch", "request_timeout = \"5s\"".to_owned()),
            ("retry", "max_backoff = \"2s\"".to_owned()),
            ("kafka", "session_timeout = \"10s\"".to_owned()),
            ("shutdown", "revoke_timeout = \"2s\"".to_owned()),
            ("shutdown", "drain_timeout = \"5s\"".to_owned()),
            // A poll thread that waits for Elasticsearch would be out of the group long before it is back.
            ("kafka.properties", "\"max.poll.interval.ms\" = 12000".to_owned()),
            ("kafka.properties", "\"queued.max.messages.kbytes\" = 4096".to_owned()),
            ("kafka.properties", "\"fetch.max.bytes\" = 8388608".to_owned()),
        ],
    });
    let worker = world.worker();
    worker.wait_until_assigned(PARTITIONS);
    let rebalances = worker.metric("geofold_rebalances_total", "");
    let tail = "x".repeat(210);
    let id = |n: usize| format!("{n:010}{tail}");
    let feed = world.feed();
    // Once every partition has begun, its task takes in what comes, whether Elasticsearch answers or not.
    let first: Vec<Raw> = (0..PARTITIONS)
        .map(|partition| {
            let event = Event::Index { id: format!("first{partition}"), document: at(0, json!({})) };
            Raw { partition: Some(partition), ..event.to_raw() }
        })
        .collect();
    world.produce(&first);
    world.wait_until_committed(TIMEOUT);
    let resident_at_first = resident(&worker);
    world.stack.tell("stop", "elasticsearch");

    let began = Instant::now();
    let mut id_bytes = 0;
    for first in (0..records).step_by(10_000) {
        let chunk: Vec<Raw> = (first..records.min(first + 10_000))
            .map(|n| Event::Index { id: id(n), document: at(n, json!({"n": n})) }.to_raw())
            .collect();
        id_bytes += chunk.iter().filter_map(|raw| raw.key.as_ref()).map(Vec::len).sum::<usize>();
        feed.send(&chunk);
        feed.flush();
    }
    let produced = began.elapsed();
    let (mut held, mut most) = (0.0_f64, 0.0_f64);
    let look = |held: &mut f64, most: &mut f64| {
        *held = held.max(worker.metric("geofold_buffered_bytes", "") / MIB);
        *most = most.max(resident(&worker));
    };
    let all_paused = f64::from(PARTITIONS);
    wait_at_most("all partitions paused", TIMEOUT, || {
        look(&mut held, &mut most);
        (worker.metric("geofold_paused_partitions", "") == all_paused).then_some(())
    });
    let paused = Instant::now();
    // Longer than a member may be silent, and than a request may take.
    while paused.elapsed() < Duration::from_secs(20) {
        look(&mut held, &mut most);
        assert_eq!(worker.get("/healthz").map(|(status, _)| status), Some(200));
        std::thread::sleep(Duration::from_millis(100));
    }
    let read = worker.metric("geofold_records_total", "");
    let (held_dead, most_dead, now_dead) = (held, most, resident(&worker));
    eprintln!(
        "while it is dead: held {held_dead:.1} MiB, resident {most_dead:.0} MiB at most, {now_dead:.0} at the end"
    );
    assert_eq!(worker.metric("geofold_paused_partitions", ""), all_paused);
    assert_eq!(worker.metric("geofold_rebalances_total", ""), rebalances, "the member left its group");
    world.stack.tell("start", "elasticsearch");
    let wanted = (records / 10).min(50_000) as f64;
    wait_at_most("a good part of the backlog written", TIMEOUT, || {
        look(&mut held, &mut most);
        (worker.metric("geofold_records_processed_total", "") >= wanted).then_some(())
    });
    eprintln!(
        "{records} records, {:.0} MiB of ids, produced in {:.0} s; read {read:.0} of them; held {held:.1} MiB of {bound_mib}; \
         resident {resident_at_first:.0} MiB at first, {most:.0} MiB at most",
        id_bytes as f64 / MIB,
        produced.as_secs_f64()
    );
    assert_eq!(worker.metric("geofold_rebalances_total", ""), rebalances, "the member left its group");
    worker.stop();
    assert!(
        read < records as f64 / 2.0,
        "too few records to have tested anything: {read} of {records} fitted"
    );
    let bound = f64::from(bound_mib);
    assert!(held > bound / 2.0 && held < bound + 2.0, "{held} MiB held, {bound} allowed");
    for (most, beyond, when) in [(most_dead, BEYOND, "dead"), (most, BEYOND_AT_WORK, "back")] {
        assert!(
            most < resident_at_first + bound + beyond,
            "{most} MiB resident while elasticsearch is {when}, {resident_at_first} at first, {bound} allowed to be held"
        );
    }
}

#[test]
fn thousands_of_partitions_are_taken_written_shown_shared_and_left_in_time() {
    /// What the worker may take for its first work, in MiB, and for each partition, in KiB: librdkafka's part and the
    /// metrics are in it.
    const WORK: f64 = 24.0;
    const PER_PARTITION: f64 = 48.0;
    /// Partitions that are written to, at once.
    const SCATTERED: usize = 500;
    let partitions = i32::try_from(size("GEOFOLD_LIMITS_PARTITIONS", 500)).unwrap();
    let world = World::new(WorldOptions {
        partitions,
        config: vec![
            ("shutdown", "revoke_timeout = \"10s\"".to_owned()),
            ("kafka.properties", "\"statistics.interval.ms\" = 5000".to_owned()),
        ],
    });
    let began = Instant::now();
    let worker = world.worker();
    let mut least = f64::MAX;
    wait_at_most("the admin server", TIMEOUT, || {
        worker.get("/metrics")?;
        (resident(&worker) > 0.0).then(|| least = least.min(resident(&worker)))
    });
    wait_at_most("all partitions", TIMEOUT, || {
        (worker.metric("geofold_assigned_partitions", "") == f64::from(partitions)).then_some(())
    });
    let assigned = began.elapsed();

    // A record in each of a few partitions; then all over again, moved.
    let mut truth = Truth::new();
    let mut ends = BTreeMap::new();
    let mut write = |round: usize, truth: &mut Truth| {
        let records: Vec<Raw> = (0..partitions)
            .step_by((partitions.unsigned_abs() as usize / SCATTERED).max(1))
            .map(|partition| {
                let n = partition.unsigned_abs() as usize;
                let document = at(n + round, json!({"n": n, "round": round}));
                let event = Event::Index { id: format!("d{n}"), document };
                truth.apply(&event);
                *ends.entry(partition).or_insert(0) += 1;
                Raw { partition: Some(partition), ..event.to_raw() }
            })
            .collect();
        world.produce(&records);
        let began = Instant::now();
        wait_at_most("scattered records committed", TIMEOUT, || (world.committed() == ends).then_some(()));
        began.elapsed()
    };
    let first = write(0, &mut truth);
    let second = write(1, &mut truth);
    let resident_idle = resident(&worker);
    let per_partition = (resident_idle - least) * 1024.0 / f64::from(partitions);
    let files = worker.metric("process_open_fds", "");
    let mut pages = String::new();
    for path in ["/metrics", "/status.json", "/", "/readyz"] {
        let began = Instant::now();
        let (status, body) = worker.get(path).unwrap_or_else(|| panic!("no answer from {path}"));
        assert_eq!(status, 200, "{path}");
        pages += &format!(" {path} {:.2} MiB in {:?};", body.len() as f64 / MIB, began.elapsed());
    }
    let resident_shown = resident(&worker);
    eprintln!(
        "{partitions} partitions: assigned after {assigned:?}; scattered records after {first:?} and {second:?}; \
         {least:.0} MiB before, {resident_idle:.0} with them ({per_partition:.1} KiB each), {resident_shown:.0} after showing \
         them; {files} files;{pages}"
    );

    // Half of them go to another worker, and come back.
    let began = Instant::now();
    let other = world.worker();
    let half = f64::from(partitions / 2);
    wait_at_most("two halves", TIMEOUT, || {
        let owned = |worker: &Worker| worker.metric("geofold_assigned_partitions", "");
        (owned(&worker) == half && owned(&other) == half).then_some(())
    });
    let shared = began.elapsed();
    let third = write(2, &mut truth);
    let began = Instant::now();
    other.stop();
    let left = began.elapsed();
    wait_at_most("all partitions again", TIMEOUT, || {
        (worker.metric("geofold_assigned_partitions", "") == f64::from(partitions)).then_some(())
    });
    let fourth = write(3, &mut truth);
    let began = Instant::now();
    assert_eq!(worker.metric("geofold_rebalances_total", "lost"), 0.0);
    worker.stop();
    eprintln!(
        "shared after {shared:?}; written after {third:?}; one left in {left:?}; written after {fourth:?}; the last left in {:?}",
        began.elapsed()
    );
    world.assert_holds(&truth);
    let bound = least + WORK + PER_PARTITION * f64::from(partitions) / 1024.0;
    assert!(resident_idle < bound, "{resident_idle} MiB with {partitions} partitions, {least} MiB before");
    assert!(files < 100.0, "{files} open files: nothing may be opened for a partition");
}

#[test]
fn the_longest_ids_and_the_oddest_are_written_moved_and_deleted_and_one_byte_more_is_a_dead_letter() {
    let world = World::new(WorldOptions { partitions: 1, ..WorldOptions::default() });
    let worker = world.worker();
    let ids = [
        "a".repeat(512),
        "é".repeat(256),
        "😀".repeat(128),
        "\"".repeat(512),
        "\\".repeat(512),
        "\u{1}".repeat(512),
        "line\nbreak\r\n".to_owned(),
        "tab\tand nul \u{0} and del \u{7f}".to_owned(),
        "{\"index\":{\"_index\":\"x\"}}\n{}".to_owned(),
        "../_bulk?refresh=true#x%2F".to_owned(),
        " spaces at both ends ".to_owned(),
        "_id".to_owned(),
        "*".to_owned(),
        "a,b".to_owned(),
        "\u{2028}\u{202e}\u{feff}".to_owned(),
    ];
    let send = |round: usize, truth: &mut Truth| {
        let records: Vec<Raw> = ids
            .iter()
            .map(|id| {
                let event = match round {
                    3 => Event::Delete { id: id.clone() },
                    2 => Event::Patch { id: id.clone(), patch: json!({"patched": id}) },
                    _ => Event::Index { id: id.clone(), document: at(round, json!({"id": id})) },
                };
                truth.apply(&event);
                Raw { partition: Some(0), ..event.to_raw() }
            })
            .collect();
        world.produce(&records);
        world.wait_until_committed(TIMEOUT);
        world.assert_holds(truth);
        assert_eq!(world.wrong_placements(truth), Vec::<String>::new());
    };
    let mut truth = Truth::new();
    // Written, moved, patched.
    (0..3).for_each(|round| send(round, &mut truth));
    assert_eq!(truth.documents.len(), ids.len());

    let too_long = ["a".repeat(513), format!("{}é", "a".repeat(511)), "\"".repeat(513)];
    let refused: Vec<Raw> = too_long
        .iter()
        .map(|id| {
            let event = Event::Index { id: id.clone(), document: at(0, json!({})) };
            Raw { partition: Some(0), ..event.to_raw() }
        })
        .collect();
    world.produce(&refused);
    // Deleted; among the letters nothing stands still.
    send(3, &mut truth);
    assert!(truth.documents.is_empty());
    worker.stop();
    let letters = world.dead_letters();
    let told: Vec<_> = letters
        .iter()
        .map(|letter| {
            (letter.key.clone().unwrap_or_default(), letter.headers["geofold-error-detail"].clone())
        })
        .collect();
    let detail = "the key has 513 bytes, but an Elasticsearch id may have 512 at most";
    assert_eq!(told, too_long.map(|id| (id, detail.to_owned())));
}

#[test]
fn a_document_of_exactly_the_limit_is_written_and_one_byte_more_is_a_dead_letter() {
    const LIMIT: usize = 1 << 20;
    let world = World::new(WorldOptions {
        partitions: 1,
        config: vec![
            ("documents", "max_bytes = \"1MiB\"".to_owned()),
            ("elasticsearch", "request_max_bytes = \"4MiB\"".to_owned()),
        ],
    });
    // With Kafka's own default a record of that size does not go into a topic.
    world.set_topic_limit(&world.name, 2 << 20);
    world.set_topic_limit(&format!("{}-dead", world.name), 2 << 20);
    let proxy = Proxy::start(&world.stack.elasticsearch, 1);
    let worker = world.worker_behind(&proxy);
    // Quotes and what is not ASCII take more bytes where the JSON is encoded again.
    let document = |n: usize, bytes: usize| {
        let mut document = at(n, json!({"n": n, "text": ""}));
        let room = bytes - document.to_string().len();
        let text = "é".repeat(room / 2) + &"x".repeat(room % 2);
        document["text"] = json!(text);
        assert_eq!(document.to_string().len(), bytes);
        document
    };
    let mut truth = Truth::new();
    let mut records = Vec::new();
    for n in 0..40 {
        let event = Event::Index { id: format!("d{n}"), document: document(n, LIMIT) };
        truth.apply(&event);
        records.push(event.to_raw());
        if n % 10 == 0 {
            let event = Event::Index { id: format!("large{n}"), document: document(n, LIMIT + 1) };
            records.push(event.to_raw());
        }
    }
    let patch = |bytes: usize| {
        let room = bytes - json!({"more": ""}).to_string().len();
        let patch = json!({"more": "x".repeat(room)});
        assert_eq!(patch.to_string().len(), bytes);
        patch
    };
    // A patch has the same limit, and what it makes of a document may be larger.
    let largest = Event::Patch { id: "d0".to_owned(), patch: patch(LIMIT) };
    truth.apply(&largest);
    records.push(largest.to_raw());
    records.push(Event::Patch { id: "d1".to_owned(), patch: patch(LIMIT + 1) }.to_raw());
    let records: Vec<Raw> = records.into_iter().map(|raw| Raw { partition: Some(0), ..raw }).collect();
    for few in records.chunks(8) {
        world.produce(few);
    }
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    world.assert_holds(&truth);
    let letters = world.dead_letters();
    let keys: Vec<_> = letters.iter().map(|letter| letter.key.clone().unwrap_or_default()).collect();
    assert_eq!(keys, ["large0", "large10", "large20", "large30", "d1"]);
    for letter in &letters {
        assert_eq!(letter.headers["geofold-error-reason"], "too_large");
        let detail = &letter.headers["geofold-error-detail"];
        assert_eq!(detail, "the value has 1048577 bytes, and 1048576 are allowed");
        // The letter has the whole value: the topic takes it.
        assert_eq!(letter.value.as_ref().map(String::len), Some(LIMIT + 1));
    }
    let largest = proxy.largest_request();
    eprintln!("the largest request had {:.2} MiB", largest as f64 / MIB);
    assert!(largest > 3 << 20, "{largest} bytes: the documents were sent one by one");
    assert!(largest <= 4 << 20, "{largest} bytes in one request, 4 MiB allowed");
}

#[test]
fn a_dead_letter_that_its_topic_does_not_take_goes_without_its_value_and_holds_nothing_up() {
    let world = World::new(WorldOptions {
        partitions: 1,
        config: vec![("documents", "max_bytes = \"100KiB\"".to_owned())],
    });
    world.set_topic_limit(&format!("{}-dead", world.name), 64 << 10);
    let worker = world.worker();
    // Nothing that a compressor could make smaller.
    let mut random = Random::new(1);
    let text: String = (0..100 << 10).map(|_| char::from(b'!' + random.below(90) as u8)).collect();
    let large = Event::Index { id: "large".to_owned(), document: at(0, json!({"text": text})) };
    let small = Event::Index { id: "small".to_owned(), document: at(0, json!({})) };
    let mut truth = Truth::new();
    truth.apply(&small);
    world.produce(&[large.to_raw(), small.to_raw()]);
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    world.assert_holds(&truth);
    let letters = world.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].key.as_deref(), Some("large"));
    assert_eq!(letters[0].headers["geofold-error-reason"], "too_large");
    assert!(letters[0].headers.contains_key("geofold-value-left-out"), "{:?}", letters[0].headers);
}
