//! Differences of an index from what geofold needs, by its settings and mappings.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use super::drift::drift;
use super::placements::{self, can_split};
use super::{DURABILITY, GC_DELETES, Needs, SHARDS, WantedIndex, parse_time, setting_text, time_text};

/// Elasticsearch's default of `index.gc_deletes`.
const DEFAULT_GC_DELETES: &str = "60s";
/// Where it says how an index gets more primaries.
pub(crate) const HOW_TO_SPLIT: &str = "docs/operations.md, \"More primaries for placements\"";
/// Blocks that stop reads or writes; Elasticsearch sets `read_only_allow_delete` when a disk is full.
const BLOCKS: [&str; 4] = [
    "index.blocks.read_only_allow_delete",
    "index.blocks.read_only",
    "index.blocks.write",
    "index.blocks.read",
];

/// One thing that is wrong with one index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexDifference {
    /// The index's name.
    pub index: String,
    /// The difference.
    pub problem: Problem,
}

/// A difference of an index. Its text says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The index does not exist.
    Missing,
    /// The name is an alias.
    Alias {
        /// The index behind it.
        of: String,
    },
    /// It is closed.
    Closed,
    /// Reads or writes are blocked.
    Blocked {
        /// The setting that does it.
        setting: &'static str,
    },
    /// Versions of deleted documents are forgotten too early.
    GcDeletes {
        /// As set; Elasticsearch's default if not.
        found: String,
        /// The shortest allowed.
        needed: Duration,
    },
    /// The location is not in the mapping, so that Elasticsearch would guess its type.
    LocationUnmapped {
        /// Its dotted path.
        path: String,
    },
    /// The location, or something on the way to it, has the wrong type.
    LocationType {
        /// Dotted path of the field.
        path: String,
        /// Its type.
        found: String,
        /// The type it needs.
        needed: &'static str,
    },
    /// The location is stored, but not searchable.
    LocationDisabled {
        /// Its dotted path.
        path: String,
    },
    /// `_source` is not kept as sent, so that patches would apply to something else.
    SourceNotKept,
    /// A refresh does not reach replicas, which copy segments later (OpenSearch).
    SegmentReplication,
    /// Every request needs a routing value, and geofold sends none.
    RoutingRequired,
    /// Content that should only be stored is taken apart and indexed.
    ContentMapped,
    /// Acknowledged writes may be lost when a machine fails.
    AsyncTranslog,
    /// The placements index has another number of primaries than the configuration says.
    Primaries {
        /// Its number.
        found: u16,
        /// `placements.primaries`.
        wanted: u16,
    },
    /// geofold can work with the placements index, but it is not as the configuration says.
    NotAsConfigured {
        /// The setting.
        setting: &'static str,
        /// The key that decides it.
        key: &'static str,
        /// The setting's value by the key.
        wanted: String,
        /// The index's value, if any.
        found: Option<String>,
    },
    /// geofold can work with it, but it is not as the user's template says.
    NotAsTemplate {
        /// The setting, or the field and its parameter.
        what: String,
        /// The template's value.
        wanted: String,
        /// The index's value, if any.
        found: Option<String>,
    },
}

