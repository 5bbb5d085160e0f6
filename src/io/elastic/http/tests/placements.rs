//! Placements read as of a moment before.

use super::*;
use crate::core::placement::placement_key;

/// What a search for these ids answers.
type SearchAnswer = fn(&[String]) -> (StatusCode, Value);

/// A server with a placement for each number, which reads find; what searches find is up to the test.
struct Placements {
    /// What it was asked, one word for each request.
    asked: Mutex<Vec<&'static str>>,
    search: Mutex<SearchAnswer>,
    /// Copies that a refresh does not reach.
    failing_refreshes: AtomicU16,
}

fn doc_id(id: &str) -> DocId {
    DocId::from_key(Some(id.as_bytes())).unwrap()
}

/// The state of a document whose id is a number.
fn stamp_of(id: &str) -> u64 {
    id.parse::<u64>().unwrap() + 1_000
}

/// A hit as Elasticsearch gives it, of a document in this state.
fn hit(id: &str, seq_no: u64) -> Value {
    let pos: u64 = id.parse().unwrap();
    let fields =
        json!({"pos": [pos], "shard": ["s07"], "partition": [3], "key": [placement_key(&doc_id(id))]});
    json!({"_seq_no": seq_no, "_primary_term": 1, "fields": fields})
}

fn found_by_search(hits: Vec<Value>) -> (StatusCode, Value) {
    (StatusCode::OK, json!({"_shards": {"total": 1}, "hits": {"hits": hits}}))
}

impl Placements {
    fn new() -> Arc<Self> {
        let search: SearchAnswer =
            |ids| found_by_search(ids.iter().map(|id| hit(id, stamp_of(id))).collect());
        Arc::new(Self {
            asked: Mutex::default(),
            search: Mutex::new(search),
            failing_refreshes: AtomicU16::new(0),
        })
    }

    fn searches_give(&self, answer: SearchAnswer) {
        *self.search.lock().unwrap() = answer;
    }

    fn answer(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let text = |id: &Value| id.as_str().unwrap().to_owned();
        if path.starts_with("/p-placements/_search") {
            self.asked.lock().unwrap().push("search");
            let ids: Vec<String> =
                body["query"]["ids"]["values"].as_array().unwrap().iter().map(text).collect();
            assert_eq!(body["size"], ids.len());
            return (*self.search.lock().unwrap())(&ids);
        }
        if path == "/p-placements/_refresh" {
            self.asked.lock().unwrap().push("refresh");
            return (
                StatusCode::OK,
                json!({"_shards": {"failed": self.failing_refreshes.load(Ordering::Relaxed)}}),
            );
        }
        self.asked.lock().unwrap().push("read");
        let doc = |doc: &Value| {
            let id = text(&doc["_id"]);
            if id.starts_with("none") {
                return json!({"found": false});
            }
            json!({"found": true, "_version": 9, "_seq_no": stamp_of(&id), "_primary_term": 1, "_source": {"read": id}})
        };
        let docs: Vec<Value> = body["docs"].as_array().unwrap().iter().map(doc).collect();
        (StatusCode::OK, json!({"docs": docs}))
    }

    async fn serve(self: &Arc<Self>) -> String {
        let server = self.clone();
        let answer = async move |request: Request| {
            let path = request.uri().to_string();
            let body = axum::body::to_bytes(request.into_body(), 1_000_000).await.unwrap();
            let (status, answer) = server.answer(&path, &serde_json::from_slice(&body).unwrap_or_default());
            (status, answer.to_string())
        };
        serve(Router::new().fallback(any(answer))).await
    }

    /// Reads these as of `since` or later, and gives which were taken from the search, with what was asked of the server.
    async fn read(
        &self,
        client: &HttpElastic,
        ids: &[String],
        since: Option<Instant>,
    ) -> (Vec<String>, Vec<&'static str>) {
        let get = |id: &String| Get { since, ..Get::realtime(Index::Placements, doc_id(id)) };
        self.read_as(client, ids.iter().map(get).collect(), 0).await
    }

