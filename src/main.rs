//! The `geofold` command: parses arguments and calls the library; nothing else.

use std::process::ExitCode;

/// Also librdkafka's, whose records one thread allocates and another frees: with glibc's allocator the worker takes a third more
/// CPU and a sixth more memory (docs/performance.md, "Allocator").
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    geofold::cli::main()
}
