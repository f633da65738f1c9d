//! The numbers of types, operations, collectives and algorithms.
//!
//! Functions take plain integers and check them: C does not keep a caller from passing a number that an enumeration
//! does not have, and Rust must not see one.

use phalanx::types::Collective;
use phalanx::{Algorithm, DataType, Error, ReduceOp};

/// Element types.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum PhxDtype {
    /// IEEE 754 binary16. Reductions accumulate in float.
    PHX_F16 = 0,
    /// bfloat16. Reductions accumulate in float.
    PHX_BF16 = 1,
    /// float.
    PHX_F32 = 2,
    /// double.
    PHX_F64 = 3,
    /// int8_t.
    PHX_I8 = 4,
    /// uint8_t; also plain bytes.
    PHX_U8 = 5,
    /// int16_t.
    PHX_I16 = 6,
    /// int32_t.
    PHX_I32 = 7,
    /// uint32_t.
    PHX_U32 = 8,
    /// int64_t.
    PHX_I64 = 9,
    /// uint64_t.
    PHX_U64 = 10,
    /// One byte, zero or not; results are 0 or 1.
    PHX_BOOL = 11,
}

/// Operations of reductions. Integers wrap on overflow. The smallest and the largest of floats are NaN if either is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum PhxOp {
    /// The sum.
    PHX_SUM = 0,
    /// The sum divided by the number of ranks; integers round towards zero. Not for PHX_BOOL.
    PHX_AVERAGE = 1,
    /// The product.
    PHX_PRODUCT = 2,
    /// The smallest.
    PHX_MIN = 3,
    /// The largest.
    PHX_MAX = 4,
    /// Bitwise and, of integers and PHX_BOOL.
    PHX_BIT_AND = 5,
    /// Bitwise or, of integers and PHX_BOOL.
    PHX_BIT_OR = 6,
    /// Bitwise exclusive or, of integers and PHX_BOOL.
    PHX_BIT_XOR = 7,
    /// Logical and: 0 or 1.
    PHX_LOGICAL_AND = 8,
    /// Logical or: 0 or 1.
    PHX_LOGICAL_OR = 9,
    /// The function of a phx_call_t.
    PHX_USER = 10,
}

/// Collectives, for phx_call_t.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum PhxCollective {
    /// Every rank gets the reduction of all inputs.
    PHX_ALLREDUCE = 0,
    /// The root gets the reduction of all inputs.
    PHX_REDUCE = 1,
    /// Every rank gets the root's buffer.
    PHX_BROADCAST = 2,
    /// Every rank gets every rank's block, in rank order.
    PHX_ALLGATHER = 3,
    /// Rank i gets block i of the reduction.
    PHX_REDUCE_SCATTER = 4,
    /// Rank i gets block i of every rank's input.
    PHX_ALLTOALL = 5,
    /// The root gets every rank's block, in rank order.
    PHX_GATHER = 6,
    /// Rank i gets block i of the root's input.
    PHX_SCATTER = 7,
    /// No rank leaves before every rank has come.
    PHX_BARRIER = 8,
}

/// Algorithms, for phx_settings_t.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum PhxAlgorithm {
    /// Chosen for each call by its size.
    PHX_ALGORITHM_AUTO = -1,
    /// Neighbour to neighbour.
    PHX_ALGORITHM_RING = 0,
    /// Two complementary binary trees.
    PHX_ALGORITHM_DOUBLE_TREE = 1,
    /// The whole is exchanged with partners at distance 1, 2, 4, ...
    PHX_ALGORITHM_RECURSIVE_DOUBLING = 2,
    /// Reduce-scatter by recursive halving, allgather by recursive doubling.
    PHX_ALGORITHM_HALVING_DOUBLING = 3,
    /// Everyone sends everything to everyone.
    PHX_ALGORITHM_ONE_SHOT = 4,
    /// Direct reduce-scatter, then direct allgather.
    PHX_ALGORITHM_TWO_SHOT = 5,
    /// A binomial tree from or to the root.
    PHX_ALGORITHM_BINOMIAL = 6,
    /// Bruck's algorithm.
    PHX_ALGORITHM_BRUCK = 7,
    /// Exchanges with partners at growing distance.
    PHX_ALGORITHM_PAIRWISE = 8,
    /// Straight between the root and each other rank.
    PHX_ALGORITHM_LINEAR = 9,
    /// In-host, between hosts, in-host.
    PHX_ALGORITHM_HIERARCHICAL = 10,
    /// Rounds of empty messages at growing distance.
    PHX_ALGORITHM_DISSEMINATION = 11,
    /// Straight through the memory of few ranks on one host.
    PHX_ALGORITHM_BOARDS = 12,
}

