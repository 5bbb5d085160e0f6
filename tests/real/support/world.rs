//! A topic, a set of indices and a configuration that no other test uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use geofold::geoshard::GeoshardMap;
use geofold::io::kafka::{leader_epoch, set_leader_epoch};
use geofold::testkit::ports::free_port;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewPartitions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::truth::{Event, Truth};
use super::worker::GEOFOLD;
use super::{Proxy, Stack, TIMEOUT, Worker, ask_for};

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

/// A record as it is.
#[derive(Debug, Clone, Default)]
pub struct Raw {
    /// `None`: where its key belongs.
    pub partition: Option<i32>,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(&'static str, String)>,
}

/// A producer of raw records.
pub struct Feed {
    producer: BaseProducer,
    topic: String,
}

impl Feed {
    /// Sends them on their way.
    pub fn send(&self, records: &[Raw]) {
        for raw in records {
            let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&self.topic);
            record.partition = raw.partition;
            record.key = raw.key.as_deref();
            record.payload = raw.value.as_deref();
            let headers = raw.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value: Some(value) })
            });
            let mut record = record.headers(headers);
            // A slow broker leaves the client's queue full.
            while let Err((error, refused)) = self.producer.send(record) {
                assert_eq!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::QueueFull), "{error}");
                self.producer.poll(Duration::from_millis(100));
                record = refused;
            }
        }
        self.producer.poll(Duration::ZERO);
    }

    /// Waits until all of them are acknowledged, or given up.
    pub fn flush(&self) {
        self.producer.flush(TIMEOUT).unwrap();
    }

    /// Takes in acknowledgements, for so long.
    pub fn listen(&self, time: Duration) {
        self.producer.poll(time);
    }

    /// Records of which no acknowledgement was taken in yet.
    pub fn waiting(&self) -> usize {
        usize::try_from(self.producer.in_flight_count()).unwrap_or(0)
    }
}

/// A message in the dead-letter topic.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    pub key: Option<String>,
    pub value: Option<String>,
    pub headers: BTreeMap<String, String>,
}

/// See the file's first lines.
pub struct World {
    pub stack: Stack,
    pub name: String,
    partitions: AtomicI32,
    dir: TempDir,
    pub config: PathBuf,
    started: AtomicU32,
}

impl World {
    /// Topic and indices made, configuration written; other tests run at the same time.
    pub fn new(options: WorldOptions) -> Self {
        Self::with_indices(Stack::shared(), options)
    }

    /// The same while no other test runs, for one that stops services.
    pub fn alone(options: WorldOptions) -> Self {
        Self::with_indices(Stack::alone(), options)
    }

    fn with_indices(stack: Stack, options: WorldOptions) -> Self {
        let world = Self::on(stack, options);
        // Some tests have a short timeout for their worker's requests; a busy server takes longer for an index. Those that
        // are there already are left as they are.
        let created = ask_for(TIMEOUT, || {
            let output = world.geofold(&["shards", "create"]);
            let is_late = !output.status.success() && text(&output).contains("did not answer within");
            (!is_late).then_some(output)
        });
        let output = created.expect("the server makes indices within 300 s");
        assert!(output.status.success(), "{}", text(&output));
        world
    }

    /// Only the topics made, and the configuration written.
    pub fn without_indices(options: WorldOptions) -> Self {
        Self::on(Stack::shared(), options)
    }

    /// The same while no other test runs.
    pub fn alone_without_indices(options: WorldOptions) -> Self {
        Self::on(Stack::alone(), options)
    }

