//! Loading from end to end: the file in the repository, the environment, complaints, and secrets that stay secret.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::keys::{FREE, Keys, split};
use super::*;

/// The least that a file must say.
const LEAST: &str = r#"
kafka.brokers = ["127.0.0.1:9092"]
kafka.topic = "documents"
elasticsearch.urls = ["http://127.0.0.1:9200"]
"#;

fn env(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn load(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_toml(text, Path::new("/etc/geofold"), &env(variables))
}

fn load_least(more: &str, variables: &[(&str, &str)]) -> Config {
    load(&format!("{LEAST}{more}"), variables).unwrap()
}

/// The complaint about a file that says `more` than the least.
fn complaint(more: &str, variables: &[(&str, &str)]) -> String {
    load(&format!("{LEAST}{more}"), variables).unwrap_err().to_string()
}

fn repository_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/geofold.toml")
}

#[test]
fn the_file_in_the_repository_says_what_the_defaults_are() {
    let config = Config::load(&repository_file(), &BTreeMap::new()).unwrap();
    let mut defaults = Config::default();
    let folder = repository_file().parent().unwrap().to_owned();
    defaults.geoshards.map = folder.join(defaults.geoshards.map);
    defaults.database.url.resolve(&folder);
    assert_eq!(config, defaults);
    assert_eq!(config.findings(), []);
}

/// A line of the file without the mark that comments an optional key out, if it is a key, and the key's name.
fn key_line(line: &str) -> Option<(&str, &str)> {
    let bare = line.strip_prefix("# ").unwrap_or(line);
    let (name, _) = bare.split_once(" = ")?;
    name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_').then_some((name, bare))
}

#[test]
fn the_file_in_the_repository_holds_every_key_once_under_a_comment() {
    let text = fs::read_to_string(repository_file()).unwrap();
    let (mut section, mut comment, mut found) = ("", String::new(), Vec::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
        } else if let Some((name, _)) = key_line(line) {
            let key = format!("{section}.{name}");
            assert!(!comment.is_empty(), "{key} has no comment");
            comment.clear();
            found.push(key);
        } else {
            comment.push_str(line);
        }
    }
    found.sort();
    assert_eq!(found, Keys::new().iter().collect::<Vec<_>>());
    for table in FREE {
        assert!(text.contains(&format!("[{table}]")), "{table}");
    }
}

#[test]
fn commented_out_keys_have_values_of_the_right_type() {
    let text = fs::read_to_string(repository_file()).unwrap();
    // Secrets are there twice, as themselves and in a file; the other group protocol's key is refused by rule, and so is
    // what takes the place of urls.
    let left_out = [
        "remote_assignor",
        "cloud_id",
        "sasl_password_file",
        "oauth_client_secret_file",
        "password_file",
        "api_key_file",
        "bearer_token_file",
    ];
    let taken = text.lines().filter_map(|line| match key_line(line) {
        Some((name, _)) if left_out.contains(&name) => None,
        Some((_, bare)) => Some(bare),
        None => Some(line),
    });
    let text = taken.collect::<Vec<_>>().join("\n");
    let variables = [
        ("KAFKA_PASSWORD", "a"),
        ("KAFKA_CLIENT_SECRET", "j"),
        ("ELASTICSEARCH_PASSWORD", "b"),
        ("ELASTICSEARCH_API_KEY", "c"),
        ("POSTGRES_PASSWORD", "d"),
        ("SOURCE_PASSWORD", "e"),
        ("SOURCE_TOKEN", "f"),
        ("REGISTRY_PASSWORD", "g"),
        ("REGISTRY_TOKEN", "h"),
        ("CAMPAIGNS_TOKEN", "i"),
    ];
    let config = load(&text, &variables).unwrap();
    assert_eq!(config.kafka.sasl_mechanism, Some(SaslMechanism::ScramSha512));
    assert_eq!(config.elasticsearch.credentials(), Some(ElasticsearchCredentials::ApiKey(&Secret::new("c"))));
    assert!(config.geoshards.index_template.is_some());
}

