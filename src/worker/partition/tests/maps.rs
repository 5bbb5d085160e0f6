//! Geoshard maps that change under a running partition.

use super::*;

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_while_the_maps_are_unknown_or_outdated() {
    let mut rig = Rig::following();
    rig.index(0, "a", 1, 1);
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(rig.elastic.ids().len(), 0, "nothing is known yet");
    assert_eq!(rig.counts()["in"], 0, "targets are unknown, too");
    rig.look().await;
    rig.until_watermark(1).await;
    rig.pass(Duration::from_secs(61)).await;
    rig.index(1, "a", 1, 2);
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(rig.published.watermark(), Some(1), "what is known is too old");
    rig.look().await;
    rig.until_watermark(2).await;
}

#[tokio::test(start_paused = true)]
async fn owner_confirms_its_maps_before_sending_and_when_idle() {
    let mut rig = Rig::following();
    let announced = unwritten().begin(two_halves()).unwrap();
    rig.set_maps(&announced).await;
    rig.look().await;
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.confirmed().await, Some(1), "an idle partition");
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;

    let moving = announced.activate(Epoch::new(1).unwrap(), OffsetFloor::new()).unwrap();
    rig.set_maps(&moving).await;
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.confirmed().await, Some(1), "not before it is known");
    rig.elastic.set_faults(|faults| faults.meta_is_blocked = true);
    rig.look().await;
    rig.index(1, "a", 1, 2);
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f0"], "not confirmed yet");
    rig.elastic.set_faults(|faults| faults.meta_is_blocked = false);
    rig.until_watermark(2).await;
    assert_eq!(rig.confirmed().await, Some(2));
    assert_eq!(shards(&rig.elastic.copies("a")), ["f3"], "the new map decides");
}

#[tokio::test(start_paused = true)]
async fn while_two_maps_are_live_placements_are_written_where_they_differ_and_moves_are_seen_before_old_copies_go()
 {
    let mut rig = Rig::following();
    rig.look().await;
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    assert_eq!(placements_written(&mut rig, 1, "a").await, 0, "in place");
    rig.set_maps(&unwritten().begin(two_halves()).unwrap()).await;
    rig.look().await;
    assert_eq!(placements_written(&mut rig, 2, "a").await, 1);
    assert_eq!(rig.elastic.refreshes(), 0, "nothing has moved");
    rig.index(3, "a", 91, 4);
    rig.until("both copies", |rig| rig.elastic.copies("a").len() == 2).await;
    let both_since = TokioInstant::now();
    rig.until_watermark(4).await;
    assert_eq!(rig.elastic.refreshes(), 1);
    assert!(both_since.elapsed() >= Duration::from_secs(1), "{:?}", both_since.elapsed());
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
    assert_eq!(placements_written_at(&mut rig, 4, "a", 91).await, 1, "that nothing is left to sweep");
    assert_eq!(placements_written_at(&mut rig, 5, "a", 91).await, 0, "both maps say so");
}

/// A fold may hold records of before both maps were known: what they say of places is by one of them.
#[tokio::test(start_paused = true)]
async fn what_was_read_when_one_map_was_known_writes_its_placement() {
    let mut rig = Rig::following();
    rig.look().await;
    rig.index(0, "a", 91, 1);
    rig.until_watermark(1).await;
    rig.set_maps(&unwritten().begin(two_halves()).unwrap()).await;
    let before = rig.elastic.placement_writes();
    rig.index(1, "a", 91, 2);
    rig.pass(Duration::from_millis(1)).await;
    rig.look().await;
    rig.until_watermark(2).await;
    assert_eq!(rig.elastic.placement_writes() - before, 1);
    assert_eq!(placements_written_at(&mut rig, 2, "a", 91).await, 0);
}

#[tokio::test(start_paused = true)]
async fn old_copies_stay_while_new_ones_cannot_be_made_visible() {
    let mut rig = Rig::following();
    rig.set_maps(&unwritten().begin(two_halves()).unwrap()).await;
    rig.look().await;
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    rig.elastic.set_faults(|faults| faults.refreshes_fail = true);
    rig.index(1, "a", 91, 2);
    for _ in 0..5 {
        rig.pass(Duration::from_secs(30)).await;
        rig.look().await;
    }
    assert_eq!(shards(&rig.elastic.copies("a")), ["f0", "f1"]);
    assert_eq!(rig.published.watermark(), Some(1));
    rig.elastic.set_faults(|faults| faults.refreshes_fail = false);
    rig.until_watermark(2).await;
    assert_eq!(shards(&rig.elastic.copies("a")), ["f1"]);
}

#[tokio::test(start_paused = true)]
async fn owner_with_unfinished_work_of_an_earlier_map_sends_nothing() {
    let mut rig = Rig::following();
    rig.look().await;
    rig.index(7, "a", 1, 1);
    rig.until_watermark(8).await;
    let announced = unwritten().begin(two_halves()).unwrap();
    let moving = announced.activate(Epoch::new(1).unwrap(), OffsetFloor::from([(0, 10)])).unwrap();
    rig.set_maps(&moving).await;
    rig.index(8, "a", 1, 2);
    rig.look().await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(rig.elastic.document("a"), Some(document(1, 1)));
    assert_eq!(rig.published.watermark(), Some(8));
    let reasons = rig.health.missing();
    assert!(reasons[&stopped_part(0)].contains("the map has changed"), "{reasons:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cached_placement_that_names_a_retired_geoshard_holds_a_patch_up_for_one_batch_and_no_longer() {
    let mut rig = Rig::start();
    rig.index(0, "a", 1, 1);
    rig.until_watermark(1).await;
    let [(old, _)] = &rig.elastic.copies("a")[..] else { panic!("one copy") };
    // While zombies may act the cache is emptied often.
    rig.pass(3 * batching().deadline).await;
    rig.index(1, "a", 91, 2);
    rig.until("the move", |rig| rig.elastic.copies("a").len() == 2).await;
    // The sweep is carried out, and sent again: so its geoshard stays named.
    rig.elastic.set_faults(|faults| faults.lost_replies = 1);
    rig.until_watermark(2).await;
    assert!(rig.elastic.placement("a").contains("leftovers"), "{}", rig.elastic.placement("a"));
    rig.elastic.retire(old);
    rig.send(2, "a", Some(r#"{"p":2}"#), Some("patch"));
    rig.until_watermark(3).await;
    assert_eq!(rig.elastic.document("a").as_deref(), Some(r#"{"location":[91,1],"n":2,"p":2}"#));
}
