//! Answers from bytes: `_bulk`, `_mget`, and the error body of a whole request. Pure, and safe on any input.
//!
//! Items are matched with operations by position, so an answer of another length than the request is no answer at all
//! ([`CallError::Undecodable`]), and so is one that does not parse. Nothing here judges what an item means; that is
//! `answer.rs`. Decoding streams into the result: no JSON tree, and each `_source` is copied once, so that one kept
//! document does not keep the whole answer alive.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{AdminAnswer, BulkAnswer, CallError, FoundDocument, GetAnswer, ItemError, SeqNo};
use crate::core::decode::on_one_line;

/// Maximum bytes kept of an error's `reason`: reasons may quote documents, and thousands may fail at once.
const MAX_REASON_BYTES: usize = 300;
/// Longest `kind` that is kept of an error, in bytes.
const MAX_KIND_BYTES: usize = 100;
/// Maximum bytes kept of a body that is not Elasticsearch's.
const MAX_FOREIGN_BYTES: usize = 200;

/// Decodes the answer to a `_bulk` of `expected` operations.
pub fn bulk_answer(body: &[u8], expected: usize) -> Result<Vec<BulkAnswer>, CallError> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        items: Vec<BulkItem<'a>>,
    }
    if let Some(answers) = all_successful(body, expected) {
        return Ok(answers);
    }
    let Body { items } = parse(body, "bulk")?;
    same_count(items.len(), expected, "bulk")?;
    Ok(items.into_iter().map(BulkItem::into_answer).collect())
}

/// Fast path: decodes exactly the bytes with which Elasticsearch answers when every operation succeeds, which is the usual case
/// and takes a fraction of a parser's time. `None` for anything else; the caller then parses.
fn all_successful(body: &[u8], expected: usize) -> Option<Vec<BulkAnswer>> {
    const ACTIONS: [&[u8]; 3] = [br#"{"index":{"#, br#"{"create":{"#, br#"{"delete":{"#];
    let mut rest = body.strip_prefix(br#"{"errors":false,"items":["#)?;
    let mut answers = Vec::with_capacity(expected);
    for n in 0..expected {
        if n > 0 {
            rest = rest.strip_prefix(b",")?;
        }
        rest = ACTIONS.iter().find_map(|action| rest.strip_prefix(*action))?;
        let mut left = None;
        if let Some(after) = rest.strip_prefix(br#""_seq_no":"#) {
            let (seq_no, after) = natural(after)?;
            let (primary_term, after) = natural(after.strip_prefix(br#","_primary_term":"#)?)?;
            left = stamp(i64::try_from(seq_no).ok(), i64::try_from(primary_term).ok());
            rest = after.strip_prefix(b",")?;
        }
        let (status, after) = natural(rest.strip_prefix(br#""status":"#)?)?;
        rest = after.strip_prefix(b"}}")?;
        answers.push(BulkAnswer { status: u16::try_from(status).ok()?, stamp: left, error: None });
    }
    (rest == b"]}").then_some(answers)
}

/// An unsigned integer and the rest. `None` also if it has too many digits.
fn natural(text: &[u8]) -> Option<(u64, &[u8])> {
    const MAX_DIGITS: usize = 18;
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    let has_leading_zero = digits > 1 && number[0] == b'0';
    if digits == 0 || digits > MAX_DIGITS || has_leading_zero {
        return None;
    }
    Some((number.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')), rest))
}

/// Decodes the answer to an `_mget` of `expected` documents.
pub fn mget_answer(body: &[u8], expected: usize) -> Result<Vec<GetAnswer>, CallError> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        docs: Vec<GetSlot<'a>>,
    }
    let Body { docs } = parse(body, "mget")?;
    same_count(docs.len(), expected, "mget")?;
    Ok(docs.into_iter().map(GetSlot::into_answer).collect())
}

/// `error.type` and `error.reason` of a failed request. The type is empty if the body is not Elasticsearch's error object (a
/// proxy's, for example).
pub fn error_body(body: &[u8]) -> (String, String) {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        error: ErrorBody<'a>,
    }
    if let Ok(Body { error }) = serde_json::from_slice::<Body<'_>>(body) {
        let ItemError { kind, reason, .. } = error.into_item_error(0);
        return (kind, reason);
    }
    // Cut before the lossy conversion: a proxy's body may be large.
    let start = &body[..body.len().min(MAX_FOREIGN_BYTES)];
    (String::new(), shorten(&String::from_utf8_lossy(start), MAX_FOREIGN_BYTES))
}

/// At most `max` bytes of `text`, on one line: control characters become spaces, runs of white space one.
pub(super) fn shorten(text: &str, max: usize) -> String {
    let mut short = String::with_capacity(text.len().min(max));
    for word in text.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty()) {
        if !short.is_empty() {
            short.push(' ');
        }
        let fitting = cut(word, max.saturating_sub(short.len()));
        short.push_str(fitting);
        if fitting.len() < word.len() {
            break;
        }
    }
    // At most a space too many.
    short.truncate(max);
    short
}

/// The start of `text` that fits in `max` bytes (`str::floor_char_boundary`, which needs a later toolchain).
fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8], what: &str) -> Result<T, CallError> {
    serde_json::from_slice(body).map_err(|error| {
        CallError::Undecodable(shorten(&format!("{what} answer: {error}"), MAX_REASON_BYTES))
    })
}

fn same_count(got: usize, expected: usize, what: &str) -> Result<(), CallError> {
    if got == expected {
        return Ok(());
    }
    Err(CallError::Undecodable(format!("{what} answer has {got} items, but {expected} were sent")))
}

/// `_seq_no` is -2 and `_primary_term` 0 where none was assigned.
pub(super) fn stamp(seq_no: Option<i64>, primary_term: Option<i64>) -> Option<SeqNo> {
    let seq_no = u64::try_from(seq_no?).ok()?;
    let primary_term = u64::try_from(primary_term?).ok().filter(|&term| term > 0)?;
    Some(SeqNo { seq_no, primary_term })
}

/// `{"index":{"status":201,…}}`; the action's name (index, create, update, delete) is ignored, since the operation is known.
struct BulkItem<'a>(BulkResult<'a>);

