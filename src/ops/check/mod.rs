//! `geofold check`: connects to Kafka and Elasticsearch and reports, one line each, what is right, what is wrong, and what to
//! do.
//!
//! The worker asks the same before it starts. It waits for what does not answer, and refuses to start over what answers
//! wrongly: a wrong index or another topic would not get better by itself.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | what is checked against what, findings, the comparison of the topic with what is remembered of it |
//! | `brokers.rs` | asks Kafka |
//! | `counts.rs` | asks the database of counts |
//! | `distribution.rs` | asks what follows every change: memcached, webhooks |
//! | `increments.rs` | asks Kafka how the topic of increments is kept |
//! | `keys.rs` | asks Kafka whether keys are where `kafka.partitioner` puts them |
//! | `group.rs` | asks workers and Kafka how the group is |
//! | `placements.rs` | asks Elasticsearch how large the placements index is |
//! | `search.rs` | asks Elasticsearch |
//! | `registry.rs` | asks the schema registry |
//! | `source.rs` | asks the source of truth |
//! | `claims.rs` | the configuration against the deadlines by which workers may still act |
//! | `maps.rs` | the configured map against the record of the maps in force |
//! | `preflight.rs` | what must be right before a worker joins its group |

mod brokers;
mod claims;
mod counts;
mod distribution;
mod group;
mod increments;
mod keys;
mod maps;
mod placements;
pub mod preflight;
mod registry;
mod search;
mod source;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::base::colours::Colours;
use crate::base::ids::ShardId;
use crate::base::position::Epoch;
use crate::geoshard::GeoshardMap;
use crate::io::elastic::Elastic;
use crate::io::indices::{Layout, Template, TemplateError, WantedIndex, wanted};
use crate::io::maps::{MapsRecord, Stored};
use crate::io::meta::TopicFacts;
use crate::support::config::types::DeadLetterPolicy;
use crate::support::config::{Config, JobKind, MoveVisibility, PlacementsConfig, Properties};

/// How long each end may take to answer a question.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Inputs of a check.
#[derive(Debug, Clone)]
pub struct CheckTarget {
    /// librdkafka's settings, those of the worker's consumer.
    pub kafka: Properties,
    /// The topic of document writes.
    pub topic: String,
    /// The topic for records that cannot be applied; `None` if they stop their partition.
    pub dead_letter_topic: Option<String>,
    /// The topics that distribution jobs write to, each with its job's name.
    pub job_topics: Vec<(String, String)>,
    /// The topic of increments; `None` if nothing is counted.
    pub increments_topic: Option<String>,
    /// The configured epoch.
    pub epoch: Epoch,
    /// The configured map.
    pub map: Arc<GeoshardMap>,
    /// Start of every index name.
    pub prefix: String,
    /// How indices are made.
    pub template: Template,
    /// Path of the `geo_point` field in a document.
    pub searched: String,
    /// Whether workers refresh geoshards.
    pub refreshes: bool,
    /// How long deletes are remembered.
    pub gc_deletes: Duration,
    /// How the placements index is to be.
    pub placements: PlacementsConfig,
    /// The indices that have to be there.
    pub indices: Vec<WantedIndex>,
    /// How long each question may take.
    pub timeout: Duration,
}

impl CheckTarget {
    /// Everything that `config` points to, with its map. Reads the index template's file.
    pub fn new(config: &Config, map: &GeoshardMap) -> Result<Self, TemplateError> {
        let template = config.geoshards.index_template.as_deref().map(Template::load).transpose()?;
        let dead_letter_topic = match config.dead_letter.policy {
            DeadLetterPolicy::Topic => config.dead_letter.topic.clone(),
            DeadLetterPolicy::Stop => None,
        };
        let jobs = config.distribution.jobs.iter();
        let job_topics = jobs.filter_map(|job| Some((job.name.clone(), job.topic.clone()?)));
        let mut target = Self {
            kafka: config.consumer_properties(),
            topic: config.kafka.topic.clone(),
            dead_letter_topic,
            job_topics: job_topics.collect(),
            increments_topic: config.tally.is_on().then(|| config.increments_topic()),
            epoch: config.positions.epoch,
            map: Arc::new(map.clone()),
            prefix: config.elasticsearch.prefix.clone(),
            template: template.unwrap_or_default(),
            searched: config.documents.searched(),
            refreshes: config.moves.visibility == MoveVisibility::Search
                || config.distribution.jobs.iter().any(|job| job.kind == JobKind::Refresh),
            gc_deletes: config.elasticsearch.gc_deletes,
            placements: config.placements,
            indices: Vec::new(),
            timeout: TIMEOUT,
        };
        target.indices = target.wanted(map.shards())?;
        Ok(target)
    }

