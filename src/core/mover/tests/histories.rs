//! Random histories: owners that crash and become zombies, requests executed late, twice or never, lost replies, folds
//! cut anywhere. The invariants are checked after every operation, and at the end the index is compared with applying
//! the records one by one.
//!
//! A history is a function of its seed. A failing one prints its seed, its steps, and how to replay it. More of them:
//! `GEOFOLD_HISTORIES=1000000 cargo test --lib mover::tests::histories`; others: with `GEOFOLD_SEED`, the first of
//! them, too.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "offsets of a handful of records, and random numbers"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use serde_json::Value;

use super::store::{StoreAnswer, StoreCall, TestStore, UNACCEPTABLE};
use super::*;
use crate::base::clock::Instant;
use crate::base::random::Random;
use crate::core::invariants::*;
use crate::core::mover::{SET_BACK, UNANSWERED};
use crate::io::elastic::rounds::BulkOutcome;
use crate::worker::ledger::{Ledger, Undeliverable};

/// Time stands still: every retry is due.
const NOW: Instant = Instant::from_start(Duration::ZERO);

/// Enough for nearly every event below to occur, in seconds. `dev/soak` runs more.
const HISTORIES: u64 = 1_500;

/// Show what one history of many thousands does: a newer copy elsewhere; a zombie that folds a refused document with a later
/// record leaves a placement and no copy.
const RARE: [u64; 2] = [28_821, 1_795_670_474_345];

struct Rng(Random);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// What kind of history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Index, delete, patch, touch.
    Plain,
    /// Records vanish from the log once the document has a later one, as in compaction. Patches would be lost with
    /// them, so there are none.
    Compacted,
    /// Some documents are refused by Elasticsearch. What the index should hold then depends on how records were
    /// folded; the invariants do not.
    Refusing,
    /// Two maps are live, and each owner acts by either of them.
    TwoMaps,
}

/// One call of a round, and its answer once there is one.
struct Sent {
    call: StoreCall,
    answer: Option<StoreAnswer>,
}

/// A worker: the owner of the partition, or a zombie.
struct Worker {
    name: usize,
    ledger: Ledger,
    state: Option<MoverState>,
    batch: Option<Batch>,
    sent: Vec<Sent>,
    read_to: usize,
    /// Geoshard and ticket that searches must find before old copies are deleted.
    unseen: Vec<(ShardId, u64)>,
    /// Remaining steps of a zombie; the owner has no limit.
    steps_left: Option<usize>,
}

/// Counts of events.
pub(super) type Seen = BTreeMap<String, u64>;

pub(super) struct World<'a> {
    rng: Rng,
    kind: Kind,
    /// The map that is live beside [`OLD_MAP`], with two of them.
    new_map: [&'static str; 3],
    on_missing: OnMissing,
    searches_are_served: bool,
    /// Owners create placements of whole documents without reading them before.
    expects_new: bool,
    store: TestStore,
    /// All records as they were written; the offset is the index.
    written: Vec<Write>,
    /// Those left in the topic.
    log: Vec<Option<Write>>,
    ids: Vec<DocId>,
    committed: i64,
    owner: Worker,
    zombies: Vec<Worker>,
    /// Abandoned calls that may still be executed.
    late: Vec<StoreCall>,
    /// Folds that were dead-lettered or dropped: document, first and last offset.
    undeliverable: BTreeSet<(DocId, i64, i64)>,
    way: String,
    seen: &'a mut Seen,
}

impl Worker {
    fn new(name: usize, rules: Rules, read_to: usize, searches_are_served: bool, expects_new: bool) -> Self {
        let new_documents = if expects_new { NewDocuments::expected() } else { NewDocuments::default() };
        Self {
            name,
            ledger: Ledger::new(rules.clone(), Epoch::default()),
            state: Some(MoverState { searches_are_served, new_documents, ..new_state(rules) }),
            batch: None,
            sent: Vec::new(),
            read_to,
            unseen: Vec::new(),
            steps_left: None,
        }
    }

    fn has_work(&self) -> bool {
        self.batch.is_some() || self.ledger.pending() + self.ledger.in_flight() + self.ledger.sweeps() > 0
    }
}

