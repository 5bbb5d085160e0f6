//! docs/configuration.md is generated from config/geofold.toml, which `src/support/config/tests.rs` holds to the types and their defaults.
//!
//! `GEOFOLD_UPDATE=1 cargo test --test it configuration` updates it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use geofold::support::config::follow::{FOLLOWED_BY_ALL, FOLLOWED_BY_WORKERS};

const HEAD: &str = "# Configuration

Every key with its default, or with an example. [config/geofold.toml](../config/geofold.toml) describes each; this list is generated from it
(`GEOFOLD_UPDATE=1 cargo test --test it configuration`). Workers [reload](operations.md#reload) keys marked *reloads*; workers, collectors,
`campaign run` and `campaign watch` reload those marked *reloads everywhere*. The environment variable of `kafka.brokers` is `GEOFOLD_KAFKA__BROKERS`,
and so on.
";

const BY_WORKERS: &str = " *reloads*";
const BY_ALL: &str = " *reloads everywhere*";

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// `name = value`, or the same commented out.
fn key(line: &str) -> Option<(&str, &str, bool)> {
    let bare = line.strip_prefix("# ").unwrap_or(line);
    let (name, value) = bare.split_once(" = ")?;
    let is_key = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    is_key.then_some((name, value, bare.len() == line.len()))
}

fn reference(file: &str) -> String {
    let (mut text, mut section) = (HEAD.to_owned(), "");
    for line in file.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
            write!(text, "\n## [{section}]\n\n").unwrap();
        } else if let Some((name, value, has_default)) = key(line) {
            let path = format!("{section}.{name}");
            let what = if has_default { ":" } else { ", e.g." };
            let followed = match path.as_str() {
                key if FOLLOWED_BY_WORKERS.contains(&key) => BY_WORKERS,
                key if FOLLOWED_BY_ALL.contains(&key) => BY_ALL,
                _ => "",
            };
            writeln!(text, "- `{path}`{what} `{value}`{followed}").unwrap();
        } else if let Some(example) = free(line) {
            writeln!(text, "- any name, e.g. `{example}`").unwrap();
        } else {
            assert!(line.is_empty() || line.starts_with('#'), "neither comment nor key: {line}");
        }
    }
    text
}

/// `# "some.name" = value`, an example of a key that is not geofold's own.
fn free(line: &str) -> Option<&str> {
    let example = line.strip_prefix("# ").filter(|line| line.starts_with('"'))?;
    let (name, _) = example.strip_prefix('"')?.split_once("\" = ")?;
    (!name.contains([' ', '"'])).then_some(example)
}

#[test]
fn the_reference_of_the_configuration_is_what_the_file_says() {
    let text = reference(&std::fs::read_to_string(at("config/geofold.toml")).unwrap());
    let page = at("docs/configuration.md");
    if std::env::var_os("GEOFOLD_UPDATE").is_some() {
        std::fs::write(&page, &text).unwrap();
    }
    let there = std::fs::read_to_string(&page).unwrap();
    assert!(
        there == text,
        "docs/configuration.md is not current: GEOFOLD_UPDATE=1 cargo test --test it configuration"
    );
}

#[test]
fn each_key_that_is_followed_says_by_whom_and_no_other_does() {
    let page = std::fs::read_to_string(at("docs/configuration.md")).unwrap();
    for (mark, keys) in [(BY_WORKERS, FOLLOWED_BY_WORKERS), (BY_ALL, FOLLOWED_BY_ALL)] {
        let lines = page.lines().filter_map(|line| line.strip_suffix(mark)?.strip_prefix("- `"));
        let mut marked: Vec<&str> =
            lines.filter_map(|line| line.split_once('`').map(|(key, _)| key)).collect();
        marked.sort_unstable();
        assert_eq!(marked, keys, "{mark}");
    }
}

#[test]
fn keys_become_lines_and_comments_do_not() {
    let text = reference(
        "# All.\n#\n# Times   \"5s\".\n\n[a]\n# What it is, as in\n# \"a\", or so.\n#   5  five\nkey = 5\n\n# Or not.\n# other = \"x\"\n\
         \n# Free.\n[a.more]\n# \"some.name\" = 1\n",
    );
    let (_, rest) = text.split_once("## [a]\n").unwrap();
    assert_eq!(
        rest,
        "\n- `a.key`: `5`\n- `a.other`, e.g. `\"x\"`\n\n## [a.more]\n\n- any name, e.g. `\"some.name\" = 1`\n"
    );
}
