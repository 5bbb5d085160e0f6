//! Checks the retention of the topic of increments: counts need every increment until it is merged.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::executor::block_on;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;

use super::CheckFinding;
use crate::io::kafka::login::log_in;

const ABOUT: &str = "increments kept";

/// Increments deleted before a collector merges them are lost, and a recount is needed.
const SHORT: Duration = Duration::from_secs(24 * 3600);

/// Blocks, at most for the timeout.
pub(super) fn look(config: &ClientConfig, topic: &str, timeout: Duration) -> CheckFinding {
    match settings(config, topic, timeout) {
        Ok(settings) => judge(topic, &settings),
        Err(error) => CheckFinding::warning(
            ABOUT,
            format_args!(
                "the settings of {topic} are not readable ({error}): verify that it is not compacted and keeps \
                 increments for longer than all collectors may be down"
            ),
        ),
    }
}

fn settings(
    config: &ClientConfig,
    topic: &str,
    timeout: Duration,
) -> Result<BTreeMap<String, String>, String> {
    let client: AdminClient<DefaultClientContext> = config.create().map_err(|error| error.to_string())?;
    log_in(client.inner()).map_err(|error| error.to_string())?;
    let options = AdminOptions::new().request_timeout(Some(timeout));
    let described = block_on(client.describe_configs(&[ResourceSpecifier::Topic(topic)], &options));
    let described = described.map_err(|error| error.to_string())?;
    let resource =
        described.into_iter().next().ok_or("no answer about it")?.map_err(|error| error.to_string())?;
    Ok(resource.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?))).collect())
}

fn judge(topic: &str, settings: &BTreeMap<String, String>) -> CheckFinding {
    let get = |key: &str| settings.get(key).map_or("", String::as_str);
    let number = |key: &str| get(key).parse::<i64>().ok();
    if get("cleanup.policy").split(',').any(|policy| policy.trim() == "compact") {
        return CheckFinding::error(
            ABOUT,
            format_args!("{topic} is compacted, which drops increments: set its cleanup.policy to delete"),
        );
    }
    if let Some(retention) = number("retention.ms").and_then(|ms| u64::try_from(ms).ok())
        && Duration::from_millis(retention) < SHORT
    {
        return CheckFinding::warning(
            ABOUT,
            format_args!(
                "{topic} keeps them for {} s: those that no collector has merged by then are lost; raise its retention.ms",
                retention / 1000
            ),
        );
    }
    if let Some(bytes) = number("retention.bytes").filter(|bytes| *bytes >= 0) {
        return CheckFinding::warning(
            ABOUT,
            format_args!(
                "{topic} keeps {bytes} bytes of each partition: increments beyond that are lost if no collector has merged \
                 them; better limit it by retention.ms alone"
            ),
        );
    }
    CheckFinding::ok(ABOUT, format_args!("{topic} is not compacted, and keeps them for a day or longer"))
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::super::CheckLevel;
    use super::*;

    fn judged(settings: &[(&str, &str)]) -> (CheckLevel, String) {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let finding = judge("increments", &settings);
        (finding.level, finding.message)
    }

    #[test]
    fn a_topic_that_would_lose_increments_is_found_out() {
        let kept = ("retention.ms", "1209600000");
        for (settings, level, words) in [
            (&[("cleanup.policy", "delete"), kept, ("retention.bytes", "-1")][..], CheckLevel::Ok, "a day"),
            (&[("cleanup.policy", "delete"), ("retention.ms", "-1")], CheckLevel::Ok, "a day"),
            (&[("cleanup.policy", "compact"), kept], CheckLevel::Error, "set its cleanup.policy to delete"),
            (&[("cleanup.policy", "compact,delete"), kept], CheckLevel::Error, "compacted"),
            (&[("cleanup.policy", "delete"), ("retention.ms", "3600000")], CheckLevel::Warning, "3600 s"),
            (
                &[("cleanup.policy", "delete"), kept, ("retention.bytes", "1000")],
                CheckLevel::Warning,
                "1000 bytes",
            ),
        ] {
            let (found, message) = judged(settings);
            assert_eq!(found, level, "{settings:?}: {message}");
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn settings_that_can_not_be_seen_are_a_warning() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("increments", 1, 1).unwrap();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        let finding = look(&config, "increments", Duration::from_secs(5));
        assert_eq!(finding.level, CheckLevel::Warning, "{finding}");
    }
}
