//! Finds the value at a path in any JSON document, by serde_json's scanner, which checks the syntax of all of it and builds no values.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// What is at a path.
pub(super) enum FoundValue<'de> {
    Nothing,
    Value(&'de RawValue),
    /// A parent along the path is null, a scalar or an array.
    Blocked,
    Twice,
}

/// The value at the path (names separated by dots).
pub(super) fn find<'de>(document: &'de str, path: &str) -> Result<FoundValue<'de>, serde_json::Error> {
    let mut found = FoundValue::Nothing;
    let mut deserializer = serde_json::Deserializer::from_str(document);
    Descent { path, found: &mut found }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(found)
}

impl<'de> FoundValue<'de> {
    fn add(&mut self, another: FoundValue<'de>) {
        *self = match self {
            Self::Nothing => another,
            _ => Self::Twice,
        };
    }
}

/// Visits a value with the rest of the path below it.
struct Descent<'p, 'f, 'de> {
    path: &'p str,
    found: &'f mut FoundValue<'de>,
}

impl<'de> DeserializeSeed<'de> for Descent<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Descent<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(step) = map.next_key_seed(Key { path: self.path })? {
            match step {
                Step::Aside => {
                    map.next_value::<IgnoredAny>()?;
                }
                Step::There => self.found.add(FoundValue::Value(map.next_value()?)),
                Step::Towards(path) => map.next_value_seed(Descent { path, found: self.found })?,
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        self.found.add(FoundValue::Blocked);
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.found.add(FoundValue::Blocked);
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.visit_unit()
    }
}

/// The meaning of a key for the path.
enum Step<'p> {
    Aside,
    There,
    Towards(&'p str),
}

/// Compares a key with the path. A key with dots may cover several levels, as in Elasticsearch.
struct Key<'p> {
    path: &'p str,
}

impl<'de, 'p> DeserializeSeed<'de> for Key<'p> {
    type Value = Step<'p>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Step<'p>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'p> Visitor<'_> for Key<'p> {
    type Value = Step<'p>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Step<'p>, E> {
        let Some(rest) = self.path.strip_prefix(key) else { return Ok(Step::Aside) };
        if rest.is_empty() {
            return Ok(Step::There);
        }
        Ok(rest.strip_prefix('.').map_or(Step::Aside, Step::Towards))
    }
}
