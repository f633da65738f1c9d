//! What a seed stands for: a cluster, its settings, and the faults that strike it.

use std::time::Duration;

use super::random::Random;
use crate::membership::registry::RegistryConfig;

/// Virtual time, in microseconds since the beginning.
pub(super) type Time = u64;

pub(super) const MILLI: Time = 1_000;
pub(super) const SECOND: Time = 1_000_000;

/// What strikes. Victims are chosen when it does, among those that are there then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A process dies; its host tells the others.
    Crash,
    /// A process dies with its host: nobody is told anything.
    Vanish,
    /// A process stops, and continues after a while.
    Pause(Time),
    /// A control connection breaks.
    BreakControl,
    /// A link between two members breaks, once.
    BreakLink,
    /// Two members cannot reach each other for a while, though all others reach both.
    BadLink(Time),
    /// Some members cannot reach the rest, the registry included, for a while.
    Partition(Time),
    /// Some members cannot reach the registry for a while; the members reach each other.
    HideRegistry(Time),
    /// The registry's process dies, and another begins from the disk after a while.
    CrashRegistry(Time),
    /// The registry's host vanishes likewise: the members are told nothing.
    VanishRegistry(Time),
    /// The registry's process stops, and continues after a while.
    PauseRegistry(Time),
    /// A process comes, and wants to be a member.
    Spawn,
    /// A process comes, and dies soon.
    SpawnAndCrash(Time),
    /// A member is asked to go.
    Leave,
    /// An operator evicts a member.
    Evict,
    /// A member takes long for its next step.
    Slow(Time),
}

/// A point of the protocol, as it is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// A process registers, for the first time or again.
    Registers,
    /// The engine of a member has been told to stop.
    Suspends,
    /// A member reports.
    Reports,
    /// A member stops at a boundary.
    Stops,
    /// The registry hands a state to the disk.
    Persists,
    /// The registry sends a view.
    Publishes,
    /// A member goes over to a view.
    Installs,
    /// A member enters a commit.
    Enters,
    /// A member passes a commit.
    Passes,
    /// A member says goodbye.
    Leaves,
}

/// What strikes at a point of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strike {
    /// The one that passes it dies.
    Crash,
    /// Another one dies.
    CrashOther,
    /// The one that passes it stops for a while.
    Pause(Time),
    /// Its connection to the registry breaks.
    Break,
    /// The registry dies, and another begins after a while.
    CrashRegistry(Time),
}

/// A fault at a point of the protocol.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trap {
    pub(super) point: Point,
    /// The how-manieth time it is passed, from 0.
    pub(super) turn: u64,
    pub(super) strike: Strike,
}

fn trap(random: &mut Random) -> Trap {
    let length = random.between(MILLI, 6 * SECOND);
    let short = random.between(MILLI, SECOND);
    let point = random.pick(&[
        Point::Registers,
        Point::Suspends,
        Point::Reports,
        Point::Reports,
        Point::Stops,
        Point::Persists,
        Point::Publishes,
        Point::Installs,
        Point::Enters,
        Point::Passes,
        Point::Leaves,
    ]);
    let strike = random.pick(&[
        Strike::Crash,
        Strike::CrashOther,
        Strike::Pause(length),
        Strike::Break,
        Strike::Break,
        Strike::CrashRegistry(short),
    ]);
    Trap { point, turn: random.below(random.clone().pick(&[2, 8, 40])), strike }
}

/// A cluster and its fate.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) np: usize,
    pub(super) config: RegistryConfig,
    /// The shortest and the longest time a message takes.
    pub(super) delay: (Time, Time),
    /// In how many of 100 cases a message takes up to twenty times as long.
    pub(super) slow_messages: u64,
    /// How many of 100 messages arrive twice.
    pub(super) duplicates: u64,
    /// Whether messages travel as bytes.
    pub(super) encodes: bool,
    /// The longest time the disk takes.
    pub(super) disk: Time,
    /// The shortest and the longest time a member works on a step.
    pub(super) work: (Time, Time),
    /// The longest time an engine takes to stop.
    pub(super) stopping: Time,
    /// Whether the launcher tells the registry of processes that end.
    pub(super) has_launcher: bool,
    /// Whether members notice that a peer's process died, as they do over sockets.
    pub(super) has_sockets: bool,
    /// Whether a process that is out comes again.
    pub(super) rejoins: bool,
    /// After which step the work is done.
    pub(super) last_step: Option<u64>,
    pub(super) faults: Vec<(Time, Fault)>,
    pub(super) traps: Vec<Trap>,
    /// When the faults have stopped.
    pub(super) quiet: Time,
}

