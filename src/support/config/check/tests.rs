//! Each rule, broken.

use std::num::NonZeroU16;

use super::kafka::MAX_POLL_KEY;
use super::*;
use crate::base::requests::MAX_PREFIX_BYTES;
use crate::support::config::{
    AwsService, GroupProtocol, LatLonFields, LocationFields, Properties, RouteCredentials, SaslMechanism,
    Secret, SecurityProtocol,
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
        (MAX_POLL_KEY, "milliseconds", |c| c.kafka.properties = with_property("max.poll.interval.ms", "5m")),
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
        ("elasticsearch.prefix", "64 at most", |c| c.elasticsearch.prefix = "u".repeat(MAX_PREFIX_BYTES + 1)),
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
        ("retry.initial_backoff", "retry.max_backoff", |c| c.retry.max_backoff = Duration::from_millis(99)),
        ("retry.initial_backoff", "spins", |c| c.retry.initial_backoff = Duration::ZERO),
        ("commit.interval", "spins", |c| c.commit.interval = Duration::ZERO),
        ("dead_letter.topic", "documents-dead-letters", |c| c.dead_letter.policy = DeadLetterPolicy::Topic),
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
        assert_eq!((findings[0].level, findings[0].key.as_str()), (Severity::Error, *key), "{findings:#?}");
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
        assert_eq!((findings[0].level, findings[0].key.as_str()), (Severity::Warning, *key), "{findings:#?}");
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
