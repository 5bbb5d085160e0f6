//! Asks Elasticsearch how large the placements index is, and advises more primaries.

use std::time::Duration;

use super::CheckFinding;
use crate::base::figures::{bytes, count};
use crate::io::elastic::{AdminAnswer, AdminCall, Elastic, Index, Method};
use crate::io::indices::HOW_TO_SPLIT;

const ABOUT: &str = "placements";
/// Largest shard by Elasticsearch's advice, "Size your shards": "up to 200M documents, or with sizes between 10GB and 50GB".
const MOST_DOCUMENTS: u64 = 200_000_000;
/// The same in bytes; Elasticsearch's GB are GiB.
const MOST_BYTES: u64 = 50 << 30;

/// The size of the index, which has so many `primaries`; `None` if this user may not see it.
pub(super) async fn look(
    elastic: &dyn Elastic,
    prefix: &str,
    primaries: u16,
    timeout: Duration,
) -> Option<CheckFinding> {
    let name = Index::Placements.name(prefix);
    let path = format!("/{name}/_stats/docs,store");
    let call = AdminCall { method: Method::Get, path, body: None };
    let Ok(AdminAnswer { status: 200, body }) = elastic.admin(call, timeout).await else { return None };
    let all = &body["indices"][&name]["primaries"];
    let size = all["store"]["size_in_bytes"].as_u64().unwrap_or(0);
    Some(judge(all["docs"]["count"].as_u64()?, size, primaries))
}

fn judge(documents: u64, size: u64, primaries: u16) -> CheckFinding {
    let noun = if primaries == 1 { "primary" } else { "primaries" };
    let held = format!("{} placements, {}, in {primaries} {noun}", count(documents), bytes(size));
    let needed = documents.div_ceil(MOST_DOCUMENTS).max(size.div_ceil(MOST_BYTES));
    // An index can be split into twice as many, again and again.
    let mut advised = u64::from(primaries.max(1));
    while advised < needed {
        advised *= 2;
    }
    if advised == u64::from(primaries) {
        return CheckFinding::ok(ABOUT, held);
    }
    let most = [count(MOST_DOCUMENTS), bytes(MOST_BYTES)];
    CheckFinding::warning(
        ABOUT,
        format_args!(
            "{held}; Elasticsearch advises at most {} documents and {} in each: split the index into {advised} ({HOW_TO_SPLIT})",
            most[0], most[1]
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::CheckLevel;
    use super::*;
    use crate::io::elastic::scripted::Scripted;

    #[test]
    fn more_primaries_are_advised_by_documents_and_by_size() {
        for (documents, gibibytes, primaries, advised) in [
            (0, 0, 1, None),
            (200_000_000, 50, 1, None),
            (200_000_001, 10, 1, Some(2)),
            (1_000_000_000, 60, 1, Some(8)),
            (1_000_000_000, 60, 8, None),
            (1_000_000_000, 60, 3, Some(6)),
            (10_000_000, 51, 1, Some(2)),
            (10_000_000, 201, 4, Some(8)),
        ] {
            let finding = judge(documents, gibibytes << 30, primaries);
            let is_as_advised = match advised {
                None => finding.level == CheckLevel::Ok,
                Some(advised) => {
                    let what = format!("split the index into {advised} (docs/operations.md");
                    finding.level == CheckLevel::Warning && finding.message.contains(&what)
                }
            };
            assert!(is_as_advised, "{finding}");
        }
        assert_eq!(judge(1_234, 3 << 20, 1).message, "1,234 placements, 3.0 MiB, in 1 primary");
        let large = judge(450_000_000, 31 << 30, 2).message;
        let expected = "450,000,000 placements, 31.0 GiB, in 2 primaries; Elasticsearch advises at most 200,000,000 documents and \
                        50.0 GiB in each: split the index into 4 (docs/operations.md, \"More primaries for placements\")";
        assert_eq!(large, expected);
    }

    #[tokio::test]
    async fn user_who_may_not_see_the_size_gets_no_finding() {
        let answered = async |status: u16| {
            let of_primaries = json!({"primaries": {"docs": {"count": 7}, "store": {"size_in_bytes": 1024}}});
            let body = json!({"indices": {"p-placements": of_primaries}});
            let server =
                Scripted { admin: Box::new(move |_, _| (status, body.clone())), ..Default::default() };
            look(&server, "p", 4, Duration::ZERO).await.map(|finding| finding.message)
        };
        assert_eq!(answered(200).await.as_deref(), Some("7 placements, 1.0 KiB, in 4 primaries"));
        assert_eq!(answered(403).await, None);
    }
}
