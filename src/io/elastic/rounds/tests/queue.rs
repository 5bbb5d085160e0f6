//! Writes that come together in the queue.

use super::*;

#[tokio::test(start_paused = true)]
async fn small_writes_during_a_request_share_the_next_one() {
    let bench =
        bench_with_queue(|_, ids| Ok(ids.iter().map(|id| item(if id == "c" { 409 } else { 200 })).collect()));
    let lease = lease(60);
    let (a, bc, d) = tokio::join!(
        bench.bulk_at(0, "a", &lease),
        bench.bulk_at(10, "bc", &lease),
        bench.bulk_at(90, "d", &lease)
    );
    assert_eq!((a, bc, d), (vec![DONE], vec![DONE, BulkOutcome::Conflict], vec![DONE]));
    assert_eq!(bench.elastic.calls(), ["a", "bcd"]);
    assert_eq!(bench.elastic.times(), [Duration::ZERO, Duration::from_millis(100)]);
    // Nothing is in flight: no one waits.
    assert_eq!(bench.bulk_at(1_000, "e", &lease).await, [DONE]);
    assert_eq!(bench.elastic.times()[2], Duration::from_millis(1_200));
}

#[tokio::test(start_paused = true)]
async fn a_request_is_timed_without_the_queue_and_a_batch_with_it() {
    let bench = bench_with_queue(|_, ids| all(ids, 200));
    let lease = lease(60);
    tokio::join!(
        bench.bulk_at(0, "a", &lease),
        bench.bulk_at(50, "bc", &lease),
        bench.bulk_at(50, "d", &lease)
    );
    let millis = Duration::from_millis;
    assert_eq!(*bench.counts.requests.lock().unwrap(), [(1, millis(100)), (3, millis(100))]);
    let mut batches = bench.counts.batches.lock().unwrap().clone();
    batches.sort_unstable();
    assert_eq!(batches, [(1, millis(100)), (1, millis(150)), (2, millis(150))]);
}

