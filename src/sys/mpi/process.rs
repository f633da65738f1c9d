//! This process's part in MPI: started here or found running, on which threads it may be called, and how it ends.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use ::mpi::ffi;

use super::transfer::Channel;
use super::{MpiError, check, read_text};
use crate::types::{Deadline, Error, Result};

/// On which threads MPI may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// There is to be no other thread than the one that started it.
    Single,
    /// Only on the thread that started it.
    Funneled,
    /// On any, one at a time.
    Serialized,
    /// On any.
    Multiple,
}

impl Level {
    fn from_code(code: c_int) -> Self {
        // SAFETY: these are constants of the library.
        let (funneled, serialized, multiple) =
            unsafe { (ffi::RSMPI_THREAD_FUNNELED, ffi::RSMPI_THREAD_SERIALIZED, ffi::RSMPI_THREAD_MULTIPLE) };
        // They grow in this order, by the standard.
        match code {
            code if code >= multiple => Level::Multiple,
            code if code >= serialized => Level::Serialized,
            code if code >= funneled => Level::Funneled,
            _ => Level::Single,
        }
    }

    /// The standard's name.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Single => "MPI_THREAD_SINGLE",
            Level::Funneled => "MPI_THREAD_FUNNELED",
            Level::Serialized => "MPI_THREAD_SERIALIZED",
            Level::Multiple => "MPI_THREAD_MULTIPLE",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The first line of what the library says about itself. May be asked before MPI is started.
pub fn library_version() -> String {
    let text = read_text(|text, length| {
        // SAFETY: the buffer is longer than any library's longest text; the call is allowed at any time.
        unsafe { ffi::MPI_Get_library_version(text, length) }
    });
    text.as_deref().and_then(|text| text.lines().next()).unwrap_or("an MPI that does not say its version").to_owned()
}

/// A running MPI, and Phalanx's own communicator in it.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Everything of Phalanx's travels here, and nothing of anybody else's.
    pub channel: Channel,
    /// This process's rank in `MPI_COMM_WORLD`.
    pub rank: usize,
    /// The number of its ranks.
    pub size: usize,
    /// On which threads it may be called.
    pub level: Level,
    /// Whether it was started here.
    pub is_ours: bool,
    /// The one thread that may call it, if there is only one.
    pub owner: Option<ThreadId>,
}

/// What is known of MPI in this process.
#[derive(Default)]
struct Known {
    /// Process and thread on which MPI was started here.
    started: Option<(u32, ThreadId)>,
    session: Option<Session>,
    /// Ranks did not come to a meeting in time: what was begun there can neither be ended nor begun again.
    is_broken: bool,
    /// How many worlds have been met over it.
    worlds: u16,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { started: None, session: None, is_broken: false, worlds: 0 });

/// How many worlds use MPI now.
static USERS: AtomicUsize = AtomicUsize::new(0);

/// While there is one, MPI is not ended.
#[derive(Debug)]
pub struct InUse(());

impl InUse {
    fn new() -> Self {
        USERS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        USERS.fetch_sub(1, Ordering::SeqCst);
    }
}

fn flag(call: &'static str, ask: impl FnOnce(*mut c_int) -> c_int) -> Result<bool, MpiError> {
    let mut flag = 0;
    check(call, ask(&mut flag))?;
    Ok(flag != 0)
}

fn is_finalized() -> Result<bool, MpiError> {
    // SAFETY: allowed at any time.
    flag("MPI_Finalized", |flag| unsafe { ffi::MPI_Finalized(flag) })
}

/// Whether MPI runs, and has not ended.
pub(super) fn is_running() -> bool {
    // SAFETY: allowed at any time.
    let is_initialized = flag("MPI_Initialized", |flag| unsafe { ffi::MPI_Initialized(flag) });
    is_initialized == Ok(true) && is_finalized() == Ok(false)
}

fn failed(error: impl fmt::Display) -> Error {
    Error::environment(
        format_args!("MPI ({}): {error}", library_version()),
        "see that mpirun is that of the MPI which Phalanx was built with",
    )
}

