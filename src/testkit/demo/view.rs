//! The demo's live view: a few updating lines on a terminal of 80 columns, plain lines elsewhere.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::workers::WorkerCounters;
use crate::base::colours::Colours;
use crate::base::figures::count;

/// Where there is no terminal, a line every so often.
const LINE_EVERY: Duration = Duration::from_secs(3);

/// Geoshards that the view names.
const BUSIEST: usize = 3;

/// Columns of the picture of the lag.
const LAGS: usize = 60;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

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
    pub counters: WorkerCounters,
    /// Each geoshard, and its largest city, with the writes and deletes that were carried out in it.
    pub changes: Vec<(String, u64)>,
    /// Current faults.
    pub wrong: Vec<&'static str>,
    /// The faults so far, a line each.
    pub timeline: Vec<String>,
    /// Status pages.
    pub pages: Vec<String>,
}

/// See the top of this file.
pub(super) struct DemoView {
    title: String,
    colours: Colours,
    lines: Option<Lines>,
    last: Option<Last>,
    last_line: Option<Instant>,
    lags: VecDeque<u64>,
}

/// Base of the rates.
struct Last {
    when: Instant,
    counters: WorkerCounters,
    changes: Vec<(String, u64)>,
}

/// Changes per second since the last moment.
struct Rates {
    read: u64,
    folded: u64,
    moves: u64,
    busiest: Vec<String>,
}

struct Lines {
    all: MultiProgress,
    text: ProgressStyle,
    title: ProgressBar,
    progress: ProgressBar,
    texts: Vec<ProgressBar>,
}

impl DemoView {
    /// Says what is watched; nothing is measured yet.
    pub(super) fn new(title: String) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let colours = Colours::of(is_terminal, |name| std::env::var_os(name));
        let lines = is_terminal.then(Lines::new).flatten();
        if lines.is_none() {
            eprintln!("{title}");
        }
        Self { title, colours, lines, last: None, last_line: None, lags: VecDeque::new() }
    }

    /// For the timeline of a [`Moment`].
    pub(super) fn colours(&self) -> Colours {
        self.colours
    }

    /// Shows how things are now.
    pub(super) fn show(&mut self, moment: &Moment) {
        let now = Instant::now();
        if self.lines.is_none() && self.last_line.is_some_and(|last| now.duration_since(last) < LINE_EVERY) {
            return;
        }
        let rates = self.rates(moment, now);
        self.lags.push_back(moment.lag);
        if self.lags.len() > LAGS {
            self.lags.pop_front();
        }
        match &mut self.lines {
            Some(lines) => {
                lines.title.set_message(self.colours.bold(&self.title));
                lines.progress.set_length(moment.events);
                lines.progress.set_position(moment.sent);
                lines.progress.set_message(count(moment.events));
                lines.show(texts(moment, &rates, &self.lags, self.colours));
            }
            None => {
                if self.last_line.is_none() {
                    eprintln!("status pages: {}", moment.pages.join(" "));
                }
                eprintln!("{}", line(moment, &rates));
                self.last_line = Some(now);
            }
        }
        let (counters, changes) = (moment.counters, moment.changes.clone());
        self.last = Some(Last { when: now, counters, changes });
    }

    /// Changes per second since the last call: of all workers, and of the busiest geoshards.
    fn rates(&self, moment: &Moment, now: Instant) -> Rates {
        let nothing = (now, WorkerCounters::default(), Vec::new());
        let (when, before, changes) = self
            .last
            .as_ref()
            .map_or((nothing.0, nothing.1, &nothing.2), |last| (last.when, last.counters, &last.changes));
        let millis = u64::try_from(now.duration_since(when).as_millis()).unwrap_or(u64::MAX);
        let rate = |value: u64, before: u64| {
            (value.saturating_sub(before) * 1000).checked_div(millis).unwrap_or_default()
        };
        let counters = moment.counters;
        let mut busy: Vec<(u64, &str)> = moment
            .changes
            .iter()
            .zip(changes)
            .map(|((shard, value), (_, before))| (rate(*value, *before), shard.as_str()))
            .filter(|(rate, _)| *rate > 0)
            .collect();
        busy.sort_unstable_by(|one, other| other.cmp(one));
        let busiest =
            busy.iter().take(BUSIEST).map(|(rate, shard)| format!("{shard} {}/s", count(*rate))).collect();
        Rates {
            read: rate(counters.records, before.records),
            folded: rate(counters.folded, before.folded),
            moves: rate(counters.moves, before.moves),
            busiest,
        }
    }

    /// Takes the changing lines away.
    pub(super) fn end(&mut self) {
        if let Some(lines) = self.lines.take() {
            // A closed terminal needs no clearing.
            let _ = lines.all.clear();
        }
    }
}

