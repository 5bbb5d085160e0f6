//! What follows every change: searchable writes, webhooks that are never missing, despite failures of endpoint, worker
//! and memcached.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use geofold::base::geo::GeoPoint;
use geofold::geoshard::GeoshardMap;
use rdkafka::Message;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::support::{CITIES, Event, TIMEOUT, World, WorldOptions, text, wait_at_most};

/// A webhook's endpoint, which ends with the test's process.
struct Endpoint {
    url: String,
    said: Said,
}

/// What an endpoint answers and heard.
#[derive(Clone, Default)]
struct Said {
    status: Arc<AtomicU16>,
    told: Arc<Mutex<Vec<(Instant, Value)>>>,
    /// The head of each request, with any answer.
    heads: Arc<Mutex<Vec<String>>>,
}

impl Endpoint {
    /// Answers with this status until another is set.
    fn start(status: u16) -> Self {
        Self::listening("http", status, |connection| connection)
    }

    /// With TLS, by a certificate of the tests' own authority.
    fn start_with_tls(status: u16) -> Self {
        let pem = CertificateDer::from_pem_slice(include_bytes!("support/tls/endpoint.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("support/tls/endpoint.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth().with_single_cert(vec![pem], key).unwrap();
        let config = Arc::new(config);
        Self::listening("https", status, move |connection| {
            StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), connection)
        })
    }

    fn listening<S: Read + Write + Send + 'static>(
        scheme: &str,
        status: u16,
        wrap: impl Fn(TcpStream) -> S + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}/changed", listener.local_addr().unwrap());
        let said = Said { status: Arc::new(AtomicU16::new(status)), ..Said::default() };
        let endpoint = Self { url, said: said.clone() };
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (mut reader, said) = (BufReader::new(wrap(connection)), said.clone());
                std::thread::spawn(move || while serve(&mut reader, &said).is_some() {});
            }
        });
        endpoint
    }

    fn answer(&self, status: u16) {
        self.said.status.store(status, SeqCst);
    }

    /// What was answered with success since `begin`.
    fn told_since(&self, begin: Instant) -> Vec<Value> {
        let told = self.said.told.lock().unwrap();
        told.iter().filter(|(at, _)| *at >= begin).map(|(_, notice)| notice.clone()).collect()
    }

    fn job(&self, interval: &str) -> (&'static str, String) {
        let job = format!(
            "{{ name = \"notify\", kind = \"webhook\", url = {:?}, interval = \"{interval}\" }}",
            self.url
        );
        ("distribution", format!("jobs = [{job}]"))
    }
}

fn serve<S: Read + Write>(reader: &mut BufReader<S>, said: &Said) -> Option<()> {
    let (mut length, mut head) = (0, String::new());
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.to_ascii_lowercase().split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().unwrap(),
            _ if line.trim_end().is_empty() => break,
            _ => {}
        }
        head.push_str(&line);
    }
    said.heads.lock().unwrap().push(head);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let status = said.status.load(SeqCst);
    if status < 300 && !body.is_empty() {
        said.told.lock().unwrap().push((Instant::now(), serde_json::from_slice(&body).unwrap()));
    }
    let stream = reader.get_mut();
    write!(stream, "HTTP/1.1 {status} Answer\r\ncontent-length: 0\r\n\r\n").ok()?;
    stream.flush().ok()
}

fn in_city(id: &str, n: usize, city: usize) -> Event {
    let (lat, lon) = CITIES[city];
    Event::Index { id: id.to_owned(), document: json!({"location": {"lat": lat, "lon": lon}, "n": n}) }
}

/// A document in each city.
fn everywhere(round: usize) -> Vec<Event> {
    (0..CITIES.len()).map(|city| in_city(&format!("{round}-{city}"), round, city)).collect()
}

/// The geoshards of all cities.
fn shards() -> BTreeSet<String> {
    let map = GeoshardMap::from_json(include_str!("support/map-12.json")).unwrap();
    let shard = |(lat, lon)| map.locate(GeoPoint::new(lat, lon).unwrap()).as_str().to_owned();
    CITIES.into_iter().map(shard).collect()
}

