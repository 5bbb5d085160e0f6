//! A worker, Elasticsearch and the router are killed while many clients search: no answer is wrong, and what is no answer is an error of the
//! documented kinds.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::corpus::{Corpus, Cut};
use super::equality::is_an_error;
use super::judge;
use super::queries::Queries;
use super::router::{Router, Target};
use crate::support::{Event, Random, StopOnDrop, TIMEOUT, World, seed, wait_at_most};

/// Different queries; what each has to find is known before the trouble begins.
const QUERIES: usize = 60;

/// A query and its whole answer.
struct Known {
    body: Value,
    answer: Value,
    /// The reference's answer to the same query without limit.
    whole: Value,
}

/// What came of the searches.
#[derive(Default)]
struct Outcomes {
    right: AtomicUsize,
    /// Marked as such, and allowed by the request.
    partial: AtomicUsize,
    unreachable: AtomicUsize,
    errors: Mutex<BTreeMap<String, usize>>,
    wrong: Mutex<Vec<String>>,
}

impl Outcomes {
    fn note(&self, known: &Known, allows_partial: bool, answer: reqwest::Result<super::router::Answer>) {
        let Ok(answer) = answer else {
            self.unreachable.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let outcome = match answer.status {
            200 => self.judge(known, allows_partial, &answer.body),
            // Too many; no or no good answer from Elasticsearch; maps unknown; too late.
            status @ (429 | 502 | 503 | 504) => {
                let kind = format!("{status} {}", answer.body["error"]["type"].as_str().unwrap_or("?"));
                *self.errors.lock().unwrap().entry(kind).or_default() += 1;
                is_an_error(&answer.body, status)
            }
            status => Err(format!("status {status}")),
        };
        if let Err(wrong) = outcome {
            let answer: String = answer.body.to_string().chars().take(2_000).collect();
            self.wrong.lock().unwrap().push(format!("{wrong}\nquery:  {}\nanswer: {answer}", known.body));
        }
    }

    fn judge(&self, known: &Known, allows_partial: bool, answer: &Value) -> Result<(), String> {
        let is_partial = answer["_shards"]["failed"] != 0 || answer["timed_out"] != false;
        if !is_partial {
            self.right.fetch_add(1, Ordering::Relaxed);
            return judge::fault(answer, &known.answer, |_| known.whole.clone());
        }
        if !allows_partial {
            return Err("a partial answer, which the request forbids".to_owned());
        }
        self.partial.fetch_add(1, Ordering::Relaxed);
        let hits = judge::hits(answer)?;
        judge::no_doubles(&hits)?;
        let whole = judge::hits(&known.whole)?;
        let is_known = |id: &str| whole.iter().any(|hit| judge::id(hit) == id);
        match hits.iter().find(|hit| !is_known(judge::id(hit))) {
            None => Ok(()),
            Some(hit) => Err(format!("{} is no hit of the reference", judge::id(hit))),
        }
    }

    fn right(&self) -> usize {
        self.right.load(Ordering::Relaxed)
    }
}

fn known_queries(seed: u64, corpus: &Corpus) -> Vec<Known> {
    let mut random = Random::new(seed);
    let known = |_| {
        let mut queries = Queries::new(random.bits(), &corpus.places);
        let sort = match random.below(2) {
            0 => json!([{"uid": "asc"}]),
            _ => {
                let from = corpus.places[usize::try_from(random.below(corpus.places.len() as u64)).unwrap()];
                json!([{"_geo_distance": {"location": {"lat": from.lat(), "lon": from.lon()}}}])
            }
        };
        // Those that move meanwhile have no uid.
        let filter = json!([queries.constraint(), {"exists": {"field": "uid"}}]);
        let mut body = json!({
            "query": {"bool": {"filter": filter}}, "sort": sort, "size": 1 + random.below(50),
            "track_total_hits": true, "_source": ["uid"],
        });
        let answer = corpus.whole.search(&body).body;
        let size = body["size"].take();
        body["size"] = json!(10_000);
        let whole = corpus.whole.search(&body).body;
        body["size"] = size;
        Known { body, answer, whole }
    };
    (0..QUERIES).map(known).collect()
}

fn search_until(is_over: &AtomicBool, target: &Target, known: &[Known], seed: u64, outcomes: &Outcomes) {
    let mut random = Random::new(seed);
    while !is_over.load(Ordering::Relaxed) {
        let known = &known[usize::try_from(random.below(known.len() as u64)).unwrap()];
        let allows_partial = random.below(2) == 0;
        let parameters = if allows_partial { "?allow_partial_search_results=true" } else { "" };
        let answer = target.try_search(parameters, &known.body);
        let is_pause_due = !matches!(&answer, Ok(answer) if answer.status == 200);
        outcomes.note(known, allows_partial, answer);
        if is_pause_due {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Right answers go on.
fn wait_for_right_answers(outcomes: &Outcomes, after: &str) {
    let before = outcomes.right();
    wait_at_most(&format!("right answers after {after}"), TIMEOUT, || {
        (outcomes.right() > before + 100).then_some(())
    });
}

/// Documents without a uid that move from place to place.
fn keep_moving(is_over: &AtomicBool, world: &World, corpus: &Corpus) {
    let feed = world.feed();
    let mut step = 0;
    while !is_over.load(Ordering::Relaxed) {
        let place = corpus.places[(step * 7_919) % corpus.places.len()];
        let document = json!({"location": {"lat": place.lat(), "lon": place.lon()}});
        feed.send(&[Event::Index { id: format!("m{}", step % 30), document }.to_raw()]);
        step += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn no_answer_is_wrong_while_worker_elasticsearch_and_router_are_killed() {
    let seed = seed("no_answer_is_wrong_while_worker_elasticsearch_and_router_are_killed");
    let clients: u64 = std::env::var("GEOFOLD_ROUTE_CLIENTS").map_or(50, |text| text.parse().unwrap());
    let corpus = Corpus::alone(&mut Random::new(seed), Cut::Compact);
    let world = &corpus.world;
    let known = known_queries(seed, &corpus);
    let router = Router::start(world);
    let target = router.target(world);
    let (outcomes, is_over) = (Outcomes::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&is_over);
        for n in 0..clients {
            let (is_over, target, known, outcomes) = (&is_over, target.clone(), &known, &outcomes);
            scope.spawn(move || search_until(is_over, &target, known, seed ^ (n << 40), outcomes));
        }
        scope.spawn(|| keep_moving(&is_over, world, &corpus));
        wait_for_right_answers(&outcomes, "the start");
        let worker = world.worker();
        worker.wait_until_ready();
        std::thread::sleep(Duration::from_secs(3));
        worker.kill();
        let worker = world.worker();
        wait_for_right_answers(&outcomes, "a worker's kill");
        world.stack.tell("stop", "elasticsearch");
        std::thread::sleep(Duration::from_secs(2));
        world.stack.tell("start", "elasticsearch");
        wait_for_right_answers(&outcomes, "a stop of Elasticsearch");
        assert_eq!(
            outcomes.unreachable.load(Ordering::Relaxed),
            0,
            "the router left clients without an answer"
        );
        router.kill();
        std::thread::sleep(Duration::from_secs(1));
        router.restart();
        wait_for_right_answers(&outcomes, "the router's kill");
        let unreachable = outcomes.unreachable.load(Ordering::Relaxed);
        world.stack.tell("kill", "elasticsearch");
        world.stack.tell("start", "elasticsearch");
        wait_for_right_answers(&outcomes, "a kill of Elasticsearch");
        world.stack.tell("pause", "elasticsearch");
        std::thread::sleep(Duration::from_secs(5));
        world.stack.tell("resume", "elasticsearch");
        wait_for_right_answers(&outcomes, "a pause of Elasticsearch");
        let now = outcomes.unreachable.load(Ordering::Relaxed);
        assert_eq!(now, unreachable, "the router left clients without an answer");
        drop(worker);
    });
    let wrong = outcomes.wrong.into_inner().unwrap();
    println!(
        "{:?} right, {:?} partial, {:?} without an answer, errors: {:?}, {} wrong",
        outcomes.right,
        outcomes.partial,
        outcomes.unreachable,
        outcomes.errors,
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong[..wrong.len().min(5)].join("\n\n"));
}
