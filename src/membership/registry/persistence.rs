//! What outlives the registry's process: the view that members have, and who they are.
//!
//! A view is durable before anybody hears of it, so a registry that starts again from its state never gives a
//! generation or a slot of a view twice, and never a second verdict on a step. It waits for the members to come back;
//! what else it knew (who waits, who complained, who reported) they say again.

use std::collections::VecDeque;
use std::time::Instant;

use super::roster::{Away, Entry, Slots, Standing};
use super::timers::Timer;
use super::{Registry, RegistryConfig};
use crate::types::{Deadline, Generation};
use crate::wire::fields::{Input, put_u32};
use crate::wire::registry::{self as wire, Gone, MAX_MEMBERS, Malformed, ProcessRecord, Slot, Token, Why};

/// One member, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMember {
    /// Its number.
    pub slot: Slot,
    /// What it registered with.
    pub token: Token,
    /// Its process.
    pub process: ProcessRecord,
    /// How many steps counted when it joined; none for the members of the first view.
    pub joined: Option<u64>,
    /// Whether it said goodbye.
    pub has_left: bool,
}

/// What a registry needs to go on after it was started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The number of the view.
    pub generation: Generation,
    /// How many steps count.
    pub counted: u64,
    /// How often the view has changed.
    pub changes: u64,
    /// Whether a member has said that its work is done.
    pub is_ending: bool,
    /// The lowest slot that no view has used.
    pub next_slot: Slot,
    /// The members, in the order of ranks.
    pub members: Vec<StoredMember>,
    /// Who was in the view before and is not in this one.
    pub gone: Vec<Gone>,
    /// Links that this view makes again.
    pub broken: Vec<(Slot, Slot)>,
}

impl State {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        for number in [self.generation.0, self.counted, self.changes] {
            out.extend(number.to_le_bytes());
        }
        out.push(u8::from(self.is_ending));
        put_u32(out, self.next_slot);
        put_u32(out, self.members.len());
        for member in &self.members {
            put_u32(out, member.slot);
            out.extend(member.token);
            wire::put_process(out, &member.process);
            out.push(u8::from(member.joined.is_some()) | u8::from(member.has_left) << 1);
            out.extend(member.joined.unwrap_or(0).to_le_bytes());
        }
        put_u32(out, self.gone.len());
        self.gone.iter().for_each(|gone| wire::put_gone(out, gone));
        put_u32(out, self.broken.len());
        for (one, other) in &self.broken {
            put_u32(out, *one);
            put_u32(out, *other);
        }
    }

    pub(super) fn read(input: &mut Input<'_>) -> Result<Self, Malformed> {
        Ok(State {
            generation: Generation(input.u64()?),
            counted: input.u64()?,
            changes: input.u64()?,
            is_ending: input.bool()?,
            next_slot: input.u32()?,
            members: input.list(MAX_MEMBERS, stored_member)?,
            gone: input.list(2 * MAX_MEMBERS, wire::gone)?,
            broken: input.list(usize::MAX, |input| Ok((input.u32()?, input.u32()?)))?,
        })
    }
}

fn stored_member(input: &mut Input<'_>) -> Result<StoredMember, Malformed> {
    let (slot, token, process, flags) = (input.u32()?, input.array()?, wire::process(input)?, input.u8()?);
    if flags > 3 {
        return Err(Malformed("a flag that does not exist"));
    }
    let joined = input.u64()?;
    Ok(StoredMember { slot, token, process, joined: (flags & 1 != 0).then_some(joined), has_left: flags & 2 != 0 })
}

impl Registry {
    /// A registry of a job that begins where an earlier one ended at view `before`, all of whose members are gone: no
    /// generation is given twice.
    pub fn anew(now: Instant, config: RegistryConfig, before: Generation) -> Self {
        Registry { first: Generation(before.0 + 1), ..Registry::new(now, config) }
    }

    /// A registry that goes on from a state. It waits for the members to come back.
    pub fn restore(now: Instant, config: RegistryConfig, state: State) -> Self {
        let mut registry = Registry::new(now, config);
        registry.timers.clear_all();
        let mut slots = Slots::default();
        for StoredMember { slot, token, process, joined, has_left } in state.members {
            let mut entry = Entry::new(now, token, process, None);
            entry.joined = joined;
            if !has_left {
                entry.away = Some(Away {
                    detail: "it did not come back after the registry was restarted".into(),
                    why: Why::Missing,
                });
                registry.timers.set(Timer::Away(slot), Deadline::after(now, registry.config.restart_grace));
                registry.awaited.insert(slot);
            }
            slots.insert(slot, entry);
            slots.set_standing(slot, if has_left { Standing::Left } else { Standing::Member });
            slots.order.push(slot);
        }
        registry.timers.set(Timer::Look, Deadline::after(now, registry.config.name_after / 4));
        registry.slots = slots;
        registry.generation = Some(state.generation);
        registry.counted = state.counted;
        registry.changes = state.changes;
        registry.is_ending = state.is_ending;
        registry.next_slot = state.next_slot;
        registry.last_gone = state.gone;
        registry.last_broken = state.broken;
        registry.actions = VecDeque::new();
        registry.advance(now);
        registry
    }

    /// What is to be kept: the view that is, or the one that is about to be. None before the first.
    pub(super) fn state(&self) -> Option<State> {
        let (generation, counted, order) = match (&self.publication, self.generation) {
            (Some(publication), _) => (publication.generation, publication.counted, &publication.order),
            (None, Some(generation)) => (generation, self.counted, &self.slots.order),
            (None, None) => return None,
        };
        let (gone, broken, joined) = match &self.publication {
            Some(publication) => (&publication.gone, &publication.broken, &publication.joined[..]),
            None => (&self.last_gone, &self.last_broken, &[][..]),
        };
        let members = order.iter().filter_map(|slot| {
            let entry = self.slots.get(*slot)?;
            let joined = if joined.contains(slot) && self.generation.is_some() { Some(counted) } else { entry.joined };
            Some(StoredMember {
                slot: *slot,
                token: entry.token,
                process: ProcessRecord::clone(&entry.process),
                joined,
                has_left: entry.standing == Standing::Left,
            })
        });
        Some(State {
            generation,
            counted,
            changes: self.changes,
            is_ending: self.is_ending,
            next_slot: self.next_slot,
            members: members.collect(),
            gone: gone.clone(),
            broken: broken.clone(),
        })
    }
}
