//! One document from all sides, for `geofold where`: placement, every copy, the geoshard of its location by each live map, and the
//! last record of its key in the topic.
//!
//! ⚠ The group's progress is read first, then the index, then the topic up to where it ended at first: what was committed at the
//! beginning was executed before the index was read. What looks wrong is read again, since a moving document may be seen half-moved.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | what is read |
//! | `report.rs` | the report as text and JSON |
//! | `verdict.rs` | what is right or wrong; pure |

mod report;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio_util::sync::CancellationToken;

pub use self::report::{Belongs, CopySeen, DocumentReport, LastRecord, PlacementSeen, TopicSeen};
pub use self::verdict::{DocumentVerdict, PartitionProgress, verdict};
use super::records::{Bound, LastOfKey, RecordsError, RecordsReader};
use crate::base::geo::GeoPoint;
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::core::decode::{KeyForm, LocationPath};
use crate::core::defect::{Fit, Observation, ObservedCopy, ObservedPlacement};
use crate::core::placement::Placement;
use crate::io::elastic::slices::{SliceSize, mget_in_slices};
use crate::io::elastic::{CallError, Elastic, Get, GetAnswer, Index};
use crate::io::maps::MapsRecord;
use crate::io::meta::Watermark;
use crate::support::blocking::blocking;
use crate::support::config::Config;

/// Maximum copies per request; their content is included.
const AT_ONCE: usize = 100;
/// Assumed size of the first copies.
const USUAL_BYTES: usize = 256 << 10;

/// What is looked for, and how.
pub struct Lookup<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The search server.
    pub elastic: Arc<dyn Elastic>,
    /// The maps in force.
    pub maps: &'a MapsRecord,
    /// Where a document's location is.
    pub location: &'a LocationPath,
    /// How much of the topic may be read; `None`: nothing.
    pub topic: Option<Bound>,
    /// Time until what looks wrong is read again.
    pub settle: Duration,
    /// How long one request to Elasticsearch may take.
    pub timeout: Duration,
    /// Ends the search in the topic.
    pub stop: CancellationToken,
}

