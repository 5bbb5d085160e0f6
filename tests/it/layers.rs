//! `src/` is grouped in layers, and dependencies point one way: the list of folders explains the program. A name of a type
//! says which one is meant.
//!
//! The paths that begin with `crate::` or `super::` are read from the sources, outside of comments, strings and code that only
//! tests compile. Code that needs something of a higher layer moves it down, or gets it from its caller.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::files;

/// The layers, lowest first. A layer may import itself and all below; two in one line are beside each other, and import
/// nothing of one another.
const LAYERS: &[&[&str]] = &[
    &["base"],
    &["geoshard"],
    &["core"],
    &["support"],
    &["io"],
    &["worker", "route"],
    &["ops"],
    &["testkit"],
    &["cli"],
];

/// Below this, no client of any server, and nothing that waits.
const PURE: [&str; 3] = ["base", "geoshard", "core"];

/// What the pure layers must not name: clients, anything that waits, wall clocks, randomness without a seed. The clock that
/// is passed in is `base/clock.rs`.
const IMPURE: [&str; 17] = [
    "Instant::now",
    "SystemTime",
    "Utc::now",
    "axum::",
    "elasticsearch::",
    "hyper::",
    "hyper_util::",
    "opentelemetry::",
    "rand::rng",
    "rand::random",
    "rdkafka::",
    "rdkafka_sys::",
    "reqwest::",
    "rustls::",
    "sqlx::",
    "tokio::",
    "tokio_util::",
];

/// A path in a source file, from the crate's root.
struct Import {
    file: PathBuf,
    line: usize,
    /// The module that the file is.
    from: Vec<String>,
    to: Vec<String>,
}

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|beside| beside.contains(&layer))
}

/// Why `from` must not import `to`, if so.
fn broken_rule(from: &str, to: &str) -> Option<String> {
    let Some(above) = rank(to) else {
        return Some(format!("\"{to}\" is no layer; see LAYERS"));
    };
    let own = rank(from)?;
    if above > own {
        return Some(format!("{to} is above {from}"));
    }
    (above == own && from != to).then(|| format!("{to} is beside {from}"))
}

#[test]
fn every_module_imports_its_own_layer_and_those_below_alone() {
    let sources = Sources::read();
    let mut wrong = String::new();
    for import in sources.imports() {
        if let Some(rule) = broken_rule(&import.from[0], &import.to[0]) {
            let Import { file, line, to, .. } = &import;
            writeln!(wrong, "{}:{line}: crate::{}: {rule}", file.display(), to.join("::")).unwrap();
        }
    }
    assert!(wrong.is_empty(), "paths against the order of layers:\n{wrong}");
}

#[test]
fn every_folder_of_src_is_a_layer() {
    for entry in std::fs::read_dir(root()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            assert!(rank(&name).is_some(), "src/{name} is no layer: put it into one, or name it in LAYERS");
        } else {
            assert!(["lib", "main"].contains(&&*name), "src/{name}.rs is in no layer: move it into one");
        }
    }
}

#[test]
fn modules_of_one_layer_import_each_other_in_no_circle() {
    let sources = Sources::read();
    let mut arrows: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for Import { from, to, .. } in sources.imports() {
        if let ([layer, from, ..], [other, to, ..]) = (&from[..], &to[..])
            && layer == other
            && from != to
            && sources.modules.contains(&[layer.clone(), to.clone()][..])
        {
            arrows.entry((layer.clone(), from.clone())).or_default().insert(to.clone());
        }
    }
    let mut circles = BTreeSet::new();
    for (layer, module) in arrows.keys() {
        let reached = reached_from(&arrows, layer, module);
        if reached.contains(module) {
            let back = |other: &&String| reached_from(&arrows, layer, other).contains(module);
            let circle: Vec<&str> = reached.iter().filter(back).map(String::as_str).collect();
            circles.insert((layer.as_str(), circle.join(" ")));
        }
    }
    assert!(circles.is_empty(), "modules of one layer that import each other in a circle: {circles:?}");
}

