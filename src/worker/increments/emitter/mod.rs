//! When a partition's increments are sent, up to where, and what may be committed then. Pure: the time, the watermark and
//! what became of an increment go in; records for the topic come out.
//!
//! *Invariant:* [`Emitter::let_through`] is never above what an acknowledged increment covers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::base::clock::Instant;
use crate::base::position::{Epoch, Position};
use crate::core::counting::edges::Edges;
use crate::core::counting::increment::Change;

/// After so many bytes of new edges an increment is sent at once.
pub const SEND_AT_BYTES: usize = 512 << 10;

/// The edges of one increment have about so many bytes; Kafka's default for a record is a million.
pub const INCREMENT_BYTES: usize = 800_000;

/// Names increments, each differently from every other of any worker.
#[derive(Debug)]
pub struct Names {
    worker: String,
    next: AtomicU64,
}

impl Names {
    /// For one worker's life: 128 bits at random, and a number.
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
pub struct Outgoing {
    /// Its key: so that the increments of one partition keep their order.
    pub key: String,
    /// An [`Increment`](crate::core::counting::increment::Increment) as JSON.
    pub value: Bytes,
    /// How many edges are in it.
    pub edges: usize,
}

/// An [`Increment`](crate::core::counting::increment::Increment) without its edges, as it is written.
#[derive(Serialize)]
struct Head<'a> {
    id: String,
    topic: &'a str,
    partition: i32,
    to: Position,
}

/// Whose increments these are.
#[derive(Debug, Clone)]
pub struct Source {
    /// The topic of documents.
    pub topic: Arc<str>,
    /// Its partition.
    pub partition: i32,
    /// The epoch of its offsets.
    pub epoch: Epoch,
}

/// See the top of this file. One per assignment.
#[derive(Debug)]
pub struct Emitter {
    source: Source,
    names: Arc<Names>,
    interval: Duration,
    edges: Edges,
    /// An increment with everything below was acknowledged, or there was nothing.
    acknowledged: Position,
    /// Where the increment under way ends.
    under_way: Option<Position>,
    /// When the last one was made.
    last: Instant,
    /// Bytes that were held then.
    bytes_then: usize,
    /// It did not take all that was to be sent.
    was_cut: bool,
    /// None is made before.
    not_before: Instant,
    increment_bytes: usize,
}

impl Emitter {
    /// For an assignment that starts at the offset `start`, and sends every `interval`.
    pub fn new(source: Source, names: Arc<Names>, interval: Duration, start: i64, now: Instant) -> Self {
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

    /// Takes the edges of entries that are done. Before the watermark passes them.
    pub fn put(&mut self, edges: impl IntoIterator<Item = Change>, now: Instant) {
        for edge in edges {
            self.edges.put(edge, now);
        }
    }

    /// What is held.
    pub fn edges(&self) -> &Edges {
        &self.edges
    }

    /// When the next increment is due, where all below the offset `done` is done; `None` while one is under way, and where
    /// there is nothing to say. `at_once`: somebody waits for it.
    pub fn due_at(&self, done: i64, at_once: bool) -> Option<Instant> {
        if self.under_way.is_some() || self.is_acknowledged(done) {
            return None;
        }
        let new_bytes = self.edges.bytes().saturating_sub(self.bytes_then);
        let is_pressing = at_once || self.was_cut || new_bytes >= SEND_AT_BYTES;
        Some(self.not_before.max(if is_pressing { self.last } else { self.last + self.interval }))
    }

    /// Makes an increment of what is below the offset `done`, or of the first part of it. It is under way until
    /// [`Emitter::acknowledged`] or [`Emitter::too_large`].
    pub fn next(&mut self, done: i64, now: Instant) -> Outgoing {
        let below = position(self.source.epoch, done);
        let part = self.edges.part(below, self.increment_bytes);
        self.last = now;
        self.bytes_then = self.edges.bytes();
        self.was_cut = part.to < below;
        self.under_way = Some(part.to);
        let Source { topic, partition, .. } = &self.source;
        let head = Head { id: self.names.next(), topic, partition: *partition, to: part.to };
        // Serializing plain strings and numbers into a Vec cannot fail.
        let mut value = serde_json::to_vec(&head).unwrap_or_default();
        value.pop();
        value.extend_from_slice(b",\"edges\":[");
        value.extend_from_slice(&part.json);
        value.extend_from_slice(b"]}");
        Outgoing { key: format!("{topic}/{partition}"), value: value.into(), edges: part.edges }
    }

    /// The increment under way is in the topic for good.
    pub fn acknowledged(&mut self) {
        if let Some(to) = self.under_way.take() {
            let before = self.edges.bytes();
            self.edges.sent(to);
            self.bytes_then = self.bytes_then.saturating_sub(before - self.edges.bytes());
            self.acknowledged = self.acknowledged.max(to);
        }
    }

    /// The topic does not take the increment under way, of so many edges, for its size. The next one is smaller; where it can
    /// not be, it is tried at `retry_at`, and the answer is `false`.
    pub fn too_large(&mut self, edges: usize, retry_at: Instant) -> bool {
        self.under_way = None;
        self.was_cut = true;
        self.increment_bytes = (self.increment_bytes / 2).max(1);
        if edges <= 1 {
            self.not_before = retry_at;
        }
        edges > 1
    }

    /// The offset that may be committed, where all below the offset `done` is done.
    pub fn let_through(&self, done: i64) -> i64 {
        if self.is_acknowledged(done) { done } else { done.min(self.acknowledged.offset()) }
    }

    /// Whether everything below the offset `done` is in acknowledged increments.
    pub fn is_acknowledged(&self, done: i64) -> bool {
        position(self.source.epoch, done) <= self.acknowledged
    }
}

/// The position of an offset. One that has none is above all that have; no record can be there.
fn position(epoch: Epoch, offset: i64) -> Position {
    Position::new(epoch, offset).unwrap_or(Position::from_version(u64::MAX))
}

#[cfg(test)]
mod tests;
