//! A topic, a set of indices and a configuration that no other test uses.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::truth::{Event, Truth};
use super::worker::GEOFOLD;
use super::{Stack, Worker, wait_for};

/// How a world differs from the usual one.
pub struct WorldOptions {
    pub partitions: i32,
    /// More lines for the configuration, as (table, line) pairs.
    pub config: Vec<(&'static str, String)>,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self { partitions: 4, config: Vec::new() }
    }
}

/// One document as found: its geoshard's index, its version, its source.
#[derive(Debug, Clone, PartialEq)]
pub struct Copy {
    pub index: String,
    pub version: u64,
    pub source: Value,
}

/// See the file's first lines.
pub struct World {
    pub stack: Stack,
    pub name: String,
    partitions: i32,
    dir: TempDir,
    pub config: PathBuf,
    started: std::cell::Cell<u32>,
}

impl World {
    /// Topic and indices made, configuration written.
    pub fn new(options: WorldOptions) -> Self {
        let world = Self::without_indices(options);
        let output = world.geofold(&["shards", "create"]);
        assert!(output.status.success(), "{}", text(&output));
        world
    }

    /// Only the topics made, and the configuration written.
    pub fn without_indices(options: WorldOptions) -> Self {
        let stack = Stack::get();
        let dir = TempDir::new().unwrap();
        let name = format!("t{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
        let config = dir.path().join("geofold.toml");
        let mut tables: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let map = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");
        for (table, line) in [
            ("kafka", format!("brokers = [{:?}]", stack.kafka)),
            ("kafka", format!("topic = {name:?}")),
            ("kafka", format!("group_id = {name:?}")),
            ("kafka", "client_id = \"geofold-test\"".to_owned()),
            ("elasticsearch", format!("urls = [{:?}]", stack.elasticsearch)),
            ("elasticsearch", format!("prefix = {name:?}")),
            ("geoshards", format!("map = {map:?}")),
            ("dead_letter", "policy = \"topic\"".to_owned()),
            ("dead_letter", format!("topic = \"{name}-dead\"")),
        ]
        .into_iter()
        .chain(options.config)
        {
            // A later line for a key replaces the usual one.
            let key = line.split('=').next().unwrap().trim().to_owned();
            let lines = tables.entry(table).or_default();
            lines.retain(|other| other.split('=').next().unwrap().trim() != key);
            lines.push(line);
        }
        let toml: String =
            tables.iter().map(|(table, lines)| format!("[{table}]\n{}\n\n", lines.join("\n"))).collect();
        std::fs::write(&config, toml).unwrap();
        let world = Self {
            stack,
            name,
            partitions: options.partitions,
            dir,
            config,
            started: std::cell::Cell::new(0),
        };
        world.create_topic(&world.name, options.partitions);
        world.create_topic(&format!("{}-dead", world.name), 1);
        world
    }

    /// Runs a `geofold` subcommand with this world's configuration.
    pub fn geofold(&self, args: &[&str]) -> Output {
        Command::new(GEOFOLD)
            .args(args)
            .arg("--config")
            .arg(&self.config)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Produces events with `geofold send`.
    pub fn send(&self, events: &[Event]) {
        let file = self.dir.path().join("events");
        let lines: String = events.iter().map(|event| event.to_line() + "\n").collect();
        std::fs::write(&file, lines).unwrap();
        let output = self.geofold(&["send", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output));
    }

    /// Starts a worker.
    pub fn worker(&self) -> Worker {
        let number = self.started.get();
        self.started.set(number + 1);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Worker::start(&self.config, self.dir.path().join(format!("worker-{number}.log")), port)
    }

    fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.stack.kafka);
        client
    }

