//! Groups: split by colour and key, from a list, several in flight at once.

use phalanx::types::{Error, ReduceOp};

use crate::support::{TRANSPORTS, on_world};

#[test]
fn split_orders_by_key_then_rank_and_leaves_out_the_colourless() {
    on_world(TRANSPORTS[0], 7, |comm| {
        let rank = comm.rank();
        let colour = (rank != 3).then_some(rank as u64 % 2);
        let group = comm.split(colour, -(rank as i64 / 4)).expect("a split");
        let Some(group) = group else {
            assert_eq!(rank, 3);
            return;
        };
        // Keys are 0 for ranks 0..4 and -1 above, so that the higher ranks come first.
        let expected: &[u64] = if rank % 2 == 0 { &[4, 6, 0, 2] } else { &[5, 1] };
        let mut members = vec![0u64; group.size()];
        group.allgather(&[rank as u64], &mut members).expect("a group");
        assert_eq!(members, expected);
        assert_eq!(expected[group.rank()], rank as u64);
    });
}

#[test]
fn lists_give_the_order_and_bad_lists_are_refused() {
    on_world(TRANSPORTS[0], 4, |comm| {
        let group = comm.subgroup(&[3, 0, 2]).expect("a valid list");
        assert_eq!(group.is_none(), comm.rank() == 1);
        if let Some(group) = group {
            let mut first = [comm.rank() as i32];
            group.broadcast(&mut first, 0).expect("a group");
            assert_eq!(first, [3]);
        }
        for list in [&[][..], &[0, 4], &[1, 2, 1]] {
            assert!(matches!(comm.subgroup(list), Err(Error::InvalidArgument { .. })));
        }
    });
}

#[test]
fn groups_in_flight_at_once_do_not_disturb_each_other() {
    for kind in TRANSPORTS {
        on_world(kind, 4, |comm| {
            let row = comm.split(Some(comm.rank() as u64 / 2), 0).expect("a split").expect("a colour");
            let column = comm.split(Some(comm.rank() as u64 % 2), 0).expect("a split").expect("a colour");
            let again = comm.subgroup(&[0, 1, 2, 3]).expect("a list").expect("a member");
            for turn in 0..20i64 {
                let value = |base: i64| vec![base * 100 + turn + comm.rank() as i64; 5000];
                // Each rank starts them in another order: groups are independent.
                let mut pending = Vec::new();
                for at in 0..3 {
                    let which = (at + comm.rank()) % 3;
                    let group = [&row, &column, &again][which];
                    pending.push((which, group.start_allreduce(value(which as i64), ReduceOp::Sum).expect("started")));
                }
                for (which, pending) in pending {
                    let sum = pending.wait().expect("a sum");
                    let rank = comm.rank() as i64;
                    let members: Vec<i64> = match which {
                        0 => vec![rank / 2 * 2, rank / 2 * 2 + 1],
                        1 => vec![rank % 2, rank % 2 + 2],
                        _ => vec![0, 1, 2, 3],
                    };
                    let expected: i64 = members.iter().map(|member| which as i64 * 100 + turn + member).sum();
                    assert!(sum.iter().all(|&element| element == expected), "{kind}, group {which}, turn {turn}");
                }
            }
        });
    }
}

#[test]
fn groups_of_groups_and_of_one() {
    on_world(TRANSPORTS[0], 6, |comm| {
        let half = comm.split(Some(comm.rank() as u64 % 2), 0).expect("a split").expect("a colour");
        let alone = half.split(Some(half.rank() as u64), 0).expect("a split").expect("a colour");
        assert_eq!((half.size(), alone.size(), alone.rank()), (3, 1, 0));
        let mut data = [comm.rank() as f64];
        alone.allreduce(&mut data, ReduceOp::Average).expect("alone");
        assert_eq!(data, [comm.rank() as f64]);
        half.allreduce(&mut data, ReduceOp::Sum).expect("half");
        assert_eq!(data, [if comm.rank() % 2 == 0 { 6.0 } else { 9.0 }]);
    });
}
