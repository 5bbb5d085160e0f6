//! Closed loops of searches, and what they cost.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use geofold::geoshard::describe::covered;

use crate::crowd::{Crowd, Question};
use crate::layout::Layout;
use crate::process::cpu_seconds;

/// How a loop is run.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    pub radius: u32,
    pub clients: usize,
    pub time: Duration,
    /// Writes per second meanwhile.
    pub writes: usize,
    pub seed: usize,
}

/// Whose CPU time is counted.
pub struct SharedCost<'a> {
    pub stack: &'a Path,
    pub router: Option<u32>,
}

/// What came of a loop.
#[derive(Debug, Clone, Copy)]
pub struct Loop {
    /// Queries per second.
    pub rate: f64,
    /// Milliseconds.
    pub p50: f64,
    pub p99: f64,
    /// CPU seconds of Elasticsearch and of the router per 1,000 queries.
    pub cpu: [f64; 2],
    /// Geoshards asked per query.
    pub asked: Option<f64>,
    /// Writes per second.
    pub written: Option<f64>,
}

impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, p50, p99, cpu: [elasticsearch, router], .. } = self;
        write!(
            f,
            "{rate:.0}/s, p50 {p50:.1} ms, p99 {p99:.1} ms, CPU {elasticsearch:.2} + {router:.2} s/1000"
        )
    }
}

/// Each client sends its next search when it has the answer.
#[expect(clippy::cast_precision_loss, reason = "a count of searches")]
pub fn run(crowd: &Crowd, layout: &Layout, conditions: &Conditions, cost: &SharedCost<'_>) -> Result<Loop> {
    let before = cost.now()?;
    let began = Instant::now();
    let client = |client: usize| -> Result<Vec<(f64, Option<u64>)>> {
        let mut answers = Vec::new();
        while began.elapsed() < conditions.time {
            let number = answers.len() * conditions.clients + client;
            let question = crowd.question(conditions.radius, (conditions.seed << 32 | number) as u64);
            let asked = Instant::now();
            let answer = layout.ask(&question)?;
            answers.push((milliseconds(asked), answer.geoshards));
        }
        Ok(answers)
    };
    let answers: Result<Vec<_>> = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..conditions.clients).map(|number| scope.spawn(move || client(number))).collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|_| bail!("a client panicked")))
            .collect()
    });
    let (took, after) = (began.elapsed().as_secs_f64(), cost.now()?);
    let answers = answers?.concat();
    let count = answers.len() as f64;
    let asked: Vec<u64> = answers.iter().filter_map(|(_, asked)| *asked).collect();
    let latencies = sorted(answers.iter().map(|(latency, _)| *latency));
    Ok(Loop {
        rate: count / took,
        p50: share(&latencies, 0.5),
        p99: share(&latencies, 0.99),
        cpu: [0, 1].map(|who| (after[who] - before[who]) / count * 1_000.0),
        asked: (!asked.is_empty()).then(|| asked.iter().sum::<u64>() as f64 / asked.len() as f64),
        written: None,
    })
}

impl SharedCost<'_> {
    fn now(&self) -> Result<[f64; 2]> {
        let file = self.stack.join("elasticsearch/pid");
        let pid = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let elasticsearch = cpu_seconds(pid.trim().parse().context("a process id")?)?;
        Ok([elasticsearch, self.router.map_or(Ok(0.0), cpu_seconds)?])
    }
}

/// The same searches through the router and directly.
#[derive(Debug)]
pub struct Overhead {
    pub layout: String,
    pub radius: u32,
    /// Milliseconds: p50 and p99 of each.
    pub direct: [f64; 2],
    pub routed: [f64; 2],
}

/// By one client, each search both ways, one after the other.
pub fn overhead(crowd: &Crowd, layout: &Layout, searches: usize) -> Result<Vec<Overhead>> {
    let maps = layout.map().context("geoshards")?;
    let mut overheads = Vec::new();
    for radius in crate::RADII {
        let (mut direct, mut routed) = (Vec::new(), Vec::new());
        for n in 0..searches {
            let question = crowd.question(radius, (7 << 40 | n) as u64);
            let indices = covered(maps, layout.prefix(), &question.shape).indices;
            // Neither always finds the caches warm.
            for is_direct in [n % 2 == 0, n % 2 != 0] {
                let asked = Instant::now();
                if is_direct {
                    layout.ask_directly(&indices, &question)?;
                    direct.push(milliseconds(asked));
                } else {
                    layout.ask(&question)?;
                    routed.push(milliseconds(asked));
                }
            }
        }
        let [direct, routed] = [direct, routed].map(|latencies| {
            let latencies = sorted(latencies.into_iter());
            [share(&latencies, 0.5), share(&latencies, 0.99)]
        });
        let overhead = Overhead { layout: layout.name(), radius, direct, routed };
        eprintln!("{overhead:?}");
        overheads.push(overhead);
    }
    Ok(overheads)
}

/// Geoshards asked for the nearest, against those that the circle covers.
#[derive(Debug)]
pub struct EarlyStop {
    pub layout: String,
    pub radius: Option<u32>,
    pub size: usize,
    /// Per search.
    pub asked: f64,
    pub covered: f64,
    pub p50: f64,
}

/// How many geoshards are asked for the nearest few.
#[expect(clippy::cast_precision_loss, reason = "counts of searches and geoshards")]
pub fn early_stop(crowd: &Crowd, layout: &Layout, searches: usize) -> Result<Vec<EarlyStop>> {
    let maps = layout.map().context("geoshards")?;
    let mut stops = Vec::new();
    for radius in [Some(25), Some(100), Some(500), Some(2_000), None] {
        for size in [10, 100, 1_000] {
            let (mut asked, mut full, mut latencies) = (0, 0, Vec::new());
            for n in 0..searches {
                let question: Question = crowd.nearest(radius, size, n as u64);
                full += covered(maps, layout.prefix(), &question.shape).indices.len();
                let began = Instant::now();
                let answer = layout.ask(&question)?;
                latencies.push(milliseconds(began));
                asked += answer.geoshards.context("the router says how many geoshards it asked")?;
            }
            let per_search = |sum: f64| sum / searches as f64;
            let stop = EarlyStop {
                layout: layout.name(),
                radius,
                size,
                asked: per_search(asked as f64),
                covered: per_search(full as f64),
                p50: share(&sorted(latencies.into_iter()), 0.5),
            };
            eprintln!("{stop:?}");
            stops.push(stop);
        }
    }
    Ok(stops)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1_000.0
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// What so many of the sorted values are not above.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a place in a list"
)]
fn share(sorted: &[f64], share: f64) -> f64 {
    let place = (share * sorted.len() as f64) as usize;
    sorted.get(place.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}
