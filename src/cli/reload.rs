//! Reloads the configuration: on SIGHUP, and when the file's content changes. Keys that can be followed take effect; other
//! changed keys are logged and need a restart. An unusable configuration changes nothing. Every long-running command reloads;
//! workers follow more keys than the others.
//!
//! The files are polled, because a Kubernetes ConfigMap changes by swapping a symbolic link two folders up, and some file
//! systems send no notifications. A change counts once two polls have seen the same content, so that a half-written file is not
//! read.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{ConfigArgs, Failure, logging, signals};
use crate::geoshard::GeoshardMap;
use crate::io::maps::MapsReader;
use crate::support::config::follow::{Process, is_followed};
use crate::support::config::{Config, ConfigFinding};
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::logging::{FilterSwitch, Logging};
use crate::support::telemetry::reload::{ReloadMetrics, Reloaded};
use crate::worker::limits::{LimitsReader, WorkerLimits};
use crate::worker::refeed::DocumentSource;

/// Publishes the configuration in force.
pub(super) struct InForce {
    config: watch::Sender<Arc<Config>>,
    limits: watch::Sender<WorkerLimits>,
    source: Option<watch::Sender<DocumentSource>>,
    audit_rate: watch::Sender<NonZeroU32>,
}

/// Receivers of the configuration in force.
#[derive(Clone)]
pub(super) struct Readers {
    /// The whole configuration.
    pub config: watch::Receiver<Arc<Config>>,
    /// The worker's limits.
    pub limits: LimitsReader,
    /// The source of truth, if there is one.
    pub source: Option<watch::Receiver<DocumentSource>>,
    /// Copies and placements that an audit reads per second.
    pub audit_rate: watch::Receiver<NonZeroU32>,
}

impl InForce {
    /// The configuration at startup.
    pub(super) fn new(config: &Config) -> anyhow::Result<(Self, Readers)> {
        let source =
            config.source.kind.map(|_| DocumentSource::open(config)).transpose()?.map(watch::channel);
        let (source, source_reader) = source.unzip();
        let (limits, limits_reader) = watch::channel(WorkerLimits::of(config));
        let (audit_rate, audit_rate_reader) = watch::channel(config.audit.rate);
        let (config, config_reader) = watch::channel(Arc::new(config.clone()));
        let readers = Readers {
            config: config_reader,
            limits: limits_reader,
            source: source_reader,
            audit_rate: audit_rate_reader,
        };
        Ok((Self { config, limits, source, audit_rate }, readers))
    }

    /// Publishes a new configuration. A source is replaced only if there is one.
    fn publish(&self, config: Arc<Config>, source: Option<DocumentSource>) {
        self.limits.send_if_modified(|limits| {
            let next = WorkerLimits::of(&config);
            std::mem::replace(limits, next) != next
        });
        self.audit_rate.send_replace(config.audit.rate);
        if let (Some(sender), Some(source)) = (&self.source, source) {
            sender.send_replace(source);
        }
        self.config.send_replace(config);
    }
}

/// Follows changes of the configuration.
pub(super) struct ConfigFollower {
    /// The path of the file.
    pub args: ConfigArgs,
    /// The configuration in force.
    pub running: Config,
    /// State of the configuration file.
    pub file: WatchedFile,
    /// Switches the log filter.
    pub filter: FilterSwitch,
    /// What only a worker follows.
    pub worker: Option<OfWorker>,
    /// Counts reloads, in processes with a metrics endpoint.
    pub metrics: Option<ReloadMetrics>,
}

/// The parts of a reload that only workers have.
pub(super) struct OfWorker {
    /// Publishes the new configuration.
    pub in_force: InForce,
    /// The maps that may be configured.
    pub maps: MapsReader,
    /// State of the map file.
    pub map_file: WatchedFile,
}

/// Starts a long-running command: reads the configuration, sets up logging, and follows changes.
pub(super) async fn begin(
    args: ConfigArgs,
    metrics: Option<ReloadMetrics>,
    supervisor: &Supervisor,
) -> Result<Config, Failure> {
    // From here on SIGHUP does not end the process.
    let hang_ups = signals::hang_ups()?;
    let file = WatchedFile::new(digest(&args.config).await);
    let running = args.load()?;
    let Logging { filter, .. } = logging::start(&running)?;
    let follower = ConfigFollower { args, running: running.clone(), file, filter, worker: None, metrics };
    follower.start(hang_ups, supervisor);
    Ok(running)
}

