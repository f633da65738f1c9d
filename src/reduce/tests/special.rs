//! Answers written out by hand, every pair of edges, and every half.

use super::*;
use crate::types::Element;
use half::{bf16, f16};

/// `left op right` by [`combine`], at every level, which must agree.
fn both<T: Element + PartialEq + std::fmt::Debug>(op: ReduceOp, left: T, right: T) -> T {
    let [first, ..] = Level::all()
        .into_iter()
        .flat_map(|level| {
            [1, 8, 64].map(|count| {
                let (mut target, incoming) = (vec![left; count], vec![right; count]);
                let (to, from) = (target.as_mut_ptr().cast(), incoming.as_ptr().cast());
                // SAFETY: both hold `count` elements.
                unsafe { combine_by(level, &op.into(), T::DATA_TYPE, to, from, count, Order::HereFirst, Finish::NONE) };
                target[count - 1]
            })
        })
        .collect::<Vec<_>>()[..]
    else {
        unreachable!("there is always a level")
    };
    first
}

#[test]
fn integers_wrap() {
    assert_eq!(both(ReduceOp::Sum, 127i8, 1), -128);
    assert_eq!(both(ReduceOp::Sum, 200u8, 100), 44);
    assert_eq!(both(ReduceOp::Product, i16::MIN, -1), i16::MIN);
    assert_eq!(both(ReduceOp::Sum, i32::MAX, i32::MAX), -2);
    assert_eq!(both(ReduceOp::Product, u32::MAX, u32::MAX), 1);
    assert_eq!(both(ReduceOp::Product, i64::MAX, 2), -2);
    assert_eq!(both(ReduceOp::Sum, u64::MAX, 2), 1);
}

#[test]
fn signs_of_integers_matter_for_their_order() {
    assert_eq!((both(ReduceOp::Min, -1i8, 1), both(ReduceOp::Max, -1i8, 1)), (-1, 1));
    assert_eq!((both(ReduceOp::Min, 255u8, 1), both(ReduceOp::Max, 255u8, 1)), (1, 255));
    assert_eq!((both(ReduceOp::Min, i64::MIN, 1), both(ReduceOp::Max, i64::MIN, 1)), (i64::MIN, 1));
    assert_eq!((both(ReduceOp::Min, u64::MAX, 1), both(ReduceOp::Max, u64::MAX, 1)), (1, u64::MAX));
}

#[test]
fn the_smallest_and_largest_of_floats_know_nan_and_negative_zero() {
    for (left, right) in [(f32::NAN, 1.0), (1.0, f32::NAN), (-f32::NAN, f32::INFINITY), (-0.0, f32::NAN)] {
        for op in [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Product] {
            assert_eq!(both(op, left, right).to_bits(), 0x7fc0_0000, "{left} {op} {right}");
            let (left, right) = (f64::from(left), f64::from(right));
            assert_eq!(both(op, left, right).to_bits(), 0x7ff8 << 48, "{left} {op} {right}");
            let (left, right) = (f16::from_f64(left), f16::from_f64(right));
            assert_eq!(both(op, left, right).to_bits(), 0x7e00, "{left} {op} {right}");
            let (left, right) = (bf16::from_f64(left.to_f64()), bf16::from_f64(right.to_f64()));
            assert_eq!(both(op, left, right).to_bits(), 0x7fc0, "{left} {op} {right}");
        }
    }
    for (left, right) in [(0.0f32, -0.0), (-0.0, 0.0)] {
        assert!(both(ReduceOp::Min, left, right).is_sign_negative());
        assert!(both(ReduceOp::Max, left, right).is_sign_positive());
    }
    // What no number comes of is NaN, of one sign on every processor.
    assert_eq!(both(ReduceOp::Sum, f32::INFINITY, f32::NEG_INFINITY).to_bits(), 0x7fc0_0000);
    assert_eq!(both(ReduceOp::Product, 0.0, f64::NEG_INFINITY).to_bits(), 0x7ff8 << 48);
}

#[test]
fn logic_reads_zero_as_false_and_nan_as_true() {
    assert_eq!(both(ReduceOp::LogicalAnd, f32::NAN, -2.5), 1.0);
    assert_eq!(both(ReduceOp::LogicalOr, -0.0, 0.0f64).to_bits(), 0);
    assert_eq!(both(ReduceOp::LogicalAnd, f16::from_bits(1), f16::INFINITY), f16::ONE);
    assert_eq!(both(ReduceOp::LogicalOr, bf16::ZERO, bf16::from_bits(0x8001)), bf16::ONE);
    assert_eq!(both(ReduceOp::LogicalAnd, -8i64, 16), 1);
    assert_eq!(both(ReduceOp::LogicalOr, 0u16 as i16, 256), 1);
}

#[test]
fn truth_has_its_own_sums_and_products() {
    use ReduceOp::*;
    for (left, right) in [(false, false), (false, true), (true, false), (true, true)] {
        for op in [Sum, Max, BitOr, LogicalOr] {
            assert_eq!(both(op, left, right), left || right);
        }
        for op in [Product, Min, BitAnd, LogicalAnd] {
            assert_eq!(both(op, left, right), left && right);
        }
        assert_eq!(both(BitXor, left, right), left != right);
    }
}

