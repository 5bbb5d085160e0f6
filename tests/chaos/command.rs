//! Arguments: those of `dev/chaos`, and those that `cargo test` passes on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use geofold::base::random::Random;
use geofold::base::sabotage::Sabotage;

use crate::crew::Protocol;

/// How long a run is, unless an argument or GEOFOLD_CHAOS_SECONDS says otherwise.
const SECONDS: u64 = 60;

/// What is wanted.
pub struct Options {
    pub seed: u64,
    /// How long new scenes begin.
    pub lasts: Duration,
    pub workers: usize,
    pub partitions: i32,
    /// Records a second.
    pub rate: u64,
    /// Documents.
    pub ids: u64,
    /// The ways to share partitions out, of which a change takes the next; and their name.
    protocols: &'static [Protocol],
    protocol: String,
    pub sabotage: Option<String>,
}

impl Options {
    /// What these arguments ask for.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let lasts = match std::env::var("GEOFOLD_CHAOS_SECONDS") {
            Ok(text) => number(&text)?,
            Err(_) => SECONDS,
        };
        let mut options = Self {
            seed: fresh_seed(),
            lasts: Duration::from_secs(lasts),
            workers: 3,
            partitions: 8,
            rate: 400,
            ids: 1500,
            protocols: Protocol::ALL,
            protocol: "all".to_owned(),
            sabotage: None,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--seed" => options.seed = number(&value()?)?,
                "--minutes" => options.lasts = Duration::from_secs(60 * number(&value()?)?),
                "--seconds" => options.lasts = Duration::from_secs(number(&value()?)?),
                "--workers" => options.workers = number(&value()?)?.clamp(2, 64) as usize,
                "--partitions" => options.partitions = number(&value()?)?.clamp(1, 1000) as i32,
                "--rate" => options.rate = number(&value()?)?.clamp(10, 100_000),
                "--documents" => options.ids = number(&value()?)?.clamp(1, 10_000_000),
                "--protocol" => {
                    options.protocol = value()?;
                    options.protocols = Protocol::named(&options.protocol)?;
                }
                "--sabotage" => options.sabotage = Some(sabotage(&value()?)?),
                // What `cargo test -- ...` may say to any test.
                _ => {}
            }
        }
        Ok(options)
    }

    /// The protocol after so many changes.
    pub fn protocol(&self, changes: usize) -> Protocol {
        self.protocols[(self.seed as usize + changes) % self.protocols.len()]
    }

    /// What to say to have the same schedule again.
    pub fn as_arguments(&self) -> String {
        let Self { seed, lasts, workers, partitions, rate, ids, protocol, .. } = self;
        let sabotage = self.sabotage.as_ref().map(|name| format!(" --sabotage {name}"));
        format!(
            "--seed {seed} --seconds {} --workers {workers} --partitions {partitions} --rate {rate} \
             --documents {ids} --protocol {protocol}{}",
            lasts.as_secs(),
            sabotage.unwrap_or_default(),
        )
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

/// The name, if it is one.
fn sabotage(name: &str) -> Result<String, String> {
    Sabotage::from_str(name, false)
        .map(|_| name.to_owned())
        .map_err(|why| format!("--sabotage {name}: {why}"))
}

/// A fresh seed, short enough to type.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Random::new(now.as_nanos() as u64).below(1_000_000_000)
}
