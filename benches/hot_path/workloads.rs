//! What is run: each workload prepares its input, and gives what is to be measured.

use std::fmt;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use geofold::base::clock::{Clock, Instant};
use geofold::base::geo::GeoPoint;
use geofold::base::ids::{DocId, ShardId};
use geofold::base::position::{Epoch, Position};
use geofold::base::random::Random;
use geofold::base::retry::RetryPolicy;
use geofold::core::counting::facets::{FacetLimits, FacetRules};
use geofold::core::counting::version::FacetHistory;
use geofold::core::decode::{Decoder, LocationPath, RawRecord};
use geofold::core::dirty_set::DirtySet;
use geofold::core::fold::Fold;
use geofold::core::mover::{MoverState, OnMissing, Rules};
use geofold::core::placement::{KnownPlacement, Placement, PlacementCache};
use geofold::core::schemas::Schemas;
use geofold::geoshard::GeoshardMap;
use geofold::geoshard::load::LoadCounter;
use geofold::io::elastic::rounds::{RequestDeadline, RequestLimits, RequestSender, Unobserved};
use geofold::io::elastic::{BulkOp, Index, SeqNo, WriteCondition, decode, encode};
use geofold::worker::increments::emitter::{Emitter, IncrementSource, Names};
use geofold::worker::ledger::Ledger;
use geofold::worker::partition::count_written;
use geofold::worker::record::Record;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::null::{self, NullElastic, PREFIX};

const MAP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");

/// Documents of one batch, and operations of one request: the latter is the default.
const BATCH: usize = 2_000;

/// Bytes of one request: the default.
const REQUEST_BYTES: usize = 8 << 20;

/// The first record of the whole way: above the positions that are known.
const FIRST_OFFSET: i64 = 1_000_000_000;

/// Between two commits, where anything is counted.
const BATCHES_PER_COMMIT: usize = 5;

/// What is to be measured.
pub type Run = Box<dyn FnOnce()>;

/// One workload.
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// From a number of records to what is to be measured.
    pub prepare: fn(usize) -> Run,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// All of them: first the parts, then the whole, then the whole with counts: what these cost is the ratio of the two.
pub const WORKLOADS: &[Workload] = &[
    Workload { name: "decode_and_locate", prepare: decode_and_locate },
    Workload { name: "dirty_set", prepare: dirty_set },
    Workload { name: "bulk_body", prepare: bulk_body },
    Workload { name: "bulk_answer", prepare: bulk_answer },
    Workload { name: "mget_answer", prepare: mget_answer },
    Workload { name: "whole_in_place", prepare: |records| whole(records, Knows::Here, None) },
    Workload { name: "whole_new", prepare: |records| whole(records, Knows::Nothing, None) },
    Workload { name: "whole_moving", prepare: |records| whole(records, Knows::Elsewhere, None) },
    Workload { name: "whole_hot_keys", prepare: hot_keys },
    Workload { name: "counted_in_place", prepare: |records| whole(records, Knows::Here, Some(counted())) },
    Workload { name: "counted_new", prepare: |records| whole(records, Knows::Nothing, Some(counted())) },
    Workload { name: "counted_moving", prepare: |records| whole(records, Knows::Elsewhere, Some(counted())) },
];

/// Each hand-written fast path, and the same input read by serde_json alone.
pub const FAST_PATHS: &[Workload] = &[
    Workload {
        name: "locate",
        prepare: |records| locate(records, |path, document| path.locate(document).is_ok()),
    },
    Workload {
        name: "locate_serde_json",
        prepare: |records| locate(records, |path, document| path.patch_move(document).is_ok()),
    },
    Workload { name: "bulk_answer", prepare: bulk_answer },
    Workload { name: "bulk_answer_serde_json", prepare: bulk_answer_serde_json },
];

