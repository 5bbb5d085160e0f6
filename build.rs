//! Tells the crate which commit it is built from, for `geofold --version`.
//!
//! Only optimized builds without debug assertions ask git: a developer's build would otherwise begin anew after every
//! commit. Without git, or outside of a clone, there is no commit to tell. `GEOFOLD_COMMIT` in the environment wins, for
//! builds from a copy of the sources (the Dockerfile).

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=GEOFOLD_COMMIT");
    let given = env::var("GEOFOLD_COMMIT").ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = given.or_else(asked) {
        println!("cargo::rustc-env=GEOFOLD_BUILT_FROM={commit}");
    }
}

fn asked() -> Option<String> {
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if !is_release || env::var_os("CARGO_CFG_DEBUG_ASSERTIONS").is_some() {
        return None;
    }
    // A package that was unpacked inside of somebody else's clone is not of that clone's commit.
    let here = env::var("CARGO_MANIFEST_DIR").ok()?;
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if std::fs::canonicalize(here).ok()? != std::fs::canonicalize(top).ok()? {
        return None;
    }
    // Written at every commit and checkout; and what "dirty" depends on.
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    for sources in ["src", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={sources}");
    }
    git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
