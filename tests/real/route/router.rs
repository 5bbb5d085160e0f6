//! A router as a child process, and HTTP requests to it.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use geofold::testkit::ports::free_port;
use reqwest::blocking::Client;
use serde_json::{Value, json};

use crate::support::{TIMEOUT, World, wait_at_most};

/// Searches on a busy machine may take long; a hang is a failure.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// The binary that routes: the one under test, or an optimized one of the same commit (`GEOFOLD_WORKER_BINARY`).
fn binary() -> std::ffi::OsString {
    std::env::var_os("GEOFOLD_WORKER_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_geofold").into())
}

/// One answer over HTTP.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
    /// `x-geofold-geoshards-asked` and `x-geofold-geoshards-total`.
    pub geoshards: Option<(u64, u64)>,
}

/// Where searches are sent: a router, or Elasticsearch with a pattern of indices.
#[derive(Debug, Clone)]
pub struct Target {
    url: String,
    index: String,
    http: Client,
}

impl Target {
    pub fn new(url: &str, index: &str) -> Self {
        let http = Client::builder().timeout(REQUEST_TIMEOUT).build().unwrap();
        Self { url: url.to_owned(), index: index.to_owned(), http }
    }

    /// One index, or several, of the world's Elasticsearch: `{name}{suffix}`.
    pub fn indices(world: &World, suffix: &str) -> Self {
        Self::new(&world.stack.elasticsearch, &format!("{}{suffix}", world.name))
    }

    pub fn index(&self) -> &str {
        &self.index
    }

    pub fn search(&self, body: &Value) -> Answer {
        self.try_search("", body).unwrap()
    }

    pub fn count(&self, body: &Value) -> Answer {
        self.post(&format!("/{}/_count", self.index), body.to_string(), "application/json").unwrap()
    }

    /// A search that may find no listener.
    pub fn try_search(&self, parameters: &str, body: &Value) -> reqwest::Result<Answer> {
        let path = format!("/{}/_search{parameters}", self.index);
        self.post(&path, body.to_string(), "application/json")
    }

    /// The answers of one `_msearch`, each by the statistics of all documents or not; the index stands in each header or, if
    /// `is_in_path`, in the path.
    pub fn msearch(&self, searches: &[(&Value, bool)], is_in_path: bool) -> Vec<Value> {
        let line = |&(body, is_global): &(&Value, bool)| {
            let mut header = if is_in_path { json!({}) } else { json!({"index": self.index}) };
            if is_global {
                header["search_type"] = json!("dfs_query_then_fetch");
            }
            format!("{header}\n{body}\n")
        };
        let lines: String = searches.iter().map(line).collect();
        let path = if is_in_path { format!("/{}/_msearch", self.index) } else { "/_msearch".to_owned() };
        let answer = self.post(&path, lines, "application/x-ndjson").unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let answers = answer.body["responses"].as_array().unwrap().clone();
        assert_eq!(answers.len(), searches.len(), "{path}: {}", answer.body);
        answers
    }

    fn post(&self, path: &str, body: String, kind: &str) -> reqwest::Result<Answer> {
        let request = self.http.post(format!("{}{path}", self.url)).header("content-type", kind).body(body);
        let response = request.send()?;
        let count = |name: &str| response.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
        let geoshards = count("x-geofold-geoshards-asked").zip(count("x-geofold-geoshards-total"));
        let status = response.status().as_u16();
        // A body that is cut off is an error of the transport; one that is not JSON is judged by who asked.
        let text = response.text()?;
        Ok(Answer { status, body: serde_json::from_str(&text).unwrap_or(Value::String(text)), geoshards })
    }
}

/// A router for a world, and where to send searches: to it, or past it if `GEOFOLD_ROUTE_TARGET=elasticsearch` says so.
pub fn routed(world: &World) -> (Option<Router>, Target) {
    if std::env::var("GEOFOLD_ROUTE_TARGET").is_ok_and(|target| target == "elasticsearch") {
        return (None, Target::indices(world, "-s*"));
    }
    let router = Router::start(world);
    let target = router.target(world);
    (Some(router), target)
}

/// A running `geofold route`. Killed on drop.
pub struct Router {
    child: Mutex<Child>,
    config: PathBuf,
    log: PathBuf,
    port: u16,
}

impl Router {
    /// Starts one for a world, and waits until it is ready.
    pub fn start(world: &World) -> Self {
        let port = free_port().unwrap();
        let (config, log) = (world.config.clone(), world.dir().join("router.log"));
        let child = Mutex::new(spawn(&config, &log, port));
        let router = Self { child, config, log, port };
        router.wait_until_ready();
        router
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn target(&self, world: &World) -> Target {
        Target::new(&self.url(), &world.name)
    }

    pub fn wait_until_ready(&self) {
        let http = Client::builder().timeout(Duration::from_secs(120)).build().unwrap();
        wait_at_most("a ready router", TIMEOUT, || {
            if let Some(status) = self.child.lock().unwrap().try_wait().unwrap() {
                panic!("the router ended: {status}\n{}", self.log());
            }
            let response = http.get(format!("{}/readyz", self.url())).send().ok()?;
            response.status().is_success().then_some(())
        });
    }

    /// SIGKILL.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts it again at the same port, after [`Router::kill`].
    pub fn restart(&self) {
        *self.child.lock().unwrap() = spawn(&self.config, &self.log, self.port);
        self.wait_until_ready();
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

fn spawn(config: &std::path::Path, log: &std::path::Path, port: u16) -> Child {
    let log = File::options().create(true).append(true).open(log).unwrap();
    Command::new(binary())
        .args(["route", "--listen", &format!("127.0.0.1:{port}"), "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

impl Drop for Router {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- the last lines of {}:", self.log.display());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        if let Ok(child) = self.child.get_mut() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
