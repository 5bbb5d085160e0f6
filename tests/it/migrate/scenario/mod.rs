//! A change of the map with everything around it: workers and the command as child processes, a continuous writer, a
//! continuous reader, and the audit of every placement and every index at the end.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | topic, indices and configuration, and what is asked of them |
//! | `process.rs` | a child process and its log |
//! | `traffic.rs` | the writer and the reader |
//! | `common.rs` | the tests that the stand-ins and the real services have in common |

pub mod common;
pub mod process;
pub mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use geofold::base::geo::GeoPoint;
use geofold::base::ids::ShardId;
use geofold::geoshard::GeoshardMap;
use geofold::testkit::ports::free_address;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::{Value, json};
use tempfile::TempDir;

use self::process::Process;
use self::traffic::STEADY;
use crate::wait::{TIMEOUT, wait_for};

/// A topic, a set of indices and a configuration of its own.
pub struct Scenario {
    dir: TempDir,
    config: PathBuf,
    kafka: String,
    elasticsearch: String,
    name: String,
    pub old: GeoshardMap,
    pub new: GeoshardMap,
    http: reqwest::blocking::Client,
    /// librdkafka's name of the writer's partitioner.
    partitioner: &'static str,
    /// Of the processes that it starts.
    pub environment: Vec<(&'static str, String)>,
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// 70 geoshards of the sample's 55: three are given to their neighbours, eighteen are cut in two.
pub fn seventy(old: &GeoshardMap) -> GeoshardMap {
    let mut ranges: Vec<(u64, ShardId)> = Vec::new();
    for (n, (range, shard)) in old.ranges().enumerate() {
        let owner = match ranges.last() {
            Some((_, before)) if [7, 22, 40].contains(&n) => before.clone(),
            _ => shard.clone(),
        };
        ranges.push((range.start, owner));
        if n % 3 == 0 && n < 54 {
            let middle = (range.start + (range.end - range.start) / 2) | 1;
            ranges.push((middle, ShardId::new(&format!("n{n:02}")).unwrap()));
        }
    }
    GeoshardMap::new(old.version() + 1, "world of 70", ranges).unwrap()
}

impl Scenario {
    /// The topic `name` exists. Makes the indices of the sample map.
    /// `deadline`: a batch's, in seconds; the whole change takes some four times that, at least.
    pub fn new(kafka: &str, elasticsearch: &str, name: &str, deadline: u64) -> Self {
        let old = GeoshardMap::from_json(include_str!("../../../../config/map-55.json")).unwrap();
        let new = seventy(&old);
        assert_eq!((old.shards().len(), new.shards().len()), (55, 70));
        Self::with_maps(kafka, elasticsearch, name, deadline, old, new)
    }

    /// The same with other maps.
    pub fn with_maps(
        kafka: &str,
        elasticsearch: &str,
        name: &str,
        deadline: u64,
        old: GeoshardMap,
        new: GeoshardMap,
    ) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("old.json"), old.to_json()).unwrap();
        std::fs::write(dir.path().join("new.json"), new.to_json()).unwrap();
        let config = dir.path().join("geofold.toml");
        let timeout = deadline * 1000 - 500;
        let toml = format!(
            r#"
[kafka]
brokers = [{kafka:?}]
topic = "{name}"
group_id = "{name}"
session_timeout = "6s"
heartbeat_interval = "500ms"
[elasticsearch]
urls = [{elasticsearch:?}]
prefix = "{name}"
request_timeout = "{timeout}ms"
[geoshards]
map = "old.json"
index_template = "template.json"
[batch]
timeout = "{deadline}s"
[commit]
interval = "300ms"
[retry]
max_backoff = "500ms"
[shutdown]
revoke_timeout = "1s"
[admin]
listen = "127.0.0.1:0"
[dead_letter]
policy = "stop"
"#
        );
        std::fs::write(&config, toml).unwrap();
        let template = json!({"settings": {"index.number_of_replicas": 0}});
        std::fs::write(dir.path().join("template.json"), template.to_string()).unwrap();
        let scenario = Self {
            dir,
            config,
            kafka: kafka.to_owned(),
            elasticsearch: elasticsearch.to_owned(),
            name: name.to_owned(),
            old,
            new,
            http: reqwest::blocking::Client::builder().timeout(Duration::from_secs(120)).build().unwrap(),
            partitioner: "murmur2_random",
            environment: Vec::new(),
        };
        // A busy server takes longer for an index than a request may; those that are there are left as they are.
        let created = wait_for("the indices", || {
            let output = scenario.geofold(&["shards", "create"]);
            let is_late = !output.status.success() && text(&output).contains("did not answer within");
            (!is_late).then_some(output)
        });
        assert!(created.status.success(), "{}", text(&created));
        scenario
    }

    /// The writer has librdkafka's own partitioner, and this is what `kafka.partitioner` says of it. With a database for
    /// campaigns.
    pub fn fed_by_librdkafka(&mut self, configured: &str) {
        self.partitioner = "consistent_random";
        let toml = std::fs::read_to_string(&self.config).unwrap();
        let kafka = format!("[kafka]\npartitioner = {configured:?}\n");
        let database = "[database]\nurl = \"sqlite:geofold.sqlite\"\n";
        std::fs::write(&self.config, toml.replace("[kafka]\n", &kafka) + database).unwrap();
    }

