//! What goes in and what must come out: inputs whose answer is known exactly, in closed form, for every element type.
//!
//! All inputs and all answers but averages are whole numbers from 0 to 127, which every type holds exactly, so that
//! no order of reduction can round. An element's *carrier* is the rank whose input holds the part that depends on the
//! index; the carrier itself is chosen by a hash of the index. All other ranks put in a number that depends on the rank
//! alone. The answer is then one formula an element, whatever the number of ranks, and yet it is wrong when a rank is
//! left out or counted twice, or when elements end up in another's place. Where elements are only moved, each is a
//! hash of the rank that it comes from and of its place there.
//!
//! A *salt* changes all of it from iteration to iteration, so that a result left over from an earlier one is wrong too.

use half::{bf16, f16};
use phalanx::types::{Collective, DataType, Element, ReduceOp};

use super::sizes::Extent;

/// An element that can be made from a small number and compared.
pub trait Value: Element + PartialEq {
    /// Two different elements, neither of which may be left where an answer belongs.
    const POISON: [Self; 2];

    /// This number; for `bool`, whether it is not zero.
    fn from_small(number: u8) -> Self;

    /// The average of `ranks` numbers with this sum, as this type rounds it.
    fn average(sum: u8, ranks: usize) -> Self;

    /// An element that is not `answer`.
    fn poison(answer: Self) -> Self {
        if answer == Self::POISON[0] { Self::POISON[1] } else { Self::POISON[0] }
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {
        $(impl Value for $integer {
            const POISON: [Self; 2] = [<$integer>::MAX, <$integer>::MAX - 1];
            fn from_small(number: u8) -> Self {
                number as $integer
            }
            fn average(sum: u8, ranks: usize) -> Self {
                (usize::from(sum) / ranks) as $integer
            }
        })*
    };
}
integers!(i8, u8, i16, i32, u32, i64, u64);

impl Value for f32 {
    const POISON: [Self; 2] = [f32::NAN, f32::NAN];
    fn from_small(number: u8) -> Self {
        f32::from(number)
    }
    fn average(sum: u8, ranks: usize) -> Self {
        f32::from(sum) / ranks as f32
    }
}

impl Value for f64 {
    const POISON: [Self; 2] = [f64::NAN, f64::NAN];
    fn from_small(number: u8) -> Self {
        f64::from(number)
    }
    fn average(sum: u8, ranks: usize) -> Self {
        f64::from(sum) / ranks as f64
    }
}

impl Value for f16 {
    const POISON: [Self; 2] = [f16::NAN, f16::NAN];
    fn from_small(number: u8) -> Self {
        f16::from(number)
    }
    fn average(sum: u8, ranks: usize) -> Self {
        f16::from_f32(f32::average(sum, ranks))
    }
}

impl Value for bf16 {
    const POISON: [Self; 2] = [bf16::NAN, bf16::NAN];
    fn from_small(number: u8) -> Self {
        bf16::from(number)
    }
    fn average(sum: u8, ranks: usize) -> Self {
        bf16::from_f32(f32::average(sum, ranks))
    }
}

impl Value for bool {
    const POISON: [Self; 2] = [true, false];
    fn from_small(number: u8) -> Self {
        number != 0
    }
    fn average(sum: u8, _: usize) -> Self {
        sum != 0
    }
}

/// One collective with its inputs and answers.
#[derive(Clone, Copy, Debug)]
pub struct Exercise {
    /// The collective.
    pub collective: Collective,
    /// The element type.
    pub dtype: DataType,
    /// The operation, where there is one.
    pub op: ReduceOp,
    /// The number of ranks.
    pub ranks: usize,
    /// The root, where there is one.
    pub root: usize,
    /// The size.
    pub extent: Extent,
    /// Makes the inputs of one iteration differ from another's.
    pub salt: u64,
}

impl Exercise {
    /// Whether elements are combined, not only moved.
    pub fn reduces(&self) -> bool {
        reduces(self.collective)
    }

