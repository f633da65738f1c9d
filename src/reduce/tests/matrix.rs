//! Every type x operation x count x misalignment x finish x level, in both orders and with aliased targets.

use super::*;

/// Distances of target and source from alignment.
const MISALIGNMENTS: &[(usize, usize)] =
    if cfg!(miri) { &[(1, 3)] } else { &[(0, 0), (1, 1), (3, 8), (32, 5), (63, 2)] };

#[test]
fn combine_agrees_with_the_reference() {
    for (number, (dtype, op)) in pairs().enumerate() {
        for &count in COUNTS {
            let here = elements(dtype, count, number as u64);
            let incoming = elements(dtype, count, !(number as u64));
            for &finish in FINISHES.iter().filter(|_| dtype != DataType::Bool).chain(&[Finish::NONE]) {
                let expected = reference::reduce(dtype, op, &[&here, &incoming], finish);
                for level in Level::all() {
                    for &(target_at, source_at) in MISALIGNMENTS {
                        for order in [Order::HereFirst, Order::IncomingFirst] {
                            let mut target = Guarded::new(&here, target_at);
                            let mut source = Guarded::new(&incoming, source_at);
                            let (to, from) = (target.pointer(), source.pointer());
                            // SAFETY: both hold `count` elements.
                            unsafe { combine_by(level, &op.into(), dtype, to, from, count, order, finish) };
                            let context = format!("{level:?} {dtype} {op} x {count} {finish:?} {order:?}");
                            assert_same(dtype, target.content(), &expected, &context);
                            assert_eq!(source.content(), incoming, "{context}: the source was written");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn reduce_agrees_with_the_reference_whatever_the_target() {
    let sources_of = if cfg!(miri) { 3..=3 } else { 1..=6 };
    for (number, (dtype, op)) in pairs().enumerate() {
        for &count in COUNTS {
            for ways in sources_of.clone() {
                let contents: Vec<_> = (0..ways).map(|way| elements(dtype, count, (number * 8 + way) as u64)).collect();
                let slices: Vec<_> = contents.iter().map(Vec::as_slice).collect();
                let finish =
                    if dtype == DataType::Bool { Finish::NONE } else { FINISHES[(count + ways) % FINISHES.len()] };
                let expected = reference::reduce(dtype, op, &slices, finish);
                for level in Level::all() {
                    // The last round has a target of its own.
                    for alias in 0..=ways {
                        let mut runs: Vec<_> =
                            contents.iter().enumerate().map(|(way, run)| Guarded::new(run, 5 * way)).collect();
                        let mut own = Guarded::new(&vec![0x5a; count * dtype.size()], 7);
                        let sources: Vec<_> = runs.iter_mut().map(|run| run.pointer().cast_const()).collect();
                        let target = sources.get(alias).map_or_else(|| own.pointer(), |source| source.cast_mut());
                        // SAFETY: all hold `count` elements.
                        unsafe { reduce_by(level, &op.into(), dtype, target, &sources, count, finish) };
                        let context = format!("{level:?} {dtype} {op} x {count} of {ways} into {alias} {finish:?}");
                        let found = runs.get(alias).unwrap_or(&own);
                        assert_same(dtype, found.content(), &expected, &context);
                        for (way, run) in runs.iter().enumerate().filter(|(way, _)| *way != alias) {
                            assert_eq!(run.content(), contents[way], "{context}: source {way} was written");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn one_run_may_be_several_sources_and_the_target_too() {
    for (dtype, op) in pairs() {
        let (run, other) = (elements(dtype, 777, 1), elements(dtype, 777, 2));
        let expected = reference::reduce(dtype, op, &[&run, &other, &run, &run], Finish::NONE);
        for level in Level::all() {
            let (mut target, mut other) = (Guarded::new(&run, 9), Guarded::new(&other, 2));
            let (to, from) = (target.pointer(), other.pointer().cast_const());
            let sources = [to.cast_const(), from, to, to];
            // SAFETY: both hold 777 elements.
            unsafe { reduce_by(level, &op.into(), dtype, to, &sources, 777, Finish::NONE) };
            assert_same(dtype, target.content(), &expected, &format!("{level:?} {dtype} {op}"));
        }
    }
}

#[test]
fn nothing_is_read_or_written_for_nothing() {
    let (to, from) = (std::ptr::null_mut(), std::ptr::null());
    let user = Reduction::user("never", |_, _, _| panic!("called for no elements"));
    for dtype in DataType::ALL {
        for reduction in [ReduceOp::Sum.into(), user.clone()] {
            // SAFETY: no element is touched.
            unsafe {
                combine(&reduction, dtype, to, from, 0, Order::IncomingFirst, Finish::NONE);
                reduce(&reduction, dtype, to, &[from, from, from], 0, Finish { divisor: 2, factor: 2.0 });
                reduce(&reduction, dtype, to, &[from], 0, Finish::NONE);
                scale(dtype, to, from, 0, 2.0);
            }
        }
    }
    let mut target = [1u32; 3];
    // SAFETY: the target holds three elements, and there are no sources.
    unsafe { reduce(&ReduceOp::Sum.into(), DataType::U32, target.as_mut_ptr().cast(), &[], 3, Finish::NONE) };
    assert_eq!(target, [1; 3]);
}

/// Without debug assertions, what the rooms above should have refused does nothing at all.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "bit_and of f32"))]
fn an_undefined_operation_leaves_the_target_alone() {
    let mut target = [1.0f32; 3];
    let to = target.as_mut_ptr().cast();
    // SAFETY: the array holds three elements.
    unsafe { reduce(&ReduceOp::BitAnd.into(), DataType::F32, to, &[to, to], 3, Finish::NONE) };
    assert_eq!(target, [1.0; 3]);
}
