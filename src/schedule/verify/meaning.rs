//! What each collective means: what the buffers hold at first, and what they must hold in the end.

use super::super::{Buffer, Counts, JointRequest, Span};
use super::Violation;
use super::expression::Id;
use super::machine::Machine;
use super::memory::Piece;
use super::race::Sizes;
use crate::types::Collective;

/// The counts of the blocks, for collectives that have them.
fn blocks<'a>(request: &JointRequest<'a>) -> &'a [usize] {
    match request.counts {
        Counts::Blocks(counts) => counts,
        _ => &[],
    }
}

fn whole(request: &JointRequest<'_>) -> usize {
    match request.counts {
        Counts::Whole(count) => count,
        _ => 0,
    }
}

/// Elements sent, and received, by a rank of an alltoall.
fn exchanged(request: &JointRequest<'_>, rank: usize) -> (usize, usize) {
    let ranks = 0..request.size;
    let sent = ranks.clone().map(|to| request.exchanged(rank, to)).sum();
    (sent, ranks.map(|from| request.exchanged(from, rank)).sum())
}

/// How long a rank's buffers are.
pub(super) fn sizes(request: &JointRequest<'_>, rank: usize, scratch: usize) -> Sizes {
    let (whole, counts, is_root) = (whole(request), blocks(request), rank == request.root);
    let (total, own) = (counts.iter().sum(), counts.get(rank).copied().unwrap_or(0));
    let at_root = |count| if is_root { count } else { 0 };
    let (input, output) = match request.collective {
        Collective::Allreduce => (whole, whole),
        Collective::Reduce => (whole, at_root(whole)),
        Collective::Broadcast => (at_root(whole), whole),
        Collective::Allgather => (own, total),
        Collective::ReduceScatter => (total, own),
        Collective::Alltoall => exchanged(request, rank),
        Collective::Gather => (own, at_root(total)),
        Collective::Scatter => (at_root(total), own),
        Collective::Barrier | Collective::SendRecv => (0, 0),
    };
    let output_is_kept = matches!(request.collective, Collective::Reduce | Collective::Gather) && !is_root;
    let in_place = request.is_in_place(rank);
    let (input, output) = if in_place { (0, input.max(output)) } else { (input, output) };
    Sizes { input, output, scratch, output_is_kept }
}

/// Where a rank's contribution lies at first, whose contribution it is, and the number of its first element.
///
/// Elements are numbered in the buffer that holds all blocks, except in an alltoall: there, in the sender's input.
pub(super) fn contribution(request: &JointRequest<'_>, rank: usize) -> Option<(Span, usize, usize)> {
    let (counts, is_root, in_place) = (blocks(request), rank == request.root, request.is_in_place(rank));
    let buffer = if in_place { Buffer::Output } else { Buffer::Input };
    let before: usize = counts.iter().take(rank).sum();
    let own = counts.get(rank).copied().unwrap_or(0);
    let total = counts.iter().sum();
    let (start, count, origin) = match request.collective {
        Collective::Allreduce | Collective::Reduce => (0, whole(request), 0),
        Collective::Broadcast if is_root => (0, whole(request), 0),
        Collective::Allgather => (if in_place { before } else { 0 }, own, before),
        Collective::Gather => (if in_place && is_root { before } else { 0 }, own, before),
        Collective::ReduceScatter => (0, total, 0),
        Collective::Scatter if is_root => (0, total, 0),
        Collective::Alltoall => (0, exchanged(request, rank).0, 0),
        _ => return None,
    };
    (count > 0).then_some((Span::new(buffer, start, count), rank, origin))
}

/// Elements `start .. start + count` of the output must hold elements `origin ..`: of one rank's contribution, or of
/// the reduction of all.
struct Wanted {
    start: usize,
    count: usize,
    contributor: Option<usize>,
    origin: usize,
}

fn wanted(request: &JointRequest<'_>, rank: usize) -> Vec<Wanted> {
    let (counts, root, is_root) = (blocks(request), request.root, rank == request.root);
    let in_place = request.is_in_place(rank);
    let before = |rank: usize| counts.iter().take(rank).sum::<usize>();
    let own = counts.get(rank).copied().unwrap_or(0);
    let one = |start, count, contributor, origin| vec![Wanted { start, count, contributor, origin }];
    match request.collective {
        Collective::Allreduce => one(0, whole(request), None, 0),
        Collective::Reduce if is_root => one(0, whole(request), None, 0),
        Collective::Broadcast => one(0, whole(request), Some(root), 0),
        Collective::ReduceScatter => one(if in_place { before(rank) } else { 0 }, own, None, before(rank)),
        Collective::Scatter => one(if in_place && is_root { before(rank) } else { 0 }, own, Some(root), before(rank)),
        Collective::Gather if !is_root => Vec::new(),
        Collective::Allgather | Collective::Gather => {
            let mut start = 0;
            let each = counts.iter().enumerate().map(|(contributor, &count)| {
                start += count;
                Wanted { start: start - count, count, contributor: Some(contributor), origin: start - count }
            });
            each.collect()
        }
        Collective::Alltoall => {
            let mut start = 0;
            let each = (0..request.size).map(|from| {
                let count = request.exchanged(from, rank);
                start += count;
                let origin = (0..rank).map(|to| request.exchanged(from, to)).sum();
                Wanted { start: start - count, count, contributor: Some(from), origin }
            });
            each.collect()
        }
        _ => Vec::new(),
    }
}

/// Checks what all ranks hold in the end.
pub(super) fn check(request: &JointRequest<'_>, machine: &mut Machine<'_>) -> Result<(), Violation> {
    let fail = |rank: usize, what: String| Violation { rank, step: None, what };
    let in_order = machine.expressions.in_rank_order(request.size).map_err(|what| fail(0, what))?;
    // The expression that the first rank to hold an element has for it, as pieces by number of the element.
    let mut agreed: Vec<Piece> = Vec::new();
    for rank in 0..request.size {
        for wanted in wanted(request, rank) {
            let pieces = machine.output(rank, wanted.start, wanted.count).map_err(|what| fail(rank, what))?;
            for piece in &pieces {
                let number = wanted.origin + piece.start;
                if piece.origin != number {
                    return Err(fail(rank, format!("element {} stands where {number} belongs", piece.origin)));
                }
                check_piece(request, machine, piece.id, wanted.contributor, in_order).map_err(|what| {
                    let has = machine.expressions.describe(piece.id);
                    fail(rank, format!("element {number} is {has}: {what}"))
                })?;
            }
            if request.collective == Collective::Allreduce {
                if rank == 0 {
                    agreed = pieces;
                } else if agreed != pieces {
                    return Err(fail(rank, "not computed in the same order as on rank 0".into()));
                }
            }
        }
    }
    Ok(())
}

/// Checks one expression against what is wanted.
fn check_piece(
    request: &JointRequest<'_>,
    machine: &mut Machine<'_>,
    id: Id,
    contributor: Option<usize>,
    in_order: Id,
) -> Result<(), String> {
    if let Some(contributor) = contributor {
        let leaf = machine.expressions.leaf(contributor);
        return if id == leaf { Ok(()) } else { Err(format!("should be what rank {contributor} contributed")) };
    }
    if let Some(missing) = machine.expressions.missing(id, request.size) {
        return Err(format!("the contribution of rank {missing} is missing"));
    }
    if !machine.expressions.is_finished(id) {
        return Err("never finished".into());
    }
    if request.deterministic && id != in_order {
        return Err("not in rank order".into());
    }
    Ok(())
}
