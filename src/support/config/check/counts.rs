//! The rules of `[tally]`, `[database]` and `[collector]`.

use super::{Findings, check_topic};
use crate::support::config::byte_size::ByteSize;
use crate::support::config::counts::{CollectorConfig, DatabaseConfig, GEOSHARD_FACET, TallyConfig};
use crate::support::config::database_url::DatabaseUrl;
use crate::support::config::types::Config;

/// Maximum facets: each is looked up in every document.
const MAX_FACETS: usize = 32;
/// Values of one facet that may be kept in the cloud, which is read and written whole.
const MAX_TOP: usize = 10_000;
/// A longer value would not fit an index of PostgreSQL's together with its facet.
const MAX_VALUE_BYTES: ByteSize = ByteSize::new(2_000);
const MAX_FACET_NAME: usize = 64;

pub(super) fn check_counts(findings: &mut Findings, config: &Config) {
    check_tally(findings, &config.tally);
    check_topics(findings, config);
    check_database(findings, &config.database);
    check_collector(findings, &config.collector);
    check_listener(findings, &config.collector, config.campaigns.bearer_token.is_some());
}

fn check_tally(findings: &mut Findings, tally: &TallyConfig) {
    for (name, path) in &tally.facets {
        let key = format!("tally.facets.{name}");
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if name.is_empty() || name.len() > MAX_FACET_NAME || !name.bytes().all(legal) {
            let problem =
                format!("is no name for a facet: use 1 to {MAX_FACET_NAME} letters, digits, '_' and '-'");
            findings.error(key.clone(), problem);
        }
        if name == GEOSHARD_FACET {
            findings.error(
                key.clone(),
                "is the name of the built-in facet; set tally.geoshard = true for that one, or name yours otherwise",
            );
        }
        if path.split('.').any(|name| name.trim().is_empty()) {
            let problem =
                format!("{path:?} is no path of field names; write \"tags\" or \"profile.interests\"");
            findings.error(key, problem);
        }
    }
    if tally.facets.len() > MAX_FACETS {
        findings.error("tally.facets", format!("has more than {MAX_FACETS} facets; leave some out"));
    }
    if tally.emit_interval.is_zero() {
        findings.error("tally.emit_interval", "must be above zero, or the worker spins");
    }
    if tally.max_values == 0 {
        findings.error("tally.max_values", "must be at least 1");
    }
    if tally.max_value_bytes.bytes() == 0 || tally.max_value_bytes > MAX_VALUE_BYTES {
        findings.error("tally.max_value_bytes", format!("must be 1 to {MAX_VALUE_BYTES}"));
    }
}

/// Every topic needs a different name.
fn check_topics(findings: &mut Findings, config: &Config) {
    let increments = config.increments_topic();
    const INCREMENTS: &str = "tally.topic";
    const NOTIFY: &str = "collector.notify_topic";
    if config.tally.topic.is_some() {
        check_topic(findings, INCREMENTS, &increments);
    }
    if let Some(notify) = &config.collector.notify_topic {
        check_topic(findings, NOTIFY, notify);
    }
    let mut others = vec![("kafka.topic", &config.kafka.topic)];
    others.extend(config.dead_letter.topic.as_ref().map(|topic| ("dead_letter.topic", topic)));
    for (key, topic) in &others {
        if **topic == increments {
            findings.error(INCREMENTS, format!("is also {key}; increments need a topic of their own"));
        }
    }
    others.push((INCREMENTS, &increments));
    for (key, topic) in &others {
        if config.collector.notify_topic.as_ref() == Some(topic) {
            findings.error(NOTIFY, format!("is also {key}; name another"));
        }
    }
}

