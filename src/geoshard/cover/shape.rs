//! Circle, box and polygon: validation and parsing.

use thiserror::Error;

use crate::base::geo::{BadDistance, BadPoint, Distance, GeoPoint};

/// Maximum number of vertices: the cover of a larger polygon would take milliseconds.
pub const MAX_VERTICES: usize = 1000;

/// The area of a search.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// All points within a distance, as `geo_distance` measures: on a sphere.
    Circle {
        /// Its centre.
        centre: GeoPoint,
        /// 0 is a point.
        radius: Distance,
    },
    /// All points between two latitudes and two longitudes, as in `geo_bounding_box`; over the antimeridian where `left` is
    /// greater than `right`. Degrees.
    Box {
        /// Northern latitude.
        top: f64,
        /// Western longitude.
        left: f64,
        /// Southern latitude.
        bottom: f64,
        /// Eastern longitude.
        right: f64,
    },
    /// A polygon, as in `geo_shape` and `geo_polygon`: its sides are straight lines in latitude and longitude, not
    /// great circles. If it crosses itself, a point is inside if a line from it crosses the outline an odd number of
    /// times, as for Lucene.
    Polygon {
        /// Latitude and longitude of each vertex in degrees; the last is joined to the first.
        vertices: Vec<(f64, f64)>,
    },
}

/// Why something is not a shape.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum BadShape {
    /// The centre of a circle, or a corner.
    #[error(transparent)]
    Point(#[from] BadPoint),
    /// The radius.
    #[error(transparent)]
    Radius(#[from] BadDistance),
    /// Not a number.
    #[error("{0:?} is not a number of degrees")]
    Number(String),
    /// Wrong number of parts.
    #[error("{text:?} is not of the form {form}")]
    Form {
        /// The text, truncated.
        text: String,
        /// The expected form.
        form: &'static str,
    },
    /// Top below bottom.
    #[error("the box's top, {top}, is below its bottom, {bottom}")]
    UpsideDown {
        /// Northern latitude as given.
        top: f64,
        /// Southern latitude as given.
        bottom: f64,
    },
    /// Fewer than 3 vertices, or more than [`MAX_VERTICES`].
    #[error("the polygon has {0} vertices, but must have 3 to {MAX_VERTICES}")]
    Vertices(usize),
    /// A vertex out of range.
    #[error("the vertex {lat},{lon} is not within latitudes -90 and 90 and longitudes -360 and 360")]
    Vertex {
        /// Latitude as given.
        lat: f64,
        /// Longitude as given.
        lon: f64,
    },
    /// It is ambiguous which half of the globe is meant.
    #[error(
        "the polygon is {0} degrees wide, but may be 180 at most; cut it, or, if it should cross the antimeridian, write \
         longitudes beyond 180, for example 190 in place of -170"
    )]
    TooWide(f64),
}

impl Shape {
    /// A circle.
    pub fn circle(centre: GeoPoint, radius: Distance) -> Self {
        Self::Circle { centre, radius }
    }

    /// A box. Checks that every corner is on the globe and that top is not below bottom.
    pub fn bounding_box(top: f64, left: f64, bottom: f64, right: f64) -> Result<Self, BadShape> {
        GeoPoint::new(top, left)?;
        GeoPoint::new(bottom, right)?;
        if top < bottom {
            return Err(BadShape::UpsideDown { top, bottom });
        }
        Ok(Self::Box { top, left, bottom, right })
    }

    /// A polygon of these vertices, latitude and longitude. The first may be repeated as the last. Longitudes may be
    /// beyond ±180, so that a polygon can cross the antimeridian; one wider than 180 degrees is refused, since
    /// Elasticsearch may take it for one that crosses.
    pub fn polygon(mut vertices: Vec<(f64, f64)>) -> Result<Self, BadShape> {
        if vertices.len() > 1 && vertices.first() == vertices.last() {
            vertices.pop();
        }
        if vertices.len() < 3 || vertices.len() > MAX_VERTICES {
            return Err(BadShape::Vertices(vertices.len()));
        }
        let is_nowhere =
            |&(lat, lon): &(f64, f64)| !((-90.0..=90.0).contains(&lat) && (-360.0..=360.0).contains(&lon));
        if let Some(&(lat, lon)) = vertices.iter().find(|vertex| is_nowhere(vertex)) {
            return Err(BadShape::Vertex { lat, lon });
        }
        let longitudes = || vertices.iter().map(|vertex| vertex.1);
        let width = longitudes().fold(f64::MIN, f64::max) - longitudes().fold(f64::MAX, f64::min);
        if width > 180.0 {
            return Err(BadShape::TooWide(width));
        }
        Ok(Self::Polygon { vertices })
    }

