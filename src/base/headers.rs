//! Names of the record headers that geofold reads (`worker/record.rs`) and writes (`io/send/`, `worker/dead_letter.rs`);
//! docs/dead-letters.md describes those of dead letters.

/// The operation of a record: `index`, `delete`, `patch`, `touch` or `refeed`.
pub const OP_HEADER: &str = "geofold-op";

/// `NAME:SHARD` of a distribution whose dead letter this is.
pub const DISTRIBUTION_HEADER: &str = "geofold-distribution";

/// Start of the names of headers that say what is wrong with a dead letter.
pub const ERROR_HEADERS: &str = "geofold-error-";

/// Reason code of a dead letter.
pub const REASON_HEADER: &str = "geofold-error-reason";

/// The step that refused it: `decode`, `fold`, `write` or `distribution`.
pub const STAGE_HEADER: &str = "geofold-error-stage";

/// Human-readable reason.
pub const DETAIL_HEADER: &str = "geofold-error-detail";

/// The topic of its record.
pub const TOPIC_HEADER: &str = "geofold-error-topic";

/// The partition of its record.
pub const PARTITION_HEADER: &str = "geofold-error-partition";

/// The offset of its record; the last one of a fold.
pub const OFFSET_HEADER: &str = "geofold-error-offset";

/// The offset of the first record of a fold; otherwise that of its record.
pub const FIRST_OFFSET_HEADER: &str = "geofold-error-first-offset";

/// When it was sent, in milliseconds since 1970.
pub const TIME_HEADER: &str = "geofold-error-time";

/// The value and the record's own headers were omitted; holds the value's size in bytes.
pub const VALUE_LEFT_OUT_HEADER: &str = "geofold-value-left-out";

/// The key is a hash; holds the key's size in bytes, 0 if the record has no key.
pub const KEY_LEFT_OUT_HEADER: &str = "geofold-key-left-out";

/// Why parts were omitted: the broker's or client's error for the previous form.
pub const LEFT_OUT_REASON_HEADER: &str = "geofold-left-out-reason";
