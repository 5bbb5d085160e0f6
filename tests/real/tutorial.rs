//! docs/tutorial.md, command by command, as it stands there.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::{Stack, wait_for_or};

/// The change of the map waits for two batch deadlines, twice.
const PATIENCE: Duration = Duration::from_secs(900);

/// The shell blocks of a page, as one script that tells where it is.
fn script(page: &str) -> String {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("\n```"));
    blocks.enumerate().map(|(number, (block, _))| format!("echo '--- block {number}'\n{block}\n")).collect()
}

#[test]
fn from_one_index_to_geoshards_as_the_tutorial_says() {
    let stack = Stack::get();
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    fs::create_dir(at("bin")).unwrap();
    fs::create_dir(at("dev")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_geofold"), at("bin/geofold")).unwrap();
    // The servers are up already, and stay up.
    let shim = format!(
        "#!/bin/sh\ncase $1 in up | down) ;; *) exec {} --dir \"$GEOFOLD_STACK_DIR\" \"$@\" ;; esac\n",
        concat!(env!("CARGO_MANIFEST_DIR"), "/dev/stack")
    );
    fs::write(at("dev/stack"), shim).unwrap();
    fs::set_permissions(at("dev/stack"), fs::Permissions::from_mode(0o755)).unwrap();

    // Names that no other run has used.
    let mark = format!("{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tutorial.md");
    let script = script(&fs::read_to_string(page).unwrap())
        .replace("people.py", "PROGRAM")
        .replace("people", &format!("people{mark}"))
        .replace("PROGRAM", "people.py")
        .replace("places", &format!("places{mark}"))
        .replace("127.0.0.1:9464", &format!("127.0.0.1:{port}"));
    assert!(script.matches("--- block").count() > 10, "{script}");

    let said = at("said");
    let output = fs::File::create(&said).unwrap();
    let mut bash = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(folder.path())
        .env("PATH", format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap()))
        .env("GEOFOLD_ADMIN__LISTEN", format!("127.0.0.1:{port}"))
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .process_group(0)
        .spawn()
        .unwrap();
    let ended = wait_for_or(PATIENCE, || bash.try_wait().unwrap());
    // Its workers go with it, if it failed.
    let _ = kill_process_group(Pid::from_raw(bash.id().try_into().unwrap()).unwrap(), Signal::KILL);
    let _ = bash.wait();
    let said = String::from_utf8_lossy(&fs::read(said).unwrap()).into_owned();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}\n{said}");
    assert!(said.contains("{\"count\":4999}"), "{said}");
    drop(stack);
}
