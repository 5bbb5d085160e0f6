//! What the router and Elasticsearch say to each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::blocking::Client;
use serde_json::{Value, json};

use super::front::{Does, Front, Seen, TLS_FILES};
use super::tls::OTHER_FILES;
use super::{Router, asked, ids, near_berlin};
use crate::standins::{Standins, wait_for};

const CLIENTS: &str = "Basic Y2xpZW50OnB3";
/// `own:of-the-router`.
const ROUTERS: &str = "Basic b3duOm9mLXRoZS1yb3V0ZXI=";

fn searches(seen: &Seen) -> bool {
    seen.is_search()
}

#[test]
fn credentials_of_clients_reach_elasticsearch_in_place_of_the_routers_own() {
    let world = Standins::start();
    let front = Front::start(&world.elasticsearch());
    front.does(|seen| match seen.header("authorization") {
        Some(CLIENTS) => Does::Pass,
        Some(ROUTERS) if !seen.is_search() && seen.path != "/" => Does::Pass,
        _ => Does::Answer(401, json!({"error": {"type": "security_exception"}, "status": 401}).to_string()),
    });
    let keys = "username = \"own\"\npassword = \"of-the-router\"";
    let router = Router::behind(world, &[&front], keys, "[route]\ncredentials = \"pass\"\n", &[]);
    let search = || router.post("/geofold/_search").body(near_berlin("30km").to_string());
    let answer = search().header("authorization", CLIENTS).send().unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(ids(&answer.json().unwrap()), ["berlin", "spandau"]);
    let lines = format!("{{}}\n{}\n", near_berlin("1km"));
    let several = router.post("/geofold/_msearch").body(lines).header("authorization", CLIENTS);
    assert_eq!(several.send().unwrap().json::<Value>().unwrap()["responses"][0]["status"], 200);
    let info = |request: reqwest::blocking::RequestBuilder| request.send().unwrap().status().as_u16();
    let root = || router.client.get(&router.url);
    assert_eq!((info(root().header("authorization", CLIENTS)), info(root())), (200, 401));
    // Without any, and with wrong ones: in the words of Elasticsearch.
    assert_eq!(search().send().unwrap().status(), 401);
    let refused = search().header("authorization", "Bearer wrong").send().unwrap();
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.json::<Value>().unwrap()["error"]["type"], "security_exception");
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(router.get(path).status(), 200, "{path}");
    }
    let mut sent: Vec<Option<String>> =
        front.searches().iter().map(|seen| seen.header("authorization").map(str::to_owned)).collect();
    sent.dedup();
    assert_eq!(sent, [Some(CLIENTS.to_owned()), None, Some("Bearer wrong".to_owned())]);
    let others = front.seen().into_iter().filter(|seen| !seen.is_search() && seen.path != "/");
    let others: Vec<Seen> = others.collect();
    assert!(!others.is_empty() && others.iter().all(|seen| seen.header("authorization") == Some(ROUTERS)));
    let log = router.process.stop();
    for secret in ["Y2xpZW50OnB3", "b3duOm9mLXRoZS1yb3V0ZXI", "of-the-router", "Bearer wrong"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

#[test]
fn with_credentials_of_its_own_those_of_clients_stay_behind() {
    let world = Standins::start();
    let front = Front::start(&world.elasticsearch());
    let router =
        Router::behind(world, &[&front], "username = \"own\"\npassword = \"of-the-router\"", "", &[]);
    let search = router.post("/geofold/_search").body(near_berlin("30km").to_string());
    assert_eq!(search.header("authorization", CLIENTS).send().unwrap().status(), 200);
    assert_eq!(router.client.get(&router.url).header("authorization", CLIENTS).send().unwrap().status(), 200);
    let seen = front.seen();
    assert!(seen.iter().any(Seen::is_search) && seen.iter().any(|seen| seen.path == "/"));
    assert!(seen.iter().all(|seen| seen.header("authorization") == Some(ROUTERS)), "{seen:?}");
    router.process.stop();
}

#[test]
fn elasticsearch_has_a_certificate_of_a_private_authority() {
    let world = Standins::start();
    let front = Front::start_with_tls(&world.elasticsearch());
    let router =
        Router::behind(world, &[&front], &format!("ca_file = \"{TLS_FILES}/authority.pem\""), "", &[]);
    let answer = router.search(&near_berlin("30km"));
    assert_eq!(ids(&answer.json().unwrap()), ["berlin", "spandau"]);
    assert_eq!(front.searches().len(), 1);
    router.process.stop();

    let world = Standins::start();
    let front = Front::start_with_tls(&world.elasticsearch());
    let direct = format!("urls = [{:?}]", world.elasticsearch());
    let config = world.config("").replace(&direct, &format!("urls = [{:?}]", front.url));
    let router = Router::unready(world, &config, &[]);
    router.process.wait_for("certificate");
    assert_eq!(router.get("/readyz").status(), 503);
    let answer = router.search(&near_berlin("30km"));
    assert_eq!((answer.status().as_u16(), answer.headers().contains_key("retry-after")), (503, true));
    assert!(front.seen().is_empty(), "nothing is sent to a server that cannot prove who it is");
    router.process.stop();
}

#[test]
fn elasticsearch_demands_a_certificate_of_the_router() {
    let world = Standins::start();
    let front = Front::start_for_holders(&world.elasticsearch(), &format!("{OTHER_FILES}/authority.pem"));
    for end in ["pem", "key"] {
        let (from, to) = (format!("{OTHER_FILES}/client.{end}"), world.folder.path().join(end));
        std::fs::copy(from, to).unwrap();
    }
    let trusted = format!("ca_file = \"{TLS_FILES}/authority.pem\"\n");
    let direct = format!("urls = [{:?}]", world.elasticsearch());
    // No certificate, none that is there, and one whose key is another: of all commands, one that asks Elasticsearch alone.
    let other_key = format!("client_cert_file = \"pem\"\nclient_key_file = \"{TLS_FILES}/endpoint.key\"");
    for (keys, code, words) in [
        ("", 1, ["cannot list the indices", "no connection to elasticsearch"]),
        (
            "client_cert_file = \"none\"\nclient_key_file = \"key\"",
            2,
            ["reading elasticsearch.client_cert_file", "none"],
        ),
        (
            &other_key,
            2,
            ["elasticsearch.client_cert_file and elasticsearch.client_key_file", "belongs to it"],
        ),
        ("client_cert_file = \"pem\"", 2, ["elasticsearch.client_key_file", "set both"]),
    ] {
        let config = world.config("").replace(&direct, &format!("urls = [{:?}]\n{trusted}{keys}", front.url));
        let path = world.folder.path().join("refused.toml");
        std::fs::write(&path, config).unwrap();
        let said = world.geofold(&path, &["shards", "create"]);
        assert_eq!(said.code, Some(code), "{keys}: {said:?}");
        assert!(words.iter().all(|words| said.err.contains(words)), "{keys}: {said:?}");
        assert!(!said.err.contains("MIGH"), "{said:?}");
    }
    assert!(front.seen().is_empty(), "{:?}", front.seen());
    let keys = format!("{trusted}client_cert_file = \"pem\"\nclient_key_file = \"key\"");
    let router = Router::behind(world, &[&front], &keys, "", &[]);
    let answer = router.search(&near_berlin("30km"));
    assert_eq!(ids(&answer.json().unwrap()), ["berlin", "spandau"]);
    assert_eq!(front.searches().len(), 1);
    router.process.stop();
}

/// As Elasticsearch says it of two shards, one of which failed.
fn partial(timed_out: bool) -> Value {
    let failures = match timed_out {
        true => json!([]),
        false => json!([{"shard": 0, "index": "geofold-s1", "node": "n",
                         "reason": {"type": "circuit_breaking_exception", "reason": "too much"}}]),
    };
    let failed = u64::from(!timed_out);
    let mut shards = json!({"total": 2, "successful": 2 - failed, "skipped": 0, "failed": failed});
    if !timed_out {
        shards["failures"] = failures;
    }
    let hit = json!({"_index": "geofold-s9", "_id": "berlin", "_score": null, "_version": 7, "sort": [0.5]});
    json!({"took": 3, "timed_out": timed_out, "_shards": shards,
           "hits": {"total": {"value": 1, "relation": "eq"}, "max_score": null, "hits": [hit]}})
}

#[test]
fn what_a_shard_did_not_say_is_marked_where_it_may_be_missing_and_an_error_where_not() {
    let world = Standins::start();
    let front = Front::start(&world.elasticsearch());
    let router = Router::behind(world, &[&front], "", "", &[]);
    // One geoshard, whose answer is passed on; and all of them, whose answers are merged.
    let mut everywhere = near_berlin("30km");
    everywhere.as_object_mut().unwrap().remove("query");
    for body in [near_berlin("30km"), everywhere] {
        for timed_out in [true, false] {
            front.does(move |seen| match seen.is_search() {
                true => Does::Answer(200, partial(timed_out).to_string()),
                false => Does::Pass,
            });
            let allowed = router.post("/geofold/_search?allow_partial_search_results=true");
            let answer = allowed.body(body.to_string()).send().unwrap();
            assert_eq!(answer.status(), 200, "{body}");
            let answer: Value = answer.json().unwrap();
            let expected = partial(timed_out);
            assert_eq!(answer["timed_out"], timed_out, "{answer}");
            assert_eq!(answer["_shards"], expected["_shards"]);
            assert_eq!(ids(&answer), ["berlin"]);

            let refused = router.search(&body);
            let status = if timed_out { 504 } else { 503 };
            assert_eq!(refused.status(), status, "{body}");
            let refused: Value = refused.json().unwrap();
            let reason = refused["error"]["reason"].as_str().unwrap();
            assert!(reason.contains("allow_partial_search_results"), "{reason}");
            assert!(refused.get("hits").is_none() && refused["status"] == status);
        }
    }
    // And it is Elasticsearch that is told first.
    let asked_for = |seen: &Seen| {
        let (_, rest) = seen.path.split_once("allow_partial_search_results=").unwrap();
        rest.split('&').next().unwrap().to_owned()
    };
    let asked_for: std::collections::BTreeSet<String> = front.searches().iter().map(asked_for).collect();
    assert_eq!(asked_for, ["false".to_owned(), "true".to_owned()].into());
    front.does(|seen| match seen.is_search() {
        true => Does::Answer(
            503,
            json!({"error": {"type": "search_phase_execution_exception"}, "status": 503}).to_string(),
        ),
        false => Does::Pass,
    });
    let refused = router.search(&near_berlin("30km"));
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.json::<Value>().unwrap()["error"]["type"], "search_phase_execution_exception");
    router.process.stop();
}

