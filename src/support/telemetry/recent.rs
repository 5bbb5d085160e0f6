//! The last warnings and errors of this process, for the status page.
//!
//! A `tracing` layer fills a [`Recent`]. It is bounded, and visible to everyone with access to the admin server, so it keeps
//! less than the log: numbers, and text only of fields that never name a document or its content. A partition's reason to stop
//! may quote Elasticsearch quoting a document: it is only in the log.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Events kept.
const MAX_EVENTS: usize = 20;
/// Characters of one event's text, at most.
const MAX_CHARS: usize = 400;
/// Fields whose text is shown.
const TEXT_FIELDS: [&str; 13] = [
    "about",
    "code",
    "delay",
    "error",
    "facility",
    "index",
    "partitions",
    "position",
    "reason",
    "silence",
    "stage",
    "took",
    "topic",
];

/// One warning or error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecentEvent {
    /// When it last happened, in milliseconds since 1970.
    pub time_ms: u64,
    /// How many times in a row.
    pub times: u64,
    /// `error` or `warn`.
    pub level: &'static str,
    /// The logging module.
    pub target: String,
    /// Message and fields, in one line.
    pub text: String,
}

/// See the file's first lines. Clones share one list.
#[derive(Debug, Clone, Default)]
pub struct Recent(Arc<Mutex<VecDeque<RecentEvent>>>);

impl Recent {
    /// Warnings and errors, the newest first.
    pub fn events(&self) -> Vec<RecentEvent> {
        self.events_locked().iter().rev().cloned().collect()
    }

    fn events_locked(&self) -> MutexGuard<'_, VecDeque<RecentEvent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An outage says the same again and again: it takes one place, not all.
    fn add(&self, event: RecentEvent) {
        let mut events = self.events_locked();
        if let Some(last) = events.back_mut()
            && (last.level, &last.target, &last.text) == (event.level, &event.target, &event.text)
        {
            last.times += 1;
            last.time_ms = event.time_ms;
            return;
        }
        if events.len() == MAX_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
    }
}

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let level = match *metadata.level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            _ => return,
        };
        let mut line = Line::default();
        event.record(&mut line);
        let text: String = line.message.chars().chain(line.fields.chars()).take(MAX_CHARS).collect();
        let target = metadata.target().to_owned();
        self.add(RecentEvent { time_ms: unix_millis(SystemTime::now()), times: 1, level, target, text });
    }
}

/// Milliseconds since 1970.
pub fn unix_millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// An event's text in the making.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn field(&mut self, name: &str, value: impl fmt::Display) {
        // Writing to a string cannot fail.
        let _ = write!(self.fields, " {name}={value}");
    }
}

impl Visit for Line {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field.name(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            name if TEXT_FIELDS.contains(&name) => self.field(name, value),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => {
                // As above.
                let _ = write!(self.message, "{value:?}");
            }
            // Reasons of a closed set are plain strings; formatted ones may quote documents.
            "reason" => {}
            name if TEXT_FIELDS.contains(&name) => self.field(name, format_args!("{value:?}")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry;

    use super::*;

    fn recent(emit: impl FnOnce()) -> Vec<RecentEvent> {
        let recent = Recent::default();
        tracing::subscriber::with_default(registry().with(recent.clone()), emit);
        recent.events()
    }

    #[test]
    fn warnings_and_errors_are_kept_with_the_newest_first() {
        let events = recent(|| {
            tracing::info!("nothing to see");
            tracing::warn!(partitions = ?[3, 4], lost = true, "partitions lost");
            tracing::error!(target: "librdkafka", facility = "FAIL", "broker is down");
        });
        assert_eq!(events.len(), 2);
        assert_eq!((events[0].level, events[0].target.as_str()), ("error", "librdkafka"));
        assert_eq!(events[0].text, "broker is down facility=FAIL");
        assert_eq!(events[1].text, "partitions lost partitions=[3, 4] lost=true");
    }

    #[test]
    fn document_data_appears_only_in_the_log() {
        let events = recent(|| {
            let reason = "failed to parse field [age] in document with id 'anna-77'";
            tracing::error!(partition = 3, offset = 41, reason = %reason, "partition stopped");
            tracing::warn!(id = "anna-77", detail = "anna", body = ?"anna", reason = "mapping", "dead letter");
        });
        assert_eq!(events[1].text, "partition stopped partition=3 offset=41");
        assert_eq!(events[0].text, "dead letter reason=mapping");
    }

    #[test]
    fn the_same_again_takes_one_place_and_the_list_is_bounded() {
        let events = recent(|| {
            for number in 0..30 {
                tracing::warn!(number, "no answer");
            }
            for _ in 0..30 {
                tracing::warn!(error = "é".repeat(1000), "no answer");
            }
        });
        assert_eq!(events.len(), MAX_EVENTS);
        assert_eq!(events[0].times, 30);
        assert_eq!(events[0].text.chars().count(), MAX_CHARS);
        assert_eq!(events[1].text, "no answer number=29");
    }
}