/// A document of about 600 bytes, somewhere on the globe.
fn document(number: usize, random: &mut Random) -> String {
    const WORDS: [&str; 8] =
        ["coffee", "mountains", "cinema", "running", "guitar", "travel", "cooking", "photography"];
    let about: String =
        (0..60).map(|n| WORDS[(number * 7 + n * n) % WORDS.len()]).collect::<Vec<_>>().join(" ");
    #[expect(clippy::cast_precision_loss, reason = "microdegrees")]
    let mut degrees = |most: u64| random.below(2_000_000 * most) as f64 / 1e6 - most as f64;
    let (lat, lon) = (degrees(90), degrees(180));
    format!(
        r#"{{"id":"person-{number:07}","name":"Person {number}","age":{},"tags":["a","b","c"],"about":"{about}","location":{{"lat":{lat:.6},"lon":{lon:.6}}},"step":1}}"#,
        18 + number % 60
    )
}

fn id(number: usize) -> String {
    format!("person-{number:07}")
}

/// Records as the poll thread makes them: key and value in one allocation.
fn records(count: usize, documents: usize) -> Vec<Record> {
    let mut random = Random::new(9);
    let make = |n: usize| {
        let (key, value) = (id(n % documents), document(n % documents, &mut random));
        let both = Bytes::from([key.as_bytes(), value.as_bytes()].concat());
        Record {
            offset: i64::try_from(n).unwrap(),
            key: Some(both.slice(..key.len())),
            value: Some(both.slice(key.len()..)),
            headers: None,
        }
    };
    (0..count).map(make).collect()
}

fn map() -> Arc<GeoshardMap> {
    Arc::new(GeoshardMap::load(Path::new(MAP)).unwrap())
}

fn epoch() -> Epoch {
    Epoch::new(1).unwrap()
}

fn position(offset: i64) -> Position {
    Position::new(epoch(), offset).unwrap()
}

fn decoder() -> Decoder {
    Decoder::new(LocationPath::default(), epoch(), 1 << 20)
}

fn raw(record: &Record) -> RawRecord<'_> {
    RawRecord {
        partition: 0,
        offset: record.offset,
        key: record.key.as_deref(),
        value: record.value.clone(),
        op: record.op(),
    }
}

/// Tags, ages and geoshards.
fn counted() -> FacetRules {
    let limits = FacetLimits { max_value_bytes: 256, max_values: 100 };
    FacetRules::new(true, [("tags", "tags"), ("age", "age")], limits)
}

fn decode_and_locate(count: usize) -> Run {
    let (records, decoder, map) = (records(count, count), decoder(), map());
    Box::new(move || {
        for record in records {
            let write = decoder.decode(raw(&record), &mut Schemas::new()).unwrap();
            black_box(Fold::from_write(write, |at| map.locate(at).clone()));
        }
    })
}

/// Finds the location in each document. A patch's is found by serde_json, without the fast path.
fn locate(count: usize, find: fn(&LocationPath, &[u8]) -> bool) -> Run {
    let (records, path) = (records(count, count), LocationPath::new("location").unwrap());
    Box::new(move || {
        for record in records {
            assert!(find(&path, &record.value.unwrap()));
        }
    })
}

fn dirty_set(count: usize) -> Run {
    let ids: Vec<DocId> = (0..count).map(|n| DocId::from_key(Some(id(n).as_bytes())).unwrap()).collect();
    Box::new(move || {
        let mut set: DirtySet<DocId, u64> = DirtySet::new();
        let newest = |_: &DocId, older: &mut u64, newer: u64| *older = newer;
        let mut batch: Vec<DocId> = Vec::new();
        for (n, some) in ids.chunks(BATCH).enumerate() {
            for (m, id) in some.iter().enumerate() {
                set.add(id.clone(), i64::try_from(n * BATCH + m).unwrap(), 0, newest);
            }
            batch = set.exchange(BATCH, &batch, false, newest).batch.map(|entry| entry.key.clone()).collect();
        }
        assert_eq!(set.commit(&batch), batch.len());
        assert!(set.is_empty());
    })
}

