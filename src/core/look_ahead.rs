//! Records that a later whole write of their document supersedes, found by reading ahead: a partition far behind need not keep
//! them until that write comes.
//!
//! What is left of such records is the first offset, how many there are, and the geoshard, if all are in one. The write that
//! supersedes them takes these over, as if all had been folded (protocol, "Folding"); until then the watermark stays below the first
//! of all.

use std::collections::HashMap;
use std::time::Duration;

use crate::base::clock::Instant;
use crate::base::ids::{DocId, ShardId};
use crate::core::fold::Target;

/// A document of which records are passed over is written this many times less often than others: who is so far behind shows old
/// states in any case, and each of them is a write.
const RARER: u32 = 3;

/// A read is worth it if it saves one record of so many.
const WORTH: u64 = 8;
/// How many records for each document that is kept show whether more are worth it: if all were written in turn, each has come again.
const TELLING: u64 = 3;
/// One that is so long is not extended any more: offsets are counted from its start in 32 bits, which leaves room for a last read.
const MAX_SPAN: i64 = 1 << 31;

/// A document by two hashes of its id: two documents have the same with a probability of 2^-128.
type Key = [u64; 2];

/// What was found in a part of a partition.
#[derive(Debug, Clone)]
pub struct LookAhead {
    hashers: [ahash::RandomState; 2],
    documents: HashMap<Key, Document, ahash::RandomState>,
    max_documents: usize,
    /// Where reading ahead has begun.
    start: i64,
    /// Where it has ended.
    end: i64,
    /// Where the last read that it is made of began.
    read_from: i64,
    /// Records found that are superseded.
    superseded: u64,
    /// Documents of which records are owed.
    owing: usize,
    /// No record below is owed; meaningful while there are such documents.
    first_owed: i64,
    /// When the record at `first_owed` was read.
    owed_since: Option<Instant>,
    /// When the first record was passed over.
    began: Option<Instant>,
    /// Geoshards of records that were passed over.
    shards: Vec<ShardId>,
}

/// Whether a read can be worth it if so many records wait, of which it keeps so many documents and reads at most `max_records`. Fewer
/// are written almost as soon as they are read twice.
pub fn can_be_worth_it(waiting: u64, documents: usize, max_records: u64) -> bool {
    waiting >= telling_records(documents).min(max_records / 2)
}

fn telling_records(documents: usize) -> u64 {
    (documents as u64).saturating_mul(TELLING)
}

/// The last whole write of a document, and what is owed of it. Small: there are many.
#[derive(Debug, Clone, Copy)]
struct Document {
    /// Offset of the last write, counted from the start.
    last: u32,
    /// Offset of the first record owed, counted from the start.
    first: u32,
    /// How many are owed.
    records: u32,
    /// When the first was read, in milliseconds since `began`.
    since: u32,
    place: Place,
}

/// The geoshard of several records, by its number; or one of those below.
type Place = u16;
/// None of them says where.
const UNSAID: Place = Place::MAX - 1;
/// They are in several, or it is unclear.
const UNCLEAR: Place = Place::MAX;

/// Records of one document that were passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// Offset of the first.
    pub first: i64,
    /// How many.
    pub records: u32,
    /// Where they place the document; `None` if they say nothing of it.
    pub target: Option<Target>,
}

/// What to do with a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Passage {
    /// Take it; it also stands for these.
    Take(Option<PassedOver>),
    /// Pass it over.
    PassOver,
    /// It needs those before it, which were passed over for a write at this offset that has not come.
    Lost(i64),
}

/// A record as it comes.
#[derive(Debug, Clone, Copy)]
pub struct Coming<'a> {
    /// Its document.
    pub id: &'a DocId,
    /// Its offset.
    pub offset: i64,
    /// Where it places the document.
    pub targets: &'a [Target],
    /// It replaces the whole document, or deletes it.
    pub is_whole: bool,
    /// Something of the document is unfinished: the record is folded with it.
    pub is_held: bool,
    /// Now.
    pub now: Instant,
    /// A write may be so old; one that is passed over three times that.
    pub max_age: Duration,
}

