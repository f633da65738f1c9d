//! Carries out a plan: one loop that waits for everything at once, and does what the supervisor decides.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Resource};

use super::LaunchError;
use super::console::Console;
use super::control::{Ending, Lines, Order, Report};
use super::job::{Plan, shell_words};
use super::lines::{End, LineBuffer};
use super::log::{self, Log, Tail};
use super::printer::{Source, StreamKind};
use super::relay::{Relay, Waits};
use super::signal::{Arrived, Signal, SignalQueue};
use super::sink::Closed;
use super::spawn::{Input, LocalSpawner, Running, Spawner};
use super::supervise::{Action, Cause, Event, Notice, Supervisor};
use super::{meeting, tree, words};
use crate::types::Error;

/// Runs a job to its end on this machine. Returns why it ended; [`Cause::exit_code`] is the launcher's exit code.
///
/// Takes over standard output and error while it runs, and, where the job says so, this process's signals and orphans.
///
/// # Errors
///
/// The machine lacks something the launcher itself needs. Nothing was started then.
pub fn run(plan: &Plan) -> Result<Cause, LaunchError> {
    // Each rank: its control socket, two pipes, and one connection to the meeting point.
    let files = raise_file_limit(plan.size() * 4 + 64)?;
    let mut spawner = LocalSpawner { guard: plan.job.guard.clone(), grace: plan.job.policy.grace, files };
    run_with(plan, &mut spawner)
}

/// As [`run`], with workers started by `spawner`.
pub fn run_with(plan: &Plan, spawner: &mut dyn Spawner) -> Result<Cause, LaunchError> {
    let broken = |error: io::Error| {
        LaunchError::from(Error::environment(format!("the launcher could not start: {error}"), "see `phalanx doctor`"))
    };
    let signals = if plan.job.take_signals { Some(SignalQueue::new(&TAKEN).map_err(broken)?) } else { None };
    if plan.job.adopt_orphans {
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    }
    let logs = open_logs(plan)?;
    // After the signals are held back: the server's thread inherits that.
    let mut environment = plan.environment.clone();
    let _server = meeting::open(plan, &mut environment)?;
    let plan = &Plan { environment, ..plan.clone() };
    let console = Console::new(&plan.job.output).map_err(broken)?;
    let mut shell = Shell {
        plan,
        spawner,
        supervisor: Supervisor::new(Instant::now(), plan.size(), plan.job.policy),
        workers: (0..plan.size()).map(|_| None).collect(),
        logs: logs.into_iter().map(Some).collect(),
        console,
        signals,
        relay: None,
        told_closed: false,
    };
    shell.tell(words::VERBOSE, || format!("running {}", shell_words(&plan.job.command)));
    if let Some(note) = &plan.note {
        shell.tell(words::NORMAL, || note.clone());
    }
    Ok(shell.run())
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

/// The signals that are for the job.
const TAKEN: [Signal; 8] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::TSTP,
    Signal::CONT,
    Signal(libc::SIGUSR1),
    Signal(libc::SIGUSR2),
];

/// How often the launcher looks whether it has come to the foreground.
const FOREGROUND: Duration = Duration::from_millis(500);

/// Makes room for `needed` open files. Returns the limit there was, if it was raised, so that the workers get it back.
fn raise_file_limit(needed: usize) -> Result<Option<u64>, LaunchError> {
    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|soft| soft >= needed) {
        return Ok(None);
    }
    if limit.maximum.is_some_and(|hard| hard < needed) {
        return Err(Error::environment(
            format!(
                "so many ranks need {needed} open files in the launcher; the limit is {}",
                limit.maximum.unwrap_or_default()
            ),
            "raise the hard limit (`ulimit -Hn`), or start fewer ranks",
        )
        .into());
    }
    let raised = rustix::process::Rlimit { current: Some(needed), ..limit };
    match rustix::process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => Ok(limit.current),
        Err(_) => Ok(None),
    }
}

fn open_logs(plan: &Plan) -> Result<Vec<[Log; 2]>, LaunchError> {
    let open = |directory: &Path, rank, kind| {
        log::create(directory, rank, plan.size(), kind).map(Some).map_err(|error| {
            let what = format!("--output-dir {}: {error}", directory.display());
            LaunchError::from(Error::environment(what, "name a directory that can be written to"))
        })
    };
    (0..plan.size())
        .map(|rank| match &plan.job.output.directory {
            None => Ok([Log::new(None), Log::new(None)]),
            Some(directory) => Ok([
                Log::new(open(directory, rank, StreamKind::Out)?),
                Log::new(open(directory, rank, StreamKind::Err)?),
            ]),
        })
        .collect()
}

