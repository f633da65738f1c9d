//! What the end of a worker means.
//!
//! | how it ended | and its standing | means |
//! |---|---|---|
//! | the launcher asked it to leave | any | it is gone, as was wanted |
//! | code 0 | it left as somebody else asked it to | it is gone: its place is not filled again, and its work is not done |
//! | code 0 | it said goodbye otherwise; or it never was a member | done: its place is not filled again |
//! | code 0 | a member, as far as is known | the registry is asked: its goodbye may be on its way |
//! | code 0 | judged to be out | a failure: it did not say goodbye |
//! | anything else | it said that its work is done | the job goes on, and its exit code is this one in the end |
//! | anything else | an operator wanted it out | replaced; nobody is to blame |
//! | anything else | any other, a goodbye too | a failure: its host gets a mark, and it is replaced |
//!
//! A failure of one that did not come to work (`health.rs`) is counted for its slot, and too many in a row give that up.
//!
//! Before the first view a program that cannot start is told from a host that is bad: the job ends when nothing of it is
//! left, or when as many starts failed as it has ranks.

use std::time::Instant;

use super::{AT_WORK, Exit, Fleet, Life, REMEMBERED, Standing, Worker};
use crate::launch::fleet::health::Rest;
use crate::launch::fleet::hosts::After;
use crate::launch::fleet::{Sizes, words};
use crate::launch::supervise::Cause;
use crate::launch::words::{ALWAYS, NORMAL};
use crate::wire::registry::Parting;

impl Fleet {
    /// A worker ended, for the first time it is heard.
    pub(super) fn on_end(&mut self, id: usize, cause: Cause, is_success: bool) {
        let runs = |worker: &&mut Worker| matches!(worker.life, Life::Starting | Life::Running);
        let Some(worker) = self.workers.get_mut(&id).filter(runs) else { return };
        worker.life = Life::Ended;
        worker.end = Some((cause, is_success));
        worker.kill_at = None;
        let how = format!("it {}", how(cause));
        if let Some(slot) = worker.slot {
            self.endings.insert(slot, how.clone());
            while self.endings.len() > REMEMBERED {
                self.endings.pop_first();
            }
        }
        self.exits.push_back(Exit { worker: id, slot: worker.slot, how });
    }

    /// Decides what a worker's end means, as soon as that can be known.
    pub(super) fn settle(&mut self, now: Instant, id: usize) {
        let is_open = |worker: &&mut Worker| !worker.is_settled;
        let Some(worker) = self.workers.get_mut(&id).filter(is_open) else { return };
        let Some((cause, is_success)) = worker.end else { return };
        let has_word = self.limits.owns_registry;
        if self.course.cause().is_some() {
            worker.is_settled = true;
            self.ended_badly |= !is_success;
            // One that left as it was asked to has finished a step, not its work.
            self.is_done |= is_success && worker.standing != Standing::Left(Parting::Asked);
            return;
        }
        if worker.is_asked {
            worker.is_settled = true;
            return;
        }
        match (is_success, worker.standing) {
            (true, Standing::Left(Parting::Asked)) => {
                worker.is_settled = true;
                worker.after = After::GivenUp;
            }
            _ if self.is_over => {
                worker.is_settled = true;
                match worker.standing {
                    Standing::Left(_) if is_success => self.is_done = true,
                    _ if is_success => {}
                    // Others finished the work without it, as without one that fell.
                    Standing::Left(Parting::Unsaid | Parting::Asked) if worker.is_closed_up && self.is_done => {
                        self.say(NORMAL, format!("{} {}", self.in_words(id), how(cause)));
                    }
                    Standing::Left(parting) => self.fail_late(id, cause, parting),
                    _ => self.say(NORMAL, format!("{} {}", self.in_words(id), how(cause))),
                }
            }
            (true, Standing::Member) if has_word => {}
            (true, Standing::Out { .. }) => self.fail(now, id, Cause::NoGoodbye { rank: id }),
            (true, standing) => {
                worker.is_settled = true;
                worker.after = After::UsedUp;
                self.is_done = true;
                // Nobody says that its work is done but its exit code.
                let is_unsaid = standing == Standing::Left(Parting::Unsaid);
                self.is_done_news |= is_unsaid;
                if !has_word || is_unsaid {
                    self.wind_up();
                }
            }
            (false, Standing::Left(Parting::Done)) => {
                worker.is_settled = true;
                worker.after = After::UsedUp;
                self.fail_late(id, cause, Parting::Done);
            }
            (false, _) => self.fail(now, id, cause),
        }
    }