    /// The indices that these geoshards need.
    pub fn wanted(&self, shards: &[ShardId]) -> Result<Vec<WantedIndex>, TemplateError> {
        let Self { prefix, searched, .. } = self;
        let layout = Layout {
            prefix,
            shards,
            location: searched,
            gc_deletes: self.gc_deletes,
            placements: self.placements,
        };
        wanted(&layout, &self.template)
    }

    /// Adds the indices that the maps in force need, besides those of the map file.
    fn by_record(&self, record: Option<&MapsRecord>) -> Self {
        let mut target = self.clone();
        if let Some(record) = record.filter(|record| record.knows(&self.map.fingerprint())) {
            let shards: BTreeSet<ShardId> =
                record.live().iter().flat_map(|map| map.shards().iter().cloned()).collect();
            // The template was good for the configured map's geoshards, and so it is for others.
            if let Ok(indices) = self.wanted(&Vec::from_iter(shards)) {
                target.indices = indices;
            }
        }
        target
    }
}

/// How good or bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckLevel {
    /// As it should be.
    Ok,
    /// Work can go on, with a promise that is weaker or something that could not be seen.
    Warning,
    /// No answer. It may come later: a worker waits for it.
    Unreachable,
    /// An error that lasts until it is fixed: a worker does not start.
    Error,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckFinding {
    /// How it is.
    pub level: CheckLevel,
    /// The checked object.
    pub about: String,
    /// The result, and what to do. One line.
    pub message: String,
}

impl CheckFinding {
    fn new(level: CheckLevel, about: impl Into<String>, message: impl fmt::Display) -> Self {
        Self { level, about: about.into(), message: message.to_string().replace(['\r', '\n'], " ") }
    }

    fn ok(about: impl Into<String>, message: impl fmt::Display) -> Self {
        Self::new(CheckLevel::Ok, about, message)
    }

    fn warning(about: impl Into<String>, message: impl fmt::Display) -> Self {
        Self::new(CheckLevel::Warning, about, message)
    }

    fn unreachable(about: impl Into<String>, message: impl fmt::Display) -> Self {
        Self::new(CheckLevel::Unreachable, about, message)
    }

    fn error(about: impl Into<String>, message: impl fmt::Display) -> Self {
        Self::new(CheckLevel::Error, about, message)
    }

    /// Level, object and result on one line.
    pub fn text(&self, colours: Colours) -> String {
        let level = format!("{:<11}", self.level);
        let level = match self.level {
            CheckLevel::Ok => colours.good(level),
            CheckLevel::Warning => colours.warning(level),
            CheckLevel::Unreachable | CheckLevel::Error => colours.bad(level),
        };
        format!("{level}  {}: {}", colours.bold(&self.about), self.message)
    }

    /// Whether nothing answered, so that asking again later may help.
    pub fn is_unreachable(&self) -> bool {
        self.level == CheckLevel::Unreachable
    }

    /// Whether something is wrong that waiting does not mend.
    pub fn is_error(&self) -> bool {
        self.level == CheckLevel::Error
    }
}

impl fmt::Display for CheckLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Unreachable => "unreachable",
            Self::Error => "error",
        })
    }
}

impl fmt::Display for CheckFinding {
    /// Level, object and result on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(Colours::NONE))
    }
}

