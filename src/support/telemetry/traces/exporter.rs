//! Exports spans by OTLP over HTTP, as the standard variables say, in batches on its own thread.

use std::env;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use opentelemetry::trace::{Link, SpanKind, TraceContextExt, TraceId, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError, Request, Response, ResponseBodyTooLarge};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Config, SamplingResult, SdkTracer, SdkTracerProvider, ShouldSample};
use tokio::runtime::Handle;

use super::TracesError;
use super::spans::PartitionTraces;

/// One attempt to export may take this long, unless a variable says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the final flush.
const FLUSH: Duration = Duration::from_secs(5);
/// An answer is a few bytes.
const MAX_ANSWER: usize = 64 << 10;

/// The traces of a worker; none, if no endpoint is configured. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Traces(Option<Arc<Exporting>>);

/// State shared by the spans of all partitions.
#[derive(Debug)]
pub(super) struct Exporting {
    pub(super) provider: SdkTracerProvider,
    pub(super) tracer: SdkTracer,
    pub(super) topic: String,
    pub(super) group: String,
}

impl Traces {
    /// As the environment says: `OTEL_EXPORTER_OTLP_ENDPOINT` (or `…_TRACES_ENDPOINT`) turns traces on, `OTEL_SDK_DISABLED=true`
    /// and `OTEL_TRACES_EXPORTER=none` turn them off; the other variables are those of OpenTelemetry. Must be called in a
    /// tokio runtime.
    ///
    /// # Errors
    /// If the variables ask for what is not there.
    pub fn from_env(topic: &str, group: &str) -> Result<Self, TracesError> {
        if !is_wanted(&variable)? {
            return Ok(Self::default());
        }
        let client = Client { http: http_client()?, runtime: Handle::current() };
        let exporter = SpanExporter::builder().with_http().with_http_client(client).build();
        let exporter = exporter.map_err(|error| TracesError::Setup(error.to_string()))?;
        Ok(Self::exporting_to(exporter, topic, group))
    }

    fn exporting_to(
        exporter: impl opentelemetry_sdk::trace::SpanExporter + 'static,
        topic: &str,
        group: &str,
    ) -> Self {
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            // By OTEL_TRACES_SAMPLER.
            .with_sampler(FollowsLinks(Config::default().sampler))
            .with_resource(resource())
            .build();
        let tracer = provider.tracer("geofold");
        let (topic, group) = (topic.to_owned(), group.to_owned());
        Self(Some(Arc::new(Exporting { provider, tracer, topic, group })))
    }

    pub(super) fn exporting(&self) -> Option<&Arc<Exporting>> {
        self.0.as_ref()
    }

    /// For a partition.
    pub fn partition(&self, number: i32) -> PartitionTraces {
        PartitionTraces::new(self.0.clone(), number)
    }

    /// Sends the remaining spans, with a timeout.
    pub async fn flush(self) {
        let Some(exporting) = self.0 else { return };
        let flushing = tokio::task::spawn_blocking(move || exporting.provider.shutdown_with_timeout(FLUSH));
        if let Ok(Err(error)) = flushing.await {
            tracing::warn!(%error, "the last spans could not be exported");
        }
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn is_wanted(variable: &dyn Fn(&str) -> Option<String>) -> Result<bool, TracesError> {
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(false);
    }
    let has_endpoint = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]
        .into_iter()
        .any(|name| variable(name).is_some());
    let wanted = match variable("OTEL_TRACES_EXPORTER").as_deref() {
        Some("none") => false,
        Some("otlp") => true,
        None => has_endpoint,
        Some(other) => return Err(TracesError::Exporter(other.to_owned())),
    };
    let protocol = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]
        .into_iter()
        .find_map(|name| Some((name, variable(name)?)));
    match protocol {
        Some((variable, value)) if wanted && value != "http/protobuf" => {
            Err(TracesError::Protocol { variable, value })
        }
        _ => Ok(wanted),
    }
}

/// Who the spans are of: `geofold`, unless the environment has another name.
fn resource() -> Resource {
    let is_named = variable("OTEL_SERVICE_NAME").is_some()
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|all| all.contains("service.name="));
    let resource = Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())));
    let resource = if is_named { resource } else { resource.with_service_name("geofold") };
    resource.build()
}