impl LookAhead {
    /// From this offset on, of at most so many documents.
    pub fn new(start: i64, max_documents: usize) -> Self {
        Self {
            hashers: [ahash::RandomState::new(), ahash::RandomState::new()],
            documents: HashMap::default(),
            max_documents,
            start,
            end: start,
            read_from: start,
            superseded: 0,
            owing: 0,
            first_owed: i64::MAX,
            owed_since: None,
            began: None,
            shards: Vec::new(),
        }
    }

    /// The next whole write. One that is too far from the start is left out.
    pub fn found_whole(&mut self, id: &DocId, offset: i64) {
        let Ok(last) = u32::try_from(offset - self.start) else { return };
        let key = self.key(id);
        if let Some(document) = self.documents.get_mut(&key) {
            document.last = last;
            self.superseded += 1;
        } else if self.documents.len() < self.max_documents {
            self.documents.insert(key, Document { last, first: 0, records: 0, since: 0, place: UNSAID });
        }
    }

    /// Reading ahead has ended before this offset.
    pub fn ended(&mut self, end: i64) {
        self.end = end;
    }

    /// An empty one for what follows, to be given to [`extend`](Self::extend).
    pub fn following(&self) -> Self {
        Self { hashers: self.hashers.clone(), ..Self::new(self.end, self.max_documents) }
    }

    /// Adds what was found from the end on: later writes of the same documents supersede those that are still to come, too. Forgets
    /// writes below the next offset of which nothing is owed: they came before they were found.
    ///
    /// While this goes on, some document is always owed. So what is owed first is looked up here, or the watermark would wait for all.
    pub fn extend(&mut self, following: Self, next_offset: i64) {
        let start = self.start;
        self.documents.retain(|_, known| known.records > 0 || start + i64::from(known.last) >= next_offset);
        let owed = self.documents.values().filter(|known| known.records > 0);
        if let Some(first) = owed.min_by_key(|known| known.first) {
            self.first_owed = start + i64::from(first.first);
            self.owed_since = self.began.map(|began| began + Duration::from_millis(first.since.into()));
        }
        for (key, found) in following.documents {
            let last = following.start - start + i64::from(found.last);
            let Ok(last) = u32::try_from(last) else { continue };
            if let Some(document) = self.documents.get_mut(&key) {
                document.last = last;
            } else if self.documents.len() < self.max_documents {
                self.documents.insert(key, Document { last, ..found });
            }
        }
        (self.read_from, self.end) = (following.start, following.end);
    }

    /// Whether it is time to read on: half of what was read last is used up.
    pub fn runs_out(&self, next_offset: i64) -> bool {
        let is_half_used = next_offset - self.read_from > (self.end - self.read_from) / 2;
        is_half_used && self.end - self.start < MAX_SPAN
    }

    /// Where reading ahead has begun.
    pub fn start(&self) -> i64 {
        self.start
    }

    /// Offset after the last record that was looked at.
    pub fn end(&self) -> i64 {
        self.end
    }

    /// Records found that are superseded.
    pub fn superseded(&self) -> u64 {
        self.superseded
    }

    /// Whether it saves enough, after so many records that were read.
    pub fn is_worth_it(&self, records: u64) -> bool {
        self.superseded.saturating_mul(WORTH) >= records.max(1)
    }

    /// Whether, after so many records, reading on would hardly be worth it.
    pub fn is_hopeless(&self, records: u64) -> bool {
        records >= telling_records(self.max_documents) && !self.is_worth_it(records)
    }

    /// The lowest offset that may be owed.
    pub fn first_owed(&self) -> Option<i64> {
        (self.owing > 0).then_some(self.first_owed)
    }

    /// When the first record that may be owed was read.
    pub fn owed_since(&self) -> Option<Instant> {
        self.owed_since.filter(|_| self.owing > 0)
    }

    /// Whether it has nothing more to say.
    pub fn is_over(&self, next_offset: i64) -> bool {
        next_offset >= self.end && self.owing == 0
    }

