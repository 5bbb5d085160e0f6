//! The verdict: compares every document of the index with its expected state.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::people::PersonState;
use super::topic::DemoDeadLetters;
use crate::base::geo::GeoPoint;
use crate::base::ids::ShardId;
use crate::core::placement::Placement;
use crate::geoshard::GeoshardMap;
use crate::io::elastic::{AdminCall, CallError, Elastic, Index, Method};

/// Documents read with one request.
const PAGE: usize = 2000;
const TIMEOUT: Duration = Duration::from_secs(30);
/// Documents that a verdict names.
const NAMED: usize = 10;

/// Defects of the index, in documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Compared.
    pub documents: u64,
    /// Their only copy is in another geoshard than their location's.
    pub misplaced: u64,
    /// Should be there and are not.
    pub missing: u64,
    /// Have more than one copy.
    pub doubled: u64,
    /// Say something else than the last write.
    pub stale: u64,
    /// Are there and should not be.
    pub surplus: u64,
    /// Documents whose placement names another geoshard.
    pub misfiled: u64,
    /// Of whom something was not as it must be at every moment.
    pub broken: u64,
    /// Were there all the time, and were missed by a search.
    pub missed: u64,
    /// Poison records that are in the dead-letter topic.
    pub dead_lettered: u64,
    /// Poison records that are not, and records there that are no poison.
    pub wrong_letters: u64,
    /// Some of them, by id.
    pub examples: Vec<String>,
}

impl Findings {
    /// Whether everything is as it should be.
    pub(super) fn is_clean(&self) -> bool {
        let Self {
            misplaced, missing, doubled, stale, surplus, misfiled, broken, missed, wrong_letters, ..
        } = self;
        misplaced + missing + doubled + stale + surplus + misfiled + broken + missed + wrong_letters == 0
    }

    /// Takes in what an onlooker saw meanwhile.
    pub(super) fn add_broken<'a>(&mut self, broken: impl Iterator<Item = (&'a str, &'a str)>) {
        for (name, what) in broken {
            self.broken += 1;
            self.name(name, &format!("at some moment: {what}"));
        }
    }

    /// Takes in whom searches have missed meanwhile.
    pub(super) fn add_missed<'a>(&mut self, missed: impl Iterator<Item = (&'a str, u64)>) {
        for (name, times) in missed {
            self.missed += 1;
            self.name(name, &format!("was not found by {times} of the searches, though it was there"));
        }
    }

    /// Compares the dead letters with the poison: `poison` keys were sent.
    pub(super) fn add_dead_letters(
        &mut self,
        letters: &DemoDeadLetters,
        poison: impl Iterator<Item = String>,
    ) {
        let mut expected: BTreeSet<String> = poison.collect();
        for (key, reason) in &letters.by_key {
            if expected.remove(key) {
                self.dead_lettered += 1;
            } else {
                self.wrong_letters += 1;
                self.name(key, &format!("is among the dead letters: {reason}"));
            }
        }
        for key in &expected {
            self.wrong_letters += 1;
            self.name(key, "is poison, and not among the dead letters");
        }
    }

    fn name(&mut self, id: &str, what: &str) {
        if self.examples.len() < NAMED {
            self.examples.push(format!("{id} {what}"));
        }
    }
}

#[derive(Debug, Deserialize)]
struct Document {
    location: Location,
    event: u64,
    mood: String,
}

#[derive(Debug, Deserialize)]
struct Location {
    lat: f64,
    lon: f64,
}

/// Every copy of every document: geoshard and content.
async fn copies(
    elastic: &dyn Elastic,
    prefix: &str,
    map: &GeoshardMap,
) -> Result<HashMap<String, Vec<(ShardId, Value)>>, CallError> {
    let mut copies: HashMap<String, Vec<(ShardId, Value)>> = HashMap::new();
    for shard in map.shards() {
        let index = Index::Geoshard(shard.clone()).name(prefix);
        let add = |id, source| copies.entry(id).or_default().push((shard.clone(), source));
        read_all(elastic, &index, add).await?;
    }
    Ok(copies)
}

/// Gives every document of an index: id and source.
async fn read_all(
    elastic: &dyn Elastic,
    index: &str,
    mut each: impl FnMut(String, Value),
) -> Result<(), CallError> {
    ask(elastic, format!("/{index}/_refresh"), json!({})).await?;
    let mut after = Value::Null;
    loop {
        let mut body = json!({"size": PAGE, "query": {"match_all": {}}, "sort": [{"_doc": "asc"}]});
        if !after.is_null() {
            body["search_after"] = after;
        }
        let mut answer = ask(elastic, format!("/{index}/_search"), body).await?;
        let Some(Value::Array(hits)) = answer.pointer_mut("/hits/hits").map(Value::take) else {
            return Ok(());
        };
        let Some(last) = hits.last() else { return Ok(()) };
        after = last["sort"].clone();
        for mut hit in hits {
            each(hit["_id"].as_str().unwrap_or_default().to_owned(), hit["_source"].take());
        }
    }
}