#[test]
fn a_file_of_three_keys_is_a_configuration() {
    let config = load_least("", &[]);
    assert_eq!(config.geoshards.map, Path::new("/etc/geofold/map-55.json"));
    assert_eq!(config.batch, BatchConfig::default());
    assert!(load_least("geoshards.map = '/maps/55.json'", &[]).geoshards.map.starts_with("/maps"));
}

#[test]
fn all_missing_keys_are_reported_at_once() {
    let complaint = load("", &[]).unwrap_err().to_string();
    for key in
        ["kafka.brokers: required; for example [\"127.0.0.1:9092\"]", "kafka.topic", "elasticsearch.urls"]
    {
        assert!(complaint.contains(key), "{complaint}");
    }
    assert!(
        load(
            "",
            &[
                ("GEOFOLD_KAFKA__BROKERS", "a:1"),
                ("GEOFOLD_KAFKA__TOPIC", "t"),
                ("GEOFOLD_ELASTICSEARCH__URLS", "http://a:1"),
            ]
        )
        .is_ok()
    );
}

/// That of the repository's file.
fn cloud_id() -> String {
    let text = fs::read_to_string(repository_file()).unwrap();
    let (_, rest) = text.split_once("# cloud_id = \"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

#[test]
fn cloud_id_takes_the_place_of_urls() {
    const KAFKA: &str = "kafka.brokers = ['a:1']\nkafka.topic = 't'\n";
    let in_file = format!("elasticsearch.cloud_id = '{}'", cloud_id());
    let config = load(&format!("{KAFKA}{in_file}"), &[]).unwrap();
    let nodes = |config: &Config| -> Vec<String> {
        config.elasticsearch.nodes().iter().map(ToString::to_string).collect()
    };
    assert_eq!(nodes(&config), ["https://abc123.eu-central-1.aws.cloud.es.io"]);
    assert_eq!(config.findings(), []);
    let shown = config.to_redacted_toml();
    assert_eq!(load(&shown, &[]).unwrap(), config, "what is shown can be read again: {shown}");

    let both = complaint(&in_file, &[]);
    let expected = "configuration:5: elasticsearch.cloud_id: give either elasticsearch.urls or elasticsearch.cloud_id, not both";
    assert_eq!(both, expected);
    let none = load(KAFKA, &[]).unwrap_err().to_string();
    assert!(none.contains("elasticsearch.urls: required, or elasticsearch.cloud_id; for example"), "{none}");
    assert!(!complaint("elasticsearch.cloud_id = 'id:hunter2'", &[]).contains("hunter2"));
    let error = load(&format!("{KAFKA}elasticsearch.cloud_id = 'id:hunter2'"), &[]).unwrap_err();
    assert!(
        error.to_string().starts_with("configuration:3: elasticsearch.cloud_id: this is not a Cloud ID"),
        "{error}"
    );
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
}

#[test]
fn cloud_id_and_urls_replace_each_other_in_the_environment() {
    let (id, urls) = (cloud_id(), ("GEOFOLD_ELASTICSEARCH__URLS", "http://b:1"));
    let in_env = ("GEOFOLD_ELASTICSEARCH__CLOUD_ID", id.as_str());
    let config = load_least("", &[in_env]);
    assert!(config.elasticsearch.cloud_id.is_some() && config.elasticsearch.urls.is_empty());
    let in_file = format!("kafka.brokers = ['a:1']\nkafka.topic = 't'\nelasticsearch.cloud_id = '{id}'");
    let config = load(&in_file, &[urls]).unwrap();
    assert_eq!((config.elasticsearch.urls.len(), config.elasticsearch.cloud_id), (1, None));
    assert!(complaint("", &[in_env, urls]).contains("not both"));
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_nearest_known_one() {
    let complaint = complaint(
        "[batch]\nmax_documnts = 1\n[memry]\ntotal = 1\n[nowhere]\nx = 1\n[log]\ncolour_of = 1",
        &[],
    );
    let lines: Vec<_> = complaint.lines().collect();
    assert_eq!(
        lines,
        [
            "configuration:6: batch.max_documnts: unknown key; did you mean batch.max_documents?",
            "configuration:12: log.colour_of: unknown key; [log] has filter, format",
            "configuration:8: memry.total: unknown key; did you mean memory.total?",
            "configuration:10: nowhere.x: unknown key; there is no such section",
        ]
    );
}

#[test]
fn a_misspelt_section_without_keys_is_refused_too() {
    assert!(complaint("[bach]", &[]).contains("bach"));
    load_least("[batch]", &[]);
    assert!(load("kafka = 1", &[]).unwrap_err().to_string().contains("write [kafka]"));
}

#[test]
fn a_value_of_the_wrong_type_is_refused_with_its_key_and_line() {
    for (more, expected) in [
        ("batch.linger = 5", "configuration:5: batch.linger: "),
        ("memory.total = '5 parrots'", "configuration:5: memory.total: \"5 parrots\" is not a size"),
        ("kafka.group_protocol = 'eager'", "expected `classic` or `consumer`"),
        (
            "kafka.sasl_mechanism = 'OAUTH2'",
            "configuration:5: kafka.sasl_mechanism: \"OAUTH2\" is not supported; use \"PLAIN\"",
        ),
        ("kafka.sasl_mechanism = 'GSSAPI'", "Kerberos (GSSAPI) is not supported"),
        ("kafka.sasl_mechanism = 'plain'", "\"plain\" is not supported; use \"PLAIN\", \"SCRAM-SHA-256\""),
        ("positions.epoch = 9999999", "epoch 9999999 is above the highest"),
        ("admin.listen = 'here'", "configuration:5: admin.listen: "),
        ("kafka.properties.x = []", "configuration:5: kafka.properties.x: a librdkafka setting must be"),
        ("batch.linger = = 5", "configuration:5: not valid TOML"),
    ] {
        let complaint = complaint(more, &[]);
        assert!(complaint.contains(expected), "{complaint}");
    }
}

#[test]
fn librdkafka_settings_are_taken_quoted_or_not_and_of_any_plain_type() {
    let more = "[kafka.properties]\nfetch.min.bytes = 7\n\"client.rack\" = 'a'\nfetch.wait.max.ms = '5'\ncheck.crcs = true";
    let config = load_least(more, &[("GEOFOLD_KAFKA__PROPERTIES__FETCH_WAIT_MAX_MS", "9")]);
    let all: Vec<_> = config.kafka.properties.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(all, ["check.crcs=true", "client.rack=a", "fetch.min.bytes=7", "fetch.wait.max.ms=9"]);
}

#[test]
fn the_environment_overrides_the_file() {
    let config = load_least(
        "batch.linger = '1s'\nelasticsearch.username = '${USER}'",
        &[
            ("USER", "worker"),
            ("GEOFOLD_BATCH__LINGER", "30ms"),
            ("GEOFOLD_POSITIONS__EPOCH", "3"),
            ("GEOFOLD_KAFKA__BROKERS", "a:9092, b:9092"),
            ("GEOFOLD_ELASTICSEARCH__PASSWORD", "with ${no} expansion"),
            ("GEOFOLD_TEST_KAFKA", "not an override"),
        ],
    );
    assert_eq!(config.batch.linger, Duration::from_millis(30));
    assert_eq!(config.positions.epoch.get(), 3);
    assert_eq!(config.kafka.brokers, ["a:9092", "b:9092"]);
    assert_eq!(config.elasticsearch.username.as_deref(), Some("worker"));
    assert_eq!(config.elasticsearch.password.unwrap().expose(), "with ${no} expansion");
}

#[test]
fn a_location_is_a_path_or_a_pair_in_file_and_environment() {
    let one = LocationFields::from("home");
    let pair = |lat: &str, lon: &str| {
        LocationFields::Pair(LatLonFields { lat: lat.to_owned(), lon: lon.to_owned() })
    };
    const IN_FILE: &str = "[documents]\nlocation = { lat = \"place.lat\", lon = 'place.lon' }\npoint = 'at'";
    let (lat, lon) = (("GEOFOLD_DOCUMENTS__LOCATION__LAT", "y"), ("GEOFOLD_DOCUMENTS__LOCATION__LON", "x"));
    for (file, variables, expected) in [
        ("documents.location = 'home'", &[][..], one.clone()),
        (IN_FILE, &[], pair("place.lat", "place.lon")),
        ("[documents.location]\nlat = 'y'\nlon = 'x'", &[], pair("y", "x")),
        ("documents.location = 'home'", &[lat, lon], pair("y", "x")),
        (IN_FILE, &[lat], pair("y", "place.lon")),
        (IN_FILE, &[("GEOFOLD_DOCUMENTS__LOCATION", "home")], one.clone()),
    ] {
        assert_eq!(load_least(file, variables).documents.location, expected, "{file} {variables:?}");
    }
    let config = load_least(IN_FILE, &[]);
    assert_eq!(config.findings(), []);
    let shown = config.to_redacted_toml();
    assert_eq!(load(&shown, &[]).unwrap(), config, "what is shown can be read again: {shown}");
    let moved = load_least(IN_FILE, &[lat, ("GEOFOLD_DOCUMENTS__POINT", "there")]);
    assert_eq!(moved.differs_in(&config), ["documents.location.lat", "documents.point"]);

    let form = "configuration:5: documents.location: write a field's path, like \"location\", or two";
    assert!(complaint("documents.location = 5", &[]).starts_with(form));
    assert!(complaint("documents.location = { lat = 'y' }", &[]).starts_with(form));
    assert!(complaint("documents.location = { lat = 'y', lon = 5 }", &[]).starts_with(form));
    let unknown = complaint("documents.location = { lat = 'y', long = 'x' }", &[]);
    assert!(unknown.starts_with("configuration:5: documents.location.long: unknown key"), "{unknown}");
    let both = complaint("", &[("GEOFOLD_DOCUMENTS__LOCATION", "home"), lat, lon]);
    assert!(both.contains("give either documents.location or its parts, not both"), "{both}");
}

#[test]
fn a_variable_that_overrides_nothing_is_refused_with_the_nearest_one() {
    let complaint = complaint("", &[("GEOFOLD_KAFKA__TOPICS", "x"), ("GEOFOLD_POSITIONS__EPOCH", "two")]);
    assert!(
        complaint
            .contains("GEOFOLD_KAFKA__TOPICS: overrides no known key; did you mean GEOFOLD_KAFKA__TOPIC?")
    );
    assert!(complaint.contains("GEOFOLD_POSITIONS__EPOCH: \"two\" is not a whole number"), "{complaint}");
}

#[test]
fn an_undefined_variable_is_named_together_with_its_key() {
    let complaint = complaint("elasticsearch.password = '${NO_SUCH}'", &[]);
    assert!(complaint.starts_with("configuration:5: elasticsearch.password: "), "{complaint}");
    assert!(complaint.contains("NO_SUCH is not set"), "{complaint}");
    load_least("elasticsearch.password = '${NO_SUCH}'", &[("GEOFOLD_ELASTICSEARCH__PASSWORD", "x")]);
}

#[test]
fn keys_of_the_other_group_protocol_are_refused() {
    let consumer = complaint("kafka.group_protocol = 'consumer'\nkafka.session_timeout = '10s'", &[]);
    assert!(consumer.starts_with("configuration:6: kafka.session_timeout: has a meaning"), "{consumer}");
    assert!(complaint("kafka.remote_assignor = 'range'", &[]).contains("\"consumer\" only"));
    load_least("kafka.group_protocol = 'consumer'\nkafka.remote_assignor = 'range'", &[]);
}

#[test]
fn every_relative_path_starts_at_the_folder_of_the_file() {
    let keys = Keys::new();
    let example = toml::Value::from("file");
    let paths: Vec<&str> = keys.iter().filter(|key| keys.example(key) == Some(&example)).collect();
    assert!(paths.contains(&"audit.temp_dir") && paths.contains(&"kafka.ssl_ca_file"), "{paths:?}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "a secret").unwrap();
    let lines: String = paths.iter().map(|key| format!("{key} = 'file'\n")).collect();

    let config = Config::from_toml(&format!("{LEAST}{lines}"), folder.path(), &BTreeMap::new()).unwrap();

    let sections = toml::Table::try_from(config).unwrap();
    for key in paths {
        let (section, name) = split(key);
        assert_eq!(sections[section][name].as_str(), file.to_str(), "{key}");
    }
}

#[test]
fn secret_file_is_read_without_its_final_newline() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pw"), "hunter2\n").unwrap();
    let path = folder.path().join("geofold.toml");
    fs::write(&path, format!("{LEAST}elasticsearch.username = 'u'\nelasticsearch.password_file = 'pw'"))
        .unwrap();

    let config = Config::load(&path, &BTreeMap::new()).unwrap();
    assert_eq!(config.elasticsearch.password_file, Some(folder.path().join("pw")));
    let credentials = config.elasticsearch.credentials();
    assert_eq!(
        credentials,
        Some(ElasticsearchCredentials::Basic { username: "u", password: &Secret::new("hunter2") })
    );

    let overridden = Config::load(&path, &env(&[("GEOFOLD_ELASTICSEARCH__PASSWORD", "other")])).unwrap();
    assert_eq!(overridden.elasticsearch.password.unwrap().expose(), "other");

    fs::remove_file(folder.path().join("pw")).unwrap();
    let complaint = Config::load(&path, &BTreeMap::new()).unwrap_err().to_string();
    assert!(complaint.contains("geofold.toml:6: elasticsearch.password_file: reading "), "{complaint}");
}

#[test]
fn a_secret_and_a_file_for_it_are_not_both_taken() {
    let complaint = complaint("elasticsearch.api_key = 'a'\nelasticsearch.api_key_file = 'b'", &[]);
    assert!(complaint.contains("not both"), "{complaint}");
}

#[test]
fn a_file_that_can_not_be_read_is_named() {
    let error = Config::load(Path::new("/no/such/geofold.toml"), &BTreeMap::new()).unwrap_err();
    assert!(error.to_string().starts_with("reading the configuration /no/such/geofold.toml: "), "{error}");
}

#[test]
fn secrets_are_in_nothing_that_is_shown() {
    let more = "
        kafka.security_protocol = 'sasl_plaintext'
        kafka.sasl_password = 'hunter2'
        kafka.properties.'ssl.key.password' = 'hunter2'
        kafka.producer_properties.'ssl.key.pem' = '${PEM}'
        elasticsearch.password = 'hunter2'
        elasticsearch.api_key = 'hunter2'
        elasticsearch.ca_file = 'ca.pem'";
    let config = load_least(more, &[("PEM", "hunter2")]);
    let shown = format!("{config:?}\n{config:#?}\n{}\n{:?}", config.to_redacted_toml(), config.findings());
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(config.to_redacted_toml().contains("password = \"***\""));
    assert!(!config.findings().is_empty());
}

#[test]
fn secrets_are_in_no_complaint() {
    for more in [
        "elasticsearch.password = 'hunter2' 'hunter2'",
        "elasticsearch.password = ['hunter2']",
        "elasticsearch.api_key = { a = 'hunter2' }",
        "elasticsearch.password = '${hunter2 '",
        "elasticsearch.password = 'hunter2'\nelasticsearch.password = 'hunter2'",
        "elasticsearch.password = 'hunter2'\nelasticsearch.password_file = 'x'",
        "elasticsearch.passwort = 'hunter2'",
        "kafka.properties.'ssl.key.password' = ['hunter2']",
    ] {
        let error = load(&format!("{LEAST}{more}"), &[]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    let url =
        load("elasticsearch.urls = ['http://u:hunter2@a']\nkafka.topic = 'a'\nkafka.brokers = ['a']", &[]);
    let error = url.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    assert!(error.to_string().contains("elasticsearch.urls[0]"), "{error}");
}

#[test]
fn the_redacted_form_shows_every_section_and_only_what_is_in_force() {
    let shown = load_least("kafka.group_protocol = 'consumer'", &[]).to_redacted_toml();
    for section in Keys::new().iter().map(|key| split(key).0).collect::<BTreeSet<_>>() {
        assert!(shown.contains(&format!("[{section}]")), "{section}");
    }
    assert!(shown.contains("timeout = \"1m\"") && shown.contains("total = \"24MiB\""), "{shown}");
    assert!(!shown.contains("session_timeout"), "{shown}");
}

#[test]
fn a_time_without_a_unit_is_refused_with_how_to_write_it() {
    for value in ["5", "\"5\"", "true"] {
        let error = complaint(&format!("batch.linger = {value}\n"), &[]);
        assert!(error.contains("batch.linger") && error.contains("like \"200ms\""), "{error}");
    }
}
