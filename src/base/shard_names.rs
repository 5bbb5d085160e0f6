//! The names of geoshards that this process knows. Each is kept once and for good: they are few, and a batch copies and compares
//! them thousands of times. Counted references would make CPUs wait for each other, or for their own stores.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use ahash::RandomState;

/// Above the number of geoshards that any process meets. At their longest, names take 10 MiB.
const MOST_NAMES: usize = 1 << 17;

/// A name that is kept for good. A reference to a text takes two words, a reference to that one, and each cached placement has such an
/// id.
pub(super) type KeptName = &'static &'static str;

type Names = HashMap<&'static str, KeptName, RandomState>;

static NAMES: Mutex<Option<Names>> = Mutex::new(None);

thread_local! {
    /// Names that this thread has asked for: partitions share no lock while they read placements.
    static SEEN: RefCell<Names> = RefCell::default();
}

/// The one copy of `name`; `None` if there are too many names.
pub(super) fn interned(name: &str) -> Option<KeptName> {
    SEEN.with_borrow_mut(|seen| match seen.get(name) {
        Some(&known) => Some(known),
        None => {
            let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
            let known = kept(names.get_or_insert_default(), name, MOST_NAMES)?;
            seen.insert(known, known);
            Some(known)
        }
    })
}

fn kept(names: &mut Names, name: &str, at_most: usize) -> Option<KeptName> {
    if let Some(&known) = names.get(name) {
        return Some(known);
    }
    if names.len() >= at_most {
        return None;
    }
    let text: &'static str = Box::leak(name.into());
    let known: KeptName = Box::leak(Box::new(text));
    names.insert(text, known);
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_one_copy_in_all_threads() {
        let here = interned("interned-name").unwrap();
        let name = String::from("interned-name");
        let there = std::thread::spawn(move || interned(&name).unwrap()).join().unwrap();
        assert_eq!(*here, "interned-name");
        assert!(std::ptr::eq(here, there) && std::ptr::eq(here, interned("interned-name").unwrap()));
        assert_ne!(here, interned("interned-name-2").unwrap());
    }

    #[test]
    fn number_of_names_is_bounded() {
        let mut names = Names::default();
        let kept: Vec<_> = ["a", "b", "c", "a"].map(|name| kept(&mut names, name, 2)).into();
        assert_eq!(kept, [Some(&"a"), Some(&"b"), None, Some(&"a")]);
    }
}
