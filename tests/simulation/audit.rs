//! The checks at every change, at every commit, and at the end. The invariants are the crate's own functions; the
//! reference applies the records one by one.

use geofold::base::ids::DocId;
use geofold::base::position::Position;
use geofold::core::invariants::{
    DocumentState, inv_1_every_copy_is_named, inv_2_a_document_that_exists_has_a_copy,
    inv_3_what_is_committed_can_be_seen, inv_4_nothing_goes_back, inv_5_at_rest_there_is_one_copy,
};
use geofold::core::mover::OnMissing;
use serde_json::{Map, Value};

use crate::process::{OTHERS, USUAL};
use crate::scenario::{Kind, PLACES, Produced, Scenario, document_id};
use crate::tally;
use crate::world::{Delivery, World, position};

/// Checks one write that Elasticsearch executed.
pub fn change(world: &World, id: &DocId, before: &DocumentState, after: &DocumentState) {
    let document = id.as_str();
    world.hold(document, inv_1_every_copy_is_named(after));
    world.hold(document, inv_4_nothing_goes_back(before, after));
    let (Some(newest), Some(placement)) = (before.copies.values().max(), &after.placement) else { return };
    let was_deleted = records_of(&world.scenario, document)
        .any(|(offset, record)| record.is_delete() && (*newest..=placement.pos).contains(&position(offset)));
    // Known limit ("A refused fold against a zombie"): its fold, which holds those records too, is a dead letter.
    let was_refused = placement.refused && placement.shard.is_none()
        || placement.shard.is_none()
            && may_be_refused_with_its_delete(&world.scenario, document, placement.pos);
    world.hold(document, inv_2_a_document_that_exists_has_a_copy(after, !was_deleted && !was_refused));
}

/// Whether a fold that ends at `last` may be a delete and patches without a resulting document, although another fold
/// of the same records had one: only if patches create documents and remove locations.
fn may_be_refused_with_its_delete(scenario: &Scenario, document: &str, last: Position) -> bool {
    let is_possible = scenario.kind == Kind::Refusing && scenario.on_missing == OnMissing::Create;
    let until_then: Vec<_> =
        records_of(scenario, document).filter(|(offset, _)| position(*offset) <= last).collect();
    let mut latest = until_then.iter().rev().map(|(_, record)| record);
    is_possible
        && latest
            .find(|record| !record.is_bad && !record.is_patch() && !record.is_touch())
            .is_some_and(|record| record.is_delete())
}

/// Checks a commit. `is_there`: the records that compaction has left.
pub fn commit(world: &World, committed: i64, is_there: &[bool]) {
    let scenario = &world.scenario;
    for document in scenario.documents().map(document_id) {
        let below = records_of(scenario, &document).filter(|(offset, record)| {
            *offset < committed
                && !record.is_bad
                && usize::try_from(*offset).is_ok_and(|offset| is_there[offset])
        });
        let Some((offset, record)) = below.last() else { continue };
        // A document refused before does not exist: a touch has nothing to place, a patch may be dropped, and neither
        // leaves a trace.
        if scenario.kind == Kind::Refusing && (record.is_touch() || scenario.on_missing == OnMissing::Drop) {
            continue;
        }
        let is_letter = world.state().deliveries.iter().any(|letter| letter.covers(offset));
        if is_letter || truth(scenario, &document, offset).is_none() {
            continue;
        }
        world.hold(
            &document,
            inv_3_what_is_committed_can_be_seen(&world.view(&doc_id(&document)), position(offset)),
        );
    }
}

/// Checks the end: nothing in flight, nothing owed, everything committed.
pub fn end(world: &World) {
    let scenario = &world.scenario;
    let mut is_as_recorded = true;
    for document in scenario.documents().map(document_id) {
        let view = world.view(&doc_id(&document));
        if !was_announced_and_given_up(world, &document, &view) {
            world.hold(&document, inv_5_at_rest_there_is_one_copy(&view));
        }
        if scenario.kind != Kind::Refusing {
            content(world, &document, &view);
        }
        is_as_recorded &= !was_announced_and_given_up(world, &document, &view);
    }
    // Known limits of the tally: compacted records, refused folds, and their recorded facets.
    if scenario.counts() && is_as_recorded && matches!(scenario.kind, Kind::Plain | Kind::TwoMaps) {
        tally::judge(world);
    }
    letters(world);
}

/// A placement was written for a record that was then dead-lettered in a fold with a later one: it stays without a copy
/// (protocol, INV-5). Or the owner dropped the record, a patch or a touch of a document refused before, and a zombie that
/// had folded both wrote it ahead.
fn was_announced_and_given_up(world: &World, document: &str, view: &DocumentState) -> bool {
    let Some(placement) = view.placement.as_ref().filter(|_| view.copies.is_empty()) else { return false };
    let scenario = &world.scenario;
    let may_be_dropped = |record: &Produced| {
        let patches_are = scenario.on_missing == OnMissing::Drop;
        scenario.kind == Kind::Refusing && (record.is_touch() || patches_are && record.is_patch())
    };
    records_of(scenario, document).filter(|(offset, _)| position(*offset) == placement.pos).any(
        |(offset, record)| {
            may_be_dropped(record) || world.state().deliveries.iter().any(|letter| letter.covers(offset))
        },
    )
}

