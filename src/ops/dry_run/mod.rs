//! `geofold dry-run`: predicts what a worker would do with the records of a topic, without doing it.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | runs records through decoder and mover, and says what came of each |
//! | `reader.rs` | reads the topic as a member of no group |
//! | `rehearsal.rs` | the search server with reads that are real and writes that are only remembered |
//! | `step.rs` | what one record would do, for people and programs (pure) |
//!
//! *Invariant:* nothing that decides is written twice. Records go through the worker's own decoder and mover; only the server
//! behind the mover is another.

pub mod reader;
mod rehearsal;
mod step;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use self::rehearsal::DryRunElastic;
pub use self::step::{Does, DryRunStep, Sums};
use crate::base::ids::DocId;
use crate::core::decode::{Decoder, Undecoded};
use crate::core::fold::Fold;
use crate::core::mover::{Carry, Entry, MoverState, Outcome, UNANSWERED};
use crate::core::placement::Placement;
use crate::core::schemas::{SchemaId, Schemas};
use crate::io::elastic::rounds::{GetOutcome, Halt, RequestDeadline, RequestSender};
use crate::io::elastic::{Get, Index};
use crate::io::registry::{Registry, SchemaFetchError};
use crate::worker::drive::run;
use crate::worker::record::Record;

/// Maximum attempts of an entry, which a worker would retry for ever. The protocol needs at most six reads of a missing
/// document.
const ATTEMPTS: usize = 16;

/// Documents that the rehearsal remembers, in bytes; a dry run ends when they are that many.
pub const MAX_HELD_BYTES: usize = 256 << 20;

/// Runs records through the worker's decisions. One for a dry run.
pub struct DryRun {
    rehearsal: Arc<DryRunElastic>,
    rounds: RequestSender,
    decoder: Decoder,
    registry: Option<Registry>,
    schemas: Schemas,
    /// There but while a batch runs, or after it was lost.
    state: MoverState,
    /// A dead letter stops its partition.
    stops_at_bad: bool,
    stopped: HashSet<i32>,
    /// How long a batch may take.
    batch_timeout: Duration,
}

