//! A user's own function.

use super::*;

/// Composition of maps x -> a x + b on bytes: associative, but not commutative, so that a wrong order shows.
fn compose() -> Reduction {
    Reduction::user("compose", |left, right, dtype| {
        assert_eq!(dtype, DataType::I16);
        assert_eq!(left.len(), right.len());
        assert_eq!(left.len() % 2, 0);
        for (left, right) in left.chunks_mut(2).zip(right.chunks(2)) {
            let map = [left[0].wrapping_mul(right[0]), left[1].wrapping_mul(right[0]).wrapping_add(right[1])];
            left.copy_from_slice(&map);
        }
    })
}

/// `first` then `second` then ..., by the plainest code.
fn composed(runs: &[&[u8]]) -> Vec<u8> {
    let mut result = runs[0].to_vec();
    for run in &runs[1..] {
        for (left, right) in result.chunks_mut(2).zip(run.chunks(2)) {
            (left[0], left[1]) =
                (left[0].wrapping_mul(right[0]), left[1].wrapping_mul(right[0]).wrapping_add(right[1]));
        }
    }
    result
}

#[test]
fn the_left_operand_is_the_one_asked_for() {
    for &count in COUNTS.iter().chain(&[10_000]) {
        let (here, incoming) = (elements(DataType::I16, count, 1), elements(DataType::I16, count, 2));
        for order in [Order::HereFirst, Order::IncomingFirst] {
            let expected = match order {
                Order::HereFirst => composed(&[&here, &incoming]),
                Order::IncomingFirst => composed(&[&incoming, &here]),
            };
            let mut target = Guarded::new(&here, 3);
            // SAFETY: both hold `count` elements.
            unsafe {
                let to = target.pointer();
                combine(&compose(), DataType::I16, to, incoming.as_ptr(), count, order, Finish::NONE);
            }
            assert_same(DataType::I16, target.content(), &expected, &format!("{order:?} x {count}"));
        }
    }
}

#[test]
fn sources_are_taken_from_left_to_right_whatever_the_target() {
    let contents: Vec<_> = (0..4).map(|way| elements(DataType::I16, 9000, way)).collect();
    let slices: Vec<_> = contents.iter().map(Vec::as_slice).collect();
    let expected = composed(&slices);
    for alias in 0..=4 {
        let mut runs: Vec<_> = contents.iter().map(|run| Guarded::new(run, 1)).collect();
        let mut own = Guarded::new(&vec![0; 18000], 1);
        let sources: Vec<_> = runs.iter_mut().map(|run| run.pointer().cast_const()).collect();
        let target = sources.get(alias).map_or_else(|| own.pointer(), |source| source.cast_mut());
        // SAFETY: all hold 9000 elements.
        unsafe { reduce(&compose(), DataType::I16, target, &sources, 9000, Finish::NONE) };
        assert_same(DataType::I16, runs.get(alias).unwrap_or(&own).content(), &expected, &alias);
    }
}

#[test]
fn what_the_function_leaves_is_finished_and_true_or_false() {
    let sum = Reduction::user("sum", |left, right, _| {
        for (left, right) in left.iter_mut().zip(right) {
            *left += right;
        }
    });
    let mut target = [1u8, 2, 3];
    let finish = Finish { divisor: 1, factor: 2.5 };
    // SAFETY: both hold three elements.
    unsafe {
        let to = target.as_mut_ptr();
        combine(&sum, DataType::U8, to, [1u8, 2, 3].as_ptr(), 3, Order::IncomingFirst, finish);
    }
    assert_eq!(target, [5, 10, 15]);

    let mut target = [0u8, 1, 1];
    // SAFETY: both hold three elements.
    unsafe {
        let to = target.as_mut_ptr();
        combine(&sum, DataType::Bool, to, [0u8, 0, 1].as_ptr(), 3, Order::HereFirst, Finish::NONE);
    }
    assert_eq!(target, [0, 1, 1]);
    // SAFETY: both hold three elements.
    unsafe { reduce(&sum, DataType::Bool, target.as_mut_ptr(), &[[9u8, 0, 1].as_ptr()], 3, Finish::NONE) };
    assert_eq!(target, [1, 0, 1]);
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "user of u8"))]
fn a_missing_function_leaves_the_target_alone() {
    let mut target = [1u8; 3];
    let to = target.as_mut_ptr();
    // SAFETY: the array holds three elements.
    unsafe { reduce(&Reduction::new(ReduceOp::User), DataType::U8, to, &[to, to], 3, Finish::NONE) };
    assert_eq!(target, [1; 3]);
}
