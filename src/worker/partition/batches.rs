//! The batch in flight: at most one per partition.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant as RuntimeInstant;

use super::pace::{Backlog, BatchPace, Now};
use super::{Mode, WorkerContext};
use crate::base::position::Position;
use crate::core::mover::{Entry, Finished, Lookups, MoverState};
use crate::core::placement::PlacementCache;
use crate::geoshard::GeoshardMap;
use crate::io::elastic::rounds::{self, Halt, RequestDeadline, RequestSender, RoundsObserver};
use crate::support::config::MoveVisibility;
use crate::worker::drive::run;
use crate::worker::ledger::{Ledger, Settlement};
use crate::worker::limits::{self, Batching, LimitsReader};

/// A batch with the time it took; or the error that stops the worker.
pub(super) type BatchResult = Result<(Finished, Duration), Halt>;

/// The batches of a partition.
pub(super) struct Batches {
    context: Arc<WorkerContext>,
    /// `None` while a batch is in flight, and after one that ended in an error.
    state: Option<MoverState>,
    in_flight: Fuse<BoxFuture<'static, BatchResult>>,
    /// Documents of the last batch.
    documents: u32,
    pace: BatchPace,
    limits: LimitsReader,
    /// The limits of the last batch's end, or later ones.
    batching: Batching,
    requests: rounds::RequestLimits,
}

impl Batches {
    pub(super) fn new(context: Arc<WorkerContext>, partition: i32, mut cache: PlacementCache) -> Self {
        cache.begin(context.clock.now());
        let state = MoverState::new(context.rules.clone(), cache);
        Self {
            state: Some(MoverState { partition: Some(partition), separates: true, ..state }),
            in_flight: Fuse::terminated(),
            documents: 0,
            pace: BatchPace::new(context.retry),
            limits: context.limits.clone(),
            batching: context.batching,
            requests: context.rounds.limits,
            context,
        }
    }

    /// The limits in force.
    pub(super) fn batching(&self) -> &Batching {
        &self.batching
    }

    /// Documents of the last batch.
    pub(super) fn documents(&self) -> u32 {
        self.documents
    }

    /// Whether a batch is in flight.
    pub(super) fn is_one_in_flight(&self) -> bool {
        !self.in_flight.is_terminated()
    }

    /// Whether Elasticsearch refused the worker's credentials during a batch: none can follow.
    pub(super) fn are_halted(&self) -> bool {
        self.state.is_none() && !self.is_one_in_flight()
    }

    /// Whether the state may change: no batch is in flight.
    pub(super) fn are_between(&self) -> bool {
        self.state.is_some()
    }

    /// Whether clears are pending.
    pub(super) fn have_clears(&self) -> bool {
        self.state.as_ref().is_some_and(|state| !state.clears.is_empty())
    }

    /// Applies the current limits. Never during a batch: it is sent under the limits it was made with.
    pub(super) fn follow_limits(&mut self) {
        if self.are_between()
            && let Some(limits) = limits::newer(&mut self.limits)
        {
            (self.batching, self.requests) = (limits.batching, limits.requests);
        }
    }

    /// Trims the cache to the partition's share.
    pub(super) fn follow_cache_share(&mut self, share: NonZeroUsize) {
        if let Some(state) = &mut self.state
            && state.cache.capacity() != share.get()
        {
            state.cache.resize(share);
        }
    }

    /// Empties the cache; `false` while a batch in flight owns it. The batch's deadline stops it from sending.
    pub(super) fn empty_cache(&mut self) -> bool {
        let Some(state) = &mut self.state else { return false };
        state.cache.clear();
        state.clears.clear();
        true
    }

    /// Places by this map and, if two are live, with the other one beside it. Both were known `since` this position.
    pub(super) fn act_by(
        &mut self,
        map: Arc<GeoshardMap>,
        other_map: Option<Arc<GeoshardMap>>,
        since: Position,
    ) {
        if let Some(state) = &mut self.state {
            // While two maps are live, readers ask the indices of both in any case.
            let promise = self.context.moves.visibility;
            state.searches_are_served = promise == MoveVisibility::Search || other_map.is_some();
            (state.rules.map, state.rules.other_map) = (map, other_map);
            state.both_maps_since = since;
        }
    }

    /// When the next batch may start; `None` if only an event can tell.
    pub(super) fn due_at(&self, backlog: &Backlog, mode: Mode, now: Now) -> Option<RuntimeInstant> {
        self.pace.due_at(backlog, mode, &self.batching, now)
    }

    /// Takes the state for the next batch; `None` while one is in flight.
    pub(super) fn take_state(&mut self) -> Option<MoverState> {
        self.state.take()
    }

    /// Takes from the ledger what the batch works on.
    pub(super) fn hand_out(&mut self, ledger: &mut Ledger, state: &mut MoverState, now: Now) -> Vec<Entry> {
        state.cache.begin(self.context.clock.now());
        state.lookups = Lookups::default();
        state.max_copy_bytes = self.batching.max_bytes;
        let entries = ledger.hand_out(self.batching.max_documents, self.batching.max_bytes, now.boot);
        state.sweeps = ledger.hand_out_sweeps(self.batching.max_documents, now.boot);
        self.documents = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        self.pace.batch_started();
        entries
    }

    /// Starts a batch, which sends nothing after `deadline`.
    pub(super) fn start(
        &mut self,
        permit: OwnedSemaphorePermit,
        state: MoverState,
        entries: Vec<Entry>,
        deadline: RequestDeadline,
        observer: Arc<dyn RoundsObserver>,
    ) {
        let clock = self.context.clock.clone();
        let rounds = RequestSender { limits: self.requests, observer, ..self.context.rounds.clone() };
        let batch = async move {
            let began = clock.now();
            let finished = run(state, entries, &rounds, &deadline).await?;
            drop(permit);
            Ok((finished, clock.now().since(began)))
        };
        self.in_flight = batch.boxed().fuse();
    }

    /// The end of the batch in flight; pending while there is none.
    pub(super) async fn ended(&mut self) -> BatchResult {
        (&mut self.in_flight).await
    }

    /// Puts back the state of an ended batch.
    pub(super) fn put_back(&mut self, state: MoverState) {
        self.state = Some(state);
    }

    /// The results of the last batch are settled.
    pub(super) fn settled(&mut self, settlement: &Settlement) {
        self.pace.batch_ended(settlement, self.batching.linger, RuntimeInstant::now());
    }
}
