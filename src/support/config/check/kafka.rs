//! Checks `[kafka]`, but for its security.

use std::time::Duration;

use super::{Findings, check_topic};
use crate::support::config::kafka::{GroupProtocol, KafkaConfig};
use crate::support::config::properties::{self, Properties};
use crate::support::config::types::Config;

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let kafka = &config.kafka;
    if kafka.brokers.is_empty() || kafka.brokers.iter().any(|broker| broker.trim().is_empty()) {
        findings.error("kafka.brokers", "names no broker, or an empty one; write [\"host:9092\"]");
    }
    check_topic(findings, "kafka.topic", &kafka.topic);
    if kafka.group_id.is_empty() {
        findings.error("kafka.group_id", "is empty; all workers of one index need one common name");
    }
    let max_poll = max_poll_interval(&kafka.properties);
    if let Err(text) = max_poll {
        findings.error(
            MAX_POLL_KEY,
            format!("{text:?} is not a whole number of milliseconds; librdkafka's default is 300000"),
        );
    }
    let max_poll = max_poll.unwrap_or(DEFAULT_MAX_POLL);
    let revoke = ("shutdown.revoke_timeout", config.shutdown.revoke_timeout);
    findings.below(
        revoke,
        (MAX_POLL_KEY, max_poll),
        "a rebalance waits for the batch of a revoked partition, and the group drops a member that waits longer",
    );
    if kafka.group_protocol == GroupProtocol::Classic {
        let session = ("kafka.session_timeout", kafka.session_timeout);
        if kafka.heartbeat_interval < Duration::from_millis(1) {
            findings.error(
                "kafka.heartbeat_interval",
                "must be at least \"1ms\": librdkafka counts milliseconds",
            );
        }
        findings.below(
            ("kafka.heartbeat_interval", kafka.heartbeat_interval),
            session,
            "the group drops a member that it has not heard of",
        );
        findings.below(revoke, session, "the group gives a partition away while its last batch is under way");
        findings.at_most(session, (MAX_POLL_KEY, max_poll), "librdkafka refuses it");
    }
    check_properties(findings, kafka);
}

pub(super) const MAX_POLL_KEY: &str = "kafka.properties.max.poll.interval.ms";

/// librdkafka's default for `max.poll.interval.ms`.
const DEFAULT_MAX_POLL: Duration = Duration::from_secs(300);

/// The effective interval; an error with the text if it is not a number.
fn max_poll_interval(properties: &Properties) -> Result<Duration, &str> {
    let Some(text) = properties.get("max.poll.interval.ms") else { return Ok(DEFAULT_MAX_POLL) };
    text.trim().parse().map(Duration::from_millis).map_err(|_| text)
}

fn check_properties(findings: &mut Findings, kafka: &KafkaConfig) {
    for (key, _) in &kafka.properties {
        if let Some(refusal) = properties::refusal_for_consumer(key) {
            findings.error(format!("kafka.properties.{key}"), refusal);
        }
    }
    for (key, _) in &kafka.producer_properties {
        if let Some(refusal) = properties::refusal_for_producer(key) {
            findings.error(format!("kafka.producer_properties.{key}"), refusal);
        }
    }
}
