//! Rows of a CSV file (RFC 4180) with a header.
//!
//! On `csv-core`, which parses without a buffer of its own: a row that never ends is refused at
//! [`MAX_LINE_BYTES`], not collected.

use std::io::BufRead;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder, Terminator};

use super::{Columns, MAX_LINE_BYTES, PointLocation, PointRow, PointsError, RowProblem};
use crate::base::geo::GeoPoint;

/// More columns are refused.
const MAX_FIELDS: usize = 10_000;
/// Maximum columns named in an error.
const SHOWN_COLUMNS: usize = 20;

pub(super) fn read(
    input: impl BufRead,
    columns: &Columns,
    each: &mut impl FnMut(PointRow<'_>) -> Result<(), RowProblem>,
) -> Result<u64, PointsError> {
    let mut records = Records::new(input);
    if !records.advance()? {
        return Ok(0);
    }
    let line = records.line;
    let wanted = Wanted::find(&mut records, columns).map_err(|problem| problem.at(line))?;
    let mut values = vec![0.0; wanted.weights.len()];
    let mut rows = 0;
    while records.advance()? {
        let line = records.line;
        wanted
            .row(&records, columns, &mut values)
            .and_then(&mut *each)
            .map_err(|problem| problem.at(line))?;
        rows += 1;
    }
    Ok(rows)
}

/// Indices of the needed fields of a row.
struct Wanted {
    fields: usize,
    lat: usize,
    lon: usize,
    weights: Vec<usize>,
    id: Option<usize>,
}

impl Wanted {
    fn find<R: BufRead>(header: &mut Records<R>, columns: &Columns) -> Result<Self, RowProblem> {
        let PointLocation::Pair { lat, lon } = &columns.place else { return Err(RowProblem::NeedsPair) };
        let names: Vec<&str> =
            (0..header.fields).map(|index| header.field(index)).collect::<Result<_, _>>()?;
        let find = |column: &str| {
            let mut found = (0..names.len()).filter(|&index| names[index] == column);
            match (found.next(), found.next()) {
                (Some(index), None) => Ok(index),
                (Some(_), Some(_)) => Err(RowProblem::ColumnTwice(column.to_owned())),
                (None, _) => {
                    let mut known: Vec<String> = names
                        .iter()
                        .take(SHOWN_COLUMNS)
                        .map(|name| name.chars().take(40).collect())
                        .collect();
                    if names.len() > SHOWN_COLUMNS {
                        known.push("…".to_owned());
                    }
                    Err(RowProblem::NoColumn { column: column.to_owned(), known: known.join(", ") })
                }
            }
        };
        Ok(Self {
            fields: names.len(),
            lat: find(lat)?,
            lon: find(lon)?,
            weights: columns.weight.columns().map(find).collect::<Result<_, _>>()?,
            id: columns.id.as_deref().map(find).transpose()?,
        })
    }

    fn row<'r, R: BufRead>(
        &self,
        record: &'r Records<R>,
        columns: &Columns,
        values: &mut [f64],
    ) -> Result<PointRow<'r>, RowProblem> {
        if record.fields != self.fields {
            return Err(RowProblem::Fields { found: record.fields, expected: self.fields });
        }
        let number = |column: &str, index: usize| {
            let text = record.field(index)?;
            text.parse::<f64>().map_err(|_| RowProblem::no_number(column, text))
        };
        let PointLocation::Pair { lat, lon } = &columns.place else { return Err(RowProblem::NeedsPair) };
        let point = GeoPoint::new(number(lat, self.lat)?, number(lon, self.lon)?)?;
        for ((value, column), &index) in values.iter_mut().zip(columns.weight.columns()).zip(&self.weights) {
            *value = number(column, index)?;
        }
        let id = self.id.map_or(Ok(""), |index| record.field(index))?;
        Ok(PointRow { point, load: columns.weight.of(values)?, id })
    }
}

/// The rows of an input, one at a time.
struct Records<R> {
    input: R,
    parser: Reader,
    /// The row's fields, one after the other, unquoted.
    text: Vec<u8>,
    /// Where each field ends.
    ends: Vec<usize>,
    fields: usize,
    /// The number of the row's last line.
    line: u64,
}

impl<R: BufRead> Records<R> {
    fn new(input: R) -> Self {
        // Only line feeds end rows, so that line numbers match other tools; a preceding carriage return is trimmed.
        let parser = ReaderBuilder::new().terminator(Terminator::Any(b'\n')).build();
        Self { input, parser, text: vec![0; 1 << 12], ends: vec![0; 64], fields: 0, line: 1 }
    }

    /// Advances to the next non-blank row; `false` at the end.
    fn advance(&mut self) -> Result<bool, PointsError> {
        loop {
            if !self.read()? {
                return Ok(false);
            }
            let is_blank = self.fields == 1 && self.text[..self.ends[0]].trim_ascii().is_empty();
            if !is_blank {
                return Ok(true);
            }
        }
    }

