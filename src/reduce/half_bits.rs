//! Between the 16-bit floats and `f32`, by operations that a compiler can do on many lanes at once.
//!
//! Rounding is to nearest, ties to even; NaNs stay NaN, become quiet, and keep the upper bits of their payload. No
//! intermediate value is a subnormal `f32`, so that the results hold even in threads that flush those to zero.

/// The `f32` of an `f16`, exactly.
#[inline(always)]
pub(super) fn f16_to_f32(half: u16) -> f32 {
    // With exponent and mantissa in place, the exponent is too small by the difference of the biases, 112. For
    // infinity and NaN it must become 255 instead, 112 more. For zero and subnormals the exponent field is moved to
    // that of 2^-14 with the bits as fraction, and 2^-14 is taken away again.
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let normal = magnitude + (112 << 23);
    let quiet = if magnitude > 31 << 23 { 1 << 22 } else { 0 };
    let special = (magnitude + (224 << 23)) | quiet;
    let subnormal = (f32::from_bits(magnitude + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let finite = if magnitude < 1 << 23 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude >= 31 << 23 { special } else { finite })
}

/// The `f16` nearest to an `f32`.
#[inline(always)]
pub(super) fn f32_to_f16(single: f32) -> u16 {
    let bits = single.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Below 2^-14 the result is subnormal: adding 0.5, whose last bit is worth 2^-24 like that of an `f16` subnormal,
    // lets the addition round, and leaves the result in the low bits.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    // Otherwise 13 bits of the mantissa go. Just under half of the last bit that stays is added, and a little more
    // where that bit is odd; a carry into the exponent is what rounding up to the next power of two should do.
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13;
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    let nan = 0x7e00 | ((magnitude >> 13) & 0x1ff);
    // From 65520 on, half-way beyond the largest `f16`, `normal` is infinity by its carry up to 65536.
    let infinite = if magnitude > 0x7f80_0000 { nan } else { 0x7c00 };
    (sign | if magnitude >= 143 << 23 { infinite } else { finite }) as u16
}

/// The `f32` of a `bf16`, exactly.
#[inline(always)]
pub(super) fn bf16_to_f32(half: u16) -> f32 {
    let quiet = if half & 0x7fff > 0x7f80 { 0x40 } else { 0 };
    f32::from_bits(u32::from(half | quiet) << 16)
}

/// The `bf16` nearest to an `f32`.
#[inline(always)]
pub(super) fn f32_to_bf16(single: f32) -> u16 {
    let bits = single.to_bits();
    if single.is_nan() { (bits >> 16) as u16 | 0x40 } else { round_to_bf16(bits) }
}

/// As [`f32_to_bf16`], but every NaN becomes the canonical one.
#[inline(always)]
pub(super) fn settle_to_bf16(single: f32) -> u16 {
    if single.is_nan() { 0x7fc0 } else { round_to_bf16(single.to_bits()) }
}

/// Drops the lower half of the bits of a number that is not NaN. A carry into the exponent is as it should be, up to
/// infinity.
#[inline(always)]
fn round_to_bf16(bits: u32) -> u16 {
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// All of them, but for an interpreter, which takes its time.
    fn halves() -> impl Iterator<Item = u16> {
        (0..=u16::MAX).step_by(if cfg!(miri) { 509 } else { 1 })
    }

    #[test]
    fn every_half_widens_as_the_half_crate_has_it() {
        for bits in halves() {
            assert_eq!(f16_to_f32(bits).to_bits(), f16::from_bits(bits).to_f32().to_bits(), "f16 {bits:#06x}");
            assert_eq!(bf16_to_f32(bits).to_bits(), bf16::from_bits(bits).to_f32().to_bits(), "bf16 {bits:#06x}");
        }
    }

    #[test]
    fn every_half_survives_the_way_through_f32() {
        for bits in halves() {
            let (there, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert_eq!(f32_to_f16(f16_to_f32(bits)), if there.is_nan() { bits | 0x200 } else { bits });
            assert_eq!(f32_to_bf16(bf16_to_f32(bits)), if brain.is_nan() { bits | 0x40 } else { bits });
        }
    }

    /// For each upper half, the lower halves around which rounding changes its mind.
    #[test]
    fn narrowing_rounds_as_the_half_crate_does() {
        let lower: Vec<u32> = (0..16)
            .flat_map(|bit| [(1u32 << bit) - 1, 1 << bit, (1 << bit) + 1])
            .chain([0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8001, 0xffff])
            .collect();
        for upper in halves().map(u32::from) {
            for &lower in &lower {
                let single = f32::from_bits(upper << 16 | lower & 0xffff);
                let bits = single.to_bits();
                assert_eq!(f32_to_f16(single), f16::from_f32(single).to_bits(), "f16 of {bits:#010x}");
                assert_eq!(f32_to_bf16(single), bf16::from_f32(single).to_bits(), "bf16 of {bits:#010x}");
                if !single.is_nan() {
                    assert_eq!(settle_to_bf16(single), f32_to_bf16(single), "bf16 of {bits:#010x}");
                }
            }
        }
        assert_eq!(settle_to_bf16(f32::from_bits(0xffff_ffff)), 0x7fc0);
    }
}
