//! `geofold campaign …`: commands that change an existing campaign; `create`, `run` and `show` have their own files.

mod create;
mod run;
mod show;

use std::num::NonZeroU32;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};

use super::{ConfigArgs, Failure, connect, output, signals, values};
use crate::io::database::Database;
use crate::ops::campaign::store::{CampaignStore, CampaignStoreError};
use crate::ops::campaign::{CampaignAction, Command};
use crate::support::config::Config;

/// Touch, refeed or delete many documents: create a list, run it on any machines, watch it.
///
/// A campaign is a list of document ids with an action, stored in [database]. Any number of `run`s on any machines
/// share the work; each sends records to the topic, which workers process in order with all other writes. A killed run
/// loses nothing: the others send its chunk again (docs/campaigns.md).
#[derive(Debug, Args)]
pub(super) struct CampaignArgs {
    #[command(subcommand)]
    command: CampaignCommand,
}

#[derive(Debug, Subcommand)]
enum CampaignCommand {
    Create(Box<create::CreateCampaignArgs>),
    Run(run::RunCampaignArgs),
    Watch(run::WatchArgs),
    Status(show::CampaignStatusArgs),
    List(show::ListArgs),
    /// Pause: no more chunks are handed out; current ones are finished.
    Pause(OneArgs),
    /// Resume after a pause.
    Resume(OneArgs),
    /// Cancel permanently; current chunks stop within seconds. Records already sent remain.
    Cancel(OneArgs),
    /// Queue failed ids again, after all others.
    Retry(OneArgs),
    /// Remove a finished or cancelled campaign and its list.
    Remove(OneArgs),
    Rate(RateArgs),
}

/// One campaign.
#[derive(Debug, Args)]
struct OneArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The campaign's number.
    #[arg(value_parser = values::campaign)]
    id: i64,
}

/// Change the rate of all runs together; runs follow within the lease time.
#[derive(Debug, Args)]
struct RateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The campaign's number.
    #[arg(value_parser = values::campaign)]
    id: i64,
    /// Maximum ids per second; `none` for no limit.
    #[arg(value_parser = rate)]
    rate: Rate,
}

/// A rate, or `none`.
#[derive(Debug, Clone, Copy)]
struct Rate(Option<NonZeroU32>);

fn rate(text: &str) -> anyhow::Result<Rate> {
    match text {
        "none" => Ok(Rate(None)),
        number => Ok(Rate(Some(number.parse().context("write a whole number above zero, or none")?))),
    }
}

pub(super) async fn campaign(args: CampaignArgs) -> Result<ExitCode, Failure> {
    match args.command {
        CampaignCommand::Create(args) => create::create(*args).await,
        CampaignCommand::Run(args) => run::run(args).await,
        CampaignCommand::Watch(args) => run::watch(args).await,
        CampaignCommand::Status(args) => show::status(args).await,
        CampaignCommand::List(args) => show::list(args).await,
        CampaignCommand::Pause(args) => execute(args, Command::Pause).await,
        CampaignCommand::Resume(args) => execute(args, Command::Resume).await,
        CampaignCommand::Cancel(args) => execute(args, Command::Cancel).await,
        CampaignCommand::Retry(args) => execute(args, Command::Retry).await,
        CampaignCommand::Remove(args) => execute(args, Command::Remove).await,
        CampaignCommand::Rate(args) => {
            let store = open(&args.config.load()?).await?;
            let rate = args.rate.0.map(NonZeroU32::get);
            let set = store.set_rate(args.id, rate).await;
            store.close().await;
            set.map_err(refused)?;
            output::line(match rate {
                Some(rate) => format!("campaign {}: {rate} ids/s at most", args.id),
                None => format!("campaign {}: no rate limit", args.id),
            })?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn execute(args: OneArgs, command: Command) -> Result<ExitCode, Failure> {
    let store = open(&args.config.load()?).await?;
    let id = args.id;
    let said = async {
        Ok::<_, CampaignStoreError>(match command {
            Command::Retry => format!("{} ids queued again", store.retry(id).await?),
            Command::Remove => {
                store.remove(id).await?;
                "forgotten".to_owned()
            }
            command => store.execute(id, command).await?.to_string(),
        })
    };
    let said = said.await;
    store.close().await;
    output::line(format_args!("campaign {id}: {}", said.map_err(refused)?))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses an action that the configuration cannot carry out, and warns where a record of it could stop a partition.
fn carries(config: &Config, action: CampaignAction) -> Result<(), Failure> {
    if action == CampaignAction::Refeed && config.source.kind.is_none() {
        return Err(Failure::usage(anyhow::anyhow!(
            "a refeed fetches documents from the source of truth, and [source] is not configured: workers without it make each record \
             a dead letter, or stop its partition; configure [source] for the workers and here"
        )));
    }
    if action != CampaignAction::Delete {
        connect::warn_of_stops(config, "a document that cannot be fetched or written");
    }
    Ok(())
}

/// An unknown campaign, or a state that does not allow the command, is a usage error.
fn refused(error: CampaignStoreError) -> Failure {
    match error {
        CampaignStoreError::Database(error) => error.into(),
        error => Failure::usage(error),
    }
}

async fn open(config: &Config) -> Result<CampaignStore, Failure> {
    let store = CampaignStore::new(Database::open(&config.database).await?);
    store.prepare().await?;
    Ok(store)
}
