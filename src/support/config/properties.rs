//! librdkafka's settings: the ones that geofold's promises depend on, and the free ones from the configuration.
//!
//! geofold commits only what is durable, reads unread topics from the beginning, and produces dead letters that
//! are on every in-sync replica before an offset passes them. Those settings are fixed here; everything else may be set
//! in `[kafka.properties]` (consumer) and `[kafka.producer_properties]`.

use std::collections::{BTreeMap, btree_map};
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Config;
use super::kafka::{
    AssignmentStrategy, GroupProtocol, KafkaConfig, LostRecords, RemoteAssignor, SaslMechanism,
    SecurityProtocol,
};
use super::kafka_login::TokenSource;
use super::secret::REDACTED;

/// librdkafka settings by name. Values of secret settings are shown as `***`; iterate to get the plain ones.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    /// The value of a setting.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The value of a setting for messages: redacted if it may be a secret, empty if it is not set.
    pub fn shown(&self, key: &str) -> &str {
        if is_secret(key) { REDACTED } else { self.get(key).unwrap_or_default() }
    }

    /// All settings, ordered by name, secrets included.
    pub fn iter(&self) -> btree_map::Iter<'_, String, String> {
        self.0.iter()
    }

    fn set(&mut self, key: &str, value: impl Into<String>) {
        self.0.insert(key.to_owned(), value.into());
    }

    /// Takes these over. Where librdkafka has two names for a setting, none stays under the other one.
    fn extend(&mut self, others: &Properties) {
        const ALIASES: [(&str, &str); 2] = [
            ("fetch.message.max.bytes", "max.partition.fetch.bytes"),
            ("compression.codec", "compression.type"),
        ];
        for (name, alias) in ALIASES {
            if others.get(alias).is_some() {
                self.0.remove(name);
            }
        }
        self.0.extend(others.clone());
    }

    /// Names and values, with secrets redacted.
    fn redacted(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), if is_secret(key) { REDACTED } else { value }))
    }
}

/// Whether a librdkafka setting holds a password, a private key or a token.
fn is_secret(key: &str) -> bool {
    const MARKS: [&str; 6] = ["password", "passphrase", "secret", "key.pem", "ssl_key", "oauthbearer.config"];
    MARKS.iter().any(|mark| key.contains(mark))
}

impl<'a> IntoIterator for &'a Properties {
    type Item = (&'a String, &'a String);
    type IntoIter = btree_map::Iter<'a, String, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl IntoIterator for Properties {
    type Item = (String, String);
    type IntoIter = btree_map::IntoIter<String, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.redacted()).finish()
    }
}

impl Serialize for Properties {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.redacted())
    }
}

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = BTreeMap::<String, Value>::deserialize(deserializer)?;
        Ok(Self(values.into_iter().map(|(key, value)| (key, value.0)).collect()))
    }
}

/// A setting's value as text; numbers and booleans are accepted.
struct Value(String);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => Ok(Self(text)),
            toml::Value::Integer(number) => Ok(Self(number.to_string())),
            toml::Value::Float(number) => Ok(Self(number.to_string())),
            toml::Value::Boolean(flag) => Ok(Self(flag.to_string())),
            // Not quoted: it may be a secret.
            _ => Err(serde::de::Error::custom("a librdkafka setting must be a text, a number or a boolean")),
        }
    }
}

