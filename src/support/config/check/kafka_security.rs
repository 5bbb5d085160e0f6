//! `[kafka]`: encryption, and how a client proves who it is.

use super::{Findings, check_region};
use crate::support::config::kafka::{KafkaConfig, SaslMechanism, SecurityProtocol};

const NO_SASL: &str =
    "has no effect; set security_protocol to \"sasl_ssl\" (or \"sasl_plaintext\"), or remove it";
const OF_PASSWORD: &str = "a mechanism with password";
const OF_ENDPOINT: &str = "the mechanism \"OAUTHBEARER\"";
const OF_MSK: &str = "the mechanism \"AWS_MSK_IAM\"";

pub(super) fn check(findings: &mut Findings, kafka: &KafkaConfig, has_tls: bool) {
    let protocol = kafka.security_protocol;
    let needs_openssl = protocol.uses_sasl()
        && kafka.sasl_mechanism.is_some_and(|mechanism| mechanism != SaslMechanism::Plain);
    if (protocol.uses_tls() || needs_openssl) && !has_tls {
        findings.error(
            "kafka.security_protocol",
            "TLS, SCRAM and tokens to Kafka are not in this build; build with `cargo build --release --features tls` \
             (needs libssl-dev and pkg-config)",
        );
    }
    if kafka.ssl_ca_file.is_some() && !protocol.uses_tls() {
        findings.error(
            "kafka.ssl_ca_file",
            "has no effect without TLS; set security_protocol to \"ssl\" or \"sasl_ssl\", or remove it",
        );
    }
    check_sasl(findings, kafka);
    let in_the_clear = protocol.uses_sasl() && !protocol.uses_tls();
    if in_the_clear && !kafka.brokers.iter().all(|broker| is_loopback_broker(broker)) {
        findings.warning(
            "kafka.security_protocol",
            "credentials and records are sent unencrypted; set it to \"sasl_ssl\"",
        );
    }
}

/// What each mechanism needs, and takes.
fn check_sasl(findings: &mut Findings, kafka: &KafkaConfig) {
    let uses_sasl = kafka.security_protocol.uses_sasl();
    match (kafka.sasl_mechanism, uses_sasl) {
        (None, true) => {
            findings.error("kafka.sasl_mechanism", "is required with the security protocols of SASL; set it");
        }
        (Some(_), false) => findings.error("kafka.sasl_mechanism", NO_SASL),
        (Some(_), true) | (None, false) => {}
    }
    let by_password = kafka.sasl_mechanism.is_none_or(SaslMechanism::uses_password);
    let by_endpoint = kafka.sasl_mechanism == Some(SaslMechanism::OauthBearer);
    let by_region = kafka.sasl_mechanism == Some(SaslMechanism::AwsMskIam);
    let required = [
        ("kafka.sasl_username", kafka.sasl_username.is_some(), by_password, OF_PASSWORD),
        ("kafka.sasl_password", kafka.sasl_password.is_some(), by_password, OF_PASSWORD),
        ("kafka.oauth_token_url", kafka.oauth_token_url.is_some(), by_endpoint, OF_ENDPOINT),
        ("kafka.oauth_client_id", kafka.oauth_client_id.is_some(), by_endpoint, OF_ENDPOINT),
        ("kafka.oauth_client_secret", kafka.oauth_client_secret.is_some(), by_endpoint, OF_ENDPOINT),
        ("kafka.aws_region", kafka.aws_region.is_some(), by_region, OF_MSK),
    ];
    let optional = [
        ("kafka.oauth_scope", kafka.oauth_scope.is_some(), by_endpoint, OF_ENDPOINT),
        ("kafka.oauth_ca_file", kafka.oauth_ca_file.is_some(), by_endpoint, OF_ENDPOINT),
    ];
    for (key, is_given, has_effect, with) in required {
        if !is_given && has_effect && uses_sasl {
            findings.error(key, format!("is required with {with}; set it"));
        }
    }
    for (key, is_given, has_effect, with) in required.into_iter().chain(optional) {
        if is_given && !uses_sasl {
            findings.error(key, NO_SASL);
        } else if is_given && !has_effect {
            findings.error(key, format!("has no effect without {with}; remove it"));
        }
    }
    findings.not_empty("kafka.sasl_password", kafka.sasl_password.as_ref());
    findings.not_empty("kafka.oauth_client_secret", kafka.oauth_client_secret.as_ref());
    if let Some(url) = &kafka.oauth_token_url
        && !url.uses_tls()
        && !url.is_loopback()
    {
        findings.error("kafka.oauth_token_url", "would send the client's secret unencrypted; use https");
    }
    if let Some(region) = &kafka.aws_region {
        check_region(findings, "kafka.aws_region", region);
    }
    if by_region && kafka.security_protocol == SecurityProtocol::SaslPlaintext {
        findings.error("kafka.security_protocol", "Amazon MSK with IAM needs \"sasl_ssl\"; set it");
    }
}

fn is_loopback_broker(broker: &str) -> bool {
    ["127.", "localhost:", "[::1]"].iter().any(|start| broker.starts_with(start)) || broker == "localhost"
}
