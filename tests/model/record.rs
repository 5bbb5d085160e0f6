//! The records of a script, and their effect on the document one by one.

use std::fmt;
use std::sync::Arc;

use geofold::base::ids::{DocId, ShardId};
use geofold::base::position::{Epoch, Position};
use geofold::core::counting::facets::{FacetLimits, FacetRules};
use geofold::core::decode::LocationPath;
use geofold::core::mover::{OnMissing, Rules};
use geofold::core::write::{Body, Write};
use geofold::geoshard::GeoshardMap;
use serde_json::{Value, json};

/// Three places, one on each of three faces of the S2 cube.
const LONGITUDES: [f64; 3] = [0.0, 90.0, 170.0];

/// The geoshards.
pub const SHARDS: [&str; 3] = ["a", "b", "c"];

/// A document that contains this is refused by every geoshard.
pub const UNACCEPTABLE: &str = "unacceptable";

/// The tag's value.
const TAG: &str = "t";

/// One record of the document. A place is an index into [`SHARDS`]: its geoshard under the old map.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Record {
    /// The whole document.
    Index(usize),
    /// The whole document with a tag; the others have none.
    Tagged(usize),
    /// The whole document, which Elasticsearch refuses.
    Bad(usize),
    /// A patch that moves the document and makes Elasticsearch refuse it.
    Spoil(usize),
    /// The document is deleted.
    Delete,
    /// A patch that does not mention the location.
    Patch,
    /// A patch that makes a refused document acceptable.
    Heal,
    /// A patch that tags the document.
    Tag,
    /// A patch that moves the document.
    Move(usize),
    /// A patch of part of the location: only the merged document has the place.
    Part,
    /// A patch of the other part of the location, which moves the document.
    East(usize),
    /// A patch that takes part of the location away: a dead letter, unless it is folded with one that gives it again.
    Hide,
    /// Place again under the current map.
    Touch,
    /// The document becomes the source's: any of [`answers`].
    Refeed,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(place) => write!(f, "index {}", SHARDS[*place]),
            Self::Tagged(place) => write!(f, "tagged {}", SHARDS[*place]),
            Self::Bad(place) => write!(f, "bad {}", SHARDS[*place]),
            Self::Heal => f.write_str("heal"),
            Self::Tag => f.write_str("tag"),
            Self::Spoil(place) => write!(f, "spoil {}", SHARDS[*place]),
            Self::Delete => f.write_str("delete"),
            Self::Patch => f.write_str("patch"),
            Self::Move(place) => write!(f, "move {}", SHARDS[*place]),
            Self::Part => f.write_str("part"),
            Self::East(place) => write!(f, "east {}", SHARDS[*place]),
            Self::Hide => f.write_str("hide"),
            Self::Touch => f.write_str("touch"),
            Self::Refeed => f.write_str("refeed"),
        }
    }
}

impl Record {
    fn place(self) -> Option<usize> {
        match self {
            Self::Index(place)
            | Self::Tagged(place)
            | Self::Bad(place)
            | Self::Spoil(place)
            | Self::Move(place)
            | Self::East(place) => Some(place),
            Self::Delete
            | Self::Patch
            | Self::Heal
            | Self::Tag
            | Self::Part
            | Self::Hide
            | Self::Touch
            | Self::Refeed => None,
        }
    }

    /// As it is decoded at this offset.
    pub fn write(self, offset: usize) -> Write {
        let location = |place: usize| json!({"lat": 1, "lon": LONGITUDES[place]});
        let whole = |place, n: Value| {
            let doc = json!({"location": location(place), "n": n}).to_string();
            let at = path().locate(doc.as_bytes()).unwrap().into();
            Body::Index { doc: doc.into(), at }
        };
        let tagged = |place| {
            let doc = json!({"location": location(place), "n": offset, "tag": TAG}).to_string();
            let at = path().locate(doc.as_bytes()).unwrap().into();
            Body::Index { doc: doc.into(), at }
        };
        let patch = |value: Value| {
            let patch = value.to_string();
            let moves = path().patch_move(patch.as_bytes()).unwrap();
            Body::Patch { patch: patch.into(), moves }
        };
        let field = format!("p{offset}");
        let body = match self {
            Self::Index(place) => whole(place, json!(offset)),
            Self::Tagged(place) => tagged(place),
            Self::Bad(place) => whole(place, json!(UNACCEPTABLE)),
            Self::Delete => Body::Delete,
            Self::Patch => patch(json!({field: 1})),
            Self::Heal => patch(json!({"n": offset})),
            Self::Tag => patch(json!({"tag": TAG, field: 1})),
            Self::Move(place) => patch(json!({"location": location(place), field: 1})),
            Self::Spoil(place) => patch(json!({"location": location(place), "n": UNACCEPTABLE})),
            Self::Part => patch(json!({"location": {"lat": 2}, field: 1})),
            Self::East(place) => patch(json!({"location": {"lon": LONGITUDES[place]}, field: 1})),
            Self::Hide => patch(json!({"location": {"lat": null}})),
            Self::Touch => Body::Touch,
            Self::Refeed => Body::Refeed,
        };
        Write { id: id(), position: position(offset), body }
    }
}

