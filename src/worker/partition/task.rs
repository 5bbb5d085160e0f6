//! What a partition's task does, and in what order. Its components keep their own state and futures, and decide; only
//! [`PartitionTask`] lets one act on another. `start.rs` is its part before the first record, `intake.rs` its part for each record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant as RuntimeInstant, MissedTickBehavior, sleep_until};

use super::batch_permit::BatchPermit;
use super::batches::{BatchResult, Batches};
use super::cache_validity::CacheValidity;
use super::dead_letters::{DeadLettersInFlight, Delivered, NoTopic};
use super::distributions::Distributions;
use super::increments::{Increments, Sent};
use super::key_check::KeyCheck;
use super::load::PartitionLoad;
use super::look_ahead::{ReadAhead, ReadAheadEvent};
use super::maps::MapsInForce;
use super::ownership::{ClaimChange, ClaimUpdate, Ownership};
use super::pace::{Backlog, Now};
use super::record_sequence::RecordSequence;
use super::rereads::{RecordsRead, Rereads};
use super::schema_wait::{RegistryAccess, SchemaWait};
use super::source_fetches::SourceFetches;
use super::start::First;
use super::{KnownOffsets, Mode, Partition, report, stopped_part};
use crate::base::clock::Instant;
use crate::base::ids::ShardId;
#[cfg(feature = "sabotage")]
use crate::base::sabotage::{self, Sabotage};
use crate::core::look_ahead::LookAhead;
use crate::core::mover::Finished;
use crate::core::placement::PlacementCache;
use crate::core::schemas::Schemas;
use crate::io::elastic::rounds::{Halt, RequestDeadline};
use crate::io::maps::MapsRecord;
use crate::support::telemetry::events::{DeadLettered, PartitionGoesOn};
use crate::support::telemetry::traces::PartitionTraces;
use crate::support::telemetry::{OutcomeLabel, PartitionMetrics};
use crate::worker::distribution::scheduler::ShardChange;
use crate::worker::increments::emitter::IncrementSource;
use crate::worker::ledger::{Ledger, Undeliverable};
use crate::worker::refeed::FetchResponse;
use crate::worker::topic_watch::TopicView;
use crate::worker::visibility::{RefreshSubscription, SearchableWrites};

/// Sweeps become due on a tick shared by all partitions. Searches find geoshards one after the other; a batch for each would
/// send many small requests.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between gauge updates.
pub(super) const GAUGE_INTERVAL: Duration = Duration::from_millis(500);

pub(super) struct PartitionTask {
    pub partition: Partition,
    /// Everything that was read and is not done.
    pub ledger: Ledger,
    pub sequence: RecordSequence,
    /// The schemas of its records.
    pub schemas: Schemas,
    pub schema_wait: SchemaWait,
    /// Bytes of records that were taken from the queue, which the budget does not know of yet.
    pub taken_bytes: usize,
    pub ownership: Ownership,
    pub maps: MapsInForce,
    cache_validity: CacheValidity,
    batches: Batches,
    /// Nothing is handed out before this is granted.
    batch_permit: BatchPermit,
    pub dead_letters: DeadLettersInFlight,
    source_fetches: SourceFetches,
    rereads: Rereads,
    read_ahead: ReadAhead,
    /// What searches must find before old copies are deleted.
    visibility: RefreshSubscription,
    distributions: Distributions,
    pub increments: Increments,
    /// What it has written, by place; `None` if that is not counted.
    load: Option<PartitionLoad>,
    /// Offset information from the poll thread.
    pub known: watch::Receiver<KnownOffsets>,
    /// Whether the topic was created again or repartitioned.
    pub topic: TopicView,
    /// Reads no further; what was read is still written.
    pub is_stopped: bool,
    /// Positions of dirty entries may be meaningless: nothing is sent or published.
    is_frozen: bool,
    pub traces: PartitionTraces,
    pub metrics: PartitionMetrics,
}

