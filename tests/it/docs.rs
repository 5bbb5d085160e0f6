//! Every shell block of the documents is run, or says why it is not; and every link within the repository leads somewhere.
//!
//! A block is not run if the line before it is `<!-- not run: REASON -->`, and none of a page with the line
//! `<!-- none is run: REASON -->`. The others of a page run as one script, in order,
//! in a folder of their own, on the stand-ins: `geofold` is the binary under test; an embedded broker, a stand-in for
//! Elasticsearch and a source of truth answer where the configuration points, and a worker runs where a page takes one for
//! granted. A command that fails, fails the test. In the README's quick start alone, the lines that start servers and build
//! the binary do nothing: both are there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::Path as UrlPath;
use axum::http::StatusCode;
use geofold::testkit::embedded::broker::EmbeddedBroker;
use geofold::testkit::embedded::elasticsearch::{Standin, StandinOptions};
use geofold::testkit::ports::free_address;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;

use crate::files;

/// For one page.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Where documents are, beside the top folder.
const FOLDERS: [&str; 5] = ["", "docs", "dev", "dashboards", "fuzz"];
/// Where workers' admin server listens by default; another process may have it.
const ADMIN: &str = "127.0.0.1:9464";
/// And collectors' server.
const COLLECTOR: &str = "127.0.0.1:9465";

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
    let reason = |line: &str, mark: &str| Some(line.strip_prefix(mark)?.strip_suffix(" -->")?.to_owned());
    let none_is_run = page.lines().find_map(|line| reason(line, "<!-- none is run: "));
    for (number, line) in page.lines().enumerate() {
        let bare = line.trim();
        match &mut open {
            None if ["```sh", "```bash", "```shell", "```console"].contains(&bare) => {
                let not_run = reason(before, "<!-- not run: ").or_else(|| none_is_run.clone());
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

/// All documents: where they are, and their text.
fn documents() -> BTreeMap<String, String> {
    let mut documents = BTreeMap::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(root().join(folder)).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "md") {
                let name = path.strip_prefix(root()).unwrap().display().to_string();
                documents.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    documents
}

/// All documents with shell blocks.
fn pages() -> Vec<(String, Vec<Block>)> {
    let pages = documents().into_iter().map(|(name, text)| (name, blocks(&text)));
    pages.filter(|(_, blocks)| !blocks.is_empty()).collect()
}

/// The lines of a document that are not in a block of code, with their numbers.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    page.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        (!fence && !in_code).then_some((number + 1, line))
    })
}

/// What a line links to, of all the forms that the documents use: `[text](target)`, `![text](target)`, `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    // What stands between backticks is no link.
    let outside = line.split('`').step_by(2);
    let mut found: Vec<&str> = outside
        .flat_map(|text| text.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .collect();
    found.extend(
        line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target.trim()),
    );
    found
}

/// The anchors of a document's headings, as the usual renderers make them: lower-case, without punctuation, spaces as "-",
/// and a number behind what comes again.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(page) {
        let given = line.split("<a id=\"").skip(1).filter_map(|rest| rest.split_once('"'));
        anchors.extend(given.map(|(anchor, _)| anchor.to_owned()));
        let text = line.trim_start_matches('#');
        if text.len() == line.len() || !text.starts_with(' ') {
            continue;
        }
        let kept = text.trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let mut numbered = anchor.clone();
        for number in 1.. {
            if anchors.insert(numbered) {
                break;
            }
            numbered = format!("{anchor}-{number}");
        }
    }
    anchors
}

/// What is wrong with the links of a document.
fn dead_links(name: &str, page: &str) -> Vec<String> {
    // The published package leaves pictures and some folders out.
    let is_package = root().join("Cargo.toml.orig").exists();
    let mut dead = Vec::new();
    for (number, line) in prose(page) {
        for target in targets(line) {
            if ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme)) {
                continue;
            }
            let (path, anchor) =
                target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
            let there = if path.is_empty() {
                page.to_owned()
            } else {
                let file = root().join(name).parent().unwrap().join(path);
                if !file.exists() {
                    if !is_package || file.extension().is_none_or(|end| end != "png") {
                        dead.push(format!("{name}:{number}: there is no {target}"));
                    }
                    continue;
                }
                fs::read_to_string(&file).unwrap_or_default()
            };
            let Some(anchor) = anchor else { continue };
            if !anchors(&there).contains(anchor) {
                dead.push(format!("{name}:{number}: {target} is no heading there"));
            }
        }
    }
    dead
}

