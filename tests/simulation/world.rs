//! Shared by all processes of a run: the time, the store behind Elasticsearch's API, the dead-letter topic, randomness,
//! and the history. Every change of a document passes [`World::write`], which checks it at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use geofold::base::clock::{Clock, Instant};
use geofold::base::ids::{DocId, ShardId};
use geofold::base::position::{Epoch, Position};
use geofold::base::random::Random;
use geofold::base::sabotage::{self, Sabotage};
use geofold::core::counting::increment::Increment;
use geofold::core::invariants::{BrokenInvariant, DocumentState};
use geofold::core::placement::Placement;
use geofold::io::elastic::refreshes::RefreshCounts;
use geofold::io::elastic::{BulkOp, Get, Index, WriteCondition};
use geofold::io::maps::MapsRecord;
use geofold::io::maps::store::record_key;
use geofold::testkit::embedded::elasticsearch::{
    Doc, EsError, IndexStore, WriteContent, WriteGuard, WriteResult,
};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant as TokioInstant;

use crate::audit;
use crate::scenario::{GC_DELETES, Outage, PLACES, Scenario, Trouble, document_id};

/// Geoshard names, one for each of [`PLACES`] by the usual map.
pub const GEOSHARDS: [&str; PLACES.len()] = ["a", "b", "c"];

/// The topic's name.
pub const TOPIC: &str = "topic";

/// Prefix of the indices.
const PREFIX: &str = "sim";

/// Boot time: tokio's time plus sleep.
#[derive(Debug)]
pub struct WorldClock {
    start: TokioInstant,
    slept: AtomicU64,
}

impl WorldClock {
    /// Milliseconds of virtual time since the run began, without sleep.
    pub fn awake(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Total sleep so far.
    pub fn slept(&self) -> u64 {
        self.slept.load(Ordering::Relaxed)
    }

    pub fn sleep(&self, by: u64) {
        self.slept.fetch_add(by, Ordering::Relaxed);
    }
}

impl Clock for WorldClock {
    fn now(&self) -> Instant {
        let slept = Duration::from_millis(self.slept.load(Ordering::Relaxed));
        Instant::from_start(Duration::from_secs(3_600) + slept + self.start.elapsed())
    }
}

/// A violation found by a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// A short name that is stable while a scenario is minimized.
    pub rule: &'static str,
    /// The details.
    pub what: String,
    /// The document concerned, if any.
    pub document: Option<String>,
}

/// A line of the history.
#[derive(Debug, Clone)]
pub struct Line {
    /// Virtual time without sleep, in milliseconds.
    pub at: u64,
    /// The document concerned; `None` concerns all.
    pub document: Option<String>,
    pub text: String,
}

/// A delivery of dead letters that was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The sending process.
    pub process: usize,
    pub first: i64,
    pub last: i64,
    pub stage: &'static str,
}

/// Mutable state of a run.
pub struct State {
    pub random: Random,
    pub trouble: Trouble,
    /// Outages and their ends.
    pub outages: Vec<(u64, Outage)>,
    /// End of the dead-letter topic's outage.
    pub no_letters_until: u64,
    pub deliveries: Vec<Delivery>,
    /// The topic of increments.
    pub increments: Vec<Increment>,
    /// Requests that may still be executed.
    pub under_way: usize,
    /// Writes that Elasticsearch executed.
    pub writes: u64,
    /// All states of each document's placement, and when it took them.
    placements: BTreeMap<String, Vec<(Instant, Arc<Doc>)>>,
    /// Which of them a read that need not be of now gets.
    of_which_moment: Random,
    /// Geoshard and document pairs that searches find.
    visible: BTreeSet<(String, String)>,
    /// Refreshes that have ended, by geoshard.
    refreshes: BTreeMap<String, u64>,
    /// The first violation. It ends the run.
    pub broken: Option<Violation>,
    /// Only if requested: a million runs do without.
    history: Option<Vec<Line>>,
    /// Digest of all executed events and their times: equal for equal runs.
    pub digest: u64,
}

