//! Something of other servers that a page shows: asked for periodically, and only while the page is viewed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::base::clock::{Clock, Instant};

/// The page counts as viewed for this long after a request.
const LOOKS_FOR: Duration = Duration::from_secs(60);
/// For one answer of Elasticsearch.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// The last answer.
#[derive(Debug, Clone, PartialEq)]
pub struct LastAnswer<T> {
    /// When it came, and what it was.
    pub last: Option<(Instant, T)>,
    /// Why the last question brought none.
    pub problem: Option<String>,
}

/// Shared by the page and the task that asks.
#[derive(Debug)]
pub struct Viewed<T> {
    clock: Arc<dyn Clock>,
    state: Mutex<State<T>>,
    looked: Notify,
}

#[derive(Debug)]
struct State<T> {
    last_look: Option<Instant>,
    answer: LastAnswer<T>,
}

impl<T: Clone> Viewed<T> {
    /// No answer, no viewer.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = State { last_look: None, answer: LastAnswer { last: None, problem: None } };
        Arc::new(Self { clock, state: Mutex::new(state), looked: Notify::new() })
    }

    /// The last answer; wakes the task that asks.
    pub fn look(&self) -> LastAnswer<T> {
        let mut state = self.state();
        state.last_look = Some(self.clock.now());
        self.looked.notify_one();
        state.answer.clone()
    }

    /// The last answer, for somebody who does not view the page.
    pub fn last(&self) -> LastAnswer<T> {
        self.state().answer.clone()
    }

    /// Asks every `interval` while the page is viewed, until `stop`.
    pub(super) async fn keep_asking<F: Future<Output = Result<T, String>>>(
        &self,
        interval: Duration,
        ask: impl Fn() -> F,
        stop: CancellationToken,
    ) {
        let asking = async {
            loop {
                while !self.is_looked_at() {
                    self.looked.notified().await;
                }
                self.take(ask().await);
                tokio::time::sleep(interval).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = asking => {}
        }
    }

    /// Takes an answer, as a test would; after a failure the earlier one stays, and grows old.
    pub fn take(&self, answer: Result<T, String>) {
        let mut state = self.state();
        match answer {
            Ok(answer) => {
                state.answer = LastAnswer { last: Some((self.clock.now(), answer)), problem: None };
            }
            Err(problem) => state.answer.problem = Some(problem),
        }
    }

    pub(super) fn is_looked_at(&self) -> bool {
        self.state().last_look.is_some_and(|look| self.clock.now().since(look) <= LOOKS_FOR)
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
