//! Carries out a plan: one loop that waits for everything at once, and does what the director decides.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Resource};

use super::LaunchError;
use super::console::Console;
use super::control::{Ending, Order, Report};
use super::director::{Director, Fixed};
use super::fleet::FleetDirector;
use super::job::{Job, Plan, shell_words};
use super::log::{Log, Tail};
use super::printer::{Source, StreamKind};
use super::relay::{Relay, Waits};
use super::signal::{Arrived, Signal, SignalQueue};
use super::sink::Closed;
use super::spawn::{Input, LocalSpawner, Spawner};
use super::supervise::{Action, Cause, Event, Notice};
use super::worker::{Pumped, Worker};
use super::{meeting, resources, tree, words};
use crate::types::Error;

/// Runs a job to its end on this machine. Returns why it ended; [`Cause::exit_code`] is the launcher's exit code.
///
/// Takes over standard output and error while it runs, and, where the job says so, this process's signals and orphans.
///
/// # Errors
///
/// The machine lacks something the launcher itself needs. Nothing was started then.
pub fn run(plan: &Plan) -> Result<Cause, LaunchError> {
    // Each rank: its control socket, two pipes, and one connection to the meeting point or the registry.
    let most = plan.sizes.max_np.min(MOST_WORKERS).max(plan.size());
    let files = resources::raise_file_limit(most * 4 + 64)?;
    let mut spawner = LocalSpawner { guard: plan.job.guard.clone(), grace: plan.job.policy.grace, files };
    run_with(plan, &mut spawner)
}

/// An elastic job without a limit to its growth is prepared for so many workers.
const MOST_WORKERS: usize = 200;

/// As [`run`], with workers started by `spawner`.
pub fn run_with(plan: &Plan, spawner: &mut dyn Spawner) -> Result<Cause, LaunchError> {
    let broken = |error: io::Error| {
        LaunchError::from(Error::environment(format!("the launcher could not start: {error}"), "see `phalanx doctor`"))
    };
    let signals = if plan.job.take_signals { Some(SignalQueue::new(&TAKEN).map_err(broken)?) } else { None };
    if plan.job.adopt_orphans {
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    }
    if let Some(elastic) = &plan.job.elastic {
        // After the signals are held back: the registry's thread inherits that.
        let mut director = FleetDirector::new(Instant::now(), plan, elastic)?;
        let console = Console::new(&plan.job.output).map_err(broken)?;
        let cause = Shell::new(&plan.job, &mut director, spawner, console, signals).begin(plan);
        director.close(cause);
        return Ok(cause);
    }
    // The same holds for the server's thread.
    let mut environment = plan.environment.clone();
    let _server = meeting::open(plan, &mut environment)?;
    let plan = &Plan { environment, ..plan.clone() };
    let mut director = Fixed::new(Instant::now(), plan);
    let mut logs = BTreeMap::new();
    for worker in 0..plan.size() {
        logs.insert(worker, resources::open_log(&plan.job.output, &director.folder(worker), false)?);
    }
    let console = Console::new(&plan.job.output).map_err(broken)?;
    let keep = plan.size().max(REMAINS);
    Ok(Shell { logs, keep, ..Shell::new(&plan.job, &mut director, spawner, console, signals) }.begin(plan))
}

/// Ends this process by Ctrl-C's signal where the job was ended by that key, so that a shell that runs a script sees it
/// and stops too; an exit code alone would let it go on. Returns in every other case.
pub fn repeat_for_the_shell(cause: Cause) {
    if let Cause::Signal(Arrived { signal: signal @ (Signal::INT | Signal::QUIT), from_kernel: true }) = cause {
        // A core of the launcher is of no use to anybody.
        let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        let _ = rustix::process::setrlimit(Resource::Core, none);
        super::signal::die_by(signal);
    }
}

/// The signals that are for the job, and the one that tells that the terminal has another size.
const TAKEN: [Signal; 9] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::TSTP,
    Signal::CONT,
    Signal::WINCH,
    Signal(libc::SIGUSR1),
    Signal(libc::SIGUSR2),
];

/// How often the launcher looks whether it has come to the foreground.
const FOREGROUND: Duration = Duration::from_millis(500);