impl<'a> World<'a> {
    pub(super) fn new(seed: u64, seen: &'a mut Seen) -> Self {
        let mut rng = Rng(Random::new(seed));
        let kind = rng.one_of(&[
            Kind::Plain,
            Kind::Plain,
            Kind::Plain,
            Kind::Compacted,
            Kind::Refusing,
            Kind::TwoMaps,
        ]);
        let new_map = [NEW_MAP, PARTLY_NEW_MAP][usize::from(seed % 2 == 1)];
        let on_missing = rng.one_of(&[OnMissing::DeadLetter, OnMissing::Drop, OnMissing::Create]);
        let ids = if rng.percent(70) { vec![id("x")] } else { vec![id("x"), id("y")] };
        let records = 3 + rng.below(6);
        let written: Vec<Write> =
            (0..records).map(|offset| record(&mut rng, kind, on_missing, &ids, offset as i64)).collect();
        let mut way = format!("{kind:?}, on_missing = {on_missing:?}\n");
        for write in &written {
            let _ = writeln!(way, "  {} {:?} {:?}", write.position, write.id, write.body);
        }
        let mut world = Self {
            owner: Worker::new(0, rules(), 0, false, false),
            // Not drawn, so that every other history stays what it was.
            expects_new: seed / 2 % 2 == 1,
            searches_are_served: rng.percent(50),
            rng,
            kind,
            new_map,
            on_missing,
            store: TestStore::default(),
            log: written.iter().cloned().map(Some).collect(),
            written,
            ids,
            committed: 0,
            zombies: Vec::new(),
            late: Vec::new(),
            undeliverable: BTreeSet::new(),
            way,
            seen,
        };
        let rules = world.draw_rules();
        world.owner = Worker::new(0, rules, 0, world.searches_are_served, world.expects_new);
        world
    }

    fn draw_rules(&mut self) -> Rules {
        let (map, other_map) = match (self.kind == Kind::TwoMaps, self.rng.percent(50)) {
            (false, _) => (map(OLD_MAP), None),
            (true, false) => (map(OLD_MAP), Some(map(self.new_map))),
            (true, true) => (map(self.new_map), Some(map(OLD_MAP))),
        };
        // A new owner cannot see what compaction took, but a zombie may still act on it: nothing is in place then (see
        // `counterexamples::record_compacted_while_a_zombie_acts_on_it`).
        let announce_all = self.kind == Kind::Compacted;
        Rules { map, other_map, on_missing: self.on_missing, announce_all, ..rules() }
    }

    fn see(&mut self, what: impl Into<String>) {
        *self.seen.entry(what.into()).or_default() += 1;
    }

