//! The configuration is read again: at SIGHUP, and when the file has another content. What can be followed is; what else has
//! changed is named, and waits for a restart. One that cannot be used changes nothing. Every command that runs on does so;
//! workers follow more than the others.
//!
//! The file is looked at every so often rather than by the system's notices: a Kubernetes ConfigMap is changed by swapping a
//! symbolic link two folders up, and there are file systems that notify nobody. What counts is its content, which has to be
//! the same in two looks: a file that is just being written is not taken for one that lacks its second half.

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
use crate::support::config::{Config, Finding};
use crate::support::supervisor::Supervisor;
use crate::support::telemetry::logging::{FilterSwitch, Logging};
use crate::support::telemetry::reload::{ReloadMetrics, Reloaded};
use crate::worker::limits::{Limits, LimitsReader};
use crate::worker::refeed::Source;

/// What is in force, for those who act by it.
pub struct InForce {
    config: watch::Sender<Arc<Config>>,
    limits: watch::Sender<Limits>,
    source: Option<watch::Sender<Source>>,
    audit_rate: watch::Sender<NonZeroU32>,
}

/// Tells what is in force.
#[derive(Clone)]
pub struct Readers {
    /// All of it.
    pub config: watch::Receiver<Arc<Config>>,
    /// What workers are bounded by.
    pub limits: LimitsReader,
    /// The source of truth, if there is one.
    pub source: Option<watch::Receiver<Source>>,
    /// Copies and placements that an audit reads per second.
    pub audit_rate: watch::Receiver<NonZeroU32>,
}

