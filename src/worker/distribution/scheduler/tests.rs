use super::*;
use crate::testkit::testing::shard;

const INTERVAL: Duration = Duration::from_millis(100);

fn at(ms: u64) -> Instant {
    Instant::from_start(Duration::from_millis(ms))
}

fn key(name: &str) -> JobKey {
    JobKey { job: 0, shard: shard(name) }
}

fn scheduler() -> Scheduler {
    Scheduler::new(vec![INTERVAL])
}

/// A change of `name`, from which documents moved to `moved_to`.
fn change(name: &str, moved_to: &[&str]) -> (ShardId, ShardChange) {
    let moved_to = moved_to.iter().map(|target| shard(target)).collect();
    (shard(name), ShardChange { documents: 1, offsets: Some((5, 6)), moved_to })
}

fn request(scheduler: &mut Scheduler, changes: &[(ShardId, ShardChange)], ticket: u64, ms: u64) {
    let changes = changes.iter().cloned().collect();
    scheduler.request(&[0], &changes, 3, Some(7), Some((1, ticket)), at(ms));
}

fn mark(scheduler: &mut Scheduler, name: &str, counter: u64) {
    assert!(scheduler.to_mark(10).contains(&key(name)));
    scheduler.marked(&key(name), Some(Mark { generation: 1, counter }));
}

/// Decides, and runs successfully if so decided.
fn run(scheduler: &mut Scheduler, name: &str) -> SettledUpdates {
    scheduler.begin_run(&key(name)).expect("something is owed");
    scheduler.succeeded(&key(name))
}

#[test]
fn change_waits_for_others_and_one_run_settles_all() {
    let mut scheduler = scheduler();
    request(&mut scheduler, &[change("a", &[])], 1, 0);
    request(&mut scheduler, &[change("a", &[])], 2, 50);
    assert_eq!(scheduler.start_due(at(99)), []);
    assert_eq!(scheduler.next_due(at(99)), Some(at(100)));
    assert_eq!(scheduler.start_due(at(100)), [key("a")]);
    assert_eq!(scheduler.start_due(at(1000)), [], "one at a time");
    assert_eq!(scheduler.owed(&key("a"), at(100)).decide(None), RunDecision::Run);
    let group = scheduler.begin_run(&key("a")).unwrap();
    assert_eq!(group.spans[&3], Span { documents: 2, offsets: Some((5, 6)), watermark: Some(7) });
    request(&mut scheduler, &[change("a", &[])], 3, 110);
    let settled = scheduler.succeeded(&key("a"));
    assert_eq!(settled, SettledUpdates { waiters: vec![(1, 2)], requests: 2, since: Some(at(0)) });
    assert_eq!(scheduler.next_due(at(110)), Some(at(210)), "what came while it ran is owed");
    assert_eq!(scheduler.pending(0), 1);
    assert_eq!(scheduler.start_due(at(210)), [key("a")]);
    assert_eq!(run(&mut scheduler, "a").waiters, [(1, 3)]);
    assert_eq!(scheduler.pending(0), 0);
}

#[test]
fn updates_covered_by_another_workers_run_are_dropped() {
    let mut scheduler = scheduler();
    request(&mut scheduler, &[change("a", &[])], 1, 0);
    mark(&mut scheduler, "a", 4);
    request(&mut scheduler, &[change("a", &[])], 2, 60);
    mark(&mut scheduler, "a", 5);
    assert_eq!(scheduler.start_due(at(100)), [key("a")]);
    let record = RunRecord { generation: 1, counter: 5, succeeded: 5 };
    assert_eq!(scheduler.owed(&key("a"), at(100)).decide(Some(&record)), RunDecision::NothingDue);
    assert_eq!(
        scheduler.covered(&key("a"), &record).waiters,
        [(1, 1)],
        "the later one was there before run 5"
    );
    scheduler.put_off(&key("a"), None, at(100));
    assert_eq!(scheduler.next_due(at(100)), Some(at(160)));
    assert_eq!(scheduler.start_due(at(160)), [key("a")]);
    assert_eq!(scheduler.owed(&key("a"), at(160)).decide(Some(&record)), RunDecision::Run);
}

#[test]
fn unknown_state_leads_to_a_run() {
    let record = RunRecord { generation: 1, counter: 9, succeeded: 9 };
    for mark_found in
        [None, Some(Mark { generation: 2, counter: 1 }), Some(Mark { generation: 1, counter: 9 })]
    {
        let mut scheduler = scheduler();
        request(&mut scheduler, &[change("a", &[])], 1, 0);
        assert_eq!(scheduler.to_mark(10), [key("a")]);
        // While the counter is being read, nothing is known either.
        assert_eq!(scheduler.owed(&key("a"), at(100)).decide(Some(&record)), RunDecision::Run);
        scheduler.marked(&key("a"), mark_found);
        assert_eq!(
            scheduler.owed(&key("a"), at(100)).decide(Some(&record)),
            RunDecision::Run,
            "{mark_found:?}"
        );
        assert_eq!(scheduler.owed(&key("a"), at(100)).decide(None), RunDecision::Run);
        assert_eq!(scheduler.covered(&key("a"), &record), SettledUpdates::default());
    }
}

