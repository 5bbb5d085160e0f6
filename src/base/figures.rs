//! Figures as people read them, the same everywhere: thousands separated by commas, units after a space.

use std::time::Duration;

/// A count: `1,234,567`.
pub(crate) fn count(n: u64) -> String {
    grouped(&n.to_string())
}

/// Digits with separators.
pub(crate) fn grouped(digits: &str) -> String {
    let first = digits.len() % 3;
    let mut text = digits[..first].to_owned();
    for group in digits.as_bytes()[first..].chunks(3) {
        if !text.is_empty() {
            text.push(',');
        }
        text.extend(group.iter().map(|&digit| char::from(digit)));
    }
    text
}

/// A size in memory or on disk: `64.0 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n < 1 << 10 {
        return format!("{n} B");
    }
    let (mut size, mut unit) = (n as f64 / 1024.0, 0);
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        (size, unit) = (size / 1024.0, unit + 1);
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// A time that is left or has passed, to the second: `8 s`, `2 min 5 s`, `1 h 3 min`.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.saturating_add(Duration::from_millis(500)).as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{} h {minutes} min", count(hours)),
    }
}

/// A share of 0 to 1: `12.35%`.
pub(crate) fn percent(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The same rounded up, for a share that has to be reached.
pub(crate) fn percent_up(share: f64) -> String {
    percent(((share * 1e4 - 1e-6).ceil() / 1e4).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        let figures =
            [(0, "0"), (999, "999"), (1_000, "1,000"), (49_609, "49,609"), (1_234_567, "1,234,567")];
        for (n, text) in figures {
            assert_eq!(count(n), text);
        }
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!([bytes(1023), bytes(1 << 10), bytes(3 << 19)], ["1023 B", "1.0 KiB", "1.5 MiB"]);
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        let of = |seconds| time(Duration::from_secs(seconds));
        assert_eq!([of(0), of(59), of(125), of(3_780)], ["0 s", "59 s", "2 min 5 s", "1 h 3 min"]);
        assert_eq!(time(Duration::from_millis(1_500)), "2 s");
    }

    #[test]
    fn percentages_that_have_to_be_reached_are_rounded_up() {
        assert_eq!([percent_up(0.25), percent_up(0.123_41), percent_up(1.0)], ["25%", "12.35%", "100%"]);
        assert_eq!([percent(0.05), percent(0.0)], ["5%", "0%"]);
    }
}
