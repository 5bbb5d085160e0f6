//! From a selection to a campaign: memory is bounded, and runners see it only when its list is whole.

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::chunk;
use super::intake::{Intake, Sorted};
use super::select::{SelectError, Selection, read_list, select};
use super::store::{BROKEN_OFF, CampaignStore, NewCampaign};
use crate::io::database::DatabaseError;
use crate::io::elastic::Elastic;

/// Chunks of one transaction.
const CHUNKS_AT_ONCE: usize = 32;
/// A sign of life while ids are read and sorted.
const BEAT: Duration = Duration::from_secs(BROKEN_OFF.as_secs() / 6);
/// Ids that failed, of one transaction.
const FAILED_AT_ONCE: usize = 1_000;

/// Where ids come from.
pub enum IdSource<'a> {
    /// A list, a line each.
    List(Box<dyn BufRead + Send>),
    /// Elasticsearch.
    Index {
        /// The server.
        elastic: &'a dyn Elastic,
        /// Prefix of index names.
        prefix: &'a str,
        /// Which documents.
        selection: Selection,
        /// For one request.
        timeout: Duration,
    },
}

/// How ids are sorted.
#[derive(Debug, Clone)]
pub struct SortOptions {
    /// Where temporary files go.
    pub folder: PathBuf,
    /// Bytes of memory.
    pub memory: usize,
}

/// A campaign that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Created {
    /// Its number.
    pub id: i64,
    /// Ids that were read.
    pub read: u64,
    /// Ids in its list: each once.
    pub ids: u64,
    /// Of those that were read, how many cannot be ids of documents; they are kept with the campaign, as failed.
    pub bad: u64,
}

/// Why a campaign was not made. Nothing of it is left, if the database can be reached.
#[derive(Debug, Error)]
pub enum CreateError {
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Where the ids come from.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A temporary file.
    #[error("cannot sort ids: {0}")]
    Io(#[from] io::Error),
    /// The campaign was cancelled.
    #[error("campaign {0} was cancelled while its list was written")]
    Cancelled(i64),
    /// It has no ids.
    #[error("no document is selected; no campaign was made")]
    Empty,
    /// There was a signal.
    #[error("interrupted; no campaign was made")]
    Interrupted,
}

/// Creates a campaign. `None`: a periodic one that another process has created. `told` gets the number of documents read.
///
/// # Errors
/// See [`CreateError`].
pub async fn create(
    store: &CampaignStore,
    new: &NewCampaign,
    source: IdSource<'_>,
    sort_options: &SortOptions,
    paused: bool,
    stop: &CancellationToken,
    told: &(dyn Fn(u64) + Sync),
) -> Result<Option<Created>, CreateError> {
    let Some(id) = store.create(new).await? else { return Ok(None) };
    let work = async {
        let sorted = read(source, sort_options, told).await?;
        write(store, id, new, sorted, paused).await
    };
    let result = tokio::select! {
        result = work => result,
        error = signs_of_life(store, id) => Err(error),
        () = stop.cancelled() => Err(CreateError::Interrupted),
    };
    match result {
        Ok(created) => Ok(Some(created)),
        Err(error) => {
            // Where this fails it stays there, and can be seen to be broken off.
            if store.give_up(id).await.is_err() || store.remove(id).await.is_err() {
                tracing::warn!(
                    campaign = id,
                    "an incomplete list may remain; `geofold campaign remove` deletes it"
                );
            }
            Err(error)
        }
    }
}

async fn read(
    source: IdSource<'_>,
    sort_options: &SortOptions,
    told: &(dyn Fn(u64) + Sync),
) -> Result<Sorted, CreateError> {
    let mut intake = Intake::new(&sort_options.folder, sort_options.memory);
    match source {
        IdSource::List(list) => {
            let reading = tokio::task::spawn_blocking(move || -> io::Result<Sorted> {
                read_list(list, &mut intake)?;
                intake.sorted()
            });
            Ok(reading.await.map_err(io::Error::other)?.map_err(SelectError::Io)?)
        }
        IdSource::Index { elastic, prefix, selection, timeout } => {
            select(elastic, prefix, &selection, timeout, &mut intake, told).await?;
            let sorting = tokio::task::spawn_blocking(move || intake.sorted());
            Ok(sorting.await.map_err(io::Error::other)??)
        }
    }
}

/// Some chunks, and how many ids they have.
struct Piece {
    chunks: Vec<Vec<u8>>,
    ids: i64,
}

async fn write(
    store: &CampaignStore,
    id: i64,
    new: &NewCampaign,
    sorted: Sorted,
    paused: bool,
) -> Result<Created, CreateError> {
    let size = new.chunk;
    let goes_on = |is_there: bool| if is_there { Ok(()) } else { Err(CreateError::Cancelled(id)) };
    let Sorted { ids, taken, bad } = sorted;
    let mut created = Created { id, read: taken, ids: bad.len() as u64, bad: bad.len() as u64 };
    for some in bad.chunks(FAILED_AT_ONCE) {
        goes_on(store.append_failed(id, some).await?)?;
    }
    let (sender, mut pieces) = mpsc::channel(2);
    let cutting = tokio::task::spawn_blocking(move || cut(ids, size, &sender));
    while let Some(Piece { chunks, ids }) = pieces.recv().await {
        goes_on(store.append(id, &chunks, ids).await?)?;
        created.ids += ids.unsigned_abs();
    }
    cutting.await.map_err(io::Error::other)??;
    if created.ids == 0 && !new.may_be_empty {
        return Err(CreateError::Empty);
    }
    goes_on(store.seal(id, paused).await?)?;
    Ok(created)
}

/// Cuts sorted ids into chunks. Ends early if the receiver is gone.
fn cut(
    mut ids: crate::ops::audit::sort::MergedRecords,
    size: u32,
    sender: &mpsc::Sender<Piece>,
) -> io::Result<()> {
    let mut piece = Piece { chunks: Vec::new(), ids: 0 };
    let (mut chunk, mut in_chunk) = (Vec::new(), 0);
    loop {
        let next = ids.next_group()?;
        let is_last = next.is_none();
        if let Some((id, _)) = next {
            chunk::push(&mut chunk, &id);
            in_chunk += 1;
            piece.ids += 1;
        }
        if in_chunk == size || (is_last && in_chunk > 0) {
            piece.chunks.push(std::mem::take(&mut chunk));
            in_chunk = 0;
        }
        let is_full = piece.chunks.len() == CHUNKS_AT_ONCE;
        if is_full || (is_last && !piece.chunks.is_empty()) {
            let full = std::mem::replace(&mut piece, Piece { chunks: Vec::new(), ids: 0 });
            if sender.blocking_send(full).is_err() {
                return Ok(());
            }
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Sends heartbeats while the list is written; ends if the campaign was cancelled.
async fn signs_of_life(store: &CampaignStore, id: i64) -> CreateError {
    loop {
        tokio::time::sleep(BEAT).await;
        match store.beat(id).await {
            Ok(true) => {}
            Ok(false) => return CreateError::Cancelled(id),
            Err(error) if error.is_passing() => tracing::warn!(%error, "a heartbeat failed"),
            Err(error) => return error.into(),
        }
    }
}
