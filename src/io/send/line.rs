//! One line of `geofold send`'s input, parsed to the record that it asks for. Pure.
//!
//! | line | record |
//! |---|---|
//! | `{"id":"anna","location":…}` | value: the line as it is; key: the text or number at the id field |
//! | `anna<TAB>{"location":…}` | value: what follows the tab |
//! | `anna<TAB>`, `anna<TAB>null` | a delete: no value |
//! | `anna<TAB>patch<TAB>{…}`, `anna<TAB>touch` | the operation is named in between |
//! | `anna` | only where the operation for all lines is `delete`, `touch` or `refeed` |
//!
//! An id therefore cannot begin with `{` or contain a tab in the forms with a tab; in the first form it can.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::base::ids::{BadDocId, DocId};

/// The operation of a record, as in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The document, whole.
    Index,
    /// Deletes the document.
    Delete,
    /// An RFC 7386 merge patch.
    Patch,
    /// Place the document again.
    Touch,
    /// Fetch the document from the source of truth.
    Refeed,
}

impl Op {
    /// Every operation.
    pub const ALL: [Self; 5] = [Self::Index, Self::Delete, Self::Patch, Self::Touch, Self::Refeed];

    /// The header's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Delete => "delete",
            Self::Patch => "patch",
            Self::Touch => "touch",
            Self::Refeed => "refeed",
        }
    }

    fn has_value(self) -> bool {
        matches!(self, Self::Index | Self::Patch)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An unknown operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no operation; it must be index, delete, patch, touch or refeed")]
pub struct UnknownOp(String);

impl FromStr for Op {
    type Err = UnknownOp;

    fn from_str(word: &str) -> Result<Self, UnknownOp> {
        Self::ALL.into_iter().find(|op| op.as_str() == word).ok_or_else(|| UnknownOp(word.to_owned()))
    }
}

/// How lines are to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineRules {
    /// Dotted path of the id in a line that is a JSON object.
    pub id_field: String,
    /// The operation of lines that do not name their own; `None`: a value is the document, no value a delete.
    pub op: Option<Op>,
}

/// The record of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendRecord<'a> {
    /// The document's id, checked.
    pub key: Cow<'a, str>,
    /// The JSON object as in the line; `None` is a null value.
    pub value: Option<&'a str>,
    /// The header, if there is to be one.
    pub op: Option<Op>,
}

impl SendRecord<'_> {
    /// Whether it deletes the document.
    pub fn is_delete(&self) -> bool {
        match self.op {
            Some(op) => op == Op::Delete,
            None => self.value.is_none(),
        }
    }
}

/// An invalid line.
#[derive(Debug, Error)]
#[error("line {line}: {problem}")]
pub struct LineError {
    /// Its number, from 1.
    pub line: u64,
    /// The problem.
    pub problem: LineProblem,
}

/// The problem of an invalid line.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum LineProblem {
    /// Longer than any record could be.
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
    /// Not text.
    #[error("it is not valid UTF-8")]
    NotUtf8,
    /// Neither form.
    #[error("it is neither a JSON object nor an id, a tab, and a JSON object")]
    NoTab,
    /// A worker with this configuration would refuse it.
    #[error("a worker would refuse it: {0}")]
    Refused(String),
    /// The middle column is no operation.
    #[error("{0}")]
    Op(UnknownOp),
    /// Invalid JSON.
    #[error("its JSON is not valid: {0}")]
    BadJson(String),
    /// JSON of another kind.
    #[error("its value must be a JSON object, or empty for a delete")]
    NotObject,
    /// The id is not where it should be.
    #[error(
        "it has no field {0:?} for the id; name the field that holds it, or write the id and a tab before the JSON"
    )]
    NoId(String),
    /// The id is an object, array, boolean or null.
    #[error("the id at {0:?} is neither text nor a number")]
    IdKind(String),
    /// The id cannot be one.
    #[error("{0}")]
    BadId(#[from] BadDocId),
    /// An index or patch of nothing.
    #[error("{0} needs a JSON object, and there is none")]
    NoValue(Op),
}

