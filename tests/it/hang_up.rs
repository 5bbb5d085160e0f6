//! Commands that end by themselves take SIGHUP as the end of their terminal: they stop in order, and
//! not at all if it is ignored (`nohup`). What runs on reads its configuration again instead
//! (`tests/it/reload.rs`).

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::wait_for;

const GEOFOLD: &str = env!("CARGO_BIN_EXE_geofold");
const MAP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/map-55.json");

/// Each command that may take long, on an Elasticsearch that takes connections and never answers; standard input stays open.
const COMMANDS: [&[&str]; 5] = [
    &["audit"],
    &["shards", "migrate", "--status"],
    &["dry-run"],
    &["campaign", "create", "--action", "touch", "--all"],
    &["demo", "--docs", "10", "--seconds", "3600"],
];

/// A process that is killed on drop, and what it says.
struct Process {
    child: Child,
    said: PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(mut command: Command, folder: &Path) -> Self {
        let said = folder.join("said");
        let file = fs::File::create(&said).unwrap();
        let child =
            command.stdin(Stdio::piped()).stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        Self { child, said }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Whether this signal is in a mask of its status: `SigCgt` (caught), `SigIgn` (ignored).
    fn has(&self, mask: &str, signal: Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix(mask)?.strip_prefix(':')).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
    }

    fn wait_until_caught(&self, signal: Signal) {
        wait_for("signals to be caught", || self.has("SigCgt", signal).then_some(()));
    }

    /// Waits for its end, while it is signalled again and again.
    fn ends_by(mut self, signal: Signal) -> (Option<i32>, String) {
        let status = wait_for("the end", || {
            if self.child.try_wait().unwrap().is_none() {
                self.signal(signal);
            }
            self.child.try_wait().unwrap()
        });
        (status.code(), fs::read_to_string(&self.said).unwrap())
    }
}

/// A configuration, and the Elasticsearch that it names.
fn config(folder: &Path) -> (PathBuf, TcpListener) {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let path = folder.join("geofold.toml");
    // Port 9 has no listener.
    let text = format!(
        "[kafka]\nbrokers = [\"127.0.0.1:9\"]\ntopic = \"t\"\n[elasticsearch]\nurls = [\"http://{}\"]\n[geoshards]\n\
         map = {MAP:?}\n[database]\nurl = \"sqlite:{}\"\n",
        deaf.local_addr().unwrap(),
        folder.join("db").display()
    );
    fs::write(&path, text).unwrap();
    (path, deaf)
}

/// Starts what follows with hang-ups as they are from the beginning, also if these tests were started with `nohup`.
fn env_without_nohup() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", GEOFOLD]);
    command
}

fn geofold(command: &mut Command, arguments: &[&str], config: &Path) {
    command.args(arguments).env("GEOFOLD_CONFIG", config).env_remove("RUST_LOG");
}

#[test]
fn a_terminal_that_closes_stops_a_command_in_good_order() {
    for arguments in COMMANDS {
        let folder = tempfile::tempdir().unwrap();
        let (config, _deaf) = config(folder.path());
        let mut command = env_without_nohup();
        geofold(&mut command, arguments, &config);
        let process = Process::start(command, folder.path());
        process.wait_until_caught(Signal::HUP);
        let (code, said) = process.ends_by(Signal::HUP);
        assert_eq!(code, Some(1), "{arguments:?}: {said}");
        assert!(said.contains("interrupted"), "{arguments:?}: {said}");
    }
}

#[test]
fn where_hang_ups_are_ignored_they_stay_so() {
    let folder = tempfile::tempdir().unwrap();
    let (config, _deaf) = config(folder.path());
    let mut command = Command::new("nohup");
    geofold(command.arg(GEOFOLD), &["audit"], &config);
    let process = Process::start(command, folder.path());
    process.wait_until_caught(Signal::INT);
    assert!(process.has("SigIgn", Signal::HUP) && !process.has("SigCgt", Signal::HUP));
    let (code, said) = process.ends_by(Signal::INT);
    assert!(code == Some(1) && said.contains("interrupted") || code == Some(130), "{code:?} {said}");
}