impl Problem {
    /// Whether work can go on in spite of it, with a promise that is weaker.
    pub fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::AsyncTranslog
                | Self::Primaries { .. }
                | Self::NotAsConfigured { .. }
                | Self::NotAsTemplate { .. }
        )
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str(
                "the index is missing, or this user may not see it: run `geofold shards create`, or grant view_index_metadata",
            ),
            Self::Alias { of } => write!(
                f,
                "the name is an alias of {of}, and geofold needs the index itself: remove the alias or choose another prefix"
            ),
            Self::Closed => f.write_str("the index is closed: open it (POST /<index>/_open)"),
            Self::Blocked { setting } => {
                let why = if *setting == BLOCKS[0] { "; Elasticsearch sets it when a disk is full" } else { "" };
                write!(f, "{setting} is set{why}: set it to null (PUT /<index>/_settings)")
            }
            Self::GcDeletes { found, needed } => write!(
                f,
                "index.gc_deletes is {found}, so a late write could bring a deleted document back: set it to {} or more",
                time_text(*needed)
            ),
            Self::LocationUnmapped { path } => write!(
                f,
                "{path} is not mapped, and Elasticsearch would guess its type: map it as geo_point (PUT /<index>/_mapping)"
            ),
            Self::LocationType { path, found, needed } => write!(
                f,
                "{path} is mapped as {found} and must be {needed}: a field's type cannot be changed, so re-create the index"
            ),
            Self::LocationDisabled { path } => write!(
                f,
                "indexing of {path}, or of an object around it, is switched off (enabled: false): create the index without that"
            ),
            Self::SourceNotKept => f.write_str(
                "_source is disabled, filtered or synthetic, but patches need documents as they were sent: create the index without that",
            ),
            Self::SegmentReplication => f.write_str(
                "index.replication.type is SEGMENT, so searches of a replica may miss what was refreshed: create the index with DOCUMENT",
            ),
            Self::RoutingRequired => f.write_str(
                "the mapping requires _routing, which geofold does not send: create the index without that",
            ),
            Self::ContentMapped => f.write_str(
                "the mapping must be that of `geofold shards create`, which indexes no content: delete the index if nothing has been written yet, and run `geofold shards create`",
            ),
            Self::AsyncTranslog => f.write_str(
                "index.translog.durability is async, so a machine that fails takes acknowledged writes along: set it to request",
            ),
            Self::Primaries { found, wanted } => {
                write!(f, "{SHARDS} is {found}, but placements.primaries is {wanted}: ")?;
                match (can_split(*found, *wanted), wanted > found) {
                    (true, _) => write!(f, "split the index ({HOW_TO_SPLIT}), or set the key to {found}"),
                    (false, true) => write!(
                        f,
                        "an index can only be split into twice as many, again and again ({HOW_TO_SPLIT}): set the key to such a number, or to {found}"
                    ),
                    (false, false) => write!(f, "set the key to {found}"),
                }
            }
            Self::NotAsConfigured { setting, key, wanted, found } => {
                let found = found.as_deref().unwrap_or("not set");
                write!(
                    f,
                    "{setting} is {found}, but the key {key} asks for {wanted}: change the index (PUT /<index>/_settings) or the key"
                )
            }
            Self::NotAsTemplate { what, wanted, found } => {
                let found = found.as_deref().unwrap_or("not there");
                write!(
                    f,
                    "{what} is {found}, but the index template says {wanted}: change one of them; geofold does not change an index that exists"
                )
            }
        }
    }
}

/// Indices as Elasticsearch has them.
#[derive(Debug, Clone, Default)]
pub struct FoundIndices {
    indices: BTreeMap<String, FoundIndex>,
    /// Alias to one index that has it.
    aliases: HashMap<String, String>,
}

#[derive(Debug, Clone, Default)]
struct FoundIndex {
    settings: Map<String, Value>,
    mappings: Map<String, Value>,
}

impl FoundIndices {
    /// From the answer to `GET /<names>?flat_settings=true`: for each index `{"aliases", "settings", "mappings"}`.
    pub fn from_answer(answer: Value) -> Self {
        let mut found = Self::default();
        for (name, index) in object(answer) {
            let mut parts = object(index);
            let mut part = |name| object(parts.remove(name).unwrap_or_default());
            found.aliases.extend(part("aliases").into_iter().map(|(alias, _)| (alias, name.clone())));
            let index = FoundIndex { settings: part("settings"), mappings: part("mappings") };
            found.indices.insert(name, index);
        }
        found
    }

    /// The names of all indices that were found.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.indices.keys().map(String::as_str)
    }

    /// Primary shards of an index.
    pub fn primaries(&self, name: &str) -> Option<u16> {
        super::primaries(&self.indices.get(name)?.settings)
    }

    /// Whether the name is taken by an index or an alias.
    pub fn knows(&self, name: &str) -> bool {
        self.indices.contains_key(name) || self.aliases.contains_key(name)
    }
}

