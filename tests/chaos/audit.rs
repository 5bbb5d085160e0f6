//! The verdict: every placement, every copy and every dead letter, against what the records make of each document when they
//! are applied one by one.

use std::collections::{BTreeMap, BTreeSet};

use geofold::base::ids::ShardId;
use geofold::base::position::{Epoch, Position};
use geofold::core::invariants::{DocumentState, inv_1_every_copy_is_named, inv_5_at_rest_there_is_one_copy};
use geofold::core::placement::Placement;
use serde_json::Value;

use crate::records::{self, What};
use crate::support::world::Copy;
use crate::support::{Event, Truth, World};

/// What is wrong, and how much was looked at.
#[derive(Debug, Default)]
pub struct Findings {
    /// Sentences, with the document's id where it is one's.
    pub wrong: Vec<(Option<String>, String)>,
    pub documents: usize,
    pub placements: usize,
    pub letters: usize,
    /// Records of the topic by what they ask for.
    pub records: BTreeMap<&'static str, u64>,
    /// How often a document's next place was another geoshard.
    pub changes_of_place: u64,
}

impl Findings {
    pub fn add(&mut self, what: impl Into<String>) {
        self.wrong.push((None, what.into()));
    }

    fn add_of(&mut self, id: &str, what: impl Into<String>) {
        self.wrong.push((Some(id.to_owned()), what.into()));
    }
}

/// A place in the topic.
type Place = (i32, i64);

/// What the records say.
#[derive(Default)]
struct Said {
    /// The last record of each document that can be carried out.
    last: BTreeMap<String, Place>,
    /// Records that became, or had to become, dead letters, and of which document.
    may_be_letters: BTreeMap<Place, String>,
    must_be_letters: BTreeMap<Place, Option<String>>,
    /// A patch of a document that is not there, with nothing behind it that it could be folded into.
    hanging: BTreeMap<String, Place>,
}

/// Everything compared.
pub fn audit(world: &World) -> Findings {
    let mut findings = Findings::default();
    let mut truth = Truth::new();
    let said = read(world, &mut truth, &mut findings);
    let (mut copies, mut placements) = (world.copies(), world.placements());
    for (id, last) in &said.last {
        let copies = copies.remove(id).unwrap_or_default();
        document(&mut findings, world, &truth, id, *last, &copies, placements.remove(id));
    }
    for ((partition, offset), reason) in &said.must_be_letters {
        // What Elasticsearch refuses has an id of its own, and leaves a placement.
        if reason.as_deref() == Some("refused_by_elasticsearch")
            && let Some(id) = said.may_be_letters.get(&(*partition, *offset))
        {
            let copies = copies.remove(id).unwrap_or_default();
            document(&mut findings, world, &truth, id, (*partition, *offset), &copies, placements.remove(id));
        }
    }
    for (id, _) in copies {
        findings.add_of(&id, format!("{id} is in the index, and nobody wrote it"));
    }
    for (id, placement) in placements {
        findings.add_of(&id, format!("{id} has a placement, and nobody wrote it: {placement}"));
    }
    letters(&mut findings, world, &said);
    findings
}

fn read(world: &World, truth: &mut Truth, findings: &mut Findings) -> Said {
    let mut said = Said::default();
    records::read(world, |record| {
        let place = (record.partition, record.offset);
        let id = record.id;
        let event = match record.what {
            What::Bad(reason) => {
                *findings.records.entry("bad").or_default() += 1;
                said.may_be_letters.insert(place, id);
                said.must_be_letters.insert(place, Some(reason));
                return;
            }
            What::Write(event) => event,
        };
        let kind = match &event {
            Event::Index { .. } => "index",
            Event::Patch { .. } => "patch",
            Event::Delete { .. } => "delete",
            Event::Touch { .. } => "touch",
        };
        *findings.records.entry(kind).or_default() += 1;
        let shard =
            |truth: &Truth| truth.documents.get(&id).map(|document| truth.shard_of(document).to_owned());
        let before = shard(truth);
        truth.apply(&event);
        let after = shard(truth);
        findings.changes_of_place += u64::from(before.is_some() && after.is_some() && before != after);
        if before.is_none() && matches!(event, Event::Patch { .. } | Event::Touch { .. }) {
            said.may_be_letters.insert(place, id.clone());
        }
        match event {
            Event::Patch { .. } if before.is_none() => drop(said.hanging.insert(id.clone(), place)),
            Event::Touch { .. } => {}
            _ => drop(said.hanging.remove(&id)),
        }
        said.last.insert(id, place);
    });
    for place in said.hanging.values() {
        said.must_be_letters.insert(*place, None);
    }
    said
}

