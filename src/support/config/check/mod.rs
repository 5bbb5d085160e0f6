//! Checks across keys. Pure; reports all findings at once.

mod audit;
mod campaigns;
mod counts;
mod distribution;
mod http;
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
use super::properties::{self, Properties};
use super::secret::Secret;
use super::server_url::ServerUrl;
use super::types::{AwsService, Config, DeadLetterPolicy, ElasticsearchConfig, GroupProtocol};
use crate::base::requests::MAX_PREFIX_BYTES;

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
    check_kafka(&mut findings, config);
    kafka_security::check(&mut findings, &config.kafka, has_tls);
    check_properties(&mut findings, config);
    check_elasticsearch(&mut findings, &config.elasticsearch);
    check_credentials(&mut findings, &config.elasticsearch);
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

fn check_kafka(findings: &mut Findings, config: &Config) {
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
}

const MAX_POLL_KEY: &str = "kafka.properties.max.poll.interval.ms";

/// librdkafka's default for `max.poll.interval.ms`.
const DEFAULT_MAX_POLL: Duration = Duration::from_secs(300);

/// The effective interval; an error with the text if it is not a number.
fn max_poll_interval(properties: &Properties) -> Result<Duration, &str> {
    let Some(text) = properties.get("max.poll.interval.ms") else { return Ok(DEFAULT_MAX_POLL) };
    text.trim().parse().map(Duration::from_millis).map_err(|_| text)
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

fn check_properties(findings: &mut Findings, config: &Config) {
    for (key, _) in &config.kafka.properties {
        if let Some(refusal) = properties::refusal_for_consumer(key) {
            findings.error(format!("kafka.properties.{key}"), refusal);
        }
    }
    for (key, _) in &config.kafka.producer_properties {
        if let Some(refusal) = properties::refusal_for_producer(key) {
            findings.error(format!("kafka.producer_properties.{key}"), refusal);
        }
    }
}

fn check_elasticsearch(findings: &mut Findings, elasticsearch: &ElasticsearchConfig) {
    if elasticsearch.nodes().is_empty() {
        findings.error("elasticsearch.urls", "names no server; write [\"http://host:9200\"]");
    }
    let prefix = elasticsearch.prefix.as_bytes();
    let legal = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(byte);
    let starts_well = prefix.first().is_some_and(u8::is_ascii_alphanumeric);
    if !starts_well || prefix.len() > MAX_PREFIX_BYTES || !prefix.iter().all(legal) {
        findings.error(
            "elasticsearch.prefix",
            format!(
                "{:?} cannot start an index name: use lower-case letters, digits, '-', '_' and '.', a letter or \
                 digit first, {MAX_PREFIX_BYTES} at most",
                elasticsearch.prefix
            ),
        );
    }
    let counts = [
        ("elasticsearch.max_in_flight", elasticsearch.max_in_flight),
        ("elasticsearch.request_max_operations", elasticsearch.request_max_operations),
    ];
    for (key, count) in counts {
        if count == 0 {
            findings.error(key, "must be at least 1");
        }
    }
    if elasticsearch.max_in_flight > MOST_IN_FLIGHT {
        findings.error("elasticsearch.max_in_flight", format!("must be at most {MOST_IN_FLIGHT}"));
    }
    if elasticsearch.request_timeout.is_zero() {
        findings.error("elasticsearch.request_timeout", "must be above zero");
    }
    if elasticsearch.request_max_bytes > ByteSize::mib(100) {
        findings.warning(
            "elasticsearch.request_max_bytes",
            "is above the 100MiB that Elasticsearch takes unless its http.max_content_length was raised; lower it",
        );
    }
}

fn check_credentials(findings: &mut Findings, elasticsearch: &ElasticsearchConfig) {
    let has_password = elasticsearch.password.is_some();
    let has_key = elasticsearch.api_key.is_some();
    if has_key && (has_password || elasticsearch.username.is_some()) {
        findings.error("elasticsearch.api_key", "give either an API key or username and password, not both");
    }
    match (&elasticsearch.username, has_password) {
        (Some(_), false) => {
            findings.error("elasticsearch.password", "is required with username; set it or password_file")
        }
        (None, true) => findings.error("elasticsearch.username", "is required with password; set it"),
        _ => {}
    }
    findings.not_empty("elasticsearch.password", elasticsearch.password.as_ref());
    findings.not_empty("elasticsearch.api_key", elasticsearch.api_key.as_ref());
    let has_region = elasticsearch.aws_region.is_some();
    if has_region && (has_password || has_key || elasticsearch.username.is_some()) {
        findings.error(
            "elasticsearch.aws_region",
            "requests are either signed for AWS or sent with a user name or an API key, not both; remove one",
        );
    }
    if let Some(region) = &elasticsearch.aws_region {
        check_region(findings, "elasticsearch.aws_region", region);
    } else if elasticsearch.aws_service != AwsService::Es {
        findings.error("elasticsearch.aws_service", "has no effect without aws_region; set it");
    }
    for url in elasticsearch.nodes() {
        if (has_password || has_key || has_region) && !url.uses_tls() && !url.is_loopback() {
            findings.warning(
                "elasticsearch.urls",
                format!("credentials are sent to {url} unencrypted; use https"),
            );
        }
    }
    let has_certificate = elasticsearch.client_cert_file.is_some();
    if has_certificate != elasticsearch.client_key_file.is_some() {
        findings
            .error("elasticsearch.client_key_file", "goes with client_cert_file; set both, or remove both");
    }
    if !elasticsearch.nodes().iter().any(ServerUrl::uses_tls) {
        for (key, given) in [
            ("elasticsearch.ca_file", elasticsearch.ca_file.is_some()),
            ("elasticsearch.client_cert_file", has_certificate),
        ] {
            if given {
                findings.warning(key, "has no effect with http; use https, or remove it");
            }
        }
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

/// Shorter intervals would cost more than they help.
const LEAST_WATCH: Duration = Duration::from_millis(100);

/// More concurrent requests than any cluster takes; probably a value for another key.
const MOST_IN_FLIGHT: usize = 10_000;

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
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::support::config::{
        LatLonFields, LocationFields, RouteCredentials, SaslMechanism, Secret, SecurityProtocol,
    };

    /// The findings about a default configuration that was changed.
    fn findings_after(change: impl FnOnce(&mut Config)) -> Vec<ConfigFinding> {
        let mut config = Config::default();
        change(&mut config);
        check(&config, true)
    }

    const SECONDS: fn(u64) -> Duration = Duration::from_secs;

    fn pair(lat: &str, lon: &str) -> LocationFields {
        LocationFields::Pair(LatLonFields { lat: lat.to_owned(), lon: lon.to_owned() })
    }

    fn with_property(key: &str, value: &str) -> Properties {
        toml::from_str(&format!("{key:?} = {value:?}")).unwrap()
    }

    fn with_tokens(config: &mut Config) {
        config.kafka.security_protocol = SecurityProtocol::SaslSsl;
        config.kafka.sasl_mechanism = Some(SaslMechanism::OauthBearer);
        config.kafka.oauth_token_url = "https://login.example.com/token".parse().ok();
        config.kafka.oauth_client_id = Some("geofold".into());
        config.kafka.oauth_client_secret = Some(Secret::new("s"));
    }

    #[test]
    fn tokens_of_both_kinds_need_no_password() {
        assert_eq!(findings_after(with_tokens), []);
        let of_msk = |config: &mut Config| {
            config.kafka.security_protocol = SecurityProtocol::SaslSsl;
            config.kafka.sasl_mechanism = Some(SaslMechanism::AwsMskIam);
            config.kafka.aws_region = Some("eu-central-1".into());
        };
        assert_eq!(findings_after(of_msk), []);
    }

    #[test]
    fn defaults_are_valid() {
        assert_eq!(findings_after(|_| ()), []);
    }

    #[test]
    fn each_rule_that_is_broken_is_an_error_at_its_key() {
        type Change = fn(&mut Config);
        let cases: &[(&str, &str, Change)] = &[
            ("kafka.brokers", "host:9092", |c| c.kafka.brokers.clear()),
            ("reload.interval", "at least", |c| c.reload.interval = Some(Duration::ZERO)),
            ("load.interval", "5s", |c| c.load.interval = SECONDS(4)),
            ("load.interval", "1h", |c| c.load.interval = SECONDS(3601)),
            ("load.level", "4 to 10", |c| c.load.level = 11),
            ("elasticsearch.max_in_flight", "at most", |c| c.elasticsearch.max_in_flight = 10_001),
            ("kafka.topic", "topic name", |c| c.kafka.topic = "^users.*".into()),
            ("kafka.group_id", "empty", |c| c.kafka.group_id.clear()),
            ("kafka.heartbeat_interval", "session_timeout", |c| c.kafka.heartbeat_interval = SECONDS(45)),
            ("kafka.heartbeat_interval", "1ms", |c| c.kafka.heartbeat_interval = Duration::from_micros(999)),
            ("kafka.session_timeout", "max.poll", |c| c.kafka.session_timeout = SECONDS(301)),
            ("shutdown.revoke_timeout", "kafka.session_timeout", |c| c.shutdown.revoke_timeout = SECONDS(45)),
            ("shutdown.revoke_timeout", "batch.timeout", |c| {
                c.batch.timeout = SECONDS(25);
                c.shutdown.revoke_timeout = SECONDS(26);
            }),
            ("shutdown.revoke_timeout", "max.poll", |c| {
                c.kafka.group_protocol = GroupProtocol::Consumer;
                c.kafka.properties = with_property("max.poll.interval.ms", "10000");
            }),
            (MAX_POLL_KEY, "milliseconds", |c| {
                c.kafka.properties = with_property("max.poll.interval.ms", "5m")
            }),
            ("kafka.properties.group.id", "kafka.group_id", |c| {
                c.kafka.properties = with_property("group.id", "x")
            }),
            ("kafka.producer_properties.acks", "in-sync", |c| {
                c.kafka.producer_properties = with_property("acks", "1");
            }),
            ("kafka.ssl_ca_file", "without TLS", |c| c.kafka.ssl_ca_file = Some("ca.pem".into())),
            ("kafka.sasl_username", "no effect", |c| c.kafka.sasl_username = Some("u".into())),
            ("kafka.sasl_password", "is empty", |c| {
                c.kafka.security_protocol = SecurityProtocol::SaslSsl;
                c.kafka.sasl_mechanism = Some(SaslMechanism::Plain);
                c.kafka.sasl_username = Some("u".into());
                c.kafka.sasl_password = Some(Secret::new(""));
            }),
            ("kafka.sasl_username", "without a mechanism with password", |c| {
                with_tokens(c);
                c.kafka.sasl_username = Some("u".into());
            }),
            ("kafka.oauth_client_id", "is required", |c| {
                with_tokens(c);
                c.kafka.oauth_client_id = None;
            }),
            ("kafka.oauth_client_secret", "is empty", |c| {
                with_tokens(c);
                c.kafka.oauth_client_secret = Some(Secret::new(""));
            }),
            ("kafka.oauth_token_url", "unencrypted", |c| {
                with_tokens(c);
                c.kafka.oauth_token_url = "http://login.example.com/token".parse().ok();
            }),
            ("kafka.aws_region", "without the mechanism", |c| {
                with_tokens(c);
                c.kafka.aws_region = Some("eu-central-1".into());
            }),
            ("kafka.aws_region", "no region", |c| {
                c.kafka.security_protocol = SecurityProtocol::SaslSsl;
                c.kafka.sasl_mechanism = Some(SaslMechanism::AwsMskIam);
                c.kafka.aws_region = Some("Frankfurt".into());
            }),
            ("kafka.security_protocol", "MSK", |c| {
                c.kafka.security_protocol = SecurityProtocol::SaslPlaintext;
                c.kafka.sasl_mechanism = Some(SaslMechanism::AwsMskIam);
                c.kafka.aws_region = Some("eu-central-1".into());
            }),
            ("kafka.oauth_scope", "security_protocol", |c| c.kafka.oauth_scope = Some("kafka".into())),
            ("elasticsearch.urls", "http://", |c| c.elasticsearch.urls.clear()),
            ("elasticsearch.prefix", "index name", |c| c.elasticsearch.prefix = "_Users".into()),
            ("elasticsearch.prefix", "64 at most", |c| {
                c.elasticsearch.prefix = "u".repeat(MAX_PREFIX_BYTES + 1)
            }),
            ("elasticsearch.max_in_flight", "at least 1", |c| c.elasticsearch.max_in_flight = 0),
            ("elasticsearch.request_max_operations", "1", |c| c.elasticsearch.request_max_operations = 0),
            ("elasticsearch.request_timeout", "zero", |c| c.elasticsearch.request_timeout = Duration::ZERO),
            ("elasticsearch.api_key", "not both", |c| {
                c.elasticsearch.username = Some("u".into());
                c.elasticsearch.password = Some(Secret::new("p"));
                c.elasticsearch.api_key = Some(Secret::new("k"));
            }),
            ("elasticsearch.password", "required", |c| c.elasticsearch.username = Some("u".into())),
            ("elasticsearch.username", "required", |c| c.elasticsearch.password = Some(Secret::new("p"))),
            ("elasticsearch.aws_region", "not both", |c| {
                c.elasticsearch.aws_region = Some("eu-central-1".into());
                c.elasticsearch.api_key = Some(Secret::new("k"));
            }),
            ("elasticsearch.aws_region", "no region", |c| {
                c.elasticsearch.aws_region = Some("Frankfurt".into());
            }),
            ("elasticsearch.aws_service", "aws_region", |c| c.elasticsearch.aws_service = AwsService::Aoss),
            ("elasticsearch.client_key_file", "set both", |c| {
                c.elasticsearch.client_key_file = Some("client.key".into());
            }),
            ("elasticsearch.client_key_file", "set both", |c| {
                c.elasticsearch.urls = vec!["https://localhost".parse().unwrap()];
                c.elasticsearch.client_cert_file = Some("client.pem".into());
            }),
            ("elasticsearch.api_key", "empty", |c| c.elasticsearch.api_key = Some(Secret::new(""))),
            ("documents.location", "field path", |c| c.documents.location = "a..b".into()),
            ("documents.location", "field path", |c| c.documents.location = pair("lat", "")),
            ("documents.location", "two fields", |c| c.documents.location = pair("a", "a")),
            ("documents.location", "two fields", |c| c.documents.location = pair("a.b", "a")),
            ("documents.point", "is required", |c| c.documents.location = pair("lat", "lon")),
            ("documents.point", "without dots", |c| c.documents.point = Some("a.b".into())),
            ("documents.point", "beginning with a letter", |c| c.documents.point = Some("_id".into())),
            ("documents.point", "letters", |c| c.documents.point = Some(String::new())),
            ("documents.point", "letters", |c| c.documents.point = Some("a\"b".into())),
            ("documents.point", "where the location is", |c| c.documents.point = Some("location".into())),
            ("documents.point", "where the location is", |c| {
                c.documents.location = pair("lat", "place.lon");
                c.documents.point = Some("place".into());
            }),
            ("documents.max_bytes", "zero", |c| c.documents.max_bytes = ByteSize::new(0)),
            ("documents.max_bytes", "batch.max_bytes", |c| c.batch.max_bytes = ByteSize::new(1000)),
            ("documents.max_bytes", "request_max_bytes", |c| {
                c.elasticsearch.request_max_bytes = ByteSize::new(1000);
            }),
            ("batch.max_documents", "at least 1", |c| c.batch.max_documents = 0),
            ("batch.max_bytes", "memory.per_partition", |c| c.batch.max_bytes = ByteSize::mib(17)),
            ("batch.linger", "batch.max_dirty_age", |c| c.batch.linger = SECONDS(10)),
            ("batch.timeout", "gc_deletes", |c| c.elasticsearch.gc_deletes = SECONDS(119)),
            ("elasticsearch.request_timeout", "batch.timeout", |c| c.batch.timeout = SECONDS(20)),
            ("elasticsearch.request_timeout", "shutdown.drain_timeout", |c| {
                c.shutdown.drain_timeout = SECONDS(19)
            }),
            ("memory.per_partition", "memory.total", |c| c.memory.total = ByteSize::mib(15)),
            ("memory.cached_placements", "at least 1", |c| c.memory.cached_placements = 0),
            ("retry.initial_backoff", "retry.max_backoff", |c| {
                c.retry.max_backoff = Duration::from_millis(99)
            }),
            ("retry.initial_backoff", "spins", |c| c.retry.initial_backoff = Duration::ZERO),
            ("commit.interval", "spins", |c| c.commit.interval = Duration::ZERO),
            ("dead_letter.topic", "documents-dead-letters", |c| {
                c.dead_letter.policy = DeadLetterPolicy::Topic
            }),
            ("dead_letter.topic", "for ever", |c| {
                c.dead_letter.policy = DeadLetterPolicy::Topic;
                c.dead_letter.topic = Some("documents".into());
            }),
            ("placements.primaries", "at most 1024", |c| {
                c.placements.primaries = NonZeroU16::new(1025).unwrap();
            }),
            ("placements.refresh_interval", "never", |c| {
                c.placements.refresh_interval = Some(Duration::from_millis(999));
            }),
            ("elasticsearch.gc_deletes", "placements.deleted_retention", |c| {
                c.placements.deleted_retention = SECONDS(600);
            }),
            ("audit.interval", "at least \"1s\"", |c| c.audit.interval = Some(Duration::from_millis(999))),
            ("log.filter", "geofold=debug", |c| c.log.filter = "geofold=loud".into()),
        ];
        for (key, text, change) in cases {
            let findings = findings_after(change);
            assert_eq!(findings.len(), 1, "{key} ({text}): {findings:#?}");
            assert_eq!(
                (findings[0].level, findings[0].key.as_str()),
                (Severity::Error, *key),
                "{findings:#?}"
            );
            assert!(findings[0].message.contains(text), "{text}: {}", findings[0]);
        }
    }

    #[test]
    fn questionable_settings_are_warnings() {
        type Change = fn(&mut Config);
        let cases: &[(&str, Change)] = &[
            ("kafka.security_protocol", |c| {
                c.kafka.brokers = vec!["kafka.example.com:9092".into()];
                c.kafka.security_protocol = SecurityProtocol::SaslPlaintext;
                c.kafka.sasl_mechanism = Some(SaslMechanism::ScramSha256);
                c.kafka.sasl_username = Some("u".into());
                c.kafka.sasl_password = Some(Secret::new("p"));
            }),
            ("elasticsearch.urls", |c| {
                c.elasticsearch.urls = vec!["http://search.example.com:9200".parse().unwrap()];
                c.elasticsearch.api_key = Some(Secret::new("k"));
            }),
            ("elasticsearch.ca_file", |c| c.elasticsearch.ca_file = Some("ca.pem".into())),
            ("elasticsearch.client_cert_file", |c| {
                c.elasticsearch.client_cert_file = Some("client.pem".into());
                c.elasticsearch.client_key_file = Some("client.key".into());
            }),
            ("route.credentials", |c| {
                c.elasticsearch.urls = vec!["https://localhost".parse().unwrap()];
                c.elasticsearch.client_cert_file = Some("client.pem".into());
                c.elasticsearch.client_key_file = Some("client.key".into());
                c.route.credentials = RouteCredentials::Pass;
            }),
            ("elasticsearch.request_max_bytes", |c| c.elasticsearch.request_max_bytes = ByteSize::mib(101)),
            ("dead_letter.topic", |c| c.dead_letter.topic = Some("bad".into())),
            ("admin.listen", |c| c.admin.listen = "0.0.0.0:9464".parse().unwrap()),
            ("moves.search_grace", |c| c.moves.search_grace = Duration::ZERO),
            ("moves.search_grace", |c| c.moves.search_grace = SECONDS(61)),
        ];
        for (key, change) in cases {
            let findings = findings_after(change);
            assert_eq!(findings.len(), 1, "{key}: {findings:#?}");
            assert_eq!(
                (findings[0].level, findings[0].key.as_str()),
                (Severity::Warning, *key),
                "{findings:#?}"
            );
        }
    }

    #[test]
    fn sasl_needs_all_of_its_keys() {
        let findings = findings_after(|c| c.kafka.security_protocol = SecurityProtocol::SaslSsl);
        let keys: Vec<_> = findings.iter().map(|finding| finding.key.as_str()).collect();
        assert_eq!(keys, ["kafka.sasl_mechanism", "kafka.sasl_username", "kafka.sasl_password"]);
    }

    #[test]
    fn a_build_without_tls_says_how_to_get_it() {
        let mut config = Config::default();
        config.kafka.security_protocol = SecurityProtocol::Ssl;
        assert_eq!(check(&config, true), []);
        let findings = check(&config, false);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].to_string().contains("--features tls"), "{}", findings[0]);
    }

    #[test]
    fn the_session_timeout_does_not_matter_to_the_consumer_protocol() {
        let findings = findings_after(|c| {
            c.kafka.group_protocol = GroupProtocol::Consumer;
            c.kafka.session_timeout = SECONDS(1);
        });
        assert_eq!(findings, []);
    }
}
