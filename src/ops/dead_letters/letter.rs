//! A dead letter as it is in its topic. Pure.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use rdkafka::message::{Header, Headers, OwnedHeaders};
use serde::{Serialize, Serializer};
use thiserror::Error;

use crate::base::headers;
use crate::ops::records::Dated;

/// Start of the names of headers that geofold adds to a dead letter.
const OWN_HEADERS: [&str; 4] = [
    headers::ERROR_HEADERS,
    headers::VALUE_LEFT_OUT_HEADER,
    headers::KEY_LEFT_OUT_HEADER,
    headers::LEFT_OUT_REASON_HEADER,
];

/// The place of a letter in the dead-letter topic, written `PARTITION/OFFSET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetterPlace {
    /// Partition of the dead-letter topic.
    pub partition: i32,
    /// Offset there.
    pub offset: i64,
}

/// Not a place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "write a letter as PARTITION/OFFSET of the dead-letter topic, like 0/17; geofold dead-letters list shows them"
)]
pub struct BadPlace;

impl FromStr for LetterPlace {
    type Err = BadPlace;

    fn from_str(text: &str) -> Result<Self, BadPlace> {
        let (partition, offset) = text.split_once('/').ok_or(BadPlace)?;
        let place = Self {
            partition: partition.parse().map_err(|_| BadPlace)?,
            offset: offset.parse().map_err(|_| BadPlace)?,
        };
        if place.partition < 0 || place.offset < 0 { Err(BadPlace) } else { Ok(place) }
    }
}

impl fmt::Display for LetterPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.partition, self.offset)
    }
}

impl Serialize for LetterPlace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The record or records that a letter is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OriginSeen {
    /// Their topic.
    pub topic: String,
    /// Their partition.
    pub partition: i32,
    /// Offset of the first.
    pub first_offset: i64,
    /// Offset of the last; the same unless a fold was refused.
    pub last_offset: i64,
}

/// A dead letter.
#[derive(Debug, Clone)]
pub struct LetterSeen {
    /// Where it is.
    pub place: LetterPlace,
    /// When it was made, in milliseconds since 1970.
    pub time_ms: Option<i64>,
    /// `geofold-error-reason`; empty: not a letter of geofold.
    pub reason: String,
    /// `geofold-error-stage`.
    pub stage: String,
    /// `geofold-error-detail`.
    pub detail: String,
    /// Where its record came from; `None`: not a letter of geofold.
    pub origin: Option<OriginSeen>,
    /// The record's key.
    pub key: Option<Bytes>,
    /// The record's value, or the folded write.
    pub value: Option<Bytes>,
    /// The record's own headers.
    pub headers: OwnedHeaders,
    /// Bytes of the omitted value, if it was omitted.
    pub value_left_out: Option<String>,
    /// Bytes of the omitted key, if it was omitted.
    pub key_left_out: Option<String>,
}

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LetterRow {
    /// Where the letter is: `PARTITION/OFFSET`.
    pub letter: LetterPlace,
    /// When it was made, in milliseconds since 1970.
    pub time_ms: Option<i64>,
    /// The reason.
    pub reason: String,
    /// The document's id, as text.
    pub id: String,
    /// Where its record came from.
    pub origin: Option<OriginSeen>,
    /// The step that refused it.
    pub stage: String,
    /// What was wrong.
    pub detail: String,
}

impl LetterSeen {
    /// Of a record of the dead-letter topic.
    pub fn of(partition: i32, dated: Dated) -> Self {
        let Dated { record, time_ms } = dated;
        let all = record.headers.unwrap_or_default();
        let text = |name: &str| -> Option<String> {
            // The last one: the record may have had such a header before.
            let value = all.iter().filter(|header| header.key == name).last()?.value?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        let number = |name: &str| text(name)?.parse::<i64>().ok();
        let last_offset = number(headers::OFFSET_HEADER);
        let origin = text(headers::TOPIC_HEADER).zip(number(headers::PARTITION_HEADER)).zip(last_offset);
        let origin = origin.and_then(|((topic, partition), last_offset)| {
            let first_offset = number(headers::FIRST_OFFSET_HEADER).unwrap_or(last_offset);
            Some(OriginSeen { topic, partition: i32::try_from(partition).ok()?, first_offset, last_offset })
        });
        let mut headers = OwnedHeaders::new();
        for header in all.iter().filter(|header| !is_own(header.key)) {
            headers = headers.insert(Header { key: header.key, value: header.value });
        }
        Self {
            place: LetterPlace { partition, offset: record.offset },
            time_ms: number(headers::TIME_HEADER).or(time_ms),
            reason: text(headers::REASON_HEADER).unwrap_or_default(),
            stage: text(headers::STAGE_HEADER).unwrap_or_default(),
            detail: text(headers::DETAIL_HEADER).unwrap_or_default(),
            origin,
            key: record.key,
            value: record.value,
            value_left_out: text(headers::VALUE_LEFT_OUT_HEADER),
            key_left_out: text(headers::KEY_LEFT_OUT_HEADER),
            headers,
        }
    }

    /// The document's id for people; a key that is not text has replacement characters.
    pub fn id(&self) -> String {
        match (&self.key, &self.key_left_out) {
            (_, Some(_)) => "(key left out)".to_owned(),
            (None, None) => "(no key)".to_owned(),
            (Some(key), None) => String::from_utf8_lossy(key).into_owned(),
        }
    }

    /// Its line in a list.
    pub fn row(&self) -> LetterRow {
        LetterRow {
            letter: self.place,
            time_ms: self.time_ms,
            reason: self.reason.clone(),
            id: self.id(),
            origin: self.origin.clone(),
            stage: self.stage.clone(),
            detail: self.detail.clone(),
        }
    }

    /// Whether its record sets the whole document: earlier writes of the document do not matter after it.
    pub fn is_whole(&self) -> bool {
        let op = self.headers.iter().filter(|header| header.key == headers::OP_HEADER).last();
        match op.and_then(|header| header.value) {
            Some(op) => [&b"index"[..], b"delete", b"refeed"].contains(&op),
            None => true,
        }
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        self.key.as_ref().map_or(0, Bytes::len)
            + self.value.as_ref().map_or(0, Bytes::len)
            + self.detail.len()
            + 1024
    }
}

fn is_own(name: &str) -> bool {
    OWN_HEADERS.iter().any(|own| name.starts_with(own))
}

/// Which letters are meant; all conditions hold at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LetterFilter {
    /// These alone; empty: any.
    pub places: Vec<LetterPlace>,
    /// With this reason.
    pub reason: Option<String>,
    /// Of this document.
    pub id: Option<String>,
    /// Made at this time or later, in milliseconds since 1970.
    pub since_ms: Option<i64>,
}

