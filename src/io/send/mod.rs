//! `geofold send`: reads lines and produces a record of each, keyed by the document's id.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | options, summary, errors; the run over all lines |
//! | `destination.rs` | which partition geofold's own records of a document have to go to |
//! | `line.rs` | the forms of a line, parsed to a record; pure |
//! | `producer.rs` | the Kafka side: settings that the promises need, deliveries counted |
//! | `topic.rs` | the topic of documents as tools use it: where partitions end, what is committed, touches |
//! | `pace.rs` | an even rate |

mod destination;
mod line;
mod pace;
mod producer;
pub(crate) mod topic;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use rdkafka::error::KafkaError;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tracing::info;

pub use line::{LineError, LineProblem, LineRules, Op, SendRecord, UnknownOp, parse_line};
pub use producer::DeliveryFailure;

use crate::base::figures::{bytes, count, grouped};
use crate::core::decode::{Decoder, RawRecord, Undecoded};
use crate::core::schemas::Schemas;
use crate::support::blocking::blocking;
pub use destination::UnknownDestinations;
pub(crate) use destination::{Destination, Destinations};
use pace::SendPace;
pub(crate) use producer::{TopicProducer, check_topic, settings};

/// A longer line is an error without being held in memory; no broker takes a record of this size.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Interval of log lines where no terminal shows a progress bar.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two updates of the bar's count of records.
const BAR_INTERVAL: Duration = Duration::from_millis(100);
/// Failed lines that are named; the rest is only counted.
const NAMED_FAILURES: usize = 100;

/// Options of a run. Not `Debug`, since the properties may hold a password.
#[derive(Clone)]
pub struct SendOptions {
    /// Settings for librdkafka's producer, with `bootstrap.servers` and `partitioner` (murmur2 without it). Acknowledgements and
    /// idempotence are not theirs to choose.
    pub properties: BTreeMap<String, String>,
    /// The topic; it must exist.
    pub topic: String,
    /// How lines are read.
    pub rules: LineRules,
    /// Records per second; as fast as the broker takes them if `None`.
    pub rate: Option<NonZeroU32>,
    /// Count bad lines and failed deliveries, and go on.
    pub keep_going: bool,
    /// As which a worker will read the records; `None`: they are not checked.
    pub decoder: Option<Decoder>,
    /// Size of the input, for the progress bar.
    pub input_bytes: Option<u64>,
    /// How long to wait for acknowledgements after the last line.
    pub flush_timeout: Duration,
}

/// Result of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SendSummary {
    /// Lines read, blank ones included.
    pub lines: u64,
    /// Records that the broker acknowledged.
    pub delivered: u64,
    /// Records produced that delete a document.
    pub deletes: u64,
    /// Bytes of keys and values produced.
    pub bytes: u64,
    /// Invalid lines.
    pub bad_lines: u64,
    /// Records that the broker or the client refused.
    pub refused: u64,
    /// Records that were not acknowledged in time; they may be in the topic or not.
    pub unacknowledged: u64,
    /// The first failed lines, with reasons: bad ones and refused records.
    pub failures: Vec<DeliveryFailure>,
    /// The run was stopped before the end of its input.
    pub interrupted: bool,
    /// From the first line to the last acknowledgement.
    pub took: Duration,
}

impl SendSummary {
    /// Lines that did not become an acknowledged record.
    pub fn failed(&self) -> u64 {
        self.bad_lines + self.refused + self.unacknowledged
    }

    /// Acknowledged records per second.
    pub fn rate(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "2^53 records would take years")]
        let delivered = self.delivered as f64;
        delivered / self.took.as_secs_f64().max(1e-9)
    }
}

impl fmt::Display for SendSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} records delivered ({} deletes, {}) in {:.1} s, {} records/s",
            count(self.delivered),
            count(self.deletes),
            bytes(self.bytes),
            self.took.as_secs_f64(),
            grouped(&format!("{:.0}", self.rate())),
        )?;
        if self.failed() > 0 {
            write!(
                f,
                "; failed: {} bad lines, {} refused, {} not acknowledged",
                count(self.bad_lines),
                count(self.refused),
                count(self.unacknowledged),
            )?;
        }
        if self.interrupted {
            write!(f, "; interrupted after line {}", self.lines)?;
        }
        Ok(())
    }
}

