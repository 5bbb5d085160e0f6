//! Counts the documents that a partition writes, by place.

use crate::core::fold::Content;
use crate::core::mover::{Done, Outcome, Settled};
use crate::geoshard::load::LoadCounter;
use crate::io::load::LoadSender;

/// Ticks from one hand-over to the next.
const TICKS: u32 = 10;

/// The counter of one partition: no other task touches it. What is in it at the end is handed over.
pub(super) struct PartitionLoad {
    counter: LoadCounter,
    to: LoadSender,
    ticks: u32,
}

impl PartitionLoad {
    /// Counts by cells of `level`, and hands over to `to`.
    pub(super) fn new(level: u8, to: LoadSender) -> Self {
        Self { counter: LoadCounter::new(level), to, ticks: 0 }
    }

    /// Counts what a batch wrote.
    pub(super) fn count(&mut self, settled: &[Settled]) {
        count_written(&mut self.counter, settled);
    }

    /// Now and then hands over what was counted.
    pub(super) fn tick(&mut self) {
        self.ticks += 1;
        if self.ticks >= TICKS {
            self.ticks = 0;
            self.to.send(&mut self.counter);
        }
    }
}

/// Counts the documents that a batch wrote.
pub fn count_written(counter: &mut LoadCounter, settled: &[Settled]) {
    let written = |settled: &&Settled| matches!(settled.outcome, Outcome::Done(Done::Indexed { .. }));
    for Settled { entry, touched, .. } in settled.iter().filter(written) {
        match (&entry.fold.content, &touched.target) {
            (Content::Index { doc, at }, _) => counter.wrote(*at, doc.len()),
            // Of a touch the location is not known here, and it is a move of geofold's own.
            (Content::Patch { patches, .. }, Some(shard)) => {
                counter.wrote_in(shard, patches.iter().map(bytes::Bytes::len).sum());
            }
            (Content::Refeed, Some(shard)) => counter.wrote_in(shard, 0),
            _ => {}
        }
    }
}

impl Drop for PartitionLoad {
    fn drop(&mut self) {
        self.to.send(&mut self.counter);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::base::clock::BootClock;
    use crate::base::geo::GeoPoint;
    use crate::base::ids::DocId;
    use crate::base::position::{Epoch, Position};
    use crate::core::fold::{Base, Fold};
    use crate::core::mover::{AffectedShards, Carry, Entry, UNANSWERED};
    use crate::io::load::{LoadKeeper, LoadStore};
    use crate::io::maps::MapsReader;
    use crate::testkit::testing::{MemoryElastic, six_faces};

    fn settled(content: Content, outcome: Outcome) -> Settled {
        let position = Position::new(Epoch::default(), 1).unwrap();
        let fold = Fold {
            content,
            first: position,
            last: position,
            located_at: None,
            touched_at: None,
            whole_at: None,
            targets: Default::default(),
            steps: Default::default(),
            records: 1,
            later: Vec::new(),
        };
        let id = DocId::from_key(Some(b"a")).unwrap();
        let target = Some(six_faces().shards()[0].clone());
        Settled {
            entry: Entry { id, fold: fold.into(), fetched: None, carry: Carry::default() },
            outcome,
            touched: AffectedShards { target, sources: Vec::new() },
        }
    }

    #[tokio::test]
    async fn written_documents_count_and_nothing_else_does() {
        let indexed = || Outcome::Done(Done::Indexed { moved: false });
        let index = || Content::Index { doc: "{}".into(), at: GeoPoint::new(1.0, 2.0).unwrap().into() };
        let patch = Content::Patch { over: Base::Stored, patches: vec!["{\"a\":1}".into()] };
        let again = Outcome::Again { reason: UNANSWERED, carry: Carry::default() };
        let batch = [
            settled(index(), indexed()),
            settled(patch, indexed()),
            settled(index(), Outcome::Done(Done::AlreadyApplied)),
            settled(index(), again),
            settled(Content::Delete, Outcome::Done(Done::Deleted)),
            settled(Content::Touch, Outcome::Done(Done::Indexed { moved: true })),
        ];
        let elastic: Arc<MemoryElastic> = MemoryElastic::for_map(&six_faces());
        let (second, clock) = (Duration::from_secs(1), Arc::new(BootClock));
        let maps = MapsReader::fixed(six_faces(), clock);
        let (keeper, to) = LoadKeeper::new(elastic.clone(), "t", second, second, maps);
        let mut load = PartitionLoad::new(7, to);
        load.count(&batch);
        (0..TICKS - 1).for_each(|_| load.tick());
        assert!(!load.counter.is_empty());
        load.tick();
        assert!(load.counter.is_empty());
        load.count(&batch[..1]);
        drop(load);
        let stop = CancellationToken::new();
        stop.cancel();
        keeper.run(stop).await;
        let (record, _) = LoadStore::new(&*elastic, "t", second).read().await.unwrap().unwrap();
        assert_eq!(record.hour_total(record.at / 3600), Some([3.0, 0.0]));
    }
}
