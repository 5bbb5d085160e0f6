//! The members of a consumer group and their partitions, as the broker describes the group.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::Consumer;
use serde::Serialize;

use crate::io::kafka::PlainConsumer;

/// A member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupMember {
    /// Kafka's name of it.
    pub member_id: String,
    /// `kafka.client_id`.
    pub client_id: String,
    /// Where it connects from.
    pub host: String,
    /// Its partitions of the topic.
    pub partitions: Vec<i32>,
}

/// The description of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct GroupSeen {
    /// Kafka's name of its state: Stable, Empty, PreparingRebalance.
    pub state: String,
    /// Its members.
    pub members: Vec<GroupMember>,
}

/// Describes `group`; an error in librdkafka's words if the broker does not.
pub(super) fn describe(
    consumer: &PlainConsumer,
    group: &str,
    topic: &str,
    timeout: Duration,
) -> Result<GroupSeen, String> {
    let list = consumer.client().fetch_group_list(Some(group), timeout).map_err(|error| error.to_string())?;
    let Some(found) = list.groups().iter().find(|found| found.name() == group) else {
        return Err(format!("the brokers know no group {group}"));
    };
    if is_undescribed(found.state()) {
        return Err("it knows no classic group of this name".to_owned());
    }
    let members = found.members().iter().map(|member| {
        let assigned = member.assignment().and_then(assignment).unwrap_or_default();
        GroupMember {
            member_id: member.id().to_owned(),
            client_id: member.client_id().to_owned(),
            host: member.client_host().trim_start_matches('/').to_owned(),
            partitions: assigned.get(topic).cloned().unwrap_or_default(),
        }
    });
    let mut members: Vec<GroupMember> = members.collect();
    members.sort_by(|a, b| (&a.partitions, &a.member_id).cmp(&(&b.partitions, &b.member_id)));
    Ok(GroupSeen { state: found.state().to_owned(), members })
}

/// So a broker answers about a group of `group_protocol = "consumer"`, whatever its members, and about one that never was.
fn is_undescribed(state: &str) -> bool {
    state == "Dead"
}

/// Partitions by topic, of the consumer protocol's `ConsumerProtocolAssignment`; `None` for other bytes.
fn assignment(bytes: &[u8]) -> Option<BTreeMap<String, Vec<i32>>> {
    let mut rest = Bytes(bytes);
    rest.i16()?;
    let mut topics = BTreeMap::new();
    for _ in 0..rest.i32()? {
        let topic = rest.text()?;
        let count = rest.i32()?;
        let mut partitions = Vec::new();
        for _ in 0..count {
            partitions.push(rest.i32()?);
        }
        partitions.sort_unstable();
        topics.insert(topic, partitions);
    }
    Some(topics)
}

/// What is left to read. A count that is too large ends at the end of the bytes.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn i16(&mut self) -> Option<i16> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i16::from_be_bytes(*number))
    }

    fn i32(&mut self) -> Option<i32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i32::from_be_bytes(*number))
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.i16()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(topics: &[(&str, &[i32])]) -> Vec<u8> {
        let mut bytes = vec![0, 1];
        bytes.extend(i32::try_from(topics.len()).unwrap().to_be_bytes());
        for (topic, partitions) in topics {
            bytes.extend(i16::try_from(topic.len()).unwrap().to_be_bytes());
            bytes.extend(topic.as_bytes());
            bytes.extend(i32::try_from(partitions.len()).unwrap().to_be_bytes());
            partitions.iter().for_each(|partition| bytes.extend(partition.to_be_bytes()));
        }
        bytes.extend([0, 0, 0, 0]);
        bytes
    }

    #[test]
    fn group_of_the_other_protocol_is_not_taken_for_an_empty_one() {
        assert!(is_undescribed("Dead"));
        assert!(!["Stable", "Empty", "PreparingRebalance"].into_iter().any(is_undescribed));
    }

    #[test]
    fn assignment_is_read_and_cut_bytes_are_refused() {
        let bytes = encoded(&[("documents", &[3, 1]), ("others", &[])]);
        let read = assignment(&bytes).unwrap();
        assert_eq!(read["documents"], [1, 3]);
        assert!(read["others"].is_empty());
        let needed = bytes.len() - 4;
        assert!((0..needed).all(|end| assignment(&bytes[..end]).is_none()));
        assert!(assignment(&[0, 1, 127, 255, 255, 255, 0, 0]).is_none(), "a count without content");
        assert!(assignment(&[0, 1, 0, 0, 0, 1, 255, 255]).is_none(), "a negative length");
    }
}
