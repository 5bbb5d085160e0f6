//! Reads many placements at less cost to Elasticsearch than an `_mget` of them.
//!
//! For the content of a document, a get decompresses the block of stored fields that it is in: five times the cost of finding it. A
//! search takes content from doc values instead, but sees the index as of a refresh. So there are up to three requests:
//!
//! 1. `_refresh`, if none began since the placements may be read ([`Get::since`]);
//! 2. `_search` for these: the content of plain placements ([`Placement::is_plain`]), with its state. Hits have no `_id`, which is a
//!    stored field: [`placement_key`] tells them apart;
//! 3. `_mget`, realtime, of those that may not be read so, and of those that the search did not give.
//!
//! A server that hangs leaves the requests after it time: each but the last may take half of what is left.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{CallError, FoundDocument, Get, GetAnswer, Index, decode, encode};
use crate::base::clock::Instant;
use crate::base::ids::ShardId;
use crate::base::position::Position;
use crate::core::placement::{Placement, placement_key};

/// Fewer are read by one `_mget`: a search costs more than it saves.
const FEWEST: usize = 100;
/// `index.max_result_window`.
const MOST: usize = 10_000;
/// Time between two refreshes. Until then what was written since the last one is read by `_mget`.
const REFRESHES_APART: Duration = Duration::from_secs(1);
/// For how long nothing is searched after a refresh that failed, or a search that gave less than half of what it was asked for.
const PAUSE: Duration = Duration::from_secs(60);

/// Path of the search.
pub(super) fn search_path(prefix: &str) -> String {
    format!(
        "/{}/_search?request_cache=false&filter_path=_shards.total,hits.hits._seq_no,hits.hits._primary_term,hits.hits.fields",
        Index::Placements.name(prefix)
    )
}

/// Sends these requests; each may take so long.
pub(super) trait PlacementRequests {
    /// `_refresh` of the index.
    async fn refresh(&self, most: Duration) -> Result<(), CallError>;
    /// `_search` with this body; gives that of the answer.
    async fn search(&self, body: Bytes, most: Duration) -> Result<Bytes, CallError>;
    /// `_mget`.
    async fn mget(&self, gets: &[Get], most: Duration) -> Result<Vec<GetAnswer>, CallError>;
}

/// A search for placements.
#[derive(Debug)]
pub(super) struct PlacementSearch {
    /// Places of the gets by their keys; of several with one key, none is taken from the answer.
    places: HashMap<u32, Option<usize>, RandomState>,
    /// A refresh must have begun since then.
    since: Instant,
    asked: usize,
}

impl PlacementSearch {
    /// The search for those of these that may be read so; `None` if it does not pay.
    pub(super) fn of(gets: &[Get]) -> Option<Self> {
        let readable = || gets.iter().enumerate().filter(|(_, get)| get.since.is_some());
        let asked = readable().count();
        let since = gets.iter().filter_map(|get| get.since).max()?;
        if !(FEWEST..=MOST).contains(&asked) || gets.iter().any(|get| get.index != Index::Placements) {
            return None;
        }
        let mut places = HashMap::with_capacity_and_hasher(asked, RandomState::new());
        for (place, get) in readable() {
            let is_same = |other: &mut Option<usize>| *other = None;
            places.entry(placement_key(&get.id)).and_modify(is_same).or_insert(Some(place));
        }
        Some(Self { places, since, asked })
    }

    /// Its body.
    fn body(&self, gets: &[Get]) -> Bytes {
        let mut body = format!(
            r#"{{"size":{},"track_total_hits":false,"sort":["_doc"],"_source":false,"stored_fields":"_none_","seq_no_primary_term":true,"docvalue_fields":["pos","shard","leftovers","partition","key"],"query":{{"ids":{{"values":["#,
            self.asked
        )
        .into_bytes();
        for (n, get) in gets.iter().filter(|get| get.since.is_some()).enumerate() {
            body.extend_from_slice(if n > 0 { b",\"" } else { b"\"" });
            encode::put_escaped(&mut body, get.id.as_str());
            body.push(b'"');
        }
        body.extend_from_slice(b"]}}}");
        body.into()
    }