/// Documents that the text names by their path, `docs/runbooks.md#alerts`, and that are not there.
fn dead_names(name: &str, text: &str) -> Vec<String> {
    let mut dead = Vec::new();
    for (start, _) in text.match_indices("docs/") {
        let before = text[..start].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || "/._-".contains(c)) {
            continue;
        }
        let end = text[start..].find(|c: char| !c.is_ascii_alphanumeric() && !"/._-#".contains(c));
        let named = text[start..end.map_or(text.len(), |end| start + end)].trim_end_matches(['.', '-']);
        let (path, anchor) =
            named.split_once('#').map_or((named, None), |(path, anchor)| (path, Some(anchor)));
        if !path.ends_with(".md") {
            continue;
        }
        match fs::read_to_string(root().join(path)) {
            Err(_) => dead.push(format!("{name}: there is no {path}")),
            Ok(page) if anchor.is_some_and(|anchor| !anchors(&page).contains(anchor)) => {
                dead.push(format!("{name}: {named} is no heading there"));
            }
            Ok(_) => {}
        }
    }
    dead
}

#[test]
fn every_link_leads_somewhere() {
    let documents = documents();
    let mut dead: Vec<String> = documents.iter().flat_map(|(name, page)| dead_links(name, page)).collect();
    let texts = ["rs", "toml", "yml", "yaml", "json", "service"];
    let folders = ["src", "config", "dashboards", "packaging", "benches", "examples"];
    let files: Vec<PathBuf> =
        folders.iter().flat_map(|folder| files::below(&root().join(folder), &texts)).collect();
    assert!(documents.len() > 20 && files.len() > 100, "{} and {}", documents.len(), files.len());
    for file in files.into_iter().chain(["docker-compose.yml", "Cargo.toml"].map(|name| root().join(name))) {
        dead.extend(dead_names(&file.display().to_string(), &fs::read_to_string(&file).unwrap()));
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// What is wrong with the fences of a document: what is to be run has to be found as such.
fn unseen_blocks(name: &str, page: &str) -> Vec<String> {
    let (mut unseen, mut open): (Vec<String>, Option<&str>) = (Vec::new(), None);
    for (number, line) in page.lines().enumerate() {
        let (bare, number) = (line.trim(), number + 1);
        match open {
            None if bare.starts_with("~~~") => unseen.push(format!("{name}:{number}: a fence is of ```")),
            None if bare.starts_with("```") => {
                let language = bare.trim_start_matches('`');
                if !["", "sh", "json", "properties", "text", "toml"].contains(&language) {
                    unseen.push(format!("{name}:{number}: {language} is not known: commands are sh"));
                }
                open = Some(language);
            }
            Some(_) if bare == "```" => open = None,
            Some("" | "text") => {
                let is_command =
                    ["$ ", "geofold ", "cargo ", "dev/", "curl ", "docker", "kubectl ", "systemctl "];
                if is_command.iter().any(|start| bare.starts_with(start)) {
                    unseen.push(format!("{name}:{number}: a command in a block that is not sh"));
                }
            }
            _ => {}
        }
    }
    unseen
}

/// Documents anywhere but in `src`, where they are for who reads the code.
fn all_pages(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "src"].contains(&name.as_str()) {
                all_pages(&path, into);
            }
        } else if name.ends_with(".md") {
            into.insert(path.strip_prefix(root()).unwrap().display().to_string());
        }
    }
}

#[test]
fn no_document_and_no_block_of_commands_goes_unseen() {
    let documents = documents();
    let mut pages = BTreeSet::new();
    all_pages(root(), &mut pages);
    let unknown: Vec<&String> = pages.iter().filter(|page| !documents.contains_key(*page)).collect();
    assert!(unknown.is_empty(), "in none of FOLDERS: {unknown:?}");
    let unseen: Vec<String> = documents.iter().flat_map(|(name, page)| unseen_blocks(name, page)).collect();
    assert!(unseen.is_empty(), "{}", unseen.join("\n"));
    let page = "```sh\ngeofold run\n```\n```zsh\nls\n```\n```\n$ ls\na\n```\n~~~sh\n";
    let lines: Vec<String> = unseen_blocks("x", page);
    assert_eq!(lines.iter().map(|line| &line[..4]).collect::<Vec<_>>(), ["x:4:", "x:8:", "x:11"]);
}

/// Whether a page begins with a list of its sections that is not complete and in order.
fn contents_differ(page: &str) -> bool {
    let Some((head, _)) = page.split_once("\n## ") else { return false };
    let listed: Vec<&str> = head.lines().filter(|line| line.starts_with("- [")).flat_map(targets).collect();
    if listed.is_empty() || !listed.iter().all(|target| target.starts_with('#')) {
        return false;
    }
    let headings = prose(page).filter_map(|(_, line)| line.strip_prefix("## "));
    let headings: Vec<String> = headings
        .map(|heading| format!("#{}", anchors(&format!("# {heading}")).pop_first().unwrap()))
        .collect();
    listed != headings
}

