//! Clauses 1 to 6: order, memory, lengths, and reduction on receive.

use super::Carrier;
use super::world::{Memory, tag};
use crate::transport::Receive;

/// The sizes at which something changes.
pub fn sizes(carrier: &Carrier) -> Vec<usize> {
    let eager = carrier.eager_limit;
    vec![0, 1, 7, 8, 64, 4095, 4096, 4097, eager - 1, eager, eager + 1, (1 << 20) + 3]
}

/// Clauses 3, 4 and 5: every length arrives, whichever side posts first.
pub fn every_size_arrives(carrier: &Carrier) {
    let mut pair = (carrier.pair)();
    let mut number = 0;
    for bytes in sizes(carrier) {
        for recv_first in [false, true] {
            for misalignment in [0, 1, 13] {
                number += 1;
                let source = Memory::filled(bytes, misalignment, number);
                let target = Memory::new(bytes, misalignment * 3);
                let target = pair.transfer(tag(number), source, target, Receive::Store, recv_first);
                let expected = Memory::filled(bytes, 0, number);
                assert!(target.slice() == expected.slice(), "{bytes} bytes, receive first: {recv_first}");
            }
        }
    }
}
