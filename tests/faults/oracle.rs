//! Holds what each worker says against what the others said about the same step.

use std::collections::BTreeMap;

use crate::told::{Step, Told};
use crate::worker::expected;

/// What is known of a job's steps so far.
#[derive(Debug, Default)]
pub struct Oracle {
    steps: BTreeMap<u64, Step>,
    /// Of each process, the last step it has in its state.
    last: BTreeMap<u32, u64>,
    /// The digest after each step, whoever said it.
    digests: BTreeMap<u64, u64>,
    ends: Vec<(u64, u64)>,
}

impl Oracle {
    /// A process said a line. Returns what is wrong with it, if anything.
    pub fn hear(&mut self, pid: u32, told: &Told) -> Result<(), String> {
        match told {
            Told::In { .. } | Told::Out { .. } => Ok(()),
            Told::Synced { step, digest, .. } => {
                if self.last.get(&pid).is_some_and(|last| last >= step) {
                    return Err(format!("process {pid}: {told:?} after step {:?}", self.last[&pid]));
                }
                self.last.insert(pid, *step);
                self.hear_digest(*step, *digest)
            }
            Told::Step(said) => self.hear_step(pid, said),
            Told::End { step, digest, .. } => {
                self.ends.push((*step, *digest));
                self.hear_digest(*step, *digest)
            }
        }
        .map_err(|what| format!("process {pid}: {what}"))
    }

    fn hear_step(&mut self, pid: u32, said: &Step) -> Result<(), String> {
        let last = self.last.insert(pid, said.step);
        if last != Some(said.step - 1) {
            return Err(format!("step {} after {last:?}: one is missing or was made twice", said.step));
        }
        if said.sum != expected(&said.by, said.step, 0) {
            return Err(format!("{said:?} is not the sum over its contributors"));
        }
        if !said.by.contains(&said.slot) {
            return Err(format!("{said:?} came to one that gave nothing"));
        }
        let known = self.steps.entry(said.step).or_insert_with(|| said.clone());
        if (known.generation, &known.by, known.sum) != (said.generation, &said.by, said.sum) {
            return Err(format!("two saw a step differently: {known:?} and {said:?}"));
        }
        self.hear_digest(said.step, said.digest)
    }

    fn hear_digest(&mut self, step: u64, digest: u64) -> Result<(), String> {
        let known = *self.digests.entry(step).or_insert(digest);
        if known == digest {
            return Ok(());
        }
        Err(format!("the state after step {step} has the digest {digest:x}, that of others was {known:x}"))
    }

    /// The highest step that anybody finished.
    pub fn highest(&self) -> u64 {
        self.steps.keys().next_back().copied().unwrap_or(0)
    }

    /// A step, as it was said.
    pub fn step(&self, number: u64) -> Option<&Step> {
        self.steps.get(&number)
    }

    /// The last step in a process's state.
    pub fn last_of(&self, pid: u32) -> u64 {
        self.last.get(&pid).copied().unwrap_or(0)
    }

    /// At the end: views were followed in order, and those that were there to the end have made every step that counts.
    pub fn check_end(&self) -> Result<(), String> {
        let generations: Vec<u64> = self.steps.values().map(|step| step.generation).collect();
        if !generations.is_sorted() {
            return Err(format!("generations went back: {generations:?}"));
        }
        match self.ends.iter().max() {
            None => Err("nobody came to the end".into()),
            // Others were asked to leave earlier.
            Some((step, _)) if *step < self.highest() => Err(format!("the end is at {step}, not {}", self.highest())),
            Some(_) => Ok(()),
        }
    }
}
