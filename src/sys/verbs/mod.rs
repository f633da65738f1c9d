//! RDMA through libibverbs, which is loaded when it is first asked for: [`Context`] is an opened device, [`Domain`] what
//! may be used together, [`Link`] a queue pair with the two rings of memory that it moves bytes between.
//!
//! The bindings are this library's own (`raw`): some thirty functions and as many structures, held against the C header
//! by a test, so that building needs no header, no C library and no tool.

mod link;
mod raw;
mod words;

use std::ffi::{CStr, c_uint};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub use link::{Completion, Depths, Link, Local, Remote};
pub use words::status_in_words;

use super::Uninherited;

/// The names under which the library is looked for.
pub const LIBRARY: [&str; 2] = ["libibverbs.so.1", "libibverbs.so"];

/// The loaded library. It belongs to the process, as its loading does.
struct Verbs {
    functions: raw::Functions,
    /// Never unloaded: providers have threads and handlers of their own.
    _library: std::mem::ManuallyDrop<libloading::Library>,
}

fn verbs() -> Result<&'static Verbs, String> {
    static VERBS: OnceLock<Result<Verbs, String>> = OnceLock::new();
    VERBS.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Verbs, String> {
    let mut failure = String::new();
    for name in LIBRARY {
        // SAFETY: the initialisers of a system library, which every program that uses RDMA runs in the same way.
        match unsafe { libloading::Library::new(name) } {
            Ok(library) => {
                let functions = raw::Functions::find(&library)?;
                // A forked child must not share the pages that a device writes to. Newer kernels see to it themselves.
                // SAFETY: before anything is registered through this library's handle.
                let status = unsafe { (functions.fork_init)() };
                if status != 0 {
                    let error = io::Error::from_raw_os_error(status);
                    tracing::debug!(%error, "libibverbs cannot prepare for forked children");
                }
                return Ok(Verbs { functions, _library: std::mem::ManuallyDrop::new(library) });
            }
            Err(error) if failure.is_empty() => failure = error.to_string(),
            Err(_) => {}
        }
    }
    Err(format!("libibverbs cannot be loaded ({failure}); install rdma-core (Debian: libibverbs1, ibverbs-providers)"))
}

/// What a port says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Whether it carries.
    pub active: bool,
    /// Its address on an InfiniBand link; 0 on Ethernet.
    pub lid: u16,
    /// The largest packet it carries now, as the code of the specification: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Whether its link is Ethernet: RoCE.
    pub ethernet: bool,
}

/// An opened device.
pub struct Context {
    verbs: &'static Verbs,
    raw: NonNull<raw::ibv_context>,
    name: String,
    /// A forked child has no use for the device, and would keep its queue pairs alive.
    _commands: Uninherited<BorrowedFd<'static>>,
    events: Uninherited<BorrowedFd<'static>>,
    /// Whether asking for events does not block.
    may_ask: bool,
    /// Events that end links, and the numbers of their ports.
    troubles: Mutex<Vec<(c_uint, u32)>>,
}

