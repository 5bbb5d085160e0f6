//! The keys there are, as one flat list of dotted paths, and the nearest of them to a key that does not exist.
//!
//! The list comes from the types: a configuration in which every optional key is set, written out and flattened. Every
//! key is `section.key`, but for librdkafka's own settings, `kafka.properties.<setting>`, the facets, `tally.facets.<name>`,
//! and the headers for a source, `source.headers.<name>`, which may be anything.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use toml::{Table, Value};

use super::kafka::SaslMechanism;
use super::secret::Secret;
use super::source::SourceKind;
use super::types::{Config, OnMissing};

/// Tables with librdkafka's keys.
pub(super) const LIBRDKAFKA: [&str; 2] = ["kafka.properties", "kafka.producer_properties"];

/// All tables with free keys: [`LIBRDKAFKA`], and the names of facets and of headers.
pub(super) const FREE: [&str; 4] = [LIBRDKAFKA[0], LIBRDKAFKA[1], "tally.facets", "source.headers"];

/// A key that is a path, or a table with these keys.
const PAIR: (&str, [&str; 2]) = ("documents.location", ["lat", "lon"]);

/// Keys of which each takes the other's place.
const ALTERNATIVES: [&str; 2] = ["elasticsearch.urls", "elasticsearch.cloud_id"];

/// Keys that a file must set, or their [`alternative`].
pub(super) const REQUIRED: [&str; 3] = ["kafka.brokers", "kafka.topic", "elasticsearch.urls"];

/// Keys whose value may be in a file named by `<key>_file`.
pub(super) const SECRETS: [&str; 10] = [
    "kafka.sasl_password",
    "kafka.oauth_client_secret",
    "elasticsearch.password",
    "elasticsearch.api_key",
    "source.password",
    "source.bearer_token",
    "database.password",
    "campaigns.bearer_token",
    "schema_registry.password",
    "schema_registry.bearer_token",
];

/// All keys, each with a value of the type it is written in.
pub(super) struct Keys(BTreeMap<String, Value>);

impl Keys {
    pub(super) fn new() -> Self {
        // Types that a test serializes cannot fail here.
        let table = Table::try_from(with_every_key()).unwrap_or_default();
        let mut keys = BTreeMap::new();
        for (section, value) in table {
            let Value::Table(section_keys) = value else { continue };
            keys.extend(section_keys.into_iter().map(|(key, value)| (format!("{section}.{key}"), value)));
        }
        keys.retain(|key, _| !FREE.contains(&key.as_str()));
        Self(keys)
    }

    /// A value of the type that `key` is written in; `None` for an unknown key.
    pub(super) fn example(&self, key: &str) -> Option<&Value> {
        const ANY_TEXT: &Value = &Value::String(String::new());
        if free_setting(key).is_some() || of_pair(key).is_some() { Some(ANY_TEXT) } else { self.0.get(key) }
    }

    /// Whether `name` is a section of the file.
    pub(super) fn is_section(&self, name: &str) -> bool {
        FREE.contains(&name) || self.0.keys().any(|key| split(key).0 == name)
    }

    /// All keys, ordered.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The known key that was most likely meant by an unknown one: a slip of the pen, or the right name in the wrong
    /// section. `None` if nothing is near.
    pub(super) fn nearest(&self, unknown: &str) -> Option<&str> {
        const WRONG_SECTION: usize = 2;
        let (section, name) = split(unknown);
        let whole = |known: &str| strsim::damerau_levenshtein(known, unknown);
        let cost = |known: &str| {
            let (known_section, known_name) = split(known);
            let by_name = strsim::damerau_levenshtein(known_name, name);
            whole(known).min(by_name + if known_section == section { 0 } else { WRONG_SECTION })
        };
        self.0
            .keys()
            .map(|known| (cost(known), whole(known), known.as_str()))
            .min()
            .filter(|(cost, ..)| *cost <= 2.max(name.len() / 3))
            .map(|(.., known)| known)
    }

    /// The names of a section's keys.
    pub(super) fn of_section(&self, section: &str) -> Vec<&str> {
        self.0.keys().map(|key| split(key)).filter(|(own, _)| *own == section).map(|(_, name)| name).collect()
    }
}

/// Section and name of a key. The section of `topic` alone is empty.
pub(super) fn split(key: &str) -> (&str, &str) {
    key.split_once('.').unwrap_or(("", key))
}

/// Table and name of a free setting: `kafka.properties` and `fetch.min.bytes`.
pub(super) fn free_setting(key: &str) -> Option<(&'static str, &str)> {
    FREE.iter().find_map(|table| Some((*table, key.strip_prefix(table)?.strip_prefix('.')?)))
}

/// The key and the name in its table of `documents.location.lat`: a part of a key that may also be one text.
pub(super) fn of_pair(key: &str) -> Option<(&'static str, &'static str)> {
    let (whole, parts) = PAIR;
    let name = key.strip_prefix(whole)?.strip_prefix('.')?;
    parts.into_iter().find(|part| *part == name).map(|part| (whole, part))
}

/// The key that may be given in place of `key`.
pub(super) fn alternative(key: &str) -> Option<&'static str> {
    let place = ALTERNATIVES.iter().position(|one| *one == key)?;
    Some(ALTERNATIVES[1 - place])
}

