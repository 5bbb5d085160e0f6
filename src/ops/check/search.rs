//! Checks Elasticsearch: connection, version, indices and privileges.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::Map;

use super::{CheckFinding, CheckTarget};
use crate::base::ids::DocId;
use crate::base::position::Position;
use crate::io::elastic::{
    AdminAnswer, AdminCall, BulkAnswer, BulkOp, CallError, Elastic, Get, GetAnswer, Index, Method,
    WriteCondition,
};
use crate::io::indices::{self, IndexDifference, IndicesError, Problem};
use crate::io::meta::TopicFacts;

/// Major versions that geofold is tested with: 8 and 9 of Elasticsearch, 2 and 3 of OpenSearch. There was no Elasticsearch 3,
/// and an Elasticsearch 2 would refuse the first request that writes.
const KNOWN_VERSIONS: [&str; 4] = ["2", "3", "8", "9"];
/// Names that one finding lists before it counts the rest.
const NAMES_SHOWN: usize = 3;

const CLUSTER: &str = "elasticsearch";
const VERSION: &str = "elasticsearch version";
const AUTO_CREATE: &str = "action.auto_create_index";
const NO_MASTER_BLOCK: &str = "cluster.no_master_block";
const INDICES: &str = "indices";
const WRITE: &str = "right to write";
const REFRESH: &str = "right to refresh";
const MEMORY: &str = "what is remembered";

/// Results of Elasticsearch's checks.
#[derive(Default)]
pub(super) struct SearchSide {
    pub(super) findings: Vec<CheckFinding>,
    /// Stored facts about the topic; the outer `None` if they could not be read.
    pub(super) remembered: Option<Option<TopicFacts>>,
}

/// Runs the checks in sequence; stops where the result of the rest is determined.
pub(super) async fn look(target: &CheckTarget, elastic: &dyn Elastic) -> SearchSide {
    let ask = Asker { elastic, timeout: target.timeout };
    let mut side = SearchSide::default();
    let health = ask.get("/_cluster/health").await;
    let nodes = health.as_ref().ok().and_then(|answer| answer.body["number_of_nodes"].as_u64());
    let health = judge_health(health);
    let goes_on = !health.is_error() && !health.is_unreachable();
    side.findings.push(health);
    if !goes_on {
        return side;
    }
    side.findings.push(judge_version(ask.get("/_nodes/http?filter_path=nodes.*.version").await));
    let settings =
        ask.get("/_cluster/settings?include_defaults=true&filter_path=*.action.auto_create_index").await;
    side.findings.push(judge_auto_create(settings, target));

    let settings =
        ask.get("/_cluster/settings?include_defaults=true&filter_path=*.cluster.no_master_block").await;
    side.findings.extend(judge_no_master_block(settings, nodes));

    let found = match indices::find(elastic, &target.prefix, target.timeout).await {
        Ok(found) => found,
        Err(error) => {
            side.findings.push(judge_listing(&error));
            return side;
        }
    };
    let differences = indices::differences(&target.indices, &found);
    side.findings.extend(judge_differences(&differences, target.indices.len()));
    let placements = Index::Placements.name(&target.prefix);
    if let Some(primaries) = found.primaries(&placements) {
        side.findings
            .extend(super::placements::look(elastic, &target.prefix, primaries, target.timeout).await);
    }
    // A write into an index that is not there could create it, with a guessed mapping.
    let meta = Index::Meta.name(&target.prefix);
    let has_meta = !differences.iter().any(|difference| {
        difference.index == meta
            && matches!(difference.problem, Problem::Missing | Problem::Alias { .. } | Problem::Closed)
    });
    if has_meta {
        side.findings.push(try_to_write(elastic, target.timeout).await);
        if target.refreshes {
            side.findings.extend(try_to_refresh(elastic, target.timeout).await);
        }
        match remembered(elastic, target).await {
            Ok(remembered) => side.remembered = Some(remembered),
            Err(finding) => side.findings.push(finding),
        }
    }
    side
}

struct Asker<'a> {
    elastic: &'a dyn Elastic,
    timeout: Duration,
}