fn http_client() -> Result<reqwest::Client, TracesError> {
    let mut client = reqwest::Client::builder().timeout(timeout(&variable)?);
    let authorities = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
    if let Some(path) = authorities.into_iter().find_map(variable) {
        let refused = |reason: String| TracesError::Certificate { path: path.clone(), reason };
        let pem = std::fs::read(&path).map_err(|error| refused(error.to_string()))?;
        let certificates =
            reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| refused(error.to_string()))?;
        // A file without any is read as a bundle of none.
        if certificates.is_empty() {
            return Err(refused("no PEM certificate is in it".to_owned()));
        }
        for certificate in certificates {
            client = client.add_root_certificate(certificate);
        }
    }
    client.build().map_err(|error| TracesError::Setup(error.to_string()))
}

/// For one attempt to export.
fn timeout(variable: &dyn Fn(&str) -> Option<String>) -> Result<Duration, TracesError> {
    let given = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"]
        .into_iter()
        .find_map(|name| Some((name, variable(name)?)));
    let Some((variable, value)) = given else { return Ok(TIMEOUT) };
    let millis = value.trim().parse();
    millis.map(Duration::from_millis).map_err(|_| TracesError::Timeout { variable, value })
}

/// Sends from the exporter's own thread, where no runtime is, on the worker's.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    runtime: Handle,
}

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        #[expect(clippy::disallowed_methods, reason = "its handle is awaited")]
        let sending = self.runtime.spawn(send(self.http.clone(), request));
        Box::pin(async move { sending.await? })
    }
}

async fn send(http: reqwest::Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let mut answer = http.execute(request.try_into()?).await?;
    let body =
        crate::support::http::body(&mut answer, MAX_ANSWER).await?.ok_or_else(ResponseBodyTooLarge::new)?;
    let mut response = Response::new(body);
    *response.status_mut() = answer.status();
    *response.headers_mut() = std::mem::take(answer.headers_mut());
    Ok(response)
}

/// Decides on a batch, which has no parent, as on a child of the records that it is linked to: if one of them is sampled, as on
/// that one's.
#[derive(Debug, Clone)]
struct FollowsLinks(Box<dyn ShouldSample>);

impl ShouldSample for FollowsLinks {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let sampled = links.iter().find(|link| link.span_context.is_sampled());
        let of_link = sampled.map(|link| Context::new().with_remote_span_context(link.span_context.clone()));
        let parent = parent.filter(|parent| parent.has_active_span()).or(of_link.as_ref());
        self.0.should_sample(parent, trace_id, name, kind, attributes, links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(variables: &[(&str, &str)]) -> Result<bool, TracesError> {
        let of =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        is_wanted(&of)
    }

    #[test]
    fn the_variables_turn_traces_on_and_off() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        assert!(!wanted(&[]).unwrap());
        assert!(wanted(&[endpoint]).unwrap());
        assert!(
            wanted(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318/v1/traces")]).unwrap()
        );
        assert!(wanted(&[("OTEL_TRACES_EXPORTER", "otlp")]).unwrap());
        assert!(!wanted(&[endpoint, ("OTEL_SDK_DISABLED", "True")]).unwrap());
        assert!(!wanted(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]).unwrap());
    }

    #[test]
    fn a_time_is_a_number_of_milliseconds() {
        let of = |value: &str| {
            let value = value.to_owned();
            timeout(&move |name| (name == "OTEL_EXPORTER_OTLP_TIMEOUT").then(|| value.clone()))
        };
        assert_eq!(of(" 2500 ").unwrap(), Duration::from_millis(2500));
        let error = of("5s").unwrap_err().to_string();
        assert!(error.contains("OTEL_EXPORTER_OTLP_TIMEOUT is \"5s\""), "{error}");
        assert_eq!(timeout(&|_| None).unwrap(), TIMEOUT);
    }

    #[test]
    fn missing_driver_is_refused_with_its_variable() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
        let error = wanted(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap_err().to_string();
        assert!(error.contains("OTEL_EXPORTER_OTLP_PROTOCOL is \"grpc\""), "{error}");
        assert!(!wanted(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap(), "nobody asks for traces");
        let error = wanted(&[("OTEL_TRACES_EXPORTER", "zipkin")]).unwrap_err().to_string();
        assert!(error.contains("zipkin"), "{error}");
    }
}
