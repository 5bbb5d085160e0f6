//! SIGHUP: a worker reads its configuration again, follows what it can, names what it can not, and survives what is wrong.
//! No server is needed: a worker that waits for its brokers listens as well.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(60);

struct Worker {
    child: Child,
    log: std::path::PathBuf,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    fn start(folder: &Path, config: &Path, env: &[(&str, &str)]) -> Self {
        let log = folder.join("log");
        let child = Command::new(env!("CARGO_BIN_EXE_geofold"))
            .args(["run", "--config"])
            .arg(config)
            .env_remove("RUST_LOG")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let worker = Self { child, log };
        worker.wait_for("configuration:");
        worker
    }

    fn hang_up(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
    }

    fn wait_for(&self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let log = fs::read_to_string(&self.log).unwrap();
            if log.contains(text) {
                return log;
            }
            assert!(Instant::now() < until, "never said: {text}\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn write(config: &Path, filter: &str, more: &str) {
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");
    // Port 9 discards; nobody listens there.
    let text = format!(
        "[kafka]\nbrokers = [\"127.0.0.1:9\"]\ntopic = \"t\"\n[elasticsearch]\nurls = [\"http://127.0.0.1:9\"]\n\
         [geoshards]\nmap = {map:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\nfilter = \"{filter}\"\n{more}"
    );
    fs::write(config, text).unwrap();
}

#[test]
fn the_filter_is_followed_other_keys_are_named_and_a_wrong_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("geofold.toml");
    write(&config, "info", "");
    let worker = Worker::start(folder.path(), &config, &[]);

    write(&config, "info,geofold::cli=debug", "[batch]\nlinger = \"300ms\"\n");
    worker.hang_up();
    let log = worker.wait_for("batch.linger");
    assert!(log.contains("restart this worker"), "{log}");
    assert!(log.contains("geofold::cli=debug"), "{log}");

    write(&config, "info", "[batch]\nlingre = \"1s\"\n");
    worker.hang_up();
    let log = worker.wait_for("the one in force stays");
    assert!(log.contains("lingre"), "{log}");

    write(&config, "warn", "[batch]\nmax_documents = 7\n");
    worker.hang_up();
    let log = worker.wait_for("batch.max_documents");
    assert_eq!(
        log.matches("the configuration was read again").count(),
        1,
        "the filter is \"warn\" now: {log}"
    );
}

#[test]
fn the_environment_still_wins() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("geofold.toml");
    write(&config, "error", "");
    let worker = Worker::start(folder.path(), &config, &[("RUST_LOG", "info")]);
    write(&config, "warn", "");
    worker.hang_up();
    worker.wait_for("RUST_LOG is set, and wins");
}