    /// Decodes its answer: what it found, by places of the gets.
    fn answer(&self, body: &[u8]) -> Result<Vec<(usize, FoundDocument)>, CallError> {
        #[derive(Deserialize)]
        struct Body {
            _shards: Shards,
            #[serde(default)]
            hits: Hits,
        }
        #[derive(Deserialize)]
        struct Shards {
            total: u32,
        }
        #[derive(Deserialize, Default)]
        struct Hits {
            #[serde(default)]
            hits: Vec<Hit>,
        }
        #[derive(Deserialize)]
        struct Hit {
            _seq_no: Option<i64>,
            _primary_term: Option<i64>,
            #[serde(default)]
            fields: Fields,
        }
        /// Each a list of one value; absent where the placement has none, and from an index of an earlier build.
        #[derive(Deserialize, Default)]
        struct Fields {
            pos: Option<[Position; 1]>,
            shard: Option<[ShardId; 1]>,
            /// Of a placement that somebody edited.
            leftovers: Option<IgnoredAny>,
            partition: Option<[i32; 1]>,
            key: Option<[u32; 1]>,
        }
        let Body { _shards: Shards { total }, hits: Hits { hits } } = decode::parse(body, "search")?;
        if total != 1 {
            // Each of several primaries looks for all of them, which costs more than it saves.
            return Ok(Vec::new());
        }
        let found = |Hit { _seq_no, _primary_term, fields }| {
            let Fields {
                pos: Some([pos]),
                shard: Some([shard]),
                leftovers: None,
                partition,
                key: Some([key]),
            } = fields
            else {
                return None;
            };
            let place = (*self.places.get(&key)?)?;
            let partition = partition.map(|[partition]| partition);
            let source = Placement::new(pos, Some(shard), []).by_partition(partition).to_json();
            let stamp = decode::stamp(_seq_no, _primary_term)?;
            Some((place, FoundDocument { version: 0, stamp, source }))
        };
        Ok(hits.into_iter().filter_map(found).collect())
    }
}

/// Whether searches give what they are asked for, and as of when. They do not where the index was created by an earlier build, has
/// several primaries, or where documents are counted, since no placement is plain then.
#[derive(Debug, Default)]
pub(super) struct PlacementSearches {
    off_until: Mutex<Option<Instant>>,
    /// Held during a refresh, so that others wait for it.
    refreshes: tokio::sync::Mutex<Refreshes>,
}

#[derive(Debug, Default)]
struct Refreshes {
    /// When the last that succeeded began.
    succeeded: Option<Instant>,
    /// When the last began.
    last: Option<Instant>,
}

impl PlacementSearches {
    /// Whether to search.
    pub(super) fn are_on(&self, now: Instant) -> bool {
        self.off_until().is_none_or(|until| until <= now)
    }

    /// Reads all of `gets` within `timeout`, by `search` as far as that may be.
    pub(super) async fn read(
        &self,
        gets: &[Get],
        search: &PlacementSearch,
        timeout: Duration,
        now: impl Fn() -> Instant,
        requests: &impl PlacementRequests,
    ) -> Result<Vec<GetAnswer>, CallError> {
        let until = now() + timeout;
        let left = || until.since(now());
        let mut answers = vec![None; gets.len()];
        if self.are_since(search.since, left() / 2, &now, async |most| requests.refresh(most).await).await {
            let answer = requests.search(search.body(gets), left() / 2).await;
            let found = answer.and_then(|answer| search.answer(&answer)).unwrap_or_else(|error| {
                tracing::debug!(%error, "no placements by search; they are read one by one");
                Vec::new()
            });
            self.note(search, found.len(), now());
            for (place, document) in found {
                answers[place] = Some(GetAnswer::Found(document));
            }
        }
        let is_left = |(get, answer): (&Get, &Option<GetAnswer>)| answer.is_none().then(|| get.clone());
        let rest: Vec<Get> = gets.iter().zip(&answers).filter_map(is_left).collect();
        let read = if rest.is_empty() { Vec::new() } else { requests.mget(&rest, left()).await? };
        let mut read = read.into_iter();
        Ok(answers.into_iter().filter_map(|answer| answer.or_else(|| read.next())).collect())
    }

    /// Searches nothing for a while.
    fn pause(&self, now: Instant) {
        *self.off_until() = Some(now + PAUSE);
    }

    /// Notes how many a search gave.
    fn note(&self, search: &PlacementSearch, given: usize, now: Instant) {
        if given < search.asked / 2 {
            self.pause(now);
        }
    }

