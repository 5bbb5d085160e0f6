//! The store of last runs (rule: `run_after.rs`): in this process, or in a memcached shared by all workers. Only an
//! optimisation: without an answer in time the decision is "run".

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::IntCounter;

use super::memcached::{Memcached, MemcachedError};
use super::run_after::{Mark, RunRecord, Token, new_generation};
use crate::base::circuit_breaker::CircuitBreaker;
use crate::base::clock::Clock;

/// Consecutive failures after which memcached is not used for a while.
const FAILURES: u32 = 3;

/// The length of that pause.
const PAUSE: Duration = Duration::from_secs(5);

/// The decision about a due run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunDecision {
    /// A run that started after all of it has succeeded, or the rest is not due yet.
    NothingDue,
    /// A run started after the oldest of it and has not finished yet.
    UnderWay,
    /// Run.
    Run,
}

/// A shared record and the decision made from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// The decision.
    pub decision: RunDecision,
    /// The record read; `None` if unknown.
    pub record: Option<RunRecord>,
    /// The token of a run that begins now; `None`: its success cannot be shared.
    pub token: Option<Token>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct LastRuns {
    store: Store,
}

#[derive(Debug)]
enum Store {
    Memory(Mutex<HashMap<String, RunRecord, ahash::RandomState>>),
    Memcached {
        memcached: Memcached,
        breaker: Mutex<CircuitBreaker>,
        clock: Arc<dyn Clock>,
        failures: IntCounter,
    },
}

impl LastRuns {
    /// In this process. One record per key, i.e. per job and geoshard.
    pub fn in_memory() -> Self {
        Self { store: Store::Memory(Mutex::default()) }
    }

    /// In a memcached; `failures` counts unanswered calls.
    pub fn in_memcached(memcached: Memcached, clock: Arc<dyn Clock>, failures: IntCounter) -> Self {
        let breaker = Mutex::new(CircuitBreaker::new(FAILURES));
        Self { store: Store::Memcached { memcached, breaker, clock, failures } }
    }

    /// The current counters, for updates completed by now. `None`: unknown.
    pub async fn marks(&self, keys: &[String]) -> Vec<Option<Mark>> {
        let records = match &self.store {
            Store::Memory(records) => {
                let records = records.lock().unwrap_or_else(PoisonError::into_inner);
                keys.iter().map(|key| records.get(key).copied()).collect()
            }
            Store::Memcached { memcached, .. } => {
                self.ask(memcached.read(keys)).await.unwrap_or_else(|| vec![None; keys.len()])
            }
        };
        records.into_iter().map(|record| record.as_ref().map(RunRecord::mark)).collect()
    }

    /// Decides on a run by the current record, and takes a token if it begins: atomically.
    pub async fn begin(
        &self,
        key: &str,
        mut decide: impl FnMut(Option<&RunRecord>) -> RunDecision + Send,
    ) -> Begun {
        let mut begun = Begun { decision: RunDecision::Run, record: None, token: None };
        let change = |found: Option<RunRecord>| {
            let decision = decide(found.as_ref());
            begun = Begun { decision, record: found, token: None };
            if decision != RunDecision::Run {
                return None;
            }
            let (record, token) = found.unwrap_or_else(|| RunRecord::new(new_generation())).start()?;
            begun.token = Some(token);
            Some(record)
        };
        if !self.update(key, change).await {
            // The value read may be right, but in doubt a run is made.
            return Begun { decision: RunDecision::Run, record: None, token: None };
        }
        begun
    }

    /// Records that the run of this token has succeeded. If that fails, other workers run once more.
    pub async fn succeeded(&self, key: &str, token: Token) {
        self.update(key, |found| found.and_then(|record| record.succeed(token))).await;
    }

    /// `false` if it may not have been executed.
    async fn update(
        &self,
        key: &str,
        mut change: impl FnMut(Option<RunRecord>) -> Option<RunRecord> + Send,
    ) -> bool {
        match &self.store {
            Store::Memory(records) => {
                let mut records = records.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(record) = change(records.get(key).copied()) {
                    records.insert(key.to_owned(), record);
                }
                true
            }
            Store::Memcached { memcached, .. } => self.ask(memcached.update(key, change)).await.is_some(),
        }
    }

    /// Calls memcached unless it is paused; `None` without an answer.
    async fn ask<T>(&self, call: impl Future<Output = Result<T, MemcachedError>>) -> Option<T> {
        let Store::Memcached { memcached, breaker, clock, failures } = &self.store else { return None };
        let breaker = || breaker.lock().unwrap_or_else(PoisonError::into_inner);
        if !breaker().admits(clock.now()) {
            return None;
        }
        let result = call.await;
        match &result {
            // A contended record is an answer, too.
            Ok(_) | Err(MemcachedError::Contended) => {
                if breaker().succeeded() >= FAILURES {
                    tracing::info!(?memcached, "memcached answers again");
                }
            }
            Err(error) => {
                failures.inc();
                let mut has_opened = false;
                breaker().failed(clock.now(), |pauses| {
                    has_opened = pauses == 0;
                    PAUSE
                });
                if has_opened {
                    tracing::warn!(
                        ?memcached,
                        %error,
                        "memcached is unavailable; every worker runs its own distributions meanwhile"
                    );
                }
            }
        }
        result.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::BootClock;
    use crate::testkit::ports::free_address;

    #[tokio::test]
    async fn run_is_seen_by_updates_marked_before_it() {
        let runs = LastRuns::in_memory();
        let key = ["k".to_owned()];
        assert_eq!(runs.marks(&key).await, [None], "no run yet");
        let begun = runs.begin("k", |_| RunDecision::Run).await;
        let during = runs.marks(&key).await[0].unwrap();
        runs.succeeded("k", begun.token.unwrap()).await;
        let covers = |mark: Mark| {
            move |record: Option<&RunRecord>| match record {
                Some(record) if record.covers(mark) => RunDecision::NothingDue,
                _ => RunDecision::Run,
            }
        };
        let before = Mark { counter: 0, ..during };
        assert_eq!(runs.begin("k", covers(before)).await.decision, RunDecision::NothingDue);
        assert_eq!(runs.begin("k", covers(during)).await.decision, RunDecision::Run);
    }

    #[tokio::test]
    async fn without_memcached_everything_runs_without_long_waits() {
        let nowhere = free_address().unwrap().to_string();
        let memcached = Memcached::new(&nowhere, Duration::from_millis(50));
        let failures = IntCounter::new("failures", "of a test").unwrap();
        let runs = LastRuns::in_memcached(memcached, Arc::new(BootClock), failures.clone());
        for _ in 0..10 {
            assert_eq!(runs.marks(&["k".to_owned()]).await, [None]);
            let begun = runs.begin("k", |_| RunDecision::Run).await;
            assert_eq!(begun, Begun { decision: RunDecision::Run, record: None, token: None });
        }
        assert_eq!(failures.get(), u64::from(FAILURES), "and then it is paused");
    }
}
