//! Where every hit of a query must be: found by reading the query, before anything is asked.
//!
//! The answer errs towards *anywhere*: what is not understood does not constrain. `must_not` never does, and `should` only where
//! one of its branches has to match and each of them constrains.

pub mod shapes;

use serde_json::Value;

use crate::geoshard::cover::Shape;

/// Shapes of one query that are looked at; the rest counts as *anywhere*. Each costs microseconds to milliseconds.
const MAX_SHAPES: usize = 64;

/// The places where a hit may be.
#[derive(Debug, Clone, PartialEq)]
pub enum Region {
    /// Nothing is known.
    Anywhere,
    /// Within a shape.
    Within(Shape),
    /// In all of them.
    All(Vec<Region>),
    /// In at least one of them.
    Any(Vec<Region>),
}

impl Region {
    /// Where the hits of `query` must have their `location`.
    pub fn of_query(query: &Value, location: &str) -> Self {
        Reader { location, left: MAX_SHAPES }.query(query)
    }

    /// Both have to hold.
    pub fn and(self, other: Self) -> Self {
        all(vec![self, other])
    }

    /// Whether nothing is known.
    pub fn is_anywhere(&self) -> bool {
        *self == Self::Anywhere
    }

    /// The shapes in it.
    pub fn shapes(&self) -> Vec<&Shape> {
        match self {
            Self::Anywhere => Vec::new(),
            Self::Within(shape) => vec![shape],
            Self::All(parts) | Self::Any(parts) => parts.iter().flat_map(Self::shapes).collect(),
        }
    }
}

/// Without what says nothing.
fn all(parts: Vec<Region>) -> Region {
    let mut parts: Vec<Region> = parts.into_iter().filter(|part| !part.is_anywhere()).collect();
    match parts.len() {
        0 => Region::Anywhere,
        1 => parts.remove(0),
        _ => Region::All(parts),
    }
}

fn any(parts: Vec<Region>) -> Region {
    let says_nothing = parts.is_empty() || parts.iter().any(Region::is_anywhere);
    if says_nothing { Region::Anywhere } else { Region::Any(parts) }
}

struct Reader<'a> {
    location: &'a str,
    /// Shapes that are still looked at.
    left: usize,
}

impl Reader<'_> {
    /// Recursion ends: a body is at most 128 levels deep, or is not parsed.
    fn query(&mut self, query: &Value) -> Region {
        let Some((name, body)) =
            query.as_object().filter(|members| members.len() == 1).and_then(|members| members.iter().next())
        else {
            return Region::Anywhere;
        };
        let location = self.location;
        match name.as_str() {
            "geo_distance" => self.shape(|| shapes::geo_distance(body, location).map(Region::Within)),
            "geo_bounding_box" => self.shape(|| shapes::geo_bounding_box(body, location).map(Region::Within)),
            "geo_polygon" => self.shape(|| shapes::geo_polygon(body, location).map(Region::Within)),
            "geo_shape" => self.shape(|| shapes::geo_shape(body, location)),
            "bool" => self.clauses(body),
            "constant_score" => self.member(body, "filter"),
            "function_score" | "script_score" => self.member(body, "query"),
            "boosting" => self.member(body, "positive"),
            "dis_max" => self.each(body.get("queries"), any),
            _ => Region::Anywhere,
        }
    }

    fn shape(&mut self, parse: impl FnOnce() -> Option<Region>) -> Region {
        if self.left == 0 {
            return Region::Anywhere;
        }
        let region = parse().unwrap_or(Region::Anywhere);
        match self.left.checked_sub(region.shapes().len()) {
            None => Region::Anywhere,
            Some(left) => {
                self.left = left;
                region
            }
        }
    }

    fn member(&mut self, body: &Value, name: &str) -> Region {
        body.get(name).map_or(Region::Anywhere, |query| self.query(query))
    }

    /// A list of queries, or one of them.
    fn each(&mut self, queries: Option<&Value>, join: fn(Vec<Region>) -> Region) -> Region {
        match queries {
            None => join(Vec::new()),
            Some(Value::Array(queries)) => join(queries.iter().map(|query| self.query(query)).collect()),
            Some(query) => self.query(query),
        }
    }

    fn clauses(&mut self, body: &Value) -> Region {
        let mut parts: Vec<Region> =
            ["filter", "must"].iter().map(|name| self.each(body.get(name), all)).collect();
        if needs_should(body) {
            parts.push(self.each(body.get("should"), any));
        }
        all(parts)
    }
}

