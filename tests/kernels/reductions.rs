//! Reductions and scaling, over every type and operation.

use std::ffi::c_void;

use phalanx::reduce;
use phalanx::types::Finish as HostFinish;
use phalanx::{DataType, ReduceOp, Reduction};

use crate::library::{Finish, GRIDS, MOST_SOURCES, ReduceParameters, ScaleParameters, launch, library};
use crate::memory::{Array, Random, elements};

const COUNTS: [usize; 12] = [0, 1, 2, 3, 7, 8, 15, 16, 17, 33, 255, 1027];

const FINISHES: [(u64, f64); 6] = [(1, 1.0), (3, 1.0), (4, 1.0), (1, 0.3), (7, -2.5), (1, f64::NAN)];

/// How the arrays of a launch lie: the target's offset, and by how much each source's differs from the one before.
fn layouts(size: usize) -> [(usize, usize); 5] {
    [(0, 0), (size % 16, 0), (0, size), (1, 0), (3, 1)]
}

#[test]
fn reductions_have_the_bits_of_the_host() {
    let Some(library) = library() else { return };
    let mut random = Random(1);
    let mut compared = 0;
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
            for (case, count) in COUNTS.into_iter().enumerate() {
                for (sources, layout) in [2, 2, 3, 5, MOST_SOURCES].into_iter().zip(layouts(dtype.size())) {
                    let (divisor, factor) = FINISHES[(case + sources) % FINISHES.len()];
                    let inputs: Vec<Vec<u8>> = (0..sources).map(|_| elements(dtype, count, &mut random)).collect();
                    let mut expected = vec![0; count * dtype.size()];
                    let pointers: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr()).collect();
                    let finish = HostFinish { divisor, factor };
                    // SAFETY: every array has `count` elements, and all are apart.
                    unsafe {
                        reduce::reduce(&Reduction::new(op), dtype, expected.as_mut_ptr(), &pointers, count, finish);
                    }
                    // Where all lie alike, the target is one of the sources now and then.
                    let in_place = (layout.1 == 0 && case % 2 == 1).then(|| random.below(sources));
                    let mut arrays: Vec<Array> = inputs
                        .iter()
                        .enumerate()
                        .map(|(at, input)| Array::new(input, (layout.0 + at * layout.1) % 64))
                        .collect();
                    let mut own = Array::new(&vec![0x77; count * dtype.size()], layout.0);
                    let mut parameters = ReduceParameters {
                        target: own.pointer().cast(),
                        sources: [std::ptr::null(); MOST_SOURCES],
                        count: count as u64,
                        finish: Finish { divisor, factor },
                        sources_used: sources as u32,
                    };
                    for (place, array) in parameters.sources.iter_mut().zip(&mut arrays) {
                        *place = array.pointer().cast::<c_void>();
                    }
                    if let Some(at) = in_place {
                        parameters.target = parameters.sources[at].cast_mut();
                    }
                    let name = format!("phx_reduce_{}_{dtype}", op.combination(dtype));
                    // SAFETY: the arrays are as the kernel wants them.
                    unsafe { launch(library, &name, &parameters, GRIDS[case % GRIDS.len()]) };
                    let result = in_place.map_or(&own, |at| &arrays[at]).content();
                    assert!(
                        result == expected,
                        "{name}, {count} elements, {sources} sources, {layout:?}, {divisor}, {factor}: {:?}",
                        first_difference(result, &expected, dtype.size())
                    );
                    arrays.iter().chain([&own]).for_each(Array::check_guards);
                    compared += count;
                }
            }
        }
    }
    assert!(compared > 100_000, "{compared} elements were compared");
}

#[test]
fn scaling_has_the_bits_of_the_host() {
    let Some(library) = library() else { return };
    let mut random = Random(2);
    for dtype in DataType::ALL {
        for (case, count) in COUNTS.into_iter().enumerate() {
            for (offset, further) in layouts(dtype.size()) {
                for factor in [1.0, 0.25, 3.7, -1e9, f64::NAN, f64::INFINITY] {
                    let input = elements(dtype, count, &mut random);
                    let mut expected = vec![0; input.len()];
                    // SAFETY: both have `count` elements, and are apart.
                    unsafe { reduce::scale(dtype, expected.as_mut_ptr(), input.as_ptr(), count, factor) };
                    let mut source = Array::new(&input, offset + further);
                    let mut target = Array::new(&vec![0x77; input.len()], offset);
                    let parameters = ScaleParameters {
                        target: target.pointer().cast(),
                        source: source.pointer().cast(),
                        count: count as u64,
                        finish: Finish { divisor: 1, factor },
                    };
                    // SAFETY: as above.
                    unsafe { launch(library, &format!("phx_scale_{dtype}"), &parameters, GRIDS[case % GRIDS.len()]) };
                    assert!(
                        target.content() == expected,
                        "{count} of {dtype} by {factor}: {:?}",
                        first_difference(target.content(), &expected, dtype.size())
                    );
                    target.check_guards();
                }
            }
        }
    }
}

/// The first element that differs: its number, and both.
pub fn first_difference(result: &[u8], expected: &[u8], size: usize) -> Option<(usize, Vec<u8>, Vec<u8>)> {
    let pairs = result.chunks(size).zip(expected.chunks(size)).enumerate();
    pairs.into_iter().find(|(_, (one, other))| one != other).map(|(at, (one, other))| (at, one.into(), other.into()))
}
