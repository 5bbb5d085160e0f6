//! The running services, and the means to trouble them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::Value;

use super::TIMEOUT;
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