/// The one copy is in its geoshard, has the content of the records, and the version of the last.
fn content(world: &World, document: &str, view: &DocumentState) {
    let scenario = &world.scenario;
    let expected = truth(scenario, document, i64::MAX);
    let copy = view.copies.iter().next();
    let found = copy.and_then(|(shard, _)| world.content(shard, &doc_id(document)));
    if found != expected {
        let (found, expected) = (in_short(found.as_ref()), in_short(expected.as_ref()));
        world.fail(
            "content",
            Some(document),
            format!("{document} says {found}, but its records say {expected}: {view}"),
        );
        return;
    }
    let (Some(expected), Some((shard, version))) = (expected, copy) else { return };
    let place = PLACES.iter().position(|place| expected["location"]["lon"] == *place);
    let both = [USUAL, OTHERS[scenario.other_map()]];
    let maps = if scenario.kind == Kind::TwoMaps { &both[..] } else { &both[..1] };
    if !maps.iter().any(|map| place.is_some_and(|place| map[place] == shard.as_str())) {
        world.fail("place", Some(document), format!("{document} does not belong into {shard}: {view}"));
    }
    let last = records_of(scenario, document).filter(|(_, record)| !record.is_bad).last();
    let last_good =
        records_of(scenario, document).filter(|(_, record)| !record.is_bad && !record.is_spoiling());
    // A lost record's decision is finished at the position before it, where compaction takes records.
    if scenario.kind != Kind::Compacted
        && let (Some((offset, _)), Some((good, _))) = (last, last_good.last())
        && !(position(good)..=position(offset)).contains(version)
    {
        let what = format!("{document} has version {version}, but its last record is at {offset}: {view}");
        world.fail("version", Some(document), what);
    }
}

/// Exactly the refused records are in the dead-letter topic, and no worker sent one twice.
fn letters(world: &World) {
    let scenario = &world.scenario;
    let deliveries = world.state().deliveries.clone();
    for (n, letter) in deliveries.iter().enumerate() {
        if deliveries[..n].contains(letter) {
            world.fail("letters", None, format!("one process handed in the same letter twice: {letter:?}"));
        }
        let is_told_by_records = scenario.kind != Kind::Refusing;
        if is_told_by_records && !(letter.first..=letter.last).any(|offset| may_be_refused(scenario, offset))
        {
            world.fail(
                "letters",
                None,
                format!("nothing was wrong with what is in the dead-letter topic: {letter:?}"),
            );
        }
    }
    for (offset, record) in numbered(scenario) {
        if must_be_refused(scenario, offset, record) && !deliveries.iter().any(|letter| letter.covers(offset))
        {
            let document = document_id(record.document);
            let what =
                format!("the record at {offset} cannot be carried out, and is not in the dead-letter topic");
            world.fail("letters", Some(&document), what);
        }
    }
}

/// Whether a record can become a dead letter under any folding.
fn may_be_refused(scenario: &Scenario, offset: i64) -> bool {
    let Some((_, record)) = numbered(scenario).find(|(number, _)| *number == offset) else { return false };
    let document = document_id(record.document);
    record.is_bad
        || record.is_spoiling()
        || (record.is_patch() && truth(scenario, &document, offset - 1).is_none())
}

/// Whether a record has to become a dead letter: it cannot be decoded, or it is the last patch of a document that is not
/// there, with nothing behind it that it could be folded into. Or no document takes it, and nothing behind it makes up for that.
fn must_be_refused(scenario: &Scenario, offset: i64, record: &Produced) -> bool {
    if record.is_bad {
        // Compaction removes it like any other.
        return scenario.kind != Kind::Compacted;
    }
    let document = document_id(record.document);
    if record.is_spoiling() && scenario.kind != Kind::Refusing {
        let mut later = records_of(scenario, &document).filter(|(later, _)| *later > offset);
        return truth(scenario, &document, offset).is_some()
            && !later.any(|(_, record)| record.hides_what_spoils());
    }
    let is_last =
        || records_of(scenario, &document).all(|(later, record)| later <= offset || record.is_touch());
    scenario.on_missing == OnMissing::DeadLetter
        && scenario.kind != Kind::Refusing
        && record.is_patch()
        && truth(scenario, &document, offset).is_none()
        && is_last()
}

impl Delivery {
    fn covers(&self, offset: i64) -> bool {
        (self.first..=self.last).contains(&offset)
    }
}

/// The document after applying the records up to and including `last` one by one.
pub fn truth(scenario: &Scenario, document: &str, last: i64) -> Option<Value> {
    let records = records_of(scenario, document).take_while(|(offset, _)| *offset <= last);
    records.filter(|(_, record)| !record.is_bad).fold(None, |stored, (_, record)| {
        if record.is_touch() {
            return stored;
        }
        if record.is_delete() {
            return None;
        }
        let value: Value = serde_json::from_str(record.value.as_deref()?).ok()?;
        match stored {
            _ if !record.is_patch() => Some(value),
            Some(stored) if record.is_spoiling() => Some(stored),
            Some(stored) => Some(merged(stored, &value)),
            None if scenario.on_missing == OnMissing::Create => Some(merged(Value::Null, &value)),
            None => None,
        }
    })
}

/// RFC 7386, literally.
fn merged(target: Value, patch: &Value) -> Value {
    let Value::Object(fields) = patch else { return patch.clone() };
    let mut target = match target {
        Value::Object(target) => target,
        _ => Map::new(),
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

fn numbered(scenario: &Scenario) -> impl Iterator<Item = (i64, &Produced)> {
    (0_i64..).zip(&scenario.records)
}

fn records_of<'a>(scenario: &'a Scenario, document: &'a str) -> impl Iterator<Item = (i64, &'a Produced)> {
    numbered(scenario).filter(move |(_, record)| document_id(record.document) == document)
}

fn doc_id(document: &str) -> DocId {
    #[expect(clippy::unwrap_used, reason = "a letter and a digit")]
    DocId::from_key(Some(document.as_bytes())).unwrap()
}

fn in_short(document: Option<&Value>) -> String {
    document.map_or_else(|| "nothing".to_owned(), Value::to_string)
}
