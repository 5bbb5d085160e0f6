//! The records as the topic has them, which is what counts: a producer that lost its broker may have written twice, in
//! another order, or not at all.

use std::fmt;

use rdkafka::Message;
use rdkafka::message::Headers;
use serde_json::Value;

use crate::support::{Event, World};
use crate::writer::BAD;

/// A record of the topic.
#[derive(Debug, Clone)]
pub struct Record {
    pub partition: i32,
    pub offset: i64,
    pub id: String,
    pub what: What,
}

/// What it asks for.
#[derive(Debug, Clone)]
pub enum What {
    Write(Event),
    /// It cannot be carried out, for this reason.
    Bad(String),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(Event::Index { document, .. }) => write!(f, "index {document}"),
            Self::Write(Event::Patch { patch, .. }) => write!(f, "patch {patch}"),
            Self::Write(Event::Delete { .. }) => f.write_str("delete"),
            Self::Write(Event::Touch { .. }) => f.write_str("touch"),
            Self::Bad(reason) => write!(f, "bad: {reason}"),
        }
    }
}

/// Gives every record, from the beginning of each partition.
pub fn read(world: &World, mut each: impl FnMut(Record)) {
    world.records(|message| {
        let headers = message.headers();
        let header = |name: &str| {
            let value = headers?.iter().find(|header| header.key == name)?.value?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        let id = String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned();
        let content = || -> Value { serde_json::from_slice(message.payload().unwrap_or_default()).unwrap() };
        let what = match (header(BAD), header("geofold-op").as_deref()) {
            (Some(reason), _) => What::Bad(reason),
            (None, Some("index")) => What::Write(Event::Index { id: id.clone(), document: content() }),
            (None, Some("patch")) => What::Write(Event::Patch { id: id.clone(), patch: content() }),
            (None, Some("delete")) => What::Write(Event::Delete { id: id.clone() }),
            (None, Some("touch")) => What::Write(Event::Touch { id: id.clone() }),
            (None, other) => panic!("nobody wrote a record with the operation {other:?}"),
        };
        each(Record { partition: message.partition(), offset: message.offset(), id, what });
    });
}