    /// What to do with the next record.
    pub fn pass(&mut self, coming: Coming<'_>) -> Passage {
        let Coming { offset, is_whole, now, .. } = coming;
        let key = self.key(coming.id);
        let Some(document) = self.documents.get_mut(&key) else { return Passage::Take(None) };
        let shards = &mut self.shards;
        let last = self.start + i64::from(document.last);
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let passed = millis(self.began.map_or(Duration::ZERO, |began| now.since(began)));
        let age = passed.saturating_sub(document.since);
        // A hot document is written now and then, however many writes of it wait.
        let is_due = is_whole && document.records > 0 && age > millis(coming.max_age.saturating_mul(RARER));
        if offset < last && !coming.is_held && !is_due {
            let Ok(first) = u32::try_from(offset - self.start) else { return Passage::Take(None) };
            if document.records == 0 {
                (document.first, document.since, document.place) = (first, passed, UNSAID);
                self.began.get_or_insert(now);
                if self.owing == 0 {
                    (self.first_owed, self.owed_since) = (offset, Some(now));
                }
                self.owing += 1;
            }
            document.records = document.records.saturating_add(1);
            document.place = both(document.place, place(shards, coming.targets));
            return Passage::PassOver;
        }
        let owed = (document.records > 0).then(|| PassedOver {
            first: self.start + i64::from(document.first),
            records: document.records,
            target: target(shards, document.place),
        });
        if owed.is_some() && !is_whole {
            return Passage::Lost(last);
        }
        document.records = 0;
        self.owing -= usize::from(owed.is_some());
        if offset >= last {
            self.documents.remove(&key);
        }
        Passage::Take(owed)
    }

    fn key(&self, id: &DocId) -> Key {
        [self.hashers[0].hash_one(id.as_str()), self.hashers[1].hash_one(id.as_str())]
    }
}

/// The place that one record says.
fn place(shards: &mut Vec<ShardId>, targets: &[Target]) -> Place {
    match targets {
        [] => UNSAID,
        [Target::Shard(shard)] => {
            let known = shards.iter().position(|known| known == shard);
            let number = known.unwrap_or_else(|| {
                shards.push(shard.clone());
                shards.len() - 1
            });
            Place::try_from(number).ok().filter(|number| *number < UNSAID).unwrap_or(UNCLEAR)
        }
        _ => UNCLEAR,
    }
}

fn both(one: Place, other: Place) -> Place {
    match (one, other) {
        (UNSAID, place) | (place, UNSAID) => place,
        (one, other) if one == other => one,
        _ => UNCLEAR,
    }
}

