//! Workers as child processes, and their admin servers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::testkit::ports::free_port;

/// How long a worker may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A `geofold run` that is killed when this is dropped, and that ends if this process does.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    child: Child,
    port: u16,
    log: PathBuf,
    http: reqwest::Client,
    /// Counters at the last poll.
    last: WorkerCounters,
    is_frozen: bool,
}

/// Sums of a worker's metrics over all label values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct WorkerCounters {
    /// Records read.
    pub records: u64,
    /// Records that went into a fold with a newer one.
    pub folded: u64,
    /// Documents that changed geoshard.
    pub moves: u64,
    /// Items sent to Elasticsearch again.
    pub retries: u64,
    /// Partitions assigned now.
    pub assigned: u64,
    /// Old copies of moved documents that are still to be deleted.
    pub sweeps: u64,
    /// The oldest dirty document's age, in seconds.
    pub oldest_dirty: f64,
}

impl WorkerCounters {
    /// Both together; of the age, the higher.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            records: self.records + other.records,
            folded: self.folded + other.folded,
            moves: self.moves + other.moves,
            retries: self.retries + other.retries,
            assigned: self.assigned + other.assigned,
            sweeps: self.sweeps + other.sweeps,
            oldest_dirty: self.oldest_dirty.max(other.oldest_dirty),
        }
    }

    fn from_text(text: &str) -> Self {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        let mut oldest_dirty: f64 = 0.0;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            match name {
                "geofold_records_processed_total" if !labels.contains("\"folded\"") => {}
                "geofold_oldest_dirty_seconds" => {
                    oldest_dirty = oldest_dirty.max(value.parse().unwrap_or_default());
                }
                // Counters are integers; other values are not needed.
                _ => *sums.entry(name).or_default() += value.parse::<u64>().unwrap_or_default(),
            }
        }
        let sum = |name| sums.get(name).copied().unwrap_or_default();
        Self {
            records: sum("geofold_records_total"),
            folded: sum("geofold_records_processed_total"),
            moves: sum("geofold_moves_total"),
            retries: sum("geofold_elasticsearch_retries_total"),
            assigned: sum("geofold_assigned_partitions"),
            sweeps: sum("geofold_sweeps"),
            oldest_dirty,
        }
    }
}

/// Peak resident memory of a process in bytes (Linux: `VmHWM` of /proc/PID/status); 0 if unknown.
pub(super) fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    kibibytes.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or_default() << 10
}

/// A port of loopback for an admin server: `wanted`, or any that is free if that is 0.
///
/// # Errors
/// If it is taken.
pub(super) fn admin_port(wanted: u16) -> io::Result<u16> {
    match wanted {
        0 => free_port(),
        wanted => TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)).map(|_| wanted),
    }
}

impl WorkerProcess {
    /// Starts this very program as a worker, with a log file beside its configuration.
    pub(super) fn start(config: &Path, name: &str, port: u16, arguments: &[String]) -> io::Result<Self> {
        let log = config.with_file_name(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        let child = Command::new(std::env::current_exe()?)
            // Ctrl-C on the terminal is for the demo, which tells its workers.
            .process_group(0)
            .args(["run", "--with-parent", &std::process::id().to_string()])
            .args(arguments)
            .arg("--config")
            .arg(config)
            .env("GEOFOLD_ADMIN__LISTEN", format!("127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        let (http, last) = (reqwest::Client::new(), WorkerCounters::default());
        Ok(Self { child, port, log, http, last, is_frozen: false })
    }

    /// Address of its status page.
    pub(super) fn page(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Whether the worker is ready and owns partitions.
    pub(super) async fn is_ready(&mut self) -> bool {
        self.get("readyz").await.is_some() && self.counters().await.assigned > 0
    }

    /// Its counters now; as they were last if it does not answer.
    pub(super) async fn counters(&mut self) -> WorkerCounters {
        if !self.is_frozen
            && let Some(text) = self.get("metrics").await
        {
            self.last = WorkerCounters::from_text(&text);
        }
        self.last
    }

    /// Counters at the last poll.
    pub(super) fn last_counters(&self) -> WorkerCounters {
        self.last
    }

    /// Its highest resident memory so far, in bytes.
    pub(super) fn peak_memory(&self) -> u64 {
        peak_memory(self.child.id())
    }

    /// SIGSTOP.
    pub(super) fn freeze(&mut self) -> io::Result<()> {
        self.is_frozen = true;
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub(super) fn thaw(&mut self) -> io::Result<()> {
        self.is_frozen = false;
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            Some(pid) => Ok(kill_process(pid, signal)?),
            None => Err(io::Error::other("a process without a number")),
        }
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// SIGTERM: drains and leaves. Returns whether it exited with success.
    pub(super) async fn stop(mut self) -> io::Result<bool> {
        self.signal(Signal::TERM)?;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether it runs.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The last lines of its log.
    pub(super) fn log_tail(&self) -> String {
        const LINES: usize = 15;
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    async fn get(&self, path: &str) -> Option<String> {
        let request = self.http.get(format!("{}{path}", self.page())).timeout(ANSWER_TIMEOUT);
        request.send().await.ok()?.error_for_status().ok()?.text().await.ok()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_this_process_can_be_told() {
        assert!((1 << 20..1 << 40).contains(&peak_memory(std::process::id())));
        assert_eq!(peak_memory(0), 0);
    }

    #[test]
    fn counters_are_sums_over_their_labels() {
        let text = "# HELP x y\n\
            geofold_records_total{partition=\"0\"} 5\n\
            geofold_records_total{partition=\"1\"} 7\n\
            geofold_records_processed_total{outcome=\"folded\",partition=\"1\"} 3\n\
            geofold_records_processed_total{outcome=\"indexed\",partition=\"1\"} 4\n\
            geofold_oldest_dirty_seconds{partition=\"0\"} 0.5\n\
            geofold_oldest_dirty_seconds{partition=\"1\"} 0.25\n\
            geofold_sweeps{partition=\"0\"} 4\n\
            geofold_moves_total 2\n";
        let counters = WorkerCounters::from_text(text);
        assert_eq!((counters.records, counters.folded, counters.moves), (12, 3, 2));
        assert_eq!((counters.sweeps, counters.oldest_dirty), (4, 0.5));
    }
}
