//! Writes to the topic, at a rate, for as long as the run lasts: documents that come, move, are patched, touched, deleted and
//! come back, a few of them hot, and records that cannot be carried out.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use geofold::base::random::Random;
use serde_json::json;

use crate::report::Status;
use crate::support::world::Feed;
use crate::support::{Event, Raw, random_events};

/// Marks a record that cannot be carried out, with the reason that its dead letter must have.
pub const BAD: &str = "chaos-bad";

/// Time between two portions.
const PACE: Duration = Duration::from_millis(100);

/// More records behind than this, and the writer waits: the run is to end some day.
const MAX_LAG: u64 = 5_000;

/// More records without an acknowledgement than this, and it waits as well.
const MAX_WAITING: usize = 5_000;

/// One in so many records cannot be carried out.
const BAD_SHARE: u64 = 150;

/// Writes until it is over, then waits until the broker has everything.
pub fn write(feed: &Feed, seed: u64, rate: u64, ids: u64, status: &Status) {
    let mut random = Random::new(seed ^ 0x7772_6974_6572);
    let portion = (rate * PACE.as_millis() as u64).div_ceil(1000) as usize;
    let mut number = 0;
    while !status.is_over() {
        let next = Instant::now() + PACE;
        if status.lag.load(Relaxed) < MAX_LAG && feed.waiting() < MAX_WAITING {
            let mut records = Vec::with_capacity(portion + 1);
            for event in random_events(&mut random, portion, ids) {
                number += 1;
                records.push(numbered(event, number).to_raw());
                if random.below(BAD_SHARE) == 0 {
                    number += 1;
                    records.push(bad(&mut random, number, ids));
                }
            }
            feed.send(&records);
            status.sent.fetch_add(records.len() as u64, Relaxed);
        }
        feed.listen(next.saturating_duration_since(Instant::now()).max(Duration::from_millis(10)));
    }
    feed.flush();
}

/// The same with a number that no other record has: an older write cannot pass for it.
fn numbered(mut event: Event, number: u64) -> Event {
    match &mut event {
        Event::Index { document: content, .. } | Event::Patch { patch: content, .. } => {
            content["n"] = json!(number);
        }
        Event::Delete { .. } | Event::Touch { .. } => {}
    }
    event
}

/// A record that cannot be carried out. What is refused by Elasticsearch has an id of its own: what it does to a document
/// that is there depends on how records were folded.
fn bad(random: &mut Random, number: u64, ids: u64) -> Raw {
    let somebody = format!("p{}", random.below(ids));
    let (key, op, value, reason) = match random.below(5) {
        0 => (somebody, None, r#"{"location":"#, "unparsable_json"),
        1 => (somebody, None, "[1, 2]", "not_an_object"),
        2 => (somebody, None, r#"{"n": 1}"#, "no_location"),
        3 => (somebody, Some("upsert"), r#"{"location": [0, 0]}"#, "bad_op"),
        _ => {
            let value = r#"{"location": [0, 0], "n": "many"}"#;
            (format!("refused{number}"), None, value, "refused_by_elasticsearch")
        }
    };
    let mut headers = vec![(BAD, reason.to_owned())];
    headers.extend(op.map(|op| ("geofold-op", op.to_owned())));
    Raw { partition: None, key: Some(key.into_bytes()), value: Some(value.as_bytes().to_vec()), headers }
}
