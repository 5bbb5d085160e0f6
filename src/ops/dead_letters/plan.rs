//! Which letters may be sent again. Pure.
//!
//! A record that is produced again gets a new position, above all others: an old write would overwrite newer ones. So a letter is sent
//! only if its document has no newer write, in the topic or in the index. Writes that became dead letters themselves do not count if
//! they are sent in the same run, in order.

use std::collections::HashMap;

use bytes::Bytes;
use serde::Serialize;

use super::letter::{LetterPlace, LetterSeen};

/// What is known of the writes of a key in its source partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KeyWrites {
    /// The last record that is not a touch, without those that are letters of this run.
    pub last: Option<i64>,
    /// The newest position in the index, as an offset of this epoch, without those that are letters of this run.
    pub index: Option<i64>,
    /// The index has a position of a later epoch.
    pub later_epoch: bool,
}

/// What is known of a source partition after it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PartitionRead {
    /// Its first offset.
    pub begin: i64,
    /// Where it ended.
    pub end: i64,
    /// Everything from the first letter's record to the end was read.
    pub is_complete: bool,
    /// Offsets were missing: compaction took records, or there are transaction markers.
    pub has_gaps: bool,
}

/// What happens to a letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum ReplayDecision {
    /// It is sent.
    Send,
    /// A newer write of the document is in the topic or in the index.
    Obsolete {
        /// Its offset.
        newer: i64,
    },
    /// A later letter of this run replaces the document.
    ReplacedBy {
        /// That letter.
        letter: LetterPlace,
    },
    /// Whether there is a newer write cannot be known.
    NotKnown {
        /// Why not, and what to do.
        why: &'static str,
    },
    /// It cannot be sent.
    Impossible {
        /// Why not.
        why: &'static str,
    },
}

/// What the decision about a letter depends on beside its key and partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplayRules<'a> {
    /// The configured topic.
    pub topic: &'a str,
    /// Letters made before that are older than deletes are remembered.
    pub remembered_since_ms: i64,
    /// Send what cannot be known.
    pub force: bool,
}

/// The key of a letter's document in its partition.
pub(super) type PartitionKey = (i32, Bytes);

/// A decision for each letter; they are in the order of their records.
pub(super) fn plan(
    letters: &[LetterSeen],
    writes: &HashMap<PartitionKey, KeyWrites>,
    reads: &HashMap<i32, PartitionRead>,
    rules: ReplayRules<'_>,
) -> Vec<ReplayDecision> {
    let mut later = Later::default();
    let mut decisions: Vec<ReplayDecision> = letters
        .iter()
        .rev()
        .map(|letter| {
            let decision = decide(letter, writes, reads, rules, &later);
            if let (Some(key), Some(origin)) = (partition_key(letter), &letter.origin) {
                match decision {
                    ReplayDecision::Send if letter.is_whole() => drop(later.whole.insert(key, letter.place)),
                    ReplayDecision::NotKnown { .. } | ReplayDecision::Impossible { .. } => {
                        later.unsent.entry(key).or_insert(origin.last_offset);
                    }
                    _ => {}
                }
            }
            decision
        })
        .collect();
    decisions.reverse();
    decisions
}

/// Later letters of the same documents.
#[derive(Default)]
struct Later {
    /// Sent, and the whole document.
    whole: HashMap<PartitionKey, LetterPlace>,
    /// Not sent, with the offset of the record: a newer write, although it was never applied.
    unsent: HashMap<PartitionKey, i64>,
}

/// The partition and key of a letter's record.
pub(super) fn partition_key(letter: &LetterSeen) -> Option<PartitionKey> {
    Some((letter.origin.as_ref()?.partition, letter.key.clone()?))
}

fn decide(
    letter: &LetterSeen,
    writes: &HashMap<PartitionKey, KeyWrites>,
    reads: &HashMap<i32, PartitionRead>,
    rules: ReplayRules<'_>,
    later: &Later,
) -> ReplayDecision {
    let impossible = |why| ReplayDecision::Impossible { why };
    let Some(origin) = &letter.origin else {
        return impossible("it has no headers of geofold: not a dead letter");
    };
    if origin.topic != rules.topic {
        return impossible("its record is from another topic than kafka.topic");
    }
    if letter.key_left_out.is_some() || letter.value_left_out.is_some() {
        return impossible(
            "its key or value was left out, and the record is no longer in the topic: write the document again",
        );
    }
    let Some(key) = partition_key(letter) else { return impossible("its record has no key: no document") };
    let Some(read) = reads.get(&origin.partition) else {
        return impossible("kafka.topic has no such partition: it was created anew");
    };
    if origin.last_offset >= read.end {
        return impossible("kafka.topic ends below its offset: it was created anew");
    }
    let writes = writes.get(&key).cloned().unwrap_or_default();
    if writes.later_epoch {
        return impossible("its document was written in a later epoch");
    }
    let unsent = later.unsent.get(&key).copied();
    let newer = writes
        .last
        .into_iter()
        .chain(writes.index)
        .chain(unsent)
        .filter(|offset| *offset > origin.last_offset)
        .max();
    if let Some(newer) = newer {
        return ReplayDecision::Obsolete { newer };
    }
    if let Some(letter) = later.whole.get(&key) {
        return ReplayDecision::ReplacedBy { letter: *letter };
    }
    if rules.force {
        return ReplayDecision::Send;
    }
    if !read.is_complete {
        return ReplayDecision::NotKnown {
            why: "the topic was not read to its end: raise --max-records or --max-time",
        };
    }
    let lost_records = read.begin > origin.last_offset + 1 || read.has_gaps;
    let is_old = letter.time_ms.is_none_or(|time| time < rules.remembered_since_ms);
    if lost_records && is_old {
        return ReplayDecision::NotKnown {
            why: "it is older than placements.deleted_retention and the topic lacks records since: a delete may be forgotten; --force sends it",
        };
    }
    ReplayDecision::Send
}

