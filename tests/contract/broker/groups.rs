//! Which member owns which partitions, and the callbacks when that changes.

use super::member::{Member, Protocol, Victim};
use super::{Broker, wait_for};
use crate::broker_cases;

broker_cases![
    members_share_by_range_and_give_everything_back_first,
    members_share_cooperatively_and_give_back_only_what_moves,
    members_share_by_the_consumer_protocol_and_give_back_only_what_moves,
    uncommitted_records_of_a_killed_range_member_are_read_again,
    uncommitted_records_of_a_killed_cooperative_member_are_read_again,
];

const PARTITIONS: usize = 4;

/// Two come, one goes. Gives how many partitions the first had to give back when the second came.
fn come_and_go(broker: &Broker, protocol: Protocol) -> usize {
    let topic = broker.create_topic(4);
    let first = Member::join(broker, &topic, protocol);
    first.wait_until_owns(PARTITIONS);
    assert_eq!(first.seen().revoked, Vec::<Vec<i32>>::new());
    let second = Member::join(broker, &topic, protocol);
    wait_for("an even share", || (first.owns() == 2 && second.owns() == 2).then_some(()));
    let owned_twice = first.seen().assigned.intersection(&second.seen().assigned).count();
    assert_eq!(owned_twice, 0);
    let given_back = first.seen().revoked.iter().map(Vec::len).max().unwrap();
    second.leave();
    first.wait_until_owns(PARTITIONS);
    given_back
}

fn members_share_by_range_and_give_everything_back_first(broker: &Broker) {
    assert_eq!(come_and_go(broker, Protocol::Range), PARTITIONS);
}

fn members_share_cooperatively_and_give_back_only_what_moves(broker: &Broker) {
    assert_eq!(come_and_go(broker, Protocol::CooperativeSticky), 2);
}

fn members_share_by_the_consumer_protocol_and_give_back_only_what_moves(broker: &Broker) {
    assert_eq!(come_and_go(broker, Protocol::Consumer), 2);
}

fn killed(broker: &Broker, protocol: Protocol) {
    let topic = broker.create_topic(2);
    broker.produce_to_each(&topic, 2, 10);
    Victim::start(broker, &topic, protocol).kill_after_reading();
    let next = Member::join(broker, &topic, protocol);
    next.wait_until_read(20);
    let mut records = next.seen().records.clone();
    records.sort_unstable();
    let expected: Vec<(i32, i64, String)> =
        (0..2).flat_map(|p| (0..10).map(move |n| (p, n, format!("{p}-{n}")))).collect();
    assert_eq!(records, expected);
}

fn uncommitted_records_of_a_killed_range_member_are_read_again(broker: &Broker) {
    killed(broker, Protocol::Range);
}

fn uncommitted_records_of_a_killed_cooperative_member_are_read_again(broker: &Broker) {
    killed(broker, Protocol::CooperativeSticky);
}
