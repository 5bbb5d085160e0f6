//! Rows of a file with one JSON object per line: a dump of documents, or input of `geofold send`.

use std::borrow::Cow;
use std::io::{BufRead, Read};

use serde_json::Value;

use super::{Columns, MAX_LINE_BYTES, PointLocation, PointRow, PointsError, PointsFormat, RowProblem};
use crate::base::geo::GeoPoint;

pub(super) fn read(
    mut input: impl BufRead,
    columns: &Columns,
    each: &mut impl FnMut(PointRow<'_>) -> Result<(), RowProblem>,
) -> Result<u64, PointsError> {
    let mut line = Vec::new();
    let (mut number, mut rows) = (0, 0);
    loop {
        line.clear();
        let most = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX);
        if input.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
            return Ok(rows);
        }
        number += 1;
        if line.len() >= MAX_LINE_BYTES {
            return Err(RowProblem::TooLong.at(number));
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        document(&line, columns, each).map_err(|problem| problem.at(number))?;
        rows += 1;
    }
}

/// Reads one JSON object, and hands the row on.
pub fn document(
    json: &[u8],
    columns: &Columns,
    each: &mut impl FnMut(PointRow<'_>) -> Result<(), RowProblem>,
) -> Result<(), RowProblem> {
    let located = match &columns.place {
        PointLocation::Usual => return document(json, &columns.of_format(PointsFormat::Ndjson), each),
        PointLocation::Path(path) => {
            let point =
                path.locate(json).map_err(|error| RowProblem::Location { path: path.to_string(), error })?;
            Some(point)
        }
        PointLocation::Pair { .. } => None,
    };
    // A location alone is found without building values of the rest.
    let needs_values = located.is_none() || columns.id.is_some() || columns.weight.columns().next().is_some();
    let object = if needs_values {
        let text = std::str::from_utf8(json).map_err(|_| RowProblem::NotText)?;
        serde_json::from_str(text).map_err(RowProblem::Json)?
    } else {
        Value::Null
    };
    let point = match (&columns.place, located) {
        (_, Some(point)) => point,
        (PointLocation::Pair { lat, lon }, None) => {
            GeoPoint::new(number(&object, lat)?, number(&object, lon)?)?
        }
        (PointLocation::Usual | PointLocation::Path(_), None) => {
            return Err(RowProblem::Missing { what: "location", path: String::new() });
        }
    };
    let values: Vec<f64> =
        columns.weight.columns().map(|path| number(&object, path)).collect::<Result<_, _>>()?;
    let load = columns.weight.of(&values)?;
    let id = match &columns.id {
        None => Cow::Borrowed(""),
        Some(path) => match at(&object, path) {
            Some(Value::String(id)) => Cow::Borrowed(id.as_str()),
            Some(Value::Number(id)) => Cow::Owned(id.to_string()),
            _ => return Err(RowProblem::Missing { what: "text or number", path: path.clone() }),
        },
    };
    each(PointRow { point, load, id: &id })
}

fn number(object: &Value, path: &str) -> Result<f64, RowProblem> {
    match at(object, path) {
        Some(Value::Number(number)) => {
            number.as_f64().ok_or_else(|| RowProblem::no_number(path, &number.to_string()))
        }
        None | Some(Value::Null) => Err(RowProblem::Missing { what: "number", path: path.to_owned() }),
        Some(other) => Err(RowProblem::no_number(path, &other.to_string())),
    }
}

/// The value at a dotted path; names may contain dots.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let object = value.as_object()?;
    object.get(path).or_else(|| {
        let mut dots = path.match_indices('.');
        dots.find_map(|(dot, _)| at(object.get(&path[..dot])?, &path[dot + 1..]))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Rows, pair, rows};
    use super::*;
    use crate::core::decode::LocationPath;

    fn location() -> PointLocation {
        PointLocation::Path(LocationPath::default())
    }

    #[test]
    fn documents_with_a_location_in_any_form_are_read() {
        let text = b"{\"id\": \"a\", \"location\": {\"lat\": 1, \"lon\": 2}, \"n\": {\"users\": 3}}\n\n\
            {\"id\": 7, \"location\": \"10,20\", \"n.users\": 0.5}\n{\"id\": \"c\", \"location\": [40, 30], \"n\": {\"users\": 1}}";
        let expected: Rows = vec![
            (1.0, 2.0, 7.0, "a".to_owned()),
            (10.0, 20.0, 2.0, "7".to_owned()),
            (30.0, 40.0, 3.0, "c".to_owned()),
        ];
        assert_eq!(rows(text, location(), "1 + 2*n.users", Some("id")), Ok(expected));
        assert_eq!(rows(text, location(), "1", None).unwrap().len(), 3);
    }

    #[test]
    fn a_line_that_can_not_be_read_is_named() {
        let good = "{\"lat\": 1, \"lon\": 2, \"users\": 1}\n";
        for (bad, says) in [
            ("{\"lat\": 1", "it is no JSON object"),
            ("[1, 2]", "there is no number at lat"),
            ("{\"lat\": 1, \"users\": 1}", "there is no number at lon"),
            ("{\"lat\": 1, \"lon\": \"2\"}", "lon is \"\\\"2\\\"\", which is no number"),
            ("{\"lat\": -91, \"lon\": 2, \"users\": 1}", "latitude -91"),
            ("{\"lat\": 1, \"lon\": 2}", "there is no number at users"),
            ("{\"lat\": 1, \"lon\": 2, \"users\": -3}", "users is -3, but a load is"),
            ("{\"lat\": 1, \"lon\": 2, \"users\": null}", "there is no number at users"),
        ] {
            let error = rows(format!("{good}{bad}\n{good}").as_bytes(), pair(), "users", None).unwrap_err();
            assert!(error.starts_with(&format!("line 2: {says}")), "{bad}: {error}");
        }
        let error = rows(b"{\"a\": 1}\n", location(), "1", None).unwrap_err();
        assert!(error.starts_with("line 1: no location at location"), "{error}");
        assert!(rows(b"{\"lat\": \"\xff\"}", pair(), "1", None).unwrap_err().contains("not UTF-8"));
        let error = rows(good.as_bytes(), pair(), "users", Some("id")).unwrap_err();
        assert_eq!(error, "line 1: there is no text or number at id");
    }
}
