//! The Elasticsearch indices that geofold works on: how each has to be, how it differs, how it is made.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | which indices there are, and the settings and mappings each is created with |
//! | `template.rs` | the user's settings and mappings for geoshards |
//! | `differences.rs` | what is wrong with an index as it is found; the same judgement is passed on a template |
//! | `drift.rs` | where an index is not as the user's template says |
//! | `placements.rs` | what `[placements]` says of the placements index |
//! | `create.rs` | asks Elasticsearch for all of them, and creates those that are missing |
//!
//! Three properties cannot be left to chance: the location's type, since Elasticsearch would guess a text or two numbers;
//! `index.gc_deletes`, since a forgotten delete lets a late write bring a document back (protocol, "What an answer
//! means"); and that placements are stored without being taken apart.

mod create;
mod differences;
mod drift;
mod placements;
mod template;

use std::time::Duration;

use serde_json::{Map, Value, json};

pub use create::{CreateReport, IndicesError, create_missing, find, geoshards};
pub(crate) use differences::HOW_TO_SPLIT;
pub use differences::{FoundIndices, IndexDifference, Problem, differences};
pub use template::{Template, TemplateError};

use crate::base::ids::ShardId;
use crate::io::elastic::Index;
use crate::support::config::PlacementsConfig;

/// Inputs that determine settings and mappings.
#[derive(Debug, Clone, Copy)]
pub struct Layout<'a> {
    /// Start of every index name.
    pub prefix: &'a str,
    /// The geoshards of the map.
    pub shards: &'a [ShardId],
    /// Dotted path of the field in a document that searches use.
    pub location: &'a str,
    /// How long Elasticsearch has to remember the version of a deleted document, at least.
    pub gc_deletes: Duration,
    /// How the placements index is to be.
    pub placements: PlacementsConfig,
}

/// An index that has to be there, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedIndex {
    /// Which one.
    pub index: Index,
    /// Its whole name.
    pub name: String,
    /// Settings it is created with; flat names, `index.` first.
    pub settings: Map<String, Value>,
    /// Mappings it is created with.
    pub mappings: Map<String, Value>,
    needs: Needs,
    /// What the user's template says about it; nothing about geofold's own.
    template: Template,
    /// What the configuration says about it, if it is the placements index.
    placements: Option<PlacementsConfig>,
}

/// Requirements on every existing index.
#[derive(Debug, Clone, PartialEq)]
struct Needs {
    /// Path of the location that has to be a `geo_point`; `None` for an index whose content is only stored.
    location: Option<String>,
    gc_deletes: Duration,
}

impl WantedIndex {
    /// The body of the request that creates it.
    pub fn body(&self) -> Value {
        json!({"settings": self.settings, "mappings": self.mappings})
    }
}

/// All indices that `layout` needs: one per geoshard, placements and meta. Settings missing from the template are
/// Elasticsearch's defaults, except those geofold depends on and one primary shard per index; of the placements index, what
/// `[placements]` says.
pub fn wanted(layout: &Layout<'_>, template: &Template) -> Result<Vec<WantedIndex>, TemplateError> {
    let Template { settings, mappings } = template.completed(layout)?;
    let geoshards = layout.shards.iter().map(|shard| WantedIndex {
        index: Index::Geoshard(shard.clone()),
        name: Index::Geoshard(shard.clone()).name(layout.prefix),
        settings: settings.clone(),
        mappings: mappings.clone(),
        needs: Needs { location: Some(layout.location.to_owned()), gc_deletes: layout.gc_deletes },
        template: template.clone(),
        placements: None,
    });
    let own = [Index::Placements, Index::Meta].into_iter().map(|index| {
        let name = index.name(layout.prefix);
        let placements = (index == Index::Placements).then_some(layout.placements);
        let mut settings = placements.as_ref().map_or_else(Map::new, placements::settings);
        settings.entry(SHARDS).or_insert_with(|| json!(1));
        settings.insert(GC_DELETES.to_owned(), json!(time_text(layout.gc_deletes)));
        // The default, set explicitly: an acknowledged placement must survive a crash of the machine (INV-1).
        settings.insert(DURABILITY.to_owned(), json!("request"));
        let mappings = match index {
            Index::Placements => plain_placement_mapping(),
            _ => Map::from_iter([("enabled".to_owned(), json!(false))]),
        };
        WantedIndex {
            index,
            name,
            settings,
            mappings,
            needs: Needs { location: None, gc_deletes: layout.gc_deletes },
            template: Template::default(),
            placements,
        }
    });
    Ok(geoshards.chain(own).collect())
}

