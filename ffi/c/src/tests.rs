//! The interface as C would use it, between ranks that are threads of the test.

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

use crate::PhxCollective::*;
use crate::PhxDtype::*;
use crate::PhxOp::*;
use crate::PhxStatus::*;
use crate::call::IN_PLACE;
use crate::*;

/// Runs `body` on every rank of a world, with a communicator that is freed afterwards.
fn on_ranks(size: usize, body: impl Fn(*mut PhxComm, usize) + Sync) {
    let world = phalanx::thread_world(size).expect("a world of threads");
    std::thread::scope(|scope| {
        for comm in world {
            let body = &body;
            scope.spawn(move || {
                let rank = comm.rank();
                let comm = Box::into_raw(Box::new(PhxComm(comm)));
                body(comm, rank);
                // SAFETY: nobody uses it any more.
                unsafe { phx_comm_free(comm) };
            });
        }
    });
}

fn last_error() -> String {
    // SAFETY: the text is a C string, and is copied before anything can replace it.
    unsafe { CStr::from_ptr(phx_last_error()) }.to_string_lossy().into_owned()
}

#[track_caller]
fn ok(status: PhxStatus) {
    assert_eq!(status, PHX_OK, "{}", last_error());
}

fn from<T>(data: &[T]) -> *const c_void {
    data.as_ptr().cast()
}

fn to<T>(data: &mut [T]) -> *mut c_void {
    data.as_mut_ptr().cast()
}

/// Each collective twice, the second time through a handle, each time into an output of `count` elements.
#[track_caller]
fn both(
    count: usize,
    expected: &[i32],
    blocking: impl Fn(*mut c_void) -> PhxStatus,
    started: impl Fn(*mut c_void, *mut *mut PhxHandle) -> PhxStatus,
) {
    let mut output = vec![-1; count];
    ok(blocking(to(&mut output)));
    assert_eq!(output, expected);
    output.fill(-1);
    let mut handle = null_mut();
    ok(started(to(&mut output), &raw mut handle));
    // SAFETY: the handle was just made, and the output stays until it is freed.
    unsafe {
        ok(phx_wait(handle));
        ok(phx_wait(handle));
        phx_handle_free(handle);
    }
    assert_eq!(output, expected);
}

#[test]
fn every_collective_in_both_forms() {
    for size in 1..=4 {
        on_ranks(size, |comm, rank| collectives(comm, rank, size));
    }
}

/// Block i of rank r is `10 r + i`.
fn collectives(comm: *mut PhxComm, rank: usize, size: usize) {
    let (i32_, sum, n) = (PHX_I32 as i32, PHX_SUM as i32, size as i32);
    let root = size - 1;
    let blocks: Vec<i32> = (0..n).map(|block| 10 * rank as i32 + block).collect();
    let sums: Vec<i32> = (0..n).map(|block| 10 * n * (n - 1) / 2 + n * block).collect();
    let column: Vec<i32> = (0..n).map(|other| 10 * other + rank as i32).collect();
    let firsts: Vec<i32> = (0..n).map(|other| 10 * other).collect();
    let at_root = |values: &[i32]| if rank == root { values.to_vec() } else { vec![-1; values.len()] };
    let (whole, own, last) = (from(&blocks), from(&blocks[..1]), root as u64);
    let count = size as u64;
    // SAFETY: all buffers have the elements that the calls need, and live until the calls have ended.
    unsafe {
        both(
            size,
            &sums,
            |out| phx_allreduce(comm, whole, out, count, i32_, sum),
            |out, handle| phx_iallreduce(comm, whole, out, count, i32_, sum, handle),
        );
        both(
            size,
            &at_root(&sums),
            |out| phx_reduce(comm, whole, out, count, i32_, sum, last),
            |out, handle| phx_ireduce(comm, whole, out, count, i32_, sum, last, handle),
        );
        both(
            size,
            &firsts,
            |out| phx_allgather(comm, own, out, 1, i32_),
            |out, handle| phx_iallgather(comm, own, out, 1, i32_, handle),
        );
        both(
            1,
            &sums[rank..=rank],
            |out| phx_reduce_scatter(comm, whole, out, 1, i32_, sum),
            |out, handle| phx_ireduce_scatter(comm, whole, out, 1, i32_, sum, handle),
        );
        both(
            size,
            &column,
            |out| phx_alltoall(comm, whole, out, 1, i32_),
            |out, handle| phx_ialltoall(comm, whole, out, 1, i32_, handle),
        );
        both(
            size,
            &at_root(&firsts),
            |out| phx_gather(comm, own, out, 1, i32_, last),
            |out, handle| phx_igather(comm, own, out, 1, i32_, last, handle),
        );
        both(
            1,
            &[10 * root as i32 + rank as i32],
            |out| phx_scatter(comm, whole, out, 1, i32_, last),
            |out, handle| phx_iscatter(comm, whole, out, 1, i32_, last, handle),
        );
        let fill = |out: *mut c_void| out.cast::<i32>().copy_from_nonoverlapping(blocks.as_ptr(), size);
        both(
            size,
            &(0..n).map(|block| 10 * root as i32 + block).collect::<Vec<_>>(),
            |out| {
                fill(out);
                phx_broadcast(comm, out, count, i32_, last)
            },
            |out, handle| {
                fill(out);
                phx_ibroadcast(comm, out, count, i32_, last, handle)
            },
        );
        both(0, &[], |_| phx_barrier(comm), |_, handle| phx_ibarrier(comm, handle));
    }
    uneven(comm, rank, size);
}

