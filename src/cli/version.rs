//! What `geofold --version` says: enough for a bug report.

use std::sync::LazyLock;

use crate::io::kafka::codecs;

/// The version, the commit if it is known, and the librdkafka inside, with the codecs that it reads.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("GEOFOLD_BUILT_FROM").map(|commit| format!("commit {commit}, "));
        let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
        let codecs = codecs().join(", ");
        format!(
            "{} ({}librdkafka {librdkafka} with {codecs})",
            env!("CARGO_PKG_VERSION"),
            commit.unwrap_or_default()
        )
    });
    &VERSION
}
