//! Makes the data that docs/geoshards.md plans by: people placed by the sizes of real cities, and tracks of some of them.
//!
//! ```sh
//! cargo run --release --example people > people.csv                 # a million people
//! cargo run --release --example people -- --tracks > tracks.csv     # a day of ten thousand of them
//! ```
//!
//! Of those who live in a city, some live in its middle, some in its suburbs, some in the country around it. `active` is
//! 1 for who used the service this month, `queries` is how often on a day. A day of a track is 25 positions: at home, to
//! work and back, about town; one in fifty people travels to another city. Same output on every run, on every machine.

use std::io::{BufWriter, Write};

use anyhow::{Result, bail};
use geofold::base::random::Random;
use geofold::geoshard::cities::{CITIES, City};

const PEOPLE: u64 = 1_000_000;
const TRACKS: u64 = 10_000;
const STEPS: u64 = 24;
const SEED: u64 = 11;
const KM_PER_DEGREE: f64 = 111.2;

/// Near enough to a standard Gaussian, without functions whose last bits differ between machines.
fn gaussian(random: &mut Random) -> f64 {
    (0..12).map(|_| random.share()).sum::<f64>() - 6.0
}

/// A city, each as likely as it is large.
fn city(random: &mut Random) -> City {
    let thousands: u64 = CITIES.iter().map(|city| u64::from(city.3)).sum();
    let mut left = random.below(thousands);
    for city in CITIES {
        match left.checked_sub(u64::from(city.3)) {
            Some(rest) => left = rest,
            None => return *city,
        }
    }
    CITIES[0]
}

/// A place about `at`, `sigma_km` away.
fn about(random: &mut Random, (lat, lon): (f64, f64), sigma_km: f64) -> (f64, f64) {
    let north = gaussian(random) * sigma_km / KM_PER_DEGREE;
    let east = gaussian(random) * sigma_km / KM_PER_DEGREE / lat.to_radians().cos();
    ((lat + north).clamp(-90.0, 90.0), (lon + east + 540.0).rem_euclid(360.0) - 180.0)
}

/// Where a person lives.
pub fn home(random: &mut Random) -> (f64, f64) {
    let City(_, lat, lon, thousands) = city(random);
    let town_km = (f64::from(thousands) / 1000.0).sqrt() * 3.0;
    let sigma_km = match random.below(20) {
        0..10 => town_km,
        10..17 => town_km * 3.0,
        _ => 120.0,
    };
    about(random, (lat, lon), sigma_km)
}

fn people(out: &mut impl Write) -> Result<()> {
    writeln!(out, "id,lat,lon,active,queries")?;
    let mut random = Random::new(SEED);
    for id in 0..PEOPLE {
        let (lat, lon) = home(&mut random);
        let active = random.below(3) == 0;
        let queries = if active { 1 + random.below(6) * random.below(6) } else { 0 };
        writeln!(out, "p{id},{lat:.5},{lon:.5},{},{queries}", u8::from(active))?;
    }
    Ok(())
}

fn tracks(out: &mut impl Write) -> Result<()> {
    writeln!(out, "id,lat,lon")?;
    let mut random = Random::new(SEED);
    for id in 0..TRACKS {
        let home = home(&mut random);
        let work = about(&mut random, home, 8.0);
        let away = (random.below(50) == 0).then(|| city(&mut random)).map(|city| (city.1, city.2));
        for hour in 0..=STEPS {
            let base = match hour {
                9..17 => away.unwrap_or(work),
                _ => home,
            };
            let (lat, lon) = about(&mut random, base, 0.5);
            writeln!(out, "t{id},{lat:.5},{lon:.5}")?;
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => people(&mut out)?,
        [tracks_wanted] if tracks_wanted == "--tracks" => tracks(&mut out)?,
        _ => bail!("usage: people [--tracks]"),
    }
    Ok(out.flush()?)
}
