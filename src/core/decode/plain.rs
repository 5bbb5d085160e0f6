//! JSON that is plainly valid, looked through fast: the way that nearly every document takes.
//!
//! Fast path. Returns `None` for anything unusual (control characters, hence line breaks; escapes in a key; duplicate members;
//! syntax errors); the caller then falls back to serde_json, which also reports the error. So it may miss a valid document,
//! but must never accept an invalid one. Bytes that need a closer look (control characters, and what is not ASCII) are found in one
//! pass over all; a second one skips strings by the word.

use memchr::memchr2;

use super::object::{BadObject, text};

/// Deeper nesting is left to serde_json.
const MAX_DEPTH: usize = 64;

/// Integers of so many digits are exactly `f64`s, and so are the powers of ten up to there.
const MAX_EXACT_DIGITS: usize = 15;

/// Up to [`MAX_EXACT_DIGITS`].
const POWERS_OF_TEN: [u64; MAX_EXACT_DIGITS + 1] = {
    let mut powers = [1; MAX_EXACT_DIGITS + 1];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = powers[n - 1] * 10;
        n += 1;
    }
    powers
};

/// A value in a document.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ValueAt<'a> {
    /// Its JSON text.
    pub text: &'a str,
    /// Its numbers, if it is `{"lat": …, "lon": …}`; of a document that is not plain, they are not parsed.
    pub lat_lon: Option<(f64, f64)>,
}

/// A value that is not known to be text.
type Found<'a> = (&'a [u8], Option<(f64, f64)>);

/// The values at `paths` (names separated by dots) in an object without control characters, where something is there. Checks the syntax
/// of all of it.
///
/// # Errors
/// If `document` is not UTF-8.
pub(super) fn values_at<'a, const N: usize>(
    document: &'a [u8],
    paths: [&str; N],
) -> Result<Option<[Option<ValueAt<'a>>; N]>, BadObject> {
    // One vectorizable pass; afterwards no string needs a byte-by-byte check.
    let (mut lowest, mut all) = (u8::MAX, 0);
    for &byte in document {
        lowest = lowest.min(byte);
        all |= byte;
    }
    if !all.is_ascii() {
        text(document)?;
    }
    if lowest < b' ' {
        return Ok(None);
    }
    let Some(found) = find(document, paths.map(|path| Some(path.as_bytes()))) else { return Ok(None) };
    let mut values = [None; N];
    for (value, found) in values.iter_mut().zip(found) {
        *value = match found {
            Some((found, lat_lon)) => Some(ValueAt { text: text(found)?, lat_lon }),
            None => None,
        };
    }
    Ok(Some(values))
}

/// The values at `paths` in an object without control characters. Checks the syntax of all of it.
fn find<'a, const N: usize>(document: &'a [u8], paths: [Option<&[u8]>; N]) -> Option<[Option<Found<'a>>; N]> {
    let mut found = [None; N];
    let members = after(skip_spaces(document), b'{')?;
    let rest = object(members, MAX_DEPTH, |key, value, depth| member(key, value, paths, depth, &mut found))?;
    skip_spaces(rest).is_empty().then_some(found)
}

/// Latitude and longitude in `{"lat": …, "lon": …}`, if both are numbers and nothing else is there.
pub(super) fn lat_lon(text: &str) -> Option<(f64, f64)> {
    let (numbers, rest) = lat_lon_object(text.as_bytes())?;
    rest.is_empty().then_some(numbers)
}

// Each of the functions below passes what its name says, at the beginning of a text, and returns the rest of the text. A rest begins
// on a character boundary: they stop only at ASCII.

/// An object after its brace; `member` passes each value, given the key and the depth left.
fn object<'a>(
    text: &'a [u8],
    depth: usize,
    mut member: impl FnMut(&'a [u8], &'a [u8], usize) -> Option<&'a [u8]>,
) -> Option<&'a [u8]> {
    let depth = depth.checked_sub(1)?;
    list(text, b'}', |text| {
        let (key, rest) = key(text)?;
        let value = after(skip_spaces(rest), b':')?;
        member(key, skip_spaces(value), depth)
    })
}

