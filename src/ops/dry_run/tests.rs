use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdkafka::message::{Header, OwnedHeaders};
use tokio::sync::Semaphore;

use super::*;
use crate::base::clock::BootClock;
use crate::base::position::{Epoch, Position};
use crate::base::random::Random;
use crate::base::retry::RetryPolicy;
use crate::core::mover::{MoverState, OnMissing, Rules};
use crate::core::placement::PlacementCache;
use crate::io::elastic::rounds::{RequestLimits, Unobserved};
use crate::io::elastic::{BulkOp, Elastic, WriteCondition};
use crate::testkit::testing::MemoryElastic;

const PLACES: [(f64, f64); 4] = [(52.5, 13.4), (37.8, -122.4), (-33.9, 151.2), (35.7, 139.7)];

fn id(n: usize) -> String {
    format!("d{n}")
}

fn record(offset: i64, id: &str, op: Option<&str>, value: Option<String>) -> (i32, Record) {
    let headers = op.map(|op| OwnedHeaders::new().insert(Header { key: "geofold-op", value: Some(op) }));
    let key = Some(Bytes::copy_from_slice(id.as_bytes()));
    (0, Record { offset, key, value: value.map(Bytes::from), headers })
}

fn document(place: usize) -> Option<String> {
    let (lat, lon) = PLACES[place % PLACES.len()];
    Some(format!(r#"{{"n":{place},"location":{{"lat":{lat},"lon":{lon}}}}}"#))
}

fn rounds(elastic: Arc<dyn Elastic>) -> RequestSender {
    RequestSender {
        elastic,
        permits: Arc::new(Semaphore::new(4)),
        queue: None,
        server: Arc::default(),
        look: 0,
        limits: RequestLimits {
            max_operations: 100,
            max_bytes: 1 << 20,
            request_timeout: Duration::from_secs(1),
        },
        retry: RetryPolicy { initial: Duration::from_millis(1), max: Duration::from_millis(2) },
        clock: Arc::new(BootClock),
        observer: Arc::new(Unobserved),
    }
}

fn state(on_missing: OnMissing) -> MoverState {
    let rules = Rules { on_missing, ..crate::testkit::testing::rules() };
    MoverState::new(rules, PlacementCache::new(std::num::NonZeroUsize::MIN))
}

fn dry_run(elastic: &Arc<MemoryElastic>, state: MoverState, stops_at_bad: bool) -> DryRun {
    let decoder = Decoder::new(state.rules.location.clone(), Epoch::new(1).unwrap(), 1 << 20);
    DryRun::new(rounds(elastic.clone()), decoder, state, stops_at_bad, Duration::from_secs(5))
}

/// Carries records out for real, one by one.
async fn carry_out(
    elastic: &Arc<MemoryElastic>,
    state: MoverState,
    records: &[(i32, Record)],
) -> Vec<String> {
    let decoder = Decoder::new(state.rules.location.clone(), Epoch::new(1).unwrap(), 1 << 20);
    let rounds = rounds(elastic.clone());
    let mut state = Some(state);
    let mut after = Vec::new();
    for (partition, record) in records {
        let write = decoder.decode(record.raw(*partition), &mut Schemas::new()).unwrap();
        let map = state.as_ref().unwrap().rules.map.clone();
        let (id, fold) = Fold::from_write(write, |at| map.locate(at).clone());
        let mut entries =
            vec![Entry { id: id.clone(), fold: Arc::new(fold), carry: Carry::default(), fetched: None }];
        while !entries.is_empty() {
            let lease = RequestDeadline {
                deadline: rounds.clock.now() + Duration::from_secs(5),
                cancel: CancellationToken::new(),
            };
            let finished = run(state.take().unwrap(), entries, &rounds, &lease).await.unwrap();
            state = Some(finished.state);
            entries = finished
                .settled
                .into_iter()
                .filter_map(|settled| match settled.outcome {
                    Outcome::Again { carry, .. } => Some(Entry { carry, ..settled.entry }),
                    _ => None,
                })
                .collect();
        }
        after.push(elastic.placement(id.as_str()));
    }
    after
}

fn shard_in(placement: &str) -> Option<String> {
    Placement::from_json(placement.as_bytes()).ok()?.shard.map(|shard| shard.as_str().to_owned())
}

#[tokio::test]
async fn predictions_match_the_worker_and_write_nothing() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let mut any = |n: u64| usize::try_from(random.below(n)).unwrap();
        let records: Vec<(i32, Record)> = (0..120)
            .map(|offset| {
                let id = id(any(12));
                match any(8) {
                    0 => record(offset, &id, None, None),
                    1 => record(offset, &id, Some("patch"), Some(format!(r#"{{"p":{offset}}}"#))),
                    2 => record(offset, &id, Some("patch"), document(any(4))),
                    3 => record(offset, &id, Some("touch"), None),
                    _ => record(offset, &id, None, document(any(4))),
                }
            })
            .collect();
        let (first, second) = records.split_at(40);
        let elastic = MemoryElastic::for_map(&crate::testkit::testing::six_faces());
        carry_out(&elastic, state(OnMissing::Drop), first).await;
        let before: Vec<_> = (0..12).map(|n| (elastic.placement(&id(n)), elastic.copies(&id(n)))).collect();
        let writes = elastic.placement_writes();

        let mut run = dry_run(&elastic, state(OnMissing::Drop), false);
        let second: Vec<(i32, Record)> = second.iter().map(|(partition, r)| (*partition, copy(r))).collect();
        let steps =
            run.run(second.iter().map(|(partition, r)| (*partition, copy(r))).collect()).await.unwrap();
        assert_eq!(elastic.placement_writes(), writes, "seed {seed}: it wrote");
        let now: Vec<_> = (0..12).map(|n| (elastic.placement(&id(n)), elastic.copies(&id(n)))).collect();
        assert_eq!(now, before, "seed {seed}: it changed something");

        assert_eq!(steps.len(), second.len());
        let mut shards: HashMap<String, Option<String>> =
            (0..12).map(|n| (id(n), shard_in(&elastic.placement(&id(n))))).collect();
        let after = carry_out(&elastic, state(OnMissing::Drop), &second).await;
        for (step, placement) in steps.iter().zip(after) {
            let to = shard_in(&placement);
            assert_eq!(
                step.from.as_ref().map(|shard| shard.as_str().to_owned()),
                shards[&step.id],
                "seed {seed}: {step}"
            );
            assert_eq!(step.to.as_ref().map(|shard| shard.as_str().to_owned()), to, "seed {seed}: {step}");
            let moves = step.from != step.to && step.from.is_some() && step.to.is_some();
            assert_eq!(step.does == Does::Move, moves, "seed {seed}: {step}");
            shards.insert(step.id.clone(), to);
        }
    }
}

fn copy(record: &Record) -> Record {
    Record {
        offset: record.offset,
        key: record.key.clone(),
        value: record.value.clone(),
        headers: record.headers.clone(),
    }
}

#[tokio::test]
async fn each_record_is_printed_with_its_reason() {
    let elastic = MemoryElastic::for_map(&crate::testkit::testing::six_faces());
    let mut run = dry_run(&elastic, state(OnMissing::DeadLetter), false);
    let records = vec![
        record(0, "a", None, document(0)),
        record(1, "a", None, document(0)),
        record(2, "a", None, document(1)),
        record(3, "b", Some("patch"), Some("{}".to_owned())),
        record(4, "c", None, Some("nonsense".to_owned())),
        record(5, "a", None, None),
        record(6, "a", None, None),
        record(7, "a", Some("refeed"), None),
    ];
    let steps = run.run(records).await.unwrap();
    let does: Vec<Does> = steps.iter().map(|step| step.does).collect();
    assert_eq!(
        does,
        [
            Does::Create,
            Does::Update,
            Does::Move,
            Does::DeadLetter,
            Does::DeadLetter,
            Does::Delete,
            Does::Nothing,
            Does::Fetch
        ]
    );
    assert_eq!(steps[0].to, steps[1].from);
    assert!(steps[2].why.contains("deleted from"), "{}", steps[2]);
    assert!(steps[4].why.contains("not a JSON object"), "{}", steps[4]);
    let mut sums = Sums::default();
    steps.iter().for_each(|step| sums.add(step));
    assert!(!sums.is_well());
    assert!(sums.to_string().starts_with("8 records, 1 create, 1 update, 1 move"), "{sums}");
}

#[tokio::test]
async fn records_after_a_stopping_one_are_not_reached() {
    let elastic = MemoryElastic::for_map(&crate::testkit::testing::six_faces());
    let mut run = dry_run(&elastic, state(OnMissing::DeadLetter), true);
    let records = vec![record(0, "c", None, Some("7".to_owned())), record(1, "a", None, document(0))];
    let steps = run.run(records).await.unwrap();
    assert_eq!((steps[0].does, steps[1].does), (Does::Stop, Does::NotReached));
    let elsewhere = vec![(1, record(9, "a", None, document(0)).1)];
    assert_eq!(run.run(elsewhere).await.unwrap()[0].does, Does::Create, "other partitions go on");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_an_error_and_no_foretelling() {
    let elastic = MemoryElastic::for_map(&crate::testkit::testing::six_faces());
    elastic.set_faults(|faults| faults.down = true);
    let decoder = Decoder::new(crate::testkit::testing::rules().location, Epoch::new(1).unwrap(), 1 << 20);
    let batch_timeout = Duration::from_millis(50);
    let mut run = DryRun::new(rounds(elastic), decoder, state(OnMissing::Drop), false, batch_timeout);
    let error = run.run(vec![record(0, "a", None, document(0))]).await.unwrap_err();
    assert!(error.to_string().contains("geofold check"), "{error}");
}

#[tokio::test]
async fn dry_run_writes_follow_elasticsearchs_rules() {
    let rehearsal = DryRunElastic::new(MemoryElastic::for_map(&crate::testkit::testing::six_faces()));
    let at = |offset| Position::new(Epoch::new(1).unwrap(), offset).unwrap();
    let doc = DocId::from_key(Some(b"a")).unwrap();
    let index = |guard| BulkOp::Index {
        index: Index::Placements,
        id: doc.clone(),
        guard,
        source: Bytes::from_static(b"{}"),
    };
    let delete = |version| BulkOp::Delete { index: Index::Placements, id: doc.clone(), version };
    let timeout = Duration::from_secs(1);
    let ops = [
        delete(at(9)),
        index(WriteCondition::External(at(5))),
        index(WriteCondition::External(at(9))),
        index(WriteCondition::ExternalOrEqual(at(9))),
        index(WriteCondition::Absent),
        delete(at(9)),
        delete(at(10)),
        index(WriteCondition::Absent),
    ];
    let answers = rehearsal.bulk(&ops, timeout).await.unwrap();
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [404, 409, 409, 201, 409, 409, 200, 201]);
    let stamp = answers[7].stamp.unwrap();
    let changed = rehearsal
        .bulk(&[index(WriteCondition::Unchanged(stamp)), index(WriteCondition::Unchanged(stamp))], timeout)
        .await;
    let statuses: Vec<u16> = changed.unwrap().iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 409]);
}
