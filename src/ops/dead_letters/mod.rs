//! Dead letters for people: list, show, send again, skip (`geofold dead-letters`).
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | reading the dead-letter topic |
//! | `letter.rs` | a letter as it is in its topic; pure |
//! | `plan.rs` | which letters may be sent again; pure |
//! | `replay.rs` | sends them again |
//! | `skip.rs` | skips one record of a stopped partition |

mod letter;
mod plan;
mod replay;
mod skip;

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use rdkafka::error::KafkaError;
use thiserror::Error;

pub use self::letter::{BadPlace, LetterFilter, LetterPlace, LetterRow, LetterSeen, OriginSeen};
pub use self::plan::ReplayDecision;
pub use self::replay::{Replay, ReplayTally, Replayed};
pub use self::skip::{Skip, Skipped};
use super::records::{RecordsError, RecordsReader};
use crate::io::elastic::CallError;

/// Maximum memory of letters kept with their values.
const MAX_BYTES: usize = 128 << 20;

/// Dead letters cannot be read, sent again, or skipped.
#[derive(Debug, Error)]
pub enum LettersError {
    /// A topic cannot be read.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// A Kafka request failed.
    #[error("cannot {doing}: {error}")]
    Kafka {
        /// The operation.
        doing: &'static str,
        /// In librdkafka's words.
        error: KafkaError,
    },
    /// Elasticsearch did not answer.
    #[error("could not read what the index has of the documents: {0}; look at [elasticsearch]")]
    Index(#[from] CallError),
    /// Too much to keep in memory.
    #[error("the letters exceed {} MiB: choose fewer with --id, --reason, --since or --limit", MAX_BYTES >> 20)]
    TooMuch,
    /// Some letters are not there.
    #[error("not in the dead-letter topic: {0}; geofold dead-letters list shows what is there")]
    Missing(String),
    /// A record was not acknowledged.
    #[error(
        "the record of letter {place} was not acknowledged: {error}; what was sent before is in the topic; repeat the command"
    )]
    NotSent {
        /// The letter.
        place: LetterPlace,
        /// In librdkafka's words.
        error: KafkaError,
    },
    /// The skip was refused.
    #[error("{0}")]
    Refused(String),
}

/// Letters found in the topic.
#[derive(Debug, Default)]
pub struct FoundLetters {
    /// The newest that match, oldest first.
    pub letters: Vec<LetterSeen>,
    /// How many match.
    pub matching: u64,
    /// How many records were read.
    pub read: u64,
    /// The matching ones by reason.
    pub by_reason: BTreeMap<String, u64>,
}

/// Reads the letters that `filter` takes, and keeps the newest `limit` of them.
///
/// # Errors
/// If the topic cannot be read, or the letters do not fit into memory.
pub fn read_letters(
    reader: &RecordsReader,
    filter: &LetterFilter,
    limit: usize,
) -> Result<FoundLetters, LettersError> {
    let mut found = FoundLetters::default();
    let mut bytes = 0;
    let mut all: VecDeque<LetterSeen> = VecDeque::new();
    for partition in 0..reader.partitions()? {
        let mut range = reader.range(partition)?;
        let places: Vec<i64> = filter
            .places
            .iter()
            .filter(|place| place.partition == partition)
            .map(|place| place.offset)
            .collect();
        if !filter.places.is_empty() {
            let (Some(&first), Some(&last)) = (places.iter().min(), places.iter().max()) else { continue };
            range = range.start.max(first)..range.end.min(last.saturating_add(1));
        }
        let mut kept: VecDeque<LetterSeen> = VecDeque::new();
        let mut too_much = false;
        reader.read(partition, range, None, |dated| {
            found.read += 1;
            let letter = LetterSeen::of(partition, dated);
            if !filter.takes(&letter) {
                return ControlFlow::Continue(());
            }
            found.matching += 1;
            *found.by_reason.entry(letter.reason.clone()).or_default() += 1;
            bytes += letter.bytes();
            kept.push_back(letter);
            if kept.len() > limit
                && let Some(dropped) = kept.pop_front()
            {
                bytes -= dropped.bytes();
            }
            too_much = bytes > MAX_BYTES;
            if too_much { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if too_much {
            return Err(LettersError::TooMuch);
        }
        all.extend(kept);
    }
    let mut letters: Vec<LetterSeen> = all.into();
    letters.sort_by_key(|letter| (letter.time_ms, letter.place));
    let surplus = letters.len().saturating_sub(limit);
    found.letters = letters.split_off(surplus);
    Ok(found)
}
