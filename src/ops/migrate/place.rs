//! Touches misplaced documents until the deciding map finds none.
//!
//! A scan sees the last refresh, and writes continue. So a document found is read again, realtime, before it is touched;
//! a superfluous touch is harmless. A scan that finds nothing after all touches are committed proves that everything is in its
//! place: concurrent writes are placed by the same map.
//!
//! Only places that the live maps give to different geoshards are scanned, in every index but the one they belong to:
//! a document elsewhere was in its place before and is not moved (protocol, "Changing the map"). The query
//! uses boxes slightly larger than those places. If the server refuses it, and on request, everything is read.

use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};

use super::{MigrateError, Migration, Seen};
use crate::base::figures;
use crate::base::ids::{DocId, ShardId};
use crate::base::progress::Progress;
use crate::core::decode::LocationPath;
use crate::geoshard::GeoshardMap;
use crate::geoshard::cover::boxes::boxes;
use crate::geoshard::diff::{ChangedRange, changed_ranges};
use crate::io::elastic::scan::{IndexScan, ScanError, ScanOptions, ScannedDocument, count};
use crate::io::elastic::slices::{SliceSize, mget_in_slices};
use crate::io::elastic::{Elastic, Get, GetAnswer, Index, ItemError};
use crate::io::send::Op;

/// Documents read at once.
const PAGE: usize = 1000;
/// Maximum scans; documents that did not move by then do not move.
const MOST_ROUNDS: u32 = 8;

/// Maximum boxes of a query. Lucene allows 1,024 clauses by default, and a box may take more than one.
const MOST_BOXES: usize = 200;

/// The result of one scan of all indices.
#[derive(Debug, Default)]
struct Round {
    read: u64,
    misplaced: u64,
    unplaceable: u64,
    example: Option<DocId>,
}

impl Migration {
    /// Touches misplaced documents until there are none.
    pub(super) async fn place_all(&self, seen: &Seen) -> Result<(), MigrateError> {
        let record = &seen.stored.record;
        let map = record.deciding();
        for number in 1.. {
            let round = self.look_at_everything(seen, map).await?;
            self.say(format!(
                "scan {number}: {} documents read, {} misplaced by {}",
                figures::count(round.read),
                figures::count(round.misplaced),
                map.fingerprint()
            ));
            if round.unplaceable > 0 {
                self.say(format!(
                    "{} documents have no readable location and are not moved",
                    round.unplaceable
                ));
            }
            let Some(example) = round.example else { return Ok(()) };
            if number == MOST_ROUNDS {
                return Err(MigrateError::Stuck { count: round.misplaced, example: example.to_string() });
            }
            self.topic.flush().await?;
            self.all_committed(seen).await?;
        }
        Ok(())
    }

    async fn look_at_everything(&self, seen: &Seen, map: &GeoshardMap) -> Result<Round, MigrateError> {
        let record = &seen.stored.record;
        let mut shards: Vec<ShardId> =
            record.live().iter().flat_map(|map| map.shards().iter().cloned()).collect();
        shards.sort_unstable();
        shards.dedup();
        self.refresh(&shards).await?;
        let mut round = Round::default();
        let mut size = SliceSize::new(PAGE, self.config.documents.max_bytes.as_usize());
        let changed = record.other().map(|other| changed_ranges(other, map)).unwrap_or_default();
        let query = |shard: &ShardId| match self.scans_all {
            true => Some(None),
            false => misplaced_in(shard, &changed, self.location.searched()).map(Some),
        };
        let scans: Vec<(&ShardId, Option<Value>)> =
            shards.iter().filter_map(|shard| Some((shard, query(shard)?))).collect();
        let of = self.count(&scans).await;
        for (shard, query) in scans {
            let (mut scan, mut page) = self.open(shard, query).await?;
            while !page.is_empty() {
                round.read += page.len() as u64;
                let placing = Placing { elastic: &*self.elastic, location: &self.location, map, shard };
                let (misplaced, unplaceable) =
                    placing.really_misplaced(page, self.timeout(), &mut size).await?;
                round.unplaceable += unplaceable;
                round.misplaced += misplaced.len() as u64;
                round.example = round.example.or_else(|| misplaced.first().cloned());
                self.touch(misplaced).await?;
                self.tell(Progress::Done { what: "documents read", done: round.read, of });
                // Stop if the change was aborted.
                self.is_unchanged(seen).await?;
                page = scan.next().await?;
            }
            scan.close().await;
        }
        Ok(round)
    }

    /// How many documents these scans will read, if it can be told.
    async fn count(&self, scans: &[(&ShardId, Option<Value>)]) -> Option<u64> {
        let mut sum = 0;
        for (shard, query) in scans {
            let name = Index::Geoshard((*shard).clone()).name(&self.config.elasticsearch.prefix);
            sum += count(&*self.elastic, &[name], query.as_ref(), self.timeout()).await.ok()?;
        }
        Some(sum)
    }

