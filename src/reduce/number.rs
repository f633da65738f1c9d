//! The types that are calculated in, the operations on them, and the finishing steps of floats.
//!
//! Every built-in operation is commutative to the last bit: whatever NaN comes out of a calculation is written as the
//! one canonical quiet NaN (see [`Number::settle`]), so that no result depends on which operand stood on the left, on
//! the processor, or on the compiler's liking.

use crate::types::Finish;

/// Applies a function to each lane. As `array::map`, which is a call of its own where the compiler thinks that it is worth
/// one, and then without the instructions of the level.
#[inline(always)]
pub(super) fn each<T: Copy, U: Copy + Default, const LANES: usize>(
    value: [T; LANES],
    function: impl Fn(T) -> U,
) -> [U; LANES] {
    let mut result = [U::default(); LANES];
    for lane in 0..LANES {
        result[lane] = function(value[lane]);
    }
    result
}

/// A type that elements are combined in.
pub(super) trait Number: Copy {
    /// The sum; integers wrap.
    fn sum(self, other: Self) -> Self;
    /// The product; integers wrap.
    fn product(self, other: Self) -> Self;
    /// The smaller; NaN if either is, -0 before +0.
    fn least(self, other: Self) -> Self;
    /// The greater; NaN if either is, -0 before +0.
    fn greatest(self, other: Self) -> Self;
    /// One if neither is zero, else zero.
    fn both(self, other: Self) -> Self;
    /// Zero if both are zero, else one.
    fn either(self, other: Self) -> Self;
    /// The value after one step of finishing. Integers pass: they are finished apart, see `finish.rs`.
    fn finish<const LANES: usize>(value: [Self; LANES], step: Step) -> [Self; LANES];
    /// The value as it is written: any NaN becomes the canonical one.
    fn settle(self) -> Self;
}

/// A number with bits to operate on.
pub(super) trait Bits: Number {
    /// Bitwise and.
    fn and(self, other: Self) -> Self;
    /// Bitwise or.
    fn or(self, other: Self) -> Self;
    /// Bitwise exclusive or.
    fn xor(self, other: Self) -> Self;
}

macro_rules! floats {
    ($($float:ident, $canonical:literal;)*) => {$(
        impl Number for $float {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }

            // Each of the two selections is one instruction on most processors, and they differ only where neither
            // operand is the smaller. Then either both are zeros, of which *or* keeps the sign, or one is NaN, which
            // stays NaN whatever bits join it.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                let one = if self < other { self } else { other };
                let two = if other < self { other } else { self };
                Self::from_bits(one.to_bits() | two.to_bits())
            }

            // As above with *and*, which clears the sign of zeros, but would break a NaN.
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                let one = if self > other { self } else { other };
                let two = if other > self { other } else { self };
                if self.is_nan() | other.is_nan() {
                    Self::from_bits($canonical)
                } else {
                    Self::from_bits(one.to_bits() & two.to_bits())
                }
            }

            // All bits of zero are clear, so that bitwise operations work on zero and one as on any two words.
            #[inline(always)]
            fn both(self, other: Self) -> Self {
                let truth = |number: Self| if number == 0.0 { 0.0 } else { 1.0 };
                Self::from_bits(Self::to_bits(truth(self)) & Self::to_bits(truth(other)))
            }

            #[inline(always)]
            fn either(self, other: Self) -> Self {
                let truth = |number: Self| if number == 0.0 { 0.0 } else { 1.0 };
                Self::from_bits(Self::to_bits(truth(self)) | Self::to_bits(truth(other)))
            }

            #[inline(always)]
            fn finish<const LANES: usize>(value: [Self; LANES], step: Step) -> [Self; LANES] {
                match step {
                    Step::Nothing => value,
                    Step::Divide(divisor) => each(value, |value| value / divisor as Self),
                    Step::Multiply(factor) => each(value, |value| value * factor as Self),
                }
            }

            #[inline(always)]
            fn settle(self) -> Self {
                if self.is_nan() { Self::from_bits($canonical) } else { self }
            }
        }
    )*};
}

floats! {
    f32, 0x7fc0_0000;
    f64, 0x7ff8_0000_0000_0000;
}

macro_rules! integers {
    ($($integer:ident)*) => {$(
        impl Number for $integer {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn both(self, other: Self) -> Self {
                if self.min(other) == 0 { 0 } else { 1 }
            }

            #[inline(always)]
            fn either(self, other: Self) -> Self {
                if self | other == 0 { 0 } else { 1 }
            }

            #[inline(always)]
            fn finish<const LANES: usize>(value: [Self; LANES], _: Step) -> [Self; LANES] {
                value
            }

            #[inline(always)]
            fn settle(self) -> Self {
                self
            }
        }

        impl Bits for $integer {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    )*};
}

integers!(i8 u8 i16 u16 i32 u32 i64 u64);

/// How two numbers become one.
pub(super) trait Operation<N> {
    /// `left op right`.
    fn apply(left: N, right: N) -> N;
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($bound:ident): $left:ident, $right:ident => $result:expr;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name;

        impl<N: $bound> Operation<N> for $name {
            #[inline(always)]
            fn apply($left: N, $right: N) -> N {
                $result
            }
        }
    )*};
}

operations! {
    /// The sum, also of an average.
    Sum(Number): left, right => left.sum(right);
    /// The product.
    Product(Number): left, right => left.product(right);
    /// The smallest.
    Min(Number): left, right => left.least(right);
    /// The largest.
    Max(Number): left, right => left.greatest(right);
    /// Bitwise and.
    BitAnd(Bits): left, right => left.and(right);
    /// Bitwise or.
    BitOr(Bits): left, right => left.or(right);
    /// Bitwise exclusive or.
    BitXor(Bits): left, right => left.xor(right);
    /// Logical and.
    LogicalAnd(Number): left, right => left.both(right);
    /// Logical or.
    LogicalOr(Number): left, right => left.either(right);
}

/// One step of finishing a float.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// Leaves it.
    Nothing,
    /// Divides by this.
    Divide(f64),
    /// Multiplies by this.
    Multiply(f64),
}

/// What `finish` asks of a float, in order. A division by a power of two becomes a multiplication by its reciprocal,
/// which is exact, so that the result has the same bits, sooner.
#[inline(always)]
pub(super) fn steps(finish: &Finish) -> [Step; 2] {
    let division = match finish.divisor {
        0 | 1 => Step::Nothing,
        divisor if divisor.is_power_of_two() => Step::Multiply(1.0 / divisor as f64),
        divisor => Step::Divide(divisor as f64),
    };
    let scale = if finish.factor == 1.0 { Step::Nothing } else { Step::Multiply(finish.factor) };
    [division, scale]
}
