//! A scenario, drawn from one seed: the records and their times, the owners of the partition over time, and
//! the faults. A scenario is plain data, so that it can be minimized while it still fails.
//!
//! Half of them are dense: a few records of one document, and several former owners at work on them at once. The others are
//! wide: more documents, more kinds of trouble, longer times.
//!
//! Times are milliseconds of virtual time. They are a hundredth of the configuration's defaults: only the
//! proportions matter.

use std::fmt;

use geofold::base::random::Random;
use geofold::core::mover::OnMissing;

/// `batch.timeout`.
pub const DEADLINE: u64 = 2_000;

/// `index.gc_deletes`. Above the sum of everything that a zombie can do after a takeover: act for
/// [`Scenario::acts_for`], on a batch that lasts [`DEADLINE`], by requests up to [`Scenario::late_by`] late.
pub const GC_DELETES: u64 = 20_000;

/// Places that documents can be at, as degrees of longitude: each in another geoshard.
pub const PLACES: [i64; 3] = [0, 90, 170];

/// A document with this text as its number is refused by the mapping.
const UNACCEPTABLE: &str = r#""unacceptable""#;

/// A patch that no document takes: it leaves half of a location.
const SPOILING: &str = r#"{"location":{"lat":null}}"#;

/// What kind of run: what may happen, and what can be said about its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The usual case.
    Plain,
    /// Records vanish from the log once their document has a later one. Patches would vanish too, so there are none.
    Compacted,
    /// Elasticsearch refuses some documents, and patches remove locations. The expected index then depends on how
    /// records were folded.
    Refusing,
    /// Two maps are live all the time, and at some time the other one decides. An owner that does not know yet acts by
    /// the first.
    TwoMaps,
}

/// A scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its seed, also for random choices during the run.
    pub seed: u64,
    pub kind: Kind,
    pub on_missing: OnMissing,
    /// The log. An offset is an index.
    pub records: Vec<Produced>,
    pub changes: Vec<Change>,
    pub trouble: Trouble,
    pub setup: Setup,
    /// From here on there are no new faults, except by zombies and late requests.
    pub calm_from: u64,
    /// Maximum delay of a request before it is executed.
    pub late_by: u64,
    /// The parts left out of the seed's scenario.
    pub without: Vec<Part>,
}

/// A record of the log.
#[derive(Debug, Clone)]
pub struct Produced {
    /// Its number in the scenario as drawn.
    pub part: Part,
    /// When it appears.
    pub at: u64,
    /// Its document.
    pub document: usize,
    /// The operation header; `None`: implied by the value.
    pub op: Option<&'static str>,
    pub value: Option<String>,
    /// It cannot be decoded.
    pub is_bad: bool,
}

impl Produced {
    pub fn is_delete(&self) -> bool {
        !self.is_bad && (self.op == Some("delete") || (self.op.is_none() && self.value.is_none()))
    }

    pub fn is_patch(&self) -> bool {
        self.op == Some("patch") && !self.is_bad
    }

    pub fn is_touch(&self) -> bool {
        self.op == Some("touch")
    }

    /// Whether no document accepts it.
    pub fn is_spoiling(&self) -> bool {
        self.is_patch() && self.value.as_deref() == Some(SPOILING)
    }

    /// Whether a fold with this after a spoiling patch may be a document again.
    pub fn hides_what_spoils(&self) -> bool {
        !self.is_bad && !self.is_touch() && (!self.is_patch() || self.value_has("\"lat\":1"))
    }

    fn value_has(&self, text: &str) -> bool {
        self.value.as_deref().is_some_and(|value| value.contains(text))
    }
}

impl fmt::Display for Produced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = self.op.unwrap_or(if self.value.is_some() { "index" } else { "delete" });
        write!(f, "{} {op} {}", document_id(self.document), self.value.as_deref().unwrap_or_default())
    }
}

/// The id of a document.
pub fn document_id(document: usize) -> String {
    format!("d{document}")
}

