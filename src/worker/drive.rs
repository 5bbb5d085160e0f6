//! Runs a batch against Elasticsearch: the mover's only I/O.

use crate::core::mover::{Entry, Finished, MoverState, ReadDocuments, ReadPlacements};
use crate::io::elastic::rounds::{Halt, RequestDeadline, RequestSender};

/// Runs a batch in one slice, or in several if its patches read more copies than [`MoverState::max_copy_bytes`]. After
/// the deadline nothing more is sent, and unfinished entries return as [`crate::core::mover::Outcome::Again`].
///
/// # Errors
/// If Elasticsearch refuses the credentials. The state is lost then, which is harmless since the worker stops.
pub async fn run(
    state: MoverState,
    entries: Vec<Entry>,
    rounds: &RequestSender,
    lease: &RequestDeadline,
) -> Result<Finished, Halt> {
    // Stale or missing reads are repeated on another node.
    let look = entries.iter().map(|entry| entry.carry.looks()).max().unwrap_or_default();
    let rounds = &RequestSender { look, ..rounds.clone() };
    let batch = ReadPlacements::begin(state, entries);
    let answers = rounds.mget(batch.gets(), lease).await?;
    let mut slice = batch.answered(answers);
    loop {
        let rest = slice.cut();
        let finished = run_slice(slice, rounds, lease).await?;
        let Some(rest) = rest else { return Ok(finished) };
        slice = finished.go_on(rest);
    }
}

/// The rounds after placements are read.
async fn run_slice(
    batch: ReadDocuments,
    rounds: &RequestSender,
    lease: &RequestDeadline,
) -> Result<Finished, Halt> {
    let answers = rounds.mget(batch.gets(), lease).await?;
    let batch = batch.answered(answers);
    let answers = rounds.bulk(batch.ops(), lease).await?;
    let batch = batch.answered(answers);
    let answers = rounds.bulk(batch.ops(), lease).await?;
    let batch = batch.answered(answers);
    let answers = rounds.mget(batch.gets(), lease).await?;
    let batch = batch.answered(answers);
    let answers = rounds.bulk(batch.ops(), lease).await?;
    Ok(batch.answered(answers))
}
