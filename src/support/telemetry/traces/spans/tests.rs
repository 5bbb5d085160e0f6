//! Spans as an exporter gets them, each when it has ended.

use std::sync::Mutex;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter};
use rdkafka::message::Header;

use super::*;
use crate::base::position::Position;
use crate::base::requests::Unobserved;
use crate::core::fold::Fold;
use crate::core::mover::{AffectedShards, Carry, Done, Refusal};
use crate::core::write::{Body, Write};
use crate::testkit::testing::{id, rules};

#[derive(Debug, Clone, Default)]
struct RecordedSpans(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for RecordedSpans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

/// The traces of a partition, and the exported spans.
struct Rig {
    recorded: RecordedSpans,
    traces: PartitionTraces,
}

impl Rig {
    fn new() -> Self {
        let recorded = RecordedSpans::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(recorded.clone())
            .with_sampler(Sampler::AlwaysOn)
            .build();
        let tracer = provider.tracer("geofold");
        let exporting = Exporting { provider, tracer, topic: "t".to_owned(), group: "g".to_owned() };
        Self { recorded, traces: PartitionTraces::new(Some(Arc::new(exporting)), 0) }
    }

    fn note(&mut self, key: &str, state: &str) {
        let parent = format!("00-{:032x}-{:016x}-01", 7, 8);
        let headers = OwnedHeaders::new()
            .insert(Header { key: "traceparent", value: Some(&parent) })
            .insert(Header { key: "tracestate", value: Some(state) });
        self.traces.note(&id(key), Some(&headers), 1);
    }

    /// The spans of this name that have ended.
    fn ended(&self, name: &str) -> Vec<SpanData> {
        self.recorded.0.lock().unwrap().iter().filter(|span| span.name == name).cloned().collect()
    }
}

fn entry(key: &str) -> Entry {
    let write = Write { id: id(key), position: Position::from_version(7), body: Body::Touch };
    let (id, fold) = Fold::from_write(write, |at| rules().map.locate(at).clone());
    Entry { id, fold: Arc::new(fold), carry: Carry::default(), fetched: None }
}

fn settled(entry: &Entry, outcome: Outcome) -> Settled {
    Settled { entry: entry.clone(), outcome, touched: AffectedShards::default() }
}

fn observer() -> Arc<dyn RoundsObserver> {
    Arc::new(Unobserved)
}

#[test]
fn record_span_ends_with_its_batch_and_batches_link_to_it() {
    const TOOK: Duration = Duration::from_millis(50);
    let (mut rig, entry) = (Rig::new(), entry("a"));
    rig.note("a", "vendor=x");
    let traced = rig.traces.begin(std::slice::from_ref(&entry), observer());
    traced.answered(RequestKind::Bulk, 1, 10, TOOK, true);
    assert!(rig.ended("process t").is_empty(), "an answer may be a refusal");
    let again = Outcome::Again { reason: "lost", carry: Carry::default() };
    rig.traces.end(&[settled(&entry, again)]);
    assert!(rig.ended("process t").is_empty(), "it joins the next batch");

    let _ = rig.traces.begin(std::slice::from_ref(&entry), observer());
    rig.traces.end(&[settled(&entry, Outcome::Done(Done::Deleted))]);
    let records = rig.ended("process t");
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!(record.status, Status::Unset);
    let batches = rig.ended("batch t");
    for (batch, unfinished) in batches.iter().zip([1, 0]) {
        let links: Vec<_> = batch.links.iter().map(|link| &link.span_context).collect();
        assert_eq!(links, [&record.span_context]);
        assert!(batch.attributes.contains(&KeyValue::new("geofold.unfinished", unfinished)), "{batch:?}");
    }
    let requests = rig.ended("bulk");
    let [request] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((batches.len(), request.parent_span_id), (2, batches[0].span_context.span_id()));
    assert_eq!(request.end_time.duration_since(request.start_time).unwrap(), TOOK);
}

#[test]
fn errors_name_the_failed_step() {
    let (mut rig, entry) = (Rig::new(), entry("a"));
    rig.note("a", "vendor=x");
    let traced = rig.traces.begin(std::slice::from_ref(&entry), observer());
    traced.answered(RequestKind::Mget, 1, 10, Duration::ZERO, false);
    traced.retry("timeout", 1);
    let refusal = Refusal { reason: "no_document", detail: String::new() };
    rig.traces.end(&[settled(&entry, Outcome::DeadLetter(refusal.into()))]);
    assert_eq!(rig.ended("process t")[0].status, Status::error("no_document"));
    assert!(matches!(rig.ended("mget")[0].status, Status::Error { .. }));
    let batch = &rig.ended("batch t")[0];
    assert!(batch.events.iter().any(|event| event.name == "sent again"), "{batch:?}");
}

#[test]
fn so_many_spans_are_open_at_once_and_no_more() {
    let mut rig = Rig::new();
    let entries: Vec<Entry> = (0..=MAX_OPEN).map(|n| entry(&format!("d{n}"))).collect();
    for round in 1..=2 {
        for n in 0..=MAX_OPEN {
            rig.note(&format!("d{n}"), "vendor=x");
        }
        let _ = rig.traces.begin(&entries, observer());
        let done: Vec<_> = entries.iter().map(|entry| settled(entry, Outcome::Done(Done::Deleted))).collect();
        rig.traces.end(&done);
        assert_eq!(rig.ended("process t").len(), round * MAX_OPEN);
    }
}

#[test]
fn oversized_tracestate_is_dropped_and_the_trace_continues() {
    let long: Vec<String> = (0..20).map(|n| format!("vendor{n}={}", "x".repeat(40))).collect();
    for (state, recorded) in [("vendor=x", "vendor=x"), (&*long.join(","), "")] {
        let mut rig = Rig::new();
        rig.note("a", state);
        let _ = rig.traces.begin(&[entry("a")], observer());
        rig.traces.end(&[settled(&entry("a"), Outcome::Done(Done::Deleted))]);
        let span = &rig.ended("process t")[0];
        assert_eq!(span.span_context.trace_state().header(), recorded);
        assert_eq!(span.parent_span_id.to_string(), format!("{:016x}", 8));
    }
}
