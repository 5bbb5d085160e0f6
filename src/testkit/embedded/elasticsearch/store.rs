//! All indices, and what can be done to them: Elasticsearch's semantics as far as geofold uses them, as plain synchronous
//! calls. Nothing here knows HTTP, and nothing is persistent.
//!
//! Two kinds of locks: one over the list of indices, held only to look a name up or to change the list, and one in each
//! index. A writer holds one index at a time, so there is no order of locks to keep.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use super::error::EsError;
use super::index::{Doc, StoredIndex, WriteGuard, WriteResult};
use super::pit::PointInTimes;
use super::{mapping, names};
use crate::base::clock::{Clock, Instant};
use crate::core::filter_path::fits;

pub(super) type Shared = Arc<RwLock<StoredIndex>>;

/// See the file's first lines.
#[derive(Debug)]
pub struct IndexStore {
    indices: RwLock<BTreeMap<String, Shared>>,
    cluster_settings: RwLock<BTreeMap<String, String>>,
    auto_create_default: String,
    clock: Arc<dyn Clock>,
    pits: PointInTimes,
    /// Bytes of all current sources.
    stored: Arc<AtomicU64>,
    max_stored: u64,
    made: AtomicU64,
}

/// What to write.
#[derive(Debug, Clone, Copy)]
pub enum WriteContent<'a> {
    /// This source.
    Source(&'a [u8]),
    /// Nothing: a delete.
    Nothing,
}

impl IndexStore {
    /// An empty store. `auto_create` is the default of `action.auto_create_index`; writes are refused (429) once current
    /// sources have `max_stored` bytes.
    pub fn new(auto_create: &str, max_stored: u64, clock: Arc<dyn Clock>) -> Self {
        Self {
            indices: RwLock::default(),
            cluster_settings: RwLock::default(),
            auto_create_default: auto_create.to_owned(),
            clock,
            pits: PointInTimes::default(),
            stored: Arc::default(),
            max_stored,
            made: AtomicU64::new(0),
        }
    }

    /// Points in time.
    pub(super) fn pits(&self) -> &PointInTimes {
        &self.pits
    }

