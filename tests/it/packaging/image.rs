//! `Dockerfile`: the image is built of what is there, and has what the binary needs.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use super::{COLLECTOR, ROUTER, WORKER, at, compose_variables, config_in_kubernetes, read, stdout, values};

#[test]
fn the_image_is_built_by_the_rust_that_the_crate_asks_for_and_runs_without_rights() {
    let (image, manifest) = (read("Dockerfile"), read("Cargo.toml"));
    let rust = values(&manifest, "rust-version = ")[0].trim_matches('"');
    assert!(image.contains(&format!("FROM rust:{rust}-bookworm")), "rust-version is {rust}");
    let user = values(&image, "USER ");
    assert_eq!(user, ["10001:10001"]);
    for file in [WORKER, COLLECTOR, ROUTER] {
        let text = read(file);
        assert_eq!(values(&text, "runAsUser:"), ["10001"], "{file}");
        assert_eq!(values(&text, "runAsNonRoot:"), ["true"], "{file}");
        let version = format!("geofold:{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(values(&text, "image:"), [version.as_str()], "{file}");
    }
    let stages: Vec<&str> = image.lines().filter(|line| line.starts_with("FROM ")).collect();
    assert_eq!(stages.last(), Some(&"FROM scratch"), "what ships has no shell and no package manager");
    let check = image.lines().find(|line| line.starts_with("HEALTHCHECK")).unwrap();
    assert!(check.ends_with("CMD [\"geofold\", \"health\"]"), "{check}");
    let map = config_in_kubernetes(&BTreeMap::new()).geoshards.map;
    assert!(image.contains(&format!(" {}\n", map.display())), "{} is in the image", map.display());
}

/// The health check of the image, with what the compose file gives it: all servers listen on all addresses there.
#[test]
fn the_health_check_of_a_container_hears_who_listens_on_all_addresses() {
    for (key, arguments) in [
        ("ADMIN", &["health"][..]),
        ("COLLECTOR", &["health", "--collector"]),
        ("ROUTE", &["health", "--router"]),
    ] {
        let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let ask = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_geofold"));
            command
                .args(arguments)
                .envs(compose_variables())
                .env("GEOFOLD_CONFIG", at("config/geofold.toml"));
            command.env(format!("GEOFOLD_{key}__LISTEN"), format!("0.0.0.0:{port}"));
            command.stdin(Stdio::null()).output().unwrap()
        };
        assert_eq!(stdout(&ask()).trim(), "ok", "{arguments:?}");
        let asked = server.join().unwrap();
        assert!(asked.starts_with("GET /healthz "), "{asked}");
        assert_eq!(ask().status.code(), Some(1), "nobody answers any more");
    }
}

/// The first stage of the image, as far as it goes without a container engine: from what `.dockerignore` leaves over, cargo
/// finds all of the crate that the build needs, and every file that is copied is there.
#[test]
fn the_image_is_built_of_what_dockerignore_leaves_over() {
    if at("Cargo.toml.orig").exists() {
        return; // This is the package, which has no .dockerignore.
    }
    let ignored = read(".dockerignore");
    let ignored: Vec<&str> = ignored.lines().map(|line| line.strip_prefix('/').unwrap()).collect();
    let context = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(at("")).unwrap() {
        let name = entry.unwrap().file_name();
        if !ignored.contains(&name.to_str().unwrap()) {
            std::os::unix::fs::symlink(at(name.to_str().unwrap()), context.path().join(name)).unwrap();
        }
    }
    for heavy in ["target", ".git"] {
        assert!(!context.path().join(heavy).exists(), "{heavy} is sent to the engine");
    }
    let image = read("Dockerfile");
    for copied in values(&image, "COPY ").into_iter().filter(|copied| !copied.starts_with("--from=")) {
        let from = copied.split(' ').next().unwrap();
        assert!(context.path().join(from).exists(), "COPY {from}");
    }
    // Manifest, lock file, and the source of every target.
    let built = image.lines().find_map(|line| line.trim().strip_prefix("cargo build ")).unwrap();
    assert!(built.contains("--locked --features tls --bin geofold"), "{built}");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--locked", "--offline", "--features", "tls"])
        .current_dir(context.path())
        .output()
        .unwrap();
    let crate_: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    for target in crate_["packages"][0]["targets"].as_array().unwrap() {
        let path = target["src_path"].as_str().unwrap();
        assert!(Path::new(path).exists(), "{path}");
    }
    // The binary is taken from where that profile puts it.
    let mut words = built.split(' ');
    let profile = match words.next().unwrap() {
        "--profile" => words.next().unwrap(),
        release => release.strip_prefix("--").unwrap(),
    };
    assert!(image.contains(&format!("cp target/{profile}/geofold /usr/local/bin/geofold")), "{profile}");
    let manifest = read("Cargo.toml");
    assert!(profile == "release" || manifest.contains(&format!("[profile.{profile}]")), "{profile}");
}

/// The libraries that the binary asks for are those that the image's second stage has.
#[test]
fn the_image_has_the_libraries_that_the_binary_asks_for() {
    let Ok(output) = Command::new("ldd").arg(env!("CARGO_BIN_EXE_geofold")).output() else { return };
    let image = read("Dockerfile");
    let (_, runtime) = image.split_once("FROM debian:").unwrap();
    assert!(runtime.contains(" libssl3 "), "the binary is built with --features tls");
    let asked = stdout(&output);
    assert!(asked.contains("libc.so.6"), "{asked}");
    for library in asked.lines().filter_map(|line| line.split_whitespace().next()) {
        let name = library.rsplit('/').next().unwrap().split(".so").next().unwrap();
        let package = match name {
            // Of every Debian.
            "libc" | "libm" | "libdl" | "libpthread" | "librt" | "libgcc_s" | "linux-vdso" | "linux-gate" => {
                continue;
            }
            loader if loader.starts_with("ld-linux") => continue,
            "libz" => "zlib1g",
            "libssl" | "libcrypto" => "libssl3",
            "libzstd" => "libzstd1",
            other => panic!("{other}: which package has it?"),
        };
        let is_there = runtime.split_whitespace().any(|word| word == package);
        assert!(is_there, "{library} is not in the image: {package}");
    }
}
