//! Defects of a document, derived from its placement and copies alone, without I/O.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};

use serde::Serialize;

use crate::base::geo::GeoPoint;
use crate::base::ids::ShardId;
use crate::base::position::{Epoch, Position};
use crate::base::requests::SeqNo;
use crate::core::decode::LocationPath;
use crate::core::placement::Placement;

/// Whether a copy is in the geoshard of its location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fit {
    /// By a live map.
    Here,
    /// Every live map names another geoshard.
    Elsewhere,
    /// It has no readable location.
    NoLocation,
    /// By a live map, but the field that geofold adds has another point, or is missing.
    WrongPoint,
}

/// An observed copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObservedCopy {
    /// Its version.
    pub version: Position,
    /// Whether it belongs where it is.
    pub fit: Fit,
}

/// An observed placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedPlacement {
    /// There is none.
    Nowhere,
    /// The record is not a placement.
    Unreadable,
    /// A readable placement.
    At(Placement),
}

/// The observed stored state of one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// Its placement.
    pub placed: ObservedPlacement,
    /// The placement's state, if it was read realtime.
    pub stamp: Option<SeqNo>,
    /// Its copies.
    pub copies: BTreeMap<ShardId, ObservedCopy>,
}

impl Fit {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Here, Self::Elsewhere, Self::NoLocation, Self::WrongPoint];

    /// Of a document, and its location; `is_here`: whether a live map names its geoshard for a location.
    pub fn of(
        document: &[u8],
        path: &LocationPath,
        is_here: impl Fn(GeoPoint) -> bool,
    ) -> (Self, Option<GeoPoint>) {
        match path.locate(document) {
            Err(_) => (Self::NoLocation, None),
            Ok(at) if !is_here(at) => (Self::Elsewhere, Some(at)),
            Ok(at) if path.is_complete(document, at) => (Self::Here, Some(at)),
            Ok(at) => (Self::WrongPoint, Some(at)),
        }
    }
}

impl Observation {
    /// Distinguishes states of a document.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match &self.placed {
            ObservedPlacement::Nowhere => 0.hash(&mut hasher),
            ObservedPlacement::Unreadable => 1.hash(&mut hasher),
            ObservedPlacement::At(placement) => placement.to_json().hash(&mut hasher),
        }
        self.stamp.hash(&mut hasher);
        self.copies.hash(&mut hasher);
        hasher.finish()
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.placed {
            ObservedPlacement::Nowhere => f.write_str("no placement")?,
            ObservedPlacement::Unreadable => f.write_str("an unreadable placement")?,
            ObservedPlacement::At(placement) => {
                match &placement.shard {
                    Some(shard) => write!(f, "placed in {shard} at {}", placement.pos)?,
                    None => write!(f, "deleted at {}", placement.pos)?,
                }
                if placement.refused {
                    f.write_str(", refused")?;
                }
                if !placement.leftovers.is_empty() {
                    write!(f, ", leftovers {:?}", placement.leftovers)?;
                }
            }
        }
        if self.copies.is_empty() {
            return f.write_str("; no copy");
        }
        f.write_str("; copies")?;
        for (n, (shard, copy)) in self.copies.iter().enumerate() {
            write!(f, "{} {shard} at {}", if n == 0 { "" } else { "," }, copy.version)?;
        }
        Ok(())
    }
}

/// A defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Defect {
    /// Copies without a placement: geofold does not know the document.
    NoPlacement,
    /// The record in the placements index cannot be read.
    UnreadablePlacement,
    /// The placement names a geoshard, but no copy exists.
    NoCopy,
    /// Copies only in other geoshards than the placement's: an unfinished move.
    NotInPlace,
    /// A second copy in a geoshard that the placement does not name: it would stay forever.
    UnnamedCopy,
    /// An old copy in a leftover: an unfinished move.
    OldCopy,
    /// The placement says deleted, but a copy exists.
    DeletedLives,
    /// The copy is older than the placement: its record is unfinished or lost.
    Behind,
    /// The copy's location belongs to another geoshard.
    WrongGeoshard,
    /// The copy has no readable location.
    NoLocation,
    /// Searches find the copy elsewhere than at its location, or never: `documents.point` is missing or wrong.
    WrongPoint,
    /// A version above the configured epoch: it refuses every write.
    LaterEpoch,
}

