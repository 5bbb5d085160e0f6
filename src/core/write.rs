//! The meaning of records, and the folding of several records of one document.
//!
//! A [`Write`] is one record; a [`Fold`] is the dirty set's value for a document: one or more records. `core/decode/`
//! decodes a record into a write; `core/mover/` applies a fold to Elasticsearch.

use bytes::Bytes;
use smallvec::SmallVec;
use thiserror::Error;

use crate::base::geo::GeoPoint;
use crate::base::ids::{DocId, ShardId};
use crate::base::position::Position;
use crate::core::counting::facets::FacetRules;
use crate::core::counting::steps::Steps;
use crate::core::decode::{BadLocation, BadObject, LocationPath, merge_patch, on_one_line};

/// One decoded record.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Its document.
    pub id: DocId,
    /// Its position in the partition.
    pub position: Position,
    /// Its operation.
    pub body: Body,
}

/// The operation of one record.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// The whole document.
    Index {
        /// A JSON object without raw line breaks; otherwise the record's own bytes.
        doc: Bytes,
        /// Its location.
        at: GeoPoint,
    },
    /// The document is deleted.
    Delete,
    /// An RFC 7386 merge patch of the document.
    Patch {
        /// A JSON object without raw line breaks.
        patch: Bytes,
        /// Its effect on the location.
        moves: PatchMove,
    },
    /// No change of content: place it again under the current map.
    Touch,
    /// The document is replaced by the source of truth's.
    Refeed,
}

/// The effect of a merge patch on the location.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PatchMove {
    /// It does not mention it.
    Stays,
    /// It sets a whole location, which holds for any base (or the merged document is refused).
    To(GeoPoint),
    /// It changes part of it (`{"location":{"lat":5}}`): only the merged document decides.
    Unclear,
}

/// The place to which one record of a fold points.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// This geoshard.
    Shard(ShardId),
    /// Out of the index.
    Nowhere,
    /// Unknown without the stored document.
    Unclear,
}

impl From<ShardId> for Target {
    fn from(shard: ShardId) -> Self {
        Self::Shard(shard)
    }
}

/// One or more records of a document, oldest first, folded into one.
#[derive(Debug, Clone, PartialEq)]
pub struct Fold {
    /// The combined operation.
    pub content: Content,
    /// Position of its first record.
    pub first: Position,
    /// Position of its last record: the version of what it writes (protocol: `p`).
    pub last: Position,
    /// Position of its last record that carried a location or deleted (protocol: `located_at`).
    pub located_at: Option<Position>,
    /// Position of its last touch.
    pub touched_at: Option<Position>,
    /// Position of its last record that replaces the whole document: an index, a delete, a refeed.
    pub whole_at: Option<Position>,
    /// The distinct targets of its records, under the maps that were live when each was read.
    pub targets: SmallVec<[Target; 1]>,
    /// The successive effects of its records on the facets.
    pub steps: Steps,
    /// Number of records.
    pub records: u32,
    /// Positions of its records after the first, in order; at most [`MAX_SEPARABLE`].
    pub later: Vec<Position>,
}

/// A fold of up to so many records is taken apart again where it cannot be carried out.
pub const MAX_SEPARABLE: usize = 256;

/// The operation of a fold.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// The whole document.
    Index {
        /// A JSON object without raw line breaks.
        doc: Bytes,
        /// Its location.
        at: GeoPoint,
    },
    /// The document is deleted.
    Delete,
    /// Merge patches to be applied in order.
    Patch {
        /// Their base.
        over: Base,
        /// Never empty. More than one only where composition is not exact.
        patches: Vec<Bytes>,
    },
    /// Place it again under the current map.
    Touch,
    /// The source of truth's document, requested after [`Fold::whole_at`].
    Refeed,
}

/// The base of a fold's patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The stored document.
    Stored,
    /// Nothing: a delete precedes in the same fold.
    Nothing,
    /// The source's document: a refeed precedes in the same fold.
    Refed,
}