/// Doc values of what a plain placement has (`io/elastic/plain_placements.rs`), and nothing to search for.
fn plain_placement_mapping() -> Map<String, Value> {
    let stored = |kind: &str| json!({"type": kind, "index": false});
    let kept = json!({"type": "object", "enabled": false});
    let properties = json!({
        "pos": stored("long"), "shard": stored("keyword"), "leftovers": stored("keyword"),
        "partition": stored("integer"), "key": stored("integer"), "fetched": kept, "versions": kept,
    });
    Map::from_iter([("dynamic".to_owned(), json!(false)), ("properties".to_owned(), properties)])
}

const GC_DELETES: &str = "index.gc_deletes";
const DURABILITY: &str = "index.translog.durability";
const SHARDS: &str = "index.number_of_shards";

/// Primary shards of an index with these settings (flat names).
fn primaries(settings: &Map<String, Value>) -> Option<u16> {
    setting_text(settings, SHARDS)?.parse().ok()
}

/// A duration as Elasticsearch reads it.
fn time_text(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{}s", duration.as_secs()),
        _ => format!("{}ms", duration.as_millis()),
    }
}

/// A duration as Elasticsearch writes it: a whole number and a unit; the number zero needs none.
pub(crate) fn parse_time(text: &str) -> Option<Duration> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs);
    match unit.trim() {
        "" if number == 0 => Some(Duration::ZERO),
        "nanos" => Some(Duration::from_nanos(number)),
        "micros" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3_600),
        "d" => seconds(86_400),
        _ => None,
    }
}

/// A setting as text: Elasticsearch returns text; templates may have numbers and booleans.
fn setting_text(settings: &Map<String, Value>, name: &str) -> Option<String> {
    match settings.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Null => None,
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_geoshard_has_an_index_and_so_have_placements_and_meta() {
        let shards = [ShardId::new("eu-1").unwrap(), ShardId::new("us-1").unwrap()];
        let layout = Layout {
            prefix: "users",
            shards: &shards,
            location: "home.at",
            gc_deletes: Duration::from_secs(600),
            placements: PlacementsConfig { replicas: Some(2), ..PlacementsConfig::default() },
        };
        let wanted = wanted(&layout, &Template::default()).unwrap();

        let names: Vec<_> = wanted.iter().map(|index| index.name.as_str()).collect();
        assert_eq!(names, ["users-eu-1", "users-us-1", "users-placements", "users-meta"]);
        assert_eq!(
            wanted[0].body(),
            json!({
                "settings": {"index.number_of_shards": 1, "index.gc_deletes": "600s"},
                "mappings": {"properties": {"home": {"properties": {"at": {"type": "geo_point"}}}}},
            })
        );
        let stored_only = json!({
            "settings": {
                "index.number_of_shards": 1, "index.gc_deletes": "600s", "index.translog.durability": "request",
            },
            "mappings": {"enabled": false},
        });
        let mut placements = stored_only.clone();
        placements["settings"]["index.number_of_replicas"] = json!(2);
        placements["mappings"] = Value::Object(plain_placement_mapping());
        assert_eq!(wanted[2].body(), placements);
        assert_eq!(wanted[3].body(), stored_only);
    }

    #[test]
    fn times_are_read_as_elasticsearch_writes_them() {
        for (text, millis) in [
            ("600s", 600_000),
            ("10m", 600_000),
            ("1h", 3_600_000),
            ("2d", 172_800_000),
            ("250ms", 250),
            ("0", 0),
        ] {
            assert_eq!(parse_time(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "60", "-1", "1.5h", "ten", "1w", "99999999999999999d"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
        assert_eq!(time_text(Duration::from_secs(90)), "90s");
        assert_eq!(time_text(Duration::from_millis(1_500)), "1500ms");
    }
}
