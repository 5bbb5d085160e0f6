//! Bounds and conditions of an exploration.

use geofold::base::sabotage::Sabotage;
use geofold::core::mover::{MAX_VERSIONS, OnMissing};

use super::record::{Maps, Record};

/// Bounds and conditions of one exploration.
#[derive(Debug, Clone)]
pub struct Setting {
    pub script: Vec<Record>,
    /// Number of workers.
    pub workers: u8,
    /// How many calls may be executed without an answer, or after their sender has given up.
    pub losses: u8,
    /// How many batches may end at their deadline.
    pub deadlines: u8,
    /// Where two are live, each worker goes by one or the other.
    pub maps: Maps,
    /// Bits: the records that compaction takes before the second worker reads.
    pub compacted: u8,
    pub on_missing: OnMissing,
    /// Every call may be sent again, any number of times.
    pub resends: bool,
    /// Workers create placements of whole documents without reading them before.
    pub expects_new: bool,
    /// Whether documents are counted.
    pub tally: bool,
    /// Versions of a document's facets before an entry waits for a commit.
    pub max_versions: usize,
    /// The placement of a deleted document may be swept.
    pub sweeps: bool,
    /// Tombstones are forgotten once no zombie can act (`gc_deletes`), however far behind the owner is.
    pub forgets: bool,
    /// Batch deadlines pass after the takeover. A batch ends within one, a zombie begins none after one, since its
    /// claim is lost, and a tombstone is forgotten after two.
    pub timed: bool,
    pub searches: Searches,
    /// Indices are copied, and replaced by these copies before the last worker begins.
    pub restores: bool,
    pub weakening: Weakening,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            script: Vec::new(),
            workers: 2,
            losses: 0,
            deadlines: 0,
            maps: Maps::One,
            compacted: 0,
            on_missing: OnMissing::DeadLetter,
            resends: false,
            expects_new: false,
            tally: false,
            max_versions: MAX_VERSIONS,
            sweeps: false,
            forgets: false,
            timed: false,
            searches: Searches::Served,
            restores: false,
            weakening: Weakening::None,
        }
    }
}

/// The guarantee for searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Searches {
    /// None: old copies are deleted at once.
    NotServed,
    /// Old copies stay until searches find the new one, whenever that is.
    Served,
    /// As `Served`, with one search that visits the geoshards in any order, at any times. Elasticsearch refreshes at
    /// any time. Not for documents that are deleted.
    Looking,
}

/// A disabled rule of the code or of its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weakening {
    None,
    /// See `src/base/sabotage.rs`.
    Code(Sabotage),
    /// The third worker is the first one with its cache.
    CacheIsKept,
    /// A worker begins where its predecessor has read to, while that is still working.
    TwoEntriesAtOnce,
    /// Tombstones are forgotten while requests live.
    TombstonesAreForgotten,
    /// The owner keeps what it cached while zombies could act.
    CacheOutlivesZombies,
    /// The owner empties its cache when zombies no longer act, but not before.
    CacheIsEmptiedOnce,
    /// A worker that has lost its claim begins batches all the same.
    LostClaimsAreUsed,
    /// Clears are never sent: harmless.
    ClearsAreLost,
    /// Two maps are live, and workers that know only one write in place.
    OneMapIsKnown,
    /// Compaction removes records while a zombie acts on them, and the owner writes in place.
    InPlaceDespiteCompaction,
    /// Histories are cut at the watermark before it is committed.
    HistoryIsCutUncommitted,
    /// Offsets are committed before their increment is acknowledged.
    CommitsBeforeIncrements,
    /// The collector counts every edge it receives.
    NothingIsRecognised,
    /// The collector skips an increment without news, but no edges of another.
    WholeIncrementsAreRecognised,
    /// Old copies are deleted as soon as searches find the new ones, without the grace for running searches.
    NoGrace,
    /// The sweep removes a placement without comparing.
    SweepsWithoutComparing,
    /// The sweep does not wait until no worker acts on the state before the delete.
    SweepsTooEarly,
    /// The sweep does not check that the delete stayed committed all the time.
    SweepsUncommitted,
    /// Workers write while indices are copied.
    WritesGoOnDuringTheBackup,
    /// The group goes on from what it has committed since.
    OffsetsAreNotSetBack,
    /// Workers and requests live on while indices are replaced.
    RestoresTooEarly,
}
