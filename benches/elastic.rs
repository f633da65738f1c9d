//! What a fall costs: real processes, killed at random moments of an allreduce loop.
//!
//!     cargo bench --bench elastic                              all figures, over shm and tcp
//!     cargo bench --bench elastic -- --kills 50 --transport shm
//!
//! The first process runs the registry and kills; its children run the loop. Times are of one clock, which all processes
//! of a machine share.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use phalanx::bootstrap::{Bind, Settings, Variables, new_key, settings};
use phalanx::elastic::{Elastic, RegistryService};
use phalanx::membership::registry::{Event, RegistryConfig, Who};
use phalanx::wire::handshake::JobKey;
use phalanx::{ReduceOp, Result, TransportKind};
use rustix::process::{Pid, Signal};
use rustix::time::{ClockId, clock_gettime};

/// Elements of the loop's allreduce: 25 MB of f32.
const ELEMENTS: usize = 25_000_000 / 4;

/// Bytes of the state that newcomers get in the second part.
const STATE: usize = 100_000_000;

/// Seconds on the clock that all processes share.
fn clock() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

fn say(line: &str) {
    // Whoever listens may be gone; then so is this process in a moment.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A member: the loop, until it is killed.
fn member(settings: &Settings, state_bytes: usize) -> Result<()> {
    let began = clock();
    // As a program does that builds its model before it joins: the others would wait for it.
    let mut state = vec![7u8; state_bytes];
    let job = Elastic::join(settings)?;
    let before = clock();
    job.sync(&mut state)?;
    say(&format!("synced {} {}", job.generation().0, clock() - before));
    let input = vec![1f32; ELEMENTS];
    let mut output = vec![0f32; ELEMENTS];
    let mut first = true;
    loop {
        let outcome = job.step(|step| step.allreduce_into(&input, &mut output, ReduceOp::Sum))?;
        let now = clock();
        if first {
            say(&format!("first {} {}", job.generation().0, now - began));
            first = false;
        }
        if outcome.view_changed {
            say(&format!("passed {} {now}", job.generation().0));
        }
        assert!(output[0] == outcome.contributors.len() as f32 && output[ELEMENTS - 1] == output[0], "a wrong sum");
        if outcome.joined {
            let before = clock();
            let generation = job.generation().0;
            let synced = job.sync(&mut state)?;
            say(&format!("held {generation} {}", clock() - before));
            if synced.view_changed {
                say(&format!("passed {} {}", job.generation().0, clock()));
            }
        }
    }
}

/// Figures without faults: what the commit adds, and a broadcast of the state.
fn quiet(settings: &Settings) -> Result<()> {
    let job = Elastic::join(settings)?;
    job.sync(&mut Vec::<u8>::new())?;
    let comm = job.communicator()?;
    for bytes in [8, 1 << 20, 25 << 20] {
        let (input, mut output) = (vec![1f32; bytes / 4], vec![0f32; bytes / 4]);
        let mut in_place = input.clone();
        let rounds = if bytes < 1 << 16 {
            2000
        } else if bytes < 1 << 22 {
            200
        } else {
            30
        };
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..rounds {
            comm.barrier()?;
            let began = Instant::now();
            comm.allreduce_into(&input, &mut output, ReduceOp::Sum)?;
            times[0].push(began.elapsed().as_secs_f64());
            comm.barrier()?;
            let began = Instant::now();
            job.step(|step| step.allreduce_into(&input, &mut output, ReduceOp::Sum))?;
            times[1].push(began.elapsed().as_secs_f64());
            comm.barrier()?;
            let began = Instant::now();
            job.step(|step| step.allreduce(&mut in_place, ReduceOp::Max))?;
            times[2].push(began.elapsed().as_secs_f64());
        }
        let [alone, step, kept] = times.map(|mut times| median(&mut times) * 1e6);
        if job.rank() == 0 {
            say(&format!("commit {bytes} {alone} {step} {kept}"));
        }
    }
    let mut data = vec![7u8; STATE];
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..5 {
        comm.barrier()?;
        let began = Instant::now();
        comm.broadcast(&mut data, 0)?;
        comm.barrier()?;
        times.push(began.elapsed().as_secs_f64());
    }
    if job.rank() == 0 {
        say(&format!("broadcast {}", median(&mut times)));
    }
    job.shutdown();
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    percentile(values, 50.0)
}

fn percentile(values: &mut [f64], percent: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len() as f64 * percent / 100.0).ceil() as usize).clamp(1, values.len().max(1)) - 1;
    values.get(at).copied().unwrap_or(f64::NAN)
}

