//! Reads every placement and every copy as searches see them, and brings together what belongs to one document.
//!
//! Several indices are scanned side by side; a thread sorts what they give, by id. What is seen of a document here was not
//! all seen at one moment: a difference is only a candidate.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::{StreamExt, TryStreamExt};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::sort::Sorter;
use super::{Audit, AuditError, Totals};
use crate::base::ids::{DocId, ShardId};
use crate::base::position::{Epoch, Position};
use crate::base::progress::{Progress, Tell};
use crate::core::defect::{self, Fit, Observation, ObservedCopy, ObservedPlacement};
use crate::core::placement::Placement;
use crate::io::elastic::Index;
use crate::io::elastic::scan::{IndexScan, RawHit, ScanError, ScanOptions, count};

/// Documents per page; a response is a few megabytes at most, since only locations are requested.
const PAGE: usize = 5_000;
/// Pages that wait to be sorted.
const PAGES_WAITING: usize = 4;
/// Maximum queued suspects.
const SUSPECTS_AT_ONCE: usize = 1_000;

const PLACEMENT: u8 = 0;
const UNREADABLE: u8 = 1;
const COPY: u8 = 2;

/// A document that may have a defect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// Its id.
    pub id: DocId,
    /// Geoshards with copies, independent of the placement.
    pub seen_in: Vec<ShardId>,
    /// No defect: the placement says deleted, and no copy was seen.
    pub is_grave: bool,
}

/// Observations of all documents, in any order; merged by id in bounded memory.
pub struct Sightings(Sorter);

impl Sightings {
    /// `memory`: bytes, at least some hundred kilobytes. The rest is spilled to files in `folder`.
    pub fn new(folder: &Path, memory: usize) -> Self {
        Self(Sorter::new(folder, memory))
    }

    /// Adds a page. Fails if a temporary file cannot be written.
    pub fn take(&mut self, page: &SeenPage) -> io::Result<()> {
        let mut rest = page.bytes.as_slice();
        for &(key, value) in &page.lengths {
            let (record, after) = rest.split_at(usize::from(key) + usize::from(value));
            let (key, value) = record.split_at(key.into());
            self.0.push(key, value)?;
            rest = after;
        }
        Ok(())
    }

    /// Goes through all documents by id; passes suspects to `suspects` in groups until it returns `false`. `shards`: geoshard
    /// names by number. `sweeps`: include placements that may be swept.
    pub fn judge(
        self,
        shards: &[ShardId],
        epoch: Epoch,
        sweeps: bool,
        mut suspects: impl FnMut(Vec<Suspect>) -> bool,
    ) -> io::Result<Totals> {
        let mut merged = self.0.merge()?;
        let mut totals = Totals::default();
        let mut chunk = Vec::new();
        while let Some((key, values)) = merged.next_group()? {
            let sight = together(&values, shards);
            totals.copies += sight.copies.len() as u64;
            totals.documents += u64::from(!sight.copies.is_empty());
            totals.placements += u64::from(sight.placed != ObservedPlacement::Nowhere);
            let is_well = defect::judge(&sight, epoch).is_empty();
            let says_deleted =
                matches!(&sight.placed, ObservedPlacement::At(placement) if placement.shard.is_none());
            let is_grave = sweeps && is_well && says_deleted && sight.copies.is_empty();
            if is_well && !is_grave {
                continue;
            }
            let id = DocId::from_key(Some(&key)).map_err(io::Error::other)?;
            chunk.push(Suspect { id, seen_in: sight.copies.into_keys().collect(), is_grave });
            if chunk.len() == SUSPECTS_AT_ONCE && !suspects(std::mem::take(&mut chunk)) {
                return Ok(totals);
            }
        }
        suspects(chunk);
        Ok(totals)
    }
}

/// Observations of some documents: ids with data, concatenated.
#[derive(Debug, Default)]
pub struct SeenPage {
    bytes: Vec<u8>,
    lengths: Vec<(u16, u16)>,
}

