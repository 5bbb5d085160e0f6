//! Ids of documents and geoshards.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::shard_names::{self, KeptName};

/// Elasticsearch's limit on the bytes of an `_id`.
pub const MAX_DOC_ID_BYTES: usize = 512;

/// A document's id: the Kafka key and the Elasticsearch `_id`. Cheap to clone; ordered by bytes.
#[derive(Clone, Eq, PartialOrd, Ord)]
pub struct DocId(Arc<str>);

impl PartialEq for DocId {
    /// Mostly clones are compared, which are equal without being read; `Arc<str>` would read both.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Hash for DocId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// Why a Kafka key cannot be a document id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadDocId {
    /// No key, or an empty one.
    #[error("the record has no key; the key must be the document's id")]
    Empty,
    /// Longer than [`MAX_DOC_ID_BYTES`].
    #[error("the key has {0} bytes, but an Elasticsearch id may have {MAX_DOC_ID_BYTES} at most")]
    TooLong(usize),
    /// Elasticsearch ids are strings.
    #[error("the key is not valid UTF-8")]
    NotUtf8,
}

impl DocId {
    /// Makes a document id of a Kafka key.
    pub fn from_key(key: Option<&[u8]>) -> Result<Self, BadDocId> {
        let key = key.filter(|key| !key.is_empty()).ok_or(BadDocId::Empty)?;
        if key.len() > MAX_DOC_ID_BYTES {
            return Err(BadDocId::TooLong(key.len()));
        }
        let id = std::str::from_utf8(key).map_err(|_| BadDocId::NotUtf8)?;
        Ok(Self(id.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for DocId {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for DocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for DocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A geoshard's id: the part of its index name after the prefix. Lower-case letters, digits, `-` and `_`. Ordered by its text, which
/// lives as long as the process (`shard_names.rs`), so that clones cost nothing.
#[derive(Clone, Eq, PartialOrd, Ord)]
pub struct ShardId(KeptName);

impl PartialEq for ShardId {
    /// Equal names are kept once.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Hash for ShardId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.0, state);
    }
}

/// Why a text is not a geoshard id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{id:?} cannot be a geoshard's id: {reason}")]
pub struct BadShardId {
    id: String,
    reason: &'static str,
}

impl ShardId {
    /// Maximum bytes.
    pub const MAX_BYTES: usize = 64;

    /// Index name suffixes reserved for geofold.
    pub const RESERVED: [&'static str; 2] = ["placements", "meta"];

    /// Checks that `id` can end an index name and is not one of [`ShardId::RESERVED`].
    pub fn new(id: &str) -> Result<Self, BadShardId> {
        let bad = |reason| Err(BadShardId { id: id.to_owned(), reason });
        if id.is_empty() || id.len() > Self::MAX_BYTES {
            return bad("it must have 1 to 64 characters");
        }
        if !id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_') {
            return bad("only lower-case letters, digits, '-' and '_' are allowed");
        }
        if Self::RESERVED.contains(&id) {
            return bad("this name is reserved for geofold's own index");
        }
        match shard_names::interned(id) {
            Some(name) => Ok(Self(name)),
            None => bad("this process has met too many other ids; restart it"),
        }
    }

    /// The id as text.
    pub fn as_str(&self) -> &'static str {
        self.0
    }
}

impl Serialize for ShardId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ShardId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::new(&id).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_becomes_an_id_only_if_elasticsearch_accepts_it() {
        assert_eq!(DocId::from_key(Some("Zoë".as_bytes())).unwrap().as_str(), "Zoë");
        assert_eq!(DocId::from_key(None), Err(BadDocId::Empty));
        assert_eq!(DocId::from_key(Some(b"")), Err(BadDocId::Empty));
        assert_eq!(DocId::from_key(Some(&[0xff])), Err(BadDocId::NotUtf8));
        assert!(DocId::from_key(Some(&[b'a'; 512])).is_ok());
        assert_eq!(DocId::from_key(Some(&[b'a'; 513])), Err(BadDocId::TooLong(513)));
    }

    #[test]
    fn shard_id_must_be_a_valid_index_suffix() {
        assert!(ShardId::new("eu-west_01").is_ok());
        for bad in ["", "EU", "a b", "a/b", "placements", "meta", "ü"] {
            assert!(ShardId::new(bad).is_err(), "{bad}");
        }
    }
}
