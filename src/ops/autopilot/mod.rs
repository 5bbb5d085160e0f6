//! `geofold shards autopilot`: measures the load, decides, and changes the map, again and again (docs/balance.md).
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the loop: lease, measure, decide, change |
//! | `record.rs` | what it has to remember, and what is under way by that |
//! | `measure.rs` | documents and load by place, from Elasticsearch |
//!
//! What is to be done is decided by `geoshard/balance/decide.rs`, and done by `ops/migrate/`. *Invariant:* a change is in the record
//! before it begins, and only the maps' record says which maps are in force: two autopilots that both believe to hold the lease
//! cannot have two changes under way.

pub mod measure;
pub mod record;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use self::measure::{MeasureError, MeasureOptions, Measured};
use self::record::{AutopilotRecord, AutopilotStore, Holder, Last, Planned, Stopped, UnderWay, WatchedLease};
use crate::base::clock::Clock;
use crate::base::progress::Progress;
use crate::core::decode::BadLocationPath;
use crate::geoshard::GeoshardMap;
use crate::geoshard::balance::decide::{BalanceDecision, BalanceLimits, BalanceStep, decide};
use crate::io::elastic::Elastic;
use crate::io::indices::TemplateError;
use crate::io::load::unix_seconds;
use crate::io::maps::{MapsRecord, MapsState, MapsStore};
use crate::io::stored::RecordError;
use crate::ops::check::CheckTarget;
use crate::ops::migrate::{Listener, MigrateError, Migration};
use crate::support::config::Config;
use crate::support::telemetry::autopilot::{AutopilotMetrics, Decided};

/// How long a request may take, at least: the load's record and pages of documents are large.
const LONG: Duration = Duration::from_secs(30);
/// How often a lease that another process holds is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// What it may do, and how.
#[derive(Debug, Clone)]
pub struct AutopilotOptions {
    /// Changes the map; otherwise it only says what it would do, and writes nothing.
    pub apply: bool,
    /// One decision, and what follows from it; then it ends.
    pub once: bool,
    /// From one decision to the next.
    pub interval: Duration,
    /// A process that is silent for so long loses the lease.
    pub lease: Duration,
    /// What is measured.
    pub measure: MeasureOptions,
    /// What may be done.
    pub limits: BalanceLimits,
    /// Touches per second of a change, at most.
    pub touch_rate: std::num::NonZeroU32,
}

/// What it stands on.
pub struct Autopilot {
    /// The workers' configuration.
    pub config: Config,
    /// Elasticsearch.
    pub elastic: Arc<dyn Elastic>,
    /// Boot-time clock.
    pub clock: Arc<dyn Clock>,
    /// The map in the configuration's file.
    pub configured: Arc<GeoshardMap>,
    /// What new indices are like.
    pub target: CheckTarget,
    /// Options.
    pub options: AutopilotOptions,
    /// This process, for people.
    pub name: String,
    /// A number that no other process has.
    pub process: u64,
    /// Metrics.
    pub metrics: Arc<AutopilotMetrics>,
    /// Where it is told what happens.
    pub tell: Listener,
}

/// Why it ends.
#[derive(Debug, Error)]
pub enum AutopilotError {
    /// Its record, or the maps'.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The load.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// The change.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The template of indices.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The location's path.
    #[error("{key} in the configuration: {0}", key = .0.key())]
    Location(#[from] BadLocationPath),
    /// Another process does it.
    #[error("another autopilot holds the lease: {0}; only one may run, stop that one first")]
    Held(String),
    /// The lease went to another process.
    #[error(
        "the lease was lost: it was not renewed in time, or another process took it over; nothing is lost, start it again"
    )]
    LeaseLost,
}

impl AutopilotError {
    /// Whether the next turn may go better.
    fn may_pass(&self) -> bool {
        match self {
            Self::Record(error) => error.may_pass(),
            // Another change, a stuck one, no answer: the next turn looks again.
            Self::Migrate(error) => !matches!(
                error,
                MigrateError::OtherMap { .. }
                    | MigrateError::OtherEpoch { .. }
                    | MigrateError::NoStoredState
                    | MigrateError::Store(RecordError::Unreadable { .. })
            ),
            Self::Measure(_) => true,
            _ => false,
        }
    }
}

