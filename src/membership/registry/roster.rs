//! The slots: who registered, over which connection, and where each stands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Connection;
use crate::wire::registry::{ProcessRecord, Report, Slot, Token, Why};

/// Where a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It waits for a view that it is in.
    Newcomer,
    /// It is in the view.
    Member,
    /// It is in the view and said goodbye.
    Left,
    /// It is in the view, or in the one that is being published, and is judged to be out.
    Gone,
}

/// A broken connection.
#[derive(Clone, Debug)]
pub(super) struct Away {
    /// How it broke, in words.
    pub(super) detail: String,
    /// Why the member is out if it does not come back.
    pub(super) why: Why,
}

/// One process that registered.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) token: Token,
    pub(super) process: Arc<ProcessRecord>,
    /// Whether the launcher wished for this slot.
    pub(super) is_wished: bool,
    /// Changed by [`Slots::set_standing`] alone.
    pub(super) standing: Standing,
    pub(super) connection: Option<Connection>,
    pub(super) away: Option<Away>,
    /// How its process ended.
    pub(super) exited: Option<String>,
    /// How many steps counted when it joined; none for the members of the first view, who bring the state.
    pub(super) joined: Option<u64>,
    /// What it reported in this view.
    pub(super) report: Option<Report>,
    /// When it last gave a sign of life.
    pub(super) heard: Instant,
    pub(super) progress: u64,
    /// Whether it waits for others, as it last said.
    pub(super) is_waiting: bool,
    /// How many steps count, as it last said.
    pub(super) counted: u64,
    /// When `progress` last grew.
    pub(super) advanced: Instant,
    /// Whether it was named as silent or slow, so that it is named once.
    pub(super) is_named: bool,
}

impl Entry {
    pub(super) fn new(now: Instant, token: Token, process: ProcessRecord, connection: Option<Connection>) -> Self {
        Entry {
            token,
            process: Arc::new(process),
            is_wished: false,
            standing: Standing::Newcomer,
            connection,
            away: None,
            exited: None,
            joined: None,
            report: None,
            heard: now,
            progress: 0,
            is_waiting: false,
            counted: 0,
            advanced: now,
            is_named: false,
        }
    }

    /// Whether it is in the view, and neither gone nor about to go.
    pub(super) fn is_member(&self) -> bool {
        self.standing == Standing::Member
    }

    /// Whether no step has counted with it yet when `counted` steps count.
    pub(super) fn is_fresh(&self, counted: u64) -> bool {
        self.joined == Some(counted)
    }
}

/// All processes that matter: those that wait, those of the view.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    entries: BTreeMap<Slot, Entry>,
    by_token: BTreeMap<Token, Slot>,
    by_connection: BTreeMap<Connection, Slot>,
    newcomers: BTreeSet<Slot>,
    members: usize,
    /// The slots of the view, in the order of ranks.
    pub(super) order: Vec<Slot>,
}

impl Slots {
    pub(super) fn get(&self, slot: Slot) -> Option<&Entry> {
        self.entries.get(&slot)
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Entry> {
        self.entries.get_mut(&slot)
    }

    pub(super) fn of_token(&self, token: &Token) -> Option<Slot> {
        self.by_token.get(token).copied()
    }

    pub(super) fn of_connection(&self, connection: Connection) -> Option<Slot> {
        self.by_connection.get(&connection).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Entry)> {
        self.entries.iter().map(|(slot, entry)| (*slot, entry))
    }

    /// Those of the view, in the order of ranks.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (Slot, &Entry)> {
        self.order.iter().filter_map(|slot| self.entries.get(slot).map(|entry| (*slot, entry)))
    }

    /// Those of the view that go on, in the order of ranks.
    pub(super) fn members(&self) -> impl Iterator<Item = (Slot, &Entry)> {
        self.in_order().filter(|(_, entry)| entry.is_member())
    }

    /// Those that wait for a view, in the order of slots.
    pub(super) fn newcomers(&self) -> impl Iterator<Item = (Slot, &Entry)> {
        self.newcomers.iter().filter_map(|slot| self.entries.get(slot).map(|entry| (*slot, entry)))
    }

    pub(super) fn newcomer_count(&self) -> usize {
        self.newcomers.len()
    }

    pub(super) fn member_count(&self) -> usize {
        self.members
    }

    /// Nobody listened for the last `length`: what was not heard then was not unsaid.
    pub(super) fn forgive(&mut self, now: Instant, length: Duration) {
        for entry in self.entries.values_mut() {
            entry.heard = (entry.heard + length).min(now);
            entry.advanced = (entry.advanced + length).min(now);
        }
    }

    pub(super) fn set_standing(&mut self, slot: Slot, standing: Standing) {
        let Some(entry) = self.entries.get_mut(&slot) else { return };
        let before = std::mem::replace(&mut entry.standing, standing);
        self.uncount(slot, before);
        self.count(slot, standing);
    }

    fn count(&mut self, slot: Slot, standing: Standing) {
        match standing {
            Standing::Newcomer => _ = self.newcomers.insert(slot),
            Standing::Member => self.members += 1,
            Standing::Left | Standing::Gone => {}
        }
    }

    fn uncount(&mut self, slot: Slot, standing: Standing) {
        match standing {
            Standing::Newcomer => _ = self.newcomers.remove(&slot),
            Standing::Member => self.members -= 1,
            Standing::Left | Standing::Gone => {}
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn insert(&mut self, slot: Slot, entry: Entry) {
        self.by_token.insert(entry.token, slot);
        if let Some(connection) = entry.connection {
            self.by_connection.insert(connection, slot);
        }
        self.count(slot, entry.standing);
        self.entries.insert(slot, entry);
    }

    /// Forgets a slot. Its connection stays open, and is nobody's.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<Entry> {
        let entry = self.entries.remove(&slot)?;
        self.by_token.remove(&entry.token);
        self.uncount(slot, entry.standing);
        if let Some(connection) = entry.connection {
            self.by_connection.remove(&connection);
        }
        Some(entry)
    }

    /// Ties a slot to a connection, and returns the one that it had before.
    pub(super) fn bind(&mut self, slot: Slot, connection: Connection) -> Option<Connection> {
        let entry = self.entries.get_mut(&slot)?;
        let before = entry.connection.replace(connection);
        if let Some(before) = before {
            self.by_connection.remove(&before);
        }
        self.by_connection.insert(connection, slot);
        before.filter(|before| *before != connection)
    }

    /// Unties a slot from its connection.
    pub(super) fn unbind(&mut self, slot: Slot) -> Option<Connection> {
        let connection = self.entries.get_mut(&slot)?.connection.take()?;
        self.by_connection.remove(&connection);
        Some(connection)
    }

    /// The lowest slot from `from` on that nobody has.
    pub(super) fn lowest_free(&self, from: Slot) -> Slot {
        let mut free = from;
        for slot in self.entries.range(from..).map(|(slot, _)| *slot) {
            if slot != free {
                break;
            }
            free += 1;
        }
        free
    }
}
