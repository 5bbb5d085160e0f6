//! The way of one write without Kafka and without Elasticsearch: what each part of it costs, and what all of it costs for a
//! document that is new, in place, or moves.
//!
//! `cargo bench --bench hot_path` measures time, with allocations. `dev/instructions` counts instructions instead, which do
//! not depend on what else the machine does: it runs `hot_path once NAME` under callgrind, and compares with
//! `baseline.tsv`.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails is one that does not run")]

mod allocations;
mod null;
mod workloads;

use divan::Bencher;
use divan::counter::ItemsCount;

use crate::allocations::Counting;
use crate::workloads::{FAST_PATHS, WORKLOADS, Workload};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Records of one run: several batches of the default size.
const RECORDS: usize = 20_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => WORKLOADS.iter().for_each(|workload| println!("{}", workload.name)),
        ["once", name] => {
            let workload = WORKLOADS.iter().chain(FAST_PATHS).find(|workload| workload.name == name).unwrap();
            once(workload);
        }
        _ => divan::main(),
    }
}

/// Runs a workload once, and prints how many records went through and what was allocated for them.
fn once(workload: &Workload) {
    let run = (workload.prepare)(RECORDS);
    let before = allocations::so_far();
    measured(run);
    let allocated = allocations::so_far() - before;
    println!("{}\t{RECORDS}\t{allocated}", workload.name);
}

/// What callgrind counts: everything below this function, and nothing besides.
#[inline(never)]
fn measured(run: Box<dyn FnOnce()>) {
    run();
    // So that the call above is no jump: it must come back here.
    std::hint::black_box(());
}

#[divan::bench(args = WORKLOADS, sample_count = 20)]
fn hot_path(bencher: Bencher<'_, '_>, workload: &Workload) {
    measure(bencher, workload);
}

#[divan::bench(args = FAST_PATHS, sample_count = 20)]
fn fast_path(bencher: Bencher<'_, '_>, workload: &Workload) {
    measure(bencher, workload);
}

fn measure(bencher: Bencher<'_, '_>, workload: &Workload) {
    // In a test run, whether it runs is all that matters.
    let records = if std::env::args().any(|argument| argument == "--bench") { RECORDS } else { 100 };
    bencher
        .counter(ItemsCount::new(records))
        .with_inputs(|| (workload.prepare)(records))
        .bench_local_values(measured);
}
