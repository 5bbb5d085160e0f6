//! What `elasticsearch.compress_requests` costs and saves: everybody takes steps in place, by a worker with it and by one without, on
//! links to Elasticsearch of several speeds.

use std::fmt::Write as _;

use anyhow::Result;

use crate::Options;
use crate::field::Field;
use crate::link::Link;
use crate::median::median;
use crate::report::Lap;

/// Megabits per second to Elasticsearch.
const LINKS: [Option<f64>; 3] = [None, Some(100.0), Some(25.0)];

/// What was measured of one worker on one link: medians.
#[derive(Debug, Clone, Copy)]
pub struct Compression {
    megabits: Option<f64>,
    is_on: bool,
    speed: f64,
    /// CPU seconds per million events, of the worker and of Elasticsearch.
    cpu: [f64; 2],
    /// Bytes to Elasticsearch per event, with all headers.
    bytes: f64,
}

/// See the top of this file.
pub fn measure(options: &Options) -> Result<Vec<Compression>> {
    let mut measured = Vec::new();
    for megabits in LINKS {
        let mut racers = Vec::new();
        for is_on in [false, true] {
            let link = Link::start(&options.elasticsearch)?;
            let key = format!("compress_requests = {is_on}\n\n");
            let mut field = Field::prepare(options, link.url(), options.partitions, options.documents, &key)?;
            field.first_documents()?;
            // Only what is measured takes the limited link.
            link.limit(megabits);
            racers.push((is_on, link, field, Vec::new()));
        }
        for round in 0..=options.rounds {
            // Who goes first alternates.
            racers.rotate_left(1);
            for (is_on, link, field, laps) in &mut racers {
                let before = link.sent();
                let lap = field.in_place(round, false)?;
                let bytes = per_event(link.sent() - before, options.documents);
                eprintln!("compression {is_on}, {}: {lap}; {bytes:.0} bytes each", name(megabits));
                if round > 0 {
                    laps.push((lap, bytes));
                }
            }
        }
        racers.sort_by_key(|(is_on, ..)| *is_on);
        measured.extend(racers.iter().map(|(is_on, _, _, laps)| {
            let of = |what: fn(&(Lap, f64)) -> f64| median(laps.iter().map(what));
            Compression {
                megabits,
                is_on: *is_on,
                speed: of(|(lap, _)| lap.speed),
                cpu: [of(|(lap, _)| lap.cpu[0]), of(|(lap, _)| lap.cpu[1])],
                bytes: of(|(_, bytes)| *bytes),
            }
        }));
    }
    Ok(measured)
}

#[expect(clippy::cast_precision_loss, reason = "counts of bytes and of documents")]
fn per_event(bytes: u64, events: usize) -> f64 {
    bytes as f64 / events as f64
}

fn name(megabits: Option<f64>) -> String {
    megabits.map_or_else(|| "loopback".to_owned(), |megabits| format!("{megabits:.0} Mbit/s"))
}

/// What was measured, as Markdown; nothing if it was not.
pub fn table(measured: &[Compression]) -> String {
    if measured.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\nIn place, placements known, with and without compressed requests:\n\n\
         | link | compressed | events/s | CPU s per million: the worker's, Elasticsearch's | bytes per event |\n\
         |---|---|---:|---:|---:|\n",
    );
    for Compression { megabits, is_on, speed, cpu: [worker, elasticsearch], bytes } in measured {
        let is_on = if *is_on { "yes" } else { "no" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {is_on} | {speed:.0} | {worker:.1}, {elasticsearch:.0} | {bytes:.0} |",
            name(*megabits)
        );
    }
    text
}
