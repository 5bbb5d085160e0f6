//! What is around the figures of a race: when and where they were measured, and their place in a document.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};

/// Two lines of a list in Markdown, of which the second may go on.
pub fn date_and_machine() -> Result<String> {
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown", |(_, model)| model);
    // Those of the machine: this process may not be let run on all of them.
    let cores = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let memory = fs::read_to_string("/proc/meminfo")?;
    let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let gibibytes = memory.context("/proc/meminfo has no MemTotal")?.parse::<f64>()? / 1024.0 / 1024.0;
    Ok(format!("- Date: {}\n- Machine: {cores} cores ({model}), {gibibytes:.0} GiB", &date[..10]))
}

/// That of the last 1, 5 and 15 minutes.
pub fn load_average() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').take(3).collect::<Vec<_>>().join(", "))
}

/// Puts `text` between `<!-- mark -->` and `<!-- /mark -->` of a Markdown file.
pub fn replace_marked_part(file: &Path, mark: &str, text: &str) -> Result<()> {
    let (begin, end) = (format!("<!-- {mark} -->"), format!("<!-- /{mark} -->"));
    let old = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let marked = || -> Option<String> {
        let (before, rest) = old.split_once(&begin)?;
        let (_, after) = rest.split_once(&end)?;
        Some(format!("{before}{begin}\n{text}{end}{after}"))
    };
    let new = marked().with_context(|| format!("{} has no {begin} and {end}", file.display()))?;
    fs::write(file, new).with_context(|| format!("writing {}", file.display()))
}
