//! The figures that `dev/race` reports, and the documents after it.

#[path = "../../examples/race/median.rs"]
mod median;
#[path = "../../examples/race/rounds.rs"]
mod rounds;

use median::median;
use rounds::{Target, Wanted, table};

fn row(wanted: Wanted, rounds: &[f64]) -> String {
    Target { what: "x", wanted, rounds: Some(rounds.to_vec()) }.to_string()
}

#[test]
fn the_median_is_the_middle_or_the_mean_of_two() {
    assert_eq!(median([9.0, 1.0, 2.0].into_iter()), 2.0);
    assert_eq!(median([9.0, 1.0, 2.0, 4.0].into_iter()), 3.0);
    assert!(median(std::iter::empty()).is_nan());
}

#[test]
fn the_worst_round_is_the_one_farthest_from_what_is_wanted() {
    assert_eq!(row(Wanted::AtLeast(2.0), &[2.5, 2.0, 3.0]), "| x | ≥ 2.00 | 2.50 | 2.00 |");
    assert_eq!(row(Wanted::AtMost(0.2), &[0.1, 0.2, 0.15]), "| x | ≤ 0.20 | 0.15 | 0.20 |");
    assert_eq!(row(Wanted::AtLeast(2.0), &[2.5]), "| x | ≥ 2.00 | 2.50 |  |", "of one there is no worst");
}

#[test]
fn what_is_not_reached_is_bold_by_itself() {
    assert_eq!(row(Wanted::AtLeast(2.0), &[1.9, 2.0, 3.0]), "| x | ≥ 2.00 | 2.00 | **1.90** |");
    assert_eq!(row(Wanted::AtMost(0.2), &[0.3, 0.1, 0.4]), "| x | ≤ 0.20 | **0.30** | **0.40** |");
    // As exactly as it is measured, not as it is shown.
    assert_eq!(row(Wanted::AtLeast(0.85), &[0.8499]), "| x | ≥ 0.85 | **0.85** |  |");
    assert_eq!(row(Wanted::AtLeast(400_000.0), &[399_999.6]), "| x | ≥ 400000 | **400000** |  |");
    let none = Target { what: "x", wanted: Wanted::AtLeast(1.0), rounds: None };
    assert!(table(&[none]).ends_with("\n| x | ≥ 1.00 | not measured |  |\n"));
}
