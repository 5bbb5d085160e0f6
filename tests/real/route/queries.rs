//! Random queries, each by a seed of its own: geo constraints of every shape, in the places of a `bool` where they constrain and in those
//! where they do not, with filters, texts, sorts and pages.

use geofold::base::geo::GeoPoint;
use serde_json::{Value, json};

use super::corpus::{NICKS, TAGS, WORDS};
use super::judge::Scores;
use crate::reference::{away, below, centre, power, sign, stored, turned};
use crate::support::Random;

/// What is asked.
#[derive(Debug, Clone)]
pub enum Ask {
    Search,
    Count,
    /// `_msearch` with these as well.
    Several(Vec<Query>),
    /// Page after page by `search_after`, at most so many. No two documents have the same sort values.
    Pages(usize),
}

/// A query.
#[derive(Debug, Clone)]
pub struct Query {
    pub ask: Ask,
    pub body: Value,
    pub scores: Scores,
    /// What stands in the URL instead of in the body, such as `?size=3`.
    pub url: String,
    /// Scores are to be by the statistics of all documents, as one index has them (`search_type=dfs_query_then_fetch`).
    pub is_global: bool,
    /// A router may refuse it for this feature. If it does not, its answer is right.
    pub optional: Option<&'static str>,
}

/// How the clauses of a query are scored.
#[derive(Clone, Copy, PartialEq)]
enum Scoring {
    /// By the document alone.
    Exact,
    /// By BM25, too.
    Text,
}

/// Makes queries about documents at these places.
pub struct Queries<'a> {
    random: Random,
    places: &'a [GeoPoint],
}

impl<'a> Queries<'a> {
    /// The same seed makes the same query.
    pub fn new(seed: u64, places: &'a [GeoPoint]) -> Self {
        Self { random: Random::new(seed), places }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.random.below(n) == 0
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[below(&mut self.random, from.len())]
    }

    fn place(&mut self) -> GeoPoint {
        self.places[below(&mut self.random, self.places.len())]
    }

    /// A query.
    pub fn query(&mut self) -> Query {
        match self.random.below(10) {
            0 => self.count(),
            1 => {
                let first = self.search();
                let others = (0..self.random.below(4)).map(|_| self.search()).collect();
                Query { ask: Ask::Several(others), ..first }
            }
            2 | 3 => self.pages(),
            4 => {
                let mut query = self.search();
                query.url = into_url(&mut query.body);
                query
            }
            5 => self.nearest(),
            _ => self.search(),
        }
    }

    /// The nearest few, mostly from anywhere: where a router need not ask all geoshards.
    fn nearest(&mut self) -> Query {
        let mut filter = vec![self.leaf()];
        if self.one_in(3) {
            filter.push(self.constraint());
        }
        let mut key = self.by_distance();
        key["_geo_distance"]["order"] = json!("asc");
        if self.one_in(3) {
            // An early stop has to hold for it, too.
            key["_geo_distance"]["distance_type"] = json!("plane");
            // In metres Elasticsearch measures on the globe all the same.
            key["_geo_distance"]["unit"] = json!(self.pick(&["m", "km", "mi"]));
        }
        let mut sort = vec![key];
        if self.one_in(2) {
            sort.push(json!({"uid": "desc"}));
        }
        let size = 1 + self.random.below(30);
        let mut body = json!({"query": {"bool": {"filter": filter}}, "sort": sort, "size": size});
        if self.one_in(2) {
            body["track_total_hits"] = json!(false);
        }
        if self.one_in(4) {
            body["from"] = json!(self.random.below(20));
        }
        let optional = feature_of_sort(&body);
        Query {
            ask: Ask::Search,
            body,
            scores: Scores::Exact,
            url: String::new(),
            is_global: false,
            optional,
        }
    }

    fn count(&mut self) -> Query {
        let query = self.tree(0, Scoring::Text);
        Query {
            ask: Ask::Count,
            body: json!({"query": query}),
            scores: Scores::Exact,
            url: String::new(),
            is_global: false,
            optional: None,
        }
    }