    fn read(&mut self) -> Result<bool, PointsError> {
        let (mut filled, mut ended) = (0, 0);
        loop {
            let bytes = self.input.fill_buf()?;
            let (result, used, written, ends) =
                self.parser.read_record(bytes, &mut self.text[filled..], &mut self.ends[ended..]);
            let breaks_line = used.checked_sub(1).is_some_and(|last| bytes[last] == b'\n');
            self.input.consume(used);
            filled += written;
            ended += ends;
            self.line = self.parser.line() - u64::from(breaks_line);
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if self.text.len() < MAX_LINE_BYTES => {
                    self.text.resize(self.text.len() * 2, 0);
                }
                ReadRecordResult::OutputEndsFull if self.ends.len() < MAX_FIELDS => {
                    self.ends.resize(self.ends.len() * 2, 0);
                }
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    return Err(RowProblem::TooLong.at(self.line));
                }
                ReadRecordResult::Record => {
                    self.fields = ended;
                    return Ok(true);
                }
                ReadRecordResult::End => return Ok(false),
            }
        }
    }

    fn field(&self, index: usize) -> Result<&str, RowProblem> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let bytes = &self.text[start..self.ends[index]];
        std::str::from_utf8(bytes).map(str::trim).map_err(|_| RowProblem::NotText)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Rows, pair, rows};
    use super::*;
    use crate::core::decode::LocationPath;

    fn csv(text: &str, weight: &str, id: Option<&str>) -> Result<Rows, String> {
        rows(text.as_bytes(), pair(), weight, id)
    }

    #[test]
    fn columns_are_found_by_name_quotes_and_line_ends_of_all_kinds_are_read() {
        let text = "name,lon, lat ,users,\"queries\"\r\n\"a, \"\"b\"\"\",2,1,3,4\r\n\r\n\"c\nd\", 20 ,10,30,\"40\"\r\n";
        let expected: Rows =
            vec![(1.0, 2.0, 11.0, "a, \"b\"".to_owned()), (10.0, 20.0, 110.0, "c\nd".to_owned())];
        assert_eq!(csv(text, "users + 2*queries", Some("name")), Ok(expected.clone()));
        let unix = text.replace("\r\n", "\n");
        assert_eq!(csv(unix.trim_end(), "users + 2*queries", Some("name")), Ok(expected));
    }

    #[test]
    fn a_row_that_can_not_be_read_is_named_by_its_line() {
        for (text, says) in [
            ("a,b\n1,2", "line 1: no column \"lat\"; columns: a, b"),
            ("lat,lon,lat\n1,2,3", "line 1: the header has the column \"lat\" twice"),
            ("lat,lon\n1,2\n3,4,5\n", "line 3: it has 3 fields, but the header has 2"),
            ("lat,lon\r\n1,2\r\n\r\n91,0\r\n", "line 4: latitude 91 is not within -90 and 90"),
            ("lat,lon\n1,181", "line 2: longitude 181 is not within -180 and 180"),
            ("lat,lon\nNaN,1", "line 2: latitude NaN is not within"),
            ("lat,lon\n1,east\n", "line 2: lon is \"east\", which is no number"),
            ("lat,lon\n1,\n", "line 2: lon is \"\", which is no number"),
        ] {
            let error = csv(text, "1", None).unwrap_err();
            assert!(error.starts_with(says), "{text:?}: {error}");
        }
        for (value, says) in [
            ("-1", "line 2: users is -1, but a load is"),
            ("nan", "line 2: users is NaN, but a load is"),
            ("1e99", "line 2: users is 1"),
            ("many", "line 2: users is \"many\", which is no number"),
        ] {
            let error = csv(&format!("lat,lon,users\n1,2,{value}\n"), "users", None).unwrap_err();
            assert!(error.starts_with(says), "{value}: {error}");
        }
        assert!(csv("lat,lon\n1,2", "users", None).unwrap_err().contains("no column \"users\""));
        let path = PointLocation::Path(LocationPath::default());
        assert!(rows(b"lat,lon\n1,2", path, "1", None).unwrap_err().contains("--lat and --lon"));
        assert!(rows(b"lat,lon,\xff\n1,2,3", pair(), "1", None).unwrap_err().contains("not UTF-8"));
    }

    #[test]
    fn a_header_of_very_many_columns_is_refused_and_a_wide_one_is_not() {
        let wide = |count| format!("lat,lon{}\n1,2{}\n", ",x".repeat(count), ",".repeat(count));
        assert_eq!(csv(&wide(1000), "1", None).unwrap().len(), 1);
        assert!(csv(&wide(100_000), "1", None).is_err());
        let error = csv(&wide(1000), "users", None).unwrap_err();
        assert!(error.ends_with("x, …"), "{error}");
    }
}
