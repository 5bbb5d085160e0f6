//! The predicted effect of one record, as text and JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::base::ids::ShardId;
use crate::core::decode::BadRecord;
use crate::core::fold::Content;
use crate::core::mover::{Done, Entry, Outcome};
use crate::core::placement::Placement;
use crate::worker::record::Record;

/// The kinds of things that a record can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Does {
    /// A document that was nowhere is written.
    Create,
    /// It is written where it is.
    Update,
    /// It is written into another geoshard, and deleted where it was.
    Move,
    /// It is deleted.
    Delete,
    /// The index is as the record wants it.
    Nothing,
    /// Would fetch the document from the source of truth and place it. A dry run does not fetch.
    Fetch,
    /// It waits for a later record of its document, which is written already.
    Wait,
    /// Would be sent to the dead-letter topic; the partition continues.
    DeadLetter,
    /// Its partition stops there.
    Stop,
    /// Its partition has stopped before.
    NotReached,
    /// A worker would try again, for as long as it takes.
    TryAgain,
}

impl Does {
    /// For a line of a table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Move => "move",
            Self::Delete => "delete",
            Self::Nothing => "nothing",
            Self::Fetch => "fetch",
            Self::Wait => "wait",
            Self::DeadLetter => "dead letter",
            Self::Stop => "STOP",
            Self::NotReached => "not reached",
            Self::TryAgain => "try again",
        }
    }
}

/// The predicted effect of one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DryRunStep {
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Document id; for a bad key, its printable part.
    pub id: String,
    /// Operation: index, delete, patch, touch, refeed; `None` if undecodable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<&'static str>,
    /// Where the document is before.
    pub from: Option<ShardId>,
    /// Where it is afterwards.
    pub to: Option<ShardId>,
    /// Effect.
    pub does: Does,
    /// Why that, and not another thing.
    pub why: String,
}

impl DryRunStep {
    /// Of a record that was decoded.
    pub(super) fn of(
        partition: i32,
        offset: i64,
        entry: &Entry,
        outcome: &Outcome,
        before: Option<Placement>,
        after: Option<Placement>,
        stops_at_bad: bool,
    ) -> Self {
        let from = before.as_ref().and_then(|placement| placement.shard.clone());
        let to = after.and_then(|placement| placement.shard);
        let (does, why) = explain(outcome, before.as_ref(), from.as_ref(), to.as_ref(), stops_at_bad);
        let id = entry.id.as_str().to_owned();
        Self { partition, offset, id, op: Some(op(&entry.fold.content)), from, to, does, why }
    }

    /// Of a record that cannot be decoded.
    pub(super) fn bad(partition: i32, record: &Record, bad: &BadRecord, stops: bool) -> Self {
        let does = if stops { Does::Stop } else { Does::DeadLetter };
        Self { does, why: bad.to_string(), ..Self::unreached(partition, record) }
    }

    /// Of a record behind one that stopped the partition.
    pub(super) fn unreached(partition: i32, record: &Record) -> Self {
        Self {
            partition,
            offset: record.offset,
            id: record
                .key
                .as_deref()
                .map(|key| String::from_utf8_lossy(key).into_owned())
                .unwrap_or_default(),
            op: None,
            from: None,
            to: None,
            does: Does::NotReached,
            why: "the partition has stopped at an earlier record".to_owned(),
        }
    }
}

fn op(content: &Content) -> &'static str {
    match content {
        Content::Index { .. } => "index",
        Content::Delete => "delete",
        Content::Patch { .. } => "patch",
        Content::Touch => "touch",
        Content::Refeed => "refeed",
    }
}

fn explain(
    outcome: &Outcome,
    before: Option<&Placement>,
    from: Option<&ShardId>,
    to: Option<&ShardId>,
    stops_at_bad: bool,
) -> (Does, String) {
    match outcome {
        Outcome::Done(Done::Indexed { .. }) => match (from, to) {
            (None, _) if before.is_some() => (Does::Create, "it had been deleted".to_owned()),
            (None, _) => (Does::Create, "no placement: a new document".to_owned()),
            (Some(from), Some(to)) if from != to => (
                Does::Move,
                format!("its location is in {to}; written there first, then deleted from {from}"),
            ),
            _ => (Does::Update, "its location is in the same geoshard".to_owned()),
        },
        Outcome::Done(Done::Deleted) if from.is_none() => {
            (Does::Nothing, "the document is nowhere; that it is deleted is remembered".to_owned())
        }
        Outcome::Done(Done::Deleted) => (Does::Delete, "deleted".to_owned()),
        Outcome::Done(Done::AlreadyApplied) => (Does::Nothing, "a copy as new as this is there".to_owned()),
        Outcome::Done(Done::Dropped) => {
            (Does::Nothing, "the document is nowhere, and documents.on_missing is \"drop\"".to_owned())
        }
        Outcome::Done(Done::NothingToPlace) => {
            (Does::Nothing, "the document is nowhere: there is nothing to place".to_owned())
        }
        Outcome::DeadLetter(refusal) => {
            let does = if stops_at_bad { Does::Stop } else { Does::DeadLetter };
            (does, format!("{}: {}", refusal.reason, refusal.detail))
        }
        Outcome::Fetch => (Does::Fetch, "fetched from the source of truth, then placed".to_owned()),
        Outcome::Parked { until } => (
            Does::Wait,
            format!("the record at offset {} was written already; they are done together", until.offset()),
        ),
        Outcome::Again { reason, .. } => (Does::TryAgain, (*reason).to_owned()),
    }
}

/// One line: partition and offset, operation, from and to, effect and reason; the id comes last since it may be long.
impl fmt::Display for DryRunStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |shard: &Option<ShardId>| shard.as_ref().map_or("-", ShardId::as_str).to_owned();
        write!(
            f,
            "{:>12}  {:<6}  {:<11}  {:>10} -> {:<10}  {:?}: {}",
            format!("{}:{}", self.partition, self.offset),
            self.op.unwrap_or("?"),
            self.does.as_str(),
            place(&self.from),
            place(&self.to),
            self.id,
            self.why,
        )
    }
}

/// Records per effect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// Records read.
    pub records: u64,
    /// Records by effect.
    pub by: BTreeMap<Does, u64>,
    /// Moves, from geoshard to geoshard.
    #[serde(skip)]
    moves: BTreeMap<(ShardId, ShardId), u64>,
}

/// Pairs of geoshards that are named in the sums.
const MOST_MOVES: usize = 5;

impl Sums {
    /// One more.
    pub fn add(&mut self, step: &DryRunStep) {
        self.records += 1;
        *self.by.entry(step.does).or_default() += 1;
        if let (Does::Move, Some(from), Some(to)) = (step.does, &step.from, &step.to) {
            *self.moves.entry((from.clone(), to.clone())).or_default() += 1;
        }
    }

    /// Whether each record can be carried out.
    pub fn is_well(&self) -> bool {
        !self
            .by
            .keys()
            .any(|does| matches!(does, Does::DeadLetter | Does::Stop | Does::NotReached | Does::TryAgain))
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records", self.records)?;
        for (does, count) in &self.by {
            write!(f, ", {count} {}", does.as_str())?;
        }
        let mut moves: Vec<_> = self.moves.iter().collect();
        moves.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        for ((from, to), count) in moves.into_iter().take(MOST_MOVES) {
            write!(f, "\n  {count} from {from} to {to}")?;
        }
        Ok(())
    }
}
