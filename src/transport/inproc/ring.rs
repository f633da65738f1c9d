//! A ring of bytes between two threads, one writing and one reading.
//!
//! `tail` counts the bytes ever written and `head` those ever read, so that neither is ever ambiguous; each has one
//! writer. Bytes are written before `tail` is (release) and read after it was (acquire), and the other way round for
//! the room that `head` frees.
//!
//! Whoever is about to sleep says so in a flag and looks once more; whoever moved a position looks at the flag
//! afterwards. A fence on both sides between the two steps makes it impossible that both look too early.

use std::sync::Arc;

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};
#[cfg(not(loom))]
use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};

/// A value on cache lines of its own, so that the two ends do not slow each other down.
#[repr(align(128))]
struct Padded<T>(T);

struct Ring {
    bytes: Box<[UnsafeCell<u8>]>,
    head: Padded<AtomicUsize>,
    tail: Padded<AtomicUsize>,
    reader_waits: Padded<AtomicBool>,
    writer_waits: AtomicBool,
    writer_gone: AtomicBool,
    reader_gone: AtomicBool,
}

// SAFETY: a byte is written only by the one producer while it lies outside `head .. tail`, and read only by the one
// consumer while it lies inside; the positions hand it over with release and acquire.
unsafe impl Sync for Ring {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Ring {}

/// The writing end.
pub(super) struct Producer {
    ring: Arc<Ring>,
    tail: usize,
    /// The reader's position when it was looked at last.
    head_seen: usize,
}

/// The reading end.
pub(super) struct Consumer {
    ring: Arc<Ring>,
    head: usize,
    /// The writer's position when it was looked at last.
    tail_seen: usize,
}

/// A ring of `capacity` bytes, a power of two.
pub(super) fn ring(capacity: usize) -> (Producer, Consumer) {
    debug_assert!(capacity.is_power_of_two());
    let ring = Arc::new(Ring {
        bytes: (0..capacity).map(|_| UnsafeCell::new(0)).collect(),
        head: Padded(AtomicUsize::new(0)),
        tail: Padded(AtomicUsize::new(0)),
        reader_waits: Padded(AtomicBool::new(false)),
        writer_waits: AtomicBool::new(false),
        writer_gone: AtomicBool::new(false),
        reader_gone: AtomicBool::new(false),
    });
    (Producer { ring: ring.clone(), tail: 0, head_seen: 0 }, Consumer { ring, head: 0, tail_seen: 0 })
}

impl Ring {
    /// The piece of the ring that begins at `position`, up to `count` bytes long: where it lies, and how long it is.
    fn piece(&self, position: usize, count: usize) -> (usize, usize) {
        let at = position & (self.bytes.len() - 1);
        (at, count.min(self.bytes.len() - at))
    }

    /// # Safety
    ///
    /// The caller is the producer, and `at .. at + source.len()` lies in the ring and outside `head .. tail`.
    unsafe fn put(&self, at: usize, source: &[u8]) {
        #[cfg(not(loom))]
        {
            let target = self.bytes.as_ptr().wrapping_add(at).cast::<u8>().cast_mut();
            // SAFETY: inside the ring and nobody else's, by the caller's promise; `UnsafeCell<u8>` is laid out as `u8`.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        }
        #[cfg(loom)]
        for (cell, byte) in self.bytes[at..].iter().zip(source) {
            // SAFETY: nobody else's, by the caller's promise, which loom checks.
            cell.with_mut(|cell| unsafe { *cell = *byte });
        }
    }

    /// # Safety
    ///
    /// The caller is the consumer, `at .. at + count` lies in the ring and inside `head .. tail`, and `target` is
    /// writable for `count` bytes.
    unsafe fn take(&self, at: usize, target: *mut u8, count: usize) {
        #[cfg(not(loom))]
        {
            let source = self.bytes.as_ptr().wrapping_add(at).cast::<u8>();
            // SAFETY: inside the ring and not written meanwhile, by the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(source, target, count) };
        }
        #[cfg(loom)]
        for (i, cell) in self.bytes[at..at + count].iter().enumerate() {
            // SAFETY: not written meanwhile, by the caller's promise, which loom checks.
            cell.with(|cell| unsafe { *target.add(i) = *cell });
        }
    }
}

impl Producer {
    /// Puts in as much of `source` as fits, for the reader to see after `publish`. Returns how much that was.
    pub fn write(&mut self, source: &[u8]) -> usize {
        let capacity = self.ring.bytes.len();
        let mut room = capacity - self.tail.wrapping_sub(self.head_seen);
        if room < source.len() {
            self.head_seen = self.ring.head.0.load(Ordering::Acquire);
            room = capacity - self.tail.wrapping_sub(self.head_seen);
        }
        let (fitting, _) = source.split_at(room.min(source.len()));
        let mut rest = fitting;
        while !rest.is_empty() {
            let (at, length) = self.ring.piece(self.tail, rest.len());
            let (now, later) = rest.split_at(length);
            // SAFETY: there are `rest.len()` bytes of room after `tail`, and `piece` stays inside the ring.
            unsafe { self.ring.put(at, now) };
            self.tail = self.tail.wrapping_add(length);
            rest = later;
        }
        fitting.len()
    }

    /// Shows the reader what was written. Returns whether it sleeps and must be woken.
    pub fn publish(&mut self) -> bool {
        self.ring.tail.0.store(self.tail, Ordering::Release);
        self.reader_must_wake()
    }

