//! The first process: runs the registry, starts ranks, does them harm, and keeps the books.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Stdout};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use phalanx::bootstrap::{Bind, new_key};
use phalanx::elastic::RegistryService;
use phalanx::membership::registry::{Event, RegistryConfig, Who};
use phalanx::wire::handshake::JobKey;
use phalanx::{Error, Result};
use rustix::process::{Pid, Signal};

use super::super::Demo;
use super::super::digits::Digits;
use super::super::report::{Begin, Message, Renderer, Summary};
use super::super::training::WIDTHS;
use super::faults::{Fault, plan};
use super::{Ending, Report, Told, View};

/// How long a rank may be stopped before the others go on without it.
const SILENT_LIMIT: Duration = Duration::from_millis(500);

/// How many steps the others make before a stopped rank is continued.
const STEPS_WHILE_STOPPED: u64 = 40;

/// The longest that nothing may be heard from anybody.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the first process hears.
enum Heard {
    Told(u32, Told),
    /// A rank's process closed its output: it has ended.
    Ended(u32),
    Registry(Event),
}

/// Trains with chaos. Succeeds when the ranks that are left agree, and no step was lost or repeated.
pub fn drive(demo: &Demo, ranks: usize, digits: &Digits) -> Result<ExitCode> {
    let (tell, heard) = channel();
    let key = new_key()?;
    let config = RegistryConfig {
        min_np: 1,
        max_np: ranks + 2,
        silent_limit: Some(SILENT_LIMIT),
        ..RegistryConfig::new(ranks).with_heartbeat_limit(Duration::from_secs(1))
    };
    let registry_tells = tell.clone();
    // Whoever does not listen any more has reached the end.
    let on_event = Box::new(move |event: &Event| drop(registry_tells.send(Heard::Registry(event.clone()))));
    let registry = RegistryService::start(config, key.clone(), &Bind::Tcp("127.0.0.1:0".into()), None, on_event)?;
    let steps = (digits.training.len().div_ceil(demo.batch) * demo.epochs) as u64;
    let mut driver = Driver {
        registry,
        key,
        tell,
        renderer: demo.renderer_without_json(),
        json: demo.json,
        faults: plan(demo.seed, steps).into(),
        processes: BTreeMap::new(),
        members: Vec::new(),
        stopped: None,
        views: Vec::new(),
        endings: Vec::new(),
        began: Instant::now(),
    };
    driver.renderer.show(&Message::Begin(Begin {
        ranks,
        local_ranks: ranks,
        processors: phalanx::sys::process::usable_processors(),
        network: WIDTHS.map(|width| width.to_string()).join("-"),
        parameters: WIDTHS.windows(2).map(|pair| (pair[0] + 1) * pair[1]).sum(),
        images: digits.training.len(),
        batch: demo.batch,
        steps: steps as usize,
        epochs: demo.epochs,
    }));
    for rank in 0..ranks {
        driver.start(Some(rank))?;
    }
    let outcome = driver.listen(&heard);
    driver.end_all();
    outcome?;
    driver.report(demo)
}

/// A process that was started.
struct Process {
    child: Child,
    slot: Option<usize>,
}

struct Driver {
    registry: RegistryService,
    key: JobKey,
    tell: Sender<Heard>,
    renderer: Renderer<Stdout>,
    json: bool,
    faults: std::collections::VecDeque<(u64, Fault)>,
    /// By process number.
    processes: BTreeMap<u32, Process>,
    /// The slots of the view, in rank order.
    members: Vec<usize>,
    /// The stopped process, and the step after which it is continued.
    stopped: Option<(u32, u64)>,
    views: Vec<View>,
    endings: Vec<Ending>,
    began: Instant,
}

