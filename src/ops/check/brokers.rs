//! Checks the brokers and their topics.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

use super::{CheckFinding, CheckTarget, increments};
use crate::io::kafka::login::NoToken;
use crate::io::kafka::{TopicFactsError, TopicFactsFound, client_config, topic_facts};
use crate::support::config::Properties;

const BROKERS: &str = "kafka brokers";

/// After each of these the client's own errors are read: a wrong password is known long before the time is up.
const SLICE: Duration = Duration::from_secs(2);

/// How long the client's queue of errors is read.
const SERVE: Duration = Duration::from_millis(100);

/// So many partitions the sticky assignor of librdkafka was seen to assign within a session (docs/reliability.md).
const MAX_STICKY_PARTITIONS: i32 = 2_000;

/// Results of the brokers' checks.
pub(super) struct KafkaSide {
    pub(super) findings: Vec<CheckFinding>,
    /// The topic of document writes, if it could be described.
    pub(super) topic: Option<TopicFactsFound>,
}

impl KafkaSide {
    /// A result without further checks.
    fn ends_with(finding: CheckFinding) -> Self {
        Self { findings: vec![finding], topic: None }
    }
}

/// Checks both topics on a blocking thread.
pub(super) async fn look(target: &CheckTarget) -> KafkaSide {
    let target = target.clone();
    let asked = tokio::task::spawn_blocking(move || look_blocking(&target)).await;
    asked.unwrap_or_else(|error| {
        KafkaSide::ends_with(CheckFinding::error(BROKERS, format_args!("the check itself failed: {error}")))
    })
}

fn look_blocking(target: &CheckTarget) -> KafkaSide {
    let addresses = target.kafka.get("bootstrap.servers").unwrap_or_default().to_owned();
    let mut config = client_config(&target.kafka);
    // A check must not bring a misspelt topic into being.
    config.set("allow.auto.create.topics", "false");
    // Statistics are not used here, and each would be a log line of thousands of characters.
    config.set("statistics.interval.ms", "0");
    let client: BaseConsumer<Complaints> = match config.create_with_context(Complaints::default()) {
        Ok(client) => client,
        Err(error) => {
            let message = format_args!(
                "librdkafka refuses its settings: {error}; check [kafka] and [kafka.properties]"
            );
            return KafkaSide::ends_with(CheckFinding::error(BROKERS, message));
        }
    };

    let answer = patiently(&client, &target.topic, target.timeout);
    match &answer {
        Err(TopicFactsError::Unreachable(words)) => {
            let message = format_args!(
                "no answer from {addresses} within {:?}: {words}; {}",
                target.timeout,
                advice_on_silence(words)
            );
            return KafkaSide::ends_with(CheckFinding::unreachable(BROKERS, message));
        }
        // Refused authentication applies to every topic.
        Err(TopicFactsError::NotLetIn(words)) => {
            let advice = advice_on_being_let_in(words);
            let message = format_args!("{addresses} refused this client: {words}; {advice}");
            return KafkaSide::ends_with(CheckFinding::error(BROKERS, message));
        }
        Err(TopicFactsError::NoToken(why)) => return KafkaSide::ends_with(no_token(why)),
        _ => {}
    }
    let mut findings = vec![CheckFinding::ok(BROKERS, format_args!("{addresses} answered"))];
    findings.push(topic_finding(
        "kafka topic",
        &target.topic,
        &answer,
        "with as many partitions as it will ever need",
    ));
    if let Ok(found) = &answer {
        findings.extend(assignor(&target.kafka, found.partitions));
    }
    findings.push(match &target.dead_letter_topic {
        Some(topic) => {
            let answer = patiently(&client, topic, target.timeout);
            topic_finding("dead-letter topic", topic, &answer, "or set dead_letter.policy to stop")
        }
        None => {
            CheckFinding::ok("dead letters", "no topic: a record that cannot be applied stops its partition")
        }
    });
    for (job, topic) in &target.job_topics {
        let answer = patiently(&client, topic, target.timeout);
        let about = format!("topic of the job {job}");
        findings.push(topic_finding(&about, topic, &answer, "or remove the job from distribution.jobs"));
    }
    if let Some(topic) = &target.increments_topic {
        let answer = patiently(&client, topic, target.timeout);
        findings.push(topic_finding("increments topic", topic, &answer, "or count nothing: [tally]"));
        if answer.is_ok() {
            findings.push(increments::look(&config, topic, target.timeout));
        }
    }
    KafkaSide { findings, topic: answer.ok() }
}

/// A worker waits for a token endpoint that is down, as for brokers, and not for one that refuses it.
fn no_token(why: &NoToken) -> CheckFinding {
    match why {
        NoToken::Refused(reason) => CheckFinding::error(BROKERS, reason),
        NoToken::Unavailable(reason) => CheckFinding::unreachable(BROKERS, reason),
    }
}

