//! This process's knowledge of the record of the maps, and its age.
//!
//! A watcher reads the record every second and publishes it with the time *before* the read. Every batch checks that this is
//! recent enough: a worker without access to the record stops sending after a batch deadline, and its last batch ends after
//! another. So two batch deadlines after a change no worker acts by the old record, confirmed or not.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::record::MapsRecord;
use super::store::{MapsStore, Stored};
use crate::base::clock::{Clock, Instant};
use crate::base::position::Epoch;
use crate::geoshard::{GeoshardMap, LiveMaps};
use crate::io::elastic::{CallError, Elastic};
use crate::io::stored::RecordError;
use crate::support::telemetry::maps::MapsMetrics;
use crate::support::telemetry::metrics::level;

/// How often the record is read.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often while credentials are refused: each attempt counts where accounts are locked.
const INTERVAL_WHILE_REFUSED: Duration = Duration::from_secs(10);
/// How long one read may take, at most.
const LONGEST_READ: Duration = Duration::from_secs(10);

/// How recent knowledge is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Nothing was read yet.
    Never,
    /// When it was requested.
    Asked(Instant),
    /// It cannot change.
    Always,
}

#[derive(Debug, Clone)]
struct Knowledge {
    record: Arc<MapsRecord>,
    at: At,
}

/// Reads the state of the maps. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MapsReader {
    known: watch::Receiver<Knowledge>,
    max_age: Duration,
    clock: Arc<dyn Clock>,
}

impl MapsReader {
    /// One map, which cannot be changed: for tests and tools.
    pub fn fixed(map: Arc<GeoshardMap>, clock: Arc<dyn Clock>) -> Self {
        Self::as_read(MapsRecord::unwritten(map, Epoch::default()), clock)
    }

    /// The record as it was read just now: for tools that come to an end at once.
    pub fn as_read(record: MapsRecord, clock: Arc<dyn Clock>) -> Self {
        let record = Arc::new(record);
        let known = watch::channel(Knowledge { record, at: At::Always }).1;
        Self { known, max_age: Duration::ZERO, clock }
    }

    /// The record as last read; before that, the configured map.
    pub fn record(&self) -> Arc<MapsRecord> {
        self.known.borrow().record.clone()
    }

    /// Whether the record was read at all. Before that even the map that records are decoded by is a guess.
    pub fn is_known(&self) -> bool {
        self.known.borrow().at != At::Never
    }

    /// Whether the record was read so recently that a batch may be sent by it.
    pub fn is_fresh(&self) -> bool {
        let at = self.known.borrow().at;
        match at {
            At::Never => false,
            At::Asked(at) => self.clock.now().since(at) <= self.max_age,
            At::Always => true,
        }
    }

    /// The maps that a reader must query; `None` while unknown.
    pub fn live(&self) -> Option<LiveMaps> {
        self.is_fresh().then(|| self.record().live())
    }

    /// Waits until the next read. Never ends if reading has stopped.
    pub async fn read_again(&mut self) {
        if self.known.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Reads the record, again and again.
pub struct Watcher {
    elastic: Arc<dyn Elastic>,
    topic: String,
    timeout: Duration,
    clock: Arc<dyn Clock>,
    metrics: MapsMetrics,
    known: watch::Sender<Knowledge>,
}

impl Watcher {
    /// Of `topic`'s record. Until one is found, `configured` is the only map. What was read is good for `max_age`
    /// (`batch.timeout`).
    pub fn new(
        elastic: Arc<dyn Elastic>,
        topic: &str,
        configured: MapsRecord,
        max_age: Duration,
        clock: Arc<dyn Clock>,
        metrics: MapsMetrics,
    ) -> (Self, MapsReader) {
        let record = Arc::new(configured);
        let (sender, receiver) = watch::channel(Knowledge { record, at: At::Never });
        let reader = MapsReader { known: receiver, max_age, clock: clock.clone() };
        let timeout = (max_age / 4).min(LONGEST_READ);
        (Self { elastic, topic: topic.to_owned(), timeout, clock, metrics, known: sender }, reader)
    }

    /// Reads until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            let is_refused = self.look().await;
            let interval = if is_refused { INTERVAL_WHILE_REFUSED } else { INTERVAL };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
        }
    }

    /// Reads once. Returns whether the credentials are refused.
    pub async fn look(&self) -> bool {
        let asked = self.clock.now();
        let read = MapsStore::new(&*self.elastic, &self.topic, self.timeout).read().await;
        let is_refused = matches!(
            &read,
            Err(RecordError::Call { error: CallError::Status { status: 401 | 403, .. }, .. })
        );
        match self.judge(read) {
            Ok(record) => {
                self.metrics.generation.set(level(record.generation));
                self.metrics.live.set(if record.has_two() { 2 } else { 1 });
                self.known.send_replace(Knowledge { record, at: At::Asked(asked) });
            }
            Err(error) => {
                tracing::warn!(
                    error,
                    "could not read the record of the maps; nothing is sent once the known state is older than batch.timeout"
                );
            }
        }
        let age = match self.known.borrow().at {
            At::Asked(at) => self.clock.now().since(at),
            At::Never | At::Always => Duration::ZERO,
        };
        self.metrics.age_seconds.set(age.as_secs_f64());
        is_refused
    }

