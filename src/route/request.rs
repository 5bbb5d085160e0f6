//! A search as the client wrote it, checked: what is passed on, what the router does itself, and what it refuses by name.
//!
//! Refused is what answers of several indices, with a document perhaps in two of them, do not add up to exactly. Members and
//! parameters that are not known are refused, too: what they mean for merging is not known.

use serde_json::{Map, Value, json};

use super::constraint::Region;
use super::error::{RouterRefusal, quoted};
use super::sort::Sort;

/// `index.max_result_window` of Elasticsearch.
pub const MAX_WINDOW: usize = 10_000;
/// Hits without `size`.
const DEFAULT_SIZE: usize = 10;
/// Hits that are counted exactly without `track_total_hits`.
const DEFAULT_COUNTED: u64 = 10_000;

/// Members of the body that are passed on: they say what a hit is, or what of it is wanted.
const PASSED: [&str; 14] = [
    "query",
    "post_filter",
    "sort",
    "search_after",
    "_source",
    "fields",
    "docvalue_fields",
    "stored_fields",
    "script_fields",
    "highlight",
    "explain",
    "min_score",
    "track_scores",
    "seq_no_primary_term",
];

/// What is refused in a body, and why.
const REFUSED: [(&str, &str); 18] = [
    ("aggs", AGGREGATIONS),
    ("aggregations", AGGREGATIONS),
    ("collapse", "the groups of several geoshards cannot be merged exactly"),
    ("rescore", "each geoshard would rescore a window of its own"),
    ("suggest", "suggestions of several geoshards cannot be merged exactly"),
    ("knn", "the nearest vectors of several geoshards cannot be merged exactly"),
    ("rank", "ranks of several geoshards cannot be merged exactly"),
    ("retriever", "ranks of several geoshards cannot be merged exactly"),
    (
        "pit",
        "a point in time holds the geoshards of one moment, and the map may change; page with search_after",
    ),
    ("slice", "it needs a point in time; page with search_after"),
    ("scroll", "a scroll holds the geoshards of one moment, and the map may change; page with search_after"),
    ("terminate_after", "each geoshard would stop by itself, and the hits would depend on the map"),
    ("profile", "it would describe geoshards, not the search; profile one index at Elasticsearch itself"),
    ("indices_boost", "the names of geoshards change with the map"),
    ("ext", "its meaning for several indices is not known"),
    ("derived", "its meaning for several indices is not known"),
    ("sub_searches", "ranks of several geoshards cannot be merged exactly"),
    (
        "runtime_mappings",
        "a runtime field may hide the location that documents are placed by; map it in the indices",
    ),
];

const AGGREGATIONS: &str = "a document that is just moving would be counted twice; ask the indices at Elasticsearch itself where that is good enough";

/// How many hits are to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackTotalHits {
    /// None: there is no `hits.total`.
    Nothing,
    /// Exactly up to this number.
    UpTo(u64),
    /// Exactly.
    All,
}

impl TrackTotalHits {
    /// As `track_total_hits`.
    pub fn to_value(self) -> Value {
        match self {
            Self::Nothing => json!(false),
            Self::UpTo(most) => json!(most),
            Self::All => json!(true),
        }
    }
}

/// A search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchRequest {
    /// Members of the body that are passed on as they are.
    pub body: Map<String, Value>,
    /// Parameters of the query string that are passed on as they are.
    pub parameters: Vec<(&'static str, String)>,
    /// Hits to leave out.
    pub from: usize,
    /// Hits wanted.
    pub size: usize,
    /// What is counted.
    pub counted: TrackTotalHits,
    /// The order.
    pub sort: Sort,
    /// The client wants `_version`.
    pub version: bool,
    /// Elasticsearch's own limit for a shard's part, as the client wrote it.
    pub timeout: Option<String>,
    /// An answer may lack what some shards did not say: only if the client says so itself.
    pub partial: bool,
    /// Scores by the statistics of all geoshards (`search_type=dfs_query_then_fetch`).
    pub global_scores: bool,
    /// Patterns of `filter_path`.
    pub filter_path: Option<String>,
    /// Where every hit is.
    pub region: Region,
}

