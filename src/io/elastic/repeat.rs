//! Reads and refreshes that are repeated while the server is busy or does not answer: a command that reads for hours must not
//! end because of one request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::answer::{CallVerdict, judge_call};
use super::refreshes::RefreshCounts;
use super::{AdminAnswer, AdminCall, BulkAnswer, BulkOp, CallError, Elastic, Get, GetAnswer, Index, Method};
use crate::base::retry::RetryPolicy;

/// How often a request is sent at most.
const MOST_TRIES: u32 = 8;

/// With [`MOST_TRIES`] long enough for a node that restarts: 45 s on average.
const PAUSES: RetryPolicy = RetryPolicy { initial: Duration::from_secs(1), max: Duration::from_secs(30) };

/// Statuses of an admin call that another try may change: too many requests, and a gateway or node without an answer.
const TRANSIENT: [u16; 4] = [429, 502, 503, 504];

/// An Elasticsearch whose reads and refreshes are repeated, eight tries at most. Writes are passed on as they are. A server that
/// has never answered is reported at once: its address is more likely wrong than its state.
pub struct RepeatedReads {
    inner: Arc<dyn Elastic>,
    has_answered: AtomicBool,
}

impl RepeatedReads {
    /// Repeats reads of `inner`.
    pub fn new(inner: Arc<dyn Elastic>) -> Self {
        Self { inner, has_answered: AtomicBool::new(false) }
    }

    /// Sends `request` until its outcome is not transient, or tries are used up.
    async fn repeat<'a, T>(
        &self,
        what: &str,
        request: impl Fn() -> BoxFuture<'a, Result<T, CallError>>,
        is_transient: impl Fn(&T) -> bool,
    ) -> Result<T, CallError> {
        let mut delays = PAUSES.delays();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let outcome = request().await;
            if matches!(outcome, Ok(_) | Err(CallError::Status { .. })) {
                self.has_answered.store(true, Ordering::Relaxed);
            }
            let again = match &outcome {
                Ok(answer) => is_transient(answer).then_some(None),
                Err(error) => match judge_call(error) {
                    CallVerdict::Again { after } => {
                        self.has_answered.load(Ordering::Relaxed).then_some(after)
                    }
                    CallVerdict::Split | CallVerdict::Unauthorized => None,
                },
            };
            let Some(at_least) = again.filter(|_| attempt < MOST_TRIES) else { return outcome };
            let delay = delays.next(at_least);
            match outcome {
                Err(error) => tracing::warn!(%error, attempt, ?delay, "repeating {what}"),
                Ok(_) => tracing::warn!(attempt, ?delay, "elasticsearch is busy; repeating {what}"),
            }
            tokio::time::sleep(delay).await;
        }
    }
}

/// Whether a call changes nothing. A point in time whose answer is lost ends by itself.
fn reads(call: &AdminCall) -> bool {
    let path = call.path.split('?').next().unwrap_or_default();
    match call.method {
        Method::Get | Method::Head => true,
        Method::Post => ["/_search", "/_count", "/_pit"].iter().any(|end| path.ends_with(end)),
        Method::Put | Method::Delete => false,
    }
}