/// Something that happens once.
#[derive(Debug, Clone)]
pub struct Change {
    pub part: Part,
    pub when: When,
    pub what: What,
}

#[derive(Debug, Clone, Copy)]
pub enum When {
    /// At this time.
    At(u64),
    /// When Elasticsearch has executed this many writes: possibly in the middle of a batch.
    AfterWrites(u64),
}

#[derive(Debug, Clone, Copy)]
pub enum What {
    /// The partition is revoked: the owner has `grace` to finish its batch, and may commit then. The next owner starts
    /// `gap` later, here and below.
    Revoke { grace: u64, gap: u64 },
    /// The owner dies at once.
    Crash { gap: u64 },
    /// The owner loses the partition and does not know it for `acts_for`: it goes on, but cannot commit.
    Lose { acts_for: u64, gap: u64 },
    /// The owner is suspended, loses the partition, resumes `frozen` later, and does not know it for `acts_for`.
    FreezeAndLose { frozen: u64, acts_for: u64, gap: u64 },
    /// The owner is suspended, and resumes as the owner.
    Freeze { frozen: u64 },
    /// All machines sleep: boot time goes on, other time does not.
    Sleep { by: u64 },
    /// Elasticsearch is partly or wholly unavailable.
    Outage { lasts: u64, of: Outage },
    /// The dead-letter topic accepts nothing.
    NoLetters { lasts: u64 },
    /// The log is compacted.
    Compact,
    /// From now on the other map decides.
    OtherMap,
}

/// The part that is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// No connection.
    All,
    /// 503 for every request.
    Unavailable,
    /// Every item to this geoshard, by number, fails.
    Geoshard(usize),
    /// Every item to the placements index fails.
    Placements,
}

/// Fault rates of requests, each in percent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trouble {
    /// Executed late, perhaps after its sender gave up or died.
    pub late: u64,
    /// Executed, but the answer is lost.
    pub lost: u64,
    /// Executed, and again later.
    pub twice: u64,
    /// Refused as a whole: 429, 503, 413, an undecodable answer.
    pub refused: u64,
    /// Each item fails by itself: 429, 503.
    pub items: u64,
    /// A commit fails.
    pub commits: u64,
}

/// The worker's configuration, and speeds.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub max_documents: usize,
    pub linger: u64,
    pub max_dirty_age: u64,
    pub max_operations: usize,
    pub permits: usize,
    pub cached_placements: usize,
    pub retry_initial: u64,
    pub retry_max: u64,
    pub request_timeout: u64,
    /// Bytes that a partition may hold before it is paused.
    pub held: usize,
    pub commit_interval: u64,
    /// Maximum latency of a request in one direction.
    pub latency: u64,
    /// Interval between fetches.
    pub tick: u64,
}

/// A part of a scenario that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A record: `r3`.
    Record(usize),
    /// A change: `c1`.
    Change(usize),
    /// A kind of fault: `late`.
    Trouble(&'static str),
}

const TROUBLES: [&str; 6] = ["late", "lost", "twice", "refused", "items", "commits"];

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(n) => write!(f, "r{n}"),
            Self::Change(n) => write!(f, "c{n}"),
            Self::Trouble(name) => f.write_str(name),
        }
    }
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = TROUBLES.iter().find(|name| **name == text) {
            return Ok(Self::Trouble(name));
        }
        let number = |prefix| text.strip_prefix(prefix).and_then(|digits: &str| digits.parse().ok());
        let part = number('r').map(Self::Record).or_else(|| number('c').map(Self::Change));
        part.ok_or_else(|| format!("{text:?} names no part of a scenario"))
    }
}

impl Scenario {
    /// Which other map there is, where two are live.
    pub fn other_map(&self) -> usize {
        usize::from(self.seed % 2 == 1)
    }

