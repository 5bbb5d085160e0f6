//! Report of a failed run: the violation, how to replay it, and the history of the document concerned, for a minimized
//! scenario.

use std::fmt::Write as _;

use crate::process::Shared;
use crate::run::{Outcome, run};
use crate::scenario::{Part, Scenario};
use crate::shrink::shrink;

/// Runs a failing scenario again, minimized if `cut_down`, and reports it.
pub fn report(scenario: &Scenario, shared: &Shared, cut_down: bool) -> String {
    let scenario = if cut_down { shrink(scenario, shared) } else { scenario.clone() };
    let Outcome { broken, history, .. } = run(&scenario, shared, true);
    let mut text = String::new();
    let document = match &broken {
        Some(broken) => {
            let _ = writeln!(text, "seed {}: {}: {}", scenario.seed, broken.rule, broken.what);
            broken.document.clone()
        }
        None => {
            let _ = writeln!(text, "seed {}: nothing is wrong", scenario.seed);
            None
        }
    };
    let _ = writeln!(text, "replay: {}", replay(&scenario));
    let Scenario { kind, on_missing, setup, trouble, .. } = &scenario;
    let _ = writeln!(text, "\n{kind:?}, on_missing = {on_missing:?}\n{setup:?}\n{trouble:?} (percent)");
    for (offset, record) in scenario.records.iter().enumerate() {
        let _ = writeln!(text, "record {offset} at {} ms ({}): {record}", record.at, record.part);
    }
    for change in &scenario.changes {
        let _ = writeln!(text, "{:?} ({}): {:?}", change.when, change.part, change.what);
    }
    let of = document.as_deref().unwrap_or("all documents");
    let _ = writeln!(text, "\nhistory of {of}, in virtual milliseconds:");
    for line in &history {
        if line.document.is_none() || document.is_none() || line.document == document {
            let _ = writeln!(text, "{:>7} {}", line.at, line.text);
        }
    }
    text
}

/// The one command that runs this scenario again.
fn replay(scenario: &Scenario) -> String {
    let mut command = format!("dev/simulate --seed {}", scenario.seed);
    if !scenario.without.is_empty() {
        let parts: Vec<String> = scenario.without.iter().map(Part::to_string).collect();
        let _ = write!(command, " --without {}", parts.join(","));
    }
    #[cfg(feature = "sabotage")]
    if let Some(sabotage) = crate::sabotages::current() {
        let _ = write!(command, " --sabotage {sabotage}");
    }
    command
}
