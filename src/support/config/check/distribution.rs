//! Checks `[distribution]`.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};

use super::{Findings, check_topic};
use crate::support::config::ServerUrl;
use crate::support::config::distribution::{DistributionJob, JobKind, RunStore};
use crate::support::config::types::Config;

const JOBS: &str = "distribution.jobs";

/// Each job has a label in metrics, and a place for each geoshard in the queue.
const MAX_JOBS: usize = 16;

const MAX_NAME_BYTES: usize = 32;

/// Namespace, prefix, job and geoshard have to fit a key of memcached.
const MAX_NAMESPACE_BYTES: usize = 32;

const MIN_INTERVAL: Duration = Duration::from_millis(10);

const MAX_MEMCACHED_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let distribution = &config.distribution;
    match (distribution.run_store, &distribution.memcached) {
        (RunStore::Memcached, None) => {
            findings.error(
                "distribution.memcached",
                "required with run_store = \"memcached\"; write \"host:11211\"",
            );
        }
        (RunStore::Memory, Some(_)) => findings.warning(
            "distribution.memcached",
            "has no effect with run_store = \"memory\"; set run_store to \"memcached\", or remove it",
        ),
        _ => {}
    }
    let has_port = |address: &String| {
        address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    };
    if distribution.memcached.as_ref().is_some_and(|address| !has_port(address)) {
        findings.error("distribution.memcached", "is no address; write \"host:11211\"");
    }
    let timeout = distribution.memcached_timeout;
    if timeout < Duration::from_millis(1) || timeout > MAX_MEMCACHED_TIMEOUT {
        findings.error(
            "distribution.memcached_timeout",
            "must be between \"1ms\" and \"5s\": each run may wait for it twice",
        );
    }
    if !is_name(&distribution.namespace, MAX_NAMESPACE_BYTES) {
        findings.error("distribution.namespace", "must be 1 to 32 lower-case letters, digits, '-' and '_'");
    }
    if distribution.jobs.len() > MAX_JOBS {
        findings.error(JOBS, format!("{} jobs; {MAX_JOBS} are the most", distribution.jobs.len()));
    }
    let mut names = BTreeSet::new();
    for job in &distribution.jobs {
        if !is_name(&job.name, MAX_NAME_BYTES) {
            findings.error(JOBS, "a name must be 1 to 32 lower-case letters, digits, '-' and '_'");
        } else if !names.insert(&job.name) {
            findings.error(JOBS, format!("there are two jobs with the name {}; rename one", job.name));
        }
        check_job(findings, config, job);
    }
}

fn is_name(text: &str, most: usize) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    !text.is_empty() && text.len() <= most && text.bytes().all(legal)
}

