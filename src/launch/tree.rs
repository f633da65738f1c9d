//! The processes that descend from one process, and ending them.
//!
//! A process that adopts orphans (a *subreaper*) keeps every descendant below it, whatever these do: those that start a
//! session of their own, those whose parent has ended, those that ignore signals. So a walk from parent to child finds
//! them all, and when the subreaper has no child left, nothing is left.

use std::fs;

use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use super::signal::Signal;

/// The children of `parent`, from the kernel's own list where it has one.
fn children(parent: Pid) -> Option<Vec<Pid>> {
    let tasks = fs::read_dir(format!("/proc/{}/task", parent.as_raw_nonzero())).ok()?;
    let mut found = Vec::new();
    for task in tasks.flatten() {
        // Some kernels are built without this file: then the caller looks at every process.
        let Ok(text) = fs::read_to_string(task.path().join("children")) else {
            // A thread that has just ended has no list either.
            if task.path().exists() {
                return None;
            }
            continue;
        };
        found.extend(text.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)));
    }
    Some(found)
}

/// The parent of a process, from the fourth field of its `stat` file: the second, the name, is in parentheses and may
/// hold anything.
fn parent_in_stat(stat: &str) -> Option<Pid> {
    let (_, rest) = stat.rsplit_once(')')?;
    Pid::from_raw(rest.split_whitespace().nth(1)?.parse().ok()?)
}

/// The parent of a process.
fn parent(pid: Pid) -> Option<Pid> {
    parent_in_stat(&fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
}

/// Every process and its parent.
fn every_process() -> Vec<(Pid, Pid)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            Some((pid, parent(pid)?))
        })
        .collect()
}

/// The descendants of `root`, parents first, each with its parent.
pub(super) fn descendants(root: Pid) -> Vec<(Pid, Pid)> {
    let mut table = None;
    let mut found: Vec<(Pid, Pid)> = Vec::new();
    let mut next = vec![root];
    while let Some(parent) = next.pop() {
        let listed = children(parent).unwrap_or_else(|| {
            let table = table.get_or_insert_with(every_process);
            table.iter().filter(|(_, above)| *above == parent).map(|(pid, _)| *pid).collect()
        });
        for child in listed {
            // The lists are read one after another while processes move: none is visited twice.
            if child != root && !found.iter().any(|(known, _)| *known == child) {
                found.push((child, parent));
                next.push(child);
            }
        }
    }
    found
}

/// The processes above one, from its parent on.
pub(super) fn ancestors(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = i32::try_from(pid).ok().and_then(Pid::from_raw);
    while let Some(above) = next.and_then(parent) {
        let number = above.as_raw_nonzero().get().unsigned_abs();
        // Numbers are given out again: a row of them read while processes end could close upon itself.
        if found.contains(&number) {
            break;
        }
        found.push(number);
        next = Some(above);
    }
    found
}

/// Sends `signal` to every descendant of `root`, and returns how many there were.
pub(super) fn signal_descendants(root: Pid, signal: Signal) -> usize {
    let found = descendants(root);
    for &(pid, above) in &found {
        signal_if_child_of(pid, &[above, root], signal);
    }
    found.len()
}

/// Kills the children of this process, and what is below them, except the `kept` children, and collects those that have
/// ended. Returns whether any is left.
pub(super) fn end_children_except(kept: &[Pid]) -> bool {
    let own = rustix::process::getpid();
    let mut left = false;
    let orphans = descendants(own).into_iter().filter(|(pid, above)| *above == own && !kept.contains(pid));
    for (orphan, _) in orphans {
        signal_descendants(orphan, Signal::KILL);
        signal_if_child_of(orphan, &[own], Signal::KILL);
        // Its own children become ours once it has ended, and are met in the next round.
        let _ = rustix::process::waitpid(Some(orphan), rustix::process::WaitOptions::NOHANG);
        left = true;
    }
    left
}

/// Sends `signal` to `pid` if it still has one of these parents. A number that was given to a new process in between
/// is thereby not mistaken: the descriptor stands for one process only, and is compared after it was made.
fn signal_if_child_of(pid: Pid, parents: &[Pid], signal: Signal) {
    let Some(signal) = signal.to_rustix() else { return };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) if parent(pid).is_some_and(|now| parents.contains(&now)) => {
            let _ = pidfd_send_signal(fd, signal);
        }
        Ok(_) | Err(rustix::io::Errno::SRCH) => {}
        // Some sandboxes refuse these descriptors.
        Err(_) => {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_parent_is_read_after_any_name() {
        let parent = |stat| parent_in_stat(stat).map(|pid| pid.as_raw_nonzero().get());
        assert_eq!(parent("12 (a) b (c) S 7 12 12 0"), Some(7));
        assert_eq!(parent("12 (x"), None);
    }

    #[test]
    fn children_and_their_children_are_found() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let out = shell.stdout.take().expect("its output");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
        let sleeper: i32 = line.trim().parse().expect("a number");
        let root = rustix::process::getpid();
        let shell_pid = Pid::from_child(&shell);
        let below: Vec<_> = descendants(shell_pid);
        assert_eq!(below, [(Pid::from_raw(sleeper).expect("not 0"), shell_pid)]);
        assert!(descendants(root).contains(&below[0]));
        let number = |pid: Pid| pid.as_raw_nonzero().get().unsigned_abs();
        assert_eq!(ancestors(sleeper.unsigned_abs())[..2], [number(shell_pid), number(root)]);
        let by_table: Vec<_> = every_process().into_iter().filter(|(_, parent)| *parent == shell_pid).collect();
        assert_eq!(by_table, below);
        assert_eq!(signal_descendants(shell_pid, Signal::KILL), 1);
        assert!(shell.wait().expect("the shell ends when its child does").code().is_some());
    }
}
