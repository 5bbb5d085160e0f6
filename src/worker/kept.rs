//! Per-partition caches that outlive their task; filled only under
//! [`Sabotage::CacheSurvivesAssignment`](crate::base::sabotage::Sabotage).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::core::placement::PlacementCache;

static CACHES: Mutex<Option<HashMap<i32, PlacementCache>>> = Mutex::new(None);

pub(crate) fn put(partition: i32, cache: PlacementCache) {
    let mut caches = CACHES.lock().unwrap_or_else(PoisonError::into_inner);
    caches.get_or_insert_default().insert(partition, cache);
}

pub(crate) fn take(partition: i32) -> Option<PlacementCache> {
    CACHES.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.remove(&partition)
}
