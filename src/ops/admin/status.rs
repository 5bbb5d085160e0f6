//! The worker's status as one value, sent by `/status.json` and shown on the status page.
//!
//! Counters are since the worker's start; rates come from two readings. Nothing here names a document.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use serde::Serialize;

use super::document_counts::DocumentCounts;
use super::load::{LoadSummary, ViewedLoad};
use super::viewed::LastAnswer;
use crate::base::clock::{Clock, Instant};
use crate::base::ids::ShardId;
use crate::geoshard::cities::largest_cities;
use crate::geoshard::load::{HotPlace, Hours};
use crate::geoshard::map::GeoshardMap;
use crate::geoshard::picture::MapDrawing;
use crate::support::telemetry::families::Label;
use crate::support::telemetry::health::{Alive, Health};
use crate::support::telemetry::partition_status::{PartitionStatus, PartitionStatusReader};
use crate::support::telemetry::reading::RequestReading;
use crate::support::telemetry::recent::{RecentEvent, unix_millis};
use crate::support::telemetry::{Metrics, OutcomeLabel, Recent};

/// Colours for documents per geoshard.
pub const CLASSES: u64 = 6;

/// The least load of each colour, as a multiple of the mean. What has the last colour makes an autopilot change the map, as it is
/// unless told otherwise.
pub const LOAD_SCALE: [f64; 6] = [0.0, 0.5, 0.8, 1.0, 1.1, 1.25];

/// Facts that are constant while the worker runs.
#[derive(Debug, Clone, Serialize)]
pub struct Worker {
    /// Of geofold.
    pub version: &'static str,
    /// The topic read.
    pub topic: String,
    /// The consumer group.
    pub group: String,
    /// Start of every index name.
    pub prefix: String,
    /// The worker's: client, host, process.
    pub name: String,
}

/// Where the status is read from.
pub struct StatusSource {
    worker: Worker,
    clock: Arc<dyn Clock>,
    started: Instant,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    map: MapNow,
    limits: LimitsNow,
    counts: Arc<DocumentCounts>,
    load: Arc<ViewedLoad>,
    partition_status: PartitionStatusReader,
    recent: Recent,
    shown: Mutex<Arc<ShownMap>>,
}

/// Returns the map that places documents.
pub type MapNow = Arc<dyn Fn() -> Arc<GeoshardMap> + Send + Sync>;

/// Returns the followed keys with the values in force.
pub type LimitsNow = Arc<dyn Fn() -> BTreeMap<String, toml::Value> + Send + Sync>;

/// The map of the status, and its drawing, made on demand.
#[derive(Debug)]
pub struct ShownMap {
    map: Arc<GeoshardMap>,
    drawing: OnceLock<MapDrawing>,
}

impl ShownMap {
    fn new(map: Arc<GeoshardMap>) -> Arc<Self> {
        Arc::new(Self { map, drawing: OnceLock::new() })
    }

    /// The map's drawing, made on first use.
    pub fn drawing(&self) -> &MapDrawing {
        self.drawing.get_or_init(|| MapDrawing::new(&self.map))
    }
}

/// Inputs of a [`StatusSource`].
pub struct StatusParts {
    /// Names.
    pub worker: Worker,
    /// Boot time; the worker counts as started now.
    pub clock: Arc<dyn Clock>,
    /// Counters and gauges.
    pub metrics: Arc<Metrics>,
    /// Liveness and readiness.
    pub health: Arc<Health>,
    /// The current map; read each time, since it may change.
    pub map: MapNow,
    /// The followed configuration; read each time.
    pub limits: LimitsNow,
    /// Documents of each.
    pub counts: Arc<DocumentCounts>,
    /// Writes and searches by place.
    pub load: Arc<ViewedLoad>,
    /// Where partitions stand.
    pub partition_status: PartitionStatusReader,
    /// Warnings and errors.
    pub recent: Recent,
}

