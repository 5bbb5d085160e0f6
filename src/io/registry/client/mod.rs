//! One question to the registry: what Confluent's HTTP interface has, of which only two GETs are asked for.
//!
//! <https://docs.confluent.io/platform/current/schema-registry/develop/api.html>

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use serde::Deserialize;
use thiserror::Error;
use url::Url;

use super::SchemaFetchError;
use crate::base::causes::with_causes;
use crate::core::schemas::{Kind, Reference, RegisteredSchema, SchemaId, UnreadablePayload};
use crate::support::config::{SchemaRegistryConfig, Secret};
use crate::support::http;
use crate::support::tls::{self, TlsError};

/// Bytes of one answer.
const MAX_ANSWER: usize = 4 << 20;

/// Schemas that one schema may refer to, directly or not.
const MAX_REFERENCES: usize = 100;

const MEDIA_TYPE: &str = "application/vnd.schemaregistry.v1+json, application/json";

/// The configuration does not allow querying a registry.
#[derive(Debug, Error)]
pub enum RegistryOpenError {
    /// The certificates cannot be used.
    #[error(transparent)]
    Ca(#[from] TlsError),
    /// The HTTP client cannot be made.
    #[error("could not set up the http client for the schema registry: {0}; check schema_registry.ca_file")]
    Client(String),
}

/// The way to the registry.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    settings: SchemaRegistryConfig,
    /// Index of the URL tried first: the one that answered last.
    first: AtomicUsize,
}

/// A schema in a response.
#[derive(Debug, Deserialize)]
struct Sent {
    schema: String,
    /// Left out where it is Avro.
    #[serde(rename = "schemaType")]
    kind: Option<String>,
    references: Option<Vec<SentReference>>,
}

#[derive(Debug, Deserialize)]
struct SentReference {
    name: String,
    subject: String,
    version: i64,
}

/// An error body.
#[derive(Debug, Deserialize)]
struct SentError {
    error_code: i64,
}

/// Result of one request.
enum Answer {
    Found(Bytes),
    /// Not found.
    None,
}

