//! What a change of view costs: messages and bytes at the registry and at each member, and time.

use crate::wire::registry::{FromRegistry, ToRegistry};

use super::plan::Time;

/// Messages and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Traffic {
    fn add(&mut self, messages: u64, bytes: usize) {
        self.messages += messages;
        self.bytes += messages * bytes as u64;
    }
}

/// The counters of a run. Signs of life are not counted: they cost the same whatever happens.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// What the registry sends and receives.
    pub(super) sent: Traffic,
    pub(super) received: Traffic,
    /// What one member, the witness, sends and receives.
    pub(super) witness: usize,
    pub(super) witness_sent: Traffic,
    pub(super) witness_received: Traffic,
    /// When each view was published.
    pub(super) views: Vec<(u64, Time)>,
    /// When the last member installed the view.
    pub(super) installed: Time,
}

impl Tally {
    pub(super) fn from_registry(&mut self, receivers: usize, message: &FromRegistry) {
        if !matches!(message, FromRegistry::Probe) {
            self.sent.add(receivers as u64, message.encode().len());
        }
    }

    pub(super) fn to_registry(&mut self, message: &ToRegistry) {
        if !matches!(message, ToRegistry::Heartbeat { .. }) {
            self.received.add(1, message.encode().len());
        }
    }

    pub(super) fn to_member(&mut self, member: usize, message: &FromRegistry) {
        if member == self.witness && !matches!(message, FromRegistry::Probe) {
            self.witness_received.add(1, message.encode().len());
        }
    }

    pub(super) fn from_member(&mut self, member: usize, message: &ToRegistry) {
        if member == self.witness && !matches!(message, ToRegistry::Heartbeat { .. }) {
            self.witness_sent.add(1, message.encode().len());
        }
    }

    /// Members do no work between the changes.
    pub(super) fn is_stopped(&self) -> bool {
        true
    }
}
