//! Logins to Kafka with tokens: what `[kafka]` says of them, and how it reaches librdkafka's clients.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::kafka::{KafkaConfig, SaslMechanism};

/// Where a client's tokens come from.
///
/// Clients carry it as librdkafka's setting `sasl.oauthbearer.config`, a secret one, since librdkafka hands that to whoever makes
/// tokens.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSource {
    /// An OAuth 2 token endpoint, with the client's own credentials (RFC 6749, 4.4).
    Endpoint(TokenEndpoint),
    /// Signed here, for Amazon MSK with IAM in this region.
    Msk {
        /// Such as `eu-central-1`.
        region: String,
    },
}

/// An OAuth 2 token endpoint.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenEndpoint {
    /// Its address.
    pub url: String,
    /// Who asks.
    pub client_id: String,
    /// The secret of the one who asks.
    pub client_secret: String,
    /// What the token is for; the endpoint's default if not given.
    pub scope: Option<String>,
    /// Certificates of the authorities that may sign the endpoint's certificate, PEM; the built-in ones if not given.
    pub ca_file: Option<PathBuf>,
}

impl TokenSource {
    /// That of a configuration; `None` if it logs in otherwise, or is not complete.
    pub(super) fn of(kafka: &KafkaConfig) -> Option<Self> {
        match kafka.sasl_mechanism? {
            SaslMechanism::Plain | SaslMechanism::ScramSha256 | SaslMechanism::ScramSha512 => None,
            SaslMechanism::OauthBearer => Some(Self::Endpoint(TokenEndpoint {
                url: kafka.oauth_token_url.as_ref()?.as_url().to_string(),
                client_id: kafka.oauth_client_id.clone()?,
                client_secret: kafka.oauth_client_secret.as_ref()?.expose().to_owned(),
                scope: kafka.oauth_scope.clone(),
                ca_file: kafka.oauth_ca_file.clone(),
            })),
            SaslMechanism::AwsMskIam => Some(Self::Msk { region: kafka.aws_region.clone()? }),
        }
    }

    /// As librdkafka's setting.
    pub(super) fn setting(&self) -> String {
        // Texts and paths of a configuration, which are UTF-8.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads librdkafka's setting. `None`: it is not geofold's.
    pub fn from_setting(setting: &str) -> Option<Self> {
        serde_json::from_str(setting).ok()
    }

    /// For errors and logs.
    pub fn name(&self) -> String {
        match self {
            Self::Endpoint(endpoint) => endpoint.url.clone(),
            Self::Msk { region } => format!("AWS credentials, for Amazon MSK in {region}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::config::{Config, Secret};

    #[test]
    fn a_source_travels_through_librdkafkas_settings_and_is_never_shown() {
        let mut config = Config::default();
        config.kafka.sasl_mechanism = Some(SaslMechanism::OauthBearer);
        config.kafka.oauth_token_url = "https://login.example.com/token".parse().ok();
        config.kafka.oauth_client_id = Some("geofold".to_owned());
        assert!(TokenSource::of(&config.kafka).is_none(), "without its secret");
        config.kafka.oauth_client_secret = Some(Secret::new("hunter2"));
        config.kafka.security_protocol = crate::support::config::SecurityProtocol::SaslSsl;

        let source = TokenSource::of(&config.kafka).unwrap();
        for properties in [config.consumer_properties(), config.producer_properties()] {
            assert_eq!(properties.get("sasl.mechanism"), Some("OAUTHBEARER"));
            let setting = properties.get("sasl.oauthbearer.config").unwrap();
            assert!(TokenSource::from_setting(setting).as_ref() == Some(&source));
            let shown = format!("{properties:?} {}", serde_json::to_string(&properties).unwrap());
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        assert_eq!(source.name(), "https://login.example.com/token");
        assert!(TokenSource::from_setting("principal=admin").is_none());
    }
}
