//! Arguments: those of `dev/simulate`, and those that `cargo test` passes on.

use std::ops::Range;
use std::time::Duration;

use geofold::base::sabotage::Sabotage;

use crate::sabotages;
use crate::scenario::{Part, Scenario};

/// The command.
pub enum Command {
    /// The checks whose names contain a filter; all without filters.
    Test { filters: Vec<String> },
    /// Many seeds until one fails.
    Seeds { seeds: Seeds, sabotage: Option<Sabotage> },
    /// One scenario, with its history.
    One { scenario: Box<Scenario>, sabotage: Option<Sabotage> },
}

/// The seeds.
pub enum Seeds {
    Range(Range<u64>),
    /// Fresh ones for this long.
    For(Duration),
}

impl Command {
    /// Parses the arguments.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut seed, mut seeds, mut without, mut sabotage) = (None, None, Vec::new(), None);
        let mut filters = Vec::new();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--seed" => seed = Some(number(&value()?)?),
                "--seeds" => seeds = Some(Seeds::Range(range(&value()?)?)),
                "--minutes" => seeds = Some(Seeds::For(Duration::from_secs(60 * number(&value()?)?))),
                "--seconds" => seeds = Some(Seeds::For(Duration::from_secs(number(&value()?)?))),
                "--without" => {
                    without = value()?.split(',').map(str::parse).collect::<Result<Vec<Part>, _>>()?;
                }
                "--sabotage" => sabotage = Some(sabotages::named(&value()?)?),
                // Options of `cargo test -- ...` for any test.
                flag if flag.starts_with('-') => {}
                filter => filters.push(filter.to_owned()),
            }
        }
        Ok(match (seed, seeds) {
            (Some(seed), None) => {
                Self::One { scenario: Box::new(Scenario::new(seed).without(&without)), sabotage }
            }
            (None, Some(seeds)) => Self::Seeds { seeds, sabotage },
            (None, None) if sabotage.is_none() => Self::Test { filters },
            _ => return Err("give one of --seed, --seeds, --minutes and --seconds".to_owned()),
        })
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

/// `from..to`, without `to`.
fn range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or_else(|| format!("{text:?} is no range such as 0..1000"))?;
    Ok(number(from)?..number(to)?)
}