fn check_database(findings: &mut Findings, database: &DatabaseConfig) {
    if database.timeout.is_zero() {
        findings.error("database.timeout", "must be above zero");
    }
    if database.max_connections < 2 {
        findings.error("database.max_connections", "must be at least 2: one merges, one answers questions");
    }
    findings.not_empty("database.password", database.password.as_ref());
    match &database.url {
        DatabaseUrl::Sqlite(_) => {
            if database.password.is_some() {
                findings.error("database.password", "has no meaning with SQLite; remove it");
            }
            if database.ca_file.is_some() {
                findings.warning("database.ca_file", "has no effect with SQLite; remove it");
            }
        }
        DatabaseUrl::Postgres(url) => {
            if !url.is_loopback() && !url.ssl_mode().insists() {
                findings.warning(
                    "database.url",
                    format!("the connection to {} may be unencrypted; add ?sslmode=verify-full", url.host()),
                );
            }
        }
    }
}

fn check_collector(findings: &mut Findings, collector: &CollectorConfig) {
    let times = [
        ("collector.merge_interval", collector.merge_interval),
        ("collector.takeover_timeout", collector.takeover_timeout),
    ];
    for (key, time) in times {
        if time.is_zero() {
            findings.error(key, "must be above zero, or the collector spins");
        }
    }
    if collector.merge_interval * 2 > collector.takeover_timeout {
        findings.error(
            "collector.takeover_timeout",
            "must be at least twice collector.merge_interval, or a standby would take over between two merges; \
             raise it, or lower collector.merge_interval",
        );
    }
    if collector.group_id.as_deref() == Some("") {
        findings.error("collector.group_id", "is empty; name a group, or remove it");
    }
    if collector.max_increments == 0 {
        findings.error("collector.max_increments", "must be at least 1");
    }
    if collector.max_bytes < ByteSize::mib(1) {
        findings.error("collector.max_bytes", "must be at least 1MiB");
    }
    if collector.top == 0 || collector.top > MAX_TOP {
        findings.error("collector.top", format!("must be 1 to {MAX_TOP}"));
    }
    if collector.keep_versions == 0 {
        findings.error("collector.keep_versions", "must be at least 1");
    }
}

