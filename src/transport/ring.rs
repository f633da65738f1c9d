//! The counters of a ring of bytes with one writer and one reader, who may be two processes.
//!
//! `head` counts the bytes ever written, `tail` the bytes ever read. Each is written by one side alone and only grows;
//! 64 bits do not overflow in the life of a machine. The bytes `tail .. head`, modulo the size, are the reader's, the
//! rest are the writer's. The writer fills bytes and then publishes `head` with release; the reader acquires it and
//! then reads the bytes. The same with `tail` the other way round.
//!
//! Each side keeps its own counter, and the last seen value of the other's, to itself, so that a cache line travels
//! only when there is news. What the other side wrote is believed only if it is possible: a counter that falls, or
//! that leaves the ring, breaks the link and never the bounds of an access.

use std::sync::atomic::Ordering;

use super::atomic::Counter;

/// The other side's counter holds a value that no sound peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Impossible {
    pub(super) counter: &'static str,
    pub(super) found: u64,
    pub(super) low: u64,
    pub(super) high: u64,
}

impl std::fmt::Display for Impossible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { counter, found, low, high } = self;
        write!(f, "the peer's {counter} counter is {found}; it can only be {low} to {high}")
    }
}

/// Reads the other side's counter, which must lie in `low ..= high`.
fn read(counter: &impl Counter, name: &'static str, low: u64, high: u64) -> Result<u64, Impossible> {
    let found = counter.load(Ordering::Acquire);
    if found < low || found > high {
        return Err(Impossible { counter: name, found, low, high });
    }
    Ok(found)
}

/// The writer's side.
#[derive(Debug)]
pub(super) struct Writer {
    size: u64,
    head: u64,
    tail_seen: u64,
}

impl Writer {
    /// Of a new ring of `size` bytes, a power of two.
    pub(super) fn new(size: usize) -> Self {
        debug_assert!(size.is_power_of_two());
        Self { size: size as u64, head: 0, tail_seen: 0 }
    }

    /// How many bytes may be written now. Looks at the reader's counter only when fewer than `wanted` were known.
    pub(super) fn room(&mut self, wanted: usize, tail: &impl Counter) -> Result<usize, Impossible> {
        if self.known_room() < wanted {
            self.tail_seen = read(tail, "tail", self.tail_seen, self.head)?;
        }
        Ok(self.known_room())
    }

    fn known_room(&self) -> usize {
        (self.size - (self.head - self.tail_seen)) as usize
    }

    /// Where the next byte goes.
    pub(super) fn position(&self) -> usize {
        (self.head & (self.size - 1)) as usize
    }

    /// Gives the next `count` bytes, which have been written, to the reader.
    pub(super) fn publish(&mut self, count: usize, head: &impl Counter) {
        debug_assert!(count <= self.known_room());
        self.head += count as u64;
        head.store(self.head, Ordering::Release);
    }
}

/// The reader's side.
#[derive(Debug)]
pub(super) struct Reader {
    size: u64,
    tail: u64,
    published: u64,
    head_seen: u64,
}

impl Reader {
    /// Of a new ring of `size` bytes, a power of two.
    pub(super) fn new(size: usize) -> Self {
        debug_assert!(size.is_power_of_two());
        Self { size: size as u64, tail: 0, published: 0, head_seen: 0 }
    }

    /// How many bytes may be read now. Looks at the writer's counter only when fewer than `wanted` were known.
    pub(super) fn available(&mut self, wanted: usize, head: &impl Counter) -> Result<usize, Impossible> {
        if self.known() < wanted {
            self.look(head)?;
        }
        Ok(self.known())
    }

    /// Looks at the writer's counter; whether there is news.
    pub(super) fn look(&mut self, head: &impl Counter) -> Result<bool, Impossible> {
        let before = self.head_seen;
        // The writer knows only of the published tail, and so cannot be further than a ring's size from that.
        self.head_seen = read(head, "head", before, self.published + self.size)?;
        Ok(self.head_seen != before)
    }

    /// How many bytes were seen and not taken.
    pub(super) fn known(&self) -> usize {
        (self.head_seen - self.tail) as usize
    }

    /// Where the next byte is.
    pub(super) fn position(&self) -> usize {
        (self.tail & (self.size - 1)) as usize
    }

    /// Takes `count` bytes, and gives their room back to the writer once an eighth of the ring has come together:
    /// often enough that the writer never runs dry, seldom enough that small messages do not pay for it. Returns
    /// whether it gave back.
    ///
    /// Nobody can wait for what is held back: a writer without room faces a reader with at least seven eighths of a
    /// ring to read, which will give back when it does.
    pub(super) fn take(&mut self, count: usize, tail: &impl Counter) -> bool {
        debug_assert!(count <= self.known());
        self.tail += (count as u64).min(self.head_seen - self.tail);
        let due = self.tail - self.published >= (self.size / 8).max(1);
        if due {
            self.give_back(tail);
        }
        due
    }

