//! Every collective on device memory gives the bits of the same call on host memory.

use half::{bf16, f16};
use phalanx::device::{DeviceBuffer, Stream};
use phalanx::types::Element;
use phalanx::{Call, Communicator, ReduceOp, Reduction, TransportKind};

use crate::harness::{StandIn, buffer, on_world, run, soon};

#[test]
fn device_collectives_give_the_bits_of_host_collectives() {
    run("matrix");
}

/// Counts around nothing, one, and several pieces of a call.
const COUNTS: [usize; 6] = [0, 1, 7, 1023, 4096, 1_200_003];

pub fn inside() {
    for kind in [TransportKind::Inproc, TransportKind::Shm, TransportKind::Tcp] {
        on_world(kind, 4, |comm, stream| {
            // A long call is cut, and a ring adds in another order in each piece.
            let comm = comm.with_deterministic(kind != TransportKind::Shm);
            all(&comm, &stream);
        });
    }
    // One rank, and an odd number of them.
    for size in [1, 3] {
        on_world(TransportKind::Shm, size, |comm, stream| {
            all_calls::<f32>(&comm, &stream, 1025, |value| value as f32 * 0.37);
        });
    }
    if std::env::var_os("PHALANX_TEST_GPU").is_none() {
        assert_eq!(StandIn::open().live(), 0, "something of the device was left over");
    }
}

/// All collectives of several types and counts.
pub fn all(comm: &Communicator, stream: &Stream) {
    for count in COUNTS {
        all_calls::<f32>(comm, stream, count, |value| value as f32 * 0.37);
    }
    all_calls::<f16>(comm, stream, 5001, |value| f16::from_f32(value as f32 * 0.37));
    all_calls::<bf16>(comm, stream, 5001, |value| bf16::from_f32(value as f32 * 0.37));
    all_calls::<f64>(comm, stream, 333, |value| value as f64 * 0.37);
    all_calls::<i32>(comm, stream, 333, |value| value as i32);
    all_calls::<u8>(comm, stream, 333, |value| value as u8);
}

pub fn all_calls<T: Element + Default + PartialEq + std::fmt::Debug>(
    comm: &Communicator,
    stream: &Stream,
    count: usize,
    make: impl Fn(u64) -> T,
) {
    let (rank, size) = (comm.rank(), comm.size());
    let input = |count: usize| -> Vec<T> {
        (0..count).map(|index| make((index as u64 * 31 + rank as u64 * 17) % 101)).collect()
    };
    let dtype = T::DATA_TYPE;
    let scaled = Reduction::new(ReduceOp::Sum).prescale(0.5).postscale(3.0);
    let averaged = Reduction::new(ReduceOp::Average);
    let root = size - 1;
    let ragged: Vec<usize> = (0..size).map(|rank| count / size + rank).collect();
    let in_place = [
        Call::allreduce(dtype, count, scaled.clone()),
        Call::allreduce(dtype, count, averaged.clone()),
        Call::reduce(dtype, count, ReduceOp::Max, root),
        Call::broadcast(dtype, count, root),
        Call::allgather(dtype, count),
        Call::reduce_scatter(dtype, count, ReduceOp::Sum),
        Call::alltoall(dtype, count),
        Call::gather(dtype, count, root),
        Call::scatter(dtype, count, root),
    ];
    let apart = [
        Call::allreduce(dtype, count, averaged.clone()),
        Call::allgatherv(dtype, &ragged),
        Call::reduce_scatterv(dtype, &ragged, averaged),
        Call::gatherv(dtype, &ragged, root),
        Call::scatterv(dtype, &ragged, root),
        Call::alltoallv(dtype, &vec![count; size], &vec![count; size]),
    ];
    let ways =
        in_place.iter().flat_map(|call| [(call, true), (call, false)]).chain(apart.iter().map(|call| (call, false)));
    for (call, is_in_place) in ways {
        let call = call.clone().in_place(is_in_place);
        let (inputs, outputs) = call.counts(rank, size).expect("a call that can be made");
        let (from, mut host) = (input(inputs), input(outputs));
        let (device_input, mut device) = (buffer(stream, &from), buffer(stream, &host));
        comm.call_device(&call, &device_input, &mut device, stream).expect("a device call");
        // SAFETY: both have the counts that the call gives, and are borrowed.
        unsafe {
            let from = if inputs == 0 { std::ptr::null() } else { from.as_ptr().cast() };
            comm.run(&call, from, host.as_mut_ptr().cast()).expect("a host call");
        }
        let result = device.to_vec(stream, soon()).expect("a result");
        for index in specified(&call, comm, outputs) {
            assert!(result[index] == host[index], "{call:?} on rank {rank}: element {index} of {outputs}");
        }
        assert_eq!(device_input.to_vec(stream, soon()).expect("the input"), from, "{call:?} wrote its input");
    }
    let mut data: DeviceBuffer<T> = buffer(stream, &input(count));
    comm.allreduce_device(&mut data, ReduceOp::Sum, stream).expect("an allreduce");
    let mut host = input(count);
    comm.allreduce(&mut host, ReduceOp::Sum).expect("an allreduce");
    assert_eq!(data.to_vec(stream, soon()).expect("a result"), host);
}

/// The elements of the output that the call leaves specified on this rank.
fn specified(call: &Call, comm: &Communicator, outputs: usize) -> std::ops::Range<usize> {
    use phalanx::types::Collective;
    let (rank, share) = (comm.rank(), outputs / comm.size());
    match call.collective() {
        Collective::Reduce if rank != comm.size() - 1 => 0..0,
        Collective::ReduceScatter if call.is_one_buffer(rank) => rank * share..(rank + 1) * share,
        _ => 0..outputs,
    }
}
