//! Detects a re-created or repartitioned topic while the worker runs.
//!
//! The preflight compares the topic with the remembered one. But partitions may be added, or the topic deleted and
//! created again, under a running worker, and librdkafka continues: keys may then be in other partitions that are read, or the
//! first records of each partition are skipped. So the topic is described every [`INTERVAL`] and at each assignment. A
//! difference stops every partition of the worker (protocol, "What is remembered").

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio::sync::{Notify, watch};

use crate::base::clock::{Clock, Instant};
use crate::io::kafka::{TopicFactsError, TopicFactsFound, topic_facts};
use crate::io::meta::{EpochNeeded, TopicFacts};

/// Time between two checks.
pub const INTERVAL: Duration = Duration::from_secs(30);

/// Timeout of one check.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Result of the checks so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    /// Start of the last completed check.
    looked_at: Option<Instant>,
    /// The topic was re-created or repartitioned. Never reset.
    difference: Option<EpochNeeded>,
}

/// Describes the topic.
pub trait Describe: Send + Sync {
    /// The topic's current description.
    fn describe(&self) -> BoxFuture<'_, Result<TopicFactsFound, TopicFactsError>>;
}

/// Queries the brokers with a consumer outside any group.
pub struct Brokers {
    consumer: Arc<BaseConsumer>,
    topic: Arc<str>,
}

impl Brokers {
    /// Describes `topic` through `consumer`.
    pub fn new(consumer: BaseConsumer, topic: &str) -> Self {
        Self { consumer: Arc::new(consumer), topic: topic.into() }
    }
}

impl Describe for Brokers {
    fn describe(&self) -> BoxFuture<'_, Result<TopicFactsFound, TopicFactsError>> {
        let (consumer, topic) = (self.consumer.clone(), self.topic.clone());
        Box::pin(async move {
            let asked =
                tokio::task::spawn_blocking(move || topic_facts(consumer.client(), &topic, TIMEOUT)).await;
            asked.unwrap_or_else(|error| Err(TopicFactsError::Unreachable(error.to_string())))
        })
    }
}

/// Compares an answer with the topic found at the worker's start.
///
/// No answer is not a difference: unreachable brokers deliver no records either. Nor is "no such topic", which a broker
/// may answer before it learns of the topic; a re-created topic has another id. Nor are fewer partitions under the same
/// id: Kafka never removes any, so that broker lags. Nor are partitions that are added by a multiple: those that are read keep
/// their keys or lose them to new ones, which wait for the next epoch.
pub fn difference(
    started_with: &TopicFacts,
    answer: &Result<TopicFactsFound, TopicFactsError>,
) -> Option<EpochNeeded> {
    let found = answer.as_ref().ok()?;
    let is_same_topic = found.topic_id.is_some() && found.topic_id == started_with.topic_id;
    if is_same_topic && found.partitions < started_with.partitions {
        return None;
    }
    let now = TopicFacts::found(started_with.epoch, found.clone());
    TopicFacts::allows(started_with, &now).err()
}

/// Checks the topic periodically.
pub struct TopicWatch {
    started_with: TopicFacts,
    asked: Arc<Notify>,
    clock: Arc<dyn Clock>,
    seen: watch::Sender<Seen>,
    has_grown: OnceLock<()>,
}

/// A partition task's view of the topic. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TopicView {
    /// `None`: the topic is never checked and assumed unchanged.
    seen: Option<watch::Receiver<Seen>>,
    asked: Arc<Notify>,
}

impl TopicWatch {
    /// For the topic found at the worker's start.
    pub fn new(started_with: TopicFacts, clock: Arc<dyn Clock>) -> (Self, TopicView) {
        let (sender, seen) = watch::channel(Seen::default());
        let asked = Arc::new(Notify::new());
        let reader = TopicView { seen: Some(seen), asked: asked.clone() };
        (Self { started_with, asked, clock, seen: sender, has_grown: OnceLock::new() }, reader)
    }

