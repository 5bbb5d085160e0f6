//! How many nodes, how much heap and disk: arithmetic on documents and rates, with every assumption printed beside the result.
//!
//! The node with the largest geoshards has to carry `max_over_mean` times the mean, so every sum is multiplied by that.

use std::fmt;

use serde::Serialize;

/// What has to be carried.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Demand {
    /// Documents.
    pub documents: f64,
    /// Bytes of one, as JSON.
    pub document_bytes: f64,
    /// Documents written per second, on average.
    pub writes: f64,
    /// The part of the writes that moves a document to another geoshard, 0 to 1.
    pub moving: f64,
    /// Searches per second, on average.
    pub queries: f64,
    /// Geoshards that a search asks, on average.
    pub geoshards_asked: f64,
    /// Geoshards.
    pub geoshards: usize,
    /// Copies of each, the primary included.
    pub copies: usize,
    /// Largest load of a geoshard over the mean.
    pub max_over_mean: f64,
}

/// What is taken for granted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Assumptions {
    /// Bytes on disk for one byte of JSON, with doc values, merges and deleted documents.
    pub disk_per_byte: f64,
    /// Bytes of a placement on disk.
    pub placement_bytes: f64,
    /// The part of a disk that may be full: Elasticsearch's low watermark.
    pub disk_full: f64,
    /// Busy hours over the mean of the day.
    pub peak: f64,
    /// Writes to one copy that a core does per second.
    pub writes_per_core: f64,
    /// Searches of one geoshard that a core does per second.
    pub searches_per_core: f64,
    /// The part of a core's time that may be used.
    pub cores_busy: f64,
    /// Copies of geoshards for a GiB of heap.
    pub copies_per_heap_gib: f64,
    /// Cores of a node.
    pub node_cores: f64,
    /// Heap of a node, in GiB.
    pub node_heap_gib: f64,
    /// Disk of a node, in GiB.
    pub node_disk_gib: f64,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Capacity {
    /// What was asked for.
    pub demand: Demand,
    /// What was taken for granted.
    pub assumptions: Assumptions,
    /// Nodes, the largest of the three below and at least one for each copy.
    pub nodes: u64,
    /// Nodes by disk.
    pub by_disk: u64,
    /// Nodes by cores.
    pub by_cores: u64,
    /// Nodes by heap.
    pub by_heap: u64,
    /// Disk of all copies, in GiB.
    pub disk_gib: f64,
    /// Disk of the largest geoshard, in GiB; one copy.
    pub largest_gib: f64,
    /// Cores busy in the busy hours.
    pub cores: f64,
    /// Heap in GiB.
    pub heap_gib: f64,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            disk_per_byte: 1.5,
            placement_bytes: 100.0,
            disk_full: 0.85,
            peak: 2.0,
            writes_per_core: 4000.0,
            searches_per_core: 200.0,
            cores_busy: 0.6,
            copies_per_heap_gib: 20.0,
            node_cores: 8.0,
            node_heap_gib: 16.0,
            node_disk_gib: 500.0,
        }
    }
}

const GIB: f64 = (1_u64 << 30) as f64;
/// Beside the document: its old copy is deleted, its placement written twice.
const WRITES_OF_A_MOVE: f64 = 3.0;

fn nodes(needed: f64, each: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates; not below 0, and nobody has 2^64 nodes"
    )]
    let nodes = (needed / each.max(f64::MIN_POSITIVE)).ceil().max(1.0) as u64;
    nodes
}