fn bulk_body(count: usize) -> Run {
    let shard = ShardId::new("s07").unwrap();
    let mut random = Random::new(9);
    let ops: Vec<BulkOp> = (0..count)
        .map(|n| BulkOp::Index {
            index: Index::Geoshard(shard.clone()),
            id: DocId::from_key(Some(id(n).as_bytes())).unwrap(),
            guard: WriteCondition::External(position(i64::try_from(n).unwrap())),
            source: document(n, &mut random).into(),
        })
        .collect();
    Box::new(move || {
        for ops in ops.chunks(BATCH) {
            black_box(encode::bulk_body(ops, PREFIX));
        }
    })
}

fn bulk_answer(count: usize) -> Run {
    let answer = null::bulk_answer(BATCH, false);
    Box::new(move || {
        for _ in 0..count.div_ceil(BATCH) {
            black_box(decode::bulk_answer(&answer, BATCH).unwrap());
        }
    })
}

/// [`bulk_answer`] with a space, which the fast path leaves to serde_json.
fn bulk_answer_serde_json(count: usize) -> Run {
    let answer =
        String::from_utf8(null::bulk_answer(BATCH, false).to_vec()).unwrap().replacen("[{", "[ {", 1);
    Box::new(move || {
        for _ in 0..count.div_ceil(BATCH) {
            black_box(decode::bulk_answer(answer.as_bytes(), BATCH).unwrap());
        }
    })
}

fn mget_answer(count: usize) -> Run {
    let answer = null::mget_answer(BATCH);
    Box::new(move || {
        for _ in 0..count.div_ceil(BATCH) {
            black_box(decode::mget_answer(&answer, BATCH).unwrap());
        }
    })
}

/// What the owner knows of each document when its record comes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Knows {
    /// Not a thing, and nothing is found: it is new.
    Nothing,
    /// It is in the geoshard that the record names.
    Here,
    /// It is in another one.
    Elsewhere,
}

/// Time does not pass: no deadline is met, and valgrind does not have to know the machine's clock.
#[derive(Debug)]
struct StandingClock;

impl Clock for StandingClock {
    fn now(&self) -> Instant {
        Instant::from_start(Duration::from_secs(1_000))
    }
}

/// From a record to its settled outcome: all that a partition's task does but waiting.
struct Whole {
    decoder: Decoder,
    ledger: Ledger,
    state: Option<MoverState>,
    rounds: RequestSender,
    lease: RequestDeadline,
    now: Instant,
    /// There if anything is counted.
    emitter: Option<Emitter>,
    /// Writes by place, of which the level is the default.
    load: LoadCounter,
    batches: usize,
}

impl Whole {
    fn new(cache: PlacementCache, map: Arc<GeoshardMap>, tally: Option<FacetRules>) -> Self {
        let rules = Rules {
            map,
            location: LocationPath::default(),
            on_missing: OnMissing::DeadLetter,
            other_map: None,
            announce_all: false,
            tally,
        };
        let clock = Arc::new(StandingClock);
        let now = clock.now();
        let emitter = rules.tally.is_some().then(|| {
            let source = IncrementSource { topic: "documents".into(), partition: 0, epoch: epoch() };
            Emitter::new(source, Arc::new(Names::new()), Duration::from_secs(1), FIRST_OFFSET, now)
        });
        let rounds = RequestSender {
            elastic: Arc::new(NullElastic),
            permits: Arc::new(Semaphore::new(4)),
            queue: None,
            server: Arc::default(),
            look: 0,
            limits: RequestLimits {
                max_operations: BATCH,
                max_bytes: REQUEST_BYTES,
                request_timeout: Duration::from_secs(30),
            },
            retry: RetryPolicy { initial: Duration::from_millis(100), max: Duration::from_secs(1) },
            clock,
            observer: Arc::new(Unobserved),
        }
        .with_queue();
        let lease =
            RequestDeadline { deadline: now + Duration::from_secs(3_600), cancel: CancellationToken::new() };
        let ledger = Ledger::new(rules.clone(), epoch());
        let state = MoverState { committed: position(FIRST_OFFSET), ..MoverState::new(rules, cache) };
        Self {
            decoder: decoder(),
            ledger,
            state: Some(state),
            rounds,
            lease,
            now,
            emitter,
            load: LoadCounter::new(7),
            batches: 0,
        }
    }

