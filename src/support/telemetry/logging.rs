//! Where log lines go: to standard error, as text for people or as JSON for machines.
//!
//! librdkafka's own lines come through `tracing` too, under the targets `rdkafka` and `librdkafka`.

use std::env::{self, VarError};
use std::io::{IsTerminal, stderr};

use thiserror::Error;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, registry, reload};

use super::recent::Recent;
use crate::base::colours::Colours;
use crate::support::config::LogFormat;

/// The environment variable that wins over the configured filter.
pub const FILTER_VARIABLE: &str = "RUST_LOG";

/// Why logging could not be set up.
#[derive(Debug, Error)]
pub enum LoggingError {
    /// The filter does not parse.
    #[error(
        "the log filter {filter:?} from {origin} is not valid: {source}; \
         write for example \"info\" or \"info,geofold::worker=debug\""
    )]
    BadFilter {
        /// The given filter.
        filter: String,
        /// Where it was given.
        origin: &'static str,
        /// The parse error.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The environment variable is not UTF-8.
    #[error("the log filter in RUST_LOG is not valid UTF-8; unset it or write for example RUST_LOG=info")]
    NotUtf8,
    /// Something else in this process has set a logger.
    #[error("logging was already set up in this process: {0}")]
    AlreadySet(#[from] tracing_subscriber::util::TryInitError),
}

/// Logging that was set up.
pub struct Logging {
    /// The last warnings and errors.
    pub recent: Recent,
    /// Switches the filter.
    pub filter: FilterSwitch,
}

/// Changes which events are logged, while the process runs.
pub struct FilterSwitch {
    handle: reload::Handle<EnvFilter, Registry>,
    is_from_env: bool,
}

impl FilterSwitch {
    /// Whether the environment variable [`FILTER_VARIABLE`] has given the filter; it wins.
    pub fn is_from_env(&self) -> bool {
        self.is_from_env
    }

    /// From now on events are logged by this filter, unless the environment variable [`FILTER_VARIABLE`] wins.
    ///
    /// # Errors
    /// If it does not parse; the one before stays then.
    pub fn set(&self, configured: &str) -> Result<(), LoggingError> {
        let filter = choose_filter(None, configured)?;
        if !self.is_from_env {
            // Fails only without the subscriber, which lives as long as the process.
            let _ = self.handle.reload(filter);
        }
        Ok(())
    }
}

/// Sends log lines of this process to standard error. `configured` has the syntax of [`EnvFilter`]; the environment
/// variable [`FILTER_VARIABLE`] wins over it, unless it is empty. Warnings and errors are kept in what is returned,
/// regardless of the filter.
///
/// # Errors
/// If the filter does not parse, or logging was set up before.
pub fn init(format: LogFormat, configured: &str) -> Result<Logging, LoggingError> {
    let from_env = match env::var(FILTER_VARIABLE) {
        Ok(filter) => Some(filter),
        Err(VarError::NotPresent) => None,
        Err(VarError::NotUnicode(_)) => return Err(LoggingError::NotUtf8),
    };
    let is_from_env = from_env.as_deref().is_some_and(|filter| !filter.trim().is_empty());
    let (filter, handle) = reload::Layer::new(choose_filter(from_env.as_deref(), configured)?);
    let lines = match format {
        LogFormat::Text => {
            let colours = Colours::of(stderr().is_terminal(), |name| env::var_os(name));
            fmt::layer().with_writer(stderr).with_ansi(colours.are_on()).boxed()
        }
        LogFormat::Json => {
            fmt::layer().with_writer(stderr).json().flatten_event(true).with_current_span(false).boxed()
        }
    };
    let recent = Recent::default();
    registry()
        .with(lines.with_filter(filter))
        .with(recent.clone().with_filter(LevelFilter::WARN))
        .try_init()?;
    Ok(Logging { recent, filter: FilterSwitch { handle, is_from_env } })
}

fn choose_filter(from_env: Option<&str>, configured: &str) -> Result<EnvFilter, LoggingError> {
    let (filter, origin) = match from_env.filter(|filter| !filter.trim().is_empty()) {
        Some(filter) => (filter, FILTER_VARIABLE),
        None => (configured, "the configuration"),
    };
    EnvFilter::builder().parse(filter).map_err(|source| LoggingError::BadFilter {
        filter: filter.to_owned(),
        origin,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_wins_over_the_configuration_unless_it_is_empty() {
        let chosen =
            |from_env, configured| choose_filter(from_env, configured).map(|filter| filter.to_string());
        assert_eq!(chosen(None, "warn").unwrap(), "warn");
        assert_eq!(chosen(Some(""), "warn").unwrap(), "warn");
        assert_eq!(chosen(Some("debug"), "not a filter").unwrap(), "debug");
    }

    #[test]
    fn a_bad_filter_is_named_with_its_origin() {
        let error = choose_filter(None, "geofold=loud").unwrap_err().to_string();
        assert!(error.contains("\"geofold=loud\" from the configuration"), "{error}");
        let error = choose_filter(Some("geofold=loud"), "info").unwrap_err().to_string();
        assert!(error.contains("from RUST_LOG"), "{error}");
    }
}
