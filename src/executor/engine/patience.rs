//! How long a waiting thread polls before it sleeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How the engine waits.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// How long a waiting thread polls before it sleeps.
    pub spin: Duration,
    /// Whether it offers its core to others between polls: for more ranks than cores.
    pub yields: bool,
    /// Whether a thread of the engine's own drives while nobody waits.
    pub in_background: bool,
    /// The only thread that may drive, where the carrier lets only one call it.
    pub owner: Option<ThreadId>,
}

/// How long a waiting thread polls before it sleeps. A sleep and the wake-up that ends it cost 5 to 50 us; polling as
/// long as that costs at most twice the best choice.
const SPIN: Duration = Duration::from_micros(50);

impl EngineConfig {
    /// For one of `ranks` that share `processors`. With more ranks than processors, whoever polls offers its own to the
    /// others in between.
    pub fn new(ranks: usize, processors: usize) -> Self {
        // While a rank offers its processor, the others have their turns: the clock runs that much faster.
        let turns = u32::try_from(ranks.div_ceil(processors.max(1))).unwrap_or(u32::MAX);
        let yields = ranks > processors;
        let spin = if yields { SPIN.saturating_mul(turns).saturating_mul(4) } else { SPIN };
        Self { spin, yields, in_background: true, owner: None }
    }

    /// Whether this thread may drive.
    pub(super) fn may_drive(&self) -> bool {
        self.owner.is_none_or(|owner| owner == std::thread::current().id())
    }
}

/// How many polls go by between two looks at the clock.
pub(super) const POLLS_PER_LOOK: u32 = 64;

/// How long a call that is run at once is polled for, while nobody else wants the engine.
pub(super) struct Patience<'a> {
    config: EngineConfig,
    contenders: &'a AtomicUsize,
    looks: u32,
    since: Option<Instant>,
}

impl<'a> Patience<'a> {
    pub(super) fn new(config: EngineConfig, contenders: &'a AtomicUsize) -> Self {
        Self { config, contenders, looks: 0, since: None }
    }

    pub(super) fn goes_on(&mut self) -> bool {
        if self.config.yields {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(POLLS_PER_LOOK) {
            return true;
        }
        let now = Instant::now();
        self.contenders.load(Ordering::Relaxed) == 0
            && now.duration_since(*self.since.get_or_insert(now)) < self.config.spin
    }
}
