//! A job whose ranks the launcher starts, and everything that they say.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::job::{PATIENCE, command, hold, worker};
use crate::leftovers::Place;
use crate::oracle::Oracle;
use crate::told::Told;

enum Heard {
    Out(String),
    Err(String),
    Ended,
}

/// A rank that the launcher started.
pub struct Rank {
    pub pid: u32,
    pub pidfd: OwnedFd,
    /// Whether it has made a step, since it was last continued.
    pub trains: bool,
    pub is_stopped: bool,
    pub has_ended: bool,
}

impl Rank {
    pub fn signal(&self, signal: Signal) {
        // It may have ended a moment ago.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
    }
}

/// A launcher and its ranks.
pub struct Launched {
    pub launcher: Child,
    pub place: Place,
    pub oracle: Oracle,
    /// By slot, those that have ended too.
    pub ranks: BTreeMap<usize, Rank>,
    pub stderr: String,
    heard: Receiver<Heard>,
    /// Whether the ranks were told that it is enough.
    is_done: bool,
    /// How many of the two outputs are open.
    open: usize,
    /// The newest lines, for whoever looks at a failure.
    story: Vec<String>,
    /// For the failure's first line.
    pub name: String,
}

impl Launched {
    /// `phalanx run` with these options. Before it starts, `prepare` may put something into the job's folder.
    pub fn start(name: &str, options: &[&str], prepare: impl FnOnce(&Place)) -> Self {
        let place = Place::new();
        prepare(&place);
        let mut command = command(env!("CARGO_BIN_EXE_phalanx"), &place);
        command.arg("run").args(options).args(worker());
        let mut launcher = command.spawn().expect("a launcher");
        let (tell, heard) = channel();
        let out = launcher.stdout.take().expect("a pipe");
        let err = launcher.stderr.take().expect("a pipe");
        listen(out, tell.clone(), Heard::Out);
        listen(err, tell, Heard::Err);
        Self {
            launcher,
            place,
            oracle: Oracle::default(),
            ranks: BTreeMap::new(),
            stderr: String::new(),
            heard,
            is_done: false,
            open: 2,
            story: Vec::new(),
            name: name.into(),
        }
    }

    /// Hears what comes until `done` says so.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(heard) => self.hear(heard),
                Err(_) => self.fail(&format!("not within {PATIENCE:?}: {what}")),
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
            Heard::Ended => self.open -= 1,
            Heard::Err(line) => {
                self.stderr += &line;
                self.stderr.push('\n');
                self.note(line);
            }
            Heard::Out(line) => {
                let told = crate::told::parse(&line);
                self.note(line);
                if let Some(told) = told {
                    self.hear_told(&told);
                }
            }
        }
    }

    fn hear_told(&mut self, told: &Told) {
        let (Told::In { slot, .. }
        | Told::Synced { slot, .. }
        | Told::Out { slot, .. }
        | Told::End { slot, .. }
        | Told::Step(crate::told::Step { slot, .. })) = told;
        if let Told::In { pid, .. } = told {
            // One that was killed a moment ago cannot be held any more, and needs not be.
            let Some(pidfd) = held(*pid) else { return };
            let rank = Rank { pid: *pid, pidfd, trains: false, is_stopped: false, has_ended: false };
            if self.ranks.insert(*slot, rank).is_some() {
                self.fail(&format!("slot {slot} was given twice"));
            }
            return;
        }
        let pid = match self.ranks.get_mut(slot) {
            Some(rank) => {
                rank.trains |= matches!(told, Told::Step(_));
                rank.has_ended |= matches!(told, Told::Out { .. } | Told::End { .. });
                rank.pid
            }
            None => u32::MAX.wrapping_sub(*slot as u32),
        };
        if let Told::Out { kind, reason, .. } = told
            && kind != "evicted"
            // One that waited to join when the others were done.
            && !(*slot == usize::MAX && self.is_done && reason.contains("the job has finished"))
        {
            self.fail(&format!("slot {slot} is out: {kind}: {reason}"));
        }
        if let Err(what) = self.oracle.hear(pid, told) {
            self.fail(&what);
        }
    }

    fn note(&mut self, line: String) {
        if self.story.len() > 400 {
            self.story.drain(..200);
        }
        self.story.push(line);
    }

    /// The test has failed.
    pub fn fail(&self, what: &str) -> ! {
        let lines = self.story.len().saturating_sub(200);
        panic!("{}: {what}\n{}", self.name, self.story[lines..].join("\n"));
    }

    /// Ranks that have made a step and are, as far as is known, alive and not stopped.
    pub fn training(&self) -> Vec<usize> {
        let is_well = |rank: &Rank| rank.trains && !rank.is_stopped && !rank.has_ended && !is_over(rank);
        self.ranks.iter().filter(|(_, rank)| is_well(rank)).map(|(slot, _)| *slot).collect()
    }

    /// The work is done: says so, and waits until nobody is left. Returns how the launcher ended.
    pub fn finish(&mut self) -> ExitStatus {
        std::fs::write(self.place.folder().join("done"), "").expect("room");
        self.is_done = true;
        self.wait()
    }

    /// Waits until the launcher and all its ranks have ended, and looks for what they left behind.
    pub fn wait(&mut self) -> ExitStatus {
        self.until("the launcher has ended", |launched| launched.open == 0);
        let status = self.launcher.wait().expect("a child");
        for name in ["done", "hosts", "new"] {
            let _ = std::fs::remove_file(self.place.folder().join(name));
        }
        let left = self.place.leftovers();
        if !left.is_empty() {
            self.fail(&format!("left behind: {left:#?}"));
        }
        status
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // A failed test leaves nothing behind either: ranks die with their launcher, if they are not stopped.
        self.ranks.values().for_each(|rank| rank.signal(Signal::KILL));
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

fn listen(from: impl Read + Send + 'static, tell: Sender<Heard>, kind: fn(String) -> Heard) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // Nobody listens any more when the test is over.
            let _ = tell.send(kind(line));
        }
        let _ = tell.send(Heard::Ended);
    });
}

fn held(pid: u32) -> Option<OwnedFd> {
    std::path::Path::new(&format!("/proc/{pid}")).exists().then(|| hold(pid))
}

fn is_over(rank: &Rank) -> bool {
    crate::job::has_ended(&rank.pidfd, Duration::ZERO)
}