/// The exit code of `geofold check`: 0 if a worker could start (there may be warnings), 1 if anything is wrong or does
/// not answer.
pub fn exit_code(findings: &[CheckFinding]) -> u8 {
    u8::from(findings.iter().any(|finding| finding.is_error() || finding.is_unreachable()))
}

/// Runs all checks, Kafka and Elasticsearch concurrently. Takes a few timeouts at most; changes nothing except one document in
/// the meta index, written and removed.
pub async fn check(target: &CheckTarget, elastic: &dyn Elastic) -> CheckReport {
    let (stored, unread) = match maps::read(target, elastic).await {
        Ok(stored) => (stored, None),
        Err(finding) => (None, Some(finding)),
    };
    let target = &target.by_record(stored.as_ref().map(|stored| &stored.record));
    let (kafka, search) = tokio::join!(brokers::look(target), search::look(target, elastic));
    let mut findings = kafka.findings;
    findings.extend(search.findings);
    let configured = target.map.fingerprint();
    let mut topic = kafka
        .topic
        .map(|topic| TopicFacts { map: Some(configured.clone()), ..TopicFacts::found(target.epoch, topic) });
    // The record of the maps, if any, takes precedence over the fingerprint stored with the topic.
    let judged = stored.as_ref().map(|stored| maps::judge(&stored.record, target));
    if let (Some(now), Some(mut remembered)) = (&topic, search.remembered) {
        if let (Some(_), Some(remembered)) = (&judged, &mut remembered) {
            remembered.map = None;
        }
        findings.push(compare(&target.topic, now, remembered.as_ref()));
        let now = now.clone();
        topic = Some(match &remembered {
            Some(remembered) => now.going_on_from(remembered),
            None => now,
        });
    }
    findings.extend(judged);
    // A meta index that is not there is found out above.
    let is_silent = findings.iter().any(|finding| finding.is_unreachable() || finding.is_error());
    findings.extend(unread.filter(|_| !is_silent));
    if let (Some(topic), false) = (&topic, is_silent) {
        findings.push(claims::look(target, elastic, topic.partitions).await);
    }
    CheckReport { findings, topic, maps: stored }
}

/// Looks at what a worker needs for none of its promises, so that it does not wait for it: memcached, webhooks, the database
/// of counts, the source of truth, the schema registry, where keys are. Changes nothing there.
pub async fn look_beside(config: &Config) -> Vec<CheckFinding> {
    let (distribution, counts, source, registry, keys) = tokio::join!(
        distribution::look(config, TIMEOUT),
        counts::look(config),
        source::look_at_source(config),
        registry::look_at_registry(config),
        keys::look(config, TIMEOUT)
    );
    distribution.into_iter().chain(counts).chain(source).chain(registry).chain(keys).collect()
}

/// Looks at a group that may be at work: stopped partitions, rewound offsets.
pub async fn look_at_group(config: &Config, elastic: &dyn Elastic) -> Vec<CheckFinding> {
    group::look(config, elastic).await
}

/// Remembers the topic as it is now in the meta index; `maps`: the record that the check found. If a new epoch begins with
/// another map, that is the one in force from now on.
///
/// # Errors
/// With a finding: one that waiting may mend, or an error.
pub async fn remember(
    target: &CheckTarget,
    elastic: &dyn Elastic,
    now: &TopicFacts,
    maps: Option<&Stored>,
) -> Result<(), CheckFinding> {
    if let Some(stored) = maps {
        maps::replace(target, elastic, stored).await?;
    }
    search::carry_out(elastic, target.timeout, &[now.remember(&target.topic)]).await
}

/// Result of all checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// All findings.
    pub findings: Vec<CheckFinding>,
    /// The topic as it is now, if the brokers answered; stored once work begins.
    pub topic: Option<TopicFacts>,
    /// The record of the maps in force, if there is one.
    pub maps: Option<Stored>,
}

