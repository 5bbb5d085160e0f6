//! The speeds as a picture: one bar for each racer of each workload, on a logarithmic axis, since some are a hundred times as
//! fast as others.

use std::fmt::Write as _;

use crate::report::{Racer, Report};

const WIDTH: f64 = 760.0;
const BAR: f64 = 14.0;
const LABEL: f64 = 230.0;

/// The axis: events per second.
const LOWEST: f64 = 100.0;
const HIGHEST: f64 = 1_000_000.0;

/// The plot.
pub fn svg(report: &Report) -> String {
    let scale = |speed: f64| {
        let share = (speed.max(LOWEST) / LOWEST).log10() / (HIGHEST / LOWEST).log10();
        share.min(1.0) * (WIDTH - LABEL - 90.0)
    };
    let mut body = String::new();
    let mut y = 44.0;
    let mut last = None;
    for (workload, racer) in report.raced() {
        let Some(speed) = report.median(workload, racer, |lap| lap.speed) else { continue };
        if last.replace(workload) != Some(workload) {
            y += 8.0;
            // Writing to a String cannot fail.
            let _ = writeln!(body, r#"<text x="8" y="{:.0}">{}</text>"#, y + 11.0, workload.name());
        }
        let colour = match racer {
            Racer::Geofold => "#1d6fa5",
            Racer::Realtime => "#7fb2d3",
            Racer::Plain | Racer::Consumer => "#9a9a9a",
            Racer::Peer => "#d08a2e",
            Racer::Naive => "#b0483c",
        };
        let _ = writeln!(
            body,
            r#"<rect x="{LABEL}" y="{y:.0}" width="{:.1}" height="{:.0}" fill="{colour}"/><text x="{:.1}" y="{:.0}">{} {speed:.0}</text>"#,
            scale(speed),
            BAR - 2.0,
            LABEL + scale(speed) + 4.0,
            y + 10.0,
            racer.name(),
        );
        y += BAR;
    }
    let mut axis = String::new();
    let mut tick = LOWEST;
    while tick <= HIGHEST {
        let x = LABEL + scale(tick);
        let _ = writeln!(
            axis,
            r##"<path d="M{x:.1} 40V{y:.0}" stroke="#ddd"/><text x="{x:.1}" y="34" text-anchor="middle">{tick}</text>"##
        );
        tick *= 10.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"16\" font-size=\"13\">Events per second, medians, logarithmic</text>\n{axis}{body}</svg>\n",
        y + 12.0
    )
}
