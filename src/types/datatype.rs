//! Element types: their size, name, and the Rust types that stand for them.

use std::fmt;
use std::str::FromStr;

/// The type of one element of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataType {
    /// IEEE 754 binary16. Reductions accumulate in `f32`.
    F16 = 0,
    /// bfloat16. Reductions accumulate in `f32`.
    BF16 = 1,
    /// IEEE 754 binary32.
    F32 = 2,
    /// IEEE 754 binary64.
    F64 = 3,
    /// Signed, 8 bits.
    I8 = 4,
    /// Unsigned, 8 bits. Also the type of plain bytes.
    U8 = 5,
    /// Signed, 16 bits.
    I16 = 6,
    /// Signed, 32 bits.
    I32 = 7,
    /// Unsigned, 32 bits.
    U32 = 8,
    /// Signed, 64 bits.
    I64 = 9,
    /// Unsigned, 64 bits.
    U64 = 10,
    /// One byte; zero is false, anything else is read as true, and results are written as 0 or 1.
    Bool = 11,
}

impl DataType {
    /// Every type, in the order of their codes.
    pub const ALL: [DataType; 12] = [
        DataType::F16,
        DataType::BF16,
        DataType::F32,
        DataType::F64,
        DataType::I8,
        DataType::U8,
        DataType::I16,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::Bool,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::Bool => 1,
            DataType::F16 | DataType::BF16 | DataType::I16 => 2,
            DataType::F32 | DataType::I32 | DataType::U32 => 4,
            DataType::F64 | DataType::I64 | DataType::U64 => 8,
        }
    }

    /// The type with this code on the wire and in the C interface.
    pub const fn from_code(code: u8) -> Option<DataType> {
        if (code as usize) < Self::ALL.len() { Some(Self::ALL[code as usize]) } else { None }
    }

    /// The name used on the command line and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::F16 => "f16",
            DataType::BF16 => "bf16",
            DataType::F32 => "f32",
            DataType::F64 => "f64",
            DataType::I8 => "i8",
            DataType::U8 => "u8",
            DataType::I16 => "i16",
            DataType::I32 => "i32",
            DataType::U32 => "u32",
            DataType::I64 => "i64",
            DataType::U64 => "u64",
            DataType::Bool => "bool",
        }
    }

    /// Whether this is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, DataType::F16 | DataType::BF16 | DataType::F32 | DataType::F64)
    }

    /// Whether this is a 16-bit floating-point type, which accumulates in `f32`.
    pub const fn is_half(self) -> bool {
        matches!(self, DataType::F16 | DataType::BF16)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DataType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let alias = match text {
            "float16" | "half" => "f16",
            "bfloat16" => "bf16",
            "float" | "float32" => "f32",
            "double" | "float64" => "f64",
            "int8" => "i8",
            "uint8" => "u8",
            "int16" => "i16",
            "int32" => "i32",
            "uint32" => "u32",
            "int64" => "i64",
            "uint64" => "u64",
            other => other,
        };
        Self::ALL.into_iter().find(|dtype| dtype.name() == alias).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|dtype| dtype.name()).collect();
            format!("unknown element type {text:?}; expected one of {}", names.join(", "))
        })
    }
}

/// A Rust type that can stand in a collective's buffer.
///
/// # Safety
///
/// `DATA_TYPE` must describe exactly the size and meaning of `Self`, any bytes that a reduction writes for that
/// data type must be a valid `Self`, and `Self` must have no padding and own nothing.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The element type this Rust type stands for.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        // SAFETY: each Rust type has the size and the representation that the data type names; all bit patterns are
        // valid but for `bool`, for which every kernel writes 0 or 1.
        $(unsafe impl Element for $rust { const DATA_TYPE: DataType = DataType::$dtype; })*
    };
}

elements! {
    half::f16 => F16, half::bf16 => BF16, f32 => F32, f64 => F64, i8 => I8, u8 => U8, i16 => I16, i32 => I32,
    u32 => U32, i64 => I64, u64 => U64, bool => Bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_go_both_ways() {
        for (code, dtype) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(DataType::from_code(code as u8), Some(dtype));
            assert_eq!(dtype as usize, code);
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        assert_eq!(DataType::from_code(12), None);
        assert!("f8".parse::<DataType>().unwrap_err().contains("bf16"));
    }
}
