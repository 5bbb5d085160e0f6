//! Sizes in bytes as people write them: `"64MiB"`, `"10MB"`, or a plain number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Units and their bytes, the longest names first: `MiB` must be tried before `B`. IEC names are powers of 1024, SI
/// names powers of 1000, as everywhere but in old disk tools.
const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(u64);

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is not a size: write a whole number of bytes, or one with a unit such as \"64MiB\" \
     (B, KiB, MiB, GiB, kB, MB, GB)"
)]
pub struct BadByteSize(String);

impl ByteSize {
    /// `bytes` bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// `n` times 1024² bytes.
    pub const fn mib(n: u32) -> Self {
        Self((n as u64) << 20)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The number of bytes as a length in memory; the greatest length there is if it does not fit.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = BadByteSize;

    fn from_str(text: &str) -> Result<Self, BadByteSize> {
        let bad = || BadByteSize(text.to_owned());
        let trimmed = text.trim();
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, bytes)| Some((trimmed.strip_suffix(name)?, *bytes)))
            .unwrap_or((trimmed, 1));
        let number: u64 = number.trim_end().replace('_', "").parse().map_err(|_| bad())?;
        number.checked_mul(unit).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for ByteSize {
    /// Shows the largest power of 1024 that divides the size, so that `"64MiB"` stays `64MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS[..3].iter().find(|(_, bytes)| self.0 != 0 && self.0.is_multiple_of(*bytes));
        let (unit, bytes) = whole.copied().unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "expected a size: a whole number of bytes, or a text such as \"64MiB\""
        )]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_with_binary_and_decimal_units_and_without_any() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("1_048_576", 1 << 20),
            ("7B", 7),
            ("64MiB", 64 << 20),
            (" 64 MiB ", 64 << 20),
            ("1KiB", 1024),
            ("2GiB", 2 << 30),
            ("1kB", 1000),
            ("10MB", 10_000_000),
            ("3GB", 3_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn invalid_size_is_refused_with_the_valid_forms() {
        for text in ["", "MiB", "1.5GiB", "-1", "64mib", "64M", "1 2MiB", "17179869184GiB", "0x10"] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.to_string().contains("64MiB"), "{text}");
        }
    }

    #[test]
    fn in_toml_a_size_is_a_number_or_a_text() {
        #[derive(Debug, Deserialize)]
        struct Holder {
            size: ByteSize,
        }
        assert_eq!(toml::from_str::<Holder>("size = 512").unwrap().size, ByteSize(512));
        assert_eq!(toml::from_str::<Holder>("size = '1KiB'").unwrap().size, ByteSize(1024));
        let error = toml::from_str::<Holder>("size = -1").unwrap_err();
        assert!(error.message().contains("whole number of bytes"), "{error}");
    }

    proptest! {
        #[test]
        fn every_size_is_read_back_as_it_was_shown(bytes in any::<u64>(), shift in 0..40_u32) {
            let size = ByteSize(bytes >> shift << (shift / 2));
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }
    }
}
