//! Sends dead letters to the partition of their record again, unless a newer write of the document exists.
//!
//! The source partition is read from the first letter's record to its end, and what came meanwhile is read before records are sent: a
//! write that a producer makes in the last milliseconds before them is not seen.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::letter::{LetterRow, LetterSeen};
use super::plan::{KeyWrites, PartitionKey, PartitionRead, ReplayDecision, ReplayRules, partition_key, plan};
use super::{LetterFilter, LettersError, read_letters};
use crate::base::ids::DocId;
use crate::base::position::{Epoch, Position};
use crate::core::placement::Placement;
use crate::io::elastic::{Elastic, Get, GetAnswer, Index};
use crate::io::kafka::login::Login;
use crate::io::send::{Destinations, settings};
use crate::ops::records::{Bound, RecordsReader};
use crate::support::blocking::blocking;
use crate::support::config::Config;

/// How long the client's queue may be full.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
/// Reads of what came to a partition meanwhile, at most, before its records are sent.
const CATCH_UPS: usize = 10;

/// Which letters, and how.
pub struct Replay<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The search server.
    pub elastic: Arc<dyn Elastic>,
    /// The dead-letter topic.
    pub letters_topic: &'a str,
    /// The letters.
    pub filter: &'a LetterFilter,
    /// Maximum number.
    pub limit: usize,
    /// How much of the source topic may be read.
    pub bound: Bound,
    /// Also send what cannot be known to be the last write.
    pub force: bool,
    /// Decide, and send nothing.
    pub dry_run: bool,
    /// Ends it.
    pub stop: CancellationToken,
}

/// What happened to one letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// The letter.
    #[serde(flatten)]
    pub row: LetterRow,
    /// What was decided.
    #[serde(flatten)]
    pub decision: ReplayDecision,
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LetterRow { letter, id, origin, .. } = &self.row;
        match &self.decision {
            ReplayDecision::Send => write!(f, "send      {letter}  {id}")?,
            ReplayDecision::Obsolete { newer } => {
                write!(f, "obsolete  {letter}  {id}: a newer write exists, at offset {newer}")?;
            }
            ReplayDecision::ReplacedBy { letter: later } => {
                write!(f, "obsolete  {letter}  {id}: letter {later}, sent too, replaces the document")?;
            }
            ReplayDecision::NotKnown { why } => write!(f, "not sent  {letter}  {id}: {why}")?,
            ReplayDecision::Impossible { why } => write!(f, "not sent  {letter}  {id}: {why}")?,
        }
        if let (ReplayDecision::Send, Some(origin)) = (&self.decision, origin) {
            write!(f, " (partition {}, again after offset {})", origin.partition, origin.last_offset)?;
        }
        Ok(())
    }
}

/// Counts of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ReplayTally {
    /// Sent again.
    pub sent: u64,
    /// Dropped: a newer write exists.
    pub obsolete: u64,
    /// Neither.
    pub not_sent: u64,
}

impl ReplayTally {
    /// Of a run.
    pub fn of(replayed: &[Replayed]) -> Self {
        let mut tally = Self::default();
        for one in replayed {
            match one.decision {
                ReplayDecision::Send => tally.sent += 1,
                ReplayDecision::Obsolete { .. } | ReplayDecision::ReplacedBy { .. } => tally.obsolete += 1,
                ReplayDecision::NotKnown { .. } | ReplayDecision::Impossible { .. } => tally.not_sent += 1,
            }
        }
        tally
    }
}

