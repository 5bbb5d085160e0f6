//! How fast searches are while a worker drains a backlog: without a ceiling of operations, with one, and with adaptive
//! concurrency; beside searches while nothing is written.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use geofold::base::geo::{Distance, GeoPoint};
use geofold::geoshard::LiveMaps;
use geofold::geoshard::cover::Shape;
use geofold::geoshard::describe::covered;
use serde_json::{Value, json};

use crate::Options;
use crate::documents::Random;
use crate::field::Field;

/// Concurrent searchers.
const SEARCHERS: u64 = 4;

/// Of one searcher, between two searches.
const PAUSE: Duration = Duration::from_millis(20);

/// So far around a person.
const METRES: f64 = 300_000.0;

/// The target for the p99 with a ceiling, in ratio to that without a backlog.
const WANTED: f64 = 1.5;

/// What is done meanwhile.
#[derive(Debug, Clone, Copy)]
enum Load {
    /// Nothing.
    Quiet,
    /// A backlog is drained as fast as it can be.
    Backlog,
    /// With a ceiling of so many operations per second, this share of what was done without one.
    Ceiling { per_second: u32, share: f64 },
    /// With adaptive concurrency.
    Adaptive,
}

/// What was measured under one load.
#[derive(Debug, Clone, Copy)]
pub struct Searched {
    load: Load,
    /// Records per second that the worker did.
    speed: Option<f64>,
    searches: usize,
    /// Milliseconds.
    p50: f64,
    p99: f64,
}

/// See the top of this file. At the beginning and at the end nothing is written, so that both can be compared.
pub fn measure(options: &Options) -> Result<Vec<Searched>> {
    let mut field =
        Field::prepare(options, &options.elasticsearch, options.partitions, options.documents, "")?;
    field.refresh_every("1s")?;
    field.first_documents()?;
    let searches = Searches::new(options, &field)?;
    // Elasticsearch and its compiler have warmed up.
    searches.for_some_seconds(options)?;
    let mut measured = vec![searches.while_quiet(options)?];
    let fastest = searches.while_draining(options, &mut field, Load::Backlog)?;
    measured.push(fastest);
    for share in options.ceilings.iter().copied() {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "operations per second")]
        let per_second = (fastest.speed.unwrap_or(0.0) * share).max(1.0) as u32;
        measured.push(searches.while_draining(options, &mut field, Load::Ceiling { per_second, share })?);
    }
    measured.push(searches.while_draining(options, &mut field, Load::Adaptive)?);
    measured.push(searches.while_quiet(options)?);
    Ok(measured)
}

/// Searches for people around people.
struct Searches {
    http: reqwest::blocking::Client,
    elasticsearch: String,
    prefix: String,
    map: LiveMaps,
    places: Vec<GeoPoint>,
}

impl Searches {
    fn new(options: &Options, field: &Field) -> Result<Self> {
        Ok(Self {
            http: reqwest::blocking::Client::builder().timeout(Duration::from_secs(60)).build()?,
            elasticsearch: options.elasticsearch.clone(),
            prefix: field.name.clone(),
            map: LiveMaps::One(Arc::new(options.map()?)),
            places: field.crowd.people.iter().map(|person| person.at).collect(),
        })
    }

    fn while_quiet(&self, options: &Options) -> Result<Searched> {
        let milliseconds = self.for_some_seconds(options)?;
        Ok(Searched::new(Load::Quiet, None, milliseconds))
    }

