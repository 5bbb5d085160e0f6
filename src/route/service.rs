//! One search from the checked request to the rendered answer.
//!
//! 1. It takes a place, or waits for one; too many are refused.
//! 2. The maps in force make its cover. Without knowledge of them that is fresh there is no answer.
//! 3. One request asks all geoshards of the cover; a search for the nearest asks them by their distance and stops early.
//! 4. If older copies of moving documents took places among the hits, more hits are asked for.
//! 5. If another map came into force meanwhile, all of it is done again.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::constraint::Region;
use super::error::{RouterRefusal, SearchFailure};
use super::load::{self, SearchLoad};
use super::merge::{AnswerMerge, SearchAnswer};
use super::nearest::AskRounds;
use super::request::{CountRequest, MAX_WINDOW, SearchRequest, TrackTotalHits};
use super::sort::Nearest;
use super::target::{Targets, by_distance};
use super::upstream::{Caller, Upstream, UpstreamSearch, bad_gateway};
use crate::base::clock::Clock;
use crate::base::ids::ShardId;
use crate::core::filter_path::FilterPath;
use crate::geoshard::LiveMaps;
use crate::geoshard::cover::Shape;
use crate::io::maps::MapsReader;
use crate::support::config::{RouteConfig, WithoutLocation};
use crate::support::telemetry::route::{Retried, RouteMetrics};

/// How often one search is begun anew because the map changed.
const MAX_ATTEMPTS: usize = 3;

/// What the router answers with.
pub struct Service {
    /// `[route]`.
    pub options: RouteConfig,
    /// The field that documents are placed by.
    pub location: String,
    /// `moves.search_grace`.
    pub search_grace: Duration,
    /// Which maps are in force.
    pub maps: MapsReader,
    /// How searches are sent.
    pub upstream: Upstream,
    /// Of searches.
    pub metrics: Arc<RouteMetrics>,
    /// Of cells.
    pub load: SearchLoad,
    /// For the load.
    pub clock: Arc<dyn Clock>,
    /// Who may search now.
    pub places: Places,
}

/// A bounded number of searches at once, and a bounded number that wait.
pub struct Places {
    permits: Semaphore,
    queued: AtomicUsize,
    max_queued: usize,
}

impl Places {
    /// By `[route]`.
    pub fn new(options: &RouteConfig) -> Self {
        Self {
            permits: Semaphore::new(options.max_concurrent),
            queued: AtomicUsize::new(0),
            max_queued: options.max_queued,
        }
    }
}

/// An answer, and what it took.
#[derive(Debug)]
pub struct SearchResult {
    /// The body.
    pub body: Bytes,
    /// Geoshards that were asked.
    pub asked: usize,
    /// Geoshards that there are.
    pub total: usize,
}

/// Geoshards that one search has asked so far, and until when it may ask.
struct Way<'a> {
    request: &'a SearchRequest,
    caller: Caller<'a>,
    deadline: Instant,
    asked: BTreeSet<ShardId>,
}

/// What is to be known of a round later.
struct Round {
    /// Older copies among its hits.
    doubled: usize,
    /// There may be more hits behind its last one.
    is_cut: bool,
}

/// Counts one more of something until it is dropped.
struct Counting<'a>(&'a prometheus::IntGauge);

