//! The poll thread, the only user of the Kafka consumer. It hands records to partition tasks, pauses and resumes, serves
//! rebalances, which come by a queue of their own, and commits watermarks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::statistics::Statistics;
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::mpsc;

use super::assignment::Assignment;
use super::record::Record;
use crate::io::kafka::lost_brokers::LostBrokers;
use crate::io::kafka::{
    Fetched, RecordQueue, add_leader_epochs, commit_with_answer, hold_back, known_beginning, known_end,
    leader_epoch, login, position, record_queue, set_leader_epoch, waiting_events,
};
use crate::support::telemetry::events::{
    CommitFailed, Numbers, OffsetsCommitted, PartitionsAssigned, PartitionsRevoked,
};
use crate::support::telemetry::health::Health;
use crate::support::telemetry::metrics::Metrics;
use crate::support::telemetry::partition_status::PartitionStatusSender;

/// Maximum wait for a record between two checks of events, flow, commits and signals.
const POLL_TIMEOUT: Duration = Duration::from_millis(20);

/// Wait between two checks while no record is taken.
const MEMORY_INTERVAL: Duration = Duration::from_millis(1);

/// Records taken before the next check of events, flow, commits and signals, unless a limit is reached before.
const RECORDS_PER_TURN: usize = 2000;

/// Interval between writes of acknowledged offsets to the meta index.
const REMEMBER_INTERVAL: Duration = Duration::from_secs(10);

/// Timeout for the group's offsets at assignment. It blocks polling.
const COMMITTED_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for the first and last offset of one partition, and interval between two attempts. It blocks polling.
const ENDS_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout for leaving the group, beyond the grace of revoked partitions.
const LEAVING: Duration = Duration::from_secs(10);

/// Interval between updates of the partition statuses.
const BOARD_INTERVAL: Duration = Duration::from_secs(1);

/// Signals to the poll thread.
#[derive(Debug)]
pub struct Signals {
    /// Drain and leave the group.
    pub drain: AtomicBool,
    /// Leave the group at once.
    pub abort: AtomicBool,
}

/// Intervals and timeouts of the poll thread.
#[derive(Debug, Clone, Copy)]
pub struct PollPace {
    /// Interval between commits.
    pub commit_interval: Duration,
    /// Grace for a revoked partition to finish its batch.
    pub revoke: Duration,
    /// Grace for all partitions to write dirty entries when the worker stops.
    pub drain: Duration,
}

/// The consumer's callbacks; they run on the poll thread, inside `poll`.
pub struct Context {
    topic: String,
    // Locked by the poll thread alone; callbacks only get a shared reference.
    assignment: Mutex<Assignment>,
    pace: PollPace,
    metrics: Arc<Metrics>,
    stuck: Mutex<Stuck>,
    /// Partitions whose log is not yet compared with the committed offset.
    unchecked: Mutex<Vec<Unchecked>>,
    lost_brokers: LostBrokers,
}

/// A partition's committed offset.
#[derive(Debug, Clone, Copy)]
struct Unchecked {
    partition: i32,
    committed: i64,
    leader_epoch: i32,
}

/// Partitions that librdkafka does not read because the next offset is missing.
#[derive(Debug, Default)]
struct Stuck {
    /// When to query where partitions begin and end.
    look_at: Option<Instant>,
    /// Queried at least once: if librdkafka still does not read, the cause is another.
    has_looked: bool,
    /// Partitions must be assigned again.
    begin_again: bool,
}

impl Context {
    /// For `topic`.
    pub fn new(topic: &str, assignment: Assignment, pace: PollPace, metrics: Arc<Metrics>) -> Self {
        Self {
            topic: topic.to_owned(),
            assignment: Mutex::new(assignment),
            pace,
            metrics,
            stuck: Mutex::default(),
            unchecked: Mutex::default(),
            lost_brokers: LostBrokers::default(),
        }
    }