impl SeenPage {
    /// A copy in the geoshard of this number.
    pub fn copy(&mut self, id: &str, number: u32, version: u64, fit: Fit) {
        self.push(id, &[&[COPY, fit as u8], &version.to_le_bytes(), &number.to_le_bytes()]);
    }

    /// A placement, as its JSON. Whether it can be read shows when its document is together.
    pub fn placement(&mut self, id: &str, json: &[u8]) {
        if json.len() < usize::from(u16::MAX) {
            self.push(id, &[&[PLACEMENT], json]);
        } else {
            self.push(id, &[&[UNREADABLE]]);
        }
    }

    fn push(&mut self, id: &str, parts: &[&[u8]]) {
        let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX);
        // An id has at most 512 bytes.
        debug_assert!(id.len() < usize::from(u16::MAX));
        self.lengths.push((length(id.len()), length(parts.iter().map(|part| part.len()).sum())));
        self.bytes.extend_from_slice(id.as_bytes());
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
    }

    fn len(&self) -> usize {
        self.lengths.len()
    }
}

impl Audit<'_> {
    /// Scans everything; passes on suspects as the merge finds them.
    pub(super) async fn gather(
        &self,
        tell: Tell<'_>,
        mut suspects: impl AsyncFnMut(Vec<Suspect>) -> Result<(), AuditError>,
    ) -> Result<Totals, AuditError> {
        let (shards, indices) = self.refreshed().await?;
        let names: Vec<String> = indices.iter().map(|index| index.name(self.prefix)).collect();
        // Only for the time left.
        let of = count(self.elastic, &names, None, self.options.timeout).await.ok();
        let all_read = AtomicU64::new(0);
        let read = |hits: usize| {
            let done = all_read.fetch_add(hits as u64, Ordering::Relaxed) + hits as u64;
            tell(Progress::Done { what: "placements and copies read", done, of });
        };
        let (pages, mut waiting) = mpsc::channel::<SeenPage>(PAGES_WAITING);
        let mut sightings = Sightings::new(&self.options.folder, self.options.memory);
        let sorting = tokio::task::spawn_blocking(move || -> io::Result<Sightings> {
            while let Some(page) = waiting.blocking_recv() {
                sightings.take(&page)?;
            }
            Ok(sightings)
        });
        let scans = futures::stream::iter(indices.into_iter().zip(0..))
            .map(|(index, number)| self.scan(number, index, pages.clone(), &read))
            .buffer_unordered(self.options.scans)
            .try_collect::<Vec<()>>()
            .await;
        drop(pages);
        // If the sorting thread failed, its error explains why the scans lost their receiver.
        let sightings = sorting.await.map_err(io::Error::other).flatten();
        let sightings = sightings.map_err(|error| self.no_room(error))?;
        scans?;

        let (groups, mut found) = mpsc::channel::<Vec<Suspect>>(1);
        let (epoch, sweeps) = (self.epoch, self.options.sweep_below.is_some());
        let judging = tokio::task::spawn_blocking(move || {
            // The receiver is gone if checking earlier suspects failed.
            sightings.judge(&shards, epoch, sweeps, |suspects| groups.blocking_send(suspects).is_ok())
        });
        while let Some(chunk) = found.recv().await {
            suspects(chunk).await?;
        }
        judging.await.map_err(io::Error::other).flatten().map_err(|error| self.no_room(error))
    }

    /// The geoshards that there are, and all indices with documents in them, the placements last; searches see all that was
    /// written.
    pub(super) async fn refreshed(&self) -> Result<(Vec<ShardId>, Vec<Index>), AuditError> {
        let shards = crate::io::indices::geoshards(self.elastic, self.prefix, self.options.timeout).await?;
        let indices: Vec<Index> =
            shards.iter().cloned().map(Index::Geoshard).chain([Index::Placements]).collect();
        for chunk in indices.chunks(50) {
            let refreshed = self.elastic.refresh(chunk, self.options.timeout).await;
            refreshed.map_err(|error| AuditError::Call { doing: "refresh the indices", error })?;
        }
        Ok((shards, indices))
    }

    pub(super) fn no_room(&self, error: io::Error) -> AuditError {
        AuditError::Temporary { folder: self.options.folder.clone(), error }
    }

    async fn scan(
        &self,
        number: u32,
        index: Index,
        pages: mpsc::Sender<SeenPage>,
        read: &(dyn Fn(usize) + Sync),
    ) -> Result<(), AuditError> {
        let fields = match index {
            Index::Geoshard(_) => {
                let added = self.location.adds_point().then(|| self.location.searched().to_owned());
                self.location.fields().into_iter().chain(added).collect()
            }
            _ => ["pos", "shard", "leftovers", "deleted", "refused"].map(str::to_owned).to_vec(),
        };
        let options = ScanOptions { page: PAGE, timeout: self.options.timeout, fields, query: None };
        let name = index.name(self.prefix);
        let mut scan = IndexScan::open(self.elastic, std::slice::from_ref(&name), options).await?;
        loop {
            let mut page = SeenPage::default();
            let each = |hit: RawHit<'_>| self.see(&name, number, &index, &hit, &mut page);
            if !scan.next_page(each).await? {
                break;
            }
            read(page.len());
            let pause = self.pause(page.len());
            if pages.send(page).await.is_err() {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        scan.close().await;
        Ok(())
    }

    /// How long a scan waits after a page, so that all of them together keep to the rate in force.
    fn pause(&self, hits: usize) -> Duration {
        let of_one = self.options.rate.as_ref().map(|rate| Duration::from_secs(1) / rate.borrow().get());
        let hits = u32::try_from(hits.saturating_mul(self.options.scans)).unwrap_or(u32::MAX);
        of_one.unwrap_or_default().saturating_mul(hits)
    }

    /// Keeps the parts of a hit that judging needs.
    fn see(
        &self,
        name: &str,
        number: u32,
        index: &Index,
        hit: &RawHit<'_>,
        page: &mut SeenPage,
    ) -> Result<(), ScanError> {
        if DocId::from_key(Some(hit.id.as_bytes())).is_err() {
            return Err(ScanError::Undecodable { names: name.to_owned(), what: "an id" });
        }
        let json = hit.source.map_or("null", RawValue::get);
        match index {
            Index::Geoshard(shard) => {
                page.copy(&hit.id, number, hit.version, self.fit(shard, json.as_bytes()));
            }
            _ => page.placement(&hit.id, json.as_bytes()),
        }
        Ok(())
    }

    /// Whether a document belongs where it is.
    pub(super) fn fit(&self, shard: &ShardId, document: &[u8]) -> Fit {
        let is_here = |at| self.maps.iter().any(|map| map.locate(at) == shard);
        Fit::of(document, self.location, is_here).0
    }
}

/// Rebuilds one document from the kept data of its placement and copies.
fn together(values: &[Vec<u8>], shards: &[ShardId]) -> Observation {
    let mut sight = Observation { placed: ObservedPlacement::Nowhere, stamp: None, copies: BTreeMap::new() };
    for value in values {
        match value.split_first() {
            Some((&PLACEMENT, json)) => {
                sight.placed =
                    Placement::from_json(json).map_or(ObservedPlacement::Unreadable, ObservedPlacement::At);
            }
            Some((&COPY, [fit, rest @ ..])) => {
                let (Some((version, number)), fit) = (rest.split_first_chunk(), fit) else { continue };
                let number = number.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
                let Some(shard) = number.and_then(|number| shards.get(number)) else { continue };
                let fit = Fit::ALL.into_iter().find(|f| *f as u8 == *fit);
                let version = Position::from_version(u64::from_le_bytes(*version));
                let copy = ObservedCopy { version, fit: fit.unwrap_or(Fit::NoLocation) };
                sight.copies.insert(shard.clone(), copy);
            }
            _ => sight.placed = ObservedPlacement::Unreadable,
        }
    }
    sight
}
