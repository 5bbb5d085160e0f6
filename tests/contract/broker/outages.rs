//! The broker goes away and comes back. Last, since a real one is everybody's.

use std::time::Duration;

use super::member::{Member, Protocol};
use super::{Broker, wait_for};
use crate::broker_cases;

broker_cases![a_member_outlives_its_broker_and_reads_and_commits_on];

fn a_member_outlives_its_broker_and_reads_and_commits_on(broker: &Broker) {
    let topic = broker.create_topic(2);
    broker.produce_to_each(&topic, 2, 5);
    let member = Member::join(broker, &topic, Protocol::CooperativeSticky);
    member.wait_until_read(10);
    member.commit(&[(0, 5), (1, 5)]).unwrap();
    wait_for("an answer", || member.seen().commits.pop()).unwrap();
    broker.interrupt(Duration::from_secs(1));
    broker.produce_to_each(&topic, 2, 5);
    wait_for("the later records", || {
        let records = &member.seen().records;
        (0..2)
            .all(|p| records.iter().any(|(partition, offset, _)| (*partition, *offset) == (p, 9)))
            .then_some(())
    });
    wait_for("a commit that is taken", || {
        // It may have been thrown out. A commit by one who is not a member is refused, and then librdkafka forgets the
        // member id that it is just being given: a member that keeps committing never rejoins.
        if member.owns() < 2 {
            return None;
        }
        let asked = member.commit(&[(0, 10), (1, 10)]).map_err(|error| error.to_string());
        let told = asked.and_then(|()| wait_for("an answer", || member.seen().commits.pop()));
        told.inspect_err(|error| println!("commit: {error}")).ok()
    });
}
