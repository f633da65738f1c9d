//! The launcher's PMIx service, through its library, which is looked for at run time.
//!
//! Open MPI's and Slurm's launchers serve it. The structures and functions are those of the public PMIx standard,
//! versions 2 to 6, of which only what all of them share is used: `PMIx_Init`, `Put`, `Commit`, `Fence`, `Get`,
//! `Finalize`, and strings as values. Like PMI, it travels over the launcher's own connections.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::mpsc;
use std::time::Instant;

use libloading::Library;

use crate::types::Deadline;

/// The names under which the library is looked for, in this order.
pub(super) const CANDIDATES: [&str; 2] = ["libpmix.so.2", "libpmix.so"];

/// The versions whose structures are known to be those below.
const MAJOR_VERSIONS: std::ops::RangeInclusive<u32> = 2..=6;

const SUCCESS: c_int = 0;
const SCOPE_GLOBAL: u8 = 3;
const TYPE_STRING: u16 = 3;
const NAME_BYTES: usize = 256;
const KEY_BYTES: usize = 512;

/// `pmix_proc_t`.
#[repr(C)]
struct Proc {
    namespace: [c_char; NAME_BYTES],
    rank: u32,
}

/// `pmix_value_t`, as far as it holds a string. The library's own is 32 bytes long; this one is longer, in case a later
/// one grows, and what is behind the string is zero.
#[repr(C)]
struct Value {
    kind: u16,
    string: *mut c_char,
    rest: [u64; 6],
}

type Init = unsafe extern "C" fn(*mut Proc, *mut c_void, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const c_void, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const c_void, usize, *mut *mut Value) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;
type GetVersion = unsafe extern "C" fn() -> *const c_char;

struct Functions {
    init: Init,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    finalize: Finalize,
    /// Never unloaded: the library starts threads of its own.
    _library: &'static Library,
}

/// How it went wrong.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PmixError {
    /// The service cannot be used. The text says why.
    Unusable(String),
    /// Not all ranks came in time.
    Fence,
}

/// Puts `line` if there is one (on rank 0), waits for all ranks, and returns rank 0's line.
///
/// The library's calls have no deadline of their own. They run in a thread of their own, which is left to itself when the
/// deadline passes: the process is about to end then.
pub(super) fn exchange(line: Option<String>, deadline: Deadline) -> Result<String, PmixError> {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name("phalanx-pmix".into()).spawn(move || {
        let _ = sender.send(load().and_then(|functions| functions.exchange(line)));
    });
    thread.map_err(|error| PmixError::Unusable(error.to_string()))?;
    match receiver.recv_timeout(deadline.remaining(Instant::now())) {
        Ok(outcome) => outcome.map_err(PmixError::Unusable),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(PmixError::Fence),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(PmixError::Unusable("its thread ended".into())),
    }
}

fn load() -> Result<Functions, String> {
    let mut looked_for = Vec::new();
    for name in CANDIDATES {
        // SAFETY: loading runs the library's initialisers. The names are those of PMIx alone.
        match unsafe { Library::new(name) } {
            Ok(library) => return functions(library).map_err(|why| format!("{name}: {why}")),
            Err(error) => looked_for.push(error.to_string()),
        }
    }
    Err(format!("no PMIx library: {}", looked_for.join("; ")))
}

fn functions(library: Library) -> Result<Functions, String> {
    let library: &'static Library = Box::leak(Box::new(library));
    macro_rules! symbol {
        ($name:literal, $kind:ty) => {
            // SAFETY: the type is that of the function of this name in the PMIx standard.
            *unsafe { library.get::<$kind>(concat!($name, "\0").as_bytes()) }.map_err(|error| error.to_string())?
        };
    }
    let get_version = symbol!("PMIx_Get_version", GetVersion);
    // SAFETY: the function may be called before anything else, and returns null or a string that lives for ever.
    let version = unsafe {
        let text = get_version();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    let major = major_version(&version);
    if !major.is_some_and(|major| MAJOR_VERSIONS.contains(&major)) {
        return Err(format!(
            "its version is {version:?}; versions {} to {} are understood",
            MAJOR_VERSIONS.start(),
            MAJOR_VERSIONS.end()
        ));
    }
    Ok(Functions {
        init: symbol!("PMIx_Init", Init),
        put: symbol!("PMIx_Put", Put),
        commit: symbol!("PMIx_Commit", Commit),
        fence: symbol!("PMIx_Fence", Fence),
        get: symbol!("PMIx_Get", Get),
        finalize: symbol!("PMIx_Finalize", Finalize),
        _library: library,
    })
}

/// The first number in a text such as `OpenPMIx 4.2.2 (...)`.
fn major_version(text: &str) -> Option<u32> {
    let digits = text.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty())?;
    digits.parse().ok()
}

