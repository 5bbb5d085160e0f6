//! The whole group: what `geofold status` says, asked for only while somebody views it here.
//!
//! Asking goes to brokers, to Elasticsearch and to the `/status.json` of workers. ⚠ So `/status.json` must neither have the group nor count
//! as viewing it: workers would ask each other without end.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::status::Worker;
use super::viewed::{LastAnswer, Viewed};
use crate::base::clock::{Clock, Instant};
use crate::base::figures::{count, time};
use crate::io::elastic::Elastic;
use crate::ops::group::{EarlierAnswer, GroupReport, PartitionReport, Question, WorkerSeen};
use crate::support::config::Config;
use crate::support::telemetry::events::Numbers;
use crate::support::telemetry::recent::unix_millis;

/// Least time between two questions.
pub const GROUP_INTERVAL: Duration = Duration::from_secs(10);
/// An answer of more intervals ago says nothing of now.
const OLD: u32 = 6;
/// Dead letters counted, of each partition.
const NEWEST_LETTERS: i64 = 1_000;
/// Dead letters are counted again after this time.
const LETTERS_EVERY: Duration = Duration::from_secs(60);

/// Most rows of the page.
const MAX_PARTITIONS: usize = 1_000;
const MAX_FINDINGS: usize = 100;
const MAX_MEMBERS: usize = 256;
const MAX_REASONS: usize = 50;
/// Most characters of a text on the page.
const MAX_TEXT: usize = 600;

/// Asks about the group, and says what is known.
#[derive(Debug)]
pub struct GroupSource {
    worker: Worker,
    clock: Arc<dyn Clock>,
    answers: Arc<Viewed<Arc<GroupReport>>>,
    /// Offsets that are committed every `commit.interval` say nothing of a shorter time.
    pause: Duration,
}

impl GroupSource {
    /// Nothing is known, and nothing asked.
    pub fn new(worker: Worker, clock: Arc<dyn Clock>, commit_interval: Duration) -> Arc<Self> {
        let pause = commit_interval.saturating_add(Duration::from_secs(1));
        Arc::new(Self { worker, answers: Viewed::new(clock.clone()), clock, pause })
    }

    fn interval(&self) -> Duration {
        self.pause.max(GROUP_INTERVAL)
    }

    fn old(&self) -> Duration {
        self.interval().saturating_mul(OLD)
    }

    /// Asks while the group is viewed, until `stop`.
    pub async fn keep_asking(self: Arc<Self>, question: Question, stop: CancellationToken) {
        let earlier = Mutex::new(None);
        self.answers.keep_asking(self.interval(), || self.ask(&question, &earlier), stop).await;
    }

    /// Asks once. The trend is since the question before, unless that was long ago.
    async fn ask(
        &self,
        question: &Question,
        earlier: &Mutex<Option<EarlierAnswer>>,
    ) -> Result<Arc<GroupReport>, String> {
        let known = || earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known().clone().filter(|answer| answer.age() < self.old());
        let (report, answer) = question.ask(before, self.pause).await.map_err(|error| error.to_string())?;
        *known() = Some(answer);
        Ok(Arc::new(report))
    }

    /// Takes an answer, as a test would.
    pub fn take(&self, answer: Result<GroupReport, String>) {
        self.answers.take(answer.map(Arc::new));
    }

    /// All that is known. Counts as viewing it.
    pub fn status(&self) -> GroupStatus {
        let (LastAnswer { last, problem }, now) = (self.answers.look(), self.clock.now());
        GroupStatus {
            time_ms: unix_millis(SystemTime::now()),
            answered_ms: last.as_ref().and_then(|(at, _)| {
                u64::try_from(at.since(Instant::from_start(Duration::ZERO)).as_millis()).ok()
            }),
            age_seconds: last.as_ref().map(|(at, _)| now.since(*at).as_secs_f64()),
            problem,
            report: last.map(|(_, report)| report),
        }
    }

    /// What the page shows. Counts as viewing it.
    pub fn figures(&self) -> GroupFigures {
        GroupFigures::new(&self.worker, &self.status(), self.old())
    }

    /// Whether somebody has viewed it lately.
    #[cfg(test)]
    pub(super) fn is_viewed(&self) -> bool {
        self.answers.is_looked_at()
    }
}

