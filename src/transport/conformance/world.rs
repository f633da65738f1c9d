//! Two endpoints, the memory of their messages, and somebody who drives them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::transport::heap::{Heap, Lease};
use crate::transport::{Accumulate, Endpoint, Event, Notice, Receive, RecvRequest, SendRequest, Token};
use crate::types::{
    Algorithm, Collective, CommunicatorId, DataType, Finish, Order, ReduceOp, Reduction, Signature, Tag, TransportKind,
};

/// How long anything here may take before the test is given up.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A generator of numbers that look random and are the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last + 1));
        }
    }
}

pub fn tag(sequence: u64) -> Tag {
    Tag { communicator: CommunicatorId(7), sequence }
}

/// The call that messages of `bytes` bytes belong to here.
pub fn signature(bytes: usize) -> Signature {
    Signature {
        collective: Collective::Allreduce,
        dtype: DataType::U8,
        op: Some(ReduceOp::Sum),
        algorithm: Algorithm::Ring,
        root: None,
        count: bytes as u64,
        digest: 1,
    }
}

const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;

/// Memory for a message, at an odd address if wanted, between guard zones.
///
/// It is kept by its address, so that looking at one part of it says nothing about the others.
pub struct Memory {
    bytes: *mut [u8],
    start: usize,
    length: usize,
    /// The bytes are of this buffer of a heap, not of a box.
    lease: Option<Lease>,
}

// SAFETY: it owns its bytes.
unsafe impl Send for Memory {}

impl Memory {
    pub fn new(length: usize, misalignment: usize) -> Self {
        let mut bytes = vec![GUARD_BYTE; length + 2 * GUARD + 64].into_boxed_slice();
        let aligned = bytes.as_ptr().align_offset(64);
        let start = (aligned + misalignment) % 64 + GUARD;
        bytes[start..start + length].fill(0);
        Self { bytes: Box::into_raw(bytes), start, length, lease: None }
    }

    /// The same, at as odd an address, in a heap: what `comm.alloc` gives.
    pub fn moved_to(self, heap: &Arc<Heap>) -> Self {
        let lease = heap.take(self.bytes.len()).unwrap();
        let start = self.begin().addr() % 64 + GUARD;
        assert!(start + self.length + GUARD <= self.bytes.len());
        let bytes = std::ptr::slice_from_raw_parts_mut(lease.start(), self.bytes.len());
        // SAFETY: a lease of so many bytes, which nobody else has.
        let all = unsafe { &mut *bytes };
        all.fill(GUARD_BYTE);
        all[start..start + self.length].copy_from_slice(self.slice());
        Self { bytes, start, length: self.length, lease: Some(lease) }
    }

    /// Filled with what only `seed` gives.
    pub fn filled(length: usize, misalignment: usize, seed: u64) -> Self {
        let mut memory = Self::new(length, misalignment);
        let mut random = Random(seed);
        for piece in memory.slice_mut().chunks_mut(8) {
            let word = random.next().to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
        memory
    }

    fn begin(&self) -> *mut u8 {
        self.bytes.cast::<u8>().wrapping_add(self.start)
    }

    /// The message. Whoever asks knows that no request of the peer's still writes to it.
    pub fn slice(&self) -> &[u8] {
        // SAFETY: inside the allocation, which lives as long as this.
        unsafe { std::slice::from_raw_parts(self.begin(), self.length) }
    }

    pub fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.begin(), self.length) }
    }

    /// A pointer to the message. Null for an empty one, as callers may pass.
    pub fn pointer(&mut self) -> *mut u8 {
        if self.length == 0 { std::ptr::null_mut() } else { self.begin() }
    }

    /// Fails the test if anything around the message was written.
    pub fn check_guards(&self) {
        let end = self.start + self.length;
        for (from, count) in [(0, self.start), (end, self.bytes.len() - end)] {
            // SAFETY: inside the allocation, and not the message.
            let around = unsafe { std::slice::from_raw_parts(self.bytes.cast::<u8>().wrapping_add(from), count) };
            assert!(around.iter().all(|&byte| byte == GUARD_BYTE), "bytes around a message were written");
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.lease.is_none() {
            // SAFETY: it came from a box, and nobody has it any more.
            drop(unsafe { Box::from_raw(self.bytes) });
        }
    }
}

