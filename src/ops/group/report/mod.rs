//! What `geofold status` prints and the page of the group shows. Pure.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the report: from what was asked |
//! | `findings.rs` | what of it needs a person |
//! | `text.rs` | the report as text |

mod findings;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use self::findings::findings;
use super::{GroupSeen, Meta, WorkerSeen};
use crate::io::claims::Claim;
use crate::io::maps::{MapChangeStage, MapsState};
use crate::io::meta::TopicFacts;
use crate::support::config::Config;

/// Offsets of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Offsets {
    /// The first one.
    pub begin: i64,
    /// The one after the last.
    pub end: i64,
    /// The group's.
    pub committed: Option<i64>,
}

impl Offsets {
    /// Offsets that are not committed.
    pub fn lag(self) -> i64 {
        (self.end - self.committed.unwrap_or(self.begin).max(self.begin)).max(0)
    }
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartitionReport {
    /// Its number.
    pub partition: i32,
    /// Its owner: by its claim, else the group's member.
    pub owner: Option<String>,
    /// `running`, `paused`, `starting`, `stopped` as its worker says; `not asked` if no worker did.
    pub state: String,
    /// Why it is stopped.
    pub reason: Option<String>,
    /// Its offsets.
    #[serde(flatten)]
    pub offsets: Offsets,
    /// Offsets that are not committed.
    pub lag: i64,
    /// Change of the lag per second between two samples.
    pub lag_per_second: f64,
    /// Committed offsets per second.
    pub committed_per_second: f64,
    /// For how long its oldest dirty document has been, as its worker says.
    pub oldest_dirty_seconds: Option<f64>,
}

/// The group's last audit by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct AuditSeen {
    /// Seconds since its end.
    pub seconds_ago: u64,
    /// Documents with a defect.
    pub wrong: Option<u64>,
}

/// The maps in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MapsReport {
    /// The map that decides.
    pub deciding: String,
    /// The other live map.
    pub other: Option<String>,
    /// `one`, `announced`, `moving` or `returning`.
    pub stage: &'static str,
    /// The generation of the record.
    pub generation: u64,
    /// Partitions whose owner has not confirmed it.
    pub unconfirmed: Vec<i32>,
}

/// Dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LettersReport {
    /// Their topic.
    pub topic: String,
    /// Offsets in it.
    pub in_topic: i64,
    /// Letters counted by reason: the newest ones.
    pub counted: u64,
    /// Those, by reason.
    pub by_reason: BTreeMap<String, u64>,
    /// Letters of the last hour among them.
    pub last_hour: u64,
    /// Those, by reason.
    pub last_hour_by_reason: BTreeMap<String, u64>,
    /// Whether the last hour may have more than were counted.
    pub last_hour_has_more: bool,
}

impl LettersReport {
    /// Letters of the last hour, in words.
    fn recent(&self) -> String {
        let at_least = if self.last_hour_has_more { "at least " } else { "" };
        format!("{at_least}{}", self.last_hour)
    }
}

/// The group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupReport {
    /// The topic.
    pub topic: String,
    /// The group.
    pub group: String,
    /// The broker's description; `None`: see `group_error`.
    pub description: Option<GroupSeen>,
    /// Why the broker did not describe the group.
    pub group_error: Option<String>,
    /// `positions.epoch` as configured here.
    pub epoch: u32,
    /// Offsets that are not committed, of all partitions.
    pub lag: i64,
    /// Change of the lag per second.
    pub lag_per_second: f64,
    /// Committed offsets per second.
    pub committed_per_second: f64,
    /// Time between the two samples.
    pub sample_seconds: f64,
    /// The partitions.
    pub partitions: Vec<PartitionReport>,
    /// The maps; `None`: nothing is recorded, the configured map holds.
    pub maps: Option<MapsReport>,
    /// Elasticsearch's health.
    pub elasticsearch: Option<String>,
    /// Workers that were asked.
    pub workers: Vec<WorkerSeen>,
    /// Dead letters, if a topic for them is configured.
    pub dead_letters: Option<LettersReport>,
    /// For how long the oldest dirty document has been, of the workers that were reached.
    pub oldest_dirty_seconds: Option<f64>,
    /// The last audit of `audit.interval`; `None`: none has ended.
    pub audit: Option<AuditSeen>,
    /// Time between such audits; `None`: workers do not audit.
    pub audit_interval_seconds: Option<u64>,
    /// What needs a person; empty: exit code 0.
    pub findings: Vec<String>,
}

/// Everything that was asked.
pub(super) struct Inputs<'a> {
    pub config: &'a Config,
    pub group: Result<GroupSeen, String>,
    pub facts: &'a TopicFacts,
    pub before: &'a BTreeMap<i32, Offsets>,
    pub now: &'a BTreeMap<i32, Offsets>,
    pub between: Duration,
    pub meta: Result<&'a Meta, &'a str>,
    pub health: Result<String, String>,
    pub workers: Vec<WorkerSeen>,
    pub letters: Option<Result<LettersReport, String>>,
    /// Since 1970.
    pub time: Duration,
}

