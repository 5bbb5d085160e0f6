//! What `geofold status` prints and the page of the group shows, and what of it needs a person. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{GroupSeen, Meta, WorkerSeen};
use crate::base::figures::{self, count};
use crate::io::claims::Claim;
use crate::io::maps::{MapChangeStage, MapsState};
use crate::io::meta::TopicFacts;
use crate::support::config::Config;
use crate::support::telemetry::events::Numbers;

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
        let Inputs { config, group, facts, before, now, between, meta, health, workers, letters, time } =
            inputs;
        let seconds = between.as_secs_f64().max(1e-3);
        let nothing = Meta::default();
        let known = meta.unwrap_or(&nothing);
        let partitions: Vec<PartitionReport> = now
            .iter()
            .map(|(&partition, &offsets)| {
                let before = before.get(&partition).copied().unwrap_or(offsets);
                one(partition, before, offsets, seconds, known, group.as_ref().ok(), &workers)
            })
            .collect();
        let mut findings = Vec::new();
        let unowned = of_group(&group, config, &partitions);
        let has_members = unowned.is_none();
        findings.extend(unowned);
        findings.extend(
            partitions.iter().flat_map(|partition| of_partition(partition, known, config, has_members)),
        );
        findings.extend(known.facts.as_ref().and_then(|remembered| {
            // The map's fingerprint is judged by the record of the maps.
            let remembered = TopicFacts { map: None, ..remembered.clone() };
            match TopicFacts::allows(&remembered, facts) {
                Err(needed) => Some(needed.to_string()),
                Ok(()) => remembered.growth_to(facts),
            }
        }));
        findings.extend(meta.err().map(str::to_owned));
        match &health {
            Ok(health) if health == "red" => {
                findings
                    .push("elasticsearch: health is red; ask GET /_cluster/allocation/explain".to_owned());
            }
            Ok(_) => {}
            Err(error) => findings.push(format!("elasticsearch: {error}")),
        }
        findings.extend(workers.iter().flat_map(of_worker));
        let (dead_letters, unread) = match letters {
            None => (None, None),
            Some(Ok(letters)) => (Some(letters), None),
            Some(Err(error)) => (None, Some(format!("dead letters cannot be read: {error}"))),
        };
        findings.extend(unread);
        findings.extend(dead_letters.as_ref().filter(|letters| letters.last_hour > 0).map(|letters| {
            let counts = counts(&letters.last_hour_by_reason);
            format!(
                "{} dead letters in the last hour: {counts}; geofold dead-letters list --since 1h",
                letters.recent()
            )
        }));
        let audit = known.audit.map(|last| AuditSeen {
            seconds_ago: time.as_secs().saturating_sub(last.ended),
            wrong: last.wrong,
        });
        findings.extend(audit.and_then(|audit| {
            let wrong = audit.wrong.filter(|wrong| *wrong > 0)?;
            Some(format!("the last audit found {} wrong documents: geofold audit lists them", count(wrong)))
        }));
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
            dead_letters,
            oldest_dirty_seconds: oldest.max_by(f64::total_cmp),
            audit,
            audit_interval_seconds: config.audit.interval.map(|interval| interval.as_secs()),
            findings,
            partitions,
        }
    }
}

