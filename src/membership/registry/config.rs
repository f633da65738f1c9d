//! What a registry is told, and why each default is what it is.

use std::time::Duration;

use crate::wire::registry::MAX_MEMBERS;

/// The settings of a job's registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryConfig {
    /// How many members the first view is to have.
    pub np: usize,
    /// The fewest members the job goes on with.
    pub min_np: usize,
    /// The most members it takes. Processes beyond wait until there is room.
    pub max_np: usize,
    /// How long the first members have to come together; then the first view begins with at least `min_np`, or never.
    pub start_timeout: Duration,
    /// How long the job waits with fewer members than `min_np`; and how long a member waits for a registry without which
    /// it cannot go on. Ten minutes: a host can boot.
    pub elastic_timeout: Duration,
    /// After how long without an answer from its host a member is out; a sign of life is due four times as often. Five
    /// seconds: longer than any pause of a loaded machine's network, shorter than a human's patience.
    pub heartbeat_limit: Duration,
    /// After how long without a sign of life a member is out though its host answers. Never by default: it may be stopped
    /// in a debugger.
    pub silent_limit: Option<Duration>,
    /// After how long a silent or a slow member is named.
    pub name_after: Duration,
    /// How long a member has to come back when its connection was ended or reset by its host. A process that lives
    /// does that only when something between broke the connection, and is back in a moment: long enough for
    /// that, short enough that a dead process is known within 50 ms on its host.
    pub close_grace: Duration,
    /// How long a goodbye may be on its way when the launcher saw its process end.
    pub exit_grace: Duration,
    /// How long members have to come back after the registry was started again.
    pub restart_grace: Duration,
    /// Two members that lose their link again within this time lose it for the same reason.
    pub link_window: Duration,
    /// How often in a row two members may lose their link before one of them is out.
    pub link_limit: u32,
    /// How often the view may change before the job ends.
    pub reset_limit: Option<u64>,
}

impl RegistryConfig {
    /// The settings of a job that begins with `np` members and goes on with any that are left, with the defaults.
    pub fn new(np: usize) -> Self {
        let np = np.clamp(1, MAX_MEMBERS);
        Self {
            np,
            min_np: 1,
            max_np: np,
            start_timeout: Duration::from_secs(600),
            elastic_timeout: Duration::from_secs(600),
            silent_limit: None,
            name_after: Duration::from_secs(60),
            close_grace: Duration::from_millis(30),
            exit_grace: Duration::from_millis(20),
            reset_limit: None,
            link_limit: 4,
            heartbeat_limit: Duration::ZERO,
            restart_grace: Duration::ZERO,
            link_window: Duration::ZERO,
        }
        .with_heartbeat_limit(Duration::from_secs(5))
    }

    /// With another heartbeat limit, and what follows from it: two limits and a second to come back after a restart
    /// of the registry, two limits and ten seconds within which a link that breaks again is the same trouble.
    pub fn with_heartbeat_limit(self, limit: Duration) -> Self {
        Self {
            heartbeat_limit: limit,
            restart_grace: limit * 2 + Duration::from_secs(1),
            link_window: limit * 2 + Duration::from_secs(10),
            ..self
        }
    }

    /// How often a member gives a sign of life.
    pub fn heartbeat_interval(&self) -> Duration {
        self.heartbeat_limit / 4
    }

    /// What cannot be, made possible: at least one member, no more than a view may have, `min_np <= np <= max_np`.
    pub(super) fn checked(self) -> Self {
        let np = self.np.clamp(1, MAX_MEMBERS);
        Self { np, min_np: self.min_np.clamp(1, np), max_np: self.max_np.clamp(np, MAX_MEMBERS), ..self }
    }
}