fn check(what: &str, status: c_int) -> Result<(), String> {
    if status == SUCCESS { Ok(()) } else { Err(format!("{what} failed with {status}")) }
}

impl Functions {
    fn exchange(&self, line: Option<String>) -> Result<String, String> {
        let mut me = Proc { namespace: [0; NAME_BYTES], rank: 0 };
        // SAFETY: `me` has the layout that the function fills; no information is passed.
        check("PMIx_Init", unsafe { (self.init)(&raw mut me, std::ptr::null_mut(), 0) })?;
        let outcome = self.publish_and_read(&me, line);
        // SAFETY: initialised above; no information is passed.
        let finalized = check("PMIx_Finalize", unsafe { (self.finalize)(std::ptr::null(), 0) });
        let line = outcome?;
        finalized?;
        Ok(line)
    }

    fn publish_and_read(&self, me: &Proc, line: Option<String>) -> Result<String, String> {
        // Some versions copy the whole array that a key stands in.
        let mut key = [0 as c_char; KEY_BYTES];
        for (target, &byte) in key.iter_mut().zip(b"phalanx-rendezvous") {
            *target = byte as c_char;
        }
        if let Some(line) = line {
            let line = CString::new(line).map_err(|_| "a zero in the line".to_string())?;
            let mut value = Value { kind: TYPE_STRING, string: line.as_ptr().cast_mut(), rest: [0; 6] };
            // SAFETY: key and value outlive the call, which copies them and changes neither.
            check("PMIx_Put", unsafe { (self.put)(SCOPE_GLOBAL, key.as_ptr(), &raw mut value) })?;
            // SAFETY: initialised by the caller.
            check("PMIx_Commit", unsafe { (self.commit)() })?;
        }
        // SAFETY: no processes named means all of this job; no information is passed.
        check("PMIx_Fence", unsafe { (self.fence)(std::ptr::null(), 0, std::ptr::null(), 0) })?;
        let rank_0 = Proc { namespace: me.namespace, rank: 0 };
        let mut found: *mut Value = std::ptr::null_mut();
        // SAFETY: process and key outlive the call; on success `found` is a value that is ours to free.
        check("PMIx_Get", unsafe { (self.get)(&raw const rank_0, key.as_ptr(), std::ptr::null(), 0, &raw mut found) })?;
        if found.is_null() {
            return Err("PMIx_Get gave nothing".into());
        }
        // SAFETY: the value is valid up to the end of its string field, whatever its kind: the standard's union is at
        // least as long as a pointer. It was made with the C library's allocator, string and value apart, and nobody
        // else holds it.
        unsafe {
            let kind = (&raw const (*found).kind).read();
            let string = (&raw const (*found).string).read();
            let line = (kind == TYPE_STRING && !string.is_null()).then(|| {
                let line = CStr::from_ptr(string).to_string_lossy().into_owned();
                libc::free(string.cast());
                line
            });
            libc::free(found.cast());
            line.ok_or_else(|| format!("PMIx_Get gave a value of type {kind}, expected a string"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(major_version("OpenPMIx 4.2.2rc2 (PMIx Standard: 4.1)"), Some(4));
        assert_eq!(major_version("PMIx 2.1.1"), Some(2));
        assert_eq!(major_version("unknown"), None);
    }

    #[test]
    fn the_value_has_the_standards_layout() {
        assert_eq!(std::mem::offset_of!(Value, string), 8);
        assert!(size_of::<Value>() >= 32);
        assert_eq!(std::mem::offset_of!(Proc, rank), 256);
    }
}
