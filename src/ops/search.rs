//! A small client: the documents nearest to a point, from the geoshards that cover the circle.
//!
//! It is what a query service does, in its smallest form: make the cover, ask those indices and no other, and of a
//! document that is seen twice, since it moves, keep the copy of the higher version.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error;

use crate::base::geo::{Distance, GeoPoint};
use crate::geoshard::LiveMaps;
use crate::geoshard::cover::Shape;
use crate::geoshard::describe::covered;
use crate::io::elastic::decode::reason;
use crate::io::elastic::{AdminCall, CallError, Elastic, Method};

/// More documents are not asked for.
pub const MAX_LIMIT: usize = 5000;

/// Bytes of index names in one request: Elasticsearch takes lines of 4 KiB.
const NAMES_BYTES: usize = 3000;

/// What to look for.
#[derive(Debug, Clone)]
pub struct Search<'a> {
    /// By which documents are placed.
    pub maps: &'a LiveMaps,
    /// Start of every index name.
    pub prefix: &'a str,
    /// The field that holds a document's location.
    pub location: &'a str,
    /// From where.
    pub centre: GeoPoint,
    /// How far.
    pub radius: Distance,
    /// How many documents at most, up to [`MAX_LIMIT`].
    pub limit: usize,
    /// For each request.
    pub timeout: Duration,
}

/// One document.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hit {
    /// Its id.
    pub id: String,
    /// The geoshard that has this copy.
    pub shard: String,
    /// Metres from the centre.
    pub metres: f64,
    /// The copy's version: the document's position.
    pub version: u64,
}

/// What came of a search.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Found {
    /// The nearest first.
    pub hits: Vec<Hit>,
    /// The indices that were asked.
    pub indices: Vec<String>,
    /// Those that the cover names and that do not exist.
    pub missing: Vec<String>,
    /// Copies that were left out for a newer one.
    pub doubles: usize,
    /// What some index could not answer; then there may be more documents than these.
    pub failures: Vec<String>,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum SearchError {
    /// No answer at all.
    #[error("searching {indices}: {source}")]
    Call {
        /// Which indices were asked.
        indices: String,
        /// What happened.
        source: CallError,
    },
    /// An answer that says no.
    #[error("searching {indices}: elasticsearch answered {status}: {reason}")]
    Refused {
        /// Which indices were asked.
        indices: String,
        /// HTTP status.
        status: u16,
        /// What the answer says.
        reason: String,
    },
    /// Not what a search answers.
    #[error("searching {indices}: the answer has no hits")]
    Undecodable {
        /// Which indices were asked.
        indices: String,
    },
}

/// Looks for documents.
pub async fn search(elastic: &dyn Elastic, search: &Search<'_>) -> Result<Found, SearchError> {
    let circle = Shape::circle(search.centre, search.radius);
    let mut found = Found::default();
    for names in batches(covered(search.maps, search.prefix, &circle).indices) {
        ask(elastic, search, names, &mut found).await?;
    }
    found.finish(search.limit);
    Ok(found)
}

/// Asks for the documents of these indices. One that does not exist is left out, and noted.
async fn ask(
    elastic: &dyn Elastic,
    search: &Search<'_>,
    mut names: Vec<String>,
    found: &mut Found,
) -> Result<(), SearchError> {
    while !names.is_empty() {
        let indices = names.join(",");
        let call =
            AdminCall { method: Method::Post, path: format!("/{indices}/_search"), body: Some(body(search)) };
        let answer = match elastic.admin(call, search.timeout).await {
            Ok(answer) => answer,
            Err(source) => return Err(SearchError::Call { indices, source }),
        };
        let missing = match answer.status {
            200 => {
                found.take(&answer.body, search.prefix).ok_or(SearchError::Undecodable { indices })?;
                found.indices.append(&mut names);
                return Ok(());
            }
            404 => answer.body["error"]["index"].as_str(),
            _ => None,
        };
        match missing.and_then(|missing| names.iter().position(|name| name == missing)) {
            Some(place) => found.missing.push(names.remove(place)),
            None => {
                let (status, reason) = (answer.status, reason(&answer));
                return Err(SearchError::Refused { indices, status, reason });
            }
        }
    }
    Ok(())
}

