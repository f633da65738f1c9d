//! Which collective, and the signature by which two ranks know that they are in the same call.

use std::fmt;
use std::str::FromStr;

use super::algorithm::named;
use super::{Algorithm, DataType, ReduceOp};

named! {
    /// An operation that all ranks of a communicator take part in.
    "collective" Collective {
        /// Every rank gets the reduction of all inputs.
        Allreduce = 0, "allreduce";
        /// The root gets the reduction of all inputs.
        Reduce = 1, "reduce";
        /// Every rank gets the root's buffer.
        Broadcast = 2, "broadcast";
        /// Every rank gets every rank's block, in rank order; block lengths may differ (allgatherv).
        Allgather = 3, "allgather";
        /// Rank i gets block i of the reduction; block lengths may differ.
        ReduceScatter = 4, "reduce_scatter";
        /// Rank i gets block i of every rank's input; block lengths may differ.
        Alltoall = 5, "alltoall";
        /// The root gets every rank's block.
        Gather = 6, "gather";
        /// Rank i gets block i of the root's input.
        Scatter = 7, "scatter";
        /// No rank leaves before every rank has come.
        Barrier = 8, "barrier";
        /// A message from one rank to another.
        SendRecv = 9, "send_recv";
    }
}

/// What every rank must agree on for a call to be the same call. Travels in the first message of each operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    /// The collective.
    pub collective: Collective,
    /// The element type.
    pub dtype: DataType,
    /// The reduce op, for those that reduce.
    pub op: Option<ReduceOp>,
    /// The shape of the traffic, which must be the same on every rank for messages to meet.
    pub algorithm: Algorithm,
    /// The root, for rooted collectives.
    pub root: Option<u32>,
    /// Elements: of the whole buffer, or of one block for collectives of equal blocks; of all blocks where they differ.
    pub count: u64,
    /// A digest of what else must agree: block lengths, scale factors, a user function's name, determinism.
    pub digest: u64,
}

impl Signature {
    /// Bytes of an encoded signature.
    pub const BYTES: usize = 24;

    const NO_OP: u8 = 0xff;
    const NO_ROOT: u32 = u32::MAX;

    /// The signature as it travels.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.collective as u8;
        bytes[1] = self.dtype as u8;
        bytes[2] = self.op.map_or(Self::NO_OP, |op| op as u8);
        bytes[3] = self.algorithm as u8;
        bytes[4..8].copy_from_slice(&self.root.unwrap_or(Self::NO_ROOT).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.count.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.digest.to_le_bytes());
        bytes
    }

    /// Reads a signature; `None` when a field holds a value that does not exist.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |from: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[from + i]));
        let root = u32::from_le_bytes(std::array::from_fn(|i| bytes[4 + i]));
        Some(Self {
            collective: Collective::from_code(bytes[0])?,
            dtype: DataType::from_code(bytes[1])?,
            op: if bytes[2] == Self::NO_OP { None } else { Some(ReduceOp::from_code(bytes[2])?) },
            algorithm: Algorithm::from_code(bytes[3])?,
            root: (root != Self::NO_ROOT).then_some(root),
            count: word(8),
            digest: word(16),
        })
    }
}

impl fmt::Display for Signature {
    /// `allreduce(count 1024, f32, sum, two_shot)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.collective == Collective::Barrier {
            return f.write_str("barrier()");
        }
        write!(f, "{}(count {}, {}", self.collective, self.count, self.dtype)?;
        if let Some(op) = self.op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        write!(f, ", {})", self.algorithm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_survives_the_wire_and_nonsense_does_not() {
        let signature = Signature {
            collective: Collective::Reduce,
            dtype: DataType::BF16,
            op: Some(ReduceOp::Max),
            algorithm: Algorithm::Binomial,
            root: Some(3),
            count: 1 << 40,
            digest: 7,
        };
        let mut bytes = signature.encode();
        assert_eq!(Signature::decode(&bytes), Some(signature));
        assert_eq!(signature.to_string(), "reduce(count 1099511627776, bf16, max, root 3, binomial)");
        for (field, nonsense) in [(0, 99), (1, 12), (2, 11), (3, 99)] {
            let kept = std::mem::replace(&mut bytes[field], nonsense);
            assert_eq!(Signature::decode(&bytes), None);
            bytes[field] = kept;
        }
    }
}
