//! Checks `[source]`.

use reqwest::header::{HeaderName, HeaderValue};

use super::http::HttpCredentials;
use super::{Findings, MOST_IN_FLIGHT};
use crate::base::ids::DocId;
use crate::support::config::source::{SourceConfig, SourceKind, SourceUrl};
use crate::support::config::types::{Config, OnMissing};

/// Larger arrays do not speed up PostgreSQL, and a failure costs a whole batch.
const MAX_BATCH: usize = 10_000;

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let source = &config.source;
    if config.documents.on_missing == Some(OnMissing::Refeed) && source.kind.is_none() {
        findings.error(
            "documents.on_missing",
            "\"refeed\" needs a source of truth; set source.kind, or another on_missing",
        );
    }
    let Some(kind) = source.kind else {
        if *source != SourceConfig::default() {
            findings.error("source.kind", "is required in [source]; set it to \"http\" or \"postgresql\"");
        }
        return;
    };
    check_url(findings, source, kind);
    check_foreign(findings, source, kind);
    check_credentials(findings, source, kind);
    if source.batch_size == 0 || source.batch_size > MAX_BATCH {
        findings.error("source.batch_size", format!("must be 1 to {MAX_BATCH}"));
    }
    if source.max_in_flight == 0 {
        findings.error("source.max_in_flight", "must be at least 1");
    }
    if source.max_in_flight > MOST_IN_FLIGHT {
        findings.error("source.max_in_flight", format!("must be at most {MOST_IN_FLIGHT}"));
    }
    if source.request_timeout.is_zero() {
        findings.error("source.request_timeout", "must be above zero");
    }
    let document = ("documents.max_bytes", config.documents.max_bytes);
    findings.fits(
        document,
        ("source.max_bytes", source.max_bytes),
        "the largest document has to fit into what may be fetched",
    );
    if kind == SourceKind::Http && source.probe_id.is_none() {
        findings.error(
            "source.probe_id",
            "is required with kind = \"http\": set it to the id of a document that exists; a 404 for another one is believed \
             only while this one is found",
        );
    }
    if let Some(Err(bad)) = source.probe_id.as_ref().map(|id| DocId::from_key(Some(id.as_bytes()))) {
        findings.error("source.probe_id", format!("is no document's id: {bad}"));
    }
}

fn credentials(source: &SourceConfig) -> HttpCredentials<'_> {
    HttpCredentials {
        section: "source",
        username: source.username.as_deref(),
        password: source.password.as_ref(),
        bearer_token: source.bearer_token.as_ref(),
    }
}

fn check_url(findings: &mut Findings, source: &SourceConfig, kind: SourceKind) {
    let has_secrets = credentials(source).are_secret() || !source.headers.is_empty();
    match (kind, &source.url) {
        (SourceKind::Http, None) => {
            findings.error("source.url", "is required; write \"https://host/documents/{id}\"");
        }
        (SourceKind::Postgresql, None) => {
            findings.error("source.url", "is required; write \"postgres://user@host:5432/database\"");
        }
        (SourceKind::Http, Some(SourceUrl::Http(template))) => {
            if has_secrets && !template.uses_tls() && !template.is_loopback() {
                findings.warning("source.url", "credentials and headers are sent unencrypted; use https");
            }
        }
        (SourceKind::Postgresql, Some(SourceUrl::Postgres(url))) => {
            if !url.is_loopback() && !url.ssl_mode().insists() {
                findings.warning(
                    "source.url",
                    format!("the connection to {} may be unencrypted; add ?sslmode=verify-full", url.host()),
                );
            }
        }
        (SourceKind::Http, Some(SourceUrl::Postgres(_))) => {
            findings.error("source.url", "is the address of a database; set kind = \"postgresql\"");
        }
        (SourceKind::Postgresql, Some(SourceUrl::Http(_))) => {
            findings.error("source.url", "is the address of a web server; set kind = \"http\"");
        }
    }
}

/// A key of the other kind would be ignored, and its author would not know.
fn check_foreign(findings: &mut Findings, source: &SourceConfig, kind: SourceKind) {
    match kind {
        SourceKind::Http => {
            if source.query.is_some() {
                findings.error("source.query", "applies only to kind = \"postgresql\"; remove it");
            }
        }
        SourceKind::Postgresql => {
            for (key, is_given) in [
                ("source.headers", !source.headers.is_empty()),
                ("source.username", source.username.is_some()),
                ("source.bearer_token", source.bearer_token.is_some()),
            ] {
                if is_given {
                    findings.error(key, "applies only to kind = \"http\"; remove it");
                }
            }
            match &source.query {
                None => findings.error(
                    "source.query",
                    "is required; write \"SELECT id, document FROM documents WHERE id = ANY($1)\"",
                ),
                Some(query) if !query.contains("$1") => {
                    findings.error(
                        "source.query",
                        "has no $1, the array of ids; write \"... WHERE id = ANY($1)\"",
                    );
                }
                Some(_) => {}
            }
        }
    }
}

