//! The scheduler of distributions: one batch's requests, and what a run of each geoshard settles.

#![expect(clippy::unwrap_used, reason = "a bench that fails is to fail")]

use std::collections::BTreeMap;
use std::time::Duration;

use divan::{Bencher, black_box};
use geofold::base::clock::Instant;
use geofold::base::ids::ShardId;
use geofold::worker::distribution::run_after::{Mark, RunRecord};
use geofold::worker::distribution::scheduler::{Scheduler, ShardChange};

fn main() {
    divan::main();
}

fn changes(shards: usize) -> BTreeMap<ShardId, ShardChange> {
    let shard = |n| ShardId::new(&format!("s{n:03}")).unwrap();
    let change = ShardChange { documents: 3, offsets: Some((1, 9)), ..ShardChange::default() };
    (0..shards).map(|n| (shard(n), change.clone())).collect()
}

/// A batch that changed so many geoshards, joined to what is owed of three jobs already.
#[divan::bench(args = [1, 55, 100])]
fn request(bencher: Bencher<'_, '_>, shards: usize) {
    let changes = changes(shards);
    let mut scheduler = Scheduler::new(vec![Duration::from_millis(400); 3]);
    let now = Instant::from_start(Duration::from_secs(1));
    bencher.bench_local(|| scheduler.request(&[0, 1, 2], black_box(&changes), 0, Some(9), Some((1, 1)), now));
}

/// From a batch's requests to the end of a run of each geoshard: marked, due, decided, run.
#[divan::bench(args = [1, 55, 100])]
fn round(bencher: Bencher<'_, '_>, shards: usize) {
    let changes = changes(shards);
    let mut scheduler = Scheduler::new(vec![Duration::ZERO]);
    let now = Instant::from_start(Duration::from_secs(1));
    let record = RunRecord { generation: 1, counter: 7, succeeded: 7 };
    bencher.bench_local(|| {
        scheduler.request(&[0], &changes, 0, Some(9), Some((1, 1)), now);
        for key in scheduler.to_mark(usize::MAX) {
            scheduler.marked(&key, Some(Mark { generation: 1, counter: 7 }));
        }
        loop {
            let due = scheduler.start_due(now);
            if due.is_empty() {
                break;
            }
            for key in due {
                black_box(scheduler.owed(&key, now).decide(Some(&record)));
                scheduler.begin_run(&key);
                black_box(scheduler.succeeded(&key));
            }
        }
    });
}
