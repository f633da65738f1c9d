//! Elastic jobs: workers come and go while the job runs.
//!
//! The registry judges who is a member; it runs in the launcher, or is told by its address. The launcher starts workers
//! where there is room for them, tells the registry at once when one ends, and starts another. Which hosts there are is
//! known from the start, or asked of a script again and again ([`discovery`]); whether a host on which workers failed is
//! used again is a matter of [`health`].
//!
//! A worker: `Waiting → Starting → Running → Ended → Gone`, as in a fixed job. Beside that it has a standing with the
//! registry, and both together say what its end means ([`machine`]).
//!
//! The machine decides and does nothing itself; [`director`] carries its words between processes, registry and script.

mod director;
mod discovery;
mod health;
mod hosts;
mod machine;
mod script;
mod watch;
mod words;

use std::path::PathBuf;
use std::time::Duration;

pub(super) use director::FleetDirector;
pub use health::Cooldown;
pub(super) use words::news as news_in_words;

use crate::membership::registry::RegistryConfig;
use crate::types::{Error, Result};
use crate::wire::registry::MAX_MEMBERS;

/// What makes a job elastic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elasticity {
    /// The fewest members that the job goes on with. None: as many as it begins with.
    pub min_np: Option<usize>,
    /// The most members. None: as many as there are slots.
    pub max_np: Option<usize>,
    /// A command, for the shell, that prints the hosts.
    pub discovery_script: Option<String>,
    /// How many slots a host has that the script names without a number.
    pub slots_per_host: Option<usize>,
    /// How long hosts that fail repeatedly are not used. None: they are used again at once.
    pub cooldown: Option<Cooldown>,
    /// How many workers in a row may fail to come to work in one place, before it is given up.
    pub respawn_limit: u32,
    /// How often the view may change.
    pub reset_limit: Option<u64>,
    /// How long the job waits with too few members.
    pub elastic_timeout: Duration,
    /// After how long a host that does not answer is out.
    pub heartbeat: Duration,
    /// After how long a member is named that is stopped, hangs or is slow.
    pub name_silent: Duration,
    /// After how long a member that gives no sign of life is out though its host answers. None: never.
    pub evict_silent: Option<Duration>,
    /// Whether workers that fail are replaced.
    pub respawn: bool,
    /// How long a worker may take that was asked to leave, before it is killed.
    pub leave_grace: Duration,
    /// The file in which the launcher's registry keeps the view that is, so that a job that is started in its place gives
    /// no generation twice.
    pub state_file: Option<PathBuf>,
    /// Where a registry listens that runs elsewhere. None: it runs in the launcher.
    pub registry: Option<String>,
}

impl Default for Elasticity {
    fn default() -> Self {
        Self {
            min_np: None,
            max_np: None,
            discovery_script: None,
            slots_per_host: None,
            cooldown: None,
            // With the pauses between them, 15 s.
            respawn_limit: 5,
            reset_limit: None,
            elastic_timeout: Duration::from_secs(600),
            heartbeat: Duration::from_secs(5),
            name_silent: Duration::from_secs(60),
            evict_silent: None,
            respawn: true,
            // Longer than a training step, shorter than the notice that preemptible machines get.
            leave_grace: Duration::from_secs(30),
            state_file: None,
            registry: None,
        }
    }
}

/// How many members there are: to begin with, at least, and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) np: usize,
    pub(super) min_np: usize,
    pub(super) max_np: usize,
}

/// The shortest heartbeat limit: below it a busy machine looks like one that is gone.
const LEAST_HEARTBEAT: Duration = Duration::from_millis(200);

impl Elasticity {
    /// The three numbers, for a job with `np` ranks to begin with, on hosts with so many slots if that is known.
    pub(super) fn sizes(&self, np: Option<usize>, slots: Option<usize>) -> Result<Sizes> {
        let np =
            np.or(self.min_np).or(slots).ok_or_else(|| Error::invalid("how many ranks? Give -np N or --min-np N"))?;
        let min_np = self.min_np.unwrap_or(np);
        let most = if self.discovery_script.is_some() { MAX_MEMBERS } else { slots.unwrap_or(np).max(np) };
        let max_np = self.max_np.unwrap_or(most);
        let ordered = 1 <= min_np && min_np <= np && np <= max_np && max_np <= MAX_MEMBERS;
        if !ordered {
            return Err(Error::invalid(format!(
                "--min-np {min_np}, -np {np} and --max-np {max_np} cannot be: expected 1 <= min <= np <= max <= \
                 {MAX_MEMBERS}"
            )));
        }
        Ok(Sizes { np, min_np, max_np })
    }

