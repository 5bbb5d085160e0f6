//! geofold's own calls, through its own client: the worker's, those of `geofold check`, and those that make indices.

use std::time::Duration;

use bytes::Bytes;
use geofold::base::clock::{BootClock, Clock, Instant};
use geofold::base::ids::{DocId, ShardId};
use geofold::base::position::Position;
use geofold::core::decode::LocationPath;
use geofold::core::placement::Placement;
use geofold::geoshard::GeoshardMap;
use geofold::io::elastic::{
    AdminCall, BulkOp, CallError, Elastic, FoundDocument, Get, GetAnswer, Index, ItemError, Method, SeqNo,
    WriteCondition,
};
use geofold::io::indices::{self, IndexDifference, Layout, Problem, Template};
use geofold::ops::check::{CheckLevel, CheckTarget, check};
use geofold::support::config::{Config, PlacementsConfig};
use geofold::testkit::embedded::broker::EmbeddedBroker;
use serde_json::{Value, json};

use crate::server::{LIMIT, Server};

crate::cases![
    versions_fence_writes_and_deletes,
    placements_are_compared_and_set_by_their_stamps,
    many_placements_are_read_as_of_a_refresh_since_then,
    a_source_is_read_byte_for_byte_before_any_refresh,
    compressed_requests_are_understood,
    a_missing_index_is_a_failure_and_not_a_missing_document,
    a_request_that_fails_validation_says_why,
    a_second_refresh_after_a_count_shows_what_was_written_before_it,
    missing_indices_are_created_as_geofold_needs_them,
    index_differences_are_found,
    an_added_point_is_mapped_and_searched,
    check_finds_nothing_wrong_where_nothing_is,
];

/// geofold's client, on a geoshard's index and the placements.
struct Client(geofold::io::elastic::http::HttpElastic);

impl Client {
    async fn on(server: &Server) -> Self {
        server.create("s01", json!({})).await;
        server.create_mapped("placements", json!({}), json!({"enabled": false})).await;
        Self(server.elastic())
    }

    async fn statuses(&self, ops: &[BulkOp]) -> Vec<(u16, String)> {
        let answers = self.0.bulk(ops, LIMIT).await.unwrap();
        let kind = |error: Option<Box<ItemError>>| error.map_or_else(String::new, |e| e.kind);
        answers.into_iter().map(|answer| (answer.status, kind(answer.error))).collect()
    }

    async fn get(&self, index: Index, name: &str) -> GetAnswer {
        self.0.mget(&[Get::realtime(index, id(name))], LIMIT).await.unwrap().remove(0)
    }
}

fn shard() -> Index {
    Index::Geoshard(ShardId::new("s01").unwrap())
}

fn id(name: &str) -> DocId {
    DocId::from_key(Some(name.as_bytes())).unwrap()
}

fn write(index: Index, name: &str, guard: WriteCondition, source: &'static str) -> BulkOp {
    BulkOp::Index { index, id: id(name), guard, source: Bytes::from_static(source.as_bytes()) }
}

fn at(version: u64) -> Position {
    Position::from_version(version)
}

fn delete(name: &str, version: u64) -> BulkOp {
    BulkOp::Delete { index: shard(), id: id(name), version: at(version) }
}