/// The question of a worker whose admin server listens at `bound`.
pub fn question_of_worker(
    config: &Config,
    bound: SocketAddr,
    elastic: Arc<dyn Elastic>,
    stop: CancellationToken,
) -> Question {
    let mut config = config.clone();
    // On loopback this worker alone is asked, also where the system chose the port. Elsewhere no other worker has that port.
    if bound.ip().is_loopback() {
        config.admin.listen = bound;
    }
    Question {
        config,
        elastic,
        workers: Vec::new(),
        newest_letters: NEWEST_LETTERS,
        letters_every: LETTERS_EVERY,
        stop,
    }
}

/// What `/group.json` has.
#[derive(Debug, Clone, Serialize)]
pub struct GroupStatus {
    /// Now, in milliseconds since 1970.
    pub time_ms: u64,
    /// When the last answer came, in milliseconds of boot time.
    pub answered_ms: Option<u64>,
    /// Time since then.
    pub age_seconds: Option<f64>,
    /// Why the last question brought none.
    pub problem: Option<String>,
    /// The last answer.
    pub report: Option<Arc<GroupReport>>,
}

/// What the page shows: of bounded size, whatever the group's.
#[derive(Debug, Clone, Serialize)]
pub struct GroupFigures {
    /// Now, in milliseconds since 1970.
    pub time_ms: u64,
    /// The group.
    pub group: String,
    /// Its topic.
    pub topic: String,
    /// When the last answer came, in milliseconds of boot time.
    pub answered_ms: Option<u64>,
    /// Time since then, in words.
    pub answered: String,
    /// The style of `word`.
    pub state: &'static str,
    /// Whether a person is needed.
    pub word: &'static str,
    /// What needs a person.
    pub findings: Vec<String>,
    /// Offsets that are not committed.
    pub lag: Option<i64>,
    /// Change of the lag per second.
    pub lag_per_second: Option<f64>,
    /// Committed offsets per second.
    pub committed_per_second: Option<f64>,
    /// The time that both are of.
    pub sample_seconds: Option<f64>,
    /// For how long the oldest dirty document has been.
    pub oldest_dirty_seconds: Option<f64>,
    /// Stopped partitions.
    pub stopped: Option<usize>,
    /// All partitions.
    pub partitions_in_all: Option<usize>,
    /// Members of the group.
    pub members_in_all: Option<usize>,
    /// Workers that answered.
    pub workers_reached: Option<usize>,
    /// Dead letters of the last hour among those that were counted.
    pub letters_last_hour: Option<u64>,
    /// Lines about the group.
    pub facts: Vec<FactShown>,
    /// Members.
    pub members: Shown<MemberShown>,
    /// Workers that were asked.
    pub workers: Shown<WorkerShown>,
    /// Dead letters by reason.
    pub letters: Shown<LettersShown>,
    /// Partitions.
    pub partitions: Shown<PartitionShown>,
}

/// The first rows of a table.
#[derive(Debug, Clone, Serialize)]
pub struct Shown<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// How many are left out, in words; empty if none is.
    pub left_out: String,
}

impl<T> Default for Shown<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), left_out: String::new() }
    }
}

impl<T> Shown<T> {
    fn first<U>(all: impl ExactSizeIterator<Item = U>, most: usize, shown: impl FnMut(U) -> T) -> Self {
        let left_out = left_out(all.len().saturating_sub(most));
        Self { rows: all.take(most).map(shown).collect(), left_out }
    }
}

fn left_out(number: usize) -> String {
    match number {
        0 => String::new(),
        number => format!("{} more are left out; /group.json has all", count(number as u64)),
    }
}

/// A line about the group.
#[derive(Debug, Clone, Serialize)]
pub struct FactShown {
    /// What it is about.
    pub name: String,
    /// The line.
    pub text: String,
}

/// A member of the group.
#[derive(Debug, Clone, Serialize)]
pub struct MemberShown {
    /// `kafka.client_id`.
    pub client: String,
    /// Where it connects from.
    pub host: String,
    /// How many partitions it has.
    pub partitions: usize,
    /// Which.
    pub numbers: String,
}

/// A worker that was asked.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerShown {
    /// Where.
    pub address: String,
    /// Its name.
    pub name: String,
    /// `ready` or `not ready`.
    pub ready: &'static str,
    /// How many partitions it has.
    pub partitions: usize,
    /// Why it is not ready.
    pub reasons: String,
}

