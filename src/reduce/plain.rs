//! The arithmetic in its plainest form: one element at a time, every integer as an `i128`.

use crate::types::{DataType, Finish, ReduceOp};
use half::{bf16, f16};

/// One element, widened to the type that it is calculated in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Single(f32),
    Double(f64),
    Integer(i128),
    Truth(bool),
}

/// Reads element `index`.
///
/// # Safety
///
/// `source` must be valid for reads of `index + 1` elements.
pub(super) unsafe fn load(dtype: DataType, source: *const u8, index: usize) -> Value {
    let mut bytes = [0; 8];
    let size = dtype.size();
    // SAFETY: the caller vouches for the element, and no element is longer than eight bytes.
    unsafe { source.add(index * size).copy_to_nonoverlapping(bytes.as_mut_ptr(), size) };
    let word = u64::from_ne_bytes(bytes);
    let word = if cfg!(target_endian = "big") { word >> (64 - 8 * size) } else { word };
    match dtype {
        DataType::F16 => Value::Single(f16::from_bits(word as u16).to_f32()),
        DataType::BF16 => Value::Single(bf16::from_bits(word as u16).to_f32()),
        DataType::F32 => Value::Single(f32::from_bits(word as u32)),
        DataType::F64 => Value::Double(f64::from_bits(word)),
        DataType::I8 => Value::Integer(i128::from(word as i8)),
        DataType::I16 => Value::Integer(i128::from(word as i16)),
        DataType::I32 => Value::Integer(i128::from(word as i32)),
        DataType::I64 => Value::Integer(i128::from(word as i64)),
        DataType::U8 | DataType::U32 | DataType::U64 => Value::Integer(i128::from(word)),
        DataType::Bool => Value::Truth(word != 0),
    }
}

/// Writes element `index`; integers wrap, halves are rounded.
///
/// # Safety
///
/// `target` must be valid for writes of `index + 1` elements.
pub(super) unsafe fn store(dtype: DataType, target: *mut u8, index: usize, value: Value) {
    let word = match (dtype, value) {
        (DataType::F16, Value::Single(value)) => u64::from(f16::from_f32(value).to_bits()),
        (DataType::BF16, Value::Single(value)) => u64::from(bf16::from_f32(value).to_bits()),
        (_, Value::Single(value)) => u64::from(value.to_bits()),
        (_, Value::Double(value)) => value.to_bits(),
        (_, Value::Integer(value)) => value as u64,
        (_, Value::Truth(value)) => u64::from(value),
    };
    let size = dtype.size();
    let word = if cfg!(target_endian = "big") { word << (64 - 8 * size) } else { word };
    // SAFETY: the caller vouches for the element, and no element is longer than eight bytes.
    unsafe { target.add(index * size).copy_from_nonoverlapping(word.to_ne_bytes().as_ptr(), size) };
}

/// An integer as the type would hold it.
fn wrap(dtype: DataType, value: i128) -> Value {
    Value::Integer(match dtype {
        DataType::I8 => i128::from(value as i8),
        DataType::U8 => i128::from(value as u8),
        DataType::I16 => i128::from(value as i16),
        DataType::I32 => i128::from(value as i32),
        DataType::U32 => i128::from(value as u32),
        DataType::I64 => i128::from(value as i64),
        _ => i128::from(value as u64),
    })
}

/// `left op right`.
pub(super) fn apply(op: ReduceOp, dtype: DataType, left: Value, right: Value) -> Value {
    use ReduceOp::*;
    match (left, right) {
        (Value::Single(a), Value::Single(b)) => {
            let value = match op {
                Sum | Average => a + b,
                Product => a * b,
                Min | Max if a.is_nan() || b.is_nan() => f32::NAN,
                Min => {
                    if b.total_cmp(&a).is_lt() {
                        b
                    } else {
                        a
                    }
                }
                Max => {
                    if b.total_cmp(&a).is_gt() {
                        b
                    } else {
                        a
                    }
                }
                LogicalAnd => f32::from(u8::from(a != 0.0 && b != 0.0)),
                LogicalOr => f32::from(u8::from(a != 0.0 || b != 0.0)),
                _ => a,
            };
            Value::Single(if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value })
        }
        (Value::Double(a), Value::Double(b)) => {
            let value = match op {
                Sum | Average => a + b,
                Product => a * b,
                Min | Max if a.is_nan() || b.is_nan() => f64::NAN,
                Min => {
                    if b.total_cmp(&a).is_lt() {
                        b
                    } else {
                        a
                    }
                }
                Max => {
                    if b.total_cmp(&a).is_gt() {
                        b
                    } else {
                        a
                    }
                }
                LogicalAnd => f64::from(u8::from(a != 0.0 && b != 0.0)),
                LogicalOr => f64::from(u8::from(a != 0.0 || b != 0.0)),
                _ => a,
            };
            Value::Double(if value.is_nan() { f64::from_bits(0x7ff8 << 48) } else { value })
        }
        (Value::Integer(a), Value::Integer(b)) => {
            let value = match op {
                Sum | Average => a + b,
                Product => a.wrapping_mul(b),
                Min => a.min(b),
                Max => a.max(b),
                BitAnd => a & b,
                BitOr => a | b,
                BitXor => a ^ b,
                LogicalAnd => i128::from(a != 0 && b != 0),
                LogicalOr => i128::from(a != 0 || b != 0),
                User => a,
            };
            wrap(dtype, value)
        }
        (Value::Truth(a), Value::Truth(b)) => Value::Truth(match op {
            Sum | Max | BitOr | LogicalOr => a || b,
            Product | Min | BitAnd | LogicalAnd => a && b,
            BitXor => a != b,
            _ => a,
        }),
        _ => left,
    }
}

/// Divides and multiplies as `finish` asks.
pub(super) fn settle(dtype: DataType, value: Value, finish: Finish) -> Value {
    if finish.is_none() {
        return value;
    }
    match value {
        Value::Single(value) => {
            let mut value = value;
            if finish.divisor > 1 {
                value /= finish.divisor as f32;
            }
            if finish.factor != 1.0 {
                value *= finish.factor as f32;
            }
            Value::Single(if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value })
        }
        Value::Double(value) => {
            let mut value = value;
            if finish.divisor > 1 {
                value /= finish.divisor as f64;
            }
            if finish.factor != 1.0 {
                value *= finish.factor;
            }
            Value::Double(if value.is_nan() { f64::from_bits(0x7ff8 << 48) } else { value })
        }
        Value::Integer(value) => {
            let mut value = value;
            if finish.divisor > 1 {
                value /= i128::from(finish.divisor);
            }
            if finish.factor != 1.0 {
                let scaled = value as f64 * finish.factor;
                value = match dtype {
                    DataType::I8 => i128::from(scaled as i8),
                    DataType::U8 => i128::from(scaled as u8),
                    DataType::I16 => i128::from(scaled as i16),
                    DataType::I32 => i128::from(scaled as i32),
                    DataType::U32 => i128::from(scaled as u32),
                    DataType::I64 => i128::from(scaled as i64),
                    _ => i128::from(scaled as u64),
                };
            }
            Value::Integer(value)
        }
        Value::Truth(_) => value,
    }
}
