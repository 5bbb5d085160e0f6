//! Compares an answer with the reference's. Pure.
//!
//! Hits of equal sort values may come in another order than the reference's, and at the end of a page other ones of them may be on
//! it: Elasticsearch itself breaks ties by the shard and by Lucene's number of the document. Everything else has to be the same.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What may differ between two copies of a document: where each is, and how often it was written. That it is there may not.
const OF_THE_COPY: [&str; 4] = ["_index", "_version", "_seq_no", "_primary_term"];

/// How scores are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scores {
    /// They depend on the query and the document alone, or there are none.
    Exact,
    /// They depend on the statistics of the geoshards that were asked. So the same documents match as in the reference, with other
    /// scores.
    OfGeoshards,
}

/// What is wrong with an answer of `_search`, if anything is. `known` gives the reference's answer to the same query for these documents
/// alone: it is asked only for hits that are not on the reference's page.
pub fn fault(answer: &Value, reference: &Value, known: impl FnOnce(&[&str]) -> Value) -> Result<(), String> {
    envelope(answer)?;
    let (got, want) = (hits(answer)?, hits(reference)?);
    for key in ["total", "max_score"] {
        let (got_value, wanted) = (answer["hits"].get(key), reference["hits"].get(key));
        // Of several indices that it skips altogether, Elasticsearch says 0 instead of null.
        let is_of_nothing = key == "max_score" && got.is_empty() && want.is_empty();
        if got_value != wanted && !is_of_nothing {
            return Err(format!("hits.{key} is {}, not {}", shown(got_value), shown(wanted)));
        }
    }
    no_doubles(&got)?;
    if got.len() != want.len() {
        return Err(format!("{} hits, not {}", got.len(), want.len()));
    }
    for (n, (got, want)) in got.iter().zip(&want).enumerate() {
        if rank(got) != rank(want) {
            return Err(format!("hit {n} has {}, not {}", rank(got), rank(want)));
        }
    }
    // The ranks are the same. So it is enough that each hit is one of the reference's of that rank.
    each_is_known(&got, want, content, known)
}

/// The same where scores are other ones: as many hits, of the documents that match, in the order of their own scores.
pub fn fault_but_for_scores(
    answer: &Value,
    reference: &Value,
    known: impl FnOnce(&[&str]) -> Value,
) -> Result<(), String> {
    envelope(answer)?;
    let (got, want) = (answer["hits"].get("total"), reference["hits"].get("total"));
    if got != want {
        return Err(format!("hits.total is {}, not {}", shown(got), shown(want)));
    }
    let (got, want) = (hits(answer)?, hits(reference)?);
    no_doubles(&got)?;
    if got.len() != want.len() {
        return Err(format!("{} hits, not {}", got.len(), want.len()));
    }
    each_is_known(&got, want, unscored, known)?;
    let is_by_score = got.iter().all(|hit| hit.get("sort").is_none());
    let scores: Vec<f64> = got.iter().filter_map(|hit| hit["_score"].as_f64()).collect();
    match is_by_score && !scores.is_sorted_by(|a, b| a >= b) {
        true => Err(format!("scores are not in order: {scores:?}")),
        false => Ok(()),
    }
}