/// Why a setting is reserved by geofold.
enum Owner {
    /// This key of geofold's own sets it.
    Key(&'static str),
    /// Fixed, for this reason.
    Fixed(&'static str),
}

use Owner::{Fixed, Key};

const COMMITS: Owner = Fixed("geofold commits an offset only when everything below it is durable");
const PASSWORD: Owner = Key("kafka.sasl_password or kafka.sasl_password_file");
const CA: Owner = Key("kafka.ssl_ca_file");
const CHECKED: Owner =
    Fixed("broker certificates and host names are always verified; for a private CA set kafka.ssl_ca_file");

/// Settings that neither client may be given.
const OWNED_BY_BOTH: &[(&str, Owner)] = &[
    ("bootstrap.servers", Key("kafka.brokers")),
    ("metadata.broker.list", Key("kafka.brokers")),
    ("test.mock.num.brokers", Key("kafka.brokers")),
    ("client.id", Key("kafka.client_id")),
    ("security.protocol", Key("kafka.security_protocol")),
    ("sasl.mechanism", Key("kafka.sasl_mechanism")),
    ("sasl.mechanisms", Key("kafka.sasl_mechanism")),
    ("sasl.username", Key("kafka.sasl_username")),
    ("sasl.password", PASSWORD),
    ("ssl.ca.location", CA),
    ("ssl.ca.pem", CA),
    ("ssl_ca", CA),
    ("enable.ssl.certificate.verification", CHECKED),
    ("ssl.endpoint.identification.algorithm", CHECKED),
    ("enabled_events", Fixed("the client library depends on its events")),
];

/// Settings that the consumer may not be given.
const OWNED_BY_CONSUMER: &[(&str, Owner)] = &[
    ("group.id", Key("kafka.group_id")),
    ("group.protocol", Key("kafka.group_protocol")),
    ("group.protocol.type", Key("kafka.group_protocol")),
    ("group.remote.assignor", Key("kafka.remote_assignor")),
    ("partition.assignment.strategy", Key("kafka.partition_assignment_strategy")),
    ("session.timeout.ms", Key("kafka.session_timeout")),
    ("heartbeat.interval.ms", Key("kafka.heartbeat_interval")),
    ("enable.auto.commit", COMMITS),
    ("auto.commit.enable", COMMITS),
    ("auto.commit.interval.ms", Key("commit.interval")),
    ("enable.auto.offset.store", COMMITS),
    ("offset.store.method", COMMITS),
    ("auto.offset.reset", Key("kafka.lost_records")),
    ("isolation.level", Fixed("writes of an aborted transaction must not reach the index")),
    (
        "enable.partition.eof",
        Fixed("a partition whose last offsets are no records is committed up to its end"),
    ),
];

/// Settings that the producer may not be given.
const OWNED_BY_PRODUCER: &[(&str, Owner)] = &[
    ("acks", Fixed("a dead letter must be on every in-sync replica before its offset passes")),
    (
        "request.required.acks",
        Fixed("a dead letter must be on every in-sync replica before its offset passes"),
    ),
    ("enable.idempotence", Fixed("a dead letter must be there once, and in order")),
    ("partitioner", Key("kafka.partitioner")),
    ("transactional.id", Fixed("dead letters are not produced in transactions")),
    (
        "delivery.report.only.error",
        Fixed("an offset passes when the delivery of its dead letter is reported"),
    ),
];

macro_rules! other_mechanisms {
    () => {
        "use \"PLAIN\", \"SCRAM-SHA-256\", \"SCRAM-SHA-512\", \"OAUTHBEARER\" or \"AWS_MSK_IAM\", or a client certificate \
         (ssl.certificate.location)"
    };
}

/// How to log in to Kafka.
pub(super) const OTHER_MECHANISMS: &str = other_mechanisms!();

/// `rdkafka` without its feature `gssapi`.
pub(super) const NO_KERBEROS: &str = concat!(
    "Kerberos (GSSAPI) is not supported: geofold's librdkafka is built without it; ",
    other_mechanisms!()
);

/// The problem of a key of `[kafka.properties]`; `None` if it is allowed.
pub(super) fn refusal_for_consumer(key: &str) -> Option<String> {
    refusal(key, OWNED_BY_CONSUMER)
}

/// The same for `[kafka.producer_properties]`.
pub(super) fn refusal_for_producer(key: &str) -> Option<String> {
    refusal(key, OWNED_BY_PRODUCER)
}

fn refusal(key: &str, owned: &[(&str, Owner)]) -> Option<String> {
    let owner = owned.iter().chain(OWNED_BY_BOTH).find_map(|(name, owner)| (*name == key).then_some(owner));
    match owner {
        Some(Key(own)) => Some(format!("may not be set here: use {own}")),
        Some(Fixed(reason)) => Some(format!("may not be set: {reason}; remove it")),
        None if key.contains("sasl.oauthbearer") => {
            Some("may not be set here: use kafka.sasl_mechanism and kafka.oauth_token_url".to_owned())
        }
        None if key.starts_with("sasl.kerberos") => Some(format!("may not be set: {NO_KERBEROS}")),
        None if key.starts_with("sasl.") => {
            Some(format!("may not be set: {OTHER_MECHANISMS}, with kafka.sasl_mechanism; remove it"))
        }
        None => None,
    }
}

impl Config {
    /// Every setting of the consumer: free ones first, then those that geofold's promises depend on, which win.
    pub fn consumer_properties(&self) -> Properties {
        let kafka = &self.kafka;
        let mut all = Properties::default();
        // librdkafka fetches ahead of the poll thread: 64 MiB or 100,000 records by default, and each of them takes half a KiB
        // besides; `[memory]` allows less. All partitions share one queue, except that one which is held back has its own.
        all.set("queued.min.messages", "2000");
        all.set("queued.max.messages.kbytes", "1024");
        // Limits of one fetch response, and of one partition in it: 50 MiB and 1 MiB by default, several times that
        // decompressed. A larger batch of records is still delivered.
        all.set("fetch.max.bytes", "2097152");
        all.set("fetch.message.max.bytes", "131072");
        // When librdkafka checks a full queue again, by default after a second. One response fills it, and the poll thread empties it in
        // one or two milliseconds (docs/performance.md, "Fetching").
        all.set("fetch.queue.backoff.ms", "2");
        // A broker gets one fetch at a time. One of partitions without new records alone waits so long, and others that have some wait
        // for it; so does a resumed partition. An idle worker asks each broker that often.
        all.set("fetch.wait.max.ms", "20");
        // The lag gauges live on it.
        all.set("statistics.interval.ms", "5000");
        all.extend(&kafka.properties);
        set_connection(&mut all, kafka);
        all.set("group.id", &kafka.group_id);
        all.set("enable.auto.commit", "false");
        all.set("enable.auto.offset.store", "false");
        // A group without offsets reads from the beginning nevertheless: the worker says so with each assignment.
        let reset = match kafka.lost_records {
            LostRecords::Stop => "error",
            LostRecords::Accept => "earliest",
        };
        all.set("auto.offset.reset", reset);
        all.set("isolation.level", "read_committed");
        all.set("enable.partition.eof", "true");
        match kafka.group_protocol {
            GroupProtocol::Classic => {
                all.set("group.protocol", "classic");
                let strategy = match kafka.partition_assignment_strategy {
                    AssignmentStrategy::CooperativeSticky => "cooperative-sticky",
                    AssignmentStrategy::Range => "range",
                };
                all.set("partition.assignment.strategy", strategy);
                all.set("session.timeout.ms", kafka.session_timeout.as_millis().to_string());
                all.set("heartbeat.interval.ms", kafka.heartbeat_interval.as_millis().to_string());
            }
            // librdkafka refuses strategy, session and heartbeat with this protocol: the broker has them.
            GroupProtocol::Consumer => {
                all.set("group.protocol", "consumer");
                let assignor = match kafka.remote_assignor {
                    RemoteAssignor::Uniform => "uniform",
                    RemoteAssignor::Range => "range",
                };
                all.set("group.remote.assignor", assignor);
            }
        }
        all
    }

    /// Every setting of the dead-letter producer, in the same manner.
    pub fn producer_properties(&self) -> Properties {
        let mut all = Properties::default();
        all.set("compression.codec", "lz4");
        all.set("statistics.interval.ms", "0");
        // A dead letter may be a record that was too large for geofold, plus headers: let the broker decide. librdkafka's own
        // limit (1 MB) would block the partition.
        all.set("message.max.bytes", "100000000");
        all.extend(&self.kafka.producer_properties);
        set_connection(&mut all, &self.kafka);
        all.set("acks", "all");
        all.set("enable.idempotence", "true");
        all.set("partitioner", "murmur2_random");
        all
    }
}

impl Config {
    /// Properties of producers into the topic of documents: keys are partitioned as by the other producers.
    pub fn topic_producer_properties(&self) -> Properties {
        let mut all = self.producer_properties();
        all.set("partitioner", self.kafka.partitioner.of_librdkafka());
        all
    }
}

/// The way to the brokers, the same for both clients.
fn set_connection(all: &mut Properties, kafka: &KafkaConfig) {
    all.set("bootstrap.servers", kafka.brokers.join(","));
    all.set("client.id", &kafka.client_id);
    let protocol = match kafka.security_protocol {
        SecurityProtocol::Plaintext => "plaintext",
        SecurityProtocol::Ssl => "ssl",
        SecurityProtocol::SaslPlaintext => "sasl_plaintext",
        SecurityProtocol::SaslSsl => "sasl_ssl",
    };
    all.set("security.protocol", protocol);
    if kafka.security_protocol.uses_tls() {
        all.set("enable.ssl.certificate.verification", "true");
        all.set("ssl.endpoint.identification.algorithm", "https");
        if let Some(file) = &kafka.ssl_ca_file {
            all.set("ssl.ca.location", file.to_string_lossy());
        }
    }
    if !kafka.security_protocol.uses_sasl() {
        return;
    }
    if let Some(mechanism) = kafka.sasl_mechanism {
        let mechanism = match mechanism {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
            SaslMechanism::OauthBearer | SaslMechanism::AwsMskIam => "OAUTHBEARER",
        };
        all.set("sasl.mechanism", mechanism);
    }
    if let Some(source) = TokenSource::of(kafka) {
        all.set("sasl.oauthbearer.config", source.setting());
    }
    if let Some(username) = &kafka.sasl_username {
        all.set("sasl.username", username);
    }
    if let Some(password) = &kafka.sasl_password {
        all.set("sasl.password", password.expose());
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::consumer::BaseConsumer;
    use rdkafka::producer::{BaseProducer, DefaultProducerContext};

    use super::*;
    use crate::support::config::Secret;

    fn properties(pairs: &[(&str, &str)]) -> Properties {
        Properties(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn librdkafka_takes_the_settings_of_both_protocols_and_of_the_producer() {
        let mut config = Config::default();
        for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
            config.kafka.group_protocol = protocol;
            let client: ClientConfig = config.consumer_properties().into_iter().collect();
            client.create::<BaseConsumer>().unwrap();
        }
        let client: ClientConfig = config.producer_properties().into_iter().collect();
        client.create::<BaseProducer<DefaultProducerContext>>().unwrap();
    }

    #[test]
    fn librdkafka_takes_sasl_plain_in_a_build_without_tls() {
        let mut config = Config::default();
        config.kafka.security_protocol = SecurityProtocol::SaslPlaintext;
        config.kafka.sasl_mechanism = Some(SaslMechanism::Plain);
        config.kafka.sasl_username = Some("geofold".to_owned());
        config.kafka.sasl_password = Some(Secret::new("hunter2"));
        assert_eq!(config.findings(), []);
        let client: ClientConfig = config.consumer_properties().into_iter().collect();
        client.create::<BaseConsumer>().unwrap();
    }

    #[test]
    fn required_settings_override_free_ones_and_defaults() {
        let mut config = Config::default();
        config.kafka.properties = properties(&[
            ("enable.auto.commit", "true"),
            ("queued.min.messages", "7"),
            ("fetch.min.bytes", "2"),
        ]);
        config.kafka.producer_properties = properties(&[("acks", "0"), ("compression.codec", "zstd")]);
        let consumer = config.consumer_properties();
        assert_eq!(consumer.get("enable.auto.commit"), Some("false"));
        assert_eq!(consumer.get("queued.min.messages"), Some("7"));
        assert_eq!(consumer.get("fetch.min.bytes"), Some("2"));
        let producer = config.producer_properties();
        assert_eq!(producer.get("acks"), Some("all"));
        assert_eq!(producer.get("compression.codec"), Some("zstd"));
        config.kafka.properties = properties(&[("max.partition.fetch.bytes", "7")]);
        config.kafka.producer_properties = properties(&[("compression.type", "none")]);
        assert_eq!(config.consumer_properties().get("fetch.message.max.bytes"), None, "it has two names");
        assert_eq!(config.producer_properties().get("compression.codec"), None, "it has two names");
    }

    #[test]
    fn each_protocol_has_only_its_own_settings() {
        let mut config = Config::default();
        let classic = config.consumer_properties();
        assert_eq!(classic.get("session.timeout.ms"), Some("45000"));
        assert_eq!(classic.get("partition.assignment.strategy"), Some("cooperative-sticky"));
        assert_eq!(classic.get("group.remote.assignor"), None);
        config.kafka.group_protocol = GroupProtocol::Consumer;
        let consumer = config.consumer_properties();
        assert_eq!(consumer.get("group.remote.assignor"), Some("uniform"));
        for foreign in ["session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"] {
            assert_eq!(consumer.get(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn every_setting_that_geofold_fixes_is_refused_in_the_free_ones() {
        let mut config = Config::default();
        config.kafka.security_protocol = SecurityProtocol::SaslSsl;
        config.kafka.sasl_mechanism = Some(SaslMechanism::ScramSha512);
        config.kafka.sasl_username = Some("geofold".to_owned());
        config.kafka.sasl_password = Some(Secret::new("hunter2"));
        config.kafka.ssl_ca_file = Some("ca.pem".into());
        let free = [
            "queued.min.messages",
            "queued.max.messages.kbytes",
            "fetch.max.bytes",
            "fetch.message.max.bytes",
            "fetch.queue.backoff.ms",
            "fetch.wait.max.ms",
            "statistics.interval.ms",
            "compression.codec",
            "message.max.bytes",
        ];
        for (key, _) in &config.consumer_properties() {
            assert_eq!(refusal_for_consumer(key).is_none(), free.contains(&key.as_str()), "{key}");
        }
        for (key, _) in &config.producer_properties() {
            assert_eq!(refusal_for_producer(key).is_none(), free.contains(&key.as_str()), "{key}");
        }
    }

    #[test]
    fn the_file_in_the_repository_names_the_default_of_each_free_setting() {
        let file = include_str!("../../../config/geofold.toml");
        let all = Config::default().consumer_properties();
        let free: Vec<_> = all.iter().filter(|(key, _)| refusal_for_consumer(key).is_none()).collect();
        assert_eq!(free.len(), 7);
        for (key, value) in free {
            let setting = format!("{key} = {value}");
            let is_whole = |(_, rest): (&str, &str)| !rest.starts_with(|next: char| next.is_ascii_digit());
            assert!(file.split_once(&setting).is_some_and(is_whole), "{setting}");
        }
    }

    #[test]
    fn a_refusal_names_the_key_to_use_instead_or_the_reason() {
        assert!(refusal_for_consumer("group.id").unwrap().contains("kafka.group_id"));
        assert!(refusal_for_consumer("enable.auto.commit").unwrap().contains("durable"));
        assert!(refusal_for_consumer("sasl.kerberos.keytab").unwrap().contains("Kerberos"));
        assert!(refusal_for_consumer("sasl.login").unwrap().contains("SCRAM"));
        for key in ["sasl.oauthbearer.method", "enable.sasl.oauthbearer.unsecure.jwt"] {
            assert!(refusal_for_producer(key).unwrap().contains("kafka.oauth_token_url"), "{key}");
        }
        assert!(refusal_for_producer("bootstrap.servers").unwrap().contains("kafka.brokers"));
        assert_eq!(refusal_for_consumer("ssl.key.password"), None, "needed for client certificates");
        assert_eq!(refusal_for_producer("linger.ms"), None);
    }

    /// When this fails, it can be offered: `NO_KERBEROS`.
    #[test]
    fn librdkafka_has_no_kerberos() {
        let settings = [
            ("security.protocol", "sasl_plaintext"),
            ("bootstrap.servers", "127.0.0.1:1"),
            ("sasl.mechanism", "GSSAPI"),
        ];
        let client: ClientConfig =
            settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let error = client.create::<BaseConsumer>().err().unwrap().to_string();
        assert!(error.contains("Unsupported") || error.contains("No provider"), "{error}");
    }

    #[test]
    fn no_setting_leaves_certificates_or_host_names_unchecked() {
        let unchecked = [
            ("enable.ssl.certificate.verification", "false"),
            ("ssl.endpoint.identification.algorithm", "none"),
        ];
        let mut config = Config::default();
        config.kafka.security_protocol = SecurityProtocol::Ssl;
        config.kafka.properties = properties(&unchecked);
        config.kafka.producer_properties = properties(&unchecked);
        let errors = config.findings().into_iter().filter(crate::support::config::ConfigFinding::is_error);
        let keys: Vec<String> = errors.map(|finding| finding.key).collect();
        for (key, _) in unchecked {
            for section in ["kafka.properties", "kafka.producer_properties"] {
                assert!(keys.contains(&format!("{section}.{key}")), "{keys:?}");
            }
        }
        for all in [config.consumer_properties(), config.producer_properties()] {
            assert_eq!(all.get("enable.ssl.certificate.verification"), Some("true"));
            assert_eq!(all.get("ssl.endpoint.identification.algorithm"), Some("https"));
        }
    }

    #[test]
    fn secret_settings_are_given_to_librdkafka_but_not_shown() {
        let mut config = Config::default();
        config.kafka.security_protocol = SecurityProtocol::SaslPlaintext;
        config.kafka.sasl_password = Some(Secret::new("hunter2"));
        config.kafka.properties =
            properties(&[("ssl.key.pem", "hunter2"), ("ssl.keystore.password", "hunter2")]);
        let all = config.consumer_properties();
        assert_eq!(all.get("sasl.password"), Some("hunter2"));
        let shown = format!("{all:?} {config:?} {}", toml::to_string(&all).unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
