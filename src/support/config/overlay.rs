//! What the environment changes: `GEOFOLD_…` variables that override keys, and `${NAME}` in the file's values.
//!
//! Everything here is pure; the environment comes in as a map. No message quotes a text, which may be a secret; only what should
//! be a number, a switch or a list.

use std::collections::BTreeMap;

use toml::Value;

use super::keys::{Keys, LIBRDKAFKA};

const VARIABLE_PREFIX: &str = "GEOFOLD_";
const LEVEL: &str = "__";

/// The key that a variable overrides: `GEOFOLD_KAFKA__TOPIC` is `kafka.topic`, and
/// `GEOFOLD_KAFKA__PROPERTIES__FETCH_MIN_BYTES` is `fetch.min.bytes` of `[kafka.properties]`. `None` for variables that
/// override nothing: those without `__` are for other uses.
pub(super) fn overridden_key(variable: &str) -> Option<String> {
    let path = variable.strip_prefix(VARIABLE_PREFIX)?;
    if !path.contains(LEVEL) {
        return None;
    }
    let key = path.to_ascii_lowercase().replace(LEVEL, ".");
    for table in LIBRDKAFKA {
        if let Some(setting) = key.strip_prefix(table) {
            return Some(format!("{table}{}", setting.replace('_', ".")));
        }
    }
    Some(key)
}

/// The variable that overrides a key; the inverse of [`overridden_key`].
pub(super) fn variable_for(key: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", key.replace('.', LEVEL).to_ascii_uppercase())
}

/// Reads an override's text as the type that its key has.
pub(super) fn parse_override(keys: &Keys, key: &str, text: &str) -> Result<Value, String> {
    let (wanted, expected) = match keys.example(key) {
        Some(Value::Array(_)) if !text.trim_start().starts_with('[') => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            return Ok(Value::Array(items.map(|item| Value::String(item.to_owned())).collect()));
        }
        Some(Value::Array(_)) => ("array", "a list like [\"a\", \"b\"], or a,b"),
        Some(Value::Integer(_)) => ("integer", "a whole number"),
        Some(Value::Float(_)) => ("float", "a number like 0.5"),
        Some(Value::Boolean(_)) => ("boolean", "true or false"),
        _ => return Ok(Value::String(text.to_owned())),
    };
    text.trim()
        .parse::<Value>()
        .ok()
        .filter(|value| value.type_str() == wanted)
        .ok_or_else(|| format!("{:?} is not {expected}", shortened(text)))
}

/// The start of a value, for a message. Keys of these types hold no secret.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 40;
    text.chars().take(SHOWN).collect()
}

/// Replaces `${NAME}` in all strings of a value; `$${` stands for `${`.
pub(super) fn expand(value: &mut Value, env: &BTreeMap<String, String>) -> Result<(), String> {
    match value {
        Value::String(text) => *text = expand_text(text, env)?,
        Value::Array(items) => {
            for item in items {
                expand(item, env)?;
            }
        }
        Value::Table(table) => {
            for (_, item) in table.iter_mut() {
                expand(item, env)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn expand_text(text: &str, env: &BTreeMap<String, String>) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, reference) = rest.split_at(at);
        rest = &reference[2..];
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            continue;
        }
        expanded.push_str(before);
        let (name, after) = rest.split_once('}').ok_or("a ${ has no closing }; write $${ for a plain ${")?;
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if name.is_empty() || !name.bytes().all(legal) {
            // Not quoted: without its closing brace, the rest of a secret may stand here.
            return Err("${…} holds no variable's name; write $${ for a plain ${".to_owned());
        }
        let value = env.get(name).ok_or_else(|| {
            format!(
                "the environment variable {name} is not set; set it, or write $${{{name}}} for the plain text"
            )
        })?;
        expanded.push_str(value);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_variable_and_every_variable_its_key() {
        for key in Keys::new().iter() {
            assert_eq!(overridden_key(&variable_for(key)).as_deref(), Some(key));
        }
        assert_eq!(variable_for("dead_letter.topic"), "GEOFOLD_DEAD_LETTER__TOPIC");
        assert_eq!(
            overridden_key("GEOFOLD_KAFKA__PROPERTIES__FETCH_MIN_BYTES").as_deref(),
            Some("kafka.properties.fetch.min.bytes")
        );
        assert_eq!(overridden_key("GEOFOLD_STACK_DIR"), None);
        assert_eq!(overridden_key("HOME__DIR"), None);
    }

    #[test]
    fn an_override_is_read_as_the_type_of_its_key() {
        let keys = Keys::new();
        let list = |items: &[&str]| Value::Array(items.iter().map(|item| Value::from(*item)).collect());
        for (key, text, value) in [
            ("kafka.topic", "123", Value::from("123")),
            ("kafka.properties.fetch.min.bytes", "1", Value::from("1")),
            ("memory.cached_placements", "1_000", Value::from(1000)),
            ("memory.total", "1048576", Value::from("1048576")),
            ("kafka.brokers", "a:1, b:2,", list(&["a:1", "b:2"])),
            ("kafka.brokers", r#"["a:1"]"#, list(&["a:1"])),
        ] {
            assert_eq!(parse_override(&keys, key, text), Ok(value), "{key}");
        }
        assert!(parse_override(&keys, "positions.epoch", "two").unwrap_err().contains("whole number"));
        assert!(parse_override(&keys, "kafka.brokers", "[a").unwrap_err().contains("list"));
    }

    #[test]
    fn references_are_replaced_and_can_be_escaped() {
        let env =
            BTreeMap::from([("HOST".to_owned(), "db".to_owned()), ("NEST".to_owned(), "${HOST}".to_owned())]);
        for (text, expected) in [
            ("", ""),
            ("$5 {x}", "$5 {x}"),
            ("${HOST}:9092", "db:9092"),
            ("${HOST}${HOST}", "dbdb"),
            ("$${HOST} ${HOST}", "${HOST} db"),
            ("${NEST}", "${HOST}"),
        ] {
            assert_eq!(expand_text(text, &env).as_deref(), Ok(expected), "{text}");
        }
        assert!(expand_text("${NOWHERE}", &env).unwrap_err().contains("NOWHERE"));
        assert!(expand_text("${HOST", &env).is_err());
        assert!(!expand_text("pre${hunter2 x}", &env).unwrap_err().contains("hunter2"));
    }
}