    fn take(&mut self, record: Record) {
        black_box(record.bytes());
        self.ledger.take(self.decoder.decode(raw(&record), &mut Schemas::new()).unwrap(), self.now);
    }

    /// One batch; gives the number of documents that came to their end.
    async fn batch(&mut self) -> u64 {
        let entries = self.ledger.hand_out(BATCH, REQUEST_BYTES, self.now);
        let state = self.state.take().unwrap();
        let finished = geofold::worker::drive::run(state, entries, &self.rounds, &self.lease).await.unwrap();
        if let Some(emitter) = &mut self.emitter {
            emitter.put(finished.edges, self.now);
        }
        self.state = Some(finished.state);
        count_written(&mut self.load, &finished.settled);
        let settlement = self.ledger.settle(finished.settled, self.now);
        assert!(settlement.again.is_empty(), "{settlement:?}");
        let watermark = black_box(self.ledger.watermark());
        self.batches += 1;
        if self.batches.is_multiple_of(BATCHES_PER_COMMIT) {
            self.commit(watermark.unwrap());
        }
        settlement.indexed
    }

    /// An increment goes out, is acknowledged, and so is the commit.
    fn commit(&mut self, watermark: i64) {
        if let Some(emitter) = &mut self.emitter {
            black_box(emitter.next(watermark, self.now));
            emitter.acknowledged();
            self.state.as_mut().unwrap().committed = position(watermark);
        }
    }

    /// All records, with a batch whenever one is full.
    fn run(mut self, records: Vec<Record>, documents: u64) {
        // The rounds select between an answer and the end of their lease, for which tokio needs a timer.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut indexed = 0;
        runtime.block_on(async {
            for record in records {
                self.take(record);
                if self.ledger.pending() >= BATCH {
                    indexed += self.batch().await;
                }
            }
            while self.ledger.has_work() {
                indexed += self.batch().await;
            }
        });
        assert_eq!(indexed, documents);
    }
}

fn whole(count: usize, knows: Knows, tally: Option<FacetRules>) -> Run {
    let map = map();
    let mut cache = PlacementCache::new(NonZeroUsize::new(count.max(1)).unwrap());
    let mut records = records(count, count);
    for record in &mut records {
        record.offset += FIRST_OFFSET;
        let key = record.key.as_deref();
        let at: GeoPoint = LocationPath::default().locate(record.value.as_ref().unwrap()).unwrap();
        let here = map.locate(at);
        let shard = match knows {
            Knows::Nothing => continue,
            Knows::Here => here,
            Knows::Elsewhere => map.shards().iter().find(|shard| *shard != here).unwrap(),
        };
        let mut placement = Placement::new(position(1), Some(shard.clone()), []);
        if let Some(tally) = &tally {
            let facets = tally.facets(record.value.as_ref().unwrap(), shard);
            placement.versions = FacetHistory::default().with(position(1), position(1), facets);
        }
        let known = KnownPlacement::new(placement, SeqNo { seq_no: 1, primary_term: 1 });
        cache.put(&DocId::from_key(key).unwrap(), known);
    }
    let whole = Whole::new(cache, map, tally);
    Box::new(move || whole.run(records, count as u64))
}

/// Everything is folded: ten records of a document come one after the other before a batch has them.
fn hot_keys(count: usize) -> Run {
    let documents = (count / 10).max(1);
    let records = records(count, documents);
    let cache = PlacementCache::new(NonZeroUsize::new(count.max(1)).unwrap());
    let whole = Whole::new(cache, map(), None);
    Box::new(move || {
        let mut whole = whole;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for record in records {
            whole.take(record);
        }
        let mut indexed = 0;
        runtime.block_on(async {
            while whole.ledger.has_work() {
                indexed += whole.batch().await;
            }
        });
        assert_eq!(indexed, documents as u64);
    })
}