impl Asker<'_> {
    async fn get(&self, path: &str) -> Result<AdminAnswer, CallError> {
        let call = AdminCall { method: Method::Get, path: path.to_owned(), body: None };
        self.elastic.admin(call, self.timeout).await
    }
}

fn judge_health(answer: Result<AdminAnswer, CallError>) -> CheckFinding {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return no_answer(CLUSTER, &error),
    };
    let reason = || crate::io::elastic::decode::reason(&answer);
    match (answer.status, answer.body["status"].as_str()) {
        (200, Some("red")) => CheckFinding::warning(
            CLUSTER,
            "health is red: a primary shard is not assigned, and writes to it wait; ask GET /_cluster/allocation/explain",
        ),
        (200, Some(health)) => CheckFinding::ok(CLUSTER, format_args!("reachable, health is {health}")),
        (401, _) => CheckFinding::error(CLUSTER, not_known(&reason())),
        (403, _) => CheckFinding::warning(
            CLUSTER,
            format_args!(
                "reachable, but this user may not ask for its health: grant the cluster privilege monitor ({})",
                reason()
            ),
        ),
        (status @ (408 | 429 | 500 | 502 | 503 | 504), _) => {
            CheckFinding::unreachable(CLUSTER, format_args!("not ready: it answered {status}: {}", reason()))
        }
        (status, _) => CheckFinding::error(
            CLUSTER,
            format_args!(
                "GET /_cluster/health was answered with {status}, unlike Elasticsearch: check elasticsearch.urls"
            ),
        ),
    }
}

fn judge_version(answer: Result<AdminAnswer, CallError>) -> CheckFinding {
    let versions: BTreeSet<String> = match &answer {
        Ok(AdminAnswer { status: 200, body }) => {
            let nodes = body["nodes"].as_object().map(Map::values).into_iter().flatten();
            nodes.filter_map(|node| node["version"].as_str()).map(str::to_owned).collect()
        }
        other => return not_told(VERSION, other, "monitor"),
    };
    let listed = versions.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let is_known =
        |version: &String| version.split('.').next().is_some_and(|major| KNOWN_VERSIONS.contains(&major));
    if versions.is_empty() {
        CheckFinding::warning(VERSION, "no node told its version")
    } else if versions.iter().all(is_known) {
        CheckFinding::ok(VERSION, listed)
    } else {
        CheckFinding::warning(
            VERSION,
            format_args!("{listed}; geofold is tested with Elasticsearch 8 and 9 and OpenSearch 2 and 3"),
        )
    }
}

fn judge_auto_create(answer: Result<AdminAnswer, CallError>, target: &CheckTarget) -> CheckFinding {
    let body = match &answer {
        Ok(AdminAnswer { status: 200, body }) => body,
        other => return not_told(AUTO_CREATE, other, "monitor"),
    };
    let layers = ["transient", "persistent", "defaults"];
    let rule = layers.iter().find_map(|layer| body[layer]["action"]["auto_create_index"].as_str());
    let Some(rule) = rule else {
        return CheckFinding::warning(
            AUTO_CREATE,
            "not known: this server does not report it; verify that it does not create indices of the prefix automatically",
        );
    };
    if target.indices.iter().any(|index| creates(rule, &index.name)) {
        let advice = format!(
            "is {rule:?}: a write to an index that is gone would create it with a guessed mapping, and with an index.gc_deletes of 60s, which is too short for batch.timeout; set it to \"-{}-*,*\" (PUT /_cluster/settings)",
            target.prefix
        );
        return CheckFinding::error(AUTO_CREATE, advice);
    }
    CheckFinding::ok(AUTO_CREATE, format_args!("is {rule:?}"))
}

