//! The spans of one partition.
//!
//! ```text
//! trace of a producer                      trace of a batch
//!   its own spans
//!   └ process TOPIC  ◀────── link ──────── batch TOPIC
//!     from when the record is read         ├ mget
//!     until its write is done              ├ bulk
//!                                          └ …
//! ```
//!
//! A batch folds many records, so its span can be a child of none: it has links to theirs, as the semantic conventions for
//! messaging want it. No span names a document.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Link, Span as _, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::Span;
use rdkafka::message::{Headers, OwnedHeaders};

use super::exporter::Exporting;
use crate::base::ids::DocId;
use crate::base::requests::{RequestKind, RoundsObserver};
use crate::core::mover::{Entry, Outcome, Settled};

/// Maximum links per batch: OpenTelemetry's default.
const MAX_LINKS: usize = 128;
/// Maximum open record spans per partition. Further records get none until some end.
const MAX_OPEN: usize = 4096;
/// Longer `tracestate`s are dropped; W3C requires this length.
const MAX_STATE_BYTES: usize = 512;

type Spans = HashMap<DocId, Vec<Span>, ahash::RandomState>;

/// The traces of a partition, for one assignment.
#[derive(Debug)]
pub struct PartitionTraces(Option<Box<Open>>);

/// Open spans.
#[derive(Debug)]
struct Open {
    exporting: Arc<Exporting>,
    about: Vec<KeyValue>,
    /// Of records that are in no batch.
    waiting: Spans,
    /// Of records that are in the batch under way.
    in_batch: Spans,
    open: usize,
    batch: Option<Context>,
}

impl PartitionTraces {
    pub(super) fn new(exporting: Option<Arc<Exporting>>, number: i32) -> Self {
        Self(exporting.map(|exporting| {
            let about = vec![
                KeyValue::new("messaging.system", "kafka"),
                KeyValue::new("messaging.operation.type", "process"),
                KeyValue::new("messaging.destination.name", exporting.topic.clone()),
                KeyValue::new("messaging.destination.partition.id", number.to_string()),
                KeyValue::new("messaging.consumer.group.name", exporting.group.clone()),
            ];
            let (waiting, in_batch) = (Spans::default(), Spans::default());
            Box::new(Open { exporting, about, waiting, in_batch, open: 0, batch: None })
        }))
    }

    /// Notes a decoded record. Opens a span if the record carries a sampled trace context.
    #[inline]
    pub fn note(&mut self, id: &DocId, headers: Option<&OwnedHeaders>, offset: i64) {
        if let (Some(open), Some(headers)) = (&mut self.0, headers) {
            open.note(id, headers, offset);
        }
    }

    /// Starts a batch of these entries. Requests shown to the returned observer get spans.
    #[inline]
    pub fn begin(&mut self, entries: &[Entry], observer: Arc<dyn RoundsObserver>) -> Arc<dyn RoundsObserver> {
        match &mut self.0 {
            Some(open) => open.begin(entries, observer),
            None => observer,
        }
    }

    /// Ends the batch. Records whose entries are not done wait for the next one.
    #[inline]
    pub fn end(&mut self, settled: &[Settled]) {
        if let Some(open) = &mut self.0 {
            open.end(settled);
        }
    }
}