fn size(random: &mut Random) -> usize {
    let (low, high) = match random.below(100) {
        0..=79 => (2, 7),
        80..=96 => (8, 16),
        _ => (17, 64),
    };
    random.between(low, high) as usize
}

fn fault(random: &mut Random) -> Fault {
    let long = random.between(10 * MILLI, 12 * SECOND);
    match random.below(100) {
        0..=19 => Fault::Crash,
        20..=25 => Fault::Vanish,
        26..=27 => Fault::PauseRegistry(long),
        28..=35 => Fault::Pause(long),
        36..=42 => Fault::BreakControl,
        43..=48 => Fault::BreakLink,
        49..=51 => Fault::BadLink(long * 2),
        52..=57 => Fault::Partition(long),
        58..=60 => Fault::HideRegistry(long),
        61..=69 => Fault::CrashRegistry(random.between(MILLI, 5 * SECOND)),
        70..=71 => Fault::VanishRegistry(random.between(MILLI, 5 * SECOND)),
        72..=73 => Fault::PauseRegistry(random.between(MILLI, SECOND)),
        74..=85 => Fault::Spawn,
        86..=89 => Fault::SpawnAndCrash(random.between(MILLI, 2 * SECOND)),
        90..=94 => Fault::Leave,
        95..=97 => Fault::Evict,
        _ => Fault::Slow(long),
    }
}

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x70_6c61_6e00);
        let np = size(random);
        let mut config =
            RegistryConfig::new(np).with_heartbeat_limit(Duration::from_millis(random.pick(&[800, 2_000, 5_000])));
        config.min_np = if random.chance(50) { 1 } else { random.between(1, np as u64) as usize };
        config.max_np = np + random.below(4) as usize;
        config.start_timeout = Duration::from_secs(30);
        config.elastic_timeout = Duration::from_secs(20);
        config.close_grace = Duration::from_millis(random.pick(&[0, 30, 600]));
        config.silent_limit = random.chance(30).then(|| Duration::from_secs(random.between(3, 8)));
        config.reset_limit = random.chance(5).then(|| random.between(0, 4));
        let fastest = random.pick(&[20, 100, 1_000]);
        let work = random.pick(&[20 * MILLI, 100 * MILLI, 400 * MILLI]) * if np > 16 { 4 } else { 1 };
        let mut plan = Plan {
            np,
            config,
            delay: (fastest, fastest * random.pick(&[1, 3, 10])),
            slow_messages: random.pick(&[0, 0, 2, 10]),
            duplicates: random.pick(&[0, 0, 0, 5]),
            encodes: random.chance(5),
            disk: random.pick(&[0, 2 * MILLI, 50 * MILLI]),
            work: (work / 2, work),
            stopping: random.pick(&[MILLI, 5 * MILLI, 100 * MILLI]),
            has_launcher: random.chance(50),
            has_sockets: random.chance(80),
            rejoins: random.chance(30),
            last_step: random.chance(20).then(|| random.between(1, 60)),
            faults: Vec::new(),
            traps: Vec::new(),
            quiet: 0,
        };
        let count = random.pick(&[0, 1, 1, 2, 2, 3, 4, 6, 10]);
        // All at once, or one after the other, from the first moment on or when the work has begun.
        let first = if random.chance(20) { 0 } else { SECOND / 2 };
        let last = first + random.pick(&[20 * MILLI, SECOND, 8 * SECOND, 20 * SECOND]);
        plan.faults = (0..count).map(|_| (random.between(first, last), fault(random))).collect();
        let traps = random.pick(&[0, 0, 1, 2, 4]);
        plan.traps = (0..traps).map(|_| trap(random)).collect();
        plan.faults.sort_by_key(|(at, _)| *at);
        plan.quiet = plan.faults.iter().map(|(at, fault)| at + fault.length()).max().unwrap_or(0).max(SECOND);
        plan
    }
}

impl Fault {
    /// How long it lasts.
    pub(super) fn length(self) -> Time {
        match self {
            Fault::Pause(length)
            | Fault::BadLink(length)
            | Fault::Partition(length)
            | Fault::HideRegistry(length)
            | Fault::CrashRegistry(length)
            | Fault::VanishRegistry(length)
            | Fault::PauseRegistry(length)
            | Fault::SpawnAndCrash(length)
            | Fault::Slow(length) => length,
            _ => 0,
        }
    }
}
