//! Compares all placements with all copies, while writes go on, and says what is wrong (`geofold audit`).
//!
//! Everything is scanned as searches see it and brought together by id; what looks wrong is then read realtime, again and
//! again: a defect is only what looks exactly the same at two looks, `settle` apart. What is in motion is not wrong.
//! Nothing here has an opinion about what a document should say: that only the topic and the source of truth know.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the course of an audit; its report |
//! | `defect.rs` | what can be wrong with one document, pure |
//! | `gather.rs` | scans, sorts, and brings documents together |
//! | `sort.rs` | sorting in bounded memory |
//! | `look.rs` | realtime reads of suspects |
//! | `mend.rs` | what can be done about a defect without guessing |

mod defect;
mod gather;
mod look;
mod mend;
pub(crate) mod sort;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use defect::{Copy, Defect, Fit, Placed, Sight, judge};
pub use mend::{Mended, Mender, Touches};
use serde::{Serialize, Serializer};
use thiserror::Error;

use crate::decode::LocationPath;
use crate::elastic::scan::ScanError;
use crate::elastic::{CallError, Elastic};
use crate::geoshard::LiveMaps;
use crate::ids::DocId;
use crate::indices::IndicesError;
use crate::position::Epoch;
use look::Spool;

/// So often a document is looked at that never looks the same twice.
const MOST_LOOKS: u32 = 6;

/// What an audit stands on.
pub struct Audit<'a> {
    /// The search server.
    pub elastic: &'a dyn Elastic,
    /// Start of every index name.
    pub prefix: &'a str,
    /// Which map is in force, or which two.
    pub maps: &'a LiveMaps,
    /// Where a document's location is.
    pub location: &'a LocationPath,
    /// The configured epoch: later ones refuse every write.
    pub epoch: Epoch,
    /// How it goes about it.
    pub options: Options,
}

/// How an audit goes about it.
#[derive(Debug, Clone)]
pub struct Options {
    /// Indices that are scanned side by side.
    pub scans: usize,
    /// Bytes of memory for sorting.
    pub memory: usize,
    /// Where temporary files go: about 60 bytes for each placement and each copy.
    pub folder: PathBuf,
    /// Time between two looks at a document that seems wrong.
    pub settle: Duration,
    /// How long one request may take.
    pub timeout: Duration,
}

/// A document with which something is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its id.
    #[serde(serialize_with = "as_text")]
    pub id: DocId,
    /// What is wrong; never empty.
    pub defects: Vec<Defect>,
    /// What is stored of it.
    #[serde(serialize_with = "as_text")]
    pub stored: Sight,
}

fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.defects.iter().map(|defect| defect.name()).collect();
        write!(f, "{}  {}  {}", names.join(","), self.id, self.stored)
    }
}

/// What was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Documents with a copy, at least.
    pub documents: u64,
    /// Copies.
    pub copies: u64,
    /// Placements, those of deleted documents among them.
    pub placements: u64,
}

/// What an audit found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What was read.
    #[serde(flatten)]
    pub totals: Totals,
    /// How many documents have each defect.
    pub defects: BTreeMap<Defect, u64>,
    /// Documents with a defect.
    pub wrong: u64,
    /// Documents that looked wrong, and never twice in the same way: somebody writes them all the time.
    pub unsettled: u64,
}

impl Report {
    /// Nothing is wrong, and everything could be judged.
    pub fn is_clean(&self) -> bool {
        self.wrong == 0 && self.unsettled == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { documents, copies, placements } = self.totals;
        write!(f, "{documents} documents in {copies} copies, {placements} placements: ")?;
        if self.is_clean() {
            return f.write_str("nothing is wrong");
        }
        write!(f, "{} documents are wrong", self.wrong)?;
        for (defect, count) in &self.defects {
            write!(f, "\n  {count:>8}  {defect}")?;
        }
        if self.unsettled > 0 {
            write!(f, "\n  {:>8}  in motion at every look: run the audit again", self.unsettled)?;
        }
        Ok(())
    }
}

/// The audit could not be ended.
#[derive(Debug, Error)]
pub enum AuditError {
    /// A request brought nothing.
    #[error("can not {doing}: {error}")]
    Call {
        /// What was wanted.
        doing: &'static str,
        /// Why not.
        error: CallError,
    },
    /// An item was not answered.
    #[error("can not {doing}: {reason}")]
    Item {
        /// What was wanted.
        doing: &'static str,
        /// In the server's words.
        reason: String,
    },
    /// The indices can not be listed.
    #[error(transparent)]
    Indices(#[from] IndicesError),
    /// A scan broke off.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// No room, or no right to write.
    #[error(
        "can not use temporary files in {folder}: {error}; it takes about 60 bytes for each placement and each copy; \
         another folder is taken with --temp-dir"
    )]
    Temporary {
        /// Where.
        folder: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Touches did not get into the topic.
    #[error("can not ask for documents to be placed again: {0}")]
    Touch(String),
    /// A finding could not be written down.
    #[error("can not write a finding to the file given with --out: {0}")]
    Out(String),
}

impl Audit<'_> {
    /// Reads everything; gives each finding to `found`, some hundred at a time, once it is sure. `say` tells how far it is.
    pub async fn run(
        &self,
        say: &dyn Fn(&str),
        mut found: impl AsyncFnMut(Vec<Finding>) -> Result<(), AuditError>,
    ) -> Result<Report, AuditError> {
        let temporary = |error| AuditError::Temporary { folder: self.options.folder.clone(), error };
        let mut report = Report::default();
        let mut spool = Spool::new(&self.options.folder).map_err(temporary)?;
        say("reading all placements and all geoshards");
        report.totals = self
            .gather(async |suspects| {
                let sights = self.look(&suspects).await?;
                for (suspect, sight) in suspects.iter().zip(&sights) {
                    if !judge(sight, self.epoch).is_empty() {
                        spool.push(suspect, sight).map_err(temporary)?;
                    }
                }
                Ok(())
            })
            .await?;
        for _ in 1..MOST_LOOKS {
            if spool.len() == 0 {
                break;
            }
            let settle = self.options.settle;
            say(&format!("{} documents look wrong; looking again in {settle:?}", spool.len()));
            tokio::time::sleep(settle).await;
            let mut next = Spool::new(&self.options.folder).map_err(temporary)?;
            for chunk in spool.read().map_err(temporary)? {
                let chunk = chunk.map_err(temporary)?;
                let (suspects, before): (Vec<_>, Vec<_>) = chunk.into_iter().unzip();
                let sights = self.look(&suspects).await?;
                let mut sure = Vec::new();
                for ((suspect, before), sight) in suspects.into_iter().zip(before).zip(sights) {
                    let defects = judge(&sight, self.epoch);
                    if defects.is_empty() {
                        continue;
                    }
                    if sight.fingerprint() != before {
                        next.push(&suspect, &sight).map_err(temporary)?;
                        continue;
                    }
                    report.wrong += 1;
                    for defect in &defects {
                        *report.defects.entry(*defect).or_default() += 1;
                    }
                    sure.push(Finding { id: suspect.id, defects, stored: sight });
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