impl Defect {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::NoPlacement,
        Self::UnreadablePlacement,
        Self::NoCopy,
        Self::NotInPlace,
        Self::UnnamedCopy,
        Self::OldCopy,
        Self::DeletedLives,
        Self::Behind,
        Self::WrongGeoshard,
        Self::NoLocation,
        Self::WrongPoint,
        Self::LaterEpoch,
    ];

    /// Whether a move in progress looks like this: a worker repairs it with the placement's record.
    pub fn ends_with_its_record(self) -> bool {
        matches!(self, Self::NoCopy | Self::NotInPlace | Self::OldCopy | Self::DeletedLives | Self::Behind)
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoPlacement => "no-placement",
            Self::UnreadablePlacement => "unreadable-placement",
            Self::NoCopy => "no-copy",
            Self::NotInPlace => "not-in-place",
            Self::UnnamedCopy => "unnamed-copy",
            Self::OldCopy => "old-copy",
            Self::DeletedLives => "deleted-lives",
            Self::Behind => "behind",
            Self::WrongGeoshard => "wrong-geoshard",
            Self::NoLocation => "no-location",
            Self::WrongPoint => "wrong-point",
            Self::LaterEpoch => "later-epoch",
        }
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A document's defects, each kind once; none if it is as it should be at rest (protocol, INV-1 and INV-5).
pub fn judge(sight: &Observation, epoch: Epoch) -> Vec<Defect> {
    let mut defects = match &sight.placed {
        ObservedPlacement::Unreadable => vec![Defect::UnreadablePlacement],
        ObservedPlacement::Nowhere if sight.copies.is_empty() => vec![],
        ObservedPlacement::Nowhere => vec![Defect::NoPlacement],
        ObservedPlacement::At(placement) => judge_placed(placement, &sight.copies),
    };
    let recorded =
        if let ObservedPlacement::At(placement) = &sight.placed { Some(placement.pos) } else { None };
    let versions = sight.copies.values().map(|copy| copy.version);
    if versions.chain(recorded).any(|position| position.epoch() > epoch) {
        defects.push(Defect::LaterEpoch);
    }
    defects.sort_unstable();
    defects.dedup();
    defects
}

