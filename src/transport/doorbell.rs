//! The doorbell: one word of shared memory that says whether its owner sleeps, and how to wake it.
//!
//! # The handshake of sleeping and ringing
//!
//! The owner, before it sleeps, marks the word (`arm`), passes a full fence, and then looks whether there is anything
//! to do. A peer that has made something to do passes a full fence and then looks at the word (`ring`). Of two fences
//! one comes first: either the owner sees what the peer did, or the peer sees that the owner sleeps. So no wake-up is
//! lost, and a peer of an owner that is awake pays a fence and a load, no system call and no write.
//!
//! A ring leaves its mark until the owner has seen it: between `arm` and the sleep itself the word turns to `RUNG`, and
//! `enter` refuses to sleep.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use super::atomic::Word;
use crate::sys::{self, EventFd, Mapping, Segment, futex};

/// The owner is awake.
const AWAKE: u32 = 0;
/// Someone rang or kicked; the owner has not noticed yet. Any unknown value, which only a broken peer can write, counts
/// as this: waking too often does no harm.
const RUNG: u32 = 1;
/// The owner sleeps, or is about to, on the word itself.
const ON_WORD: u32 = 2;
/// The owner sleeps, or is about to, on descriptors, its event descriptor among them.
const ON_EVENT: u32 = 3;

/// How an owner sleeps, and so how it is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alarm {
    /// On the word.
    Word,
    /// On the event descriptor.
    Event,
}

impl Alarm {
    fn code(self) -> u32 {
        match self {
            Alarm::Word => ON_WORD,
            Alarm::Event => ON_EVENT,
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        match code {
            ON_WORD => Some(Alarm::Word),
            ON_EVENT => Some(Alarm::Event),
            _ => None,
        }
    }

    /// What the word holds while its owner sleeps like this.
    pub(super) fn expected(self) -> u32 {
        self.code()
    }
}

/// Owner: marks that it is about to sleep. What it looks at after this call, no peer can change without ringing.
pub(super) fn arm<W: Word>(word: &W, alarm: Alarm) {
    if word.load(Ordering::Relaxed) == AWAKE {
        // Fails only when someone rings now, whose mark must stay.
        word.replace(AWAKE, alarm.code());
    }
    W::full_fence();
}

/// Owner: marks that it sleeps now. Returns false, and marks that it is awake, if someone has rung.
pub(super) fn enter<W: Word>(word: &W, alarm: Alarm) -> bool {
    loop {
        let seen = word.load(Ordering::Relaxed);
        if seen != AWAKE && Alarm::from_code(seen).is_none() {
            leave(word);
            return false;
        }
        if word.replace(seen, alarm.code()) {
            return true;
        }
    }
}

/// Owner: marks that it is awake. Returns whether someone has rung.
pub(super) fn leave<W: Word>(word: &W) -> bool {
    let seen = word.swap(AWAKE, Ordering::AcqRel);
    seen != AWAKE && Alarm::from_code(seen).is_none()
}

/// Peer: after making something to do. Returns how the owner is to be woken, if it is to be.
pub(super) fn ring<W: Word>(word: &W) -> Option<Alarm> {
    W::full_fence();
    ring_after_fence(word)
}

/// As [`ring`], by one who has passed the full fence: of several peers' doorbells one after the other.
fn ring_after_fence<W: Word>(word: &W) -> Option<Alarm> {
    loop {
        let seen = word.load(Ordering::Relaxed);
        let alarm = Alarm::from_code(seen)?;
        // Fails when another has rung, or when the owner has changed how it sleeps: look again.
        if word.replace(seen, RUNG) {
            return Some(alarm);
        }
    }
}

/// Anyone: makes the sleep of now, or the next one, end. Returns how the owner is to be woken, if it is to be.
pub(super) fn kick<W: Word>(word: &W) -> Option<Alarm> {
    Alarm::from_code(word.swap(RUNG, Ordering::AcqRel))
}

/// The word and the event descriptor of one doorbell, as its owner has them or as a peer does.
#[derive(Debug)]
pub(super) struct Doorbell {
    page: Mapping,
    event: EventFd,
}

impl Doorbell {
    /// A new one and the segment that holds its word, for the owner.
    pub(super) fn create() -> io::Result<(Self, Segment)> {
        let segment = Segment::create("phalanx-doorbell", sys::page_bytes())?;
        let page = Mapping::new(&segment, 0, segment.bytes())?;
        Ok((Self { page, event: EventFd::new()? }, segment))
    }

    /// A peer's, from the descriptors it sent.
    pub(super) fn from_peer(segment: OwnedFd, event: OwnedFd) -> io::Result<Self> {
        let segment = Segment::from_peer(segment, sys::page_bytes())?;
        let page = Mapping::new(&segment, 0, segment.bytes())?;
        Ok(Self { page, event: EventFd::from_peer(event)? })
    }

