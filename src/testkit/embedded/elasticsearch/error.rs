//! Errors in Elasticsearch's words: status, type, reason, cause, and the object that an answer carries.

use serde_json::{Map, Value, json};

/// Why something was not done, as Elasticsearch 8.19 would say it.
#[derive(Debug, Clone, PartialEq)]
pub struct EsError {
    /// HTTP status, of the request or of the item.
    pub status: u16,
    /// `error.type`.
    pub kind: &'static str,
    /// `error.reason`.
    pub reason: String,
    /// `error.caused_by`: type and reason.
    pub cause: Option<(&'static str, String)>,
    /// Further members of the error object, such as `index`.
    pub details: Map<String, Value>,
}

impl EsError {
    /// An error without cause and details.
    pub fn new(status: u16, kind: &'static str, reason: impl Into<String>) -> Self {
        Self { status, kind, reason: reason.into(), cause: None, details: Map::new() }
    }

    pub(super) fn illegal_argument(reason: impl Into<String>) -> Self {
        Self::new(400, "illegal_argument_exception", reason)
    }

    pub(super) fn no_such_index(name: &str) -> Self {
        Self::new(404, "index_not_found_exception", format!("no such index [{name}]"))
            .with("resource.type", "index_or_alias")
            .with("resource.id", name)
            .with("index_uuid", "_na_")
            .with("index", name)
    }

    pub(super) fn caused_by(mut self, kind: &'static str, reason: impl Into<String>) -> Self {
        self.cause = Some((kind, reason.into()));
        self
    }

    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.details.insert(name.to_owned(), json!(value));
        self
    }

    /// The error object, as an item of a `_bulk` answer has it.
    pub fn to_value(&self) -> Value {
        let mut object = self.details.clone();
        object.insert("type".to_owned(), json!(self.kind));
        object.insert("reason".to_owned(), json!(self.reason));
        if let Some((kind, reason)) = &self.cause {
            object.insert("caused_by".to_owned(), json!({"type": kind, "reason": reason}));
        }
        Value::Object(object)
    }

    /// The error object with its root cause, as a slot of an `_mget` answer and a whole answer have it.
    pub fn with_root_cause(&self) -> Value {
        let mut error = self.to_value();
        let mut root = error.clone();
        if let Some(root) = root.as_object_mut() {
            root.remove("caused_by");
        }
        error["root_cause"] = json!([root]);
        error
    }

    /// The body of an answer that is this error.
    pub fn body(&self) -> Value {
        json!({"error": self.with_root_cause(), "status": self.status})
    }
}
