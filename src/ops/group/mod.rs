//! The whole group at a glance, for `geofold status` and the page of the group, from any machine: members and partitions, lag and its
//! trend, stopped partitions, maps, Elasticsearch, dead letters. It joins no group and changes nothing.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | what is asked |
//! | `members.rs` | the broker's description of the group |
//! | `workers.rs` | what workers say over HTTP |
//! | `report/` | the report as text and JSON; what needs a person; pure |

mod members;
mod report;
mod workers;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

pub use self::members::{GroupMember, GroupSeen};
pub use self::report::{AuditSeen, GroupReport, LettersReport, MapsReport, Offsets, PartitionReport};
pub use self::workers::{UNVIEWED, WorkerSeen};
use super::audit::periodic::LastAudit;
use super::dead_letters::{LetterFilter, LetterSeen};
use super::records::{RecordsError, RecordsReader};
use crate::base::ids::DocId;
use crate::io::claims::Claim;
use crate::io::elastic::{AdminCall, Elastic, Method, SeqNo};
use crate::io::maps::{MapsStore, Stored};
use crate::io::meta::{TopicFacts, Watermark};
use crate::io::stored::read_all;
use crate::support::blocking::blocking;
use crate::support::config::Config;

/// How long the brokers may take to describe the group.
const GROUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Dead letters made since then are news.
pub const RECENT: Duration = Duration::from_secs(3600);

/// What is asked, and where.
pub struct Question {
    /// The configuration.
    pub config: Config,
    /// The search server.
    pub elastic: Arc<dyn Elastic>,
    /// Workers' addresses; empty: those that the configuration and the group give.
    pub workers: Vec<String>,
    /// How many dead letters of each partition are counted: the newest.
    pub newest_letters: i64,
    /// Dead letters are counted again after this time.
    pub letters_every: Duration,
    /// Ends it.
    pub stop: CancellationToken,
}

/// What a later question goes on from.
#[derive(Debug, Clone)]
pub struct EarlierAnswer {
    sample: OffsetSample,
    letters: Option<LettersCount>,
}

impl EarlierAnswer {
    /// Time since its offsets were read.
    pub fn age(&self) -> Duration {
        self.sample.at.elapsed()
    }
}

/// Offsets at one moment.
#[derive(Debug, Clone)]
struct OffsetSample {
    at: Instant,
    offsets: BTreeMap<i32, Offsets>,
}

/// Dead letters at one moment.
#[derive(Debug, Clone)]
struct LettersCount {
    at: Instant,
    report: Result<LettersReport, String>,
}

/// What Kafka says.
struct KafkaSide {
    group: Result<GroupSeen, String>,
    facts: TopicFacts,
    sample: OffsetSample,
    letters: Option<LettersCount>,
}

/// What the meta index says.
#[derive(Default)]
struct Meta {
    facts: Option<TopicFacts>,
    maps: Option<Stored>,
    claims: Vec<Option<Claim>>,
    remembered: BTreeMap<i32, i64>,
    audit: Option<LastAudit>,
}

/// The stopped partitions that reachable workers know of, with reasons.
pub async fn stopped_partitions(config: &Config) -> BTreeMap<i32, String> {
    let asked = config.clone();
    let group = blocking(move || {
        let reader = RecordsReader::new(&asked, &asked.kafka.topic, CancellationToken::new()).ok()?;
        let kafka = &asked.kafka;
        members::describe(reader.consumer().ok()?, &kafka.group_id, &kafka.topic, GROUP_TIMEOUT).ok()
    });
    // Only an admin server that others reach is looked for on the members' hosts.
    let group = if config.admin.listen.ip().is_loopback() { None } else { group.await };
    let addresses = workers::addresses(&[], config, group.as_ref());
    let workers = workers::ask(&addresses, false, config).await;
    let of = |worker: &WorkerSeen| -> Vec<(i32, String)> {
        let stopped =
            worker.partitions.keys().filter_map(|&number| Some((number, worker.stopped(number)?.to_owned())));
        stopped.collect()
    };
    workers.iter().flat_map(of).collect()
}

/// Partitions whose group was rewound: the committed offset, and the higher one that is remembered.
pub async fn rewound_partitions(
    config: &Config,
    elastic: &dyn Elastic,
) -> Result<BTreeMap<i32, (i64, i64)>, String> {
    let asked = config.clone();
    let partitions = blocking(move || {
        RecordsReader::new(&asked, &asked.kafka.topic, CancellationToken::new())?.partitions()
    });
    let partitions = partitions.await.map_err(|error| error.to_string())?;
    // ⚠ Before the committed offsets: what is remembered was committed.
    let topic = &config.kafka.topic;
    let keys: Vec<DocId> = (0..partitions).map(|partition| Watermark::key(topic, partition)).collect();
    let found = read_all(elastic, &keys, config.elasticsearch.request_timeout).await;
    let found = found.map_err(|error| error.to_string())?;
    let asked = config.clone();
    let committed = blocking(move || {
        RecordsReader::new(&asked, &asked.kafka.topic, CancellationToken::new())?.committed(0..partitions)
    });
    let committed = committed.await.map_err(|error| error.to_string())?;
    let rewound = (0..partitions).zip(found).filter_map(|(partition, found)| {
        let remembered: Watermark = parsed(found)?;
        let committed = *committed.get(&partition)?;
        let is_rewound = remembered.epoch == config.positions.epoch && remembered.offset > committed;
        is_rewound.then_some((partition, (committed, remembered.offset)))
    });
    Ok(rewound.collect())
}

