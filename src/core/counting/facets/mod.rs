//! What one document contributes to the counts: the values of its facets.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prometheus::IntCounter;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

use super::increment::Delta;
use super::scan::{Scan, Value, Written};
use crate::base::ids::ShardId;

/// The name of the facet that is there without a path: the geoshard that a document is in.
pub const GEOSHARD_FACET: &str = "geoshard";

/// The values of a document's facets: names in order, and to each its distinct values in order, none without. A document that
/// is not there has none at all. Cheap to clone, and to compare.
///
/// All of it is one text, since there is one for each record and for each placement that is known: of each facet an `F`, its
/// name and a NUL, then of each of its values a `V`, the value and a NUL. Neither holds a NUL itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Facets(Option<Arc<str>>);

const FACET: char = 'F';
const VALUE: char = 'V';
const END: char = '\0';

impl Facets {
    /// Facet and value, in order, each pair once.
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

    /// Nothing is contributed.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Facet and value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.by_name().flat_map(|(name, values)| values.map(move |value| (name, value)))
    }

    /// What the counts gain and lose by a document that had `before` and has these.
    pub fn delta_since(&self, before: &Self) -> Delta {
        let mut delta = Delta::default();
        for (facet, changes) in self.changes_since(before) {
            changes.for_each(|(value, by)| delta.add(facet, value, by));
        }
        delta
    }

    /// Each facet that differs from `before`, with the changes of its values, all in order.
    pub(super) fn changes_since<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = (&'a str, impl Iterator<Item = (&'a str, i64)> + Clone)> {
        // Most of them are the same: only what differs costs more than a look.
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

    /// Bytes that they hold, about.
    pub fn bytes(&self) -> usize {
        self.0.as_deref().map_or(0, |text| 2 * size_of::<usize>() + text.len())
    }

    fn by_name(&self) -> Named<'_> {
        Named(self.0.as_deref().unwrap_or_default())
    }
}

/// Names of facets, each with its values.
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

/// The values of one facet; whatever comes after them is left.
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

/// The first item of the text, if it is of this kind, and what is behind it.
fn item(text: &str, kind: char) -> Option<(&str, &str)> {
    let text = text.strip_prefix(kind)?;
    // Most are short: the search of `split_once` would cost more than a look at each byte.
    let end = text.bytes().position(|byte| byte == 0)?;
    Some((text.get(..end)?, text.get(end + 1..)?))
}

/// What two lists in order have, side by side where they have the same.
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

/// Borrowed where nothing is escaped.
#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Bounds on what one document can contribute, since its placement carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FacetLimits {
    /// A longer value, in bytes, is not counted.
    pub max_value_bytes: usize,
    /// So many values of one facet are counted, the first in byte order.
    pub max_values: usize,
}

/// Which values of a document are counted: a path for each facet, as a mapping would name it. What is there may be a text, a
/// number, true or false, or an array of such; anything else is no value. Cheap to clone.
///
/// Values are texts: `1` and `"1"` are one value, and so are `1`, `1.0` and `1e0`. A value is left out, and counted as left
/// out, if it is longer than allowed, if the facet has too many, or if it holds a NUL, which PostgreSQL does not store.
#[derive(Debug, Clone)]
pub struct FacetRules {
    /// In the order of their names, without the built-in one.
    paths: Arc<[(Arc<str>, Box<str>)]>,
    /// How many of them come before the built-in one, if that is counted.
    before_geoshard: Option<usize>,
    limits: FacetLimits,
    left_out: Option<IntCounter>,
}

/// Facets by their number among the paths, each with a value.
type Found<'d> = SmallVec<[(usize, Cow<'d, str>); 16]>;

/// Facets by their number among the paths, each with what is left of its path.
type Ahead<'p> = SmallVec<[(usize, &'p str); 8]>;

impl FacetRules {
    /// Counts the facets of these names at these paths, which were checked with the configuration; and the geoshard, if that is
    /// wanted.
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

    /// The same, adding each value that is left out to `counter`.
    pub fn counting_left_out(self, counter: IntCounter) -> Self {
        Self { left_out: Some(counter), ..self }
    }

    /// What `document` contributes in `shard`. Its JSON was checked before; of anything that was not, this gives some facets or
    /// others, but the same each time.
    pub fn facets(&self, document: &[u8], shard: &ShardId) -> Facets {
        let mut found = Found::new();
        if !self.paths.is_empty() {
            let mut scan = Scan::new(document);
            if scan.value() == Some(Value::Object) {
                // Nothing more is found after text that is no JSON.
                let _ = self.object(&mut scan, &self.ahead(), &mut found);
            }
            self.settle(&mut found);
        }
        let place = self.before_geoshard.map(|facets| found.partition_point(|(facet, _)| *facet < facets));
        let (before, after) = found.split_at(place.unwrap_or_default());
        let shard = place.map(|_| (GEOSHARD_FACET, shard.as_str()));
        Facets::of(self.named(before).chain(shard).chain(self.named(after)))
    }

