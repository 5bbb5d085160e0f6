//! Counting in some of the runs: the topic of increments as seen by processes, and at the end the merged counts against
//! a count of the store (INV-7).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use geofold::base::ids::{DocId, ShardId};
use geofold::base::position::Position;
use geofold::core::counting::facets::{FacetLimits, FacetRules, Facets};
use geofold::core::counting::increment::{Delta, Increment};
use geofold::worker::increments::emitter::{Names, OutgoingIncrement};
use geofold::worker::increments::topic::{IncrementTopic, TooLarge};
use geofold::worker::partition::IncrementsContext;
use tokio::time::sleep;

use crate::scenario::document_id;
use crate::world::{GEOSHARDS, World};

/// `tally.emit_interval`.
const INTERVAL: Duration = Duration::from_millis(60);

/// The geoshard, and two fields: one rarely changed, and one changed by patches.
pub fn rules() -> FacetRules {
    let limits = FacetLimits { max_value_bytes: 20, max_values: 10 };
    FacetRules::new(true, [("kind", "kind"), ("x", "x")], limits)
}

/// The counting dependencies of a process.
pub fn counting(world: &Arc<World>, process: usize) -> Arc<IncrementsContext> {
    let topic = Arc::new(Increments { world: world.clone(), process });
    Arc::new(IncrementsContext { topic, names: Arc::new(Names::new()), interval: INTERVAL })
}

/// The topic as seen by one process.
struct Increments {
    world: Arc<World>,
    process: usize,
}

impl IncrementTopic for Increments {
    /// Increments in flight arrive even if the sender dies; perhaps twice.
    fn send<'a>(&'a self, _: i32, outgoing: &'a OutgoingIncrement) -> BoxFuture<'a, Result<(), TooLarge>> {
        let (there, again, back) = {
            let mut state = self.world.state();
            let (latency, twice) = (self.world.scenario.setup.latency, state.trouble.twice);
            state.under_way += 1;
            (state.one_to(latency), state.percent(twice), state.one_to(latency))
        };
        let (world, process, value) = (self.world.clone(), self.process, outgoing.value.clone());
        let arriving = async move {
            sleep(Duration::from_millis(there)).await;
            let increment = Increment::from_json(&value).unwrap();
            world.note(None, || {
                let edges: Vec<_> = increment.edges.iter().map(|edge| edge.pos.offset()).collect();
                format!("  {process} increment to {}, with edges at {edges:?}", increment.to.offset())
            });
            let mut state = world.state();
            state.under_way -= 1;
            state.mix(increment.to.version());
            state.increments.extend(std::iter::repeat_n(increment, 1 + usize::from(again)));
            drop(state);
            world.told.notify_one();
        };
        tokio::spawn(arriving);
        async move {
            sleep(Duration::from_millis(there + back)).await;
            Ok(())
        }
        .boxed()
    }
}

/// Checks the end: all increments, merged, equal a count of the store.
pub fn judge(world: &World) {
    let mut merged_to = Position::from_version(0);
    let mut counted = Delta::default();
    for increment in &world.state().increments {
        for edge in increment.edges.iter().filter(|edge| edge.pos >= merged_to) {
            counted.merge(&edge.delta);
        }
        merged_to = merged_to.max(increment.to);
    }
    let mut stored = Delta::default();
    for (document, shard) in
        world.scenario.documents().flat_map(|document| GEOSHARDS.map(|shard| (document, shard)))
    {
        let id = DocId::from_key(Some(document_id(document).as_bytes())).unwrap();
        let shard = ShardId::new(shard).unwrap();
        if let Some(content) = world.content(&shard, &id) {
            let facets = rules().facets(content.to_string().as_bytes(), &shard);
            stored.merge(&facets.delta_since(&Facets::default()));
        }
    }
    if counted != stored {
        world.fail(
            "INV-7",
            None,
            format!("counted is {}, and stored {}", in_short(&counted), in_short(&stored)),
        );
    }
}

fn in_short(counts: &Delta) -> String {
    let counts: BTreeMap<String, i64> =
        counts.iter().map(|(facet, value, count)| (format!("{facet} {value}"), count)).collect();
    format!("{counts:?}")
}
