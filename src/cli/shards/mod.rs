//! `geofold shards …`: one file per subcommand.

mod cover;
mod create;
mod locate;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{ConfigArgs, Failure, connect, output};

/// Geoshards: create their indices, show the map, locate a point, cover a circle, a box or a polygon.
#[derive(Debug, Args)]
pub struct ShardsArgs {
    #[command(subcommand)]
    command: ShardsCommand,
}

#[derive(Debug, Subcommand)]
enum ShardsCommand {
    Create(create::CreateArgs),
    Show(show::ShowArgs),
    Locate(locate::LocateArgs),
    Cover(cover::CoverArgs),
}

pub async fn shards(args: ShardsArgs) -> Result<ExitCode, Failure> {
    match args.command {
        ShardsCommand::Create(args) => create::create(args).await,
        ShardsCommand::Show(args) => show::show(args),
        ShardsCommand::Locate(args) => locate::locate(args),
        ShardsCommand::Cover(args) => cover::cover(args),
    }
}