/// One endpoint, everything posted on it, and everything it said.
pub struct Side {
    pub endpoint: Box<dyn Endpoint>,
    pub sleep: Box<dyn FnMut(Duration) + Send>,
    /// The memory of posted requests, by token.
    pub memory: HashMap<u64, Memory>,
    /// What was said and not yet asked for.
    pub events: Vec<Event>,
    /// Where the memory of requests is moved to before they are posted.
    heap: Option<Arc<Heap>>,
    next_token: u64,
}

impl Side {
    /// An endpoint, and how its user sleeps: until woken, but at most for the time given.
    pub fn new(endpoint: Box<dyn Endpoint>, sleep: impl FnMut(Duration) + Send + 'static) -> Self {
        Self { endpoint, sleep: Box::new(sleep), memory: HashMap::new(), events: Vec::new(), heap: None, next_token: 1 }
    }

    /// The same, with the memory of all requests in this heap.
    pub fn with_heap(self: Side, heap: Arc<Heap>) -> Side {
        let mut side = self;
        side.heap = Some(heap);
        side
    }

    fn token(&mut self, memory: Memory) -> (Token, *mut u8, usize) {
        let token = self.next_token;
        self.next_token += 1;
        let memory = match &self.heap {
            Some(heap) => memory.moved_to(heap),
            None => memory,
        };
        let memory = self.memory.entry(token).or_insert(memory);
        (Token(token), memory.pointer(), memory.length)
    }

    pub fn send_as(&mut self, tag: Tag, signature: Signature, memory: Memory) -> Token {
        let (token, source, bytes) = self.token(memory);
        // SAFETY: `memory` keeps it until the side is dropped, endpoint first, and nobody else writes.
        unsafe { self.endpoint.post_send(SendRequest { tag, signature, source, bytes, token }) };
        token
    }

    pub fn recv_as(&mut self, tag: Tag, signature: Signature, memory: Memory, mode: Receive) -> Token {
        let (token, target, bytes) = self.token(memory);
        // SAFETY: as above; it is read only after the event that gives it back.
        unsafe { self.endpoint.post_recv(RecvRequest { tag, signature, target, bytes, mode, token }) };
        token
    }

    pub fn send(&mut self, tag: Tag, memory: Memory) -> Token {
        let signature = signature(memory.length);
        self.send_as(tag, signature, memory)
    }

    pub fn recv(&mut self, tag: Tag, memory: Memory) -> Token {
        let signature = signature(memory.length);
        self.recv_as(tag, signature, memory, Receive::Store)
    }

    /// Sends memory that lives for ever, and may be sent many times.
    pub fn send_shared(&mut self, tag: Tag, signature: Signature, source: &'static [u8]) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        let (source, bytes) = (source.as_ptr(), source.len());
        // SAFETY: it stays readable for ever, and nobody writes to it.
        unsafe { self.endpoint.post_send(SendRequest { tag, signature, source, bytes, token }) };
        token
    }

    pub fn notify(&mut self, text: &[u8]) {
        self.endpoint.notify(Notice(Arc::from(text)));
    }

    pub fn progress(&mut self) -> bool {
        let told = self.events.len();
        let moved = self.endpoint.progress(&mut self.events);
        assert!(moved || self.events.len() == told, "events without having moved");
        moved
    }

    /// The memory of a completed request, which was not written around.
    pub fn take(&mut self, token: Token) -> Memory {
        let memory = self.memory.remove(&token.0).expect("no request with this token");
        memory.check_guards();
        memory
    }

    pub fn has(&self, wanted: &Event) -> bool {
        self.events.contains(wanted)
    }

