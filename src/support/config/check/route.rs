//! The rules of `[route]`.

use std::time::Duration;

use super::Findings;
use crate::support::config::ByteSize;
use crate::support::config::route::{Route, RouteCredentials};
use crate::support::config::types::Config;

/// More searches at once than any cluster takes; a number that was meant for another key.
const MOST_CONCURRENT: usize = 10_000;

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let Route { listen, timeout, max_concurrent, max_queued, .. } = &config.route;
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
    if config.route.credentials == RouteCredentials::Own {
        findings.open_address("route.listen", *listen);
    }
    if config.route.credentials == RouteCredentials::Pass && config.elasticsearch.aws_region.is_some() {
        findings.error(
            "route.credentials",
            "\"pass\" does not go with elasticsearch.aws_region: a signature is for another address; use \"own\"",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Level, check};
    use super::*;

    #[test]
    fn every_rule_of_the_router_is_reported_at_its_key() {
        type Change = fn(&mut Config);
        let cases: &[(&str, &str, Level, Change)] = &[
            ("route.timeout", "at least", Level::Error, |c| c.route.timeout = Duration::ZERO),
            ("route.max_concurrent", "1 to", Level::Error, |c| c.route.max_concurrent = 0),
            ("route.max_queued", "0 to", Level::Error, |c| c.route.max_queued = 10_001),
            ("route.request_max_bytes", "1KiB", Level::Error, |c| {
                c.route.request_max_bytes = ByteSize::new(1)
            }),
            ("route.response_max_bytes", "1KiB", Level::Error, |c| {
                c.route.response_max_bytes = ByteSize::mib(257)
            }),
            ("route.listen", "authentication", Level::Warning, |c| {
                c.route.listen = "0.0.0.0:9466".parse().unwrap()
            }),
            ("route.credentials", "aws_region", Level::Error, |c| {
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
}
