//! Finds the documents that are not where the deciding map says, and touches each, until there are none.
//!
//! A scan sees the last refresh; writes go on meanwhile. So what a scan finds is read again, realtime, before it is touched,
//! and a touch too many does no harm. A scan that finds nothing after all that was touched is done is the proof that
//! everything is in its place: whatever is written meanwhile is placed by the same map.

use std::time::Duration;

use super::{MigrateError, Migration, SAY, Seen};
use crate::clock::Instant;
use crate::elastic::scan::{Hit, Scan, ScanOptions};
use crate::elastic::{Get, GetAnswer, Index};
use crate::geoshard::GeoshardMap;
use crate::ids::{DocId, ShardId};
use crate::send::Op;

/// Documents read at once.
const PAGE: usize = 1000;
/// So often everything is looked at; what did not move by then does not move.
const MOST_ROUNDS: u32 = 8;

/// What one look at everything found.
#[derive(Debug, Default)]
struct Round {
    read: u64,
    misplaced: u64,
    unplaceable: u64,
    example: Option<DocId>,
    said: Option<Instant>,
}

impl Migration {
    /// Touches what is not in its place until everything is.
    pub(super) async fn place_all(&self, seen: &Seen) -> Result<(), MigrateError> {
        let record = &seen.stored.record;
        let map = record.deciding();
        for number in 1.. {
            let round = self.look_at_everything(seen, map).await?;
            self.say(format!(
                "look {number}: {} documents read, {} were not where {} says",
                round.read,
                round.misplaced,
                map.fingerprint()
            ));
            if round.unplaceable > 0 {
                self.say(format!(
                    "{} documents have no location that geofold can read; they stay where they are",
                    round.unplaceable
                ));
            }
            let Some(example) = round.example else { return Ok(()) };
            if number == MOST_ROUNDS {
                return Err(MigrateError::Stuck { count: round.misplaced, example: example.to_string() });
            }
            self.topic.flush().await?;
            self.everything_is_committed(seen).await?;
        }
        Ok(())
    }

    async fn look_at_everything(&self, seen: &Seen, map: &GeoshardMap) -> Result<Round, MigrateError> {
        let mut shards: Vec<ShardId> =
            seen.stored.record.live().iter().flat_map(|map| map.shards().iter().cloned()).collect();
        shards.sort_unstable();
        shards.dedup();
        self.refresh(&shards).await?;
        let mut round = Round::default();
        for shard in &shards {
            let options = ScanOptions {
                page: PAGE,
                timeout: self.timeout(),
                fields: vec![self.location.as_str().to_owned()],
                query: None,
            };
            let name = Index::Geoshard(shard.clone()).name(&self.config.elasticsearch.prefix);
            let mut scan = Scan::open(&*self.elastic, &[name], options).await?;
            loop {
                let page = scan.next().await?;
                if page.is_empty() {
                    break;
                }
                round.read += page.len() as u64;
                let misplaced = self.really_misplaced(shard, map, page, &mut round).await?;
                round.misplaced += misplaced.len() as u64;
                round.example = round.example.or_else(|| misplaced.first().cloned());
                self.touch(misplaced).await;
                let now = self.clock.now();
                if round.said.is_some_and(|said| now.since(said) >= SAY) {
                    self.say(format!("{} documents read, {} touched", round.read, round.misplaced));
                    round.said = Some(now);
                }
                round.said = round.said.or(Some(now));
                // A change that was called off is not gone on with.
                self.is_still(seen).await?;
            }
            scan.close().await;
        }
        Ok(round)
    }

    /// Of a page of `shard`, the documents that `map` places elsewhere, now.
    async fn really_misplaced(
        &self,
        shard: &ShardId,
        map: &GeoshardMap,
        page: Vec<Hit>,
        round: &mut Round,
    ) -> Result<Vec<DocId>, MigrateError> {
        let is_placed = |source: &[u8]| self.location.locate(source).ok().map(|at| map.locate(at) == shard);
        let suspects: Vec<DocId> = page
            .into_iter()
            .filter(|hit| is_placed(hit.source.to_string().as_bytes()) != Some(true))
            .map(|hit| hit.id)
            .collect();
        if suspects.is_empty() {
            return Ok(suspects);
        }
        let get = |id: &DocId| Get { index: Index::Geoshard(shard.clone()), id: id.clone() };
        let gets: Vec<Get> = suspects.iter().map(get).collect();
        let doing = "read documents that are to move";
        let answers = self.elastic.mget(&gets, self.timeout()).await;
        let answers = answers.map_err(|error| MigrateError::Call { doing, error })?;
        let mut misplaced = Vec::new();
        for (id, answer) in suspects.into_iter().zip(answers) {
            match answer {
                GetAnswer::Missing => {}
                GetAnswer::Failed(error) => {
                    let (doing, reason) = (doing.to_owned(), error.to_string());
                    return Err(MigrateError::Refused { doing, status: error.status, reason });
                }
                GetAnswer::Found(found) => match is_placed(&found.source) {
                    Some(true) => {}
                    Some(false) => misplaced.push(id),
                    None => round.unplaceable += 1,
                },
            }
        }
        Ok(misplaced)
    }

    /// Touches documents no faster than the rate allows.
    async fn touch(&self, ids: Vec<DocId>) {
        let share = Duration::from_secs(1) / self.touch_rate.get();
        let pause = share.saturating_mul(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        if !ids.is_empty() {
            self.topic.ask(Op::Touch, ids).await;
            tokio::time::sleep(pause).await;
        }
    }
}
