//! Decodes a Kafka record into a [`Write`], or into the reason why it cannot become one.
//!
//! Keys and values in other formats are first converted to an id and JSON (`forms.rs`) by the schemas at hand: a
//! missing schema yields [`Undecoded::Lacks`], and the caller decodes again once it has the schema.
//!
//! A document is scanned once, to check its JSON and find its location (an unusual one again, by serde_json: see
//! `plain.rs`); its bytes pass through uncopied. Only line breaks between tokens are replaced, since a `_bulk` request
//! consists of lines, and the field of `documents.point` is spliced in.

mod debezium;
mod find;
mod forms;
pub mod location;
pub mod merge_patch;
mod object;
mod plain;
mod point;
mod source_form;
mod wkb;

use bytes::Bytes;
use memchr::memchr2;
use thiserror::Error;

pub use self::debezium::BadEvent;
use self::debezium::EventChange;
pub use self::forms::BadRecordKey;
pub use self::location::{BadLocation, BadLocationPath, LocationPath};
pub use self::object::BadObject;
pub use self::point::BadForm;
pub use self::source_form::{BadKeyForm, Envelope, KeyForm, RecordFormat};
pub use self::wkb::BadGeometry;
use crate::base::geo::GeoPoint;
use crate::base::headers::OP_HEADER;
use crate::base::ids::{BadDocId, DocId};
use crate::base::position::{Epoch, Position};
use crate::core::schemas::{Lacking, SchemaId, Schemas, UnreadablePayload, is_framed};
use crate::core::write::{Body, Write};

/// Stands for the value of [`OP_HEADER`] where a record has several: which one counts would be a guess.
pub const OP_TWICE: &[u8] = b"there twice";

/// How many times larger than a document a change event may be.
const EVENT_PER_DOCUMENT: usize = 4;

/// Characters of an unknown operation shown in its error.
const SHOWN_OP_CHARS: usize = 20;

/// The parts of a Kafka record that define its meaning.
#[derive(Debug, Clone)]
pub struct RawRecord<'a> {
    /// The source partition.
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
    /// The document's id.
    pub key: Option<&'a [u8]>,
    /// The document or the patch; owned, so that it passes on without a copy.
    pub value: Option<Bytes>,
    /// Value of its [`OP_HEADER`].
    pub op: Option<&'a [u8]>,
}

/// Decodes records whose value is the document, a patch of it, or an envelope with the document.
#[derive(Debug, Clone)]
pub struct Decoder {
    path: LocationPath,
    epoch: Epoch,
    max_bytes: usize,
    envelope: Envelope,
    format: RecordFormat,
    key: KeyForm,
}

/// Why a record is not decoded.
#[derive(Debug, Error)]
pub enum Undecoded {
    /// Permanently.
    #[error(transparent)]
    Bad(#[from] BadRecord),
    /// Until the [`Schemas`] have this one.
    #[error("the schema {0} is needed")]
    Lacks(SchemaId),
}

/// The operation of a record, before its value is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Index,
    Delete,
    Patch,
    Touch,
    Refeed,
}