#[test]
fn when_a_client_leaves_its_request_to_elasticsearch_is_dropped() {
    let world = Standins::start();
    let front = Front::start(&world.elasticsearch());
    let router = Router::behind(world, &[&front], "", "", &[]);
    front.does(|seen| if seen.is_search() { Does::Hold } else { Does::Pass });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let impatient = Client::builder().timeout(Duration::from_secs(2)).build().unwrap();
            let url = format!("{}/geofold/_search", router.url);
            let search = impatient.post(url).body(near_berlin("30km").to_string()).send();
            assert!(search.unwrap_err().is_timeout());
        });
        wait_for("the search", || (front.held() == 1).then_some(()));
        assert_eq!(front.dropped(), 0);
        // Long before route.timeout, 10 s, and without any answer.
        wait_for("the end of the request", || (front.dropped() == 1).then_some(()));
    });
    let left = "geofold_route_requests_total{kind=\"search\",outcome=\"left\"}";
    wait_for("a count", || (router.metric(left) == 1.0).then_some(()));
    assert_eq!(router.metric("geofold_route_in_flight"), 0.0);
    assert_eq!(router.metric("geofold_route_upstream_requests_total{outcome=\"failed\"}"), 0.0);
    assert_eq!(front.searches().len(), 1, "it is not sent again");
    router.process.stop();
}