impl<'a> Counting<'a> {
    fn new(gauge: &'a prometheus::IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Leaves the queue when it is dropped: also when the client leaves.
struct Queued<'a>(&'a AtomicUsize);

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service {
    /// Answers a search.
    pub async fn search(
        &self,
        request: &SearchRequest,
        caller: Caller<'_>,
    ) -> Result<SearchResult, SearchFailure> {
        let began = Instant::now();
        let deadline = began + self.options.timeout;
        let _place = self.place(deadline).await?;
        let _counting = Counting::new(&self.metrics.in_flight);
        for _ in 0..MAX_ATTEMPTS {
            let maps = self.live_maps()?;
            let targets = self.targets(&maps, request).await?;
            let mut way = Way { request, caller, deadline, asked: BTreeSet::new() };
            let asked_since = Instant::now();
            let body = match self.rounds(&maps, &targets, request) {
                Some((rounds, nearest)) => {
                    self.nearest(&mut way, rounds, nearest, targets.shards.len()).await?
                }
                None => self.all_at_once(&mut way, targets.shards).await?,
            };
            if !self.is_still_live(&maps)? {
                self.metrics.retried.of(Retried::Map).inc();
                continue;
            }
            if asked_since.elapsed() > self.search_grace && way.asked.len() > 1 {
                self.metrics.beyond_grace.inc();
            }
            let asked = way.asked.len();
            self.metrics.asked(asked);
            if let Some(point) = load::middle(&request.region, request.sort.nearest.as_ref()) {
                self.load.add(point, asked, began.elapsed(), self.clock.now());
            }
            let body = filtered(body, request.filter_path.as_deref())?;
            return Ok(SearchResult { body, asked, total: targets.total });
        }
        Err(RouterRefusal::unavailable("the map of the geoshards changed while they were asked; ask again")
            .into())
    }

    /// Answers a count: a search without hits.
    pub async fn count(
        &self,
        request: &CountRequest,
        caller: Caller<'_>,
    ) -> Result<SearchResult, SearchFailure> {
        let search = SearchRequest::for_count(request);
        let mut found = self.search(&search, caller).await?;
        let mut merge = AnswerMerge::default();
        merge.add(SearchAnswer::parse(&found.body).map_err(unusable)?, &[]);
        found.body = filtered(merge.render_count().into(), request.filter_path.as_deref())?;
        Ok(found)
    }

    /// A place among those that ask Elasticsearch. The queue has its bound, and waiting ends with the search's time.
    async fn place(&self, deadline: Instant) -> Result<SemaphorePermit<'_>, RouterRefusal> {
        let Places { permits, queued, max_queued } = &self.places;
        if let Ok(permit) = permits.try_acquire() {
            return Ok(permit);
        }
        let before = queued.fetch_add(1, Ordering::Relaxed);
        let _queued = Queued(queued);
        let _counting = Counting::new(&self.metrics.queued);
        if before >= *max_queued {
            return Err(RouterRefusal::busy(format!(
                "{} searches are under way and {max_queued} wait; ask again later, or raise route.max_concurrent",
                self.options.max_concurrent
            )));
        }
        match tokio::time::timeout_at(deadline, permits.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            // It is never closed.
            Ok(Err(_)) => Err(RouterRefusal::unavailable("the router is stopping")),
            Err(_) => Err(RouterRefusal::busy(format!(
                "no place among {} searches became free within {:?}; ask again later",
                self.options.max_concurrent, self.options.timeout
            ))),
        }
    }

    fn live_maps(&self) -> Result<LiveMaps, RouterRefusal> {
        self.maps.live().ok_or_else(|| {
            RouterRefusal::unavailable(
                "it is not known now which map of the geoshards is live, since elasticsearch does not tell; ask again",
            )
        })
    }

    /// Whether no map came into force that the cover was not made by.
    fn is_still_live(&self, used: &LiveMaps) -> Result<bool, RouterRefusal> {
        let now = self.live_maps()?;
        Ok(now.iter().all(|map| used.iter().any(|used| Arc::ptr_eq(used, map) || used == map)))
    }

    async fn targets(&self, maps: &LiveMaps, request: &SearchRequest) -> Result<Targets, SearchFailure> {
        if request.region.is_anywhere()
            && request.sort.nearest.is_none()
            && self.options.without_location == WithoutLocation::Refuse
        {
            let refusal = RouterRefusal::bad(format!(
                "the search has no geo constraint on [{}] that geofold route can use, and route.without_location is \
                 \"refuse\"; add a geo_distance, geo_bounding_box, geo_polygon or geo_shape to its filter",
                self.location
            ));
            return Err(refusal.into());
        }
        if request.global_scores {
            return Ok(Targets::of(maps, &Region::Anywhere));
        }
        let is_slow = |shape: &&Shape| matches!(shape, Shape::Polygon { .. });
        if request.region.shapes().iter().any(is_slow) {
            // A polygon may take milliseconds, which other searches should not wait for.
            let (maps, region) = (maps.clone(), request.region.clone());
            let work = tokio::task::spawn_blocking(move || Targets::of(&maps, &region));
            return work.await.map_err(|error| {
                tracing::error!(%error, "a cover could not be made");
                RouterRefusal {
                    status: 500,
                    kind: "exception",
                    reason: "the cover could not be made".to_owned(),
                }
                .into()
            });
        }
        Ok(Targets::of(maps, &request.region))
    }