fn shards_of(notices: &[Value]) -> BTreeSet<String> {
    notices.iter().map(|notice| notice["shard"].as_str().unwrap().to_owned()).collect()
}

/// A group that notices within seconds that a member is dead.
fn short_session() -> Vec<(&'static str, String)> {
    vec![
        ("kafka", "session_timeout = \"3s\"".to_owned()),
        ("kafka", "heartbeat_interval = \"300ms\"".to_owned()),
        ("shutdown", "revoke_timeout = \"2s\"".to_owned()),
    ]
}

#[test]
fn a_refresh_job_makes_writes_searchable_that_elasticsearch_would_not_refresh() {
    let job = "jobs = [{ name = \"searchable\", kind = \"refresh\", interval = \"200ms\" }]".to_owned();
    let world = World::new(WorldOptions { partitions: 2, config: vec![("distribution", job)] });
    let settings = json!({"index": {"refresh_interval": "-1"}});
    world.stack.ask("PUT", &format!("/{}-*/_settings", world.name), Some(settings));
    let worker = world.worker();
    let indices: Vec<String> = shards().iter().map(|shard| format!("{}-{shard}", world.name)).collect();
    let count = || {
        let answer = world.stack.ask("GET", &format!("/{}/_count", indices.join(",")), None);
        answer["count"].as_u64().unwrap()
    };
    for round in 0..3 {
        world.send(&everywhere(round));
        let expected = ((round + 1) * CITIES.len()) as u64;
        wait_at_most("all documents to be found", TIMEOUT, || (count() == expected).then_some(()));
    }
    // A document that moves is found once in the end.
    world.send(&[in_city("0-0", 9, 1)]);
    let found = |city: usize| {
        let (lat, lon) = CITIES[city];
        let near = json!({"query": {"bool": {"filter": [
            {"term": {"n": 9}}, {"geo_distance": {"distance": "10km", "location": {"lat": lat, "lon": lon}}}]}}});
        let answer = world.stack.ask("POST", &format!("/{}/_search", indices.join(",")), Some(near));
        answer["hits"]["total"]["value"].as_u64()
    };
    wait_at_most("it where it is now", TIMEOUT, || (found(1) == Some(1)).then_some(()));
    wait_at_most("it to be gone where it was", TIMEOUT, || {
        (count() == 3 * CITIES.len() as u64).then_some(())
    });
    assert!(worker.metric("geofold_distribution_runs_total", "result=\"ok\"") >= 3.0);
    worker.stop();
}

#[test]
fn offsets_wait_for_an_endpoint_that_fails_until_it_was_told() {
    let endpoint = Endpoint::start(503);
    let world = World::new(WorldOptions { partitions: 2, config: vec![endpoint.job("100ms")] });
    let worker = world.worker();
    world.send(&everywhere(0));
    wait_at_most("all to be indexed", TIMEOUT, || {
        let indexed = worker.metric("geofold_records_processed_total", "outcome=\"indexed\"");
        (indexed == CITIES.len() as f64).then_some(())
    });
    wait_at_most("failing runs", TIMEOUT, || {
        (worker.metric("geofold_distribution_runs_total", "result=\"failed\"") > 20.0).then_some(())
    });
    assert!(world.offsets().iter().all(|(committed, _)| *committed == 0), "{:?}", world.offsets());
    let begin = Instant::now();
    endpoint.answer(204);
    world.wait_until_committed(TIMEOUT);
    assert_eq!(shards_of(&endpoint.told_since(begin)), shards());
    assert_eq!(world.dead_letters().len(), 0);
    worker.stop();
}