/// Why a run failed. If anything was sent, the summary has the progress until then.
#[derive(Debug, Error)]
pub enum SendError {
    /// librdkafka does not take the settings.
    #[error("could not create the kafka producer: {0}; check the producer properties")]
    Client(KafkaError),
    /// No broker answers.
    #[error("no answer from kafka at {servers:?}: {source}; check kafka.brokers and the security settings")]
    Unreachable {
        /// `bootstrap.servers`.
        servers: String,
        /// librdkafka's error.
        source: KafkaError,
    },
    /// The topic does not exist.
    #[error(
        "there is no topic {topic:?}; create it, for example: \
         kafka-topics.sh --bootstrap-server {servers} --create --topic {topic} --partitions 12"
    )]
    UnknownTopic {
        /// Its name.
        topic: String,
        /// `bootstrap.servers`.
        servers: String,
    },
    /// The topic is there, but not for this client, or not now.
    #[error("kafka does not let topic {topic:?} be written: {reason}")]
    Topic {
        /// Its name.
        topic: String,
        /// The broker's error.
        reason: String,
    },
    /// The input could not be read further.
    #[error("could not read the input after line {}: {source}; {summary}", summary.lines)]
    Input {
        /// The I/O error.
        source: io::Error,
        /// The progress until then.
        summary: Box<SendSummary>,
    },
    /// An invalid line, without `keep_going`.
    #[error("{error}; {summary}")]
    BadLine {
        /// The line and its problem.
        error: LineError,
        /// The progress until then.
        summary: Box<SendSummary>,
    },
    /// A record was refused, and the run was not to go on.
    #[error("{failure}; {summary}")]
    Refused {
        /// The record's line and the reason.
        failure: DeliveryFailure,
        /// The progress until then.
        summary: Box<SendSummary>,
    },
    /// A fatal client error: the records in the topic are in order, but incomplete.
    #[error("the kafka producer failed: {reason}; {summary}")]
    Fatal {
        /// librdkafka's error.
        reason: String,
        /// The progress until then.
        summary: Box<SendSummary>,
    },
    /// Records were not acknowledged in time.
    #[error("kafka did not acknowledge everything within {waited:?} after the last line; {summary}")]
    Unacknowledged {
        /// How long it was waited.
        waited: Duration,
        /// The progress until then.
        summary: Box<SendSummary>,
    },
}

/// Sends all of `input`, on a thread of its own, until its end or until `stop`. What is under way then is still
/// delivered. A read that waits for input (a terminal, a pipe) ends first.
///
/// # Errors
/// If Kafka cannot be reached, the topic is not there, the input cannot be read; and, unless
/// [`SendOptions::keep_going`], at the first line or record that fails. With it, see [`SendSummary::failed`].
pub async fn send(
    options: SendOptions,
    input: impl BufRead + Send + 'static,
    stop: CancellationToken,
) -> Result<SendSummary, SendError> {
    blocking(move || send_blocking(&options, input, &stop)).await
}

/// Why the loop over the lines ended before the end of the input.
enum Halt {
    Interrupted,
    Input(io::Error),
    BadLine(LineError),
    Refused,
    Fatal(String),
}

fn send_blocking(
    options: &SendOptions,
    input: impl BufRead,
    stop: &CancellationToken,
) -> Result<SendSummary, SendError> {
    let producer = TopicProducer::connect(&options.properties, &options.topic)?;
    let mut run = Run {
        options,
        producer,
        stop,
        start: Instant::now(),
        pace: options.rate.map(SendPace::new),
        progress: Progress::new(options.input_bytes),
        summary: SendSummary::default(),
        produced: 0,
        schemas: Schemas::new(),
    };
    let halted = run.all_lines(input).err();
    run.finish(halted)
}

