//! Reads documents of unknown size in slices, so that no answer is too large to be read and memory stays bounded.

use std::time::Duration;

use super::answer::{CallVerdict, judge_call};
use super::{CallError, Elastic, Get, GetAnswer};

/// Target bytes of documents per response, far below the limits of clients and of Elasticsearch's circuit breakers.
const TARGET_BYTES: usize = 16 << 20;
/// A slice may have this many times as many documents as the one before: sizes change from document to document.
const GROWTH: usize = 4;

/// Number of documents per request, by the sizes of earlier ones. Pure.
#[derive(Debug, Clone)]
pub struct SliceSize {
    most: usize,
    next: usize,
}

impl SliceSize {
    /// At most `most` documents per request. Until sizes are known, each counts as `max_document` bytes.
    pub fn new(most: usize, max_document: usize) -> Self {
        let most = most.max(1);
        Self { most, next: (TARGET_BYTES / max_document.max(1)).clamp(1, most) }
    }

    /// Documents of the next request.
    pub fn next(&self) -> usize {
        self.next
    }

    /// Records a response of `documents` with this many bytes in total.
    pub fn answered(&mut self, documents: usize, bytes: usize) {
        let mean = bytes.div_ceil(documents.max(1)).max(1);
        let most = self.most.min(documents.max(self.next).saturating_mul(GROWTH));
        self.next = (TARGET_BYTES / mean).clamp(1, most);
    }

    /// Records an oversized response. `false` if it was a single document, which cannot be split.
    pub fn too_large(&mut self, documents: usize) -> bool {
        self.next = (documents / 2).max(1);
        documents > 1
    }
}

/// Reads documents, realtime, slice after slice, and gives each answer to `each` with its place in `gets`, in order.
///
/// # Errors
/// If a request fails. One whose answer is too large is sent again in halves; that is an error only for a single document.
pub async fn mget_in_slices(
    elastic: &dyn Elastic,
    gets: &[Get],
    timeout: Duration,
    size: &mut SliceSize,
    mut each: impl FnMut(usize, GetAnswer) + Send,
) -> Result<(), CallError> {
    let mut done = 0;
    while let Some(rest) = gets.get(done..).filter(|rest| !rest.is_empty()) {
        let slice = &rest[..size.next().min(rest.len())];
        let answers = match elastic.mget(slice, timeout).await {
            Ok(answers) => answers,
            Err(error) => {
                if matches!(judge_call(&error), CallVerdict::Split) && size.too_large(slice.len()) {
                    continue;
                }
                return Err(error);
            }
        };
        size.answered(slice.len(), answers.iter().map(bytes).sum());
        for answer in answers {
            each(done, answer);
            done += 1;
        }
    }
    Ok(())
}

fn bytes(answer: &GetAnswer) -> usize {
    match answer {
        GetAnswer::Found(found) => found.source.len(),
        GetAnswer::Missing | GetAnswer::Failed(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::base::ids::DocId;
    use crate::io::elastic::scripted::Scripted;
    use crate::io::elastic::{FoundDocument, Index, SeqNo};

    #[test]
    fn a_slice_follows_the_sizes_that_came_before() {
        let mut size = SliceSize::new(1000, 1 << 20);
        assert_eq!(size.next(), 16, "each may have 1 MiB");
        size.answered(16, 16 << 10);
        assert_eq!(size.next(), 64, "1 KiB each, but it grows step by step");
        size.answered(64, 64 << 10);
        size.answered(256, 256 << 10);
        assert_eq!(size.next(), 1000);
        size.answered(3, 3 << 10);
        assert_eq!(size.next(), 1000, "a slice that was only the rest says nothing of the number");
        size.answered(1000, 1000 << 20);
        assert_eq!(size.next(), 16);
        assert!(size.too_large(16));
        assert_eq!(size.next(), 8);
        assert!(!size.too_large(1));
        assert_eq!(size.next(), 1);
    }

    fn gets(count: usize) -> Vec<Get> {
        let id = |n: usize| DocId::from_key(Some(n.to_string().as_bytes())).unwrap();
        (0..count).map(|n| Get::realtime(Index::Placements, id(n))).collect()
    }

    /// Each document says its id, at its end, and is of this size.
    fn documents_of(bytes: usize, largest_answer: usize) -> Scripted {
        let get = move |get: &Get| {
            let source = Bytes::from(format!("{:>bytes$}", get.id.as_str()));
            GetAnswer::Found(FoundDocument {
                version: 1,
                stamp: SeqNo { seq_no: 1, primary_term: 1 },
                source,
            })
        };
        Scripted { get: Box::new(get), largest_answer: Some(largest_answer), ..Scripted::default() }
    }

    #[tokio::test]
    async fn oversized_response_is_split_without_duplicates() {
        let elastic = documents_of(1000, 10_000);
        let mut seen = Vec::new();
        let gets = gets(50);
        let mut size = SliceSize::new(1000, 1);
        let read = mget_in_slices(&elastic, &gets, Duration::ZERO, &mut size, |place, answer| {
            let GetAnswer::Found(found) = answer else { panic!("{answer:?}") };
            seen.push((place, String::from_utf8(found.source.to_vec()).unwrap().trim().to_owned()));
        });
        read.await.unwrap();
        assert_eq!(seen, (0..50).map(|n| (n, n.to_string())).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_single_document_that_is_too_large_is_an_error() {
        let elastic = documents_of(1000, 999);
        let gets = gets(2);
        let mut size = SliceSize::new(1000, 1);
        let read = mget_in_slices(&elastic, &gets, Duration::ZERO, &mut size, |_, _| {});
        assert!(matches!(read.await, Err(CallError::TooLarge { .. })));
    }
}
