//! Writing a plan down, step by step.

use super::{Buffer, Instruction, Schedule, Span, Step};
use crate::types::{Algorithm, Order};

/// Collects one rank's instructions.
///
/// Messages are written down whatever their count: both ends know it, and a message of zero elements keeps calls in
/// step and lets a mismatched call be noticed. Local work on zero elements, and copies of a span to itself, are left
/// out.
pub(super) struct Builder {
    steps: Vec<Step>,
    scratch: usize,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self { steps: Vec::new(), scratch: 0 }
    }

    /// Begins a new step, unless the current one is still empty.
    pub(super) fn step(&mut self) {
        if self.steps.last().is_none_or(|step| !step.instructions.is_empty()) {
            self.steps.push(Step::default());
        }
    }

    /// Sets aside `count` elements of scratch that nobody else uses.
    pub(super) fn reserve(&mut self, count: usize) -> Span {
        let span = Span::new(Buffer::Scratch, self.scratch, count);
        self.scratch += count;
        span
    }

    pub(super) fn push(&mut self, instruction: Instruction) {
        if self.steps.is_empty() {
            self.steps.push(Step::default());
        }
        if let Some(step) = self.steps.last_mut() {
            step.instructions.push(instruction);
        }
    }

    pub(super) fn send(&mut self, peer: usize, source: Span) {
        self.push(Instruction::Send { peer, source });
    }

    pub(super) fn recv(&mut self, peer: usize, target: Span) {
        self.push(Instruction::Recv { peer, target });
    }

    pub(super) fn recv_reduce(&mut self, peer: usize, target: Span, order: Order, finish: bool) {
        self.push(Instruction::RecvReduce { peer, target, order, finish });
    }

    pub(super) fn copy(&mut self, source: Span, target: Span) {
        debug_assert_eq!(source.count, target.count);
        if source.count > 0 && source != target {
            self.push(Instruction::Copy { source, target });
        }
    }

    pub(super) fn reduce(&mut self, sources: Vec<Span>, target: Span, finish: bool) {
        debug_assert!(sources.iter().all(|source| source.count == target.count));
        if target.count > 0 && (finish || sources != [target]) {
            self.push(Instruction::Reduce { sources, target, finish });
        }
    }

    /// The plan.
    pub(super) fn build(mut self, algorithm: Algorithm, partials_travel: bool) -> Schedule {
        self.steps.retain(|step| !step.instructions.is_empty());
        Schedule { algorithm, steps: self.steps, scratch: self.scratch, partials_travel }
    }
}

/// Cuts `whole` into `parts` spans in a row, as even as can be: the first ones are longer by one element where the
/// count does not divide.
pub(super) fn split_evenly(whole: Span, parts: usize) -> Vec<Span> {
    let (base, longer) = (whole.count / parts, whole.count % parts);
    let mut start = whole.start;
    (0..parts)
        .map(|index| {
            let span = Span::new(whole.buffer, start, base + usize::from(index < longer));
            start = span.end();
            span
        })
        .collect()
}

/// Spans of the given counts in a row, from element `start` of `buffer` on.
pub(super) fn in_a_row(buffer: Buffer, start: usize, counts: &[usize]) -> Vec<Span> {
    let mut start = start;
    counts
        .iter()
        .map(|&count| {
            let span = Span::new(buffer, start, count);
            start = span.end();
            span
        })
        .collect()
}

/// The one span that spans which follow each other in a row make up. `spans` must not be empty.
pub(super) fn join(spans: &[Span]) -> Span {
    let first = spans[0];
    Span::new(first.buffer, first.start, spans[spans.len() - 1].end() - first.start)
}

/// The same spans in the order of their starts, neighbours joined.
pub(super) fn join_neighbours(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| (span.buffer, span.start, span.count));
    let mut joined: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match joined.last_mut() {
            Some(last) if last.buffer == span.buffer && last.end() == span.start => last.count += span.count,
            _ => joined.push(span),
        }
    }
    joined
}

/// Some ranks of a communicator, in the order that an algorithm gives them, seen from one of them. Algorithms name
/// their members by position in the group.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    /// The rank at each position.
    pub ranks: &'a [usize],
    /// This rank's position.
    pub me: usize,
}

impl Group<'_> {
    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The position `distance` before this one, around the corner.
    pub(super) fn before(&self, distance: usize) -> usize {
        (self.me + self.len() - distance % self.len()) % self.len()
    }

    /// The position `distance` after this one, around the corner.
    pub(super) fn after(&self, distance: usize) -> usize {
        (self.me + distance) % self.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_parts_differ_by_one_and_leave_nothing_out() {
        let counts = |count, parts| -> Vec<usize> {
            split_evenly(Span::new(Buffer::Output, 3, count), parts).iter().map(|span| span.count).collect()
        };
        assert_eq!(counts(10, 4), [3, 3, 2, 2]);
        assert_eq!(counts(2, 3), [1, 1, 0]);
        assert_eq!(counts(0, 2), [0, 0]);
        let parts = split_evenly(Span::new(Buffer::Output, 3, 10), 4);
        assert_eq!(join(&parts), Span::new(Buffer::Output, 3, 10));
        assert_eq!(join(&parts[1..3]), Span::new(Buffer::Output, 6, 5));
    }

    #[test]
    fn neighbours_are_joined() {
        let spans = in_a_row(Buffer::Input, 0, &[2, 3, 4, 1]);
        let picked = vec![spans[3], spans[0], spans[1]];
        assert_eq!(join_neighbours(picked), [Span::new(Buffer::Input, 0, 5), Span::new(Buffer::Input, 9, 1)]);
    }
}