impl Question {
    /// Asks everything. The trend is since `before`; without it, offsets are read twice, `pause` apart.
    pub async fn ask(
        &self,
        before: Option<EarlierAnswer>,
        pause: Duration,
    ) -> Result<(GroupReport, EarlierAnswer), RecordsError> {
        let (before, letters) = match before {
            Some(EarlierAnswer { sample, letters }) => (sample, letters),
            None => {
                let first = self.offsets().await?;
                tokio::time::sleep(pause).await;
                (first, None)
            }
        };
        let letters = letters.filter(|count| count.at.elapsed() < self.letters_every);
        let partitions = i32::try_from(before.offsets.len()).unwrap_or(i32::MAX);
        // ⚠ Before the committed offsets: what is remembered there was committed.
        let (meta, health) = tokio::join!(self.meta(partitions), self.health());
        let kafka = self.kafka(letters).await?;
        let group = kafka.group.as_ref().ok();
        let addresses = workers::addresses(&self.workers, &self.config, group);
        let workers = workers::ask(&addresses, !self.workers.is_empty(), &self.config).await;
        let report = GroupReport::new(report::Inputs {
            config: &self.config,
            group: kafka.group,
            facts: &kafka.facts,
            before: &before.offsets,
            now: &kafka.sample.offsets,
            between: kafka.sample.at.saturating_duration_since(before.at),
            meta: meta.as_ref().map_err(String::as_str),
            health,
            workers,
            letters: kafka.letters.clone().map(|count| count.report),
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        });
        Ok((report, EarlierAnswer { sample: kafka.sample, letters: kafka.letters }))
    }

    /// Only the offsets.
    async fn offsets(&self) -> Result<OffsetSample, RecordsError> {
        let (config, stop) = (self.config.clone(), self.stop.clone());
        blocking(move || {
            let reader = RecordsReader::new(&config, &config.kafka.topic, stop)?;
            let partitions = reader.partitions()?;
            sample(&reader, partitions)
        })
        .await
    }

    /// What Kafka says; `counted` are dead letters that need not be counted again yet.
    async fn kafka(&self, counted: Option<LettersCount>) -> Result<KafkaSide, RecordsError> {
        let (config, stop, newest) = (self.config.clone(), self.stop.clone(), self.newest_letters);
        blocking(move || {
            let topic = &config.kafka.topic;
            let reader = RecordsReader::new(&config, topic, stop.clone())?;
            let facts = TopicFacts::found(config.positions.epoch, reader.describe()?);
            let group = members::describe(reader.consumer()?, &config.kafka.group_id, topic, GROUP_TIMEOUT);
            let sample = sample(&reader, facts.partitions)?;
            let count = |topic: &str| LettersCount {
                at: Instant::now(),
                report: letters_of(&config, topic, newest, stop).map_err(|error| error.to_string()),
            };
            let letters = counted.or_else(|| config.dead_letter.topic.as_deref().map(count));
            Ok(KafkaSide { group, facts, sample, letters })
        })
        .await
    }

    /// What is remembered of topic, maps and partitions; an error in words.
    async fn meta(&self, partitions: i32) -> Result<Meta, String> {
        let (topic, timeout) = (&self.config.kafka.topic, self.config.elasticsearch.request_timeout);
        let store = MapsStore::new(&*self.elastic, topic, timeout);
        let maps = store.read().await.map_err(|error| error.to_string())?;
        let claims = store.claims(partitions).await.map_err(|error| error.to_string())?;
        let watermarks = (0..partitions).map(|partition| Watermark::key(topic, partition));
        let keys: Vec<DocId> =
            [TopicFacts::key(topic), LastAudit::key(topic)].into_iter().chain(watermarks).collect();
        let found = read_all(&*self.elastic, &keys, timeout).await.map_err(|error| error.to_string())?;
        let mut found = found.into_iter();
        let facts = parsed(found.next().flatten());
        let audit = parsed(found.next().flatten());
        let remembered = (0..partitions).zip(found).filter_map(|(partition, found)| {
            let watermark: Watermark = parsed(found)?;
            (watermark.epoch == self.config.positions.epoch).then_some((partition, watermark.offset))
        });
        Ok(Meta { facts, maps, claims, remembered: remembered.collect(), audit })
    }