    fn on(stack: Stack, options: WorldOptions) -> Self {
        let dir = TempDir::new().unwrap();
        let name = format!("t{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
        let config = dir.path().join("geofold.toml");
        let mut tables: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let map = dir.path().join("map.json");
        std::fs::write(&map, include_str!("map-12.json")).unwrap();
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
        let (partitions, started) = (AtomicI32::new(options.partitions), AtomicU32::new(0));
        let world = Self { stack, name, partitions, dir, config, started };
        world.stack.create_topic(&world.name, options.partitions);
        world.stack.create_topic(&format!("{}-dead", world.name), 1);
        world
    }

    /// Where its files are, workers' logs among them; gone when this is dropped.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Puts another map into the file that the configuration names. Running processes do not read it again.
    pub fn configure_map(&self, map: &GeoshardMap) {
        std::fs::write(self.dir.path().join("map.json"), map.to_json()).unwrap();
    }

    /// Runs a `geofold` subcommand with this world's configuration.
    pub fn geofold(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The same, but it is killed (SIGKILL) `after` this time: `None` if it had not ended by then.
    pub fn geofold_killed(&self, args: &[&str], after: Duration) -> Option<Output> {
        let mut child = self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let began = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if began.elapsed() > after {
                child.kill().unwrap();
                child.wait().unwrap();
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(child.wait_with_output().unwrap())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(GEOFOLD);
        command.args(args).arg("--config").arg(&self.config).stdin(Stdio::null());
        command
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
        self.worker_with(&[])
    }

    /// Starts a worker that reaches Elasticsearch through a proxy.
    pub fn worker_behind(&self, proxy: &Proxy) -> Worker {
        self.worker_with(&[("GEOFOLD_ELASTICSEARCH__URLS", proxy.url())])
    }

    /// Starts a worker with parts of its configuration overridden by environment variables.
    pub fn worker_with(&self, env: &[(&str, &str)]) -> Worker {
        self.worker_of(&[], env)
    }

    /// The same, with more arguments.
    pub fn worker_of(&self, args: &[&str], env: &[(&str, &str)]) -> Worker {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let port = free_port().unwrap();
        Worker::start(&self.config, self.dir.path().join(format!("worker-{number}.log")), port, args, env)
    }

    /// Produces records unchanged, in their order.
    pub fn produce(&self, records: &[Raw]) {
        let feed = self.feed();
        feed.send(records);
        feed.flush();
    }

    /// A way to produce again and again.
    pub fn feed(&self) -> Feed {
        let producer = self
            .client()
            .set("partitioner", "murmur2_random")
            .set("linger.ms", "0")
            .set("message.max.bytes", "100000000")
            .create()
            .unwrap();
        Feed { producer, topic: self.name.clone() }
    }

    /// Commits offsets of a group without members, as an operator would rewind it.
    pub fn rewind(&self, offsets: &[(i32, i64)]) {
        let consumer: BaseConsumer = self.client().set("group.id", &self.name).create().unwrap();
        let mut list = TopicPartitionList::new();
        for &(partition, offset) in offsets {
            list.add_partition_offset(&self.name, partition, Offset::Offset(offset)).unwrap();
        }
        consumer.commit(&list, CommitMode::Sync).unwrap();
    }

    /// Commits an offset of partition 0 as if the leader of this epoch had written what is before it.
    pub fn commit_in_leader_epoch(&self, offset: i64, leader_epoch: i32) {
        let consumer: BaseConsumer = self.client().set("group.id", &self.name).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.name, 0, Offset::Offset(offset)).unwrap();
        set_leader_epoch(&mut list, &self.name, 0, leader_epoch);
        consumer.commit(&list, CommitMode::Sync).unwrap();
    }

    /// The leader epoch that is committed with partition 0's offset.
    pub fn committed_leader_epoch(&self) -> Option<i32> {
        let consumer: BaseConsumer = self.client().set("group.id", &self.name).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition(&self.name, 0);
        let list = consumer.committed_offsets(list, Duration::from_secs(60)).unwrap();
        leader_epoch(&list, &self.name, 0)
    }

    fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.stack.kafka);
        client
    }

