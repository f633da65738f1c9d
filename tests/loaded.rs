//! A machine with far more to do than it has cores is no reason to take a member for lost, not even at the shortest
//! heartbeat limit. Alone in a program of its own, because it slows everything else down.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use phalanx::ReduceOp;
use phalanx::elastic::State;
use phalanx::types::Generation;

/// How long the job runs beside the load.
const LENGTH: Duration = Duration::from_secs(20);

/// Nothing that a newcomer would need: none is to come.
struct Nothing;

impl State for Nothing {
    fn save(&self) -> phalanx::Result<std::borrow::Cow<'_, [u8]>> {
        Ok(Vec::new().into())
    }

    fn load(&mut self, _bytes: &[u8]) -> phalanx::Result<()> {
        Ok(())
    }
}

/// A member. It is a test so that this very program can be one.
#[test]
#[ignore = "run by the launcher in the test below"]
fn member_on_a_busy_machine() {
    let job = phalanx::elastic::join().expect("a view with this process in");
    job.sync(&mut Nothing).expect("a sync");
    let began = Instant::now();
    loop {
        let is_over = job.slot() == 0 && began.elapsed() >= LENGTH;
        let mut data = [1, u64::from(is_over)];
        let step = job.step(|step| step.allreduce(&mut data, ReduceOp::Sum)).expect("a step");
        assert_eq!((data[0], step.generation), (4, Generation::FIRST));
        if data[1] > 0 {
            break;
        }
    }
    println!("\nslot {} made {} steps", job.slot(), job.counted());
    job.shutdown();
}

/// Ends its processes when it is dropped.
struct Load(Vec<Child>);

impl Load {
    /// Three times as many busy processes as there are cores, each in a session of its own: a scheduler that shares
    /// the cores between sessions gives each as much as a rank.
    fn start() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let busy = || {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            // SAFETY: the closure makes one system call: it allocates nothing and takes no lock.
            unsafe { command.pre_exec(|| rustix::process::setsid().map(|_| ()).map_err(Into::into)) };
            command.spawn().expect("a shell")
        };
        Self((0..3 * cores).map(|_| busy()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended by itself needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn the_shortest_heartbeat_limit_gives_no_false_alarm_on_a_busy_machine() {
    let load = Load::start();
    let own = std::env::current_exe().expect("this program");
    let end = Command::new(env!("CARGO_BIN_EXE_phalanx"))
        .args(["run", "-np", "4", "--min-np", "1", "--heartbeat", "0.2", "--no-respawn"])
        .arg(own)
        .args(["--exact", "member_on_a_busy_machine", "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .output()
        .expect("the launcher starts");
    drop(load);
    let (said, warned) = (String::from_utf8_lossy(&end.stdout), String::from_utf8_lossy(&end.stderr));
    println!("{said}");
    assert!(end.status.success(), "{}: {said}\n{warned}", end.status);
    assert_eq!(said.matches(" steps\n").count(), 4, "{said}\n{warned}");
    assert!(!warned.contains("is out") && !warned.contains("view 2"), "{warned}");
}
