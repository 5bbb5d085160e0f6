//! A document's contribution to the counts: the values of its facets.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prometheus::IntCounter;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

use super::increment::Delta;
use super::scan::{JsonScan, JsonString, ScannedValue};
use crate::base::ids::ShardId;

/// Name of the built-in facet: the document's geoshard.
pub const GEOSHARD_FACET: &str = "geoshard";

/// A document's facet values: names in order, each with its distinct values in order, no name without a value. Empty
/// for a missing document. Cheap to clone and compare.
///
/// Stored as one string, since there is one per record and per known placement: for each facet an `F`, its name and a
/// NUL, then for each value a `V`, the value and a NUL. Names and values never contain a NUL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Facets(Option<Arc<str>>);

const FACET: char = 'F';
const VALUE: char = 'V';
const END: char = '\0';

impl Facets {
    /// From facet and value pairs, in order and distinct.
    fn of<'p>(pairs: impl Iterator<Item = (&'p str, &'p str)>) -> Self {
        let mut text = String::with_capacity(128);
        let mut add = |kind, item: &str| {
            text.push(kind);
            text.push_str(item);
            text.push(END);
        };
        let mut last = None;
        for (facet, value) in pairs {
            if last.replace(facet) != Some(facet) {
                add(FACET, facet);
            }
            add(VALUE, value);
        }
        Self((!text.is_empty()).then(|| text.into()))
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Facets and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.by_name().flat_map(|(name, values)| values.map(move |value| (name, value)))
    }

    /// The change of the counts if a document's facets were `before` and are these.
    pub fn delta_since(&self, before: &Self) -> Delta {
        let mut delta = Delta::default();
        for (facet, changes) in self.changes_since(before) {
            changes.for_each(|(value, by)| delta.add(facet, value, by));
        }
        delta
    }

    /// Each facet that differs from `before`, with its changed values, all in order.
    pub(super) fn changes_since<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = (&'a str, impl Iterator<Item = (&'a str, i64)> + Clone)> {
        // Most are equal and cost only a comparison.
        joined(self.by_name(), before.by_name(), |(name, _)| *name).filter_map(|(now, then)| {
            let (name, _) = now.or(then)?;
            let [now, then] = [now, then].map(|facet| facet.map_or(Values(""), |(_, values)| values));
            let changes = joined(now, then, |value| *value).filter_map(|pair| match pair {
                (Some(value), None) => Some((value, 1)),
                (None, Some(value)) => Some((value, -1)),
                _ => None,
            });
            (now.0 != then.0).then_some((name, changes))
        })
    }

    /// Approximate bytes held.
    pub fn bytes(&self) -> usize {
        self.0.as_deref().map_or(0, |text| 2 * size_of::<usize>() + text.len())
    }

    fn by_name(&self) -> Named<'_> {
        Named(self.0.as_deref().unwrap_or_default())
    }
}

/// Facet names with their values.
#[derive(Clone, Copy)]
struct Named<'a>(&'a str);

impl<'a> Iterator for Named<'a> {
    type Item = (&'a str, Values<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = item(self.0, FACET)?;
        let mut after = Values(rest);
        after.by_ref().for_each(drop);
        let (values, rest) = rest.split_at(rest.len() - after.0.len());
        self.0 = rest;
        Some((name, Values(values)))
    }
}

/// The values of one facet; stops at anything else.
#[derive(Clone, Copy)]
struct Values<'a>(&'a str);

impl<'a> Iterator for Values<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let (value, rest) = item(self.0, VALUE)?;
        self.0 = rest;
        Some(value)
    }
}

/// The text's first item, if of this kind, and the rest.
fn item(text: &str, kind: char) -> Option<(&str, &str)> {
    let text = text.strip_prefix(kind)?;
    // Most are short: the search of `split_once` would cost more than checking each byte.
    let end = text.bytes().position(|byte| byte == 0)?;
    Some((text.get(..end)?, text.get(end + 1..)?))
}

/// Merges two ordered lists, pairing equal items.
fn joined<T: Copy, K: Ord>(
    one: impl Iterator<Item = T> + Clone,
    other: impl Iterator<Item = T> + Clone,
    key: impl Fn(&T) -> K + Clone,
) -> impl Iterator<Item = (Option<T>, Option<T>)> + Clone {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || {
        let order = match (one.peek(), other.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(one), Some(other)) => key(one).cmp(&key(other)),
        };
        let one = if order.is_le() { one.next() } else { None };
        let other = if order.is_ge() { other.next() } else { None };
        Some((one, other))
    })
}

impl Serialize for Facets {
    /// `{"geoshard":["3"],"tags":["a","b"]}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.by_name())
    }
}