/// Starts MPI if nobody has; the level, whether it was started here, and the one thread that may call it.
fn start(known: &mut Known) -> Result<(Level, bool, Option<ThreadId>)> {
    if is_finalized().map_err(failed)? {
        return Err(ended());
    }
    let mut code = 0;
    let me = std::thread::current().id();
    if is_running() {
        // SAFETY: MPI runs.
        check("MPI_Query_thread", unsafe { ffi::MPI_Query_thread(&mut code) }).map_err(failed)?;
    } else {
        // SAFETY: it has neither been started nor ended; null stands for the program's arguments.
        let started =
            unsafe { ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), ffi::RSMPI_THREAD_MULTIPLE, &mut code) };
        check("MPI_Init_thread", started).map_err(failed)?;
        known.started = Some((std::process::id(), me));
        // SAFETY: the function lives as long as the process, and looks at nothing that is handed over.
        let registered = unsafe { on_exit(end, ptr::null_mut()) };
        if registered != 0 {
            tracing::warn!("MPI was started here and will not be finalised: no more functions can be called at exit");
        }
    }
    let (level, is_ours) = (Level::from_code(code), known.started.is_some());
    if level >= Level::Serialized {
        return Ok((level, is_ours, None));
    }
    // SAFETY: MPI runs.
    let is_main = flag("MPI_Is_thread_main", |flag| unsafe { ffi::MPI_Is_thread_main(flag) }).map_err(failed)?;
    if !is_main {
        return Err(Error::environment(
            format_args!("MPI gave {level}, so that only the thread that started it may call it, and this is another"),
            "call MPI_Init_thread with MPI_THREAD_MULTIPLE, or use Phalanx on that thread",
        ));
    }
    Ok((level, is_ours, Some(me)))
}

/// What MPI gives, and how many ranks: starts it if nobody has.
///
/// # Errors
///
/// As [`Session::begin`].
pub fn try_level() -> Result<(Level, usize)> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let (level, ..) = start(&mut known)?;
    Ok((level, place()?.1))
}

/// Rank and size in `MPI_COMM_WORLD`, on a thread that may ask.
fn place() -> Result<(usize, usize)> {
    let (mut rank, mut size) = (0, 0);
    // SAFETY: MPI runs, and may be called here.
    check("MPI_Comm_rank", unsafe { ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &mut rank) }).map_err(failed)?;
    // SAFETY: as above.
    check("MPI_Comm_size", unsafe { ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &mut size) }).map_err(failed)?;
    Ok((rank as usize, size as usize))
}