    /// A scan of one index, and its first page.
    async fn open(
        &self,
        shard: &ShardId,
        query: Option<Value>,
    ) -> Result<(IndexScan<'_>, Vec<ScannedDocument>), MigrateError> {
        let name = Index::Geoshard(shard.clone()).name(&self.config.elasticsearch.prefix);
        let options =
            ScanOptions { page: PAGE, timeout: self.timeout(), fields: self.location.fields(), query };
        let (scan, page, refused) = open(&*self.elastic, &name, options).await?;
        if let Some(reason) = refused {
            self.say(format!("{name} refuses the query by location, reading all of it: {reason}"));
        }
        Ok((scan, page))
    }

    /// Touches documents no faster than the rate allows.
    async fn touch(&self, ids: Vec<DocId>) -> Result<(), MigrateError> {
        let share = Duration::from_secs(1) / self.touch_rate.get();
        let pause = share.saturating_mul(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        if !ids.is_empty() {
            self.topic.ask(Op::Touch, ids).await?;
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }
}

/// A scan of one index, and its first page. Where the server refuses the query all is read, and its reason is given.
async fn open<'e>(
    elastic: &'e dyn Elastic,
    index: &str,
    options: ScanOptions,
) -> Result<(IndexScan<'e>, Vec<ScannedDocument>, Option<String>), ScanError> {
    let mut scan = IndexScan::open(elastic, &[index.to_owned()], options.clone()).await?;
    match scan.next().await {
        Ok(page) => Ok((scan, page, None)),
        Err(ScanError::Refused { status: 400, reason, .. }) if options.query.is_some() => {
            scan.close().await;
            let options = ScanOptions { query: None, ..options };
            let mut scan = IndexScan::open(elastic, &[index.to_owned()], options).await?;
            let page = scan.next().await?;
            Ok((scan, page, Some(reason)))
        }
        Err(error) => Err(error),
    }
}

/// Query for the documents that may be in this index by the map that does not decide: those in places that changed their
/// geoshard and do not belong here, and those whose location is not indexed. `None`: no such place.
fn misplaced_in(shard: &ShardId, changed: &[ChangedRange<'_>], field: &str) -> Option<Value> {
    let elsewhere: Vec<Range<u64>> =
        changed.iter().filter(|range| range.to != shard).map(|range| range.leaves.clone()).collect();
    if elsewhere.is_empty() {
        return None;
    }
    let mut places: Vec<Value> =
        boxes(&elsewhere, MOST_BOXES).into_iter().map(|bounds| bounds.to_query(field)).collect();
    places.push(json!({"bool": {"must_not": [{"exists": {"field": field}}]}}));
    Some(json!({"bool": {"filter": [{"bool": {"should": places, "minimum_should_match": 1}}]}}))
}

/// Where the documents of one geoshard belong.
struct Placing<'a> {
    elastic: &'a dyn Elastic,
    location: &'a LocationPath,
    map: &'a GeoshardMap,
    /// Where they are.
    shard: &'a ShardId,
}

impl Placing<'_> {
    /// Whether a document belongs where it is; `None` if its location cannot be read.
    fn is_placed(&self, source: &[u8]) -> Option<bool> {
        self.location.locate(source).ok().map(|at| self.map.locate(at) == self.shard)
    }

