//! The members come together.
//!
//! The server of a rendezvous feeds what members say and when they leave into a [`Gathering`], and sends what comes
//! out. It ends in one of two ways, and everyone who came hears the same:
//!
//! - all `size` ranks are there: each gets the table;
//! - it cannot be, or not in time: each gets the reason, which names the ranks that it is about. Who comes later gets
//!   the same answer.
//!
//! In time is before the earliest deadline of those who came, less a margin, so that the answer is there before they
//! give up by themselves and know nothing.

use std::time::{Duration, Instant};

use crate::types::{Deadline, Generation};
use crate::wire::rendezvous::{self, Join, MemberRecord, Message, Reason, Rejection, Session};

/// The same message for some connections. The server forgets a connection when all it was told has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tell {
    /// To whom.
    pub connections: Vec<u64>,
    /// What.
    pub message: Message,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All came.
    Complete,
    /// They did not come together.
    Rejected(Rejection),
}

#[derive(Clone, Debug)]
struct Arrival {
    connection: u64,
    member: MemberRecord,
}

/// The state machine. Connections are numbers that the server chooses and does not use twice.
#[derive(Clone, Debug)]
pub struct Gathering {
    generation: Generation,
    session: Session,
    began: Instant,
    deadline: Option<Deadline>,
    arrivals: Vec<Option<Arrival>>,
    arrived: usize,
    outcome: Option<Outcome>,
}

impl Gathering {
    /// A gathering of `size` members, who become the view `generation`. `deadline` is the server's own, if it has one.
    pub fn new(
        now: Instant,
        size: usize,
        generation: Generation,
        session: Session,
        deadline: Option<Deadline>,
    ) -> Self {
        Gathering { generation, session, began: now, deadline, arrivals: vec![None; size], arrived: 0, outcome: None }
    }

    /// How it ended, if it did.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called. None once it has ended, or while nobody waits.
    pub fn deadline(&self) -> Option<Deadline> {
        if self.outcome.is_some() { None } else { self.deadline }
    }

    /// A member came.
    pub fn handle_join(&mut self, now: Instant, connection: u64, join: Join) -> Option<Tell> {
        if join.session != self.session {
            // It read an address that an earlier attempt left behind. That is no reason to refuse the others.
            let what = "this is another attempt of the job than the one that was asked for";
            let rejection = self.rejection(now, Reason::Stale, vec![join.member.rank], what, "try again");
            return Some(Tell { connections: vec![connection], message: Message::Rejection(rejection) });
        }
        match &self.outcome {
            Some(Outcome::Rejected(rejection)) => {
                return Some(Tell { connections: vec![connection], message: Message::Rejection(rejection.clone()) });
            }
            Some(Outcome::Complete) => {
                let what = format!("rank {} came after all {} ranks were there", join.member.rank, self.arrivals.len());
                let rejection = self.rejection(now, Reason::Conflict, vec![join.member.rank], what, ONE_EACH);
                return Some(Tell { connections: vec![connection], message: Message::Rejection(rejection) });
            }
            None => {}
        }
        let who = describe(&join.member);
        let rank = join.member.rank;
        let size = self.arrivals.len();
        let conflict = if join.version != rendezvous::VERSION {
            Some((
                format!(
                    "{who} speaks version {} of the rendezvous, the server version {}",
                    join.version,
                    rendezvous::VERSION
                ),
                "use the same version of Phalanx on all ranks",
            ))
        } else if join.size != size {
            Some((
                format!("{who} says the size is {}, the server says {size}", join.size),
                "give all ranks the same size",
            ))
        } else {
            match self.arrivals.get(rank) {
                None => Some((format!("{who} says the size is {size}: the rank is not below it"), ONE_EACH)),
                Some(Some(first)) => Some((
                    format!("two processes say that they are rank {rank}: {} and {who}", describe(&first.member)),
                    ONE_EACH,
                )),
                Some(None) => None,
            }
        };
        if let Some((what, hint)) = conflict {
            let rejection = self.rejection(now, Reason::Conflict, vec![rank], what, hint);
            return Some(self.reject(rejection, Some(connection)));
        }
        let theirs = Deadline::after(now, join.patience.saturating_sub(margin(join.patience)));
        self.deadline = Some(self.deadline.map_or(theirs, |ours| ours.min(theirs)));
        if let Some(place) = self.arrivals.get_mut(rank) {
            *place = Some(Arrival { connection, member: join.member });
            self.arrived += 1;
        }
        (self.arrived == size).then(|| self.complete())
    }

    /// A connection closed. One that had not joined is none of the gathering's business.
    pub fn handle_lost(&mut self, now: Instant, connection: u64, how: &str) -> Option<Tell> {
        if self.outcome.is_some() {
            return None;
        }
        let place =
            self.arrivals.iter_mut().find(|arrival| arrival.as_ref().is_some_and(|a| a.connection == connection))?;
        let gone = place.take()?;
        self.arrived -= 1;
        let missing = self.missing();
        let what =
            format!("{} left before all ranks had come ({how}); not there: {}", describe(&gone.member), list(&missing));
        let rejection = self.rejection(
            now,
            Reason::Lost,
            vec![gone.member.rank],
            what,
            "look at the output of the rank that left; restart the job",
        );
        Some(self.reject(rejection, None))
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Tell> {
        if self.outcome.is_some() || !self.deadline.is_some_and(|deadline| deadline.has_passed(now)) {
            return None;
        }
        let missing = self.missing();
        let what = format!("{} of {} ranks came", self.arrived, self.arrivals.len());
        let rejection = self.rejection(
            now,
            Reason::Missing,
            missing,
            what,
            "see that the missing ranks were started and can reach the rendezvous",
        );
        Some(self.reject(rejection, None))
    }

    fn missing(&self) -> Vec<usize> {
        self.arrivals.iter().enumerate().filter(|(_, arrival)| arrival.is_none()).map(|(rank, _)| rank).collect()
    }

    fn rejection(
        &self,
        now: Instant,
        reason: Reason,
        ranks: Vec<usize>,
        what: impl Into<String>,
        hint: &str,
    ) -> Rejection {
        let waited = now.saturating_duration_since(self.began);
        Rejection { reason, waited, ranks, what: what.into(), hint: hint.into() }
    }

    fn complete(&mut self) -> Tell {
        self.outcome = Some(Outcome::Complete);
        let (connections, members) = self
            .arrivals
            .iter_mut()
            .filter_map(Option::take)
            .map(|arrival| (arrival.connection, arrival.member))
            .unzip();
        Tell { connections, message: Message::Table { generation: self.generation.0, members } }
    }

    fn reject(&mut self, rejection: Rejection, also: Option<u64>) -> Tell {
        self.outcome = Some(Outcome::Rejected(rejection.clone()));
        let connections =
            self.arrivals.iter_mut().filter_map(Option::take).map(|arrival| arrival.connection).chain(also).collect();
        Tell { connections, message: Message::Rejection(rejection) }
    }
}

const ONE_EACH: &str =
    "give each process a rank of its own from 0 to size - 1; a process of an earlier run may still be there";

/// How long before a member gives up it should have its answer.
fn margin(patience: Duration) -> Duration {
    (patience / 10).min(Duration::from_millis(500))
}

fn describe(member: &MemberRecord) -> String {
    format!("rank {} (process {} on {})", member.rank, member.pid, member.host_name)
}

/// Ranks in words, runs of them as first-last.
pub(crate) fn list(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let shown: Vec<_> = runs
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    if shown.is_empty() { "none".into() } else { shown.join(", ") }
}
