//! The whole service against the stand-in for Elasticsearch: over geoshards it answers as one index does.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::load::SearchLoad;
use super::request::{CountRequest, SearchRequest, parse_body};
use super::service::{Places, SearchResult, Service};
use super::upstream::{Caller, Upstream};
use crate::base::clock::BootClock;
use crate::base::geo::GeoPoint;
use crate::base::ids::ShardId;
use crate::base::position::Epoch;
use crate::base::random::Random;
use crate::geoshard::GeoshardMap;
use crate::io::elastic::Method;
use crate::io::elastic::http::{Forward, HttpElastic, HttpOptions};
use crate::io::maps::{MapsReader, MapsRecord, MapsStore, Watcher};
use crate::support::config::{RouteConfig, WithoutLocation};
use crate::support::telemetry::route::{Retried, RouteMetrics, SentLabel};
use crate::testkit::embedded::elasticsearch::{FaultPlan, Standin, StandinOptions};

const LIMIT: Duration = Duration::from_secs(120);

struct Rig {
    standin: Standin,
    service: Service,
    client: Arc<HttpElastic>,
}

fn http(standin: &Standin) -> HttpElastic {
    let options = HttpOptions::new(vec![standin.url().parse().unwrap()], "p", LIMIT);
    HttpElastic::connect(&options, Arc::new(BootClock)).unwrap()
}

fn mappings() -> serde_json::Map<String, Value> {
    let fields = json!({"location": {"type": "geo_point"}, "id": {"type": "keyword"}, "n": {"type": "long"}, "tag": {"type": "keyword"}});
    json!({"properties": fields}).as_object().unwrap().clone()
}

/// A map of stretches of the curve, with some geoshards in several pieces.
fn some_map(random: &mut Random, version: u64, name: &str) -> Arc<GeoshardMap> {
    let count = 3 + random.below(30);
    let mut starts: Vec<u64> =
        (0..count).map(|_| (random.below(6 << 20) << 41) | 1).filter(|&start| start > 1).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut ranges = vec![(0, ShardId::new(&format!("{name}0")).unwrap())];
    for start in starts {
        ranges.push((start, ShardId::new(&format!("{name}{}", random.below(count / 2 + 2))).unwrap()));
    }
    Arc::new(GeoshardMap::new(version, name, ranges).unwrap())
}

impl Rig {
    /// A router by these maps: one, or two while the first is changed to the second.
    async fn new(maps: &[Arc<GeoshardMap>], options: RouteConfig) -> Self {
        let standin = Standin::start(StandinOptions::default()).await.unwrap();
        for shard in maps.iter().flat_map(|map| map.shards()) {
            // Two maps may have a geoshard in common.
            let _ = standin.store().create_index(&format!("p-{shard}"), Default::default(), mappings());
        }
        standin.store().create_index("one", Default::default(), mappings()).unwrap();
        standin.store().create_index("p-meta", Default::default(), Default::default()).unwrap();
        let metrics = RouteMetrics::new().unwrap();
        let client = Arc::new(http(&standin));
        let clock = Arc::new(BootClock);
        let maps = match maps {
            [one] => MapsReader::fixed(one.clone(), clock.clone()),
            maps => {
                let configured = MapsRecord::unwritten(maps[0].clone(), Epoch::default());
                let record = configured.begin(maps[1].clone()).unwrap();
                MapsStore::new(&*client, "t", LIMIT).write(&record, None).await.unwrap();
                let age = Duration::from_secs(60);
                let (watcher, reader) =
                    Watcher::new(client.clone(), "t", configured, age, clock.clone(), metrics.maps.clone());
                watcher.look().await;
                reader
            }
        };
        let service = Service {
            upstream: Upstream {
                elastic: http(&standin),
                passes_credentials: false,
                max_bytes: options.response_max_bytes.as_usize(),
                hedging: None,
                metrics: metrics.clone(),
            },
            places: Places::new(&options),
            options,
            location: "location".to_owned(),
            search_grace: Duration::from_secs(1),
            maps,
            metrics,
            load: SearchLoad::default(),
            clock,
        };
        Self { standin, service, client }
    }

    async fn send(&self, path: &str, body: &str) -> (u16, Value) {
        let request = Forward {
            method: Method::Post,
            path,
            content_type: "application/x-ndjson",
            body: Some(Bytes::from(body.to_owned())),
            headers: Default::default(),
        };
        let answer = self.client.forward(self.client.node(None), request, LIMIT).await.unwrap();
        (answer.status, serde_json::from_slice(&answer.body).unwrap())
    }

