//! Logins with tokens (SASL OAUTHBEARER): of an OAuth token endpoint, or signed for Amazon MSK.
//!
//! All clients of a source share its token. A thread of its own fetches it, and the next when half of its lifetime is over: no
//! client waits for a slow endpoint while the old token is good. librdkafka asks for another one after four fifths of what was
//! left when it got the last; it must not get that one again, for brokers refuse clients that log in twice within a second.
//!
//! librdkafka asks a client's context for a token, in `poll`, when it is made and before its token ends: [`token`]. A client
//! that is not polled gets one before each request: [`log_in`].

mod endpoint;
mod msk;

use std::collections::HashMap;
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::consumer::ConsumerContext;
use thiserror::Error;

use self::endpoint::Endpoint;
use self::msk::Msk;
use super::native;
use crate::support::config::kafka_login::TokenSource;

/// How long a request for a token may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client waits for the first token: for a request, and the start of a thread.
const PATIENCE: Duration = Duration::from_secs(12);
/// Between an attempt that failed and the next.
const PAUSE: Duration = Duration::from_secs(5);
/// The least time between two tokens, whatever their lifetime.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);

/// Why there is no token, in words for people.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoToken {
    /// The configuration or the credentials have to be changed.
    #[error("{0}")]
    Refused(String),
    /// Whoever makes tokens may do so later.
    #[error("{0}")]
    Unavailable(String),
}

impl NoToken {
    /// The same, with the name of the source that it is about.
    fn of(self, source: &TokenSource) -> Self {
        let whole = |reason: String| format!("no token for Kafka from {}: {reason}", source.name());
        match self {
            Self::Refused(reason) => Self::Refused(whole(reason)),
            Self::Unavailable(reason) => Self::Unavailable(whole(reason)),
        }
    }
}

/// What librdkafka gets of a client's context.
pub type TokenResult = Result<OAuthToken, Box<dyn std::error::Error>>;

/// The context of clients that have none of their own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Login;

impl ClientContext for Login {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, source: Option<&str>) -> TokenResult {
        token(source)
    }
}

impl ConsumerContext for Login {}

/// A token for a client with this `sasl.oauthbearer.config`. Blocks while there is none yet.
///
/// # Errors
/// If there is none: [`NoToken`].
pub fn token(source: Option<&str>) -> TokenResult {
    Ok(current(source.unwrap_or_default())?)
}

/// Gives a client the token of now; does nothing with one that logs in otherwise. Blocks while there is none yet.
///
/// # Errors
/// If there is none.
pub fn log_in<C: ClientContext>(client: &Client<C>) -> Result<(), NoToken> {
    match native::login_source(client) {
        None => Ok(()),
        Some(source) => native::set_token(client, &current(&source)?).map_err(NoToken::Refused),
    }
}

/// A token, and until when it is good.
struct Token {
    text: String,
    /// Whose it is; brokers read it from the token itself.
    principal: String,
    end: SystemTime,
}

impl Token {
    fn is_good(&self, now: SystemTime) -> bool {
        now < self.end
    }

    /// From `now` until the next one is fetched.
    fn next_in(&self, now: SystemTime) -> Duration {
        let left = self.end.duration_since(now).unwrap_or_default();
        (left / 2).max(LEAST_INTERVAL)
    }

    fn for_client(&self) -> OAuthToken {
        let end = self.end.duration_since(UNIX_EPOCH).unwrap_or_default();
        OAuthToken {
            token: self.text.clone(),
            principal_name: self.principal.clone(),
            lifetime_ms: i64::try_from(end.as_millis()).unwrap_or(i64::MAX),
        }
    }
}

/// What the last attempt brought.
#[derive(Default)]
struct State {
    token: Option<Token>,
    error: Option<NoToken>,
}

/// The token of one source.
#[derive(Default)]
struct Kept {
    state: Mutex<State>,
    changed: Condvar,
}

impl Kept {
    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn current(&self) -> Result<OAuthToken, NoToken> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unknown = |state: &mut State| {
            state.error.is_none()
                && !state.token.as_ref().is_some_and(|token| token.is_good(SystemTime::now()))
        };
        let waited = self.changed.wait_timeout_while(state, PATIENCE, is_unknown);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match (&state.token, &state.error) {
            (Some(token), _) if token.is_good(SystemTime::now()) => Ok(token.for_client()),
            (_, Some(error)) => Err(error.clone()),
            _ => Err(NoToken::Unavailable(format!("no token for Kafka within {PATIENCE:?}"))),
        }
    }
}

/// The token of a source, which is kept from the first call on, for as long as the process lives.
fn current(setting: &str) -> Result<OAuthToken, NoToken> {
    static KEPT: LazyLock<Mutex<HashMap<String, Arc<Kept>>>> = LazyLock::new(Mutex::default);
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = match all.get(setting) {
        Some(kept) => kept.clone(),
        None => {
            let unknown = || NoToken::Refused("the client has no source of tokens for Kafka".to_owned());
            let source = TokenSource::from_setting(setting).ok_or_else(unknown)?;
            let kept = Arc::<Kept>::default();
            let keeper = kept.clone();
            std::thread::Builder::new()
                .name("kafka login".to_owned())
                .spawn(move || keep(&keeper, &source))
                .map_err(|error| NoToken::Unavailable(format!("no thread for tokens: {error}")))?;
            all.insert(setting.to_owned(), kept.clone());
            kept
        }
    };
    drop(all);
    kept.current()
}

/// Fetches token after token.
fn keep(kept: &Kept, source: &TokenSource) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let error = NoToken::Unavailable(format!("no runtime for tokens: {error}"));
            return kept.set(|state| state.error = Some(error));
        }
    };
    runtime.block_on(async {
        loop {
            let fetched = tokio::time::timeout(TIMEOUT, fetch(source)).await;
            let fetched = fetched
                .unwrap_or_else(|_| Err(NoToken::Unavailable(format!("no answer within {TIMEOUT:?}"))));
            let pause = match fetched {
                Ok(token) => {
                    let pause = token.next_in(SystemTime::now());
                    kept.set(|state| *state = State { token: Some(token), error: None });
                    pause
                }
                Err(error) => {
                    let error = error.of(source);
                    tracing::warn!("{error}");
                    kept.set(|state| state.error = Some(error));
                    PAUSE
                }
            };
            wait_until(SystemTime::now() + pause).await;
        }
    });
}

/// By the clock that goes on while a machine sleeps, as tokens end by it.
async fn wait_until(then: SystemTime) {
    while let Ok(left) = then.duration_since(SystemTime::now())
        && !left.is_zero()
    {
        tokio::time::sleep(left.min(PAUSE)).await;
    }
}

async fn fetch(source: &TokenSource) -> Result<Token, NoToken> {
    let now = SystemTime::now();
    match source {
        TokenSource::Endpoint(endpoint) => {
            Endpoint::new(endpoint).map_err(NoToken::Refused)?.fetch(now).await
        }
        TokenSource::Msk { region } => {
            Msk::from_environment(region).map_err(NoToken::Refused)?.token(now).await
        }
    }
}

#[cfg(test)]
mod tests;
