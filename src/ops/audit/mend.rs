//! Mends what can be mended without guessing, by the protocol's own means.
//!
//! - What is not where it belongs gets a **touch** into the topic: its owner reads the newest copy, decides, and sweeps.
//! - A copy that no placement names is **named**: compare-and-set of the placement, its position unchanged (never raised:
//!   a position beyond the log would keep every later write waiting). Then a touch.
//! - A document without a placement gets one at its newest copy's version, where that copy is, if every record still to come
//!   is beyond that version. Then a touch.
//! - A copy of a deleted document is removed at the version of the recorded delete: step 6, by another hand. A newer one
//!   conflicts, and stays.
//!
//! - What only the source of truth knows (no copy, no location, a copy newer than its delete, a record that was lost) gets a
//!   **refeed** into the topic, if there is a source; otherwise it stays as it is. So does an unreadable placement.
//!
//! **Adopting** an index that existed before geofold is the same for documents without a placement, and nothing for others.
//! Versions there are of no record of this topic, so nothing tells which of them a later record has to win against: ⚠ only
//! what is of an earlier epoch than the configured one is adopted, for then every record is beyond it. A touch goes only to
//! what does not belong where it is, lacks its point, has several copies, or is to be counted.

use futures::future::BoxFuture;

use super::{AuditError, AuditFinding};
use crate::base::ids::{DocId, ShardId};
use crate::base::position::{Epoch, Position};
use crate::core::defect::{Defect, Fit, Observation, ObservedCopy, ObservedPlacement};
use crate::core::placement::Placement;
use crate::io::elastic::{BulkAnswer, BulkOp, Elastic, Index, WriteCondition};

use std::time::Duration;

/// The way of touches into the topic.
pub trait Touches: Send + Sync {
    /// Requests touches of these documents; returns when they are in the topic.
    fn touch(&self, ids: Vec<DocId>) -> BoxFuture<'_, Result<(), AuditError>>;

    /// Requests refeeds of these documents; returns when they are in the topic.
    fn refeed(&self, ids: Vec<DocId>) -> BoxFuture<'_, Result<(), AuditError>>;
}

/// Outcome of repairing a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairOutcome {
    /// Repaired, or requested by a touch that a worker executes.
    Yes,
    /// The document changed meanwhile.
    Changed,
    /// Needs the source of truth or an operator; the text says what.
    No(&'static str),
}

/// Purpose of a repairer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairTarget {
    /// Repair defects of documents that geofold wrote.
    Repair {
        /// The lowest position that a future record may have, over all partitions.
        next: Position,
    },
    /// To make placements for an index that existed before geofold.
    Adopt {
        /// The configured epoch.
        epoch: Epoch,
        /// Documents are counted: each has to be written once more.
        counts: bool,
    },
}

/// Mends findings.
pub struct Repairer<'a> {
    /// The search server.
    pub elastic: &'a dyn Elastic,
    /// The way into the topic.
    pub touches: &'a dyn Touches,
    /// Purpose.
    pub aim: RepairTarget,
    /// Whether workers have a source of truth.
    pub has_source: bool,
    /// How long one request may take.
    pub timeout: Duration,
}

