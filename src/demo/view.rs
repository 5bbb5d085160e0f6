//! What a person sees while the demo runs: a few lines that change on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::workers::Counters;

/// Where there is no terminal, a line every so often.
const LINE_EVERY: Duration = Duration::from_secs(3);

/// How things are.
#[derive(Debug)]
pub struct Moment {
    /// Events sent.
    pub sent: u64,
    /// Events that the whole demo sends.
    pub events: u64,
    /// Records that are produced and not committed.
    pub lag: u64,
    /// Of all workers, the killed ones included.
    pub counters: Counters,
    /// What is going wrong.
    pub fault: Option<&'static str>,
    /// Status pages.
    pub pages: Vec<String>,
}

/// See the top of this file.
pub struct View {
    lines: Option<Lines>,
    last: Option<(Instant, Counters)>,
    last_line: Option<Instant>,
}

struct Lines {
    all: MultiProgress,
    progress: ProgressBar,
    texts: [ProgressBar; 4],
}

impl View {
    /// Nothing is shown yet.
    pub fn new() -> Self {
        let lines = std::io::stderr().is_terminal().then(Lines::new).flatten();
        Self { lines, last: None, last_line: None }
    }

    /// Shows how things are now.
    pub fn show(&mut self, moment: &Moment) {
        let now = Instant::now();
        let rate = |value: f64, before: f64, seconds: f64| ((value - before) / seconds.max(0.001)).max(0.0);
        let counters = moment.counters;
        let (read, folded, moves) = match self.last {
            None => (0.0, 0.0, 0.0),
            Some((when, before)) => {
                let seconds = now.duration_since(when).as_secs_f64();
                (
                    rate(counters.records, before.records, seconds),
                    rate(counters.folded, before.folded, seconds),
                    rate(counters.moves, before.moves, seconds),
                )
            }
        };
        let rates = format!("{read:>7.0} read/s   {folded:>7.0} folded/s   {moves:>6.0} moves/s");
        let state = format!(
            "lag {:>7}   oldest dirty {:>5.1} s   retries {:>6.0}",
            moment.lag, counters.oldest_dirty, counters.retries
        );
        let fault = moment.fault.unwrap_or("nothing");
        match &self.lines {
            Some(lines) => {
                self.last = Some((now, counters));
                lines.progress.set_length(moment.events);
                lines.progress.set_position(moment.sent);
                let pages = format!("status pages   {}", moment.pages.join("   "));
                let fault = format!("going wrong    {fault}");
                for (line, text) in lines.texts.iter().zip([rates, state, fault, pages]) {
                    line.set_message(text);
                }
            }
            None if self.last_line.is_none_or(|last| now.duration_since(last) >= LINE_EVERY) => {
                if self.last_line.is_none() {
                    eprintln!("status pages: {}", moment.pages.join(" "));
                }
                self.last = Some((now, counters));
                self.last_line = Some(now);
                eprintln!(
                    "{:>7} of {} events sent   {rates}   {state}   going wrong: {fault}",
                    moment.sent, moment.events
                );
            }
            None => {}
        }
    }

    /// Takes the changing lines away.
    pub fn end(&mut self) {
        if let Some(lines) = self.lines.take() {
            // A terminal that is gone needs no clearing.
            let _ = lines.all.clear();
        }
    }
}

impl Lines {
    fn new() -> Option<Self> {
        let all = MultiProgress::new();
        let bar = ProgressStyle::with_template("{bar:40} {pos:>8} of {len} events   {elapsed}").ok()?;
        let text = ProgressStyle::with_template("{msg}").ok()?;
        let progress = all.add(ProgressBar::new(0).with_style(bar));
        let texts = std::array::from_fn(|_| all.add(ProgressBar::new(0).with_style(text.clone())));
        Some(Self { all, progress, texts })
    }
}
