//! The rules of `[route]`.

use std::time::Duration;

use super::Findings;
use crate::support::config::ByteSize;
use crate::support::config::route::{RouteConfig, RouteCredentials};
use crate::support::config::types::Config;

/// Less than a network takes.
const LEAST_HEDGE: Duration = Duration::from_millis(1);
/// More searches at once than any cluster takes; a number that was meant for another key.
const MOST_CONCURRENT: usize = 10_000;

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let RouteConfig { timeout, max_concurrent, max_queued, .. } = &config.route;
    if *timeout < Duration::from_millis(10) {
        findings.error("route.timeout", "must be at least \"10ms\"; \"10s\" is usual");
    }
    for (key, number, least) in
        [("route.max_concurrent", *max_concurrent, 1), ("route.max_queued", *max_queued, 0)]
    {
        if number < least || number > MOST_CONCURRENT {
            findings.error(key, format!("must be {least} to {MOST_CONCURRENT}"));
        }
    }
    for (key, size) in [
        ("route.request_max_bytes", config.route.request_max_bytes),
        ("route.response_max_bytes", config.route.response_max_bytes),
    ] {
        if size < ByteSize::new(1024) || size > ByteSize::mib(256) {
            findings.error(key, "must be 1KiB to 256MiB");
        }
    }
    check_listener(findings, &config.route);
    if let Some(after) = config.route.hedge_after
        && (after < LEAST_HEDGE || after >= *timeout)
    {
        findings.error(
            "route.hedge_after",
            "must be at least \"1ms\" and below route.timeout; the time that 95 of 100 searches take is usual",
        );
    }
    if config.route.credentials == RouteCredentials::Own {
        return;
    }
    if config.elasticsearch.aws_region.is_some() {
        findings.error(
            "route.credentials",
            "\"pass\" does not go with elasticsearch.aws_region: a signature is for another address; use \"own\"",
        );
    }
    if config.elasticsearch.client_cert_file.is_some() {
        findings.warning(
            "route.credentials",
            "with \"pass\", requests without credentials reach Elasticsearch with elasticsearch.client_cert_file alone; see \
             that no realm there takes it for a user",
        );
    }
}

/// Who can reach it, and what they can read on the way.
fn check_listener(findings: &mut Findings, route: &RouteConfig) {
    let has_tls = route.tls_certificate.is_some();
    findings.tls("route", has_tls, route.tls_key.is_some(), route.tls_client_ca_file.is_some());
    match route.credentials {
        RouteCredentials::Own if route.tls_client_ca_file.is_none() => {
            findings.open_address("route.listen", route.listen);
        }
        RouteCredentials::Pass if !has_tls && !route.listen.ip().is_loopback() => findings.warning(
            "route.listen",
            format!(
                "{} takes passwords from other machines without TLS; set tls_certificate and tls_key, or keep it behind a \
                 proxy that has",
                route.listen
            ),
        ),
        RouteCredentials::Own | RouteCredentials::Pass => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Severity, check};
    use super::*;

    #[test]
    fn every_rule_of_the_router_is_reported_at_its_key() {
        type Change = fn(&mut Config);
        let cases: &[(&str, &str, Severity, Change)] = &[
            ("route.timeout", "at least", Severity::Error, |c| c.route.timeout = Duration::ZERO),
            ("route.max_concurrent", "1 to", Severity::Error, |c| c.route.max_concurrent = 0),
            ("route.max_queued", "0 to", Severity::Error, |c| c.route.max_queued = 10_001),
            ("route.request_max_bytes", "1KiB", Severity::Error, |c| {
                c.route.request_max_bytes = ByteSize::new(1)
            }),
            ("route.response_max_bytes", "1KiB", Severity::Error, |c| {
                c.route.response_max_bytes = ByteSize::mib(257)
            }),
            ("route.listen", "authentication", Severity::Warning, |c| {
                c.route.listen = "0.0.0.0:9466".parse().unwrap()
            }),
            ("route.listen", "without TLS", Severity::Warning, |c| {
                c.route.listen = "0.0.0.0:9466".parse().unwrap();
                c.route.credentials = RouteCredentials::Pass;
            }),
            ("route.tls_key", "set both", Severity::Error, |c| c.route.tls_certificate = Some("a".into())),
            ("route.tls_key", "set both", Severity::Error, |c| c.route.tls_key = Some("a".into())),
            ("route.tls_client_ca_file", "tls_certificate", Severity::Error, |c| {
                c.route.tls_client_ca_file = Some("a".into());
            }),
            ("route.hedge_after", "at least", Severity::Error, |c| {
                c.route.hedge_after = Some(Duration::ZERO)
            }),
            ("route.hedge_after", "route.timeout", Severity::Error, |c| {
                c.route.hedge_after = Some(c.route.timeout);
            }),
            ("route.credentials", "aws_region", Severity::Error, |c| {
                c.route.credentials = RouteCredentials::Pass;
                c.elasticsearch.aws_region = Some("x".to_owned());
            }),
        ];
        for (key, says, level, change) in cases {
            let mut config = Config::default();
            change(&mut config);
            let findings = check(&config, true);
            let found = findings.iter().find(|finding| finding.key == *key && finding.message.contains(says));
            assert_eq!(found.map(|finding| finding.level), Some(*level), "{key}: {findings:?}");
        }
    }

    #[test]
    fn a_listener_that_asks_for_certificates_or_passes_credentials_by_tls_is_no_cause_for_warnings() {
        let mut config = Config::default();
        config.route.listen = "0.0.0.0:9466".parse().unwrap();
        config.route.tls_certificate = Some("certificate".into());
        config.route.tls_key = Some("key".into());
        let is_warned =
            |config: &Config| check(config, true).iter().any(|finding| finding.key == "route.listen");
        assert!(is_warned(&config), "TLS asks nobody who they are");
        config.route.credentials = RouteCredentials::Pass;
        assert!(!is_warned(&config));
        config.route.credentials = RouteCredentials::Own;
        config.route.tls_client_ca_file = Some("authorities".into());
        assert!(!is_warned(&config));
    }
}
