//! Reads a few documents all the time: what must hold at every moment (INV-1, INV-2, INV-4) is not enough to be
//! true in the end. They may be in two geoshards for a while, and never in one that their placement does not name, nor in
//! none.

use std::collections::BTreeMap;

use crate::base::ids::ShardId;
use crate::base::position::Position;
use crate::core::invariants::{
    BrokenInvariant, DocumentState, inv_1_every_copy_is_named, inv_2_a_document_that_exists_has_a_copy,
    inv_4_nothing_goes_back,
};
use crate::core::placement::Placement;
use crate::io::elastic::Index;
use crate::testkit::embedded::elasticsearch::IndexStore;

/// Documents read at one moment, while writes are blocked.
const AT_ONCE: usize = 50;

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Observer {
    shards: Vec<ShardId>,
    /// The geoshards', in the same order; then that of the placements.
    indices: Vec<String>,
    /// How each was seen last, if he was there.
    seen: BTreeMap<String, DocumentState>,
    broken: BTreeMap<String, String>,
    looks: u64,
    next: usize,
}

impl Observer {
    /// Looks at the indices of this prefix.
    pub(super) fn new(prefix: &str, shards: &[ShardId]) -> Self {
        let geoshards = shards.iter().cloned().map(Index::Geoshard);
        let indices = geoshards.chain([Index::Placements]).map(|index| index.name(prefix)).collect();
        let (seen, broken) = (BTreeMap::new(), BTreeMap::new());
        Self { shards: shards.to_vec(), indices, seen, broken, looks: 0, next: 0 }
    }

    /// Checks the next few of `people`. None of them ever leaves, so one seen before must still be found.
    pub(super) fn look(&mut self, store: &IndexStore, people: impl Iterator<Item = String>) {
        let people: Vec<String> = people.collect();
        let from = self.next.checked_rem(people.len()).unwrap_or_default();
        let now: Vec<String> =
            people.iter().cycle().skip(from).take(AT_ONCE.min(people.len())).cloned().collect();
        self.next = from + now.len();
        self.looks += now.len() as u64;
        let found = store.snapshot(&self.indices, &now);
        for (name, places) in now.into_iter().zip(found) {
            let mut view = DocumentState::default();
            for (number, doc) in places {
                match self.shards.get(number) {
                    Some(shard) => {
                        let version = Position::from_version(u64::try_from(doc.version).unwrap_or_default());
                        view.copies.insert(shard.clone(), version);
                    }
                    None => view.placement = Placement::from_json(&doc.source).ok(),
                }
            }
            let before = self.seen.get(&name);
            if let Err(broken) = judge(before, &view) {
                self.broken.entry(name.clone()).or_insert_with(|| broken.to_string());
            }
            if before.is_some() || !view.copies.is_empty() {
                self.seen.insert(name, view);
            }
        }
    }

    /// Number of checks.
    pub(super) fn looks(&self) -> u64 {
        self.looks
    }

    /// For whom something was broken at some moment, and what.
    pub(super) fn broken(&self) -> impl Iterator<Item = (&str, &str)> {
        self.broken.iter().map(|(name, what)| (name.as_str(), what.as_str()))
    }
}

fn judge(before: Option<&DocumentState>, now: &DocumentState) -> Result<(), BrokenInvariant> {
    inv_1_every_copy_is_named(now)?;
    inv_2_a_document_that_exists_has_a_copy(now, before.is_some())?;
    before.map_or(Ok(()), |before| inv_4_nothing_goes_back(before, now))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::clock::BootClock;
    use crate::testkit::embedded::elasticsearch::{WriteContent, WriteGuard};

    #[test]
    fn missing_and_misplaced_copies_are_detected() {
        let store = IndexStore::new("true", 1 << 20, Arc::new(BootClock));
        let write = |index: &str, id: &str, version, content: WriteContent<'_>| {
            store.write(index, id, WriteGuard::External(version), content).unwrap();
        };
        let put = |index: &str, id: &str, version| write(index, id, version, WriteContent::Source(b"{}"));
        let place = |id: &str, pos: i64, shard: &str, leftovers: &str| {
            let record = format!(r#"{{"pos":{pos},"shard":"{shard}","leftovers":[{leftovers}]}}"#);
            write("p-placements", id, pos, WriteContent::Source(record.as_bytes()));
        };
        let names = ["moves", "vanishes", "strays", "asleep"];
        let shards = ["a", "b"].map(|shard| ShardId::new(shard).unwrap());
        let mut onlooker = Observer::new("p", &shards);
        let mut look = || onlooker.look(&store, names.iter().map(|name| (*name).to_owned()));
        for id in &names[..3] {
            place(id, 1, "a", "");
            put("p-a", id, 1);
        }
        look();
        place("moves", 2, "b", "\"a\"");
        put("p-b", "moves", 2);
        look();
        write("p-a", "moves", 2, WriteContent::Nothing);
        write("p-a", "vanishes", 2, WriteContent::Nothing);
        put("p-b", "strays", 2);
        look();
        let broken: Vec<(&str, &str)> = onlooker.broken().collect();
        assert!(
            matches!(broken[..], [("strays", one), ("vanishes", two)]
            if one.starts_with("INV-1") && two.starts_with("INV-2")),
            "{broken:?}"
        );
        assert_eq!(onlooker.looks(), 12);
    }
}