    /// Makes a topic.
    pub fn create_topic(&self, topic: &str, partitions: i32) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let results = runtime.block_on(admin.create_topics([&topic], &AdminOptions::new())).unwrap();
        results.into_iter().for_each(|result| drop(result.unwrap()));
    }

    /// Committed and end offsets of each partition. A partition without a commit counts as committed at 0.
    pub fn offsets(&self) -> Vec<(i64, i64)> {
        let consumer: BaseConsumer = self.client().set("group.id", &self.name).create().unwrap();
        let timeout = Duration::from_secs(20);
        let mut list = TopicPartitionList::new();
        (0..self.partitions).for_each(|partition| drop(list.add_partition(&self.name, partition)));
        let committed = consumer.committed_offsets(list, timeout).unwrap();
        (0..self.partitions)
            .map(|partition| {
                let (_, end) = consumer.fetch_watermarks(&self.name, partition, timeout).unwrap();
                match committed.find_partition(&self.name, partition).unwrap().offset() {
                    Offset::Offset(offset) => (offset, end),
                    _ => (0, end),
                }
            })
            .collect()
    }

    /// Waits until every record is committed.
    pub fn wait_until_committed(&self, patience: Duration) {
        let mut last = Vec::new();
        wait_for("committed offsets to equal end offsets", patience, || {
            last = self.offsets();
            last.iter().all(|(committed, end)| committed == end).then_some(())
        });
    }

    /// All messages in the dead-letter topic: key, value, headers.
    pub fn dead_letters(&self) -> Vec<(String, Option<String>, BTreeMap<String, String>)> {
        let consumer: BaseConsumer = self.client().set("group.id", "reader").create().unwrap();
        let topic = format!("{}-dead", self.name);
        let timeout = Duration::from_secs(20);
        let (_, end) = consumer.fetch_watermarks(&topic, 0, timeout).unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&topic, 0, Offset::Beginning).unwrap();
        consumer.assign(&list).unwrap();
        let mut letters = Vec::new();
        while (letters.len() as i64) < end {
            let message = consumer.poll(timeout).expect("a dead letter").unwrap();
            let as_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let headers = message.headers().map_or_else(BTreeMap::new, |headers| {
                headers.iter().map(|h| (h.key.to_owned(), h.value.map(as_text).unwrap_or_default())).collect()
            });
            letters.push((
                as_text(message.key().unwrap_or_default()),
                message.payload().map(as_text),
                headers,
            ));
        }
        letters
    }

    /// Every copy of every document, by id, over all geoshards.
    pub fn copies(&self) -> BTreeMap<String, Vec<Copy>> {
        let mut copies: BTreeMap<String, Vec<Copy>> = BTreeMap::new();
        let pattern = format!("{}-s*", self.name);
        self.stack.ask("POST", &format!("/{pattern}/_refresh"), None);
        let mut after: Option<Value> = None;
        loop {
            let mut body = json!({
                "size": 5000, "version": true, "query": {"match_all": {}},
                "sort": [{"_index": "asc"}, {"_doc": "asc"}], "track_total_hits": false,
            });
            if let Some(after) = after.take() {
                body["search_after"] = after;
            }
            let answer = self.stack.ask("POST", &format!("/{pattern}/_search"), Some(body));
            let hits = answer["hits"]["hits"].as_array().unwrap().clone();
            let Some(last) = hits.last() else { return copies };
            after = Some(last["sort"].clone());
            for hit in hits {
                let copy = Copy {
                    index: hit["_index"].as_str().unwrap().to_owned(),
                    version: hit["_version"].as_u64().unwrap(),
                    source: hit["_source"].clone(),
                };
                copies.entry(hit["_id"].as_str().unwrap().to_owned()).or_default().push(copy);
            }
        }
    }

    /// Compares the index with the truth: each document once, in the right geoshard, with the right content.
    pub fn assert_holds(&self, truth: &Truth) {
        let copies = self.copies();
        let mut wrong = Vec::new();
        for (id, document) in &truth.documents {
            let expected = format!("{}-{}", self.name, truth.shard_of(document));
            match copies.get(id).map(Vec::as_slice) {
                None | Some([]) => wrong.push(format!("{id} is missing; it should be in {expected}")),
                Some([copy]) if copy.index != expected => {
                    wrong.push(format!("{id} is in {}, not in {expected}", copy.index));
                }
                Some([copy]) if copy.source != *document => {
                    wrong.push(format!("{id} is {}, not {document}", copy.source));
                }
                Some([_]) => {}
                Some(several) => wrong.push(format!("{id} has {} copies: {several:?}", several.len())),
            }
        }
        for (id, found) in &copies {
            if !truth.documents.contains_key(id) {
                wrong.push(format!("{id} should not be there, but is: {found:?}"));
            }
        }
        wrong.truncate(20);
        assert!(wrong.is_empty(), "the index is wrong:\n{}", wrong.join("\n"));
    }

    /// The placement record of a document.
    pub fn placement(&self, id: &str) -> Value {
        self.stack.try_ask("GET", &format!("/{}-placements/_doc/{id}", self.name), None).1["_source"].clone()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Wildcards may be refused for deletes, so each by its name; a failed clean-up must not hide a test's own failure.
        let (_, answer) =
            self.stack.try_ask("GET", &format!("/_cat/indices/{}-*?format=json&h=index", self.name), None);
        let names: Vec<&str> =
            answer.as_array().into_iter().flatten().filter_map(|row| row["index"].as_str()).collect();
        for chunk in names.chunks(20) {
            let _ = self.stack.try_ask("DELETE", &format!("/{}", chunk.join(",")), None);
        }
    }
}

/// What a command printed.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
