//! Reading the memory of other processes of this host where it is, by one copy, which the kernel makes
//! (`process_vm_readv(2)`, what MPI libraries call CMA).
//!
//! Whoever may read it tells who he is by a *witness*: the number of its process, and a random word that lies there. A
//! reader has the witness read along with everything else. So a number that means another process here, because it is of
//! another namespace of processes or was given away after a death, is found out, and what it brought counts for nothing.
//!
//! The kernel allows it between processes of one user, unless a policy of the machine or container forbids it: the first
//! look at the witness tells.

use std::io;

use crate::sys::process;

/// What shows that memory is this process's.
#[derive(Debug)]
pub(crate) struct Witness(Box<u64>);

impl Witness {
    pub(super) fn new() -> io::Result<Self> {
        let mut word = [0; 8];
        getrandom::fill(&mut word).map_err(io::Error::other)?;
        process::allow_reading_by_siblings();
        Ok(Self(Box::new(u64::from_ne_bytes(word))))
    }

    /// What others must know: the process, where the word lies, and the word.
    pub(crate) fn told(&self) -> [u64; 3] {
        [u64::from(std::process::id()), &raw const *self.0 as u64, *self.0]
    }
}

/// The memory of another process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreign {
    process: i32,
    witness: u64,
    word: u64,
}

/// Why memory was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The process is not there any more.
    Gone,
    /// It is, and its memory is not, or is not to be read.
    Refused,
}

impl Foreign {
    /// The memory of the process that told this, if it can be read.
    pub(crate) fn meet(told: [u64; 3]) -> Option<Self> {
        let [process, witness, word] = told;
        let process = i32::try_from(process).ok().filter(|process| *process > 0)?;
        let found = Self { process, witness, word };
        // SAFETY: nothing is read but the witness.
        unsafe { found.read(0, std::ptr::null_mut(), 0) }.ok().map(|()| found)
    }

    /// This process's own memory.
    pub(crate) fn own(witness: &Witness) -> Option<Self> {
        Self::meet(witness.told())
    }

    /// Copies `bytes` from `address` there to `target`. When that fails, `target` may be written all the same. One system
    /// call.
    ///
    /// # Safety
    ///
    /// `target` can be written for so many bytes, and nobody else looks at them.
    pub(crate) unsafe fn read(&self, address: u64, target: *mut u8, bytes: usize) -> Result<(), Unread> {
        let mut word = 0_u64;
        let from = [(address, bytes), (self.witness, size_of::<u64>())];
        let to = [(target, bytes), ((&raw mut word).cast(), size_of::<u64>())];
        // SAFETY: the caller's promise, and a word of this frame.
        match unsafe { process::read_memory(self.process, from, to) } {
            Ok(read) if read == bytes + size_of::<u64>() => {
                if word == self.word {
                    Ok(())
                } else {
                    Err(Unread::Gone)
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(Unread::Gone),
            // A page that is not there ends it early.
            Ok(_) | Err(_) => Err(Unread::Refused),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn own() -> (Witness, Foreign) {
        let witness = Witness::new().unwrap();
        let foreign = Foreign::own(&witness).expect("a process may read its own memory");
        (witness, foreign)
    }

    #[test]
    fn memory_is_read_where_it_is() {
        let (_witness, foreign) = own();
        let source: Vec<u8> = (0..100_000_u32).map(|byte| (byte % 251) as u8).collect();
        let mut target = vec![0; 70_000];
        // SAFETY: the target has so many bytes.
        let read = unsafe { foreign.read(source[3..].as_ptr() as u64, target.as_mut_ptr(), target.len()) };
        assert_eq!((read, &target[..]), (Ok(()), &source[3..70_003]));
    }

    #[test]
    fn memory_that_is_not_there_is_refused() {
        let (_witness, foreign) = own();
        let mut target = [0; 64];
        // SAFETY: the target has so many bytes.
        let read = unsafe { foreign.read(8, target.as_mut_ptr(), target.len()) };
        assert_eq!(read, Err(Unread::Refused));
    }

    #[test]
    fn another_process_under_the_same_number_is_found_out() {
        let (witness, foreign) = own();
        let (source, mut target) = ([7; 64], [0; 64]);
        let [process, place, word] = witness.told();
        assert!(Foreign::meet([process, place, word ^ 1]).is_none(), "another word lies there");
        assert!(Foreign::meet([process, 8, word]).is_none(), "nothing lies there");
        assert!(Foreign::meet([0, place, word]).is_none(), "no process has this number");
        assert!(Foreign::meet([u64::MAX, place, word]).is_none(), "nor this");
        let other = Foreign { word: word ^ 1, ..foreign };
        // SAFETY: the target has so many bytes.
        let read = unsafe { other.read(source.as_ptr() as u64, target.as_mut_ptr(), target.len()) };
        assert_eq!(read, Err(Unread::Gone));
        let gone = Foreign { process: i32::MAX, ..foreign };
        // SAFETY: the target has so many bytes.
        let read = unsafe { gone.read(source.as_ptr() as u64, target.as_mut_ptr(), target.len()) };
        assert_eq!(read, Err(Unread::Gone));
    }
}