fn judge_placed(placement: &Placement, copies: &BTreeMap<ShardId, ObservedCopy>) -> Vec<Defect> {
    let is_named = |shard: &ShardId| placement.may_hold().any(|named| named == shard);
    let (own, others): (Vec<_>, Vec<_>) =
        copies.iter().partition(|(shard, _)| placement.shard.as_ref() == Some(*shard));
    // Copies of a refused document may stay in any named geoshard until its next record.
    let stays = placement.refused && copies.len() <= 1 && copies.keys().all(is_named);
    let mut defects = Vec::new();
    for (shard, _) in &others {
        if placement.shard.is_none() {
            defects.push(Defect::DeletedLives);
        } else if !is_named(shard) {
            defects.push(Defect::UnnamedCopy);
        } else if !own.is_empty() {
            defects.push(Defect::OldCopy);
        }
    }
    match own.first() {
        None if placement.shard.is_none() || stays => {}
        None if others.is_empty() => defects.push(Defect::NoCopy),
        None => defects.push(Defect::NotInPlace),
        Some((_, copy)) => {
            if copy.version < placement.pos && !placement.refused {
                defects.push(Defect::Behind);
            }
            match copy.fit {
                Fit::Here => {}
                Fit::Elsewhere => defects.push(Defect::WrongGeoshard),
                Fit::NoLocation => defects.push(Defect::NoLocation),
                Fit::WrongPoint => defects.push(Defect::WrongPoint),
            }
        }
    }
    if stays {
        defects.retain(|defect| *defect != Defect::DeletedLives);
    }
    defects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;
    use crate::core::invariants::{
        DocumentState, inv_1_every_copy_is_named, inv_5_at_rest_there_is_one_copy,
    };
    use crate::testkit::testing::{at, shard};

    fn placed(offset: i64, place: Option<&str>, leftovers: &[&str]) -> ObservedPlacement {
        ObservedPlacement::At(Placement::new(
            at(offset),
            place.map(shard),
            leftovers.iter().map(|id| shard(id)),
        ))
    }

    fn judged(placed: ObservedPlacement, copies: &[(&str, i64, Fit)]) -> Vec<Defect> {
        let copies = copies
            .iter()
            .map(|(id, offset, fit)| (shard(id), ObservedCopy { version: at(*offset), fit: *fit }));
        judge(&Observation { placed, stamp: None, copies: copies.collect() }, Epoch::default())
    }

    #[test]
    fn only_defects_of_a_running_move_end_with_its_record() {
        use Fit::{Elsewhere, Here};
        for (placement, copies) in [
            (placed(5, Some("b"), &[]), vec![]),
            (placed(5, Some("b"), &["a"]), vec![("a", 1, Here)]),
            (placed(5, Some("b"), &["a"]), vec![("b", 2, Here)]),
            (placed(5, Some("b"), &["a"]), vec![("a", 1, Here), ("b", 5, Here)]),
            (placed(5, None, &["a"]), vec![("a", 1, Here)]),
        ] {
            let said = format!("{placement:?} {copies:?}");
            let defects = judged(placement, &copies);
            assert!(
                !defects.is_empty() && defects.iter().all(|defect| defect.ends_with_its_record()),
                "{said}"
            );
        }
        for (placement, copies) in [
            (ObservedPlacement::Nowhere, vec![("a", 1, Here)]),
            (ObservedPlacement::Unreadable, vec![("a", 1, Here)]),
            (placed(5, Some("b"), &[]), vec![("b", 5, Here), ("c", 1, Here)]),
            (placed(5, Some("b"), &[]), vec![("b", 5, Elsewhere)]),
        ] {
            let said = format!("{placement:?} {copies:?}");
            let defects = judged(placement, &copies);
            assert!(defects.iter().any(|defect| !defect.ends_with_its_record()), "{said}");
        }
    }

    #[test]
    fn each_defect_has_its_name() {
        use Fit::{Elsewhere, Here, NoLocation, WrongPoint};
        let refused = || {
            let ObservedPlacement::At(placement) = placed(5, Some("b"), &["a"]) else { unreachable!() };
            ObservedPlacement::At(placement.after_refusal())
        };
        for (placement, copies, expected) in [
            (ObservedPlacement::Nowhere, vec![], vec![]),
            (ObservedPlacement::Nowhere, vec![("a", 1, Here)], vec![Defect::NoPlacement]),
            (ObservedPlacement::Unreadable, vec![("a", 1, Here)], vec![Defect::UnreadablePlacement]),
            (placed(5, Some("b"), &[]), vec![("b", 5, Here)], vec![]),
            (placed(5, Some("b"), &["a"]), vec![("b", 9, Here)], vec![]),
            (placed(5, Some("b"), &[]), vec![], vec![Defect::NoCopy]),
            (placed(5, Some("b"), &["a"]), vec![("a", 1, Here)], vec![Defect::NotInPlace]),
            (placed(5, Some("b"), &["a"]), vec![("a", 1, Here), ("b", 5, Here)], vec![Defect::OldCopy]),
            (placed(5, Some("b"), &[]), vec![("c", 1, Here), ("b", 5, Here)], vec![Defect::UnnamedCopy]),
            (placed(5, Some("b"), &[]), vec![("c", 1, Here)], vec![Defect::NotInPlace, Defect::UnnamedCopy]),
            (placed(5, None, &["a"]), vec![], vec![]),
            (placed(5, None, &["a"]), vec![("a", 1, Here)], vec![Defect::DeletedLives]),
            (placed(5, None, &[]), vec![("a", 7, Here)], vec![Defect::DeletedLives]),
            (placed(5, Some("b"), &[]), vec![("b", 4, Here)], vec![Defect::Behind]),
            (placed(5, Some("b"), &[]), vec![("b", 5, Elsewhere)], vec![Defect::WrongGeoshard]),
            (placed(5, Some("b"), &[]), vec![("b", 5, NoLocation)], vec![Defect::NoLocation]),
            (placed(5, Some("b"), &[]), vec![("b", 5, WrongPoint)], vec![Defect::WrongPoint]),
            (refused(), vec![], vec![]),
            (refused(), vec![("a", 1, Here)], vec![]),
            (refused(), vec![("b", 1, Here)], vec![]),
            (refused(), vec![("a", 1, Here), ("b", 1, Here)], vec![Defect::OldCopy]),
        ] {
            let said = format!("{placement:?} {copies:?}");
            assert_eq!(judged(placement, &copies), expected, "{said}");
        }
        let later = Position::new(Epoch::new(1).unwrap(), 0).unwrap();
        let copies = BTreeMap::from([(shard("b"), ObservedCopy { version: later, fit: Here })]);
        let sight = Observation { placed: placed(5, Some("b"), &[]), stamp: None, copies };
        assert_eq!(judge(&sight, Epoch::default()), [Defect::LaterEpoch]);
        assert!(judge(&sight, Epoch::new(1).unwrap()).is_empty());
    }

    #[test]
    fn a_copy_fits_if_searches_find_it_where_it_is() {
        let path = LocationPath::pair("lat", "lon", Some("at")).unwrap();
        let north = |at: GeoPoint| at.lat() > 0.0;
        for (document, fit) in [
            (r#"{"lat":1,"lon":2,"at":[2,1]}"#, Fit::Here),
            (r#"{"at":{"lat":1.0,"lon":2.0},"lat":1,"lon":2}"#, Fit::Here),
            (r#"{"lat":1,"lon":2}"#, Fit::WrongPoint),
            (r#"{"lat":1,"lon":2,"at":[2,3]}"#, Fit::WrongPoint),
            (r#"{"lat":1,"lon":2,"at":null}"#, Fit::WrongPoint),
            (r#"{"lat":-1,"lon":2}"#, Fit::Elsewhere),
            (r#"{"lat":1,"at":[2,1]}"#, Fit::NoLocation),
        ] {
            assert_eq!(Fit::of(document.as_bytes(), &path, north).0, fit, "{document}");
        }
        let alone = Fit::of(br#"{"location":[2,1]}"#, &LocationPath::default(), north);
        assert_eq!(alone, (Fit::Here, Some(GeoPoint::new(1.0, 2.0).unwrap())));
    }

    #[test]
    fn no_defect_iff_the_invariants_hold() {
        let mut random = Random::new(11);
        for _ in 0..20_000 {
            let names = ["a", "b", "c"];
            let pick = |random: &mut Random| names[usize::try_from(random.below(3)).unwrap()];
            let leftovers: Vec<&str> = (0..random.below(3)).map(|_| pick(&mut random)).collect();
            let place = (random.below(3) > 0).then(|| pick(&mut random));
            let mut placement = placed(5, place, &leftovers);
            if let (ObservedPlacement::At(record), 0) = (&mut placement, random.below(4)) {
                record.refused = true;
            }
            let copies: BTreeMap<ShardId, ObservedCopy> = (0..random.below(3))
                .map(|_| (shard(pick(&mut random)), ObservedCopy { version: at(6), fit: Fit::Here }))
                .collect();
            let ObservedPlacement::At(record) = &placement else { unreachable!() };
            let view = DocumentState {
                placement: Some(record.clone()),
                copies: copies.iter().map(|(shard, copy)| (shard.clone(), copy.version)).collect(),
            };
            let holds =
                inv_1_every_copy_is_named(&view).is_ok() && inv_5_at_rest_there_is_one_copy(&view).is_ok();
            let sight = Observation { placed: placement, stamp: None, copies };
            assert_eq!(judge(&sight, Epoch::default()).is_empty(), holds, "{view}");
        }
    }
}
