//! The report as text.

use std::fmt;
use std::time::Duration;

use super::{AuditSeen, GroupReport, MapsReport, by_reason};
use crate::base::figures::{self, count};
use crate::support::telemetry::events::Numbers;

impl GroupReport {
    /// What the broker says of the group, in words.
    pub fn described(&self) -> String {
        match (&self.description, &self.group_error) {
            (Some(group), _) => match group.members.len() {
                1 => format!("{}, 1 member", group.state),
                members => format!("{}, {members} members", group.state),
            },
            (None, error) => {
                let error = error.as_deref().unwrap_or("no answer");
                format!("not described by the broker ({error}); owners by claims")
            }
        }
    }

    /// Maps, audit, Elasticsearch and dead letters: the name of each, and a line about it.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("map", self.of_maps())];
        lines.extend(self.of_audit().map(|audit| ("audit", audit)));
        let elasticsearch = self.elasticsearch.as_deref().unwrap_or("does not answer");
        lines.push(("elasticsearch", elasticsearch.to_owned()));
        lines.push(("dead letters", self.of_letters()));
        lines
    }

    fn of_maps(&self) -> String {
        let Some(MapsReport { deciding, other, stage, generation, unconfirmed }) = &self.maps else {
            return "as configured, never changed".to_owned();
        };
        let other = other.as_ref().map_or_else(String::new, |other| format!(", {other} is live too"));
        let unconfirmed = match unconfirmed.as_slice() {
            [] => String::new(),
            partitions => format!(", not confirmed by partitions {}", Numbers::of(partitions)),
        };
        format!("{deciding} decides, stage {stage}, generation {generation}{other}{unconfirmed}")
    }

    fn of_audit(&self) -> Option<String> {
        let Some(AuditSeen { seconds_ago, wrong }) = &self.audit else {
            return self.audit_interval_seconds.map(|_| "none has ended yet".to_owned());
        };
        let wrong = wrong.map_or_else(String::new, |wrong| format!(", {} wrong documents", count(wrong)));
        let ago = figures::time(Duration::from_secs(*seconds_ago));
        Some(format!("the last one ended {ago} ago{wrong}"))
    }

    fn of_letters(&self) -> String {
        match &self.dead_letters {
            None => "not read".to_owned(),
            Some(letters) if letters.counted == 0 => format!("none in {}", letters.topic),
            Some(letters) => format!(
                "{} of the newest in {}: {}; {} in the last hour",
                letters.counted,
                letters.topic,
                by_reason(&letters.by_reason),
                letters.recent()
            ),
        }
    }
}

impl fmt::Display for GroupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "group {} on topic {}, epoch {}: {}",
            self.group,
            self.topic,
            self.epoch,
            self.described()
        )?;
        writeln!(
            f,
            "lag {} ({:+.0}/s over {:.1} s), {:.0} records/s committed",
            self.lag, self.lag_per_second, self.sample_seconds, self.committed_per_second
        )?;
        writeln!(
            f,
            "\n{:>9}  {:<9}  {:>12}  {:>12}  {:>10}  {:>9}  {:>9}  owner",
            "partition", "state", "committed", "end", "lag", "lag/s", "dirty for"
        )?;
        for one in &self.partitions {
            let committed = one.offsets.committed.map_or_else(|| "-".to_owned(), |offset| offset.to_string());
            let dirty = one.oldest_dirty_seconds.map_or_else(|| "-".to_owned(), seconds);
            writeln!(
                f,
                "{:>9}  {:<9}  {:>12}  {:>12}  {:>10}  {:>+9.0}  {dirty:>9}  {}",
                one.partition,
                one.state,
                committed,
                one.offsets.end,
                one.lag,
                one.lag_per_second,
                one.owner.as_deref().unwrap_or("none"),
            )?;
        }
        f.write_str("\n")?;
        for (name, line) in self.lines() {
            writeln!(f, "{name:<15}{line}")?;
        }
        if self.findings.is_empty() {
            return f.write_str("nothing needs attention");
        }
        f.write_str("needs attention:")?;
        self.findings.iter().try_for_each(|finding| write!(f, "\n  {finding}"))
    }
}

fn seconds(seconds: f64) -> String {
    figures::time(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
