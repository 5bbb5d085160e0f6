//! TLS, users and permissions on real servers: a Kafka with SASL over TLS and an authorizer, an Elasticsearch with HTTPS,
//! users and API keys, as `dev/stack up --secure` starts them.
//!
//! ```text
//! dev/stack --dir .stack-secure up --secure && eval "$(dev/stack --dir .stack-secure env)"
//! cargo test --features real-services,tls --test security
//! ```
//!
//! Everything that geofold prints in a test, at log level `debug`, is searched for every secret when the test ends.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod leaving;
mod support;
mod tokens;
#[path = "../wait.rs"]
mod wait;
#[expect(dead_code, reason = "the tests in tests/real need more of it")]
#[path = "../real/support/worker.rs"]
mod worker;

use serde_json::json;
use support::{World, quoted, wait_at_most};

/// For a worker, as docs/operations.md has it.
fn privileges_of_a_worker(world: &World) -> serde_json::Value {
    json!({
        "cluster": ["monitor"],
        "indices": [{
            "names": [format!("{}-*", world.name)],
            "privileges": ["read", "write", "view_index_metadata", "maintenance", "monitor"],
        }],
    })
}

#[test]
fn basic_authentication_and_scram() {
    let world = World::new();
    world.allow("scram-user");
    let settings = world.settings();
    world.succeeds(&settings, &["shards", "create"]);
    world.succeeds(&settings, &["check"]);
    world.does_its_work(&settings);
}

#[test]
fn an_api_key_and_plain_with_no_more_than_the_documented_permissions() {
    let world = World::new();
    world.allow("plain-user");
    let mut settings = world.settings();
    world.as_plain_user(&mut settings);
    let mut creator = privileges_of_a_worker(&world);
    creator["indices"][0]["privileges"].as_array_mut().unwrap().push("create_index".into());
    world.with_api_key(&mut settings, creator);
    world.succeeds(&settings, &["shards", "create"]);
    world.with_api_key(&mut settings, privileges_of_a_worker(&world));
    let checked = world.succeeds(&settings, &["check"]);
    assert!(!checked.contains("warning"), "{checked}");
    world.does_its_work(&settings);
}

#[test]
fn a_wrong_password_of_elasticsearch_is_explained_and_stops_the_worker() {
    let world = World::new();
    world.allow("scram-user");
    let mut settings = world.settings();
    world.succeeds(&settings, &["shards", "create"]);
    settings.insert(("elasticsearch", "password"), quoted("planted-but-wrong"));
    world.secret("planted-but-wrong");
    let (code, text) = world.geofold(&settings, &["check"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("elasticsearch.username"), "{text}");
    let (code, text) = world.geofold(&settings, &["run"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("elasticsearch.username"), "{text}");
}

#[test]
fn an_api_key_that_is_withdrawn_stops_the_worker() {
    let world = World::new();
    world.allow("scram-user");
    let mut settings = world.settings();
    world.succeeds(&settings, &["shards", "create"]);
    world.with_api_key(&mut settings, privileges_of_a_worker(&world));
    settings.insert(("retry", "unauthorized_timeout"), quoted("2s"));
    let mut worker = world.worker(&settings);
    worker.wait_until_ready();
    world.ask("DELETE", "/_security/api_key", Some(json!({ "name": world.name })));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "d1\t{\"location\": [2.3, 48.8]}\n").unwrap();
    world.succeeds(&world.settings(), &["send", file.path().to_str().unwrap()]);
    let status = worker.wait("the worker's end", std::time::Duration::from_secs(60));
    assert_eq!(status.code(), Some(1));
    let log = worker.log();
    assert!(log.contains("elasticsearch refuses this worker"), "{log}");
    world.printed(&log);
}

#[test]
fn dead_letters_go_on_once_a_permission_that_was_withdrawn_is_there_again() {
    let world = World::new();
    world.allow("scram-user");
    let settings = world.settings();
    world.succeeds(&settings, &["shards", "create"]);
    let worker = world.worker(&settings);
    worker.wait_until_ready();
    world.forbid_writing("scram-user");
    world.produce("bad", "no JSON");
    let patience = std::time::Duration::from_secs(120);
    // Where the user may write nowhere, the error is ClusterAuthorizationFailed, which is fatal to the client; tests at the same time
    // give it other topics.
    wait_at_most("a client that is replaced", patience, || {
        worker.log().contains("failed; replacing it").then_some(())
    });
    world.allow_dead_letters("scram-user");
    wait_at_most("the dead letter", patience, || {
        (worker.metric("geofold_records_processed_total", "outcome=\"dead_lettered\"") == 1.0).then_some(())
    });
    world.printed(&worker.log_once_stopped());
}

#[test]
fn certificates_of_elasticsearch_that_do_not_fit_are_explained() {
    let world = World::new();
    world.allow("scram-user");
    let explained = |change: &dyn Fn(&mut support::Settings), words: &[&str]| {
        let mut settings = world.settings();
        change(&mut settings);
        let (code, text) = world.geofold(&settings, &["check"]);
        assert_eq!(code, 1, "{text}");
        for part in words {
            assert!(text.contains(part), "no {part:?} in: {text}");
        }
    };
    explained(
        &|settings| drop(settings.remove(&("elasticsearch", "ca_file"))),
        &["certificate", "elasticsearch.ca_file"],
    );
    let stranger = quoted(world.certificate("stranger.pem"));
    explained(
        &|settings| drop(settings.insert(("elasticsearch", "ca_file"), stranger.clone())),
        &["certificate", "elasticsearch.ca_file"],
    );
    explained(
        &|settings| {
            let urls = settings[&("elasticsearch", "urls")].replace("127.0.0.1", "localhost");
            settings.insert(("elasticsearch", "urls"), urls);
        },
        &["certificate", "another host name", "elasticsearch.urls"],
    );
    explained(
        &|settings| {
            let urls = settings[&("elasticsearch", "urls")].replace("https", "http");
            settings.insert(("elasticsearch", "urls"), urls);
        },
        &["https"],
    );
}

#[test]
fn kafka_lets_nobody_in_with_a_wrong_password_or_to_a_stranger() {
    let world = World::new();
    let explained = |key: &'static str, value: String, words: &[&str]| {
        let mut settings = world.settings();
        settings.insert(("kafka", key), value);
        let (code, text) = world.geofold(&settings, &["check"]);
        assert_eq!(code, 1, "{text}");
        for part in words {
            assert!(text.contains(part), "no {part:?} in: {text}");
        }
    };
    world.secret("planted-but-wrong");
    explained("sasl_password", quoted("planted-but-wrong"), &["refused this client", "sasl_"]);
    explained(
        "ssl_ca_file",
        quoted(world.certificate("stranger.pem")),
        &["certificate", "kafka.ssl_ca_file"],
    );
    let by_name = world.settings()[&("kafka", "brokers")].replace("127.0.0.1", "localhost");
    explained("brokers", by_name, &["certificate", "kafka.brokers"]);
}

#[test]
fn operations_refused_by_kafka_are_named() {
    let world = World::new();
    let settings = world.settings();
    world.succeeds(&settings, &["shards", "create"]);
    let (code, text) = world.geofold(&settings, &["check"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(&world.name), "{text}");
    assert!(text.contains("grant this user"), "{text}");
    world.allow("scram-user");
    wait_at_most("permissions to take effect", std::time::Duration::from_secs(30), || {
        (world.geofold(&settings, &["check"]).0 == 0).then_some(())
    });
}
