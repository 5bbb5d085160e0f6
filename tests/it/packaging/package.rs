//! The crate as `cargo publish` sends it, and the fuzz targets, which are a package of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use super::{at, read, stdout};

/// What `cargo publish` would send: made, listed, and thrown away.
#[test]
fn the_package_is_made_without_a_warning_and_has_what_belongs_there() {
    if at("Cargo.toml.orig").exists() {
        return; // This is the package, unpacked.
    }
    let folder = tempfile::tempdir().unwrap();
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        // Offline, since all that it needs is here. A tree at work has changes that are not committed.
        command
            .arg("package")
            .args(arguments)
            .args(["--offline", "--allow-dirty", "--target-dir"])
            .arg(folder.path());
        let output = command.current_dir(at("")).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !said.contains("warning"), "{said}");
        stdout(&output)
    };
    let listed = cargo(&["--list"]);
    let listed: Vec<&str> = listed.lines().collect();
    for file in [
        "Cargo.lock",
        "build.rs",
        "src/main.rs",
        "src/ops/admin/page/page.css",
        "config/geofold.toml",
        "config/map-55.json",
        "README.md",
        "CHANGELOG.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "docs/operations.md",
        "dashboards/geofold.json",
        "packaging/systemd/geofold.service",
        "tests/vectors/cover.json",
        "tests/it/fuzz/targets.rs",
        "dev/stack",
    ] {
        assert!(listed.contains(&file), "{file} is not in the package");
    }
    let needless: Vec<&&str> = listed
        .iter()
        .filter(|file| {
            [".ci/", "fuzz/", "target/"].iter().any(|folder| file.starts_with(folder))
                || file.ends_with(".png")
        })
        .collect();
    assert!(needless.is_empty(), "{needless:?}");
    for file in listed.iter().filter(|file| !file.starts_with("Cargo.") && !file.starts_with(".cargo")) {
        let bytes = std::fs::metadata(at(file)).unwrap().len();
        assert!(bytes < 2 << 20, "{file} is of {bytes} bytes");
    }
    cargo(&["--no-verify"]);
    let package = folder.path().join(concat!("package/geofold-", env!("CARGO_PKG_VERSION"), ".crate"));
    let bytes = std::fs::metadata(&package).unwrap().len();
    assert!(bytes < 4 << 20, "{bytes} bytes; the registry takes 10 MiB");
}

/// In a lock file: each package with its versions, and what geofold itself depends on.
fn locked(file: &str) -> (BTreeMap<String, BTreeSet<String>>, BTreeSet<String>) {
    let lock: toml::Table = read(file).parse().unwrap();
    let (mut versions, mut of_geofold) = (BTreeMap::<_, BTreeSet<_>>::new(), BTreeSet::new());
    for package in lock["package"].as_array().unwrap() {
        let (name, version) = (package["name"].as_str().unwrap(), package["version"].as_str().unwrap());
        versions.entry(name.to_owned()).or_default().insert(version.to_owned());
        if name == "geofold" {
            // A name, or a name and a version where there are two.
            let names = package["dependencies"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
            of_geofold = names.map(|name| name.split(' ').next().unwrap().to_owned()).collect();
        }
    }
    (versions, of_geofold)
}

/// The fuzz targets are a separate package, which cargo builds only for fuzzing.
#[test]
fn fuzz_targets_use_the_shipped_code() {
    if !at("fuzz/Cargo.lock").exists() {
        return; // The published package is without it.
    }
    let mend = "cp Cargo.lock fuzz/ && cargo update --workspace --manifest-path fuzz/Cargo.toml";
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let (ships, _) = locked("Cargo.lock");
    let (fuzzed, of_geofold) = locked("fuzz/Cargo.lock");
    let needed = manifest["dependencies"]
        .as_table()
        .unwrap()
        .iter()
        .filter(|(_, how)| how.get("optional").and_then(toml::Value::as_bool) != Some(true));
    let missing: Vec<&String> =
        needed.map(|(name, _)| name).filter(|name| !of_geofold.contains(*name)).collect();
    assert!(missing.is_empty(), "fuzz/Cargo.lock is without {missing:?}: {mend}");
    for (name, versions) in &fuzzed {
        let Some(ships) = ships.get(name) else { continue };
        assert!(
            versions.is_subset(ships),
            "fuzz/Cargo.lock has {name} {versions:?}, and {ships:?} ship: {mend}"
        );
    }
}