    fn search(&mut self) -> Query {
        let scoring = if self.one_in(4) { Scoring::Text } else { Scoring::Exact };
        let query = self.tree(0, scoring);
        let mut body = json!({"query": query});
        if self.one_in(25) {
            body = json!({});
        }
        // Without a sort it is the score that orders.
        let sort = if self.one_in(4) { Value::Null } else { self.sort(scoring) };
        let shows_scores = sort.is_null() || sort.to_string().contains("_score");
        if !sort.is_null() {
            body["sort"] = sort;
        }
        let mut optional = self.decorate(&mut body);
        if !shows_scores && self.one_in(12) {
            body["track_scores"] = json!(true);
        }
        if self.one_in(12) {
            body["from"] = json!(self.random.below(60));
        }
        if self.one_in(40) {
            body["post_filter"] = self.leaf();
            optional = Some("post_filter");
        }
        if self.one_in(40) {
            body["min_score"] = json!(2);
            optional = Some("min_score");
        }
        optional = optional.or(feature_of_sort(&body));
        let is_scored = shows_scores || body.get("track_scores").is_some() || body.get("min_score").is_some();
        let has_statistics = scoring == Scoring::Text && is_scored;
        let is_global = has_statistics && self.one_in(2);
        let scores = if has_statistics && !is_global { Scores::OfGeoshards } else { Scores::Exact };
        Query { ask: Ask::Search, body, scores, url: String::new(), is_global, optional }
    }

    fn pages(&mut self) -> Query {
        let query = self.tree(0, Scoring::Exact);
        let mut body = json!({"query": query});
        let mut optional = self.decorate(&mut body);
        let mut keys: Vec<Value> = match self.sort(Scoring::Exact) {
            Value::Array(keys) => keys,
            key => vec![key],
        };
        keys.retain(|key| !key.to_string().contains("uid"));
        keys.push(json!({"uid": {"order": self.pick(&["asc", "desc"])}}));
        // A page's number of hits shows where the end is.
        body["sort"] = keys.into();
        body["size"] = json!(1 + self.random.below(400));
        if self.one_in(10) {
            body["track_scores"] = json!(true);
        }
        optional = optional.or(feature_of_sort(&body));
        Query {
            ask: Ask::Pages(12),
            body,
            scores: Scores::Exact,
            url: String::new(),
            is_global: false,
            optional,
        }
    }

    /// What has no influence on which documents match, nor on their order. What a router need not support, if there is any of that.
    fn decorate(&mut self, body: &mut Value) -> Option<&'static str> {
        match self.random.below(10) {
            0 => {}
            1 => body["size"] = json!(0),
            2 => body["size"] = json!(1),
            3 => body["size"] = json!(3_000),
            _ => body["size"] = json!(1 + self.random.below(100)),
        }
        match self.random.below(8) {
            0 => body["track_total_hits"] = json!(true),
            1 => body["track_total_hits"] = json!(false),
            2 => body["track_total_hits"] = json!(1 + self.random.below(300)),
            _ => {}
        }
        match self.random.below(8) {
            0 => body["_source"] = json!(false),
            1 => body["_source"] = json!("name"),
            2 => body["_source"] = json!(["uid", "profile.*"]),
            3 => body["_source"] = json!({"includes": ["*a*"], "excludes": ["tags"]}),
            4 => body["_source"] = json!(true),
            _ => {}
        }
        if self.one_in(6) {
            body["fields"] =
                json!(["name", "tags", "location", "profile.*", {"field": "joined", "format": "yyyy/MM"}]);
        }
        if self.one_in(6) {
            body["highlight"] = json!({"fields": {"bio": {}, "name": {"number_of_fragments": 0}}});
        }
        if self.one_in(8) {
            body["version"] = json!(self.one_in(2));
        }
        if self.one_in(12) {
            body["seq_no_primary_term"] = json!(true);
        }
        let features: [(&'static str, Value); 3] = [
            ("docvalue_fields", json!(["age", "joined"])),
            ("stored_fields", json!(["_routing"])),
            ("timeout", json!("60s")),
        ];
        let (name, value) = features[below(&mut self.random, 3)].clone();
        if !self.one_in(20) {
            return None;
        }
        body[name] = value;
        Some(name)
    }

    // --- What matches --------------------------------------------------------

