//! Worlds of thread-ranks, guarded buffers, and exactly known answers.

use std::time::{Duration, Instant};

use half::{bf16, f16};
use phalanx::types::{DataType, ReduceOp};
use phalanx::{Communicator, TransportKind, testing};

/// The carriers that exist.
pub const TRANSPORTS: [TransportKind; 3] = [TransportKind::Inproc, TransportKind::Shm, TransportKind::Tcp];

/// Runs `body` on every rank of a world of `size` thread-ranks and returns what each returned, in rank order. A rank
/// that panics fails the test; a world that hangs is ended by its operations' deadlines.
pub fn on_world<R: Send>(kind: TransportKind, size: usize, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    on_hosts(kind, &vec![0; size], body)
}

/// As [`on_world`], with ranks that believe they are on the given hosts.
pub fn on_hosts<R: Send>(kind: TransportKind, hosts: &[usize], body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    on_ranks(testing::local_world(kind, hosts).expect("a world of threads"), body)
}

/// As [`on_world`], in a world that is there already.
pub fn on_ranks<R: Send>(world: Vec<Communicator>, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = world
            .into_iter()
            .map(|comm| {
                let body = &body;
                scope.spawn(move || {
                    let comm = comm.with_timeout(Duration::from_secs(60));
                    // The communicator outlives the others' threads: a rank that is told early of an error stays for
                    // those that are told late.
                    (body(comm.clone()), comm)
                })
            })
            .collect();
        let outcomes: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
        let outcomes: Vec<_> = outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        // All close at once, as processes do: each takes what the others still have for it.
        let since = Instant::now();
        let close = |(result, comm): (R, Communicator)| (result, scope.spawn(move || drop(comm)));
        let closing: Vec<_> = outcomes.into_iter().map(close).collect();
        let end = |(result, closing): (R, std::thread::ScopedJoinHandle<'_, ()>)| {
            closing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result
        };
        let results = closing.into_iter().map(end).collect();
        // Three seconds are the limit after which a rank leaves although it could not say everything.
        assert!(since.elapsed() < Duration::from_secs(2), "closing took {:?}", since.elapsed());
        results
    })
}

/// Memory between guard zones, at an offset that no element type is aligned to if asked.
pub struct Guarded {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

const GUARD: u8 = 0xa5;
const ZONE: usize = 128;

impl Guarded {
    pub fn new(content: &[u8], misaligned: bool) -> Self {
        let mut bytes = vec![GUARD; content.len() + 2 * ZONE + 64];
        let aligned = bytes.as_ptr().align_offset(64) + ZONE.next_multiple_of(64);
        let start = aligned + usize::from(misaligned);
        bytes.resize(start + content.len() + ZONE, GUARD);
        // The resize stays within what was allocated or moves everything; the alignment is only wanted, not needed.
        bytes[start..start + content.len()].copy_from_slice(content);
        Self { bytes, start, length: content.len() }
    }

    pub fn pointer(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    /// The content, after checking that nothing beside it was written.
    pub fn content(&self, what: &str) -> &[u8] {
        let (before, rest) = self.bytes.split_at(self.start);
        let (content, after) = rest.split_at(self.length);
        assert!(before.iter().chain(after).all(|&byte| byte == GUARD), "{what}: wrote outside its buffer");
        content
    }
}

/// The input element `index` of `rank`: a small whole number, such that sums over 16 ranks and products are exact in
/// every type.
pub fn input_value(op: Option<ReduceOp>, dtype: DataType, size: usize, rank: usize, index: usize) -> i64 {
    let mixed = rank.wrapping_mul(31).wrapping_add(index.wrapping_mul(17)).wrapping_add(index / 7);
    match (op, dtype) {
        (_, DataType::Bool) => mixed.is_multiple_of(3) as i64,
        (Some(ReduceOp::Product), _) => 1 + i64::from((index + rank).is_multiple_of(size)),
        (Some(ReduceOp::LogicalAnd | ReduceOp::LogicalOr), _) => {
            !mixed.is_multiple_of(5) as i64 * (1 + mixed as i64 % 2)
        }
        (None, _) => (mixed % 100) as i64,
        _ => (mixed % 7) as i64,
    }
}

/// A whole number as an element.
pub fn encode(dtype: DataType, value: i64) -> Vec<u8> {
    match dtype {
        DataType::F16 => f16::from_f64(value as f64).to_le_bytes().to_vec(),
        DataType::BF16 => bf16::from_f64(value as f64).to_le_bytes().to_vec(),
        DataType::F32 => (value as f32).to_le_bytes().to_vec(),
        DataType::F64 => (value as f64).to_le_bytes().to_vec(),
        DataType::Bool => vec![(value != 0) as u8],
        _ => value.to_le_bytes()[..dtype.size()].to_vec(),
    }
}

/// `count` elements, made one by one.
pub fn elements(dtype: DataType, count: usize, value: impl Fn(usize) -> i64) -> Vec<u8> {
    (0..count).flat_map(|index| encode(dtype, value(index))).collect()
}

/// The exactly known reduction of every rank's element `index`.
pub fn reduced(op: ReduceOp, dtype: DataType, size: usize, index: usize) -> Vec<u8> {
    let mut values = (0..size).map(|rank| input_value(Some(op), dtype, size, rank, index));
    let truth = |value: i64| i64::from(value != 0);
    if dtype == DataType::Bool {
        let value = match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr | ReduceOp::LogicalOr => values.any(|v| v != 0),
            ReduceOp::BitXor => values.filter(|v| *v != 0).count() % 2 == 1,
            _ => values.all(|v| v != 0),
        };
        return encode(dtype, value as i64);
    }
    let value = match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Product => values.product(),
        ReduceOp::Min => values.min().unwrap_or_default(),
        ReduceOp::Max => values.max().unwrap_or_default(),
        ReduceOp::BitAnd => values.reduce(|a, b| a & b).unwrap_or_default(),
        ReduceOp::BitOr => values.fold(0, |a, b| a | b),
        ReduceOp::BitXor => values.fold(0, |a, b| a ^ b),
        ReduceOp::LogicalAnd => values.map(truth).min().unwrap_or_default(),
        ReduceOp::LogicalOr => values.map(truth).max().unwrap_or_default(),
        ReduceOp::Average => {
            let sum: i64 = values.sum();
            let (n, sum32) = (size as f32, sum as f32);
            return match dtype {
                DataType::F16 => f16::from_f32(sum32 / n).to_le_bytes().to_vec(),
                DataType::BF16 => bf16::from_f32(sum32 / n).to_le_bytes().to_vec(),
                DataType::F32 => (sum32 / n).to_le_bytes().to_vec(),
                DataType::F64 => (sum as f64 / size as f64).to_le_bytes().to_vec(),
                _ => encode(dtype, sum / size as i64),
            };
        }
        ReduceOp::User => unreachable!("no closed form"),
    };
    encode(dtype, value)
}

/// A small generator for choices in tests (xorshift), so that a failing seed can be run again.
pub struct Seeded(u64);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit
    }
}
