//! A registry, and members as threads.

use std::borrow::Cow;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use phalanx::bootstrap::{Bind, KeySource, Settings, new_key};
use phalanx::elastic::{Elastic, RegistryService, State};
use phalanx::membership::registry::{Event, RegistryConfig};
use phalanx::types::{Generation, Result};
use phalanx::wire::handshake::JobKey;

/// The registry of a job, and what it said.
pub struct Job {
    pub registry: RegistryService,
    events: Mutex<Receiver<Event>>,
    key: JobKey,
}

impl Job {
    pub fn new(config: RegistryConfig) -> Self {
        let key = new_key().expect("random bytes");
        let (tell, events) = channel();
        // Whoever does not listen any more has seen enough.
        let on_event = Box::new(move |event: &Event| drop(tell.send(event.clone())));
        let bind = Bind::Tcp("127.0.0.1:0".into());
        let registry = RegistryService::start(config, key.clone(), &bind, None, on_event).expect("a registry");
        Self { registry, events: Mutex::new(events), key }
    }

    pub fn key(&self) -> JobKey {
        self.key.clone()
    }

    pub fn settings(&self, wish: Option<usize>) -> Settings {
        let mut settings = Settings::default();
        settings.registry = Some(self.registry.address().into());
        settings.slot = wish;
        settings.key = KeySource::Given(self.key.clone());
        settings.timeout = Duration::from_secs(30);
        settings
    }

    pub fn join(&self, wish: Option<usize>) -> Elastic {
        Elastic::join(&self.settings(wish)).expect("a view with this member in")
    }

    pub fn next_event(&self) -> Event {
        self.events.lock().expect("no panic").recv_timeout(Duration::from_secs(20)).expect("an event")
    }

    /// Waits for a view with these members.
    pub fn wait_for_members(&self, wanted: &[usize]) {
        while !matches!(self.next_event(), Event::View { members, .. } if members == wanted) {}
    }

    /// Waits for a view of this generation, and returns its members.
    pub fn wait_for_view(&self, wanted: Generation) -> Vec<usize> {
        loop {
            if let Event::View { generation, members, .. } = self.next_event()
                && generation == wanted
            {
                return members;
            }
        }
    }
}

/// A state of one number, and of as much ballast as wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counter {
    pub value: f64,
    pub ballast: Vec<u8>,
}

impl State for Counter {
    fn save(&self) -> Result<Cow<'_, [u8]>> {
        Ok([&self.value.to_le_bytes()[..], &self.ballast].concat().into())
    }

    fn load(&mut self, bytes: &[u8]) -> Result<()> {
        let (value, ballast) = bytes.split_at(8);
        self.value = f64::from_le_bytes(value.try_into().expect("8 bytes"));
        self.ballast = ballast.to_vec();
        Ok(())
    }
}
