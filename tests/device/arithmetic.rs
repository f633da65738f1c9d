//! Arithmetic on device memory has the bits of the host's: the kernels on the CPU, launched through the driver's
//! stand-in.

use half::{bf16, f16};
use phalanx::device::{Arithmetic, Device, DeviceBuffer, DeviceSlice, DeviceSliceMut, Eighth, Kernels, Pieces, Stream};
use phalanx::types::{Element, Finish};
use phalanx::{DataType, Error, ReduceOp, Reduction, reduce};

use crate::harness::{StandIn, buffer, run_with_kernels, soon, start_with_kernels, text};
use crate::memory::{Random, elements};

const COUNTS: [usize; 8] = [0, 1, 7, 16, 17, 255, 1027, 5003];

const FINISHES: [(u64, f64); 5] = [(1, 1.0), (3, 1.0), (4, 1.0), (1, 0.3), (7, -2.5)];

#[test]
fn arithmetic_on_device_memory_has_the_bits_of_the_hosts() {
    run_with_kernels("arithmetic");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_launched() {
    run_with_kernels("refusals");
}

#[test]
fn kernels_that_are_not_whole_are_refused_with_the_files_name() {
    let file = std::env::temp_dir().join(format!("phalanx-test-{}.fatbin", std::process::id()));
    let mut fatbin = vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
    fatbin.extend(1000u64.to_le_bytes());
    for (content, expected) in [(fatbin, "not whole"), (b"nothing".to_vec(), "neither a cubin nor a fatbin")] {
        std::fs::write(&file, content).expect("a file");
        let path = file.to_str().expect("a path in UTF-8");
        let Some(output) = start_with_kernels("kernels", &[("PHALANX_KERNELS", path)]) else { return };
        let printed = text(&output);
        assert!(printed.contains(&format!("PHALANX_KERNELS={path}")) && printed.contains(expected), "{printed}");
    }
    std::fs::remove_file(&file).expect("the file");
}

/// Says what comes of opening the kernels.
pub fn opening() {
    let device = Device::open(0).expect("a device");
    println!("{:?}", Kernels::open(&device).map(|_| ()).map_err(|error| error.to_string()));
}

/// Bytes on the device, so that what is tested may begin at any of them.
struct Bytes {
    buffer: DeviceBuffer<u8>,
    offset: usize,
}

impl Bytes {
    fn new(stream: &Stream, content: &[u8], offset: usize) -> Self {
        let mut bytes = vec![0xa5; content.len() + offset + 64];
        bytes[offset..offset + content.len()].copy_from_slice(content);
        Self { buffer: buffer(stream, &bytes), offset }
    }

    fn count<T>(&self) -> usize {
        (self.buffer.len() - self.offset - 64) / size_of::<T>()
    }

    fn slice<T: Element>(&self) -> DeviceSlice<'_, T> {
        let (device, start) = (self.buffer.device(), self.buffer.pointer() + self.offset as u64);
        // SAFETY: the buffer has the bytes, and is borrowed.
        unsafe { DeviceSlice::from_raw(device, start, self.count::<T>()) }.expect("memory of the device")
    }

    fn slice_mut<T: Element>(&mut self) -> DeviceSliceMut<'_, T> {
        let (device, start) = (self.buffer.device(), self.buffer.pointer() + self.offset as u64);
        // SAFETY: as above.
        unsafe { DeviceSliceMut::from_raw(device, start, self.count::<T>()) }.expect("memory of the device")
    }

    /// The content; the bytes around it must be as they were.
    fn content(&self, stream: &Stream) -> Vec<u8> {
        let all = self.buffer.to_vec(stream, soon()).expect("a copy");
        let end = all.len() - 64;
        let around = all[..self.offset].iter().chain(&all[end..]);
        assert!(around.copied().all(|byte| byte == 0xa5), "written beside the memory");
        all[self.offset..end].to_vec()
    }
}