    /// The rounds of a search for the nearest, if it can stop early.
    fn rounds(
        &self,
        maps: &LiveMaps,
        targets: &Targets,
        request: &SearchRequest,
    ) -> Option<(AskRounds, Nearest)> {
        let nearest = request.sort.nearest?;
        let has_hits = request.from + request.size > 0;
        let scores = request.body.get("track_scores").is_some_and(|value| value == true);
        // Elasticsearch answers in part only if a shard of the same request answers: rounds would fail where all of it does not.
        if targets.shards.len() < 3 || !has_hits || scores || request.global_scores || request.partial {
            return None;
        }
        Some((AskRounds::new(by_distance(maps, nearest.point, &targets.shards)), nearest))
    }

    /// All geoshards by one request.
    async fn all_at_once(&self, way: &mut Way<'_>, shards: Vec<ShardId>) -> Result<Bytes, SearchFailure> {
        let request = way.request;
        if let [only] = shards.as_slice() {
            // An index has each document once: the answer is passed on as it is.
            let size = request.size;
            way.asked.insert(only.clone());
            let body = self.send(way, &shards, size, request.from, request.counted, false).await?;
            check(&body, request)?;
            return Ok(body);
        }
        let wanted = request.from + request.size;
        let mut merge = AnswerMerge::default();
        self.round(way, &mut merge, &shards, wanted).await?;
        self.finish(way, merge)
    }

    /// By their distance, a few at a time.
    async fn nearest(
        &self,
        way: &mut Way<'_>,
        mut rounds: AskRounds,
        nearest: Nearest,
        covered: usize,
    ) -> Result<Bytes, SearchFailure> {
        let request = way.request;
        let wanted = request.from + request.size;
        let mut merge = AnswerMerge::default();
        let (mut doubled, mut is_cut) = (0, false);
        loop {
            let last = wanted.checked_sub(1).and_then(|last| merge.first_value(last));
            let shards = rounds.next(last.map(|value| value * nearest.unit_metres));
            if shards.is_empty() {
                break;
            }
            let round = self.round(way, &mut merge, &shards, wanted).await?;
            doubled += round.doubled;
            is_cut |= round.is_cut;
        }
        // A newer copy in another round took the place of a hit, and the round of that hit has more behind its last one.
        let is_short = is_cut && merge.duplicates() > doubled;
        if is_short || merge.is_unsure() {
            self.metrics.retried.of(if is_short { Retried::Duplicates } else { Retried::Ties }).inc();
            let asked = way.asked.iter().cloned().collect::<Vec<_>>();
            let mut anew = AnswerMerge::default();
            self.round(way, &mut anew, &asked, wanted).await?;
            merge = anew;
        }
        let rest = rounds.rest();
        if !rest.is_empty() && !merge.is_counted(request.counted) {
            // They cannot hold a nearer hit, but they count.
            let body = self.send(way, &rest, 0, 0, request.counted, false).await?;
            merge.add_count(parse(&body, request)?);
            way.asked.extend(rest);
        }
        if way.asked.len() < covered {
            self.metrics.early_stops.inc();
        }
        self.finish(way, merge)
    }

    /// Asks some geoshards for the first `wanted` hits, and again for more where older copies took their places. One more is
    /// asked for: a newer copy that ties with the last hit stands right behind it.
    async fn round(
        &self,
        way: &mut Way<'_>,
        merge: &mut AnswerMerge,
        shards: &[ShardId],
        wanted: usize,
    ) -> Result<Round, SearchFailure> {
        let request = way.request;
        way.asked.extend(shards.iter().cloned());
        let needed = if wanted == 0 { 0 } else { (wanted + 1).min(MAX_WINDOW) };
        let mut size = needed;
        loop {
            let body = self.send(way, shards, size, 0, request.counted, true).await?;
            let answer = parse(&body, request)?;
            let has_more = answer.hits.len() >= size && size > 0;
            let missing = needed.saturating_sub(answer.distinct());
            if has_more && missing > 0 && size < MAX_WINDOW {
                self.metrics.retried.of(Retried::Duplicates).inc();
                size = (size + 2 * missing + 8).min(MAX_WINDOW);
                continue;
            }
            let round = Round { doubled: answer.hits.len() - answer.distinct(), is_cut: has_more };
            merge.add(answer, &request.sort.keys);
            return Ok(round);
        }
    }