/// Keys that a value for `key` replaces: the parts of a pair or the whole, whichever it is not.
pub(super) fn other_forms(key: &str) -> Vec<String> {
    let (whole, parts) = PAIR;
    if key == whole {
        return parts.iter().map(|part| format!("{whole}.{part}")).collect();
    }
    of_pair(key).map(|(whole, _)| whole.to_owned()).into_iter().collect()
}

/// A configuration that sets every optional key. A test checks that none is missing.
fn with_every_key() -> Config {
    let mut config = Config::default();
    let (text, path, secret) = (String::new, || Some("file".into()), || Some(Secret::new("")));
    config.kafka.sasl_mechanism = Some(SaslMechanism::Plain);
    config.kafka.sasl_username = Some(text());
    config.kafka.sasl_password = secret();
    config.kafka.sasl_password_file = path();
    config.kafka.oauth_token_url = "http://host".parse().ok();
    config.kafka.oauth_client_id = Some(text());
    config.kafka.oauth_client_secret = secret();
    config.kafka.oauth_client_secret_file = path();
    config.kafka.oauth_scope = Some(text());
    config.kafka.oauth_ca_file = path();
    config.kafka.aws_region = Some(text());
    config.kafka.ssl_ca_file = path();
    config.elasticsearch.cloud_id = "name:aCRl".parse().ok();
    config.elasticsearch.username = Some(text());
    config.elasticsearch.password = secret();
    config.elasticsearch.password_file = path();
    config.elasticsearch.api_key = secret();
    config.elasticsearch.api_key_file = path();
    config.elasticsearch.aws_region = Some(text());
    config.elasticsearch.ca_file = path();
    config.elasticsearch.client_cert_file = path();
    config.elasticsearch.client_key_file = path();
    config.elasticsearch.max_operations_per_second = Some(NonZeroU32::MIN);
    config.documents.point = Some(text());
    config.documents.on_missing = Some(OnMissing::Drop);
    config.geoshards.index_template = path();
    config.source.kind = Some(SourceKind::Http);
    config.source.url = "http://host/{id}".parse().ok();
    config.source.username = Some(text());
    config.source.password = secret();
    config.source.password_file = path();
    config.source.bearer_token = secret();
    config.source.bearer_token_file = path();
    config.source.ca_file = path();
    config.source.query = Some(text());
    config.source.probe_id = Some(text());
    config.schema_registry.username = Some(text());
    config.schema_registry.password = secret();
    config.schema_registry.password_file = path();
    config.schema_registry.bearer_token = secret();
    config.schema_registry.bearer_token_file = path();
    config.schema_registry.ca_file = path();
    config.dead_letter.topic = Some(text());
    config.distribution.memcached = Some(text());
    config.tally.topic = Some(text());
    config.database.password = secret();
    config.database.password_file = path();
    config.campaigns.bearer_token = secret();
    config.campaigns.bearer_token_file = path();
    config.database.ca_file = path();
    config.collector.group_id = Some(text());
    config.collector.notify_topic = Some(text());
    config.collector.tls_certificate = path();
    config.collector.tls_key = path();
    config.collector.tls_client_ca_file = path();
    config.route.load_file = path();
    config.route.hedge_after = Some(std::time::Duration::ZERO);
    config.route.tls_certificate = path();
    config.route.tls_key = path();
    config.route.tls_client_ca_file = path();
    config.placements.replicas = Some(0);
    config.placements.refresh_interval = Some(std::time::Duration::ZERO);
    config.audit.interval = Some(std::time::Duration::ZERO);
    config.audit.temp_dir = path();
    config.reload.interval = Some(std::time::Duration::ZERO);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_holds_exactly_the_keys_that_the_types_take() {
        // serde names all fields of a type when it refuses one.
        let fields = |toml: &str| {
            let error = toml::from_str::<Config>(toml).unwrap_err();
            let (_, expected) = error.message().split_once("expected ").unwrap().to_owned();
            let names = expected.split('`').skip(1).step_by(2);
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        let mut from_types: Vec<String> = Vec::new();
        for section in fields("-=1") {
            from_types
                .extend(fields(&format!("{section}.-=1")).into_iter().map(|key| format!("{section}.{key}")));
        }
        from_types.retain(|key| !FREE.contains(&key.as_str()));
        from_types.sort();
        assert_eq!(Keys::new().iter().collect::<Vec<_>>(), from_types);
        assert!(from_types.len() > 50, "{}", from_types.len());
    }

    #[test]
    fn the_nearest_key_is_a_slip_away_or_in_another_section() {
        let keys = Keys::new();
        for (unknown, nearest) in [
            ("kafka.topik", Some("kafka.topic")),
            ("kafak.topic", Some("kafka.topic")),
            ("topic", Some("kafka.topic")),
            ("documents.epoch", Some("positions.epoch")),
            ("batch.max_document", Some("batch.max_documents")),
            ("elasticsearch.request_time_out", Some("elasticsearch.request_timeout")),
            ("memory.totals", Some("memory.total")),
            ("kafka.colour_of_the_sky", None),
        ] {
            assert_eq!(keys.nearest(unknown), nearest, "{unknown}");
        }
    }
}