pub fn inside() {
    {
        let device = Device::open(1).expect("a device");
        let stream = Stream::new(&device).expect("a stream");
        let arithmetic = Arithmetic::open(&device).expect("kernels");
        let mut random = Random(11);
        reductions::<f16>(&arithmetic, &stream, &mut random);
        reductions::<bf16>(&arithmetic, &stream, &mut random);
        reductions::<f32>(&arithmetic, &stream, &mut random);
        reductions::<f64>(&arithmetic, &stream, &mut random);
        reductions::<i8>(&arithmetic, &stream, &mut random);
        reductions::<u8>(&arithmetic, &stream, &mut random);
        reductions::<i16>(&arithmetic, &stream, &mut random);
        reductions::<i32>(&arithmetic, &stream, &mut random);
        reductions::<u32>(&arithmetic, &stream, &mut random);
        reductions::<i64>(&arithmetic, &stream, &mut random);
        reductions::<u64>(&arithmetic, &stream, &mut random);
        reductions::<bool>(&arithmetic, &stream, &mut random);
        casts::<f16>(&arithmetic, &stream, &mut random);
        casts::<bf16>(&arithmetic, &stream, &mut random);
        eighths(&arithmetic, &stream);
        packing(&arithmetic, &stream, &mut random);
        adasum(&arithmetic, &stream);
        codes(&arithmetic, &stream);
        counting(&arithmetic, &stream, &mut random);
        // All that open them on a device have the same, loaded once.
        let stand_in = StandIn::open();
        let before = stand_in.live();
        let again = (Kernels::open(&device), Arithmetic::open(&Device::open(1).expect("the same device")));
        assert!(again.0.is_ok() && again.1.is_ok());
        assert!(stand_in.live() <= before + 1, "loaded twice");
    }
    assert_eq!(StandIn::open().live(), 0, "something of the device was left over");
}

/// Sources 1, 2, 3 and 16; in place and apart; alike, by an element and across elements.
fn reductions<T: Element>(arithmetic: &Arithmetic, stream: &Stream, random: &mut Random) {
    let dtype = T::DATA_TYPE;
    let width = dtype.size();
    for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
        for (case, count) in COUNTS.into_iter().enumerate() {
            let sources = [1, 2, 3, 16, 2][(case + op as usize) % 5];
            let (divisor, factor) = FINISHES[(case + sources) % FINISHES.len()];
            let finish = Finish { divisor, factor };
            let (lead, further) = [(0, 0), (width, 0), (0, width), (1, 0), (3, 1)][case % 5];
            let inputs: Vec<Vec<u8>> = (0..sources).map(|_| elements(dtype, count, random)).collect();
            let pointers: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr()).collect();
            let mut expected = vec![0; count * width];
            // SAFETY: every array has `count` elements, and all are apart.
            unsafe {
                reduce::reduce(&Reduction::new(op), dtype, expected.as_mut_ptr(), &pointers, count, finish);
            }
            let mut sources: Vec<Bytes> = inputs
                .iter()
                .enumerate()
                .map(|(at, input)| Bytes::new(stream, input, (lead + at * further) % 64))
                .collect();
            let result = if case % 2 == 0 {
                let mut target = Bytes::new(stream, &vec![0x77; expected.len()], lead);
                let slices: Vec<_> = sources.iter().map(Bytes::slice::<T>).collect();
                let outcome = arithmetic.reduce(op, finish, &mut target.slice_mut::<T>(), &slices, stream);
                outcome.expect("a launch");
                target.content(stream)
            } else {
                let (first, rest) = sources.split_first_mut().expect("at least one");
                let rest: Vec<_> = rest.iter().map(Bytes::slice::<T>).collect();
                let outcome = arithmetic.reduce_in_place(op, finish, &mut first.slice_mut::<T>(), &rest, stream);
                outcome.expect("a launch");
                first.content(stream)
            };
            assert!(result == expected, "{op} of {count} {dtype}, {} sources, {finish:?}", inputs.len());
        }
    }
    for (case, count) in COUNTS.into_iter().enumerate() {
        for factor in [1.0, 0.25, -3.7] {
            let input = elements(dtype, count, random);
            let mut expected = vec![0; input.len()];
            // SAFETY: both have `count` elements, and are apart.
            unsafe { reduce::scale(dtype, expected.as_mut_ptr(), input.as_ptr(), count, factor) };
            let finish = Finish { divisor: 1, factor };
            let mut source = Bytes::new(stream, &input, case % 3);
            let mut target = Bytes::new(stream, &vec![0x77; input.len()], case % 2);
            let outcome = arithmetic.scale(finish, &mut target.slice_mut::<T>(), &source.slice(), stream);
            outcome.expect("a launch");
            assert!(target.content(stream) == expected, "{count} of {dtype} by {factor}");
            arithmetic.scale_in_place(finish, &mut source.slice_mut::<T>(), stream).expect("a launch");
            assert!(source.content(stream) == expected, "{count} of {dtype} by {factor} in place");
        }
    }
}

