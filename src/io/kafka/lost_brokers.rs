//! Finds the brokers again that librdkafka has lost.
//!
//! If a broker that was fenced for a while names topics but no brokers, after a pause of the only broker or in a rolling upgrade,
//! librdkafka 2.12 drops all brokers. As the last connection ends it begins to dial the configured ones, and cancels that at the
//! end of the same answer (its issue 5301, open in November 2026). The client gives no error and never dials again; a consumer
//! looks for its group's coordinator for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::statistics::Statistics;

use super::native;

/// How long a consumer may look for its group's coordinator before its brokers may be lost.
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(15);

/// The least time between two attempts.
const INTERVAL: Duration = Duration::from_secs(30);

/// Lets a client dial its configured brokers once more. One that has brokers loses nothing by it, but librdkafka keeps a copy of
/// their list each time: to be called after a request has failed, not in a loop.
pub fn find_brokers_again<C: ClientContext>(client: &Client<C>) {
    if native::add_configured_brokers(client) {
        tracing::debug!("the configured kafka brokers are dialled again");
    }
}

/// Whether a consumer has lost its brokers, from its statistics.
#[derive(Debug, Default)]
pub struct LostBrokers {
    are_lost: AtomicBool,
    /// The last attempt to find them again.
    tried: Mutex<Option<Instant>>,
}

impl LostBrokers {
    /// Takes the consumer's statistics.
    pub fn note(&self, statistics: &Statistics) {
        let group = statistics.cgrp.as_ref();
        let are_lost = group.is_some_and(|group| seeks_coordinator(&group.state, group.stateage));
        self.are_lost.store(are_lost, Ordering::Relaxed);
    }

    /// Finds them again, if they seem to be lost. Cheap otherwise.
    pub fn find_again<C: ClientContext>(&self, client: &Client<C>) {
        if !self.are_lost.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        if tried.is_none_or(|tried| tried.elapsed() >= INTERVAL) {
            *tried = Some(Instant::now());
            tracing::warn!(
                "no kafka broker says who coordinates the group; dialling the configured brokers again"
            );
            find_brokers_again(client);
        }
    }
}

/// `state` of the consumer group's handler, and how many milliseconds it lasts.
fn seeks_coordinator(state: &str, lasts: i64) -> bool {
    state != "up"
        && u64::try_from(lasts).is_ok_and(|lasts| Duration::from_millis(lasts) >= COORDINATOR_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::statistics::ConsumerGroup;

    use super::*;
    use crate::io::kafka::fenced_broker::{FencedBroker, is_answered};
    use crate::io::kafka::topic_facts;

    fn client(brokers: &str) -> BaseConsumer {
        ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap()
    }

    /// Of a consumer that has looked for its coordinator for so many milliseconds.
    fn looking_for(millis: i64) -> Statistics {
        let group =
            ConsumerGroup { state: "query-coord".to_owned(), stateage: millis, ..ConsumerGroup::default() };
        Statistics { cgrp: Some(group), ..Statistics::default() }
    }

    #[test]
    fn brokers_are_lost_if_no_coordinator_is_found_for_long() {
        for (state, lasts, are_lost) in [
            ("up", 60_000, false),
            ("query-coord", 14_999, false),
            ("query-coord", 15_000, true),
            ("init", -1, false),
        ] {
            assert_eq!(seeks_coordinator(state, lasts), are_lost, "{state} {lasts}");
        }
    }

    #[test]
    fn a_consumer_without_brokers_finds_them_again() {
        let broker = FencedBroker::start();
        let consumer = client(broker.address());
        let lost = LostBrokers::default();
        broker.make_lose(consumer.client());
        lost.note(&looking_for(14_999));
        lost.find_again(consumer.client());
        assert!(consumer.fetch_metadata(Some("t"), Duration::from_millis(100)).is_err(), "too early");
        lost.note(&looking_for(15_000));
        lost.find_again(consumer.client());
        assert!(is_answered(consumer.client()));
    }

    #[test]
    fn a_request_about_a_topic_finds_them_again() {
        let broker = FencedBroker::start();
        let consumer = client(broker.address());
        broker.make_lose(consumer.client());
        assert!(topic_facts(consumer.client(), "t", Duration::from_millis(100)).is_err());
        assert!(is_answered(consumer.client()));
    }

    #[test]
    fn a_client_without_configured_brokers_is_given_none() {
        let consumer: BaseConsumer = ClientConfig::new().create().unwrap();
        assert!(!native::add_configured_brokers(consumer.client()));
    }
}
