//! The user's settings and mappings for geoshards, and what geofold adds to them.
//!
//! What the template says stays; geofold adds what it needs and the template leaves out. An index made from the result is
//! then judged like one that was found, so a template that could not work is refused before anything is created.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::differences::{Problem, problems};
use super::{GC_DELETES, Layout, Needs, SHARDS, time_text};

/// Settings and mappings that every geoshard's index is created with; none by default.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Template {
    pub(super) settings: Map<String, Value>,
    pub(super) mappings: Map<String, Value>,
}

/// A template that geoshards cannot be made from.
#[derive(Debug, Error)]
pub enum TemplateError {
    /// The file could not be read.
    #[error("cannot read the index template {}: {error}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Not JSON.
    #[error("the index template is no JSON object: {0}")]
    NotJson(serde_json::Error),
    /// A part that is not an object, or that geofold does not use.
    #[error(
        "the index template has {0:?}; it may have the objects \"settings\" and \"mappings\" and nothing else"
    )]
    Part(String),
    /// An index made from it could not be worked with.
    #[error("the index template cannot be used for geoshards: {0}")]
    Conflict(Problem),
}

impl Template {
    /// Reads a file; see [`Template::from_json`].
    pub fn load(path: &Path) -> Result<Self, TemplateError> {
        let json = std::fs::read_to_string(path)
            .map_err(|error| TemplateError::Unreadable { path: path.to_owned(), error })?;
        Self::from_json(&json)
    }

    /// Takes the body of a request that creates an index: `{"settings": {…}, "mappings": {…}}`, both optional. Settings may
    /// be nested or dotted, with or without `index.` in front, as Elasticsearch takes them.
    pub fn from_json(json: &str) -> Result<Self, TemplateError> {
        let parts: Map<String, Value> = serde_json::from_str(json).map_err(TemplateError::NotJson)?;
        let mut template = Self::default();
        for (name, part) in parts {
            match (name.as_str(), part) {
                ("settings", Value::Object(settings)) => flatten("", settings, &mut template.settings),
                ("mappings", Value::Object(mappings)) => template.mappings = mappings,
                _ => return Err(TemplateError::Part(name)),
            }
        }
        Ok(template)
    }

    /// Settings and mappings of a geoshard's index: the template with geofold's requirements added.
    pub(super) fn completed(&self, layout: &Layout<'_>) -> Result<Self, TemplateError> {
        let Self { mut settings, mut mappings } = self.clone();
        settings.entry(SHARDS).or_insert_with(|| json!(1));
        settings.entry(GC_DELETES).or_insert_with(|| json!(time_text(layout.gc_deletes)));
        let path: Vec<&str> = layout.location.split('.').collect();
        add_geo_point(&mut mappings, &path);

        let needs = Needs { location: Some(layout.location.to_owned()), gc_deletes: layout.gc_deletes };
        match problems(&needs, &settings, &mappings).into_iter().find(|problem| !problem.is_warning()) {
            Some(problem) => Err(TemplateError::Conflict(problem)),
            None => Ok(Self { settings, mappings }),
        }
    }
}

/// Settings by their whole names, as Elasticsearch has them after it normalised a request.
fn flatten(prefix: &str, settings: Map<String, Value>, flat: &mut Map<String, Value>) {
    for (key, value) in settings {
        let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Object(inner) => flatten(&name, inner, flat),
            value if name.starts_with("index.") => drop(flat.insert(name, value)),
            value => drop(flat.insert(format!("index.{name}"), value)),
        }
    }
}