impl StatusSource {
    /// For a worker that starts now.
    pub fn new(parts: StatusParts) -> Arc<Self> {
        let StatusParts {
            worker,
            clock,
            metrics,
            health,
            map,
            limits,
            counts,
            load,
            partition_status,
            recent,
        } = parts;
        let (started, shown) = (clock.now(), Mutex::new(ShownMap::new(map())));
        Arc::new(Self {
            worker,
            clock,
            started,
            metrics,
            health,
            map,
            limits,
            counts,
            load,
            partition_status,
            recent,
            shown,
        })
    }

    /// The map that places documents now.
    pub fn shown(&self) -> Arc<ShownMap> {
        let map = (self.map)();
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.map != map {
            *shown = ShownMap::new(map);
        }
        shown.clone()
    }

    /// The current status. Counts as viewing the document counts and the load.
    pub fn status(&self) -> WorkerStatus {
        self.with(self.counts.look(), self.load.look())
    }

    /// The same for somebody who shows neither of them.
    pub fn status_unviewed(&self) -> WorkerStatus {
        self.with(self.counts.last(), self.load.last())
    }

    fn with(
        &self,
        counted: LastAnswer<BTreeMap<ShardId, u64>>,
        load: LastAnswer<Arc<LoadSummary>>,
    ) -> WorkerStatus {
        let map = self.shown().map.clone();
        let missing = self.health.missing();
        let partitions = self.partitions();
        let silent_seconds = match self.health.alive() {
            Alive::Yes => None,
            Alive::Silent(silence) => Some(silence.as_secs()),
        };
        let time_ms = unix_millis(SystemTime::now());
        let documents = ShardDocuments::new(&map, counted, self.clock.now());
        WorkerStatus {
            time_ms,
            uptime_seconds: self.clock.now().since(self.started).as_secs_f64(),
            worker: self.worker.clone(),
            map: Map { name: map.name().to_owned(), version: map.version() },
            ready: missing.is_empty(),
            reasons: missing.into_iter().map(|(part, reason)| Reason { part, reason }).collect(),
            silent_seconds,
            oldest_dirty_seconds: partitions.iter().map(|p| p.oldest_dirty_seconds).fold(0.0, f64::max),
            lag: partitions.iter().filter_map(|partition| partition.lag).sum(),
            counters: self.counters(),
            outcomes: counts(self.metrics.read_outcomes()),
            retries: counts(self.metrics.read_retries()),
            dead_letters: counts(self.metrics.read_dead_letters()),
            elasticsearch: ElasticsearchStatus {
                requests: self.metrics.read_requests().into_iter().map(Requests::new).collect(),
                permits: self.metrics.elasticsearch.permits.get(),
                permits_in_use: self.metrics.elasticsearch.permits_in_use.get(),
                waiting: self.metrics.elasticsearch.requests_waiting.get(),
            },
            memory: MemoryStatus {
                held_bytes: self.metrics.held_bytes.get(),
                limit_bytes: self.metrics.held_bytes_limit.get(),
            },
            partitions,
            limits: (self.limits)().into_iter().map(Limit::new).collect(),
            load: LoadStatus::new(&documents, load, time_ms / 1000),
            documents,
            recent: self.recent.events(),
        }
    }

    pub(super) fn partitions(&self) -> Vec<PartitionRow> {
        let statuses: HashMap<i32, PartitionStatus> =
            self.partition_status.borrow().iter().map(|status| (status.partition, *status)).collect();
        let partition = |reading: crate::support::telemetry::reading::PartitionReading| {
            let status = statuses.get(&reading.partition);
            let state = match (reading.stopped, status) {
                (true, _) => PartitionState::Stopped,
                (false, Some(status)) if status.paused => PartitionState::Paused,
                (false, Some(_)) => PartitionState::Running,
                (false, None) => PartitionState::Starting,
            };
            PartitionRow {
                partition: reading.partition,
                state,
                lag: status.and_then(|status| status.lag()),
                watermark: status.and_then(|status| status.watermark),
                committed: status.and_then(|status| status.committed),
                in_flight: reading.in_flight,
                parked: reading.parked,
                dirty_documents: reading.dirty_documents,
                dirty_bytes: reading.dirty_bytes,
                oldest_dirty_seconds: reading.oldest_dirty_seconds,
            }
        };
        self.metrics.read_partitions().into_iter().map(partition).collect()
    }