/// Differences of the wanted indices, in their order.
pub fn differences(wanted: &[WantedIndex], found: &FoundIndices) -> Vec<IndexDifference> {
    let judge =
        |wanted: &WantedIndex| match (found.indices.get(&wanted.name), found.aliases.get(&wanted.name)) {
            (Some(index), _) => {
                let mut found = problems(&wanted.needs, &index.settings, &index.mappings);
                found.extend(drift(&wanted.template, &index.settings, &index.mappings));
                let placements = wanted.placements.as_ref();
                found.extend(
                    placements
                        .into_iter()
                        .flat_map(|config| placements::differences(config, &index.settings)),
                );
                found
            }
            (None, Some(of)) => vec![Problem::Alias { of: of.clone() }],
            (None, None) => vec![Problem::Missing],
        };
    let named = |wanted: &WantedIndex| {
        let index = wanted.name.clone();
        judge(wanted).into_iter().map(move |problem| IndexDifference { index: index.clone(), problem })
    };
    wanted.iter().flat_map(named).collect()
}

/// Differences of an index with these settings (flat names) and mappings.
pub(super) fn problems(
    needs: &Needs,
    settings: &Map<String, Value>,
    mappings: &Map<String, Value>,
) -> Vec<Problem> {
    let is = |name: &str, value: &str| setting_text(settings, name).is_some_and(|found| found == value);
    let mut problems = Vec::new();
    // Set when an index is closed and removed when it is opened; the answer says so in no other place.
    if is("index.verified_before_close", "true") {
        problems.push(Problem::Closed);
    }
    problems.extend(
        BLOCKS.into_iter().filter(|block| is(block, "true")).map(|setting| Problem::Blocked { setting }),
    );
    let gc_deletes = setting_text(settings, GC_DELETES);
    let found = gc_deletes.as_deref().unwrap_or(DEFAULT_GC_DELETES);
    if parse_time(found).is_none_or(|time| time < needs.gc_deletes) {
        let default = if gc_deletes.is_none() { " (the default)" } else { "" };
        problems.push(Problem::GcDeletes { found: format!("{found}{default}"), needed: needs.gc_deletes });
    }
    if is(DURABILITY, "async") {
        problems.push(Problem::AsyncTranslog);
    }
    if is("index.replication.type", "SEGMENT") {
        problems.push(Problem::SegmentReplication);
    }
    if !keeps_source(settings, mappings) {
        problems.push(Problem::SourceNotKept);
    }
    if mappings.get("_routing").and_then(|routing| routing.get("required")).is_some_and(is_true) {
        problems.push(Problem::RoutingRequired);
    }
    match &needs.location {
        Some(path) => {
            let parts: Vec<&str> = path.split('.').collect();
            problems.extend(location_problem(mappings, &parts, 0));
        }
        None if is_only_stored(mappings) => {}
        None => problems.push(Problem::ContentMapped),
    }
    problems
}

/// The problem of the field at `path[begin..]` below `object`, if any.
fn location_problem(object: &Map<String, Value>, path: &[&str], begin: usize) -> Option<Problem> {
    if is_disabled(object) {
        return Some(Problem::LocationDisabled { path: path.join(".") });
    }
    let unmapped = Problem::LocationUnmapped { path: path.join(".") };
    let Some(Value::Object(fields)) = object.get("properties") else { return Some(unmapped) };
    // Longest name first: a field's name may contain dots itself.
    for end in (begin + 1..=path.len()).rev() {
        let Some(Value::Object(field)) = fields.get(&path[begin..end].join(".")) else { continue };
        let found = field.get("type").and_then(Value::as_str).unwrap_or("object").to_owned();
        let wrong = |needed| {
            Some(Problem::LocationType { path: path[..end].join("."), found: found.clone(), needed })
        };
        return match end == path.len() {
            true if found == "geo_point" => None,
            true => wrong("geo_point"),
            false if is_object(field) => location_problem(field, path, end),
            false => wrong("object"),
        };
    }
    Some(unmapped)
}

/// Whether a field's definition is that of an object, which has fields itself.
pub(super) fn is_object(field: &Map<String, Value>) -> bool {
    match field.get("type").and_then(Value::as_str) {
        None => true,
        Some(kind) => matches!(kind, "object" | "nested" | "passthrough"),
    }
}

