//! What the poll thread decides about the partitions assigned to it.

use std::time::Instant;

use super::*;
use crate::worker::assignment::Assignment;
use crate::worker::flow::FlowControl;

fn assignment(rig: &Rig, limits: MemoryLimits, cached_placements: usize) -> Assignment {
    assignment_within(MemoryBudget::new(), rig, limits, cached_placements)
}

fn assignment_within(
    budget: Arc<MemoryBudget>,
    rig: &Rig,
    limits: MemoryLimits,
    cached_placements: usize,
) -> Assignment {
    let handle = tokio::runtime::Handle::current();
    Assignment::new(rig.context.clone(), handle, budget, limits, cached_placements)
}

/// No end is known.
fn flow(assignment: &mut Assignment, now: Instant) -> FlowControl {
    assignment.flow(now, |_| -1)
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

/// Assigns so many partitions, which are let through.
fn assign(assignment: &mut Assignment, partitions: i32) {
    assignment.assign(&(1..=partitions).map(|number| (number, Some(0))).collect::<Vec<_>>());
    let told = flow(assignment, Instant::now());
    assert_eq!(told, FlowControl { let_through: (1..=partitions).collect(), ..FlowControl::default() });
}

fn sorted(mut partitions: Vec<i32>) -> Vec<i32> {
    partitions.sort_unstable();
    partitions
}

#[tokio::test(start_paused = true)]
async fn as_many_are_held_back_as_memory_allows_and_the_others_are_paused() {
    let rig = Rig::start();
    let mut assignment = assignment(&rig, FOR_TWO, 1000);
    assign(&mut assignment, 5);
    for number in 1..=5 {
        fill(&mut assignment, number, 0);
    }
    let stopped = flow(&mut assignment, Instant::now());
    assert_eq!((stopped.hold_back.len(), stopped.pause.len()), (2, 3), "{stopped:?}");
    assert_eq!(sorted([&stopped.hold_back[..], &stopped.pause].concat()), [1, 2, 3, 4, 5]);
    assert_eq!(flow(&mut assignment, Instant::now()), FlowControl::default(), "each is told once");

    tokio::time::sleep(Duration::from_secs(60)).await;
    let read_again = flow(&mut assignment, Instant::now());
    assert_eq!(sorted(read_again.let_through), sorted(stopped.hold_back));
    assert_eq!(sorted(read_again.resume), sorted(stopped.pause));

    // Those that were let through hold nothing back any longer.
    fill(&mut assignment, 1, 5);
    assert_eq!(
        flow(&mut assignment, Instant::now()),
        FlowControl { hold_back: vec![1], ..FlowControl::default() }
    );
}

/// Any partition may take all memory. Eight may be held back.
const FOR_ALL: MemoryLimits = MemoryLimits { total: 4 << 20, per_partition: 64 << 20 };

/// So many partitions, and no memory left.
fn assignment_without_memory(rig: &Rig, partitions: i32) -> Assignment {
    let mut assignment = assignment(rig, FOR_ALL, 1000);
    assign(&mut assignment, partitions);
    fill(&mut assignment, 1, 0);
    assignment
}

#[tokio::test(start_paused = true)]
async fn without_memory_nothing_is_polled_if_not_all_can_be_held_back() {
    let rig = Rig::start();
    let mut assignment = assignment_without_memory(&rig, 9);
    let wait = FlowControl { wait: true, ..FlowControl::default() };
    assert_eq!(flow(&mut assignment, Instant::now()), wait);
    let statuses = assignment.statuses();
    assert!(statuses.iter().all(|status| status.paused), "no partition is read: {statuses:?}");
    assert_eq!(flow(&mut assignment, Instant::now() + Duration::from_secs(9)), wait);

    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(flow(&mut assignment, Instant::now()), FlowControl::default(), "memory is free again");
    assert!(assignment.statuses().iter().all(|status| !status.paused));
}

#[tokio::test(start_paused = true)]
async fn without_memory_nothing_is_polled_until_a_quarter_is_free() {
    let rig = Rig::start();
    let budget = MemoryBudget::new();
    let mut assignment = assignment_within(budget.clone(), &rig, FOR_ALL, 1000);
    assign(&mut assignment, 9);
    let work = Meter::new(budget);
    work.set_folded(FOR_ALL.total);
    let began = Instant::now();
    assert!(flow(&mut assignment, began).wait);
    work.set_folded(FOR_ALL.total / 4 * 3);
    assert!(flow(&mut assignment, began).wait, "a byte less than a quarter is free");
    work.set_folded(FOR_ALL.total / 4 * 3 - 1);
    assert_eq!(flow(&mut assignment, began), FlowControl::default());
    work.set_folded(FOR_ALL.total - 1);
    assert_eq!(flow(&mut assignment, began), FlowControl::default(), "all of it may be used");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_stops_does_not_wait_for_memory() {
    let rig = Rig::start();
    let mut assignment = assignment_without_memory(&rig, 9);
    let began = Instant::now();
    assert!(flow(&mut assignment, began).wait);
    assignment.drain();
    assert_eq!(flow(&mut assignment, began).pause.len(), 9, "none is held back");
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_may_not_be_read_yet_is_not_let_through() {
    let rig = Rig::start();
    let mut assignment = assignment(&rig, FOR_TWO, 1000);
    assignment.assign(&[(1, Some(0)), (2, Some(0))]);
    fill(&mut assignment, 1, 0);
    let told = flow(&mut assignment, Instant::now());
    assert_eq!((told.hold_back, told.let_through), (vec![1], vec![2]));
}

#[tokio::test(start_paused = true)]
async fn assigned_partitions_share_the_placement_cache() {
    const TOTAL: usize = 200;
    let rig = Rig::start();
    let mut assignment = assignment(&rig, WIDE, TOTAL);
    let share = assignment.cache_share.clone();
    for number in 1..=100 {
        assignment.assign(&[(number, None)]);
        let owned = usize::try_from(number).unwrap();
        assert_eq!(share.of_one().get(), TOTAL / owned, "with {owned} partitions");
    }
    assignment.revoke(&(1..=80).collect::<Vec<_>>(), Duration::ZERO);
    assert_eq!(share.of_one().get(), TOTAL / 20);
    assignment.assign(&(201..=500).map(|number| (number, None)).collect::<Vec<_>>());
    assert_eq!(share.of_one().get(), 1, "more partitions than placements");
}

#[tokio::test(start_paused = true)]
async fn tasks_are_told_now_and_then_where_their_partitions_end() {
    let rig = Rig::start();
    let mut assignment = assignment(&rig, FOR_ALL, 1000);
    assignment.assign(&[(1, Some(0)), (2, Some(0))]);
    let began = Instant::now();
    let unread = |assignment: &Assignment| [1, 2].map(|number| assignment.published(number).unread(90));
    assert_eq!(unread(&assignment), [0, 0]);
    for (later, ends, expected) in
        [(0, 95, [6, 7]), (49, 195, [6, 7]), (50, 195, [106, 107]), (100, -2, [0, 0])]
    {
        assignment.flow(began + Duration::from_millis(later), |number| ends + i64::from(number));
        assert_eq!(unread(&assignment), expected, "after {later} ms");
    }
}
