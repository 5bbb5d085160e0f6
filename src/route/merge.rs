//! Answers of Elasticsearch into one: hits in their order, of two copies of a document the newer, totals added up.
//!
//! The order is total: by the sort values; hits that are equal in all of them by the name of their index, and then as their
//! index gave them. That is Elasticsearch's own order of several indices with one primary shard each, so that a page is the
//! same whether one request brought it or several, and a longer page begins like a shorter one.
//!
//! Hits are passed on as they came, byte for byte, but for a `_version` that the client did not ask for.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::request::TrackTotalHits;
use super::sort::{Sort, SortKey};

/// Failures of shards that are passed on, at most.
const MAX_FAILURES: usize = 100;

/// One answer to a search.
#[derive(Debug, Clone)]
pub struct SearchAnswer {
    took: u64,
    timed_out: bool,
    shards: Shards,
    total: Option<Total>,
    max_score: Option<String>,
    /// In the order of the answer.
    pub hits: Vec<SearchHit>,
}

/// `hits.total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Total {
    value: u64,
    relation: Relation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Relation {
    Eq,
    Gte,
}

/// `_shards`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
struct Shards {
    total: u64,
    successful: u64,
    #[serde(default)]
    skipped: u64,
    failed: u64,
    #[serde(default)]
    failures: Vec<Value>,
}

/// One hit.
#[derive(Debug, Clone)]
pub struct SearchHit {
    id: String,
    index: String,
    version: u64,
    score: Option<String>,
    sort: Vec<SortValue>,
    /// All of it, as it came.
    raw: Bytes,
}

#[derive(Debug, Clone, PartialEq)]
enum SortValue {
    Missing,
    Whole(i128),
    Number(f64),
    Text(String),
}

#[derive(Deserialize)]
struct RawAnswer<'a> {
    #[serde(default)]
    took: u64,
    #[serde(default)]
    timed_out: bool,
    _shards: Shards,
    #[serde(borrow)]
    hits: RawHits<'a>,
}

#[derive(Deserialize)]
struct RawHits<'a> {
    #[serde(default)]
    total: Option<Total>,
    #[serde(borrow, default)]
    max_score: Option<&'a RawValue>,
    #[serde(borrow)]
    hits: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    _id: Cow<'a, str>,
    #[serde(borrow)]
    _index: Cow<'a, str>,
    #[serde(default)]
    _version: u64,
    #[serde(borrow, default)]
    _score: Option<&'a RawValue>,
    #[serde(default)]
    sort: Vec<Value>,
}

impl SearchAnswer {
    /// Reads the body of an answer.
    pub fn parse(body: &Bytes) -> Result<Self, serde_json::Error> {
        let raw: RawAnswer<'_> = serde_json::from_slice(body)?;
        let hit = |hit: &RawValue| {
            let head: Head<'_> = serde_json::from_str(hit.get())?;
            Ok(SearchHit {
                id: head._id.into_owned(),
                index: head._index.into_owned(),
                version: head._version,
                score: head._score.map(|score| score.get().to_owned()),
                sort: head.sort.into_iter().map(SortValue::from).collect(),
                raw: body.slice_ref(hit.get().as_bytes()),
            })
        };
        Ok(Self {
            took: raw.took,
            timed_out: raw.timed_out,
            shards: raw._shards,
            total: raw.hits.total,
            max_score: raw.hits.max_score.map(|score| score.get().to_owned()),
            hits: raw.hits.hits.into_iter().map(hit).collect::<Result<_, serde_json::Error>>()?,
        })
    }

    /// Whether a shard did not answer in time.
    pub fn has_timed_out(&self) -> bool {
        self.timed_out
    }

    /// Shards whose part is missing.
    pub fn failed_shards(&self) -> u64 {
        self.shards.failed
    }

    /// Different documents among the hits.
    pub fn distinct(&self) -> usize {
        let ids: HashSet<&str, ahash::RandomState> = self.hits.iter().map(|hit| hit.id.as_str()).collect();
        ids.len()
    }
}

impl From<Value> for SortValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Missing,
            Value::Bool(truth) => Self::Whole(i128::from(truth)),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(whole), _) => Self::Whole(i128::from(whole)),
                (_, Some(whole)) => Self::Whole(i128::from(whole)),
                _ => Self::Number(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => match text.as_str() {
                // JSON has no numbers for these.
                "Infinity" => Self::Number(f64::INFINITY),
                "-Infinity" => Self::Number(f64::NEG_INFINITY),
                _ => Self::Text(text),
            },
            other => Self::Text(other.to_string()),
        }
    }
}