struct Run<'a> {
    options: &'a SendOptions,
    producer: TopicProducer,
    stop: &'a CancellationToken,
    start: Instant,
    pace: Option<SendPace>,
    progress: Progress,
    summary: SendSummary,
    /// Records that the client took, delivered or not.
    produced: u64,
    /// None are asked for.
    schemas: Schemas,
}

impl Run<'_> {
    fn all_lines(&mut self, mut input: impl BufRead) -> Result<(), Halt> {
        let mut buffer = Vec::new();
        loop {
            if self.stop.is_cancelled() {
                return Err(Halt::Interrupted);
            }
            if let Some(reason) = self.producer.fatal_error() {
                return Err(Halt::Fatal(reason));
            }
            if !self.options.keep_going && self.producer.refused() > 0 {
                return Err(Halt::Refused);
            }
            buffer.clear();
            let read =
                input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut buffer).map_err(Halt::Input)?;
            if read == 0 {
                return Ok(());
            }
            self.summary.lines += 1;
            let line = self.summary.lines;
            let cut = buffer.last() != Some(&b'\n') && u64::try_from(read) == Ok(MAX_LINE_BYTES);
            let parsed = if cut {
                input.skip_until(b'\n').map_err(Halt::Input)?;
                Err(LineError { line, problem: LineProblem::TooLong(MAX_LINE_BYTES) })
            } else {
                std::str::from_utf8(&buffer)
                    .map_err(|_| LineError { line, problem: LineProblem::NotUtf8 })
                    .and_then(|text| parse_line(text, line, &self.options.rules))
            };
            match parsed {
                Ok(Some(record)) => match self.refusal(&record) {
                    None => self.produce(&record)?,
                    Some(why) => {
                        self.bad_line(LineError { line, problem: LineProblem::Refused(why) })?;
                    }
                },
                Ok(None) => {}
                Err(error) => self.bad_line(error)?,
            }
            self.progress.read(u64::try_from(read).unwrap_or_default(), self.produced);
        }
    }

    /// Why a worker would refuse it.
    fn refusal(&mut self, record: &SendRecord<'_>) -> Option<String> {
        let decoder = self.options.decoder.as_ref()?;
        let raw = RawRecord {
            partition: 0,
            offset: 0,
            key: Some(record.key.as_bytes()),
            value: record.value.map(|value| Bytes::copy_from_slice(value.as_bytes())),
            op: record.op.map(|op| op.as_str().as_bytes()),
        };
        match decoder.decode(raw, &mut self.schemas) {
            Err(Undecoded::Bad(bad)) => Some(bad.to_string()),
            Ok(_) | Err(Undecoded::Lacks(_)) => None,
        }
    }

    fn produce(&mut self, record: &SendRecord<'_>) -> Result<(), Halt> {
        if let Some(pace) = &mut self.pace {
            pace.wait(self.start.elapsed());
        }
        if !self.producer.produce(record, None, self.summary.lines, self.stop) {
            self.summary.lines -= 1;
            return Err(Halt::Interrupted);
        }
        self.produced += 1;
        self.summary.deletes += u64::from(record.is_delete());
        let bytes = record.key.len() + record.value.map_or(0, str::len);
        self.summary.bytes += u64::try_from(bytes).unwrap_or_default();
        Ok(())
    }

    fn bad_line(&mut self, error: LineError) -> Result<(), Halt> {
        self.summary.bad_lines += 1;
        if !self.options.keep_going {
            return Err(Halt::BadLine(error));
        }
        if self.summary.failures.len() < NAMED_FAILURES {
            let LineError { line, problem } = error;
            self.summary.failures.push(DeliveryFailure { line, reason: problem.to_string() });
        }
        Ok(())
    }

    /// Flushes however the loop ended, so that the summary matches the topic.
    fn finish(self, halted: Option<Halt>) -> Result<SendSummary, SendError> {
        let waited = self.options.flush_timeout;
        self.producer.flush(waited);
        self.progress.end();
        let mut summary = self.summary;
        summary.delivered = self.producer.delivered();
        summary.refused = self.producer.refused();
        summary.unacknowledged = self.produced.saturating_sub(summary.delivered + summary.refused);
        summary.failures.extend(self.producer.refusals());
        summary.failures.sort_by_key(|failure| failure.line);
        summary.failures.truncate(NAMED_FAILURES);
        summary.took = self.start.elapsed();
        summary.interrupted = matches!(halted, Some(Halt::Interrupted));
        let refusal = self.producer.refusals().into_iter().next();
        let boxed = || Box::new(summary.clone());
        match (halted, refusal) {
            (Some(Halt::Input(source)), _) => Err(SendError::Input { source, summary: boxed() }),
            (Some(Halt::BadLine(error)), _) => Err(SendError::BadLine { error, summary: boxed() }),
            (Some(Halt::Fatal(reason)), _) => Err(SendError::Fatal { reason, summary: boxed() }),
            (_, Some(failure)) if !self.options.keep_going => {
                Err(SendError::Refused { failure, summary: boxed() })
            }
            _ if summary.unacknowledged > 0 && !self.options.keep_going => {
                Err(SendError::Unacknowledged { waited, summary: boxed() })
            }
            _ => Ok(summary),
        }
    }
}

