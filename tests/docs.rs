//! Every shell block of the documents is run, or says why it is not.
//!
//! A block is not run if the line before it is `<!-- not run: REASON -->`. The others of a page run as one script, in order,
//! in a folder of their own, on the stand-ins: `geofold` is the binary under test; an embedded broker and a stand-in for
//! Elasticsearch answer where the configuration points. A command that fails, fails the test. In the README's quick start
//! alone, the lines that start servers and build the binary do nothing: both are there.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use geofold::embedded::broker::EmbeddedBroker;
use geofold::embedded::elasticsearch::{Standin, StandinOptions};
use rustix::process::{Pid, Signal, kill_process_group};

/// For one page.
const PATIENCE: Duration = Duration::from_secs(300);
/// Where documents are, beside the top folder.
const FOLDERS: [&str; 6] = ["", "docs", "dev", "dashboards", "packaging", "fuzz"];
/// Where workers' admin server listens by default; another process may have it.
const ADMIN: &str = "127.0.0.1:9464";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A shell block: where it begins, what it says, and why it is not run.
#[derive(Debug, PartialEq)]
struct Block {
    line: usize,
    script: String,
    not_run: Option<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut open, mut before): (Vec<Block>, Option<Block>, &str) = (Vec::new(), None, "");
    for (number, line) in page.lines().enumerate() {
        let bare = line.trim();
        match &mut open {
            None if ["```sh", "```bash", "```shell", "```console"].contains(&bare) => {
                let reason = before.strip_prefix("<!-- not run: ").and_then(|rest| rest.strip_suffix(" -->"));
                let not_run = reason.map(str::to_owned);
                open = Some(Block { line: number + 1, script: String::new(), not_run });
            }
            Some(_) if bare == "```" => blocks.extend(open.take()),
            Some(block) => writeln!(block.script, "{line}").unwrap(),
            None => {}
        }
        if !bare.is_empty() {
            before = bare;
        }
    }
    blocks
}

/// All documents with shell blocks.
fn pages() -> Vec<(String, Vec<Block>)> {
    let mut pages = Vec::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(root().join(folder)).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "md") {
                let name = path.strip_prefix(root()).unwrap().display().to_string();
                pages.push((name, blocks(&fs::read_to_string(&path).unwrap())));
            }
        }
    }
    pages.retain(|(_, blocks)| !blocks.is_empty());
    pages.sort_by(|a, b| a.0.cmp(&b.0));
    pages
}

/// Two thousand places, from -60 to 70 degrees of latitude.
fn places(shift: u32) -> impl Iterator<Item = (f64, f64)> {
    (0..2_000_u32)
        .map(move |n| (f64::from((n * 37 + shift) % 130) - 59.5, f64::from((n * 91 + shift) % 360) - 179.5))
}

/// What the commands find: servers, a configuration, and the files that documents name.
struct Scene {
    _broker: EmbeddedBroker,
    standin: Standin,
    runtime: tokio::runtime::Runtime,
    folder: tempfile::TempDir,
    kafka: String,
    elasticsearch: String,
    admin: String,
}

impl Scene {
    fn new() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let standin = runtime.block_on(Standin::start(StandinOptions::default())).unwrap();
        let broker = EmbeddedBroker::start().unwrap();
        broker.set_initial_rebalance_delay(Duration::ZERO);
        broker.create_topic("documents", 8).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let scene = Self {
            kafka: broker.address().to_owned(),
            elasticsearch: standin.url().to_owned(),
            admin: format!("127.0.0.1:{port}"),
            _broker: broker,
            standin,
            runtime,
            folder,
        };
        scene.furnish();
        scene
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn program(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
        fs::set_permissions(self.at(path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn furnish(&self) {
        for tool in ["dev/stack", "bin/cargo"] {
            self.program(tool, "#!/bin/sh\necho \"$0 is not run here: the block needs a mark\"\nexit 1\n");
        }
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_geofold"), self.at("bin/geofold")).unwrap();
        fs::create_dir(self.at("config")).unwrap();
        for file in ["geofold.toml", "map-55.json", "example.ndjson"] {
            fs::copy(root().join("config").join(file), self.at("config").join(file)).unwrap();
        }
        fs::copy(root().join("config/map-55.json"), self.at("map-55.json")).unwrap();
        let toml = format!(
            "[kafka]\nbrokers = [{:?}]\ntopic = \"documents\"\n[elasticsearch]\nurls = [{:?}]\n\
             [geoshards]\nmap = \"map-55.json\"\n[admin]\nlisten = {:?}\n",
            self.kafka, self.elasticsearch, self.admin
        );
        fs::write(self.at("geofold.toml"), toml).unwrap();
        // People around the globe, as rows and as documents.
        for (file, shift) in [("people.csv", 0), ("people-today.csv", 3)] {
            let rows: String = places(shift).map(|(lat, lon)| format!("{lat},{lon}\n")).collect();
            fs::write(self.at(file), format!("lat,lon\n{rows}")).unwrap();
        }
        let users: String = places(0)
            .map(|(lat, lon)| format!("{{\"home\": {{\"at\": [{lon}, {lat}]}}, \"queries_per_day\": 3}}\n"))
            .collect();
        fs::write(self.at("users.ndjson"), users).unwrap();
        // An index that somebody has already.
        let http = reqwest::blocking::Client::new();
        let put = |path: &str, body: String| {
            let request =
                http.put(format!("{}/{path}", self.elasticsearch)).header("content-type", "application/json");
            let status = request.body(body).send().unwrap().status();
            assert!(status.is_success(), "{path}: {status}");
        };
        put("people-old", r#"{"mappings": {"properties": {"location": {"type": "geo_point"}}}}"#.to_owned());
        let lines: String = places(0)
            .take(500)
            .enumerate()
            .map(|(n, (lat, lon))| {
                format!(
                    "{{\"index\": {{\"_index\": \"people-old\", \"_id\": \"{n}\"}}}}\n\
                     {{\"location\": [{lon}, {lat}], \"stats\": {{\"queries\": {}}}}}\n",
                    n % 5
                )
            })
            .collect();
        let sent = http.post(format!("{}/_bulk?refresh=true", self.elasticsearch));
        let sent = sent.header("content-type", "application/x-ndjson").body(lines).send().unwrap();
        assert!(sent.status().is_success());
    }

    /// Runs a script; everything it has printed, or what is wrong. Nothing that it started is left.
    fn run(&self, script: &str, configuration: Option<&str>) -> Result<String, String> {
        let said = self.at("said");
        let output = fs::File::create(&said).unwrap();
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &script.replace(ADMIN, &self.admin)])
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap()))
            .env("GEOFOLD_TEST_KAFKA", &self.kafka)
            .env("GEOFOLD_TEST_ELASTICSEARCH", &self.elasticsearch)
            .env("GEOFOLD_ADMIN__LISTEN", &self.admin)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0);
        if let Some(file) = configuration {
            bash.env("GEOFOLD_CONFIG", file);
        }
        let mut bash = bash.spawn().unwrap();
        let began = Instant::now();
        let ended = loop {
            match bash.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if began.elapsed() > PATIENCE => break None,
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let group = Pid::from_raw(bash.id().try_into().unwrap()).unwrap();
        // Most have ended; what a script leaves behind goes with it.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = bash.wait();
        let said = String::from_utf8_lossy(&fs::read(said).unwrap()).into_owned();
        match ended {
            Some(status) if status.success() => Ok(said),
            Some(status) => Err(format!("{status}\n{said}")),
            None => Err(format!("not done after {PATIENCE:?}\n{said}")),
        }
    }

