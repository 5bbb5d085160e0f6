//! Finds a document's location in one pass that validates all of the JSON and keeps only the location's text; and adds the
//! `geo_point` field where one is configured (`documents.point`), the only place that does.
//!
//! Only members along the path are entered; everything else is skipped, by `plain.rs` or, for an unusual document, by `find.rs` in a
//! pass for each field. The added field is spliced into the document's bytes.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use memchr::memrchr;

use super::find::{FoundValue, find};
use super::object::{BadObject, is_null, text};
use super::on_one_line;
use super::plain::{self, ValueAt};
use super::point::{self, BadForm, Forms};
use crate::base::geo::GeoPoint;
use crate::core::write::PatchMove;

/// Where in a document its location is: one field, or two with latitude and longitude. Paths are as in a mapping: `location`,
/// `place.point`. And the `geo_point` field that geofold adds, if any. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocationPath(Arc<Paths>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Paths {
    location: Fields,
    /// The name of the field that geofold adds, at the top of a document.
    point: Option<String>,
    forms: Forms,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Fields {
    One(String),
    Pair { lat: String, lon: String },
}

/// Why texts are no fields of a location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLocationPath {
    /// Not a path.
    #[error(
        "{0:?} is not a field path; write field names separated by dots, like \"location\" or \"profile.location\""
    )]
    Path(String),
    /// One is the other, or inside of it.
    #[error("latitude and longitude are both at {0:?}; name two fields")]
    OneField(String),
    /// Elasticsearch does not search two numbers.
    #[error(
        "it is required, since documents.location has two fields, and Elasticsearch searches one geo_point; name the field that \
         geofold adds to each document, for example \"point\""
    )]
    NoPoint,
    /// Not the name of a field at the top of a document.
    #[error(
        "{0:?} is not a name for the added field; write letters, digits, \"_\" and \"-\", without dots, beginning with a letter"
    )]
    PointName(String),
    /// The added field would replace the location.
    #[error("{0:?} is where the location is; name another field")]
    PointTaken(String),
}

/// Why a document or a patch has no usable location.
#[derive(Debug, thiserror::Error)]
pub enum BadLocation {
    /// The enclosing JSON is invalid.
    #[error(transparent)]
    Json(#[from] BadObject),
    /// Missing, or inside something that is not an object.
    #[error("it is missing")]
    Missing,
    /// Null; in a patch, also a parent that is replaced by something without it.
    #[error("it is null")]
    Null,
    /// The same field in two spellings (`"a.b"` beside `"a": {"b": …}`), or a duplicate key.
    #[error("it appears more than once")]
    Twice,
    /// Present, but not a location.
    #[error(transparent)]
    Form(#[from] BadForm),
}

impl BadLocationPath {
    /// The key of the configuration that is wrong.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Path(_) | Self::OneField(_) => "documents.location",
            Self::NoPoint | Self::PointName(_) | Self::PointTaken(_) => "documents.point",
        }
    }
}

impl From<serde_json::Error> for BadLocation {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error.into())
    }
}

impl LocationPath {
    /// A location in one field. Checks that no part of the path is empty.
    pub fn new(path: &str) -> Result<Self, BadLocationPath> {
        let location = Fields::One(checked(path)?);
        Ok(Self(Arc::new(Paths { location, point: None, forms: Forms::GeoPoint })))
    }

    /// A location in two fields, with the name of the `geo_point` field that is added.
    pub fn pair(lat: &str, lon: &str, point: Option<&str>) -> Result<Self, BadLocationPath> {
        let is_inside = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let location = Fields::Pair { lat: checked(lat)?, lon: checked(lon)? };
        if is_inside(lat, lon) || is_inside(lon, lat) {
            return Err(BadLocationPath::OneField(lat.to_owned()));
        }
        let unpointed = Self(Arc::new(Paths { location, point: None, forms: Forms::GeoPoint }));
        unpointed.with_point(point.ok_or(BadLocationPath::NoPoint)?)
    }

