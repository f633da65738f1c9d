//! Gradients in 8 bits, and the count of wrong elements.

use crate::library::{
    CheckParameters, DequantizeParameters, GRIDS, QuantizeParameters, RunScale, THREADS, launch, library,
};
use crate::memory::{Array, Random};

/// Elements of a run.
const RUN: usize = 1024;

/// Codes, scales and errors of some numbers.
fn quantized(source: &[f32], error: &mut [f32]) -> Option<(Vec<u8>, Vec<RunScale>)> {
    let mut codes = Array::new(&vec![0; source.len()], 5);
    let mut scales = vec![RunScale::default(); source.len().div_ceil(RUN)];
    let parameters = QuantizeParameters {
        codes: codes.pointer(),
        scales: scales.as_mut_ptr(),
        source: source.as_ptr().cast(),
        error: error.as_mut_ptr(),
        count: source.len() as u64,
    };
    // SAFETY: all have as many elements, and there is a scale for each run.
    unsafe { launch(library()?, "phx_quantize_f32", &parameters, (3, THREADS as u32)) };
    codes.check_guards();
    Some((codes.content().to_vec(), scales))
}

fn dequantized(codes: &[u8], scales: &[RunScale], onto: &[f32], adds: bool) -> Option<Vec<f32>> {
    let mut target = onto.to_vec();
    let parameters = DequantizeParameters {
        target: target.as_mut_ptr().cast(),
        codes: codes.as_ptr(),
        scales: scales.as_ptr(),
        count: codes.len() as u64,
        adds: u32::from(adds),
    };
    // SAFETY: as above.
    unsafe { launch(library()?, "phx_dequantize_f32", &parameters, GRIDS[1]) };
    Some(target)
}

#[test]
fn codes_are_the_nearest_steps_and_errors_what_they_leave() {
    let mut random = Random(8);
    for (count, offset, width) in
        [(1, 0.0, 1.0), (1023, 0.0, 1e-3), (1024, 1e6, 1.0), (5000, -3.0, 1e30), (2049, 0.0, 0.0)]
    {
        let source: Vec<f32> =
            (0..count).map(|_| (random.next() as u32 as f32 / 2f32.powi(32)) * width + offset).collect();
        let before: Vec<f32> = (0..count).map(|_| (random.next() as u32 as f32 / 2f32.powi(34)) * width).collect();
        let mut error = before.clone();
        let Some((codes, scales)) = quantized(&source, &mut error) else { return };
        let onto = vec![1.0; count];
        let Some(plain) = dequantized(&codes, &scales, &onto, false) else { return };
        let Some(added) = dequantized(&codes, &scales, &onto, true) else { return };
        assert_eq!(scales.len(), count.div_ceil(RUN));
        for (run, scale) in scales.iter().enumerate() {
            let range = run * RUN..count.min((run + 1) * RUN);
            let values: Vec<f32> = range.clone().map(|at| source[at] + before[at]).collect();
            let least = values.iter().copied().fold(f32::INFINITY, f32::min);
            let greatest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let step = (greatest * 0.5 - least * 0.5) / 127.5;
            assert_eq!((scale.least, scale.step), (least, step));
            for (at, value) in range.zip(values) {
                let nearest = if step > 0.0 {
                    ((value * 0.5 - least * 0.5) / (step * 0.5)).clamp(0.0, 255.0).round_ties_even()
                } else {
                    0.0
                };
                let decoded = least + nearest * step;
                assert_eq!((codes[at], plain[at], added[at]), (nearest as u8, decoded, 1.0 + decoded), "{at}: {value}");
                assert_eq!(error[at], value - decoded);
            }
        }
    }
}

#[test]
fn what_is_lost_in_one_step_is_made_up_for_in_the_next() {
    let gradient: Vec<f32> = (0..RUN).map(|at| (at as f32).sin()).collect();
    let (mut error, mut sum) = (vec![0.0; RUN], vec![0.0; RUN]);
    const STEPS: usize = 200;
    for _ in 0..STEPS {
        let Some((codes, scales)) = quantized(&gradient, &mut error) else { return };
        let Some(next) = dequantized(&codes, &scales, &sum, true) else { return };
        sum = next;
    }
    for (sum, gradient) in sum.iter().zip(&gradient) {
        // Half a step of 2/255 is left, however many steps there were; and the rounding of so many additions.
        assert!((sum - STEPS as f32 * gradient).abs() < 0.005, "{sum} for {STEPS} times {gradient}");
    }
}

#[test]
fn a_run_with_something_that_is_not_finite_is_seen_to_have_it() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut source = vec![0.5; 2 * RUN];
        source[RUN + 7] = bad;
        let mut error = vec![0.25; 2 * RUN];
        let Some((codes, scales)) = quantized(&source, &mut error) else { return };
        let Some(back) = dequantized(&codes, &scales, &source, false) else { return };
        assert!(back[..RUN].iter().all(|number| *number == 0.75) && back[RUN..].iter().all(|number| number.is_nan()));
        assert!(error[RUN..].iter().all(|error| *error == 0.0));
    }
}

#[test]
fn wrong_elements_are_counted() {
    let Some(library) = library() else { return };
    let mut random = Random(9);
    for width in [1, 2, 4, 8] {
        for count in [0, 1, 1000, 70_001] {
            let expected: Vec<u8> = (0..count * width).map(|_| random.next() as u8).collect();
            let mut result = expected.clone();
            let mut wrong = 0;
            for at in 0..count {
                if random.below(100) == 0 {
                    result[at * width + random.below(width)] ^= 1 << random.below(8);
                    wrong += 1;
                }
            }
            let (mut one, mut other) = (Array::new(&result, 1), Array::new(&expected, 8));
            let mut counts = vec![u64::MAX; 4];
            let parameters = CheckParameters {
                result: one.pointer().cast(),
                expected: other.pointer().cast(),
                count: count as u64,
                wrong: counts.as_mut_ptr(),
            };
            // SAFETY: both have `count` elements of `width` bytes, and there is a number for each block.
            unsafe { launch(library, &format!("phx_count_wrong_{width}"), &parameters, (4, THREADS as u32)) };
            assert_eq!(counts.iter().sum::<u64>(), wrong, "{count} of {width} bytes");
        }
    }
}