impl Client {
    pub(super) fn new(settings: &SchemaRegistryConfig) -> Result<Self, RegistryOpenError> {
        let failed = |error: reqwest::Error| RegistryOpenError::Client(with_causes(&error));
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(MEDIA_TYPE))]);
        // Redirections are not followed: they would take credentials elsewhere.
        let builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(settings.request_timeout)
            .default_headers(headers);
        let authorities = settings.ca_file.as_deref().map(|file| ("schema_registry.ca_file", file));
        let builder = tls::trusting(builder, authorities)?;
        let http = builder.build().map_err(failed)?;
        Ok(Self { http, settings: settings.clone(), first: AtomicUsize::new(0) })
    }

    /// The schema with all that it refers to.
    ///
    /// # Errors
    /// [`SchemaFetchError`] if nothing was learnt; within, [`UnreadablePayload`] if the registry has no such schema, or one of no use.
    pub(super) async fn schema(
        &self,
        id: SchemaId,
    ) -> Result<Result<RegisteredSchema, UnreadablePayload>, SchemaFetchError> {
        let bytes = match self.get(&["schemas", "ids", &id.to_string()], false).await? {
            Answer::Found(bytes) => bytes,
            Answer::None => return Ok(Err(UnreadablePayload::UnknownSchema(id))),
        };
        let sent: Sent = self.understood(&bytes)?;
        let kind = match sent.kind.as_deref() {
            None | Some("AVRO") => Kind::Avro,
            Some("JSON") => Kind::Json,
            Some("PROTOBUF") => Kind::Protobuf,
            Some(other) => {
                let why = format!("its type is {other:?}, and AVRO, JSON and PROTOBUF are read").into();
                return Ok(Err(UnreadablePayload::BadSchema { id, why }));
            }
        };
        // Values are not validated against a JSON Schema, so its references are not needed.
        let wanted = if kind == Kind::Json { Vec::new() } else { sent.references.unwrap_or_default() };
        match self.references(wanted).await? {
            Ok(references) => Ok(Ok(RegisteredSchema { kind, text: sent.schema, references })),
            Err(why) => Ok(Err(UnreadablePayload::BadSchema { id, why: why.into() })),
        }
    }

    /// The registry's schema types: checks that it is a registry and accepts the credentials.
    pub(super) async fn types(&self) -> Result<Vec<String>, SchemaFetchError> {
        match self.get(&["schemas", "types"], false).await? {
            Answer::Found(bytes) => self.understood(&bytes),
            Answer::None => Err(self.not_a_registry("it has no /schemas/types")),
        }
    }

    /// All references, each once, after its own references; or why they cannot be fetched.
    async fn references(
        &self,
        wanted: Vec<SentReference>,
    ) -> Result<Result<Vec<Reference>, String>, SchemaFetchError> {
        /// A reference to fetch, or one whose own references are all fetched.
        enum Step {
            Ask(SentReference),
            Place(Reference),
        }
        let (mut done, mut seen) = (Vec::new(), HashSet::new());
        let mut steps: Vec<Step> = wanted.into_iter().rev().map(Step::Ask).collect();
        while let Some(step) = steps.pop() {
            let SentReference { name, subject, version } = match step {
                Step::Place(reference) => {
                    done.push(reference);
                    continue;
                }
                Step::Ask(reference) => reference,
            };
            if !seen.insert(name.clone()) {
                continue;
            }
            if seen.len() > MAX_REFERENCES {
                return Ok(Err(format!("it refers to more than {MAX_REFERENCES} others")));
            }
            let path = ["subjects", &subject, "versions", &version.to_string()];
            let Answer::Found(bytes) = self.get(&path, true).await? else {
                return Ok(Err(format!(
                    "it refers to {name}, and the registry has no version {version} of the subject {subject}"
                )));
            };
            let sent: Sent = self.understood(&bytes)?;
            steps.push(Step::Place(Reference { name, text: sent.schema }));
            steps.extend(sent.references.unwrap_or_default().into_iter().rev().map(Step::Ask));
        }
        Ok(Ok(done))
    }

    /// Tries the URLs in turn until one answers.
    async fn get(&self, path: &[&str], deleted_too: bool) -> Result<Answer, SchemaFetchError> {
        let urls = &self.settings.urls;
        let first = self.first.load(Ordering::Relaxed);
        let mut trouble = SchemaFetchError::not_configured();
        for place in (0..urls.len()).map(|n| (first + n) % urls.len()) {
            match self.get_from(urls[place].as_url(), path, deleted_too).await {
                Ok(answer) => {
                    self.first.store(place, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(reason) => {
                    trouble = SchemaFetchError {
                        reason: format!("asking the schema registry {}: {reason}", urls[place]).into(),
                        retry_after: reason.retry_after,
                    };
                }
            }
        }
        Err(trouble)
    }

    async fn get_from(
        &self,
        base: &Url,
        path: &[&str],
        deleted_too: bool,
    ) -> Result<Answer, SchemaFetchError> {
        let mut url = base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if deleted_too {
            // Referenced schemas may have been soft-deleted since.
            url.set_query(Some("deleted=true"));
        }
        let mut request = self.http.get(url);
        if let Some(token) = &self.settings.bearer_token {
            request = request.bearer_auth(token.expose());
        } else if let Some(username) = &self.settings.username {
            request = request.basic_auth(username, self.settings.password.as_ref().map(Secret::expose));
        }
        let response = request.send().await.map_err(|error| self.failure(error))?;
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let body = self.body(response).await?;
        match status {
            StatusCode::OK => Ok(Answer::Found(body)),
            // A proxy, or a wrong path in the address, answers 404 as well, and says nothing of a schema by it.
            StatusCode::NOT_FOUND if is_about_a_schema(&body) => Ok(Answer::None),
            _ => Err(SchemaFetchError { retry_after, ..SchemaFetchError::new(refusal(status)) }),
        }
    }

    async fn body(&self, mut response: Response) -> Result<Bytes, SchemaFetchError> {
        let body = http::body(&mut response, MAX_ANSWER).await.map_err(|error| self.failure(error))?;
        body.ok_or_else(|| self.not_a_registry("its answer has more than 4 MiB"))
    }

    fn understood<'a, T: Deserialize<'a>>(&self, body: &'a [u8]) -> Result<T, SchemaFetchError> {
        serde_json::from_slice(body).map_err(|error| self.not_a_registry(&error.to_string()))
    }

    fn not_a_registry(&self, why: &str) -> SchemaFetchError {
        SchemaFetchError::new(format!(
            "this is not a response of a schema registry: {why}; check that schema_registry.urls point to Confluent's interface"
        ))
    }

    fn failure(&self, error: reqwest::Error) -> SchemaFetchError {
        if error.is_timeout() {
            return SchemaFetchError::new(format!(
                "no whole answer in {} (schema_registry.request_timeout)",
                humantime::format_duration(self.settings.request_timeout)
            ));
        }
        let cause = with_causes(&error.without_url());
        let advice = if tls::is_untrusted(&cause) {
            "; its certificate is not trusted: set schema_registry.ca_file"
        } else if cause.contains("InvalidContentType") {
            "; it does not speak TLS there: use http:// in schema_registry.urls, or another port"
        } else {
            ""
        };
        SchemaFetchError::new(format!("{cause}{advice}"))
    }
}

/// 40401 to 40403: no subject, no version, no schema.
fn is_about_a_schema(body: &[u8]) -> bool {
    serde_json::from_slice(body).is_ok_and(|error: SentError| (40_401..=40_403).contains(&error.error_code))
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn refusal(status: StatusCode) -> String {
    let advice = match status.as_u16() {
        401 | 403 => {
            "check schema_registry.username and password or bearer_token, and that they may read all subjects"
        }
        404 => {
            "this is not a registry's response for a missing schema; check the path in schema_registry.urls"
        }
        300..=399 => "redirections are not followed; put the final address into schema_registry.urls",
        _ => "it is tried again; if it lasts, see the registry's log",
    };
    format!("it answered {status}; {advice}")
}

#[cfg(test)]
mod tests;
