//! Names of snapshots, and the order of what Elasticsearch is asked while one is taken.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::io::elastic::scripted::Scripted;
use crate::io::elastic::{FoundDocument, GetAnswer, SeqNo};
use crate::testkit::embedded::broker::EmbeddedBroker;

const SNAPSHOT: &str = "/_snapshot/r/s";
const BLOCK: &str = "PUT /geofold-placements,geofold-s0/_block/write";
const UNBLOCK: &str = "PUT /geofold-placements,geofold-s0/_settings";

/// A server with one geoshard. The snapshot without a block ends well, the one under it in this state.
fn server(ended: &'static str) -> Scripted {
    let asked = Mutex::new(0);
    let admin = move |line: &str, _: Option<&Value>| match line {
        "GET /_snapshot/r/s" => {
            // The first question is whether there is one of this name.
            let mut asked = asked.lock().unwrap();
            *asked += 1;
            let answer = json!({"snapshots": [{"state": ended, "failures": [{"reason": "no space"}]}]});
            if *asked > 1 { (200, answer) } else { (404, json!({})) }
        }
        "GET /_snapshot/r/s-copying" => (200, json!({"snapshots": [{"state": "SUCCESS"}]})),
        line if line.starts_with("GET /geofold-*?") => {
            let index = json!({"settings": {}, "mappings": {}, "aliases": {}});
            (200, json!({"geofold-meta": index, "geofold-placements": index, "geofold-s0": index}))
        }
        _ => (200, json!({})),
    };
    Scripted { admin: Box::new(admin), ..Scripted::default() }
}

/// What came of it, and the requests that change something, in order.
async fn requests<T>(
    elastic: &Scripted,
    work: impl AsyncFnOnce(Snapshots<'_>) -> Result<T, SnapshotError>,
) -> (Result<T, SnapshotError>, Vec<String>) {
    let broker = EmbeddedBroker::start().unwrap();
    broker.create_topic("documents", 2).unwrap();
    let mut config = Config::default();
    config.kafka.brokers = vec![broker.address().to_owned()];
    let stop = CancellationToken::new();
    let snapshots = Snapshots { config: &config, elastic, tell: &|_| {}, stop };
    let result = work(snapshots).await;
    let calls = elastic.calls.lock().unwrap();
    let changes = |call: &&String| !call.starts_with("GET") && *call != "mget";
    (result, calls.iter().filter(changes).cloned().collect())
}

async fn take(elastic: &Scripted) -> (Result<SnapshotTaken, SnapshotError>, Vec<String>) {
    let place = "r/s".parse().unwrap();
    requests(elastic, async |snapshots| snapshots.take(&place, Duration::from_secs(60)).await).await
}

#[tokio::test]
async fn offsets_are_kept_and_indices_copied_while_writes_are_blocked() {
    let (taken, requests) = take(&server("SUCCESS")).await;
    assert_eq!(taken.unwrap().indices, 3);
    let copying = |method| format!("{method} {SNAPSHOT}-copying");
    let (put, copied) = (format!("PUT {SNAPSHOT}"), [copying("DELETE"), copying("PUT")]);
    let under_block = [BLOCK.to_owned(), "bulk".to_owned(), put, UNBLOCK.to_owned(), copying("DELETE")];
    assert_eq!(requests, [&copied[..], &under_block].concat());
}

#[tokio::test]
async fn snapshot_that_failed_is_deleted_before_writes_go_on() {
    let (failed, requests) = take(&server("PARTIAL")).await;
    let failed = failed.unwrap_err().to_string();
    assert_eq!(failed, "r/s is PARTIAL, not SUCCESS: no space");
    let after = requests.iter().skip_while(|request| *request != "bulk").skip(2);
    let copying = format!("DELETE {SNAPSHOT}-copying");
    assert_eq!(after.collect::<Vec<_>>(), [&format!("DELETE {SNAPSHOT}"), UNBLOCK, &copying]);
}

#[tokio::test]
async fn block_stays_if_the_failed_snapshot_cannot_be_deleted() {
    let server = server("PARTIAL");
    let answer = server.admin;
    let admin = Box::new(move |line: &str, body: Option<&Value>| match line {
        "DELETE /_snapshot/r/s" => (500, json!({"error": {"reason": "later"}})),
        line => answer(line, body),
    });
    let elastic = Scripted { admin, ..Scripted::default() };
    let (failed, requests) = take(&elastic).await;
    let failed = failed.unwrap_err().to_string();
    assert!(failed.contains("writes are still blocked") && failed.contains("--unblock"), "{failed}");
    assert!(!requests.iter().any(|request| request == UNBLOCK), "{requests:?}");
}

/// `geofold snapshot --unblock` where one of two indices is blocked, a command left this mark, and its snapshot is in this state: what
/// came of it, and the requests that change something.
async fn unblock(mark: Bytes, state: &'static str) -> (Result<usize, SnapshotError>, Vec<String>) {
    let admin = move |line: &str, _: Option<&Value>| match line {
        "GET /_snapshot/r/s" => (200, json!({"snapshots": [{"state": state}]})),
        line if line.starts_with("GET /geofold-*/_settings") => {
            let setting = |is: &str| json!({"settings": {"index.blocks.write": is}});
            (200, json!({"geofold-s0": setting("true"), "geofold-s1": setting("false")}))
        }
        _ => (200, json!({})),
    };
    let stamp = SeqNo { seq_no: 1, primary_term: 1 };
    let found = FoundDocument { version: 1, stamp, source: mark };
    let get = Box::new(move |_: &_| GetAnswer::Found(found.clone()));
    let elastic = Scripted { admin: Box::new(admin), get, ..Scripted::default() };
    requests(&elastic, async |snapshots| snapshots.unblock().await).await
}

#[tokio::test]
async fn unfinished_snapshot_of_a_killed_command_is_deleted_before_its_block_ends() {
    let (place, offsets) = ("r/s".parse().unwrap(), [(0, 1), (1, 2)].into());
    let mark = SnapshotMark { place, epoch: Epoch::default(), topic_id: None, offsets };
    let mark: Bytes = serde_json::to_vec(&mark).unwrap().into();
    for (state, expected) in [
        ("IN_PROGRESS", &["DELETE /_snapshot/r/s", "PUT /geofold-s0/_settings"][..]),
        ("SUCCESS", &["PUT /geofold-s0/_settings"]),
    ] {
        let (ended, requests) = unblock(mark.clone(), state).await;
        assert_eq!((ended.unwrap(), requests), (1, expected.iter().map(ToString::to_string).collect()));
    }
}

#[tokio::test]
async fn block_stays_if_it_cannot_be_read_which_snapshot_is_unfinished() {
    let (refused, requests) = unblock("{}".into(), "IN_PROGRESS").await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("cannot be read") && refused.contains("newer version"), "{refused}");
    assert_eq!(requests, Vec::<String>::new());
}

#[test]
fn a_snapshot_is_named_by_its_repository_and_name() {
    let place: SnapshotPlace = "Nightly/geofold-2026.11.26".parse().unwrap();
    assert_eq!(place.to_string(), "Nightly/geofold-2026.11.26");
    for wrong in ["", "a", "a/", "/b", "a/B", "a/b/c", "a/_all", "a/b*", "a/b,c", "../x", "a/b c"] {
        assert!(wrong.parse::<SnapshotPlace>().is_err(), "{wrong}");
    }
}
