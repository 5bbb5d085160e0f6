//! Elasticsearch's ways to write a place, a box, a polygon and a distance in a query, as shapes that covers are made of.
//!
//! `None` is the answer for all that is not understood without doubt: the search then is not constrained by it, which costs time
//! and never a hit. Whether it is an error is for Elasticsearch to say.

use serde_json::{Map, Value};

use super::Region;
use crate::base::geo::{Distance, GeoPoint};
use crate::core::decode::query_point;
use crate::geoshard::cover::Shape;

/// A point in any form that a `geo_point` takes in a query.
pub fn point(value: &Value) -> Option<GeoPoint> {
    query_point(&value.to_string())
}

/// A point that is no geohash: as the corner of a box or of a ring, a geohash stands for another corner of its cell.
fn exact_point(value: &Value) -> Option<GeoPoint> {
    match value {
        Value::String(text) if !text.contains(',') && !text.contains('(') => None,
        other => point(other),
    }
}

/// `"5km"`, `5000`, or a number with the unit beside it.
pub fn distance(value: &Value, unit: Option<&Value>) -> Option<Distance> {
    let unit = match unit {
        None => "",
        Some(unit) => unit.as_str()?,
    };
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let has_unit = text.ends_with(|last: char| last.is_ascii_alphabetic());
    if has_unit { text.parse().ok() } else { format!("{text}{unit}").parse().ok() }
}

/// The one member of a query's body that is none of its options: field and value. `None` if there are several.
fn field<'a>(body: &'a Value, options: &[&str]) -> Option<(&'a str, &'a Value)> {
    let mut fields = body.as_object()?.iter().filter(|(name, _)| !options.contains(&name.as_str()));
    match (fields.next(), fields.next()) {
        (Some((name, value)), None) => Some((name, value)),
        _ => None,
    }
}

/// Coordinates are taken as they are. With the other methods Elasticsearch changes some of them.
fn is_strict(body: &Value) -> bool {
    let strict = |value: &Value| value.as_str().is_some_and(|method| method.eq_ignore_ascii_case("strict"));
    body.get("validation_method").is_none_or(strict)
}

/// Of a `geo_distance` query about `location`.
pub fn geo_distance(body: &Value, location: &str) -> Option<Shape> {
    const OPTIONS: [&str; 7] =
        ["distance", "unit", "distance_type", "validation_method", "ignore_unmapped", "boost", "_name"];
    let (name, centre) = field(body, &OPTIONS)?;
    let arc = |value: &Value| value.as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("arc"));
    if name != location || !is_strict(body) || !body.get("distance_type").is_none_or(arc) {
        return None;
    }
    Some(Shape::circle(point(centre)?, distance(body.get("distance")?, body.get("unit"))?))
}

/// Of a `geo_bounding_box` query about `location`.
pub fn geo_bounding_box(body: &Value, location: &str) -> Option<Shape> {
    let (name, corners) = field(body, &["type", "validation_method", "ignore_unmapped", "boost", "_name"])?;
    if name != location || !is_strict(body) {
        return None;
    }
    let corners = corners.as_object()?;
    let [mut top, mut left, mut bottom, mut right] = [None; 4];
    let set = |side: &mut Option<f64>, degrees: f64| side.replace(degrees).is_none();
    for (name, value) in corners {
        // A side that is given twice is a matter for Elasticsearch.
        let is_new = match name.as_str() {
            "top" => set(&mut top, value.as_f64()?),
            "left" => set(&mut left, value.as_f64()?),
            "bottom" => set(&mut bottom, value.as_f64()?),
            "right" => set(&mut right, value.as_f64()?),
            "wkt" if corners.len() == 1 => return wkt_box(value.as_str()?),
            corner => {
                let point = exact_point(value)?;
                let (vertical, horizontal) = match corner {
                    "top_left" | "topLeft" => (&mut top, &mut left),
                    "top_right" | "topRight" => (&mut top, &mut right),
                    "bottom_left" | "bottomLeft" => (&mut bottom, &mut left),
                    "bottom_right" | "bottomRight" => (&mut bottom, &mut right),
                    _ => return None,
                };
                set(vertical, point.lat()) && set(horizontal, point.lon())
            }
        };
        if !is_new {
            return None;
        }
    }
    Shape::bounding_box(top?, left?, bottom?, right?).ok()
}

