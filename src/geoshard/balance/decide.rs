//! Whether the map is changed now, and to which. One decision is a function of what is known, the limits and the time.
//!
//! The load of the coming hours decides ([`crate::geoshard::load::forecast`]), not that of now: a map that follows the sun would move
//! everything twice a day. For the same reason nothing is decided before the load was counted for a day: where people sleep, there would be
//! none. A change begins where the largest geoshard exceeds the mean by more than [`BalanceLimits::start_above`], and further
//! ones follow until it is below [`BalanceLimits::stop_below`]: between the two nothing is begun that had not been begun before.
//! Of all maps within what may still be moved today the most even one is taken (`plan/budget.rs`), or one that moves less, if that
//! brings it below the lower threshold as well.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{by_shard, evenness};
use crate::geoshard::map::GeoshardMap;
use crate::geoshard::plan::change::within_budget;
use crate::geoshard::plan::{CellLoads, CellOptions, ChangeError, MapChange};

const DAY: u64 = 24 * 3600;
/// Attempts to find a map that moves no more documents than may be moved.
const ATTEMPTS: u32 = 6;

/// What may be done.
#[derive(Debug, Clone, PartialEq)]
pub struct BalanceLimits {
    /// Largest load over mean above which a change begins.
    pub start_above: f64,
    /// And below which no further one follows.
    pub stop_below: f64,
    /// The part of all documents that may move within 24 hours, 0 to 1.
    pub moved_per_day: f64,
    /// A change that improves largest load over mean by less is not made.
    pub min_gain: f64,
    /// When nothing begins.
    pub quiet: Vec<QuietHours>,
    /// Seconds from the end of a change to the next.
    pub cool_down: u64,
    /// How many geoshards there may be; as many as there are, if not given.
    pub counts: Option<RangeInclusive<usize>>,
    /// Cells between which is cut.
    pub cells: CellOptions,
}

impl Default for BalanceLimits {
    fn default() -> Self {
        Self {
            start_above: 1.25,
            stop_below: 1.1,
            moved_per_day: 0.05,
            min_gain: 0.02,
            quiet: Vec::new(),
            cool_down: 6 * 3600,
            counts: None,
            cells: CellOptions { level: 7, split_above: 0.25 },
        }
    }
}

/// A part of each day, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuietHours {
    from: u64,
    to: u64,
}

/// Not two times of a day.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("give two times of a day in UTC, such as 18:00-22:30")]
pub struct BadQuietHours;

impl FromStr for QuietHours {
    type Err = BadQuietHours;

    fn from_str(text: &str) -> Result<Self, BadQuietHours> {
        let minute = |text: &str| -> Option<u64> {
            let (hours, minutes) = text.split_once(':')?;
            let (hours, minutes): (u64, u64) = (hours.parse().ok()?, minutes.parse().ok()?);
            (hours < 24 && minutes < 60).then_some((hours * 60 + minutes) * 60)
        };
        let (from, to) = text.split_once('-').ok_or(BadQuietHours)?;
        match (minute(from), minute(to)) {
            (Some(from), Some(to)) if from != to => Ok(Self { from, to }),
            _ => Err(BadQuietHours),
        }
    }
}

impl QuietHours {
    /// When it ends, if `now` is within it.
    fn until(self, now: u64) -> Option<u64> {
        let midnight = now - now % DAY;
        let of_day = now % DAY;
        let is_inside = match self.from < self.to {
            true => (self.from..self.to).contains(&of_day),
            false => of_day >= self.from || of_day < self.to,
        };
        let end = midnight + self.to;
        is_inside.then_some(if end > now { end } else { end + DAY })
    }
}

/// What was done before. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BalanceHistory {
    /// Changes follow until the map is even again.
    #[serde(default)]
    pub is_correcting: bool,
    /// When the last change ended.
    #[serde(default)]
    pub last_change: Option<u64>,
    /// What was moved, oldest first.
    #[serde(default)]
    pub moved: Vec<MovedDocuments>,
}

/// Documents that a change moves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MovedDocuments {
    /// When the change began.
    pub at: u64,
    /// How many.
    pub documents: f64,
}

