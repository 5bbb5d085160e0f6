//! The sort of a search, by what geofold and its demo sort by.

use std::cmp::Ordering;

use serde_json::{Value, json};

use super::parsing;
use super::query::Candidate;
use crate::base::geo::Distance;
use crate::testkit::embedded::elasticsearch::error::EsError;
use crate::testkit::embedded::elasticsearch::geo::QueryCircle;
use crate::testkit::embedded::elasticsearch::index::{Doc, StoredIndex};
use crate::testkit::embedded::elasticsearch::mapping;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Key {
    Index,
    Doc,
    ShardDoc,
    Distance,
    Score,
    /// The field at this place of [`HitSort::fields`].
    Field(usize),
}

/// The parsed `sort`.
#[derive(Default)]
pub(super) struct HitSort {
    /// Each with whether it is descending.
    pub(super) keys: Vec<(Key, bool)>,
    /// The field and the point that distances are measured to: a circle around it.
    pub(super) near: Option<(String, QueryCircle)>,
    /// Metres of the unit of reported distances.
    pub(super) unit: Option<f64>,
    /// Distances are on a plane, not on the globe.
    pub(super) is_planar: bool,
    /// Fields of documents that are sorted by.
    pub(super) fields: Vec<String>,
}

impl HitSort {
    pub(super) fn parse(value: &Value) -> Result<Self, EsError> {
        let items = match value {
            Value::Array(items) => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        let mut sort = Self::default();
        for item in items {
            let key = match item {
                Value::String(name) => (sort.key(name)?, name == "_score"),
                Value::Object(members) if members.len() == 1 => {
                    let (name, order) = members.iter().next().unzip();
                    let order = order.unwrap_or(&Value::Null);
                    let key = match name.map_or("", String::as_str) {
                        "_geo_distance" => sort.take_near(order)?,
                        name => sort.key(name)?,
                    };
                    let order = order.get("order").unwrap_or(order);
                    (key, order == "desc" || (key == Key::Score && order != "asc"))
                }
                _ => return Err(parsing("malformed sort format")),
            };
            sort.keys.push(key);
        }
        Ok(sort)
    }

    fn key(&mut self, name: &str) -> Result<Key, EsError> {
        Ok(match name {
            "_index" => Key::Index,
            "_doc" => Key::Doc,
            "_shard_doc" => Key::ShardDoc,
            "_score" => Key::Score,
            field if !field.starts_with('_') => {
                self.fields.push(field.to_owned());
                Key::Field(self.fields.len() - 1)
            }
            _ => return Err(EsError::illegal_argument(format!("the stand-in does not sort by [{name}]"))),
        })
    }

    /// From the body of `_geo_distance`: one point, and a unit.
    fn take_near(&mut self, body: &Value) -> Result<Key, EsError> {
        const OPTIONS: [&str; 3] = ["order", "unit", "distance_type"];
        let fields = body.as_object().into_iter().flatten();
        let mut fields = fields.filter(|(name, _)| !OPTIONS.contains(&name.as_str()));
        let (Some((field, centre)), None) = (fields.next(), fields.next()) else {
            return Err(parsing(
                "the stand-in sorts by the distance to one point, with [order], [unit] and [distance_type] alone",
            ));
        };
        if let Some(unit) = body.get("unit") {
            let unit = unit.as_str().and_then(|unit| format!("1{unit}").parse::<Distance>().ok());
            self.unit = Some(unit.ok_or_else(|| parsing("No distance unit match"))?.metres());
        }
        // The nearest first, in metres, are measured on the globe, whatever is asked for.
        let is_on_globe = body["order"] != "desc" && self.unit.is_none_or(|metres| metres == 1.0);
        self.is_planar = match body.get("distance_type").map(|kind| kind.as_str().unwrap_or_default()) {
            None | Some("arc") => false,
            Some("plane") => !is_on_globe,
            Some(other) => {
                return Err(EsError::illegal_argument(format!(
                    "No geo distance for [{}]",
                    other.to_lowercase()
                )));
            }
        };
        let circle =
            QueryCircle::new(&json!(0), centre).ok_or_else(|| parsing("[_geo_distance] has no point"))?;
        self.near = Some((field.clone(), circle));
        Ok(Key::Distance)
    }

    /// Errors that depend on the index's mapping.
    pub(super) fn check(&self, index: &StoredIndex) -> Result<(), EsError> {
        for field in &self.fields {
            if mapping::field(&index.mappings, field).is_none() {
                let reason = format!("No mapping found for [{field}] in order to sort on");
                let error = EsError::new(400, "query_shard_exception", reason);
                return Err(error.with("index_uuid", &index.uuid).with("index", &index.name));
            }
        }
        match &self.near {
            Some((field, _)) if mapping::field(&index.mappings, field).is_none() => {
                Err(EsError::illegal_argument(format!(
                    "failed to find mapper for [{field}] for geo distance based sort"
                )))
            }
            _ => Ok(()),
        }
    }

    /// How far the nearest of a document's points is.
    pub(super) fn metres(&self, index: &StoredIndex, doc: &Doc) -> f64 {
        let Some((field, circle)) = &self.near else { return 0.0 };
        let number = index.geo_field_number(field);
        let points = doc.points.iter().filter(|(field, _)| Some(*field) == number);
        let to = if self.is_planar { QueryCircle::planar_metres_to } else { QueryCircle::metres_to };
        let metres = points.map(|(_, point)| to(circle, *point)).fold(f64::INFINITY, f64::min);
        self.unit.map_or(metres, |unit| metres / unit)
    }

    /// The value of each field that is sorted by: of several the first, null for none.
    pub(super) fn values(&self, index: &StoredIndex, doc: &Doc) -> Vec<Value> {
        if self.fields.is_empty() {
            return Vec::new();
        }
        let candidate = Candidate::new(doc);
        let value = |field: &String| {
            let value = candidate.values(field).first().map_or(Value::Null, |value| (*value).clone());
            let is_number = mapping::field(&index.mappings, field)
                .is_some_and(|field| !matches!(mapping::kind(field), "keyword" | "text"));
            // Elasticsearch sorts a missing number as the highest value.
            match (&value, is_number, self.is_descending(field)) {
                (Value::Null, true, false) => json!(i64::MAX),
                (Value::Null, true, true) => json!(i64::MIN),
                _ => value,
            }
        };
        self.fields.iter().map(value).collect()
    }

    pub(super) fn is_descending(&self, field: &str) -> bool {
        let is_it = |key: &Key| matches!(key, Key::Field(place) if self.fields[*place] == field);
        self.keys.iter().any(|(key, is_descending)| is_it(key) && *is_descending)
    }
}

/// Of two values of a field; null is last either way.
pub(super) fn in_order(a: &Value, b: &Value, is_descending: bool) -> Ordering {
    let order = match (a, b) {
        (Value::Null, Value::Null) => return Ordering::Equal,
        (Value::Null, _) => return Ordering::Greater,
        (_, Value::Null) => return Ordering::Less,
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (a, b) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().unwrap_or(f64::NAN).total_cmp(&b.as_f64().unwrap_or(f64::NAN)),
        },
    };
    if is_descending { order.reverse() } else { order }
}
