//! An owned record, copied once out of librdkafka.

use std::hash::{BuildHasher, Hash, Hasher};

use ahash::RandomState;
use bytes::Bytes;
use rdkafka::Message;
use rdkafka::message::{BorrowedMessage, Header, Headers, OwnedHeaders};

use super::budget::RECORD_OVERHEAD_BYTES;
use crate::base::headers::OP_HEADER;
use crate::core::decode::{Decoder, LocationPath, OP_TWICE, RawRecord};
use crate::io::kafka::{FetchedRecord, owned_headers};
use crate::support::config::Config;

/// How a worker reads records; `location` is `documents.location`.
pub fn decoder(config: &Config, location: LocationPath) -> Decoder {
    Decoder::new(location, config.positions.epoch, config.documents.max_bytes.as_usize())
        .in_envelope(config.kafka.envelope)
        .in_forms(config.kafka.format, config.kafka.key.clone())
}

/// One Kafka record.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its offset.
    pub offset: i64,
    /// Its key, byte for byte.
    pub key: Option<Bytes>,
    /// Its value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// All its headers, if any.
    pub headers: Option<OwnedHeaders>,
}

impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        self.offset == other.offset && self.digest() == other.digest()
    }
}

impl Record {
    /// A copy of what a consumer has polled.
    pub fn copy_of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map(owned_headers);
        Self::copied(message.offset(), message.key(), message.payload(), headers)
    }

    /// A copy of what was fetched.
    pub fn copy_of_fetched(record: &FetchedRecord<'_>) -> Self {
        Self::copied(record.offset(), record.key(), record.value(), record.headers())
    }

    /// Copies key and value into one allocation.
    fn copied(offset: i64, key: Option<&[u8]>, value: Option<&[u8]>, headers: Option<OwnedHeaders>) -> Self {
        let mut both = Vec::with_capacity(key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len));
        both.extend_from_slice(key.unwrap_or_default());
        both.extend_from_slice(value.unwrap_or_default());
        let mut both = Bytes::from(both);
        let key_bytes = both.split_to(key.map_or(0, <[u8]>::len));
        Self { offset, key: key.map(|_| key_bytes), value: value.map(|_| both), headers }
    }

    /// Memory cost in bytes.
    pub fn bytes(&self) -> usize {
        let header_bytes =
            |header: Header<'_, &[u8]>| header.key.len() + header.value.map_or(0, <[u8]>::len) + 32;
        self.key.as_ref().map_or(0, Bytes::len)
            + self.value.as_ref().map_or(0, Bytes::len)
            + self.all_headers().map(header_bytes).sum::<usize>()
            + RECORD_OVERHEAD_BYTES
    }

    /// A digest of the whole record, to compare it with a later one. Valid in this process only.
    pub fn digest(&self) -> u64 {
        let mut hasher = RandomState::with_seeds(0, 0, 0, 0).build_hasher();
        (&self.key, &self.value).hash(&mut hasher);
        for header in self.all_headers() {
            (header.key, header.value).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn all_headers(&self) -> impl Iterator<Item = Header<'_, &[u8]>> {
        self.headers.iter().flat_map(Headers::iter)
    }

    /// What decoding reads of it: a header that it needs is a field of [`RawRecord`].
    pub fn raw(&self, partition: i32) -> RawRecord<'_> {
        RawRecord {
            partition,
            offset: self.offset,
            key: self.key.as_deref(),
            value: self.value.clone(),
            op: self.op(),
        }
    }

    /// The value of the `geofold-op` header; [`OP_TWICE`], which is no operation, if there are several.
    pub fn op(&self) -> Option<&[u8]> {
        let mut found = self.all_headers().filter(|header| header.key == OP_HEADER);
        let first = found.next()?;
        if found.next().is_some() { Some(OP_TWICE) } else { first.value }
    }
}