    /// Documents get the location once more as a `geo_point` field of this name, at their top. So a single field may have forms
    /// that Elasticsearch does not take.
    pub fn with_point(&self, name: &str) -> Result<Self, BadLocationPath> {
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.bytes().all(is_legal) {
            return Err(BadLocationPath::PointName(name.to_owned()));
        }
        if self.fields().iter().any(|path| path.split('.').next() == Some(name)) {
            return Err(BadLocationPath::PointTaken(name.to_owned()));
        }
        let (location, point) = (self.0.location.clone(), Some(name.to_owned()));
        Ok(Self(Arc::new(Paths { location, point, forms: Forms::Database })))
    }

    /// For reading only: also forms that Elasticsearch does not take.
    pub fn in_any_form(&self) -> Self {
        Self(Arc::new(Paths { forms: Forms::Database, ..Paths::clone(&self.0) }))
    }

    /// The paths of the fields that hold the location.
    pub fn fields(&self) -> Vec<String> {
        match &self.0.location {
            Fields::One(path) => vec![path.clone()],
            Fields::Pair { lat, lon } => vec![lat.clone(), lon.clone()],
        }
    }

    /// The path of the `geo_point` field, which searches use: the added one, or the location's.
    pub fn searched(&self) -> &str {
        match (&self.0.point, &self.0.location) {
            (Some(point), _) => point,
            // A pair has a point.
            (None, Fields::One(path) | Fields::Pair { lat: path, .. }) => path,
        }
    }

    /// Whether documents get a field.
    pub fn adds_point(&self) -> bool {
        self.0.point.is_some()
    }

    /// The location of a whole document. Checks the syntax of all of `document`, which must be an object.
    pub fn locate(&self, document: &[u8]) -> Result<GeoPoint, BadLocation> {
        Ok(self.location_and(None, document)?.at)
    }

    /// The location of a whole document, and the document on one line, with the `geo_point` field of that location, if one is to be
    /// added: in place of a former one, otherwise as the last member. Without a change the same bytes.
    pub fn complete(&self, document: Bytes) -> Result<(Bytes, GeoPoint), BadLocation> {
        let name = self.0.point.as_deref();
        let Located { at, former, is_plain } =
            self.location_and(name, &document).map_err(|why| match (why, name) {
                (BadLocation::Twice, Some(name)) if is_twice(&document, name) => {
                    BadObject::DuplicateKey(name.to_owned()).into()
                }
                (why, _) => why,
            })?;
        let completed = name.and_then(|name| with_point(&document, name, at, former)).unwrap_or(document);
        Ok((if is_plain { completed } else { on_one_line(completed) }, at))
    }

    /// The document of [`LocationPath::complete`]; unchanged without a usable location, so that whoever places it refuses it.
    pub fn completed(&self, document: Bytes) -> Bytes {
        if !self.adds_point() {
            return document;
        }
        match self.complete(document.clone()) {
            Ok((completed, _)) => completed,
            Err(_) => document,
        }
    }

    /// Whether searches find a document at its location `at`: it has the added field with that value, or none is added.
    pub fn is_complete(&self, document: &[u8], at: GeoPoint) -> bool {
        let Some(name) = &self.0.point else { return true };
        let Ok(([Some(value)], _)) = values_at(document, [name]) else { return false };
        point::parse(value.text, Forms::GeoPoint).ok() == Some(at)
    }

    /// The location, and the text of the field at the top with this name, if one is given.
    fn location_and<'a>(&self, name: Option<&str>, document: &'a [u8]) -> Result<Located<'a>, BadLocation> {
        let (at, former, is_plain) = match (&self.0.location, name) {
            (Fields::One(path), None) => {
                let ([location], is_plain) = values_at(document, [path])?;
                (self.one(location)?, None, is_plain)
            }
            (Fields::One(path), Some(name)) => {
                let ([location, former], is_plain) = values_at(document, [path, name])?;
                (self.one(location)?, former, is_plain)
            }
            (Fields::Pair { lat, lon }, None) => {
                let (values, is_plain) = values_at(document, [lat, lon])?;
                (pair(values)?, None, is_plain)
            }
            (Fields::Pair { lat, lon }, Some(name)) => {
                let ([lat, lon, former], is_plain) = values_at(document, [lat, lon, name])?;
                (pair([lat, lon])?, former, is_plain)
            }
        };
        Ok(Located { at, former: former.map(|former| former.text), is_plain })
    }

    fn one(&self, value: Option<ValueAt<'_>>) -> Result<GeoPoint, BadLocation> {
        let ValueAt { text, lat_lon } = value.ok_or(BadLocation::Missing)?;
        if let Some((lat, lon)) = lat_lon {
            return Ok(GeoPoint::new(lat, lon).map_err(BadForm::from)?);
        }
        match text {
            "null" => Err(BadLocation::Null),
            value => Ok(point::parse(value, self.0.forms)?),
        }
    }

    /// The effect of a merge patch on the location. Checks the syntax of all of `patch`, which must be an object.
    /// [`BadLocation::Null`] if it removes the location.
    pub fn patch_move(&self, patch: &[u8]) -> Result<PatchMove, BadLocation> {
        let patch = text(patch)?;
        match &self.0.location {
            Fields::One(path) => match change(patch, path)? {
                None => Ok(PatchMove::Stays),
                Some(value) => Ok(point::parse_patch(value, self.0.forms)?),
            },
            Fields::Pair { lat, lon } => {
                Ok(point::parse_patch_of_pair(change(patch, lat)?, change(patch, lon)?)?)
            }
        }
    }
}