/// The plan for one finding.
#[derive(Debug, PartialEq)]
enum Plan {
    /// These operations, all of which must succeed, then a touch if required.
    Do {
        ops: Vec<BulkOp>,
        touch: bool,
    },
    /// Fetch from the source of truth; without one, the text says what else can be done.
    Refeed(&'static str),
    No(&'static str),
}

impl Repairer<'_> {
    /// Mends findings; gives what became of each, in order.
    pub async fn mend(&self, findings: &[AuditFinding]) -> Result<Vec<RepairOutcome>, AuditError> {
        let plans: Vec<Plan> = findings.iter().map(|finding| plan(finding, self.aim)).collect();
        let mut ops = Vec::new();
        for plan in &plans {
            if let Plan::Do { ops: own, .. } = plan {
                ops.extend(own.iter().cloned());
            }
        }
        let answers = if ops.is_empty() {
            Vec::new()
        } else {
            let answers = self.elastic.bulk(&ops, self.timeout).await;
            answers.map_err(|error| AuditError::Call { doing: "mend placements and copies", error })?
        };
        let mut answers = answers.into_iter();
        let (mut touched, mut refed) = (Vec::new(), Vec::new());
        let mut outcomes = Vec::new();
        for (finding, plan) in findings.iter().zip(plans) {
            outcomes.push(match plan {
                Plan::Refeed(_) if self.has_source => {
                    refed.push(finding.id.clone());
                    RepairOutcome::Yes
                }
                Plan::Refeed(why) | Plan::No(why) => RepairOutcome::No(why),
                Plan::Do { ops, touch } => {
                    let own: Vec<BulkAnswer> = answers.by_ref().take(ops.len()).collect();
                    // A missing copy counts as removed.
                    let is_done = |answer: &BulkAnswer| answer.status < 300 || answer.status == 404;
                    if own.len() == ops.len() && own.iter().all(is_done) {
                        if touch {
                            touched.push(finding.id.clone());
                        }
                        RepairOutcome::Yes
                    } else {
                        RepairOutcome::Changed
                    }
                }
            });
        }
        if !touched.is_empty() {
            self.touches.touch(touched).await?;
        }
        if !refed.is_empty() {
            self.touches.refeed(refed).await?;
        }
        Ok(outcomes)
    }
}

fn plan(finding: &AuditFinding, aim: RepairTarget) -> Plan {
    match aim {
        RepairTarget::Repair { next } => repair(finding, next),
        RepairTarget::Adopt { epoch, counts } => adopt(finding, epoch, counts),
    }
}

fn repair(finding: &AuditFinding, next: Position) -> Plan {
    let sight = &finding.stored;
    let has = |defect| finding.defects.contains(&defect);
    if has(Defect::LaterEpoch) {
        return Plan::No("raise positions.epoch: a version is from a later one");
    }
    if has(Defect::NoLocation) {
        return Plan::Refeed("write the document again, with a location");
    }
    match &sight.placed {
        ObservedPlacement::Unreadable => Plan::No("see \"A placement cannot be read\" in docs/runbooks.md"),
        // A record below the placement's position would be parked for ever, or taken for done.
        ObservedPlacement::Nowhere if newest(sight).is_some_and(|(_, copy)| copy.version >= next) => {
            Plan::No(
                "a record still to come may be below its version: repair again when no partition has lag, or raise positions.epoch",
            )
        }
        ObservedPlacement::Nowhere => place(&finding.id, sight, true),
        ObservedPlacement::At(placement) if placement.shard.is_none() => bury(&finding.id, placement, sight),
        ObservedPlacement::At(_) if has(Defect::NoCopy) => {
            Plan::Refeed("write the document again: no copy is left")
        }
        ObservedPlacement::At(_) if has(Defect::Behind) => Plan::Refeed(
            "its record is not done yet, or was lost: wait for the lag, or write the document again",
        ),
        ObservedPlacement::At(placement) if has(Defect::UnnamedCopy) => {
            name_all(&finding.id, placement, sight)
        }
        ObservedPlacement::At(_) => Plan::Do { ops: Vec::new(), touch: true },
    }
}

fn adopt(finding: &AuditFinding, epoch: Epoch, counts: bool) -> Plan {
    let sight = &finding.stored;
    match newest(sight) {
        Some(_) if sight.placed != ObservedPlacement::Nowhere => {
            Plan::No("the document has a placement: use --repair")
        }
        None => Plan::No("there is nothing to adopt"),
        Some((_, copy)) if copy.version.epoch() >= epoch => {
            Plan::No("raise positions.epoch above its version's: a later record of it might lose")
        }
        Some((_, copy)) => {
            let is_wrong = matches!(copy.fit, Fit::Elsewhere | Fit::WrongPoint);
            let touch = counts || sight.copies.len() > 1 || is_wrong;
            place(&finding.id, sight, touch)
        }
    }
}

fn newest(sight: &Observation) -> Option<(&ShardId, &ObservedCopy)> {
    sight.copies.iter().max_by_key(|(_, copy)| copy.version)
}

/// A new placement at the newest copy, with that copy's version.
fn place(id: &DocId, sight: &Observation, touch: bool) -> Plan {
    let Some((shard, newest)) = newest(sight) else { return Plan::No("there is nothing to place") };
    let placement = Placement::new(newest.version, Some(shard.clone()), sight.copies.keys().cloned());
    Plan::Do { ops: vec![write(id, &placement, WriteCondition::Absent)], touch }
}

/// Finishes a recorded delete.
fn bury(id: &DocId, placement: &Placement, sight: &Observation) -> Plan {
    if sight.copies.values().any(|copy| copy.version >= placement.pos) {
        return Plan::Refeed("a copy is newer than the delete: write the document again, or delete it");
    }
    let delete = |shard: &ShardId| BulkOp::Delete {
        index: Index::Geoshard(shard.clone()),
        id: id.clone(),
        version: placement.pos,
    };
    Plan::Do { ops: sight.copies.keys().map(delete).collect(), touch: false }
}

/// Names the copies that the placement does not.
fn name_all(id: &DocId, placement: &Placement, sight: &Observation) -> Plan {
    let Some(stamp) = sight.stamp else { return Plan::No("it was not read realtime") };
    let may_hold = placement.leftovers.iter().chain(sight.copies.keys()).cloned();
    let mut named = placement.clone();
    named.leftovers = Placement::new(placement.pos, placement.shard.clone(), may_hold).leftovers;
    Plan::Do { ops: vec![write(id, &named, WriteCondition::Unchanged(stamp))], touch: true }
}

fn write(id: &DocId, placement: &Placement, guard: WriteCondition) -> BulkOp {
    BulkOp::Index { index: Index::Placements, id: id.clone(), guard, source: placement.stored(id) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::core::defect::judge;
    use crate::io::elastic::SeqNo;
    use crate::testkit::testing::{at, shard};

    fn planned(placed: Option<(i64, Option<&str>, &[&str])>, copies: &[(&str, i64)]) -> Plan {
        planned_for(RepairTarget::Repair { next: at(100) }, placed, copies, Fit::Here)
    }

    fn planned_for(
        aim: RepairTarget,
        placed: Option<(i64, Option<&str>, &[&str])>,
        copies: &[(&str, i64)],
        fit: Fit,
    ) -> Plan {
        let placed = placed.map_or(ObservedPlacement::Nowhere, |(pos, place, leftovers)| {
            ObservedPlacement::At(Placement::new(
                at(pos),
                place.map(shard),
                leftovers.iter().map(|id| shard(id)),
            ))
        });
        let copies: BTreeMap<ShardId, ObservedCopy> = copies
            .iter()
            .map(|(id, version)| (shard(id), ObservedCopy { version: at(*version), fit }))
            .collect();
        let stored = Observation { placed, stamp: Some(SeqNo { seq_no: 4, primary_term: 1 }), copies };
        let id = DocId::from_key(Some(b"d")).unwrap();
        let defects = judge(&stored, Epoch::default());
        plan(&AuditFinding { id, defects, stored }, aim)
    }

    fn writes(plan: &Plan) -> Vec<(Placement, WriteCondition)> {
        let Plan::Do { ops, .. } = plan else { panic!("{plan:?}") };
        let write = |op: &BulkOp| match op {
            BulkOp::Index { source, guard, .. } => (Placement::from_json(source).unwrap(), *guard),
            BulkOp::Delete { .. } | BulkOp::Remove { .. } => panic!("{op:?}"),
        };
        ops.iter().map(write).collect()
    }

    #[test]
    fn repaired_placement_keeps_positions_and_names_every_copy() {
        let adopted = planned(None, &[("a", 7), ("b", 9)]);
        let placement = Placement::new(at(9), Some(shard("b")), [shard("a")]);
        assert_eq!(writes(&adopted), [(placement, WriteCondition::Absent)]);

        let named = planned(Some((9, Some("b"), &["a"])), &[("b", 9), ("c", 3)]);
        let placement = Placement::new(at(9), Some(shard("b")), [shard("a"), shard("c")]);
        let guard = WriteCondition::Unchanged(SeqNo { seq_no: 4, primary_term: 1 });
        assert_eq!(writes(&named), [(placement, guard)]);
        for plan in [adopted, named] {
            assert!(matches!(plan, Plan::Do { touch: true, .. }));
        }
    }

    #[test]
    fn no_placement_above_the_next_record() {
        assert!(matches!(planned(None, &[("a", 99)]), Plan::Do { .. }));
        assert!(matches!(planned(None, &[("a", 100)]), Plan::No(why) if why.contains("epoch")));
    }

    #[test]
    fn only_earlier_epochs_are_adopted() {
        let epoch = |epoch| Epoch::new(epoch).unwrap();
        let adopted = |epoch, counts, copies, fit| {
            planned_for(RepairTarget::Adopt { epoch, counts }, None, copies, fit)
        };
        // However far the log is: the version is of no record.
        assert!(
            matches!(adopted(epoch(0), false, &[("a", 1)], Fit::Here), Plan::No(why) if why.contains("epoch"))
        );
        for (counts, copies, fit, touched) in [
            (false, &[("a", 1)][..], Fit::Here, false),
            (true, &[("a", 1)], Fit::Here, true),
            (false, &[("a", 1)], Fit::Elsewhere, true),
            (false, &[("a", 1)], Fit::WrongPoint, true),
            (false, &[("a", 1), ("b", 2)], Fit::Here, true),
            (false, &[("a", 1)], Fit::NoLocation, false),
        ] {
            let plan = adopted(epoch(1), counts, copies, fit);
            assert!(
                matches!(plan, Plan::Do { touch, .. } if touch == touched),
                "{copies:?} {fit:?}: {plan:?}"
            );
            let placement = writes(&plan).remove(0);
            let newest = copies.last().unwrap();
            let expected =
                Placement::new(at(newest.1), Some(shard(newest.0)), copies.iter().map(|c| shard(c.0)));
            assert_eq!(placement, (expected, WriteCondition::Absent));
        }
        let aim = RepairTarget::Adopt { epoch: epoch(1), counts: false };
        let known = planned_for(aim, Some((9, Some("b"), &["a"])), &[("b", 9), ("c", 3)], Fit::Here);
        assert!(matches!(known, Plan::No(why) if why.contains("--repair")));
    }

    #[test]
    fn recorded_delete_is_finished_never_over_a_newer_copy() {
        let op = BulkOp::Delete {
            index: Index::Geoshard(shard("a")),
            id: DocId::from_key(Some(b"d")).unwrap(),
            version: at(9),
        };
        let buried = planned(Some((9, None, &["a"])), &[("a", 3)]);
        assert_eq!(buried, Plan::Do { ops: vec![op], touch: false });
        assert!(matches!(planned(Some((9, None, &["a"])), &[("a", 11)]), Plan::Refeed(_)));
    }

    #[test]
    fn lost_content_is_refed_and_misplaced_documents_touched() {
        assert!(matches!(planned(Some((9, Some("b"), &[])), &[]), Plan::Refeed(_)));
        assert!(matches!(planned(Some((9, Some("b"), &[])), &[("b", 8)]), Plan::Refeed(_)));
        let touch = Plan::Do { ops: Vec::new(), touch: true };
        assert_eq!(planned(Some((9, Some("b"), &["a"])), &[("b", 9), ("a", 1)]), touch);
        assert_eq!(planned(Some((9, Some("b"), &["a"])), &[("a", 1)]), touch);
    }
}