/// Numbers without NaN, of whose payload the host keeps more.
fn numbers(count: usize, random: &mut Random) -> Vec<f32> {
    (0..count).map(|_| f32::from_bits(random.next() as u32 & 0xbfff_ffff)).collect()
}

fn casts<H: Element>(arithmetic: &Arithmetic, stream: &Stream, random: &mut Random) {
    for (case, count) in COUNTS.into_iter().enumerate() {
        let singles: Vec<u8> = numbers(count, random).into_iter().flat_map(f32::to_le_bytes).collect();
        let mut halves = vec![0; 2 * count];
        let mut back = vec![0; 4 * count];
        // SAFETY: all have `count` elements of their types.
        unsafe {
            reduce::cast(DataType::F32, singles.as_ptr(), H::DATA_TYPE, halves.as_mut_ptr(), count);
            reduce::cast(H::DATA_TYPE, halves.as_ptr(), DataType::F32, back.as_mut_ptr(), count);
        }
        let source = Bytes::new(stream, &singles, [0, 4, 1][case % 3]);
        let mut narrow = Bytes::new(stream, &vec![0; 2 * count], [0, 2, 3][case % 3]);
        let mut wide = Bytes::new(stream, &vec![0; 4 * count], [0, 1, 4][case % 3]);
        arithmetic.cast(&mut narrow.slice_mut::<H>(), &source.slice::<f32>(), stream).expect("a launch");
        arithmetic.cast(&mut wide.slice_mut::<f32>(), &narrow.slice::<H>(), stream).expect("a launch");
        assert!(narrow.content(stream) == halves && wide.content(stream) == back, "{count} of {}", H::DATA_TYPE);
    }
}

/// Every float of 8 bits there and back, and what lies beyond.
fn eighths(arithmetic: &Arithmetic, stream: &Stream) {
    for (form, largest, nan) in [(Eighth::E4M3, 448.0, 0x7f), (Eighth::E5M2, 57344.0, 0x7e)] {
        let all: Vec<u8> = (0..=255).collect();
        let source = buffer(stream, &all);
        let (mut wide, mut back) = (buffer(stream, &[0.0f32; 256]), buffer(stream, &[0u8; 256]));
        let cast = arithmetic.cast_from_eighths(form, &mut wide.as_mut_slice(), &source.as_slice(), stream);
        cast.expect("a launch");
        arithmetic.cast_to_eighths(form, &mut back.as_mut_slice(), &wide.as_slice(), stream).expect("a launch");
        let (wide, back) = (wide.to_vec(stream, soon()).expect("f32"), back.to_vec(stream, soon()).expect("bytes"));
        for (code, (value, again)) in wide.iter().zip(back).enumerate() {
            match value {
                value if value.is_nan() => assert_eq!(again, nan),
                // Only this form has it; it becomes the largest.
                value if value.is_infinite() => assert_eq!(usize::from(again), code - 1),
                value => {
                    assert_eq!(usize::from(again), code);
                    assert!(value.abs() <= largest);
                }
            }
        }
        assert!(wide.contains(&largest));
    }
}

fn packing(arithmetic: &Arithmetic, stream: &Stream, random: &mut Random) {
    let lengths = [0, 1, 3, 4, 5, 1000, 0, 2];
    let contents: Vec<Vec<f32>> = lengths.iter().map(|&length| numbers(length, random)).collect();
    let mut tensors: Vec<_> = contents.iter().map(|content| buffer(stream, content)).collect();
    let slices = tensors.iter_mut().map(DeviceBuffer::as_mut_slice).collect();
    let mut pieces = Pieces::new(stream, slices, soon()).expect("a table");
    assert_eq!(pieces.places(), [0, 0, 4, 8, 12, 20, 1020, 1020]);
    assert_eq!(pieces.len(), 1024);
    let mut all = buffer(stream, &vec![-1.0f32; pieces.len()]);
    arithmetic.gather(&mut all.as_mut_slice(), &pieces, stream).expect("a launch");
    let mut expected = vec![-1.0f32; pieces.len()];
    for (content, &place) in contents.iter().zip(pieces.places()) {
        expected[place..place + content.len()].copy_from_slice(content);
    }
    assert_eq!(all.to_vec(stream, soon()).expect("a copy"), expected);
    arithmetic.scale_in_place(Finish { divisor: 1, factor: 2.0 }, &mut all.as_mut_slice(), stream).expect("a launch");
    arithmetic.scatter(&all.as_slice(), &mut pieces, stream).expect("a launch");
    for (tensor, content) in tensors.iter().zip(&contents) {
        let doubled: Vec<f32> = content.iter().map(|number| number * 2.0).collect();
        assert_eq!(tensor.to_vec(stream, soon()).expect("a copy"), doubled);
    }
}