/// A node that is cut off from its master answers reads by what it had then, unless they are blocked. `None` for a single
/// node, and where the setting cannot be read: some hosts do not show it.
fn judge_no_master_block(answer: Result<AdminAnswer, CallError>, nodes: Option<u64>) -> Option<CheckFinding> {
    let Ok(AdminAnswer { status: 200, body }) = answer else { return None };
    let layers = ["transient", "persistent", "defaults"];
    let block = layers.iter().find_map(|layer| body[layer]["cluster"]["no_master_block"].as_str())?;
    if nodes.is_none_or(|nodes| nodes < 2) {
        return None;
    }
    Some(match block {
        "all" => CheckFinding::ok(NO_MASTER_BLOCK, "is \"all\""),
        other => CheckFinding::warning(
            NO_MASTER_BLOCK,
            format_args!(
                "is {other:?}: a node that is cut off from its master still answers reads, and a patch may be applied to an \
                 old copy; set it to \"all\" (PUT /_cluster/settings)"
            ),
        ),
    })
}

/// Whether Elasticsearch would create the index `name` by itself: the first pattern that fits decides, none means no.
fn creates(rule: &str, name: &str) -> bool {
    match rule {
        "true" => true,
        "false" => false,
        patterns => {
            patterns.split(',').map(str::trim).find_map(|pattern| {
                let (allowed, pattern) = match pattern.strip_prefix('-') {
                    Some(pattern) => (false, pattern),
                    None => (true, pattern.strip_prefix('+').unwrap_or(pattern)),
                };
                fits(pattern, name).then_some(allowed)
            }) == Some(true)
        }
    }
}

/// Whether `name` matches a pattern in which `*` matches any text.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(begin) else { return false };
    name.char_indices().map(|(at, _)| at).chain([name.len()]).any(|at| fits(rest, &name[at..]))
}

fn judge_listing(error: &IndicesError) -> CheckFinding {
    match error {
        IndicesError::Call { error, .. } => no_answer(INDICES, error),
        IndicesError::Refused { status: 401, reason, .. } => CheckFinding::error(INDICES, not_known(reason)),
        IndicesError::Refused { status: 403, .. } => {
            CheckFinding::error(INDICES, format_args!("{error}: grant view_index_metadata on them"))
        }
        IndicesError::Refused { status: 429 | 500 | 502 | 503 | 504, .. } => {
            CheckFinding::unreachable(INDICES, error)
        }
        IndicesError::Refused { .. } => CheckFinding::error(INDICES, error),
    }
}

/// One finding for each problem, however many indices have it.
fn judge_differences(differences: &[IndexDifference], wanted: usize) -> Vec<CheckFinding> {
    let mut by_problem: BTreeMap<String, (&Problem, Vec<&str>)> = BTreeMap::new();
    for IndexDifference { index, problem } in differences {
        by_problem.entry(problem.to_string()).or_insert((problem, Vec::new())).1.push(index);
    }
    if by_problem.is_empty() {
        return vec![CheckFinding::ok(INDICES, format_args!("all {wanted} exist and are correct"))];
    }
    let finding = |(message, (problem, names)): (String, (&Problem, Vec<&str>))| {
        let mut about = format!("index {}", names[..names.len().min(NAMES_SHOWN)].join(", "));
        if names.len() > NAMES_SHOWN {
            about.push_str(&format!(" and {} more", names.len() - NAMES_SHOWN));
        }
        if problem.is_warning() {
            CheckFinding::warning(about, message)
        } else {
            CheckFinding::error(about, message)
        }
    };
    by_problem.into_iter().map(finding).collect()
}

/// Writes a document into the meta index and removes it.
async fn try_to_write(elastic: &dyn Elastic, timeout: Duration) -> CheckFinding {
    // A unique id: concurrent checks, and tombstones of earlier ones, must not collide.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let Ok(id) = DocId::from_key(Some(format!("check/{}-{now}", std::process::id()).as_bytes())) else {
        return CheckFinding::error(WRITE, "the check could not make an id");
    };
    let source = Bytes::from_static(br#"{"by":"geofold check"}"#);
    // A create without a version gets version 1.
    let ops = [
        BulkOp::Index { index: Index::Meta, id: id.clone(), guard: WriteCondition::Absent, source },
        BulkOp::Delete { index: Index::Meta, id, version: Position::from_version(2) },
    ];
    match carry_out(elastic, timeout, &ops).await {
        Ok(()) => CheckFinding::ok(WRITE, "a document was written to the meta index and removed"),
        Err(finding) => finding,
    }
}

