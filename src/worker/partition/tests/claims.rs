//! Which owner may send for a partition.

use super::*;
use crate::io::claims::{Claim, Claimed, claim_key};
use crate::io::elastic::{BulkOp, Elastic, Index, WriteCondition};

impl Rig {
    /// Another worker takes the partition over and keeps the claim while it runs.
    async fn rival(&self) -> (Keeper, Claimed) {
        let (keeper, claims) = keeper(&self.elastic, &self.clock, "rival", batching().deadline);
        let claimed = claims.claim(0, 0);
        keeper.look().await;
        assert!(claimed.standing().taken.is_some());
        (keeper, claimed)
    }

    /// A worker that knows the maps and has written one document.
    async fn at_work() -> Self {
        let mut rig = Self::following();
        rig.look().await;
        rig.index(0, "a", 1, 0);
        rig.until_watermark(1).await;
        rig
    }

    fn is_stopped(&self) -> bool {
        self.health.missing().contains_key(&stopped_part(0))
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_without_a_recently_confirmed_claim() {
    let mut rig = Rig::following();
    rig.elastic.set_faults(|faults| faults.meta_is_blocked = true);
    rig.look().await;
    rig.index(0, "a", 1, 0);
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(rig.elastic.ids().len(), 0, "not claimed yet");
    rig.elastic.set_faults(|faults| faults.meta_is_blocked = false);
    rig.until_watermark(1).await;
    for later in 1..=40 {
        rig.pass(Duration::from_secs(1)).await;
        rig.look().await;
        rig.elastic.set_faults(|faults| faults.meta_is_blocked = later > 30);
    }
    rig.index(1, "a", 1, 1);
    rig.until_watermark(2).await;
    rig.pass(Duration::from_secs(51)).await;
    rig.look().await;
    rig.index(2, "a", 1, 2);
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(rig.published.watermark(), Some(2), "confirmed more than a deadline ago");
    rig.look().await;
    rig.elastic.set_faults(|faults| faults.meta_is_blocked = false);
    rig.until_watermark(3).await;
}

/// What a worker suspended for an hour sends after a takeover of its partition.
async fn sent_after_a_stop() -> (Option<String>, bool) {
    let mut rig = Rig::at_work().await;
    let (_keeper, _claimed) = rig.rival().await;
    rig.clock.suspend(Duration::from_secs(3600));
    rig.look().await;
    rig.index(1, "a", 1, 1);
    rig.pass(Duration::from_secs(5)).await;
    (rig.elastic.document("a"), rig.is_stopped())
}

#[tokio::test(start_paused = true)]
async fn worker_suspended_past_a_takeover_sends_nothing_and_stops() {
    assert_eq!(sent_after_a_stop().await, (Some(document(1, 0)), true));
}

#[cfg(feature = "sabotage")]
#[test]
fn sending_without_checking_the_claim_is_caught() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let sent = sabotage::with(Sabotage::ClaimIsNotAsked, || runtime.unwrap().block_on(sent_after_a_stop()));
    assert_eq!(sent.0, Some(document(1, 1)), "the rule that the test above is about");
}

#[tokio::test(start_paused = true)]
async fn earlier_owner_learns_of_a_takeover_within_a_deadline() {
    let mut rig = Rig::at_work().await;
    let (keeper, _claimed) = rig.rival().await;
    let taken_at = TokioInstant::now();
    while !rig.is_stopped() {
        rig.pass(Duration::from_secs(1)).await;
    }
    assert!(taken_at.elapsed() <= Duration::from_secs(22), "a third of a deadline: {:?}", taken_at.elapsed());
    rig.index(1, "a", 1, 1);
    for _ in 0..20 {
        rig.pass(Duration::from_secs(10)).await;
        rig.look().await;
        keeper.look().await;
    }
    assert_eq!(rig.elastic.document("a"), Some(document(1, 0)), "while the other worker lives");
    assert_eq!(rig.metrics_of_stopped(), 1);
}

#[tokio::test(start_paused = true)]
async fn silent_holders_claim_is_taken_back_and_the_cache_dropped() {
    let mut rig = Rig::at_work().await;
    let rival = rig.rival().await;
    rig.pass(Duration::from_secs(25)).await;
    assert!(rig.is_stopped());
    drop(rival);
    let reads = rig.elastic.placement_reads();
    rig.index(1, "a", 1, 1);
    for _ in 0..8 {
        rig.pass(Duration::from_secs(10)).await;
        rig.look().await;
    }
    rig.until_watermark(2).await;
    assert_eq!(rig.elastic.placement_reads(), reads + 1);
    assert!(!rig.is_stopped());
    assert_eq!(rig.metrics_of_stopped(), 0);
}

#[tokio::test(start_paused = true)]
async fn stopping_worker_does_not_wait_for_a_lost_claim() {
    let mut rig = Rig::at_work().await;
    let (_keeper, _claimed) = rig.rival().await;
    rig.pass(Duration::from_secs(25)).await;
    rig.index(1, "a", 1, 1);
    rig.pass(Duration::from_secs(1)).await;
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
    assert_eq!(rig.published.watermark(), Some(1));
}

/// Whether a worker that takes over from this one has to wait for it.
async fn is_waited_for(rig: &mut Rig) -> bool {
    rig.pass(Duration::from_secs(1)).await;
    let (keeper, claims) = keeper(&rig.elastic, &rig.clock, "next", batching().deadline);
    let claimed = claims.claim(0, 0);
    keeper.look().await;
    let taken = claimed.standing().taken.expect("the claim is free for a new owner");
    taken.zombies_end() > rig.clock.now() + batching().deadline
}

#[tokio::test(start_paused = true)]
async fn next_owner_does_not_wait_after_a_clean_end() {
    for mode in [Mode::Drain, Mode::FinishBatch] {
        let mut rig = Rig::at_work().await;
        // Earlier owners may act until then.
        rig.pass(2 * batching().deadline).await;
        rig.look().await;
        rig.mode.send(mode).unwrap();
        rig.until_ended().await;
        assert!(!is_waited_for(&mut rig).await, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn next_owner_waits_if_a_request_may_be_in_flight() {
    let mut rig = Rig::at_work().await;
    rig.pass(2 * batching().deadline).await;
    rig.look().await;
    rig.cancel.cancel();
    rig.until("the task's end", |rig| rig.task.is_finished()).await;
    assert!(is_waited_for(&mut rig).await, "what it had under way was abandoned");

    let mut rig = Rig::at_work().await;
    rig.pass(2 * batching().deadline).await;
    rig.look().await;
    rig.elastic.set_faults(|faults| faults.down = true);
    rig.index(1, "a", 1, 1);
    rig.pass(Duration::from_secs(5)).await;
    rig.elastic.set_faults(|faults| faults.down = false);
    rig.until_watermark(2).await;
    rig.mode.send(Mode::Drain).unwrap();
    rig.until_ended().await;
    assert!(is_waited_for(&mut rig).await, "a request had no answer");
}

/// Somebody was assigned the partition in between, and was stopped before it had claimed it.
#[tokio::test(start_paused = true)]
async fn after_a_gap_every_placement_is_written_also_where_the_owner_before_has_ended_in_good_order() {
    let mut rig = Rig::following();
    let claim = Claim {
        generation: 0,
        owner: "old".into(),
        deadline_ms: 60_000,
        assignment: "1-1".into(),
        ended_ms: Some(0),
    };
    let (index, id, guard) = (Index::Meta, claim_key("topic", 0), WriteCondition::Absent);
    let op = BulkOp::Index { index, id, guard, source: claim.to_json() };
    rig.elastic.bulk(&[op], Duration::from_secs(1)).await.unwrap();
    let (keeper, claims) = keeper(&rig.elastic, &rig.clock, "in between", batching().deadline);
    rig.look().await;
    assert_eq!(placements_written(&mut rig, 0, "a").await, 1, "a new document");
    assert_eq!(placements_written(&mut rig, 1, "a").await, 0, "in place");
    // Compaction took 2 to 6.
    assert_eq!(placements_written(&mut rig, 7, "a").await, 1, "whoever is in between may have read them");
    rig.pass(Duration::from_secs(50)).await;
    let claimed = claims.claim(0, 0);
    keeper.look().await;
    assert!(claimed.standing().taken.is_some(), "it may claim it, and act on them");
    drop(claimed);

    let mut rig = Rig::following();
    rig.look().await;
    let mut written = Vec::new();
    for (offset, later) in [(0, 0), (7, 0), (8, 118), (9, 4)] {
        for _ in 0..later / 2 {
            rig.pass(Duration::from_secs(2)).await;
            rig.look().await;
        }
        written.push(placements_written(&mut rig, offset, "a").await);
    }
    assert_eq!(written, [1, 1, 1, 0], "until it has either claimed the partition, or cannot any more");
}

/// While a long deadline is made a short one, old workers act by the long one.
#[tokio::test(start_paused = true)]
async fn zombies_are_bounded_by_the_longest_deadline_of_any_owner() {
    let mut rig = Rig::following();
    let claim = Claim {
        generation: 0,
        owner: "old".into(),
        deadline_ms: 300_000,
        assignment: "1-1".into(),
        ended_ms: None,
    };
    let (index, id, guard) = (Index::Meta, claim_key("topic", 0), WriteCondition::Absent);
    let op = BulkOp::Index { index, id, guard, source: claim.to_json() };
    rig.elastic.bulk(&[op], Duration::from_secs(1)).await.unwrap();
    rig.look().await;
    assert_eq!(placements_written(&mut rig, 0, "a").await, 1, "a new document");
    let mut written = Vec::new();
    for (offset, minutes) in [(7, 2), (8, 6), (9, 2)] {
        for _ in 0..minutes * 3 {
            rig.pass(Duration::from_secs(20)).await;
            rig.look().await;
        }
        written.push(placements_written(&mut rig, offset, "a").await);
    }
    assert_eq!(written, [1, 1, 0], "after a gap, until two of the long deadlines have passed");
}