/// A configuration that can be used.
struct Usable {
    /// The current configuration with the followed keys replaced.
    next: Config,
    source: Option<DocumentSource>,
    /// Changed keys that need a restart.
    waiting: Vec<String>,
}

impl ConfigFollower {
    /// Follows changes until the process ends.
    pub(super) fn start(self, hang_ups: Signal, supervisor: &Supervisor) {
        // Runs until the process ends.
        supervisor.spawn("configuration reload", CancellationToken::new(), self.follow(hang_ups));
    }

    async fn follow(mut self, mut hang_ups: Signal) {
        loop {
            tokio::select! {
                biased;
                heard = hang_ups.recv() => {
                    if heard.is_none() { return; }
                    self.look(true).await;
                    self.read_again();
                }
                () = next_look(self.running.reload.interval) => {
                    if self.look(false).await {
                        tracing::info!("the content of the configuration file or the map has changed");
                        self.read_again();
                    }
                }
            }
        }
    }

    /// Polls the files; whether to read them. With `in_any_case`, their content counts as read.
    async fn look(&mut self, in_any_case: bool) -> bool {
        let mut is_new = self.file.look(digest(&self.args.config).await, in_any_case);
        if let Some(worker) = &mut self.worker {
            is_new |= worker.map_file.look(digest(&self.running.geoshards.map).await, in_any_case);
        }
        is_new
    }

    fn read_again(&mut self) {
        let outcome = match self.read() {
            Ok(usable) => {
                self.follow_it(usable);
                Reloaded::Followed
            }
            Err(error) => {
                let error = Failure::from(error).to_string();
                tracing::error!(error, "invalid configuration; the current one stays in force");
                Reloaded::Refused
            }
        };
        if let Some(metrics) = &self.metrics {
            metrics.count(outcome);
        }
    }

    /// Validates everything before anything is changed.
    fn read(&self) -> anyhow::Result<Usable> {
        let (read, findings) = self.args.read()?;
        refuse_errors(&findings, "")?;
        let process = match &self.worker {
            Some(worker) => {
                refuse_map(&read.geoshards.map, &worker.maps)?;
                Process::Worker
            }
            None => Process::Other,
        };
        let mut next = self.running.following(&read, process);
        if self.filter.is_from_env() && next.log.filter != self.running.log.filter {
            tracing::warn!("log.filter has changed, but RUST_LOG overrides it");
            next.log.filter.clone_from(&self.running.log.filter);
        }
        // Keys that need a restart keep their old values: the combination may be invalid although the file is not.
        refuse_errors(&next.findings(), "together with the keys that wait for a restart: ")?;
        // Keys that only workers follow do not concern other processes.
        let waiting = next.differs_in(&read).into_iter().filter(|key| !is_followed(key)).collect();
        let source = match next.source == self.running.source {
            true => None,
            false => Some(DocumentSource::open(&next).context("the source of truth")?),
        };
        Ok(Usable { next, source, waiting })
    }

    fn follow_it(&mut self, usable: Usable) {
        let Usable { next, source, waiting } = usable;
        let followed = self.running.differs_in(&next).join(", ");
        if let Err(error) = self.filter.set(&next.log.filter) {
            // The filter was validated with the configuration.
            tracing::error!(%error, "log.filter stays as it is");
        }
        self.running = next;
        if let Some(worker) = &self.worker {
            worker.in_force.publish(Arc::new(self.running.clone()), source);
        }
        tracing::info!(followed, filter = self.running.log.filter, "configuration reloaded");
        if !waiting.is_empty() {
            let keys = waiting.join(", ");
            tracing::warn!(keys, "these keys have changed; they apply after a restart");
        }
    }
}

fn refuse_errors(findings: &[ConfigFinding], context: &str) -> anyhow::Result<()> {
    let errors: Vec<String> =
        findings.iter().filter(|finding| finding.is_error()).map(ToString::to_string).collect();
    if errors.is_empty() { Ok(()) } else { Err(anyhow!("{context}{}", errors.join("; "))) }
}