    pub(super) fn counters(&self) -> PageCounters {
        let outcomes = self.metrics.read_outcomes();
        let count = |wanted: OutcomeLabel| {
            outcomes.iter().find(|(name, _)| *name == wanted.as_str()).map_or(0, |(_, count)| *count)
        };
        PageCounters {
            records: self.metrics.read_records(),
            indexed: count(OutcomeLabel::Indexed),
            folded: count(OutcomeLabel::Folded),
            moves: self.metrics.moves.get(),
            retries: self.metrics.read_retries().values().sum(),
            dead_letters: self.metrics.read_dead_letters().values().sum(),
        }
    }
}

/// See the file's first lines.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerStatus {
    /// Now, in milliseconds since 1970.
    pub time_ms: u64,
    /// Seconds since the worker started.
    pub uptime_seconds: f64,
    /// Names.
    pub worker: Worker,
    /// The map in use.
    pub map: Map,
    /// Whether `/readyz` says ready.
    pub ready: bool,
    /// Why not.
    pub reasons: Vec<Reason>,
    /// How long the poll thread has been silent, if so long that the worker is not alive.
    pub silent_seconds: Option<u64>,
    /// Over all owned partitions.
    pub oldest_dirty_seconds: f64,
    /// Records from watermark to end, of all owned partitions where it is known.
    pub lag: i64,
    /// Values that change with load.
    pub counters: PageCounters,
    /// Records that came to their end, by outcome.
    pub outcomes: Vec<Count>,
    /// Operations sent again, by reason.
    pub retries: Vec<Count>,
    /// Dead letters, by reason.
    pub dead_letters: Vec<Count>,
    /// Requests.
    pub elasticsearch: ElasticsearchStatus,
    /// Held bytes.
    pub memory: MemoryStatus,
    /// The partitions owned now.
    pub partitions: Vec<PartitionRow>,
    /// Followed keys with the values in force.
    pub limits: Vec<Limit>,
    /// Documents of each geoshard.
    pub documents: ShardDocuments,
    /// Writes and searches by place.
    pub load: LoadStatus,
    /// The last warnings and errors, the newest first.
    pub recent: Vec<RecentEvent>,
}

/// A key of the configuration, and its value in force.
#[derive(Debug, Clone, Serialize)]
pub struct Limit {
    /// As `section.key`.
    pub key: String,
    /// As it would be written, without quotation marks.
    pub value: String,
}

impl Limit {
    fn new((key, value): (String, toml::Value)) -> Self {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Self { key, value }
    }
}

/// A map's names.
#[derive(Debug, Clone, Serialize)]
pub struct Map {
    /// Name.
    pub name: String,
    /// Its version.
    pub version: u64,
}

/// Why the worker is not ready.
#[derive(Debug, Clone, Serialize)]
pub struct Reason {
    /// The part that is not ready.
    pub part: String,
    /// Why.
    pub reason: String,
}

/// One counter of several that differ in a label.
#[derive(Debug, Clone, Serialize)]
pub struct Count {
    /// The label's value.
    pub name: String,
    /// The count.
    pub count: u64,
}

fn counts(counters: impl IntoIterator<Item = (impl Into<String>, u64)>) -> Vec<Count> {
    counters.into_iter().map(|(name, count)| Count { name: name.into(), count }).collect()
}

/// Counters whose rates the page shows.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PageCounters {
    /// Records read.
    pub records: u64,
    /// Records written to a geoshard.
    pub indexed: u64,
    /// Records that a newer one took in.
    pub folded: u64,
    /// Documents that changed geoshard.
    pub moves: u64,
    /// Operations sent again.
    pub retries: u64,
    /// Messages in the dead-letter topic.
    pub dead_letters: u64,
}

/// Requests to Elasticsearch.
#[derive(Debug, Clone, Serialize)]
pub struct ElasticsearchStatus {
    /// By kind.
    pub requests: Vec<Requests>,
    /// Maximum concurrent requests.
    pub permits: i64,
    /// Under way, or waiting to be sent again.
    pub permits_in_use: i64,
    /// That wait for a permit or their next attempt.
    pub waiting: i64,
}

