//! A JSON object as the raw text of its members, in order: members can be rearranged without touching a value.
//!
//! serde_json checks the syntax of everything inside, but nothing is converted: `1.10` and 30-digit numbers stay as
//! written, and so do escapes in keys. Duplicate keys are refused, as in Elasticsearch.

use std::borrow::Cow;
use std::fmt;

use ahash::AHashMap;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use smallvec::SmallVec;
use thiserror::Error;

/// Characters of a key shown in an error: enough to find it, too few to leak a document.
const SHOWN_KEY_CHARS: usize = 40;

/// Larger objects are indexed by a map; for smaller ones a linear search is faster.
const MAX_LOOKED_THROUGH: usize = 16;

/// An object's members in order, without duplicates.
#[derive(Debug, Default)]
pub(super) struct Object<'a> {
    pub(super) members: ObjectMembers<'a>,
    /// Index of each key; only above [`MAX_LOOKED_THROUGH`] members.
    places: Option<AHashMap<Cow<'a, str>, usize>>,
}

/// A location has two.
pub(super) type ObjectMembers<'a> = SmallVec<[ObjectMember<'a>; 3]>;

/// One member of an object.
#[derive(Debug)]
pub(super) struct ObjectMember<'a> {
    /// The key with escapes resolved.
    pub(super) key: Cow<'a, str>,
    /// The key as written, with its quotes.
    pub(super) raw_key: &'a str,
    /// The value as written, without surrounding white space.
    pub(super) value: &'a str,
}

/// Why a text is not a usable object.
#[derive(Debug, Error)]
pub enum BadObject {
    /// Elasticsearch refuses it, too. Holds the offset of the first wrong byte.
    #[error("it is not valid UTF-8 at byte {0}")]
    NotUtf8(usize),
    /// Not JSON, or not an object.
    #[error("it is not a valid JSON object: {0}")]
    Json(#[from] serde_json::Error),
    /// A duplicate key. Holds the key, truncated.
    #[error("it has the duplicate key {0:?} in one object")]
    DuplicateKey(String),
    /// Objects are nested deeper than this.
    #[error("its objects are nested more than {0} levels deep")]
    TooDeep(usize),
}

impl<'a> Object<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, BadObject> {
        let RawMembers(raw_members) = serde_json::from_str(text)?;
        let mut object = Self { members: ObjectMembers::with_capacity(raw_members.len()), places: None };
        if raw_members.len() > MAX_LOOKED_THROUGH {
            object.places = Some(AHashMap::with_capacity(raw_members.len()));
        }
        for (raw_key, value) in raw_members {
            let raw_key = raw_key.get();
            let key = unescaped(raw_key)?;
            let is_there = match &mut object.places {
                Some(places) => places.insert(key.clone(), object.members.len()).is_some(),
                None => object.members.iter().any(|member| member.key == key),
            };
            if is_there {
                return Err(BadObject::DuplicateKey(shown(&key)));
            }
            object.members.push(ObjectMember { key, raw_key, value: value.get() });
        }
        Ok(object)
    }

    /// The text of the value at `key`.
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        let member = match &self.places {
            Some(places) => places.get(key).map(|&place| &self.members[place]),
            None => self.members.iter().find(|member| member.key == key),
        };
        member.map(|member| member.value)
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }
}

/// Bytes as text. Documents are checked as a whole once, so that parts of them can be sliced.
pub(super) fn text(bytes: &[u8]) -> Result<&str, BadObject> {
    std::str::from_utf8(bytes).map_err(|error| BadObject::NotUtf8(error.valid_up_to()))
}

/// Whether an already parsed value is an object; its first byte decides.
pub(super) fn is_object(value: &str) -> bool {
    value.starts_with('{')
}

pub(super) fn is_null(value: &str) -> bool {
    value == "null"
}

/// A key as shown in errors.
pub(super) fn shown(key: &str) -> String {
    match key.char_indices().nth(SHOWN_KEY_CHARS) {
        Some((end, _)) => format!("{}…", &key[..end]),
        None => key.to_owned(),
    }
}

fn unescaped(raw_key: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    let quoted = raw_key.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match quoted {
        Some(plain) if !plain.contains('\\') => Ok(Cow::Borrowed(plain)),
        _ => serde_json::from_str(raw_key).map(Cow::Owned),
    }
}

struct RawMembers<'a>(SmallVec<[(&'a RawValue, &'a RawValue); 3]>);

impl<'de> Deserialize<'de> for RawMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = SmallVec<[(&'de RawValue, &'de RawValue); 3]>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = SmallVec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(Collect).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_text_and_keys_compare_unescaped() {
        let object = Object::parse(r#" { "caf\u00e9" : 1.10 , "b":[ 1,2 ] } "#).unwrap();
        assert_eq!(object.get("café"), Some("1.10"));
        assert_eq!(object.members[0].raw_key, r#""caf\u00e9""#);
        assert_eq!(object.get("b"), Some("[ 1,2 ]"));
        assert!(!object.contains("c"));
    }

    #[test]
    fn duplicate_key_is_refused_in_any_spelling() {
        assert!(
            matches!(Object::parse(r#"{"a":1,"\u0061":2}"#), Err(BadObject::DuplicateKey(key)) if key == "a")
        );
    }

    #[test]
    fn errors_never_show_a_long_key_in_full() {
        let key = "ü".repeat(500);
        let error = Object::parse(&format!(r#"{{"{key}":1,"{key}":2}}"#)).unwrap_err();
        assert!(error.to_string().chars().count() < 100, "{error}");
    }
}