/// Refuses a map file that is not in force: maps change for all workers at once, by command, and a worker would not start with
/// it.
fn refuse_map(path: &Path, maps: &MapsReader) -> anyhow::Result<()> {
    let map = GeoshardMap::load(path).context("geoshards.map")?.fingerprint();
    let record = maps.record();
    if record.knows(&map) {
        return Ok(());
    }
    Err(anyhow!(
        "geoshards.map: {} holds the map {map}, but {} is in force: restore that one, change it by `geofold shards migrate \
         --to FILE`, which workers follow without a file, and put the new one here when the migration has ended",
        path.display(),
        record.deciding().fingerprint()
    ))
}

async fn next_look(every: Option<Duration>) {
    match every {
        Some(every) => tokio::time::sleep(every).await,
        None => std::future::pending().await,
    }
}

/// A hash of the file's content; `None` if it cannot be read.
pub(super) async fn digest(path: &Path) -> Option<u64> {
    let content = tokio::fs::read(path).await.ok()?;
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    Some(hasher.finish())
}

/// State of a polled file.
#[derive(Debug)]
pub(super) struct WatchedFile {
    /// The content last read, whether accepted or refused.
    used: Option<u64>,
    /// The content at the last poll.
    seen: Option<u64>,
}

impl WatchedFile {
    /// A file that was read with this content.
    pub(super) fn new(used: Option<u64>) -> Self {
        Self { used, seen: used }
    }

    /// Whether to read the file: its content differs from the last one read, and two polls have seen it. A missing or
    /// unreadable file changes nothing. With `in_any_case`, the content counts as read.
    fn look(&mut self, content: Option<u64>, in_any_case: bool) -> bool {
        if in_any_case {
            *self = Self::new(content);
            return true;
        }
        let has_settled = content.is_some() && content == self.seen;
        self.seen = content;
        let is_new = has_settled && content != self.used;
        if is_new {
            self.used = content;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::config::SourceKind;

    #[test]
    fn published_configuration_reaches_all_readers() {
        let mut config = Config::default();
        config.source.kind = Some(SourceKind::Http);
        config.source.url = Some("http://127.0.0.1:9/{id}".parse().unwrap());
        config.source.probe_id = Some("a".to_owned());
        let (in_force, mut readers) = InForce::new(&config).unwrap();
        let source = readers.source.as_mut().unwrap();
        config.audit.rate = NonZeroU32::MIN;
        config.batch.max_documents = 7;
        in_force.publish(Arc::new(config.clone()), Some(DocumentSource::open(&config).unwrap()));
        assert_eq!(*readers.audit_rate.borrow(), NonZeroU32::MIN);
        assert_eq!(*readers.limits.borrow(), WorkerLimits::of(&config));
        assert_eq!(**readers.config.borrow(), config);
        assert!(source.has_changed().unwrap());
        // Unchanged limits and source are not published again.
        let _ = (readers.limits.borrow_and_update(), source.borrow_and_update());
        in_force.publish(Arc::new(config), None);
        assert!(!readers.limits.has_changed().unwrap() && !source.has_changed().unwrap());
    }

    #[test]
    fn content_is_read_once_after_two_equal_polls() {
        let mut file = WatchedFile::new(Some(1));
        assert!(!file.look(Some(1), false));
        assert!(!file.look(Some(2), false), "may be half-written");
        assert!(!file.look(Some(3), false), "it was half-written");
        assert!(file.look(Some(3), false));
        assert!(!file.look(Some(3), false), "never read twice, accepted or refused");
        assert!(!file.look(Some(1), false));
        assert!(file.look(Some(1), false), "put back");
    }

    #[test]
    fn missing_file_changes_nothing() {
        let mut file = WatchedFile::new(Some(1));
        assert!(!file.look(None, false) && !file.look(None, false));
        assert!(!file.look(Some(1), false) && !file.look(Some(1), false));
        let mut file = WatchedFile::new(None);
        assert!(!file.look(Some(1), false));
        assert!(file.look(Some(1), false));
    }

    #[test]
    fn content_read_on_sighup_is_not_read_by_polling() {
        let mut file = WatchedFile::new(Some(1));
        assert!(!file.look(Some(2), false));
        assert!(file.look(Some(2), true));
        assert!(!file.look(Some(2), false) && !file.look(Some(2), false));
    }
}