/// A warning if the group's members would assign partitions for longer than a session.
fn assignor(kafka: &Properties, partitions: i32) -> Option<CheckFinding> {
    let is_sticky = kafka.get("partition.assignment.strategy") == Some("cooperative-sticky");
    (is_sticky && partitions > MAX_STICKY_PARTITIONS).then(|| {
        CheckFinding::warning(
            "assignment",
            format_args!(
                "librdkafka may need longer than a session to assign {partitions} partitions by \"cooperative-sticky\", and workers \
                 lose them meanwhile: stop all workers, then set kafka.partition_assignment_strategy = \"range\""
            ),
        )
    })
}

/// Advice when nothing answered as a broker; `words` are librdkafka's error.
fn advice_on_silence(words: &str) -> &'static str {
    // "HTTP" as the length of an answer: a web server refuses the first request in its own protocol.
    const HTTP: &str = "1213486160";
    if words.contains(HTTP) {
        "an HTTP server answers there, not a Kafka broker: kafka.brokers needs the brokers' own port"
    } else {
        "check kafka.brokers"
    }
}

/// Advice when TLS or authentication failed; `words` are librdkafka's error.
fn advice_on_being_let_in(words: &str) -> &'static str {
    // OpenSSL's words for an authority that is not known, and for a certificate of another name.
    if words.contains("certificate") {
        "kafka.ssl_ca_file must contain the CA of the brokers' certificates, and kafka.brokers the names (or addresses) in them"
    } else {
        "check kafka.security_protocol, sasl_* and ssl_*"
    }
}

/// The finding about a topic; `hint` ends the advice to create it.
fn topic_finding(
    about: &str,
    topic: &str,
    answer: &Result<TopicFactsFound, TopicFactsError>,
    hint: &str,
) -> CheckFinding {
    match answer {
        Ok(TopicFactsFound { topic_id: Some(id), partitions }) => {
            CheckFinding::ok(about, format_args!("{topic} has {partitions} partitions, id {id}"))
        }
        Ok(TopicFactsFound { topic_id: None, partitions }) => CheckFinding::ok(
            about,
            format_args!(
                "{topic} has {partitions} partitions; these brokers have no topic ids, so a topic created anew is not noticed"
            ),
        ),
        Err(TopicFactsError::Missing) => {
            CheckFinding::error(about, format_args!("{topic} does not exist: create it, {hint}"))
        }
        Err(error @ TopicFactsError::Denied(_)) => {
            CheckFinding::error(about, format_args!("{topic}: {error}: grant this user Describe on it"))
        }
        Err(error @ TopicFactsError::Unreachable(_)) => {
            CheckFinding::unreachable(about, format_args!("{topic}: {error}"))
        }
        Err(TopicFactsError::NoToken(why)) => no_token(why),
        Err(error @ (TopicFactsError::NotLetIn(_) | TopicFactsError::Other(_))) => {
            CheckFinding::error(about, format_args!("could not describe {topic}: {error}"))
        }
    }
}

/// Retries until a response, the timeout, or a permanent error of the client.
fn patiently(
    client: &BaseConsumer<Complaints>,
    topic: &str,
    timeout: Duration,
) -> Result<TopicFactsFound, TopicFactsError> {
    let begin = Instant::now();
    loop {
        let left = timeout.saturating_sub(begin.elapsed());
        let answer = topic_facts(client.client(), topic, left.min(SLICE));
        let Err(TopicFactsError::Unreachable(words)) = answer else { return answer };
        // Serves the client's queue of errors; there is no subscription, so no record can come. For a bounded time, since
        // without brokers there is an error every 50 ms; not for no time at all, since the first log line would end it.
        let served = Instant::now();
        while served.elapsed() < SERVE && client.poll(SERVE).is_some() {}
        match client.context().worst(words) {
            TopicFactsError::Unreachable(_) if begin.elapsed() < timeout => {}
            error => return Err(error),
        }
    }
}

/// Keeps the client's error events: a request itself reports only its timeout.
#[derive(Default)]
struct Complaints(Mutex<Reported>);

#[derive(Default)]
struct Reported {
    /// The first time that the brokers did not let the client in.
    refusal: Option<TopicFactsError>,
    /// The last error that is more specific than "all brokers down".
    last: Option<String>,
}

impl Complaints {
    fn reported(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why there was no answer: a refusal if one was reported, else the last thing that was, else `words`.
    fn worst(&self, words: String) -> TopicFactsError {
        let reported = self.reported();
        let last = || TopicFactsError::Unreachable(reported.last.clone().unwrap_or(words));
        reported.refusal.clone().unwrap_or_else(last)
    }
}

impl ClientContext for Complaints {
    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
        let mut reported = self.reported();
        match TopicFactsError::from_code(code, reason) {
            refusal @ TopicFactsError::NotLetIn(_) => drop(reported.refusal.get_or_insert(refusal)),
            _ if code == RDKafkaErrorCode::AllBrokersDown => {}
            _ => reported.last = Some(reason.to_owned()),
        }
    }

    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(facility, message, "librdkafka");
    }
}

