//! Whether one child of a process may read the memory of another: the way in which the ranks that a launcher started read
//! each other's.
//!
//! Policies that forbid it are many (Yama, filters of system calls, namespaces, capabilities, the kernel's configuration),
//! and how they go together is best left to the kernel. So it is tried, with two children that live for a moment.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions};

use super::process::read_memory;

/// What the reader ends with when it read something else than it should have.
const WRONG: libc::c_int = 255;

/// Tries it. An error is what the kernel refused it with, or that there was nothing to try it with. Costs two `fork`s.
pub fn may_read_each_other() -> io::Result<()> {
    // The reader's copy of the word has this value, the other's another: so it is clear whose was read.
    let mut word = 0x0123_4567_89ab_cdef_u64;
    let (ready, tells) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let place = &raw mut word;
    // SAFETY: the closure makes system calls only, and writes a word of this frame.
    let read = unsafe {
        fork(|| {
            place.write_volatile(!place.read_volatile());
            be_read(&tells)
        })?
    };
    drop(tells);
    // It ends when the child has said that it is there, or has ended.
    let is_there = rustix::io::read(&ready, &mut [0_u8; 1]).map_err(io::Error::from);
    let outcome = match is_there {
        // SAFETY: the closure makes system calls only.
        Ok(1) => unsafe { fork(|| read_from(read, place)) }.and_then(end_of),
        Ok(_) => Err(io::Error::other("the child that was to be read ended at once")),
        Err(error) => Err(error),
    };
    // It has nothing else to do.
    let _ = rustix::process::kill_process(read, Signal::KILL);
    let _ = rustix::process::waitpid(Some(read), WaitOptions::empty());
    match outcome? {
        0 => Ok(()),
        WRONG => Err(io::Error::other("another process's memory was read in place of the one asked for")),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Starts a child that does this and no more.
///
/// # Safety
///
/// `child` makes only calls that are safe in signal handlers: other threads of this process may have held any lock.
unsafe fn fork(child: impl FnOnce() -> libc::c_int) -> io::Result<Pid> {
    // SAFETY: the child runs what the caller vouches for, and ends without leaving this block.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: as above; nothing of the parent's is cleaned up twice.
            unsafe { libc::_exit(code) }
        }
        process => Pid::from_raw(process).filter(|_| process > 0).ok_or_else(io::Error::last_os_error),
    }
}

/// The child that is read: lets itself be read as ranks do, says that it is there, and waits for its end.
fn be_read(tells: &OwnedFd) -> libc::c_int {
    // SAFETY: these calls take numbers, and one byte of this frame.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(libc::getppid().unsigned_abs()), 0, 0, 0);
        if libc::write(tells.as_raw_fd(), [0_u8].as_ptr().cast(), 1) != 1 {
            return 1;
        }
        loop {
            libc::pause();
        }
    }
}

/// The child that reads: 0 if it got the other's word, or the kernel's number of what went wrong.
fn read_from(other: Pid, place: *mut u64) -> libc::c_int {
    let mut found = 0_u64;
    let to = [((&raw mut found).cast(), size_of::<u64>())];
    // SAFETY: one word of this frame is written, and nobody else looks at it.
    let read = unsafe { read_memory(other.as_raw_nonzero().get(), [(place as u64, size_of::<u64>())], to) };
    // SAFETY: a word of the frame that this child was forked in.
    match (read, unsafe { place.read_volatile() }) {
        (Ok(8), own) if found == !own => 0,
        (Ok(_), _) => WRONG,
        (Err(error), _) => error.raw_os_error().unwrap_or(WRONG),
    }
}

/// What a child ended with.
fn end_of(child: Pid) -> io::Result<libc::c_int> {
    let ended = rustix::process::waitpid(Some(child), WaitOptions::empty())?;
    // A filter may kill a process for a call, rather than refuse it.
    ended
        .and_then(|(_, status)| status.exit_status())
        .ok_or_else(|| io::Error::other("the process that tried it was killed for it"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn reads(other: Pid, place: *mut u64) -> io::Result<libc::c_int> {
        // SAFETY: the closure makes system calls only.
        unsafe { fork(|| read_from(other, place)) }.and_then(end_of)
    }

    #[test]
    fn what_goes_wrong_is_told_with_the_kernel_s_number() {
        let mut word = 7;
        let own = rustix::process::getpid();
        let place = &raw mut word;
        // A child's copy of the word is equal to its parent's.
        let found = reads(own, place).unwrap();
        assert!(found == WRONG || found == libc::EPERM, "{found}");
        let nobody = Pid::from_raw(i32::MAX).unwrap();
        assert_eq!(reads(nobody, place).unwrap(), libc::ESRCH);
    }

    #[test]
    fn one_that_is_killed_for_trying_is_told() {
        // SAFETY: the closure makes system calls only.
        let killed = unsafe {
            fork(|| {
                libc::raise(libc::SIGKILL);
                0
            })
        };
        let error = killed.and_then(end_of).unwrap_err();
        assert!(error.to_string().contains("killed for it"), "{error}");
    }

    /// A filter that refuses the call, as containers have it, in a child, since a filter stays for good.
    #[test]
    fn a_filter_of_system_calls_is_found() {
        // SAFETY: the closure makes system calls, and the two forks inside make no others; it allocates nothing.
        let child = unsafe {
            fork(|| {
                if !refuse_reading() {
                    return WRONG;
                }
                may_read_each_other().map_or_else(|error| error.raw_os_error().unwrap_or(WRONG), |()| 0)
            })
        };
        match child.and_then(end_of).unwrap() {
            WRONG => eprintln!("not tested: no filter of system calls can be made here"),
            code => assert_eq!(code, libc::EPERM, "{}", io::Error::from_raw_os_error(code)),
        }
    }

    /// Has the kernel refuse this process `process_vm_readv` with EPERM.
    fn refuse_reading() -> bool {
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let program = [
            // The number of the call, which is the first word of what a filter sees.
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_process_vm_readv as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        // SAFETY: the program is alive during the call, which copies it.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter, 0, 0) == 0
        }
    }
}