    fn note(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.way, "{line}");
    }

    /// The whole history.
    pub(super) fn run(&mut self) {
        let owners = 2 + self.rng.below(2);
        for _ in 1..owners {
            for _ in 0..self.rng.below(80) {
                self.step();
            }
            self.change_owner();
        }
        let mut steps = 0;
        while self.owner.read_to < self.log.len() || owes(&self.owner.ledger) || self.owner.batch.is_some() {
            self.step();
            steps += 1;
            assert!(steps < 5_000, "the last owner does not come to an end");
        }
        while !self.zombies.is_empty() {
            self.step();
        }
        while !self.late.is_empty() {
            self.deliver_late();
        }
        self.judge();
    }

    fn step(&mut self) {
        if !self.late.is_empty() && self.rng.percent(8) {
            return self.deliver_late();
        }
        if !self.zombies.is_empty() && self.rng.percent(40) {
            let n = self.rng.below(self.zombies.len());
            let mut zombie = self.zombies.swap_remove(n);
            let left = zombie.steps_left.unwrap_or_default();
            if left == 0 || !zombie.has_work() {
                return self.bury(zombie);
            }
            zombie.steps_left = Some(left - 1);
            self.go_on(&mut zombie);
            return self.zombies.push(zombie);
        }
        let mut owner = std::mem::replace(&mut self.owner, Worker::new(0, rules(), 0, false, false));
        let may_read = owner.read_to < self.log.len();
        if may_read && (!owner.has_work() || self.rng.percent(25)) {
            self.read(&mut owner);
        } else {
            self.go_on(&mut owner);
        }
        if self.rng.percent(20) {
            self.commit(&owner);
        }
        self.owner = owner;
    }

    fn read(&mut self, owner: &mut Worker) {
        match &self.log[owner.read_to] {
            Some(write) => owner.ledger.take(write.clone(), NOW),
            None => owner.ledger.read_up_to(owner.read_to as i64 + 1),
        }
        self.note(format_args!("{} reads {}", owner.name, owner.read_to));
        owner.read_to += 1;
        self.take_rejected(owner);
    }

    fn take_rejected(&mut self, worker: &mut Worker) {
        for letter in worker.ledger.take_rejected() {
            self.undelivered(worker, &letter);
        }
    }

    fn undelivered(&mut self, worker: &mut Worker, letter: &Undeliverable) {
        let (first, last) = (letter.fold.first.offset(), letter.fold.last.offset());
        self.undeliverable.insert((letter.id.clone(), first, last));
        worker.ledger.delivered(first, Some(&letter.id));
    }

    fn commit(&mut self, owner: &Worker) {
        let Some(watermark) = owner.ledger.watermark() else { return };
        self.committed = self.committed.max(watermark);
        for id in &self.ids {
            let before = |write: &&Write| write.id == *id && write.position.offset() < self.committed;
            let Some(last) = self.log.iter().flatten().filter(before).last() else { continue };
            let offset = last.position.offset();
            if !self.was_given_up(id, offset) && self.naive(id, offset).is_some() {
                hold(inv_3_what_is_committed_can_be_seen(&self.store.view(id), last.position));
            }
        }
    }

    /// Whether a fold with this record was dropped or is a dead letter.
    fn was_given_up(&self, id: &DocId, offset: i64) -> bool {
        let covers =
            |(other, first, last): &(DocId, i64, i64)| other == id && (*first..=*last).contains(&offset);
        self.undeliverable.iter().any(covers)
    }

    /// One step of a batch: begins it, executes a call, or takes the round's answers.
    fn go_on(&mut self, worker: &mut Worker) {
        let Some(batch) = worker.batch.take() else { return self.begin(worker) };
        let open: Vec<usize> = (0..worker.sent.len()).filter(|n| worker.sent[*n].answer.is_none()).collect();
        if !open.is_empty() {
            let n = self.rng.one_of(&open);
            worker.sent[n].answer = self.carry_out(worker.name, &worker.sent[n].call.clone());
            worker.batch = Some(batch);
            return;
        }
        let answers = worker.sent.drain(..).filter_map(|sent| sent.answer).collect();
        match batch.answered(answers) {
            Batch::Finished(Finished { state, settled, sweeps, .. }) => {
                worker.state = Some(state);
                self.settle(worker, settled);
                let (ticket, unseen) = worker.ledger.settle_sweeps(sweeps, &mut BTreeMap::new(), NOW);
                worker.unseen.extend(unseen.into_iter().map(|shard| (shard, ticket)));
            }
            batch => {
                worker.sent = batch.calls().into_iter().map(|call| Sent { call, answer: None }).collect();
                worker.batch = Some(batch);
            }
        }
    }

    fn begin(&mut self, worker: &mut Worker) {
        let is_idle = worker.ledger.pending() + worker.ledger.in_flight() == 0;
        if !worker.unseen.is_empty() && (is_idle || self.rng.percent(20)) {
            let (shard, ticket) = worker.unseen.swap_remove(self.rng.below(worker.unseen.len()));
            worker.ledger.seen(&shard, ticket, NOW);
            self.see("swept later");
        }
        let Some(mut state) = worker.state.take() else { return };
        state.sweeps = worker.ledger.hand_out_sweeps(1 + self.rng.below(2), NOW);
        let entries = worker.ledger.hand_out(1 + self.rng.below(3), usize::MAX, NOW);
        self.take_rejected(worker);
        for entry in &entries {
            if let Some(placement) = self.store.view(&entry.id).placement
                && placement.pos == entry.fold.last
            {
                self.see("resumed");
            }
            if entry.fold.records > 1 {
                self.see("folded");
            }
        }
        let handed_out: Vec<_> = entries
            .iter()
            .map(|entry| format!("{:?} {}..={}", entry.id, entry.fold.first, entry.fold.last))
            .collect();
        self.note(format_args!("{} begins {handed_out:?}", worker.name));
        let batch = Batch::begin(state, entries);
        worker.sent = batch.calls().into_iter().map(|call| Sent { call, answer: None }).collect();
        worker.batch = Some(batch);
    }

    fn settle(&mut self, worker: &mut Worker, settled: Vec<Settled>) {
        for Settled { entry, outcome, .. } in &settled {
            self.note(format_args!("{} {:?} {}", worker.name, entry.id, outcome_in_short(outcome)));
            if matches!(outcome, Outcome::Done(Done::Dropped | Done::NothingToPlace)) {
                let (first, last) = (entry.fold.first.offset(), entry.fold.last.offset());
                self.undeliverable.insert((entry.id.clone(), first, last));
            }
        }
        let settlement = worker.ledger.settle(settled, NOW);
        for (what, count) in [
            ("indexed", settlement.indexed),
            ("moved", settlement.moved),
            ("deleted", settlement.deleted),
            ("already applied", settlement.already_applied),
            ("dropped", settlement.dropped),
            ("nothing to place", settlement.nothing_to_place),
            ("parked", settlement.parked.len() as u64),
            ("finished what was recorded", settlement.finished_recorded.len() as u64),
            ("dead-lettered", settlement.undeliverable.len() as u64),
        ] {
            *self.seen.entry(what.to_owned()).or_default() += count;
        }
        for (reason, count) in settlement.again {
            *self.seen.entry(format!("again: {reason}")).or_default() += count;
        }
        for letter in settlement.undeliverable {
            self.undelivered(worker, &letter);
        }
        let compacted = self.kind == Kind::Compacted;
        assert!(
            compacted || settlement.finished_recorded.is_empty(),
            "no record was lost, but one was given up"
        );
    }

    /// Decides the fate of a call. Without an answer it is sent again later.
    fn carry_out(&mut self, by: usize, call: &StoreCall) -> Option<StoreAnswer> {
        match self.rng.below(100) {
            0..=85 => Some(self.execute(by, call)),
            86..=91 => {
                self.execute(by, call);
                self.see("sent again after a lost reply");
                None
            }
            92..=95 => {
                self.execute(by, call);
                self.see("carried out, never answered");
                Some(call.unanswered())
            }
            _ => {
                if matches!(call, StoreCall::Bulk(_)) {
                    self.late.push(call.clone());
                }
                Some(call.unanswered())
            }
        }
    }

    fn deliver_late(&mut self) {
        let n = self.rng.below(self.late.len());
        let call = self.late.swap_remove(n);
        let answer = self.execute(99, &call);
        let is_conflict = answer == StoreAnswer::Bulk(BulkOutcome::Conflict);
        self.see(if is_conflict { "carried out late: conflict" } else { "carried out late: done" });
    }

    /// Executes one call and checks the invariants that always hold.
    fn execute(&mut self, by: usize, call: &StoreCall) -> StoreAnswer {
        let id = call.id().clone();
        let before = self.store.view(&id);
        let answer = self.store.call(call);
        let after = self.store.view(&id);
        if !matches!(call, StoreCall::Get(_)) || self.way.len() < 100_000 {
            let answer = match &answer {
                StoreAnswer::Get(answer) => format!("{answer:?}").chars().take(24).collect(),
                StoreAnswer::Bulk(answer) => format!("{answer:?}"),
            };
            self.note(format_args!("{by} {id:?} {}: {answer} ({after})", call_in_short(call)));
        }
        hold(inv_1_every_copy_is_named(&after));
        hold(inv_4_nothing_goes_back(&before, &after));
        if let (Some(newest), Some(placement)) = (before.copies.values().max(), &after.placement) {
            let was_deleted = self.written.iter().any(|write| {
                let is_delete = write.id == id && write.body == Body::Delete;
                is_delete && (*newest..=placement.pos).contains(&write.position)
            });
            hold(inv_2_a_document_that_exists_has_a_copy(&after, !was_deleted));
        }
        answer
    }

    /// The owner loses the partition. It may be dead, or not know it yet.
    fn change_owner(&mut self) {
        let name = self.owner.name + 1;
        if self.kind == Kind::Compacted {
            self.compact();
        }
        let rules = self.draw_rules();
        let next =
            Worker::new(name, rules, self.committed as usize, self.searches_are_served, self.expects_new);
        let committed = self.committed;
        self.note(format_args!("{name} takes over at {committed}"));
        let mut old = std::mem::replace(&mut self.owner, next);
        hold(inv_3_nothing_owed_is_committed(
            self.committed,
            old.ledger.watermark().into_iter().filter(|_| owes(&old.ledger)),
        ));
        old.steps_left = Some(if self.rng.percent(40) { 0 } else { self.rng.below(40) });
        self.zombies.push(old);
    }

    /// A zombie's end: its calls are executed late, or never.
    fn bury(&mut self, zombie: Worker) {
        for Sent { call, answer } in zombie.sent {
            if answer.is_none() && matches!(call, StoreCall::Bulk(_)) && self.rng.percent(70) {
                self.late.push(call);
            }
        }
    }

    fn compact(&mut self) {
        for offset in 0..self.written.len() {
            let id = &self.written[offset].id;
            let has_later = self.written[offset + 1..].iter().any(|write| write.id == *id);
            if has_later && self.rng.percent(50) {
                self.log[offset] = None;
            }
        }
    }

    /// The document after applying the records up to and including `last` one by one.
    fn naive(&self, id: &DocId, last: i64) -> Option<Value> {
        let records = self.written.iter().filter(|write| write.id == *id && write.position.offset() <= last);
        records.fold(None, |document, write| match &write.body {
            Body::Index { doc, .. } => serde_json::from_slice(doc).ok(),
            Body::Delete => None,
            // Not generated here: tests/model has them.
            Body::Touch | Body::Refeed => document,
            Body::Patch { patch, .. } => {
                let patch: Value = serde_json::from_slice(patch).ok()?;
                match document {
                    None if self.on_missing != OnMissing::Create => None,
                    None if patch.pointer("/location/lat").is_none() => None,
                    document => Some(merged(document.unwrap_or(Value::Null), &patch)),
                }
            }
        })
    }

    /// The end: nothing in flight, nothing owed.
    fn judge(&mut self) {
        for id in &self.ids {
            let view = self.store.view(id);
            // Known limit ("A refused fold against a zombie"): announced by the zombie, and given up by the owner.
            let announced = view.placement.as_ref().map(|placement| placement.pos.offset());
            let is_limit = self.kind == Kind::Refusing
                && view.copies.is_empty()
                && announced.is_some_and(|offset| self.was_given_up(id, offset));
            if !is_limit {
                hold(inv_5_at_rest_there_is_one_copy(&view));
            }
            if self.kind == Kind::Refusing {
                continue;
            }
            let expected = self.naive(id, self.written.len() as i64);
            let (place, content) = match view.copies.keys().next() {
                None => (None, None),
                Some(place) => (Some(place.as_str()), self.store.content(place, id)),
            };
            let content = content.map(|content| serde_json::from_slice::<Value>(&content).unwrap());
            assert_eq!(content, expected, "the content of {id:?} is not what its records made");
            let Some(expected) = expected else { continue };
            let lon = expected["location"]["lon"].as_f64().unwrap();
            let n = [A, B, C].iter().position(|place| *place == lon).unwrap();
            let places =
                if self.kind == Kind::TwoMaps { vec![OLD_MAP[n], self.new_map[n]] } else { vec![OLD_MAP[n]] };
            assert!(places.contains(&place.unwrap()), "{id:?} is in {place:?}, but belongs into {places:?}");
        }
    }
}

