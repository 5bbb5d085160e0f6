//! `docker-compose.yml`: its services find each other, and what they mount.

use std::collections::BTreeMap;

use geofold::support::config::Config;

use super::{COMPOSE, at, block, compose_variables, read, services, values};

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
