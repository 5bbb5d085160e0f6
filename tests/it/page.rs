//! The status pages in a real browser: their scripts run, refresh the figures, and break no rule of the pages' own
//! content security policy. Leaves screenshots in `target/artefacts/`. Without a `chromium` it is skipped, unless
//! `CI=true`.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::Request;
use axum::middleware::{self, Next};
use geofold::base::clock::{Clock, Instant};
use geofold::base::geo::GeoPoint;
use geofold::geoshard::cell;
use geofold::geoshard::cities::{CITIES, City};
use geofold::geoshard::load::{LoadDelta, LoadRecord, PlaceCounts};
use geofold::geoshard::map::GeoshardMap;
use geofold::ops::admin::{
    AdminState, CoverSource, DocumentCounts, GroupSource, LoadSummary, StatusParts, StatusSource, ViewedLoad,
    Worker, routes, serve,
};
use geofold::ops::group::{
    GroupMember, GroupReport, GroupSeen, LettersReport, Offsets, PartitionReport, WorkerSeen,
};
use geofold::support::supervisor::Supervisor;
use geofold::support::telemetry::elasticsearch::RequestLabel;
use geofold::support::telemetry::events::{DeadLettered, PartitionStopped};
use geofold::support::telemetry::health::Health;
use geofold::support::telemetry::metrics::Success;
use geofold::support::telemetry::partition_status::{PartitionStatus, PartitionStatusSender};
use geofold::support::telemetry::{Metrics, OutcomeLabel, PartitionMetrics, Recent};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::SubscriberExt;

use crate::tools::has;

const PARTITIONS: i32 = 6;

/// Milliseconds, moved on by every question for the status: a browser's virtual time runs faster than any real one.
#[derive(Debug)]
struct StepClock(AtomicU64);

impl Clock for StepClock {
    fn now(&self) -> Instant {
        Instant::from_start(Duration::from_millis(self.0.load(Ordering::Relaxed)))
    }
}

/// A week of cities that sleep at night; one day nobody counted.
fn week(map: &GeoshardMap) -> LoadRecord {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut record = LoadRecord::new(now - 169 * 3600);
    for hour in (0..168).filter(|hour| !(40..64).contains(hour)) {
        let at = now - (168 - hour) * 3600;
        let mut delta = LoadDelta::default();
        for City(_, lat, lon, thousands) in CITIES {
            let local = (at / 3600 % 24) as f64 + lon / 15.0;
            let busy = 0.55 + 0.45 * ((local - 19.0) / 24.0 * std::f64::consts::TAU).cos();
            let writes = f64::from(*thousands) * busy;
            let counts = PlaceCounts { writes, queries: writes * busy, ..PlaceCounts::default() };
            let leaf = cell::leaf(GeoPoint::new(*lat, *lon).unwrap());
            delta.cells.entry(s2::cellid::CellID(leaf).parent(7).0).or_default().add(counts);
        }
        record.add(&delta, map, at);
    }
    record
}

/// A worker that does the same each time.
struct Pretence {
    clock: Arc<StepClock>,
    metrics: Arc<Metrics>,
    map: Arc<GeoshardMap>,
    counts: Arc<DocumentCounts>,
    group: Arc<GroupSource>,
    partitions: Vec<PartitionMetrics>,
    partition_status: PartitionStatusSender,
    steps: Mutex<u64>,
}

