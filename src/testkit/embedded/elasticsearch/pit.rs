//! Points in time: what searches of some indices saw at one moment, kept for a while under an id.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::EsError;
use super::index::Doc;
use super::search::Searched;
use super::store::{Shared, read};
use crate::base::clock::Instant;

/// Documents of one index visible at the point in time, by the order of their operations.
pub(super) type Snapshot = Arc<BTreeMap<u64, Arc<Doc>>>;

#[derive(Debug)]
struct Pit {
    indices: Vec<(Shared, Snapshot)>,
    keep_alive: Duration,
    until: Instant,
}

/// All that are open.
#[derive(Debug, Default)]
pub(super) struct PointInTimes(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    made: u64,
    pits: HashMap<String, Pit>,
}

impl PointInTimes {
    /// Keeps what searches of `indices` see now. Gives its id.
    pub(super) fn open(
        &self,
        indices: &[Shared],
        keep_alive: Duration,
        now: Instant,
    ) -> Result<String, EsError> {
        let keep = |shared: &Shared| {
            let index = read(shared);
            index.check_open()?;
            Ok((shared.clone(), Arc::new(index.visible().clone())))
        };
        let indices = indices.iter().map(keep).collect::<Result<_, EsError>>()?;
        let mut open = self.open_at(now);
        open.made += 1;
        let id = format!("standin-pit-{}", open.made);
        open.pits.insert(id.clone(), Pit { indices, keep_alive, until: now + keep_alive });
        Ok(id)
    }

    /// The snapshot `id`, extended by `keep_alive` or by the time it was opened for.
    pub(super) fn searched(
        &self,
        id: &str,
        keep_alive: Option<Duration>,
        now: Instant,
    ) -> Result<Vec<Searched>, EsError> {
        let mut open = self.open_at(now);
        let Some(pit) = open.pits.get_mut(id) else {
            let error = EsError::new(404, "search_phase_execution_exception", "all shards failed");
            let reason = format!("No search context found for id [{id}]");
            return Err(error.caused_by("search_context_missing_exception", reason));
        };
        pit.until = now + keep_alive.unwrap_or(pit.keep_alive);
        let searched = |(index, snapshot): &(Shared, _)| Searched {
            index: index.clone(),
            snapshot: Some(Arc::clone(snapshot)),
        };
        Ok(pit.indices.iter().map(searched).collect())
    }

    /// Drops the snapshot `id`; returns its number of indices.
    pub(super) fn close(&self, id: &str) -> usize {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.pits.remove(id).map_or(0, |pit| pit.indices.len())
    }

    /// Drops expired snapshots.
    fn open_at(&self, now: Instant) -> MutexGuard<'_, Open> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.pits.retain(|_, pit| now <= pit.until);
        open
    }
}
