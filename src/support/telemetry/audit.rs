//! Metrics of the worker's periodic audit; each worker shows its own last audit.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus::{Gauge, IntCounter, IntGauge, IntGaugeVec, Result};

use super::families::{Counters, Register};
use super::metrics::Success;
use crate::core::defect::Defect;

/// Results of this worker's last audit.
#[derive(Debug)]
pub struct AuditMetrics {
    /// Start of the last audit; seconds since 1970, 0 if none ran.
    pub begun: IntGauge,
    /// Audits that ended, by result.
    pub audits: Counters<Success>,
    /// Placements of deleted documents that were removed.
    pub swept: IntCounter,
    ended: IntGauge,
    seconds: Gauge,
    documents: IntGauge,
    defects: IntGaugeVec,
    unsettled: IntGauge,
}

impl AuditMetrics {
    pub(super) fn new(r: &mut Register) -> Result<Self> {
        let metrics = Self {
            begun: r.gauge(
                "geofold_audit_start_timestamp_seconds",
                "Start of this worker's last audit, Unix time; 0 if none.",
            )?,
            audits: r.counters("geofold_audits_total", "Audits by this worker, by result.", "result")?,
            swept: r
                .counter("geofold_audit_swept_total", "Placements of deleted documents removed by audits.")?,
            ended: r.gauge(
                "geofold_audit_end_timestamp_seconds",
                "End of this worker's last complete audit, Unix time; 0 if none.",
            )?,
            seconds: r.float_gauge("geofold_audit_seconds", "Duration of the last complete audit.")?,
            documents: r.gauge("geofold_audit_documents", "Documents read by the last complete audit.")?,
            defects: r.gauge_vec(
                "geofold_audit_defects",
                "Documents per defect in the last complete audit.",
                &["defect"],
            )?,
            unsettled: r
                .gauge("geofold_audit_unsettled", "Documents the last complete audit could not judge.")?,
        };
        for defect in Defect::ALL {
            metrics.defects.with_label_values(&[defect.name()]).set(0);
        }
        Ok(metrics)
    }

    /// An audit came to its end, at `now` in seconds since 1970.
    pub fn ended(&self, totals: AuditTotals<'_>, took: Duration, now: u64) {
        let level = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.ended.set(level(now));
        self.seconds.set(took.as_secs_f64());
        self.documents.set(level(totals.documents));
        self.unsettled.set(level(totals.unsettled));
        for defect in Defect::ALL {
            let found = totals.defects.get(&defect).copied().unwrap_or(0);
            self.defects.with_label_values(&[defect.name()]).set(level(found));
        }
        self.swept.inc_by(totals.swept);
        self.audits.of(Success::Ok).inc();
    }
}

/// Totals of an audit.
#[derive(Debug, Clone, Copy)]
pub struct AuditTotals<'a> {
    /// Documents that it read.
    pub documents: u64,
    /// Documents that it could not judge.
    pub unsettled: u64,
    /// Documents with each defect.
    pub defects: &'a BTreeMap<Defect, u64>,
    /// Placements that it removed.
    pub swept: u64,
}
