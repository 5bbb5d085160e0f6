//! Finds a document's location in one pass that validates all of the JSON and keeps only the location's text.
//!
//! Only members along the path are entered; everything else is skipped, by `plain.rs` or, for an unusual document, by
//! serde_json's scanner, which checks syntax and builds no values.

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::object::{BadObject, text};
use super::plain;
use super::point::{self, BadForm};
use crate::base::geo::GeoPoint;
use crate::core::write::PatchMove;

/// Path of the location field as in a mapping: `location`, `place.point`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocationPath(Arc<str>);

/// Why a text is not a field path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a field path: it must be names separated by dots")]
pub struct BadLocationPath(String);

/// Why a document or a patch has no usable location.
#[derive(Debug, thiserror::Error)]
pub enum BadLocation {
    /// The enclosing JSON is invalid.
    #[error(transparent)]
    Json(#[from] BadObject),
    /// Missing, or inside something that is not an object.
    #[error("it is missing")]
    Missing,
    /// Null; in a patch, also a parent that is replaced by something without it.
    #[error("it is null")]
    Null,
    /// The same field in two spellings (`"a.b"` beside `"a": {"b": …}`), or a duplicate key.
    #[error("it appears more than once")]
    Twice,
    /// Present, but not a location.
    #[error(transparent)]
    Form(#[from] BadForm),
}

impl From<serde_json::Error> for BadLocation {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error.into())
    }
}

impl LocationPath {
    /// Checks that no part of the path is empty.
    pub fn new(path: &str) -> Result<Self, BadLocationPath> {
        if path.split('.').any(|name| name.trim().is_empty()) {
            return Err(BadLocationPath(path.to_owned()));
        }
        Ok(Self(path.into()))
    }

    /// The path with its dots.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The location of a whole document. Checks the syntax of all of `document`, which must be an object.
    pub fn locate(&self, document: &[u8]) -> Result<GeoPoint, BadLocation> {
        let value = match plain::value_at(document, &self.0)? {
            Some(value) => value,
            None => match self.find(text(document)?)? {
                FoundLocation::Value(raw) => raw.get(),
                FoundLocation::Twice => return Err(BadLocation::Twice),
                FoundLocation::Nothing | FoundLocation::Blocked => return Err(BadLocation::Missing),
            },
        };
        match value {
            "null" => Err(BadLocation::Null),
            value => Ok(point::parse(value)?),
        }
    }

    /// The effect of a merge patch on the location. Checks the syntax of all of `patch`, which must be an object.
    /// [`BadLocation::Null`] if it removes the location.
    pub fn patch_move(&self, patch: &[u8]) -> Result<PatchMove, BadLocation> {
        match self.find(text(patch)?)? {
            FoundLocation::Nothing => Ok(PatchMove::Stays),
            FoundLocation::Value(raw) if raw.get() == "null" => Err(BadLocation::Null),
            FoundLocation::Value(raw) => Ok(point::parse_patch(raw.get())?),
            FoundLocation::Blocked => Err(BadLocation::Null),
            FoundLocation::Twice => Err(BadLocation::Twice),
        }
    }

    /// What serde_json finds at the path, in any document.
    pub(super) fn find<'de>(&self, document: &'de str) -> Result<FoundLocation<'de>, serde_json::Error> {
        let mut found = FoundLocation::Nothing;
        let mut deserializer = serde_json::Deserializer::from_str(document);
        Descent { path: &self.0, found: &mut found }.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(found)
    }
}

impl Default for LocationPath {
    /// `location`.
    fn default() -> Self {
        Self("location".into())
    }
}

impl fmt::Display for LocationPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value at the path.
pub(super) enum FoundLocation<'de> {
    Nothing,
    Value(&'de RawValue),
    /// A parent along the path is null, a scalar or an array.
    Blocked,
    Twice,
}

impl<'de> FoundLocation<'de> {
    fn add(&mut self, another: FoundLocation<'de>) {
        *self = match self {
            Self::Nothing => another,
            _ => Self::Twice,
        };
    }
}

/// Visits a value with the rest of the path below it.
struct Descent<'p, 'f, 'de> {
    path: &'p str,
    found: &'f mut FoundLocation<'de>,
}

impl<'de> DeserializeSeed<'de> for Descent<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Descent<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(step) = map.next_key_seed(Key { path: self.path })? {
            match step {
                Step::Aside => {
                    map.next_value::<IgnoredAny>()?;
                }
                Step::There => self.found.add(FoundLocation::Value(map.next_value()?)),
                Step::Towards(path) => map.next_value_seed(Descent { path, found: self.found })?,
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        self.found.add(FoundLocation::Blocked);
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.found.add(FoundLocation::Blocked);
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.visit_unit()
    }
}

