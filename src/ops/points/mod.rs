//! Points with a load, from lines of a file or from indices: the input of a plan.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | what is read from each row of any format; format detection |
//! | `weight.rs` | the load score: a weighted sum of columns |
//! | `csv.rs` | rows of a CSV file with a header |
//! | `scan.rs` | documents of Elasticsearch indices |
//! | `ndjson.rs` | rows of a file with one JSON object a line |
//!
//! Rows are handed on one by one and nothing is kept. The first row of a file that cannot be read ends it, with its line's number:
//! a plan by part of the input would be wrong without anybody noticing.

mod csv;
mod ndjson;
pub mod scan;
pub mod weight;

use std::io::{self, BufRead};

use thiserror::Error;

pub use self::ndjson::document;
pub use self::weight::{BadLoad, BadWeight, Weight};
use crate::base::geo::{BadPoint, GeoPoint};
use crate::core::decode::{BadLocation, LocationPath};

/// A longer line, or CSV row, is refused; documents may be 1 MiB by default.
pub const MAX_LINE_BYTES: usize = 8 << 20;

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointsFormat {
    /// Comma-separated, with a header.
    Csv,
    /// One JSON object a line.
    Ndjson,
}

/// Where a row's point is.
#[derive(Debug, Clone, PartialEq)]
pub enum PointLocation {
    /// Where it usually is: `location` of a JSON object, `lat` and `lon` of a CSV row.
    Usual,
    /// Where the configuration, or a path, says that it is in a JSON object.
    Path(LocationPath),
    /// In two columns, or dotted paths of JSON numbers, in degrees.
    Pair {
        /// Of the latitude.
        lat: String,
        /// Of the longitude.
        lon: String,
    },
}

/// Columns read from each row.
#[derive(Debug, Clone, PartialEq)]
pub struct Columns {
    /// The point.
    pub place: PointLocation,
    /// The load.
    pub weight: Weight,
    /// The track's id: a column, or a dotted path.
    pub id: Option<String>,
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct PointRow<'a> {
    /// Where.
    pub point: GeoPoint,
    /// How much; finite and not negative.
    pub load: f64,
    /// The id if requested; empty otherwise.
    pub id: &'a str,
}

/// Why reading ended early.
#[derive(Debug, Error)]
pub enum PointsError {
    /// The file itself.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// A row.
    #[error("line {line}: {problem}")]
    Line {
        /// Its number, from 1; of a CSV row with line breaks in it, the last one's.
        line: u64,
        /// The problem.
        problem: RowProblem,
    },
    /// Nothing but blank lines.
    #[error("no rows")]
    Empty,
}

