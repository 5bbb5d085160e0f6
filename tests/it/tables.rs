//! The tables at the top of modules that say which file holds what: a table has every file of its module, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::files;

/// The files in the table of a module's documentation; `None` without a table.
fn named(text: &str) -> Option<BTreeSet<&str>> {
    let documentation = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let mut rows = documentation.skip_while(|line| !line.starts_with("| file |")).peekable();
    rows.peek()?;
    let cells = rows.skip(2).map_while(|row| row.strip_prefix('|')?.split('|').next());
    // Names are in backticks, so every other piece is one.
    Some(cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect())
}

/// Where the files of a module are.
fn folder_of(module: &Path) -> PathBuf {
    match module.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "main" | "lib") => module.parent().unwrap().to_owned(),
        _ => module.with_extension(""),
    }
}

/// The files and folders of a module that have to be in its table: all but itself and its tests.
fn files_of(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        let is_code = path.extension().is_some_and(|extension| extension == "rs");
        match name.as_str() {
            "mod.rs" | "main.rs" | "lib.rs" | "tests.rs" | "tests" => None,
            _ if is_code => Some(name),
            _ => path.join("mod.rs").exists().then(|| name + "/"),
        }
    };
    entries.filter_map(name).collect()
}

/// What is wrong with a module's table.
fn mistakes(module: &Path, text: &str) -> Vec<String> {
    let Some(named) = named(text) else { return Vec::new() };
    let (folder, shown) = (folder_of(module), module.display());
    let gone = named.iter().filter(|name| !folder.join(name).exists());
    let gone = gone.map(|name| format!("{shown} names {name}, which is not there"));
    let files = files_of(&folder).into_iter();
    // A folder is also there if a file in it is.
    let is_named = |file: &String| {
        named.contains(&**file) || named.iter().any(|name| file.ends_with('/') && name.starts_with(&**file))
    };
    let left_out = files.filter(|file| !is_named(file)).map(|file| format!("{shown} does not name {file}"));
    gone.chain(left_out).collect()
}

#[test]
fn every_table_has_the_files_of_its_module_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let modules = ["src", "tests", "examples"].map(|folder| files::below(&root.join(folder), &["rs"]));
    let read = |module: PathBuf| (module.clone(), fs::read_to_string(module).unwrap());
    let texts: Vec<(PathBuf, String)> = modules.into_iter().flatten().map(read).collect();
    let tables = texts.iter().filter(|(_, text)| named(text).is_some()).count();
    assert!(tables > 40, "only {tables} tables are found");
    let mistakes: Vec<String> = texts.iter().flat_map(|(module, text)| mistakes(module, text)).collect();
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn a_file_left_out_or_gone_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["mod.rs", "here.rs", "left_out.rs", "tests.rs", "data.json", "parts/mod.rs", "more/mod.rs"] {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let table = "//! Text.\n//!\n//! | file | what it holds |\n//! |---|---|\n//! | `here.rs`, `gone.rs` | two |\n//! | `parts/` | `not_a_file` |\n";
    let module = folder.path().join("mod.rs");
    let mut found = mistakes(&module, table);
    found.sort_unstable();
    let ends = ["does not name left_out.rs", "does not name more/", "names gone.rs, which is not there"];
    assert_eq!(found.len(), ends.len(), "{found:?}");
    assert!(found.iter().zip(ends).all(|(found, end)| found.ends_with(end)), "{found:?}");
    assert!(mistakes(&module, "//! No table.\n").is_empty());
}
