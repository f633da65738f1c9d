//! The library of NCCL.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::nccl::sys;

use super::group::Calls;
use super::results::{self, Code};
use super::work::{CollectiveCall, CollectiveWork, Parts, Span};
use crate::device::context::Device;
use crate::device::libraries::{self, calls};
use crate::types::{Collective, Error, Result};

/// What a user of NCCL's configuration has not chosen.
const UNDEFINED: c_int = c_int::MIN;

/// Tells NCCL that a configuration was filled in.
const MAGIC: u32 = 0xcafe_beef;

/// The version of NCCL whose configuration `sys` declares. A newer library takes the rest as not chosen, an older one
/// reads less.
const CONFIGURATION_VERSION: u32 = 23_000;

/// Gives up what is in flight when a communicator is shrunk.
const SHRINK_ABORT: c_int = 1;

/// The oldest version that is used: the first whose non-blocking communicators can be aborted at any time.
const OLDEST: Version = Version { major: 2, minor: 18, patch: 0 };

type Raw = sys::ncclComm_t;
type Place = *mut c_void;
type Source = *const c_void;

calls! {
    /// What is called of NCCL.
    struct Functions, "NCCL";
    required {
        ncclGetVersion(*mut c_int) -> Code;
        ncclGetUniqueId(*mut sys::ncclUniqueId) -> Code;
        ncclCommInitRankConfig(*mut Raw, c_int, sys::ncclUniqueId, c_int, *mut sys::ncclConfig_t) -> Code;
        ncclCommGetAsyncError(Raw, *mut Code) -> Code;
        ncclCommFinalize(Raw) -> Code;
        ncclCommAbort(Raw) -> Code;
        ncclGetErrorString(Code) -> *const c_char;
        ncclGroupStart() -> Code;
        ncclGroupEnd() -> Code;
        ncclAllReduce(Source, Place, usize, c_int, c_int, Raw, Place) -> Code;
        ncclReduce(Source, Place, usize, c_int, c_int, c_int, Raw, Place) -> Code;
        ncclBroadcast(Source, Place, usize, c_int, c_int, Raw, Place) -> Code;
        ncclAllGather(Source, Place, usize, c_int, Raw, Place) -> Code;
        ncclReduceScatter(Source, Place, usize, c_int, c_int, Raw, Place) -> Code;
        ncclSend(Source, usize, c_int, c_int, Raw, Place) -> Code;
        ncclRecv(Place, usize, c_int, c_int, Raw, Place) -> Code;
    }
    optional {
        ncclGetLastError(Raw) -> *const c_char;
        ncclCommRevoke(Raw, c_int) -> Code;
        ncclCommShrink(Raw, *mut c_int, c_int, *mut Raw, *mut sys::ncclConfig_t, c_int) -> Code;
        ncclCommGetUniqueId(Raw, *mut sys::ncclUniqueId) -> Code;
        ncclCommGrow(Raw, c_int, *const sys::ncclUniqueId, c_int, *mut Raw, *mut sys::ncclConfig_t) -> Code;
    }
}

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 2.
    pub major: u32,
    /// The release.
    pub minor: u32,
    /// Its corrections.
    pub patch: u32,
}

impl Version {
    /// Reads the number that the library gives, whose form changed with 2.9.
    pub fn from_code(code: u32) -> Self {
        let step = if code < 10_000 { 1000 } else { 10_000 };
        Self { major: code / step, minor: code % step / 100, patch: code % 100 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What a library can beside the collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Make a communicator of another without some ranks (2.27).
    pub shrinks: bool,
    /// Make a communicator of another with more ranks (2.29).
    pub grows: bool,
    /// Stop what is in flight and keep the communicator, so that another can be made of it (2.29).
    pub revokes: bool,
}

/// What the ranks of a communicator to be meet by. Whoever has it can join, so it travels over authenticated connections
/// only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(hidden)")
    }
}

impl UniqueId {
    fn to_library(self) -> sys::ncclUniqueId {
        sys::ncclUniqueId { internal: self.0.map(|byte| byte as c_char) }
    }

    fn from_library(id: &sys::ncclUniqueId) -> Self {
        Self(id.internal.map(|byte| u8::from_ne_bytes(byte.to_ne_bytes())))
    }
}