/// A fold that could not be absorbed: its patches yield no document that can be placed. Its records are dead-lettered
/// as the folded write, with its first and last position.
#[derive(Debug, Error)]
#[error("the patch {span} cannot be applied to the document written before it: {why}", span = span(.fold))]
pub struct Rejected {
    /// The fold to be absorbed, unchanged.
    pub fold: Fold,
    /// The defect of the resulting document.
    pub why: BadMerge,
}

/// Why patches cannot be applied to a document.
#[derive(Debug, Error)]
pub enum BadMerge {
    /// The document or a patch cannot be merged.
    #[error("they cannot be merged: {0}")]
    Merge(#[from] BadObject),
    /// The merged document has no usable location.
    #[error("the location of the merged document cannot be used: {0}")]
    Location(#[from] BadLocation),
}

impl Rejected {
    /// The step that refused the records: `geofold-error-stage` of a dead letter.
    pub fn stage(&self) -> &'static str {
        "fold"
    }

    /// Reason code: `geofold-error-reason` of a dead letter.
    pub fn reason(&self) -> &'static str {
        match &self.why {
            BadMerge::Merge(why) | BadMerge::Location(BadLocation::Json(why)) => why.reason(),
            BadMerge::Location(BadLocation::Missing | BadLocation::Null) => "location_removed",
            BadMerge::Location(BadLocation::Twice | BadLocation::Form(_)) => "bad_location",
        }
    }
}

fn span(fold: &Fold) -> String {
    if fold.first == fold.last {
        format!("at {}", fold.last)
    } else {
        format!("from {} to {}", fold.first, fold.last)
    }
}

impl Fold {
    /// One record as a fold. `locate` tells where a point is under the live maps.
    pub fn from_write<T: Into<Target>>(write: Write, locate: impl FnOnce(GeoPoint) -> T) -> (DocId, Self) {
        let Write { id, position, body } = write;
        let target = match &body {
            Body::Index { at, .. } | Body::Patch { moves: PatchMove::To(at), .. } => Some(locate(*at).into()),
            Body::Delete => Some(Target::Nowhere),
            Body::Patch { moves: PatchMove::Unclear, .. } | Body::Touch | Body::Refeed => {
                Some(Target::Unclear)
            }
            Body::Patch { moves: PatchMove::Stays, .. } => None,
        };
        let is_touch = matches!(body, Body::Touch);
        let is_whole = matches!(body, Body::Index { .. } | Body::Delete | Body::Refeed);
        let fold = Self {
            content: body.into(),
            first: position,
            last: position,
            located_at: (target.is_some() && !is_touch).then_some(position),
            touched_at: is_touch.then_some(position),
            whole_at: is_whole.then_some(position),
            targets: target.into_iter().collect(),
            steps: Steps::default(),
            records: 1,
            later: Vec::new(),
        };
        (id, fold)
    }

    /// Adds the effect of a single record on the document's facets.
    pub fn counted_by(self, rules: &FacetRules) -> Self {
        debug_assert_eq!(self.records, 1, "a fold is counted record by record");
        Self { steps: Steps::of(&self.content, self.targets.first(), rules), ..self }
    }

