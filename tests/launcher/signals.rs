//! Signals to the launcher are signals to the job.

use rustix::process::Signal;

use crate::support::{Started, script};

/// Says that it is ready, and what it hears; ends as its third part says.
fn listener(signal: &str, then: &str) -> String {
    format!("trap 'echo heard; {then}' {signal}; echo ready; while :; do sleep 0.05; done")
}

#[test]
fn signals_are_passed_on_and_give_the_exit_code() {
    for (signal, name, code) in
        [(Signal::INT, "INT", 130), (Signal::TERM, "TERM", 143), (Signal::HUP, "HUP", 129), (Signal::QUIT, "QUIT", 131)]
    {
        let mut job = Started::of(script(2, &[], &listener(name, "exit 1")));
        assert_eq!(job.lines(2), ["[0] ready", "[1] ready"]);
        job.signal(signal);
        let end = job.wait();
        assert_eq!(end.code(), Some(code), "{name}");
        assert_eq!(end.sorted(), ["[0] heard", "[1] heard"]);
        assert!(end.stderr.contains(&format!("SIG{name}): passed on to 2 ranks")), "{}", end.stderr);
    }
}

#[test]
fn ranks_that_finish_well_on_a_signal_are_a_success() {
    let mut job = Started::of(script(2, &[], &listener("TERM", "exit 0")));
    job.lines(2);
    job.signal(Signal::TERM);
    assert_eq!(job.wait().code(), Some(0));
}

#[test]
fn user_signals_are_passed_on_and_end_nothing() {
    let mut job = Started::of(script(2, &[], &listener("USR1", ":")));
    job.lines(2);
    for _ in 0..2 {
        job.signal(Signal::USR1);
        assert_eq!(job.lines(2), ["[0] heard", "[1] heard"]);
    }
    job.signal(Signal::TERM);
    assert_eq!(job.wait().code(), Some(143));
}

#[test]
fn a_second_interrupt_kills_at_once() {
    let mut job = Started::of(script(2, &["--grace", "1000"], &listener("INT TERM", ":")));
    job.lines(2);
    job.signal(Signal::INT);
    assert_eq!(job.lines(2), ["[0] heard", "[1] heard"]);
    // Two interrupts within a moment count as one; the ranks answer later than that, or the next one does.
    let mut tries = 0;
    while job.child.try_wait().expect("waitable").is_none() {
        job.signal(Signal::INT);
        tries += 1;
        assert!(tries < 100, "not killed");
        if crate::support::is_ready(crate::support::hold(job.pid()), std::time::Duration::from_millis(100)) {
            break;
        }
    }
    let end = job.wait();
    assert_eq!(end.code(), Some(130));
    assert!(end.stderr.contains("killing 2 ranks"), "{}", end.stderr);
}

#[test]
fn an_ignored_hangup_stays_ignored() {
    // As under nohup.
    let line = format!(
        "trap '' HUP; exec {} run -np 1 sh -c 'echo ready; while :; do sleep 0.05; done'",
        env!("CARGO_BIN_EXE_phalanx")
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &line]).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut job = Started::of(command);
    job.line();
    job.signal(Signal::HUP);
    job.signal(Signal::TERM);
    let end = job.wait();
    assert_eq!(end.code(), Some(143), "{}", end.stderr);
}

#[test]
fn an_interrupt_sent_to_a_job_in_the_background_of_a_script_is_heard() {
    // A shell without job control has its background commands ignore the key, and what they start inherits that.
    let line = format!("{} run -np 1 sh -c 'echo pid $PPID; exec sleep 1000' & wait $!", env!("CARGO_BIN_EXE_phalanx"));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &line]).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut shell = Started::of(command);
    shell.line();
    let children = format!("/proc/{0}/task/{0}/children", shell.pid().as_raw_nonzero());
    let launcher = std::fs::read_to_string(children).expect("a list");
    let launcher = rustix::process::Pid::from_raw(launcher.trim().parse().expect("one child")).expect("a process id");
    rustix::process::kill_process(launcher, Signal::INT).expect("it lives");
    let end = shell.wait();
    assert_eq!(end.code(), Some(130), "{}", end.stderr);
    assert!(!end.stderr.contains("killing"), "{}", end.stderr);
}