    fn tree(&mut self, depth: usize, scoring: Scoring) -> Value {
        if depth == 0 && self.one_in(12) {
            return json!({"match_all": {}});
        }
        if depth == 0 && self.one_in(12) {
            return self.scored(scoring);
        }
        let mut clauses = json!({});
        let mut add = |kind: &str, clause: Value, is_array: bool| match &mut clauses[kind] {
            Value::Array(all) => all.push(clause),
            // One clause may stand without an array.
            Value::Null if !is_array => clauses[kind] = clause,
            empty @ Value::Null => *empty = json!([clause]),
            one => *one = json!([one.take(), clause]),
        };
        // Where it constrains, and where it does not.
        if !self.one_in(8) {
            let kind = match self.random.below(10) {
                0..=5 => "filter",
                6 | 7 => "must",
                8 => "must_not",
                _ => "should",
            };
            let shape = self.shape();
            let shape = if kind == "must" || kind == "should" { self.constant(shape) } else { shape };
            add(kind, shape, self.random.below(2) == 0);
        }
        if self.one_in(8) {
            let shape = self.shape();
            add("filter", shape, true);
        }
        for _ in 0..self.random.below(3) {
            let leaf = self.leaf();
            add("filter", leaf, true);
        }
        if self.one_in(2) {
            let clause = self.scored(scoring);
            add("must", clause, self.random.below(2) == 0);
        }
        if self.one_in(4) {
            let leaf = self.leaf();
            add("must_not", leaf, true);
        }
        if self.one_in(3) {
            for _ in 0..1 + self.random.below(3) {
                let clause = self.scored(scoring);
                add("should", clause, true);
            }
        }
        if depth < 3 && self.one_in(3) {
            let inner = self.tree(depth + 1, scoring);
            let kind = self.pick(&["filter", "must", "should", "must_not"]);
            add(kind, inner, true);
        }
        if clauses.get("should").is_some() && self.one_in(3) {
            clauses["minimum_should_match"] = json!(1);
        }
        let tree = json!({"bool": clauses});
        if self.one_in(12) {
            return json!({"constant_score": {"filter": tree, "boost": 2}});
        }
        tree
    }

    /// A clause that scores.
    fn scored(&mut self, scoring: Scoring) -> Value {
        match scoring {
            Scoring::Text if self.one_in(2) => self.text(),
            _ if self.one_in(6) => {
                let field = self.pick(&["location", "work"]);
                let place = self.place();
                let origin = json!({"lat": place.lat(), "lon": place.lon()});
                json!({"distance_feature": {"field": field, "origin": origin, "pivot": "200km", "boost": 4}})
            }
            _ => {
                let leaf = self.leaf();
                self.constant(leaf)
            }
        }
    }

    /// The same clause with a score that sums are exact of, in any order.
    fn constant(&mut self, clause: Value) -> Value {
        let boost = [0.5, 1.0, 2.0, 3.0, 4.0][below(&mut self.random, 5)];
        json!({"constant_score": {"filter": clause, "boost": boost}})
    }

    fn text(&mut self) -> Value {
        let words = [self.pick(&WORDS), self.pick(&WORDS)].join(" ");
        match self.random.below(4) {
            0 => json!({"match": {"bio": {"query": words, "operator": "and"}}}),
            1 => json!({"match_phrase": {"bio": words}}),
            2 => json!({"multi_match": {"query": words, "fields": ["bio", "name^2"]}}),
            _ => json!({"match": {"bio": words}}),
        }
    }

    fn leaf(&mut self) -> Value {
        match self.random.below(10) {
            0 => json!({"term": {"tags": self.pick(&TAGS)}}),
            1 => json!({"terms": {"tags": [self.pick(&TAGS), self.pick(&TAGS), self.pick(&TAGS)]}}),
            2 => json!({"range": {"age": {"gte": 18 + self.random.below(30)}}}),
            3 => json!({"range": {"joined": {"lt": format!("2026-{:02}-01", 1 + self.random.below(12))}}}),
            4 => json!({"term": {"active": {"value": self.one_in(2)}}}),
            5 => json!({"exists": {"field": self.pick(&["nick", "rating", "location"])}}),
            6 => json!({"prefix": {"nick": self.pick(&["a", "A", "z", "東"])}}),
            7 => {
                let count = self.places.len() as u64;
                let ids: Vec<String> = (0..300).map(|_| format!("d{}", self.random.below(count))).collect();
                json!({"ids": {"values": ids}})
            }
            8 => json!({"terms": {"nick": [self.pick(&NICKS), self.pick(&NICKS)]}}),
            _ => self.text(),
        }
    }

    // --- Shapes --------------------------------------------------------------

    /// A geo query of the location that constrains.
    pub fn constraint(&mut self) -> Value {
        loop {
            let shape = self.shape_of("location");
            if !shape.to_string().contains("disjoint") {
                return shape;
            }
        }
    }