/// Whether `_source` is kept as sent. From 8.17 on `index.mapping.source.mode` overrides the mapping's mode.
fn keeps_source(settings: &Map<String, Value>, mappings: &Map<String, Value>) -> bool {
    let by_setting = setting_text(settings, "index.mapping.source.mode");
    if by_setting.is_some_and(|mode| mode != "stored") {
        return false;
    }
    let Some(Value::Object(source)) = mappings.get("_source") else { return true };
    let names_some = |part| source.get(part).and_then(Value::as_array).is_some_and(|names| !names.is_empty());
    let mode = source.get("mode").and_then(Value::as_str).unwrap_or("stored");
    !is_disabled(source) && mode == "stored" && !names_some("includes") && !names_some("excludes")
}

/// Whether no content is indexed.
fn is_only_stored(mappings: &Map<String, Value>) -> bool {
    let is_stored = |field: &Value| {
        field.as_object().is_some_and(|field| is_disabled(field) || field.get("index").is_some_and(is_false))
    };
    let fields = mappings.get("properties").and_then(Value::as_object);
    is_disabled(mappings)
        || mappings.get("dynamic").is_some_and(is_false)
            && fields.is_none_or(|fields| fields.values().all(is_stored))
}

fn is_disabled(object: &Map<String, Value>) -> bool {
    object.get("enabled").is_some_and(is_false)
}

fn is_false(value: &Value) -> bool {
    *value == Value::Bool(false) || *value == "false"
}

