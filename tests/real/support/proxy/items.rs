//! Requests of which a part fails: the operations of one shard of an index are refused and the others carried out, as by a
//! server with many shards of which one is too busy, or has no primary for a moment.
//!
//! What is refused is taken out of the request, so a refused operation was never carried out; its refusal is put into the
//! answer where it belongs. Pure.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Each index counts as having so many shards: documents of one shard are refused together.
const SHARDS: u64 = 3;

/// Why a shard refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// 429: its queue is full.
    Busy,
    /// 503: it has no primary now.
    Unavailable,
}

impl Refusal {
    fn error(self) -> (u16, Value) {
        let (status, kind, reason) = match self {
            Self::Busy => (429, "es_rejected_execution_exception", "rejected execution of primary operation"),
            Self::Unavailable => (503, "unavailable_shards_exception", "primary shard is not active"),
        };
        (status, json!({"type": kind, "reason": reason}))
    }
}

/// A `_bulk` request without what is refused.
pub struct Split {
    /// The body to pass on; empty if all is refused.
    pub passed: Vec<u8>,
    /// For each operation, its name, and its refusal if it is not passed on.
    operations: Vec<(String, Option<Refusal>)>,
}

impl Split {
    /// Asks of each operation's shard, by index and number, whether it refuses. `None` if this is no body of a `_bulk`.
    pub fn new(body: &[u8], mut refuses: impl FnMut(&str, u64) -> Option<Refusal>) -> Option<Self> {
        let mut split = Self { passed: Vec::with_capacity(body.len()), operations: Vec::new() };
        let mut lines = body.split_inclusive(|byte| *byte == b'\n');
        while let Some(line) = lines.next() {
            let action: Value = serde_json::from_slice(line).ok()?;
            let (name, target) = action.as_object()?.iter().next()?;
            let source = if name == "delete" { None } else { Some(lines.next()?) };
            let refusal = refuses(target["_index"].as_str()?, shard(target["_id"].as_str()?));
            if refusal.is_none() {
                split.passed.extend_from_slice(line);
                split.passed.extend_from_slice(source.unwrap_or_default());
            }
            split.operations.push((name.clone(), refusal));
        }
        Some(split)
    }

    /// How many operations were refused.
    pub fn refused(&self) -> usize {
        self.operations.iter().filter(|(_, refusal)| refusal.is_some()).count()
    }

    /// The answer to the whole request, from that to what was passed on. `None` if that is no answer to it.
    pub fn answer(&self, to_passed: &[u8]) -> Option<Vec<u8>> {
        #[derive(Deserialize)]
        struct Answer<'a> {
            errors: bool,
            #[serde(borrow)]
            items: Vec<&'a RawValue>,
        }
        let nothing = Answer { errors: false, items: Vec::new() };
        let answer = if self.passed.is_empty() { nothing } else { serde_json::from_slice(to_passed).ok()? };
        let mut passed = answer.items.into_iter();
        let items = self.operations.iter().map(|(name, refusal)| match refusal {
            None => passed.next().map(|item| item.get().to_owned()),
            Some(refusal) => {
                let (status, error) = refusal.error();
                Some(json!({name: {"status": status, "error": error}}).to_string())
            }
        });
        let items: Vec<String> = items.collect::<Option<_>>()?;
        let errors = answer.errors || self.refused() > 0;
        Some(format!(r#"{{"errors":{errors},"items":[{}]}}"#, items.join(",")).into_bytes())
    }
}

/// The answer to an `_mget` in which the documents of some shards could not be looked up, and how many. Reading changes
/// nothing, so the request goes as it is. `None` if this is no such answer.
pub fn spoil_mget(
    answer: &[u8],
    mut refuses: impl FnMut(&str, u64) -> Option<Refusal>,
) -> Option<(Vec<u8>, usize)> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        docs: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Slot {
        _index: String,
        _id: String,
    }
    let mut spoilt = 0;
    let answer: Answer<'_> = serde_json::from_slice(answer).ok()?;
    let slots = answer.docs.into_iter().map(|raw| {
        let slot: Slot = serde_json::from_str(raw.get()).ok()?;
        if refuses(&slot._index, shard(&slot._id)).is_none() {
            return Some(raw.get().to_owned());
        }
        spoilt += 1;
        let error = json!({"type": "no_shard_available_action_exception", "reason": "no copy is active"});
        Some(json!({"_index": slot._index, "_id": slot._id, "error": error}).to_string())
    });
    let slots: Vec<String> = slots.collect::<Option<_>>()?;
    Some((format!(r#"{{"docs":[{}]}}"#, slots.join(",")).into_bytes(), spoilt))
}

fn shard(id: &str) -> u64 {
    // FNV-1a.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash % SHARDS
}
