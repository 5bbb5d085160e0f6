//! The rules of `[audit]`.

use std::time::Duration;

use super::Findings;
use crate::support::config::types::Config;

/// More often, and one would run all the time.
const LEAST_EVERY: Duration = Duration::from_secs(1);

pub(super) fn check(findings: &mut Findings, config: &Config) {
    if config.audit.interval.is_some_and(|every| every < LEAST_EVERY) {
        findings.error("audit.interval", "must be at least \"1s\"; \"24h\" is usual");
    }
}