/// Bytes of one element of a type (a phx_dtype_t); 0 for numbers that are none.
#[unsafe(no_mangle)]
pub extern "C" fn phx_dtype_size(dtype: i32) -> usize {
    small(dtype).and_then(DataType::from_code).map_or(0, DataType::size)
}

fn small(code: i32) -> Option<u8> {
    u8::try_from(code).ok()
}

pub(crate) fn dtype(code: i32) -> Result<DataType, Error> {
    let dtype = small(code).and_then(DataType::from_code);
    dtype.ok_or_else(|| Error::invalid(format_args!("dtype {code} given, a phx_dtype_t expected (0 to 11)")))
}

pub(crate) fn op(code: i32) -> Result<ReduceOp, Error> {
    let op = small(code).and_then(ReduceOp::from_code);
    op.ok_or_else(|| Error::invalid(format_args!("op {code} given, a phx_op_t expected (0 to 10)")))
}

pub(crate) fn collective(code: i32) -> Result<Collective, Error> {
    let collective = small(code).and_then(Collective::from_code);
    collective
        .filter(|collective| *collective != Collective::SendRecv)
        .ok_or_else(|| Error::invalid(format_args!("collective {code} given, a phx_collective_t expected (0 to 8)")))
}

pub(crate) fn algorithm(code: i32) -> Result<Option<Algorithm>, Error> {
    if code == PhxAlgorithm::PHX_ALGORITHM_AUTO as i32 {
        return Ok(None);
    }
    let algorithm = small(code).and_then(Algorithm::from_code).filter(|algorithm| Algorithm::ALL.contains(algorithm));
    algorithm
        .map(Some)
        .ok_or_else(|| Error::invalid(format_args!("algorithm {code} given, a phx_algorithm_t expected (-1 to 12)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header, which the compiler of a C program reads, has every name of the library with its number.
    #[test]
    fn the_header_has_the_codes_of_the_library() {
        let expect = |prefix: &str, name: &str, code: i32| {
            let line = format!(" {prefix}{} = {code},", name.to_uppercase());
            assert!(crate::HEADER.contains(&line), "the header lacks{line}");
        };
        DataType::ALL.iter().for_each(|dtype| expect("PHX_", dtype.name(), *dtype as i32));
        ReduceOp::ALL.iter().for_each(|op| expect("PHX_", op.name(), *op as i32));
        expect("PHX_", ReduceOp::User.name(), ReduceOp::User as i32);
        for collective in Collective::ALL.iter().filter(|collective| **collective != Collective::SendRecv) {
            expect("PHX_", collective.name(), *collective as i32);
        }
        Algorithm::ALL.iter().for_each(|algorithm| expect("PHX_ALGORITHM_", algorithm.name(), *algorithm as i32));
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        for code in [-1, 13, 255, 256, i32::MAX, i32::MIN] {
            assert!(dtype(code).is_err() && op(code).is_err() && collective(code).is_err(), "{code}");
            assert_eq!(phx_dtype_size(code), 0);
            assert!(code == -1 || algorithm(code).is_err());
        }
        assert!(collective(Collective::SendRecv as i32).is_err());
        assert!(matches!(algorithm(-1), Ok(None)));
        assert_eq!(phx_dtype_size(PhxDtype::PHX_F64 as i32), 8);
    }
}
