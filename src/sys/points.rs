//! The numbered points of the elastic protocol, and what a test can have happen there.
//!
//! A fault that comes at a random moment finds the wide gaps of a protocol and misses the narrow ones. So the code
//! says where it is ([`reach`]), and a test of real processes names one point, counts how often it is to be passed
//! first, and says what then happens to this very process. Nothing else may use this: the variable
//! `PHALANX_TEST_POINT` is internal, for tests alone, and says `name:count:action`, for example `commit:3:kill`.
//! Without it a point costs one relaxed load of a flag that nobody writes.
//!
//! | action | what happens at the point |
//! |---|---|
//! | `kill` | the process is gone, as by SIGKILL |
//! | `stop` | it stands still, as by SIGSTOP, until somebody sends SIGCONT |
//! | `reset` | its connections break: TCP by a reset in both directions, Unix sockets by their end |
//! | `unlink` | as `reset`, but for the connection to the registry |
//! | `tell=PATH` | the thread waits until the fifo at PATH has been opened for writing and closed again |
//!
//! Each action first says a line on standard error, `phalanx: at the test point commit: kill`.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use rustix::net::{AddressFamily, Shutdown, sockopt};
use rustix::process::Signal;

use crate::types::{Error, Result};

/// The internal variable that arms a point.
const VARIABLE: &str = "PHALANX_TEST_POINT";

macro_rules! points {
    ($($number:literal $point:ident $name:literal $side:ident $what:literal;)*) => {
        /// A point of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Point {
            $(#[doc = $what] $point = $number,)*
        }

        impl Point {
            /// All of them, by number.
            pub const ALL: &[Point] = &[$(Point::$point,)*];

            /// What it is called.
            pub fn name(self) -> &'static str {
                match self { $(Point::$point => $name,)* }
            }

            /// Where it is, in a sentence.
            pub fn what(self) -> &'static str {
                match self { $(Point::$point => $what,)* }
            }

            /// Who passes it.
            pub fn side(self) -> Side {
                match self { $(Point::$point => Side::$side,)* }
            }
        }
    };
}

/// Who passes a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A rank.
    Member,
    /// The registry.
    Registry,
}

points! {
    1 Dial "dial" Member "A process is about to reach for the registry.";
    2 Registered "registered" Member "It has said who it is, and the registry has not answered.";
    3 Welcome "welcome" Member "The registry has let it in; there is no view with it yet, or it came back.";
    4 View "view" Member "A view was heard, and nothing of it is in force here.";
    5 Installing "installing" Member "The engine has gone over to the view; the training thread does not know.";
    6 Installed "installed" Member "The training thread has the view, and with it the verdict.";
    7 Started "started" Member "A collective of a step was started.";
    8 Half "half" Member "One message of a collective is here, others are to come.";
    9 Here "here" Member "All results of the step are here; the commit was not entered.";
    10 Commit "commit" Member "The commit was entered: the others can come to count on it.";
    11 Committed "committed" Member "The commit is over; the step does not count here yet.";
    12 Counted "counted" Member "The step counts; its results were not handed over.";
    13 Delivered "delivered" Member "The results were handed over.";
    14 Suspect "suspect" Member "A lost link is known here; the registry was not told.";
    15 Prepare "prepare" Member "It was told to stop, and has not.";
    16 GivenUp "given-up" Member "Everything in flight was given up; nothing was reported.";
    17 Reported "reported" Member "The report was sent; the next view has not come.";
    18 Wanted "wanted" Member "It heard that somebody waits to join.";
    19 Boundary "boundary" Member "It passed the commit behind which all stop, and has not said so.";
    20 Transfer "transfer" Member "It is agreed what the state is; none of it has moved.";
    21 TransferHalf "transfer-half" Member "Half of the state's pieces that it sends or gets have moved.";
    22 TransferHere "transfer-here" Member "All of them have; the commit of the transfer was not entered.";
    23 Loaded "loaded" Member "The transfer counts, and the state was taken over.";
    24 Leave "leave" Member "It is done, and about to say goodbye.";
    25 Goodbye "goodbye" Member "It has said goodbye; the answer has not come.";
    26 Evidence "evidence" Registry "A member is known to be out, or a change is due; nobody was told to stop.";
    27 HalfPrepared "half-prepared" Registry "Half of the members were told to stop.";
    28 Reports "reports" Registry "All reports are in and the verdict is made; nothing of it was written.";
    29 Beside "beside" Registry "The next state is on the disk, beside the one that is in force.";
    30 Written "written" Registry "The next state is in force on the disk; nobody has heard of the view.";
    31 HalfTold "half-told" Registry "Half of the members were told of the view.";
    32 Told "told" Registry "All were.";
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Kill,
    Stop,
    Reset,
    Unlink,
    Tell(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    point: Point,
    /// How often it is to be passed, this time included.
    left: u64,
    action: Action,
}

static IS_ARMED: AtomicBool = AtomicBool::new(false);
static PLAN: Mutex<Option<Plan>> = Mutex::new(None);
static ARMING: Once = Once::new();

/// The code is at `point`.
#[inline]
pub fn reach(point: Point) {
    if IS_ARMED.load(Ordering::Relaxed) {
        pass(point);
    }
}

/// Arms the point that `PHALANX_TEST_POINT` names, if it is set; once in a process.
///
/// # Errors
///
/// [`Error::Environment`] if it is malformed.
pub fn arm_from_environment() -> Result<()> {
    let Some(text) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let plan = parse(&text.to_string_lossy()).map_err(|what| {
        let hint = format!("unset {VARIABLE}: it is internal, for tests alone");
        Error::environment(format_args!("{VARIABLE}={}: {what}", text.to_string_lossy()), hint)
    })?;
    ARMING.call_once(|| {
        *PLAN.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan);
        IS_ARMED.store(true, Ordering::Relaxed);
    });
    Ok(())
}

