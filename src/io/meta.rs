//! What geofold remembers about topic and partitions, in the index `<prefix>-meta`.
//!
//! Positions compare only while a partition's offsets keep their meaning. They lose it when the topic is created anew,
//! when partitions are added (keys change partition), or when the group is rewound. And two maps at one position would
//! place a document twice. Each is found by comparing what is remembered with what is met, and refused until the operator raises the
//! epoch (protocol, "What is remembered").

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::base::ids::DocId;
use crate::base::position::{Epoch, Position};
use crate::io::elastic::rounds::{BulkOutcome, GetOutcome, Halt, RequestDeadline, RequestSender};
use crate::io::elastic::{BulkOp, Get, Index, WriteCondition};
use crate::io::kafka::TopicFactsFound;
use crate::io::stored::key;

/// The topic as it was when its positions were first written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicFacts {
    /// The epoch since which this holds.
    pub epoch: Epoch,
    /// Kafka's topic id, if the broker reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_id: Option<String>,
    /// Number of partitions.
    pub partitions: i32,
    /// Fingerprint of the map that documents are placed by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<String>,
    /// Partitions that were added, if `geofold repartition` was run for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added: Option<AddedPartitions>,
}

/// Partitions were added to the topic. Until the next epoch geofold writes no records of its own: they would follow placements into
/// partitions that their keys have left (protocol, "More partitions").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedPartitions {
    /// The new number of partitions.
    pub partitions: i32,
    /// Everything that was written before all producers knew of them is committed: the next epoch may begin.
    pub is_drained: bool,
}

/// A committed offset, remembered after the commit was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermark {
    /// The epoch it was committed in.
    pub epoch: Epoch,
    /// The committed offset: that of the next record to read.
    pub offset: i64,
}

/// Stored facts contradict the positions.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EpochNeeded {
    /// The configuration went back.
    #[error(
        "positions.epoch is {configured}, but epoch {remembered} was in use before: set it to {remembered}, or above if offsets start over"
    )]
    WentBack {
        /// From the configuration.
        configured: Epoch,
        /// From the meta index.
        remembered: Epoch,
    },
    /// The topic was deleted and re-created.
    #[error(
        "the topic was created anew (its id was {remembered}, now it is {found}), so offsets start over: stop all workers, set the group's offsets to the beginning, and raise positions.epoch above {epoch}"
    )]
    AnotherTopic {
        /// Remembered topic id.
        remembered: String,
        /// The topic's id now.
        found: String,
        /// The epoch in use.
        epoch: Epoch,
    },
    /// The number of partitions changed, so that keys may have moved between partitions that are read.
    #[error(
        "the topic has {found} partitions and had {remembered}, so keys changed partition: stop the producers and all workers, run geofold repartition --producers-stopped, and raise positions.epoch above {epoch}"
    )]
    OtherPartitions {
        /// Remembered number.
        remembered: i32,
        /// The number now.
        found: i32,
        /// The epoch in use.
        epoch: Epoch,
    },
    /// A partition that was added is not read yet.
    #[error(
        "partition {partition} is new (the topic had {remembered}): run geofold repartition, and raise positions.epoch above {epoch} when it says so"
    )]
    NewPartition {
        /// Its number.
        partition: i32,
        /// Remembered number of partitions.
        remembered: i32,
        /// The epoch in use.
        epoch: Epoch,
    },
    /// The epoch was raised before the old partitions were drained.
    #[error(
        "the topic has {found} partitions and had {remembered} in epoch {epoch}: run geofold repartition with positions.epoch {epoch} before you raise it, or keys that changed partition are read out of order"
    )]
    NotDrained {
        /// Remembered number.
        remembered: i32,
        /// The number now.
        found: i32,
        /// The epoch in use before.
        epoch: Epoch,
    },
    /// Documents were placed by another map.
    #[error(
        "documents were placed by the map {remembered}, and the configured map is {found}: two maps at once put documents in two places; change the map with `geofold shards migrate`, or stop all workers and raise positions.epoch above {epoch}"
    )]
    OtherMap {
        /// Fingerprint of the remembered map.
        remembered: String,
        /// Fingerprint of the configured map.
        found: String,
        /// The epoch in use.
        epoch: Epoch,
    },
    /// Reading starts below the committed offset.
    #[error(
        "reading would start at offset {found}, but offset {remembered} was committed: the group was rewound, its offsets expired, or the topic was emptied; to replay deliberately raise positions.epoch above {epoch}"
    )]
    Rewound {
        /// The committed offset that is remembered.
        remembered: i64,
        /// Offset of the first record read.
        found: i64,
        /// The epoch in use.
        epoch: Epoch,
    },
}