impl SortValue {
    fn number(&self) -> Option<f64> {
        match self {
            Self::Whole(whole) => Some(*whole as f64),
            Self::Number(number) => Some(*number),
            Self::Missing | Self::Text(_) => None,
        }
    }

    fn compare(&self, other: &Self, key: &SortKey) -> Ordering {
        let missing = if key.missing_first { Ordering::Less } else { Ordering::Greater };
        let order = match (self, other) {
            (Self::Missing, Self::Missing) => return Ordering::Equal,
            (Self::Missing, _) => return missing,
            (_, Self::Missing) => return missing.reverse(),
            (Self::Whole(a), Self::Whole(b)) => a.cmp(b),
            (Self::Text(a), Self::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
            (a, b) => match (a.number(), b.number()) {
                (Some(a), Some(b)) => a.total_cmp(&b),
                // One field, two types: numbers first.
                (a, b) => b.is_some().cmp(&a.is_some()),
            },
        };
        if key.is_descending { order.reverse() } else { order }
    }
}

/// What several answers say together.
#[derive(Debug, Default)]
pub struct AnswerMerge {
    hits: Vec<SearchHit>,
    answers: usize,
    took: u64,
    timed_out: bool,
    shards: Shards,
    total: Option<Total>,
    max_score: Option<String>,
    duplicates: usize,
    is_unsure: bool,
}

impl AnswerMerge {
    /// Takes in an answer; `keys` is the order of its hits. Answers of other geoshards than those before.
    pub fn add(&mut self, answer: SearchAnswer, keys: &[SortKey]) {
        self.answers += 1;
        self.took = self.took.saturating_add(answer.took);
        self.timed_out |= answer.timed_out;
        self.shards.add(answer.shards);
        self.total = match (self.total, answer.total) {
            (None, total) if self.answers == 1 => total,
            (Some(a), Some(b)) => Some(a.plus(b)),
            _ => None,
        };
        self.max_score = if self.answers == 1 { answer.max_score } else { None };
        self.merge_in(answer.hits, keys);
        self.drop_older_copies();
    }

    /// Both lists keep their order, which is Elasticsearch's own: it knows values, and here is only how they are shown.
    fn merge_in(&mut self, more: Vec<SearchHit>, keys: &[SortKey]) {
        let mut merged = Vec::with_capacity(self.hits.len() + more.len());
        let mut known = std::mem::take(&mut self.hits).into_iter().peekable();
        let mut more = more.into_iter().peekable();
        while let (Some(a), Some(b)) = (known.peek(), more.peek()) {
            let (order, is_by_text) = a.compare(b, keys);
            // Copies of one document have the same values.
            self.is_unsure |= is_by_text && a.id != b.id;
            merged.extend(if order.is_le() { known.next() } else { more.next() });
        }
        merged.extend(known);
        merged.extend(more);
        self.hits = merged;
    }

    /// Of each document the newest copy stays, where it stands; of equally new ones the first.
    fn drop_older_copies(&mut self) {
        let mut newest: HashMap<&str, usize, ahash::RandomState> = HashMap::default();
        let mut dropped: Vec<usize> = Vec::new();
        for (place, hit) in self.hits.iter().enumerate() {
            newest
                .entry(hit.id.as_str())
                .and_modify(|kept| {
                    let is_newer = hit.version > self.hits[*kept].version;
                    dropped.push(if is_newer { std::mem::replace(kept, place) } else { place });
                })
                .or_insert(place);
        }
        if dropped.is_empty() {
            return;
        }
        self.duplicates += dropped.len();
        dropped.sort_unstable();
        let mut place = 0;
        self.hits.retain(|_| {
            place += 1;
            dropped.binary_search(&(place - 1)).is_err()
        });
    }

    /// Copies that were left out.
    pub fn duplicates(&self) -> usize {
        self.duplicates
    }

    /// Whether only Elasticsearch knows the order: hits of several answers were equal up to a text, which may show a value that sorts
    /// otherwise (a date with a `format`, an address).
    pub fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// The first sort value of the hit at `place`, if it is a number.
    pub fn first_value(&self, place: usize) -> Option<f64> {
        self.hits.get(place)?.sort.first()?.number()
    }

