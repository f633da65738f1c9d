//! Converting runs of halves to `f32` and back.

use super::kernel::Level;
#[cfg(target_arch = "aarch64")]
use super::neon::*;
use super::storage::{Bf16, F16, Half};
#[cfg(target_arch = "x86_64")]
use super::x86::*;

/// Which half type.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// `f16`.
    F16,
    /// `bf16`.
    Bf16,
}

/// Halves to `f32`.
///
/// # Safety
///
/// `source` must be valid for reads of `count` halves, `target` for writes of `count` `f32`; they must be apart. The
/// processor must be of this level.
pub(super) unsafe fn widen(level: Level, kind: Kind, source: *const u8, target: *mut u8, count: usize) {
    // SAFETY: the caller keeps the promises.
    unsafe {
        match (level, kind) {
            (Level::Baseline, Kind::F16) => widen_run::<F16>(source, target, count),
            (Level::Baseline, Kind::Bf16) => widen_run::<Bf16>(source, target, count),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2, Kind::F16) => widen_by_avx2::<HardF16>(source, target, count),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2, Kind::Bf16) => widen_by_avx2::<HardBf16>(source, target, count),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, Kind::F16) => widen_by_avx512::<WideF16>(source, target, count),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, Kind::Bf16) => widen_by_avx512::<WideBf16>(source, target, count),
            #[cfg(target_arch = "aarch64")]
            (Level::Neon | Level::NeonBf16, Kind::F16) => widen_run::<HardF16>(source, target, count),
            #[cfg(target_arch = "aarch64")]
            (Level::Neon | Level::NeonBf16, Kind::Bf16) => widen_run::<Bf16>(source, target, count),
        }
    }
}

/// `f32` to halves.
///
/// # Safety
///
/// `source` must be valid for reads of `count` `f32`, `target` for writes of `count` halves; they must be apart. The
/// processor must be of this level.
pub(super) unsafe fn narrow(level: Level, kind: Kind, source: *const u8, target: *mut u8, count: usize) {
    // SAFETY: the caller keeps the promises.
    unsafe {
        match (level, kind) {
            (Level::Baseline, Kind::F16) => narrow_run::<F16>(source, target, count),
            (Level::Baseline, Kind::Bf16) => narrow_run::<Bf16>(source, target, count),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2, Kind::F16) => narrow_by_avx2::<HardF16>(source, target, count),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2, Kind::Bf16) => narrow_by_avx2::<HardBf16>(source, target, count),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, Kind::F16) => narrow_by_avx512::<WideF16>(source, target, count),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, Kind::Bf16) => narrow_by_avx512::<WideBf16>(source, target, count),
            #[cfg(target_arch = "aarch64")]
            (Level::Neon | Level::NeonBf16, Kind::F16) => narrow_run::<HardF16>(source, target, count),
            #[cfg(target_arch = "aarch64")]
            (Level::Neon, Kind::Bf16) => narrow_run::<Bf16>(source, target, count),
            #[cfg(target_arch = "aarch64")]
            (Level::NeonBf16, Kind::Bf16) => narrow_run::<HardBf16>(source, target, count),
        }
    }
}

/// # Safety
///
/// As for [`widen`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn widen_by_avx2<H: Half>(source: *const u8, target: *mut u8, count: usize) {
    // SAFETY: the caller keeps the promises.
    unsafe { widen_run::<H>(source, target, count) }
}

/// # Safety
///
/// As for [`narrow`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn narrow_by_avx2<H: Half>(source: *const u8, target: *mut u8, count: usize) {
    // SAFETY: the caller keeps the promises.
    unsafe { narrow_run::<H>(source, target, count) }
}

/// # Safety
///
/// As for [`widen`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn widen_by_avx512<H: Half>(source: *const u8, target: *mut u8, count: usize) {
    // SAFETY: the caller keeps the promises.
    unsafe { widen_run::<H>(source, target, count) }
}

/// # Safety
///
/// As for [`narrow`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn narrow_by_avx512<H: Half>(source: *const u8, target: *mut u8, count: usize) {
    // SAFETY: the caller keeps the promises.
    unsafe { narrow_run::<H>(source, target, count) }
}

/// Elements converted at once: two to four vectors.
const LANES: usize = 32;

/// # Safety
///
/// As for [`widen`].
#[inline(always)]
unsafe fn widen_run<H: Half>(source: *const u8, target: *mut u8, count: usize) {
    let whole = count - count % LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: `LANES` elements from `at` on lie within the `count` that the caller vouches for.
        unsafe { target.add(4 * at).cast::<[f32; LANES]>().write_unaligned(H::widen(source.add(2 * at))) };
    }
    for at in whole..count {
        // SAFETY: as above, for one element.
        unsafe { target.add(4 * at).cast::<[f32; 1]>().write_unaligned(H::widen(source.add(2 * at))) };
    }
}

/// # Safety
///
/// As for [`narrow`].
#[inline(always)]
unsafe fn narrow_run<H: Half>(source: *const u8, target: *mut u8, count: usize) {
    let whole = count - count % LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: `LANES` elements from `at` on lie within the `count` that the caller vouches for.
        unsafe { H::narrow(target.add(2 * at), source.add(4 * at).cast::<[f32; LANES]>().read_unaligned()) };
    }
    for at in whole..count {
        // SAFETY: as above, for one element.
        unsafe { H::narrow(target.add(2 * at), source.add(4 * at).cast::<[f32; 1]>().read_unaligned()) };
    }
}
