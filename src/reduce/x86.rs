//! Halves, by the instructions that x86 processors have for them, to the same bits as in `half_bits`.
//!
//! Each type stands for a level of the processor and is only for kernels of that level. Eight or sixteen lanes are
//! converted at once; a rest of fewer goes the general way.

use std::arch::x86_64::*;

use super::half_bits;
use super::number::each;
use super::storage::{Bf16, F16, Half, Storage};

/// IEEE 754 binary16, by F16C.
pub(super) struct HardF16;

/// bfloat16, by AVX2.
pub(super) struct HardBf16;

/// IEEE 754 binary16, by AVX-512.
pub(super) struct WideF16;

/// bfloat16, by AVX-512 with its conversion.
pub(super) struct WideBf16;

/// What `_mm512_fpclass_ps_mask` is asked: NaNs of both kinds, and subnormals.
const NAN: i32 = 0x81;
const NAN_OR_SUBNORMAL: i32 = 0xa1;

macro_rules! half {
    ($name:ident, $general:ident, $lanes:literal, $read:ident, $widen:ident, $settle:ident, $narrow:ident) => {
        impl Storage for $name {
            type Number = f32;
            const SIZE: usize = 2;

            #[inline(always)]
            unsafe fn read<const LANES: usize>(source: *const u8) -> [f32; LANES] {
                if !LANES.is_multiple_of($lanes) {
                    // SAFETY: the caller vouches for the elements.
                    return unsafe { $general::read(source) };
                }
                let mut value = [0.0; LANES];
                for lane in (0..LANES).step_by($lanes) {
                    // SAFETY: the lanes from `lane` on lie within the elements and within the array; the caller vouches
                    // for the processor.
                    unsafe { $read(source.add(2 * lane), value.as_mut_ptr().add(lane)) };
                }
                value
            }

            #[inline(always)]
            unsafe fn write<const LANES: usize>(target: *mut u8, value: [f32; LANES]) {
                if !LANES.is_multiple_of($lanes) {
                    // SAFETY: the caller vouches for the elements.
                    return unsafe { $general::write(target, value) };
                }
                for lane in (0..LANES).step_by($lanes) {
                    // SAFETY: as in `read`.
                    unsafe { $settle(value.as_ptr().add(lane), target.add(2 * lane)) };
                }
            }
        }

        impl Half for $name {
            #[inline(always)]
            unsafe fn widen<const LANES: usize>(source: *const u8) -> [f32; LANES] {
                if !LANES.is_multiple_of($lanes) {
                    // SAFETY: the caller vouches for the elements.
                    return unsafe { $general::widen(source) };
                }
                let mut value = [0.0; LANES];
                for lane in (0..LANES).step_by($lanes) {
                    // SAFETY: as in `read`.
                    unsafe { $widen(source.add(2 * lane), value.as_mut_ptr().add(lane)) };
                }
                value
            }

            #[inline(always)]
            unsafe fn narrow<const LANES: usize>(target: *mut u8, value: [f32; LANES]) {
                if !LANES.is_multiple_of($lanes) {
                    // SAFETY: the caller vouches for the elements.
                    return unsafe { $general::narrow(target, value) };
                }
                for lane in (0..LANES).step_by($lanes) {
                    // SAFETY: as in `read`.
                    unsafe { $narrow(value.as_ptr().add(lane), target.add(2 * lane)) };
                }
            }
        }
    };
}

half!(HardF16, F16, 8, read_f16x8, read_f16x8, settle_f16x8, narrow_f16x8);
half!(HardBf16, Bf16, 8, read_bf16x8, widen_bf16x8, settle_bf16x8, narrow_bf16x8);
half!(WideF16, F16, 16, read_f16x16, read_f16x16, settle_f16x16, narrow_f16x16);
half!(WideBf16, Bf16, 16, read_bf16x16, widen_bf16x16, settle_bf16x16, narrow_bf16x16);