impl Pretence {
    fn new() -> (Arc<Self>, Arc<StatusSource>, Arc<Health>) {
        let clock = Arc::new(StepClock(AtomicU64::new(1_000_000)));
        let metrics = Metrics::new().unwrap();
        let health = Health::new(clock.clone(), metrics.clone(), Duration::from_secs(60));
        let map = Arc::new(GeoshardMap::load(Path::new("config/map-55.json")).unwrap());
        let counts = DocumentCounts::new(clock.clone());
        let load = ViewedLoad::new(clock.clone());
        load.take(Ok(Arc::new(LoadSummary::new(&week(&map), &map))));
        let (partition_status, reader) = watch::channel(Vec::new());
        let recent = Recent::default();
        let worker = Worker {
            version: env!("CARGO_PKG_VERSION"),
            topic: "people".to_owned(),
            group: "geofold-people".to_owned(),
            prefix: "people".to_owned(),
            name: "geofold on web-1, process 1".to_owned(),
        };
        let group = GroupSource::new(worker.clone(), clock.clone(), Duration::from_secs(5));
        let status = StatusSource::new(StatusParts {
            worker,
            clock: clock.clone(),
            metrics: metrics.clone(),
            health: health.clone(),
            map: Arc::new({
                let map = map.clone();
                move || map.clone()
            }),
            limits: Arc::new(|| [("batch.max_documents".to_owned(), 2000.into())].into()),
            counts: counts.clone(),
            load,
            partition_status: reader,
            recent: recent.clone(),
        });
        health.ready(Health::STARTUP);
        health.not_ready("partition 4", "bad record, and no dead-letter topic configured: the value at \"location\" is no location: 95 is not <= 90");
        let partitions = (0..PARTITIONS).map(|number| metrics.partition(number)).collect();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(recent), || {
            for _ in 0..3 {
                tracing::warn!(
                    error = "elasticsearch answered 429",
                    "batch reached its deadline; its open documents join a later one"
                );
            }
            PartitionStopped { partition: 4, offset: Some(918_273), reason: &"anna-77" }.emit(&metrics);
            let (first_offset, last_offset) = (640_112, 640_119);
            DeadLettered {
                partition: 1,
                first_offset,
                last_offset,
                reason: "bad_location",
                detail: "anna-77",
                id: None,
            }
            .emit(&metrics);
        });
        metrics.elasticsearch.permits.set(4);
        metrics.elasticsearch.permits_in_use.set(3);
        metrics.elasticsearch.requests_waiting.set(1);
        metrics.held_bytes_limit.set(512 << 20);
        let pretence =
            Self { clock, metrics, map, counts, group, partitions, partition_status, steps: Mutex::new(0) };
        (0..400).for_each(|_| pretence.step());
        (Arc::new(pretence), status, health)
    }

    /// Two seconds of work.
    fn step(&self) {
        let mut step = self.steps.lock().unwrap();
        *step += 1;
        self.clock.0.fetch_add(2000, Ordering::Relaxed);
        // A swell, and some noise.
        let load = 330 + (*step % 60).abs_diff(30) * 6 + *step * 37 % 50;
        for (number, partition) in (0_u64..).zip(&self.partitions) {
            (0..load).for_each(|_| partition.record_in());
            partition.record_done(OutcomeLabel::Indexed, load * 2 / 3);
            partition.record_done(OutcomeLabel::Folded, load / 4);
            if *step == 1 && number == 1 {
                partition.record_done(OutcomeLabel::DeadLettered, 8);
            }
            let left = u64::try_from(partition.in_flight()).unwrap();
            partition.record_done(OutcomeLabel::AlreadyApplied, left.saturating_sub(load / 5));
            let dirty = usize::try_from(load / 6 + number * 11).unwrap();
            partition.dirty(dirty, dirty * 1800, Some(Duration::from_millis(300 + number * 420)));
        }
        self.partitions[2].parked(3);
        self.metrics.moves.inc_by(load / 9);
        self.metrics.held_bytes.set(i64::try_from((150 + load / 7) << 20).unwrap());
        self.metrics.elasticsearch.retry("429", *step % 3);
        self.metrics.elasticsearch.retry("timeout", u64::from(step.is_multiple_of(50)));
        for millis in [6, 9, 14, 31, 52 + load % 60] {
            self.metrics.elasticsearch.request(
                RequestLabel::Mget,
                Success::Ok,
                Duration::from_millis(millis),
            );
            self.metrics.elasticsearch.request(
                RequestLabel::Bulk,
                Success::Ok,
                Duration::from_millis(millis * 4),
            );
        }
        let status = |partition: i32| PartitionStatus {
            partition,
            paused: partition == 3,
            watermark: Some(900_000 + i64::try_from(*step * load).unwrap() * i64::from(partition + 2)),
            committed: Some(899_000 + i64::try_from(*step * load).unwrap() * i64::from(partition + 2)),
            end: Some(904_000 + i64::try_from(*step * load + 512).unwrap() * i64::from(partition + 2)),
        };
        self.partition_status.send_replace((0..PARTITIONS).map(status).collect());
        if step.is_multiple_of(7) {
            self.metrics.elasticsearch.request(
                RequestLabel::Bulk,
                Success::Failed,
                Duration::from_millis(480),
            );
            // Uneven counts, and one index without a count.
            let documents = (0_u64..).map(|number| 30_000 + number * number * 7_919 % 240_001 + *step * 31);
            let mut documents: BTreeMap<_, _> = self.map.shards().iter().cloned().zip(documents).collect();
            documents.remove(&self.map.shards()[48]);
            self.counts.take(Ok(documents));
        }
    }
}

