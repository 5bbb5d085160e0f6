//! The stored claim: the document `maps/<topic>/<partition>` of the index `<prefix>-meta`.
//!
//! It is written by compare-and-set only. A write over another claim's state takes the partition over; the previous holder's
//! next renewal conflicts. geofold 0.1 keeps the same document without an assignment, and writes it only to confirm a
//! generation of the maps: it is taken over like any other claim.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::base::ids::DocId;
use crate::io::stored::key;

/// Ownership of a partition, and the generation of the maps by which the owner acts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The generation of the record of the maps that the owner acts by.
    pub generation: u64,
    /// Display name of the owner.
    pub owner: String,
    /// The longest `batch.timeout` of all that may still act on the partition, in milliseconds: the owner's own, and that
    /// of earlier owners until twice their deadline has passed.
    pub deadline_ms: u64,
    /// Unique per assignment, also within a worker.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub assignment: String,
    /// The owner has ended in order and sends nothing more: for so many milliseconds from then on earlier owners may
    /// still act. Absent while it owns the partition, and if it may have left a request behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
}

impl Claim {
    /// [`Claim::deadline_ms`].
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }

    /// How long earlier owners may still act after this claim is taken over: a zombie's claim was confirmed before that, its
    /// last batch begins within one deadline and ends within another.
    pub fn zombies(&self) -> Duration {
        self.ended_ms.map_or(self.deadline().saturating_mul(2), Duration::from_millis)
    }

    /// The stored form.
    pub fn to_json(&self) -> Bytes {
        // Serializing strings and numbers into a Vec cannot fail.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// `_id` of a partition's claim. No topic's name has a slash in it.
pub fn claim_key(topic: &str, partition: i32) -> DocId {
    key(format!("maps/{topic}/{partition}"))
}
