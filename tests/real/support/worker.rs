//! A worker as a real child process.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::wait::{TIMEOUT, wait_at_most, wait_while_running};

/// The binary under test.
pub const GEOFOLD: &str = env!("CARGO_BIN_EXE_geofold");

/// The binary that workers run: [`GEOFOLD`], or an optimised one of the same commit where figures are to be had
/// (`GEOFOLD_WORKER_BINARY=target/release/geofold`).
fn worker_binary() -> OsString {
    std::env::var_os("GEOFOLD_WORKER_BINARY").unwrap_or_else(|| GEOFOLD.into())
}

/// A running `geofold run`. Killed on drop.
pub struct Worker {
    child: Child,
    log: PathBuf,
    admin: String,
    http: reqwest::blocking::Client,
}

impl Worker {
    /// Starts a worker whose admin server listens at `admin_port`, with more arguments and environment variables.
    pub fn start(config: &Path, log: PathBuf, admin_port: u16, args: &[&str], env: &[(&str, &str)]) -> Self {
        let file = File::create(&log).unwrap();
        let child = Command::new(worker_binary())
            .args(["run", "--config"])
            .arg(config)
            .args(args)
            .env("GEOFOLD_ADMIN__LISTEN", format!("127.0.0.1:{admin_port}"))
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let http = reqwest::blocking::Client::builder().timeout(Duration::from_secs(120)).build().unwrap();
        Self { child, log, admin: format!("http://127.0.0.1:{admin_port}"), http }
    }

    /// SIGKILL: no drain, no goodbye.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal by name, for example `TERM`, `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success(), "kill -{name}");
    }

    /// SIGTERM, then waits until it has drained and left.
    pub fn stop(self) {
        self.log_once_stopped();
    }

    /// The same; gives everything it has printed.
    pub fn log_once_stopped(self) -> String {
        self.signal("TERM");
        self.log_once_ended()
    }

    /// Waits until it has drained and left, having been told to; gives everything it has printed.
    pub fn log_once_ended(mut self) -> String {
        let status = self.wait("a drained worker", TIMEOUT);
        let log = self.log();
        assert!(status.success(), "{status}\n{log}");
        log
    }

    /// Waits until the process has ended.
    pub fn wait(&mut self, what: &str, patience: Duration) -> ExitStatus {
        wait_at_most(what, patience, || self.child.try_wait().unwrap())
    }

    /// Whether the process is running.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Everything it has printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Where its admin server listens: host and port.
    pub fn address(&self) -> &str {
        self.admin.trim_start_matches("http://")
    }

    /// Status of a path of its admin server; `None` while it does not answer.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        let response = self.http.get(format!("{}{path}", self.admin)).send().ok()?;
        Some((response.status().as_u16(), response.text().ok()?))
    }

    /// Why it is not ready, from `/readyz`; empty if it is, or if it does not answer.
    pub fn not_ready_because(&self) -> String {
        self.get("/readyz")
            .filter(|(status, _)| *status == 503)
            .map(|(_, reasons)| reasons)
            .unwrap_or_default()
    }

    /// Waits until `/readyz` says ready.
    pub fn wait_until_ready(&self) {
        wait_while_running(&self.child, "a ready worker", || {
            self.get("/readyz").filter(|(status, _)| *status == 200)
        });
    }

    /// Waits until it owns this many partitions.
    pub fn wait_until_assigned(&self, partitions: i32) {
        wait_while_running(&self.child, "assigned partitions", || {
            (self.metric("geofold_assigned_partitions", "") == f64::from(partitions)).then_some(())
        });
    }

    /// The sum of a metric over all its series whose labels contain `labels`.
    pub fn metric(&self, name: &str, labels: &str) -> f64 {
        let Some((200, text)) = self.get("/metrics") else { return f64::NAN };
        text.lines()
            .filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '))
            .filter(|(series, _)| (series.is_empty() || series.starts_with('{')) && series.contains(labels))
            .map(|(_, value)| value.parse::<f64>().unwrap())
            .sum()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(60).collect();
            eprintln!("--- the last lines of {}:", self.log.display());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
