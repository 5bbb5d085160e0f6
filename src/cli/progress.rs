//! Shows progress on standard error: one line that changes on a terminal; elsewhere a line now and then.

use std::io::{IsTerminal, stderr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::base::progress::Progress;

/// Work that ends sooner is not worth a line in a log.
const FIRST_LINE_AFTER: Duration = Duration::from_secs(2);
/// Interval of lines about the same work in a log.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// See the top of this file.
pub(super) struct ProgressMeter {
    /// Prints what has happened.
    lasting: fn(&str),
    bar: Option<ProgressBar>,
    subject: Mutex<Option<Subject>>,
}

/// What the last reports were about.
struct Subject {
    name: String,
    since: Instant,
    due: Instant,
}

impl Subject {
    /// The line for a report, and whether a log is due for it.
    fn take(known: &mut Option<Self>, progress: Progress<'_>, now: Instant) -> (String, bool) {
        if known.as_ref().is_some_and(|known| known.name != progress.subject()) {
            *known = None;
        }
        let subject = known.get_or_insert_with(|| Self {
            name: progress.subject().to_owned(),
            since: now,
            due: now + FIRST_LINE_AFTER,
        });
        let is_due = now >= subject.due;
        if is_due {
            subject.due = now + LINE_EVERY;
        }
        (progress.line(now.duration_since(subject.since)), is_due)
    }
}

impl ProgressMeter {
    /// What has happened goes to standard error, too.
    pub(super) fn new() -> Self {
        Self::with(|line| eprintln!("{line}"))
    }

    /// `lasting` prints what has happened.
    pub(super) fn with(lasting: fn(&str)) -> Self {
        let style = ProgressStyle::with_template("{spinner} {wide_msg}").ok();
        let bar = style.filter(|_| stderr().is_terminal()).map(|style| {
            let bar = ProgressBar::no_length().with_style(style);
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self { lasting, bar, subject: Mutex::default() }
    }

    /// Takes a report.
    pub(super) fn tell(&self, progress: Progress<'_>) {
        if let Progress::Happened(line) = progress {
            *self.subject() = None;
            self.bar.iter().for_each(|bar| bar.set_message(""));
            return self.print(|| (self.lasting)(line));
        }
        let (line, is_due) = Subject::take(&mut self.subject(), progress, Instant::now());
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None if is_due => eprintln!("{line}"),
            None => {}
        }
    }

    /// Prints something while the changing line is out of the way.
    pub(super) fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Takes the changing line away.
    pub(super) fn end(&self) {
        *self.subject() = None;
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn subject(&self) -> MutexGuard<'_, Option<Subject>> {
        self.subject.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ProgressMeter {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gets_a_line_for_work_that_takes_long_and_then_now_and_then() {
        let began = Instant::now();
        let mut subject = None;
        let mut line = |what, done, seconds| {
            let progress = Progress::Done { what, done, of: Some(100) };
            let (line, is_due) = Subject::take(&mut subject, progress, began + Duration::from_secs(seconds));
            is_due.then_some(line)
        };
        assert_eq!(line("indices created", 0, 0), None);
        assert_eq!(line("indices created", 10, 1), None);
        let first = line("indices created", 20, 2).unwrap();
        assert_eq!(first, "20 of 100 indices created, about 8 s left");
        assert_eq!(line("indices created", 30, 11), None);
        assert!(line("indices created", 40, 12).is_some());
        // Other work begins anew.
        assert_eq!(line("documents read", 1, 60), None);
        assert_eq!(line("documents read", 50, 64).unwrap(), "50 of 100 documents read, about 4 s left");
    }
}
