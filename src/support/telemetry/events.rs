//! Every operator-relevant event is one type that emits its log line and updates its counters.
//!
//! The caller only writes `PartitionStopped { … }.emit(&metrics)`, so that no counter is forgotten, and texts and levels are in
//! one file. Levels: `error` needs an operator now, `warn` if it lasts, `info` reports the worker's progress, `debug` that of
//! documents. Only `debug` names documents: an id, and Elasticsearch's reason, which may quote a value, can be personal data.

use std::fmt::{self, Display};
use std::time::Duration;

use tracing::{debug, error, info, warn};

use super::metrics::{Metrics, Rebalance, Success};
use crate::base::ids::DocId;
use crate::base::position::Position;
use crate::base::requests::{Index, ItemError};
use crate::core::offsets::Lost;
use crate::core::schemas::SchemaId;

/// Partition numbers as a log line shows them: in order, neighbours as a range, and not without end.
#[derive(Debug)]
pub struct Numbers {
    ranges: Vec<(i32, i32)>,
}

impl Numbers {
    /// Of these, in any order.
    pub fn of(numbers: &[i32]) -> Self {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        let mut ranges: Vec<(i32, i32)> = Vec::new();
        for number in numbers {
            match ranges.last_mut() {
                Some((_, last)) if number.saturating_sub(*last) <= 1 => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        Self { ranges }
    }
}

impl Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 40;
        f.write_str("[")?;
        for (n, (first, last)) in self.ranges.iter().take(SHOWN).enumerate() {
            f.write_str(if n == 0 { "" } else { ", " })?;
            if first == last { write!(f, "{first}")? } else { write!(f, "{first}-{last}")? }
        }
        let left =
            self.ranges.iter().skip(SHOWN).map(|(first, last)| i64::from(last - first) + 1).sum::<i64>();
        if left > 0 {
            write!(f, ", and {left} more")?;
        }
        f.write_str("]")
    }
}

/// The group gave this worker partitions; under cooperative rebalancing these are the new ones only, perhaps none.
#[derive(Debug)]
pub struct PartitionsAssigned<'a> {
    /// Their numbers.
    pub partitions: &'a [i32],
}

impl PartitionsAssigned<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        metrics.rebalances.of(Rebalance::Assign).inc();
        if self.partitions.is_empty() {
            debug!("rebalance brought no new partitions");
            return;
        }
        info!(partitions = %Numbers::of(self.partitions), "partitions assigned");
    }
}

/// The group took partitions from this worker.
#[derive(Debug)]
pub struct PartitionsRevoked<'a> {
    /// Their numbers.
    pub partitions: &'a [i32],
    /// The partitions were lost: another worker may own them, and nothing can be committed.
    pub lost: bool,
}

impl PartitionsRevoked<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        let partitions = Numbers::of(self.partitions);
        if self.lost {
            metrics.rebalances.of(Rebalance::Lost).inc();
            warn!(
                %partitions,
                "partitions lost: the group considered this worker dead; the next owner reads their open records again"
            );
        } else {
            metrics.rebalances.of(Rebalance::Revoke).inc();
            info!(%partitions, "partitions revoked");
        }
    }
}

/// A partition stopped at a record, until an operator acts.
pub struct PartitionStopped<'a> {
    /// Its number.
    pub partition: i32,
    /// The record's offset, if it is one record's fault.
    pub offset: Option<i64>,
    /// Why, and what to do.
    pub reason: &'a dyn Display,
}

impl PartitionStopped<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        metrics.partition_stopped(self.partition);
        error!(partition = self.partition, offset = self.offset, reason = %self.reason, "partition stopped");
    }
}

/// Records were deleted from the topic before they were read.
#[derive(Debug)]
pub struct RecordsLost<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// Which offsets.
    pub lost: Lost,
    /// Whether the partition continues after them.
    pub accepted: bool,
}

impl RecordsLost<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        let Self { topic, partition, lost, accepted } = self;
        metrics.lost_records.inc_by(lost.count());
        error!(
            topic,
            partition,
            from = lost.from,
            to = lost.to,
            count = lost.count(),
            accepted,
            "records were deleted from the topic before they were read; their writes are lost"
        );
    }
}

/// A stopped partition works again.
pub struct PartitionGoesOn {
    /// Its number.
    pub partition: i32,
}

impl PartitionGoesOn {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        metrics.partition_goes_on(self.partition);
        info!(partition = self.partition, "partition resumed");
    }
}

/// A partition waits for a schema from the registry.
pub struct SchemaAwaited<'a> {
    /// Its number.
    pub partition: i32,
    /// Which schema.
    pub id: SchemaId,
    /// The registry's error, and what to do.
    pub trouble: &'a dyn Display,
}

