//! Configurable formats of keys and values.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The content of a record's value without the header `geofold-op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Envelope {
    /// The document.
    Plain,
    /// A Debezium change event.
    Debezium,
}

/// The encoding of a record's value without the header `geofold-op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordFormat {
    /// Plain JSON.
    Json,
    /// Avro, JSON Schema or Protobuf in Confluent's wire format, as registered.
    Registry,
}

/// Where a record's key holds the document's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KeyForm {
    /// `text`: the key is the id.
    Text,
    /// `json:FIELD`: this field of a JSON object.
    Json(String),
    /// `registry` or `registry:FIELD`: in Confluent's wire format, a primitive, or this field of a record.
    Registry(Option<String>),
}

/// Why a text is not a key format.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a key format: write \"text\", \"json:FIELD\", \"registry\" or \"registry:FIELD\"")]
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
    fn key_form_is_written_as_parsed() {
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