/// Why a record cannot become a write; it is dead-lettered.
#[derive(Debug, Error)]
pub enum BadRecord {
    /// Offsets have 44 bits in a version.
    #[error("offset {offset} of partition {partition} does not fit into an external version")]
    Position {
        /// The record's partition.
        partition: i32,
        /// The record's offset.
        offset: i64,
    },
    /// The key is not a valid document id.
    #[error(transparent)]
    Key(#[from] BadDocId),
    /// The key yields no id in the configured form.
    #[error(transparent)]
    FormOfKey(BadRecordKey),
    /// The value is not in the wire format of a schema registry.
    #[error("the value cannot be read: {0}")]
    Unreadable(UnreadablePayload),
    /// The header names no operation. Holds its value, truncated.
    #[error("the header {OP_HEADER} is {0:?}; expected index, delete, patch, touch or refeed")]
    Op(String),
    /// An index or a patch needs a value.
    #[error("the header {OP_HEADER} is {0}, but the record has no value")]
    NoValue(&'static str),
    /// Larger than configured.
    #[error("the value has {bytes} bytes, and {max_bytes} are allowed")]
    TooLarge {
        /// The value's size.
        bytes: usize,
        /// The configured limit.
        max_bytes: usize,
    },
    /// The value should be a change event.
    #[error("the value is not a change event of Debezium: {0}")]
    Event(BadEvent),
    /// Null, an array, a scalar, or empty.
    #[error("the value is not a JSON object; a document and a patch must be one")]
    NotAnObject,
    /// Not a valid object, or one that cannot be processed.
    #[error("the value cannot be used: {0}")]
    Json(BadObject),
    /// A document without location has no geoshard.
    #[error("the document has no location at \"{path}\": {why}")]
    NoLocation {
        /// The location's path.
        path: LocationPath,
        /// Missing or null.
        why: BadLocation,
    },
    /// The value at the location's path is not a location.
    #[error("the value at \"{path}\" is not a location: {why}")]
    BadLocation {
        /// The location's path.
        path: LocationPath,
        /// What is wrong with it.
        why: BadLocation,
    },
    /// The document stays unchanged.
    #[error("the patch would remove the location at \"{path}\"")]
    LocationRemoved {
        /// The location's path.
        path: LocationPath,
    },
}

impl BadRecord {
    /// The step that refused the record: `geofold-error-stage` of a dead letter.
    pub fn stage(&self) -> &'static str {
        "decode"
    }

    /// Reason code, also a metric's label: `geofold-error-reason` of a dead letter.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Position { .. } => "bad_position",
            Self::Key(_) => "bad_key",
            Self::FormOfKey(why) => why.reason(),
            Self::Unreadable(why) => why.reason(),
            Self::Op(_) => "bad_op",
            Self::NoValue(_) => "no_value",
            Self::TooLarge { .. } => "too_large",
            Self::Event(why) => why.reason(),
            Self::NotAnObject => "not_an_object",
            Self::Json(why) => why.reason(),
            Self::NoLocation { .. } => "no_location",
            Self::BadLocation { .. } => "bad_location",
            Self::LocationRemoved { .. } => "location_removed",
        }
    }
}

impl BadObject {
    /// Machine-readable reason code.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotUtf8(_) | Self::Json(_) => "unparsable_json",
            Self::DuplicateKey(_) => "duplicate_key",
            Self::TooDeep(_) => "too_deep",
        }
    }
}

impl Decoder {
    /// For documents with a location at `path` and values of at most `max_bytes`.
    pub fn new(path: LocationPath, epoch: Epoch, max_bytes: usize) -> Self {
        Self {
            path,
            epoch,
            max_bytes,
            envelope: Envelope::Plain,
            format: RecordFormat::Json,
            key: KeyForm::Text,
        }
    }

    /// Also decodes values with their document in an envelope. Applies only to records without the header
    /// [`OP_HEADER`]: geofold's own tools set it, and write plain documents.
    pub fn in_envelope(self, envelope: Envelope) -> Self {
        Self { envelope, ..self }
    }

    /// Also decodes keys and values in these formats. The value of a record with the header [`OP_HEADER`] may still be
    /// JSON.
    pub fn in_forms(self, format: RecordFormat, key: KeyForm) -> Self {
        Self { format, key, ..self }
    }

    /// The path of a document's location.
    pub fn path(&self) -> &LocationPath {
        &self.path
    }

    /// Decodes a record. `schemas` are used only by formats that need them.
    ///
    /// # Errors
    /// See [`Undecoded`].
    pub fn decode(&self, record: RawRecord<'_>, schemas: &mut Schemas) -> Result<Write, Undecoded> {
        let RawRecord { partition, offset, key, value, op } = record;
        let position = Position::new(self.epoch, offset).ok_or(BadRecord::Position { partition, offset })?;
        let id = match &self.key {
            KeyForm::Text => DocId::from_key(key).map_err(BadRecord::from)?,
            form => forms::id_of_key(form, key, schemas)?,
        };
        let value = match self.format {
            RecordFormat::Json => value,
            RecordFormat::Registry => self.json(value, op, schemas)?,
        };
        Ok(Write { id, position, body: self.body(value, op)? })
    }