/// An object of a latitude and a longitude, if both are numbers and nothing else is there. Returned with them.
fn lat_lon_object(text: &[u8]) -> Option<((f64, f64), &[u8])> {
    let (mut lat, mut lon) = (None, None);
    let rest = object(after(text, b'{')?, 1, |key, value, _| {
        let part = match key {
            b"lat" => &mut lat,
            b"lon" => &mut lon,
            _ => return None,
        };
        let (number, rest) = parsed_number(value)?;
        part.replace(number).is_none().then_some(rest)
    })?;
    Some(((lat?, lon?), rest))
}

/// A key; returned without its quotes. Escapes are unusual: they would have to be resolved for comparison.
fn key(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = after(text, b'"')?;
    let (key, rest) = text.split_at_checked(end_of_plain(text)?)?;
    Some((key, after(rest, b'"')?))
}

/// The value of a member on one of the `paths`, of which `None` lead elsewhere, or beside all.
fn member<'a, const N: usize>(
    key: &[u8],
    text: &'a [u8],
    paths: [Option<&[u8]>; N],
    depth: usize,
    found: &mut [Option<Found<'a>>; N],
) -> Option<&'a [u8]> {
    // Nearly every other key differs in its first byte.
    let rests = paths.map(|path| path.filter(|path| key.first() == path.first())?.strip_prefix(key));
    let further = rests.map(|rest| after(rest?, b'.'));
    if further.iter().any(Option::is_some) {
        // Along a path, anything but an object is unusual, and so is another path that ends here.
        if rests.contains(&Some(&[])) {
            return None;
        }
        return object(after(text, b'{')?, depth, |key, value, depth| {
            member(key, value, further, depth, found)
        });
    }
    if !rests.contains(&Some(&[])) {
        return value(text, depth);
    }
    let (lat_lon, rest) = match lat_lon_object(text) {
        Some((lat_lon, rest)) => (Some(lat_lon), rest),
        None => (None, value(text, depth)?),
    };
    let there = text.get(..text.len() - rest.len())?;
    for (found, path) in found.iter_mut().zip(rests) {
        if path.is_some_and(<[u8]>::is_empty) && found.replace((there, lat_lon)).is_some() {
            return None;
        }
    }
    Some(rest)
}

fn value(text: &[u8], depth: usize) -> Option<&[u8]> {
    match text {
        [b'"', rest @ ..] => string(rest),
        [b'-' | b'0'..=b'9', ..] => number(text),
        [b'{', rest @ ..] => object(rest, depth, |_, text, depth| value(text, depth)),
        [b'[', rest @ ..] => {
            let depth = depth.checked_sub(1)?;
            list(rest, b']', |text| value(text, depth))
        }
        [b't', b'r', b'u', b'e', rest @ ..]
        | [b'f', b'a', b'l', b's', b'e', rest @ ..]
        | [b'n', b'u', b'l', b'l', rest @ ..] => Some(rest),
        _ => None,
    }
}

/// Items separated by commas, after the opening bracket.
fn list<'a>(
    text: &'a [u8],
    close: u8,
    mut item: impl FnMut(&'a [u8]) -> Option<&'a [u8]>,
) -> Option<&'a [u8]> {
    let mut text = skip_spaces(text);
    if let Some(rest) = after(text, close) {
        return Some(rest);
    }
    loop {
        let rest = skip_spaces(item(text)?);
        match rest {
            [b',', rest @ ..] => text = skip_spaces(rest),
            _ => return after(rest, close),
        }
    }
}