/// Three workers with twelve partitions, one of which is stopped. Texts are those of others.
fn group(step: u64) -> GroupReport {
    let swell = i64::try_from(step % 60).unwrap();
    let owner = |worker: i32| format!("geofold on web-{worker}, process 1");
    let partition = |number: i32| PartitionReport {
        partition: number,
        owner: Some(owner(number % 3)),
        state: if number == 4 { "stopped" } else { "running" }.to_owned(),
        reason: (number == 4).then(|| "bad record: <b>no</b> location".to_owned()),
        offsets: Offsets { begin: 0, end: 900_000, committed: Some(899_000) },
        lag: if number == 4 { 12_000 + swell } else { 100 + swell * i64::from(number) },
        lag_per_second: if number == 4 { 31.5 } else { 3.0 - f64::from(number) },
        committed_per_second: if number == 4 { 0.0 } else { 340.0 + f64::from(number) },
        oldest_dirty_seconds: (number != 7).then(|| 0.3 + f64::from(number) * 0.42),
    };
    let partitions: Vec<PartitionReport> = (0..12).map(partition).collect();
    let of = |worker: i32| (0..12).filter(move |number| number % 3 == worker);
    let member = |worker: i32| GroupMember {
        member_id: format!("geofold-{worker}"),
        client_id: "geofold".to_owned(),
        host: format!("10.0.0.{worker}"),
        partitions: of(worker).collect(),
    };
    let worker = |worker: i32| WorkerSeen {
        url: format!("http://10.0.0.{worker}:9464"),
        name: Some(owner(worker)),
        error: None,
        ready: worker != 1,
        reasons: (worker == 1)
            .then(|| ("partition 4".to_owned(), "bad record".to_owned()))
            .into_iter()
            .collect(),
        partitions: of(worker).map(|number| (number, partition(number).state)).collect(),
        oldest_dirty_seconds: BTreeMap::new(),
    };
    let reasons =
        [("bad_location", 41), ("key_in_two_partitions", 2)].map(|(why, count)| (why.to_owned(), count));
    GroupReport {
        topic: "people".to_owned(),
        group: "geofold-people".to_owned(),
        description: Some(GroupSeen { state: "Stable".to_owned(), members: (0..3).map(member).collect() }),
        group_error: None,
        epoch: 1,
        lag: partitions.iter().map(|partition| partition.lag).sum(),
        lag_per_second: 12.0 - swell as f64,
        committed_per_second: 3_400.0 + swell as f64 * 10.0,
        sample_seconds: 10.0,
        partitions,
        maps: None,
        elasticsearch: Some("yellow".to_owned()),
        workers: (0..3).map(worker).collect(),
        dead_letters: Some(LettersReport {
            topic: "people-dead".to_owned(),
            in_topic: 43,
            counted: 43,
            by_reason: reasons.clone().into(),
            last_hour: 43,
            last_hour_by_reason: reasons.into(),
            last_hour_has_more: false,
        }),
        oldest_dirty_seconds: Some(4.9),
        audit: None,
        audit_interval_seconds: Some(86_400),
        findings: vec![
            "partition 4 is stopped: bad record: <b>no</b> location".to_owned(),
            "43 dead letters in the last hour: 41 bad_location, 2 key_in_two_partitions".to_owned(),
        ],
    }
}

async fn start() -> SocketAddr {
    let (pretence, status, health) = Pretence::new();
    let cover = CoverSource { maps: Arc::new(|| None), prefix: "people".to_owned() };
    let group_source = pretence.group.clone();
    let state = AdminState { metrics: pretence.metrics.clone(), health, status, group: group_source, cover };
    let on_each = move |request: Request, next: Next| {
        let pretence = pretence.clone();
        async move {
            match request.uri().path() {
                "/status.json" => pretence.step(),
                "/group/figures.json" => {
                    pretence.step();
                    pretence.group.take(Ok(group(*pretence.steps.lock().unwrap())));
                }
                _ => {}
            }
            next.run(request).await
        }
    };
    let routes = routes(state).layer(middleware::from_fn(on_each));
    let supervisor = Supervisor::new().0;
    serve("127.0.0.1:0".parse().unwrap(), routes, CancellationToken::new(), &supervisor).await.unwrap().0
}

