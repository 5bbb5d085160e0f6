//! A point on the globe and a distance, checked.

use std::str::FromStr;

use thiserror::Error;

/// Mean radius of the Earth in metres: the one that Elasticsearch measures distances with.
pub const EARTH_RADIUS_METRES: f64 = 6_371_008.771_4;

/// A checked location: latitude within ±90, longitude within ±180, degrees, both finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GeoPoint {
    lat: f64,
    lon: f64,
}

/// Why two numbers are not a location.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum BadPoint {
    /// Elasticsearch refuses it, too.
    #[error("latitude {0} is not within -90 and 90")]
    Latitude(f64),
    /// Elasticsearch refuses it, too.
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

/// A checked distance: finite, and not below 0.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Distance {
    metres: f64,
}

/// Why something is not a distance.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum BadDistance {
    /// Below 0, infinite, or NaN.
    #[error("the distance {0} is not a finite number of at least 0")]
    Range(String),
    /// Not a number, or not a unit of Elasticsearch.
    #[error("{0:?} is not a distance; write a number and a unit, for example 25mi, 3.5km or 800m")]
    Form(String),
}

impl Distance {
    /// Checks a number of metres.
    pub fn from_metres(metres: f64) -> Result<Self, BadDistance> {
        match metres.is_finite() && metres >= 0.0 {
            true => Ok(Self { metres }),
            false => Err(BadDistance::Range(metres.to_string())),
        }
    }

    /// In metres.
    pub fn metres(self) -> f64 {
        self.metres
    }
}

impl FromStr for Distance {
    type Err = BadDistance;

    /// Reads a number and one of Elasticsearch's units; without a unit, metres.
    fn from_str(text: &str) -> Result<Self, BadDistance> {
        // Errors quote a shortened text: it may come from anywhere.
        let quoted = || text.chars().take(60).collect();
        let is_unit = |c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E');
        let trimmed = text.trim();
        let (number, unit) = trimmed.split_at(trimmed.find(is_unit).unwrap_or(trimmed.len()));
        let unit = match unit {
            "" | "m" | "meters" => 1.0,
            "km" | "kilometers" => 1_000.0,
            "cm" | "centimeters" => 0.01,
            "mm" | "millimeters" => 0.001,
            "mi" | "miles" => 1_609.344,
            "yd" | "yards" => 0.914_4,
            "ft" | "feet" => 0.304_8,
            "in" | "inch" => 0.025_4,
            "nmi" | "NM" | "nauticalmiles" => 1_852.0,
            _ => return Err(BadDistance::Form(quoted())),
        };
        let number: f64 = number.trim().parse().map_err(|_| BadDistance::Form(quoted()))?;
        Self::from_metres(number * unit).map_err(|_| BadDistance::Range(quoted()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_accept_the_units_of_elasticsearch() {
        let metres = |text: &str| text.parse::<Distance>().map(Distance::metres);
        for (text, expected) in [
            ("25mi", 40_233.6),
            ("1 km", 1000.0),
            (" 12.5 ", 12.5),
            ("1e3m", 1000.0),
            ("0", 0.0),
            ("1nmi", 1852.0),
            ("1yd", 0.9144),
            ("2feet", 0.6096),
        ] {
            assert!((metres(text).unwrap() - expected).abs() < 1e-9, "{text}");
        }
        for bad in ["", "km", "5 parsec", "1km2", "e", "1,5km", "--1"] {
            assert_eq!(metres(bad), Err(BadDistance::Form(bad.to_owned())), "{bad}");
        }
        for bad in ["-1m", "1e400km"] {
            assert_eq!(metres(bad), Err(BadDistance::Range(bad.to_owned())), "{bad}");
        }
        assert!(metres("NaN").is_err() && metres("inf").is_err());
        assert!(Distance::from_metres(f64::NAN).is_err());
    }

    #[test]
    fn points_are_accepted_as_by_elasticsearch() {
        assert!(GeoPoint::new(90.0, -180.0).is_ok());
        assert_eq!(GeoPoint::new(90.1, 0.0), Err(BadPoint::Latitude(90.1)));
        assert_eq!(GeoPoint::new(0.0, 180.5), Err(BadPoint::Longitude(180.5)));
        assert!(GeoPoint::new(f64::NAN, 0.0).is_err());
        assert!(GeoPoint::new(0.0, f64::INFINITY).is_err());
    }
}
