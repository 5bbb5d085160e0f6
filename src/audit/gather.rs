//! Reads every placement and every copy as searches see them, and brings together what belongs to one document.
//!
//! Several indices are scanned side by side; a thread sorts what they give, by id. What is seen of a document here was not
//! all seen at one moment: whatever looks wrong is only a suspect.

use std::collections::BTreeMap;
use std::io;

use futures::stream::{StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use super::defect::{self, Copy, Fit, Placed, Sight};
use super::sort::{Merged, Sorter};
use super::{Audit, AuditError, Totals};
use crate::elastic::Index;
use crate::elastic::scan::{Hit, Scan, ScanOptions};
use crate::ids::{DocId, ShardId};
use crate::placement::Placement;
use crate::position::{Epoch, Position};

/// Documents of a page; the answer to one is a few megabytes at most, since only locations are asked for.
const PAGE: usize = 5_000;
/// Pages that wait to be sorted.
const PAGES_WAITING: usize = 4;
/// Suspects that wait to be looked at.
const SUSPECTS_AT_ONCE: usize = 1_000;

const PLACEMENT: u8 = 0;
const UNREADABLE: u8 = 1;
const COPY: u8 = 2;

/// A document in which something looked wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suspect {
    pub id: DocId,
    /// Where copies were seen, whatever the placement says.
    pub seen_in: Vec<ShardId>,
}

type Page = Vec<(DocId, Vec<u8>)>;

impl Audit<'_> {
    /// Scans everything, and gives the suspects as the merge comes across them.
    pub(super) async fn gather(
        &self,
        mut suspects: impl AsyncFnMut(Vec<Suspect>) -> Result<(), AuditError>,
    ) -> Result<Totals, AuditError> {
        let shards = crate::indices::geoshards(self.elastic, self.prefix, self.options.timeout).await?;
        let indices: Vec<Index> =
            shards.iter().cloned().map(Index::Geoshard).chain([Index::Placements]).collect();
        for chunk in indices.chunks(50) {
            let refreshed = self.elastic.refresh(chunk, self.options.timeout).await;
            refreshed.map_err(|error| AuditError::Call { doing: "refresh the indices", error })?;
        }

        let (pages, mut waiting) = mpsc::channel::<Page>(PAGES_WAITING);
        let mut sorter = Sorter::new(&self.options.folder, self.options.memory);
        let sorting = tokio::task::spawn_blocking(move || -> io::Result<Merged> {
            while let Some(page) = waiting.blocking_recv() {
                for (id, value) in page {
                    sorter.push(id.as_str().as_bytes(), &value)?;
                }
            }
            sorter.merge()
        });
        let scans = futures::stream::iter(indices.into_iter().enumerate())
            .map(|(number, index)| self.scan(number, index, pages.clone()))
            .buffer_unordered(self.options.scans)
            .try_collect::<Vec<()>>()
            .await;
        drop(pages);
        // A thread that could not go on is why the scans found nobody to read for.
        let merged = sorting.await.map_err(io::Error::other).flatten();
        let mut merged = merged.map_err(|error| self.no_room(error))?;
        scans?;

        let (groups, mut found) = mpsc::channel::<Vec<Suspect>>(1);
        let epoch = self.epoch;
        let judging = tokio::task::spawn_blocking(move || judge_all(&mut merged, &shards, epoch, &groups));
        while let Some(chunk) = found.recv().await {
            suspects(chunk).await?;
        }
        judging.await.map_err(io::Error::other).flatten().map_err(|error| self.no_room(error))
    }

    fn no_room(&self, error: io::Error) -> AuditError {
        AuditError::Temporary { folder: self.options.folder.clone(), error }
    }

    async fn scan(&self, number: usize, index: Index, pages: mpsc::Sender<Page>) -> Result<(), AuditError> {
        let fields = match index {
            Index::Geoshard(_) => vec![self.location.as_str().to_owned()],
            _ => ["pos", "shard", "leftovers", "deleted", "refused"].map(str::to_owned).to_vec(),
        };
        let options = ScanOptions { page: PAGE, timeout: self.options.timeout, fields, query: None };
        let name = index.name(self.prefix);
        let mut scan = Scan::open(self.elastic, &[name], options).await?;
        loop {
            let hits = scan.next().await?;
            if hits.is_empty() {
                break;
            }
            let page = hits.into_iter().map(|hit| self.record(number, &index, hit)).collect();
            if pages.send(page).await.is_err() {
                break;
            }
        }
        scan.close().await;
        Ok(())
    }

    /// What is kept of a hit until all of its document is together.
    fn record(&self, number: usize, index: &Index, hit: Hit) -> (DocId, Vec<u8>) {
        let json = hit.source.to_string();
        let value = match index {
            Index::Geoshard(shard) => {
                let mut value = vec![COPY, self.fit(shard, json.as_bytes()) as u8];
                value.extend_from_slice(&hit.version.to_le_bytes());
                value.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
                value
            }
            // Whether it can be read shows when its document is together.
            _ if json.len() < usize::from(u16::MAX) => [&[PLACEMENT], json.as_bytes()].concat(),
            _ => vec![UNREADABLE],
        };
        (hit.id, value)
    }

    /// Whether a document belongs where it is.
    pub(super) fn fit(&self, shard: &ShardId, document: &[u8]) -> Fit {
        match self.location.locate(document) {
            Err(_) => Fit::NoLocation,
            Ok(at) if self.maps.iter().any(|map| map.locate(at) == shard) => Fit::Here,
            Ok(_) => Fit::Elsewhere,
        }
    }
}