    /// A worker failed that the others do not need any more.
    fn fail_late(&mut self, id: usize, cause: Cause, parting: Parting) {
        self.late_failure.get_or_insert(cause);
        let after = if parting == Parting::Done { " after it had said that its work is done" } else { "" };
        self.say(ALWAYS, format!("{} {}{after}", self.in_words(id), how(cause)));
    }

    /// A worker failed.
    fn fail(&mut self, now: Instant, id: usize, cause: Cause) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.is_settled = true;
        worker.after = if self.limits.respawn { After::Free } else { After::UsedUp };
        let has_lasted = now.saturating_duration_since(worker.started) >= AT_WORK;
        let is_unheard = !self.limits.owns_registry && has_lasted;
        let (was_member, was_at_work) = (worker.has_joined || is_unheard, worker.is_proven || is_unheard);
        let is_excused = worker.standing == Standing::Out { is_excused: true };
        let is_closed_up = worker.is_closed_up;
        let host = worker.placement.host.name.clone();
        let rest = match self.hosts.get_mut(&host) {
            Some(entry) if !is_excused => entry.health.handle_failure(now, was_at_work, self.limits.cooldown),
            _ => Rest::None,
        };
        self.failed_starts = if was_member { 0 } else { self.failed_starts + 1 };
        if !is_closed_up {
            self.first_failure.get_or_insert(cause);
        }
        // Until the first view the job is given up as a whole.
        let is_counted = !is_excused && !was_at_work && (self.has_view || !self.limits.owns_registry);
        let in_a_row = if is_counted && self.limits.respawn { self.hosts.count_failure(&host, id) } else { 0 };
        let is_given_up = in_a_row >= self.limits.respawn_limit;
        if let Some(worker) = self.workers.get_mut(&id).filter(|_| is_given_up) {
            worker.after = After::GivenUp;
        }
        let what = format!("{} {}", self.in_words(id), how(cause));
        if let Some(why) = self.cannot_start() {
            let cause = self.first_failure.unwrap_or(cause);
            return self.end(now, cause, Some(format!("{what}, {why}")));
        }
        match self.is_winding_up {
            _ if is_given_up => self.say(NORMAL, format!("{what}; {}", words::given_up(in_a_row, &host))),
            true => self.say(NORMAL, what),
            false => self.say(NORMAL, format!("{what}; {}", words::consequence(self.limits.respawn, rest, &host))),
        }
    }

    /// Why the job is not going to come to work, if that is so.
    fn cannot_start(&self) -> Option<String> {
        let Sizes { np, min_np, .. } = self.limits.sizes;
        let living = self.workers.values().filter(|worker| worker.is_alive()).count();
        if self.limits.owns_registry {
            let is_hopeless = living == 0 || self.failed_starts >= np || (!self.limits.respawn && living < min_np);
            return (!self.has_view && is_hopeless).then(|| "and the job had not begun".into());
        }
        let given_up = self.workers.values().filter(|worker| worker.after != After::Free).count();
        let is_hopeless = !self.limits.respawn || self.failed_starts >= np.max(3) || self.hosts.room() <= given_up;
        (living == 0 && is_hopeless && !self.is_done).then(|| "and no worker is left".into())
    }

    /// A worker's name, with host and process.
    fn in_words(&self, id: usize) -> String {
        let pid = self.workers.get(&id).and_then(|worker| worker.pid);
        let pid = pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
        format!("{} (host {}{pid})", self.name(id), self.host_name(id))
    }
}

/// How a worker ended, to follow its name.
fn how(cause: Cause) -> String {
    match cause {
        Cause::Failed { ending, .. } => ending.to_string(),
        Cause::NotStarted { errno, .. } => {
            format!("could not be started: {}", std::io::Error::from_raw_os_error(errno))
        }
        Cause::NoGoodbye { .. } => "exited with code 0 without a goodbye".into(),
        _ => "is lost: its guard was killed".into(),
    }
}
