//! `[documents]`: the shape of documents, and where their locations are.

use serde::{Deserialize, Serialize};

use super::byte_size::ByteSize;
use super::types::OnMissing;
use crate::core::decode::{BadLocationPath, LocationPath};

/// `[documents]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DocumentsConfig {
    /// Where a document's location is.
    pub location: LocationFields,
    /// Name of the `geo_point` field that geofold adds to each document. Required with two fields.
    pub point: Option<String>,
    /// A record's value above this size is bad input.
    pub max_bytes: ByteSize,
    /// Handling of a patch of a missing document; see [`super::Config::on_missing`].
    pub on_missing: Option<OnMissing>,
}

impl Default for DocumentsConfig {
    fn default() -> Self {
        Self { location: "location".into(), point: None, max_bytes: ByteSize::mib(1), on_missing: None }
    }
}

/// The fields of a location.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "write a field's path, like \"location\", or two: { lat = \"place.lat\", lon = \"place.lon\" }"
)]
pub enum LocationFields {
    /// The dotted path of one.
    One(String),
    /// Latitude and longitude.
    Pair(LatLonFields),
}

/// Dotted paths of two fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatLonFields {
    /// Of the latitude.
    pub lat: String,
    /// Of the longitude.
    pub lon: String,
}

impl From<&str> for LocationFields {
    fn from(path: &str) -> Self {
        Self::One(path.to_owned())
    }
}

impl DocumentsConfig {
    /// Where a document's location is, and the field that is added.
    ///
    /// # Errors
    /// If `location` or `point` cannot be used; [`BadLocationPath::key`] is which.
    pub fn location_path(&self) -> Result<LocationPath, BadLocationPath> {
        match (&self.location, &self.point) {
            (LocationFields::One(path), None) => LocationPath::new(path),
            (LocationFields::One(path), Some(point)) => LocationPath::new(path)?.with_point(point),
            (LocationFields::Pair(pair), point) => LocationPath::pair(&pair.lat, &pair.lon, point.as_deref()),
        }
    }

    /// The path of the `geo_point` field, which searches use. Only of a configuration that passed its checks.
    pub fn searched(&self) -> String {
        self.location_path().unwrap_or_default().searched().to_owned()
    }
}
