//! Quotients and scales.

use super::*;
use crate::types::Element;
use proptest::prelude::*;

/// A finished copy of the elements, at every level, which must agree.
fn finished<T: Element + PartialEq + std::fmt::Debug>(source: &[T], finish: Finish) -> Vec<T> {
    let mut results = Level::all().into_iter().map(|level| {
        let mut target = source.to_vec();
        let to: *mut u8 = target.as_mut_ptr().cast();
        // SAFETY: source and target have the same length.
        unsafe {
            reduce_by(level, &ReduceOp::Sum.into(), T::DATA_TYPE, to, &[source.as_ptr().cast()], source.len(), finish);
        }
        target
    });
    let first = results.next().unwrap_or_default();
    for other in results {
        assert_eq!(first, other);
    }
    first
}

/// [`scale`] in place and out of place, at every level, which must agree.
fn scaled<T: Element + PartialEq + std::fmt::Debug>(source: &[T], factor: f64) -> Vec<T> {
    let result = finished(source, Finish { divisor: 1, factor });
    for level in Level::all() {
        let mut target = source.to_vec();
        let to: *mut u8 = target.as_mut_ptr().cast();
        // SAFETY: both have the same length.
        unsafe { scale_by(level, T::DATA_TYPE, to, to, source.len(), factor) };
        assert_eq!(target, result);
        // SAFETY: both have the same length.
        unsafe { scale_by(level, T::DATA_TYPE, to, source.as_ptr().cast(), source.len(), factor) };
        assert_eq!(target, result);
    }
    result
}

#[test]
fn integers_divide_exactly_and_towards_zero() {
    let thirds = Finish { divisor: 3, factor: 1.0 };
    assert_eq!(finished(&[-7i8, -6, -1, 0, 1, 6, 7, 127, -128], thirds), [-2, -2, 0, 0, 0, 2, 2, 42, -42]);
    assert_eq!(finished(&[i64::MAX, i64::MIN, -1], thirds), [i64::MAX / 3, i64::MIN / 3, 0]);
    assert_eq!(finished(&[u64::MAX, u64::MAX - 1], thirds), [u64::MAX / 3, u64::MAX / 3 - 1]);
    // A divisor that the type cannot hold.
    assert_eq!(finished(&[-128i8, 127], Finish { divisor: 200, factor: 1.0 }), [0, 0]);
    assert_eq!(finished(&[i64::MIN, i64::MAX], Finish { divisor: 1 << 63, factor: 1.0 }), [-1, 0]);
    assert_eq!(finished(&[u32::MAX; 40], Finish { divisor: u64::MAX, factor: 1.0 }), [0; 40]);
}

#[test]
fn every_small_integer_divides_exactly_by_every_small_divisor() {
    let bytes: Vec<i8> = (i8::MIN..=i8::MAX).collect();
    let unsigned: Vec<u8> = (u8::MIN..=u8::MAX).collect();
    let words: Vec<i16> = (i16::MIN..=i16::MAX).step_by(if cfg!(miri) { 100 } else { 1 }).collect();
    for divisor in 2..if cfg!(miri) { 4 } else { 300 } {
        let finish = Finish { divisor, factor: 1.0 };
        assert!(
            finished(&bytes, finish).iter().zip(&bytes).all(|(q, n)| i64::from(*q) == i64::from(*n) / divisor as i64)
        );
        assert!(
            finished(&unsigned, finish).iter().zip(&unsigned).all(|(q, n)| u64::from(*q) == u64::from(*n) / divisor)
        );
        assert!(
            finished(&words, finish).iter().zip(&words).all(|(q, n)| i64::from(*q) == i64::from(*n) / divisor as i64)
        );
    }
}

#[test]
fn integers_scale_in_f64_and_saturate() {
    assert_eq!(scaled(&[100i8, -100, 7, -7], 1.5), [127, -128, 10, -10]);
    assert_eq!(scaled(&[100u8, 200, 3], -1.0), [0, 0, 0]);
    assert_eq!(scaled(&[i32::MAX, 3], f64::INFINITY), [i32::MAX, i32::MAX]);
    assert_eq!(scaled(&[0i32, 5], f64::NAN), [0, 0]);
    assert_eq!(scaled(&[1i64 << 62, -3], 4.0), [i64::MAX, -12]);
    // No way through `f64`, which could not hold it.
    assert_eq!(scaled(&[i64::MAX - 1, i64::MIN + 1], 1.0), [i64::MAX - 1, i64::MIN + 1]);
}

