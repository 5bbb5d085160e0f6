//! Committed offsets: acknowledged, seen by others, and where the next member begins.

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::member::{Member, Protocol};
use super::{Broker, TIMEOUT, wait_for};
use crate::broker_cases;

broker_cases![
    a_commit_is_answered_and_others_can_see_it,
    the_next_member_begins_at_the_committed_offset_and_without_one_at_the_start,
    a_commit_can_go_back,
    commit_without_joining_is_refused,
];

/// What the group has committed, as `geofold check` and the demo ask for it: as no member.
fn committed(broker: &Broker, topic: &str, partitions: i32) -> Vec<Option<i64>> {
    let asker: BaseConsumer = broker.client().set("group.id", broker.name("group")).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, partitions - 1);
    let offsets = asker.committed_offsets(list, TIMEOUT).unwrap();
    let offset = |offset| if let Offset::Offset(offset) = offset { Some(offset) } else { None };
    offsets.elements().iter().map(|element| offset(element.offset())).collect()
}

fn a_commit_is_answered_and_others_can_see_it(broker: &Broker) {
    let topic = broker.create_topic(2);
    broker.produce_to_each(&topic, 2, 5);
    let member = Member::join(broker, &topic, Protocol::CooperativeSticky);
    member.wait_until_read(10);
    assert_eq!(committed(broker, &topic, 2), [None, None]);
    member.commit(&[(1, 3)]).unwrap();
    let answer = wait_for("an answer", || member.seen().commits.pop());
    assert_eq!(answer, Ok(vec![(1, 3)]));
    assert_eq!(committed(broker, &topic, 2), [None, Some(3)]);
}

fn the_next_member_begins_at_the_committed_offset_and_without_one_at_the_start(broker: &Broker) {
    let topic = broker.create_topic(2);
    broker.produce_to_each(&topic, 2, 5);
    let member = Member::join(broker, &topic, Protocol::Range);
    member.wait_until_read(10);
    member.commit(&[(0, 4)]).unwrap();
    wait_for("an answer", || member.seen().commits.pop()).unwrap();
    member.leave();
    let next = Member::join(broker, &topic, Protocol::Range);
    next.wait_until_read(6);
    let mut read: Vec<(i32, i64)> = next.seen().records.iter().map(|(p, offset, _)| (*p, *offset)).collect();
    read.sort_unstable();
    assert_eq!(read, [(0, 4), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]);
}

fn a_commit_can_go_back(broker: &Broker) {
    let topic = broker.create_topic(1);
    broker.produce_to_each(&topic, 1, 5);
    let member = Member::join(broker, &topic, Protocol::CooperativeSticky);
    member.wait_until_read(5);
    for offset in [4, 2] {
        member.commit(&[(0, offset)]).unwrap();
        wait_for("an answer", || member.seen().commits.pop()).unwrap();
        assert_eq!(committed(broker, &topic, 1), [Some(offset)]);
    }
}

fn commit_without_joining_is_refused(broker: &Broker) {
    let topic = broker.create_topic(1);
    let member = Member::join(broker, &topic, Protocol::CooperativeSticky);
    member.wait_until_owns(1);
    let stranger: BaseConsumer = broker.client().set("group.id", broker.name("group")).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&topic, 0, Offset::Offset(1)).unwrap();
    let refused = stranger.commit(&list, rdkafka::consumer::CommitMode::Sync);
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(committed(broker, &topic, 1), [None]);
}
