//! Leaf cell ids are those of S2, as another implementation gives them: `tests/vectors/s2.py` made the file.

use geofold::base::geo::GeoPoint;
use geofold::geoshard::cell;
use s2::cellid::CellID;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Vector {
    kind: String,
    lat: f64,
    lon: f64,
    leaf: String,
    level_7: String,
}

#[test]
fn leaf_cells_are_those_that_another_implementation_gives() {
    let vectors: Vec<Vector> = serde_json::from_str(include_str!("../vectors/s2.json")).unwrap();
    assert!(vectors.len() > 90, "{}", vectors.len());
    for Vector { kind, lat, lon, leaf, level_7 } in vectors {
        let ours = cell::leaf(GeoPoint::new(lat, lon).unwrap());
        assert_eq!(format!("{ours:016x}"), leaf, "{kind}: {lat}, {lon}");
        assert_eq!(CellID(ours).parent(7).to_token(), level_7, "{kind}: {lat}, {lon}");
    }
}
