//! A job of real processes: a registry of its own, ranks that are started one by one, and everything that they say.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use phalanx::TransportKind;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::leftovers::Place;
use crate::oracle::Oracle;
use crate::told::{Told, parse};
use crate::worker::{DONE, EVICTED};

/// A wait that takes longer has failed. Generous, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What the processes of a job say.
enum Heard {
    Out(u32, String),
    Err(u32, String),
    /// It closed its standard output: it has ended.
    Ended(u32),
}

/// A process that was started.
pub struct Process {
    pub child: Child,
    pub pidfd: OwnedFd,
    pub slot: Option<usize>,
    /// The size of the view that it last said it was in.
    pub size: usize,
    /// Everything it said on standard error.
    pub stderr: String,
    pub status: Option<ExitStatus>,
    /// What it said when it was out.
    pub out: Option<(String, String)>,
}

impl Process {
    /// Whether it has come to its test point.
    pub fn is_at_point(&self) -> bool {
        self.stderr.contains("phalanx: at the test point ")
    }

    pub fn is_alive(&self) -> bool {
        self.status.is_none()
    }

    pub fn signal(&self, signal: Signal) {
        // It may have ended a moment ago.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
    }
}

/// How a job is made.
#[derive(Clone)]
pub struct Options {
    pub np: usize,
    pub max_np: usize,
    pub transport: TransportKind,
    /// The heartbeat limit, in seconds.
    pub heartbeat: f64,
    /// Seconds of silence after which a member is out.
    pub evict_silent: Option<f64>,
    /// More of the environment of every worker.
    pub environment: Vec<(&'static str, String)>,
    /// The registry's test point.
    pub registry_point: Option<String>,
}

impl Options {
    pub fn new(np: usize, transport: TransportKind) -> Self {
        let environment = Vec::new();
        Self { np, max_np: np + 2, transport, heartbeat: 0.4, evict_silent: None, environment, registry_point: None }
    }
}

/// A job.
pub struct Job {
    pub options: Options,
    pub place: Place,
    key: String,
    address: String,
    pub registry: Option<u32>,
    /// The workers, in the order in which they were started.
    pub started: Vec<u32>,
    /// By process number, those that have ended too.
    pub processes: BTreeMap<u32, Process>,
    pub oracle: Oracle,
    /// The slot that is missed, and when each process said its first step without it.
    pub missed: Option<usize>,
    pub without: BTreeMap<u32, f64>,
    tell: Sender<Heard>,
    heard: Receiver<Heard>,
    /// Whether the job may count as failed, because a rank fell that was done and had not said goodbye.
    pub may_fail: bool,
    /// What was done, for whoever looks at a failure.
    pub story: Vec<String>,
}

/// This program as a worker.
pub fn worker() -> Vec<String> {
    let own = std::env::current_exe().expect("this program");
    let own = own.to_str().expect("a name").to_owned();
    [&own, "--exact", "worker::rank_of_a_job", "--ignored", "--nocapture"].map(str::to_owned).to_vec()
}

/// A command of the program, without anything of this process's environment that could matter to it, that leaves what
/// it leaves in `place`, and dies with this thread.
pub fn command(program: &str, place: &Place) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let is_ours = name.to_str().is_some_and(|name| name.starts_with("PHALANX_"));
        if is_ours || name == "NO_COLOR" {
            command.env_remove(name);
        }
    }
    command.env(DONE, place.folder().join("done")).envs(place.environment());
    command.current_dir(place.folder());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: one system call, which may be made between fork and exec.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command
}

/// A job's key, in hexadecimal digits.
pub fn new_key() -> String {
    phalanx::bootstrap::new_key().expect("random bytes").to_hex()
}

impl Job {
    /// A registry, and the first workers; `points` has the test points of some of them, by rank.
    pub fn start(options: Options, points: &[(usize, String)]) -> Self {
        let mut job = Self::without_workers(options);
        for rank in 0..job.options.np {
            let point = points.iter().find(|(victim, _)| *victim == rank).map(|(_, point)| point.as_str());
            job.add(Some(rank), point);
        }
        job
    }

    pub fn without_workers(options: Options) -> Self {
        let (tell, heard) = channel();
        let place = Place::new();
        let mut job = Self {
            options,
            place,
            key: new_key(),
            address: "127.0.0.1:0".into(),
            registry: None,
            started: Vec::new(),
            processes: BTreeMap::new(),
            oracle: Oracle::default(),
            missed: None,
            without: BTreeMap::new(),
            tell,
            heard,
            may_fail: false,
            story: Vec::new(),
        };
        let point = job.options.registry_point.take();
        job.start_registry(point.as_deref());
        job
    }

