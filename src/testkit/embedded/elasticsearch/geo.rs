//! Points as Elasticsearch takes, stores and compares them: the forms of a `geo_point`, Lucene's 32 bits for each
//! coordinate, the great circle and the box.
//!
//! Lucene searches the rounded coordinates, not those that were sent, so a point on an edge is in or out by the same
//! arithmetic here (`GeoEncodingUtils` and `SloppyMath.haversinMeters` of Lucene 9).

use serde_json::{Map, Value};

use crate::base::geo::{Distance, EARTH_RADIUS_METRES};

/// Degrees for each step of a stored latitude: 180 / 2^32.
const LAT_STEP: f64 = 180.0 / 4_294_967_296.0;
/// Degrees for each step of a stored longitude: 360 / 2^32.
const LON_STEP: f64 = 360.0 / 4_294_967_296.0;

/// A stored point: steps from the equator and from the prime meridian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredPoint {
    lat: i32,
    lon: i32,
}

/// Why a value is no point: error type and reason.
type BadPoint = (&'static str, String);

impl StoredPoint {
    fn new(lat: f64, lon: f64) -> Result<Self, BadPoint> {
        let illegal = |what, value: f64| {
            ("illegal_argument_exception", format!("illegal {what} value [{value:?}] for location"))
        };
        if !(-90.0..=90.0).contains(&lat) {
            return Err(illegal("latitude", lat));
        }
        if !(-180.0..=180.0).contains(&lon) {
            return Err(illegal("longitude", lon));
        }
        Ok(Self { lat: encode(lat, LAT_STEP, 90.0), lon: encode(lon, LON_STEP, 180.0) })
    }

    fn lat(self) -> f64 {
        f64::from(self.lat) * LAT_STEP
    }

    fn lon(self) -> f64 {
        f64::from(self.lon) * LON_STEP
    }
}

/// The last step at or below `degrees`; `end` itself is the step before it.
#[expect(clippy::cast_possible_truncation, reason = "degrees are within ±end, so that the steps fit 32 bits")]
fn encode(degrees: f64, step: f64, end: f64) -> i32 {
    let below_end = if degrees == end { degrees.next_down() } else { degrees };
    (below_end / step).floor() as i32
}

/// All points of a `geo_point` field's value: one in any of its forms, or a list of them; none for null.
pub(super) fn points(value: &Value) -> Result<Vec<StoredPoint>, BadPoint> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) if items.first().is_some_and(Value::is_number) => Ok(vec![lon_lat(items)?]),
        Value::Array(items) => {
            let mut found = Vec::new();
            for item in items {
                if let Value::Array(inner) = item
                    && inner.iter().any(Value::is_array)
                {
                    return Err(parse_error("numeric value expected"));
                }
                found.extend(points(item)?);
            }
            Ok(found)
        }
        one => Ok(vec![point(one)?]),
    }
}

/// One point in any form but a list of points.
pub(super) fn point(value: &Value) -> Result<StoredPoint, BadPoint> {
    match value {
        Value::Object(members) => from_object(members),
        Value::Array(items) => lon_lat(items),
        Value::String(text) => from_text(text),
        _ => Err(parse_error("geo_point expected")),
    }
}

fn parse_error(reason: impl Into<String>) -> BadPoint {
    ("parse_exception", reason.into())
}

fn from_object(members: &Map<String, Value>) -> Result<StoredPoint, BadPoint> {
    const KNOWN: [&str; 5] = ["lon", "lat", "z", "type", "coordinates"];
    if let Some(stranger) = members.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        return Err(parse_error(format!(
            "field [{stranger}] not supported - must be one of: {}",
            KNOWN.join(", ")
        )));
    }
    let number = |name: &str, long: &str| match members.get(name) {
        None => Ok(None),
        Some(Value::Number(number)) => Ok(number.as_f64()),
        Some(Value::String(text)) => match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(parse_error(format!("[{long}] must be a valid double value"))),
        },
        Some(_) => Err(parse_error(format!("{long} must be a number"))),
    };
    let is_geojson = members.contains_key("type") || members.contains_key("coordinates");
    match (number("lat", "latitude")?, number("lon", "longitude")?) {
        (Some(lat), Some(lon)) if !is_geojson => StoredPoint::new(lat, lon),
        (None, None) if is_geojson => match (&members.get("type"), &members.get("coordinates")) {
            (Some(Value::String(kind)), Some(Value::Array(items))) if kind.eq_ignore_ascii_case("point") => {
                lon_lat(items)
            }
            (Some(_), Some(Value::Array(_))) => Err(parse_error("[type] for geo_point can only be 'Point'")),
            _ => Err(parse_error("Required [type] and [coordinates]")),
        },
        (Some(_), None) => Err(parse_error("Required [lon]")),
        (None, Some(_)) => Err(parse_error("Required [lat]")),
        _ => Err(parse_error("field must be either lat/lon, geohash string or type/coordinates")),
    }
}