    /// How many such events there were.
    pub fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(event)).count()
    }

    /// Drops the endpoint: what a peer sees when this process dies.
    pub fn kill(&mut self) {
        self.endpoint = Box::new(Gone);
    }

    /// The text with which the link failed, if it has.
    pub fn failure(&self) -> Option<&str> {
        self.events.iter().find_map(|event| match event {
            Event::Failed(text) => Some(text.as_ref()),
            _ => None,
        })
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Whatever happens to the test, the endpoint goes before the memory that it may write to.
        self.endpoint = Box::new(Gone);
    }
}

/// What is left of a dropped endpoint.
struct Gone;

impl Endpoint for Gone {
    fn kind(&self) -> TransportKind {
        TransportKind::Inproc
    }

    fn link(&self) -> Arc<str> {
        "gone".into()
    }

    unsafe fn post_send(&mut self, _: SendRequest) {}

    unsafe fn post_recv(&mut self, _: RecvRequest) {}

    fn notify(&mut self, _: Notice) {}

    fn cancel(&mut self, _: Tag) {}

    fn progress(&mut self, _: &mut Vec<Event>) -> bool {
        false
    }

    fn prepare_sleep(&mut self) -> bool {
        true
    }

    fn say_goodbye(&mut self) {}

    fn is_drained(&self) -> bool {
        true
    }
}

/// Both ends.
pub struct Pair {
    pub a: Side,
    pub b: Side,
}

impl Pair {
    /// Drives both ends in turns until the condition holds.
    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Pair) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            let moved = self.a.progress() | self.b.progress();
            if !moved {
                // A carrier whose bytes are under way outside this thread needs a moment.
                std::thread::yield_now();
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "gave up on: {what}\n  a: {:?}\n  b: {:?}",
                tail(&self.a.events),
                tail(&self.b.events)
            );
        }
    }

    /// Drives both ends in a seeded order until the condition holds.
    pub fn run_randomly(&mut self, what: &str, random: &mut Random, mut done: impl FnMut(&mut Pair) -> bool) {
        self.run_until(what, |pair| {
            for _ in 0..random.below(4) {
                if random.below(2) == 0 {
                    pair.a.progress()
                } else {
                    pair.b.progress()
                };
            }
            done(pair)
        });
    }

    /// Drives both ends until nothing moves any more.
    pub fn settle(&mut self) {
        let begun = Instant::now();
        let mut quiet = 0;
        while quiet < 3 {
            if self.a.progress() | self.b.progress() {
                quiet = 0;
            } else {
                let rests = self.a.endpoint.prepare_sleep() && self.b.endpoint.prepare_sleep();
                quiet = if rests { quiet + 1 } else { 0 };
                std::thread::sleep(Duration::from_micros(200));
            }
            assert!(begun.elapsed() < PATIENCE, "does not come to rest");
        }
    }

    /// Sends `source` from a to b, to a receive with that mode and target, and returns what the target becomes.
    pub fn transfer(&mut self, tag: Tag, source: Memory, target: Memory, mode: Receive, recv_first: bool) -> Memory {
        let signature = signature(source.length);
        let (sent, received);
        if recv_first {
            received = self.b.recv_as(tag, signature, target, mode);
            self.b.progress();
            sent = self.a.send_as(tag, signature, source);
        } else {
            sent = self.a.send_as(tag, signature, source);
            self.a.progress();
            self.b.progress();
            received = self.b.recv_as(tag, signature, target, mode);
        }
        self.run_until("a transfer", |pair| pair.a.has(&Event::Sent(sent)) && pair.b.has(&Event::Received(received)));
        self.a.take(sent);
        self.b.take(received)
    }
}

/// The last events, for messages.
pub fn tail(events: &[Event]) -> &[Event] {
    &events[events.len().saturating_sub(8)..]
}

/// A receive that reduces.
pub fn reducing(dtype: DataType, op: ReduceOp, order: Order, finish: Finish) -> Receive {
    Receive::Reduce(Accumulate { dtype, reduction: Arc::new(Reduction::new(op)), order, finish })
}