    pub(super) fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped as long as `self`, its start is aligned for a word, and every process uses these
        // four bytes only as an atomic.
        unsafe { self.page.start().cast::<AtomicU32>().as_ref() }
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Peer: rings if the owner sleeps.
    pub(super) fn ring(&self) {
        if let Some(alarm) = ring(self.word()) {
            self.wake(alarm);
        }
    }

    /// Owner: see [`kick`].
    pub(super) fn kick(&self) {
        if let Some(alarm) = kick(self.word()) {
            self.wake(alarm);
        }
    }

    /// As [`ring`](Self::ring), after a full fence of the caller's.
    pub(super) fn ring_after_fence(&self) {
        if let Some(alarm) = ring_after_fence(self.word()) {
            self.wake(alarm);
        }
    }

    fn wake(&self, alarm: Alarm) {
        // Neither fails on what it is meant for. A peer that sent some other descriptor stays asleep until its own
        // timeout, and harms nobody else.
        let _ = match alarm {
            Alarm::Word => futex::wake_all(self.word()).map(|_| ()),
            Alarm::Event => self.event.signal(),
        };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_rings_when() {
        let word = AtomicU32::new(AWAKE);
        assert_eq!(ring(&word), None, "the owner is awake");
        assert_eq!(word.load(Ordering::Relaxed), AWAKE, "ringing an owner that is awake writes nothing");
        arm(&word, Alarm::Word);
        assert_eq!(ring(&word), Some(Alarm::Word));
        assert_eq!(ring(&word), None, "one ring is enough");
        assert!(!enter(&word, Alarm::Event), "rung between arming and sleeping");
        assert!(enter(&word, Alarm::Event));
        assert_eq!(ring(&word), Some(Alarm::Event));
        assert!(leave(&word));
        assert!(!leave(&word));
    }

    #[test]
    fn a_kick_is_remembered() {
        let word = AtomicU32::new(AWAKE);
        assert_eq!(kick(&word), None);
        arm(&word, Alarm::Word);
        assert!(!enter(&word, Alarm::Word));
        assert!(enter(&word, Alarm::Word));
        assert_eq!(kick(&word), Some(Alarm::Word));
    }

    #[test]
    fn nonsense_from_a_peer_wakes() {
        let word = AtomicU32::new(0xdead_beef);
        assert_eq!(ring(&word), None);
        assert!(!enter(&word, Alarm::Word));
        assert!(enter(&word, Alarm::Word));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use loom::sync::atomic::{AtomicU32, AtomicU64};
    use loom::sync::{Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// A futex, as the kernel has it: looking at the word and falling asleep are one step under the bucket's lock.
    struct Futex {
        bucket: Mutex<()>,
        sleepers: Condvar,
    }

    impl Futex {
        fn new() -> Self {
            Self { bucket: Mutex::new(()), sleepers: Condvar::new() }
        }

        fn wait(&self, word: &AtomicU32, expected: u32) {
            let guard = self.bucket.lock().unwrap();
            if word.load(Ordering::SeqCst) == expected {
                drop(self.sleepers.wait(guard).unwrap());
            }
        }

        fn wake(&self) {
            drop(self.bucket.lock().unwrap());
            self.sleepers.notify_all();
        }
    }

    /// The owner sleeps until both peers have done their work; a lost wake-up would be a deadlock, which loom reports.
    fn owner_sees_the_work_of(peers: usize, with_kick: bool) {
        loom::model(move || {
            let word = Arc::new(AtomicU32::new(AWAKE));
            let futex = Arc::new(Futex::new());
            let done: Arc<Vec<AtomicU64>> = Arc::new((0..peers).map(|_| AtomicU64::new(0)).collect());
            let threads: Vec<_> = (0..peers)
                .map(|peer| {
                    let (word, futex, done) = (word.clone(), futex.clone(), done.clone());
                    thread::spawn(move || {
                        done[peer].store(1, Ordering::Release);
                        let alarm = if with_kick { kick(&*word) } else { ring(&*word) };
                        if alarm.is_some() {
                            futex.wake();
                        }
                    })
                })
                .collect();
            let everything = || done.iter().all(|work| work.load(Ordering::Acquire) == 1);
            while !everything() {
                arm(&*word, Alarm::Word);
                if everything() {
                    break;
                }
                if enter(&*word, Alarm::Word) {
                    futex.wait(&word, Alarm::Word.expected());
                    leave(&*word);
                }
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_no_ring_is_lost() {
        owner_sees_the_work_of(1, false);
    }

    #[test]
    fn loom_no_ring_of_two_is_lost() {
        owner_sees_the_work_of(2, false);
    }

    #[test]
    fn loom_no_kick_is_lost() {
        owner_sees_the_work_of(1, true);
    }
}