fn check_job(findings: &mut Findings, config: &Config, job: &DistributionJob) {
    let name = &job.name;
    let mut error = |message: &str| findings.error(JOBS, format!("{name}: {message}"));
    if job.interval < MIN_INTERVAL {
        error("interval must be at least \"10ms\"");
    }
    if job.timeout.is_zero() {
        error("timeout must be above 0");
    }
    let is_webhook = job.kind == JobKind::Webhook;
    match (is_webhook, &job.url) {
        (true, None) => error("a webhook needs a url"),
        (false, Some(_)) => error("url applies only to kind = \"webhook\"; remove it"),
        _ => {}
    }
    if !is_webhook && !job.headers.is_empty() {
        error("headers apply only to kind = \"webhook\"; remove them");
    }
    if job.ca_file.is_some() && !job.url.as_ref().is_some_and(ServerUrl::uses_tls) {
        error("ca_file applies only to a webhook with an https url; remove it");
    }
    if !is_webhook && job.give_up_after.is_some() {
        error(
            "give_up_after applies only to kind = \"webhook\"; remove it: others are tried for as long as it takes",
        );
    }
    for (header, value) in &job.headers {
        // The value is not quoted: it may be a secret.
        if HeaderName::try_from(header).is_err() || HeaderValue::try_from(value.expose()).is_err() {
            error(&format!(
                "the header {header:?} or its value contains characters that are invalid in a header"
            ));
        }
    }
    if is_webhook
        && !job.headers.is_empty()
        && job.url.as_ref().is_some_and(|url| !url.uses_tls() && !url.is_loopback())
    {
        findings.warning(JOBS, format!("{name}: its headers are sent unencrypted; use https"));
    }
    match (job.kind, &job.topic) {
        (JobKind::Topic, Some(topic)) => {
            check_topic(findings, JOBS, topic);
            if *topic == config.kafka.topic || config.dead_letter.topic.as_ref() == Some(topic) {
                findings.error(
                    JOBS,
                    format!("{name}: its topic must be another than kafka.topic and dead_letter.topic"),
                );
            }
        }
        (JobKind::Topic, None) => findings.error(JOBS, format!("{name}: a record needs a topic")),
        (_, Some(_)) => {
            findings.error(JOBS, format!("{name}: topic applies only to kind = \"topic\"; remove it"));
        }
        (_, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(section: &str) -> Vec<String> {
        let config = Config { distribution: toml::from_str(section).unwrap(), ..Config::default() };
        config.findings().iter().map(ToString::to_string).collect()
    }

    /// The example in `config/geofold.toml`, uncommented.
    fn shown() -> String {
        let text = include_str!("../../../../config/geofold.toml");
        let section = text.split("\n[distribution]\n").nth(1).unwrap().split("\n[").next().unwrap();
        let example = section.split("The usual form:\n").nth(1).unwrap();
        let lines = example.lines().take_while(|line| !line.starts_with("# jobs"));
        lines.map(|line| line.trim_start_matches(['#', ' ']).replace("distribution.", "") + "\n").collect()
    }

    #[test]
    fn repository_configuration_is_valid() {
        assert_eq!(findings(&shown()), Vec::<String>::new());
        let jobs = toml::from_str::<crate::support::config::DistributionConfig>(&shown()).unwrap().jobs;
        let gates: Vec<_> = jobs.iter().map(|job| (job.name.as_str(), job.has_gate())).collect();
        assert_eq!(gates, [("searchable", false), ("notify", true), ("announce", true)]);
    }

    #[test]
    fn each_mistake_is_found_and_no_secret_is_shown() {
        let job = |more: &str| format!("jobs = [{{ name = \"a\", {more} }}]");
        for (section, expected) in [
            ("run_store = \"memcached\"".to_owned(), "distribution.memcached: required"),
            ("memcached = \"h:1\"".to_owned(), "has no effect"),
            ("run_store = \"memcached\"\nmemcached = \"host\"".to_owned(), "is no address"),
            ("memcached_timeout = \"6s\"".to_owned(), "memcached_timeout"),
            ("namespace = \"a b\"".to_owned(), "namespace"),
            ("jobs = [{ name = \"A\", kind = \"refresh\" }]".to_owned(), "a name must be"),
            (job("kind = \"refresh\", interval = \"1ms\""), "interval"),
            (job("kind = \"refresh\", timeout = \"0s\""), "timeout"),
            (job("kind = \"refresh\", url = \"http://h\""), "url applies only"),
            (job("kind = \"refresh\", topic = \"t\""), "topic applies only"),
            (job("kind = \"refresh\", headers = { x = \"hunter2\" }"), "headers apply"),
            (job("kind = \"refresh\", give_up_after = \"1h\""), "give_up_after"),
            (job("kind = \"webhook\""), "needs a url"),
            (job("kind = \"webhook\", url = \"http://h\", ca_file = \"ca.pem\""), "ca_file applies only"),
            (job("kind = \"refresh\", ca_file = \"ca.pem\""), "ca_file applies only"),
            (
                job("kind = \"webhook\", url = \"http://127.0.0.1\", headers = { x = \"hunter2\\n\" }"),
                "\"x\"",
            ),
            (
                job("kind = \"webhook\", url = \"http://h.example\", headers = { x = \"hunter2\" }"),
                "unencrypted",
            ),
            (job("kind = \"topic\""), "needs a topic"),
            (job("kind = \"topic\", topic = \"documents\""), "another than kafka.topic"),
        ] {
            let found = findings(&section);
            assert_eq!(found.len(), 1, "{section}: {found:?}");
            assert!(found[0].contains(expected) && !found[0].contains("hunter2"), "{section}: {found:?}");
        }
        let two = "jobs = [{ name = \"a\", kind = \"refresh\" }, { name = \"a\", kind = \"refresh\" }]";
        assert!(findings(two)[0].contains("two jobs"));
    }
}
