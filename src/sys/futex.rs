//! Sleeping on a word of shared memory.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};

/// Sleeps while `word` holds `expected`, at most `timeout`. Returns early on a wake, on a signal, or for no reason:
/// the caller looks at the word again.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) -> io::Result<()> {
    match futex::wait(word, Flags::empty(), expected, Some(&super::epoll::timespec(timeout))) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Wakes all who sleep on `word`, in whatever process.
pub fn wake_all(word: &AtomicU32) -> io::Result<usize> {
    Ok(futex::wake(word, Flags::empty(), i32::MAX as u32)?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn another_value_does_not_sleep() {
        let word = AtomicU32::new(1);
        wait(&word, 0, Duration::from_secs(3600)).unwrap();
    }

    #[test]
    fn a_wake_ends_the_sleep() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    wait(&word, 0, Duration::from_secs(3600)).unwrap();
                }
            });
            word.store(1, Ordering::Release);
            wake_all(&word).unwrap();
        });
    }
}