impl Open {
    fn note(&mut self, id: &DocId, headers: &OwnedHeaders, offset: i64) {
        if self.open >= MAX_OPEN {
            return;
        }
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Carrier(headers));
        if !parent.has_active_span() {
            return;
        }
        let about = self.about.iter().cloned();
        let about = about.chain([
            KeyValue::new("messaging.operation.name", "process"),
            KeyValue::new("messaging.kafka.offset", offset),
        ]);
        let tracer = &self.exporting.tracer;
        let span = tracer
            .span_builder(format!("process {}", self.exporting.topic))
            .with_kind(SpanKind::Consumer)
            .with_attributes(about)
            .start_with_context(tracer, &parent);
        if span.is_recording() {
            self.waiting.entry(id.clone()).or_default().push(span);
            self.open += 1;
        }
    }

    fn begin(&mut self, entries: &[Entry], inner: Arc<dyn RoundsObserver>) -> Arc<dyn RoundsObserver> {
        let mut links = Vec::new();
        for entry in entries {
            // Most records bring no context.
            let Some(spans) = self.waiting.remove(&entry.id) else { continue };
            let room = MAX_LINKS.saturating_sub(links.len());
            let contexts = spans.iter().map(|span| span.span_context().clone());
            links.extend(contexts.take(room).map(|context| Link::new(context, Vec::new(), 0)));
            self.in_batch.insert(entry.id.clone(), spans);
        }
        let count = i64::try_from(entries.len()).unwrap_or(i64::MAX);
        let about = self.about.iter().cloned();
        let about = about.chain([
            KeyValue::new("messaging.operation.name", "batch"),
            KeyValue::new("messaging.batch.message_count", count),
        ]);
        let tracer = &self.exporting.tracer;
        let span = tracer
            .span_builder(format!("batch {}", self.exporting.topic))
            .with_kind(SpanKind::Consumer)
            .with_attributes(about)
            .with_links(links)
            .start_with_context(tracer, &Context::new());
        if !span.is_recording() {
            return inner;
        }
        let batch = Context::new().with_span(span);
        self.batch = Some(batch.clone());
        Arc::new(Traced { inner, exporting: self.exporting.clone(), batch })
    }

    fn end(&mut self, settled: &[Settled]) {
        let mut unfinished = 0_i64;
        for Settled { entry, outcome, .. } in settled {
            let refused = match outcome {
                Outcome::Done(_) => None,
                Outcome::DeadLetter(refusal) => Some(refusal.reason),
                Outcome::Parked { .. } | Outcome::Fetch | Outcome::Again { .. } => {
                    unfinished += 1;
                    continue;
                }
            };
            for mut span in self.in_batch.remove(&entry.id).unwrap_or_default() {
                if let Some(reason) = refused {
                    span.set_status(Status::error(reason));
                }
                span.end();
                self.open -= 1;
            }
        }
        for (id, mut spans) in self.in_batch.drain() {
            let later = self.waiting.entry(id).or_default();
            spans.append(later);
            *later = spans;
        }
        if let Some(batch) = self.batch.take() {
            let span = batch.span();
            span.set_attribute(KeyValue::new("geofold.unfinished", unfinished));
            span.end();
        }
    }
}

/// A record's headers, as a propagator's extractor.
struct Carrier<'a>(&'a OwnedHeaders);

impl Extractor for Carrier<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.iter().find(|header| header.key == key)?.value?;
        std::str::from_utf8(value).ok().filter(|value| value.len() <= MAX_STATE_BYTES)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|header| header.key).collect()
    }
}

/// Gives each request of a batch a span below the batch's.
struct Traced {
    inner: Arc<dyn RoundsObserver>,
    exporting: Arc<Exporting>,
    batch: Context,
}

impl RoundsObserver for Traced {
    fn request(&self, kind: RequestKind, items: usize, bytes: usize, took: Duration, ok: bool) {
        self.inner.request(kind, items, bytes, took, ok);
    }

    fn answered(&self, kind: RequestKind, items: usize, bytes: usize, took: Duration, ok: bool) {
        self.inner.answered(kind, items, bytes, took, ok);
        let name = match kind {
            RequestKind::Mget => "mget",
            RequestKind::Bulk => "bulk",
        };
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let now = SystemTime::now();
        let tracer = &self.exporting.tracer;
        let mut span = tracer
            .span_builder(name)
            .with_kind(SpanKind::Client)
            .with_start_time(now.checked_sub(took).unwrap_or(now))
            .with_attributes([
                KeyValue::new("db.system.name", "elasticsearch"),
                KeyValue::new("db.operation.name", name),
                KeyValue::new("db.operation.batch.size", number(items)),
                KeyValue::new("geofold.request.bytes", number(bytes)),
            ])
            .start_with_context(tracer, &self.batch);
        if !ok {
            span.set_status(Status::error("no usable answer"));
        }
        span.end_with_timestamp(now);
    }

    fn retry(&self, label: &'static str, items: usize) {
        self.inner.retry(label, items);
        let items = i64::try_from(items).unwrap_or(i64::MAX);
        let about = vec![KeyValue::new("reason", label), KeyValue::new("operations", items)];
        self.batch.span().add_event("sent again", about);
    }

    fn waiting(&self, delta: i64) {
        self.inner.waiting(delta);
    }

    fn throttled(&self, waited: Duration) {
        self.inner.throttled(waited);
    }
}

#[cfg(test)]
mod tests;
