//! Elastic jobs: workers fall, are replaced, come and go, and nothing outlives the launcher.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx::elastic::State;
use rustix::process::{Pid, Signal};

use crate::support::{Ended, PATIENCE, Started, ended, hold, is_ready, run};

/// Set by SIGTERM.
static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_term(_: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// How many contributions the steps had.
struct Counter(u64);

impl State for Counter {
    fn save(&self) -> phalanx::Result<std::borrow::Cow<'_, [u8]>> {
        Ok(self.0.to_le_bytes().to_vec().into())
    }

    fn load(&mut self, bytes: &[u8]) -> phalanx::Result<()> {
        self.0 = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        Ok(())
    }
}

/// What a worker does. It is a test so that this very program can be a worker. It says whom it trains with whenever that
/// changes, until the file is there that says that the work is done.
#[test]
#[ignore = "run by the launcher in the tests below"]
fn member_of_a_job() {
    // SAFETY: the handler does nothing but set a flag.
    unsafe { libc::signal(libc::SIGTERM, on_term as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    let done = std::env::var("PHALANX_TEST_DONE").expect("a file");
    let elastic = phalanx::elastic::join().expect("a view with this process in");
    let mut state = Counter(0);
    let trained = train(&elastic, &mut state, Path::new(&done));
    println!("\ntrained: {trained}");
    let code = match trained {
        "evicted" => 5,
        // As a program does whose `main` returns an error, or nothing, without more words.
        "error" => {
            drop(elastic);
            std::process::exit(1);
        }
        "nothing" => {
            drop(elastic);
            std::process::exit(0);
        }
        "late" => 3,
        _ => 0,
    };
    elastic.shutdown();
    std::process::exit(code);
}

/// What the files say that a slot is to do.
fn order(done: &Path, slot: usize) -> Option<&'static str> {
    let text = std::fs::read_to_string(done.with_file_name(format!("order-{slot}"))).ok()?;
    ["error", "nothing", "early", "late", "panic"].into_iter().find(|order| *order == text)
}

fn train(elastic: &phalanx::elastic::Elastic, state: &mut Counter, done: &Path) -> &'static str {
    let mut with = 0;
    let mut joined = true;
    loop {
        let mut data = [1, u64::from(done.exists())];
        let step = match joined {
            true => elastic.sync(state),
            false => elastic.step(|step| step.allreduce(&mut data, phalanx::ReduceOp::Sum)),
        };
        let outcome = match step {
            Ok(outcome) => outcome,
            Err(phalanx::Error::Evicted { .. }) => return "evicted",
            Err(error) => panic!("{error}"),
        };
        if !joined {
            assert_eq!(data[0], outcome.contributors.len() as u64);
            state.0 += data[0];
        }
        let is_done = !joined && data[1] > 0;
        joined = outcome.joined;
        if outcome.left {
            return "left";
        }
        if is_done {
            return "done";
        }
        if elastic.size() != with {
            with = elastic.size();
            println!("\ntrains: {} with {with}, pid {}", elastic.slot(), std::process::id());
        }
        if ASKED.load(Ordering::Relaxed) {
            elastic.request_leave();
        }
        match order(done, elastic.slot()) {
            Some("panic") => panic!("as it was told to"),
            Some(order) => return order,
            None => {}
        }
        let hang = done.with_file_name("hang");
        if elastic.slot() == 1 && hang.exists() {
            // A pipe: this waits until somebody writes.
            std::fs::read(hang).expect("a pipe");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An elastic job that runs, with the folder for what it is told.
pub struct Job {
    pub launcher: Started,
    pub folder: tempfile::TempDir,
    /// Of each slot, with how many others it trains, and its process.
    workers: std::collections::BTreeMap<usize, (usize, Pid)>,
    /// What was read while waiting.
    read: String,
}

fn worker() -> Vec<String> {
    let own = std::env::current_exe().expect("this program");
    let own = own.to_str().expect("a name").to_owned();
    [&own, "--exact", "elastic::member_of_a_job", "--ignored", "--nocapture"].map(str::to_owned).to_vec()
}

impl Job {
    pub fn new(options: &[&str]) -> Self {
        Self::in_folder(tempfile::tempdir().expect("a folder"), options)
    }

    pub fn in_folder(folder: tempfile::TempDir, options: &[&str]) -> Self {
        let launcher = start(folder.path(), options);
        Self { launcher, folder, workers: Default::default(), read: String::new() }
    }

    /// Waits until workers with exactly these slots train with each other.
    pub fn wait_for(&mut self, slots: &[usize]) {
        let all = |workers: &std::collections::BTreeMap<usize, (usize, Pid)>| {
            slots.iter().all(|slot| workers.get(slot).is_some_and(|(with, _)| *with == slots.len()))
        };
        while !all(&self.workers) {
            let line = self.launcher.line();
            self.read += &format!("{line}\n");
            let Some((_, text)) = line.split_once("trains: ") else { continue };
            let numbers: Vec<i32> = text
                .split(|c: char| !c.is_ascii_digit())
                .filter(|word| !word.is_empty())
                .map(|word| word.parse().expect("a number"))
                .collect();
            let [slot, with, pid] = numbers[..] else { panic!("{line}") };
            assert!(line.starts_with(&format!("[{slot}] ")), "{line}");
            self.workers.insert(slot as usize, (with as usize, Pid::from_raw(pid).expect("a process")));
        }
    }

    pub fn pid(&self, slot: usize) -> Pid {
        self.workers[&slot].1
    }

    pub fn signal(&self, slot: usize, signal: Signal) {
        rustix::process::kill_process(self.pid(slot), signal).expect("it lives");
    }

    fn write(&self, name: &str, text: &str) {
        // As a whole, so that no half of it is read.
        let new = self.folder.path().join("new");
        std::fs::write(&new, text).expect("room");
        std::fs::rename(new, self.folder.path().join(name)).expect("a folder");
    }

    /// The work is done: waits for the end.
    fn finish(self) -> Ended {
        self.write("done", "");
        let end = self.launcher.wait();
        Ended { stdout: [self.read.as_bytes(), &end.stdout].concat(), ..end }
    }

    /// Where operators of this user find its registry.
    pub fn registry(&self) -> String {
        let user = rustix::process::geteuid().as_raw();
        format!("unix:@phalanx-registry-{user}-{}", self.launcher.child.id())
    }

    pub fn assert_fine(self) -> Ended {
        let end = self.finish();
        assert_eq!(end.code(), Some(0), "{}\n{}", end.text(), end.stderr);
        end
    }
}

/// With what the launcher says as lines that can be waited for.
fn overheard(mut command: Command) -> (Started, impl FnMut(&str)) {
    let (reading, writing) = std::io::pipe().expect("a pipe");
    command.stderr(writing);
    let started = Started::of(command);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(reading));
    let wait_for = move |part: &str| {
        let heard = lines.by_ref().map_while(Result::ok).find(|line| line.contains(part));
        assert!(heard.is_some(), "the launcher ended and did not say {part:?}");
    };
    (started, wait_for)
}

fn start(folder: &Path, options: &[&str]) -> Started {
    Started::of(command(folder, options))
}

fn command(folder: &Path, options: &[&str]) -> Command {
    let worker = worker();
    let worker: Vec<&str> = worker.iter().map(String::as_str).collect();
    let mut command = run(&[options, &worker].concat());
    command.env("PHALANX_TEST_DONE", folder.join("done")).current_dir(folder);
    command
}

/// Runs another command of the program to its end.
pub fn phalanx(arguments: &[&str], environment: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.args(arguments).envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ended(command)
}

#[test]
fn a_worker_that_is_killed_is_replaced() {
    let mut job = Job::new(&["-np", "3", "--min-np", "1"]);
    job.wait_for(&[0, 1, 2]);
    let pid = job.pid(1);
    job.signal(1, Signal::KILL);
    job.wait_for(&[0, 2, 3]);
    // Rank 0 is nothing special.
    job.signal(0, Signal::KILL);
    job.wait_for(&[2, 3, 4]);
    let end = job.assert_fine();
    let pid = pid.as_raw_nonzero();
    for part in [
        &format!("phalanx: slot 1 (host localhost, pid {pid}) was ended by signal 9 (SIGKILL); another is started\n"),
        "phalanx: view 2: 2 ranks, slots 0, 2: slot 1 is gone: it ",
        "phalanx: view 3: 3 ranks, slots 0, 2, 3: slot 3 joined; held up for ",
    ] {
        assert!(end.stderr.contains(part), "{part:?} in\n{}", end.stderr);
    }
    assert_eq!(end.text().matches("trained: done").count(), 3, "{}", end.text());
}

#[test]
fn one_that_fails_is_replaced_whatever_goodbye_it_says() {
    for (order, code) in [("error", 1), ("panic", 101)] {
        let mut job = Job::new(&["-np", "3", "--min-np", "1"]);
        job.wait_for(&[0, 1, 2]);
        let pid = job.pid(1).as_raw_nonzero();
        job.write("order-1", order);
        job.wait_for(&[0, 2, 3]);
        let end = job.assert_fine();
        let part = format!("phalanx: slot 1 (host localhost, pid {pid}) exited with code {code}; another is started\n");
        assert!(end.stderr.contains(&part), "{part:?} in\n{}", end.stderr);
        assert!(end.stderr.contains("phalanx: view 2: 2 ranks, slots 0, 2: slot 1 left; "), "{}", end.stderr);
        assert_eq!(end.text().matches("trained: done").count(), 3, "{}", end.text());
    }
}

#[test]
fn one_that_ends_early_and_well_is_done_and_the_others_go_on_without_it() {
    for order in ["early", "nothing"] {
        // Though they are fewer than the job would begin with.
        let mut job = Job::new(&["-np", "3", "--min-np", "3"]);
        job.wait_for(&[0, 1, 2]);
        job.write("order-1", order);
        job.wait_for(&[0, 2]);
        let end = job.assert_fine();
        assert!(!end.stderr.contains("another is started"), "{}", end.stderr);
        assert_eq!(end.text().matches("trained: done").count(), 2, "{}", end.text());
    }
}

#[test]
fn a_failure_after_the_work_was_done_is_the_code_of_the_job() {
    let mut job = Job::new(&["-np", "2", "--min-np", "1"]);
    job.wait_for(&[0, 1]);
    job.write("order-1", "late");
    job.wait_for(&[0]);
    let end = job.finish();
    assert_eq!(end.code(), Some(3), "{}", end.stderr);
    let part = " exited with code 3 after it had said that its work is done\n";
    assert!(end.stderr.contains(part) && !end.stderr.contains("another is started"), "{}", end.stderr);
}

#[test]
fn members_that_are_all_asked_to_leave_are_no_job_that_is_done() {
    let mut job = Job::new(&["-np", "2", "--min-np", "1"]);
    job.wait_for(&[0, 1]);
    job.signal(1, Signal::TERM);
    job.wait_for(&[0]);
    job.signal(0, Signal::TERM);
    let end = job.launcher.wait();
    assert_eq!(end.code(), Some(1), "{}\n{}", end.text(), end.stderr);
    let part = "phalanx: the job ended before its work was done: all members left as they were asked to\n";
    assert!(end.stderr.contains(part) && !end.stderr.contains("another is started"), "{}", end.stderr);
}

#[test]
fn fewer_members_than_the_job_needs_wait_after_one_was_asked_to_leave_too() {
    let mut job = Job::new(&["-np", "2", "--min-np", "2", "--elastic-timeout", "0.5"]);
    job.wait_for(&[0, 1]);
    job.signal(1, Signal::TERM);
    let end = job.launcher.wait();
    assert_eq!(end.code(), Some(1), "{}\n{}", end.text(), end.stderr);
    for part in [
        "phalanx: 1 rank is there, the job needs 2: waiting for more\n",
        "phalanx: the job cannot go on: 1 member is left, the job needs 2, and no more came within 0.5 s",
    ] {
        assert!(end.stderr.contains(part), "{part:?} in\n{}", end.stderr);
    }
}

#[test]
fn a_list_of_hosts_without_room_is_waited_for_and_then_ends_the_job() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("hosts"), "localhost:2\n").expect("room");
    let options = ["-np", "2", "--min-np", "2", "--host-discovery-script", "cat hosts", "--elastic-timeout", "2"];
    let mut job = Job::in_folder(folder, &options);
    job.wait_for(&[0, 1]);
    job.write("hosts", "");
    let end = job.launcher.wait();
    assert_eq!(end.code(), Some(1), "{}\n{}", end.text(), end.stderr);
    for part in [
        "phalanx: host localhost is no longer in the list\n",
        "phalanx: the list of hosts has room for 0 ranks, the job needs 2: keeping slots 0, 1; without more room the job \
         ends in 2 s\n",
        "phalanx: the job cannot go on: for 2 s the list of hosts has had room for 0 ranks, the job needs 2; ending 2 \
         workers\n",
    ] {
        assert!(end.stderr.contains(part), "{part:?} in\n{}", end.stderr);
    }
}