#[test]
fn floats_scale_in_their_own_type() {
    let tenth = 0.1f64;
    assert_eq!(scaled(&[3.0f32; 70], tenth), [3.0 * tenth as f32; 70]);
    assert_eq!(scaled(&[3.0f64; 70], tenth), [3.0 * tenth; 70]);
    let half = half::bf16::from_f32(3.0);
    assert_eq!(scaled(&[half; 70], tenth), [half::bf16::from_f32(3.0 * tenth as f32); 70]);
    assert_eq!(scaled(&[true, false], 3.0), [true, false]);
}

#[test]
fn a_factor_of_one_copies_bit_by_bit() {
    for dtype in DataType::ALL {
        let source = elements(dtype, 333, 3);
        let mut target = Guarded::new(&vec![0; source.len()], 1);
        // SAFETY: both hold 333 elements.
        unsafe { scale(dtype, target.pointer(), source.as_ptr(), 333, 1.0) };
        assert_same(dtype, target.content(), &source, &dtype);
    }
}

#[test]
fn an_average_is_a_true_division() {
    // 7 * (1 / 7) in `f32` is 1, but there are numbers for which the reciprocal is wrong.
    let numbers: Vec<f32> = (1u8..=200).map(f32::from).collect();
    let sevenths = finished(&numbers, Finish { divisor: 49, factor: 1.0 });
    assert!(numbers.iter().zip(&sevenths).all(|(number, found)| *found == number / 49.0));
    assert!(numbers.iter().zip(&sevenths).any(|(number, found)| *found != number * (1.0 / 49.0)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn wide_integers_divide_exactly(numbers in prop::collection::vec(any::<i64>(), 1..40), divisor in 2..u64::MAX, shift in 0u32..64) {
        let divisor = u64::max(divisor >> shift, 2);
        let finish = Finish { divisor, factor: 1.0 };
        let exact = |number: i128| number / i128::from(divisor);
        let words: Vec<i32> = numbers.iter().map(|&number| number as i32).collect();
        let unsigned: Vec<u32> = numbers.iter().map(|&number| number as u32).collect();
        let long: Vec<u64> = numbers.iter().map(|&number| number as u64).collect();
        prop_assert!(finished(&numbers, finish).iter().zip(&numbers).all(|(q, n)| i128::from(*q) == exact((*n).into())));
        prop_assert!(finished(&words, finish).iter().zip(&words).all(|(q, n)| i128::from(*q) == exact((*n).into())));
        prop_assert!(finished(&unsigned, finish).iter().zip(&unsigned).all(|(q, n)| i128::from(*q) == exact((*n).into())));
        prop_assert!(finished(&long, finish).iter().zip(&long).all(|(q, n)| i128::from(*q) == exact((*n).into())));
    }

    #[test]
    fn any_operands_agree_with_the_reference(
        bits in prop::collection::vec(any::<[u64; 3]>(), 1..200),
        pair in prop::sample::select(pairs().collect::<Vec<_>>()),
        finish in prop::sample::select(FINISHES),
    ) {
        let (dtype, op) = pair;
        let finish = if dtype == DataType::Bool { Finish::NONE } else { finish };
        let sources: Vec<Vec<u8>> = (0..3)
            .map(|way| bits.iter().flat_map(|bits| bits[way].to_le_bytes()[..dtype.size()].to_vec()).collect())
            .collect();
        let slices: Vec<_> = sources.iter().map(Vec::as_slice).collect();
        let expected = reference::reduce(dtype, op, &slices, finish);
        for level in Level::all() {
            let mut target = Guarded::new(&sources[1], 1);
            let to = target.pointer();
            let pointers = [sources[0].as_ptr(), to, sources[2].as_ptr()];
            // SAFETY: all hold as many elements as there are bits.
            unsafe { reduce_by(level, &op.into(), dtype, to, &pointers, bits.len(), finish) };
            assert_same(dtype, target.content(), &expected, &format!("{level:?} {dtype} {op} {finish:?}"));
        }
    }
}
