//! The wire format: a byte 0, the schema's id in four big-endian bytes, and the payload.
//!
//! <https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format>

use super::{SchemaId, UnreadablePayload};

/// The first byte. No JSON begins with it.
const MAGIC: u8 = 0;

/// Bytes before the payload.
const HEAD: usize = 5;

/// Bytes of another format shown in its error: enough to distinguish JSON from a newer wire format.
const SHOWN: usize = 1;

/// Whether a value may be in the wire format; then it is not JSON.
pub fn is_framed(value: &[u8]) -> bool {
    value.first() == Some(&MAGIC)
}

/// The schema's id, and the offset of the payload.
///
/// # Errors
/// If this is not in the wire format.
pub fn split(value: &[u8]) -> Result<(SchemaId, usize), UnreadablePayload> {
    match value {
        [MAGIC, a, b, c, d, ..] => Ok((SchemaId(u32::from_be_bytes([*a, *b, *c, *d])), HEAD)),
        [] => Err(UnreadablePayload::NoFrame("nothing".to_owned())),
        [MAGIC, ..] => Err(UnreadablePayload::NoFrame(format!("0, but ends after {} bytes", value.len()))),
        other => Err(UnreadablePayload::NoFrame(
            other
                .iter()
                .take(SHOWN)
                .map(|byte| format!("the byte {byte} ({:?})", char::from(*byte)))
                .collect(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_id_and_payload_follow_the_magic_byte() {
        assert_eq!(split(&[0, 0, 0, 1, 2, 9, 9]), Ok((SchemaId(258), 5)));
        assert_eq!(split(&[0, 0xff, 0xff, 0xff, 0xff]), Ok((SchemaId(u32::MAX), 5)), "an empty payload");
    }

    #[test]
    fn unframed_value_is_refused_with_its_first_byte() {
        for (value, words) in [
            (&b""[..], "nothing"),
            (&[0, 0, 0, 1], "ends after 4 bytes"),
            (b"{\"a\":1}", "123 ('{')"),
            (&[1; 20], "byte 1 "),
        ] {
            let error = split(value).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(error.reason(), "bad_frame");
        }
        assert!(is_framed(&[0]) && !is_framed(b"{") && !is_framed(b""));
    }
}