/// The meaning of a key for the path.
enum Step<'p> {
    Aside,
    There,
    Towards(&'p str),
}

/// Compares a key with the path. A key with dots may cover several levels, as in Elasticsearch.
struct Key<'p> {
    path: &'p str,
}

impl<'de, 'p> DeserializeSeed<'de> for Key<'p> {
    type Value = Step<'p>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Step<'p>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'p> Visitor<'_> for Key<'p> {
    type Value = Step<'p>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Step<'p>, E> {
        let Some(rest) = self.path.strip_prefix(key) else { return Ok(Step::Aside) };
        if rest.is_empty() {
            return Ok(Step::There);
        }
        Ok(rest.strip_prefix('.').map_or(Step::Aside, Step::Towards))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> LocationPath {
        LocationPath::new(path).unwrap()
    }

    #[test]
    fn location_is_found_wherever_elasticsearch_finds_it() {
        for document in [
            r#"{"x":{"a":{"b":{"c":"9,9"}}},"a":{"b":{"c":"1,2"}},"c":"9,9","":0}"#,
            r#"{"a.b.c":"1,2"}"#,
            r#"{"a":{"b.c":"1,2","bc":"9,9"}}"#,
            r#"{"a.b":{"c":"1,2"},"a.bc":5,"ab":{}}"#,
            r#"{"\u0061":{"b":{"c":"1,2"}},"a.":5}"#,
        ] {
            let point =
                path("a.b.c").locate(document.as_bytes()).unwrap_or_else(|e| panic!("{document}: {e}"));
            assert_eq!((point.lat(), point.lon()), (1.0, 2.0), "{document}");
        }
    }

    #[test]
    fn missing_location_differs_from_a_bad_one() {
        let at = |document: &str| path("a.b").locate(document.as_bytes()).unwrap_err();
        for missing in
            ["{}", r#"{"a":{}}"#, r#"{"a":5}"#, r#"{"a":"b"}"#, r#"{"a":[{"b":"1,2"}]}"#, r#"{"a":null}"#]
        {
            assert!(matches!(at(missing), BadLocation::Missing), "{missing}");
        }
        assert!(matches!(at(r#"{"a":{"b":null}}"#), BadLocation::Null));
        assert!(matches!(at(r#"{"a":{"b":91}}"#), BadLocation::Form(_)));
    }

    #[test]
    fn two_locations_are_refused_in_any_spelling() {
        for document in [r#"{"a":{"b":"1,2","b":"1,2"}}"#, r#"{"a":{"b":"1,2"},"a.b":"1,2"}"#] {
            assert!(matches!(path("a.b").locate(document.as_bytes()), Err(BadLocation::Twice)), "{document}");
        }
    }

    #[test]
    fn all_of_the_json_is_checked_beyond_the_location() {
        for document in [
            r#"{"location":"1,2""#,
            r#"{"location":"1,2"} x"#,
            r#"{"location":"1,2","x":[1,]}"#,
            "{\"location\":\"1,2\",\"x\":\"line\nbreak\"}",
            r#"{"location":"1,2","x":01}"#,
        ] {
            assert!(
                matches!(
                    path("location").locate(document.as_bytes()),
                    Err(BadLocation::Json(BadObject::Json(_)))
                ),
                "{document}"
            );
        }
        let not_utf8 = b"{\"location\":\"1,2\",\"x\":\"\xff\"}";
        assert!(matches!(path("location").locate(not_utf8), Err(BadLocation::Json(BadObject::NotUtf8(23)))));
    }

    #[test]
    fn patch_removes_the_location_by_null_or_a_replaced_parent() {
        let moves = |patch: &str| path("a.b").patch_move(patch.as_bytes());
        for away in [
            r#"{"a":null}"#,
            r#"{"a":{"b":null}}"#,
            r#"{"a.b":null}"#,
            r#"{"a":5}"#,
            r#"{"a":[{"b":"1,2"}]}"#,
        ] {
            assert!(matches!(moves(away), Err(BadLocation::Null)), "{away}");
        }
        for stays in ["{}", r#"{"a":{}}"#, r#"{"a":{"x":null}}"#, r#"{"b":null}"#] {
            assert_eq!(moves(stays).unwrap(), PatchMove::Stays, "{stays}");
        }
        assert_eq!(moves(r#"{"a":{"b":{"lat":5}}}"#).unwrap(), PatchMove::Unclear);
    }

    #[test]
    fn path_has_no_empty_names() {
        for bad in ["", ".", "a.", ".a", "a..b", " "] {
            assert!(LocationPath::new(bad).is_err(), "{bad:?}");
        }
    }
}