    /// Element `index` of the input of `rank`.
    pub fn input<T: Value>(&self, rank: usize, index: usize) -> T {
        let number = if self.reduces() {
            contribution(reference_op(self.op, self.dtype), self.ranks, rank, spread(index, self.salt))
        } else {
            moved(rank, index, self.salt)
        };
        T::from_small(self.fit(number))
    }

    /// Element `index` of the output of `rank`. Ranks that have no output are not asked.
    pub fn answer<T: Value>(&self, rank: usize, index: usize) -> T {
        let block = self.extent.count;
        if !self.reduces() {
            let (source, index) = match self.collective {
                Collective::Allgather | Collective::Gather => (index / block, index % block),
                Collective::Alltoall => (index / block, rank * block + index % block),
                Collective::Scatter => (self.root, rank * block + index),
                Collective::SendRecv => ((rank + self.ranks - 1) % self.ranks, index),
                _ => (self.root, index),
            };
            return T::from_small(self.fit(moved(source, index, self.salt)));
        }
        let index = if self.collective == Collective::ReduceScatter { rank * block + index } else { index };
        let result = combined(reference_op(self.op, self.dtype), self.ranks, spread(index, self.salt));
        if self.op == ReduceOp::Average { T::average(result, self.ranks) } else { T::from_small(self.fit(result)) }
    }