enum Heard {
    Line(Vec<String>),
    Ended(u32),
    Registry(Event),
}

/// The first process of one job.
struct Driver {
    registry: RegistryService,
    key: JobKey,
    tell: Sender<Heard>,
    heard: Receiver<Heard>,
    transport: TransportKind,
    part: &'static str,
    children: Vec<(u32, Child)>,
    /// By slot, as they registered.
    slots: Vec<(usize, u32)>,
    members: Vec<usize>,
    generation: u64,
}

impl Driver {
    fn new(transport: TransportKind, part: &'static str, np: usize) -> Result<Self> {
        let key = new_key()?;
        let (tell, heard) = channel();
        let events = tell.clone();
        let on_event = Box::new(move |event: &Event| drop(events.send(Heard::Registry(event.clone()))));
        let config = RegistryConfig { max_np: np + 1, ..RegistryConfig::new(np) };
        let bind = Bind::Tcp("127.0.0.1:0".into());
        let registry = RegistryService::start(config, key.clone(), &bind, None, on_event)?;
        let mut driver = Self {
            registry,
            key,
            tell,
            heard,
            transport,
            part,
            children: Vec::new(),
            slots: Vec::new(),
            members: Vec::new(),
            generation: 0,
        };
        for rank in 0..np {
            driver.start(Some(rank));
        }
        Ok(driver)
    }