    fn unchecked(&self) -> MutexGuard<'_, Vec<Unchecked>> {
        self.unchecked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stuck(&self) -> MutexGuard<'_, Stuck> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the start offsets of a new assignment: the committed offset, or the first record. By default librdkafka
    /// would treat a partition without a commit as one whose records are lost.
    fn choose_starts(&self, consumer: &BaseConsumer<Self>, assigned: &TopicPartitionList) {
        if assigned.count() == 0 {
            return;
        }
        let asked = self.partitions(&numbers(assigned));
        let committed = match consumer.committed_offsets(asked, COMMITTED_TIMEOUT) {
            Ok(committed) => committed,
            // librdkafka retries without limit. Partitions without a commit are assigned again ([`Stuck`]).
            Err(error) => return tracing::warn!(%error, "could not fetch the group's committed offsets"),
        };
        let mut unchecked = Vec::new();
        for mut partition in assigned.elements() {
            let found = committed.find_partition(&self.topic, partition.partition());
            let start = match found.map(|found| (found.error(), found.offset())) {
                Some((Ok(()), Offset::Offset(offset))) => {
                    let partition = partition.partition();
                    if let Some(leader_epoch) = leader_epoch(&committed, &self.topic, partition) {
                        unchecked.push(Unchecked { partition, committed: offset, leader_epoch });
                    }
                    Offset::Offset(offset)
                }
                Some((Ok(()), _)) => Offset::Beginning,
                Some((Err(_), _)) | None => continue,
            };
            if let Err(error) = partition.set_offset(start) {
                tracing::error!(partition = partition.partition(), ?start, %error, "could not set a partition's start offset");
            }
        }
        self.unchecked().append(&mut unchecked);
    }

    fn assignment(&self) -> MutexGuard<'_, Assignment> {
        // A panic while locked ends the poll thread, so no half-done state is used afterwards.
        self.assignment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>, partitions: &[i32]) {
        let lost = consumer.assignment_lost();
        PartitionsRevoked { partitions, lost }.emit(&self.metrics);
        // Lost partitions belong to another worker already: finishing is useless, committing forbidden.
        let grace = if lost { Duration::ZERO } else { self.pace.revoke };
        let to_commit = self.assignment().revoke(partitions, grace);
        if lost || to_commit.is_empty() {
            return;
        }
        let mut offsets = self.offsets(&to_commit);
        add_leader_epochs(consumer, &self.topic, &mut offsets);
        if let Err(error) = consumer.commit(&offsets, CommitMode::Sync) {
            self.commit_failed(to_commit.len(), &error);
        }
    }

    fn offsets(&self, watermarks: &[(i32, i64)]) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(watermarks.len());
        for &(partition, offset) in watermarks {
            if let Err(error) = list.add_partition_offset(&self.topic, partition, Offset::Offset(offset)) {
                tracing::error!(partition, offset, %error, "could not store an offset to commit");
            }
        }
        list
    }

    fn partitions(&self, partitions: &[i32]) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for &partition in partitions {
            list.add_partition(&self.topic, partition);
        }
        list
    }

    fn commit_failed(&self, partitions: usize, error: &KafkaError) {
        let rebalancing = is_rebalance(error);
        CommitFailed { partitions, error, rebalancing }.emit(&self.metrics);
    }
}

/// Commit errors that mean "the group is changing": the next commit or the next owner covers it.
fn is_rebalance(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::RebalanceInProgress
                | RDKafkaErrorCode::IllegalGeneration
                | RDKafkaErrorCode::UnknownMemberId
                | RDKafkaErrorCode::StaleMemberEpoch
                | RDKafkaErrorCode::FencedMemberEpoch
                | RDKafkaErrorCode::AssignmentLost
        )
    )
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, source: Option<&str>) -> login::TokenResult {
        login::token(source)
    }

    fn stats(&self, statistics: Statistics) {
        self.lost_brokers.note(&statistics);
        let Some(topic) = statistics.topics.get(&self.topic) else { return };
        let mut assignment = self.assignment();
        for partition in topic.partitions.values() {
            // For a read-committed consumer the end is the last stable offset.
            let end = if partition.ls_offset >= 0 { partition.ls_offset } else { partition.hi_offset };
            if partition.partition >= 0 && end >= 0 {
                assignment.partition_end(partition.partition, end);
            }
        }
        assignment.update_lag();
        let mut stuck = self.stuck();
        if stuck.has_looked {
            let unread = topic.partitions.values().filter(|partition| partition.fetch_state == "none");
            let unread: Vec<i32> = unread.map(|partition| partition.partition).collect();
            stuck.begin_again |= assignment.note_unread(&unread);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(%error, reason, "kafka client");
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => tracing::error!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                tracing::info!(target: "librdkafka", facility, "{message}")
            }
            RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{message}"),
        }
    }
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Revoke(list) => self.revoke(consumer, &numbers(list)),
            Rebalance::Assign(list) => {
                // Before librdkafka lets its records through to the queue of events.
                for number in numbers(list) {
                    hold_back(consumer, &self.topic, number);
                }
                self.choose_starts(consumer, list);
            }
            Rebalance::Error(error) => tracing::warn!(%error, "rebalance failed; the client retries"),
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            PartitionsAssigned { partitions: &numbers(list) }.emit(&self.metrics);
            let starts: Vec<(i32, Option<i64>)> = list
                .elements()
                .iter()
                .map(|element| (element.partition(), absolute(element.offset())))
                .collect();
            self.assignment().assign(&starts);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        let elements = offsets.elements();
        let mut assignment = self.assignment();
        let mut failed: Option<KafkaError> = result.err();
        for element in &elements {
            match (&failed, element.error(), element.offset()) {
                (None, Ok(()), Offset::Offset(offset)) => assignment.committed(element.partition(), offset),
                (_, error, _) => {
                    assignment.commit_failed(element.partition());
                    failed = failed.or(error.err());
                }
            }
        }
        drop(assignment);
        match failed {
            None => OffsetsCommitted { partitions: elements.len() }.emit(&self.metrics),
            // There was nothing to commit.
            Some(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => {}
            Some(error) => self.commit_failed(elements.len(), &error),
        }
    }
}