    /// The scenario of a seed.
    pub fn new(seed: u64) -> Self {
        let mut draw = Draw(Random::new(seed));
        let kind = draw.one_of(&[
            Kind::Plain,
            Kind::Plain,
            Kind::Plain,
            Kind::Compacted,
            Kind::Refusing,
            Kind::TwoMaps,
        ]);
        let on_missing = draw.one_of(&[OnMissing::DeadLetter, OnMissing::Drop, OnMissing::Create]);
        let is_dense = draw.percent(50);
        let (documents, count) = if is_dense {
            (draw.one_of(&[1, 1, 1, 2]), draw.one_of(&[3, 4, 4, 5]))
        } else {
            (draw.one_of(&[1, 1, 1, 2, 2, 3, 4]), draw.one_of(&[2, 3, 3, 4, 4, 5, 6, 8, 12]))
        };
        // Long ones wait until deadlines and tombstones have expired.
        let horizon = if is_dense { 300 } else { draw.one_of(&[300, 800, 800, 2_000, 5_000]) };
        let times = draw.times(count, horizon, is_dense);
        let last_at = times.last().copied().unwrap_or_default();
        let records = times
            .into_iter()
            .enumerate()
            .map(|(n, at)| record(&mut draw, (kind, on_missing, seed), documents, n, at));
        let records = records.collect();
        // After compaction an owner protects itself for one batch deadline; zombies must be done by then.
        let (acts_for, late_by) = if kind == Kind::Compacted { (800, 900) } else { (4_000, 4_000) };
        let mut changes = Vec::new();
        let owners =
            if is_dense { draw.one_of(&[2, 3, 3, 4]) } else { draw.one_of(&[0, 1, 1, 2, 2, 2, 3, 3, 4, 6]) };
        for _ in 0..owners {
            changes.push(draw.ownership(kind, acts_for, is_dense));
        }
        for _ in 0..if is_dense { 0 } else { draw.one_of(&[0, 0, 0, 1, 1, 2]) } {
            changes.push(draw.weather());
        }
        for _ in 0..if kind == Kind::Compacted { 1 + draw.below(3) } else { 0 } {
            changes.push(What::Compact);
        }
        if kind == Kind::TwoMaps {
            changes.push(What::OtherMap);
        }
        let changes = changes.into_iter().enumerate().map(|(n, what)| {
            let when = match draw.below(if is_dense { 4 } else { 2 }) {
                0 => When::At(draw.below(horizon + 200)),
                _ => When::AfterWrites(draw.below(4 * count as u64 + 2)),
            };
            Change { part: Part::Change(n), when, what }
        });
        let changes = changes.collect();
        Self {
            seed,
            kind,
            on_missing,
            records,
            changes,
            trouble: draw.trouble(is_dense),
            setup: draw.setup(is_dense),
            calm_from: last_at.max(horizon) + 1_000,
            late_by,
            without: Vec::new(),
        }
    }

    /// Whether documents are counted.
    pub fn counts(&self) -> bool {
        counts(self.seed)
    }

    /// Whether workers read ahead.
    pub fn looks_ahead(&self) -> bool {
        looks_ahead(self.seed, self.kind)
    }

    /// Whether some patches are such that no document takes them.
    pub fn spoils(&self) -> bool {
        spoils(self.seed, self.kind)
    }

    /// Whether old copies stay until searches find the new ones. Nothing is drawn for that.
    pub fn serves_searches(&self) -> bool {
        !self.seed.is_multiple_of(5)
    }

    /// The same without these parts.
    pub fn without(mut self, parts: &[Part]) -> Self {
        self.records.retain(|record| !parts.contains(&record.part));
        self.changes.retain(|change| !parts.contains(&change.part));
        for part in parts {
            match part {
                Part::Trouble("late") => self.trouble.late = 0,
                Part::Trouble("lost") => self.trouble.lost = 0,
                Part::Trouble("twice") => self.trouble.twice = 0,
                Part::Trouble("refused") => self.trouble.refused = 0,
                Part::Trouble("items") => self.trouble.items = 0,
                Part::Trouble("commits") => self.trouble.commits = 0,
                Part::Trouble(_) | Part::Record(_) | Part::Change(_) => {}
            }
        }
        self.without.extend(parts);
        self
    }

