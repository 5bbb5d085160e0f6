//! Queries, each tested against every document.

use std::cell::OnceCell;

use serde_json::Value;

use super::{count_of, parsing};
use crate::testkit::embedded::elasticsearch::error::EsError;
use crate::testkit::embedded::elasticsearch::geo::{QueryBox as GeoBox, QueryCircle};
use crate::testkit::embedded::elasticsearch::index::{Doc, StoredIndex};
use crate::testkit::embedded::elasticsearch::mapping;

pub(super) enum Query {
    All,
    None,
    Ids(Vec<String>),
    /// The field has one of these terms.
    Terms(String, Vec<Value>),
    Exists(String),
    Within(String, Area),
    Bool {
        all: Vec<Query>,
        none: Vec<Query>,
        some: Vec<Query>,
        at_least: usize,
    },
}

pub(super) enum Area {
    Circle(QueryCircle),
    Box(GeoBox),
}

impl Query {
    pub(super) fn parse(value: &Value) -> Result<Self, EsError> {
        let Some((name, body)) =
            value.as_object().filter(|query| query.len() == 1).and_then(|q| q.iter().next())
        else {
            return Err(parsing("[_na] query malformed, it must be an object with one query"));
        };
        let malformed = || parsing(format!("[{name}] query malformed"));
        // The field of queries that have one, beside parameters of the query itself.
        let field = |parameters: &[&str]| {
            let mut fields = body.as_object().into_iter().flatten();
            fields.find(|(key, _)| !parameters.contains(&key.as_str())).ok_or_else(malformed)
        };
        Ok(match name.as_str() {
            "match_all" => Self::All,
            "match_none" => Self::None,
            "ids" => {
                let values = body.get("values").and_then(Value::as_array).ok_or_else(malformed)?;
                Self::Ids(values.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            }
            "term" => {
                let (field, term) = field(&["boost", "_name"])?;
                Self::Terms(field.clone(), vec![term.get("value").unwrap_or(term).clone()])
            }
            "terms" => {
                let (field, terms) = field(&["boost", "_name"])?;
                Self::Terms(field.clone(), terms.as_array().ok_or_else(malformed)?.clone())
            }
            "exists" => {
                Self::Exists(body.get("field").and_then(Value::as_str).ok_or_else(malformed)?.to_owned())
            }
            "geo_distance" => {
                let (field, centre) =
                    field(&["distance", "distance_type", "validation_method", "boost", "_name"])?;
                let circle = QueryCircle::new(body.get("distance").unwrap_or(&Value::Null), centre);
                Self::Within(field.clone(), Area::Circle(circle.ok_or_else(malformed)?))
            }
            "geo_bounding_box" => {
                let (field, corners) = field(&["type", "validation_method", "boost", "_name"])?;
                Self::Within(field.clone(), Area::Box(GeoBox::new(corners).ok_or_else(malformed)?))
            }
            "bool" => {
                let clauses = |name: &str| match body.get(name) {
                    None => Ok(Vec::new()),
                    Some(Value::Array(items)) => items.iter().map(Self::parse).collect(),
                    Some(one) => Ok(vec![Self::parse(one)?]),
                };
                let mut all = clauses("filter")?;
                all.extend(clauses("must")?);
                let (none, some) = (clauses("must_not")?, clauses("should")?);
                let default = usize::from(all.is_empty() && !some.is_empty());
                let at_least = body
                    .get("minimum_should_match")
                    .map_or(Ok(default), |n| count_of("minimum_should_match", n))?;
                Self::Bool { all, none, some, at_least }
            }
            _ => return Err(parsing(format!("unknown query [{name}]"))),
        })
    }

    /// Errors that depend on the index's mapping.
    pub(super) fn check(&self, index: &StoredIndex) -> Result<(), EsError> {
        match self {
            Self::Within(path, area) => {
                let query = match area {
                    Area::Circle(_) => "geo_distance",
                    Area::Box(_) => "geo_bounding_box",
                };
                let reason = match mapping::field(&index.mappings, path).map(mapping::kind) {
                    Some("geo_point") => return Ok(()),
                    Some(kind) => {
                        format!("Field [{path}] is of unsupported type [{kind}] for [{query}] query")
                    }
                    None => format!("failed to find geo field [{path}]"),
                };
                let error = EsError::new(400, "query_shard_exception", reason);
                Err(error.with("index_uuid", &index.uuid).with("index", &index.name))
            }
            Self::Bool { all, none, some, .. } => {
                all.iter().chain(none).chain(some).try_for_each(|query| query.check(index))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn matches(&self, index: &StoredIndex, candidate: &Candidate<'_>) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Ids(ids) => ids.iter().any(|id| **id == *candidate.doc.id),
            Self::Terms(path, terms) if path == "_id" => {
                terms.iter().any(|term| term.as_str() == Some(&candidate.doc.id))
            }
            Self::Terms(path, terms) => candidate.has_term(index, path, terms),
            Self::Exists(path) => candidate.has_field(index, path),
            Self::Within(path, area) => {
                let Some(number) = index.geo_field_number(path) else { return false };
                let mut points = candidate.doc.points.iter().filter(|(field, _)| *field == number);
                points.any(|(_, point)| match area {
                    Area::Circle(circle) => circle.contains(*point),
                    Area::Box(sides) => sides.contains(*point),
                })
            }
            Self::Bool { all, none, some, at_least } => {
                all.iter().all(|query| query.matches(index, candidate))
                    && !none.iter().any(|query| query.matches(index, candidate))
                    && some.iter().filter(|query| query.matches(index, candidate)).count() >= *at_least
            }
        }
    }
}

/// A document to test; its source is parsed at most once.
pub(super) struct Candidate<'d> {
    doc: &'d Doc,
    source: OnceCell<Value>,
}

impl<'d> Candidate<'d> {
    pub(super) fn new(doc: &'d Doc) -> Self {
        Self { doc, source: OnceCell::new() }
    }

    pub(super) fn values(&self, path: &str) -> Vec<&Value> {
        let source = self.source.get_or_init(|| serde_json::from_slice(&self.doc.source).unwrap_or_default());
        let mut found = Vec::new();
        collect(source, path, &mut found);
        found
    }

    fn has_term(&self, index: &StoredIndex, path: &str, terms: &[Value]) -> bool {
        // A keyword beside a text, as Elasticsearch maps new strings.
        let beside = path.rsplit_once('.').filter(|(parent, name)| {
            mapping::field(&index.mappings, path).is_none()
                && mapping::field(&index.mappings, parent)
                    .is_some_and(|field| field.get("fields").is_some_and(|fields| fields.get(name).is_some()))
        });
        let mapped = beside.map_or(path, |(parent, _)| parent);
        let Some(field) = mapping::field(&index.mappings, mapped) else { return false };
        let is_text = beside.is_none() && mapping::kind(field) == "text";
        let fits = |value: &Value, term: &Value| match value {
            Value::String(text) if is_text => {
                let mut words = text.split(|c: char| !c.is_alphanumeric());
                words.any(|word| !word.is_empty() && term.as_str() == Some(&word.to_lowercase()))
            }
            _ => same(value, term),
        };
        self.values(mapped).into_iter().any(|value| terms.iter().any(|term| fits(value, term)))
    }

    fn has_field(&self, index: &StoredIndex, path: &str) -> bool {
        match mapping::field(&index.mappings, path) {
            None => false,
            Some(field) if mapping::kind(field) == "geo_point" => index
                .geo_field_number(path)
                .is_some_and(|n| self.doc.points.iter().any(|(field, _)| *field == n)),
            Some(_) => !self.values(path).is_empty(),
        }
    }
}

/// Single values of a field; lists are taken apart.
fn collect<'v>(value: &'v Value, path: &str, found: &mut Vec<&'v Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, path, found)),
        Value::Null => {}
        value if path.is_empty() => found.push(value),
        Value::Object(members) => {
            if let Some(member) = members.get(path) {
                collect(member, "", found);
            } else if let Some((first, rest)) = path.split_once('.')
                && let Some(member) = members.get(first)
            {
                collect(member, rest, found);
            }
        }
        _ => {}
    }
}

/// Whether a value is a term: numbers and booleans may be written as text.
fn same(value: &Value, term: &Value) -> bool {
    let number = |value: &Value| match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match value {
        Value::Number(_) => number(value) == number(term),
        _ => text(value) == text(term),
    }
}
