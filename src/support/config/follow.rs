//! Keys that a running process follows on reload, and keys that need a restart.

use std::collections::BTreeMap;

use toml::Value;

use super::types::Config;

/// A process that follows its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// `geofold run`.
    Worker,
    /// Another that runs on: a collector, a router, `campaign run`, `campaign watch`.
    Other,
}

/// Generates the lists of keys and the code that copies their values from one table.
macro_rules! followed {
    (by workers: $($section:ident.$key:ident),+; by all: $($of_all:ident.$key_of_all:ident),+) => {
        /// Keys that only workers follow.
        pub const FOLLOWED_BY_WORKERS: &[&str] = &[$(concat!(stringify!($section), ".", stringify!($key))),+];
        /// The keys that every process follows that runs on.
        pub const FOLLOWED_BY_ALL: &[&str] =
            &[$(concat!(stringify!($of_all), ".", stringify!($key_of_all))),+];

        impl Config {
            /// This configuration with the followed keys of `read`.
            pub fn following(&self, read: &Self, process: Process) -> Self {
                let mut next = self.clone();
                $(next.$of_all.$key_of_all.clone_from(&read.$of_all.$key_of_all);)+
                if process == Process::Worker {
                    $(next.$section.$key.clone_from(&read.$section.$key);)+
                }
                next
            }
        }
    };
}

// All other keys need a restart: they define the process (topic, indices, positions), or other processes rely on them
// (`batch.timeout`: every worker of the group depends on it).
followed! {
    by workers:
        audit.rate,
        batch.linger,
        batch.max_bytes,
        batch.max_dirty_age,
        batch.max_documents,
        elasticsearch.adaptive_concurrency,
        elasticsearch.max_in_flight,
        elasticsearch.max_operations_per_second,
        elasticsearch.request_max_bytes,
        elasticsearch.request_max_operations,
        memory.per_partition,
        memory.total,
        source.batch_size,
        source.max_bytes,
        source.max_in_flight;
    by all:
        log.filter,
        reload.interval
}

/// Whether any process follows this key.
pub fn is_followed(key: &str) -> bool {
    FOLLOWED_BY_WORKERS.contains(&key) || FOLLOWED_BY_ALL.contains(&key)
}

impl Config {
    /// Keys that differ in `other`, as `section.key`, in order. Changed secrets are not seen: all secrets are shown alike.
    pub fn differs_in(&self, other: &Self) -> Vec<String> {
        let (mine, others) = (values(self), values(other));
        let all = mine.keys().chain(others.keys().filter(|key| !mine.contains_key(*key)));
        let mut differs: Vec<String> =
            all.filter(|key| mine.get(*key) != others.get(*key)).cloned().collect();
        differs.sort_unstable();
        differs
    }

    /// The keys that workers follow, with the values in force. Unset keys are omitted.
    pub fn followed(&self) -> BTreeMap<String, Value> {
        let mut values = values(self);
        values.retain(|key, _| is_followed(key));
        values
    }
}

/// Each key with its value. Secrets are `***`.
fn values(config: &Config) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    // Types that a test serializes cannot fail here.
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
    use crate::support::config::ByteSize;

    /// Differs from the defaults in every followed key and in some others.
    fn other() -> Config {
        let mut other = Config::default();
        other.audit.rate = NonZeroU32::MIN;
        other.batch.linger = Duration::from_secs(1);
        other.batch.max_bytes = ByteSize::mib(1);
        other.batch.max_dirty_age = Duration::from_secs(7);
        other.batch.max_documents = 7;
        other.elasticsearch.adaptive_concurrency = true;
        other.elasticsearch.max_in_flight = 7;
        other.elasticsearch.max_operations_per_second = Some(NonZeroU32::MIN);
        other.elasticsearch.request_max_bytes = ByteSize::mib(7);
        other.elasticsearch.request_max_operations = 7;
        other.log.filter = "debug".to_owned();
        other.memory.per_partition = ByteSize::mib(7);
        other.memory.total = ByteSize::mib(70);
        other.reload.interval = Some(Duration::from_secs(7));
        other.source.batch_size = 7;
        other.source.max_bytes = ByteSize::mib(7);
        other.source.max_in_flight = 7;
        other.batch.timeout = Duration::from_secs(70);
        other.kafka.group_id = "another".to_owned();
        other.geoshards.map = PathBuf::from("another.json");
        other
    }

    #[test]
    fn only_followed_keys_are_taken_over() {
        let (before, other) = (Config::default(), other());
        let next = before.following(&other, Process::Worker);
        let mut all = [FOLLOWED_BY_WORKERS, FOLLOWED_BY_ALL].concat();
        all.sort_unstable();
        assert_eq!(before.differs_in(&next), all);
        assert_eq!(next.differs_in(&other), ["batch.timeout", "geoshards.map", "kafka.group_id"]);
        assert_eq!(next.followed().keys().collect::<Vec<_>>(), all.iter().collect::<Vec<_>>());
        let next = before.following(&other, Process::Other);
        assert_eq!(before.differs_in(&next), FOLLOWED_BY_ALL);
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