impl Replay<'_> {
    /// Decides about each letter and sends those that may be sent, in the order of their records.
    pub async fn run(&self) -> Result<Vec<Replayed>, LettersError> {
        let letters = self.letters().await?;
        let mut writes = self.writes_in_index(&letters).await?;
        let (letters, scan) = self.scan(letters).await?;
        for (key, last) in scan.last {
            writes.entry(key).or_default().last = Some(last);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let remembered = now.saturating_sub(self.config.placements.deleted_retention).as_millis();
        let rules = ReplayRules {
            topic: &self.config.kafka.topic,
            remembered_since_ms: i64::try_from(remembered).unwrap_or(i64::MAX),
            force: self.force,
        };
        let decisions = plan(&letters, &writes, &scan.reads, rules);
        if !self.dry_run {
            let destinations = Destinations::new(self.config, self.elastic.clone());
            let waits = destinations.no_partitions_wait().await;
            waits.map_err(|error| LettersError::Refused(error.to_string()))?;
            self.send(&letters, &decisions).await?;
        }
        let replayed = letters.iter().zip(decisions);
        Ok(replayed.map(|(letter, decision)| Replayed { row: letter.row(), decision }).collect())
    }

    /// The chosen letters, in the order of their records; without those that repeat one. Content that was left out is read from
    /// the source topic.
    async fn letters(&self) -> Result<Vec<LetterSeen>, LettersError> {
        let (config, topic) = (self.config.clone(), self.letters_topic.to_owned());
        let (filter, limit, stop) = (self.filter.clone(), self.limit, self.stop.clone());
        let mut letters = blocking(move || -> Result<_, LettersError> {
            let reader = RecordsReader::new(&config, &topic, stop.clone())?;
            let letters = read_letters(&reader, &filter, limit)?.letters;
            let source = RecordsReader::new(&config, &config.kafka.topic, stop)?;
            restore(&source, &config.kafka.topic, letters)
        })
        .await?;
        let missing: Vec<String> = self
            .filter
            .places
            .iter()
            .filter(|place| !letters.iter().any(|letter| letter.place == **place))
            .map(ToString::to_string)
            .collect();
        if !missing.is_empty() {
            return Err(LettersError::Missing(missing.join(", ")));
        }
        letters.sort_by_key(|letter| {
            let origin = letter.origin.as_ref();
            (origin.map(|origin| (origin.partition, origin.first_offset, origin.last_offset)), letter.place)
        });
        // After a crash a letter may be there twice.
        let content = |letter: &LetterSeen| (letter.origin.clone(), letter.key.clone(), letter.value.clone());
        letters.dedup_by(|later, earlier| later.origin.is_some() && content(later) == content(earlier));
        Ok(letters)
    }

    /// The newest position of each document in the index, without positions of the letters themselves: a refused record has one.
    async fn writes_in_index(
        &self,
        letters: &[LetterSeen],
    ) -> Result<HashMap<PartitionKey, KeyWrites>, LettersError> {
        let mut writes: HashMap<PartitionKey, KeyWrites> = HashMap::new();
        for key in letters.iter().filter_map(partition_key) {
            if writes.contains_key(&key) {
                continue;
            }
            let Ok(id) = DocId::from_key(Some(&key.1)) else { continue };
            let positions =
                positions_in_index(&*self.elastic, &id, self.config.elasticsearch.request_timeout).await?;
            let epoch = self.config.positions.epoch;
            let index = positions
                .iter()
                .filter(|position| position.epoch() == epoch)
                .map(|position| position.offset());
            let is_own = |offset: &i64| is_own_offset(letters, &key, *offset);
            let index = index.filter(|offset| !is_own(offset)).max();
            let later_epoch = positions.iter().any(|position| position.epoch() > epoch);
            writes.insert(key, KeyWrites { last: None, index, later_epoch });
        }
        Ok(writes)
    }

    /// Reads the source partitions.
    async fn scan(&self, letters: Vec<LetterSeen>) -> Result<(Vec<LetterSeen>, Scan), LettersError> {
        let (config, bound, stop) = (self.config.clone(), self.bound, self.stop.clone());
        blocking(move || {
            let reader = RecordsReader::new(&config, &config.kafka.topic, stop)?;
            let scan = scan(&reader, &config.kafka.topic, &letters, bound)?;
            Ok((letters, scan))
        })
        .await
    }

    async fn send(&self, letters: &[LetterSeen], decisions: &[ReplayDecision]) -> Result<(), LettersError> {
        let chosen = letters.iter().zip(decisions).filter(|(_, decision)| **decision == ReplayDecision::Send);
        let chosen: Vec<&LetterSeen> = chosen.map(|(letter, _)| letter).collect();
        if chosen.is_empty() {
            return Ok(());
        }
        let properties = self.config.topic_producer_properties().into_iter().collect();
        let doing = "make a kafka producer";
        let producer: FutureProducer<Login> = settings(&properties)
            .create_with_context(Login)
            .map_err(|error| LettersError::Kafka { doing, error })?;
        for letter in chosen {
            let Some(origin) = &letter.origin else { continue };
            let mut record: FutureRecord<'_, [u8], [u8]> =
                FutureRecord::to(&origin.topic).partition(origin.partition).headers(letter.headers.clone());
            record.key = letter.key.as_deref();
            record.payload = letter.value.as_deref();
            // One by one: those of a document must stay in order, and a failure must end the run.
            if let Err((error, _)) = producer.send(record, QUEUE_TIMEOUT).await {
                return Err(LettersError::NotSent { place: letter.place, error });
            }
        }
        Ok(())
    }
}

