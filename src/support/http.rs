//! What geofold's clients of HTTP servers have in common.

use bytes::{Bytes, BytesMut};
use reqwest::Response;

/// The body of an answer, or `None` if it has more than `max` bytes; the rest is then not read.
///
/// # Errors
/// If the answer breaks off.
pub async fn body(answer: &mut Response, max: usize) -> reqwest::Result<Option<Bytes>> {
    let announced = answer.content_length().unwrap_or_default();
    if usize::try_from(announced).map_or(true, |announced| announced > max) {
        return Ok(None);
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > max {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.freeze()))
}
