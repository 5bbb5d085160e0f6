use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::*;
use crate::base::ids::ShardId;
use crate::base::position::{Epoch, Position};
use crate::io::elastic::{BulkOp, WriteCondition};
use crate::io::maps::OffsetFloor;
use crate::testkit::testing::id;
use crate::testkit::testing::{MemoryElastic, six_faces};

/// A source of truth, a topic and a way into it, all in memory.
#[derive(Default)]
struct World {
    says: Mutex<HashMap<String, FetchAnswer>>,
    /// Fetches that fail first.
    failing: AtomicUsize,
    /// Looks at the group's offsets that still show lag; `then` comes with the last.
    lag: AtomicUsize,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    refed: Mutex<Vec<String>>,
}

impl Truth for World {
    fn fetch<'a>(&'a self, ids: &'a [DocId]) -> BoxFuture<'a, Vec<FetchAnswer>> {
        async move {
            let fails = self.failing.load(Ordering::Relaxed) > 0;
            if fails {
                self.failing.fetch_sub(1, Ordering::Relaxed);
            }
            let says = self.says.lock().unwrap();
            let answer = |id: &DocId| match says.get(id.as_str()) {
                _ if fails => {
                    FetchAnswer::Failed(crate::worker::refeed::FetchFailure::for_test("it is down"))
                }
                Some(answer) => answer.clone(),
                None => FetchAnswer::Gone,
            };
            ids.iter().map(answer).collect()
        }
        .boxed()
    }
}

impl OffsetLog for World {
    fn ends(&self) -> BoxFuture<'_, Result<OffsetFloor, AuditError>> {
        async { Ok(OffsetFloor::from_iter([(0, 9)])) }.boxed()
    }

    fn behind<'a>(&'a self, floor: &'a OffsetFloor) -> BoxFuture<'a, Result<OffsetFloor, AuditError>> {
        async move {
            let left = self.lag.load(Ordering::Relaxed);
            if left > 0 {
                self.lag.store(left - 1, Ordering::Relaxed);
                return Ok(floor.clone());
            }
            if let Some(then) = self.then.lock().unwrap().take() {
                then();
            }
            Ok(OffsetFloor::new())
        }
        .boxed()
    }
}

impl Touches for World {
    fn touch(&self, _: Vec<DocId>) -> BoxFuture<'_, Result<(), AuditError>> {
        async { unreachable!("nothing is only placed again") }.boxed()
    }

    fn refeed(&self, ids: Vec<DocId>) -> BoxFuture<'_, Result<(), AuditError>> {
        async move {
            self.refed.lock().unwrap().extend(ids.iter().map(|id| id.as_str().to_owned()));
            Ok(())
        }
        .boxed()
    }
}

fn found(json: &str) -> FetchAnswer {
    FetchAnswer::Found(Bytes::copy_from_slice(json.as_bytes()))
}

/// Writes a placement in `f0`, or one that says deleted, and the copy.
async fn store(elastic: &MemoryElastic, name: &str, offset: i64, content: Option<&str>) {
    let at = Position::new(Epoch::default(), offset).unwrap();
    let shard = ShardId::new("f0").unwrap();
    let placement = Placement::new(at, content.map(|_| shard.clone()), []);
    let write = |index, source| BulkOp::Index {
        index,
        id: id(name),
        guard: WriteCondition::ExternalOrEqual(at),
        source,
    };
    let mut ops = vec![write(Index::Placements, placement.to_json())];
    if let Some(content) = content {
        ops.push(write(Index::Geoshard(shard), Bytes::copy_from_slice(content.as_bytes())));
    }
    elastic.bulk(&ops, Duration::from_secs(1)).await.unwrap();
}

async fn compared(
    world: &World,
    elastic: &MemoryElastic,
    ids: &[&str],
    mends: bool,
) -> Result<(Compared, Vec<String>), AuditError> {
    compared_by(&LocationPath::default(), world, elastic, ids, mends).await
}

