//! Geoshards on nodes, so that the busy hours of one are the quiet hours of another.
//!
//! A geoshard is in a few time zones at most, so its load goes up and down with the day there. A node with geoshards of one
//! continent does that, too; a node with some of each does not. Copies are placed one after another, those with the largest peak
//! first, each on the node on which the largest load of any hour stays the lowest; of those, on the one with the least load. A
//! proposal, not an optimum: the report says how near it is to what no placement can beat.

use serde::Serialize;

use crate::base::ids::ShardId;

/// A geoshard, by the hour.
#[derive(Debug, Clone, PartialEq)]
pub struct HourlyLoad {
    /// Which.
    pub shard: ShardId,
    /// Its copies, each with its part of the load.
    pub copies: usize,
    /// The load of one copy in each hour; the same number of hours for all geoshards.
    pub hours: Vec<f64>,
}

/// Which nodes a geoshard is on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShardNodes {
    /// The geoshard.
    pub shard: ShardId,
    /// Its nodes, by number.
    pub nodes: Vec<usize>,
}

/// A placement, and how good it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodePlacement {
    /// In the order in which they were given.
    pub placed: Vec<ShardNodes>,
    /// The largest load of a node in any hour over the mean of all nodes and hours.
    pub peak: f64,
    /// The same if geoshards are placed in their order along the curve, as many on each node.
    pub peak_in_order: f64,
    /// No placement is below.
    pub bound: f64,
}

/// Places all copies on `nodes` nodes, no two of one geoshard on the same. Copies beyond the number of nodes are left out.
pub fn place(loads: &[HourlyLoad], nodes: usize) -> NodePlacement {
    let nodes = nodes.max(1);
    let hours = loads.iter().map(|load| load.hours.len()).max().unwrap_or_default();
    let peak_of = |load: &HourlyLoad| load.hours.iter().copied().fold(0.0, f64::max);
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by(|&one, &other| {
        peak_of(&loads[other]).total_cmp(&peak_of(&loads[one])).then(one.cmp(&other))
    });
    let mut on_node = vec![vec![0.0; hours]; nodes];
    let mut placed: Vec<ShardNodes> =
        loads.iter().map(|load| ShardNodes { shard: load.shard.clone(), nodes: Vec::new() }).collect();
    for at in order {
        for _ in 0..loads[at].copies.min(nodes) {
            let with = |node: usize| {
                let sums = on_node[node].iter().zip(&loads[at].hours).map(|(sum, load)| sum + load);
                (sums.clone().fold(0.0, f64::max), sums.sum::<f64>())
            };
            let free = (0..nodes).filter(|node| !placed[at].nodes.contains(node));
            let best =
                free.map(|node| (with(node), node)).min_by(|((peak, sum), _), ((other, other_sum), _)| {
                    peak.total_cmp(other).then(sum.total_cmp(other_sum))
                });
            let Some((_, node)) = best else { break };
            add(&mut on_node[node], &loads[at].hours);
            placed[at].nodes.push(node);
        }
        placed[at].nodes.sort_unstable();
    }
    let mut in_order = vec![vec![0.0; hours]; nodes];
    let copies: Vec<usize> =
        loads.iter().enumerate().flat_map(|(at, load)| vec![at; load.copies.min(nodes)]).collect();
    for (n, at) in copies.iter().enumerate() {
        add(&mut in_order[n * nodes / copies.len().max(1)], &loads[*at].hours);
    }
    let total: f64 = on_node.iter().flatten().sum();
    let mean = total / (nodes * hours).max(1) as f64;
    let over_mean = |load: f64| if mean > 0.0 { load / mean } else { 1.0 };
    let peak = |nodes: &[Vec<f64>]| over_mean(nodes.iter().flatten().copied().fold(0.0, f64::max));
    let of_hour = |hour: usize| on_node.iter().map(|node| node[hour]).sum::<f64>() / nodes as f64;
    let bound = (0..hours).map(of_hour).chain(loads.iter().map(peak_of)).fold(0.0, f64::max);
    NodePlacement { peak: peak(&on_node), peak_in_order: peak(&in_order), bound: over_mean(bound), placed }
}

fn add(sums: &mut [f64], hours: &[f64]) {
    sums.iter_mut().zip(hours).for_each(|(sum, load)| *sum += load);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Geoshards around the globe, three in each of eight time zones, busy around noon of theirs.
    fn around() -> Vec<HourlyLoad> {
        (0..24_usize)
            .map(|n| {
                let noon = n / 3 * 3;
                let hours = (0..24_usize).map(|hour| {
                    let away = hour.abs_diff(noon).min(24 - hour.abs_diff(noon));
                    1.0 + (12 - away) as f64
                });
                let shard = ShardId::new(&format!("s{n:02}")).unwrap();
                HourlyLoad { shard, copies: 2, hours: hours.collect() }
            })
            .collect()
    }

    #[test]
    fn time_zones_mix_so_that_no_node_has_a_peak() {
        let placement = place(&around(), 4);
        assert!(placement.peak_in_order > 1.4, "{placement:?}");
        assert!(placement.peak < 1.1 && placement.bound <= placement.peak, "{placement:?}");
        for placed in &placement.placed {
            assert!(placed.nodes.len() == 2 && placed.nodes[0] != placed.nodes[1], "{placed:?}");
        }
        let on = |node| placement.placed.iter().filter(|placed| placed.nodes.contains(&node)).count();
        assert_eq!((0..4).map(on).sum::<usize>(), 48);
    }

    #[test]
    fn a_peak_counts_more_than_a_sum() {
        let loads = [[10.0, 0.0], [9.0, 0.0], [0.0, 5.0], [4.0, 0.0]].iter().enumerate();
        let load = |(n, hours): (usize, &[f64; 2])| HourlyLoad {
            shard: ShardId::new(&format!("s{n}")).unwrap(),
            copies: 1,
            hours: hours.to_vec(),
        };
        let placement = place(&loads.map(load).collect::<Vec<_>>(), 2);
        let nodes: Vec<&[usize]> = placement.placed.iter().map(|placed| &*placed.nodes).collect();
        assert_eq!(
            nodes,
            [&[0][..], &[1], &[1], &[1]],
            "the last has 13 at noon with the second, 14 with the first"
        );
    }

    #[test]
    fn copies_beyond_the_nodes_and_no_load_at_all_are_no_error() {
        let many = vec![HourlyLoad { copies: 9, ..around()[0].clone() }];
        assert_eq!(place(&many, 2).placed[0].nodes, [0, 1]);
        assert_eq!(place(&[], 0).peak, 1.0);
        let idle = vec![HourlyLoad { hours: vec![0.0; 24], ..around()[0].clone() }];
        assert_eq!(place(&idle, 2).peak, 1.0);
    }
}
