//! More than 2^32 bytes in one call, without that much memory: a buffer is one window of a file in memory, mapped again
//! and again.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr;

use phalanx::types::DataType;
use phalanx::{Call, TransportKind};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::support::on_world;

/// 2^32 is no multiple of it, so that a position that was cut to 32 bits shows another content.
const WINDOW: usize = (16 << 20) + 3 * 4096;
const WINDOWS: usize = (1usize << 32) / WINDOW + 1;
const BYTES: usize = (1 << 32) + 5;

/// `WINDOWS` windows in a row that are the same memory.
struct Repeated(*mut u8);

impl Repeated {
    fn new() -> Self {
        let file = memfd_create("repeated", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, WINDOW as u64).expect("its length");
        // SAFETY: a fresh range of addresses, which each window then takes a part of.
        let start = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let start =
                mmap_anonymous(ptr::null_mut(), WINDOW * WINDOWS, ProtFlags::empty(), flags).expect("addresses");
            for window in 0..WINDOWS {
                let at: *mut c_void = start.byte_add(window * WINDOW);
                let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
                mmap(at, WINDOW, protection, flags, file.as_fd(), 0).expect("a window");
            }
            start
        };
        Self(start.cast())
    }

    /// The one window, which all others are.
    fn window(&mut self) -> &mut [u8] {
        // SAFETY: mapped above; the other windows are only used by calls, which do not run meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.0, WINDOW) }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, used by nobody any more.
        unsafe { munmap(self.0.cast(), WINDOW * WINDOWS).expect("mapped memory") };
    }
}

fn pattern(at: usize) -> u8 {
    (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]
}

#[test]
fn more_than_two_to_the_32_bytes_travel() {
    for kind in [TransportKind::Shm, TransportKind::Tcp] {
        on_world(kind, 2, |comm| {
            let mut memory = Repeated::new();
            let is_root = comm.rank() == 1;
            memory.window().iter_mut().enumerate().for_each(|(at, byte)| *byte = if is_root { pattern(at) } else { 0 });
            let call = Call::broadcast(DataType::U8, BYTES, 1);
            // SAFETY: the mapping has more than `BYTES` bytes and lives until after the call. That its windows are the
            // same memory is no harm: equal positions of a window get equal bytes.
            unsafe { comm.run(&call, ptr::null(), memory.0) }.expect("a broadcast");
            let wrong = memory.window().iter().enumerate().position(|(at, byte)| *byte != pattern(at));
            assert_eq!(wrong, None, "{kind}");
        });
    }
}
