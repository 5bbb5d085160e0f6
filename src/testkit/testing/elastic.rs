//! A search server in memory, with Elasticsearch's rules for versions, tombstones and compare-and-set, and with faults
//! on demand.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::base::ids::ShardId;
use crate::core::placement::Placement;
use crate::geoshard::GeoshardMap;
use crate::io::elastic::condition::VersionCondition;
use crate::io::elastic::refreshes::RefreshCounts;
use crate::io::elastic::{
    AdminAnswer, AdminCall, BulkAnswer, BulkOp, CallError, Elastic, FoundDocument, Get, GetAnswer, Index,
    ItemError, SeqNo,
};

/// What goes wrong, from now on.
#[derive(Debug, Clone, Default)]
pub(crate) struct ScriptedFaults {
    /// Every call is refused a connection.
    pub down: bool,
    /// So many calls more fail with 503.
    pub failing_calls: usize,
    /// So many items more of bulk requests are pushed back with 429.
    pub pushed_back_items: usize,
    /// So many bulk requests more are carried out, but their answers are lost.
    pub lost_replies: usize,
    /// Every call is answered with 401.
    pub unauthorized: bool,
    /// Geoshards that take no document.
    pub refusing_shards: BTreeSet<ShardId>,
    /// The meta index takes no writes.
    pub meta_is_blocked: bool,
    /// No refresh succeeds.
    pub refreshes_fail: bool,
    /// How often it says that it has refreshed each geoshard itself; `None`: it does not tell.
    pub counted_refreshes: Option<u64>,
    /// The next call panics.
    pub panics: bool,
    /// How long each call takes.
    pub delay: Duration,
    /// Documents with these ids are refused for good in every geoshard.
    pub refused_ids: BTreeSet<String>,
    /// Documents that contain this text are refused for good in every geoshard.
    pub refused_text: Option<&'static str>,
}

#[derive(Debug, Clone)]
struct Doc {
    version: u64,
    seq_no: u64,
    /// `None`: a tombstone.
    source: Option<Bytes>,
}

#[derive(Debug, Default)]
struct Store {
    indices: BTreeMap<Index, HashMap<String, Doc>>,
    next_seq_no: u64,
    faults: ScriptedFaults,
    calls: usize,
    placement_reads: usize,
    placement_writes: usize,
    refreshes: usize,
}

/// See the top of this file.
#[derive(Debug, Default)]
pub(crate) struct MemoryElastic {
    store: Mutex<Store>,
}

impl MemoryElastic {
    /// With the indices that a map needs, and no other: there is no auto-creation.
    pub(crate) fn for_map(map: &GeoshardMap) -> Arc<Self> {
        let shards = map.shards().iter().cloned().map(Index::Geoshard);
        let indices = shards.chain([Index::Placements, Index::Meta]).map(|index| (index, HashMap::new()));
        let store = Store { indices: indices.collect(), ..Store::default() };
        Arc::new(Self { store: Mutex::new(store) })
    }

    pub(crate) fn set_faults(&self, change: impl FnOnce(&mut ScriptedFaults)) {
        change(&mut self.store().faults);
    }

    /// Requests that came, answered or not.
    pub(crate) fn calls(&self) -> usize {
        self.store().calls
    }

    /// The placement of a document, as JSON.
    pub(crate) fn placement(&self, id: &str) -> String {
        let store = self.store();
        let source = store.indices[&Index::Placements].get(id).and_then(|doc| doc.source.clone());
        String::from_utf8(source.unwrap_or_default().to_vec()).unwrap()
    }

    /// How many placements were read so far.
    pub(crate) fn placement_reads(&self) -> usize {
        self.store().placement_reads
    }

    /// How many writes of placements were asked for so far.
    pub(crate) fn placement_writes(&self) -> usize {
        self.store().placement_writes
    }

    /// How often it was asked to make writes visible.
    pub(crate) fn refreshes(&self) -> usize {
        self.store().refreshes
    }

