//! The protocol weakened on purpose, one rule at a time, so that it can be seen that each rule is needed and that the
//! checks would notice.
//!
//! Where a rule is kept, one line asks [`is`]. Without the test-only cargo feature `sabotage` the answer is a constant,
//! so nothing of this is left in a normal build: no flag, no variable, no branch. With the feature, a sabotage is chosen
//! once for the process ([`choose`]; `geofold run --sabotage NAME`), or for one thread and one closure ([`with`]).
//!
//! Who finds them, each by a test (docs/reliability.md has the list):
//! - the model, `tests/model`: every order of events of one document, within bounds;
//! - the simulation, `tests/simulation`: most of them, on the whole partition task;
//! - the random histories of `core/mover/tests/histories.rs`, which know zombies at every step, late requests and two maps: all
//!   of mover and ledger;
//! - `geofold demo --sabotage NAME`, on real processes: [`FOUND_BY_THE_DEMO`]. It takes no others: they need two maps, or a
//!   zombie and an owner within the same few milliseconds, which a demo cannot promise;
//! - the tests of `ops/migrate/`, where a map is changed: [`Sabotage::ActivateUnconfirmed`];
//! - the tests of `worker/partition`, where a claim is lost: [`Sabotage::ClaimIsNotAsked`];
//! - [`Sabotage::CacheSurvivesAssignment`] neither: an owner announces all it writes until a batch deadline has passed since
//!   its assignment, if offsets are missing since what was remembered, and mends its cache by that. To show it takes a
//!   partition that comes back to a worker after longer. The model finds the same by a weakening of its own.

/// A rule that is not kept.
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
    /// At an equal position the recorded decision is not resumed but made again (step 1).
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
    /// A document stays where its placement was set back to, also if what moves it was folded with a patch that mends it
    /// (step 2).
    RefusedStays,
    /// At an equal position, a document is written where that says although it belongs elsewhere (step 1).
    MisplacedIsResumed,
    /// A document of which no copy is found is recorded as deleted ("on_missing").
    MissingIsDeleted,
    /// Finishing a lost record's decision, leftovers are swept although the document was not written.
    FinishingSweepsAnyway,
    /// That no copy is found is believed at the second look (step 4).
    SecondLookIsBelieved,
    /// A copy is taken as a base although it is older than what this owner, or whoever wrote the placement, has written (step 4).
    StaleBaseIsBelieved,
    /// No copy found at the first look is taken as nothing to do (step 4).
    NothingFoundIsDone,
    /// What a partition's task has cached is there again at its next assignment ("The owner's cache").
    CacheSurvivesAssignment,
    /// The watermark passes what is in flight (INV-3).
    CommitAboveFailed,
    /// The watermark passes what is parked (INV-3).
    CommitAboveParked,
    /// What comes for a document is written although a dead letter about it is not delivered yet (step 8).
    LettersAreNotAwaited,
    /// The watermark passes what has old copies left to delete (INV-3).
    CommitAboveSweeps,
    /// An entry that has to start over is called done.
    ForgetOnFailure,
    /// An item that should be sent again is taken as carried out.
    SkipRetry,
    /// While two maps are live, writes go in place as usual, also where the maps differ ("Changing the map").
    InPlaceWithTwoMaps,
    /// Old copies are deleted before searches can find the new ones ("What searches find").
    DeleteBeforeSeen,
    /// Who resumes a move whose document is written already deletes the old copies at once ("What searches find").
    ResumedSweepsAtOnce,
    /// A new map decides before every partition has confirmed that it is known ("Changing the map").
    ActivateUnconfirmed,
    /// A batch begins whether or not the partition's claim was confirmed ("Claims").
    ClaimIsNotAsked,
    /// Of two folded writes the later one's content is lost.
    LoseAFold,
    /// A placement does not carry what was fetched for it, and whoever resumes asks the source again ("Refeed").
    FetchedIsNotRecorded,
    /// That the source does not have what is missing here is not recorded ("Refeed").
    GoneIsNotRecorded,
    /// What the source said before a later refeed or delete was taken in is believed ("Refeed").
    OldAnswerIsBelieved,
    /// A placement keeps the last version of its facets only (docs/tally.md, "The history").
    HistoryIsCutToOne,
    /// A placement keeps the last two versions of its facets only (docs/tally.md, "The history").
    HistoryIsCutToTwo,
    /// A placement keeps its current facets and those of the committed position, but nothing between (docs/tally.md, "The history").
    HistoryIsOneBase,
    /// In place although the facets changed within the fold, and back (docs/tally.md, "In place").
    InPlaceDespiteFacets,
    /// What was done in place puts no edges, also where the fold holds the record that the placement was written for: without
    /// [`Sabotage::InPlaceOverItsOwnRecord`] others have put them (docs/tally.md, "Edges").
    InPlaceHasNoEdges,
    /// Where something is counted, a fold that is refused without having moved its document leaves the placement as it is
    /// (docs/tally.md, "Refused documents").
    RefusedInPlaceIsNotRecorded,
}

/// Whether this rule is not kept. Never, in a normal build.
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

    /// Whether this rule is not kept.
    pub fn is(sabotage: Sabotage) -> bool {
        OF_THE_THREAD.get().or_else(|| OF_THE_PROCESS.get().copied()) == Some(sabotage)
    }

    /// From now on, in this process. The first choice stays.
    pub fn choose(sabotage: Sabotage) {
        // A second choice is ignored, as announced.
        let _ = OF_THE_PROCESS.set(sabotage);
    }

    /// While `work` runs, on this thread; also if it panics, it is over afterwards.
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

/// What `geofold demo` finds for certain.
#[cfg(feature = "sabotage")]
pub const FOUND_BY_THE_DEMO: [Sabotage; 8] = [
    Sabotage::DeleteBeforeSeen,
    Sabotage::DeleteFirst,
    Sabotage::NoWriteAhead,
    Sabotage::DeleteWithoutVersion,
    Sabotage::CommitAboveFailed,
    Sabotage::ForgetOnFailure,
    Sabotage::SkipRetry,
    Sabotage::LoseAFold,
];
