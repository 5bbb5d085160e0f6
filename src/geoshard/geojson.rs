//! A map as GeoJSON (RFC 7946): one feature and one line per geoshard.
//!
//! As the RFC requires, polygons are cut at the antimeridian, shells run counterclockwise and holes clockwise.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::describe::{MapDescription, ShardDescription};
use super::outline::{LonLat, Polygon};

#[derive(Serialize)]
struct Feature<'a> {
    r#type: &'static str,
    id: &'a str,
    properties: &'a ShardDescription,
    geometry: Value,
}

/// The file: properties from `description`, geometry from the outlines.
pub fn feature_collection(description: &MapDescription, outlines: &[Vec<Polygon>]) -> String {
    let feature = |(shard, polygons): (&ShardDescription, &Vec<Polygon>)| {
        let geometry = geometry(polygons);
        let feature = Feature { r#type: "Feature", id: shard.shard.as_str(), properties: shard, geometry };
        // Cannot fail for numbers and text; a failing feature would show as null.
        serde_json::to_string(&feature).unwrap_or_else(|_| "null".to_owned())
    };
    let features: Vec<String> = description.shards.iter().zip(outlines).map(feature).collect();
    let name = Value::from(description.name.as_str());
    format!(
        "{{\"type\":\"FeatureCollection\",\"name\":{name},\"version\":{},\"features\":[\n{}\n]}}\n",
        description.version,
        features.join(",\n")
    )
}

fn geometry(polygons: &[Polygon]) -> Value {
    let rings = |polygon: &Polygon| -> Value {
        std::iter::once(&polygon.shell).chain(&polygon.holes).filter_map(|ring| closed(ring)).collect()
    };
    let all: Vec<Value> = polygons
        .iter()
        // Smaller than the precision: nothing to draw.
        .filter(|polygon| closed(&polygon.shell).is_some())
        .map(rings)
        .collect();
    match <[Value; 1]>::try_from(all) {
        Ok([one]) => json!({"type": "Polygon", "coordinates": one}),
        Err(all) => json!({"type": "MultiPolygon", "coordinates": all}),
    }
}

/// A closed ring with seven digits (centimetres); `None` if it is too small for them.
fn closed(ring: &[LonLat]) -> Option<Value> {
    let mut points: Vec<[String; 2]> = Vec::with_capacity(ring.len() + 1);
    for &(lon, lat) in ring {
        let point = [number(lon), number(lat)];
        if points.last() != Some(&point) && (points.first() != Some(&point) || points.len() < 3) {
            points.push(point);
        }
    }
    if points.len() < 3 {
        return None;
    }
    points.push(points[0].clone());
    let raw = |text: &String| {
        serde_json::from_str::<&RawValue>(text).ok().and_then(|raw| serde_json::to_value(raw).ok())
    };
    Some(points.iter().map(|point| point.iter().filter_map(raw).collect::<Value>()).collect())
}

fn number(degrees: f64) -> String {
    let text = format!("{degrees:.7}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::geoshard::describe::show;
    use crate::geoshard::map::GeoshardMap;
    use crate::geoshard::outline::outlines;

    fn points(ring: &Value) -> Vec<(f64, f64)> {
        let points = ring.as_array().unwrap().iter();
        points.map(|point| (point[0].as_f64().unwrap(), point[1].as_f64().unwrap())).collect()
    }

    #[test]
    fn every_geoshard_is_a_feature_as_the_rfc_requires() {
        let map = GeoshardMap::load(Path::new("config/map-55.json")).unwrap();
        let text = feature_collection(&show(&map, "people"), &outlines(&map));
        assert_eq!(text.lines().count(), 57, "one a line");
        let file: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&file["type"], &file["version"]), (&"FeatureCollection".into(), &1.into()));
        let mut area = 0.0;
        for (feature, shard) in file["features"].as_array().unwrap().iter().zip(map.shards()) {
            assert_eq!(feature["id"], shard.as_str());
            assert_eq!(feature["properties"]["index"], format!("people-{shard}"));
            let coordinates = &feature["geometry"]["coordinates"];
            let polygons = match feature["geometry"]["type"].as_str().unwrap() {
                "Polygon" => vec![coordinates.clone()],
                "MultiPolygon" => coordinates.as_array().unwrap().clone(),
                other => panic!("{other}"),
            };
            assert!(!polygons.is_empty());
            for (ring, is_shell) in polygons.iter().flat_map(|polygon| {
                polygon.as_array().unwrap().iter().enumerate().map(|(index, ring)| (points(ring), index == 0))
            }) {
                assert!(ring.len() >= 4 && ring.first() == ring.last());
                let doubled: f64 = ring.windows(2).map(|p| p[0].0 * p[1].1 - p[1].0 * p[0].1).sum();
                assert_eq!(doubled > 0.0, is_shell, "shells run counterclockwise, holes clockwise");
                assert!(ring.iter().all(|(lon, lat)| lon.abs() <= 180.0 && lat.abs() <= 90.0));
                area += doubled / 2.0;
            }
        }
        assert!((area - 360.0 * 180.0).abs() < 1e-3, "{area}");
    }

    #[test]
    fn numbers_have_at_most_seven_digits() {
        assert_eq!(number(12.345_678_94), "12.3456789");
        assert_eq!(
            (number(-0.000_000_001), number(180.0), number(-45.5)),
            ("0".into(), "180".into(), "-45.5".into())
        );
        let tiny =
            Polygon { shell: vec![(1.0, 1.0), (1.000_000_001, 1.0), (1.0, 1.000_000_001)], holes: vec![] };
        assert_eq!(geometry(&[tiny]), json!({"type": "MultiPolygon", "coordinates": []}));
    }
}