/// A count.
#[derive(Debug, Clone, PartialEq)]
pub struct CountRequest {
    /// `query`, or nothing.
    pub body: Map<String, Value>,
    /// Parameters of the query string that are passed on as they are.
    pub parameters: Vec<(&'static str, String)>,
    /// Patterns of `filter_path`.
    pub filter_path: Option<String>,
    /// Where every hit is.
    pub region: Region,
}

/// The body of a search: an object, or nothing at all.
pub fn parse_body(bytes: &[u8]) -> Result<Map<String, Value>, RouterRefusal> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(body)) => Ok(body),
        Ok(_) => Err(RouterRefusal::parsing("the body of a search is a JSON object")),
        Err(error) => Err(RouterRefusal::parsing(format!("the body of the search is not JSON: {error}"))),
    }
}

impl SearchRequest {
    /// Checks a body and the parameters of the query string (or of a line of `_msearch`). `location`: the field that documents
    /// are placed by.
    pub fn new(
        mut body: Map<String, Value>,
        parameters: &[(String, String)],
        location: &str,
    ) -> Result<Self, RouterRefusal> {
        let mut request = Self {
            body: Map::new(),
            parameters: Vec::new(),
            from: 0,
            size: DEFAULT_SIZE,
            counted: TrackTotalHits::UpTo(DEFAULT_COUNTED),
            sort: Sort::default(),
            version: false,
            timeout: None,
            partial: false,
            global_scores: false,
            filter_path: None,
            region: Region::Anywhere,
        };
        for (name, value) in parameters {
            request.parameter(name, value, &mut body)?;
        }
        for (name, value) in body {
            request.member(name, value, location)?;
        }
        request.check(location)?;
        Ok(request)
    }

    /// A parameter of the query string. Those that stand for a member of the body win over it, as in Elasticsearch.
    fn parameter(
        &mut self,
        name: &str,
        value: &str,
        body: &mut Map<String, Value>,
    ) -> Result<(), RouterRefusal> {
        let mut set = |member: &str, value: Value| drop(body.insert(member.to_owned(), value));
        match name {
            "size" | "from" => set(name, json!(whole(name, value)?)),
            "sort" => set(name, Sort::parse_parameter(value)),
            "search_type" => match value {
                "query_then_fetch" => {}
                "dfs_query_then_fetch" => self.global_scores = true,
                _ => return Err(RouterRefusal::bad(format!("No search type for [{}]", quoted(value)))),
            },
            "track_total_hits" => set(
                name,
                match value {
                    "true" | "" => json!(true),
                    "false" => json!(false),
                    number => json!(whole(name, number)?),
                },
            ),
            "version" | "explain" | "track_scores" | "seq_no_primary_term" => {
                set(name, json!(flag(name, value)?))
            }
            "timeout" => set(name, json!(value)),
            "_source" => match value {
                "true" | "false" => set(name, json!(value == "true")),
                paths => set(name, paths.split(',').collect()),
            },
            "_source_includes" | "_source_excludes" => {
                let key = if name == "_source_includes" { "includes" } else { "excludes" };
                let mut source = match body.remove("_source") {
                    Some(Value::Object(source)) => source,
                    Some(paths @ (Value::Array(_) | Value::String(_))) => {
                        Map::from_iter([("includes".to_owned(), paths)])
                    }
                    _ => Map::new(),
                };
                source.insert(key.to_owned(), value.split(',').collect());
                body.insert("_source".to_owned(), Value::Object(source));
            }
            "stored_fields" => set(name, value.split(',').collect()),
            "docvalue_fields" => set(name, value.split(',').collect()),
            "allow_partial_search_results" => self.partial = flag(name, value)?,
            "filter_path" => self.filter_path = Some(filter_path(value)?),
            _ => passed_on(name, value, &mut self.parameters)?,
        }
        Ok(())
    }