fn lon_lat(items: &[Value]) -> Result<StoredPoint, BadPoint> {
    let number = |item: &Value| match item {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_f64(),
    };
    let numbers: Option<Vec<f64>> = items.iter().map(number).collect();
    match numbers.as_deref() {
        Some([lon, lat] | [lon, lat, _]) => StoredPoint::new(*lat, *lon),
        _ => Err(parse_error("geo_point expected")),
    }
}

fn from_text(text: &str) -> Result<StoredPoint, BadPoint> {
    let number =
        |part: &str| part.trim().parse::<f64>().map_err(|_| parse_error("latitude must be a number"));
    if text.get(..5).is_some_and(|word| word.eq_ignore_ascii_case("point")) {
        let bad = || parse_error("Invalid WKT format");
        let inner =
            text[5..].trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).ok_or_else(bad)?;
        let numbers =
            inner.split_whitespace().map(number).collect::<Result<Vec<_>, _>>().map_err(|_| bad())?;
        return match *numbers {
            [lon, lat] | [lon, lat, _] => StoredPoint::new(lat, lon).map_err(|_| bad()),
            _ => Err(bad()),
        };
    }
    if !text.contains(',') {
        return from_geohash(text);
    }
    match *text.split(',').map(number).collect::<Result<Vec<_>, _>>()? {
        [lat, lon] | [lat, lon, _] => StoredPoint::new(lat, lon),
        _ => Err(parse_error(format!("failed to parse [{text}], expected 2 or 3 coordinates"))),
    }
}

/// The corner of the cell with the lowest latitude and longitude.
fn from_geohash(text: &str) -> Result<StoredPoint, BadPoint> {
    const ALPHABET: &str = "0123456789bcdefghjkmnpqrstuvwxyz";
    if text.is_empty() {
        return Err(parse_error("empty geohash"));
    }
    let (mut lat, mut lon) = (-90.0, -180.0);
    let (mut lat_step, mut lon_step) = (90.0, 180.0);
    let mut is_lon = true;
    for symbol in text.chars().take(12) {
        let Some(digit) = ALPHABET.find(symbol) else {
            return Err(parse_error(format!("unsupported symbol [{symbol}] in geohash [{text}]")));
        };
        for bit in (0..5).rev() {
            let (corner, step) = if is_lon { (&mut lon, &mut lon_step) } else { (&mut lat, &mut lat_step) };
            if digit >> bit & 1 == 1 {
                *corner += *step;
            }
            *step /= 2.0;
            is_lon = !is_lon;
        }
    }
    StoredPoint::new(lat, lon)
}

/// Everything within a distance of a point.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueryCircle {
    lat: f64,
    lon: f64,
    metres: f64,
}

impl QueryCircle {
    /// From `"12km"` or a number of metres, and the centre in any form of a point.
    pub(super) fn new(distance: &Value, centre: &Value) -> Option<Self> {
        let metres = match distance {
            Value::Number(metres) => metres.as_f64()?,
            Value::String(text) => text.parse::<Distance>().ok()?.metres(),
            _ => return None,
        };
        let centre = point(centre).ok()?;
        Some(Self { lat: centre.lat(), lon: centre.lon(), metres })
    }

    pub(super) fn contains(&self, point: StoredPoint) -> bool {
        self.metres_to(point) <= self.metres
    }

    /// From its centre.
    pub(super) fn metres_to(&self, point: StoredPoint) -> f64 {
        let (lat_1, lat_2) = (self.lat.to_radians(), point.lat().to_radians());
        let half_lat = ((lat_1 - lat_2) / 2.0).sin();
        let half_lon = ((self.lon - point.lon()).to_radians() / 2.0).sin();
        let h = half_lat * half_lat + lat_1.cos() * lat_2.cos() * half_lon * half_lon;
        2.0 * EARTH_RADIUS_METRES * h.sqrt().min(1.0).asin()
    }
}