    fn start(&mut self, wish: Option<usize>) {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(self.part).stdin(Stdio::null()).stdout(Stdio::piped());
        command.env("PHALANX_REGISTRY", self.registry.address()).env("PHALANX_KEY", self.key.to_hex());
        command.env("PHALANX_TRANSPORT", self.transport.name());
        if let Some(wish) = wish {
            command.env("PHALANX_SLOT", wish.to_string());
        }
        // SAFETY: one system call, which may be made between fork and exec.
        unsafe {
            command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = command.spawn().expect("a child");
        let (pid, output, tell) = (child.id(), child.stdout.take().expect("a pipe"), self.tell.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                let _ = tell.send(Heard::Line(line.split_whitespace().map(str::to_string).collect()));
            }
            let _ = tell.send(Heard::Ended(pid));
        });
        self.children.push((pid, child));
    }

    /// The next line of a child; none when all have ended.
    fn line(&mut self) -> Option<Vec<String>> {
        loop {
            if let Some(line) = self.hear() {
                return Some(line);
            }
            if self.children.is_empty() {
                return None;
            }
        }
    }

    /// Hears one thing, and returns it if it is a child's line.
    fn hear(&mut self) -> Option<Vec<String>> {
        let heard = self.heard.recv_timeout(Duration::from_secs(60));
        let heard = heard.unwrap_or_else(|_| panic!("nothing was heard for 60 s in view {}", self.generation));
        match heard {
            Heard::Line(line) => return Some(line),
            Heard::Ended(pid) => {
                let at = self.children.iter().position(|(child, _)| *child == pid).expect("a child");
                let status = self.children.remove(at).1.wait().expect("a child");
                let slot = self.slots.iter().find(|(_, child)| *child == pid).map(|(slot, _)| *slot);
                if let Some(slot) = slot.filter(|_| !status.success()) {
                    self.registry.exited(Who::Slot(slot), &status.to_string());
                }
            }
            Heard::Registry(Event::Registered { slot, process }) => self.slots.push((slot, process.pid)),
            Heard::Registry(Event::View { generation, members, .. }) => {
                (self.generation, self.members) = (generation.0, members);
            }
            Heard::Registry(_) => {}
        }
        None
    }

    /// Waits for `word` with this generation from as many children as `count`, and returns the last number of each.
    fn collect(&mut self, word: &str, generation: u64, count: usize) -> Vec<f64> {
        let mut numbers = Vec::new();
        while numbers.len() < count {
            let line = self.line().expect("children that live");
            if line[0] == word && line[1].parse() == Ok(generation) {
                numbers.push(line[2].parse().expect("a number"));
            }
        }
        // Members may speak of a view before the registry has said here that there is one.
        while self.generation < generation {
            // What is waited for next comes after what is done next: no line that is needed is lost.
            let _ = self.hear();
        }
        numbers
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn kills(transport: TransportKind, kills: usize) -> Result<()> {
    let mut driver = Driver::new(transport, "loop", 4)?;
    driver.collect("first", 1, 4);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let (mut fell, mut joined) = (Vec::new(), Vec::new());
    for _ in 0..kills {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let wait = Duration::from_micros((random >> 33) % 60_000);
        // A moment of the loop that nobody chose.
        std::thread::park_timeout(wait);
        let victim = driver.members[(random >> 40) as usize % driver.members.len()];
        let pid = driver.slots.iter().find(|(slot, _)| *slot == victim).expect("a registered slot").1;
        let next = driver.generation + 1;
        let killed = clock();
        rustix::process::kill_process(Pid::from_raw(pid as i32).expect("a process"), Signal::KILL).expect("a kill");
        let passed = driver.collect("passed", next, 3);
        fell.push((passed.into_iter().fold(0.0, f64::max) - killed) * 1e3);
        driver.start(None);
        joined.extend(driver.collect("first", next + 1, 1).into_iter().map(|seconds| seconds * 1e3));
    }
    let (fall50, fall99) = (percentile(&mut fell, 50.0), percentile(&mut fell, 99.0));
    let (join50, join99) = (percentile(&mut joined, 50.0), percentile(&mut joined, 99.0));
    println!("{transport}: {kills} kills of 4 ranks in a loop of 25 MB allreduces, every sum right, no step lost");
    println!("  kill to the last survivor's next result that counts: p50 {fall50:.1} ms, p99 {fall99:.1} ms");
    println!("  a newcomer's start to its first step that counts:    p50 {join50:.1} ms, p99 {join99:.1} ms");
    Ok(())
}

fn state(transport: TransportKind) -> Result<()> {
    let mut driver = Driver::new(transport, "state", 4)?;
    driver.collect("first", 1, 4);
    let mut held = Vec::new();
    for _ in 0..5 {
        driver.start(None);
        let next = driver.generation + 1;
        let longest = driver.collect("held", next, 4);
        held.push(longest.into_iter().fold(0.0, f64::max) * 1e3);
        let newest = driver.slots.iter().max().expect("slots").1;
        rustix::process::kill_process(Pid::from_raw(newest as i32).expect("a process"), Signal::KILL).expect("a kill");
        driver.collect("passed", next + 1, 4);
    }
    println!("  survivors held up for 100 MB of state:               {:.1} ms", median(&mut held));
    Ok(())
}

fn without_faults(transport: TransportKind) -> Result<()> {
    let mut driver = Driver::new(transport, "quiet", 2)?;
    while let Some(line) = driver.line() {
        let number = |at: usize| line[at].parse::<f64>().expect("a number");
        match line[0].as_str() {
            "commit" => println!(
                "  {:>9} B: allreduce {:.1} us; with its commit {:.1} us ({:+.1} us, {:+.1} %); in place, kept, {:.1} us",
                line[1],
                number(2),
                number(3),
                number(3) - number(2),
                100.0 * (number(3) / number(2) - 1.0),
                number(4)
            ),
            "broadcast" => println!("  a plain broadcast of 100 MB to one rank:             {:.1} ms", number(1) * 1e3),
            _ => {}
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let variables = Variables::of_process();
    if variables.get("PHALANX_REGISTRY").is_some() {
        let settings = settings(&variables)?;
        return match arguments.first().map(String::as_str) {
            Some("quiet") => quiet(&settings),
            Some("state") => member(&settings, STATE),
            _ => member(&settings, 8),
        };
    }
    let after = |name: &str| {
        arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1)).cloned()
    };
    let count = after("--kills").map_or(200, |count| count.parse().expect("a number of kills"));
    let only = after("--transport");
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        if only.as_deref().is_none_or(|only| only == transport.name()) {
            kills(transport, count)?;
            state(transport)?;
            without_faults(transport)?;
        }
    }
    Ok(())
}
