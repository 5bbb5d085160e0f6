//! Where the ids of a campaign come from.
//!
//! - a list: a line is an id, or a JSON object with the id as its `id`, as `geofold audit --out` writes them;
//! - the placements: of all documents, or of those that belong to some geoshards. A document that was deleted is left out, one
//!   whose copy was lost is not: so a geoshard whose index is gone can be fed again;
//! - a query over all geoshards;
//! - two maps: documents that lie in another geoshard by the new one than by the old one.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::chunk::MAX_ID_BYTES;
use super::intake::Intake;
use crate::base::ids::ShardId;
use crate::core::decode::LocationPath;
use crate::geoshard::GeoshardMap;
use crate::io::elastic::scan::{IndexScan, ScanError, ScanOptions, ScannedDocument};
use crate::io::elastic::{CallError, Elastic, Index};
use crate::io::indices::{self, IndicesError};

/// Documents per page.
const PAGE: usize = 5_000;
/// A longer line is refused without being held in memory.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Which documents of an index.
#[derive(Debug, Clone)]
pub enum Selection {
    /// All that have a placement and are not deleted.
    All,
    /// Those of them that belong to one of these geoshards.
    Shards(Vec<ShardId>),
    /// Those in any geoshard that this query of Elasticsearch finds.
    Query(Value),
    /// Those that are in another geoshard by the new map than by the old one.
    MapDiff {
        /// By which they lie now.
        old: Arc<GeoshardMap>,
        /// By which they are to lie.
        new: Arc<GeoshardMap>,
        /// Where a document's location is.
        location: LocationPath,
    },
}

/// Why ids could not be read.
#[derive(Debug, Error)]
pub enum SelectError {
    /// Elasticsearch.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The indices could not be made up to date.
    #[error("cannot refresh {what}: {error}; {}", refresh_advice(error))]
    Refresh {
        /// Which.
        what: String,
        /// Why not.
        error: CallError,
    },
    /// The geoshards could not be listed.
    #[error(transparent)]
    Indices(#[from] IndicesError),
    /// There is no geoshard.
    #[error("no geoshard has an index; `geofold shards create` creates them")]
    NoGeoshards,
    /// A file, or standard input, or a temporary file.
    #[error("cannot take ids: {0}")]
    Io(#[from] io::Error),
}

/// Advice for a failed refresh.
fn refresh_advice(error: &CallError) -> &'static str {
    match error {
        CallError::Status { status: 401 | 403, .. } => "the index privilege maintenance allows it",
        CallError::Status { status: 404, .. } => {
            "`geofold shards create` makes what is missing; where a geoshard was retired, name a map without it"
        }
        _ => "try again when elasticsearch answers",
    }
}

/// Takes the ids of a list. Blocks while it is read.
///
/// # Errors
/// See [`Intake::push`]; and if it cannot be read.
pub fn read_list(mut input: impl BufRead, intake: &mut Intake) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.len() as u64 == MAX_LINE_BYTES && !line.ends_with(b"\n") {
            let reason = format!("a line has more than {MAX_LINE_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        let id = line.strip_suffix(b"\n").unwrap_or(&line);
        let id = id.strip_suffix(b"\r").unwrap_or(id);
        if id.is_empty() {
            continue;
        }
        if !id.starts_with(b"{") {
            intake.push(id)?;
            continue;
        }
        match serde_json::from_slice::<Named>(id) {
            Ok(named) => intake.push(named.id.as_bytes())?,
            Err(error) => {
                let reason = format!("the line is no JSON object with a text as its \"id\": {error}");
                intake.refuse(&id[..id.len().min(MAX_ID_BYTES)], reason)?;
            }
        }
    }
}

/// A line that is an object.
#[derive(Deserialize)]
struct Named {
    id: String,
}

/// Takes the ids of a selection, as searches see them after a refresh; `told` gets the number of documents read so far.
///
/// # Errors
/// See [`SelectError`].
pub async fn select(
    elastic: &dyn Elastic,
    prefix: &str,
    selection: &Selection,
    timeout: Duration,
    intake: &mut Intake,
    told: &(dyn Fn(u64) + Sync),
) -> Result<(), SelectError> {
    let indices = match selection {
        Selection::All | Selection::Shards(_) => vec![Index::Placements],
        Selection::Query(_) => {
            let names = indices::geoshards(elastic, prefix, timeout).await?;
            names.into_iter().map(Index::Geoshard).collect()
        }
        Selection::MapDiff { old, .. } => old.shards().iter().cloned().map(Index::Geoshard).collect(),
    };
    if indices.is_empty() {
        return Err(SelectError::NoGeoshards);
    }
    elastic.refresh(&indices, timeout).await.map_err(|error| SelectError::Refresh {
        what: format!("{} indices that begin with {prefix}-", indices.len()),
        error,
    })?;
    let fields = match selection {
        Selection::All | Selection::Shards(_) => vec!["shard".to_owned()],
        // A document has no field of no name: its source is not sent.
        Selection::Query(_) => vec!["-".to_owned()],
        Selection::MapDiff { location, .. } => location.fields(),
    };
    let query = match selection {
        Selection::Query(query) => Some(query.clone()),
        _ => None,
    };
    let mut read = 0;
    // One index after the other: a point in time over all of them would hold all of them.
    for index in indices {
        let options = ScanOptions { page: PAGE, timeout, fields: fields.clone(), query: query.clone() };
        let mut scan = IndexScan::open(elastic, &[index.name(prefix)], options).await?;
        let result = loop {
            let page = match scan.next().await {
                Ok(page) if page.is_empty() => break Ok(()),
                Ok(page) => page,
                Err(error) => break Err(SelectError::from(error)),
            };
            read += page.len() as u64;
            let mut wanted = page.iter().filter(|hit| selection.takes(hit));
            if let Err(error) = wanted.try_for_each(|hit| intake.push(hit.id.as_str().as_bytes())) {
                break Err(SelectError::Io(error));
            }
            told(read);
        };
        scan.close().await;
        result?;
    }
    Ok(())
}

impl Selection {
    fn takes(&self, hit: &ScannedDocument) -> bool {
        let shard = || hit.source["shard"].as_str();
        match self {
            Self::Query(_) => true,
            Self::All => shard().is_some(),
            Self::Shards(shards) => {
                shard().is_some_and(|shard| shards.iter().any(|wanted| wanted.as_str() == shard))
            }
            Self::MapDiff { old, new, location } => {
                let source = hit.source.to_string();
                location.locate(source.as_bytes()).is_ok_and(|at| old.locate(at) != new.locate(at))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refresh_advice_depends_on_the_error() {
        let said = |status: u16| {
            let error =
                CallError::Status { status, kind: String::new(), reason: "so".to_owned(), retry_after: None };
            SelectError::Refresh { what: "2 indices".to_owned(), error }.to_string()
        };
        assert!(said(403).ends_with("the index privilege maintenance allows it"), "{}", said(403));
        assert!(said(404).contains("geofold shards create"), "{}", said(404));
        assert!(said(503).contains("try again"), "{}", said(503));
    }
}
