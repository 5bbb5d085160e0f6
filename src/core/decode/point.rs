//! The geo_point formats of Elasticsearch, parsed as it does (`GenericPointParser`, `GeoPoint`, `Geohash`; version 8), and
//! those of databases.
//!
//! `{"lat":1,"lon":2}` and `{"type":"Point","coordinates":[2,1]}`; `[2, 1]`; `"1,2"`; `"POINT (2 1)"`; a geohash. A
//! third coordinate is ignored. Numbers in objects may be strings. Two formats in one object, and members unknown to
//! Elasticsearch, are refused. Where geofold adds a geo_point itself ([`Forms::Database`]), also `{"wkb":"AQE…","srid":4326}`
//! of Debezium and `"0101…"` of PostGIS (`wkb.rs`).

use serde_json::value::RawValue;
use thiserror::Error;

use super::object::{BadObject, Object, is_null, shown};
use super::plain;
use super::wkb::{self, BadGeometry, Wkb};
use crate::base::geo::{BadPoint, GeoPoint};
use crate::core::write::PatchMove;

/// Why a value is not a location.
#[derive(Debug, Error)]
pub enum BadForm {
    /// A number, a boolean, an empty array, …
    #[error("it has no geo_point format")]
    Unknown,
    /// An array of several points.
    #[error("it holds several points, and geofold needs one location per document")]
    Several,
    /// A coordinate is not a number. Holds its name.
    #[error("its {0} is not a number")]
    NotANumber(&'static str),
    /// Neither two nor three coordinates.
    #[error("it has {0} coordinates instead of 2 or 3")]
    Coordinates(usize),
    /// An object whose type is no geometry's name, or not a string.
    #[error("its type is not \"Point\"")]
    NotAPoint,
    /// A geometry that is not a point in degrees.
    #[error(transparent)]
    Geometry(#[from] BadGeometry),
    /// A form that Elasticsearch does not take.
    #[error(
        "it is a geometry of a database, which Elasticsearch does not take as a geo_point: name a field in documents.point, and \
         geofold adds a geo_point there"
    )]
    NeedsPoint,
    /// Text in none of the formats.
    #[error("the text is neither \"lat,lon\" nor \"POINT (lon lat)\" nor a geohash of 1 to 12 characters")]
    Text,
    /// A member unknown to Elasticsearch. Holds its key, truncated.
    #[error("its member {0:?} is not allowed in a geo_point")]
    UnknownMember(String),
    /// Such as `lat` and `coordinates`.
    #[error("it mixes several geo_point formats")]
    Mixed,
    /// Such as `lat` without `lon`.
    #[error("it is only part of a location")]
    Partial,
    /// Out of range.
    #[error(transparent)]
    Range(#[from] BadPoint),
    /// Not readable at all.
    #[error(transparent)]
    Json(#[from] BadObject),
}

impl From<serde_json::Error> for BadForm {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error.into())
    }
}

/// The forms that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forms {
    /// Those of Elasticsearch.
    GeoPoint,
    /// Also those of databases.
    Database,
}

/// Parses a location from the text of any JSON value.
pub(super) fn parse(value: &str, forms: Forms) -> Result<GeoPoint, BadForm> {
    match value.as_bytes().first() {
        Some(b'{') => match plain_point(value) {
            Some(point) => Ok(point),
            None => Parts::of_document(value, forms)?.assembled()?.ok_or(BadForm::Partial),
        },
        Some(b'[') => from_array(value, forms),
        Some(b'"') => from_text(&serde_json::from_str::<String>(value)?, forms),
        _ => Err(BadForm::Unknown),
    }
}

/// Parses a location from the texts of two JSON values, each a number or a string with one.
pub(super) fn parse_pair(lat: &str, lon: &str) -> Result<GeoPoint, BadForm> {
    Ok(GeoPoint::new(latitude(lat)?, longitude(lon)?)?)
}

/// The effect of a merge patch's values for latitude and longitude (anything but null), of which it may have one.
pub(super) fn parse_patch_of_pair(lat: Option<&str>, lon: Option<&str>) -> Result<PatchMove, BadForm> {
    let (lat, lon) = (lat.map(latitude).transpose()?, lon.map(longitude).transpose()?);
    Ok(match (lat, lon) {
        (Some(lat), Some(lon)) => PatchMove::To(GeoPoint::new(lat, lon)?.into()),
        (None, None) => PatchMove::Stays,
        _ => PatchMove::Unclear,
    })
}