#[test]
fn while_it_is_not_known_which_map_is_live_there_is_no_answer() {
    let world = Standins::start();
    let front = Front::start(&world.elasticsearch());
    let more = "[batch]\ntimeout = \"3s\"\n[shutdown]\nrevoke_timeout = \"1s\"\n";
    let router = Router::behind(world, &[&front], "request_timeout = \"2s\"", more, &[]);
    assert_eq!(router.search(&near_berlin("30km")).status(), 200);
    // Searches would be answered; only the maps are not.
    front.does(|seen| match seen.is_search() {
        true => Does::Pass,
        false => Does::Answer(
            503,
            json!({"error": {"type": "unavailable_shards_exception"}, "status": 503}).to_string(),
        ),
    });
    wait_for("a map that is too old", || (router.get("/readyz").status() == 503).then_some(()));
    let searches = front.searches().len();
    let answer = router.search(&near_berlin("30km"));
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    let answer: Value = answer.json().unwrap();
    assert_eq!(answer["error"]["type"], "service_unavailable_exception");
    assert!(answer["error"]["reason"].as_str().unwrap().contains("which map"), "{answer}");
    assert_eq!(front.searches().len(), searches, "no geoshard is asked");
    front.does(|_| Does::Pass);
    wait_for("readiness", || (router.get("/readyz").status() == 200).then_some(()));
    assert_eq!(router.search(&near_berlin("30km")).status(), 200);
    router.process.stop();
}