#[test]
fn a_list_of_contents_has_every_section() {
    for (name, page) in documents() {
        assert!(!contents_differ(&page), "{name}");
    }
    assert!(!contents_differ("# A\n- [b](#b)\n- [c](#c)\n\n## B\n## C\n"));
    assert!(contents_differ("# A\n- [b](#b)\n\n## B\n## C\n"));
}

#[test]
fn a_dead_link_is_noticed_and_code_is_no_link() {
    let page = "# A b, c: `d_e`!\n## A b\n## A b\n[x](#a-b-c-d_e) [y](#a-b-1) ![z](no.svg)\n`[v](none.md)` [`w`](gone.md)\n\
                ```sh\n[u](none.md)\n# no heading\n```\n[t](#no-heading) [s](https://x/y)\n[r]: README.md#geofold\n[q]: README.md#no\n";
    let dead = dead_links("docs.md", page);
    assert_eq!(
        dead,
        [
            "docs.md:4: there is no no.svg",
            "docs.md:5: there is no gone.md",
            "docs.md:10: #no-heading is no heading there",
            "docs.md:12: README.md#no is no heading there",
        ]
    );
    let text = "see docs/runbooks.md#alerts, (docs/protocol.md), docs/none.md; target/docs/x.md, docs/operations.md#none.";
    let dead = dead_names("x", text);
    assert_eq!(dead, ["x: there is no docs/none.md", "x: docs/operations.md#none is no heading there"]);
}

/// Two thousand places, from -60 to 70 degrees of latitude.
fn places(shift: u32) -> impl Iterator<Item = (f64, f64)> {
    (0..2_000_u32)
        .map(move |n| (f64::from((n * 37 + shift) % 130) - 59.5, f64::from((n * 91 + shift) % 360) - 179.5))
}

/// What a page takes for granted: more configuration, and what runs already.
struct Before {
    configuration: &'static str,
    script: &'static str,
}

/// Whom the source of truth knows.
const PEOPLE: [&str; 3] = ["ada", "bo", "dee"];

/// Three documents that are to be fetched from the source of truth.
const RECORDS: &str = "sed 's/$/\\trefeed/' ids.txt | geofold send\n";

/// A worker that has fetched them, and has nothing left to do.
const WORKER: &str = "sed 's/$/\\trefeed/' ids.txt | geofold send\ngeofold run 2>worker.log &\n\
    until curl -sf http://127.0.0.1:9464/metrics | awk '/^geofold_records_processed_total/ { done += $2 } END { exit done < 3 }'; \
    do sleep 0.2; done\n";

fn before(page: &str) -> Before {
    match page {
        "docs/audit.md" | "docs/balance.md" | "docs/operations.md" | "docs/campaigns.md" => {
            Before { configuration: "", script: WORKER }
        }
        "docs/counts.md" => Before {
            configuration: "[tally]\ngeoshard = true\n[tally.facets]\n\"tags\" = \"tags\"\n",
            script: RECORDS,
        },
        _ => Before { configuration: "", script: "" },
    }
}

/// What the commands find: servers, a configuration, and the files that documents name.
struct Scene {
    _broker: EmbeddedBroker,
    standin: Standin,
    runtime: tokio::runtime::Runtime,
    folder: tempfile::TempDir,
    kafka: String,
    elasticsearch: String,
    source: String,
    admin: String,
    collector: String,
}

/// Has three people, all of them in Berlin; answers until the runtime ends.
async fn source_of_truth() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/documents/{{id}}", listener.local_addr().unwrap());
    let document = |UrlPath(id): UrlPath<String>| async move {
        let person = json!({"id": id, "location": [13.4, 52.5], "tags": ["jazz"]});
        if PEOPLE.contains(&id.as_str()) { Ok(Json(person)) } else { Err(StatusCode::NOT_FOUND) }
    };
    let app = axum::Router::new().route("/documents/{id}", axum::routing::get(document));
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

impl Scene {
    fn new(configuration: &str) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let standin = runtime.block_on(Standin::start(StandinOptions::default())).unwrap();
        let broker = EmbeddedBroker::start().unwrap();
        broker.set_initial_rebalance_delay(Duration::ZERO);
        broker.create_topic("documents", 8).unwrap();
        broker.create_topic("documents-increments", 3).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let [admin, collector] = [(); 2].map(|()| free_address().unwrap().to_string());
        let scene = Self {
            source: runtime.block_on(source_of_truth()),
            collector,
            kafka: broker.address().to_owned(),
            elasticsearch: standin.url().to_owned(),
            admin,
            _broker: broker,
            standin,
            runtime,
            folder,
        };
        scene.furnish(configuration);
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

