//! The secure stack (`dev/stack up --secure`), a world of one's own on it, and everything that geofold printed there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use geofold::testkit::ports::free_port;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use crate::wait::wait_at_most;
use crate::worker::{GEOFOLD, Worker};

fn from_env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run dev/test, or: dev/stack up --secure && eval \"$(dev/stack env)\"")
    })
}

/// Lines of a configuration, by table and key. Values are written as they are.
pub type Settings = BTreeMap<(&'static str, &'static str), String>;

/// A quoted value of the configuration.
pub fn quoted(value: impl AsRef<Path>) -> String {
    format!("{:?}", value.as_ref().to_str().unwrap())
}

/// A topic, indices and users that no other test knows.
pub struct World {
    pub name: String,
    place: PathBuf,
    dir: TempDir,
    plain_kafka: String,
    elasticsearch: String,
    admin_password: String,
    http: reqwest::blocking::Client,
    started: AtomicU32,
    /// What must never be printed.
    secrets: RefCell<Vec<String>>,
    printed: RefCell<String>,
}

impl World {
    pub fn new() -> Self {
        let place = PathBuf::from(from_env("GEOFOLD_TEST_SECURE"));
        let authority = std::fs::read(place.join("authority.pem")).unwrap();
        let http = reqwest::blocking::Client::builder()
            .timeout(Duration::from_secs(30))
            .add_root_certificate(reqwest::Certificate::from_pem(&authority).unwrap())
            .build()
            .unwrap();
        let name = format!("s{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
        let world = Self {
            name,
            place,
            dir: TempDir::new().unwrap(),
            plain_kafka: from_env("GEOFOLD_TEST_KAFKA"),
            elasticsearch: from_env("GEOFOLD_TEST_ELASTICSEARCH"),
            admin_password: from_env("GEOFOLD_TEST_ADMIN_PASSWORD"),
            http,
            started: AtomicU32::new(0),
            secrets: RefCell::default(),
            printed: RefCell::default(),
        };
        for (topic, partitions) in [(world.name.clone(), 2), (world.dead_letter_topic(), 1)] {
            world.create_topic(&topic, partitions);
        }
        world.secret(&world.admin_password);
        for user in ["PLAIN", "SCRAM"] {
            world.secret(&from_env(&format!("GEOFOLD_TEST_{user}_PASSWORD")));
        }
        world
    }

    /// Produces a record by the listener that asks for no permission.
    pub fn produce(&self, key: &str, value: &str) {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.plain_kafka).set("partitioner", "murmur2_random");
        let producer: BaseProducer = client.create().unwrap();
        producer
            .send(BaseRecord::to(&self.name).key(key).payload(value))
            .map_err(|(error, _)| error)
            .unwrap();
        producer.flush(Duration::from_secs(60)).unwrap();
    }