fn parse(text: &str) -> std::result::Result<Plan, String> {
    let parts: Vec<&str> = text.splitn(3, ':').collect();
    let [name, count, action] = parts[..] else { return Err("name:count:action is expected".into()) };
    let point = Point::ALL.iter().copied().find(|point| point.name() == name);
    let point = point.ok_or_else(|| format!("there is no point {name:?}"))?;
    let left = count.parse().ok().filter(|count| *count > 0).ok_or("the count is a number from 1 on")?;
    let action = match (action, action.strip_prefix("tell=")) {
        ("kill", _) => Action::Kill,
        ("stop", _) => Action::Stop,
        ("reset", _) => Action::Reset,
        ("unlink", _) => Action::Unlink,
        (_, Some(path)) if !path.is_empty() => Action::Tell(path.into()),
        _ => return Err("the action is kill, stop, reset, unlink or tell=PATH".into()),
    };
    Ok(Plan { point, left, action })
}

#[cold]
fn pass(point: Point) {
    let mut plan = PLAN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(armed) = plan.as_mut().filter(|plan| plan.point == point) else { return };
    armed.left -= 1;
    if armed.left > 0 {
        return;
    }
    let Some(Plan { action, .. }) = plan.take() else { return };
    IS_ARMED.store(false, Ordering::Relaxed);
    drop(plan);
    let word = match &action {
        Action::Kill => "kill",
        Action::Stop => "stop",
        Action::Reset => "reset",
        Action::Unlink => "unlink",
        Action::Tell(_) => "tell",
    };
    // Whoever listens may be gone; what is to happen happens.
    let _ = writeln!(std::io::stderr(), "phalanx: at the test point {}: {word}", point.name());
    match action {
        Action::Kill => signal_self(Signal::KILL),
        Action::Stop => signal_self(Signal::STOP),
        Action::Reset => break_connections(None),
        Action::Unlink => break_connections(registry()),
        Action::Tell(path) => {
            // Opening waits for the writer, reading for its end. A path that is wrong holds nobody up.
            let _ = std::fs::File::open(path).and_then(|mut fifo| fifo.read_to_end(&mut Vec::new()));
        }
    }
}

fn signal_self(signal: Signal) {
    // It cannot fail: a process may signal itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
}

/// Where the registry listens that this process talks to.
fn registry() -> Option<SocketAddr> {
    std::env::var("PHALANX_REGISTRY").ok()?.parse().ok()
}

/// Breaks every connection of this process, but for those to one address; listening sockets stay.
fn break_connections(spared: Option<SocketAddr>) {
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()) else { continue };
        // SAFETY: the descriptor was open a moment ago. If its owner has closed it since, the calls below fail, or
        // reach another socket of this process, which is to be broken as well. It is neither closed nor kept.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // Not a socket, or not a connected one.
        let Ok(peer) = rustix::net::getpeername(fd) else { continue };
        if spared.is_some() && peer.and_then(|peer| SocketAddr::try_from(peer).ok()) == spared {
            continue;
        }
        match sockopt::socket_domain(fd) {
            // The kernel sends a reset, and the next call here fails with one.
            Ok(AddressFamily::INET | AddressFamily::INET6) => drop(rustix::net::connect_unspec(fd)),
            _ => drop(rustix::net::shutdown(fd, Shutdown::Both)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn points_are_numbered_and_named_once() {
        for (at, point) in Point::ALL.iter().enumerate() {
            assert_eq!(*point as usize, at + 1, "{point:?}");
            assert!(point.what().ends_with('.'));
        }
        let names: BTreeSet<_> = Point::ALL.iter().map(|point| point.name()).collect();
        assert_eq!(names.len(), Point::ALL.len());
    }

    #[test]
    fn a_plan_is_read_and_anything_else_is_refused() {
        let plan = |point, left, action| Ok(Plan { point, left, action });
        assert_eq!(parse("commit:3:kill"), plan(Point::Commit, 3, Action::Kill));
        assert_eq!(parse("given-up:1:tell=/a:b"), plan(Point::GivenUp, 1, Action::Tell("/a:b".into())));
        for text in
            ["", "commit", "commit:1", "commit:0:kill", "commit:-1:kill", "no:1:kill", "commit:1:", "dial:1:tell="]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    /// Alone in a process of its own, because it breaks every connection that the process has.
    #[test]
    #[ignore = "run by the test below, in a process of its own"]
    fn breaks_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        // Only one end is of a process that is cut off; this one is both, so the other is kept apart.
        let (one, mut other) = UnixStream::pair().unwrap();
        let spared = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut kept = TcpStream::connect(spared.local_addr().unwrap()).unwrap();
        break_connections(spared.local_addr().ok());
        kept.write_all(b"whole").unwrap();
        break_connections(None);
        kept.write_all(b"whole").unwrap_err();
        let error = |mut stream: &TcpStream| stream.read(&mut [0]).map_err(|error| error.kind());
        assert!(matches!(error(&near), Ok(0) | Err(_)), "{:?}", error(&near));
        assert!(matches!(error(&far), Ok(0) | Err(_)), "{:?}", error(&far));
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
        drop(one);
        // It goes on listening.
        let again = TcpStream::connect(listener.local_addr().unwrap());
        assert!(again.is_ok());
    }

    #[test]
    fn connections_break_and_listeners_stay() {
        let own = std::env::current_exe().unwrap();
        let arguments = ["--exact", "sys::points::tests::breaks_its_own", "--ignored"];
        let output = std::process::Command::new(own).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
