//! Every numbered point of the protocol, with every fault, at every kind of rank.
//!
//! A cell is one job: three or four ranks, some of which come to a harm when they are at a point, and what has to
//! happen for them to get there: a job's start, its steps, another rank's fall, a newcomer, the end. In every cell
//! each point is known to have been reached, those that are left agree on every step and make more, and nothing is
//! left behind.
//!
//! Without being told, some of the cells run. `PHALANX_TEST_FAULTS=shm` runs all of them over shared memory, `all`
//! over both transports, in two minutes each; a part of a cell's name in `PHALANX_TEST_CELL`, such as `commit 5 kill`,
//! runs those cells alone.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use phalanx::TransportKind;
use phalanx::sys::points::{Point, Side};
use rustix::process::Signal;

use crate::job::{Job, Options, PATIENCE, command, new_key, was_killed};
use crate::leftovers::Place;
use crate::worker::{BALLAST, EVICTED};

/// After how long a stopped rank is out.
const SILENT: f64 = 0.8;

/// The rank that falls so that others come to their points.
const BYSTANDER: usize = 3;

/// How many jobs run at a time.
const LANES: usize = 3;

/// So many bytes of state that each of three ranks has a part to send.
const STATE: usize = 3_500_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Kill,
    Stop,
    /// All its connections break.
    Reset,
    /// All its connections break but that to the registry: its links to ranks that live.
    Unlink,
}

/// What brings a rank to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Being started.
    Start,
    /// Training.
    Steps,
    /// Another rank is killed.
    Fall,
    /// As before, in the middle of a step, while the registry stands still: ranks notice it by themselves.
    QuietFall,
    /// A process is started that wants to join.
    Join,
    /// The work is done.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victims {
    First,
    Middle,
    Last,
    Two,
    Newcomer,
    Registry,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    point: Point,
    count: u64,
    cause: Cause,
    harm: Harm,
    victims: Victims,
    transport: TransportKind,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { point, count, cause, harm, victims, transport } = self;
        let words = format!("{harm:?} {victims:?} {cause:?} {transport}").to_lowercase();
        write!(f, "{} {count} {words}", point.name())
    }
}

/// How a rank comes to a point: the cause, and how often it has been there before.
fn ways(point: Point) -> Vec<(Cause, u64)> {
    match point {
        Point::Dial | Point::Registered | Point::Welcome => vec![(Cause::Start, 1)],
        Point::View | Point::Installing | Point::Installed => vec![(Cause::Start, 1), (Cause::Fall, 2)],
        // In the middle of the fourth step, whose vector is the largest, and of its commit.
        Point::Started => vec![(Cause::Steps, 11)],
        Point::Half => vec![(Cause::Steps, 25)],
        Point::Here | Point::Commit | Point::Committed => vec![(Cause::Steps, 5)],
        Point::Counted | Point::Delivered => vec![(Cause::Steps, 4)],
        Point::Suspect => vec![(Cause::QuietFall, 1)],
        Point::Prepare | Point::GivenUp | Point::Reported => vec![(Cause::Fall, 1)],
        Point::Wanted | Point::Boundary => vec![(Cause::Join, 1)],
        // The first transfer is that of the job's start.
        Point::Transfer | Point::TransferHalf | Point::TransferHere => vec![(Cause::Start, 1), (Cause::Join, 2)],
        Point::Loaded => vec![(Cause::Start, 1)],
        Point::Leave | Point::Goodbye => vec![(Cause::End, 1)],
        Point::Evidence | Point::HalfPrepared => vec![(Cause::Fall, 1)],
        Point::Reports | Point::Beside | Point::Written => {
            vec![(Cause::Start, 1), (Cause::Fall, 2), (Cause::Join, 2), (Cause::End, 2)]
        }
        Point::HalfTold | Point::Told => vec![(Cause::Start, 1), (Cause::Fall, 2), (Cause::Join, 2)],
    }
}

