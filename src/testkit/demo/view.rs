//! The demo's live view: a few updating lines on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::workers::Counters;

/// Where there is no terminal, a line every so often.
const LINE_EVERY: Duration = Duration::from_secs(3);

/// Geoshards that the view names.
const BUSIEST: usize = 5;

/// How things are.
#[derive(Debug)]
pub(super) struct Moment {
    /// Events sent.
    pub sent: u64,
    /// Events that the whole demo sends.
    pub events: u64,
    /// Records that are produced and not committed.
    pub lag: u64,
    /// Of all workers, the killed ones included.
    pub counters: Counters,
    /// Each geoshard with the writes and deletes that were carried out in it.
    pub changes: Vec<(String, u64)>,
    /// Current faults.
    pub wrong: Vec<String>,
    /// Status pages.
    pub pages: Vec<String>,
}

/// See the top of this file.
pub(super) struct View {
    lines: Option<Lines>,
    last: Option<Last>,
    last_line: Option<Instant>,
}

/// Base of the rates.
struct Last {
    when: Instant,
    counters: Counters,
    changes: Vec<(String, u64)>,
}

struct Lines {
    all: MultiProgress,
    progress: ProgressBar,
    texts: [ProgressBar; 5],
}

impl View {
    /// Nothing is shown yet.
    pub(super) fn new() -> Self {
        let lines = std::io::stderr().is_terminal().then(Lines::new).flatten();
        Self { lines, last: None, last_line: None }
    }

    /// Shows how things are now.
    pub(super) fn show(&mut self, moment: &Moment) {
        let now = Instant::now();
        if self.lines.is_none() && self.last_line.is_some_and(|last| now.duration_since(last) < LINE_EVERY) {
            return;
        }
        let [rates, busiest] = self.rates(moment, now);
        let state = format!(
            "lag {:>7}   oldest dirty {:>5.1} s   retries {:>6}",
            moment.lag, moment.counters.oldest_dirty, moment.counters.retries
        );
        let wrong = if moment.wrong.is_empty() { "nothing".to_owned() } else { moment.wrong.join("; ") };
        match &self.lines {
            Some(lines) => {
                lines.progress.set_length(moment.events);
                lines.progress.set_position(moment.sent);
                let texts = [
                    rates,
                    state,
                    format!("busiest geoshards  {busiest}"),
                    format!("going wrong        {wrong}"),
                    format!("status pages       {}", moment.pages.join("  ")),
                ];
                for (line, text) in lines.texts.iter().zip(texts) {
                    line.set_message(text);
                }
            }
            None => {
                if self.last_line.is_none() {
                    eprintln!("status pages: {}", moment.pages.join(" "));
                }
                eprintln!(
                    "{:>7} of {} events sent   {rates}   {state}   busiest: {busiest}   going wrong: {wrong}",
                    moment.sent, moment.events
                );
                self.last_line = Some(now);
            }
        }
        let (counters, changes) = (moment.counters, moment.changes.clone());
        self.last = Some(Last { when: now, counters, changes });
    }

    /// Changes per second since the last call: of all workers, and of the busiest geoshards.
    fn rates(&self, moment: &Moment, now: Instant) -> [String; 2] {
        let nothing = (now, Counters::default(), Vec::new());
        let (when, before, changes) = self
            .last
            .as_ref()
            .map_or((nothing.0, nothing.1, &nothing.2), |last| (last.when, last.counters, &last.changes));
        let millis = u64::try_from(now.duration_since(when).as_millis()).unwrap_or(u64::MAX);
        let rate = |value: u64, before: u64| {
            (value.saturating_sub(before) * 1000).checked_div(millis).unwrap_or_default()
        };
        let counters = moment.counters;
        let rates = format!(
            "{:>7} read/s   {:>7} folded/s   {:>6} moves/s",
            rate(counters.records, before.records),
            rate(counters.folded, before.folded),
            rate(counters.moves, before.moves)
        );
        let mut busy: Vec<(u64, &str)> = moment
            .changes
            .iter()
            .zip(changes)
            .map(|((shard, value), (_, before))| (rate(*value, *before), shard.as_str()))
            .filter(|(rate, _)| *rate > 0)
            .collect();
        busy.sort_unstable_by(|one, other| other.cmp(one));
        let busiest: Vec<String> =
            busy.iter().take(BUSIEST).map(|(rate, shard)| format!("{shard} {rate}/s")).collect();
        [rates, if busiest.is_empty() { "none".to_owned() } else { busiest.join("  ") }]
    }

    /// Takes the changing lines away.
    pub(super) fn end(&mut self) {
        if let Some(lines) = self.lines.take() {
            // A closed terminal needs no clearing.
            let _ = lines.all.clear();
        }
    }
}

impl Lines {
    fn new() -> Option<Self> {
        let all = MultiProgress::new();
        let bar = ProgressStyle::with_template("{bar:36} {pos:>8} of {len} events  {elapsed}").ok()?;
        let text = ProgressStyle::with_template("{wide_msg}").ok()?;
        let progress = all.add(ProgressBar::new(0).with_style(bar));
        let texts = std::array::from_fn(|_| all.add(ProgressBar::new(0).with_style(text.clone())));
        Some(Self { all, progress, texts })
    }
}