/// Whole numbers, of which all products and sums are exact in any order.
fn adasum(arithmetic: &Arithmetic, stream: &Stream) {
    for count in [0, 1, 1000, 16384, 40_001] {
        let left: Vec<f32> = (0..count).map(|at| (at * 7 % 19) as f32 - 9.0).collect();
        let right: Vec<f32> = (0..count).map(|at| (at * 5 % 23) as f32 - 7.0).collect();
        let product = |one: &[f32], other: &[f32]| -> f64 {
            one.iter().zip(other).map(|(one, other)| f64::from(*one) * f64::from(*other)).sum()
        };
        let both = product(&left, &right);
        let share = |own: f64| if own == 0.0 { 1.0 } else { 1.0 - both / (2.0 * own) };
        let (of_left, of_right) = (share(product(&left, &left)), share(product(&right, &right)));
        let combined = left.iter().zip(&right);
        let combined = combined.map(|(one, other)| (of_left * f64::from(*one) + of_right * f64::from(*other)) as f32);
        let expected: Vec<f32> = combined.collect();
        let (left, right) = (buffer(stream, &left), buffer(stream, &right));
        let mut target = buffer(stream, &vec![0.0f32; count]);
        let mut room = buffer(stream, &vec![0.0f64; Arithmetic::adasum_room(count)]);
        let (one, other) = (left.as_slice(), right.as_slice());
        let outcome = arithmetic.adasum(&mut target.as_mut_slice(), &one, &other, &mut room.as_mut_slice(), stream);
        outcome.expect("two launches");
        assert_eq!(target.to_vec(stream, soon()).expect("a copy"), expected, "{count} elements");
    }
}

/// The nearest of 255 steps; what is left over is kept.
fn codes(arithmetic: &Arithmetic, stream: &Stream) {
    for count in [0usize, 1, 1023, 1024, 5000] {
        // In each run 0 and 255 are the ends, so that a step is 1 and a half is what rounding takes away.
        let source: Vec<f32> = (0..count).map(|at| [0.0, 255.0, 17.25, 18.5, 19.5][at % 5]).collect();
        let whole = |value: f32| if count == 1 { value } else { value.round_ties_even() };
        let device = buffer(stream, &source);
        let mut codes = buffer(stream, &vec![0u8; count]);
        let mut scales = buffer(stream, &vec![0.0f32; Arithmetic::scales(count)]);
        let mut error = buffer(stream, &vec![0.0f32; count]);
        let (coded, scale) = (&mut codes.as_mut_slice(), &mut scales.as_mut_slice());
        let outcome = arithmetic.quantize(coded, scale, &device.as_slice(), Some(&mut error.as_mut_slice()), stream);
        outcome.expect("a launch");
        let mut target = buffer(stream, &vec![1.0f32; count]);
        for (adds, base) in [(false, 0.0), (true, 1.0)] {
            let (decoded, codes) = (&mut target.as_mut_slice(), &codes.as_slice());
            arithmetic.dequantize(decoded, codes, &scales.as_slice(), adds, stream).expect("a launch");
            let expected: Vec<f32> = source.iter().map(|&value| whole(value) * (1.0 + base)).collect();
            assert_eq!(target.to_vec(stream, soon()).expect("a copy"), expected, "{count} elements");
        }
        let lost: Vec<f32> = source.iter().map(|&value| value - whole(value)).collect();
        assert_eq!(error.to_vec(stream, soon()).expect("a copy"), lost);
    }
}

