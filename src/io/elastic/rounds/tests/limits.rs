//! The ceiling of operations, and the number of concurrent requests.

use std::num::NonZeroU32;

use super::*;

impl Bench {
    /// With a ceiling of so many operations per second; it counts from now on.
    fn below(self, per_second: u32) -> Self {
        self.rounds.server.ceiling.set(NonZeroU32::new(per_second), self.rounds.clock.now());
        self
    }
}

#[tokio::test(start_paused = true)]
async fn writes_wait_for_the_ceiling_without_a_permit_and_reads_do_not() {
    let bench = bench(|_, ids| all(ids, 200)).below(4);
    let lease = lease(60);
    let read = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        bench.rounds.mget(gets("r"), &lease).await.unwrap()
    };
    let (written, _) = tokio::join!(bench.bulk_at(0, "abcdefghijkl", &lease), read);
    assert_eq!(written, vec![DONE; 12]);
    assert_eq!(bench.elastic.calls(), ["abcd", "r", "efgh", "ijkl"]);
    assert_eq!(bench.hundredths(), [0, 50, 100, 200]);
    assert_eq!(bench.counts.throttled.lock().unwrap().as_millis() / 10, 300, "one and two seconds");
    assert_eq!(*bench.counts.waiting.lock().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn writes_are_admitted_in_the_order_in_which_they_came() {
    let bench = bench(|_, ids| all(ids, 200)).below(4);
    let lease = lease(60);
    tokio::join!(
        bench.bulk_at(0, "aaaabbbbcccc", &lease),
        bench.bulk_at(10, "d", &lease),
        bench.bulk_at(20, "eeeeffff", &lease)
    );
    assert_eq!(bench.elastic.calls(), ["aaaa", "bbbb", "cccc", "d", "eeee", "ffff"]);
    assert_eq!(bench.hundredths(), [0, 100, 200, 300, 325, 425]);
}

#[tokio::test(start_paused = true)]
async fn operations_sent_again_do_not_wait_but_delay_others_for_five_seconds_at_most() {
    // Of eight operations four are paid for after a second. Of the others most are never paid for.
    for (failures, least, most) in [(1, 1_650, 1_850), (40, 4_500, 5_010)] {
        let bench = bench(move |call, ids| all(ids, if call < failures { 429 } else { 200 })).below(4);
        let lease = lease(600);
        bench.bulk_at(0, "abcd", &lease).await;
        let backoff = bench.elastic.times()[1];
        assert!(backoff <= Duration::from_millis(210), "{backoff:?}");
        let ended = bench.elastic.start.elapsed();
        bench.bulk_at(0, "e", &lease).await;
        let waited = (bench.elastic.times()[failures + 1] - ended).as_millis();
        assert!((least..most).contains(&waited), "{failures}: {waited} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_lease_ends_at_the_ceiling_is_not_sent_and_not_counted() {
    let bench = bench(|_, ids| all(ids, 200)).below(4);
    let (short, long) = (lease(1), lease(60));
    let (_, late, other) = tokio::join!(
        bench.bulk_at(0, "aaaabbbb", &long),
        bench.bulk_at(10, "cccc", &short),
        bench.bulk_at(20, "dddd", &long)
    );
    assert_eq!((late, other), (vec![BulkOutcome::Unanswered; 4], vec![DONE; 4]));
    assert_eq!(bench.elastic.calls(), ["aaaa", "bbbb", "dddd"]);
    assert_eq!(bench.hundredths(), [0, 100, 200]);
}

#[tokio::test(start_paused = true)]
async fn a_changed_ceiling_holds_for_writes_that_wait() {
    let bench = bench(|_, ids| all(ids, 200)).below(1);
    let lease = lease(60);
    let change = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        bench.rounds.server.ceiling.set(None, bench.rounds.clock.now());
    };
    tokio::join!(bench.bulk_at(0, "aaaabbbbcccc", &lease), change);
    assert_eq!(bench.hundredths(), [0, 50, 60], "the last one for the permit");
}

#[tokio::test(start_paused = true)]
async fn queued_writes_count_as_others_do() {
    let bench = bench_with_queue(|_, ids| all(ids, 200)).below(10);
    let lease = lease(60);
    tokio::join!(
        bench.bulk_at(0, "aaaaaaaaaa", &lease),
        bench.bulk_at(10, "b", &lease),
        bench.bulk_at(20, "c", &lease)
    );
    assert_eq!(bench.elastic.calls(), ["aaaaaaaaaa", "b", "c"]);
    assert_eq!(bench.hundredths(), [0, 100, 110]);
}

/// Concurrent requests that are allowed after a write, of 16 at most.
async fn allowed_after(bench: &Bench, ids: &[&str], secs: u64) -> usize {
    bench.rounds.server.concurrency.set(16, true);
    let lease = lease(secs);
    futures::future::join_all(ids.iter().map(|ids| bench.bulk_at(0, ids, &lease))).await;
    let allowed = bench.rounds.server.concurrency.allowed();
    *allowed.borrow()
}

/// Rejects once, and is then down for many attempts.
fn bench_that_fails_after_a_rejection() -> Bench {
    bench(|call, ids| match call {
        0 => status(429, None),
        1..100 => Err(CallError::Connection(String::new())),
        _ => all(ids, 200),
    })
}

#[tokio::test(start_paused = true)]
async fn a_rejected_request_or_operation_halves_the_number_of_requests() {
    for status_of_call in [429, 503, 504] {
        let bench =
            bench(move |call, ids| if call == 0 { status(status_of_call, None) } else { all(ids, 200) });
        assert_eq!(allowed_after(&bench, &["a"], 60).await, 8, "{status_of_call}");
    }
    for (status_of_item, allowed) in [(429, 8), (503, 16), (409, 16)] {
        let bench = bench(move |call, ids| all(ids, if call == 0 { status_of_item } else { 200 }));
        assert_eq!(allowed_after(&bench, &["a"], 60).await, allowed, "{status_of_item}");
    }
    let bench = bench(|call, ids| match call {
        0 => Err(CallError::Connection(String::new())),
        1 => status(400, None),
        _ => all(ids, 200),
    });
    assert_eq!(allowed_after(&bench, &["a"], 60).await, 16);
    // Failures are no answers, which would raise it again.
    let bench = bench_that_fails_after_a_rejection();
    assert_eq!(allowed_after(&bench, &["a"], 600).await, 8);
    // Of one request of several batches.
    let bench = bench_with_queue(|call, ids| if call == 0 { status(429, None) } else { all(ids, 200) });
    assert_eq!(allowed_after(&bench, &["a", "b", "c", "d"], 60).await, 8);
    assert_eq!(bench.elastic.calls()[0], "abcd");
}

#[tokio::test(start_paused = true)]
async fn only_an_answer_that_had_its_time_and_did_not_come_is_a_rejection() {
    for (secs, allowed) in [(5, 16), (15, 8)] {
        let mut bench = bench(|_, ids| all(ids, 200));
        bench.rounds.elastic = bench.elastic.slow(30);
        assert_eq!(allowed_after(&bench, &["a"], secs).await, allowed);
    }
}

#[tokio::test(start_paused = true)]
async fn only_large_writes_are_measured() {
    let bench = bench_with_queue(|_, ids| all(ids, 200));
    assert_eq!(allowed_after(&bench, &["abcdefghij"], 60).await, 16, "no more than a quarter");
    bench.rounds.mget(gets("abcdefghijk"), &lease(60)).await.unwrap();
    assert_eq!(allowed_after(&bench, &[], 60).await, 16, "reads");
    assert_eq!(allowed_after(&bench, &["abcdefghijk"], 60).await, 1, "the measurement begins");
}
