//! What a program may choose before it meets the others.

use std::time::Duration;

use super::environment::{self, Launch, Rendezvous};
use super::launchers::Launcher;
use super::settings::{self, KeySource, Settings};
use super::variables::{Variables, unknown_in_words};
use crate::types::{Algorithm, Error, Result, TransportKind};

/// This process's place in the world and the settings, from the environment, from code, or both.
///
/// ```
/// use std::time::Duration;
/// let config = phalanx::Config::from_env()?.with_timeout(Duration::from_secs(30));
/// assert_eq!((config.launch.rank, config.launch.size), (0, 1));
/// # Ok::<(), phalanx::types::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The place in the world, and how the ranks meet.
    pub launch: Launch,
    /// Everything else.
    pub settings: Settings,
}

impl Config {
    /// From this process's environment variables. A world of one only when none of them suggests otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] for variables that are half set, cannot be read, or contradict each other; it names them
    /// with their values.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(&Variables::of_process())
    }

    /// From the given variables alone.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    pub fn from_variables(variables: &Variables) -> Result<Self> {
        let settings = settings::settings(variables)?;
        let mut launch = environment::launch(variables, &settings)?;
        launch.notes.extend(unknown_in_words(variables));
        Ok(Config { launch, settings })
    }

    /// Rank and size given in code. Where they meet is given by [`with_rendezvous`](Self::with_rendezvous).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the rank is not below the size.
    pub fn new(rank: usize, size: usize) -> Result<Self> {
        if rank >= size || size > environment::MAX_SIZE {
            return Err(Error::invalid(format!(
                "rank {rank} of {size}: expected a rank below the size and at most {} ranks",
                environment::MAX_SIZE
            )));
        }
        if size == 1 {
            return Ok(Self::default());
        }
        let rendezvous =
            Rendezvous::Unknown { why: "no rendezvous was given".into(), hint: "call Config::with_rendezvous".into() };
        let launch = Launch {
            rank,
            size,
            local_rank: None,
            local_size: None,
            launcher: Launcher::Phalanx,
            rendezvous,
            ..Launch::default()
        };
        Ok(Config { launch, settings: Settings::default() })
    }

    /// Where the ranks meet.
    pub fn with_rendezvous(mut self, rendezvous: Rendezvous) -> Self {
        if self.launch.size > 1 {
            self.launch.rendezvous = rendezvous;
        }
        self
    }

    /// The job's key.
    pub fn with_key(mut self, key: KeySource) -> Self {
        self.settings.key = key;
        self
    }

    /// How long an operation may wait for other ranks.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// How long the ranks may take to meet.
    pub fn with_start_timeout(mut self, timeout: Duration) -> Self {
        self.settings.start_timeout = timeout;
        self
    }

    /// Forces a transport for all peers; None lets it be chosen for each.
    pub fn with_transport(mut self, transport: Option<TransportKind>) -> Self {
        self.settings.transport = transport;
        self
    }

    /// Forces an algorithm; None lets it be chosen for each call.
    pub fn with_algorithm(mut self, algorithm: Option<Algorithm>) -> Self {
        self.settings.algorithm = algorithm;
        self
    }
}