/// Dead letters of one reason.
#[derive(Debug, Clone, Serialize)]
pub struct LettersShown {
    /// The reason.
    pub reason: String,
    /// Those of the last hour.
    pub last_hour: u64,
    /// All that were counted.
    pub counted: u64,
}

/// A partition.
#[derive(Debug, Clone, Serialize)]
pub struct PartitionShown {
    /// Its number.
    pub partition: i32,
    /// As its worker says.
    pub state: String,
    /// Offsets that are not committed.
    pub lag: i64,
    /// Change of the lag per second.
    pub lag_per_second: f64,
    /// Committed offsets per second.
    pub committed_per_second: f64,
    /// For how long its oldest dirty document has been.
    pub oldest_dirty_seconds: Option<f64>,
    /// Its owner.
    pub owner: String,
    /// Why it is stopped.
    pub reason: String,
}

impl GroupFigures {
    fn new(worker: &Worker, status: &GroupStatus, old: Duration) -> Self {
        let report = status.report.as_deref();
        let is_old = status.age_seconds.is_some_and(|age| age > old.as_secs_f64());
        let findings = report.map(|report| report.findings.as_slice()).unwrap_or_default();
        let (state, word) = match (report, &status.problem) {
            (_, Some(_)) => ("stopped", "no answer"),
            (None, None) => ("unknown", "not known yet"),
            (Some(_), None) if is_old => ("unknown", "asked again"),
            (Some(_), None) if findings.is_empty() => ("running", "nothing needs attention"),
            (Some(_), None) => ("paused", "needs attention"),
        };
        let answered = match status.age_seconds {
            Some(age) => {
                format!("answered {} ago", time(Duration::try_from_secs_f64(age).unwrap_or_default()))
            }
            None => "asked a moment ago, not answered yet".to_owned(),
        };
        let problem =
            status.problem.iter().map(|problem| cut(&format!("the group could not be asked: {problem}")));
        let more = findings.len().saturating_sub(MAX_FINDINGS);
        let more = Some(left_out(more)).filter(|text| !text.is_empty());
        let shown = findings.iter().take(MAX_FINDINGS).map(|finding| cut(finding));
        let letters = report.and_then(|report| report.dead_letters.as_ref());
        Self {
            time_ms: status.time_ms,
            group: worker.group.clone(),
            topic: worker.topic.clone(),
            answered_ms: status.answered_ms,
            answered,
            state,
            word,
            findings: problem.chain(shown).chain(more).collect(),
            lag: report.map(|report| report.lag),
            lag_per_second: report.map(|report| report.lag_per_second),
            committed_per_second: report.map(|report| report.committed_per_second),
            sample_seconds: report.map(|report| report.sample_seconds),
            oldest_dirty_seconds: report.and_then(|report| report.oldest_dirty_seconds),
            stopped: report.map(|report| report.partitions.iter().filter(|one| is_stopped(one)).count()),
            partitions_in_all: report.map(|report| report.partitions.len()),
            members_in_all: report.and_then(|report| Some(report.description.as_ref()?.members.len())),
            workers_reached: report
                .map(|report| report.workers.iter().filter(|worker| worker.error.is_none()).count()),
            letters_last_hour: letters.map(|letters| letters.last_hour),
            facts: report.map(facts).unwrap_or_default(),
            members: report.map(members).unwrap_or_default(),
            workers: report.map(workers).unwrap_or_default(),
            letters: letters
                .map(|letters| by_reason(&letters.by_reason, &letters.last_hour_by_reason))
                .unwrap_or_default(),
            partitions: report.map(partitions).unwrap_or_default(),
        }
    }
}

fn facts(report: &GroupReport) -> Vec<FactShown> {
    let own = [("group", report.described()), ("epoch", report.epoch.to_string())];
    let facts = own.into_iter().chain(report.lines());
    facts.map(|(name, text)| FactShown { name: name.to_owned(), text: cut(&text) }).collect()
}

fn members(report: &GroupReport) -> Shown<MemberShown> {
    let members = report.description.as_ref().map_or(&[][..], |group| &group.members);
    Shown::first(members.iter(), MAX_MEMBERS, |member| MemberShown {
        client: cut(&member.client_id),
        host: cut(&member.host),
        partitions: member.partitions.len(),
        numbers: Numbers::of(&member.partitions).to_string(),
    })
}

