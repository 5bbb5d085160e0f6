//! Positions: the external version of everything that geofold writes.
//!
//! A record's position is `epoch << 44 | (offset + 1)`: one number that orders all records of a partition across
//! topic re-creations, as long as the operator raises the epoch when offsets start over. It fits Elasticsearch's
//! external versions, which must be in `0 ..= i64::MAX` (protocol, "Terms").

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bits of a position that hold `offset + 1`.
const OFFSET_BITS: u32 = 44;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// A generation of offsets, set in the configuration and raised when offsets start over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Epoch(u32);

impl Epoch {
    /// The highest epoch whose positions still fit Elasticsearch's external versions (63 bits).
    pub const MAX: u32 = (1 << (63 - OFFSET_BITS)) - 1;

    /// Creates an epoch; `None` above [`Epoch::MAX`].
    pub fn new(epoch: u32) -> Option<Self> {
        (epoch <= Self::MAX).then_some(Self(epoch))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Epoch {
    type Error = String;

    fn try_from(epoch: u32) -> Result<Self, String> {
        Self::new(epoch).ok_or_else(|| format!("epoch {epoch} is above the highest, {}", Self::MAX))
    }
}

impl From<Epoch> for u32 {
    fn from(epoch: Epoch) -> u32 {
        epoch.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Place of a record in its partition, across epochs; the version of every document copy that geofold writes.
///
/// Positions compare only within one partition: that is enough, since a document's key keeps it in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(u64);

impl Position {
    /// Below the position of any record.
    pub const NONE: Self = Self(0);

    /// The position of the record at `offset`. `None` if the offset is negative or needs more than 44 bits
    /// (17 trillion records in one partition).
    pub fn new(epoch: Epoch, offset: i64) -> Option<Self> {
        let offset = u64::try_from(offset).ok()?;
        (offset < OFFSET_MASK).then_some(Self(u64::from(epoch.0) << OFFSET_BITS | (offset + 1)))
    }

    /// A position read back from Elasticsearch, where it served as a version.
    pub fn from_version(version: u64) -> Self {
        Self(version)
    }

    /// The number that Elasticsearch sees as external version.
    pub fn version(self) -> u64 {
        self.0
    }

    /// The epoch part.
    pub fn epoch(self) -> Epoch {
        Epoch((self.0 >> OFFSET_BITS) as u32)
    }

    /// The Kafka offset of the record.
    pub fn offset(self) -> i64 {
        #[expect(clippy::cast_possible_wrap, reason = "44 bits always fit")]
        let offset_plus_one = (self.0 & OFFSET_MASK) as i64;
        offset_plus_one - 1
    }
}

impl fmt::Display for Position {
    /// `epoch:offset`, the form an operator can look up in the topic.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch(), self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_order_by_epoch_first_and_round_trip() {
        let old = Position::new(Epoch(1), 5_000_000_000).unwrap();
        let new = Position::new(Epoch(2), 0).unwrap();
        assert!(old < new);
        assert_eq!((old.epoch(), old.offset()), (Epoch(1), 5_000_000_000));
        assert_eq!((new.epoch(), new.offset()), (Epoch(2), 0));
        assert_eq!(new.to_string(), "2:0");
    }

    #[test]
    fn highest_position_is_a_valid_external_version() {
        let epoch = Epoch::new(Epoch::MAX).unwrap();
        let offset = i64::try_from(OFFSET_MASK).unwrap() - 1;
        assert!(i64::try_from(Position::new(epoch, offset).unwrap().version()).is_ok());
        assert_eq!(Position::new(epoch, offset + 1), None);
        assert_eq!(Position::new(epoch, -1), None);
        assert_eq!(Epoch::new(Epoch::MAX + 1), None);
    }
}