impl LetterFilter {
    /// Whether it names every letter.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Whether this letter is meant.
    pub fn takes(&self, letter: &LetterSeen) -> bool {
        (self.places.is_empty() || self.places.contains(&letter.place))
            && self.reason.as_ref().is_none_or(|reason| *reason == letter.reason)
            && self.id.as_ref().is_none_or(|id| letter.key.as_deref() == Some(id.as_bytes()))
            && self.since_ms.is_none_or(|since| letter.time_ms.is_none_or(|time| time >= since))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::worker::record::Record;

    /// A letter about the record at `offset`, at place `0/at`.
    pub(crate) fn letter(at: i64, offset: i64, key: &str, more: &[(&str, &str)]) -> LetterSeen {
        let place = offset.to_string();
        let own = [
            ("geofold-error-reason", "no_location"),
            ("geofold-error-stage", "decode"),
            ("geofold-error-detail", "what is wrong"),
            ("geofold-error-topic", "t"),
            ("geofold-error-partition", "3"),
            ("geofold-error-offset", place.as_str()),
            ("geofold-error-time", "1700000000000"),
        ];
        let mut headers = OwnedHeaders::new();
        for &(key, value) in more.iter().chain(&own) {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        let key = Bytes::copy_from_slice(key.as_bytes());
        let record = Record {
            offset: at,
            key: Some(key),
            value: Some(Bytes::from_static(b"{}")),
            headers: Some(headers),
        };
        LetterSeen::of(0, Dated { record, time_ms: Some(1) })
    }

    #[test]
    fn letter_is_read_back_without_geofold_headers() {
        let found = letter(7, 41, "a", &[("own", "x"), ("geofold-op", "patch")]);
        assert_eq!((found.place.to_string(), found.reason.as_str()), ("0/7".to_owned(), "no_location"));
        let origin = OriginSeen { topic: "t".to_owned(), partition: 3, first_offset: 41, last_offset: 41 };
        assert_eq!(found.origin, Some(origin));
        assert_eq!(found.time_ms, Some(1_700_000_000_000));
        let names: Vec<&str> = found.headers.iter().map(|header| header.key).collect();
        assert_eq!(names, ["own", "geofold-op"]);
        assert!(!found.is_whole() && letter(7, 41, "a", &[]).is_whole());
    }

    #[test]
    fn every_header_that_geofold_adds_is_taken_off() {
        let found = letter(
            7,
            41,
            "a",
            &[
                ("geofold-left-out-reason", "x"),
                (headers::VALUE_LEFT_OUT_HEADER, "9"),
                (headers::KEY_LEFT_OUT_HEADER, "3"),
            ],
        );
        assert_eq!(found.headers.count(), 0);
        assert_eq!((found.value_left_out.as_deref(), found.key_left_out.as_deref()), (Some("9"), Some("3")));
        assert_eq!(found.id(), "(key left out)");
    }

    #[test]
    fn places_are_written_as_partition_and_offset() {
        assert_eq!("2/17".parse(), Ok(LetterPlace { partition: 2, offset: 17 }));
        for bad in ["", "17", "a/1", "1/b", "-1/2", "1/-2", "1/2/3"] {
            assert_eq!(bad.parse::<LetterPlace>(), Err(BadPlace), "{bad}");
        }
    }

    #[test]
    fn filter_takes_letters_that_meet_every_condition() {
        let found = letter(7, 41, "a", &[]);
        let text = |text: &str| Some(text.to_owned());
        assert!(LetterFilter::default().takes(&found) && LetterFilter::default().is_any());
        for (filter, takes) in [
            (LetterFilter { places: vec!["0/7".parse().unwrap()], ..LetterFilter::default() }, true),
            (LetterFilter { places: vec!["1/7".parse().unwrap()], ..LetterFilter::default() }, false),
            (LetterFilter { reason: text("no_location"), id: text("a"), ..LetterFilter::default() }, true),
            (LetterFilter { reason: text("no_location"), id: text("b"), ..LetterFilter::default() }, false),
            (LetterFilter { reason: text("bad_key"), ..LetterFilter::default() }, false),
            (LetterFilter { since_ms: Some(1_700_000_000_000), ..LetterFilter::default() }, true),
            (LetterFilter { since_ms: Some(1_700_000_000_001), ..LetterFilter::default() }, false),
        ] {
            assert_eq!(filter.takes(&found), takes, "{filter:?}");
        }
    }
}
