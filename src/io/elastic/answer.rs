//! What an answer means to the protocol ("What an answer means"), and whether to try again. Pure.
//!
//! Two mistakes would be costly, and the tables below are drawn against both. A document that could have been written
//! later must never end as a dead letter: an error about the server, the index or the cluster is retried
//! again, and only what says something about the document is refused. And a document that could not be looked up must
//! never count as missing.

use std::time::Duration;

use super::{BulkAnswer, BulkOp, CallError, FoundDocument, GetAnswer, ItemError, SeqNo};

/// Outcome of one bulk operation.
#[derive(Debug, Clone, PartialEq)]
pub enum BulkVerdict {
    /// Carried out.
    Done {
        /// The state it left, where it was asked for.
        stamp: Option<SeqNo>,
    },
    /// 409: the condition does not hold. For a document, success: a copy at least as new is there.
    Conflict,
    /// A delete of a document that is not there. Success; its tombstone is.
    NotFound,
    /// The document itself is not acceptable, now or later.
    Refused(ItemError),
    /// It could not be carried out now.
    Again(ItemError),
    /// geofold may not do this.
    Unauthorized(ItemError),
}

/// Outcome of one slot of an `_mget`.
#[derive(Debug, Clone, PartialEq)]
pub enum GetVerdict {
    /// It is there.
    Found(FoundDocument),
    /// It is not there.
    Missing,
    /// The lookup failed.
    Again(ItemError),
    /// geofold may not read it.
    Unauthorized(ItemError),
}

/// How to handle a request without a usable response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallVerdict {
    /// The same again.
    Again {
        /// Not before this much time has passed (`Retry-After`).
        after: Option<Duration>,
    },
    /// Its halves. If a status says so, of a request of one operation, that is the operation's refusal.
    Split,
    /// geofold may not do this.
    Unauthorized,
}

/// Error types that blame the index or cluster, with any status. Their operations are retried until that is fixed.
const NOT_THE_DOCUMENT: &[&str] = &[
    // 403, or 429 above the flood-stage disk watermark.
    "cluster_block_exception",
    // 400.
    "index_closed_exception",
    "invalid_index_name_exception",
    // 404, 400 with auto-creation off.
    "index_not_found_exception",
    "shard_not_found_exception",
    // 400: the cluster's shard limit does not allow creating the index.
    "validation_exception",
    // 400: two requests created the index at once.
    "resource_already_exists_exception",
    // 400: the mapping requires routing.
    "routing_missing_exception",
    "process_cluster_event_timeout_exception",
    "snapshot_in_progress_exception",
];

/// Prefixes of `illegal_argument_exception` reasons (400) that blame the index; they have no type of their own. Only prefixes:
/// what follows may quote a document.
const NOT_THE_DOCUMENT_REASONS: &[&str] = &[
    "pipeline with id [",
    "no write index is defined for alias [",
    // Elasticsearch's and Lucene's limit of documents in one shard.
    "Number of documents in ",
    "number of documents in ",
];

fn blames_the_index(error: &ItemError) -> bool {
    NOT_THE_DOCUMENT.contains(&error.kind.as_str())
        || (error.kind == "illegal_argument_exception"
            && NOT_THE_DOCUMENT_REASONS.iter().any(|beginning| error.reason.starts_with(beginning)))
}

/// Judges one item of a bulk answer.
pub fn judge_bulk(op: &BulkOp, answer: BulkAnswer) -> BulkVerdict {
    let BulkAnswer { status, stamp, error } = answer;
    let Some(error) = error else {
        return match (status, op) {
            (200..=299, _) => BulkVerdict::Done { stamp },
            (404, BulkOp::Delete { .. }) => BulkVerdict::NotFound,
            (409, _) => BulkVerdict::Conflict,
            _ => BulkVerdict::Again(ItemError {
                status,
                kind: "unexplained_status".to_owned(),
                reason: "the item has this status, but no error".to_owned(),
            }),
        };
    };
    if blames_the_index(&error) {
        return BulkVerdict::Again(*error);
    }
    match status {
        409 => BulkVerdict::Conflict,
        401 | 403 => BulkVerdict::Unauthorized(*error),
        // Success with an error, or a 404 that is more than an absent document: nothing to build on.
        ..=399 | 404 | 408 | 429 | 500.. => BulkVerdict::Again(*error),
        _ => BulkVerdict::Refused(*error),
    }
}

/// Judges one slot of an `_mget` answer.
pub fn judge_get(answer: GetAnswer) -> GetVerdict {
    match answer {
        GetAnswer::Found(found) => GetVerdict::Found(found),
        GetAnswer::Missing => GetVerdict::Missing,
        GetAnswer::Failed(error) if error.kind == "security_exception" => GetVerdict::Unauthorized(error),
        GetAnswer::Failed(error) => GetVerdict::Again(error),
    }
}