    /// Adds sections to the configuration.
    pub fn configure(&self, sections: &str) {
        let toml = std::fs::read_to_string(&self.config).unwrap();
        std::fs::write(&self.config, toml + sections).unwrap();
    }

    /// One worker listens where commands look for it.
    pub fn listen_at_a_known_port(&self) {
        let free = free_address().unwrap();
        let toml = std::fs::read_to_string(&self.config).unwrap();
        std::fs::write(&self.config, toml.replace("127.0.0.1:0", &free.to_string())).unwrap();
    }

    /// From now on the new map is the old one, but for the geoshard with some 2 % of the documents, which its neighbour on the
    /// curve gets. Gives how many documents that are.
    pub fn change_a_fiftieth(&mut self, truth: &BTreeMap<String, Value>) -> usize {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for document in truth.values() {
            *counts.entry(shard_of(&self.old, document)).or_default() += 1;
        }
        let ranges: Vec<(u64, ShardId)> =
            self.old.ranges().map(|(range, shard)| (range.start, shard.clone())).collect();
        let count = |n: usize| counts.get(ranges[n].1.as_str()).copied().unwrap_or_default();
        let moved = (1..ranges.len()).min_by_key(|&n| count(n).abs_diff(truth.len() / 50)).unwrap();
        let mut changed = ranges.clone();
        changed[moved].1 = ranges[moved - 1].1.clone();
        self.new = GeoshardMap::new(self.old.version() + 1, "a fiftieth", changed).unwrap();
        std::fs::write(self.path("new.json"), self.new.to_json()).unwrap();
        count(moved)
    }

    pub fn has_copy(&self, shard: &str, id: &str) -> bool {
        self.ask("GET", &format!("/{}-{shard}/_doc/{id}", self.name), None).0 == 200
    }

    /// Puts a copy of a document where no placement names it.
    pub fn stray_copy(&self, shard: &str, id: &str, document: &Value) {
        let index = format!("{}-{shard}", self.name);
        let action = json!({"index": {"_index": index, "_id": id, "version": 1, "version_type": "external"}});
        let request = self.http.post(format!("{}/_bulk", self.elasticsearch));
        let request = request.header("content-type", "application/x-ndjson");
        let answer: Value = request.body(format!("{action}\n{document}\n")).send().unwrap().json().unwrap();
        assert_eq!(answer["errors"], false, "{answer}");
    }

    /// How many records are in the topic.
    pub fn records(&self) -> i64 {
        let group: BaseConsumer = self.client().create().unwrap();
        let end =
            |partition| group.fetch_watermarks(&self.name, partition, Duration::from_secs(10)).unwrap().1;
        (0..4).map(end).sum()
    }

    /// A bad record, which stops its partition: a dead letter of anything else would, too.
    pub fn stop_at_a_bad_record(&self) {
        let producer: BaseProducer = self.client().create().unwrap();
        let record: BaseRecord<'_, str, str> =
            BaseRecord::to(&self.name).key("bad").partition(2).payload("{");
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(TIMEOUT).unwrap();
    }

