//! When a partition's increments are sent, what they cover, and what may be committed then. Pure: takes the time, the
//! watermark and outcomes of increments; returns records for the topic.
//!
//! *Invariant:* [`Emitter::let_through`] never exceeds what an acknowledged increment covers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::base::clock::Instant;
use crate::base::position::{Epoch, Position};
use crate::core::counting::edges::Edges;
use crate::core::counting::increment::CountChange;

/// An increment is sent at once after this many bytes of new edges.
pub const SEND_AT_BYTES: usize = 512 << 10;

/// Approximate bytes of edges per increment; Kafka's default record limit is a million.
pub const INCREMENT_BYTES: usize = 800_000;

/// Generates increment names, unique across workers.
#[derive(Debug)]
pub struct Names {
    worker: String,
    next: AtomicU64,
}

impl Names {
    /// For one worker run: 128 random bits and a counter.
    pub fn new() -> Self {
        let random = ahash::RandomState::new();
        let worker = format!("{:016x}{:016x}", random.hash_one(0_u8), random.hash_one(1_u8));
        Self { worker, next: AtomicU64::new(0) }
    }

    fn next(&self) -> String {
        format!("{}-{}", self.worker, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

impl Default for Names {
    fn default() -> Self {
        Self::new()
    }
}

/// A record for the topic of increments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingIncrement {
    /// Its key, which keeps the increments of one partition in order.
    pub key: String,
    /// An [`Increment`](crate::core::counting::increment::Increment) as JSON.
    pub value: Bytes,
    /// Its number of edges.
    pub edges: usize,
}

/// An [`Increment`](crate::core::counting::increment::Increment) without its edges, in its wire format.
#[derive(Serialize)]
struct Head<'a> {
    id: String,
    topic: &'a str,
    partition: i32,
    to: Position,
}

/// The origin of increments.
#[derive(Debug, Clone)]
pub struct IncrementSource {
    /// The topic of documents.
    pub topic: Arc<str>,
    /// Its partition.
    pub partition: i32,
    /// The epoch of its offsets.
    pub epoch: Epoch,
}

/// See the module documentation. One per assignment.
#[derive(Debug)]
pub struct Emitter {
    source: IncrementSource,
    names: Arc<Names>,
    interval: Duration,
    edges: Edges,
    /// Everything below is in an acknowledged increment or needed none.
    acknowledged: Position,
    /// End of the increment in flight.
    under_way: Option<Position>,
    /// When the last one was made.
    last: Instant,
    /// Bytes held at that time.
    bytes_then: usize,
    /// It did not cover everything due.
    was_cut: bool,
    /// Earliest time of the next one.
    not_before: Instant,
    increment_bytes: usize,
}

impl Emitter {
    /// For an assignment that starts at offset `start` and sends every `interval`.
    pub fn new(
        source: IncrementSource,
        names: Arc<Names>,
        interval: Duration,
        start: i64,
        now: Instant,
    ) -> Self {
        Self {
            acknowledged: position(source.epoch, start),
            source,
            names,
            interval,
            edges: Edges::default(),
            under_way: None,
            last: now,
            bytes_then: 0,
            was_cut: false,
            not_before: now,
            increment_bytes: INCREMENT_BYTES,
        }
    }

    /// Takes the edges of finished entries. Call before the watermark passes them.
    pub fn put(&mut self, edges: impl IntoIterator<Item = CountChange>, now: Instant) {
        for edge in edges {
            self.edges.put(edge, now);
        }
    }

    /// The edges held.
    pub fn edges(&self) -> &Edges {
        &self.edges
    }

    /// When the next increment is due if everything below offset `done` is done; `None` while one is in flight or
    /// nothing is to be sent. `at_once`: something waits for it.
    pub fn due_at(&self, done: i64, at_once: bool) -> Option<Instant> {
        if self.under_way.is_some() || self.is_acknowledged(done) {
            return None;
        }
        let new_bytes = self.edges.bytes().saturating_sub(self.bytes_then);
        let is_pressing = at_once || self.was_cut || new_bytes >= SEND_AT_BYTES;
        Some(self.not_before.max(if is_pressing { self.last } else { self.last + self.interval }))
    }

    /// Makes an increment of everything below offset `done`, or of its first part. It is in flight until
    /// [`Emitter::acknowledged`] or [`Emitter::too_large`].
    pub fn next(&mut self, done: i64, now: Instant) -> OutgoingIncrement {
        let below = position(self.source.epoch, done);
        let part = self.edges.part(below, self.increment_bytes);
        self.last = now;
        self.bytes_then = self.edges.bytes();
        self.was_cut = part.to < below;
        self.under_way = Some(part.to);
        let IncrementSource { topic, partition, .. } = &self.source;
        let head = Head { id: self.names.next(), topic, partition: *partition, to: part.to };
        // Serializing plain strings and numbers into a Vec cannot fail.
        let mut value = serde_json::to_vec(&head).unwrap_or_default();
        value.pop();
        value.extend_from_slice(b",\"edges\":[");
        value.extend_from_slice(&part.json);
        value.extend_from_slice(b"]}");
        OutgoingIncrement { key: format!("{topic}/{partition}"), value: value.into(), edges: part.edges }
    }

    /// The increment in flight is acknowledged.
    pub fn acknowledged(&mut self) {
        if let Some(to) = self.under_way.take() {
            let before = self.edges.bytes();
            self.edges.sent(to);
            self.bytes_then = self.bytes_then.saturating_sub(before - self.edges.bytes());
            self.acknowledged = self.acknowledged.max(to);
        }
    }

    /// The topic refuses the increment in flight, of `edges` edges, for its size. The next one is smaller; if it cannot
    /// be, it is retried at `retry_at`, and this returns `false`.
    pub fn too_large(&mut self, edges: usize, retry_at: Instant) -> bool {
        self.under_way = None;
        self.was_cut = true;
        self.increment_bytes = (self.increment_bytes / 2).max(1);
        if edges <= 1 {
            self.not_before = retry_at;
        }
        edges > 1
    }

    /// The offset that may be committed if everything below offset `done` is done.
    pub fn let_through(&self, done: i64) -> i64 {
        if self.is_acknowledged(done) { done } else { done.min(self.acknowledged.offset()) }
    }

    /// Whether everything below offset `done` is in acknowledged increments.
    pub fn is_acknowledged(&self, done: i64) -> bool {
        position(self.source.epoch, done) <= self.acknowledged
    }
}

/// The position of an offset. An offset without one sorts above all others; no record can be there.
fn position(epoch: Epoch, offset: i64) -> Position {
    Position::new(epoch, offset).unwrap_or(Position::from_version(u64::MAX))
}

#[cfg(test)]
mod tests;
