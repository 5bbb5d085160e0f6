//! Cuts a failing scenario down: leaves one part after the other out, as long as the same rule is still broken.
//!
//! What is left need not be the same failure, since with every part that is gone chance falls out differently. It breaks
//! the same rule with less, and that is what a reader wants.

use crate::process::Shared;
use crate::run::run;
use crate::scenario::Scenario;

/// A bound on runs; usually a tenth of it is needed.
const MOST_RUNS: usize = 1_000;

/// A scenario that fails as well, with as little as possible.
pub fn shrink(scenario: &Scenario, shared: &Shared) -> Scenario {
    let mut scenario = scenario.clone();
    let Some(broken) = run(&scenario, shared, false).broken else { return scenario };
    let mut runs = 1;
    loop {
        let parts = scenario.parts();
        let before = parts.len();
        for part in parts {
            let smaller = scenario.clone().without(&[part]);
            runs += 1;
            if run(&smaller, shared, false).broken.is_some_and(|still| still.rule == broken.rule) {
                scenario = smaller;
            }
        }
        if scenario.parts().len() == before || runs >= MOST_RUNS {
            return scenario;
        }
    }
}