    fn member(&mut self, name: String, value: Value, location: &str) -> Result<(), RouterRefusal> {
        match name.as_str() {
            "size" => self.size = number(&name, &value)?,
            "from" => self.from = number(&name, &value)?,
            "version" => self.version = truth(&name, &value)?,
            "timeout" => {
                let text = value
                    .as_str()
                    .ok_or_else(|| RouterRefusal::parsing("[timeout] is a text such as \"500ms\""))?;
                self.timeout = Some(text.to_owned());
            }
            "track_total_hits" => {
                self.counted = match &value {
                    Value::Bool(true) => TrackTotalHits::All,
                    Value::Bool(false) => TrackTotalHits::Nothing,
                    value if value.as_i64() == Some(-1) => TrackTotalHits::Nothing,
                    value => TrackTotalHits::UpTo(number(&name, value)? as u64),
                };
            }
            "stats" => {}
            known if PASSED.contains(&known) => {
                if known == "sort" {
                    self.sort = Sort::parse(&value, location)?;
                }
                if known == "stored_fields" && is_none(&value) {
                    return Err(RouterRefusal::unsupported(
                        "stored_fields: _none_",
                        "a hit without its _id cannot be told from its copy; use _source: false",
                    ));
                }
                self.body.insert(name, value);
            }
            other => {
                if let Some((name, why)) = REFUSED.iter().find(|(name, _)| *name == other) {
                    return Err(RouterRefusal::unsupported(name, why));
                }
                return Err(RouterRefusal::parsing(format!(
                    "unknown key [{}] in a search; geofold route passes on what it knows",
                    quoted(other)
                )));
            }
        }
        Ok(())
    }

    fn check(&mut self, location: &str) -> Result<(), RouterRefusal> {
        let window = self.from.saturating_add(self.size);
        if window > MAX_WINDOW {
            return Err(RouterRefusal::bad(format!(
                "Result window is too large, from + size must be less than or equal to: [{MAX_WINDOW}] but was [{window}]; \
                 page with search_after"
            )));
        }
        if let Some(after) = self.body.get("search_after") {
            if self.from > 0 {
                return Err(RouterRefusal::bad(
                    "[from] parameter must be set to 0 or -1 when [search_after] is used".to_owned(),
                ));
            }
            if self.sort.keys.is_empty() {
                return Err(RouterRefusal::bad("Sort must contain at least one field."));
            }
            let values = after.as_array().map(Vec::len).unwrap_or_default();
            let keys = self.sort.keys.len();
            if values != keys {
                return Err(RouterRefusal::bad(format!(
                    "search_after has {values} value(s) but sort has {keys}."
                )));
            }
        }
        let of = |name: &str| {
            self.body.get(name).map_or(Region::Anywhere, |query| Region::of_query(query, location))
        };
        self.region = of("query").and(of("post_filter"));
        Ok(())
    }

    /// Whether hits are scored by the frequencies of terms, which differ from one geoshard to the next.
    pub fn scores_by_statistics(&self) -> bool {
        let is_scored = self.sort.uses_score()
            || self.body.get("track_scores") == Some(&Value::Bool(true))
            || self.body.contains_key("min_score");
        is_scored && self.body.get("query").is_some_and(uses_statistics)
    }

    /// The search that counts: no hits, and all of them counted.
    pub fn for_count(count: &CountRequest) -> Self {
        Self {
            body: count.body.clone(),
            parameters: count.parameters.clone(),
            from: 0,
            size: 0,
            counted: TrackTotalHits::All,
            sort: Sort::default(),
            version: false,
            timeout: None,
            partial: false,
            global_scores: false,
            filter_path: None,
            region: count.region.clone(),
        }
    }

    /// The body for Elasticsearch: `size` hits behind the first `from`, and what is counted.
    pub fn upstream(
        &self,
        from: usize,
        size: usize,
        counted: TrackTotalHits,
        with_version: bool,
        timeout: Option<&str>,
    ) -> Vec<u8> {
        let mut body = self.body.clone();
        if from > 0 {
            body.insert("from".to_owned(), json!(from));
        }
        body.insert("size".to_owned(), json!(size));
        body.insert("track_total_hits".to_owned(), counted.to_value());
        if with_version || self.version {
            body.insert("version".to_owned(), json!(true));
        }
        if let Some(timeout) = timeout {
            body.insert("timeout".to_owned(), json!(timeout));
        }
        if size == 0 {
            // Elasticsearch refuses it without hits.
            body.remove("search_after");
        }
        Value::Object(body).to_string().into_bytes()
    }
}

