//! Drawings of plans: as text for a terminal, as SVG for a page.
//!
//! Ranks move through their steps at their own pace, so a picture has rows of its own: those of a run in which each
//! message takes the time of one row and local work takes none. Messages that could travel together share a row.

mod svg;
mod text;

use std::collections::HashMap;

pub use svg::svg;
pub use text::text;

use super::cost::paced;
use super::{Buffer, Instruction, Schedule, Span};

/// A message in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    from: usize,
    to: usize,
    source: Span,
    /// Whether it is combined into its target.
    reduces: bool,
    /// Whether that is the last contribution.
    finishes: bool,
}

/// What ranks do by themselves, alike but for where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Work {
    /// Operands of a reduction; 0 for a copy.
    operands: usize,
    count: usize,
    finishes: bool,
    /// Whether it runs beside the messages of its row, rather than after them.
    beside: bool,
}

/// What can happen at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    messages: Vec<Message>,
    /// Who does what besides.
    work: Vec<(usize, Work)>,
}

/// Arranges plans in rows. Row 0 has the local work that comes before any message.
fn rows(schedules: &[Schedule]) -> Vec<Row> {
    let mut rows = vec![Row::default()];
    // The row of each rank's steps that have messages.
    let mut reached: HashMap<(usize, usize), usize> = HashMap::new();
    for transfer in paced(schedules) {
        let row = transfer.begin.round() as usize + 1;
        rows.resize_with(rows.len().max(row + 1), Row::default);
        let instruction = |site: (usize, usize, usize)| &schedules[site.0].steps[site.1].instructions[site.2];
        if let Instruction::Send { peer, source } = instruction(transfer.from) {
            let (reduces, finishes) = match instruction(transfer.to) {
                Instruction::RecvReduce { finish, .. } => (true, *finish),
                _ => (false, false),
            };
            rows[row].messages.push(Message { from: transfer.from.0, to: *peer, source: *source, reduces, finishes });
        }
        for (rank, step, _) in [transfer.from, transfer.to] {
            let latest = reached.entry((rank, step)).or_default();
            *latest = row.max(*latest);
        }
    }
    for (rank, schedule) in schedules.iter().enumerate() {
        let mut row = 0;
        for (index, step) in schedule.steps.iter().enumerate() {
            let beside = reached.get(&(rank, index));
            row = beside.copied().unwrap_or(row);
            for instruction in &step.instructions {
                let (operands, count, finishes) = match instruction {
                    Instruction::Copy { target, .. } => (0, target.count, false),
                    Instruction::Reduce { sources, target, finish } => (sources.len(), target.count, *finish),
                    _ => continue,
                };
                rows[row].work.push((rank, Work { operands, count, finishes, beside: beside.is_some() }));
            }
        }
    }
    for row in &mut rows {
        row.messages.sort_by_key(|message| (message.from, message.to, message.source.start));
    }
    rows
}

impl Work {
    /// `reduce 4 operands of 25, finish`.
    fn words(&self) -> String {
        let finish = if self.finishes { ", finish" } else { "" };
        match self.operands {
            0 => format!("copy {}", self.count),
            1 if self.finishes => format!("finish {}", self.count),
            1 => format!("copy {}", self.count),
            operands => format!("reduce {operands} operands of {}{finish}", self.count),
        }
    }
}

/// `[0..25)`, with a letter for other buffers than the output: i for the input, s for scratch.
fn elements(span: Span) -> String {
    format!("{}[{}..{})", letter(span), span.start, span.end())
}

fn letter(span: Span) -> &'static str {
    match span.buffer {
        Buffer::Input => "i",
        Buffer::Output => "",
        Buffer::Scratch => "s",
    }
}

/// `0-3, 5`.
fn ranges(ranks: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let words = parts.iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Work that several ranks do alike, the ranks ascending.
fn gathered(work: &[(usize, Work)]) -> Vec<(Work, Vec<usize>)> {
    let mut by_kind: std::collections::BTreeMap<Work, Vec<usize>> = std::collections::BTreeMap::new();
    for &(rank, work) in work {
        let ranks = by_kind.entry(work).or_default();
        if ranks.last() != Some(&rank) {
            ranks.push(rank);
        }
    }
    by_kind.into_iter().collect()
}

#[cfg(test)]
mod tests;