#[derive(Deserialize)]
struct BulkResult<'a> {
    status: u16,
    _seq_no: Option<i64>,
    _primary_term: Option<i64>,
    #[serde(borrow)]
    error: Option<ErrorBody<'a>>,
}

impl BulkItem<'_> {
    fn into_answer(self) -> BulkAnswer {
        let BulkResult { status, _seq_no, _primary_term, error } = self.0;
        BulkAnswer {
            status,
            stamp: stamp(_seq_no, _primary_term),
            error: error.map(|error| Box::new(error.into_item_error(status))),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for BulkItem<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneEntry;

        impl<'de> Visitor<'de> for OneEntry {
            type Value = BulkItem<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with one action")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let Some((IgnoredAny, result)) = map.next_entry::<IgnoredAny, BulkResult<'de>>()? else {
                    return Err(A::Error::custom("an item without action"));
                };
                if map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    return Err(A::Error::custom("an item with several actions"));
                }
                Ok(BulkItem(result))
            }
        }

        deserializer.deserialize_map(OneEntry)
    }
}

#[derive(Deserialize)]
struct GetSlot<'a> {
    #[serde(default)]
    found: bool,
    _version: Option<u64>,
    _seq_no: Option<i64>,
    _primary_term: Option<i64>,
    #[serde(borrow)]
    _source: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<ErrorBody<'a>>,
}

impl GetSlot<'_> {
    fn into_answer(self) -> GetAnswer {
        if let Some(error) = self.error {
            return GetAnswer::Failed(error.into_item_error(0));
        }
        if !self.found {
            return GetAnswer::Missing;
        }
        let (Some(version), Some(stamp), Some(source)) =
            (self._version, stamp(self._seq_no, self._primary_term), self._source)
        else {
            return GetAnswer::Failed(ItemError {
                status: 0,
                kind: "incomplete_document".to_owned(),
                reason: "a document came without _version, _seq_no, _primary_term or _source; \
                         _source must be enabled in the index's mapping"
                    .to_owned(),
            });
        };
        // On one line, as it will be written back: a line break would end the bulk operation (adopted documents may be
        // pretty-printed).
        let source = on_one_line(Bytes::copy_from_slice(source.get().as_bytes()));
        GetAnswer::Found(FoundDocument { version, stamp, source })
    }
}

/// Elasticsearch's error object; or a plain string, as it answers to an unknown path.
#[derive(Default)]
struct ErrorBody<'a> {
    kind: Cow<'a, str>,
    reason: Cow<'a, str>,
    cause: Option<Box<ErrorBody<'a>>>,
}