fn is_true(value: &Value) -> bool {
    *value == Value::Bool(true) || *value == "true"
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Layout, Template, wanted};
    use super::*;
    use crate::base::ids::ShardId;
    use crate::support::config::PlacementsConfig;

    fn wanted_indices() -> Vec<WantedIndex> {
        let shards = [ShardId::new("eu").unwrap()];
        let layout = Layout {
            prefix: "p",
            shards: &shards,
            location: "home.at",
            gc_deletes: Duration::from_secs(600),
            placements: PlacementsConfig::default(),
        };
        wanted(&layout, &Template::default()).unwrap()
    }

    /// Elasticsearch's description of indices that geofold creates.
    fn as_created() -> Value {
        let own = json!({
            "aliases": {},
            "settings": {"index.gc_deletes": "600s", "index.translog.durability": "request"},
            "mappings": {"enabled": "false"},
        });
        let mut placements = own.clone();
        placements["mappings"] = json!({
            "dynamic": "false",
            "properties": {"pos": {"type": "long", "index": false}, "fetched": {"type": "object", "enabled": false}},
        });
        json!({
            "p-eu": {
                "aliases": {},
                "settings": {"index.gc_deletes": "600s", "index.number_of_shards": "1"},
                "mappings": {"properties": {"home": {"properties": {"at": {"type": "geo_point"}}}}},
            },
            "p-placements": placements,
            "p-meta": own,
            "p-of-somebody-else": {"settings": {"index.blocks.write": "true"}, "mappings": {}},
        })
    }

    fn found_after(change: impl FnOnce(&mut Value)) -> Vec<(String, Problem)> {
        let mut answer = as_created();
        change(&mut answer);
        let found = differences(&wanted_indices(), &FoundIndices::from_answer(answer));
        found.into_iter().map(|difference| (difference.index, difference.problem)).collect()
    }

    #[test]
    fn created_indices_do_not_differ_and_others_are_ignored() {
        assert_eq!(found_after(|_| {}), []);
        // As earlier builds created it.
        assert_eq!(found_after(|answer| answer["p-placements"]["mappings"] = json!({"enabled": false})), []);
    }

    #[test]
    fn each_thing_that_could_go_wrong_is_found() {
        let needed = Duration::from_secs(600);
        let gc = |found: &str| Problem::GcDeletes { found: found.to_owned(), needed };
        let path = || "home.at".to_owned();
        let of_type = |path: &str, found: &str, needed| Problem::LocationType {
            path: path.to_owned(),
            found: found.to_owned(),
            needed,
        };
        for (index, part, value, problem) in [
            ("p-eu", "/settings/index.gc_deletes", json!("599s"), gc("599s")),
            ("p-eu", "/settings/index.gc_deletes", json!(null), gc("60s (the default)")),
            ("p-meta", "/settings/index.gc_deletes", json!("-1"), gc("-1")),
            ("p-eu", "/settings/index.verified_before_close", json!("true"), Problem::Closed),
            ("p-meta", "/settings/index.blocks.read", json!("true"), Problem::Blocked { setting: BLOCKS[3] }),
            ("p-eu", "/settings/index.blocks.write", json!("true"), Problem::Blocked { setting: BLOCKS[2] }),
            (
                "p-placements",
                "/settings/index.blocks.read_only_allow_delete",
                json!("true"),
                Problem::Blocked { setting: BLOCKS[0] },
            ),
            ("p-eu", "/settings/index.translog.durability", json!("async"), Problem::AsyncTranslog),
            ("p-placements", "/settings/index.translog.durability", json!("async"), Problem::AsyncTranslog),
            ("p-eu", "/settings/index.replication.type", json!("SEGMENT"), Problem::SegmentReplication),
            ("p-eu", "/settings/index.mapping.source.mode", json!("synthetic"), Problem::SourceNotKept),
            ("p-eu", "/mappings/_source", json!({"enabled": false}), Problem::SourceNotKept),
            ("p-eu", "/mappings/_source", json!({"excludes": ["secret"]}), Problem::SourceNotKept),
            ("p-eu", "/mappings/_source", json!({"mode": "synthetic"}), Problem::SourceNotKept),
            ("p-eu", "/mappings/_routing", json!({"required": true}), Problem::RoutingRequired),
            ("p-eu", "/mappings/enabled", json!(false), Problem::LocationDisabled { path: path() }),
            ("p-eu", "/mappings/properties", json!({}), Problem::LocationUnmapped { path: path() }),
            ("p-eu", "/mappings", json!({}), Problem::LocationUnmapped { path: path() }),
            (
                "p-eu",
                "/mappings/properties/home",
                json!({"enabled": false}),
                Problem::LocationDisabled { path: path() },
            ),
            (
                "p-eu",
                "/mappings/properties/home",
                json!({"type": "keyword"}),
                of_type("home", "keyword", "object"),
            ),
            (
                "p-eu",
                "/mappings/properties",
                json!({"home.at": {"type": "geo_shape"}}),
                of_type("home.at", "geo_shape", "geo_point"),
            ),
            // Dynamic mapping of {"lat": …, "lon": …}.
            (
                "p-eu",
                "/mappings/properties/home/properties/at",
                json!({"properties": {"lat": {"type": "float"}, "lon": {"type": "float"}}}),
                of_type("home.at", "object", "geo_point"),
            ),
            ("p-placements", "/mappings", json!({"properties": {}}), Problem::ContentMapped),
            ("p-placements", "/mappings/dynamic", json!("true"), Problem::ContentMapped),
            ("p-placements", "/mappings/properties/pos/index", json!(true), Problem::ContentMapped),
            (
                "p-placements",
                "/settings/index.number_of_shards",
                json!("4"),
                Problem::Primaries { found: 4, wanted: 1 },
            ),
        ] {
            let changed = found_after(|answer| {
                let (parent, key) = part.rsplit_once('/').unwrap();
                let parent = answer.pointer_mut(&format!("/{index}{parent}")).unwrap();
                parent[key] = value.clone();
            });
            assert_eq!(changed, [(index.to_owned(), problem)], "{part} = {value}");
        }
    }

    #[test]
    fn missing_index_differs_from_alias() {
        let missing = found_after(|answer| drop(answer.as_object_mut().unwrap().remove("p-eu")));
        assert_eq!(missing, [("p-eu".to_owned(), Problem::Missing)]);
        let alias = found_after(|answer| {
            let all = answer.as_object_mut().unwrap();
            let mut real = all.remove("p-eu").unwrap();
            real["aliases"] = json!({"p-eu": {}});
            all.insert("p-eu-000001".to_owned(), real);
        });
        assert_eq!(alias, [("p-eu".to_owned(), Problem::Alias { of: "p-eu-000001".to_owned() })]);
    }

    #[test]
    fn only_lost_durability_and_settings_that_were_asked_for_are_warnings() {
        assert!(Problem::AsyncTranslog.is_warning());
        assert!(Problem::Primaries { found: 1, wanted: 4 }.is_warning());
        let drift = Problem::NotAsTemplate { what: "a".into(), wanted: "b".into(), found: None };
        assert!(drift.is_warning());
        assert!(!Problem::Missing.is_warning());
    }
}
