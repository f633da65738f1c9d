//! From a view's message to what the engine is to do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::{Action, Member, Stop};
use crate::types::Generation;
use crate::wire::registry::{Gone, Members, ProcessRecord, Report, Slot, ViewMessage, Why};

/// What becomes of the step under way, as this member sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This is the member's first view. It may need the state of the others: see [`Installation::newcomers`].
    Joined,
    /// The member stood at a boundary, and nothing was under way.
    Boundary,
    /// The step under way counts: its results are applied, and its commit returns as if it had passed.
    Counted,
    /// The step under way does not count: its collectives are run again, from the kept inputs, among the members of the
    /// new view. Also said where nothing was under way yet.
    Again,
    /// The step under way does not count and cannot be run again, because members that know nothing of it have joined:
    /// the program goes back to its last commit. Only where there were fewer members than the job needs.
    GivenUp,
}

/// A view, as the engine is to install it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The number of the view.
    pub generation: Generation,
    /// This member's slot.
    pub slot: Slot,
    /// This member's rank.
    pub rank: usize,
    /// All members, in the order of ranks.
    pub members: Arc<Vec<(Slot, Arc<ProcessRecord>)>>,
    /// How many steps count.
    pub counted: u64,
    /// What becomes of the step under way.
    pub outcome: Outcome,
    /// Who was in the view before and is not in this one.
    pub gone: Vec<Gone>,
    /// Who is in this view and was not in the one before; for a member's own first view, itself.
    pub joined: Vec<Slot>,
    /// Links between members of this view that are to be made again, by both ends: one of them has lost it.
    pub broken: Vec<(Slot, Slot)>,
    /// Members that no step has counted with yet: they need the state of the others. None in the first view, whose
    /// members bring the state.
    pub newcomers: Vec<Slot>,
}

/// The view that a member is in.
#[derive(Clone, Debug)]
pub(super) struct Current {
    pub(super) generation: Generation,
    members: Arc<Vec<(Slot, Arc<ProcessRecord>)>>,
}

impl Current {
    pub(super) fn has(&self, slot: Slot) -> bool {
        self.members.iter().any(|(member, _)| *member == slot)
    }
}

/// What becomes of a member's step when `counted` steps count; none if it cannot be.
fn outcome(report: Report, counted: u64, has_joined: bool) -> Option<Outcome> {
    if report.counted == counted {
        Some(match (report.boundary, has_joined) {
            (true, _) => Outcome::Boundary,
            (false, false) => Outcome::Again,
            (false, true) => Outcome::GivenUp,
        })
    } else if report.counted + 1 == counted && report.holds {
        Some(Outcome::Counted)
    } else {
        None
    }
}

impl Member {
    pub(super) fn install(&mut self, now: Instant, message: ViewMessage) {
        let generation = message.generation;
        if self.generation().is_some_and(|ours| generation <= ours) {
            return;
        }
        let ViewMessage { counted, members, mut gone, broken, newcomers, .. } = message;
        let (members, joined) = match (members, &self.view) {
            (Members::All(members), None) => (members, self.slot.into_iter().collect()),
            (Members::All(members), Some(view)) => {
                let is_in: BTreeSet<Slot> = members.iter().map(|(slot, _)| *slot).collect();
                let was_in: BTreeSet<Slot> = view.members.iter().map(|(slot, _)| *slot).collect();
                let told: BTreeSet<Slot> = gone.iter().map(|gone| gone.slot).collect();
                gone.extend(was_in.difference(&is_in).filter(|slot| !told.contains(slot)).map(|slot| Gone {
                    slot: *slot,
                    why: Why::Missing,
                    detail: "it is in no view any more".into(),
                }));
                (members, is_in.difference(&was_in).copied().collect::<Vec<_>>())
            }
            (Members::Change(added), Some(view)) if view.generation.0 + 1 == generation.0 => {
                let out: BTreeSet<Slot> = gone.iter().map(|gone| gone.slot).collect();
                let stay = view.members.iter().filter(|(slot, _)| !out.contains(slot)).cloned();
                let joined = added.iter().map(|(slot, _)| *slot).collect();
                (stay.chain(added).collect(), joined)
            }
            (Members::Change(_), _) => return self.reconnect(now, "a change of a view that is not the one here"),
        };
        let Some(slot) = self.slot else { return self.stop(Stop::Defect { what: "a view without a welcome".into() }) };
        let Some(rank) = members.iter().position(|(member, _)| *member == slot) else {
            let reason = "it is not in the view that it was sent".into();
            return self.stop(Stop::Evicted { generation, reason });
        };
        let outcome = match (&self.view, self.frozen) {
            (None, _) => Some(Outcome::Joined),
            (Some(_), None) => None,
            (Some(_), Some(report)) => outcome(report, counted, !joined.is_empty()),
        };
        let Some(outcome) = outcome else {
            let what = format!("{generation} says that {counted} steps count, this member reported {:?}", self.frozen);
            return self.stop(Stop::Defect { what });
        };
        let members = Arc::new(members);
        self.view = Some(Current { generation, members: members.clone() });
        self.frozen = None;
        self.is_suspending = false;
        self.needs_since = None;
        self.stalled_since = None;
        self.is_link_told = false;
        self.waits_until = None;
        self.excused_until = None;
        self.actions.push_back(Action::Install(Box::new(Installation {
            generation,
            slot,
            rank,
            members,
            counted,
            outcome,
            gone,
            joined,
            broken: broken.clone(),
            newcomers,
        })));
        // A link that was lost too late for this view to have it made again is still lost.
        if let Some(view) = &self.view {
            let is_made_again = |other: &Slot| broken.contains(&(slot.min(*other), slot.max(*other)));
            self.suspects.retain(|other, _| view.has(*other) && !is_made_again(other));
        }
        if !self.suspects.is_empty() {
            self.needs_since = Some(now);
            self.say_suspects();
        }
    }
}