impl TopicFacts {
    /// The topic as the brokers describe it.
    pub fn found(epoch: Epoch, found: TopicFactsFound) -> Self {
        let TopicFactsFound { topic_id, partitions } = found;
        Self { epoch, topic_id, partitions, map: None, added: None }
    }

    /// `_id` of the facts about `topic`.
    pub fn key(topic: &str) -> DocId {
        key(format!("topic/{topic}"))
    }

    /// The operation that stores these facts about `topic`; of concurrent ones, the higher epoch stays.
    pub fn remember(&self, topic: &str) -> BulkOp {
        let version = Position::from_version(u64::from(self.epoch.get()));
        write_op(Self::key(topic), version, self)
    }

    /// Whether work may continue with `now`, given the stored facts. An unknown topic id on either side proves nothing.
    pub fn allows(remembered: &Self, now: &Self) -> Result<(), EpochNeeded> {
        let epoch = now.epoch;
        if epoch < remembered.epoch {
            return Err(EpochNeeded::WentBack { configured: epoch, remembered: remembered.epoch });
        }
        if epoch > remembered.epoch {
            let drained_for = remembered.added.filter(|added| added.is_drained).map(|added| added.partitions);
            let is_drained = !remembered.has_grown_to(now) || drained_for == Some(now.partitions);
            return is_drained.then_some(()).ok_or(EpochNeeded::NotDrained {
                remembered: remembered.partitions,
                found: now.partitions,
                epoch: remembered.epoch,
            });
        }
        if let (Some(old), Some(new)) = (&remembered.topic_id, &now.topic_id)
            && old != new
        {
            return Err(EpochNeeded::AnotherTopic { remembered: old.clone(), found: new.clone(), epoch });
        }
        if remembered.partitions != now.partitions && !remembered.may_grow_to(now) {
            return Err(EpochNeeded::OtherPartitions {
                remembered: remembered.partitions,
                found: now.partitions,
                epoch,
            });
        }
        if let (Some(old), Some(new)) = (&remembered.map, &now.map)
            && old != new
        {
            return Err(EpochNeeded::OtherMap { remembered: old.clone(), found: new.clone(), epoch });
        }
        Ok(())
    }

    /// These facts, which [`TopicFacts::allows`], with what stays until the next epoch: partitions that were added are not read.
    pub fn going_on_from(self, remembered: &Self) -> Self {
        if self.epoch != remembered.epoch {
            return self;
        }
        Self { partitions: remembered.partitions, added: remembered.added, ..self }
    }

    fn has_grown_to(&self, now: &Self) -> bool {
        self.topic_id.is_some() && self.topic_id == now.topic_id && now.partitions > self.partitions
    }

    /// What to do about partitions that were added and are not read, if there are any.
    pub fn growth_to(&self, now: &Self) -> Option<String> {
        let (is_added, epoch) = (self.epoch == now.epoch && self.may_grow_to(now), self.epoch);
        is_added.then(|| {
            format!(
                "the topic has {} partitions, of which {} are read in epoch {epoch}: run geofold repartition, and raise the epoch when it says so",
                now.partitions, self.partitions
            )
        })
    }

