//! A week in virtual time (`src/testkit/week`): the planner keeps geoshards balanced, moves little, and nothing to and fro.

use geofold::testkit::week::Scenario;

#[test]
fn a_week_with_a_growing_city_and_a_festival_stays_balanced() {
    let week = Scenario::default().run();
    println!("{week}");
    let largest =
        |of: fn(&geofold::testkit::week::Hour) -> f64| week.hours.iter().map(of).fold(0.0, f64::max);
    assert!(largest(|hour| hour.unchanged) > 1.3, "the week is no test:\n{week}");
    assert!(largest(|hour| hour.autopilot) <= 1.3, "{week}");
    assert!(week.most_moved <= 0.05 + 1e-9, "{week}");
    assert!(week.returned <= 0.01, "{week}");
    assert!(week.days.iter().map(|day| day.changes).sum::<usize>() <= 14, "{week}");
    let (in_order, mixed) = week.nodes.unwrap();
    assert!(mixed < in_order && mixed < 1.5, "{week}");
}
