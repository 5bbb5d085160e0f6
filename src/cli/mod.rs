//! The command line: one file per subcommand, each thin.
//!
//! Exit codes: 0 all went well; 1 it did not, and the last lines of standard error say why; 2 the arguments or the
//! configuration are wrong and nothing was started. `check`, `send`, `audit` and `campaign run` say in their help what else they mean by 1.

mod audit;
mod campaign;
mod certificates;
mod check;
mod cloud;
mod collect;
mod config;
mod connect;
mod dead_letters;
mod demo;
mod dry_run;
mod health;
mod logging;
mod output;
mod progress;
mod reload;
mod repartition;
mod restore;
mod route;
mod run;
mod search;
mod send;
mod shards;
mod shell;
mod signals;
mod snapshot;
mod status;
mod values;
mod version;
mod where_is;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::support::config::{Config, ConfigError, ConfigFinding};

/// Keeps a geosharded Elasticsearch index in step with a Kafka topic.
///
/// Reads document writes from a topic keyed by document id, folds them, and moves documents between geoshard indices by
/// a crash-safe protocol. Start with `geofold check -c FILE`.
#[derive(Debug, Parser)]
#[command(name = "geofold", version = version::version(), propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// No doc comments on the variants: they would replace the long help of the argument structs.
#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Check(check::CheckArgs),
    Status(status::StatusArgs),
    #[command(name = "where")]
    WhereIs(where_is::WhereArgs),
    DryRun(dry_run::DryRunArgs),
    Shards(shards::ShardsArgs),
    Send(send::SendArgs),
    Route(route::RouteArgs),
    Search(search::SearchArgs),
    Collect(collect::CollectArgs),
    Cloud(cloud::CloudArgs),
    DeadLetters(dead_letters::DeadLettersArgs),
    Audit(audit::AuditArgs),
    Campaign(campaign::CampaignArgs),
    Snapshot(snapshot::SnapshotArgs),
    Restore(restore::RestoreArgs),
    Repartition(repartition::RepartitionArgs),
    Config(config::ConfigCommandArgs),
    Demo(demo::DemoArgs),
    Health(health::HealthArgs),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
}

/// Options shared by most subcommands.
#[derive(Debug, Clone, Args)]
struct ConfigArgs {
    /// Configuration file; config/geofold.toml documents every key. Environment variables GEOFOLD_SECTION__KEY override
    /// it.
    #[arg(short, long, value_name = "FILE", env = "GEOFOLD_CONFIG", default_value = "geofold.toml")]
    config: PathBuf,
}

impl ConfigArgs {
    /// Reads the configuration and checks it.
    fn read(&self) -> Result<(Config, Vec<ConfigFinding>), ConfigError> {
        let mut env = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            match (name.into_string(), value.into_string()) {
                (Ok(name), Ok(value)) => drop(env.insert(name, value)),
                (Ok(name), Err(_)) if name.starts_with("GEOFOLD_") => {
                    return Err(ConfigError::VariableNotUtf8(name));
                }
                // Not geofold's.
                _ => {}
            }
        }
        let config = Config::load(&self.config, &env)?;
        let findings = config.findings();
        Ok((config, findings))
    }

    /// Reads the configuration and refuses one that has errors; warnings go to standard error.
    fn load(&self) -> Result<Config, Failure> {
        let (config, findings) = self.read().map_err(Failure::usage)?;
        for finding in &findings {
            eprintln!("{finding}");
        }
        if findings.iter().any(ConfigFinding::is_error) {
            return Err(Failure::usage(anyhow::anyhow!(
                "invalid configuration {}; see the lines above",
                self.config.display()
            )));
        }
        crate::io::kafka::check_properties(&config).map_err(Failure::usage)?;
        Ok(config)
    }
}

/// Why a subcommand failed, and with which exit code.
#[derive(Debug)]
struct Failure {
    error: anyhow::Error,
    code: u8,
}

impl Failure {
    /// Wrong arguments or configuration: nothing was started.
    fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { error: error.into(), code: 2 }
    }

    /// Adds context and keeps the exit code.
    fn context(self, said: &'static str) -> Self {
        Self { error: self.error.context(said), code: self.code }
    }
}

/// The error and its causes, without causes already contained in the text.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.error.to_string();
        for cause in self.error.chain().skip(1) {
            let cause = cause.to_string();
            if !said.contains(&cause) {
                said = format!("{said}: {cause}");
            }
        }
        f.write_str(&said)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { error: error.into(), code: 1 }
    }
}

/// Parses the arguments, runs the subcommand, and prints its error, if any.
pub fn main() -> ExitCode {
    crate::io::kafka::skip_openssl_atexit();
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(args) => block_on(run::run(args)),
        Command::Check(args) => block_on(check::check(args)),
        Command::Status(args) => block_on(status::status(args)),
        Command::WhereIs(args) => block_on(where_is::where_is(args)),
        Command::DryRun(args) => block_on(dry_run::dry_run(args)),
        Command::Shards(args) => block_on(shards::shards(args)),
        Command::Send(args) => block_on(send::send(args)),
        Command::Route(args) => block_on(route::route(args)),
        Command::Search(args) => block_on(search::search(args)),
        Command::Collect(args) => block_on(collect::collect(args)),
        Command::Cloud(args) => block_on(cloud::cloud(args)),
        Command::DeadLetters(args) => block_on(dead_letters::dead_letters(args)),
        Command::Audit(args) => block_on(audit::audit(args)),
        Command::Campaign(args) => block_on(campaign::campaign(args)),
        Command::Snapshot(args) => block_on(snapshot::snapshot(args)),
        Command::Restore(args) => block_on(restore::restore(args)),
        Command::Repartition(args) => block_on(repartition::repartition(args)),
        Command::Config(args) => config::config(args),
        Command::Demo(args) => block_on(demo::demo(args)),
        Command::Health(args) => block_on(health::health(args)),
        Command::Completions(args) => shell::completions(Cli::command(), &args),
        Command::Man(args) => shell::man(Cli::command(), &args),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.code)
        }
    }
}

/// Task polls between two polls of the sockets. A partition task may compute for milliseconds per poll: with tokio's default of
/// 61, responses of Elasticsearch would wait about 100 ms.
const TURNS_PER_LOOK_AT_SOCKETS: u32 = 4;

fn block_on(work: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .event_interval(TURNS_PER_LOOK_AT_SOCKETS)
        .thread_name("geofold")
        .build()
        .context("starting the async runtime")?;
    let result = runtime.block_on(work);
    // Standard input cannot be interrupted: do not wait for a thread that reads it.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn cause_contained_in_the_error_is_printed_once() {
        let cause = std::io::Error::other("no route to host");
        let error =
            anyhow::Error::new(cause).context("asking x: no route to host; look at urls").context("in vain");
        assert_eq!(Failure::usage(error).to_string(), "in vain: asking x: no route to host; look at urls");
    }

    #[test]
    fn subcommand_has_long_help() {
        let command = Cli::command();
        for name in ["run", "send", "search", "collect", "audit", "health"] {
            let subcommand = command.find_subcommand(name).unwrap();
            let (short, long) = (subcommand.get_about().unwrap(), subcommand.get_long_about().unwrap());
            assert!(long.to_string().len() > short.to_string().len(), "{name}");
        }
    }
}