#[test]
fn tickets_are_settled_in_order() {
    let mut scheduler = scheduler();
    request(&mut scheduler, &[change("a", &[])], 1, 0);
    scheduler.to_mark(10);
    scheduler.marked(&key("a"), None);
    request(&mut scheduler, &[change("a", &[])], 2, 1);
    mark(&mut scheduler, "a", 4);
    let record = RunRecord { generation: 1, counter: 5, succeeded: 5 };
    assert_eq!(scheduler.covered(&key("a"), &record), SettledUpdates::default());
    assert_eq!(scheduler.owed(&key("a"), at(100)).decide(Some(&record)), RunDecision::Run);
}

#[test]
fn run_of_another_worker_is_awaited_with_a_limit() {
    let mut scheduler = scheduler();
    request(&mut scheduler, &[change("a", &[])], 1, 0);
    mark(&mut scheduler, "a", 4);
    let record = RunRecord { generation: 1, counter: 5, succeeded: 4 };
    let mut now = 100;
    loop {
        assert_eq!(scheduler.start_due(at(now)), [key("a")]);
        if scheduler.owed(&key("a"), at(now)).decide(Some(&record)) == RunDecision::Run {
            break;
        }
        scheduler.put_off(&key("a"), Some(at(now + 20)), at(now));
        assert_eq!(scheduler.start_due(at(now + 19)), []);
        now += 20;
        assert!(now < 1000, "it may have died");
    }
    assert_eq!(now, 200, "an interval longer");
}

#[test]
fn failed_updates_stay_owed_with_later_ones() {
    let mut scheduler = scheduler();
    request(&mut scheduler, &[change("a", &[])], 1, 0);
    assert_eq!(scheduler.start_due(at(100)), [key("a")]);
    scheduler.begin_run(&key("a"));
    request(&mut scheduler, &[change("a", &[])], 2, 105);
    scheduler.failed(&key("a"), at(130));
    assert_eq!(scheduler.start_due(at(129)), []);
    assert_eq!(scheduler.start_due(at(130)), [key("a")]);
    assert_eq!(
        run(&mut scheduler, "a"),
        SettledUpdates { waiters: vec![(1, 2)], requests: 2, since: Some(at(0)) }
    );
}

#[test]
fn geoshard_waits_for_those_its_documents_moved_to() {
    let mut scheduler = scheduler();
    request(&mut scheduler, &[change("from", &[])], 1, 0);
    request(&mut scheduler, &[change("from", &["to"]), change("to", &[])], 2, 50);
    assert_eq!(scheduler.start_due(at(100)), [], "its own time has come, the other's has not");
    // Later moves do not delay it.
    request(&mut scheduler, &[change("from", &["more"]), change("more", &[])], 3, 120);
    assert_eq!(scheduler.start_due(at(150)), [key("to")]);
    assert_eq!(scheduler.start_due(at(151)), [], "the other runs");
    scheduler.begin_run(&key("to"));
    scheduler.failed(&key("to"), at(170));
    assert_eq!(scheduler.start_due(at(160)), [], "twice rather than never");
    assert_eq!(scheduler.start_due(at(170)), [key("to")]);
    run(&mut scheduler, "to");
    assert_eq!(scheduler.start_due(at(171)), [key("from")]);
}

#[test]
fn geoshards_that_exchange_documents_do_not_deadlock() {
    let mut scheduler = scheduler();
    let circle = [change("a", &["b"]), change("b", &["c"]), change("c", &["a"]), change("d", &["a"])];
    request(&mut scheduler, &circle, 1, 0);
    assert_eq!(scheduler.start_due(at(100)), [key("a")], "one has to be the first");
    for (done, next) in [("a", ["c", "d"].as_slice()), ("c", &["b"])] {
        run(&mut scheduler, done);
        let next: Vec<JobKey> = next.iter().map(|name| key(name)).collect();
        assert_eq!(scheduler.start_due(at(101)), next);
    }
}

#[test]
fn updates_of_an_ending_partition_are_due_at_once() {
    let mut scheduler = scheduler();
    request(&mut scheduler, &[change("a", &[])], 1, 0);
    scheduler.request(&[0], &BTreeMap::from([change("b", &[])]), 4, None, Some((2, 1)), at(0));
    scheduler.hurry(Some(1));
    assert_eq!(scheduler.start_due(at(1)), [key("a")]);
    assert_eq!(scheduler.owed(&key("a"), at(1)).decide(Some(&RunRecord::new(1))), RunDecision::Run);
    run(&mut scheduler, "a");
    request(&mut scheduler, &[change("a", &[])], 2, 2);
    assert_eq!(scheduler.start_due(at(3)), [], "the next one again");
    scheduler.hurry(None);
    assert_eq!(scheduler.start_due(at(3)).len(), 2);
}

#[test]
fn groups_per_key_are_bounded_without_loss() {
    let mut scheduler = scheduler();
    for n in 0..100 {
        request(&mut scheduler, &[change("a", &[])], n, n);
        mark(&mut scheduler, "a", n);
    }
    assert_eq!(scheduler.slots[&key("a")].marked.len(), MAX_GROUPS);
    // Merged groups count as the newest of them.
    let record = RunRecord { generation: 1, counter: 99, succeeded: 99 };
    assert_eq!(scheduler.covered(&key("a"), &record).waiters.last(), Some(&(1, MAX_GROUPS as u64 - 2)));
    assert_eq!(scheduler.start_due(at(1000)), [key("a")]);
    let settled = run(&mut scheduler, "a");
    assert_eq!((settled.waiters, settled.requests), (vec![(1, 99)], 100 - MAX_GROUPS as u64 + 1));
}
