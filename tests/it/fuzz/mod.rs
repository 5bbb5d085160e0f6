//! The fuzz targets (`targets.rs`) over the committed corpus (`fuzz/corpus`), and over mutations of it. libFuzzer finds more
//! (`dev/fuzz`); this keeps what it found, and needs nothing but stable Rust. A published package has no corpus: there, a
//! few words are mutated.
//!
//! `GEOFOLD_FUZZ_RUNS` inputs for each target (default 4,000). A failure prints the seed that replays it with
//! `GEOFOLD_SEED`, and writes the input to a file.

#![expect(clippy::expect_used, reason = "a helper that fails is a test that fails")]

mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use geofold::base::random::{Random, seed_of_test};

/// What often stands in such inputs.
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "\n",
    "\r",
    "\t",
    "null",
    "true",
    "0",
    "-1",
    "1e400",
    "180.0",
    "\"location\":",
    "\"lat\":",
    "\"lon\":",
    "POINT(1 2)",
    "0101000020E6100000CDCCCCCCCCCC2A400000000000404A40",
    "\"wkb\":\"AQEAAAAAAAAAAADwPwAAAAAAAPA/\"",
    "\"srid\":4326",
    "\"name\":",
    "\u{0}",
    "é",
    "\"items\":",
    "\"errors\":false",
    "\"status\":409",
    "\"_seq_no\":",
    "\"from\":\"",
    "ffffffffffffffff",
    "kafka.",
    "[elasticsearch]",
    "${X}",
    " = ",
];

/// An index below `n`, or 0.
fn below(n: usize, random: &mut Random) -> usize {
    usize::try_from(random.below(n as u64)).unwrap()
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    if !fuzz.exists() {
        return WORDS.iter().map(|word| word.as_bytes().to_vec()).collect();
    }
    let folder = fuzz.join("corpus").join(target);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// One or a few changes of `input`.
fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..=below(4, random) {
        let at = below(input.len() + 1, random);
        let end = at + below(input.len() - at + 1, random);
        match below(7, random) {
            0 if at < input.len() => input[at] ^= 1 << below(8, random),
            1 if at < input.len() => input[at] = random.bits().to_le_bytes()[0],
            2 => drop(input.drain(at..end)),
            3 => {
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            4 => {
                let other = &others[below(others.len(), random)];
                input.splice(at..end, other[below(other.len(), random)..].iter().copied());
            }
            5 => input.truncate(at),
            _ => drop(input.splice(at..at, WORDS[below(WORDS.len(), random)].bytes())),
        }
    }
    input.truncate(1 << 17);
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn no_input_makes_a_target_panic() {
    let (seed, runs) = (seed_of_test(), number("GEOFOLD_FUZZ_RUNS", 4_000));
    println!("replay with: GEOFOLD_SEED={seed} GEOFOLD_FUZZ_RUNS={runs} cargo test --test it fuzz");
    for (name, target) in targets::TARGETS {
        let mut pool = corpus(name);
        let random = &mut Random::new(seed);
        for input in &pool {
            check(name, *target, input);
        }
        for _ in 0..runs {
            let mut input = pool[below(pool.len(), random)].clone();
            mutate(&mut input, &pool, random);
            check(name, *target, &input);
            // Without coverage feedback, keep random mutations of mutations.
            if below(50, random) == 0 && pool.len() < 500 {
                pool.push(input);
            }
        }
    }
}

fn check(name: &str, target: targets::Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        let file = std::env::temp_dir().join(format!("geofold-fuzz-{name}-{}", std::process::id()));
        std::fs::write(&file, input).expect("a place for the input");
        eprintln!(
            "{name}: the input is in {}; add it to fuzz/corpus/{name} once it is mended",
            file.display()
        );
        std::panic::resume_unwind(panic);
    }
}
