//! The protocol's rules disabled one after the other: each must be found within a number of seeds, except those found
//! elsewhere.

use clap::ValueEnum;
use geofold::base::sabotage::{self, Sabotage};

use crate::process::Shared;
use crate::run::run;
use crate::scenario::Scenario;

/// Number of seeds, from 0 on, within which each sabotage must be found.
pub const SEEDS: u64 = 30_000;

/// Sabotages that the runs need not find, and the test that finds them.
const ELSEWHERE: &[(Sabotage, &str)] = &[
    (Sabotage::PartitionsAreComparable, "the mover's tests: there is one partition here"),
    (Sabotage::InPlaceDespiteTargets, "model and histories; here only by chance, once in thousands of seeds"),
    (Sabotage::InPlaceOverItsOwnRecord, "the mover's counterexamples: the other rules make up for it"),
    (Sabotage::OldRecordsDecide, "the mover's counterexamples: the other rules make up for it"),
    (Sabotage::IgnoreNewerLeftover, "the mover's counterexamples: the other rules make up for it"),
    (Sabotage::WrittenIsDone, "the model; not seen here in 2,000 seeds"),
    (Sabotage::RefusedIsDeleted, "the model; not seen here in 2,000 seeds"),
    (Sabotage::RefusedStays, "the model; no patch mends a refused document here"),
    (Sabotage::MisplacedIsResumed, "the model; no patch mends a refused document here"),
    (
        Sabotage::ResumedIsNotTakenApart,
        "the model; seed 13859185920121084578, and none of the first thousands",
    ),
    (Sabotage::MissingIsDeleted, "the model; not seen here in 2,000 seeds"),
    (Sabotage::SecondLookIsBelieved, "the model; not tried here for long"),
    (Sabotage::StaleBaseIsBelieved, "the mover's tests: no node is cut off here"),
    (Sabotage::FinishingSweepsAnyway, "the model; not seen here in 1,000 seeds"),
    (Sabotage::ResumedSweepsAtOnce, "the model; not tried here for long"),
    (
        Sabotage::CacheSurvivesAssignment,
        "the model, by a weakening of its own; not seen here in thousands of seeds",
    ),
    (Sabotage::ActivateUnconfirmed, "the tests of the change of the map, which is not run here"),
    (Sabotage::ClaimIsNotAsked, "the partition task's tests; the model, by a weakening of its own"),
    (Sabotage::InPlaceDespiteFacets, "the model; not tried here for long"),
    (Sabotage::InPlaceHasNoEdges, "the model: the other rules make up for it here"),
    (
        Sabotage::RefusedInPlaceIsNotRecorded,
        "the mover's tests: counts are not judged where documents are refused",
    ),
    (Sabotage::FetchedIsNotRecorded, "the model: there is no source of truth here"),
    (Sabotage::GoneIsNotRecorded, "the model: there is no source of truth here"),
    (Sabotage::OldAnswerIsBelieved, "the mover's tests: there is no source of truth here"),
];

/// All of them.
pub fn all() -> &'static [Sabotage] {
    Sabotage::value_variants()
}

/// The test that finds a sabotage beyond the simulation.
pub fn found_elsewhere(sabotage: Sabotage) -> Option<&'static str> {
    ELSEWHERE.iter().find(|(other, _)| *other == sabotage).map(|(_, by)| *by)
}

/// The name of a sabotage, as the command line has it.
pub fn name(sabotage: Sabotage) -> String {
    sabotage.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The sabotage of this name.
pub fn named(text: &str) -> Result<Sabotage, String> {
    Sabotage::from_str(text, false)
}

/// The one active on this thread.
pub fn current() -> Option<String> {
    all().iter().copied().find(|sabotage| sabotage::is(*sabotage)).map(name)
}

/// The first seed that finds it, and the violated rule.
pub fn found(sabotage: Sabotage, shared: &Shared, seeds: u64) -> Option<(u64, &'static str)> {
    sabotage::with(sabotage, || {
        (0..seeds).find_map(|seed| Some((seed, run(&Scenario::new(seed), shared, false).broken?.rule)))
    })
}
