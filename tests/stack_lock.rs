//! The servers of `dev/stack` are used by several test programs at the same time, and a few tests stop one. Such a test has the servers
//! alone: all others hold this lock together, and it holds it by itself.

use std::fs::File;
use std::path::Path;

/// Waits until no test of any program has the servers at `dir` alone. Others share them until the file is dropped.
pub fn share(dir: &Path) -> File {
    let file = open(dir);
    file.lock_shared().unwrap();
    file
}

/// Waits until no test of any program uses the servers at `dir`. None does until the file is dropped.
#[allow(dead_code, reason = "not every program stops servers")]
pub fn have_alone(dir: &Path) -> File {
    let file = open(dir);
    file.lock().unwrap();
    file
}

fn open(dir: &Path) -> File {
    File::create(dir.join("tests.lock")).unwrap()
}