/// Rank r's block has r elements; all are `r`.
fn uneven(comm: *mut PhxComm, rank: usize, size: usize) {
    let (i32_, sum, root) = (PHX_I32 as i32, PHX_SUM as i32, (size - 1) as u64);
    let counts: Vec<u64> = (0..size as u64).collect();
    let total: usize = (0..size).sum();
    let packed: Vec<i32> = (0..size).flat_map(|other| vec![other as i32; other]).collect();
    let own = vec![rank as i32; rank];
    let at_root = if rank + 1 == size { packed.clone() } else { vec![-1; total] };
    let sums = vec![(size * rank) as i32; rank];
    let lengths = counts.as_ptr();
    // Rank r sends 1 element to each rank, r + 1 to itself.
    let exchange: Vec<u64> = (0..size).map(|other| if other == rank { rank as u64 + 1 } else { 1 }).collect();
    let (sent, lengths_exchanged) = (vec![rank as i32; size + rank], exchange.as_ptr());
    let got: Vec<i32> = (0..size).flat_map(|other| vec![other as i32; exchange[other] as usize]).collect();
    // SAFETY: all buffers have the elements that the calls need, and live until the calls have ended.
    unsafe {
        both(
            total,
            &packed,
            |out| phx_allgatherv(comm, from(&own), out, lengths, i32_),
            |out, handle| phx_iallgatherv(comm, from(&own), out, lengths, i32_, handle),
        );
        both(
            rank,
            &sums,
            |out| phx_reduce_scatterv(comm, from(&packed), out, lengths, i32_, sum),
            |out, handle| phx_ireduce_scatterv(comm, from(&packed), out, lengths, i32_, sum, handle),
        );
        both(
            total,
            &at_root,
            |out| phx_gatherv(comm, from(&own), out, lengths, i32_, root),
            |out, handle| phx_igatherv(comm, from(&own), out, lengths, i32_, root, handle),
        );
        both(
            rank,
            &own,
            |out| phx_scatterv(comm, from(&packed), out, lengths, i32_, root),
            |out, handle| phx_iscatterv(comm, from(&packed), out, lengths, i32_, root, handle),
        );
        both(
            size + rank,
            &got,
            |out| phx_alltoallv(comm, from(&sent), out, lengths_exchanged, lengths_exchanged, i32_),
            |out, handle| phx_ialltoallv(comm, from(&sent), out, lengths_exchanged, lengths_exchanged, i32_, handle),
        );
    }
}

