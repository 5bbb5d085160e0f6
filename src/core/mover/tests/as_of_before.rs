//! Which placements may be read as of a moment before (protocol, "Read as of a moment before").

use std::time::Duration;

use super::*;
use crate::base::clock::Instant;
use crate::core::placement::KnownPlacement;
use crate::io::elastic::SeqNo;

/// As of when the placement of this entry is read.
fn read_since(cache: &PlacementCache, entry: Entry) -> Option<Instant> {
    let state = MoverState::new(rules(), cache.clone());
    let [get] = &ReadPlacements::begin(state, vec![entry]).gets()[..] else { panic!("it is not read") };
    get.since
}

#[test]
fn what_others_may_have_named_or_this_owner_changed_is_read_as_of_now() {
    let assigned = Instant::from_start(Duration::from_secs(7));
    let mut cache = PlacementCache::new(NonZeroUsize::new(10).unwrap());
    assert_eq!(read_since(&cache, entry([index(A, 9)])), None);
    cache.begin(assigned);
    assert_eq!(read_since(&cache, entry([index(A, 9)])), Some(assigned));
    // `geofold audit --repair` may have named a copy.
    assert_eq!(read_since(&cache, entry([touch(9)])), None);
    assert_eq!(read_since(&cache, entry([touch(8), index(A, 9)])), None);

    let stamp = SeqNo { seq_no: 1, primary_term: 1 };
    cache.put(&id("x"), KnownPlacement::new(Placement::new(at(1), Some(shard("a")), []), stamp));
    cache.forget(&id("x"));
    assert_eq!(read_since(&cache, entry([index(A, 9)])), None);
}
