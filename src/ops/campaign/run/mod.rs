//! A runner: reserves a chunk, sends its records, finishes it, and repeats until nothing is left.
//!
//! A chunk is marked as done only when the broker has acknowledged its records. A runner that dies in between leaves a lease
//! that ends by itself; then the chunk is done again. While a runner works it extends its lease; one that finds its lease
//! taken stops in the middle of its chunk, since another does it now.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::produce::{ProduceError, Producing};
use super::reserve::{Lease, Reservation};
use super::store::{CampaignStore, CampaignStoreError};
use super::{CampaignAction, CampaignState};
use crate::base::retry::RetryPolicy;
use crate::io::database::DatabaseError;

/// Signs of life within the time of one lease.
const SIGNS_OF_LIFE: u32 = 6;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Nothing is left to do.
    Over(CampaignState),
    /// There was a signal.
    Stopped,
}

/// Why a runner stopped. Other runners repeat its current chunk.
#[derive(Debug, Error)]
pub enum RunError {
    /// The database.
    #[error(transparent)]
    Store(#[from] CampaignStoreError),
    /// Kafka.
    #[error(transparent)]
    Produce(#[from] ProduceError),
    /// Records for another topic.
    #[error(
        "campaign {id} is for the topic {wanted}, and kafka.topic is {configured}; run it with the configuration that it was made with"
    )]
    OtherTopic {
        /// The campaign.
        id: i64,
        /// Its topic.
        wanted: String,
        /// The configured one.
        configured: String,
    },
}

impl From<DatabaseError> for RunError {
    fn from(error: DatabaseError) -> Self {
        Self::Store(error.into())
    }
}

/// One of any number of runners.
pub struct Runner {
    store: CampaignStore,
    producing: Producing,
    topic: String,
    name: String,
    lease: Duration,
    drain: Duration,
    retry: RetryPolicy,
}

/// Times of a runner.
#[derive(Debug, Clone, Copy)]
pub struct RunTimes {
    /// A runner that gives no sign of life for so long loses its chunk to another.
    pub lease: Duration,
    /// After a signal the chunk at work may take so long.
    pub drain: Duration,
    /// Between attempts.
    pub retry: RetryPolicy,
}

/// Why work on a chunk stopped.
enum Lost {
    Taken,
    Cancelled,
}

impl Runner {
    /// A runner that sends to `topic`.
    pub fn new(store: CampaignStore, producing: Producing, topic: &str, times: RunTimes) -> Self {
        let RunTimes { lease, drain, retry } = times;
        Self { store, producing, topic: topic.to_owned(), name: name(), lease, drain, retry }
    }

    /// Name in the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The topic that it sends to.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Works on a campaign until nothing is left of it, or until `stop`: then the chunk at work is brought to its end first.
    ///
    /// # Errors
    /// See [`RunError`]. A database or a broker that is away is waited for.
    pub async fn run(&self, id: i64, stop: &CancellationToken) -> Result<Ended, RunError> {
        let Some(status) = self.with_retries(stop, async || Ok(self.store.status(id).await)).await? else {
            return Ok(Ended::Stopped);
        };
        let status = status?;
        if status.topic != self.topic {
            let (wanted, configured) = (status.topic, self.topic.clone());
            return Err(RunError::OtherTopic { id, wanted, configured });
        }
        loop {
            if stop.is_cancelled() {
                return Ok(Ended::Stopped);
            }
            let asked =
                self.with_retries(stop, async || self.store.reserve(id, &self.name, self.lease).await);
            match asked.await? {
                None => return Ok(Ended::Stopped),
                Some(Reservation::Unknown) => return Err(CampaignStoreError::Unknown(id).into()),
                Some(Reservation::Over(state)) => return Ok(Ended::Over(state)),
                Some(Reservation::Wait(time)) => {
                    tokio::select! {
                        () = tokio::time::sleep(time) => {}
                        () = stop.cancelled() => {}
                    }
                }
                Some(Reservation::Chunk(lease)) => self.work(status.action, &lease, stop).await?,
            }
        }
    }

    async fn work(
        &self,
        action: CampaignAction,
        lease: &Lease,
        stop: &CancellationToken,
    ) -> Result<(), RunError> {
        let Some(Some(ids)) = self.with_retries(stop, async || self.store.chunk(lease).await).await? else {
            self.give_back(lease).await;
            return Ok(());
        };
        let rate = AtomicI64::new(lease.rate);
        let too_late = async {
            stop.cancelled().await;
            tokio::time::sleep(self.drain).await;
        };
        let failed = tokio::select! {
            biased;
            produced = self.producing.produce(action, &ids, &rate) => match produced {
                Ok(failed) => failed,
                Err(error) => {
                    self.give_back(lease).await;
                    return Err(error.into());
                }
            },
            lost = self.keep(lease, &rate) => {
                match lost? {
                    Lost::Taken => tracing::warn!(token = lease.token, "another runner holds this chunk"),
                    Lost::Cancelled => self.give_back(lease).await,
                }
                return Ok(());
            }
            () = too_late => {
                self.give_back(lease).await;
                return Ok(());
            }
        };
        let produced = ids.len() - failed.len();
        let done =
            self.with_retries(stop, async || self.store.finish(lease, produced, &failed).await).await?;
        if done != Some(true) {
            // If the response of a success was lost, it looks like this, too.
            tracing::warn!(token = lease.token, "another runner holds this chunk, or it is done");
        }
        Ok(())
    }

    /// Extends the lease until that fails.
    async fn keep(&self, lease: &Lease, rate: &AtomicI64) -> Result<Lost, DatabaseError> {
        loop {
            tokio::time::sleep(self.lease / SIGNS_OF_LIFE).await;
            match self.store.extend(lease, self.lease).await {
                Ok(None) => return Ok(Lost::Taken),
                Ok(Some(standing)) if standing.state == CampaignState::Cancelled => {
                    return Ok(Lost::Cancelled);
                }
                Ok(Some(standing)) => rate.store(standing.rate, Ordering::Relaxed),
                Err(error) if error.is_passing() => tracing::warn!(%error, "could not extend a lease"),
                Err(error) => return Err(error),
            }
        }
    }

    /// Where this fails the lease ends by itself.
    async fn give_back(&self, lease: &Lease) {
        if let Err(error) = self.store.give_back(lease).await {
            tracing::warn!(%error, token = lease.token, "could not release a chunk; others get it when its lease expires");
        }
    }

    /// Retries while the database is unreachable; `None` if still unreachable after a signal.
    async fn with_retries<T>(
        &self,
        stop: &CancellationToken,
        ask: impl AsyncFn() -> Result<T, DatabaseError>,
    ) -> Result<Option<T>, DatabaseError> {
        let mut delays = self.retry.delays();
        loop {
            match ask().await {
                Ok(answer) => return Ok(Some(answer)),
                Err(error) if error.is_passing() => {
                    if stop.is_cancelled() {
                        return Ok(None);
                    }
                    let delay = delays.next(None);
                    tracing::warn!(%error, ?delay, "asking again");
                    tokio::select! {
                        () = tokio::time::sleep(delay) => {}
                        () = stop.cancelled() => {}
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A name that no other process has, nor this one: machine, process, and now.
pub(super) fn name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    format!("{}-{}-{now:x}", host.trim(), std::process::id())
}

#[cfg(test)]
mod tests;
