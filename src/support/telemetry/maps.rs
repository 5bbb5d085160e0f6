//! The metrics of the record of the maps, of everything that follows it.

use prometheus::{Gauge, IntGauge, Result};

use super::families::Register;

/// What this process knows of the maps in force.
#[derive(Debug, Clone)]
pub struct MapsMetrics {
    /// How many maps are live.
    pub live: IntGauge,
    /// Generation of the record of the maps; 0 without one.
    pub generation: IntGauge,
    /// Age of what is known of that record.
    pub age_seconds: Gauge,
}

impl MapsMetrics {
    pub(super) fn new(r: &mut Register) -> Result<Self> {
        Ok(Self {
            live: r.gauge("geofold_live_maps", "Known live maps: 2 while the map changes.")?,
            generation: r.gauge(
                "geofold_maps_generation",
                "Known generation of the map; 0 if it was never changed.",
            )?,
            age_seconds: r.float_gauge(
                "geofold_maps_age_seconds",
                "Age of the known record of the maps; above batch.timeout nothing is sent.",
            )?,
        })
    }
}
