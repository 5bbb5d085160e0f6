//! Random queries over geoshards and over one index with the same documents.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use super::corpus::{Corpus, Cut};
use super::judge::{self, Scores, fault, fault_but_for_scores};
use super::queries::{Ask, Queries, Query};
use super::router::{Answer, Target, routed};
use super::wanted_queries;
use crate::support::{Random, seed};

/// Queries at the same time: enough that Elasticsearch, which takes most of the time, always has one to answer.
const THREADS: usize = 6;

/// What came of queries.
#[derive(Default)]
struct Tally {
    by_ask: BTreeMap<&'static str, usize>,
    refused: BTreeMap<&'static str, usize>,
    /// That Elasticsearch itself refuses.
    wrong: usize,
    pages: usize,
    hits: usize,
    asked: u64,
    total: u64,
    /// That were compared with every hit scored: see [`skips_by_distance`].
    unskipped: usize,
}

struct Comparison<'a> {
    corpus: &'a Corpus,
    target: Target,
    tally: Mutex<Tally>,
}

impl Comparison<'_> {
    fn count(&self, note: impl FnOnce(&mut Tally)) {
        note(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn check(&self, query: &Query) -> Result<(), String> {
        let name = match &query.ask {
            Ask::Search => "search",
            Ask::Count => "count",
            Ask::Several(_) => "msearch",
            Ask::Pages(_) => "pages",
        };
        self.count(|tally| *tally.by_ask.entry(name).or_default() += 1);
        match &query.ask {
            Ask::Search => self.check_search(query, &query.body).map(drop),
            Ask::Count => self.check_count(&query.body),
            Ask::Several(others) => self.check_several(query, others),
            &Ask::Pages(pages) => self.check_pages(query, pages),
        }
    }

    /// The router's answer, if it is right and not a refusal.
    fn check_search(&self, query: &Query, body: &Value) -> Result<Option<Value>, String> {
        let mut url = query.url.clone();
        if query.is_global {
            url += if url.is_empty() { "?" } else { "&" };
            url += "search_type=dfs_query_then_fetch";
        }
        let answer = self.target.try_search(&url, body).map_err(|error| error.to_string())?;
        if let Some((asked, total)) = answer.geoshards {
            self.count(|tally| {
                tally.asked += asked;
                tally.total += total;
            });
            if asked > total {
                return Err(format!("{asked} of {total} geoshards were asked"));
            }
        }
        self.judge(query, body, answer)
    }

    fn judge(&self, query: &Query, body: &Value, answer: Answer) -> Result<Option<Value>, String> {
        let Answer { status, body: answer, .. } = answer;
        let reference = self.corpus.whole.try_search(&query.url, body).map_err(|error| error.to_string())?;
        if status == 400 && (reference.status == 400 || query.optional.is_some()) {
            is_an_error(&answer, status)
                .map_err(|wrong| format!("{wrong}\n{}", shown(body, &answer, &reference.body)))?;
            match query.optional {
                Some(feature) if reference.status == 200 => {
                    self.count(|tally| *tally.refused.entry(feature).or_default() += 1);
                }
                _ => self.count(|tally| tally.wrong += 1),
            }
            return Ok(None);
        }
        let known = |ids: &[&str]| self.reference_of(query, body, ids);
        let outcome = match (status, reference.status, query.scores) {
            (200, 200, Scores::Exact) => fault(&answer, &reference.body, known),
            // A least score leaves other documents with other scores.
            (200, 200, Scores::OfGeoshards)
                if body.get("min_score").is_some() || query.url.contains("min_score") =>
            {
                judge::envelope(&answer)
            }
            (200, 200, Scores::OfGeoshards) => fault_but_for_scores(&answer, &reference.body, known),
            (got, want, _) => Err(format!("status {got}, and the reference's is {want}")),
        };
        let is_whole = (status, reference.status, query.scores) == (200, 200, Scores::Exact);
        let outcome = match outcome {
            Err(_) if is_whole && skips_by_distance(body) => {
                self.count(|tally| tally.unskipped += 1);
                // But for the scores nothing may differ.
                fault_but_for_scores(&answer, &reference.body, known)
                    .and_then(|()| self.check_unskipped(query, body))
            }
            outcome => outcome,
        };
        outcome.map_err(|wrong| format!("{wrong}\n{}", shown(body, &answer, &reference.body)))?;
        self.count(|tally| tally.hits += answer["hits"]["hits"].as_array().map_or(0, Vec::len));
        Ok(Some(answer))
    }

    /// Both answers, once every hit is scored.
    fn check_unskipped(&self, query: &Query, body: &Value) -> Result<(), String> {
        let mut body = body.clone();
        body["track_total_hits"] = json!(true);
        let url = without(&query.url, &["track_total_hits"]);
        let ask = |target: &Target| target.try_search(&url, &body).map_err(|error| error.to_string());
        let (answer, reference) = (ask(&self.target)?, ask(&self.corpus.whole)?);
        fault(&answer.body, &reference.body, |ids| self.reference_of(query, &body, ids))
    }

    /// The reference's answer for these documents alone. A `post_filter` changes neither scores nor highlights.
    fn reference_of(&self, query: &Query, body: &Value, ids: &[&str]) -> Value {
        let mut body = body.clone();
        let mut filter = vec![json!({"ids": {"values": ids}})];
        filter.extend(body.get("post_filter").cloned());
        body["post_filter"] = json!({"bool": {"filter": filter}});
        body["size"] = json!(ids.len());
        body.as_object_mut().unwrap().remove("from");
        self.corpus.whole.try_search(&without(&query.url, &["size", "from"]), &body).unwrap().body
    }

    fn check_count(&self, body: &Value) -> Result<(), String> {
        let (answer, reference) = (self.target.count(body), self.corpus.whole.count(body));
        let same = answer.status == reference.status
            && (answer.status != 200
                || answer.body["count"] == reference.body["count"] && answer.body["_shards"]["failed"] == 0);
        same.then_some(()).ok_or_else(|| shown(body, &answer.body, &reference.body))
    }

    fn check_several(&self, query: &Query, others: &[Query]) -> Result<(), String> {
        let queries: Vec<&Query> = std::iter::once(query).chain(others).collect();
        let searches: Vec<(&Value, bool)> =
            queries.iter().map(|query| (&query.body, query.is_global)).collect();
        let answers = self.target.msearch(&searches, others.len().is_multiple_of(2));
        for (query, mut answer) in queries.into_iter().zip(answers) {
            let status = answer["status"].as_u64().and_then(|status| u16::try_from(status).ok());
            let status = status.ok_or_else(|| format!("an answer of _msearch has no status: {answer}"))?;
            answer.as_object_mut().unwrap().remove("status");
            if status != 200 {
                answer["status"] = json!(status);
            }
            self.judge(query, &query.body, Answer { status, body: answer, geoshards: None })?;
        }
        Ok(())
    }

    /// Each page is the reference's for the same `search_after`, and together they have every hit once.
    fn check_pages(&self, query: &Query, most: usize) -> Result<(), String> {
        let mut body = query.body.clone();
        let mut ids = Vec::new();
        for page in 0..most {
            let Some(answer) = self.check_search(query, &body)? else { return Ok(()) };
            self.count(|tally| tally.pages += 1);
            let hits = judge::hits(&answer)?;
            ids.extend(hits.iter().map(|hit| judge::id(hit).to_owned()));
            let is_last = Some(hits.len() as u64) < body["size"].as_u64();
            match hits.last() {
                Some(last) if !is_last && page + 1 < most => {
                    body["search_after"] = last["sort"].clone();
                }
                _ => break,
            }
        }
        let mut once = ids.clone();
        once.sort();
        once.dedup();
        (once.len() == ids.len())
            .then_some(())
            .ok_or_else(|| format!("pages have a document twice: {}", query.body))
    }
}

/// Whether Elasticsearch may leave out a hit of this search. While it does not count all hits, Lucene skips documents that
/// are too far away for `distance_feature` to give them a better score, by a box whose rounding loses some that are metres nearer.
fn skips_by_distance(body: &Value) -> bool {
    body["track_total_hits"] != true && body.to_string().contains("distance_feature")
}

/// Without these parameters.
fn without(url: &str, names: &[&str]) -> String {
    let is_left = |parameter: &&str| !names.contains(&parameter.split('=').next().unwrap_or_default());
    let left: Vec<&str> = url.trim_start_matches('?').split('&').filter(is_left).collect();
    format!("?{}", left.join("&"))
}

/// Elasticsearch's form of an error.
pub fn is_an_error(answer: &Value, status: u16) -> Result<(), String> {
    let error = &answer["error"];
    let is_one = error["type"].is_string()
        && error["reason"].is_string()
        && error["root_cause"].is_array()
        && answer["status"] == status;
    is_one
        .then_some(())
        .ok_or_else(|| format!("not an error in Elasticsearch's form, of status {status}: {answer}"))
}

/// For a failure: the query and both answers.
fn shown(body: &Value, answer: &Value, reference: &Value) -> String {
    let short = |answer: &Value| answer.to_string().chars().take(3_000).collect::<String>();
    format!("query:     {body}\nanswer:    {}\nreference: {}", short(answer), short(reference))
}

fn compare(test: &str, cut: Cut) {
    let seed = seed(test);
    let corpus = Corpus::new(&mut Random::new(seed), cut);
    let (router, target) = routed(&corpus.world);
    let comparison = Comparison { corpus: &corpus, target, tally: Mutex::default() };
    let wanted = wanted_queries(800);
    // One alone is replayed by its number.
    let first: usize = std::env::var("GEOFOLD_ROUTE_FIRST").map_or(0, |text| text.parse().unwrap());
    let next = AtomicUsize::new(first);
    let began = Instant::now();
    let failures = Mutex::new(Vec::new());
    let answer_queries = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= first + wanted || failures.lock().unwrap().len() >= 5 {
                return;
            }
            let query =
                Queries::new(seed ^ (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), &corpus.places).query();
            if let Err(wrong) = comparison.check(&query) {
                let replay = format!("GEOFOLD_SEED={seed} GEOFOLD_ROUTE_FIRST={n} GEOFOLD_ROUTE_QUERIES=1");
                let failure = format!(
                    "query {n} ({:?}{}): {wrong}\nreplay with: {replay} cargo test --features real-services --test real {test}",
                    query.ask, query.url
                );
                failures.lock().unwrap().push(failure);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(answer_queries)));
    });
    let tally = comparison.tally.into_inner().unwrap();
    println!(
        "in {} s: {:?}; {} pages, {} hits; {} of {} geoshards asked; wrong queries: {}; refused: {:?}; compared with every \
         hit scored: {}",
        began.elapsed().as_secs(),
        tally.by_ask,
        tally.pages,
        tally.hits,
        tally.asked,
        tally.total,
        tally.wrong,
        tally.refused,
        tally.unskipped
    );
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    if wanted >= 100 {
        assert!(tally.hits > 10 * wanted, "{} hits: too few to have tested anything", tally.hits);
        let refused: usize = tally.refused.values().sum();
        assert!(refused < wanted / 4 && tally.wrong < wanted / 20, "too many were refused");
        let saved = router.is_none() || tally.asked < tally.total;
        assert!(saved, "{} of {} geoshards were asked", tally.asked, tally.total);
        assert!(
            tally.unskipped <= wanted / 1_000,
            "{} faults of Elasticsearch are too many",
            tally.unskipped
        );
    }
}

#[test]
fn random_queries_equal_one_index_on_a_scattered_map() {
    compare("random_queries_equal_one_index_on_a_scattered_map", Cut::Scattered);
}

#[test]
fn random_queries_equal_one_index_on_a_compact_map() {
    compare("random_queries_equal_one_index_on_a_compact_map", Cut::Compact);
}
