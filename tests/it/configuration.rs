//! docs/configuration.md is generated from config/geofold.toml, which `src/config/tests.rs` holds to the types and their defaults.
//!
//! `GEOFOLD_UPDATE=1 cargo test --test it configuration` updates it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use geofold::config::follow::{FOLLOWED_BY_ALL, FOLLOWED_BY_WORKERS};

const HEAD: &str = "# Configuration

Every key with its default, generated from `config/geofold.toml` (`GEOFOLD_UPDATE=1 cargo test --test it configuration`). Keys marked
*followed* change without a restart: in workers, or in all running processes (workers, collectors, `campaign run` and `campaign watch`).
";

const BY_WORKERS: &str = " · [followed](#reload) by workers";
const BY_ALL: &str = " · [followed](#reload) by all";

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Prose as paragraphs, indented lines as they are.
fn prose(comment: &[&str]) -> String {
    let (mut text, mut verbatim) = (String::new(), false);
    for line in comment {
        let indented = line.strip_prefix("  ");
        if indented.is_some() != verbatim {
            text.push_str(if verbatim { "```\n" } else { "\n```text\n" });
            verbatim = !verbatim;
        }
        let line = indented.unwrap_or(line);
        // What stands between angle brackets is a placeholder, not HTML.
        let line = if verbatim { line.to_owned() } else { line.replace('<', "\\<") };
        writeln!(text, "{}", line.trim_end()).unwrap();
    }
    if verbatim {
        text.push_str("```\n");
    }
    text
}

/// `name = value`, or the same commented out.
fn key(line: &str) -> Option<(&str, &str, bool)> {
    let bare = line.strip_prefix("# ").unwrap_or(line);
    let (name, value) = bare.split_once(" = ")?;
    let is_key = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    is_key.then_some((name, value, bare.len() == line.len()))
}

/// `"some.name" = value`, and not a comment that begins with a quotation mark.
fn is_example(line: &str) -> bool {
    let name = line.strip_prefix('"').and_then(|rest| rest.split_once("\" = "));
    name.is_some_and(|(name, _)| !name.contains([' ', '"']))
}

fn reference(file: &str) -> String {
    let mut text = HEAD.to_owned();
    let (mut section, mut comment): (&str, Vec<&str>) = ("", Vec::new());
    let mut in_head = true;
    for line in file.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if in_head {
                // The first comment is about the whole file, and set as a table.
                write!(text, "\n```text\n{}\n```\n", comment.join("\n")).unwrap();
                comment.clear();
                in_head = false;
            }
            section = name;
            write!(text, "\n## [{section}]\n").unwrap();
            if !comment.is_empty() {
                write!(text, "\n{}", prose(&comment)).unwrap();
                comment.clear();
            }
        } else if let Some((name, value, has_default)) = key(line) {
            let what = if has_default { "" } else { "For example " };
            let path = format!("{section}.{name}");
            let followed = match path.as_str() {
                key if FOLLOWED_BY_WORKERS.contains(&key) => BY_WORKERS,
                key if FOLLOWED_BY_ALL.contains(&key) => BY_ALL,
                _ => "",
            };
            write!(text, "\n### {path}\n\n{what}`{value}`{followed}\n\n{}", prose(&comment)).unwrap();
            comment.clear();
        } else if let Some(example) = line.strip_prefix("# ").filter(|line| is_example(line)) {
            write!(text, "\nFor example `{example}`\n").unwrap();
        } else if let Some(said) = line.strip_prefix('#') {
            comment.push(said.strip_prefix(' ').unwrap_or(said));
        } else {
            assert!(line.is_empty(), "neither comment nor key: {line}");
            // A comment that nothing follows at once is about nothing, but for the first.
            assert!(in_head || comment.is_empty(), "a comment of nothing: {comment:?}");
        }
    }
    text
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
        let sections = page.split("\n### ").skip(1).filter(|section| section.contains(mark));
        let mut marked: Vec<&str> = sections.map(|section| section.lines().next().unwrap()).collect();
        marked.sort_unstable();
        assert_eq!(marked, keys, "{mark}");
    }
}

#[test]
fn keys_comments_and_lists_become_sections_prose_and_blocks() {
    let text = reference(
        "# All.\n#\n# Times   \"5s\".\n\n[a]\n# What it is, as in\n# \"a\", or so; default 5.\n#   5  five\nkey = 5\n\n# Or not; no default.\n# other = \"x\"\n\
         \n# Free.\n[a.more]\n# \"some.name\" = 1\n",
    );
    let (_, rest) = text.split_once("## [a]\n").unwrap();
    assert_eq!(
        rest,
        "\n### a.key\n\n`5`\n\nWhat it is, as in\n\"a\", or so; default 5.\n\n```text\n5  five\n```\n\
         \n### a.other\n\nFor example `\"x\"`\n\nOr not; no default.\n\
         \n## [a.more]\n\nFree.\n\nFor example `\"some.name\" = 1`\n"
    );
}
