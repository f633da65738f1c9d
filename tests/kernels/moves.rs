//! Casts, and tensors that are gathered into one buffer and scattered from it.

use phalanx::DataType;
use phalanx::reduce;

use crate::library::{CastParameters, GRIDS, PackParameters, Piece, launch, library};
use crate::memory::{Array, Random, elements};

/// Casts `count` elements by the kernel.
fn cast(
    name: &str,
    input: &[u8],
    count: usize,
    width: usize,
    offsets: (usize, usize),
    grid: (u32, u32),
) -> Option<Vec<u8>> {
    let mut source = Array::new(input, offsets.0);
    let mut target = Array::new(&vec![0x77; count * width], offsets.1);
    let parameters =
        CastParameters { target: target.pointer().cast(), source: source.pointer().cast(), count: count as u64 };
    // SAFETY: both arrays have `count` elements of the kernel's types.
    unsafe { launch(library()?, name, &parameters, grid) };
    target.check_guards();
    Some(target.content().to_vec())
}

#[test]
fn casts_of_halves_are_those_of_the_host() {
    let mut random = Random(3);
    for half in [DataType::F16, DataType::BF16] {
        for (case, count) in [0, 1, 7, 8, 9, 100, 65_536].into_iter().enumerate() {
            for offsets in [(0, 0), (16, 32), (2, 4), (1, 3)] {
                // Every half there is, once.
                let halves: Vec<u8> = (0..count).flat_map(|at| (at as u16).to_le_bytes()).collect();
                let singles = elements(DataType::F32, count, &mut random);
                for (from, input, to) in [(half, &halves, DataType::F32), (DataType::F32, &singles, half)] {
                    let mut expected = vec![0; count * to.size()];
                    // SAFETY: both have `count` elements of their types.
                    unsafe { reduce::cast(from, input.as_ptr(), to, expected.as_mut_ptr(), count) };
                    let name = format!("phx_cast_{from}_{to}");
                    let Some(result) = cast(&name, input, count, to.size(), offsets, GRIDS[case % 3]) else { return };
                    for (at, (one, other)) in result.chunks(to.size()).zip(expected.chunks(to.size())).enumerate() {
                        // The host keeps what it can of a NaN's payload.
                        assert!(
                            one == other || is_nan(to, one) && is_nan(to, other),
                            "{name} {at}: {one:?}, {other:?}"
                        );
                    }
                }
            }
        }
    }
}

fn is_nan(dtype: DataType, bytes: &[u8]) -> bool {
    match (dtype, bytes) {
        (DataType::F16, &[low, high]) => half::f16::from_le_bytes([low, high]).is_nan(),
        (DataType::BF16, &[low, high]) => half::bf16::from_le_bytes([low, high]).is_nan(),
        (DataType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).is_nan(),
        _ => false,
    }
}

#[test]
fn pieces_are_gathered_and_scattered_whole() {
    let Some(library) = library() else { return };
    let mut random = Random(4);
    for grid in GRIDS {
        let lengths = [0, 1, 15, 16, 17, 100, 4099, 3];
        let contents: Vec<Vec<u8>> =
            lengths.iter().map(|&length| (0..length).map(|_| random.next() as u8).collect()).collect();
        let mut tensors: Vec<Array> = contents.iter().map(|content| Array::new(content, random.below(20))).collect();
        let mut places = Vec::new();
        let mut end = 0;
        for tensor in &mut tensors {
            // Some begin where vectors do not.
            let offset = end + random.below(2) * random.below(16);
            let bytes = tensor.content().len();
            places.push(Piece { tensor: tensor.pointer().cast(), offset: offset as u64, bytes: bytes as u64 });
            end = (offset + bytes).next_multiple_of(16);
        }
        let mut buffer = Array::new(&vec![0x11; end], 0);
        let parameters =
            PackParameters { buffer: buffer.pointer().cast(), pieces: places.as_ptr(), count: places.len() as u32 };
        // SAFETY: the pieces lie within the tensors and the buffer.
        unsafe { launch(library, "phx_gather_pieces", &parameters, grid) };
        let mut expected = vec![0x11; end];
        for (piece, content) in places.iter().zip(&contents) {
            let offset = piece.offset as usize;
            expected[offset..offset + content.len()].copy_from_slice(content);
        }
        assert!(buffer.content() == expected);
        buffer.check_guards();

        let mut back: Vec<Array> =
            contents.iter().map(|content| Array::new(&vec![0; content.len()], random.below(20))).collect();
        for (piece, tensor) in places.iter_mut().zip(&mut back) {
            piece.tensor = tensor.pointer().cast();
        }
        let parameters = PackParameters { pieces: places.as_ptr(), ..parameters };
        // SAFETY: as above.
        unsafe { launch(library, "phx_scatter_pieces", &parameters, grid) };
        for (tensor, content) in back.iter().zip(&contents) {
            assert!(tensor.content() == content);
            tensor.check_guards();
        }
    }
}