    /// Whether the topic has grown by a multiple: then each key stays in its partition or is in a new one, whatever the partitioner's
    /// hash.
    fn may_grow_to(&self, now: &Self) -> bool {
        self.has_grown_to(now) && now.partitions.checked_rem(self.partitions) == Some(0)
    }
}

impl Watermark {
    /// `_id` of the facts about a partition of `topic`.
    pub fn key(topic: &str, partition: i32) -> DocId {
        key(format!("watermark/{topic}/{partition}"))
    }

    /// The position of the next record to read; `None` if no position can hold it.
    pub fn position(self) -> Option<Position> {
        Position::new(self.epoch, self.offset)
    }

    /// Whether a partition may be read from `first_offset` in `epoch`, given the stored facts.
    pub fn allows(self, epoch: Epoch, first_offset: i64) -> Result<(), EpochNeeded> {
        if epoch < self.epoch {
            return Err(EpochNeeded::WentBack { configured: epoch, remembered: self.epoch });
        }
        if epoch == self.epoch && first_offset < self.offset {
            return Err(EpochNeeded::Rewound { remembered: self.offset, found: first_offset, epoch });
        }
        Ok(())
    }
}

/// Reads and writes the facts about one topic's partitions.
#[derive(Clone)]
pub struct TopicMemory {
    rounds: RequestSender,
    topic: String,
}

/// The memory could not be read or written.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// No answer within the lease.
    #[error("elasticsearch did not answer in time about the meta index")]
    Unanswered,
    /// The record is there, but no valid one.
    #[error("the record {id:?} in the meta index cannot be read: {error}")]
    Unreadable {
        /// `_id`.
        id: String,
        /// The parse error.
        error: String,
    },
    /// Nothing may go on.
    #[error(transparent)]
    Halt(#[from] Halt),
}

impl TopicMemory {
    /// Of `topic`.
    pub fn new(rounds: RequestSender, topic: &str) -> Self {
        Self { rounds, topic: topic.to_owned() }
    }

    /// The offset of `partition` that is known to have been committed.
    pub async fn watermark(
        &self,
        partition: i32,
        lease: &RequestDeadline,
    ) -> Result<Option<Watermark>, MemoryError> {
        self.read(Watermark::key(&self.topic, partition), lease).await
    }

    /// Remembers committed offsets, by partition. They never go back.
    pub async fn remember_watermarks(
        &self,
        epoch: Epoch,
        committed: &[(i32, i64)],
        lease: &RequestDeadline,
    ) -> Result<(), MemoryError> {
        let ops = committed.iter().filter_map(|&(partition, offset)| {
            let version = Position::new(epoch, offset)?;
            Some(write_op(Watermark::key(&self.topic, partition), version, &Watermark { epoch, offset }))
        });
        self.write(ops.collect(), lease).await
    }

    async fn read<T: for<'de> Deserialize<'de>>(
        &self,
        id: DocId,
        lease: &RequestDeadline,
    ) -> Result<Option<T>, MemoryError> {
        let get = Get::realtime(Index::Meta, id.clone());
        let answer = self.rounds.mget(vec![get], lease).await?.pop().unwrap_or(GetOutcome::Unanswered);
        match answer {
            GetOutcome::Unanswered => Err(MemoryError::Unanswered),
            GetOutcome::Missing => Ok(None),
            GetOutcome::Found(found) => match serde_json::from_slice(&found.source) {
                Ok(record) => Ok(Some(record)),
                Err(error) => {
                    Err(MemoryError::Unreadable { id: id.as_str().to_owned(), error: error.to_string() })
                }
            },
        }
    }

    async fn write(&self, ops: Vec<BulkOp>, lease: &RequestDeadline) -> Result<(), MemoryError> {
        let outcomes = self.rounds.bulk(ops, lease).await?;
        // A conflict means that a newer one is remembered already.
        let all_there = outcomes
            .iter()
            .all(|outcome| matches!(outcome, BulkOutcome::Done { .. } | BulkOutcome::Conflict));
        if all_there { Ok(()) } else { Err(MemoryError::Unanswered) }
    }
}