#[test]
fn a_slow_request_is_sent_to_another_node_too_and_the_first_answer_counts() {
    let world = Standins::start();
    let (slow, quick) = (Front::start(&world.elasticsearch()), Front::start(&world.elasticsearch()));
    slow.does(|seen| if searches(seen) { Does::Hold } else { Does::Pass });
    let router = Router::behind(world, &[&slow, &quick], "", "[route]\nhedge_after = \"100ms\"\n", &[]);
    let hedges =
        |outcome: &str| router.metric(&format!("geofold_route_hedges_total{{outcome=\"{outcome}\"}}"));
    // Nodes take turns: the slow one is asked first by one of two.
    for _ in 0..4 {
        let answer = router.search(&near_berlin("30km"));
        assert_eq!((answer.status().as_u16(), asked(&answer).0.as_str()), (200, "1"));
        assert_eq!(ids(&answer.json().unwrap()), ["berlin", "spandau"]);
    }
    let begun = slow.searches().len();
    assert!(begun > 0 && quick.searches().len() == 4, "{begun}");
    wait_for("the end of the other requests", || (slow.dropped() == begun).then_some(()));
    assert_eq!((hedges("sent"), hedges("won")), (begun as f64, begun as f64));

    // The second answer is an error of its node: the first one is waited for.
    slow.does(|seen| if searches(seen) { Does::PassAfter(Duration::from_millis(600)) } else { Does::Pass });
    quick.does(|seen| match seen.is_search() {
        true => Does::Answer(
            429,
            json!({"error": {"type": "es_rejected_execution_exception"}, "status": 429}).to_string(),
        ),
        false => Does::Pass,
    });
    let (before, won) = (slow.searches().len(), hedges("won"));
    let statuses: Vec<u16> = (0..4).map(|_| router.search(&near_berlin("30km")).status().as_u16()).collect();
    let passed = slow.searches().len() - before;
    assert!(passed > 0 && statuses.iter().filter(|status| **status == 200).count() == passed, "{statuses:?}");
    assert_eq!(hedges("won"), won);
    router.process.stop();
}

