//! Finds the brokers again that librdkafka has lost.
//!
//! librdkafka 2.12 forgets all brokers, and never dials again, if one that was fenced for a while names topics but no brokers:
//! after a pause of the only broker, or in a rolling upgrade (librdkafka issue 5301, open in November 2026). The client gives no
//! error; a consumer looks for its group's coordinator for ever.

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

/// Lets a client dial its configured brokers once more. One that has brokers loses nothing by it.
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
    use rdkafka::mocking::MockCluster;

    use super::*;

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
    fn a_client_is_given_its_configured_brokers() {
        let cluster = MockCluster::new(1).unwrap();
        let brokers = cluster.bootstrap_servers();
        let consumer: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", &brokers).set("group.id", "g").create().unwrap();
        assert!(native::add_configured_brokers(consumer.client()));
        let none: BaseConsumer = ClientConfig::new().set("group.id", "g").create().unwrap();
        assert!(!native::add_configured_brokers(none.client()));
    }
}
