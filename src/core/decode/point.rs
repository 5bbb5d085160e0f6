//! The geo_point formats of Elasticsearch, parsed as it does (`GenericPointParser`, `GeoPoint`, `Geohash`; version 8).
//!
//! `{"lat":1,"lon":2}` and `{"type":"Point","coordinates":[2,1]}`; `[2, 1]`; `"1,2"`; `"POINT (2 1)"`; a geohash. A
//! third coordinate is ignored. Numbers in objects may be strings. Two formats in one object, and members unknown to
//! Elasticsearch, are refused.

use serde_json::value::RawValue;
use thiserror::Error;

use super::object::{BadObject, Object, is_null, shown};
use super::plain;
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
    /// A GeoJSON object of another type, or a type that is not a string.
    #[error("its type is not \"Point\"")]
    NotAPoint,
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

/// Parses a location from the text of any JSON value.
pub(super) fn parse(value: &str) -> Result<GeoPoint, BadForm> {
    match value.as_bytes().first() {
        Some(b'{') => match plain_point(value) {
            Some(point) => Ok(point),
            None => Parts::of_document(value)?.assembled()?.ok_or(BadForm::Partial),
        },
        Some(b'[') => from_array(value),
        Some(b'"') => from_text(&serde_json::from_str::<String>(value)?),
        _ => Err(BadForm::Unknown),
    }
}

/// Fast path for the most common format. [`Parts`] reports errors.
fn plain_point(value: &str) -> Option<GeoPoint> {
    let (lat, lon) = plain::lat_lon(value)?;
    GeoPoint::new(lat.parse().ok()?, lon.parse().ok()?).ok()
}

/// The effect of a merge patch's value at the location (anything but null). A value that cannot be part of any location
/// is refused.
pub(super) fn parse_patch(value: &str) -> Result<PatchMove, BadForm> {
    if !value.starts_with('{') {
        return parse(value).map(|point| PatchMove::To(point.into()));
    }
    let assembled = Parts::of_patch(value)?.assembled()?;
    Ok(assembled.map_or(PatchMove::Unclear, |point| PatchMove::To(point.into())))
}

/// The members of a location object, each checked by itself.
#[derive(Default)]
struct Parts {
    lat: Option<f64>,
    lon: Option<f64>,
    has_type: bool,
    coordinates: Option<GeoPoint>,
}

impl Parts {
    fn of_document(value: &str) -> Result<Self, BadForm> {
        let mut parts = Self::default();
        for member in Object::parse(value)?.members {
            parts.add(&member.key, member.value)?;
        }
        Ok(parts)
    }

    /// In a merge patch, null means the absence of a member, not a value.
    fn of_patch(value: &str) -> Result<Self, BadForm> {
        let mut parts = Self::default();
        for member in Object::parse(value)?.members.into_iter().filter(|member| !is_null(member.value)) {
            parts.add(&member.key, member.value)?;
        }
        Ok(parts)
    }

    fn add(&mut self, key: &str, value: &str) -> Result<(), BadForm> {
        match key {
            "lat" => self.lat = Some(GeoPoint::new(number(value, "lat")?, 0.0)?.lat()),
            "lon" => self.lon = Some(GeoPoint::new(0.0, number(value, "lon")?)?.lon()),
            "z" => {
                number(value, "z")?;
            }
            "type" => {
                let text: String = serde_json::from_str(value).map_err(|_| BadForm::NotAPoint)?;
                if !text.eq_ignore_ascii_case("point") {
                    return Err(BadForm::NotAPoint);
                }
                self.has_type = true;
            }
            "coordinates" => {
                let items: Vec<&RawValue> =
                    serde_json::from_str(value).map_err(|_| BadForm::NotANumber("coordinates"))?;
                let numbers = items.iter().map(|item| number(item.get(), "coordinates"));
                self.coordinates = Some(from_lon_lat(&numbers.collect::<Result<Vec<_>, _>>()?)?);
            }
            _ => return Err(BadForm::UnknownMember(shown(key))),
        }
        Ok(())
    }

    /// `None` if members are missing.
    fn assembled(self) -> Result<Option<GeoPoint>, BadForm> {
        let has_lat_lon = self.lat.is_some() || self.lon.is_some();
        let has_geojson = self.has_type || self.coordinates.is_some();
        if has_lat_lon && has_geojson {
            return Err(BadForm::Mixed);
        }
        if let (Some(lat), Some(lon)) = (self.lat, self.lon) {
            return Ok(Some(GeoPoint::new(lat, lon)?));
        }
        Ok(self.coordinates.filter(|_| self.has_type))
    }
}

/// Coordinates, or a list of one point: Elasticsearch treats a value and a list of it alike.
fn from_array(value: &str) -> Result<GeoPoint, BadForm> {
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
            _ => parse(one.get()),
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

fn from_text(text: &str) -> Result<GeoPoint, BadForm> {
    let text = java_trimmed(text);
    if let Some(keyword) = text.get(..5)
        && keyword.eq_ignore_ascii_case("point")
    {
        let inner = text[5..].trim_start().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        return from_lon_lat(&numbers(inner.ok_or(BadForm::Text)?.split_ascii_whitespace())?);
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
}
