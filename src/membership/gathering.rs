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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const SECOND: Duration = Duration::from_secs(1);

    fn join(rank: usize, size: usize) -> Join {
        let member = MemberRecord {
            rank,
            pid: 100 + rank as u32,
            host: b"h".to_vec(),
            host_name: "node".into(),
            addresses: vec![rank as u8],
        };
        Join { version: rendezvous::VERSION, size, patience: 10 * SECOND, session: [0; 16], member }
    }

    fn gathering(size: usize) -> (Instant, Gathering) {
        let now = Instant::now();
        (now, Gathering::new(now, size, Generation::FIRST, [0; 16], None))
    }

    /// The rejection that exactly these connections are told.
    fn rejection(tell: Option<Tell>, connections: &[u64]) -> Rejection {
        let tell = tell.unwrap();
        assert_eq!(tell.connections, connections);
        let Message::Rejection(rejection) = tell.message else { panic!("{tell:?}") };
        rejection
    }

    #[test]
    fn two_processes_of_one_rank_are_both_named() {
        let (now, mut gathering) = gathering(3);
        assert_eq!(gathering.handle_join(now, 7, join(1, 3)), None);
        let mut second = join(1, 3);
        second.member.pid = 999;
        let rejection = rejection(gathering.handle_join(now, 8, second), &[7, 8]);
        assert_eq!((rejection.reason, &rejection.ranks[..]), (Reason::Conflict, &[1][..]));
        assert_eq!(
            rejection.what,
            "two processes say that they are rank 1: rank 1 (process 101 on node) and rank 1 (process 999 on node)"
        );
    }

    #[test]
    fn sizes_ranks_and_versions_that_cannot_be_are_told_to_all() {
        let old = Join { version: 0, ..join(1, 3) };
        let cases = [
            (join(1, 4), "rank 1 (process 101 on node) says the size is 4, the server says 3"),
            (join(3, 3), "rank 3 (process 103 on node) says the size is 3: the rank is not below it"),
            (old, "rank 1 (process 101 on node) speaks version 0 of the rendezvous, the server version 1"),
        ];
        for (wrong, what) in cases {
            let (now, mut gathering) = gathering(3);
            gathering.handle_join(now, 0, join(0, 3));
            let told = rejection(gathering.handle_join(now, 1, wrong), &[0, 1]);
            assert_eq!((told.reason, told.what.as_str()), (Reason::Conflict, what));
            // Who comes later hears the same.
            assert_eq!(rejection(gathering.handle_join(now, 2, join(2, 3)), &[2]), told);
        }
    }

    #[test]
    fn the_missing_are_named_before_the_first_deadline() {
        let (now, mut gathering) = gathering(6);
        assert_eq!(gathering.deadline(), None, "nobody waits");
        gathering.handle_join(now, 0, join(4, 6));
        let hasty = Join { patience: 2 * SECOND, ..join(1, 6) };
        gathering.handle_join(now + SECOND, 1, hasty);
        let deadline = gathering.deadline().unwrap();
        // The hasty one gives up at 3 s and is told a tenth of its patience before.
        assert_eq!(deadline.remaining(now), Duration::from_millis(2800));
        assert_eq!(gathering.handle_timeout(now + Duration::from_millis(2799)), None);
        let told = rejection(gathering.handle_timeout(now + Duration::from_millis(2800)), &[1, 0]);
        assert_eq!((told.reason, &told.ranks[..]), (Reason::Missing, &[0, 2, 3, 5][..]));
        assert_eq!((told.waited, told.what.as_str()), (Duration::from_millis(2800), "2 of 6 ranks came"));
        assert_eq!(gathering.deadline(), None);
    }

    #[test]
    fn one_that_leaves_is_named_and_one_that_never_joined_is_not_missed() {
        let (now, mut gathering) = gathering(4);
        gathering.handle_join(now, 0, join(0, 4));
        gathering.handle_join(now, 1, join(1, 4));
        assert_eq!(gathering.handle_lost(now, 99, "it closed"), None);
        let told = rejection(gathering.handle_lost(now, 1, "it closed its connection"), &[0]);
        assert_eq!((told.reason, &told.ranks[..]), (Reason::Lost, &[1][..]));
        assert!(
            told.what.contains("rank 1 (process 101 on node) left") && told.what.contains("not there: 1-3"),
            "{}",
            told.what
        );
        assert_eq!(gathering.handle_lost(now, 0, "it closed"), None, "told once");
    }

    #[test]
    fn another_session_harms_nobody() {
        let (now, mut gathering) = gathering(2);
        gathering.handle_join(now, 0, join(0, 2));
        let stale = Join { session: [9; 16], ..join(0, 2) };
        assert_eq!(rejection(gathering.handle_join(now, 1, stale), &[1]).reason, Reason::Stale);
        let tell = gathering.handle_join(now, 2, join(1, 2)).unwrap();
        assert_eq!(tell.connections, [0, 2]);
        assert!(matches!(tell.message, Message::Table { generation: 1, .. }));
    }

    #[test]
    fn ranks_in_words() {
        assert_eq!(list(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(list(&[]), "none");
    }

    /// Small and the same on every machine: a seed in a failure's message replays it.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % limit as u64) as usize
        }
    }

    /// Joins in any order, with drops, duplicates, ranks and sizes that cannot be, strangers' sessions and time that
    /// passes. Whatever happens: each connection that joined and did not leave is told exactly once, all are told the
    /// same, and it is the table exactly when nothing went wrong.
    #[test]
    fn all_hear_the_same_whatever_happens() {
        for seed in 1..=20_000u64 {
            let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let size = 1 + random.below(9);
            let (start, mut gathering) = gathering(size);
            let mut now = start;
            let mut todo: Vec<usize> = (0..size).collect();
            let mut present: BTreeMap<u64, usize> = BTreeMap::new();
            let mut answers: BTreeMap<u64, Message> = BTreeMap::new();
            let mut went_wrong = false;
            let is_calm = random.below(3) == 0;
            for connection in 0..100u64 {
                let event = if is_calm { 0 } else { random.below(12) };
                let tell = match event {
                    0..=6 if !todo.is_empty() => {
                        let rank = todo.swap_remove(random.below(todo.len()));
                        present.insert(connection, rank);
                        gathering.handle_join(now, connection, join(rank, size))
                    }
                    7 => {
                        let at = random.below(present.len().max(1));
                        let Some((&gone, _)) = present.iter().nth(at) else { continue };
                        let was_told = answers.contains_key(&gone);
                        present.remove(&gone);
                        went_wrong |= !was_told;
                        gathering.handle_lost(now, gone, "test")
                    }
                    8 => {
                        went_wrong |= gathering.outcome().is_none();
                        present.insert(connection, size);
                        gathering.handle_join(now, connection, join(size + random.below(3), size))
                    }
                    9 => {
                        went_wrong |= gathering.outcome().is_none();
                        present.insert(connection, 0);
                        gathering.handle_join(now, connection, join(random.below(size), size + 1))
                    }
                    10 => {
                        let stale = Join { session: [1; 16], ..join(random.below(size), size) };
                        let told = rejection(gathering.handle_join(now, connection, stale), &[connection]);
                        assert_eq!(told.reason, Reason::Stale, "seed {seed}");
                        None
                    }
                    11 => {
                        now += Duration::from_millis(random.below(4000) as u64);
                        let is_late = gathering.deadline().is_some_and(|deadline| deadline.has_passed(now));
                        went_wrong |= is_late;
                        let tell = gathering.handle_timeout(now);
                        assert_eq!(tell.is_some(), is_late, "seed {seed}");
                        tell
                    }
                    _ => continue,
                };
                for (told, message) in tell
                    .into_iter()
                    .flat_map(|tell| tell.connections.into_iter().map(move |to| (to, tell.message.clone())))
                {
                    assert!(present.contains_key(&told), "seed {seed}: {told} is not there");
                    assert_eq!(answers.insert(told, message), None, "seed {seed}: {told} was told twice");
                }
            }
            // Whoever is still waiting hears at the deadline.
            if let Some(deadline) = gathering.deadline() {
                went_wrong = true;
                now += deadline.remaining(now);
                for told in gathering.handle_timeout(now).unwrap().connections {
                    assert!(
                        answers.insert(told, Message::Table { generation: 0, members: vec![] }).is_none(),
                        "seed {seed}"
                    );
                }
                answers.retain(|_, message| !matches!(message, Message::Table { generation: 0, .. }));
                present.clear();
            }
            for (connection, rank) in &present {
                assert!(answers.contains_key(connection), "seed {seed}: rank {rank} was told nothing");
            }
            let tables = answers.values().filter(|message| matches!(message, Message::Table { .. })).count();
            if went_wrong {
                assert_eq!(tables, 0, "seed {seed}");
                let mut kinds: Vec<_> = answers.values().collect();
                kinds.dedup();
                assert!(kinds.len() <= 1, "seed {seed}: {kinds:?}");
            } else {
                assert_eq!(tables, size, "seed {seed}");
                let table = answers.values().find(|message| matches!(message, Message::Table { .. }));
                let Some(Message::Table { members, .. }) = table else { panic!("seed {seed}") };
                assert!(members.iter().enumerate().all(|(rank, member)| member.rank == rank), "seed {seed}");
            }
        }
    }
}