    /// Whether counting more could not change `hits.total`.
    pub fn is_counted(&self, counted: TrackTotalHits) -> bool {
        match (counted, self.total) {
            (TrackTotalHits::Nothing, _) => true,
            (TrackTotalHits::UpTo(most), Some(total)) => {
                total.relation == Relation::Gte || total.value > most
            }
            (TrackTotalHits::All, _) | (_, None) => false,
        }
    }

    /// Only what an answer says about the number of hits: its hits are others' or none.
    pub fn add_count(&mut self, answer: SearchAnswer) {
        self.took = self.took.saturating_add(answer.took);
        self.timed_out |= answer.timed_out;
        self.shards.add(answer.shards);
        self.total = self.total.zip(answer.total).map(|(a, b)| a.plus(b));
    }

    /// The number of hits, without the copies that were seen.
    fn total(&self, counted: TrackTotalHits) -> Option<Total> {
        let total = self.total?;
        let seen = u64::try_from(self.duplicates).unwrap_or(u64::MAX);
        match counted {
            TrackTotalHits::Nothing => None,
            TrackTotalHits::UpTo(most) if total.relation == Relation::Gte || total.value > most => {
                Some(Total { value: most.min(total.value), relation: Relation::Gte })
            }
            _ => Some(Total { value: total.value.saturating_sub(seen), ..total }),
        }
    }

    /// The answer to a count.
    pub fn render_count(&self) -> Vec<u8> {
        let count = self.total(TrackTotalHits::All).map_or(0, |total| total.value);
        format!("{{\"count\":{count},\"_shards\":{}}}", self.shards.render()).into_bytes()
    }

    /// The answer to a search: `size` hits behind the first `from`.
    pub fn render(
        &self,
        from: usize,
        size: usize,
        counted: TrackTotalHits,
        sort: &Sort,
        with_version: bool,
    ) -> Vec<u8> {
        let page = self.hits.iter().skip(from).take(size);
        let bytes: usize = page.clone().map(|hit| hit.raw.len() + 1).sum();
        let mut out = Vec::with_capacity(bytes + 300);
        let (took, timed_out, shards) = (self.took, self.timed_out, self.shards.render());
        out.extend_from_slice(
            format!("{{\"took\":{took},\"timed_out\":{timed_out},\"_shards\":{shards},\"hits\":{{")
                .as_bytes(),
        );
        if let Some(Total { value, relation }) = self.total(counted) {
            let relation = if relation == Relation::Eq { "eq" } else { "gte" };
            let total = format!("\"total\":{{\"value\":{value},\"relation\":\"{relation}\"}},");
            out.extend_from_slice(total.as_bytes());
        }
        let best = match self.hits.first() {
            // Of several indices that it skips, Elasticsearch says 0.
            None => None,
            // The best may have been an older copy.
            Some(first) if sort.keys.is_empty() => first.score.as_deref(),
            Some(_) => self.max_score.as_deref(),
        };
        out.extend_from_slice(format!("\"max_score\":{},\"hits\":[", best.unwrap_or("null")).as_bytes());
        for (n, hit) in page.enumerate() {
            if n > 0 {
                out.push(b',');
            }
            hit.render(with_version, &mut out);
        }
        out.extend_from_slice(b"]}}");
        out
    }
}

impl Shards {
    fn add(&mut self, more: Self) {
        self.total += more.total;
        self.successful += more.successful;
        self.skipped += more.skipped;
        self.failed += more.failed;
        self.failures.extend(more.failures);
        self.failures.truncate(MAX_FAILURES);
    }

    fn render(&self) -> String {
        let Self { total, successful, skipped, failed, failures } = self;
        let mut text = format!(
            "{{\"total\":{total},\"successful\":{successful},\"skipped\":{skipped},\"failed\":{failed}"
        );
        if !failures.is_empty() {
            text.push_str(",\"failures\":");
            text.push_str(&Value::from(failures.clone()).to_string());
        }
        text.push('}');
        text
    }
}

impl Total {
    fn plus(self, other: Self) -> Self {
        let is_exact = self.relation == Relation::Eq && other.relation == Relation::Eq;
        Self {
            value: self.value.saturating_add(other.value),
            relation: if is_exact { Relation::Eq } else { Relation::Gte },
        }
    }
}

impl SearchHit {
    /// Their order, and whether texts had a part in it.
    fn compare(&self, other: &Self, keys: &[SortKey]) -> (Ordering, bool) {
        let mut is_by_text = false;
        for ((a, b), key) in self.sort.iter().zip(&other.sort).zip(keys) {
            is_by_text |= matches!((a, b), (SortValue::Text(_), SortValue::Text(_)));
            let order = a.compare(b, key);
            if order.is_ne() {
                return (order, is_by_text);
            }
        }
        (self.index.cmp(&other.index), is_by_text)
    }

