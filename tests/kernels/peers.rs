//! Allreduce over mapped memory, with a thread for each device.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use phalanx::types::Finish as HostFinish;
use phalanx::{DataType, ReduceOp, Reduction, reduce};

use crate::library::{FillParameters, Finish, MOST_SOURCES, PeerParameters, ScaleParameters, THREADS, launch, library};
use crate::memory::{Array, Random, elements};

const BLOCKS: u32 = 3;

/// What the ranks of a host have mapped of each other, and their abort words.
struct World {
    inputs: Vec<Array>,
    stages: Vec<Array>,
    flags: Vec<Vec<AtomicU32>>,
    abort: Vec<AtomicU32>,
    status: Vec<AtomicU32>,
}

struct Pointers(PeerParameters);

// SAFETY: what is pointed to outlives the threads, and is shared as the kernels share it.
unsafe impl Send for Pointers {}

impl World {
    fn new(inputs: &[Vec<u8>], meetings: u32) -> Self {
        let words = |count: usize, value: u32| (0..count).map(|_| AtomicU32::new(value)).collect::<Vec<_>>();
        let ranks = inputs.len();
        Self {
            inputs: inputs.iter().map(|input| Array::new(input, 0)).collect(),
            stages: inputs.iter().map(|input| Array::new(&vec![0; input.len() / ranks + 256], 0)).collect(),
            flags: (0..ranks).map(|_| words(BLOCKS as usize, meetings)).collect(),
            abort: words(ranks, 0),
            status: words(ranks, 0),
        }
    }

    fn parameters(&mut self, rank: usize, target: &mut Array, count: usize, divisor: u64, meetings: u32) -> Pointers {
        let ranks = self.inputs.len();
        let mut parameters = PeerParameters {
            target: target.pointer().cast(),
            inputs: [std::ptr::null(); MOST_SOURCES],
            stages: [std::ptr::null_mut(); MOST_SOURCES],
            flags: [std::ptr::null_mut(); MOST_SOURCES],
            abort: self.abort[rank].as_ptr(),
            status: self.status[rank].as_ptr(),
            count: count as u64,
            finish: Finish { divisor, factor: 1.0 },
            rank: rank as u32,
            ranks: ranks as u32,
            meetings,
        };
        for peer in 0..ranks {
            parameters.inputs[peer] = self.inputs[peer].pointer().cast::<c_void>();
            parameters.stages[peer] = self.stages[peer].pointer().cast::<c_void>();
            parameters.flags[peer] = self.flags[peer].as_ptr().cast_mut().cast::<u32>();
        }
        Pointers(parameters)
    }
}

/// Runs a kernel on some ranks at once.
fn run(name: &str, ranks: Vec<Pointers>) {
    let Some(library) = library() else { return };
    std::thread::scope(|scope| {
        for pointers in ranks {
            scope.spawn(move || {
                let pointers = pointers;
                // SAFETY: the parameters are those of the kernel, and what they point to outlives the scope.
                unsafe { launch(library, name, &pointers.0, (BLOCKS, THREADS as u32)) };
            });
        }
    });
}

