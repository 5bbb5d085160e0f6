//! Checks `[schema_registry]` and the forms of keys and values.

use super::Findings;
use super::http::HttpCredentials;
use crate::support::config::registry::{KeyForm, SchemaRegistryConfig};
use crate::support::config::types::Config;

/// A record may need two at once, for key and value, and so may its neighbours.
const MIN_CACHED_SCHEMAS: usize = 10;

pub(super) fn check(findings: &mut Findings, config: &Config) {
    check_keys(findings, config);
    let registry = &config.schema_registry;
    if !config.reads_registry() {
        if *registry != SchemaRegistryConfig::default() {
            findings.error(
                "schema_registry.urls",
                "nothing is read by the registry; set kafka.format or kafka.key to \"registry\", or remove the section",
            );
        }
        return;
    }
    if registry.urls.is_empty() {
        findings.error(
            "schema_registry.urls",
            "is required with the form \"registry\" in kafka.format or kafka.key; write [\"http://host:8081\"]",
        );
    }
    if registry.request_timeout.is_zero() {
        findings.error("schema_registry.request_timeout", "must be above zero");
    }
    if registry.cached_schemas < MIN_CACHED_SCHEMAS {
        findings.error("schema_registry.cached_schemas", format!("must be at least {MIN_CACHED_SCHEMAS}"));
    }
    check_credentials(findings, registry);
}

/// Components that write to the topic use plain ids as keys. With another key form such records would land in another
/// partition, and two workers would act on one document.
fn check_keys(findings: &mut Findings, config: &Config) {
    let form = &config.kafka.key;
    if *form == KeyForm::Text {
        return;
    }
    let why = format!(
        "writes records whose keys are plain ids, and kafka.key is \"{form}\": they would be in other partitions than the \
         topic's own; remove it, or have the producers write plain ids and set kafka.key = \"text\""
    );
    if config.audit.interval.is_some() && config.audit.repair {
        findings.error("audit.repair", why.clone());
    }
    if !config.campaigns.periodic.is_empty() {
        findings.error("campaigns.periodic", why);
    }
}

fn check_credentials(findings: &mut Findings, registry: &SchemaRegistryConfig) {
    let credentials = HttpCredentials {
        section: "schema_registry",
        username: registry.username.as_deref(),
        password: registry.password.as_ref(),
        bearer_token: registry.bearer_token.as_ref(),
    };
    credentials.check(findings);
    for url in &registry.urls {
        if credentials.are_secret() && !url.uses_tls() && !url.is_loopback() {
            findings.warning(
                "schema_registry.urls",
                format!("{url}: credentials are sent unencrypted; use https"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::support::config::{ConfigFinding, RecordFormat, Secret};

    fn findings_after(change: impl FnOnce(&mut Config)) -> Vec<ConfigFinding> {
        let mut config = Config::default();
        change(&mut config);
        let mut findings = Findings(Vec::new());
        check(&mut findings, &config);
        findings.0
    }

    fn registry(config: &mut Config) {
        config.kafka.format = RecordFormat::Registry;
        config.schema_registry.urls = vec!["https://registry:8081".parse().unwrap()];
    }

    #[test]
    fn registry_url_is_enough() {
        assert_eq!(findings_after(|_| {}), []);
        assert_eq!(findings_after(registry), []);
    }

    #[test]
    fn missing_or_contradictory_settings_are_found() {
        type Change = fn(&mut Config);
        let cases: [(Change, &str, &str); 11] = [
            (|c| c.schema_registry.urls.clear(), "schema_registry.urls", "required"),
            (|c| c.kafka.format = RecordFormat::Json, "schema_registry.urls", "nothing is read"),
            (|c| c.schema_registry.cached_schemas = 9, "schema_registry.cached_schemas", "10"),
            (
                |c| c.schema_registry.request_timeout = Duration::ZERO,
                "schema_registry.request_timeout",
                "above zero",
            ),
            (|c| c.schema_registry.username = Some("u".into()), "schema_registry.username", "together"),
            (
                |c| {
                    c.schema_registry.password = Some(Secret::new("p"));
                    c.schema_registry.username = Some("u".into());
                    c.schema_registry.bearer_token = Some(Secret::new("t"));
                },
                "schema_registry.bearer_token",
                "not both",
            ),
            (
                |c| c.schema_registry.bearer_token = Some(Secret::new("")),
                "schema_registry.bearer_token",
                "is empty",
            ),
            (
                |c| c.schema_registry.bearer_token = Some(Secret::new("a\nb")),
                "schema_registry.bearer_token",
                "characters",
            ),
            (
                |c| {
                    c.schema_registry.urls = vec!["http://registry:8081".parse().unwrap()];
                    c.schema_registry.bearer_token = Some(Secret::new("t"));
                },
                "schema_registry.urls",
                "unencrypted",
            ),
            (
                |c| {
                    c.kafka.key = KeyForm::Json("id".into());
                    c.audit.interval = Some(Duration::from_secs(3600));
                    c.audit.repair = true;
                },
                "audit.repair",
                "json:id",
            ),
            (
                |c| {
                    c.kafka.key = KeyForm::Registry(None);
                    c.campaigns.periodic = vec![crate::support::config::campaigns::PeriodicCampaign {
                        name: "n".into(),
                        interval: Duration::from_secs(3600),
                        action: crate::ops::campaign::CampaignAction::Touch,
                        what: crate::support::config::campaigns::CampaignDocuments::All,
                        rate: None,
                    }];
                },
                "campaigns.periodic",
                "other partitions",
            ),
        ];
        for (change, key, words) in cases {
            let findings = findings_after(|config| {
                registry(config);
                change(config);
            });
            let [finding] = &findings[..] else { panic!("{key}: {findings:?}") };
            assert!(finding.key == key && finding.message.contains(words), "{finding}");
        }
    }
}
