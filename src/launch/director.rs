//! Who decides in a job: the seam between the loop that watches processes and what is to become of them.
//!
//! There are two: [`Fixed`], for a world whose ranks are all there from the start to the end, and the director of an
//! [elastic](super::fleet) job, whose workers come and go.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::job::Plan;
use super::spawn::{Input, WorkerPlan};
use super::supervise::{Action, Cause, Event, Supervisor};

/// Takes what happens, gives what is to be done. Workers are numbers that are used once.
pub(super) trait Director {
    /// Takes an event.
    fn handle_event(&mut self, now: Instant, event: Event);

    /// Does what is due at `now`.
    fn handle_timeout(&mut self, now: Instant);

    /// When [`Director::handle_timeout`] is to be called next.
    fn poll_deadline(&self) -> Option<Instant>;

    /// The next thing to do.
    fn poll_action(&mut self) -> Option<Action>;

    /// Whether the next action starts a worker: the shell looks around between two of them.
    fn is_spawning(&self) -> bool;

    /// Why the job ended, once nothing of any worker is left.
    fn outcome(&self) -> Option<Cause>;

    /// How a worker is started. `input` is what the first one reads.
    fn worker(&self, worker: usize, input: Input) -> Option<WorkerPlan>;

    /// The number that stands before a worker's lines.
    fn label(&self, worker: usize) -> usize {
        worker
    }

    /// What a worker is called, such as `rank 3`.
    fn name(&self, worker: usize) -> String;

    /// The name of a worker's host.
    fn host_name(&self, worker: usize) -> String;

    /// The folder that keeps a worker's output.
    fn folder(&self, worker: usize) -> String;

    /// What else is to be watched for being readable.
    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Some of what is watched is readable.
    fn handle_readable(&mut self, _now: Instant) {}

    /// The processes of its own that are not workers: they are not orphans.
    fn own_processes(&self) -> Vec<rustix::process::Pid> {
        Vec::new()
    }
}

/// Directs a job whose ranks are all there from the start to the end.
pub(super) struct Fixed<'a> {
    plan: &'a Plan,
    supervisor: Supervisor,
}

impl<'a> Fixed<'a> {
    pub(super) fn new(now: Instant, plan: &'a Plan) -> Self {
        Self { plan, supervisor: Supervisor::new(now, plan.size(), plan.job.policy) }
    }
}

impl Director for Fixed<'_> {
    fn handle_event(&mut self, now: Instant, event: Event) {
        self.supervisor.handle_event(now, event);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.supervisor.handle_timeout(now);
    }

    fn poll_deadline(&self) -> Option<Instant> {
        self.supervisor.poll_deadline()
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.supervisor.poll_action()
    }

    fn is_spawning(&self) -> bool {
        self.supervisor.is_spawning()
    }

    fn outcome(&self) -> Option<Cause> {
        self.supervisor.outcome()
    }

    fn worker(&self, worker: usize, input: Input) -> Option<WorkerPlan> {
        self.plan.worker(worker, input)
    }

    fn name(&self, worker: usize) -> String {
        format!("rank {worker}")
    }

    fn host_name(&self, worker: usize) -> String {
        self.plan.host_name(worker).into()
    }

    fn folder(&self, worker: usize) -> String {
        let width = super::log::width(self.plan.size());
        format!("rank.{worker:0width$}")
    }
}