#[test]
fn newcomers_that_fall_as_soon_as_they_have_joined_are_replaced_with_pauses_and_then_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = ["-np", "2", "--min-np", "1", "--respawn-limit", "2"];
    let (launcher, mut wait_for) = overheard(command(folder.path(), &options));
    let mut job = Job { launcher, folder, workers: Default::default(), read: String::new() };
    job.wait_for(&[0, 1]);
    for slot in [2, 3] {
        job.write(&format!("order-{slot}"), "error");
    }
    job.signal(1, Signal::KILL);
    wait_for("was ended by signal 9 (SIGKILL); another is started");
    wait_for(" exited with code 1; another is started in 1 s");
    wait_for(
        " exited with code 1; 2 in a row did not come to work there: no other is started in its place on host localhost",
    );
    job.assert_fine();
}

#[test]
fn without_respawn_the_others_go_on() {
    let mut job = Job::new(&["-np", "3", "--min-np", "2", "--no-respawn"]);
    job.wait_for(&[0, 1, 2]);
    job.signal(2, Signal::KILL);
    job.wait_for(&[0, 1]);
    let pid = job.pid(2).as_raw_nonzero();
    let end = job.assert_fine();
    let part = format!("phalanx: slot 2 (host localhost, pid {pid}) was ended by signal 9 (SIGKILL)");
    assert!(end.stderr.contains(&part), "{}", end.stderr);
    assert_eq!(end.text().matches("trained: done").count(), 2, "{}", end.text());
}