#[test]
fn halves_are_rounded_once() {
    // 2048 + 1 + 1: rounding after each addition would stay at 2048, whose neighbours are 2 apart.
    let sources = [[f16::from_f32(2048.0); 40], [f16::ONE; 40], [f16::ONE; 40]];
    let pointers = sources.each_ref().map(|source| source.as_ptr().cast());
    for level in Level::all() {
        let mut target = [f16::ZERO; 40];
        let to = target.as_mut_ptr().cast();
        // SAFETY: all hold 40 elements.
        unsafe { reduce_by(level, &ReduceOp::Sum.into(), DataType::F16, to, &pointers, 40, Finish::NONE) };
        assert_eq!(target, [f16::from_f32(2050.0); 40]);
    }
    // The sum of two large ones overflows before the average, but not in `f32`.
    let finish = Finish { divisor: 2, factor: 1.0 };
    let mut target = [f16::MAX; 40];
    // SAFETY: both hold 40 elements.
    unsafe {
        let (to, from) = (target.as_mut_ptr().cast(), [f16::MAX; 40].as_ptr().cast());
        combine(&ReduceOp::Average.into(), DataType::F16, to, from, 40, Order::HereFirst, finish);
    }
    assert_eq!(target, [f16::MAX; 40]);
}

#[test]
fn every_pair_of_edges_agrees_with_the_reference() {
    for (dtype, op) in pairs() {
        let edges = edges(dtype);
        let left: Vec<u8> = edges.iter().flat_map(|left| left.repeat(edges.len())).collect();
        let right = edges.concat().repeat(edges.len());
        let count = left.len() / dtype.size();
        for &finish in FINISHES.iter().filter(|_| dtype != DataType::Bool).chain(&[Finish::NONE]) {
            let expected = reference::reduce(dtype, op, &[&left, &right], finish);
            for level in Level::all() {
                let (mut target, mut source) = (Guarded::new(&left, 1), Guarded::new(&right, 2));
                let (to, from) = (target.pointer(), source.pointer());
                // SAFETY: both hold `count` elements.
                unsafe { combine_by(level, &op.into(), dtype, to, from, count, Order::HereFirst, finish) };
                assert_same(dtype, target.content(), &expected, &format!("{level:?} {dtype} {op} {finish:?}"));
            }
        }
    }
}

/// Casts `count` elements at every level, which must agree.
fn cast_all(from: DataType, to: DataType, source: &[u8]) -> Vec<u8> {
    let count = source.len() / from.size();
    let mut results = Level::all().into_iter().map(|level| {
        let mut source = Guarded::new(source, 3);
        let mut target = Guarded::new(&vec![0; count * to.size()], 6);
        // SAFETY: both hold `count` elements.
        unsafe { cast_by(level, from, source.pointer(), to, target.pointer(), count) };
        target.content().to_vec()
    });
    let first = results.next().unwrap_or_default();
    assert!(results.all(|other| other == first), "levels disagree on {from} to {to}");
    first
}

#[test]
fn every_half_widens_and_comes_back_at_every_level() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for dtype in [DataType::F16, DataType::BF16] {
        let singles = cast_all(dtype, DataType::F32, &halves);
        let back = cast_all(DataType::F32, dtype, &singles);
        for bits in 0..=u16::MAX {
            let at = usize::from(bits);
            let single = f32::from_le_bytes(std::array::from_fn(|i| singles[4 * at + i]));
            let (expected, quiet) = match dtype {
                DataType::F16 => (f16::from_bits(bits).to_f32(), 0x200),
                _ => (bf16::from_bits(bits).to_f32(), 0x40),
            };
            assert_eq!(single.to_bits(), expected.to_bits(), "{dtype} {bits:#06x}");
            let back = u16::from_le_bytes([back[2 * at], back[2 * at + 1]]);
            assert_eq!(back, if single.is_nan() { bits | quiet } else { bits }, "{dtype} {bits:#06x}");
        }
    }
}

#[test]
fn narrowing_agrees_with_the_half_crate_at_every_level() {
    let mut stream = Stream(5);
    let bits: Vec<u32> = (0..if cfg!(miri) { 1 << 9 } else { 1 << 18 })
        .map(|step: u32| {
            let word = stream.next() as u32;
            // Any bits; ties between two neighbours; and what lies next to ties.
            match step % 4 {
                0 => word,
                1 => word & !0x1fff | 0x1000,
                2 => word & 0xffff_0000 | 0x8000,
                _ => (word & !0x1fff | 0x1000).wrapping_add(word & 2).wrapping_sub(1),
            }
        })
        .collect();
    let singles: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    for dtype in [DataType::F16, DataType::BF16] {
        let expected: Vec<u8> = bits
            .iter()
            .flat_map(|&bits| match dtype {
                DataType::F16 => f16::from_f32(f32::from_bits(bits)).to_le_bytes(),
                _ => bf16::from_f32(f32::from_bits(bits)).to_le_bytes(),
            })
            .collect();
        assert_same(dtype, &cast_all(DataType::F32, dtype, &singles), &expected, &format!("f32 to {dtype}"));
    }
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "a cast from f32 to i32"))]
fn an_unknown_cast_leaves_the_target_alone() {
    let mut target = [7i32; 2];
    // SAFETY: both hold two elements.
    unsafe { cast(DataType::F32, [1.0f32; 2].as_ptr().cast(), DataType::I32, target.as_mut_ptr().cast(), 2) };
    assert_eq!(target, [7; 2]);
}