    /// `green`, `yellow` or `red`; an error in words.
    async fn health(&self) -> Result<String, String> {
        let call = AdminCall { method: Method::Get, path: "/_cluster/health".to_owned(), body: None };
        let answer = self.elastic.admin(call, self.config.elasticsearch.request_timeout).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match (answer.status, answer.body["status"].as_str()) {
            (200, Some(health)) => Ok(health.to_owned()),
            (403, _) => Ok("not shown to this user (cluster privilege monitor)".to_owned()),
            (401, _) => Err(
                "the credentials are missing or wrong: check elasticsearch.username and password, or api_key"
                    .to_owned(),
            ),
            (status, _) => Err(format!("answered {status}: {}", crate::io::elastic::decode::reason(&answer))),
        }
    }
}

/// A record of the meta index, if it is there and readable.
fn parsed<T: serde::de::DeserializeOwned>(found: Option<(Bytes, SeqNo)>) -> Option<T> {
    serde_json::from_slice(&found?.0).ok()
}

fn sample(reader: &RecordsReader, partitions: i32) -> Result<OffsetSample, RecordsError> {
    // ⚠ Before the ends: a lag is never negative.
    let committed = reader.committed(0..partitions)?;
    let at = Instant::now();
    let one = |(partition, range): (i32, std::ops::Range<i64>)| {
        let committed = committed.get(&partition).copied();
        (partition, Offsets { begin: range.start, end: range.end, committed })
    };
    Ok(OffsetSample { at, offsets: reader.ranges(partitions)?.into_iter().map(one).collect() })
}

/// Counts the `newest` dead letters of each partition.
fn letters_of(
    config: &Config,
    topic: &str,
    newest: i64,
    stop: CancellationToken,
) -> Result<LettersReport, RecordsError> {
    let reader = RecordsReader::new(config, topic, stop)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = now.saturating_sub(RECENT).as_millis();
    let recent = LetterFilter { since_ms: i64::try_from(since).ok(), ..LetterFilter::default() };
    let mut report = LettersReport { topic: topic.to_owned(), ..LettersReport::default() };
    for (partition, range) in reader.ranges(reader.partitions()?)? {
        report.in_topic += range.end - range.start;
        let start = range.start.max(range.end.saturating_sub(newest));
        let (has_older, mut is_first) = (start > range.start, true);
        reader.read(partition, start..range.end, None, |dated| {
            let letter = LetterSeen::of(partition, dated);
            let is_recent = recent.takes(&letter);
            report.counted += 1;
            if is_recent {
                report.last_hour += 1;
                *report.last_hour_by_reason.entry(letter.reason.clone()).or_default() += 1;
            }
            *report.by_reason.entry(letter.reason).or_default() += 1;
            report.last_hour_has_more |= has_older && is_first && is_recent;
            is_first = false;
            ControlFlow::Continue(())
        })?;
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::message::{Header, OwnedHeaders};
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

    use super::*;
    use crate::base::headers;
    use crate::testkit::embedded::broker::EmbeddedBroker;

    #[test]
    fn newest_dead_letters_are_counted_by_reason_and_age() {
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("bad", 2).unwrap();
        let mut config = Config::default();
        config.kafka.brokers = vec![broker.address().to_owned()];
        let producer: BaseProducer =
            ClientConfig::new().set("bootstrap.servers", broker.address()).create().unwrap();
        for (reason, time) in [("bad_key", "1"), ("bad_key", "2"), ("no_location", ""), ("bad_key", "")] {
            let header = |key, value| Header { key, value: Some(value) };
            let headers = OwnedHeaders::new().insert(header(headers::REASON_HEADER, reason));
            let headers = headers.insert(header(headers::TIME_HEADER, time));
            producer
                .send(BaseRecord::to("bad").key("k").payload("{}").partition(1).headers(headers))
                .map_err(|(error, _)| error)
                .unwrap();
        }
        producer.flush(Duration::from_secs(20)).unwrap();
        let count = |newest| letters_of(&config, "bad", newest, CancellationToken::new()).unwrap();
        let all = count(10);
        assert_eq!((all.in_topic, all.counted, all.last_hour, all.last_hour_has_more), (4, 4, 2, false));
        assert_eq!(all.by_reason, [("bad_key".to_owned(), 3), ("no_location".to_owned(), 1)].into());
        assert_eq!(
            all.last_hour_by_reason,
            [("bad_key".to_owned(), 1), ("no_location".to_owned(), 1)].into()
        );
        let some = count(3);
        assert_eq!((some.counted, some.last_hour, some.last_hour_has_more), (3, 2, false), "all recent ones");
        let few = count(1);
        assert_eq!((few.in_topic, few.counted, few.last_hour, few.last_hour_has_more), (4, 1, 1, true));
    }
}