impl BalanceHistory {
    /// Documents moved within the 24 hours before `now`.
    pub fn moved_today(&self, now: u64) -> f64 {
        let recent = self.moved.iter().filter(|moved| moved.at + DAY > now);
        // The sum of nothing is -0 otherwise.
        recent.map(|moved| moved.documents).fold(0.0, |sum, documents| sum + documents)
    }

    /// Notes a change that begins.
    pub fn begins(&mut self, now: u64, documents: f64) {
        self.moved.retain(|moved| moved.at + DAY > now);
        self.moved.push(MovedDocuments { at: now, documents });
    }
}

/// What is known of the load. All cells were summed up within the map.
#[derive(Debug, Clone, Copy)]
pub struct LoadView<'a> {
    /// The map in force.
    pub map: &'a GeoshardMap,
    /// Documents by place.
    pub documents: &'a CellLoads,
    /// The load of now.
    pub now: &'a CellLoads,
    /// The load that is expected.
    pub forecast: &'a CellLoads,
    /// Seconds for which writes and searches were counted; `None` if documents alone are the load.
    pub counted_for: Option<u64>,
}

/// What is to be done, why, and what it costs.
#[derive(Debug, Clone)]
pub struct BalanceDecision {
    /// Largest load over mean, now; 1 without load.
    pub now: f64,
    /// The same as it is expected.
    pub forecast: f64,
    /// The geoshard with the largest expected load.
    pub largest: String,
    /// Documents that there are.
    pub documents: f64,
    /// Documents moved within 24 hours.
    pub moved_today: f64,
    /// Documents that may still be moved.
    pub left_today: f64,
    /// Whether further changes follow until the map is even.
    pub is_correcting: bool,
    /// What is to be done.
    pub step: BalanceStep,
}

/// What is to be done.
#[derive(Debug, Clone)]
pub enum BalanceStep {
    /// Nothing.
    Wait(Wait),
    /// The map is changed.
    Change(Box<Proposal>),
}

/// A change of the map.
#[derive(Debug, Clone)]
pub struct Proposal {
    /// The map, and what it means for the load.
    pub change: MapChange,
    /// Documents that it moves.
    pub documents: f64,
    /// Largest expected load over mean after it.
    pub after: f64,
}

/// Why nothing is done.
#[derive(Debug, Clone, PartialEq)]
pub enum Wait {
    /// There is no document and no load.
    NoLoad,
    /// Writes and searches were counted for so many seconds, less than a day: those of half the world are not among them.
    CountedTooShort(u64),
    /// The map is even enough.
    Even,
    /// Quiet hours, until then.
    Quiet(u64),
    /// The last change was too short a time ago, until then.
    CoolDown(u64),
    /// As much was moved today as may be.
    BudgetSpent,
    /// The improvement is too small.
    TooLittle {
        /// Largest load over mean after the change.
        after: f64,
    },
    /// No map is better within the budget.
    NoBetter(String),
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLoad => f.write_str("there is no load to balance by"),
            Self::CountedTooShort(seconds) => write!(
                f,
                "writes and searches were counted for {} h {} min, and a day of them is needed (--writes 0 --queries 0: by documents alone)",
                seconds / 3600,
                seconds % 3600 / 60
            ),
            Self::Even => f.write_str("the geoshards are even enough"),
            Self::Quiet(until) => write!(f, "quiet hours until {}", clock_time(*until)),
            Self::CoolDown(until) => write!(f, "cool-down until {}", clock_time(*until)),
            Self::BudgetSpent => f.write_str("the budget of documents moved in 24 hours is spent"),
            Self::TooLittle { after } => write!(f, "the best change would only bring max/mean to {after:.3}"),
            Self::NoBetter(why) => f.write_str(why),
        }
    }
}

/// Seconds since 1970 as a time of the day, UTC.
fn clock_time(at: u64) -> String {
    format!("{:02}:{:02} UTC", at % DAY / 3600, at % 3600 / 60)
}