/// A bar on a terminal, a log line now and then elsewhere.
struct Progress {
    bar: ProgressBar,
    last_shown: Instant,
}

impl Progress {
    fn new(input_bytes: Option<u64>) -> Self {
        let (bar, template) = match input_bytes {
            Some(bytes) => (
                ProgressBar::new(bytes),
                "{wide_bar} {bytes}/{total_bytes} {msg} records, {binary_bytes_per_sec}, {eta} left",
            ),
            None => (ProgressBar::no_length(), "{spinner} {bytes} {msg} records, {binary_bytes_per_sec}"),
        };
        // The templates are constants; the fallback is the bar's default style.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, last_shown: Instant::now() }
    }

    fn read(&mut self, bytes: u64, records: u64) {
        self.bar.inc(bytes);
        let interval = if self.bar.is_hidden() { LOG_INTERVAL } else { BAR_INTERVAL };
        if self.last_shown.elapsed() < interval {
            return;
        }
        self.last_shown = Instant::now();
        if self.bar.is_hidden() {
            info!(records, bytes = self.bar.position(), "sending");
        } else {
            self.bar.set_message(count(records));
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Cursor;

    use rdkafka::config::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::message::{Headers, Message};
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::DefaultProducerContext;
    use rdkafka::types::RDKafkaRespErr;
    use rdkafka::{Offset, TopicPartitionList};

    use super::*;
    use crate::base::headers::OP_HEADER;
    use crate::core::decode::LocationPath;

    const PARTITIONS: i32 = 7;

    type Broker = MockCluster<'static, DefaultProducerContext>;

    fn broker() -> Broker {
        let broker = MockCluster::new(1).unwrap();
        broker.create_topic("people", PARTITIONS, 1).unwrap();
        broker
    }

    #[tokio::test]
    async fn records_land_where_the_configured_partitioner_puts_them() {
        let broker = broker();
        let mut options = options(&broker);
        options.properties.insert("partitioner".to_owned(), "consistent_random".to_owned());
        let lines: Vec<String> = (0..50).map(|n| format!("{{\"id\":\"user-{n}\"}}")).collect();
        send_text(options, lines.join("\n")).await.unwrap();
        let seen = read(&broker, 50);
        assert_eq!(seen.len(), 50);
        for record in &seen {
            let partition =
                crate::support::config::Partitioner::Crc32.partition_of(record.key.as_bytes(), PARTITIONS);
            assert_eq!(Some(record.partition), partition, "{record:?}");
        }
    }

    fn options(broker: &Broker) -> SendOptions {
        SendOptions {
            properties: BTreeMap::from([("bootstrap.servers".to_owned(), broker.bootstrap_servers())]),
            topic: "people".to_owned(),
            rules: LineRules { id_field: "id".to_owned(), op: None },
            rate: None,
            decoder: None,
            keep_going: false,
            input_bytes: None,
            flush_timeout: Duration::from_secs(20),
        }
    }

    async fn send_text(options: SendOptions, text: impl Into<String>) -> Result<SendSummary, SendError> {
        send(options, Cursor::new(text.into()), CancellationToken::new()).await
    }

    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Seen {
        key: String,
        value: Option<String>,
        op: Option<String>,
        partition: i32,
    }

    fn read(broker: &Broker, count: usize) -> BTreeSet<Seen> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", broker.bootstrap_servers())
            .set("group.id", "reader")
            .create()
            .unwrap();
        let mut assignment = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            assignment.add_partition_offset("people", partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&assignment).unwrap();
        let mut seen = BTreeSet::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while seen.len() < count && Instant::now() < deadline {
            let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
            let message = message.unwrap();
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            seen.insert(Seen {
                key: text(message.key().unwrap()),
                value: message.payload().map(text),
                op: message.headers().map(|headers| {
                    assert_eq!(headers.get(0).key, OP_HEADER);
                    text(headers.get(0).value.unwrap())
                }),
                partition: message.partition(),
            });
        }
        seen
    }

    /// As the Java clients choose a partition: `toPositive(murmur2(key)) % partitions`.
    fn java_partition(key: &str) -> i32 {
        i32::try_from(murmur2(key.as_bytes()) & 0x7fff_ffff).unwrap() % PARTITIONS
    }

    fn murmur2(data: &[u8]) -> u32 {
        const M: u32 = 0x5bd1_e995;
        let mut h = 0x9747_b28c ^ u32::try_from(data.len()).unwrap();
        let mut words = data.chunks_exact(4);
        for word in words.by_ref() {
            let k = u32::from_le_bytes(word.try_into().unwrap()).wrapping_mul(M);
            h = h.wrapping_mul(M) ^ (k ^ (k >> 24)).wrapping_mul(M);
        }
        let rest = words.remainder();
        if !rest.is_empty() {
            let rest = rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
            h = (h ^ rest).wrapping_mul(M);
        }
        h = (h ^ (h >> 13)).wrapping_mul(M);
        h ^ (h >> 15)
    }

    #[test]
    fn the_hash_of_these_tests_is_that_of_the_java_clients() {
        // From Kafka's own UtilsTest.
        for (key, hash) in
            [("21", -973_932_308), ("foobar", -790_332_482), ("a-little-bit-long-string", -985_981_536)]
        {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key}");
        }
    }

