//! Live counts: exact even if workers or collectors are killed or frozen.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use geofold::testkit::ports::free_port;
use serde_json::{Value, json};

use crate::support::{Random, TIMEOUT, Worker, World, WorldOptions, ask_for, random_events, seed, text};

/// The binary under test.
const GEOFOLD: &str = env!("CARGO_BIN_EXE_geofold");

type Counts = BTreeMap<String, BTreeMap<String, i64>>;

/// A running `geofold collect`. Killed on drop.
struct Collector(Child);

impl Collector {
    fn start(world: &World, number: usize) -> Self {
        let port = free_port().unwrap();
        let log = std::fs::File::create(world.dir().join(format!("collector-{number}.log"))).unwrap();
        let child = Command::new(GEOFOLD)
            .args(["collect", "--config"])
            .arg(&world.config)
            .env("GEOFOLD_COLLECTOR__LISTEN", format!("127.0.0.1:{port}"))
            .current_dir(world.dir())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the collectors say.
fn merged(world: &World) -> Counts {
    let output = world.geofold(&["cloud", "--json", "--top", "10000"]);
    let mut counts = Counts::new();
    let Ok(answer) = serde_json::from_slice::<Value>(&output.stdout) else {
        eprintln!("{}", text(&output));
        return counts;
    };
    for (facet, tags) in answer["facets"].as_object().into_iter().flatten() {
        for tag in tags.as_array().unwrap() {
            let value = tag["value"].as_str().unwrap().to_owned();
            counts.entry(facet.clone()).or_default().insert(value, tag["count"].as_i64().unwrap());
        }
    }
    counts
}

/// What is in the indices, counted naively.
fn recounted(world: &World) -> Counts {
    let mut counts = Counts::new();
    let mut add = |facet: &str, value: String| {
        *counts.entry(facet.to_owned()).or_default().entry(value).or_default() += 1;
    };
    for copy in world.copies().into_values().flatten() {
        add("geoshard", copy.index.strip_prefix(&format!("{}-", world.name)).unwrap().to_owned());
        if let Some(tags) = copy.source["tags"].as_array() {
            tags.iter().for_each(|tag| add("tags", tag.as_str().unwrap().to_owned()));
        }
        if let Some(mood) = copy.source["mood"]["is"].as_i64() {
            add("mood", mood.to_string());
        }
        if let Some(at) = copy.source["at"].as_str() {
            add("at", at.to_owned());
        }
    }
    counts
}

fn counting(partitions: i32) -> World {
    let line = |table, line: &str| (table, line.to_owned());
    let world = World::new(WorldOptions {
        partitions,
        config: vec![
            line("kafka", "session_timeout = \"3s\""),
            line("kafka", "heartbeat_interval = \"300ms\""),
            line("shutdown", "revoke_timeout = \"2s\""),
            line("batch", "max_documents = 50"),
            line("tally", "geoshard = true"),
            line("tally", "emit_interval = \"200ms\""),
            line("commit", "interval = \"300ms\""),
            line("tally.facets", "tags = \"tags\""),
            line("tally.facets", "mood = \"mood.is\""),
            line("tally.facets", "at = \"at\""),
            line("collector", "top = 10000"),
            line("collector", "merge_interval = \"300ms\""),
        ],
    });
    world.stack.create_topic(&format!("{}-increments", world.name), 2);
    world
}

#[test]
fn counts_equal_a_recount_although_workers_and_collectors_are_killed_and_frozen() {
    let seed = seed("counts_equal_a_recount_although_workers");
    let mut random = Random::new(seed);
    let world = counting(6);
    let checked = world.geofold(&["check"]);
    assert!(checked.status.success() && text(&checked).contains("is not compacted"), "{}", text(&checked));

    let events = random_events(&mut Random::new(seed), 20_000, 400);
    let mut workers: Vec<Worker> = vec![world.worker(), world.worker()];
    let mut collectors = vec![Collector::start(&world, 0)];
    workers[0].wait_until_ready();
    for (round, part) in events.chunks(events.len() / 10).enumerate() {
        world.send(part);
        std::thread::sleep(Duration::from_millis(200 + random.below(1500)));
        let victim = usize::try_from(random.below(2)).unwrap();
        match random.below(3) {
            0 => {
                workers.swap_remove(victim).kill();
                workers.push(world.worker());
            }
            1 => {
                // Longer than its session: another worker owns its partitions when it continues.
                workers[victim].signal("STOP");
                std::thread::sleep(Duration::from_millis(4_000 + random.below(2_000)));
                workers[victim].signal("CONT");
            }
            _ => {}
        }
        if random.below(2) == 0 {
            collectors.remove(0).kill();
            collectors.push(Collector::start(&world, round + 1));
        }
    }
    world.wait_until_committed(TIMEOUT);
    workers.into_iter().for_each(Worker::stop);
    let recount = recounted(&world);
    assert!(recount.len() == 4 && recount.values().all(|values| !values.is_empty()), "{recount:?}");
    ask_for(TIMEOUT, || (merged(&world) == recount).then_some(()));
    assert_eq!(merged(&world), recount, "seed {seed}");
    is_audited(&world, collectors);
}

/// `geofold audit --tally` agrees, finds a document written past geofold, and repairs the counts while no collector merges.
fn is_audited(world: &World, collectors: Vec<Collector>) {
    let audited = world.geofold(&["audit", "--tally"]);
    assert!(audited.status.success(), "{}", text(&audited));
    let refused = world.geofold(&["audit", "--tally", "--repair"]);
    assert!(text(&refused).contains("a collector is running"), "{}", text(&refused));
    collectors.into_iter().for_each(Collector::kill);

    let copies = world.copies();
    let index = &copies.values().next().unwrap()[0].index;
    let stranger = json!({"location": {"lat": 0, "lon": 0}, "tags": ["strange"]});
    world.stack.ask("PUT", &format!("/{index}/_doc/stranger"), Some(stranger));
    let audited = world.geofold(&["audit", "--tally"]);
    assert!(
        !audited.status.success() && text(&audited).contains("strange  counted 0, found 1"),
        "{}",
        text(&audited)
    );
    let mended = world.geofold(&["audit", "--tally", "--repair"]);
    assert!(mended.status.success() && text(&mended).contains("2 counts were wrong"), "{}", text(&mended));
    let audited = world.geofold(&["audit", "--tally"]);
    assert!(audited.status.success(), "{}", text(&audited));
    assert_eq!(merged(world)["tags"]["strange"], 1);
}