/// Requests of one kind.
#[derive(Debug, Clone, Serialize)]
pub struct Requests {
    /// `mget` or `bulk`.
    pub kind: &'static str,
    /// Sent, each attempt.
    pub sent: u64,
    /// Without a usable answer.
    pub failed: u64,
    /// Approximate median duration in seconds; `None` without any.
    pub median_seconds: Option<f64>,
    /// The same for 99 of 100.
    pub p99_seconds: Option<f64>,
    /// Upper bound in seconds, and requests that took no longer; ascending.
    pub buckets: Vec<(f64, u64)>,
}

impl Requests {
    fn new(reading: RequestReading) -> Self {
        let RequestReading { kind, ok, failed, buckets } = reading;
        let quantile = |q| quantile(&buckets, q);
        let (median_seconds, p99_seconds) = (quantile(0.5), quantile(0.99));
        Self { kind: kind.as_str(), sent: ok + failed, failed, median_seconds, p99_seconds, buckets }
    }
}

/// A quantile of cumulative buckets, interpolated linearly within each, as Prometheus does. The last bound for values above it.
fn quantile(buckets: &[(f64, u64)], q: f64) -> Option<f64> {
    let count = |(_, count): &(f64, u64)| u32::try_from(*count).map_or(f64::from(u32::MAX), f64::from);
    let total = buckets.last().map(count).filter(|total| *total > 0.0)?;
    let mut lower = (0.0, 0.0);
    for bucket in buckets {
        let (bound, below) = (bucket.0, count(bucket));
        if below >= q * total {
            let within = (q * total - lower.1) / (below - lower.1);
            return Some(lower.0 + (bound - lower.0) * within);
        }
        lower = (bound, below);
    }
    Some(lower.0)
}

/// Bytes of records and folds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MemoryStatus {
    /// Held now.
    pub held_bytes: i64,
    /// Where fetching stops.
    pub limit_bytes: i64,
}

/// How a partition does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PartitionState {
    /// Assigned a moment ago.
    Starting,
    /// Records are fetched.
    Running,
    /// Fetching waits until held records are written.
    Paused,
    /// Stopped at a record until an operator acts.
    Stopped,
}

impl PartitionState {
    /// One word, also the name of its colour on the page.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        }
    }
}

/// An owned partition.
#[derive(Debug, Clone, Serialize)]
pub struct PartitionRow {
    /// Its number.
    pub partition: i32,
    /// How it does.
    pub state: PartitionState,
    /// Records from the watermark to the partition's end; `None` until both are known.
    pub lag: Option<i64>,
    /// The offset that may be committed.
    pub watermark: Option<i64>,
    /// The offset that the broker acknowledged.
    pub committed: Option<i64>,
    /// Records read that have not come to their end.
    pub in_flight: i64,
    /// Documents that wait for their next record.
    pub parked: i64,
    /// Documents with writes that are not in Elasticsearch yet.
    pub dirty_documents: i64,
    /// Bytes of those writes.
    pub dirty_bytes: i64,
    /// Seconds since the oldest of those writes was read.
    pub oldest_dirty_seconds: f64,
}

/// Documents of each geoshard, as Elasticsearch told.
#[derive(Debug, Clone, Serialize)]
pub struct ShardDocuments {
    /// Seconds since Elasticsearch told; `None` if it has not.
    pub age_seconds: Option<f64>,
    /// Why the last question brought no answer.
    pub problem: Option<String>,
    /// Of all geoshards that are known.
    pub total: Option<u64>,
    /// The fullest geoshard, and how many times the mean it holds.
    pub fullest: Option<Fullest>,
    /// The least number of documents of each colour, from pale to strong.
    pub scale: Vec<u64>,
    /// In the map's order.
    pub shards: Vec<Shard>,
}