    fn finish(&self, way: &Way<'_>, merge: AnswerMerge) -> Result<Bytes, SearchFailure> {
        let SearchRequest { from, size, counted, sort, version, .. } = way.request;
        self.metrics.duplicates.inc_by(u64::try_from(merge.duplicates()).unwrap_or_default());
        Ok(merge.render(*from, *size, *counted, sort, *version).into())
    }

    /// One request.
    async fn send(
        &self,
        way: &Way<'_>,
        shards: &[ShardId],
        size: usize,
        from: usize,
        counted: TrackTotalHits,
        with_version: bool,
    ) -> Result<Bytes, SearchFailure> {
        let request = way.request;
        let left = way.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let timeout = self.options.timeout;
            return Err(
                RouterRefusal::timeout(format!("no answer within {timeout:?}; raise route.timeout")).into()
            );
        }
        // Elasticsearch has to give up before the router does, for its part to be of use.
        let own = format!("{}ms", (left.mul_f64(0.9)).as_millis().max(1));
        let timeout = match &request.timeout {
            Some(timeout) => Some(timeout.as_str()),
            None => request.partial.then_some(own.as_str()),
        };
        let mut parameters: Vec<(&'static str, Cow<'_, str>)> =
            request.parameters.iter().map(|(name, value)| (*name, Cow::Borrowed(value.as_str()))).collect();
        let partial = if request.partial { "true" } else { "false" };
        parameters.push(("allow_partial_search_results", Cow::Borrowed(partial)));
        if request.global_scores || (shards.len() > 1 && request.scores_by_statistics()) {
            parameters.push(("search_type", Cow::Borrowed("dfs_query_then_fetch")));
        }
        let body = request.upstream(from, size, counted, with_version, timeout);
        self.upstream.search(UpstreamSearch { shards, parameters, body }, way.caller, left).await
    }
}

fn parse(body: &Bytes, request: &SearchRequest) -> Result<SearchAnswer, SearchFailure> {
    let answer = SearchAnswer::parse(body).map_err(unusable)?;
    if !request.partial {
        check_whole(answer.has_timed_out(), answer.failed_shards())?;
    }
    Ok(answer)
}

/// Checks an answer that is passed on as it is.
fn check(body: &Bytes, request: &SearchRequest) -> Result<(), SearchFailure> {
    #[derive(Deserialize)]
    struct Head {
        #[serde(default)]
        timed_out: bool,
        _shards: Shards,
    }
    #[derive(Deserialize)]
    struct Shards {
        failed: u64,
    }
    if request.partial {
        return Ok(());
    }
    let head: Head = serde_json::from_slice(body).map_err(unusable)?;
    Ok(check_whole(head.timed_out, head._shards.failed)?)
}

/// Elasticsearch gives no answer that lacks the part of a shard if it is not to; what stands between may.
fn check_whole(has_timed_out: bool, failed_shards: u64) -> Result<(), RouterRefusal> {
    const FORBIDDEN: &str = "the search does not allow partial results (allow_partial_search_results)";
    match (has_timed_out, failed_shards) {
        (false, 0) => Ok(()),
        (true, _) => Err(RouterRefusal::timeout(format!("a shard did not answer in time, and {FORBIDDEN}"))),
        (false, failed) => {
            Err(RouterRefusal::unavailable(format!("{failed} shards failed, and {FORBIDDEN}")))
        }
    }
}

fn unusable(error: serde_json::Error) -> RouterRefusal {
    bad_gateway(format!("elasticsearch's answer cannot be used: {error}"))
}

/// What `filter_path` leaves of an answer.
fn filtered(body: Bytes, patterns: Option<&str>) -> Result<Bytes, SearchFailure> {
    let Some(patterns) = patterns else { return Ok(body) };
    let value = serde_json::from_slice(&body).map_err(unusable)?;
    Ok(FilterPath::new(patterns.split(',')).apply(&value).to_string().into())
}
