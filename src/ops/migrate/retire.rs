//! Deletes the indices that no map needs any more, once no placement names them.
//!
//! A placement may still name such a geoshard as a leftover, if its last clear was lost; the next writer of that document
//! would retry a delete from a missing index without end. So every placement is read, and one that names such an index is
//! cleared by compare-and-set (as in step 7): the index is empty, and no worker writes into it since all partitions
//! have confirmed that one map is in force.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{MigrateError, Migration};
use crate::base::ids::{DocId, ShardId};
use crate::core::placement::Placement;
use crate::io::elastic::scan::{IndexScan, ScanOptions};
use crate::io::elastic::{
    AdminCall, BulkAnswer, BulkOp, Get, GetAnswer, Index, ItemError, Method, WriteCondition,
};
use crate::io::maps::{BadStep, MapsState};

const PAGE: usize = 1000;
const CONFLICT: u16 = 409;

impl Migration {
    /// Deletes the empty indices that earlier changes left. Gives their names.
    pub async fn retire(&self) -> Result<Vec<String>, MigrateError> {
        let seen = self.read_record().await?;
        let unused = match &seen.stored.record.state {
            MapsState::One { unused, .. } => unused.clone(),
            MapsState::Two { stage, .. } => return Err(BadStep::Stage(*stage).into()),
        };
        let prefix = &self.config.elasticsearch.prefix;
        let found = crate::io::indices::find(&*self.elastic, prefix, self.timeout()).await?;
        let name = |shard: &ShardId| Index::Geoshard(shard.clone()).name(prefix);
        let there: Vec<ShardId> = unused.iter().filter(|shard| found.knows(&name(shard))).cloned().collect();
        if !there.is_empty() {
            self.all_acting_by(&seen).await?;
            self.are_empty(&there).await?;
            let gone: BTreeSet<ShardId> = there.iter().cloned().collect();
            while self.clear_placements(&gone).await? > 0 {}
            // Entries that were in work while placements were cleared may still want to sweep there.
            self.all_committed(&seen).await?;
            self.are_empty(&there).await?;
            for shard in &there {
                self.admin(Method::Delete, format!("/{}", name(shard)), None).await?;
                self.say(format!("deleted {}", name(shard)));
            }
        }
        if !unused.is_empty() {
            self.store().write(&seen.stored.record.retired()?, Some(seen.stored.stamp)).await?;
        }
        Ok(there.iter().map(name).collect())
    }

    async fn are_empty(&self, shards: &[ShardId]) -> Result<(), MigrateError> {
        self.refresh(shards).await?;
        for shard in shards {
            let index = Index::Geoshard(shard.clone()).name(&self.config.elasticsearch.prefix);
            let answer = self.admin(Method::Get, format!("/{index}/_count"), None).await?;
            let is_whole = answer["_shards"]["failed"] == 0;
            match answer["count"].as_u64().filter(|_| is_whole) {
                Some(0) => {}
                Some(count) => return Err(MigrateError::NotEmpty { index, count }),
                None => {
                    let (doing, reason) = (format!("count the documents of {index}"), answer.to_string());
                    return Err(MigrateError::Refused { doing, status: 200, reason });
                }
            }
        }
        Ok(())
    }

    /// Removes `gone` from the leftovers of every placement; returns how many named one of them.
    async fn clear_placements(&self, gone: &BTreeSet<ShardId>) -> Result<u64, MigrateError> {
        let timeout = self.timeout();
        let name = Index::Placements.name(&self.config.elasticsearch.prefix);
        self.admin(Method::Post, format!("/{name}/_refresh"), None).await?;
        let options = ScanOptions { page: PAGE, timeout, fields: vec![], query: None };
        let mut scan = IndexScan::open(&*self.elastic, &[name], options).await?;
        let mut named = 0;
        loop {
            let page = scan.next().await?;
            if page.is_empty() {
                break;
            }
            let names_one = |source: &Value| {
                let placement: Option<Placement> = serde_json::from_value(source.clone()).ok();
                placement.is_none_or(|placement| placement.may_hold().any(|shard| gone.contains(shard)))
            };
            let ids: Vec<DocId> =
                page.into_iter().filter(|hit| names_one(&hit.source)).map(|hit| hit.id).collect();
            named += self.clear(&ids, gone).await?;
        }
        scan.close().await;
        if named > 0 {
            self.say(format!("cleared {named} placements that still named an index to be deleted"));
        }
        Ok(named)
    }