fn latitude(value: &str) -> Result<f64, BadForm> {
    Ok(GeoPoint::new(number(value, "lat")?, 0.0)?.lat())
}

fn longitude(value: &str) -> Result<f64, BadForm> {
    Ok(GeoPoint::new(0.0, number(value, "lon")?)?.lon())
}

/// Fast path for the most common format. [`Parts`] reports errors.
fn plain_point(value: &str) -> Option<GeoPoint> {
    let (lat, lon) = plain::lat_lon(value)?;
    GeoPoint::new(lat, lon).ok()
}

/// The effect of a merge patch's value at the location (anything but null). A value that cannot be part of any location
/// is refused.
pub(super) fn parse_patch(value: &str, forms: Forms) -> Result<PatchMove, BadForm> {
    if !value.starts_with('{') {
        return parse(value, forms).map(|point| PatchMove::To(point.into()));
    }
    let assembled = Parts::of_patch(value, forms)?.assembled()?;
    Ok(assembled.map_or(PatchMove::Unclear, |point| PatchMove::To(point.into())))
}

/// The members of a location object, each checked by itself.
struct Parts {
    forms: Forms,
    lat: Option<f64>,
    lon: Option<f64>,
    has_type: bool,
    coordinates: Option<GeoPoint>,
    wkb: Option<Wkb>,
    srid: Option<i64>,
    x: Option<f64>,
    y: Option<f64>,
}

impl Parts {
    fn new(forms: Forms) -> Self {
        Self {
            forms,
            lat: None,
            lon: None,
            has_type: false,
            coordinates: None,
            wkb: None,
            srid: None,
            x: None,
            y: None,
        }
    }

    fn of_document(value: &str, forms: Forms) -> Result<Self, BadForm> {
        let mut parts = Self::new(forms);
        for member in Object::parse(value)?.members {
            parts.add(&member.key, member.value)?;
        }
        Ok(parts)
    }

    /// In a merge patch, null means the absence of a member, not a value.
    fn of_patch(value: &str, forms: Forms) -> Result<Self, BadForm> {
        let mut parts = Self::new(forms);
        for member in Object::parse(value)?.members.into_iter().filter(|member| !is_null(member.value)) {
            parts.add(&member.key, member.value)?;
        }
        Ok(parts)
    }

    fn add(&mut self, key: &str, value: &str) -> Result<(), BadForm> {
        match key {
            "lat" => self.lat = Some(latitude(value)?),
            "lon" => self.lon = Some(longitude(value)?),
            "z" => {
                number(value, "z")?;
            }
            "type" => {
                let text: String = serde_json::from_str(value).map_err(|_| BadForm::NotAPoint)?;
                match wkb::type_named(&text) {
                    Some("Point") => self.has_type = true,
                    Some(other) => return Err(BadGeometry::Shape(other).into()),
                    None => return Err(BadForm::NotAPoint),
                }
            }
            "coordinates" => {
                let items: Vec<&RawValue> =
                    serde_json::from_str(value).map_err(|_| BadForm::NotANumber("coordinates"))?;
                let numbers = items.iter().map(|item| number(item.get(), "coordinates"));
                self.coordinates = Some(from_lon_lat(&numbers.collect::<Result<Vec<_>, _>>()?)?);
            }
            "wkb" | "srid" | "x" | "y" if self.forms == Forms::GeoPoint => return Err(BadForm::NeedsPoint),
            "wkb" => {
                let text: String =
                    serde_json::from_str(value).map_err(|_| BadGeometry::Binary("it is not text"))?;
                self.wkb = Some(Wkb::from_base64(&text)?);
            }
            // Debezium writes null for an unknown one.
            "srid" if is_null(value) => {}
            "srid" => self.srid = Some(value.parse().map_err(|_| BadForm::NotANumber("srid"))?),
            "x" => self.x = Some(number(value, "x")?),
            "y" => self.y = Some(number(value, "y")?),
            _ => return Err(BadForm::UnknownMember(shown(key))),
        }
        Ok(())
    }