#[test]
fn in_place_calls_keep_their_blocks_where_they_lie() {
    on_ranks(3, |comm, rank| {
        let (i32_, sum, r) = (PHX_I32 as i32, PHX_SUM as i32, rank as i32);
        // SAFETY: all buffers have the elements that the calls need.
        unsafe {
            let mut data = [r, 1];
            ok(phx_allreduce(comm, IN_PLACE, to(&mut data), 2, i32_, sum));
            assert_eq!(data, [3, 3]);

            let mut data = [-1; 3];
            data[rank] = r;
            ok(phx_allgather(comm, IN_PLACE, to(&mut data), 1, i32_));
            assert_eq!(data, [0, 1, 2]);

            let mut data = [r, 10 * r, 100 * r];
            ok(phx_reduce_scatter(comm, IN_PLACE, to(&mut data), 1, i32_, sum));
            assert_eq!(data[rank], [3, 30, 300][rank]);

            let mut data = [10 * r, 10 * r + 1, 10 * r + 2];
            ok(phx_alltoall(comm, IN_PLACE, to(&mut data), 1, i32_));
            assert_eq!(data, [r, 10 + r, 20 + r]);

            // As with MPI, the root alone may be in place.
            let mut data = [r; 3];
            let status = if rank == 1 {
                phx_reduce(comm, IN_PLACE, to(&mut data), 3, i32_, sum, 1)
            } else {
                phx_reduce(comm, from(&data), null_mut(), 3, i32_, sum, 1)
            };
            ok(status);
            assert_eq!(data, if rank == 1 { [3; 3] } else { [r; 3] });

            let status = if rank == 1 {
                phx_gather(comm, IN_PLACE, to(&mut data), 1, i32_, 1)
            } else {
                phx_gather(comm, from(&data), null_mut(), 1, i32_, 1)
            };
            ok(status);
            assert_eq!(data, if rank == 1 { [0, 3, 2] } else { [r; 3] });

            let status = if rank == 1 {
                phx_scatter(comm, IN_PLACE, to(&mut data), 1, i32_, 1)
            } else {
                phx_scatter(comm, null(), to(&mut data), 1, i32_, 1)
            };
            ok(status);
            assert_eq!(data[if rank == 1 { 1 } else { 0 }], [0, 3, 2][rank]);
        }
    });
}

#[test]
fn calls_carry_scales_and_functions() {
    /// Keeps the left operand's element where it is larger than the context says, which is associative.
    unsafe extern "C" fn pick(left: *mut c_void, right: *const c_void, count: u64, dtype: i32, context: *mut c_void) {
        assert_eq!(dtype, PHX_F32 as i32);
        for index in 0..count as usize {
            // SAFETY: both hold `count` elements, and the context is a float.
            unsafe {
                let left = left.cast::<f32>().add(index);
                if left.read_unaligned() <= context.cast::<f32>().read() {
                    left.write_unaligned(right.cast::<f32>().add(index).read_unaligned());
                }
            }
        }
    }
    on_ranks(3, |comm, rank| {
        let mut limit = 0.5f32;
        let mut data = [rank as f32; 5];
        // SAFETY: the buffers have the elements that the calls need, and the limit outlives them.
        unsafe {
            let call = PhxCall {
                op: PHX_AVERAGE as i32,
                prescale: 2.0,
                postscale: 0.25,
                ..phx_call(PHX_ALLREDUCE as i32, PHX_F32 as i32, 5)
            };
            ok(phx_run(comm, &raw const call, IN_PLACE, to(&mut data)));
            assert_eq!(data, [0.5; 5]);

            data = [rank as f32; 5];
            let call = PhxCall {
                op: PHX_USER as i32,
                prescale: 1.0,
                postscale: 1.0,
                function: Some(pick),
                function_name: c"pick".as_ptr(),
                context: (&raw mut limit).cast(),
                ..call
            };
            let mut handle = null_mut();
            ok(phx_submit(comm, &raw const call, IN_PLACE, to(&mut data), &raw mut handle));
            ok(phx_wait_for(handle, f64::INFINITY));
            phx_handle_free(handle);
        }
        // The first rank whose number is above the limit.
        assert_eq!(data, [1.0; 5]);
    });
}

#[test]
fn messages_arrive_in_order() {
    on_ranks(2, |comm, rank| {
        let mut handles = [null_mut(); 2];
        // SAFETY: the buffers outlive the handles.
        unsafe {
            if rank == 0 {
                let data = [[1u16, 2], [3, 4]];
                for (data, handle) in data.iter().zip(&mut handles) {
                    ok(phx_isend(comm, from(data), 2, PHX_I16 as i32, 1, 9, handle));
                }
                handles.into_iter().for_each(|handle| phx_handle_free(handle));
                ok(phx_send(comm, null(), 0, PHX_U8 as i32, 1, 10));
            } else {
                let mut data = [[0u16; 2]; 2];
                ok(phx_recv(comm, null_mut(), 0, PHX_U8 as i32, 0, 10));
                for (data, handle) in data.iter_mut().zip(&mut handles) {
                    ok(phx_irecv(comm, to(data), 2, PHX_I16 as i32, 0, 9, handle));
                }
                handles.into_iter().for_each(|handle| phx_handle_free(handle));
                assert_eq!(data, [[1, 2], [3, 4]]);
            }
        }
    });
}