// SAFETY: the library's calls on a context are safe from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of this name.
    ///
    /// # Errors
    ///
    /// In words: the library or the device is missing, or may not be opened.
    pub fn open(name: &str) -> Result<Arc<Self>, String> {
        let verbs = verbs()?;
        let mut count = 0;
        // SAFETY: the number is written; the list is given back below.
        let list = unsafe { (verbs.functions.get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(format!("libibverbs cannot list devices: {}", io::Error::last_os_error()));
        }
        let mut opened = Err(format!(
            "libibverbs does not know the device {name}: install its provider (Debian: ibverbs-providers), and let \
             /dev/infiniband be seen here"
        ));
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` devices.
            let device = unsafe { *list.add(at) };
            // SAFETY: a device of the list, which is not given back yet; its name is a C string.
            let is_it = unsafe { CStr::from_ptr((verbs.functions.get_device_name)(device)) };
            if is_it.to_bytes() == name.as_bytes() {
                // SAFETY: as above.
                let context = unsafe { (verbs.functions.open_device)(device) };
                opened = NonNull::new(context).ok_or_else(|| {
                    let error = io::Error::last_os_error();
                    format!("the device {name} cannot be opened: {error}; allow /dev/infiniband/uverbs* (docker: --device=/dev/infiniband)")
                });
            }
        }
        // SAFETY: the list from above. Opened devices stay.
        unsafe { (verbs.functions.free_device_list)(list) };
        let raw = opened?;
        // SAFETY: an open context; its descriptors stay open as long as it does, which is as long as `self`.
        let (commands, events) = unsafe {
            let context = raw.as_ref();
            (BorrowedFd::borrow_raw(context.cmd_fd), BorrowedFd::borrow_raw(context.async_fd))
        };
        let may_ask = rustix::io::ioctl_fionbio(events, true).is_ok();
        Ok(Arc::new(Self {
            verbs,
            raw,
            name: name.to_owned(),
            _commands: commands.into(),
            events: events.into(),
            may_ask,
            troubles: Mutex::default(),
        }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn functions(&self) -> &'static raw::Functions {
        &self.verbs.functions
    }

    /// What a port says of itself.
    pub fn port(&self, number: u8) -> io::Result<Port> {
        let mut found = raw::ibv_port_attr::default();
        // SAFETY: an open context; the structure is at least as long as any version of the call writes.
        let status = unsafe { (self.functions().query_port)(self.raw.as_ptr(), number, &raw mut found) };
        if status != 0 {
            return Err(io::Error::from_raw_os_error(status));
        }
        Ok(Port {
            active: found.state == raw::IBV_PORT_ACTIVE,
            lid: found.lid,
            mtu: u8::try_from(found.active_mtu).unwrap_or(1).clamp(1, 5),
            ethernet: found.link_layer == raw::IBV_LINK_LAYER_ETHERNET,
        })
    }

    /// What becomes readable when the device has something to say.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// What ends the links that use `port`, in words: the device failed, or the port is down.
    pub fn trouble(&self, port: u8) -> Option<String> {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut event = raw::ibv_async_event { element: 0, event_type: 0 };
            // SAFETY: an open context, whose descriptor does not block.
            if !self.may_ask || unsafe { (self.functions().get_async_event)(self.raw.as_ptr(), &raw mut event) } != 0 {
                break;
            }
            // SAFETY: the event that was just taken.
            unsafe { (self.functions().ack_async_event)(&raw mut event) };
            // The union's number of a port is its first four bytes.
            let number = (event.element & 0xffff_ffff) as u32;
            words::note_event(&mut troubles, event.event_type, number);
        }
        words::trouble_in_words(&troubles, &self.name, port)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by `open`; domains and links hold the context, so that none is left.
        let status = unsafe { (self.functions().close_device)(self.raw.as_ptr()) };
        debug_assert_eq!(status, 0);
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({})", self.name)
    }
}

/// A protection domain: memory and queue pairs that may be used together.
#[derive(Debug)]
pub struct Domain {
    context: Arc<Context>,
    raw: NonNull<raw::ibv_pd>,
}

// SAFETY: the library's calls on a domain are safe from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// One in an opened device.
    pub fn new(context: Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: an open context.
        let raw = unsafe { (context.functions().alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Self { context, raw }))
    }

    /// Registers a range for reading by the device: what is sent from may lie there.
    ///
    /// # Errors
    ///
    /// The system's reason; `ENOMEM` where the limit of locked memory is met.
    ///
    /// # Safety
    ///
    /// The range must stay mapped, readable and writable, until the region is dropped.
    pub unsafe fn register(self: &Arc<Self>, start: *const u8, bytes: usize) -> io::Result<Region> {
        // SAFETY: the range is mapped by the caller's promise. Without rights for others only this side's sends read it.
        let made = unsafe {
            (self.context.functions().reg_mr)(self.raw.as_ptr(), start.cast_mut().cast::<std::ffi::c_void>(), bytes, 0)
        };
        let raw = NonNull::new(made).ok_or_else(io::Error::last_os_error)?;
        // With kernels that do not see to it themselves, libibverbs hides registered pages from forked children. Memory that
        // is shared is never copied on writing, so that they may keep it.
        // SAFETY: the advice changes no byte; the range is mapped.
        let _ = unsafe {
            rustix::mm::madvise(start.cast_mut().cast::<std::ffi::c_void>(), bytes, rustix::mm::Advice::LinuxDoFork)
        };
        Ok(Region { domain: self.clone(), raw, start: start.addr(), bytes })
    }

    /// Its device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

/// Memory that a device may read. Given back when dropped.
#[derive(Debug)]
pub struct Region {
    domain: Arc<Domain>,
    raw: NonNull<raw::ibv_mr>,
    start: usize,
    bytes: usize,
}

// SAFETY: the library's calls are safe from any thread, and nothing here belongs to one.
unsafe impl Send for Region {}
// SAFETY: as above; it is only read.
unsafe impl Sync for Region {}

impl Region {
    /// The key to a range of it. `None` for one that does not lie in it.
    fn key(&self, at: *const u8, bytes: usize) -> Option<u32> {
        let offset = at.addr().checked_sub(self.start)?;
        let lies_in_it = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        // SAFETY: a registration of our own.
        let key = unsafe { self.raw.as_ref().lkey };
        lies_in_it.then_some(key)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by `register`, and given back once.
        let status = unsafe { (self.domain.context.functions().dereg_mr)(self.raw.as_ptr()) };
        debug_assert_eq!(status, 0, "registered memory is still in use");
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made by `new`; links hold the domain, so that nothing in it is left.
        let status = unsafe { (self.context.functions().dealloc_pd)(self.raw.as_ptr()) };
        debug_assert_eq!(status, 0);
    }
}