/// The fullest geoshard.
#[derive(Debug, Clone, Serialize)]
pub struct Fullest {
    /// Its id.
    pub shard: String,
    /// Its documents, over the mean of all geoshards that are known.
    pub times_mean: f64,
}

/// One geoshard.
#[derive(Debug, Clone, Serialize)]
pub struct Shard {
    /// Its id.
    pub shard: String,
    /// Its largest city; empty if it has none of the list.
    pub around: &'static str,
    /// Its documents; `None` where Elasticsearch has not told.
    pub documents: Option<u64>,
    /// Its colour, 0 to [`CLASSES`] - 1.
    pub class: Option<u64>,
}

impl ShardDocuments {
    fn new(map: &GeoshardMap, counted: LastAnswer<BTreeMap<ShardId, u64>>, now: Instant) -> Self {
        let LastAnswer { last, problem } = counted;
        let (at, counts) = last.unzip();
        let counts = counts.unwrap_or_default();
        let step = nice_step(counts.values().copied().max().unwrap_or_default());
        let shard = |(id, city): (&ShardId, Option<&'static str>)| {
            let documents = counts.get(id).copied();
            let class = documents.map(|documents| (documents / step).min(CLASSES - 1));
            Shard { shard: id.to_string(), around: city.unwrap_or_default(), documents, class }
        };
        let shards: Vec<Shard> = map.shards().iter().zip(largest_cities(map)).map(shard).collect();
        let known: Vec<u64> = shards.iter().filter_map(|shard| shard.documents).collect();
        let total: u64 = known.iter().sum();
        let mean = total as f64 / known.len().max(1) as f64;
        let fullest = shards.iter().max_by_key(|shard| shard.documents).and_then(|shard| {
            let documents = shard.documents.filter(|documents| *documents > 0)?;
            Some(Fullest { shard: shard.shard.clone(), times_mean: documents as f64 / mean })
        });
        Self {
            age_seconds: at.map(|at| now.since(at).as_secs_f64()),
            problem,
            total: (!known.is_empty()).then_some(total),
            fullest,
            scale: (0..CLASSES).map(|class| step.saturating_mul(class)).collect(),
            shards,
        }
    }
}

/// Load by place, as workers and routers counted it. All rates are per second.
#[derive(Debug, Clone, Serialize)]
pub struct LoadStatus {
    /// Seconds since counts were added; `None` if the load is not known.
    pub age_seconds: Option<f64>,
    /// Why the last question brought no answer.
    pub problem: Option<String>,
    /// The geoshard with the most load.
    pub largest: Option<Fullest>,
    /// [`LOAD_SCALE`].
    pub scale: [f64; 6],
    /// In the map's order.
    pub shards: Vec<ShardLoad>,
    /// The places with the most writes and searches.
    pub hottest: Vec<HotPlace>,
    /// Of all places, for a week.
    pub hours: Hours,
}

/// The load of one geoshard.
#[derive(Debug, Clone, Serialize)]
pub struct ShardLoad {
    /// Its id.
    pub shard: String,
    /// Its largest city; empty if none is known.
    pub around: &'static str,
    /// Its share of documents, of writes and of searches, each as much as the others, over that of the mean geoshard.
    pub times_mean: Option<f64>,
    /// Documents written.
    pub writes: Option<f64>,
    /// Searches.
    pub queries: Option<f64>,
    /// Its colour, 0 to [`CLASSES`] - 1.
    pub class: Option<u64>,
}