    /// `None` if members are missing.
    fn assembled(self) -> Result<Option<GeoPoint>, BadForm> {
        let has_lat_lon = self.lat.is_some() || self.lon.is_some();
        let has_geojson = self.has_type || self.coordinates.is_some();
        let has_wkb = self.wkb.is_some() || self.srid.is_some() || self.x.is_some() || self.y.is_some();
        if [has_lat_lon, has_geojson, has_wkb].into_iter().filter(|has| *has).count() > 1 {
            return Err(BadForm::Mixed);
        }
        if let (Some(lat), Some(lon)) = (self.lat, self.lon) {
            return Ok(Some(GeoPoint::new(lat, lon)?));
        }
        if let Some(wkb) = self.wkb {
            let point = wkb.location(self.srid)?;
            let differs = |part: Option<f64>, own: f64| part.is_some_and(|part| part != own);
            if differs(self.x, point.lon()) || differs(self.y, point.lat()) {
                return Err(BadGeometry::TwoPoints.into());
            }
            return Ok(Some(point));
        }
        Ok(self.coordinates.filter(|_| self.has_type))
    }
}

/// Coordinates, or a list of one point: Elasticsearch treats a value and a list of it alike.
fn from_array(value: &str, forms: Forms) -> Result<GeoPoint, BadForm> {
    let items: Vec<&RawValue> = serde_json::from_str(value)?;
    let is_number =
        |item: &RawValue| item.get().starts_with(|first: char| first == '-' || first.is_ascii_digit());
    match items.as_slice() {
        [] => Err(BadForm::Unknown),
        [first, ..] if is_number(first) => {
            let numbers = items.iter().map(|item| match is_number(item) {
                true => number(item.get(), "coordinates"),
                false => Err(BadForm::NotANumber("coordinates")),
            });
            from_lon_lat(&numbers.collect::<Result<Vec<_>, _>>()?)
        }
        [one] => match serde_json::from_str::<Vec<&RawValue>>(one.get()) {
            Ok(inner) if !inner.iter().all(|item| is_number(item)) => Err(BadForm::Unknown),
            _ => parse(one.get(), forms),
        },
        _ => Err(BadForm::Several),
    }
}

fn from_lon_lat(coordinates: &[f64]) -> Result<GeoPoint, BadForm> {
    match *coordinates {
        [lon, lat] | [lon, lat, _] => Ok(GeoPoint::new(lat, lon)?),
        _ => Err(BadForm::Coordinates(coordinates.len())),
    }
}

fn from_text(text: &str, forms: Forms) -> Result<GeoPoint, BadForm> {
    let text = java_trimmed(text);
    if let Some(keyword) = text.get(..5)
        && keyword.eq_ignore_ascii_case("point")
    {
        let rest = text[5..].trim_start();
        let Some(inner) = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) else {
            return Err(not_plain_point(rest));
        };
        return from_lon_lat(&numbers(inner.split_ascii_whitespace())?);
    }
    if wkb::is_hex(text) {
        return match forms {
            Forms::Database => Ok(Wkb::from_hex(text)?.location(None)?),
            Forms::GeoPoint => Err(BadForm::NeedsPoint),
        };
    }
    // A word alone, or with digits, is a geohash.
    if let Some(end) = text.find([' ', '('])
        && let Some(kind) = wkb::type_named(&text[..end])
    {
        return Err(BadGeometry::Shape(kind).into());
    }
    if !text.contains(',') {
        return from_geohash(text);
    }
    let mut coordinates = numbers(text.split(','))?;
    // Only this format puts latitude first.
    if coordinates.len() > 1 {
        coordinates.swap(0, 1);
    }
    from_lon_lat(&coordinates)
}

/// Why well-known text is no point of two coordinates, by what follows `POINT`.
fn not_plain_point(rest: &str) -> BadForm {
    let word = rest.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    let is = |name: &str| word.eq_ignore_ascii_case(name);
    match ["Z", "M", "ZM"].into_iter().find(|dimensions| is(dimensions)) {
        Some(dimensions) => BadGeometry::Dimensions(dimensions).into(),
        None if is("EMPTY") => BadGeometry::Empty.into(),
        None => BadForm::Text,
    }
}

fn numbers<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Vec<f64>, BadForm> {
    parts.map(|part| java_trimmed(part).parse().map_err(|_| BadForm::NotANumber("coordinates"))).collect()
}

/// A JSON number, or a string with one. One that is too large becomes infinite and is refused as out of range.
fn number(value: &str, part: &'static str) -> Result<f64, BadForm> {
    let not_a_number = || BadForm::NotANumber(part);
    if !value.starts_with('"') {
        return value.parse().map_err(|_| not_a_number());
    }
    let text: String = serde_json::from_str(value).map_err(|_| not_a_number())?;
    java_trimmed(&text).parse().map_err(|_| not_a_number())
}

/// Java's white space: everything up to U+0020, and nothing beyond ASCII.
fn java_trimmed(text: &str) -> &str {
    text.trim_matches(|c| c <= ' ')
}

