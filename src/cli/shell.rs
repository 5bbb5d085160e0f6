//! `geofold completions` and `geofold man`: files that packages install.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use super::Failure;

/// Print shell completions.
///
/// For bash: geofold completions bash > /usr/share/bash-completion/completions/geofold
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Print the manual page of geofold, or write those of all subcommands.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Write geofold.1, geofold-run.1 and so on into this existing folder.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

pub(super) fn completions(mut command: Command, args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "geofold", &mut text);
    print(&text)
}

pub(super) fn man(command: Command, args: &ManArgs) -> Result<ExitCode, Failure> {
    // The default would put the version in brackets into the title of every page.
    let command = command.version(env!("CARGO_PKG_VERSION"));
    if let Some(folder) = &args.out {
        clap_mangen::generate_to(command, folder)
            .with_context(|| format!("writing manual pages to {}", folder.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).context("making the manual page")?;
    print(&text)
}

/// Prints; a closed standard output is no error.
fn print(text: &[u8]) -> Result<ExitCode, Failure> {
    match std::io::stdout().write_all(text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}