    /// Whether all copies of the index have been refreshed since then, if need be by `refresh`, which gets its timeout. Waits for others'
    /// refreshes and its own no longer than `most`.
    async fn are_since(
        &self,
        since: Instant,
        most: Duration,
        now: impl Fn() -> Instant,
        refresh: impl AsyncFnOnce(Duration) -> Result<(), CallError>,
    ) -> bool {
        let asked = now();
        let Ok(mut refreshes) = tokio::time::timeout(most, self.refreshes.lock()).await else {
            return false;
        };
        if refreshes.succeeded.is_some_and(|began| began >= since) {
            return true;
        }
        let now = now();
        let was_just_now = refreshes.last.is_some_and(|last| now.since(last) < REFRESHES_APART);
        if was_just_now || !self.are_on(now) {
            return false;
        }
        refreshes.last = Some(now);
        match refresh(most.saturating_sub(now.since(asked))).await {
            Ok(()) => refreshes.succeeded = Some(now),
            Err(error) => {
                tracing::debug!(%error, "placements are read one by one for a while, since their index cannot be refreshed");
                self.pause(now);
            }
        }
        refreshes.succeeded == Some(now)
    }

    fn off_until(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.off_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::DocId;

    /// A server that answers nothing to the requests named.
    struct Hanging<'a> {
        hangs: &'a [&'a str],
        /// Each request, and the seconds that it might take.
        asked: Mutex<Vec<(&'static str, u64)>>,
    }

    impl Hanging<'_> {
        async fn asked(&self, request: &'static str, most: Duration) -> Result<(), CallError> {
            self.asked.lock().unwrap().push((request, most.as_secs()));
            if !self.hangs.contains(&request) {
                return Ok(());
            }
            tokio::time::sleep(most).await;
            Err(CallError::Timeout(most))
        }
    }

    impl PlacementRequests for Hanging<'_> {
        async fn refresh(&self, most: Duration) -> Result<(), CallError> {
            self.asked("refresh", most).await
        }

        async fn search(&self, _: Bytes, most: Duration) -> Result<Bytes, CallError> {
            self.asked("search", most).await?;
            Ok(r#"{"_shards":{"total":1}}"#.into())
        }

        async fn mget(&self, gets: &[Get], most: Duration) -> Result<Vec<GetAnswer>, CallError> {
            self.asked("mget", most).await?;
            Ok(vec![GetAnswer::Missing; gets.len()])
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_hangs_leaves_those_after_it_half_of_the_time() {
        for (hangs, expected) in [
            (&[][..], &[("refresh", 20), ("search", 20), ("mget", 40)][..]),
            (&["refresh"], &[("refresh", 20), ("mget", 20)]),
            (&["search"], &[("refresh", 20), ("search", 20), ("mget", 20)]),
        ] {
            let server = Hanging { hangs, asked: Mutex::default() };
            let began = tokio::time::Instant::now();
            let now = || Instant::from_start(Duration::from_secs(100) + began.elapsed());
            let get = |n: usize| Get {
                since: Some(now()),
                ..Get::realtime(Index::Placements, DocId::from_key(Some(n.to_string().as_bytes())).unwrap())
            };
            let gets: Vec<Get> = (0..FEWEST).map(get).collect();
            let (searches, search) = (PlacementSearches::default(), PlacementSearch::of(&gets).unwrap());
            let read = searches.read(&gets, &search, Duration::from_secs(40), now, &server).await;
            assert_eq!(read.unwrap(), vec![GetAnswer::Missing; FEWEST]);
            assert_eq!(*server.asked.lock().unwrap(), expected, "{hangs:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_allowed_for_a_refresh_that_hangs() {
        let (searches, began) = (PlacementSearches::default(), tokio::time::Instant::now());
        let now = || Instant::from_start(Duration::from_secs(100) + began.elapsed());
        let ask = async |most| {
            let hang = async |timeout| {
                tokio::time::sleep(timeout).await;
                Err(CallError::Timeout(timeout))
            };
            let is_refreshed = searches.are_since(now(), Duration::from_secs(most), now, hang).await;
            (is_refreshed, began.elapsed().as_secs())
        };
        assert_eq!(tokio::join!(ask(10), ask(3), ask(20)), ((false, 10), (false, 3), (false, 10)));
        assert!(!searches.are_on(now()), "the next reads would wait, too");
    }

    #[tokio::test(start_paused = true)]
    async fn one_refresh_is_for_all_who_ask_meanwhile() {
        let (searches, began) = (PlacementSearches::default(), tokio::time::Instant::now());
        let now = || Instant::from_start(Duration::from_secs(100) + began.elapsed());
        let refreshes = std::cell::Cell::new(0);
        let ask = || {
            searches.are_since(now(), Duration::from_secs(10), now, async |_| {
                tokio::time::sleep(Duration::from_secs(2)).await;
                refreshes.set(refreshes.get() + 1);
                Ok(())
            })
        };
        assert_eq!(tokio::join!(ask(), ask(), ask()), (true, true, true));
        assert_eq!(refreshes.get(), 1);
    }
}