/// NCCL, loaded. Cheap to clone.
#[derive(Clone)]
pub struct Library {
    inner: Arc<Inner>,
}

struct Inner {
    functions: Functions,
    library: crate::sys::library::Library,
    version: Version,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("library", &self.library()).field("version", &self.version()).finish()
    }
}

impl Library {
    /// Loads NCCL.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] when there is none, when it is too old, or lacks a function.
    pub fn load() -> Result<Self> {
        let library = libraries::open(&libraries::NCCL)?;
        let functions = Functions::find(&library)?;
        let mut code = 0;
        // SAFETY: the argument points to a number to be written.
        let result = unsafe { (functions.ncclGetVersion)(&mut code) };
        if result != results::SUCCESS {
            return Err(results::error("ncclGetVersion", result, ""));
        }
        let version = Version::from_code(u32::try_from(code).unwrap_or_default());
        check_age(version, &library.name)?;
        Ok(Self { inner: Arc::new(Inner { functions, library, version }) })
    }

    /// The file or name that was loaded.
    pub fn library(&self) -> &str {
        &self.inner.library.name
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.inner.version
    }

    /// What it can.
    pub fn abilities(&self) -> Abilities {
        let functions = &self.inner.functions;
        let since = |minor| self.version() >= Version { major: 2, minor, patch: 0 };
        Abilities {
            shrinks: since(27) && functions.ncclCommShrink.is_some(),
            grows: since(29) && functions.ncclCommGrow.is_some() && functions.ncclCommGetUniqueId.is_some(),
            revokes: since(29) && functions.ncclCommRevoke.is_some(),
        }
    }

    /// What NCCL says of a result, in its own words.
    pub fn words_of(&self, code: Code) -> String {
        // SAFETY: returns a text that lives as long as the library, for any number.
        unsafe { text((self.inner.functions.ncclGetErrorString)(code)) }
    }

    /// An id for a communicator to be made from nothing. One rank gets it and gives it to the others.
    ///
    /// # Errors
    ///
    /// When NCCL finds no network interface to listen on.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: the argument points to an id to be written.
        let code = unsafe { (self.inner.functions.ncclGetUniqueId)(&mut id) };
        if code != results::SUCCESS {
            // SAFETY: without a communicator, the last error of the thread is meant.
            return Err(results::error("ncclGetUniqueId", code, &unsafe { self.last_words(ptr::null_mut()) }));
        }
        Ok(UniqueId::from_library(&id))
    }

    /// # Safety
    ///
    /// `raw` must be null or a communicator that lives.
    unsafe fn last_words(&self, raw: Raw) -> String {
        // SAFETY: the caller's promise.
        self.inner.functions.ncclGetLastError.map(|last| unsafe { text(last(raw)) }).unwrap_or_default()
    }

    /// The calls of one rank with one device.
    pub fn on(&self, device: &Device) -> Opened {
        Opened { library: self.clone(), device: device.clone(), made: Box::new(ptr::null_mut()) }
    }
}

/// Refuses a library that is too old.
pub(super) fn check_age(version: Version, name: &str) -> Result<()> {
    if version >= OLDEST {
        return Ok(());
    }
    Err(Error::environment(
        format_args!("NCCL {version} ({name}) is too old: {OLDEST} or later expected"),
        "install a newer one, or name its folder in PHALANX_LIBRARIES",
    ))
}

/// # Safety
///
/// `start` must be null or a text that ends with a zero byte.
unsafe fn text(start: *const c_char) -> String {
    if start.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned()
}

/// A configuration in which nothing is chosen but that no call blocks.
pub(super) fn configuration() -> sys::ncclConfig_t {
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: MAGIC,
        version: CONFIGURATION_VERSION,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
        graphUsageMode: UNDEFINED,
        numRmaCtx: UNDEFINED,
        maxP2pPeers: UNDEFINED,
    }
}

/// A communicator of NCCL's, as a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Communicator(Raw);

// SAFETY: a name, of which the calls are made by one thread at a time.
unsafe impl Send for Communicator {}

/// The calls of one rank with one device.
pub struct Opened {
    library: Library,
    device: Device,
    /// Where NCCL writes what it makes of another communicator, maybe after the call has returned.
    made: Box<Raw>,
}

// SAFETY: NCCL's calls may be made from any thread, one at a time for a communicator; the handles are names.
unsafe impl Send for Opened {}