/// The document could not be looked up.
#[derive(Debug, Error)]
pub enum LookupError {
    /// No answer of Elasticsearch.
    #[error("could not read the document: {0}; look at [elasticsearch]")]
    Call(#[from] CallError),
    /// An item was not answered.
    #[error("could not read {index}: {reason}")]
    Item {
        /// The index.
        index: String,
        /// In the server's words.
        reason: String,
    },
    /// The topic could not be read.
    #[error("{0}; without the topic: --no-topic")]
    Topic(#[from] RecordsError),
}

/// What is stored of the document at one moment.
struct Seen {
    stored: Observation,
    location: Option<GeoPoint>,
}

/// The partition of the document's records, and how far it is.
struct Partition {
    number: i32,
    begin: i64,
    progress: PartitionProgress,
}

impl Lookup<'_> {
    /// Looks at everything. `say` gets the progress of the search in the topic.
    pub async fn run(
        &self,
        id: &DocId,
        say: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<DocumentReport, LookupError> {
        let epoch = self.config.positions.epoch;
        let first = self.read(id).await?;
        let (mut partition, mut note) = (None, None);
        match self.number(id, &first.stored) {
            Err(why) => note = Some(why),
            Ok(number) => partition = self.partition(number).await?,
        }
        // Once more: it has to be read after the progress.
        let mut seen = self.read(id).await?;
        let progress =
            partition.as_ref().map_or_else(PartitionProgress::default, |partition| partition.progress);
        let (mut topic, mut last) = (TopicSeen::default(), None);
        match (&partition, self.topic) {
            (Some(partition), Some(bound)) => {
                let found = self.last(id, partition, &seen.stored, bound, say).await?;
                last = found.found.as_ref().map(|dated| LastRecord::of(dated, self.config.kafka.envelope));
                topic = TopicSeen::of(partition.number, progress, &found);
                topic.last.clone_from(&last);
            }
            (Some(partition), None) => {
                topic =
                    TopicSeen { partition: Some(partition.number), committed: progress.committed, ..topic };
                note = Some("not read (--no-topic)".to_owned());
            }
            (None, _) => {}
        }
        topic.note = note;
        let mut judged = verdict(&seen.stored, last.as_ref(), progress, epoch);
        if matches!(judged, DocumentVerdict::Wrong { .. } | DocumentVerdict::NotApplied { .. }) {
            tokio::time::sleep(self.settle).await;
            let again = self.read(id).await?;
            let changed = again.stored.fingerprint() != seen.stored.fingerprint();
            seen = again;
            judged = match verdict(&seen.stored, last.as_ref(), progress, epoch) {
                DocumentVerdict::Wrong { .. } if changed => DocumentVerdict::Moving,
                judged => judged,
            };
        }
        Ok(DocumentReport::new(self, id, seen.stored, seen.location, topic, judged))
    }

    /// Placement and copies in every geoshard of the live maps and of the placement, realtime.
    async fn read(&self, id: &DocId) -> Result<Seen, LookupError> {
        let of = |index| Get::realtime(index, id.clone());
        let (placed, stamp) = match self.get(&[of(Index::Placements)]).await?.pop() {
            Some(GetAnswer::Found(found)) => (
                Placement::from_json(&found.source)
                    .map_or(ObservedPlacement::Unreadable, ObservedPlacement::At),
                Some(found.stamp),
            ),
            _ => (ObservedPlacement::Nowhere, None),
        };
        let mut shards: BTreeSet<ShardId> =
            self.maps.live().iter().flat_map(|map| map.shards().iter().cloned()).collect();
        if let ObservedPlacement::At(placement) = &placed {
            shards.extend(placement.may_hold().cloned());
        }
        let shards: Vec<ShardId> = shards.into_iter().collect();
        let gets: Vec<Get> = shards.iter().map(|shard| of(Index::Geoshard(shard.clone()))).collect();
        let mut copies = BTreeMap::new();
        let mut newest: Option<(u64, Option<GeoPoint>)> = None;
        for (shard, answer) in shards.into_iter().zip(self.get(&gets).await?) {
            let GetAnswer::Found(found) = answer else { continue };
            let is_here = |at| self.maps.live().iter().any(|map| *map.locate(at) == shard);
            let (fit, location) = Fit::of(&found.source, self.location, is_here);
            if newest.is_none_or(|(version, _)| found.version > version) {
                newest = Some((found.version, location));
            }
            let version = Position::from_version(found.version);
            copies.insert(shard, ObservedCopy { version, fit });
        }
        let location = newest.and_then(|(_, location)| location);
        Ok(Seen { stored: Observation { placed, stamp, copies }, location })
    }

    /// A missing index has no copy: a map may have been retired, and `check` reports others.
    async fn get(&self, gets: &[Get]) -> Result<Vec<GetAnswer>, LookupError> {
        let mut answers = Vec::with_capacity(gets.len());
        let mut size = SliceSize::new(AT_ONCE, USUAL_BYTES);
        mget_in_slices(&*self.elastic, gets, self.timeout, &mut size, |_, answer| answers.push(answer))
            .await?;
        for (get, answer) in gets.iter().zip(&answers) {
            if let GetAnswer::Failed(error) = answer
                && error.kind != "index_not_found_exception"
            {
                let index = get.index.name(&self.config.elasticsearch.prefix);
                return Err(LookupError::Item { index, reason: error.to_string() });
            }
        }
        Ok(answers)
    }

    /// The partition that the placement names, if any.
    fn named(&self, stored: &Observation) -> Option<i32> {
        match &stored.placed {
            ObservedPlacement::At(placement) => placement.partition_in(self.config.positions.epoch),
            _ => None,
        }
    }

    /// How the partition of the document's records is known, or why not.
    fn number(&self, id: &DocId, stored: &Observation) -> Result<Which, String> {
        let kafka = &self.config.kafka;
        if kafka.key != KeyForm::Text && self.topic.is_some() {
            return Err(format!("not read: kafka.key is \"{}\", so the id is not the key", kafka.key));
        }
        match self.named(stored) {
            Some(number) => Ok(Which::Named(number)),
            None if kafka.partitioner.partition_of(b"", 1).is_none() => {
                Err("not read: kafka.partitioner is \"custom\", and no placement names the partition"
                    .to_owned())
            }
            None => Ok(Which::OfKey(id.clone())),
        }
    }

    /// How far that partition is: by Kafka, or without the topic by the meta index.
    async fn partition(&self, which: Which) -> Result<Option<Partition>, LookupError> {
        if self.topic.is_none() {
            let Which::Named(number) = which else { return Ok(None) };
            let committed = self.remembered(number).await?;
            let progress = PartitionProgress { committed, end: None };
            return Ok(Some(Partition { number, begin: 0, progress }));
        }
        let config = self.config.clone();
        let stop = self.stop.clone();
        let found = blocking(move || -> Result<Partition, RecordsError> {
            let topic = config.kafka.topic.as_str();
            let reader = RecordsReader::new(&config, topic, stop)?;
            let partitions = reader.partitions()?;
            let number = match which {
                Which::Named(number) => number,
                // Checked before: the rule can be computed.
                Which::OfKey(id) => {
                    let key = id.as_str().as_bytes();
                    config.kafka.partitioner.partition_of(key, partitions).unwrap_or(0)
                }
            };
            let committed = reader.committed(number..number + 1)?.get(&number).copied();
            let range = reader.range(number)?;
            let progress = PartitionProgress { committed, end: Some(range.end) };
            Ok(Partition { number, begin: range.start, progress })
        });
        Ok(Some(found.await?))
    }

    /// The committed offset that the meta index remembers; it may lag by seconds.
    async fn remembered(&self, partition: i32) -> Result<Option<i64>, LookupError> {
        let id = Watermark::key(&self.config.kafka.topic, partition);
        let Some(GetAnswer::Found(found)) = self.get(&[Get::realtime(Index::Meta, id)]).await?.pop() else {
            return Ok(None);
        };
        let watermark: Option<Watermark> = serde_json::from_slice(&found.source).ok();
        let is_now = |watermark: &Watermark| watermark.epoch == self.config.positions.epoch;
        Ok(watermark.filter(is_now).map(|watermark| watermark.offset))
    }

    /// The last record of the key. What is below the newest position in the index is older and need not be read.
    async fn last(
        &self,
        id: &DocId,
        partition: &Partition,
        stored: &Observation,
        bound: Bound,
        mut say: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<LastOfKey, LookupError> {
        let newest = verdict::newest(stored).filter(|newest| newest.epoch() == self.config.positions.epoch);
        let begin = newest.map_or(partition.begin, |newest| newest.offset().max(partition.begin));
        let range = begin..partition.progress.end.unwrap_or(begin);
        let (config, number, key) = (self.config.clone(), partition.number, id.clone());
        let stop = self.stop.clone();
        let found = blocking(move || {
            let reader = RecordsReader::new(&config, &config.kafka.topic, stop)?;
            reader.last_of_key(number, key.as_str().as_bytes(), range, bound, &mut say)
        });
        Ok(found.await?)
    }
}

/// How the partition of a document's records is known.
enum Which {
    /// The placement names it.
    Named(i32),
    /// By the key and `kafka.partitioner`.
    OfKey(DocId),
}
