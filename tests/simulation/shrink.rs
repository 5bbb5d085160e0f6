//! Minimizes a failing scenario: leaves out one part after the other while the same rule is still broken.
//!
//! The result need not be the same failure, since random choices change with every part left out. It breaks the same
//! rule with less, which is what a reader wants.

use crate::process::Shared;
use crate::run::run;
use crate::scenario::Scenario;

/// Maximum number of runs; usually a tenth is needed.
const MOST_RUNS: usize = 1_000;

/// A minimal scenario that still fails.
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
