//! Debezium change events: `before` and `after` images of a row, with the operation.
//!
//! <https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-change-events-value>. The
//! members read are the same for all its connectors with whole-row events: `op`, `after`, and the enclosing `payload`
//! if the converter writes schemas (`schemas.enable`).

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

/// Characters of an unknown operation shown in its error.
const SHOWN_OP_CHARS: usize = 20;

/// The operation of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventChange {
    /// The current row, byte for byte. A copy: a slice would keep the whole event in memory, with the former row and a
    /// schema, while memory accounting counts the row alone.
    Row(Bytes),
    /// The row was deleted.
    Deleted,
}

/// Why a value is not a row change.
#[derive(Debug, Error)]
pub enum BadEvent {
    /// Not JSON, or not of this shape.
    #[error("it is not a valid JSON object with \"op\" and \"after\": {0}")]
    Json(#[from] serde_json::Error),
    /// Neither `op` nor a `payload` with one: perhaps a plain row, as after the transform ExtractNewRecordState.
    #[error("it has no \"op\"; if the records are plain documents, set kafka.envelope = \"plain\"")]
    NoOp,
    /// `after` is the document.
    #[error("its \"op\" is \"{0}\", but it has no \"after\"; capture the table with whole rows")]
    NoRow(String),
    /// Concerns no single row, such as `t` (truncate) and `m` (message). Holds the operation, truncated.
    #[error("its \"op\" is {0:?}, which concerns no single row; expected c, r, u or d")]
    Op(String),
}

impl BadEvent {
    /// Machine-readable reason code.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Json(_) => "unparsable_json",
            Self::NoOp | Self::NoRow(_) | Self::Op(_) => "bad_event",
        }
    }
}

/// The members read of an event; duplicates are refused.
#[derive(Debug, Default)]
struct Event<'a> {
    op: Option<Cow<'a, str>>,
    after: Option<&'a RawValue>,
    payload: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Event<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Event<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a change event, which is an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Event<'de>, A::Error> {
                let mut event = Event::default();
                while let Some(Text(key)) = map.next_key()? {
                    let seen = match &*key {
                        "op" => event.op.replace(map.next_value::<Text<'de>>()?.0).is_some(),
                        "after" => event.after.replace(map.next_value()?).is_some(),
                        "payload" => event.payload.replace(map.next_value()?).is_some(),
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            false
                        }
                    };
                    if seen {
                        return Err(A::Error::custom(format_args!("\"{key}\" is there twice")));
                    }
                }
                Ok(event)
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// A string, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The change in the event `value`.
pub(super) fn read(value: &[u8]) -> Result<EventChange, BadEvent> {
    let mut event: Event<'_> = serde_json::from_slice(value)?;
    if event.op.is_none()
        && let Some(payload) = event.payload
    {
        event = serde_json::from_str(payload.get())?;
    }
    let Some(op) = event.op else { return Err(BadEvent::NoOp) };
    match &*op {
        // Created, read by a snapshot, or updated: the row is the current document.
        "c" | "r" | "u" => {
            let row = event
                .after
                .filter(|row| row.get() != "null")
                .ok_or_else(|| BadEvent::NoRow(op.into_owned()))?;
            Ok(EventChange::Row(Bytes::copy_from_slice(row.get().as_bytes())))
        }
        "d" => Ok(EventChange::Deleted),
        other => Err(BadEvent::Op(other.chars().take(SHOWN_OP_CHARS).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(event: &str) -> Result<EventChange, BadEvent> {
        read(event.as_bytes())
    }

    #[test]
    fn row_stays_byte_for_byte() {
        let event = r#"{"before":null,"after":{"id":1, "n":1.10},"source":{"lsn":12},"op":"c","ts_ms":1}"#;
        assert_eq!(change(event).unwrap(), EventChange::Row(Bytes::from_static(br#"{"id":1, "n":1.10}"#)));
    }

    #[test]
    fn each_operation_is_read_with_and_without_schemas() {
        for op in ["c", "r", "u"] {
            let plain = format!(r#"{{"op":"{op}","after":{{"a":1}}}}"#);
            let with_schema = format!(r#"{{"schema":{{"type":"struct"}},"payload":{plain}}}"#);
            for event in [plain, with_schema] {
                assert_eq!(
                    change(&event).unwrap(),
                    EventChange::Row(Bytes::from_static(b"{\"a\":1}")),
                    "{event}"
                );
            }
        }
        for event in [r#"{"op":"d","before":{"a":1},"after":null}"#, r#"{"payload":{"op":"d"}}"#] {
            assert_eq!(change(event).unwrap(), EventChange::Deleted);
        }
        // A column of this name belongs to the row.
        assert_eq!(
            change(r#"{"after":{"payload":1,"op":"d"},"op":"u"}"#).unwrap(),
            EventChange::Row(Bytes::from_static(br#"{"payload":1,"op":"d"}"#))
        );
    }

    #[test]
    fn value_without_a_row_change_is_refused_with_the_reason() {
        for (event, reason, words) in [
            ("{", "unparsable_json", "JSON"),
            ("[]", "unparsable_json", "object"),
            (r#"{"op":"c","op":"d","after":{}}"#, "unparsable_json", "twice"),
            (r#"{"op":"c","after":{},"after":{}}"#, "unparsable_json", "twice"),
            (r#"{"op":7,"after":{}}"#, "unparsable_json", "7"),
            (r#"{"payload":null}"#, "unparsable_json", "object"),
            (r#"{"id":1,"location":"1,2"}"#, "bad_event", "envelope = \"plain\""),
            (r#"{"payload":{"id":1}}"#, "bad_event", "no \"op\""),
            (r#"{"op":"u","after":null}"#, "bad_event", "no \"after\""),
            (r#"{"op":"u"}"#, "bad_event", "no \"after\""),
            (r#"{"op":"t"}"#, "bad_event", "no single row"),
        ] {
            let error = change(event).unwrap_err();
            assert_eq!(error.reason(), reason, "{event}: {error}");
            assert!(error.to_string().contains(words), "{event}: {error}");
        }
    }
}