fn counting(arithmetic: &Arithmetic, stream: &Stream, random: &mut Random) {
    for count in COUNTS {
        let right: Vec<u64> = (0..count).map(|_| random.next()).collect();
        let wrong: Vec<usize> = (0..count).filter(|at| at % 100 == 3).collect();
        let mut other = right.clone();
        wrong.iter().for_each(|&at| other[at] ^= 1 << (at % 64));
        let (right, other) = (buffer(stream, &right), buffer(stream, &other));
        let count_wrong = |one: &DeviceBuffer<u64>| {
            arithmetic.count_wrong(&one.as_slice(), &right.as_slice(), stream, soon()).expect("a count")
        };
        assert_eq!((count_wrong(&right), count_wrong(&other)), (0, wrong.len() as u64));
    }
}

pub fn refusals() {
    let device = Device::open(0).expect("a device");
    let stream = Stream::new(&device).expect("a stream");
    let arithmetic = Arithmetic::open(&device).expect("kernels");
    let other = Stream::new(&Device::open(1).expect("a device")).expect("a stream");
    let (short, long) = (buffer(&stream, &[1.0f32; 8]), buffer(&stream, &[1.0f32; 9]));
    let elsewhere = buffer(&other, &[1.0f32; 9]);
    let mut target = buffer(&stream, &[7.0f32; 9]);
    let refused = |outcome: phalanx::Result<()>, expected: &str| {
        let error = outcome.expect_err(expected);
        assert!(matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(expected), "{error}");
    };
    let (short, long, elsewhere) = (short.as_slice(), long.as_slice(), elsewhere.as_slice());
    let mut sum = |sources: &[DeviceSlice<'_, f32>], stream: &Stream, op: ReduceOp| {
        arithmetic.reduce(op, Finish::NONE, &mut target.as_mut_slice(), sources, stream)
    };
    let add = ReduceOp::Sum;
    refused(sum(&[long.clone(), short.clone()], &stream, add), "source 1: 8 elements given, 9 expected");
    refused(sum(&[long.clone(), elsewhere.clone()], &stream, add), "source 1: memory of device 1");
    refused(sum(&[long.clone(), long.clone()], &other, add), "a stream of device 1");
    refused(sum(&[], &stream, add), "0 sources, 1 to 16 expected");
    refused(sum(&vec![long.clone(); 17], &stream, add), "17 sources");
    refused(sum(std::slice::from_ref(&long), &stream, ReduceOp::BitAnd), "bit_and is not defined for f32");
    refused(sum(std::slice::from_ref(&long), &stream, ReduceOp::User), "a user's function");
    // Memory that is given by its address may overlap.
    let start = target.pointer();
    // SAFETY: refused before it is read.
    let shifted = unsafe { DeviceSlice::<f32>::from_raw(&device, start + 4, 8) }.expect("memory of the device");
    let mut part = target.as_mut_slice();
    let mut part = part.part(0..8).expect("so many");
    refused(arithmetic.scale(Finish::NONE, &mut part, &shifted, &stream), "the target and the source overlap");
    refused(
        arithmetic.reduce_in_place(add, Finish::NONE, &mut part, &[shifted], &stream),
        "the target and other 0 overlap",
    );
    refused(part.part(3..9).map(|_| ()), "elements 3..9 asked for of 8");
    let mut bytes = buffer(&stream, &[0u8; 9]);
    refused(arithmetic.cast(&mut bytes.as_mut_slice(), &long, &stream), "a cast from f32 to u8");
    let mut doubles = buffer(&stream, &[0.0f64; 3]);
    let mut sums = buffer(&stream, &[0.0f64; 4]);
    let (one, two) = (doubles.to_vec(&stream, soon()).expect("a copy"), &mut sums.as_mut_slice());
    let one = buffer(&stream, &one);
    refused(
        arithmetic.adasum(&mut doubles.as_mut_slice(), &one.as_slice(), &one.as_slice(), two, &stream),
        "the room: 4 elements given, 3 expected",
    );
    let mut scales = buffer(&stream, &[0.0f32; 3]);
    refused(
        arithmetic.quantize(&mut bytes.as_mut_slice(), &mut scales.as_mut_slice(), &long, None, &stream),
        "the scales: 3 elements given, 2 expected",
    );
    // SAFETY: refused before it is read.
    let nowhere = unsafe { DeviceSlice::<f32>::from_raw(&device, 4096, 8) };
    refused(nowhere.map(|_| ()), "is not device memory");
    assert_eq!(StandIn::open().calls("cuLaunchKernel"), 0);
}
