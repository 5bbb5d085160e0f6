//! The embedded broker, the stand-in for Elasticsearch, and a real worker process on them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use geofold::testkit::embedded::broker::EmbeddedBroker;
use geofold::testkit::embedded::elasticsearch::{FaultHandle, Standin, StandinOptions};
use rdkafka::ClientConfig;
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;

pub use crate::wait::wait_for;
use crate::wait::{TIMEOUT, wait_while_running};

pub const TOPIC: &str = "t";
pub const MAP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");
pub const GEOFOLD: &str = env!("CARGO_BIN_EXE_geofold");

/// Servers, with a topic of one partition and all indices.
pub struct Standins {
    broker: EmbeddedBroker,
    standin: Standin,
    pub folder: tempfile::TempDir,
    _runtime: Runtime,
}

impl Standins {
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// With indices for a configuration that also says this.
    pub fn start_with(more: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let standin = runtime.block_on(Standin::start(StandinOptions::default())).unwrap();
        let broker = EmbeddedBroker::start().unwrap();
        broker.set_initial_rebalance_delay(Duration::ZERO);
        broker.create_topic(TOPIC, 1).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let world = Self { broker, standin, folder, _runtime: runtime };
        let config = world.write("indices.toml", more);
        let created =
            Command::new(GEOFOLD).args(["shards", "create", "--config"]).arg(&config).output().unwrap();
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        world
    }

    /// The address of Elasticsearch.
    pub fn elasticsearch(&self) -> String {
        self.standin.url()
    }

    /// Trouble for Elasticsearch.
    pub fn faults(&self) -> &FaultHandle {
        self.standin.faults()
    }

    /// One more topic, of one partition.
    pub fn create_topic(&self, name: &str) {
        self.broker.create_topic(name, 1).unwrap();
    }

    /// What a configuration for these servers says.
    pub fn config(&self, more: &str) -> String {
        let (broker, url) = (self.broker.address(), self.standin.url());
        format!(
            "[kafka]\nbrokers = [{broker:?}]\ntopic = {TOPIC:?}\n[elasticsearch]\nurls = [{url:?}]\n[geoshards]\n\
             map = {MAP:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n[commit]\ninterval = \"200ms\"\n{more}"
        )
    }

    pub fn write(&self, name: &str, more: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, self.config(more)).unwrap();
        path
    }

    /// `geofold` with these arguments, then the configuration.
    pub fn geofold(&self, config: &Path, arguments: &[&str]) -> Said {
        let output = Command::new(GEOFOLD).args(arguments).arg("--config").arg(config).output().unwrap();
        Said::of(&output)
    }

    /// The brokers' address.
    pub fn brokers(&self) -> &str {
        self.broker.address()
    }

    /// Produces one record.
    pub fn produce_record(&self, key: &str, value: Option<&str>, headers: OwnedHeaders) {
        let producer: BaseProducer =
            ClientConfig::new().set("bootstrap.servers", self.broker.address()).create().unwrap();
        let mut record: BaseRecord<'_, str, str> =
            BaseRecord::to(TOPIC).key(key).partition(0).headers(headers);
        record.payload = value;
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(TIMEOUT).unwrap();
    }

    /// Produces one document for each id, all in Berlin, with these headers.
    pub fn produce(&self, ids: impl IntoIterator<Item = (String, OwnedHeaders)>) {
        let producer: BaseProducer =
            ClientConfig::new().set("bootstrap.servers", self.broker.address()).create().unwrap();
        for (id, headers) in ids {
            let record: BaseRecord<'_, str, str> = BaseRecord::to(TOPIC)
                .key(id.as_str())
                .partition(0)
                .headers(headers)
                .payload(r#"{"location":{"lat":52.52,"lon":13.4}}"#);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(TIMEOUT).unwrap();
    }
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn of(output: &std::process::Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Standard output as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// `geofold run`, or another command that runs on; killed on drop.
pub struct Worker {
    child: Child,
    log: PathBuf,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    /// A worker whose HTTP server listens.
    pub fn start(folder: &Path, config: &Path, env: &[(&str, &str)]) -> Self {
        let worker = Self::start_command(&["run"], folder, config, env);
        worker.wait_for("admin server listens");
        worker
    }

    /// A process that runs until stopped.
    pub fn start_command(arguments: &[&str], folder: &Path, config: &Path, env: &[(&str, &str)]) -> Self {
        let log = folder.join("log");
        let child = Command::new(GEOFOLD)
            .args(arguments)
            .arg("--config")
            .arg(config)
            .env_remove("RUST_LOG")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, and waits until it ended with success.
    pub fn stop(self) -> String {
        self.stop_with(0)
    }

    /// The same with this exit code.
    pub fn stop_with(self, code: i32) -> String {
        self.signal(Signal::TERM);
        self.ended(code)
    }

    /// Waits until it has ended by itself, with this exit code.
    pub fn ended(mut self, code: i32) -> String {
        let status = wait_for("the end of the worker", || self.child.try_wait().unwrap());
        let log = fs::read_to_string(&self.log).unwrap();
        assert_eq!(status.code(), Some(code), "{status}\n{log}");
        log
    }

    /// Waits until the log says so, and gives all of it.
    pub fn wait_for(&self, text: &str) -> String {
        wait_while_running(&self.child, text, || {
            Some(fs::read_to_string(&self.log).unwrap()).filter(|log| log.contains(text))
        })
    }

    /// Where its HTTP server listens.
    pub fn address(&self) -> String {
        let log = self.wait_for("admin server listens");
        let (_, rest) = log.split_once("admin server listens address=").unwrap();
        rest.split_whitespace().next().unwrap().to_owned()
    }

    /// What its HTTP server answers.
    pub fn get(&self, path: &str) -> String {
        let address = self.address();
        wait_while_running(&self.child, path, || {
            reqwest::blocking::get(format!("http://{address}{path}"))
                .ok()?
                .error_for_status()
                .ok()?
                .text()
                .ok()
        })
    }

    /// The value of a series.
    pub fn metric(&self, series: &str) -> f64 {
        self.series(series).unwrap_or_else(|| panic!("there is no {series}"))
    }

    fn series(&self, series: &str) -> Option<f64> {
        let text = self.get("/metrics");
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// Waits until a series has this value.
    pub fn wait_for_metric(&self, series: &str, value: f64) {
        wait_for(&format!("{series} {value}"), || (self.series(series)? == value).then_some(()));
    }

    /// A limit in force, as the status page shows it.
    pub fn limit(&self, key: &str) -> String {
        let status: serde_json::Value = serde_json::from_str(&self.get("/status.json")).unwrap();
        let limits = status["limits"].as_array().unwrap();
        let limit = limits.iter().find(|limit| limit["key"] == key);
        limit.unwrap_or_else(|| panic!("{key} is no limit"))["value"].as_str().unwrap().to_owned()
    }
}