#[test]
fn an_endpoint_that_refuses_for_good_leaves_dead_letters_and_lets_offsets_go() {
    let endpoint = Endpoint::start(410);
    let world = World::new(WorldOptions { partitions: 1, config: vec![endpoint.job("100ms")] });
    let worker = world.worker();
    world.send(&[in_city("a", 1, 0)]);
    world.wait_until_committed(TIMEOUT);
    worker.stop();
    let letters = world.dead_letters();
    assert!(!letters.is_empty());
    for letter in &letters {
        assert_eq!(letter.headers["geofold-error-stage"], "distribution");
        assert_eq!(letter.headers["geofold-error-reason"], "distribution_refused");
        let shard = letter.key.as_deref().unwrap();
        assert_eq!(letter.headers["geofold-distribution"], format!("notify:{shard}"));
        let notice: Value = serde_json::from_str(letter.value.as_deref().unwrap()).unwrap();
        assert_eq!(notice["shard"], shard);
    }
}

#[test]
fn a_webhook_with_tls_is_told_with_its_headers_once_its_authority_is_trusted() {
    let endpoint = Endpoint::start_with_tls(204);
    let authority = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/support/tls/authority.pem");
    let job = |more: &str| {
        let job = format!(
            "jobs = [{{ name = \"notify\", kind = \"webhook\", url = {:?}, interval = \"100ms\", \
             headers = {{ authorization = \"Bearer hunter2\", x-tenant = \"7\" }}{more} }}]",
            endpoint.url
        );
        WorldOptions { partitions: 1, config: vec![("distribution", job)] }
    };
    let stranger = World::new(job(""));
    let checked = stranger.geofold(&["check"]);
    let said = text(&checked);
    assert!(!checked.status.success() && said.contains("must contain its CA"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    drop(stranger);

    let world = World::new(job(&format!(", ca_file = {authority:?}")));
    let checked = world.geofold(&["check"]);
    assert!(
        checked.status.success() && text(&checked).contains("webhook notify: reachable"),
        "{}",
        text(&checked)
    );
    assert!(endpoint.said.told.lock().unwrap().is_empty(), "a check tells nothing");
    let worker = world.worker();
    let begin = Instant::now();
    world.send(&everywhere(0));
    world.wait_until_committed(TIMEOUT);
    let log = worker.log_once_stopped();
    assert_eq!(shards_of(&endpoint.told_since(begin)), shards());
    assert!(!log.contains("hunter2"), "{log}");
    let heads = endpoint.said.heads.lock().unwrap();
    assert!(!heads.is_empty());
    for head in heads.iter().map(|head| head.to_ascii_lowercase()) {
        assert!(head.contains("authorization: bearer hunter2") && head.contains("x-tenant: 7"), "{head}");
    }
}

#[test]
fn a_topic_gets_a_record_for_each_geoshard_that_was_written_to_before_offsets_go_on() {
    let job = |topic: &str| {
        let job = format!(
            "jobs = [{{ name = \"announce\", kind = \"topic\", topic = {topic:?}, interval = \"100ms\" }}]"
        );
        ("distribution", job)
    };
    // Besides the world, whose name is not known yet.
    let topic = format!("changes{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
    let world = World::new(WorldOptions { partitions: 2, config: vec![job(&topic)] });
    let checked = world.geofold(&["check"]);
    assert!(!checked.status.success(), "{}", text(&checked));
    assert!(
        text(&checked).contains(&format!("topic of the job announce: {topic} does not exist")),
        "{}",
        text(&checked)
    );
    world.stack.create_topic(&topic, 3);
    let checked = world.geofold(&["check"]);
    assert!(checked.status.success(), "{}", text(&checked));

    let worker = world.worker();
    world.send(&everywhere(0));
    world.wait_until_committed(TIMEOUT);
    let ends: Vec<i64> = world.offsets().into_iter().map(|(_, end)| end).collect();
    let (mut told, mut documents) = (BTreeSet::new(), 0);
    world.read(&topic, 3, |message| {
        let notice: Value = serde_json::from_slice(message.payload().unwrap()).unwrap();
        let shard = notice["shard"].as_str().unwrap().to_owned();
        assert_eq!(message.key().unwrap(), shard.as_bytes());
        assert_eq!(
            (notice["job"].as_str(), notice["topic"].as_str()),
            (Some("announce"), Some(&*world.name))
        );
        for partition in notice["partitions"].as_array().unwrap() {
            let number = partition["partition"].as_u64().unwrap() as usize;
            // Without offsets where a partition begins: its earlier owner may have owed a notice.
            assert!(partition["last_offset"].as_i64().is_none_or(|last| last < ends[number]), "{notice}");
        }
        documents += notice["documents"].as_u64().unwrap();
        told.insert(shard);
    });
    assert_eq!(told, shards());
    assert!(documents >= CITIES.len() as u64, "{documents}");
    worker.stop();
}

#[test]
fn next_owner_sends_the_notices_of_a_killed_worker() {
    let endpoint = Endpoint::start(503);
    let config = [vec![endpoint.job("100ms")], short_session()].concat();
    let world = World::new(WorldOptions { partitions: 2, config });
    let victim = world.worker();
    world.send(&everywhere(0));
    wait_at_most("all to be indexed", TIMEOUT, || {
        let indexed = victim.metric("geofold_records_processed_total", "outcome=\"indexed\"");
        (indexed == CITIES.len() as f64).then_some(())
    });
    victim.kill();
    let begin = Instant::now();
    endpoint.answer(200);
    let next = world.worker();
    world.wait_until_committed(TIMEOUT);
    assert_eq!(shards_of(&endpoint.told_since(begin)), shards());
    next.stop();
}

#[test]
fn no_distribution_is_missing_whatever_becomes_of_the_memcached_that_two_workers_share() {
    let memcached = std::env::var("GEOFOLD_TEST_MEMCACHED")
        .expect("GEOFOLD_TEST_MEMCACHED is not set: run dev/test, or dev/stack up --memcached");
    let endpoint = Endpoint::start(200);
    let world = World::alone(WorldOptions {
        partitions: 4,
        config: vec![
            endpoint.job("200ms"),
            ("distribution", "run_store = \"memcached\"".to_owned()),
            ("distribution", format!("memcached = {memcached:?}")),
        ],
    });
    let workers = [world.worker(), world.worker()];
    workers.iter().for_each(|worker| worker.wait_until_assigned(2));
    let sum =
        |name: &str, labels: &str| workers.iter().map(|worker| worker.metric(name, labels)).sum::<f64>();
    for round in 0..14 {
        let begin = Instant::now();
        // Several writes of each geoshard, so that both workers have some.
        let events: Vec<Event> = (0..6).flat_map(|part| everywhere(round * 6 + part)).collect();
        let (first, second) = events.split_at(events.len() / 2);
        world.send(first);
        match round {
            4 => world.stack.tell("kill", "memcached"),
            6 | 10 => world.stack.tell("start", "memcached"),
            7 => {
                let mut connection = TcpStream::connect(&memcached).unwrap();
                connection.write_all(b"flush_all\r\nquit\r\n").unwrap();
                connection.read_to_end(&mut Vec::new()).unwrap();
            }
            8 => world.stack.tell("restart", "memcached"),
            9 => world.stack.tell("stop", "memcached"),
            11 => world.stack.tell("pause", "memcached"),
            12 => world.stack.tell("resume", "memcached"),
            _ => {}
        }
        world.send(second);
        world.wait_until_committed(TIMEOUT);
        let missing: Vec<_> = shards().difference(&shards_of(&endpoint.told_since(begin))).cloned().collect();
        assert_eq!(missing, Vec::<String>::new(), "round {round}");
    }
    let (requested, redundant) =
        (sum("geofold_distribution_requested_total", ""), sum("geofold_distribution_redundant_total", ""));
    let runs = sum("geofold_distribution_runs_total", "result=\"ok\"");
    println!("requested {requested}, runs {runs}, redundant {redundant}");
    assert!(redundant > 0.0, "nothing was shared");
    assert!(sum("geofold_distribution_store_failures_total", "") > 0.0, "memcached was never missed");
    for worker in workers {
        worker.stop();
    }
}
