//! docs/tutorial.md and the README's quick start, command by command, as they stand there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use geofold::testkit::ports::free_address;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::{Stack, ask_for};

/// The change of the map waits for two batch deadlines, twice.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Where a page's commands run: a folder with what they take for granted, on servers that are up already and stay up.
struct Scene {
    stack: Stack,
    folder: tempfile::TempDir,
    /// For names that no other run has used.
    mark: String,
    admin: String,
    router: String,
}

impl Scene {
    fn new() -> Self {
        let [admin, router] = [(); 2].map(|()| free_address().unwrap().to_string());
        let scene = Self {
            stack: Stack::alone(),
            folder: tempfile::tempdir().unwrap(),
            mark: format!("{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis()),
            admin,
            router,
        };
        scene.program(
            "dev/stack",
            &format!(
                "case $1 in up | down) ;; *) exec {} --dir \"$GEOFOLD_STACK_DIR\" \"$@\" ;; esac\n",
                concat!(env!("CARGO_MANIFEST_DIR"), "/dev/stack")
            ),
        );
        scene.program("bin/cargo", "");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_geofold"), scene.at("bin/geofold")).unwrap();
        std::os::unix::fs::symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/docs"), scene.at("docs")).unwrap();
        scene
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn program(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(self.at(path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs a script, and gives what it printed.
    fn run(self, script: &str, env: &[(&str, String)]) -> String {
        let said = self.at("said");
        let output = fs::File::create(&said).unwrap();
        let mut bash = Command::new("bash")
            .args(["-euo", "pipefail", "-c"])
            .arg(script.replace("127.0.0.1:9464", &self.admin).replace("127.0.0.1:9466", &self.router))
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap()))
            .env("GEOFOLD_ADMIN__LISTEN", &self.admin)
            .env("GEOFOLD_ROUTE__LISTEN", &self.router)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0)
            .spawn()
            .unwrap();
        let ended = ask_for(TIMEOUT, || bash.try_wait().unwrap());
        // Its workers go with it, if it failed.
        let _ = kill_process_group(Pid::from_child(&bash), Signal::KILL);
        let _ = bash.wait();
        let said = String::from_utf8_lossy(&fs::read(said).unwrap()).into_owned();
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}\n{said}");
        drop(self.stack);
        said
    }
}

/// The shell blocks of a page, as one script that prints where it is; without those that have this in them.
fn script(page: &str, without: Option<&str>) -> String {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("\n```"));
    let blocks = blocks.filter(|(block, _)| without.is_none_or(|what| !block.contains(what)));
    blocks.enumerate().map(|(number, (block, _))| format!("echo '--- block {number}'\n{block}\n")).collect()
}

#[test]
fn from_one_index_to_geoshards_as_the_tutorial_says() {
    let scene = Scene::new();
    let mark = scene.mark.clone();
    let script = script("docs/tutorial.md", None)
        .replace("people.py", "PROGRAM")
        .replace("people", &format!("people{mark}"))
        .replace("PROGRAM", "people.py")
        .replace("places", &format!("places{mark}"));
    assert!(script.matches("--- block").count() > 10, "{script}");
    let said = scene.run(&script, &[]);
    assert!(said.contains("{\"count\":4999}") && said.contains("the same"), "{said}");
    for index in ["people", "places"] {
        assert!(said.contains(&format!("{index}{mark} answered")), "{said}");
    }
}

#[test]
fn the_quick_start_as_the_readme_says() {
    let scene = Scene::new();
    fs::create_dir(scene.at("config")).unwrap();
    for file in ["geofold.toml", "map-55.json", "example.ndjson"] {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(file);
        fs::copy(sample, scene.at("config").join(file)).unwrap();
    }
    let name = format!("documents{}", scene.mark);
    let script = script("README.md", Some("-- demo"))
        .replace("create-topic documents ", &format!("create-topic {name} "));
    assert!(script.matches("--- block").count() > 5 && script.contains(&name), "{script}");
    // However slow this machine is: what it sleeps for has happened.
    let slept = "sleep() { until curl -sf http://127.0.0.1:9464/metrics | \
                 awk '/^geofold_records_processed_total/ { done += $2 } END { exit done < 5 }'; do command sleep 0.2; done; }\n";
    let env = ["KAFKA__TOPIC", "KAFKA__GROUP_ID", "ELASTICSEARCH__PREFIX"];
    let env = env.map(|key| (format!("GEOFOLD_{key}"), name.clone()));
    let env: Vec<(&str, String)> = env.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    let said = scene.run(&format!("{slept}{script}"), &env);
    for id in ["ada", "bo", "dee"] {
        assert!(said.contains(&format!("\"{id}\"")), "{id}: {said}");
    }
    assert!(!said.contains("\"cy\""), "{said}");
}
