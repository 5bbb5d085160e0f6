//! The running services, and the means to trouble them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication, TopicResult};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;
use serde_json::Value;

use super::{TIMEOUT, ask_for};
use crate::stack_lock;

/// Tests that stop a service have it alone; all others share it. This lock is for the tests of this program, and fair; that of the
/// folder is for other programs.
static SERVICES: RwLock<()> = RwLock::new(());

/// Whether other tests use the services at the same time.
enum Use {
    Shared { _folder: File, _guard: RwLockReadGuard<'static, ()> },
    Alone { _folder: File, _guard: RwLockWriteGuard<'static, ()> },
}

/// Kafka and Elasticsearch as `dev/stack` started them.
pub struct Stack {
    pub kafka: String,
    pub elasticsearch: String,
    dir: PathBuf,
    http: reqwest::blocking::Client,
    usage: Use,
}

impl Stack {
    /// The stack that the environment names, with other tests on it at the same time.
    pub fn shared() -> Self {
        let guard = SERVICES.read().unwrap_or_else(PoisonError::into_inner);
        Self::get(|dir| Use::Shared { _folder: stack_lock::share(dir), _guard: guard })
    }

    /// The same without any other test, for one that stops services or needs the ports that are a default.
    pub fn alone() -> Self {
        let guard = SERVICES.write().unwrap_or_else(PoisonError::into_inner);
        Self::get(|dir| Use::Alone { _folder: stack_lock::have_alone(dir), _guard: guard })
    }

    fn get(usage: impl FnOnce(&Path) -> Use) -> Self {
        let from_env = |name: &str| {
            std::env::var(name).unwrap_or_else(|_| {
                panic!("{name} is not set: run dev/test, or: dev/stack up && eval \"$(dev/stack env)\"")
            })
        };
        let dir = PathBuf::from(from_env("GEOFOLD_STACK_DIR"));
        let usage = usage(&dir);
        Self {
            kafka: from_env("GEOFOLD_TEST_KAFKA"),
            elasticsearch: from_env("GEOFOLD_TEST_ELASTICSEARCH"),
            dir,
            http: reqwest::blocking::Client::builder().timeout(TIMEOUT).build().unwrap(),
            usage,
        }
    }

    /// Makes a topic. A broker makes no more than so many partitions at once.
    pub fn create_topic(&self, topic: &str, partitions: i32) {
        const AT_ONCE: i32 = 2_000;
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.kafka).create().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let patience = Some(TIMEOUT);
        let options = AdminOptions::new().operation_timeout(patience).request_timeout(patience);
        let new = NewTopic::new(topic, partitions.min(AT_ONCE), TopicReplication::Fixed(1));
        // A broker that stood still for nine seconds does not count until it is heard of again.
        let is_fenced =
            |result: &TopicResult| matches!(result, Err((_, RDKafkaErrorCode::InvalidReplicationFactor)));
        let created = ask_for(TIMEOUT, || {
            let results = runtime.block_on(admin.create_topics([&new], &options)).unwrap();
            (!results.iter().any(is_fenced)).then_some(results)
        });
        let created = created.unwrap_or_else(|| panic!("no broker for {topic}"));
        created.into_iter().for_each(|result| drop(result.unwrap()));
        let mut there = AT_ONCE;
        while there < partitions {
            there = partitions.min(there + AT_ONCE);
            let more = NewPartitions::new(topic, there.unsigned_abs() as usize);
            let results = runtime.block_on(admin.create_partitions([&more], &options)).unwrap();
            results.into_iter().for_each(|result| drop(result.unwrap()));
        }
        // The controller has it; the broker hears of it a little later.
        let known = ask_for(TIMEOUT, || {
            let metadata = admin.inner().fetch_metadata(Some(topic), Duration::from_secs(20)).ok()?;
            let found = metadata.topics().first()?;
            let led = found.partitions().iter().filter(|partition| partition.leader() >= 0).count();
            (led == partitions.unsigned_abs() as usize).then_some(())
        });
        assert!(known.is_some(), "the broker does not know {partitions} partitions of {topic}");
    }

    /// `dev/stack COMMAND NAME`, for example `restart kafka`. Only for a test that is alone.
    pub fn tell(&self, command: &str, service: &str) {
        assert!(
            matches!(self.usage, Use::Alone { .. }),
            "{command} {service} hurts other tests: this one needs World::alone or Stack::alone"
        );
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/dev/stack");
        let mut stack = Command::new(script);
        stack.arg("--dir").arg(&self.dir).args([command, service]);
        // A server that starts beside workers and builds may take minutes.
        if std::env::var_os("GEOFOLD_STACK_WAIT").is_none() {
            stack.env("GEOFOLD_STACK_WAIT", "600");
        }
        let output = stack.output().unwrap();
        assert!(
            output.status.success(),
            "dev/stack {command} {service}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// The folder of the services.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The servers' logs, whether they are there or not.
    pub fn logs(&self) -> [PathBuf; 2] {
        ["kafka/server.log", "elasticsearch/logs/geofold-stack.log"].map(|log| self.dir.join(log))
    }

    /// A request to Elasticsearch that must succeed.
    pub fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let (status, answer) = self.try_ask(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    /// A `_bulk` request; gives the answer.
    pub fn bulk(&self, lines: &str) -> Value {
        let request = self.http.post(format!("{}/_bulk", self.elasticsearch));
        let request = request.header("content-type", "application/x-ndjson").body(lines.to_owned());
        request.send().unwrap().json().unwrap()
    }

    /// A request to Elasticsearch, with any answer.
    pub fn try_ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.elasticsearch));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().unwrap();
        let status = response.status().as_u16();
        (status, response.json().unwrap_or(Value::Null))
    }
}
