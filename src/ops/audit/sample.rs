//! Checks a random sample of documents, each in every geoshard: cheap where a full scan is not. The result is an upper bound on
//! the share of defects, with its confidence.
//!
//! Copies and placements are drawn apart: a copy that no placement names is only met among copies, a placement without a
//! copy only among placements.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::gather::Suspect;
use super::{Audit, AuditError, AuditFinding, AuditReport, ObservedPlacement};
use crate::base::figures::count;
use crate::base::ids::DocId;
use crate::base::progress::{Progress, Tell};
use crate::io::elastic::Index;
use crate::io::elastic::scan::{Drawn, draw};

/// Confidence of the bound.
const CONFIDENCE: f64 = 0.95;

/// Documents per request; each is looked up in every geoshard.
const AT_ONCE: usize = 100;

/// A sample and the bound derived from it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sampled {
    /// Of the copies in all geoshards.
    pub copies: SampleResult,
    /// Of the placements.
    pub placements: SampleResult,
}

/// The sample of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SampleResult {
    /// How many there are to draw from.
    pub of: u64,
    /// How many documents were drawn.
    pub looked_at: u64,
    /// How many of those are wrong.
    pub wrong: u64,
    /// With 95 % confidence no greater share of all is wrong; from 0 to 1.
    pub at_most: f64,
}

impl SampleResult {
    fn new(drawn: &Drawn, ids: &BTreeSet<DocId>, wrong: &BTreeSet<DocId>) -> Self {
        let (looked_at, wrong) = (ids.len() as u64, ids.intersection(wrong).count() as u64);
        // One with several copies may be drawn with each of them.
        let is_all = drawn.ids.len() as u64 >= drawn.of;
        let of = if is_all { looked_at } else { drawn.of };
        Self { of: drawn.of, looked_at, wrong, at_most: at_most(looked_at, wrong, of) }
    }
}

impl fmt::Display for Sampled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { copies, placements } = self;
        for (n, (what, looked)) in [("copies", copies), ("placements", placements)].into_iter().enumerate() {
            let SampleResult { at_most, .. } = looked;
            let [of, looked_at, wrong] = [looked.of, looked.looked_at, looked.wrong].map(count);
            let line = if n == 0 { "" } else { "\n" };
            let percent = at_most * 100.0;
            write!(
                f,
                "{line}of {of} {what}, the documents of {looked_at} were drawn, {wrong} of them wrong: "
            )?;
            if looked.looked_at >= looked.of {
                write!(f, "that is all of them")?;
            } else {
                write!(
                    f,
                    "with 95 % confidence no more than {percent:.3} % of all {what} are of wrong documents"
                )?;
            }
        }
        Ok(())
    }
}

impl Audit<'_> {
    /// Like [`Audit::run`], for `size` random copies and `size` random placements, each document in every geoshard. At most
    /// [`crate::io::elastic::scan::MOST_DRAWN`]. `seed` selects the sample.
    pub async fn run_sample(
        &self,
        size: usize,
        seed: u32,
        tell: Tell<'_>,
        mut found: impl AsyncFnMut(Vec<AuditFinding>) -> Result<(), AuditError>,
    ) -> Result<AuditReport, AuditError> {
        let (shards, indices) = self.refreshed().await?;
        let names = |indices: &[Index]| -> Vec<String> {
            indices.iter().map(|index| index.name(self.prefix)).collect()
        };
        let (places, placements): (Vec<Index>, Vec<Index>) =
            indices.into_iter().partition(|index| matches!(index, Index::Geoshard(_)));
        let timeout = self.options.timeout;
        let copies = draw(self.elastic, &names(&places), size, seed, timeout).await?;
        let placements = draw(self.elastic, &names(&placements), size, seed, timeout).await?;
        let among_copies: BTreeSet<DocId> = copies.ids.iter().cloned().collect();
        let among_placements: BTreeSet<DocId> = placements.ids.iter().cloned().collect();
        let all: Vec<DocId> = among_copies.union(&among_placements).cloned().collect();
        let number = all.len() as u64;
        tell(Progress::Happened(&format!(
            "looking at {} documents, drawn at random, in each of {} geoshards",
            count(number),
            shards.len()
        )));

        let mut spool = self.spool()?;
        let mut report = AuditReport::default();
        let mut done = 0;
        for chunk in all.chunks(AT_ONCE) {
            let suspect = |id: &DocId| Suspect { id: id.clone(), seen_in: shards.clone(), is_grave: false };
            let suspects: Vec<Suspect> = chunk.iter().map(suspect).collect();
            for sight in self.look_first(&suspects, &mut spool).await? {
                report.totals.copies += sight.copies.len() as u64;
                report.totals.documents += u64::from(!sight.copies.is_empty());
                report.totals.placements += u64::from(sight.placed != ObservedPlacement::Nowhere);
            }
            done += chunk.len() as u64;
            tell(Progress::Done { what: "documents looked at", done, of: Some(number) });
        }
        let mut wrong = BTreeSet::new();
        let seen = async |findings: Vec<AuditFinding>| {
            wrong.extend(findings.iter().map(|finding| finding.id.clone()));
            found(findings).await
        };
        let mut report = self.look_again(report, spool, tell, seen).await?;
        report.sample = Some(Sampled {
            copies: SampleResult::new(&copies, &among_copies, &wrong),
            placements: SampleResult::new(&placements, &among_placements, &wrong),
        });
        Ok(report)
    }
}

/// Upper bound, with 95 % confidence, of the share of defects, if `wrong` of `looked_at` random samples of `of` are defective
/// (one-sided Clopper-Pearson bound). Exact if all were checked.
pub fn at_most(looked_at: u64, wrong: u64, of: u64) -> f64 {
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    if looked_at >= of {
        return share(wrong, looked_at);
    }
    if wrong >= looked_at {
        return 1.0;
    }
    // So few or fewer wrong ones, if each is wrong with probability `p`; falls as `p` rises.
    let likelihood = |p: f64| {
        let odds = (p / (1.0 - p)).ln();
        let mut term = looked_at as f64 * (1.0 - p).ln();
        let mut sum = term.exp();
        for n in 0..wrong {
            term += ((looked_at - n) as f64 / (n + 1) as f64).ln() + odds;
            sum += term.exp();
        }
        sum
    };
    let (mut low, mut high) = (share(wrong, looked_at), 1.0 - f64::EPSILON);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if likelihood(middle) > 1.0 - CONFIDENCE {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_bound_is_clopper_pearson() {
        // Nothing wrong among n: the rule of three, exactly 1 - 0.05^(1/n). The others from tables of Clopper and Pearson's.
        for (looked_at, wrong, expected) in [
            (1_000, 0, 0.002_991),
            (59, 0, 0.049_508),
            (100, 5, 0.102_253),
            (10, 1, 0.394_163),
            (10_000, 0, 0.000_299_5),
        ] {
            let bound = at_most(looked_at, wrong, u64::MAX);
            assert!((bound - expected).abs() < 0.000_01, "{wrong} of {looked_at}: {bound}");
        }
        assert_eq!(at_most(10, 10, 11), 1.0);
        assert_eq!(at_most(10, 2, 10), 0.2, "all of them were looked at");
        assert_eq!(at_most(0, 0, 0), 0.0);
        assert_eq!(at_most(0, 0, 5), 1.0, "nothing was looked at");
    }
}
