//! The rules of `[placements]`.

use std::time::Duration;

use super::Findings;
use crate::support::config::types::Config;

/// Elasticsearch's own limit (`es.index.max_number_of_shards`).
const MOST_PRIMARIES: u16 = 1024;
/// More often, and Elasticsearch would do little else.
const LEAST_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let placements = config.placements;
    let kept = ("placements.deleted_retention", placements.deleted_retention);
    let why = "a request from before the delete could act again where its placement is gone";
    // A batch that starts just before a mark sends until its deadline.
    findings.below(("elasticsearch.gc_deletes", config.elasticsearch.gc_deletes), kept, why);
    findings.below(("batch.timeout", config.batch.timeout * 2), kept, why);
    if placements.primaries.get() > MOST_PRIMARIES {
        findings.error(
            "placements.primaries",
            format!("must be at most {MOST_PRIMARIES}, Elasticsearch's limit"),
        );
    }
    if placements
        .refresh_interval
        .is_some_and(|interval| !interval.is_zero() && interval < LEAST_REFRESH_INTERVAL)
    {
        findings
            .error("placements.refresh_interval", "must be \"0s\", which means never, or at least \"1s\"");
    }
}