async fn compared_by(
    location: &LocationPath,
    world: &World,
    elastic: &MemoryElastic,
    ids: &[&str],
    mends: bool,
) -> Result<(Compared, Vec<String>), AuditError> {
    let comparing = Comparing {
        elastic,
        prefix: "p",
        truth: world,
        location,
        log: world,
        mend: mends.then_some(world as &dyn Touches),
        settle: Duration::from_secs(10),
        timeout: Duration::from_secs(1),
        retry: RetryPolicy { initial: Duration::from_millis(1), max: Duration::from_millis(2) },
    };
    let mut lines = Vec::new();
    let which = ComparedDocuments::Ids(ids.iter().map(|name| id(name)).collect());
    let report = comparing
        .run(which, &|_| {}, |differs| {
            lines.push(differs.to_string());
            Ok(())
        })
        .await?;
    Ok((report, lines))
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_difference_is_found_and_asked_to_be_fetched_again() {
    let elastic = MemoryElastic::for_map(&six_faces());
    let world = World::default();
    store(&elastic, "same", 1, Some(r#"{"a":1,"b":[1.0,{"c":null}]}"#)).await;
    store(&elastic, "different", 2, Some(r#"{"a":1}"#)).await;
    store(&elastic, "extra", 3, Some(r#"{"a":1}"#)).await;
    store(&elastic, "deleted", 4, None).await;
    store(&elastic, "gone", 5, None).await;
    store(&elastic, "unusable", 6, Some(r#"{"a":1}"#)).await;
    world.says.lock().unwrap().extend([
        ("same".to_owned(), found(r#"{"b":[1,{"c":null}],"a":1.0}"#)),
        ("different".to_owned(), found(r#"{"a":2}"#)),
        ("deleted".to_owned(), found(r#"{"a":1}"#)),
        ("unknown".to_owned(), found(r#"{"a":1}"#)),
        ("unusable".to_owned(), found("{")),
    ]);
    let ids = ["same", "different", "extra", "deleted", "gone", "unknown", "unusable", "nowhere"];
    let (report, lines) = compared(&world, &elastic, &ids, false).await.unwrap();
    let expected = [
        "different  different",
        "extra  extra",
        "missing  deleted",
        "missing  unknown",
        "unusable  unusable",
    ];
    let mut lines = lines;
    lines.sort_unstable();
    assert_eq!(lines, expected);
    assert_eq!((report.documents, report.wrong, report.refed), (8, 5, 0));
    assert!(!report.is_clean());
    assert!(world.refed.lock().unwrap().is_empty(), "nobody asked for it");

    let (report, _) = compared(&world, &elastic, &ids, true).await.unwrap();
    let mut refed = world.refed.lock().unwrap().clone();
    refed.sort_unstable();
    assert_eq!(
        refed,
        ["deleted", "different", "extra", "unknown"],
        "what can be no document is not asked for"
    );
    assert_eq!(report.refed, 4);
}

#[tokio::test(start_paused = true)]
async fn the_added_point_is_no_difference_unless_it_is_wrong() {
    let elastic = MemoryElastic::for_map(&six_faces());
    let world = World::default();
    let path = LocationPath::pair("lat", "lon", Some("at")).unwrap();
    store(&elastic, "same", 1, Some(r#"{"lat":1.50,"lon":"2","at":[2.0,1.5]}"#)).await;
    store(&elastic, "missing", 2, Some(r#"{"lat":1.5,"lon":"2"}"#)).await;
    store(&elastic, "wrong", 3, Some(r#"{"lat":1.5,"lon":"2","at":[2.0,1.0]}"#)).await;
    let ids = ["same", "missing", "wrong"];
    world.says.lock().unwrap().extend(ids.map(|id| (id.to_owned(), found(r#"{"lat":1.5,"lon":"2"}"#))));
    let (_, mut lines) = compared_by(&path, &world, &elastic, &ids, false).await.unwrap();
    lines.sort_unstable();
    assert_eq!(lines, ["different  missing", "different  wrong"]);
}

#[tokio::test(start_paused = true)]
async fn pending_records_are_awaited_before_a_difference_counts() {
    let elastic = MemoryElastic::for_map(&six_faces());
    let world = World::default();
    store(&elastic, "late", 1, Some(r#"{"a":1}"#)).await;
    world.says.lock().unwrap().insert("late".to_owned(), found(r#"{"a":2}"#));
    // The record comes to the index while the group catches up.
    world.lag.store(40, Ordering::Relaxed);
    let written: Arc<MemoryElastic> = elastic.clone();
    *world.then.lock().unwrap() = Some(Box::new(move || {
        futures::executor::block_on(store(&written, "late", 2, Some(r#"{"a":2}"#)));
    }));
    let (report, lines) = compared(&world, &elastic, &["late"], true).await.unwrap();
    assert!(report.is_clean(), "{report} {lines:?}");
    assert!(world.refed.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn failing_source_is_retried_and_a_down_one_ends_the_run() {
    let elastic = MemoryElastic::for_map(&six_faces());
    let world = World::default();
    store(&elastic, "a", 1, Some(r#"{"a":1}"#)).await;
    world.says.lock().unwrap().insert("a".to_owned(), found(r#"{"a":1}"#));
    world.failing.store(3, Ordering::Relaxed);
    let (report, _) = compared(&world, &elastic, &["a"], true).await.unwrap();
    assert!(report.is_clean(), "a failure is no difference: {report}");
    world.failing.store(1_000, Ordering::Relaxed);
    let error = compared(&world, &elastic, &["a"], true).await.unwrap_err();
    assert!(error.to_string().contains("it is down"), "{error}");
}

#[test]
fn documents_are_compared_by_what_they_say() {
    for (a, b, same) in [
        ("1", "1.0", true),
        ("9007199254740993", "9007199254740992", false),
        ("18446744073709551615", "18446744073709551615", true),
        ("-1", "18446744073709551615", false),
        (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#, true),
        (r#"{"a":1}"#, r#"{"a":1,"b":null}"#, false),
        ("[1,2]", "[2,1]", false),
        ("[1]", "[1,1]", false),
        (r#""1""#, "1", false),
        ("null", "false", false),
    ] {
        let (a, b): (Value, Value) = (serde_json::from_str(a).unwrap(), serde_json::from_str(b).unwrap());
        assert_eq!(is_same(&a, &b), same, "{a} {b}");
        assert_eq!(is_same(&b, &a), same, "{b} {a}");
    }
}