    /// Where a document is, and its content: one copy of each, or the protocol is broken.
    pub(crate) fn copies(&self, id: &str) -> Vec<(ShardId, String)> {
        let store = self.store();
        let copy = |(index, docs): (&Index, &HashMap<String, Doc>)| {
            let Index::Geoshard(shard) = index else { return None };
            let source = docs.get(id)?.source.as_ref()?;
            Some((shard.clone(), String::from_utf8(source.to_vec()).unwrap()))
        };
        store.indices.iter().filter_map(copy).collect()
    }

    /// The only copy's content; `None` if there is no copy.
    pub(crate) fn document(&self, id: &str) -> Option<String> {
        let mut copies = self.copies(id);
        assert!(copies.len() <= 1, "{id} has more than one copy: {copies:?}");
        copies.pop().map(|(_, source)| source)
    }

    /// Ids that have a copy anywhere.
    pub(crate) fn ids(&self) -> BTreeSet<String> {
        let store = self.store();
        let geoshards = store.indices.iter().filter(|(index, _)| matches!(index, Index::Geoshard(_)));
        let docs = geoshards.flat_map(|(_, docs)| docs.iter());
        docs.filter(|(_, doc)| doc.source.is_some()).map(|(id, _)| id.clone()).collect()
    }

    /// Deletes a geoshard that no map needs any more, and takes it out of the leftovers of all placements before.
    pub(crate) fn retire(&self, shard: &ShardId) {
        let mut store = self.store();
        let Store { indices, next_seq_no, .. } = &mut *store;
        for doc in indices.get_mut(&Index::Placements).into_iter().flat_map(HashMap::values_mut) {
            let Some(source) = &mut doc.source else { continue };
            let mut placement = Placement::from_json(source).unwrap();
            placement.leftovers.retain(|leftover| leftover != shard);
            (*source, doc.seq_no) = (placement.to_json(), *next_seq_no);
            *next_seq_no += 1;
        }
        indices.remove(&Index::Geoshard(shard.clone()));
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Runs a call under its faults; `work` is its effect and its answer.
    async fn call<T>(
        &self,
        timeout: Duration,
        is_bulk: bool,
        work: impl FnOnce(&mut Store) -> T,
    ) -> Result<T, CallError> {
        let delay = {
            let mut store = self.store();
            store.calls += 1;
            assert!(!std::mem::take(&mut store.faults.panics), "a fault that was asked for");
            store.faults.delay
        };
        tokio::time::sleep(delay.min(timeout)).await;
        let mut store = self.store();
        if delay > timeout {
            return Err(CallError::Timeout(timeout));
        }
        if store.faults.down {
            return Err(CallError::Connection("connection refused".to_owned()));
        }
        if store.faults.unauthorized {
            return Err(status(401));
        }
        if store.faults.failing_calls > 0 {
            store.faults.failing_calls -= 1;
            return Err(status(503));
        }
        let answer = work(&mut store);
        if is_bulk && store.faults.lost_replies > 0 {
            store.faults.lost_replies -= 1;
            return Err(CallError::Timeout(timeout));
        }
        Ok(answer)
    }
}

impl Elastic for MemoryElastic {
    fn mget<'a>(
        &'a self,
        gets: &'a [Get],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
        self.call(timeout, false, |store| gets.iter().map(|get| store.get(get)).collect()).boxed()
    }

    fn bulk_refs<'a>(
        &'a self,
        ops: &'a [&'a BulkOp],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<BulkAnswer>, CallError>> {
        self.call(timeout, true, |store| ops.iter().map(|op| store.carry_out(op)).collect()).boxed()
    }

    /// Everything is visible at once; it is counted.
    fn refresh<'a>(&'a self, _: &'a [Index], timeout: Duration) -> BoxFuture<'a, Result<(), CallError>> {
        async move {
            let refused = self.call(timeout, false, |store| {
                store.refreshes += 1;
                store.faults.refreshes_fail
            });
            if refused.await? { Err(status(403)) } else { Ok(()) }
        }
        .boxed()
    }

    fn count_refreshes<'a>(
        &'a self,
        indices: &'a [Index],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<RefreshCounts>, CallError>> {
        let counts = |store: &mut Store| match store.faults.counted_refreshes {
            Some(refreshes) => vec![RefreshCounts::of([("0 node", refreshes)]); indices.len()],
            None => vec![RefreshCounts::default(); indices.len()],
        };
        self.call(timeout, false, counts).boxed()
    }

    /// Answers 404 to every call.
    fn admin<'a>(&'a self, _: AdminCall, _: Duration) -> BoxFuture<'a, Result<AdminAnswer, CallError>> {
        async { Ok(AdminAnswer { status: 404, body: serde_json::Value::Null }) }.boxed()
    }
}

