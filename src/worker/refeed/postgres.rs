//! Many documents per configured query, in a read-only transaction.

use std::collections::HashMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _};
use tokio::sync::OnceCell;

use super::{FetchAnswer, FetchFailure};
use crate::base::ids::DocId;
use crate::io::database::{Database, DatabaseError, DatabaseRow};
use crate::support::config::database_url::{DatabaseUrl, PostgresUrl};
use crate::support::config::{DatabaseConfig, SourceConfig};

/// A database with documents.
#[derive(Debug)]
pub(super) struct Postgres {
    config: DatabaseConfig,
    /// Set on the first connection: a source that is down at startup is dialled on demand.
    database: OnceCell<Database>,
    /// The configured query, wrapped in geofold's own.
    query: String,
    max_document: usize,
    /// Byte limit of one answer: all concurrent ones together stay within the worker's limit.
    max_answer: usize,
}

impl Postgres {
    /// `None` without a query.
    pub(super) fn new(source: &SourceConfig, url: &PostgresUrl, max_document: usize) -> Option<Self> {
        let max_in_flight = source.max_in_flight.max(1);
        let config = DatabaseConfig {
            url: DatabaseUrl::Postgres(url.clone()),
            password: source.password.clone(),
            password_file: None,
            ca_file: source.ca_file.clone(),
            timeout: source.request_timeout,
            max_connections: u32::try_from(max_in_flight).unwrap_or(u32::MAX),
        };
        Some(Self {
            config,
            database: OnceCell::new(),
            query: around(source.query.as_deref()?),
            max_document,
            max_answer: (source.max_bytes.as_usize() / max_in_flight).max(max_document),
        })
    }

    /// An id that the query cannot take (a text where it wants a number) would spoil the answers of all others: then
    /// the halves are queried separately, down to that id alone.
    pub(super) fn select<'a>(&'a self, ids: &'a [DocId]) -> BoxFuture<'a, Vec<FetchAnswer>> {
        async move {
            match self.select_at_once(ids).await {
                Ok(answers) => answers,
                Err(detail) if ids.len() <= 1 => {
                    vec![FetchAnswer::Unusable { reason: "unfetchable_id", detail }; ids.len()]
                }
                Err(_) => {
                    let (some, others) = ids.split_at(ids.len() / 2);
                    let mut answers = self.select(some).await;
                    answers.append(&mut self.select(others).await);
                    answers
                }
            }
        }
        .boxed()
    }

    /// # Errors
    /// If the query fails on one of the ids or documents.
    async fn select_at_once(&self, ids: &[DocId]) -> Result<Vec<FetchAnswer>, String> {
        // PostgreSQL text cannot contain NUL, so no row has this id; it would fail the whole query.
        let askable: Vec<&str> = ids.iter().map(DocId::as_str).filter(|id| !id.contains('\0')).collect();
        let mut found = Found::new(&askable, self.max_document, self.max_answer);
        let result = if askable.is_empty() { Ok(()) } else { self.ask(&askable, &mut found).await };
        let failure = match result {
            Ok(()) => found.wrong.take().map(FetchFailure::new),
            Err(error) if error.is_of_a_value() => return Err(format!("asking the source: {error}")),
            Err(error) => Some(FetchFailure::new(format!("asking the source: {error}"))),
        };
        Ok(ids.iter().map(|id| found.answer(id.as_str(), failure.as_ref())).collect())
    }

    async fn ask(&self, ids: &[&str], found: &mut Found) -> Result<(), DatabaseError> {
        let database = self.database.get_or_try_init(|| Database::open(&self.config)).await?;
        let mut transaction = database.read("fetching documents").await?;
        let limit = i64::try_from(self.max_document).unwrap_or(i64::MAX);
        transaction.each_row(self.query.clone(), ids, limit, |row| found.take(&row)).await?;
        if found.is_whole() { transaction.rollback().await } else { Ok(()) }
    }
}

/// A document that is too large stays on the server. The newline ends a comment at the query's end.
fn around(query: &str) -> String {
    let query = query.trim().trim_end_matches(';');
    format!(
        "SELECT fed.id::text, octet_length(fed.document::text)::bigint, \
         CASE WHEN octet_length(fed.document::text) <= $2 THEN fed.document::text END \
         FROM (\n{query}\n) AS fed (id, document)"
    )
}

/// Rows received so far.
struct Found {
    rows: HashMap<String, Option<FetchAnswer>, ahash::RandomState>,
    max_document: usize,
    bytes_left: usize,
    /// The answer was cut: ids without a row are unknown.
    is_cut: bool,
    /// What is wrong with the query.
    wrong: Option<&'static str>,
}

