//! Finishing integers: the exact quotient of an average, and the scale.

use super::kernel::Level;
use crate::types::{DataType, Finish};

/// An integer as it is finished.
trait Integer: Copy {
    /// The exact quotient, towards zero. The divisor is at least 2.
    fn quotient(self, divisor: u64) -> Self;
    /// The product in `f64`, towards zero, saturating; NaN gives zero.
    fn scaled(self, factor: f64) -> Self;
}

macro_rules! integers {
    ($($integer:ident by $float:ident;)*) => {$(
        impl Integer for $integer {
            // A float does this on many lanes at once. It is exact: a quotient that is not whole lies at least
            // 1/divisor below the next whole number, and rounding moves it by at most quotient * 2^-p, where p is the
            // float's precision. That is too little to get there, because quotient * divisor, which is at most
            // 2^16 (2^32), is less than 2^24 (2^53). A divisor that the float must round is so large that the
            // quotient is less than one anyhow.
            #[inline(always)]
            fn quotient(self, divisor: u64) -> Self {
                let quotient = self as $float / divisor as $float;
                // SAFETY: the divisor is not zero, so that the quotient is a number no further from zero than `self`.
                unsafe { quotient.to_int_unchecked() }
            }

            // Every number of the type is exact in `f64`: the bounds can be applied before the conversion, which
            // then has nothing to saturate.
            #[inline(always)]
            fn scaled(self, factor: f64) -> Self {
                let product = f64::from(self) * factor;
                let product = if product.is_nan() { 0.0 } else { product };
                let product = if product < f64::from(Self::MIN) { f64::from(Self::MIN) } else { product };
                let product = if product > f64::from(Self::MAX) { f64::from(Self::MAX) } else { product };
                // SAFETY: the product is a number between the bounds of the type.
                unsafe { product.to_int_unchecked() }
            }
        }
    )*};
}

integers! {
    i8 by f32;
    u8 by f32;
    i16 by f32;
    i32 by f64;
    u32 by f64;
}

// No float holds these exactly; the processor divides one after the other.
impl Integer for i64 {
    #[inline(always)]
    fn quotient(self, divisor: u64) -> Self {
        // Of magnitudes, because the divisor may be too large for the type.
        let quotient = (self.unsigned_abs() / divisor.max(1)) as i64;
        if self < 0 { quotient.wrapping_neg() } else { quotient }
    }

    #[inline(always)]
    fn scaled(self, factor: f64) -> Self {
        (self as f64 * factor) as Self
    }
}

impl Integer for u64 {
    #[inline(always)]
    fn quotient(self, divisor: u64) -> Self {
        self / divisor.max(1)
    }

    #[inline(always)]
    fn scaled(self, factor: f64) -> Self {
        (self as f64 * factor) as Self
    }
}

/// Finishes `count` integers where they are. Other types are left alone: floats are finished by their kernels, and
/// there is nothing to finish in a `bool`.
///
/// # Safety
///
/// `target` must be valid for reads and writes of `count` elements, and the processor must be of this level.
pub(super) unsafe fn integers(level: Level, dtype: DataType, target: *mut u8, count: usize, finish: &Finish) {
    // SAFETY: the caller vouches for the elements and the level.
    unsafe {
        match dtype {
            DataType::I8 => run::<i8>(level, target, count, finish),
            DataType::U8 => run::<u8>(level, target, count, finish),
            DataType::I16 => run::<i16>(level, target, count, finish),
            DataType::I32 => run::<i32>(level, target, count, finish),
            DataType::U32 => run::<u32>(level, target, count, finish),
            DataType::I64 => run::<i64>(level, target, count, finish),
            DataType::U64 => run::<u64>(level, target, count, finish),
            DataType::F16 | DataType::BF16 | DataType::F32 | DataType::F64 | DataType::Bool => {}
        }
    }
}

/// # Safety
///
/// As for [`integers()`].
unsafe fn run<N: Integer>(level: Level, target: *mut u8, count: usize, finish: &Finish) {
    // SAFETY: the caller vouches for the elements and the level.
    unsafe {
        match level {
            Level::Baseline => all::<N>(target, count, finish),
            #[cfg(target_arch = "aarch64")]
            Level::Neon | Level::NeonBf16 => all::<N>(target, count, finish),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 => all_by_avx2::<N>(target, count, finish),
        }
    }
}

/// # Safety
///
/// As for [`integers()`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn all_by_avx2<N: Integer>(target: *mut u8, count: usize, finish: &Finish) {
    // SAFETY: the caller vouches for the elements.
    unsafe { all::<N>(target, count, finish) }
}

/// # Safety
///
/// As for [`integers()`].
#[inline(always)]
unsafe fn all<N: Integer>(target: *mut u8, count: usize, finish: &Finish) {
    // SAFETY: the caller vouches for the elements.
    unsafe {
        if finish.divisor > 1 {
            each::<N>(target, count, |value| value.quotient(finish.divisor));
        }
        if finish.factor != 1.0 {
            each::<N>(target, count, |value| value.scaled(finish.factor));
        }
    }
}

/// An element at any address.
#[repr(C, packed)]
struct Unaligned<N>(N);

/// Replaces each element by `change` of it.
///
/// # Safety
///
/// As for [`integers()`].
#[inline(always)]
unsafe fn each<N: Integer>(target: *mut u8, count: usize, change: impl Fn(N) -> N) {
    // SAFETY: the caller vouches for the elements, which need no alignment; no other slice reaches them meanwhile.
    for element in unsafe { std::slice::from_raw_parts_mut(target.cast::<Unaligned<N>>(), count) } {
        element.0 = change(element.0);
    }
}