#[test]
fn a_job_with_too_few_ranks_waits_and_then_ends_with_the_code_of_the_first_that_failed() {
    let mut job = Job::new(&["-np", "3", "--min-np", "3", "--no-respawn", "--elastic-timeout", "0.5"]);
    job.wait_for(&[0, 1, 2]);
    job.signal(1, Signal::KILL);
    let end = job.launcher.wait();
    assert_eq!(end.code(), Some(137), "{}", end.stderr);
    for part in [
        "phalanx: 2 ranks are there, the job needs 3: waiting for more\n",
        "phalanx: the job cannot go on: 2 members are left, the job needs 3",
    ] {
        assert!(end.stderr.contains(part), "{part:?} in\n{}", end.stderr);
    }
}

#[test]
fn a_program_that_cannot_start_is_not_started_again_and_again() {
    let end = ended(run(&["-np", "2", "--min-np", "1", "sh", "-c", "echo the reason >&2; exit 3"]));
    assert_eq!(end.code(), Some(3));
    assert!(end.stderr.contains(" exited with code 3, and the job had not begun"), "{}", end.stderr);
    assert!(end.stderr.contains("standard error:\n    the reason\n"), "{}", end.stderr);
}

#[test]
fn killing_the_launcher_leaves_no_worker_and_no_replacement() {
    let mut job =
        Job::new(&["-np", "2", "--min-np", "1", "--host-discovery-script", "echo localhost:2; exec sleep 0.2"]);
    job.wait_for(&[0, 1]);
    job.signal(1, Signal::KILL);
    job.wait_for(&[0, 2]);
    let path = format!("/proc/{0}/task/{0}/children", job.launcher.pid().as_raw_nonzero());
    let guards = std::fs::read_to_string(path).expect("a list of children");
    let mut processes: Vec<_> =
        guards.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect();
    assert!(processes.len() >= 2, "{guards}");
    processes.extend([job.pid(0), job.pid(2)]);
    // One that asked for hosts may just have ended.
    let held: Vec<_> = processes
        .into_iter()
        .filter_map(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok())
        .collect();
    job.launcher.signal(Signal::KILL);
    job.launcher.wait_status();
    for process in held {
        assert!(is_ready(process, PATIENCE), "a process is left");
    }
}