#[cfg(test)]
mod tests {
    use super::super::letter::tests::letter;
    use super::*;

    const RULES: ReplayRules<'_> = ReplayRules { topic: "t", remembered_since_ms: 0, force: false };

    fn decided(
        letters: &[LetterSeen],
        writes: KeyWrites,
        read: PartitionRead,
        rules: ReplayRules<'_>,
    ) -> Vec<ReplayDecision> {
        let keys = letters.iter().filter_map(partition_key);
        let writes = keys.map(|key| (key, writes.clone())).collect();
        plan(letters, &writes, &HashMap::from([(3, read)]), rules)
    }

    const READ: PartitionRead = PartitionRead { begin: 0, end: 100, is_complete: true, has_gaps: false };

    #[test]
    fn letter_is_sent_only_without_a_newer_write() {
        let letters = [letter(0, 41, "a", &[])];
        let one = |writes, read, rules| decided(&letters, writes, read, rules).remove(0);
        let none = KeyWrites::default;
        assert_eq!(one(none(), READ, RULES), ReplayDecision::Send);
        assert_eq!(
            one(KeyWrites { last: Some(41), index: Some(41), ..none() }, READ, RULES),
            ReplayDecision::Send
        );
        assert_eq!(
            one(KeyWrites { last: Some(42), ..none() }, READ, RULES),
            ReplayDecision::Obsolete { newer: 42 }
        );
        assert_eq!(
            one(KeyWrites { index: Some(50), ..none() }, READ, RULES),
            ReplayDecision::Obsolete { newer: 50 }
        );
        let force = ReplayRules { force: true, ..RULES };
        assert_eq!(
            one(KeyWrites { last: Some(42), ..none() }, READ, force),
            ReplayDecision::Obsolete { newer: 42 }
        );
        let unread = PartitionRead { is_complete: false, ..READ };
        assert!(matches!(one(none(), unread, RULES), ReplayDecision::NotKnown { .. }));
        assert_eq!(one(none(), unread, force), ReplayDecision::Send);
        let gaps = PartitionRead { has_gaps: true, ..READ };
        assert_eq!(one(none(), gaps, RULES), ReplayDecision::Send, "deletes since are still remembered");
        let old = ReplayRules { remembered_since_ms: i64::MAX, ..RULES };
        assert_eq!(one(none(), READ, old), ReplayDecision::Send, "the topic has everything since");
        assert!(matches!(one(none(), gaps, old), ReplayDecision::NotKnown { .. }));
        let retained = PartitionRead { begin: 43, ..READ };
        assert!(matches!(one(none(), retained, old), ReplayDecision::NotKnown { .. }));
        let anew = PartitionRead { end: 41, ..READ };
        assert!(matches!(one(none(), anew, force), ReplayDecision::Impossible { .. }));
        assert!(matches!(
            one(KeyWrites { later_epoch: true, ..none() }, READ, force),
            ReplayDecision::Impossible { .. }
        ));
        let other = ReplayRules { topic: "u", ..RULES };
        assert!(matches!(one(none(), READ, other), ReplayDecision::Impossible { .. }));
    }

    #[test]
    fn later_whole_letter_replaces_earlier_ones_of_its_document() {
        let patch = &[("geofold-op", "patch")];
        let letters = [
            letter(0, 41, "a", &[]),
            letter(1, 42, "b", &[]),
            letter(2, 43, "a", &[]),
            letter(3, 44, "a", patch),
        ];
        let place = |text: &str| text.parse().unwrap();
        assert_eq!(
            decided(&letters, KeyWrites::default(), READ, RULES),
            [
                ReplayDecision::ReplacedBy { letter: place("0/2") },
                ReplayDecision::Send,
                ReplayDecision::Send,
                ReplayDecision::Send
            ]
        );
        let newer = KeyWrites { last: Some(42), ..KeyWrites::default() };
        let after_the_first = decided(&letters[..1], newer, READ, RULES);
        assert_eq!(after_the_first, [ReplayDecision::Obsolete { newer: 42 }]);
    }

    #[test]
    fn letters_without_their_content_are_not_sent() {
        let left_out = letter(0, 41, "a", &[("geofold-value-left-out", "9")]);
        let decisions = decided(&[left_out], KeyWrites::default(), READ, RULES);
        assert!(matches!(decisions[..], [ReplayDecision::Impossible { .. }]), "{decisions:?}");
    }

    #[test]
    fn letter_that_cannot_be_sent_counts_as_a_newer_write() {
        let letters = [letter(0, 41, "a", &[]), letter(1, 43, "a", &[("geofold-value-left-out", "9")])];
        let decisions = decided(&letters, KeyWrites::default(), READ, RULES);
        assert_eq!(decisions[0], ReplayDecision::Obsolete { newer: 43 });
    }
}