/// Who can reach it, and what they can read on the way.
fn check_listener(findings: &mut Findings, collector: &CollectorConfig, takes_campaigns: bool) {
    let has_tls = collector.tls_certificate.is_some();
    let asks_for_certificates = collector.tls_client_ca_file.is_some();
    findings.tls("collector", has_tls, collector.tls_key.is_some(), asks_for_certificates);
    if !asks_for_certificates {
        findings.open_address("collector.listen", collector.listen);
    }
    if takes_campaigns && !has_tls && !collector.listen.ip().is_loopback() {
        findings.warning(
            "collector.listen",
            format!(
                "{} takes campaigns.bearer_token from other machines without TLS; set tls_certificate and tls_key, or keep \
                 it behind a proxy that has",
                collector.listen
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Severity, check};
    use super::*;
    use crate::support::config::Secret;

    #[test]
    fn every_rule_of_counts_is_reported_at_its_key() {
        type Change = fn(&mut Config);
        fn facet(config: &mut Config, name: &str, path: &str) {
            config.tally.facets.insert(name.to_owned(), path.to_owned());
        }
        let cases: &[(&str, &str, Severity, Change)] = &[
            ("tally.facets.a b", "letters", Severity::Error, |c| facet(c, "a b", "tags")),
            ("tally.facets.geoshard", "tally.geoshard", Severity::Error, |c| facet(c, "geoshard", "tags")),
            ("tally.facets.tags", "field names", Severity::Error, |c| facet(c, "tags", "a..b")),
            ("tally.facets", "more than 32", Severity::Error, |c| {
                (0..33).for_each(|number| facet(c, &format!("f{number}"), "tags"));
            }),
            ("tally.emit_interval", "spins", Severity::Error, |c| c.tally.emit_interval = Duration::ZERO),
            ("tally.max_values", "at least 1", Severity::Error, |c| c.tally.max_values = 0),
            ("tally.max_value_bytes", "1 to", Severity::Error, |c| {
                c.tally.max_value_bytes = ByteSize::mib(1)
            }),
            ("tally.topic", "no topic name", Severity::Error, |c| c.tally.topic = Some("a b".into())),
            ("tally.topic", "kafka.topic", Severity::Error, |c| c.tally.topic = Some(c.kafka.topic.clone())),
            ("collector.notify_topic", "tally.topic", Severity::Error, |c| {
                c.collector.notify_topic = Some(c.increments_topic());
            }),
            ("database.timeout", "above zero", Severity::Error, |c| c.database.timeout = Duration::ZERO),
            ("database.max_connections", "at least 2", Severity::Error, |c| c.database.max_connections = 1),
            ("database.password", "SQLite", Severity::Error, |c| {
                c.database.password = Some(Secret::new("hunter2"));
            }),
            ("database.ca_file", "SQLite", Severity::Warning, |c| c.database.ca_file = Some("ca.pem".into())),
            ("database.url", "verify-full", Severity::Warning, |c| {
                c.database.url = "postgres://g@db.example.com/g".parse().unwrap();
            }),
            ("collector.takeover_timeout", "twice", Severity::Error, |c| {
                c.collector.takeover_timeout = Duration::from_secs(1);
            }),
            ("collector.group_id", "empty", Severity::Error, |c| c.collector.group_id = Some(String::new())),
            ("collector.max_increments", "at least 1", Severity::Error, |c| c.collector.max_increments = 0),
            ("collector.max_bytes", "1MiB", Severity::Error, |c| c.collector.max_bytes = ByteSize::new(1)),
            ("collector.top", "1 to 10000", Severity::Error, |c| c.collector.top = 10_001),
            ("collector.keep_versions", "at least 1", Severity::Error, |c| c.collector.keep_versions = 0),
            ("collector.listen", "authentication", Severity::Warning, |c| {
                c.collector.listen = "0.0.0.0:9465".parse().unwrap();
            }),
            ("collector.tls_key", "set both", Severity::Error, |c| c.collector.tls_key = Some("a".into())),
        ];
        for (key, text, level, change) in cases {
            let mut config = Config::default();
            change(&mut config);
            let findings = check(&config, true);
            assert_eq!(findings.len(), 1, "{key} ({text}): {findings:#?}");
            assert_eq!((findings[0].level, findings[0].key.as_str()), (*level, *key), "{findings:#?}");
            assert!(findings[0].message.contains(text), "{text}: {}", findings[0]);
            assert!(!findings[0].to_string().contains("hunter2"));
        }
    }

    #[test]
    fn a_collector_that_others_reach_has_tls_for_the_token_and_certificates_for_the_rest() {
        let warnings = |change: fn(&mut CollectorConfig)| {
            let mut config = Config::default();
            config.campaigns.bearer_token = Some(Secret::new("x"));
            config.collector.listen = "0.0.0.0:9465".parse().unwrap();
            change(&mut config.collector);
            let findings = check(&config, true).into_iter();
            findings.map(|finding| (finding.key, finding.message)).collect::<Vec<_>>()
        };
        fn with_tls(collector: &mut CollectorConfig) {
            collector.tls_certificate = Some("certificate".into());
            collector.tls_key = Some("key".into());
        }
        let [(key, about_others), (other_key, about_tls)] = &warnings(|_| ())[..] else { panic!() };
        assert_eq!((key.as_str(), other_key.as_str()), ("collector.listen", "collector.listen"));
        assert!(about_others.contains("authentication") && about_tls.contains("without TLS"), "{about_tls}");
        assert_eq!(warnings(with_tls), [(key.clone(), about_others.clone())]);
        let asks = |collector: &mut CollectorConfig| {
            with_tls(collector);
            collector.tls_client_ca_file = Some("authorities".into());
        };
        assert_eq!(warnings(asks), []);
    }

    #[test]
    fn a_server_with_tls_or_on_this_machine_needs_no_warning() {
        for url in ["postgres://g@db.example.com/g?sslmode=verify-full", "postgres://g@127.0.0.1/g"] {
            let mut config = Config::default();
            config.database.url = url.parse().unwrap();
            config.database.password = Some(Secret::new("x"));
            assert_eq!(check(&config, true), []);
        }
    }
}