    /// Adds a later fold of the same document (protocol, "Folding"). Unless some are rejected, the effect does not
    /// depend on how a sequence of records is cut into folds.
    ///
    /// Patches over a whole document are merged at once, and its location is read again if they mention it. If it has
    /// none, or none that Elasticsearch accepts, the later fold is [`Rejected`]: this one keeps its content and its
    /// count of records, but its last position advances, since the records are consumed, and so do its targets, since a
    /// zombie with other fold boundaries may have followed them.
    pub fn absorb(&mut self, newer: Self, path: &LocationPath) -> Result<(), Box<Rejected>> {
        debug_assert!(self.last < newer.first, "{} is folded over {}", newer.first, self.last);
        self.last = newer.last;
        self.touched_at = self.touched_at.max(newer.touched_at);
        self.whole_at = self.whole_at.max(newer.whole_at);
        self.targets.extend(newer.targets.iter().cloned());
        self.targets.sort_unstable();
        self.targets.dedup();
        self.steps.absorb(newer.steps.clone());
        // Every record that mentions the location leaves a target.
        let may_move = !newer.targets.is_empty();
        match self.content.absorb(&newer.content, may_move, path) {
            Ok(()) => {
                self.located_at = self.located_at.max(newer.located_at);
                self.records = self.records.saturating_add(newer.records);
                let room = MAX_SEPARABLE.saturating_sub(self.later.len() + 1);
                self.later.extend(std::iter::once(newer.first).chain(newer.later).take(room));
                Ok(())
            }
            Err(why) => Err(Box::new(Rejected { fold: newer, why })),
        }
    }

    /// The offsets of its records, oldest first, if there are at least two and at most [`MAX_SEPARABLE`].
    pub fn separable(&self) -> Option<Vec<i64>> {
        let offsets: Vec<i64> =
            std::iter::once(&self.first).chain(&self.later).map(|at| at.offset()).collect();
        let is_complete = usize::try_from(self.records).is_ok_and(|records| records == offsets.len());
        (is_complete && offsets.len() > 1).then_some(offsets)
    }

    /// Approximate heap bytes.
    pub fn bytes(&self) -> usize {
        let targets = if self.targets.spilled() { self.targets.capacity() * size_of::<Target>() } else { 0 };
        let content = match &self.content {
            Content::Index { doc, .. } => doc.len(),
            Content::Patch { patches, .. } => {
                patches.capacity() * size_of::<Bytes>() + patches.iter().map(Bytes::len).sum::<usize>()
            }
            Content::Delete | Content::Touch | Content::Refeed => 0,
        };
        let later = self.later.capacity() * size_of::<Position>();
        targets + content + later + self.steps.bytes()
    }
}

impl From<Body> for Content {
    fn from(body: Body) -> Self {
        match body {
            Body::Index { doc, at } => Self::Index { doc, at },
            Body::Delete => Self::Delete,
            Body::Patch { patch, .. } => Self::Patch { over: Base::Stored, patches: vec![patch] },
            Body::Touch => Self::Touch,
            Body::Refeed => Self::Refeed,
        }
    }
}

impl Content {
    /// The resulting document for the base `stored`; `None` if there is none. For a refeed, and for patches over one,
    /// `stored` is the source's document.
    ///
    /// Patches without a base make a document of themselves: the caller decides whether that is wanted (protocol,
    /// "on_missing"). The document has no raw line breaks.
    ///
    /// # Errors
    /// If `stored` is not a JSON object, or has a duplicate key where a patch descends.
    pub fn apply_to(&self, stored: Option<&[u8]>) -> Result<Option<Bytes>, BadObject> {
        match self {
            Self::Index { doc, .. } => Ok(Some(doc.clone())),
            Self::Delete => Ok(None),
            Self::Touch | Self::Refeed => {
                Ok(stored.map(|stored| on_one_line(Bytes::copy_from_slice(stored))))
            }
            Self::Patch { over, patches } => {
                let base = stored.filter(|_| *over != Base::Nothing);
                Ok(apply_all(base, patches)?.map(on_one_line))
            }
        }
    }

    /// Unchanged if it fails.
    fn absorb(&mut self, newer: &Self, may_move: bool, path: &LocationPath) -> Result<(), BadMerge> {
        let Self::Patch { over: Base::Stored, patches: later } = newer else {
            if *newer != Self::Touch {
                *self = newer.clone();
            }
            return Ok(());
        };
        match self {
            Self::Index { doc, at } => {
                let Some(merged) = apply_all(Some(doc), later)? else { return Ok(()) };
                if may_move {
                    *at = path.locate(&merged)?;
                }
                *doc = merged;
            }
            Self::Delete => *self = Self::Patch { over: Base::Nothing, patches: later.clone() },
            Self::Refeed => *self = Self::Patch { over: Base::Refed, patches: later.clone() },
            Self::Touch => *self = newer.clone(),
            Self::Patch { patches, .. } => later.iter().for_each(|patch| push_patch(patches, patch)),
        }
        Ok(())
    }
}

