//! Sets up logging as configured.

use super::Failure;
use crate::support::config::{Config, LogFormat};
use crate::support::telemetry::logging::{self, Logging};

pub(super) fn start(config: &Config) -> Result<Logging, Failure> {
    let format = match config.log.format {
        LogFormat::Text => logging::LogFormat::Text,
        LogFormat::Json => logging::LogFormat::Json,
    };
    logging::init(format, &config.log.filter).map_err(Failure::usage)
}
