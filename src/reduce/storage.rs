//! How elements lie in memory, and how a few at a time get into registers and back.

use super::half_bits;
use super::number::{Number, each};

/// An element as it lies in memory.
pub(super) trait Storage {
    /// What it is calculated in.
    type Number: Number;

    /// Bytes of one element.
    const SIZE: usize;

    /// Reads `LANES` elements for a calculation. What is done to the payload of a NaN does not matter here.
    ///
    /// # Safety
    ///
    /// `source` must be valid for reads of `LANES` elements; it need not be aligned.
    unsafe fn read<const LANES: usize>(source: *const u8) -> [Self::Number; LANES];

    /// Settles and writes `LANES` results.
    ///
    /// # Safety
    ///
    /// `target` must be valid for writes of `LANES` elements; it need not be aligned.
    unsafe fn write<const LANES: usize>(target: *mut u8, value: [Self::Number; LANES]);
}

/// A 16-bit float, which is calculated in `f32`.
pub(super) trait Half: Storage<Number = f32> {
    /// Reads `LANES` elements exactly, NaN payloads included (quiet).
    ///
    /// # Safety
    ///
    /// As for [`Storage::read`].
    unsafe fn widen<const LANES: usize>(source: *const u8) -> [f32; LANES];

    /// Rounds and writes `LANES` values, NaNs keeping what fits of their payload.
    ///
    /// # Safety
    ///
    /// As for [`Storage::write`].
    unsafe fn narrow<const LANES: usize>(target: *mut u8, value: [f32; LANES]);
}

macro_rules! natives {
    ($($native:ident)*) => {$(
        impl Storage for $native {
            type Number = $native;
            const SIZE: usize = size_of::<$native>();

            #[inline(always)]
            unsafe fn read<const LANES: usize>(source: *const u8) -> [$native; LANES] {
                // SAFETY: the caller vouches for the elements.
                unsafe { load(source) }
            }

            #[inline(always)]
            unsafe fn write<const LANES: usize>(target: *mut u8, value: [$native; LANES]) {
                // SAFETY: the caller vouches for the elements.
                unsafe { store(target, each(value, Number::settle)) }
            }
        }
    )*};
}

natives!(f32 f64 i8 u8 i16 u16 i32 u32 i64 u64);

/// A byte that is false or true. Calculated in `u8`, where it is 0 or 1.
pub(super) struct Truth;

impl Storage for Truth {
    type Number = u8;
    const SIZE: usize = 1;

    #[inline(always)]
    unsafe fn read<const LANES: usize>(source: *const u8) -> [u8; LANES] {
        // SAFETY: the caller vouches for the elements.
        each(unsafe { load::<u8, LANES>(source) }, |byte| u8::from(byte != 0))
    }

    #[inline(always)]
    unsafe fn write<const LANES: usize>(target: *mut u8, value: [u8; LANES]) {
        // SAFETY: the caller vouches for the elements.
        unsafe { store(target, value) }
    }
}

/// IEEE 754 binary16.
pub(super) struct F16;

impl Storage for F16 {
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

impl Half for F16 {
    #[inline(always)]
    unsafe fn widen<const LANES: usize>(source: *const u8) -> [f32; LANES] {
        // SAFETY: the caller vouches for the elements.
        each(unsafe { load(source) }, half_bits::f16_to_f32)
    }

    #[inline(always)]
    unsafe fn narrow<const LANES: usize>(target: *mut u8, value: [f32; LANES]) {
        // SAFETY: the caller vouches for the elements.
        unsafe { store(target, each(value, half_bits::f32_to_f16)) }
    }
}

/// bfloat16.
pub(super) struct Bf16;

impl Storage for Bf16 {
    type Number = f32;
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn read<const LANES: usize>(source: *const u8) -> [f32; LANES] {
        // SAFETY: the caller vouches for the elements.
        each(unsafe { load::<u16, LANES>(source) }, |half| f32::from_bits(u32::from(half) << 16))
    }

    #[inline(always)]
    unsafe fn write<const LANES: usize>(target: *mut u8, value: [f32; LANES]) {
        // SAFETY: the caller vouches for the elements.
        unsafe { store(target, each(value, half_bits::settle_to_bf16)) }
    }
}

impl Half for Bf16 {
    #[inline(always)]
    unsafe fn widen<const LANES: usize>(source: *const u8) -> [f32; LANES] {
        // SAFETY: the caller vouches for the elements.
        each(unsafe { load(source) }, half_bits::bf16_to_f32)
    }

    #[inline(always)]
    unsafe fn narrow<const LANES: usize>(target: *mut u8, value: [f32; LANES]) {
        // SAFETY: the caller vouches for the elements.
        unsafe { store(target, each(value, half_bits::f32_to_bf16)) }
    }
}

/// `LANES` elements from memory of any alignment.
///
/// # Safety
///
/// `source` must be valid for reads of them.
#[inline(always)]
unsafe fn load<T: Copy, const LANES: usize>(source: *const u8) -> [T; LANES] {
    // SAFETY: the caller vouches for the memory; numbers have no invalid bits.
    unsafe { source.cast::<[T; LANES]>().read_unaligned() }
}

/// `LANES` elements to memory of any alignment.
///
/// # Safety
///
/// `target` must be valid for writes of them.
#[inline(always)]
unsafe fn store<T: Copy, const LANES: usize>(target: *mut u8, value: [T; LANES]) {
    // SAFETY: the caller vouches for the memory.
    unsafe { target.cast::<[T; LANES]>().write_unaligned(value) }
}
