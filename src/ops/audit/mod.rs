//! Compares all placements with all copies while writes continue, and reports defects (`geofold audit`).
//!
//! Everything is scanned as searches see it and brought together by id; what looks wrong is then read realtime, again and
//! again: a defect is only what looks exactly the same at two looks, `settle` apart. What is in motion is not wrong.
//! Nothing here has an opinion about what a document should say: that only the topic and the source of truth know.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the course of an audit; its report. What can be wrong with one document is `core/defect.rs` |
//! | `gather.rs` | scans, sorts, and brings documents together |
//! | `sample.rs` | looks at documents drawn at random instead; how sure that makes |
//! | `sort.rs` | sorting in bounded memory |
//! | `look.rs` | realtime reads of suspects |
//! | `owed.rs` | documents that a worker is not done with: their record is not committed |
//! | `mend.rs` | what can be done about a defect without guessing |
//! | `sweep.rs` | removes placements of deleted documents when they are old |
//! | `truth/` | compares with the source of truth, document by document |
//! | `touches.rs` | the way into the topic for all of them |
//! | `periodic.rs` | the audit that a worker runs by itself |

mod gather;
mod look;
mod mend;
mod owed;
pub mod periodic;
mod sample;
pub(crate) mod sort;
pub mod sweep;
pub(crate) mod touches;
pub mod truth;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

pub use crate::core::defect::{Defect, Fit, Observation, ObservedCopy, ObservedPlacement, judge};
pub use gather::{SeenPage, Sightings, Suspect};
pub use mend::{RepairOutcome, RepairTarget, Repairer, Touches};
pub use sample::{SampleResult, Sampled, at_most};
use serde::{Serialize, Serializer};
use thiserror::Error;
use tokio::sync::watch;

use crate::base::figures::count;
use crate::base::ids::DocId;
use crate::base::position::Epoch;
use crate::base::progress::{Progress, Tell};
use crate::core::decode::LocationPath;
use crate::geoshard::LiveMaps;
use crate::io::elastic::scan::ScanError;
use crate::io::elastic::{CallError, Elastic};
use crate::io::indices::IndicesError;
use crate::io::stored::RecordError;
use look::CandidateFile;

/// Maximum reads of a document that changes with each read.
const MOST_LOOKS: u32 = 6;

/// Dependencies of an audit.
pub struct Audit<'a> {
    /// The search server.
    pub elastic: &'a dyn Elastic,
    /// Start of every index name.
    pub prefix: &'a str,
    /// The topic of documents.
    pub topic: &'a str,
    /// Which map is in force, or which two.
    pub maps: &'a LiveMaps,
    /// Where a document's location is.
    pub location: &'a LocationPath,
    /// The configured epoch: later ones refuse every write.
    pub epoch: Epoch,
    /// Options.
    pub options: AuditOptions,
}

/// Options of an audit.
#[derive(Debug, Clone)]
pub struct AuditOptions {
    /// Indices scanned concurrently.
    pub scans: usize,
    /// Bytes of memory for sorting.
    pub memory: usize,
    /// Where temporary files go: about 60 bytes for each placement and each copy.
    pub folder: PathBuf,
    /// Time between two reads of a suspect.
    pub settle: Duration,
    /// How long one request may take.
    pub timeout: Duration,
    /// Maximum copies and placements read per second.
    pub rate: Option<watch::Receiver<NonZeroU32>>,
    /// Sweep placements of deleted documents whose last write has a lower `_seq_no` (`sweep.rs`).
    pub sweep_below: Option<u64>,
}

/// A document with which something is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditFinding {
    /// Its id.
    #[serde(serialize_with = "as_text")]
    pub id: DocId,
    /// Defects; never empty.
    pub defects: Vec<Defect>,
    /// The stored state.
    #[serde(serialize_with = "as_text")]
    pub stored: Observation,
}

fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl fmt::Display for AuditFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.defects.iter().map(|defect| defect.name()).collect();
        write!(f, "{}  {}  {}", names.join(","), self.id, self.stored)
    }
}

/// Counts of what was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Documents with a copy, at least.
    pub documents: u64,
    /// Copies.
    pub copies: u64,
    /// Placements, those of deleted documents among them.
    pub placements: u64,
}