fn workers(report: &GroupReport) -> Shown<WorkerShown> {
    Shown::first(report.workers.iter(), MAX_MEMBERS, |worker: &WorkerSeen| {
        let reasons: Vec<String> =
            worker.reasons.iter().take(MAX_REASONS).map(|(part, why)| format!("{part}: {why}")).collect();
        WorkerShown {
            address: cut(&worker.url),
            name: cut(worker.name.as_deref().unwrap_or_default()),
            ready: if worker.ready { "ready" } else { "not ready" },
            partitions: worker.partitions.len(),
            reasons: cut(worker.error.as_ref().unwrap_or(&reasons.join("; "))),
        }
    })
}

/// The most frequent reasons first.
fn by_reason(counted: &BTreeMap<String, u64>, last_hour: &BTreeMap<String, u64>) -> Shown<LettersShown> {
    let mut reasons: Vec<(&String, u64)> = counted.iter().map(|(reason, count)| (reason, *count)).collect();
    reasons.sort_by_key(|(_, count)| Reverse(*count));
    Shown::first(reasons.into_iter(), MAX_REASONS, |(reason, counted)| LettersShown {
        reason: if reason.is_empty() { "not of geofold".to_owned() } else { cut(reason) },
        last_hour: last_hour.get(reason).copied().unwrap_or_default(),
        counted,
    })
}

/// Those with trouble first: stopped ones, then by lag.
fn partitions(report: &GroupReport) -> Shown<PartitionShown> {
    let mut worst_first: Vec<&PartitionReport> = report.partitions.iter().collect();
    worst_first.sort_by_key(|one| (!is_stopped(one), Reverse(one.lag), one.partition));
    Shown::first(worst_first.into_iter(), MAX_PARTITIONS, |one| PartitionShown {
        partition: one.partition,
        state: cut(&one.state),
        lag: one.lag,
        lag_per_second: one.lag_per_second,
        committed_per_second: one.committed_per_second,
        oldest_dirty_seconds: one.oldest_dirty_seconds,
        owner: cut(one.owner.as_deref().unwrap_or("none")),
        reason: cut(one.reason.as_deref().unwrap_or_default()),
    })
}

fn is_stopped(partition: &PartitionReport) -> bool {
    partition.reason.is_some() || partition.state == "stopped"
}