unsafe extern "C" {
    /// glibc's: as `atexit`, and tells the exit status.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// How long a rank waits for the others before it ends MPI, which waits for them without a limit.
const FAREWELL: Duration = Duration::from_secs(1);

/// Ends MPI with a process that ends well. One that failed just goes: `MPI_Finalize` waits for all ranks, and without
/// it the launcher ends the others, which is what MPI does when a rank fails.
extern "C" fn end(status: c_int, _: *mut c_void) {
    // Whoever holds this may be a thread that calls MPI.
    let Ok(known) = KNOWN.try_lock() else { return };
    let here = (std::process::id(), std::thread::current().id());
    let is_clean = status == 0 && !known.is_broken && USERS.load(Ordering::SeqCst) == 0;
    if !is_clean || known.started != Some(here) || !is_running() {
        return;
    }
    if let Some(session) = known.session {
        // Once all ranks are here, what they said at their ends of worlds is there.
        let deadline = Deadline::after(Instant::now(), FAREWELL);
        if session.channel.barrier(deadline) == Ok(true) {
            session.channel.drain();
        }
    }
    // SAFETY: MPI runs, was started by this thread of this process, and no world uses it any more.
    unsafe { ffi::MPI_Finalize() };
}

impl Session {
    /// Starts MPI if nobody has, and makes Phalanx's communicator in it the first time. All ranks must call it. A world
    /// of one needs no communicator of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] when MPI has ended, may not be called on this thread, or fails; [`Error::Timeout`] when ranks
    /// have not come by `deadline`, after which this process cannot meet anybody over MPI.
    pub fn begin(deadline: Deadline) -> Result<Session> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = known.session {
            if known.is_broken {
                return Err(broken());
            }
            if !is_running() {
                return Err(ended());
            }
            if session.owner.is_some_and(|owner| owner != std::thread::current().id()) {
                return Err(session.not_here());
            }
            return Ok(session);
        }
        if known.is_broken {
            return Err(broken());
        }
        let (level, is_ours, owner) = start(&mut known)?;
        let (rank, size) = place()?;
        let began = Instant::now();
        // On the heap, where MPI may write to it also after this has given up.
        // SAFETY: a constant of the library.
        let mut duplicate = Box::new(unsafe { ffi::RSMPI_COMM_NULL });
        // SAFETY: as above.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: as above; the memory stays until the request is complete, or for ever.
        let begun = unsafe { ffi::MPI_Comm_idup(ffi::RSMPI_COMM_WORLD, &mut *duplicate, &mut request) };
        check("MPI_Comm_idup", begun).map_err(failed)?;
        if !wait(&mut request, deadline).map_err(failed)? {
            Box::leak(duplicate);
            known.is_broken = true;
            return Err(not_all_came(rank, size, began.elapsed()));
        }
        // SAFETY: the communicator is this process's own; errors are returned from now on, not fatal.
        let set = unsafe { ffi::MPI_Comm_set_errhandler(*duplicate, ffi::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", set).map_err(failed)?;
        let session = Session { channel: Channel::new(*duplicate), rank, size, level, is_ours, owner };
        known.session = Some(session);
        Ok(session)
    }

    /// Whether this thread may call MPI, which runs.
    pub fn may_call(&self) -> bool {
        self.owner.is_none_or(|owner| owner == std::thread::current().id()) && is_running()
    }

    /// The error of a thread that may not.
    pub fn not_here(&self) -> Error {
        Error::environment(
            format_args!("MPI gave {}, so that only the thread that started it may use Phalanx over it", self.level),
            "call MPI_Init_thread with MPI_THREAD_MULTIPLE, or make the calls on that thread",
        )
    }

    /// Gives every rank what each of them has to say, in the order of ranks, and counts one more world. All ranks must call
    /// it.
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin).
    pub fn meet(&self, say: &[u8], deadline: Deadline) -> Result<Meeting> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_broken {
            return Err(broken());
        }
        let began = Instant::now();
        let mut give_up = || {
            known.is_broken = true;
            not_all_came(self.rank, self.size, began.elapsed())
        };
        let gather = |mine: &[u8], lengths: &[usize]| -> Result<Option<Vec<u8>>> {
            let gathering = self.channel.gather(mine, lengths).map_err(failed)?;
            gathering.wait(deadline).map_err(failed)
        };
        let length = u32::try_from(say.len()).map_err(|_| Error::internal("more to say than travels"))?;
        let lengths = gather(&length.to_le_bytes(), &vec![4; self.size])?.ok_or_else(&mut give_up)?;
        let lengths: Vec<_> = lengths
            .chunks_exact(4)
            .map(|bytes| bytes.iter().rev().fold(0, |length, &byte| (length << 8) | usize::from(byte)))
            .collect();
        let all = gather(say, &lengths)?.ok_or_else(&mut give_up)?;
        let mut rest = &all[..];
        let said = lengths.iter().map(|&length| {
            let (here, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            rest = after;
            here.to_vec()
        });
        let said = said.collect();
        let tag = known.worlds;
        // Tags of up to 32767 are guaranteed.
        if tag >= i16::MAX as u16 {
            return Err(Error::invalid("more than 32767 worlds were made over MPI in one process"));
        }
        known.worlds += 1;
        Ok(Meeting { said, tag: c_int::from(tag), in_use: Arc::new(InUse::new()) })
    }
}

/// What came of [`Session::meet`].
pub struct Meeting {
    /// What each rank said.
    pub said: Vec<Vec<u8>>,
    /// The tag of the messages of this world.
    pub tag: c_int,
    /// To be held while MPI is called.
    pub in_use: Arc<InUse>,
}

fn ended() -> Error {
    Error::environment(
        "MPI has been finalised in this process, and cannot be started again",
        "make the communicator before MPI_Finalize is called",
    )
}

fn broken() -> Error {
    Error::environment("the ranks have failed to meet over MPI before, and cannot try again", "start the job again")
}

fn not_all_came(rank: usize, size: usize, waited: Duration) -> Error {
    Error::Timeout {
        operation: "rendezvous".into(),
        waiting_for: (0..size).filter(|&other| other != rank).collect(),
        waited,
        detail: "some of these did not come; MPI does not say which".into(),
    }
}

/// The longest pause between two looks at what MPI has under way.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits for a request; whether it was complete by the deadline.
pub(super) fn wait(request: &mut ffi::MPI_Request, deadline: Deadline) -> Result<bool, MpiError> {
    let mut looks = 0u32;
    loop {
        let done = flag("MPI_Test", |done| {
            // SAFETY: the caller's request, on a thread that may call MPI.
            unsafe { ffi::MPI_Test(request, done, ffi::RSMPI_STATUS_IGNORE) }
        })?;
        if done {
            return Ok(true);
        }
        if deadline.has_passed(Instant::now()) {
            return Ok(false);
        }
        looks = looks.saturating_add(1);
        if looks < 1000 {
            std::thread::yield_now();
        } else {
            // MPI has nothing else to wait on.
            std::thread::park_timeout(PAUSE);
        }
    }
}
