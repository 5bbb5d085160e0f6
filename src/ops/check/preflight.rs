//! Checks before a worker joins its group: every check of `geofold check` must pass.
//!
//! What does not answer is waited for: a worker that starts while Elasticsearch restarts is no error. What answers wrongly
//! is refused: a missing index or another topic does not get better by itself. In the end the topic is remembered, before
//! anything is written under its positions.

use thiserror::Error;

use crate::io::elastic::Elastic;
use crate::io::meta::TopicFacts;
use crate::ops::check::{self, CheckFinding, CheckLevel, CheckTarget};
use crate::support::config::types::RetryConfig;
use crate::support::telemetry::health::Health;

/// Something is wrong that waiting does not mend.
#[derive(Debug, Error)]
#[error("this worker cannot start:\n{}", lines(.0))]
pub struct PreflightRefused(Vec<CheckFinding>);

fn lines(findings: &[CheckFinding]) -> String {
    findings.iter().map(CheckFinding::to_string).collect::<Vec<_>>().join("\n")
}

/// Checks until both ends answer and all is right, and gives the topic as it is now.
///
/// # Errors
/// With everything that is wrong.
pub async fn pass(
    target: &CheckTarget,
    elastic: &dyn Elastic,
    retry: &RetryConfig,
    health: &Health,
) -> Result<TopicFacts, PreflightRefused> {
    let mut delays = retry.policy().delays();
    loop {
        let report = check::check(target, elastic).await;
        let of_level = |level: CheckLevel| -> Vec<CheckFinding> {
            report.findings.iter().filter(|finding| finding.level == level).cloned().collect()
        };
        let wrong = of_level(CheckLevel::Error);
        if !wrong.is_empty() {
            return Err(PreflightRefused(wrong));
        }
        let mut unreachable = of_level(CheckLevel::Unreachable);
        if let (true, Some(topic)) = (unreachable.is_empty(), report.topic) {
            match check::remember(target, elastic, &topic, report.maps.as_ref()).await {
                Ok(()) => {
                    for warning in of_level(CheckLevel::Warning) {
                        tracing::warn!(about = warning.about, "{}", warning.message);
                    }
                    return Ok(topic);
                }
                Err(finding) if finding.is_error() => return Err(PreflightRefused(vec![finding])),
                Err(finding) => unreachable.push(finding),
            }
        }
        let delay = delays.next(None);
        for finding in &unreachable {
            tracing::warn!(about = finding.about, ?delay, "waiting to start: {}", finding.message);
        }
        health.not_ready(Health::STARTUP, format!("waiting for: {}", lines(&unreachable)));
        tokio::time::sleep(delay).await;
    }
}