/// One rank's processes and streams, from its start on.
struct Worker {
    running: Running,
    reports: Lines,
    pid: Option<i32>,
    /// Whether the guard is gone.
    gone: bool,
    streams: [Stream; 2],
}

/// One of a worker's streams.
struct Stream {
    kind: StreamKind,
    open: bool,
    lines: LineBuffer,
    log: Log,
    tail: Tail,
}

/// What a descriptor that is ready belongs to.
#[derive(Clone, Copy)]
enum Ready {
    Signals,
    Control(usize),
    Stream(usize, StreamKind),
    Sink,
    Typed,
    Rank0,
}

struct Shell<'a> {
    plan: &'a Plan,
    spawner: &'a mut dyn Spawner,
    supervisor: Supervisor,
    workers: Vec<Option<Worker>>,
    logs: Vec<Option<[Log; 2]>>,
    console: Console,
    signals: Option<SignalQueue>,
    relay: Option<Relay>,
    told_closed: bool,
}

impl Shell<'_> {
    fn run(&mut self) -> Cause {
        loop {
            self.supervisor.handle_timeout(Instant::now());
            self.act();
            self.console.try_flush();
            self.look_at_output();
            if let Some(cause) = self.supervisor.outcome() {
                return self.close(cause);
            }
            let ready = self.wait();
            self.dispatch(ready);
        }
    }

    /// Does what the supervisor decides. After starting a rank it looks around first, if only for a moment.
    fn act(&mut self) {
        while let Some(action) = self.supervisor.poll_action() {
            match action {
                Action::Spawn { rank } => {
                    self.spawn(rank);
                    return;
                }
                Action::Signal { rank, signal } => self.order(rank, Order::Signal(signal)),
                Action::Kill { rank } => self.order(rank, Order::Kill),
                Action::Suspend => {
                    self.console.finish();
                    self.console.try_flush();
                    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
                }
                Action::Tell(notice) => self.tell_notice(notice),
            }
        }
    }

    fn spawn(&mut self, rank: usize) {
        let now = Instant::now();
        let input = match self.plan.job.input {
            false => Input::Null,
            true if rustix::termios::isatty(io::stdin().as_fd()) => Input::Pipe,
            true => Input::Inherit,
        };
        let started = self.plan.worker(rank, input).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL));
        match started.and_then(|worker| self.spawner.spawn(&worker)) {
            Ok(mut running) => {
                if let Some(stdin) = running.stdin.take() {
                    self.relay = Some(Relay::new(stdin));
                }
                let [out, err] =
                    self.logs.get_mut(rank).and_then(Option::take).unwrap_or([Log::new(None), Log::new(None)]);
                let streams = [Stream::new(StreamKind::Out, out), Stream::new(StreamKind::Err, err)];
                let worker = Worker { running, reports: Lines::default(), pid: None, gone: false, streams };
                if let Some(slot) = self.workers.get_mut(rank) {
                    *slot = Some(worker);
                }
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
                self.supervisor.handle_event(now, Event::NotStarted { rank, errno });
                self.supervisor.handle_event(now, Event::Gone { rank });
            }
        }
    }

    fn order(&mut self, rank: usize, order: Order) {
        tracing::debug!(rank, ?order, "order");
        if let Some(worker) = self.workers.get(rank).and_then(Option::as_ref) {
            // The guard reads at once, and the orders are few: they fit the socket's buffer.
            let flags = rustix::net::SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&worker.running.control, order.encode().as_bytes(), flags);
        }
    }

    /// Whether standard output still has a reader.
    fn look_at_output(&mut self) {
        match self.console.closed() {
            Some(closed) if !self.told_closed => {
                self.told_closed = true;
                match closed {
                    Closed::NoReader => self.supervisor.handle_event(Instant::now(), Event::OutputClosed),
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
        for (rank, worker) in self.workers.iter().enumerate() {
            let Some(worker) = worker else { continue };
            if !worker.gone {
                watch(worker.running.control.as_fd(), PollFlags::IN, Ready::Control(rank));
            }
            for stream in worker.streams.iter().filter(|stream| stream.open && !full) {
                watch(worker.running.stream(stream.kind), PollFlags::IN, Ready::Stream(rank, stream.kind));
            }
        }
        for fd in self.console.waiting() {
            watch(fd, PollFlags::OUT, Ready::Sink);
        }
        let mut timeout = self.supervisor.poll_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        if let Some(relay) = &self.relay {
            match (relay.waits(), relay.target()) {
                (Waits::Source, _) => watch(stdin.as_fd(), PollFlags::IN, Ready::Typed),
                (Waits::Target, Some(target)) => watch(target, PollFlags::OUT, Ready::Rank0),
                (Waits::Foreground, _) => timeout = Some(timeout.unwrap_or(FOREGROUND).min(FOREGROUND)),
                _ => {}
            }
        }
        if self.supervisor.is_spawning() {
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
        for ready in ready {
            match ready {
                Ready::Signals => self.take_signals(),
                Ready::Control(rank) => self.read_control(rank, &mut reports, &mut gone),
                Ready::Stream(rank, kind) => {
                    self.pump(rank, kind);
                }
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
    }

    fn take_typed(&mut self) {
        if !self.relay.as_mut().is_some_and(Relay::read) {
            return;
        }
        if let Some(Source::Rank(rank, kind)) = self.console.end_row_by_key()
            && let Some(stream) = self.stream(rank, kind)
        {
            stream.lines.clear();
        }
    }

    /// A rank's stream, while it is open.
    fn stream(&mut self, rank: usize, kind: StreamKind) -> Option<&mut Stream> {
        let worker = self.workers.get_mut(rank)?.as_mut()?;
        worker.streams.iter_mut().find(|stream| stream.kind == kind && stream.open)
    }

    fn take_signals(&mut self) {
        while let Some(Ok(Some(arrived))) = self.signals.as_mut().map(SignalQueue::try_next) {
            self.supervisor.handle_event(Instant::now(), Event::Signal(arrived));
        }
    }

    fn read_control(&mut self, rank: usize, reports: &mut Vec<(usize, Report)>, gone: &mut Vec<usize>) {
        let Some(worker) = self.workers.get_mut(rank).and_then(Option::as_mut) else { return };
        let mut bytes = [0; 512];
        loop {
            match rustix::io::read(&worker.running.control, &mut bytes) {
                Ok(count) if count > 0 => worker.reports.push(bytes.get(..count).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) => {
                    gone.push(rank);
                    break;
                }
            }
        }
        while let Some(line) = worker.reports.poll_line() {
            reports.extend(Report::decode(&line).map(|report| (rank, report)));
        }
    }

    fn handle_report(&mut self, rank: usize, report: Report) {
        tracing::debug!(rank, ?report, "report");
        let event = match report {
            Report::Started { pid } => {
                if let Some(worker) = self.workers.get_mut(rank).and_then(Option::as_mut) {
                    worker.pid = Some(pid);
                }
                self.tell(words::VERBOSE, || format!("rank {rank} started (pid {pid})"));
                Event::Started { rank, pid }
            }
            Report::Failed { errno } => Event::NotStarted { rank, errno },
            Report::Ended { ending, .. } => {
                // What it wrote before it ended comes before the word that it ended.
                while !self.console.is_full() && self.pump(rank, StreamKind::Out) {}
                while !self.console.is_full() && self.pump(rank, StreamKind::Err) {}
                self.tell(words::VERBOSE, || format!("rank {rank} {ending}"));
                Event::Ended { rank, ending }
            }
        };
        self.supervisor.handle_event(Instant::now(), event);
    }

    fn handle_gone(&mut self, rank: usize) {
        let Some(worker) = self.workers.get_mut(rank).and_then(Option::as_mut) else { return };
        worker.gone = true;
        // The guard has closed its socket, so it is ending.
        let ended = worker.running.process.wait();
        tracing::debug!(rank, ?ended, "nothing of this rank is left");
        if self.plan.job.adopt_orphans && !ended.is_ok_and(|status| status.success()) {
            self.end_orphans();
        }
        self.supervisor.handle_event(Instant::now(), Event::Gone { rank });
    }

    /// A guard was killed, and what it guarded is now this process's own: everything below it that is not a guard.
    fn end_orphans(&self) {
        let guards: Vec<_> = self
            .workers
            .iter()
            .flatten()
            .filter(|worker| !worker.gone)
            .map(|worker| Pid::from_child(&worker.running.process))
            .collect();
        let until = Instant::now() + Duration::from_secs(2);
        while tree::end_children_except(&guards) && Instant::now() < until {
            let _ = rustix::event::poll(&mut [], Timespec::try_from(Duration::from_millis(5)).ok().as_ref());
        }
    }

    /// Moves what a stream has into lines, up to one buffer full. Returns whether there was something.
    fn pump(&mut self, rank: usize, kind: StreamKind) -> bool {
        let Some(worker) = self.workers.get_mut(rank).and_then(Option::as_mut) else { return false };
        let fd = worker.running.stream(kind);
        let Some(stream) = worker.streams.iter_mut().find(|stream| stream.kind == kind && stream.open) else {
            return false;
        };
        let source = Source::Rank(rank, kind);
        let (console, tail) = (&mut self.console, &mut stream.tail);
        let mut give = |text: &[u8], end: End| {
            if end != End::Return {
                tail.push(text);
            }
            console.write(source, text, end);
        };
        let mut bytes = vec![0; 1 << 16];
        match rustix::io::read(fd, &mut bytes) {
            Ok(count) if count > 0 => {
                let bytes = bytes.get(..count).unwrap_or_default();
                stream.lines.push(bytes, &mut give);
                if let Some(error) = stream.log.write(bytes) {
                    self.tell(words::ALWAYS, || format!("rank {rank}'s output is no longer kept in its file: {error}"));
                }
                self.console.try_flush();
                true
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Ok(_) | Err(_) => {
                stream.lines.finish(&mut give);
                stream.open = false;
                false
            }
        }
    }

    /// Takes what is left in the streams of ranks of which nothing is left. A stream that something outside the job
    /// still holds open is closed when it is empty.
    fn drain_streams(&mut self) {
        for rank in 0..self.workers.len() {
            for kind in [StreamKind::Out, StreamKind::Err] {
                while !self.console.is_full() && self.pump(rank, kind) {}
                if self.console.is_full() {
                    return;
                }
                let Some(worker) = self.workers.get_mut(rank).and_then(Option::as_mut) else { continue };
                let Some(stream) = worker.streams.iter_mut().find(|stream| stream.kind == kind && stream.open) else {
                    continue;
                };
                stream.open = false;
                stream.lines.finish(|text, end| self.console.write(Source::Rank(rank, kind), text, end));
            }
        }
    }

    /// On a terminal, the newest unfinished line is shown.
    fn show_partials(&mut self) {
        for (rank, worker) in self.workers.iter().enumerate() {
            for stream in worker.iter().flat_map(|worker| &worker.streams) {
                self.console.show_partial(Source::Rank(rank, stream.kind), stream.lines.partial());
            }
        }
    }

    /// Nothing runs any more: what is left of the output, the last words, and the end.
    fn close(&mut self, mut cause: Cause) -> Cause {
        // Whoever ends a job from outside does not want to wait for a reader that does not read.
        let patient = !matches!(cause, Cause::Signal(_) | Cause::Timeout | Cause::OutputClosed);
        let until = (!patient).then(|| Instant::now() + self.plan.job.policy.grace);
        let mut has_spoken = false;
        loop {
            self.drain_streams();
            let is_silent = self.workers.iter().flatten().all(Worker::is_silent);
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
        if self.plan.job.verbosity >= level {
            self.console.say(&text());
        }
    }

    fn rank_in_words(&self, rank: usize) -> String {
        let host = self.plan.host_name(rank);
        match self.workers.get(rank).and_then(Option::as_ref).and_then(|worker| worker.pid) {
            Some(pid) => format!("(host {host}, pid {pid})"),
            None => format!("(host {host})"),
        }
    }

    fn tell_notice(&mut self, notice: Notice) {
        if let Some((level, text)) = words::notice(notice, self.plan.job.policy, |rank| self.rank_in_words(rank)) {
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
        if self.plan.size() == 1 || self.plan.job.verbosity == 0 {
            return;
        }
        let Some(worker) = self.workers.get_mut(rank).and_then(Option::as_mut) else { return };
        let [out, err] = &worker.streams;
        let (name, tail) = if err.tail.is_empty() { ("output", &out.tail) } else { ("error", &err.tail) };
        if tail.is_empty() {
            return;
        }
        self.console.say(&format!("the last lines of rank {rank}'s standard {name}:"));
        for line in tail.lines() {
            self.console.quote(line);
        }
    }
}

impl Worker {
    /// Whether nothing more can come from it.
    fn is_silent(&self) -> bool {
        self.streams.iter().all(|stream| !stream.open)
    }
}

impl Stream {
    fn new(kind: StreamKind, log: Log) -> Self {
        Self { kind, open: true, lines: LineBuffer::default(), log, tail: Tail::default() }
    }
}

impl Running {
    fn stream(&self, kind: StreamKind) -> BorrowedFd<'_> {
        match kind {
            StreamKind::Out => self.stdout.as_fd(),
            StreamKind::Err => self.stderr.as_fd(),
        }
    }
}