    fn reader_must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.ring.reader_waits.0.load(Ordering::Relaxed) && self.ring.reader_waits.0.swap(false, Ordering::AcqRel)
    }

    /// Whether the reader is gone.
    pub fn is_closed(&self) -> bool {
        self.ring.reader_gone.load(Ordering::Acquire)
    }

    /// Says that room is waited for. False if there is some, or never will be.
    pub fn prepare_sleep(&mut self) -> bool {
        self.ring.writer_waits.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.head_seen = self.ring.head.0.load(Ordering::Acquire);
        let full = self.tail.wrapping_sub(self.head_seen) == self.ring.bytes.len();
        if full && !self.is_closed() {
            return true;
        }
        self.ring.writer_waits.store(false, Ordering::Relaxed);
        false
    }

    /// Says that nothing more will come. Returns whether the reader must be woken.
    pub fn close(&mut self) -> bool {
        self.ring.writer_gone.store(true, Ordering::Release);
        self.reader_must_wake()
    }
}

impl Consumer {
    /// Takes up to `count` bytes out, for the writer to see after `publish`. Returns how many.
    ///
    /// # Safety
    ///
    /// `target` must be writable for `count` bytes, and read or written by nobody else.
    pub unsafe fn read(&mut self, target: *mut u8, count: usize) -> usize {
        if self.tail_seen.wrapping_sub(self.head) < count {
            self.tail_seen = self.ring.tail.0.load(Ordering::Acquire);
        }
        let count = count.min(self.tail_seen.wrapping_sub(self.head));
        let mut done = 0;
        while done < count {
            let (at, length) = self.ring.piece(self.head, count - done);
            // SAFETY: `count` bytes after `head` are before `tail`; `piece` stays inside the ring; the target has room.
            unsafe { self.ring.take(at, target.add(done), length) };
            self.head = self.head.wrapping_add(length);
            done += length;
        }
        count
    }

    /// Shows the writer the room that was made. Returns whether it sleeps and must be woken.
    pub fn publish(&mut self) -> bool {
        self.ring.head.0.store(self.head, Ordering::Release);
        self.writer_must_wake()
    }

    fn writer_must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.ring.writer_waits.load(Ordering::Relaxed) && self.ring.writer_waits.swap(false, Ordering::AcqRel)
    }

    /// Whether the writer is gone and everything it wrote has been read.
    pub fn is_closed(&mut self) -> bool {
        // In this order: what was written before the writer went is then seen.
        let gone = self.ring.writer_gone.load(Ordering::Acquire);
        self.tail_seen = self.ring.tail.0.load(Ordering::Acquire);
        gone && self.tail_seen == self.head
    }

    /// Says that bytes are waited for. False if there are some, or never will be.
    pub fn prepare_sleep(&mut self) -> bool {
        self.ring.reader_waits.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let gone = self.ring.writer_gone.load(Ordering::Acquire);
        self.tail_seen = self.ring.tail.0.load(Ordering::Acquire);
        if self.tail_seen == self.head && !gone {
            return true;
        }
        self.ring.reader_waits.0.store(false, Ordering::Relaxed);
        false
    }

    /// Says that nothing more will be read. Returns whether the writer must be woken.
    pub fn close(&mut self) -> bool {
        self.ring.reader_gone.store(true, Ordering::Release);
        self.writer_must_wake()
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn read(consumer: &mut Consumer, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        // SAFETY: the buffer has `count` bytes.
        let count = unsafe { consumer.read(bytes.as_mut_ptr(), count) };
        consumer.publish();
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn bytes_go_round_in_order_and_the_ring_fills() {
        let (mut producer, mut consumer) = ring(8);
        let mut expected = 0;
        for start in (0..200_u8).step_by(5) {
            let five: Vec<u8> = (start..start + 5).collect();
            assert_eq!(producer.write(&five), 5);
            producer.publish();
            for byte in read(&mut consumer, 7) {
                assert_eq!(byte, expected);
                expected += 1;
            }
        }
        assert_eq!(expected, 200);
        assert_eq!(producer.write(&[7; 20]), 8);
        assert_eq!(producer.write(&[7]), 0);
        producer.publish();
        assert_eq!(read(&mut consumer, 20).len(), 8);
    }

    #[test]
    fn what_was_written_before_closing_is_read() {
        let (mut producer, mut consumer) = ring(8);
        producer.write(b"last");
        producer.publish();
        producer.close();
        assert!(!consumer.is_closed());
        assert_eq!(read(&mut consumer, 8), b"last");
        assert!(consumer.is_closed());
        assert!(!producer.is_closed());
        consumer.close();
        assert!(producer.is_closed());
    }

    #[test]
    fn only_who_waits_is_woken_and_once() {
        let (mut producer, mut consumer) = ring(4);
        producer.write(b"a");
        assert!(!producer.publish());
        assert!(!consumer.prepare_sleep());
        read(&mut consumer, 1);
        assert!(consumer.prepare_sleep());
        producer.write(b"b");
        assert!(producer.publish());
        producer.write(b"cde");
        assert!(!producer.publish());
        assert!(producer.prepare_sleep());
        assert_eq!(read(&mut consumer, 2), b"bc");
        assert!(!producer.prepare_sleep());
    }
}
