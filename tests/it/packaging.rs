//! What ships beside the binary: container image, compose file, systemd units, Kubernetes manifests, completions and manual
//! pages fit the binary, and each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use geofold::support::config::{Config, ConfigFinding};

use crate::tools::has;

const WORKER: &str = "packaging/kubernetes/worker.yaml";
const COLLECTOR: &str = "packaging/kubernetes/collector.yaml";
const ROUTER: &str = "packaging/kubernetes/router.yaml";
const AUTOSCALING: &str = "packaging/kubernetes/autoscaling.yaml";
const CHART: &str = "packaging/helm/geofold";
const COMPOSE: &str = "docker-compose.yml";
const UNITS: [&str; 3] = [
    "packaging/systemd/geofold.service",
    "packaging/systemd/geofold-collector.service",
    "packaging/systemd/geofold-route.service",
];

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn geofold(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_geofold")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What stands behind each `key` of a file of lines.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.trim().strip_prefix(key)).map(str::trim).collect()
}

/// The indented block under the line that ends like this, without its indentation.
fn block(text: &str, head: &str) -> String {
    let (before, rest) = text.split_once(&format!("{head}\n")).unwrap();
    let depth = |line: &str| line.len() - line.trim_start().len();
    let start = before.rsplit('\n').next().unwrap_or_default();
    let outer = depth(&format!("{start}{head}"));
    let lines = rest.lines().take_while(|line| line.is_empty() || depth(line) > outer);
    lines.map(|line| line.trim_start()).collect::<Vec<_>>().join("\n")
}

/// The configuration in the ConfigMap, with variables on top.
fn config_in_kubernetes(env: &BTreeMap<String, String>) -> Config {
    Config::from_toml(&block(&read(WORKER), "geofold.toml: |"), Path::new("/etc/geofold"), env).unwrap()
}

/// The variables that `docker-compose.yml` sets on top of `config/geofold.toml`.
fn compose_variables() -> BTreeMap<String, String> {
    let text = read(COMPOSE);
    let pairs = text.lines().filter_map(|line| line.trim().split_once(": "));
    let pairs = pairs.filter(|(name, _)| name.starts_with("GEOFOLD_"));
    pairs.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned())).collect()
}

/// `- {name: GEOFOLD_X, value: "y"}`
fn kubernetes_variables(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| {
        let (name, value) = line.trim().strip_prefix("- {name: ")?.split_once(", value: ")?;
        Some((name.to_owned(), value.strip_suffix('}')?.trim_matches('"').to_owned()))
    });
    pairs.filter(|(name, _)| name.starts_with("GEOFOLD_")).collect()
}

fn assert_usable(config: &Config, what: &str) {
    let findings = config.findings();
    let errors: Vec<&ConfigFinding> = findings.iter().filter(|finding| finding.is_error()).collect();
    assert!(errors.is_empty(), "{what}: {errors:?}");
}

#[test]
fn every_supervisor_waits_for_longer_than_a_worker_drains() {
    let seconds = |text: &str| Duration::from_secs(text.parse().unwrap());
    let in_kubernetes = config_in_kubernetes(&BTreeMap::new()).shutdown.drain_timeout;
    let margin = Duration::from_secs(10);
    for file in [WORKER, COLLECTOR, ROUTER] {
        let text = read(file);
        let grace = values(&text, "terminationGracePeriodSeconds:");
        assert_eq!(grace.len(), 1, "{file}");
        assert!(seconds(grace[0]) >= in_kubernetes + margin, "{file}");
    }
    let drain = Config::default().shutdown.drain_timeout;
    for file in UNITS {
        let text = read(file);
        assert!(seconds(values(&text, "TimeoutStopSec=")[0]) >= drain + margin, "{file}");
    }
    let compose = read(COMPOSE);
    let [grace] = values(&compose, "stop_grace_period:")[..] else { panic!("one stop_grace_period") };
    assert!(humantime::parse_duration(grace).unwrap() >= drain + margin);
}

