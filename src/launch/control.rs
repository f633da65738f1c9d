//! What the launcher and the guard of a worker say to each other.
//!
//! One line of ASCII a message, over a stream, so that it can be read with the naked eye and carried over any channel.
//!
//! | launcher to guard | meaning |
//! |---|---|
//! | `signal N` | send signal N to the worker's process group |
//! | `ask N` | send signal N to the worker alone |
//! | `kill` | end the whole tree now |
//! | end of the stream | the launcher is gone: the same as `kill` |
//!
//! | guard to launcher | meaning |
//! |---|---|
//! | `started PID` | the worker runs |
//! | `failed ERRNO` | the worker could not be started |
//! | `exited CODE T` | it ended with this exit code, at this time of the monotonic clock in nanoseconds |
//! | `signalled N T` | it was ended by signal N |
//! | end of the stream | no process of the tree is left |

use super::signal::Signal;

/// From the launcher to a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Send this signal to the worker's process group.
    Signal(Signal),
    /// Send this signal to the worker alone: it is to finish what it does, for which it may need those it started.
    Ask(Signal),
    /// End the whole tree now.
    Kill,
}

/// From a guard to the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The worker runs.
    Started {
        /// Its process id.
        pid: i32,
    },
    /// The worker could not be started.
    Failed {
        /// The system's error number.
        errno: i32,
    },
    /// The worker ended; processes that it started may still run.
    Ended {
        /// How.
        ending: Ending,
        /// When, in nanoseconds of the monotonic clock, which all processes of a machine share.
        at: u64,
    },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this exit code.
    Code(u8),
    /// By this signal.
    Signal(Signal),
}

impl Ending {
    /// Whether it ended with code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// The exit code by which a shell reports it.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => signal.exit_code(),
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was ended by {signal}"),
        }
    }
}

impl Order {
    /// The line, with its end.
    pub fn encode(self) -> String {
        match self {
            Self::Signal(signal) => format!("signal {}\n", signal.0),
            Self::Ask(signal) => format!("ask {}\n", signal.0),
            Self::Kill => "kill\n".into(),
        }
    }

    /// Reads a line without its end.
    pub fn decode(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let order = match words.next()? {
            "signal" => Self::Signal(Signal(words.next()?.parse().ok()?)),
            "ask" => Self::Ask(Signal(words.next()?.parse().ok()?)),
            "kill" => Self::Kill,
            _ => return None,
        };
        words.next().is_none().then_some(order)
    }
}

impl Report {
    /// The line, with its end.
    pub fn encode(self) -> String {
        match self {
            Self::Started { pid } => format!("started {pid}\n"),
            Self::Failed { errno } => format!("failed {errno}\n"),
            Self::Ended { ending: Ending::Code(code), at } => format!("exited {code} {at}\n"),
            Self::Ended { ending: Ending::Signal(signal), at } => format!("signalled {} {at}\n", signal.0),
        }
    }

    /// Reads a line without its end.
    pub fn decode(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let report = match words.next()? {
            "started" => Self::Started { pid: words.next()?.parse().ok()? },
            "failed" => Self::Failed { errno: words.next()?.parse().ok()? },
            "exited" => {
                let ending = Ending::Code(words.next()?.parse().ok()?);
                Self::Ended { ending, at: words.next()?.parse().ok()? }
            }
            "signalled" => {
                let ending = Ending::Signal(Signal(words.next()?.parse().ok()?));
                Self::Ended { ending, at: words.next()?.parse().ok()? }
            }
            _ => return None,
        };
        words.next().is_none().then_some(report)
    }
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    buffer: Vec<u8>,
}

impl Lines {
    /// No message is longer; what is longer is dropped.
    const MAX_BYTES: usize = 256;

    /// Takes bytes as they arrive.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    pub fn poll_line(&mut self) -> Option<String> {
        let end = self.buffer.iter().position(|&byte| byte == b'\n');
        if end.unwrap_or(self.buffer.len()) > Self::MAX_BYTES {
            self.buffer.clear();
            return None;
        }
        let line: Vec<u8> = self.buffer.drain(..=end?).collect();
        Some(String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line)).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_way() {
        for order in [Order::Signal(Signal::TERM), Order::Ask(Signal::TERM), Order::Kill] {
            assert_eq!(Order::decode(order.encode().trim_end()), Some(order));
        }
        for report in [
            Report::Started { pid: 17 },
            Report::Failed { errno: 2 },
            Report::Ended { ending: Ending::Code(3), at: 5 },
            Report::Ended { ending: Ending::Signal(Signal::KILL), at: u64::MAX },
        ] {
            assert_eq!(Report::decode(report.encode().trim_end()), Some(report));
        }
    }

    #[test]
    fn what_is_not_a_message_is_not_taken_for_one() {
        for line in ["", "signal", "signal x", "ask", "kill now", "started", "exited 256 1", "exited 3", "failed 2 3"] {
            assert_eq!(Order::decode(line), None, "{line}");
            assert_eq!(Report::decode(line), None, "{line}");
        }
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        let mut lines = Lines::default();
        lines.push(b"sta");
        assert_eq!(lines.poll_line(), None);
        lines.push(b"rted 1\nexited 0 1\nx");
        assert_eq!(lines.poll_line().as_deref(), Some("started 1"));
        assert_eq!(lines.poll_line().as_deref(), Some("exited 0 1"));
        assert_eq!(lines.poll_line(), None);
        lines.push(&[b'y'; 1000]);
        assert_eq!(lines.poll_line(), None);
        assert!(lines.buffer.is_empty(), "an endless line is not kept");
    }
}
