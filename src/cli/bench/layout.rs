//! What lies where in a rank's buffers, before a call and after it.

use std::ops::{Deref, DerefMut};

use phalanx::types::Collective;
use phalanx::{Buffer, Call, Communicator, Result};

use super::sizes::has_blocks;
use super::values::{Exercise, Value};

/// The tag of the messages of send_recv.
const TAG: u32 = 0;

/// One rank's part of an exercise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Elements that this rank puts in.
    pub input: usize,
    /// Where they lie in the one buffer of a call in place.
    pub input_at: usize,
    /// Elements of the answer on this rank.
    pub answer: usize,
    /// Where they lie in the output.
    pub answer_at: usize,
    /// Elements of the output buffer.
    pub output: usize,
    /// Whether input and output are one buffer.
    pub in_place: bool,
}

/// Whether a collective can be called with one buffer here. Broadcast cannot be called otherwise.
pub fn can_be_in_place(collective: Collective) -> bool {
    use Collective::*;
    matches!(collective, Allreduce | Reduce | Broadcast | Allgather | ReduceScatter | Alltoall)
}

impl Layout {
    /// What `rank` holds. Collectives that know one way only take that whatever `in_place` says.
    pub fn of(exercise: &Exercise, rank: usize, in_place: bool) -> Self {
        use Collective::*;
        let collective = exercise.collective;
        let (count, total) = (exercise.extent.count, exercise.extent.total);
        let at_root = |count| if rank == exercise.root { count } else { 0 };
        let (input, answer) = match collective {
            Allreduce | SendRecv => (count, count),
            Reduce => (count, at_root(count)),
            Broadcast => (at_root(count), count),
            Allgather => (count, total),
            ReduceScatter => (total, count),
            Alltoall => (total, total),
            Gather => (count, at_root(total)),
            Scatter => (at_root(total), count),
            Barrier => (0, 0),
        };
        if !(collective == Broadcast || in_place && can_be_in_place(collective)) {
            return Layout { input, input_at: 0, answer, answer_at: 0, output: answer, in_place: false };
        }
        let own = if has_blocks(collective) { rank * count } else { 0 };
        let input_at = if collective == Allgather { own } else { 0 };
        let answer_at = if collective == ReduceScatter { own } else { 0 };
        Layout { input, input_at, answer, answer_at, output: total, in_place: true }
    }
}

/// One rank's memory for an exercise.
pub struct Buffers<T> {
    layout: Layout,
    input: Memory<T>,
    output: Memory<T>,
    sheets: Vec<Sheet<T>>,
}

/// A buffer of one kind or the other.
enum Memory<T> {
    Any(Vec<T>),
    Registered(Buffer<T>),
}

impl<T: Value> Memory<T> {
    /// Touched all over.
    fn new(count: usize, registered: Option<&Communicator>) -> Result<Self> {
        let Some(comm) = registered else { return Ok(Self::Any(vec![T::POISON[0]; count])) };
        let mut buffer = comm.alloc(count)?;
        buffer.fill(T::POISON[0]);
        Ok(Self::Registered(buffer))
    }
}

impl<T> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Memory::Any(elements) => elements,
            Memory::Registered(elements) => elements,
        }
    }
}

impl<T> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Memory::Any(elements) => elements,
            Memory::Registered(elements) => elements,
        }
    }
}

/// What goes in and must come out with one salt, written down before: then preparing and checking cost a copy and a
/// comparison, and what is measured between them finds the caches and the processor as a program would leave them.
struct Sheet<T> {
    salt: u64,
    input: Vec<T>,
    poison: Vec<T>,
    answer: Vec<T>,
}

impl<T: Value> Buffers<T> {
    /// Allocates and touches all of it; by this communicator, if one is given.
    pub fn new(layout: Layout, registered: Option<&Communicator>) -> Result<Self> {
        let input = Memory::new(if layout.in_place { 0 } else { layout.input }, registered)?;
        let output = Memory::new(layout.output, registered)?;
        Ok(Self { layout, input, output, sheets: Vec::new() })
    }

    /// The input and the output.
    pub fn parts(&mut self) -> (&mut [T], &mut [T]) {
        (&mut self.input, &mut self.output)
    }