/// The record that `text` asks for; `None` for a blank line. `line` is its number, for the error.
///
/// # Errors
/// If the line is none of the forms above.
pub fn parse_line<'a>(
    text: &'a str,
    line: u64,
    rules: &LineRules,
) -> Result<Option<SendRecord<'a>>, LineError> {
    let text = text.trim_end_matches(['\n', '\r']);
    if text.trim().is_empty() {
        return Ok(None);
    }
    parse(text, rules).map(Some).map_err(|problem| LineError { line, problem })
}

fn parse<'a>(text: &'a str, rules: &LineRules) -> Result<SendRecord<'a>, LineProblem> {
    // Not `trim`: a tab in front is an empty id.
    let document = text.trim_start_matches(' ').trim_end();
    if document.starts_with('{') {
        let key = id_in(document, &rules.id_field)?;
        return record(key.into(), Some(document), rules.op, true);
    }
    let Some((key, rest)) = text.split_once('\t') else {
        return match rules.op {
            Some(op) if !op.has_value() => record(text.into(), None, Some(op), true),
            _ => Err(LineProblem::NoTab),
        };
    };
    // JSON never begins with one of these words, so that the column is unambiguous.
    let (word, after) = rest.split_once('\t').unwrap_or((rest, ""));
    let (op, value) = match word.parse() {
        Ok(op) => (Some(op), after.trim()),
        // No JSON begins with another word.
        Err(unknown) if is_word(word) => return Err(LineProblem::Op(unknown)),
        Err(UnknownOp(_)) => (rules.op, rest.trim()),
    };
    let value = (!value.is_empty() && value != "null").then_some(value);
    record(key.into(), value, op, false)
}

fn is_word(text: &str) -> bool {
    let is_literal = ["null", "true", "false"].contains(&text.trim());
    !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_alphabetic()) && !is_literal
}

/// `checked`: the value is known to be a JSON object.
fn record<'a>(
    key: Cow<'a, str>,
    value: Option<&'a str>,
    op: Option<Op>,
    checked: bool,
) -> Result<SendRecord<'a>, LineProblem> {
    DocId::from_key(Some(key.as_bytes()))?;
    let value = match (op, value) {
        (Some(op), _) if !op.has_value() => None,
        (Some(op), None) => return Err(LineProblem::NoValue(op)),
        (_, value) => value,
    };
    if let Some(value) = value.filter(|_| !checked) {
        serde_json::from_str::<IgnoredAny>(value).map_err(bad_json)?;
        if !value.starts_with('{') {
            return Err(LineProblem::NotObject);
        }
    }
    Ok(SendRecord { key, value, op })
}

/// The text or number at `path` (dotted) in `document`, which must be one JSON object. Numbers are taken as written, so that no
/// digit is lost.
fn id_in(document: &str, path: &str) -> Result<String, LineProblem> {
    type Object<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

    let mut object: Object<'_> = serde_json::from_str(document).map_err(bad_json)?;
    let mut names = path.split('.').peekable();
    while let Some(name) = names.next() {
        let missing = || LineProblem::NoId(path.to_owned());
        let value = object.get(name).ok_or_else(missing)?.get();
        if names.peek().is_some() {
            object = serde_json::from_str(value).map_err(|_| missing())?;
            continue;
        }
        return match value.as_bytes().first() {
            Some(b'"') => serde_json::from_str(value).map_err(bad_json),
            Some(b'-' | b'0'..=b'9') => Ok(value.to_owned()),
            _ => Err(LineProblem::IdKind(path.to_owned())),
        };
    }
    Err(LineProblem::NoId(path.to_owned()))
}

