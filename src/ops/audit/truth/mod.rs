//! Compares stored documents with the source of truth, one by one (`geofold audit --source`).
//!
//! The source and the index are never read at one moment, and the index follows the source by way of the topic. So what
//! differs is only a suspect; it is judged once all is committed that was in the topic when the comparing ended, and only if
//! it then looks the same at two looks, `settle` apart.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

use super::sweep::OffsetLog;
use super::{AuditError, MOST_LOOKS, Touches, wait};
use crate::base::figures::count;
use crate::base::ids::DocId;
use crate::base::progress::{Progress, Tell};
use crate::base::retry::RetryPolicy;
use crate::core::decode::LocationPath;
use crate::core::placement::Placement;
use crate::io::elastic::scan::{self, IndexScan, ScanOptions, draw};
use crate::io::elastic::slices::{SliceSize, mget_in_slices};
use crate::io::elastic::{Elastic, Get, GetAnswer, Index};
use crate::worker::refeed::{DocumentSource, FetchAnswer};

/// Documents per fetch and read: each may have `documents.max_bytes`, and is held twice.
const AT_ONCE: usize = 100;
/// Assumed size of a request's first documents; later the sizes seen.
const USUAL_BYTES: usize = 256 << 10;
/// Placements per page of a scan; only the geoshard is requested.
const PAGE: usize = 5_000;
/// Maximum suspects: an index with more differences needs a campaign, not a list.
const MOST_SUSPECTS: usize = 100_000;
/// So often a fetch that failed is tried again before the comparing is given up.
const MOST_TRIES: u32 = 6;

/// The source of truth.
pub trait Truth: Send + Sync {
    /// Its answer for each id, in order.
    fn fetch<'a>(&'a self, ids: &'a [DocId]) -> BoxFuture<'a, Vec<FetchAnswer>>;
}

impl Truth for DocumentSource {
    fn fetch<'a>(&'a self, ids: &'a [DocId]) -> BoxFuture<'a, Vec<FetchAnswer>> {
        DocumentSource::fetch(self, ids).boxed()
    }
}

/// How a document and its source disagree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceDifference {
    /// The source has it, and it is nowhere in the index.
    Missing,
    /// Both have it, with other content.
    Different,
    /// The source does not have it, and the index has.
    Extra,
    /// The source has something that can be no document.
    Unusable,
}

impl SourceDifference {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Different => "different",
            Self::Extra => "extra",
            Self::Unusable => "unusable",
        }
    }

    fn explained(self) -> &'static str {
        match self {
            Self::Missing => "missing: the source has it, the index has not",
            Self::Different => "different: the source says something else",
            Self::Extra => "extra: the index has it, the source has not",
            Self::Unusable => "unusable: what the source has can be no document",
        }
    }
}

/// A document that differs from its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Differs {
    /// Its id.
    #[serde(serialize_with = "super::as_text")]
    pub id: DocId,
    /// How.
    pub difference: SourceDifference,
}

impl fmt::Display for Differs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}", self.difference.name(), self.id)
    }
}

/// Result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// Documents compared.
    pub documents: u64,
    /// Those that differ.
    pub wrong: u64,
    /// How.
    pub differences: BTreeMap<SourceDifference, u64>,
    /// Suspects that changed with each read.
    pub unsettled: u64,
    /// Refeeds requested.
    pub refed: u64,
    /// There were more suspects than the limit: the result is partial.
    pub too_many: bool,
}

impl Compared {
    /// Whether all documents equal their source.
    pub fn is_clean(&self) -> bool {
        self.wrong == 0 && self.unsettled == 0 && !self.too_many
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} documents compared with their source: ", self.documents)?;
        if self.wrong == 0 {
            f.write_str("none differs")?;
        } else {
            write!(f, "{} differ", self.wrong)?;
        }
        for (difference, count) in &self.differences {
            write!(f, "\n  {count:>8}  {}", difference.explained())?;
        }
        if self.unsettled > 0 {
            write!(f, "\n  {:>8}  in motion at every look: compare again", self.unsettled)?;
        }
        if self.refed > 0 {
            write!(
                f,
                "\n{} are fetched again by the workers; compare again once they have no lag",
                self.refed
            )?;
        }
        if self.too_many {
            write!(
                f,
                "\nmore than {MOST_SUSPECTS} looked different, and the rest was not compared: refeed all of them by a \
                 campaign (docs/campaigns.md), or look whether the source is the right one"
            )?;
        }
        Ok(())
    }
}

