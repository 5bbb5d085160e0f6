//! Walks over already validated JSON: a decoded document, or one from Elasticsearch. Reads each byte at most once and
//! builds nothing.
//!
//! On invalid JSON it returns `None` or nonsense, but neither panics nor loops.

use std::borrow::Cow;

use memchr::memchr2;

/// The position of the walk.
#[derive(Debug, Clone)]
pub(super) struct JsonScan<'a> {
    text: &'a [u8],
    at: usize,
}

/// The start of a value; for a scalar all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScannedValue<'a> {
    /// Continue with [`JsonScan::member`].
    Object,
    /// Continue with [`JsonScan::element`].
    Array,
    /// A string.
    Text(JsonString<'a>),
    /// A number, true, false or null.
    Bare(&'a [u8]),
}

/// A string without its quotes, escapes as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JsonString<'a> {
    text: &'a [u8],
    has_escapes: bool,
}

impl<'a> JsonScan<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// Begins a value; passes a scalar.
    pub(super) fn value(&mut self) -> Option<ScannedValue<'a>> {
        match self.next_token()? {
            b'{' => {
                self.at += 1;
                Some(ScannedValue::Object)
            }
            b'[' => {
                self.at += 1;
                Some(ScannedValue::Array)
            }
            b'"' => self.string().map(ScannedValue::Text),
            _ => {
                let rest = &self.text[self.at..];
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                let length = rest.iter().position(ends).unwrap_or(rest.len());
                if length == 0 {
                    return None;
                }
                self.at += length;
                Some(ScannedValue::Bare(&rest[..length]))
            }
        }
    }

    /// Passes any value.
    pub(super) fn skip(&mut self) -> Option<()> {
        match self.value()? {
            ScannedValue::Object | ScannedValue::Array => self.leave(),
            ScannedValue::Text(_) | ScannedValue::Bare(_) => Some(()),
        }
    }

    /// Passes the rest of the object or array.
    pub(super) fn leave(&mut self) -> Option<()> {
        let mut open = 1_usize;
        while open > 0 {
            match self.text.get(self.at)? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => open += 1,
                b'}' | b']' => open -= 1,
                _ => {}
            }
            self.at += 1;
        }
        Some(())
    }

    /// The key of the object's next member, as written; its value is next. `None` at the object's end, which is passed.
    pub(super) fn member(&mut self) -> Option<JsonString<'a>> {
        if !self.has_another(b'}')? {
            return None;
        }
        let key = self.string()?;
        if self.next_token()? != b':' {
            return None;
        }
        self.at += 1;
        Some(key)
    }

    /// Whether the array has another element, which is next. Passes the array's end.
    pub(super) fn element(&mut self) -> bool {
        self.has_another(b']').unwrap_or(false)
    }

    fn has_another(&mut self, end: u8) -> Option<bool> {
        if self.next_token()? == b',' {
            self.at += 1;
        }
        let has_another = self.next_token()? != end;
        self.at += usize::from(!has_another);
        Some(has_another)
    }

    fn next_token(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.get(self.at)?;
            if !byte.is_ascii_whitespace() {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// The string that begins here.
    fn string(&mut self) -> Option<JsonString<'a>> {
        if *self.text.get(self.at)? != b'"' {
            return None;
        }
        let begin = self.at + 1;
        let (mut end, mut has_escapes) = (begin, false);
        loop {
            let rest = self.text.get(end..)?;
            end += memchr2(b'"', b'\\', rest)?;
            if self.text[end] == b'"' {
                self.at = end + 1;
                return Some(JsonString { text: self.text.get(begin..end)?, has_escapes });
            }
            has_escapes = true;
            end += 2;
        }
    }
}

impl<'a> JsonString<'a> {
    /// With escapes resolved. `None` if it is not valid text, for example half a surrogate pair.
    pub(super) fn unescaped(self) -> Option<Cow<'a, str>> {
        if !self.has_escapes {
            return std::str::from_utf8(self.text).ok().map(Cow::Borrowed);
        }
        let quoted = [b"\"", self.text, b"\""].concat();
        serde_json::from_slice(&quoted).ok().map(Cow::Owned)
    }

    /// As bytes; without escapes they are not checked to be text.
    pub(super) fn bytes(self) -> Option<Cow<'a, [u8]>> {
        if !self.has_escapes {
            return Some(Cow::Borrowed(self.text));
        }
        self.unescaped().map(|text| Cow::Owned(text.into_owned().into_bytes()))
    }
}
