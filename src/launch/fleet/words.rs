//! What the launcher says about an elastic job, in words.

use std::time::Duration;

use super::health::Rest;
use super::hosts::Change;
use crate::launch::words::{ALWAYS, NORMAL, VERBOSE, plural};
use crate::membership::registry::{Event, Outcome};
use crate::wire::registry::{Gone, Slot};

/// More members than this are counted only.
const MOST_LISTED: usize = 16;

/// `0-2, 5`: numbers in their order, runs of them shortened.
pub(super) fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

/// `slot 3`, `slots 3, 5`.
pub(super) fn slots(slots: &[Slot]) -> String {
    format!("slot{} {}", if slots.len() == 1 { "" } else { "s" }, ranges(slots))
}

/// A length of time as one reads it: `12 ms`, `3.5 s`.
pub(super) fn length(length: Duration) -> String {
    match length.as_secs_f64() {
        seconds if seconds < 0.01 => format!("{:.1} ms", seconds * 1e3),
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds if seconds < 100.0 => format!("{} s", (seconds * 10.0).round() / 10.0),
        seconds => format!("{seconds:.0} s"),
    }
}

/// A change of view.
struct ViewChange<'a> {
    generation: u64,
    members: &'a [Slot],
    gone: &'a [Gone],
    joined: &'a [Slot],
    broken: &'a [(Slot, Slot)],
    held_up: Duration,
}

/// The line for a view: `view 3: 3 ranks, slots 0, 2, 3: slot 1 was ended by signal 9 (SIGKILL); held up for 12 ms`.
fn view(change: &ViewChange<'_>) -> String {
    let ViewChange { generation, members, .. } = change;
    let list = match members.len() {
        ..=MOST_LISTED => format!(", {}", slots(members)),
        _ => String::new(),
    };
    let mut causes: Vec<String> = change.gone.iter().map(Gone::to_string).collect();
    if !change.joined.is_empty() {
        causes.push(format!("{} joined", slots(change.joined)));
    }
    if !change.broken.is_empty() {
        let pairs: Vec<_> = change.broken.iter().map(|(one, other)| format!("{one} and {other}")).collect();
        causes.push(format!("the links of slots {} are made again", pairs.join(", ")));
    }
    format!(
        "view {generation}: {}{list}: {}; held up for {}",
        plural(members.len(), "rank"),
        causes.join("; "),
        length(change.held_up)
    )
}

/// What the registry says, and how important it is. `is_first`: there was no view before.
pub(in crate::launch) fn news(event: &Event, is_first: bool) -> (u8, String) {
    match event {
        Event::Registered { slot, process } => (VERBOSE, format!("slot {slot} registered: {process}")),
        Event::Forgotten { slot, detail } => (VERBOSE, format!("slot {slot} is gone before it was a member: {detail}")),
        Event::Away { slot, detail } => (VERBOSE, format!("slot {slot} lost its connection: {detail}")),
        Event::LinkLost { by, of, detail } => (VERBOSE, format!("slot {by} lost its link to slot {of}: {detail}")),
        Event::Named { slot, detail } => (NORMAL, format!("slot {slot}: {detail}")),
        Event::Left { slot, reason, .. } => (VERBOSE, format!("slot {slot} said goodbye: {reason}")),
        Event::Lost(gone) => (NORMAL, gone.to_string()),
        Event::Waiting { have, need } => {
            let are = if *have == 1 { "is" } else { "are" };
            (NORMAL, format!("{} {are} there, the job needs {need}: waiting for more", plural(*have, "rank")))
        }
        Event::View { generation, members, .. } if is_first => {
            (VERBOSE, format!("view {}: {}", generation.0, plural(members.len(), "rank")))
        }
        Event::View { generation, members, gone, joined, broken, held_up, .. } => {
            let (generation, held_up) = (generation.0, *held_up);
            (NORMAL, view(&ViewChange { generation, members, gone, joined, broken, held_up }))
        }
        Event::Ended(Outcome::Finished) => (VERBOSE, "all members said goodbye".into()),
        Event::Ended(Outcome::Failed(reason)) => (ALWAYS, format!("the job cannot go on: {reason}")),
    }
}

/// What follows from a worker's failure.
pub(super) fn consequence(respawn: bool, rest: Rest, host: &str) -> String {
    match (respawn, rest) {
        (false, _) => "it is not replaced".into(),
        (true, Rest::None) => "another is started".into(),
        (true, Rest::Pause(pause)) => format!("another is started in {}", length(pause)),
        (true, Rest::Blacklisted(time)) => format!("host {host} is not used for {}", length(time)),
    }
}

/// So many workers in a row did not come to work on a slot.
pub(super) fn given_up(in_a_row: u32, host: &str) -> String {
    let so_many = match in_a_row {
        1 => "no worker is".into(),
        count => format!("{count} in a row did not come to work there: no other is"),
    };
    format!("{so_many} started in its place on host {host}")
}

/// A change of the list of hosts.
pub(super) fn hosts(change: &Change) -> String {
    match change {
        Change::Came(name, slots) => format!("host {name} is there, with {}", plural(*slots, "slot")),
        Change::Went(name) => format!("host {name} is no longer in the list"),
        Change::Slots(name, slots) => format!("host {name} has {} now", plural(*slots, "slot")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::registry::Why;

    #[test]
    fn numbers_are_shortened_where_they_follow_each_other() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7, 8");
        assert_eq!(ranges(&[]), "");
        assert_eq!(slots(&[3]), "slot 3");
        assert_eq!(ranges(&[4, 0, 1, 2]), "4, 0-2", "in the order of ranks");
    }

    #[test]
    fn lengths_are_short() {
        let of = |micros| length(Duration::from_micros(micros));
        assert_eq!(
            [of(900), of(12_400), of(3_460_000), of(60_000_000), of(600_000_000)],
            ["0.9 ms", "12 ms", "3.5 s", "60 s", "600 s"]
        );
    }

    #[test]
    fn a_view_says_who_why_and_how_long() {
        let out = Gone { slot: 1, why: Why::Exited, detail: "it was ended by signal 9 (SIGKILL)".into() };
        let change = ViewChange {
            generation: 2,
            members: &[0, 2, 3, 4],
            gone: &[out],
            joined: &[4],
            broken: &[(2, 3)],
            held_up: Duration::from_millis(12),
        };
        assert_eq!(
            view(&change),
            "view 2: 4 ranks, slots 0, 2-4: slot 1 is gone: it was ended by signal 9 (SIGKILL); slot 4 joined; \
             the links of slots 2 and 3 are made again; held up for 12 ms"
        );
        let many: Vec<usize> = (0..100).collect();
        let change = ViewChange { members: &many, gone: &[], broken: &[], ..change };
        assert_eq!(view(&change), "view 2: 100 ranks: slot 4 joined; held up for 12 ms");
    }
}
