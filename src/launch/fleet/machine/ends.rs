//! What the end of a worker means.
//!
//! | how it ended | and its standing | means |
//! |---|---|---|
//! | it was asked to leave | any | it is gone, as was wanted |
//! | code 0 | it said goodbye; or it never was a member | done: its place is not filled again |
//! | code 0 | a member, as far as is known | the registry is asked: its goodbye may be on its way |
//! | code 0 | judged to be out | a failure: it did not say goodbye |
//! | anything else | it said goodbye | the job goes on, and its exit code is this one in the end |
//! | anything else | an operator wanted it out | replaced; nobody is to blame |
//! | anything else | any other | a failure: its host gets a mark, and it is replaced |
//!
//! Before the first view a program that cannot start is told from a host that is bad: the job ends when nothing of it is
//! left, or when as many starts failed as it has ranks.

use std::time::{Duration, Instant};

use super::{Exit, Fleet, Life, Standing, Worker};
use crate::launch::fleet::health::Rest;
use crate::launch::fleet::{Sizes, words};
use crate::launch::supervise::Cause;
use crate::launch::words::{ALWAYS, NORMAL};

/// Without a registry to ask, a worker that ran for so long counts as one that was at work.
const AT_WORK: Duration = Duration::from_secs(10);

impl Fleet {
    /// A worker ended, for the first time it is heard.
    pub(super) fn on_end(&mut self, id: usize, cause: Cause, is_success: bool) {
        let runs = |worker: &&mut Worker| matches!(worker.life, Life::Starting | Life::Running);
        let Some(worker) = self.workers.get_mut(&id).filter(runs) else { return };
        worker.life = Life::Ended;
        worker.end = Some((cause, is_success));
        worker.kill_at = None;
        self.exits.push_back(Exit { worker: id, slot: worker.slot, how: how(cause) });
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
            self.is_done |= is_success;
            return;
        }
        if worker.is_asked {
            worker.is_settled = true;
            return;
        }
        match (is_success, worker.standing) {
            _ if self.is_over => {
                worker.is_settled = true;
                match worker.standing {
                    _ if is_success => {}
                    Standing::Left => self.fail_late(id, cause),
                    _ => self.say(NORMAL, format!("{} {}", self.in_words(id), how(cause))),
                }
            }
            (true, Standing::Member) if has_word => {}
            (true, Standing::Out { .. }) => self.fail(now, id, Cause::NoGoodbye { rank: id }),
            (true, _) => {
                worker.is_settled = true;
                worker.is_used_up = true;
                self.is_done = true;
                // Nobody says that its work is done but its exit code.
                if !has_word {
                    self.wind_up();
                }
            }
            (false, Standing::Left) => {
                worker.is_settled = true;
                worker.is_used_up = true;
                self.fail_late(id, cause);
            }
            (false, _) => self.fail(now, id, cause),
        }
    }

    fn fail_late(&mut self, id: usize, cause: Cause) {
        self.late_failure.get_or_insert(cause);
        self.say(ALWAYS, format!("{} {} after it had said goodbye", self.in_words(id), how(cause)));
    }

    /// A worker failed.
    fn fail(&mut self, now: Instant, id: usize, cause: Cause) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.is_settled = true;
        worker.is_used_up = !self.limits.respawn;
        let was_at_work = now.saturating_duration_since(worker.started) >= AT_WORK;
        let was_member = worker.has_joined || (!self.limits.owns_registry && was_at_work);
        let is_excused = worker.standing == Standing::Out { is_excused: true };
        let is_closed_up = worker.is_closed_up;
        let host = worker.placement.host.name.clone();
        let rest = match self.hosts.get_mut(&host) {
            Some(entry) if !is_excused => entry.health.handle_failure(now, was_member, self.limits.cooldown),
            _ => Rest::None,
        };
        self.failed_starts = if was_member { 0 } else { self.failed_starts + 1 };
        if !is_closed_up {
            self.first_failure.get_or_insert(cause);
        }
        let what = format!("{} {}", self.in_words(id), how(cause));
        if let Some(why) = self.cannot_start() {
            let cause = self.first_failure.unwrap_or(cause);
            return self.end(now, cause, Some(format!("{what}, {why}")));
        }
        match self.is_winding_up {
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
        let is_hopeless = !self.limits.respawn || self.failed_starts >= np.max(3);
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
