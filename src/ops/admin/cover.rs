//! `/shards/cover`: the geoshards that a search within a circle, box or polygon must query.
//!
//! It answers from the maps that are live, which the worker publishes: one, two while the map is changed, and none while
//! it does not know. Then it says so (503), since an answer from an old map could leave a geoshard out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use thiserror::Error;

use crate::geoshard::cover::{BadShape, Shape};
use crate::geoshard::{LiveMaps, describe};

/// Returns the live maps; `None` while unknown.
pub type LiveNow = Arc<dyn Fn() -> Option<LiveMaps> + Send + Sync>;

/// Inputs of the covers.
#[derive(Clone)]
pub struct CoverSource {
    /// Read for each request.
    pub maps: LiveNow,
    /// Start of every index name.
    pub prefix: String,
}

impl fmt::Debug for CoverSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoverSource").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// An invalid query. Its text is bounded for any request.
#[derive(Debug, Error)]
enum BadQuery {
    #[error(
        "give lat, lon and radius (for example 25mi), or top, left, bottom and right, or polygon (lat,lon;lat,lon;…)"
    )]
    Parameters,
    #[error(transparent)]
    Shape(#[from] BadShape),
}

impl CoverSource {
    /// The answer to a query string.
    pub(super) async fn answer(self, query: &str) -> Response {
        let shape = match shape(query) {
            Ok(shape) => shape,
            Err(error) => return refusal(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let Some(maps) = (self.maps)() else {
            let error = "the live map is unknown; retry in a moment, or ask another worker";
            return refusal(StatusCode::SERVICE_UNAVAILABLE, error);
        };
        // A polygon may take milliseconds, which the worker's own tasks should not wait for.
        let work = move || describe::covered(&maps, &self.prefix, &shape);
        match tokio::task::spawn_blocking(work).await {
            Ok(covered) => ([(header::CACHE_CONTROL, "no-store")], Json(covered)).into_response(),
            Err(error) => {
                tracing::error!(%error, "a cover could not be made");
                refusal(StatusCode::INTERNAL_SERVER_ERROR, "the cover could not be made")
            }
        }
    }
}

fn refusal(status: StatusCode, error: &str) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], Json(json!({"error": error}))).into_response()
}

/// Exactly the parameters of one shape, each once.
fn shape(query: &str) -> Result<Shape, BadQuery> {
    let mut parameters = BTreeMap::new();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        if parameters.insert(name.into_owned(), value.into_owned()).is_some() {
            return Err(BadQuery::Parameters);
        }
    }
    // In the alphabet's order, as the map has them.
    let names: Vec<&str> = parameters.keys().map(String::as_str).collect();
    let value = |name: &str| parameters[name].as_str();
    let joined = |names: &[&str]| names.iter().map(|name| value(name)).collect::<Vec<_>>().join(",");
    Ok(match names.as_slice() {
        ["lat", "lon", "radius"] => Shape::parse_circle(&joined(&["lat", "lon", "radius"]))?,
        ["bottom", "left", "right", "top"] => Shape::parse_box(&joined(&["top", "left", "bottom", "right"]))?,
        ["polygon"] => Shape::parse_polygon(value("polygon"))?,
        _ => return Err(BadQuery::Parameters),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::base::random::Random;

    #[test]
    fn a_query_is_one_shape() {
        let centre = GeoPoint::new(48.85, -2.35).unwrap();
        let circle = Shape::circle(centre, "25mi".parse().unwrap());
        assert_eq!(shape("lat=48.85&lon=-2.35&radius=25mi").unwrap(), circle);
        assert_eq!(shape("radius=25%20mi&lon=-2.35&lat=%2B48.85").unwrap(), circle);
        let over = Shape::bounding_box(1.0, 179.0, -1.0, -179.0).unwrap();
        assert_eq!(shape("top=1&left=179&bottom=-1&right=-179").unwrap(), over);
        let triangle = Shape::polygon(vec![(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)]).unwrap();
        for query in ["polygon=0,0;0,1;1,1", "polygon=0,0+0,1+1,1+0,0", "polygon=0%2C0%3B0%2C1%3B1%2C1"] {
            assert_eq!(shape(query).unwrap(), triangle, "{query}");
        }
    }

    #[test]
    fn any_other_query_is_refused_with_a_reason_of_bounded_length() {
        let long = format!("lat=0&lon=0&radius={}", "9".repeat(60_000));
        for (query, says) in [
            ("", "give lat, lon and radius"),
            ("lat=1&lon=2", "give lat"),
            ("lat=1&lon=2&radius=3&limit=4", "give lat"),
            ("lat=1&lon=2&radius=3&lat=4", "give lat"),
            ("lat=1&lon=2&radius=3&polygon=0,0", "give lat"),
            ("lat=1,1&lon=2&radius=3", "is not of the form"),
            ("lat=x&lon=2&radius=3", "not a number"),
            ("lat=91&lon=2&radius=3", "latitude 91"),
            ("lat=1&lon=2&radius=NaN", "NaN"),
            ("lat=1&lon=2&radius=-1", "-1"),
            ("top=0&left=0&bottom=1&right=0", "below its bottom"),
            ("polygon=", "0 vertices"),
            (&long, "is not a finite number"),
        ] {
            let error = shape(query).unwrap_err().to_string();
            assert!(error.contains(says) && error.len() < 500, "{query}: {error}");
        }
    }

    #[test]
    fn no_query_makes_it_panic() {
        const PIECES: [&str; 24] = [
            "lat",
            "lon",
            "radius",
            "polygon",
            "top",
            "left",
            "bottom",
            "right",
            "=",
            "=",
            "&",
            ",",
            ";",
            "%",
            "%2C",
            "+",
            "1",
            "-180",
            "9e999",
            "NaN",
            "km",
            "%ff%00",
            "é",
            "0,0;0,1;1,1",
        ];
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let query: String =
                (0..random.below(14)).map(|_| PIECES[usize::try_from(random.below(24)).unwrap()]).collect();
            if let Err(error) = shape(&query) {
                assert!(error.to_string().len() < 500);
            }
        }
    }
}
