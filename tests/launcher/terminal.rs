//! The launcher in a terminal: keys, colours, progress bars, job control.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::pty::OpenptFlags;

use crate::support::{PATIENCE, Started, fifo, is_ready, script, signal_of, state_of, wait_until};

/// A terminal with a job in its foreground.
struct Terminal {
    keys: File,
    seen: String,
    job: Started,
}

impl Terminal {
    fn new(mut command: Command) -> Self {
        let controller =
            rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        rustix::pty::grantpt(&controller).expect("a terminal");
        rustix::pty::unlockpt(&controller).expect("a terminal");
        let name = rustix::pty::ptsname(&controller, Vec::new()).expect("a terminal");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).expect("a terminal");
        let stdio = |fd: &OwnedFd| Stdio::from(fd.try_clone().expect("a descriptor"));
        command.stdin(stdio(&terminal)).stdout(stdio(&terminal)).stderr(stdio(&terminal)).env("TERM", "xterm");
        // SAFETY: the closure makes system calls only.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::fd::BorrowedFd::borrow_raw(0))?;
                Ok(())
            });
        }
        let job = Started::of(command);
        Self { keys: File::from(controller), seen: String::new(), job }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).expect("a terminal");
    }

    /// Reads until `text` was shown. Returns what was shown up to its end.
    fn until(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            assert!(is_ready(self.keys.as_fd(), PATIENCE), "{text:?} was not shown; {:?} was", self.seen);
            assert!(self.read(), "{text:?} was not shown; {:?} was", self.seen);
        }
    }

    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match self.keys.read(&mut bytes) {
            Ok(count) if count > 0 => {
                self.seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
                true
            }
            // The last holder of the other end is gone.
            _ => false,
        }
    }

    /// Everything that is still to come.
    fn rest(&mut self) -> String {
        while is_ready(self.keys.as_fd(), PATIENCE) && self.read() {}
        std::mem::take(&mut self.seen)
    }
}

#[test]
fn a_key_interrupts_the_ranks_and_the_shell_hears_of_it() {
    let mut terminal = Terminal::new(script(2, &[], "echo ready; exec sleep 1000"));
    terminal.until("ready");
    terminal.until("ready");
    terminal.press(b"\x03");
    terminal.until("passed on to 2 ranks; Ctrl-C again kills them");
    let status = terminal.job.wait_status();
    // A shell that runs a script stops it when a command was ended by this key, and goes on when it only exited.
    assert_eq!(signal_of(status), Some(2), "{status}");
}

#[test]
fn the_key_twice_kills() {
    let mut terminal =
        Terminal::new(script(2, &["--grace", "1000"], "trap '' INT; echo ready; while :; do sleep 1000; done"));
    terminal.until("ready");
    terminal.until("ready");
    terminal.press(b"\x03");
    terminal.until("Ctrl-C again kills them");
    while terminal.job.child.try_wait().expect("waitable").is_none() {
        terminal.press(b"\x03");
        let held = crate::support::hold(terminal.job.pid());
        if is_ready(held, std::time::Duration::from_millis(100)) {
            break;
        }
    }
    assert!(terminal.rest().contains("killing 2 ranks"));
    assert_eq!(signal_of(terminal.job.wait_status()), Some(2));
}

#[test]
fn ranks_have_colours_unless_they_are_not_wanted() {
    let mut terminal = Terminal::new(script(2, &[], "echo x"));
    let text = terminal.rest();
    assert!(text.contains("\x1b[36m[0]\x1b[0m x\r\n") && text.contains("\x1b[32m[1]\x1b[0m x\r\n"), "{text:?}");
    let mut command = script(1, &[], "echo x");
    command.env("NO_COLOR", "1");
    assert_eq!(Terminal::new(command).rest(), "[0] x\r\n");
}

#[test]
fn an_unfinished_line_is_shown_below_the_others() {
    let directories = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
    let [one, two] = directories.each_ref().map(|directory| fifo(directory.path()));
    let mut terminal = Terminal::new(script(
        2,
        &["--color", "never"],
        &format!(
            r"if [ $PHALANX_RANK = 0 ]; then printf '\r 10%%'; read x <{one}; printf '\r100%%\n'
            else read x <{two}; echo line; fi"
        ),
    ));
    terminal.until("[0]  10%");
    std::fs::write(&two, "go\n").expect("rank 1 waits");
    terminal.until("\r\x1b[K[1] line\r\n[0]  10%");
    std::fs::write(&one, "go\n").expect("rank 0 waits");
    terminal.until("\r\x1b[K[0] 100%\r\n");
    assert_eq!(terminal.job.wait_status().code(), Some(0));
}

#[test]
fn what_is_typed_goes_to_rank_0() {
    let mut terminal =
        Terminal::new(script(2, &["--color", "never"], "while read line; do echo got $line; done; echo end"));
    terminal.until("[1] end");
    terminal.press(b"hello\n");
    terminal.until("[0] got hello");
    terminal.press(b"\x04");
    terminal.until("[0] end");
    assert_eq!(terminal.job.wait_status().code(), Some(0));
}

#[test]
fn a_prompt_is_shown_before_it_is_answered() {
    let mut terminal = Terminal::new(script(1, &["--color", "never"], "printf 'name? '; read name; echo hello $name"));
    terminal.until("[0] name? ");
    terminal.press(b"rank\n");
    terminal.until("[0] hello rank");
    assert_eq!(terminal.job.wait_status().code(), Some(0));
}

#[test]
fn a_stopped_launcher_stops_its_ranks_and_takes_them_along_again() {
    let mut terminal = Terminal::new(script(1, &["--color", "never"], "echo pid $$; exec sleep 1000"));
    terminal.until("[0] pid ");
    let number = terminal.until("\r\n");
    let worker = Pid::from_raw(number.trim().parse().expect("a number")).expect("a process id");
    terminal.press(b"\x1a");
    let launcher = terminal.job.pid();
    let stopped = rustix::process::waitpid(Some(launcher), WaitOptions::UNTRACED).expect("waitable").expect("a state");
    assert!(stopped.1.stopped());
    wait_until("the worker is stopped", || state_of(worker) == Some('T'));
    terminal.job.signal(Signal::CONT);
    wait_until("the worker goes on", || matches!(state_of(worker), Some('S' | 'R')));
    terminal.press(b"\x03");
    assert_eq!(signal_of(terminal.job.wait_status()), Some(2));
}