#[test]
fn hosts_appear_and_vanish() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("hosts"), "localhost:1\n").expect("room");
    let options = ["-np", "2", "--min-np", "1", "--max-np", "4", "--host-discovery-script", "cat hosts"];
    let mut job = Job::in_folder(folder, &options);
    // Another name of this machine is the same host with more slots.
    job.write("hosts", "localhost:1\n127.0.0.1:1\n");
    job.wait_for(&[0, 1]);
    job.write("hosts", "localhost:9 # and more than are wanted\n");
    job.wait_for(&[0, 1, 2, 3]);
    job.write("hosts", "localhost:x\n");
    let (third, second) = (hold(job.pid(3)), hold(job.pid(2)));
    job.write("hosts", "localhost:2\n");
    job.wait_for(&[0, 1]);
    assert!(is_ready(third, PATIENCE) && is_ready(second, PATIENCE));
    // One member is needed, whatever the script says.
    job.write("hosts", "");
    job.wait_for(&[0]);
    job.write("hosts", "localhost:2\n");
    job.wait_for(&[0, 4]);
    let end = job.assert_fine();
    for part in [
        "phalanx: host localhost has 9 slots now\n",
        "phalanx: host localhost has 2 slots now\n",
        "phalanx: slots 2, 3 asked to leave\n",
        "phalanx: the list of hosts has room for 0 ranks, the job needs 1: keeping slot 0; without more room the job ends \
         in 600 s\n",
        "phalanx: the list of hosts has room for 2 ranks again\n",
    ] {
        assert!(end.stderr.contains(part), "{part:?} in\n{}", end.stderr);
    }
    assert_eq!(end.text().matches("trained: left").count(), 3, "{}", end.text());
    assert!(!end.stderr.contains("another is started"), "{}", end.stderr);
}

