//! What the poll thread decides about the partitions assigned to it.

use super::*;
use crate::worker::assignment::{Assignment, FlowControl};

fn assignment(rig: &Rig, limits: MemoryLimits, cached_placements: usize) -> Assignment {
    let handle = tokio::runtime::Handle::current();
    Assignment::new(rig.context.clone(), handle, MemoryBudget::new(), limits, cached_placements)
}

/// Two may be held back.
const FOR_TWO: MemoryLimits = MemoryLimits { total: 1 << 40, per_partition: 4 << 20 };

/// Routes records from `offset` on until the partition may not be read.
fn fill(assignment: &mut Assignment, number: i32, mut offset: i64) {
    let value =
        serde_json::json!({"location": {"lat": 1, "lon": 1}, "text": "x".repeat(1_000_000)}).to_string();
    let record = |offset| Record {
        offset,
        key: Some(Bytes::from("a")),
        value: Some(value.clone().into()),
        headers: None,
    };
    while assignment.route(number, record(offset)) {
        offset += 1;
    }
    assert_eq!(offset % 5, 4, "five records are more than the limit");
}

fn sorted(mut partitions: Vec<i32>) -> Vec<i32> {
    partitions.sort_unstable();
    partitions
}

#[tokio::test(start_paused = true)]
async fn as_many_are_held_back_as_memory_allows_and_the_others_are_paused() {
    let rig = Rig::start();
    let mut assignment = assignment(&rig, FOR_TWO, 1000);
    let _ = assignment.assign(&(1..=5).map(|number| (number, Some(0))).collect::<Vec<_>>());
    for number in 1..=5 {
        fill(&mut assignment, number, 0);
    }
    let stopped = assignment.flow();
    assert_eq!((stopped.hold_back.len(), stopped.pause.len()), (2, 3), "{stopped:?}");
    assert_eq!(sorted([&stopped.hold_back[..], &stopped.pause].concat()), [1, 2, 3, 4, 5]);
    assert_eq!(assignment.flow(), FlowControl::default(), "each is told once");

    tokio::time::sleep(Duration::from_secs(60)).await;
    let read_again = assignment.flow();
    assert_eq!(sorted(read_again.let_through), sorted(stopped.hold_back));
    assert_eq!(sorted(read_again.resume), sorted(stopped.pause));

    // Those that were let through hold nothing back any longer.
    fill(&mut assignment, 1, 5);
    assert_eq!(assignment.flow(), FlowControl { hold_back: vec![1], ..FlowControl::default() });
}

#[tokio::test(start_paused = true)]
async fn partition_that_takes_no_more_records_is_paused_rather_than_held_back() {
    let rig = Rig::start();
    let mut assignment = assignment(&rig, FOR_TWO, 1000);
    let _ = assignment.assign(&[(1, Some(0))]);
    assignment.drain();
    assert_eq!(assignment.flow(), FlowControl { pause: vec![1], ..FlowControl::default() });
}

#[tokio::test(start_paused = true)]
async fn assigned_partitions_share_the_placement_cache() {
    const TOTAL: usize = 200;
    let rig = Rig::start();
    let mut assignment = assignment(&rig, WIDE, TOTAL);
    let share = assignment.cache_share.clone();
    for number in 1..=100 {
        let _ = assignment.assign(&[(number, None)]);
        let owned = usize::try_from(number).unwrap();
        assert_eq!(share.of_one().get(), TOTAL / owned, "with {owned} partitions");
    }
    assignment.revoke(&(1..=80).collect::<Vec<_>>(), Duration::ZERO);
    assert_eq!(share.of_one().get(), TOTAL / 20);
    let _ = assignment.assign(&(201..=500).map(|number| (number, None)).collect::<Vec<_>>());
    assert_eq!(share.of_one().get(), 1, "more partitions than placements");
}
