//! What `[placements]` says of the placements index: its settings, and where the index found has others.
//!
//! Only settings that workers do not depend on, so that a difference is a warning.

use serde_json::{Map, Value, json};

use super::differences::Problem;
use super::{SHARDS, parse_time, setting_text, time_text};
use crate::support::config::PlacementsConfig;

const REPLICAS: &str = "index.number_of_replicas";
const REFRESH_INTERVAL: &str = "index.refresh_interval";
/// A refresh interval that means none.
const NEVER: &str = "-1";

/// Settings that `config` asks for; flat names. Where a key is not set, Elasticsearch's default stays.
pub(super) fn settings(config: &PlacementsConfig) -> Map<String, Value> {
    let mut settings = Map::new();
    settings.insert(SHARDS.to_owned(), json!(config.primaries));
    if let Some(replicas) = config.replicas {
        settings.insert(REPLICAS.to_owned(), json!(replicas));
    }
    if let Some(interval) = config.refresh_interval {
        let interval = if interval.is_zero() { NEVER.to_owned() } else { time_text(interval) };
        settings.insert(REFRESH_INTERVAL.to_owned(), json!(interval));
    }
    settings
}

/// Where an index with these settings (flat names) is not as `config` asks.
pub(super) fn differences(config: &PlacementsConfig, found: &Map<String, Value>) -> Vec<Problem> {
    let wanted = settings(config);
    let difference = |setting: &'static str, key: &'static str| {
        let wanted = setting_text(&wanted, setting)?;
        let found = setting_text(found, setting);
        let is_same = found.as_deref().is_some_and(|found| {
            found == wanted || parse_time(found).is_some_and(|time| parse_time(&wanted) == Some(time))
        });
        (!is_same).then_some(Problem::NotAsConfigured { setting, key, wanted, found })
    };
    let primaries = super::primaries(found).filter(|&found| found != config.primaries.get());
    let primaries = primaries.map(|found| Problem::Primaries { found, wanted: config.primaries.get() });
    let others = [(REPLICAS, "placements.replicas"), (REFRESH_INTERVAL, "placements.refresh_interval")];
    primaries
        .into_iter()
        .chain(others.into_iter().filter_map(|(setting, key)| difference(setting, key)))
        .collect()
}

/// Whether Elasticsearch can split an index of `from` primaries into `to`. With its default of `index.number_of_routing_shards`
/// one primary can become any number, and several twice as many, again and again.
pub(super) fn can_split(from: u16, to: u16) -> bool {
    to > from && (from == 1 || (to.is_multiple_of(from) && (to / from).is_power_of_two()))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;
    use std::time::Duration;

    use super::*;

    fn config(primaries: u16, replicas: Option<u16>, refresh_seconds: Option<u64>) -> PlacementsConfig {
        PlacementsConfig {
            primaries: NonZeroU16::new(primaries).unwrap(),
            replicas,
            refresh_interval: refresh_seconds.map(Duration::from_secs),
            ..PlacementsConfig::default()
        }
    }

    #[test]
    fn only_keys_that_are_set_become_settings() {
        let of = |config: &PlacementsConfig| Value::Object(settings(config));
        assert_eq!(of(&PlacementsConfig::default()), json!({"index.number_of_shards": 1}));
        let all = json!({
            "index.number_of_shards": 4, "index.number_of_replicas": 0, "index.refresh_interval": "30s",
        });
        assert_eq!(of(&config(4, Some(0), Some(30))), all);
        assert_eq!(of(&config(1, None, Some(0)))["index.refresh_interval"], "-1");
    }

    #[test]
    fn index_with_other_settings_differs_and_says_what_to_do() {
        let found = |config: &PlacementsConfig, found: Value| {
            let problems = differences(config, found.as_object().unwrap());
            assert!(problems.iter().all(Problem::is_warning), "workers can do without: {problems:?}");
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let index = || json!({"index.number_of_shards": "4", "index.number_of_replicas": "1"});
        assert_eq!(found(&config(4, None, None), index()), [""; 0]);
        assert_eq!(found(&config(4, Some(1), None), index()), [""; 0]);
        let split = "index.number_of_shards is 4, but placements.primaries is 8: split the index (docs/operations.md, \
                     \"More primaries for placements\"), or set the key to 4";
        assert_eq!(found(&config(8, None, None), index()), [split]);
        let odd = "index.number_of_shards is 4, but placements.primaries is 6: an index can only be split into twice as many, again \
                   and again (docs/operations.md, \"More primaries for placements\"): set the key to such a number, or to 4";
        assert_eq!(found(&config(6, None, None), index()), [odd]);
        let fewer = "index.number_of_shards is 4, but placements.primaries is 1: set the key to 4";
        assert_eq!(found(&PlacementsConfig::default(), index()), [fewer]);
        let others = [
            "index.number_of_replicas is 1, but the key placements.replicas asks for 2: change the index (PUT /<index>/_settings) \
             or the key",
            "index.refresh_interval is not set, but the key placements.refresh_interval asks for -1: change the index (PUT \
             /<index>/_settings) or the key",
        ];
        assert_eq!(found(&config(4, Some(2), Some(0)), index()), others);
        let minutes = json!({"index.number_of_shards": "1", "index.refresh_interval": "2m"});
        assert_eq!(found(&config(1, None, Some(120)), minutes.clone()), [""; 0]);
        assert_eq!(found(&config(1, None, Some(60)), minutes).len(), 1);
    }

    #[test]
    fn one_primary_becomes_any_number_and_several_are_doubled() {
        for (from, to, can) in [
            (1, 2, true),
            (1, 7, true),
            (1, 1, false),
            (4, 8, true),
            (4, 16, true),
            (4, 12, false),
            (4, 6, false),
            (4, 2, false),
            (3, 6, true),
        ] {
            assert_eq!(can_split(from, to), can, "{from} to {to}");
        }
    }
}
