//! Descriptors that a child made by `fork` does not keep.
//!
//! A connection ends for the other side when its last copy is closed. A child that was forked without `exec`, as worker
//! processes of data loaders are, has copies of all descriptors: while it lives, nobody would notice that its parent died,
//! and the parent's ports would stay taken. So sockets are kept in a table, and a child's copies are replaced by
//! `/dev/null` before its first instruction: their numbers stay taken, so that nothing else can come to stand under them.
//!
//! This is the one piece of state that belongs to the process and not to a world, as `fork` does.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors are small numbers: the limit of a process is rarely above this. Those above are inherited.
const MOST: usize = 1 << 16;

/// One bit for each descriptor that is not to be inherited.
static TABLE: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// A descriptor's word in the table, and its bit.
fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    TABLE.get(fd / 64).map(|word| (word, 1 << (fd % 64)))
}

/// An open descriptor whose copy in a forked child is closed there.
#[derive(Debug)]
pub struct Uninherited<F: AsFd>(F);

impl<F: AsFd> From<F> for Uninherited<F> {
    fn from(open: F) -> Self {
        watch_forks();
        if let Some((word, bit)) = place(open.as_fd().as_raw_fd()) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self(open)
    }
}

impl<F: AsFd> Drop for Uninherited<F> {
    fn drop(&mut self) {
        // Before it is closed: the number may be somebody else's right after.
        if let Some((word, bit)) = place(self.0.as_fd().as_raw_fd()) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

impl<F: AsFd> Deref for Uninherited<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.0
    }
}

impl<F: AsFd> DerefMut for Uninherited<F> {
    fn deref_mut(&mut self) -> &mut F {
        &mut self.0
    }
}

impl<F: AsFd> AsFd for Uninherited<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Has [`let_go`] called in every child that is forked from here on.
fn watch_forks() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: `let_go` makes only calls that are allowed between a fork and what follows. Should the code it is in be
        // unloaded, which Rust's libraries are not made for, the handler would have to go first.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(let_go)) };
        if failed != 0 {
            let error = io::Error::from_raw_os_error(failed);
            tracing::warn!(%error, "forked children will keep copies of connections");
        }
    });
}

/// Replaces a child's copies. The child has one thread, and may only make calls that are safe in signal handlers.
extern "C" fn let_go() {
    if TABLE.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
        return;
    }
    // The table is copied a little later than the descriptors: a number may stand in it under which nothing was open yet,
    // and which is the next that is free. Then it is this one's, and stays.
    // SAFETY: the path is a C string; nothing else is handed over.
    let nothing = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    let mut stays = false;
    for (index, word) in TABLE.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            // At most `MOST`, which fits.
            let fd = (64 * index) as RawFd + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            if fd == nothing {
                stays = true;
                continue;
            }
            // SAFETY: the descriptor is this library's; whoever holds it here finds `/dev/null`, or an error, under it.
            unsafe {
                if nothing < 0 || libc::dup3(nothing, fd, libc::O_CLOEXEC) < 0 {
                    libc::close(fd);
                }
            }
        }
    }
    if nothing >= 0 && !stays {
        // SAFETY: opened above, and nobody else's.
        drop(unsafe { OwnedFd::from_raw_fd(nothing) });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The child lives until it is told to end, and so does a plain socket's copy in it.
    #[test]
    fn a_forked_child_does_not_keep_a_connection_open() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (plain, mut kept) = UnixStream::pair().unwrap();
        let ours = Uninherited::from(ours);
        // SAFETY: the child makes only calls that are allowed after the fork of a program with threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::pause();
                libc::_exit(0);
            }
        }
        assert!(child > 0, "{}", io::Error::last_os_error());
        drop((ours, plain));
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).expect("the end: no copy is open");
        kept.set_nonblocking(true).unwrap();
        let still_open = kept.read(&mut [0]).expect_err("the child has a copy of the plain one");
        assert_eq!(still_open.kind(), io::ErrorKind::WouldBlock);
        // SAFETY: our own child, which has not been waited for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }

    /// As when another thread opens a connection after the descriptors were copied, and before the table was.
    #[test]
    fn a_number_that_is_not_open_yet_is_taken_all_the_same() {
        watch_forks();
        let ended = |child: libc::pid_t| {
            let mut status = 0;
            // SAFETY: the argument points to a number to be written.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            waited == child && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        };
        // In a child, where no other test opens anything.
        // SAFETY: the child makes only calls that are allowed after the fork of a program with threads, and so does its
        // own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; the descriptor is this child's own.
            unsafe {
                let next = libc::dup(0);
                libc::close(next);
                if let Some((word, bit)) = place(next) {
                    word.fetch_or(bit, Ordering::Relaxed);
                }
                let grandchild = libc::fork();
                let is_right = match grandchild {
                    0 => libc::fcntl(next, libc::F_GETFD) >= 0,
                    _ => ended(grandchild),
                };
                libc::_exit(i32::from(!is_right));
            }
        }
        assert!(ended(child));
    }

    #[test]
    fn what_is_closed_leaves_the_table() {
        let socket = UnixStream::pair().unwrap().0;
        let (word, bit) = place(socket.as_raw_fd()).unwrap();
        // Lent only, so that the number stays taken and is no other test's afterwards.
        let lent = Uninherited::from(socket.as_fd());
        assert_ne!(word.load(Ordering::Relaxed) & bit, 0);
        drop(lent);
        assert_eq!(word.load(Ordering::Relaxed) & bit, 0);
    }
}
