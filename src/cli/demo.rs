//! `geofold demo`.

use std::process::ExitCode;

use clap::Args;

use super::Failure;

/// Show the whole job on stand-ins, with no server installed. It comes with the next release.
#[derive(Debug, Args)]
pub struct DemoArgs {}

pub fn demo(_: &DemoArgs) -> Result<ExitCode, Failure> {
    Err(Failure::from(anyhow::anyhow!(
        "the demo comes with the next release; until then dev/stack starts a real Kafka and a real Elasticsearch, and \
         README.md's quick start runs the whole job on them"
    )))
}
