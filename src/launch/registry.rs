//! The registry of an elastic job as a process of its own, so that it can be ended and started again while the job runs.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use rustix::event::{PollFd, PollFlags};

use super::fleet::news_in_words;
use super::signal::{Signal, SignalQueue};
use super::words;
use crate::bootstrap::{Bind, KeySource, control, given_key, new_key};
use crate::elastic::{Owner, RegistryService, StateFile};
use crate::membership::registry::{Event, Outcome, RegistryConfig};
use crate::types::{Error, Result};
use crate::wire::registry::Parting;

/// What a registry is started with.
#[derive(Clone, Debug)]
pub struct Service {
    /// The job's sizes and lengths of time.
    pub config: RegistryConfig,
    /// Where it listens.
    pub bind: Bind,
    /// The job's key. None is needed, and one is made, where the socket hands it over.
    pub key: KeySource,
    /// Where it keeps what it has to know when it is started again.
    pub state_file: Option<PathBuf>,
    /// How much it says: 0 only why a job failed, 1 what a user wants to know, 2 everything.
    pub verbosity: u8,
}

/// How a registry came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The job did.
    Job(Outcome),
    /// All members left as they were asked to, and none said that the work is done.
    Undone,
    /// It was asked to end by this signal. With a state file the job goes on, and waits for it; without, it is over.
    Signal(Signal),
}

/// Serves until the job is over, or a signal arrives. Takes over this process's SIGTERM, SIGINT and SIGHUP. `say` gets
/// what is to be said.
///
/// # Errors
///
/// It cannot listen, there is no key, or the state file cannot be used.
pub fn serve(service: &Service, say: &mut dyn FnMut(&str)) -> Result<Ending> {
    let failed = |error: io::Error| {
        Error::environment(format!("the registry cannot start: {error}"), "see the limits of this process")
    };
    let Service { config, bind, key, state_file, verbosity } = service;
    let key = match given_key(key)? {
        Some(key) => key,
        None if matches!(bind, Bind::Unix(_)) => new_key()?,
        None => {
            let hint = "give it in PHALANX_KEY_FILE, a file that only you can read: \
                        (umask 077; openssl rand -hex 32 > key)";
            return Err(Error::environment("a registry that listens at an address needs the job's key", hint));
        }
    };
    let file = state_file.clone().map(|file| StateFile::open(file, &key, Owner::Alone)).transpose()?;
    let is_continued = file.as_ref().is_some_and(StateFile::is_continued);
    let found = file.as_ref().and_then(StateFile::found).map(str::to_owned);
    // Before there are threads, which inherit what is held back.
    let mut signals = SignalQueue::new(&[Signal::TERM, Signal::INT, Signal::HUP]).map_err(failed)?;
    let wake = Arc::new(control::new_wake().map_err(failed)?);
    let (tell, events) = channel();
    let bell = wake.clone();
    let on_event = Box::new(move |event: &Event| {
        // Whoever listens is there as long as the service.
        let _ = tell.send(event.clone());
        let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
    });
    let registry = RegistryService::start(config.clone(), key, bind, file, on_event)?;
    if *verbosity >= words::NORMAL {
        say(&format!("the registry listens at {}", registry.address()));
        found.iter().for_each(|found| say(found));
    }
    let ending = attend(&events, &wake, &mut signals, is_continued, *verbosity, say);
    if matches!(ending, Ending::Signal(_)) && state_file.is_none() {
        registry.end("the registry was told to end");
    }
    Ok(ending)
}

fn attend(
    events: &Receiver<Event>,
    wake: &OwnedFd,
    signals: &mut SignalQueue,
    mut has_view: bool,
    verbosity: u8,
    say: &mut dyn FnMut(&str),
) -> Ending {
    let mut partings = BTreeSet::new();
    loop {
        let mut fds = [PollFd::new(wake, PollFlags::IN), PollFd::new(&*signals, PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, None);
        let _ = rustix::io::read(wake, &mut [0; 8]);
        for event in events.try_iter() {
            let (level, text) = news_in_words(&event, !has_view);
            has_view |= matches!(event, Event::View { .. });
            if level <= verbosity {
                say(&text);
            }
            match event {
                Event::Left { parting, .. } => drop(partings.insert(parting)),
                Event::Ended(Outcome::Finished) if partings.iter().eq([&Parting::Asked]) => {
                    say(words::UNDONE);
                    return Ending::Undone;
                }
                Event::Ended(outcome) => return Ending::Job(outcome),
                _ => {}
            }
        }
        if let Ok(Some(arrived)) = signals.try_next() {
            return Ending::Signal(arrived.signal);
        }
    }
}
