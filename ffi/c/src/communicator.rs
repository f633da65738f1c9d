//! Communicators: making, asking, dividing, freeing.

use std::time::Duration;

use phalanx::{Communicator, Error, Settings};

use crate::codes::{PhxAlgorithm, algorithm};
use crate::status::{PhxStatus, guarded, guarded_or};

/// A group of ranks that make collective calls together.
pub struct PhxComm(pub(crate) Communicator);

/// How the operations of a communicator behave. All but the timeout must be the same on every rank.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhxSettings {
    /// How long an operation may take before it fails with PHX_ERROR_TIMEOUT, in seconds.
    pub timeout_seconds: f64,
    /// The algorithm of every collective that has it, a phx_algorithm_t.
    pub algorithm: i32,
    /// Not 0: reduces in rank order whatever the algorithm.
    pub deterministic: i32,
}

/// Makes the communicator of all ranks from what the launcher left in the environment; of this process alone if nothing
/// suggests that there are others. Sets *comm, to NULL after an error. Every rank must call it; it waits for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_init(comm: *mut *mut PhxComm) -> PhxStatus {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { give(comm, || phalanx::observe::log_to_stderr().and_then(|()| phalanx::init()).map(Some)) })
}

/// Waits for what is in flight, says goodbye to all peers and closes every communicator of this process. Later calls
/// fail with PHX_ERROR_CLOSED. Freeing the last communicator does the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_shutdown(comm: *const PhxComm) -> PhxStatus {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { get(comm)? }.shutdown();
        Ok(PhxStatus::PHX_OK)
    })
}

/// Frees a communicator; NULL is ignored. Handles of its operations stay usable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_free(comm: *mut PhxComm) {
    let free = || {
        if !comm.is_null() {
            // SAFETY: it comes from `give`, and the caller gives it up.
            drop(unsafe { Box::from_raw(comm) });
        }
        Ok(())
    };
    guarded_or(free, |_| ());
}

/// This process's rank, from 0; -1 if comm is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_rank(comm: *const PhxComm) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { ask(comm, Communicator::rank) }
}

/// The number of ranks; -1 if comm is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_size(comm: *const PhxComm) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { ask(comm, Communicator::size) }
}

/// This rank's number among the ranks of its host; -1 if comm is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_local_rank(comm: *const PhxComm) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { ask(comm, Communicator::local_rank) }
}

/// The number of ranks on this host; -1 if comm is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_local_size(comm: *const PhxComm) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { ask(comm, Communicator::local_size) }
}

/// This rank's number among the ranks with the same local rank, one a host; -1 if comm is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_cross_rank(comm: *const PhxComm) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { ask(comm, Communicator::cross_rank) }
}

/// The number of hosts that have a rank with this local rank; -1 if comm is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_cross_size(comm: *const PhxComm) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { ask(comm, Communicator::cross_size) }
}

/// Divides a communicator: ranks that give the same colour form one, in the order of their keys, equal keys in the order
/// of their ranks. Colours are not negative, but for PHX_NO_COLOUR: that rank gets none, and *part becomes NULL. Every
/// rank must call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_split(
    comm: *const PhxComm,
    colour: i64,
    key: i64,
    part: *mut *mut PhxComm,
) -> PhxStatus {
    let split = || {
        // SAFETY: the caller's promise.
        let comm = unsafe { get(comm)? };
        let colour = match colour {
            -1 => None,
            colour => Some(u64::try_from(colour).map_err(|_| {
                Error::invalid(format_args!(
                    "phx_comm_split: colour {colour} given, 0 or more or PHX_NO_COLOUR expected"
                ))
            })?),
        };
        comm.split(colour, key)
    };
    // SAFETY: the caller's promise.
    guarded(|| unsafe { give(part, split) })
}

/// Makes the communicator of some ranks of comm, in the given order. Every rank of the list must call it, with the same
/// list; others may, and *part becomes NULL. Costs no message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_subgroup(
    comm: *const PhxComm,
    ranks: *const u64,
    count: u64,
    part: *mut *mut PhxComm,
) -> PhxStatus {
    let subgroup = || {
        // SAFETY: the caller's promise.
        let (comm, ranks) = unsafe { (get(comm)?, numbers("phx_comm_subgroup: ranks", ranks, count)?) };
        comm.subgroup(&ranks)
    };
    // SAFETY: the caller's promise.
    guarded(|| unsafe { give(part, subgroup) })
}

