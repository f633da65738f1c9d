//! In which order the words of a board, and the memory that they tell of, are written and read.
//!
//! Everything that ranks rely on without a lock is here, apart from where the words lie, so that the model checker runs
//! it too. There are two patterns.
//!
//! - **Publishing.** A number that only grows is written with release after what it counts, and read with acquire before.
//! - **Taking back.** The owner of memory that others read does not wait for them when it gives a call up, or when it takes
//!   its part for another communicator: it changes a mark, passes a release fence, and writes on. A reader passes an
//!   acquire fence *after* it has read, and then looks at the mark. If anything that it read was written after the fence
//!   of the owner, it sees the mark, and does not believe what it read.
//!
//! The bytes in question are copied by plain instructions, or by the kernel on the reader's behalf, while their owner may
//! write them. What comes of that is used for nothing before the look at the mark; in the models they are relaxed atomics,
//! which is what a processor makes of them.

use std::sync::atomic::Ordering;

use crate::transport::atomic::Counter;

/// Writes a number that only grows, and that says that what it counts is there.
pub(super) fn publish<C: Counter>(counter: &C, number: u64) {
    counter.store(number, Ordering::Release);
}

/// Whether what such a number counts is there. If so, what was written before it is seen.
pub(super) fn has_reached<C: Counter>(counter: &C, number: u64) -> bool {
    counter.load(Ordering::Acquire) >= number
}

/// Writes the words of a line, before it is published.
pub(super) fn tell<C: Counter, const N: usize>(words: [&C; N], values: [u64; N]) {
    words.into_iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
}

/// The words of a line that was seen.
pub(super) fn told<C: Counter, const N: usize>(words: [&C; N]) -> [u64; N] {
    words.map(|word| word.load(Ordering::Relaxed))
}

/// Whether a line is written, and was not taken back.
pub(super) fn shows<C: Counter>(line: &C, given_up: &C, number: u64) -> bool {
    has_reached(line, number) && given_up.load(Ordering::Relaxed) > number
}

/// Owner: takes a line and all after it back, before it writes the memory that they tell of.
pub(super) fn take_back<C: Counter>(given_up: &C, line: u64) {
    let first = given_up.load(Ordering::Relaxed).min(line);
    given_up.store(first, Ordering::Relaxed);
    C::fence(Ordering::Release);
}

/// Reader: whether what was read up to now of the memory of a line was what its owner showed.
pub(super) fn still_shows<C: Counter>(line: &C, given_up: &C, number: u64) -> bool {
    C::fence(Ordering::Acquire);
    shows(line, given_up, number)
}

/// Owner: begins a new epoch, before anything of it is written.
pub(super) fn begin<C: Counter>(epoch: &C, number: u64) {
    epoch.store(number, Ordering::Relaxed);
    C::fence(Ordering::Release);
}

/// Reader: whether what was read up to now was of this epoch.
pub(super) fn is_still<C: Counter>(epoch: &C, number: u64) -> bool {
    C::fence(Ordering::Acquire);
    epoch.load(Ordering::Relaxed) == number
}

#[cfg(all(test, loom))]
#[path = "loom_tests.rs"]
mod loom_tests;