#[test]
fn hosts_of_other_machines_are_refused_clearly() {
    let end = ended(run(&["-np", "1", "--host-discovery-script", "echo far.example:2", "true"]));
    assert_eq!(end.code(), Some(1));
    assert!(end.stderr.contains("host far.example is not this machine"), "{}", end.stderr);
    let end = ended(run(&["-np", "1", "--host-discovery-script", "no-such-script", "true"]));
    assert_eq!(end.code(), Some(1));
    assert!(end.stderr.contains("--host-discovery-script no-such-script cannot be run"), "{}", end.stderr);
}

#[test]
fn a_launcher_that_is_asked_to_end_lets_the_workers_finish_their_step() {
    let mut job = Job::new(&["-np", "2", "--min-np", "1"]);
    job.wait_for(&[0, 1]);
    job.launcher.signal(Signal::TERM);
    let end = job.launcher.wait();
    // They have finished a step, not their work.
    assert_eq!(end.code(), Some(143), "{}\n{}", end.text(), end.stderr);
    assert_eq!(end.text().matches("trained: left").count(), 2, "{}", end.text());
    assert!(end.stderr.contains("phalanx: the job ended before its work was done"), "{}", end.stderr);
}

#[test]
fn a_stopped_worker_is_out_by_policy_and_learns_it() {
    let mut job =
        Job::new(&["-np", "3", "--min-np", "1", "--heartbeat", "0.4", "--evict-silent", "1", "--grace", "30"]);
    job.wait_for(&[0, 1, 2]);
    let stopped = hold(job.pid(1));
    job.signal(1, Signal::STOP);
    job.wait_for(&[0, 2]);
    job.signal(1, Signal::CONT);
    assert!(is_ready(stopped, PATIENCE), "it ends by itself");
    job.wait_for(&[0, 2, 3]);
    let end = job.assert_fine();
    assert!(end.text().contains("[1] trained: evicted\n"), "{}", end.text());
    assert!(end.stderr.contains("slot 1 is silent: no sign of life for "), "{}", end.stderr);
}

