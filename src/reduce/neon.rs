//! Halves, by the instructions that 64-bit ARM processors have for them, to the same bits as in `half_bits`.
//!
//! The conversion of `f16` is part of every such processor; that of `bf16` came with ARMv8.6. Rust has neither among its
//! stable intrinsics, so they are written out. Eight lanes are converted at once; a rest of fewer goes the general way.
//! Everything else the compiler makes of the plain loops, since NEON is what the build assumes.

use std::arch::aarch64::{float32x4_t, uint16x8_t};
use std::arch::asm;

use super::number::{Number, each};
use super::storage::{Bf16, F16, Half, Storage};

/// IEEE 754 binary16.
pub(super) struct HardF16;

/// bfloat16, written by the processor's conversion. For kernels of that level only, [`Level::NeonBf16`].
///
/// [`Level::NeonBf16`]: super::kernel::Level::NeonBf16
pub(super) struct HardBf16;

/// How many lanes go at once.
const LANES_AT_ONCE: usize = 8;

impl Storage for HardF16 {
    type Number = f32;
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn read<const LANES: usize>(source: *const u8) -> [f32; LANES] {
        // SAFETY: the caller vouches for the elements.
        unsafe { Self::widen(source) }
    }

    #[inline(always)]
    unsafe fn write<const LANES: usize>(target: *mut u8, value: [f32; LANES]) {
        // SAFETY: the caller vouches for the elements.
        unsafe { Self::narrow(target, each(value, Number::settle)) }
    }
}

impl Half for HardF16 {
    #[inline(always)]
    unsafe fn widen<const LANES: usize>(source: *const u8) -> [f32; LANES] {
        if !LANES.is_multiple_of(LANES_AT_ONCE) {
            // SAFETY: the caller vouches for the elements.
            return unsafe { F16::widen(source) };
        }
        let mut value = [0.0; LANES];
        for lane in (0..LANES).step_by(LANES_AT_ONCE) {
            // SAFETY: the lanes from `lane` on lie within the elements, for which the caller vouches, and the array.
            unsafe {
                let halves = source.add(2 * lane).cast::<uint16x8_t>().read_unaligned();
                value.as_mut_ptr().add(lane).cast::<[float32x4_t; 2]>().write_unaligned(widen_f16x8(halves));
            }
        }
        value
    }

    #[inline(always)]
    unsafe fn narrow<const LANES: usize>(target: *mut u8, value: [f32; LANES]) {
        if !LANES.is_multiple_of(LANES_AT_ONCE) {
            // SAFETY: the caller vouches for the elements.
            return unsafe { F16::narrow(target, value) };
        }
        for lane in (0..LANES).step_by(LANES_AT_ONCE) {
            // SAFETY: as in `widen`.
            unsafe {
                let singles = value.as_ptr().add(lane).cast::<[float32x4_t; 2]>().read_unaligned();
                target.add(2 * lane).cast::<uint16x8_t>().write_unaligned(narrow_f16x8(singles));
            }
        }
    }
}

impl Storage for HardBf16 {
    type Number = f32;
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn read<const LANES: usize>(source: *const u8) -> [f32; LANES] {
        // SAFETY: the caller vouches for the elements.
        unsafe { Bf16::read(source) }
    }

    #[inline(always)]
    unsafe fn write<const LANES: usize>(target: *mut u8, value: [f32; LANES]) {
        // SAFETY: the caller vouches for the elements and the processor.
        unsafe { Self::narrow(target, each(value, Number::settle)) }
    }
}

impl Half for HardBf16 {
    #[inline(always)]
    unsafe fn widen<const LANES: usize>(source: *const u8) -> [f32; LANES] {
        // SAFETY: the caller vouches for the elements.
        unsafe { Bf16::widen(source) }
    }

    #[inline(always)]
    unsafe fn narrow<const LANES: usize>(target: *mut u8, value: [f32; LANES]) {
        if !LANES.is_multiple_of(LANES_AT_ONCE) {
            // SAFETY: the caller vouches for the elements.
            return unsafe { Bf16::narrow(target, value) };
        }
        for lane in (0..LANES).step_by(LANES_AT_ONCE) {
            // SAFETY: as in `HardF16::widen`; the caller vouches for the processor.
            unsafe {
                let singles = value.as_ptr().add(lane).cast::<[float32x4_t; 2]>().read_unaligned();
                target.add(2 * lane).cast::<uint16x8_t>().write_unaligned(narrow_bf16x8(singles));
            }
        }
    }
}

/// Eight `f16` to `f32`, exactly; NaNs become quiet and keep their payload.
#[inline(always)]
fn widen_f16x8(halves: uint16x8_t) -> [float32x4_t; 2] {
    let (low, high);
    // SAFETY: two conversions between registers, which every processor of this kind has. They may set bits of the
    // floating-point status, which is not declared as kept.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {halves:v}.4h",
            "fcvtl2 {high:v}.4s, {halves:v}.8h",
            halves = in(vreg) halves,
            low = out(vreg) low,
            high = lateout(vreg) high,
            options(pure, nomem, nostack),
        );
    }
    [low, high]
}

/// Eight `f32` to the nearest `f16`, ties to even; NaNs become quiet and keep what fits of their payload.
#[inline(always)]
fn narrow_f16x8([low, high]: [float32x4_t; 2]) -> uint16x8_t {
    let halves;
    // SAFETY: as in `widen_f16x8`.
    unsafe {
        asm!(
            "fcvtn {halves:v}.4h, {low:v}.4s",
            "fcvtn2 {halves:v}.8h, {high:v}.4s",
            low = in(vreg) low,
            high = in(vreg) high,
            halves = out(vreg) halves,
            options(pure, nomem, nostack),
        );
    }
    halves
}

/// As [`narrow_f16x8`], to `bf16`.
///
/// # Safety
///
/// The processor must have the extension.
#[inline(always)]
unsafe fn narrow_bf16x8([low, high]: [float32x4_t; 2]) -> uint16x8_t {
    let halves;
    // SAFETY: as in `widen_f16x8`; the caller vouches for the processor.
    unsafe {
        asm!(
            // By their numbers: an assembler knows the names only where the whole build assumes the extension.
            ".inst 0x0ea16802", // bfcvtn v2.4h, v0.4s
            ".inst 0x4ea16822", // bfcvtn2 v2.8h, v1.4s
            in("v0") low,
            in("v1") high,
            out("v2") halves,
            options(pure, nomem, nostack),
        );
    }
    halves
}
