//! Where the searches are: for each S2 cell how many there were lately, how many geoshards they asked, how long they took.
//!
//! A search counts for the cell of its middle. Counts halve every hour, and only so many cells are kept: where there are more,
//! those with the least are dropped. `geofold shards plan --from-load` plans a map by them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use s2::cellid::CellID;
use s2::latlng::LatLng;
use serde::Serialize;
use tempfile::NamedTempFile;

use super::constraint::Region;
use super::sort::Nearest;
use crate::base::clock::Instant;
use crate::base::geo::GeoPoint;
use crate::geoshard::cover::Shape;
use crate::geoshard::load::LoadCounter;
use crate::io::load::LoadSender;

/// Of the cells that are counted: some 70 km wide.
const LEVEL: u64 = 7;
/// After this time a search counts half.
const HALF_LIFE: Duration = Duration::from_secs(3600);
/// Cells that are kept.
const MAX_CELLS: usize = 20_000;

/// The counters.
#[derive(Debug, Default)]
pub struct SearchLoad {
    cells: Mutex<BTreeMap<u64, Entry>>,
    /// Searches since they were last added to the record that workers and routers share, if they are.
    shared: Option<Mutex<LoadCounter>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    at: Option<Instant>,
    queries: f64,
    geoshards: f64,
    seconds: f64,
}

/// One cell, as it is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SearchCellLoad {
    /// Token of the S2 cell.
    pub cell: String,
    /// Its middle, as `shards plan` reads points.
    pub location: Location,
    /// Searches, those of an hour ago counted half.
    pub queries: f64,
    /// Geoshards that they asked.
    pub geoshards: f64,
    /// Seconds that they took.
    pub seconds: f64,
}

/// Degrees.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Location {
    lat: f64,
    lon: f64,
}

impl Entry {
    fn decayed(self, now: Instant) -> Self {
        let Some(at) = self.at else { return Self { at: Some(now), ..self } };
        let left = 0.5_f64.powf(now.since(at).as_secs_f64() / HALF_LIFE.as_secs_f64());
        let [queries, geoshards, seconds] =
            [self.queries, self.geoshards, self.seconds].map(|count| count * left);
        Self { at: Some(now), queries, geoshards, seconds }
    }
}

/// The middle of what a search is about; `None` if it is about no place.
pub fn middle(region: &Region, nearest: Option<&Nearest>) -> Option<GeoPoint> {
    if let Some(nearest) = nearest {
        return Some(nearest.point);
    }
    match region.shapes().first()? {
        Shape::Circle { centre, .. } => Some(*centre),
        Shape::Box { top, left, bottom, right } => {
            let right = if left > right { right + 360.0 } else { *right };
            let lon = (left + right) / 2.0;
            GeoPoint::new((top + bottom) / 2.0, if lon > 180.0 { lon - 360.0 } else { lon }).ok()
        }
        Shape::Polygon { vertices } => {
            let (lat, lon) = *vertices.first()?;
            GeoPoint::new(lat, lon - 360.0 * (lon / 360.0).round()).ok()
        }
    }
}

impl SearchLoad {
    /// Counts for the shared record as well, by cells of `level`.
    pub fn shared(level: u8) -> Self {
        Self { shared: Some(Mutex::new(LoadCounter::new(level))), ..Self::default() }
    }

