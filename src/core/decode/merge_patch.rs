//! RFC 7386 merge patches on bytes.
//!
//! [`apply`] merges member by member and descends only where the patch has an object, so members that a patch does not
//! mention keep their bytes. [`compose`] makes one patch of two if that is exact on *any* document. It is not where an
//! object follows a non-object: `{"x":5}` then `{"x":{"y":1}}` gives `{"x":{"y":1}}` whatever `x` held before, and no
//! single patch can do that, since it cannot name members it does not know.

use bytes::Bytes;

use super::object::{BadObject, Object, is_null, is_object, text};

/// Deeper nesting of objects is refused. Elasticsearch's default is 20 (`index.mapping.depth.limit`); the limit
/// protects the stack from recursion.
pub const MAX_DEPTH: usize = 128;

/// Checks that `patch` is a JSON object that [`apply`] and [`compose`] accept: no duplicate key at any level they may
/// descend to, and at most [`MAX_DEPTH`] levels.
pub fn check(patch: &[u8]) -> Result<(), BadObject> {
    check_level(text(patch)?, 1)
}

fn check_level(patch: &str, depth: usize) -> Result<(), BadObject> {
    let patch = object_at(patch, depth)?;
    patch
        .members
        .iter()
        .filter(|member| is_object(member.value))
        .try_for_each(|member| check_level(member.value, depth + 1))
}

/// The document that `patch` makes of `base`, or of nothing: an object without white space between the members that the
/// patch reached, in the order of `base`, new members last.
///
/// # Errors
/// If one is not a JSON object, has a duplicate key where the patch descends, or the patch is nested deeper than
/// [`MAX_DEPTH`].
pub fn apply(base: Option<&[u8]>, patch: &[u8]) -> Result<Bytes, BadObject> {
    let base = base.map(text).transpose()?;
    let patch = text(patch)?;
    let mut merged = String::with_capacity(base.map_or(0, str::len) + patch.len());
    apply_level(&mut merged, base, patch, 1)?;
    Ok(merged.into())
}

fn apply_level(merged: &mut String, base: Option<&str>, patch: &str, depth: usize) -> Result<(), BadObject> {
    let patch = object_at(patch, depth)?;
    let base = base.map(Object::parse).transpose()?.unwrap_or_default();
    let mut writer = ObjectWriter::open(merged);
    for member in &base.members {
        match patch.get(&member.key) {
            None => writer.value(member.raw_key).push_str(member.value),
            Some(change) if is_null(change) => {}
            Some(change) if is_object(change) => {
                let below = is_object(member.value).then_some(member.value);
                apply_level(writer.value(member.raw_key), below, change, depth + 1)?;
            }
            Some(change) => writer.value(member.raw_key).push_str(change),
        }
    }
    for change in patch.members.iter().filter(|change| !base.contains(&change.key) && !is_null(change.value))
    {
        let value = writer.value(change.raw_key);
        if is_object(change.value) {
            // Not copied as it is: nulls inside would become members.
            apply_level(value, None, change.value, depth + 1)?;
        } else {
            value.push_str(change.value);
        }
    }
    writer.close();
    Ok(())
}

/// The single patch with the effect of `first` and then `second` on any document; `None` if there is none, or if one
/// fails [`check`].
pub fn compose(first: &[u8], second: &[u8]) -> Option<Bytes> {
    let (first, second) = (text(first).ok()?, text(second).ok()?);
    let mut composed = String::with_capacity(first.len() + second.len());
    compose_level(&mut composed, first, second, 1)?;
    Some(composed.into())
}

fn compose_level(composed: &mut String, first: &str, second: &str, depth: usize) -> Option<()> {
    let first = object_at(first, depth).ok()?;
    let second = object_at(second, depth).ok()?;
    let mut writer = ObjectWriter::open(composed);
    for earlier in &first.members {
        let value = writer.value(earlier.raw_key);
        match second.get(&earlier.key) {
            None => value.push_str(earlier.value),
            Some(later) if !is_object(later) => value.push_str(later),
            Some(later) if is_object(earlier.value) => compose_level(value, earlier.value, later, depth + 1)?,
            Some(_) => return None,
        }
    }
    for later in second.members.iter().filter(|later| !first.contains(&later.key)) {
        writer.value(later.raw_key).push_str(later.value);
    }
    writer.close();
    Some(())
}

fn object_at(text: &str, depth: usize) -> Result<Object<'_>, BadObject> {
    if depth > MAX_DEPTH {
        return Err(BadObject::TooDeep(MAX_DEPTH));
    }
    Object::parse(text)
}

