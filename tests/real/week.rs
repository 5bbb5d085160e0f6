//! The week of `src/testkit/week` on real servers in compressed time: a worker, a router and an autopilot as processes, whose clock for
//! the load goes hundreds of times as fast. People write and search; the map is the autopilot's.
//!
//! `dev/week` runs it, and takes the table and the picture. An hour takes GEOFOLD_WEEK_HOUR_MS (6000), and there are GEOFOLD_WEEK_PEOPLE
//! (1500) people. The first day only fills the profile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use geofold::base::geo::GeoPoint;
use geofold::base::random::Random;
use geofold::geoshard::GeoshardMap;
use geofold::geoshard::load::PlaceCounts;
use geofold::io::load::hurried;
use geofold::io::maps::MapsRecord;
use geofold::testkit::ports::free_port;
use geofold::testkit::week::{Day, Hour, MONDAY, Moves, Place, Scenario, WEEK, Week};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::{Value, json};

use crate::migrate::scenario::{Scenario as Processes, text};
use crate::support::{World, WorldOptions};
use crate::wait::wait_for;

/// Hours before the week that is looked at.
const WARM_UP: u64 = 24;
/// Writes and searches are spread over an hour in so many steps.
const STEPS: u32 = 10;
/// Hours after which everybody can be found.
const SETTLED: u64 = 10;
/// Threads that search through the router.
const SEARCHERS: usize = 4;
/// Of a batch, in seconds: a change of the map takes some four times that.
const DEADLINE: u64 = 5;
/// What the largest geoshard may have over the mean, and the part of all documents that may move in a day.
const MOST_LOAD: f64 = 1.3;
const MOST_MOVED: f64 = 0.05;
/// What it has at least with the map that nobody changes: with few, large geoshards a festival changes less.
const LEAST_UNCHANGED: f64 = 1.2;
/// Hours that searches may be late: what is counted later than it happens is no profile of a day.
const MOST_LATE: f64 = 2.0;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// One document; a person stays where they live.
#[derive(Debug, Clone)]
struct Person {
    id: String,
    at: GeoPoint,
    /// The hour of the first write.
    since: u64,
}

/// What searches found out.
#[derive(Debug, Default)]
struct Found {
    searches: AtomicU64,
    /// Searches that did not find a document that is there, and what was answered.
    missed: Mutex<Vec<String>>,
}

impl Found {
    fn take(&self, person: &Person, answer: Result<Value, reqwest::Error>) {
        self.searches.fetch_add(1, SeqCst);
        match answer {
            Ok(answer) if answer["hits"]["hits"].as_array().is_some_and(|hits| !hits.is_empty()) => {}
            answer => self.missed.lock().unwrap().push(format!("{}: {answer:?}", person.id)),
        }
    }
}

fn post(http: &reqwest::blocking::Client, url: &str, body: &Value) -> Result<Value, reqwest::Error> {
    let send = || http.post(url).header("content-type", "application/json").body(body.to_string()).send();
    // A server may close an idle connection just when it is used again: every client sends again then.
    let closed = |error: &reqwest::Error| error.is_request() && !error.is_timeout();
    send().or_else(|error| if closed(&error) { send() } else { Err(error) })?.json()
}

fn client() -> reqwest::blocking::Client {
    reqwest::blocking::Client::builder().timeout(Duration::from_secs(120)).build().unwrap()
}

fn query(person: &Person) -> Value {
    let location = json!({"lat": person.at.lat(), "lon": person.at.lon()});
    let filter = json!([{"ids": {"values": [person.id]}}, {"geo_distance": {"distance": "1km", "location": location}}]);
    json!({"query": {"bool": {"filter": filter}}, "_source": false})
}

/// The people of each place, and what they do in compressed time.
struct Population {
    scenario: Scenario,
    places: Vec<Place>,
    visitors: f64,
    people: Vec<Vec<Person>>,
    random: Random,
    /// Parts of writes and searches that are still to come.
    due: Vec<[f64; 2]>,
    producer: BaseProducer,
    topic: String,
    written: u64,
}

impl Population {
    fn new(scenario: Scenario, places: Vec<Place>, kafka: &str, topic: &str) -> Self {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", kafka).set("partitioner", "murmur2_random").set("linger.ms", "5");
        Self {
            visitors: scenario.visitors(&places),
            people: vec![Vec::new(); places.len()],
            due: vec![[0.0; 2]; places.len()],
            random: Random::new(5),
            producer: client.create().unwrap(),
            topic: topic.to_owned(),
            written: 0,
            scenario,
            places,
        }
    }

