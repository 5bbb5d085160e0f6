//! What the binary tells of itself: version, allocator, completions and manual pages.

use std::process::Command;

use super::{geofold, stdout};

#[test]
fn the_version_tells_what_a_bug_report_needs() {
    let said = stdout(&geofold(&["--version"]));
    let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
    assert!(said.starts_with(concat!("geofold ", env!("CARGO_PKG_VERSION"), " (")), "{said}");
    // Every compression codec can be read.
    let with_codecs = format!("librdkafka {librdkafka} with gzip, snappy, lz4, zstd)");
    assert!(said.trim_end().ends_with(&with_codecs), "{said}");
}

/// librdkafka is C: its `malloc` is jemalloc's only if that has the plain name.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn the_binary_and_its_c_libraries_allocate_with_jemalloc() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_geofold"));
    let output = command.arg("--version").env("MALLOC_CONF", "stats_print:true").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("jemalloc statistics"), "{told}");
}

#[test]
fn every_shell_gets_completions_of_every_subcommand() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&geofold(&["completions", shell]));
        for word in ["migrate", "collect", "audit", "health"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("geofold.bash");
    std::fs::write(&script, geofold(&["completions", "bash"]).stdout).unwrap();
    let asked = "source \"$1\"; COMP_WORDS=(geofold shards mig); COMP_CWORD=2; _geofold geofold mig shards; echo \"${COMPREPLY[*]}\"";
    let output = Command::new("bash").args(["-c", asked, "bash"]).arg(&script).output().unwrap();
    assert_eq!(stdout(&output).trim(), "migrate", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let page = stdout(&geofold(&["man"]));
    assert!(page.contains(".TH") && page.contains("geosharded"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    stdout(&geofold(&["man", "--out", folder.path().to_str().unwrap()]));
    for page in ["geofold.1", "geofold-run.1", "geofold-shards-migrate.1", "geofold-health.1"] {
        let text = std::fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS") && !text.contains("sabotage"), "{page}");
    }
    let refused = geofold(&["man", "--out", "/no/such/folder"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/no/such/folder"));
}