    /// The value as JSON, if the operation uses it.
    fn json(
        &self,
        value: Option<Bytes>,
        op: Option<&[u8]>,
        schemas: &mut Schemas,
    ) -> Result<Option<Bytes>, Undecoded> {
        let Some(framed) = value else { return Ok(None) };
        // Tools write JSON beside the topic's own records.
        let is_json = op.is_some() && !is_framed(&framed);
        let matters = matches!(Op::of(op, true), Ok(Op::Index | Op::Patch));
        if is_json || !matters {
            return Ok(Some(framed));
        }
        let max_bytes = self.max_value_bytes(op);
        if framed.len() > max_bytes {
            return Err(BadRecord::TooLarge { bytes: framed.len(), max_bytes }.into());
        }
        match forms::json_of(&framed, max_bytes, schemas) {
            Ok(json) => Ok(Some(json)),
            Err(Lacking::NotAsked(id)) => Err(Undecoded::Lacks(id)),
            Err(Lacking::Refused(why)) => Err(BadRecord::Unreadable(why).into()),
        }
    }

    /// An event may hold the row twice, and a schema: its limit is a multiple of a document's.
    fn max_value_bytes(&self, op: Option<&[u8]>) -> usize {
        match (self.envelope, op) {
            (Envelope::Debezium, None) => self.max_bytes.saturating_mul(EVENT_PER_DOCUMENT),
            _ => self.max_bytes,
        }
    }

    fn body(&self, value: Option<Bytes>, op: Option<&[u8]>) -> Result<Body, BadRecord> {
        let value = match (self.envelope, op, value) {
            (Envelope::Debezium, None, Some(event)) => self.row(&event)?,
            (_, _, value) => value,
        };
        match (Op::of(op, value.is_some())?, value) {
            (Op::Delete, _) => Ok(Body::Delete),
            (Op::Touch, _) => Ok(Body::Touch),
            (Op::Refeed, _) => Ok(Body::Refeed),
            (Op::Index, Some(value)) => self.index(value),
            (Op::Patch, Some(value)) => self.patch(value),
            (Op::Index, None) => Err(BadRecord::NoValue("index")),
            (Op::Patch, None) => Err(BadRecord::NoValue("patch")),
        }
    }

    /// Validates a whole document, of a record or of the source of truth: complete, on one line, with its location.
    ///
    /// # Errors
    /// If it cannot be placed.
    pub fn document(&self, value: Bytes) -> Result<(Bytes, GeoPoint), BadRecord> {
        self.check_size_and_shape(&value)?;
        self.path.complete(value).map_err(|why| match why {
            BadLocation::Json(why) => BadRecord::Json(why),
            BadLocation::Missing | BadLocation::Null => {
                BadRecord::NoLocation { path: self.path.clone(), why }
            }
            BadLocation::Twice | BadLocation::Form(_) => {
                BadRecord::BadLocation { path: self.path.clone(), why }
            }
        })
    }

    /// The row after a change event; `None` if it was deleted.
    fn row(&self, event: &[u8]) -> Result<Option<Bytes>, BadRecord> {
        let max_bytes = self.max_value_bytes(None);
        if event.len() > max_bytes {
            return Err(BadRecord::TooLarge { bytes: event.len(), max_bytes });
        }
        match debezium::read(event).map_err(BadRecord::Event)? {
            EventChange::Row(row) => Ok(Some(row)),
            EventChange::Deleted => Ok(None),
        }
    }

    fn index(&self, value: Bytes) -> Result<Body, BadRecord> {
        let (doc, at) = self.document(value)?;
        Ok(Body::Index { doc, at: at.into() })
    }