    /// Of a page, the documents that the map places elsewhere, now; and how many have no location. Whole documents are read,
    /// so they are read in slices.
    async fn really_misplaced(
        &self,
        page: Vec<ScannedDocument>,
        timeout: Duration,
        size: &mut SliceSize,
    ) -> Result<(Vec<DocId>, u64), MigrateError> {
        let gets: Vec<Get> = page
            .into_iter()
            .filter(|hit| self.is_placed(hit.source.to_string().as_bytes()) != Some(true))
            .map(|hit| Get::realtime(Index::Geoshard(self.shard.clone()), hit.id))
            .collect();
        let (mut misplaced, mut unplaceable) = (Vec::new(), 0);
        let mut failed: Option<ItemError> = None;
        let read = mget_in_slices(self.elastic, &gets, timeout, size, |place, answer| match answer {
            GetAnswer::Missing => {}
            GetAnswer::Failed(error) => {
                failed.get_or_insert(error);
            }
            GetAnswer::Found(found) => match (self.is_placed(&found.source), gets.get(place)) {
                (Some(false), Some(get)) => misplaced.push(get.id.clone()),
                (None, _) => unplaceable += 1,
                _ => {}
            },
        });
        let doing = "read documents that are to move";
        read.await.map_err(|error| MigrateError::Call { doing, error })?;
        if let Some(error) = failed {
            let (doing, reason) = (doing.to_owned(), error.to_string());
            return Err(MigrateError::Refused { doing, status: error.status, reason });
        }
        Ok((misplaced, unplaceable))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::io::elastic::scripted::Scripted;
    use crate::io::elastic::{FoundDocument, SeqNo};

    #[tokio::test]
    async fn a_page_of_large_documents_is_read_although_one_answer_would_be_too_large() {
        let shard = |id| ShardId::new(id).unwrap();
        let ranges = vec![(0, shard("here")), (1 << 61 | 1, shard("there")), (2 << 61 | 1, shard("here"))];
        let map = GeoshardMap::new(1, "halves", ranges).unwrap();
        let there = shard("there");
        let elsewhere = json!({"location": {"lat": 0.0, "lon": 0.0}});
        let get = move |_: &Get| {
            let large = json!({"location": {"lat": 0.0, "lon": 0.0}, "text": "x".repeat(10_000)});
            let source = Bytes::from(large.to_string());
            GetAnswer::Found(FoundDocument {
                version: 1,
                stamp: SeqNo { seq_no: 1, primary_term: 1 },
                source,
            })
        };
        let elastic = Scripted { get: Box::new(get), largest_answer: Some(1 << 20), ..Scripted::default() };
        let hit = |n: usize| ScannedDocument {
            index: String::new(),
            id: DocId::from_key(Some(n.to_string().as_bytes())).unwrap(),
            version: 1,
            source: elsewhere.clone(),
        };
        let page: Vec<ScannedDocument> = (0..PAGE).map(hit).collect();
        let ids: Vec<DocId> = page.iter().map(|hit| hit.id.clone()).collect();
        let location = LocationPath::new("location").unwrap();
        let placing = Placing { elastic: &elastic, location: &location, map: &map, shard: &there };
        let mut size = SliceSize::new(PAGE, 1 << 10);
        let found = placing.really_misplaced(page, Duration::ZERO, &mut size).await.unwrap();
        assert_eq!(found, (ids, 0));
    }

    #[tokio::test]
    async fn an_index_that_can_not_be_asked_by_place_is_read_whole() {
        let admin = |call: &str, body: Option<&Value>| match (call, body) {
            (call, _) if call.contains("_pit") => (200, json!({"id": "pit"})),
            (_, Some(body)) if body.get("query").is_some() => {
                let error = json!({"type": "query_shard_exception", "reason": "failed to find geo field"});
                (400, json!({"error": error, "status": 400}))
            }
            _ => {
                let hit = json!({"_index": "i", "_id": "x", "_version": 1, "sort": [1], "_source": {}});
                let shards = json!({"total": 1, "successful": 1, "skipped": 0, "failed": 0});
                (
                    200,
                    json!({"pit_id": "pit", "timed_out": false, "_shards": shards, "hits": {"hits": [hit]}}),
                )
            }
        };
        let elastic = Scripted { admin: Box::new(admin), ..Scripted::default() };
        let options = |query| ScanOptions { page: 1, timeout: Duration::ZERO, fields: Vec::new(), query };
        let (_, page, refused) = open(&elastic, "i", options(Some(json!({"match_all": {}})))).await.unwrap();
        assert_eq!((page.len(), refused.is_some()), (1, true));
        let (_, page, refused) = open(&elastic, "i", options(None)).await.unwrap();
        assert_eq!((page.len(), refused), (1, None));
    }

    #[test]
    fn an_index_is_asked_for_places_that_changed_and_are_not_its_own() {
        let shard = |id| ShardId::new(id).unwrap();
        let map = |version, second| {
            let ranges = vec![(0, shard("a")), (1 << 61 | 1, shard(second)), (2 << 61 | 1, shard("c"))];
            GeoshardMap::new(version, "", ranges).unwrap()
        };
        let (old, new) = (map(1, "b"), map(2, "a"));
        let changed = changed_ranges(&old, &new);
        assert_eq!(misplaced_in(&shard("a"), &changed, "at"), None, "all that changed belongs there");
        // Also one that neither gives nor gets: a document may have been left there.
        for id in ["b", "c"] {
            let query = misplaced_in(&shard(id), &changed, "at").unwrap();
            let places = query["bool"]["filter"][0]["bool"]["should"].as_array().unwrap().clone();
            assert!(places.len() > 1 && places.len() <= MOST_BOXES + 1, "{query}");
            let boxes = places.iter().filter(|place| place["geo_bounding_box"]["at"].is_object()).count();
            assert_eq!(boxes, places.len() - 1, "the last asks for what has no place");
        }
        assert_eq!(misplaced_in(&shard("b"), &[], "at"), None);
    }
}