    fn write(&mut self, person: &Person) {
        self.written += 1;
        let location = json!({"lat": person.at.lat(), "lon": person.at.lon()});
        let document = json!({"location": location, "n": self.written}).to_string();
        let record: BaseRecord<'_, str, str> =
            BaseRecord::to(&self.topic).key(person.id.as_str()).payload(document.as_str());
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
    }

    /// Those who are there by an hour and were not yet.
    fn settle(&mut self, hour: u64) {
        for place in 0..self.places.len() {
            let people = self.scenario.people(&self.places[place], hour);
            while (self.people[place].len() as f64) < people.floor() {
                let id = format!("p{place}-{}", self.people[place].len());
                let person = Person { id, at: self.places[place].point, since: hour };
                self.write(&person);
                self.people[place].push(person);
            }
        }
    }

    /// A step of an hour: writes, and gives who is to be searched. Adds what was done to `counts`.
    fn step(&mut self, hour: u64, counts: &mut [PlaceCounts]) -> Vec<Person> {
        let mut searched = Vec::new();
        for (place, counts) in counts.iter_mut().enumerate() {
            let of_hour = self.scenario.counts(&self.places[place], self.visitors, hour);
            self.due[place][0] += of_hour.writes / f64::from(STEPS);
            self.due[place][1] += of_hour.queries / f64::from(STEPS);
            while self.due[place][0] >= 1.0 {
                self.due[place][0] -= 1.0;
                counts.writes += 1.0;
                let person = self.anybody_of(place, hour);
                self.write(&person);
            }
            while self.due[place][1] >= 1.0 {
                self.due[place][1] -= 1.0;
                counts.queries += 1.0;
                searched.push(self.anybody_of(place, hour));
            }
        }
        self.producer.poll(Duration::ZERO);
        searched
    }

    fn anybody_of(&mut self, place: usize, hour: u64) -> Person {
        let people = &self.people[place];
        let anybody = &people[self.random.below(people.len() as u64) as usize];
        // A search finds what was written and refreshed: not who has just come.
        if anybody.since + SETTLED > hour { people[0].clone() } else { anybody.clone() }
    }

    fn documents(&self) -> usize {
        self.people.iter().map(Vec::len).sum()
    }
}

/// Searches through the router, which counts them, by several threads; the channel's end ends them.
fn searchers(url: &str, found: &Arc<Found>) -> (mpsc::SyncSender<Person>, Vec<JoinHandle<()>>) {
    let (sender, receiver) = mpsc::sync_channel::<Person>(100_000);
    let receiver = Arc::new(Mutex::new(receiver));
    let search = |_| {
        let (receiver, url, found) = (receiver.clone(), url.to_owned(), found.clone());
        std::thread::spawn(move || {
            let http = client();
            loop {
                let next = receiver.lock().unwrap().recv();
                let Ok(person) = next else { return };
                found.take(&person, post(&http, &url, &query(&person)));
            }
        })
    };
    (sender, (0..SEARCHERS).map(search).collect())
}

/// Asks for steady people all the time: `_search` over the worker's cover.
fn checker(
    worker: String,
    elasticsearch: String,
    people: Vec<Person>,
    found: Arc<Found>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let http = client();
        for person in people.iter().cycle() {
            if stop.load(SeqCst) {
                return;
            }
            let (lat, lon) = (person.at.lat(), person.at.lon());
            let cover = http.get(format!("{worker}/shards/cover?lat={lat}&lon={lon}&radius=1km")).send();
            let answer = cover.and_then(reqwest::blocking::Response::json::<Value>).and_then(|cover| {
                let indices: Vec<&str> =
                    cover["indices"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let url = format!("{elasticsearch}/{}/_search?ignore_unavailable=true", indices.join(","));
                post(&http, &url, &query(person))
            });
            found.take(person, answer);
            sleep(Duration::from_millis(20));
        }
    })
}

/// The map that decides.
fn deciding(processes: &Processes, first: &GeoshardMap) -> Arc<GeoshardMap> {
    let stored = processes.record().map(|record| serde_json::from_value::<MapsRecord>(record).unwrap());
    stored.map_or_else(|| Arc::new(first.clone()), |record| record.deciding().clone())
}