impl Opened {
    fn functions(&self) -> &Functions {
        &self.library.inner.functions
    }

    /// Sends and receives, or reductions, as one.
    ///
    /// # Safety
    ///
    /// The communicator must live.
    unsafe fn together(&self, raw: Raw, work: &CollectiveWork) -> Code {
        let functions = self.functions();
        let CollectiveCall { numbers: (data_type, op), width, rank, ref parts, .. } = work.call;
        let (source, target) = work.ends();
        let stream = work.stream.handle().cast::<c_void>();
        let from = |span: &Span| (source + (span.at * width) as u64) as usize as Source;
        let to = |span: &Span| (target + (span.at * width) as u64) as usize as Place;
        let mut code = results::SUCCESS;
        let mut heed = |result| {
            if code == results::SUCCESS && result != results::IN_PROGRESS {
                code = result;
            }
        };
        // SAFETY: whoever made the work answers for the memory, span by span; the communicator and the stream live.
        unsafe {
            heed((functions.ncclGroupStart)());
            match parts {
                Parts::Whole => {}
                Parts::Exchange { send, recv } => {
                    for (peer, (send, recv)) in send.iter().zip(recv).enumerate() {
                        // What is in its place already stays there.
                        let is_there = peer == rank && from(send) == to(recv).cast_const();
                        if send.count > 0 && !is_there {
                            heed((functions.ncclSend)(from(send), send.count, data_type, peer as c_int, raw, stream));
                        }
                        if recv.count > 0 && !is_there {
                            heed((functions.ncclRecv)(to(recv), recv.count, data_type, peer as c_int, raw, stream));
                        }
                    }
                }
                Parts::Reduces(spans) => {
                    // Its own block's place, when all of them lie in one buffer.
                    let own = if source == target { spans.get(rank).copied() } else { None };
                    for (root, span) in spans.iter().enumerate().filter(|(_, span)| span.count > 0) {
                        let (root, to) = (root as c_int, to(&own.unwrap_or_default()));
                        heed((functions.ncclReduce)(from(span), to, span.count, data_type, op, root, raw, stream));
                    }
                }
            }
            // A group that was started must be ended, whatever came of it.
            let ended = (functions.ncclGroupEnd)();
            if code == results::SUCCESS { ended } else { code }
        }
    }

    fn made_place(&mut self) -> *mut Raw {
        *self.made = ptr::null_mut();
        &raw mut *self.made
    }
}

/// A device that cannot be entered, as a result of NCCL's.
const NO_DEVICE: Code = 1;

/// What NCCL has no function for.
const INVALID_ARGUMENT: Code = 4;

/// What this library has no function for.
const INVALID_USAGE: Code = 5;

impl Calls for Opened {
    type Raw = Communicator;
    type Work = CollectiveWork;

    fn init(&mut self, size: usize, rank: usize, id: &UniqueId) -> (Option<Communicator>, Code) {
        let Ok(_entered) = self.device.enter() else { return (None, NO_DEVICE) };
        let mut configuration = configuration();
        let mut raw = ptr::null_mut();
        // SAFETY: the first argument points to a handle to be written; the configuration is read before this returns.
        let code = unsafe {
            let (size, rank) = (size as c_int, rank as c_int);
            (self.library.inner.functions.ncclCommInitRankConfig)(
                &mut raw,
                size,
                id.to_library(),
                rank,
                &mut configuration,
            )
        };
        ((!raw.is_null()).then_some(Communicator(raw)), code)
    }

    fn state(&mut self, Communicator(raw): Communicator) -> Code {
        let mut state = results::SUCCESS;
        // SAFETY: the communicator lives; the second argument points to a number to be written.
        match unsafe { (self.functions().ncclCommGetAsyncError)(raw, &mut state) } {
            results::SUCCESS => state,
            code => code,
        }
    }

