//! Which partition geofold's own records of a document have to go to: the one that its other records are in.
//!
//! Its placement names that partition. A document without one, or of an earlier epoch, is written by `kafka.partitioner`. While
//! added partitions wait for the next epoch nothing is written: keys may have left the partitions that placements name.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use crate::base::ids::DocId;
use crate::base::position::{Epoch, Position};
use crate::io::elastic::slices::{SliceSize, mget_in_slices};
use crate::io::elastic::{Elastic, Get, GetAnswer, Index};
use crate::io::meta::TopicFacts;
use crate::io::stored::StoredRecord;
use crate::support::config::{Config, Partitioner};

/// Maximum placements per read.
const PAGE: usize = 1000;
/// Assumed size of the first placements; one with a fetched document is as large as the document.
const USUAL_BYTES: usize = 1 << 10;

/// The partition of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To this partition.
    Partition(i32),
    /// Where the partitioner puts its key.
    ByKey,
    /// That cannot be known: producers choose partitions by a rule of their own, and no placement names one.
    Unknown,
}

impl Destination {
    /// The partition, if it is chosen here.
    pub(crate) fn partition(self) -> Option<i32> {
        if let Self::Partition(partition) = self { Some(partition) } else { None }
    }

    /// Of a document with this placement.
    fn of(placed: Option<Placed>, epoch: Epoch, partitioner: Partitioner) -> Self {
        let recorded =
            placed.filter(|placed| placed.pos.epoch() == epoch).and_then(|placed| placed.partition);
        match (recorded, partitioner) {
            (Some(partition), _) => Self::Partition(partition),
            (None, Partitioner::Custom) => Self::Unknown,
            (None, _) => Self::ByKey,
        }
    }
}

/// The needed fields of a placement; others, also of later versions, are ignored.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Placed {
    pos: Position,
    #[serde(default)]
    partition: Option<i32>,
}

/// The partitions of documents are not known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnknownDestinations {
    /// The placements could not be read.
    #[error("the partitions of documents cannot be read from the placements: {0}; look at [elasticsearch]")]
    Unreadable(String),
    /// What is remembered of the topic could not be read.
    #[error("{0}; until it can be read, geofold writes no records of its own: added partitions might wait")]
    Facts(String),
    /// `geofold repartition` was run, and the epoch is not raised yet.
    #[error(
        "partitions were added to the topic: finish geofold repartition and raise positions.epoch above {0} before geofold writes \
         records of its own"
    )]
    AddedPartitions(Epoch),
}

/// Reads where documents' records go. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Destinations {
    elastic: Arc<dyn Elastic>,
    facts: DocId,
    epoch: Epoch,
    partitioner: Partitioner,
    timeout: Duration,
}

impl Destinations {
    /// By the placements in `elastic`.
    pub(crate) fn new(config: &Config, elastic: Arc<dyn Elastic>) -> Self {
        let (epoch, partitioner) = (config.positions.epoch, config.kafka.partitioner);
        let facts = TopicFacts::key(&config.kafka.topic);
        Self { elastic, facts, epoch, partitioner, timeout: config.elasticsearch.request_timeout }
    }

    /// One for each id, in order.
    pub(crate) async fn of(&self, ids: &[DocId]) -> Result<Vec<Destination>, UnknownDestinations> {
        self.no_partitions_wait().await?;
        let gets: Vec<Get> = ids.iter().map(|id| Get::realtime(Index::Placements, id.clone())).collect();
        let mut placed = Vec::with_capacity(ids.len());
        let mut size = SliceSize::new(PAGE, USUAL_BYTES);
        let read = mget_in_slices(&*self.elastic, &gets, self.timeout, &mut size, |_, answer| {
            placed.push(match answer {
                GetAnswer::Missing => Ok(None),
                GetAnswer::Failed(error) => Err(UnknownDestinations::Unreadable(error.to_string())),
                GetAnswer::Found(found) => Ok(serde_json::from_slice(&found.source).ok()),
            });
        });
        read.await.map_err(|error| UnknownDestinations::Unreadable(error.to_string()))?;
        placed.into_iter().map(|placed| Ok(Destination::of(placed?, self.epoch, self.partitioner))).collect()
    }

