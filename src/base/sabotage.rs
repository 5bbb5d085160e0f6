//! The protocol weakened on purpose, one rule at a time, to show that each rule is needed and that the checks
//! detect its absence.
//!
//! One line calls [`is`] where a rule is enforced. Without the test-only cargo feature `sabotage` the answer is a constant,
//! so a normal build contains nothing of this: no flag, no variable, no branch. With the feature, a sabotage is chosen
//! once for the process ([`choose`]; `geofold run --sabotage NAME`), or for one thread and one closure ([`with`]).
//!
//! What finds them:
//! - the model, `tests/model`: every order of events of one document, within bounds;
//! - the simulation, `tests/simulation`: most of them, on the whole partition task;
//! - the random histories of `core/mover/tests/histories.rs`, with zombies at every step, late requests and two maps: all
//!   of mover and ledger;
//! - `geofold demo --sabotage NAME`, on real processes: [`FOUND_BY_THE_DEMO`]. It takes no others: they need two maps, or a
//!   zombie and an owner within the same few milliseconds, which a demo cannot promise; or, as `CommitAboveFailed`, a crash
//!   while no sweep that waits for searches holds the watermark;
//! - the tests of `ops/migrate/`, where a map is changed: [`Sabotage::ActivateUnconfirmed`];
//! - the tests of `worker/partition`, where a claim is lost: [`Sabotage::ClaimIsNotAsked`];
//! - [`Sabotage::CacheSurvivesAssignment`] by none: an owner writes every placement until a batch deadline has passed since
//!   its assignment, if offsets are missing since the remembered commit, which repairs its cache. Showing it takes a
//!   partition that returns to a worker later. The model finds the same by its own weakening.
//!
//! By name:
//! - model, simulation, unit tests: `DeleteFirst`, `ExternalVersion`, `StaleIsDone`, `NoWriteAhead`, `WriteAheadBeside`,
//!   `DecideAgainAtEqualPosition`, `DeleteWithoutVersion`, `NothingFoundIsDone`, `CommitAboveFailed`, `CommitAboveParked`,
//!   `CommitAboveSweeps`, `ForgetOnFailure`, `LoseAFold`
//! - model, unit tests: `InPlaceDespiteTargets`, `WrittenIsDone`, `RefusedIsDeleted`, `MissingIsDeleted`, `FinishingSweepsAnyway`,
//!   `SecondLookIsBelieved`, `FetchedIsNotRecorded`, `GoneIsNotRecorded`, `RefusedStays`, `MisplacedIsResumed`,
//!   `ResumedIsNotTakenApart`
//! - unit tests, harmless within the model's bounds: `InPlaceOverItsOwnRecord`, `OldRecordsDecide`, `IgnoreNewerLeftover`,
//!   `RefusedInPlaceIsNotRecorded`, `OldAnswerIsBelieved`, `PartitionsAreComparable`, `StaleBaseIsBelieved`
//!   (`core/mover/tests/`); `ClaimIsNotAsked` (the model by a weakening)
//! - model: `CacheSurvivesAssignment` (`CacheIsKept`), `ResumedSweepsAtOnce`, `InPlaceDespiteFacets`, `InPlaceHasNoEdges`,
//!   weakenings of what surrounds the code; also by simulation: `HistoryIsCutToOne`, `HistoryIsCutToTwo`, `HistoryIsOneBase`,
//!   `DeleteBeforeSeen` (and `migrate::`, the demo)
//! - simulation: `SkipRetry`, `InPlaceWithTwoMaps` (also model), `LettersAreNotAwaited`, `ChangedIsForgotten`, `ReadAsOfBefore`
//! - processes: `ActivateUnconfirmed` (`migrate::`)