/// `BBOX (west, east, north, south)`, also written `ENVELOPE`.
fn wkt_box(text: &str) -> Option<Shape> {
    let (word, inner) = wkt(text)?;
    if word != "bbox" && word != "envelope" {
        return None;
    }
    let sides: Vec<f64> = inner.split(',').map(|side| side.trim().parse().ok()).collect::<Option<_>>()?;
    let [west, east, north, south] = sides.try_into().ok()?;
    Shape::bounding_box(north, west, south, east).ok()
}

/// Of a `geo_polygon` query about `location`.
pub fn geo_polygon(body: &Value, location: &str) -> Option<Shape> {
    let (name, ring) = field(body, &["validation_method", "ignore_unmapped", "boost", "_name"])?;
    if name != location || !is_strict(body) || ring.as_object()?.len() != 1 {
        return None;
    }
    let vertices = ring.get("points")?.as_array()?.iter().map(|vertex| {
        let point = exact_point(vertex)?;
        Some((point.lat(), point.lon()))
    });
    Shape::polygon(vertices.collect::<Option<_>>()?).ok()
}

/// Of a `geo_shape` query about `location`: points that have something in common with the shape.
pub fn geo_shape(body: &Value, location: &str) -> Option<Region> {
    let (name, body) = field(body, &["ignore_unmapped", "boost", "_name"])?;
    if name != location {
        return None;
    }
    let relation = body.get("relation").map_or(Some("intersects"), Value::as_str)?.to_ascii_lowercase();
    if relation != "intersects" && relation != "within" {
        return None;
    }
    match body.get("shape")? {
        Value::Object(shape) => geojson(shape),
        Value::String(text) => wkt_shape(text),
        _ => None,
    }
}

fn geojson(shape: &Map<String, Value>) -> Option<Region> {
    let kind = shape.get("type")?.as_str()?.to_ascii_lowercase();
    if kind == "geometrycollection" {
        let parts = shape.get("geometries")?.as_array()?.iter();
        return union(parts.map(|part| geojson(part.as_object()?)));
    }
    let coordinates = shape.get("coordinates")?;
    let single = |shape: Option<Shape>| shape.map(Region::Within);
    match kind.as_str() {
        "point" => single(dot(coordinates)),
        "multipoint" => union(coordinates.as_array()?.iter().map(|point| single(dot(point)))),
        "circle" => {
            let (lat, lon) = position(coordinates)?;
            let radius = distance(shape.get("radius")?, None)?;
            single(Some(Shape::circle(GeoPoint::new(lat, lon).ok()?, radius)))
        }
        "envelope" => {
            let corners = coordinates.as_array()?;
            let [upper, lower] = corners.as_slice() else { return None };
            let ((top, left), (bottom, right)) = (position(upper)?, position(lower)?);
            single(Shape::bounding_box(top, left, bottom, right).ok())
        }
        "polygon" => single(outline(coordinates)),
        "multipolygon" => union(coordinates.as_array()?.iter().map(|rings| single(outline(rings)))),
        _ => None,
    }
}

/// All of them, or nothing is known.
fn union(parts: impl Iterator<Item = Option<Region>>) -> Option<Region> {
    let parts: Vec<Region> = parts.collect::<Option<_>>()?;
    (!parts.is_empty()).then_some(Region::Any(parts))
}

/// A circle of radius 0.
fn dot(coordinates: &Value) -> Option<Shape> {
    let (lat, lon) = position(coordinates)?;
    Some(Shape::circle(GeoPoint::new(lat, lon).ok()?, Distance::from_metres(0.0).ok()?))
}

/// `[lon, lat]`, perhaps with an altitude: latitude and longitude.
fn position(value: &Value) -> Option<(f64, f64)> {
    match value.as_array()?.as_slice() {
        [lon, lat] | [lon, lat, _] => Some((lat.as_f64()?, lon.as_f64()?)),
        _ => None,
    }
}

/// The outer ring. Holes only take away.
fn outline(rings: &Value) -> Option<Shape> {
    let ring = rings.as_array()?.first()?.as_array()?;
    Shape::polygon(ring.iter().map(position).collect::<Option<_>>()?).ok()
}