fn one(
    partition: i32,
    before: Offsets,
    offsets: Offsets,
    seconds: f64,
    meta: &Meta,
    group: Option<&GroupSeen>,
    workers: &[WorkerSeen],
) -> PartitionReport {
    let claim = usize::try_from(partition).ok().and_then(|place| meta.claims.get(place)?.as_ref());
    let member =
        group.and_then(|group| group.members.iter().find(|member| member.partitions.contains(&partition)));
    let owner = match (claim, member, group) {
        // The claim of a worker that was killed stays; the group knows better.
        (_, None, Some(_)) => None,
        (Some(Claim { owner, ended_ms: None, .. }), ..) => Some(owner.clone()),
        (_, Some(member), _) => Some(format!("{} on {}", member.client_id, member.host)),
        (_, None, None) => None,
    };
    let worker = workers.iter().find(|worker| worker.partitions.contains_key(&partition));
    let state = worker.and_then(|worker| worker.partitions.get(&partition));
    let rate = |after: i64, before: i64| (after - before) as f64 / seconds;
    let committed = |offsets: Offsets| offsets.committed.unwrap_or(offsets.begin);
    PartitionReport {
        partition,
        owner,
        state: state.cloned().unwrap_or_else(|| "not asked".to_owned()),
        reason: worker.and_then(|worker| worker.stopped(partition)).map(str::to_owned),
        offsets,
        lag: offsets.lag(),
        lag_per_second: rate(offsets.lag(), before.lag()),
        committed_per_second: rate(committed(offsets), committed(before)),
        oldest_dirty_seconds: worker.and_then(|worker| worker.oldest_dirty_seconds.get(&partition).copied()),
    }
}

fn of_group(
    group: &Result<GroupSeen, String>,
    config: &Config,
    partitions: &[PartitionReport],
) -> Option<String> {
    let name = &config.kafka.group_id;
    let lag: i64 = partitions.iter().map(|partition| partition.lag).sum();
    match group {
        Ok(group) if group.members.is_empty() && lag > 0 => {
            Some(format!("the group {name} has no members, and {lag} records wait: start workers"))
        }
        _ => None,
    }
}

fn of_partition(partition: &PartitionReport, meta: &Meta, config: &Config, has_members: bool) -> Vec<String> {
    let PartitionReport { partition: number, offsets, lag, .. } = partition;
    let mut findings = Vec::new();
    if let Some(reason) = &partition.reason {
        findings.push(format!("partition {number} is stopped: {reason}"));
    }
    if let Some(committed) = offsets.committed {
        if let Some(remembered) = meta.remembered.get(number).filter(|remembered| **remembered > committed) {
            findings.push(format!(
                "partition {number}: the group was rewound: offset {committed} is committed, and {remembered} was; workers stop there \
                 until positions.epoch is raised above {}, or set the offset back",
                config.positions.epoch
            ));
        }
        if committed > offsets.end {
            findings.push(format!(
                "partition {number}: offset {committed} is committed, and it ends at {}: the topic was truncated or created anew",
                offsets.end
            ));
        }
        if committed < offsets.begin && offsets.begin < offsets.end {
            findings.push(format!(
                "partition {number}: records from offset {committed} to {} were deleted before they were processed",
                offsets.begin - 1
            ));
        }
    }
    let stands = *lag > 0 && partition.committed_per_second <= 0.0 && partition.lag_per_second >= 0.0;
    if has_members && partition.reason.is_none() && stands && partition.state == "not asked" {
        findings.push(format!(
            "partition {number}: {lag} records wait and its committed offset does not move; no worker was reached that says why \
             (geofold status --workers HOST:PORT)"
        ));
    }
    findings
}