    /// `bool` holds the lowest bit alone.
    fn fit(&self, number: u8) -> u8 {
        if self.dtype == DataType::Bool { number & 1 } else { number }
    }
}

/// Whether elements are combined, not only moved.
pub fn reduces(collective: Collective) -> bool {
    matches!(collective, Collective::Allreduce | Collective::Reduce | Collective::ReduceScatter)
}

/// The operation whose numbers are used: those of `bool` all are *and*, *or* or *exclusive or* of one bit.
fn reference_op(op: ReduceOp, dtype: DataType) -> ReduceOp {
    use ReduceOp::*;
    match (op, dtype) {
        (Sum | Max | BitOr | LogicalOr, DataType::Bool) => LogicalOr,
        (Product | Min | BitAnd | LogicalAnd, DataType::Bool) => LogicalAnd,
        (op, _) => op,
    }
}

/// Bits that depend on an index and a salt.
fn spread(index: usize, salt: u64) -> u64 {
    let bits = (index as u64 ^ salt.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// An element that is only moved: 7 bits.
fn moved(source: usize, index: usize, salt: u64) -> u8 {
    (spread(index, salt ^ (source as u64 + 1).wrapping_mul(0x94d0_49bb_1331_11eb)) >> 57) as u8
}

/// The rank that carries the part depending on the index.
fn carrier(spread: u64, ranks: usize) -> usize {
    (((spread >> 32) * ranks as u64) >> 32) as usize
}

/// The part depending on the index, from 0 up to but not including `limit`, a power of two up to 128.
fn part(spread: u64, limit: u8) -> u8 {
    (spread >> 16) as u8 & (limit - 1)
}

/// Ranks below this put 1, 2 or 3 into a sum.
const VARIED: usize = 20;

/// Ranks from this one on put nothing into a sum, so that it stays below 128.
const COUNTED: usize = 64;

/// What a rank puts into every sum.
fn weight(rank: usize) -> u8 {
    if rank < VARIED { 1 + (rank % 3) as u8 } else { u8::from(rank < COUNTED) }
}

/// The sum of [`weight`] over `ranks` ranks; at most 83.
fn weights(ranks: usize) -> u8 {
    let varied = ranks.min(VARIED);
    let rest = varied % 3;
    (6 * (varied / 3) + rest * (rest + 1) / 2 + ranks.min(COUNTED) - varied) as u8
}

/// The first three ranks each have a bit of their own.
fn own_bit(rank: usize) -> u8 {
    if rank < 3 { 1 << rank } else { 0 }
}

/// The exclusive or of the lowest six bits of the numbers below `ranks`.
fn xor_below(ranks: usize) -> u8 {
    let ranks = ranks % 64;
    (match ranks % 4 {
        0 => 0,
        1 => ranks - 1,
        2 => 1,
        _ => ranks,
    }) as u8
}

/// What `rank` puts into an element.
fn contribution(op: ReduceOp, ranks: usize, rank: usize, spread: u64) -> u8 {
    let carries = rank == carrier(spread, ranks);
    let low = (rank % 64) as u8;
    match (op, carries) {
        (ReduceOp::Sum | ReduceOp::Average, true) => weight(rank) + part(spread, 32),
        (ReduceOp::Sum | ReduceOp::Average, false) => weight(rank),
        (ReduceOp::Product, true) => (1 + u8::from(rank < 3)) * (1 + part(spread, 4)),
        (ReduceOp::Product, false) => 1 + u8::from(rank < 3),
        (ReduceOp::Min, true) => part(spread, 32),
        (ReduceOp::Min, false) => 32 + low,
        (ReduceOp::Max, true) => 64 + part(spread, 64),
        (ReduceOp::Max, false) => low,
        (ReduceOp::BitAnd | ReduceOp::BitOr, true) => part(spread, 128),
        (ReduceOp::BitAnd, false) => 127 & !own_bit(rank),
        (ReduceOp::BitOr, false) => own_bit(rank),
        (ReduceOp::BitXor, true) => low ^ part(spread, 128),
        (ReduceOp::BitXor, false) => low,
        (ReduceOp::LogicalAnd | ReduceOp::LogicalOr, true) => part(spread, 2),
        (ReduceOp::LogicalAnd, false) => 1,
        (ReduceOp::LogicalOr, false) => 0,
        // Not offered: its answer is the user's.
        (ReduceOp::User, _) => 0,
    }
}

/// What an element becomes.
fn combined(op: ReduceOp, ranks: usize, spread: u64) -> u8 {
    let own_bits = (1 << ranks.min(3)) - 1 - own_bit(carrier(spread, ranks));
    match op {
        ReduceOp::Sum | ReduceOp::Average => weights(ranks) + part(spread, 32),
        ReduceOp::Product => (1 << ranks.min(3)) * (1 + part(spread, 4)),
        ReduceOp::Min => part(spread, 32),
        ReduceOp::Max => 64 + part(spread, 64),
        ReduceOp::BitAnd => part(spread, 128) & !own_bits,
        ReduceOp::BitOr => part(spread, 128) | own_bits,
        ReduceOp::BitXor => part(spread, 128) ^ xor_below(ranks),
        ReduceOp::LogicalAnd | ReduceOp::LogicalOr => part(spread, 2),
        ReduceOp::User => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second way to the same answers: in `f64` and in bits, rank by rank.
    trait Reference: Value + std::fmt::Debug {
        fn number(self) -> f64;
        fn rounded(number: f64) -> Self;
    }

    macro_rules! reference {
        ($($type:ty: $value:ident => $number:expr, $from:ident => $rounded:expr;)*) => {
            $(impl Reference for $type {
                fn number(self) -> f64 {
                    let $value = self;
                    $number
                }
                fn rounded($from: f64) -> Self {
                    $rounded
                }
            })*
        };
    }
    reference! {
        f16: x => x.to_f64(), y => f16::from_f64(y);
        bf16: x => x.to_f64(), y => bf16::from_f64(y);
        f32: x => f64::from(x), y => y as f32;
        f64: x => x, y => y;
        i8: x => f64::from(x), y => y as i8;
        u8: x => f64::from(x), y => y as u8;
        i16: x => f64::from(x), y => y as i16;
        i32: x => f64::from(x), y => y as i32;
        u32: x => f64::from(x), y => y as u32;
        i64: x => x as f64, y => y as i64;
        u64: x => x as f64, y => y as u64;
        bool: x => f64::from(u8::from(x)), y => y != 0.0;
    }

    /// Calls a test generic over the element type for every type.
    macro_rules! for_every_type {
        ($test:ident($($argument:expr),*)) => {
            $test::<f16>($($argument),*);
            $test::<bf16>($($argument),*);
            $test::<f32>($($argument),*);
            $test::<f64>($($argument),*);
            $test::<i8>($($argument),*);
            $test::<u8>($($argument),*);
            $test::<i16>($($argument),*);
            $test::<i32>($($argument),*);
            $test::<u32>($($argument),*);
            $test::<i64>($($argument),*);
            $test::<u64>($($argument),*);
            $test::<bool>($($argument),*);
        };
    }

    fn combine(op: ReduceOp, left: f64, right: f64) -> f64 {
        let (a, b) = (left as u64, right as u64);
        let truth = |value: bool| f64::from(u8::from(value));
        match op {
            ReduceOp::Sum | ReduceOp::Average => left + right,
            ReduceOp::Product => left * right,
            ReduceOp::Min => left.min(right),
            ReduceOp::Max => left.max(right),
            ReduceOp::BitAnd => (a & b) as f64,
            ReduceOp::BitOr => (a | b) as f64,
            ReduceOp::BitXor => (a ^ b) as f64,
            ReduceOp::LogicalAnd => truth(left != 0.0 && right != 0.0),
            ReduceOp::LogicalOr => truth(left != 0.0 || right != 0.0),
            ReduceOp::User => unreachable!(),
        }
    }

    fn reduction<T: Reference>(exercise: &Exercise, index: usize) -> T {
        let inputs = (0..exercise.ranks).map(|rank| exercise.input::<T>(rank, index).number());
        let mut result = inputs.reduce(|a, b| combine(exercise.op, a, b)).unwrap();
        if matches!(exercise.op, ReduceOp::LogicalAnd | ReduceOp::LogicalOr) {
            result = f64::from(u8::from(result != 0.0));
        }
        if exercise.op == ReduceOp::Average {
            return T::rounded(result / exercise.ranks as f64);
        }
        let element = T::rounded(result);
        let exact = exercise.dtype == DataType::Bool || (element.number() == result && result < 128.0);
        assert!(exact, "{exercise:?}: {result} is not exact");
        element
    }

    /// Every rank's output by the meaning of the collective, from every rank's input.
    fn outputs<T: Reference>(exercise: &Exercise) -> Vec<Vec<T>> {
        let Exercise { collective, ranks, root, extent, .. } = *exercise;
        let Extent { count: block, total } = extent;
        let input = |rank, range: std::ops::Range<usize>| -> Vec<T> {
            range.map(|index| exercise.input(rank, index)).collect()
        };
        let reduced = || -> Vec<T> { (0..total).map(|index| reduction(exercise, index)).collect() };
        let blocks = || -> Vec<T> { (0..ranks).flat_map(|rank| input(rank, 0..block)).collect() };
        let everywhere = |output: Vec<T>| vec![output; ranks];
        let at_root = |output: Vec<T>| {
            let mut outputs = vec![Vec::new(); ranks];
            outputs[root] = output;
            outputs
        };
        let each = |output: &dyn Fn(usize) -> Vec<T>| (0..ranks).map(output).collect();
        match collective {
            Collective::Allreduce => everywhere(reduced()),
            Collective::Reduce => at_root(reduced()),
            Collective::ReduceScatter => {
                let all = reduced();
                each(&|rank| all[rank * block..][..block].to_vec())
            }
            Collective::Broadcast => everywhere(input(root, 0..block)),
            Collective::Allgather => everywhere(blocks()),
            Collective::Gather => at_root(blocks()),
            Collective::Scatter => each(&|rank| input(root, rank * block..(rank + 1) * block)),
            Collective::Alltoall => {
                each(&|rank| (0..ranks).flat_map(|source| input(source, rank * block..(rank + 1) * block)).collect())
            }
            Collective::SendRecv => each(&|rank| input(if rank == 0 { ranks - 1 } else { rank - 1 }, 0..block)),
            Collective::Barrier => everywhere(Vec::new()),
        }
    }

    fn answers_are_the_meaning<T: Reference>(collective: Collective, ranks: usize) {
        let dtype = T::DATA_TYPE;
        let ops = if reduces(collective) { &ReduceOp::ALL[..] } else { &[ReduceOp::Sum] };
        for &op in ops.iter().filter(|op| op.supports(dtype)) {
            for count in [0, 1, 5] {
                let extent = Extent::of(collective, count * ranks * dtype.size(), dtype.size(), ranks);
                let exercise =
                    Exercise { collective, dtype, op, ranks, root: ranks / 2, extent, salt: 3 + count as u64 };
                for (rank, output) in outputs::<T>(&exercise).into_iter().enumerate() {
                    for (index, meant) in output.into_iter().enumerate() {
                        let answer: T = exercise.answer(rank, index);
                        assert_eq!(answer, meant, "{exercise:?}, rank {rank}, element {index}");
                        assert!(T::poison(answer) != answer);
                    }
                }
            }
        }
    }

    #[test]
    fn answers_are_the_meaning_of_every_collective_op_and_type() {
        for &collective in Collective::ALL {
            for ranks in [1, 2, 3, 4, 5, 7, 8, 9, 16, 21, 64, 65, 130] {
                for_every_type!(answers_are_the_meaning(collective, ranks));
            }
        }
    }

    fn exercise(op: ReduceOp, dtype: DataType, ranks: usize, salt: u64) -> Exercise {
        let extent = Extent { count: 600, total: 600 };
        Exercise { collective: Collective::Allreduce, dtype, op, ranks, root: 0, extent, salt }
    }

    fn lost_contributions_show<T: Reference>(op: ReduceOp) {
        if !op.supports(T::DATA_TYPE) {
            return;
        }
        for ranks in [2, 3, 8] {
            let exercise = exercise(op, T::DATA_TYPE, ranks, 1);
            for lost in 0..ranks {
                let without = |index| {
                    let kept = (0..ranks).filter(|&rank| rank != lost);
                    let inputs = kept.map(|rank| exercise.input::<T>(rank, index).number());
                    inputs.reduce(|a, b| combine(op, a, b)).unwrap()
                        / if op == ReduceOp::Average { ranks as f64 } else { 1.0 }
                };
                let shows = (0..600).any(|index| T::rounded(without(index)) != exercise.answer::<T>(0, index));
                assert!(shows, "{exercise:?} without rank {lost}");
            }
        }
    }

    #[test]
    fn a_lost_contribution_changes_the_answer() {
        for op in ReduceOp::ALL {
            for_every_type!(lost_contributions_show(op));
        }
    }

    fn misplaced_and_stale_elements_show<T: Reference>(op: ReduceOp) {
        if !op.supports(T::DATA_TYPE) {
            return;
        }
        let now = exercise(op, T::DATA_TYPE, 4, 1);
        let before = exercise(op, T::DATA_TYPE, 4, 0);
        for shift in [1, 2, 3, 5, 64, 100] {
            assert!((0..400).any(|index| now.answer::<T>(0, index) != now.answer::<T>(0, index + shift)));
        }
        assert!((0..400).any(|index| now.answer::<T>(0, index) != before.answer::<T>(0, index)));
        assert!((0..400).any(|index| now.input::<T>(1, index) != before.input::<T>(1, index)));
    }

    #[test]
    fn misplaced_and_stale_results_are_wrong() {
        for op in ReduceOp::ALL {
            for_every_type!(misplaced_and_stale_elements_show(op));
        }
        let moved: Vec<_> = (0..4).map(|source| (0..400).map(|i| moved(source, i, 1)).collect::<Vec<_>>()).collect();
        assert!(moved.iter().enumerate().all(|(i, a)| moved[..i].iter().all(|b| a != b)));
    }
}