/// What a merge patch puts at the path, if anything.
fn change<'a>(patch: &'a str, path: &str) -> Result<Option<&'a str>, BadLocation> {
    match find(patch, path)? {
        FoundValue::Nothing => Ok(None),
        FoundValue::Value(raw) if is_null(raw.get()) => Err(BadLocation::Null),
        FoundValue::Value(raw) => Ok(Some(raw.get())),
        FoundValue::Blocked => Err(BadLocation::Null),
        FoundValue::Twice => Err(BadLocation::Twice),
    }
}

fn checked(path: &str) -> Result<String, BadLocationPath> {
    match path.split('.').any(|name| name.trim().is_empty()) {
        true => Err(BadLocationPath::Path(path.to_owned())),
        false => Ok(path.to_owned()),
    }
}

fn pair(values: [Option<ValueAt<'_>>; 2]) -> Result<GeoPoint, BadLocation> {
    let [Some(lat), Some(lon)] = values.map(|value| value.map(|value| value.text)) else {
        return Err(BadLocation::Missing);
    };
    if is_null(lat) || is_null(lon) {
        return Err(BadLocation::Null);
    }
    Ok(point::parse_pair(lat, lon)?)
}

/// What is found in a document.
struct Located<'a> {
    at: GeoPoint,
    /// The text of the field that may have been added before.
    former: Option<&'a str>,
    /// It has no control characters, hence no line breaks.
    is_plain: bool,
}