    /// Writes down what belongs to the salts from 1 to `salts`.
    pub fn write_down(&mut self, exercise: &Exercise, rank: usize, salts: u64) {
        let sheet = |salt| {
            let exercise = Exercise { salt, ..*exercise };
            let answer: Vec<T> = (0..self.layout.answer).map(|index| exercise.answer(rank, index)).collect();
            let poison = answer.iter().map(|answer| T::poison(*answer)).collect();
            let input = (0..self.layout.input).map(|index| exercise.input(rank, index)).collect();
            Sheet { salt, input, poison, answer }
        };
        self.sheets = (1..=salts).map(sheet).collect();
    }

    fn sheet(&self, exercise: &Exercise) -> Option<usize> {
        self.sheets.iter().position(|sheet| sheet.salt == exercise.salt)
    }

    /// Writes the input, and what is not the answer where the answer belongs.
    pub fn prepare(&mut self, exercise: &Exercise, rank: usize) {
        let Layout { input, input_at, answer, answer_at, in_place, .. } = self.layout;
        if let Some(sheet) = self.sheet(exercise) {
            let sheet = &self.sheets[sheet];
            if !in_place || input < answer {
                self.output[answer_at..][..answer].copy_from_slice(&sheet.poison);
            }
            let target = if in_place { &mut self.output[input_at..][..input] } else { &mut self.input[..] };
            return target.copy_from_slice(&sheet.input);
        }
        // In place most collectives write the input over everything, which is not the answer either.
        if !in_place || input < answer {
            for (index, element) in self.output[answer_at..][..answer].iter_mut().enumerate() {
                *element = T::poison(exercise.answer(rank, index));
            }
        }
        let source = if in_place { &mut self.output[input_at..][..input] } else { &mut self.input[..] };
        source.iter_mut().enumerate().for_each(|(index, element)| *element = exercise.input(rank, index));
    }

    /// How many elements of the answer are wrong, and how many of the input were changed though it is not the output.
    pub fn wrong(&self, exercise: &Exercise, rank: usize) -> u64 {
        let answer = &self.output[self.layout.answer_at..][..self.layout.answer];
        let sheet = self.sheet(exercise).map(|sheet| &self.sheets[sheet]);
        if sheet.is_some_and(|sheet| answer == sheet.answer && (self.layout.in_place || *self.input == *sheet.input)) {
            return 0;
        }
        let wrong = answer.iter().enumerate().filter(|&(index, element)| *element != exercise.answer(rank, index));
        let changed = self.input.iter().enumerate().filter(|&(index, element)| *element != exercise.input(rank, index));
        (wrong.count() + changed.count()) as u64
    }

    /// Makes the call.
    pub fn call(&mut self, comm: &Communicator, exercise: &Exercise) -> Result<()> {
        let (op, root) = (exercise.op, exercise.root);
        let (input, output) = (&self.input[..], &mut self.output[..]);
        match (exercise.collective, self.layout.in_place) {
            (Collective::Allreduce, false) => comm.allreduce_into(input, output, op),
            (Collective::Allreduce, true) => comm.allreduce(output, op),
            (Collective::Reduce, false) => comm.reduce_into(input, output, op, root),
            (Collective::Reduce, true) => comm.reduce(output, op, root),
            (Collective::Broadcast, _) => comm.broadcast(output, root),
            (Collective::Allgather, false) => comm.allgather(input, output),
            (Collective::Allgather, true) => comm.allgather_in_place(output),
            (Collective::ReduceScatter, false) => comm.reduce_scatter(input, output, op),
            (Collective::ReduceScatter, true) => comm.reduce_scatter_in_place(output, op),
            (Collective::Alltoall, false) => comm.alltoall(input, output),
            (Collective::Alltoall, true) => comm.alltoall_in_place(output),
            (Collective::Gather, _) => comm.gather(input, output, root),
            (Collective::Scatter, _) => comm.scatter(input, output, root),
            (Collective::Barrier, _) => comm.barrier(),
            (Collective::SendRecv, _) => pass_on(comm, input, output),
        }
    }
}

/// Sends to the next rank and receives from the one before, around the circle, both at once.
fn pass_on<T: Value>(comm: &Communicator, input: &[T], output: &mut [T]) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    if size == 1 {
        output.copy_from_slice(input);
        return Ok(());
    }
    comm.scope(|scope| {
        scope.recv(output, previous, TAG)?;
        scope.send(input, next, TAG)?;
        Ok(())
    })
}