    /// Hands over what was counted for the shared record.
    pub fn hand_over(&self, to: &LoadSender) {
        if let Some(shared) = &self.shared {
            to.send(&mut shared.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// A search about `point` asked so many geoshards and took so long.
    pub fn add(&self, point: GeoPoint, geoshards: usize, time: Duration, now: Instant) {
        let cell = CellID::from(LatLng::from_degrees(point.lat(), point.lon())).parent(LEVEL).0;
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        if cells.len() >= MAX_CELLS && !cells.contains_key(&cell) {
            drop_least(&mut cells, now);
        }
        let entry = cells.entry(cell).or_default();
        *entry = entry.decayed(now);
        entry.queries += 1.0;
        entry.geoshards += geoshards as f64;
        entry.seconds += time.as_secs_f64();
        drop(cells);
        if let Some(shared) = &self.shared {
            shared.lock().unwrap_or_else(PoisonError::into_inner).searched(point, time);
        }
    }

    /// All cells, in the order of the curve.
    pub fn cells(&self, now: Instant) -> Vec<SearchCellLoad> {
        let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let told = |(&cell, entry): (&u64, &Entry)| {
            let (cell, entry) = (CellID(cell), entry.decayed(now));
            let middle = LatLng::from(cell);
            SearchCellLoad {
                cell: cell.to_token(),
                location: Location { lat: middle.lat.deg(), lon: middle.lng.deg() },
                queries: entry.queries,
                geoshards: entry.geoshards,
                seconds: entry.seconds,
            }
        };
        cells.iter().map(told).collect()
    }

    /// Writes the cells to a file, one JSON object a line, whole or not at all.
    pub fn write(&self, path: &Path, now: Instant) -> io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        for cell in self.cells(now) {
            serde_json::to_writer(&mut file, &cell)?;
            file.write_all(b"\n")?;
        }
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    }
}

/// Half of the cells go, those with the fewest searches: dropping one at a time would look at all of them each time.
fn drop_least(cells: &mut BTreeMap<u64, Entry>, now: Instant) {
    let mut counts: Vec<f64> = cells.values().map(|entry| entry.decayed(now).queries).collect();
    let middle = counts.len() / 2;
    let (_, &mut least, _) = counts.select_nth_unstable_by(middle, f64::total_cmp);
    let mut to_drop = middle;
    cells.retain(|_, entry| {
        let drops = to_drop > 0 && entry.decayed(now).queries <= least;
        to_drop -= usize::from(drops);
        !drops
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::geo::Distance;

    fn at(seconds: u64) -> Instant {
        Instant::from_start(Duration::from_secs(seconds))
    }

    fn point(lat: f64, lon: f64) -> GeoPoint {
        GeoPoint::new(lat, lon).unwrap()
    }

    #[test]
    fn searches_count_for_their_cell_and_halve_every_hour() {
        let load = SearchLoad::default();
        load.add(point(48.85, 2.35), 2, Duration::from_millis(500), at(0));
        load.add(point(48.86, 2.36), 4, Duration::from_millis(500), at(3600));
        load.add(point(0.0, 0.0), 1, Duration::ZERO, at(3600));
        let cells = load.cells(at(7200));
        let counts: Vec<_> = cells.iter().map(|cell| (cell.queries, cell.geoshards, cell.seconds)).collect();
        assert_eq!(counts, [(0.5, 0.5, 0.0), (0.75, 2.5, 0.375)]);
        assert!((cells[1].location.lat - 48.85).abs() < 1.0 && cells[1].cell.len() <= 5, "{:?}", cells[1]);
    }

    #[test]
    fn only_so_many_cells_are_kept_and_those_with_the_most() {
        let load = SearchLoad::default();
        let place = |n: usize| point((n / 250) as f64 * 0.9 - 85.0, (n % 250) as f64 * 1.4 - 175.0);
        for n in 0..MAX_CELLS * 2 {
            load.add(place(n), 1, Duration::ZERO, at(0));
            load.add(point(48.85, 2.35), 1, Duration::ZERO, at(0));
        }
        let cells = load.cells(at(0));
        assert!(cells.len() <= MAX_CELLS, "{}", cells.len());
        let most = cells.iter().map(|cell| cell.queries).fold(0.0, f64::max);
        assert!(most >= (MAX_CELLS * 2) as f64);
    }

    #[test]
    fn the_file_is_what_a_plan_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("load.ndjson");
        let load = SearchLoad::default();
        load.add(point(48.85, 2.35), 2, Duration::from_millis(500), at(0));
        load.write(&path, at(0)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(
            (&line["queries"], &line["geoshards"], &line["seconds"]),
            (&1.0.into(), &2.0.into(), &0.5.into())
        );
        assert!(line["location"]["lat"].is_f64() && line["location"]["lon"].is_f64());
    }

    #[test]
    fn a_region_has_a_middle() {
        let circle = Shape::circle(point(1.0, 2.0), Distance::from_metres(5.0).unwrap());
        assert_eq!(middle(&Region::Within(circle), None), Some(point(1.0, 2.0)));
        let over = Shape::Box { top: 2.0, left: 178.0, bottom: 0.0, right: -176.0 };
        assert_eq!(middle(&Region::Within(over), None), Some(point(1.0, -179.0)));
        let polygon = Shape::Polygon { vertices: vec![(1.0, 190.0), (0.0, 191.0), (2.0, 192.0)] };
        assert_eq!(middle(&Region::Within(polygon), None), Some(point(1.0, -170.0)));
        assert_eq!(middle(&Region::Anywhere, None), None);
        let nearest = Nearest { point: point(3.0, 4.0), unit_metres: 1.0 };
        assert_eq!(middle(&Region::Anywhere, Some(&nearest)), Some(point(3.0, 4.0)));
    }
}