    /// The state after this read. A record never goes back, nor disappears.
    fn judge(&self, read: Result<Option<Stored>, RecordError>) -> Result<Arc<MapsRecord>, String> {
        let known = self.known.borrow().record.clone();
        match read {
            Err(error) => Err(error.to_string()),
            Ok(None) if known.generation == 0 => Ok(known),
            Ok(None) => Err(format!("it is gone, and its generation was {}", known.generation)),
            Ok(Some(Stored { record, .. })) if record.generation < known.generation => {
                Err(format!("its generation is {}, and was {}", record.generation, known.generation))
            }
            Ok(Some(Stored { record, .. })) if record == *known => Ok(known),
            Ok(Some(Stored { record, .. })) => {
                let deciding = record.deciding().fingerprint();
                tracing::info!(
                    generation = record.generation,
                    deciding,
                    two_maps = record.has_two(),
                    "maps in force"
                );
                Ok(Arc::new(record))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::ShardId;
    use crate::support::telemetry::Metrics;
    use crate::testkit::testing::{MemoryElastic, TokioClock, six_faces};

    const MAX_AGE: Duration = Duration::from_secs(60);

    struct Rig {
        elastic: Arc<MemoryElastic>,
        watcher: Watcher,
        reader: MapsReader,
    }

    impl Rig {
        fn new() -> Self {
            let elastic = MemoryElastic::for_map(&six_faces());
            let clock = Arc::new(TokioClock::new());
            let configured = MapsRecord::unwritten(six_faces(), Epoch::default());
            let metrics = Metrics::new().unwrap().maps.clone();
            let (watcher, reader) = Watcher::new(elastic.clone(), "t", configured, MAX_AGE, clock, metrics);
            Self { elastic, watcher, reader }
        }

        async fn store(&self, record: &MapsRecord) {
            let store = MapsStore::new(&*self.elastic, "t", MAX_AGE);
            let over = store.read().await.unwrap().map(|stored| stored.stamp);
            store.write(record, over).await.unwrap();
        }
    }

    fn announced() -> MapsRecord {
        let new = GeoshardMap::new(2, "one", vec![(0, ShardId::new("all").unwrap())]).unwrap();
        MapsRecord::unwritten(six_faces(), Epoch::default()).begin(Arc::new(new)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn configured_map_holds_when_there_is_no_record() {
        let rig = Rig::new();
        assert!(!rig.reader.is_fresh() && rig.reader.live().is_none());
        rig.watcher.look().await;
        assert_eq!(rig.reader.live(), Some(LiveMaps::One(six_faces())));
    }

    #[tokio::test(start_paused = true)]
    async fn while_credentials_are_refused_few_attempts_are_made() {
        let rig = Rig::new();
        rig.elastic.set_faults(|faults| faults.unauthorized = true);
        let stop = CancellationToken::new();
        let watching = tokio::spawn(rig.watcher.run(stop.clone()));
        tokio::time::sleep(Duration::from_secs(29)).await;
        assert_eq!(rig.elastic.calls(), 3);
        rig.elastic.set_faults(|faults| faults.unauthorized = false);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(rig.reader.is_fresh() && rig.elastic.calls() > 5);
        stop.cancel();
        watching.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn knowledge_is_as_old_as_the_question_and_too_old_after_its_time() {
        let rig = Rig::new();
        rig.store(&announced()).await;
        rig.elastic.set_faults(|faults| faults.delay = Duration::from_secs(4));
        rig.watcher.look().await;
        assert!(rig.reader.record().has_two());
        tokio::time::sleep(MAX_AGE - Duration::from_secs(4)).await;
        assert!(rig.reader.is_fresh());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!rig.reader.is_fresh() && rig.reader.live().is_none(), "counted from before it was asked");
        rig.watcher.look().await;
        assert!(rig.reader.is_fresh());
    }

    #[tokio::test(start_paused = true)]
    async fn older_or_missing_record_is_ignored() {
        let mut rig = Rig::new();
        rig.store(&announced()).await;
        rig.watcher.look().await;
        for stored in [Some(MapsRecord { generation: 0, ..announced() }), None] {
            match stored {
                Some(record) => rig.store(&record).await,
                None => rig.elastic = MemoryElastic::for_map(&six_faces()),
            }
            rig.watcher.elastic = rig.elastic.clone();
            tokio::time::sleep(MAX_AGE + Duration::from_secs(1)).await;
            rig.watcher.look().await;
            assert!(!rig.reader.is_fresh());
            assert_eq!(*rig.reader.record(), announced());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn map_is_stale_while_the_server_is_silent_then_fresh() {
        let rig = Rig::new();
        let (stop, mut reader, elastic) = (CancellationToken::new(), rig.reader.clone(), rig.elastic.clone());
        let running = tokio::spawn(rig.watcher.run(stop.clone()));
        reader.read_again().await;
        elastic.set_faults(|faults| faults.down = true);
        tokio::time::sleep(MAX_AGE * 2).await;
        assert!(!reader.is_fresh());
        elastic.set_faults(|faults| faults.down = false);
        reader.read_again().await;
        assert!(reader.is_fresh());
        stop.cancel();
        running.await.unwrap();
    }
}