    /// A geo query: mostly of the field that geoshards are made by.
    fn shape(&mut self) -> Value {
        let field = if self.one_in(10) { "work" } else { "location" };
        self.shape_of(field)
    }

    fn shape_of(&mut self, field: &str) -> Value {
        match self.random.below(20) {
            0..=7 => self.circle(field),
            8..=11 => self.bounding_box(field),
            12..=14 => {
                let points: Vec<Value> =
                    self.polygon().into_iter().map(|(lat, lon)| json!({"lat": lat, "lon": lon})).collect();
                json!({"geo_polygon": {field: {"points": points}}})
            }
            15 => {
                let (top, left, bottom, right) = self.sides();
                let shape = json!({"type": "envelope", "coordinates": [[left, top], [right, bottom]]});
                json!({"geo_shape": {field: {"shape": shape}}})
            }
            _ => {
                let mut ring: Vec<[f64; 2]> =
                    self.polygon().into_iter().map(|(lat, lon)| [lon, lat]).collect();
                ring.extend(ring.first().copied());
                let shape = json!({"type": "Polygon", "coordinates": [ring]});
                // The last one matches what is outside.
                let relation = self.pick(&["intersects", "intersects", "within", "disjoint"]);
                json!({"geo_shape": {field: {"shape": shape, "relation": relation}}})
            }
        }
    }

    /// A point in one of the forms that Elasticsearch takes.
    fn point(&mut self, at: GeoPoint) -> Value {
        let (lat, lon) = (at.lat(), at.lon());
        match self.random.below(6) {
            0 => json!([lon, lat]),
            1 => json!(format!("{lat},{lon}")),
            2 => json!(format!("POINT ({lon} {lat})")),
            3 => json!(geohash(at)),
            _ => json!({"lat": lat, "lon": lon}),
        }
    }

    fn circle(&mut self, field: &str) -> Value {
        let place = self.place();
        let off = power(&mut self.random, -1.0, 5.0);
        let mut middle = away(&mut self.random, place, off);
        if self.one_in(10) {
            middle = centre(&mut self.random);
        }
        let metres = power(&mut self.random, 0.0, 7.2).max(off);
        let distance = match self.random.below(8) {
            0 => json!(format!("{}km", metres / 1_000.0)),
            1 => json!(format!("{}mi", metres / 1_609.344)),
            2 => json!(format!("{}nmi", metres / 1_852.0)),
            3 => json!(format!("{} yd", metres / 0.9144)),
            4 => json!(metres),
            5 => json!(format!("{metres}")),
            _ => json!(format!("{metres}m")),
        };
        let mut query = json!({"distance": distance, field: self.point(middle)});
        if self.one_in(10) {
            query["distance_type"] = json!("plane");
        }
        if self.one_in(10) {
            query["validation_method"] = json!("STRICT");
        }
        json!({"geo_distance": query})
    }

    /// Top, left, bottom, right; over the antimeridian if left is greater.
    fn sides(&mut self) -> (f64, f64, f64, f64) {
        let place = self.place();
        let (high, wide) = (power(&mut self.random, -4.0, 1.6), power(&mut self.random, -4.0, 1.9));
        let (lat, lon) = stored(place);
        let [top, bottom] = [place.lat() + high, place.lat() - high / 2.0].map(|lat| lat.clamp(-90.0, 90.0));
        // Sometimes a side is exactly at a document.
        let bottom = if self.one_in(4) { lat } else { bottom };
        let left = if self.one_in(4) { lon } else { turned(place.lon() - wide) };
        (top, left, bottom, turned(place.lon() + wide / 2.0))
    }

    fn bounding_box(&mut self, field: &str) -> Value {
        let (top, left, bottom, right) = self.sides();
        let corners = match self.random.below(4) {
            0 => json!({"top_left": [left, top], "bottom_right": {"lat": bottom, "lon": right}}),
            1 => json!({"top_right": format!("{top},{right}"), "bottom_left": [left, bottom]}),
            // West, east, north, south.
            2 if left <= right => json!({"wkt": format!("BBOX ({left}, {right}, {top}, {bottom})")}),
            _ => json!({"top": top, "left": left, "bottom": bottom, "right": right}),
        };
        json!({"geo_bounding_box": {field: corners}})
    }

