//! Progress of work that takes long: what its parts report, and the line that people see.

use std::time::Duration;

use super::figures::{count, time};

/// Estimates made earlier than this are guesses.
const MIN_ESTIMATE: Duration = Duration::from_secs(2);

/// One report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// Something that happened. It stays to be read.
    Happened(&'a str),
    /// Work under way; the next report replaces it.
    Done {
        /// What is counted, in the plural, and what is done to it: "indices created".
        what: &'a str,
        /// So many.
        done: u64,
        /// Of so many, if that is known. An estimate: there may be more in the end.
        of: Option<u64>,
    },
    /// A wait with an end that is known; the next report replaces it.
    Wait {
        /// For what.
        for_what: &'a str,
        /// How long it still takes.
        left: Duration,
    },
}

/// Receives reports.
pub type Tell<'a> = &'a (dyn Fn(Progress<'_>) + Sync);

impl Progress<'_> {
    /// What the report is about: the same in all reports of one piece of work.
    pub fn subject(&self) -> &str {
        match self {
            Self::Happened(line) => line,
            Self::Done { what, .. } => what,
            Self::Wait { for_what, .. } => for_what,
        }
    }

    /// The report as a line, `since` the first one about this.
    pub fn line(&self, since: Duration) -> String {
        match *self {
            Self::Happened(line) => line.to_owned(),
            Self::Wait { for_what, left } => format!("waiting for {for_what}: {} left", time(left)),
            Self::Done { what, done, of } => {
                let Some(of) = of.filter(|of| *of >= done) else { return format!("{} {what}", count(done)) };
                let line = format!("{} of {} {what}", count(done), count(of));
                match left(since, done, of) {
                    Some(left) => format!("{line}, about {} left", time(left)),
                    None => line,
                }
            }
        }
    }
}

/// How long the rest takes at the pace so far; `None` if it is too early to say, or nothing is left.
fn left(since: Duration, done: u64, of: u64) -> Option<Duration> {
    if since < MIN_ESTIMATE || done == 0 || done >= of {
        return None;
    }
    Duration::try_from_secs_f64(since.as_secs_f64() * (of - done) as f64 / done as f64).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn work_is_shown_with_its_total_and_the_time_left() {
        let line = |done, of, since| Progress::Done { what: "documents read", done, of }.line(seconds(since));
        assert_eq!(line(1_500, Some(6_000), 10), "1,500 of 6,000 documents read, about 30 s left");
        assert_eq!(line(1_500, Some(6_000), 1), "1,500 of 6,000 documents read", "too early to say");
        assert_eq!(line(0, Some(6_000), 10), "0 of 6,000 documents read");
        assert_eq!(line(6_000, Some(6_000), 10), "6,000 of 6,000 documents read");
        assert_eq!(line(1_500, None, 10), "1,500 documents read");
        assert_eq!(line(7_000, Some(6_000), 10), "7,000 documents read", "more than there seemed to be");
        assert_eq!(line(1, Some(u64::MAX), u64::MAX / 2), "1 of 18,446,744,073,709,551,615 documents read");
    }

    #[test]
    fn a_wait_is_counted_down() {
        let wait = Progress::Wait { for_what: "batches to end", left: seconds(83) };
        assert_eq!(wait.line(seconds(7)), "waiting for batches to end: 1 min 23 s left");
    }
}
