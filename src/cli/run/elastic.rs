//! The options that make a job elastic.

use std::path::PathBuf;
use std::time::Duration;

use phalanx::launch::{Cooldown, Elasticity};

use super::seconds;

/// What they are called in the help.
const HEADING: &str = "Elastic jobs (any of these makes the job elastic)";

/// Workers that come and go while the job runs.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = HEADING)]
pub struct ElasticOptions {
    /// The fewest ranks that the job goes on with [default: as many as -np].
    #[arg(long, alias = "min-num-proc", value_name = "N")]
    min_np: Option<usize>,
    /// The most ranks [default: as many as the hosts have slots].
    #[arg(long, alias = "max-num-proc", value_name = "N")]
    max_np: Option<usize>,
    /// A command that prints the hosts, as host:slots or host a line; it is asked every second.
    #[arg(long, value_name = "SCRIPT", conflicts_with_all = ["hosts", "hostfile", "oversubscribe"])]
    host_discovery_script: Option<String>,
    /// How many slots a host has that the script names without a number.
    #[arg(long, alias = "slots", value_name = "N", requires = "host_discovery_script")]
    slots_per_host: Option<usize>,
    /// Do not use a host on which workers fail repeatedly for MIN seconds, twice as long each time up to MAX.
    #[arg(long, num_args = 2, value_names = ["MIN", "MAX"], value_parser = seconds)]
    blacklist_cooldown_range: Option<Vec<Duration>>,
    /// End the job when its members would change more often than this.
    #[arg(long, value_name = "N")]
    reset_limit: Option<u64>,
    /// How long the job waits with fewer than --min-np ranks before it ends [default: 600].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    elastic_timeout: Option<Duration>,
    /// After how long a rank whose host does not answer is out; 200ms at least [default: 5].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    heartbeat: Option<Duration>,
    /// After how long a rank is named that is stopped, or whose work does not advance while others wait for it
    /// [default: 60].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    name_silent: Option<Duration>,
    /// After how long a rank that is stopped, though its host answers, is out [default: never].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    evict_silent: Option<Duration>,
    /// Do not replace ranks that fail.
    #[arg(long)]
    no_respawn: bool,
    /// Give a place up when so many ranks in a row failed in it before they joined, or within 10 s of that [default: 5].
    #[arg(long, value_name = "N", conflicts_with = "no_respawn")]
    respawn_limit: Option<u32>,
    /// How long a rank that is asked to leave may take before it is killed [default: 30].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    leave_grace: Option<Duration>,
    /// Keep in FILE the job's last view. Its ranks end with the launcher: one that is started again with the same FILE says
    /// what it found, and begins anew with later views.
    #[arg(long, value_name = "FILE", conflicts_with = "registry")]
    registry_state: Option<PathBuf>,
    /// Start ranks for a registry that runs elsewhere (`phalanx registry`); the key is PHALANX_KEY or PHALANX_KEY_FILE.
    #[arg(
        long,
        value_name = "ADDRESS",
        conflicts_with_all = ["reset_limit", "elastic_timeout", "heartbeat", "name_silent", "evict_silent"],
    )]
    registry: Option<String>,
}

impl ElasticOptions {
    /// What they say, if any of them is given.
    pub fn elasticity(self) -> Option<Elasticity> {
        let default = Elasticity::default();
        let elasticity = Elasticity {
            min_np: self.min_np,
            max_np: self.max_np,
            discovery_script: self.host_discovery_script,
            slots_per_host: self.slots_per_host,
            cooldown: self.blacklist_cooldown_range.and_then(|range| match range[..] {
                [least, most] => Some(Cooldown { least, most }),
                _ => None,
            }),
            reset_limit: self.reset_limit,
            elastic_timeout: self.elastic_timeout.unwrap_or(default.elastic_timeout),
            heartbeat: self.heartbeat.unwrap_or(default.heartbeat),
            name_silent: self.name_silent.unwrap_or(default.name_silent),
            evict_silent: self.evict_silent,
            respawn: !self.no_respawn,
            respawn_limit: self.respawn_limit.unwrap_or(default.respawn_limit),
            leave_grace: self.leave_grace.unwrap_or(default.leave_grace),
            state_file: self.registry_state,
            registry: self.registry,
        };
        let is_given = elasticity != default
            || self.elastic_timeout.is_some()
            || self.heartbeat.is_some()
            || self.name_silent.is_some()
            || self.respawn_limit.is_some()
            || self.leave_grace.is_some();
        is_given.then_some(elasticity)
    }
}