fn of_worker(worker: &WorkerSeen) -> Vec<String> {
    let url = &worker.url;
    match &worker.error {
        Some(error) => vec![format!("worker {url} does not answer: {error}")],
        None => worker
            .other_reasons()
            .map(|(part, reason)| format!("worker {url} is not ready: {part}: {reason}"))
            .collect(),
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

fn seconds(seconds: f64) -> String {
    figures::time(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

fn counts(by_reason: &BTreeMap<String, u64>) -> String {
    by_reason.iter().map(|(reason, count)| format!("{count} {reason}")).collect::<Vec<_>>().join(", ")
}

impl GroupReport {
    /// What the broker says of the group, in words.
    pub fn described(&self) -> String {
        match (&self.description, &self.group_error) {
            (Some(group), _) => match group.members.len() {
                1 => format!("{}, 1 member", group.state),
                members => format!("{}, {members} members", group.state),
            },
            (None, error) => {
                let error = error.as_deref().unwrap_or("no answer");
                format!("not described by the broker ({error}); owners by claims")
            }
        }
    }

    /// Maps, audit, Elasticsearch and dead letters: the name of each, and a line about it.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("map", self.of_maps())];
        lines.extend(self.of_audit().map(|audit| ("audit", audit)));
        let elasticsearch = self.elasticsearch.as_deref().unwrap_or("does not answer");
        lines.push(("elasticsearch", elasticsearch.to_owned()));
        lines.push(("dead letters", self.of_letters()));
        lines
    }

    fn of_maps(&self) -> String {
        let Some(MapsReport { deciding, other, stage, generation, unconfirmed }) = &self.maps else {
            return "as configured, never changed".to_owned();
        };
        let other = other.as_ref().map_or_else(String::new, |other| format!(", {other} is live too"));
        let unconfirmed = match unconfirmed.as_slice() {
            [] => String::new(),
            partitions => format!(", not confirmed by partitions {}", Numbers::of(partitions)),
        };
        format!("{deciding} decides, stage {stage}, generation {generation}{other}{unconfirmed}")
    }

    fn of_audit(&self) -> Option<String> {
        let Some(AuditSeen { seconds_ago, wrong }) = &self.audit else {
            return self.audit_interval_seconds.map(|_| "none has ended yet".to_owned());
        };
        let wrong = wrong.map_or_else(String::new, |wrong| format!(", {} wrong documents", count(wrong)));
        let ago = figures::time(Duration::from_secs(*seconds_ago));
        Some(format!("the last one ended {ago} ago{wrong}"))
    }

    fn of_letters(&self) -> String {
        match &self.dead_letters {
            None => "not read".to_owned(),
            Some(letters) if letters.counted == 0 => format!("none in {}", letters.topic),
            Some(letters) => format!(
                "{} of the newest in {}: {}; {} in the last hour",
                letters.counted,
                letters.topic,
                counts(&letters.by_reason),
                letters.recent()
            ),
        }
    }
}

impl fmt::Display for GroupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "group {} on topic {}, epoch {}: {}",
            self.group,
            self.topic,
            self.epoch,
            self.described()
        )?;
        writeln!(
            f,
            "lag {} ({:+.0}/s over {:.1} s), {:.0} records/s committed",
            self.lag, self.lag_per_second, self.sample_seconds, self.committed_per_second
        )?;
        writeln!(
            f,
            "\n{:>9}  {:<9}  {:>12}  {:>12}  {:>10}  {:>9}  {:>9}  owner",
            "partition", "state", "committed", "end", "lag", "lag/s", "dirty for"
        )?;
        for one in &self.partitions {
            let committed = one.offsets.committed.map_or_else(|| "-".to_owned(), |offset| offset.to_string());
            let dirty = one.oldest_dirty_seconds.map_or_else(|| "-".to_owned(), seconds);
            writeln!(
                f,
                "{:>9}  {:<9}  {:>12}  {:>12}  {:>10}  {:>+9.0}  {dirty:>9}  {}",
                one.partition,
                one.state,
                committed,
                one.offsets.end,
                one.lag,
                one.lag_per_second,
                one.owner.as_deref().unwrap_or("none"),
            )?;
        }
        f.write_str("\n")?;
        for (name, line) in self.lines() {
            writeln!(f, "{name:<15}{line}")?;
        }
        if self.findings.is_empty() {
            return f.write_str("nothing needs attention");
        }
        f.write_str("needs attention:")?;
        self.findings.iter().try_for_each(|finding| write!(f, "\n  {finding}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::GroupMember;
    use super::super::LastAudit;
    use super::*;

    fn facts(partitions: i32) -> TopicFacts {
        let epoch = Config::default().positions.epoch;
        TopicFacts { epoch, topic_id: Some("a".to_owned()), partitions, map: None, added: None }
    }

    fn offsets(begin: i64, committed: i64, end: i64) -> Offsets {
        Offsets { begin, end, committed: Some(committed) }
    }

    fn member(partitions: &[i32]) -> GroupMember {
        GroupMember {
            member_id: "m".to_owned(),
            client_id: "c".to_owned(),
            host: "h".to_owned(),
            partitions: partitions.to_vec(),
        }
    }

    struct Case {
        group: Result<GroupSeen, String>,
        before: Offsets,
        now: Offsets,
        meta: Meta,
        workers: Vec<WorkerSeen>,
        letters: Option<Result<LettersReport, String>>,
        health: Result<String, String>,
    }

    impl Default for Case {
        fn default() -> Self {
            Self {
                group: Ok(GroupSeen { state: "Stable".to_owned(), members: vec![member(&[0])] }),
                before: offsets(0, 5, 10),
                now: offsets(0, 10, 10),
                meta: Meta { remembered: [(0, 9)].into(), facts: Some(facts(1)), ..Meta::default() },
                workers: Vec::new(),
                letters: None,
                health: Ok("green".to_owned()),
            }
        }
    }

    impl Case {
        fn report(self) -> GroupReport {
            GroupReport::new(Inputs {
                config: &Config::default(),
                group: self.group,
                facts: &facts(1),
                before: &[(0, self.before)].into(),
                now: &[(0, self.now)].into(),
                between: Duration::from_secs(5),
                meta: Ok(&self.meta),
                health: self.health,
                workers: self.workers,
                letters: self.letters,
                time: Duration::from_secs(7_200),
            })
        }
    }

    #[test]
    fn group_that_works_needs_nobody() {
        let report = Case::default().report();
        assert_eq!(report.findings, [""; 0]);
        assert_eq!((report.lag, report.lag_per_second, report.committed_per_second), (0, -1.0, 1.0));
        assert_eq!(report.partitions[0].owner.as_deref(), Some("c on h"));
        assert!(report.to_string().ends_with("nothing needs attention"), "{report}");
    }

    #[test]
    fn each_trouble_is_a_finding() {
        let stopped = || WorkerSeen {
            url: "u".to_owned(),
            name: None,
            error: None,
            ready: false,
            reasons: [("partition 0".to_owned(), "bad record".to_owned())].into(),
            partitions: [(0, "stopped".to_owned())].into(),
            oldest_dirty_seconds: [(0, 61.0)].into(),
        };
        let silent =
            || WorkerSeen { error: Some("refused".to_owned()), partitions: BTreeMap::new(), ..stopped() };
        let stands = offsets(0, 5, 10);
        let empty = || Ok(GroupSeen { state: "Empty".to_owned(), members: Vec::new() });
        let rewound = || Meta { remembered: [(0, 9)].into(), ..Meta::default() };
        let anew = || Meta {
            facts: Some(TopicFacts { topic_id: Some("b".to_owned()), ..facts(1) }),
            ..Meta::default()
        };
        let letters = || LettersReport {
            last_hour: 2,
            last_hour_by_reason: [("bad_key".to_owned(), 2)].into(),
            ..LettersReport::default()
        };
        for (case, expected) in [
            (Case { workers: vec![stopped()], ..Case::default() }, "partition 0 is stopped: bad record"),
            (Case { workers: vec![silent()], ..Case::default() }, "worker u does not answer: refused"),
            (Case { before: stands, now: stands, meta: Meta::default(), ..Case::default() }, "does not move"),
            (
                Case { group: empty(), now: stands, meta: Meta::default(), ..Case::default() },
                "has no members, and 5 records wait",
            ),
            (
                Case { before: stands, now: offsets(0, 8, 20), meta: rewound(), ..Case::default() },
                "rewound: offset 8 is committed, and 9 was",
            ),
            (
                Case { now: offsets(0, 12, 10), meta: Meta::default(), ..Case::default() },
                "truncated or created anew",
            ),
            (
                Case {
                    now: offsets(7, 5, 10),
                    before: offsets(0, 4, 9),
                    meta: Meta::default(),
                    ..Case::default()
                },
                "from offset 5 to 6 were deleted",
            ),
            (Case { meta: anew(), ..Case::default() }, "created anew"),
            (Case { health: Ok("red".to_owned()), ..Case::default() }, "health is red"),
            (
                Case { health: Err("no connection".to_owned()), ..Case::default() },
                "elasticsearch: no connection",
            ),
            (
                Case {
                    meta: Meta {
                        audit: Some(LastAudit { ended: 3_600, wrong: Some(2) }),
                        ..Case::default().meta
                    },
                    ..Case::default()
                },
                "the last audit found 2 wrong documents",
            ),
            (
                Case { letters: Some(Ok(letters())), ..Case::default() },
                "2 dead letters in the last hour: 2 bad_key",
            ),
        ] {
            let report = case.report();
            assert_eq!(report.findings.len(), 1, "{expected}: {:?}", report.findings);
            assert!(report.findings[0].contains(expected), "{expected}: {:?}", report.findings);
        }
    }

    #[test]
    fn audits_and_dirty_documents_are_shown_as_far_as_known() {
        let plain = Case::default().report();
        assert_eq!((plain.audit, plain.oldest_dirty_seconds), (None, None));
        assert!(!plain.to_string().contains("audit"), "{plain}");
        let worker = WorkerSeen {
            url: "u".to_owned(),
            name: None,
            error: None,
            ready: true,
            reasons: BTreeMap::new(),
            partitions: [(0, "running".to_owned())].into(),
            oldest_dirty_seconds: [(0, 61.0)].into(),
        };
        let audit = Some(LastAudit { ended: 3_600, wrong: Some(0) });
        let meta = Meta { audit, ..Case::default().meta };
        let report = Case { meta, workers: vec![worker], ..Case::default() }.report();
        assert_eq!((report.findings.len(), report.oldest_dirty_seconds), (0, Some(61.0)));
        let text = report.to_string();
        assert!(text.contains("the last one ended 1 h 0 min ago, 0 wrong documents"), "{text}");
        assert!(text.contains("1 min 1 s"), "{text}");
    }

    #[test]
    fn dead_letters_beyond_those_counted_are_not_denied() {
        let letters = |last_hour_has_more| LettersReport {
            counted: 7,
            last_hour: 7,
            last_hour_by_reason: [("bad_key".to_owned(), 7)].into(),
            last_hour_has_more,
            ..LettersReport::default()
        };
        let of = |letters| Case { letters: Some(Ok(letters)), ..Case::default() }.report();
        assert!(of(letters(false)).findings[0].starts_with("7 dead letters"));
        let report = of(letters(true));
        assert!(report.findings[0].starts_with("at least 7 dead letters"), "{report}");
        assert!(report.to_string().contains("; at least 7 in the last hour"), "{report}");
    }

    #[test]
    fn owner_of_a_partition_is_its_claim_unless_the_group_has_none() {
        let claim = |ended_ms| {
            let (owner, assignment) = ("w on x, process 1".to_owned(), "1".to_owned());
            Claim { generation: 0, owner, deadline_ms: 1, assignment, ended_ms }
        };
        let owner = |group: Result<GroupSeen, String>, ended_ms| {
            let meta = Meta { claims: vec![Some(claim(ended_ms))], ..Meta::default() };
            Case { group, meta, ..Case::default() }.report().partitions[0].owner.clone()
        };
        let stable = || Ok(GroupSeen { state: "Stable".to_owned(), members: vec![member(&[0])] });
        assert_eq!(owner(stable(), None).as_deref(), Some("w on x, process 1"));
        assert_eq!(owner(stable(), Some(1)).as_deref(), Some("c on h"));
        assert_eq!(owner(Ok(GroupSeen::default()), None), None, "a worker that was killed");
        assert_eq!(owner(Err("no".to_owned()), None).as_deref(), Some("w on x, process 1"));
        assert_eq!(owner(Err("no".to_owned()), Some(1)), None);
    }
}