    pub fn state_file(&self) -> PathBuf {
        self.place.folder().join("registry.state")
    }

    /// Starts the registry, or starts it again from its file at the same address.
    pub fn start_registry(&mut self, point: Option<&str>) {
        let Options { np, max_np, evict_silent, heartbeat, .. } = self.options.clone();
        let mut command = command(env!("CARGO_BIN_EXE_phalanx"), &self.place);
        command.args(["registry", "--listen", &self.address, "--min-np", "1", "--verbose"]);
        command.args(["--heartbeat", &heartbeat.to_string(), "--name-silent", &heartbeat.max(60.0).to_string()]);
        command.args(["-np", &np.to_string(), "--max-np", &max_np.to_string(), "--elastic-timeout", "50"]);
        command.arg("--state").arg(self.state_file()).env("PHALANX_KEY", &self.key);
        if let Some(seconds) = evict_silent {
            command.args(["--evict-silent", &seconds.to_string()]);
        }
        if let Some(point) = point {
            command.env("PHALANX_TEST_POINT", point);
        }
        let pid = self.spawn(command);
        self.registry = Some(pid);
        self.until("the registry listens", |job| job.processes[&pid].stderr.contains("the registry listens at "));
        let (_, after) = self.processes[&pid].stderr.split_once("the registry listens at ").expect("just seen");
        self.address = after.split([',', '\n']).next().unwrap_or_default().trim().to_owned();
    }

    /// Starts a worker.
    pub fn add(&mut self, wish: Option<usize>, point: Option<&str>) -> u32 {
        let arguments = worker();
        let mut command = command(&arguments[0], &self.place);
        command.args(&arguments[1..]);
        command.env("PHALANX_REGISTRY", &self.address).env("PHALANX_KEY", &self.key);
        command.env("PHALANX_TRANSPORT", self.options.transport.name());
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        if let Some(wish) = wish {
            command.env("PHALANX_SLOT", wish.to_string());
        }
        if let Some(point) = point {
            command.env("PHALANX_TEST_POINT", point);
        }
        let pid = self.spawn(command);
        self.started.push(pid);
        self.note(format!("process {pid} starts, wish {wish:?}, point {point:?}"));
        pid
    }

    /// Starts any process of the job and listens to it.
    pub fn spawn(&mut self, mut command: Command) -> u32 {
        let mut child = command.spawn().expect("a process");
        let pid = child.id();
        let out = child.stdout.take().expect("a pipe");
        let err = child.stderr.take().expect("a pipe");
        self.listen(pid, out, false);
        self.listen(pid, err, true);
        let pidfd = hold(pid);
        let process = Process { child, pidfd, slot: None, size: 0, stderr: String::new(), status: None, out: None };
        self.processes.insert(pid, process);
        pid
    }