    pub fn path(&self, file: &str) -> String {
        self.dir.path().join(file).to_str().unwrap().to_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_geofold"));
        command.args(arguments).arg("--config").arg(&self.config).stdin(Stdio::null());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a subcommand to its end.
    pub fn geofold(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts a subcommand.
    pub fn start(&self, name: &str, arguments: &[&str]) -> Process {
        Process::start(self.command(arguments), self.dir.path().join(name))
    }

    pub fn worker(&self, name: &str, more: &[&str]) -> Process {
        self.start(name, &[&["run"], more].concat())
    }

    /// `geofold shards migrate --to` the new map.
    pub fn migrate(&self, name: &str) -> Process {
        self.start(name, &["shards", "migrate", "--to", &self.path("new.json")])
    }

    fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.elasticsearch));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().unwrap();
        (response.status().as_u16(), response.json().unwrap_or(Value::Null))
    }

    /// The record of the maps, as it is stored.
    pub fn record(&self) -> Option<Value> {
        let (_, answer) = self.ask("GET", &format!("/{}-meta/_doc/maps%2F{}", self.name, self.name), None);
        (answer["found"] == true).then(|| answer["_source"].clone())
    }

    /// What a worker has stored of the topic, without which no map can change.
    pub fn topic_state(&self) -> Option<Value> {
        self.meta(&format!("topic%2F{}", self.name))
    }

    /// A document of the meta index; `id` percent-encoded.
    pub fn meta(&self, id: &str) -> Option<Value> {
        let (_, answer) = self.ask("GET", &format!("/{}-meta/_doc/{id}", self.name), None);
        (answer["found"] == true).then(|| answer["_source"].clone())
    }

    /// Puts a document that is not there into the meta index.
    pub fn put_meta(&self, id: &str, document: &Value) {
        let action = json!({"create": {"_index": format!("{}-meta", self.name), "_id": id}});
        let request = self.http.post(format!("{}/_bulk", self.elasticsearch));
        let request = request.header("content-type", "application/x-ndjson");
        let answer: Value = request.body(format!("{action}\n{document}\n")).send().unwrap().json().unwrap();
        assert_eq!(answer["errors"], false, "{answer}");
    }

    pub fn wait_for_stage(&self, stage: &str) {
        wait_for(stage, || self.record().filter(|record| record["stage"] == stage));
    }

    /// Searches of the new geoshards see what was written only after this long, without an explicit refresh: longer
    /// than searches of the old ones do.
    pub fn refresh_new_ones_every(&self, interval: &str) {
        let settings = json!({"index.refresh_interval": interval});
        for shard in self.new.shards().iter().filter(|shard| !self.old.shards().contains(shard)) {
            let path = format!("/{}-{shard}/_settings", self.name);
            assert_eq!(self.ask("PUT", &path, Some(settings.clone())).0, 200);
        }
    }

    pub fn has_index(&self, shard: &str) -> bool {
        self.ask("HEAD", &format!("/{}-{shard}", self.name), None).0 == 200
    }

    fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.kafka);
        client
    }

    /// Whether all that is in the topic is committed.
    fn is_committed(&self, group: &BaseConsumer, ends: &BTreeMap<i32, i64>) -> bool {
        let mut list = TopicPartitionList::new();
        for &partition in ends.keys() {
            list.add_partition(&self.name, partition);
        }
        let Ok(list) = group.committed_offsets(list, Duration::from_secs(10)) else { return false };
        list.elements().iter().all(|element| element.offset() == Offset::Offset(ends[&element.partition()]))
    }

    /// Waits until all that is in the topic is committed.
    pub fn drain(&self) {
        let group: BaseConsumer = self.client().set("group.id", &self.name).create().unwrap();
        let metadata = group.fetch_metadata(Some(&self.name), Duration::from_secs(10)).unwrap();
        let partitions = metadata.topics()[0].partitions().iter().map(|partition| partition.id());
        let end = |partition| {
            let (_, end) = group.fetch_watermarks(&self.name, partition, Duration::from_secs(10)).unwrap();
            (partition, end)
        };
        let ends: BTreeMap<i32, i64> = partitions.map(end).filter(|(_, end)| *end > 0).collect();
        wait_for("all is committed", || self.is_committed(&group, &ends).then_some(()));
    }

    /// Waits until every steady document can be found.
    pub fn wait_until_loaded(&self) {
        wait_for("the steady documents", || {
            let path = format!("/{}-*/_search", self.name);
            let ids: Vec<String> = (0..STEADY).map(|number| format!("s{number}")).collect();
            let body = json!({"query": {"ids": {"values": ids}}, "size": 0, "track_total_hits": true});
            // Each has a placement as well, which is found by its id.
            (self.ask("POST", &path, Some(body)).1["hits"]["total"]["value"] == 2 * STEADY).then_some(())
        });
    }

    fn all_of(&self, index: &str) -> Vec<(String, Value)> {
        let body = json!({"size": 10_000, "track_total_hits": true});
        let (status, answer) = self.ask("POST", &format!("/{}-{index}/_search", self.name), Some(body));
        if status == 404 {
            return Vec::new();
        }
        let hits = answer["hits"]["hits"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert!(hits.len() < 10_000);
        hits.iter().map(|hit| (hit["_id"].as_str().unwrap().to_owned(), hit["_source"].clone())).collect()
    }

    /// Reads every index and every placement: each document is there once, where `map` says, as it was last written.
    pub fn audit(&self, map: &GeoshardMap, truth: &BTreeMap<String, Value>) {
        assert_eq!(self.ask("POST", &format!("/{}-*/_refresh", self.name), None).0, 200);
        let shards: BTreeSet<&ShardId> = self.old.shards().iter().chain(self.new.shards()).collect();
        let mut copies: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
        for shard in shards {
            for (id, source) in self.all_of(shard.as_str()) {
                copies.entry(id).or_default().push((shard.to_string(), source));
            }
        }
        for (id, document) in truth {
            let expected = vec![(shard_of(map, document), document.clone())];
            assert_eq!(copies.remove(id), Some(expected), "{id}");
        }
        assert_eq!(copies, BTreeMap::new(), "documents that should not be there");
        let mut placed = 0;
        for (id, placement) in self.all_of("placements") {
            match truth.get(&id) {
                Some(document) => assert_eq!(placement["shard"], json!(shard_of(map, document)), "{id}"),
                None => assert_eq!(placement["deleted"], true, "{id}"),
            }
            placed += usize::from(placement["deleted"] != true);
        }
        assert_eq!(placed, truth.len());
    }
}

fn shard_of(map: &GeoshardMap, document: &Value) -> String {
    let location = &document["location"];
    let (lat, lon) = (location["lat"].as_f64().unwrap(), location["lon"].as_f64().unwrap());
    map.locate(GeoPoint::new(lat, lon).unwrap()).to_string()
}