#[test]
fn allreduce_over_peers_has_the_bits_of_the_host() {
    if library().is_none() {
        return;
    }
    let mut random = Random(10);
    for (case, count) in [0, 1, 5, 1023, 4096, 20_011].into_iter().enumerate() {
        for ranks in [1, 2, 3, 8] {
            for dtype in [DataType::F16, DataType::BF16, DataType::F32, DataType::F64] {
                let inputs: Vec<Vec<u8>> = (0..ranks).map(|_| elements(dtype, count, &mut random)).collect();
                let pointers: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr()).collect();
                let divisor = [1, 3][case % 2];
                let mut expected = vec![0; count * dtype.size()];
                let finish = HostFinish { divisor, factor: 1.0 };
                // SAFETY: every array has `count` elements, and all are apart.
                unsafe {
                    let sum = Reduction::new(ReduceOp::Sum);
                    reduce::reduce(&sum, dtype, expected.as_mut_ptr(), &pointers, count, finish);
                }
                for kind in ["one_shot", "two_shot"] {
                    // Numbers that turn over on the way, now and then.
                    let meetings = [0, u32::MAX - 1][case % 2];
                    let mut world = World::new(&inputs, meetings);
                    let mut targets: Vec<Array> =
                        inputs.iter().map(|input| Array::new(&vec![7; input.len()], 0)).collect();
                    let all = targets.iter_mut().enumerate();
                    let all =
                        all.map(|(rank, target)| world.parameters(rank, target, count, divisor, meetings)).collect();
                    run(&format!("phx_peer_{kind}_{dtype}"), all);
                    for target in &targets {
                        // A single rank's own NaNs are settled here, and copied there.
                        assert!(
                            ranks == 1 || target.content() == expected,
                            "{kind}, {count} of {dtype}, {ranks} ranks"
                        );
                        target.check_guards();
                    }
                    world.inputs.iter().chain(&world.stages).for_each(Array::check_guards);
                    assert!(world.status.iter().all(|status| status.load(Ordering::Relaxed) == 0));
                }
            }
        }
    }
}

#[test]
fn a_rank_that_never_comes_leaves_no_kernel_waiting() {
    if library().is_none() {
        return;
    }
    for name in ["phx_peer_meet", "phx_peer_one_shot_f32", "phx_peer_two_shot_f32"] {
        let inputs = vec![vec![0; 4096]; 3];
        let mut world = World::new(&inputs, 0);
        let mut targets: Vec<Array> = inputs.iter().map(|input| Array::new(input, 0)).collect();
        // Rank 2 is gone.
        let there: Vec<Pointers> = (0..2).map(|rank| world.parameters(rank, &mut targets[rank], 1024, 1, 0)).collect();
        let (flags, abort) = (&world.flags, &world.abort);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // When both are known to wait.
                while flags[0][0].load(Ordering::Acquire) == 0 || flags[1][0].load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                abort.iter().for_each(|word| word.store(1, Ordering::Release));
            });
            run(name, there);
        });
        let status: Vec<u32> = world.status.iter().map(|status| status.load(Ordering::Relaxed)).collect();
        assert_eq!(status, [1, 1, 0], "{name}");
    }
}

#[test]
fn whoever_gave_up_raises_no_flag_and_writes_nothing_that_others_read() {
    let Some(library) = library() else { return };
    let inputs = vec![vec![3; 4096]; 2];
    let mut world = World::new(&inputs, 7);
    let mut target = Array::new(&inputs[0], 0);
    // The other rank has come, so that nothing would have to be waited for.
    world.flags[1].iter().for_each(|flag| flag.store(100, Ordering::Relaxed));
    for (gave_up, name) in [0, 1].into_iter().flat_map(|gave_up| {
        ["phx_peer_meet", "phx_peer_one_shot_f32", "phx_peer_two_shot_f32"].map(|name| (gave_up, name))
    }) {
        world.flags[0].iter().for_each(|flag| flag.store(7, Ordering::Relaxed));
        world.status[0].store(gave_up, Ordering::Relaxed);
        run(name, vec![world.parameters(0, &mut target, 1024, 1, 7)]);
        let raised = world.flags[0].iter().filter(|flag| flag.load(Ordering::Relaxed) != 7).count();
        assert_eq!(raised, if gave_up == 0 { BLOCKS as usize } else { 0 }, "{name}");
        let mut source = Array::new(&vec![9; 4096], 0);
        let mut place = Array::new(&vec![3; 4096], 0);
        let fill = FillParameters {
            scale: ScaleParameters {
                target: place.pointer().cast(),
                source: source.pointer().cast::<c_void>(),
                count: 1024,
                finish: Finish { divisor: 1, factor: 1.0 },
            },
            status: world.status[0].as_ptr(),
        };
        // SAFETY: both arrays have as many elements.
        unsafe { launch(library, "phx_peer_fill_f32", &fill, (BLOCKS, THREADS as u32)) };
        assert!(place.content().iter().all(|byte| *byte == if gave_up == 0 { 9 } else { 3 }));
    }
}
