//! A text that must never be seen: every way of showing it prints `***`, and only [`Secret::expose`] gives it out.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Replacement for secrets in output.
pub const REDACTED: &str = "***";

/// A password or an API key.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a text as a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself. For the request that needs it; never for a log, an error or a page.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not `String::deserialize`: serde's error for `password = 12345` would quote the value.
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => Ok(Self(text)),
            _ => Err(serde::de::Error::custom("a secret must be a string: put it in quotes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_shown_by_expose_alone() {
        #[derive(Debug, Serialize, Deserialize)]
        struct Holder {
            password: Secret,
        }
        let holder: Holder = toml::from_str("password = 'hunter2'").unwrap();
        assert_eq!(holder.password.expose(), "hunter2");
        let shown = format!("{holder:?} {} {}", holder.password, toml::to_string(&holder).unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(shown.matches(REDACTED).count(), 3);
    }

    #[test]
    fn a_secret_of_the_wrong_type_is_not_quoted_in_the_error() {
        #[derive(Debug, Deserialize)]
        struct Holder {
            #[expect(dead_code, reason = "only its error is looked at")]
            password: Secret,
        }
        let error = toml::from_str::<Holder>("password = 12345").unwrap_err();
        assert!(error.message().contains("put it in quotes"));
        assert!(!error.message().contains("12345"));
    }
}