#[test]
fn a_pending_handle_says_so_and_freeing_it_waits() {
    on_ranks(2, |comm, rank| {
        let (mut data, mut handle) = ([1i64; 3], null_mut());
        // SAFETY: the buffers outlive the handle.
        unsafe {
            if rank == 0 {
                ok(phx_iallreduce(comm, IN_PLACE, to(&mut data), 3, PHX_I64 as i32, PHX_SUM as i32, &raw mut handle));
                // Rank 1 calls only after this message.
                assert_eq!(phx_wait_for(handle, 0.0), PHX_PENDING);
                assert_eq!(phx_poll(handle), PHX_PENDING);
                ok(phx_send(comm, null(), 0, PHX_U8 as i32, 1, 0));
                phx_handle_free(handle);
            } else {
                ok(phx_recv(comm, null_mut(), 0, PHX_U8 as i32, 0, 0));
                ok(phx_allreduce(comm, IN_PLACE, to(&mut data), 3, PHX_I64 as i32, PHX_SUM as i32));
            }
        }
        assert_eq!(data, [2; 3]);
    });
}

#[test]
fn communicators_divide() {
    on_ranks(4, |comm, rank| {
        let (mut part, mut odd) = (null_mut(), null_mut());
        // SAFETY: the pointers are valid, and the parts are freed once.
        unsafe {
            assert_eq!((phx_comm_rank(comm), phx_comm_size(comm)), (rank as i64, 4));
            assert_eq!((phx_comm_local_rank(comm), phx_comm_local_size(comm)), (rank as i64, 4));
            assert_eq!((phx_comm_cross_rank(comm), phx_comm_cross_size(comm)), (0, 1));
            let colour = if rank == 3 { -1 } else { 7 };
            ok(phx_comm_split(comm, colour, -(rank as i64), &raw mut part));
            if rank == 3 {
                assert!(part.is_null());
            } else {
                assert_eq!((phx_comm_rank(part), phx_comm_size(part)), (2 - rank as i64, 3));
                phx_comm_free(part);
            }
            ok(phx_comm_subgroup(comm, [3u64, 1].as_ptr(), 2, &raw mut odd));
            if rank % 2 == 1 {
                assert_eq!((phx_comm_rank(odd), phx_comm_size(odd)), (i64::from(rank == 1), 2));
                ok(phx_barrier(odd));
                phx_comm_free(odd);
            } else {
                assert!(odd.is_null());
            }
            assert_eq!(phx_comm_split(comm, -2, 0, &raw mut part), PHX_ERROR_ARGUMENT);
            assert_eq!(phx_comm_subgroup(comm, null(), 2, &raw mut part), PHX_ERROR_ARGUMENT);
            assert_eq!(phx_comm_subgroup(comm, [9u64].as_ptr(), 1, &raw mut part), PHX_ERROR_ARGUMENT);
            assert!(part.is_null() && last_error().contains("rank 9"), "{}", last_error());
        }
    });
}

#[test]
fn settings_are_read_and_changed() {
    on_ranks(1, |comm, _| {
        let mut settings = PhxSettings { timeout_seconds: 0.0, algorithm: 5, deterministic: 5 };
        let mut other = null_mut();
        // SAFETY: the pointers are valid, and the other is freed once.
        unsafe {
            ok(phx_comm_settings(comm, &raw mut settings));
            assert_eq!(settings, PhxSettings { timeout_seconds: 300.0, algorithm: -1, deterministic: 0 });
            let changed = PhxSettings {
                timeout_seconds: 1.5,
                algorithm: PhxAlgorithm::PHX_ALGORITHM_RING as i32,
                deterministic: 1,
            };
            ok(phx_comm_with_settings(comm, &raw const changed, &raw mut other));
            ok(phx_comm_settings(other, &raw mut settings));
            assert_eq!(settings, changed);
            phx_comm_free(other);
            for wrong in [
                PhxSettings { algorithm: 99, ..changed },
                PhxSettings { timeout_seconds: -1.0, ..changed },
                PhxSettings { timeout_seconds: f64::NAN, ..changed },
            ] {
                assert_eq!(phx_comm_with_settings(comm, &raw const wrong, &raw mut other), PHX_ERROR_ARGUMENT);
                assert!(other.is_null());
            }
        }
    });
}