/// The problem that keeps workers from refreshing geoshards, as far as the meta index shows it.
async fn try_to_refresh(elastic: &dyn Elastic, timeout: Duration) -> Option<CheckFinding> {
    match elastic.refresh(&[Index::Meta], timeout).await {
        Err(CallError::Status { status: 401 | 403, reason, .. }) => Some(CheckFinding::error(
            REFRESH,
            format_args!(
                "this user may not refresh an index, so old copies of documents that move stay, and offsets wait: grant the index \
                 privilege maintenance, or set moves.visibility = \"realtime\" ({reason})"
            ),
        )),
        // Connection errors are reported by other checks.
        Ok(()) | Err(_) => None,
    }
}

/// Carries out operations on the meta index. A conflict is well: something newer is there.
pub(super) async fn carry_out(
    elastic: &dyn Elastic,
    timeout: Duration,
    ops: &[BulkOp],
) -> Result<(), CheckFinding> {
    let answers = match elastic.bulk(ops, timeout).await {
        Ok(answers) => answers,
        Err(CallError::Status { status: 401, reason, .. }) => {
            return Err(CheckFinding::error(WRITE, not_known(&reason)));
        }
        Err(error @ CallError::Status { status: 403, .. }) => return Err(may_not_write(&error.to_string())),
        Err(error) => return Err(no_answer(WRITE, &error)),
    };
    let Some(BulkAnswer { status, error, .. }) =
        answers.iter().find(|answer| answer.status >= 300 && answer.status != 409)
    else {
        return Ok(());
    };
    let error = error.as_ref().map_or_else(|| format!("status {status}"), |error| error.to_string());
    Err(match status {
        401 | 403 => may_not_write(&error),
        429 | 500 | 502..=504 => {
            CheckFinding::unreachable(WRITE, format_args!("the meta index does not take writes now: {error}"))
        }
        _ => CheckFinding::error(WRITE, format_args!("the meta index refused a document: {error}")),
    })
}

fn may_not_write(error: &str) -> CheckFinding {
    CheckFinding::error(
        WRITE,
        format_args!(
            "this user may not write: grant read and write on the indices of the prefix, or lift the block ({error})"
        ),
    )
}

/// The meta index's facts about the topic.
async fn remembered(elastic: &dyn Elastic, target: &CheckTarget) -> Result<Option<TopicFacts>, CheckFinding> {
    let get = Get::realtime(Index::Meta, TopicFacts::key(&target.topic));
    let answer = elastic.mget(&[get], target.timeout).await.map_err(|error| no_answer(MEMORY, &error))?;
    match answer.into_iter().next() {
        Some(GetAnswer::Found(found)) => match serde_json::from_slice(&found.source) {
            Ok(facts) => Ok(Some(facts)),
            Err(error) => Err(CheckFinding::error(
                MEMORY,
                format_args!("the record of {} in the meta index cannot be read: {error}", target.topic),
            )),
        },
        Some(GetAnswer::Missing) => Ok(None),
        Some(GetAnswer::Failed(error)) if error.kind == "security_exception" => Err(CheckFinding::error(
            MEMORY,
            format_args!("this user may not read the meta index: grant read ({error})"),
        )),
        Some(GetAnswer::Failed(error)) => {
            Err(CheckFinding::unreachable(MEMORY, format_args!("the meta index cannot be read now: {error}")))
        }
        None => Err(CheckFinding::error(MEMORY, "the answer was empty")),
    }
}

/// A call without a usable answer: one that may come later, or one that will not.
fn no_answer(about: &str, error: &CallError) -> CheckFinding {
    match error {
        CallError::Connection(_) | CallError::Timeout(_) => {
            CheckFinding::unreachable(about, format_args!("{error}; look at elasticsearch.urls"))
        }
        // Where keys come from may be down for a while, too.
        CallError::Status { status: 429 | 500 | 502 | 503 | 504, .. } | CallError::Unsigned(_) => {
            CheckFinding::unreachable(about, error)
        }
        CallError::Status { status: 401, reason, .. } => CheckFinding::error(about, not_known(reason)),
        CallError::Status { .. } | CallError::TooLarge { .. } | CallError::Undecodable(_) => {
            CheckFinding::error(about, error)
        }
    }
}