/// The body of the request. It asks for twice as many hits as are wanted, since each may be an old copy.
fn body(search: &Search<'_>) -> Value {
    let Search { location, centre, radius, limit, .. } = search;
    let centre = json!({"lat": centre.lat(), "lon": centre.lon()});
    let distance = format!("{}m", radius.metres());
    json!({
        "size": 2 * limit.min(&MAX_LIMIT),
        "version": true,
        "_source": false,
        "track_total_hits": false,
        "query": {"bool": {"filter": [{"geo_distance": {"distance": distance, *location: centre.clone()}}]}},
        "sort": [{"_geo_distance": {*location: centre, "order": "asc", "unit": "m"}}],
    })
}

/// Index names by the request.
fn batches(names: Vec<String>) -> Vec<Vec<String>> {
    let mut batches: Vec<Vec<String>> = Vec::new();
    let mut bytes = NAMES_BYTES;
    for name in names {
        bytes += name.len() + 1;
        if bytes > NAMES_BYTES {
            batches.push(Vec::new());
            bytes = name.len() + 1;
        }
        if let Some(last) = batches.last_mut() {
            last.push(name);
        }
    }
    batches
}

impl Found {
    /// Takes in an answer; `None` if it is not one of a search.
    fn take(&mut self, answer: &Value, prefix: &str) -> Option<()> {
        for hit in answer["hits"]["hits"].as_array()? {
            let shard = hit["_index"].as_str()?.strip_prefix(prefix)?.strip_prefix('-')?;
            self.hits.push(Hit {
                id: hit["_id"].as_str()?.to_owned(),
                shard: shard.to_owned(),
                metres: hit["sort"][0].as_f64()?,
                version: hit["_version"].as_u64()?,
            });
        }
        for failure in answer["_shards"]["failures"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
            self.failures.push(format!(
                "{}: {}",
                text(&failure["index"]),
                text(&failure["reason"]["reason"])
            ));
        }
        if answer["timed_out"] == true {
            self.failures.push("elasticsearch gave up before it had seen everything".to_owned());
        }
        Some(())
    }

