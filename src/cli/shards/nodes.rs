//! `geofold shards nodes`.

use std::fmt;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use serde::Serialize;

use super::plan::load_record;
use super::{ConfigArgs, Failure, connect, output};
use crate::geoshard::balance::by_hour;
use crate::geoshard::balance::nodes::{HourlyLoad, NodePlacement, place};
use crate::geoshard::balance::replicas::{Copies, ReplicaLoad, copies};
use crate::io::elastic::Index;
use crate::io::load::unix_seconds;

const EXAMPLES: &str = "\
Examples:
  geofold shards nodes --nodes 6 --copies 140        # who gets the 140 copies, and on which of 6 nodes
  geofold shards nodes --node es-1,es-2,es-3 --copies 110 --json";

/// Propose copies and nodes for each geoshard, by the load that workers and routers counted. Changes nothing.
///
/// Copies go to the geoshards with the most searches. Nodes get geoshards of different time zones, so that the busy hours of one are the
/// quiet hours of another. The proposal is printed as settings of indices, to be sent with PUT.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct NodesArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// How many nodes there are; they are called node-1, node-2 ….
    #[arg(long, value_name = "N", required_unless_present = "node", conflicts_with = "node", value_parser = clap::value_parser!(u16).range(1..=1000))]
    nodes: Option<u16>,
    /// The names of the nodes.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    node: Vec<String>,
    /// Copies of all geoshards together, primaries included [default: two of each].
    #[arg(long, value_name = "N")]
    copies: Option<usize>,
    /// Copies of each geoshard, at least.
    #[arg(long, value_name = "N", default_value_t = 2)]
    least: usize,
    /// How much a write costs of what a search costs.
    #[arg(long, value_name = "WEIGHT", default_value_t = 0.1)]
    write_cost: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The proposal.
#[derive(Debug, Serialize)]
struct Proposal {
    copies: Vec<Copies>,
    placement: NodePlacement,
    settings: Vec<IndexSettings>,
}

/// The settings of one index.
#[derive(Debug, Serialize)]
struct IndexSettings {
    index: String,
    settings: serde_json::Value,
}

pub(super) async fn nodes(args: NodesArgs) -> Result<ExitCode, Failure> {
    if !args.write_cost.is_finite() || args.write_cost < 0.0 {
        return Err(Failure::usage(anyhow!("--write-cost is a weight: give a number from 0 on")));
    }
    let names: Vec<String> = match args.nodes {
        Some(nodes) => (1..=nodes).map(|node| format!("node-{node}")).collect(),
        None => args.node.clone(),
    };
    let config = args.config.load()?;
    let elastic = connect::elasticsearch(&config)?;
    let map = connect::live_maps(&config, &elastic).await?.iter().next().cloned();
    let Some(map) = map else { return Err(anyhow!("no map is in force").into()) };
    let record = load_record(&config, &elastic).await?;
    let hours = by_hour(&map, &record, unix_seconds());
    let shards = map.shards().iter().zip(&hours);
    let mean = |hours: &[[f64; 2]], at: usize| {
        hours.iter().map(|of| of[at]).sum::<f64>() / hours.len().max(1) as f64
    };
    let loads: Vec<ReplicaLoad> = shards
        .clone()
        .map(|(shard, hours)| ReplicaLoad {
            shard: shard.clone(),
            writes: mean(hours, 0) * args.write_cost,
            queries: mean(hours, 1),
        })
        .collect();
    let total = args.copies.unwrap_or(2 * map.shards().len());
    let least = args.least.min(names.len());
    let copies = copies(&loads, least, names.len(), total);
    let hourly: Vec<HourlyLoad> = shards
        .zip(&copies)
        .map(|((shard, hours), copies)| HourlyLoad {
            shard: shard.clone(),
            copies: copies.copies,
            hours: hours.iter().map(|of| of[0] * args.write_cost + of[1] / copies.copies as f64).collect(),
        })
        .collect();
    let placement = place(&hourly, names.len());
    let settings = placement.placed.iter().zip(&copies).map(|(placed, copies)| {
        let on: Vec<&str> =
            placed.nodes.iter().filter_map(|node| names.get(*node)).map(String::as_str).collect();
        IndexSettings {
            index: Index::Geoshard(placed.shard.clone()).name(&config.elasticsearch.prefix),
            settings: serde_json::json!({
                "index.number_of_replicas": copies.copies - 1,
                "index.routing.allocation.include._name": on.join(","),
            }),
        }
    });
    let settings = settings.collect();
    output::text_or_json(&Proposal { copies, placement, settings }, args.json)
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodePlacement { peak, peak_in_order, bound, .. } = self.placement;
        let total: usize = self.copies.iter().map(|copies| copies.copies).sum();
        writeln!(
            f,
            "{total} copies; the largest has {:.3} searches/s, or writes that cost as much",
            self.copies.iter().map(|copies| copies.load).fold(0.0, f64::max)
        )?;
        writeln!(
            f,
            "largest load of a node in an hour over the mean: {peak:.3} ({peak_in_order:.3} along the curve; no placement is below {bound:.3})"
        )?;
        for IndexSettings { index, settings } in &self.settings {
            write!(f, "\nPUT /{index}/_settings\n{settings}")?;
        }
        Ok(())
    }
}
