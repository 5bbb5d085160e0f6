//! Requests as bytes: `_bulk` and `_mget` bodies, and the paths they are posted to. Pure.
//!
//! A bulk body is NDJSON: an action line, then the source where there is one. Bodies are the bulk of the work that a
//! worker does per document, so they are written by hand into one buffer of the right size: no tree, no `String` per
//! operation, and the source is copied exactly once.

use std::borrow::Borrow;
use std::time::Duration;

use bytes::Bytes;

use super::{BulkOp, Get, Index, SeqNo, WriteCondition};
use crate::base::ids::DocId;
pub use crate::base::requests::MAX_PREFIX_BYTES;
use crate::base::sabotage::{self, Sabotage};

/// Everything of an action line but prefix, index suffix and id, at its longest (`if_seq_no` and `if_primary_term` of
/// 20 digits each), with both line breaks.
const ACTION_BYTES: usize = 128;

/// The beginning of a delete.
const DELETE: &[u8] = br#"{"delete":{"_index":""#;

/// Path of `_mget`. Deliberately without `filter_path`: with a filter Elasticsearch parses and rewrites each `_source`, which
/// costs time and changes bytes (`1.10` becomes `1.1`).
pub const MGET_PATH: &str = "/_mget?realtime=true";

/// An `_mget` body.
pub fn mget_body(gets: &[Get], prefix: &str) -> Bytes {
    let size = gets.iter().map(|get| get_bytes(get, prefix.len())).sum::<usize>() + 16;
    let mut body = Vec::with_capacity(size);
    body.extend_from_slice(b"{\"docs\":[");
    for (n, get) in gets.iter().enumerate() {
        if n > 0 {
            body.push(b',');
        }
        put_address(&mut body, br#"{"_index":""#, &get.index, &get.id, prefix);
        body.push(b'}');
    }
    body.extend_from_slice(b"]}");
    debug_assert!(body.len() <= size, "get_bytes must be an upper bound");
    body.into()
}

/// A `_bulk` body.
pub fn bulk_body<T: Borrow<BulkOp>>(ops: &[T], prefix: &str) -> Bytes {
    let ops = || ops.iter().map(T::borrow);
    // Enough unless many ids need escapes.
    let size = ops().map(|op| op_bytes(op, prefix.len(), op.id().as_str().len())).sum();
    let mut body = Vec::with_capacity(size);
    for op in ops() {
        match op {
            BulkOp::Index { index, id, guard, source } => {
                debug_assert!(!source.contains(&b'\n'), "a line break would end the operation");
                let open: &[u8] = match guard {
                    WriteCondition::Absent => br#"{"create":{"_index":""#,
                    _ => br#"{"index":{"_index":""#,
                };
                put_address(&mut body, open, index, id, prefix);
                put_guard(&mut body, guard);
                body.extend_from_slice(b"}}\n");
                body.extend_from_slice(source);
                body.push(b'\n');
            }
            BulkOp::Delete { index, id, version } => {
                put_address(&mut body, DELETE, index, id, prefix);
                if !sabotage::is(Sabotage::DeleteWithoutVersion) {
                    put_guard(&mut body, &WriteCondition::External(*version));
                }
                body.extend_from_slice(b"}}\n");
            }
            BulkOp::Remove { index, id, stamp } => {
                put_address(&mut body, DELETE, index, id, prefix);
                put_guard(&mut body, &WriteCondition::Unchanged(*stamp));
                body.extend_from_slice(b"}}\n");
            }
        }
    }
    body.into()
}

/// Where a `_bulk` body with these operations is posted to.
///
/// `timeout` is the client's; the server gets four fifths of it (as `timeout`, its wait for a primary), so that it gives
/// up first and says so. The answer is filtered down to what `decode.rs` reads; sequence numbers are asked for only if
/// a placement is written, or a claim, since nothing else is compared and set again.
pub fn bulk_path<T: Borrow<BulkOp>>(ops: &[T], timeout: Duration) -> String {
    let stamps = if ops.iter().map(T::borrow).any(wants_stamp) {
        ",items.*._seq_no,items.*._primary_term"
    } else {
        ""
    };
    format!(
        "/_bulk?timeout={}ms&filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason,\
         items.*.error.caused_by.reason{stamps}",
        (timeout * 4 / 5).as_millis().max(1),
    )
}

/// An upper bound of an operation's size in a `_bulk` body, for any prefix up to [`MAX_PREFIX_BYTES`].
pub fn bulk_op_bytes(op: &BulkOp) -> usize {
    op_bytes(op, MAX_PREFIX_BYTES, escaped_len(op.id().as_str()))
}

/// An upper bound of a get's size in an `_mget` body, for any prefix up to [`MAX_PREFIX_BYTES`].
pub fn mget_get_bytes(get: &Get) -> usize {
    get_bytes(get, MAX_PREFIX_BYTES)
}

fn wants_stamp(op: &BulkOp) -> bool {
    match op {
        BulkOp::Index { index: Index::Placements, .. } => true,
        BulkOp::Index { index: Index::Meta, guard, .. } => {
            matches!(guard, WriteCondition::Absent | WriteCondition::Unchanged(_))
        }
        _ => false,
    }
}

/// With a prefix and an id of these lengths.
fn op_bytes(op: &BulkOp, prefix: usize, id: usize) -> usize {
    let source = if let BulkOp::Index { source, .. } = op { source.len() } else { 0 };
    ACTION_BYTES + prefix + op.address().0.suffix().len() + id + source
}

fn get_bytes(get: &Get, prefix: usize) -> usize {
    // `{"_index":"-","_id":""},`
    24 + prefix + get.index.suffix().len() + escaped_len(get.id.as_str())
}

/// Writes `open`, which ends with `"_index":"`, then the rest of `"_index":"…","_id":"…"`. A prefix and a suffix of an index name
/// never need escaping.
fn put_address(body: &mut Vec<u8>, open: &[u8], index: &Index, id: &DocId, prefix: &str) {
    body.extend_from_slice(open);
    body.extend_from_slice(prefix.as_bytes());
    body.push(b'-');
    body.extend_from_slice(index.suffix().as_bytes());
    body.extend_from_slice(br#"","_id":""#);
    put_escaped(body, id.as_str());
    body.push(b'"');
}

fn put_guard(body: &mut Vec<u8>, guard: &WriteCondition) {
    match guard {
        WriteCondition::Absent => {}
        WriteCondition::External(at) => {
            put_number(body, b",\"version\":", at.version());
            body.extend_from_slice(b",\"version_type\":\"external\"");
        }
        WriteCondition::ExternalOrEqual(at) => {
            put_number(body, b",\"version\":", at.version());
            body.extend_from_slice(b",\"version_type\":\"external_gte\"");
        }
        WriteCondition::Unchanged(SeqNo { seq_no, primary_term }) => {
            put_number(body, b",\"if_seq_no\":", *seq_no);
            put_number(body, b",\"if_primary_term\":", *primary_term);
        }
    }
}

/// Writes `open`, then a number in decimal. There is one for every operation, and the standard library's formatting takes
/// several times as long.
fn put_number(body: &mut Vec<u8>, open: &[u8], number: u64) {
    body.extend_from_slice(open);
    body.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Writes text as the inside of a JSON string (RFC 8259, section 7: quote, backslash and control characters).
pub(super) fn put_escaped(body: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    if !text.bytes().any(needs_escape) {
        return body.extend_from_slice(bytes);
    }
    let mut plain_from = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if !needs_escape(byte) {
            continue;
        }
        body.extend_from_slice(&bytes[plain_from..at]);
        plain_from = at + 1;
        match byte {
            b'"' | b'\\' => body.extend_from_slice(&[b'\\', byte]),
            control => {
                body.extend_from_slice(b"\\u00");
                body.extend_from_slice(&[HEX[usize::from(control >> 4)], HEX[usize::from(control & 15)]]);
            }
        }
    }
    body.extend_from_slice(&bytes[plain_from..]);
}

fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Upper bound of the bytes that [`put_escaped`] writes.
fn escaped_len(text: &str) -> usize {
    text.len() + 5 * text.bytes().filter(|&byte| needs_escape(byte)).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::base::ids::ShardId;
    use crate::base::position::Position;
    use crate::testkit::testing::id;

    fn shard() -> Index {
        Index::Geoshard(ShardId::new("s01").unwrap())
    }

    fn write(index: Index, id: DocId, guard: WriteCondition) -> BulkOp {
        BulkOp::Index { index, id, guard, source: Bytes::from_static(b"{\"a\":1}") }
    }

    #[test]
    fn bulk_body_has_action_lines_and_optional_source_lines() {
        let version = Position::from_version(17);
        let ops = [
            write(shard(), id("a"), WriteCondition::External(version)),
            write(shard(), id("b"), WriteCondition::ExternalOrEqual(version)),
            write(Index::Placements, id("c"), WriteCondition::Absent),
            write(
                Index::Placements,
                id("d"),
                WriteCondition::Unchanged(SeqNo { seq_no: 5, primary_term: 2 }),
            ),
            BulkOp::Delete { index: shard(), id: id("e"), version },
        ];
        let body = bulk_body(&ops, "p");
        let expected = r#"{"index":{"_index":"p-s01","_id":"a","version":17,"version_type":"external"}}
{"a":1}
{"index":{"_index":"p-s01","_id":"b","version":17,"version_type":"external_gte"}}
{"a":1}
{"create":{"_index":"p-placements","_id":"c"}}
{"a":1}
{"index":{"_index":"p-placements","_id":"d","if_seq_no":5,"if_primary_term":2}}
{"a":1}
{"delete":{"_index":"p-s01","_id":"e","version":17,"version_type":"external"}}
"#;
        assert_eq!(std::str::from_utf8(&body).unwrap(), expected);
    }

    #[test]
    fn sequence_numbers_are_asked_for_only_where_a_placement_is_written() {
        let version = Position::from_version(1);
        let document = write(shard(), id("a"), WriteCondition::External(version));
        let placement = write(Index::Placements, id("a"), WriteCondition::Absent);
        let path = bulk_path(std::slice::from_ref(&document), Duration::from_secs(10));
        assert!(path.starts_with("/_bulk?timeout=8000ms&filter_path=errors,items.*.status,"), "{path}");
        assert!(!path.contains("_seq_no"), "{path}");
        assert!(bulk_path(&[document, placement], Duration::ZERO).contains("timeout=1ms"));
        assert!(
            bulk_path(&[write(Index::Placements, id("a"), WriteCondition::Absent)], Duration::from_secs(1))
                .ends_with(",items.*._seq_no,items.*._primary_term")
        );
    }

    #[test]
    fn no_gets_are_an_empty_list_and_no_operations_an_empty_body() {
        assert_eq!(mget_body(&[], "p"), "{\"docs\":[]}".as_bytes());
        assert!(bulk_body::<BulkOp>(&[], "p").is_empty());
    }

    proptest! {
        #[test]
        fn any_id_arrives_as_it_is_and_sizes_are_upper_bounds(
            text in "\\PC{0,20}[\"\\\\\\x00-\\x1f\u{7f}\u{2028}]{0,5}x", version in any::<u64>(), seq_no: u64,
        ) {
            let at = Position::from_version(version);
            let stamp = SeqNo { seq_no, primary_term: version };
            let prefix = "p".repeat(MAX_PREFIX_BYTES);
            for guard in [
                WriteCondition::External(at), WriteCondition::ExternalOrEqual(at), WriteCondition::Absent, WriteCondition::Unchanged(stamp),
            ] {
                let op = write(Index::Placements, id(&text), guard);
                let body = bulk_body(std::slice::from_ref(&op), &prefix);
                prop_assert!(body.len() <= bulk_op_bytes(&op));
                let mut lines = body.split(|&byte| byte == b'\n');
                let action: Value = serde_json::from_slice(lines.next().unwrap()).unwrap();
                let action = action.as_object().unwrap().values().next().unwrap();
                prop_assert_eq!(&action["_id"], &json!(text));
                prop_assert_eq!(lines.next().unwrap(), b"{\"a\":1}");
                prop_assert_eq!(lines.next().unwrap(), b"");
                prop_assert!(lines.next().is_none());
            }

            let get = Get::realtime(shard(), id(&text));
            prop_assert!(mget_body(std::slice::from_ref(&get), &prefix).len() <= mget_get_bytes(&get) + 16);
            let body: Value = serde_json::from_slice(&mget_body(&[get.clone(), get], "p")).unwrap();
            let slot = json!({"_index": "p-s01", "_id": text});
            prop_assert_eq!(body, json!({"docs": [&slot, &slot]}));
        }
    }
}
