//! What one document contributes to the counts: the values of its facets.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prometheus::IntCounter;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

use super::increment::Delta;
use super::scan::{Scan, Value, unescaped};
use crate::config::{GEOSHARD_FACET, Tally};
use crate::ids::ShardId;

/// The values of a document's facets: names in order, and to each its distinct values in order, none without. A document that
/// is not there has none at all. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Facets(Option<Arc<[Facet]>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Facet {
    name: Arc<str>,
    values: Box<[Box<str>]>,
}

impl Facets {
    fn of(facets: Vec<Facet>) -> Self {
        Self((!facets.is_empty()).then(|| facets.into()))
    }

    /// Nothing is contributed.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Facet and value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.facets().iter().flat_map(|facet| facet.values.iter().map(|value| (&*facet.name, &**value)))
    }

    /// What the counts gain and lose by a document that had `before` and has these.
    pub fn delta_since(&self, before: &Self) -> Delta {
        let mut delta = Delta::default();
        let (mut now, mut then) = (self.iter().peekable(), before.iter().peekable());
        // Both are in order, and most of them are the same: only what differs costs more than a look.
        loop {
            let order = match (now.peek(), then.peek()) {
                (None, None) => return delta,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(new), Some(old)) => new.cmp(old),
            };
            let gained = if order.is_le() { now.next() } else { None };
            let lost = if order.is_ge() { then.next() } else { None };
            match (gained, lost) {
                (Some((facet, value)), None) => delta.add(facet, value, 1),
                (None, Some((facet, value))) => delta.add(facet, value, -1),
                _ => {}
            }
        }
    }

    /// Bytes that they hold, about.
    pub fn bytes(&self) -> usize {
        let of = |facet: &Facet| {
            let values = facet.values.iter().map(|value| size_of::<Box<str>>() + value.len());
            size_of::<Facet>() + values.sum::<usize>()
        };
        self.facets().iter().map(of).sum()
    }

    fn facets(&self) -> &[Facet] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl Serialize for Facets {
    /// `{"geoshard":["3"],"tags":["a","b"]}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.facets().iter().map(|facet| (&*facet.name, &facet.values)))
    }
}

impl<'de> Deserialize<'de> for Facets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let facets: BTreeMap<String, BTreeSet<Box<str>>> = Deserialize::deserialize(deserializer)?;
        let facets = facets.into_iter().filter(|(_, values)| !values.is_empty());
        Ok(Self::of(
            facets
                .map(|(name, values)| Facet { name: name.into(), values: values.into_iter().collect() })
                .collect(),
        ))
    }
}

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
    /// The name of the built-in one, if it is counted.
    geoshard: Option<Arc<str>>,
    limits: FacetLimits,
    left_out: Option<IntCounter>,
}

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
        let paths = facets.into_iter().map(|(name, path)| (name.into(), path.into())).collect();
        Self { paths, geoshard: geoshard.then(|| GEOSHARD_FACET.into()), limits, left_out: None }
    }

    /// What the configuration says to count; `None` if that is nothing.
    pub fn configured(tally: &Tally) -> Option<Self> {
        let facets = tally.facets.iter().map(|(name, path)| (name.as_str(), path.as_str()));
        let limits =
            FacetLimits { max_value_bytes: tally.max_value_bytes.as_usize(), max_values: tally.max_values };
        tally.is_on().then(|| Self::new(tally.geoshard, facets, limits))
    }

    /// The same, adding each value that is left out to `counter`.
    pub fn counting_left_out(self, counter: IntCounter) -> Self {
        Self { left_out: Some(counter), ..self }
    }

    /// What `document` contributes in `shard`. Its JSON was checked before; of anything that was not, this gives some facets or
    /// others, but the same each time.
    pub fn facets(&self, document: &[u8], shard: &ShardId) -> Facets {
        let mut found: SmallVec<[BTreeSet<Box<str>>; 8]> =
            self.paths.iter().map(|_| BTreeSet::new()).collect();
        if !self.paths.is_empty() {
            let mut scan = Scan::new(document);
            if scan.value() == Some(Value::Object) {
                // Nothing more is found after text that is no JSON.
                let _ = self.object(&mut scan, &self.ahead(), &mut found);
            }
        }
        let named = self.paths.iter().zip(found).filter(|(_, values)| !values.is_empty());
        let mut facets: Vec<Facet> = Vec::with_capacity(self.paths.len() + 1);
        facets.extend(
            named.map(|((name, _), values)| Facet {
                name: name.clone(),
                values: values.into_iter().collect(),
            }),
        );
        if let Some(name) = &self.geoshard {
            let place = facets.partition_point(|facet| *facet.name < **name);
            facets.insert(place, Facet { name: name.clone(), values: Box::new([shard.as_str().into()]) });
        }
        Facets::of(facets)
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
    fn object(
        &self,
        scan: &mut Scan<'_>,
        ahead: &[(usize, &str)],
        found: &mut [BTreeSet<Box<str>>],
    ) -> Option<()> {
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

    fn add(&self, scalar: Value<'_>, facets: &[usize], found: &mut [BTreeSet<Box<str>>]) {
        if facets.is_empty() || scalar == Value::Bare(b"null") {
            return;
        }
        let text = match scalar {
            Value::Text(written) => unescaped(written),
            Value::Bare(bare) => std::str::from_utf8(bare).ok().map(number),
            Value::Object | Value::Array => return,
        };
        let text = text.filter(|text| text.len() <= self.limits.max_value_bytes && !text.contains('\0'));
        let Some(text) = text else { return self.leave_out() };
        for &facet in facets {
            if found[facet].contains(&*text) {
                continue;
            }
            found[facet].insert(text.as_ref().into());
            if found[facet].len() > self.limits.max_values {
                found[facet].pop_last();
                self.leave_out();
            }
        }
    }

    fn leave_out(&self) {
        if let Some(counter) = &self.left_out {
            counter.inc();
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
fn steps<'p>(key: &[u8], ahead: &[(usize, &'p str)]) -> Option<Steps<'p>> {
    let key = unescaped(key)?;
    let mut steps = Steps { here: SmallVec::new(), further: SmallVec::new() };
    for &(facet, path) in ahead {
        match path.strip_prefix(&*key) {
            Some("") => steps.here.push(facet),
            Some(rest) => steps.further.extend(rest.strip_prefix('.').map(|rest| (facet, rest))),
            None => {}
        }
    }
    (!steps.here.is_empty() || !steps.further.is_empty()).then_some(steps)
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
fn number(written: &str) -> std::borrow::Cow<'_, str> {
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
