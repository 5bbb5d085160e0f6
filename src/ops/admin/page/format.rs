//! Formats numbers and text of the page. `page.js` has the same rules for refreshed values.

use std::fmt::{self, Write};

use crate::base::figures::grouped;

/// Text from anywhere, made harmless for HTML, in an element or a quoted attribute.
pub(super) struct Text<T>(pub T);

impl<T: fmt::Display> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.write_str("&amp;")?,
                '<' => self.0.write_str("&lt;")?,
                '>' => self.0.write_str("&gt;")?,
                '"' => self.0.write_str("&quot;")?,
                '\'' => self.0.write_str("&#39;")?,
                _ => self.0.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Text of an unknown value.
pub(super) const UNKNOWN: &str = "unknown";

/// `1,234,567`.
pub(super) fn number(number: impl fmt::Display) -> String {
    let digits = number.to_string();
    match digits.strip_prefix('-') {
        Some(digits) => format!("-{}", grouped(digits)),
        None => grouped(&digits),
    }
}

/// `1.2 k`, `3.4 M`: three digits or so, for places where more would not be read.
pub(super) fn short(number: u64) -> String {
    scaled(number as f64, 1000.0, &["", "\u{a0}k", "\u{a0}M", "\u{a0}G", "\u{a0}T"])
}

/// `12.3 MiB`.
pub(super) fn bytes(bytes: i64) -> String {
    scaled(bytes as f64, 1024.0, &["\u{a0}B", "\u{a0}KiB", "\u{a0}MiB", "\u{a0}GiB", "\u{a0}TiB"])
}

fn scaled(mut number: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while number >= step && unit + 1 < units.len() {
        number /= step;
        unit += 1;
    }
    format!("{}{}", digits(number), units[unit])
}

/// At most one decimal digit, and no trailing zero.
fn digits(number: f64) -> String {
    let text = if number < 100.0 { format!("{number:.1}") } else { format!("{number:.0}") };
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// A rate, per second.
pub(super) fn rate(rate: f64) -> String {
    if rate < 1000.0 { digits(rate) } else { number(format!("{rate:.0}")) }
}

/// A change per second: `+12.3`, `-1,234`, `0`.
pub(super) fn change(change: f64) -> String {
    match (rate(change.abs()).as_str(), change < 0.0) {
        ("0", _) => "0".to_owned(),
        (rate, true) => format!("-{rate}"),
        (rate, false) => format!("+{rate}"),
    }
}

/// Whether a browser may open it: a URL of another scheme could run a script.
pub(super) fn is_web(text: &str) -> bool {
    url::Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

/// `0 s`, `4.2 s`, `12 min`, `3 h 12 min`, `5 d 2 h`.
pub(super) fn seconds(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{}\u{a0}s", digits(seconds)),
        60..3600 => format!("{}\u{a0}min", whole / 60),
        3600..86400 => format!("{}\u{a0}h {}\u{a0}min", whole / 3600, whole / 60 % 60),
        _ => format!("{}\u{a0}d {}\u{a0}h", whole / 86400, whole / 3600 % 24),
    }
}

/// How many times the mean; two digits, since 1.1 and 1.25 are told apart.
pub(super) fn times(times: f64) -> String {
    format!("{times:.2}")
}

/// A time that a request took.
pub(super) fn millis(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{}\u{a0}ms", digits(seconds * 1000.0))
    } else {
        format!("{}\u{a0}s", digits(seconds))
    }
}

/// The formatted value, or [`UNKNOWN`].
pub(super) fn known<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_can_not_leave_its_element_or_attribute() {
        let text = Text("</p><script>alert(\"1\" & '2')</script>").to_string();
        assert_eq!(text, "&lt;/p&gt;&lt;script&gt;alert(&quot;1&quot; &amp; &#39;2&#39;)&lt;/script&gt;");
    }

    #[test]
    fn only_addresses_of_the_web_are_opened() {
        for (text, expected) in [
            ("http://10.0.0.5:9464", true),
            ("https://[::1]:9464/", true),
            ("javascript:alert(1)", false),
            (" java\nscript:alert(1)", false),
            ("data:text/html,x", false),
            ("//host", false),
            ("host:9464", false),
            ("", false),
        ] {
            assert_eq!(is_web(text), expected, "{text}");
        }
    }

    #[test]
    fn numbers_are_as_long_as_they_are_read() {
        assert_eq!(number(1_234_567), "1,234,567");
        assert_eq!(number(-123), "-123");
        assert_eq!([short(999), short(50_000), short(1_250_000)], ["999", "50\u{a0}k", "1.2\u{a0}M"]);
        assert_eq!([bytes(0), bytes(12_900_000)], ["0\u{a0}B", "12.3\u{a0}MiB"]);
        assert_eq!([rate(0.04), rate(12.34), rate(1234.5)], ["0", "12.3", "1,234"]);
        assert_eq!([change(12.34), change(-1234.5), change(-0.01)], ["+12.3", "-1,234", "0"]);
        assert_eq!([seconds(4.24), seconds(11_520.0)], ["4.2\u{a0}s", "3\u{a0}h 12\u{a0}min"]);
        assert_eq!([times(1.0), times(1.2549)], ["1.00", "1.25"]);
        assert_eq!([millis(0.0042), millis(1.5)], ["4.2\u{a0}ms", "1.5\u{a0}s"]);
        assert_eq!(known(None::<i64>, number), UNKNOWN);
    }
}
