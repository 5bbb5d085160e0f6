//! The spans of one request of a client, and of the requests to Elasticsearch below it.

use std::sync::Arc;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use reqwest::header::HeaderMap;

use super::context_of;
use super::exporter::{Exporting, Traces};

/// The trace of one request. Its span ends when it is dropped, if not before.
#[derive(Debug)]
pub struct RequestTrace {
    /// The client's context, as it came.
    context: HeaderMap,
    span: Option<(Arc<Exporting>, Context)>,
}

/// The trace of one request to Elasticsearch.
#[derive(Debug)]
pub struct UpstreamTrace {
    headers: HeaderMap,
    span: Option<Context>,
}

impl Traces {
    /// A request of a client begins. Its trace is continued, if it brings one.
    pub fn request(&self, name: &'static str, headers: &HeaderMap) -> RequestTrace {
        let context = context_of(headers);
        let span = self.exporting().map(|exporting| {
            let parent = TraceContextPropagator::new()
                .extract_with_context(&Context::new(), &HeaderExtractor(&context));
            let tracer = &exporting.tracer;
            let span =
                tracer.span_builder(name).with_kind(SpanKind::Server).start_with_context(tracer, &parent);
            (exporting.clone(), parent.with_span(span))
        });
        RequestTrace { context, span }
    }
}

impl RequestTrace {
    /// A request to Elasticsearch begins.
    pub fn upstream(&self, name: &'static str) -> UpstreamTrace {
        let Some((exporting, parent)) = &self.span else {
            return UpstreamTrace { headers: self.context.clone(), span: None };
        };
        let tracer = &exporting.tracer;
        let span = tracer
            .span_builder(name)
            .with_kind(SpanKind::Client)
            .with_attributes([
                KeyValue::new("db.system.name", "elasticsearch"),
                KeyValue::new("db.operation.name", name),
            ])
            .start_with_context(tracer, parent);
        let span = parent.with_span(span);
        let mut headers = HeaderMap::new();
        TraceContextPropagator::new().inject_context(&span, &mut HeaderInjector(&mut headers));
        UpstreamTrace { headers, span: Some(span) }
    }

    /// It is answered with this status.
    pub fn ended(&self, status: u16) {
        if let Some((_, context)) = &self.span {
            end(context, Some(status));
        }
    }
}

impl UpstreamTrace {
    /// The context for Elasticsearch.
    pub fn headers(&self) -> HeaderMap {
        self.headers.clone()
    }

    /// It was answered with this status, or not at all.
    pub fn ended(self, status: Option<u16>) {
        if let Some(context) = &self.span {
            end(context, status);
        }
    }
}

fn end(context: &Context, status: Option<u16>) {
    let span = context.span();
    if let Some(status) = status {
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
    }
    match status {
        None => span.set_status(Status::error("no answer")),
        Some(500..) => span.set_status(Status::error("an error of the server")),
        Some(_) => {}
    }
    span.end();
}