#[test]
#[ignore = "twenty minutes: dev/week"]
fn a_week_in_minutes_stays_balanced_and_searches_never_miss() {
    let hour_ms = setting("GEOFOLD_WEEK_HOUR_MS", 6000);
    let people = usize::try_from(setting("GEOFOLD_WEEK_PEOPLE", 1500)).unwrap();
    let scenario = Scenario { people, shards: 12, ..Scenario::default() };
    let places = scenario.places();
    let start = scenario.first_map(&places);
    let world = World::without_indices(WorldOptions::default());
    let (kafka, elasticsearch) = (&world.stack.kafka, &world.stack.elasticsearch);
    let mut processes =
        Processes::with_maps(kafka, elasticsearch, &world.name, DEADLINE, start.clone(), start.clone());
    processes.configure("\n[load]\ninterval = \"5s\"\n");
    processes.listen_at_a_known_port();
    let toml = std::fs::read_to_string(processes.path("geofold.toml")).unwrap();
    let admin = toml.split("[admin]\nlisten = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();

    // Everybody is there before the clock starts.
    let mut population = Population::new(scenario.clone(), places.clone(), kafka, &world.name);
    population.settle(0);
    population.producer.flush(Duration::from_secs(60)).unwrap();
    let steady: Vec<Person> = population.people.iter().flatten().cloned().collect();
    let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() + 15.0;
    let (shown, factor) = ((MONDAY + WEEK - WARM_UP) * 3600, 3_600_000 / hour_ms);
    processes.environment.push((hurried::VARIABLE, format!("{begin},{shown},{factor}")));
    let worker = processes.worker("worker", &[]);
    let router_port = free_port().unwrap();
    let router = processes.start("route", &["route", "--listen", &format!("127.0.0.1:{router_port}")]);
    wait_for("everybody", || {
        let url = format!("{elasticsearch}/{}-*/_search", world.name);
        let body = json!({"query": {"exists": {"field": "location"}}, "size": 0, "track_total_hits": true});
        let answer = post(&client(), &url, &body).unwrap();
        (answer["hits"]["total"]["value"] == steady.len() as u64).then_some(())
    });
    let routed = format!("http://127.0.0.1:{router_port}");
    wait_for("the router", || {
        client().get(format!("{routed}/readyz")).send().ok().filter(|answer| answer.status().is_success())
    });

    let (by_router, by_cover) = (Arc::new(Found::default()), Arc::new(Found::default()));
    let (to_search, searching) = searchers(&format!("{routed}/{}/_search", world.name), &by_router);
    let stop = Arc::new(AtomicBool::new(false));
    let mut shuffled = steady.clone();
    shuffled.sort_by_key(|person| person.id.bytes().rev().collect::<Vec<u8>>());
    let checking =
        checker(format!("http://{admin}"), elasticsearch.clone(), shuffled, by_cover.clone(), stop.clone());
    // It waits for a day of load by itself.
    let autopilot = processes.start(
        "autopilot",
        &[
            &[
                "shards",
                "autopilot",
                "--apply",
                "--json",
                "--interval",
                "1s",
                "--lease",
                "10s",
                "--documents-every",
                "30s",
            ][..],
            &["--start-above", "1.15", "--stop-below", "1.08", "--cool-down", "6h", "--split", "0.1"],
        ]
        .concat(),
    );

    let until = |hour: u64, step: u32| {
        let ahead = (hour + WARM_UP - WEEK) as f64 + f64::from(step) / f64::from(STEPS);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        sleep(Duration::from_secs_f64((begin + ahead * hour_ms as f64 / 1000.0 - now).max(0.0)));
    };
    let began = Instant::now();
    let mut map = Arc::new(start.clone());
    let (mut hours, mut days, mut moves) = (Vec::new(), vec![Day::default(); 7], Moves::default());
    let mut recent: VecDeque<Vec<PlaceCounts>> = VecDeque::new();
    let mut day = vec![PlaceCounts::default(); places.len()];
    let (mut sent, mut latest) = (0, 0.0_f64);
    for hour in WEEK - WARM_UP..2 * WEEK {
        population.settle(hour);
        let mut counts = vec![PlaceCounts::default(); places.len()];
        for step in 0..STEPS {
            until(hour, step);
            for person in population.step(hour, &mut counts) {
                to_search.send(person).unwrap();
                sent += 1;
            }
        }
        let waiting = (sent - by_router.searches.load(SeqCst)) as f64;
        latest = latest.max(waiting / counts.iter().map(|counts| counts.queries).sum::<f64>());
        day.iter_mut().zip(&counts).for_each(|(day, counts)| day.add(*counts));
        recent.push_back(counts);
        if recent.len() > 24 {
            let oldest = recent.pop_front().unwrap();
            day.iter_mut().zip(oldest).for_each(|(day, counts)| day.add(counts.times(-1.0)));
        }
        if hour + 6 < WEEK {
            assert!(processes.record().is_none(), "a change by the load of hours:\n{}", autopilot.log());
        }
        if let Some(number) = hour.checked_sub(WEEK) {
            let day_of = &mut days[usize::try_from(number / 24).unwrap()];
            let now = deciding(&processes, &start);
            if now.fingerprint() != map.fingerprint() {
                day_of.changes += 1;
                day_of.moved += moves.note(&scenario, &places, (&map, &now), hour);
                println!("hour {number}: map {}", now.fingerprint());
                map = now;
            }
            let over_mean = |map: &GeoshardMap| scenario.over_mean(&places, &day, map, hour);
            let expected = last_expected(&autopilot.log()).unwrap_or(1.0);
            hours.push(Hour { unchanged: over_mean(&start), autopilot: over_mean(&map), expected });
        }
    }
    drop(to_search);
    searching.into_iter().for_each(|thread| thread.join().unwrap());
    stop.store(true, SeqCst);
    checking.join().unwrap();
    autopilot.signal("TERM");
    autopilot.ends_well();
    population.producer.flush(Duration::from_secs(60)).unwrap();
    processes.drain();
    drop((worker, router));

    let week =
        Week { hours, days, most_moved: moves.most_within_a_day(), returned: moves.returned, nodes: None };
    let [routed, covered] = [&by_router, &by_cover].map(|found| found.searches.load(SeqCst));
    println!(
        "{week}\n{} documents, {} writes, {routed} searches through the router, {covered} over the cover, {} s; searches at most {latest:.1} hours late",
        population.documents(),
        population.written,
        began.elapsed().as_secs()
    );
    if let Ok(file) = std::env::var("GEOFOLD_WEEK_SVG") {
        std::fs::write(file, week.svg()).unwrap();
    }
    assert!(
        latest <= MOST_LATE,
        "too slow for this clock: make hours longer (--hour), or people fewer (--people)"
    );
    for found in [&by_router, &by_cover] {
        let missed = found.missed.lock().unwrap();
        assert!(missed.is_empty(), "{} missed, first: {}", missed.len(), missed[0]);
    }
    let largest = |of: fn(&Hour) -> f64| week.hours.iter().map(of).fold(0.0, f64::max);
    assert!(largest(|hour| hour.unchanged) > LEAST_UNCHANGED, "the week is no test:\n{week}");
    assert!(largest(|hour| hour.autopilot) <= MOST_LOAD, "{week}");
    // Between its reading of documents and their move some are new.
    assert!(week.most_moved <= MOST_MOVED + 0.002, "{week}");
    assert!(week.returned <= 0.01, "{week}");
    audit(&processes, &world, &population);
}

/// Every document is there once, where the map in force says.
fn audit(processes: &Processes, world: &World, population: &Population) {
    let map = deciding(processes, &processes.old);
    let http = client();
    let url = |path: &str| format!("{}/{}-{path}", world.stack.elasticsearch, world.name);
    assert!(http.post(url("*/_refresh")).send().unwrap().status().is_success());
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for (place, people) in population.places.iter().zip(&population.people) {
        *expected.entry(map.locate(place.point).to_string()).or_default() += people.len() as u64;
    }
    for shard in map.shards() {
        let body = json!({"size": 0, "track_total_hits": true});
        let answer = post(&http, &url(&format!("{shard}/_search")), &body).unwrap();
        let there = answer["hits"]["total"]["value"].as_u64();
        assert_eq!(there, Some(expected.get(shard.as_str()).copied().unwrap_or_default()), "{shard}");
    }
    let checked = processes.geofold(&["check"]);
    assert!(checked.status.success(), "{}", text(&checked));
}

/// `"expected": 1.07` of the last decision that was printed.
fn last_expected(log: &str) -> Option<f64> {
    let (_, last) = log.rsplit_once("\"expected\":")?;
    last.trim_start().split(|c: char| !(c.is_ascii_digit() || c == '.')).next()?.parse().ok()
}