#[test]
fn the_configurations_that_ship_are_taken() {
    let worker = config_in_kubernetes(&BTreeMap::new());
    assert_usable(&worker, WORKER);
    assert!(
        worker.admin.listen.ip().is_unspecified(),
        "probes and Prometheus come from outside of the container"
    );
    let collector = read(COLLECTOR);
    let mut variables = kubernetes_variables(&collector);
    // The secret is not here.
    let password = variables.remove("GEOFOLD_DATABASE__PASSWORD_FILE");
    assert_eq!(password.as_deref(), Some("/etc/geofold-secrets/postgres-password"));
    let config = config_in_kubernetes(&variables);
    assert_usable(&config, COLLECTOR);
    assert!(config.tally.is_on());
    let router = config_in_kubernetes(&kubernetes_variables(&read(ROUTER)));
    assert_usable(&router, ROUTER);
    assert!(router.route.listen.ip().is_unspecified(), "clients come from outside of the container");
    for (file, port) in [
        (WORKER, worker.admin.listen.port()),
        (COLLECTOR, config.collector.listen.port()),
        (ROUTER, router.route.listen.port()),
    ] {
        let text = read(file);
        assert!(text.contains(&format!("containerPort: {port}}}")), "{file}");
        assert!(text.contains(&format!("prometheus.io/port: \"{port}\"")), "{file}");
    }

    let variables = compose_variables();
    assert!(variables.len() > 5, "{variables:?}");
    let config = Config::load(&at("config/geofold.toml"), &variables).unwrap();
    assert_usable(&config, COMPOSE);
    let compose = read(COMPOSE);
    for topic in [
        &config.kafka.topic,
        config.dead_letter.topic.as_ref().unwrap(),
        &format!("{}-increments", config.kafka.topic),
    ] {
        assert!(compose.contains(&format!("topic --topic {topic} ")), "{topic} is not made");
    }
}

/// The services of the compose file: the name of each, and its lines without indentation.
fn services() -> Vec<(String, String)> {
    let compose = read(COMPOSE);
    let (_, rest) = compose.split_once("\nservices:\n").unwrap();
    let (services, _) = rest.split_once("\nvolumes:\n").unwrap();
    let named = |line: &str| Some(line.strip_prefix("  ")?.strip_suffix(':')?.to_owned());
    let names = services.lines().filter_map(named).filter(|name| !name.starts_with([' ', '#']));
    names.map(|name| (name.clone(), block(&compose, &format!("  {name}:")))).collect()
}

#[test]
fn one_service_builds_the_image_that_all_use() {
    let services = services();
    let builders: Vec<&String> =
        services.iter().filter(|(_, said)| said.contains("build: ")).map(|(name, _)| name).collect();
    assert_eq!(builders, ["indices"], "builds of one tag at the same time fail");
    assert!(!block(&read(COMPOSE), "x-geofold: &geofold").contains("build: "), "every service would build");
}

#[test]
fn compose_file_mounts_exist_and_dependencies_have_health_checks() {
    let services = services();
    let names: Vec<&str> = services.iter().map(|(name, _)| name.as_str()).collect();
    for wanted in [
        "kafka",
        "elasticsearch",
        "memcached",
        "postgres",
        "worker-1",
        "worker-2",
        "collector",
        "router",
        "prometheus",
        "grafana",
    ] {
        assert!(names.contains(&wanted), "{wanted}: {names:?}");
    }
    let compose = read(COMPOSE);
    let mounts: Vec<&str> = values(&compose, "- ./");
    assert!(mounts.len() > 4, "{mounts:?}");
    for mount in mounts {
        let (host, inside) = mount.split_once(':').unwrap();
        assert!(at(host).exists() && inside.starts_with('/'), "{mount}");
    }
    let mut waits = 0;
    for line in compose.lines().filter(|line| line.contains("{condition: service_")) {
        let (name, condition) = line.trim().split_once(": {condition: ").unwrap();
        let (_, said) = services.iter().find(|(service, _)| service == name).unwrap();
        let can = match condition {
            "service_healthy}" => said.contains("healthcheck:\ntest:"),
            "service_completed_successfully}" => said.contains("restart: \"no\""),
            _ => false,
        };
        assert!(can, "{line}");
        waits += 1;
    }
    assert!(waits >= 7, "{waits}");
}

