//! `geofold shards …`: one file per subcommand.

mod cover;
mod create;
mod diff;
mod input;
mod locate;
mod migrate;
mod plan;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{ConfigArgs, Failure, connect, output};

/// Geoshards: plan, show, compare and change maps, create indices, compute covers.
#[derive(Debug, Args)]
pub struct ShardsArgs {
    #[command(subcommand)]
    command: ShardsCommand,
}

#[derive(Debug, Subcommand)]
enum ShardsCommand {
    Plan(Box<plan::PlanArgs>),
    Create(create::CreateArgs),
    Show(Box<show::ShowArgs>),
    Diff(Box<diff::DiffArgs>),
    Migrate(migrate::MigrateArgs),
    Locate(locate::LocateArgs),
    Cover(cover::CoverArgs),
}

pub async fn shards(args: ShardsArgs) -> Result<ExitCode, Failure> {
    match args.command {
        ShardsCommand::Plan(args) => plan::plan(&args).await,
        ShardsCommand::Create(args) => create::create(args).await,
        ShardsCommand::Show(args) => show::show(&args),
        ShardsCommand::Diff(args) => diff::diff(&args),
        ShardsCommand::Migrate(args) => migrate::migrate(args).await,
        ShardsCommand::Locate(args) => locate::locate(args),
        ShardsCommand::Cover(args) => cover::cover(args).await,
    }
}
