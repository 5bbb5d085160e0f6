//! Skips one record of a stopped partition, on purpose: it becomes a dead letter, and the group's committed offset moves behind it.
//!
//! The committed offset belongs to the partition's owner. So this is only for a group without members: the broker refuses an offset
//! from outside while a group has one. Before anything is written the committed offset is committed again unchanged, which the broker
//! refuses in the same way. Only the record at the committed offset can be skipped: everything before it is done.
//!
//! A zombie (protocol, "Terms") does no harm: its writes are guarded by versions and compare-and-set as ever, and the skipped record is one
//! that no worker could apply. The letter is in its topic before the offset moves, as for every dead letter.

use std::time::Duration;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::LettersError;
use crate::io::kafka::client_config;
use crate::ops::records::{Dated, RecordsReader};
use crate::support::blocking::blocking;
use crate::support::config::Config;
use crate::worker::dead_letter::{DeadLetter, DeadLetterProducer, DeadLetterSink, Origin};

/// `geofold-error-reason` of a letter about a skipped record.
pub(super) const REASON: &str = "skipped_by_operator";
/// `geofold-error-stage` of such a letter.
const STAGE: &str = "operator";
/// How long the dead-letter topic may take to acknowledge.
const DELIVERY: Duration = Duration::from_secs(30);

/// Which record, and why.
pub struct Skip<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The topic for the letter.
    pub letters_topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// The offset: the committed one.
    pub offset: i64,
    /// In the operator's words.
    pub why: &'a str,
    /// Ends it.
    pub stop: CancellationToken,
}

/// A skipped record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Its key, as text.
    pub id: String,
    /// The offset that is committed now.
    pub committed: i64,
}

impl Skip<'_> {
    /// Skips the record.
    ///
    /// # Errors
    /// If the group has members, the offset is not the committed one, or the letter is not acknowledged. The offset moves last.
    pub async fn run(&self) -> Result<Skipped, LettersError> {
        let (config, partition, offset, stop) =
            (self.config.clone(), self.partition, self.offset, self.stop.clone());
        let (reader, found, epoch) = blocking(move || prepare(&config, partition, offset, stop)).await?;
        let record = found.record;
        let id =
            record.key.as_ref().map_or_else(String::new, |key| String::from_utf8_lossy(key).into_owned());
        let letter = DeadLetter {
            key: record.key,
            value: record.value,
            headers: record.headers.unwrap_or_default(),
            reason: REASON,
            stage: STAGE,
            detail: self.why.to_owned(),
            origin: Origin {
                topic: self.config.kafka.topic.as_str().into(),
                partition,
                first_offset: offset,
                last_offset: offset,
            },
        };
        let doing = "make a kafka producer";
        let settings = client_config(&self.config.producer_properties());
        let letters = DeadLetterProducer::new(settings, self.letters_topic, self.config.retry.policy())
            .map_err(|error| LettersError::Kafka { doing, error })?;
        if tokio::time::timeout(DELIVERY, letters.deliver(vec![letter])).await.is_err() {
            return Err(LettersError::Refused(format!(
                "the dead-letter topic {} did not acknowledge the letter within {DELIVERY:?}: nothing is skipped; check that it exists \
                 and may be written",
                self.letters_topic
            )));
        }
        blocking(move || reader.commit(&[(partition, offset + 1, epoch)])).await?;
        Ok(Skipped { partition, offset, id, committed: offset + 1 })
    }
}

/// Checks everything before anything is written; gives the record and the epoch of its leader.
fn prepare(
    config: &Config,
    partition: i32,
    offset: i64,
    stop: CancellationToken,
) -> Result<(RecordsReader, Dated, Option<i32>), LettersError> {
    let topic = &config.kafka.topic;
    let reader = RecordsReader::new(config, topic, stop)?;
    let refused = |text: String| Err(LettersError::Refused(text));
    let partitions = reader.partitions()?;
    if !(0..partitions).contains(&partition) {
        return refused(format!("{topic} has partitions 0 to {}", partitions - 1));
    }
    let committed = reader.committed(partition..partition + 1)?.get(&partition).copied();
    let range = reader.range(partition)?;
    let next = committed.unwrap_or(range.start);
    let first = reader.first_with_epoch(partition, next.max(range.start)..range.end)?;
    let Some((found, epoch)) = first else {
        return refused(format!(
            "everything in partition {partition} is committed: there is nothing to skip"
        ));
    };
    if found.record.offset != offset {
        return refused(format!(
            "the next record of partition {partition} is at offset {}, not {offset}: only that one can be skipped, since everything \
             before it is done",
            found.record.offset
        ));
    }
    // Refused like the real one if the group has a member.
    reader.commit(&[(partition, next, None)])?;
    Ok((reader, found, epoch))
}