impl Elastic for RepeatedReads {
    fn mget<'a>(
        &'a self,
        gets: &'a [Get],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
        self.repeat("a read of documents", move || self.inner.mget(gets, timeout), |_| false).boxed()
    }

    fn mget_again<'a>(
        &'a self,
        gets: &'a [Get],
        look: usize,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
        self.inner.mget_again(gets, look, timeout)
    }

    fn bulk_refs<'a>(
        &'a self,
        ops: &'a [&'a BulkOp],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<BulkAnswer>, CallError>> {
        self.inner.bulk_refs(ops, timeout)
    }

    fn refresh<'a>(
        &'a self,
        indices: &'a [Index],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        self.repeat("a refresh", move || self.inner.refresh(indices, timeout), |()| false).boxed()
    }

    fn count_refreshes<'a>(
        &'a self,
        indices: &'a [Index],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<RefreshCounts>, CallError>> {
        self.inner.count_refreshes(indices, timeout)
    }

    fn admin<'a>(
        &'a self,
        call: AdminCall,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<AdminAnswer, CallError>> {
        if !reads(&call) {
            return self.inner.admin(call, timeout);
        }
        async move {
            let request = || self.inner.admin(call.clone(), timeout);
            self.repeat("a read", request, |answer| TRANSIENT.contains(&answer.status)).await
        }
        .boxed()
    }

    fn admin_bytes<'a>(
        &'a self,
        call: AdminCall,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<(u16, Bytes), CallError>> {
        if !reads(&call) {
            return self.inner.admin_bytes(call, timeout);
        }
        async move {
            let request = || self.inner.admin_bytes(call.clone(), timeout);
            self.repeat("a read", request, |(status, _)| TRANSIENT.contains(status)).await
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use serde_json::{Value, json};

    use super::*;
    use crate::io::elastic::scripted::Scripted;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Fails so many refreshes after the first.
    fn failing(failures: usize) -> (Arc<Scripted>, RepeatedReads) {
        let asked = AtomicUsize::new(0);
        let refresh = move || match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            nth if nth <= failures => Err(CallError::Timeout(TIMEOUT)),
            _ => Ok(()),
        };
        let scripted = Arc::new(Scripted { refresh: Box::new(refresh), ..Scripted::default() });
        (scripted.clone(), RepeatedReads::new(scripted))
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_without_an_answer_is_repeated_some_times() {
        let (scripted, elastic) = failing(7);
        assert_eq!(elastic.refresh(&[], TIMEOUT).await, Ok(()));
        assert_eq!(elastic.refresh(&[], TIMEOUT).await, Ok(()));
        assert_eq!(scripted.calls.lock().unwrap().len(), 1 + 8);

        let (scripted, elastic) = failing(9);
        assert_eq!(elastic.refresh(&[], TIMEOUT).await, Ok(()));
        assert_eq!(elastic.refresh(&[], TIMEOUT).await, Err(CallError::Timeout(TIMEOUT)));
        assert_eq!(scripted.calls.lock().unwrap().len(), 1 + 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answered_is_reported_at_once() {
        let broken = Some(CallError::Connection("refused".to_owned()));
        let scripted = Arc::new(Scripted { broken, ..Scripted::default() });
        let elastic = RepeatedReads::new(scripted.clone());
        assert!(elastic.refresh(&[], TIMEOUT).await.is_err());
        assert!(elastic.mget(&[], TIMEOUT).await.is_err());
        assert_eq!(*scripted.calls.lock().unwrap(), ["refresh", "mget"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_busy_from_the_start_has_answered() {
        let busy = CallError::Status {
            status: 429,
            kind: "es_rejected_execution_exception".to_owned(),
            reason: String::new(),
            retry_after: None,
        };
        let scripted = Arc::new(Scripted { broken: Some(busy), ..Scripted::default() });
        assert!(RepeatedReads::new(scripted.clone()).refresh(&[], TIMEOUT).await.is_err());
        assert_eq!(scripted.calls.lock().unwrap().len(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_server_is_asked_again_for_reads_and_not_for_writes() {
        let cases = [
            (Method::Get, "/_cat/indices", 503, 8),
            (Method::Post, "/places/_search?size=1", 429, 8),
            (Method::Post, "/places/_pit?keep_alive=1m", 504, 8),
            (Method::Post, "/places/_search", 400, 1),
            (Method::Post, "/places/_doc", 503, 1),
            (Method::Put, "/places", 503, 1),
            (Method::Delete, "/_pit", 503, 1),
        ];
        for (method, path, status, sent) in cases {
            let admin = Box::new(move |_: &str, _: Option<&Value>| (status, json!({})));
            let scripted = Arc::new(Scripted { admin, ..Scripted::default() });
            let elastic = RepeatedReads::new(scripted.clone());
            let call = AdminCall { method, path: path.to_owned(), body: None };
            assert_eq!(elastic.admin_bytes(call.clone(), TIMEOUT).await.unwrap().0, status, "{call:?}");
            assert_eq!(scripted.calls.lock().unwrap().len(), sent, "{call:?}");
            assert_eq!(elastic.admin(call, TIMEOUT).await.unwrap().status, status);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bulk_request_is_sent_once() {
        let broken = Some(CallError::Timeout(TIMEOUT));
        let scripted = Arc::new(Scripted { broken, ..Scripted::default() });
        let elastic = RepeatedReads::new(scripted.clone());
        elastic.has_answered.store(true, Ordering::Relaxed);
        assert!(elastic.bulk(&[], TIMEOUT).await.is_err());
        assert_eq!(*scripted.calls.lock().unwrap(), ["bulk"]);
    }
}