/// The settings of a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_settings(comm: *const PhxComm, settings: *mut PhxSettings) -> PhxStatus {
    guarded(|| {
        // SAFETY: the caller's promise.
        let now = unsafe { get(comm)? }.settings();
        let now = PhxSettings {
            timeout_seconds: now.timeout.as_secs_f64(),
            algorithm: now.algorithm.map_or(PhxAlgorithm::PHX_ALGORITHM_AUTO as i32, |algorithm| algorithm as i32),
            deterministic: i32::from(now.deterministic),
        };
        // SAFETY: the caller's promise.
        unsafe { put(settings, now, "settings") }
    })
}

/// Makes another communicator of the same ranks, which shares the order of operations with comm but has other
/// settings. Costs no message. It is freed like any other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phx_comm_with_settings(
    comm: *const PhxComm,
    settings: *const PhxSettings,
    other: *mut *mut PhxComm,
) -> PhxStatus {
    let with_settings = || {
        // SAFETY: the caller's promise.
        let (comm, settings) = unsafe { (get(comm)?, settings.as_ref()) };
        let PhxSettings { timeout_seconds, algorithm: code, deterministic } =
            *settings.ok_or_else(|| Error::invalid("the settings are NULL"))?;
        let settings = Settings {
            timeout: seconds("timeout_seconds", timeout_seconds)?,
            algorithm: algorithm(code)?,
            deterministic: deterministic != 0,
        };
        Ok(Some(comm.with_settings(settings)))
    };
    // SAFETY: the caller's promise.
    guarded(|| unsafe { give(other, with_settings) })
}

/// The communicator behind a pointer.
///
/// # Safety
///
/// The pointer must be null or come from this library and not be freed while the reference is used.
pub(crate) unsafe fn get<'a>(comm: *const PhxComm) -> Result<&'a Communicator, Error> {
    // SAFETY: the caller's promise.
    let comm = unsafe { comm.as_ref() };
    comm.map(|comm| &comm.0).ok_or_else(|| Error::invalid("the communicator is NULL"))
}

/// # Safety
///
/// As for [`get`].
unsafe fn ask(comm: *const PhxComm, question: impl FnOnce(&Communicator) -> usize) -> i64 {
    // SAFETY: the caller's promise.
    let answer = || unsafe { get(comm) }.map(|comm| i64::try_from(question(comm)).unwrap_or(i64::MAX));
    guarded_or(answer, |_| -1)
}

/// Runs `make` and hands what it made to C; null if it made nothing or failed.
///
/// # Safety
///
/// `target` must be null or valid for a write.
unsafe fn give(
    target: *mut *mut PhxComm,
    make: impl FnOnce() -> Result<Option<Communicator>, Error>,
) -> Result<PhxStatus, Error> {
    // SAFETY: the caller's promise.
    unsafe { put(target, std::ptr::null_mut(), "place for the communicator")? };
    let made = make()?.map_or(std::ptr::null_mut(), |comm| Box::into_raw(Box::new(PhxComm(comm))));
    // SAFETY: the caller's promise.
    unsafe { put(target, made, "place for the communicator") }
}

/// Writes an answer where the caller wants it.
///
/// # Safety
///
/// `target` must be null or valid for a write.
pub(crate) unsafe fn put<T>(target: *mut T, value: T, what: &str) -> Result<PhxStatus, Error> {
    if target.is_null() {
        return Err(Error::invalid(format_args!("the {what} is NULL")));
    }
    // SAFETY: it is not null, and the caller vouches for the rest.
    unsafe { target.write(value) };
    Ok(PhxStatus::PHX_OK)
}

/// A length of time.
pub(crate) fn seconds(what: &str, seconds: f64) -> Result<Duration, Error> {
    if seconds == f64::INFINITY {
        return Ok(Duration::MAX);
    }
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Error::invalid(format_args!("{what}: {seconds} seconds given, 0 or more expected")))
}

/// A number of elements, or of ranks.
pub(crate) fn number(what: &str, number: u64) -> Result<usize, Error> {
    usize::try_from(number).map_err(|_| Error::invalid(format_args!("{what}: {number} is more than memory can have")))
}

/// A list of numbers.
///
/// # Safety
///
/// `list` must be null or valid for reads of `count` numbers.
pub(crate) unsafe fn numbers(what: &str, list: *const u64, count: u64) -> Result<Vec<usize>, Error> {
    let count = number(what, count)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    if list.is_null() || count > isize::MAX as usize / size_of::<u64>() {
        return Err(Error::invalid(format_args!("{what}: no list of {count} numbers given")));
    }
    // SAFETY: the caller's promise; read one by one, so that no alignment is needed.
    (0..count).map(|index| number(what, unsafe { list.add(index).read_unaligned() })).collect()
}