    fn for_some_seconds(&self, options: &Options) -> Result<Vec<f64>> {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let searching = scope.spawn(|| self.until(&is_over));
            thread::sleep(Duration::from_secs(options.latency_seconds));
            is_over.store(true, Ordering::Relaxed);
            searching.join().unwrap_or_else(|_| bail!("a searcher panicked"))
        })
    }

    fn while_draining(&self, options: &Options, field: &mut Field, load: Load) -> Result<Searched> {
        let lines = match load {
            Load::Quiet | Load::Backlog => String::new(),
            Load::Ceiling { per_second, .. } => format!("max_operations_per_second = {per_second}\n"),
            Load::Adaptive => "adaptive_concurrency = true\n".to_owned(),
        };
        field.restart_with(&lines)?;
        let records = options.searched_backlog;
        let (took, milliseconds) = field.drain(records, |is_over| self.until(is_over))?;
        #[expect(clippy::cast_precision_loss, reason = "a count of records")]
        let speed = records as f64 / took.as_secs_f64();
        Ok(Searched::new(load, Some(speed), milliseconds))
    }

    /// Searches until it is over; how many milliseconds each took.
    fn until(&self, is_over: &AtomicBool) -> Result<Vec<f64>> {
        thread::scope(|scope| {
            let searchers: Vec<_> = (0..SEARCHERS)
                .map(|searcher| scope.spawn(move || self.one_after_the_other(searcher, is_over)))
                .collect();
            let mut milliseconds = Vec::new();
            for searcher in searchers {
                let took: Result<Vec<f64>> = searcher.join().unwrap_or_else(|_| bail!("a searcher panicked"));
                milliseconds.extend(took?);
            }
            Ok(milliseconds)
        })
    }

    fn one_after_the_other(&self, searcher: u64, is_over: &AtomicBool) -> Result<Vec<f64>> {
        let mut random = Random::new(23 + searcher);
        let mut milliseconds = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let centre = self.places[random.index(self.places.len())];
            let shape = Shape::circle(centre, Distance::from_metres(METRES)?);
            let indices = covered(&self.map, &self.prefix, &shape).indices.join(",");
            let age = 18 + random.below(40);
            let body = json!({"size": 20, "query": {"bool": {
                "must": [{"match": {"about": "coffee mountains jazz"}}],
                "filter": [
                    {"geo_distance": {"distance": format!("{METRES}m"),
                                      "location": {"lat": centre.lat(), "lon": centre.lon()}}},
                    {"range": {"age": {"gte": age, "lte": age + 20}}},
                ],
            }}});
            let began = Instant::now();
            let answer =
                self.http.post(format!("{}/{indices}/_search", self.elasticsearch)).json(&body).send()?;
            let answer: Value = answer.error_for_status()?.json()?;
            milliseconds.push(began.elapsed().as_secs_f64() * 1e3);
            if answer["timed_out"] != false || answer["_shards"]["failed"] != 0 {
                bail!("a search was not answered as a whole: {answer}");
            }
            thread::sleep(PAUSE);
        }
        Ok(milliseconds)
    }
}

impl Searched {
    fn new(load: Load, speed: Option<f64>, mut milliseconds: Vec<f64>) -> Self {
        milliseconds.sort_by(f64::total_cmp);
        let at = |share: usize| {
            let place = milliseconds.len().saturating_sub(1) * share / 100;
            milliseconds.get(place).copied().unwrap_or(f64::NAN)
        };
        let searched = Self { load, speed, searches: milliseconds.len(), p50: at(50), p99: at(99) };
        eprintln!("searches: {searched:?}");
        searched
    }
}

/// What was measured, as Markdown; nothing if it was not.
pub fn table(measured: &[Searched]) -> String {
    let quiet: Vec<f64> =
        measured.iter().filter(|one| matches!(one.load, Load::Quiet)).map(|one| one.p99).collect();
    let [first, last] = quiet[..] else { return String::new() };
    let quiet = f64::midpoint(first, last);
    let mut text = format!(
        "\nSearches while a backlog is drained (bold: above {WANTED} times the mean 99 % of both without one):\n\n\
         | meanwhile | records/s | searches | half within, ms | 99 % within, ms | 99 % in ratio to none |\n\
         |---|---:|---:|---:|---:|---:|\n"
    );
    for Searched { load, speed, searches, p50, p99 } in measured {
        let load = match load {
            Load::Quiet => "nothing".to_owned(),
            Load::Backlog => "backlog".to_owned(),
            Load::Ceiling { per_second, share } => {
                format!("backlog, ceiling of {per_second} operations/s ({share:.2} of the speed without)")
            }
            Load::Adaptive => "backlog, adaptive concurrency".to_owned(),
        };
        let speed = speed.map_or_else(String::new, |speed| format!("{speed:.0}"));
        let ratio = p99 / quiet;
        let bold = if ratio > WANTED { "**" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {load} | {speed} | {searches} | {p50:.1} | {p99:.1} | {bold}{ratio:.2}{bold} |"
        );
    }
    text
}
