//! SIGHUP: reads the configuration again. What can be followed is; what else has changed is named, and waits for a restart.

use std::collections::BTreeMap;

use tokio::signal::unix::Signal;
use toml::Value;

use super::ConfigArgs;
use crate::config::Config;
use crate::telemetry::logging::FilterSwitch;

/// The key that is followed.
const FILTER: &str = "log.filter";

/// Answers each SIGHUP, for as long as the process runs. `running` is the configuration that it was started with.
pub async fn on_hang_up(args: ConfigArgs, mut running: Config, filter: FilterSwitch, mut hang_ups: Signal) {
    while hang_ups.recv().await.is_some() {
        let read = match args.load() {
            Ok(read) => read,
            Err(failure) => {
                let error = format!("{:#}", failure.error);
                tracing::error!(error, "the configuration can not be used; the one in force stays");
                continue;
            }
        };
        let waiting: Vec<String> = changed(&running, &read).into_iter().filter(|key| key != FILTER).collect();
        if read.log.filter != running.log.filter {
            match filter.set(&read.log.filter) {
                Ok(true) => running.log.filter = read.log.filter,
                Ok(false) => tracing::warn!("log.filter has changed, but RUST_LOG is set, and wins"),
                Err(error) => tracing::error!(%error, "log.filter stays as it is"),
            }
        }
        tracing::info!(filter = running.log.filter, "the configuration was read again");
        if !waiting.is_empty() {
            let keys = waiting.join(", ");
            tracing::warn!(keys, "these keys have changed; restart this worker to have it follow");
        }
    }
}

/// The keys whose values differ, as `section.key`. Secrets that changed are not seen: they look the same.
fn changed(before: &Config, after: &Config) -> Vec<String> {
    let (before, after) = (keys(before), keys(after));
    let all = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    let mut changed: Vec<String> = all.filter(|key| before.get(*key) != after.get(*key)).cloned().collect();
    changed.sort_unstable();
    changed
}

fn keys(config: &Config) -> BTreeMap<String, Value> {
    let mut keys = BTreeMap::new();
    if let Ok(Value::Table(sections)) = Value::try_from(config) {
        for (section, value) in sections {
            flatten(section, value, &mut keys);
        }
    }
    keys
}

fn flatten(path: String, value: Value, keys: &mut BTreeMap<String, Value>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                flatten(format!("{path}.{key}"), value, keys);
            }
        }
        value => drop(keys.insert(path, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_are_named_and_no_others() {
        let before = Config::default();
        let mut after = before.clone();
        assert_eq!(changed(&before, &after), Vec::<String>::new());
        after.batch.max_documents += 1;
        after.dead_letter.topic = Some("letters".to_owned());
        after.tally.facets.insert("tags".to_owned(), "tags".to_owned());
        let expected = ["batch.max_documents", "dead_letter.topic", "tally.facets.tags"];
        assert_eq!(changed(&before, &after), expected);
        assert_eq!(changed(&after, &before), expected);
    }
}
