//! How two elements become one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::DataType;

/// A user's own reduction: combines `incoming` into `accumulator`, element by element.
///
/// Both slices hold the same whole number of elements of the data type that is being reduced, without any alignment.
/// The function must be associative; it must be commutative too, unless the communicator is deterministic.
pub type UserFunction = Arc<dyn Fn(&mut [u8], &[u8], DataType) + Send + Sync>;

/// The operation of a reduction.
///
/// Integers wrap on overflow. `Min` and `Max` of floats return NaN when either side is NaN, and order -0 before +0.
/// `Average` divides the sum by the number of contributions: integers round towards zero. Bitwise operations are for
/// integers and `bool`. Logical operations read zero as false (NaN is true) and write 0 or 1.
/// For `bool`, `Sum` and `Max` mean *or*, `Product` and `Min` mean *and*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum.
    Sum = 0,
    /// The sum divided by the number of ranks.
    Average = 1,
    /// The product.
    Product = 2,
    /// The smallest.
    Min = 3,
    /// The largest.
    Max = 4,
    /// Bitwise and.
    BitAnd = 5,
    /// Bitwise or.
    BitOr = 6,
    /// Bitwise exclusive or.
    BitXor = 7,
    /// Logical and.
    LogicalAnd = 8,
    /// Logical or.
    LogicalOr = 9,
    /// The function in [`Reduction::function`].
    User = 10,
}

impl ReduceOp {
    /// Every operation but the user's own.
    pub const ALL: [ReduceOp; 10] = [
        ReduceOp::Sum,
        ReduceOp::Average,
        ReduceOp::Product,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
        ReduceOp::LogicalAnd,
        ReduceOp::LogicalOr,
    ];

    /// The name used on the command line and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Average => "average",
            ReduceOp::Product => "product",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::BitAnd => "bit_and",
            ReduceOp::BitOr => "bit_or",
            ReduceOp::BitXor => "bit_xor",
            ReduceOp::LogicalAnd => "logical_and",
            ReduceOp::LogicalOr => "logical_or",
            ReduceOp::User => "user",
        }
    }

    /// The operation with this code on the wire and in the C interface.
    pub const fn from_code(code: u8) -> Option<ReduceOp> {
        match code {
            0..=9 => Some(Self::ALL[code as usize]),
            10 => Some(ReduceOp::User),
            _ => None,
        }
    }

    /// The operation whose combination is the same for this element type: an average is a sum that is divided at its end,
    /// and of truths only *and*, *or* and *exclusive or* are left.
    pub const fn combination(self, dtype: DataType) -> ReduceOp {
        match (self, dtype) {
            (ReduceOp::Sum | ReduceOp::Max | ReduceOp::LogicalOr, DataType::Bool) => ReduceOp::BitOr,
            (ReduceOp::Product | ReduceOp::Min | ReduceOp::LogicalAnd, DataType::Bool) => ReduceOp::BitAnd,
            (ReduceOp::Average, _) => ReduceOp::Sum,
            (op, _) => op,
        }
    }

    /// Whether the operation is defined for this element type. Bitwise operations want integers or `bool`; `bool`
    /// has no average.
    pub const fn supports(self, dtype: DataType) -> bool {
        match self {
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => !dtype.is_float(),
            ReduceOp::Average => !matches!(dtype, DataType::Bool),
            _ => true,
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let alias = match text {
            "avg" | "mean" => "average",
            "prod" => "product",
            "band" => "bit_and",
            "bor" => "bit_or",
            "bxor" => "bit_xor",
            "land" => "logical_and",
            "lor" => "logical_or",
            other => other,
        };
        Self::ALL.into_iter().find(|op| op.name() == alias).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|op| op.name()).collect();
            format!("unknown reduce op {text:?}; expected one of {}", names.join(", "))
        })
    }
}

/// A complete reduction: the operation, and what every element is multiplied by before and after it.
///
/// The result is `postscale * op(prescale * x0, prescale * x1, ...)`. Floats are scaled in their own type (halves in
/// `f32`), integers in `f64` with the result truncated; `bool` cannot be scaled.
#[derive(Clone)]
pub struct Reduction {
    /// The operation.
    pub op: ReduceOp,
    /// Multiplies each input. 1 means none.
    pub prescale: f64,
    /// Multiplies each result. 1 means none.
    pub postscale: f64,
    /// For [`ReduceOp::User`]: a name, which must be the same on every rank, and the function.
    pub function: Option<(Arc<str>, UserFunction)>,
}

impl Reduction {
    /// `op` without scaling.
    pub const fn new(op: ReduceOp) -> Self {
        Self { op, prescale: 1.0, postscale: 1.0, function: None }
    }

    /// The user's own function under a name that every rank gives alike.
    pub fn user(name: &str, function: impl Fn(&mut [u8], &[u8], DataType) + Send + Sync + 'static) -> Self {
        Self { function: Some((name.into(), Arc::new(function))), ..Self::new(ReduceOp::User) }
    }

    /// Multiplies each input by `factor`.
    pub fn prescale(self, factor: f64) -> Self {
        Self { prescale: factor, ..self }
    }

    /// Multiplies each result by `factor`.
    pub fn postscale(self, factor: f64) -> Self {
        Self { postscale: factor, ..self }
    }
}

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        Self::new(op)
    }
}

impl fmt::Debug for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reduction")
            .field("op", &self.op)
            .field("prescale", &self.prescale)
            .field("postscale", &self.postscale)
            .field("function", &self.function.as_ref().map(|(name, _)| name))
            .finish()
    }
}

/// Which operand stands on the left when a received element meets the one that is here.
///
/// The lower ranks' operand always stands on the left, so that both ends of an exchange compute the same bits even
/// where an operation is not commutative (NaN payloads, a user's function).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// `here op incoming`.
    HereFirst,
    /// `incoming op here`.
    IncomingFirst,
}

/// What is done to an element once every contribution is in: divide by `divisor` (average), multiply by `factor`
/// (postscale). [`Finish::NONE`] does nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finish {
    /// The number of contributions an average divides by; 1 means none.
    pub divisor: u64,
    /// The postscale; 1 means none.
    pub factor: f64,
}

impl Finish {
    /// Leaves elements as they are.
    pub const NONE: Finish = Finish { divisor: 1, factor: 1.0 };

    /// Whether there is nothing to do.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_go_both_ways() {
        for op in ReduceOp::ALL {
            assert_eq!(ReduceOp::from_code(op as u8), Some(op));
            assert_eq!(op.name().parse(), Ok(op));
        }
        assert_eq!(ReduceOp::from_code(10), Some(ReduceOp::User));
        assert_eq!(ReduceOp::from_code(11), None);
    }

    #[test]
    fn operations_without_a_meaning_are_refused() {
        assert!(!ReduceOp::BitAnd.supports(DataType::F32));
        assert!(!ReduceOp::Average.supports(DataType::Bool));
        assert!(ReduceOp::LogicalOr.supports(DataType::F16));
    }
}