#[tokio::test(start_paused = true)]
async fn reads_go_on_their_own() {
    let bench = bench_with_queue(|_, ids| all(ids, 200));
    bench.rounds.permits.add_permits(1);
    let lease = lease(60);
    let read = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        bench.rounds.mget(gets("g"), &lease).await.unwrap()
    };
    tokio::join!(bench.bulk_at(0, "a", &lease), read, bench.bulk_at(20, "b", &lease));
    assert_eq!(bench.elastic.calls(), ["a", "g", "b"]);
    assert_eq!(bench.elastic.times()[2], Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_request_takes_all_writes_to_the_indices_that_have_waited_longest() {
    let mut bench = bench_with_queue(|_, ids| all(ids, 200));
    bench.rounds.limits.max_operations = 4;
    let lease = lease(60);
    let (_, b, c, d) = tokio::join!(
        bench.bulk_at(0, "a", &lease),
        bench.bulk_at(10, "1b2cd", &lease),
        bench.bulk_at(20, "3e1f2g", &lease),
        bench.bulk_at(30, "2h", &lease)
    );
    assert_eq!((b.len(), c.len(), d.len()), (3, 3, 1));
    // All of geoshard 1, then of 2 what fits: two are left.
    assert_eq!(bench.elastic.calls(), ["a", "bfcd", "ghe"]);
}

#[tokio::test(start_paused = true)]
async fn outcomes_are_in_the_order_of_operations_whatever_request_they_went_with() {
    let mut bench = bench_with_queue(|_, ids| {
        Ok(ids.iter().map(|id| item(if "bd".contains(id.as_str()) { 409 } else { 200 })).collect())
    });
    bench.rounds.limits.max_operations = 4;
    const CONFLICT: BulkOutcome = BulkOutcome::Conflict;
    let outcomes = bench.bulk_at(0, "1a2b1c3d2e1f", &lease(60)).await;
    assert_eq!(outcomes, [DONE, CONFLICT, DONE, CONFLICT, DONE, DONE]);
    assert_eq!(bench.elastic.calls(), ["acfb", "ed"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fails_takes_nothing_from_the_others_of_its_batch() {
    let mut bench = bench_with_queue(|call, ids| match call {
        1 => status(503, Some(7)),
        _ => all(ids, 200),
    });
    bench.rounds.limits.max_operations = 4;
    let lease = lease(60);
    let (_, b, c) = tokio::join!(
        bench.bulk_at(0, "a", &lease),
        bench.bulk_at(10, "1bc2d", &lease),
        bench.bulk_at(20, "1ef2gh", &lease)
    );
    assert_eq!((b, c), (vec![DONE; 3], vec![DONE; 4]));
    // Geoshard 1 failed for both; only that is sent again, after the time that the server asks for.
    assert_eq!(bench.elastic.calls()[..3], ["a", "bcef", "dgh"]);
    assert_eq!(bench.elastic.calls()[3..].concat().len(), 4);
    assert_eq!(*bench.counts.retried.lock().unwrap(), [("503", 2), ("503", 2)]);
    let times = bench.elastic.times();
    assert!(times[2] >= Duration::from_secs(7), "the permit is kept meanwhile: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn full_requests_do_not_wait_for_the_one_in_flight() {
    let bench = bench_with_queue(|_, ids| all(ids, 200));
    bench.rounds.permits.add_permits(2);
    let lease = lease(60);
    let many = (0..9).map(|_| bench.bulk_at(10, "bbbbbbbbbb", &lease));
    tokio::join!(bench.bulk_at(0, "a", &lease), futures::future::join_all(many));
    let sizes: Vec<usize> = bench.elastic.calls().iter().map(String::len).collect();
    assert_eq!(sizes, [1, 40, 40, 10]);
    assert_eq!(bench.hundredths(), [0, 1, 1, 10]);

    // A request may be full by its bytes.
    let mut bench = bench_with_queue(|_, ids| all(ids, 200));
    bench.rounds.permits.add_permits(2);
    bench.rounds.limits.max_bytes = 2 * encode::bulk_op_bytes(&ops("a")[0]);
    let writes = ["a", "b", "c", "d"].map(|ids| bench.bulk_at(0, ids, &lease));
    futures::future::join_all(writes).await;
    assert_eq!(bench.elastic.calls(), ["ab", "cd"]);
    assert_eq!(bench.elastic.times(), [Duration::ZERO; 2]);
}

#[tokio::test(start_paused = true)]
async fn few_writes_do_not_wait_for_a_full_request() {
    let bench = bench_with_queue(|_, ids| all(ids, 200));
    bench.rounds.permits.add_permits(2);
    let lease = lease(60);
    let forty = "a".repeat(40);
    tokio::join!(
        bench.bulk_at(0, &forty, &lease),
        bench.bulk_at(10, "b", &lease),
        bench.bulk_at(20, "c", &lease),
        bench.bulk_at(30, "d", &lease)
    );
    assert_eq!(bench.elastic.calls(), [forty.as_str(), "b", "cd"]);
    assert_eq!(bench.hundredths(), [0, 1, 10], "with the first driver that is free");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_queued_until_its_lease_ends_is_unanswered_then() {
    let mut bench = bench_with_queue(|_, ids| all(ids, 200));
    bench.elastic = bench.elastic.slow(9);
    bench.rounds.elastic = bench.elastic.clone();
    let bench = bench.with_queue();
    let (long, longer) = (lease(11), lease(60));
    let late = async {
        let outcomes = bench.bulk_at(10, "c", &long).await;
        (outcomes, bench.elastic.start.elapsed())
    };
    tokio::join!(
        bench.bulk_at(0, "a", &longer),
        async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            // Three reads hold the only permit for longer.
            for _ in 0..3 {
                bench.rounds.mget(gets("r"), &longer).await.unwrap();
            }
        },
        async {
            let (outcomes, ended) = late.await;
            assert_eq!(outcomes, [BulkOutcome::Unanswered]);
            assert_eq!(ended, Duration::from_secs(11));
        }
    );
    assert!(!bench.elastic.calls().contains(&"c".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn queued_writes_hold_no_permit_and_their_requests_one_each() {
    let bench = bench_with_queue(|_, ids| all(ids, 200));
    let lease = lease(60);
    let forty = "a".repeat(40);
    tokio::join!(
        bench.bulk_at(0, &forty, &lease),
        bench.bulk_at(10, "a", &lease),
        bench.bulk_at(20, "b", &lease)
    );
    assert_eq!(bench.elastic.calls(), [forty.as_str(), "ab"]);
    assert_eq!(bench.rounds.permits.available_permits(), 1);
    assert_eq!(*bench.counts.waiting.lock().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_pushes_back_gets_no_other_request_meanwhile() {
    for failure in [status(503, Some(5)), all(&["a".to_owned()], 429)] {
        let failure = Mutex::new(Some(failure));
        let bench =
            bench_with_queue(move |_, ids| failure.lock().unwrap().take().unwrap_or_else(|| all(ids, 200)));
        let lease = lease(60);
        tokio::join!(bench.bulk_at(0, "a", &lease), bench.bulk_at(10, "b", &lease));
        let sent = bench.elastic.times();
        assert!(sent[1] > Duration::from_millis(100), "{sent:?}");
        assert_eq!(bench.rounds.permits.available_permits(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_lease_ends_soon_shortens_no_others_request() {
    let mut bench = bench_with_queue(|_, ids| all(ids, 200));
    bench.elastic = bench.elastic.slow(4);
    bench.rounds.elastic = bench.elastic.clone();
    bench.rounds.permits.add_permits(1);
    let bench = bench.with_queue();
    let (soon, later) = (lease(3), lease(60));
    let (hurried, other) = tokio::join!(bench.bulk_at(0, "a", &soon), bench.bulk_at(0, "b", &later));
    assert_eq!((hurried, other), (vec![BulkOutcome::Unanswered], vec![DONE]));
    assert_eq!(bench.elastic.calls().len(), 2);
    assert_eq!(bench.elastic.start.elapsed(), Duration::from_secs(4), "one attempt of the other");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_as_a_whole_is_halved_down_to_the_operation_at_fault() {
    let bench = bench_with_queue(|_, ids| match ids {
        ids if ids.iter().any(|id| id == "d") => status(413, None),
        ids => Ok(ids.iter().map(|id| item(if id == "f" { 409 } else { 200 })).collect()),
    });
    let lease = lease(60);
    let (_, bc, d, efg, h) = tokio::join!(
        bench.bulk_at(0, "a", &lease),
        bench.bulk_at(10, "bc", &lease),
        bench.bulk_at(20, "d", &lease),
        bench.bulk_at(30, "efg", &lease),
        bench.bulk_at(40, "h", &lease)
    );
    assert_eq!((bc, efg, h), (vec![DONE; 2], vec![DONE, BulkOutcome::Conflict, DONE], vec![DONE]));
    assert!(matches!(&d[..], [BulkOutcome::Refused(error)] if error.status == 413));
    assert_eq!(bench.elastic.calls(), ["a", "bcdefgh", "bcd", "bc", "d", "efgh"]);
    assert!(bench.counts.retried.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn retried_item_is_sent_without_its_batch() {
    let bench = bench_with_queue(|call, ids| match call {
        1 => Ok(vec![item(429), item(200)]),
        _ => all(ids, 200),
    });
    let (_, b, c) = bench.a_then_b_and_c().await;
    assert_eq!((b, c), (vec![DONE], vec![DONE]));
    assert_eq!(bench.elastic.calls(), ["a", "bc", "b"]);
}

#[tokio::test(start_paused = true)]
async fn unsplittable_response_fails_all_writes() {
    let bench = bench_with_queue(|call, ids| if call == 1 { Ok(vec![item(200)]) } else { all(ids, 200) });
    let (_, b, c) = bench.a_then_b_and_c().await;
    assert_eq!((b, c), (vec![DONE], vec![DONE]));
    assert_eq!(*bench.counts.retried.lock().unwrap(), [("undecodable", 1), ("undecodable", 1)]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_or_late_writes_are_not_sent() {
    for ends_at in [60_000, 80] {
        let bench = bench_with_queue(|_, ids| all(ids, 200));
        let (ends_at, long) = (Instant::from_start(Duration::from_millis(ends_at)), lease(60));
        let ended = RequestDeadline { deadline: ends_at, cancel: CancellationToken::new() };
        let cancel = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if ends_at == long.deadline {
                ended.cancel.cancel();
            }
        };
        let (_, b, c, ()) = tokio::join!(
            bench.bulk_at(0, "a", &long),
            bench.bulk_at(10, "b", &ended),
            bench.bulk_at(10, "c", &long),
            cancel
        );
        assert_eq!((b, c), (vec![BulkOutcome::Unanswered], vec![DONE]));
        assert_eq!(bench.elastic.calls(), ["a", "c"]);
        // One attempt of those that go, none of theirs was spoilt.
        let retried = bench.counts.retried.lock().unwrap().clone();
        assert!(retried.iter().all(|(_, items)| *items == 1) && retried.len() <= 1, "{retried:?}");
        assert_eq!(bench.elastic.times()[1], Duration::from_millis(100));
    }
}

#[tokio::test(start_paused = true)]
async fn slow_request_delays_other_writes_boundedly() {
    let mut bench = bench_with_queue(|_, ids| all(ids, 200));
    let slow = bench.elastic.slow(9);
    bench.elastic = slow.clone();
    bench.rounds.elastic = slow.clone();
    bench.rounds.permits.add_permits(1);
    let bench = bench.with_queue();
    bench.a_then_b_and_c().await;
    assert_eq!(bench.elastic.calls(), ["a", "bc"]);
    assert_eq!(bench.elastic.times()[1], Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn failed_request_answers_all_waiting_writes() {
    let bench = bench_with_queue(|call, ids| match call {
        0 => panic!("on purpose"),
        _ => all(ids, 200),
    });
    let lease = lease(60);
    let (a, b) = tokio::join!(bench.bulk_at(0, "a", &lease), bench.bulk_at(10, "b", &lease));
    assert_eq!((a, b), (vec![DONE], vec![DONE]));
    assert_eq!(*bench.counts.retried.lock().unwrap(), [("connection", 1), ("connection", 1)]);
}

#[tokio::test(start_paused = true)]
async fn what_may_still_be_carried_out_is_known_of_queued_writes_too() {
    type FirstReply = fn() -> Reply;
    let replies: [(FirstReply, bool); 4] = [
        (|| status(429, None), true),
        (|| status(503, None), false),
        (|| Err(CallError::Connection(String::new())), false),
        (|| panic!("on purpose"), false),
    ];
    let has_all = |bench: &Bench| {
        bench.rounds.server.has_all_answers(Duration::from_secs(30), bench.rounds.clock.now())
    };
    for (first, has_all_answers) in replies {
        let bench = bench_with_queue(move |call, ids| if call == 0 { first() } else { all(ids, 200) });
        assert_eq!(bench.bulk_at(0, "a", &lease(60)).await, [DONE]);
        assert_eq!(has_all(&bench), has_all_answers);
    }

    let bench = bench_with_queue(|_, ids| all(ids, 200));
    let lease = lease(60);
    let cancel = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        lease.cancel.cancel();
    };
    let (outcomes, ()) = tokio::join!(bench.bulk_at(0, "a", &lease), cancel);
    assert_eq!((outcomes, has_all(&bench)), (vec![BulkOutcome::Unanswered], false));
}