fn write_op(id: DocId, version: Position, record: &impl Serialize) -> BulkOp {
    // Serializing plain strings and numbers into a Vec cannot fail.
    let source = serde_json::to_vec(record).unwrap_or_default().into();
    BulkOp::Index { index: Index::Meta, id, guard: WriteCondition::ExternalOrEqual(version), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(epoch: u32, topic_id: Option<&str>, partitions: i32) -> TopicFacts {
        TopicFacts {
            epoch: Epoch::new(epoch).unwrap(),
            topic_id: topic_id.map(str::to_owned),
            partitions,
            map: Some("1-abc".to_owned()),
            added: None,
        }
    }

    #[test]
    fn a_topic_that_changed_is_refused_until_the_epoch_is_raised() {
        let remembered = facts(2, Some("abc"), 8);
        assert_eq!(TopicFacts::allows(&remembered, &facts(2, Some("abc"), 8)), Ok(()));
        assert_eq!(TopicFacts::allows(&remembered, &facts(2, None, 8)), Ok(()));
        for (changed, word) in [
            (facts(2, Some("xyz"), 8), "created anew"),
            (facts(2, Some("abc"), 9), "9 partitions"),
            (facts(1, Some("abc"), 8), "epoch 2 was in use"),
            (TopicFacts { map: Some("2-def".to_owned()), ..remembered.clone() }, "placed by the map 1-abc"),
        ] {
            let refused = TopicFacts::allows(&remembered, &changed).unwrap_err();
            assert!(refused.to_string().contains(word), "{refused}");
        }
        assert_eq!(TopicFacts::allows(&remembered, &facts(3, Some("xyz"), 9)), Ok(()));
    }

    #[test]
    fn added_partitions_wait_for_the_next_epoch_and_that_for_the_old_ones() {
        let remembered = facts(2, Some("abc"), 8);
        let grown = facts(2, Some("abc"), 24);
        assert_eq!(TopicFacts::allows(&remembered, &grown), Ok(()), "a multiple: the old ones are read on");
        assert_eq!(grown.clone().going_on_from(&remembered), remembered);
        for other in [facts(2, Some("abc"), 12), facts(2, None, 24)] {
            let refused = TopicFacts::allows(&remembered, &other).unwrap_err();
            assert!(refused.to_string().contains("partitions and had 8"), "{refused}");
        }

        let raised = facts(3, Some("abc"), 24);
        let with = |partitions, is_drained| TopicFacts {
            added: Some(AddedPartitions { partitions, is_drained }),
            ..remembered.clone()
        };
        for early in [remembered.clone(), with(24, false), with(16, true)] {
            let refused = TopicFacts::allows(&early, &raised).unwrap_err();
            assert!(refused.to_string().contains("before you raise it"), "{refused}");
        }
        let drained = with(24, true);
        assert_eq!(TopicFacts::allows(&drained, &raised), Ok(()));
        assert_eq!(grown.going_on_from(&drained), drained, "a worker that restarts keeps it");
        assert_eq!(raised.clone().going_on_from(&drained), raised);
    }

    #[test]
    fn a_group_that_was_rewound_is_refused_until_the_epoch_is_raised() {
        let epoch = |n| Epoch::new(n).unwrap();
        let remembered = Watermark { epoch: epoch(1), offset: 100 };
        assert_eq!(remembered.allows(epoch(1), 100), Ok(()));
        assert_eq!(remembered.allows(epoch(1), 170), Ok(()), "retention may have removed records");
        assert!(remembered.allows(epoch(1), 99).unwrap_err().to_string().contains("rewound"));
        assert_eq!(remembered.allows(epoch(2), 0), Ok(()));
        assert!(remembered.allows(epoch(0), 100).is_err());
    }
}