#[test]
fn an_operator_sees_the_members_and_takes_one_out() {
    let mut job = Job::new(&["-np", "3", "--min-np", "1"]);
    job.wait_for(&[0, 1, 2]);
    // Other tests run other jobs.
    let registry = job.registry();
    let status = |options: &[&str]| {
        let end = phalanx(&[&["status", "--registry", &registry], options].concat(), &[]);
        assert_eq!(end.code(), Some(0), "{}", end.stderr);
        end.text()
    };
    let text = status(&[]);
    assert!(text.starts_with("steady, view 1: 3 ranks (at least 1, at most 3), "), "{text}");
    assert!(text.contains(&format!(" {}  live", job.pid(2).as_raw_nonzero())), "{text}");
    let value: serde_json::Value = serde_json::from_str(&status(&["--json"])).expect("JSON");
    assert_eq!((&value["phase"], value["members"].as_array().map(Vec::len)), (&"steady".into(), Some(3)));
    let end = phalanx(&["evict", "2", "--reason", "its fan is loud", "--registry", &registry], &[]);
    assert_eq!((end.code(), end.text().as_str()), (Some(0), "slot 2 is out\n"), "{}", end.stderr);
    job.wait_for(&[0, 1, 3]);
    let end = phalanx(&["evict", "--slot", "2", "--registry", &registry], &[]);
    assert_eq!(end.code(), Some(2));
    assert!(end.stderr.contains("there is no member in slot 2"), "{}", end.stderr);
    let end = job.assert_fine();
    assert!(end.stderr.contains("slot 2 was evicted: its fan is loud"), "{}", end.stderr);
    // Nobody without the key, and nobody when it is over.
    let end = phalanx(&["status", "--registry", &registry], &[]);
    assert_eq!(end.code(), Some(1));
    assert!(end.stderr.contains("the registry cannot be reached"), "{}", end.stderr);
}

/// A registry of its own, with a key.
struct Registry {
    key: String,
    state: String,
}

impl Registry {
    fn start(&self, address: &str) -> (Started, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args([
            "registry",
            "--listen",
            address,
            "--state",
            &self.state,
            "-np",
            "4",
            "--min-np",
            "2",
            "--heartbeat",
            "2",
        ]);
        command.env("PHALANX_KEY_FILE", &self.key).stdin(Stdio::null());
        // Its words go to the standard output of this helper, line by line.
        let (reading, writing) = std::io::pipe().expect("a pipe");
        command.stdout(Stdio::null()).stderr(writing);
        let mut started = Started::of(command);
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(reading));
        let line = lines.next().expect("a line").expect("text");
        let (_, address) = line.split_once("the registry listens at ").expect("its address");
        let address = address.split(',').next().unwrap_or_default().to_owned();
        // Nobody reads the rest, but it can be written.
        started.keep(std::thread::spawn(move || lines.for_each(drop)));
        (started, address)
    }
}