impl CountRequest {
    /// Checks a body and the parameters of the query string.
    pub fn new(
        body: Map<String, Value>,
        parameters: &[(String, String)],
        location: &str,
    ) -> Result<Self, RouterRefusal> {
        let mut request =
            Self { body: Map::new(), parameters: Vec::new(), filter_path: None, region: Region::Anywhere };
        for (name, value) in parameters {
            match name.as_str() {
                "filter_path" => request.filter_path = Some(filter_path(value)?),
                "min_score" => {
                    return Err(RouterRefusal::unsupported(
                        name,
                        "scores of geoshards differ; count with a search",
                    ));
                }
                _ => passed_on(name, value, &mut request.parameters)?,
            }
        }
        for (name, value) in body {
            if name != "query" {
                return Err(RouterRefusal::parsing(format!("request does not support [{}]", quoted(&name))));
            }
            request.region = Region::of_query(&value, location);
            request.body.insert(name, value);
        }
        Ok(request)
    }
}

/// A parameter that every search and count may have.
fn passed_on(
    name: &str,
    value: &str,
    parameters: &mut Vec<(&'static str, String)>,
) -> Result<(), RouterRefusal> {
    const PASSED: [&str; 5] = [
        "preference",
        "request_cache",
        "batched_reduce_size",
        "max_concurrent_shard_requests",
        "pre_filter_shard_size",
    ];
    // They are about names of indices, which the router gives itself, or about how JSON looks.
    const IGNORED: [&str; 9] = [
        "ignore_unavailable",
        "allow_no_indices",
        "expand_wildcards",
        "ignore_throttled",
        "ccs_minimize_roundtrips",
        "typed_keys",
        "pretty",
        "human",
        "error_trace",
    ];
    if let Some(known) = PASSED.into_iter().find(|known| *known == name) {
        parameters.push((known, value.to_owned()));
        return Ok(());
    }
    if IGNORED.contains(&name) {
        return Ok(());
    }
    Err(match name {
        "q" | "df" | "analyzer" | "analyze_wildcard" | "default_operator" | "lenient" => {
            RouterRefusal::unsupported(name, "write the query into the body, as query_string")
        }
        "source" | "source_content_type" => {
            RouterRefusal::unsupported(name, "send the search as the body of the request")
        }
        "routing" => RouterRefusal::unsupported(name, "documents of geoshards have no routing"),
        "scroll" | "terminate_after" => {
            let why = REFUSED.iter().find(|(refused, _)| *refused == name).map_or("", |(_, why)| why);
            RouterRefusal::unsupported(name, why)
        }
        "rest_total_hits_as_int" => RouterRefusal::unsupported(name, "totals are objects"),
        _ => RouterRefusal::bad(format!(
            "request contains unrecognized parameter: [{}]; geofold route passes on what it knows",
            quoted(name)
        )),
    })
}

fn filter_path(value: &str) -> Result<String, RouterRefusal> {
    if value.split(',').any(|pattern| pattern.starts_with('-')) {
        return Err(RouterRefusal::unsupported("filter_path with -", "name what is wanted"));
    }
    Ok(value.to_owned())
}

fn whole(name: &str, value: &str) -> Result<i64, RouterRefusal> {
    value.parse().map_err(|_| {
        RouterRefusal::bad(format!("Failed to parse int parameter [{name}] with value [{}]", quoted(value)))
    })
}

fn flag(name: &str, value: &str) -> Result<bool, RouterRefusal> {
    match value {
        "true" | "" => Ok(true),
        "false" => Ok(false),
        _ => Err(RouterRefusal::bad(format!(
            "Failed to parse value [{}] of [{name}] as a boolean",
            quoted(value)
        ))),
    }
}

fn number(name: &str, value: &Value) -> Result<usize, RouterRefusal> {
    if name == "from" && value.as_i64() == Some(-1) {
        return Ok(0);
    }
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| {
        RouterRefusal::bad(format!(
            "[{name}] is a whole number of at least 0, not [{}]",
            quoted(&value.to_string())
        ))
    })
}

