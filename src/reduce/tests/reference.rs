//! The arithmetic in its plainest form: one element at a time, every integer as an `i128`, halves by the `half` crate.

use crate::types::{DataType, Finish, ReduceOp};
use half::{bf16, f16};

/// `sources[0] op sources[1] op ...`, finished.
pub(super) fn reduce(dtype: DataType, op: ReduceOp, sources: &[&[u8]], finish: Finish) -> Vec<u8> {
    let logical = matches!(op, ReduceOp::LogicalAnd | ReduceOp::LogicalOr);
    if sources.len() == 1 && finish.is_none() && dtype != DataType::Bool && !logical {
        return sources[0].to_vec();
    }
    let mut result = Vec::new();
    for index in 0..sources[0].len() / dtype.size() {
        let mut value = load(dtype, sources[0], index);
        if sources.len() == 1 && logical {
            value = apply(op, dtype, value, value);
        }
        for source in &sources[1..] {
            value = apply(op, dtype, value, load(dtype, source, index));
        }
        result.extend(store(dtype, settle(dtype, value, finish)));
    }
    result
}

/// One element, widened to the type that it is calculated in.
#[derive(Clone, Copy, Debug)]
enum Value {
    Single(f32),
    Double(f64),
    Integer(i128),
    Truth(bool),
}

fn load(dtype: DataType, source: &[u8], index: usize) -> Value {
    let size = dtype.size();
    let bytes = &source[index * size..][..size];
    let word = bytes.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
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

/// The bytes of an element: integers wrap, halves are rounded.
fn store(dtype: DataType, value: Value) -> Vec<u8> {
    let word = match (dtype, value) {
        (DataType::F16, Value::Single(value)) => u64::from(f16::from_f32(value).to_bits()),
        (DataType::BF16, Value::Single(value)) => u64::from(bf16::from_f32(value).to_bits()),
        (_, Value::Single(value)) => u64::from(value.to_bits()),
        (_, Value::Double(value)) => value.to_bits(),
        (_, Value::Integer(value)) => value as u64,
        (_, Value::Truth(value)) => u64::from(value),
    };
    word.to_le_bytes()[..dtype.size()].to_vec()
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
fn apply(op: ReduceOp, dtype: DataType, left: Value, right: Value) -> Value {
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
fn settle(dtype: DataType, value: Value, finish: Finish) -> Value {
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
