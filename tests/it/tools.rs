//! Programs of others that some tests look with, where they are installed.

use std::process::Command;

/// Whether this program is here. `dev/soak` sets GEOFOLD_TOOLS=all where it has seen to it that all of them are: then it has to be.
pub fn has(tool: &str) -> bool {
    let ask = if tool == "helm" { "version" } else { "--version" };
    let there = Command::new(tool).arg(ask).output().is_ok_and(|output| output.status.success());
    assert!(
        there || std::env::var("GEOFOLD_TOOLS").as_deref() != Ok("all"),
        "GEOFOLD_TOOLS=all, and there is no {tool}"
    );
    if !there {
        eprintln!("skipped: no {tool} here");
    }
    there
}