impl Store {
    fn get(&mut self, get: &Get) -> GetAnswer {
        self.placement_reads += usize::from(get.index == Index::Placements);
        let Some(docs) = self.indices.get(&get.index) else {
            return GetAnswer::Failed(item_error(0, "index_not_found_exception"));
        };
        let Some(Doc { version, seq_no, source: Some(source) }) = docs.get(get.id.as_str()).cloned() else {
            return GetAnswer::Missing;
        };
        GetAnswer::Found(FoundDocument { version, stamp: SeqNo { seq_no, primary_term: 1 }, source })
    }

    fn carry_out(&mut self, op: &BulkOp) -> BulkAnswer {
        let (index, id) = op.address();
        let is_document = matches!(index, Index::Geoshard(_));
        self.placement_writes += usize::from(*index == Index::Placements);
        if self.faults.pushed_back_items > 0 {
            self.faults.pushed_back_items -= 1;
            return failed(429, "es_rejected_execution_exception");
        }
        if self.faults.meta_is_blocked && *index == Index::Meta {
            return failed(429, "cluster_block_exception");
        }
        let refuses = |shard: &ShardId| self.faults.refusing_shards.contains(shard);
        let has_refused_text = |source: &Bytes| {
            self.faults.refused_text.is_some_and(|text| String::from_utf8_lossy(source).contains(text))
        };
        let is_refused = self.faults.refused_ids.contains(id.as_str())
            || matches!(index, Index::Geoshard(shard) if refuses(shard))
            || matches!(op, BulkOp::Index { source, .. } if has_refused_text(source));
        let Some(docs) = self.indices.get_mut(index) else {
            return failed(404, "index_not_found_exception");
        };
        let known = docs.get(id.as_str());
        let known_version = known.map(|doc| doc.version);
        let was_there = known.is_some_and(|doc| doc.source.is_some());
        let source = match op {
            BulkOp::Index { .. } if is_document && is_refused => {
                return failed(400, "document_parsing_exception");
            }
            BulkOp::Index { source, .. } => Some(source.clone()),
            BulkOp::Delete { .. } | BulkOp::Remove { .. } => None,
        };
        let live = known.filter(|_| was_there).map(|doc| SeqNo { seq_no: doc.seq_no, primary_term: 1 });
        let Some(version) = VersionCondition::from(op).next_version(known_version, live) else {
            return failed(409, "version_conflict_engine_exception");
        };
        let status = match (&source, was_there) {
            (None, false) => 404,
            (Some(_), false) => 201,
            _ => 200,
        };
        let seq_no = self.next_seq_no;
        self.next_seq_no += 1;
        docs.insert(id.as_str().to_owned(), Doc { version, seq_no, source });
        let stamp = (!is_document).then_some(SeqNo { seq_no, primary_term: 1 });
        BulkAnswer { status, stamp, error: None }
    }
}

fn item_error(status: u16, kind: &str) -> ItemError {
    ItemError { status, kind: kind.to_owned(), reason: "as asked for".to_owned() }
}

fn failed(status: u16, kind: &str) -> BulkAnswer {
    BulkAnswer { status, stamp: None, error: Some(Box::new(item_error(status, kind))) }
}

fn status(status: u16) -> CallError {
    CallError::Status { status, kind: String::new(), reason: "as asked for".to_owned(), retry_after: None }
}
