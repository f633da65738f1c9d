//! Arrays at chosen addresses, with guards around them, and what is put into them.

use phalanx::DataType;

const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;

/// A generator of numbers that look random and are the same for the same seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Bytes that begin `offset` after a multiple of 64.
pub struct Array {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Array {
    pub fn new(content: &[u8], offset: usize) -> Self {
        let mut bytes = vec![GUARD_BYTE; content.len() + 2 * GUARD + 128];
        let start = bytes.as_ptr().align_offset(64) + GUARD + offset;
        bytes[start..start + content.len()].copy_from_slice(content);
        Self { bytes, start, length: content.len() }
    }

    pub fn pointer(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    pub fn content(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    pub fn check_guards(&self) {
        let around = self.bytes[..self.start].iter().chain(&self.bytes[self.start + self.length..]);
        assert!(around.copied().all(|byte| byte == GUARD_BYTE), "written beside the array");
    }
}

/// Elements of which many are special: zeros, ones, infinities, NaNs, subnormals, limits.
pub fn elements(dtype: DataType, count: usize, random: &mut Random) -> Vec<u8> {
    let size = dtype.size();
    let mut bytes = Vec::with_capacity(count * size);
    for _ in 0..count {
        let bits = random.next();
        let word = match (dtype, random.below(4)) {
            (DataType::F32, 0) => u64::from(((bits % 2000) as f32 / 8.0 - 100.0).to_bits()),
            (DataType::F64, 0) => ((bits % 2000) as f64 / 8.0 - 100.0).to_bits(),
            // Of every type: all zeros and ones but for a few bits at the ends.
            (_, 1) => match size {
                4 => u64::from(
                    [0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc1_2345, 1, 0x3f80_0000, 0x7f7f_ffffu32]
                        [random.below(8)],
                ),
                8 => [0, 1 << 63, 0x7ff0 << 48, 0xfff0 << 48, 0x7ff8_0000_0000_1234, 1, 0x3ff0 << 48, u64::MAX]
                    [random.below(8)],
                2 => u64::from(
                    [0, 0x8000, 0x7c00, 0xfc00, 0x7e12, 1, 0x3c00, 0x7f80, 0xff80, 0x7fff, 0x3f80u16][random.below(11)],
                ),
                _ => u64::from([0, 1, 0x7f, 0x80, 0xff, 2][random.below(6)] as u8),
            },
            // Small whole numbers, whose products do not run away.
            (DataType::F16, 2) => u64::from(half::f16::from_f32((bits % 17) as f32 - 8.0).to_bits()),
            (DataType::BF16, 2) => u64::from(half::bf16::from_f32((bits % 17) as f32 - 8.0).to_bits()),
            (DataType::F32, 2) => u64::from(((bits % 17) as f32 - 8.0).to_bits()),
            (DataType::F64, 2) => ((bits % 17) as f64 - 8.0).to_bits(),
            (_, 2) => bits % 5,
            _ => bits,
        };
        bytes.extend_from_slice(&word.to_le_bytes()[..size]);
    }
    bytes
}