/// Why a dry run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DryRunError {
    /// Credentials.
    #[error(transparent)]
    Halt(#[from] Halt),
    /// No answer.
    #[error("elasticsearch gave no usable answer within {0:?}; `geofold check` looks at what may be wrong")]
    Unanswered(Duration),
    /// No schema, no record.
    #[error("could not fetch the schemas of records: {0}")]
    Registry(#[from] SchemaFetchError),
}

/// A record that became an entry, and where it came from.
struct Candidate {
    partition: i32,
    offset: i64,
    entry: Entry,
}

impl DryRun {
    /// `rounds` reads from the real server; writes stay in memory.
    pub fn new(
        mut rounds: RequestSender,
        decoder: Decoder,
        state: MoverState,
        stops_at_bad: bool,
        batch_timeout: Duration,
    ) -> Self {
        let rehearsal = Arc::new(DryRunElastic::new(rounds.elastic.clone()));
        rounds.elastic = rehearsal.clone();
        let (registry, schemas) = (None, Schemas::new());
        let stopped = HashSet::new();
        Self { rehearsal, rounds, decoder, registry, schemas, state, stops_at_bad, stopped, batch_timeout }
    }

    /// The same, where records need schemas.
    pub fn with_registry(self, registry: Option<Registry>) -> Self {
        Self { registry, ..self }
    }

    /// Whether the memory limit is reached.
    pub fn is_full(&self) -> bool {
        self.rehearsal.held_bytes() >= MAX_HELD_BYTES
    }

    /// What would come of these records, in their order. A worker folds the records of one document that wait together and
    /// writes their last state; here, each is looked at by itself.
    ///
    /// # Errors
    /// See [`DryRunError`]. Nothing was changed anywhere.
    pub async fn run(&mut self, records: Vec<(i32, Record)>) -> Result<Vec<DryRunStep>, DryRunError> {
        let mut steps = Vec::with_capacity(records.len());
        let mut batch: Vec<Candidate> = Vec::new();
        let mut ids: HashSet<DocId> = HashSet::new();
        for (partition, record) in records {
            match self.candidate(partition, &record).await? {
                Err(step) => {
                    // In the order of the records, as far as one partition is concerned.
                    steps.extend(self.carry_out(std::mem::take(&mut batch)).await?);
                    ids.clear();
                    steps.push(step);
                }
                Ok(candidate) => {
                    if !ids.insert(candidate.entry.id.clone()) {
                        steps.extend(self.carry_out(std::mem::take(&mut batch)).await?);
                        ids.clear();
                        ids.insert(candidate.entry.id.clone());
                    }
                    batch.push(candidate);
                }
            }
        }
        steps.extend(self.carry_out(batch).await?);
        Ok(steps)
    }

    async fn candidate(
        &mut self,
        partition: i32,
        record: &Record,
    ) -> Result<Result<Candidate, DryRunStep>, DryRunError> {
        loop {
            let lacking = match self.decoded(partition, record) {
                Ok(candidate) => return Ok(candidate),
                Err(lacking) => lacking,
            };
            let registry = self.registry.clone().ok_or_else(SchemaFetchError::not_configured)?;
            self.schemas.learn(lacking, registry.schema(lacking).await?);
        }
    }

    /// The decoded record, or the schema that it lacks.
    fn decoded(
        &mut self,
        partition: i32,
        record: &Record,
    ) -> Result<Result<Candidate, DryRunStep>, SchemaId> {
        if self.stopped.contains(&partition) {
            return Ok(Err(DryRunStep::unreached(partition, record)));
        }
        let write = match self.decoder.decode(record.raw(partition), &mut self.schemas) {
            Ok(write) => write,
            Err(Undecoded::Lacks(schema)) => return Err(schema),
            Err(Undecoded::Bad(bad)) => {
                if self.stops_at_bad {
                    self.stopped.insert(partition);
                }
                return Ok(Err(DryRunStep::bad(partition, record, &bad, self.stops_at_bad)));
            }
        };
        let map = self.state.rules.map.clone();
        let (id, fold) = Fold::from_write(write, |at| map.locate(at).clone());
        let entry = Entry { id, fold: Arc::new(fold), carry: Carry::default(), fetched: None };
        Ok(Ok(Candidate { partition, offset: record.offset, entry }))
    }

    /// One batch, as a worker would run it, again and again until each entry has come to an end.
    async fn carry_out(&mut self, batch: Vec<Candidate>) -> Result<Vec<DryRunStep>, DryRunError> {
        let ids: Vec<DocId> = batch.iter().map(|candidate| candidate.entry.id.clone()).collect();
        let before = self.placements(&ids).await?;
        let mut entries: Vec<Entry> = batch.iter().map(|candidate| candidate.entry.clone()).collect();
        let mut outcomes: HashMap<DocId, Outcome> = HashMap::with_capacity(entries.len());
        for attempt in 1..=ATTEMPTS {
            if entries.is_empty() {
                break;
            }
            let finished =
                run(self.state.clone(), std::mem::take(&mut entries), &self.rounds, &self.lease()).await?;
            self.state = finished.state;
            for settled in finished.settled {
                let id = settled.entry.id.clone();
                match settled.outcome {
                    Outcome::Again { reason: UNANSWERED, .. } => {
                        return Err(DryRunError::Unanswered(self.batch_timeout));
                    }
                    Outcome::Again { carry, .. } if attempt < ATTEMPTS => {
                        entries.push(Entry { carry, ..settled.entry });
                    }
                    outcome => drop(outcomes.insert(id, outcome)),
                }
            }
        }
        let after = self.placements(&ids).await?;
        let mut steps = Vec::with_capacity(batch.len());
        for ((candidate, before), after) in batch.into_iter().zip(before).zip(after) {
            let Candidate { partition, offset, entry } = candidate;
            let Some(outcome) = outcomes.get(&entry.id) else { continue };
            if self.stops_at_bad && matches!(outcome, Outcome::DeadLetter(_)) {
                self.stopped.insert(partition);
            }
            steps.push(DryRunStep::of(partition, offset, &entry, outcome, before, after, self.stops_at_bad));
        }
        Ok(steps)
    }

    /// Where the documents are now, one for each id.
    async fn placements(&self, ids: &[DocId]) -> Result<Vec<Option<Placement>>, DryRunError> {
        let gets = ids.iter().map(|id| Get::realtime(Index::Placements, id.clone())).collect();
        let answers = self.rounds.mget(gets, &self.lease()).await?;
        let placement = |answer| match answer {
            GetOutcome::Unanswered => Err(DryRunError::Unanswered(self.batch_timeout)),
            GetOutcome::Missing => Ok(None),
            // The mover reports an unreadable placement.
            GetOutcome::Found(found) => Ok(Placement::from_json(&found.source).ok()),
        };
        answers.into_iter().map(placement).collect()
    }

    fn lease(&self) -> RequestDeadline {
        RequestDeadline {
            deadline: self.rounds.clock.now() + self.batch_timeout,
            cancel: CancellationToken::new(),
        }
    }
}

#[cfg(test)]
mod tests;
