//! How long until a write is found: from the moment when its record is sent to the moment when a search finds it, while a
//! worker has a share of what it can do to do, and refreshes what it wrote (`distribution`, docs/distribution.md).

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::Options;
use crate::documents::Crowd;
use crate::field::{configure, fresh_name, refresh_every};
use crate::probe::{Reach, Sender, probe_under_load};
use crate::process::Worker;
use crate::topic;

/// What is sent, as a share of what the worker does when it has a backlog. The last is the one that a target is set for.
const SHARES: [f64; 3] = [0.1, 0.25, 0.5];

/// People, at least. So many that what the worker can do is seen for seconds, and no write is folded.
const PEOPLE: usize = 100_000;

/// Concurrent probers.
const PROBERS: u64 = 4;

/// What was measured at one load.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// What was sent, as a share of what the worker did when it had a backlog.
    pub share: f64,
    /// Records per second that were sent.
    pub load: f64,
    /// Writes that were looked for.
    pub probes: usize,
    /// Milliseconds that half of the probes took at most.
    pub p50: f64,
    /// Milliseconds that all but one in a hundred took at most.
    pub p99: f64,
    /// Seconds from the last record's sending to the end of all.
    pub rest: f64,
}

/// See the top of this file.
pub fn measure(options: &Options) -> Result<Vec<Latency>> {
    let name = fresh_name("latency")?;
    topic::make(&options.kafka, &name, options.partitions)?;
    let dir = tempfile::tempdir()?;
    let job = format!(
        "[[distribution.jobs]]\nname = \"searchable\"\nkind = \"refresh\"\ninterval = {:?}\n",
        options.refresh_interval
    );
    configure(options, dir.path(), &name, &options.elasticsearch, &job)?;
    let indices = format!("{}/{name}-", options.elasticsearch);
    // As docs/distribution.md says where a job does.
    refresh_every(&indices, "-1")?;
    let binary = crate::field::binary(options)?;
    let mut worker = Worker::start(&binary, dir.path(), options.partitions)?;
    let mut crowd = Crowd::new(options.map()?, "person", options.documents.max(PEOPLE))?;
    let sender = Sender::new(&options.kafka, &name, None)?;

    // What it can do with a backlog, once everybody is known.
    let mut speed = 0.0;
    for step in 1..=3 {
        let began = Instant::now();
        let events = crowd.documents(step);
        events.iter().try_for_each(|event| sender.send(event))?;
        sender.wait_until_done(&mut worker)?;
        #[expect(clippy::cast_precision_loss, reason = "a count of documents")]
        let documents = events.len() as f64;
        speed = documents / began.elapsed().as_secs_f64();
        // Once waited for, it is over.
        worker.settle_in();
    }

    let mut measured = Vec::new();
    for (round, share) in (0_u64..).zip(SHARES) {
        let load = speed * share;
        let until = Instant::now() + Duration::from_secs(options.latency_seconds);
        let events = crowd.documents(4);
        let seed = round * PROBERS;
        let Reach { probes, p50, p99 } =
            probe_under_load(&sender, &indices, &events, load, until, seed..seed + PROBERS)?;
        sender.wait_until_done(&mut worker)?;
        let rest = until.elapsed().as_secs_f64();
        let latency = Latency { share, load, probes, p50, p99, rest };
        eprintln!("latency: {latency:?}");
        measured.push(latency);
    }
    Ok(measured)
}
