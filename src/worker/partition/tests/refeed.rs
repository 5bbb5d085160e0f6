//! A partition and its source of truth, which the test plays.

use super::*;
use crate::core::mover::{Refusal, SourceAnswer};
use crate::worker::refeed::WaitingFetch;

type Source = mpsc::UnboundedReceiver<WaitingFetch>;

fn fed(on_missing: OnMissing) -> (Rig, Source) {
    let (feeder, source) = SourceFetcher::stand_in();
    (Rig::build(RigOptions { on_missing, refeed: Some(feeder), ..RigOptions::default() }), source)
}

fn refeed(rig: &Rig, offset: i64, id: &str) {
    rig.send(offset, id, None, Some("refeed"));
}

fn found(lon: i32, n: i64) -> SourceAnswer {
    SourceAnswer::Document(document(lon, n).into())
}

async fn request(rig: &mut Rig, source: &mut Source) -> WaitingFetch {
    let limit = TokioInstant::now() + Duration::from_secs(60);
    loop {
        if let Ok(waiting) = source.try_recv() {
            return waiting;
        }
        assert!(TokioInstant::now() < limit, "nothing was asked");
        rig.pass(Duration::from_millis(50)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn silent_source_delays_the_watermark_but_not_other_documents() {
    let (mut rig, mut source) = fed(OnMissing::Refeed);
    refeed(&rig, 0, "x");
    for offset in 1..100 {
        rig.index(offset, &format!("y{}", offset % 7), 1, offset);
    }
    let asked = request(&mut rig, &mut source).await;
    assert_eq!((asked.request.id.as_str(), asked.request.after.offset()), ("x", 0));
    rig.pass(Duration::from_secs(120)).await;
    assert_eq!(rig.elastic.ids().len(), 7, "all but x");
    assert_eq!(rig.published.watermark(), Some(0));
    rig.index(100, "z", 1, 1);
    rig.until("z is written", |rig| rig.elastic.document("z").is_some()).await;
    asked.answer(found(91, 5));
    rig.until_watermark(101).await;
    assert_eq!(rig.elastic.document("x"), Some(document(91, 5)));
    assert_eq!(shards(&rig.elastic.copies("x")), ["f1"]);
    assert!(source.try_recv().is_err(), "asked once");
    assert_eq!(rig.meter.held(), 0, "no memory of it is held");
}

#[tokio::test(start_paused = true)]
async fn newer_write_wins_without_waiting_for_the_source() {
    let (mut rig, mut source) = fed(OnMissing::Refeed);
    refeed(&rig, 0, "x");
    refeed(&rig, 1, "y");
    let asked = [request(&mut rig, &mut source).await, request(&mut rig, &mut source).await];
    rig.index(2, "x", 1, 7);
    rig.send(3, "y", None, None);
    rig.until_watermark(4).await;
    for asked in asked {
        asked.answer(found(91, 5));
    }
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(rig.elastic.document("x"), Some(document(1, 7)));
    assert_eq!(rig.elastic.document("y"), None);
}

#[tokio::test(start_paused = true)]
async fn patch_during_the_fetch_applies_over_the_answer() {
    let (mut rig, mut source) = fed(OnMissing::Refeed);
    rig.index(0, "x", 1, 1);
    refeed(&rig, 1, "x");
    let asked = request(&mut rig, &mut source).await;
    rig.send(2, "x", Some(r#"{"n":9}"#), Some("patch"));
    rig.pass(Duration::from_secs(1)).await;
    asked.answer(found(91, 5));
    rig.until_watermark(3).await;
    assert_eq!(rig.elastic.document("x"), Some(document(91, 9)));
    assert!(source.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn answer_from_before_a_later_refeed_is_ignored() {
    let (mut rig, mut source) = fed(OnMissing::Refeed);
    refeed(&rig, 0, "x");
    let first = request(&mut rig, &mut source).await;
    refeed(&rig, 1, "x");
    let second = request(&mut rig, &mut source).await;
    assert_eq!(second.request.after.offset(), 1);
    first.answer(found(1, 1));
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(rig.elastic.document("x"), None);
    second.answer(found(1, 2));
    rig.until_watermark(2).await;
    assert_eq!(rig.elastic.document("x"), Some(document(1, 2)));
}

#[tokio::test(start_paused = true)]
async fn fetch_made_void_by_a_newer_write_is_not_sent() {
    let (mut rig, mut source) = fed(OnMissing::Refeed);
    let mut void = Vec::new();
    for offset in (0..6).step_by(2) {
        rig.send(offset, "x", Some(r#"{"n":9}"#), Some("patch"));
        void.push(request(&mut rig, &mut source).await.request);
        rig.send(offset + 1, "x", None, None);
        rig.until_watermark(offset + 2).await;
    }
    refeed(&rig, 6, "x");
    let last = request(&mut rig, &mut source).await;
    assert!(last.request.is_wanted() && void.iter().all(|request| !request.is_wanted()));
}

#[tokio::test(start_paused = true)]
async fn document_missing_at_the_source_is_deleted() {
    let (mut rig, mut source) = fed(OnMissing::Refeed);
    rig.index(0, "x", 1, 1);
    rig.until_watermark(1).await;
    refeed(&rig, 1, "x");
    request(&mut rig, &mut source).await.answer(SourceAnswer::Gone);
    rig.until_watermark(2).await;
    assert_eq!(rig.elastic.document("x"), None);
    assert_eq!(rig.counts()["deleted"], 1);
}

#[tokio::test(start_paused = true)]
async fn patch_or_touch_of_a_missing_document_fetches_it() {
    let (mut rig, mut source) = fed(OnMissing::Refeed);
    rig.send(0, "x", Some(r#"{"n":9}"#), Some("patch"));
    request(&mut rig, &mut source).await.answer(found(91, 5));
    rig.until_watermark(1).await;
    assert_eq!(rig.elastic.document("x"), Some(document(91, 9)));
    rig.send(1, "y", None, Some("touch"));
    request(&mut rig, &mut source).await.answer(found(1, 5));
    rig.until_watermark(2).await;
    assert_eq!(rig.elastic.document("y"), Some(document(1, 5)));
    rig.send(2, "z", Some(r#"{"n":9}"#), Some("patch"));
    request(&mut rig, &mut source).await.answer(SourceAnswer::Gone);
    rig.until_watermark(3).await;
    assert_eq!((rig.elastic.document("z"), rig.counts()["dropped"]), (None, 1));
    assert_eq!(rig.letters(), []);
}

#[tokio::test(start_paused = true)]
async fn unplaceable_answer_or_missing_source_is_a_dead_letter() {
    let (mut rig, mut source) = fed(OnMissing::Refeed);
    rig.index(0, "x", 1, 1);
    rig.until_watermark(1).await;
    refeed(&rig, 1, "x");
    let refusal = Refusal { reason: "no_location", detail: "it has none".to_owned() };
    request(&mut rig, &mut source).await.answer(SourceAnswer::Unusable(refusal));
    rig.until_watermark(2).await;
    assert_eq!(rig.letters(), [(1, 1, "write", "no_location")]);
    assert_eq!(rig.elastic.document("x"), Some(document(1, 1)), "it stays as it was");

    let mut rig = Rig::start();
    refeed(&rig, 0, "x");
    rig.until_watermark(1).await;
    assert_eq!(rig.letters(), [(0, 0, "write", "no_source")]);
}

#[tokio::test(start_paused = true)]
async fn next_owner_writes_a_fetched_document_after_a_crash() {
    let (mut rig, mut source) = fed(OnMissing::Refeed);
    refeed(&rig, 0, "x");
    let asked = request(&mut rig, &mut source).await;
    rig.elastic.set_faults(|faults| faults.delay = Duration::from_secs(1));
    let calls = rig.elastic.calls();
    asked.answer(found(91, 5));
    // Its placement is read again, then written; the worker crashes before the document is written.
    rig.until("the placement is on its way", |rig| rig.elastic.calls() == calls + 2).await;
    rig.pass(Duration::from_millis(1_200)).await;
    rig.cancel.cancel();
    rig.until_ended().await;
    let elastic = rig.elastic.clone();
    let before = elastic.document("x");

    let (feeder, mut source) = SourceFetcher::stand_in();
    let mut next = Rig::build(RigOptions {
        on_missing: OnMissing::Refeed,
        refeed: Some(feeder),
        elastic: Some(elastic),
        ..RigOptions::default()
    });
    refeed(&next, 0, "x");
    next.until_watermark(1).await;
    assert_eq!((before, next.elastic.document("x")), (None, Some(document(91, 5))));
    assert!(source.try_recv().is_err(), "the source was asked again");
}

#[tokio::test(start_paused = true)]
async fn a_refeed_that_cannot_be_placed_does_not_take_along_what_it_was_folded_with() {
    let (mut rig, mut source) = fed(OnMissing::Refeed);
    rig.index(0, "x", 1, 1);
    refeed(&rig, 1, "x");
    rig.send(2, "x", Some(r#"{"p":2}"#), Some("patch"));
    // For the three of them, and for those that are left when the first is written.
    for _ in 0..2 {
        let asked = request(&mut rig, &mut source).await;
        asked.answer(SourceAnswer::Unusable(Refusal { reason: "no_location", detail: String::new() }));
    }
    rig.until_watermark(3).await;
    assert_eq!(rig.letters(), [(1, 1, "write", "no_location")]);
    assert_eq!(rig.elastic.document("x").as_deref(), Some(r#"{"location":[1,1],"n":1,"p":2}"#));
    assert!(source.try_recv().is_err());
    assert_eq!((rig.counts()["in_flight"], rig.meter.held()), (0, 0));
}