impl LoadStatus {
    fn new(documents: &ShardDocuments, answer: LastAnswer<Arc<LoadSummary>>, now: u64) -> Self {
        let LastAnswer { last, problem } = answer;
        let summary = last.map(|(_, summary)| summary);
        let of = |shard: &Shard| {
            let [writes, queries] = *summary.as_ref()?.shards.get(&shard.shard)?;
            Some([shard.documents.unwrap_or_default() as f64, writes, queries])
        };
        let measured: Vec<Option<[f64; 3]>> = documents.shards.iter().map(of).collect();
        let times_mean = times_mean(&measured);
        let shard = |(shard, (measured, times_mean)): (&Shard, (&Option<[f64; 3]>, Option<f64>))| ShardLoad {
            shard: shard.shard.clone(),
            around: shard.around,
            times_mean,
            writes: measured.map(|[_, writes, _]| writes),
            queries: measured.map(|[.., queries]| queries),
            class: times_mean
                .map(|times| LOAD_SCALE.iter().skip(1).filter(|least| times >= **least).map(|_| 1_u64).sum()),
        };
        let shards: Vec<ShardLoad> =
            documents.shards.iter().zip(measured.iter().zip(times_mean)).map(shard).collect();
        let largest = shards
            .iter()
            .filter_map(|shard| Some(Fullest { shard: shard.shard.clone(), times_mean: shard.times_mean? }))
            .max_by(|one, other| one.times_mean.total_cmp(&other.times_mean));
        Self {
            age_seconds: summary.as_ref().map(|summary| now.saturating_sub(summary.at) as f64),
            problem,
            largest,
            scale: LOAD_SCALE,
            shards,
            hottest: summary.as_ref().map(|summary| summary.hottest.clone()).unwrap_or_default(),
            hours: summary.map(|summary| summary.hours.clone()).unwrap_or_default(),
        }
    }
}

/// What each geoshard has of documents, writes and searches as one number, of which the mean is 1. A measure of which there is
/// nothing does not count.
fn times_mean(measured: &[Option<[f64; 3]>]) -> Vec<Option<f64>> {
    let known = measured.iter().flatten();
    let totals = known.fold([0.0; 3], |sums, of| [0, 1, 2].map(|n| sums[n] + of[n]));
    let count = totals.iter().filter(|total| **total > 0.0).count() as f64;
    let shards = measured.iter().flatten().count() as f64;
    let times = |of: &[f64; 3]| {
        let shares = of.iter().zip(totals).filter(|(_, total)| *total > 0.0).map(|(of, total)| of / total);
        (count > 0.0).then(|| shares.sum::<f64>() / count * shards)
    };
    measured.iter().map(|of| of.as_ref().and_then(times)).collect()
}

/// The least of 1, 2, 5, 10, 20, 50, … whose [`CLASSES`] steps reach `most`.
fn nice_step(most: u64) -> u64 {
    let mut power: u64 = 1;
    loop {
        for factor in [1, 2, 5] {
            let step = power.saturating_mul(factor);
            if step.checked_mul(CLASSES).is_none_or(|reach| reach > most) {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_on_the_line_within_its_bucket() {
        let buckets = [(0.1, 0), (0.2, 10), (0.5, 10), (1.0, 20)];
        assert_eq!(quantile(&buckets, 0.25), Some(0.15000000000000002));
        assert_eq!(quantile(&buckets, 0.5), Some(0.2));
        assert_eq!(quantile(&buckets, 0.75), Some(0.75));
        assert_eq!(quantile(&[(0.1, 0)], 0.5), None);
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn load_is_the_mean_share_of_what_there_is() {
        for (measured, expected) in [
            ([Some([30.0, 3.0, 4.0]), Some([10.0, 1.0, 4.0])], [Some(4.0 / 3.0), Some(2.0 / 3.0)]),
            // Nobody searched.
            ([Some([30.0, 1.0, 0.0]), Some([10.0, 3.0, 0.0])], [Some(1.0), Some(1.0)]),
            ([Some([5.0, 1.0, 0.0]), None], [Some(1.0), None]),
            ([Some([0.0; 3]), None], [None, None]),
        ] {
            let rounded = |times: Option<f64>| times.map(|times| (times * 1e6).round());
            assert_eq!(
                times_mean(&measured).into_iter().map(rounded).collect::<Vec<_>>(),
                expected.map(rounded),
                "{measured:?}"
            );
        }
    }

    #[test]
    fn the_scale_has_round_steps_that_reach_the_fullest() {
        for (most, step) in [(0, 1), (5, 1), (6, 2), (599_999, 100_000), (600_000, 200_000)] {
            assert_eq!(nice_step(most), step, "{most}");
        }
        assert!(nice_step(u64::MAX) > u64::MAX / CLASSES);
    }
}