    fn patch(&self, value: Bytes) -> Result<Body, BadRecord> {
        self.check_size_and_shape(&value)?;
        merge_patch::check(&value).map_err(BadRecord::Json)?;
        let moves = self.path.patch_move(&value).map_err(|why| match why {
            BadLocation::Json(why) => BadRecord::Json(why),
            BadLocation::Missing | BadLocation::Null => {
                BadRecord::LocationRemoved { path: self.path.clone() }
            }
            BadLocation::Twice | BadLocation::Form(_) => {
                BadRecord::BadLocation { path: self.path.clone(), why }
            }
        })?;
        Ok(Body::Patch { patch: on_one_line(value), moves })
    }

    fn check_size_and_shape(&self, value: &[u8]) -> Result<(), BadRecord> {
        if value.len() > self.max_bytes {
            return Err(BadRecord::TooLarge { bytes: value.len(), max_bytes: self.max_bytes });
        }
        if value.trim_ascii_start().first() != Some(&b'{') {
            return Err(BadRecord::NotAnObject);
        }
        Ok(())
    }
}

impl Op {
    fn of(header: Option<&[u8]>, has_value: bool) -> Result<Self, BadRecord> {
        match header {
            None if has_value => Ok(Self::Index),
            None => Ok(Self::Delete),
            Some(b"index") => Ok(Self::Index),
            Some(b"delete") => Ok(Self::Delete),
            Some(b"patch") => Ok(Self::Patch),
            Some(b"touch") => Ok(Self::Touch),
            Some(b"refeed") => Ok(Self::Refeed),
            Some(unknown) => {
                Err(BadRecord::Op(String::from_utf8_lossy(unknown).chars().take(SHOWN_OP_CHARS).collect()))
            }
        }
    }
}

/// The point that a value (the text of any JSON value) stands for in a query, in any form that a `geo_point` takes.
pub(crate) fn query_point(value: &str) -> Option<GeoPoint> {
    point::parse(value, point::Forms::GeoPoint).ok()
}