fn cells(transport: TransportKind) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &point in Point::ALL {
        let whom: &[Victims] = match point.side() {
            Side::Registry => &[Victims::Registry],
            Side::Member => &[Victims::First, Victims::Middle, Victims::Last, Victims::Two, Victims::Newcomer],
        };
        for (cause, count) in ways(point) {
            for harm in [Harm::Kill, Harm::Stop, Harm::Reset, Harm::Unlink] {
                for &victims in whom {
                    let is_newcomer = victims == Victims::Newcomer;
                    // The first rank brings the state, and takes over nobody's. A newcomer is there after the change
                    // that it asks for; and where a rank is held in an early step it does not come in before.
                    if (point == Point::Loaded && matches!(victims, Victims::First | Victims::Two))
                        || (is_newcomer && matches!(cause, Cause::Join | Cause::QuietFall))
                        // It has no links.
                        || (harm == Harm::Unlink && point.side() == Side::Registry)
                    {
                        continue;
                    }
                    cells.push(Cell { point, count, cause, harm, victims, transport });
                }
            }
        }
    }
    cells
}

impl Cell {
    fn run(self) {
        let Cell { point, count, cause, harm, victims, transport } = self;
        let word = format!("{harm:?}").to_lowercase();
        let plan = format!("{}:{count}:{word}", point.name());
        let is_fall = matches!(cause, Cause::Fall | Cause::QuietFall);
        // One more that falls first.
        let np = if is_fall { 4 } else { 3 };
        let ranks: &[usize] = match victims {
            Victims::First => &[0],
            Victims::Middle => &[1],
            Victims::Last => &[2],
            Victims::Two => &[0, 2],
            Victims::Newcomer | Victims::Registry => &[],
        };
        let mut options = Options { max_np: np + 3, ..Options::new(np, transport) };
        options.evict_silent = (harm == Harm::Stop && victims != Victims::Registry).then_some(SILENT);
        if harm == Harm::Unlink {
            // Nothing that waits for it is in time.
            options.heartbeat = 2.0 * PATIENCE.as_secs_f64();
        }
        options.environment = vec![(BALLAST, STATE.to_string())];
        if cause == Cause::QuietFall {
            // Each rank waits for each other one, so that all miss the one that falls.
            options.environment.push(("PHALANX_ALGORITHM", "one_shot".into()));
        }
        options.registry_point = (victims == Victims::Registry).then(|| plan.clone());
        let mut job = Job::without_workers(options);
        job.may_fail = cause == Cause::End;
        job.note(format!("cell: {self}"));
        // It has started one of the step's collectives, and does not start the others.
        let hold = format!("started:11:tell={}", job.place.fifo());
        for rank in 0..np {
            let bystander = (cause == Cause::QuietFall && rank == BYSTANDER).then_some(&hold);
            job.add(Some(rank), ranks.contains(&rank).then_some(&plan).or(bystander).map(String::as_str));
        }
        let mut victims: Vec<u32> = match self.victims {
            Victims::Registry => job.registry.into_iter().collect(),
            _ => ranks.iter().map(|&rank| job.worker_of_rank(rank)).collect(),
        };
        let mut others: Vec<u32> = job.living().into_iter().filter(|pid| !victims.contains(pid)).collect();
        if self.victims == Victims::Newcomer {
            job.until_together(&others);
            let newcomer = job.add(None, Some(&plan));
            victims.push(newcomer);
        }
        if is_fall || cause == Cause::Join {
            let all: Vec<u32> = job.living();
            job.until_together(&all);
            if is_fall {
                let bystander = job.worker_of_rank(BYSTANDER);
                others.retain(|pid| *pid != bystander);
                if cause == Cause::QuietFall {
                    job.until("it is held", |job| job.processes[&bystander].is_at_point());
                    job.signal_registry(Signal::STOP);
                    job.until_stopped(job.registry.expect("a registry"));
                }
                job.signal(bystander, Signal::KILL);
            } else {
                others.push(job.add(None, None));
            }
        }
        if cause == Cause::End {
            job.until_together(&job.living());
            job.say_done();
        }
        job.until("every victim is at its point", |job| victims.iter().all(|pid| job.processes[pid].is_at_point()));
        if cause == Cause::QuietFall {
            job.signal_registry(Signal::CONT);
        }
        match self.victims {
            Victims::Registry => self.harm_registry(&mut job, &others),
            _ => self.harm_ranks(&mut job, &victims, &mut others),
        }
        job.finish();
    }

