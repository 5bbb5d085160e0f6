//! Searches, in most of the runs: a client looks for one document after the other, visits the geoshards in any order,
//! and may take as long as the grace period. A document that was found, and is never deleted, is found again (INV-8).
//! Elasticsearch refreshes by itself at any time.

use std::sync::Arc;
use std::time::Duration;

use geofold::base::random::Random;
use geofold::support::config::{MoveVisibility, MovesConfig};
use tokio::time::sleep;

use crate::scenario::{Kind, document_id};
use crate::world::{GEOSHARDS, World};

/// How long a search may take, in milliseconds.
const GRACE: u64 = 300;

/// The workers' guarantee for searches.
pub fn moves(serves_searches: bool) -> MovesConfig {
    let visibility = if serves_searches { MoveVisibility::Search } else { MoveVisibility::Realtime };
    MovesConfig { visibility, search_grace: Duration::from_millis(GRACE) }
}

/// Starts the searches and refreshes.
pub fn begin(world: &Arc<World>) {
    if !world.scenario.serves_searches() {
        return;
    }
    let mut random = Random::new(world.scenario.seed ^ 0x5ea2_c4e5);
    for shard in GEOSHARDS {
        let (world, mut random) = (world.clone(), Random::new(random.bits()));
        let interval = [50, 400, 2_000][random.below(3) as usize];
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_millis(1 + random.below(interval))).await;
                world.refresh(shard);
                // It shows what was there at one moment, and ends later.
                sleep(Duration::from_millis(interval / 4)).await;
                world.count_refresh(shard);
            }
        });
    }
    // The remains of a refused document may depend on the folding.
    if world.scenario.kind != Kind::Refusing {
        tokio::spawn(search(world.clone(), random));
    }
}

/// The documents that are never deleted.
fn lasting(world: &World) -> Vec<String> {
    let scenario = &world.scenario;
    let is_deleted =
        |n: &usize| scenario.records.iter().any(|record| record.document == *n && record.is_delete());
    scenario.documents().filter(|n| !is_deleted(n)).map(document_id).collect()
}

async fn search(world: Arc<World>, mut random: Random) {
    let documents = lasting(&world);
    if documents.is_empty() {
        return;
    }
    loop {
        let document = &documents[random.below(documents.len() as u64) as usize];
        let mut shards = GEOSHARDS;
        let first = random.below(3) as usize;
        shards.rotate_left(first);
        if random.below(2) == 0 {
            shards.swap(1, 2);
        }
        let is_promised = GEOSHARDS.iter().any(|shard| world.is_visible(shard, document));
        let slept = world.clock.slept();
        let mut is_found = false;
        // All of them within the grace: the first is visited at once.
        for (n, shard) in shards.iter().enumerate() {
            is_found |= world.is_visible(shard, document);
            if n < 2 {
                sleep(Duration::from_millis(random.below(GRACE / 2))).await;
            }
        }
        // A search does not outlive the sleep of its machine.
        if is_promised && !is_found && slept == world.clock.slept() {
            let what = format!("a search that asked {shards:?} has found no copy of {document}");
            world.fail("INV-8", Some(document), what);
        }
        sleep(Duration::from_millis(1 + random.below(40))).await;
    }
}
