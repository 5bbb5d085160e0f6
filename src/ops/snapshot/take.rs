//! Takes a snapshot of a moment.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::{SnapshotError, SnapshotMark, SnapshotPlace, Snapshots};
use crate::base::progress::Progress;
use crate::io::elastic::Index;
use crate::io::indices::IndicesError;
use crate::io::maps::{MapsRecord, MapsState, MapsStore};
use crate::io::stored::StoredRecord;

/// A snapshot that can be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotTaken {
    /// Where it is.
    pub place: SnapshotPlace,
    /// How many indices it holds.
    pub indices: usize,
    /// How long writes were blocked.
    pub pause: Duration,
}

impl fmt::Display for SnapshotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, indices, pause } = self;
        let pause = pause.as_secs_f64();
        write!(f, "{place}: {indices} indices; writes were blocked for {pause:.1} s")
    }
}

/// What must stay as it is while indices are copied.
#[derive(PartialEq)]
struct Layout {
    indices: Vec<String>,
    maps: Option<MapsRecord>,
}

impl Snapshots<'_> {
    /// Takes the snapshot `place`, and blocks writes for `max_pause` at most.
    ///
    /// First it copies without a block to `place` with `-copying` at its end. Elasticsearch copies only what a repository has not, so
    /// that the copy under the block is short.
    ///
    /// # Errors
    /// See [`SnapshotError`]. There is no such snapshot then, and writes go on, unless it is [`SnapshotError::StillBlocked`].
    pub async fn take(
        &self,
        place: &SnapshotPlace,
        max_pause: Duration,
    ) -> Result<SnapshotTaken, SnapshotError> {
        let layout = self.layout().await?;
        if let Some(name) = self.blocked().await?.into_iter().next() {
            return Err(SnapshotError::Blocked(name));
        }
        if self.snapshot(place).await?.is_some() {
            return Err(SnapshotError::Exists(place.clone()));
        }
        let copying =
            SnapshotPlace { name: format!("{}-copying", place.name), repository: place.repository.clone() };
        // One that was killed may have left it.
        self.delete_snapshot(&copying).await?;
        let copied = self.copy(&copying, &layout.indices, "shards copied while writes go on").await;
        let taken = match copied {
            Ok(()) => self.take_blocked(place, &layout, max_pause).await,
            Err(error) => Err(error),
        };
        let deleted = self.delete_snapshot(&copying).await;
        let taken = taken?;
        deleted?;
        Ok(taken)
    }

    /// Ends the block that a killed command has left, and its snapshot. Gives the number of indices.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub async fn unblock(&self) -> Result<usize, SnapshotError> {
        let blocked = self.blocked().await?;
        if blocked.is_empty() {
            return Ok(0);
        }
        let id = SnapshotMark::key(&self.config.kafka.topic);
        let mark = StoredRecord::new(self.elastic, &id, self.timeout()).read_as::<SnapshotMark>().await?;
        if let Some((mark, _)) = mark {
            // ⚠ Before writes go on: what is copied after that belongs to another moment.
            self.delete_unfinished(&mark.place).await?;
        }
        self.unblock_indices(&blocked).await?;
        Ok(blocked.len())
    }

    async fn delete_unfinished(&self, place: &SnapshotPlace) -> Result<(), IndicesError> {
        match self.snapshot(place).await? {
            Some(found) if found["state"] != "SUCCESS" => self.delete_snapshot(place).await,
            _ => Ok(()),
        }
    }

    async fn take_blocked(
        &self,
        place: &SnapshotPlace,
        layout: &Layout,
        max_pause: Duration,
    ) -> Result<SnapshotTaken, SnapshotError> {
        let blocked: Vec<String> =
            layout.indices.iter().filter(|name| !self.is_meta(name)).cloned().collect();
        let began = Instant::now();
        let copied = tokio::time::timeout(max_pause, self.copy_moment(place, layout, &blocked)).await;
        let copied = copied.unwrap_or(Err(SnapshotError::TooLong(max_pause)));
        let still_blocked = |failure: String, error| SnapshotError::StillBlocked { failure, error };
        if let Err(failure) = &copied {
            // ⚠ Before writes go on, as above.
            let deleted = self.delete_snapshot(place).await;
            deleted.map_err(|error| still_blocked(failure.to_string(), error))?;
        }
        let said = || copied.as_ref().map_or_else(ToString::to_string, |()| format!("{place} was taken"));
        self.unblock_indices(&blocked).await.map_err(|error| still_blocked(said(), error))?;
        copied?;
        Ok(SnapshotTaken { place: place.clone(), indices: layout.indices.len(), pause: began.elapsed() })
    }

    /// Blocks writes, and copies.
    async fn copy_moment(
        &self,
        place: &SnapshotPlace,
        layout: &Layout,
        blocked: &[String],
    ) -> Result<(), SnapshotError> {
        self.block(blocked).await?;
        // ⚠ After the block: what is committed by now was carried out before it.
        self.write_mark(place).await?;
        self.copy(place, &layout.indices, "shards copied while writes are blocked").await?;
        if self.layout().await? != *layout {
            return Err(SnapshotError::Changed);
        }
        Ok(())
    }

    async fn layout(&self) -> Result<Layout, SnapshotError> {
        let indices = self.indices().await?;
        let prefix = &self.config.elasticsearch.prefix;
        let is_there = |index: Index| indices.contains(&index.name(prefix));
        if !is_there(Index::Meta) || !is_there(Index::Placements) {
            return Err(SnapshotError::NoIndices(prefix.clone()));
        }
        let maps = MapsStore::new(self.elastic, &self.config.kafka.topic, self.timeout()).read().await?;
        let maps = maps.map(|stored| stored.record);
        if maps.as_ref().is_some_and(|maps| matches!(maps.state, MapsState::Two { .. })) {
            return Err(SnapshotError::MapChanges);
        }
        Ok(Layout { indices, maps })
    }

    async fn write_mark(&self, place: &SnapshotPlace) -> Result<(), SnapshotError> {
        let (topic_id, offsets) = self
            .ask(|reader| {
                let facts = reader.describe()?;
                let ranges = reader.ranges(facts.partitions)?;
                let committed = reader.committed(0..facts.partitions)?;
                let one = |(partition, range): (i32, std::ops::Range<i64>)| {
                    (partition, committed.get(&partition).copied().unwrap_or(range.start))
                };
                let offsets: BTreeMap<i32, i64> = ranges.into_iter().map(one).collect();
                Ok((facts.topic_id, offsets))
            })
            .await?;
        let mark =
            SnapshotMark { place: place.clone(), epoch: self.config.positions.epoch, topic_id, offsets };
        let id = SnapshotMark::key(&self.config.kafka.topic);
        let stored = StoredRecord::new(self.elastic, &id, self.timeout());
        let before = stored.read().await?.map(|(_, stamp)| stamp);
        stored.write(&mark, before).await?;
        Ok(())
    }

    /// Copies these indices into a snapshot, and waits for its end.
    async fn copy(&self, place: &SnapshotPlace, indices: &[String], what: &str) -> Result<(), SnapshotError> {
        self.begin_snapshot(place, indices).await?;
        loop {
            let found = self.snapshot(place).await?;
            let state = found.as_ref().and_then(|found| found["state"].as_str()).unwrap_or("MISSING");
            match state {
                "SUCCESS" => return Ok(()),
                "IN_PROGRESS" => {}
                state => {
                    let failures = found.as_ref().map(|found| &found["failures"][0]["reason"]);
                    let reason =
                        failures.and_then(serde_json::Value::as_str).unwrap_or("no reason was given");
                    let (place, state, reason) = (place.clone(), state.to_owned(), reason.to_owned());
                    return Err(SnapshotError::Incomplete { place, state, reason });
                }
            }
            if let Some((done, of)) = self.copied(place).await {
                (self.tell)(Progress::Done { what, done, of: Some(of) });
            }
            if !self.pause().await {
                return Err(SnapshotError::Interrupted("the snapshot was deleted, and writes go on"));
            }
        }
    }
}