    /// Checks until there is a difference.
    pub async fn run(self, brokers: impl Describe) {
        while !self.look(&brokers).await {
            tokio::select! {
                () = self.asked_again() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    /// Waits for the next [`TopicView::look_again`].
    pub(crate) async fn asked_again(&self) {
        self.asked.notified().await;
    }

    /// Checks once; `true` if there is a difference.
    pub(crate) async fn look(&self, brokers: &impl Describe) -> bool {
        let began = self.clock.now();
        let answer = brokers.describe().await;
        match &answer {
            Ok(found) => self.note_growth(found.partitions),
            Err(TopicFactsError::Missing) => {
                tracing::warn!(
                    "the brokers know no such topic; if it was deleted, stop all workers, and raise positions.epoch before \
                     they read another one of that name"
                );
            }
            Err(error) => tracing::warn!(%error, "could not describe the topic; retrying"),
        }
        let difference = difference(&self.started_with, &answer);
        if let Some(difference) = &difference {
            tracing::error!(reason = %difference, "the topic changed; all partitions of this worker stop");
        }
        let is_different = difference.is_some();
        self.seen.send_replace(Seen { looked_at: Some(began), difference });
        is_different
    }

    /// Logs once that partitions were added.
    fn note_growth(&self, partitions: i32) {
        if self.started_with.partitions < partitions && self.has_grown.set(()).is_ok() {
            let read = self.started_with.partitions;
            tracing::warn!(
                partitions,
                read,
                "partitions were added to the topic; geofold repartition says when they may be read"
            );
        }
    }
}

impl TopicView {
    /// For a topic that is never checked.
    pub fn fixed() -> Self {
        Self { seen: None, asked: Arc::default() }
    }

    /// Requests a check now.
    pub fn look_again(&self) {
        self.asked.notify_one();
    }

    /// The difference found.
    pub fn difference(&self) -> Option<EpochNeeded> {
        self.seen.as_ref()?.borrow().difference.clone()
    }

    /// Whether a check that began at `since` or later has ended.
    pub fn has_looked_since(&self, since: Instant) -> bool {
        let Some(seen) = &self.seen else { return true };
        seen.borrow().looked_at.is_some_and(|looked_at| looked_at >= since)
    }

    /// Waits until another check has ended; forever once checks have stopped.
    pub async fn looked(&mut self) {
        if let Some(seen) = &mut self.seen
            && seen.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::FutureExt;

    use super::*;
    use crate::base::position::Epoch;
    use crate::testkit::testing::TokioClock;

    type Answer = Result<TopicFactsFound, TopicFactsError>;

    fn found(topic_id: Option<&str>, partitions: i32) -> Answer {
        Ok(TopicFactsFound { topic_id: topic_id.map(str::to_owned), partitions })
    }

    fn started_with(topic_id: Option<&str>) -> TopicFacts {
        TopicFacts {
            epoch: Epoch::new(3).unwrap(),
            topic_id: topic_id.map(str::to_owned),
            partitions: 4,
            map: Some("1-abc".to_owned()),
            added: None,
        }
    }

    #[test]
    fn errors_and_lagging_brokers_are_no_difference() {
        let with_id = started_with(Some("a"));
        for same in [
            found(Some("a"), 4),
            found(None, 4),
            found(Some("a"), 3),
            found(Some("a"), 8),
            Err(TopicFactsError::Missing),
            Err(TopicFactsError::Unreachable("no broker".to_owned())),
            Err(TopicFactsError::Denied("not any more".to_owned())),
        ] {
            assert_eq!(difference(&with_id, &same), None, "{same:?}");
        }
        for (other, words) in [
            (found(Some("a"), 6), "has 6 partitions and had 4"),
            (found(None, 8), "has 8 partitions and had 4"),
            (found(Some("b"), 4), "created anew"),
            (found(Some("b"), 3), "created anew"),
        ] {
            let reason = difference(&with_id, &other).unwrap().to_string();
            assert!(reason.contains(words) && reason.contains("positions.epoch above 3"), "{reason}");
        }
        let without = started_with(None);
        assert_eq!(difference(&without, &found(None, 4)), None);
        assert!(difference(&without, &found(None, 3)).is_some(), "only a topic created again has fewer");
    }

    /// Gives prepared answers; repeats the last one.
    struct Script(Mutex<Vec<Answer>>);

    impl Describe for Arc<Script> {
        fn describe(&self) -> BoxFuture<'_, Answer> {
            let mut answers = self.0.lock().unwrap();
            let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
            async move { answer }.boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn looks_every_30_s_and_on_request_until_a_difference() {
        let clock = Arc::new(TokioClock::new());
        let (watch, mut reader) = TopicWatch::new(started_with(Some("a")), clock.clone());
        let began = clock.now();
        assert!(!reader.has_looked_since(began));
        let unreachable = Err(TopicFactsError::Unreachable("no broker".to_owned()));
        let script = Arc::new(Script(Mutex::new(vec![
            found(Some("a"), 4),
            unreachable,
            found(Some("a"), 4),
            found(Some("a"), 6),
        ])));
        let task = tokio::spawn(watch.run(script));
        reader.looked().await;
        assert!(reader.has_looked_since(began));
        for _ in 0..2 {
            let before = clock.now();
            reader.looked().await;
            assert_eq!(clock.now().since(before), INTERVAL);
            assert_eq!(reader.difference(), None);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = clock.now();
        assert!(!reader.has_looked_since(before));
        reader.look_again();
        reader.looked().await;
        assert_eq!(clock.now(), before);
        assert!(reader.difference().unwrap().to_string().contains("6 partitions"));
        task.await.unwrap();
        assert!(reader.difference().is_some(), "also after checks have stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn unchecked_topic_has_no_difference() {
        let mut reader = TopicView::fixed();
        assert!(reader.has_looked_since(TokioClock::new().now()));
        assert_eq!(reader.difference(), None);
        assert!(reader.looked().now_or_never().is_none());
    }
}
