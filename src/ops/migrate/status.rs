//! Progress of a change of the map, for `--status`.

use std::fmt;

use super::{MigrateError, Migration, some_of, unconfirmed};
use crate::io::maps::{MapChangeStage, MapsState};

/// What `geofold shards migrate --status` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationStatus(Vec<String>);

impl fmt::Display for MigrationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl Migration {
    /// The state of the change.
    pub async fn status(&self) -> Result<MigrationStatus, MigrateError> {
        let configured = self.configured.fingerprint();
        let Some(stored) = self.store().read().await? else {
            return Ok(MigrationStatus(vec![format!("one map: {configured}, as configured, never changed")]));
        };
        let record = stored.record;
        let mut lines = Vec::new();
        match &record.state {
            MapsState::One { map, unused, .. } => {
                lines.push(format!("one map: {}, generation {}", map.fingerprint(), record.generation));
                if map.fingerprint() != configured {
                    lines.push(format!("geoshards.map is {configured}: set it to the map in force"));
                }
                if !unused.is_empty() {
                    lines.push(format!(
                        "{} geoshards are unused; --retire deletes their indices",
                        unused.len()
                    ));
                }
            }
            MapsState::Two { old, new, stage, .. } => {
                lines.push(format!(
                    "two maps: from {} to {}, generation {}",
                    old.fingerprint(),
                    new.fingerprint(),
                    record.generation
                ));
                lines.push(match stage {
                    MapChangeStage::Announced => "announced: the old one decides until every owner has confirmed".to_owned(),
                    MapChangeStage::Moving => "moving: the new one decides, documents move; continue with --to or return with --abort".to_owned(),
                    MapChangeStage::Returning => "returning: the old one decides again, documents move back; continue with --abort".to_owned(),
                });
            }
        }
        let claims = self.store().claims(self.topic.partitions()).await?;
        let behind: Vec<String> = claims
            .iter()
            .enumerate()
            .filter(|(_, found)| found.as_ref().is_none_or(|found| found.generation < record.generation))
            .map(|(partition, found)| unconfirmed(partition, found.as_ref()))
            .collect();
        lines.push(if behind.is_empty() {
            format!("all {} partitions have confirmed", claims.len())
        } else {
            format!("not confirmed yet: {}", some_of(&behind))
        });
        Ok(MigrationStatus(lines))
    }
}