/// The problem of one row.
#[derive(Debug, Error)]
pub enum RowProblem {
    /// Longer than [`MAX_LINE_BYTES`].
    #[error("it is longer than {MAX_LINE_BYTES} bytes; is this the right file?")]
    TooLong,
    /// Not UTF-8.
    #[error("it is not UTF-8 text; is this the right file?")]
    NotText,
    /// The CSV header, or a JSON object, lacks something.
    #[error("no column {column:?}; columns: {known}{}", hint_at_columns(column, known))]
    NoColumn {
        /// The missing column.
        column: String,
        /// The columns of the header.
        known: String,
    },
    /// The CSV header has it twice.
    #[error("the header has the column {0:?} twice")]
    ColumnTwice(String),
    /// A CSV file has no field with a whole location.
    #[error("a CSV file has latitude and longitude in two columns: name them with --lat and --lon")]
    NeedsPair,
    /// More or fewer fields than the header.
    #[error("it has {found} fields, but the header has {expected}")]
    Fields {
        /// In this row.
        found: usize,
        /// In the header.
        expected: usize,
    },
    /// Not a number.
    #[error("{column} is {value:?}, which is no number")]
    NoNumber {
        /// Which column.
        column: String,
        /// The value, shortened.
        value: String,
    },
    /// Not JSON.
    #[error("it is no JSON object: {0}")]
    Json(serde_json::Error),
    /// A JSON object without a number there.
    #[error("there is no {what} at {path}")]
    Missing {
        /// What was looked for.
        what: &'static str,
        /// Its dotted path.
        path: String,
    },
    /// The field is no location.
    #[error("no location at {path}: {error}")]
    Location {
        /// Its dotted path.
        path: String,
        /// Why not.
        error: BadLocation,
    },
    /// Two numbers that are no location.
    #[error(transparent)]
    Point(#[from] BadPoint),
    /// No load.
    #[error(transparent)]
    Load(#[from] BadLoad),
    /// Processing the row failed.
    #[error("{0}")]
    Use(Box<dyn std::error::Error + Send + Sync>),
}

impl RowProblem {
    fn at(self, line: u64) -> PointsError {
        PointsError::Line { line, problem: self }
    }

    fn no_number(column: &str, value: &str) -> Self {
        let value = value.chars().take(40).collect();
        Self::NoNumber { column: column.to_owned(), value }
    }
}

/// Options for coordinates in columns with other usual names.
fn hint_at_columns(missing: &str, known: &str) -> String {
    const LAT: [&str; 2] = ["lat", "latitude"];
    const LON: [&str; 4] = ["lon", "longitude", "lng", "long"];
    let names: Vec<&str> = known.split(", ").collect();
    let find = |usual: &[&str]| names.iter().find(|name| usual.contains(&name.to_lowercase().as_str()));
    match (find(&LAT), find(&LON)) {
        (Some(lat), Some(lon)) if LAT.contains(&missing) || LON.contains(&missing) => {
            format!("; name them: --lat {lat} --lon {lon}")
        }
        _ => String::new(),
    }
}

impl Columns {
    /// With a place that is one.
    fn of_format(&self, format: PointsFormat) -> Self {
        let mut columns = self.clone();
        if columns.place == PointLocation::Usual {
            columns.place = match format {
                PointsFormat::Csv => PointLocation::Pair { lat: "lat".to_owned(), lon: "lon".to_owned() },
                PointsFormat::Ndjson => PointLocation::Path(LocationPath::default()),
            };
        }
        columns
    }
}

/// Reads `input` to its end and passes each row to `each`; returns the number of rows. Without a `format` the first character
/// decides: a JSON object begins with a brace.
pub fn read<E: std::error::Error + Send + Sync + 'static>(
    mut input: impl BufRead,
    format: Option<PointsFormat>,
    columns: &Columns,
    mut each: impl FnMut(PointRow<'_>) -> Result<(), E>,
) -> Result<u64, PointsError> {
    skip_byte_order_mark(&mut input)?;
    let format = match format {
        Some(format) => format,
        None => sniff(&mut input)?,
    };
    let columns = &columns.of_format(format);
    let mut each = |row: PointRow<'_>| each(row).map_err(|error| RowProblem::Use(Box::new(error)));
    let rows = match format {
        PointsFormat::Csv => csv::read(input, columns, &mut each)?,
        PointsFormat::Ndjson => ndjson::read(input, columns, &mut each)?,
    };
    if rows == 0 { Err(PointsError::Empty) } else { Ok(rows) }
}

fn skip_byte_order_mark(input: &mut impl BufRead) -> io::Result<()> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    if input.fill_buf()?.starts_with(MARK) {
        input.consume(MARK.len());
    }
    Ok(())
}

fn sniff(input: &mut impl BufRead) -> io::Result<PointsFormat> {
    let first = input.fill_buf()?.iter().find(|byte| !byte.is_ascii_whitespace());
    Ok(if first == Some(&b'{') { PointsFormat::Ndjson } else { PointsFormat::Csv })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    pub(super) fn pair() -> PointLocation {
        PointLocation::Pair { lat: "lat".to_owned(), lon: "lon".to_owned() }
    }

    pub(super) type Rows = Vec<(f64, f64, f64, String)>;

    pub(super) fn rows(
        input: &[u8],
        place: PointLocation,
        weight: &str,
        id: Option<&str>,
    ) -> Result<Rows, String> {
        let columns = Columns { place, weight: weight.parse().unwrap(), id: id.map(str::to_owned) };
        let mut rows = Vec::new();
        let keep = |row: PointRow<'_>| {
            rows.push((row.point.lat(), row.point.lon(), row.load, row.id.to_owned()));
            Ok::<_, Infallible>(())
        };
        // A small buffer, so that rows reach over its end.
        let input = io::BufReader::with_capacity(16, input);
        match read(input, None, &columns, keep) {
            Ok(count) => {
                assert_eq!(count, rows.len() as u64);
                Ok(rows)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_format_is_told_by_the_first_character() {
        let expected = Ok(vec![(1.0, 2.0, 1.0, String::new())]);
        for text in [
            "lat,lon\n1,2",
            "\u{feff}lat,lon\n1,2\n",
            "\n {\"lat\": 1, \"lon\": 2}",
            "\u{feff}{\"lat\":1,\"lon\":2}\n",
        ] {
            assert_eq!(rows(text.as_bytes(), pair(), "1", None), expected, "{text:?}");
        }
    }

    #[test]
    fn the_usual_place_depends_on_the_format() {
        let expected = Ok(vec![(1.0, 2.0, 1.0, String::new())]);
        for text in ["lon,lat\n2,1", "{\"location\": \"1,2\"}"] {
            assert_eq!(rows(text.as_bytes(), PointLocation::Usual, "1", None), expected, "{text:?}");
        }
    }

    #[test]
    fn empty_input_and_garbage_are_errors() {
        for text in ["", "\n\n", "lat,lon\n", "lat,lon"] {
            assert_eq!(rows(text.as_bytes(), pair(), "1", None).unwrap_err(), "no rows", "{text:?}");
        }
        let garbage: Vec<u8> =
            (0..100_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        let error = rows(&garbage, pair(), "1", None).unwrap_err();
        assert!(error.starts_with("line 1: ") && error.len() < 300, "{error}");
        for begin in ["{\"a\": \"", "lat,lon\n\""] {
            let mut endless = begin.as_bytes().to_vec();
            endless.resize(MAX_LINE_BYTES + 100, b'x');
            let error = rows(&endless, pair(), "1", None).unwrap_err();
            assert!(error.contains("is longer than"), "{error}");
        }
    }

    #[test]
    fn error_of_the_callback_is_returned() {
        let columns = Columns { place: pair(), weight: Weight::default(), id: None };
        let full = |_: PointRow<'_>| Err(io::Error::other("full"));
        let error = read(&b"lat,lon\n1,2\n"[..], None, &columns, full).unwrap_err();
        assert_eq!(error.to_string(), "line 2: full");
    }
}
