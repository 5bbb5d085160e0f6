//! Runs a batch against Elasticsearch: the mover's only I/O.

use super::{Desk, Entry, Finished, ReadPlacements};
use crate::elastic::rounds::{Halt, Lease, Rounds};

/// Carries out a batch, four rounds at most. Once the lease has ended nothing more is sent, and entries that were not
/// done come back as [`super::Outcome::Again`].
///
/// # Errors
/// If Elasticsearch refuses the credentials. The desk is lost then, which is harmless: nothing may go on.
pub async fn run(desk: Desk, entries: Vec<Entry>, rounds: &Rounds, lease: &Lease) -> Result<Finished, Halt> {
    let batch = ReadPlacements::begin(desk, entries);
    let answers = rounds.mget(batch.gets(), lease).await?;
    let batch = batch.answered(answers);
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
