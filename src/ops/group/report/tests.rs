use super::*;
use crate::ops::group::{GroupMember, LastAudit};

fn facts(partitions: i32) -> TopicFacts {
    let epoch = Config::default().positions.epoch;
    TopicFacts { epoch, topic_id: Some("a".to_owned()), partitions, map: None, added: None }
}

fn offsets(begin: i64, committed: i64, end: i64) -> Offsets {
    Offsets { begin, end, committed: Some(committed) }
}

fn member(partitions: &[i32]) -> GroupMember {
    GroupMember {
        member_id: "m".to_owned(),
        client_id: "c".to_owned(),
        host: "h".to_owned(),
        partitions: partitions.to_vec(),
    }
}

struct Case {
    group: Result<GroupSeen, String>,
    before: Offsets,
    now: Offsets,
    meta: Meta,
    /// Why it could not be read.
    meta_error: Option<&'static str>,
    workers: Vec<WorkerSeen>,
    letters: Option<Result<LettersReport, String>>,
    health: Result<String, String>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            group: Ok(GroupSeen { state: "Stable".to_owned(), members: vec![member(&[0])] }),
            before: offsets(0, 5, 10),
            now: offsets(0, 10, 10),
            meta: Meta { remembered: [(0, 9)].into(), facts: Some(facts(1)), ..Meta::default() },
            meta_error: None,
            workers: Vec::new(),
            letters: None,
            health: Ok("green".to_owned()),
        }
    }
}

impl Case {
    fn report(self) -> GroupReport {
        GroupReport::new(Inputs {
            config: &Config::default(),
            group: self.group,
            facts: &facts(1),
            before: &[(0, self.before)].into(),
            now: &[(0, self.now)].into(),
            between: Duration::from_secs(5),
            meta: self.meta_error.map_or(Ok(&self.meta), Err),
            health: self.health,
            workers: self.workers,
            letters: self.letters,
            time: Duration::from_secs(7_200),
        })
    }
}

#[test]
fn group_that_works_needs_nobody() {
    let report = Case::default().report();
    assert_eq!(report.findings, [""; 0]);
    assert_eq!((report.lag, report.lag_per_second, report.committed_per_second), (0, -1.0, 1.0));
    assert_eq!(report.partitions[0].owner.as_deref(), Some("c on h"));
    assert!(report.to_string().ends_with("nothing needs attention"), "{report}");
}

#[test]
fn each_trouble_is_a_finding() {
    let stopped = || WorkerSeen {
        url: "u".to_owned(),
        name: None,
        error: None,
        ready: false,
        reasons: [("partition 0".to_owned(), "bad record".to_owned())].into(),
        partitions: [(0, "stopped".to_owned())].into(),
        oldest_dirty_seconds: [(0, 61.0)].into(),
    };
    let silent =
        || WorkerSeen { error: Some("refused".to_owned()), partitions: BTreeMap::new(), ..stopped() };
    let stands = offsets(0, 5, 10);
    let empty = || Ok(GroupSeen { state: "Empty".to_owned(), members: Vec::new() });
    let rewound = || Meta { remembered: [(0, 9)].into(), ..Meta::default() };
    let anew =
        || Meta { facts: Some(TopicFacts { topic_id: Some("b".to_owned()), ..facts(1) }), ..Meta::default() };
    let letters = || LettersReport {
        last_hour: 2,
        last_hour_by_reason: [("bad_key".to_owned(), 2)].into(),
        ..LettersReport::default()
    };
    for (case, expected) in [
        (Case { workers: vec![stopped()], ..Case::default() }, "partition 0 is stopped: bad record"),
        (Case { workers: vec![silent()], ..Case::default() }, "worker u does not answer: refused"),
        (Case { before: stands, now: stands, meta: Meta::default(), ..Case::default() }, "does not move"),
        (
            Case { group: empty(), now: stands, meta: Meta::default(), ..Case::default() },
            "has no members, and 5 records wait",
        ),
        (
            Case { before: stands, now: offsets(0, 8, 20), meta: rewound(), ..Case::default() },
            "rewound: offset 8 is committed, and 9 was",
        ),
        (
            Case { now: offsets(0, 12, 10), meta: Meta::default(), ..Case::default() },
            "truncated or created anew",
        ),
        (
            Case {
                now: offsets(7, 5, 10),
                before: offsets(0, 4, 9),
                meta: Meta::default(),
                ..Case::default()
            },
            "from offset 5 to 6 were deleted",
        ),
        (Case { meta: anew(), ..Case::default() }, "created anew"),
        (
            Case { meta_error: Some("the meta index is closed"), ..Case::default() },
            "the meta index is closed",
        ),
        (Case { health: Ok("red".to_owned()), ..Case::default() }, "health is red"),
        (Case { health: Err("no connection".to_owned()), ..Case::default() }, "elasticsearch: no connection"),
        (
            Case {
                meta: Meta {
                    audit: Some(LastAudit { ended: 3_600, wrong: Some(2) }),
                    ..Case::default().meta
                },
                ..Case::default()
            },
            "the last audit found 2 wrong documents",
        ),
        (
            Case { letters: Some(Ok(letters())), ..Case::default() },
            "2 dead letters in the last hour: 2 bad_key",
        ),
    ] {
        let report = case.report();
        assert_eq!(report.findings.len(), 1, "{expected}: {:?}", report.findings);
        assert!(report.findings[0].contains(expected), "{expected}: {:?}", report.findings);
    }
}