    /// Of these documents' placements as they are now, those that name one of `gone`.
    async fn clear(&self, ids: &[DocId], gone: &BTreeSet<ShardId>) -> Result<u64, MigrateError> {
        if ids.is_empty() {
            return Ok(0);
        }
        let doing = "clear placements";
        let timeout = self.timeout();
        let gets: Vec<Get> = ids.iter().map(|id| Get::realtime(Index::Placements, id.clone())).collect();
        let answers = self.elastic.mget(&gets, timeout).await;
        let answers = answers.map_err(|error| MigrateError::Call { doing, error })?;
        let refused = |reason: String| MigrateError::Refused { doing: doing.to_owned(), status: 200, reason };
        let mut ops = Vec::new();
        for (id, answer) in ids.iter().zip(answers) {
            let found = match answer {
                GetAnswer::Found(found) => found,
                GetAnswer::Missing => continue,
                GetAnswer::Failed(error) => return Err(refused(error.to_string())),
            };
            let unreadable = |error| refused(format!("the placement of {id:?} cannot be read: {error}"));
            let mut placement = Placement::from_json(&found.source).map_err(unreadable)?;
            if placement.shard.as_ref().is_some_and(|shard| gone.contains(shard)) {
                return Err(refused(format!(
                    "the placement of {id:?} names an index to be deleted as its geoshard"
                )));
            }
            let before = placement.leftovers.len();
            placement.leftovers.retain(|shard| !gone.contains(shard));
            if placement.leftovers.len() < before {
                let (index, guard) = (Index::Placements, WriteCondition::Unchanged(found.stamp));
                ops.push(BulkOp::Index { index, id: id.clone(), guard, source: placement.stored(id) });
            }
        }
        if !ops.is_empty() {
            let answers = self.elastic.bulk(&ops, timeout).await;
            let answers = answers.map_err(|error| MigrateError::Call { doing, error })?;
            if let Some(error) = refusal(answers) {
                let (doing, reason) = (doing.to_owned(), error.to_string());
                return Err(MigrateError::Refused { doing, status: error.status, reason });
            }
        }
        Ok(ops.len() as u64)
    }

    async fn admin(&self, method: Method, path: String, body: Option<Value>) -> Result<Value, MigrateError> {
        let doing = format!("{method:?} {path}");
        let call = AdminCall { method, path, body };
        let answer = self.elastic.admin(call, self.timeout()).await;
        let answer = answer.map_err(|error| MigrateError::Call { doing: "retire indices", error })?;
        if answer.status == 200 {
            return Ok(answer.body);
        }
        let (status, reason) = (answer.status, crate::io::elastic::decode::reason(&answer));
        Err(MigrateError::Refused { doing, status, reason })
    }
}

/// The first refusal among the answers. A conflict is found by the next scan; a refusal would repeat without end.
fn refusal(answers: Vec<BulkAnswer>) -> Option<Box<ItemError>> {
    answers.into_iter().filter_map(|answer| answer.error).find(|error| error.status != CONFLICT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_clear_ends_the_loop_and_a_conflict_does_not() {
        let answer = |status: u16| {
            let error = ItemError { status, kind: "kind".to_owned(), reason: "reason".to_owned() };
            BulkAnswer { status, stamp: None, error: (status >= 400).then(|| Box::new(error)) }
        };
        let refused = |statuses: &[u16]| refusal(statuses.iter().copied().map(answer).collect());
        assert_eq!(refused(&[200, 409, 201]), None);
        for status in [400, 403, 429] {
            assert_eq!(refused(&[200, 409, status]).map(|error| error.status), Some(status));
        }
    }
}
