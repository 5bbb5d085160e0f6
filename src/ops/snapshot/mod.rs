//! Snapshots that can be restored while producers write: a state of all indices at one moment, and the offsets to go on from
//! (protocol, "Restoring a snapshot").
//!
//! Elasticsearch copies each index at a moment of its own. So writes to placements and geoshards are blocked while it copies, which
//! workers take for an outage: they wait, and commit nothing. What is copied is then what any crash of all workers leaves.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | names, the mark that is stored in each snapshot, errors |
//! | `take.rs` | takes a snapshot |
//! | `restore.rs` | replaces all indices by those of a snapshot, and sets the group back |
//! | `offsets.rs` | the offsets to go on from, and what forbids it; pure |
//! | `server.rs` | the requests to Elasticsearch |

mod offsets;
mod restore;
mod server;
mod take;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

pub use self::offsets::UnusableMark;
pub use self::restore::Restored;
pub use self::take::SnapshotTaken;
use super::records::{RecordsError, RecordsReader, ask};
use crate::base::ids::DocId;
use crate::base::position::Epoch;
use crate::base::progress::Tell;
use crate::io::elastic::Elastic;
use crate::io::indices::IndicesError;
use crate::io::stored::{RecordError, key};
use crate::support::config::Config;

/// A snapshot in a repository: `REPOSITORY/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPlace {
    /// The repository, as Elasticsearch knows it.
    pub repository: String,
    /// The snapshot.
    pub name: String,
}

impl FromStr for SnapshotPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |part: &str| {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            !part.is_empty() && !part.starts_with(['.', '_', '-']) && part.chars().all(is_allowed)
        };
        match text.split_once('/') {
            Some((repository, name))
                if is_plain(repository) && is_plain(name) && !name.contains(char::is_uppercase) =>
            {
                Ok(Self { repository: repository.to_owned(), name: name.to_owned() })
            }
            _ => {
                Err("write REPOSITORY/NAME, of letters, digits, '.', '_' and '-', the name without capitals"
                    .to_owned())
            }
        }
    }
}

impl fmt::Display for SnapshotPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.repository, self.name)
    }
}

/// What the meta index says in a snapshot about that snapshot. Written while writes are blocked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMark {
    /// ⚠ The snapshot it was written for: any later copy of the meta index has it, too.
    pub place: SnapshotPlace,
    /// The epoch in use.
    pub epoch: Epoch,
    /// Kafka's topic id, if the broker reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_id: Option<String>,
    /// For each partition where the group goes on: its committed offset, or where the partition began.
    pub offsets: BTreeMap<i32, i64>,
}

impl SnapshotMark {
    /// `_id` of the mark.
    fn key(topic: &str) -> DocId {
        key(format!("snapshot/{topic}"))
    }
}

/// Takes and restores snapshots of one set of indices.
pub struct Snapshots<'a> {
    /// The workers' configuration.
    pub config: &'a Config,
    /// The search server.
    pub elastic: &'a dyn Elastic,
    /// Receives progress.
    pub tell: Tell<'a>,
    /// Ends it. What was begun is taken back first.
    pub stop: CancellationToken,
}

/// A snapshot could not be taken or restored.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// Kafka.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// A request about indices or snapshots failed.
    #[error(transparent)]
    Indices(#[from] IndicesError),
    /// The mark cannot be stored, or maps or claims not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// There is one of this name.
    #[error("{0} exists: choose another name, or delete it")]
    Exists(SnapshotPlace),
    /// There is nothing to take.
    #[error("there are no indices {0}-*: geofold shards create makes them")]
    NoIndices(String),
    /// Writes are blocked already.
    #[error(
        "writes to {0} are blocked already; if a geofold snapshot was killed, end that block with geofold snapshot --unblock"
    )]
    Blocked(String),
    /// A change of the map moves documents between indices, and makes and deletes some.
    #[error("the map is being changed: wait until geofold shards migrate --status says that it has ended")]
    MapChanges,
    /// The indices or the maps changed while they were copied.
    #[error(
        "indices were created or deleted, or the map changed, meanwhile: the snapshot was deleted; repeat the command"
    )]
    Changed,
    /// Elasticsearch did not copy everything.
    #[error("{place} is {state}, not SUCCESS: {reason}")]
    Incomplete {
        /// The snapshot.
        place: SnapshotPlace,
        /// Elasticsearch's word.
        state: String,
        /// The first shard's failure, or what to do.
        reason: String,
    },
    /// Writes were blocked for too long.
    #[error(
        "the snapshot did not end within {0:?} (--max-pause): it was deleted, and writes go on; repeat the command: what was copied need not be copied again"
    )]
    TooLong(Duration),
    /// The block could not be ended.
    #[error(
        "{failure}; and writes are still blocked, since {error}: workers wait until geofold snapshot --unblock succeeds"
    )]
    StillBlocked {
        /// Why the snapshot failed, or that it did not.
        failure: String,
        /// Why the block stays.
        error: IndicesError,
    },
    /// The snapshot is not one of these indices.
    #[error(
        "{place} has no indices {prefix}-placements and {prefix}-meta: it is no snapshot of these indices"
    )]
    Foreign {
        /// The snapshot.
        place: SnapshotPlace,
        /// Of the indices.
        prefix: String,
    },
    /// It may have been copied while workers wrote.
    #[error(
        "{0} was not taken by geofold snapshot: its indices are of different moments, and cannot be gone on from; rebuild instead (docs/runbooks.md, GeofoldElasticsearchPushesBack)"
    )]
    NotMarked(SnapshotPlace),
    /// The offsets are no good.
    #[error(transparent)]
    Mark(#[from] UnusableMark),
    /// Indices would be deleted.
    #[error("{count} indices {prefix}-* exist, and would be deleted: repeat the command with --yes")]
    WouldDelete {
        /// How many.
        count: usize,
        /// Of their names.
        prefix: String,
    },
    /// Somebody writes.
    #[error(
        "{owner} still renews its claim of partition {partition}, although it is no member of the group: stop it, and repeat the command"
    )]
    StillOwned {
        /// The partition.
        partition: usize,
        /// The worker.
        owner: String,
    },
    /// Shards cannot be restored.
    #[error(
        "{red} of {of} indices have no data, and elasticsearch has stopped restoring: ask GET /_cluster/allocation/explain, then repeat the command"
    )]
    NotRestored {
        /// Indices that are red.
        red: usize,
        /// All.
        of: usize,
    },
    /// A signal.
    #[error("interrupted; {0}")]
    Interrupted(&'static str),
}

impl Snapshots<'_> {
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&RecordsReader) -> Result<T, RecordsError> + Send + 'static,
    ) -> Result<T, RecordsError> {
        ask(self.config, &self.stop, question).await
    }
}

#[cfg(test)]
mod tests;
