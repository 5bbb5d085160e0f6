//! Sets up logging as configured.

use super::Failure;
use crate::support::config::Config;
use crate::support::telemetry::logging::{self, Logging};

pub(super) fn start(config: &Config) -> Result<Logging, Failure> {
    logging::init(config.log.format, &config.log.filter).map_err(Failure::usage)
}