fn reached_from(
    arrows: &BTreeMap<(String, String), BTreeSet<String>>,
    layer: &str,
    module: &str,
) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut ahead = vec![module.to_owned()];
    while let Some(module) = ahead.pop() {
        let next = arrows.get(&(layer.to_owned(), module)).into_iter().flatten();
        ahead.extend(next.filter(|next| reached.insert((*next).clone())).cloned());
    }
    reached
}

/// The modules of `core` that import counting: the hook, the fields that carry what it records, and INV-7.
const KNOW_COUNTING: [&str; 5] = ["fold", "invariants", "mover::counting", "placement", "placement::cache"];

#[test]
fn the_protocol_knows_counting_through_one_hook() {
    let sources = Sources::read();
    let is_import = |import: &Import| {
        import.from[0] == "core" && import.from[1] != "counting" && import.to.starts_with(&counting())
    };
    let imports = sources.imports().into_iter().filter(is_import);
    let found: BTreeSet<String> = imports.map(|import| import.from[1..].join("::")).collect();
    assert_eq!(found, BTreeSet::from(KNOW_COUNTING.map(str::to_owned)));
}

fn counting() -> [String; 2] {
    ["core", "counting"].map(str::to_owned)
}

/// What a build without traces has in place of `telemetry::traces`.
const WITHOUT_TRACES: &str = "support::telemetry::traces::off";

#[test]
fn types_that_leave_their_module_have_different_names() {
    let mut modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in Sources::read().files {
        let module = source.module.join("::");
        if module != WITHOUT_TRACES {
            for name in exported_types(&source.code) {
                assert!(
                    modules.entry(name.clone()).or_default().insert(module.clone()),
                    "{module} has {name} twice"
                );
            }
        }
    }
    modules.retain(|_, modules| modules.len() > 1);
    assert!(modules.is_empty(), "each needs a name that says what it is of: {modules:#?}");
    let code =
        "pub struct A; pub(super) enum B {} struct C; label! { D { E => F, } } impl G { type H = (); }";
    assert_eq!(exported_types(code), ["A", "B", "D"]);
}

