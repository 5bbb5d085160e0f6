//! The text of `geofold --version`, for bug reports.

use std::sync::LazyLock;

use crate::io::kafka::codecs;

/// The version, the commit if known, and the version and codecs of librdkafka.
pub(super) fn version() -> &'static str {
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
