//! Removes placements of deleted documents once no zombie can act on an earlier state (protocol, "Deleted documents").
//!
//! A placement has no date, and needs none: each shard of its index counts its writes. From time to time a **mark** is stored in the
//! meta index: the lowest of these counts, and the partitions' end offsets. Later the mark also records when all of these offsets were seen
//! committed. ⚠ Placements below a mark are removed `placements.deleted_retention` after that: a zombie that was assigned a
//! partition before the commit would read old records and find no placement. A placement is removed only if no copy exists
//! where it says one may be, and by compare-and-set: a concurrent write of the placement wins.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::gather::Suspect;
use super::{Audit, AuditError};
use crate::base::position::Epoch;
use crate::core::defect::{Observation, ObservedPlacement};
use crate::io::elastic::{AdminCall, BulkOp, Elastic, Index, Method, SeqNo};
use crate::io::maps::OffsetFloor;
use crate::io::stored::{self, RecordError, StoredRecord};

/// Marks per `deleted_retention`, so that placements are kept at most an eighth longer than necessary.
const MARKS: u32 = 8;
/// Maximum stored marks; each has an offset for every partition.
const MOST: usize = 16;

/// Offsets of the topic.
pub trait OffsetLog: Send + Sync {
    /// Where each partition ends now.
    fn ends(&self) -> BoxFuture<'_, Result<OffsetFloor, AuditError>>;
    /// The partitions whose committed offset is below `floor`, with that offset.
    fn behind<'a>(&'a self, floor: &'a OffsetFloor) -> BoxFuture<'a, Result<OffsetFloor, AuditError>>;
}

/// How far everything was at a moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    /// When; seconds since 1970.
    at: u64,
    /// Count of placement writes at the mark, in the shard that had counted least: in every shard, writes with a lower `_seq_no`
    /// came before.
    writes: u64,
    /// So did all records below these offsets.
    ends: OffsetFloor,
    /// When all of them had been seen to be committed; seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    committed: Option<u64>,
}

/// The marks of a topic, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Marks {
    /// The index's UUID: a new index counts from zero.
    index: String,
    /// Offsets of another epoch are others.
    epoch: Epoch,
    marks: Vec<Mark>,
}

impl Marks {
    /// Marks of this index and epoch, without any from the future (wrong clock).
    fn of(self, index: &str, epoch: Epoch, now: u64) -> Self {
        let mut marks = if self.index == index && self.epoch == epoch { self.marks } else { Vec::new() };
        marks.retain(|mark| mark.at <= now && mark.committed.unwrap_or(0) <= now);
        Self { index: index.to_owned(), epoch, marks }
    }

    /// The newest that is old enough.
    fn ripe(&self, keep: Duration, now: u64) -> Option<&Mark> {
        let is_ripe = |committed: u64| committed.saturating_add(keep.as_secs()) < now;
        self.marks.iter().rev().find(|mark| mark.committed.is_some_and(is_ripe))
    }

    /// With a new one, if it is time for one, and without those that a newer ripe one makes useless. While nothing is
    /// committed there are no more than [`MOST`]: the oldest are what is waited for.
    fn with(mut self, mark: Mark, keep: Duration) -> Self {
        let last = self.marks.last().map(|last| last.at);
        if last.is_some_and(|last| last.saturating_add((keep / MARKS).as_secs()) > mark.at) {
            return self;
        }
        if let Some(ripe) = self.ripe(keep, mark.at).cloned() {
            self.marks.retain(|mark| mark.at >= ripe.at);
        }
        if self.marks.len() < MOST {
            self.marks.push(mark);
        }
        self
    }
}

/// What may be swept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TombstoneSweep {
    /// Placements whose last write has a lower `_seq_no`.
    Below(u64),
    /// Nothing yet: no mark is old enough.
    Unripe,
    /// Nothing yet: these partitions have not committed the offsets of the oldest mark.
    Waits(Vec<i32>),
}