/// Goes through all documents; hands on those in which something looks wrong.
fn judge_all(
    merged: &mut Merged,
    shards: &[ShardId],
    epoch: Epoch,
    suspects: &mpsc::Sender<Vec<Suspect>>,
) -> io::Result<Totals> {
    let mut totals = Totals::default();
    let mut chunk = Vec::new();
    while let Some((key, values)) = merged.next_group()? {
        let sight = together(&values, shards);
        totals.copies += sight.copies.len() as u64;
        totals.documents += u64::from(!sight.copies.is_empty());
        totals.placements += u64::from(sight.placed != Placed::Nowhere);
        if defect::judge(&sight, epoch).is_empty() {
            continue;
        }
        let id = DocId::from_key(Some(&key)).map_err(io::Error::other)?;
        chunk.push(Suspect { id, seen_in: sight.copies.into_keys().collect() });
        if chunk.len() == SUSPECTS_AT_ONCE && suspects.blocking_send(std::mem::take(&mut chunk)).is_err() {
            return Ok(totals);
        }
    }
    // Nobody takes them any more if looking at earlier ones failed.
    drop(suspects.blocking_send(chunk));
    Ok(totals)
}

/// One document from what was kept of its placement and its copies.
fn together(values: &[Vec<u8>], shards: &[ShardId]) -> Sight {
    let mut sight = Sight { placed: Placed::Nowhere, stamp: None, copies: BTreeMap::new() };
    for value in values {
        match value.split_first() {
            Some((&PLACEMENT, json)) => {
                sight.placed = Placement::from_json(json).map_or(Placed::Unreadable, Placed::At);
            }
            Some((&COPY, [fit, rest @ ..])) => {
                let (Some((version, number)), fit) = (rest.split_first_chunk(), fit) else { continue };
                let number = number.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
                let Some(shard) = number.and_then(|number| shards.get(number)) else { continue };
                let fit = [Fit::Here, Fit::Elsewhere, Fit::NoLocation].into_iter().find(|f| *f as u8 == *fit);
                let version = Position::from_version(u64::from_le_bytes(*version));
                let copy = Copy { version, fit: fit.unwrap_or(Fit::NoLocation) };
                sight.copies.insert(shard.clone(), copy);
            }
            _ => sight.placed = Placed::Unreadable,
        }
    }
    sight
}
