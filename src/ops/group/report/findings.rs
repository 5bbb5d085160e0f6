//! What of the group needs a person.

use super::{Inputs, PartitionReport, by_reason};
use crate::base::figures::count;
use crate::io::meta::TopicFacts;
use crate::ops::group::{Meta, WorkerSeen};
use crate::support::config::Config;

/// One line each; none: nothing needs attention.
pub(super) fn findings(inputs: &Inputs<'_>, known: &Meta, partitions: &[PartitionReport]) -> Vec<String> {
    let Inputs { config, workers, .. } = inputs;
    let unowned = of_group(inputs, partitions);
    let has_members = unowned.is_none();
    let mut findings = Vec::from_iter(unowned);
    findings
        .extend(partitions.iter().flat_map(|partition| of_partition(partition, known, config, has_members)));
    findings.extend(of_topic(inputs.facts, known));
    findings.extend(inputs.meta.err().map(str::to_owned));
    findings.extend(of_elasticsearch(inputs));
    findings.extend(workers.iter().flat_map(of_worker));
    findings.extend(of_letters(inputs));
    findings.extend(of_audit(known));
    findings
}

fn of_group(inputs: &Inputs<'_>, partitions: &[PartitionReport]) -> Option<String> {
    let lag: i64 = partitions.iter().map(|partition| partition.lag).sum();
    let is_empty = inputs.group.as_ref().is_ok_and(|group| group.members.is_empty());
    (is_empty && lag > 0).then(|| {
        let name = &inputs.config.kafka.group_id;
        format!("the group {name} has no members, and {lag} records wait: start workers")
    })
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

fn of_topic(facts: &TopicFacts, known: &Meta) -> Option<String> {
    // The map's fingerprint is judged by the record of the maps.
    let remembered = TopicFacts { map: None, ..known.facts.clone()? };
    match TopicFacts::allows(&remembered, facts) {
        Err(needed) => Some(needed.to_string()),
        Ok(()) => remembered.growth_to(facts),
    }
}

fn of_elasticsearch(inputs: &Inputs<'_>) -> Option<String> {
    match &inputs.health {
        Ok(health) if health == "red" => {
            Some("elasticsearch: health is red; ask GET /_cluster/allocation/explain".to_owned())
        }
        Ok(_) => None,
        Err(error) => Some(format!("elasticsearch: {error}")),
    }
}

fn of_letters(inputs: &Inputs<'_>) -> Option<String> {
    match inputs.letters.as_ref()? {
        Ok(letters) if letters.last_hour == 0 => None,
        Ok(letters) => Some(format!(
            "{} dead letters in the last hour: {}; geofold dead-letters list --since 1h",
            letters.recent(),
            by_reason(&letters.last_hour_by_reason)
        )),
        Err(error) => Some(format!("dead letters cannot be read: {error}")),
    }
}

fn of_audit(known: &Meta) -> Option<String> {
    let wrong = known.audit?.wrong.filter(|wrong| *wrong > 0)?;
    Some(format!("the last audit found {} wrong documents: geofold audit lists them", count(wrong)))
}
