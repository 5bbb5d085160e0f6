//! Checks across keys. Pure; reports all findings at once.

mod audit;
mod campaigns;
mod counts;
mod distribution;
mod elasticsearch;
mod http;
mod kafka;
mod kafka_security;
mod placements;
mod registry;
mod route;
mod source;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use humantime::format_duration;
use tracing_subscriber::EnvFilter;

use super::byte_size::ByteSize;
use super::load_section::LoadConfig;
use super::moves::{MoveVisibility, MovesConfig};
use super::secret::Secret;
use super::types::{Config, DeadLetterPolicy};

/// Severity of a [`ConfigFinding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// geofold runs, but the setting is questionable.
    Warning,
    /// geofold does not run with it.
    Error,
}

/// Something wrong with a configuration. Its text never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFinding {
    /// Severity.
    pub level: Severity,
    /// Dotted path of the key to change first.
    pub key: String,
    /// The problem, and what to set.
    pub message: String,
}

impl ConfigFinding {
    /// Whether geofold must not run.
    pub fn is_error(&self) -> bool {
        self.level == Severity::Error
    }
}

impl fmt::Display for ConfigFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = if self.is_error() { "error" } else { "warning" };
        write!(f, "{level}: {}: {}", self.key, self.message)
    }
}

impl Config {
    /// Everything that is wrong with this configuration, errors and warnings.
    pub fn findings(&self) -> Vec<ConfigFinding> {
        let mut findings = check(self, cfg!(feature = "tls"));
        // Secrets are redacted.
        let values = toml::Table::try_from(self).unwrap_or_default();
        findings.iter_mut().for_each(|finding| finding.show_value(&values));
        findings
    }
}

impl ConfigFinding {
    /// Adds the refused value to a message that says what it must be.
    fn show_value(&mut self, values: &toml::Table) {
        const SHOWN: usize = 60;
        let Some((section, name)) = self.key.split_once('.') else { return };
        let value = values.get(section).and_then(|section| section.get(name));
        let Some(value) = value.filter(|value| !value.is_array() && !value.is_table()) else { return };
        if self.message.starts_with("must be ") {
            let value: String = value.to_string().chars().take(SHOWN).collect();
            self.message = format!("{value} is not allowed; {}", self.message);
        }
    }
}

/// [`Config::findings`], told whether this build has TLS and SCRAM to Kafka.
fn check(config: &Config, has_tls: bool) -> Vec<ConfigFinding> {
    let mut findings = Findings(Vec::new());
    kafka::check(&mut findings, config);
    kafka_security::check(&mut findings, &config.kafka, has_tls);
    elasticsearch::check(&mut findings, &config.elasticsearch);
    check_documents(&mut findings, config);
    check_times(&mut findings, config);
    check_moves(&mut findings, &config.moves);
    check_load(&mut findings, config.load);
    check_sizes(&mut findings, config);
    check_dead_letters(&mut findings, config);
    counts::check_counts(&mut findings, config);
    placements::check(&mut findings, config);
    audit::check(&mut findings, config);
    distribution::check(&mut findings, config);
    source::check(&mut findings, config);
    registry::check(&mut findings, config);
    campaigns::check(&mut findings, config);
    route::check(&mut findings, config);
    check_edges(&mut findings, config);
    findings.0
}

struct Findings(Vec<ConfigFinding>);

impl Findings {
    fn error(&mut self, key: impl Into<String>, message: impl Into<String>) {
        self.0.push(ConfigFinding { level: Severity::Error, key: key.into(), message: message.into() });
    }

    fn warning(&mut self, key: impl Into<String>, message: impl Into<String>) {
        self.0.push(ConfigFinding { level: Severity::Warning, key: key.into(), message: message.into() });
    }

    /// `low` must be below `high`; `why` says what happens otherwise.
    fn below(&mut self, low: (&str, Duration), high: (&str, Duration), why: &str) {
        if low.1 >= high.1 {
            self.order(low.0, format_duration(low.1), "below", high.0, format_duration(high.1), why);
        }
    }