impl PartitionTask {
    pub(super) fn new(partition: Partition) -> Self {
        let context = partition.context.clone();
        let number = partition.number;
        let cache = PlacementCache::new(partition.cache_share.of_one());
        #[cfg(feature = "sabotage")]
        let cache = crate::worker::kept::take(number).unwrap_or(cache);
        let claim = context.claims.claim(number, context.maps.record().generation);
        let now = context.clock.now();
        let mut task = Self {
            ledger: Ledger::new(context.rules.clone(), context.epoch),
            distributions: Distributions::new(context.distributor.as_ref().map(|d| d.subscribe(number))),
            visibility: context.visibility.subscribe(),
            batches: Batches::new(context.clone(), number, cache),
            batch_permit: BatchPermit::new(context.batch_permits.clone()),
            maps: MapsInForce::new(context.maps.clone(), number, context.epoch),
            ownership: Ownership::new(claim, now, context.batching.deadline),
            cache_validity: CacheValidity::new(now),
            known: partition.published.follow(),
            dead_letters: DeadLettersInFlight::new(
                context.dead_letters.clone(),
                context.topic.clone(),
                number,
            ),
            rereads: Rereads::new(context.reread.clone(), number),
            read_ahead: ReadAhead::new(context.look_ahead.clone(), number),
            schemas: Schemas::new(),
            schema_wait: SchemaWait::new(RegistryAccess::of(&context, number)),
            taken_bytes: 0,
            source_fetches: SourceFetches::new(context.refeed.clone()),
            increments: Increments::new(
                context.counting.clone().map(|counting| (counting, context.metrics.tally.partition(number))),
                IncrementSource { topic: context.topic.clone(), partition: number, epoch: context.epoch },
                context.retry,
            ),
            sequence: RecordSequence::new(
                context.epoch,
                KeyCheck::new(context.partitioner, number, context.partitions),
            ),
            load: context.load.clone().map(|(level, to)| PartitionLoad::new(level, to)),
            is_stopped: false,
            topic: context.topic_reader.clone(),
            is_frozen: false,
            traces: context.traces.partition(number),
            metrics: partition.metrics.clone(),
            partition,
        };
        task.act_by(task.maps.record().clone());
        task.distribute_all();
        task
    }

    // --- The order of things -------------------------------------------------