impl SchemaAwaited<'_> {
    /// Logs it.
    pub fn emit(self) {
        warn!(
            partition = self.partition,
            schema = self.id.0,
            trouble = %self.trouble,
            "schema unavailable; partition paused, retrying"
        );
    }
}

/// The schema registry has answered at last.
#[derive(Debug)]
pub struct SchemaCame {
    /// The partition's number.
    pub partition: i32,
    /// Which schema.
    pub id: SchemaId,
}

impl SchemaCame {
    /// Logs it.
    pub fn emit(self) {
        info!(
            partition = self.partition,
            schema = self.id.0,
            "the schema registry answered; partition resumed"
        );
    }
}

/// A message was written to the dead-letter topic, and the broker has acknowledged it.
#[derive(Debug)]
pub struct DeadLettered<'a> {
    /// Where it came from.
    pub partition: i32,
    /// Offset of its first record.
    pub first_offset: i64,
    /// Offset of its last record; the same as the first unless a fold was refused.
    pub last_offset: i64,
    /// Reason from a closed set, the metric's label.
    pub reason: &'static str,
    /// The full error; may quote the document.
    pub detail: &'a str,
    /// The document, if the record's key was one.
    pub id: Option<&'a DocId>,
}

impl DeadLettered<'_> {
    /// Counts it, and logs it unless a letter with this reason was logged lately.
    pub fn emit(self, metrics: &Metrics) {
        metrics.dead_letter(self.reason);
        let Self { partition, first_offset, last_offset, reason, detail, id } = self;
        if let Some(left_out) = metrics.dead_letter_lines.log(reason, std::time::Instant::now()) {
            let left_out = (left_out > 0).then_some(left_out);
            warn!(
                partition,
                first_offset,
                last_offset,
                reason,
                lines_left_out = left_out,
                "record sent to the dead-letter topic"
            );
        }
        debug!(
            partition,
            first_offset,
            last_offset,
            reason,
            detail,
            id = id.map(tracing::field::debug),
            "dead letter in detail"
        );
    }
}

/// Kafka took an offset commit.
#[derive(Debug)]
pub struct OffsetsCommitted {
    /// How many partitions it named.
    pub partitions: usize,
}

impl OffsetsCommitted {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        metrics.commits.of(Success::Ok).inc();
        debug!(partitions = self.partitions, "offsets committed");
    }
}

/// Kafka did not take an offset commit. Nothing is lost: a later commit covers it.
pub struct CommitFailed<'a> {
    /// How many partitions it named.
    pub partitions: usize,
    /// Kafka's error.
    pub error: &'a dyn Display,
    /// A rebalance was under way, or the generation is over: to be expected, and not this worker's to repeat.
    pub rebalancing: bool,
}

impl CommitFailed<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        metrics.commits.of(Success::Failed).inc();
        if self.rebalancing {
            info!(partitions = self.partitions, error = %self.error, "offset commit refused during a rebalance");
        } else {
            warn!(partitions = self.partitions, error = %self.error, "offset commit failed; the next one covers it");
        }
    }
}

/// Every in-sync replica has an increment.
#[derive(Debug)]
pub struct IncrementAcknowledged {
    /// Of which partition.
    pub partition: i32,
    /// Its edges.
    pub edges: usize,
    /// Its size.
    pub bytes: usize,
}

impl IncrementAcknowledged {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        let Self { partition, edges, bytes } = self;
        metrics.tally.increments.of(Success::Ok).inc();
        metrics.tally.edges_sent.inc_by(edges as u64);
        metrics.tally.increment_bytes.inc_by(bytes as u64);
        debug!(partition, edges, bytes, "increment acknowledged");
    }
}

/// An increment was not acknowledged; it is sent again.
pub struct IncrementFailed<'a> {
    /// Of which partition.
    pub partition: i32,
    /// The topic of increments.
    pub topic: &'a str,
    /// Kafka's error.
    pub error: &'a dyn Display,
    /// How long until the next attempt.
    pub delay: Duration,
}

impl IncrementFailed<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        let Self { partition, topic, error, delay } = self;
        metrics.tally.increments.of(Success::Failed).inc();
        warn!(partition, topic, %error, ?delay, "an increment was not acknowledged; the partition's offsets wait for it");
    }
}

/// A batch came to its end.
#[derive(Debug)]
pub struct BatchFinished {
    /// Whose.
    pub partition: i32,
    /// How many documents it was about.
    pub documents: u32,
    /// From its first request to its last answer.
    pub took: Duration,
}

impl BatchFinished {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        let Self { partition, documents, took } = self;
        metrics.batch_seconds.observe(took.as_secs_f64());
        metrics.batch_documents.observe(f64::from(documents));
        debug!(partition, documents, ?took, "batch finished");
    }
}