/// What one turn came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AutopilotReport {
    /// Seconds since 1970.
    pub at: u64,
    /// In one line.
    pub decision: String,
    /// Whether a change was made.
    pub changed: bool,
    /// Largest load over mean, now.
    pub max_over_mean: f64,
    /// The same as expected.
    pub expected: f64,
    /// Documents moved in 24 hours.
    pub moved_today: f64,
    /// Documents that may still be moved.
    pub left_today: f64,
    /// What the proposed map means; absent if nothing is to be changed.
    pub proposal: Option<crate::geoshard::plan::ChangeReport>,
}

impl Autopilot {
    /// Runs until `stop`, or for one turn.
    ///
    /// # Errors
    /// If it cannot go on. Whatever is under way is gone on with at the next start.
    pub async fn run(
        &self,
        stop: &CancellationToken,
        report: impl Fn(&AutopilotReport),
    ) -> Result<(), AutopilotError> {
        if !self.options.apply {
            return self.turns(stop, &report).await;
        }
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                taken = self.take_lease() => taken?,
            }
            let work = async {
                tokio::select! {
                    // A change that is under way is left where it is: the next start goes on with it.
                    () = stop.cancelled() => Ok(()),
                    ended = self.turns(stop, &report) => ended,
                    lost = self.keep_lease() => Err(lost),
                }
            };
            match work.await {
                // Elasticsearch was away, or this process stood still: whatever is under way is gone on with by whoever has it next.
                Err(AutopilotError::LeaseLost) if !self.options.once => {
                    tracing::warn!(
                        "the lease was lost: it was not renewed in time, or another process took it over; waiting for it"
                    );
                }
                Err(AutopilotError::LeaseLost) => return Err(AutopilotError::LeaseLost),
                ended => {
                    // If its answer is lost, the next process waits for the lease to run out.
                    let _ = self.release_lease().await;
                    return ended;
                }
            }
        }
    }

    async fn turns(
        &self,
        stop: &CancellationToken,
        report: &impl Fn(&AutopilotReport),
    ) -> Result<(), AutopilotError> {
        let mut measured = None;
        loop {
            match self.turn(&mut measured).await {
                Ok(done) => report(&done),
                Err(error) if error.may_pass() && !self.options.once => {
                    self.metrics.decided(Decided::Failed, unix_seconds());
                    tracing::warn!(%error, "this turn failed; trying again after the interval");
                }
                Err(error) => return Err(error),
            }
            if self.options.once {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(self.options.interval) => {}
            }
        }
    }

    /// One look, one decision, and what follows from it. `measured`: what the turn before measured, and then what this one did.
    async fn turn(&self, measured: &mut Option<Measured>) -> Result<AutopilotReport, AutopilotError> {
        let (record, maps, under_way) = self.look().await?;
        let map = maps.deciding().clone();
        let now = unix_seconds();
        let is_usable = |measured: &Measured| measured.is_of(&map) && !measured.is_old(self.clock.now());
        let documents = measured.take().filter(is_usable);
        let around = (&*self.elastic, &self.config, self.timeout());
        let measured =
            measured.insert(self.options.measure.measure(around, &map, documents, &*self.clock, now).await?);
        let decision = decide(&record.history, measured.view(&map), &self.options.limits, now);
        self.metrics.measured(&decision);

        let blocked = record.why_blocked(under_way);
        let mut report = AutopilotReport {
            at: now,
            decision: blocked.clone().unwrap_or_else(|| decision.reason()),
            changed: false,
            max_over_mean: decision.now,
            expected: decision.forecast,
            moved_today: decision.moved_today,
            left_today: decision.left_today,
            proposal: None,
        };
        let outcome = match (&blocked, &decision.step) {
            (Some(_), _) => Decided::Blocked,
            (None, BalanceStep::Wait(_)) => Decided::Wait,
            (None, BalanceStep::Change(proposal)) => {
                report.proposal = Some(proposal.change.report.clone());
                Decided::Change
            }
        };
        self.metrics.decided(outcome, now);
        tracing::info!(
            decision = %report.decision,
            max_over_mean = decision.now,
            expected = decision.forecast,
            moved_today = decision.moved_today,
            left_today = decision.left_today,
            applies = self.options.apply,
            "decided"
        );
        if self.options.apply {
            report.changed =
                self.carry_out(&decision, blocked.is_some(), &maps, now, &report.decision).await?;
        }
        Ok(report)
    }

    /// What it remembers, the maps, and which change is under way: its own is gone on with first, if it applies changes.
    async fn look(&self) -> Result<(AutopilotRecord, MapsRecord, UnderWay), AutopilotError> {
        let store = self.store();
        let (mut record, _) = store.read().await?;
        let mut maps = self.maps().await?;
        let mut under_way = record.under_way(&maps);
        if self.options.apply && matches!(under_way, UnderWay::Own | UnderWay::OwnReturns) {
            self.go_on(under_way, &maps).await?;
            maps = self.maps().await?;
            under_way = record.under_way(&maps);
        }
        record.settle(under_way, unix_seconds());
        if self.options.apply && under_way != UnderWay::Nothing {
            let id = self.id();
            let settled = store.update(|stored| {
                let under_way = stored.under_way(&maps);
                stored.settle(under_way, unix_seconds());
                stored.is_held_by(&id).then(|| stored.clone())
            });
            record = settled.await?.ok_or(AutopilotError::LeaseLost)?;
        }
        Ok((record, maps, under_way))
    }

    /// Notes the decision; makes the change, if it is one. Whether one was made.
    async fn carry_out(
        &self,
        decision: &BalanceDecision,
        is_blocked: bool,
        maps: &MapsRecord,
        now: u64,
        text: &str,
    ) -> Result<bool, AutopilotError> {
        let new = match &decision.step {
            BalanceStep::Change(proposal) if !is_blocked => {
                Some((Arc::new(proposal.change.map.clone()), proposal.documents))
            }
            _ => None,
        };
        let id = self.id();
        let store = self.store();
        let noted = store.update(|stored| {
            if !stored.is_held_by(&id) {
                return None;
            }
            stored.history.is_correcting = decision.is_correcting;
            stored.last = Some(Last { at: now, decision: text.to_owned() });
            // The switch may have been thrown since the record was read.
            let begins = new.as_ref().filter(|_| stored.stopped.is_none() && stored.planned.is_none());
            if let Some((map, documents)) = begins {
                let (map, generation) = (map.fingerprint(), maps.generation);
                stored.plan(Planned { map, generation, documents: *documents, at: now });
            }
            Some(begins.is_some())
        });
        let begins = noted.await?.ok_or(AutopilotError::LeaseLost)?;
        let Some((map, documents)) = new.filter(|_| begins) else { return Ok(false) };
        self.say(&format!("changing to map {}; {documents:.0} documents move", map.fingerprint()));
        self.metrics.changes_begun.inc();
        let wanted = self.target.wanted(map.shards())?;
        self.migration().await?.forward(map, &wanted).await?;
        self.metrics.changes_ended.inc();
        self.ended().await?;
        Ok(true)
    }

    /// Goes on with the autopilot's own change.
    async fn go_on(&self, under_way: UnderWay, maps: &MapsRecord) -> Result<(), AutopilotError> {
        let MapsState::Two { new, .. } = &maps.state else { return Ok(()) };
        self.say(&format!("going on with the change to map {}", new.fingerprint()));
        let migration = self.migration().await?;
        match under_way {
            UnderWay::OwnReturns => migration.abort().await?,
            _ => {
                let wanted = self.target.wanted(new.shards())?;
                migration.forward(new.clone(), &wanted).await?;
                self.metrics.changes_ended.inc();
            }
        }
        Ok(())
    }

    /// The change has ended: forgets its plan.
    async fn ended(&self) -> Result<(), AutopilotError> {
        let maps = self.maps().await?;
        self.store()
            .update(|stored| {
                let under_way = stored.under_way(&maps);
                stored.settle(under_way, unix_seconds());
                Some(())
            })
            .await?;
        Ok(())
    }

    /// Stops or resumes whichever process is the autopilot. Gives whether that was a change.
    pub async fn switch(&self, stops: bool) -> Result<bool, AutopilotError> {
        let store = self.store();
        let changed = store.update(|stored| {
            if stored.stopped.is_some() == stops {
                return None;
            }
            stored.stopped = stops.then(|| Stopped { by: self.name.clone(), at: unix_seconds() });
            Some(())
        });
        Ok(changed.await?.is_some())
    }

    /// What is stored.
    pub async fn stored(&self) -> Result<(AutopilotRecord, UnderWay), AutopilotError> {
        let (record, _) = self.store().read().await?;
        let under_way = record.under_way(&self.maps().await?);
        Ok((record, under_way))
    }

    /// Waits for the lease; with [`AutopilotOptions::once`] only as long as a holder may be silent.
    async fn take_lease(&self) -> Result<(), AutopilotError> {
        let id = self.id();
        let lease_ms = u64::try_from(self.options.lease.as_millis()).unwrap_or(u64::MAX);
        let mut watched: Option<WatchedLease> = None;
        let (mut first_beat, mut fails) = (None, false);
        loop {
            let now = self.clock.now();
            let mut held_by = None;
            let store = self.store();
            let taken = store.update(|stored| {
                held_by = None;
                if let Some(holder) = stored.holder.as_ref().filter(|holder| holder.id != id)
                    && !WatchedLease::is_silent(&mut watched, holder, now)
                {
                    held_by = Some(holder.clone());
                    return None;
                }
                let beat = 0;
                stored.holder = Some(Holder { id: id.clone(), name: self.name.clone(), lease_ms, beat });
                Some(())
            });
            match taken.await {
                Ok(Some(())) => return Ok(()),
                Ok(None) => fails = false,
                Err(error) if error.may_pass() && !self.options.once => {
                    if !std::mem::replace(&mut fails, true) {
                        tracing::warn!(%error, "could not take the lease of the autopilot; trying until it is taken");
                    }
                }
                Err(error) => return Err(error.into()),
            }
            if let Some(holder) = held_by {
                if first_beat.is_none() {
                    first_beat = Some(holder.beat);
                    self.say(&format!("waiting for the lease of {}", holder.name));
                }
                // It is alive.
                if self.options.once && first_beat != Some(holder.beat) {
                    return Err(AutopilotError::Held(holder.name));
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Renews the lease until it is lost.
    async fn keep_lease(&self) -> AutopilotError {
        let id = self.id();
        let mut renewed = self.clock.now();
        loop {
            tokio::time::sleep(self.options.lease / 3).await;
            let asked = self.clock.now();
            let store = AutopilotStore::new(&*self.elastic, &self.config.kafka.topic, self.options.lease / 3);
            let beaten = store.update(|stored| {
                let holder = stored.holder.as_mut().filter(|holder| holder.id == id)?;
                holder.beat += 1;
                Some(())
            });
            match beaten.await {
                Ok(Some(())) => renewed = asked,
                Ok(None) => return AutopilotError::LeaseLost,
                Err(error) => tracing::warn!(%error, "could not renew the lease of the autopilot"),
            }
            if self.clock.now().since(renewed) > self.options.lease {
                return AutopilotError::LeaseLost;
            }
        }
    }

    async fn release_lease(&self) -> Result<(), AutopilotError> {
        let id = self.id();
        self.store()
            .update(|stored| {
                stored.holder = stored.holder.take().filter(|holder| holder.id != id);
                Some(())
            })
            .await?;
        Ok(())
    }

    async fn migration(&self) -> Result<Migration, AutopilotError> {
        let location = self.config.documents.location_path()?;
        let (elastic, clock, map) = (self.elastic.clone(), self.clock.clone(), self.configured.clone());
        let (rate, tell) = (self.options.touch_rate, self.tell.clone());
        Ok(Migration::connect(&self.config, elastic, clock, map, location, rate, tell).await?)
    }

    async fn maps(&self) -> Result<MapsRecord, AutopilotError> {
        let stored = MapsStore::new(&*self.elastic, &self.config.kafka.topic, self.timeout()).read().await?;
        Ok(match stored {
            Some(stored) => stored.record,
            None => MapsRecord::unwritten(self.configured.clone(), self.config.positions.epoch),
        })
    }

    fn store(&self) -> AutopilotStore<'_> {
        AutopilotStore::new(&*self.elastic, &self.config.kafka.topic, self.timeout())
    }

    fn timeout(&self) -> Duration {
        self.config.elasticsearch.request_timeout.max(LONG)
    }

    fn id(&self) -> String {
        format!("{:016x}", self.process)
    }

    fn say(&self, line: &str) {
        (self.tell)(Progress::Happened(line));
    }
}