impl BalanceDecision {
    /// In one line.
    pub fn reason(&self) -> String {
        let Self { now, forecast, largest, .. } = self;
        let so = format!("max/mean {now:.3} now, {forecast:.3} expected (largest: {largest})");
        match &self.step {
            BalanceStep::Wait(wait) => format!("nothing to do: {wait}; {so}"),
            BalanceStep::Change(proposal) => format!(
                "change to map {}, max/mean {:.3} expected, {:.0} documents move ({:.2} % of all); {so}",
                proposal.change.map.version(),
                proposal.after,
                proposal.documents,
                100.0 * proposal.documents / self.documents.max(1.0)
            ),
        }
    }
}

/// Decides. `now`: seconds since 1970. That no other change is under way, and that nobody has stopped it, is for the caller to
/// see to.
pub fn decide(
    history: &BalanceHistory,
    view: LoadView<'_>,
    limits: &BalanceLimits,
    now: u64,
) -> BalanceDecision {
    let documents = view.documents.total().load;
    let moved_today = history.moved_today(now);
    let left_today = (limits.moved_per_day * documents - moved_today).max(0.0);
    let over_mean = |loads| evenness(view.map, loads).map(|balance| balance.max_over_mean);
    let loads = by_shard(view.map, view.forecast);
    let largest = loads.iter().enumerate().max_by(|(_, one), (_, other)| one.total_cmp(other));
    let largest = largest.and_then(|(at, _)| view.map.shards().get(at));
    let expected = over_mean(view.forecast);
    let forecast = expected.unwrap_or(1.0);
    let too_short = view.counted_for.filter(|seconds| *seconds < DAY);
    let is_correcting = match too_short {
        Some(_) => history.is_correcting,
        None => forecast > limits.start_above || (history.is_correcting && forecast > limits.stop_below),
    };
    let quiet = limits.quiet.iter().filter_map(|quiet| quiet.until(now)).max();
    let cool = history.last_change.map(|last| last + limits.cool_down).filter(|until| *until > now);
    let step = if expected.is_none() {
        BalanceStep::Wait(Wait::NoLoad)
    } else if let Some(seconds) = too_short {
        BalanceStep::Wait(Wait::CountedTooShort(seconds))
    } else if !is_correcting {
        BalanceStep::Wait(Wait::Even)
    } else if let Some(until) = quiet {
        BalanceStep::Wait(Wait::Quiet(until))
    } else if let Some(until) = cool {
        BalanceStep::Wait(Wait::CoolDown(until))
    } else if left_today < 1.0 {
        BalanceStep::Wait(Wait::BudgetSpent)
    } else {
        propose(view, limits, left_today, forecast)
    };
    BalanceDecision {
        now: over_mean(view.now).unwrap_or(1.0),
        forecast,
        largest: largest.map(ToString::to_string).unwrap_or_default(),
        documents,
        moved_today,
        left_today,
        is_correcting,
        step,
    }
}

fn propose(view: LoadView<'_>, limits: &BalanceLimits, left_today: f64, before: f64) -> BalanceStep {
    let plan = |share: f64| -> Result<Proposal, ChangeError> {
        let counts = limits.counts.clone();
        let change = within_budget(view.forecast, view.map, view.map.name(), limits.cells, counts, share)?;
        let documents = moved(view.documents, view.map, &change.map);
        let after = evenness(&change.map, view.forecast).map_or(1.0, |balance| balance.max_over_mean);
        Ok(Proposal { change, documents, after })
    };
    // The planner bounds the load that moves. Documents are another measure: less load is tried until they are few enough.
    let mut share = (left_today / view.documents.total().load.max(1.0)).min(1.0);
    let mut found: Option<Proposal> = None;
    let mut why = None;
    for _ in 0..ATTEMPTS {
        match plan(share) {
            Ok(proposal) if proposal.documents <= left_today => {
                found = Some(proposal);
                break;
            }
            Ok(proposal) => share *= (left_today / proposal.documents).clamp(0.1, 0.9),
            Err(error) => {
                why = Some(no_better(&error, left_today));
                break;
            }
        }
    }
    let Some(mut best) = found else {
        let why = why.unwrap_or_else(|| "no better map was found within the budget of documents".to_owned());
        return BalanceStep::Wait(Wait::NoBetter(why));
    };
    for _ in 0..ATTEMPTS {
        if best.after > limits.stop_below {
            break;
        }
        share = (share / 2.0).min(best.change.report.share_moved * 0.75);
        match plan(share) {
            Ok(less) if less.after <= limits.stop_below && less.documents < best.documents => best = less,
            _ => break,
        }
    }
    match before - best.after < limits.min_gain {
        true => BalanceStep::Wait(Wait::TooLittle { after: best.after }),
        false => BalanceStep::Change(Box::new(best)),
    }
}