fn target(shards: &[ShardId], place: Place) -> Option<Target> {
    let shard = || shards.get(usize::from(place)).map_or(Target::Unclear, |shard| shard.clone().into());
    (place != UNSAID).then(shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_start(Duration::from_secs(seconds))
    }

    fn id(name: &str) -> DocId {
        DocId::from_key(Some(name.as_bytes())).unwrap()
    }

    /// `a` is written at 0, 2 and 5, `b` at 1.
    fn table() -> LookAhead {
        let mut ahead = LookAhead::new(0, 10);
        for (name, offset) in [("a", 0), ("b", 1), ("a", 2), ("a", 5)] {
            ahead.found_whole(&id(name), offset);
        }
        ahead.ended(6);
        assert_eq!(ahead.superseded(), 2);
        ahead
    }

    fn shard(name: &str) -> Target {
        ShardId::new(name).unwrap().into()
    }

    fn pass_to(
        ahead: &mut LookAhead,
        name: &str,
        offset: i64,
        is_whole: bool,
        targets: &[Target],
    ) -> Passage {
        let max_age = Duration::from_secs(10);
        let now = at(offset.unsigned_abs());
        ahead.pass(Coming { id: &id(name), offset, targets, is_whole, is_held: false, now, max_age })
    }

    fn pass(ahead: &mut LookAhead, name: &str, offset: i64, is_whole: bool) -> Passage {
        pass_to(ahead, name, offset, is_whole, &[])
    }

    #[test]
    fn where_records_were_is_kept_if_all_were_in_one_geoshard() {
        let (s, t) = (shard("s"), shard("t"));
        let cases = [
            (vec![s.clone()], vec![s.clone()], Some(s.clone())),
            (vec![], vec![t.clone()], Some(t.clone())),
            (vec![s.clone()], vec![], Some(s.clone())),
            (vec![s.clone()], vec![t.clone()], Some(Target::Unclear)),
            (vec![s.clone(), t.clone()], vec![s.clone()], Some(Target::Unclear)),
            (vec![Target::Nowhere], vec![], Some(Target::Unclear)),
            (vec![], vec![], None),
        ];
        for (first, second, expected) in cases {
            let mut ahead = table();
            // Of another document; its geoshard has the number 0.
            pass_to(&mut ahead, "b", 0, true, std::slice::from_ref(&t));
            pass_to(&mut ahead, "a", 0, true, &first);
            pass_to(&mut ahead, "a", 2, true, &second);
            let Passage::Take(Some(owed)) = pass(&mut ahead, "a", 5, true) else { panic!("{first:?}") };
            assert_eq!(owed.target, expected, "{first:?}, {second:?}");
        }
    }

    #[test]
    fn the_last_whole_write_stands_for_all_before_it() {
        let mut ahead = table();
        assert_eq!(ahead.first_owed(), None);
        assert_eq!(pass(&mut ahead, "a", 0, true), Passage::PassOver);
        assert_eq!(pass(&mut ahead, "b", 1, true), Passage::Take(None));
        assert_eq!(pass(&mut ahead, "a", 2, true), Passage::PassOver);
        assert_eq!(pass(&mut ahead, "a", 3, false), Passage::PassOver, "a patch is superseded as well");
        assert_eq!(pass(&mut ahead, "c", 4, false), Passage::Take(None));
        assert!(ahead.first_owed() == Some(0) && !ahead.is_over(6));
        let owed = PassedOver { first: 0, records: 3, target: None };
        assert_eq!(pass(&mut ahead, "a", 5, true), Passage::Take(Some(owed)));
        assert!(ahead.first_owed().is_none() && ahead.is_over(6) && !ahead.is_over(5));
        assert_eq!(pass(&mut ahead, "a", 6, false), Passage::Take(None), "beyond the end");
    }

    #[test]
    fn a_hot_document_is_written_once_its_first_write_is_old_and_an_unfinished_one_is_folded() {
        let mut ahead = LookAhead::new(0, 10);
        (0..100).for_each(|offset| ahead.found_whole(&id("a"), offset));
        ahead.ended(100);
        let taken: Vec<i64> = (0..100)
            .filter(|offset| matches!(pass(&mut ahead, "a", *offset, true), Passage::Take(_)))
            .collect();
        assert_eq!(taken, [31, 63, 95, 99], "every 30 s, and the last");

        let mut ahead = table();
        let max_age = Duration::from_secs(10);
        let (id, targets) = (&id("a"), &[][..]);
        let held = Coming { id, offset: 0, targets, is_whole: true, is_held: true, now: at(0), max_age };
        assert_eq!(ahead.pass(held), Passage::Take(None));
        assert_eq!(ahead.first_owed(), None);
    }

    #[test]
    fn what_depends_on_records_passed_over_for_a_write_that_never_came_is_lost() {
        let mut ahead = table();
        assert_eq!(pass(&mut ahead, "a", 0, true), Passage::PassOver);
        assert_eq!(pass(&mut ahead, "a", 7, false), Passage::Lost(5));
        assert_eq!(ahead.first_owed(), Some(0), "nothing is committed");
        // A later whole write stands for them.
        let owed = PassedOver { first: 0, records: 1, target: None };
        assert_eq!(pass(&mut ahead, "a", 8, true), Passage::Take(Some(owed)));
        assert!(ahead.is_over(9));
    }

    #[test]
    fn what_was_read_on_supersedes_what_is_still_to_come() {
        let mut ahead = table();
        assert_eq!(pass(&mut ahead, "a", 0, true), Passage::PassOver);
        assert_eq!([3, 4].map(|next| ahead.runs_out(next)), [false, true]);
        let mut following = ahead.following();
        assert_eq!((following.start(), following.end()), (6, 6));
        [("b", 6), ("a", 7), ("c", 8)].iter().for_each(|(name, at)| following.found_whole(&id(name), *at));
        following.ended(10);
        // Of "b" nothing is to come.
        ahead.extend(ahead.following(), 2);
        assert_eq!(ahead.documents.len(), 1);
        ahead.extend(following, 2);
        assert_eq!([7, 8, 9].map(|next| ahead.runs_out(next)), [false, false, true]);

        assert_eq!(pass(&mut ahead, "b", 2, true), Passage::PassOver, "its write at 6 was found");
        assert_eq!(pass(&mut ahead, "a", 5, true), Passage::PassOver);
        let owed = |first, records| Passage::Take(Some(PassedOver { first, records, target: None }));
        assert_eq!(pass(&mut ahead, "b", 6, true), owed(2, 1));
        assert_eq!(ahead.first_owed(), Some(0));
        assert_eq!(pass(&mut ahead, "a", 7, true), owed(0, 2));
        assert_eq!(pass(&mut ahead, "c", 8, true), Passage::Take(None));
        assert!(!ahead.is_over(9) && ahead.is_over(10));
    }

    #[test]
    fn each_time_it_is_read_on_the_watermark_may_follow_what_was_written() {
        let mut ahead = LookAhead::new(0, 10);
        [("a", 0), ("b", 1), ("a", 4), ("b", 5)]
            .iter()
            .for_each(|(name, at)| ahead.found_whole(&id(name), *at));
        ahead.ended(6);
        for (name, offset) in [("a", 0), ("b", 1)] {
            assert_eq!(pass(&mut ahead, name, offset, true), Passage::PassOver);
        }
        assert!(matches!(pass(&mut ahead, "a", 4, true), Passage::Take(Some(_))));
        assert_eq!((ahead.first_owed(), ahead.owed_since()), (Some(0), Some(at(0))), "not looked up");
        let mut following = ahead.following();
        following.found_whole(&id("b"), 7);
        following.ended(8);
        ahead.extend(following, 5);
        assert_eq!((ahead.first_owed(), ahead.owed_since()), (Some(1), Some(at(1))));

        let mut endless = LookAhead::new(0, 10);
        endless.ended(MAX_SPAN - 1);
        assert!(endless.runs_out(MAX_SPAN - 1));
        endless.ended(MAX_SPAN);
        assert!(!endless.runs_out(MAX_SPAN));
    }

    #[test]
    fn a_read_that_saves_little_is_given_up_and_a_short_one_not_begun() {
        // Two documents are kept, and one record is superseded.
        let mut ahead = LookAhead::new(0, 2);
        (0..)
            .zip(["a", "b", "c", "d", "e", "a"])
            .for_each(|(offset, name)| ahead.found_whole(&id(name), offset));
        let judged = [1, 5, 6, 8, 9].map(|records| (ahead.is_worth_it(records), ahead.is_hopeless(records)));
        assert_eq!(judged, [(true, false), (true, false), (true, false), (true, false), (false, true)]);
        let nothing = LookAhead::new(0, 2);
        assert_eq!([0, 5, 6].map(|records| nothing.is_hopeless(records)), [false, false, true]);

        let least =
            |documents, max_records| (0..).find(|&waiting| can_be_worth_it(waiting, documents, max_records));
        assert_eq!([least(2, 100), least(20, 100), least(usize::MAX, 7)], [Some(6), Some(50), Some(3)]);
    }

    #[test]
    fn documents_beyond_the_bound_are_never_passed_over() {
        let mut ahead = LookAhead::new(0, 1);
        for offset in 0..4 {
            ahead.found_whole(&id(if offset % 2 == 0 { "a" } else { "b" }), offset);
        }
        ahead.ended(4);
        assert_eq!(pass(&mut ahead, "a", 0, true), Passage::PassOver);
        assert_eq!(pass(&mut ahead, "b", 1, true), Passage::Take(None));
    }
}
