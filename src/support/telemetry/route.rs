//! Every metric of a router, on a registry of its own.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry, Result, TextEncoder};

use super::families::{Counters, Histograms, Label, MetricInfo, Register, label};
use super::maps::MapsMetrics;
use super::reload::ReloadMetrics;

label! {
    /// What a client asks.
    Operation {
        /// `_search`.
        Search => "search",
        /// `_count`.
        Count => "count",
        /// One search of an `_msearch`.
        Msearch => "msearch",
    }
}

label! {
    /// How it ended.
    Answered {
        /// With hits.
        Ok => "ok",
        /// The request was refused: a feature, its size, its form.
        Refused => "refused",
        /// Too many at once.
        Busy => "busy",
        /// Elasticsearch or the maps gave no answer.
        Failed => "failed",
        /// The client left before.
        Left => "left",
    }
}

/// Seconds of one request.
const TIME_BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
/// Geoshards of one request.
const SHARD_BUCKETS: [f64; 9] = [1.0, 2.0, 3.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0];

/// Every metric of one router.
#[derive(Debug)]
pub struct RouteMetrics {
    registry: Registry,
    catalogue: Vec<MetricInfo>,
    requests: IntCounterVec,
    seconds: Histograms<Operation>,
    geoshards: Histogram,
    /// Requests to Elasticsearch, by whether an answer came.
    pub upstream: Counters<SentLabel>,
    /// Requests that were sent again.
    pub retried: Counters<Retried>,
    /// Slow requests to Elasticsearch that were sent to another node, too.
    pub hedges: Counters<Hedged>,
    /// Searches for the nearest that did not ask all geoshards.
    pub early_stops: IntCounter,
    /// Older copies of moving documents that were left out.
    pub duplicates: IntCounter,
    /// Answers that took longer than `moves.search_grace`.
    pub beyond_grace: IntCounter,
    /// Requests under way.
    pub in_flight: IntGauge,
    /// Requests that wait for a place.
    pub queued: IntGauge,
    /// 1 if `/readyz` says ready.
    pub ready: IntGauge,
    /// What is known of the maps.
    pub maps: MapsMetrics,
    /// Of a configuration that is read again.
    pub reload: ReloadMetrics,
}

label! {
    /// What came of a request to Elasticsearch.
    SentLabel {
        /// An answer of any status.
        Answered => "answered",
        /// None.
        Failed => "failed",
    }
}

label! {
    /// Why something was sent again.
    Retried {
        /// A node did not answer.
        Node => "node",
        /// The map changed meanwhile.
        Map => "map",
        /// Older copies of documents took up places among the hits.
        Duplicates => "duplicates",
        /// Hits of several requests tied in all but texts, which may sort otherwise than they are shown.
        Ties => "ties",
    }
}

label! {
    /// What came of slow requests.
    Hedged {
        /// It was sent to another node, too.
        Sent => "sent",
        /// That answer was used.
        Won => "won",
        /// It was not: too many were.
        OverBudget => "over_budget",
    }
}

impl RouteMetrics {
    /// All at zero, on a new registry.
    ///
    /// # Errors
    /// Only if two metrics share a name, which the unit tests exclude.
    pub fn new() -> Result<Arc<Self>> {
        let mut to = Register::default();
        let requests = to.counter_vec(
            "geofold_route_requests_total",
            "Searches and counts of clients, by kind and outcome.",
            &["kind", "outcome"],
        )?;
        for kind in Operation::ALL {
            for outcome in Answered::ALL {
                requests.with_label_values(&[kind.as_str(), outcome.as_str()]);
            }
        }
        let seconds = to.histograms(
            "geofold_route_request_seconds",
            "Duration of a client's request, waiting included.",
            "kind",
            &TIME_BUCKETS,
        )?;
        let geoshards = to.histogram(
            "geofold_route_geoshards_asked",
            "Geoshards asked by a search or count.",
            &SHARD_BUCKETS,
        )?;
        let upstream = to.counters(
            "geofold_route_upstream_requests_total",
            "Requests to Elasticsearch, by outcome.",
            "outcome",
        )?;
        let retried = to.counters(
            "geofold_route_retried_total",
            "Repeated requests: a node failed, the map changed, older copies took places among the hits, or hits of several requests tied.",
            "kind",
        )?;
        let hedges = to.counters(
            "geofold_route_hedges_total",
            "Requests unanswered for route.hedge_after: sent to a second node, won by it, or over the budget of one in twenty.",
            "outcome",
        )?;
        let early_stops = to.counter(
            "geofold_route_early_stops_total",
            "Nearest-first searches that left out geoshards without a nearer document.",
        )?;
        let duplicates = to.counter(
            "geofold_route_duplicates_total",
            "Older copies of moving documents left out of answers.",
        )?;
        let beyond_grace = to.counter(
            "geofold_route_beyond_grace_total",
            "Answers slower than moves.search_grace, which may lack moving documents.",
        )?;
        let in_flight = to.gauge("geofold_route_in_flight", "Searches and counts in progress.")?;
        let queued = to.gauge("geofold_route_queued", "Searches and counts waiting to start.")?;
        let ready = to.gauge("geofold_ready", "1 if /readyz answers 200.")?;
        let maps = MapsMetrics::new(&mut to)?;
        let reload = ReloadMetrics::new(&mut to)?;
        to.about_the_process()?;
        let Register { registry, catalogue } = to;
        Ok(Arc::new(Self {
            registry,
            catalogue,
            requests,
            seconds,
            geoshards,
            upstream,
            retried,
            hedges,
            early_stops,
            duplicates,
            beyond_grace,
            in_flight,
            queued,
            ready,
            maps,
            reload,
        }))
    }

    /// A request ended.
    pub fn ended(&self, operation: Operation, outcome: Answered, time: Duration) {
        self.requests.with_label_values(&[operation.as_str(), outcome.as_str()]).inc();
        self.seconds.of(operation).observe(time.as_secs_f64());
    }

    /// It asked so many geoshards.
    pub fn asked(&self, geoshards: usize) {
        self.geoshards.observe(geoshards as f64);
    }

    /// How many requests ended so.
    pub fn requests(&self, operation: Operation, outcome: Answered) -> u64 {
        self.requests.with_label_values(&[operation.as_str(), outcome.as_str()]).get()
    }

    /// Name, type, help and labels of every metric.
    pub fn catalogue(&self) -> &[MetricInfo] {
        &self.catalogue
    }

    /// In Prometheus' text format.
    ///
    /// # Errors
    /// If two series are the same, which the registry excludes.
    pub fn render(&self) -> Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