impl QueryCircle {
    /// From its centre on a plane: `distance_type: plane`. It does not go over the antimeridian (`GeoUtils.planeDistance` of
    /// Elasticsearch).
    pub(super) fn planar_metres_to(&self, point: StoredPoint) -> f64 {
        let x = (point.lon() - self.lon).to_radians() * ((point.lat() + self.lat) / 2.0).to_radians().cos();
        let y = (point.lat() - self.lat).to_radians();
        (x * x + y * y).sqrt() * EARTH_RADIUS_METRES
    }
}

/// Everything between two parallels and two meridians; over the antimeridian where `left` is greater than `right`.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueryBox {
    bottom: i32,
    top: i32,
    left: i32,
    right: i32,
}

impl QueryBox {
    /// From the object of a `geo_bounding_box`: two corners, or four sides.
    pub(super) fn new(corners: &Value) -> Option<Self> {
        let side = |name: &str| corners.get(name).and_then(Value::as_f64);
        let corner = |name: &str| corners.get(name).and_then(degrees);
        let [top, left, bottom, right] = match (corner("top_left"), corner("bottom_right")) {
            (Some((top, left)), Some((bottom, right))) => [top, left, bottom, right],
            _ => match (corner("top_right"), corner("bottom_left")) {
                (Some((top, right)), Some((bottom, left))) => [top, left, bottom, right],
                _ => [side("top")?, side("left")?, side("bottom")?, side("right")?],
            },
        };
        let fits =
            top >= bottom && top <= 90.0 && bottom >= -90.0 && left.abs() <= 180.0 && right.abs() <= 180.0;
        fits.then(|| Self {
            // All four sides are rounded down, as points are: a point is inside its own zero-size box.
            bottom: encode(bottom, LAT_STEP, 90.0),
            top: encode(top, LAT_STEP, 90.0),
            left: encode(left, LON_STEP, 180.0),
            right: encode(right, LON_STEP, 180.0),
        })
    }

    pub(super) fn contains(&self, point: StoredPoint) -> bool {
        let in_lon = match self.left <= self.right {
            true => self.left <= point.lon && point.lon <= self.right,
            false => self.left <= point.lon || point.lon <= self.right,
        };
        in_lon && self.bottom <= point.lat && point.lat <= self.top
    }
}

/// Latitude and longitude of a corner, as they were given.
fn degrees(corner: &Value) -> Option<(f64, f64)> {
    match corner {
        Value::Object(members) if members.contains_key("lat") => {
            Some((members.get("lat")?.as_f64()?, members.get("lon")?.as_f64()?))
        }
        Value::Array(items) => Some((items.get(1)?.as_f64()?, items.first()?.as_f64()?)),
        other => point(other).ok().map(|point| (point.lat(), point.lon())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_form_of_a_point_is_the_same_point() {
        let paris = point(&json!({"lat": 48.85, "lon": 2.35})).unwrap();
        for form in [
            json!([2.35, 48.85]),
            json!([2.35, 48.85, 7]),
            json!("48.85,2.35"),
            json!("POINT (2.35 48.85)"),
            json!({"type": "Point", "coordinates": [2.35, 48.85]}),
            json!({"lat": "48.85", "lon": "2.35"}),
        ] {
            assert_eq!(point(&form), Ok(paris), "{form}");
        }
        assert_eq!(points(&json!([[1, 2], "2,1"])).unwrap().len(), 2);
        assert_eq!(points(&json!(null)).unwrap(), []);
        for bad in
            [json!([1]), json!(5), json!({}), json!("91,0"), json!({"geohash": "u09"}), json!("nowhere")]
        {
            assert!(points(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn boxes_and_circles_reach_over_the_antimeridian_and_the_pole() {
        let east = point(&json!([179.9, 0])).unwrap();
        let west = point(&json!([-179.9, 0])).unwrap();
        let over = QueryBox::new(&json!({"top_left": [179, 1], "bottom_right": [-179, -1]})).unwrap();
        assert!(over.contains(east) && over.contains(west));
        assert!(!over.contains(point(&json!([178, 0])).unwrap()));
        let circle = QueryCircle::new(&json!("12km"), &json!([180, 0])).unwrap();
        assert!(circle.contains(east) && circle.contains(west));
        let pole = QueryCircle::new(&json!(12_000), &json!([0, 90])).unwrap();
        assert!(pole.contains(point(&json!([123, 89.9])).unwrap()));
        assert!(!pole.contains(point(&json!([123, 89.8])).unwrap()));
    }
}