fn check_credentials(findings: &mut Findings, source: &SourceConfig, kind: SourceKind) {
    match kind {
        SourceKind::Http => credentials(source).check(findings),
        SourceKind::Postgresql => findings.not_empty("source.password", source.password.as_ref()),
    }
    for (header, value) in &source.headers {
        // The value is not quoted: it may be a secret.
        if HeaderName::try_from(header).is_err() || HeaderValue::try_from(value.expose()).is_err() {
            findings.error(
                "source.headers",
                format!(
                    "the header {header:?} or its value contains characters that are invalid in a header"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::config::{ByteSize, ConfigFinding, Secret};

    fn findings_after(change: impl FnOnce(&mut Config)) -> Vec<ConfigFinding> {
        let mut config = Config::default();
        change(&mut config);
        let mut findings = Findings(Vec::new());
        check(&mut findings, &config);
        findings.0
    }

    fn http(config: &mut Config) {
        config.source.kind = Some(SourceKind::Http);
        config.source.url = Some("https://host/{id}".parse().unwrap());
        config.source.probe_id = Some("a".to_owned());
    }

    fn postgres(config: &mut Config) {
        config.source.kind = Some(SourceKind::Postgresql);
        config.source.url = Some("postgres://u@127.0.0.1/d".parse().unwrap());
        config.source.query = Some("SELECT id, d FROM t WHERE id = ANY($1)".to_owned());
    }

    #[test]
    fn each_rule_that_is_broken_is_found_at_its_key() {
        type Change = fn(&mut Config);
        assert_eq!(findings_after(http), []);
        assert_eq!(findings_after(postgres), []);
        let cases: &[(&str, &str, Change, Change)] = &[
            (
                "documents.on_missing",
                "source.kind",
                |_| (),
                |c| {
                    c.documents.on_missing = Some(OnMissing::Refeed);
                },
            ),
            ("source.kind", "required", http, |c| c.source.kind = None),
            ("source.url", "{id}", http, |c| c.source.url = None),
            ("source.url", "postgres://", postgres, |c| c.source.url = None),
            ("source.url", "postgresql", http, |c| c.source.url = Some("postgres://u@h/d".parse().unwrap())),
            ("source.url", "\"http\"", postgres, |c| c.source.url = Some("http://h/{id}".parse().unwrap())),
            ("source.url", "verify-full", postgres, |c| {
                c.source.url = Some("postgres://u@db.example.com/d".parse().unwrap());
            }),
            ("source.url", "https", http, |c| {
                c.source.url = Some("http://example.com/{id}".parse().unwrap());
                c.source.bearer_token = Some(Secret::new("t"));
            }),
            ("source.query", "required", postgres, |c| c.source.query = None),
            ("source.query", "no $1", postgres, |c| c.source.query = Some("SELECT 1, 2".to_owned())),
            ("source.query", "postgresql", http, |c| c.source.query = Some("$1".to_owned())),
            ("source.username", "http", postgres, |c| c.source.username = Some("u".to_owned())),
            ("source.username", "both", http, |c| c.source.username = Some("u".to_owned())),
            ("source.bearer_token", "not both", http, |c| {
                c.source.bearer_token = Some(Secret::new("t"));
                c.source.password = Some(Secret::new("p"));
            }),
            ("source.password", "empty", postgres, |c| c.source.password = Some(Secret::new(""))),
            ("source.headers", "characters", http, |c| {
                c.source.headers.insert("x".to_owned(), Secret::new("hunter2\n"));
            }),
            ("source.batch_size", "1 to", postgres, |c| c.source.batch_size = 0),
            ("source.max_in_flight", "at least 1", http, |c| c.source.max_in_flight = 0),
            ("source.max_in_flight", "at most", http, |c| c.source.max_in_flight = 10_001),
            ("source.request_timeout", "zero", http, |c| {
                c.source.request_timeout = std::time::Duration::ZERO
            }),
            ("documents.max_bytes", "source.max_bytes", http, |c| c.source.max_bytes = ByteSize::new(1)),
            ("source.probe_id", "exists", http, |c| c.source.probe_id = None),
            ("source.probe_id", "no document's id", http, |c| c.source.probe_id = Some(String::new())),
        ];
        for (key, text, base, change) in cases {
            let findings = findings_after(|config| {
                base(config);
                change(config);
            });
            assert_eq!(findings.len(), 1, "{key} ({text}): {findings:#?}");
            assert_eq!(findings[0].key, *key);
            assert!(findings[0].message.contains(text), "{text}: {}", findings[0]);
            assert!(!findings[0].message.contains("hunter2"));
        }
    }
}