/// Of a well-known text, the word in lower case and what is between the outermost brackets.
fn wkt(text: &str) -> Option<(String, &str)> {
    let (word, rest) = text.split_once('(')?;
    Some((word.trim().to_ascii_lowercase(), rest.trim_end().strip_suffix(')')?))
}

fn wkt_shape(text: &str) -> Option<Region> {
    let (word, inner) = wkt(text)?;
    let pair = |text: &str| -> Option<(f64, f64)> {
        let numbers: Vec<f64> =
            text.split_ascii_whitespace().map(|number| number.parse().ok()).collect::<Option<_>>()?;
        match *numbers {
            [lon, lat] | [lon, lat, _] => Some((lat, lon)),
            _ => None,
        }
    };
    let shape = match word.as_str() {
        "point" => {
            let (lat, lon) = pair(inner)?;
            Shape::circle(GeoPoint::new(lat, lon).ok()?, Distance::from_metres(0.0).ok()?)
        }
        "bbox" | "envelope" => wkt_box(text)?,
        "polygon" => {
            let ring = inner.trim_start().strip_prefix('(')?.split(')').next()?;
            Shape::polygon(ring.split(',').map(pair).collect::<Option<_>>()?).ok()?
        }
        _ => return None,
    };
    Some(Region::Within(shape))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn circle(lat: f64, lon: f64, metres: f64) -> Option<Shape> {
        Some(Shape::circle(GeoPoint::new(lat, lon).unwrap(), Distance::from_metres(metres).unwrap()))
    }

    #[test]
    fn circles_are_read_in_every_form() {
        for centre in [
            json!({"lat": 1.5, "lon": 2}),
            json!([2, 1.5]),
            json!("1.5,2"),
            json!("POINT (2 1.5)"),
            json!({"type": "Point", "coordinates": [2, 1.5]}),
        ] {
            let body = json!({"distance": "5km", "place": centre, "boost": 2});
            assert_eq!(geo_distance(&body, "place"), circle(1.5, 2.0, 5000.0), "{body}");
            assert_eq!(geo_distance(&body, "location"), None);
        }
        let with = |distance: Value, unit: Value| {
            geo_distance(&json!({"distance": distance, "unit": unit, "p": [2, 1]}), "p")
        };
        assert_eq!(with(json!(3), json!("km")), circle(1.0, 2.0, 3000.0));
        assert_eq!(with(json!("3"), json!("mi")), circle(1.0, 2.0, 4828.032));
        assert_eq!(with(json!("3m"), json!("km")), circle(1.0, 2.0, 3.0), "the unit of the text counts");
        assert_eq!(
            geo_distance(&json!({"distance": 70, "p": "s"}), "p"),
            circle(0.0, 0.0, 70.0),
            "a geohash"
        );
    }

    #[test]
    fn what_is_in_doubt_is_no_circle() {
        for body in [
            json!({"p": [2, 1]}),
            json!({"distance": "5km"}),
            json!({"distance": "5 parsec", "p": [2, 1]}),
            json!({"distance": -5, "p": [2, 1]}),
            json!({"distance": "5km", "p": [2, 91]}),
            json!({"distance": "5km", "p": [[2, 1], [3, 1]]}),
            json!({"distance": "5km", "p": [2, 1], "q": [2, 1]}),
            json!({"distance": "5km", "p.lat": 2, "p.lon": 1}),
            json!({"distance": "5km", "p": [2, 1], "distance_type": "plane"}),
            json!({"distance": "5km", "p": [2, 1], "validation_method": "COERCE"}),
            json!({"distance": "5km", "p": [2, 1], "unit": 7}),
        ] {
            assert_eq!(geo_distance(&body, "p"), None, "{body}");
        }
    }

    #[test]
    fn boxes_are_read_in_every_form() {
        let expected = Some(Shape::Box { top: 4.0, left: 1.0, bottom: 3.0, right: 2.0 });
        for corners in [
            json!({"top_left": {"lat": 4, "lon": 1}, "bottom_right": [2, 3]}),
            json!({"top_right": "4,2", "bottom_left": "POINT (1 3)"}),
            json!({"top": 4, "left": 1, "bottom": 3, "right": 2}),
            json!({"top_left": [1, 4], "bottom": 3, "right": 2}),
            json!({"wkt": "BBOX (1, 2, 4, 3)"}),
        ] {
            let body = json!({"p": corners, "validation_method": "strict"});
            assert_eq!(geo_bounding_box(&body, "p"), expected, "{body}");
        }
        for corners in [
            json!({"top": 4, "left": 1, "bottom": 3}),
            json!({"top": 3, "left": 1, "bottom": 4, "right": 2}),
            json!({"top": 4, "left": 1, "bottom": 3, "right": 200}),
            json!({"top_left": "u33", "bottom_right": "u30"}),
            json!({"top_left": [1, 4], "top": 5, "bottom_right": [2, 3]}),
            json!({"top_left": [1, 4], "top_right": [2, 4], "bottom": 3}),
            json!({"wkt": "POLYGON ((1 2, 3 4, 5 6, 1 2))"}),
        ] {
            assert_eq!(geo_bounding_box(&json!({"p": corners}), "p"), None, "{corners}");
        }
        let over = json!({"p": {"top": 1, "left": 179, "bottom": -1, "right": -179}});
        assert_eq!(
            geo_bounding_box(&over, "p"),
            Some(Shape::Box { top: 1.0, left: 179.0, bottom: -1.0, right: -179.0 })
        );
    }

    #[test]
    fn polygons_and_shapes_are_read() {
        let triangle = Shape::Polygon { vertices: vec![(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)] };
        let points = json!({"p": {"points": [[0, 0], "0,1", {"lat": 1, "lon": 1}]}});
        assert_eq!(geo_polygon(&points, "p"), Some(triangle.clone()));
        let wide = json!({"p": {"points": [[-170, 0], [170, 0], [170, 10]]}});
        assert_eq!(geo_polygon(&wide, "p"), None, "it may be one that crosses the antimeridian");
        let ring = json!([[0, 0], [1, 0], [1, 1], [0, 0]]);
        let hole = json!([[0.1, 0.1], [0.2, 0.1], [0.2, 0.2], [0.1, 0.1]]);
        let shape = |shape: Value| geo_shape(&json!({"p": {"shape": shape}}), "p");
        let within = |shape: Shape| Some(Region::Within(shape));
        assert_eq!(shape(json!({"type": "Polygon", "coordinates": [ring, hole]})), within(triangle.clone()));
        assert_eq!(
            shape(json!("POLYGON ((0 0, 1 0, 1 1, 0 0), (0.1 0.1, 0.2 0.1, 0.2 0.2, 0.1 0.1))")),
            within(triangle.clone())
        );
        let several = Region::Any(vec![Region::Within(triangle.clone())]);
        assert_eq!(shape(json!({"type": "multipolygon", "coordinates": [[ring]]})), Some(several));
        let flat = Shape::Box { top: 4.0, left: 1.0, bottom: 3.0, right: 2.0 };
        assert_eq!(shape(json!({"type": "envelope", "coordinates": [[1, 4], [2, 3]]})), within(flat.clone()));
        assert_eq!(shape(json!("ENVELOPE (1, 2, 4, 3)")), within(flat));
        assert_eq!(
            shape(json!({"type": "Point", "coordinates": [2, 1]})),
            circle(1.0, 2.0, 0.0).map(Region::Within)
        );
        assert_eq!(
            shape(json!({"type": "circle", "coordinates": [2, 1], "radius": "1km"})),
            circle(1.0, 2.0, 1000.0).map(Region::Within)
        );
        for unknown in [
            json!({"type": "linestring", "coordinates": [[0, 0], [1, 1]]}),
            json!({"type": "geometrycollection", "geometries": []}),
            json!({"type": "geometrycollection", "geometries": [{"type": "linestring", "coordinates": [[0, 0], [1, 1]]}]}),
            json!("LINESTRING (0 0, 1 1)"),
            json!("POINT EMPTY"),
            json!(7),
        ] {
            assert_eq!(shape(unknown.clone()), None, "{unknown}");
        }
        for relation in ["disjoint", "contains"] {
            let body =
                json!({"p": {"shape": {"type": "Point", "coordinates": [2, 1]}, "relation": relation}});
            assert_eq!(geo_shape(&body, "p"), None);
        }
        assert_eq!(geo_shape(&json!({"p": {"indexed_shape": {"index": "a", "id": "b"}}}), "p"), None);
    }
}
