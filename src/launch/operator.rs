//! What a person does to an elastic job while it runs: ask how it is, take a member out.
//!
//! A registry that runs in a launcher also listens at a Unix socket with a name that processes of the same user can
//! find, and hands them the key: the kernel says who they are. Others need the address and the key.

use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::bootstrap::control::{End, Link, wait};
use crate::bootstrap::{KeySource, given_key};
use crate::types::{Deadline, Error, Result};
use crate::wire::registry::{FromRegistry, MAX_ANSWER_FRAME, Status, ToRegistry, Whom};

/// How long a registry may take to answer. It does nothing else for as long as this.
const PATIENCE: Duration = Duration::from_secs(5);

/// The socket at which the registry in this launcher can be found, without the `@`.
pub(super) fn own_socket() -> String {
    format!("{}{}", prefix(), std::process::id())
}

fn prefix() -> String {
    format!("phalanx-registry-{}-", rustix::process::geteuid().as_raw())
}

/// Where registries of this user's launchers on this host listen.
pub fn registries() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    listed(&table, &prefix())
}

/// The listening sockets in the kernel's table whose names begin so.
fn listed(table: &str, prefix: &str) -> Vec<String> {
    let name = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Number, count of references, protocol, flags (a listener's), type, state, inode, name.
        let listens = words.get(3).is_some_and(|flags| *flags == "00010000");
        words
            .get(7)
            .filter(|name| listens && name.strip_prefix('@').is_some_and(|name| name.starts_with(prefix)))
            .map(|name| format!("unix:{name}"))
    };
    let mut found: Vec<String> = table.lines().filter_map(name).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The place of the registry that is meant, when nobody names one: that of the only launcher with an elastic job.
///
/// # Errors
///
/// There is none, or more than one.
pub fn only_registry() -> Result<String> {
    let mut found = registries();
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(Error::invalid(
            "no elastic job of this user runs in a launcher on this machine; give --registry ADDRESS of another, with \
             its key in PHALANX_KEY or PHALANX_KEY_FILE",
        )),
        _ => {
            Err(Error::invalid(format!("several elastic jobs run here; say which: --registry {}", found.join(", or "))))
        }
    }
}

/// A connection of an operator to a registry.
pub struct Operator {
    link: Link,
    place: String,
}

impl Operator {
    /// Connects to the registry at `place`, which is `host:port` or `unix:@name`. The latter hands out the key.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] when it cannot be reached, or has another key.
    pub fn dial(place: &str, key: &KeySource) -> Result<Self> {
        let key = given_key(key)?;
        let deadline = Deadline::after(Instant::now(), PATIENCE);
        let (link, _) =
            Link::dial(place, key.as_ref(), MAX_ANSWER_FRAME, deadline, PATIENCE).map_err(|(_, error)| error)?;
        Ok(Self { link, place: place.into() })
    }

    /// How the job is.
    ///
    /// # Errors
    ///
    /// The registry does not answer.
    pub fn status(&mut self) -> Result<Status> {
        match self.ask(&ToRegistry::StatusRequest)? {
            FromRegistry::Status(status) => Ok(status),
            other => Err(self.strange(&other)),
        }
    }

    /// Takes a member out. Returns what was done.
    ///
    /// # Errors
    ///
    /// There is no such member, or the registry does not answer.
    pub fn evict(&mut self, whom: Whom, reason: &str) -> Result<String> {
        match self.ask(&ToRegistry::Evict { whom, reason: reason.into() })? {
            FromRegistry::Done { what } => Ok(what),
            FromRegistry::Refused { what, hint } => Err(Error::invalid(format!("{what}; {hint}"))),
            other => Err(self.strange(&other)),
        }
    }

    fn strange(&self, answer: &FromRegistry) -> Error {
        tracing::debug!(?answer, "an answer to another question");
        let what = format!("the registry at {} answered something else than it was asked", self.place);
        Error::environment(what, "use the same version of Phalanx")
    }

    fn ask(&mut self, question: &ToRegistry) -> Result<FromRegistry> {
        let failed = |what: String| Error::environment(format!("the registry at {}: {what}", self.place), "try again");
        let until = Instant::now() + PATIENCE;
        self.link.send(question.encode());
        let mut frames = Vec::new();
        loop {
            let ended = self.link.write().and_then(|()| self.link.read(&mut frames));
            if let Some(frame) = frames.first() {
                return FromRegistry::decode(frame).map_err(|error| failed(error.to_string()));
            }
            match ended {
                Err(End::Closed(what) | End::Unreachable(what) | End::Violation(what)) => return Err(failed(what)),
                Ok(()) if Instant::now() >= until => {
                    return Err(failed(format!("no answer within {} s", PATIENCE.as_secs())));
                }
                Ok(()) => {}
            }
            let mut fds: [PollFd<'_>; 1] = [self.link.poll_fd()];
            wait(&mut fds, Some(until.saturating_duration_since(Instant::now())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_found_by_their_names() {
        let table = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 25321 @phalanx-registry-0-77
0000000000000000: 00000003 00000000 00000000 0001 03 25399 @phalanx-registry-0-77
0000000000000000: 00000002 00000000 00010000 0001 01 25322 @phalanx-registry-1000-78
0000000000000000: 00000002 00000000 00010000 0001 01 25323 /run/phalanx-registry-0-79
0000000000000000: 00000002 00000000 00010000 0001 01 25324
";
        assert_eq!(listed(table, "phalanx-registry-0-"), ["unix:@phalanx-registry-0-77"]);
        assert_eq!(listed(table, "phalanx-registry-2-"), [""; 0]);
    }
}