    /// Adds partitions to the topic until there are so many.
    pub fn add_partitions(&self, partitions: i32) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let more = NewPartitions::new(&self.name, partitions.unsigned_abs() as usize);
        let results = runtime.block_on(admin.create_partitions([&more], &AdminOptions::new())).unwrap();
        results.into_iter().for_each(|result| drop(result.unwrap()));
        self.partitions.store(partitions, Ordering::Relaxed);
    }

    /// How many the topic has.
    fn partitions(&self) -> i32 {
        self.partitions.load(Ordering::Relaxed)
    }

    /// Deletes the topic and makes it again, empty.
    pub fn create_topic_again(&self) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let results = runtime.block_on(admin.delete_topics(&[&self.name], &AdminOptions::new())).unwrap();
        results.into_iter().for_each(|result| drop(result.unwrap()));
        let is_gone = ask_for(TIMEOUT, || {
            let metadata = admin.inner().fetch_metadata(None, Duration::from_secs(20)).ok()?;
            metadata.topics().iter().all(|topic| topic.name() != self.name).then_some(())
        });
        assert!(is_gone.is_some(), "the broker still knows {}", self.name);
        self.stack.create_topic(&self.name, self.partitions());
    }

    /// Deletes the records below these offsets, as retention would.
    pub fn delete_records(&self, below: &[(i32, i64)]) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut list = TopicPartitionList::new();
        for &(partition, offset) in below {
            list.add_partition_offset(&self.name, partition, Offset::Offset(offset)).unwrap();
        }
        let done = runtime.block_on(admin.delete_records(&list, &AdminOptions::new())).unwrap();
        done.elements().iter().for_each(|partition| partition.error().unwrap());
    }

    /// Sets how large a topic's records may be (`max.message.bytes`).
    pub fn set_topic_limit(&self, topic: &str, bytes: usize) {
        self.configure_topic(topic, &[("max.message.bytes", &bytes.to_string())]);
    }

    /// Sets a topic's own configuration; what is not named falls back to the broker's.
    pub fn configure_topic(&self, topic: &str, settings: &[(&str, &str)]) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let nothing = AlterConfig::new(ResourceSpecifier::Topic(topic));
        let change = settings.iter().fold(nothing, |change, (key, value)| change.set(key, value));
        let results = runtime.block_on(admin.alter_configs([&change], &AdminOptions::new())).unwrap();
        results.into_iter().for_each(|result| drop(result.unwrap()));
    }

    /// What the group has committed, of the partitions where it has.
    pub fn committed(&self) -> BTreeMap<i32, i64> {
        let group: BaseConsumer = self.client().set("group.id", &self.name).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_range(&self.name, 0, self.partitions() - 1);
        let list = group.committed_offsets(list, Duration::from_secs(60)).unwrap();
        let offset = |element: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
            let Offset::Offset(offset) = element.offset() else { return None };
            Some((element.partition(), offset))
        };
        list.elements().into_iter().filter_map(offset).collect()
    }

    /// Committed and end offsets of each partition. A partition without a commit counts as committed at 0.
    pub fn offsets(&self) -> Vec<(i64, i64)> {
        let mut last = None;
        // A broker that has just started is not every group's coordinator yet.
        let asked = ask_for(TIMEOUT, || {
            self.try_offsets(Duration::from_secs(20)).map_err(|error| last = Some(error)).ok()
        });
        asked.unwrap_or_else(|| panic!("no offsets from the broker: {last:?}"))
    }

    /// The same; fails if a call takes longer than `timeout`.
    pub fn try_offsets(&self, timeout: Duration) -> KafkaResult<Vec<(i64, i64)>> {
        let consumer: BaseConsumer = self.client().set("group.id", &self.name).create()?;
        let mut list = TopicPartitionList::new();
        for partition in 0..self.partitions() {
            list.add_partition(&self.name, partition);
        }
        let committed = consumer.committed_offsets(list, timeout)?;
        let offsets = (0..self.partitions()).map(|partition| {
            let (_, end) = consumer.fetch_watermarks(&self.name, partition, timeout)?;
            let element = committed.find_partition(&self.name, partition).unwrap();
            element.error()?;
            match element.offset() {
                Offset::Offset(offset) => Ok((offset, end)),
                _ => Ok((0, end)),
            }
        });
        offsets.collect()
    }

    /// Where each partition of a topic ends.
    pub fn ends(&self, topic: &str, partitions: i32) -> BTreeMap<i32, i64> {
        let consumer: BaseConsumer = self.client().create().unwrap();
        let timeout = Duration::from_secs(300);
        let end = |partition| consumer.fetch_watermarks(topic, partition, timeout).unwrap().1;
        (0..partitions).map(|partition| (partition, end(partition))).collect()
    }

    /// Waits until every record is committed.
    pub fn wait_until_committed(&self, patience: Duration) {
        let mut last = Vec::new();
        let committed = ask_for(patience, || {
            last = self.offsets();
            last.iter().all(|(committed, end)| committed == end).then_some(())
        });
        assert!(committed.is_some(), "after {patience:?} committed and end offsets are {last:?}");
    }

    /// All messages in the dead-letter topic.
    pub fn dead_letters(&self) -> Vec<DeadLetter> {
        let mut letters = Vec::new();
        self.read(&format!("{}-dead", self.name), 1, |message| {
            let as_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let headers = message.headers().map_or_else(BTreeMap::new, |headers| {
                headers.iter().map(|h| (h.key.to_owned(), h.value.map(as_text).unwrap_or_default())).collect()
            });
            letters.push(DeadLetter {
                key: message.key().map(as_text),
                value: message.payload().map(as_text),
                headers,
            });
        });
        letters
    }

    /// Every record of the topic, partition after partition.
    pub fn records(&self, each: impl FnMut(&BorrowedMessage<'_>)) {
        self.read(&self.name, self.partitions(), each);
    }

    /// Reads a topic from its beginning to its end, partition after partition.
    pub fn read(&self, topic: &str, partitions: i32, mut each: impl FnMut(&BorrowedMessage<'_>)) {
        let mut client = self.client();
        // Its commits would be events of their own, for which a poll gives no record.
        client.set("group.id", "reader").set("enable.auto.commit", "false");
        let consumer: BaseConsumer = client.create().unwrap();
        let timeout = Duration::from_secs(300);
        for partition in 0..partitions {
            let (begin, end) = consumer.fetch_watermarks(topic, partition, timeout).unwrap();
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
            consumer.assign(&list).unwrap();
            let mut next = begin;
            while next < end {
                let message = consumer.poll(timeout).expect("a record").unwrap();
                next = message.offset() + 1;
                each(&message);
            }
        }
    }

    /// Every copy of every document, by id, over all geoshards.
    pub fn copies(&self) -> BTreeMap<String, Vec<Copy>> {
        let mut copies: BTreeMap<String, Vec<Copy>> = BTreeMap::new();
        for (id, copy) in self.search_all(&format!("{}-s*", self.name)) {
            copies.entry(id).or_default().push(copy);
        }
        copies
    }

    /// Every placement record, by its document's id.
    pub fn placements(&self) -> BTreeMap<String, Value> {
        let found = self.search_all(&format!("{}-placements", self.name));
        found.into_iter().map(|(id, copy)| (id, copy.source)).collect()
    }

    fn search_all(&self, indices: &str) -> Vec<(String, Copy)> {
        let mut found = Vec::new();
        self.stack.ask("POST", &format!("/{indices}/_refresh"), None);
        let mut after: Option<Value> = None;
        loop {
            let mut body = json!({
                "size": 5000, "version": true, "query": {"match_all": {}},
                "sort": [{"_index": "asc"}, {"_doc": "asc"}], "track_total_hits": false,
            });
            if let Some(after) = after.take() {
                body["search_after"] = after;
            }
            let answer = self.stack.ask("POST", &format!("/{indices}/_search"), Some(body));
            let hits = answer["hits"]["hits"].as_array().unwrap().clone();
            let Some(last) = hits.last() else { return found };
            after = Some(last["sort"].clone());
            for hit in hits {
                let copy = Copy {
                    index: hit["_index"].as_str().unwrap().to_owned(),
                    version: hit["_version"].as_u64().unwrap(),
                    source: hit["_source"].clone(),
                };
                found.push((hit["_id"].as_str().unwrap().to_owned(), copy));
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

    /// What is wrong with the placements: each must name the one geoshard that its document is in, or that it was deleted.
    /// It may also name leftovers, if Elasticsearch was slow: a delete that is sent twice conflicts (protocol, step 6).
    pub fn wrong_placements(&self, truth: &Truth) -> Vec<String> {
        let placements = self.placements();
        let missing = truth.documents.keys().filter(|id| !placements.contains_key(*id));
        let mut wrong: Vec<String> = missing.map(|id| format!("{id} has no placement")).collect();
        for (id, placement) in &placements {
            let shard = truth.documents.get(id).map(|document| truth.shard_of(document));
            let is_right = placement["shard"].as_str() == shard
                && placement["deleted"].as_bool().unwrap_or(false) == shard.is_none();
            if !is_right {
                wrong.push(format!("{id} is in {shard:?}, its placement says {placement}"));
            }
        }
        wrong
    }

    /// The documents whose placements name leftovers.
    pub fn with_leftovers(&self) -> Vec<String> {
        let names_some = |placement: &Value| placement["leftovers"].as_array().is_some_and(|l| !l.is_empty());
        self.placements().into_iter().filter(|(_, p)| names_some(p)).map(|(id, _)| id).collect()
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
        // A broker with thousands of partitions is slow for the next test.
        const MANY: i32 = 100;
        if self.partitions() > MANY
            && let Ok(admin) = self.client().create::<AdminClient<DefaultClientContext>>()
            && let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build()
        {
            let _ = runtime.block_on(admin.delete_topics(&[&self.name], &AdminOptions::new()));
        }
    }
}

/// What a command printed.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
