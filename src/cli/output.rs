//! Standard output, for results. A reader that goes away early (`| head`) is no error.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write, stdout};
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;

use super::Failure;
use crate::base::colours::Colours;

/// Colours for standard output.
pub(super) fn colours() -> Colours {
    Colours::of(stdout().is_terminal(), |name| std::env::var_os(name))
}

/// Prints `value` and a line break.
pub(super) fn line(value: impl Display) -> Result<(), Failure> {
    text(format_args!("{value}\n"))
}

/// Prints `value` as it is.
pub(super) fn text(value: impl Display) -> Result<(), Failure> {
    match write!(stdout().lock(), "{value}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result.context("writing to standard output")?),
    }
}

/// Prints `value` as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(serde_json::to_string_pretty(value).context("writing JSON")?)
}

/// Prints a command's result as text or JSON.
pub(super) fn text_or_json(value: &(impl Serialize + Display), json: bool) -> Result<ExitCode, Failure> {
    if json {
        self::json(value)?;
    } else {
        line(value)?;
    }
    Ok(ExitCode::SUCCESS)
}