impl ConsumerContext for Complaints {}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::super::CheckLevel;
    use super::super::tests::target;
    use super::*;
    use crate::support::config::Config;

    fn target_at(brokers: &str) -> CheckTarget {
        let mut config = Config::default();
        config.kafka.brokers = vec![brokers.to_owned()];
        CheckTarget { kafka: config.consumer_properties(), timeout: Duration::from_millis(600), ..target() }
    }

    fn levels(side: &KafkaSide) -> Vec<(&str, CheckLevel)> {
        side.findings.iter().map(|finding| (finding.about.as_str(), finding.level)).collect()
    }

    #[test]
    fn a_worker_waits_for_a_token_endpoint_that_is_down() {
        let waits = |why: NoToken| no_token(&why).is_unreachable();
        assert!(waits(NoToken::Unavailable("503".into())) && !waits(NoToken::Refused("401".into())));
    }

    #[test]
    fn more_partitions_than_the_sticky_assignor_takes_are_a_warning() {
        use crate::support::config::{AssignmentStrategy, Config, GroupProtocol};
        let mut config = Config::default();
        let advice = |config: &Config, partitions| {
            assignor(&config.consumer_properties(), partitions).map(|finding| finding.level)
        };
        assert_eq!(advice(&config, MAX_STICKY_PARTITIONS), None);
        assert_eq!(advice(&config, MAX_STICKY_PARTITIONS + 1), Some(CheckLevel::Warning));
        config.kafka.partition_assignment_strategy = AssignmentStrategy::Range;
        assert_eq!(advice(&config, 10_000), None);
        config.kafka.group_protocol = GroupProtocol::Consumer;
        assert_eq!(advice(&config, 10_000), None);
    }

    #[tokio::test]
    async fn missing_topics_differ_from_existing_ones() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("documents", 3, 1).unwrap();
        let target = CheckTarget {
            dead_letter_topic: Some("absent".to_owned()),
            timeout: Duration::from_secs(10),
            ..target_at(&cluster.bootstrap_servers())
        };
        let side = look(&target).await;
        assert_eq!(
            levels(&side),
            [
                (BROKERS, CheckLevel::Ok),
                ("kafka topic", CheckLevel::Ok),
                ("dead-letter topic", CheckLevel::Error)
            ]
        );
        assert_eq!(side.topic.unwrap().partitions, 3);

        let target = CheckTarget { topic: "absent".to_owned(), dead_letter_topic: None, ..target };
        let side = look(&target).await;
        assert_eq!(
            levels(&side),
            [(BROKERS, CheckLevel::Ok), ("kafka topic", CheckLevel::Error), ("dead letters", CheckLevel::Ok)]
        );
        assert_eq!(side.topic, None);

        let of_a_job = |job: &str, topic: &str| (job.to_owned(), topic.to_owned());
        let job_topics = vec![of_a_job("announce", "documents"), of_a_job("tell", "absent")];
        let side = look(&CheckTarget { job_topics, ..target }).await;
        let jobs: Vec<_> = levels(&side).split_off(3);
        assert_eq!(
            jobs,
            [("topic of the job announce", CheckLevel::Ok), ("topic of the job tell", CheckLevel::Error)]
        );
        assert!(side.findings[4].message.contains("create it, or remove the job"), "{}", side.findings[4]);
    }

    #[tokio::test]
    async fn brokers_that_do_not_answer_are_unreachable_and_the_cause_is_said() {
        let side = look(&target_at("127.0.0.1:9")).await;
        assert_eq!(levels(&side), [(BROKERS, CheckLevel::Unreachable)]);
        assert!(side.findings[0].message.contains("refused"), "{}", side.findings[0]);
    }

    #[tokio::test]
    async fn settings_that_librdkafka_refuses_are_an_error() {
        let mut config = Config::default();
        config.kafka.properties = serde_json::from_str(r#"{"no.such.setting": "1"}"#).unwrap();
        let side = look(&CheckTarget { kafka: config.consumer_properties(), ..target() }).await;
        assert_eq!(levels(&side), [(BROKERS, CheckLevel::Error)]);
        assert!(side.findings[0].message.contains("no.such.setting"), "{}", side.findings[0]);
    }

    #[test]
    fn a_refusal_is_told_before_what_came_after_it() {
        let complaints = Complaints::default();
        assert_eq!(complaints.worst("slow".into()), TopicFactsError::Unreachable("slow".into()));
        let report = |code, reason| complaints.error(KafkaError::Global(code), reason);
        report(RDKafkaErrorCode::BrokerTransportFailure, "connection refused");
        report(RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down");
        assert_eq!(
            complaints.worst("slow".into()),
            TopicFactsError::Unreachable("connection refused".into())
        );
        report(RDKafkaErrorCode::Authentication, "wrong password");
        report(RDKafkaErrorCode::BrokerTransportFailure, "disconnected");
        assert_eq!(complaints.worst("slow".into()), TopicFactsError::NotLetIn("wrong password".into()));
    }
}