/// A string after its first quote.
fn string(mut text: &[u8]) -> Option<&[u8]> {
    loop {
        text = match text.get(end_of_plain(text)?..)? {
            [b'"', rest @ ..] => return Some(rest),
            [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', rest @ ..] => rest,
            [b'\\', b'u', digits @ ..] => {
                let (digits, rest) = digits.split_first_chunk::<4>()?;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(rest)?
            }
            _ => return None,
        };
    }
}

fn number(text: &[u8]) -> Option<&[u8]> {
    let (_, mut rest) = integer(text.strip_prefix(b"-").unwrap_or(text))?;
    if let [b'.', decimals @ ..] = rest {
        (_, rest) = digits(decimals)?;
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let magnitude = if let [b'+' | b'-', magnitude @ ..] = exponent { magnitude } else { exponent };
        (_, rest) = digits(magnitude)?;
    }
    Some(rest)
}

/// A number; returned with its value.
fn parsed_number(text: &[u8]) -> Option<(f64, &[u8])> {
    match short_number(text) {
        Some((number, rest)) if !matches!(rest, [b'e' | b'E', ..]) => Some((number, rest)),
        _ => {
            let rest = number(text)?;
            let number = str::from_utf8(text.get(..text.len() - rest.len())?).ok()?;
            Some((number.parse().ok()?, rest))
        }
    }
}

/// A number up to its exponent, if it has so few digits that it is the quotient of two integers, rounded once.
fn short_number(text: &[u8]) -> Option<(f64, &[u8])> {
    let magnitude = text.strip_prefix(b"-").unwrap_or(text);
    let (mut value, mut rest) = integer(magnitude)?;
    let (whole, mut decimals) = (magnitude.len() - rest.len(), 0);
    if let [b'.', text @ ..] = rest {
        let (fraction, end) = digits(text)?;
        (decimals, rest) = (text.len() - end.len(), end);
        value = value.wrapping_mul(*POWERS_OF_TEN.get(decimals)?).wrapping_add(fraction);
    }
    if whole + decimals > MAX_EXACT_DIGITS {
        return None;
    }
    let quotient = value as f64 / *POWERS_OF_TEN.get(decimals)? as f64;
    Some((if magnitude.len() < text.len() { -quotient } else { quotient }, rest))
}

/// The digits before the point: none may follow a leading zero. Returned with their value, as by [`digits`].
fn integer(text: &[u8]) -> Option<(u64, &[u8])> {
    match text {
        [b'0', rest @ ..] => Some((0, rest)),
        _ => digits(text),
    }
}

/// At least one digit. Returned with their value, which has no meaning where it does not fit.
fn digits(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut value, mut rest) = (0_u64, text);
    while let [digit @ b'0'..=b'9', after @ ..] = rest {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        rest = after;
    }
    (rest.len() < text.len()).then_some((value, rest))
}

/// The one byte.
fn after(text: &[u8], byte: u8) -> Option<&[u8]> {
    match text {
        [first, rest @ ..] if *first == byte => Some(rest),
        _ => None,
    }
}

fn skip_spaces(mut text: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] = text {
        text = rest;
    }
    text
}

/// The end of a string's plain part: its quote, or an escape. Most are shorter than a call of `memchr2` pays for.
fn end_of_plain(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < 2 * size_of::<u64>()
        && let Some(word) = text[at..].first_chunk()
    {
        let word = u64::from_le_bytes(*word);
        let ends = zero_bytes(word ^ every_byte(b'"')) | zero_bytes(word ^ every_byte(b'\\'));
        if ends != 0 {
            return Some(at + ends.trailing_zeros() as usize / 8);
        }
        at += size_of::<u64>();
    }
    memchr2(b'"', b'\\', &text[at..]).map(|end| at + end)
}