/// The lowest corner (latitude and longitude) of the geohash's cell: what Elasticsearch indexes.
fn from_geohash(text: &str) -> Result<GeoPoint, BadForm> {
    const ALPHABET: &[u8] = b"0123456789bcdefghjkmnpqrstuvwxyz";
    if text.is_empty() || text.len() > 12 {
        return Err(BadForm::Text);
    }
    let (mut lat, mut lon) = (-90.0, -180.0);
    let (mut lat_step, mut lon_step) = (90.0, 180.0);
    let mut is_lon = true;
    for byte in text.bytes() {
        let digit = ALPHABET.iter().position(|&symbol| symbol == byte).ok_or(BadForm::Text)?;
        for bit in (0..5).rev() {
            let (corner, step) = if is_lon { (&mut lon, &mut lon_step) } else { (&mut lat, &mut lat_step) };
            if digit >> bit & 1 == 1 {
                *corner += *step;
            }
            *step /= 2.0;
            is_lon = !is_lon;
        }
    }
    Ok(GeoPoint::new(lat, lon)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As where geofold adds no geo_point.
    fn parse(value: &str) -> Result<GeoPoint, BadForm> {
        super::parse(value, Forms::GeoPoint)
    }

    fn parse_patch(value: &str) -> Result<PatchMove, BadForm> {
        super::parse_patch(value, Forms::GeoPoint)
    }

    #[test]
    fn all_elasticsearch_formats_give_the_same_point() {
        for value in [
            r#"{"lat":52.5,"lon":13.4}"#,
            r#"{"lon":"13.4","lat":" 52.5 "}"#,
            r#"{"lat":52.5,"lon":13.4,"z":30}"#,
            r#"{"type":"Point","coordinates":[13.4,52.5]}"#,
            r#"{"coordinates":["13.4",52.5,30],"type":"point"}"#,
            "[13.4,52.5]",
            "[ 13.4, 5.25e1, 30 ]",
            "[[13.4,52.5]]",
            r#"[{"lat":52.5,"lon":13.4}]"#,
            r#""52.5,13.4""#,
            r#"" 52.5 , 13.4 , 30 ""#,
            r#""POINT (13.4 52.5)""#,
            r#""point(  13.4   52.5  30 )""#,
            r#"["POINT (13.4 52.5)"]"#,
        ] {
            let point = parse(value).unwrap_or_else(|error| panic!("{value}: {error}"));
            assert_eq!((point.lat(), point.lon()), (52.5, 13.4), "{value}");
        }
    }

    #[test]
    fn geohash_stands_for_the_lowest_corner_of_its_cell() {
        for (text, lat, lon) in [
            ("0", -90.0, -180.0),
            ("s", 0.0, 0.0),
            ("ezs42", 42.583_007_812_5, -5.625),
            ("u4pruydqqvj8", 57.649_109_959_602_356, 10.407_439_693_808_556),
        ] {
            let point = parse(&format!("{text:?}")).unwrap();
            assert!(
                (point.lat() - lat).abs() < 1e-12 && (point.lon() - lon).abs() < 1e-12,
                "{text}: {point:?}"
            );
        }
    }

    #[test]
    fn refused_or_ambiguous_formats_are_refused() {
        for value in [
            "5",
            "true",
            "null",
            "[]",
            "[1]",
            "[1,2,3,4]",
            r#"[1,"2"]"#,
            "[null]",
            "[[[1,2]]]",
            "[[[]]]",
            "[[1,2],[3,4]]",
            r#"["1,2","3,4"]"#,
            "{}",
            r#"{"lat":1}"#,
            r#"{"lat":1,"lon":null}"#,
            r#"{"lat":1,"lon":true}"#,
            r#"{"lat":1,"lon":2,"lat":3}"#,
            r#"{"lat":1,"lon":2,"name":"x"}"#,
            r#"{"lat":1,"lon":2,"geohash":"s"}"#,
            r#"{"lat":1,"type":"Point","coordinates":[1,2]}"#,
            r#"{"type":"Polygon","coordinates":[1,2]}"#,
            r#"{"type":"Point","coordinates":[[1,2]]}"#,
            r#"{"coordinates":[1,2]}"#,
            // Elasticsearch 8.19 accepts a geohash as text only.
            r#"{"geohash":"s"}"#,
            r#""""#,
            r#""1,""#,
            r#""1,2,3,4""#,
            r#""POINT (1)""#,
            r#""POINT 1 2""#,
            r#""POINT (1, 2)""#,
            r#""ail""#,
            r#""0123456789bcd""#,
            r#""U4PR""#,
        ] {
            assert!(parse(value).is_err(), "{value}");
        }
    }

    #[test]
    fn out_of_range_and_non_numbers_are_refused_in_every_format() {
        for value in [
            r#"{"lat":90.1,"lon":0}"#,
            r#"{"lat":0,"lon":-180.1}"#,
            r#"{"lat":"NaN","lon":0}"#,
            r#"{"lat":1e400,"lon":0}"#,
            "[1e400,0]",
            "[0,91]",
            r#""91,0""#,
            r#""NaN,0""#,
            r#""0,Infinity""#,
            r#""POINT (181 0)""#,
        ] {
            assert!(matches!(parse(value), Err(BadForm::Range(_))), "{value}");
        }
    }

    #[test]
    fn patch_moves_only_if_it_sets_a_whole_location() {
        let to = |lat, lon| PatchMove::To(GeoPoint::new(lat, lon).unwrap().into());
        for (value, moves) in [
            (r#""1,2""#, to(1.0, 2.0)),
            ("[2,1]", to(1.0, 2.0)),
            (r#"{"lat":1,"lon":2}"#, to(1.0, 2.0)),
            (r#"{"lat":1,"lon":2,"geohash":null,"other":null}"#, to(1.0, 2.0)),
            (r#"{"type":"Point","coordinates":[2,1],"lat":null,"lon":null}"#, to(1.0, 2.0)),
            (r#"{"lat":1}"#, PatchMove::Unclear),
            (r#"{"lat":1,"lon":null}"#, PatchMove::Unclear),
            (r#"{"coordinates":[2,1]}"#, PatchMove::Unclear),
            ("{}", PatchMove::Unclear),
        ] {
            assert_eq!(parse_patch(value).unwrap(), moves, "{value}");
        }
        for value in
            [r#"{"lat":91}"#, r#"{"lat":1,"type":"Point"}"#, r#"{"x":1}"#, r#"{"lat":{"a":1}}"#, "[1]", "5"]
        {
            assert!(parse_patch(value).is_err(), "{value}");
        }
    }

    /// 13.4 east, 52.5 north: EWKB of PostGIS with the SRID 4326, in base64 and hexadecimal; and the same in WKB.
    const EWKB: &str = "AQEAACDmEAAAzczMzMzMKkAAAAAAAEBKQA==";
    const HEX: &str = "0101000020E6100000CDCCCCCCCCCC2A400000000000404A40";
    const WKB: &str = "AQEAAADNzMzMzMwqQAAAAAAAQEpA";

    #[test]
    fn forms_of_databases_need_a_point_beside_them() {
        for value in [
            format!(r#"{{"wkb":"{EWKB}","srid":4326}}"#),
            format!(r#"{{"srid":4326,"wkb":"{WKB}"}}"#),
            format!(r#"{{"wkb":"{WKB}","srid":null}}"#),
            format!(r#"{{"wkb":"{WKB}","srid":0}}"#),
            format!(r#"{{"x":13.4,"y":52.5,"wkb":"{WKB}","srid":null}}"#),
            format!(r#"{{"wkb":"{EWKB}"}}"#),
            format!(r#""{HEX}""#),
            format!(r#"" {} ""#, HEX.to_lowercase()),
            format!(r#"["{HEX}"]"#),
            format!(r#"[{{"wkb":"{EWKB}","srid":4326}}]"#),
        ] {
            let point = super::parse(&value, Forms::Database).unwrap_or_else(|e| panic!("{value}: {e}"));
            assert_eq!((point.lat(), point.lon()), (52.5, 13.4), "{value}");
            let refused = parse(&value).unwrap_err();
            assert!(matches!(refused, BadForm::NeedsPoint), "{value}: {refused}");
            assert!(refused.to_string().contains("documents.point"));
        }
        for value in [r#"{"lat":52.5,"lon":13.4}"#, r#""POINT(13.4 52.5)""#, "[13.4,52.5]", r#""52.5,13.4""#]
        {
            assert_eq!(super::parse(value, Forms::Database).unwrap(), parse(value).unwrap(), "{value}");
        }
    }

    #[test]
    fn other_geometries_are_refused_by_name() {
        let wkb = |members: &str| format!(r#"{{"wkb":"{EWKB}",{members}}}"#);
        for (value, says) in [
            (r#""LINESTRING (1 2, 3 4)""#.to_owned(), "a LineString"),
            (r#""Polygon((1 2,3 4,5 6,1 2))""#.to_owned(), "a Polygon"),
            (r#""CURVE EMPTY""#.to_owned(), "a Curve"),
            (r#""POINT Z (1 2 3)""#.to_owned(), "a Point Z"),
            (r#""POINTZM(1 2 3 4)""#.to_owned(), "a Point ZM"),
            (r#""POINT M (1 2 3)""#.to_owned(), "a Point M"),
            (r#""POINT EMPTY""#.to_owned(), "empty"),
            (r#"{"type":"Polygon","coordinates":[[[1,2],[3,4],[5,6],[1,2]]]}"#.to_owned(), "a Polygon"),
            (
                r#"{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]}}"#.to_owned(),
                "its type is not",
            ),
            (r#""0103000020E6100000""#.to_owned(), "a Polygon"),
            (r#""0101000020110F0000000000000000F03F0000000000000040""#.to_owned(), "SRID is 3857"),
            (wkb(r#""srid":3857"#), "its srid is 3857, but its wkb has the SRID 4326"),
            (wkb(r#""srid":"4326""#), "its srid is not a number"),
            (wkb(r#""x":13.5"#), "its x and y"),
            (wkb(r#""x":"NaN""#), "its x and y"),
            (wkb(r#""lat":1,"lon":2"#), "mixes"),
            (wkb(r#""type":"Point""#), "mixes"),
            (wkb(r#""name":"x""#), "\"name\""),
            (r#"{"wkb":7}"#.to_owned(), "not text"),
            (r#"{"wkb":null,"srid":4326}"#.to_owned(), "not text"),
            (r#"{"srid":4326}"#.to_owned(), "only part"),
            (r#"{"x":1,"y":2}"#.to_owned(), "only part"),
        ] {
            let error = super::parse(&value, Forms::Database).unwrap_err().to_string();
            assert!(error.contains(says), "{value}: {error}");
        }
        for geohash in [r#""curve""#, r#""curve12""#] {
            assert!(parse(geohash).is_ok() && super::parse(geohash, Forms::Database).is_ok(), "{geohash}");
        }
    }

    #[test]
    fn a_pair_takes_numbers_and_strings_of_numbers() {
        let berlin = GeoPoint::new(52.5, 13.4).unwrap();
        for (lat, lon) in [("52.5", "13.4"), (r#""52.5""#, r#"" 13.4 ""#), ("5.25e1", r#""13.4""#)] {
            assert_eq!(parse_pair(lat, lon).unwrap(), berlin, "{lat} {lon}");
            assert_eq!(parse_patch_of_pair(Some(lat), Some(lon)).unwrap(), PatchMove::To(berlin.into()));
        }
        assert_eq!(parse_patch_of_pair(Some("1"), None).unwrap(), PatchMove::Unclear);
        assert_eq!(parse_patch_of_pair(None, Some("1")).unwrap(), PatchMove::Unclear);
        assert_eq!(parse_patch_of_pair(None, None).unwrap(), PatchMove::Stays);
        for (lat, lon, says) in [
            ("91", "0", "latitude 91"),
            ("0", "-181", "longitude -181"),
            ("true", "0", "its lat is not a number"),
            ("0", "[1]", "its lon is not a number"),
            ("0", r#""""#, "its lon is not a number"),
            (r#""NaN""#, "0", "latitude NaN"),
        ] {
            let error = parse_pair(lat, lon).unwrap_err().to_string();
            assert!(error.contains(says), "{lat} {lon}: {error}");
            assert!(parse_patch_of_pair(Some(lat), Some(lon)).is_err());
        }
        assert!(parse_patch_of_pair(Some("91"), None).is_err());
    }

    #[test]
    fn patch_of_a_geometry_moves_only_with_its_binary() {
        let moves = |value: &str| super::parse_patch(value, Forms::Database);
        let berlin = PatchMove::To(GeoPoint::new(52.5, 13.4).unwrap().into());
        for members in ["", r#","srid":4326"#, r#","srid":null,"x":null,"y":null"#, r#","x":13.4,"y":52.5"#] {
            assert_eq!(moves(&format!(r#"{{"wkb":"{WKB}"{members}}}"#)).unwrap(), berlin, "{members}");
        }
        for part in [r#"{"srid":4326}"#, r#"{"x":1}"#, r#"{"wkb":null}"#] {
            assert_eq!(moves(part).unwrap(), PatchMove::Unclear, "{part}");
        }
        assert!(moves(r#"{"wkb":"AA=="}"#).is_err());
    }
}
