//! Why a change of the map cannot begin or go on.

use thiserror::Error;

use crate::io::elastic::CallError;
use crate::io::elastic::scan::ScanError;
use crate::io::indices::IndicesError;
use crate::io::maps::{BadStep, StoreError};
use crate::io::send::topic::TopicError;

/// A change of the map cannot begin or go on. Whatever it is, the same command goes on from where it ended.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// It does not follow from where the change is.
    #[error(transparent)]
    Step(#[from] BadStep),
    /// The record cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Kafka.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The documents cannot be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// Indices cannot be listed or created.
    #[error(transparent)]
    Indices(#[from] IndicesError),
    /// Elasticsearch did not do something.
    #[error("cannot {doing}: {error}")]
    Call {
        /// What.
        doing: &'static str,
        /// Why not.
        error: CallError,
    },
    /// Elasticsearch said no.
    #[error("cannot {doing}: elasticsearch answered {status}: {reason}")]
    Refused {
        /// What was being done.
        doing: String,
        /// HTTP status.
        status: u16,
        /// In its words.
        reason: String,
    },
    /// The file is not what documents were placed by.
    #[error(
        "the configured map is {configured}, and documents are placed by {remembered}: give this command the configuration that the workers have"
    )]
    OtherMap {
        /// Fingerprint of the configured map.
        configured: String,
        /// Fingerprint of the one that is remembered.
        remembered: String,
    },
    /// The epochs differ.
    #[error(
        "positions.epoch is {configured}, and the workers have {remembered}: give this command their configuration"
    )]
    OtherEpoch {
        /// From the configuration.
        configured: u32,
        /// From the meta index.
        remembered: u32,
    },
    /// No worker ever ran.
    #[error(
        "nothing is remembered of the topic, so no worker ever ran: put the new map into geoshards.map and start one"
    )]
    NothingRemembered,
    /// Somebody called the change off, or began it again, while this was going on.
    #[error("the change was altered meanwhile (--abort or --to was run elsewhere); look with --status")]
    OtherCourse,
    /// Documents stay where the map does not say.
    #[error(
        "{count} documents do not move although they were touched again and again, {example:?} for example; both maps stay live. Look at the placement and the copies of one of them, and at the dead letters"
    )]
    Stuck {
        /// How many.
        count: u64,
        /// `_id` of one.
        example: String,
    },
    /// An index that is to go holds documents.
    #[error(
        "{index} still holds {count} documents, so it is not deleted: geofold did not put them there since the change ended"
    )]
    NotEmpty {
        /// Its name.
        index: String,
        /// How many.
        count: u64,
    },
}

impl MigrateError {
    /// Whether asking again may help.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Store(error) => matches!(error, StoreError::Call(_) | StoreError::Item { .. }),
            Self::Scan(ScanError::Refused { status, .. }) | Self::Refused { status, .. } => {
                matches!(status, 404 | 429 | 500..=599)
            }
            Self::Scan(error) => matches!(error, ScanError::Call { .. } | ScanError::Incomplete { .. }),
            Self::Topic(error) => {
                matches!(error, TopicError::Asking { .. } | TopicError::NotDelivered { .. })
            }
            // In halves already, down to a single document.
            Self::Call { error: CallError::TooLarge { .. }, .. } => false,
            Self::Call { .. } => true,
            _ => false,
        }
    }
}
