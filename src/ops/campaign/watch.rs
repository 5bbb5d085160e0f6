//! Campaigns that are made every so often, `[[campaigns.periodic]]`, and those that requests have made.
//!
//! Any number of processes may watch; the database has one campaign of a name for each period, and everybody works on it.
//! Periods are counted from 1970 by the database's clock. While the last campaign of a name is not over, none is added.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use super::CampaignState;
use super::create::{CreateError, IdSource, SortOptions, create};
use super::run::{RunError, Runner};
use super::select::Selection;
use super::store::{CampaignStore, CampaignStoreError, NewCampaign};
use crate::base::retry::RetryPolicy;
use crate::io::elastic::Elastic;

/// How often it is looked whether a period has begun, and whether there is work.
pub const LOOK: Duration = Duration::from_secs(5);
/// Campaigns of a name that are kept when they are over.
const KEPT_CAMPAIGNS: usize = 5;

/// Campaigns made by requests are kept for so long when they are over.
const KEPT_REQUESTED: Duration = Duration::from_secs(7 * 24 * 3600);
/// Campaigns made by requests that a process works on at the same time; others wait.
const REQUESTED_AT_ONCE: usize = 8;

/// A campaign that is made every so often.
#[derive(Debug, Clone)]
pub struct ScheduledCampaign {
    /// Its name, its action, and how often.
    pub new: NewCampaign,
    /// Which documents.
    pub selection: Selection,
}

/// What watching needs.
pub struct Watch<'a> {
    /// Campaigns.
    pub store: &'a CampaignStore,
    /// Who works on them.
    pub runner: &'a Runner,
    /// Where ids come from.
    pub elastic: &'a dyn Elastic,
    /// What names of indices begin with.
    pub prefix: &'a str,
    /// For a request of a scan.
    pub timeout: Duration,
    /// For sorting.
    pub sort_options: SortOptions,
    /// Between attempts.
    pub retry: RetryPolicy,
}

impl Watch<'_> {
    /// Makes this one whenever a period has begun, and works on it, until `stop`.
    ///
    /// # Errors
    /// If something cannot go on that waiting does not mend. What passes is tried again.
    pub async fn run(&self, periodic: &ScheduledCampaign, stop: &CancellationToken) -> Result<(), RunError> {
        let mut delays = self.retry.delays();
        while !stop.is_cancelled() {
            let pause = match self.turn(periodic, stop).await {
                Ok(()) => {
                    delays = self.retry.delays();
                    LOOK
                }
                Err(RunError::Store(error)) if error.is_passing() => {
                    let pause = delays.next(None);
                    tracing::warn!(%error, campaign = periodic.new.name, "looking again");
                    pause
                }
                Err(error) => return Err(error),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
        Ok(())
    }

    /// Works on campaigns that requests have made, until `stop`; one that is paused is left. Others run meanwhile.
    ///
    /// # Errors
    /// As [`Watch::run`].
    pub async fn run_requested(&self, stop: &CancellationToken) -> Result<(), RunError> {
        let mut delays = self.retry.delays();
        let mut stops = BTreeMap::<i64, CancellationToken>::new();
        let mut at_work = FuturesUnordered::new();
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                Some((id, ended)) = at_work.next() => {
                    stops.remove(&id);
                    match ended {
                        Ok(ended) => tracing::info!(campaign = id, ?ended, "run"),
                        // Removed meanwhile.
                        Err(RunError::Store(CampaignStoreError::Unknown(_))) => {}
                        Err(error) => return Err(error),
                    }
                    continue;
                }
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => break,
            }
            match self.requested().await {
                Ok(ready) => {
                    delays = self.retry.delays();
                    pause = LOOK;
                    stops.iter().filter(|(id, _)| !ready.contains(id)).for_each(|(_, stop)| stop.cancel());
                    for id in ready {
                        if stops.len() == REQUESTED_AT_ONCE || stops.contains_key(&id) {
                            continue;
                        }
                        let stop = stop.child_token();
                        stops.insert(id, stop.clone());
                        at_work.push(async move { (id, self.runner.run(id, &stop).await) });
                    }
                }
                Err(error) if error.is_passing() => {
                    pause = delays.next(None);
                    tracing::warn!(%error, "looking again for campaigns made by requests");
                }
                Err(error) => return Err(error.into()),
            }
        }
        // Each brings its chunk to an end.
        while let Some((_, ended)) = at_work.next().await {
            ended?;
        }
        Ok(())
    }

    /// Those that have work left. Old ones are forgotten.
    async fn requested(&self) -> Result<Vec<i64>, CampaignStoreError> {
        for id in self.store.requested_and_over(KEPT_REQUESTED).await? {
            match self.store.remove(id).await {
                // Another process did, or it was retried meanwhile.
                Ok(()) | Err(CampaignStoreError::Unknown(_) | CampaignStoreError::Refused(..)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.store.requested(self.runner.topic()).await?)
    }

    async fn turn(&self, periodic: &ScheduledCampaign, stop: &CancellationToken) -> Result<(), RunError> {
        let name = &periodic.new.name;
        self.make_if_due(periodic, stop).await?;
        let found = self.store.of_periodic(name).await?;
        if let Some((id, _)) = found.iter().find(|(_, state)| *state == CampaignState::Ready) {
            let ended = self.runner.run(*id, stop).await?;
            tracing::info!(campaign = name, id, ?ended, "run");
        }
        self.forget_old_ones(&found).await
    }

    async fn make_if_due(
        &self,
        periodic: &ScheduledCampaign,
        stop: &CancellationToken,
    ) -> Result<(), RunError> {
        let source = IdSource::Index {
            elastic: self.elastic,
            prefix: self.prefix,
            selection: periodic.selection.clone(),
            timeout: self.timeout,
        };
        let name = &periodic.new.name;
        match create(self.store, &periodic.new, source, &self.sort_options, false, stop, &|_| {}).await {
            Ok(None) => Ok(()),
            Ok(Some(created)) => {
                tracing::info!(campaign = name, id = created.id, ids = created.ids, "made");
                Ok(())
            }
            Err(CreateError::Database(error)) => Err(error.into()),
            Err(CreateError::Interrupted) => Ok(()),
            // The period is free again, and the next turn makes it.
            Err(error) => {
                tracing::warn!(%error, campaign = name, "could not be made; trying again");
                Ok(())
            }
        }
    }

    async fn forget_old_ones(&self, found: &[(i64, CampaignState)]) -> Result<(), RunError> {
        let over: Vec<i64> = found.iter().filter(|(_, state)| state.is_over()).map(|(id, _)| *id).collect();
        for id in &over[..over.len().saturating_sub(KEPT_CAMPAIGNS)] {
            match self.store.remove(*id).await {
                // Another process did, or it was retried meanwhile.
                Ok(()) | Err(CampaignStoreError::Unknown(_) | CampaignStoreError::Refused(..)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