/// A batch gave up, with some or all of its documents unfinished; they join a later batch.
pub struct BatchFailed<'a> {
    /// Whose.
    pub partition: i32,
    /// How many documents are unfinished.
    pub unfinished: u32,
    /// From its first request to its end.
    pub took: Duration,
    /// Why.
    pub error: &'a dyn Display,
}

impl BatchFailed<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        let Self { partition, unfinished, took, error } = self;
        metrics.batches_failed.inc();
        metrics.batch_seconds.observe(took.as_secs_f64());
        warn!(partition, unfinished, ?took, %error, "batch reached its deadline; its open documents join a later one");
    }
}

/// An entry was parked: an earlier owner had folded further (protocol, step 1).
#[derive(Debug)]
pub struct EntryParked<'a> {
    /// Whose.
    pub partition: i32,
    /// The entry's last record.
    pub position: Position,
    /// The placement's position.
    pub placed_at: Position,
    /// The document.
    pub id: &'a DocId,
}

impl EntryParked<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        let Self { partition, position, placed_at, id } = self;
        metrics.parked.inc();
        debug!(partition, %position, %placed_at, ?id, "entry parked until the document's next record");
    }
}

/// An earlier owner's decision was finished although its record is no longer in the topic (protocol, step 1).
#[derive(Debug)]
pub struct RecordedDecisionFinished<'a> {
    /// Whose.
    pub partition: i32,
    /// The position of the decision.
    pub position: Position,
    /// The document.
    pub id: &'a DocId,
}

impl RecordedDecisionFinished<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        let Self { partition, position, id } = self;
        metrics.recorded_decisions_finished.inc();
        warn!(partition, %position, "record no longer in the topic; finished its recorded decision");
        debug!(partition, %position, ?id, "recorded decision finished");
    }
}

/// Elasticsearch refused a document for good; its placement names the last good copy again.
#[derive(Debug)]
pub struct PlacementSetBack<'a> {
    /// Whose.
    pub partition: i32,
    /// The refused fold's last record.
    pub position: Position,
    /// The document.
    pub id: &'a DocId,
}

impl PlacementSetBack<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        let Self { partition, position, id } = self;
        metrics.set_backs.inc();
        debug!(partition, %position, ?id, "placement set back to the last good copy");
    }
}

/// Offsets are missing between the committed offset and the first one read, where counting is on.
#[derive(Debug)]
pub struct GapWhileCounting {
    /// Where.
    pub partition: i32,
}

impl GapWhileCounting {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        let Self { partition } = self;
        metrics.tally.gaps.inc();
        warn!(
            partition,
            "offsets are missing (compaction or transactions): if a worker died before it sent the changes of such a record, counts stay \
             wrong; recount with geofold audit --tally"
        );
    }
}

/// Elasticsearch answers 401 or 403, or no longer does.
#[derive(Debug)]
pub struct CredentialsRefused<'a> {
    /// The server's reason; `None`: a request succeeded.
    pub reason: Option<&'a str>,
}

impl CredentialsRefused<'_> {
    /// Logs it.
    pub fn emit(self) {
        match self.reason {
            Some(reason) => warn!(
                reason,
                "elasticsearch refuses geofold's credentials; nothing is sent but one request at a time, and the worker stops if it \
                 lasts for retry.unauthorized_timeout"
            ),
            None => info!("elasticsearch takes geofold's credentials again"),
        }
    }
}

/// An index refuses one document after the other alike, so that it and not they are at fault; or has taken one again.
#[derive(Debug)]
pub struct IndexRefuses<'a> {
    /// Which.
    pub index: &'a Index,
    /// Such as this; `None`: it has taken one.
    pub error: Option<&'a ItemError>,
}

impl IndexRefuses<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        let index = self.index.suffix();
        match self.error {
            Some(error) => {
                metrics.elasticsearch.refusing_indices.inc();
                error!(
                    index,
                    kind = error.kind,
                    status = error.status,
                    "an index refuses every document; they are retried instead of dead-lettered: check its mapping, its \
                     pipelines and its number of documents"
                );
                debug!(index, %error, "an index refuses every document");
            }
            None => {
                metrics.elasticsearch.refusing_indices.dec();
                info!(index, "an index accepts documents again");
            }
        }
    }
}

/// The worker became ready, or stopped being so, or has other reasons. A worker that was told to stop is no warning.
#[derive(Debug)]
pub struct ReadinessChanged<'a> {
    /// Parts that are not ready, with reasons; ready if empty.
    pub missing: &'a std::collections::BTreeMap<String, String>,
    /// It was told to stop.
    pub is_stopping: bool,
}