/// Writes the commas between members.
struct ObjectWriter<'a> {
    out: &'a mut String,
    is_empty: bool,
}

impl<'a> ObjectWriter<'a> {
    fn open(out: &'a mut String) -> Self {
        out.push('{');
        Self { out, is_empty: true }
    }

    /// Begins a member; the caller writes its value to the returned string.
    fn value(&mut self, raw_key: &str) -> &mut String {
        if !self.is_empty {
            self.out.push(',');
        }
        self.is_empty = false;
        self.out.push_str(raw_key);
        self.out.push(':');
        self.out
    }

    fn close(self) {
        self.out.push('}');
    }
}

/// RFC 7386, section 2, literally: the reference for the tests.
#[cfg(test)]
pub(crate) fn reference(target: Option<serde_json::Value>, patch: &serde_json::Value) -> serde_json::Value {
    use serde_json::Value;

    let Value::Object(patch) = patch else { return patch.clone() };
    let mut target = match target {
        Some(Value::Object(target)) => target,
        _ => serde_json::Map::new(),
    };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            let merged = reference(target.remove(name), value);
            target.insert(name.clone(), merged);
        }
    }
    Value::Object(target)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn applied(base: &str, patch: &str) -> String {
        String::from_utf8(apply(Some(base.as_bytes()), patch.as_bytes()).unwrap().to_vec()).unwrap()
    }

    fn composed(first: &str, second: &str) -> Option<String> {
        let composed = compose(first.as_bytes(), second.as_bytes())?;
        Some(String::from_utf8(composed.to_vec()).unwrap())
    }

    #[test]
    fn rfc_7386_examples_that_start_from_objects_match() {
        for (base, patch, result) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, r#"{}"#),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            (r#"{}"#, r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ] {
            assert_eq!(applied(base, patch), result, "{base} + {patch}");
        }
    }

    #[test]
    fn unmentioned_members_keep_their_bytes_and_place() {
        assert_eq!(
            applied(
                r#"{ "price": 1.10, "caf\u00e9": 12345678901234567890123, "n": {"a": 1e2, "b": [ 1 , 2 ]}, "z": 0 }"#,
                r#"{"new":-0.0,"n":{"a":null},"z":1.50}"#
            ),
            r#"{"price":1.10,"caf\u00e9":12345678901234567890123,"n":{"b":[ 1 , 2 ]},"z":1.50,"new":-0.0}"#
        );
    }

    #[test]
    fn empty_object_in_a_patch_replaces_any_non_object() {
        assert_eq!(applied(r#"{}"#, r#"{"x":{}}"#), r#"{"x":{}}"#);
        assert_eq!(applied(r#"{"x":5}"#, r#"{"x":{}}"#), r#"{"x":{}}"#);
        assert_eq!(applied(r#"{"x":{"y":1}}"#, r#"{"x":{}}"#), r#"{"x":{"y":1}}"#);
    }

    #[test]
    fn patch_of_nothing_is_the_patch_without_its_nulls() {
        let patch = br#"{"a":null,"b":{"c":null,"d":[null]}}"#;
        assert_eq!(apply(None, patch).unwrap(), r#"{"b":{"d":[null]}}"#);
    }

    #[test]
    fn duplicate_key_is_refused_in_patch_and_document() {
        assert!(matches!(apply(Some(b"{}"), br#"{"a":1,"a":2}"#), Err(BadObject::DuplicateKey(_))));
        assert!(matches!(apply(Some(br#"{"a":1,"a":2}"#), b"{}"), Err(BadObject::DuplicateKey(_))));
        assert!(matches!(check(br#"{"x":{"a":1,"a":2}}"#), Err(BadObject::DuplicateKey(_))));
        assert!(compose(br#"{"a":1,"a":2}"#, b"{}").is_none());
    }

    #[test]
    fn too_deep_patch_is_refused_everywhere() {
        let nested = |depth: usize| r#"{"a":"#.repeat(depth - 1) + "{}" + &"}".repeat(depth - 1);
        let (deepest, too_deep) = (nested(MAX_DEPTH), nested(MAX_DEPTH + 1));
        assert!(check(deepest.as_bytes()).is_ok());
        assert_eq!(applied(&deepest, &deepest), deepest);
        assert_eq!(composed(&deepest, &deepest), Some(deepest));
        assert!(matches!(check(too_deep.as_bytes()), Err(BadObject::TooDeep(_))));
        assert!(matches!(apply(None, too_deep.as_bytes()), Err(BadObject::TooDeep(_))));
        assert_eq!(composed(&too_deep, &too_deep), None);
        // A document may be deeper if the patch stays above.
        assert!(apply(Some(nested(5_000).as_bytes()), br#"{"b":1}"#).is_ok());
    }

    #[test]
    fn composition_merges_objects_and_keeps_the_later_value() {
        assert_eq!(composed(r#"{"x":5}"#, r#"{"x":null}"#).unwrap(), r#"{"x":null}"#);
        assert_eq!(composed(r#"{"x":{"a":1}}"#, r#"{"x":[2]}"#).unwrap(), r#"{"x":[2]}"#);
        assert_eq!(composed(r#"{}"#, r#"{"x":{"a":null}}"#).unwrap(), r#"{"x":{"a":null}}"#);
        assert_eq!(
            composed(r#"{"x":{"a":1,"b":2}}"#, r#"{"x":{"b":null,"c":3}}"#).unwrap(),
            r#"{"x":{"a":1,"b":null,"c":3}}"#
        );
        for first in ["5", "null", "[1]"] {
            assert_eq!(composed(&format!(r#"{{"x":{first}}}"#), r#"{"x":{"y":1}}"#), None, "{first}");
        }
    }

    /// All objects over two keys, two levels deep, with every kind of leaf that matters to a merge.
    fn small_patches() -> Vec<Value> {
        let objects_over = |values: &[Option<Value>]| {
            let mut objects = Vec::new();
            for a in values {
                for b in values {
                    let members = [("a", a), ("b", b)];
                    let members =
                        members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
                    objects.push(Value::Object(Map::from_iter(members)));
                }
            }
            objects
        };
        let leaves = [None, Some(Value::Null), Some(json!(1))];
        let inner = objects_over(&leaves).into_iter().map(Some);
        objects_over(&leaves.iter().cloned().chain(inner).collect::<Vec<_>>())
    }

    /// Composition is exact wherever it exists, and exists wherever a single patch suffices.
    #[test]
    fn patches_compose_exactly_iff_a_single_patch_suffices() {
        let patches = small_patches();
        let bases: Vec<Value> =
            ["{}", r#"{"a":1,"z":2}"#, r#"{"a":{"a":3,"z":4},"b":{"b":{"z":5},"z":6}}"#, r#"{"b":7}"#]
                .iter()
                .map(|base| serde_json::from_str(base).unwrap())
                .collect();
        let effect = |chain: &[&Value]| -> String {
            let step = |base: Value, patch: &&Value| reference(Some(base), patch);
            bases.iter().map(|base| chain.iter().fold(base.clone(), step).to_string()).collect()
        };
        let effects_of_one: HashSet<String> = patches.iter().map(|patch| effect(&[patch])).collect();
        let (mut exact, mut impossible) = (0, 0);
        for first in &patches {
            for second in patches.iter().step_by(3) {
                let both = effect(&[first, second]);
                match composed(&first.to_string(), &second.to_string()) {
                    Some(composed) => {
                        exact += 1;
                        let composed: Value = serde_json::from_str(&composed).unwrap();
                        assert_eq!(effect(&[&composed]), both, "{first} then {second} is not {composed}");
                    }
                    None => {
                        impossible += 1;
                        assert!(!effects_of_one.contains(&both), "{first} then {second} could be composed");
                    }
                }
            }
        }
        assert!(exact > 2_000 && impossible > 1_000, "{exact} {impossible}");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            Just(json!(1)),
            Just(json!("s")),
            Just(json!([null, {"a": null}]))
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop::collection::btree_map("[abc]", inner, 0..4)
                .prop_map(|members| Value::Object(Map::from_iter(members)))
        })
    }

    fn any_object() -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[abc]", any_value(), 0..4)
            .prop_map(|members| Value::Object(Map::from_iter(members)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn apply_and_compose_agree_with_the_rfc(base in any_object(), first in any_object(), second in any_object()) {
            let (base_text, first_text, second_text) = (base.to_string(), first.to_string(), second.to_string());
            let once: Value = serde_json::from_str(&applied(&base_text, &first_text)).unwrap();
            prop_assert_eq!(&once, &reference(Some(base), &first));
            let twice: Value = serde_json::from_str(&applied(&once.to_string(), &second_text)).unwrap();
            if let Some(composed) = composed(&first_text, &second_text) {
                let at_once: Value = serde_json::from_str(&applied(&base_text, &composed)).unwrap();
                prop_assert_eq!(at_once, twice);
            }
        }

        #[test]
        fn a_patch_applied_again_changes_nothing(base in any_object(), patch in any_object()) {
            let once = applied(&base.to_string(), &patch.to_string());
            prop_assert_eq!(applied(&once, &patch.to_string()), once);
        }
    }
}