/// Result of an audit.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct AuditReport {
    /// Counts of what was read.
    #[serde(flatten)]
    pub totals: Totals,
    /// How many documents have each defect.
    pub defects: BTreeMap<Defect, u64>,
    /// Documents with a defect.
    pub wrong: u64,
    /// Suspects that changed with each read, or whose last record is not committed.
    pub unsettled: u64,
    /// If placements of deleted documents were swept: how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swept: Option<u64>,
    /// For a sample: its size, and the bound for the whole index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sampled>,
}

impl AuditReport {
    /// Nothing is wrong, and everything could be judged.
    pub fn is_clean(&self) -> bool {
        self.wrong == 0 && self.unsettled == 0
    }
}

impl fmt::Display for AuditReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { documents, copies, placements } = self.totals;
        let [documents, copies, placements] = [documents, copies, placements].map(count);
        write!(f, "{documents} documents in {copies} copies, {placements} placements: ")?;
        match (self.wrong, self.unsettled) {
            (0, 0) if self.sample.is_some() => f.write_str("none of them is wrong")?,
            (0, 0) => f.write_str("nothing is wrong")?,
            (0, _) => f.write_str("nothing is known to be wrong, but not everything could be judged")?,
            (wrong, _) => write!(f, "{} documents are wrong", count(wrong))?,
        }
        for (defect, documents) in &self.defects {
            write!(f, "\n  {:>10}  {defect}", count(*documents))?;
        }
        if self.unsettled > 0 {
            write!(
                f,
                "\n  {:>10}  in motion or not committed at every look: run the audit again",
                count(self.unsettled)
            )?;
        }
        if let Some(swept) = self.swept {
            write!(f, "\n{} placements of deleted documents were removed", count(swept))?;
        }
        if let Some(sample) = &self.sample {
            write!(f, "\n{sample}")?;
        }
        Ok(())
    }
}

/// The audit could not be ended.
#[derive(Debug, Error)]
pub enum AuditError {
    /// A request brought nothing.
    #[error("cannot {doing}: {error}")]
    Call {
        /// The operation.
        doing: &'static str,
        /// Why not.
        error: CallError,
    },
    /// An item was not answered.
    #[error("cannot {doing}: {reason}")]
    Item {
        /// The operation.
        doing: &'static str,
        /// In the server's words.
        reason: String,
    },
    /// What the meta index remembers of audits cannot be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The indices cannot be listed.
    #[error(transparent)]
    Indices(#[from] IndicesError),
    /// A scan broke off.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// Temporary files cannot be written: no space or no permission.
    #[error(
        "cannot use temporary files in {folder}: {error}; about 60 bytes are needed for each placement and each copy; \
         another folder is taken with --temp-dir"
    )]
    Temporary {
        /// Where.
        folder: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Kafka could not be queried.
    #[error("could not read the topic's end offsets: {0}")]
    Log(String),
    /// Touches did not get into the topic.
    #[error("could not produce touches: {0}")]
    Touch(String),
    /// The source of truth could not be queried.
    #[error("the source of truth gives no answer: {0}; `geofold check` asks it, too")]
    Source(String),
    /// A finding could not be written down.
    #[error("cannot write a finding to the file given with --out: {0}")]
    Out(String),
}

/// Waits, and says how long it still takes.
async fn wait(time: Duration, for_what: &str, tell: Tell<'_>) {
    let mut left = time;
    while !left.is_zero() {
        tell(Progress::Wait { for_what, left });
        let step = left.min(Duration::from_secs(1));
        tokio::time::sleep(step).await;
        left -= step;
    }
}