    async fn read_as(
        &self,
        client: &HttpElastic,
        gets: Vec<Get>,
        look: usize,
    ) -> (Vec<String>, Vec<&'static str>) {
        let answers = client.mget_again(&gets, look, SOON).await.unwrap();
        let mut searched = Vec::new();
        assert_eq!(answers.len(), gets.len());
        for (get, answer) in gets.iter().zip(answers) {
            let id = get.id.as_str();
            let GetAnswer::Found(found) = answer else {
                assert_eq!((&id[..4], answer), ("none", GetAnswer::Missing));
                continue;
            };
            assert_eq!(found.stamp, SeqNo { seq_no: stamp_of(id), primary_term: 1 });
            let plain = format!(r#"{{"pos":{id},"shard":"s07","partition":3}}"#);
            if found.source == plain {
                searched.push(id.to_owned());
            } else {
                assert_eq!((found.version, found.source), (9, format!(r#"{{"read":"{id}"}}"#).into()));
            }
        }
        (searched, std::mem::take(&mut *self.asked.lock().unwrap()))
    }

    /// Makes a client whose clock is at `secs`.
    async fn client(self: &Arc<Self>, secs: u64) -> (HttpElastic, Arc<StillClock>) {
        let clock = Arc::new(StillClock::default());
        clock.go_on(Duration::from_secs(secs));
        (HttpElastic::connect(&options(&[&self.serve().await]), clock.clone()).unwrap(), clock)
    }
}

fn at(secs: u64) -> Option<Instant> {
    Some(Instant::from_start(Duration::from_secs(secs)))
}

fn numbers(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn many_placements_of_earlier_are_read_by_a_search_after_a_refresh_since_then() {
    let server = Placements::new();
    let (client, clock) = server.client(10).await;
    let ids = numbers(0..200);
    assert_eq!(server.read(&client, &ids, at(10)).await, (ids.clone(), vec!["refresh", "search"]));
    // As of the same moment, or an earlier one.
    assert_eq!(server.read(&client, &ids, at(9)).await, (ids.clone(), vec!["search"]));
    // A refresh began before: it may lack what was written in between, and the next may not begin yet.
    clock.go_on(Duration::from_millis(999));
    let since = Some(Instant::from_start(Duration::from_millis(10_001)));
    assert_eq!(server.read(&client, &ids, since).await, (vec![], vec!["read"]));
    clock.go_on(Duration::from_millis(1));
    assert_eq!(server.read(&client, &ids, since).await, (ids.clone(), vec!["refresh", "search"]));
    // As of now, again from another node, and a few.
    assert_eq!(server.read(&client, &ids, None).await, (vec![], vec!["read"]));
    let get = |id: &String| Get { since, ..Get::realtime(Index::Placements, doc_id(id)) };
    let gets: Vec<Get> = ids.iter().map(get).collect();
    assert_eq!(server.read_as(&client, gets.clone(), 1).await, (vec![], vec!["read"]));
    assert_eq!(server.read(&client, &ids[..99], since).await, (vec![], vec!["read"]));
    // More than a search gives.
    assert_eq!(server.read(&client, &numbers(0..10_001), since).await, (vec![], vec!["read"]));
    // Of some as of now, the others.
    let mut some = gets.clone();
    some.iter_mut().step_by(50).for_each(|get| get.since = None);
    let (searched, asked) = server.read_as(&client, some, 0).await;
    assert_eq!((searched.len(), asked), (196, vec!["search", "read"]));
    assert!(!searched.contains(&"50".to_owned()));
    // Documents are no placements.
    let shard = Index::Geoshard(ShardId::new("s07").unwrap());
    let gets: Vec<Get> = gets.into_iter().map(|get| Get { index: shard.clone(), ..get }).collect();
    assert_eq!(server.read_as(&client, gets, 0).await, (vec![], vec!["read"]));
}

#[tokio::test]
async fn what_a_search_does_not_give_is_read() {
    let server = Placements::new();
    let (client, _) = server.client(0).await;
    server.searches_give(|ids| {
        let mut hits: Vec<Value> = ids.iter().skip(1).map(|id| hit(id, stamp_of(id))).collect();
        hits[0]["fields"].as_object_mut().unwrap().remove("key");
        hits[1]["fields"].as_object_mut().unwrap().remove("shard");
        hits[2]["fields"]["leftovers"] = json!(["s08"]);
        // The key of a document that nobody asked for.
        hits[3]["fields"]["key"] = json!([placement_key(&doc_id("none"))]);
        found_by_search(hits)
    });
    let (searched, asked) = server.read(&client, &numbers(0..200), at(0)).await;
    assert_eq!((searched, asked), (numbers(5..200), vec!["refresh", "search", "read"]));
    let mut new = numbers(0..120);
    new.extend((0..80).map(|number| format!("none{number}")));
    server.searches_give(|ids| {
        found_by_search(
            ids.iter().filter(|id| !id.starts_with("none")).map(|id| hit(id, stamp_of(id))).collect(),
        )
    });
    assert_eq!(server.read(&client, &new, at(0)).await, (numbers(0..120), vec!["search", "read"]));
}

#[tokio::test]
async fn documents_with_one_key_are_read() {
    // Two numbers with one key of 31 bits.
    let mut by_key = std::collections::HashMap::new();
    let [one, other] = (100_000_u32..)
        .find_map(|number| {
            let other = by_key.insert(placement_key(&doc_id(&number.to_string())), number)?;
            Some([other, number])
        })
        .unwrap();
    let server = Placements::new();
    let (client, _) = server.client(0).await;
    let mut ids = numbers(0..200);
    ids.extend([one.to_string(), other.to_string()]);
    let (searched, asked) = server.read(&client, &ids, at(0)).await;
    assert_eq!((searched, asked), (numbers(0..200), vec!["refresh", "search", "read"]));
}

#[tokio::test]
async fn a_search_that_gives_little_is_not_repeated_for_a_while() {
    let little: [SearchAnswer; 4] = [
        |_| (StatusCode::BAD_REQUEST, json!({"error": {"reason": "no"}})),
        |_| (StatusCode::OK, json!({"_shards": {"total": 1}})),
        |_| (StatusCode::OK, json!({"took": 1})),
        // Several primaries.
        |ids| {
            let (status, mut answer) = found_by_search(ids.iter().map(|id| hit(id, stamp_of(id))).collect());
            answer["_shards"]["total"] = json!(2);
            (status, answer)
        },
    ];
    for answer in little {
        let server = Placements::new();
        let (client, clock) = server.client(0).await;
        server.searches_give(answer);
        let ids = numbers(0..200);
        assert_eq!(server.read(&client, &ids, at(0)).await, (vec![], vec!["refresh", "search", "read"]));
        clock.go_on(Duration::from_millis(59_999));
        assert_eq!(server.read(&client, &ids, at(0)).await, (vec![], vec!["read"]));
        clock.go_on(Duration::from_millis(1));
        assert_eq!(server.read(&client, &ids, at(0)).await.1, ["search", "read"]);
    }
}

#[tokio::test]
async fn nothing_is_searched_after_a_refresh_that_missed_a_copy() {
    let server = Placements::new();
    let (client, clock) = server.client(0).await;
    server.failing_refreshes.store(1, Ordering::Relaxed);
    let ids = numbers(0..200);
    assert_eq!(server.read(&client, &ids, at(0)).await, (vec![], vec!["refresh", "read"]));
    server.failing_refreshes.store(0, Ordering::Relaxed);
    clock.go_on(Duration::from_millis(59_999));
    assert_eq!(server.read(&client, &ids, at(0)).await, (vec![], vec!["read"]));
    clock.go_on(Duration::from_millis(1));
    assert_eq!(server.read(&client, &ids, at(0)).await, (ids, vec!["refresh", "search"]));
}