impl Serialize for Values<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(*self)
    }
}

impl<'de> Deserialize<'de> for Facets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let facets: BTreeMap<Text<'de>, BTreeSet<Text<'de>>> = Deserialize::deserialize(deserializer)?;
        let pairs = facets.iter().flat_map(|(name, values)| values.iter().map(|value| (&*name.0, &*value.0)));
        Ok(Self::of(pairs.filter(|(name, value)| !name.contains(END) && !value.contains(END))))
    }
}

/// Borrowed without escapes.
#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Limits on one document's facets, since its placement carries them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FacetLimits {
    /// Longer values, in bytes, are skipped.
    pub max_value_bytes: usize,
    /// Number of values counted per facet, the first in byte order.
    pub max_values: usize,
}

/// The facets to count: one path each, as in a mapping. A value may be a string, a number, true or false, or an array
/// of these; anything else is not a value. Cheap to clone.
///
/// Values are strings: `1` and `"1"` are one value, and so are `1`, `1.0` and `1e0`. A value is skipped, and counted as
/// such, if it is too long, if the facet has too many, or if it contains a NUL, which PostgreSQL does not store.
#[derive(Debug, Clone)]
pub struct FacetRules {
    /// In order of name, without the built-in one.
    paths: Arc<[(Arc<str>, Box<str>)]>,
    /// How many of them precede the built-in one, if that is counted.
    before_geoshard: Option<usize>,
    limits: FacetLimits,
    left_out: Option<IntCounter>,
}

/// Values with the index of their facet.
type Found<'d> = SmallVec<[(usize, Cow<'d, str>); 16]>;

/// Facets by index, each with the rest of its path.
type Ahead<'p> = SmallVec<[(usize, &'p str); 8]>;

impl FacetRules {
    /// Counts the facets of these names at these validated paths, and the geoshard if requested.
    pub fn new<'a>(
        geoshard: bool,
        facets: impl IntoIterator<Item = (&'a str, &'a str)>,
        limits: FacetLimits,
    ) -> Self {
        let facets: BTreeMap<&str, &str> =
            facets.into_iter().filter(|(name, _)| *name != GEOSHARD_FACET).collect();
        let before_geoshard = geoshard.then(|| facets.range(..GEOSHARD_FACET).count());
        let paths = facets.into_iter().map(|(name, path)| (name.into(), path.into())).collect();
        Self { paths, before_geoshard, limits, left_out: None }
    }

    /// Counts skipped values in `counter`.
    pub fn counting_left_out(self, counter: IntCounter) -> Self {
        Self { left_out: Some(counter), ..self }
    }

    /// The facets of `document` in `shard`. Its JSON is already validated; on invalid JSON the result is arbitrary but
    /// deterministic.
    pub fn facets(&self, document: &[u8], shard: &ShardId) -> Facets {
        let mut found = Found::new();
        if !self.paths.is_empty() {
            let mut scan = JsonScan::new(document);
            if scan.value() == Some(ScannedValue::Object) {
                // Stops at invalid JSON.
                let _ = self.object(&mut scan, &self.ahead(), &mut found);
            }
            self.settle(&mut found);
        }
        let place = self.before_geoshard.map(|facets| found.partition_point(|(facet, _)| *facet < facets));
        let (before, after) = found.split_at(place.unwrap_or_default());
        let shard = place.map(|_| (GEOSHARD_FACET, shard.as_str()));
        Facets::of(self.named(before).chain(shard).chain(self.named(after)))
    }

    /// Replaces indices by facet names.
    fn named<'a>(&'a self, found: &'a [(usize, Cow<'_, str>)]) -> impl Iterator<Item = (&'a str, &'a str)> {
        found.iter().map(|(facet, value)| (&*self.paths[*facet].0, &**value))
    }

    /// Whether a merge patch may change any facet but the geoshard. `false` is certain.
    pub fn is_touched_by_patch(&self, patch: &[u8]) -> bool {
        if self.paths.is_empty() {
            return false;
        }
        let mut scan = JsonScan::new(patch);
        scan.value() != Some(ScannedValue::Object) || touches(&mut scan, &self.ahead()).unwrap_or(true)
    }

    fn ahead(&self) -> Ahead<'_> {
        self.paths.iter().enumerate().map(|(facet, (_, path))| (facet, &**path)).collect()
    }

    /// Passes an object that was begun; `None` if it does not end.
    fn object<'d>(
        &self,
        scan: &mut JsonScan<'d>,
        ahead: &[(usize, &str)],
        found: &mut Found<'d>,
    ) -> Option<()> {
        while let Some(key) = scan.member() {
            let Some(steps) = steps(key, ahead) else {
                scan.skip()?;
                continue;
            };
            match scan.value()? {
                ScannedValue::Object if steps.further.is_empty() => scan.leave()?,
                ScannedValue::Object => self.object(scan, &steps.further, found)?,
                ScannedValue::Array if steps.here.is_empty() => scan.leave()?,
                ScannedValue::Array => {
                    while scan.element() {
                        match scan.value()? {
                            ScannedValue::Object | ScannedValue::Array => scan.leave()?,
                            scalar => self.add(scalar, &steps.here, found),
                        }
                    }
                }
                scalar => self.add(scalar, &steps.here, found),
            }
        }
        Some(())
    }

    fn add<'d>(&self, scalar: ScannedValue<'d>, facets: &[usize], found: &mut Found<'d>) {
        if facets.is_empty() || scalar == ScannedValue::Bare(b"null") {
            return;
        }
        let text = match scalar {
            ScannedValue::Text(written) => written.unescaped(),
            ScannedValue::Bare(bare) => std::str::from_utf8(bare).ok().map(number),
            ScannedValue::Object | ScannedValue::Array => return,
        };
        let is_counted = |text: &Cow<'_, str>| {
            text.len() <= self.limits.max_value_bytes && memchr::memchr(0, text.as_bytes()).is_none()
        };
        let text = text.filter(is_counted);
        let Some(text) = text else { return self.leave_out(1) };
        found.extend(facets.iter().map(|facet| (*facet, text.clone())));
        // Up to twice the limit, so that a long list costs little memory and is not sorted for each value.
        if found.len() / 2 > self.limits.max_values.saturating_mul(self.paths.len()) {
            self.settle(found);
        }
    }

    /// Sorts and deduplicates the values, and drops the excess.
    fn settle(&self, found: &mut Found<'_>) {
        found.sort_unstable();
        found.dedup();
        let distinct = found.len();
        if distinct > self.limits.max_values {
            let (mut last, mut values) = (None, 0);
            found.retain(|(facet, _)| {
                values = if last.replace(*facet) == Some(*facet) { values + 1 } else { 1 };
                values <= self.limits.max_values
            });
        }
        self.leave_out(distinct - found.len());
    }

    fn leave_out(&self, values: usize) {
        if let Some(counter) = self.left_out.as_ref().filter(|_| values > 0) {
            counter.inc_by(values as u64);
        }
    }
}