    /// What the job's registry is told.
    ///
    /// # Errors
    ///
    /// Numbers or lengths of time that cannot be.
    pub fn registry_config(&self, np: Option<usize>) -> Result<RegistryConfig> {
        self.check()?;
        Ok(self.config(self.sizes(np, None)?))
    }

    fn config(&self, Sizes { np, min_np, max_np }: Sizes) -> RegistryConfig {
        RegistryConfig {
            min_np,
            max_np,
            start_timeout: self.elastic_timeout,
            elastic_timeout: self.elastic_timeout,
            silent_limit: self.evict_silent,
            name_after: self.name_silent,
            reset_limit: self.reset_limit,
            ..RegistryConfig::new(np).with_heartbeat_limit(self.heartbeat)
        }
    }

    /// Whether the lengths of time can be.
    pub(super) fn check(&self) -> Result<()> {
        if self.heartbeat < LEAST_HEARTBEAT {
            return Err(Error::invalid(format!(
                "--heartbeat {:?} is too short: below 200 ms a busy machine looks like one that is gone",
                self.heartbeat
            )));
        }
        if self.name_silent < self.heartbeat {
            return Err(Error::invalid(format!(
                "--name-silent {:?} is shorter than --heartbeat {:?}, within which a sign of life is due",
                self.name_silent, self.heartbeat
            )));
        }
        if let Some(limit) = self.evict_silent.filter(|limit| *limit < self.heartbeat) {
            return Err(Error::invalid(format!(
                "--evict-silent {limit:?} is shorter than --heartbeat {:?}, within which a sign of life is due",
                self.heartbeat
            )));
        }
        if self.respawn_limit == 0 {
            return Err(Error::invalid(
                "--respawn-limit 0 cannot be: expected 1 or more; --no-respawn replaces none that fails",
            ));
        }
        if let Some(Cooldown { least, most }) = self.cooldown
            && (least.is_zero() || least > most)
        {
            return Err(Error::invalid(format!(
                "--blacklist-cooldown-range {least:?} {most:?} cannot be: expected 0 < MIN <= MAX"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_what_is_given() {
        let sizes = |min_np, np, max_np, slots, script: bool| {
            let discovery_script = script.then(|| "hosts".to_string());
            let elasticity = Elasticity { min_np, max_np, discovery_script, ..Elasticity::default() };
            elasticity.sizes(np, slots).map(|sizes| (sizes.min_np, sizes.np, sizes.max_np))
        };
        assert_eq!(sizes(Some(2), Some(4), Some(6), None, false), Ok((2, 4, 6)));
        assert_eq!(sizes(Some(2), Some(4), None, None, false), Ok((2, 4, 4)));
        assert_eq!(sizes(Some(2), None, None, None, true), Ok((2, 2, MAX_MEMBERS)));
        assert_eq!(sizes(None, Some(4), Some(8), Some(6), false), Ok((4, 4, 8)));
        assert_eq!(sizes(None, Some(4), None, Some(6), false), Ok((4, 4, 6)), "hosts with room");
        assert_eq!(sizes(Some(1), None, None, Some(6), false), Ok((1, 1, 6)));
        for (min_np, np, max_np) in [(Some(5), Some(4), None), (None, Some(4), Some(3)), (Some(0), Some(4), None)] {
            let error = sizes(min_np, np, max_np, None, false).expect_err("no job").to_string();
            assert!(error.contains("expected 1 <= min <= np <= max"), "{error}");
        }
        assert!(sizes(None, None, Some(4), None, true).is_err());
    }

    #[test]
    fn lengths_of_time_that_cannot_be_are_refused() {
        let seconds = Duration::from_secs;
        let wrong = |elasticity: Elasticity| elasticity.check().expect_err("it cannot be").to_string();
        let usual = Elasticity::default();
        assert_eq!(usual.check(), Ok(()));
        assert!(wrong(Elasticity { heartbeat: Duration::from_millis(199), ..usual.clone() }).contains("200 ms"));
        assert!(wrong(Elasticity { name_silent: seconds(4), ..usual.clone() }).contains("--name-silent 4s"));
        assert!(wrong(Elasticity { evict_silent: Some(seconds(4)), ..usual.clone() }).contains("--evict-silent 4s"));
        let cooldown = Some(Cooldown { least: seconds(3), most: seconds(2) });
        assert!(wrong(Elasticity { cooldown, ..usual }).contains("MIN <= MAX"));
    }
}