#[test]
fn two_launchers_share_a_registry_that_is_killed_and_started_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a name").to_owned();
    let registry = Registry { key: path("key"), state: path("state") };
    std::fs::write(&registry.key, "ab".repeat(32)).expect("room");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&registry.key, private).expect("ours");
    let (mut serving, address) = registry.start("127.0.0.1:0");
    let worker = worker();
    let worker: Vec<&str> = worker.iter().map(String::as_str).collect();
    let launch = || {
        let mut command = run(&[&["-v", "-np", "2", "--registry", &address], &worker[..]].concat());
        command.env("PHALANX_TEST_DONE", path("done")).env("PHALANX_KEY_FILE", &registry.key);
        overheard(command)
    };
    let mut launchers = [launch(), launch()];
    let mut slots = Vec::new();
    for (launcher, _) in &mut launchers {
        for _ in 0..2 {
            let line =
                std::iter::repeat_with(|| launcher.line()).find(|line| line.contains(" with 4,")).expect("a line");
            slots.push(line.split_once("trains: ").and_then(|(_, text)| text.chars().next()).expect("a slot"));
        }
    }
    serving.signal(Signal::KILL);
    serving.wait_status();
    assert!(Path::new(&registry.state).exists());
    let (again, same_address) = registry.start(&address);
    assert_eq!(same_address, address);
    // A stranger has no say.
    let other = "cd".repeat(32);
    let end = phalanx(&["evict", "0", "--registry", &address], &[("PHALANX_KEY", &other)]);
    assert_eq!(end.code(), Some(1), "{}", end.stderr);
    let status = phalanx(&["status", "--registry", &address], &[("PHALANX_KEY_FILE", &registry.key)]);
    assert!(status.text().contains("view 1: 4 ranks"), "{}\n{}", status.text(), status.stderr);
    for (_, wait_for) in &mut launchers {
        (0..2).for_each(|_| wait_for(" has slot "));
    }
    std::fs::write(path("done"), "").expect("room");
    for ((launcher, _), slots) in launchers.into_iter().zip(slots.chunks(2)) {
        let end = launcher.wait();
        assert_eq!(end.code(), Some(0), "{}\n{}", end.text(), end.stderr);
        // Lines stand behind slots, as with a registry of the launcher's own.
        for slot in slots {
            assert!(end.text().contains(&format!("[{slot}] trained: done\n")), "{slot} in {}", end.text());
        }
    }
    let mut again = again;
    assert_eq!(again.wait_status().code(), Some(0));
    assert!(!Path::new(&registry.state).exists(), "it is of no more use");
}

#[test]
fn a_registry_that_is_not_there_is_told() {
    let mut command = run(&["-np", "2", "--registry", "127.0.0.1:1", "true"]);
    command.env("PHALANX_KEY", "ab".repeat(32));
    let end = ended(command);
    assert_eq!(end.code(), Some(1), "{}", end.stderr);
    assert!(
        end.stderr.contains("phalanx: no worker took part in a job: the registry cannot be reached"),
        "{}",
        end.stderr
    );
}

#[test]
fn what_does_not_go_together_is_said() {
    for (arguments, part) in [
        (&["-np", "2", "--min-np", "3", "true"][..], "expected 1 <= min <= np <= max"),
        (&["--max-np", "3", "true"][..], "how many ranks"),
        (&["-np", "2", "--heartbeat", "0.1", "true"][..], "200 ms"),
        (&["-np", "2", "--min-np", "1", "--compat", "torch", "true"][..], "WORLD_SIZE"),
        (&["-np", "2", "-H", "localhost", "--host-discovery-script", "x", "true"][..], "cannot be used with"),
        (&["-np", "2", "--registry", "x:1", "--reset-limit", "1", "true"][..], "cannot be used with"),
        (&["-np", "2", "--respawn-limit", "0", "true"][..], "--no-respawn"),
    ] {
        let end = ended(run(arguments));
        assert_eq!(end.code(), Some(2), "{arguments:?}: {}", end.stderr);
        assert!(end.stderr.contains(part), "{part:?} in {}", end.stderr);
    }
    let end = phalanx(&["registry", "--listen", "127.0.0.1:0"], &[]);
    assert_eq!(end.code(), Some(2));
    assert!(end.stderr.contains("-np N or --min-np N"), "{}", end.stderr);
    let end = phalanx(&["registry", "--listen", "127.0.0.1:0", "-np", "2"], &[]);
    assert_eq!(end.code(), Some(1));
    assert!(end.stderr.contains("PHALANX_KEY_FILE"), "{}", end.stderr);
}

#[test]
fn help_teaches() {
    for (command, parts) in [
        ("run", &["--min-np", "--host-discovery-script", "PHALANX_REGISTRY", "said goodbye"][..]),
        ("registry", &["Examples:", "--state", "openssl rand"][..]),
        ("status", &["Examples:", "silent", "--json"][..]),
        ("evict", &["Examples:", "--slot", "Exit codes:"][..]),
    ] {
        let end = phalanx(&[command, "--help"], &[]);
        for part in parts {
            assert!(end.text().contains(part), "{part} in\n{}", end.text());
        }
    }
}