    /// Convex, and not over the antimeridian, where Elasticsearch would want it cut.
    fn polygon(&mut self) -> Vec<(f64, f64)> {
        let place = self.place();
        let size = power(&mut self.random, -4.0, 1.5);
        let lat = place.lat().clamp(-90.0 + size, 90.0 - size);
        let lon = place.lon().clamp(-180.0 + size, 180.0 - size);
        let turn = std::f64::consts::PI * sign(&mut self.random);
        let corners = 3 + u32::try_from(self.random.below(6)).unwrap();
        let corner = |n: u32| {
            let angle = turn + f64::from(n) * std::f64::consts::TAU / f64::from(corners);
            (lat + size * angle.sin(), lon + size * angle.cos())
        };
        (0..corners).map(corner).collect()
    }

    // --- Order ---------------------------------------------------------------

    fn sort(&mut self, scoring: Scoring) -> Value {
        let keys: Vec<Value> = (0..1 + self.random.below(3)).map(|_| self.key()).collect();
        let mut keys: Vec<Value> = keys;
        if self.one_in(5) && scoring == Scoring::Exact {
            keys.insert(0, json!("_score"));
        }
        if self.one_in(2) {
            keys.push(json!({"uid": "asc"}));
        }
        if keys.len() == 1 && self.one_in(3) { keys.remove(0) } else { keys.into() }
    }

    fn key(&mut self) -> Value {
        let order = self.pick(&["asc", "desc"]);
        match self.random.below(12) {
            0..=3 => self.by_distance(),
            4 => json!({"age": order}),
            5 => json!({"rating": {"order": order, "missing": self.pick(&["_last", "_first"])}}),
            6 => json!({"nick": {"order": order}}),
            7 => {
                let mode = self.pick(&["min", "max", "sum", "avg", "median"]);
                json!({"marks": {"order": order, "mode": mode}})
            }
            8 => {
                // Its texts are in another order than its dates.
                let format = self.pick(&["strict_date_optional_time_nanos", "dd/MM/yyyy"]);
                json!({"joined": {"order": order, "format": format}})
            }
            9 => json!({"name.raw": order}),
            10 => json!("joined"),
            _ => json!({"profile.height": order}),
        }
    }

    fn by_distance(&mut self) -> Value {
        let place = self.place();
        let off = power(&mut self.random, -1.0, 6.0);
        let from = away(&mut self.random, place, off);
        let field = if self.one_in(8) { "work" } else { "location" };
        let mut key = json!({field: self.point(from)});
        if self.one_in(2) {
            key["order"] = json!(if self.one_in(4) { "desc" } else { "asc" });
        }
        if self.one_in(3) {
            key["unit"] = json!(self.pick(&["m", "km", "mi", "ft"]));
        }
        if self.one_in(5) {
            key["distance_type"] = json!(self.pick(&["plane", "plane", "arc"]));
        }
        json!({"_geo_distance": key})
    }
}

/// Moves what may stand in the URL, too.
fn into_url(body: &mut Value) -> String {
    let mut url = String::new();
    let members = body.as_object_mut().unwrap();
    for name in ["size", "from", "track_total_hits", "version", "track_scores"] {
        if let Some(value) = members.remove(name) {
            url += &format!("{}{name}={value}", if url.is_empty() { "?" } else { "&" });
        }
    }
    url
}

/// What a router need not support in a sort.
fn feature_of_sort(body: &Value) -> Option<&'static str> {
    let sort = body["sort"].to_string();
    if sort.contains("\"format\"") { Some("sort.format") } else { None }
}

/// Of twelve characters.
fn geohash(at: GeoPoint) -> String {
    let digits: Vec<char> = "0123456789bcdefghjkmnpqrstuvwxyz".chars().collect();
    let (mut lats, mut lons) = ((-90.0, 90.0), (-180.0, 180.0));
    let mut halve = |is_lon: bool| {
        let (range, value) = if is_lon { (&mut lons, at.lon()) } else { (&mut lats, at.lat()) };
        let middle = (range.0 + range.1) / 2.0;
        let is_upper = value >= middle;
        if is_upper {
            range.0 = middle
        } else {
            range.1 = middle
        }
        usize::from(is_upper)
    };
    let digit =
        |n: usize| digits[(0..5).fold(0, |digit, bit| 2 * digit + halve((5 * n + bit).is_multiple_of(2)))];
    (0..12).map(digit).collect()
}