/// Something that is good to know, and was not told.
fn not_told(about: &str, answer: &Result<AdminAnswer, CallError>, privilege: &str) -> CheckFinding {
    match answer {
        Err(error) => no_answer(about, error),
        Ok(answer) if answer.status == 401 => {
            CheckFinding::error(about, not_known(&crate::io::elastic::decode::reason(answer)))
        }
        Ok(answer) if answer.status == 403 => CheckFinding::warning(
            about,
            format_args!("not known: grant this user the cluster privilege {privilege} to see it"),
        ),
        Ok(answer) => CheckFinding::warning(
            about,
            format_args!(
                "not known: elasticsearch answered {}: {}",
                answer.status,
                crate::io::elastic::decode::reason(answer)
            ),
        ),
    }
}

fn not_known(reason: &str) -> String {
    format!(
        "the credentials are missing or wrong: check elasticsearch.username and password, or api_key, or aws_region ({reason})"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::CheckLevel;
    use super::super::tests::target;
    use super::*;
    use crate::base::position::Epoch;
    use crate::io::elastic::scripted::Scripted;
    use crate::io::elastic::{FoundDocument, ItemError, SeqNo};

    /// A server on which everything is right, but for the calls that `other` answers.
    fn server(other: impl Fn(&str) -> Option<(u16, Value)> + Send + Sync + 'static) -> Scripted {
        let indices: Map<String, Value> =
            target().indices.iter().map(|index| (index.name.clone(), index.body())).collect();
        let answer = move |line: &str, _: Option<&Value>| {
            other(line).unwrap_or_else(|| match line {
                "GET /_cluster/health" => (200, json!({"status": "yellow"})),
                line if line.starts_with("GET /_nodes/http") => {
                    (200, json!({"nodes": {"a": {"version": "8.19.21"}, "b": {"version": "9.1.0"}}}))
                }
                line if line.starts_with("GET /_cluster/settings") => {
                    (200, json!({"defaults": {"action": {"auto_create_index": "false"}}}))
                }
                line if line.starts_with("GET /geofold-*?") => (200, Value::Object(indices.clone())),
                "GET /geofold-placements/_stats/docs,store" => {
                    (200, json!({"indices": {"geofold-placements": {"primaries": {"docs": {"count": 3}}}}}))
                }
                other => panic!("unexpected call {other}"),
            })
        };
        Scripted { admin: Box::new(answer), ..Default::default() }
    }

    async fn levels(server: &Scripted) -> Vec<(String, CheckLevel)> {
        let side = look(&target(), server).await;
        side.findings.into_iter().map(|finding| (finding.about, finding.level)).collect()
    }

    /// The findings that are not [`CheckLevel::Ok`].
    async fn bad(server: &Scripted) -> Vec<(String, CheckLevel)> {
        levels(server).await.into_iter().filter(|(_, level)| *level != CheckLevel::Ok).collect()
    }

    fn one(about: &str, level: CheckLevel) -> Vec<(String, CheckLevel)> {
        vec![(about.to_owned(), level)]
    }

    fn refusal(status: u16, kind: &str) -> (u16, Value) {
        (status, json!({"error": {"type": kind, "reason": "no"}, "status": status}))
    }

    #[tokio::test]
    async fn missing_refresh_privilege_is_reported() {
        let refused = |status| {
            Err(CallError::Status { status, kind: String::new(), reason: "no".to_owned(), retry_after: None })
        };
        for (answer, expected) in [
            (Ok(()), Vec::new()),
            (refused(403), one("right to refresh", CheckLevel::Error)),
            (refused(503), Vec::new()),
        ] {
            let server = Scripted { refresh: Box::new(move || answer.clone()), ..server(|_| None) };
            assert_eq!(bad(&server).await, expected);
            let realtime = CheckTarget { refreshes: false, ..target() };
            let findings = look(&realtime, &server).await.findings;
            assert!(findings.iter().all(|finding| finding.level == CheckLevel::Ok), "{findings:?}");
        }
    }

    #[tokio::test]
    async fn where_all_is_right_every_finding_says_so() {
        let server = server(|_| None);
        let levels = levels(&server).await;
        let about: Vec<_> = levels.iter().map(|(about, _)| about.as_str()).collect();
        assert_eq!(about, [CLUSTER, VERSION, AUTO_CREATE, INDICES, "placements", WRITE]);
        assert!(levels.iter().all(|(_, level)| *level == CheckLevel::Ok), "{levels:?}");
        assert_eq!(look(&target(), &server).await.remembered, Some(None));
    }

    #[tokio::test]
    async fn topic_facts_are_read_from_the_meta_index() {
        let mut server = server(|_| None);
        server.get = Box::new(|get| {
            assert_eq!((&get.index, get.id.as_str()), (&Index::Meta, "topic/documents"));
            let source = Bytes::from_static(br#"{"epoch":1,"topic_id":"abc","partitions":3}"#);
            GetAnswer::Found(FoundDocument {
                version: 1,
                stamp: SeqNo { seq_no: 1, primary_term: 1 },
                source,
            })
        });
        let facts = TopicFacts {
            epoch: Epoch::new(1).unwrap(),
            topic_id: Some("abc".into()),
            partitions: 3,
            map: None,
            added: None,
        };
        assert_eq!(look(&target(), &server).await.remembered, Some(Some(facts)));

        server.get = Box::new(|_| {
            let source = Bytes::from_static(b"{}");
            GetAnswer::Found(FoundDocument {
                version: 1,
                stamp: SeqNo { seq_no: 1, primary_term: 1 },
                source,
            })
        });
        assert_eq!(bad(&server).await, one(MEMORY, CheckLevel::Error));
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_asked_once_and_unreachable() {
        for broken in [CallError::Connection("refused".into()), CallError::Timeout(Duration::from_secs(1))] {
            let server = Scripted { broken: Some(broken), ..server(|_| None) };
            assert_eq!(levels(&server).await, one(CLUSTER, CheckLevel::Unreachable));
            assert_eq!(server.calls.lock().unwrap().len(), 1);
        }
        for status in [429, 500, 503] {
            let starting = server(move |_| Some(refusal(status, "master_not_discovered_exception")));
            assert_eq!(levels(&starting).await, one(CLUSTER, CheckLevel::Unreachable), "{status}");
        }
    }

    #[tokio::test]
    async fn wrong_credentials_end_the_check_and_narrow_ones_do_not() {
        let wrong = server(|_| Some(refusal(401, "security_exception")));
        assert_eq!(levels(&wrong).await, one(CLUSTER, CheckLevel::Error));

        let narrow = server(|line| line.starts_with("GET /_").then(|| refusal(403, "security_exception")));
        let warnings: Vec<_> =
            [CLUSTER, VERSION, AUTO_CREATE].map(|about| (about.to_owned(), CheckLevel::Warning)).into();
        assert_eq!(bad(&narrow).await, warnings, "the indices were looked at all the same");

        let blind =
            server(|line| line.starts_with("GET /geofold-").then(|| refusal(403, "security_exception")));
        assert_eq!(bad(&blind).await, one(INDICES, CheckLevel::Error));
    }

    #[tokio::test]
    async fn something_else_behind_the_address_is_an_error() {
        let stranger = server(|_| Some((404, Value::Null)));
        assert_eq!(levels(&stranger).await, one(CLUSTER, CheckLevel::Error));
    }

    #[tokio::test]
    async fn an_unknown_version_and_a_red_cluster_are_warnings() {
        let red = server(|line| (line == "GET /_cluster/health").then(|| (200, json!({"status": "red"}))));
        assert_eq!(bad(&red).await, one(CLUSTER, CheckLevel::Warning));
        for nodes in [json!({"nodes": {"a": {"version": "7.17.0"}, "b": {"version": "8.1.0"}}}), json!({})] {
            let old = server(move |line| line.starts_with("GET /_nodes").then(|| (200, nodes.clone())));
            assert_eq!(bad(&old).await, one(VERSION, CheckLevel::Warning));
        }
    }

    #[tokio::test]
    async fn auto_create_is_an_error_or_a_warning_if_unknown() {
        let open = server(|line| {
            let on = json!({
                "persistent": {"action": {"auto_create_index": "true"}},
                "defaults": {"action": {"auto_create_index": "false"}},
            });
            line.starts_with("GET /_cluster/settings").then_some((200, on))
        });
        assert_eq!(bad(&open).await, one(AUTO_CREATE, CheckLevel::Error));
        for (status, body) in [(200, json!({})), refusal(403, "security_exception")] {
            let silent = server(move |line| {
                line.starts_with("GET /_cluster/settings").then(|| (status, body.clone()))
            });
            assert_eq!(bad(&silent).await, one(AUTO_CREATE, CheckLevel::Warning));
        }
    }

    #[tokio::test]
    async fn reads_without_a_master_are_a_warning_with_several_nodes() {
        for (nodes, block, expected) in [
            (1, "write", Vec::new()),
            (3, "all", Vec::new()),
            (3, "write", one(NO_MASTER_BLOCK, CheckLevel::Warning)),
            (3, "metadata_write", one(NO_MASTER_BLOCK, CheckLevel::Warning)),
        ] {
            let cluster = server(move |line| {
                let health = json!({"status": "green", "number_of_nodes": nodes});
                let settings = json!({"defaults": {"cluster": {"no_master_block": block}}});
                match line {
                    "GET /_cluster/health" => Some((200, health)),
                    line if line.ends_with("no_master_block") => Some((200, settings)),
                    _ => None,
                }
            });
            assert_eq!(bad(&cluster).await, expected, "{nodes} nodes, {block}");
        }
    }

    #[test]
    fn the_first_pattern_that_fits_decides_on_index_creation() {
        for (rule, creates_it) in [
            ("true", true),
            ("false", false),
            ("-geofold-*,*", false),
            ("*,-geofold-*", true),
            ("+geofold-*", true),
            ("logs-*,metrics-*", false),
            ("-*", false),
            (".watches*, *-meta", true),
            ("-g*d-me*a,*", false),
            ("geofold", false),
        ] {
            assert_eq!(creates(rule, "geofold-meta"), creates_it, "{rule}");
        }
    }

    #[tokio::test]
    async fn nothing_is_written_where_the_meta_index_is_missing() {
        let empty = server(|line| line.starts_with("GET /geofold-").then(|| (200, json!({}))));
        let found = bad(&empty).await;
        assert_eq!(
            found,
            one("index geofold-eu, geofold-us, geofold-placements and 1 more", CheckLevel::Error)
        );
        assert!(!empty.calls.lock().unwrap().iter().any(|call| call == "bulk" || call == "mget"));
    }

    #[tokio::test]
    async fn each_way_in_which_a_write_fails_is_told_apart() {
        for (status, kind, level) in [
            (403, "security_exception", CheckLevel::Error),
            (403, "cluster_block_exception", CheckLevel::Error),
            (503, "unavailable_shards_exception", CheckLevel::Unreachable),
            (500, "exception", CheckLevel::Unreachable),
            (400, "document_parsing_exception", CheckLevel::Error),
        ] {
            let mut server = server(|_| None);
            server.bulk = Box::new(move |ops| {
                let [BulkOp::Index { id, .. }, BulkOp::Delete { id: removed, .. }] = ops else {
                    panic!("{ops:?}")
                };
                assert_eq!(id, removed);
                let error = ItemError { status, kind: kind.to_owned(), reason: "no".to_owned() };
                vec![BulkAnswer { status, stamp: None, error: Some(Box::new(error)) }; 2]
            });
            assert_eq!(bad(&server).await, one(WRITE, level), "{kind}");
        }
    }
}
