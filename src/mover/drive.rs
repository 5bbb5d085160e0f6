//! Runs a batch against Elasticsearch: the mover's only I/O.

use std::time::Duration;

use super::{CleanUp, Desk, Entry, Finished, ReadDocuments, ReadPlacements};
use crate::elastic::rounds::{BulkOutcome, Halt, Lease, Rounds};
use crate::sabotage::{self, Sabotage};

/// How long a search may be under way from its first index to its last. While two maps are live, an old copy is deleted
/// only when the searches have ended that asked the new index too early to see the new copy.
const SEARCH_TIME: Duration = Duration::from_secs(1);

/// Carries out a batch: in one slice, unless its patches have more copies to read than [`Desk::max_copy_bytes`]. Once the
/// lease has ended nothing more is sent, and entries that were not done come back as [`super::Outcome::Again`].
///
/// # Errors
/// If Elasticsearch refuses the credentials. The desk is lost then, which is harmless: nothing may go on.
pub async fn run(desk: Desk, entries: Vec<Entry>, rounds: &Rounds, lease: &Lease) -> Result<Finished, Halt> {
    // What was found out of date, or not at all, is read from another node than before.
    let look = entries.iter().map(|entry| entry.carry.looks()).max().unwrap_or_default();
    let rounds = &Rounds { look, ..rounds.clone() };
    let batch = ReadPlacements::begin(desk, entries);
    let answers = rounds.mget(batch.gets(), lease).await?;
    let mut slice = batch.answered(answers);
    loop {
        let rest = slice.cut();
        let finished = run_slice(slice, rounds, lease).await?;
        let Some(rest) = rest else { return Ok(finished) };
        slice = finished.go_on(rest);
    }
}

/// The rounds after the placements were read.
async fn run_slice(batch: ReadDocuments, rounds: &Rounds, lease: &Lease) -> Result<Finished, Halt> {
    let answers = rounds.mget(batch.gets(), lease).await?;
    let batch = batch.answered(answers);
    let answers = rounds.bulk(batch.ops(), lease).await?;
    let batch = batch.answered(answers);
    let answers = rounds.bulk(batch.ops(), lease).await?;
    let batch = batch.answered(answers);
    let answers = rounds.mget(batch.gets(), lease).await?;
    let batch = batch.answered(answers);
    if !are_moves_seen(&batch, rounds, lease).await {
        let unanswered = vec![BulkOutcome::Unanswered; batch.ops().len()];
        return Ok(batch.answered(unanswered));
    }
    let answers = rounds.bulk(batch.ops(), lease).await?;
    Ok(batch.answered(answers))
}

/// Before old copies go: waits until every search finds the new ones, where readers ask for that (protocol, "Changing the
/// map"). `false` if the lease ended first.
async fn are_moves_seen(batch: &CleanUp, rounds: &Rounds, lease: &Lease) -> bool {
    let moved_to = batch.must_be_seen_in();
    if moved_to.is_empty() || sabotage::is(Sabotage::DeleteBeforeSeen) {
        return true;
    }
    if !rounds.refresh(&moved_to, lease).await {
        return false;
    }
    let Some(left) = lease.time_left(rounds.clock.now()) else { return false };
    tokio::select! {
        () = lease.cancel.cancelled() => return false,
        () = tokio::time::sleep(SEARCH_TIME.min(left)) => {}
    }
    lease.time_left(rounds.clock.now()).is_some()
}