/// The call as the communicator plans it; `None` for messages between two ranks, which are not planned.
pub fn call_of(exercise: &Exercise, in_place: bool) -> Option<Call> {
    let Exercise { collective, dtype, op, root, extent, .. } = *exercise;
    let count = extent.count;
    let call = match collective {
        Collective::Allreduce => Call::allreduce(dtype, count, op),
        Collective::Reduce => Call::reduce(dtype, count, op, root),
        Collective::Broadcast => Call::broadcast(dtype, count, root),
        Collective::Allgather => Call::allgather(dtype, count),
        Collective::ReduceScatter => Call::reduce_scatter(dtype, count, op),
        Collective::Alltoall => Call::alltoall(dtype, count),
        Collective::Gather => Call::gather(dtype, count, root),
        Collective::Scatter => Call::scatter(dtype, count, root),
        Collective::Barrier => Call::barrier(),
        Collective::SendRecv => return None,
    };
    Some(call.in_place(in_place && can_be_in_place(collective)))
}

/// Calls a generic function with the Rust type that stands for an element type.
macro_rules! with_element_type {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            phalanx::DataType::F16 => $function::<half::f16>($($argument),*),
            phalanx::DataType::BF16 => $function::<half::bf16>($($argument),*),
            phalanx::DataType::F32 => $function::<f32>($($argument),*),
            phalanx::DataType::F64 => $function::<f64>($($argument),*),
            phalanx::DataType::I8 => $function::<i8>($($argument),*),
            phalanx::DataType::U8 => $function::<u8>($($argument),*),
            phalanx::DataType::I16 => $function::<i16>($($argument),*),
            phalanx::DataType::I32 => $function::<i32>($($argument),*),
            phalanx::DataType::U32 => $function::<u32>($($argument),*),
            phalanx::DataType::I64 => $function::<i64>($($argument),*),
            phalanx::DataType::U64 => $function::<u64>($($argument),*),
            phalanx::DataType::Bool => $function::<bool>($($argument),*),
        }
    };
}
pub(super) use with_element_type;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::sizes::Extent;
    use phalanx::{DataType, ReduceOp};

    fn exercise<T: Value>(collective: Collective) -> Exercise {
        let dtype = T::DATA_TYPE;
        let extent = Extent::of(collective, 3 * 40 * dtype.size(), dtype.size(), 3);
        Exercise { collective, dtype, op: ReduceOp::Max, ranks: 3, root: 1, extent, salt: 1 }
    }

    /// Untouched memory has no right element; the right answer has no wrong one.
    fn poisoned_until_answered<T: Value>() {
        for &collective in Collective::ALL {
            let exercise = exercise::<T>(collective);
            for (rank, in_place) in [(0, false), (1, false), (2, true), (1, true)] {
                let layout = Layout::of(&exercise, rank, in_place);
                let mut buffers = Buffers::<T>::new(layout, None).unwrap();
                // From a sheet, or reckoned when it is needed.
                buffers.write_down(&exercise, rank, rank as u64 % 2);
                buffers.prepare(&exercise, rank);
                let (untouched, all) = (buffers.wrong(&exercise, rank), layout.answer as u64);
                if !layout.in_place {
                    assert_eq!(untouched, all, "{exercise:?} on rank {rank}");
                } else if all > 0 && !(collective == Collective::Broadcast && rank == 1) {
                    assert!(untouched > 0, "{exercise:?} on rank {rank} in place");
                }
                for index in 0..layout.answer {
                    buffers.output[layout.answer_at + index] = exercise.answer(rank, index);
                }
                assert_eq!(buffers.wrong(&exercise, rank), 0, "{exercise:?} on rank {rank}");
                if let Some(element) = buffers.input.first_mut() {
                    *element = T::poison(*element);
                    assert_eq!(buffers.wrong(&exercise, rank), 1);
                }
            }
        }
    }

    #[test]
    fn outputs_are_poisoned_until_they_hold_the_answer() {
        for dtype in DataType::ALL {
            with_element_type!(dtype, poisoned_until_answered());
        }
    }

    #[test]
    fn buffers_in_place_hold_every_block() {
        let layout = Layout::of(&exercise::<f32>(Collective::Allgather), 2, true);
        assert_eq!((layout.input, layout.input_at, layout.answer, layout.output), (40, 80, 120, 120));
        let layout = Layout::of(&exercise::<f32>(Collective::ReduceScatter), 2, true);
        assert_eq!((layout.input, layout.answer, layout.answer_at, layout.output), (120, 40, 80, 120));
        let layout = Layout::of(&exercise::<f32>(Collective::Gather), 1, true);
        assert!(!layout.in_place);
        assert!(Layout::of(&exercise::<f32>(Collective::Broadcast), 0, false).in_place);
    }
}