/// What a descriptor that is ready belongs to.
#[derive(Clone, Copy)]
enum Ready {
    Signals,
    Control(usize),
    Stream(usize, StreamKind),
    Director,
    Sink,
    Typed,
    Rank0,
}

/// What is kept of a worker of which nothing is left, for the last words.
struct Remains {
    pid: Option<i32>,
    tails: [Tail; 2],
}

/// How many of these are kept at least.
const REMAINS: usize = 64;

struct Shell<'a> {
    job: &'a Job,
    director: &'a mut dyn Director,
    spawner: &'a mut dyn Spawner,
    workers: BTreeMap<usize, Worker>,
    remains: BTreeMap<usize, Remains>,
    /// How many of those are kept.
    keep: usize,
    /// Whether the job begins with one rank.
    is_alone: bool,
    /// Files of workers that are not started yet.
    logs: BTreeMap<usize, [Log; 2]>,
    /// The folders in which this job has written.
    folders: BTreeSet<String>,
    console: Console,
    signals: Option<SignalQueue>,
    relay: Option<Relay>,
    told_closed: bool,
    /// Where output is read into.
    buffer: Vec<u8>,
}

impl<'a> Shell<'a> {
    fn new(
        job: &'a Job,
        director: &'a mut dyn Director,
        spawner: &'a mut dyn Spawner,
        console: Console,
        signals: Option<SignalQueue>,
    ) -> Self {
        Shell {
            job,
            director,
            spawner,
            workers: BTreeMap::new(),
            remains: BTreeMap::new(),
            keep: REMAINS,
            is_alone: false,
            logs: BTreeMap::new(),
            folders: BTreeSet::new(),
            console,
            signals,
            relay: None,
            told_closed: false,
            buffer: vec![0; 1 << 16],
        }
    }

    fn begin(mut self, plan: &Plan) -> Cause {
        self.is_alone = plan.size() == 1;
        self.tell(words::VERBOSE, || format!("running {}", shell_words(&plan.job.command)));
        if let Some(note) = &plan.note {
            self.tell(words::NORMAL, || note.clone());
        }
        self.run()
    }

    fn run(&mut self) -> Cause {
        loop {
            self.director.handle_timeout(Instant::now());
            self.act();
            self.console.try_flush();
            self.look_at_output();
            if let Some(cause) = self.director.outcome() {
                return self.close(cause);
            }
            let ready = self.wait();
            self.dispatch(ready);
        }
    }

    /// Does what the supervisor decides. After starting a rank it looks around first, if only for a moment.
    fn act(&mut self) {
        while let Some(action) = self.director.poll_action() {
            match action {
                Action::Spawn { rank } => {
                    self.spawn(rank);
                    return;
                }
                Action::Signal { rank, signal } => self.order(rank, Order::Signal(signal)),
                Action::Ask { rank, signal } => self.order(rank, Order::Ask(signal)),
                Action::Kill { rank } => self.order(rank, Order::Kill),
                Action::Suspend => {
                    self.console.finish();
                    self.console.try_flush();
                    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
                }
                Action::Tell(notice) => self.tell_notice(notice),
                Action::Say { level, text } => self.tell(level, || text),
            }
        }
    }