    fn furnish(&self, configuration: &str) {
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
             request_timeout = \"4s\"\n[batch]\ntimeout = \"6s\"\n[shutdown]\nrevoke_timeout = \"5s\"\n\
             [geoshards]\nmap = \"map-55.json\"\n[admin]\nlisten = {:?}\n[collector]\nlisten = {:?}\n\
             [source]\nkind = \"http\"\nurl = {:?}\nprobe_id = \"ada\"\n{configuration}",
            self.kafka, self.elasticsearch, self.admin, self.collector, self.source
        );
        fs::write(self.at("geofold.toml"), toml).unwrap();
        // Maps after the one in force, each with a geoshard less.
        let map = fs::read_to_string(root().join("config/map-55.json")).unwrap();
        let next = map.replacen("\"version\": 1", "\"version\": 2", 1).replace("\"s54\"", "\"s53\"");
        let after = next.replacen("\"version\": 2", "\"version\": 3", 1).replace("\"s53\"", "\"s52\"");
        for (file, map) in [("new-map.json", &next), ("old.json", &next), ("new.json", &after)] {
            fs::write(self.at(file), map).unwrap();
        }
        fs::write(self.at("ids.txt"), format!("{}\n", PEOPLE.join("\n"))).unwrap();
        fs::write(self.at("found.ndjson"), "{\"id\": \"ada\"}\n").unwrap();
        // People around the globe, as rows and as documents.
        for (file, shift) in [("people.csv", 0), ("people-today.csv", 3)] {
            let rows: String = places(shift).map(|(lat, lon)| format!("{lat},{lon}\n")).collect();
            fs::write(self.at(file), format!("lat,lon\n{rows}")).unwrap();
        }
        let users: String = places(0)
            .map(|(lat, lon)| format!("{{\"home\": {{\"at\": [{lon}, {lat}]}}, \"queries_per_day\": 3}}\n"))
            .collect();
        fs::write(self.at("users.ndjson"), users).unwrap();
        // An index that exists already.
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
        bash.args([
            "-euo",
            "pipefail",
            "-c",
            &script.replace(ADMIN, &self.admin).replace(COLLECTOR, &self.collector),
        ])
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
                None if began.elapsed() > TIMEOUT => break None,
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let group = Pid::from_child(&bash);
        // Most have ended; what a script leaves behind goes with it.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = bash.wait();
        let said = String::from_utf8_lossy(&fs::read(said).unwrap()).into_owned();
        match ended {
            Some(status) if status.success() => Ok(said),
            Some(status) => Err(format!("{status}\n{said}")),
            None => Err(format!("not done after {TIMEOUT:?}\n{said}")),
        }
    }

    fn end(self) {
        self.runtime.block_on(self.standin.stop());
    }
}

/// The blocks of a page that are run, as one script that prints which line it is at.
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
        // A reason that names what runs the block instead.
        let reasons = blocks.iter().filter_map(|block| block.not_run.as_deref());
        for word in reasons.flat_map(|reason| reason.split([' ', ',', ';'])) {
            if ["tests/", "dev/"].iter().any(|folder| word.starts_with(folder)) && !root().join(word).exists()
            {
                complaints.push(format!("{page}: there is no {word}"));
            }
        }
        let script = script(blocks);
        if script.is_empty() || page == "README.md" {
            continue;
        }
        ran += 1;
        let Before { configuration, script: before } = before(page);
        let scene = Scene::new(configuration);
        let made = scene.run("geofold shards create", Some("geofold.toml"));
        assert!(made.is_ok(), "{made:?}");
        if let Err(what) = scene.run(&format!("{before}{script}"), Some("geofold.toml")) {
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
    let scene = Scene::new("");
    scene.program("dev/stack", "#!/bin/sh\n");
    scene.program("bin/cargo", "#!/bin/sh\n");
    // However slow this machine is: what it sleeps for has happened.
    let slept = format!(
        "sleep() {{ until curl -sf http://{ADMIN}/metrics | awk '/^geofold_records_processed_total/ {{ done += $2 }} END {{ exit done < 5 }}'; \
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
        .filter(|line| line.starts_with("geofold_records_processed_total{"))
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
    let none = blocks("<!-- none is run: elsewhere -->\n```sh\ntrue\n```\n");
    assert_eq!(none[0].not_run.as_deref(), Some("elsewhere"));
    let script = script(&found);
    assert!(!script.contains("sleep"), "{script}");
    let scene = Scene::new("");
    assert_eq!(scene.run(&script, None).unwrap_err(), "exit status: 1\n--- line 2\n--- line 13\n");
    assert!(scene.run("geofold shards locat 1 2", None).is_err());
    scene.end();
}