    /// The time, by the store's clock.
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Bytes of all current sources.
    pub fn stored_bytes(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// Writes or deletes one document; creates the index if the rules for that allow it.
    ///
    /// # Errors
    /// As the item of a bulk answer: version conflicts, documents that do not fit, a missing or closed index.
    pub fn write(
        &self,
        index: &str,
        id: &str,
        condition: WriteGuard,
        content: WriteContent<'_>,
    ) -> Result<WriteResult, EsError> {
        if id.is_empty() {
            return Err(EsError::illegal_argument("if _id is specified it must not be empty"));
        }
        let shared = match self.find(index) {
            Some(shared) => shared,
            None => self.auto_create(index, condition, content)?,
        };
        let now = self.clock.now();
        match content {
            WriteContent::Nothing => write(&shared).delete(id, condition, now),
            WriteContent::Source(source) => {
                let stored = self.stored_bytes();
                if stored.saturating_add(source.len() as u64) > self.max_stored {
                    let reason = format!(
                        "[parent] Data too large, {stored} bytes are stored already, the limit is [{}]",
                        self.max_stored
                    );
                    return Err(EsError::new(429, "circuit_breaking_exception", reason));
                }
                // The costly part runs without the lock. A closed index is refused before the document is read.
                read(&shared).check_open()?;
                let parsed = mapping::parse(source)?;
                write(&shared).index(id, condition, source, &parsed, now)
            }
        }
    }

    /// Reads one document, realtime; `None` if there is none.
    ///
    /// # Errors
    /// If the index is missing or closed.
    pub fn get(&self, index: &str, id: &str) -> Result<Option<Arc<Doc>>, EsError> {
        let shared = self.find(index).ok_or_else(|| EsError::no_such_index(index))?;
        read(&shared).get(id)
    }

    /// For each of `ids`, where it is among `indices` (by number) and as what, all seen in one moment: no write goes on
    /// meanwhile. An index that is not there holds nothing.
    pub fn snapshot(&self, indices: &[String], ids: &[String]) -> Vec<Vec<(usize, Arc<Doc>)>> {
        let shared: Vec<(usize, Shared)> =
            indices.iter().enumerate().filter_map(|(n, index)| Some((n, self.find(index)?))).collect();
        // Writers lock one index at a time, so this wait cannot deadlock.
        let held: Vec<_> = shared.iter().map(|(n, index)| (*n, read(index))).collect();
        let places =
            |id: &String| held.iter().filter_map(|(n, index)| Some((*n, index.current(id)?))).collect();
        ids.iter().map(places).collect()
    }

    /// The ids of the documents that a search of this index finds now: as its last refresh shows it.
    pub fn searchable(&self, index: &str) -> Vec<String> {
        let Some(shared) = self.find(index) else { return Vec::new() };
        read(&shared).visible().values().map(|doc| doc.id.to_string()).collect()
    }

    /// How many operations have changed an index since it was made: writes and deletes. `None` if it is not there.
    pub fn changes(&self, index: &str) -> Option<u64> {
        self.find(index).map(|shared| read(&shared).changes())
    }

    fn auto_create(
        &self,
        index: &str,
        condition: WriteGuard,
        content: WriteContent<'_>,
    ) -> Result<Shared, EsError> {
        let is_external = matches!(condition, WriteGuard::External(_) | WriteGuard::ExternalOrEqual(_));
        if matches!(content, WriteContent::Nothing) && !is_external {
            return Err(EsError::no_such_index(index));
        }
        let rule = self.auto_create_rule();
        if let Err(why) = names::auto_creates(&rule, index) {
            let reason = format!("no such index [{index}] and [action.auto_create_index] {why}");
            let error = EsError::new(404, "index_not_found_exception", reason);
            return Err(error.with("index_uuid", "_na_").with("index", index));
        }
        match self.create_index(index, BTreeMap::new(), Map::new()) {
            Err(error) if error.kind != "resource_already_exists_exception" => Err(error),
            _ => self.find(index).ok_or_else(|| EsError::no_such_index(index)),
        }
    }

    /// The value of `action.auto_create_index` that is in force.
    pub fn auto_create_rule(&self) -> String {
        let settings = self.cluster_settings.read().unwrap_or_else(PoisonError::into_inner);
        settings.get("action.auto_create_index").unwrap_or(&self.auto_create_default).clone()
    }

    pub(super) fn auto_create_default(&self) -> &str {
        &self.auto_create_default
    }

    pub(super) fn cluster_settings(&self) -> BTreeMap<String, String> {
        self.cluster_settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets settings by their whole names; `None` resets one.
    pub(super) fn set_cluster_settings(&self, changes: BTreeMap<String, Option<String>>) {
        let mut settings = self.cluster_settings.write().unwrap_or_else(PoisonError::into_inner);
        apply(&mut settings, changes);
    }

    /// Creates an index.
    ///
    /// # Errors
    /// If the name is taken or none that an index may have.
    pub fn create_index(
        &self,
        name: &str,
        settings: BTreeMap<String, String>,
        mappings: Map<String, Value>,
    ) -> Result<(), EsError> {
        if let Err(why) = names::check(name) {
            let error = EsError::new(
                400,
                "invalid_index_name_exception",
                format!("Invalid index name [{name}], {why}"),
            );
            return Err(error.with("index_uuid", "_na_").with("index", name));
        }
        let mut indices = self.indices.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(existing) = indices.get(name) {
            let uuid = read(existing).uuid.clone();
            let reason = format!("index [{name}/{uuid}] already exists");
            let error = EsError::new(400, "resource_already_exists_exception", reason);
            return Err(error.with("index_uuid", &uuid).with("index", name));
        }
        let uuid = self.unique();
        let created =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string();
        let own = [
            ("index.creation_date", created.as_str()),
            ("index.number_of_replicas", "1"),
            ("index.number_of_shards", "1"),
            ("index.provided_name", name),
            ("index.routing.allocation.include._tier_preference", "data_content"),
            ("index.uuid", &uuid),
            ("index.version.created", "8537000"),
        ];
        let mut all: BTreeMap<String, String> =
            own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        all.extend(settings);
        let index = StoredIndex::new(name, uuid, all, mappings, self.clock.now(), self.stored.clone());
        indices.insert(name.to_owned(), Arc::new(RwLock::new(index)));
        Ok(())
    }

    /// Deletes indices by their names: all of them, or none if one is missing.
    pub(super) fn delete_indices(&self, names: &str) -> Result<(), EsError> {
        if names.contains('*') || names == "_all" {
            // As `action.destructive_requires_name` has it by default.
            return Err(EsError::illegal_argument("Wildcard expressions or all indices are not allowed"));
        }
        let mut indices = self.indices.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(missing) = names.split(',').find(|name| !indices.contains_key(*name)) {
            return Err(EsError::no_such_index(missing));
        }
        for name in names.split(',') {
            if let Some(index) = indices.remove(name) {
                write(&index).remove();
            }
        }
        Ok(())
    }

    /// The indices that a list of names and patterns stands for, in the order of their names. A pattern may match
    /// nothing; a name must be there unless `is_lenient`. Closed indices match a pattern only if `with_closed`.
    pub(super) fn resolve(
        &self,
        names: &str,
        with_closed: bool,
        is_lenient: bool,
    ) -> Result<Vec<Shared>, EsError> {
        let indices = self.indices.read().unwrap_or_else(PoisonError::into_inner);
        let names = if names.is_empty() || names == "_all" { "*" } else { names };
        let mut found = BTreeMap::new();
        for part in names.split(',') {
            if part.contains('*') {
                let matching = indices
                    .iter()
                    .filter(|(name, index)| fits(part, name) && (with_closed || read(index).is_open));
                found.extend(matching);
            } else {
                match indices.get_key_value(part) {
                    Some(entry) => drop(found.insert(entry.0, entry.1)),
                    None if is_lenient => {}
                    None => return Err(EsError::no_such_index(part)),
                }
            }
        }
        Ok(found.into_values().cloned().collect())
    }

    /// Changes settings of an index, by their whole names; `None` resets one.
    pub(super) fn change_settings(
        &self,
        index: &Shared,
        changes: BTreeMap<String, Option<String>>,
    ) -> Result<(), EsError> {
        let mut index = write(index);
        if index.is_open && changes.contains_key("index.number_of_shards") {
            let reason = format!(
                "Can't update non dynamic settings [[index.number_of_shards]] for open indices [[{}/{}]]",
                index.name, index.uuid
            );
            return Err(EsError::illegal_argument(reason));
        }
        apply(&mut index.settings, changes);
        Ok(())
    }

    /// Makes everything written to an index visible to searches.
    pub(super) fn refresh(&self, index: &Shared) -> Result<(), EsError> {
        let mut index = write(index);
        index.check_open()?;
        index.refresh(self.clock.now());
        Ok(())
    }

    /// Refreshes every index.
    #[cfg(test)]
    pub(crate) fn refresh_all(&self) {
        let indices = self.indices.read().unwrap_or_else(PoisonError::into_inner);
        indices.values().for_each(|index| write(index).refresh(self.clock.now()));
    }

    /// Refreshes every index whose interval has passed.
    pub fn refresh_due(&self) {
        let all: Vec<Shared> = {
            let indices = self.indices.read().unwrap_or_else(PoisonError::into_inner);
            indices.values().cloned().collect()
        };
        let now = self.clock.now();
        all.iter().for_each(|index| write(index).refresh_if_due(now));
    }

    /// Closes or opens an index.
    pub(super) fn set_open(&self, index: &Shared, is_open: bool) {
        let mut index = write(index);
        if is_open { index.open(self.clock.now()) } else { index.close() }
    }

    fn find(&self, name: &str) -> Option<Shared> {
        self.indices.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// A text that this store gives out once: 22 characters, like Elasticsearch's own ids.
    pub(super) fn unique(&self) -> String {
        let made = self.made.fetch_add(1, Ordering::Relaxed);
        format!("standin-{made:014}")
    }
}

fn apply(settings: &mut BTreeMap<String, String>, changes: BTreeMap<String, Option<String>>) {
    for (name, value) in changes {
        match value {
            Some(value) => drop(settings.insert(name, value)),
            None => drop(settings.remove(&name)),
        }
    }
}

// No code that holds an index can leave it half changed: what may fail is checked before anything is touched.

pub(super) fn read(index: &Shared) -> RwLockReadGuard<'_, StoredIndex> {
    index.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write(index: &Shared) -> RwLockWriteGuard<'_, StoredIndex> {
    index.write().unwrap_or_else(PoisonError::into_inner)
}
