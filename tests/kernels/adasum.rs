//! Adasum, in the order that the kernels promise.

use crate::library::{AdasumParameters, Products, THREADS, launch, library};
use crate::memory::{Array, Random};

/// Elements of a run.
const RUN: usize = 16384;

/// The threads' sums, by halves.
fn over_block(mut sums: Vec<Products>) -> Products {
    let mut distance = THREADS / 2;
    while distance > 0 {
        for own in 0..distance {
            sums[own] = add(sums[own], sums[own + distance]);
        }
        distance /= 2;
    }
    sums[0]
}

fn add(one: Products, other: Products) -> Products {
    Products { both: one.both + other.both, left: one.left + other.left, right: one.right + other.right }
}

/// As [`over_block`], of what each thread adds up of items that lie as many apart as there are threads.
fn summed(items: impl Iterator<Item = Products>) -> Products {
    let mut sums = vec![Products::default(); THREADS];
    for (at, item) in items.enumerate() {
        sums[at % THREADS] = add(sums[at % THREADS], item);
    }
    over_block(sums)
}

fn adasum(left: &[f32], right: &[f32]) -> Vec<f32> {
    let product = |(one, other): (&f32, &f32)| {
        let (one, other) = (f64::from(*one), f64::from(*other));
        Products { both: one * other, left: one * one, right: other * other }
    };
    let runs = left.chunks(RUN).zip(right.chunks(RUN));
    let sums = summed(runs.map(|(left, right)| summed(left.iter().zip(right).map(product))));
    let share = |own: f64| if own == 0.0 { 1.0 } else { 1.0 - sums.both / (2.0 * own) };
    let (of_left, of_right) = (share(sums.left), share(sums.right));
    let combined = |(one, other): (&f32, &f32)| (of_left * f64::from(*one) + of_right * f64::from(*other)) as f32;
    left.iter().zip(right).map(combined).collect()
}

fn by_kernels(left: &[f32], right: &[f32], blocks: u32) -> Option<Vec<f32>> {
    let library = library()?;
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let (mut left_array, mut right_array) = (Array::new(&bytes(left), 4), Array::new(&bytes(right), 7));
    let mut target = Array::new(&vec![0; 4 * left.len()], 1);
    let mut products = vec![Products::default(); left.len().div_ceil(RUN)];
    let parameters = AdasumParameters {
        target: target.pointer().cast(),
        left: left_array.pointer().cast(),
        right: right_array.pointer().cast(),
        count: left.len() as u64,
        products: products.as_mut_ptr(),
    };
    // SAFETY: the arrays have as many elements, and there is room for the products of every run.
    unsafe {
        launch(library, "phx_adasum_products_f32", &parameters, (blocks, THREADS as u32));
        launch(library, "phx_adasum_combine_f32", &parameters, (blocks, THREADS as u32));
    }
    target.check_guards();
    Some(target.content().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

#[test]
fn adasum_has_the_same_bits_whatever_the_grid() {
    let mut random = Random(7);
    for count in [0, 1, 255, 257, RUN, RUN + 1, 3 * RUN - 5] {
        let mut numbers = || (0..count).map(|_| (random.next() as i32 >> 8) as f32 / 1e6).collect::<Vec<f32>>();
        let (left, right) = (numbers(), numbers());
        for blocks in [1, 2, 5] {
            let Some(result) = by_kernels(&left, &right, blocks) else { return };
            assert!(result == adasum(&left, &right), "{count} elements, {blocks} blocks");
        }
    }
}

#[test]
fn like_gradients_are_averaged_and_unlike_ones_are_added() {
    let (one, none) = (vec![3.0f32; 1000], vec![0.0f32; 1000]);
    let Some(result) = by_kernels(&one, &one, 2) else { return };
    assert_eq!(result, one);
    assert_eq!(by_kernels(&one, &none, 2), Some(one.clone()));
    let even: Vec<f32> = (0..1000).map(|at| f32::from(u8::from(at % 2 == 0))).collect();
    let odd: Vec<f32> = even.iter().map(|number| 1.0 - number).collect();
    assert_eq!(by_kernels(&even, &odd, 2), Some(vec![1.0; 1000]));
}