    /// Until the partition is drained, or revoked and its batch finished.
    pub(super) async fn run(&mut self) {
        let Some(first) = self.first().await else { return };
        if !self.may_start_at(first.offset()).await {
            // The partition may be stopped for a long time while others need the memory.
            if let First::Record(record) = first {
                self.partition.meter.dequeued(record.bytes());
            }
            return self.wait_for_revocation().await;
        }
        self.increments.start_at(first.offset(), self.now());
        match first {
            First::Record(record) => self.take(record, self.now()),
            First::End(offset) => self.ledger.read_up_to(offset),
        }
        self.cache_validity.start(self.now());
        let mut gauges = tokio::time::interval(GAUGE_INTERVAL);
        gauges.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.report_taken_bytes();
            self.follow_claim();
            self.follow_topic();
            self.follow_offsets();
            self.invalidate_stale_cache();
            self.publish();
            self.follow_maps();
            self.batches.follow_limits();
            self.batches.follow_cache_share(self.partition.cache_share.of_one());
            let mode = *self.partition.mode.borrow_and_update();
            if self.has_ended(mode) {
                return;
            }
            if mode != Mode::Run {
                self.distributions.flush();
            }
            self.look_ahead_further();
            self.start_batch(mode);
            self.send_increment(mode);
            let takes_records = mode == Mode::Run && !self.is_stopped && !self.schema_wait.is_waiting();
            let wake_at = self.wake_at(mode);
            tokio::select! {
                // Rare and terminating events come first: the stream of records may never pause.
                biased;
                changed = self.partition.mode.changed() => {
                    if changed.is_err() { return; }
                }
                ended = self.batches.ended() => self.finish_batch(ended),
                () = self.batch_permit.granted() => {}
                delivered = self.dead_letters.delivered() => self.dead_letter_delivered(&delivered),
                read = self.rereads.read() => self.take_reread(read),
                event = self.read_ahead.next() => self.look_ahead(event),
                answer = self.source_fetches.answered() => self.take_fetched(answer),
                (id, looked) = self.schema_wait.answered() => self.take_schema(id, looked),
                seen = self.visibility.seen() => self.make_sweeps_due(&seen),
                released = self.distributions.released() => self.distributions.release(&released),
                () = self.ownership.changed() => {}
                sent = self.increments.sent() => self.increment_sent(sent),
                () = self.maps.read_again() => {}
                () = self.topic.looked() => {}
                _ = self.known.changed() => {}
                () = self.partition.meter.memory_limit_reached() => {}
                _ = gauges.tick() => {
                    self.update_gauges();
                    self.load.iter_mut().for_each(PartitionLoad::tick);
                }
                record = self.partition.records.recv(), if takes_records => match record {
                    Some(record) => self.take_many(record),
                    None => return,
                },
                () = sleep_until(wake_at.unwrap_or_else(RuntimeInstant::now)), if wake_at.is_some() => {}
            }
        }
    }

    /// When the loop has something to do even if nothing happens.
    fn wake_at(&self, mode: Mode) -> Option<RuntimeInstant> {
        let batch = if self.batch_permit.is_waiting() { None } else { self.batch_due_at(mode) };
        [batch, self.increment_due_at(mode)].into_iter().flatten().min()
    }

    fn has_ended(&self, mode: Mode) -> bool {
        let is_quiet = !self.batches.is_one_in_flight()
            && self.dead_letters.is_empty()
            && self.distributions.are_done()
            && self.increments.are_flushed(&self.ledger);
        match mode {
            Mode::Run => false,
            Mode::FinishBatch => is_quiet,
            // Parked entries wait for records that a stopping worker will not read.
            Mode::Drain => {
                let can_do_no_more = self.batches.are_halted() || self.ownership.is_lost() || self.is_frozen;
                // Nor are sweeps awaited: the next owner continues them.
                let has_work = self.ledger.has_work()
                    || self.batches.have_clears()
                    || self.ledger.has_due_sweeps(self.now());
                is_quiet && (can_do_no_more || !has_work)
            }
        }
    }

    // --- Batches -------------------------------------------------------------

    /// Starts a batch if one is due.
    fn start_batch(&mut self, mode: Mode) {
        if self.batch_due_at(mode).is_none_or(|due| RuntimeInstant::now() < due) {
            return self.batch_permit.give_back();
        }
        let Some(permit) = self.batch_permit.take() else { return };
        let Some(mut state) = self.batches.take_state() else { return };
        #[cfg(feature = "sabotage")]
        if sabotage::is(Sabotage::CacheSurvivesAssignment) {
            crate::worker::kept::put(self.partition.number, state.cache.clone());
        }
        let context = self.partition.context.clone();
        state.committed = self.sequence.committed(self.partition.published.committed());
        // Another worker may act on a record that compaction has removed before this owner read it.
        state.rules.announce_all = context.rules.announce_all
            || (self.sequence.saw_gap() && self.ownership.others_may_act(self.now()));
        let now = Now::of(&*context.clock);
        let entries = self.batches.hand_out(&mut self.ledger, &mut state, now);
        self.send_rejected();
        self.request_rereads();
        let observer = self.traces.begin(&entries, context.rounds.observer.clone());
        self.batches.start(permit, state, entries, self.deadline(), observer);
    }

    /// When the next batch may start; `None` if only an event can tell.
    fn batch_due_at(&self, mode: Mode) -> Option<RuntimeInstant> {
        let may_start = self.batches.are_between() && mode != Mode::FinishBatch && !self.is_frozen;
        if !may_start || !self.may_send() {
            return None;
        }
        let now = Now::of(&*self.partition.context.clock);
        let backlog = Backlog {
            has_clears: self.batches.have_clears(),
            is_queue_empty: self.partition.records.is_empty(),
            is_reading_stopped: self.partition.meter.is_at_bound(),
            is_memory_limit_reached: self.partition.meter.is_enough(self.ledger.bytes()),
            unread: self.ledger.next_offset().map_or(0, |next| self.partition.published.unread(next)),
            ..Backlog::of(&self.ledger, now.boot)
        };
        let due = self.batches.due_at(&backlog, mode, now)?;
        let held = self.read_ahead.held_until().filter(|_| mode == Mode::Run);
        Some(held.map_or(due, |until| due.max(now.runtime_at(until))))
    }

    /// Whether a batch may be sent: the known maps are recent, and so is the confirmation of the claim by an owner
    /// acting by them.
    fn may_send(&self) -> bool {
        self.maps.are_current()
            && self.ownership.is_confirmed(self.maps.generation())
            && self.maps.allow(self.ledger.watermark())
    }

    fn finish_batch(&mut self, ended: BatchResult) {
        let (finished, took) = match ended {
            Ok(finished) => finished,
            Err(halt) => return self.halt(halt),
        };
        let Finished { state, settled, edges, sweeps } = finished;
        self.traces.end(&settled);
        self.increments.put(edges, self.now());
        if let Some(load) = &mut self.load {
            load.count(&settled);
        }
        report::lookups(&self.partition.context.metrics, state.lookups);
        self.batches.put_back(state);
        let mut settlement = self.ledger.settle(settled, self.now());
        let (ticket, unseen) = self.ledger.settle_sweeps(sweeps, &mut settlement.changes, self.now());
        self.visibility.request(unseen, ticket);
        self.distribute(&settlement.changes);
        let (number, documents) = (self.partition.number, self.batches.documents());
        report::batch(&self.partition.context.metrics, &self.metrics, number, documents, &settlement, took);
        self.batches.settled(&settlement);
        if settlement.made_progress() {
            self.look_ahead_if_memory_is_full();
        }
        self.send_undeliverable(settlement.undeliverable);
        self.send_rejected();
        self.request_from_source();
        self.request_rereads();
        self.update_held_bytes();
    }

    /// Searches find documents moved to a geoshard: once older searches have ended, old copies are deleted.
    fn make_sweeps_due(&mut self, seen: &SearchableWrites) {
        let due = (self.now() + self.partition.context.moves.search_grace).next_of(SWEEP_INTERVAL);
        self.ledger.seen(&seen.shard, seen.ticket, due);
    }

    /// Empties the cache if a placement in it may be older than the tombstones that stop late writes.
    fn invalidate_stale_cache(&mut self) {
        let deadline = self.partition.context.batching.deadline;
        if let Some(silence) = self.cache_validity.check(self.now(), deadline) {
            tracing::warn!(
                partition = self.partition.number,
                ?silence,
                "the worker was suspended; dropping cached placements"
            );
        }
        if self.cache_validity.is_doubtful() && self.batches.empty_cache() {
            self.cache_validity.emptied();
        }
    }

    // --- Dead letters --------------------------------------------------------

    pub(super) fn send_rejected(&mut self) {
        let rejected = self.ledger.take_rejected();
        self.send_undeliverable(rejected);
    }

    fn send_undeliverable(&mut self, undeliverable: Vec<Undeliverable>) {
        for refused in undeliverable {
            if let Err(NoTopic { offset, reason }) = self.dead_letters.send_write(refused) {
                self.stop(Some(offset), &reason);
            }
        }
    }

    fn dead_letter_delivered(&mut self, delivered: &Delivered) {
        let Delivered { first_offset, last_offset, records, reason, detail, id, .. } = delivered;
        self.ledger.delivered(*first_offset, id.as_ref());
        self.send_rejected();
        self.update_held_bytes();
        self.metrics.record_done(OutcomeLabel::DeadLettered, 1);
        self.metrics.record_done(OutcomeLabel::Folded, u64::from(*records).saturating_sub(1));
        DeadLettered {
            partition: self.partition.number,
            first_offset: *first_offset,
            last_offset: *last_offset,
            reason,
            detail,
            id: id.as_ref(),
        }
        .emit(&self.partition.context.metrics);
    }

    // --- The source of truth, and records read again -------------------------

    /// Requests the documents that the last batch needs from the source.
    fn request_from_source(&mut self) {
        for request in self.ledger.take_fetch_requests() {
            if let Some(FetchResponse { request, answer, held }) = self.source_fetches.request(request) {
                self.ledger.answered(&request, answer, held);
            }
        }
    }

    fn take_fetched(&mut self, first: FetchResponse) {
        for FetchResponse { request, answer, held } in self.source_fetches.with_queued(first) {
            self.ledger.answered(&request, answer, held);
        }
        self.update_held_bytes();
    }

    /// Requests the records of folds that could not be written, of as many as may be tried at once.
    fn request_rereads(&mut self) {
        let room = self.rereads.room(self.ledger.tried());
        for request in self.ledger.take_rereads(room) {
            self.rereads.request(request);
        }
    }

    fn take_reread(&mut self, (id, records): RecordsRead) {
        let writes = records.and_then(|records| {
            records.into_iter().map(|record| Ok((self.decode_again(&id, &record)?, record))).collect()
        });
        let now = self.now();
        // Records that compaction removed are counted as folded into the remaining ones.
        let gone = self.ledger.reread(&id, writes, now);
        self.metrics.record_done(OutcomeLabel::Folded, gone.into());
        self.send_rejected();
        self.request_rereads();
        self.update_held_bytes();
    }

    /// More may wait than memory holds: asks how much, to read it ahead.
    fn look_ahead_if_memory_is_full(&mut self) {
        let is_memory_full = self.partition.meter.is_enough(self.ledger.bytes());
        if is_memory_full
            && self.ledger.ahead().is_none()
            && let Some(next) = self.ledger.next_offset()
        {
            self.ask_how_much_waits(next);
        }
    }

    /// Asks in time how much waits after what was read ahead, to read on: otherwise each document would be written once for each read.
    fn look_ahead_further(&mut self) {
        if let (Some(ahead), Some(next)) = (self.ledger.ahead(), self.ledger.next_offset())
            && ahead.runs_out(next)
        {
            self.ask_how_much_waits(ahead.end());
        }
    }

    fn ask_how_much_waits(&mut self, from: i64) {
        if self.read_ahead.may_ask(self.now()) {
            self.read_ahead.ask(from, self.partition.cache_share.of_one().get());
        }
    }

    fn look_ahead(&mut self, event: ReadAheadEvent) {
        let now = self.now();
        match event {
            ReadAheadEvent::IsFarBehind => {
                if let Some(ahead) = self.ledger.ahead() {
                    self.read_ahead.read_on(ahead.following());
                } else if let Some(next) = self.ledger.next_offset() {
                    let documents = self.partition.cache_share.of_one().get();
                    self.read_ahead.read(LookAhead::new(next, documents), now);
                }
            }
            ReadAheadEvent::IsNear => self.read_ahead.is_near(now),
            ReadAheadEvent::Found(found) => {
                if let Some(found) = self.read_ahead.found(*found, now) {
                    self.ledger.look_ahead(found);
                }
            }
            ReadAheadEvent::Failed(error) => self.read_ahead.failed(&error, now),
        }
    }

    pub(super) fn max_dirty_age(&self) -> Duration {
        self.batches.batching().max_dirty_age
    }

    // --- The claim and the maps ----------------------------------------------

    /// Takes note of how the claim stands, and reports a claim that was lost.
    pub(super) fn follow_claim(&mut self) {
        let ClaimUpdate { taken, change } = self.ownership.update();
        if let Some(taken) = taken {
            self.cache_validity.claim_taken(taken);
        }
        let (number, context) = (self.partition.number, &self.partition.context);
        match change {
            Some(ClaimChange::LostTo(other)) => {
                let reason = format!(
                    "another worker ({other}) now holds the claim, so nothing is sent; work resumes here if that worker stops \
                     renewing it"
                );
                report::stopped(context, number, None, &reason);
            }
            Some(ClaimChange::Regained) if !self.is_stopped => {
                context.health.ready(&stopped_part(number));
                PartitionGoesOn { partition: number }.emit(&context.metrics);
            }
            Some(ClaimChange::Regained) | None => {}
        }
    }

    /// Releases the claim without a wait for the next owner, if no request of this owner can still reach Elasticsearch.
    pub(super) fn release_claim(&self) {
        let context = &self.partition.context;
        // A server may execute an unanswered request for as long as a zombie may act.
        let window = context.batching.deadline.saturating_mul(2);
        if !self.batches.is_one_in_flight() && context.rounds.server.has_all_answers(window, self.now()) {
            self.ownership.release();
        }
    }

    /// Switches to the latest known maps once no batch begun under earlier ones is in flight, and has the switch
    /// confirmed (protocol, "Changing the map").
    pub(super) fn follow_maps(&mut self) {
        if self.batches.are_between()
            && let Some(record) = self.maps.newer()
        {
            self.act_by(record);
        }
        let owed = self.ledger.watermark();
        if !self.maps.allow(owed) {
            let reason = "the map has changed and another worker has already processed this record, so it probably owns the \
                          partition; this worker stops here until the partition is assigned to it again";
            self.stop(owed, reason);
        }
    }

    fn act_by(&mut self, record: Arc<MapsRecord>) {
        let (deciding, other) = (record.deciding().clone(), record.other().cloned());
        let since = self.ledger.place_by(deciding.clone(), other.clone());
        self.batches.act_by(deciding, other, since);
        self.ownership.act_by(record.generation);
        self.maps.act_by(record);
    }

    // --- What follows a write ------------------------------------------------

    /// The previous owner may have written, and even committed, changes without distributing them. So every geoshard is
    /// distributed once; until the gated ones are done, no offset is committed.
    fn distribute_all(&mut self) {
        let live = self.maps.record().live();
        let shards = live.iter().flat_map(|map| map.shards());
        let changes = shards.map(|shard| (shard.clone(), ShardChange::default())).collect();
        self.distribute(&changes);
    }

    fn distribute(&mut self, changes: &BTreeMap<ShardId, ShardChange>) {
        self.distributions.request(changes, self.ledger.watermark());
    }

    /// Sends an increment if one is due.
    fn send_increment(&mut self, mode: Mode) {
        if self.increment_due_at(mode).is_none_or(|due| RuntimeInstant::now() < due) {
            return;
        }
        self.increments.send(&self.ledger, self.now());
    }

    fn increment_due_at(&self, mode: Mode) -> Option<RuntimeInstant> {
        let due = self.increments.due_at(&self.ledger, mode)?;
        Some(Now::of(&*self.partition.context.clock).runtime_at(due))
    }

    fn increment_sent(&mut self, sent: Sent) {
        self.increments.settle(sent, self.now());
        self.update_held_bytes();
    }

    /// Publishes the offset that may be committed, and whether reading has to wait.
    fn publish(&self) {
        if self.is_frozen {
            return;
        }
        let done = self.ledger.watermark().and_then(|done| self.distributions.limit(done));
        if let Some(done) = done {
            self.partition.published.set_watermark(self.increments.limit(done));
        }
        let age = self.ledger.oldest_since().map(|since| self.now().since(since));
        let meter = &self.partition.meter;
        meter.set_waits(age.is_some_and(|age| age > self.batches.batching().max_dirty_age));
        meter.set_needs_records(self.ledger.only_parked() && !self.schema_wait.is_waiting());
    }

    pub(super) fn update_held_bytes(&self) {
        let held = self.ledger.bytes() + self.dead_letters.bytes() + self.increments.bytes();
        self.partition.meter.set_folded(held);
    }

    fn update_gauges(&self) {
        let oldest_age = self.ledger.oldest_owed_since().map(|since| self.now().since(since));
        self.metrics.dirty(self.ledger.documents(), self.ledger.bytes(), oldest_age);
        self.metrics.parked(self.ledger.parked());
        self.metrics.sweeps(self.ledger.sweeps());
        self.increments.update_gauges(self.now());
    }

    // --- The end -------------------------------------------------------------

    /// Stops reading; records already taken are still written. The first reason stays.
    pub(super) fn stop(&mut self, offset: Option<i64>, reason: &str) {
        self.close_queue();
        if std::mem::replace(&mut self.is_stopped, true) {
            return;
        }
        report::stopped(&self.partition.context, self.partition.number, offset, reason);
    }

    /// Stops for good if the topic was re-created or repartitioned: read and committed offsets have lost their meaning.
    pub(super) fn follow_topic(&mut self) {
        if !self.is_frozen
            && let Some(difference) = self.topic.difference()
        {
            self.is_frozen = true;
            self.stop(None, &difference.to_string());
        }
    }

    /// Stops the whole worker.
    pub(super) fn halt(&mut self, halt: Halt) {
        self.close_queue();
        self.is_stopped = true;
        // The receiver is gone only if the worker is stopping already.
        let _ = self.partition.context.fatal.send(halt);
    }

    /// Queued records would hold memory that other partitions need; the next owner reads them again.
    fn close_queue(&mut self) {
        if let Some(record) = self.schema_wait.cancel() {
            self.partition.meter.dequeued(record.bytes());
        }
        self.partition.records.close();
        while let Ok(record) = self.partition.records.try_recv() {
            self.partition.meter.dequeued(record.bytes());
        }
    }

    /// The deadline of requests that are sent from now on.
    pub(super) fn deadline(&self) -> RequestDeadline {
        RequestDeadline {
            deadline: self.now() + self.partition.context.batching.deadline,
            cancel: self.partition.cancel.child_token(),
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.partition.context.clock.now()
    }
}
