//! What can be told from one step alone: bounds, peers, counts, races.

use super::super::{Buffer, Instruction, Span, Step};

/// How long a rank's buffers are, and whether its output may be written.
pub(super) struct Sizes {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) scratch: usize,
    pub(super) output_is_kept: bool,
}

/// What an instruction touches: which one it is, the span, whether it writes.
struct Access {
    instruction: usize,
    span: Span,
}

/// Checks one step of `rank` among `size`.
pub(super) fn check(step: &Step, sizes: &Sizes, rank: usize, size: usize) -> Result<(), String> {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (instruction, action) in step.instructions.iter().enumerate() {
        let mut read = |span| reads.push(Access { instruction, span });
        match action {
            Instruction::Send { source, .. } => read(*source),
            Instruction::Recv { target, .. } | Instruction::RecvReduce { target, .. } => {
                writes.push(Access { instruction, span: *target });
            }
            Instruction::Copy { source, target } => {
                if source.count != target.count {
                    return Err(format!("a copy of {} elements to {}", source.count, target.count));
                }
                read(*source);
                writes.push(Access { instruction, span: *target });
            }
            Instruction::Reduce { sources, target, .. } => {
                if sources.is_empty() || sources.iter().any(|source| source.count != target.count) {
                    return Err("a reduce of no operands or of different counts".into());
                }
                // A source that is the target itself is no conflict.
                sources.iter().filter(|source| *source != target).for_each(|source| read(*source));
                writes.push(Access { instruction, span: *target });
            }
        }
        if let Instruction::Send { peer, .. } | Instruction::Recv { peer, .. } | Instruction::RecvReduce { peer, .. } =
            action
            && (*peer >= size || *peer == rank)
        {
            return Err(format!("a message between rank {rank} and rank {peer} of {size}"));
        }
    }
    for access in reads.iter().chain(&writes) {
        let Span { buffer, start, count } = access.span;
        let length = match buffer {
            Buffer::Input => sizes.input,
            Buffer::Output => sizes.output,
            Buffer::Scratch => sizes.scratch,
        };
        if start.checked_add(count).is_none_or(|end| end > length) {
            return Err(format!("{buffer:?} {start} + {count} lies outside its {length} elements"));
        }
    }
    for access in &writes {
        match access.span.buffer {
            Buffer::Input => return Err("the input is written".into()),
            Buffer::Output if sizes.output_is_kept => return Err("a buffer that is to be kept is written".into()),
            _ => {}
        }
    }
    writes.retain(|access| access.span.count > 0);
    writes.sort_by_key(|access| (access.span.buffer, access.span.start));
    if let Some(pair) = writes.windows(2).find(|pair| pair[0].span.overlaps(&pair[1].span)) {
        return Err(format!("two instructions write the same: {:?} and {:?}", pair[0].span, pair[1].span));
    }
    for read in &reads {
        // Writes do not overlap, so the first that ends after the read begins is the one to look at.
        let first = writes
            .partition_point(|write| (write.span.buffer, write.span.end()) <= (read.span.buffer, read.span.start));
        if let Some(write) = writes.get(first).filter(|write| write.span.overlaps(&read.span)) {
            let same = if write.instruction == read.instruction { "it reads" } else { "another reads" };
            return Err(format!("an instruction writes {:?} while {same} {:?}", write.span, read.span));
        }
    }
    Ok(())
}
