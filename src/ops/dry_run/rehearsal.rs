//! The search server as a dry run sees it: reads are real, writes are kept in memory and seen by the reads after them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::base::ids::DocId;
use crate::io::elastic::condition::VersionCondition;
use crate::io::elastic::{
    AdminAnswer, AdminCall, BulkAnswer, BulkOp, CallError, Elastic, FoundDocument, Get, GetAnswer, Index,
    ItemError, Method, SeqNo,
};

/// Memory overhead per document, in bytes.
const OVERHEAD_BYTES: usize = 200;

/// Wraps a real server and sends no writes. Versions and states follow Elasticsearch's rules (`tests/contract`), so that the
/// mover decides as it would.
pub struct DryRunElastic {
    real: Arc<dyn Elastic>,
    // Never held across an await.
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// Documents read or written, in their predicted state.
    documents: HashMap<(Index, DocId), Remembered>,
    /// How many writes were kept back: the states that they leave have numbers of their own.
    writes: u64,
    bytes: usize,
}

#[derive(Debug, Clone)]
struct Remembered {
    /// 0 if it was never there.
    version: u64,
    stamp: SeqNo,
    /// `None`: it is not there.
    source: Option<Bytes>,
}

impl Remembered {
    const ABSENT: Self = Self { version: 0, stamp: SeqNo { seq_no: 0, primary_term: 0 }, source: None };

    fn answer(&self) -> GetAnswer {
        match &self.source {
            None => GetAnswer::Missing,
            Some(source) => GetAnswer::Found(FoundDocument {
                version: self.version,
                stamp: self.stamp,
                source: source.clone(),
            }),
        }
    }
}

impl DryRunElastic {
    /// Before `real`.
    pub fn new(real: Arc<dyn Elastic>) -> Self {
        Self { real, memory: Mutex::default() }
    }

    /// Memory of the documents read or written, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.memory().bytes
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Each change of it is whole, or did not happen.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads unknown documents. Returns the slots that the server could not answer.
    async fn learn(
        &self,
        gets: impl Iterator<Item = Get>,
        timeout: Duration,
    ) -> Result<HashMap<(Index, DocId), ItemError>, CallError> {
        let unknown: Vec<Get> = {
            let memory = self.memory();
            gets.filter(|get| !memory.documents.contains_key(&(get.index.clone(), get.id.clone()))).collect()
        };
        let mut failed = HashMap::new();
        if unknown.is_empty() {
            return Ok(failed);
        }
        let answers = self.real.mget(&unknown, timeout).await?;
        let mut memory = self.memory();
        for (Get { index, id, .. }, answer) in unknown.into_iter().zip(answers) {
            let remembered = match answer {
                GetAnswer::Failed(error) => {
                    failed.insert((index, id), error);
                    continue;
                }
                GetAnswer::Missing => Remembered::ABSENT,
                GetAnswer::Found(FoundDocument { version, stamp, source }) => {
                    Remembered { version, stamp, source: Some(source) }
                }
            };
            memory.remember(index, id, remembered);
        }
        Ok(failed)
    }
}

impl Memory {
    fn remember(&mut self, index: Index, id: DocId, remembered: Remembered) {
        let size = |remembered: &Remembered| remembered.source.as_ref().map_or(0, Bytes::len);
        self.bytes += OVERHEAD_BYTES + size(&remembered);
        if let Some(before) = self.documents.insert((index, id), remembered) {
            self.bytes -= OVERHEAD_BYTES + size(&before);
        }
    }

    fn now(&self, index: &Index, id: &DocId) -> Remembered {
        self.documents.get(&(index.clone(), id.clone())).cloned().unwrap_or(Remembered::ABSENT)
    }

    fn carry_out(&mut self, op: &BulkOp) -> BulkAnswer {
        let (index, id) = op.address();
        let before = self.now(index, id);
        let condition = VersionCondition::from(op);
        let known = (before.version > 0).then_some(before.version);
        let version = condition.version_after(known);
        if !condition.allows(known, before.source.as_ref().map(|_| before.stamp)) {
            return conflict(&before, version);
        }
        let source = match op {
            BulkOp::Index { source, .. } => Some(source.clone()),
            BulkOp::Delete { .. } | BulkOp::Remove { .. } => None,
        };
        let status = match (&source, &before.source) {
            (None, None) => 404,
            (Some(_), None) => 201,
            _ => 200,
        };
        self.writes += 1;
        // No state of the real server has this term, so none is taken for another.
        let stamp = SeqNo { seq_no: self.writes, primary_term: u64::MAX };
        self.remember(index.clone(), id.clone(), Remembered { version, stamp, source });
        BulkAnswer { status, stamp: Some(stamp), error: None }
    }
}

fn conflict(before: &Remembered, version: u64) -> BulkAnswer {
    let error = ItemError {
        status: 409,
        kind: "version_conflict_engine_exception".to_owned(),
        reason: format!("current version [{}], provided [{version}]", before.version),
    };
    BulkAnswer { status: 409, stamp: None, error: Some(Box::new(error)) }
}

impl Elastic for DryRunElastic {
    fn mget<'a>(
        &'a self,
        gets: &'a [Get],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
        async move {
            let mut failed = self.learn(gets.iter().cloned(), timeout).await?;
            let memory = self.memory();
            let answer = |get: &Get| match failed.remove(&(get.index.clone(), get.id.clone())) {
                Some(error) => GetAnswer::Failed(error),
                None => memory.now(&get.index, &get.id).answer(),
            };
            Ok(gets.iter().map(answer).collect())
        }
        .boxed()
    }

    fn bulk_refs<'a>(
        &'a self,
        ops: &'a [&'a BulkOp],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<BulkAnswer>, CallError>> {
        async move {
            let gets = ops.iter().map(|op| {
                let (index, id) = op.address();
                Get::realtime(index.clone(), id.clone())
            });
            let failed = self.learn(gets, timeout).await?;
            let mut memory = self.memory();
            let answer = |op: &&BulkOp| {
                let (index, id) = op.address();
                match failed.get(&(index.clone(), id.clone())) {
                    None => memory.carry_out(op),
                    // An index that is not there: a write would fail as well, and be tried again.
                    Some(error) => {
                        BulkAnswer { status: 503, stamp: None, error: Some(Box::new(error.clone())) }
                    }
                }
            };
            Ok(ops.iter().map(answer).collect())
        }
        .boxed()
    }

    fn refresh<'a>(&'a self, _: &'a [Index], _: Duration) -> BoxFuture<'a, Result<(), CallError>> {
        // Nothing was written that could become visible.
        async { Ok(()) }.boxed()
    }

    fn admin<'a>(
        &'a self,
        call: AdminCall,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<AdminAnswer, CallError>> {
        match call.method {
            Method::Get | Method::Head => self.real.admin(call, timeout),
            Method::Put | Method::Post | Method::Delete => {
                async { Err(CallError::Undecodable("a dry run changes nothing".to_owned())) }.boxed()
            }
        }
    }
}