#[test]
fn the_other_node_is_asked_also_where_requests_came_between() {
    let world = Standins::start();
    let (slow, quick) = (Front::start(&world.elasticsearch()), Front::start(&world.elasticsearch()));
    slow.does(|seen| if searches(seen) { Does::Hold } else { Does::Pass });
    let router = Router::behind(world, &[&slow, &quick], "", "[route]\nhedge_after = \"2s\"\n", &[]);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| router.search(&near_berlin("30km")).status());
        wait_for("a search at the slow node", || (slow.held() == 1).then_some(()));
        // It is the turn of the slow node again, once this one is answered.
        assert_eq!(router.search(&near_berlin("30km")).status(), 200);
        assert_eq!(first.join().unwrap(), 200);
    });
    assert_eq!((slow.searches().len(), quick.searches().len()), (1, 2));
    router.process.stop();
}

#[test]
fn a_trace_context_of_the_client_reaches_elasticsearch() {
    let world = Standins::start();
    let front = Front::start(&world.elasticsearch());
    let router = Router::behind(world, &[&front], "", "", &[]);
    let parent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
    for (parent, state) in [(Some(parent), Some("vendor=x")), (Some(parent), None), (None, None)] {
        let mut search = router.post("/geofold/_search").body(near_berlin("30km").to_string());
        for (name, value) in [("traceparent", parent), ("tracestate", state)] {
            if let Some(value) = value {
                search = search.header(name, value);
            }
        }
        assert_eq!(search.send().unwrap().status(), 200);
        let seen = front.searches().pop().unwrap();
        assert_eq!((seen.header("traceparent"), seen.header("tracestate")), (parent, state));
    }
    router.process.stop();
}

#[test]
fn no_more_than_one_of_twenty_requests_is_hedged() {
    let world = Standins::start();
    let front = Front::start(&world.elasticsearch());
    // Searches wait until the router has decided about a second request, however slow this machine is.
    let (begun, decided) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (of_search, until) = (begun.clone(), decided.clone());
    front.does(move |seen| match searches(seen) {
        true => Does::PassFrom(until.clone(), of_search.load(Ordering::SeqCst)),
        false => Does::Pass,
    });
    let router = Router::behind(world, &[&front], "", "[route]\nhedge_after = \"10ms\"\n", &[]);
    let hedges =
        |outcome: &str| router.metric(&format!("geofold_route_hedges_total{{outcome=\"{outcome}\"}}"));
    for number in 1..=30 {
        begun.store(number, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let search = scope.spawn(|| router.search(&near_berlin("30km")).status());
            let decisions = || hedges("sent") + hedges("over_budget");
            wait_for("a decision", || (decisions() >= number as f64).then_some(()));
            decided.store(number, Ordering::SeqCst);
            assert_eq!(search.join().unwrap(), 200);
        });
    }
    // Ten are saved up, and the thirty searches earn one more.
    assert_eq!((hedges("sent"), hedges("over_budget")), (11.0, 19.0));
    router.process.stop();
}

#[test]
fn without_hedging_a_slow_request_is_waited_for() {
    let world = Standins::start();
    let (slow, quick) = (Front::start(&world.elasticsearch()), Front::start(&world.elasticsearch()));
    slow.does(|seen| if searches(seen) { Does::PassAfter(Duration::from_millis(700)) } else { Does::Pass });
    let router = Router::behind(world, &[&slow, &quick], "", "", &[]);
    for _ in 0..4 {
        assert_eq!(router.search(&near_berlin("30km")).status(), 200);
    }
    assert_eq!((slow.searches().len() + quick.searches().len(), slow.dropped()), (4, 0));
    assert!(!slow.searches().is_empty());
    assert_eq!(router.metric("geofold_route_hedges_total{outcome=\"sent\"}"), 0.0);
    router.process.stop();
}