impl InForce {
    /// As a worker begins.
    pub fn new(config: &Config) -> anyhow::Result<(Self, Readers)> {
        let source = config.source.kind.map(|_| Source::open(config)).transpose()?.map(watch::channel);
        let (source, source_reader) = source.unzip();
        let (limits, limits_reader) = watch::channel(Limits::of(config));
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

    /// From now on this is in force. The source is another one where there is one.
    fn publish(&self, config: Arc<Config>, source: Option<Source>) {
        self.limits.send_if_modified(|limits| {
            let next = Limits::of(&config);
            std::mem::replace(limits, next) != next
        });
        self.audit_rate.send_replace(config.audit.rate);
        if let (Some(sender), Some(source)) = (&self.source, source) {
            sender.send_replace(source);
        }
        self.config.send_replace(config);
    }
}

/// Whoever follows the configuration.
pub struct Follower {
    /// Where it is.
    pub args: ConfigArgs,
    /// What the process was started with.
    pub running: Config,
    /// What the file held then.
    pub file: Watched,
    /// Where the log's filter is set.
    pub filter: FilterSwitch,
    /// What a worker follows besides.
    pub worker: Option<OfWorker>,
    /// Where it is counted, if anybody can see that.
    pub metrics: Option<ReloadMetrics>,
}

/// What is asked of a configuration that a worker reads again, and who acts by it.
pub struct OfWorker {
    /// Where it is published.
    pub in_force: InForce,
    /// Which maps may be configured.
    pub maps: MapsReader,
    /// What the file of the map held at the start.
    pub map_file: Watched,
}

/// Begins a command that follows what all do: reads the configuration, sets the log up, and follows from then on.
pub async fn begin(
    args: ConfigArgs,
    metrics: Option<ReloadMetrics>,
    supervisor: &Supervisor,
) -> Result<Config, Failure> {
    // From here on it is no reason to end.
    let hang_ups = signals::hang_ups()?;
    let file = Watched::new(digest(&args.config).await);
    let running = args.load()?;
    let Logging { filter, .. } = logging::start(&running)?;
    let follower = Follower { args, running: running.clone(), file, filter, worker: None, metrics };
    follower.start(hang_ups, supervisor);
    Ok(running)
}

/// A configuration that can be used.
struct Usable {
    /// As far as it is followed; the rest is as it was.
    next: Config,
    source: Option<Source>,
    /// The keys that wait for a restart.
    waiting: Vec<String>,
}

impl Follower {
    /// Follows for as long as the process runs.
    pub fn start(self, hang_ups: Signal, supervisor: &Supervisor) {
        // Nothing tells it to end.
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
                () = next_look(self.running.reload.watch) => {
                    if self.look(false).await {
                        tracing::info!("the content of the configuration file or the map has changed");
                        self.read_again();
                    }
                }
            }
        }
    }

    /// Looks at the files. Whether they should be read; if they are read in any case, their content is what is used.
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

    /// Nothing is changed before all of it is known to be usable.
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
        // What waits for a restart is still as it was: together they may be what no file says.
        refuse_errors(&next.findings(), "together with the keys that wait for a restart: ")?;
        // What workers alone follow is of no matter to the others.
        let waiting = next.differs_in(&read).into_iter().filter(|key| !is_followed(key)).collect();
        let source = match next.source == self.running.source {
            true => None,
            false => Some(Source::open(&next).context("the source of truth")?),
        };
        Ok(Usable { next, source, waiting })
    }

    fn follow_it(&mut self, usable: Usable) {
        let Usable { next, source, waiting } = usable;
        let followed = self.running.differs_in(&next).join(", ");
        if let Err(error) = self.filter.set(&next.log.filter) {
            // The rules of the configuration have tried it.
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

fn refuse_errors(findings: &[Finding], context: &str) -> anyhow::Result<()> {
    let errors: Vec<String> =
        findings.iter().filter(|finding| finding.is_error()).map(ToString::to_string).collect();
    if errors.is_empty() { Ok(()) } else { Err(anyhow!("{context}{}", errors.join("; "))) }
}

/// A map is changed for all workers at once, by a command: a file with another one than those in force is a mistake, and a
/// worker would not start with it.
fn refuse_map(path: &Path, maps: &MapsReader) -> anyhow::Result<()> {
    let map = GeoshardMap::load(path).context("geoshards.map")?.fingerprint();
    let record = maps.record();
    if record.knows(&map) {
        return Ok(());
    }
    Err(anyhow!(
        "geoshards.map: {} holds the map {map}, and {} is in force: put that one back, change it by `geofold shards migrate \
         --to FILE`, which workers follow without a file, and put the new one here when that has ended",
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

/// The content of a file, in short; `None` while it cannot be read.
pub async fn digest(path: &Path) -> Option<u64> {
    let content = tokio::fs::read(path).await.ok()?;
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    Some(hasher.finish())
}

/// What is known of a file that is looked at.
#[derive(Debug)]
pub struct Watched {
    /// The content that was used last, or refused.
    used: Option<u64>,
    /// The content at the last look.
    seen: Option<u64>,
}

impl Watched {
    /// Used with this content.
    pub fn new(used: Option<u64>) -> Self {
        Self { used, seen: used }
    }

    /// Whether it should be read: it has another content than what was used, and had it at the last look already. A file that
    /// is gone, or cannot be read for now, changes nothing. If it is read in any case, this is what is used.
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
    fn what_is_published_reaches_whoever_acts_by_it() {
        let mut config = Config::default();
        config.source.kind = Some(SourceKind::Http);
        config.source.url = Some("http://127.0.0.1:9/{id}".parse().unwrap());
        config.source.probe_id = Some("a".to_owned());
        let (in_force, mut readers) = InForce::new(&config).unwrap();
        let source = readers.source.as_mut().unwrap();
        config.audit.rate = NonZeroU32::MIN;
        config.batch.max_documents = 7;
        in_force.publish(Arc::new(config.clone()), Some(Source::open(&config).unwrap()));
        assert_eq!(*readers.audit_rate.borrow(), NonZeroU32::MIN);
        assert_eq!(*readers.limits.borrow(), Limits::of(&config));
        assert_eq!(**readers.config.borrow(), config);
        assert!(source.has_changed().unwrap());
        // The limits of nothing have changed, so nobody has to look at them.
        let _ = (readers.limits.borrow_and_update(), source.borrow_and_update());
        in_force.publish(Arc::new(config), None);
        assert!(!readers.limits.has_changed().unwrap() && !source.has_changed().unwrap());
    }

    #[test]
    fn a_new_content_is_read_once_when_it_was_seen_twice() {
        let mut file = Watched::new(Some(1));
        assert!(!file.look(Some(1), false));
        assert!(!file.look(Some(2), false), "it may be half of it");
        assert!(!file.look(Some(3), false), "so it was");
        assert!(file.look(Some(3), false));
        assert!(!file.look(Some(3), false), "used, or refused: either way it is not read again");
        assert!(!file.look(Some(1), false));
        assert!(file.look(Some(1), false), "put back");
    }

    #[test]
    fn a_file_that_is_not_there_for_a_moment_changes_nothing() {
        let mut file = Watched::new(Some(1));
        assert!(!file.look(None, false) && !file.look(None, false));
        assert!(!file.look(Some(1), false) && !file.look(Some(1), false));
        let mut file = Watched::new(None);
        assert!(!file.look(Some(1), false));
        assert!(file.look(Some(1), false));
    }

    #[test]
    fn what_a_hang_up_has_read_is_not_read_again_by_looking() {
        let mut file = Watched::new(Some(1));
        assert!(!file.look(Some(2), false));
        assert!(file.look(Some(2), true));
        assert!(!file.look(Some(2), false) && !file.look(Some(2), false));
    }
}