    /// `low` may not be above `high`.
    fn at_most(&mut self, low: (&str, Duration), high: (&str, Duration), why: &str) {
        if low.1 > high.1 {
            self.order(low.0, format_duration(low.1), "at most", high.0, format_duration(high.1), why);
        }
    }

    /// The same for sizes.
    fn fits(&mut self, low: (&str, ByteSize), high: (&str, ByteSize), why: &str) {
        if low.1 > high.1 {
            self.order(low.0, low.1, "at most", high.0, high.1, why);
        }
    }

    /// A secret that is given has to be one.
    fn not_empty(&mut self, key: impl Into<String>, secret: Option<&Secret>) {
        if secret.is_some_and(|secret| secret.expose().is_empty()) {
            self.error(key, "is empty; check the variable or file that it comes from");
        }
    }

    /// An address that others can reach.
    fn open_address(&mut self, key: &str, listen: SocketAddr) {
        if !listen.ip().is_loopback() {
            self.warning(
                key,
                format!(
                    "{listen} is reachable from other machines without authentication; \
                     keep it inside a trusted network"
                ),
            );
        }
    }

    /// The keys of a listener's TLS.
    fn tls(&mut self, section: &str, certificate: bool, key: bool, client_ca_file: bool) {
        if certificate != key {
            self.error(format!("{section}.tls_key"), "goes with tls_certificate; set both, or remove both");
        }
        if client_ca_file && !certificate {
            self.error(
                format!("{section}.tls_client_ca_file"),
                "needs tls_certificate and tls_key; set them, or remove it",
            );
        }
    }

    fn order(
        &mut self,
        low: &str,
        low_value: impl fmt::Display,
        relation: &str,
        high: &str,
        high_value: impl fmt::Display,
        why: &str,
    ) {
        self.error(
            low,
            format!(
                "{low_value} must be {relation} {high} ({high_value}): {why}; lower {low} or raise {high}"
            ),
        );
    }
}

/// Kafka's rule for topic names. librdkafka would also take a name that starts with `^` for a pattern.
fn check_topic(findings: &mut Findings, key: &str, topic: &str) {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let reserved = matches!(topic, "" | "." | "..");
    if reserved || topic.len() > 249 || !topic.bytes().all(legal) {
        findings.error(
            key,
            format!("{topic:?} is no topic name: use 1 to 249 letters, digits, '.', '_' and '-', not \".\" or \"..\""),
        );
    }
}

fn check_region(findings: &mut Findings, key: &str, region: &str) {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if region.is_empty() || !region.bytes().all(legal) {
        let example = "write one as in the server's address, for example \"eu-central-1\"";
        findings.error(key, format!("{region:?} is no region of AWS; {example}"));
    }
}

fn check_documents(findings: &mut Findings, config: &Config) {
    if let Err(error) = config.documents.location_path() {
        findings.error(error.key(), error.to_string());
    }
    if config.documents.max_bytes.bytes() == 0 {
        findings.error("documents.max_bytes", "must be above zero");
    }
    if config.batch.max_documents == 0 {
        findings.error("batch.max_documents", "must be at least 1");
    }
    if config.memory.cached_placements == 0 {
        findings.error("memory.cached_placements", "must be at least 1");
    }
}

fn check_times(findings: &mut Findings, config: &Config) {
    let request_timeout = ("elasticsearch.request_timeout", config.elasticsearch.request_timeout);
    let deadline = ("batch.timeout", config.batch.timeout);
    findings.below(request_timeout, deadline, "a batch has to outlive its requests to retry one");
    if config.elasticsearch.gc_deletes < config.batch.timeout.saturating_mul(2) {
        findings.order(
            deadline.0,
            format_duration(deadline.1),
            "at most half of",
            "elasticsearch.gc_deletes",
            format_duration(config.elasticsearch.gc_deletes),
            "a worker that has lost a partition may send for two deadlines, and could bring a deleted document back after \
             Elasticsearch forgot the delete's version",
        );
    }
    findings.below(
        ("batch.linger", config.batch.linger),
        ("batch.max_dirty_age", config.batch.max_dirty_age),
        "a document would be overdue before its batch is sent",
    );
    findings.at_most(
        ("shutdown.revoke_timeout", config.shutdown.revoke_timeout),
        deadline,
        "no batch runs longer than its deadline",
    );
    findings.at_most(
        request_timeout,
        ("shutdown.drain_timeout", config.shutdown.drain_timeout),
        "a stopping worker would leave before its last requests are answered",
    );
    findings.at_most(
        ("retry.initial_backoff", config.retry.initial_backoff),
        ("retry.max_backoff", config.retry.max_backoff),
        "the longest delay cannot be shorter than the first",
    );
    for (key, time) in
        [("retry.initial_backoff", config.retry.initial_backoff), ("commit.interval", config.commit.interval)]
    {
        if time.is_zero() {
            findings.error(key, "must be above zero, or the worker spins");
        }
    }
}

