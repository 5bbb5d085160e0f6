//! Points from the documents of Elasticsearch indices, a page at a time.
//!
//! The index cannot be corrected just for planning, so a document without a point or load is skipped and counted.

use std::time::Duration;

use super::{Columns, PointLocation, PointRow, RowProblem, document};
use crate::io::elastic::Elastic;
use crate::io::elastic::scan::{IndexScan, ScanError, ScanOptions};

/// Documents of one request.
const PAGE: usize = 2_000;

/// Result of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scanned {
    /// Documents.
    pub read: u64,
    /// Of them, those without a point or a load.
    pub left_out: u64,
    /// The problem of the first of those.
    pub why: Option<String>,
}

/// Why a scan ended early.
#[derive(Debug, thiserror::Error)]
pub enum ScanPointsError {
    /// Elasticsearch.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// Processing the points failed.
    #[error("{0}")]
    Use(Box<dyn std::error::Error + Send + Sync>),
    /// Not a name that can be a part of a request.
    #[error(
        "{0:?} is no name of an index: give lower-case letters, digits, '-', '_', '.', and '*' for any of them"
    )]
    Name(String),
}

impl Columns {
    /// The needed fields of a document.
    fn fields(&self) -> Vec<String> {
        let place = match &self.place {
            PointLocation::Usual => vec!["location".to_owned()],
            PointLocation::Path(path) => path.fields(),
            PointLocation::Pair { lat, lon } => vec![lat.clone(), lon.clone()],
        };
        place.into_iter().chain(self.weight.columns().map(str::to_owned)).chain(self.id.clone()).collect()
    }
}

/// Passes on the points of all documents of `indices` (may be patterns), as searches see them. `seen` gets the number read so
/// far. Memory is bounded by a page.
pub async fn scan<E: std::error::Error + Send + Sync + 'static>(
    elastic: &dyn Elastic,
    indices: &[String],
    columns: &Columns,
    timeout: Duration,
    mut each: impl FnMut(PointRow<'_>) -> Result<(), E>,
    mut seen: impl FnMut(u64),
) -> Result<Scanned, ScanPointsError> {
    if let Some(bad) = indices.iter().find(|name| !is_name(name)) {
        return Err(ScanPointsError::Name(bad.clone()));
    }
    let options = ScanOptions { page: PAGE, timeout, fields: columns.fields(), query: None };
    let mut scan = IndexScan::open(elastic, indices, options).await?;
    let mut scanned = Scanned::default();
    let mut each = |row: PointRow<'_>| each(row).map_err(|error| RowProblem::Use(Box::new(error)));
    let result = loop {
        let page = match scan.next().await {
            Ok(page) if page.is_empty() => break Ok(()),
            Ok(page) => page,
            Err(error) => break Err(error.into()),
        };
        scanned.read += page.len() as u64;
        let problem = page.iter().find_map(|hit| {
            match document(hit.source.to_string().as_bytes(), columns, &mut each) {
                Ok(()) => None,
                Err(RowProblem::Use(error)) => Some(ScanPointsError::Use(error)),
                Err(problem) => {
                    scanned.left_out += 1;
                    scanned.why.get_or_insert_with(|| problem.to_string());
                    None
                }
            }
        });
        if let Some(error) = problem {
            break Err(error);
        }
        seen(scanned.read);
    };
    scan.close().await;
    result.map(|()| scanned)
}

fn is_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.*".contains(&b);
    !name.is_empty() && !name.starts_with(['-', '_']) && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use serde_json::{Value, json};

    use super::*;
    use crate::base::clock::BootClock;
    use crate::base::ids::{DocId, ShardId};
    use crate::io::elastic::http::{HttpElastic, HttpOptions};
    use crate::io::elastic::{AdminCall, BulkOp, Index, Method, WriteCondition};
    use crate::testkit::embedded::elasticsearch::{Standin, StandinOptions};

    const SOON: Duration = Duration::from_secs(20);

    async fn call(elastic: &HttpElastic, method: Method, path: &str, body: Option<Value>) {
        let call = AdminCall { method, path: path.to_owned(), body };
        let answer = elastic.admin(call, SOON).await.unwrap();
        assert!((200..300).contains(&answer.status), "{path}: {answer:?}");
    }

    #[tokio::test]
    async fn documents_of_all_indices_are_points_and_those_without_one_are_counted() {
        let standin = Standin::start(StandinOptions::default()).await.unwrap();
        let options = HttpOptions::new(vec![standin.url().parse().unwrap()], "p", SOON);
        let elastic = HttpElastic::connect(&options, std::sync::Arc::new(BootClock)).unwrap();
        let mappings = json!({"mappings": {"properties": {"at": {"type": "geo_point"}}}});
        for index in ["p-a", "p-b"] {
            call(&elastic, Method::Put, &format!("/{index}"), Some(mappings.clone())).await;
        }
        let document = |index: &str, id: String, source: Value| BulkOp::Index {
            index: Index::Geoshard(ShardId::new(index).unwrap()),
            id: DocId::from_key(Some(id.as_bytes())).unwrap(),
            guard: WriteCondition::Absent,
            source: source.to_string().into(),
        };
        // More than a page.
        let mut documents: Vec<BulkOp> = (0..PAGE + 500)
            .map(|n| {
                let source =
                    json!({"at": {"lat": 1.0, "lon": n % 180}, "stats": {"users": 2}, "name": "long"});
                document(if n % 2 == 0 { "a" } else { "b" }, n.to_string(), source)
            })
            .collect();
        documents.push(document("a", "nowhere".to_owned(), json!({"stats": {"users": 2}})));
        documents.push(document("a", "idle".to_owned(), json!({"at": "1,2"})));
        for answer in elastic.bulk(&documents, SOON).await.unwrap() {
            assert_eq!(answer.status, 201, "{answer:?}");
        }
        call(&elastic, Method::Post, "/_refresh", None).await;

        let path = crate::core::decode::LocationPath::new("at").unwrap();
        let weight = "0.5 + stats.users".parse().unwrap();
        let columns = Columns { place: PointLocation::Path(path), weight, id: None };
        let (mut points, mut load, mut told) = (0_usize, 0.0, 0);
        let add = |row: PointRow<'_>| {
            points += 1;
            load += row.load;
            Ok::<_, Infallible>(())
        };
        let names = ["p-*".to_owned()];
        let scanned = scan(&elastic, &names, &columns, SOON, add, |seen| told = seen).await.unwrap();
        let all = PAGE + 500;
        assert_eq!((scanned.read, scanned.left_out, told), (all as u64 + 2, 2, all as u64 + 2));
        assert!(scanned.why.is_some());
        assert_eq!((points, load), (all, 2.5 * all as f64));

        let full = |_: PointRow<'_>| Err(std::io::Error::other("full"));
        let ended = scan(&elastic, &names, &columns, SOON, full, |_| {}).await.unwrap_err();
        assert_eq!(ended.to_string(), "full");
        for bad in ["", "_all", "a/b", "a?x", "A"] {
            let refused = scan(&elastic, &[bad.to_owned()], &columns, SOON, full, |_| {}).await.unwrap_err();
            assert!(matches!(refused, ScanPointsError::Name(_)), "{bad}");
        }
    }
}
