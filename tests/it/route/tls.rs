//! Clients that speak TLS.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use reqwest::blocking::{Client, ClientBuilder};
use reqwest::{Certificate, Identity};

use super::front::TLS_FILES;
use super::{Router, ids, near_berlin};
use crate::standins::{GEOFOLD, Standins, wait_for};

/// Another authority than that of [`TLS_FILES`]: its certificate, that of a router, and that of a client.
pub const OTHER_FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/route/tls");

/// A client that trusts one authority alone.
fn trusting(folder: &str) -> ClientBuilder {
    let pem = std::fs::read(format!("{folder}/authority.pem")).unwrap();
    Client::builder()
        .timeout(Duration::from_secs(120))
        .no_proxy()
        .tls_built_in_root_certs(false)
        .add_root_certificate(Certificate::from_pem(&pem).unwrap())
}

fn copy(from: &str, to: &Path, end: &str) {
    std::fs::copy(format!("{from}.{end}"), to.join(format!("router.{end}"))).unwrap();
}

/// With the certificate of [`TLS_FILES`] in the world's folder.
fn start(more: &str, client: Client) -> Router {
    let world = Standins::start();
    let folder = world.folder.path();
    for end in ["pem", "key"] {
        copy(&format!("{TLS_FILES}/endpoint"), folder, end);
    }
    let [certificate, key] = ["pem", "key"].map(|end| folder.join(format!("router.{end}")));
    let config =
        world.config(&format!("[route]\ntls_certificate = {certificate:?}\ntls_key = {key:?}\n{more}"));
    let mut router = Router::unready(world, &config, &[]);
    router.url = router.url.replace("http://", "https://");
    router.client = client;
    wait_for("readiness", || router.get("/readyz").status().is_success().then_some(()));
    router
}

#[test]
fn a_renewed_certificate_is_followed_once_its_key_is_there() {
    let router = start("", trusting(TLS_FILES).build().unwrap());
    let answer = router.search(&near_berlin("30km"));
    assert_eq!(ids(&answer.json().unwrap()), ["berlin", "spandau"]);
    let health = Command::new(GEOFOLD)
        .args(["health", "--router", "--config"])
        .arg(router.world.folder.path().join("route.toml"))
        .env("GEOFOLD_ROUTE__LISTEN", router.url.strip_prefix("https://").unwrap())
        .output()
        .unwrap();
    assert!(health.status.success(), "{}", String::from_utf8_lossy(&health.stderr));
    let plain = Client::new().get(router.url.replace("https://", "http://")).send();
    assert!(plain.is_err(), "{plain:?}");
    // A client for each request makes a connection for each.
    let is_trusted = |folder: &str| {
        let answer = trusting(folder).build().unwrap().get(format!("{}/healthz", router.url)).send();
        answer.is_ok_and(|answer| answer.status() == 200)
    };
    assert!(is_trusted(TLS_FILES) && !is_trusted(OTHER_FILES));
    let folder = router.world.folder.path();
    copy(&format!("{OTHER_FILES}/router"), folder, "pem");
    router.process.wait_for("cannot be used; the one before stays in force");
    assert!(is_trusted(TLS_FILES) && !is_trusted(OTHER_FILES));
    copy(&format!("{OTHER_FILES}/router"), folder, "key");
    router.process.wait_for("certificate was read again");
    assert!(!is_trusted(TLS_FILES) && is_trusted(OTHER_FILES));
    assert_eq!(router.search(&near_berlin("30km")).status(), 200, "a connection that is open stays so");
    let log = router.process.stop();
    assert_eq!(log.matches("the one before stays in force").count(), 1, "it is said once: {log}");
}

#[test]
fn clients_are_asked_for_a_certificate_of_their_authority() {
    let more = format!("tls_client_ca_file = \"{OTHER_FILES}/authority.pem\"\n");
    let pem =
        ["client.pem", "client.key"].map(|name| std::fs::read(format!("{OTHER_FILES}/{name}")).unwrap());
    let identity = Identity::from_pem(&pem.concat()).unwrap();
    let router = start(&more, trusting(TLS_FILES).identity(identity).build().unwrap());
    assert_eq!(router.search(&near_berlin("30km")).status(), 200);
    let stranger = trusting(TLS_FILES).build().unwrap();
    assert!(stranger.get(format!("{}/healthz", router.url)).send().is_err());
    let pem =
        ["endpoint.pem", "endpoint.key"].map(|name| std::fs::read(format!("{TLS_FILES}/{name}")).unwrap());
    let identity = Identity::from_pem(&pem.concat()).unwrap();
    let of_another = trusting(TLS_FILES).identity(identity).build().unwrap();
    assert!(of_another.get(format!("{}/healthz", router.url)).send().is_err());
    router.process.stop();
}