/// Maps `path` as a `geo_point` below `object`, unless it is mapped already; existing mappings are checked later.
fn add_geo_point(object: &mut Map<String, Value>, path: &[&str]) {
    let keeps_dots = object.get("subobjects") == Some(&Value::Bool(false));
    let Value::Object(fields) = object.entry("properties").or_insert_with(|| json!({})) else { return };
    // A field's name may have dots itself: {"home.at": …} is the same as {"home": {"properties": {"at": …}}}.
    for taken in (1..=path.len()).rev() {
        let (name, rest) = (path[..taken].join("."), &path[taken..]);
        match fields.get_mut(&name) {
            Some(Value::Object(inner)) if !rest.is_empty() && super::differences::is_object(inner) => {
                return add_geo_point(inner, rest);
            }
            Some(_) => return,
            None => {}
        }
    }
    match path {
        [first, rest @ ..] if !rest.is_empty() && !keeps_dots => {
            let mut inner = Map::new();
            add_geo_point(&mut inner, rest);
            fields.insert((*first).to_owned(), Value::Object(inner));
        }
        _ => drop(fields.insert(path.join("."), json!({"type": "geo_point"}))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::support::config::PlacementsConfig;

    fn made_from(template: Value) -> Result<(Value, Value), String> {
        let layout = Layout {
            prefix: "p",
            shards: &[],
            location: "home.at",
            gc_deletes: Duration::from_secs(600),
            placements: PlacementsConfig::default(),
        };
        let template = Template::from_json(&template.to_string()).map_err(|error| error.to_string())?;
        let Template { settings, mappings } =
            template.completed(&layout).map_err(|error| error.to_string())?;
        Ok((Value::Object(settings), Value::Object(mappings)))
    }

    #[test]
    fn template_is_kept_and_required_settings_added() {
        let (settings, mappings) = made_from(json!({
            "settings": {
                "number_of_shards": 3,
                "index": {"gc_deletes": "1h", "refresh_interval": "5s"},
                "index.number_of_replicas": 2,
                "analysis": {"analyzer": {"name": {"filter": ["lowercase"]}}},
            },
            "mappings": {"dynamic": "strict", "properties": {"name": {"type": "keyword"}}},
        }))
        .unwrap();
        assert_eq!(
            settings,
            json!({
                "index.number_of_shards": 3,
                "index.gc_deletes": "1h",
                "index.refresh_interval": "5s",
                "index.number_of_replicas": 2,
                "index.analysis.analyzer.name.filter": ["lowercase"],
            })
        );
        assert_eq!(
            mappings,
            json!({
                "dynamic": "strict",
                "properties": {
                    "name": {"type": "keyword"},
                    "home": {"properties": {"at": {"type": "geo_point"}}},
                },
            })
        );
    }

    #[test]
    fn existing_location_mapping_is_kept() {
        let point = json!({"type": "geo_point", "ignore_z_value": true});
        for mappings in [
            json!({"properties": {"home": {"properties": {"at": point}}}}),
            json!({"properties": {"home.at": point}}),
        ] {
            assert_eq!(made_from(json!({"mappings": mappings})).unwrap().1, mappings);
        }
        let beside =
            json!({"mappings": {"properties": {"home": {"properties": {"city": {"type": "text"}}}}}});
        assert_eq!(
            made_from(beside).unwrap().1["properties"]["home"]["properties"]["at"],
            json!({"type": "geo_point"})
        );
        let flat = made_from(json!({"mappings": {"subobjects": false}})).unwrap().1;
        assert_eq!(flat["properties"], json!({"home.at": {"type": "geo_point"}}));
    }

    #[test]
    fn a_template_that_could_not_work_is_refused_with_its_reason() {
        for (template, word) in [
            (json!({"settings": {"gc_deletes": "60s"}}), "index.gc_deletes is 60s"),
            (json!({"settings": {"index.gc_deletes": "soon"}}), "index.gc_deletes is soon"),
            (
                json!({"mappings": {"properties": {"home": {"properties": {"at": {"type": "keyword"}}}}}}),
                "keyword",
            ),
            (json!({"mappings": {"properties": {"home": {"type": "keyword"}}}}), "home is mapped as keyword"),
            (json!({"mappings": {"enabled": false}}), "switched off"),
            (json!({"mappings": {"properties": {"home": {"enabled": false}}}}), "switched off"),
            (json!({"mappings": {"_source": {"enabled": false}}}), "_source"),
            (json!({"mappings": {"_routing": {"required": true}}}), "_routing"),
            (json!({"settings": {"blocks": {"write": true}}}), "index.blocks.write"),
            (json!({"aliases": {}}), "\"aliases\""),
            (json!({"settings": []}), "\"settings\""),
            (json!([]), "no JSON object"),
        ] {
            let refused = made_from(template.clone()).unwrap_err();
            assert!(refused.contains(word), "{template}: {refused}");
        }
    }

    #[test]
    fn missing_file_is_named() {
        let error = Template::load(Path::new("no/such.json")).unwrap_err().to_string();
        assert!(error.contains("no/such.json"), "{error}");
    }
}