fn numbers(list: &TopicPartitionList) -> Vec<i32> {
    list.elements().iter().map(|element| element.partition()).collect()
}

fn absolute(offset: Offset) -> Option<i64> {
    if let Offset::Offset(offset) = offset { Some(offset) } else { None }
}

/// Why the poll thread ended without being stopped.
#[derive(Debug, thiserror::Error)]
#[error("the kafka consumer failed: {0}")]
pub struct ConsumerLost(KafkaError);

/// Polls until drained or aborted, then leaves the group.
///
/// Sends acknowledged offsets to `remember` and partition statuses to `partition_status` periodically.
///
/// # Errors
/// On a fatal error of librdkafka, such as a group instance id taken over by another member.
pub fn poll_until_told(
    consumer: BaseConsumer<Context>,
    signals: &Signals,
    health: &Health,
    remember: &mpsc::UnboundedSender<Vec<(i32, i64)>>,
    partition_status: &PartitionStatusSender,
) -> Result<(), ConsumerLost> {
    let context = consumer.context().clone();
    let ended = poll_and_commit(&consumer, &context, signals, health, remember, partition_status);
    send_to_remember(&context, remember);
    leave_group(consumer, context.pace.revoke + LEAVING);
    ended
}

fn poll_and_commit(
    consumer: &BaseConsumer<Context>,
    context: &Context,
    signals: &Signals,
    health: &Health,
    remember: &mpsc::UnboundedSender<Vec<(i32, i64)>>,
    partition_status: &PartitionStatusSender,
) -> Result<(), ConsumerLost> {
    let mut last_commit = Instant::now();
    let mut last_remembered = Instant::now();
    let mut last_board = Instant::now();
    let mut drain_until: Option<Instant> = None;
    let mut wait = false;
    let records = record_queue(consumer).map_err(ConsumerLost)?;
    while !signals.abort.load(Ordering::Relaxed) {
        health.poll_heartbeat();
        serve_events(consumer, context)?;
        if wait {
            std::thread::sleep(MEMORY_INTERVAL);
        } else {
            take_records(&records, consumer, context);
        }
        check_logs(consumer, context);
        look_for_trouble(consumer, context);
        wait = set_flow(&records, consumer, context);
        if last_commit.elapsed() >= context.pace.commit_interval || drain_until.is_some() {
            last_commit = Instant::now();
            commit(consumer, context);
        }
        if last_remembered.elapsed() >= REMEMBER_INTERVAL {
            last_remembered = Instant::now();
            send_to_remember(context, remember);
        }
        if last_board.elapsed() >= BOARD_INTERVAL {
            last_board = Instant::now();
            partition_status.send_replace(context.assignment().statuses());
        }
        match drain_until {
            None if signals.drain.load(Ordering::Relaxed) => {
                drain_until = Some(Instant::now() + context.pace.drain);
                context.assignment().drain();
            }
            None => {}
            Some(deadline) => {
                let assignment = context.assignment();
                if assignment.is_drained() && assignment.is_committed() {
                    break;
                }
                if Instant::now() >= deadline {
                    tracing::warn!("drain deadline reached; the next owner reads unwritten records again");
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Closes the consumer; the revocation callback runs in there.
///
/// librdkafka closes without a timeout and sometimes never returns: a pending rebalance event is answered by
/// `rd_kafka_assign`, which waits for a group that is gone. So closing runs on its own thread, abandoned after `limit`.
/// The next owner then reads uncommitted records again, and the broker notices at the session timeout.
fn leave_group(consumer: BaseConsumer<Context>, limit: Duration) {
    if !ends_within(limit, move || drop(consumer)) {
        tracing::warn!(
            limit = ?limit,
            "timed out leaving the consumer group; exiting anyway, the group recovers after the session timeout"
        );
    }
}

/// Runs `action` on its own thread; returns whether it ended in time. Otherwise the thread is abandoned.
fn ends_within(limit: Duration, action: impl FnOnce() + Send + 'static) -> bool {
    let (ended, wait) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("leave group".to_owned()).spawn(move || {
        action();
        // The receiver is gone after the timeout.
        let _ = ended.send(());
    });
    match thread {
        Ok(_) => wait.recv_timeout(limit).is_ok(),
        Err(error) => {
            tracing::warn!(%error, "could not start the thread that leaves the group");
            false
        }
    }
}

/// Serves the events of the group and the client; callbacks run in here.
fn serve_events(consumer: &BaseConsumer<Context>, context: &Context) -> Result<(), ConsumerLost> {
    // Who never polls is taken for dead (`max.poll.interval.ms`).
    let polls = waiting_events(consumer).max(1);
    (0..polls).try_for_each(|_| serve_event(consumer, context))
}

fn serve_event(consumer: &BaseConsumer<Context>, context: &Context) -> Result<(), ConsumerLost> {
    match consumer.poll(Duration::ZERO) {
        None => {}
        // Of a partition that was assigned, but not yet held back.
        Some(Ok(message)) => {
            let (partition, record) = (message.partition(), Record::copy_of(&message));
            take_record(consumer, context, &mut context.assignment(), partition, record.offset, || record);
        }
        Some(Err(KafkaError::MessageConsumption(RDKafkaErrorCode::Fatal)))
        | Some(Err(KafkaError::MessageConsumptionFatal(_))) => {
            let (code, reason) = consumer
                .client()
                .fatal_error()
                .unwrap_or((RDKafkaErrorCode::Fatal, "no reason given".to_owned()));
            tracing::error!(%code, reason, "kafka client failed permanently");
            return Err(ConsumerLost(KafkaError::MessageConsumptionFatal(code)));
        }
        // The client recovers by itself; a lasting error shows in the lag.
        Some(Err(error)) => tracing::warn!(%error, "kafka consumer"),
    }
    Ok(())
}

/// Hands fetched records to the tasks of their partitions, until none is left or a limit is reached.
fn take_records(records: &RecordQueue<'_, Context>, consumer: &BaseConsumer<Context>, context: &Context) {
    let mut assignment = context.assignment();
    let mut left = RECORDS_PER_TURN;
    records.take_each(POLL_TIMEOUT, |fetched| {
        left -= 1;
        let goes_on = match fetched {
            Fetched::Record(record) => {
                let copy = || Record::copy_of_fetched(&record);
                take_record(consumer, context, &mut assignment, record.partition(), record.offset(), copy)
            }
            Fetched::End(partition) => {
                at_end(consumer, context, &mut assignment, partition);
                true
            }
            Fetched::Error(RDKafkaErrorCode::AutoOffsetReset) => {
                context.stuck().look_at = Some(Instant::now());
                true
            }
            // The client recovers by itself; a lasting error shows in the lag.
            Fetched::Error(error) => {
                tracing::warn!(%error, "kafka consumer");
                true
            }
        };
        goes_on && left > 0
    });
}

/// Returns whether the partition may be read on.
fn take_record(
    consumer: &BaseConsumer<Context>,
    context: &Context,
    assignment: &mut Assignment,
    partition: i32,
    offset: i64,
    record: impl FnOnce() -> Record,
) -> bool {
    let may_come = !assignment.is_unexpected(partition, offset)
        || assignment.check_skipped(partition, offset, known_beginning(consumer, &context.topic, partition));
    !may_come || assignment.route(partition, record())
}

/// Records where a partition ends, possibly beyond its last record: transactions end with markers.
fn at_end(consumer: &BaseConsumer<Context>, context: &Context, assignment: &mut Assignment, partition: i32) {
    let Some(end) = position(consumer, &context.topic, partition) else { return };
    if assignment.is_unexpected(partition, end)
        && assignment.check_skipped(partition, end, known_beginning(consumer, &context.topic, partition))
    {
        assignment.at_end(partition, end);
    }
}

/// Makes librdkafka compare the log of newly assigned partitions with the committed offset. It does so only on a seek
/// to a position with a leader epoch, not at a start position. If the log of the current leader ends before, it stops
/// reading.
fn check_logs(consumer: &BaseConsumer<Context>, context: &Context) {
    let mut unchecked = std::mem::take(&mut *context.unchecked());
    // Records already read would come again.
    unchecked.retain(|what| context.assignment().is_to_begin_at(what.partition, what.committed));
    if unchecked.is_empty() {
        return;
    }
    let at: Vec<(i32, i64)> = unchecked.iter().map(|what| (what.partition, what.committed)).collect();
    let mut list = context.offsets(&at);
    for what in &unchecked {
        set_leader_epoch(&mut list, &context.topic, what.partition, what.leader_epoch);
    }
    match consumer.seek_partitions(list, ENDS_TIMEOUT) {
        Ok(done) => {
            // librdkafka may not have started the partition yet.
            let is_done = |partition| {
                let element = done.find_partition(&context.topic, partition);
                element.is_none_or(|element| element.error().is_ok())
            };
            unchecked.retain(|what| !is_done(what.partition));
        }
        Err(error) => tracing::warn!(%error, "could not compare the logs of new partitions yet"),
    }
    context.unchecked().append(&mut unchecked);
}

/// librdkafka does not name the partition it cannot continue, so all are checked.
fn look_for_trouble(consumer: &BaseConsumer<Context>, context: &Context) {
    context.lost_brokers.find_again(consumer.client());
    if std::mem::take(&mut context.stuck().begin_again) {
        tracing::warn!("partitions without a start offset: rejoining the group");
        consumer.unsubscribe();
        if let Err(error) = consumer.subscribe(&[&context.topic]) {
            tracing::error!(%error, "could not rejoin the group; restart this worker");
        }
    }
    if context.stuck().look_at.is_none_or(|due| Instant::now() < due) {
        return;
    }
    let partitions = context.assignment().to_be_read();
    for (partition, next) in partitions {
        let (low, high) = match consumer.fetch_watermarks(&context.topic, partition, ENDS_TIMEOUT) {
            Ok(ends) => ends,
            Err(error) => {
                tracing::warn!(partition, %error, "a partition could not be resumed, and its first and last offsets are unavailable");
                context.stuck().look_at = Some(Instant::now() + ENDS_TIMEOUT);
                return;
            }
        };
        context.assignment().check_next(partition, next, low, high);
    }
    let mut stuck = context.stuck();
    (stuck.look_at, stuck.has_looked) = (None, true);
}

/// Returns whether to take no record for a moment.
fn set_flow(records: &RecordQueue<'_, Context>, consumer: &BaseConsumer<Context>, context: &Context) -> bool {
    let end_of = |partition| known_end(consumer, &context.topic, partition);
    let flow = context.assignment().flow(Instant::now(), end_of);
    let report = |error: KafkaError| tracing::warn!(%error, "a partition could not be paused or resumed");
    for &partition in &flow.hold_back {
        tracing::debug!(partition, "held back");
        hold_back(consumer, &context.topic, partition);
    }
    for &partition in &flow.let_through {
        tracing::debug!(partition, "let through");
        records.let_through(&context.topic, partition);
    }
    if !flow.pause.is_empty() {
        tracing::debug!(partitions = %Numbers::of(&flow.pause), "paused");
        consumer.pause(&context.partitions(&flow.pause)).unwrap_or_else(report);
    }
    if !flow.resume.is_empty() {
        tracing::debug!(partitions = %Numbers::of(&flow.resume), "resumed");
        consumer.resume(&context.partitions(&flow.resume)).unwrap_or_else(report);
    }
    flow.wait
}

fn commit(consumer: &BaseConsumer<Context>, context: &Context) {
    let due = context.assignment().due_commits();
    if due.is_empty() {
        return;
    }
    let mut offsets = context.offsets(&due);
    add_leader_epochs(consumer, &context.topic, &mut offsets);
    if let Err(error) = commit_with_answer(consumer, &offsets) {
        let mut assignment = context.assignment();
        for (partition, _) in &due {
            assignment.commit_failed(*partition);
        }
        drop(assignment);
        context.commit_failed(due.len(), &error);
    }
}

fn send_to_remember(context: &Context, remember: &mpsc::UnboundedSender<Vec<(i32, i64)>>) {
    let committed = context.assignment().to_remember();
    if !committed.is_empty() {
        // The receiver is gone only if the worker has ended already.
        let _ = remember.send(committed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn action_past_its_limit_is_abandoned() {
        assert!(ends_within(Duration::from_secs(60), || {}));
        let (_open, never) = std::sync::mpsc::channel::<()>();
        assert!(!ends_within(Duration::from_millis(20), move || never.recv().unwrap_or_default()));
    }
}