impl ErrorBody<'_> {
    fn into_item_error(self, status: u16) -> ItemError {
        let mut reason = shorten(&self.reason, MAX_REASON_BYTES);
        let mut cause = self.cause.as_deref();
        while let Some(error) = cause
            && reason.len() < MAX_REASON_BYTES
        {
            // A wrapping exception often repeats the text of its cause.
            if !error.reason.is_empty() && !reason.contains(&*error.reason) {
                reason = shorten(&format!("{reason}: {}", error.reason), MAX_REASON_BYTES);
            }
            cause = error.cause.as_deref();
        }
        ItemError { status, kind: shorten(&self.kind, MAX_KIND_BYTES), reason }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ErrorBody<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Keeps the borrow where the text has no escapes; `Cow` alone never borrows inside an `Option`.
        #[derive(Deserialize)]
        struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

        #[derive(Deserialize)]
        #[serde(field_identifier, rename_all = "snake_case")]
        enum Field {
            Type,
            Reason,
            CausedBy,
            #[serde(other)]
            Other,
        }

        struct ObjectOrText;

        impl<'de> Visitor<'de> for ObjectOrText {
            type Value = ErrorBody<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an error object or text")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(ErrorBody { reason: Cow::Owned(text.to_owned()), ..ErrorBody::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut error = ErrorBody::default();
                while let Some(field) = map.next_key()? {
                    match field {
                        Field::Type => {
                            error.kind =
                                map.next_value::<Option<Text<'de>>>()?.map_or_else(Cow::default, |t| t.0);
                        }
                        Field::Reason => {
                            error.reason =
                                map.next_value::<Option<Text<'de>>>()?.map_or_else(Cow::default, |t| t.0);
                        }
                        Field::CausedBy => error.cause = map.next_value()?,
                        Field::Other => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(error)
            }
        }

        deserializer.deserialize_any(ObjectOrText)
    }
}