impl Driver {
    /// Starts a process. It dies with this one.
    fn start(&mut self, wish: Option<usize>) -> Result<()> {
        let broken = |error: std::io::Error| {
            Error::environment(format_args!("cannot start a rank: {error}"), "see `phalanx doctor`")
        };
        let mut command = Command::new(std::env::current_exe().map_err(broken)?);
        command.args(std::env::args_os().skip(1)).stdin(Stdio::null()).stdout(Stdio::piped());
        command.env("PHALANX_REGISTRY", self.registry.address()).env("PHALANX_KEY", self.key.to_hex());
        if let Some(wish) = wish {
            command.env("PHALANX_SLOT", wish.to_string());
        }
        // SAFETY: one system call, which may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(broken)?;
        let pid = child.id();
        if let Some(output) = child.stdout.take() {
            let tell = self.tell.clone();
            let listen = move || {
                for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                    if let Ok(told) = serde_json::from_str(&line) {
                        let _ = tell.send(Heard::Told(pid, told));
                    }
                }
                let _ = tell.send(Heard::Ended(pid));
            };
            std::thread::Builder::new().name("phalanx-listen".into()).spawn(listen).map_err(broken)?;
        }
        self.processes.insert(pid, Process { child, slot: None });
        Ok(())
    }

    /// Until the job has finished and every process has ended.
    fn listen(&mut self, heard: &Receiver<Heard>) -> Result<()> {
        let mut has_finished = false;
        while !(has_finished && self.processes.is_empty()) {
            let next = heard.recv_timeout(PATIENCE).map_err(|_| {
                Error::internal(format_args!("nothing was heard of {} ranks for {PATIENCE:?}", self.processes.len()))
            })?;
            match next {
                Heard::Told(pid, told) => self.hear(pid, told)?,
                Heard::Ended(pid) => self.bury(pid)?,
                Heard::Registry(Event::View { generation, members, gone, joined, .. }) => {
                    let mut cause: Vec<String> = gone.iter().map(ToString::to_string).collect();
                    cause.extend(joined.iter().map(|slot| format!("slot {slot} joined")));
                    self.members.clone_from(&members);
                    let cause = if self.views.is_empty() { "the job begins".into() } else { cause.join("; ") };
                    self.views.push(View { generation: generation.0, members, cause, held_up_ms: 0.0 });
                }
                Heard::Registry(Event::Registered { slot, process }) => {
                    if let Some(process) = self.processes.get_mut(&process.pid) {
                        process.slot = Some(slot);
                    }
                }
                Heard::Registry(Event::Ended(_)) => {
                    has_finished = true;
                    // Those that came too late, or are still stopped.
                    self.end_all();
                }
                Heard::Registry(_) => {}
            }
        }
        Ok(())
    }

    fn hear(&mut self, pid: u32, told: Told) -> Result<()> {
        match told {
            Told::Ready { slot, since_start_ms } => {
                if self.began.elapsed().as_millis() > 0 && self.views.len() > 1 {
                    self.renderer.say(&format!("  slot {slot} has the state, {since_start_ms:.0} ms after its start"));
                }
            }
            Told::Step { steps } => {
                self.renderer.show(&Message::Step { steps: steps as usize });
                while self.faults.front().is_some_and(|(at, _)| *at <= steps) {
                    if let Some((_, fault)) = self.faults.pop_front() {
                        self.harm(fault, steps)?;
                    }
                }
                if self.stopped.is_some_and(|(_, until)| until <= steps)
                    && let Some((pid, _)) = self.stopped.take()
                {
                    self.renderer.say(&format!("  step {steps}: SIGCONT to process {pid}"));
                    signal(pid, Signal::CONT);
                }
            }
            Told::Epoch(epoch) => self.renderer.show(&Message::Epoch(epoch)),
            Told::View { generation, held_up_ms, .. } => {
                if let Some(view) = self.views.iter_mut().find(|view| view.generation == generation) {
                    let is_first = view.held_up_ms == 0.0;
                    view.held_up_ms = view.held_up_ms.max(held_up_ms);
                    if is_first {
                        let line = format!(
                            "  view {generation}: {} ranks {:?} after {held_up_ms:.1} ms; {}",
                            view.members.len(),
                            view.members,
                            view.cause
                        );
                        self.renderer.say(&line);
                    }
                }
            }
            Told::End(ending) => self.endings.push(*ending),
            Told::Out { reason } => self.renderer.say(&format!("  process {pid} learned: {reason}")),
        }
        Ok(())
    }

    fn harm(&mut self, fault: Fault, steps: u64) -> Result<()> {
        let whom = |rank: usize| {
            let slot = *self.members.get(rank % self.members.len().max(1))?;
            let (pid, _) = self.processes.iter().find(|(_, process)| process.slot == Some(slot))?;
            Some((*pid, slot))
        };
        match fault {
            Fault::Start => {
                self.renderer.say(&format!("  step {steps}: a process is started"));
                self.start(None)?;
            }
            Fault::Kill(rank) => {
                if let Some((pid, slot)) = whom(rank) {
                    self.renderer.say(&format!("  step {steps}: SIGKILL to slot {slot}, process {pid}"));
                    signal(pid, Signal::KILL);
                }
            }
            Fault::Stop(rank) => {
                if let Some((pid, slot)) = whom(rank) {
                    self.renderer.say(&format!("  step {steps}: SIGSTOP to slot {slot}, process {pid}"));
                    signal(pid, Signal::STOP);
                    self.stopped = Some((pid, steps + STEPS_WHILE_STOPPED));
                }
            }
        }
        Ok(())
    }

    /// A process has ended: the registry hears of it.
    fn bury(&mut self, pid: u32) -> Result<()> {
        let Some(mut process) = self.processes.remove(&pid) else { return Ok(()) };
        let status = process.child.wait().map_err(|error| Error::internal(format_args!("a lost child: {error}")))?;
        if let Some(slot) = process.slot
            && !status.success()
        {
            self.registry.exited(Who::Slot(slot), &status.to_string());
        }
        Ok(())
    }

    fn end_all(&mut self) {
        for pid in self.processes.keys() {
            signal(*pid, Signal::KILL);
        }
    }

    fn report(&mut self, demo: &Demo) -> Result<ExitCode> {
        self.endings.sort_by_key(|ending| ending.rank);
        let Some(first) = self.endings.first().cloned() else {
            return Err(Error::internal("the training ended on no rank"));
        };
        let most = self.endings.iter().map(|ending| ending.agreed).max().unwrap_or(0);
        let fewest = self.endings.iter().map(|ending| ending.steps).min().unwrap_or(0);
        let lost_steps = most.saturating_sub(fewest);
        let repeated_steps = self.endings.iter().map(|ending| ending.repeated).sum();
        let summary = Summary {
            ranks: self.endings.len(),
            transport: first.transport,
            algorithm: first.algorithm,
            accuracy: first.accuracy,
            steps: first.steps as usize,
            seconds: self.began.elapsed().as_secs_f64(),
            communication_share: first.communication_share,
            seed: demo.seed,
            epochs: demo.epochs,
            batch: demo.batch,
            digests: self.endings.iter().map(|ending| ending.digest.clone()).collect(),
        };
        let is_well = summary.is_agreed()
            && self.endings.iter().all(|ending| ending.size == summary.ranks)
            && lost_steps == 0
            && repeated_steps == 0;
        self.renderer.show(&Message::End(summary.clone()));
        let changes = self.views.len().saturating_sub(1);
        self.renderer
            .say(&format!("{changes} changes of the view; steps lost: {lost_steps}, made twice: {repeated_steps}"));
        if self.json {
            let report = Report { summary, views: std::mem::take(&mut self.views), lost_steps, repeated_steps };
            let line = serde_json::to_string(&report).map_err(Error::internal)?;
            self.renderer.say(&line);
        }
        Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended a moment ago.
        let _ = rustix::process::kill_process(pid, signal);
    }
}
