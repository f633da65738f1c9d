//! Waiting for a device, with an eye on the other ranks.

use std::time::{Duration, Instant};

use super::worker::{Failure, Job};
use crate::comm::call::Call;
use crate::types::{Algorithm, Error, Result, Signature};

/// How often is asked without a pause, then how long a pause is, and how often among these the network is asked.
const SPINS: usize = 2000;
const NAP: Duration = Duration::from_micros(50);
const SPINS_PER_LOOK: usize = 64;

/// The job's call for errors.
pub(super) fn signature(job: &Job) -> Signature {
    let hosts = || job.communicator.algorithm_for(&Call::barrier()).unwrap_or(Algorithm::Dissemination);
    let algorithm = job.carrier.get().unwrap_or_else(hosts);
    job.call.signature(algorithm, job.communicator.settings().deterministic, job.communicator.size())
}

/// Asks until there is an answer, somebody gives the call up, or its deadline passes; `detail` says what was waited
/// for.
pub(super) fn wait<T>(
    job: &Job,
    what: &str,
    detail: &str,
    ask: impl FnMut(Instant) -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let since = Instant::now();
    wait_until(job, ask, || Error::Timeout {
        operation: what.into(),
        waiting_for: (0..job.communicator.size()).filter(|&rank| rank != job.communicator.rank()).collect(),
        waited: since.elapsed(),
        detail: detail.into(),
    })
}

/// As [`wait`], with words of its own for what is late.
pub(super) fn wait_until<T>(
    job: &Job,
    ask: impl FnMut(Instant) -> Result<Option<T>, Failure>,
    late: impl FnOnce() -> Error,
) -> Result<T, Failure> {
    let signature = signature(job);
    poll(job, ask, late, || job.communicator.refusal(&signature))
}

/// As [`wait_until`], where other ranks may be done with the call: that one is gone is not known to matter yet.
pub(super) fn wait_apart<T>(
    job: &Job,
    ask: impl FnMut(Instant) -> Result<Option<T>, Failure>,
    late: impl FnOnce() -> Error,
) -> Result<T, Failure> {
    let signature = signature(job);
    poll(job, ask, late, || job.communicator.abandonment(&signature))
}

fn poll<T>(
    job: &Job,
    mut ask: impl FnMut(Instant) -> Result<Option<T>, Failure>,
    late: impl FnOnce() -> Error,
    told: impl Fn() -> Option<Error>,
) -> Result<T, Failure> {
    let mut polls = 0;
    loop {
        let now = Instant::now();
        let is_late = job.deadline.has_passed(now);
        let looks = is_late || polls >= SPINS || polls % SPINS_PER_LOOK == 0;
        if looks {
            if let Some(cause) = job.outcome.given_up() {
                return Err(Failure::Own(cause));
            }
            if let Some(cause) = told() {
                return Err(Failure::Network(cause));
            }
        }
        if is_late {
            return Err(Failure::Own(late()));
        }
        if let Some(answer) = ask(now)? {
            return Ok(answer);
        }
        pause(&mut polls);
    }
}

/// How long a rank that NCCL has failed on waits for word of the others, before it tells its own: a rank that died is known
/// within a second.
#[cfg(feature = "nccl")]
const WORD_LIMIT: Duration = Duration::from_secs(1);

/// Why the call fails as the others or the host's connections tell it, if they do within a moment.
#[cfg(feature = "nccl")]
pub(super) fn word_of_others(job: &Job) -> Option<Error> {
    let signature = signature(job);
    let since = Instant::now();
    let mut polls = SPINS;
    loop {
        let cause = job.communicator.refusal(&signature);
        let now = Instant::now();
        if cause.is_some() || now.duration_since(since) > WORD_LIMIT || job.deadline.has_passed(now) {
            return cause;
        }
        pause(&mut polls);
    }
}

/// Lets others run, for longer after a while.
pub(super) fn pause(polls: &mut usize) {
    *polls += 1;
    if *polls < SPINS {
        std::thread::yield_now();
    } else {
        std::thread::park_timeout(NAP);
    }
}
