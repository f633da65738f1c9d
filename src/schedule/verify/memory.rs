//! A buffer of symbolic elements, as runs that share an expression.

use super::expression::Id;

/// Elements `start .. end` of a buffer: the same expression over elements `origin ..` of every contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) id: Id,
    pub(super) origin: usize,
}

impl Piece {
    /// The part of this piece inside `start .. end`.
    fn cut(&self, start: usize, end: usize) -> Piece {
        let from = self.start.max(start);
        Piece { start: from, end: self.end.min(end), id: self.id, origin: self.origin + (from - self.start) }
    }

    fn continues(&self, next: &Piece) -> bool {
        self.end == next.start && self.id == next.id && self.origin + (self.end - self.start) == next.origin
    }
}

/// What was written to a buffer. Gaps were never written.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    pieces: Vec<Piece>,
}

impl Memory {
    /// The pieces of `start .. start + count`, with starts counted from `start` on.
    pub(super) fn read(&self, start: usize, count: usize) -> Result<Vec<Piece>, String> {
        let end = start + count;
        let first = self.pieces.partition_point(|piece| piece.end <= start);
        let mut pieces = Vec::new();
        let mut reached = start;
        for piece in self.pieces[first..].iter().take_while(|piece| piece.start < end && count > 0) {
            if piece.start > reached {
                break;
            }
            let part = piece.cut(start, end);
            reached = part.end;
            pieces.push(Piece { start: part.start - start, end: part.end - start, ..part });
        }
        if reached < end { Err(format!("element {reached} is read before it was written")) } else { Ok(pieces) }
    }

    /// Overwrites `start .. start + count` with pieces whose starts are counted from `start` on.
    pub(super) fn write(&mut self, start: usize, count: usize, pieces: &[Piece]) {
        if count == 0 {
            return;
        }
        let end = start + count;
        let first = self.pieces.partition_point(|piece| piece.end <= start);
        let last = first + self.pieces[first..].partition_point(|piece| piece.start < end);
        let mut replacement: Vec<Piece> = Vec::with_capacity(pieces.len() + 2);
        let mut append = |piece: Piece| match replacement.last_mut() {
            Some(before) if before.continues(&piece) => before.end = piece.end,
            _ => replacement.push(piece),
        };
        // The neighbours take part, so that what belongs together is joined again.
        let from = first.saturating_sub(1);
        let until = (last + 1).min(self.pieces.len());
        for piece in &self.pieces[from..last] {
            if piece.start < start {
                append(piece.cut(0, start));
            }
        }
        for piece in pieces {
            append(Piece { start: piece.start + start, end: piece.end + start, ..*piece });
        }
        for piece in &self.pieces[first..until] {
            if piece.end > end {
                append(piece.cut(end, usize::MAX));
            }
        }
        self.pieces.splice(from..until, replacement);
    }
}

/// Combines two lists of pieces over the same elements, cutting them where either does.
pub(super) fn zip(
    left: &[Piece],
    right: &[Piece],
    mut combine: impl FnMut(Id, Id) -> Result<Id, String>,
) -> Result<Vec<Piece>, String> {
    let mut out = Vec::with_capacity(left.len().max(right.len()));
    let (mut l, mut r, mut start) = (0, 0, 0);
    while l < left.len() && r < right.len() {
        let end = left[l].end.min(right[r].end);
        let (a, b) = (left[l].cut(start, end), right[r].cut(start, end));
        if a.origin != b.origin {
            return Err(format!("element {} is combined with element {}", a.origin, b.origin));
        }
        out.push(Piece { start, end, id: combine(a.id, b.id)?, origin: a.origin });
        l += usize::from(left[l].end == end);
        r += usize::from(right[r].end == end);
        start = end;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(start: usize, end: usize, id: Id, origin: usize) -> Piece {
        Piece { start, end, id, origin }
    }

    #[test]
    fn what_is_written_is_read_and_neighbours_are_joined() {
        let mut memory = Memory::default();
        memory.write(10, 10, &[piece(0, 10, 1, 0)]);
        memory.write(14, 2, &[piece(0, 2, 2, 70)]);
        assert_eq!(memory.read(12, 5), Ok(vec![piece(0, 2, 1, 2), piece(2, 4, 2, 70), piece(4, 5, 1, 6)]));
        memory.write(14, 2, &[piece(0, 2, 1, 4)]);
        assert_eq!(memory.pieces, [piece(10, 20, 1, 0)]);
        memory.write(20, 4, &[piece(0, 4, 1, 10)]);
        assert_eq!(memory.pieces, [piece(10, 24, 1, 0)]);
        assert!(memory.read(9, 2).is_err() && memory.read(20, 5).is_err());
        memory.write(0, 30, &[piece(0, 30, 3, 0)]);
        assert_eq!(memory.pieces, [piece(0, 30, 3, 0)]);
        assert_eq!(memory.read(3, 0), Ok(vec![]));
    }

    #[test]
    fn only_equal_elements_are_combined() {
        let left = [piece(0, 4, 1, 100), piece(4, 6, 2, 104)];
        let right = [piece(0, 6, 3, 100)];
        let sums = zip(&left, &right, |a, b| Ok(a * 10 + b));
        assert_eq!(sums, Ok(vec![piece(0, 4, 13, 100), piece(4, 6, 23, 104)]));
        assert!(zip(&left, &[piece(0, 6, 3, 101)], |a, _| Ok(a)).is_err());
    }
}
