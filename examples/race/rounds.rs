//! What was measured in the rounds of a race, and whether it is what is wanted. Tests: `tests/it/race_rounds.rs`.

use std::fmt;

use super::median::median;

/// What is wanted of a figure.
#[derive(Debug, Clone, Copy)]
pub enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

impl Wanted {
    fn is_met_by(self, measured: f64) -> bool {
        match self {
            Self::AtLeast(wanted) => measured >= wanted,
            Self::AtMost(wanted) => measured <= wanted,
        }
    }

    fn worst(self, rounds: &[f64]) -> Option<f64> {
        let worse = match self {
            Self::AtLeast(_) => f64::min,
            Self::AtMost(_) => f64::max,
        };
        rounds.iter().copied().reduce(worse)
    }
}

/// A target, and the figure of each round.
#[derive(Debug)]
pub struct Target {
    pub what: &'static str,
    pub wanted: Wanted,
    /// None: not measured.
    pub rounds: Option<Vec<f64>>,
}

/// All of them, as a table in Markdown.
pub fn table(targets: &[Target]) -> String {
    let head = "| target (bold: not reached) | wanted | median of the rounds | worst round |\n|---|---:|---:|---:|\n";
    targets.iter().fold(head.to_owned(), |text, target| format!("{text}{target}\n"))
}

/// A row of the table.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, wanted) = match self.wanted {
            Wanted::AtLeast(wanted) => ('≥', wanted),
            Wanted::AtMost(wanted) => ('≤', wanted),
        };
        let digits = if wanted > 100.0 { 0 } else { 2 };
        write!(f, "| {} | {sign} {wanted:.digits$} | ", self.what)?;
        let Some(rounds) = &self.rounds else { return write!(f, "not measured |  |") };
        let show = |measured: f64| {
            let bold = if self.wanted.is_met_by(measured) { "" } else { "**" };
            format!("{bold}{measured:.digits$}{bold}")
        };
        let worst = self.wanted.worst(rounds).filter(|_| rounds.len() > 1);
        write!(f, "{} | {} |", show(median(rounds.iter().copied())), worst.map(show).unwrap_or_default())
    }
}