    fn listen(&self, pid: u32, from: impl Read + Send + 'static, is_error: bool) {
        let tell = self.tell.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                // Nobody listens any more when the test is over.
                let _ = tell.send(if is_error { Heard::Err(pid, line) } else { Heard::Out(pid, line) });
            }
            if !is_error {
                let _ = tell.send(Heard::Ended(pid));
            }
        });
    }

    pub fn note(&mut self, what: String) {
        self.story.push(what);
    }

    /// Hears what comes until `done` says so.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            let left = until.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left) {
                Ok(heard) => self.hear(heard),
                Err(RecvTimeoutError::Timeout) => self.fail(&format!("not within {PATIENCE:?}: {what}")),
                Err(RecvTimeoutError::Disconnected) => unreachable!("this has a sender"),
            }
        }
    }

    /// Hears what comes for a while.
    pub fn listen_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Ok(heard) = self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.hear(heard);
        }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Err(pid, line) => {
                let process = self.processes.get_mut(&pid).expect("a process of this job");
                process.stderr += &line;
                process.stderr.push('\n');
                self.story.push(format!("{pid} err: {line}"));
            }
            Heard::Ended(pid) => {
                let process = self.processes.get_mut(&pid).expect("a process of this job");
                let status = process.child.wait().expect("a child");
                process.status = Some(status);
                self.story.push(format!("{pid} ended: {status}"));
            }
            Heard::Out(pid, line) => match parse(&line) {
                Some(told) => self.hear_told(pid, &told),
                None if line.is_empty() || line.starts_with("running ") => {}
                None => self.story.push(format!("{pid} out: {line}")),
            },
        }
    }

    /// A worker said this.
    fn hear_told(&mut self, pid: u32, told: &Told) {
        crate::crowd::note_first_without(self.missed, &mut self.without, pid, told);
        self.story.push(format!("{pid}: {}", serde_json::to_string(told).expect("plain data")));
        if let Some(process) = self.processes.get_mut(&pid) {
            match told {
                Told::In { slot, .. } => process.slot = Some(*slot),
                Told::Step(step) => process.size = step.size,
                Told::Out { kind, reason, .. } => process.out = Some((kind.clone(), reason.clone())),
                Told::Synced { .. } | Told::End { .. } => {}
            }
        }
        if let Err(what) = self.oracle.hear(pid, told) {
            self.fail(&what);
        }
    }

    /// The test has failed.
    pub fn fail(&self, what: &str) -> ! {
        let lines = self.story.len().saturating_sub(150);
        panic!("{what}\n{}", self.story[lines..].join("\n"));
    }

    /// Workers that live.
    pub fn living(&self) -> Vec<u32> {
        let is_worker = |pid: u32| Some(pid) != self.registry;
        self.processes
            .iter()
            .filter(|(pid, process)| is_worker(**pid) && process.is_alive())
            .map(|(pid, _)| *pid)
            .collect()
    }

    /// Waits until each of these has made so many steps more than anybody had.
    pub fn until_all_go_on(&mut self, pids: &[u32], steps: u64) {
        let goal = self.oracle.highest() + steps;
        self.until("all go on", |job| {
            pids.iter().all(|pid| job.oracle.last_of(*pid) >= goal || !job.processes[pid].is_alive())
        });
    }

    /// Waits until all of these train with each other and with nobody else.
    pub fn until_together(&mut self, pids: &[u32]) {
        self.until("they train with each other", |job| pids.iter().all(|pid| job.processes[pid].size == pids.len()));
    }

    pub fn kill_registry(&mut self) {
        let pid = self.registry.take().expect("a registry");
        self.processes[&pid].signal(Signal::KILL);
        self.until("the registry has ended", |job| !job.processes[&pid].is_alive());
    }

    /// Tells the workers that it is enough.
    pub fn say_done(&self) {
        std::fs::write(self.place.folder().join("done"), "").expect("room");
    }

    /// The work is done: says so, and waits until nobody is left.
    pub fn finish(self) -> Oracle {
        self.finish_with(|_| {})
    }

    /// As above; `look` sees how each process ended.
    pub fn finish_with(mut self, look: impl FnOnce(&Self)) -> Oracle {
        self.say_done();
        self.until("all have ended", |job| job.processes.values().all(|process| process.status.is_some()));
        if let Err(what) = self.oracle.check_end() {
            self.fail(&what);
        }
        for (pid, process) in &self.processes {
            // Harmed ones were killed, or have learned that they are out. Anything else is an error, or a failed check.
            let code = process.status.map_or(Some(0), |status| status.code());
            let is_fine = match code {
                Some(0 | EVICTED) => true,
                Some(1) => self.may_fail && Some(*pid) == self.registry,
                Some(_) => false,
                None => process.status.is_some_and(was_killed),
            };
            if !is_fine {
                let what = format!("process {pid} ended with {code:?}: {}", process.stderr);
                self.fail(&what);
            }
        }
        let _ = std::fs::remove_file(self.place.folder().join("done"));
        let left = self.place.leftovers();
        if !left.is_empty() {
            self.fail(&format!("left behind: {left:#?}"));
        }
        look(&self);
        std::mem::take(&mut self.oracle)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // A failed test leaves nothing behind either.
        for process in self.processes.values_mut().filter(|process| process.status.is_none()) {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

/// A descriptor that stands for a process.
pub fn hold(pid: u32) -> OwnedFd {
    let pid = Pid::from_raw(pid as i32).expect("a process id");
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("it lives, or was not waited for")
}

/// Waits until a process has ended.
pub fn has_ended(process: &OwnedFd, patience: Duration) -> bool {
    let timeout = Timespec::try_from(patience).expect("a short time");
    matches!(rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)), Ok(1..))
}

/// Whether a status is a death by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGKILL)
}

/// A number for names that two jobs must not share.
pub fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
