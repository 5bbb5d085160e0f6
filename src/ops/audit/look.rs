//! Reads suspects realtime: their placement, and every geoshard in which a copy was seen or may be.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, BufWriter, Seek, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::gather::Suspect;
use super::{Audit, AuditError, owed};
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::core::defect::{Observation, ObservedCopy, ObservedPlacement};
use crate::core::placement::Placement;
use crate::io::elastic::slices::{SliceSize, mget_in_slices};
use crate::io::elastic::{Get, GetAnswer, Index};

/// Maximum documents per read: their content is included.
const AT_ONCE: usize = 200;
/// Assumed size of the first documents; later requests use the sizes seen.
const USUAL_BYTES: usize = 256 << 10;

impl Audit<'_> {
    /// Reads the stored state of each suspect. A document that moves meanwhile may be seen half-moved; the next read clears
    /// that up.
    pub(super) async fn look(&self, suspects: &[Suspect]) -> Result<Vec<Observation>, AuditError> {
        let placements: Vec<Get> =
            suspects.iter().map(|suspect| Get::realtime(Index::Placements, suspect.id.clone())).collect();
        let mut sights = Vec::with_capacity(suspects.len());
        for answer in self.read(&placements).await? {
            sights.push(match answer {
                GetAnswer::Found(found) => {
                    let placed = Placement::from_json(&found.source)
                        .map_or(ObservedPlacement::Unreadable, ObservedPlacement::At);
                    Observation { placed, stamp: Some(found.stamp), copies: BTreeMap::new() }
                }
                _ => Observation { placed: ObservedPlacement::Nowhere, stamp: None, copies: BTreeMap::new() },
            });
        }
        let mut wanted: Vec<(usize, ShardId)> = Vec::new();
        for (number, (suspect, sight)) in suspects.iter().zip(&sights).enumerate() {
            let mut shards = suspect.seen_in.clone();
            if let ObservedPlacement::At(placement) = &sight.placed {
                shards.extend(placement.may_hold().cloned());
            }
            shards.sort_unstable();
            shards.dedup();
            wanted.extend(shards.into_iter().map(|shard| (number, shard)));
        }
        let gets: Vec<Get> = wanted
            .iter()
            .map(|(number, shard)| {
                Get::realtime(Index::Geoshard(shard.clone()), suspects[*number].id.clone())
            })
            .collect();
        for ((number, shard), answer) in wanted.into_iter().zip(self.read(&gets).await?) {
            if let GetAnswer::Found(found) = answer {
                let fit = self.fit(&shard, &found.source);
                let copy = ObservedCopy { version: Position::from_version(found.version), fit };
                sights[number].copies.insert(shard, copy);
            }
        }
        Ok(sights)
    }

    pub(super) async fn read(&self, gets: &[Get]) -> Result<Vec<GetAnswer>, AuditError> {
        let doing = "read documents that look wrong";
        let mut answers = Vec::with_capacity(gets.len());
        let mut size = SliceSize::new(AT_ONCE, USUAL_BYTES);
        let timeout = self.options.timeout;
        mget_in_slices(self.elastic, gets, timeout, &mut size, |_, answer| answers.push(answer))
            .await
            .map_err(|error| AuditError::Call { doing, error })?;
        for answer in &answers {
            if let GetAnswer::Failed(error) = answer
                && error.kind != "index_not_found_exception"
            {
                return Err(AuditError::Item { doing, reason: error.to_string() });
            }
        }
        Ok(answers)
    }
}

/// Suspects waiting for their next read, in a temporary file: there may be as many as documents.
pub(super) struct CandidateFile {
    file: BufWriter<std::fs::File>,
    count: u64,
}

/// A suspect and its last observation.
pub(super) struct ObservedSuspect {
    pub(super) suspect: Suspect,
    pub(super) fingerprint: u64,
    /// See [`owed::partition`].
    pub(super) partition: Option<i32>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    id: String,
    seen_in: Vec<ShardId>,
    fingerprint: u64,
    partition: Option<i32>,
}

impl CandidateFile {
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self { file: BufWriter::new(tempfile::tempfile_in(folder)?), count: 0 })
    }

    pub(super) fn len(&self) -> u64 {
        self.count
    }

    /// Appends a suspect and its observation.
    pub(super) fn push(&mut self, suspect: &Suspect, sight: &Observation) -> io::Result<()> {
        let mut seen_in = suspect.seen_in.clone();
        seen_in.extend(sight.copies.keys().cloned());
        seen_in.sort_unstable();
        seen_in.dedup();
        let (id, fingerprint) = (suspect.id.as_str().to_owned(), sight.fingerprint());
        let line = Line { id, seen_in, fingerprint, partition: owed::partition(sight) };
        serde_json::to_writer(&mut self.file, &line)?;
        self.file.write_all(b"\n")?;
        self.count += 1;
        Ok(())
    }

    /// Ends keeping; gives them back in chunks.
    pub(super) fn read(self) -> io::Result<impl Iterator<Item = io::Result<Vec<ObservedSuspect>>>> {
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        let mut lines = BufReader::new(file).lines();
        Ok(std::iter::from_fn(move || {
            let chunk: io::Result<Vec<_>> = lines.by_ref().take(AT_ONCE).map(|line| parse(&line?)).collect();
            match chunk {
                Ok(chunk) if chunk.is_empty() => None,
                chunk => Some(chunk),
            }
        }))
    }
}

fn parse(line: &str) -> io::Result<ObservedSuspect> {
    let Line { id, seen_in, fingerprint, partition } = serde_json::from_str(line)?;
    let id = DocId::from_key(Some(id.as_bytes())).map_err(io::Error::other)?;
    Ok(ObservedSuspect { suspect: Suspect { id, seen_in, is_grave: false }, fingerprint, partition })
}