// Of all that follows: pointers are to as many lanes as the name says, in any alignment, and the processor must have the
// instructions of the type.

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn read_f16x8(source: *const u8, value: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_ps(value, _mm256_cvtph_ps(_mm_loadu_si128(source.cast()))) }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn settle_f16x8(value: *const f32, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        // By name, not by lane: lanes that are compared one by one are put in an order of the compiler's own, and back.
        let singles = _mm256_loadu_ps(value);
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(singles, singles);
        let canonical = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc0_0000));
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_blendv_ps(singles, canonical, nan));
        _mm_storeu_si128(target.cast(), halves);
    }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn narrow_f16x8(value: *const f32, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(value));
        _mm_storeu_si128(target.cast(), halves);
    }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn read_bf16x8(source: *const u8, value: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(source.cast()));
        _mm256_storeu_si256(value.cast(), _mm256_slli_epi32::<16>(halves));
    }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn widen_bf16x8(source: *const u8, value: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = source.cast::<[u16; 8]>().read_unaligned();
        value.cast::<[f32; 8]>().write_unaligned(each(halves, half_bits::bf16_to_f32));
    }
}

/// Eight results whose upper halves are what is written.
///
/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn store_upper_x8(upper: __m256i, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let packed = _mm256_packus_epi32(_mm256_srli_epi32::<16>(upper), _mm256_setzero_si256());
        let joined = _mm256_permute4x64_epi64::<0b1000>(packed);
        _mm_storeu_si128(target.cast(), _mm256_castsi256_si128(joined));
    }
}

/// Eight numbers, none of which is NaN, so that their upper halves are the nearest bfloat16.
///
/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn rounded_x8(bits: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)))
    }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn settle_bf16x8(value: *const f32, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let singles = _mm256_loadu_ps(value);
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(singles, singles);
        let rounded = _mm256_castsi256_ps(rounded_x8(_mm256_castps_si256(singles)));
        let canonical = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc0_0000));
        store_upper_x8(_mm256_castps_si256(_mm256_blendv_ps(rounded, canonical, nan)), target);
    }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn narrow_bf16x8(value: *const f32, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let singles = _mm256_loadu_ps(value);
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(singles, singles);
        let bits = _mm256_castps_si256(singles);
        let quiet = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000)));
        let rounded = _mm256_castsi256_ps(rounded_x8(bits));
        store_upper_x8(_mm256_castps_si256(_mm256_blendv_ps(rounded, quiet, nan)), target);
    }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn read_f16x16(source: *const u8, value: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { _mm512_storeu_ps(value, _mm512_cvtph_ps(_mm256_loadu_si256(source.cast()))) }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn settle_f16x16(value: *const f32, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let singles = _mm512_loadu_ps(value);
        let nan = _mm512_fpclass_ps_mask::<NAN>(singles);
        let settled = _mm512_mask_mov_ps(singles, nan, _mm512_set1_ps(f32::from_bits(0x7fc0_0000)));
        let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(settled);
        _mm256_storeu_si256(target.cast(), halves);
    }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn narrow_f16x16(value: *const f32, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(value));
        _mm256_storeu_si256(target.cast(), halves);
    }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn read_bf16x16(source: *const u8, value: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(source.cast()));
        _mm512_storeu_si512(value.cast(), _mm512_slli_epi32::<16>(halves));
    }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn widen_bf16x16(source: *const u8, value: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = source.cast::<[u16; 16]>().read_unaligned();
        value.cast::<[f32; 16]>().write_unaligned(each(halves, half_bits::bf16_to_f32));
    }
}

/// The processor's conversion takes subnormals for zero, and keeps payloads of NaN; lanes that hold such go the general
/// way.
///
/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn convert_bf16x16(value: *const f32, target: *mut u8, general: impl Fn(f32) -> u16) {
    // SAFETY: the caller's promise.
    unsafe {
        let singles = _mm512_loadu_ps(value);
        if _mm512_fpclass_ps_mask::<NAN_OR_SUBNORMAL>(singles) == 0 {
            let halves: __m256i = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(singles));
            _mm256_storeu_si256(target.cast(), halves);
        } else {
            target.cast::<[u16; 16]>().write_unaligned(each(value.cast::<[f32; 16]>().read_unaligned(), general));
        }
    }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn settle_bf16x16(value: *const f32, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { convert_bf16x16(value, target, half_bits::settle_to_bf16) }
}

/// # Safety
///
/// See above.
#[inline(always)]
unsafe fn narrow_bf16x16(value: *const f32, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { convert_bf16x16(value, target, half_bits::f32_to_bf16) }
}