/// One document: its copies and its placement.
fn document(
    findings: &mut Findings,
    world: &World,
    truth: &Truth,
    id: &str,
    last: Place,
    copies: &[Copy],
    placement: Option<Value>,
) {
    findings.documents += 1;
    findings.placements += usize::from(placement.is_some());
    let prefix = format!("{}-", world.name);
    let shard = |copy: &Copy| {
        let name = copy.index.strip_prefix(&prefix).unwrap_or(&copy.index);
        ShardId::new(name).unwrap()
    };
    let placement = match placement.map(serde_json::from_value::<Placement>).transpose() {
        Ok(placement) => placement,
        Err(error) => return findings.add_of(id, format!("the placement of {id} cannot be read: {error}")),
    };
    let view = DocumentState {
        placement,
        copies: copies.iter().map(|copy| (shard(copy), Position::from_version(copy.version))).collect(),
    };
    let judged = [inv_1_every_copy_is_named(&view), inv_5_at_rest_there_is_one_copy(&view)];
    for broken in judged.into_iter().filter_map(Result::err) {
        findings.add_of(id, format!("{id}: {broken}"));
    }
    let Some(position) = Position::new(Epoch::new(1).unwrap(), last.1) else { return };
    if view.placement.as_ref().is_some_and(|placement| placement.pos > position) {
        findings.add_of(id, format!("{id}: the placement is of no record: {view}"));
    }
    match (truth.documents.get(id), copies) {
        (None, []) => {}
        (None, _) => findings.add_of(id, format!("{id} is in the index, and should not be: {view}")),
        (Some(_), []) => findings.add_of(id, format!("{id} is missing: {view}")),
        (Some(document), [copy]) => {
            let belongs = truth.shard_of(document);
            if shard(copy).as_str() != belongs {
                findings.add_of(id, format!("{id} belongs into {belongs}: {view}"));
            }
            if copy.source != *document {
                let found = &copy.source;
                findings.add_of(id, format!("{id} says {found}, and its records say {document}: {view}"));
            }
            if view.copies.values().any(|version| *version != position) {
                findings
                    .add_of(id, format!("{id} is not at the version of its last record, {position}: {view}"));
            }
        }
        (Some(_), _) => findings.add_of(id, format!("{id} has several copies: {view}")),
    }
}

/// What cannot be carried out is in the dead-letter topic, once at least, and nothing else is.
fn letters(findings: &mut Findings, world: &World, said: &Said) {
    let mut covered: BTreeMap<Place, BTreeSet<String>> = BTreeMap::new();
    for letter in world.dead_letters() {
        findings.letters += 1;
        let number = |name: &str| letter.headers.get(name).and_then(|text| text.parse::<i64>().ok());
        let (Some(partition), Some(first), Some(last)) = (
            number("geofold-error-partition"),
            number("geofold-error-first-offset"),
            number("geofold-error-offset"),
        ) else {
            findings.add(format!("a dead letter does not say where it came from: {letter:?}"));
            continue;
        };
        let partition = partition as i32;
        let reason = letter.headers.get("geofold-error-reason").cloned().unwrap_or_default();
        let mut is_justified = false;
        for (place, id) in said.may_be_letters.range((partition, first)..=(partition, last)) {
            if Some(id) == letter.key.as_ref() {
                is_justified = true;
                covered.entry(*place).or_default().insert(reason.clone());
            }
        }
        if !is_justified {
            let id = letter.key.clone().unwrap_or_default();
            findings
                .add_of(&id, format!("nothing was wrong with what is in the dead-letter topic: {letter:?}"));
        }
    }
    for (place, wanted) in &said.must_be_letters {
        let id = said.may_be_letters.get(place).map(String::as_str).unwrap_or_default();
        let (partition, offset) = place;
        match (covered.get(place), wanted) {
            (None, _) => {
                let what = format!(
                    "{id}: the record at {partition}/{offset} cannot be carried out, and is not in the dead-letter topic"
                );
                findings.add_of(id, what);
            }
            (Some(reasons), Some(wanted)) if !reasons.contains(wanted) => {
                let what =
                    format!("{id}: the dead letter of {partition}/{offset} says {reasons:?}, not {wanted}");
                findings.add_of(id, what);
            }
            _ => {}
        }
    }
}

/// Everything there is about one document.
pub fn history(world: &World, id: &str) -> String {
    let mut lines = vec![format!("--- the history of {id}")];
    records::read(world, |record| {
        if record.id == id {
            lines.push(format!("record {}/{}: {}", record.partition, record.offset, record.what));
        }
    });
    lines.push(format!("placement: {}", world.placements().get(id).unwrap_or(&Value::Null)));
    lines.extend(
        world
            .copies()
            .remove(id)
            .unwrap_or_default()
            .iter()
            .map(|copy| format!("copy in {}, version {}: {}", copy.index, copy.version, copy.source)),
    );
    let letters = world.dead_letters().into_iter().filter(|letter| letter.key.as_deref() == Some(id));
    lines.extend(letters.map(|letter| format!("dead letter: {letter:?}")));
    lines.join("\n")
}