    /// All parts that could still be left out.
    pub fn parts(&self) -> Vec<Part> {
        let Trouble { late, lost, twice, refused, items, commits } = self.trouble;
        let troubles = TROUBLES.into_iter().zip([late, lost, twice, refused, items, commits]);
        let troubles = troubles.filter(|(_, percent)| *percent > 0).map(|(name, _)| Part::Trouble(name));
        let changes = self.changes.iter().map(|change| change.part);
        troubles.chain(changes).chain(self.records.iter().map(|record| record.part)).collect()
    }

    /// The documents of the records.
    pub fn documents(&self) -> impl Iterator<Item = usize> {
        let last = self.records.iter().map(|record| record.document).max();
        0..last.map_or(0, |last| last + 1)
    }
}

/// Draws the parts of a scenario.
struct Draw(Random);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// The times of the records, in order.
    fn times(&mut self, count: usize, horizon: u64, is_dense: bool) -> Vec<u64> {
        let mut times: Vec<u64> = match self.below(if is_dense { 3 } else { 4 }) {
            0 => vec![0; count],
            1 => (0..count).map(|_| self.below(horizon / 4)).collect(),
            2 => (0..count).map(|_| self.below(horizon)).collect(),
            // Some appear long after everything in flight is over.
            _ => (0..count)
                .map(|_| self.below(horizon / 4) + self.one_of(&[0, horizon, 2 * DEADLINE]))
                .collect(),
        };
        times.sort_unstable();
        times
    }

    /// In dense runs most former owners act on.
    fn ownership(&mut self, kind: Kind, acts_for: u64, is_dense: bool) -> What {
        let gap = if is_dense { 0 } else { self.one_of(&[0, 0, 0, 50, 500, 2_500]) };
        let acts_for = self.one_of(&[50, acts_for / 8, acts_for]);
        match if is_dense { 2 + self.below(7) } else { self.below(10) } {
            0..=2 => What::Crash { gap },
            3..=4 => What::Revoke { grace: self.one_of(&[0, 20, 200]), gap },
            5..=6 => What::Lose { acts_for, gap },
            7..=8 => {
                let frozen = self.one_of(&[100, 1_000, 3_000, 3_000, 30_000]);
                // A zombie that wakes after compaction is beyond the protocol's limits.
                let acts_for = if kind == Kind::Compacted { 0 } else { acts_for };
                What::FreezeAndLose { frozen, acts_for, gap }
            }
            _ => What::Freeze { frozen: self.one_of(&[100, 1_500, 3_000]) },
        }
    }

    fn weather(&mut self) -> What {
        let lasts = self.one_of(&[50, 300, 1_000, 3_000]);
        match self.below(6) {
            0 => What::Sleep { by: self.one_of(&[500, 3_000, 30_000]) },
            1 => What::NoLetters { lasts },
            2 => What::Outage { lasts, of: Outage::All },
            3 => What::Outage { lasts, of: Outage::Unavailable },
            4 => What::Outage { lasts, of: Outage::Geoshard(self.below(PLACES.len() as u64) as usize) },
            _ => What::Outage { lasts, of: Outage::Placements },
        }
    }

    fn trouble(&mut self, is_dense: bool) -> Trouble {
        let mut percent = |choices: &[u64]| self.one_of(choices);
        Trouble {
            late: percent(if is_dense { &[10, 25, 40] } else { &[0, 3, 10, 25] }),
            lost: percent(&[0, 3, 10, 25]),
            twice: percent(&[0, 3, 10]),
            refused: percent(&[0, 0, 5, 20]),
            items: percent(&[0, 0, 5, 20]),
            commits: percent(&[0, 30]),
        }
    }

    fn setup(&mut self, is_dense: bool) -> Setup {
        Setup {
            max_documents: self.one_of(&[1, 2, 100]),
            linger: self.one_of(&[1, 10, 50]),
            max_dirty_age: self.one_of(&[300, 5_000]),
            max_operations: self.one_of(&[1, 2, 100]),
            permits: self.one_of(&[1, 2, 8]),
            cached_placements: self.one_of(&[1, 100, 100]),
            retry_initial: self.one_of(&[5, 30]),
            retry_max: self.one_of(&[50, 300]),
            request_timeout: self.one_of(&[100, 400, 1_000]),
            held: self.one_of(&[1_200, 1 << 20, 1 << 20]),
            commit_interval: self.one_of(&[20, 100, 400]),
            latency: self.one_of(if is_dense { &[10, 40, 100] } else { &[2, 10, 40] }),
            tick: self.one_of(&[5, 20]),
        }
    }
}