impl ReadinessChanged<'_> {
    /// Logs and counts it.
    pub fn emit(self, gauge: &prometheus::IntGauge) {
        let ready = self.missing.is_empty();
        gauge.set(i64::from(ready));
        if ready {
            info!("ready");
        } else if self.is_stopping {
            info!(missing = ?self.missing, "not ready");
        } else {
            warn!(missing = ?self.missing, "not ready");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing::Level;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged at this level and above.
    pub(crate) fn lines_of(level: Level, emit: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, emit);
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_dead_letter_is_counted_and_names_its_document_at_debug_level_only() {
        let metrics = Metrics::new().unwrap();
        let id = DocId::from_key(Some(b"anna-77")).unwrap();
        let emit = || {
            DeadLettered {
                partition: 3,
                first_offset: 41,
                last_offset: 41,
                reason: "mapping",
                detail: "failed to parse field [age] of anna-77",
                id: Some(&id),
            }
            .emit(&metrics);
        };
        let at_info = lines_of(Level::INFO, emit);
        assert!(
            at_info.contains("partition=3 first_offset=41 last_offset=41 reason=\"mapping\""),
            "{at_info}"
        );
        assert!(!at_info.contains("anna"), "{at_info}");
        assert!(lines_of(Level::DEBUG, emit).contains("id=\"anna-77\""));
        assert!(metrics.render().unwrap().contains("geofold_dead_letters_total{reason=\"mapping\"} 2\n"));
    }

    #[test]
    fn a_stopped_partition_is_an_error_line_and_a_gauge() {
        let metrics = Metrics::new().unwrap();
        metrics.partition(3);
        let lines = lines_of(Level::ERROR, || {
            PartitionStopped {
                partition: 3,
                offset: Some(41),
                reason: &"no dead-letter topic is configured",
            }
            .emit(&metrics);
        });
        assert!(lines.contains("partition stopped partition=3 offset=41"), "{lines}");
        assert!(lines.contains("reason=no dead-letter topic is configured"), "{lines}");
        assert!(metrics.render().unwrap().contains("geofold_stopped_partitions 1\n"));
    }

    #[test]
    fn lost_records_are_an_error_line_and_counted() {
        let metrics = Metrics::new().unwrap();
        let lines = lines_of(Level::ERROR, || {
            let lost = Lost { from: 100, to: 150 };
            RecordsLost { topic: "t", partition: 3, lost, accepted: false }.emit(&metrics);
        });
        assert!(
            lines.contains(r#"topic="t" partition=3 from=100 to=150 count=50 accepted=false"#),
            "{lines}"
        );
        assert!(metrics.render().unwrap().contains("geofold_lost_records_total 50\n"));
    }

    #[test]
    fn many_partitions_make_a_short_line() {
        let shown = |numbers: &[i32]| Numbers::of(numbers).to_string();
        assert_eq!(shown(&[]), "[]");
        assert_eq!(shown(&[7, 3, 4, 5, 9]), "[3-5, 7, 9]");
        assert_eq!(shown(&(0..10_000).rev().collect::<Vec<_>>()), "[0-9999]");
        let every_other: Vec<i32> = (0..10_000).step_by(2).collect();
        assert!(shown(&every_other).ends_with(", 76, 78, and 4960 more]"), "{}", shown(&every_other));
    }

    #[test]
    fn a_worker_that_is_not_ready_warns_unless_it_was_told_to_stop() {
        let gauge = prometheus::IntGauge::new("ready", "ready").unwrap();
        let warnings = |parts: &[&str], is_stopping| {
            let missing: BTreeMap<_, _> =
                parts.iter().map(|part| ((*part).to_owned(), "why".to_owned())).collect();
            let emit = || ReadinessChanged { missing: &missing, is_stopping }.emit(&gauge);
            lines_of(Level::WARN, emit).lines().count()
        };
        assert_eq!(warnings(&["elasticsearch"], false), 1);
        assert_eq!(warnings(&["elasticsearch", "shutdown"], true), 0);
        assert_eq!(warnings(&[], false), 0);
    }

    #[test]
    fn a_lost_partition_warns_and_a_revoked_one_does_not() {
        let metrics = Metrics::new().unwrap();
        let lines = lines_of(Level::WARN, || {
            PartitionsRevoked { partitions: &[1, 2], lost: false }.emit(&metrics);
            PartitionsRevoked { partitions: &[3], lost: true }.emit(&metrics);
        });
        assert_eq!(lines.lines().count(), 1, "{lines}");
        assert!(lines.contains("partitions=[3]"), "{lines}");
        let text = metrics.render().unwrap();
        assert!(text.contains("geofold_rebalances_total{kind=\"revoke\"} 1\n"));
        assert!(text.contains("geofold_rebalances_total{kind=\"lost\"} 1\n"));
    }
}