/// Judges a request that failed as a whole.
pub fn judge_call(error: &CallError) -> CallVerdict {
    let (status, kind, retry_after) = match error {
        CallError::Status { status, kind, retry_after, .. } => (status, kind, retry_after),
        CallError::TooLarge { .. } => return CallVerdict::Split,
        CallError::Connection(_)
        | CallError::Timeout(_)
        | CallError::Unsigned(_)
        | CallError::Undecodable(_) => {
            return CallVerdict::Again { after: None };
        }
    };
    let again = CallVerdict::Again { after: *retry_after };
    if NOT_THE_DOCUMENT.contains(&kind.as_str()) {
        return again;
    }
    match status {
        413 => CallVerdict::Split,
        401 | 403 => CallVerdict::Unauthorized,
        // One operation that fails validation, such as a too long id, spoils the whole request. Where no Elasticsearch
        // speaks, it is a proxy that does not like the request, and no document's fault.
        400 if !kind.is_empty() => CallVerdict::Split,
        _ => again,
    }
}

impl CallError {
    /// A short, fixed name for metrics and logs: the status, or how there was none.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Status { status, .. } => status_label(*status),
            Self::Connection(_) => "connection",
            Self::Timeout(_) => "timeout",
            Self::Unsigned(_) => "unsigned",
            Self::TooLarge { .. } => "too_large",
            Self::Undecodable(_) => "undecodable",
        }
    }
}

impl ItemError {
    /// A short, fixed name for metrics and logs: the item's status, or `slot` for a slot of an `_mget`.
    pub fn label(&self) -> &'static str {
        if self.status == 0 { "slot" } else { status_label(self.status) }
    }
}

