//! `[schema_registry]`, and the forms of keys and values that a record may have.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::secret::Secret;
use super::server_url::ServerUrl;

/// `[schema_registry]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchemaRegistry {
    /// Where it is; several are asked one after the other until one answers. Required with the form `registry`.
    pub urls: Vec<ServerUrl>,
    /// User name for basic authentication.
    pub username: Option<String>,
    /// Password, given here or read from [`SchemaRegistry::password_file`].
    pub password: Option<Secret>,
    /// File that holds the password.
    pub password_file: Option<PathBuf>,
    /// Bearer token, given here or read from [`SchemaRegistry::bearer_token_file`].
    pub bearer_token: Option<Secret>,
    /// File that holds the bearer token.
    pub bearer_token_file: Option<PathBuf>,
    /// Certificates of the authorities that may sign the server's certificate, PEM; the built-in ones if not given.
    pub ca_file: Option<PathBuf>,
    /// A request without its whole answer after this time has failed.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Schemas that a worker keeps, at most; the one that was not read for the longest time goes first.
    pub cached_schemas: usize,
}

impl Default for SchemaRegistry {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            username: None,
            password: None,
            password_file: None,
            bearer_token: None,
            bearer_token_file: None,
            ca_file: None,
            request_timeout: Duration::from_secs(10),
            cached_schemas: 1_000,
        }
    }
}

/// How a record's value is written, if it has no header `geofold-op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// JSON, as it is.
    Json,
    /// Avro, JSON Schema or Protobuf in Confluent's wire format; which of them, the registry says.
    Registry,
}

/// How a record's key holds the document's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KeyForm {
    /// `text`: it is the id.
    Text,
    /// `json:FIELD`: a JSON object has it in this field.
    Json(String),
    /// `registry` or `registry:FIELD`: in Confluent's wire format, a value by itself, or an object with this field.
    Registry(Option<String>),
}

/// Why a text names no form of a key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no form of a key: write \"text\", \"json:FIELD\", \"registry\" or \"registry:FIELD\"")]
pub struct BadKeyForm(String);

impl FromStr for KeyForm {
    type Err = BadKeyForm;

    fn from_str(text: &str) -> Result<Self, BadKeyForm> {
        let (form, field) = text.split_once(':').map_or((text, None), |(form, field)| (form, Some(field)));
        match (form, field) {
            ("text", None) => Ok(Self::Text),
            ("json", Some(field)) if !field.is_empty() => Ok(Self::Json(field.to_owned())),
            ("registry", None) => Ok(Self::Registry(None)),
            ("registry", Some(field)) if !field.is_empty() => Ok(Self::Registry(Some(field.to_owned()))),
            _ => Err(BadKeyForm(text.to_owned())),
        }
    }
}

impl TryFrom<String> for KeyForm {
    type Error = BadKeyForm;

    fn try_from(text: String) -> Result<Self, BadKeyForm> {
        text.parse()
    }
}

impl From<KeyForm> for String {
    fn from(form: KeyForm) -> Self {
        form.to_string()
    }
}

impl fmt::Display for KeyForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("text"),
            Self::Json(field) => write!(f, "json:{field}"),
            Self::Registry(None) => f.write_str("registry"),
            Self::Registry(Some(field)) => write!(f, "registry:{field}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_of_a_key_is_written_as_it_was_read() {
        for (text, form) in [
            ("text", KeyForm::Text),
            ("json:id", KeyForm::Json("id".to_owned())),
            ("registry", KeyForm::Registry(None)),
            ("registry:a:b", KeyForm::Registry(Some("a:b".to_owned()))),
        ] {
            assert_eq!(text.parse(), Ok(form.clone()));
            assert_eq!(form.to_string(), text);
        }
        for bad in ["", "json", "json:", "registry:", "text:id", "avro", "Text"] {
            assert_eq!(bad.parse::<KeyForm>(), Err(BadKeyForm(bad.to_owned())));
        }
    }
}