/// What a page has room for: texts of dead letters and of other workers may be of any length.
fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::Ordering;

    use rdkafka::ClientConfig;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    use serde_json::json;

    use super::*;
    use crate::io::elastic::scripted::Scripted;
    use crate::ops::group::{GroupMember, GroupSeen, LettersReport, Offsets};
    use crate::support::telemetry::health::tests::HandClock;
    use crate::testkit::embedded::broker::EmbeddedBroker;

    /// A group whose last partition is stopped, and whose lag is larger the higher the partition.
    pub(in crate::ops::admin) fn report(partitions: i32) -> GroupReport {
        let stopped = partitions - 1;
        let reason = |number| (number == stopped).then(|| "bad record <b>".to_owned());
        let partition = |number: i32| PartitionReport {
            partition: number,
            owner: Some("geofold on a, process 1".to_owned()),
            state: if number == stopped { "stopped" } else { "running" }.to_owned(),
            reason: reason(number),
            offsets: Offsets {
                begin: 0,
                end: 10_000,
                committed: Some(10_000 - i64::from(number % stopped.max(1))),
            },
            lag: i64::from(number % stopped.max(1)),
            lag_per_second: -12.34,
            committed_per_second: 1234.5,
            oldest_dirty_seconds: Some(4.2),
        };
        let member = GroupMember {
            member_id: "m".to_owned(),
            client_id: "geofold".to_owned(),
            host: "10.0.0.5".to_owned(),
            partitions: (0..partitions).collect(),
        };
        let worker = WorkerSeen {
            url: "http://10.0.0.5:9464".to_owned(),
            name: Some("geofold on a, process 1".to_owned()),
            error: None,
            ready: false,
            reasons: [(format!("partition {stopped}"), "bad record <b>".to_owned())].into(),
            partitions: (0..partitions).map(|number| (number, partition(number).state)).collect(),
            oldest_dirty_seconds: BTreeMap::new(),
        };
        let letters = LettersReport {
            topic: "bad".to_owned(),
            in_topic: 9,
            counted: 8,
            by_reason: [("bad_key".to_owned(), 3), ("no_location".to_owned(), 5)].into(),
            last_hour: 2,
            last_hour_by_reason: [("bad_key".to_owned(), 2)].into(),
            last_hour_has_more: false,
        };
        GroupReport {
            topic: "people".to_owned(),
            group: "geofold".to_owned(),
            description: Some(GroupSeen { state: "Stable".to_owned(), members: vec![member] }),
            group_error: None,
            epoch: 3,
            lag: 120,
            lag_per_second: -12.34,
            committed_per_second: 1234.5,
            sample_seconds: 10.0,
            partitions: (0..partitions).map(partition).collect(),
            maps: None,
            elasticsearch: Some("green".to_owned()),
            workers: vec![worker],
            dead_letters: Some(letters),
            oldest_dirty_seconds: Some(4.2),
            audit: None,
            audit_interval_seconds: None,
            findings: vec![format!("partition {stopped} is stopped: bad record <b>")],
        }
    }

    /// The group, seen by nobody yet.
    pub(in crate::ops::admin) fn source(clock: Arc<HandClock>) -> Arc<GroupSource> {
        let name = |name: &str| name.to_owned();
        let worker = Worker {
            version: "1.2.3",
            topic: name("people<i>"),
            group: name("geofold"),
            prefix: name("people"),
            name: name("n"),
        };
        GroupSource::new(worker, clock, Duration::from_secs(5))
    }

    #[test]
    fn nothing_is_known_before_the_first_answer() {
        let source = source(Arc::default());
        let figures = source.figures();
        assert_eq!((figures.state, figures.word), ("unknown", "not known yet"));
        assert_eq!(figures.answered, "asked a moment ago, not answered yet");
        assert!(figures.findings.is_empty() && figures.lag.is_none() && figures.partitions.rows.is_empty());
        let status = serde_json::to_value(source.status()).unwrap();
        assert_eq!((&status["report"], &status["age_seconds"]), (&json!(null), &json!(null)));
    }

    #[test]
    fn answer_that_grows_old_is_not_taken_for_one_of_now() {
        let clock = Arc::new(HandClock::default());
        let source = source(clock.clone());
        source.take(Ok(GroupReport { findings: Vec::new(), ..report(3) }));
        let word = || (source.figures().state, source.figures().word);
        assert_eq!(word(), ("running", "nothing needs attention"));
        clock.0.store(61, Ordering::Relaxed);
        assert_eq!(word(), ("unknown", "asked again"));
        source.take(Err("no broker answers".to_owned()));
        clock.0.store(125, Ordering::Relaxed);
        let figures = source.figures();
        assert_eq!((figures.state, figures.word), ("stopped", "no answer"));
        assert_eq!(figures.answered, "answered 2 min 5 s ago");
        assert_eq!(figures.findings, ["the group could not be asked: no broker answers"]);
        assert_eq!(figures.lag, Some(120), "the last answer stays");
        assert_eq!(source.status().problem.as_deref(), Some("no broker answers"));
        source.take(Ok(report(3)));
        assert_eq!(word(), ("paused", "needs attention"));
    }

    #[test]
    fn page_of_a_large_group_is_bounded_and_json_has_all() {
        let source = source(Arc::default());
        let mut large = report(10_000);
        large.findings = (0..9_000).map(|n| format!("finding {n}")).collect();
        large.findings[0] = "ä".repeat(2_000);
        large.workers[0].partitions.retain(|number, _| *number < 2);
        large.workers = vec![large.workers[0].clone(); 300];
        let members = &mut large.description.as_mut().unwrap().members;
        members[0].partitions.truncate(2);
        *members = vec![members[0].clone(); 5_000];
        let letters = large.dead_letters.as_mut().unwrap();
        letters.by_reason =
            (0..70_u64).map(|n| (format!("reason {n:02} {}", "x".repeat(9_999)), n)).collect();
        source.take(Ok(large));
        let figures = source.figures();
        let shown: Vec<i32> = figures.partitions.rows.iter().map(|one| one.partition).collect();
        assert_eq!(
            (shown.len(), &shown[..3]),
            (MAX_PARTITIONS, &[9_999, 9_998, 9_997][..]),
            "the worst first"
        );
        assert_eq!(figures.partitions.left_out, "9,000 more are left out; /group.json has all");
        assert_eq!((figures.stopped, figures.partitions_in_all), (Some(1), Some(10_000)));
        assert_eq!(figures.findings.len(), MAX_FINDINGS + 1);
        assert!(figures.findings[MAX_FINDINGS].starts_with("8,900 more"));
        assert_eq!(figures.findings[0].chars().count(), MAX_TEXT + 1);
        assert_eq!((figures.members.rows.len(), figures.workers.rows.len()), (MAX_MEMBERS, MAX_MEMBERS));
        assert_eq!(figures.letters.rows.len(), MAX_REASONS);
        assert_eq!(figures.letters.rows[0].counted, 69);
        assert!(figures.letters.left_out.starts_with("20 more"), "{}", figures.letters.left_out);
        let bytes = serde_json::to_string(&figures).unwrap().len();
        assert!(bytes < 600_000, "{bytes} bytes");
        let status = serde_json::to_value(source.status()).unwrap();
        assert_eq!(status["report"]["partitions"].as_array().unwrap().len(), 10_000);
        assert_eq!(status["report"]["findings"].as_array().unwrap().len(), 9_000);

        source.take(Ok(report(3)));
        assert_eq!(source.figures().partitions.left_out, "");
    }

    #[test]
    fn a_worker_asks_itself_where_it_listens() {
        let listen = |configured: &str, bound: &str| {
            let mut config = Config::default();
            config.admin.listen = configured.parse().unwrap();
            let (elastic, stop) = (Arc::new(Scripted::default()), CancellationToken::new());
            question_of_worker(&config, bound.parse().unwrap(), elastic, stop).config.admin.listen.to_string()
        };
        assert_eq!(listen("127.0.0.1:0", "127.0.0.1:41000"), "127.0.0.1:41000");
        assert_eq!(listen("0.0.0.0:9464", "0.0.0.0:9464"), "0.0.0.0:9464");
        assert_eq!(listen("0.0.0.0:0", "0.0.0.0:41000"), "0.0.0.0:0", "others have other ports");
    }

    #[tokio::test(start_paused = true)]
    async fn group_is_asked_only_while_it_is_viewed() {
        let broker = EmbeddedBroker::start().unwrap();
        broker.create_topic("people", 2).unwrap();
        let producer: BaseProducer =
            ClientConfig::new().set("bootstrap.servers", broker.address()).create().unwrap();
        producer
            .send(BaseRecord::to("people").key("k").payload("{}").partition(1))
            .map_err(|(error, _)| error)
            .unwrap();
        producer.flush(Duration::from_secs(20)).unwrap();
        let mut config = Config::default();
        config.kafka.brokers = vec![broker.address().to_owned()];
        config.kafka.topic = "people".to_owned();
        config.admin.listen = "0.0.0.0:0".parse().unwrap();
        let health = |_: &str, _: Option<&serde_json::Value>| (200, json!({"status": "green"}));
        let elastic = Arc::new(Scripted { admin: Box::new(health), ..Scripted::default() });
        let asked = || {
            let calls = elastic.calls.lock().unwrap();
            calls.iter().filter(|call| *call == "GET /_cluster/health").count()
        };
        let (clock, stop) = (Arc::new(HandClock::default()), CancellationToken::new());
        let source = source(clock.clone());
        let question = question_of_worker(&config, config.admin.listen, elastic.clone(), stop.clone());
        let task = tokio::spawn(source.clone().keep_asking(question, stop.clone()));
        tokio::time::sleep(GROUP_INTERVAL * 10).await;
        assert_eq!(asked(), 0);

        assert!(source.figures().lag.is_none(), "a view does not wait");
        let answered = async {
            while source.status().report.is_none() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        answered.await;
        assert_eq!(asked(), 1);
        let figures = source.figures();
        assert_eq!((figures.lag, figures.partitions_in_all), (Some(1), Some(2)));
        assert_eq!(
            (figures.partitions.rows[0].partition, &*figures.partitions.rows[0].state),
            (1, "not asked")
        );
        tokio::time::sleep(GROUP_INTERVAL * 3).await;
        assert!((3..=4).contains(&asked()), "{}", asked());

        clock.0.store(61, Ordering::Relaxed);
        let before = asked();
        tokio::time::sleep(GROUP_INTERVAL * 10).await;
        assert!(asked() <= before + 1, "nobody looks");
        stop.cancel();
        task.await.unwrap();
    }
}
