//! What the launcher says, in words.

use std::io;

use super::signal::{Arrived, Signal};
use super::supervise::{Cause, Notice, Policy};

/// How much the launcher must be allowed to say for a message to appear.
pub(super) const ALWAYS: u8 = 0;
pub(super) const NORMAL: u8 = 1;
pub(super) const VERBOSE: u8 = 2;

/// The message for a notice, and how important it is. `name` gives a rank's host and process in words.
pub(super) fn notice(notice: Notice, policy: Policy, name: impl Fn(usize) -> String) -> Option<(u8, String)> {
    Some(match notice {
        Notice::Ending { cause, others } => {
            let rest = match others {
                0 => String::new(),
                1 => "; ending the other rank".into(),
                _ => format!("; ending the other {others} ranks"),
            };
            let ranks = plural(others, "rank");
            match cause {
                // Said in more words by those who know more.
                Cause::Done | Cause::NoGoodbye { .. } | Cause::CannotGoOn => return None,
                Cause::Failed { rank, ending } => (ALWAYS, format!("rank {rank} {ending} {}{rest}", name(rank))),
                Cause::NotStarted { rank, errno } => {
                    let error = io::Error::from_raw_os_error(errno);
                    (ALWAYS, format!("rank {rank} could not be started: {error} {}{rest}", name(rank)))
                }
                Cause::Lost { rank } => (ALWAYS, format!("the guard of rank {rank} was killed {}{rest}", name(rank))),
                Cause::Signal(Arrived { signal, from_kernel }) => {
                    let again = if signal == Signal::INT && from_kernel { "; Ctrl-C again kills them" } else { "" };
                    (NORMAL, format!("{signal}: passed on to {ranks}{again}"))
                }
                Cause::Timeout => {
                    let limit = policy.timeout.unwrap_or_default().as_secs_f64();
                    (ALWAYS, format!("the time limit of {limit} s has passed; ending {ranks}"))
                }
                Cause::OutputClosed => (ALWAYS, "nobody reads the output any more; ending the job".into()),
            }
        }
        Notice::Killing { ranks, at_once: true } => (NORMAL, format!("killing {}", plural(ranks, "rank"))),
        Notice::Killing { ranks, at_once: false } => {
            let grace = policy.grace.as_secs_f64();
            (NORMAL, format!("{} did not end within {grace} s; killing", plural(ranks, "rank")))
        }
    })
}

/// What often stands behind a signal that nobody sent on purpose.
pub(super) fn hint(signal: Signal) -> Option<&'static str> {
    Some(match signal {
        Signal::KILL => {
            "not sent by the launcher: often the kernel's answer to a lack of memory; look at `dmesg` and at the memory \
             limit of the container"
        }
        Signal(libc::SIGBUS) => "often a full /dev/shm or a shortened file; look at `df -h /dev/shm`",
        Signal(libc::SIGSEGV | libc::SIGILL | libc::SIGFPE) => "a crash in native code, not an error of a script",
        _ => return None,
    })
}

/// How an elastic job ended of which nobody is left and nobody said that the work is done.
pub(super) const UNDONE: &str = "the job ended before its work was done: all members left as they were asked to";

/// `1 rank`, `2 ranks`.
pub(super) fn plural(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::control::Ending;
    use super::*;

    fn say(n: Notice) -> String {
        let policy = Policy { grace: Duration::from_secs(5), timeout: Some(Duration::from_millis(1500)) };
        notice(n, policy, |rank| format!("(host h{rank}, pid 7)")).expect("words").1
    }

    #[test]
    fn messages_name_the_rank_and_what_follows() {
        let ending = |cause, others| say(Notice::Ending { cause, others });
        let failed = |ending| Cause::Failed { rank: 2, ending };
        assert_eq!(
            ending(failed(Ending::Code(3)), 3),
            "rank 2 exited with code 3 (host h2, pid 7); ending the other 3 ranks"
        );
        assert_eq!(
            ending(failed(Ending::Signal(Signal::KILL)), 0),
            "rank 2 was ended by signal 9 (SIGKILL) (host h2, pid 7)"
        );
        let key = Cause::Signal(Arrived { signal: Signal::INT, from_kernel: true });
        assert_eq!(ending(key, 2), "signal 2 (SIGINT): passed on to 2 ranks; Ctrl-C again kills them");
        assert_eq!(ending(Cause::Timeout, 1), "the time limit of 1.5 s has passed; ending 1 rank");
        assert_eq!(say(Notice::Killing { ranks: 1, at_once: false }), "1 rank did not end within 5 s; killing");
    }
}
