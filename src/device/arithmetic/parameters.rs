//! The parameters of kernels, laid out as `kernels/*.cuh` declares them.

use crate::types;

/// The most buffers that one launch combines.
pub(in crate::device) const MOST_SOURCES: usize = 16;

/// How a result is finished.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::device) struct Finish {
    pub divisor: u64,
    pub factor: f64,
}

impl From<types::Finish> for Finish {
    fn from(finish: types::Finish) -> Self {
        Self { divisor: finish.divisor, factor: finish.factor }
    }
}

/// `kernels/reduce.cuh`
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::device) struct Reduce {
    pub target: u64,
    pub sources: [u64; MOST_SOURCES],
    pub count: u64,
    pub finish: Finish,
    pub sources_used: u32,
}

/// `kernels/scale.cuh`
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::device) struct Scale {
    pub target: u64,
    pub source: u64,
    pub count: u64,
    pub finish: Finish,
}

/// `kernels/cast.cuh`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Cast {
    pub target: u64,
    pub source: u64,
    pub count: u64,
}

/// `kernels/pack.cuh`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Pack {
    pub buffer: u64,
    pub pieces: u64,
    pub count: u32,
}

/// Words of 64 bits that `kernels/pack.cuh` has for a piece: its address, its offset in the buffer, its bytes.
pub(super) const PIECE_WORDS: usize = 3;

/// `kernels/adasum.cuh`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Adasum {
    pub target: u64,
    pub left: u64,
    pub right: u64,
    pub count: u64,
    pub products: u64,
}

/// Elements whose products one block sums, and the sums that it leaves.
pub(super) const ADASUM_RUN: usize = 16384;
pub(super) const ADASUM_SUMS: usize = 3;

/// `kernels/quantize.cuh`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Quantize {
    pub codes: u64,
    pub scales: u64,
    pub source: u64,
    pub error: u64,
    pub count: u64,
}

/// `kernels/quantize.cuh`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Dequantize {
    pub target: u64,
    pub codes: u64,
    pub scales: u64,
    pub count: u64,
    pub adds: u32,
}

/// Elements that share a scale, and the numbers of which it consists.
pub(super) const QUANTIZE_RUN: usize = 1024;
pub(super) const SCALE_NUMBERS: usize = 2;

/// `kernels/check.cuh`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Check {
    pub result: u64,
    pub expected: u64,
    pub count: u64,
    pub wrong: u64,
}

/// `kernels/peer.cuh`
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::device) struct Peer {
    pub target: u64,
    pub inputs: [u64; MOST_SOURCES],
    pub stages: [u64; MOST_SOURCES],
    pub flags: [u64; MOST_SOURCES],
    pub abort: u64,
    pub status: u64,
    pub count: u64,
    pub finish: Finish,
    pub rank: u32,
    pub ranks: u32,
    pub meetings: u32,
}

/// `kernels/peer.cuh`
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::device) struct Fill {
    pub scale: Scale,
    pub status: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_kernels() {
        let defined = |text: &str, name: &str| -> usize {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.and_then(|number| number.parse().ok()).expect("a number")
        };
        let base = include_str!("../../../kernels/base.cuh");
        assert_eq!(defined(base, "PHX_MOST_SOURCES"), MOST_SOURCES);
        assert_eq!(defined(include_str!("../../../kernels/adasum.cuh"), "ADASUM_RUN"), ADASUM_RUN);
        assert_eq!(defined(include_str!("../../../kernels/quantize.cuh"), "QUANTIZE_RUN"), QUANTIZE_RUN);
    }
}
