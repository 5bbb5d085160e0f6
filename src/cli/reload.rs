//! The configuration is read again: at SIGHUP, and when the file has another content. What can be followed is; what else has
//! changed is named, and waits for a restart. One that can not be used changes nothing.
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

use super::ConfigArgs;
use crate::config::{Config, Finding};
use crate::refeed::Source;
use crate::telemetry::Metrics;
use crate::telemetry::logging::FilterSwitch;
use crate::telemetry::reload::Reloaded;
use crate::worker::limits::{Limits, LimitsReader};

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
    /// As the worker begins.
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
    /// What the worker was started with.
    pub running: Config,
    /// What the file held then.
    pub file: Watched,
    /// Where the log's filter is set.
    pub filter: FilterSwitch,
    /// Where it is published.
    pub in_force: InForce,
    /// Where it is counted.
    pub metrics: Arc<Metrics>,
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
    pub async fn follow(mut self, mut hang_ups: Signal) {
        loop {
            tokio::select! {
                biased;
                heard = hang_ups.recv() => {
                    if heard.is_none() { return; }
                    self.file.is_used(digest(&self.args.config).await);
                    self.read_again();
                }
                () = next_look(self.running.reload.watch) => {
                    if self.file.look(digest(&self.args.config).await) {
                        tracing::info!("the configuration file has another content");
                        self.read_again();
                    }
                }
            }
        }
    }

    fn read_again(&mut self) {
        match self.read() {
            Ok(usable) => {
                self.follow_it(usable);
                self.metrics.reload.count(Reloaded::Followed);
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "the configuration can not be used; the one in force stays");
                self.metrics.reload.count(Reloaded::Refused);
            }
        }
    }

    /// Nothing is changed before all of it is known to be usable.
    fn read(&self) -> anyhow::Result<Usable> {
        let (read, findings) = self.args.read()?;
        refuse_errors(&findings, "")?;
        let mut next = self.running.following(&read);
        if self.filter.is_from_env() && next.log.filter != self.running.log.filter {
            tracing::warn!("log.filter has changed, but RUST_LOG is set, and wins");
            next.log.filter.clone_from(&self.running.log.filter);
        }
        // What waits for a restart is still as it was: together they may be what no file says.
        refuse_errors(&next.findings(), "together with the keys that wait for a restart: ")?;
        let waiting = next.differs_in(&read).into_iter().filter(|key| key != "log.filter").collect();
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
        self.in_force.publish(Arc::new(self.running.clone()), source);
        tracing::info!(followed, filter = self.running.log.filter, "the configuration was read again");
        if !waiting.is_empty() {
            let keys = waiting.join(", ");
            tracing::warn!(keys, "these keys have changed; restart this worker to have it follow");
        }
    }
}

fn refuse_errors(findings: &[Finding], context: &str) -> anyhow::Result<()> {
    let errors: Vec<String> =
        findings.iter().filter(|finding| finding.is_error()).map(ToString::to_string).collect();
    if errors.is_empty() { Ok(()) } else { Err(anyhow!("{context}{}", errors.join("; "))) }
}

async fn next_look(every: Option<Duration>) {
    match every {
        Some(every) => tokio::time::sleep(every).await,
        None => std::future::pending().await,
    }
}

/// The content of a file, in short; `None` while it can not be read.
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

    /// It is read now, whatever was seen before.
    fn is_used(&mut self, content: Option<u64>) {
        *self = Self::new(content);
    }

    /// Whether it should be read: it has another content than what was used, and had it at the last look already. A file that
    /// is gone, or can not be read for now, changes nothing.
    fn look(&mut self, content: Option<u64>) -> bool {
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

    #[test]
    fn a_new_content_is_read_once_when_it_was_seen_twice() {
        let mut file = Watched::new(Some(1));
        assert!(!file.look(Some(1)));
        assert!(!file.look(Some(2)), "it may be half of it");
        assert!(!file.look(Some(3)), "so it was");
        assert!(file.look(Some(3)));
        assert!(!file.look(Some(3)), "used, or refused: either way it is not read again");
        assert!(!file.look(Some(1)));
        assert!(file.look(Some(1)), "put back");
    }

    #[test]
    fn a_file_that_is_not_there_for_a_moment_changes_nothing() {
        let mut file = Watched::new(Some(1));
        assert!(!file.look(None) && !file.look(None));
        assert!(!file.look(Some(1)) && !file.look(Some(1)));
        let mut file = Watched::new(None);
        assert!(!file.look(Some(1)));
        assert!(file.look(Some(1)));
    }

    #[test]
    fn what_a_hang_up_has_read_is_not_read_again_by_looking() {
        let mut file = Watched::new(Some(1));
        assert!(!file.look(Some(2)));
        file.is_used(Some(2));
        assert!(!file.look(Some(2)) && !file.look(Some(2)));
    }
}
