//! When to ask which hosts there are, and what to make of the answers: a state machine.
//!
//! A script is run again and again, a second after it ended. What it printed last counts until it prints something else:
//! a script that fails, hangs or prints what is not understood changes nothing, and is warned about once until it works
//! again. Only before its first answer is that different: one that cannot be run at all is an error.

use std::time::{Duration, Instant};

use crate::launch::hosts::{Host, parse_discovered};

/// From the end of one run to the next. As short as in Horovod: a host that comes is to be used soon.
const PERIOD: Duration = Duration::from_secs(1);

/// How long a run may take. Services that know about hosts may be slow; one that hangs is to be asked again.
const LIMIT: Duration = Duration::from_secs(30);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Run the script.
    Run,
    /// End it: it takes too long.
    Kill,
}

/// What an answer means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The same as before.
    Same,
    /// These are the hosts now.
    Hosts(Vec<Host>),
    /// Something the user should know; the hosts are as before.
    Warning(String),
    /// The script cannot be run; there is no job without it.
    Useless(String),
}

#[derive(Clone, Copy, Debug)]
enum State {
    Waiting { until: Instant },
    Running { since: Instant, is_killed: bool },
}

/// Asks for hosts.
#[derive(Debug)]
pub(super) struct Discovery {
    slots: Option<usize>,
    state: State,
    hosts: Option<Vec<Host>>,
    /// Whether the last run failed.
    is_failing: bool,
}

impl Discovery {
    /// Asks for the first time at once. `slots` is the number of a host that is listed without one.
    pub(super) fn new(now: Instant, slots: Option<usize>) -> Self {
        Self { slots, state: State::Waiting { until: now }, hosts: None, is_failing: false }
    }

    /// What is due at `now`.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<Action> {
        match self.state {
            State::Waiting { until } if now >= until => {
                self.state = State::Running { since: now, is_killed: false };
                Some(Action::Run)
            }
            State::Running { since, is_killed: false } if now.saturating_duration_since(since) >= LIMIT => {
                self.state = State::Running { since, is_killed: true };
                Some(Action::Kill)
            }
            _ => None,
        }
    }

    /// When [`Discovery::handle_timeout`] is to be called next.
    pub(super) fn poll_deadline(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { until } => Some(until),
            State::Running { since, is_killed: false } => since.checked_add(LIMIT),
            State::Running { is_killed: true, .. } => None,
        }
    }

    /// The script ended: with what it printed, or with what went wrong and whether it could not even be found.
    pub(super) fn handle_end(&mut self, now: Instant, printed: Result<&str, (String, bool)>) -> Answer {
        let is_killed = matches!(self.state, State::Running { is_killed: true, .. });
        self.state = State::Waiting { until: now + PERIOD };
        let (what, is_missing) = match printed {
            _ if is_killed => (format!("it did not end within {} s", LIMIT.as_secs()), false),
            Ok(text) => match parse_discovered(text, self.slots) {
                Ok(hosts) => return self.hear(hosts),
                Err(what) => (what, false),
            },
            Err(failure) => failure,
        };
        match &self.hosts {
            None if is_missing => Answer::Useless(what),
            _ if std::mem::replace(&mut self.is_failing, true) => Answer::Same,
            None => Answer::Warning(format!("{what}; asking again")),
            Some(_) => Answer::Warning(format!("{what}; the hosts stay as they were")),
        }
    }

    fn hear(&mut self, hosts: Vec<Host>) -> Answer {
        self.is_failing = false;
        let is_same = self
            .hosts
            .as_ref()
            .is_some_and(|known| known.len() == hosts.len() && known.iter().all(|host| hosts.contains(host)));
        if is_same {
            return Answer::Same;
        }
        self.hosts = Some(hosts.clone());
        Answer::Hosts(hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(list: &[(&str, usize)]) -> Vec<Host> {
        list.iter().map(|(name, slots)| Host::new(*name, *slots)).collect()
    }

    fn run(discovery: &mut Discovery, now: &mut Instant, printed: Result<&str, (String, bool)>) -> Answer {
        *now = discovery.poll_deadline().expect("it is asked again and again").max(*now);
        assert_eq!(discovery.handle_timeout(*now), Some(Action::Run));
        assert_eq!(discovery.handle_timeout(*now), None, "one run at a time");
        discovery.handle_end(*now, printed)
    }

    fn failed(what: &str) -> Result<&str, (String, bool)> {
        Err((what.into(), false))
    }

    #[test]
    fn the_last_good_answer_counts_and_one_warning_is_enough() {
        let mut now = Instant::now();
        let mut discovery = Discovery::new(now, None);
        let mut run = |printed| run(&mut discovery, &mut now, printed);
        assert_eq!(run(Ok("a:2\nb:1")), Answer::Hosts(hosts(&[("a", 2), ("b", 1)])));
        assert_eq!(run(Ok("b:1\na:2")), Answer::Same, "the order says nothing");
        let warning = |what: &str| Answer::Warning(format!("{what}; the hosts stay as they were"));
        assert_eq!(run(failed("it exited with code 1")), warning("it exited with code 1"));
        assert_eq!(run(failed("it exited with code 2")), Answer::Same, "said once");
        assert_eq!(run(Err(("not found".into(), true))), Answer::Same, "it was there before");
        assert_eq!(run(Ok("a:2\nb:1")), Answer::Same);
        assert!(matches!(run(Ok("a:x")), Answer::Warning(_)), "it worked in between");
        assert_eq!(run(Ok("a:3\nb:1")), Answer::Hosts(hosts(&[("a", 3), ("b", 1)])));
        assert_eq!(run(Ok("")), Answer::Hosts(vec![]), "no host is an answer");
    }

    #[test]
    fn a_script_that_was_never_there_is_an_error() {
        let mut now = Instant::now();
        let mut discovery = Discovery::new(now, None);
        let warning = Answer::Warning("it exited with code 1; asking again".into());
        assert_eq!(run(&mut discovery, &mut now, failed("it exited with code 1")), warning);
        assert_eq!(run(&mut discovery, &mut now, Err(("not found".into(), true))), Answer::Useless("not found".into()));
    }

    #[test]
    fn runs_are_a_second_apart_and_one_that_hangs_is_ended() {
        let mut now = Instant::now();
        let mut discovery = Discovery::new(now, None);
        run(&mut discovery, &mut now, Ok("a:1"));
        assert_eq!(discovery.poll_deadline(), Some(now + PERIOD));
        assert_eq!(discovery.handle_timeout(now), None);
        now += PERIOD;
        assert_eq!(discovery.handle_timeout(now), Some(Action::Run));
        assert_eq!(discovery.poll_deadline(), Some(now + LIMIT));
        now += LIMIT;
        assert_eq!(discovery.handle_timeout(now), Some(Action::Kill));
        assert_eq!((discovery.handle_timeout(now), discovery.poll_deadline()), (None, None), "its end comes");
        // What it printed before it was killed may be half an answer.
        let answer = discovery.handle_end(now, Ok("b:"));
        assert_eq!(answer, Answer::Warning("it did not end within 30 s; the hosts stay as they were".into()));
        assert_eq!(discovery.poll_deadline(), Some(now + PERIOD));
    }
}
