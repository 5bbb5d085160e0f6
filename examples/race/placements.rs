//! Primaries of the placements index: new documents and moves, which all write there, with each number of primaries side by side.

use std::fmt::Write as _;

use anyhow::Result;

use crate::Options;
use crate::field::Field;
use crate::median::median;
use crate::report::Lap;

/// What one number of primaries did, round by round.
#[derive(Debug)]
pub struct Primaries {
    count: u16,
    new: Vec<Lap>,
    moves: Vec<Lap>,
}

/// See the top of this file. Everybody has indices and a worker of their own; who goes first alternates.
pub fn measure(options: &Options, counts: &[u16]) -> Result<Vec<Primaries>> {
    let mut racers = Vec::new();
    for &count in counts {
        let more = format!("[placements]\nprimaries = {count}\n");
        let mut field =
            Field::prepare(options, &options.elasticsearch, options.partitions, options.documents, &more)?;
        field.first_documents()?;
        field.refresh_every("1s")?;
        racers.push((Primaries { count, new: Vec::new(), moves: Vec::new() }, field));
    }
    for round in 0..=options.rounds {
        for at in 0..racers.len() {
            let (measured, field) = &mut racers[(round + at) % counts.len()];
            let laps = [field.new_documents(round)?, field.moves()?];
            let count = measured.count;
            eprintln!("{count} primaries, round {round}: new {}; moves {}", laps[0], laps[1]);
            // Caches and the servers' compilers warm up.
            if round > 0 {
                measured.new.push(laps[0]);
                measured.moves.push(laps[1]);
            }
        }
    }
    for (_, field) in &racers {
        field.check_count()?;
    }
    Ok(racers.into_iter().map(|(measured, _)| measured).collect())
}

/// What was measured, as Markdown, in ratio to the first; nothing if it was not.
pub fn table(measured: &[Primaries]) -> String {
    let Some(first) = measured.first() else { return String::new() };
    let mut text = format!(
        "\nPrimaries of the placements index; ratios are medians over the rounds, to {}:\n\n\
         | primaries | new documents/s (lowest–highest) | ratio | CPU s of Elasticsearch per million | moves/s (lowest–highest) | ratio | \
         CPU s of Elasticsearch per million |\n|---:|---:|---:|---:|---:|---:|---:|\n",
        first.count
    );
    for Primaries { count, new, moves } in measured {
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "| {count} | {} | {} |", columns(new, &first.new), columns(moves, &first.moves));
    }
    text
}

fn columns(laps: &[Lap], to: &[Lap]) -> String {
    let speeds = || laps.iter().map(|lap| lap.speed);
    let (lowest, highest) = (speeds().fold(f64::INFINITY, f64::min), speeds().fold(0.0, f64::max));
    let ratio = median(laps.iter().zip(to).map(|(lap, to)| lap.speed / to.speed));
    let cpu = median(laps.iter().map(|lap| lap.cpu[1]));
    format!("{:.0} ({lowest:.0}–{highest:.0}) | {ratio:.2} | {cpu:.0}", median(speeds()))
}
