//! The carrier between ranks that are threads of one process: a ring of bytes each way.
//!
//! It is the twin that everything above is tested on, and what `thread_world` uses.

mod ring;

use std::sync::Arc;

use self::ring::{Consumer, Producer, ring};
use super::{Lane, LaneError, MIN_WINDOW};
use crate::types::TransportKind;

/// Called, from the peer's thread, when a side that sleeps has something to do.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Bytes of each ring: two segments, so that one can be written while the other is read, and a power of two.
const RING_BYTES: usize = 128 << 10;

/// Bytes that `fill` shows at once: a segment's worth, which stays in the cache.
const WINDOW_BYTES: usize = 64 << 10;

const _: () = assert!(WINDOW_BYTES >= MIN_WINDOW);

/// One end of a pair.
pub struct InprocLane {
    producer: Producer,
    consumer: Consumer,
    /// What `fill` shows: taken out of the ring, because a piece of a ring may have its end at the beginning.
    window: Box<[u8]>,
    start: usize,
    end: usize,
    wake_peer: Wake,
}

/// Two lanes, each the other's peer. `wake_a` is called when the first must wake, `wake_b` for the second.
pub fn pair(wake_a: Wake, wake_b: Wake) -> (InprocLane, InprocLane) {
    let (to_b, from_a) = ring(RING_BYTES);
    let (to_a, from_b) = ring(RING_BYTES);
    (InprocLane::new(to_b, from_b, wake_b), InprocLane::new(to_a, from_a, wake_a))
}

impl InprocLane {
    fn new(producer: Producer, consumer: Consumer, wake_peer: Wake) -> Self {
        Self { producer, consumer, window: vec![0; WINDOW_BYTES].into(), start: 0, end: 0, wake_peer }
    }

    /// Takes up to `count` bytes out of the ring.
    ///
    /// # Safety
    ///
    /// As [`Consumer::read`].
    unsafe fn take(&mut self, target: *mut u8, count: usize) -> usize {
        // SAFETY: the caller's promise.
        let count = unsafe { self.consumer.read(target, count) };
        if count > 0 && self.consumer.publish() {
            (self.wake_peer)();
        }
        count
    }
}

impl Lane for InprocLane {
    fn kind(&self) -> TransportKind {
        TransportKind::Inproc
    }

    fn link(&self) -> Arc<str> {
        "inproc".into()
    }

    fn write(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LaneError> {
        if self.producer.is_closed() {
            return Err(LaneError::Closed);
        }
        let mut count = self.producer.write(head);
        if count == head.len() {
            count += self.producer.write(body);
        }
        if count > 0 && self.producer.publish() {
            (self.wake_peer)();
        }
        Ok(count)
    }

    fn fill(&mut self, wanted: usize) -> Result<&[u8], LaneError> {
        if self.end - self.start < wanted {
            self.window.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            let room = &mut self.window[self.end..];
            let (target, room) = (room.as_mut_ptr(), room.len());
            // SAFETY: the window has that much room there.
            self.end += unsafe { self.take(target, room) };
            if self.end == 0 && self.consumer.is_closed() {
                return Err(LaneError::Closed);
            }
        }
        Ok(&self.window[self.start..self.end])
    }

    fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    unsafe fn read_into(&mut self, target: *mut u8, bytes: usize) -> Result<usize, LaneError> {
        let shown = bytes.min(self.end - self.start);
        if shown > 0 {
            // SAFETY: the caller's promise for the target; the window is ours.
            unsafe { std::ptr::copy_nonoverlapping(self.window[self.start..].as_ptr(), target, shown) };
            self.consume(shown);
        }
        // SAFETY: the caller's promise, for what is left of the target.
        let taken = shown + unsafe { self.take(target.wrapping_add(shown), bytes - shown) };
        if taken == 0 && bytes > 0 && self.consumer.is_closed() {
            return Err(LaneError::Closed);
        }
        Ok(taken)
    }

    fn prepare_sleep(&mut self, wants_write: bool) -> bool {
        self.consumer.prepare_sleep() && (!wants_write || self.producer.prepare_sleep())
    }
}

impl Drop for InprocLane {
    fn drop(&mut self) {
        let reader = self.producer.close();
        let writer = self.consumer.close();
        if reader || writer {
            (self.wake_peer)();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn counter() -> (Arc<AtomicUsize>, Wake) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        (count, Arc::new(move || _ = counted.fetch_add(1, Ordering::SeqCst)))
    }

    #[test]
    fn the_window_shows_what_arrived_and_moves_on() {
        let ((_, wake_a), (_, wake_b)) = (counter(), counter());
        let (mut a, mut b) = pair(wake_a, wake_b);
        assert_eq!(b.fill(1), Ok(&[][..]));
        assert_eq!(a.write(b"head", b"body"), Ok(8));
        assert_eq!(b.fill(1), Ok(&b"headbody"[..]));
        b.consume(6);
        assert_eq!(a.write(b"!", b""), Ok(1));
        assert_eq!(b.fill(3), Ok(&b"dy!"[..]));
        let mut straight = [0; 5];
        assert_eq!(a.write(b"more", b""), Ok(4));
        // SAFETY: the target has five bytes.
        assert_eq!(unsafe { b.read_into(straight.as_mut_ptr(), 5) }, Ok(5));
        assert_eq!(&straight, b"dy!mo");
        drop(a);
        // SAFETY: as above.
        assert_eq!(unsafe { b.read_into(straight.as_mut_ptr(), 5) }, Ok(2));
        // SAFETY: as above.
        assert_eq!(unsafe { b.read_into(straight.as_mut_ptr(), 5) }, Err(LaneError::Closed));
        assert_eq!(b.fill(1), Err(LaneError::Closed));
        assert_eq!(b.write(b"x", b""), Err(LaneError::Closed));
    }

    #[test]
    fn each_side_wakes_the_other() {
        let ((woken_a, wake_a), (woken_b, wake_b)) = (counter(), counter());
        let (mut a, mut b) = pair(wake_a, wake_b);
        let full = vec![1; RING_BYTES];
        assert_eq!(a.write(&full, b"x"), Ok(RING_BYTES));
        assert_eq!(woken_b.load(Ordering::SeqCst), 0, "nobody sleeps");
        assert!(a.prepare_sleep(true));
        assert!(!b.prepare_sleep(false));
        let shown = b.fill(1).unwrap().len();
        assert_eq!(shown, WINDOW_BYTES);
        assert_eq!(woken_a.load(Ordering::SeqCst), 1);
        drop(a);
        assert_eq!(woken_b.load(Ordering::SeqCst), 0);
        assert!(!b.prepare_sleep(false));
    }
}