fn status_label(status: u16) -> &'static str {
    match status {
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        408 => "408",
        413 => "413",
        429 => "429",
        500 => "500",
        502 => "502",
        503 => "503",
        504 => "504",
        _ if status / 100 == 4 => "4xx",
        _ if status / 100 == 5 => "5xx",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::base::ids::DocId;
    use crate::base::position::Position;
    use crate::io::elastic::{Index, WriteCondition};

    fn delete() -> BulkOp {
        let id = DocId::from_key(Some(b"a")).unwrap();
        BulkOp::Delete { index: Index::Placements, id, version: Position::from_version(1) }
    }

    fn index() -> BulkOp {
        let id = DocId::from_key(Some(b"a")).unwrap();
        BulkOp::Index {
            index: Index::Placements,
            id,
            guard: WriteCondition::Absent,
            source: Bytes::from_static(b"{}"),
        }
    }

    fn failed(status: u16, kind: &str) -> BulkAnswer {
        let error = ItemError { status, kind: kind.to_owned(), reason: String::new() };
        BulkAnswer { status, stamp: None, error: Some(Box::new(error)) }
    }

    fn plain(status: u16) -> BulkAnswer {
        BulkAnswer { status, stamp: None, error: None }
    }

    fn name(verdict: BulkVerdict) -> &'static str {
        match verdict {
            BulkVerdict::Done { .. } => "done",
            BulkVerdict::Conflict => "conflict",
            BulkVerdict::NotFound => "not found",
            BulkVerdict::Refused(_) => "refused",
            BulkVerdict::Again(_) => "again",
            BulkVerdict::Unauthorized(_) => "unauthorized",
        }
    }

    #[test]
    fn each_status_and_type_of_an_item_has_one_meaning() {
        #[rustfmt::skip]
        let table = [
            // answer                                             to an index    to a delete
            (plain(200),                                          "done",        "done"),
            (plain(201),                                          "done",        "done"),
            (plain(404),                                          "again",       "not found"),
            (plain(302),                                          "again",       "again"),
            (plain(0),                                            "again",       "again"),
            (failed(200, "odd"),                                  "again",       "again"),
            (failed(409, "version_conflict_engine_exception"),    "conflict",    "conflict"),
            (failed(404, "index_not_found_exception"),            "again",       "again"),
            (failed(404, "shard_not_found_exception"),            "again",       "again"),
            (failed(404, "anything"),                             "again",       "again"),
            (failed(429, "es_rejected_execution_exception"),      "again",       "again"),
            (failed(429, "circuit_breaking_exception"),           "again",       "again"),
            (failed(500, "anything"),                             "again",       "again"),
            (failed(502, ""),                                     "again",       "again"),
            (failed(503, "unavailable_shards_exception"),         "again",       "again"),
            (failed(504, ""),                                     "again",       "again"),
            (failed(401, "security_exception"),                   "unauthorized", "unauthorized"),
            (failed(403, "security_exception"),                   "unauthorized", "unauthorized"),
            (failed(403, "cluster_block_exception"),              "again",       "again"),
            (failed(429, "cluster_block_exception"),              "again",       "again"),
            (failed(400, "index_closed_exception"),               "again",       "again"),
            (failed(400, "validation_exception"),                 "again",       "again"),
            (failed(400, "routing_missing_exception"),            "again",       "again"),
            (failed(400, "document_parsing_exception"),           "refused",     "refused"),
            (failed(400, "strict_dynamic_mapping_exception"),     "refused",     "refused"),
            (failed(400, "illegal_argument_exception"),           "refused",     "refused"),
            (failed(413, ""),                                     "refused",     "refused"),
        ];
        for (answer, to_index, to_delete) in table {
            assert_eq!(name(judge_bulk(&index(), answer.clone())), to_index, "{answer:?}");
            assert_eq!(name(judge_bulk(&delete(), answer.clone())), to_delete, "{answer:?}");
        }
    }

    #[test]
    fn refusal_naming_the_index_does_not_blame_the_document() {
        for (kind, reason, verdict) in [
            ("illegal_argument_exception", "pipeline with id [geo] does not exist", "again"),
            (
                "illegal_argument_exception",
                "no write index is defined for alias [g-s01]. The write index",
                "again",
            ),
            (
                "illegal_argument_exception",
                "Number of documents in the index can't exceed [2147483519]",
                "again",
            ),
            (
                "illegal_argument_exception",
                "number of documents in the index cannot exceed 2147483519",
                "again",
            ),
            ("illegal_argument_exception", "field [pipeline with id [] is not valid", "refused"),
            ("document_parsing_exception", "pipeline with id [geo] does not exist", "refused"),
        ] {
            let error = ItemError { status: 400, kind: kind.to_owned(), reason: reason.to_owned() };
            let answer = BulkAnswer { status: 400, stamp: None, error: Some(Box::new(error)) };
            assert_eq!(name(judge_bulk(&index(), answer)), verdict, "{reason}");
        }
    }

    #[test]
    fn a_slot_with_an_error_is_never_a_missing_document() {
        let error = |kind: &str| ItemError { status: 0, kind: kind.to_owned(), reason: String::new() };
        let failed = |kind| judge_get(GetAnswer::Failed(error(kind)));
        assert_eq!(judge_get(GetAnswer::Missing), GetVerdict::Missing);
        assert_eq!(
            failed("index_not_found_exception"),
            GetVerdict::Again(error("index_not_found_exception"))
        );
        assert_eq!(failed("security_exception"), GetVerdict::Unauthorized(error("security_exception")));
    }

    #[test]
    fn each_failure_of_a_request_has_one_meaning_and_one_label() {
        let after = Some(Duration::from_secs(7));
        let status = |status, kind: &str| CallError::Status {
            status,
            kind: kind.to_owned(),
            reason: String::new(),
            retry_after: after,
        };
        let again = CallVerdict::Again { after };
        let at_once = CallVerdict::Again { after: None };
        #[rustfmt::skip]
        let table = [
            (status(429, "es_rejected_execution_exception"),  again.clone(),               "429"),
            (status(500, ""),                                 again.clone(),               "500"),
            (status(502, ""),                                 again.clone(),               "502"),
            (status(503, ""),                                 again.clone(),               "503"),
            (status(504, ""),                                 again.clone(),               "504"),
            (status(599, ""),                                 again.clone(),               "5xx"),
            (status(413, ""),                                 CallVerdict::Split,          "413"),
            (status(400, "action_request_validation_exception"), CallVerdict::Split,       "400"),
            (status(400, ""),                                 again.clone(),               "400"),
            (status(401, "security_exception"),               CallVerdict::Unauthorized,   "401"),
            (status(403, ""),                                 CallVerdict::Unauthorized,   "403"),
            (status(403, "cluster_block_exception"),          again.clone(),               "403"),
            (status(404, "index_not_found_exception"),        again.clone(),               "404"),
            (status(405, ""),                                 again.clone(),               "405"),
            (status(302, ""),                                 again,                       "other"),
            (CallError::Connection(String::new()),            at_once.clone(),             "connection"),
            (CallError::Timeout(Duration::ZERO),              at_once.clone(),             "timeout"),
            (CallError::Unsigned(String::new()),              at_once.clone(),             "unsigned"),
            (CallError::Undecodable(String::new()),           at_once,                     "undecodable"),
            (CallError::TooLarge { bytes: 2, most: 1 },       CallVerdict::Split,          "too_large"),
        ];
        for (error, verdict, label) in table {
            assert_eq!((judge_call(&error), error.label()), (verdict, label), "{error:?}");
        }
    }
}
