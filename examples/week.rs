//! The simulated week of docs/balance.md: `cargo run --release --example week [-- --svg] [SEED]`.

use geofold::testkit::week::Scenario;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut scenario = Scenario::default();
    if let Some(seed) = args.iter().find_map(|arg| arg.parse().ok()) {
        scenario.seed = seed;
    }
    let week = scenario.run();
    if args.iter().any(|arg| arg == "--svg") {
        print!("{}", week.svg());
    } else {
        println!("{week}");
    }
}