/// `base` with all patches applied; `None` only without both.
fn apply_all(base: Option<&[u8]>, patches: &[Bytes]) -> Result<Option<Bytes>, BadObject> {
    let mut merged: Option<Bytes> = None;
    for patch in patches {
        merged = Some(merge_patch::apply(merged.as_deref().or(base), patch)?);
    }
    Ok(merged)
}

/// Composes from the end of the list as far as it is exact, so a list never holds two neighbours that one patch could
/// replace: a field that alternates between scalar and object does not make it grow.
fn push_patch(patches: &mut Vec<Bytes>, patch: &Bytes) {
    let mut last = patch.clone();
    while let Some(before) = patches.last()
        && let Some(composed) = merge_patch::compose(before, &last)
    {
        patches.pop();
        last = composed;
    }
    patches.push(last);
}

impl Steps {
    /// The effects of one record, which points to `target` if it has one.
    pub(crate) fn of(content: &Content, target: Option<&Target>, rules: &FacetRules) -> Self {
        match (content, target) {
            (Content::Index { doc, .. }, Some(Target::Shard(shard))) => Self::All(rules.facets(doc, shard)),
            (Content::Patch { patches, .. }, _)
                if !patches.iter().any(|patch| rules.is_touched_by_patch(patch)) =>
            {
                Self::Untouched
            }
            _ => Self::Unclear,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::base::position::Epoch;

    fn position(offset: usize) -> Position {
        Position::new(Epoch::default(), offset.try_into().unwrap()).unwrap()
    }

    fn path() -> LocationPath {
        LocationPath::new("location").unwrap()
    }

    /// One geoshard per hemisphere.
    fn shard(at: GeoPoint) -> ShardId {
        ShardId::new(if at.lat() < 0.0 { "south" } else { "north" }).unwrap()
    }

    fn index(doc: &str) -> Body {
        Body::Index { doc: doc.to_owned().into(), at: path().locate(doc.as_bytes()).unwrap() }
    }

    fn patch(patch: &str) -> Body {
        let moves = path().patch_move(patch.as_bytes()).unwrap();
        Body::Patch { patch: patch.to_owned().into(), moves }
    }

    fn one(body: Body, offset: usize) -> Fold {
        let id = DocId::from_key(Some(b"id")).unwrap();
        Fold::from_write(Write { id, position: position(offset), body }, shard).1
    }

    fn fold(bodies: impl IntoIterator<Item = Body>) -> Fold {
        let mut folds = bodies.into_iter().enumerate().map(|(offset, body)| one(body, offset));
        let mut whole = folds.next().unwrap();
        folds.for_each(|newer| whole.absorb(newer, &path()).unwrap());
        whole
    }

    fn patches(fold: &Fold) -> Vec<&str> {
        let Content::Patch { patches, .. } = &fold.content else { panic!("{fold:?}") };
        patches.iter().map(|patch| std::str::from_utf8(patch).unwrap()).collect()
    }

    fn target(id: &str) -> Target {
        Target::Shard(ShardId::new(id).unwrap())
    }

    #[test]
    fn record_becomes_a_fold_with_its_target() {
        for (body, expected, is_located, is_touched) in [
            (index(r#"{"location":"1,2"}"#), vec![target("north")], true, false),
            (Body::Delete, vec![Target::Nowhere], true, false),
            (patch(r#"{"location":"-1,2"}"#), vec![target("south")], true, false),
            (patch(r#"{"location":{"lat":1}}"#), vec![Target::Unclear], true, false),
            (patch(r#"{"a":1}"#), vec![], false, false),
            (Body::Touch, vec![Target::Unclear], false, true),
            (Body::Refeed, vec![Target::Unclear], true, false),
        ] {
            let fold = one(body, 5);
            assert_eq!(fold.targets.to_vec(), expected, "{fold:?}");
            assert_eq!(fold.located_at, is_located.then_some(position(5)), "{fold:?}");
            assert_eq!(fold.touched_at, is_touched.then_some(position(5)), "{fold:?}");
        }
    }

    #[test]
    fn patch_over_a_document_is_merged_and_moves_it() {
        let fold = fold([
            index(r#"{"location":{"lat":1,"lon":2},"n":1.10}"#),
            patch(r#"{"location":{"lat":-1},"m":2}"#),
        ]);
        let doc = r#"{"location":{"lat":-1,"lon":2},"n":1.10,"m":2}"#.into();
        assert_eq!(fold.content, Content::Index { doc, at: GeoPoint::new(-1.0, 2.0).unwrap() });
        assert_eq!(fold.targets.to_vec(), [target("north"), Target::Unclear]);
        assert_eq!((fold.first, fold.last, fold.records), (position(0), position(1), 2));
    }

    #[test]
    fn fold_keeps_the_offsets_of_a_few_records() {
        let patches = |count: usize| fold((0..count).map(|_| patch(r#"{"a":1}"#)));
        assert_eq!(patches(1).separable(), None, "there is nothing to take apart");
        assert_eq!(patches(3).separable(), Some(vec![0, 1, 2]));
        assert_eq!(patches(MAX_SEPARABLE).separable().map(|offsets| offsets.len()), Some(MAX_SEPARABLE));
        assert_eq!(patches(MAX_SEPARABLE + 1).separable(), None);
        let mut rejecting = fold([index(r#"{"location":{"lat":1,"lon":2}}"#), patch(r#"{"a":1}"#)]);
        rejecting.absorb(one(patch(r#"{"location":{"lat":null}}"#), 5), &path()).unwrap_err();
        assert_eq!(rejecting.separable(), Some(vec![0, 1]), "what was rejected is not part of it");
    }

    #[test]
    fn moving_there_and_back_keeps_both_targets() {
        let (north, south) = (r#"{"location":"1,2"}"#, r#"{"location":"-1,2"}"#);
        let fold = fold([index(north), index(south), Body::Delete, patch(north)]);
        assert_eq!(fold.targets.to_vec(), [target("north"), target("south"), Target::Nowhere]);
        assert_eq!(fold.content, Content::Patch { over: Base::Nothing, patches: vec![north.into()] });
    }

    #[test]
    fn patches_are_composed_if_exact_and_listed_otherwise() {
        assert_eq!(patches(&fold([patch(r#"{"a":1}"#), patch(r#"{"b":null}"#)])), [r#"{"a":1,"b":null}"#]);
        let (scalar, object) = (r#"{"x":5}"#, r#"{"x":{"y":1}}"#);
        assert_eq!(patches(&fold([patch(scalar), patch(object)])), [scalar, object]);
        let toggled = (0..100).map(|turn| patch(if turn % 2 == 0 { scalar } else { object }));
        assert_eq!(patches(&fold(toggled)), [scalar, object]);
    }

    #[test]
    fn touch_changes_nothing_but_its_position() {
        let touched = fold([Body::Touch, patch(r#"{"a":1}"#), Body::Touch, patch(r#"{"b":2}"#)]);
        assert_eq!(patches(&touched), [r#"{"a":1,"b":2}"#]);
        assert_eq!((touched.touched_at, touched.located_at), (Some(position(2)), None));
        let deleted = fold([Body::Delete, Body::Touch]);
        assert_eq!((deleted.content, deleted.located_at), (Content::Delete, Some(position(0))));
    }

    #[test]
    fn patch_without_a_valid_location_is_rejected() {
        let doc = r#"{"location":"1,2"}"#;
        for (bad, reason) in
            [(r#"{"location":{"lat":5}}"#, "bad_location"), (r#"{"location":{}}"#, "bad_location")]
        {
            let mut whole = one(index(doc), 0);
            let rejected = whole.absorb(one(patch(bad), 1), &path()).unwrap_err();
            assert_eq!((rejected.stage(), rejected.reason()), ("fold", reason));
            assert_eq!((rejected.fold.last, rejected.fold.records), (position(1), 1));
            assert_eq!(
                whole.content,
                Content::Index { doc: doc.into(), at: GeoPoint::new(1.0, 2.0).unwrap() }
            );
            assert_eq!((whole.last, whole.located_at, whole.records), (position(1), Some(position(0)), 1));
            assert!(whole.targets.contains(&Target::Unclear));
        }
    }

    #[test]
    fn patch_mixing_location_formats_is_rejected() {
        let mut whole = one(index(r#"{"location":{"type":"Point","coordinates":[2,1]}}"#), 0);
        assert!(whole.absorb(one(patch(r#"{"location":{"lat":-3,"lon":4}}"#), 1), &path()).is_err());
        let clean = patch(r#"{"location":{"lat":-3,"lon":4,"type":null,"coordinates":null}}"#);
        whole.absorb(one(clean, 2), &path()).unwrap();
        let doc = r#"{"location":{"lat":-3,"lon":4}}"#.into();
        assert_eq!(whole.content, Content::Index { doc, at: GeoPoint::new(-3.0, 4.0).unwrap() });
    }

    #[test]
    fn stored_document_is_sent_on_one_line() {
        let stored = Some(b"{\n\"a\": [1,\r\n2]\n}".as_slice());
        let result = |body| one(body, 0).content.apply_to(stored).unwrap().unwrap();
        assert_eq!(result(Body::Touch), "{ \"a\": [1,  2] }");
        assert_eq!(result(patch(r#"{"b":3}"#)), "{\"a\":[1,  2],\"b\":3}");
    }

    #[test]
    fn memory_grows_with_the_content() {
        assert_eq!(one(Body::Delete, 0).bytes(), 0);
        assert_eq!(one(index(r#"{"location":"1,2"}"#), 0).bytes(), 18);
        assert!(fold([patch(r#"{"x":5}"#), patch(r#"{"x":{}}"#)]).bytes() >= 15 + 2 * size_of::<Bytes>());
    }

    /// Bodies over few members, so that they overlap; locations valid and partial.
    fn any_body() -> impl Strategy<Value = Body> {
        let location = prop_oneof![
            Just(json!({"lat": 1, "lon": 2})),
            Just(json!({"lat": -1, "lon": 2})),
            Just(json!("-1,2")),
        ];
        let leaf = prop_oneof![Just(Value::Null), Just(json!(1)), Just(json!([{"a": null}]))];
        let member = leaf.prop_recursive(2, 8, 2, |inner| {
            prop::collection::btree_map("[ab]", inner, 0..3).prop_map(|members| json!(members))
        });
        let members = prop::collection::btree_map("[ab]", member, 0..3).prop_map(|members| json!(members));
        let change = prop_oneof![
            4 => Just(None),
            2 => location.clone().prop_map(Some),
            1 => Just(Some(json!({"lat": -3}))),
            1 => Just(Some(json!({}))),
        ];
        prop_oneof![
            1 => (members.clone(), location).prop_map(|(mut doc, location)| {
                doc["location"] = location;
                index(&doc.to_string())
            }),
            1 => Just(Body::Delete),
            1 => Just(Body::Touch),
            1 => Just(Body::Refeed),
            5 => (members, change).prop_map(|(mut change, location)| {
                if let Some(location) = location {
                    change["location"] = location;
                }
                patch(&change.to_string())
            }),
        ]
    }

    /// The record applied to a document, without folding.
    fn naive(stored: Option<Value>, body: &Body) -> Option<Value> {
        let parse = |text: &Bytes| serde_json::from_slice::<Value>(text).unwrap();
        match body {
            Body::Index { doc, .. } => Some(parse(doc)),
            Body::Delete => None,
            Body::Patch { patch, .. } => Some(merge_patch::reference(stored, &parse(patch))),
            Body::Touch => stored,
            Body::Refeed => Some(source()),
        }
    }

    /// The source of truth's document.
    fn source() -> Value {
        json!({"location": {"lat": 1, "lon": 2}, "a": {"b": 1}, "fed": true})
    }

    fn effect(content: &Content, stored: Option<&Value>) -> Option<Value> {
        let is_refed = matches!(content, Content::Refeed | Content::Patch { over: Base::Refed, .. });
        let stored = if is_refed { Some(source().to_string()) } else { stored.map(Value::to_string) };
        let document = content.apply_to(stored.as_deref().map(str::as_bytes)).unwrap();
        document.map(|document| serde_json::from_slice(&document).unwrap())
    }

    /// Folds a run of folds along a random tree: `choices` selects the neighbours to fold next.
    fn fold_in_any_order(mut folds: Vec<Fold>, choices: &[usize]) -> Result<Fold, Box<Rejected>> {
        let mut choices = choices.iter().cycle();
        while folds.len() > 1 {
            let at = choices.next().unwrap() % (folds.len() - 1);
            let newer = folds.remove(at + 1);
            folds[at].absorb(newer, &path())?;
        }
        Ok(folds.remove(0))
    }

    fn bases() -> [Option<Value>; 4] {
        [
            None,
            Some(json!({})),
            Some(json!({"a": {"a": 7, "z": 8}, "b": 9, "location": "5,5"})),
            Some(json!({"a": 1, "b": {"z": {}}})),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn fold_equals_its_records_applied_one_by_one(bodies in prop::collection::vec(any_body(), 1..8)) {
            for base in bases() {
                let mut whole: Option<Fold> = None;
                let mut expected = base.clone();
                for (offset, body) in bodies.iter().enumerate() {
                    let newer = one(body.clone(), offset);
                    let is_rejected = match &mut whole {
                        Some(whole) => whole.absorb(newer, &path()).is_err(),
                        None => { whole = Some(newer); false }
                    };
                    let after = naive(expected.clone(), body);
                    let whole = whole.as_ref().unwrap();
                    if let Content::Index { doc, at } = &whole.content {
                        prop_assert_eq!(path().locate(doc).unwrap(), *at);
                        let no_location = path().locate(after.as_ref().unwrap().to_string().as_bytes()).is_err();
                        prop_assert_eq!(is_rejected, no_location);
                    }
                    if !is_rejected {
                        expected = after;
                    }
                    prop_assert_eq!(effect(&whole.content, base.as_ref()), expected.clone());
                    prop_assert_eq!(whole.last, position(offset));
                }
            }
        }

        #[test]
        fn grouping_of_records_into_folds_does_not_matter(
            bodies in prop::collection::vec(any_body(), 1..8),
            choices in prop::collection::vec(any::<usize>(), 8),
        ) {
            let folds: Vec<Fold> = bodies.into_iter().enumerate().map(|(offset, body)| one(body, offset)).collect();
            let count = folds.len();
            let in_order = fold_in_any_order(folds.clone(), &[0]);
            let in_any_order = fold_in_any_order(folds, &choices);
            let (Ok(left), Ok(right)) = (in_order, in_any_order) else { return Ok(()) };
            for base in bases() {
                prop_assert_eq!(effect(&left.content, base.as_ref()), effect(&right.content, base.as_ref()));
            }
            if let (Content::Index { at: left, .. }, Content::Index { at: right, .. }) = (&left.content, &right.content) {
                prop_assert_eq!(left, right);
            }
            prop_assert_eq!((right.first, right.last), (position(0), position(count - 1)));
            prop_assert_eq!(usize::try_from(right.records).unwrap(), count);
            prop_assert_eq!(
                (left.located_at, left.touched_at, left.targets),
                (right.located_at, right.touched_at, right.targets)
            );
        }
    }
}
