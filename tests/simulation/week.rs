//! A week of load in virtual time (`src/testkit/week`): the planner keeps geoshards balanced, moves little, and nothing to and fro.

use geofold::testkit::week::{Hour, Scenario};

/// Whether it does, with a city that grows and a festival. Prints the week, and what was not kept.
pub fn stays_balanced() -> bool {
    let week = Scenario::default().run();
    println!("{week}");
    let largest = |of: fn(&Hour) -> f64| week.hours.iter().map(of).fold(0.0, f64::max);
    let changes: usize = week.days.iter().map(|day| day.changes).sum();
    let (in_order, mixed) = week.nodes.unwrap();
    let expected = [
        (
            largest(|hour| hour.unchanged) > 1.3,
            "with the map unchanged a geoshard gets over 1.3 times the mean load",
        ),
        (
            largest(|hour| hour.autopilot) <= 1.3,
            "with the autopilot no geoshard gets over 1.3 times the mean load",
        ),
        (week.most_moved <= 0.05 + 1e-9, "at most 5 % of the documents move within 24 hours"),
        (week.returned <= 0.01, "at most 1 % of them come back"),
        (changes <= 14, "the map changes twice a day at most"),
        (mixed < in_order && mixed < 1.5, "nodes are more even with time zones mixed than along the curve"),
    ];
    let broken = expected.iter().filter(|(is_so, _)| !is_so);
    broken.clone().for_each(|(_, what)| println!("not so: {what}"));
    broken.count() == 0
}