    fn end(self) {
        self.runtime.block_on(self.standin.stop());
    }
}

/// The blocks of a page that are run, as one script that tells which line it is at.
fn script(blocks: &[Block]) -> String {
    let run = blocks.iter().filter(|block| block.not_run.is_none());
    run.map(|block| format!("echo '--- line {}'\n{}", block.line, block.script)).collect()
}

#[test]
fn every_shell_block_runs_or_says_why_not() {
    let pages = pages();
    assert!(pages.len() > 5, "{}", pages.len());
    let mut complaints = Vec::new();
    let mut ran = 0;
    for (page, blocks) in &pages {
        for block in blocks.iter().filter(|block| block.not_run.as_deref().is_some_and(|why| why.len() < 8)) {
            complaints.push(format!("{page}:{} is not run, and does not say why", block.line));
        }
        let script = script(blocks);
        if script.is_empty() || page == "README.md" {
            continue;
        }
        ran += 1;
        let scene = Scene::new();
        let made = scene.run("geofold shards create", Some("geofold.toml"));
        assert!(made.is_ok(), "{made:?}");
        if let Err(what) = scene.run(&script, Some("geofold.toml")) {
            complaints.push(format!("{page}: {what}"));
        }
        scene.end();
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(ran >= 3, "{ran} pages ran");
}

#[test]
fn the_quick_start_of_the_readme_runs_and_finds_who_is_in_berlin() {
    let (_, blocks) = pages().into_iter().find(|(page, _)| page == "README.md").unwrap();
    let scene = Scene::new();
    scene.program("dev/stack", "#!/bin/sh\n");
    scene.program("bin/cargo", "#!/bin/sh\n");
    // However slow this machine is: what it sleeps for has happened.
    let slept = format!(
        "sleep() {{ until curl -sf http://{ADMIN}/metrics | awk '/^geofold_records_done_total/ {{ done += $2 }} END {{ exit done < 5 }}'; \
         do command sleep 0.2; done; }}\n"
    );
    let said =
        scene.run(&(slept + &script(&blocks)), None).unwrap_or_else(|what| panic!("README.md: {what}"));
    scene.end();
    for id in ["ada", "bo", "dee"] {
        assert!(said.contains(&format!("\"{id}\"")), "{id}: {said}");
    }
    assert!(!said.contains("\"cy\""), "{said}");
    let done: f64 = said
        .lines()
        .filter(|line| line.starts_with("geofold_records_done_total{"))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum();
    assert!((done - 5.0).abs() < 0.1, "{done} records done: {said}");
}

#[test]
fn blocks_are_found_with_their_reasons_and_a_failing_one_is_noticed() {
    let page = "a\n```sh\ntrue\n```\n<!-- not run: takes an hour -->\n\n  ```sh\n  sleep 3600\n  ```\n```toml\na = 1\n```\n```sh\nfalse | cat\n```\n";
    let found = blocks(page);
    let seen: Vec<_> = found.iter().map(|block| (block.line, block.not_run.as_deref())).collect();
    assert_eq!(seen, [(2, None), (7, Some("takes an hour")), (13, None)]);
    let script = script(&found);
    assert!(!script.contains("sleep"), "{script}");
    let scene = Scene::new();
    assert_eq!(scene.run(&script, None).unwrap_err(), "exit status: 1\n--- line 2\n--- line 13\n");
    assert!(scene.run("geofold shards locat 1 2", None).is_err());
    scene.end();
}