    fn spawn(&mut self, rank: usize) {
        let now = Instant::now();
        let input = match self.job.input {
            false => Input::Null,
            true if rustix::termios::isatty(io::stdin().as_fd()) => Input::Pipe,
            true => Input::Inherit,
        };
        let started = self.director.worker(rank, input).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL));
        match started.and_then(|worker| self.spawner.spawn(&worker)) {
            Ok(mut running) => {
                if let Some(stdin) = running.stdin.take() {
                    self.relay = Some(Relay::new(stdin));
                }
                let logs = self.logs(rank);
                self.workers.insert(rank, Worker::new(self.director.label(rank), running, logs));
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
                self.director.handle_event(now, Event::NotStarted { rank, errno });
                self.director.handle_event(now, Event::Gone { rank });
            }
        }
    }

    fn logs(&mut self, rank: usize) -> [Log; 2] {
        if let Some(logs) = self.logs.remove(&rank) {
            return logs;
        }
        let folder = self.director.folder(rank);
        match resources::open_log(&self.job.output, &folder, self.folders.contains(&folder)) {
            Ok(logs) => {
                self.folders.insert(folder);
                logs
            }
            Err(error) => {
                self.tell(words::ALWAYS, || error.to_string());
                [Log::new(None), Log::new(None)]
            }
        }
    }

    fn order(&self, rank: usize, order: Order) {
        if let Some(worker) = self.workers.get(&rank) {
            worker.order(order);
        }
    }

    fn worker(&mut self, rank: usize) -> Option<&mut Worker> {
        self.workers.get_mut(&rank)
    }

    /// Whether standard output still has a reader.
    fn look_at_output(&mut self) {
        match self.console.closed() {
            Some(closed) if !self.told_closed => {
                self.told_closed = true;
                match closed {
                    Closed::NoReader => self.director.handle_event(Instant::now(), Event::OutputClosed),
                    Closed::Error(errno) => {
                        let error = io::Error::from_raw_os_error(errno);
                        self.tell(words::ALWAYS, || format!("the ranks' output is lost from here on: {error}"));
                    }
                }
                self.act();
            }
            _ => {}
        }
    }

    /// Waits until something can be done, and says what.
    fn wait(&self) -> Vec<Ready> {
        let stdin = io::stdin();
        let mut watched = Vec::new();
        let mut watch = |fd, flags, token| watched.push((PollFd::from_borrowed_fd(fd, flags), token));
        if let Some(signals) = &self.signals {
            watch(signals.as_fd(), PollFlags::IN, Ready::Signals);
        }
        let full = self.console.is_full();
        for fd in self.director.watched() {
            watch(fd, PollFlags::IN, Ready::Director);
        }
        for (&rank, worker) in &self.workers {
            if !worker.gone {
                watch(worker.running.control.as_fd(), PollFlags::IN, Ready::Control(rank));
            }
            for stream in worker.streams.iter().filter(|stream| stream.open && !full) {
                watch(worker.fd(stream.kind), PollFlags::IN, Ready::Stream(rank, stream.kind));
            }
        }
        for fd in self.console.waiting() {
            watch(fd, PollFlags::OUT, Ready::Sink);
        }
        let mut timeout = self.director.poll_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        if let Some(relay) = &self.relay {
            match (relay.waits(), relay.target()) {
                (Waits::Source, _) => watch(stdin.as_fd(), PollFlags::IN, Ready::Typed),
                (Waits::Target, Some(target)) => watch(target, PollFlags::OUT, Ready::Rank0),
                (Waits::Foreground, _) => timeout = Some(timeout.unwrap_or(FOREGROUND).min(FOREGROUND)),
                _ => {}
            }
        }
        if self.director.is_spawning() {
            timeout = Some(Duration::ZERO);
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let (mut fds, tokens): (Vec<_>, Vec<_>) = watched.into_iter().unzip();
        if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let ready = fds.iter().zip(tokens).filter(|(fd, _)| !fd.revents().is_empty());
        ready.map(|(_, token)| token).collect()
    }

    fn dispatch(&mut self, ready: Vec<Ready>) {
        let mut reports = Vec::new();
        let mut gone = Vec::new();
        let mut is_director_ready = false;
        for ready in ready {
            match ready {
                Ready::Signals => self.take_signals(),
                Ready::Control(rank) => {
                    let Some(worker) = self.worker(rank) else { continue };
                    let (said, ended) = worker.read_reports();
                    reports.extend(said.into_iter().map(|report| (rank, report)));
                    gone.extend(ended.then_some(rank));
                }
                Ready::Stream(rank, kind) => self.pump(rank, kind),
                Ready::Director => is_director_ready = true,
                Ready::Sink => {}
                Ready::Typed => self.take_typed(),
                Ready::Rank0 => self.relay.as_mut().map(Relay::try_write).unwrap_or_default(),
            }
        }
        self.show_partials();
        // Of several ends that are reported at once, the first in time is the first to be judged.
        reports.sort_by_key(|(_, report)| match report {
            Report::Ended { at, .. } => *at,
            _ => 0,
        });
        for (rank, report) in reports {
            self.handle_report(rank, report);
        }
        for rank in gone {
            self.handle_gone(rank);
        }
        // After the ends of processes: what others say of them comes later.
        if is_director_ready {
            self.director.handle_readable(Instant::now());
            for (&rank, worker) in &mut self.workers {
                worker.label = self.director.label(rank);
            }
        }
        self.bury();
    }

    fn take_typed(&mut self) {
        if !self.relay.as_mut().is_some_and(Relay::read) {
            return;
        }
        if let Some(Source::Rank(label, kind)) = self.console.end_row_by_key()
            && let Some(worker) = self.workers.values_mut().find(|worker| worker.label == label)
            && let Some(stream) = worker.stream(kind)
        {
            stream.lines.clear();
        }
    }

    fn take_signals(&mut self) {
        while let Some(Ok(Some(arrived))) = self.signals.as_mut().map(SignalQueue::try_next) {
            match arrived.signal {
                Signal::WINCH => self.console.look_at_width(),
                _ => self.director.handle_event(Instant::now(), Event::Signal(arrived)),
            }
        }
    }

    fn handle_report(&mut self, rank: usize, report: Report) {
        tracing::debug!(rank, ?report, "report");
        let event = match report {
            Report::Started { pid } => {
                if let Some(worker) = self.worker(rank) {
                    worker.pid = Some(pid);
                }
                let name = self.director.name(rank);
                self.tell(words::VERBOSE, || format!("{name} started (pid {pid})"));
                Event::Started { rank, pid }
            }
            Report::Failed { errno } => Event::NotStarted { rank, errno },
            Report::Ended { ending, .. } => {
                // What it wrote before it ended comes before the word that it ended.
                self.pump_all(rank);
                let name = self.director.name(rank);
                self.tell(words::VERBOSE, || format!("{name} {ending}"));
                Event::Ended { rank, ending }
            }
        };
        self.director.handle_event(Instant::now(), event);
    }

    fn handle_gone(&mut self, rank: usize) {
        let Some(worker) = self.worker(rank) else { return };
        worker.gone = true;
        // The guard has closed its socket, so it is ending.
        let ended = worker.running.process.wait();
        tracing::debug!(rank, ?ended, "nothing of this rank is left");
        if self.job.adopt_orphans && !ended.is_ok_and(|status| status.success()) {
            self.end_orphans();
        }
        self.director.handle_event(Instant::now(), Event::Gone { rank });
    }

    /// A guard was killed, and what it guarded is now this process's own: everything below it that is not a guard.
    fn end_orphans(&self) {
        let guards: Vec<_> = self
            .workers
            .values()
            .filter(|worker| !worker.gone)
            .map(|worker| Pid::from_child(&worker.running.process))
            .chain(self.director.own_processes())
            .collect();
        let until = Instant::now() + Duration::from_secs(2);
        while tree::end_children_except(&guards) && Instant::now() < until {
            let _ = rustix::event::poll(&mut [], Timespec::try_from(Duration::from_millis(5)).ok().as_ref());
        }
    }

    fn pump(&mut self, rank: usize, kind: StreamKind) {
        let Some(worker) = self.workers.get_mut(&rank) else { return };
        if let Pumped::Some(Some(error)) = worker.pump(kind, &mut self.console, &mut self.buffer) {
            self.tell_of_file(rank, &error);
        }
    }

    fn pump_all(&mut self, rank: usize) {
        let Some(worker) = self.workers.get_mut(&rank) else { return };
        for error in worker.pump_all(&mut self.console, &mut self.buffer) {
            self.tell_of_file(rank, &error);
        }
    }

    fn tell_of_file(&mut self, rank: usize, error: &io::Error) {
        let name = self.director.name(rank);
        self.tell(words::ALWAYS, || format!("{name}'s output is no longer kept in its file: {error}"));
    }

    /// Takes what is left in the streams of ranks of which nothing is left.
    fn drain_streams(&mut self) {
        for rank in self.workers.keys().copied().collect::<Vec<_>>() {
            self.pump_all(rank);
            if self.console.is_full() {
                return;
            }
            if let Some(worker) = self.workers.get_mut(&rank) {
                worker.close_streams(&mut self.console);
            }
        }
        self.bury();
    }

    /// Lets go of workers of which nothing is left and nothing can come: in a long job there are many.
    fn bury(&mut self) {
        let is_over = |worker: &Worker| worker.gone && worker.is_silent();
        while let Some(rank) = self.workers.iter().find_map(|(rank, worker)| is_over(worker).then_some(*rank)) {
            let Some(Worker { pid, streams: [out, err], .. }) = self.workers.remove(&rank) else { return };
            self.remains.insert(rank, Remains { pid, tails: [out.tail, err.tail] });
            while self.remains.len() > self.keep {
                self.remains.pop_first();
            }
        }
    }

    /// On a terminal, the newest unfinished line is shown.
    fn show_partials(&mut self) {
        for worker in self.workers.values() {
            for stream in &worker.streams {
                self.console.show_partial(Source::Rank(worker.label, stream.kind), stream.lines.partial());
            }
        }
    }

    /// Nothing runs any more: what is left of the output, the last words, and the end.
    fn close(&mut self, mut cause: Cause) -> Cause {
        // Whoever ends a job from outside does not want to wait for a reader that does not read.
        let patient = !matches!(cause, Cause::Signal(_) | Cause::Timeout | Cause::OutputClosed);
        let until = (!patient).then(|| Instant::now() + self.job.policy.grace);
        let mut has_spoken = false;
        loop {
            self.drain_streams();
            let is_silent = self.workers.values().all(Worker::is_silent);
            if is_silent && !has_spoken {
                has_spoken = true;
                self.console.finish();
                self.last_words(cause);
            }
            self.console.try_flush();
            if self.console.is_empty() {
                if is_silent {
                    break;
                }
                // It was full, and there is room again.
                continue;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let signalled = self.wait_for_output(left);
            if let Some(arrived) = signalled {
                cause = Cause::Signal(arrived);
            }
            if signalled.is_some() || left == Some(Duration::ZERO) {
                let bytes = self.console.give_up();
                tracing::warn!(bytes, "output that nobody read is dropped");
                break;
            }
        }
        if self.console.closed() == Some(Closed::NoReader) && cause == Cause::Done {
            cause = Cause::OutputClosed;
        }
        cause
    }

    /// Waits until output can be written, or a signal says that it need not be.
    fn wait_for_output(&mut self, left: Option<Duration>) -> Option<Arrived> {
        let mut fds: Vec<_> = self.console.waiting().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)).collect();
        fds.extend(self.signals.iter().map(|signals| PollFd::new(signals, PollFlags::IN)));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        while let Some(Ok(Some(arrived))) = self.signals.as_mut().map(SignalQueue::try_next) {
            match arrived.signal {
                Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT => return Some(arrived),
                Signal::TSTP => {
                    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
                }
                _ => {}
            }
        }
        None
    }

    fn tell(&mut self, level: u8, text: impl FnOnce() -> String) {
        if self.job.verbosity >= level {
            self.console.say(&text());
        }
    }

    fn rank_in_words(&self, rank: usize) -> String {
        let host = self.director.host_name(rank);
        let worker = self.workers.get(&rank).and_then(|worker| worker.pid);
        match worker.or_else(|| self.remains.get(&rank)?.pid) {
            Some(pid) => format!("(host {host}, pid {pid})"),
            None => format!("(host {host})"),
        }
    }

    fn tell_notice(&mut self, notice: Notice) {
        if let Some((level, text)) = words::notice(notice, self.job.policy, |rank| self.rank_in_words(rank)) {
            self.tell(level, || text);
        }
    }

    /// Quotes the rank that failed, so that its reason is not lost among the others' lines.
    fn last_words(&mut self, cause: Cause) {
        let Cause::Failed { rank, ending } = cause else { return };
        if let Ending::Signal(signal) = ending
            && let Some(hint) = words::hint(signal)
        {
            self.tell(words::NORMAL, || format!("{signal}: {hint}"));
        }
        // Nobody else's lines are there. One that failed before the others were started is not alone for that.
        let is_alone = self.is_alone && self.workers.len() + self.remains.len() == 1;
        if is_alone || self.job.verbosity == 0 {
            return;
        }
        let Some(Remains { tails: [out, err], .. }) = self.remains.get(&rank) else { return };
        let (name, tail) = if err.is_empty() { ("output", out) } else { ("error", err) };
        if tail.is_empty() {
            return;
        }
        let whose = self.director.name(rank);
        self.console.say(&format!("the last lines of {whose}'s standard {name}:"));
        for line in tail.lines() {
            self.console.quote(line);
        }
    }
}
