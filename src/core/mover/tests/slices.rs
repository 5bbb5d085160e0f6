//! A batch with many large copies to read goes through its rounds in slices.

use super::*;
use crate::core::placement::KnownPlacement;
use crate::io::elastic::rounds::{BulkOutcome, GetOutcome};
use crate::io::elastic::{FoundDocument, SeqNo};

const COPY_BYTES: usize = 10 << 10;
const BOUND: usize = 200 << 10;
const STAMP: SeqNo = SeqNo { seq_no: 1, primary_term: 1 };

fn patch_of(name: &str) -> Entry {
    let body = Body::Patch { patch: r#"{"n":2}"#.into(), moves: crate::core::write::PatchMove::Stays };
    let (id, fold) = Fold::from_write(Write { id: id(name), position: at(9), body }, |_| shard("a"));
    Entry { id, fold: Arc::new(fold), carry: Carry::default(), fetched: None }
}

/// Runs a batch of patches; returns the number of copies read per slice.
fn run(names: &[String], bound: usize) -> (Vec<usize>, Finished) {
    let mut cache = PlacementCache::new(NonZeroUsize::new(1000).unwrap());
    for name in names {
        cache.put(&id(name), KnownPlacement::new(Placement::new(at(1), Some(shard("a")), []), STAMP));
    }
    let state = MoverState { max_copy_bytes: bound, ..MoverState::new(rules(), cache) };
    let entries = names.iter().map(|name| patch_of(name)).collect();
    let mut slice = ReadPlacements::begin(state, entries).answered(Vec::new());
    let mut slices = Vec::new();
    loop {
        let rest = slice.cut();
        let copies = slice.gets().len();
        slices.push(copies);
        let source = format!(r#"{{"location":"1,1","text":"{}"}}"#, "x".repeat(COPY_BYTES));
        let found = FoundDocument { version: at(1).version(), stamp: STAMP, source: source.into() };
        let batch = slice.answered(vec![GetOutcome::Found(found); copies]);
        assert_eq!(batch.ops().len(), copies, "no other slice's documents are held");
        let batch = batch.answered(vec![BulkOutcome::Done { stamp: None }; copies]);
        let finished = batch.answered(Vec::new()).answered(Vec::new()).answered(Vec::new());
        let Some(rest) = rest else { return (slices, finished) };
        slice = finished.go_on(rest);
    }
}

#[test]
fn copies_are_read_in_slices_by_their_mean_size() {
    let names: Vec<String> = (0..300).map(|n| format!("d{n}")).collect();
    let (slices, finished) = run(&names, BOUND);
    assert_eq!(slices.iter().sum::<usize>(), 300);
    assert_eq!(slices[0], BOUND / (64 << 10), "nothing is known of the copies");
    let largest = *slices.iter().max().unwrap();
    assert!(largest * COPY_BYTES <= BOUND, "{slices:?}");
    assert!(largest >= 18, "{slices:?}: it learns that they are smaller");
    let settled: Vec<&str> = finished.settled.iter().map(|settled| settled.entry.id.as_str()).collect();
    assert_eq!(settled, names, "each once");
    assert!(finished.settled.iter().all(|one| one.outcome == Outcome::Done(Done::Indexed { moved: false })));
    assert_eq!(run(&names, usize::MAX).0, [300]);
    assert_eq!(run(&names[..2], 0).0, [1, 1], "one at least");
}

#[test]
fn entry_without_copies_waits_for_no_slice() {
    let mut entries: Vec<Entry> = (0..3).map(|n| patch_of(&format!("d{n}"))).collect();
    let mut cache = PlacementCache::new(NonZeroUsize::new(10).unwrap());
    for entry in &entries {
        cache.put(&entry.id, KnownPlacement::new(Placement::new(at(1), Some(shard("a")), []), STAMP));
    }
    entries.push(entry([index(A, 9)]));
    let state = MoverState { max_copy_bytes: 1, ..MoverState::new(rules(), cache) };
    let read = ReadPlacements::begin(state, entries);
    let mut slice = read.answered(vec![GetOutcome::Missing]);
    assert!(slice.cut().is_some());
    let copy = GetOutcome::Found(FoundDocument {
        version: at(1).version(),
        stamp: STAMP,
        source: r#"{"location":"1,1"}"#.into(),
    });
    assert_eq!(
        slice.answered(vec![copy]).ops().len(),
        2,
        "a patched document, and the write-ahead of a new one"
    );
}
