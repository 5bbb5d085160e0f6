//! The schemas that a process has: a bounded number, each fetched once, however many readers lack it at the same time.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use lru::LruCache;
use tokio::time::Instant;

use super::SchemaFetchError;
use super::client::{Client, RegistryOpenError};
use crate::core::schemas::{Schema, SchemaId, UnreadablePayload};
use crate::support::config::SchemaRegistryConfig;
use crate::support::telemetry::families::Counters;
use crate::support::telemetry::schemas::SchemaAnswer;

/// How long a missing or unusable schema is cached, so that a topic full of such records does not query the registry for each.
const BELIEVED: Duration = Duration::from_secs(10);

/// Pause before a missing schema is requested a second time: nodes of a registry learn of new schemas with a delay.
const SECOND_LOOK: Duration = Duration::from_millis(500);

/// A cached schema, or why it is unusable.
pub type CachedSchema = Result<Arc<Schema>, UnreadablePayload>;

type Answer = Result<CachedSchema, SchemaFetchError>;

/// The registry. Cheap to clone; all clones share its cache.
#[derive(Debug, Clone)]
pub struct Registry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: Client,
    state: Mutex<State>,
    answers: Option<Counters<SchemaAnswer>>,
}

#[derive(Debug)]
struct State {
    known: LruCache<SchemaId, (CachedSchema, Instant)>,
    /// Fetches in flight, owned by their waiters; abandoned ones are dropped.
    asked: HashMap<SchemaId, WeakShared<BoxFuture<'static, Answer>>>,
}

impl State {
    fn known(&mut self, id: SchemaId) -> Option<CachedSchema> {
        let (looked, at) = self.known.get(&id)?;
        (looked.is_ok() || at.elapsed() < BELIEVED).then(|| looked.clone())
    }
}

impl Registry {
    /// The configured registry; `answers` counts what it says. Nothing is dialled yet: one that is down is no reason not to begin.
    ///
    /// # Errors
    /// If the configuration cannot be used.
    pub fn open(
        settings: &SchemaRegistryConfig,
        answers: Option<Counters<SchemaAnswer>>,
    ) -> Result<Self, RegistryOpenError> {
        let size = NonZeroUsize::new(settings.cached_schemas).unwrap_or(NonZeroUsize::MIN);
        let state = Mutex::new(State { known: LruCache::new(size), asked: HashMap::new() });
        Ok(Self(Arc::new(Inner { client: Client::new(settings)?, state, answers })))
    }

    /// The schema of this id: from the cache, or asked for once.
    ///
    /// # Errors
    /// If nothing was learnt; asking again may help.
    pub async fn schema(&self, id: SchemaId) -> Result<CachedSchema, SchemaFetchError> {
        let question = {
            let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(looked) = state.known(id) {
                return Ok(looked);
            }
            state.asked.retain(|_, question| question.upgrade().is_some());
            let under_way = state.asked.get(&id).and_then(WeakShared::upgrade);
            match under_way.filter(|question| question.peek().is_none()) {
                Some(question) => question,
                None => {
                    let question: Shared<_> = ask(self.0.clone(), id).boxed().shared();
                    if let Some(weak) = question.downgrade() {
                        state.asked.insert(id, weak);
                    }
                    question
                }
            }
        };
        question.await
    }

    /// What kinds of schemas the registry has: whether it is one, and takes who is asking.
    ///
    /// # Errors
    /// If it gives no such answer.
    pub async fn kinds(&self) -> Result<Vec<String>, SchemaFetchError> {
        self.0.client.types().await
    }
}

async fn ask(inner: Arc<Inner>, id: SchemaId) -> Answer {
    let mut answer = fetch(&inner.client, id).await;
    if matches!(answer, Ok(Err(UnreadablePayload::UnknownSchema(_)))) {
        tokio::time::sleep(SECOND_LOOK).await;
        answer = fetch(&inner.client, id).await;
    }
    if let Some(answers) = &inner.answers {
        answers
            .of(match &answer {
                Ok(Ok(_)) => SchemaAnswer::Found,
                Ok(Err(UnreadablePayload::UnknownSchema(_))) => SchemaAnswer::Unknown,
                Ok(Err(_)) => SchemaAnswer::Unusable,
                Err(_) => SchemaAnswer::Failed,
            })
            .inc();
    }
    if let Ok(looked) = &answer {
        let mut state = inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.known.put(id, (looked.clone(), Instant::now()));
    }
    answer
}

async fn fetch(client: &Client, id: SchemaId) -> Answer {
    let fetched = match client.schema(id).await? {
        Ok(fetched) => fetched,
        Err(why) => return Ok(Err(why)),
    };
    Ok(Schema::compile(id, &fetched).map(Arc::new))
}

#[cfg(test)]
mod tests;
