//! Replaces all indices by those of a snapshot, and sets the group back to where the snapshot goes on.
//!
//! It may be killed after any step: until the last one no worker can go on wrongly, and the same command continues. The group is set
//! back before the first index is deleted, so that a worker that starts early finds offsets below those remembered, or no indices.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::offsets::offsets;
use super::{SnapshotError, SnapshotMark, SnapshotPlace, Snapshots};
use crate::base::figures;
use crate::base::ids::DocId;
use crate::base::progress::Progress;
use crate::io::claims::Claim;
use crate::io::elastic::{Index, Method, SeqNo};
use crate::io::maps::MapsStore;
use crate::io::meta::{TopicFacts, Watermark};

/// How long nothing may be restored before the rest is given up.
const MAX_STANDSTILL: Duration = Duration::from_secs(60);

/// The indices are those of the snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// How many.
    pub indices: usize,
    /// Records that workers have to read again.
    pub records: u64,
    /// Where the group goes on, by partition.
    pub offsets: BTreeMap<i32, i64>,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = figures::count(self.records);
        write!(f, "{} indices restored, {records} records to read again: start the workers", self.indices)
    }
}

/// The claim of each partition, and its state.
type StampedClaims = Vec<Option<(Claim, SeqNo)>>;

/// A partition whose claim has changed, and who owns it; nobody if its owner has ended in order.
fn changed(before: &StampedClaims, now: &StampedClaims) -> Option<(usize, Option<String>)> {
    let stamp = |claim: &Option<(Claim, SeqNo)>| claim.as_ref().map(|(_, stamp)| *stamp);
    let changes = now.iter().enumerate().filter_map(|(partition, claim)| {
        let (claim, now) = claim.as_ref()?;
        let was = before.get(partition).and_then(stamp);
        let owner = || claim.ended_ms.is_none().then(|| claim.owner.clone());
        (was != Some(*now)).then(|| (partition, owner()))
    });
    // An owner counts for more than an end.
    changes.max_by_key(|(_, owner)| owner.is_some())
}

/// The topic as it is now.
struct TopicNow {
    facts: TopicFacts,
    ranges: BTreeMap<i32, Range<i64>>,
}

