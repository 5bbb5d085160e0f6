//! `filter_path`, and the paths of `_source`: the members of a response to return.

use serde_json::{Map, Value};

/// Dotted patterns: `*` stands for anything within a name, `**` for any names. Lists do not count as a level.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct FilterPath(Vec<Vec<String>>);

impl FilterPath {
    pub(crate) fn new<'a>(patterns: impl Iterator<Item = &'a str>) -> Self {
        Self(patterns.map(|pattern| pattern.split('.').map(str::to_owned).collect()).collect())
    }

    /// Whether the member at this path is wanted.
    pub(crate) fn wants(&self, path: &[&str]) -> bool {
        self.0.iter().any(|pattern| reaches(pattern, path))
    }

    /// The wanted part of an object; empty if nothing is.
    pub(crate) fn apply(&self, value: &Value) -> Value {
        let patterns: Vec<&[String]> = self.0.iter().map(Vec::as_slice).collect();
        part(value, &patterns).unwrap_or_else(|| Value::Object(Map::new()))
    }
}

fn reaches(pattern: &[String], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], _) => true,
        (_, []) => false,
        ([any, rest @ ..], [_, deeper @ ..]) if any == "**" => {
            reaches(rest, path) || reaches(pattern, deeper)
        }
        ([first, rest @ ..], [name, deeper @ ..]) => fits(first, name) && reaches(rest, deeper),
    }
}

fn part(value: &Value, patterns: &[&[String]]) -> Option<Value> {
    if patterns.iter().any(|pattern| pattern.is_empty()) {
        return Some(value.clone());
    }
    match value {
        Value::Array(items) => {
            let kept: Vec<Value> = items.iter().filter_map(|item| part(item, patterns)).collect();
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        Value::Object(members) => {
            let mut kept = Map::new();
            for (name, member) in members {
                let deeper: Vec<&[String]> =
                    patterns.iter().flat_map(|pattern| steps(pattern, name)).collect();
                if !deeper.is_empty()
                    && let Some(member) = part(member, &deeper)
                {
                    kept.insert(name.clone(), member);
                }
            }
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        _ => None,
    }
}

/// The rest of a pattern below a member of this name.
fn steps<'p>(pattern: &'p [String], name: &str) -> Vec<&'p [String]> {
    match pattern {
        [any, rest @ ..] if any == "**" => {
            let mut left = steps(rest, name);
            left.push(pattern);
            left
        }
        [first, rest @ ..] if fits(first, name) => vec![rest],
        _ => Vec::new(),
    }
}

/// Whether `name` fits a pattern in which `*` stands for anything.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(begin) else { return false };
    name.char_indices().map(|(at, _)| at).chain([name.len()]).any(|at| fits(rest, &name[at..]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_filter_keeps_what_its_patterns_reach() {
        let filter = FilterPath::new("errors,items.*.status,**.port".split(','));
        let value = json!({"errors": false, "took": 1, "items": [{"index": {"status": 201, "_id": "a"}}],
                           "nodes": {"x": {"http": {"port": 9200}, "name": "n"}}});
        let kept = json!({"errors": false, "items": [{"index": {"status": 201}}],
                          "nodes": {"x": {"http": {"port": 9200}}}});
        assert_eq!(filter.apply(&value), kept);
        assert!(filter.wants(&["items", "delete", "status"]));
        assert!(!filter.wants(&["items", "delete", "_id"]));
        assert_eq!(FilterPath::new(["no.such"].into_iter()).apply(&value), json!({}));
    }
}
