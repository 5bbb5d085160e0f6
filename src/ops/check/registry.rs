//! Checks that the schema registry is one, and accepts the credentials.

use super::CheckFinding;
use crate::io::registry::Registry;
use crate::support::config::Config;

const ABOUT: &str = "schema registry";

/// Kinds of schemas that records are read by.
const READ: [&str; 3] = ["AVRO", "JSON", "PROTOBUF"];

/// Whether the registry answers; nothing if none is used. That it does not keeps no worker from starting: only the partitions
/// whose records need a schema wait.
pub(super) async fn look_at_registry(config: &Config) -> Option<CheckFinding> {
    if !config.reads_registry() {
        return None;
    }
    let registry = match Registry::open(&config.schema_registry, None) {
        Ok(registry) => registry,
        Err(error) => return Some(CheckFinding::error(ABOUT, error)),
    };
    Some(match registry.kinds().await {
        Err(trouble) => CheckFinding::unreachable(ABOUT, trouble),
        Ok(kinds) => {
            let read: Vec<&str> =
                READ.into_iter().filter(|read| kinds.iter().any(|kind| kind == read)).collect();
            if read.is_empty() {
                CheckFinding::warning(
                    ABOUT,
                    format_args!("it answers, and has none of the kinds {}", READ.join(", ")),
                )
            } else {
                CheckFinding::ok(
                    ABOUT,
                    format_args!("it answers, and has schemas of the kinds {}", read.join(", ")),
                )
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::check::CheckLevel;
    use crate::support::config::RecordFormat;
    use crate::testkit::testing::TestRegistry;

    #[tokio::test]
    async fn the_registry_is_asked_if_anything_is_read_by_it() {
        assert_eq!(look_at_registry(&Config::default()).await, None);
        let registry = TestRegistry::start().await;
        let mut config = Config::default();
        config.kafka.format = RecordFormat::Registry;
        config.schema_registry = registry.settings();
        let finding = look_at_registry(&config).await.unwrap();
        assert_eq!(finding.level, CheckLevel::Ok, "{finding}");
        assert!(finding.message.contains("AVRO, JSON, PROTOBUF"), "{finding}");
        registry.be(503);
        let finding = look_at_registry(&config).await.unwrap();
        assert_eq!(finding.level, CheckLevel::Unreachable, "{finding}");
        assert!(finding.message.contains("503"), "{finding}");
    }
}
