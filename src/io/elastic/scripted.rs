//! A fake Elasticsearch for tests: answers by script and records requests.

use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::{AdminAnswer, AdminCall, BulkAnswer, BulkOp, CallError, Elastic, Get, GetAnswer, Index};

type AdminScript = dyn Fn(&str, Option<&Value>) -> (u16, Value) + Send + Sync;
type BulkScript = dyn Fn(&[BulkOp]) -> Vec<BulkAnswer> + Send + Sync;
type GetScript = dyn Fn(&Get) -> GetAnswer + Send + Sync;
type RefreshScript = dyn Fn() -> Result<(), CallError> + Send + Sync;

/// Answers by its scripts; a failure set in `broken` takes precedence.
pub(crate) struct Scripted {
    /// By `METHOD /path` and body.
    pub(crate) admin: Box<AdminScript>,
    pub(crate) bulk: Box<BulkScript>,
    pub(crate) get: Box<GetScript>,
    pub(crate) refresh: Box<RefreshScript>,
    pub(crate) broken: Option<CallError>,
    /// An `_mget` whose documents exceed this many bytes fails as too large.
    pub(crate) largest_answer: Option<usize>,
    /// `METHOD /path` of each admin call, `bulk` and `mget`, in order of arrival.
    pub(crate) calls: Mutex<Vec<String>>,
}

impl Default for Scripted {
    /// No documents; accepts every write.
    fn default() -> Self {
        let done = |_: &BulkOp| BulkAnswer { status: 200, stamp: None, error: None };
        Self {
            admin: Box::new(|_, _| (200, json!({}))),
            bulk: Box::new(move |ops| ops.iter().map(done).collect()),
            get: Box::new(|_| GetAnswer::Missing),
            refresh: Box::new(|| Ok(())),
            broken: None,
            largest_answer: None,
            calls: Mutex::default(),
        }
    }
}

impl Scripted {
    fn asked(&self, call: String) -> Result<(), CallError> {
        self.calls.lock().unwrap().push(call);
        self.broken.clone().map_or(Ok(()), Err)
    }
}

impl Elastic for Scripted {
    fn mget<'a>(&'a self, gets: &'a [Get], _: Duration) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
        async move {
            self.asked("mget".to_owned())?;
            let answers: Vec<GetAnswer> = gets.iter().map(&self.get).collect();
            let bytes = answers.iter().map(|answer| match answer {
                GetAnswer::Found(found) => found.source.len(),
                GetAnswer::Missing | GetAnswer::Failed(_) => 0,
            });
            match (bytes.sum::<usize>(), self.largest_answer) {
                (bytes, Some(most)) if bytes > most => {
                    Err(CallError::TooLarge { bytes: bytes as u64, most: most as u64 })
                }
                _ => Ok(answers),
            }
        }
        .boxed()
    }

    fn bulk_refs<'a>(
        &'a self,
        ops: &'a [&'a BulkOp],
        _: Duration,
    ) -> BoxFuture<'a, Result<Vec<BulkAnswer>, CallError>> {
        async move {
            self.asked("bulk".to_owned())?;
            let ops: Vec<BulkOp> = ops.iter().copied().cloned().collect();
            Ok((self.bulk)(&ops))
        }
        .boxed()
    }

    fn refresh<'a>(&'a self, _: &'a [Index], _: Duration) -> BoxFuture<'a, Result<(), CallError>> {
        async move {
            self.asked("refresh".to_owned())?;
            (self.refresh)()
        }
        .boxed()
    }

    fn admin<'a>(&'a self, call: AdminCall, _: Duration) -> BoxFuture<'a, Result<AdminAnswer, CallError>> {
        async move {
            let line = format!("{} {}", format!("{:?}", call.method).to_uppercase(), call.path);
            self.asked(line.clone())?;
            let (status, body) = (self.admin)(&line, call.body.as_ref());
            Ok(AdminAnswer { status, body })
        }
        .boxed()
    }
}