fn truth(name: &str, value: &Value) -> Result<bool, RouterRefusal> {
    value.as_bool().ok_or_else(|| {
        RouterRefusal::parsing(format!("[{name}] is true or false, not [{}]", quoted(&value.to_string())))
    })
}

fn is_none(value: &Value) -> bool {
    match value {
        Value::Array(names) => names.iter().any(is_none),
        name => name == "_none_",
    }
}

/// Whether a query that is scored reads term statistics somewhere; what is not known may.
fn uses_statistics(query: &Value) -> bool {
    let Some((name, body)) = query.as_object().and_then(|members| members.iter().next()) else {
        return false;
    };
    let each = |name: &str| match body.get(name) {
        None => false,
        Some(Value::Array(queries)) => queries.iter().any(uses_statistics),
        Some(query) => uses_statistics(query),
    };
    match name.as_str() {
        "match_all" | "match_none" | "constant_score" | "exists" | "ids" | "range" | "terms" | "prefix"
        | "wildcard" | "regexp" | "geo_distance" | "geo_bounding_box" | "geo_polygon" | "geo_shape"
        | "distance_feature" | "rank_feature" => false,
        "bool" => each("must") || each("should"),
        "function_score" | "script_score" => each("query"),
        "boosting" => each("positive") || each("negative"),
        "dis_max" => each("queries"),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: Value, parameters: &[(&str, &str)]) -> Result<SearchRequest, RouterRefusal> {
        let Value::Object(body) = body else { panic!("{body}") };
        let parameters: Vec<_> =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        SearchRequest::new(body, &parameters, "p")
    }

    #[test]
    fn what_is_known_is_passed_on_and_the_rest_is_kept_for_merging() {
        let request = parse(
            json!({"query": {"match": {"a": "b"}}, "size": 3, "from": 2, "version": true, "fields": ["x"], "sort": ["a"],
                   "track_total_hits": 7, "timeout": "1s", "stats": ["g"], "highlight": {"fields": {"a": {}}}}),
            &[("preference", "_local"), ("size", "4"), ("_source", "a,b"), ("_source_excludes", "c"), ("pretty", "")],
        )
        .unwrap();
        assert_eq!((request.size, request.from, request.version, request.partial), (4, 2, true, false));
        assert_eq!((request.counted, request.timeout.as_deref()), (TrackTotalHits::UpTo(7), Some("1s")));
        assert_eq!(request.parameters, [("preference", "_local".to_owned())]);
        let sent: Value =
            serde_json::from_slice(&request.upstream(0, 6, TrackTotalHits::All, false, Some("2s"))).unwrap();
        let expected = json!({"query": {"match": {"a": "b"}}, "size": 6, "version": true, "fields": ["x"], "sort": ["a"],
            "track_total_hits": true, "timeout": "2s", "highlight": {"fields": {"a": {}}},
            "_source": {"includes": ["a", "b"], "excludes": ["c"]}});
        assert_eq!(sent, expected);
    }

    #[test]
    fn a_location_in_query_or_post_filter_constrains() {
        let circle = json!({"geo_distance": {"distance": "1km", "p": [1, 0]}});
        for body in [json!({"query": circle}), json!({"query": {"match_all": {}}, "post_filter": circle})] {
            assert!(!parse(body, &[]).unwrap().region.is_anywhere());
        }
        assert!(parse(json!({}), &[]).unwrap().region.is_anywhere());
    }

    #[test]
    fn every_refusal_names_the_feature() {
        for (name, _) in REFUSED {
            let refusal = parse(json!({name: {}}), &[]).unwrap_err();
            assert_eq!((refusal.status, refusal.kind), (400, "unsupported_operation_exception"));
            assert!(refusal.reason.contains(&format!("[{name}]")), "{}", refusal.reason);
        }
        for (body, parameters, says) in [
            (json!({"no_such": 1}), &[][..], "unknown key [no_such]"),
            (json!({}), &[("no_such", "1")], "unrecognized parameter: [no_such]"),
            // Elasticsearch takes it in the body of a search alone.
            (json!({}), &[("min_score", "1")], "unrecognized parameter: [min_score]"),
            (json!({}), &[("q", "a:b")], "[q]"),
            (json!({}), &[("routing", "a")], "[routing]"),
            (json!({}), &[("scroll", "1m")], "[scroll]: a scroll holds"),
            (json!({}), &[("terminate_after", "1")], "[terminate_after]: each geoshard"),
            (json!({}), &[("source", "{}")], "[source]"),
            (json!({}), &[("rest_total_hits_as_int", "true")], "[rest_total_hits_as_int]"),
            (json!({}), &[("filter_path", "-took")], "[filter_path with -]"),
            (json!({}), &[("search_type", "count")], "No search type for [count]"),
            (json!({}), &[("size", "x")], "[size] with value [x]"),
            (json!({}), &[("version", "x")], "[version]"),
            (json!({"size": -1}), &[], "[size]"),
            (json!({"size": 1.5}), &[], "[size]"),
            (json!({"size": 9_991, "from": 10}), &[], "Result window is too large"),
            (json!({"size": u64::MAX, "from": u64::MAX}), &[], "Result window is too large"),
            (json!({"version": 1}), &[], "[version]"),
            (json!({"timeout": 5}), &[], "[timeout]"),
            (json!({"search_after": [1]}), &[], "Sort must contain"),
            (json!({"search_after": [1], "sort": ["a", "b"]}), &[], "1 value(s) but sort has 2"),
            (json!({"search_after": [1], "sort": ["a"], "from": 1}), &[], "[from]"),
            (json!({"stored_fields": ["_none_"]}), &[], "[stored_fields: _none_]"),
            (json!({"sort": "_doc"}), &[], "[sort by _doc]"),
        ] {
            let refusal = parse(body.clone(), parameters).unwrap_err();
            assert!(refusal.status == 400 && refusal.reason.contains(says), "{body}: {}", refusal.reason);
        }
        assert!(parse(json!({"from": -1, "track_total_hits": -1}), &[]).is_ok());
        let long = "x".repeat(10_000);
        assert!(parse(json!({}), &[(&long, "")]).unwrap_err().reason.len() < 300);
    }

    #[test]
    fn counts_take_a_query_alone() {
        let count = |body: Value, parameters: &[(&str, &str)]| {
            let Value::Object(body) = body else { panic!("{body}") };
            let parameters: Vec<_> =
                parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            CountRequest::new(body, &parameters, "p")
        };
        let circle = json!({"geo_distance": {"distance": "1km", "p": [1, 0]}});
        assert!(!count(json!({"query": circle}), &[("preference", "x")]).unwrap().region.is_anywhere());
        assert!(count(json!({"size": 1}), &[]).unwrap_err().reason.contains("[size]"));
        assert!(
            count(json!({}), &[("terminate_after", "1")]).unwrap_err().reason.contains("[terminate_after]")
        );
        assert!(count(json!({}), &[("min_score", "1")]).unwrap_err().reason.contains("[min_score]"));
    }

    #[test]
    fn statistics_are_needed_where_terms_are_scored() {
        let needs = |body: Value| parse(body, &[]).unwrap().scores_by_statistics();
        let text = json!({"match": {"a": "b"}});
        assert!(needs(json!({"query": text})));
        assert!(needs(json!({"query": {"bool": {"filter": {"exists": {"field": "a"}}, "should": [text]}}})));
        assert!(needs(json!({"query": {"function_score": {"query": text}}})));
        assert!(needs(json!({"query": text, "sort": ["a"], "track_scores": true})));
        for body in [
            json!({"query": text, "sort": ["a"]}),
            json!({"query": {"bool": {"filter": text, "must": {"match_all": {}}}}}),
            json!({"query": {"constant_score": {"filter": text}}}),
            json!({}),
        ] {
            assert!(!needs(body.clone()), "{body}");
        }
    }

    #[test]
    fn a_body_is_an_object_or_nothing() {
        assert_eq!(parse_body(b" \n").unwrap(), Map::new());
        assert!(parse_body(b"[]").unwrap_err().reason.contains("object"));
        assert!(parse_body(b"{").unwrap_err().reason.contains("not JSON"));
        assert!(parse_body("[".repeat(5000).as_bytes()).is_err(), "depth is bounded");
    }
}
