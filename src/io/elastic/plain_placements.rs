//! Reads many placements at less cost to Elasticsearch than an `_mget` of them.
//!
//! For the content of a document, a get decompresses the block of stored fields that it is in: five times the cost of finding it. A
//! search takes content from doc values instead, but does not see the latest writes. So there are up to three requests:
//!
//! 1. `_mget` without content: in which state (`_seq_no`, `_primary_term`) each placement is, realtime;
//! 2. `_search`: the content of plain placements ([`Placement::is_plain`]), and the state that it belongs to;
//! 3. `_mget` of those of which the search did not give the content in their state.
//!
//! *Invariant:* the answers are those of an `_mget`. A primary shard gives each state to one write only, so the same state is the
//! same content. Several primaries may give the same one: nothing is taken from a search of these.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{CallError, Get, GetAnswer, Index, SeqNo, decode, encode};
use crate::base::clock::Instant;
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::core::placement::Placement;

/// Fewer are read by one `_mget`: two more requests would cost more than they save.
const FEWEST: usize = 100;
/// `index.max_result_window`.
const MOST: usize = 10_000;
/// For how long nothing is searched after a search that gave less than half of what it was asked for.
const PAUSE: Duration = Duration::from_secs(60);

/// Path of the first request.
pub(super) const STATES_PATH: &str = "/_mget?realtime=true&_source=false&filter_path=docs.found,docs._version,docs._seq_no,\
                                      docs._primary_term,docs.error";

/// Path of the second.
pub(super) fn search_path(prefix: &str) -> String {
    format!(
        "/{}/_search?request_cache=false&filter_path=_shards.total,hits.hits._seq_no,hits.hits._primary_term,hits.hits.fields",
        Index::Placements.name(prefix)
    )
}

/// Body of the second.
pub(super) fn search_body<'a>(ids: impl ExactSizeIterator<Item = &'a DocId>) -> Bytes {
    let mut body = format!(
        r#"{{"size":{},"track_total_hits":false,"sort":["_doc"],"_source":false,"stored_fields":"_none_","seq_no_primary_term":true,"docvalue_fields":["pos","shard","leftovers","partition","deleted"],"query":{{"ids":{{"values":["#,
        ids.len()
    )
    .into_bytes();
    for (n, id) in ids.enumerate() {
        body.extend_from_slice(if n > 0 { b",\"" } else { b"\"" });
        encode::put_escaped(&mut body, id.as_str());
        body.push(b'"');
    }
    body.extend_from_slice(b"]}}}");
    body.into()
}

/// Contents of plain placements by their states.
pub(super) type Contents = HashMap<SeqNo, Bytes, RandomState>;

/// Decodes the answer to the second request.
pub(super) fn search_answer(body: &[u8]) -> Result<Contents, CallError> {
    #[derive(Deserialize)]
    struct Body {
        _shards: Shards,
        #[serde(default)]
        hits: Hits,
    }
    #[derive(Deserialize)]
    struct Shards {
        total: u32,
    }
    #[derive(Deserialize, Default)]
    struct Hits {
        #[serde(default)]
        hits: Vec<Hit>,
    }
    #[derive(Deserialize)]
    struct Hit {
        _seq_no: Option<i64>,
        _primary_term: Option<i64>,
        #[serde(default)]
        fields: Fields,
    }
    /// Each a list of one value; absent where the placement has none, and from an index of an earlier build.
    #[derive(Deserialize, Default)]
    struct Fields {
        pos: Option<[Position; 1]>,
        shard: Option<[ShardId; 1]>,
        /// Of a placement that somebody edited.
        leftovers: Option<IgnoredAny>,
        partition: Option<[i32; 1]>,
        deleted: Option<[bool; 1]>,
    }
    let Body { _shards: Shards { total }, hits: Hits { hits } } = decode::parse(body, "search")?;
    if total != 1 {
        return Ok(Contents::default());
    }
    let content = |Hit { _seq_no, _primary_term, fields }| {
        let Fields {
            pos: Some([pos]),
            shard: Some([shard]),
            leftovers: None,
            partition,
            deleted: Some([false]),
        } = fields
        else {
            return None;
        };
        let partition = partition.map(|[partition]| partition);
        let content = Placement::new(pos, Some(shard), []).by_partition(partition).to_json();
        Some((decode::stamp(_seq_no, _primary_term)?, content))
    };
    Ok(hits.into_iter().filter_map(content).collect())
}

/// Whether searches give what they are asked for. Not where the index was created by an earlier build, has several primaries, is
/// refreshed rarely, or where documents are counted, since no placement is plain then.
#[derive(Debug, Default)]
pub(super) struct SearchSwitch(Mutex<Option<Instant>>);

impl SearchSwitch {
    /// Whether these are to be read in this way.
    pub(super) fn is_for(&self, gets: &[Get], now: Instant) -> bool {
        let are_placements = || gets.iter().all(|get| get.index == Index::Placements);
        let is_on = || self.off_until().is_none_or(|until| until <= now);
        gets.len() >= FEWEST && are_placements() && is_on()
    }

    /// Notes what a search gave of that many placements.
    fn note(&self, given: usize, of: usize, now: Instant) {
        if given < of / 2 {
            *self.off_until() = Some(now + PAUSE);
        }
    }

    fn off_until(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers that are to become those of an `_mget`.
pub(super) struct PlacementReads {
    /// Found, and with an empty source: the content is not known yet.
    answers: Vec<GetAnswer>,
}

impl PlacementReads {
    /// From the answer to the first request.
    pub(super) fn begin(states: &[u8], expected: usize) -> Result<Self, CallError> {
        Ok(Self { answers: decode::states_answer(states, expected)? })
    }

    /// Places of those whose content is not known.
    pub(super) fn unknown(&self) -> Vec<usize> {
        let is_unknown =
            |answer: &GetAnswer| matches!(answer, GetAnswer::Found(found) if found.source.is_empty());
        (0..self.answers.len()).filter(|&place| is_unknown(&self.answers[place])).collect()
    }

    /// Whether a search for so many pays.
    pub(super) fn pays(unknown: usize) -> bool {
        (FEWEST..=MOST).contains(&unknown)
    }

    /// Takes the contents that belong to the states.
    pub(super) fn searched(&mut self, contents: &Contents, switch: &SearchSwitch, now: Instant) {
        let (mut unknown, mut given) = (0, 0);
        for answer in &mut self.answers {
            if let GetAnswer::Found(found) = answer {
                unknown += 1;
                if let Some(content) = contents.get(&found.stamp) {
                    given += 1;
                    found.source = content.clone();
                }
            }
        }
        switch.note(given, unknown, now);
    }

    /// Takes the answers to the third request, for what was unknown.
    pub(super) fn read(mut self, unknown: &[usize], answers: Vec<GetAnswer>) -> Vec<GetAnswer> {
        for (&place, answer) in unknown.iter().zip(answers) {
            self.answers[place] = answer;
        }
        self.answers
    }
}