/// Which documents are compared.
pub enum ComparedDocuments {
    /// All that have a placement, those that say deleted among them.
    All,
    /// A random sample of this size, with this seed.
    Sample(usize, u32),
    /// These ids, known to geofold or not.
    Ids(Vec<DocId>),
}

/// Compares. `geofold audit --source` is one of these.
pub struct Comparing<'a> {
    /// The search server.
    pub elastic: &'a dyn Elastic,
    /// Start of every index name.
    pub prefix: &'a str,
    /// How it should be.
    pub truth: &'a dyn Truth,
    /// Where a document's location is: the index has the field that geofold adds, and the source has not.
    pub location: &'a LocationPath,
    /// How far the topic is.
    pub log: &'a dyn OffsetLog,
    /// Where refeeds go, if differences are to be mended.
    pub mend: Option<&'a dyn Touches>,
    /// Time between two reads.
    pub settle: Duration,
    /// How long one request may take.
    pub timeout: Duration,
    /// Waits between tries of a fetch.
    pub retry: RetryPolicy,
}

/// A difference as last seen, to detect changes.
type Looked = (SourceDifference, u64);

impl Comparing<'_> {
    /// Compares; gives each difference to `found` once it is sure. `tell` receives progress.
    ///
    /// # Errors
    /// If the search server, the topic or the source give no answer.
    pub async fn run(
        &self,
        which: ComparedDocuments,
        tell: Tell<'_>,
        mut found: impl FnMut(&Differs) -> Result<(), AuditError>,
    ) -> Result<Compared, AuditError> {
        let mut report = Compared::default();
        let mut suspects = self.first_look(which, &mut report, tell).await?;
        if !suspects.is_empty() {
            let number = count(suspects.len() as u64);
            let line = format!("{number} documents look different; waiting for what is in the topic");
            tell(Progress::Happened(&line));
            self.until_done(tell).await?;
            // What they looked like before that says nothing about what is left now.
            suspects = self.look_at_all(suspects.into_iter().map(|(id, _)| id).collect()).await?;
        }
        for _ in 1..MOST_LOOKS {
            if suspects.is_empty() {
                break;
            }
            let number = count(suspects.len() as u64);
            let line = format!("{number} documents differ; looking again in {:?}", self.settle);
            tell(Progress::Happened(&line));
            wait(self.settle, "the next look at them", tell).await;
            let before: BTreeMap<DocId, Looked> = suspects.into_iter().collect();
            let now = self.look_at_all(before.keys().cloned().collect()).await?;
            let (sure, moving): (Vec<_>, Vec<_>) =
                now.into_iter().partition(|(id, looked)| before.get(id) == Some(looked));
            self.settle_on(sure, &mut report, &mut found).await?;
            suspects = moving;
        }
        report.unsettled = suspects.len() as u64;
        Ok(report)
    }

    async fn settle_on(
        &self,
        sure: Vec<(DocId, Looked)>,
        report: &mut Compared,
        found: &mut impl FnMut(&Differs) -> Result<(), AuditError>,
    ) -> Result<(), AuditError> {
        for (id, (difference, _)) in &sure {
            report.wrong += 1;
            *report.differences.entry(*difference).or_default() += 1;
            found(&Differs { id: id.clone(), difference: *difference })?;
        }
        let Some(mend) = self.mend else { return Ok(()) };
        // A refeed of what can be no document would end as a dead letter.
        let ids: Vec<DocId> = sure
            .into_iter()
            .filter(|(_, (difference, _))| *difference != SourceDifference::Unusable)
            .map(|(id, _)| id)
            .collect();
        for chunk in ids.chunks(AT_ONCE) {
            mend.refeed(chunk.to_vec()).await?;
            report.refed += chunk.len() as u64;
        }
        Ok(())
    }

    async fn first_look(
        &self,
        which: ComparedDocuments,
        report: &mut Compared,
        tell: Tell<'_>,
    ) -> Result<Vec<(DocId, Looked)>, AuditError> {
        let placements = [Index::Placements.name(self.prefix)];
        match which {
            ComparedDocuments::Ids(ids) => {
                report.documents = ids.len() as u64;
                self.look_at_all(ids).await
            }
            ComparedDocuments::Sample(size, seed) => {
                self.refresh().await?;
                let drawn = draw(self.elastic, &placements, size, seed, self.timeout).await?;
                report.documents = drawn.ids.len() as u64;
                self.look_at_all(drawn.ids).await
            }
            ComparedDocuments::All => {
                self.refresh().await?;
                let options = ScanOptions {
                    page: PAGE,
                    timeout: self.timeout,
                    fields: vec!["shard".to_owned()],
                    query: None,
                };
                // Only for the time left.
                let of = scan::count(self.elastic, &placements, None, self.timeout).await.ok();
                let mut scan = IndexScan::open(self.elastic, &placements, options).await?;
                let compared = |done| tell(Progress::Done { what: "documents compared", done, of });
                let suspects = self.scan(&mut scan, report, &compared).await;
                scan.close().await;
                suspects
            }
        }
    }

    async fn scan(
        &self,
        scan: &mut IndexScan<'_>,
        report: &mut Compared,
        compared: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<(DocId, Looked)>, AuditError> {
        let mut suspects = Vec::new();
        loop {
            let page = scan.next().await?;
            if page.is_empty() {
                return Ok(suspects);
            }
            report.documents += page.len() as u64;
            suspects.extend(self.look_at_all(page.into_iter().map(|hit| hit.id).collect()).await?);
            compared(report.documents);
            if suspects.len() > MOST_SUSPECTS {
                suspects.truncate(MOST_SUSPECTS);
                report.too_many = true;
                return Ok(suspects);
            }
        }
    }

    async fn refresh(&self) -> Result<(), AuditError> {
        let doing = "refresh the placements";
        let refreshed = self.elastic.refresh(&[Index::Placements], self.timeout).await;
        refreshed.map_err(|error| AuditError::Call { doing, error })
    }

    /// Waits until all is committed that is in the topic now.
    async fn until_done(&self, tell: Tell<'_>) -> Result<(), AuditError> {
        let ends = self.log.ends().await?;
        let mut waited = 0_u64;
        loop {
            let behind = self.log.behind(&ends).await?;
            if behind.is_empty() {
                return Ok(());
            }
            if waited.is_multiple_of(30) {
                tell(Progress::Happened(&format!(
                    "{} partitions have not committed what was in the topic; what differs may be in there (are workers running?)",
                    behind.len()
                )));
            }
            waited += 1;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Those of the documents that differ from their source now.
    async fn look_at_all(&self, ids: Vec<DocId>) -> Result<Vec<(DocId, Looked)>, AuditError> {
        let mut differ = Vec::new();
        for chunk in ids.chunks(AT_ONCE) {
            let answers = self.fetch(chunk).await?;
            let stored = self.stored(chunk).await?;
            for ((id, answer), stored) in chunk.iter().zip(&answers).zip(&stored) {
                if let Some(difference) = compare(answer, stored.as_deref(), self.location) {
                    let mut hasher = DefaultHasher::new();
                    match answer {
                        FetchAnswer::Found(document) => document.hash(&mut hasher),
                        FetchAnswer::Gone | FetchAnswer::Unusable { .. } | FetchAnswer::Failed(_) => {}
                    }
                    stored.hash(&mut hasher);
                    differ.push((id.clone(), (difference, hasher.finish())));
                }
            }
        }
        Ok(differ)
    }

    /// The source's answers; failures are retried.
    async fn fetch(&self, ids: &[DocId]) -> Result<Vec<FetchAnswer>, AuditError> {
        let mut answers = self.truth.fetch(ids).await;
        let mut delays = self.retry.delays();
        for tries in 1.. {
            let failed: Vec<usize> = (0..answers.len())
                .filter(|&place| matches!(answers[place], FetchAnswer::Failed(_)))
                .collect();
            let Some(&first) = failed.first() else { break };
            if tries == MOST_TRIES
                && let FetchAnswer::Failed(failure) = &answers[first]
            {
                return Err(AuditError::Source(failure.to_string()));
            }
            tokio::time::sleep(delays.next(None)).await;
            let again: Vec<DocId> = failed.iter().map(|&place| ids[place].clone()).collect();
            for (place, answer) in failed.into_iter().zip(self.truth.fetch(&again).await) {
                answers[place] = answer;
            }
        }
        Ok(answers)
    }

    /// The stored documents, read at their placements.
    async fn stored(&self, ids: &[DocId]) -> Result<Vec<Option<bytes::Bytes>>, AuditError> {
        let get = |id: &DocId| Get::realtime(Index::Placements, id.clone());
        let placements = self.read(&ids.iter().map(get).collect::<Vec<_>>()).await?;
        let mut places = Vec::new();
        let mut gets = Vec::new();
        for (place, (id, answer)) in ids.iter().zip(placements).enumerate() {
            if let GetAnswer::Found(found) = answer
                && let Ok(Placement { shard: Some(shard), .. }) = Placement::from_json(&found.source)
            {
                places.push(place);
                gets.push(Get::realtime(Index::Geoshard(shard), id.clone()));
            }
        }
        let mut stored = vec![None; ids.len()];
        for (place, answer) in places.into_iter().zip(self.read(&gets).await?) {
            if let GetAnswer::Found(found) = answer {
                stored[place] = Some(found.source);
            }
        }
        Ok(stored)
    }

    async fn read(&self, gets: &[Get]) -> Result<Vec<GetAnswer>, AuditError> {
        let doing = "read documents to compare";
        if gets.is_empty() {
            return Ok(Vec::new());
        }
        let mut answers = Vec::with_capacity(gets.len());
        let mut size = SliceSize::new(AT_ONCE, USUAL_BYTES);
        mget_in_slices(self.elastic, gets, self.timeout, &mut size, |_, answer| answers.push(answer))
            .await
            .map_err(|error| AuditError::Call { doing, error })?;
        for answer in &answers {
            if let GetAnswer::Failed(error) = answer {
                return Err(AuditError::Item { doing, reason: error.to_string() });
            }
        }
        Ok(answers)
    }
}

/// The difference between source and index; `None` if they agree.
fn compare(answer: &FetchAnswer, stored: Option<&[u8]>, location: &LocationPath) -> Option<SourceDifference> {
    match (answer, stored) {
        // Failures are retried or given up before.
        (FetchAnswer::Failed(_), _) | (FetchAnswer::Gone, None) => None,
        (FetchAnswer::Gone, Some(_)) => Some(SourceDifference::Extra),
        (FetchAnswer::Unusable { .. }, _) => Some(SourceDifference::Unusable),
        (FetchAnswer::Found(document), stored) => {
            let Ok(wanted) = serde_json::from_slice::<Value>(&location.completed(document.clone())) else {
                return Some(SourceDifference::Unusable);
            };
            let Some(stored) = stored else { return Some(SourceDifference::Missing) };
            let is_same =
                serde_json::from_slice::<Value>(stored).is_ok_and(|stored| is_same(&wanted, &stored));
            (!is_same).then_some(SourceDifference::Different)
        }
    }
}

/// Whether two documents say the same: members in any order, numbers by their value (a database may print `1.0` as `1`).
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || (a.is_f64() || b.is_f64()) && a.as_f64() == b.as_f64()
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_same(a, b)))
        }
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests;