/// serde_json counts lines within the value, which would read like lines of the input.
fn bad_json(error: serde_json::Error) -> LineProblem {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    LineProblem::BadJson(format!("{what} (column {} of the JSON)", error.column()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(op: Option<Op>) -> LineRules {
        LineRules { id_field: "id".to_owned(), op }
    }

    fn parsed(text: &str, op: Option<Op>) -> (String, Option<String>, Option<Op>) {
        let record = parse_line(text, 1, &rules(op)).unwrap().unwrap();
        (record.key.into_owned(), record.value.map(str::to_owned), record.op)
    }

    fn problem(text: &str, op: Option<Op>) -> LineProblem {
        parse_line(text, 7, &rules(op)).unwrap_err().problem
    }

    fn wanted(key: &str, value: &str, op: Option<Op>) -> (String, Option<String>, Option<Op>) {
        (key.to_owned(), (!value.is_empty()).then(|| value.to_owned()), op)
    }

    #[test]
    fn a_json_line_keeps_its_bytes_and_gives_its_id() {
        let line = r#"{ "id": "an\u006ea", "n":1.0}"#;
        assert_eq!(parsed(line, None), wanted("anna", line, None));
        assert_eq!(parsed(&format!("{line}\r\n"), None), wanted("anna", line, None));
        let long = r#"{"id":12345678901234567890123}"#;
        assert_eq!(parsed(long, None), wanted("12345678901234567890123", long, None));
        let nested = LineRules { id_field: "user.id".to_owned(), op: None };
        let record = parse_line(r#"{"user":{"id":"b"}}"#, 1, &nested).unwrap().unwrap();
        assert_eq!(record.key, "b");
    }

    #[test]
    fn a_line_with_tabs_names_its_id_and_perhaps_its_operation() {
        assert_eq!(parsed("a b\t{\"x\":1}", None), wanted("a b", "{\"x\":1}", None));
        assert_eq!(parsed("a\tpatch\t{\"x\":1}", None), wanted("a", "{\"x\":1}", Some(Op::Patch)));
        assert_eq!(parsed("a\ttouch", Some(Op::Index)), wanted("a", "", Some(Op::Touch)));
        assert_eq!(parsed("a\tdelete\t{\"x\":1}", None), wanted("a", "", Some(Op::Delete)));
    }

    #[test]
    fn an_empty_or_null_value_is_a_delete() {
        for line in ["a\t", "a\tnull", "a\t \n"] {
            assert_eq!(parsed(line, None), wanted("a", "", None), "{line:?}");
        }
        assert!(parse_line("a\t", 1, &rules(None)).unwrap().unwrap().is_delete());
        assert!(!parse_line("a\ttouch", 1, &rules(None)).unwrap().unwrap().is_delete());
    }

    #[test]
    fn bare_id_is_valid_if_the_operation_needs_no_value() {
        assert_eq!(parsed("a", Some(Op::Touch)), wanted("a", "", Some(Op::Touch)));
        assert_eq!(parsed("{\"id\":\"a\"}", Some(Op::Delete)), wanted("a", "", Some(Op::Delete)));
        assert_eq!(problem("a", None), LineProblem::NoTab);
        assert_eq!(problem("a", Some(Op::Patch)), LineProblem::NoTab);
        assert_eq!(problem("a\t", Some(Op::Patch)), LineProblem::NoValue(Op::Patch));
    }

    #[test]
    fn blank_lines_are_passed_over() {
        for line in ["", "\n", " \r\n", "\t"] {
            assert_eq!(parse_line(line, 1, &rules(None)).unwrap(), None, "{line:?}");
        }
    }

    #[test]
    fn bad_line_is_reported_with_its_reason() {
        assert_eq!(problem("{\"x\":1}", None), LineProblem::NoId("id".to_owned()));
        assert_eq!(problem("{\"id\":null}", None), LineProblem::IdKind("id".to_owned()));
        assert_eq!(problem("{\"id\":\"\"}", None), LineProblem::BadId(BadDocId::Empty));
        assert_eq!(problem("\t{}", None), LineProblem::BadId(BadDocId::Empty));
        assert_eq!(problem("a\t[1]", None), LineProblem::NotObject);
        assert_eq!(problem("a\ttrue", None), LineProblem::NotObject);
        for line in ["a\tupsert\t{}", "a\tupsert"] {
            assert_eq!(problem(line, None), LineProblem::Op(UnknownOp("upsert".to_owned())));
        }
        assert!(matches!(problem("{\"id\":\"a\"", None), LineProblem::BadJson(_)));
        assert!(matches!(problem("{\"id\":\"a\"} x", None), LineProblem::BadJson(_)));
        let error = parse_line("a\t{x}", 7, &rules(None)).unwrap_err().to_string();
        assert_eq!(error, "line 7: its JSON is not valid: key must be a string (column 2 of the JSON)");
    }
}