impl State {
    pub fn percent(&mut self, chance: u64) -> bool {
        chance > 0 && self.random.below(100) < chance
    }

    pub fn one_to(&mut self, most: u64) -> u64 {
        1 + self.random.below(most)
    }

    pub fn mix(&mut self, number: u64) {
        self.digest = (self.digest.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

/// See the module documentation.
pub struct World {
    pub scenario: Arc<Scenario>,
    pub clock: Arc<WorldClock>,
    /// Notified of a violation and of every write.
    pub told: Notify,
    store: IndexStore,
    state: Mutex<State>,
}

impl World {
    /// Call within the runtime whose time it uses.
    pub fn new(scenario: Arc<Scenario>, with_history: bool) -> Arc<Self> {
        let clock = Arc::new(WorldClock { start: TokioInstant::now(), slept: AtomicU64::new(0) });
        let store = IndexStore::new("false", u64::MAX, clock.clone());
        let document = json!({"dynamic": false, "properties": {"n": {"type": "long"}}});
        let opaque = json!({"enabled": false});
        for shard in GEOSHARDS {
            create(&store, shard, &document);
        }
        for index in [Index::Placements, Index::Meta] {
            create(&store, index.suffix(), &opaque);
        }
        let state = State {
            // Independent of the numbers that drew the scenario.
            random: Random::new(scenario.seed ^ 0x05ee_d0fc_4a05),
            trouble: scenario.trouble,
            outages: Vec::new(),
            no_letters_until: 0,
            deliveries: Vec::new(),
            increments: Vec::new(),
            under_way: 0,
            writes: 0,
            placements: BTreeMap::new(),
            of_which_moment: Random::new(scenario.seed ^ 0x00a5_0f0c_ead5),
            visible: BTreeSet::new(),
            refreshes: BTreeMap::new(),
            broken: None,
            history: with_history.then(Vec::new),
            digest: 0,
        };
        Arc::new(Self { scenario, clock, told: Notify::new(), store, state: Mutex::new(state) })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the history, if there is one.
    pub fn note(&self, document: Option<&str>, text: impl FnOnce() -> String) {
        let at = self.clock.awake();
        if let Some(history) = &mut self.state().history {
            history.push(Line { at, document: document.map(str::to_owned), text: text() });
        }
    }

    pub fn take_history(&self) -> Vec<Line> {
        self.state().history.take().unwrap_or_default()
    }

    /// Records a violation; the first one counts.
    pub fn fail(&self, rule: &'static str, document: Option<&str>, what: impl fmt::Display) {
        let what = what.to_string();
        self.note(document, || format!("!! {what}"));
        let document = document.map(str::to_owned);
        self.state().broken.get_or_insert(Violation { rule, what, document });
        self.told.notify_one();
    }

    /// As [`World::fail`], if an invariant does not hold.
    pub fn hold(&self, document: &str, invariant: Result<(), BrokenInvariant>) {
        if let Err(broken) = invariant {
            self.fail(broken.invariant, Some(document), &broken);
        }
    }

    /// Whether requests to this index fail just now.
    pub fn is_away(&self, index: &Index) -> bool {
        let now = self.clock.awake();
        self.state().outages.iter().any(|(until, outage)| {
            now < *until
                && match outage {
                    Outage::All | Outage::Unavailable => false,
                    Outage::Placements => *index == Index::Placements,
                    Outage::Geoshard(n) => index.suffix() == GEOSHARDS[*n],
                }
        })
    }

    /// What happens to every request just now.
    pub fn outage(&self) -> Option<Outage> {
        let now = self.clock.awake();
        let state = self.state();
        let mut current = state.outages.iter().filter(|(until, _)| now < *until).map(|(_, outage)| *outage);
        current.find(|outage| matches!(outage, Outage::All | Outage::Unavailable))
    }

    /// Searches find what is in this index now.
    pub fn refresh(&self, index: &str) {
        let documents: Vec<String> = self.scenario.documents().map(document_id).collect();
        let index_name = format!("{PREFIX}-{index}");
        let is_there = |id: &String| self.store.get(&index_name, id).is_ok_and(|found| found.is_some());
        let there: Vec<bool> = documents.iter().map(is_there).collect();
        let mut state = self.state();
        for (document, is_there) in documents.into_iter().zip(there) {
            let place = (index.to_owned(), document);
            if is_there {
                state.visible.insert(place);
            } else {
                state.visible.remove(&place);
            }
        }
        drop(state);
        self.note(None, || format!("    {index} is refreshed"));
    }

    /// A refresh of this index has ended.
    pub fn count_refresh(&self, index: &str) {
        *self.state().refreshes.entry(index.to_owned()).or_default() += 1;
    }

    /// How many refreshes of this index have ended.
    pub fn refreshes(&self, index: &str) -> RefreshCounts {
        RefreshCounts::of([("0 node", self.state().refreshes.get(index).copied().unwrap_or_default())])
    }

    /// Whether a search that asks this geoshard now finds the document there.
    pub fn is_visible(&self, shard: &str, document: &str) -> bool {
        self.state().visible.contains(&(shard.to_owned(), document.to_owned()))
    }

    /// Reads a document.
    pub fn read(&self, get: &Get) -> Result<Option<Arc<Doc>>, EsError> {
        let now = self.store.get(&get.index.name(PREFIX), get.id.as_str())?;
        Ok(self.earlier(get).or(now))
    }

    /// What a search gives: a plain placement of any moment since the one that the get names, if there was one then.
    fn earlier(&self, get: &Get) -> Option<Arc<Doc>> {
        let since = get.since?;
        let mut state = self.state();
        let State { placements, of_which_moment, .. } = &mut *state;
        let states = placements.get(get.id.as_str())?;
        let before = states.partition_point(|(at, _)| *at <= since);
        let possible = &states[before.saturating_sub(1)..];
        let (_, doc) = &possible[usize::try_from(of_which_moment.below(possible.len() as u64)).ok()?];
        Placement::from_json(&doc.source).is_ok_and(|placement| placement.is_plain()).then(|| doc.clone())
    }

    /// Carries out a write, and judges what it did.
    pub fn write(&self, by: usize, op: &BulkOp) -> Result<WriteResult, EsError> {
        let (index, id) = op.address();
        let is_judged = *index != Index::Meta;
        let before = if is_judged { self.view(id) } else { DocumentState::default() };
        let written = self.carry_out(op);
        let (status, version) = match &written {
            Ok(written) => (written.status(), written.version),
            Err(error) => (error.status, 0),
        };
        {
            let now = self.clock.awake();
            let mut state = self.state();
            state.writes += 1;
            for number in [now, by as u64, u64::from(status), version.unsigned_abs()] {
                state.mix(number);
            }
        }
        self.told.notify_one();
        if *index == Index::Placements
            && let Some(doc) = written.as_ref().ok().and_then(|_| self.stored(Index::Placements, id))
        {
            let now = self.clock.now();
            self.state().placements.entry(id.to_string()).or_default().push((now, doc));
        }
        if !is_judged {
            self.note(Some(id.as_str()), || format!("    {by} {}: {status}", in_short(op)));
            return written;
        }
        let after = self.view(id);
        self.note(Some(id.as_str()), || format!("    {by} {}: {status}; {after}", in_short(op)));
        audit::change(self, id, &before, &after);
        written
    }

    fn carry_out(&self, op: &BulkOp) -> Result<WriteResult, EsError> {
        let external = |position: Position| i64::try_from(position.version()).unwrap_or(i64::MAX);
        match op {
            BulkOp::Index { index, id, guard, source } => {
                let condition = match *guard {
                    WriteCondition::External(at) => WriteGuard::External(external(at)),
                    WriteCondition::ExternalOrEqual(at) => WriteGuard::ExternalOrEqual(external(at)),
                    WriteCondition::Absent => WriteGuard::Absent,
                    WriteCondition::Unchanged(stamp) => WriteGuard::Unchanged(stamp),
                };
                self.store.write(&index.name(PREFIX), id.as_str(), condition, WriteContent::Source(source))
            }
            BulkOp::Delete { index, id, version } => {
                // The real one is left without a version on its way into the request, which this store does not see.
                let condition = if sabotage::is(Sabotage::DeleteWithoutVersion) {
                    WriteGuard::Any
                } else {
                    WriteGuard::External(external(*version))
                };
                self.store.write(&index.name(PREFIX), id.as_str(), condition, WriteContent::Nothing)
            }
            BulkOp::Remove { .. } => unreachable!("a worker removes no placement"),
        }
    }

    /// Makes this the record of the maps in force.
    pub fn set_maps(&self, maps: &MapsRecord) {
        let index = Index::Meta.name(PREFIX);
        let source = serde_json::to_vec(maps).unwrap();
        self.store
            .write(&index, record_key(TOPIC).as_str(), WriteGuard::Any, WriteContent::Source(&source))
            .unwrap();
        self.note(None, || format!("the record of the maps has generation {}", maps.generation));
    }

    /// All that is stored of a document.
    pub fn view(&self, id: &DocId) -> DocumentState {
        let placement = self.stored(Index::Placements, id);
        let copies = GEOSHARDS.iter().filter_map(|shard| {
            let shard = ShardId::new(shard).ok()?;
            let doc = self.stored(Index::Geoshard(shard.clone()), id)?;
            Some((shard, Position::from_version(doc.version.unsigned_abs())))
        });
        DocumentState {
            placement: placement.and_then(|doc| Placement::from_json(&doc.source).ok()),
            copies: copies.collect(),
        }
    }

    /// The content of a copy.
    pub fn content(&self, shard: &ShardId, id: &DocId) -> Option<Value> {
        serde_json::from_slice(&self.stored(Index::Geoshard(shard.clone()), id)?.source).ok()
    }

    fn stored(&self, index: Index, id: &DocId) -> Option<Arc<Doc>> {
        self.read(&Get::realtime(index, id.clone())).ok().flatten()
    }

    /// The offset after the last record.
    pub fn end_of_log(&self) -> i64 {
        i64::try_from(self.scenario.records.len()).unwrap_or(i64::MAX)
    }
}

/// The position of a record.
pub fn position(offset: i64) -> Position {
    #[expect(clippy::unwrap_used, reason = "offsets of a handful of records")]
    Position::new(Epoch::default(), offset).unwrap()
}

fn create(store: &IndexStore, suffix: &str, mappings: &Value) {
    let settings = [
        ("index.gc_deletes".to_owned(), format!("{GC_DELETES}ms")),
        ("index.refresh_interval".to_owned(), "-1".to_owned()),
    ];
    let mappings = mappings.as_object().cloned().unwrap_or_default();
    #[expect(clippy::unwrap_used, reason = "a new store has no index of this name")]
    store.create_index(&format!("{PREFIX}-{suffix}"), settings.into(), mappings).unwrap();
}

/// An operation as the history shows it.
pub fn in_short(op: &BulkOp) -> String {
    match op {
        BulkOp::Index { index, id, guard, source } => {
            let guard = match guard {
                WriteCondition::External(at) => format!("at {at}"),
                WriteCondition::ExternalOrEqual(at) => format!("at {at} or equal"),
                WriteCondition::Absent => "if absent".to_owned(),
                WriteCondition::Unchanged(stamp) => format!("if still {}", stamp.seq_no),
            };
            format!("put {id} into {} {guard} {}", index.suffix(), shortened(source))
        }
        BulkOp::Delete { index, id, version } => format!("delete {id} from {} at {version}", index.suffix()),
        BulkOp::Remove { index, id, stamp } => {
            format!("remove {id} from {} if still {}", index.suffix(), stamp.seq_no)
        }
    }
}

/// The beginning of a source: all of a document.
pub fn shortened(source: &[u8]) -> String {
    String::from_utf8_lossy(source).chars().take(100).collect()
}
