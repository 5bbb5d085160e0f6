//! Colours on a terminal, and none elsewhere.

use std::ffi::OsString;
use std::fmt::Display;

/// Colours text, or leaves it as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colours(bool);

impl Colours {
    /// Leaves text as it is.
    pub const NONE: Self = Self(false);

    /// For a stream: on a terminal that is not dumb, unless NO_COLOR says otherwise (no-color.org). `variable` reads the
    /// environment.
    pub fn of(is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let is_refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = variable("TERM").is_some_and(|value| value == "dumb");
        Self(is_terminal && !is_refused && !is_dumb)
    }

    /// Whether text is coloured.
    pub fn are_on(self) -> bool {
        self.0
    }

    /// What is as it should be.
    pub fn good(self, text: impl Display) -> String {
        self.paint("32", text)
    }

    /// What asks for attention.
    pub fn warning(self, text: impl Display) -> String {
        self.paint("33", text)
    }

    /// What is wrong.
    pub fn bad(self, text: impl Display) -> String {
        self.paint("1;31", text)
    }

    /// A heading.
    pub fn bold(self, text: impl Display) -> String {
        self.paint("1", text)
    }

    /// A figure that changes.
    pub fn accent(self, text: impl Display) -> String {
        self.paint("36", text)
    }

    /// What only explains.
    pub fn faint(self, text: impl Display) -> String {
        self.paint("2", text)
    }

    fn paint(self, code: &str, text: impl Display) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_gets_colours_and_no_color_is_respected() {
        let of = |is_terminal, variable: &str, value: &str| {
            Colours::of(is_terminal, |name| (name == variable).then(|| value.into())).are_on()
        };
        assert!(of(true, "TERM", "xterm") && !of(false, "TERM", "xterm"));
        assert!(!of(true, "NO_COLOR", "1") && of(true, "NO_COLOR", ""));
        assert!(!of(true, "TERM", "dumb"));
    }

    #[test]
    fn colours_end_where_the_text_does() {
        assert_eq!(Colours(true).good("ok"), "\u{1b}[32mok\u{1b}[0m");
        assert_eq!(Colours::NONE.bad("no"), "no");
    }
}