    #[tokio::test]
    async fn records_are_partitioned_like_those_of_java_producers() {
        let broker = broker();
        let mut lines: Vec<String> = (0..50).map(|n| format!("{{\"id\":\"user-{n}\"}}")).collect();
        lines.extend(
            ["gone\t", "moved\tpatch\t{\"x\":1}", "again\ttouch", "", "7\tdelete"].map(str::to_owned),
        );
        let summary = send_text(options(&broker), lines.join("\n")).await.unwrap();
        assert_eq!((summary.delivered, summary.deletes, summary.failed()), (54, 2, 0), "{summary}");

        let seen = read(&broker, 54);
        assert_eq!(seen.len(), 54);
        for record in &seen {
            assert_eq!(record.partition, java_partition(&record.key), "{record:?}");
        }
        let of = |key: &str| {
            let record = seen.iter().find(|record| record.key == key).unwrap();
            (record.value.as_deref(), record.op.as_deref())
        };
        assert_eq!(of("user-3"), (Some("{\"id\":\"user-3\"}"), None));
        assert_eq!(of("gone"), (None, None));
        assert_eq!(of("moved"), (Some("{\"x\":1}"), Some("patch")));
        assert_eq!(of("again"), (None, Some("touch")));
        assert_eq!(of("7"), (None, Some("delete")));
    }

    #[tokio::test]
    async fn bad_line_ends_the_run_after_earlier_lines_are_delivered() {
        let broker = broker();
        let error = send_text(options(&broker), "a\t{}\nb\n c\t{}\n").await.unwrap_err();
        let SendError::BadLine { error, summary } = &error else { panic!("{error}") };
        assert_eq!((error.line, summary.delivered), (2, 1));
    }