/// Each hit is the reference's hit of the same document, on its page or beyond, in this part of it.
fn each_is_known(
    got: &[&Value],
    page: Vec<&Value>,
    part: fn(&Value) -> Value,
    known: impl FnOnce(&[&str]) -> Value,
) -> Result<(), String> {
    let mut by_id: BTreeMap<&str, &Value> = page.into_iter().map(|hit| (id(hit), hit)).collect();
    let beyond: Vec<&str> = got.iter().map(|hit| id(hit)).filter(|id| !by_id.contains_key(id)).collect();
    let more = (!beyond.is_empty()).then(|| known(&beyond));
    if let Some(more) = &more {
        by_id.extend(hits(more)?.into_iter().map(|hit| (id(hit), hit)));
    }
    for (n, hit) in got.iter().enumerate() {
        match by_id.get(id(hit)) {
            None => return Err(format!("hit {n} is {}, which is no hit of the reference", id(hit))),
            Some(known) if part(hit) != part(known) => {
                return Err(format!("hit {n} is {}, not {}", part(hit), part(known)));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Whether an answer has the form of Elasticsearch's, and claims to be whole.
pub fn envelope(answer: &Value) -> Result<(), String> {
    if !answer["took"].is_u64() {
        return Err(format!("took is {}", answer["took"]));
    }
    if answer["timed_out"] != false {
        return Err(format!("timed_out is {}", answer["timed_out"]));
    }
    let shards = &answer["_shards"];
    if shards["failed"] != 0 || shards["successful"] != shards["total"] || !shards["total"].is_u64() {
        return Err(format!("_shards is {shards}"));
    }
    Ok(())
}

/// The hits of an answer.
pub fn hits(answer: &Value) -> Result<Vec<&Value>, String> {
    let hits = answer["hits"]["hits"].as_array().ok_or_else(|| "the answer has no hits".to_owned())?;
    match hits.iter().find(|hit| !hit["_id"].is_string()) {
        None => Ok(hits.iter().collect()),
        Some(hit) => Err(format!("a hit has no _id: {hit}")),
    }
}

/// A document is in an answer once.
pub fn no_doubles(hits: &[&Value]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match hits.iter().find(|hit| !seen.insert(id(hit))) {
        None => Ok(()),
        Some(hit) => Err(format!("{} is there twice", id(hit))),
    }
}

/// The id of a hit.
pub fn id(hit: &Value) -> &str {
    hit["_id"].as_str().unwrap_or_default()
}

/// What hits are ordered by.
fn rank(hit: &Value) -> &Value {
    hit.get("sort").unwrap_or(&hit["_score"])
}

/// A hit without what belongs to the copy.
fn content(hit: &Value) -> Value {
    let mut hit = hit.clone();
    for key in OF_THE_COPY {
        if let Some(value) = hit.get_mut(key) {
            *value = Value::Null;
        }
    }
    hit
}

/// Content but for the score.
fn unscored(hit: &Value) -> Value {
    let mut hit = content(hit);
    hit["_score"] = Value::Null;
    hit
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "not there".to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hit(id: &str, rank: i64) -> Value {
        json!({"_index": "i", "_id": id, "_score": null, "_source": {"n": id}, "sort": [rank]})
    }

    fn answer(hits: &[Value], total: usize) -> Value {
        let shards = json!({"total": 3, "successful": 3, "skipped": 0, "failed": 0});
        let total = json!({"value": total, "relation": "eq"});
        json!({"took": 1, "timed_out": false, "_shards": shards,
            "hits": {"total": total, "max_score": null, "hits": hits}})
    }

    /// What the reference knows of documents.
    fn of(ids: &[&str], whole: &[Value]) -> Value {
        let hits: Vec<Value> = whole.iter().filter(|hit| ids.contains(&id(hit))).cloned().collect();
        answer(&hits, hits.len())
    }

    fn judged(answer: &Value, reference: &Value, whole: &[Value]) -> Result<(), String> {
        fault(answer, reference, |ids| of(ids, whole))
    }

    #[test]
    fn ties_may_change_places_and_others_may_not() {
        let all = [hit("a", 1), hit("b", 2), hit("c", 2), hit("d", 2), hit("e", 3)];
        let [a, b, c, d, _] = all.clone();
        let reference = answer(&[a.clone(), b.clone(), c.clone()], 5);
        for page in [[&a, &b, &c], [&a, &c, &b], [&a, &d, &b]] {
            assert_eq!(judged(&answer(&page.map(Clone::clone), 5), &reference, &all), Ok(()));
        }
        for page in [[&b, &a, &c], [&a, &b, &b], [&a, &b, &hit("f", 2)], [&a, &b, &hit("c", 3)]] {
            assert!(judged(&answer(&page.map(Clone::clone), 5), &reference, &all).is_err(), "{page:?}");
        }
    }

    #[test]
    fn only_what_is_not_on_the_page_is_asked_for() {
        let all = [hit("a", 1), hit("b", 2), hit("c", 2), hit("d", 2)];
        let reference = answer(&all[..3], 4);
        let page = |hits: [usize; 3]| answer(&hits.map(|n| all[n].clone()), 4);
        assert_eq!(fault(&page([0, 2, 1]), &reference, |_| panic!("nothing is to be asked for")), Ok(()));
        let known = |ids: &[&str]| {
            assert_eq!(ids, ["d"]);
            of(ids, &all)
        };
        assert_eq!(fault(&page([0, 3, 1]), &reference, known), Ok(()));
    }

    #[test]
    fn with_other_scores_the_same_documents_come_in_the_order_of_their_own() {
        let scored = |id: &str, score: f64| json!({"_id": id, "_score": score, "_source": {"n": id}});
        let reference = answer(&[scored("a", 3.0), scored("b", 2.0)], 3);
        let judged = |hits: &[Value], total: usize| {
            fault_but_for_scores(&answer(hits, total), &reference, |ids| of(ids, &[scored("c", 1.0)]))
        };
        assert_eq!(judged(&[scored("c", 9.0), scored("a", 8.0)], 3), Ok(()));
        let mut spoilt = scored("a", 8.0);
        spoilt["_source"]["n"] = json!("x");
        for (hits, total) in [
            (vec![scored("c", 9.0), scored("a", 8.0)], 2),
            (vec![scored("c", 9.0)], 3),
            (vec![scored("c", 8.0), scored("a", 9.0)], 3),
            (vec![scored("d", 9.0), scored("a", 8.0)], 3),
            (vec![scored("c", 9.0), scored("c", 8.0)], 3),
            (vec![scored("c", 9.0), spoilt], 3),
        ] {
            assert!(judged(&hits, total).is_err(), "{hits:?}");
        }
    }

    #[test]
    fn totals_lengths_contents_and_the_envelope_are_compared() {
        let all = [hit("a", 1), hit("b", 2)];
        let reference = answer(&all, 2);
        let spoilt = |spoil: &dyn Fn(&mut Value)| {
            let mut spoilt = reference.clone();
            spoil(&mut spoilt);
            judged(&spoilt, &reference, &all)
        };
        assert_eq!(spoilt(&|_| {}), Ok(()));
        assert_eq!(spoilt(&|answer| answer["hits"]["hits"][0]["_index"] = json!("other")), Ok(()));
        let spoils: [&dyn Fn(&mut Value); 8] = [
            &|answer| answer["hits"]["total"]["value"] = json!(3),
            &|answer| drop(answer["hits"].as_object_mut().unwrap().remove("total")),
            &|answer| answer["hits"]["max_score"] = json!(1.0),
            &|answer| drop(answer["hits"]["hits"].as_array_mut().unwrap().pop()),
            &|answer| answer["hits"]["hits"][0]["_source"]["n"] = json!("x"),
            &|answer| answer["hits"]["hits"][0]["_version"] = json!(7),
            &|answer| answer["_shards"]["failed"] = json!(1),
            &|answer| answer["timed_out"] = json!(true),
        ];
        for (n, spoil) in spoils.iter().enumerate() {
            assert!(spoilt(spoil).is_err(), "{n}");
        }
    }
}
