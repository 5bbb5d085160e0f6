//! Request bodies, compressed with gzip.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

/// A smaller body fits into one packet, or nearly.
const MIN_BYTES: usize = 1 << 10;

/// What takes about a millisecond. More is left to another thread, so that no task on this one has to wait for it.
const MAX_BYTES_HERE: usize = 64 << 10;

/// The compressed body; `None` if it is better sent as it is.
pub(super) async fn gzip(body: &Bytes) -> Option<Bytes> {
    if body.len() <= MAX_BYTES_HERE {
        return gzip_here(body);
    }
    let body = body.clone();
    // It fails with a panic, reported where it happened, or with the end of the runtime.
    tokio::task::spawn_blocking(move || gzip_here(&body)).await.ok().flatten()
}

fn gzip_here(body: &[u8]) -> Option<Bytes> {
    if body.len() < MIN_BYTES {
        return None;
    }
    // The fastest level: others take several times as long for a few per cent.
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
    // Writing to memory cannot fail.
    encoder.write_all(body).ok()?;
    let compressed = encoder.finish().ok()?;
    (compressed.len() < body.len()).then(|| compressed.into())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;
    use crate::base::random::Random;

    #[tokio::test]
    async fn small_and_incompressible_bodies_stay_as_they_are() {
        assert_eq!(gzip(&Bytes::from(vec![b'a'; MIN_BYTES - 1])).await, None);
        let mut random = Random::new(1);
        let noise: Vec<u8> =
            std::iter::repeat_with(|| u8::try_from(random.below(256)).unwrap()).take(2 * MIN_BYTES).collect();
        assert_eq!(gzip(&noise.into()).await, None);
    }

    #[tokio::test]
    async fn compressed_body_is_smaller_and_the_same() {
        for bytes in [MIN_BYTES, MAX_BYTES_HERE, MAX_BYTES_HERE + 1, 1 << 20] {
            let body = Bytes::from("0123456789".repeat(bytes / 10 + 1)).slice(..bytes);
            let compressed = gzip(&body).await.unwrap();
            assert!(compressed.len() < bytes / 4, "{bytes}: {}", compressed.len());
            let mut whole = Vec::new();
            GzDecoder::new(&compressed[..]).read_to_end(&mut whole).unwrap();
            assert_eq!(whole, body, "{bytes}");
        }
    }
}