/// Whether at least one of `should` has to match.
fn needs_should(body: &Value) -> bool {
    match body.get("minimum_should_match") {
        None => {
            let is_there = |name: &str| match body.get(name) {
                None => false,
                Some(Value::Array(queries)) => !queries.is_empty(),
                Some(_) => true,
            };
            !is_there("filter") && !is_there("must")
        }
        Some(Value::Number(number)) => number.as_i64().is_some_and(|number| number >= 1),
        // A share of the branches may be none of them.
        Some(Value::String(text)) => text.trim().parse::<u32>().is_ok_and(|number| number >= 1),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(lon: i32) -> Value {
        json!({"geo_distance": {"distance": "1km", "p": [lon, 0]}})
    }

    fn within(lon: i32) -> Region {
        Region::Within(shapes::geo_distance(&at(lon)["geo_distance"], "p").unwrap())
    }

    fn region(query: Value) -> Region {
        Region::of_query(&query, "p")
    }

    #[test]
    fn a_constraint_is_found_wherever_it_has_to_hold() {
        for query in [
            at(1),
            json!({"bool": {"filter": at(1)}}),
            json!({"bool": {"filter": [at(1), {"term": {"tag": "x"}}], "must_not": [at(2)], "should": [at(3)]}}),
            json!({"bool": {"must": [{"bool": {"must": [{"bool": {"filter": [at(1)]}}]}}]}}),
            json!({"constant_score": {"filter": at(1), "boost": 2}}),
            json!({"function_score": {"query": {"bool": {"filter": at(1)}}, "functions": []}}),
            json!({"script_score": {"query": at(1), "script": {"source": "1"}}}),
            json!({"boosting": {"positive": at(1), "negative": at(2), "negative_boost": 0.5}}),
            json!({"bool": {"must": {"match": {"a": "b"}}, "filter": at(1), "minimum_should_match": 0, "should": at(2)}}),
        ] {
            assert_eq!(region(query.clone()), within(1), "{query}");
        }
    }

    #[test]
    fn several_constraints_hold_together_or_in_turn() {
        let both = json!({"bool": {"filter": [at(1)], "must": [at(2)]}});
        assert_eq!(region(both), Region::All(vec![within(1), within(2)]));
        for either in [
            json!({"bool": {"should": [at(1), at(2)]}}),
            json!({"bool": {"should": [at(1), at(2)], "filter": []}}),
            json!({"bool": {"should": [at(1), at(2)], "must": {"term": {"a": 1}}, "minimum_should_match": 1}}),
            json!({"bool": {"should": [at(1), at(2)], "minimum_should_match": "2"}}),
            json!({"dis_max": {"queries": [at(1), at(2)]}}),
        ] {
            assert_eq!(region(either.clone()), Region::Any(vec![within(1), within(2)]), "{either}");
        }
    }

    #[test]
    fn what_need_not_hold_does_not_constrain() {
        for query in [
            json!({"match_all": {}}),
            json!({"bool": {"must_not": at(1)}}),
            json!({"bool": {"must": {"match_all": {}}, "should": [at(1)]}}),
            json!({"bool": {"filter": {"match_all": {}}, "should": at(1)}}),
            json!({"bool": {"should": [at(1), {"term": {"a": 1}}]}}),
            json!({"bool": {"should": [at(1), at(2)], "minimum_should_match": 0}}),
            json!({"bool": {"should": [at(1), at(2)], "minimum_should_match": "75%"}}),
            json!({"bool": {"should": [at(1), at(2)], "minimum_should_match": -1}}),
            json!({"bool": {"should": []}}),
            json!({"bool": {"must": {"bool": {"must_not": [{"bool": {"must_not": at(1)}}]}}}}),
            json!({"nested": {"path": "q", "query": at(1)}}),
            json!({"has_child": {"type": "q", "query": at(1)}}),
            json!({"wrapper": {"query": "e30="}}),
            json!({"geo_distance": {"distance": "1km", "q": [1, 0]}}),
            json!({"geo_distance": {"distance": "1km", "p": [1, 0]}, "term": {"a": 1}}),
            json!({"boosting": {"positive": {"match_all": {}}, "negative": at(1)}}),
            json!({}),
            json!(7),
            Value::Null,
        ] {
            assert_eq!(region(query.clone()), Region::Anywhere, "{query}");
        }
    }

    #[test]
    fn of_very_many_shapes_some_are_looked_at() {
        let queries: Vec<Value> = (0..100).map(at).collect();
        let region = region(json!({"bool": {"filter": queries}}));
        assert_eq!(region.shapes().len(), MAX_SHAPES);
        let either: Vec<Value> = (0..100).map(at).collect();
        assert_eq!(Region::of_query(&json!({"bool": {"should": either}}), "p"), Region::Anywhere);
    }
}
