//! What a process costs, from `/proc`; and the worker under test as such a process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use reqwest::blocking::Client;

/// Seconds of CPU that a process has used, in user mode and in the kernel for it.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    /// `sysconf(_SC_CLK_TCK)` is 100 on every Linux.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("reading /proc/PID/stat")?;
    // The name, in parentheses, may have spaces in it.
    let (_, fields) = stat.rsplit_once(") ").context("/proc/PID/stat has another form")?;
    let ticks = |field: usize| fields.split(' ').nth(field).and_then(|ticks| ticks.parse::<f64>().ok());
    Ok((ticks(11).context("utime")? + ticks(12).context("stime")?) / TICKS_PER_SECOND)
}

/// The most memory that a process has held, in MiB.
pub fn peak_mebibytes(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("reading /proc/PID/status")?;
    let kibibytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kibibytes.context("/proc/PID/status has no VmHWM")? / 1024.0)
}

/// `geofold run` as a child process.
pub struct Worker {
    child: Child,
    metrics: String,
    http: Client,
}

impl Worker {
    /// Starts it. The environment is passed on, so that `GEOFOLD_…` variables can change its configuration.
    pub fn start(geofold: &Path, config: &Path, log: &Path) -> Result<Self> {
        let listen = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = File::create(log)?;
        let child = Command::new(geofold)
            .args(["run", "--config"])
            .arg(config)
            .env("GEOFOLD_ADMIN__LISTEN", listen.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", geofold.display()))?;
        let http = Client::builder().timeout(Duration::from_secs(10)).build()?;
        Ok(Self { child, metrics: format!("http://{listen}/metrics"), http })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Records that came to their end, by outcome.
    pub fn done(&self) -> Result<BTreeMap<String, u64>> {
        let text = self.http.get(&self.metrics).send()?.text()?;
        let mut done = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("geofold_records_done_total{outcome=\""))
        {
            let (outcome, rest) = line.split_once('"').context("a metric's label")?;
            let (_, count) = rest.rsplit_once(' ').context("a metric's value")?;
            *done.entry(outcome.to_owned()).or_default() += count.parse::<u64>()?;
        }
        Ok(done)
    }

    /// Waits until `count` records were written since `before`, and nothing else happened to any.
    pub fn wait_until_indexed(&mut self, count: u64, before: &BTreeMap<String, u64>) -> Result<()> {
        /// Often enough to time a round of seconds, and seldom enough to cost nothing.
        const INTERVAL: Duration = Duration::from_millis(50);
        const PATIENCE: Duration = Duration::from_secs(600);
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the worker ended: {status}");
            }
            let mut done = self.done().unwrap_or_default();
            for (outcome, count) in &mut done {
                *count -= before.get(outcome).copied().unwrap_or(0);
            }
            if done.values().sum::<u64>() >= count {
                done.retain(|_, count| *count > 0);
                if done != BTreeMap::from([("indexed".to_owned(), count)]) {
                    bail!("{count} records should have been written, and {done:?} came of them");
                }
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                bail!("the worker did not write {count} records in {PATIENCE:?}; so far: {done:?}");
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Waits until it serves metrics.
    pub fn wait_until_up(&mut self) -> Result<()> {
        for _ in 0..300 {
            if let Some(status) = self.child.try_wait()? {
                bail!("the worker ended: {status}");
            }
            if self.done().is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("the worker serves no metrics")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
