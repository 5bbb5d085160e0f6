//! What ships beside the binary: container image, compose file, systemd units, Kubernetes manifests, completions and manual
//! pages fit the binary, and each other.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | what concerns several of them; the systemd units |
//! | `image.rs` | the container image |
//! | `compose.rs` | the compose file |
//! | `kubernetes.rs` | the Helm chart, and the manifests rendered from it |
//! | `package.rs` | the crate as it is published, and the fuzz targets beside it |
//! | `binary.rs` | version, allocator, completions, manual pages |

mod binary;
mod compose;
mod image;
mod kubernetes;
mod package;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use geofold::support::config::{Config, ConfigFinding};

use crate::tools::has;

const WORKER: &str = "packaging/kubernetes/worker.yaml";
const COLLECTOR: &str = "packaging/kubernetes/collector.yaml";
const ROUTER: &str = "packaging/kubernetes/router.yaml";
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
