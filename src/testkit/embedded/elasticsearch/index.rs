//! One index: its documents by id, the tombstones of deleted ones, and what searches see.
//!
//! Reads by id are realtime: they see the last write. A search sees the state of the last refresh. So a write goes to
//! `docs` at once and to `fresh` until the next refresh moves it to `visible`; what it replaced stays visible until then
//! and is listed in `gone`. `visible` is ordered by the operations' order, which searches by `_doc` have.
//!
//! Of its primaries (`index.number_of_shards`) each document belongs to one, and each primary gives out sequence numbers of its own.
//!
//! The version of a deleted document is remembered for `index.gc_deletes`, by the clock, and while the index stays open:
//! like Elasticsearch's, tombstones live in memory, and closing forgets them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::error::EsError;
use super::geo::StoredPoint;
use super::mapping;
use crate::base::clock::Instant;
use crate::base::fnv::fnv1a;
use crate::io::elastic::SeqNo;

/// A state of a document.
#[derive(Debug)]
pub struct Doc {
    /// `_id`.
    pub id: Arc<str>,
    /// `_version`.
    pub version: i64,
    /// `_seq_no`.
    pub seq_no: u64,
    /// Number of its operation in the whole index.
    pub(super) order: u64,
    /// `_primary_term`.
    pub primary_term: u64,
    /// `_source`, byte for byte.
    pub source: Box<[u8]>,
    /// Its points, each with the number of its field in [`StoredIndex::geo_fields`].
    pub(super) points: Box<[(u16, StoredPoint)]>,
}

/// Under which condition a write is carried out, and how the document's version goes on.
pub type WriteGuard = crate::io::elastic::condition::VersionCondition<i64, SeqNo>;

/// Result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteResult {
    /// `_version`.
    pub version: i64,
    /// `_seq_no`.
    pub seq_no: u64,
    /// `_primary_term`.
    pub primary_term: u64,
    /// `created`, `updated`, `deleted` or `not_found`.
    pub result: &'static str,
}

impl WriteResult {
    /// HTTP status of the item.
    pub fn status(&self) -> u16 {
        match self.result {
            "created" => 201,
            "not_found" => 404,
            _ => 200,
        }
    }
}

#[derive(Debug)]
struct Tombstone {
    version: i64,
    deleted_at: Instant,
}

/// An index. The store locks each separately.
#[derive(Debug)]
pub(super) struct StoredIndex {
    pub(super) name: String,
    pub(super) uuid: String,
    /// By their whole names, values as text.
    pub(super) settings: BTreeMap<String, String>,
    pub(super) mappings: Map<String, Value>,
    pub(super) is_open: bool,
    /// Deleted while a reference was held.
    pub(super) is_removed: bool,
    docs: HashMap<Arc<str>, Arc<Doc>>,
    tombstones: HashMap<Arc<str>, Tombstone>,
    geo_fields: Vec<String>,
    /// Operations so far.
    operations: u64,
    /// Of each primary, the next sequence number.
    next_seq_nos: Vec<u64>,
    primary_term: u64,
    fresh: BTreeMap<u64, Arc<Doc>>,
    gone: Vec<u64>,
    visible: BTreeMap<u64, Arc<Doc>>,
    refreshed_at: Instant,
    refreshes: u64,
    /// Bytes of all current sources of the whole store.
    stored: Arc<AtomicU64>,
}

impl StoredIndex {
    pub(super) fn new(
        name: &str,
        uuid: String,
        settings: BTreeMap<String, String>,
        mappings: Map<String, Value>,
        now: Instant,
        stored: Arc<AtomicU64>,
    ) -> Self {
        let primaries = settings.get("index.number_of_shards").and_then(|shards| shards.parse().ok());
        Self {
            name: name.to_owned(),
            uuid,
            settings,
            mappings,
            is_open: true,
            is_removed: false,
            docs: HashMap::new(),
            tombstones: HashMap::new(),
            geo_fields: Vec::new(),
            operations: 0,
            next_seq_nos: vec![0; primaries.unwrap_or(1).max(1)],
            primary_term: 1,
            fresh: BTreeMap::new(),
            gone: Vec::new(),
            visible: BTreeMap::new(),
            refreshed_at: now,
            refreshes: 0,
            stored,
        }
    }