#[test]
fn what_ranks_do_to_each_other_has_its_status_and_words() {
    on_ranks(2, |comm, rank| {
        let mut data = [0u8; 8];
        // SAFETY: the buffers have the elements that the calls need; the other communicator is freed once.
        unsafe {
            let count = 4 + rank as u64;
            let status = phx_allreduce(comm, IN_PLACE, to(&mut data), count, PHX_U8 as i32, PHX_SUM as i32);
            assert_eq!(status, PHX_ERROR_MISMATCH);
            assert!(last_error().contains("count 4") && last_error().contains("count 5"), "{}", last_error());

            let mut hasty = null_mut();
            let settings = PhxSettings { timeout_seconds: 0.02, algorithm: -1, deterministic: 0 };
            ok(phx_comm_with_settings(comm, &raw const settings, &raw mut hasty));
            // A message that nobody sends.
            assert_eq!(phx_recv(hasty, to(&mut data), 1, PHX_U8 as i32, 1 - rank as u64, 3), PHX_ERROR_TIMEOUT);
            phx_comm_free(hasty);
            // Who leaves before the other's deadline would be a peer that is gone.
            ok(phx_barrier(comm));
        }
    });
}

#[test]
fn arguments_that_cannot_be_are_refused_before_anything_is_sent() {
    on_ranks(2, |comm, rank| {
        let (mut data, mut handle) = ([0f32; 4], null_mut());
        let (f32_, sum, peer) = (PHX_F32 as i32, PHX_SUM as i32, 1 - rank as u64);
        let buffer = to(&mut data);
        let expect = |status: PhxStatus, words: &str| {
            assert_eq!(status, PHX_ERROR_ARGUMENT);
            assert!(last_error().contains(words), "{words}: {}", last_error());
        };
        // SAFETY: nothing is read or written.
        unsafe {
            expect(phx_init(null_mut()), "communicator is NULL");
            expect(phx_barrier(null()), "communicator is NULL");
            expect(phx_comm_settings(comm, null_mut()), "settings is NULL");
            expect(phx_comm_with_settings(comm, null(), null_mut()), "communicator is NULL");
            expect(phx_wait(null()), "handle is NULL");
            expect(phx_poll(null()), "handle is NULL");
            expect(phx_wait_for(null(), f64::NAN), "seconds");
            assert_eq!(phx_comm_rank(null()), -1);
            phx_comm_free(null_mut());
            phx_handle_free(null_mut());
            expect(phx_run(comm, null(), null(), null_mut()), "call is NULL");
            expect(phx_ibarrier(comm, null_mut()), "handle is NULL");

            expect(phx_allreduce(comm, null(), buffer, 4, f32_, sum), "input is null");
            expect(phx_allreduce(comm, IN_PLACE, null_mut(), 4, f32_, sum), "output is null");
            expect(phx_allreduce(comm, buffer, buffer, 4, f32_, sum), "PHX_IN_PLACE");
            expect(phx_allreduce(comm, IN_PLACE, buffer, 4, 12, sum), "dtype 12");
            expect(phx_allreduce(comm, IN_PLACE, buffer, 4, f32_, -1), "op -1");
            expect(phx_allreduce(comm, IN_PLACE, buffer, 4, f32_, PHX_BIT_AND as i32), "bit_and");
            expect(phx_allreduce(comm, IN_PLACE, buffer, 4, f32_, PHX_USER as i32), "function");
            expect(phx_allreduce(comm, IN_PLACE, buffer, u64::MAX, f32_, sum), "memory");
            expect(phx_broadcast(comm, buffer, 4, f32_, 2), "root 2");
            expect(phx_allgatherv(comm, IN_PLACE, buffer, null(), f32_), "counts is NULL");
            expect(phx_alltoallv(comm, null(), buffer, [0u64; 2].as_ptr(), null(), f32_), "recv_counts");
            let call = PhxCall { counts: [1u64; 2].as_ptr(), ..phx_call(PHX_BARRIER as i32, 0, 0) };
            expect(phx_run(comm, &raw const call, null(), null_mut()), "no blocks");
            let call = phx_call(9, f32_, 1);
            expect(phx_submit(comm, &raw const call, IN_PLACE, buffer, &raw mut handle), "collective 9");
            assert!(handle.is_null());

            expect(phx_send(comm, null(), 1, f32_, peer, 0), "data is NULL");
            expect(phx_recv(comm, buffer, u64::MAX / 2, f32_, peer, 0), "memory");
            expect(phx_send(comm, buffer, 1, f32_, 2, 0), "rank 2");
            expect(phx_isend(comm, buffer, 1, f32_, peer, 0, null_mut()), "handle is NULL");

            // The ranks are still together.
            ok(phx_barrier(comm));
        }
    });
}

#[test]
fn a_communicator_that_was_shut_down_says_so() {
    on_ranks(2, |comm, _| {
        // SAFETY: the communicator lives on.
        unsafe {
            ok(phx_barrier(comm));
            ok(phx_comm_shutdown(comm));
            assert_eq!(phx_barrier(comm), PHX_ERROR_CLOSED);
        }
    });
}
