//! What must hold, whatever happens. The first violation ends a run.

use std::collections::BTreeMap;

use crate::membership::registry::{Keeper, Kept, State};
use crate::types::Generation;
use crate::wire::handshake::JobDigest;
use crate::wire::registry::{Slot, Token};

/// The eyes that see all processes at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Checks {
    /// The members and the number of steps that count, by generation.
    views: BTreeMap<u64, (Vec<Slot>, u64)>,
    /// The generation whose members contributed to a step that counts.
    steps: BTreeMap<u64, u64>,
    /// Whose a slot is, from its first view on.
    owners: BTreeMap<Slot, Token>,
    /// The state on the disk.
    stored: Option<State>,
    pub(super) failure: Option<String>,
}

impl Checks {
    pub(super) fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    /// How many steps count for somebody.
    pub(super) fn counted(&self) -> u64 {
        self.steps.keys().next_back().copied().unwrap_or(0)
    }

    /// How many views there were.
    pub(super) fn views(&self) -> usize {
        self.views.len()
    }

    /// Somebody stores, publishes or installs a view.
    pub(super) fn view(&mut self, by: &str, generation: u64, members: &[Slot], counted: u64) {
        let known = self.views.entry(generation).or_insert_with(|| (members.to_vec(), counted));
        if known.0 != members || known.1 != counted {
            let (others, other) = known.clone();
            self.fail(format!(
                "{by} takes generation {generation} to have members {members:?} and {counted} steps, another takes it to \
                 have {others:?} and {other}"
            ));
        }
    }

    /// A process is in a slot.
    pub(super) fn owner(&mut self, slot: Slot, token: Token) {
        let owner = *self.owners.entry(slot).or_insert(token);
        if owner != token {
            self.fail(format!("slot {slot} is given twice"));
        }
    }

    /// A process counts a step: it applies what the members of `generation` contributed.
    pub(super) fn step(&mut self, by: &str, before: u64, step: u64, generation: u64, fewest: usize) {
        if step != before + 1 {
            self.fail(format!("{by} counts step {step} after step {before}"));
        }
        let known = *self.steps.entry(step).or_insert(generation);
        if known != generation {
            self.fail(format!(
                "{by} counts step {step} as generation {generation} made it, another as generation {known} did"
            ));
        }
        let contributors = self.views.get(&generation).map_or(0, |(members, _)| members.len());
        if contributors < fewest {
            self.fail(format!("{by} counts step {step} of {contributors} contributors, at least {fewest} are needed"));
        }
    }

    /// A state is on the disk.
    pub(super) fn stored(&mut self, state: &State) {
        let members: Vec<Slot> = state.members.iter().map(|member| member.slot).collect();
        self.view("the disk", state.generation.0, &members, state.counted);
        if let Some(before) = &self.stored
            && (state.generation < before.generation || state.next_slot < before.next_slot)
        {
            let (was, is) = (before.generation, state.generation);
            self.fail(format!(
                "the disk goes from {was} to {is}, its slots from {} to {}",
                before.next_slot, state.next_slot
            ));
        }
        let kept = file(state);
        match Kept::decode(&kept.encode()) {
            Ok(read) if read == kept => {}
            _ => self.fail(format!("a state is not read as it was written: {state:?}")),
        }
        self.stored = Some(state.clone());
    }

    /// The registry says to somebody that a generation is.
    pub(super) fn said(&mut self, generation: u64) {
        let stored = self.stored.as_ref().map_or(0, |state| state.generation.0);
        if stored < generation {
            self.fail(format!("generation {generation} is said before it is on the disk, which has {stored}"));
        }
    }

    pub(super) fn disk(&self) -> Option<&State> {
        self.stored.as_ref()
    }
}

/// The registry's file with a state in it.
pub(super) fn file(state: &State) -> Kept {
    let keeper = Keeper { job: JobDigest([0; 32]), is_launcher: false, pid: 1, host_name: "node".into() };
    Kept { keeper, before: Generation(0), state: Some(state.clone()) }
}
