//! How fast the audit goes, and how much memory it takes: `cargo bench --bench audit`. docs/audit.md has figures.
//!
//! First what was seen of 10,000,000 documents, each with its copy and its placement, is brought together and judged: no
//! server, so that the memory is the audit's own. Then a whole audit of a stand-in for Elasticsearch in the same process.
//! Without `--bench`, as in `cargo test`, a small round to see that it works. GEOFOLD_BENCH_DOCUMENTS: another number for
//! the first part.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails is one that does not run")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use geofold::base::clock::BootClock;
use geofold::base::geo::GeoPoint;
use geofold::base::ids::ShardId;
use geofold::base::position::{Epoch, Position};
use geofold::base::random::Random;
use geofold::core::decode::LocationPath;
use geofold::core::placement::Placement;
use geofold::geoshard::{GeoshardMap, LiveMaps};
use geofold::io::elastic::http::{HttpElastic, HttpOptions};
use geofold::ops::audit::{Audit, AuditOptions, Fit, SeenPage, Sightings};
use geofold::testkit::embedded::elasticsearch::{Standin, StandinOptions, WriteContent, WriteGuard};

const MEMORY: usize = 64 << 20;

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let given = std::env::var("GEOFOLD_BENCH_DOCUMENTS").ok().and_then(|number| number.parse().ok());
    bring_together(given.unwrap_or(if full { 10_000_000 } else { 20_000 }));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(whole_audit(if full { 300_000 } else { 2_000 }));
}

fn id(n: u64) -> String {
    // Scattered, as ids are.
    format!("person-{:016x}", Random::new(n).bits())
}

fn at(n: u64) -> Position {
    Position::new(Epoch::default(), i64::try_from(n).unwrap()).unwrap()
}

fn bring_together(documents: u64) {
    let folder = tempfile::tempdir().unwrap();
    let shards: Vec<ShardId> = (0..50).map(|n| ShardId::new(&format!("s{n:02}")).unwrap()).collect();
    let before = resident();
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut sightings = Sightings::new(folder.path(), MEMORY);
    for first in (0..documents).step_by(5_000) {
        let mut page = SeenPage::default();
        for n in first..documents.min(first + 5_000) {
            let shard = usize::try_from(n % 50).unwrap();
            page.copy(&id(n), u32::try_from(shard).unwrap(), at(n).version(), Fit::Here);
            // Pages are of one index each; the order makes no difference to what sorts them.
            let placement = Placement::new(at(n), Some(shards[shard].clone()), []);
            page.placement(&id(n), &placement.to_json());
        }
        sightings.take(&page).unwrap();
    }
    let totals = sightings.judge(&shards, Epoch::default(), false, |suspects| suspects.is_empty()).unwrap();
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    assert_eq!((totals.documents, totals.placements), (documents, documents));
    println!(
        "together     {documents} documents in {seconds:.1} s: {:.0} a second, {:.0} by second of CPU; at most {} MiB, {} before",
        documents as f64 / seconds,
        documents as f64 / cpu.max(0.001),
        peak(),
        before,
    );
}

async fn whole_audit(documents: u64) {
    let options = StandinOptions { max_stored_bytes: 8 << 30, ..StandinOptions::default() };
    let standin = Standin::start(options).await.unwrap();
    let map = Arc::new(GeoshardMap::from_json(include_str!("../tests/real/support/map-12.json")).unwrap());
    for suffix in map.shards().iter().map(ShardId::as_str).chain(["placements", "meta"]) {
        standin.store().create_index(&format!("bench-{suffix}"), [].into(), Default::default()).unwrap();
    }
    let mut random = Random::new(1);
    for n in 0..documents {
        let (lat, lon) = (random.share() * 180.0 - 90.0, random.share() * 360.0 - 180.0);
        let shard = map.locate(GeoPoint::new(lat, lon).unwrap());
        let (id, version) = (id(n), i64::try_from(at(n).version()).unwrap());
        let source = format!(
            r#"{{"name":"person {n}","about":"{}","location":{{"lat":{lat},"lon":{lon}}}}}"#,
            "lorem ipsum dolor ".repeat(10)
        );
        let index = format!("bench-{shard}");
        let write = |index: &str, condition, source: &[u8]| {
            standin.store().write(index, &id, condition, WriteContent::Source(source)).unwrap();
        };
        write(&index, WriteGuard::External(version), source.as_bytes());
        let placement = Placement::new(at(n), Some(shard.clone()), []);
        write("bench-placements", WriteGuard::Absent, &placement.to_json());
    }
    let elastic = HttpElastic::connect(
        &HttpOptions::new(vec![standin.url().parse().unwrap()], "bench", Duration::from_secs(60)),
        Arc::new(BootClock),
    )
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (maps, location) = (LiveMaps::One(map), LocationPath::new("location").unwrap());
    let audit = Audit {
        elastic: &elastic,
        prefix: "bench",
        topic: "bench",
        maps: &maps,
        location: &location,
        epoch: Epoch::default(),
        options: AuditOptions {
            scans: 4,
            memory: MEMORY,
            folder: folder.path().to_owned(),
            settle: Duration::from_secs(1),
            timeout: Duration::from_secs(60),
            rate: None,
            sweep_below: None,
        },
    };
    for _ in 0..3 {
        let (began, cpu) = (Instant::now(), cpu_seconds());
        let report = audit.run(&|_| {}, async |_| Ok(())).await.unwrap();
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        assert!(report.is_clean() && report.totals.documents == documents, "{report}");
        println!(
            "whole audit  {documents} documents in {seconds:.2} s: {:.0} a second, {:.0} by second of CPU, the stand-in's among it",
            documents as f64 / seconds,
            documents as f64 / cpu.max(0.001),
        );
    }
    standin.stop().await;
}

/// MiB, from the kernel; 0 where that is not Linux.
fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn peak() -> u64 {
    status("VmHWM")
}

fn resident() -> u64 {
    status("VmRSS")
}

/// User and system time of this process; 0 where that is not Linux.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    // USER_HZ is 100 on every Linux there is.
    ticks.sum::<f64>() / 100.0
}