/// Types that a module declares as `pub` or `pub(…)`, and labels of metrics.
fn exported_types(code: &str) -> Vec<String> {
    let name = |rest: &str| -> String {
        rest.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let exported = |at: usize| {
        let rest = &code[at + "pub".len()..];
        let rest = rest.strip_prefix('(').map_or(rest, |scope| &scope[closing(scope, '(', ')') + 1..]);
        let kind = ["struct ", "enum ", "trait ", "type ", "union "].into_iter();
        kind.filter_map(|kind| rest.trim_start().strip_prefix(kind)).map(name).next()
    };
    let label = |at: usize| code[at + "label!".len()..].trim_start().strip_prefix('{').map(name);
    let exported = words(code, "pub").into_iter().filter_map(exported);
    exported.chain(words(code, "label!").into_iter().filter_map(label)).collect()
}

#[test]
fn the_pure_layers_name_no_client_no_clock_and_no_randomness() {
    let sources = Sources::read();
    let mut wrong = String::new();
    for source in sources.files.iter().filter(|source| PURE.contains(&&*source.module[0])) {
        for name in IMPURE {
            for at in words(&source.code, name) {
                let line = line_of(&source.code, at);
                writeln!(wrong, "{}:{line}: {name}", source.file.display()).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{PURE:?} decide without I/O, but name:\n{wrong}");
}

#[test]
fn an_arrow_against_the_order_is_found_wherever_it_is_written() {
    for (text, expected) in [
        ("use crate::io::kafka::topic_facts;", &["io::kafka::topic_facts"][..]),
        (
            "use crate::{\n  base::ids::{DocId, ShardId as S},\n  io::{self},\n};",
            &["base::ids::DocId", "base::ids::ShardId", "io"],
        ),
        ("fn f() -> crate::ops::X<'static> { crate::cli::y() }", &["ops::X", "cli::y"]),
        ("use super::y::Z;", &["core::y::Z"]),
        ("use super::super::io::Z;", &["io::Z"]),
        ("// crate::io::x\n/* crate::io::y */ const A: &str = \"crate::io::z\";", &[]),
        ("const C: char = '\"'; use crate::io::a; const D: &str = r#\"crate::io::b\"#;", &["io::a"]),
        ("#[cfg(test)]\nuse crate::io::x;\nuse crate::io::y;", &["io::y"]),
        (
            "#[cfg(test)]\n#[allow(x)]\nmod tests { use crate::io::x; fn f() {} }\nuse crate::io::y;",
            &["io::y"],
        ),
    ] {
        let module = vec!["core".to_owned(), "x".to_owned()];
        let source = Source::new(PathBuf::from("x.rs"), module, text);
        let found: Vec<String> = source.imports().iter().map(|import| import.to.join("::")).collect();
        assert_eq!(found, expected, "{text}");
    }
    assert_eq!(broken_rule("core", "base"), None);
    assert_eq!(broken_rule("core", "core"), None);
    for (from, to) in [("core", "io"), ("base", "core"), ("worker", "route"), ("core", "unheard_of")] {
        assert!(broken_rule(from, to).is_some(), "{from} -> {to}");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// All sources that are compiled without tests.
struct Sources {
    files: Vec<Source>,
    modules: BTreeSet<Vec<String>>,
}

struct Source {
    file: PathBuf,
    module: Vec<String>,
    /// Comments, strings and what only tests compile are blanks.
    code: String,
    /// Child modules that only tests compile.
    test_modules: Vec<String>,
}

impl Sources {
    fn read() -> Self {
        let read = |path: PathBuf| {
            let module = module_of(path.strip_prefix(root()).unwrap());
            let text = std::fs::read_to_string(&path).unwrap();
            Source::new(path, module, &text)
        };
        let mut files: Vec<Source> = files::below(&root(), &["rs"]).into_iter().map(read).collect();
        let of_tests: BTreeSet<Vec<String>> = files
            .iter()
            .flat_map(|source| {
                source
                    .test_modules
                    .iter()
                    .map(|name| [&source.module[..], std::slice::from_ref(name)].concat())
            })
            .collect();
        files.retain(|source| {
            !source.module.is_empty()
                && (1..=source.module.len()).all(|n| !of_tests.contains(&source.module[..n]))
        });
        files.sort_by(|one, other| one.file.cmp(&other.file));
        assert!(files.len() > 100, "only {} sources", files.len());
        let modules = files.iter().map(|source| source.module.clone()).collect();
        Self { files, modules }
    }

    fn imports(&self) -> Vec<Import> {
        self.files.iter().flat_map(Source::imports).collect()
    }
}

/// `a/b.rs` and `a/b/mod.rs` are `a::b`; the crate's roots are no module.
fn module_of(path: &Path) -> Vec<String> {
    let mut module: Vec<String> =
        path.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

impl Source {
    fn new(file: PathBuf, module: Vec<String>, text: &str) -> Self {
        let mut code = without_comments_and_strings(text);
        let test_modules = blank_tests(&mut code);
        Self { file, module, code, test_modules }
    }

    fn imports(&self) -> Vec<Import> {
        let mut imports = Vec::new();
        let mut add = |at: usize, base: &[String], rest: &str| {
            let mut paths = Vec::new();
            expand(base, rest, &mut paths);
            let line = line_of(&self.code, at);
            let import = |to| Import { file: self.file.clone(), line, from: self.module.clone(), to };
            imports.extend(paths.into_iter().filter(|to: &Vec<String>| !to.is_empty()).map(import));
        };
        for at in words(&self.code, "crate::") {
            add(at, &[], &self.code[at + "crate::".len()..]);
        }
        let mut passed = 0;
        for at in words(&self.code, "super::").into_iter().filter(|at| !is_in_path(&self.code, *at)) {
            if at < passed {
                continue;
            }
            let mut rest = &self.code[at..];
            let mut base = &self.module[..];
            while let Some(after) = rest.strip_prefix("super::") {
                rest = after;
                base = base.split_last().map_or(base, |(_, above)| above);
            }
            passed = self.code.len() - rest.len();
            add(at, base, rest);
        }
        imports
    }
}

/// Places where `word` begins a word.
fn words(code: &str, word: &str) -> Vec<usize> {
    let begins = |at: &usize| {
        let before = code[..*at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$')
    };
    code.match_indices(word).map(|(at, _)| at).filter(begins).collect()
}

fn is_in_path(code: &str, at: usize) -> bool {
    code[..at].ends_with("::")
}

fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

/// The paths of a use tree, or the one path of an expression, that `rest` begins with.
fn expand(base: &[String], rest: &str, paths: &mut Vec<Vec<String>>) {
    let mut path = base.to_vec();
    let mut rest = rest.trim_start();
    loop {
        if let Some(group) = rest.strip_prefix('{') {
            let end = closing(group, '{', '}');
            let (mut depth, mut start) = (0, 0);
            for (at, c) in group[..end].char_indices().chain([(end, ',')]) {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        if !group[start..at].trim().is_empty() {
                            expand(&path, &group[start..at], paths);
                        }
                        start = at + 1;
                    }
                    _ => {}
                }
            }
            return;
        }
        let name_end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(name_end);
        if !["", "self"].contains(&name) {
            path.push(name.to_owned());
        }
        match after.strip_prefix("::") {
            Some(after) if !name.is_empty() => rest = after.trim_start(),
            _ => break,
        }
    }
    paths.push(path);
}

/// Where the bracket closes that is open before `text`.
fn closing(text: &str, open: char, close: char) -> usize {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth -= 1;
            if depth == 0 {
                return at;
            }
        }
    }
    text.len()
}

/// Blanks each item behind `#[cfg(test)]`, and gives the names of those that are modules in files of their own.
fn blank_tests(code: &mut String) -> Vec<String> {
    const MARK: &str = "#[cfg(test)]";
    let mut modules = Vec::new();
    while let Some(start) = code.find(MARK) {
        let mut at = start + MARK.len();
        // Further attributes.
        while let Some(skipped) = code[at..].find(|c: char| !c.is_whitespace())
            && code[at + skipped..].starts_with("#[")
        {
            at += skipped + 2;
            at += closing(&code[at..], '[', ']') + 1;
        }
        let item = &code[at..];
        let semicolon = item.find(';').unwrap_or(item.len());
        let brace = item.find('{').unwrap_or(item.len());
        let is_use = item.trim_start().trim_start_matches("pub").trim_start().starts_with("use ");
        let end = if semicolon < brace || is_use {
            semicolon + 1
        } else {
            brace + 1 + closing(&item[(brace + 1).min(item.len())..], '{', '}') + 1
        };
        let end = (at + end).min(code.len());
        if semicolon < brace
            && let Some((_, name)) = item[..semicolon].rsplit_once("mod ")
        {
            modules.push(name.trim().to_owned());
        }
        let blank: String = code[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        code.replace_range(start..end, &blank);
    }
    modules
}

/// The same lines, with blanks for what is no code.
fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let before = code.chars().next_back();
        let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = raw_string(rest).filter(|_| !in_word) {
            length
        } else if c == '"' {
            quoted(rest, '"').unwrap_or(rest.len())
        } else if c == '\'' {
            // A lifetime has no second quote so near.
            quoted(rest, '\'')
                .filter(|&length| rest[..length].starts_with("'\\") || rest[..length].chars().count() == 3)
                .unwrap_or(0)
        } else {
            0
        };
        if length == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    code
}

/// The length of what stands in quotes.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if c == quote {
            return Some(at + 1);
        }
    }
    None
}

/// The length of a raw string, if the text begins with one.
fn raw_string(text: &str) -> Option<usize> {
    let raw = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = raw.chars().take_while(|c| *c == '#').count();
    let body = raw[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let head = text.len() - body.len();
    Some(body.find(&end).map_or(text.len(), |at| head + at + end.len()))
}