    /// ⚠ Fails while added partitions wait for the next epoch.
    pub(crate) async fn no_partitions_wait(&self) -> Result<(), UnknownDestinations> {
        let stored = StoredRecord::new(&*self.elastic, &self.facts, self.timeout);
        let found = stored.read_as::<TopicFacts>().await;
        match found.map_err(|error| UnknownDestinations::Facts(error.to_string()))? {
            Some((facts, _)) if facts.epoch == self.epoch && facts.added.is_some() => {
                Err(UnknownDestinations::AddedPartitions(self.epoch))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::ShardId;
    use crate::core::placement::Placement;
    use crate::io::elastic::scripted::Scripted;
    use crate::io::elastic::{BulkOp, FoundDocument, SeqNo, WriteCondition};
    use crate::io::meta::AddedPartitions;
    use crate::testkit::testing::{MemoryElastic, six_faces};

    #[tokio::test]
    async fn records_go_to_the_placement_partition_or_that_of_the_key() {
        let elastic = MemoryElastic::for_map(&six_faces());
        let id = |id: &str| DocId::from_key(Some(id.as_bytes())).unwrap();
        let epoch = |n| Epoch::new(n).unwrap();
        let placed = |of, partition| {
            let pos = Position::new(epoch(of), 5).unwrap();
            Placement::new(pos, Some(ShardId::new("f0").unwrap()), []).by_partition(partition)
        };
        let placements =
            [("a", placed(2, Some(7))), ("old", placed(1, Some(7))), ("adopted", placed(2, None))];
        let ops = placements.map(|(name, placement)| BulkOp::Index {
            index: Index::Placements,
            id: id(name),
            guard: WriteCondition::Absent,
            source: placement.to_json(),
        });
        elastic.bulk(&ops, Duration::from_secs(10)).await.unwrap();
        let mut config = Config::default();
        config.positions.epoch = epoch(2);
        let ids = ["none", "a", "old", "adopted"].map(id);
        use Destination::{ByKey, Partition, Unknown};
        let of = Destinations::new(&config, elastic.clone()).of(&ids).await.unwrap();
        assert_eq!(of, [ByKey, Partition(7), ByKey, ByKey]);
        config.kafka.partitioner = Partitioner::Custom;
        let of = Destinations::new(&config, elastic.clone()).of(&ids).await.unwrap();
        assert_eq!(of, [Unknown, Partition(7), Unknown, Unknown]);
        elastic.set_faults(|faults| faults.down = true);
        assert!(Destinations::new(&config, elastic).of(&ids).await.is_err());
    }

    #[tokio::test]
    async fn nothing_is_written_while_added_partitions_wait_for_the_next_epoch() {
        let elastic = MemoryElastic::for_map(&six_faces());
        let mut config = Config::default();
        let facts = TopicFacts {
            epoch: config.positions.epoch,
            topic_id: None,
            partitions: 2,
            map: None,
            added: Some(AddedPartitions { partitions: 4, is_drained: true }),
        };
        elastic.bulk(&[facts.remember(&config.kafka.topic)], Duration::from_secs(10)).await.unwrap();
        let ids = [DocId::from_key(Some(b"a")).unwrap()];
        let refused = Destinations::new(&config, elastic.clone()).of(&ids).await.unwrap_err();
        assert_eq!(refused, UnknownDestinations::AddedPartitions(facts.epoch));
        config.positions.epoch = Epoch::new(2).unwrap();
        let of = Destinations::new(&config, elastic).of(&ids).await.unwrap();
        assert_eq!(of, [Destination::ByKey]);
    }

    #[tokio::test]
    async fn placements_with_documents_are_read_in_parts() {
        let fetched =
            format!(r#"{{"pos":{},"partition":3,"fetched":"{}"}}"#, 1_u64 << 44 | 1, "x".repeat(1000));
        let stamp = SeqNo { seq_no: 1, primary_term: 1 };
        let found = FoundDocument { version: 1, stamp, source: fetched.into() };
        let get = Box::new(move |get: &Get| match get.index {
            Index::Placements => GetAnswer::Found(found.clone()),
            _ => GetAnswer::Missing,
        });
        let elastic = Scripted { get, largest_answer: Some(5000), ..Scripted::default() };
        let ids: Vec<DocId> =
            (0..20).map(|n| DocId::from_key(Some(n.to_string().as_bytes())).unwrap()).collect();
        let of = Destinations::new(&Config::default(), Arc::new(elastic)).of(&ids).await.unwrap();
        assert_eq!(of, [Destination::Partition(3); 20]);
    }

    #[tokio::test]
    async fn without_readable_facts_about_the_topic_nothing_is_sent() {
        let stamp = SeqNo { seq_no: 1, primary_term: 1 };
        let found = FoundDocument { version: 1, stamp, source: "[]".into() };
        let elastic =
            Scripted { get: Box::new(move |_| GetAnswer::Found(found.clone())), ..Scripted::default() };
        let of = Destinations::new(&Config::default(), Arc::new(elastic)).of(&[]).await;
        assert!(matches!(of, Err(UnknownDestinations::Facts(_))), "{of:?}");
    }
}