    fn give_back(&mut self, tail: &impl Counter) {
        self.published = self.tail;
        tail.store(self.tail, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn impossible_counters_are_told() {
        let (head, tail) = (AtomicU64::new(0), AtomicU64::new(0));
        let (mut writer, mut reader) = (Writer::new(16), Reader::new(16));
        writer.publish(10, &head);
        assert_eq!(reader.available(1, &head), Ok(10));
        head.store(9, Ordering::Relaxed);
        assert_eq!(
            reader.available(11, &head).unwrap_err().to_string(),
            "the peer's head counter is 9; it can only be 10 to 16"
        );
        head.store(17, Ordering::Relaxed);
        assert!(reader.available(11, &head).is_err());
        head.store(u64::MAX, Ordering::Relaxed);
        assert!(reader.look(&head).is_err());
        tail.store(11, Ordering::Relaxed);
        assert!(writer.room(16, &tail).is_err(), "more read than was written");
        tail.store(u64::MAX, Ordering::Relaxed);
        assert!(writer.room(16, &tail).is_err());
        assert_eq!(writer.room(6, &tail), Ok(6), "what is known needs no look");
    }

    proptest! {
        /// Against a queue, with every interleaving of the operations that a seed draws.
        #[test]
        fn behaves_like_a_queue(steps in prop::collection::vec((any::<bool>(), 1usize..40), 1..200)) {
            const SIZE: usize = 32;
            let (head, tail) = (AtomicU64::new(0), AtomicU64::new(0));
            let (mut writer, mut reader) = (Writer::new(SIZE), Reader::new(SIZE));
            let (mut cells, mut queue, mut next) = ([0u8; SIZE], VecDeque::new(), 0u8);
            for (write, count) in steps {
                if write {
                    let room = writer.room(count, &tail).unwrap();
                    prop_assert!(room <= SIZE - queue.len());
                    let count = count.min(room);
                    for index in 0..count {
                        cells[(writer.position() + index) % SIZE] = next;
                        queue.push_back(next);
                        next = next.wrapping_add(1);
                    }
                    writer.publish(count, &head);
                } else {
                    let available = reader.available(count, &head).unwrap();
                    prop_assert!(available <= queue.len());
                    prop_assert!(available >= count.min(queue.len()));
                    let count = count.min(available);
                    for index in 0..count {
                        prop_assert_eq!(Some(cells[(reader.position() + index) % SIZE]), queue.pop_front());
                    }
                    reader.take(count, &tail);
                }
                prop_assert!(!(queue.is_empty() && writer.room(1, &tail).unwrap() == 0), "both sides are stuck");
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    const SIZE: usize = 2;

    struct Shared {
        head: AtomicU64,
        tail: AtomicU64,
        cells: Vec<UnsafeCell<u8>>,
    }

    // SAFETY: the cells are handed to and fro by the counters; loom reports any access that races.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    /// More bytes than fit go round; loom checks that no cell is read and written at once, and the reader that they
    /// come in order.
    #[test]
    fn loom_bytes_cross_in_order_and_without_races() {
        const BYTES: u8 = 4;
        loom::model(|| {
            let shared = Arc::new(Shared {
                head: AtomicU64::new(0),
                tail: AtomicU64::new(0),
                cells: (0..SIZE).map(|_| UnsafeCell::new(0)).collect(),
            });
            let theirs = shared.clone();
            let thread = thread::spawn(move || {
                let mut writer = Writer::new(SIZE);
                let mut next = 0;
                while next < BYTES {
                    if writer.room(1, &theirs.tail).unwrap() == 0 {
                        thread::yield_now();
                        continue;
                    }
                    theirs.cells[writer.position()].with_mut(|cell| {
                        // SAFETY: the cell is the writer's until it publishes.
                        unsafe { *cell = next };
                    });
                    writer.publish(1, &theirs.head);
                    next += 1;
                }
            });
            let mut reader = Reader::new(SIZE);
            let mut next = 0;
            while next < BYTES {
                let available = reader.available(1, &shared.head).unwrap();
                if available == 0 {
                    thread::yield_now();
                    continue;
                }
                // SAFETY: the cell is the reader's until it is taken.
                let found = shared.cells[reader.position()].with(|cell| unsafe { *cell });
                assert_eq!(found, next);
                reader.take(1, &shared.tail);
                next += 1;
            }
            thread.join().unwrap();
        });
    }
}
