//! Checks `[elasticsearch]`.

use super::{Findings, MOST_IN_FLIGHT, check_region};
use crate::base::requests::MAX_PREFIX_BYTES;
use crate::support::config::elasticsearch::{AwsService, ElasticsearchConfig};
use crate::support::config::{ByteSize, ServerUrl};

pub(super) fn check(findings: &mut Findings, elasticsearch: &ElasticsearchConfig) {
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
    check_credentials(findings, elasticsearch);
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
