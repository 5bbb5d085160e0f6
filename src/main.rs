//! The `geofold` command: parses arguments and calls the library; nothing else.

use std::process::ExitCode;

/// Also librdkafka's, whose records one thread allocates and another frees: with glibc's allocator the worker takes a third more
/// CPU and a sixth more memory (docs/performance.md, "Allocator").
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's settings, which it looks for under this name. `MALLOC_CONF` in the environment overrides them.
///
/// Two arenas per CPU instead of four, and free pages go back to the system after 2 seconds instead of 10: a seventh less memory for a
/// little CPU (docs/performance.md, "Allocator").
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[expect(
    unsafe_code,
    reason = "the name is jemalloc's, and the type is a pointer to a terminated text, as it expects"
)]
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8; 36] = b"narenas_ratio:2,dirty_decay_ms:2000\0";

fn main() -> ExitCode {
    geofold::cli::main()
}
