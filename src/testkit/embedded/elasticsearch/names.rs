//! Index names: validity, patterns, and auto-creation.

use crate::core::filter_path::fits;

/// Why `name` can not be an index's, in Elasticsearch's words.
pub(super) fn check(name: &str) -> Result<(), String> {
    if name.chars().any(char::is_uppercase) {
        return Err("must be lowercase".to_owned());
    }
    if name.starts_with(['_', '-', '+']) {
        return Err("must not start with '_', '-', or '+'".to_owned());
    }
    if name.contains([' ', '"', '*', ',', '/', '<', '>', '?', '\\', '|']) {
        return Err("must not contain the following characters [' ','\"','*',',','/','<','>','?','\\','|']"
            .to_owned());
    }
    if name.contains(['#', ':']) {
        return Err("must not contain '#' or ':'".to_owned());
    }
    if name.is_empty() || name == "." || name == ".." {
        return Err("must not be empty, '.' or '..'".to_owned());
    }
    if name.len() > 255 {
        return Err(format!("index name is too long, ({} > 255)", name.len()));
    }
    Ok(())
}

/// Whether a write may create the index `name` under the rule `action.auto_create_index`; else why not.
pub(super) fn auto_creates(rule: &str, name: &str) -> Result<(), String> {
    match rule {
        "true" => return Ok(()),
        "false" => return Err("is [false]".to_owned()),
        _ => {}
    }
    for pattern in rule.split(',').map(str::trim) {
        if let Some(forbidden) = pattern.strip_prefix('-') {
            if fits(forbidden, name) {
                return Err(format!("contains [{pattern}] which forbids automatic creation of the index"));
            }
        } else if fits(pattern.strip_prefix('+').unwrap_or(pattern), name) {
            return Ok(());
        }
    }
    Err(format!("([{rule}]) doesn't match"))
}
