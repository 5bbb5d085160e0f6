//! What `geofold --version` says: enough for a bug report.

use std::sync::LazyLock;

/// The version, the commit if it is known, and the librdkafka inside.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("GEOFOLD_BUILT_FROM").map(|commit| format!("commit {commit}, "));
        let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
        format!("{} ({}librdkafka {librdkafka})", env!("CARGO_PKG_VERSION"), commit.unwrap_or_default())
    });
    &VERSION
}