    /// A circle written `LAT,LON,RADIUS`, for example `48.85,2.35,25mi`.
    pub fn parse_circle(text: &str) -> Result<Self, BadShape> {
        let [lat, lon, radius] = parts(text, "LAT,LON,RADIUS")?;
        Ok(Self::circle(GeoPoint::new(degrees(lat)?, degrees(lon)?)?, radius.parse()?))
    }

    /// A box written `TOP,LEFT,BOTTOM,RIGHT` in degrees.
    pub fn parse_box(text: &str) -> Result<Self, BadShape> {
        let [top, left, bottom, right] = parts(text, "TOP,LEFT,BOTTOM,RIGHT")?;
        Self::bounding_box(degrees(top)?, degrees(left)?, degrees(bottom)?, degrees(right)?)
    }

    /// A polygon written `LAT,LON LAT,LON …`, with spaces or semicolons between the vertices.
    pub fn parse_polygon(text: &str) -> Result<Self, BadShape> {
        let pieces = || text.split([' ', ';']).filter(|piece| !piece.is_empty());
        // Counted before anything is kept. One more is allowed for the repeated first vertex.
        let count = pieces().count();
        if count > MAX_VERTICES + 1 {
            return Err(BadShape::Vertices(count));
        }
        let vertex = |piece| {
            let [lat, lon] = parts(piece, "LAT,LON LAT,LON …")?;
            Ok((degrees(lat)?, degrees(lon)?))
        };
        Self::polygon(pieces().map(vertex).collect::<Result<_, BadShape>>()?)
    }
}

/// Exactly `N` comma-separated parts.
fn parts<'a, const N: usize>(text: &'a str, form: &'static str) -> Result<[&'a str; N], BadShape> {
    let parts: Vec<&str> = text.splitn(N + 1, ',').map(str::trim).collect();
    parts.try_into().map_err(|_| BadShape::Form { text: shortened(text), form })
}

/// Accepts NaN and infinity; the checks of points and vertices refuse them.
fn degrees(text: &str) -> Result<f64, BadShape> {
    text.parse().map_err(|_| BadShape::Number(shortened(text)))
}

/// Enough of a text to recognize it in an error.
fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_parsed_as_written() {
        let centre = GeoPoint::new(48.85, -2.35).unwrap();
        let circle = Shape::circle(centre, "25mi".parse().unwrap());
        assert_eq!(Shape::parse_circle("48.85, -2.35, 25mi"), Ok(circle));
        let over = Shape::Box { top: 1.0, left: 179.0, bottom: -1.0, right: -179.0 };
        assert_eq!(Shape::parse_box("1,179,-1,-179"), Ok(over));
        let vertices = vec![(0.0, 0.0), (0.0, 1.0), (1.0, 1.5)];
        let polygon = Shape::Polygon { vertices };
        for text in ["0,0 0,1 1,1.5", "0,0;0,1;1,1.5", " 0,0; 0,1  1,1.5 0,0"] {
            assert_eq!(Shape::parse_polygon(text).as_ref(), Ok(&polygon), "{text}");
        }
    }

    #[test]
    fn invalid_shape_is_refused_with_the_reason() {
        let many = vec!["0,0"; MAX_VERTICES + 2].join(" ");
        let error = |result: Result<Shape, BadShape>| result.unwrap_err().to_string();
        for (found, says) in [
            (error(Shape::parse_circle("1,2")), "is not of the form LAT,LON,RADIUS"),
            (error(Shape::parse_circle("1,2,3,4")), "is not of the form"),
            (error(Shape::parse_circle("x,2,3")), "\"x\" is not a number"),
            (error(Shape::parse_circle("91,2,3")), "latitude 91"),
            (error(Shape::parse_circle("NaN,2,3")), "latitude NaN"),
            (error(Shape::parse_circle("1,inf,3")), "longitude inf"),
            (error(Shape::parse_circle("1,2,-3km")), "-3km"),
            (error(Shape::parse_circle("1,2,3parsec")), "3parsec"),
            (error(Shape::parse_box("1,2,3,4")), "top, 1, is below its bottom, 3"),
            (error(Shape::parse_box("1,2,0,181")), "longitude 181"),
            (error(Shape::parse_polygon("")), "0 vertices"),
            (error(Shape::parse_polygon("0,0 1,1 0,0")), "2 vertices"),
            (error(Shape::parse_polygon("0,0 1,1 91,0")), "vertex 91,0"),
            (error(Shape::parse_polygon("0,0 1,1 NaN,0")), "vertex NaN,0"),
            (error(Shape::parse_polygon("0,0 1,1 0,361")), "vertex 0,361"),
            (error(Shape::parse_polygon("0,-100 1,0 0,81")), "181 degrees wide"),
            (error(Shape::parse_polygon(&many)), "1002 vertices"),
        ] {
            assert!(found.contains(says), "{found} / {says}");
        }
    }
}
