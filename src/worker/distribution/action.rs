//! The kinds of runs: a refresh, a POST, a record. Each is one attempt; the distributor decides on retries.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Certificate, Method, StatusCode};
use serde::Serialize;
use url::Url;

use super::scheduler::{Span, UpdateGroup};
use crate::base::causes::with_causes;
use crate::base::ids::ShardId;
use crate::io::elastic::CallError;
use crate::io::kafka::resilient_producer::{Message, ResilientProducer};
use crate::worker::visibility::Visibility;

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFailure {
    /// The cause.
    pub reason: String,
    /// Retrying is useless.
    pub for_good: bool,
}

impl RunFailure {
    fn passing(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), for_good: false }
    }
}

/// A kind of run.
pub trait JobAction: Send + Sync {
    /// One attempt, within `timeout`.
    fn run<'a>(
        &'a self,
        shard: &'a ShardId,
        notice: &'a Bytes,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<(), RunFailure>>;
}

/// The JSON body of a webhook or record.
#[derive(Debug, Serialize)]
pub(super) struct RunNotice<'a> {
    job: &'a str,
    shard: &'a ShardId,
    topic: &'a str,
    documents: u64,
    partitions: Vec<PartitionNotice>,
}

#[derive(Debug, Serialize)]
struct PartitionNotice {
    partition: i32,
    documents: u64,
    first_offset: Option<i64>,
    last_offset: Option<i64>,
    watermark: Option<i64>,
}

impl<'a> RunNotice<'a> {
    /// For one run.
    pub(super) fn new(job: &'a str, shard: &'a ShardId, topic: &'a str, group: &UpdateGroup) -> Self {
        let partition = |(&partition, span): (&i32, &Span)| PartitionNotice {
            partition,
            documents: span.documents,
            first_offset: span.offsets.map(|(first, _)| first),
            last_offset: span.offsets.map(|(_, last)| last),
            watermark: span.watermark,
        };
        let partitions: Vec<_> = group.spans.iter().map(partition).collect();
        let documents = partitions.iter().map(|partition| partition.documents).sum();
        Self { job, shard, topic, documents, partitions }
    }

    pub(super) fn to_json(&self) -> Bytes {
        // Serializing numbers and texts cannot fail.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// Makes writes to a geoshard visible to searches, sharing the refresh with all other waiters.
pub struct Refresh(pub Arc<Visibility>);

impl JobAction for Refresh {
    fn run<'a>(
        &'a self,
        shard: &'a ShardId,
        _: &'a Bytes,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<(), RunFailure>> {
        async move {
            match tokio::time::timeout(timeout, self.0.refreshed(shard)).await {
                // A geoshard of an earlier map: there is nothing to search.
                Ok(Ok(()) | Err(CallError::Status { status: 404, .. })) => Ok(()),
                Err(_) => Err(RunFailure::passing(format!("no answer within {timeout:?}"))),
                Ok(Err(error)) => Err(RunFailure::passing(format!(
                    "{error} (a refresh needs the index privilege maintenance)"
                ))),
            }
        }
        .boxed()
    }
}

/// POSTs the notice. Any 2xx status is success; the body is not read.
pub struct Webhook {
    http: reqwest::Client,
    url: Url,
    headers: HeaderMap,
}

impl Webhook {
    /// POSTs to this URL with these headers; trusts `authorities` (PEM) besides the public ones. Does not follow
    /// redirects, which would take the headers elsewhere.
    ///
    /// # Errors
    /// If the HTTP client cannot be set up, or `authorities` hold no certificate.
    pub fn new(url: Url, headers: HeaderMap, authorities: Option<&[u8]>) -> Result<Self, reqwest::Error> {
        let mut http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        for authority in authorities.map(Certificate::from_pem_bundle).transpose()?.into_iter().flatten() {
            http = http.add_root_certificate(authority);
        }
        Ok(Self { http: http.build()?, url, headers })
    }

    /// Sends OPTIONS with the headers of a run, which changes nothing. Returns the status.
    ///
    /// # Errors
    /// If no answer came; the text omits the URL, which may contain a key.
    pub async fn probe(&self, timeout: Duration) -> Result<StatusCode, String> {
        let request = self.http.request(Method::OPTIONS, self.url.clone());
        let answer = request.timeout(timeout).headers(self.headers.clone()).send().await;
        answer.map(|answer| answer.status()).map_err(|error| with_causes(&error.without_url()))
    }
}

impl JobAction for Webhook {
    fn run<'a>(
        &'a self,
        _: &'a ShardId,
        notice: &'a Bytes,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<(), RunFailure>> {
        async move {
            let request = self
                .http
                .post(self.url.clone())
                .timeout(timeout)
                .headers(self.headers.clone())
                .header(CONTENT_TYPE, "application/json")
                .body(notice.clone());
            // Without the URL, which may contain a key.
            let answer = request
                .send()
                .await
                .map_err(|error| RunFailure::passing(with_causes(&error.without_url())))?;
            judge(answer.status())
        }
        .boxed()
    }
}

fn judge(status: StatusCode) -> Result<(), RunFailure> {
    if status.is_success() {
        return Ok(());
    }
    // During a deployment, a proxy may answer 404.
    let passes = !status.is_client_error()
        || matches!(
            status,
            StatusCode::NOT_FOUND | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
        );
    Err(RunFailure { reason: format!("the endpoint answered {status}"), for_good: !passes })
}

/// Writes the notice to a topic, keyed by the geoshard.
pub struct TopicAction {
    producer: ResilientProducer,
    topic: String,
}

impl TopicAction {
    /// Produces to `topic` with these settings.
    ///
    /// # Errors
    /// If librdkafka refuses the settings.
    pub fn new(settings: ClientConfig, topic: &str) -> Result<Self, KafkaError> {
        let producer = ResilientProducer::new(settings, "distributions")?;
        Ok(Self { producer, topic: topic.to_owned() })
    }
}

impl JobAction for TopicAction {
    fn run<'a>(
        &'a self,
        shard: &'a ShardId,
        notice: &'a Bytes,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<(), RunFailure>> {
        async move {
            let message = Message {
                topic: &self.topic,
                key: Some(shard.as_str().as_bytes()),
                value: Some(notice),
                headers: None,
            };
            match tokio::time::timeout(timeout, self.producer.send(&message)).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(undelivered)) => Err(RunFailure::passing(undelivered.to_string())),
                Err(_) => {
                    Err(RunFailure::passing(format!("kafka did not acknowledge it within {timeout:?}")))
                }
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_errors_are_permanent_unless_they_ask_to_retry() {
        for (status, verdict) in [
            (200, None),
            (204, None),
            (301, Some(false)),
            (400, Some(true)),
            (404, Some(false)),
            (408, Some(false)),
            (410, Some(true)),
            (429, Some(false)),
            (500, Some(false)),
            (503, Some(false)),
        ] {
            let judged = judge(StatusCode::from_u16(status).unwrap()).err().map(|failure| failure.for_good);
            assert_eq!(judged, verdict, "{status}");
        }
    }
}
