//! The rules of `[placements]` and `[audit]`.

use std::time::Duration;

use super::Findings;
use crate::support::config::types::Config;

/// More often, and one would run all the time.
const LEAST_EVERY: Duration = Duration::from_secs(1);

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let kept = ("placements.deleted_retention", config.placements.deleted_retention);
    let why = "a request from before the delete could act again where its placement is gone";
    // A batch that starts just before a mark sends until its deadline.
    findings.below(("elasticsearch.gc_deletes", config.elasticsearch.gc_deletes), kept, why);
    findings.below(("batch.timeout", config.batch.timeout * 2), kept, why);
    if config.audit.interval.is_some_and(|every| every < LEAST_EVERY) {
        findings.error("audit.interval", "must be at least \"1s\"; \"24h\" is usual");
    }
}