    fn render(&self, with_version: bool, out: &mut Vec<u8>) {
        if with_version {
            out.extend_from_slice(&self.raw);
            return;
        }
        match serde_json::from_slice::<Members<'_>>(&self.raw) {
            Ok(Members(members)) => {
                out.push(b'{');
                let kept = members.iter().filter(|(name, _)| name != "_version");
                for (n, (name, value)) in kept.enumerate() {
                    if n > 0 {
                        out.push(b',');
                    }
                    out.extend_from_slice(Value::from(name.as_ref()).to_string().as_bytes());
                    out.push(b':');
                    out.extend_from_slice(value.get().as_bytes());
                }
                out.push(b'}');
            }
            // It was parsed before; a member too many is better than no hit.
            Err(_) => out.extend_from_slice(&self.raw),
        }
    }
}

/// The members of an object in their order, values as they are written.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a hit")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(8);
                while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
                    members.push((name, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::random::Random;

    fn answer(total: Value, hits: Vec<Value>) -> SearchAnswer {
        let mut body = json!({"took": 3, "timed_out": false,
            "_shards": {"total": 2, "successful": 2, "skipped": 0, "failed": 0},
            "hits": {"max_score": null, "hits": hits}});
        if !total.is_null() {
            body["hits"]["total"] = total;
        }
        SearchAnswer::parse(&body.to_string().into()).unwrap()
    }

    fn exactly(value: u64) -> Value {
        json!({"value": value, "relation": "eq"})
    }

    fn hit(index: &str, id: &str, version: u64, sort: Value) -> Value {
        json!({"_index": index, "_id": id, "_version": version, "_score": null, "sort": sort})
    }

    fn sort(value: Value) -> Sort {
        Sort::parse(&value, "p").unwrap()
    }

    fn rendered(merge: &AnswerMerge, size: usize, counted: TrackTotalHits, sort: &Sort) -> Value {
        serde_json::from_slice(&merge.render(0, size, counted, sort, false)).unwrap()
    }

    fn ids(answer: &Value) -> Vec<&str> {
        answer["hits"]["hits"].as_array().unwrap().iter().map(|hit| hit["_id"].as_str().unwrap()).collect()
    }

    #[test]
    fn of_two_copies_the_newer_stays_where_it_stands() {
        let sort = sort(json!(["n"]));
        let mut merge = AnswerMerge::default();
        let hits = vec![
            hit("p-a", "ada", 7, json!([1])),
            hit("p-a", "bo", 3, json!([2])),
            hit("p-b", "ada", 9, json!([3])),
            hit("p-b", "bo", 2, json!([4])),
            hit("p-b", "bo", 3, json!([5])),
        ];
        merge.add(answer(exactly(5), hits), &sort.keys);
        let answer = rendered(&merge, 10, TrackTotalHits::All, &sort);
        assert_eq!(ids(&answer), ["bo", "ada"]);
        assert_eq!(
            answer["hits"]["hits"][1],
            json!({"_index": "p-b", "_id": "ada", "_score": null, "sort": [3]})
        );
        assert_eq!((merge.duplicates(), &answer["hits"]["total"]), (3, &exactly(2)));
    }

    #[test]
    fn hits_of_one_answer_keep_their_order_and_texts_leave_that_of_several_unsure() {
        let sort = sort(json!(["distance", {"joined": {"format": "dd/MM/yyyy"}}]));
        let hit = |id: &str, metres: u64, joined: &str| hit("p-a", id, 1, json!([metres, joined]));
        let hits = [hit("a", 5, "22/09/2026"), hit("b", 5, "14/11/2026"), hit("d", 7, "01/01/2026")];
        let first = || answer(exactly(3), hits.to_vec());
        for (other, is_unsure) in [
            (hit("c", 4, "01/01/2026"), false),
            (hit("c", 6, "01/01/2026"), false),
            (hit("c", 5, "01/12/2026"), true),
            // The same day, not the same moment.
            (hit("c", 5, "22/09/2026"), true),
            // A copy of the same document.
            (hit("d", 7, "01/01/2026"), false),
        ] {
            let mut merge = AnswerMerge::default();
            merge.add(first(), &sort.keys);
            merge.add(answer(exactly(1), vec![other.clone()]), &sort.keys);
            let places = ["a", "b"].map(|id| merge.hits.iter().position(|hit| hit.id == id));
            assert!(places[0] < places[1], "{other}");
            assert_eq!(merge.is_unsure(), is_unsure, "{other}");
        }
    }

    #[test]
    fn a_hit_is_passed_on_byte_for_byte() {
        let raw = r#"{"_index":"p-a","_id":"\u0061b","_version":7,"_score":1.50,"_source":{"n": 1.0e0, "big":123456789012345678901234567890,"é":"\u00e9"},"sort":[1.0]}"#;
        let body = format!(
            r#"{{"took":1,"timed_out":false,"_shards":{{"total":1,"successful":1,"skipped":0,"failed":0}},"hits":{{"total":{{"value":1,"relation":"eq"}},"max_score":1.50,"hits":[ {raw} ]}}}}"#
        );
        let mut merge = AnswerMerge::default();
        merge.add(SearchAnswer::parse(&body.into()).unwrap(), &[]);
        let whole =
            String::from_utf8(merge.render(0, 1, TrackTotalHits::All, &Sort::default(), true)).unwrap();
        assert!(whole.contains(raw), "{whole}");
        let without =
            String::from_utf8(merge.render(0, 1, TrackTotalHits::All, &Sort::default(), false)).unwrap();
        let expected = raw.replace(r#""_version":7,"#, "");
        assert!(without.contains(&expected), "{without}");
        assert!(without.contains(r#""max_score":1.50"#), "{without}");
    }

    #[test]
    fn totals_add_up_with_their_relation() {
        let sort = sort(json!(["n"]));
        let total = |parts: Vec<Value>, counted: TrackTotalHits| {
            let mut merge = AnswerMerge::default();
            for part in parts {
                merge.add(answer(part, Vec::new()), &sort.keys);
            }
            rendered(&merge, 1, counted, &sort)["hits"]["total"].clone()
        };
        let over = |value: u64| json!({"value": value, "relation": "gte"});
        assert_eq!(total(vec![exactly(2), exactly(3)], TrackTotalHits::UpTo(10)), exactly(5));
        assert_eq!(total(vec![exactly(6), exactly(5)], TrackTotalHits::UpTo(10)), over(10));
        assert_eq!(total(vec![exactly(5), exactly(5)], TrackTotalHits::UpTo(10)), exactly(10));
        assert_eq!(total(vec![exactly(6), over(10)], TrackTotalHits::UpTo(10)), over(10));
        assert_eq!(total(vec![exactly(20_000)], TrackTotalHits::All), exactly(20_000));
        assert_eq!(total(vec![Value::Null], TrackTotalHits::Nothing), Value::Null);
        let mut merge = AnswerMerge::default();
        merge.add(answer(exactly(6), Vec::new()), &sort.keys);
        assert!(!merge.is_counted(TrackTotalHits::UpTo(6)) && merge.is_counted(TrackTotalHits::UpTo(5)));
        assert!(!merge.is_counted(TrackTotalHits::All) && merge.is_counted(TrackTotalHits::Nothing));
        merge.add_count(answer(exactly(4), Vec::new()));
        assert_eq!(rendered(&merge, 1, TrackTotalHits::All, &sort)["hits"]["total"], exactly(10));
        assert_eq!(rendered(&merge, 1, TrackTotalHits::All, &sort)["_shards"]["total"], 4);
        let count: Value = serde_json::from_slice(&merge.render_count()).unwrap();
        assert_eq!(count["count"], 10);
    }

    #[test]
    fn the_best_score_is_that_of_a_hit_that_stays() {
        let scored = |index: &str, id: &str, version: u64, score: f64| json!({"_index": index, "_id": id, "_version": version, "_score": score});
        let hits =
            vec![scored("p-a", "ada", 1, 3.5), scored("p-b", "bo", 1, 2.5), scored("p-b", "ada", 2, 1.5)];
        let mut merge = AnswerMerge::default();
        merge.add(answer(exactly(3), hits), &[]);
        let answer = rendered(&merge, 10, TrackTotalHits::All, &Sort::default());
        assert_eq!((ids(&answer), &answer["hits"]["max_score"]), (vec!["bo", "ada"], &json!(2.5)));
    }

    #[test]
    fn failures_of_shards_are_passed_on() {
        let body = json!({"took": 3, "timed_out": true,
            "_shards": {"total": 2, "successful": 1, "failed": 1, "failures": [{"index": "p-a"}]},
            "hits": {"max_score": null, "hits": []}});
        let mut merge = AnswerMerge::default();
        for _ in 0..150 {
            merge.add(SearchAnswer::parse(&body.to_string().into()).unwrap(), &[]);
        }
        let answer = rendered(&merge, 1, TrackTotalHits::Nothing, &Sort::default());
        assert_eq!((&answer["timed_out"], &answer["_shards"]["failed"]), (&json!(true), &json!(150)));
        assert_eq!(answer["_shards"]["failures"].as_array().unwrap().len(), MAX_FAILURES);
        assert!(SearchAnswer::parse(&Bytes::from_static(b"{}")).is_err());
    }

    /// Values of every kind that a sort gives, as one field has them.
    fn value(kind: u64, random: &mut Random) -> Value {
        let small = random.below(4);
        match (random.below(8), kind) {
            (0, 1 | 2) => Value::Null,
            (0, 3) => json!("Infinity"),
            (_, 0) => json!(9_007_199_254_740_993_u64 + small),
            (_, 1) => json!(["a", "b", "é", "z"][usize::try_from(small).unwrap()]),
            (_, 2) => json!(i64::try_from(small).unwrap() - 2),
            _ => json!(small as f64 / 3.0),
        }
    }

    /// What is right by the definition: sort all, keep the newest of each id.
    fn expected(mut all: Vec<(usize, SearchHit)>, keys: &[SortKey]) -> Vec<(String, String)> {
        all.sort_by(|(m, a), (n, b)| a.compare(b, keys).0.then(m.cmp(n)));
        let newest = |id: &str| all.iter().filter(|(_, hit)| hit.id == id).map(|(_, hit)| hit.version).max();
        let mut seen = HashSet::new();
        let kept =
            all.iter().filter(|(_, hit)| Some(hit.version) == newest(&hit.id) && seen.insert(hit.id.clone()));
        kept.map(|(_, hit)| (hit.index.clone(), hit.id.clone())).collect()
    }

    #[test]
    fn merging_sorted_lists_is_sorting_the_whole() {
        let mut random = Random::new(17);
        let mut doubled = 0;
        for _ in 0..3000 {
            let kinds: Vec<u64> = (0..1 + random.below(3)).map(|_| random.below(4)).collect();
            let keys: Vec<Value> = kinds
                .iter()
                .enumerate()
                .map(|(n, _)| {
                    let order = ["asc", "desc"][usize::try_from(random.below(2)).unwrap()];
                    let missing = ["_first", "_last"][usize::try_from(random.below(2)).unwrap()];
                    json!({format!("f{n}"): {"order": order, "missing": missing}})
                })
                .collect();
            let sort = sort(Value::from(keys));
            let mut all: Vec<(usize, SearchHit)> = Vec::new();
            let mut answers = Vec::new();
            for index in 0..1 + random.below(5) {
                let name = format!("p-{}", 4 - index);
                let hits: Vec<Value> = (0..random.below(7))
                    .map(|_| {
                        let values = kinds.iter().map(|&kind| value(kind, &mut random)).collect();
                        // One index has an id once; positions differ, or nearly always do.
                        hit(&name, &random.below(12).to_string(), random.below(40), values)
                    })
                    .collect();
                let mut answer = answer(exactly(0), hits);
                let mut seen = HashSet::new();
                answer.hits.retain(|hit| seen.insert(hit.id.clone()));
                answer.hits.sort_by(|a, b| a.compare(b, &sort.keys).0);
                all.extend(answer.hits.iter().cloned().enumerate());
                answers.push(answer);
            }
            let mut merge = AnswerMerge::default();
            while !answers.is_empty() {
                let next = usize::try_from(random.below(answers.len() as u64)).unwrap();
                merge.add(answers.remove(next), &sort.keys);
            }
            let found: Vec<(String, String)> =
                merge.hits.iter().map(|hit| (hit.index.clone(), hit.id.clone())).collect();
            // Copies of the same version are not told apart: the first that came stays.
            let is_clear = {
                let mut versions = HashSet::new();
                all.iter().all(|(_, hit)| versions.insert((hit.id.clone(), hit.version)))
            };
            if is_clear {
                assert_eq!(found, expected(all, &sort.keys));
            }
            doubled += merge.duplicates();
        }
        assert!(doubled > 500, "{doubled}");
    }
}
