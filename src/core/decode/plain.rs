//! JSON that is plainly valid, looked through fast: the way that nearly every document takes.
//!
//! Fast path. Returns `None` for anything unusual (control characters, hence line breaks; escapes in a key; duplicate members;
//! syntax errors); the caller then falls back to serde_json, which also reports the error. So it may miss a valid document,
//! but must never accept an invalid one. It reads a record in a third fewer instructions (`dev/instructions`): bytes that need a
//! closer look (control characters, and what is not ASCII) are found in one pass over all, and strings are skipped by the word.

use memchr::memchr2;

use super::object::{BadObject, text};

/// Deeper nesting is left to serde_json.
const MAX_DEPTH: usize = 64;

/// The text of the value at `path` (names separated by dots) in an object, `Some(None)` if nothing is there. Checks the syntax of
/// all of it.
///
/// # Errors
/// If `document` is not UTF-8.
pub(super) fn value_at<'a>(document: &'a [u8], path: &str) -> Result<Option<Option<&'a str>>, BadObject> {
    // One vectorizable pass; afterwards no string needs a byte-by-byte check.
    let (mut has_control, mut all) = (false, 0);
    for &byte in document {
        has_control |= byte < b' ';
        all |= byte;
    }
    if !all.is_ascii() {
        text(document)?;
    }
    if has_control {
        return Ok(None);
    }
    let Some(found) = find(document, path.as_bytes()) else { return Ok(None) };
    found.map(text).transpose().map(Some)
}

/// The value at `path` in an object without control characters. Checks the syntax of all of it.
fn find<'a>(document: &'a [u8], path: &[u8]) -> Option<Option<&'a [u8]>> {
    let mut scanner = Scanner { text: document, at: 0 };
    let mut found = None;
    scanner.skip_spaces();
    scanner.object(MAX_DEPTH, |scanner, key, depth| scanner.member(key, path, depth, &mut found))?;
    scanner.skip_spaces();
    (scanner.at == document.len()).then_some(found)
}

/// The texts of latitude and longitude in `{"lat": …, "lon": …}`, if both are numbers and nothing else is there.
/// `object` must come from [`value_at`] or be checked otherwise.
pub(super) fn lat_lon(object: &str) -> Option<(&str, &str)> {
    let mut scanner = Scanner { text: object.as_bytes(), at: 0 };
    let (mut lat, mut lon) = (None, None);
    scanner.object(1, |scanner, key, _| {
        let part = match key {
            b"lat" => &mut lat,
            b"lon" => &mut lon,
            _ => return None,
        };
        let begin = scanner.at;
        scanner.number()?;
        let number = object.get(begin..scanner.at)?;
        part.replace(number).is_none().then_some(())
    })?;
    Some((lat?, lon?)).filter(|_| scanner.at == object.len())
}

struct Scanner<'a> {
    text: &'a [u8],
    /// The next byte. Always on a character boundary: it stops only at ASCII.
    at: usize,
}

impl<'a> Scanner<'a> {
    /// An object; `member` parses each value, given the key and the depth left.
    fn object(
        &mut self,
        depth: usize,
        mut member: impl FnMut(&mut Self, &'a [u8], usize) -> Option<()>,
    ) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        self.list(b'{', b'}', |scanner| {
            let key = scanner.key()?;
            scanner.skip_spaces();
            scanner.take(b':')?;
            scanner.skip_spaces();
            member(scanner, key, depth)
        })
    }

    /// A key, without its quotes. Escapes are unusual: they would have to be resolved for comparison.
    fn key(&mut self) -> Option<&'a [u8]> {
        self.take(b'"')?;
        let rest = &self.text[self.at..];
        let (key, after) = rest.split_at(end_of_plain(rest)?);
        self.at += key.len() + 1;
        (after[0] == b'"').then_some(key)
    }

    /// A member on the `path` or beside it.
    fn member(&mut self, key: &[u8], path: &[u8], depth: usize, found: &mut Option<&'a [u8]>) -> Option<()> {
        let Some(rest) = path.strip_prefix(key) else { return self.value(depth) };
        if rest.is_empty() {
            let value = self.text_of(|scanner| scanner.value(depth))?;
            return found.replace(value).is_none().then_some(());
        }
        match rest.strip_prefix(b".") {
            Some(rest) => self.parent(rest, depth, found),
            None => self.value(depth),
        }
    }

    /// A value along the path; anything but an object is unusual.
    fn parent(&mut self, path: &[u8], depth: usize, found: &mut Option<&'a [u8]>) -> Option<()> {
        self.object(depth, |scanner, key, depth| scanner.member(key, path, depth, found))
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(),
            b'{' => self.object(depth, |scanner, _, depth| scanner.value(depth)),
            b'[' => {
                let depth = depth.checked_sub(1)?;
                self.list(b'[', b']', |scanner| scanner.value(depth))
            }
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            _ => None,
        }
    }

    /// Items separated by commas.
    fn list(&mut self, open: u8, close: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(open)?;
        self.skip_spaces();
        if self.peek()? == close {
            self.at += 1;
            return Some(());
        }
        loop {
            item(self)?;
            self.skip_spaces();
            let byte = self.peek()?;
            self.at += 1;
            match byte {
                b',' => self.skip_spaces(),
                byte if byte == close => return Some(()),
                _ => return None,
            }
        }
    }

    fn string(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            let rest = &self.text[self.at..];
            let end = end_of_plain(rest)?;
            self.at += end + 1;
            if rest[end] == b'"' {
                return Some(());
            }
            let escaped = self.peek()?;
            self.at += 1;
            match escaped {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                b'u' => {
                    let digits = self.text.get(self.at..self.at + 4)?;
                    self.at += 4;
                    digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
                }
                _ => return None,
            }
        }
    }

    fn number(&mut self) -> Option<()> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        // No digit may follow a leading zero.
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// At least one digit.
    fn digits(&mut self) -> Option<()> {
        let digits = self.text.get(self.at..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        (digits > 0).then_some(())
    }

    fn literal(&mut self, literal: &str) -> Option<()> {
        let found = self.text[self.at..].starts_with(literal.as_bytes());
        self.at += literal.len();
        found.then_some(())
    }

    /// The text that `skip` passes.
    fn text_of(&mut self, skip: impl FnOnce(&mut Self) -> Option<()>) -> Option<&'a [u8]> {
        let begin = self.at;
        skip(self)?;
        self.text.get(begin..self.at)
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        let is_there = self.peek()? == byte;
        self.at += 1;
        is_there.then_some(())
    }

    fn skip_spaces(&mut self) {
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }
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

    use super::super::location::{self, FoundLocation};
    use super::*;

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
        assert_eq!(lat_lon(r#"{"lat":1,"lon":-2.5}"#), Some(("1", "-2.5")));
        assert_eq!(lat_lon(r#"{ "lon" : 0 , "lat" : 1e1 }"#), Some(("1e1", "0")));
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
            let found = location::find(document, path);
            prop_assert!(found.is_ok(), "{document:?} is no JSON: {:?}", found.err());
            match found {
                Ok(FoundLocation::Value(raw)) => {
                    prop_assert_eq!(Some(raw.get()), value, "at {} of {:?}", path, document)
                }
                Ok(FoundLocation::Nothing) => prop_assert_eq!(value, None, "at {} of {:?}", path, document),
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
        fn neither_is_json_that_was_changed(document in bruised_json()) {
            agrees_with_serde_json(&document)?;
            agrees_with_serde_json(&format!("{{\"location\":1,\"a.b\":2,\"x\":{document}}}"))?;
        }
    }
}