impl GroupReport {
    pub(super) fn new(inputs: Inputs<'_>) -> Self {
        let nothing = Meta::default();
        let known = inputs.meta.unwrap_or(&nothing);
        let partitions: Vec<PartitionReport> =
            inputs.now.iter().map(|(&number, &offsets)| partition(number, offsets, &inputs, known)).collect();
        let findings = findings(&inputs, known, &partitions);
        let Inputs { config, group, between, health, workers, letters, time, .. } = inputs;
        let audit = known.audit.map(|last| AuditSeen {
            seconds_ago: time.as_secs().saturating_sub(last.ended),
            wrong: last.wrong,
        });
        let oldest = partitions.iter().filter_map(|partition| partition.oldest_dirty_seconds);
        let sum = |part: fn(&PartitionReport) -> f64| partitions.iter().map(part).sum::<f64>();
        let (description, group_error) = match group {
            Ok(group) => (Some(group), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            topic: config.kafka.topic.clone(),
            group: config.kafka.group_id.clone(),
            description,
            group_error,
            epoch: config.positions.epoch.get(),
            lag: partitions.iter().map(|partition| partition.lag).sum(),
            lag_per_second: sum(|partition| partition.lag_per_second),
            committed_per_second: sum(|partition| partition.committed_per_second),
            sample_seconds: between.as_secs_f64(),
            maps: maps(known),
            elasticsearch: health.ok(),
            workers,
            dead_letters: letters.and_then(Result::ok),
            oldest_dirty_seconds: oldest.max_by(f64::total_cmp),
            audit,
            audit_interval_seconds: config.audit.interval.map(|interval| interval.as_secs()),
            findings,
            partitions,
        }
    }
}

/// The partition with this number, whose offsets are these now.
fn partition(number: i32, offsets: Offsets, inputs: &Inputs<'_>, known: &Meta) -> PartitionReport {
    let group = inputs.group.as_ref().ok();
    let claim = usize::try_from(number).ok().and_then(|place| known.claims.get(place)?.as_ref());
    let member =
        group.and_then(|group| group.members.iter().find(|member| member.partitions.contains(&number)));
    let owner = match (claim, member, group) {
        // The claim of a worker that was killed stays; the group knows better.
        (_, None, Some(_)) => None,
        (Some(Claim { owner, ended_ms: None, .. }), ..) => Some(owner.clone()),
        (_, Some(member), _) => Some(format!("{} on {}", member.client_id, member.host)),
        (_, None, None) => None,
    };
    let worker = inputs.workers.iter().find(|worker| worker.partitions.contains_key(&number));
    let state = worker.and_then(|worker| worker.partitions.get(&number));
    let before = inputs.before.get(&number).copied().unwrap_or(offsets);
    let seconds = inputs.between.as_secs_f64().max(1e-3);
    let rate = |after: i64, before: i64| (after - before) as f64 / seconds;
    let committed = |offsets: Offsets| offsets.committed.unwrap_or(offsets.begin);
    PartitionReport {
        partition: number,
        owner,
        state: state.cloned().unwrap_or_else(|| "not asked".to_owned()),
        reason: worker.and_then(|worker| worker.stopped(number)).map(str::to_owned),
        offsets,
        lag: offsets.lag(),
        lag_per_second: rate(offsets.lag(), before.lag()),
        committed_per_second: rate(committed(offsets), committed(before)),
        oldest_dirty_seconds: worker.and_then(|worker| worker.oldest_dirty_seconds.get(&number).copied()),
    }
}

fn maps(meta: &Meta) -> Option<MapsReport> {
    let record = &meta.maps.as_ref()?.record;
    let stage = match &record.state {
        MapsState::One { .. } => "one",
        MapsState::Two { stage: MapChangeStage::Announced, .. } => "announced",
        MapsState::Two { stage: MapChangeStage::Moving, .. } => "moving",
        MapsState::Two { stage: MapChangeStage::Returning, .. } => "returning",
    };
    let is_behind =
        |claim: &Option<Claim>| claim.as_ref().is_none_or(|claim| claim.generation < record.generation);
    let unconfirmed = meta.claims.iter().zip(0..).filter(|(claim, _)| record.has_two() && is_behind(claim));
    Some(MapsReport {
        deciding: record.deciding().fingerprint(),
        other: record.other().map(|map| map.fingerprint()),
        stage,
        generation: record.generation,
        unconfirmed: unconfirmed.map(|(_, partition)| partition).collect(),
    })
}

/// Dead letters by reason, in words.
fn by_reason(letters: &BTreeMap<String, u64>) -> String {
    letters.iter().map(|(reason, count)| format!("{count} {reason}")).collect::<Vec<_>>().join(", ")
}
