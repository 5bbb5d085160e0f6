//! `_bulk`: lines into operations, operations into the store, outcomes into an answer.
//!
//! A request is read and validated as a whole before its first operation is carried out, as Elasticsearch does it: one line
//! that is malformed, or one operation that could never be valid, refuses all of them. After that each stands for itself.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::error::EsError;
use super::index::{WriteGuard, WriteResult};
use super::store::{IndexStore, WriteContent};
use crate::core::filter_path::FilterPath;
use crate::io::elastic::SeqNo;

/// The longest `_id`, in bytes.
const MAX_ID_BYTES: usize = 512;

/// One operation of the request.
struct Operation<'b> {
    verb: &'static str,
    index: Cow<'b, str>,
    id: Option<Cow<'b, str>>,
    condition: WriteGuard,
    content: WriteContent<'b>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action<'b> {
    #[serde(borrow)]
    Index(Meta<'b>),
    #[serde(borrow)]
    Create(Meta<'b>),
    #[serde(borrow)]
    Delete(Meta<'b>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta<'b> {
    #[serde(borrow)]
    _index: Option<Cow<'b, str>>,
    #[serde(borrow)]
    _id: Option<Cow<'b, str>>,
    version: Option<i64>,
    version_type: Option<&'b str>,
    if_seq_no: Option<u64>,
    if_primary_term: Option<u64>,
    op_type: Option<&'b str>,
    #[serde(rename = "require_alias")]
    _require_alias: Option<bool>,
}

/// How a bulk request is to be carried out and answered.
pub(super) struct BulkOptions<'a> {
    /// From the path; for operations that name none.
    pub(super) default_index: Option<&'a str>,
    /// Members of the response to return; all if `None`.
    pub(super) filter: Option<&'a FilterPath>,
    /// Whether searches are to see the writes at once.
    pub(super) refresh: bool,
    /// Whether the next operation is to be refused, as a server that has too much to do refuses it.
    pub(super) refuses: &'a dyn Fn() -> bool,
}

/// Carries out a request; the bytes of its answer.
pub(super) fn bulk(store: &IndexStore, body: &[u8], options: &BulkOptions<'_>) -> Result<Vec<u8>, EsError> {
    let operations = parse(body, options.default_index)?;
    let mut written_to = BTreeSet::new();
    let outcomes: Vec<Outcome> = operations
        .into_iter()
        .map(|operation| {
            let id = operation.id.unwrap_or_else(|| Cow::Owned(store.unique()));
            let result = if (options.refuses)() {
                Err(EsError::new(
                    429,
                    "es_rejected_execution_exception",
                    "rejected execution of coordinating operation, as the stand-in was told to",
                ))
            } else {
                store.write(&operation.index, &id, operation.condition, operation.content)
            };
            if options.refresh && result.is_ok() && !written_to.contains(&*operation.index) {
                written_to.insert(operation.index.clone());
            }
            Outcome { verb: operation.verb, index: operation.index, id, result }
        })
        .collect();
    for name in &written_to {
        for index in store.resolve(name, false, true)? {
            store.refresh(&index)?;
        }
    }
    Ok(render(&outcomes, options.filter))
}

fn parse<'b>(body: &'b [u8], default_index: Option<&'b str>) -> Result<Vec<Operation<'b>>, EsError> {
    if body.is_empty() {
        return Err(EsError::new(400, "parse_exception", "request body is required"));
    }
    let Some(body) = body.strip_suffix(b"\n") else {
        return Err(EsError::illegal_argument("The bulk request must be terminated by a newline [\\n]"));
    };
    let mut operations = Vec::new();
    let mut complaints = Vec::new();
    let mut lines = body.split(|&byte| byte == b'\n').enumerate();
    while let Some((number, line)) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let (verb, meta) =
            match serde_json::from_slice(line).map_err(|error| malformed(line, number + 1, &error))? {
                Action::Index(meta) if meta.op_type == Some("create") => ("create", meta),
                Action::Index(meta) => ("index", meta),
                Action::Create(meta) => ("create", meta),
                Action::Delete(meta) => ("delete", meta),
            };
        let content = match verb {
            "delete" => WriteContent::Nothing,
            _ => match lines.next() {
                Some((_, source)) => WriteContent::Source(source),
                // An action line without its source is no operation.
                None => break,
            },
        };
        let condition = match condition(verb, &meta) {
            Ok(condition) => condition,
            Err(complaint) => {
                complaints.push(complaint);
                WriteGuard::Any
            }
        };
        complaints.extend(address_complaint(verb, &meta, default_index));
        let index = meta._index.or(default_index.map(Cow::Borrowed)).unwrap_or_default();
        operations.push(Operation { verb, index, id: meta._id, condition, content });
    }
    if operations.is_empty() {
        complaints.push("no requests added".to_owned());
    }
    if complaints.is_empty() {
        return Ok(operations);
    }
    Err(invalid(&complaints))
}

/// A request that is refused as a whole for what its parts ask for.
pub(super) fn invalid(complaints: &[String]) -> EsError {
    let numbered: String =
        complaints.iter().enumerate().map(|(n, complaint)| format!(" {}: {complaint};", n + 1)).collect();
    EsError::new(400, "action_request_validation_exception", format!("Validation Failed:{numbered}"))
}

fn address_complaint(verb: &str, meta: &Meta<'_>, default_index: Option<&str>) -> Option<String> {
    if meta._index.is_none() && default_index.is_none() {
        return Some("index is missing".to_owned());
    }
    match meta._id.as_deref() {
        None if verb == "delete" => Some("id is missing".to_owned()),
        Some(id) if id.len() > MAX_ID_BYTES => Some(format!(
            "id [{id}] is too long, must be no longer than {MAX_ID_BYTES} bytes but was: {}",
            id.len()
        )),
        _ => None,
    }
}

fn condition(verb: &str, meta: &Meta<'_>) -> Result<WriteGuard, String> {
    let is_versioned = meta.version.is_some() || meta.version_type.is_some_and(|kind| kind != "internal");
    if meta.if_seq_no.is_some() || meta.if_primary_term.is_some() {
        return match (meta.if_seq_no, meta.if_primary_term) {
            _ if is_versioned => Err("compare and write operations can not use versioning".to_owned()),
            (Some(seq_no), Some(primary_term)) if primary_term > 0 => {
                Ok(WriteGuard::Unchanged(SeqNo { seq_no, primary_term }))
            }
            (Some(_), _) => Err("ifSeqNo is set, but primary term is [0]".to_owned()),
            (None, term) => {
                Err(format!("ifSeqNo is unassigned, but primary term is [{}]", term.unwrap_or_default()))
            }
        };
    }
    if verb == "create" {
        return match is_versioned {
            true => Err("create operations only support internal versioning. use index instead".to_owned()),
            false => Ok(WriteGuard::Absent),
        };
    }
    match (meta.version_type.unwrap_or("internal"), meta.version) {
        ("internal", None) => Ok(WriteGuard::Any),
        ("internal", Some(_)) => {
            Err("internal versioning can not be used for optimistic concurrency control. \
                                      Please use `if_seq_no` and `if_primary_term` instead"
                .to_owned())
        }
        ("external" | "external_gt", Some(version)) if version >= 0 => Ok(WriteGuard::External(version)),
        ("external_gte", Some(version)) if version >= 0 => Ok(WriteGuard::ExternalOrEqual(version)),
        (kind, version) => {
            // Elasticsearch's "match any" stands for an unset version.
            let (kind, version) = (kind.to_uppercase(), version.unwrap_or(-3));
            Err(format!("illegal version value [{version}] for version type [{kind}]"))
        }
    }
}

/// Why an action line cannot be read.
fn malformed(line: &[u8], number: usize, error: &serde_json::Error) -> EsError {
    let found = match serde_json::from_slice::<Value>(line) {
        Ok(Value::Object(members)) => match members.iter().next() {
            Some((verb, Value::Object(_))) if ["index", "create", "delete"].contains(&verb.as_str()) => {
                if error.to_string().contains("unknown field") {
                    let reason =
                        format!("Action/metadata line [{number}] contains an unknown parameter ({error})");
                    return EsError::illegal_argument(reason);
                }
                return EsError::new(400, "x_content_parse_exception", error.to_string());
            }
            Some((verb, _)) => {
                format!("expected field [create], [delete], [index] or [update] but found [{verb}]")
            }
            None => "expected FIELD_NAME but found [END_OBJECT]".to_owned(),
        },
        Ok(Value::Array(_)) => "expected START_OBJECT but found [START_ARRAY]".to_owned(),
        Ok(_) => "expected START_OBJECT but found a value".to_owned(),
        Err(error) => return EsError::new(400, "x_content_parse_exception", error.to_string()),
    };
    EsError::illegal_argument(format!("Malformed action/metadata line [{number}], {found}"))
}

struct Outcome<'b> {
    verb: &'static str,
    index: Cow<'b, str>,
    id: Cow<'b, str>,
    result: Result<WriteResult, EsError>,
}

/// Writes the answer by hand: it is as long as the request has operations.
fn render(outcomes: &[Outcome<'_>], filter: Option<&FilterPath>) -> Vec<u8> {
    let wants = |path: &[&str]| filter.is_none_or(|filter| filter.wants(path));
    let mut out = Vec::with_capacity(64 + outcomes.len() * if filter.is_some() { 40 } else { 180 });
    let mut whole = WrittenObject::begin(&mut out);
    if wants(&["errors"]) {
        whole.raw(
            "errors",
            if outcomes.iter().any(|outcome| outcome.result.is_err()) { "true" } else { "false" },
        );
    }
    if wants(&["took"]) {
        whole.raw("took", "0");
    }
    let fields = ["index", "create", "delete"].map(|verb| Fields::new(verb, &wants));
    if fields.iter().any(|fields| fields.any) {
        whole.key("items");
        let out = &mut *whole.out;
        out.push(b'[');
        for (n, outcome) in outcomes.iter().enumerate() {
            if n > 0 {
                out.push(b',');
            }
            let fields = fields.iter().find(|fields| fields.verb == outcome.verb).unwrap_or(&fields[0]);
            let mut item = WrittenObject::begin(out);
            item.key(outcome.verb);
            outcome.render(item.out, fields, &wants);
            item.end();
        }
        out.push(b']');
    }
    whole.end();
    out
}

/// Members of an item to return.
struct Fields {
    verb: &'static str,
    any: bool,
    index: bool,
    id: bool,
    version: bool,
    result: bool,
    shards: bool,
    seq_no: bool,
    primary_term: bool,
    status: bool,
}

impl Fields {
    fn new(verb: &'static str, wants: &dyn Fn(&[&str]) -> bool) -> Self {
        let wanted = |field| wants(&["items", verb, field]);
        Self {
            verb,
            any: wanted("status") || wanted("_id") || wanted("_version") || wanted("error"),
            index: wanted("_index"),
            id: wanted("_id"),
            version: wanted("_version"),
            result: wanted("result"),
            shards: wanted("_shards"),
            seq_no: wanted("_seq_no"),
            primary_term: wanted("_primary_term"),
            status: wanted("status"),
        }
    }
}

impl Outcome<'_> {
    fn render(&self, out: &mut Vec<u8>, fields: &Fields, wants: &dyn Fn(&[&str]) -> bool) {
        let mut item = WrittenObject::begin(out);
        if fields.index {
            item.text("_index", &self.index);
        }
        if fields.id {
            item.text("_id", &self.id);
        }
        match &self.result {
            Ok(written) => {
                if fields.version {
                    item.raw("_version", &written.version.to_string());
                }
                if fields.result {
                    item.text("result", written.result);
                }
                if fields.shards {
                    item.raw("_shards", r#"{"total":1,"successful":1,"failed":0}"#);
                }
                if fields.seq_no {
                    item.raw("_seq_no", &written.seq_no.to_string());
                }
                if fields.primary_term {
                    item.raw("_primary_term", &written.primary_term.to_string());
                }
                if fields.status {
                    item.raw("status", &written.status().to_string());
                }
            }
            Err(error) => {
                if fields.status {
                    item.raw("status", &error.status.to_string());
                }
                let mut object = error.to_value();
                if let Value::Object(members) = &mut object {
                    members.retain(|name, value| match value {
                        Value::Object(cause) => {
                            cause.retain(|inner, _| wants(&["items", self.verb, "error", name, inner]));
                            !cause.is_empty()
                        }
                        _ => wants(&["items", self.verb, "error", name]),
                    });
                    if !members.is_empty() {
                        item.raw("error", &object.to_string());
                    }
                }
            }
        }
        item.end();
    }
}

/// An object being written.
pub(super) struct WrittenObject<'o> {
    pub(super) out: &'o mut Vec<u8>,
    is_first: bool,
}

impl<'o> WrittenObject<'o> {
    pub(super) fn begin(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_first: true }
    }

    pub(super) fn key(&mut self, name: &str) {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// A value that is JSON already.
    pub(super) fn raw(&mut self, name: &str, json: &str) {
        self.key(name);
        self.out.extend_from_slice(json.as_bytes());
    }

    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.key(name);
        let written = serde_json::to_writer(&mut *self.out, text);
        debug_assert!(written.is_ok(), "a Vec takes every byte");
    }

    pub(super) fn end(self) {
        self.out.push(b'}');
    }
}
