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

/// When to look again at metrics for the end of a lap. Rendering them costs what is raced its own CPU, so it is asked more often
/// only as the end comes near.
pub struct Looks {
    began: Instant,
    wanted: u64,
}

impl Looks {
    /// A lap of `wanted` records begins.
    pub fn begin(wanted: u64) -> Self {
        Self { began: Instant::now(), wanted }
    }

    /// Since the lap began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Sleeps for a quarter of what the rest of the lap takes, going by the `done` records so far; without any, as long as until now.
    pub fn pause(&self, done: u64) {
        const LEAST: Duration = Duration::from_millis(20);
        /// So much later the end of a lap may be seen, if it is sooner than expected.
        const MOST: Duration = Duration::from_millis(250);
        let left = if done == 0 { 1.0 } else { self.wanted.saturating_sub(done) as f64 / done as f64 };
        let quarter = (self.elapsed().as_secs_f64() * left / 4.0).min(MOST.as_secs_f64());
        std::thread::sleep(Duration::from_secs_f64(quarter).max(LEAST));
    }
}

/// `batch.timeout` of a worker in a race: short, since it is waited for (see [`Worker::settle_in`]). Nothing else of the
/// worker's configuration differs from the default but `elasticsearch.request_timeout`, which must be shorter, and
/// `memory.cached_placements` where there are more people than it keeps by default.
pub const DEADLINE: Duration = Duration::from_secs(12);

/// See [`DEADLINE`]: the same share of it as by default, since a write that has less time left goes alone.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// Operations that a worker sent to Elasticsearch, each attempt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Operations {
    /// Reads.
    pub gets: u64,
    /// Writes.
    pub writes: u64,
}

/// `geofold run` as a child process.
pub struct Worker {
    child: Child,
    /// Since when it has been known to own all partitions.
    assigned: Instant,
    partitions: i32,
    metrics: String,
    http: Client,
}

impl Worker {
    /// Starts it on `geofold.toml` in `dir`, and waits until it owns all partitions. The environment is passed on, so that
    /// `GEOFOLD_…` variables can change its configuration.
    pub fn start(geofold: &Path, dir: &Path, partitions: i32) -> Result<Self> {
        let listen = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = File::options().create(true).append(true).open(dir.join("worker.log"))?;
        let child = Command::new(geofold)
            .args(["run", "--config"])
            .arg(dir.join("geofold.toml"))
            .env("GEOFOLD_ADMIN__LISTEN", listen.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", geofold.display()))?;
        let http = Client::builder().timeout(Duration::from_secs(10)).build()?;
        let metrics = format!("http://{listen}/metrics");
        let mut worker = Self { child, assigned: Instant::now(), partitions, metrics, http };
        worker.wait_until_assigned()?;
        worker.assigned = Instant::now();
        Ok(worker)
    }

    /// Waits until it works as it does all day. For two batch deadlines after an assignment it writes more placements than it
    /// has to, since transactions leave gaps between records (protocol, "Records that compaction took"), and meanwhile it
    /// empties its cache once (protocol, "The owner's cache").
    pub fn settle_in(&self) {
        const MARGIN: Duration = Duration::from_secs(1);
        std::thread::sleep((DEADLINE * 2 + MARGIN).saturating_sub(self.assigned.elapsed()));
    }

    /// What it has sent to Elasticsearch so far.
    pub fn operations(&self) -> Result<Operations> {
        let text = self.metrics()?;
        let count = |kind: &str| -> Result<u64> {
            let name = format!("geofold_elasticsearch_operations_total{{kind=\"{kind}\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&name));
            Ok(value.map(str::parse).transpose()?.unwrap_or(0))
        };
        Ok(Operations { gets: count("mget")?, writes: count("bulk")? })
    }

    /// Stops it, and starts one that knows nothing.
    pub fn restart(&mut self, geofold: &Path, dir: &Path) -> Result<()> {
        self.stop()?;
        *self = Self::start(geofold, dir, self.partitions)?;
        Ok(())
    }

    /// Ends it in order.
    pub fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        let ended = self.child.wait()?;
        if !(told.success() && ended.success()) {
            bail!("the worker did not stop in order: {ended}");
        }
        Ok(())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Records that came to their end, by outcome.
    pub fn done(&self) -> Result<BTreeMap<String, u64>> {
        done_in(&self.metrics()?)
    }

    /// Waits until `count` records came to their end since `before`, and to none but these.
    pub fn wait_until_done(
        &mut self,
        count: u64,
        before: &BTreeMap<String, u64>,
        outcomes: &[&str],
    ) -> Result<()> {
        const TIMEOUT: Duration = Duration::from_secs(1_800);
        let looks = Looks::begin(count);
        loop {
            self.check_is_running()?;
            let text = self.metrics().unwrap_or_default();
            check_that_none_is_stopped(&text)?;
            let mut done = done_in(&text)?;
            for (outcome, count) in &mut done {
                *count -= before.get(outcome).copied().unwrap_or(0);
            }
            done.retain(|_, count| *count > 0);
            let sum = done.values().sum::<u64>();
            if sum >= count {
                if !done.keys().all(|outcome| outcomes.contains(&outcome.as_str())) {
                    bail!("{count} records should have been {outcomes:?}, and {done:?} came of them");
                }
                return Ok(());
            }
            if looks.elapsed() > TIMEOUT {
                bail!("the worker did not do {count} records in {TIMEOUT:?}; so far: {done:?}");
            }
            looks.pause(sum);
        }
    }

    /// Waits until no old copy of a document that moved is left.
    pub fn wait_until_swept(&mut self) -> Result<()> {
        const TIMEOUT: Duration = Duration::from_secs(60);
        let began = Instant::now();
        loop {
            self.check_is_running()?;
            let text = self.metrics()?;
            let sweeps = text.lines().filter(|line| line.starts_with("geofold_sweeps{"));
            if sweeps.clone().count() > 0 && sweeps.clone().all(|line| line.ends_with(" 0")) {
                return Ok(());
            }
            if began.elapsed() > TIMEOUT {
                bail!("old copies are left after {TIMEOUT:?}: {:?}", sweeps.collect::<Vec<_>>());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn wait_until_assigned(&mut self) -> Result<()> {
        let owns_all = format!("geofold_assigned_partitions {}", self.partitions);
        for _ in 0..600 {
            self.check_is_running()?;
            if self.metrics().is_ok_and(|text| text.lines().any(|line| line == owns_all)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("the worker does not get {} partitions", self.partitions)
    }

    fn metrics(&self) -> Result<String> {
        Ok(self.http.get(&self.metrics).send()?.text()?)
    }

    fn check_is_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the worker ended: {status}"),
            None => Ok(()),
        }
    }
}

/// Records that came to their end, by outcome, in a worker's metrics.
fn done_in(metrics: &str) -> Result<BTreeMap<String, u64>> {
    let mut done = BTreeMap::new();
    for line in
        metrics.lines().filter_map(|line| line.strip_prefix("geofold_records_processed_total{outcome=\""))
    {
        let (outcome, rest) = line.split_once('"').context("a metric's label")?;
        let (_, count) = rest.rsplit_once(' ').context("a metric's value")?;
        *done.entry(outcome.to_owned()).or_default() += count.parse::<u64>()?;
    }
    Ok(done)
}

fn check_that_none_is_stopped(metrics: &str) -> Result<()> {
    let mut stopped = metrics.lines().filter_map(|line| line.strip_prefix("geofold_stopped_partitions "));
    match stopped.next() {
        None | Some("0") => Ok(()),
        Some(stopped) => bail!("the worker has stopped {stopped} of its partitions: see its log"),
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
