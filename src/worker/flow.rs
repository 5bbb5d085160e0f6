//! Which partitions stop being read, and how. Pure; the poll thread does what is decided.

use self::Suspended::{Held, Paused, Waiting};

/// Which limit keeps a partition from being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadLimit {
    /// One of its own.
    Partition,
    /// The memory of all partitions together.
    Total,
}

/// How reading of a partition is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspended {
    /// No record is taken for a moment. librdkafka keeps what it has fetched of all partitions in one bounded queue.
    Waiting,
    /// librdkafka keeps what it has fetched and delivers it when reading goes on.
    Held,
    /// librdkafka fetches nothing, has dropped what it had, and needs up to a second to restart.
    Paused,
}

impl Suspended {
    /// Whether librdkafka was told not to deliver the partition's records.
    pub fn is_stopped(self) -> bool {
        matches!(self, Self::Held | Self::Paused)
    }
}

/// One partition, as the decision sees it.
#[derive(Debug, Clone, Copy)]
pub struct PartitionFlow {
    /// Its number.
    pub number: i32,
    /// How it is suspended; `None` while it is read. [`decide`] sets it.
    pub suspended: Option<Suspended>,
    /// What keeps it from being read, if anything.
    pub reached: Option<ReadLimit>,
    /// Whether its task takes records. If not, it will not be read again soon.
    pub is_at_work: bool,
}

impl PartitionFlow {
    fn is_stopped(&self) -> bool {
        self.suspended.is_some_and(Suspended::is_stopped)
    }
}

/// Partitions to stop reading or to read again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FlowControl {
    /// Take no record before the next decision.
    pub wait: bool,
    /// Hold back.
    pub hold_back: Vec<i32>,
    /// Release from being held back.
    pub let_through: Vec<i32>,
    /// Pause.
    pub pause: Vec<i32>,
    /// Resume.
    pub resume: Vec<i32>,
}

/// What changes for `partitions`, of which at most `max_held_back` are held back; any more are paused.
pub fn decide(partitions: &mut [PartitionFlow], max_held_back: usize) -> FlowControl {
    let mut held = partitions.iter().filter(|one| one.suspended == Some(Held)).count();
    let wait = waits_for_memory(partitions, max_held_back.saturating_sub(held));
    let mut flow = FlowControl { wait, ..FlowControl::default() };
    for partition in partitions {
        let before = partition.suspended;
        partition.suspended = match partition.reached {
            None => None,
            Some(_) if partition.is_stopped() => before,
            Some(_) if wait => Some(Waiting),
            Some(_) if held < max_held_back && partition.is_at_work => {
                held += 1;
                Some(Held)
            }
            Some(_) => Some(Paused),
        };
        let told = match (before, partition.suspended) {
            (None | Some(Waiting), Some(Held)) => &mut flow.hold_back,
            (None | Some(Waiting), Some(Paused)) => &mut flow.pause,
            (Some(Held), None) => &mut flow.let_through,
            (Some(Paused), None) => &mut flow.resume,
            _ => continue,
        };
        told.push(partition.number);
    }
    flow
}

/// Whether to take no record: `memory.total` is used up, no partition may be read, and more would have to be stopped than
/// `may_be_held_back`. It ends with a quarter free.
fn waits_for_memory(partitions: &[PartitionFlow], may_be_held_back: usize) -> bool {
    let to_stop = || partitions.iter().filter(|partition| !partition.is_stopped());
    partitions.iter().all(|partition| partition.reached.is_some())
        && to_stop().any(|partition| partition.reached == Some(ReadLimit::Total))
        && to_stop().count() > may_be_held_back
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Option<ReadLimit> = Some(ReadLimit::Partition);
    const ALL: Option<ReadLimit> = Some(ReadLimit::Total);

    /// Partitions 0, 1 and so on, all at work and read, that reached these limits.
    fn partitions<const N: usize>(reached: [Option<ReadLimit>; N]) -> [PartitionFlow; N] {
        let mut number = -1;
        reached.map(|reached| {
            number += 1;
            PartitionFlow { number, suspended: None, reached, is_at_work: true }
        })
    }

    fn reach<const N: usize>(partitions: &mut [PartitionFlow; N], reached: [Option<ReadLimit>; N]) {
        for (partition, reached) in partitions.iter_mut().zip(reached) {
            partition.reached = reached;
        }
    }

    #[test]
    fn as_many_are_held_back_as_may_be_and_the_others_are_paused() {
        let mut three = partitions([OWN, None, OWN]);
        let first = FlowControl { hold_back: vec![0], pause: vec![2], ..FlowControl::default() };
        assert_eq!(decide(&mut three, 1), first);
        assert_eq!(decide(&mut three, 1), FlowControl::default(), "each is told once");

        reach(&mut three, [None, OWN, None]);
        let second =
            FlowControl { let_through: vec![0], pause: vec![1], resume: vec![2], ..FlowControl::default() };
        assert_eq!(decide(&mut three, 1), second);
        reach(&mut three, [OWN, OWN, None]);
        let third = FlowControl { hold_back: vec![0], ..FlowControl::default() };
        assert_eq!(decide(&mut three, 1), third, "what was let through holds nothing back");
    }

    #[test]
    fn partition_that_takes_no_more_records_is_paused_rather_than_held_back() {
        let mut one = partitions([OWN]);
        one[0].is_at_work = false;
        let paused = FlowControl { pause: vec![0], ..FlowControl::default() };
        assert_eq!(decide(&mut one, 8), paused);
    }

    #[test]
    fn without_memory_nothing_is_polled_unless_all_can_be_held_back() {
        let wait = FlowControl { wait: true, ..FlowControl::default() };
        let mut three = partitions([ALL; 3]);
        assert_eq!(decide(&mut three, 2), wait);
        assert_eq!(three.map(|one| one.suspended), [Some(Waiting); 3]);
        reach(&mut three, [None; 3]);
        assert_eq!(decide(&mut three, 2), FlowControl::default());
        assert_eq!(three.map(|one| one.suspended), [None; 3]);

        reach(&mut three, [ALL; 3]);
        let held = FlowControl { hold_back: vec![0, 1, 2], ..FlowControl::default() };
        assert_eq!(decide(&mut three, 3), held);

        // One that is held back already counts: two more would be too many.
        let mut three = partitions([OWN, None, None]);
        decide(&mut three, 2);
        reach(&mut three, [OWN, ALL, ALL]);
        assert_eq!(decide(&mut three, 2), wait);
    }

    #[test]
    fn partition_at_a_limit_of_its_own_is_stopped_before_polling_goes_on() {
        let mut three = partitions([ALL, OWN, ALL]);
        let wait = FlowControl { wait: true, ..FlowControl::default() };
        assert_eq!(decide(&mut three, 2), wait);
        reach(&mut three, [None, OWN, None]);
        let stopped = FlowControl { hold_back: vec![1], ..FlowControl::default() };
        assert_eq!(decide(&mut three, 2), stopped);

        let mut three = partitions([OWN; 3]);
        let stopped = FlowControl { hold_back: vec![0, 1], pause: vec![2], ..FlowControl::default() };
        assert_eq!(decide(&mut three, 2), stopped, "no memory to wait for");
    }

    #[test]
    fn without_memory_polling_goes_on_while_a_partition_may_be_read() {
        let mut three = partitions([ALL, None, ALL]);
        let flow = decide(&mut three, 1);
        assert_eq!(flow, FlowControl { hold_back: vec![0], pause: vec![2], ..FlowControl::default() });
    }
}