    /// Refuses what cannot be done in this state of the index.
    pub(super) fn check_open(&self) -> Result<(), EsError> {
        if self.is_removed {
            return Err(EsError::no_such_index(&self.name));
        }
        if !self.is_open {
            return Err(self.located(EsError::new(400, "index_closed_exception", "closed")));
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<(), EsError> {
        const BLOCKS: [(&str, u16, &str); 3] = [
            ("index.blocks.write", 403, "FORBIDDEN/8/index write (api)"),
            ("index.blocks.read_only", 403, "FORBIDDEN/5/index read-only (api)"),
            (
                "index.blocks.read_only_allow_delete",
                429,
                "TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block",
            ),
        ];
        self.check_open()?;
        match BLOCKS.iter().find(|(setting, ..)| self.settings.get(*setting).is_some_and(|on| on == "true")) {
            None => Ok(()),
            Some((_, status, block)) => {
                let reason = format!("index [{}] blocked by: [{block}];", self.name);
                Err(EsError::new(*status, "cluster_block_exception", reason))
            }
        }
    }

    /// Adds where an error happened.
    fn located(&self, error: EsError) -> EsError {
        error.with("index_uuid", &self.uuid).with("index", &self.name)
    }

    /// Writes a document. `parsed` is its source as JSON.
    pub(super) fn index(
        &mut self,
        id: &str,
        condition: WriteGuard,
        source: &[u8],
        parsed: &Value,
        now: Instant,
    ) -> Result<WriteResult, EsError> {
        self.check_writable()?;
        // Elasticsearch parses before it looks at versions: a document that is not acceptable is never a conflict.
        let mut checked = mapping::check(&self.mappings, parsed)?;
        mapping::add_new_fields(&mut self.mappings, &mut checked)?;
        let version = self.next_version(id, condition, now)?;
        let points = checked.points.into_iter().map(|(path, point)| (self.geo_field(path), point)).collect();
        let (order, seq_no) = self.count_operation(id);
        let id: Arc<str> = self.docs.get_key_value(id).map_or_else(|| id.into(), |(id, _)| id.clone());
        let primary_term = self.primary_term;
        let doc = Arc::new(Doc {
            id: id.clone(),
            version,
            seq_no,
            order,
            primary_term,
            source: source.into(),
            points,
        });
        self.stored.fetch_add(doc.source.len() as u64, Ordering::Relaxed);
        self.tombstones.remove(&id);
        self.fresh.insert(order, doc.clone());
        let replaced = self.docs.insert(id, doc);
        let result = if replaced.is_some() { "updated" } else { "created" };
        self.forget(replaced);
        Ok(WriteResult { version, seq_no, primary_term, result })
    }

    /// Removes a document. One that is not there leaves a tombstone all the same.
    pub(super) fn delete(
        &mut self,
        id: &str,
        condition: WriteGuard,
        now: Instant,
    ) -> Result<WriteResult, EsError> {
        self.check_writable()?;
        let version = self.next_version(id, condition, now)?;
        let removed = self.docs.remove(id);
        let result = if removed.is_some() { "deleted" } else { "not_found" };
        self.forget(removed);
        self.tombstones.insert(id.into(), Tombstone { version, deleted_at: now });
        let (_, seq_no) = self.count_operation(id);
        Ok(WriteResult { version, seq_no, primary_term: self.primary_term, result })
    }

    /// The version that a write would leave, if its condition holds.
    fn next_version(&self, id: &str, condition: WriteGuard, now: Instant) -> Result<i64, EsError> {
        let conflict = |what: String| {
            let reason = format!("[{id}]: version conflict, {what}");
            let error = EsError::new(409, "version_conflict_engine_exception", reason);
            Err(self.located(error).with("shard", &self.primary_of(id).to_string()))
        };
        let doc = self.docs.get(id);
        let remembered = self.tombstones.get(id).filter(|tombstone| self.is_remembered(tombstone, now));
        let current = doc.map(|doc| doc.version).or(remembered.map(|tombstone| tombstone.version));
        let live = doc.map(|doc| SeqNo { seq_no: doc.seq_no, primary_term: doc.primary_term });
        if let Some(version) = condition.next_version(current, live) {
            return Ok(version);
        }
        let current = current.unwrap_or(0);
        match condition {
            WriteGuard::Any | WriteGuard::Absent => {
                conflict(format!("document already exists (current version [{current}])"))
            }
            WriteGuard::External(new) => conflict(format!(
                "current version [{current}] is higher or equal to the one provided [{new}]"
            )),
            WriteGuard::ExternalOrEqual(new) => {
                conflict(format!("current version [{current}] is higher than the one provided [{new}]"))
            }
            WriteGuard::Unchanged(SeqNo { seq_no, primary_term }) => {
                let found = doc.map_or_else(
                    || "but no document was found".to_owned(),
                    |doc| {
                        let Doc { seq_no, primary_term, .. } = **doc;
                        format!("current document has seqNo [{seq_no}] and primary term [{primary_term}]")
                    },
                );
                conflict(format!("required seqNo [{seq_no}], primary term [{primary_term}]. {found}"))
            }
        }
    }

    fn is_remembered(&self, tombstone: &Tombstone, now: Instant) -> bool {
        now.since(tombstone.deleted_at) <= self.time_setting("index.gc_deletes", Duration::from_secs(60))
    }

    fn time_setting(&self, name: &str, default: Duration) -> Duration {
        self.settings.get(name).and_then(|text| crate::io::indices::parse_time(text)).unwrap_or(default)
    }

    /// The number of the primary that a document belongs to. Elasticsearch has another hash.
    fn primary_of(&self, id: &str) -> usize {
        let primaries = self.next_seq_nos.len() as u64;
        usize::try_from(fnv1a(id.bytes()) % primaries).unwrap_or(0)
    }

    /// Counts an operation on a document: its number in the whole index, and its sequence number.
    fn count_operation(&mut self, id: &str) -> (u64, u64) {
        let primary = self.primary_of(id);
        let (order, seq_no) = (self.operations, self.next_seq_nos[primary]);
        self.operations += 1;
        self.next_seq_nos[primary] += 1;
        (order, seq_no)
    }

    /// Of each primary, how many operations it has counted.
    pub(super) fn counted(&self) -> &[u64] {
        &self.next_seq_nos
    }

    fn geo_field(&mut self, path: String) -> u16 {
        let known = self.geo_fields.iter().position(|known| *known == path);
        let number = known.unwrap_or_else(|| {
            self.geo_fields.push(path);
            self.geo_fields.len() - 1
        });
        // A mapping has no more than 1,000 fields.
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    /// The number that a field's points have, if any document had one.
    pub(super) fn geo_field_number(&self, path: &str) -> Option<u16> {
        self.geo_fields.iter().position(|known| known == path).and_then(|number| u16::try_from(number).ok())
    }

    /// A state that is no longer the current one; searches see it until the next refresh.
    fn forget(&mut self, doc: Option<Arc<Doc>>) {
        let Some(doc) = doc else { return };
        self.stored.fetch_sub(doc.source.len() as u64, Ordering::Relaxed);
        if self.fresh.remove(&doc.order).is_none() {
            self.gone.push(doc.order);
        }
    }

    pub(super) fn get(&self, id: &str) -> Result<Option<Arc<Doc>>, EsError> {
        self.check_open()?;
        Ok(self.docs.get(id).cloned())
    }

    /// Makes everything that was written visible to searches.
    /// A document as a realtime read of an open index would find it.
    pub(super) fn current(&self, id: &str) -> Option<Arc<Doc>> {
        self.docs.get(id).cloned()
    }

    /// Bytes of all current sources.
    pub(super) fn bytes(&self) -> usize {
        self.docs.values().map(|doc| doc.source.len()).sum()
    }

    /// Operations that changed something.
    pub(super) fn changes(&self) -> u64 {
        self.operations
    }

    pub(super) fn refresh(&mut self, now: Instant) {
        for order in self.gone.drain(..) {
            self.visible.remove(&order);
        }
        self.visible.append(&mut self.fresh);
        if !self.tombstones.is_empty() {
            let gc_deletes = self.time_setting("index.gc_deletes", Duration::from_secs(60));
            self.tombstones.retain(|_, tombstone| now.since(tombstone.deleted_at) <= gc_deletes);
        }
        self.refreshed_at = now;
        self.refreshes += 1;
    }

    /// Refreshes if `index.refresh_interval` (1 s by default, -1 for never) has passed.
    pub(super) fn refresh_if_due(&mut self, now: Instant) {
        let is_manual = self.settings.get("index.refresh_interval").is_some_and(|text| text.starts_with('-'));
        let interval = self.time_setting("index.refresh_interval", Duration::from_secs(1));
        let is_needed = !self.fresh.is_empty() || !self.gone.is_empty();
        if self.is_open && !is_manual && is_needed && now.since(self.refreshed_at) >= interval {
            self.refresh(now);
        }
    }

    /// How often searches were shown what was written.
    pub(super) fn refreshes(&self) -> u64 {
        self.refreshes
    }

    /// Documents visible to searches, by the order of their operations.
    pub(super) fn visible(&self) -> &BTreeMap<u64, Arc<Doc>> {
        &self.visible
    }

    pub(super) fn close(&mut self) {
        self.is_open = false;
        self.settings.insert("index.verified_before_close".to_owned(), "true".to_owned());
        self.tombstones = HashMap::new();
    }

    pub(super) fn open(&mut self, now: Instant) {
        if self.is_open {
            return;
        }
        self.is_open = true;
        self.settings.remove("index.verified_before_close");
        // Closing and opening each restart the shard, which raises its primary term.
        self.primary_term += 2;
        self.refresh(now);
    }

    /// Marks the index as deleted, for holders of a reference.
    pub(super) fn remove(&mut self) {
        self.stored.fetch_sub(self.bytes() as u64, Ordering::Relaxed);
        self.docs = HashMap::new();
        self.visible = BTreeMap::new();
        self.fresh = BTreeMap::new();
        self.is_removed = true;
    }

    /// Settings, with flat or nested names.
    pub(super) fn settings_value(&self, is_flat: bool) -> Value {
        if is_flat {
            return json!(self.settings);
        }
        super::api::nested(self.settings.iter().map(|(name, value)| (name.clone(), json!(value))).collect())
    }
}
