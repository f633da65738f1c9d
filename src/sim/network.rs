//! What carries messages between members and the registry, and what cuts them off.
//!
//! A connection delivers in order, in each direction, with delays; it breaks, and what was on its way is lost. While its
//! ends cannot reach each other its messages are held back, as TCP does, until they can or until it is given up.

use super::plan::Time;

/// One end of a connection or a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Registry,
    Process(usize),
}

/// A control connection. Its place in the list is its number.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) process: usize,
    /// Which start of the registry it leads to.
    pub(super) incarnation: u32,
    /// Whether each end takes it to stand.
    pub(super) is_up_at_member: bool,
    pub(super) is_up_at_registry: bool,
    /// What is delivered later is lost.
    pub(super) is_cut: bool,
    /// When the last message in each direction arrives.
    pub(super) last_to_member: Time,
    pub(super) last_to_registry: Time,
}

impl Connection {
    pub(super) fn new(process: usize, incarnation: u32) -> Self {
        Self {
            process,
            incarnation,
            is_up_at_member: true,
            is_up_at_registry: true,
            is_cut: false,
            last_to_member: 0,
            last_to_registry: 0,
        }
    }
}

/// Some processes cannot be reached by the others for a while.
#[derive(Clone, Debug)]
pub(super) struct Partition {
    /// Whether a process is on the far side, by its number. Later ones are not.
    pub(super) is_far: Vec<bool>,
    pub(super) since: Time,
    pub(super) until: Time,
    /// Whether the far side cannot reach the other members.
    pub(super) cuts_links: bool,
    /// Whether the far side cannot reach the registry.
    pub(super) cuts_registry: bool,
}

impl Partition {
    fn is_far(&self, end: End) -> bool {
        match end {
            End::Registry => false,
            End::Process(process) => self.is_far.get(process).copied().unwrap_or(false),
        }
    }
}

/// What cuts ends off from each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Barriers {
    partitions: Vec<Partition>,
    /// Pairs of processes that cannot reach each other, and until when.
    bad_links: Vec<(usize, usize, Time)>,
}

impl Barriers {
    pub(super) fn add(&mut self, partition: Partition) {
        self.partitions.push(partition);
    }

    pub(super) fn add_bad_link(&mut self, one: usize, other: usize, until: Time) {
        self.bad_links.push((one, other, until));
    }

    /// Until when two ends cannot reach each other, if they cannot now.
    pub(super) fn blocked(&self, now: Time, one: End, other: End) -> Option<Time> {
        let is_control = one == End::Registry || other == End::Registry;
        let partitions = self
            .partitions
            .iter()
            .filter(|partition| if is_control { partition.cuts_registry } else { partition.cuts_links })
            .filter(|partition| partition.is_far(one) != partition.is_far(other))
            .map(|partition| partition.until);
        let bad_links = self
            .bad_links
            .iter()
            .filter(|(a, b, _)| {
                let (a, b) = (End::Process(*a), End::Process(*b));
                (a, b) == (one, other) || (b, a) == (one, other)
            })
            .map(|(_, _, until)| *until);
        partitions.chain(bad_links).filter(|until| *until > now).max()
    }

    /// For how long a process and the registry have not been able to reach each other, if they cannot now.
    pub(super) fn silent_for(&self, now: Time, process: usize) -> Option<Time> {
        let cuts = |partition: &&Partition| {
            partition.cuts_registry && partition.until > now && partition.is_far(End::Process(process))
        };
        self.partitions.iter().filter(cuts).map(|partition| now - partition.since).max()
    }

    /// Whether anything cuts anybody off now.
    pub(super) fn is_any(&self, now: Time) -> bool {
        self.partitions.iter().any(|partition| partition.until > now)
            || self.bad_links.iter().any(|(_, _, until)| *until > now)
    }
}