    /// The registry has come to harm.
    fn harm_registry(self, job: &mut Job, others: &[u32]) {
        let pid = job.registry.expect("a registry");
        match self.harm {
            Harm::Kill => {
                job.until("the registry is gone", |job| !job.processes[&pid].is_alive());
                job.start_registry(None);
            }
            Harm::Stop => {
                // As long as it takes the others to notice whatever they notice.
                job.listen_for(Duration::from_millis(600));
                job.signal_registry(Signal::CONT);
            }
            Harm::Reset | Harm::Unlink => {}
        }
        if self.cause != Cause::End {
            job.until_together(others);
            job.until_all_go_on(others, 3);
            job.expect_alive(others);
        }
    }

    /// Ranks have come to harm.
    fn harm_ranks(self, job: &mut Job, victims: &[u32], others: &mut Vec<u32>) {
        let Cell { point, cause, harm, .. } = self;
        let is_new = self.victims == Victims::Newcomer;
        // Before there is a view, as many are awaited as the job is to begin with.
        let is_missed = match harm {
            Harm::Kill => point < Point::View,
            Harm::Stop => point == Point::Dial,
            Harm::Reset | Harm::Unlink => false,
        };
        if is_missed && !is_new {
            victims.iter().for_each(|_| others.push(job.add(None, None)));
        }
        let is_end = cause == Cause::End;
        match harm {
            Harm::Kill => {
                job.until("the victims are gone", |job| victims.iter().all(|pid| !job.processes[pid].is_alive()));
                for pid in victims {
                    assert!(job.processes[pid].status.is_some_and(was_killed), "{:?}", job.processes[pid].status);
                }
                if !is_end {
                    job.until_together(others);
                    job.until_all_go_on(others, 3);
                    job.expect_alive(others);
                }
            }
            Harm::Stop => {
                if is_end {
                    job.until("the others end", |job| others.iter().all(|pid| !job.processes[pid].is_alive()));
                } else {
                    job.until_together(others);
                    job.until_all_go_on(others, 3);
                }
                victims.iter().for_each(|pid| job.signal(*pid, Signal::CONT));
                if point == Point::Dial || (is_new && point < Point::View) {
                    // Nobody had heard of it: it comes as any newcomer does. Or it was told that it was forgotten.
                    let is_well = |job: &Job, pid: &u32| !job.processes[pid].is_alive() || job.oracle.last_of(*pid) > 0;
                    job.until("the victims join", |job| victims.iter().all(|pid| is_well(job, pid)));
                } else {
                    job.until("the victims end", |job| victims.iter().all(|pid| !job.processes[pid].is_alive()));
                    if !is_end {
                        victims.iter().for_each(|pid| job.expect_evicted(*pid));
                    }
                }
                if !is_end {
                    job.until_all_go_on(others, 3);
                    job.expect_alive(others);
                }
            }
            Harm::Unlink => {
                // Both ends of each link live, and know it at once.
                if !is_end {
                    let all: Vec<u32> = others.iter().chain(victims).copied().collect();
                    job.until_together(&all);
                    job.until_all_go_on(&all, 3);
                    job.expect_alive(&all);
                }
            }
            Harm::Reset => {
                if !is_end {
                    job.until_all_go_on(others, 3);
                    job.expect_alive(others);
                    // A process that lost its connections comes back, or learns that it did not in time.
                    let goal = job.oracle.highest() + 2;
                    job.until("the victims are back or out", |job| {
                        victims.iter().all(|pid| !job.processes[pid].is_alive() || job.oracle.last_of(*pid) >= goal)
                    });
                    let out: Vec<u32> = victims.iter().copied().filter(|pid| !job.processes[pid].is_alive()).collect();
                    out.iter().for_each(|pid| job.expect_evicted(*pid));
                }
            }
        }
    }
}

impl Job {
    /// The process that was started to have a rank in the first view.
    fn worker_of_rank(&self, rank: usize) -> u32 {
        self.started[rank]
    }

    fn signal(&mut self, pid: u32, signal: Signal) {
        self.note(format!("signal {signal:?} to {pid}"));
        self.processes[&pid].signal(signal);
    }