    fn enqueue(&mut self, Communicator(raw): Communicator, work: &CollectiveWork) -> Code {
        let Ok(_entered) = self.device.enter() else { return NO_DEVICE };
        let functions = &self.library.inner.functions;
        let CollectiveCall { numbers: (data_type, op), count, root, collective, ref parts, .. } = work.call;
        if *parts != Parts::Whole {
            // SAFETY: the communicator lives.
            return unsafe { self.together(raw, work) };
        }
        let (source, target) = work.ends();
        let (source, target) = (source as usize as Source, target as usize as Place);
        let (root, stream) = (root as c_int, work.stream.handle().cast::<c_void>());
        // SAFETY: whoever made the work answers for the memory; the communicator and the stream live.
        unsafe {
            match collective {
                Collective::Allreduce => (functions.ncclAllReduce)(source, target, count, data_type, op, raw, stream),
                Collective::Reduce => (functions.ncclReduce)(source, target, count, data_type, op, root, raw, stream),
                Collective::Broadcast => (functions.ncclBroadcast)(source, target, count, data_type, root, raw, stream),
                Collective::Allgather => (functions.ncclAllGather)(source, target, count, data_type, raw, stream),
                Collective::ReduceScatter => {
                    (functions.ncclReduceScatter)(source, target, count, data_type, op, raw, stream)
                }
                _ => INVALID_ARGUMENT,
            }
        }
    }

    fn revoke(&mut self, Communicator(raw): Communicator) -> Code {
        let Ok(_entered) = self.device.enter() else { return NO_DEVICE };
        let revoke = self.library.inner.functions.ncclCommRevoke.filter(|_| self.library.abilities().revokes);
        let Some(revoke) = revoke else { return INVALID_USAGE };
        // SAFETY: the communicator lives. There are no flags.
        unsafe { revoke(raw, 0) }
    }

    fn shrink(&mut self, Communicator(raw): Communicator, without: &[usize]) -> Code {
        let place = self.made_place();
        let Ok(_entered) = self.device.enter() else { return NO_DEVICE };
        let Some(shrink) = self.library.inner.functions.ncclCommShrink else { return INVALID_USAGE };
        let mut without: Vec<c_int> = without.iter().map(|&rank| rank as c_int).collect();
        let mut configuration = configuration();
        // SAFETY: the communicator lives; the place for the new one does until the group has given both up.
        unsafe { shrink(raw, without.as_mut_ptr(), without.len() as c_int, place, &mut configuration, SHRINK_ABORT) }
    }

    fn id_to_grow(&mut self, Communicator(raw): Communicator) -> Result<UniqueId, Code> {
        let Ok(_entered) = self.device.enter() else { return Err(NO_DEVICE) };
        let Some(get) = self.library.inner.functions.ncclCommGetUniqueId else { return Err(INVALID_USAGE) };
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: the communicator lives; the second argument points to an id to be written.
        match unsafe { get(raw, &mut id) } {
            results::SUCCESS => Ok(UniqueId::from_library(&id)),
            code => Err(code),
        }
    }

    fn grow(&mut self, raw: Option<Communicator>, size: usize, id: Option<&UniqueId>, rank: Option<usize>) -> Code {
        let place = self.made_place();
        let Ok(_entered) = self.device.enter() else { return NO_DEVICE };
        let Some(grow) = self.library.inner.functions.ncclCommGrow else { return INVALID_USAGE };
        let id = id.map(|id| id.to_library());
        let id = id.as_ref().map_or(ptr::null(), ptr::from_ref);
        let rank = rank.map_or(-1, |rank| rank as c_int);
        let mut configuration = configuration();
        // SAFETY: as in `shrink`; the id is read before this returns.
        unsafe { grow(raw.map_or(ptr::null_mut(), |raw| raw.0), size as c_int, id, rank, place, &mut configuration) }
    }

    fn made(&mut self) -> Option<Communicator> {
        // SAFETY: the place is this value's own. NCCL may write it from another thread until it says that it is done.
        let raw = unsafe { ptr::read_volatile(&raw const *self.made) };
        (!raw.is_null()).then_some(Communicator(raw))
    }

    fn finalize(&mut self, Communicator(raw): Communicator) -> Code {
        // SAFETY: the communicator lives.
        unsafe { (self.functions().ncclCommFinalize)(raw) }
    }

    fn abort(&mut self, Communicator(raw): Communicator) -> Code {
        // SAFETY: the communicator lives, and is not used again.
        unsafe { (self.functions().ncclCommAbort)(raw) }
    }

    fn words(&mut self, raw: Option<Communicator>) -> String {
        // SAFETY: the communicator lives, or there is none.
        unsafe { self.library.last_words(raw.map_or(ptr::null_mut(), |raw| raw.0)) }
    }
}