/// Runs a headless chromium on a page for half a minute of its virtual time; gives what it writes to standard output.
fn chromium(page: &str, arguments: &[String]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (stdout, stderr) = (folder.path().join("stdout"), folder.path().join("stderr"));
    let mut browser = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--hide-scrollbars", "--virtual-time-budget=30000", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .args(arguments)
        .arg(page)
        .stdout(File::create(&stdout).unwrap())
        .stderr(File::create(&stderr).unwrap())
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    let ended = loop {
        if let Some(status) = browser.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(120) {
            browser.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let said = String::from_utf8_lossy(&std::fs::read(stderr).unwrap()).into_owned();
    assert!(ended.success(), "chromium: {ended}\n{said}");
    // Errors of the page's script, and refusals of its content security policy.
    let console: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{console:#?}");
    std::fs::read_to_string(stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a browser takes its time: dev/soak"]
async fn a_browser_refreshes_the_figures_and_shows_them() {
    if !has("chromium") {
        return;
    }
    let server = start().await;
    let page = format!("http://{server}/");
    let dom = chromium(&page, &["--dump-dom".to_owned()]).replace('\u{a0}', " ");
    assert!(dom.contains("rates are of the last 10 s"), "the script has not set rates");
    assert!(dom.contains("<polyline points=\"0.0,"), "no sparkline");
    assert!(dom.contains("<td class=\"state\" data-state=\"stopped\">stopped</td>"));
    assert!(dom.contains("is no location: 95 is not &lt;= 90</li>"));
    assert!(dom.contains("<title>not ready · geofold · people</title>"));
    assert_eq!(dom.matches(" documents</title></use>").count(), 55);
    assert_eq!(dom.matches(" searches/s</title></use>").count(), 55);
    assert_eq!(dom.matches("</title></circle>").count(), 10);
    assert!(dom.contains("<td class=\"text\">Tokyo</td>"), "no hottest places");
    let (shown, _script) = dom.split_once("<script>").unwrap();
    for wrong in ["anna", "NaN", "undefined", "Infinity"] {
        assert!(!shown.contains(wrong), "{wrong}");
    }

    pictures(
        &page,
        &[
            ("admin-page", "1280,3000", false),
            ("admin-page-dark", "1280,3000", true),
            ("admin-page-phone", "390,3600", false),
        ],
    );

    let page = format!("http://{server}/group");
    let dom = chromium(&page, &["--dump-dom".to_owned()]).replace('\u{a0}', " ");
    assert!(dom.contains("<title>needs attention · group geofold-people · geofold</title>"), "{dom}");
    assert!(dom.contains("<li>partition 4 is stopped: bad record: &lt;b&gt;no&lt;/b&gt; location</li>"));
    assert!(
        dom.contains("<td class=\"link\"><a href=\"http://10.0.0.2:9464\">http://10.0.0.2:9464</a></td>")
    );
    assert!(
        dom.contains("<tr><td class=\"id\">4</td><td class=\"state\" data-state=\"stopped\">stopped</td>")
    );
    assert!(dom.contains("data-f=\"text\">answered 0 s ago</span>"), "the script has not refreshed it");
    assert!(dom.contains("<polyline points=\"0.0,"), "no sparkline");
    let (shown, _script) = dom.split_once("<script>").unwrap();
    for wrong in ["NaN", "undefined", "Infinity", "[object"] {
        assert!(!shown.contains(wrong), "{wrong}");
    }
    pictures(&page, &[("group-page", "1280,1500", false), ("group-page-phone", "390,2400", false)]);
}

/// Screenshots of a page: name, size, whether dark.
fn pictures(page: &str, pictures: &[(&str, &str, bool)]) {
    let artefacts = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/artefacts");
    std::fs::create_dir_all(&artefacts).unwrap();
    for (name, size, dark) in pictures {
        let picture = artefacts.join(format!("{name}.png"));
        let _ = std::fs::remove_file(&picture);
        let mut arguments =
            vec![format!("--window-size={size}"), format!("--screenshot={}", picture.display())];
        if *dark {
            arguments.push("--force-dark-mode".to_owned());
        }
        chromium(page, &arguments);
        assert!(picture.metadata().unwrap().len() > 20_000, "{name}");
    }
}