impl Capacity {
    /// Calculates.
    pub fn of(demand: Demand, assumptions: Assumptions) -> Self {
        let Demand { documents, document_bytes, writes, moving, queries, geoshards_asked, .. } = demand;
        let Demand { geoshards, copies, max_over_mean, .. } = demand;
        let a = assumptions;
        let copies_of_each = copies.max(1) as f64;
        let data = documents * document_bytes * a.disk_per_byte;
        let placements = documents * a.placement_bytes * a.disk_per_byte;
        let disk_gib = (data + placements) * copies_of_each / GIB;
        let largest_gib = data / geoshards.max(1) as f64 * max_over_mean / GIB;
        let writing = writes * (1.0 + WRITES_OF_A_MOVE * moving) * copies_of_each / a.writes_per_core;
        let searching = queries * geoshards_asked / a.searches_per_core;
        let cores = (writing + searching) * a.peak;
        // Two further indices: placements and meta.
        let heap_gib = (geoshards + 2) as f64 * copies_of_each / a.copies_per_heap_gib;
        let by_disk = nodes(disk_gib * max_over_mean, a.node_disk_gib * a.disk_full);
        let by_cores = nodes(cores * max_over_mean, a.node_cores * a.cores_busy);
        let by_heap = nodes(heap_gib, a.node_heap_gib);
        let nodes = by_disk.max(by_cores).max(by_heap).max(copies.max(1) as u64);
        Self {
            demand,
            assumptions,
            nodes,
            by_disk,
            by_cores,
            by_heap,
            disk_gib,
            largest_gib,
            cores,
            heap_gib,
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { demand: d, assumptions: a, nodes, by_disk, by_cores, by_heap, .. } = self;
        writeln!(f, "capacity: {nodes} nodes (by disk {by_disk}, by cores {by_cores}, by heap {by_heap})")?;
        writeln!(
            f,
            "  disk    {:>10.1} GiB, all copies; the largest geoshard has {:.1} GiB",
            self.disk_gib, self.largest_gib
        )?;
        writeln!(f, "  cores   {:>10.1} busy in the busy hours", self.cores)?;
        writeln!(f, "  heap    {:>10.1} GiB", self.heap_gib)?;
        writeln!(f, "for")?;
        writeln!(
            f,
            "  {:.0} documents of {:.0} bytes in {} geoshards, {} copies each",
            d.documents, d.document_bytes, d.geoshards, d.copies
        )?;
        writeln!(f, "  {:.1} writes/s, of which {:.2} % move a document", d.writes, d.moving * 100.0)?;
        writeln!(f, "  {:.1} searches/s, each of {:.2} geoshards", d.queries, d.geoshards_asked)?;
        writeln!(f, "  the largest geoshard has {:.3} times the mean load", d.max_over_mean)?;
        writeln!(f, "assuming (measure your own)")?;
        writeln!(
            f,
            "  {} bytes on disk for a byte of JSON, {} bytes for a placement, disks {:.0} % full at most",
            a.disk_per_byte,
            a.placement_bytes,
            a.disk_full * 100.0
        )?;
        writeln!(f, "  busy hours have {} times the mean of the day", a.peak)?;
        writeln!(
            f,
            "  a core does {} writes/s or {} searches of a geoshard per second, and is busy {:.0} % at most",
            a.writes_per_core,
            a.searches_per_core,
            a.cores_busy * 100.0
        )?;
        writeln!(f, "  a move costs {WRITES_OF_A_MOVE} writes more than a write in place")?;
        writeln!(f, "  {} copies of geoshards for a GiB of heap", a.copies_per_heap_gib)?;
        write!(
            f,
            "  a node has {} cores, {} GiB of heap, {} GiB of disk",
            a.node_cores, a.node_heap_gib, a.node_disk_gib
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: Demand = Demand {
        documents: 100e6,
        document_bytes: 1024.0,
        writes: 8000.0,
        moving: 0.0,
        queries: 0.0,
        geoshards_asked: 2.0,
        geoshards: 50,
        copies: 2,
        max_over_mean: 1.0,
    };

    #[test]
    fn each_limit_has_its_nodes() {
        let of = |demand| Capacity::of(demand, Assumptions::default());
        let capacity = of(DEMAND);
        // 100e6 × (1024 + 100) × 1.5 × 2 = 314 GiB of 425; 8000 × 2 / 4000 × 2 = 8 cores of 4.8.
        assert!((capacity.disk_gib - 314.0).abs() < 1.0 && (capacity.cores - 8.0).abs() < 1e-9);
        assert_eq!((capacity.by_disk, capacity.by_cores, capacity.by_heap, capacity.nodes), (1, 2, 1, 2));
        assert_eq!(of(Demand { max_over_mean: 1.5, ..DEMAND }).by_disk, 2);
        assert_eq!(of(Demand { moving: 0.5, ..DEMAND }).cores, 20.0);
        assert_eq!(of(Demand { queries: 480.0, ..DEMAND }).by_cores, 4);
        assert_eq!(of(Demand { geoshards: 1000, ..DEMAND }).by_heap, 7);
        assert_eq!(
            of(Demand { copies: 5, documents: 0.0, writes: 0.0, ..DEMAND }).nodes,
            5,
            "a copy on each"
        );
        let text = capacity.to_string();
        assert!(
            text.starts_with("capacity: 2 nodes (by disk 1, by cores 2, by heap 1)")
                && text.contains("4000 writes/s"),
            "{text}"
        );
    }
}