/// A rule that can be disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "sabotage", derive(clap::ValueEnum))]
pub enum Sabotage {
    /// Leftovers are deleted together with the write-ahead, before the document is written (INV-2).
    DeleteFirst,
    /// Placements are written by external version instead of compare-and-set (step 3).
    ExternalVersion,
    /// In place although the fold went elsewhere in between (step 3).
    InPlaceDespiteTargets,
    /// In place although the fold holds the record that the placement was written for (step 3).
    InPlaceOverItsOwnRecord,
    /// An entry below the recorded position is called done instead of parked (step 1).
    StaleIsDone,
    /// Positions of two partitions are compared like those of one (step 1).
    PartitionsAreComparable,
    /// A new document is written without a placement (INV-1).
    NoWriteAhead,
    /// The document is written beside its placement, in the same round (INV-1).
    WriteAheadBeside,
    /// At an equal position the decision is made again instead of resumed (step 1).
    DecideAgainAtEqualPosition,
    /// Records up to the recorded position decide the target (step 2).
    OldRecordsDecide,
    /// Leftovers are deleted without a version (step 6).
    DeleteWithoutVersion,
    /// A newer copy found elsewhere is taken as a base (step 4).
    IgnoreNewerLeftover,
    /// A copy at least as new in the placement's own shard is called done, although the fold went elsewhere (step 4).
    WrittenIsDone,
    /// A refused document of which no copy is found is recorded as deleted ("A refused document").
    RefusedIsDeleted,
    /// A document stays where its placement was set back to, even if the record that moves it was folded with a patch
    /// that mends it (step 2).
    RefusedStays,
    /// At an equal position, a document is written to the recorded geoshard although it belongs elsewhere (step 1).
    MisplacedIsResumed,
    /// A fold that takes the location away is carried out as one, if a decision about its records is recorded ("A fold refused
    /// before its placement is written").
    ResumedIsNotTakenApart,
    /// A document of which no copy is found is recorded as deleted ("on_missing").
    MissingIsDeleted,
    /// Finishing a lost record's decision, leftovers are swept although the document was not written.
    FinishingSweepsAnyway,
    /// A missing copy is believed after the second read (step 4).
    SecondLookIsBelieved,
    /// A copy is used as a base although it is older than a write of this owner or of the placement's writer (step 4).
    StaleBaseIsBelieved,
    /// A missing copy at the first read means nothing to do (step 4).
    NothingFoundIsDone,
    /// A partition's cached placements return at its next assignment ("The owner's cache").
    CacheSurvivesAssignment,
    /// A placement that this owner wrote, and whose cached state had to make room, may be read as of before ("The owner's cache").
    ChangedIsForgotten,
    /// A placement may be read as of before the assignment ("The owner's cache").
    ReadAsOfBefore,
    /// The watermark passes entries in flight (INV-3).
    CommitAboveFailed,
    /// The watermark passes parked entries (INV-3).
    CommitAboveParked,
    /// What comes for a document is written although a dead letter about it is not delivered yet (step 8).
    LettersAreNotAwaited,
    /// The watermark passes what has old copies left to delete (INV-3).
    CommitAboveSweeps,
    /// An entry that has to start over is called done.
    ForgetOnFailure,
    /// An item to be retried counts as carried out.
    SkipRetry,
    /// While two maps are live, writes go in place as usual, also where the maps differ ("Changing the map").
    InPlaceWithTwoMaps,
    /// Old copies are deleted before searches can find the new ones ("What searches find").
    DeleteBeforeSeen,
    /// An owner that resumes a move whose document is written deletes the old copies at once ("What searches find").
    ResumedSweepsAtOnce,
    /// A new map decides before every partition has confirmed it ("Changing the map").
    ActivateUnconfirmed,
    /// A batch begins without a confirmed claim ("Claims").
    ClaimIsNotAsked,
    /// The later of two folded writes loses its content.
    LoseAFold,
    /// A placement does not carry its fetched document, and the next owner asks the source again ("Refeed").
    FetchedIsNotRecorded,
    /// The source's answer "gone" is not recorded ("Refeed").
    GoneIsNotRecorded,
    /// An answer of the source from before a later refeed or delete is believed ("Refeed").
    OldAnswerIsBelieved,
    /// A placement keeps the last version of its facets only (docs/tally.md, "The history").
    HistoryIsCutToOne,
    /// A placement keeps the last two versions of its facets only (docs/tally.md, "The history").
    HistoryIsCutToTwo,
    /// A placement keeps its current facets and those of the committed position, but nothing between (docs/tally.md, "The history").
    HistoryIsOneBase,
    /// In place although the facets changed within the fold, and back (docs/tally.md, "In place").
    InPlaceDespiteFacets,
    /// In-place writes produce no edges, even if the fold holds the record that the placement was written for: without
    /// [`Sabotage::InPlaceOverItsOwnRecord`] other owners have produced them (docs/tally.md, "Edges").
    InPlaceHasNoEdges,
    /// With counting, a refused fold that did not move its document leaves the placement unchanged (docs/tally.md,
    /// "Refused documents").
    RefusedInPlaceIsNotRecorded,
}

/// Whether this rule is disabled; always false in a normal build.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub const fn is(_: Sabotage) -> bool {
    false
}

#[cfg(feature = "sabotage")]
pub use chosen::{choose, is, with};

#[cfg(feature = "sabotage")]
mod chosen {
    use std::cell::Cell;
    use std::sync::OnceLock;

    use super::Sabotage;

    static OF_THE_PROCESS: OnceLock<Sabotage> = OnceLock::new();

    thread_local! {
        static OF_THE_THREAD: Cell<Option<Sabotage>> = const { Cell::new(None) };
    }

    /// Whether this rule is disabled.
    pub fn is(sabotage: Sabotage) -> bool {
        OF_THE_THREAD.get().or_else(|| OF_THE_PROCESS.get().copied()) == Some(sabotage)
    }

    /// Disables a rule in this process from now on. The first choice stays.
    pub fn choose(sabotage: Sabotage) {
        // A second choice is ignored, as documented.
        let _ = OF_THE_PROCESS.set(sabotage);
    }

    /// Disables a rule on this thread while `work` runs; ends even if it panics.
    pub fn with<R>(sabotage: Sabotage, work: impl FnOnce() -> R) -> R {
        struct Restore(Option<Sabotage>);
        impl Drop for Restore {
            fn drop(&mut self) {
                OF_THE_THREAD.set(self.0);
            }
        }
        let _restore = Restore(OF_THE_THREAD.replace(Some(sabotage)));
        work()
    }
}

/// What `geofold demo` always finds.
#[cfg(feature = "sabotage")]
pub const FOUND_BY_THE_DEMO: [Sabotage; 7] = [
    Sabotage::DeleteBeforeSeen,
    Sabotage::DeleteFirst,
    Sabotage::NoWriteAhead,
    Sabotage::DeleteWithoutVersion,
    Sabotage::ForgetOnFailure,
    Sabotage::SkipRetry,
    Sabotage::LoseAFold,
];