    /// Writes documents: index, version, content.
    async fn write(&self, documents: &[(String, u64, &Value)]) {
        for some in documents.chunks(500) {
            let mut body = String::new();
            for (index, version, document) in some {
                let head = json!({"index": {"_index": index, "_id": document["id"], "version": version, "version_type": "external"}});
                body.push_str(&format!("{head}\n{document}\n"));
            }
            let (_, answer) = self.send("/_bulk?refresh=true", &body).await;
            assert_eq!(answer["errors"], false, "{answer}");
        }
    }

    async fn search(&self, body: &Value) -> Result<SearchResult, super::error::SearchFailure> {
        let request = SearchRequest::new(parse_body(body.to_string().as_bytes()).unwrap(), &[], "location")?;
        self.service.search(&request, Caller::default()).await
    }

    /// The same of the index that holds all.
    async fn expected(&self, body: &Value) -> Value {
        let (status, answer) = self.send("/one/_search", &body.to_string()).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

/// Documents in a few towns and everywhere else, one place held by several of them.
fn documents(random: &mut Random, count: usize) -> Vec<Value> {
    let towns: Vec<(f64, f64)> =
        (0..5).map(|_| (random.share() * 170.0 - 85.0, random.share() * 360.0 - 180.0)).collect();
    (0..count)
        .map(|n| {
            let (lat, lon) = match random.below(3) {
                0 => (random.share() * 180.0 - 90.0, random.share() * 360.0 - 180.0),
                _ => {
                    let (lat, lon) = towns[usize::try_from(random.below(5)).unwrap()];
                    (lat + (random.below(30) as f64 - 15.0) / 10.0, lon + (random.below(30) as f64 - 15.0) / 10.0)
                }
            };
            let lon = if lon > 180.0 { lon - 360.0 } else if lon < -180.0 { lon + 360.0 } else { lon };
            let mut document = json!({"id": format!("d{n:04}"), "location": {"lat": lat, "lon": lon}, "tag": format!("t{}", random.below(3))});
            if random.below(5) > 0 {
                document["n"] = json!(random.below(50));
            }
            document
        })
        .collect()
}

fn place(document: &Value) -> GeoPoint {
    let degrees = |name: &str| document["location"][name].as_f64().unwrap();
    GeoPoint::new(degrees("lat"), degrees("lon")).unwrap()
}

fn some_query(random: &mut Random, documents: &[Value]) -> Value {
    let near = place(&documents[usize::try_from(random.below(documents.len() as u64)).unwrap()]);
    let circle = |random: &mut Random| {
        let metres = [100.0, 5e3, 1e5, 1e6, 8e6, 3e7][usize::try_from(random.below(6)).unwrap()]
            * (random.share() + 0.1);
        json!({"geo_distance": {"distance": format!("{metres}m"), "location": [near.lon(), near.lat()]}})
    };
    let rectangle = |random: &mut Random| {
        let size = random.share() * 20.0;
        let (left, right) = (near.lon() - size, near.lon() + size);
        let turned = |lon: f64| {
            if lon > 180.0 {
                lon - 360.0
            } else if lon < -180.0 {
                lon + 360.0
            } else {
                lon
            }
        };
        json!({"geo_bounding_box": {"location": {"top": (near.lat() + size).min(90.0), "bottom": (near.lat() - size).max(-90.0),
               "left": turned(left), "right": turned(right)}}})
    };
    let tag = json!({"term": {"tag": format!("t{}", random.below(3))}});
    match random.below(8) {
        0 => json!({"match_all": {}}),
        1 => circle(random),
        2 => rectangle(random),
        3 => json!({"bool": {"filter": [circle(random), tag]}}),
        4 => json!({"bool": {"must": [rectangle(random), circle(random)], "must_not": [tag]}}),
        5 => json!({"bool": {"should": [circle(random), rectangle(random)]}}),
        6 => json!({"bool": {"filter": {"bool": {"must": rectangle(random)}}, "should": [tag]}}),
        _ => json!({"bool": {"must_not": circle(random)}}),
    }
}

fn some_sort(random: &mut Random, documents: &[Value]) -> Value {
    let at = place(&documents[usize::try_from(random.below(documents.len() as u64)).unwrap()]);
    let unit = ["m", "km", "mi"][usize::try_from(random.below(3)).unwrap()];
    let order = ["asc", "desc"][usize::try_from(random.below(2)).unwrap()];
    match random.below(5) {
        0 | 1 => {
            let mut key = json!({"location": [at.lon(), at.lat()], "unit": unit});
            if random.below(3) == 0 {
                key["distance_type"] = json!("plane");
            }
            json!([{"_geo_distance": key}, "id"])
        }
        2 => json!([{"_geo_distance": {"location": [at.lon(), at.lat()], "order": "desc"}}, {"id": order}]),
        3 => json!([{"n": order}, "id"]),
        _ => json!([{"tag": order}, {"n": "desc"}, {"id": order}]),
    }
}

fn some_body(random: &mut Random, documents: &[Value]) -> Value {
    let size = [0, 1, 3, 10, 50][usize::try_from(random.below(5)).unwrap()];
    let mut body =
        json!({"query": some_query(random, documents), "sort": some_sort(random, documents), "size": size});
    match random.below(4) {
        0 => body["track_total_hits"] = json!(true),
        1 => body["track_total_hits"] = json!(false),
        2 => body["track_total_hits"] = json!(random.below(60)),
        _ => {}
    }
    if random.below(4) == 0 {
        body["from"] = json!(random.below(20));
    }
    body
}

fn ids(answer: &Value) -> Vec<String> {
    let hits = answer["hits"]["hits"].as_array().unwrap().iter();
    hits.map(|hit| hit["_id"].as_str().unwrap().to_owned()).collect()
}

fn values(answer: &Value) -> Vec<&Value> {
    answer["hits"]["hits"].as_array().unwrap().iter().map(|hit| &hit["sort"]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn geoshards_answer_as_one_index_does() {
    let mut random = Random::new(23);
    let (mut asked, mut all, mut early) = (0, 0, 0);
    for _ in 0..8 {
        let map = some_map(&mut random, 1, "s");
        let rig = Rig::new(std::slice::from_ref(&map), RouteConfig::default()).await;
        let documents = documents(&mut random, 600);
        let placed = |document| (format!("p-{}", map.locate(place(document))), 5, document);
        rig.write(&documents.iter().map(placed).collect::<Vec<_>>()).await;
        rig.write(&documents.iter().map(|document| ("one".to_owned(), 5, document)).collect::<Vec<_>>())
            .await;
        for _ in 0..60 {
            let mut body = some_body(&mut random, &documents);
            // And up to two further pages.
            for _ in 0..3 {
                let expected = rig.expected(&body).await;
                let found = rig.search(&body).await.unwrap();
                let answer: Value = serde_json::from_slice(&found.body).unwrap();
                assert_eq!(ids(&answer), ids(&expected), "{body}");
                assert_eq!(values(&answer), values(&expected), "{body}");
                assert_eq!(answer["hits"]["total"], expected["hits"]["total"], "{body}");
                assert!(
                    answer["hits"]["hits"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .all(|hit| hit.get("_version").is_none())
                );
                assert_eq!(found.total, map.shards().len());
                asked += found.asked;
                all += found.total;
                let Some(last) = values(&expected).last().map(|&last| last.clone()) else { break };
                body["search_after"] = last;
                body.as_object_mut().unwrap().remove("from");
            }
        }
        early += rig.service.metrics.early_stops.get();
        rig.standin.stop().await;
    }
    assert!(asked * 10 < all * 8 && early > 20, "{asked} of {all}, {early}");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_map_is_changed_a_document_is_found_once_in_its_newest_copy() {
    let mut random = Random::new(29);
    let mut doubled = 0;
    for _ in 0..4 {
        let (old, new) = (some_map(&mut random, 1, "s"), some_map(&mut random, 2, "t"));
        let rig = Rig::new(&[old.clone(), new.clone()], RouteConfig::default()).await;
        let documents = documents(&mut random, 400);
        let mut placed = Vec::new();
        for document in &documents {
            let (from, to) = (old.locate(place(document)), new.locate(place(document)));
            let state = random.below(3);
            if state != 2 {
                placed.push((format!("p-{from}"), 5, document));
            }
            if state != 0 {
                placed.push((format!("p-{to}"), 6, document));
            }
        }
        rig.write(&placed).await;
        rig.write(&documents.iter().map(|document| ("one".to_owned(), 5, document)).collect::<Vec<_>>())
            .await;
        for _ in 0..60 {
            let mut body = some_body(&mut random, &documents);
            body["version"] = json!(true);
            let expected = rig.expected(&body).await;
            let answer: Value = serde_json::from_slice(&rig.search(&body).await.unwrap().body).unwrap();
            assert_eq!(ids(&answer), ids(&expected), "{body}");
            assert_eq!(values(&answer), values(&expected), "{body}");
            for hit in answer["hits"]["hits"].as_array().unwrap() {
                let newest = placed
                    .iter()
                    .filter(|(_, _, document)| document["id"] == hit["_id"])
                    .map(|copy| copy.1)
                    .max();
                assert_eq!(hit["_version"].as_u64(), newest, "{body}");
            }
        }
        doubled += rig.service.metrics.duplicates.get();
        rig.standin.stop().await;
    }
    assert!(doubled > 100, "{doubled}");
}

#[tokio::test]
async fn planar_distances_over_the_antimeridian_stop_early_only_where_nothing_nearer_is_left() {
    let mut random = Random::new(37);
    let map = some_map(&mut random, 1, "s");
    let rig = Rig::new(std::slice::from_ref(&map), RouteConfig::default()).await;
    // On the globe those behind the antimeridian are the nearest, on the plane the farthest.
    let places = [(0.0, -179.9), (1.0, -179.0), (0.0, 170.0), (10.0, 150.0), (-20.0, 100.0), (40.0, -60.0)];
    let documents: Vec<Value> = places
        .iter()
        .enumerate()
        .map(|(n, (lat, lon))| json!({"id": format!("d{n}"), "location": {"lat": lat, "lon": lon}}))
        .collect();
    let placed = |document| (format!("p-{}", map.locate(place(document))), 5, document);
    rig.write(&documents.iter().map(placed).collect::<Vec<_>>()).await;
    rig.write(&documents.iter().map(|document| ("one".to_owned(), 5, document)).collect::<Vec<_>>()).await;
    for (distance_type, origin, size, nearest) in [
        ("arc", [179.5, 0.0], 2, vec!["d0", "d1"]),
        ("plane", [179.5, 0.0], 2, vec!["d2", "d3"]),
        ("plane", [-179.5, 0.0], 2, vec!["d0", "d1"]),
        ("plane", [-179.5, 0.0], 4, vec!["d0", "d1", "d5", "d4"]),
    ] {
        let key = json!({"location": origin, "distance_type": distance_type, "unit": "km"});
        let body = json!({"sort": [{"_geo_distance": key}], "size": size, "track_total_hits": false});
        let expected = rig.expected(&body).await;
        let found = rig.search(&body).await.unwrap();
        let answer: Value = serde_json::from_slice(&found.body).unwrap();
        assert_eq!(ids(&answer), nearest, "{body}");
        assert_eq!(values(&answer), values(&expected), "{body}");
        let is_near_on_both = origin[0] < 0.0 && size == 2;
        assert!(!is_near_on_both || found.asked < found.total, "{} of {}", found.asked, found.total);
    }
}

/// Where only a text is left to decide, Elasticsearch does: a date with a `format` sorts otherwise than it is shown.
#[tokio::test]
async fn hits_of_two_rounds_that_tie_up_to_a_text_are_asked_for_by_one_request() {
    let face = |face: u64| {
        (if face == 0 { 0 } else { (face << 61) | 1 }, ShardId::new(&format!("s{face}")).unwrap())
    };
    let map = Arc::new(GeoshardMap::new(1, "faces", (0..6).map(face).collect()).unwrap());
    let rig = Rig::new(std::slice::from_ref(&map), RouteConfig::default()).await;
    let to_the = |side: &str, lon: f64, tag: &str| json!({"id": side, "location": {"lat": 0.0, "lon": lon}, "tag": tag});
    let documents = [to_the("east", 90.0, "b"), to_the("west", -90.0, "a"), to_the("far west", -91.0, "a")];
    let placed = |document| (format!("p-{}", map.locate(place(document))), 5, document);
    rig.write(&documents.iter().map(placed).collect::<Vec<_>>()).await;
    let ties = rig.service.metrics.retried.of(Retried::Ties);
    let distance = json!({"_geo_distance": {"location": [0.0, 0.0]}});
    for (further, expected, repeated) in [("n", ["east", "west"], 0), ("tag", ["west", "east"], 1)] {
        let body = json!({"sort": [distance, further], "size": 2, "track_total_hits": false});
        let found = rig.search(&body).await.unwrap();
        assert_eq!(ids(&serde_json::from_slice(&found.body).unwrap()), expected, "{further}");
        assert_eq!(ties.get(), repeated, "{further}");
    }
}

/// A map of two halves of the globe's faces.
fn halves() -> Arc<GeoshardMap> {
    let shard = |id| ShardId::new(id).unwrap();
    Arc::new(GeoshardMap::new(1, "halves", vec![(0, shard("a")), ((3 << 61) | 1, shard("b"))]).unwrap())
}

fn circle() -> Value {
    json!({"geo_distance": {"distance": "1km", "location": [0, 0]}})
}

#[tokio::test]
async fn a_count_is_a_search_without_hits() {
    let rig = Rig::new(&[halves()], RouteConfig::default()).await;
    let here = json!({"id": "x", "location": {"lat": 0.0, "lon": 0.0}});
    rig.write(&[("p-a".to_owned(), 1, &here)]).await;
    for (query, count, asked) in
        [(circle(), 1, 1), (json!({"match_all": {}}), 1, 2), (json!({"match_none": {}}), 0, 2)]
    {
        let body = json!({"query": query}).as_object().unwrap().clone();
        let request = CountRequest::new(body, &[], "location").unwrap();
        let found = rig.service.count(&request, Caller::default()).await.unwrap();
        let answer: Value = serde_json::from_slice(&found.body).unwrap();
        assert_eq!((&answer["count"], found.asked, found.total), (&json!(count), asked, 2));
        assert_eq!(answer["_shards"]["failed"], 0);
    }
}

#[tokio::test]
async fn very_many_geoshards_are_asked_by_one_request() {
    let shards = 300_u64;
    let ranges = (0..shards).map(|n| {
        let start = if n == 0 { 0 } else { (n << 54) | 1 };
        (start, ShardId::new(&format!("a-rather-long-name-of-a-geoshard-{n}")).unwrap())
    });
    let map = Arc::new(GeoshardMap::new(1, "many", ranges.collect()).unwrap());
    let rig = Rig::new(std::slice::from_ref(&map), RouteConfig::default()).await;
    let here = json!({"id": "x", "location": {"lat": 0.0, "lon": 0.0}});
    rig.write(&[(format!("p-{}", map.locate(place(&here))), 1, &here)]).await;
    let found = rig.search(&json!({})).await.unwrap();
    let answer: Value = serde_json::from_slice(&found.body).unwrap();
    assert_eq!((ids(&answer), found.asked), (vec!["x".to_owned()], 300));
    assert_eq!(rig.service.metrics.upstream.of(SentLabel::Answered).get(), 1);
}

#[tokio::test]
async fn what_elasticsearch_refuses_is_passed_on() {
    let rig = Rig::new(&[halves()], RouteConfig::default()).await;
    for (body, status, says) in [
        (json!({"query": {"no_such": {}}}), 400, "unknown query [no_such]"),
        (json!({"query": circle(), "sort": ["unmapped"]}), 400, "No mapping found for [unmapped]"),
    ] {
        let failure = rig.search(&body).await.unwrap_err();
        let answer: Value = serde_json::from_slice(&failure.body()).unwrap();
        assert!(failure.status() == status && answer.to_string().contains(says), "{answer}");
        assert_eq!(answer["status"], status);
    }
}

#[tokio::test]
async fn without_a_location_all_are_asked_or_none() {
    let options = RouteConfig { without_location: WithoutLocation::Refuse, ..RouteConfig::default() };
    let rig = Rig::new(&[halves()], options).await;
    let failure = rig.search(&json!({})).await.unwrap_err();
    assert!(
        failure.status() == 400
            && String::from_utf8_lossy(&failure.body()).contains("route.without_location")
    );
    let nearest = json!({"sort": [{"_geo_distance": {"location": [0, 0]}}]});
    assert_eq!(rig.search(&nearest).await.unwrap().asked, 2);
    assert_eq!(rig.search(&json!({"query": circle()})).await.unwrap().asked, 1);
}

#[tokio::test]
async fn without_maps_there_is_no_answer() {
    let mut rig = Rig::new(&[halves()], RouteConfig::default()).await;
    let record = MapsRecord::unwritten(halves(), Epoch::default());
    let metrics = rig.service.metrics.maps.clone();
    let (watcher, reader) = Watcher::new(
        rig.client.clone(),
        "t",
        record,
        Duration::from_millis(300),
        Arc::new(BootClock),
        metrics,
    );
    rig.service.maps = reader;
    let failure = rig.search(&json!({})).await.unwrap_err();
    assert!(failure.status() == 503 && failure.retry_after() == Some(1), "{failure:?}");
    watcher.look().await;
    assert!(rig.search(&json!({})).await.is_ok());
    tokio::time::sleep(Duration::from_millis(400)).await;
    let failure = rig.search(&json!({})).await.unwrap_err();
    assert!(String::from_utf8_lossy(&failure.body()).contains("not known now which map"));
}

#[tokio::test]
async fn a_map_that_comes_into_force_meanwhile_is_asked_too() {
    let mut rig = Rig::new(&[halves()], RouteConfig::default()).await;
    let all = Arc::new(GeoshardMap::new(2, "all", vec![(0, ShardId::new("all").unwrap())]).unwrap());
    rig.standin.store().create_index("p-all", Default::default(), mappings()).unwrap();
    let record = MapsRecord::unwritten(halves(), Epoch::default());
    let metrics = rig.service.metrics.maps.clone();
    let (watcher, reader) =
        Watcher::new(rig.client.clone(), "t", record.clone(), LIMIT, Arc::new(BootClock), metrics);
    rig.service.maps = reader;
    watcher.look().await;
    let next = record.begin(all).unwrap();
    rig.standin.faults().set(FaultPlan { latency: Duration::from_secs(2), ..FaultPlan::default() });
    let body = json!({"query": circle()});
    let change = async {
        // The first request is there, and its answer far away.
        tokio::time::sleep(Duration::from_millis(200)).await;
        rig.standin.faults().clear();
        MapsStore::new(&*rig.client, "t", LIMIT).write(&next, None).await.unwrap();
        watcher.look().await;
    };
    let (found, ()) = tokio::join!(rig.search(&body), change);
    assert_eq!((found.unwrap().asked, rig.service.metrics.retried.of(Retried::Map).get()), (2, 1));
}

#[tokio::test]
async fn too_many_at_once_wait_or_are_refused() {
    let options = RouteConfig {
        max_concurrent: 1,
        max_queued: 1,
        timeout: Duration::from_secs(5),
        ..RouteConfig::default()
    };
    let rig = Rig::new(&[halves()], options).await;
    rig.standin.faults().set(FaultPlan { latency: Duration::from_millis(300), ..FaultPlan::default() });
    let body = json!({"query": circle()});
    let (a, b, c) = tokio::join!(rig.search(&body), rig.search(&body), rig.search(&body));
    let statuses: Vec<u16> = [a, b, c]
        .iter()
        .map(|found| found.as_ref().map_or_else(|failure| failure.status(), |_| 200))
        .collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!((rig.service.metrics.in_flight.get(), rig.service.metrics.queued.get()), (0, 0));
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place() {
    let options = RouteConfig { max_concurrent: 1, max_queued: 0, ..RouteConfig::default() };
    let rig = Rig::new(&[halves()], options).await;
    rig.standin.faults().set(FaultPlan { latency: Duration::from_secs(60), ..FaultPlan::default() });
    let body = json!({"query": circle()});
    let left = tokio::time::timeout(Duration::from_millis(200), rig.search(&body)).await;
    assert!(left.is_err() && rig.service.metrics.in_flight.get() == 0);
    rig.standin.faults().clear();
    assert!(rig.search(&body).await.is_ok());
}

#[tokio::test]
async fn an_answer_that_is_late_or_too_large_is_an_error_that_says_so() {
    let options = RouteConfig { timeout: Duration::from_millis(200), ..RouteConfig::default() };
    let mut rig = Rig::new(&[halves()], options).await;
    rig.service.upstream.max_bytes = 50;
    let failure = rig.search(&json!({})).await.unwrap_err();
    let says = String::from_utf8_lossy(&failure.body()).into_owned();
    assert!(failure.status() == 502 && says.contains("route.response_max_bytes"), "{says}");
    rig.standin.faults().set(FaultPlan { latency: Duration::from_secs(60), ..FaultPlan::default() });
    let failure = rig.search(&json!({})).await.unwrap_err();
    let says = String::from_utf8_lossy(&failure.body()).into_owned();
    assert!(failure.status() == 504 && says.contains("route.timeout"), "{says}");
    let rig = Rig::new(&[halves()], RouteConfig::default()).await;
    rig.standin.faults().set(FaultPlan { down: true, ..FaultPlan::default() });
    let failure = rig.search(&json!({})).await.unwrap_err();
    assert_eq!((failure.status(), rig.service.metrics.retried.of(Retried::Node).get()), (503, 1));
}
