//! The room against a plain reference: the same bits for every type and operation, at every level of this processor.

mod finishing;
mod matrix;
mod reference;
mod special;
mod user;

use super::kernel::Level;
use super::*;

/// Counts around the lengths of all chunks and blocks.
const COUNTS: &[usize] = if cfg!(miri) {
    &[0, 1, 9, 65]
} else {
    &[0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000, 1024, 4097]
};

/// What is asked of finished results: nothing, an average, an exact one, a scale, both, and both at an extreme.
const FINISHES: &[Finish] = if cfg!(miri) {
    &[Finish { divisor: 7, factor: 3.0 }]
} else {
    &[
        Finish::NONE,
        Finish { divisor: 3, factor: 1.0 },
        Finish { divisor: 4, factor: 1.0 },
        Finish { divisor: 1, factor: -0.625 },
        Finish { divisor: 7, factor: 3.0 },
        Finish { divisor: 1 << 40, factor: 1e300 },
    ]
};

/// Every type with every operation that it has.
fn pairs() -> impl Iterator<Item = (DataType, ReduceOp)> {
    let every = |dtype| ReduceOp::ALL.into_iter().map(move |op| (dtype, op));
    DataType::ALL.into_iter().flat_map(every).filter(|(dtype, op)| op.supports(*dtype))
}

/// Some bytes between two guard zones, at a chosen distance from alignment.
struct Guarded {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Guarded {
    const ZONE: usize = 72;
    const GUARD: u8 = 0xa5;

    fn new(content: &[u8], misalignment: usize) -> Self {
        let mut memory = vec![Self::GUARD; content.len() + 2 * Self::ZONE];
        let aligned = memory.as_ptr().align_offset(64).min(63);
        let start = (aligned + misalignment) % 64;
        // At least 8 bytes lie before, whatever the allocation's own alignment.
        let start = if start < 8 { start + 64 } else { start };
        memory[start..start + content.len()].copy_from_slice(content);
        Self { memory, start, length: content.len() }
    }

    fn pointer(&mut self) -> *mut u8 {
        self.memory[self.start..].as_mut_ptr()
    }

    /// The content, if nothing around it was touched.
    #[track_caller]
    fn content(&self) -> &[u8] {
        let end = self.start + self.length;
        let guards = self.memory[..self.start].iter().chain(&self.memory[end..]);
        assert!(guards.into_iter().all(|&byte| byte == Self::GUARD), "a write beyond the target");
        &self.memory[self.start..end]
    }
}

/// A fixed stream of numbers (splitmix64).
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The bytes of the elements at the edges of a type: zeros, ones, extremes, subnormals, infinities, NaNs.
fn edges(dtype: DataType) -> Vec<Vec<u8>> {
    let words: Vec<u64> = match dtype {
        DataType::F16 => {
            vec![0, 1, 2, 0x3ff, 0x400, 0x3bff, 0x3c00, 0x3c01, 0x7bff, 0x7c00, 0x7c01, 0x7dff, 0x7e00, 0x7fff]
        }
        DataType::BF16 => vec![0, 1, 0x7f, 0x80, 0x3f80, 0x3f81, 0x7f7f, 0x7f80, 0x7f81, 0x7fbf, 0x7fc0, 0x7fff],
        DataType::F32 => [0.0, 1.0, 3.5, f32::MAX, f32::MIN_POSITIVE, f32::EPSILON, f32::INFINITY, f32::NAN]
            .map(f32::to_bits)
            .into_iter()
            .chain([1, 0x007f_ffff, 0x7f80_0001, 0x7fff_ffff])
            .map(u64::from)
            .collect(),
        DataType::F64 => [0.0, 1.0, 3.5, f64::MAX, f64::MIN_POSITIVE, f64::EPSILON, f64::INFINITY, f64::NAN]
            .map(f64::to_bits)
            .into_iter()
            .chain([1, 0x000f_ffff_ffff_ffff, 0x7ff0_0000_0000_0001, 0x7fff_ffff_ffff_ffff])
            .collect(),
        DataType::Bool => vec![0, 1, 2, 0x80, 0xff],
        _ => {
            let bits = 8 * dtype.size() as u32;
            let (all, top) = (u64::MAX >> (64 - bits), 1 << (bits - 1));
            vec![0, 1, 2, 3, 7, 10, top - 1, top, top + 1, all, all - 1, all - 6, all / 3]
        }
    };
    let sign = if dtype.is_float() { 1u64 << (8 * dtype.size() - 1) } else { 0 };
    let signed = words.iter().map(|word| word | sign);
    words.iter().copied().chain(signed).map(|word| word.to_le_bytes()[..dtype.size()].to_vec()).collect()
}

/// `count` elements: some at the edges, some of any bits, most numbers of moderate size.
fn elements(dtype: DataType, count: usize, seed: u64) -> Vec<u8> {
    let edges = edges(dtype);
    let mut stream = Stream(seed);
    let mut bytes = Vec::with_capacity(count * dtype.size());
    for _ in 0..count {
        let word = stream.next();
        let moderate = (word >> 40) as i16;
        match (word % 8, dtype) {
            (0, _) => bytes.extend(&edges[(word >> 8) as usize % edges.len()]),
            (1, _) => bytes.extend(&stream.next().to_le_bytes()[..dtype.size()]),
            (_, DataType::F16) => bytes.extend(half::f16::from_f32(f32::from(moderate) / 64.0).to_le_bytes()),
            (_, DataType::BF16) => bytes.extend(half::bf16::from_f32(f32::from(moderate) / 64.0).to_le_bytes()),
            (_, DataType::F32) => bytes.extend((f32::from(moderate) / 3.0).to_le_bytes()),
            (_, DataType::F64) => bytes.extend((f64::from(moderate) / 3.0).to_le_bytes()),
            _ => bytes.extend(&i64::from(moderate / 8).to_le_bytes()[..dtype.size()]),
        }
    }
    bytes
}

/// Fails with the first element that differs.
#[track_caller]
fn assert_same(dtype: DataType, found: &[u8], expected: &[u8], context: &dyn std::fmt::Display) {
    let size = dtype.size();
    let differs = found.chunks(size).zip(expected.chunks(size)).position(|(found, expected)| found != expected);
    if let Some(index) = differs {
        let element = |bytes: &[u8]| {
            bytes[index * size..][..size].iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        panic!("{context}: element {index} is {}, expected {}", element(found), element(expected));
    }
    assert_eq!(found.len(), expected.len());
}
