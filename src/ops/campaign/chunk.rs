//! The ids of one chunk as one value of the database: each behind its length, two bytes, the lower one first.

use thiserror::Error;

pub use crate::support::config::campaigns::MAX_IDS;

/// Maximum bytes of an id in a chunk. Ids too long for a document are kept, to be named when they fail.
pub const MAX_ID_BYTES: usize = u16::MAX as usize;

/// Invalid chunk data in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the ids of a chunk end in the middle")]
pub struct BrokenChunk;

/// Appends an id, up to [`MAX_ID_BYTES`] of it.
pub fn push(chunk: &mut Vec<u8>, id: &[u8]) {
    let length = u16::try_from(id.len()).unwrap_or(u16::MAX);
    chunk.extend_from_slice(&length.to_le_bytes());
    chunk.extend_from_slice(&id[..usize::from(length)]);
}

/// The ids of a chunk, in order.
///
/// # Errors
/// If it was not written by [`push`] alone.
pub fn ids(chunk: &[u8]) -> Result<Vec<&[u8]>, BrokenChunk> {
    let mut ids = Vec::new();
    let mut rest = chunk;
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let (id, after) =
            after.split_at_checked(usize::from(u16::from_le_bytes(*length))).ok_or(BrokenChunk)?;
        ids.push(id);
        rest = after;
    }
    if rest.is_empty() { Ok(ids) } else { Err(BrokenChunk) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_chunk_gives_back_its_ids(wanted in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 0..40)) {
            let mut chunk = Vec::new();
            wanted.iter().for_each(|id| push(&mut chunk, id));
            prop_assert_eq!(ids(&chunk).unwrap(), wanted.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_a_chunk_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(ids) = ids(&bytes) {
                let mut again = Vec::new();
                ids.iter().for_each(|id| push(&mut again, id));
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