fn hold(invariant: Result<(), BrokenInvariant>) {
    if let Err(broken) = invariant {
        panic!("{broken}");
    }
}

fn record(rng: &mut Rng, kind: Kind, on_missing: OnMissing, ids: &[DocId], offset: i64) -> Write {
    let place = rng.one_of(&[A, B, C]);
    let patches = if kind == Kind::Compacted { 0 } else { 40 };
    let whole = format!(r#"{{"location":{{"lat":1,"lon":{place}}},"p{}":{offset}}}"#, offset % 3);
    let mut write = match rng.below(60 + patches) {
        0..=39 if kind == Kind::Refusing && rng.percent(40) => unacceptable(place, offset),
        0..=39 => index(place, offset),
        40..=54 => delete(offset),
        // Compaction would leave a touch, and take the document.
        55..=59 if kind == Kind::Compacted => index(place, offset),
        55..=64 => touch(offset),
        // The result of creating from a patch without a location, and so of later ones, would depend on the fold.
        65..=75 if on_missing != OnMissing::Create => patch(&format!(r#"{{"n":{offset}}}"#), offset),
        65..=85 if on_missing != OnMissing::Create => {
            patch(&format!(r#"{{"location":{{"lon":{place}}}}}"#), offset)
        }
        65..=90 if kind == Kind::Refusing && rng.percent(50) => {
            patch(&format!(r#"{{"n":"{UNACCEPTABLE}"}}"#), offset)
        }
        _ => patch(&whole, offset),
    };
    write.id = ids[rng.below(ids.len())].clone();
    write
}

/// RFC 7386, literally.
fn merged(target: Value, patch: &Value) -> Value {
    let Value::Object(fields) = patch else { return patch.clone() };
    let mut target = match target {
        Value::Object(target) => target,
        _ => serde_json::Map::new(),
    };
    for (key, value) in fields {
        if value.is_null() {
            target.remove(key);
        } else {
            let old = target.remove(key).unwrap_or(Value::Null);
            target.insert(key.clone(), merged(old, value));
        }
    }
    Value::Object(target)
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Runs one history; prints how to replay a failure.
fn explore(seed: u64, seen: &mut Seen) {
    let mut world = World::new(seed, seen);
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    if let Err(panic) = result {
        let views: Vec<String> =
            world.ids.iter().map(|id| format!("{id:?}: {}", world.store.view(id))).collect();
        eprintln!("{}\nin the end: {views:?}", world.way);
        eprintln!("replay: GEOFOLD_SEED={seed} cargo test --lib mover::tests::histories");
        resume_unwind(panic);
    }
}

#[test]
fn index_matches_the_records_despite_crashes_and_late_requests() {
    let mut seen = Seen::new();
    let (first, histories) = (number_from("GEOFOLD_SEED"), number_from("GEOFOLD_HISTORIES"));
    if let (Some(seed), None) = (first, histories) {
        return explore(seed, &mut seen);
    }
    let (first, histories) = (first.unwrap_or(0), histories.unwrap_or(HISTORIES));
    for seed in (first..first + histories).chain(RARE) {
        explore(seed, &mut seen);
    }
    println!("{seen:#?}");
    let again = |reason: &str| format!("again: {reason}");
    for event in [
        "indexed".to_owned(),
        "moved".to_owned(),
        "deleted".to_owned(),
        "already applied".to_owned(),
        "dropped".to_owned(),
        "nothing to place".to_owned(),
        "dead-lettered".to_owned(),
        "folded".to_owned(),
        "parked".to_owned(),
        "resumed".to_owned(),
        "swept later".to_owned(),
        "finished what was recorded".to_owned(),
        "carried out late: done".to_owned(),
        "carried out late: conflict".to_owned(),
        again("placement_conflict"),
        again("nothing_found"),
        again("newer_copy_elsewhere"),
        again(UNANSWERED),
        again(SET_BACK),
    ] {
        let times = seen.get(&event).copied().unwrap_or_default();
        assert!(times > 0, "{event:?} never occurred in {histories} histories: they prove nothing about it");
    }
}

/// Whether any record read is unfinished.
fn owes(ledger: &Ledger) -> bool {
    ledger.watermark() != ledger.next_offset()
}