    /// Each document once, in its newest copy; the nearest first, `limit` of them.
    fn finish(&mut self, limit: usize) {
        let copies = self.hits.len();
        let mut newest: BTreeMap<String, Hit> = BTreeMap::new();
        for hit in self.hits.drain(..) {
            match newest.get(&hit.id) {
                Some(known) if known.version >= hit.version => {}
                _ => drop(newest.insert(hit.id.clone(), hit)),
            }
        }
        self.doubles = copies - newest.len();
        self.hits = newest.into_values().collect();
        self.hits.sort_by(|a, b| a.metres.total_cmp(&b.metres).then_with(|| a.id.cmp(&b.id)));
        self.hits.truncate(limit);
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hits, indices, doubles, .. } = self;
        write!(f, "{} documents, from {}", hits.len(), indices.join(", "))?;
        match doubles {
            0 => writeln!(f)?,
            doubles => writeln!(f, "; {doubles} older copies of documents that move left out")?,
        }
        let wide = hits.iter().map(|hit| hit.shard.len()).chain(["shard".len()]).max().unwrap_or_default();
        writeln!(f, "{:>12}  {:wide$}  {:>20}  id", "metres", "shard", "version")?;
        for Hit { id, shard, metres, version } in hits {
            writeln!(f, "{metres:>12.1}  {shard:wide$}  {version:>20}  {id}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::ids::ShardId;
    use crate::geoshard::GeoshardMap;
    use crate::io::elastic::scripted::Scripted;

    /// Every face of the cube is a geoshard.
    fn faces() -> LiveMaps {
        let ranges = (0..6_u64).map(|face| {
            let start = if face == 0 { 0 } else { (face << 61) | 1 };
            (start, ShardId::new(&format!("f{face}")).unwrap())
        });
        LiveMaps::One(Arc::new(GeoshardMap::new(1, "faces", ranges.collect()).unwrap()))
    }

    fn run(elastic: &Scripted, limit: usize) -> Result<Found, SearchError> {
        let wanted = Search {
            maps: &faces(),
            prefix: "p",
            location: "location",
            centre: GeoPoint::new(0.0, 45.0).unwrap(),
            radius: "25mi".parse().unwrap(),
            limit,
            timeout: Duration::from_secs(1),
        };
        futures::executor::block_on(search(elastic, &wanted))
    }

    fn answer(hits: &[(&str, &str, u64, f64)]) -> Value {
        let hit = |(index, id, version, metres): &(&str, &str, u64, f64)| json!({"_index": index, "_id": id, "_version": version, "sort": [metres]});
        json!({"hits": {"hits": hits.iter().map(hit).collect::<Vec<_>>()}})
    }

    #[test]
    fn only_the_indices_of_the_cover_are_asked_and_a_moving_document_is_found_once() {
        let elastic = Scripted {
            admin: Box::new(|_, _| {
                let hits = [
                    ("p-f0", "ada", 7, 10.0),
                    ("p-f0", "bo", 3, 15.0),
                    ("p-f1", "ada", 9, 20.0),
                    ("p-f1", "cy", 1, 30.0),
                    ("p-f0", "cy", 0, 1.0),
                ];
                (200, answer(&hits))
            }),
            ..Scripted::default()
        };
        let found = run(&elastic, 10).unwrap();
        assert_eq!(*elastic.calls.lock().unwrap(), ["POST /p-f0,p-f1/_search"]);
        let seen: Vec<_> =
            found.hits.iter().map(|hit| (hit.id.as_str(), hit.shard.as_str(), hit.version)).collect();
        assert_eq!(seen, [("bo", "f0", 3), ("ada", "f1", 9), ("cy", "f1", 1)]);
        assert_eq!(found.doubles, 2);
        assert_eq!(run(&elastic, 1).unwrap().hits.len(), 1);
    }

    #[test]
    fn an_index_that_is_missing_is_left_out_and_named() {
        let elastic = Scripted {
            admin: Box::new(|call, _| match call {
                "POST /p-f1/_search" => (200, answer(&[("p-f1", "ada", 1, 1.0)])),
                _ => (404, json!({"error": {"type": "index_not_found_exception", "index": "p-f0"}})),
            }),
            ..Scripted::default()
        };
        let found = run(&elastic, 10).unwrap();
        assert_eq!((found.missing, found.indices), (vec!["p-f0".to_owned()], vec!["p-f1".to_owned()]));
        assert_eq!(found.hits.len(), 1);
    }

    #[test]
    fn what_can_not_be_answered_is_said() {
        let with = |status, body: Value| Scripted {
            admin: Box::new(move |_, _| (status, body.clone())),
            ..Scripted::default()
        };
        let refused = run(&with(400, json!({"error": {"type": "t", "reason": "why"}})), 1).unwrap_err();
        assert!(refused.to_string().starts_with("searching p-f0,p-f1: elasticsearch answered 400"));
        let other = json!({"error": {"index": "other", "reason": "no such index [other]"}});
        assert!(matches!(run(&with(404, other), 1), Err(SearchError::Refused { status: 404, .. })));
        assert!(matches!(run(&with(200, json!({})), 1), Err(SearchError::Undecodable { .. })));
        let mut part = answer(&[]);
        part["_shards"] = json!({"failures": [{"index": "p-f0", "reason": {"reason": "closed"}}]});
        part["timed_out"] = json!(true);
        assert_eq!(run(&with(200, part), 1).unwrap().failures.len(), 2);
    }

    #[test]
    fn many_indices_are_asked_by_several_requests() {
        let names: Vec<String> = (0..500).map(|n| format!("prefix-shard-{n:03}")).collect();
        let batches = batches(names.clone());
        assert!(batches.len() > 1);
        assert!(batches.iter().all(|batch| !batch.is_empty() && batch.join(",").len() <= NAMES_BYTES));
        assert_eq!(batches.concat(), names);
    }
}
