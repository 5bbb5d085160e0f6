//! Searches for people all the time: one geoshard after the other, as a search over several indices does, and each
//! as its last refresh shows it. None of the people has ever left, so who was found once must be found by every search (INV-8), also while
//! moving.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crate::base::ids::ShardId;
use crate::io::elastic::Index;
use crate::testkit::embedded::elasticsearch::IndexStore;

/// From the first geoshard to the last, about.
const SPAN: Duration = Duration::from_millis(500);
/// A search that took longer counts for nothing: old copies need not stay for it (`moves.search_grace` is 1 s).
const LONGEST: Duration = Duration::from_millis(900);

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Searcher {
    indices: Vec<String>,
    /// Who was found by an earlier search.
    known: HashSet<String>,
    found: HashSet<String>,
    /// Geoshards queried, the first one, and when it was queried.
    asked: usize,
    from: usize,
    began: Option<Instant>,
    searches: u64,
    missed: BTreeMap<String, u64>,
}

impl Searcher {
    /// Searches the geoshards of this prefix.
    pub(super) fn new(prefix: &str, shards: &[ShardId]) -> Self {
        let indices = shards.iter().map(|shard| Index::Geoshard(shard.clone()).name(prefix)).collect();
        Self {
            indices,
            known: HashSet::new(),
            found: HashSet::new(),
            asked: 0,
            from: 0,
            began: None,
            searches: 0,
            missed: BTreeMap::new(),
        }
    }

    /// Queries the geoshards that are due; `faithful` names those who never leave.
    pub(super) fn go_on(&mut self, store: &IndexStore, now: Instant, faithful: impl Iterator<Item = String>) {
        let began = *self.began.get_or_insert(now);
        let count = u32::try_from(self.indices.len()).unwrap_or(u32::MAX).max(1);
        let mut due_at = began;
        while self.asked < self.indices.len() && now >= due_at {
            let index = &self.indices[(self.from + self.asked) % self.indices.len()];
            self.found.extend(store.searchable(index));
            self.asked += 1;
            due_at = began + SPAN * u32::try_from(self.asked).unwrap_or(u32::MAX) / count;
        }
        if self.asked == self.indices.len() {
            self.end(now.duration_since(began) <= LONGEST, faithful);
        }
    }

    fn end(&mut self, counts: bool, faithful: impl Iterator<Item = String>) {
        let found = std::mem::take(&mut self.found);
        self.searches += u64::from(counts);
        for name in faithful {
            if found.contains(&name) {
                self.known.insert(name);
            } else if counts && self.known.contains(&name) {
                *self.missed.entry(name).or_default() += 1;
            }
        }
        // Start at another geoshard each time.
        (self.asked, self.began, self.from) = (0, None, self.from + 1);
    }

    /// How many searches there were.
    pub(super) fn searches(&self) -> u64 {
        self.searches
    }

    /// Who was missed, and how often.
    pub(super) fn missed(&self) -> impl Iterator<Item = (&str, u64)> {
        self.missed.iter().map(|(name, times)| (name.as_str(), *times))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::clock::BootClock;
    use crate::testkit::embedded::elasticsearch::{WriteContent, WriteGuard};

    /// One search over two geoshards, during which something happens.
    fn search(searcher: &mut Searcher, store: &IndexStore, during: impl FnOnce(), gap: Duration) {
        let names = || ["x".to_owned()].into_iter();
        let now = Instant::now();
        searcher.go_on(store, now, names());
        during();
        searcher.go_on(store, now + gap, names());
    }

    #[test]
    fn move_before_visibility_is_detected() {
        let store = IndexStore::new("true", 1 << 20, Arc::new(BootClock));
        let write = |index: &str, version, content: WriteContent<'_>| {
            store.write(index, "x", WriteGuard::External(version), content).unwrap();
        };
        let shards = ["a", "b"].map(|shard| ShardId::new(shard).unwrap());
        let mut searcher = Searcher::new("p", &shards);
        write("p-b", 1, WriteContent::Source(b"{}"));
        write("p-a", 1, WriteContent::Source(b"{}"));
        write("p-b", 2, WriteContent::Nothing);
        search(&mut searcher, &store, || (), SPAN);
        assert_eq!((searcher.searches(), searcher.missed().count()), (1, 0), "not found yet");
        store.refresh_all();
        search(&mut searcher, &store, || (), SPAN);
        // It moves from a to b, and b is refreshed after it was queried; start with a, then with b.
        search(&mut searcher, &store, || (), SPAN);
        let moves = || {
            write("p-b", 3, WriteContent::Source(b"{}"));
            write("p-a", 3, WriteContent::Nothing);
            store.refresh_all();
        };
        search(&mut searcher, &store, moves, SPAN);
        assert_eq!(searcher.missed().collect::<Vec<_>>(), [("x", 1)]);
        assert_eq!(searcher.searches(), 4);
        search(&mut searcher, &store, || (), LONGEST + SPAN);
        assert_eq!(searcher.searches(), 4, "it took too long");
    }
}
