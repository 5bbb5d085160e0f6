//! What `sort` says: how hits are compared, and whether the nearest come first.

use serde_json::{Map, Value};

use super::constraint::shapes;
use super::error::{RouterRefusal, quoted};
use crate::base::geo::GeoPoint;

/// Keys of one sort, at most.
const MAX_KEYS: usize = 32;

/// The order of hits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sort {
    /// Empty: by score.
    pub keys: Vec<SortKey>,
    /// What the first key measures, if it is the distance to one point, the nearest first, as the router can bound it.
    pub nearest: Option<Nearest>,
}

/// One key.
#[derive(Debug, Clone, PartialEq)]
pub struct SortKey {
    /// The field, `_score`, or `_geo_distance`.
    pub name: String,
    /// Whether the greatest comes first.
    pub is_descending: bool,
    /// Whether documents without a value come first.
    pub missing_first: bool,
}

/// A sort by distance that geoshards can be put in order for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nearest {
    /// Measured from here.
    pub point: GeoPoint,
    /// Metres of one unit of the sort value.
    pub unit_metres: f64,
}

impl Sort {
    /// Reads `sort`, a list of keys or one of them; `location` is the field that documents are placed by.
    pub fn parse(value: &Value, location: &str) -> Result<Self, RouterRefusal> {
        let items = match value {
            Value::Array(items) => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        if items.len() > MAX_KEYS {
            return Err(RouterRefusal::bad(format!(
                "[sort] has {} keys; geofold route takes {MAX_KEYS}",
                items.len()
            )));
        }
        let mut sort = Self::default();
        for item in items {
            let malformed = || {
                RouterRefusal::parsing("malformed [sort]: each key is a name or an object with one member")
            };
            match item {
                Value::String(name) => sort.add(name, &Value::Null, location)?,
                Value::Object(members) if !members.is_empty() => {
                    // Elasticsearch takes several members as so many keys, in their order, which is lost here.
                    if members.len() > 1 {
                        return Err(malformed());
                    }
                    for (name, options) in members {
                        sort.add(name, options, location)?;
                    }
                }
                _ => return Err(malformed()),
            }
        }
        Ok(sort)
    }

    /// As in `?sort=age:desc,name`.
    pub fn parse_parameter(text: &str) -> Value {
        let key = |part: &str| match part.rsplit_once(':') {
            Some((name, order @ ("asc" | "desc"))) => serde_json::json!({name: order}),
            _ => Value::from(part),
        };
        text.split(',').map(key).collect()
    }

    fn add(&mut self, name: &str, options: &Value, location: &str) -> Result<(), RouterRefusal> {
        match name {
            "_doc" | "_shard_doc" => {
                return Err(RouterRefusal::unsupported(
                    &format!("sort by {}", quoted(name)),
                    "that order has no meaning over several indices; sort by a field of the documents",
                ));
            }
            "_script" => {
                return Err(RouterRefusal::unsupported(
                    "sort by _script",
                    "sort by a field, _score or _geo_distance",
                ));
            }
            _ => {}
        }
        let order = match options {
            Value::String(order) => Some(order.as_str()),
            other => other.get("order").and_then(Value::as_str),
        };
        let is_descending = match order {
            Some(order) => order.eq_ignore_ascii_case("desc"),
            None => name == "_score",
        };
        let missing_first = options.get("missing").and_then(Value::as_str) == Some("_first");
        if name == "_geo_distance" && self.keys.is_empty() && !is_descending {
            self.nearest = options.as_object().and_then(|options| nearest(options, location));
        }
        self.keys.push(SortKey { name: name.to_owned(), is_descending, missing_first });
        Ok(())
    }

    /// Whether scores decide the order.
    pub fn uses_score(&self) -> bool {
        self.keys.is_empty() || self.keys.iter().any(|key| key.name == "_score")
    }
}

/// The distance to one point that the distance of a geoshard bounds. `None` for all else, which is sorted without bounds.
///
/// The bound is along the great circle, and holds for `plane`, too: Elasticsearch's planar distance is never less. (8.19 measures
/// the nearest first in metres on the globe in any case, and in other units on a plane.) Let u and v be
/// half the difference of the latitudes and of the longitudes, c the cosine of the mean latitude, and R = 1. The great circle d has
/// sin²(d/2) = sin²u cos²v + c² sin²v, the plane D/2 = √(u² + c²v²). As functions of c², sin²(D/2) is concave while D ≤ π, and
/// sin²(d/2) is a line; so it is enough to look at both ends. At the least c², which is sin²u, d/2 = u ≤ D/2. At the other, either
/// c = 1, and d/2 is the hypotenuse of a right triangle on the sphere, shorter than on the plane; or D = π, and no d is longer.
fn nearest(options: &Map<String, Value>, location: &str) -> Option<Nearest> {
    let mut centre = None;
    let mut unit_metres = 1.0;
    let is = |value: &Value, word: &str| value.as_str().is_some_and(|text| text.eq_ignore_ascii_case(word));
    for (name, value) in options {
        match name.as_str() {
            "order" | "ignore_unmapped" => {}
            "unit" => unit_metres = shapes::distance(&Value::from(1), Some(value))?.metres(),
            "distance_type" if ["arc", "plane"].iter().any(|kind| is(value, kind)) => {}
            "mode" if is(value, "min") => {}
            "validation_method" if is(value, "strict") => {}
            field if field == location && centre.is_none() => centre = Some(shapes::point(value)?),
            _ => return None,
        }
    }
    Some(Nearest { point: centre?, unit_metres })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::geo::EARTH_RADIUS_METRES;
    use crate::base::random::Random;
    use crate::geoshard::cover::MARGIN_METRES;

    fn parse(value: Value) -> Result<Sort, RouterRefusal> {
        Sort::parse(&value, "p")
    }

    #[test]
    fn keys_have_an_order_each() {
        let sort = parse(
            json!(["name", {"age": "desc"}, {"size": {"order": "asc", "missing": "_first"}}, "_score"]),
        )
        .unwrap();
        let keys: Vec<_> =
            sort.keys.iter().map(|key| (key.name.as_str(), key.is_descending, key.missing_first)).collect();
        let expected =
            [("name", false, false), ("age", true, false), ("size", false, true), ("_score", true, false)];
        assert_eq!(keys, expected);
        assert!(
            sort.uses_score() && Sort::default().uses_score() && !parse(json!("name")).unwrap().uses_score()
        );
        assert_eq!(Sort::parse_parameter("age:desc,a:b,name"), json!([{"age": "desc"}, "a:b", "name"]));
    }

    #[test]
    fn the_nearest_first_is_seen_where_it_can_be_bounded() {
        let nearest = |options: Value| parse(json!([{"_geo_distance": options}, "id"])).unwrap().nearest;
        let point = GeoPoint::new(1.0, 2.0).unwrap();
        assert_eq!(nearest(json!({"p": [2, 1]})), Some(Nearest { point, unit_metres: 1.0 }));
        let all = json!({"p": "1,2", "order": "asc", "unit": "km", "mode": "min", "distance_type": "arc", "ignore_unmapped": true});
        assert_eq!(nearest(all), Some(Nearest { point, unit_metres: 1000.0 }));
        let plane = json!({"p": [2, 1], "distance_type": "Plane"});
        assert_eq!(nearest(plane), Some(Nearest { point, unit_metres: 1.0 }));
        for options in [
            json!({"p": [2, 1], "order": "desc"}),
            json!({"p": [2, 1], "mode": "max"}),
            json!({"p": [2, 1], "distance_type": "sloppy_arc"}),
            json!({"p": [2, 1], "distance_type": 1}),
            json!({"p": [2, 1], "unit": "parsec"}),
            json!({"p": [2, 1], "validation_method": "COERCE"}),
            json!({"p": [2, 1], "nested": {"path": "x"}}),
            json!({"p": [[2, 1], [3, 4]]}),
            json!({"p": [2, 91]}),
            json!({"q": [2, 1]}),
            json!({"p": [2, 1], "q": [2, 1]}),
            json!({}),
        ] {
            assert_eq!(nearest(options.clone()), None, "{options}");
        }
        assert_eq!(parse(json!(["id", {"_geo_distance": {"p": [2, 1]}}])).unwrap().nearest, None);
    }

    /// By the formulas of Elasticsearch's `GeoUtils.planeDistance` and Lucene's `SloppyMath.haversinMeters`.
    #[test]
    fn the_planar_distance_is_never_less_than_the_great_circle() {
        let arc = |(lat_1, lon_1): (f64, f64), (lat_2, lon_2): (f64, f64)| {
            let [half_lat, half_lon] = [lat_2 - lat_1, lon_2 - lon_1].map(|d| (d.to_radians() / 2.0).sin());
            let cosines = lat_1.to_radians().cos() * lat_2.to_radians().cos();
            let h = half_lat * half_lat + cosines * half_lon * half_lon;
            2.0 * EARTH_RADIUS_METRES * h.sqrt().min(1.0).asin()
        };
        let plane = |(lat_1, lon_1): (f64, f64), (lat_2, lon_2): (f64, f64)| {
            let x = (lon_2 - lon_1).to_radians() * ((lat_1 + lat_2) / 2.0).to_radians().cos();
            let y = (lat_2 - lat_1).to_radians();
            x.hypot(y) * EARTH_RADIUS_METRES
        };
        assert!(plane((0.0, 179.9), (0.0, -179.9)) > 40e6, "it does not go over the antimeridian");
        let mut random = Random::new(31);
        let mut longer = 0;
        for n in 0..200_000_usize {
            let place = |random: &mut Random| (random.share() * 180.0 - 90.0, random.share() * 360.0 - 180.0);
            let from = match n % 4 {
                0 => [(90.0, 10.0), (-90.0, 0.0), (89.9, 0.0), (0.0, 180.0), (0.0, -180.0)][n / 4 % 5],
                _ => place(&mut random),
            };
            let mut to = place(&mut random);
            if n % 2 == 0 {
                // Near, of each magnitude; or near the opposite point.
                let near = 10_f64.powf(-8.0 * random.share());
                let sign = if n % 3 == 0 { -1.0 } else { 1.0 };
                let lon = if sign < 0.0 { from.1 - from.1.signum() * 180.0 } else { from.1 };
                to = (
                    (sign * from.0 + to.0 * near).clamp(-90.0, 90.0),
                    (lon + to.1 * near).clamp(-180.0, 180.0),
                );
            }
            let (arc, plane) = (arc(from, to), plane(from, to));
            assert!(plane >= arc - 0.5 * MARGIN_METRES, "{from:?} {to:?}: {plane} {arc}");
            longer += usize::from(plane > 1.1 * arc);
        }
        assert!(longer > 50_000, "{longer}");
    }

    #[test]
    fn what_is_no_order_over_several_indices_is_refused() {
        for (value, says) in [
            (json!("_doc"), "sort by _doc"),
            (json!([{"_shard_doc": "asc"}]), "sort by _shard_doc"),
            (json!([{"_script": {}}]), "sort by _script"),
            (json!([7]), "malformed"),
            (json!([{}]), "malformed"),
            (json!([{"a": "asc", "b": "asc"}]), "malformed"),
            (json!(vec!["a"; 33]), "33 keys"),
        ] {
            let reason = parse(value.clone()).unwrap_err().reason;
            assert!(reason.contains(says), "{value}: {reason}");
        }
    }
}