impl Audit<'_> {
    /// Reads everything; passes confirmed findings to `found`, some hundred at a time. `tell` receives progress.
    pub async fn run(
        &self,
        tell: Tell<'_>,
        found: impl AsyncFnMut(Vec<AuditFinding>) -> Result<(), AuditError>,
    ) -> Result<AuditReport, AuditError> {
        let mut spool = self.spool()?;
        tell(Progress::Happened("reading all placements and all geoshards"));
        let mut swept = self.options.sweep_below.map(|_| 0);
        let totals = self
            .gather(tell, async |suspects| {
                let (graves, suspects): (Vec<_>, Vec<_>) = suspects.into_iter().partition(|one| one.is_grave);
                if let (Some(below), Some(swept)) = (self.options.sweep_below, &mut swept) {
                    *swept += self.sweep(&graves, below).await?;
                }
                self.look_first(&suspects, &mut spool).await.map(drop)
            })
            .await?;
        self.look_again(AuditReport { totals, swept, ..AuditReport::default() }, spool, tell, found).await
    }

    fn spool(&self) -> Result<CandidateFile, AuditError> {
        CandidateFile::new(&self.options.folder).map_err(|error| self.no_room(error))
    }

    /// Reads suspects in realtime; keeps those that still look wrong, with the observation.
    async fn look_first(
        &self,
        suspects: &[Suspect],
        spool: &mut CandidateFile,
    ) -> Result<Vec<Observation>, AuditError> {
        let sights = self.look(suspects).await?;
        for (suspect, sight) in suspects.iter().zip(&sights) {
            if !judge(sight, self.epoch).is_empty() {
                spool.push(suspect, sight).map_err(|error| self.no_room(error))?;
            }
        }
        Ok(sights)
    }

    /// Repeats the reads until each suspect is decided or was read often enough.
    async fn look_again(
        &self,
        mut report: AuditReport,
        mut spool: CandidateFile,
        tell: Tell<'_>,
        mut found: impl AsyncFnMut(Vec<AuditFinding>) -> Result<(), AuditError>,
    ) -> Result<AuditReport, AuditError> {
        for _ in 1..MOST_LOOKS {
            if spool.len() == 0 {
                break;
            }
            let settle = self.options.settle;
            let all = spool.len();
            tell(Progress::Happened(&format!(
                "{} documents look wrong; looking again in {settle:?}",
                count(all)
            )));
            wait(settle, "the next look at them", tell).await;
            let (mut next, mut looked_at) = (self.spool()?, 0);
            for chunk in spool.read().map_err(|error| self.no_room(error))? {
                let chunk = chunk.map_err(|error| self.no_room(error))?;
                let committed = self.committed(chunk.iter().filter_map(|looked| looked.partition)).await?;
                let (suspects, before): (Vec<_>, Vec<_>) =
                    chunk.into_iter().map(|looked| (looked.suspect, looked.fingerprint)).unzip();
                let sights = self.look(&suspects).await?;
                looked_at += suspects.len() as u64;
                tell(Progress::Done { what: "documents looked at again", done: looked_at, of: Some(all) });
                let mut sure = Vec::new();
                for ((suspect, before), sight) in suspects.into_iter().zip(before).zip(sights) {
                    let mut defects = judge(&sight, self.epoch);
                    if defects.is_empty() {
                        continue;
                    }
                    let is_same = sight.fingerprint() == before;
                    if owed::is_owed(&sight, &committed) {
                        defects.retain(|defect| !defect.ends_with_its_record());
                    }
                    if !is_same || defects.is_empty() {
                        next.push(&suspect, &sight).map_err(|error| self.no_room(error))?;
                        continue;
                    }
                    report.wrong += 1;
                    for defect in &defects {
                        *report.defects.entry(*defect).or_default() += 1;
                    }
                    sure.push(AuditFinding { id: suspect.id, defects, stored: sight });
                }
                if !sure.is_empty() {
                    found(sure).await?;
                }
            }
            spool = next;
        }
        report.unsettled = spool.len();
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_counted_down_and_takes_no_longer() {
        let said = Mutex::new(Vec::new());
        let began = tokio::time::Instant::now();
        let tell = |progress: Progress<'_>| said.lock().unwrap().push(progress.line(Duration::ZERO));
        wait(Duration::from_millis(2_400), "tea", &tell).await;
        assert_eq!(began.elapsed(), Duration::from_millis(2_400));
        let left = ["2 s", "1 s", "0 s"].map(|left| format!("waiting for tea: {left} left"));
        assert_eq!(*said.lock().unwrap(), left);
    }

    #[test]
    fn report_says_that_nothing_is_wrong_only_if_all_was_judged() {
        let looked = SampleResult { of: 9, looked_at: 3, wrong: 0, at_most: 0.5 };
        let sample = Some(Sampled { copies: looked, placements: looked });
        for (wrong, unsettled, sample, expected) in [
            (0, 0, None, ": nothing is wrong"),
            (0, 0, sample, ": none of them is wrong"),
            (2, 0, sample, ": 2 documents are wrong"),
            (2, 1, None, ": 2 documents are wrong"),
            (0, 1, None, ": nothing is known to be wrong, but not everything could be judged"),
        ] {
            let said = AuditReport { wrong, unsettled, sample, ..AuditReport::default() }.to_string();
            assert!(said.contains(expected), "{said}");
        }
    }
}
