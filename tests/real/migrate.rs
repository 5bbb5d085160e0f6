//! The map is changed while writes go on: `tests/it/migrate` on real services.

#[path = "../it/migrate/scenario/mod.rs"]
#[expect(dead_code, reason = "the stand-ins have more to show with it")]
pub mod scenario;

use crate::support::{World, WorldOptions};
use scenario::Scenario;
use scenario::common::{autopilot_killed_in_each_stage, from_55_to_70_with_a_worker_killed};

#[test]
fn from_55_to_70_geoshards_under_load_with_a_worker_killed_in_the_middle() {
    let world = World::without_indices(WorldOptions::default());
    let scenario = Scenario::new(&world.stack.kafka, &world.stack.elasticsearch, &world.name, 5);
    from_55_to_70_with_a_worker_killed(&scenario);
}

#[test]
fn an_autopilot_that_is_killed_in_each_stage_goes_on_and_nothing_is_lost() {
    let world = World::without_indices(WorldOptions::default());
    let mut scenario = Scenario::new(&world.stack.kafka, &world.stack.elasticsearch, &world.name, 5);
    autopilot_killed_in_each_stage(&mut scenario);
}
