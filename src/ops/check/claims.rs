//! Checks by the partitions' claims which workers may still act, and with which deadlines (protocol, "Claims").

use std::time::Duration;

use super::{CheckFinding, CheckTarget};
use crate::io::claims::Claim;
use crate::io::elastic::Elastic;
use crate::io::maps::MapsStore;

const CLAIMS: &str = "claims";

/// Whether tombstones outlive every owner that may not yet know of its revocation.
pub(super) async fn look(target: &CheckTarget, elastic: &dyn Elastic, partitions: i32) -> CheckFinding {
    let store = MapsStore::new(elastic, &target.topic, target.timeout);
    match store.claims(partitions).await {
        Ok(claims) => judge(target, &claims),
        Err(error) => CheckFinding::unreachable(CLAIMS, error),
    }
}

fn judge(target: &CheckTarget, claims: &[Option<Claim>]) -> CheckFinding {
    let longest = claims.iter().flatten().max_by_key(|claim| claim.deadline_ms);
    let Some(longest) = longest else { return CheckFinding::ok(CLAIMS, "no partition was claimed yet") };
    let (deadline, gc_deletes) = (longest.deadline(), target.gc_deletes);
    if gc_deletes >= deadline.saturating_mul(2) {
        return CheckFinding::ok(
            CLAIMS,
            format_args!("no worker acts by a batch.timeout above {deadline:?}"),
        );
    }
    CheckFinding::error(
        CLAIMS,
        format_args!(
            "a worker with a batch.timeout of {deadline:?} may still act ({}), and elasticsearch.gc_deletes is {gc_deletes:?}: keep \
             it at {:?} or more until every partition is claimed by workers with the shorter deadline for twice the longer one",
            longest.owner,
            deadline.saturating_mul(2).max(Duration::from_secs(1)),
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::{CheckLevel, tests::target};
    use super::*;

    #[test]
    fn tombstones_must_last_twice_the_longest_deadline() {
        let claim = |deadline_ms| {
            Some(Claim {
                generation: 0,
                owner: "w".into(),
                deadline_ms,
                assignment: "1".into(),
                ended_ms: None,
            })
        };
        let target = CheckTarget { gc_deletes: Duration::from_secs(120), ..target() };
        let level = |claims: &[Option<Claim>]| judge(&target, claims).level;
        assert_eq!(level(&[None, None]), CheckLevel::Ok);
        assert_eq!(level(&[claim(60_000), None]), CheckLevel::Ok);
        assert_eq!(level(&[claim(60_000), claim(60_001)]), CheckLevel::Error);
        let found = judge(&target, &[claim(300_000)]);
        assert!(found.message.contains("keep it at 600s or more"), "{found}");
    }
}