impl Found {
    fn new(ids: &[&str], max_document: usize, max_answer: usize) -> Self {
        let rows = ids.iter().map(|id| ((*id).to_owned(), None)).collect();
        Self { rows, max_document, bytes_left: max_answer, is_cut: false, wrong: None }
    }

    fn is_whole(&self) -> bool {
        !self.is_cut && self.wrong.is_none()
    }

    fn take(&mut self, row: &DatabaseRow) -> Result<ControlFlow<()>, sqlx::Error> {
        let (id, length, document) = (row.maybe_text(0)?, row.maybe_int(1)?, row.maybe_text(2)?);
        Ok(self.take_row(id, length, document))
    }

    fn take_row(
        &mut self,
        id: Option<String>,
        length: Option<i64>,
        document: Option<String>,
    ) -> ControlFlow<()> {
        let Some(slot) = id.and_then(|id| self.rows.get_mut(&id)) else {
            self.wrong = Some(
                "source.query gives a row for an id that was not asked for; its first column must be the id, and it \
                 must end with WHERE id = ANY($1), or the like",
            );
            return ControlFlow::Break(());
        };
        if slot.is_some() {
            self.wrong = Some("source.query returns two rows for one id; it must return at most one");
            return ControlFlow::Break(());
        }
        let answer = match (length, document) {
            (None, _) => FetchAnswer::Gone,
            (Some(_), Some(document)) => {
                let Some(left) = self.bytes_left.checked_sub(document.len()) else {
                    self.is_cut = true;
                    return ControlFlow::Break(());
                };
                self.bytes_left = left;
                FetchAnswer::Found(Bytes::from(document))
            }
            (Some(length), None) => FetchAnswer::Unusable {
                reason: "too_large",
                detail: format!(
                    "the document at the source has {length} bytes, above documents.max_bytes ({})",
                    self.max_document
                ),
            },
        };
        *slot = Some(answer);
        ControlFlow::Continue(())
    }

    fn answer(&self, id: &str, failure: Option<&FetchFailure>) -> FetchAnswer {
        if let Some(failure) = failure {
            return FetchAnswer::Failed(failure.clone());
        }
        match self.rows.get(id) {
            Some(Some(answer)) => answer.clone(),
            Some(None) if self.is_cut => FetchAnswer::Failed(FetchFailure::new(
                "the documents of one query exceed the limit; lower source.batch_size",
            )),
            Some(None) | None => FetchAnswer::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(found: &mut Found, id: &str, document: Option<&str>) -> bool {
        let length = document.map(|document| i64::try_from(document.len()).unwrap());
        let document = document.filter(|document| document.len() <= found.max_document);
        found.take_row(Some(id.to_owned()), length, document.map(str::to_owned)).is_continue()
    }

    #[test]
    fn each_id_is_found_gone_or_too_large() {
        let mut found = Found::new(&["a", "b", "c", "d"], 5, 100);
        assert!(row(&mut found, "b", Some("{ }")) && row(&mut found, "c", None));
        assert!(row(&mut found, "d", Some("{     }")));
        assert!(found.is_whole());
        assert_eq!(found.answer("a", None), FetchAnswer::Gone);
        assert_eq!(found.answer("b", None), FetchAnswer::Found(Bytes::from_static(b"{ }")));
        assert_eq!(found.answer("c", None), FetchAnswer::Gone, "a null document");
        assert!(matches!(found.answer("d", None), FetchAnswer::Unusable { reason: "too_large", .. }));
    }

    #[test]
    fn ids_beyond_a_cut_answer_stay_unknown() {
        let mut found = Found::new(&["a", "b", "c"], 5, 7);
        assert!(row(&mut found, "a", Some("12345")));
        assert!(!row(&mut found, "b", Some("123")));
        assert!(!found.is_whole());
        assert!(matches!(found.answer("a", None), FetchAnswer::Found(_)));
        for id in ["b", "c"] {
            assert!(matches!(found.answer(id, None), FetchAnswer::Failed(_)), "{id}: not gone");
        }
    }

    #[test]
    fn unexpected_rows_are_reported() {
        for ids in [["a", "x"], ["a", "a"]] {
            let mut found = Found::new(&["a", "b"], 5, 100);
            assert!(row(&mut found, ids[0], Some("{}")));
            assert!(!row(&mut found, ids[1], Some("{}")));
            assert!(found.wrong.is_some_and(|wrong| wrong.contains("source.query")), "{ids:?}");
        }
    }

    #[test]
    fn comment_at_the_end_of_the_query_is_closed() {
        let query = around("SELECT id, d FROM t WHERE id = ANY($1); -- by key\n ");
        assert!(query.contains("-- by key\n) AS fed"), "{query}");
        assert!(around("SELECT 1 ;\n").contains("SELECT 1 \n)"));
    }
}
