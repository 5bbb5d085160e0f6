//! The whole group at a glance, for `geofold status`, from any machine: members and partitions, lag and its trend, stopped partitions,
//! maps, Elasticsearch, dead letters. It joins no group and changes nothing.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | what is asked |
//! | `members.rs` | the broker's description of the group |
//! | `workers.rs` | what workers say over HTTP |
//! | `report.rs` | the report as text and JSON; what needs a person; pure |

mod members;
mod report;
mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio_util::sync::CancellationToken;

pub use self::members::{GroupMember, GroupSeen};
pub use self::report::{AuditSeen, GroupReport, LettersReport, MapsReport, Offsets, PartitionReport};
pub use self::workers::WorkerSeen;
use super::audit::periodic::LastAudit;
use super::dead_letters::{LetterFilter, LettersError, read_letters};
use super::records::{RecordsError, RecordsReader};
use crate::io::claims::Claim;
use crate::io::elastic::{AdminCall, Elastic, Get, GetAnswer, Index, Method};
use crate::io::kafka::topic_facts;
use crate::io::maps::{MapsStore, Stored};
use crate::io::meta::{TopicFacts, Watermark};
use crate::support::config::Config;

/// How long the brokers may take to describe the group.
const GROUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the brokers may take to describe the topic.
const TOPIC_TIMEOUT: Duration = Duration::from_secs(10);
/// Dead letters counted by reason, of each partition.
const NEWEST_LETTERS: i64 = 10_000;
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
    /// Ends it.
    pub stop: CancellationToken,
}

/// Offsets at one moment.
#[derive(Debug, Clone)]
pub struct OffsetSample {
    at: Instant,
    offsets: BTreeMap<i32, Offsets>,
}

/// What Kafka says.
struct KafkaSide {
    group: Result<GroupSeen, String>,
    facts: TopicFacts,
    sample: OffsetSample,
    letters: Option<Result<LettersReport, String>>,
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
        members::describe(reader.consumer(), &kafka.group_id, &kafka.topic, GROUP_TIMEOUT).ok()
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
    let keys = (0..partitions).map(|partition| Watermark::key(topic, partition));
    let gets: Vec<Get> = keys.map(|id| Get { index: Index::Meta, id }).collect();
    let answers = elastic.mget(&gets, config.elasticsearch.request_timeout).await;
    let answers = answers.map_err(|error| error.to_string())?;
    let asked = config.clone();
    let committed = blocking(move || {
        RecordsReader::new(&asked, &asked.kafka.topic, CancellationToken::new())?.committed(0..partitions)
    });
    let committed = committed.await.map_err(|error| error.to_string())?;
    let rewound = (0..partitions).zip(answers).filter_map(|(partition, answer)| {
        let GetAnswer::Found(found) = answer else { return None };
        let remembered: Watermark = serde_json::from_slice(&found.source).ok()?;
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
        before: Option<OffsetSample>,
        pause: Duration,
    ) -> Result<(GroupReport, OffsetSample), RecordsError> {
        let before = match before {
            Some(before) => before,
            None => {
                let first = self.offsets().await?;
                tokio::time::sleep(pause).await;
                first
            }
        };
        let partitions = i32::try_from(before.offsets.len()).unwrap_or(i32::MAX);
        // ⚠ Before the committed offsets: what is remembered there was committed.
        let (meta, health) = tokio::join!(self.meta(partitions), self.health());
        let kafka = self.kafka().await?;
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
            letters: kafka.letters,
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        });
        Ok((report, kafka.sample))
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

    async fn kafka(&self) -> Result<KafkaSide, RecordsError> {
        let (config, stop) = (self.config.clone(), self.stop.clone());
        blocking(move || {
            use rdkafka::consumer::Consumer as _;
            let topic = &config.kafka.topic;
            let reader = RecordsReader::new(&config, topic, stop.clone())?;
            let found = topic_facts(reader.consumer().client(), topic, TOPIC_TIMEOUT)
                .map_err(|error| RecordsError::Describe { topic: topic.clone(), error })?;
            let facts = TopicFacts {
                epoch: config.positions.epoch,
                topic_id: found.topic_id,
                partitions: found.partitions,
                map: None,
            };
            let group = members::describe(reader.consumer(), &config.kafka.group_id, topic, GROUP_TIMEOUT);
            let sample = sample(&reader, facts.partitions)?;
            let letters = config.dead_letter.topic.as_deref();
            let letters =
                letters.map(|topic| letters_of(&config, topic, stop).map_err(|error| error.to_string()));
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
        let keys = (0..partitions).map(|partition| Watermark::key(topic, partition));
        let gets: Vec<Get> = [TopicFacts::key(topic), LastAudit::key(topic)]
            .into_iter()
            .chain(keys)
            .map(|id| Get { index: Index::Meta, id })
            .collect();
        let answers = self.elastic.mget(&gets, timeout).await.map_err(|error| error.to_string())?;
        let mut answers = answers.into_iter();
        let facts = stored(answers.next());
        let audit = stored(answers.next());
        let remembered = (0..partitions).zip(answers).filter_map(|(partition, answer)| {
            let watermark: Watermark = stored(Some(answer))?;
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
fn stored<T: serde::de::DeserializeOwned>(answer: Option<GetAnswer>) -> Option<T> {
    match answer {
        Some(GetAnswer::Found(found)) => serde_json::from_slice(&found.source).ok(),
        _ => None,
    }
}

fn sample(reader: &RecordsReader, partitions: i32) -> Result<OffsetSample, RecordsError> {
    // ⚠ Before the ends: a lag is never negative.
    let committed = reader.committed(0..partitions)?;
    let at = Instant::now();
    let one = |partition| {
        let range = reader.range(partition)?;
        let committed = committed.get(&partition).copied();
        Ok((partition, Offsets { begin: range.start, end: range.end, committed }))
    };
    let offsets: Result<_, RecordsError> = (0..partitions).map(one).collect();
    Ok(OffsetSample { at, offsets: offsets? })
}

/// Counts of the newest dead letters.
fn letters_of(config: &Config, topic: &str, stop: CancellationToken) -> Result<LettersReport, LettersError> {
    let reader = RecordsReader::new(config, topic, stop)?;
    let mut in_topic = 0;
    for partition in 0..reader.partitions()? {
        let range = reader.range(partition)?;
        in_topic += range.end - range.start;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = now.saturating_sub(RECENT).as_millis();
    let recent = LetterFilter { since_ms: i64::try_from(since).ok(), ..LetterFilter::default() };
    let all = read_letters(&reader, &LetterFilter::default(), 0, Some(NEWEST_LETTERS))?;
    let recent = read_letters(&reader, &recent, 0, Some(NEWEST_LETTERS))?;
    Ok(LettersReport {
        topic: topic.to_owned(),
        in_topic,
        counted: all.matching,
        by_reason: all.by_reason,
        last_hour: recent.matching,
        last_hour_by_reason: recent.by_reason,
    })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