/// Elasticsearch's error on one line.
pub(crate) fn reason(answer: &AdminAnswer) -> String {
    let error = &answer.body["error"];
    let text = |value: &serde_json::Value| value.as_str().map(|text| text.replace('\n', " "));
    let said = text(&error["reason"]).or_else(|| text(error)).unwrap_or_else(|| "no reason given".to_owned());
    // What failed in a shard of a search, where the error itself is only "all shards failed".
    let of_a_shard = &error["failed_shards"][0]["reason"];
    let causes = [&error["caused_by"], of_a_shard, &of_a_shard["caused_by"]];
    causes
        .into_iter()
        .filter_map(|cause| text(&cause["reason"]))
        .fold(said, |said, cause| if said.contains(&cause) { said } else { format!("{said}: {cause}") })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn reason_of_an_error_says_what_failed_in_a_shard() {
        let body = json!({"error": {"reason": "all shards failed", "failed_shards": [{"reason":
            {"reason": "failed to create query: too many", "caused_by": {"reason": "too many"}}}]}});
        let answer = AdminAnswer { status: 400, body };
        assert_eq!(reason(&answer), "all shards failed: failed to create query: too many");
        let answer = AdminAnswer { status: 500, body: json!({"error": "no"}) };
        assert_eq!(reason(&answer), "no");
    }

    #[test]
    fn filtered_bulk_response_has_status_seq_no_and_error() {
        let body = br#"{"errors":true,"items":[
            {"index":{"_seq_no":7,"_primary_term":1,"status":201}},
            {"create":{"status":409,"error":{"type":"version_conflict_engine_exception","reason":"[a]: version conflict, document already exists (current version [1])"}}},
            {"index":{"status":400,"error":{"type":"document_parsing_exception","reason":"[1:25] failed to parse field [location] of type [geo_point]","caused_by":{"reason":"illegal latitude value [100.0] for location"}}}},
            {"delete":{"_seq_no":8,"_primary_term":1,"status":404}},
            {"update":{"status":429,"error":{"type":"es_rejected_execution_exception","reason":null}}}]}"#;
        let answers = bulk_answer(body, 5).unwrap();
        assert_eq!(answers[0].stamp, Some(SeqNo { seq_no: 7, primary_term: 1 }));
        assert_eq!((answers[0].status, &answers[0].error), (201, &None));
        assert_eq!(answers[1].error.as_ref().unwrap().kind, "version_conflict_engine_exception");
        let refused = answers[2].error.as_ref().unwrap();
        assert_eq!(refused.status, 400);
        assert_eq!(
            refused.reason,
            "[1:25] failed to parse field [location] of type [geo_point]: illegal latitude value [100.0] for location"
        );
        assert_eq!((answers[3].status, &answers[3].error), (404, &None));
        assert_eq!(answers[4].error.as_ref().unwrap().reason, "");
    }

    #[test]
    fn both_decoders_agree_on_responses_without_failures() {
        let items = [
            r#"{"index":{"status":200}}"#,
            r#"{"create":{"_seq_no":7,"_primary_term":1,"status":201}}"#,
            r#"{"delete":{"_seq_no":0,"_primary_term":0,"status":404}}"#,
        ];
        let body = format!(r#"{{"errors":false,"items":[{}]}}"#, items.join(","));
        let quickly = all_successful(body.as_bytes(), 3).unwrap();
        // A space is enough for the parser to have to read it.
        let spaced = body.replace("[{", "[ {");
        assert_eq!(all_successful(spaced.as_bytes(), 3), None);
        assert_eq!(quickly, bulk_answer(spaced.as_bytes(), 3).unwrap());
        assert_eq!(quickly[1].stamp, Some(SeqNo { seq_no: 7, primary_term: 1 }));
        for other in [
            body.replace("false", "true"),
            body.replace(r#""status":200"#, r#""status":200,"error":{}"#),
            body.replace(r#""status":200"#, r#""status":0200"#),
            body.replace(r#""status":200"#, r#""status":-200"#),
            body.replace(r#""status":200"#, r#""status":99999"#),
            body.replace("]}", "]} x"),
            body.replace("},{", "}{"),
            body.replace("},{", "},,{"),
        ] {
            assert_eq!(all_successful(other.as_bytes(), 3), None, "{other}");
        }
        for cut in 0..body.len() {
            assert_eq!(all_successful(&body.as_bytes()[..cut], 3), None);
        }
        assert_eq!((all_successful(body.as_bytes(), 2), all_successful(body.as_bytes(), 4)), (None, None));
    }

    #[test]
    fn an_unfiltered_bulk_answer_is_read_as_well() {
        let body = br#"{"took":30,"errors":false,"items":[{"index":{"_index":"p-s01","_id":"1","_version":1,"result":"created","_shards":{"total":2,"successful":1,"failed":0},"_seq_no":-2,"_primary_term":0,"status":201}}]}"#;
        assert_eq!(bulk_answer(body, 1).unwrap(), [BulkAnswer { status: 201, stamp: None, error: None }]);
    }

    #[test]
    fn malformed_response_is_an_error() {
        let one = br#"{"errors":false,"items":[{"index":{"status":200}}]}"#;
        assert!(bulk_answer(one, 1).is_ok());
        for (body, expected) in [
            (&one[..], 2),
            (one, 0),
            (b"{}", 0),
            (b"", 0),
            (b"<html>", 1),
            (br#"{"items":[{}]}"#, 1),
            (br#"{"items":[{"index":{"status":200},"delete":{"status":200}}]}"#, 1),
            (br#"{"items":[{"index":{}}]}"#, 1),
        ] {
            let answer = bulk_answer(body, expected);
            assert!(matches!(answer, Err(CallError::Undecodable(_))), "{answer:?}");
        }
        assert!(matches!(mget_answer(br#"{"docs":[]}"#, 1), Err(CallError::Undecodable(_))));
    }

    #[test]
    fn an_mget_answer_tells_found_missing_and_failed_apart() {
        let body = br#"{"docs":[
            {"_index":"p-s01","_id":"a","_version":17,"_seq_no":3,"_primary_term":2,"found":true,"_source":{"a" : 1.10}},
            {"_index":"p-s01","_id":"b","found":false},
            {"_index":"p-nope","_id":"c","error":{"root_cause":[{"type":"index_not_found_exception","reason":"no such index [p-nope]"}],"type":"index_not_found_exception","reason":"no such index [p-nope]","resource.id":"p-nope","index":"p-nope"}},
            {"_index":"p-s01","_id":"d","_version":17,"_seq_no":3,"_primary_term":2,"found":true}]}"#;
        let answers = mget_answer(body, 4).unwrap();
        let found = FoundDocument {
            version: 17,
            stamp: SeqNo { seq_no: 3, primary_term: 2 },
            source: Bytes::from_static(br#"{"a" : 1.10}"#),
        };
        assert_eq!(answers[0], GetAnswer::Found(found));
        assert_eq!(answers[1], GetAnswer::Missing);
        let GetAnswer::Failed(error) = &answers[2] else { panic!("{:?}", answers[2]) };
        assert_eq!((error.status, error.kind.as_str()), (0, "index_not_found_exception"));
        assert!(matches!(&answers[3], GetAnswer::Failed(error) if error.reason.contains("_source")));
    }

    #[test]
    fn a_pretty_printed_source_is_read_as_one_line() {
        let source = "{\r\n  \"text\" : \"a\\nb\",\n  \"n\": 1.10\n}";
        let body = format!(
            r#"{{"docs":[{{"found":true,"_version":1,"_seq_no":0,"_primary_term":1,"_source":{source}}}]}}"#
        );
        let answers = mget_answer(body.as_bytes(), 1).unwrap();
        let [GetAnswer::Found(found)] = answers.as_slice() else { panic!("{answers:?}") };
        assert_eq!(found.source, r#"{    "text" : "a\nb",   "n": 1.10 }"#);
    }

    #[test]
    fn request_error_is_read_from_elasticsearch_and_proxies() {
        let own = br#"{"error":{"root_cause":[{"type":"security_exception","reason":"missing authentication credentials"}],"type":"security_exception","reason":"missing \"authentication\" credentials","header":{"WWW-Authenticate":["Basic"]}},"status":401}"#;
        assert_eq!(
            error_body(own),
            ("security_exception".to_owned(), "missing \"authentication\" credentials".to_owned())
        );
        let text = br#"{"error":"Incorrect HTTP method for uri [/] and method [GET]","status":405}"#;
        assert_eq!(error_body(text).1, "Incorrect HTTP method for uri [/] and method [GET]");
        let proxy = b"<html>\r\n<head><title>502 Bad Gateway\x07</title>";
        assert_eq!(
            error_body(proxy),
            (String::new(), "<html> <head><title>502 Bad Gateway </title>".to_owned())
        );
        assert_eq!(error_body(b""), (String::new(), String::new()));
    }

    #[test]
    fn causes_are_appended_once_and_the_whole_stays_short() {
        let long = "x".repeat(1_000);
        let body = format!(
            r#"{{"error":{{"type":"t","reason":"a","caused_by":{{"reason":"a","caused_by":{{"reason":"b"}}}}}},"long":"{long}"}}"#
        );
        assert_eq!(error_body(body.as_bytes()).1, "a: b");
        let body = format!(r#"{{"error":{{"type":"t","reason":"é{long}","caused_by":{{"reason":"b"}}}}}}"#);
        assert!(error_body(body.as_bytes()).1.len() <= MAX_REASON_BYTES);
    }

    proptest! {
        #[test]
        fn no_body_makes_the_decoders_panic_or_keep_more_than_they_should(
            body in prop::collection::vec(any::<u8>(), 0..400), words in "[é x\u{1}\n]{0,300}", max in 0usize..50,
        ) {
            let _ = bulk_answer(&body, 1);
            let _ = mget_answer(&body, 1);
            // Each stray byte becomes a replacement character of three.
            prop_assert!(error_body(&body).1.len() <= MAX_FOREIGN_BYTES);
            let short = shorten(&words, max);
            prop_assert!(short.len() <= max && !short.contains(char::is_control));
        }

        #[test]
        fn a_damaged_answer_never_panics(at in 0usize..200, byte: u8, cut in 0usize..200) {
            let mut body = br#"{"errors":true,"items":[{"index":{"_seq_no":7,"_primary_term":1,"status":400,"error":{"type":"t","reason":"r","caused_by":{"reason":"c"}}}}],"docs":[{"found":true,"error":"e","_source":{}}]}"#.to_vec();
            if let Some(spot) = body.get_mut(at) {
                *spot = byte;
            }
            body.truncate(body.len().saturating_sub(cut));
            let _ = bulk_answer(&body, 1);
            let _ = mget_answer(&body, 1);
            let _ = error_body(&body);
        }
    }
}