    fn create_topic(&self, topic: &str, partitions: i32) {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.plain_kafka);
        let admin: AdminClient<DefaultClientContext> = client.create().unwrap();
        let topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let results = runtime.block_on(admin.create_topics([&topic], &AdminOptions::new())).unwrap();
        results.into_iter().for_each(|result| drop(result.unwrap()));
    }

    pub fn dead_letter_topic(&self) -> String {
        format!("{}-dead", self.name)
    }

    /// A file of the stack's certificates: `authority.pem` signed the servers', `stranger.pem` did not.
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// Both servers reached safely: by basic authentication as admin, and by SCRAM.
    pub fn settings(&self) -> Settings {
        let map = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/support/map-12.json");
        Settings::from([
            (("kafka", "brokers"), format!("[{:?}]", from_env("GEOFOLD_TEST_SECURE_KAFKA"))),
            (("kafka", "topic"), quoted(&self.name)),
            (("kafka", "group_id"), quoted(&self.name)),
            (("kafka", "security_protocol"), quoted("sasl_ssl")),
            (("kafka", "ssl_ca_file"), quoted(self.certificate("authority.pem"))),
            (("kafka", "sasl_mechanism"), quoted("SCRAM-SHA-512")),
            (("kafka", "sasl_username"), quoted("scram-user")),
            (("kafka", "sasl_password"), quoted(from_env("GEOFOLD_TEST_SCRAM_PASSWORD"))),
            (("elasticsearch", "urls"), format!("[{:?}]", self.elasticsearch)),
            (("elasticsearch", "ca_file"), quoted(self.certificate("authority.pem"))),
            (("elasticsearch", "username"), quoted("admin")),
            (("elasticsearch", "password"), quoted(&self.admin_password)),
            (("elasticsearch", "prefix"), quoted(&self.name)),
            (("geoshards", "map"), quoted(map)),
            (("dead_letter", "policy"), quoted("topic")),
            (("dead_letter", "topic"), quoted(self.dead_letter_topic())),
            (("log", "filter"), quoted("debug")),
        ])
    }

    /// The user of the SASL mechanism PLAIN, in place of SCRAM's.
    pub fn as_plain_user(&self, settings: &mut Settings) {
        let password = self.secret_file(&from_env("GEOFOLD_TEST_PLAIN_PASSWORD"));
        settings.insert(("kafka", "sasl_mechanism"), quoted("PLAIN"));
        settings.insert(("kafka", "sasl_username"), quoted("plain-user"));
        settings.insert(("kafka", "sasl_password_file"), quoted(password));
        settings.remove(&("kafka", "sasl_password"));
    }

    /// Tokens of this endpoint, in place of SCRAM's password.
    pub fn with_tokens(&self, settings: &mut Settings, endpoint: &str, secret: &str) {
        let file = self.secret_file(secret);
        settings.insert(("kafka", "sasl_mechanism"), quoted("OAUTHBEARER"));
        settings.insert(("kafka", "oauth_token_url"), quoted(endpoint));
        settings.insert(("kafka", "oauth_client_id"), quoted("geofold"));
        settings.insert(("kafka", "oauth_client_secret_file"), quoted(file));
        settings.remove(&("kafka", "sasl_username"));
        settings.remove(&("kafka", "sasl_password"));
    }

    /// An API key with these privileges and no others, in place of basic authentication.
    pub fn with_api_key(&self, settings: &mut Settings, privileges: Value) {
        let body = json!({ "name": self.name, "role_descriptors": { "geofold": privileges } });
        let answer = self.ask("POST", "/_security/api_key", Some(body));
        let key = answer["encoded"].as_str().unwrap();
        let file = self.secret_file(key);
        settings.remove(&("elasticsearch", "username"));
        settings.remove(&("elasticsearch", "password"));
        settings.insert(("elasticsearch", "api_key_file"), quoted(file));
    }

    /// Takes a text that geofold must never print.
    pub fn secret(&self, secret: &str) {
        self.secrets.borrow_mut().push(secret.to_owned());
    }

    fn secret_file(&self, secret: &str) -> PathBuf {
        self.secret(secret);
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let file = self.dir.path().join(format!("secret-{number}"));
        std::fs::write(&file, secret).unwrap();
        file
    }

    fn config(&self, settings: &Settings) -> PathBuf {
        let mut toml = String::new();
        let mut last = "";
        for ((table, key), value) in settings {
            if *table != last {
                toml.push_str(&format!("\n[{table}]\n"));
                last = table;
            }
            toml.push_str(&format!("{key} = {value}\n"));
        }
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let file = self.dir.path().join(format!("geofold-{number}.toml"));
        std::fs::write(&file, toml).unwrap();
        file
    }

    /// Runs a subcommand; its exit code, and all that it printed.
    pub fn geofold(&self, settings: &Settings, args: &[&str]) -> (i32, String) {
        let (status, text) = self.geofold_with(settings, args, &[]);
        let code = status.code().unwrap_or_else(|| panic!("geofold {args:?} ended by {status}: {text}"));
        (code, text)
    }

    /// Runs a subcommand with more environment variables; how it ended, and all that it printed.
    pub fn geofold_with(
        &self,
        settings: &Settings,
        args: &[&str],
        env: &[(&str, &Path)],
    ) -> (ExitStatus, String) {
        let Output { status, stdout, stderr } = Command::new(GEOFOLD)
            .args(args)
            .arg("--config")
            .arg(self.config(settings))
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        self.printed(&text);
        (status, text)
    }

    /// Runs a subcommand that must succeed.
    pub fn succeeds(&self, settings: &Settings, args: &[&str]) -> String {
        let (code, text) = self.geofold(settings, args);
        assert_eq!(code, 0, "geofold {args:?}: {text}");
        text
    }

    /// Starts a worker.
    pub fn worker(&self, settings: &Settings) -> Worker {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let port = free_port().unwrap();
        Worker::start(
            &self.config(settings),
            self.dir.path().join(format!("worker-{number}.log")),
            port,
            &[],
            &[],
        )
    }

    /// Sends three documents, has a worker write them, looks at all that its admin server shows, and stops it.
    pub fn does_its_work(&self, settings: &Settings) {
        let file = self.dir.path().join("events");
        let line = |n: u32| format!("d{n}\t{{\"location\": [2.{n}, 48.8]}}\n");
        let bad = "bad\t{\"location\": 5}\n".to_owned();
        std::fs::write(&file, (1..=3).map(line).chain([bad]).collect::<String>()).unwrap();
        // One of them is bad on purpose.
        self.succeeds(settings, &["send", "--unchecked", file.to_str().unwrap()]);
        let worker = self.worker(settings);
        worker.wait_until_ready();
        wait_at_most("three documents and a dead letter", Duration::from_secs(60), || {
            let indexed = worker.metric("geofold_records_processed_total", "outcome=\"indexed\"");
            let dead = worker.metric("geofold_records_processed_total", "outcome=\"dead_lettered\"");
            (indexed == 3.0 && dead == 1.0).then_some(())
        });
        for path in ["/", "/status.json", "/group", "/group.json", "/metrics", "/healthz", "/readyz"] {
            let (status, body) = worker.get(path).unwrap();
            assert_eq!(status, 200, "{path}");
            self.printed(&body);
        }
        self.printed(&worker.log_once_stopped());
        self.ask("POST", &format!("/{}-*/_refresh", self.name), None);
        let search = json!({ "query": { "exists": { "field": "location" } } });
        let found = self.ask("POST", &format!("/{}-*/_search", self.name), Some(search));
        assert_eq!(found["hits"]["total"]["value"], 3, "{found}");
    }

    /// Takes a text that geofold printed.
    pub fn printed(&self, text: &str) {
        self.printed.borrow_mut().push_str(text);
    }

    /// A request of the admin to Elasticsearch that must succeed.
    pub fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let mut request = self
            .http
            .request(method.parse().unwrap(), format!("{}{path}", self.elasticsearch))
            .basic_auth("admin", Some(&self.admin_password));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().unwrap();
        let status = response.status();
        let answer: Value = response.json().unwrap_or(Value::Null);
        assert!(status.is_success(), "{method} {path}: {status} {answer}");
        answer
    }

    /// Permissions of Kafka: the arguments of kafka-acls.
    pub fn acls(&self, args: &[&str]) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/dev/stack");
        let output = Command::new(script)
            .args(["--dir", &from_env("GEOFOLD_STACK_DIR"), "acls"])
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// What docs/operations.md says that a worker needs, and what `geofold send` needs.
    pub fn allow(&self, user: &str) {
        let principal = format!("User:{user}");
        let add = |args: &[&str]| {
            self.acls(&[&["--add", "--allow-principal", &principal], args].concat());
        };
        add(&["--operation", "read", "--operation", "write", "--topic", &self.name]);
        self.allow_dead_letters(user);
        add(&["--operation", "read", "--group", &self.name]);
    }

    pub fn allow_dead_letters(&self, user: &str) {
        let (principal, topic) = (format!("User:{user}"), self.dead_letter_topic());
        self.acls(&["--add", "--allow-principal", &principal, "--operation", "write", "--topic", &topic]);
    }

    /// Takes back every permission to write.
    pub fn forbid_writing(&self, user: &str) {
        let principal = format!("User:{user}");
        for topic in [&self.name, &self.dead_letter_topic()] {
            let which =
                ["--force", "--allow-principal", &principal, "--operation", "write", "--topic", topic];
            self.acls(&[&["--remove"][..], &which].concat());
        }
    }

    /// Nothing that was printed holds a secret.
    pub fn assert_no_secret_was_printed(&self) {
        let printed = self.printed.borrow();
        assert!(printed.len() > 1_000, "hardly anything was printed: {printed}");
        for secret in self.secrets.borrow().iter() {
            let at = printed.find(secret.as_str());
            assert_eq!(at, None, "a secret stands in: …{}…", &printed[at.unwrap_or(0).saturating_sub(200)..]);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_no_secret_was_printed();
        }
    }
}
