//! A week as a table and as a picture.

use std::fmt::{self, Write};

use super::{Hour, Week};

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// The picture's scale: pixels per hour, and from 1 to 2 times the mean.
const WIDE: f64 = 4.0;
const HIGH: f64 = 300.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
/// Height for 5 % moved.
const MOVED: f64 = 80.0;

impl Week {
    /// The largest of a measure in a day.
    fn largest(&self, day: usize, of: fn(&Hour) -> f64) -> f64 {
        self.hours.iter().skip(day * 24).take(24).map(of).fold(0.0, f64::max)
    }

    /// A picture, 800 units wide.
    pub fn svg(&self) -> String {
        let shown = |value: f64| TOP + HIGH - (value - 1.0).clamp(0.0, 1.0) * HIGH;
        let line = |of: fn(&Hour) -> f64| -> String {
            let points = self.hours.iter().enumerate();
            points
                .map(|(hour, at)| format!("{:.1},{:.1} ", LEFT + hour as f64 * WIDE, shown(of(at))))
                .collect()
        };
        let right = LEFT + 7.0 * 24.0 * WIDE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <title>Largest load of a geoshard over the mean, by hour, and documents moved per day</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
            right + 20.0,
            TOP + HIGH + MOVED + 50.0
        );
        // Writing to a string cannot fail.
        for tenth in [0, 2, 4, 6, 8, 10] {
            let value = 1.0 + f64::from(tenth) / 10.0;
            let y = shown(value);
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.1}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        let bottom = TOP + HIGH + MOVED + 20.0;
        for (day, (name, of)) in DAYS.iter().zip(&self.days).enumerate() {
            let x = LEFT + day as f64 * 24.0 * WIDE;
            let high = of.moved / 0.05 * MOVED;
            let _ = writeln!(svg, "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#eee\"/>");
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{high:.1}\" fill=\"#27867b\"/>",
                x + 24.0,
                bottom - high,
                12.0 * WIDE
            );
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}: {:.1} %</text>",
                x + 48.0,
                bottom + 16.0,
                of.moved * 100.0
            );
        }
        let _ =
            writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">moved</text>", LEFT - 6.0, bottom);
        for (name, colour, y, points) in [
            ("map that nobody changes", "#c0504d", 16.0, line(|hour| hour.unchanged)),
            ("autopilot", "#0b5653", 32.0, line(|hour| hour.autopilot)),
        ] {
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
                points.trim_end()
            );
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {y}h24\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{}\" y=\"{}\">{name}: largest load of a geoshard over the mean, last 24 hours</text>",
                LEFT + 30.0,
                y + 4.0
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

impl fmt::Display for Week {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| day | max/mean, map unchanged | max/mean, autopilot | expected | changes | moved |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for (day, (name, of)) in DAYS.iter().zip(&self.days).enumerate() {
            writeln!(
                f,
                "| {name} | {:.3} | {:.3} | {:.3} | {} | {:.2} % |",
                self.largest(day, |hour| hour.unchanged),
                self.largest(day, |hour| hour.autopilot),
                self.largest(day, |hour| hour.expected),
                of.changes,
                of.moved * 100.0
            )?;
        }
        writeln!(
            f,
            "\nmost moved within 24 hours: {:.2} %; came back within two days: {:.2} %",
            self.most_moved * 100.0,
            self.returned * 100.0
        )?;
        match self.nodes {
            None => Ok(()),
            Some((in_order, mixed)) => write!(
                f,
                "largest load of a node in an hour over the mean: {in_order:.3} along the curve, {mixed:.3} with time zones mixed"
            ),
        }
    }
}
