//! Arguments that say where points come from, for the subcommands that read them.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::Path;

use anyhow::Context;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Failure, connect};
use crate::base::geo::GeoPoint;
use crate::base::progress::Progress;
use crate::cli::progress::ProgressMeter;
use crate::core::decode::LocationPath;
use crate::ops::points::{self, Columns, PointLocation, PointRow, PointsFormat, Weight};
use crate::support::config::Config;

/// How rows of points are read.
#[derive(Debug, Clone, Args)]
pub(super) struct RowArgs {
    /// Format of the file; detected by its first character if not given.
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// Column or dotted path of the latitude in degrees.
    #[arg(long, value_name = "NAME", requires = "lon", conflicts_with = "location")]
    lat: Option<String>,
    /// Column or dotted path of the longitude in degrees.
    #[arg(long, value_name = "NAME", requires = "lat")]
    lon: Option<String>,
    /// Dotted path of the location in a JSON object, in any form of geo_point, Debezium or PostGIS.
    #[arg(long, value_name = "PATH")]
    location: Option<String>,
    /// Load of a point, a weighted sum of columns: "users", "users + 0.5*active + 10*queries".
    #[arg(long, value_name = "SUM", default_value = "1")]
    weight: Weight,
}

impl RowArgs {
    /// With this default load expression.
    pub(super) fn with_default_weight(mut self, weight: &str) -> Result<Self, Failure> {
        if self.weight == Weight::default() {
            self.weight = weight.parse().map_err(Failure::usage)?;
        }
        Ok(self)
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatArg {
    Csv,
    Ndjson,
}

impl RowArgs {
    /// What is read from each row.
    pub(super) fn columns(&self) -> Result<Columns, Failure> {
        let place = match (&self.location, &self.lat, &self.lon) {
            (Some(path), ..) => {
                PointLocation::Path(LocationPath::new(path).map_err(Failure::usage)?.in_any_form())
            }
            (None, Some(lat), Some(lon)) => PointLocation::Pair { lat: lat.clone(), lon: lon.clone() },
            _ => PointLocation::Usual,
        };
        Ok(Columns { place, weight: self.weight.clone(), id: None })
    }

    /// Reads the points of a file; `-` is standard input.
    pub(super) fn read<E: std::error::Error + Send + Sync + 'static>(
        &self,
        path: &Path,
        mut each: impl FnMut(GeoPoint, f64) -> Result<(), E>,
    ) -> Result<(), Failure> {
        self.read_rows(path, &self.columns()?, |row| each(row.point, row.load))
    }

    /// Reads the points of a text.
    pub(super) fn read_text<E: std::error::Error + Send + Sync + 'static>(
        &self,
        text: &str,
        mut each: impl FnMut(GeoPoint, f64) -> Result<(), E>,
    ) -> Result<(), Failure> {
        let columns = self.columns()?;
        let add = |row: PointRow<'_>| each(row.point, row.load);
        points::read(text.as_bytes(), Some(PointsFormat::Ndjson), &columns, add).map_err(Failure::usage)?;
        Ok(())
    }

    /// Reads the points of the documents of `indices`; reports on standard error how many had none.
    pub(super) async fn scan<E: std::error::Error + Send + Sync + 'static>(
        &self,
        config: &Config,
        indices: &[String],
        mut each: impl FnMut(GeoPoint, f64) -> Result<(), E>,
    ) -> Result<(), Failure> {
        let mut columns = self.columns()?;
        if columns.place == PointLocation::Usual {
            columns.place = PointLocation::Path(connect::location(config)?);
        }
        let elastic = connect::patient_elasticsearch(config)?;
        let meter = ProgressMeter::new();
        let read = |done| meter.tell(Progress::Done { what: "documents read", done, of: None });
        let add = |row: PointRow<'_>| each(row.point, row.load);
        let timeout = config.elasticsearch.request_timeout;
        let scanned = points::scan::scan(&*elastic, indices, &columns, timeout, add, read).await;
        meter.end();
        let scanned = scanned.with_context(|| format!("reading {}", indices.join(", ")))?;
        if let Some(why) = &scanned.why {
            let points::scan::Scanned { read, left_out, .. } = scanned;
            eprintln!("{left_out} of {read} documents are left out; the first: {why}");
        }
        Ok(())
    }

    /// Reads a file of tracks: rows with an id, in the order of time.
    pub(super) fn read_tracks<E: std::error::Error + Send + Sync + 'static>(
        &self,
        path: &Path,
        id: &str,
        mut each: impl FnMut(&str, GeoPoint) -> Result<(), E>,
    ) -> Result<(), Failure> {
        let columns = Columns { id: Some(id.to_owned()), weight: Weight::default(), ..self.columns()? };
        self.read_rows(path, &columns, |row| each(row.id, row.point))
    }

    fn read_rows<E: std::error::Error + Send + Sync + 'static>(
        &self,
        path: &Path,
        columns: &Columns,
        each: impl FnMut(PointRow<'_>) -> Result<(), E>,
    ) -> Result<(), Failure> {
        let format = self.format.map(|format| match format {
            FormatArg::Csv => PointsFormat::Csv,
            FormatArg::Ndjson => PointsFormat::Ndjson,
        });
        let bar = ProgressBar::no_length();
        let input = open(path, &bar)?;
        let result = points::read(input, format, columns, each);
        bar.finish_and_clear();
        result.with_context(|| format!("reading {}", path.display())).map_err(Failure::usage)?;
        Ok(())
    }
}

/// Opens a file; on a terminal, `bar` shows how far it is read.
fn open(path: &Path, bar: &ProgressBar) -> Result<Box<dyn BufRead>, Failure> {
    const BUFFER: usize = 1 << 18;
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::with_capacity(BUFFER, bar.wrap_read(stdin()))));
    }
    let file =
        File::open(path).with_context(|| format!("opening {}", path.display())).map_err(Failure::usage)?;
    if let Some(metadata) = file.metadata().ok().filter(std::fs::Metadata::is_file) {
        bar.set_length(metadata.len());
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left") {
            bar.set_style(style);
        }
    }
    Ok(Box::new(BufReader::with_capacity(BUFFER, bar.wrap_read(file))))
}
