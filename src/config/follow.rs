//! What a running worker follows when its configuration is read again, and what else has changed.

use std::collections::BTreeMap;

use toml::Value;

use super::types::Config;

/// The keys that a running worker follows. The others wait for a restart: they say what the worker is (its topic, its
/// indices, how positions are made), or others rely on them (`batch.deadline`: every worker of the group counts on it).
pub const FOLLOWED: [&str; 15] = [
    "audit.rate",
    "batch.linger",
    "batch.max_bytes",
    "batch.max_dirty_age",
    "batch.max_documents",
    "elasticsearch.max_in_flight",
    "elasticsearch.request_max_bytes",
    "elasticsearch.request_max_operations",
    "log.filter",
    "memory.per_partition",
    "memory.total",
    "reload.watch",
    "source.batch",
    "source.max_bytes",
    "source.max_in_flight",
];

impl Config {
    /// This configuration with what is followed as it is in `read`.
    pub fn following(&self, read: &Self) -> Self {
        let mut next = self.clone();
        next.audit.rate = read.audit.rate;
        next.batch.linger = read.batch.linger;
        next.batch.max_bytes = read.batch.max_bytes;
        next.batch.max_dirty_age = read.batch.max_dirty_age;
        next.batch.max_documents = read.batch.max_documents;
        next.elasticsearch.max_in_flight = read.elasticsearch.max_in_flight;
        next.elasticsearch.request_max_bytes = read.elasticsearch.request_max_bytes;
        next.elasticsearch.request_max_operations = read.elasticsearch.request_max_operations;
        next.log.filter.clone_from(&read.log.filter);
        next.memory.per_partition = read.memory.per_partition;
        next.memory.total = read.memory.total;
        next.reload.watch = read.reload.watch;
        next.source.batch = read.source.batch;
        next.source.max_bytes = read.source.max_bytes;
        next.source.max_in_flight = read.source.max_in_flight;
        next
    }

    /// The keys whose values differ in `other`, as `section.key`, in order. Secrets that differ are not seen: they look the
    /// same.
    pub fn differs_in(&self, other: &Self) -> Vec<String> {
        let (mine, others) = (values(self), values(other));
        let all = mine.keys().chain(others.keys().filter(|key| !mine.contains_key(*key)));
        let mut differs: Vec<String> =
            all.filter(|key| mine.get(*key) != others.get(*key)).cloned().collect();
        differs.sort_unstable();
        differs
    }

    /// What is followed, with the values in force. A key without a value is left out.
    pub fn followed(&self) -> BTreeMap<String, Value> {
        let mut values = values(self);
        values.retain(|key, _| FOLLOWED.contains(&key.as_str()));
        values
    }
}

/// Each key with its value. Secrets are `***`.
fn values(config: &Config) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    // Types that a test serializes can not fail here.
    if let Ok(Value::Table(sections)) = Value::try_from(config) {
        for (section, value) in sections {
            flatten(section, value, &mut values);
        }
    }
    values
}

fn flatten(path: String, value: Value, values: &mut BTreeMap<String, Value>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                flatten(format!("{path}.{key}"), value, values);
            }
        }
        value => drop(values.insert(path, value)),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::config::ByteSize;

    /// Other than the defaults in everything that is followed, and in some of what is not.
    fn other() -> Config {
        let mut other = Config::default();
        other.audit.rate = NonZeroU32::MIN;
        other.batch.linger = Duration::from_secs(1);
        other.batch.max_bytes = ByteSize::mib(1);
        other.batch.max_dirty_age = Duration::from_secs(7);
        other.batch.max_documents = 7;
        other.elasticsearch.max_in_flight = 7;
        other.elasticsearch.request_max_bytes = ByteSize::mib(7);
        other.elasticsearch.request_max_operations = 7;
        other.log.filter = "debug".to_owned();
        other.memory.per_partition = ByteSize::mib(7);
        other.memory.total = ByteSize::mib(70);
        other.reload.watch = Some(Duration::from_secs(7));
        other.source.batch = 7;
        other.source.max_bytes = ByteSize::mib(7);
        other.source.max_in_flight = 7;
        other.batch.deadline = Duration::from_secs(70);
        other.kafka.group_id = "another".to_owned();
        other.geoshards.map = PathBuf::from("another.json");
        other
    }

    #[test]
    fn what_is_followed_is_taken_over_and_nothing_else() {
        let (before, other) = (Config::default(), other());
        let next = before.following(&other);
        assert_eq!(before.differs_in(&next), FOLLOWED);
        assert_eq!(next.differs_in(&other), ["batch.deadline", "geoshards.map", "kafka.group_id"]);
        assert_eq!(next.followed().keys().collect::<Vec<_>>(), FOLLOWED.iter().collect::<Vec<_>>());
    }

    #[test]
    fn keys_that_differ_are_named_and_no_others() {
        let before = Config::default();
        let mut after = before.clone();
        assert_eq!(before.differs_in(&after), Vec::<String>::new());
        after.batch.max_documents += 1;
        after.dead_letter.topic = Some("letters".to_owned());
        after.tally.facets.insert("tags".to_owned(), "tags".to_owned());
        let expected = ["batch.max_documents", "dead_letter.topic", "tally.facets.tags"];
        assert_eq!(before.differs_in(&after), expected);
        assert_eq!(after.differs_in(&before), expected);
    }
}