async fn ask(elastic: &dyn Elastic, path: String, body: Value) -> Result<Value, CallError> {
    let call = AdminCall { method: Method::Post, path, body: Some(body) };
    let answer = elastic.admin(call, TIMEOUT).await?;
    if answer.status >= 300 {
        return Err(CallError::Undecodable(format!("status {}: {}", answer.status, answer.body)));
    }
    Ok(answer.body)
}

/// Compares the index with the truth.
///
/// # Errors
/// If the index cannot be read.
pub(super) async fn audit(
    elastic: &dyn Elastic,
    prefix: &str,
    map: &GeoshardMap,
    truth: impl Iterator<Item = (String, Option<PersonState>)>,
) -> Result<Findings, CallError> {
    let mut copies = copies(elastic, prefix, map).await?;
    let mut placements = HashMap::new();
    read_all(elastic, &Index::Placements.name(prefix), |id, source| drop(placements.insert(id, source)))
        .await?;
    let mut findings = Findings::default();
    for (id, expected) in truth {
        compare_placement(&mut findings, map, &id, expected, placements.remove(&id));
        let found = copies.remove(&id).unwrap_or_default();
        let Some(expected) = expected else {
            if !found.is_empty() {
                findings.surplus += 1;
                findings.name(&id, "left, and is still in the index");
            }
            continue;
        };
        findings.documents += 1;
        compare(&mut findings, map, &id, expected, &found);
    }
    for id in copies.into_keys().collect::<HashSet<_>>() {
        findings.surplus += 1;
        findings.name(&id, "is in the index and nobody sent it");
    }
    Ok(findings)
}

fn compare(
    findings: &mut Findings,
    map: &GeoshardMap,
    id: &str,
    expected: PersonState,
    found: &[(ShardId, Value)],
) {
    let (shard, source) = match found {
        [] => {
            findings.missing += 1;
            return findings.name(id, "is missing");
        }
        [(shard, source)] => (shard, source),
        several => {
            findings.doubled += 1;
            let shards: Vec<&str> = several.iter().map(|(shard, _)| shard.as_str()).collect();
            return findings.name(id, &format!("is in {}", shards.join(" and ")));
        }
    };
    let Ok(document) = Document::deserialize(source) else {
        findings.stale += 1;
        return findings.name(id, "is no document of this demo");
    };
    let (lat, lon) = (document.location.lat, document.location.lon);
    let is_current = parts(lat) == expected.lat
        && parts(lon) == expected.lon
        && document.event == expected.event
        && document.mood == expected.mood();
    if !is_current {
        findings.stale += 1;
        return findings
            .name(id, &format!("says event {}, and should say {}", document.event, expected.event));
    }
    if GeoPoint::new(lat, lon).is_ok_and(|at| map.locate(at) != shard) {
        findings.misplaced += 1;
        findings.name(id, &format!("is in {shard}, where it does not belong"));
    }
}

/// Leftovers are ignored: their clear may be late or never happen.
fn compare_placement(
    findings: &mut Findings,
    map: &GeoshardMap,
    id: &str,
    expected: Option<PersonState>,
    found: Option<Value>,
) {
    let wanted = expected.and_then(|state| state.point()).map(|at| map.locate(at));
    let Some(found) = found else {
        if let Some(wanted) = wanted {
            findings.misfiled += 1;
            findings.name(id, &format!("has no placement, and should be placed in {wanted}"));
        }
        return;
    };
    let placement = serde_json::from_value::<Placement>(found);
    if placement.as_ref().ok().map(|placement| placement.shard.as_ref()) != Some(wanted) {
        findings.misfiled += 1;
        let placed = placement.ok().and_then(|placement| placement.shard).map(|shard| shard.to_string());
        let name = |shard: Option<&str>| shard.unwrap_or("none").to_owned();
        let (placed, wanted) = (name(placed.as_deref()), name(wanted.map(ShardId::as_str)));
        findings.name(id, &format!("is placed in {placed}, and should be in {wanted}"));
    }
}

/// Degrees as the simulation counts them.
fn parts(degrees: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 18,000,000")]
    let parts = (degrees * 100_000.0).round() as i64;
    parts
}