/// A valid JSON text without raw line breaks: in such a text they can only be white space between tokens. Copies only if
/// there are some.
pub(crate) fn on_one_line(json: Bytes) -> Bytes {
    let Some(first) = memchr2(b'\n', b'\r', &json) else { return json };
    let mut line = Vec::from(json);
    for byte in line[first..].iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
    line.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::schemas::{Kind, RegisteredSchema, Schema};
    use crate::core::write::PatchMove;

    const NO_VALUE: Option<&'static str> = None;

    /// Decodes a record that needs no schema.
    fn plain(decoder: &Decoder, record: RawRecord<'_>) -> Result<Write, BadRecord> {
        match decoder.decode(record, &mut Schemas::new()) {
            Ok(write) => Ok(write),
            Err(Undecoded::Bad(bad)) => Err(bad),
            Err(lacks) => panic!("{lacks}"),
        }
    }

    fn decode(value: Option<impl Into<Bytes>>, op: Option<&str>) -> Result<Body, BadRecord> {
        let decoder = Decoder::new(LocationPath::new("location").unwrap(), Epoch::default(), 1_000);
        let value = value.map(Into::into);
        let record =
            RawRecord { partition: 3, offset: 7, key: Some(b"id"), value, op: op.map(str::as_bytes) };
        let write = plain(&decoder, record)?;
        assert_eq!((write.id.as_str(), write.position.offset()), ("id", 7));
        Ok(write.body)
    }

    fn reason(value: Option<&'static str>, op: Option<&str>) -> &'static str {
        decode(value, op).unwrap_err().reason()
    }

    #[test]
    fn document_bytes_pass_through_uncopied() {
        let value = Bytes::from(r#" {"n":1.10,"location":{"lat":1,"lon":2}}	"#);
        let Body::Index { doc, at } = decode(Some(value.clone()), None).unwrap() else { panic!() };
        assert_eq!(doc.as_ptr(), value.as_ptr());
        assert_eq!((doc, at), (value, GeoPoint::new(1.0, 2.0).unwrap().into()));
    }

    #[test]
    fn documents_and_rows_get_the_point_of_their_geometry() {
        let path = LocationPath::new("geom").unwrap().with_point("point").unwrap();
        let decoder = Decoder::new(path, Epoch::default(), 1_000).in_envelope(Envelope::Debezium);
        let decode = |value: &str, op: Option<&str>| {
            let value = Some(Bytes::copy_from_slice(value.as_bytes()));
            let op = op.map(str::as_bytes);
            plain(&decoder, RawRecord { partition: 3, offset: 7, key: Some(b"id"), value, op })
        };
        let row = r#"{"id":7,"geom":{"wkb":"AQEAACDmEAAAzczMzMzMKkAAAAAAAEBKQA==","srid":4326}}"#;
        let expected = row.replace("}}", r#"},"point":[13.4,52.5]}"#);
        for (value, op) in [(format!(r#"{{"op":"c","after":{row}}}"#), None), (row.to_owned(), Some("index"))]
        {
            let Body::Index { doc, at } = decode(&value, op).unwrap().body else { panic!() };
            assert_eq!((&*doc, at), (expected.as_bytes(), GeoPoint::new(52.5, 13.4).unwrap().into()));
        }
        let projected = row.replace("4326", "3857");
        let bad = decode(&format!(r#"{{"op":"c","after":{projected}}}"#), None).unwrap_err();
        assert_eq!(bad.reason(), "bad_location");
        assert_eq!(
            bad.to_string(),
            "the value at \"geom\" is not a location: its srid is 3857, but its wkb has the SRID 4326"
        );
    }

    #[test]
    fn rows_are_extracted_from_events_beside_plain_tool_records() {
        let decoder = Decoder::new(LocationPath::new("location").unwrap(), Epoch::default(), 100)
            .in_envelope(Envelope::Debezium);
        let decode = |value: Option<&str>, op: Option<&str>| {
            let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
            let op = op.map(str::as_bytes);
            let record = RawRecord { partition: 3, offset: 7, key: Some(b"id"), value, op };
            plain(&decoder, record).map(|write| write.body).map_err(|bad| bad.reason())
        };
        let Ok(Body::Index { doc, at }) = decode(Some(r#"{"op":"u","after":{"location":"1,2"}}"#), None)
        else {
            panic!()
        };
        assert_eq!((&*doc, at), (&br#"{"location":"1,2"}"#[..], GeoPoint::new(1.0, 2.0).unwrap().into()));
        assert_eq!(decode(Some(r#"{"op":"d","before":{"location":"1,2"}}"#), None), Ok(Body::Delete));
        assert_eq!(decode(None, None), Ok(Body::Delete), "the tombstone behind a delete");
        assert_eq!(decode(Some(r#"{"op":"c","after":{}}"#), None), Err("no_location"));
        assert_eq!(decode(Some(r#"{"op":"c","after":7}"#), None), Err("not_an_object"));
        assert_eq!(decode(Some(r#"{"location":"1,2"}"#), None), Err("bad_event"));
        assert_eq!(decode(None, Some("touch")), Ok(Body::Touch));
        assert!(matches!(decode(Some(r#"{"location":"1,2"}"#), Some("index")), Ok(Body::Index { .. })));
        let large = |bytes: usize| {
            format!(r#"{{"op":"c","after":{{"location":"1,2","a":"{}"}}}}"#, "x".repeat(bytes))
        };
        assert_eq!(decode(Some(&large(200)), None), Err("too_large"), "the row");
        assert_eq!(decode(Some(&large(500)), None), Err("too_large"), "the event");
    }

    /// With one Avro schema, 1: an event whose row has a location.
    fn by_registry(envelope: Envelope, value: &[u8], op: Option<&str>) -> Result<Body, Undecoded> {
        const EVENT: &str = r#"{"type":"record","name":"E","fields":[
            {"name":"location","type":"string"},{"name":"op","type":"string"},
            {"name":"after","type":["null",{"type":"record","name":"R","fields":[{"name":"location","type":"string"}]}]}]}"#;
        let id = SchemaId(1);
        let fetched = RegisteredSchema { kind: Kind::Avro, text: EVENT.to_owned(), references: Vec::new() };
        let mut schemas = Schemas::new();
        schemas.learn(id, Ok(Arc::new(Schema::compile(id, &fetched).unwrap())));
        let decoder = Decoder::new(LocationPath::new("location").unwrap(), Epoch::default(), 100)
            .in_envelope(envelope)
            .in_forms(RecordFormat::Registry, KeyForm::Text);
        let (value, op) = (Some(Bytes::copy_from_slice(value)), op.map(str::as_bytes));
        let record = RawRecord { partition: 3, offset: 7, key: Some(b"id"), value, op };
        decoder.decode(record, &mut schemas).map(|write| write.body)
    }

    #[test]
    fn values_are_decoded_by_schema_before_rows_are_extracted() {
        let event = b"\0\0\0\0\x01\x061,2\x02u\x02\x063,4";
        let json = |envelope, op: Option<&str>| match by_registry(envelope, event, op).unwrap() {
            Body::Index { doc, .. } | Body::Patch { patch: doc, .. } => {
                String::from_utf8(doc.to_vec()).unwrap()
            }
            other => panic!("{other:?}"),
        };
        let whole = r#"{"location":"1,2","op":"u","after":{"location":"3,4"}}"#;
        assert_eq!(json(Envelope::Plain, None), whole);
        assert_eq!(json(Envelope::Plain, Some("patch")), whole);
        assert_eq!(json(Envelope::Debezium, None), r#"{"location":"3,4"}"#);
        assert_eq!(json(Envelope::Debezium, Some("index")), whole, "a tool's record is plain");
        let deleted = b"\0\0\0\0\x01\x061,2\x02d\0";
        assert_eq!(by_registry(Envelope::Debezium, deleted, None).unwrap(), Body::Delete);
        // JSON only if a header marks a tool's record.
        let plain = br#"{"location":"1,2"}"#;
        assert!(matches!(by_registry(Envelope::Plain, plain, Some("index")), Ok(Body::Index { .. })));
        let refused = by_registry(Envelope::Plain, plain, None).unwrap_err();
        assert!(
            matches!(refused, Undecoded::Bad(BadRecord::Unreadable(UnreadablePayload::NoFrame(_)))),
            "{refused}"
        );
    }

    #[test]
    fn schema_is_needed_only_if_the_value_matters() {
        let unknown = b"\0\0\0\0\x02\x061,2";
        for op in [None, Some("index"), Some("patch")] {
            let lacks = by_registry(Envelope::Plain, unknown, op).unwrap_err();
            assert!(matches!(lacks, Undecoded::Lacks(SchemaId(2))), "{op:?}: {lacks}");
        }
        for op in ["delete", "touch", "refeed"] {
            assert!(by_registry(Envelope::Plain, unknown, Some(op)).is_ok(), "{op}");
        }
        let bad = by_registry(Envelope::Plain, unknown, Some("nonsense")).unwrap_err();
        assert!(matches!(bad, Undecoded::Bad(BadRecord::Op(_))), "{bad}");
        let large = [&unknown[..], &[0; 100]].concat();
        let bad = by_registry(Envelope::Plain, &large, None).unwrap_err();
        assert!(matches!(bad, Undecoded::Bad(BadRecord::TooLarge { bytes: 109, .. })), "{bad}");
    }

    #[test]
    fn line_breaks_between_tokens_become_spaces() {
        let Body::Index { doc, .. } =
            decode(Some("{\r\n \"location\": \"1,2\",\n\"a\": \"x\\ny\"\n}\n"), None).unwrap()
        else {
            panic!()
        };
        assert_eq!(doc, "{   \"location\": \"1,2\", \"a\": \"x\\ny\" } ");
        let Body::Patch { patch, .. } = decode(Some("{\n}"), Some("patch")).unwrap() else { panic!() };
        assert_eq!(patch, "{ }");
        assert_eq!(reason(Some("{\"location\":\"1,2\",\"a\":\"x\ny\"}"), None), "unparsable_json");
    }

    #[test]
    fn header_names_the_operation_else_the_value_implies_it() {
        let document = Some(r#"{"location":"1,2"}"#);
        for op in [None, Some("index")] {
            assert!(matches!(decode(document, op).unwrap(), Body::Index { .. }));
        }
        for (value, op) in [(NO_VALUE, None), (NO_VALUE, Some("delete")), (document, Some("delete"))] {
            assert_eq!(decode(value, op).unwrap(), Body::Delete);
        }
        for value in [NO_VALUE, document, Some("what it was")] {
            assert_eq!(decode(value, Some("touch")).unwrap(), Body::Touch);
            assert_eq!(decode(value, Some("refeed")).unwrap(), Body::Refeed);
        }
        assert_eq!(reason(NO_VALUE, Some("index")), "no_value");
        assert_eq!(reason(NO_VALUE, Some("patch")), "no_value");
        for unknown in ["Index", "", "a very long unknown operation name"] {
            let error = decode(document, Some(unknown)).unwrap_err();
            assert_eq!(error.reason(), "bad_op");
            assert!(error.to_string().len() < 100, "{error}");
        }
    }

    #[test]
    fn non_object_value_is_refused_for_documents_and_patches() {
        for op in [None, Some("patch")] {
            for value in ["", " ", "null", "[]", "5", "\"x\"", "hello"] {
                assert_eq!(reason(Some(value), op), "not_an_object", "{value}");
            }
            for value in ["{", r#"{"location":"1,2"}}"#, r#"{"location":"1,2",}"#] {
                assert_eq!(reason(Some(value), op), "unparsable_json", "{value}");
            }
        }
    }

    #[test]
    fn document_needs_a_location_and_a_patch_must_keep_it() {
        assert_eq!(reason(Some("{}"), None), "no_location");
        assert_eq!(reason(Some(r#"{"location":null}"#), None), "no_location");
        assert_eq!(reason(Some(r#"{"location":"91,0"}"#), None), "bad_location");
        assert_eq!(reason(Some(r#"{"location":null}"#), Some("patch")), "location_removed");
        assert_eq!(reason(Some(r#"{"location":{"lat":91}}"#), Some("patch")), "bad_location");
        assert_eq!(reason(Some(r#"{"x":{"a":1,"a":2}}"#), Some("patch")), "duplicate_key");
        let Body::Patch { moves, .. } = decode(Some(r#"{"location":[2,1]}"#), Some("patch")).unwrap() else {
            panic!()
        };
        assert_eq!(moves, PatchMove::To(GeoPoint::new(1.0, 2.0).unwrap().into()));
    }

    #[test]
    fn value_at_the_size_limit_is_accepted_and_one_more_is_not() {
        let document = |bytes: usize| format!("{:<bytes$}", r#"{"location":"1,2"}"#);
        assert!(decode(Some(document(1_000)), None).is_ok());
        assert_eq!(decode(Some(document(1_001)), None).unwrap_err().reason(), "too_large");
    }

    #[test]
    fn bad_key_and_offset_out_of_range_are_bad_records() {
        let decoder = Decoder::new(LocationPath::new("location").unwrap(), Epoch::default(), 1_000);
        let record = RawRecord { partition: 0, offset: 0, key: None, value: None, op: None };
        assert_eq!(plain(&decoder, record.clone()).unwrap_err().reason(), "bad_key");
        let record = RawRecord { offset: -1, key: Some(b"a"), ..record };
        assert_eq!(plain(&decoder, record).unwrap_err().reason(), "bad_position");
    }

    #[test]
    fn error_names_the_place_in_the_json_but_no_content() {
        let error = decode(Some("{\"location\":\"1,2\",\n\"secret\": hunter2}"), None).unwrap_err();
        assert!(error.to_string().contains("line 2 column"), "{error}");
        assert!(!error.to_string().contains("hunter"), "{error}");
        let error = decode(Some("{}"), None).unwrap_err();
        assert_eq!(error.to_string(), "the document has no location at \"location\": it is missing");
    }
}