fn check_load(findings: &mut Findings, load: LoadConfig) {
    const SHORT: Duration = Duration::from_secs(5);
    const LONG: Duration = Duration::from_secs(3600);
    if load.is_on() && !(SHORT..=LONG).contains(&load.interval) {
        findings
            .error("load.interval", "must be \"5s\" to \"1h\", or \"0s\" to count nothing; \"60s\" is usual");
    }
    if !(4..=10).contains(&load.level) {
        findings.error("load.level", "must be 4 to 10; 7 is usual");
    }
}

fn check_moves(findings: &mut Findings, moves: &MovesConfig) {
    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(60);
    if moves.visibility == MoveVisibility::Search && moves.search_grace < SHORT {
        findings.warning(
            "moves.search_grace",
            "is shorter than a search over several geoshards may take, which could miss a document that moves; \"1s\" is usual",
        );
    }
    if moves.search_grace > LONG {
        findings.warning(
            "moves.search_grace",
            "old copies of documents that move stay for so long, and offsets wait; \"1s\" is usual",
        );
    }
}

fn check_sizes(findings: &mut Findings, config: &Config) {
    let document = ("documents.max_bytes", config.documents.max_bytes);
    let batch = ("batch.max_bytes", config.batch.max_bytes);
    let partition = ("memory.per_partition", config.memory.per_partition);
    findings.fits(document, batch, "the largest document has to fit into a batch");
    let request = ("elasticsearch.request_max_bytes", config.elasticsearch.request_max_bytes);
    findings.fits(document, request, "the largest document has to fit into a request");
    findings.fits(batch, partition, "a partition has to hold a whole batch");
    findings.fits(partition, ("memory.total", config.memory.total), "the worker holds all of its partitions");
}

fn check_dead_letters(findings: &mut Findings, config: &Config) {
    const KEY: &str = "dead_letter.topic";
    match (config.dead_letter.policy, &config.dead_letter.topic) {
        (DeadLetterPolicy::Topic, None) => findings.error(
            KEY,
            format!(
                "is required with policy = \"topic\"; for example \"{}-dead-letters\"",
                config.kafka.topic
            ),
        ),
        (DeadLetterPolicy::Topic, Some(topic)) if *topic == config.kafka.topic => {
            findings.error(KEY, "is the topic being read: bad records would return for ever; set another");
        }
        (DeadLetterPolicy::Topic, Some(topic)) => check_topic(findings, KEY, topic),
        (DeadLetterPolicy::Stop, Some(_)) => {
            findings
                .warning(KEY, "has no effect with policy = \"stop\"; set policy = \"topic\", or remove it");
        }
        (DeadLetterPolicy::Stop, None) => {}
    }
}

/// More concurrent requests than any cluster takes; probably a value for another key.
const MOST_IN_FLIGHT: usize = 10_000;

/// Shorter intervals would cost more than they help.
const LEAST_WATCH: Duration = Duration::from_millis(100);

fn check_edges(findings: &mut Findings, config: &Config) {
    if config.reload.interval.is_some_and(|watch| watch < LEAST_WATCH) {
        findings.error("reload.interval", "must be at least \"100ms\"; \"5s\" is usual");
    }
    findings.open_address("admin.listen", config.admin.listen);
    if let Err(error) = EnvFilter::try_new(&config.log.filter) {
        findings.error("log.filter", format!("{error}; write \"info\" or \"info,geofold=debug\""));
    }
}

#[cfg(test)]
mod tests;
