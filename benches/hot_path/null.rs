//! An Elasticsearch that says yes to everything, at once: what is left is what geofold does itself. Requests are encoded and
//! answers decoded as for the real one.

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use geofold::io::elastic::{
    AdminAnswer, AdminCall, BulkAnswer, BulkOp, CallError, Elastic, Get, GetAnswer, Index, decode, encode,
};

/// What names of indices begin with.
pub const PREFIX: &str = "bench";

/// See the top of this file.
#[derive(Debug)]
pub struct NullElastic;

/// The answer to a `_bulk` of `items` operations that all succeed.
pub fn bulk_answer(items: usize, with_stamps: bool) -> Bytes {
    let item: &[u8] = match with_stamps {
        true => br#"{"index":{"_seq_no":1234567,"_primary_term":1,"status":200}}"#,
        false => br#"{"index":{"status":200}}"#,
    };
    list(br#"{"errors":false,"items":["#, item, items)
}

/// The answer to an `_mget` of `items` placements none of which is there.
pub fn mget_answer(items: usize) -> Bytes {
    list(br#"{"docs":["#, br#"{"_index":"bench-placements","_id":"person-0000000","found":false}"#, items)
}

fn list(open: &[u8], item: &[u8], items: usize) -> Bytes {
    let mut answer = Vec::with_capacity(open.len() + items * (item.len() + 1) + 2);
    answer.extend_from_slice(open);
    for n in 0..items {
        if n > 0 {
            answer.push(b',');
        }
        answer.extend_from_slice(item);
    }
    answer.extend_from_slice(b"]}");
    answer.into()
}

impl Elastic for NullElastic {
    fn mget<'a>(&'a self, gets: &'a [Get], _: Duration) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
        black_box(encode::mget_body(gets, PREFIX));
        ready(decode::mget_answer(&mget_answer(gets.len()), gets.len())).boxed()
    }

    fn bulk_refs<'a>(
        &'a self,
        ops: &'a [&'a BulkOp],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<BulkAnswer>, CallError>> {
        black_box(encode::bulk_path(ops, timeout));
        black_box(encode::bulk_body(ops, PREFIX));
        let is_placement = |op: &&BulkOp| matches!(op, BulkOp::Index { index: Index::Placements, .. });
        let answer = bulk_answer(ops.len(), ops.iter().any(is_placement));
        ready(decode::bulk_answer(&answer, ops.len())).boxed()
    }

    fn refresh<'a>(&'a self, _: &'a [Index], _: Duration) -> BoxFuture<'a, Result<(), CallError>> {
        ready(Ok(())).boxed()
    }

    fn admin<'a>(&'a self, _: AdminCall, _: Duration) -> BoxFuture<'a, Result<AdminAnswer, CallError>> {
        ready(Err(CallError::Undecodable("nothing but documents is asked for here".to_owned()))).boxed()
    }
}