    #[tokio::test]
    async fn keep_going_counts_bad_lines_and_sends_the_rest() {
        let broker = broker();
        let mut options = options(&broker);
        options.keep_going = true;
        let large = format!("big\t{{\"x\":\"{}\"}}", "x".repeat(2_000_000));
        let mut text = format!("a\t{{}}\nb\n{large}\nc\t{{}}\n").into_bytes();
        text.extend(b"\xff\t{}\n");
        let summary = send(options, Cursor::new(text), CancellationToken::new()).await.unwrap();
        assert_eq!((summary.delivered, summary.bad_lines, summary.refused), (2, 2, 1), "{summary}");
        assert_eq!((summary.lines, summary.failed()), (5, 3));
    }

    #[tokio::test]
    async fn what_a_worker_would_refuse_is_not_sent() {
        let broker = broker();
        let mut options = options(&broker);
        let path = LocationPath::new("location").unwrap();
        let epoch = crate::support::config::Config::default().positions.epoch;
        options.decoder = Some(Decoder::new(path, epoch, 60));
        options.keep_going = true;
        let good = r#"{"location":[13,52]}"#;
        let big = r#"{"location":[13,52],"text":"0123456789012345678901234567890123456789"}"#;
        let lines =
            format!("a\t{good}\nb\t{{}}\nc\t{big}\nd\tpatch\t{{}}\ne\ttouch\nf\t{{\"location\":95}}\n");
        let summary = send_text(options, lines).await.unwrap();
        assert_eq!((summary.delivered, summary.bad_lines), (3, 3), "{summary}");
        let said: Vec<String> = summary.failures.iter().map(ToString::to_string).collect();
        for (line, why) in
            said.iter().zip(["line 2 was not delivered: a worker would refuse it: ", "line 3 ", "line 6 "])
        {
            assert!(line.contains(why), "{said:?}");
        }
    }

    #[tokio::test]
    async fn a_record_that_the_client_refuses_is_named_by_its_line() {
        let broker = broker();
        let text = format!("a\t{{}}\nbig\t{{\"x\":\"{}\"}}\n", "x".repeat(2_000_000));
        let error = send_text(options(&broker), text).await.unwrap_err();
        let SendError::Refused { failure, summary } = &error else { panic!("{error}") };
        assert_eq!((failure.line, summary.delivered, summary.refused), (2, 1, 1), "{error}");
    }

    #[tokio::test]
    async fn an_unknown_topic_is_an_error_that_says_how_to_create_it() {
        let broker = broker();
        broker.topic_error("people", RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).unwrap();
        let error = send_text(options(&broker), "a\t{}\n").await.unwrap_err();
        assert!(matches!(error, SendError::UnknownTopic { .. }), "{error}");
        assert!(error.to_string().contains("--create --topic people"), "{error}");
    }

    #[tokio::test]
    async fn a_queue_shorter_than_the_input_slows_it_and_loses_nothing() {
        let broker = broker();
        let mut options = options(&broker);
        options.properties.insert("queue.buffering.max.messages".to_owned(), "10".to_owned());
        let text: String = (0..300).map(|n| format!("user-{n}\t{{}}\n")).collect();
        assert_eq!(send_text(options, text).await.unwrap().delivered, 300);
    }

    #[tokio::test]
    async fn a_run_that_is_stopped_says_so_and_a_rate_is_kept() {
        let broker = broker();
        let mut options = options(&broker);
        options.rate = NonZeroU32::new(100);
        let stop = CancellationToken::new();
        let text: String = (0..100_000).map(|n| format!("user-{n}\t{{}}\n")).collect();
        let run = tokio::spawn(send(options, Cursor::new(text), stop.clone()));
        tokio::time::sleep(Duration::from_millis(1500)).await;
        stop.cancel();
        let summary = run.await.unwrap().unwrap();
        assert!(summary.interrupted);
        assert_eq!(summary.delivered, summary.lines);
        // 100 per second, plus the 100 ms burst.
        let most = summary.took.as_secs_f64() * 100.0 + 11.0;
        assert!(summary.delivered > 0 && summary.delivered as f64 <= most, "{summary}");
    }
}