/// Finds out what may be swept, and makes a mark if it is time for one. `keep`: `placements.deleted_retention`.
pub async fn prepare(
    elastic: &dyn Elastic,
    prefix: &str,
    topic: (&str, Epoch),
    log: &dyn OffsetLog,
    keep: Duration,
    timeout: Duration,
) -> Result<TombstoneSweep, AuditError> {
    let (topic, epoch) = topic;
    let id = stored::key(format!("sweep/{topic}"));
    let record = StoredRecord::new(elastic, &id, timeout);
    let now = unix_now();
    // ⚠ In this order: a write in between is above the count and below the offsets.
    let (index, writes) = count_of_writes(elastic, prefix, timeout).await?;
    let ends = log.ends().await?;
    let (before, stamp) = record.read_as::<Marks>().await?.unzip();
    let before = before.unwrap_or_default();
    let mut marks = before.clone().of(&index, epoch, now);
    let mut waits_for = Vec::new();
    for mark in marks.marks.iter_mut().filter(|mark| mark.committed.is_none()) {
        let behind = log.behind(&mark.ends).await?;
        if !behind.is_empty() {
            waits_for = behind.into_keys().collect();
            break;
        }
        // Not when it was committed, but when that was seen: later does no harm.
        mark.committed = Some(unix_now());
    }
    let sweep = match marks.ripe(keep, now) {
        Some(mark) => TombstoneSweep::Below(mark.writes),
        None if waits_for.is_empty() => TombstoneSweep::Unripe,
        None => TombstoneSweep::Waits(waits_for),
    };
    let marks = marks.with(Mark { at: now, writes, ends, committed: None }, keep);
    if marks != before {
        match record.write(&marks, stamp).await {
            // A concurrent audit wrote one.
            Ok(()) | Err(RecordError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sweep)
}

/// The placements index's UUID and the number of writes that each of its shards has durably counted: writes lost when a primary
/// is replaced are not included.
async fn count_of_writes(
    elastic: &dyn Elastic,
    prefix: &str,
    timeout: Duration,
) -> Result<(String, u64), AuditError> {
    let doing = "ask how far the placements index has counted its writes";
    let name = Index::Placements.name(prefix);
    let ask = async |path: String| {
        let call = AdminCall { method: Method::Get, path, body: None };
        let answer = elastic.admin(call, timeout).await.map_err(|error| AuditError::Call { doing, error })?;
        match answer.status {
            200 => Ok(answer.body),
            _ => Err(AuditError::Item { doing, reason: crate::io::elastic::decode::reason(&answer) }),
        }
    };
    let settings = ask(format!("/{name}/_settings?flat_settings=true")).await?;
    let stats = ask(format!("/{name}/_stats/docs?level=shards")).await?;
    counted_by_all(&settings[&name]["settings"], &stats["indices"][&name])
        .map_err(|reason| AuditError::Item { doing, reason: reason.to_owned() })
}

/// The UUID of an index with these settings (flat names) and statistics by shard, and what its shard that has counted least has
/// counted: each shard gives out sequence numbers of its own. ⚠ Every shard has to be there: one that is missing may have counted
/// less.
fn counted_by_all(settings: &Value, stats: &Value) -> Result<(String, u64), &'static str> {
    let uuid = stats["uuid"].as_str().ok_or("the index is not in the answer")?;
    if settings["index.uuid"] != uuid {
        return Err("the index was replaced meanwhile: audit again");
    }
    let shards = settings["index.number_of_shards"].as_str().and_then(|shards| shards.parse::<usize>().ok());
    let shards = shards.ok_or("the number of its shards is not in the answer")?;
    let copies = stats["shards"].as_object().into_iter().flatten().map(|(_, copies)| copies);
    let by_primary = |copies: &Value| {
        let mut copies = copies.as_array().into_iter().flatten();
        let primary = copies.find(|copy| copy["routing"]["primary"] == true)?;
        // -1: nothing was written there.
        let last = primary["seq_no"]["global_checkpoint"].as_i64()?;
        Some(last.saturating_add(1).max(0).unsigned_abs())
    };
    let counted: Vec<u64> = copies.filter_map(by_primary).collect();
    if counted.len() != shards {
        return Err("a primary shard did not tell its sequence numbers: wait until the index is not red");
    }
    let least = counted.into_iter().min().ok_or("the index has no shards")?;
    Ok((uuid.to_owned(), least))
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Whether only a deleted document's placement is left.
fn is_grave(sight: &Observation, below: u64) -> Option<SeqNo> {
    let ObservedPlacement::At(placement) = &sight.placed else { return None };
    let is_over = placement.shard.is_none() && !placement.refused && sight.copies.is_empty();
    sight.stamp.filter(|stamp| is_over && stamp.seq_no < below)
}

impl Audit<'_> {
    /// Removes placements that are unchanged and old enough. Returns how many.
    pub(super) async fn sweep(&self, graves: &[Suspect], below: u64) -> Result<u64, AuditError> {
        let sights = self.look(graves).await?;
        let remove = |(grave, sight): (&Suspect, &Observation)| {
            let stamp = is_grave(sight, below)?;
            Some(BulkOp::Remove { index: Index::Placements, id: grave.id.clone(), stamp })
        };
        let ops: Vec<BulkOp> = graves.iter().zip(&sights).filter_map(remove).collect();
        if ops.is_empty() {
            return Ok(0);
        }
        let doing = "remove placements of deleted documents";
        let answers = self.elastic.bulk(&ops, self.options.timeout).await;
        let answers = answers.map_err(|error| AuditError::Call { doing, error })?;
        let refused = answers.iter().find(|answer| !matches!(answer.status, 200..=299 | 404 | 409));
        if let Some(error) = refused.and_then(|answer| answer.error.as_ref()) {
            return Err(AuditError::Item { doing, reason: error.to_string() });
        }
        // 409: the document was written again.
        Ok(answers.iter().filter(|answer| answer.status < 300).count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::base::ids::ShardId;
    use crate::base::position::Position;
    use crate::core::defect::{Fit, ObservedCopy};
    use crate::core::placement::Placement;

    const KEEP: Duration = Duration::from_secs(800);

    fn mark(at: u64) -> Mark {
        Mark { at, writes: at * 10, ends: OffsetFloor::new(), committed: Some(at) }
    }

    #[test]
    fn mark_is_ripe_after_deleted_retention() {
        let of = |marks: Marks, now| marks.of("i", Epoch::default(), now);
        let mut marks = of(Marks::default(), 1000);
        assert_eq!(marks.ripe(KEEP, 1_000_000), None);
        for (at, is_kept) in [(1000, true), (1050, false), (1100, true), (1250, true)] {
            let with = marks.clone().with(mark(at), KEEP);
            assert_eq!(with != marks, is_kept, "{at}");
            marks = with;
        }
        for (now, ripe) in
            [(1800, None), (1801, Some(1000)), (1900, Some(1000)), (1901, Some(1100)), (5000, Some(1250))]
        {
            assert_eq!(marks.ripe(KEEP, now).map(|mark| mark.at), ripe, "{now}");
        }
        // Marks older than a newer ripe one are dropped.
        let later = marks.clone().with(mark(1950), KEEP);
        assert_eq!(later.marks.iter().map(|mark| mark.at).collect::<Vec<_>>(), [1100, 1250, 1950]);
        // Not since it was made, but since all of it was committed.
        let late = Marks { marks: vec![Mark { committed: Some(3000), ..mark(1000) }], ..marks.clone() };
        assert!(late.ripe(KEEP, 3800).is_none() && late.ripe(KEEP, 3801).is_some());
        let open = Marks { marks: vec![Mark { committed: None, ..mark(1000) }], ..marks.clone() };
        assert!(open.ripe(KEEP, 9000).is_none());
        let many =
            (0..100).fold(open, |open, n| open.with(Mark { committed: None, ..mark(2000 + n * 100) }, KEEP));
        assert_eq!((many.marks.len(), many.marks[0].at), (MOST, 1000), "while nothing is committed");
        // Another index, another epoch, or a clock that went back.
        assert!(marks.clone().of("other", Epoch::default(), 5000).marks.is_empty());
        assert!(marks.clone().of("i", Epoch::new(1).unwrap(), 5000).marks.is_empty());
        assert_eq!(of(marks, 1100).marks.len(), 2);
    }

    /// Statistics of an index whose primaries have these global checkpoints.
    fn counted(checkpoints: &[i64]) -> Value {
        let copy = |primary: bool, checkpoint: i64| json!({"routing": {"primary": primary}, "seq_no": {"global_checkpoint": checkpoint}});
        let shard = |(n, &checkpoint): (usize, &i64)| {
            (n.to_string(), json!([copy(false, checkpoint - 5), copy(true, checkpoint)]))
        };
        json!({"uuid": "i", "shards": checkpoints.iter().enumerate().map(shard).collect::<Value>()})
    }

    #[test]
    fn a_mark_counts_what_every_shard_has_counted() {
        let settings = |shards: &str| json!({"index.uuid": "i", "index.number_of_shards": shards, "index.gc_deletes": "1h"});
        let of =
            |shards: &str, stats: &Value| counted_by_all(&settings(shards), stats).map(|(_, least)| least);
        assert_eq!(of("1", &counted(&[41])), Ok(42));
        assert_eq!(of("4", &counted(&[41, 6, 70, 12])), Ok(7), "any placement may be in the shard behind");
        assert_eq!(of("4", &counted(&[41, 6, -1, 12])), Ok(0), "a shard without a write");
        let mut red = counted(&[41, 6, 70, 12]);
        red["shards"].as_object_mut().unwrap().remove("1");
        assert!(of("4", &red).is_err(), "the shard behind is not there");
        let mut replica_alone = counted(&[41, 6, 70, 12]);
        replica_alone["shards"]["1"][1]["routing"]["primary"] = json!(false);
        assert!(of("4", &replica_alone).is_err());
        let replaced = json!({"index.uuid": "another", "index.number_of_shards": "4"});
        assert!(counted_by_all(&replaced, &counted(&[41, 6, 70, 12])).is_err());
    }

    #[test]
    fn only_unchanged_deleted_placements_are_swept() {
        let shard = |id: &str| ShardId::new(id).unwrap();
        let pos = Position::new(Epoch::default(), 7).unwrap();
        let sight = |placement: Placement, copies: &[&str]| Observation {
            placed: ObservedPlacement::At(placement),
            stamp: Some(SeqNo { seq_no: 5, primary_term: 1 }),
            copies: copies
                .iter()
                .map(|id| (shard(id), ObservedCopy { version: pos, fit: Fit::Here }))
                .collect::<BTreeMap<_, _>>(),
        };
        let deleted = || Placement::new(pos, None, [shard("a")]);
        assert_eq!(is_grave(&sight(deleted(), &[]), 6), Some(SeqNo { seq_no: 5, primary_term: 1 }));
        assert_eq!(is_grave(&sight(deleted(), &[]), 5), None, "written after the mark");
        assert_eq!(is_grave(&sight(deleted(), &["a"]), 6), None, "a copy");
        assert_eq!(is_grave(&sight(deleted().after_refusal(), &[]), 6), None, "refused");
        assert_eq!(is_grave(&sight(Placement::new(pos, Some(shard("a")), []), &[]), 6), None, "alive");
        let unreadable = Observation { placed: ObservedPlacement::Unreadable, ..sight(deleted(), &[]) };
        assert_eq!(is_grave(&unreadable, 6), None);
    }
}
