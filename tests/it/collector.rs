//! `geofold collect`, the binary: its HTTP server with TLS, and campaigns that requests make.

use std::path::Path;
use std::time::Duration;

use reqwest::Certificate;
use reqwest::blocking::Client;
use serde_json::Value;

use crate::route::front::TLS_FILES;
use crate::route::tls::OTHER_FILES;
use crate::standins::{Standins, Worker, wait_for};

const TOKEN: &str = "a-token-of-a-test";

/// A client that trusts one authority alone.
fn trusting(folder: &str) -> Client {
    let pem = std::fs::read(format!("{folder}/authority.pem")).unwrap();
    let client = Client::builder().timeout(Duration::from_secs(120)).no_proxy();
    client
        .tls_built_in_root_certs(false)
        .add_root_certificate(Certificate::from_pem(&pem).unwrap())
        .build()
        .unwrap()
}

fn install(files: &str, folder: &Path) {
    for end in ["pem", "key"] {
        std::fs::copy(format!("{files}.{end}"), folder.join(format!("collector.{end}"))).unwrap();
    }
}

#[test]
fn a_collector_with_tls_takes_campaigns_and_follows_its_certificate() {
    let world = Standins::start();
    world.create_topic("t-increments");
    let folder = world.folder.path();
    install(&format!("{TLS_FILES}/endpoint"), folder);
    // Relative paths start at the configuration's folder.
    let more = format!(
        "[tally]\ngeoshard = true\n[database]\nurl = \"sqlite:counts.db\"\n[campaigns]\nbearer_token = \"{TOKEN}\"\n\
         [collector]\nlisten = \"127.0.0.1:0\"\ntls_certificate = \"collector.pem\"\ntls_key = \"collector.key\"\n"
    );
    let config = world.write("collect.toml", &more);
    let collector = Worker::start_command(&["collect"], folder, &config, &[]);
    let address = collector.address();
    let url = format!("https://{address}");
    let client = trusting(TLS_FILES);
    let get = |client: &Client, path: &str| client.get(format!("{url}{path}")).bearer_auth(TOKEN).send();
    wait_for("readiness", || get(&client, "/readyz").ok()?.error_for_status().ok());
    assert!(Client::new().get(format!("http://{address}/healthz")).send().is_err(), "without TLS");

    let made = client
        .post(format!("{url}/campaigns?action=touch&name=by-tls"))
        .bearer_auth(TOKEN)
        .body("a\nb\n")
        .send()
        .unwrap();
    assert_eq!(made.status(), 201);
    let made: Value = made.json().unwrap();
    assert_eq!((made["ids"].as_u64(), made["name"].as_str()), (Some(2), Some("by-tls")), "{made}");
    let said = world.geofold(&config, &["campaign", "list", "--json"]);
    assert_eq!(said.json()[0]["id"], made["id"]);

    // The port was chosen when it started.
    let at_the_port = world.write("health.toml", &more.replace("127.0.0.1:0", &address));
    let health = world.geofold(&at_the_port, &["health", "--collector"]);
    assert_eq!(health.code, Some(0), "{health:?}");
    let cloud = |authority: &str| {
        let output = std::process::Command::new(crate::standins::GEOFOLD)
            .args(["cloud", "--json", "--url", &url, "--ca-file", authority])
            .output();
        crate::standins::Said::of(&output.unwrap())
    };
    assert_eq!(cloud(&format!("{TLS_FILES}/authority.pem")).json()["version"], 0);
    let refused = cloud(&format!("{OTHER_FILES}/authority.pem"));
    assert!(refused.code == Some(1) && refused.err.contains("certificate"), "{refused:?}");
    let missing = cloud("/no/such.pem");
    assert!(missing.err.contains("reading --ca-file /no/such.pem"), "{missing:?}");

    assert!(get(&trusting(OTHER_FILES), "/healthz").is_err());
    install(&format!("{OTHER_FILES}/router"), folder);
    collector.wait_for("the collector's certificate was read again");
    assert!(get(&trusting(TLS_FILES), "/healthz").is_err());
    assert_eq!(get(&trusting(OTHER_FILES), "/healthz").unwrap().status(), 200);
    collector.stop();
}