/// In one of three ordinary runs that count nothing no document takes some of the patches. Nothing is drawn for that either.
fn spoils(seed: u64, kind: Kind) -> bool {
    kind == Kind::Plain && seed.is_multiple_of(3) && !counts(seed)
}

/// In one of five ordinary runs that count nothing memory is always full, and workers look ahead. Nothing is drawn for that.
fn looks_ahead(seed: u64, kind: Kind) -> bool {
    kind == Kind::Plain && seed % 5 == 2 && !counts(seed)
}

/// In two of seven runs something is counted. Nothing is drawn for that: the others stay what they were.
fn counts(seed: u64) -> bool {
    matches!(seed % 7, 3 | 5)
}

fn record(
    draw: &mut Draw,
    (kind, on_missing, seed): (Kind, OnMissing, u64),
    documents: usize,
    n: usize,
    at: u64,
) -> Produced {
    let document = draw.below(documents as u64) as usize;
    let lon = draw.one_of(&PLACES);
    let field = n % 3;
    let kind_of = if counts(seed) { format!(r#","kind":{}"#, n / 2 % 2) } else { String::new() };
    let whole = format!(r#"{{"location":{{"lat":1,"lon":{lon}}},"n":{n},"p{field}":{n}{kind_of}}}"#);
    let patch = |value: String| (Some("patch"), Some(value), false);
    let index = (None, Some(whole.clone()), false);
    let patches = if kind == Kind::Compacted { 0 } else { 42 };
    // The result of creating from a patch without a location, and so of later ones, would depend on the folding.
    let any_patch = on_missing != OnMissing::Create;
    let is_refusing = kind == Kind::Refusing;
    let (op, value, is_bad) = match draw.below(62 + patches) {
        // Compaction would leave the unreadable record, and take the document.
        0..=1 if kind == Kind::Compacted => index,
        0..=1 => (None, Some("{".to_owned()), true),
        2..=20 if is_refusing => {
            let document = format!(r#"{{"location":{{"lat":1,"lon":{lon}}},"n":{UNACCEPTABLE}}}"#);
            (None, Some(document), false)
        }
        2..=41 => index,
        42..=56 if draw.percent(20) => (Some("delete"), None, false),
        42..=56 => (None, None, false),
        // Compaction would leave a touch, and take the document.
        57..=61 if kind == Kind::Compacted => index,
        57..=66 => (Some("touch"), None, false),
        67..=74 if any_patch => patch(format!(r#"{{"n":{n}}}"#)),
        75..=84 if any_patch && spoils(seed, kind) => patch(SPOILING.to_owned()),
        75..=79 if any_patch => patch(format!(r#"{{"x":{n}}}"#)),
        80..=84 if any_patch => patch(format!(r#"{{"x":{{"y{field}":{n}}}}}"#)),
        85..=90 if any_patch => patch(format!(r#"{{"location":{{"lon":{lon}}}}}"#)),
        91..=94 if is_refusing => patch(format!(r#"{{"n":{UNACCEPTABLE}}}"#)),
        95..=97 if is_refusing => patch(SPOILING.to_owned()),
        _ => patch(whole),
    };
    Produced { part: Part::Record(n), at, document, op, value, is_bad }
}