    /// Waits until a process that was told to stands still.
    fn until_stopped(&mut self, pid: u32) {
        let until = Instant::now() + PATIENCE;
        let path = format!("/proc/{pid}/stat");
        // Nothing tells when that is: it is looked at again and again.
        while !std::fs::read_to_string(&path).is_ok_and(|text| text.contains(") T ")) {
            if Instant::now() >= until {
                self.fail("it does not stop");
            }
            std::thread::yield_now();
        }
    }

    fn signal_registry(&mut self, signal: Signal) {
        self.signal(self.registry.expect("a registry"), signal);
    }

    fn expect_alive(&mut self, pids: &[u32]) {
        if let Some(pid) = pids.iter().find(|pid| !self.processes[pid].is_alive()) {
            self.fail(&format!("process {pid} has ended, though no harm was done to it"));
        }
    }

    /// It has learned that the others went on without it, and said so.
    fn expect_evicted(&mut self, pid: u32) {
        let process = &self.processes[&pid];
        let code = process.status.and_then(|status| status.code());
        let is_clear = process.out.as_ref().is_some_and(|(kind, reason)| kind == "evicted" && !reason.is_empty());
        if code != Some(EVICTED) || !is_clear {
            let (status, out) = (process.status, process.out.clone());
            self.fail(&format!("process {pid} should have learned that it is out: {status:?}, {out:?}"));
        }
    }
}

/// Runs cells, some at a time, and says what failed.
fn run(cells: Vec<Cell>) {
    let count = cells.len();
    let began = Instant::now();
    let queue = Mutex::new(VecDeque::from(cells));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let Some(cell) = queue.lock().expect("no panic").pop_front() else { return };
                    let began = Instant::now();
                    // A thread for each, so that one that fails does not end the others.
                    let outcome = std::thread::scope(|inner| inner.spawn(|| cell.run()).join());
                    if outcome.is_err() {
                        failed.lock().expect("no panic").push(cell.to_string());
                    }
                    let word = if outcome.is_ok() { "ok" } else { "FAILED" };
                    println!("{word:6} {:5.2} s  {cell}", began.elapsed().as_secs_f64());
                }
            });
        }
    });
    println!("{count} cells in {:.0} s", began.elapsed().as_secs_f64());
    let failed = failed.into_inner().expect("no panic");
    assert!(failed.is_empty(), "{} of {count} cells failed:\n{}", failed.len(), failed.join("\n"));
}

fn chosen(transport: TransportKind, every: usize) -> Vec<Cell> {
    let words = std::env::var("PHALANX_TEST_CELL").unwrap_or_default();
    let all = cells(transport);
    if !words.is_empty() {
        let is_named = |cell: &Cell| format!(" {cell} ").contains(&words);
        return all.into_iter().filter(is_named).collect();
    }
    let asked = std::env::var("PHALANX_TEST_FAULTS").unwrap_or_default();
    assert!(["", "shm", "all"].contains(&asked.as_str()), "PHALANX_TEST_FAULTS={asked}: shm or all is expected");
    let every = if asked == "all" || asked == transport.name() { 1 } else { every };
    all.into_iter().enumerate().filter(|(at, _)| at % every == 0).map(|(_, cell)| cell).collect()
}

#[test]
fn every_point_is_in_the_matrix() {
    let cells = cells(TransportKind::Shm);
    for point in Point::ALL {
        for harm in [Harm::Kill, Harm::Stop, Harm::Reset] {
            assert!(cells.iter().any(|cell| cell.point == *point && cell.harm == harm), "{point:?} {harm:?}");
        }
    }
}

#[test]
fn a_point_that_does_not_exist_is_refused() {
    let place = Place::new();
    let mut command = command(env!("CARGO_BIN_EXE_phalanx"), &place);
    command.args(["registry", "--listen", "127.0.0.1:0", "-np", "1"]);
    command.env("PHALANX_KEY", new_key()).env("PHALANX_TEST_POINT", "nowhere:1:kill");
    let output = command.output().expect("a registry that ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("PHALANX_TEST_POINT=nowhere:1:kill: there is no point \"nowhere\""), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn harm_at_every_point_over_shared_memory() {
    run(chosen(TransportKind::Shm, 7));
}

#[test]
fn harm_at_every_point_over_tcp() {
    run(chosen(TransportKind::Tcp, 13));
}