impl Snapshots<'_> {
    /// Restores the snapshot `place`. Existing indices are deleted only if `may_delete`.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub async fn restore(&self, place: &SnapshotPlace, may_delete: bool) -> Result<Restored, SnapshotError> {
        let indices = self.in_snapshot(place).await?;
        let existing = self.indices().await?;
        if !existing.is_empty() && !may_delete {
            let prefix = self.config.elasticsearch.prefix.clone();
            return Err(SnapshotError::WouldDelete { count: existing.len(), prefix });
        }
        let topic = self.topic_now().await?;
        self.no_members().await?;
        let (mark, remembered) = self.read_mark(place, topic.facts.partitions).await?;
        let offsets = offsets(&mark, &remembered, &topic.facts, &topic.ranges)?;
        // ⚠ A restored index has no tombstones.
        self.no_zombies(topic.facts.partitions).await?;
        self.set_back(&offsets).await?;
        // Those that a worker has made meanwhile, too.
        self.delete_indices(&self.indices().await?).await?;
        self.begin_restore(place, &indices).await?;
        self.wait_for(&indices).await?;
        let records = topic
            .ranges
            .iter()
            .filter_map(|(partition, range)| u64::try_from(range.end - offsets.get(partition)?).ok());
        Ok(Restored { indices: indices.len(), records: records.sum(), offsets })
    }

    /// The indices of the prefix in a complete snapshot.
    async fn in_snapshot(&self, place: &SnapshotPlace) -> Result<Vec<String>, SnapshotError> {
        let found = self.snapshot(place).await?.unwrap_or_default();
        let incomplete = |state: &str, reason: &str| {
            let (state, reason) = (state.to_owned(), reason.to_owned());
            Err(SnapshotError::Incomplete { place: place.clone(), state, reason })
        };
        match found["state"].as_str() {
            Some("SUCCESS") => {}
            Some(state) => return incomplete(state, "only a complete snapshot can be restored"),
            None => return incomplete("MISSING", "elasticsearch knows no such repository or snapshot"),
        }
        let prefix = &self.config.elasticsearch.prefix;
        let start = format!("{prefix}-");
        let names = found["indices"].as_array().into_iter().flatten().filter_map(|name| name.as_str());
        let names: Vec<String> = names.filter(|name| name.starts_with(&start)).map(str::to_owned).collect();
        let is_there = |index: Index| names.contains(&index.name(prefix));
        if !is_there(Index::Meta) || !is_there(Index::Placements) {
            return Err(SnapshotError::Foreign { place: place.clone(), prefix: prefix.clone() });
        }
        Ok(names)
    }

    async fn topic_now(&self) -> Result<TopicNow, SnapshotError> {
        let epoch = self.config.positions.epoch;
        let asked = self.ask(move |reader| {
            let facts = TopicFacts::found(epoch, reader.describe()?);
            Ok(TopicNow { ranges: reader.ranges(facts.partitions)?, facts })
        });
        Ok(asked.await?)
    }

    /// Commits what is committed: the broker refuses that if the group has members.
    async fn no_members(&self) -> Result<(), SnapshotError> {
        let asked = self.ask(|reader| {
            let committed = reader.committed(0..reader.partitions()?)?;
            let same: Vec<_> =
                committed.into_iter().map(|(partition, offset)| (partition, offset, None)).collect();
            if same.is_empty() { Ok(()) } else { reader.commit(&same) }
        });
        Ok(asked.await?)
    }

    async fn set_back(&self, offsets: &BTreeMap<i32, i64>) -> Result<(), SnapshotError> {
        let offsets: Vec<_> = offsets.iter().map(|(&partition, &offset)| (partition, offset, None)).collect();
        Ok(self.ask(move |reader| reader.commit(&offsets)).await?)
    }

    /// Reads the snapshot's meta index: its mark, and the commits it knows of.
    async fn read_mark(
        &self,
        place: &SnapshotPlace,
        partitions: i32,
    ) -> Result<(SnapshotMark, BTreeMap<i32, Watermark>), SnapshotError> {
        let meta = Index::Meta.name(&self.config.elasticsearch.prefix);
        // No name of geofold's own begins so.
        let name = format!("restoring-{meta}");
        let drop = async || {
            let path = format!("/{name}?ignore_unavailable=true");
            self.find(Method::Delete, path, "delete a temporary index").await
        };
        drop().await?;
        self.restore_as(place, &meta, &name).await?;
        let topic = &self.config.kafka.topic;
        let keys = (0..partitions).map(|partition| Watermark::key(topic, partition));
        let ids: Vec<DocId> = std::iter::once(SnapshotMark::key(topic)).chain(keys).collect();
        let read = self.documents(&name, &ids).await;
        drop().await?;
        let mut read = read?.into_iter();
        let mark = read.next().flatten().and_then(|mark| serde_json::from_value::<SnapshotMark>(mark).ok());
        let mark = mark.filter(|mark| mark.place == *place);
        let mark = mark.ok_or_else(|| SnapshotError::NotMarked(place.clone()))?;
        let watermarks = (0..partitions).zip(read);
        let watermarks = watermarks
            .filter_map(|(partition, found)| Some((partition, serde_json::from_value(found?).ok()?)));
        Ok((mark, watermarks.collect()))
    }

    /// Waits until no worker, dead or cut off, can write any more: two of its batch deadlines, in which nobody renews a claim.
    async fn no_zombies(&self, partitions: i32) -> Result<(), SnapshotError> {
        let mut known = self.claims(partitions).await;
        let mut since = Instant::now();
        loop {
            let now = self.claims(partitions).await;
            match changed(&known, &now) {
                None => {}
                Some((partition, Some(owner))) => return Err(SnapshotError::StillOwned { partition, owner }),
                Some((_, None)) => (known, since) = (now, Instant::now()),
            }
            let zombies = known.iter().flatten().map(|(claim, _)| claim.zombies()).max();
            let wait = zombies.unwrap_or(self.config.batch.timeout.saturating_mul(2));
            let Some(left) = wait.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) else {
                return Ok(());
            };
            (self.tell)(Progress::Wait { for_what: "the last requests of ended workers", left });
            if !self.pause().await {
                return Err(SnapshotError::Interrupted("nothing was changed"));
            }
        }
    }

    /// The claims and their states. None if the meta index is lost: then nobody can renew one.
    async fn claims(&self, partitions: i32) -> StampedClaims {
        let store = MapsStore::new(self.elastic, &self.config.kafka.topic, self.timeout());
        store.stamped_claims(partitions).await.unwrap_or_default()
    }

    /// Waits until each of these indices has its data.
    async fn wait_for(&self, names: &[String]) -> Result<(), SnapshotError> {
        let of = names.len();
        let (mut least, mut changed) = (of + 1, Instant::now());
        loop {
            let (missing, is_restoring) = self.missing(names).await?;
            if missing == 0 {
                return Ok(());
            }
            if missing < least || is_restoring {
                (least, changed) = (missing, Instant::now());
            }
            if changed.elapsed() > MAX_STANDSTILL {
                return Err(SnapshotError::NotRestored { red: missing, of });
            }
            let done = (of - missing) as u64;
            (self.tell)(Progress::Done { what: "indices restored", done, of: Some(of as u64) });
            if !self.pause().await {
                return Err(SnapshotError::Interrupted("repeat the command: not all indices are restored"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(owner: &str, ended_ms: Option<u64>, seq_no: u64) -> Option<(Claim, SeqNo)> {
        let (owner, assignment) = (owner.to_owned(), "a".to_owned());
        let claim = Claim { generation: 1, owner, deadline_ms: 60_000, assignment, ended_ms };
        Some((claim, SeqNo { seq_no, primary_term: 1 }))
    }

    #[test]
    fn a_renewed_claim_has_an_owner_and_an_ended_one_has_none() {
        let before = vec![claim("w1", None, 5), claim("w2", None, 6), None];
        assert_eq!(changed(&before, &before), None);
        let renewed = vec![claim("w1", None, 5), claim("w2", None, 8), None];
        assert_eq!(changed(&before, &renewed), Some((1, Some("w2".to_owned()))));
        let ended = vec![claim("w1", Some(0), 9), claim("w2", None, 6), None];
        assert_eq!(changed(&before, &ended), Some((0, None)));
        let both = vec![claim("w1", Some(0), 9), claim("w2", None, 6), claim("w3", None, 7)];
        assert_eq!(changed(&before, &both), Some((2, Some("w3".to_owned()))));
        assert_eq!(changed(&before, &Vec::new()), None, "the meta index was lost");
    }
}
