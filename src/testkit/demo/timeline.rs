//! What went wrong when, for how long, and what it did to the lag. Pure: time and lag are passed in.

use std::time::Duration;

use crate::base::colours::Colours;
use crate::base::figures::count;

/// The lag counts as a fault's doing for so long after its end: work that it held up is still to be done.
const AFTERMATH: Duration = Duration::from_secs(2);

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fault {
    what: &'static str,
    began: Duration,
    ended: Option<Duration>,
    lag_before: u64,
    lag_most: u64,
}

/// The faults so far, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Timeline(Vec<Fault>);

impl Timeline {
    /// `what` begins, at this time since the day began.
    pub(super) fn begin(&mut self, what: &'static str, now: Duration, lag: u64) {
        self.0.push(Fault { what, began: now, ended: None, lag_before: lag, lag_most: lag });
    }

    /// `what` ends.
    pub(super) fn end(&mut self, what: &'static str, now: Duration) {
        if let Some(fault) = self.0.iter_mut().rev().find(|fault| fault.what == what) {
            fault.ended.get_or_insert(now);
        }
    }

    /// The lag is this.
    pub(super) fn lag(&mut self, now: Duration, lag: u64) {
        let is_felt = |fault: &&mut Fault| fault.ended.is_none_or(|ended| now <= ended + AFTERMATH);
        for fault in self.0.iter_mut().filter(is_felt) {
            fault.lag_most = fault.lag_most.max(lag);
        }
    }

    /// How many there were.
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// A heading and a line for each, none wider than 80 columns; nothing if there were none.
    pub(super) fn lines(&self, now: Duration, colours: Colours) -> Vec<String> {
        let heading = (!self.0.is_empty()).then(|| {
            colours.faint(format_args!(
                "  {:>6}  {:>6}  {:>9}  {:>9}  fault",
                "began", "took", "lag then", "at most"
            ))
        });
        let line = |fault: &Fault| {
            let Fault { what, began, ended, lag_before, lag_most } = fault;
            let took = seconds(ended.unwrap_or(now).saturating_sub(*began));
            let line = format!(
                "  {:>6}  {took:>6}  {:>9}  {:>9}  {what}",
                seconds(*began),
                count(*lag_before),
                count(*lag_most)
            );
            if ended.is_none() { colours.warning(line) } else { line }
        };
        heading.into_iter().chain(self.0.iter().map(line)).collect()
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_fault_has_its_time_and_the_lag_that_it_made() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.lines(millis(0), Colours::NONE), Vec::<String>::new());
        timeline.begin("elasticsearch is slow", millis(2_000), 120);
        timeline.lag(millis(2_500), 4_000);
        timeline.begin("worker 1 is frozen", millis(3_000), 4_000);
        timeline.end("elasticsearch is slow", millis(4_500));
        timeline.lag(millis(6_000), 12_400);
        timeline.lag(millis(7_000), 99_000);
        assert_eq!(timeline.len(), 2);
        let expected = [
            "   began    took   lag then    at most  fault",
            "   2.0 s   2.5 s        120     12,400  elasticsearch is slow",
            "   3.0 s   5.0 s      4,000     99,000  worker 1 is frozen",
        ];
        assert_eq!(timeline.lines(millis(8_000), Colours::NONE), expected);
    }

    #[test]
    fn a_fault_that_comes_twice_is_there_twice() {
        let mut timeline = Timeline::default();
        for began in [1_000, 5_000] {
            timeline.begin("elasticsearch is down", millis(began), 0);
            timeline.end("elasticsearch is down", millis(began + 500));
        }
        let lines = timeline.lines(millis(9_000), Colours::NONE);
        assert!(lines[1].contains("1.0 s   0.5 s") && lines[2].contains("5.0 s   0.5 s"), "{lines:?}");
    }
}
