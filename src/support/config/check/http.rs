//! Checks of HTTP credentials, shared by `[schema_registry]` and `[source]`.

use reqwest::header::HeaderValue;

use super::Findings;
use crate::support::config::secret::Secret;

/// A user name with password, a bearer token, or neither.
pub(super) struct HttpCredentials<'a> {
    /// The section's name.
    pub(super) section: &'static str,
    pub(super) username: Option<&'a str>,
    pub(super) password: Option<&'a Secret>,
    pub(super) bearer_token: Option<&'a Secret>,
}

impl HttpCredentials<'_> {
    /// Whether a secret would be readable on the network.
    pub(super) fn are_secret(&self) -> bool {
        self.password.is_some() || self.bearer_token.is_some()
    }

    pub(super) fn check(&self, findings: &mut Findings) {
        let key = |name: &str| format!("{}.{name}", self.section);
        if self.bearer_token.is_some() && (self.username.is_some() || self.password.is_some()) {
            findings
                .error(key("bearer_token"), "give either a bearer token or username and password, not both");
        } else if self.username.is_some() != self.password.is_some() {
            findings.error(key("username"), "username and password go together; set both, or remove both");
        }
        for (name, secret) in [("password", self.password), ("bearer_token", self.bearer_token)] {
            findings.not_empty(key(name), secret);
            if secret.is_some_and(|secret| HeaderValue::try_from(secret.expose()).is_err()) {
                findings.error(key(name), "contains characters that are invalid in a header");
            }
        }
    }
}