#[test]
fn grafana_finds_the_dashboard_and_the_prometheus_where_the_compose_file_puts_them() {
    let (compose, dashboard) = (read(COMPOSE), read("dashboards/geofold.json"));
    let provider = read("dashboards/grafana/provisioning/dashboards/geofold.yml");
    let source = read("dashboards/grafana/provisioning/datasources/prometheus.yml");
    let folder = provider.split_once("path: ").unwrap().1.split(['}', '\n']).next().unwrap();
    assert!(compose.contains(&format!(":{folder}/geofold.json:ro")), "{folder}");
    assert!(compose.contains(&format!("DASHBOARD_PATH: {folder}/geofold.json")), "{folder}");
    assert!(compose.contains("./dashboards/grafana/provisioning:/etc/grafana/provisioning:ro"));
    assert!(source.contains("http://prometheus:9090"), "{source}");
    // The dashboard asks which Prometheus; the one that is there is the default.
    assert!(source.contains("isDefault: true"), "{source}");
    let variable: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let variables = variable["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|one| one["type"] == "datasource" && one["query"] == "prometheus"));
}

#[test]
fn the_prometheus_of_the_compose_file_scrapes_what_is_there() {
    let (compose, prometheus) = (read(COMPOSE), read("dashboards/prometheus.yml"));
    let targets: Vec<&str> = prometheus.split('"').skip(1).step_by(2).collect();
    assert_eq!(targets.len(), 4, "{targets:?}");
    for target in targets {
        let (service, port) = target.split_once(':').unwrap();
        let said = block(&compose, &format!("  {service}:"));
        assert!(said.contains(&format!(":{port}\"")), "{target}: {said}");
    }
}

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

/// `HOST:PORT` of a variable: what it is for, and where a container finds it.
fn addresses(value: &str) -> Vec<(String, String)> {
    let parts = value.split([',', '/', '@']).filter_map(|part| part.split_once(':'));
    let parts = parts.filter(|(_, port)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    parts.map(|(host, port)| (host.to_owned(), port.to_owned())).collect()
}

#[test]
fn compose_file_gives_workers_the_addresses_of_its_services() {
    let services: BTreeMap<String, String> = services().into_iter().collect();
    let variables = compose_variables();
    let mut found = Vec::new();
    for (host, port) in variables.values().flat_map(|value| addresses(value)) {
        if host == "0.0.0.0" {
            continue;
        }
        let service = services.get(&host).unwrap_or_else(|| panic!("{host}:{port} is no service"));
        // Within the network Kafka says another port than the one that is open to this machine.
        let listens = if host == "kafka" {
            service.contains(&format!("INTERNAL://:{port},"))
                && service.contains(&format!("INTERNAL://kafka:{port}"))
        } else {
            service.contains(&format!(":{port}\""))
        };
        assert!(listens, "{host}:{port}: {service}");
        found.push(host);
    }
    found.sort();
    assert_eq!(found, ["elasticsearch", "kafka", "memcached", "postgres"]);

    let config = Config::load(&at("config/geofold.toml"), &variables).unwrap();
    for (service, port) in [
        ("worker-1", config.admin.listen.port()),
        ("worker-2", config.admin.listen.port()),
        ("collector", config.collector.listen.port()),
        ("router", config.route.listen.port()),
    ] {
        assert!(services[service].contains(&format!(":{port}\"")), "{service} does not open {port}");
    }
    let user = config.database.url.to_string();
    assert!(services["postgres"].contains("POSTGRES_USER: geofold") && user.contains("geofold@"), "{user}");
}

#[test]
fn the_image_and_the_compose_file_call_commands_that_there_are_and_find_the_configuration() {
    let (image, compose) = (read("Dockerfile"), read(COMPOSE));
    let file = values(&image, "ENV GEOFOLD_CONFIG=")[0];
    let folder = Path::new(file).parent().unwrap().display();
    assert!(compose.contains(&format!("- ./config:{folder}:ro")), "{folder}");
    for manifest in [WORKER, COLLECTOR, ROUTER] {
        assert!(read(manifest).contains(&format!("mountPath: {folder},")), "{manifest}");
    }
    assert_eq!(values(&image, "ENTRYPOINT "), ["[\"geofold\"]"]);

    let words = |list: &str| -> Vec<String> {
        let list = list.trim_matches(['[', ']']).split(',');
        list.map(|word| word.trim().trim_matches('"').to_owned()).collect()
    };
    let mut commands: Vec<Vec<String>> = values(&image, "CMD ").into_iter().map(words).collect();
    for (service, said) in services().into_iter().filter(|(_, said)| said.contains("<<: *")) {
        commands.extend(values(&said, "command: ").into_iter().map(words));
        for test in values(&said, "test: ") {
            let mut test = words(test);
            assert_eq!(test.drain(..2).collect::<Vec<_>>(), ["CMD", "geofold"], "{service}");
            commands.push(test);
        }
    }
    for unit in UNITS {
        let line = read(unit);
        let start = values(&line, "ExecStart=/usr/bin/geofold ")[0];
        commands.push(start.split(' ').map(str::to_owned).collect());
    }
    for manifest in [WORKER, COLLECTOR, ROUTER] {
        commands.extend(values(&read(manifest), "args: ").into_iter().map(words));
    }
    assert!(commands.len() >= 8, "{commands:?}");
    for command in commands {
        let mut arguments: Vec<&str> = command.iter().map(String::as_str).collect();
        arguments.push("--help");
        let output = geofold(&arguments);
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
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

#[test]
fn systemd_takes_the_units_and_finds_them_well_closed() {
    if !has("systemd-analyze") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for unit in UNITS {
        let copy = folder.path().join(Path::new(unit).file_name().unwrap());
        std::fs::write(&copy, read(unit).replace("/usr/bin/geofold", env!("CARGO_BIN_EXE_geofold"))).unwrap();
        let run = |arguments: &[&str]| {
            let output = Command::new("systemd-analyze").args(arguments).arg(&copy).output().unwrap();
            let text = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&text).into_owned())
        };
        let (fine, said) = run(&["verify", "--man=no"]);
        let said: Vec<&str> = said.lines().filter(|line| line.contains(copy.to_str().unwrap())).collect();
        assert!(fine && said.is_empty(), "{unit}: {said:#?}");
        let (fine, said) = run(&["security", "--offline=true", "--threshold=20", "--no-pager"]);
        assert!(fine, "{unit} leaves open more than 2.0 of 10:\n{said}");
    }
}

fn assert_valid_for_kubernetes(file: &Path) {
    let output = Command::new("kubernetes-validate").arg("--strict").arg(file).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let is_valid = output.status.success() && !said.contains("WARN") && said.contains("passed");
    assert!(is_valid, "{}: {said}", file.display());
}

#[test]
fn the_manifests_are_of_the_kinds_schemas() {
    if has("kubernetes-validate") {
        [WORKER, COLLECTOR, ROUTER].iter().for_each(|file| assert_valid_for_kubernetes(&at(file)));
    }
}

/// What `helm` says, and whether it succeeded.
fn helm(arguments: &[&str]) -> (bool, String) {
    let output = Command::new("helm").args(arguments).current_dir(at("")).output().unwrap();
    let said = if output.status.success() { output.stdout } else { [output.stdout, output.stderr].concat() };
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn rendered(arguments: &[&str]) -> String {
    let (succeeded, said) =
        helm(&[&["template", "geofold", CHART, "--kube-version", "1.33.0"], arguments].concat());
    assert!(succeeded, "helm template {arguments:?}: {said}");
    said
}

/// `GEOFOLD_UPDATE=1 cargo test --test it packaging` writes them.
#[test]
fn the_manifests_are_what_the_chart_renders() {
    let version = format!("ersion: {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(read(&format!("{CHART}/Chart.yaml")).matches(&version).count(), 2, "version and appVersion");
    if !has("helm") {
        return;
    }
    for (file, templates, set, head) in [
        (WORKER, &["config", "worker"][..], "", "Workers of one index."),
        (
            COLLECTOR,
            &["collector"],
            "collector.enabled=true",
            "Collectors of live counts; with the ConfigMap of worker.yaml.",
        ),
        (
            ROUTER,
            &["router"],
            "router.enabled=true",
            "Routers of searches; with the ConfigMap of worker.yaml.",
        ),
        (
            AUTOSCALING,
            &["autoscaling"],
            "worker.autoscaling.enabled=true",
            "As many workers as the lag asks for; leave `replicas` out of worker.yaml then.",
        ),
    ] {
        let shown: Vec<String> = templates.iter().map(|name| format!("templates/{name}.yaml")).collect();
        let mut arguments: Vec<&str> = shown.iter().flat_map(|name| ["--show-only", name.as_str()]).collect();
        arguments.extend(if set.is_empty() { vec![] } else { vec!["--set", set] });
        let text = format!("# {head} Rendered from packaging/helm/geofold.\n{}", rendered(&arguments));
        if std::env::var_os("GEOFOLD_UPDATE").is_some() {
            std::fs::write(at(file), &text).unwrap();
        }
        assert_eq!(read(file), text, "{file} is not what the chart renders");
    }
}

#[test]
fn the_chart_takes_every_value_and_refuses_a_misspelt_one() {
    if !has("helm") {
        return;
    }
    let (is_clean, said) = helm(&["lint", "--strict", CHART]);
    assert!(is_clean, "{said}");
    let folder = tempfile::tempdir().unwrap();
    let (values, map) = (folder.path().join("values.yaml"), folder.path().join("map.json"));
    std::fs::write(&map, "{\"version\": 1}\n").unwrap();
    std::fs::write(
        &values,
        r#"
image: {repository: registry.example/geofold, tag: "2", pullSecrets: [pull]}
createIndices: true
serviceAccount: {create: true, annotations: {role: writer}}
monitoring: {serviceMonitor: true, labels: {release: prometheus}}
worker:
  env: {GEOFOLD_MEMORY__TOTAL: 1GiB}
  secrets: []
  nodeSelector: {disk: fast}
  tolerations: [{key: geofold, operator: Exists}]
  podAnnotations: {team: search}
  autoscaling: {enabled: true, metadata: {tls: enable}, authentication: kafka}
collector: {enabled: true}
router: {enabled: true}
"#,
    )
    .unwrap();
    let (values, map) = (values.to_str().unwrap(), format!("map={}", map.display()));
    let all = rendered(&["--values", values, "--set-file", &map]);
    for wanted in [
        "image: registry.example/geofold:2\n",
        "  - name: pull\n",
        "map.json: \"{\\\"version\\\": 1}\\n\"\n",
        "{name: GEOFOLD_GEOSHARDS__MAP, value: /etc/geofold/map.json}",
        "{name: GEOFOLD_MEMORY__TOTAL, value: \"1GiB\"}",
        "kind: ServiceAccount\n",
        "serviceAccountName: geofold\n",
        "role: writer\n",
        "kind: ServiceMonitor\n",
        "release: prometheus\n",
        "disk: fast\n",
        "operator: Exists\n",
        "team: search\n",
        "tls: enable\n",
        "authenticationRef: {name: kafka}\n",
        "args: [shards, create]\n",
        "args: [check]\n",
        "helm.sh/hook: test\n",
    ] {
        assert!(all.contains(wanted), "{wanted:?} is missing:\n{all}");
    }
    assert!(!all.contains("prometheus.io/"), "the ServiceMonitor finds them");
    assert_eq!(all.matches("  replicas: ").count(), 2, "KEDA says how many workers there are");
    if has("kubernetes-validate") {
        // The schemas of KEDA and of the Prometheus operator are not among its own.
        let own = all
            .split("\n---\n")
            .filter(|one| !one.contains("ScaledObject") && !one.contains("ServiceMonitor"));
        let file = folder.path().join("all.yaml");
        std::fs::write(&file, own.collect::<Vec<_>>().join("\n---\n")).unwrap();
        assert_valid_for_kubernetes(&file);
    }
    let (succeeded, said) = helm(&["template", CHART, "--set", "worker.replica=3"]);
    assert!(!succeeded && said.contains("replica"), "{said}");
}

#[test]
fn the_version_tells_what_a_bug_report_needs() {
    let said = stdout(&geofold(&["--version"]));
    let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
    assert!(said.starts_with(concat!("geofold ", env!("CARGO_PKG_VERSION"), " (")), "{said}");
    // Every compression codec can be read.
    let with_codecs = format!("librdkafka {librdkafka} with gzip, snappy, lz4, zstd)");
    assert!(said.trim_end().ends_with(&with_codecs), "{said}");
}

/// librdkafka is C: its `malloc` is jemalloc's only if that has the plain name.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn the_binary_and_its_c_libraries_allocate_with_jemalloc() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_geofold"));
    let output = command.arg("--version").env("MALLOC_CONF", "stats_print:true").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("jemalloc statistics"), "{told}");
}

#[test]
fn every_shell_gets_completions_of_every_subcommand() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&geofold(&["completions", shell]));
        for word in ["migrate", "collect", "audit", "health"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("geofold.bash");
    std::fs::write(&script, geofold(&["completions", "bash"]).stdout).unwrap();
    let asked = "source \"$1\"; COMP_WORDS=(geofold shards mig); COMP_CWORD=2; _geofold geofold mig shards; echo \"${COMPREPLY[*]}\"";
    let output = Command::new("bash").args(["-c", asked, "bash"]).arg(&script).output().unwrap();
    assert_eq!(stdout(&output).trim(), "migrate", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let page = stdout(&geofold(&["man"]));
    assert!(page.contains(".TH") && page.contains("geosharded"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    stdout(&geofold(&["man", "--out", folder.path().to_str().unwrap()]));
    for page in ["geofold.1", "geofold-run.1", "geofold-shards-migrate.1", "geofold-health.1"] {
        let text = std::fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS") && !text.contains("sabotage"), "{page}");
    }
    let refused = geofold(&["man", "--out", "/no/such/folder"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/no/such/folder"));
}
