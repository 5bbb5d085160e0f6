//! The `geofold` command: parses arguments and calls the library; nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    geofold::cli::main()
}