/// What a terminal shows under title and progress.
fn texts(moment: &Moment, rates: &Rates, lags: &VecDeque<u64>, colours: Colours) -> Vec<String> {
    let label = |text: &str| colours.faint(format_args!("{text:<14}"));
    let figure =
        |name: &str, figure: String| format!("{} {}", colours.accent(format_args!("{figure:>9}")), name);
    let wrong = match moment.wrong.is_empty() {
        true => colours.good("nothing"),
        false => colours.bad(moment.wrong.join("; ")),
    };
    let busiest = if rates.busiest.is_empty() { "none".to_owned() } else { rates.busiest.join("  ") };
    let mut texts = vec![
        format!(
            "{}{}{}{}",
            label("per second"),
            figure("read    ", count(rates.read)),
            figure("folded  ", count(rates.folded)),
            figure("moves", count(rates.moves))
        ),
        format!(
            "{}{}{}{}",
            label("now"),
            figure("lag     ", count(moment.lag)),
            figure("oldest  ", format!("{:.1} s", moment.counters.oldest_dirty)),
            figure("retries", count(moment.counters.retries))
        ),
        format!("{}{}", label("lag"), colours.accent(bars(lags))),
        format!("{}{busiest}", label("busiest")),
        format!("{}{wrong}", label("going wrong")),
        format!("{}{}", label("status pages"), moment.pages.join("  ")),
    ];
    texts.extend(moment.timeline.iter().cloned());
    texts
}

/// A line for a log.
fn line(moment: &Moment, rates: &Rates) -> String {
    let wrong = if moment.wrong.is_empty() { "nothing".to_owned() } else { moment.wrong.join("; ") };
    let busiest = if rates.busiest.is_empty() { "none".to_owned() } else { rates.busiest.join(", ") };
    format!(
        "{} of {} events sent, {} read/s, {} folded/s, {} moves/s, lag {}, oldest dirty {:.1} s, retries {}; busiest: {busiest}; \
         going wrong: {wrong}",
        count(moment.sent),
        count(moment.events),
        count(rates.read),
        count(rates.folded),
        count(rates.moves),
        count(moment.lag),
        moment.counters.oldest_dirty,
        count(moment.counters.retries)
    )
}

/// One column for each figure, the highest for the largest.
fn bars(figures: &VecDeque<u64>) -> String {
    let most = figures.iter().copied().max().unwrap_or_default().max(1);
    let bar = |figure: &u64| {
        let level = u128::from(*figure) * (BARS.len() as u128 - 1) / u128::from(most);
        BARS[usize::try_from(level).unwrap_or_default()]
    };
    figures.iter().map(bar).collect()
}

impl Lines {
    fn new() -> Option<Self> {
        let all = MultiProgress::new();
        let bar = ProgressStyle::with_template("{bar:36} {human_pos:>9} of {msg} events  {elapsed}").ok()?;
        let text = ProgressStyle::with_template("{wide_msg}").ok()?;
        // In the order in which they are seen: a line that is put above others later leaves traces.
        let title = all.add(ProgressBar::new(0).with_style(text.clone()));
        let progress = all.add(ProgressBar::new(0).with_style(bar));
        Some(Self { all, text, title, progress, texts: Vec::new() })
    }

    fn show(&mut self, texts: Vec<String>) {
        while self.texts.len() < texts.len() {
            self.texts.push(self.all.add(ProgressBar::new(0).with_style(self.text.clone())));
        }
        for (line, text) in self.texts.iter().zip(texts) {
            line.set_message(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest that the demo can say.
    fn moment() -> Moment {
        let counters = WorkerCounters {
            retries: 1_234_567,
            oldest_dirty: 123.4,
            records: 9_999_999,
            ..WorkerCounters::default()
        };
        Moment {
            sent: 1_000_000,
            events: 87_400_000,
            lag: 1_234_567,
            counters,
            changes: Vec::new(),
            wrong: vec!["elasticsearch carries requests out late", "worker 1 is killed"],
            timeline: vec!["  fault".to_owned()],
            pages: vec!["http://127.0.0.1:65535/".to_owned(); 2],
        }
    }

    fn rates() -> Rates {
        let busiest = vec!["s15 Rio de Janeiro 9,999/s".to_owned(); 2];
        Rates { read: 1_234_567, folded: 123_456, moves: 123_456, busiest }
    }

    #[test]
    fn a_terminal_of_80_columns_holds_every_line() {
        let lags: VecDeque<u64> = (0..LAGS as u64).collect();
        let texts = texts(&moment(), &rates(), &lags, Colours::NONE);
        for text in &texts {
            assert!(text.chars().count() <= 80, "{}: {text}", text.chars().count());
        }
        assert_eq!(texts.last().unwrap(), "  fault");
    }

    #[test]
    fn colours_mark_what_goes_wrong() {
        let terminal = Colours::of(true, |_| None);
        let text = |moment: &Moment| texts(moment, &rates(), &VecDeque::new(), terminal).join("\n");
        assert!(text(&moment()).contains("\u{1b}[1;31melasticsearch carries"));
        let well = Moment { wrong: Vec::new(), ..moment() };
        assert!(text(&well).contains("\u{1b}[32mnothing"));
        assert!(!line(&moment(), &rates()).contains('\u{1b}'));
    }

    #[test]
    fn bars_are_as_high_as_their_figures() {
        assert_eq!(bars(&VecDeque::from([0, 50, 100])), "▁▄█");
        assert_eq!(bars(&VecDeque::from([0, 0])), "▁▁");
        assert_eq!(bars(&VecDeque::new()), "");
    }
}
