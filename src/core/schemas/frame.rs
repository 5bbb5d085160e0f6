//! The wire format: a byte 0, four bytes of a schema's id, the most significant first, and the payload.
//!
//! <https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format>

use super::{SchemaId, Unreadable};

/// The first byte. No JSON begins with it.
const MAGIC: u8 = 0;

/// Bytes before the payload.
const HEAD: usize = 5;

/// So many bytes of something else are shown in its error: enough to tell JSON from a newer wire format.
const SHOWN: usize = 1;

/// Whether a value may be in the wire format; it is no JSON then.
pub fn is_framed(value: &[u8]) -> bool {
    value.first() == Some(&MAGIC)
}

/// The schema's id, and where the payload begins.
///
/// # Errors
/// If this is not in the wire format.
pub fn split(value: &[u8]) -> Result<(SchemaId, usize), Unreadable> {
    match value {
        [MAGIC, a, b, c, d, ..] => Ok((SchemaId(u32::from_be_bytes([*a, *b, *c, *d])), HEAD)),
        [] => Err(Unreadable::NoFrame("nothing".to_owned())),
        [MAGIC, ..] => Err(Unreadable::NoFrame(format!("0, but ends after {} bytes", value.len()))),
        other => Err(Unreadable::NoFrame(
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
    fn the_id_stands_behind_the_first_byte_and_the_payload_behind_the_id() {
        assert_eq!(split(&[0, 0, 0, 1, 2, 9, 9]), Ok((SchemaId(258), 5)));
        assert_eq!(split(&[0, 0xff, 0xff, 0xff, 0xff]), Ok((SchemaId(u32::MAX), 5)), "an empty payload");
    }

    #[test]
    fn what_is_not_framed_is_refused_with_its_beginning() {
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