/// Where a member leads.
struct Steps<'p> {
    /// Facets whose path ends here.
    here: SmallVec<[usize; 4]>,
    /// Facets whose path goes on inside.
    further: Ahead<'p>,
}

/// `None` if the member is on no path. A key with dots covers several levels, as in Elasticsearch.
fn steps<'p>(key: JsonString<'_>, ahead: &[(usize, &'p str)]) -> Option<Steps<'p>> {
    let key = key.bytes()?;
    let leads = |path: &str| {
        let rest = path.as_bytes().strip_prefix(&*key);
        rest.is_some_and(|rest| rest.first().is_none_or(|next| *next == b'.'))
    };
    // Most members are on no path.
    let first = ahead.iter().position(|(_, path)| leads(path))?;
    let mut steps = Steps { here: SmallVec::new(), further: SmallVec::new() };
    for &(facet, path) in ahead[first..].iter().filter(|(_, path)| leads(path)) {
        match path.get(key.len() + 1..) {
            None => steps.here.push(facet),
            Some(rest) => steps.further.push((facet, rest)),
        }
    }
    Some(steps)
}

/// Whether a member of a patch's object is on a facet's path, or replaces a parent on it.
fn touches(scan: &mut JsonScan<'_>, ahead: &[(usize, &str)]) -> Option<bool> {
    while let Some(key) = scan.member() {
        match steps(key, ahead) {
            None => scan.skip()?,
            Some(steps) => {
                let is_aside = steps.here.is_empty()
                    && scan.value()? == ScannedValue::Object
                    && !touches(scan, &steps.further)?;
                if !is_aside {
                    return Some(true);
                }
            }
        }
    }
    Some(false)
}

/// The counted text of a number or word.
fn number(written: &str) -> Cow<'_, str> {
    if !written.contains(['.', 'e', 'E']) || written.starts_with(['t', 'f']) {
        return if written == "-0" { "0".into() } else { written.into() };
    }
    match written.parse::<f64>() {
        Ok(0.0) => "0".into(),
        // Up to here each integer has an exact double.
        Ok(value) if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 => {
            format!("{value:.0}").into()
        }
        Ok(value) => match serde_json::Number::from_f64(value) {
            Some(number) => number.to_string().into(),
            // Beyond a double's range.
            None => written.into(),
        },
        Err(_) => written.into(),
    }
}

#[cfg(test)]
mod tests;