#[test]
fn audits_and_dirty_documents_are_shown_as_far_as_known() {
    let plain = Case::default().report();
    assert_eq!((plain.audit, plain.oldest_dirty_seconds), (None, None));
    assert!(!plain.to_string().contains("audit"), "{plain}");
    let worker = WorkerSeen {
        url: "u".to_owned(),
        name: None,
        error: None,
        ready: true,
        reasons: BTreeMap::new(),
        partitions: [(0, "running".to_owned())].into(),
        oldest_dirty_seconds: [(0, 61.0)].into(),
    };
    let audit = Some(LastAudit { ended: 3_600, wrong: Some(0) });
    let meta = Meta { audit, ..Case::default().meta };
    let report = Case { meta, workers: vec![worker], ..Case::default() }.report();
    assert_eq!((report.findings.len(), report.oldest_dirty_seconds), (0, Some(61.0)));
    let text = report.to_string();
    assert!(text.contains("the last one ended 1 h 0 min ago, 0 wrong documents"), "{text}");
    assert!(text.contains("1 min 1 s"), "{text}");
}

#[test]
fn dead_letters_beyond_those_counted_are_not_denied() {
    let letters = |last_hour_has_more| LettersReport {
        counted: 7,
        last_hour: 7,
        last_hour_by_reason: [("bad_key".to_owned(), 7)].into(),
        last_hour_has_more,
        ..LettersReport::default()
    };
    let of = |letters| Case { letters: Some(Ok(letters)), ..Case::default() }.report();
    assert!(of(letters(false)).findings[0].starts_with("7 dead letters"));
    let report = of(letters(true));
    assert!(report.findings[0].starts_with("at least 7 dead letters"), "{report}");
    assert!(report.to_string().contains("; at least 7 in the last hour"), "{report}");
}

#[test]
fn owner_of_a_partition_is_its_claim_unless_the_group_has_none() {
    let claim = |ended_ms| {
        let (owner, assignment) = ("w on x, process 1".to_owned(), "1".to_owned());
        Claim { generation: 0, owner, deadline_ms: 1, assignment, ended_ms }
    };
    let owner = |group: Result<GroupSeen, String>, ended_ms| {
        let meta = Meta { claims: vec![Some(claim(ended_ms))], ..Meta::default() };
        Case { group, meta, ..Case::default() }.report().partitions[0].owner.clone()
    };
    let stable = || Ok(GroupSeen { state: "Stable".to_owned(), members: vec![member(&[0])] });
    assert_eq!(owner(stable(), None).as_deref(), Some("w on x, process 1"));
    assert_eq!(owner(stable(), Some(1)).as_deref(), Some("c on h"));
    assert_eq!(owner(Ok(GroupSeen::default()), None), None, "a worker that was killed");
    assert_eq!(owner(Err("no".to_owned()), None).as_deref(), Some("w on x, process 1"));
    assert_eq!(owner(Err("no".to_owned()), Some(1)), None);
}
