//! The running services, and the means to trouble them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

/// Tests that stop a service hold this, and so does everybody else while it needs the services whole.
static SERVICES: Mutex<()> = Mutex::new(());

/// Kafka and Elasticsearch as `dev/stack` started them.
pub struct Stack {
    pub kafka: String,
    pub elasticsearch: String,
    dir: PathBuf,
    http: reqwest::blocking::Client,
    _alone: MutexGuard<'static, ()>,
}

impl Stack {
    /// The stack that the environment names. Tests take turns.
    pub fn get() -> Self {
        let from_env = |name: &str| {
            std::env::var(name).unwrap_or_else(|_| {
                panic!("{name} is not set: run dev/test, or: dev/stack up && eval \"$(dev/stack env)\"")
            })
        };
        Self {
            kafka: from_env("GEOFOLD_TEST_KAFKA"),
            elasticsearch: from_env("GEOFOLD_TEST_ELASTICSEARCH"),
            dir: from_env("GEOFOLD_STACK_DIR").into(),
            http: reqwest::blocking::Client::builder().timeout(Duration::from_secs(30)).build().unwrap(),
            _alone: SERVICES.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// `dev/stack COMMAND NAME`, for example `restart kafka`.
    pub fn tell(&self, command: &str, service: &str) {
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
    pub fn dir(&self) -> &std::path::Path {
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

    /// A request to Elasticsearch, whatever it answers.
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