/// The positions of a document's placement and of the copies that it names.
async fn positions_in_index(
    elastic: &dyn Elastic,
    id: &DocId,
    timeout: Duration,
) -> Result<Vec<Position>, LettersError> {
    let of = |index| Get::realtime(index, id.clone());
    let answer = elastic.mget(&[of(Index::Placements)], timeout).await?.pop();
    let Some(GetAnswer::Found(found)) = answer else { return Ok(Vec::new()) };
    // An unreadable placement is of a later version: nothing may be sent over it.
    let Ok(placement) = Placement::from_json(&found.source) else {
        return Ok(Epoch::new(Epoch::MAX).and_then(|epoch| Position::new(epoch, 0)).into_iter().collect());
    };
    let gets: Vec<Get> = placement.may_hold().map(|shard| of(Index::Geoshard(shard.clone()))).collect();
    let mut positions = vec![placement.pos];
    if !gets.is_empty() {
        for answer in elastic.mget(&gets, timeout).await? {
            if let GetAnswer::Found(found) = answer {
                positions.push(Position::from_version(found.version));
            }
        }
    }
    Ok(positions)
}

/// Whether the record at this offset is one of those letters of this key are about.
fn is_own_offset(letters: &[LetterSeen], key: &PartitionKey, offset: i64) -> bool {
    letters.iter().any(|letter| {
        partition_key(letter).as_ref() == Some(key)
            && letter
                .origin
                .as_ref()
                .is_some_and(|origin| (origin.first_offset..=origin.last_offset).contains(&offset))
    })
}

/// What the source partitions say.
#[derive(Default)]
struct Scan {
    reads: HashMap<i32, PartitionRead>,
    /// The last write of each key that is not a letter.
    last: HashMap<PartitionKey, i64>,
}

fn scan(
    reader: &RecordsReader,
    topic: &str,
    letters: &[LetterSeen],
    bound: Bound,
) -> Result<Scan, LettersError> {
    let mut scan = Scan::default();
    let until = Instant::now() + bound.time;
    let mut left = bound.records;
    let mut starts: BTreeMap<i32, i64> = BTreeMap::new();
    for origin in
        letters.iter().filter_map(|letter| letter.origin.as_ref()).filter(|origin| origin.topic == topic)
    {
        let start = starts.entry(origin.partition).or_insert(i64::MAX);
        *start = (*start).min(origin.first_offset);
    }
    let partitions = reader.partitions()?;
    for (partition, start) in starts {
        if !(0..partitions).contains(&partition) {
            continue;
        }
        let own = letters.iter().filter_map(partition_key).filter(|(of, _)| *of == partition);
        let own: HashSet<Bytes> = own.map(|(_, key)| key).collect();
        let mut range = reader.range(partition)?;
        let begin = range.start;
        range.start = range.start.max(start);
        let mut read = PartitionRead { begin, end: range.end, is_complete: true, has_gaps: false };
        for _ in 0..CATCH_UPS {
            let mut expected = range.start;
            let mut seen = |dated: crate::ops::records::Dated| {
                let record = &dated.record;
                read.has_gaps |= record.offset > expected;
                expected = record.offset + 1;
                let is_touch = record.op() == Some(b"touch");
                if let Some(key) = record.key.as_ref().filter(|key| !is_touch && own.contains(&key[..])) {
                    let key = (partition, key.clone());
                    if !is_own_offset(letters, &key, record.offset) {
                        scan.last.insert(key, record.offset);
                    }
                }
                left = left.saturating_sub(1);
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let reached = reader.read(partition, range.clone(), Some(until), &mut seen)?;
            if reached < range.end {
                read.is_complete = false;
                break;
            }
            // What came meanwhile.
            let end = reader.range(partition)?.end;
            if end <= read.end {
                break;
            }
            (range, read.end) = (read.end..end, end);
        }
        scan.reads.insert(partition, read);
    }
    Ok(scan)
}

/// The letters, those without their content with the content of their record, if it is still in the topic.
fn restore(
    source: &RecordsReader,
    topic: &str,
    letters: Vec<LetterSeen>,
) -> Result<Vec<LetterSeen>, LettersError> {
    let is_cut = |letter: &LetterSeen| letter.value_left_out.is_some() || letter.key_left_out.is_some();
    if !letters.iter().any(is_cut) {
        return Ok(letters);
    }
    let partitions = source.partitions()?;
    let restored = |letter: LetterSeen| -> Result<LetterSeen, LettersError> {
        let Some(origin) = letter.origin.as_ref().filter(|_| is_cut(&letter)) else { return Ok(letter) };
        let offset = origin.first_offset;
        let is_here = origin.topic == topic && (0..partitions).contains(&origin.partition);
        if !is_here || offset != origin.last_offset {
            return Ok(letter);
        }
        let range = source.range(origin.partition)?;
        let range = range.start.max(offset)..range.end.min(offset.saturating_add(1));
        let Some(dated) = source.first(origin.partition, range)? else { return Ok(letter) };
        let record = dated.record;
        if letter.key_left_out.is_none() && record.key != letter.key {
            return Ok(letter);
        }
        let (key, value, headers) = (record.key, record.value, record.headers.unwrap_or_default());
        Ok(LetterSeen { key, value, headers, value_left_out: None, key_left_out: None, ..letter })
    };
    letters.into_iter().map(restored).collect()
}
