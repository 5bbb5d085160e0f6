//! Where an index is not as the user's template says, although geofold can work with it: the template was changed after
//! the index was made, or the index was changed.
//!
//! Only what the template says is looked at; what else the index has is its owner's affair. Elasticsearch leaves out
//! parameters of a mapping that are its defaults, so one that is missing is only told where its default is known.

use serde_json::{Map, Value};

use super::differences::{Problem, is_object};
use super::template::Template;

/// Parameters of mappings and fields that Elasticsearch leaves out at these values.
const DEFAULTS: [(&str, &str); 10] = [
    ("dynamic", "true"),
    ("type", "object"),
    ("enabled", "true"),
    ("index", "true"),
    ("doc_values", "true"),
    ("norms", "true"),
    ("coerce", "true"),
    ("store", "false"),
    ("ignore_malformed", "false"),
    ("eager_global_ordinals", "false"),
];

/// The parts of `template` that an index with these settings (flat names) and mappings lacks.
pub(super) fn drift(
    template: &Template,
    settings: &Map<String, Value>,
    mappings: &Map<String, Value>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (name, wanted) in &template.settings {
        let found = settings.get(name);
        // Null resets a setting to its default.
        let (wanted, found) = (text(wanted), found.and_then(text));
        if wanted != found && wanted.is_some() {
            problems.push(problem(name.clone(), wanted, found));
        }
    }
    compare("", &template.mappings, mappings, &mut problems);
    problems
}

fn problem(what: String, wanted: Option<String>, found: Option<String>) -> Problem {
    Problem::NotAsTemplate { what, wanted: wanted.unwrap_or_else(|| "{…}".to_owned()), found }
}

/// Compares an object of the mapping, or a field, at `path`.
fn compare(path: &str, wanted: &Map<String, Value>, found: &Map<String, Value>, problems: &mut Vec<Problem>) {
    for (key, wanted) in wanted {
        let what = if path.is_empty() { key.clone() } else { format!("{path}: {key}") };
        match (key.as_str(), wanted) {
            ("properties" | "fields", Value::Object(fields)) => {
                for (name, field) in fields {
                    let Value::Object(field) = field else { continue };
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    match found.get(key).and_then(|fields| find(fields, name)) {
                        Some(found) => compare(&path, field, found, problems),
                        None => problems.push(problem(format!("field {path}"), kind(field), None)),
                    }
                }
            }
            _ => {
                let default = DEFAULTS.iter().find(|(name, _)| name == key).map(|(_, value)| *value);
                let Some(found) = found.get(key).map(text).or(default.map(|value| Some(value.to_owned())))
                else {
                    continue;
                };
                if text(wanted) != found {
                    problems.push(problem(what, text(wanted), found));
                }
            }
        }
    }
}

/// A field by its name, which may have dots where Elasticsearch made objects of them.
fn find<'v>(fields: &'v Value, name: &str) -> Option<&'v Map<String, Value>> {
    if let Some(field) = fields.get(name) {
        return field.as_object();
    }
    name.match_indices('.').find_map(|(dot, _)| {
        let object = fields.get(&name[..dot])?.as_object().filter(|field| is_object(field))?;
        find(object.get("properties")?, &name[dot + 1..])
    })
}

fn kind(field: &Map<String, Value>) -> Option<String> {
    field.get("type").and_then(text).or_else(|| Some("object".to_owned()))
}

/// Normalizes a value: Elasticsearch returns numbers and booleans sometimes as text, and single values as lists.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(items) if items.len() == 1 => text(&items[0]),
        Value::Array(items) => Some(items.iter().filter_map(text).collect::<Vec<_>>().join(", ")),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(json: &Value) -> Template {
        Template::from_json(&json.to_string()).unwrap()
    }

    fn found(template_json: &Value, settings: Value, mappings: Value) -> Vec<String> {
        let map = |value: Value| value.as_object().cloned().unwrap();
        let problems = drift(&template(template_json), &map(settings), &map(mappings));
        problems.iter().map(ToString::to_string).collect()
    }

    fn sample() -> Value {
        json!({
            "settings": {"number_of_replicas": 2, "index": {"refresh_interval": "5s", "sort": {"field": "a"}}, "codec": null},
            "mappings": {
                "dynamic": "strict",
                "properties": {
                    "name": {"type": "text", "index": true, "fields": {"raw": {"type": "keyword"}}, "copy_to": "all"},
                    "home.city": {"type": "keyword", "doc_values": false},
                },
            },
        })
    }

    #[test]
    fn created_index_does_not_differ_as_elasticsearch_shows_it() {
        let settings = json!({
            "index.number_of_replicas": "2", "index.refresh_interval": "5s", "index.sort.field": ["a"],
            "index.uuid": "x",
        });
        let mappings = json!({
            "dynamic": "strict",
            "properties": {
                "name": {"type": "text", "fields": {"raw": {"type": "keyword"}}, "copy_to": ["all"]},
                "home": {"properties": {"city": {"type": "keyword", "doc_values": false}, "more": {"type": "long"}}},
            },
        });
        assert_eq!(found(&sample(), settings, mappings), Vec::<String>::new());
    }

    #[test]
    fn every_difference_from_the_template_is_reported() {
        let settings = json!({"index.number_of_replicas": "1", "index.sort.field": ["a"]});
        let mappings = json!({
            "properties": {
                "name": {"type": "keyword", "copy_to": ["all"]},
                "home": {"properties": {"city": {"type": "keyword"}}},
            },
        });
        let said = found(&sample(), settings, mappings);
        let begins = [
            "index.number_of_replicas is 1, but the index template says 2",
            "index.refresh_interval is not there, but the index template says 5s",
            "dynamic is true, but the index template says strict",
            "home.city: doc_values is true, but the index template says false",
            "field name.raw is not there, but the index template says keyword",
            "name: type is keyword, but the index template says text",
        ];
        for begin in begins {
            assert!(said.iter().any(|said| said.starts_with(begin)), "{begin}: {said:#?}");
        }
        assert_eq!(said.len(), begins.len(), "{said:#?}");
    }
}