const fn every_byte(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Sets the high bit of the lowest zero byte, and of no lower one; of higher ones, perhaps too many.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(every_byte(1)) & !word & every_byte(0x80)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::super::find::{self, FoundValue};
    use super::*;

    fn value_at<'a>(document: &'a [u8], path: &str) -> Result<Option<Option<&'a str>>, BadObject> {
        let Some([value]) = values_at(document, [path])? else { return Ok(None) };
        let numbers = value.and_then(|value| value.lat_lon);
        assert_eq!(numbers, value.and_then(|value| lat_lon(value.text)), "its numbers are those of its text");
        Ok(Some(value.map(|value| value.text)))
    }

    #[test]
    fn values_of_several_paths_are_found_in_one_pass() {
        let found = |document: &'static str, paths: [&str; 3]| {
            let values = values_at(document.as_bytes(), paths).unwrap();
            values.map(|values| values.map(|value| value.map(|value| value.text)))
        };
        let paths = ["at.lat", "at.lon", "id"];
        let all = Some([Some("1"), Some("\"2\""), Some("{}")]);
        assert_eq!(found(r#"{"at":{"x":[],"lon":"2","lat":1},"id":{}}"#, paths), all);
        assert_eq!(found(r#"{"at.lat":1,"id":{},"at":{"lon":"2"}}"#, paths), all);
        assert_eq!(found(r#"{"lat":1,"lon":2,"at":{"id":3}}"#, paths), Some([None; 3]));
        assert_eq!(
            found(r#"{"a":{"b":1}}"#, ["a", "a", "b"]),
            Some([Some("{\"b\":1}"), Some("{\"b\":1}"), None])
        );
        for unusual in [r#"{"at":{"lat":1},"at.lat":1}"#, r#"{"id":1,"at":[],"at":{}}"#, r#"{"id":1,"id":2}"#]
        {
            assert_eq!(found(unusual, paths), None, "{unusual}");
        }
        assert_eq!(found(r#"{"a":{"b":1}}"#, ["a", "a.b", "c"]), None, "one path ends where another goes on");
    }

    #[test]
    fn ordinary_document_takes_the_fast_path() {
        for (document, path, value) in [
            (
                r#"{"a":"b","location":{"lat":1.5,"lon":-2e1},"c":[1,true,null]}"#,
                "location",
                r#"{"lat":1.5,"lon":-2e1}"#,
            ),
            (r#" { "x" : { "location" : 1 } , "location" : "1,2" } "#, "location", r#""1,2""#),
            (r#"{"a":{"b.c":[0,0.5]},"ab":{}}"#, "a.b.c", "[0,0.5]"),
            (r#"{"q":"\" \\ \/ \u00e9 ü","location":null}"#, "location", "null"),
        ] {
            assert_eq!(value_at(document.as_bytes(), path).unwrap(), Some(Some(value)), "{document}");
        }
        for without in ["{}", r#"{"a":{"location":1},"locations":[]}"#, r#"{"location.x":1}"#] {
            assert_eq!(value_at(without.as_bytes(), "location").unwrap(), Some(None), "{without}");
        }
        assert_eq!(value_at(br#"{"a":{"c":1},"b":2}"#, "a.b").unwrap(), Some(None));
    }

    #[test]
    fn numbers_of_a_location_are_parsed_where_they_are_passed() {
        let numbers = |document: &'static str| {
            let [value] = values_at(document.as_bytes(), ["a.at"]).unwrap().unwrap();
            value.unwrap().lat_lon
        };
        assert_eq!(numbers(r#"{"a":{"at":{"lat":1.5,"lon":-2}},"at":{"lat":3,"lon":4}}"#), Some((1.5, -2.0)));
        for other in
            [r#"{"a.at":{"lat":"1","lon":2}}"#, r#"{"a.at":[2,1]}"#, r#"{"a.at":{"lat":1,"lon":2,"z":3}}"#]
        {
            assert_eq!(numbers(other), None, "{other}");
        }
    }

    #[test]
    fn unusual_documents_are_left_to_serde_json() {
        let deep = format!(r#"{{"location":1,"x":{}{}}}"#, "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        for document in [
            "",
            "{",
            "[]",
            "null",
            r#"{"location":1} x"#,
            r#"{"location":1"#,
            r#"{"location":1,}"#,
            "{\"location\":\n1}",
            r#"{"location":1,"location":1}"#,
            r#"{"\u006cocation":1}"#,
            r#"{"location":1,"\u006cocation":2}"#,
            r#"{"location":1,"a\":2}"#,
            r#"{"location\:1}"#,
            &deep,
        ] {
            assert_eq!(value_at(document.as_bytes(), "location").unwrap(), None, "{document}");
        }
        for parent in [r#"{"a":5}"#, r#"{"a":[{"b":1}]}"#, r#"{"a":null,"a.b":1}"#] {
            assert_eq!(value_at(parent.as_bytes(), "a.b").unwrap(), None, "{parent}");
        }
    }

    #[test]
    fn invalid_utf8_is_refused_anywhere() {
        for document in
            [&b"{\"location\":1,\"a\":\"\xc3\"}"[..], b"{\"location\":\"\xff\"}", b"{\"\x80\":\n0}", b"\xc3"]
        {
            assert!(matches!(value_at(document, "location"), Err(BadObject::NotUtf8(_))), "{document:?}");
        }
        assert_eq!(value_at("{\"location\":\"ü\"}".as_bytes(), "location").unwrap(), Some(Some("\"ü\"")));
    }

    #[test]
    fn string_ends_at_its_first_quote_or_escape() {
        // One bit away from those bytes; and what a borrow from a lower byte could take for them.
        for filler in [b'a', b'!', b'#', b'[', b']', 0xa2, 0xdc, 0] {
            for len in 0..40 {
                let mut text = vec![filler; len];
                assert_eq!(end_of_plain(&text), None, "{filler} {len}");
                for end in (0..len).rev() {
                    text[end] = if end % 2 == 0 { b'"' } else { b'\\' };
                    assert_eq!(end_of_plain(&text), Some(end), "{filler} {len}");
                }
            }
        }
    }

    #[test]
    fn lat_lon_takes_two_plain_numbers_and_nothing_else() {
        assert_eq!(lat_lon(r#"{"lat":1,"lon":-2.5}"#), Some((1.0, -2.5)));
        assert_eq!(lat_lon(r#"{ "lon" : 0 , "lat" : 1e1 }"#), Some((10.0, 0.0)));
        for other in [
            "{}",
            r#"{"lat":1}"#,
            r#"{"lat":1,"lat":1,"lon":2}"#,
            r#"{"lat":"1","lon":2}"#,
            r#"{"lat":1,"lon":2,"z":3}"#,
            r#"{"lat":1,"lon":02}"#,
            r#"{"lat":1,"lon":2}x"#,
            r#"{"lat":1.,"lon":2}"#,
            r#"{"lat":-,"lon":2}"#,
        ] {
            assert_eq!(lat_lon(other), None, "{other}");
        }
    }

    /// A JSON number: of few digits or many, with an exponent or without.
    fn number() -> impl Strategy<Value = String> {
        prop_oneof![
            "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,14})?",
            "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?"
        ]
    }

    /// JSON and near-JSON: fragments in any order around a location.
    fn nearly_json() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            8 => prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"", "\\", "\"location\":", "\"a\":", "\"b\":", "1", "-", "0", "00", ".", ".5", "e1",
                "E+", "1e5", "1e500", "true", "false", "null", "nul", " ", "\n", "\t", "\u{1}", "\u{7f}", "é", "\\u00e9", "\\ud800",
                "\\u12", "\\x", "\"x\"", "{}", "[]", "[1,2]", "{\"lat\":1,\"lon\":2}", "\"location\":1,", "\"a\":{\"b\":1},",
            ]).prop_map(str::to_owned),
            1 => any::<char>().prop_map(String::from),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    /// JSON, sometimes with one character changed.
    fn bruised_json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        let value = leaf.prop_recursive(4, 24, 4, |inner| {
            let key = prop::sample::select(vec!["a", "b", "a.b", "location", "é", "\\", "x"]);
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4).prop_map(|members| members
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect()),
            ]
        });
        (value, any::<prop::sample::Index>(), prop::option::weighted(0.5, any::<char>())).prop_map(
            |(value, place, bruise)| {
                let mut text: Vec<char> = value.to_string().chars().collect();
                if let Some(bruise) = bruise {
                    let place = place.index(text.len());
                    text[place] = bruise;
                }
                text.into_iter().collect()
            },
        )
    }

    /// The result equals that of serde_json, byte for byte.
    fn agrees_with_serde_json(document: &str) -> Result<(), TestCaseError> {
        for path in ["location", "a.b"] {
            let Some(value) = value_at(document.as_bytes(), path).unwrap() else { continue };
            let found = find::find(document, path);
            prop_assert!(found.is_ok(), "{document:?} is no JSON: {:?}", found.err());
            match found {
                Ok(FoundValue::Value(raw)) => {
                    prop_assert_eq!(Some(raw.get()), value, "at {} of {:?}", path, document)
                }
                Ok(FoundValue::Nothing) => prop_assert_eq!(value, None, "at {} of {:?}", path, document),
                _ => prop_assert!(false, "{value:?} is not what is at {path} of {document:?}"),
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn nothing_is_plain_that_serde_json_refuses(document in nearly_json()) {
            agrees_with_serde_json(&document)?;
            agrees_with_serde_json(&format!("{{\"location\":{document}}}"))?;
            agrees_with_serde_json(&format!("{{\"location\":1,\"a\":{{\"b\":{document}}}}}"))?;
            agrees_with_serde_json(&format!("{{\"location\":1,\"x\":{document}}}"))?;
        }

        #[test]
        fn numbers_have_the_value_that_the_standard_library_gives_them(lat in number(), lon in number()) {
            let (one, other) = lat_lon(&format!("{{\"lat\":{lat},\"lon\":{lon}}}")).unwrap();
            let expected: [f64; 2] = [lat.parse().unwrap(), lon.parse().unwrap()];
            prop_assert_eq!([one, other].map(f64::to_bits), expected.map(f64::to_bits), "{} {}", lat, lon);
        }

        #[test]
        fn neither_is_json_that_was_changed(document in bruised_json()) {
            agrees_with_serde_json(&document)?;
            agrees_with_serde_json(&format!("{{\"location\":1,\"a.b\":2,\"x\":{document}}}"))?;
        }
    }
}
