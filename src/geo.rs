//! A point on the globe, checked.

use thiserror::Error;

/// A checked location: latitude within ±90, longitude within ±180, degrees, both finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GeoPoint {
    lat: f64,
    lon: f64,
}

/// Why two numbers are no location.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum BadPoint {
    /// Elasticsearch refuses it too.
    #[error("latitude {0} is not within -90 and 90")]
    Latitude(f64),
    /// Elasticsearch refuses it too.
    #[error("longitude {0} is not within -180 and 180")]
    Longitude(f64),
}

impl GeoPoint {
    /// Checks latitude and longitude, both in degrees. NaN is refused.
    pub fn new(lat: f64, lon: f64) -> Result<Self, BadPoint> {
        if !(-90.0..=90.0).contains(&lat) {
            return Err(BadPoint::Latitude(lat));
        }
        if !(-180.0..=180.0).contains(&lon) {
            return Err(BadPoint::Longitude(lon));
        }
        Ok(Self { lat, lon })
    }

    /// Latitude in degrees.
    pub fn lat(self) -> f64 {
        self.lat
    }

    /// Longitude in degrees.
    pub fn lon(self) -> f64 {
        self.lon
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_points_that_elasticsearch_takes_are_points() {
        assert!(GeoPoint::new(90.0, -180.0).is_ok());
        assert_eq!(GeoPoint::new(90.1, 0.0), Err(BadPoint::Latitude(90.1)));
        assert_eq!(GeoPoint::new(0.0, 180.5), Err(BadPoint::Longitude(180.5)));
        assert!(GeoPoint::new(f64::NAN, 0.0).is_err());
        assert!(GeoPoint::new(0.0, f64::INFINITY).is_err());
    }
}