async fn versions_fence_writes_and_deletes(server: &Server) {
    let client = Client::on(server).await;
    let external = |version| WriteCondition::External(at(version));
    let nasty = "quote\" backslash\\ tab\t ünï\u{2028}";
    let answers = client
        .statuses(&[
            write(shard(), nasty, external(5), r#"{"location":{"lat":1,"lon":2}}"#),
            write(shard(), nasty, external(5), "{}"),
            write(shard(), nasty, WriteCondition::ExternalOrEqual(at(5)), "{}"),
            delete("absent", 9),
            write(shard(), "absent", external(5), "{}"),
            delete(nasty, 5),
            delete(nasty, 6),
            write(shard(), "bad", external(1), r#"{"location":{"lat":100,"lon":2}}"#),
        ])
        .await;
    let conflict = "version_conflict_engine_exception";
    let expected = [
        (201, ""),
        (409, conflict),
        (200, ""),
        (404, ""),
        (409, conflict),
        (409, conflict),
        (200, ""),
        server.refused(),
    ];
    assert_eq!(answers, expected.map(|(status, kind)| (status, kind.to_owned())));
    assert_eq!(client.get(shard(), nasty).await, GetAnswer::Missing);
}

async fn placements_are_compared_and_set_by_their_stamps(server: &Server) {
    let client = Client::on(server).await;
    let placement = |guard| [write(Index::Placements, "a", guard, r#"{"pos":1}"#)];
    let created = client.0.bulk(&placement(WriteCondition::Absent), LIMIT).await.unwrap().remove(0);
    let stamp = created.stamp.unwrap_or_else(|| panic!("a placement's answer has its stamp"));
    assert_eq!(client.statuses(&placement(WriteCondition::Absent)).await[0].0, 409);

    let GetAnswer::Found(found) = client.get(Index::Placements, "a").await else { panic!("it was written") };
    assert_eq!(found.stamp, stamp);
    let updated = client.0.bulk(&placement(WriteCondition::Unchanged(stamp)), LIMIT).await.unwrap().remove(0);
    assert!(updated.stamp.is_some_and(|new| new.seq_no > stamp.seq_no));
    assert_eq!(client.statuses(&placement(WriteCondition::Unchanged(stamp))).await[0].0, 409);
    let never = [write(Index::Placements, "b", WriteCondition::Unchanged(stamp), "{}")];
    assert_eq!(client.statuses(&never).await[0].0, 409);
}

/// Plain ones and others, before and after some are written again.
async fn many_placements_are_read_as_of_a_refresh_since_then(server: &Server) {
    let shards = ["s01"].map(|id| ShardId::new(id).unwrap());
    let wanted = indices::wanted(&layout(server, &shards), &Template::default()).unwrap();
    let mapping = wanted.iter().find(|index| index.index == Index::Placements).unwrap().mappings.clone();
    server.create_mapped("placements", json!({"index.refresh_interval": "-1"}), mapping.into()).await;
    let elastic = server.elastic();
    let id = |number: u64| id(&format!("d{number} \"é"));
    let put = async |numbers: Vec<u64>, shard: &str| {
        let placement = |number: u64| {
            let plain = Placement::new(at(number + (1 << 40)), Some(ShardId::new(shard).unwrap()), []);
            match number % 10 {
                0 => Placement::new(at(number), None, shards.clone()),
                1 => Placement { leftovers: shards.iter().cloned().collect(), ..plain },
                2 => plain.with_fetched(Some(Bytes::from_static(br#"{"":{"a.":[1,"x"]},"pos":{}}"#))),
                3 => plain,
                _ => plain.by_partition(Some(i32::MAX)),
            }
        };
        let op = |number: u64| {
            let guard = WriteCondition::ExternalOrEqual(at(number + 1));
            let (index, source) = (Index::Placements, placement(number).stored(&id(number)));
            BulkOp::Index { index, id: id(number), guard, source }
        };
        let ops: Vec<BulkOp> = numbers.into_iter().map(op).collect();
        let answers = elastic.bulk(&ops, LIMIT).await.unwrap();
        assert!(answers.iter().all(|answer| answer.error.is_none()), "{answers:?}");
    };
    let gets = |since: Option<Instant>| -> Vec<Get> {
        (0..330).map(|number| Get { since, ..Get::realtime(Index::Placements, id(number)) }).collect()
    };
    let places = |answers: Vec<GetAnswer>| -> Vec<Option<(SeqNo, Placement)>> {
        let place = |answer| match answer {
            GetAnswer::Found(found) => Some((found.stamp, Placement::from_json(&found.source).unwrap())),
            GetAnswer::Missing => None,
            GetAnswer::Failed(error) => panic!("{error:?}"),
        };
        answers.into_iter().map(place).collect()
    };
    put((0..300).collect(), "s7").await;
    let since = Some(BootClock.now());

    let earlier = places(elastic.mget(&gets(since), LIMIT).await.unwrap());
    // Those that the search did not give were looked up: of the first 300, seven in ten are plain.
    let stats = server.ask("GET", "/$placements/_stats/search,get", json!(null)).await;
    let total = &stats.body["_all"]["total"];
    let counts = (total["search"]["query_total"].as_u64(), total["get"]["total"].as_u64());
    assert!(server.is_stand_in() || counts == (Some(1), Some(330 - 210)), "{counts:?}");
    assert_eq!(earlier, places(elastic.mget(&gets(None), LIMIT).await.unwrap()));
    assert_eq!(earlier.iter().flatten().count(), 300);

    put(vec![0, 1, 3, 4, 13, 305], "s9").await;
    let now = places(elastic.mget(&gets(None), LIMIT).await.unwrap());
    let since_then = places(elastic.mget(&gets(since), LIMIT).await.unwrap());
    for (number, (then, read)) in earlier.iter().zip(&since_then).enumerate() {
        // The stand-in's searches give no doc values.
        let is_given_by_the_search = [3, 4, 13].contains(&number) && !server.is_stand_in();
        assert_eq!(read, if is_given_by_the_search { then } else { &now[number] }, "{number}");
        assert_eq!(*then != now[number], [0, 1, 3, 4, 13, 305].contains(&number), "{number}");
    }
    // A client that may refresh again.
    let since = Some(BootClock.now());
    assert_eq!(places(server.elastic().mget(&gets(since), LIMIT).await.unwrap()), now);
    let stats = server.ask("GET", "/$placements/_stats/search", json!(null)).await;
    let searches = &stats.body["_all"]["total"]["search"]["query_total"];
    assert!(server.is_stand_in() || *searches == 3, "{searches}");
}

async fn a_source_is_read_byte_for_byte_before_any_refresh(server: &Server) {
    let client = Client::on(server).await;
    let source = r#"{ "price" : 1.10, "n":12345678901234567890123, "t":"é\u00e9\/" }"#;
    client.statuses(&[write(Index::Placements, "a", WriteCondition::External(at(7)), source)]).await;
    let expected = FoundDocument {
        version: 7,
        stamp: SeqNo { seq_no: 0, primary_term: 1 },
        source: Bytes::from_static(source.as_bytes()),
    };
    assert_eq!(client.get(Index::Placements, "a").await, GetAnswer::Found(expected));
}

async fn compressed_requests_are_understood(server: &Server) {
    let plain = Client::on(server).await;
    let compressing = Client(server.compressing_elastic());
    let source = Bytes::from(format!(r#"{{ "text" : "{}" }}"#, "geofold ".repeat(200)));
    let ids: Vec<DocId> = (0..100).map(|n| id(&format!("{}-{n}", "long".repeat(20)))).collect();
    let write = |id: &DocId| BulkOp::Index {
        index: Index::Placements,
        id: id.clone(),
        guard: WriteCondition::External(at(7)),
        source: source.clone(),
    };
    let ops: Vec<BulkOp> = ids.iter().map(write).collect();
    let created = |statuses: Vec<(u16, String)>| statuses.iter().all(|(status, _)| *status == 201);
    // A small one, one of several KB, and one that is compressed beside.
    for ops in [&ops[..1], &ops[1..10], &ops[10..]] {
        assert!(created(compressing.statuses(ops).await));
    }
    let gets: Vec<Get> = ids.into_iter().map(|id| Get::realtime(Index::Placements, id)).collect();
    for client in [plain, compressing] {
        let answers = client.0.mget(&gets, LIMIT).await.unwrap();
        let is_whole =
            |answer: &GetAnswer| matches!(answer, GetAnswer::Found(found) if found.source == source);
        assert!(answers.iter().all(is_whole), "{answers:?}");
    }
}

async fn a_missing_index_is_a_failure_and_not_a_missing_document(server: &Server) {
    let client = Client::on(server).await;
    assert_eq!(client.get(shard(), "a").await, GetAnswer::Missing);
    let nowhere = Index::Geoshard(ShardId::new("nowhere").unwrap());
    let answer = client.get(nowhere, "a").await;
    assert!(
        matches!(&answer, GetAnswer::Failed(error) if error.kind == "index_not_found_exception"),
        "{answer:?}"
    );
}

async fn a_request_that_fails_validation_says_why(server: &Server) {
    let client = Client::on(server).await;
    // An external version beyond 63 bits spoils the whole request. geofold's own are below.
    let error = client.0.bulk(&[delete("a", u64::MAX)], LIMIT).await.unwrap_err();
    let expected = server.status_of_a_number_that_is_too_large();
    assert!(
        matches!(&error, CallError::Status { status, kind, .. } if *status == expected && !kind.is_empty()),
        "{error:?}"
    );
}

async fn a_second_refresh_after_a_count_shows_what_was_written_before_it(server: &Server) {
    let client = Client(server.elastic());
    server.create("s01", json!({"index.refresh_interval": "-1"})).await;
    let count = async || client.0.count_refreshes(&[shard()], LIMIT).await.unwrap().remove(0);
    let add = async |name: &str| {
        client.statuses(&[write(shard(), name, WriteCondition::External(at(7)), "{}")]).await
    };
    add("a").await;
    let before = count().await;
    assert!(!before.is_empty());
    assert_eq!(count().await, before, "nothing refreshes it");
    client.0.refresh(&[shard()], LIMIT).await.unwrap();
    assert!(!count().await.show_what_was_written_before(&before), "once may be too early");
    add("b").await;
    client.0.refresh(&[shard()], LIMIT).await.unwrap();
    assert!(count().await.show_what_was_written_before(&before));

    // Elasticsearch's own count, too.
    server.ask("PUT", "/$s01/_settings", json!({"index.refresh_interval": "100ms"})).await;
    add("c").await;
    let before = count().await;
    let began = std::time::Instant::now();
    for n in 0.. {
        if count().await.show_what_was_written_before(&before) {
            break;
        }
        assert!(began.elapsed() < LIMIT, "no refresh is counted");
        // Without changes there is nothing to refresh.
        add(&format!("d{n}")).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let found = server.ask("GET", "/$s01/_count", Value::Null).await;
    assert!(found.body["count"].as_u64() >= Some(3), "{found:?}");
}

fn layout<'a>(server: &'a Server, shards: &'a [ShardId]) -> Layout<'a> {
    Layout {
        prefix: &server.prefix,
        shards,
        location: "at.point",
        gc_deletes: Duration::from_secs(3_600),
        placements: PlacementsConfig::default(),
    }
}

async fn missing_indices_are_created_as_geofold_needs_them(server: &Server) {
    let elastic = server.elastic();
    let shards = ["s1", "s2"].map(|id| ShardId::new(id).unwrap());
    let template =
        Template::from_json(r#"{"settings":{"number_of_replicas":0,"refresh_interval":"5s"}}"#).unwrap();
    let wanted = indices::wanted(&layout(server, &shards), &template).unwrap();
    let report = indices::create_missing(&elastic, &server.prefix, &wanted, LIMIT, &|_| ()).await.unwrap();
    let names = ["s1", "s2", "placements", "meta"].map(|index| server.name(index));
    assert_eq!((report.created.as_slice(), report.existing.len()), (names.as_slice(), 0));
    assert_eq!(report.differences, []);
    let again = indices::create_missing(&elastic, &server.prefix, &wanted, LIMIT, &|_| ()).await.unwrap();
    assert_eq!((again.created.len(), again.existing.as_slice()), (0, names.as_slice()));
    assert_eq!(again.differences, []);
}

async fn index_differences_are_found(server: &Server) {
    let elastic = server.elastic();
    let shards = ["s1"].map(|id| ShardId::new(id).unwrap());
    let wanted = indices::wanted(&layout(server, &shards), &Template::default()).unwrap();
    let keyword = json!({"properties": {"at": {"properties": {"point": {"type": "keyword"}}}}});
    server.create_mapped("s1", json!({"index.gc_deletes": "5s", "index.blocks.write": true}), keyword).await;
    let hour = json!({"index.gc_deletes": "1h"});
    server.create_mapped("placements", hour, json!({"enabled": false})).await;
    let close = AdminCall {
        method: Method::Post,
        path: format!("/{}/_close", server.name("placements")),
        body: None,
    };
    assert_eq!(elastic.admin(close, LIMIT).await.unwrap().status, 200);
    let found = indices::find(&elastic, &server.prefix, LIMIT).await.unwrap();
    let problems: Vec<(String, Problem)> =
        indices::differences(&wanted, &found).into_iter().map(|found| (found.index, found.problem)).collect();
    let (s1, placements, meta) = (server.name("s1"), server.name("placements"), server.name("meta"));
    let needed = Duration::from_secs(3_600);
    let expected = [
        (s1.clone(), Problem::Blocked { setting: "index.blocks.write" }),
        (s1.clone(), Problem::GcDeletes { found: "5s".to_owned(), needed }),
        (
            s1,
            Problem::LocationType {
                path: "at.point".to_owned(),
                found: "keyword".to_owned(),
                needed: "geo_point",
            },
        ),
        (placements, Problem::Closed),
        (meta, Problem::Missing),
    ];
    assert_eq!(problems, expected);
}

/// `documents.point`, beside locations that Elasticsearch does not search.
async fn an_added_point_is_mapped_and_searched(server: &Server) {
    let elastic = server.elastic();
    let geometry = LocationPath::new("geom").unwrap().with_point("point").unwrap();
    let pair = LocationPath::pair("place.lat", "place.lon", Some("point")).unwrap();
    let completed = |path: &LocationPath, document: &'static str| {
        String::from_utf8(path.complete(Bytes::from_static(document.as_bytes())).unwrap().0.to_vec()).unwrap()
    };
    let documents = [
        completed(&geometry, r#"{"geom":{"wkb":"AQEAACDmEAAAzczMzMzMKkAAAAAAAEBKQA==","srid":4326}}"#),
        completed(&pair, r#"{"place":{"lat":"52.5","lon":13.4}}"#),
    ];
    let documents = documents.each_ref().map(String::as_str);

    // One index was made before the key was set.
    server.create("s02", json!({"index.gc_deletes": "1h"})).await;
    let shards = ["s01", "s02"].map(|id| ShardId::new(id).unwrap());
    let layout = Layout { location: geometry.searched(), ..layout(server, &shards) };
    let template = Template::from_json(r#"{"settings":{"number_of_replicas":0}}"#).unwrap();
    let wanted = indices::wanted(&layout, &template).unwrap();
    let report = indices::create_missing(&elastic, &server.prefix, &wanted, LIMIT, &|_| ()).await.unwrap();
    let problems = |found: Vec<IndexDifference>| {
        found.into_iter().map(|found| (found.index, found.problem)).collect::<Vec<_>>()
    };
    let path = "point".to_owned();
    let unmapped = Problem::LocationUnmapped { path: path.clone() };
    assert_eq!(problems(report.differences), [(server.name("s02"), unmapped)]);

    server.fill("s01", &documents).await;
    server.refresh("$s01").await;
    let circle = json!({"distance": "10m", "point": {"lat": 52.5, "lon": 13.4}});
    let answer = server.ask("POST", "/$s01/_search", json!({"query": {"geo_distance": circle}})).await;
    assert_eq!(answer.body["hits"]["total"]["value"], 2, "{answer:?}");

    // Without the mapping it would be guessed.
    server.fill("s02", &documents[..1]).await;
    let found = indices::find(&elastic, &server.prefix, LIMIT).await.unwrap();
    let guessed = Problem::LocationType { path, found: "float".to_owned(), needed: "geo_point" };
    assert_eq!(problems(indices::differences(&wanted, &found)), [(server.name("s02"), guessed)]);
}

async fn check_finds_nothing_wrong_where_nothing_is(server: &Server) {
    let elastic = server.elastic();
    let mut config = Config::default();
    config.elasticsearch.prefix.clone_from(&server.prefix);
    // Without the topic: this is about Elasticsearch.
    let broker = EmbeddedBroker::start().unwrap();
    config.kafka.brokers = vec![broker.address().to_owned()];
    let map = r#"{"version":1,"name":"two","cells":"s2","ranges":[
        {"from":"0000000000000000","shard":"eu"},{"from":"6000000000000001","shard":"us"}]}"#;
    let mut target = CheckTarget::new(&config, &GeoshardMap::from_json(map).unwrap()).unwrap();
    target.timeout = LIMIT;
    indices::create_missing(&elastic, &server.prefix, &target.indices, LIMIT, &|_| ()).await.unwrap();
    let report = check(&target, &elastic).await;
    let about = |name: &str| {
        let found = report.findings.iter().find(|finding| finding.about.contains(name));
        found.unwrap_or_else(|| panic!("nothing about {name}: {:?}", report.findings)).level
    };
    for name in
        ["elasticsearch version", "action.auto_create_index", "indices", "placements", "right to write"]
    {
        assert_eq!(about(name), CheckLevel::Ok, "{name}: {:?}", report.findings);
    }
}