/// Compares the topic with the stored facts.
fn compare(topic: &str, now: &TopicFacts, remembered: Option<&TopicFacts>) -> CheckFinding {
    let about = "positions";
    let epoch = now.epoch;
    let Some(remembered) = remembered else {
        return CheckFinding::ok(about, format_args!("nothing is remembered of {topic} yet: a first start"));
    };
    if let Some(growth) = remembered.growth_to(now) {
        return CheckFinding::warning(about, growth);
    }
    match TopicFacts::allows(remembered, now) {
        Err(needed) => CheckFinding::error(about, needed),
        Ok(()) if epoch > remembered.epoch => CheckFinding::ok(
            about,
            format_args!("epoch {epoch} begins; {} was in use before", remembered.epoch),
        ),
        Ok(()) => CheckFinding::ok(about, format_args!("{topic} is as remembered, epoch {epoch}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn target() -> CheckTarget {
        CheckTarget::new(&Config::default(), &map()).unwrap()
    }

    fn map() -> GeoshardMap {
        let json = r#"{"version":1,"name":"two","cells":"s2","ranges":[
            {"from":"0000000000000000","shard":"eu"},{"from":"6000000000000001","shard":"us"}]}"#;
        GeoshardMap::from_json(json).unwrap()
    }

    fn facts(epoch: u32, topic_id: &str) -> TopicFacts {
        TopicFacts {
            epoch: Epoch::new(epoch).unwrap(),
            topic_id: Some(topic_id.to_owned()),
            partitions: 3,
            map: None,
            added: None,
        }
    }

    #[test]
    fn a_topic_that_was_created_anew_is_an_error_until_the_epoch_is_raised() {
        let finding = |epoch, remembered: Option<TopicFacts>| {
            compare("documents", &facts(epoch, "new"), remembered.as_ref())
        };
        assert_eq!(finding(1, None).level, CheckLevel::Ok);
        assert_eq!(finding(1, Some(facts(1, "new"))).level, CheckLevel::Ok);
        let refused = finding(1, Some(facts(1, "old")));
        assert!(refused.is_error() && refused.message.contains("raise positions.epoch"), "{refused}");
        assert_eq!(finding(2, Some(facts(1, "old"))).level, CheckLevel::Ok);
        assert!(finding(1, Some(facts(2, "new"))).is_error());
    }

    #[test]
    fn a_finding_is_one_line_and_only_what_stops_a_worker_makes_the_exit_code_1() {
        let warning = CheckFinding::warning("elasticsearch", "first\nsecond");
        assert_eq!(warning.to_string(), "warning      elasticsearch: first second");
        assert_eq!(exit_code(&[CheckFinding::ok("a", "b"), warning]), 0);
        assert_eq!(exit_code(&[CheckFinding::ok("a", "b"), CheckFinding::unreachable("c", "d")]), 1);
        assert_eq!(exit_code(&[CheckFinding::error("c", "d")]), 1);
    }

    #[test]
    fn the_configuration_says_what_to_check() {
        let mut config = Config::default();
        config.dead_letter.topic = Some("documents-bad".to_owned());
        assert_eq!(CheckTarget::new(&config, &map()).unwrap().dead_letter_topic, None, "the policy is stop");
        config.dead_letter.policy = DeadLetterPolicy::Topic;
        let target = CheckTarget::new(&config, &map()).unwrap();
        assert_eq!(target.dead_letter_topic.as_deref(), Some("documents-bad"));
        assert_eq!(target.kafka.get("bootstrap.servers"), Some("127.0.0.1:9092"));
        assert_eq!(target.indices.len(), 4);
        assert_eq!(target.increments_topic, None, "nothing is counted");
        let jobs = "jobs = [{ name = \"a\", kind = \"refresh\" }, { name = \"b\", kind = \"topic\", topic = \"changes\" }]";
        config.distribution = toml::from_str(jobs).unwrap();
        let target = CheckTarget::new(&config, &map()).unwrap();
        assert_eq!(target.job_topics, [("b".to_owned(), "changes".to_owned())]);
        config.tally.geoshard = true;
        let counted = CheckTarget::new(&config, &map()).unwrap();
        assert_eq!(counted.increments_topic.as_deref(), Some("documents-increments"));
        config.geoshards.index_template = Some("no/such.json".into());
        assert!(CheckTarget::new(&config, &map()).is_err());
    }
}