    /// With the facets' names in place of their numbers.
    fn named<'a>(&'a self, found: &'a [(usize, Cow<'_, str>)]) -> impl Iterator<Item = (&'a str, &'a str)> {
        found.iter().map(|(facet, value)| (&*self.paths[*facet].0, &**value))
    }

    /// Whether a merge patch may change any facet but the geoshard. `false` is sure.
    pub fn is_touched_by_patch(&self, patch: &[u8]) -> bool {
        if self.paths.is_empty() {
            return false;
        }
        let mut scan = Scan::new(patch);
        scan.value() != Some(Value::Object) || touches(&mut scan, &self.ahead()).unwrap_or(true)
    }

    fn ahead(&self) -> Ahead<'_> {
        self.paths.iter().enumerate().map(|(facet, (_, path))| (facet, &**path)).collect()
    }

    /// Passes an object that was begun; `None` if it does not end.
    fn object<'d>(&self, scan: &mut Scan<'d>, ahead: &[(usize, &str)], found: &mut Found<'d>) -> Option<()> {
        while let Some(key) = scan.member() {
            let Some(steps) = steps(key, ahead) else {
                scan.skip()?;
                continue;
            };
            match scan.value()? {
                Value::Object if steps.further.is_empty() => scan.leave()?,
                Value::Object => self.object(scan, &steps.further, found)?,
                Value::Array if steps.here.is_empty() => scan.leave()?,
                Value::Array => {
                    while scan.element() {
                        match scan.value()? {
                            Value::Object | Value::Array => scan.leave()?,
                            scalar => self.add(scalar, &steps.here, found),
                        }
                    }
                }
                scalar => self.add(scalar, &steps.here, found),
            }
        }
        Some(())
    }

    fn add<'d>(&self, scalar: Value<'d>, facets: &[usize], found: &mut Found<'d>) {
        if facets.is_empty() || scalar == Value::Bare(b"null") {
            return;
        }
        let text = match scalar {
            Value::Text(written) => written.unescaped(),
            Value::Bare(bare) => std::str::from_utf8(bare).ok().map(number),
            Value::Object | Value::Array => return,
        };
        let is_counted = |text: &Cow<'_, str>| {
            text.len() <= self.limits.max_value_bytes && memchr::memchr(0, text.as_bytes()).is_none()
        };
        let text = text.filter(is_counted);
        let Some(text) = text else { return self.leave_out(1) };
        found.extend(facets.iter().map(|facet| (*facet, text.clone())));
        // Twice what may stay at most: so that a long list costs little memory, and is not put in order for each value.
        if found.len() / 2 > self.limits.max_values.saturating_mul(self.paths.len()) {
            self.settle(found);
        }
    }

    /// Puts what was found in order, each value once, and leaves out what is too much.
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
    /// Its value is that of these facets.
    here: SmallVec<[usize; 4]>,
    /// These are further inside.
    further: Ahead<'p>,
}

/// `None` if the member leads nowhere. A key with dots in it stands for several levels, as in Elasticsearch.
fn steps<'p>(key: Written<'_>, ahead: &[(usize, &'p str)]) -> Option<Steps<'p>> {
    let key = key.bytes()?;
    let leads = |path: &str| {
        let rest = path.as_bytes().strip_prefix(&*key);
        rest.is_some_and(|rest| rest.first().is_none_or(|next| *next == b'.'))
    };
    // Most members lead nowhere.
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

/// Whether one of the members of an object of a patch leads to a facet, or takes away what leads there.
fn touches(scan: &mut Scan<'_>, ahead: &[(usize, &str)]) -> Option<bool> {
    while let Some(key) = scan.member() {
        match steps(key, ahead) {
            None => scan.skip()?,
            Some(steps) => {
                let is_aside = steps.here.is_empty()
                    && scan.value()? == Value::Object
                    && !touches(scan, &steps.further)?;
                if !is_aside {
                    return Some(true);
                }
            }
        }
    }
    Some(false)
}

/// A number or word as the text that it counts as.
fn number(written: &str) -> Cow<'_, str> {
    if !written.contains(['.', 'e', 'E']) || written.starts_with(['t', 'f']) {
        return if written == "-0" { "0".into() } else { written.into() };
    }
    match written.parse::<f64>() {
        Ok(0.0) => "0".into(),
        // Up to here each integer has a double of its own.
        Ok(value) if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 => {
            format!("{value:.0}").into()
        }
        Ok(value) => match serde_json::Number::from_f64(value) {
            Some(number) => number.to_string().into(),
            // Beyond what a double holds.
            None => written.into(),
        },
        Err(_) => written.into(),
    }
}

#[cfg(test)]
mod tests;
