//! Errors of a change of the map.

use thiserror::Error;

use crate::io::elastic::CallError;
use crate::io::elastic::scan::ScanError;
use crate::io::indices::IndicesError;
use crate::io::maps::BadStep;
use crate::io::send::topic::TopicError;
use crate::io::stored::RecordError;

/// A change of the map cannot start or continue. Running the same command again resumes it.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// Not allowed in the current stage.
    #[error(transparent)]
    Step(#[from] BadStep),
    /// The record cannot be read or written.
    #[error(transparent)]
    Store(#[from] RecordError),
    /// Kafka.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The documents cannot be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// Indices cannot be listed or created.
    #[error(transparent)]
    Indices(#[from] IndicesError),
    /// A request to Elasticsearch failed.
    #[error("cannot {doing}: {error}")]
    Call {
        /// What was being done.
        doing: &'static str,
        /// The error.
        error: CallError,
    },
    /// Elasticsearch refused a request.
    #[error("cannot {doing}: elasticsearch answered {status}: {reason}")]
    Refused {
        /// What was being done.
        doing: String,
        /// HTTP status.
        status: u16,
        /// Elasticsearch's reason.
        reason: String,
    },
    /// The configured map is not the one in force.
    #[error(
        "the configured map is {configured}, but documents are placed by {remembered}; run this command with the workers' configuration"
    )]
    OtherMap {
        /// Fingerprint of the configured map.
        configured: String,
        /// Fingerprint of the stored one.
        remembered: String,
    },
    /// The epochs differ.
    #[error(
        "positions.epoch is {configured}, but the workers have {remembered}; run this command with their configuration"
    )]
    OtherEpoch {
        /// From the configuration.
        configured: u32,
        /// From the meta index.
        remembered: u32,
    },
    /// No worker ever ran.
    #[error(
        "no worker has stored the state of the topic yet; put the new map into geoshards.map and start a worker"
    )]
    NoStoredState,
    /// The change was cancelled or restarted by another command meanwhile.
    #[error("another command changed the direction of this change (--abort or --to); check with --status")]
    OtherDirection,
    /// Documents stay misplaced.
    #[error(
        "{count} documents do not move despite repeated touches, for example {example:?}; both maps stay live. Check the placement and the copies of one of them, and the dead letters"
    )]
    Stuck {
        /// How many.
        count: u64,
        /// `_id` of one.
        example: String,
    },
    /// An index to be deleted holds documents.
    #[error(
        "{index} is not deleted: it holds {count} documents, which geofold has not written since the change ended"
    )]
    NotEmpty {
        /// Its name.
        index: String,
        /// How many.
        count: u64,
    },
}

impl MigrateError {
    /// Whether retrying may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => matches!(error, RecordError::Call { .. } | RecordError::Refused { .. }),
            Self::Scan(ScanError::Refused { status, .. }) | Self::Refused { status, .. } => {
                matches!(status, 404 | 429 | 500..=599)
            }
            Self::Scan(error) => matches!(error, ScanError::Call { .. } | ScanError::Incomplete { .. }),
            Self::Topic(error) => {
                matches!(error, TopicError::Request { .. } | TopicError::NotDelivered { .. })
            }
            // The request was halved already, down to a single document.
            Self::Call { error: CallError::TooLarge { .. }, .. } => false,
            Self::Call { .. } => true,
            _ => false,
        }
    }
}
