//! `geofold shards …`: one file per subcommand.

mod autopilot;
mod cover;
mod create;
mod diff;
mod input;
mod load;
mod locate;
mod migrate;
mod nodes;
mod plan;
mod show;
mod split;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{ConfigArgs, Failure, connect, output};

/// Geoshards: plan a map, split and merge geoshards, compare maps, create indices, change the map while workers run, locate a point, cover a circle.
#[derive(Debug, Args)]
pub(super) struct ShardsArgs {
    #[command(subcommand)]
    command: ShardsCommand,
}

#[derive(Debug, Subcommand)]
enum ShardsCommand {
    Plan(Box<plan::PlanArgs>),
    Split(Box<split::SplitArgs>),
    Merge(Box<split::MergeArgs>),
    Create(create::CreateShardsArgs),
    Show(Box<show::ShowArgs>),
    Diff(Box<diff::DiffArgs>),
    Migrate(migrate::MigrateArgs),
    Autopilot(Box<autopilot::AutopilotArgs>),
    Load(load::LoadArgs),
    Nodes(nodes::NodesArgs),
    Locate(locate::LocateArgs),
    Cover(cover::CoverArgs),
}

pub(super) async fn shards(args: ShardsArgs) -> Result<ExitCode, Failure> {
    match args.command {
        ShardsCommand::Plan(args) => plan::plan(&args).await,
        ShardsCommand::Split(args) => split::split(&args).await,
        ShardsCommand::Merge(args) => split::merge(&args).await,
        ShardsCommand::Create(args) => create::create(args).await,
        ShardsCommand::Show(args) => show::show(&args),
        ShardsCommand::Diff(args) => diff::diff(&args),
        ShardsCommand::Migrate(args) => migrate::migrate(args).await,
        ShardsCommand::Autopilot(args) => autopilot::autopilot(*args).await,
        ShardsCommand::Load(args) => load::load(args).await,
        ShardsCommand::Nodes(args) => nodes::nodes(args).await,
        ShardsCommand::Locate(args) => locate::locate(args),
        ShardsCommand::Cover(args) => cover::cover(args).await,
    }
}
