//! A partition far behind is read ahead.

use super::*;
use crate::core::look_ahead::LookAhead;
use crate::worker::look_ahead::{Asking, Reading};

/// Finds nothing, after this time.
struct Nothing(Duration);

impl AheadReader for Nothing {
    fn is_far_behind(&self, _: i32, _: i64, _: usize) -> Asking {
        async { Ok(true) }.boxed()
    }

    fn read(&self, _: i32, into: LookAhead) -> Reading {
        let sleep = tokio::time::sleep(self.0);
        sleep.map(|()| Ok(into)).boxed()
    }
}

/// Has written one document, has another one, and is read ahead for so many seconds.
async fn being_read_ahead(seconds: u64) -> Rig {
    let reader = Arc::new(Nothing(Duration::from_secs(seconds)));
    let mut rig = Rig::build(RigOptions { look_ahead: Some(reader), ..RigOptions::default() });
    rig.meter.set_at_bound(Some(0));
    rig.index(0, "a", 1, 0);
    rig.until_watermark(1).await;
    rig.index(1, "b", 1, 1);
    rig.pass(Duration::from_millis(500)).await;
    rig
}

#[tokio::test(start_paused = true)]
async fn meanwhile_it_writes_nothing_for_ten_seconds_at_most() {
    for (takes, held) in [(3, 3), (15, 10)] {
        let began = TokioInstant::now();
        let mut rig = being_read_ahead(takes).await;
        rig.until_watermark(2).await;
        let seconds = began.elapsed().as_secs();
        assert!((held..=held + 1).contains(&seconds), "{seconds} s, where the read took {takes}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_drained_does_not_wait() {
    let began = TokioInstant::now();
    let mut rig = being_read_ahead(5).await;
    assert_eq!(rig.published.watermark(), Some(1), "it waits");
    rig.mode.send_replace(Mode::Drain);
    rig.until_ended().await;
    assert_eq!(rig.published.watermark(), Some(2));
    assert!(began.elapsed() < Duration::from_secs(2));
}

/// Of twelve writes of `a`, finds four at a time.
#[derive(Default)]
struct FourAtATime {
    /// Enough waits up to this offset.
    far_until: i64,
    reads: AtomicI64,
}

impl AheadReader for FourAtATime {
    fn is_far_behind(&self, _: i32, from: i64, _: usize) -> Asking {
        let is_far = from <= self.far_until;
        async move { Ok(is_far) }.boxed()
    }

    fn read(&self, _: i32, mut into: LookAhead) -> Reading {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let (from, id) = (into.start(), DocId::from_key(Some(b"a")).unwrap());
        let end = (from + 4).min(13);
        (from..end).for_each(|offset| into.found_whole(&id, offset));
        into.ended(end);
        async { Ok(into) }.boxed()
    }
}

/// Writes `b`, and then twelve times `a`. Gives the number of reads, of documents written, and of records that were folded.
async fn reads_and_writes(far_until: i64) -> (i64, i64, i64) {
    let reader = Arc::new(FourAtATime { far_until, ..FourAtATime::default() });
    let mut rig = Rig::build(RigOptions { look_ahead: Some(reader.clone()), ..RigOptions::default() });
    rig.meter.set_at_bound(Some(0));
    rig.index(0, "b", 1, 0);
    rig.until_watermark(1).await;
    for offset in 1..13 {
        rig.index(offset, "a", 1, offset);
        rig.pass(Duration::from_millis(500)).await;
    }
    rig.until_watermark(13).await;
    assert_eq!(rig.elastic.document("a"), Some(document(1, 12)));
    let counts = rig.counts();
    (reader.reads.load(Ordering::SeqCst), counts["indexed"], counts["folded"])
}

#[tokio::test(start_paused = true)]
async fn it_is_read_on_before_that_is_used_up_if_enough_waits() {
    assert_eq!(reads_and_writes(11).await, (3, 2, 11), "written once, not once for each read");
    assert_eq!(reads_and_writes(1).await, (1, 10, 3), "the rest as it comes");
}