/// The values at these paths, each a part of `document`, where they are there; and whether it has no control characters for sure. Checks
/// the syntax of all of it.
fn values_at<'a, const N: usize>(
    document: &'a [u8],
    paths: [&str; N],
) -> Result<([Option<ValueAt<'a>>; N], bool), BadLocation> {
    if let Some(values) = plain::values_at(document, paths)? {
        return Ok((values, true));
    }
    let document = text(document)?;
    let mut values = [None; N];
    for (value, path) in values.iter_mut().zip(paths) {
        *value = match find(document, path)? {
            FoundValue::Value(raw) => Some(ValueAt { text: raw.get(), lat_lon: None }),
            FoundValue::Twice => return Err(BadLocation::Twice),
            FoundValue::Nothing | FoundValue::Blocked => None,
        };
    }
    Ok((values, false))
}

/// The document with the added field, in place of the `former` one; `None` if that is the same.
fn with_point(document: &[u8], name: &str, at: GeoPoint, former: Option<&str>) -> Option<Bytes> {
    let point = point_text(at);
    let (begin, end, member) = match former {
        Some(former) if former == point => return None,
        Some(former) => {
            let begin = offset_in(document, former);
            (begin, begin + former.len(), point)
        }
        None => {
            // It has a location, so it has a member.
            let close = memrchr(b'}', document).unwrap_or(document.len());
            (close, close, format!(",\"{name}\":{point}"))
        }
    };
    let mut completed = Vec::with_capacity(document.len() - (end - begin) + member.len());
    completed.extend_from_slice(&document[..begin]);
    completed.extend_from_slice(member.as_bytes());
    completed.extend_from_slice(&document[end..]);
    Some(completed.into())
}

fn is_twice(document: &[u8], path: &str) -> bool {
    matches!(text(document).map(|document| find(document, path)), Ok(Ok(FoundValue::Twice)))
}

/// Where a part of `whole` begins in it.
fn offset_in(whole: &[u8], part: &str) -> usize {
    let offset = part.as_ptr().addr().wrapping_sub(whole.as_ptr().addr());
    debug_assert!(whole.get(offset..).is_some_and(|rest| rest.starts_with(part.as_bytes())));
    offset
}

/// The value of an added field: shorter than an object, and a merge patch that puts an object here replaces it. The same location
/// always gives the same text, the shortest that stands for its numbers.
fn point_text(at: GeoPoint) -> String {
    format!("[{:?},{:?}]", at.lon(), at.lat())
}

impl Default for LocationPath {
    /// `location`.
    fn default() -> Self {
        let location = Fields::One("location".to_owned());
        Self(Arc::new(Paths { location, point: None, forms: Forms::GeoPoint }))
    }
}

impl fmt::Display for LocationPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.location {
            Fields::One(path) => f.write_str(path),
            Fields::Pair { lat, lon } => write!(f, "{lat}, {lon}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> LocationPath {
        LocationPath::new(path).unwrap()
    }

    #[test]
    fn location_is_found_wherever_elasticsearch_finds_it() {
        for document in [
            r#"{"x":{"a":{"b":{"c":"9,9"}}},"a":{"b":{"c":"1,2"}},"c":"9,9","":0}"#,
            r#"{"a.b.c":"1,2"}"#,
            r#"{"a":{"b.c":"1,2","bc":"9,9"}}"#,
            r#"{"a.b":{"c":"1,2"},"a.bc":5,"ab":{}}"#,
            r#"{"\u0061":{"b":{"c":"1,2"}},"a.":5}"#,
        ] {
            let point =
                path("a.b.c").locate(document.as_bytes()).unwrap_or_else(|e| panic!("{document}: {e}"));
            assert_eq!((point.lat(), point.lon()), (1.0, 2.0), "{document}");
        }
    }

    #[test]
    fn missing_location_differs_from_a_bad_one() {
        let at = |document: &str| path("a.b").locate(document.as_bytes()).unwrap_err();
        for missing in
            ["{}", r#"{"a":{}}"#, r#"{"a":5}"#, r#"{"a":"b"}"#, r#"{"a":[{"b":"1,2"}]}"#, r#"{"a":null}"#]
        {
            assert!(matches!(at(missing), BadLocation::Missing), "{missing}");
        }
        assert!(matches!(at(r#"{"a":{"b":null}}"#), BadLocation::Null));
        assert!(matches!(at(r#"{"a":{"b":91}}"#), BadLocation::Form(_)));
    }

    #[test]
    fn two_locations_are_refused_in_any_spelling() {
        for document in [r#"{"a":{"b":"1,2","b":"1,2"}}"#, r#"{"a":{"b":"1,2"},"a.b":"1,2"}"#] {
            assert!(matches!(path("a.b").locate(document.as_bytes()), Err(BadLocation::Twice)), "{document}");
        }
    }

    #[test]
    fn all_of_the_json_is_checked_beyond_the_location() {
        for document in [
            r#"{"location":"1,2""#,
            r#"{"location":"1,2"} x"#,
            r#"{"location":"1,2","x":[1,]}"#,
            "{\"location\":\"1,2\",\"x\":\"line\nbreak\"}",
            r#"{"location":"1,2","x":01}"#,
        ] {
            assert!(
                matches!(
                    path("location").locate(document.as_bytes()),
                    Err(BadLocation::Json(BadObject::Json(_)))
                ),
                "{document}"
            );
        }
        let not_utf8 = b"{\"location\":\"1,2\",\"x\":\"\xff\"}";
        assert!(matches!(path("location").locate(not_utf8), Err(BadLocation::Json(BadObject::NotUtf8(23)))));
    }

    #[test]
    fn patch_removes_the_location_by_null_or_a_replaced_parent() {
        let moves = |patch: &str| path("a.b").patch_move(patch.as_bytes());
        for away in [
            r#"{"a":null}"#,
            r#"{"a":{"b":null}}"#,
            r#"{"a.b":null}"#,
            r#"{"a":5}"#,
            r#"{"a":[{"b":"1,2"}]}"#,
        ] {
            assert!(matches!(moves(away), Err(BadLocation::Null)), "{away}");
        }
        for stays in ["{}", r#"{"a":{}}"#, r#"{"a":{"x":null}}"#, r#"{"b":null}"#] {
            assert_eq!(moves(stays).unwrap(), PatchMove::Stays, "{stays}");
        }
        assert_eq!(moves(r#"{"a":{"b":{"lat":5}}}"#).unwrap(), PatchMove::Unclear);
    }

    #[test]
    fn path_has_no_empty_names() {
        for bad in ["", ".", "a.", ".a", "a..b", " "] {
            assert!(LocationPath::new(bad).is_err(), "{bad:?}");
        }
    }

    fn pair() -> LocationPath {
        LocationPath::pair("place.lat", "lon", Some("at")).unwrap()
    }

    /// 13.4 east, 52.5 north, as Debezium writes it.
    const GEOMETRY: &str = r#"{"wkb":"AQEAACDmEAAAzczMzMzMKkAAAAAAAEBKQA==","srid":4326}"#;

    fn completed(path: &LocationPath, document: &str) -> Result<String, BadLocation> {
        let (completed, at) = path.complete(Bytes::copy_from_slice(document.as_bytes()))?;
        assert_eq!(path.locate(&completed).unwrap(), at, "{document}");
        assert!(path.is_complete(&completed, at), "{document}");
        assert_eq!(path.complete(completed.clone()).unwrap(), (completed.clone(), at), "once is enough");
        Ok(String::from_utf8(completed.to_vec()).unwrap())
    }

    #[test]
    fn the_point_is_the_last_member_or_replaces_a_former_one() {
        let geometry = path("geom").with_point("at").unwrap();
        for (path, document, expected) in [
            (
                pair(),
                r#" { "place": {"lat": 1.50}, "lon": "2", "a": {"at": 5} } "#,
                r#" { "place": {"lat": 1.50}, "lon": "2", "a": {"at": 5} ,"at":[2.0,1.5]} "#,
            ),
            (
                pair(),
                r#"{"at":null,"place.lat":-1e-7,"lon":2}"#,
                r#"{"at":[2.0,-1e-7],"place.lat":-1e-7,"lon":2}"#,
            ),
            (
                pair(),
                r#"{"at":{"lat":9,"lon":9},"lon":0,"place":{"lat":0}}"#,
                r#"{"at":[0.0,0.0],"lon":0,"place":{"lat":0}}"#,
            ),
            // Not plain: line breaks, which become spaces, and escaped keys.
            (
                pair(),
                "{\"place\":{\"lat\":1},\n\"lon\":2\n}\n",
                "{\"place\":{\"lat\":1}, \"lon\":2 ,\"at\":[2.0,1.0]} ",
            ),
            (
                pair(),
                "{\"\\u0061t\":7,\"place\":{\"lat\":1},\n\"lon\":2}",
                "{\"\\u0061t\":[2.0,1.0],\"place\":{\"lat\":1}, \"lon\":2}",
            ),
            (
                geometry.clone(),
                &format!(r#"{{"geom":{GEOMETRY}}}"#),
                &format!(r#"{{"geom":{GEOMETRY},"at":[13.4,52.5]}}"#),
            ),
            (geometry.clone(), r#"{"geom":"POINT (2 1)"}"#, r#"{"geom":"POINT (2 1)","at":[2.0,1.0]}"#),
        ] {
            assert_eq!(completed(&path, document).unwrap(), expected);
        }
        let same = Bytes::from_static(br#"{"at":[2.0,1.0],"place":{"lat":1},"lon":2}"#);
        assert_eq!(pair().complete(same.clone()).unwrap().0.as_ptr(), same.as_ptr(), "it is not copied");
        let alone = Bytes::from_static(br#"{"location":[2,1]}"#);
        assert_eq!(path("location").complete(alone.clone()).unwrap().0.as_ptr(), alone.as_ptr());
        assert_eq!(path("location").completed(alone.clone()), alone);
    }

    #[test]
    fn what_has_no_location_or_two_is_not_completed() {
        for (document, says) in [
            ("{}", "missing"),
            (r#"{"lon":2}"#, "missing"),
            (r#"{"place":{"lat":1}}"#, "missing"),
            (r#"{"place":5,"lon":2}"#, "missing"),
            (r#"{"place":{"lat":null},"lon":2}"#, "null"),
            (r#"{"place":{"lat":1},"lon":2,"lon":3}"#, "more than once"),
            (r#"{"place":{"lat":1},"place.lat":1,"lon":2}"#, "more than once"),
            (r#"{"place":{"lat":1},"lon":2,"at":1,"at":2}"#, "duplicate key \"at\""),
            (r#"{"place":{"lat":1},"lon":2,"at":1,"\u0061t":2}"#, "duplicate key \"at\""),
            (r#"{"place":{"lat":91},"lon":2}"#, "latitude 91"),
            (r#"{"place":{"lat":1},"lon":2"#, "not a valid JSON object"),
        ] {
            let error = completed(&pair(), document).unwrap_err().to_string();
            assert!(error.contains(says), "{document}: {error}");
            let document = Bytes::from_static(document.as_bytes());
            assert_eq!(pair().completed(document.clone()), document);
        }
    }

    #[test]
    fn forms_of_databases_need_the_point() {
        let document = format!(r#"{{"geom":{GEOMETRY}}}"#);
        let refused = path("geom").locate(document.as_bytes()).unwrap_err().to_string();
        assert!(refused.contains("documents.point"), "{refused}");
        assert!(path("geom").patch_move(document.as_bytes()).is_err());
        let berlin = GeoPoint::new(52.5, 13.4).unwrap();
        for reads in [path("geom").with_point("at").unwrap(), path("geom").in_any_form()] {
            assert_eq!(reads.locate(document.as_bytes()).unwrap(), berlin);
            assert_eq!(reads.patch_move(document.as_bytes()).unwrap(), PatchMove::To(berlin.into()));
        }
    }

    #[test]
    fn patch_of_a_pair_moves_if_it_has_a_part() {
        let moves = |patch: &str| pair().patch_move(patch.as_bytes());
        let to = PatchMove::To(GeoPoint::new(1.0, 2.0).unwrap().into());
        for (patch, expected) in [
            (r#"{"place":{"lat":1},"lon":2}"#, to),
            (r#"{"place.lat":"1","lon":"2"}"#, to),
            (r#"{"lon":2}"#, PatchMove::Unclear),
            (r#"{"place":{"lat":1}}"#, PatchMove::Unclear),
            (r#"{"place":{"x":null}}"#, PatchMove::Stays),
            (r#"{"at":null}"#, PatchMove::Stays),
            ("{}", PatchMove::Stays),
        ] {
            assert_eq!(moves(patch).unwrap(), expected, "{patch}");
        }
        for away in
            [r#"{"lon":null}"#, r#"{"place":{"lat":null},"lon":1}"#, r#"{"place":null}"#, r#"{"place":[1]}"#]
        {
            assert!(matches!(moves(away), Err(BadLocation::Null)), "{away}");
        }
        assert!(matches!(moves(r#"{"lon":[1]}"#), Err(BadLocation::Form(_))));
        assert!(matches!(moves(r#"{"lon":1,"lon":2}"#), Err(BadLocation::Twice)));
    }

    #[test]
    fn fields_that_can_not_be_used_are_refused() {
        let key = |path: Result<LocationPath, BadLocationPath>| path.unwrap_err().key();
        assert_eq!(key(LocationPath::pair("lat", "lat", Some("at"))), "documents.location");
        assert_eq!(key(LocationPath::pair("a.b", "a", Some("at"))), "documents.location");
        assert_eq!(key(LocationPath::pair("a", "", Some("at"))), "documents.location");
        assert_eq!(key(LocationPath::pair("lat", "lon", None)), "documents.point");
        for name in ["", "a.b", "_id", "1a", "a b", "a\"", "ä", "location"] {
            assert_eq!(key(path("location.at").with_point(name)), "documents.point", "{name:?}");
        }
        assert!(LocationPath::pair("lat", "latitude", Some("lati")).is_ok());
        assert_eq!(pair().fields(), ["place.lat", "lon"]);
        assert_eq!((pair().searched(), path("a.b").searched()), ("at", "a.b"));
        assert_eq!(pair().to_string(), "place.lat, lon");
    }
}
