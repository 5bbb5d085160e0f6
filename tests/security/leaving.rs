//! What happens while a process exits.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::World;

/// OpenSSL, left to itself, cleans up at exit under the hands of threads that are still ending. Here threads and exit are slowed
/// down so that they always meet (leave_slowly.c).
#[test]
fn a_thread_that_spoke_tls_may_end_while_the_process_exits() {
    let world = World::new();
    let dir = TempDir::new().unwrap();
    let slow = dir.path().join("leave_slowly.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/security/leave_slowly.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wall", "-o"]).arg(&slow).arg(&source).args(["-ldl", "-lpthread"]);
    assert!(compiler.status().unwrap().success(), "{compiler:?}");

    let settings = world.settings();
    for _ in 0..3 {
        let (status, text) = world.geofold_with(&settings, &["check"], &[("LD_PRELOAD", &slow)]);
        assert!(text.contains("grant this user Describe"), "{text}");
        assert_eq!(status.code(), Some(1), "{status}: {text}");
    }
}
