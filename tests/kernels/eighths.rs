//! Floats of 8 bits, which the host does not have: by what the formats say (OCP 8-bit Floating Point Specification 1.0).

use std::ffi::c_void;

use crate::library::{CastParameters, Finish, GRIDS, MOST_SOURCES, ReduceParameters, launch, library};
use crate::memory::{Array, Random};

/// A format: its name, bits of fraction, the bias of its exponent, and the last code that is a finite number.
const FORMATS: [(&str, u32, i32, u8); 2] = [("f8_e4m3", 3, 7, 0x7e), ("f8_e5m2", 2, 15, 0x7b)];

type Format = (&'static str, u32, i32, u8);

/// What a code stands for.
fn value((_, fraction_bits, bias, last): Format, code: u8) -> f32 {
    let (sign, magnitude) = (if code & 0x80 == 0 { 1.0 } else { -1.0 }, code & 0x7f);
    if magnitude > last {
        return if fraction_bits == 2 && magnitude == 0x7c { sign * f32::INFINITY } else { f32::NAN };
    }
    let steps = f64::from(magnitude & ((1 << fraction_bits) - 1));
    let (exponent, unit) = (i32::from(magnitude >> fraction_bits), f64::from(1u32 << fraction_bits));
    let value = match exponent {
        0 => steps / unit * 2f64.powi(1 - bias),
        _ => (1.0 + steps / unit) * 2f64.powi(exponent - bias),
    };
    sign * value as f32
}

/// The code of the nearest finite number, of two the even one; that of NaN.
fn code(format: Format, single: f32) -> u8 {
    let (_, fraction_bits, _, last) = format;
    if single.is_nan() {
        return if fraction_bits == 3 { 0x7f } else { 0x7e };
    }
    let sign = if single.is_sign_negative() { 0x80 } else { 0 };
    if single.abs() >= value(format, last) {
        return sign | last;
    }
    let away = |code: u8| (f64::from(value(format, code)) - f64::from(single.abs())).abs();
    let nearest = |left: u8, right: u8| match away(left).partial_cmp(&away(right)) {
        Some(std::cmp::Ordering::Less) => left,
        Some(std::cmp::Ordering::Greater) => right,
        _ if left.is_multiple_of(2) => left,
        _ => right,
    };
    sign | (0..=last).reduce(nearest).unwrap_or(0)
}

fn cast(name: &str, input: &[u8], count: usize, width: usize) -> Option<Vec<u8>> {
    let (mut source, mut target) = (Array::new(input, 0), Array::new(&vec![0; count * width], 0));
    let parameters =
        CastParameters { target: target.pointer().cast(), source: source.pointer().cast(), count: count as u64 };
    // SAFETY: both arrays have `count` elements of the kernel's types.
    unsafe { launch(library()?, name, &parameters, GRIDS[1]) };
    target.check_guards();
    Some(target.content().to_vec())
}

#[test]
fn every_code_stands_for_its_number() {
    for format in FORMATS {
        let codes: Vec<u8> = (0..=255).collect();
        let Some(singles) = cast(&format!("phx_cast_{}_f32", format.0), &codes, 256, 4) else { return };
        for (code, bytes) in codes.iter().zip(singles.as_chunks::<4>().0) {
            let (is, expected) = (f32::from_le_bytes(*bytes), value(format, *code));
            assert!(
                is.to_bits() == expected.to_bits() || is.is_nan() && expected.is_nan(),
                "{} {code:#x}: {is}, {expected}",
                format.0
            );
        }
    }
}

#[test]
fn singles_go_to_the_nearest_number() {
    let mut random = Random(5);
    for format in FORMATS {
        let mut singles: Vec<f32> = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1e-40];
        // Every number, what lies half-way to the next, and the neighbours of both.
        for magnitude in 0..format.3 {
            let (low, high) = (value(format, magnitude), value(format, magnitude + 1));
            for middle in [low, f32::midpoint(low, high)] {
                for bits in [-1, 0, 1] {
                    let near = f32::from_bits(middle.to_bits().saturating_add_signed(bits));
                    singles.extend([near, -near]);
                }
            }
        }
        singles.extend((0..2000).map(|_| f32::from_bits(random.next() as u32)));
        let bytes: Vec<u8> = singles.iter().flat_map(|single| single.to_le_bytes()).collect();
        let Some(codes) = cast(&format!("phx_cast_f32_{}", format.0), &bytes, singles.len(), 1) else { return };
        for (single, is) in singles.iter().zip(codes) {
            assert_eq!(is, code(format, *single), "{} of {single} ({:#x})", format.0, single.to_bits());
        }
    }
}

#[test]
fn reductions_calculate_in_single_precision_and_round_once() {
    let Some(library) = library() else { return };
    let mut random = Random(6);
    type Operation = fn(f32, f32) -> f32;
    let operations: [(&str, Operation); 4] = [
        ("sum", |left, right| left + right),
        ("product", |left, right| left * right),
        ("logical_and", |left, right| f32::from(u8::from(left != 0.0 && right != 0.0))),
        ("logical_or", |left, right| f32::from(u8::from(left != 0.0 || right != 0.0))),
    ];
    for format in FORMATS {
        for (name, operation) in operations {
            for (count, sources) in [(0, 2), (1, 2), (37, 2), (300, 3), (1000, MOST_SOURCES)] {
                let inputs: Vec<Vec<u8>> =
                    (0..sources).map(|_| (0..count).map(|_| random.next() as u8).collect()).collect();
                let mut arrays: Vec<Array> = inputs.iter().map(|input| Array::new(input, 0)).collect();
                let mut target = Array::new(&vec![0; count], 0);
                let mut parameters = ReduceParameters {
                    target: target.pointer().cast(),
                    sources: [std::ptr::null(); MOST_SOURCES],
                    count: count as u64,
                    finish: Finish { divisor: sources as u64, factor: 1.0 },
                    sources_used: sources as u32,
                };
                for (place, array) in parameters.sources.iter_mut().zip(&mut arrays) {
                    *place = array.pointer().cast::<c_void>();
                }
                // SAFETY: every array has `count` elements.
                unsafe { launch(library, &format!("phx_reduce_{name}_{}", format.0), &parameters, GRIDS[2]) };
                for at in 0..count {
                    let values = inputs.iter().map(|input| value(format, input[at]));
                    let expected = values.reduce(operation).unwrap_or(0.0) / sources as f32;
                    assert_eq!(target.content()[at], code(format, expected), "{name} of {}, {at}", format.0);
                }
                target.check_guards();
            }
        }
    }
}