/// Why there is no map, in the words of this command's options.
fn no_better(error: &ChangeError, left_today: f64) -> String {
    match error {
        ChangeError::NoBetter { needs: Some(_), .. } => format!(
            "no map is more even that moves at most {left_today:.0} documents, as many as may still move today (--max-moved)"
        ),
        ChangeError::NoBetter { count, needs: None, .. } => format!(
            "no map with {count} geoshards is more even, whatever moves; give smaller cells (--level, --finest, --split), or more geoshards (--min, --max)"
        ),
        other => other.to_string(),
    }
}

/// Documents that belong to another geoshard by `new`.
pub fn moved(documents: &CellLoads, old: &GeoshardMap, new: &GeoshardMap) -> f64 {
    let changes = |leaf: u64| old.shards()[old.owner_of_leaf(leaf)] != new.shards()[new.owner_of_leaf(leaf)];
    let cells = documents.sorted();
    let moving = cells.iter().filter(|cell| changes(cell.cell.range_min().0));
    moving.map(|cell| cell.load).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::base::ids::ShardId;
    use crate::base::random::Random;

    const NOW: u64 = 20_000 * DAY + 12 * 3600;

    fn limits() -> BalanceLimits {
        BalanceLimits { moved_per_day: 1.0, ..BalanceLimits::default() }
    }

    /// Four geoshards of one face, of which the first has `first` times as many documents as each other.
    fn uneven(first: u32) -> (GeoshardMap, CellLoads) {
        let id = |n: u64| ShardId::new(&format!("s{n}")).unwrap();
        let ranges = (0..4_u64).map(|n| (if n == 0 { 0 } else { (n << 59) | 1 }, id(n))).collect();
        let map = GeoshardMap::new(7, "m", ranges).unwrap();
        let mut documents = CellLoads::within(10, &map);
        let mut random = Random::new(3);
        let mut counts = [0; 4];
        while counts.iter().zip([first, 1, 1, 1]).any(|(count, times)| *count < 400 * times) {
            let point = GeoPoint::new(random.share() * 80.0 - 40.0, random.share() * 80.0 - 40.0).unwrap();
            let at = map.locate_index(point);
            if counts[at] < 400 * if at == 0 { first } else { 1 } {
                counts[at] += 1;
                documents.add(point, 1.0).unwrap();
            }
        }
        (map, documents)
    }

    fn decided(history: &BalanceHistory, first: u32, limits: &BalanceLimits, now: u64) -> BalanceDecision {
        let (map, documents) = uneven(first);
        let view = LoadView {
            map: &map,
            documents: &documents,
            now: &documents,
            forecast: &documents,
            counted_for: Some(DAY),
        };
        decide(history, view, limits, now)
    }

    fn wait(decision: BalanceDecision) -> Wait {
        match decision.step {
            BalanceStep::Wait(wait) => wait,
            BalanceStep::Change(_) => panic!("{}", decision.reason()),
        }
    }

    fn change(decision: BalanceDecision) -> Proposal {
        match decision.step {
            BalanceStep::Change(proposal) => *proposal,
            BalanceStep::Wait(wait) => panic!("{wait}"),
        }
    }

    #[test]
    fn an_uneven_map_is_changed_and_the_change_is_what_it_says() {
        let decision = decided(&BalanceHistory::default(), 3, &limits(), NOW);
        assert!((decision.forecast - 2.0).abs() < 1e-9 && decision.is_correcting, "{}", decision.reason());
        assert_eq!(
            (decision.largest.as_str(), decision.documents, decision.moved_today),
            ("s0", 2400.0, 0.0)
        );
        let proposal = change(decision);
        let (map, documents) = uneven(3);
        assert_eq!(proposal.documents, moved(&documents, &map, &proposal.change.map));
        assert!(proposal.after <= 1.1 && proposal.change.map.version() == 8, "{}", proposal.after);
    }

    #[test]
    fn a_change_moves_no_more_than_needed_nor_than_is_left_today() {
        let enough = BalanceLimits { stop_below: 1.5, start_above: 1.5, ..limits() };
        let all = change(decided(&BalanceHistory::default(), 3, &enough, NOW));
        assert!(all.after <= 1.5 && all.after > 1.2, "{}", all.after);
        let least = BalanceLimits { stop_below: 1.0, ..limits() };
        let most_even = change(decided(&BalanceHistory::default(), 3, &least, NOW));
        assert!(all.documents < most_even.documents, "{} {}", all.documents, most_even.documents);

        let few = BalanceLimits { moved_per_day: 0.1, ..limits() };
        let mut history = BalanceHistory::default();
        let first = change(decided(&history, 3, &few, NOW));
        assert!(first.documents <= 240.0 && first.documents > 100.0, "{}", first.documents);
        history.begins(NOW, 200.0);
        let decision = decided(&history, 3, &few, NOW + 1000);
        assert_eq!((decision.moved_today, decision.left_today), (200.0, 40.0));
        let second = change(decision);
        assert!(second.documents <= 40.0, "{}", second.documents);
        history.begins(NOW + 1000, 40.0);
        assert_eq!(wait(decided(&history, 3, &few, NOW + 2000)), Wait::BudgetSpent);
        // A day after the first.
        let decision = decided(&history, 3, &few, NOW + DAY);
        assert_eq!((decision.moved_today, decision.left_today), (40.0, 200.0));
        history.begins(NOW + DAY, 10.0);
        assert_eq!(history.moved.len(), 2, "what is older than a day is forgotten");
    }

    #[test]
    fn documents_bound_the_change_also_where_load_is_elsewhere() {
        let (map, load) = uneven(3);
        // The overloaded geoshard has five documents for what elsewhere is the load of one.
        let mut documents = CellLoads::within(10, &map);
        for cell in load.sorted() {
            let is_dense = map.owner_of_leaf(cell.cell.range_min().0) == 0;
            let there = if is_dense { cell.load * 5.0 } else { cell.load };
            documents
                .add_cell(cell.cell, crate::geoshard::load::CellLoad { load: there, points: 1 })
                .unwrap();
        }
        let view = LoadView {
            map: &map,
            documents: &documents,
            now: &load,
            forecast: &load,
            counted_for: Some(DAY),
        };
        let few = BalanceLimits { moved_per_day: 0.1, ..limits() };
        let proposal = change(decide(&BalanceHistory::default(), view, &few, NOW));
        let left = 0.1 * documents.total().load;
        assert!(
            proposal.documents <= left && proposal.documents > left / 3.0,
            "{} {left}",
            proposal.documents
        );
        // What the planner would have moved within a tenth of the load.
        let tenth = within_budget(&load, &map, "", few.cells, None, 0.1).unwrap().map;
        assert!(moved(&documents, &map, &tenth) > left);
    }

    #[test]
    fn between_the_thresholds_only_what_was_begun_goes_on() {
        let between = BalanceLimits { start_above: 2.1, stop_below: 1.2, ..limits() };
        let mut history = BalanceHistory::default();
        let decision = decided(&history, 3, &between, NOW);
        assert!(!decision.is_correcting);
        assert_eq!(wait(decision), Wait::Even);
        history.is_correcting = true;
        let decision = decided(&history, 3, &between, NOW);
        assert!(decision.is_correcting);
        change(decision);
        let even = decided(&history, 1, &between, NOW);
        assert!(!even.is_correcting);
        assert_eq!(wait(even), Wait::Even);
    }

    #[test]
    fn nothing_begins_in_quiet_hours_nor_within_the_cool_down() {
        let quiet = |text: &str| BalanceLimits { quiet: vec![text.parse().unwrap()], ..limits() };
        let at = |hour: u64, minute: u64| NOW - 12 * 3600 + hour * 3600 + minute * 60;
        let none = BalanceHistory::default();
        for (text, now, until) in [
            ("11:30-13:00", at(12, 0), at(13, 0)),
            ("22:00-06:00", at(23, 0), at(30, 0)),
            ("22:00-06:00", at(5, 59), at(6, 0)),
        ] {
            assert_eq!(wait(decided(&none, 3, &quiet(text), now)), Wait::Quiet(until), "{text}");
        }
        change(decided(&none, 3, &quiet("22:00-06:00"), at(6, 0)));
        change(decided(&none, 3, &quiet("11:30-12:00"), at(12, 0)));
        for bad in ["", "12", "1:00-1:00", "24:00-1:00", "1:60-2:00", "a:00-2:00"] {
            assert!(bad.parse::<QuietHours>().is_err(), "{bad}");
        }
        let cool = BalanceLimits { cool_down: 3600, ..limits() };
        let history = BalanceHistory { last_change: Some(NOW - 3599), ..BalanceHistory::default() };
        assert_eq!(wait(decided(&history, 3, &cool, NOW)), Wait::CoolDown(NOW + 1));
        change(decided(&history, 3, &cool, NOW + 1));
    }

    #[test]
    fn nothing_is_decided_before_a_day_was_counted() {
        let (map, documents) = uneven(3);
        let decided = |counted_for, is_correcting| {
            let view = LoadView {
                map: &map,
                documents: &documents,
                now: &documents,
                forecast: &documents,
                counted_for,
            };
            decide(&BalanceHistory { is_correcting, ..BalanceHistory::default() }, view, &limits(), NOW)
        };
        for is_correcting in [false, true] {
            let decision = decided(Some(DAY - 1), is_correcting);
            assert_eq!(decision.is_correcting, is_correcting);
            let reason = decision.reason();
            assert!(reason.contains("were counted for 23 h 59 min, and a day of them is needed"), "{reason}");
            assert_eq!(wait(decision), Wait::CountedTooShort(DAY - 1));
        }
        change(decided(Some(DAY), false));
        change(decided(None, false));
    }

    #[test]
    fn what_improves_too_little_or_nothing_is_left_alone() {
        let much = BalanceLimits { min_gain: 2.0, ..limits() };
        assert!(matches!(wait(decided(&BalanceHistory::default(), 3, &much, NOW)), Wait::TooLittle { .. }));
        let nothing = BalanceLimits { start_above: 0.5, stop_below: 0.4, min_gain: 0.5, ..limits() };
        let waits = wait(decided(&BalanceHistory::default(), 1, &nothing, NOW));
        assert!(matches!(waits, Wait::NoBetter(_) | Wait::TooLittle { .. }), "{waits}");
        // Two documents may move, and a cell has ten at least.
        let (map, documents) = uneven(3);
        let mut tens = CellLoads::within(10, &map);
        for cell in documents.sorted() {
            let there = crate::geoshard::load::CellLoad { load: cell.load * 10.0, points: 1 };
            tens.add_cell(cell.cell, there).unwrap();
        }
        let view = LoadView { map: &map, documents: &tens, now: &tens, forecast: &tens, counted_for: None };
        let little = BalanceLimits { moved_per_day: 2.0 / tens.total().load, ..limits() };
        let waits = wait(decide(&BalanceHistory::default(), view, &little, NOW));
        assert!(
            waits.to_string().contains("at most 2 documents, as many as may still move today"),
            "{waits}"
        );
        let (map, _) = uneven(1);
        let empty = CellLoads::within(10, &map);
        let view =
            LoadView { map: &map, documents: &empty, now: &empty, forecast: &empty, counted_for: Some(DAY) };
        assert_eq!(wait(decide(&BalanceHistory::default(), view, &limits(), NOW)), Wait::NoLoad);
    }
}