/// Every script of `length` records out of `alphabet`, but for those that are another one with places renamed (which `maps`
/// do not tell apart), and those that do not begin with a document.
pub fn scripts(length: usize, alphabet: &[Record], maps: Maps) -> Vec<Vec<Record>> {
    let mut scripts = vec![vec![]];
    for _ in 0..length {
        scripts = scripts
            .iter()
            .flat_map(|script: &Vec<Record>| {
                alphabet.iter().map(move |record| [script.as_slice(), &[*record]].concat())
            })
            .collect();
    }
    scripts.retain(|script| {
        // The first place is not like the others where the maps agree about it.
        let mut next = usize::from(maps == Maps::Alike);
        let named_in_order = script.iter().filter_map(|record| record.place()).all(|place| {
            let is_known = place <= next;
            next = next.max(place + 1);
            is_known
        });
        named_in_order && script.first().is_some_and(|record| record.place().is_some())
    });
    scripts
}

/// The possible answers of the source: one place, another, or gone.
pub fn answers() -> [Option<Value>; 3] {
    let document = |place: usize| Some(json!({"location": {"lat": 1, "lon": LONGITUDES[place]}, "n": "fed"}));
    [document(0), document(1), None]
}

/// The possible documents after the records before `end`, for any answers of the source.
pub fn naive(script: &[Record], end: usize, on_missing: OnMissing) -> Vec<Option<Value>> {
    let mut possible = vec![None];
    for (offset, record) in script[..end].iter().enumerate() {
        let mut after: Vec<Option<Value>> = Vec::new();
        for document in possible {
            let bases = match (record, document) {
                (Record::Refeed, _) => answers().to_vec(),
                (Record::Delete, _) => vec![None],
                (_, None) if on_missing == OnMissing::Refeed => answers().to_vec(),
                (_, document) => vec![document],
            };
            for base in bases {
                let document = applied(*record, offset, base, on_missing);
                if !after.contains(&document) {
                    after.push(document);
                }
            }
        }
        possible = after;
    }
    possible
}

fn applied(record: Record, offset: usize, document: Option<Value>, on_missing: OnMissing) -> Option<Value> {
    match record.write(offset).body {
        Body::Index { doc, .. } => serde_json::from_slice(&doc).ok(),
        Body::Delete => None,
        Body::Touch | Body::Refeed => document,
        Body::Patch { .. } if record == Record::Hide => document,
        Body::Patch { patch, .. } => {
            let creates = on_missing == OnMissing::Create && matches!(record, Record::Move(_));
            let mut merged = document.or_else(|| creates.then(|| json!({})))?;
            merge(&mut merged, &serde_json::from_slice(&patch).unwrap());
            Some(merged)
        }
    }
}

/// Patches here only set fields, but for [`Record::Hide`].
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else { return *target = patch.clone() };
    for (key, value) in fields {
        match target.get_mut(key) {
            Some(old) => merge(old, value),
            None => target[key] = value.clone(),
        }
    }
}

/// The geoshards to which the old and the new map give a document.
pub fn belongs(document: &Value, maps: Maps) -> [usize; 2] {
    let lon = document["location"]["lon"].as_f64().unwrap();
    let place = LONGITUDES.iter().position(|place| (place - lon).abs() < 1.0).unwrap();
    [place, maps.new_places()[place]]
}

pub fn id() -> DocId {
    DocId::from_key(Some(b"x")).unwrap()
}

pub fn position(offset: usize) -> Position {
    Position::new(Epoch::default(), i64::try_from(offset).unwrap()).unwrap()
}

/// A position in the model: offset + 1; 0 is before all.
pub fn version_of(position: Position) -> u8 {
    u8::try_from(position.version()).unwrap()
}

pub fn path() -> LocationPath {
    LocationPath::new("location").unwrap()
}

pub fn shard(n: usize) -> ShardId {
    ShardId::new(SHARDS[n]).unwrap()
}

/// The number of a geoshard.
pub fn number_of(shard: &ShardId) -> u8 {
    u8::try_from(SHARDS.iter().position(|id| *id == shard.as_str()).unwrap()).unwrap()
}

/// What is counted: geoshards and tags.
pub fn facet_rules() -> FacetRules {
    FacetRules::new(true, [("tag", "tag")], FacetLimits { max_value_bytes: 10, max_values: 10 })
}

/// The maps that are live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maps {
    One,
    /// The new one gives every place to another geoshard.
    Apart,
    /// The new one gives the second and the third place to one another's geoshard, and the first to the same.
    Alike,
}

impl Maps {
    /// The geoshards of the places by the new map.
    fn new_places(self) -> [usize; 3] {
        match self {
            Self::One => [0, 1, 2],
            Self::Apart => [1, 2, 0],
            Self::Alike => [0, 2, 1],
        }
    }

    pub fn are_two(self) -> bool {
        self != Self::One
    }
}

/// Rules by the old map or the new one; `knows_both`: where two are live, the other is known.
pub fn rules(
    maps: Maps,
    by_new_map: bool,
    knows_both: bool,
    announce_all: bool,
    on_missing: OnMissing,
    tally: bool,
) -> Rules {
    let starts = [0, 0x2000_0000_0000_0001, 0x4000_0000_0000_0001];
    let map = |places: [usize; 3]| {
        let ranges = (0..3).map(|n| (starts[n], shard(places[n]))).collect();
        Arc::new(GeoshardMap::new(1, "three faces", ranges).unwrap())
    };
    let (old, new) = (map(Maps::One.new_places()), map(maps.new_places()));
    let (map, other) = if by_new_map { (new, old) } else { (old, new) };
    let other_map = (maps.are_two() && knows_both).then_some(other);
    let tally = tally.then(facet_rules);
    Rules { map, other_map, location: path(), on_missing, announce_all, tally }
}
