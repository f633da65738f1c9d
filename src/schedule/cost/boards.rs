//! What a call over the boards of ranks on one host costs.
//!
//! What is short goes in a line: each rank writes what it shows, and reads what it takes. What is longer goes in chunks
//! through the stage: it is written there, combined where the collective reduces, and read. A rank does all its own work one
//! piece after the other; where one rank writes and others read, they work at once but for the first chunk.

use super::{CostModel, Estimate};
use crate::types::Collective;

/// The most ranks that share boards: every rank looks at all the others' lines.
pub const MOST_RANKS_OF_BOARDS: usize = 8;

/// What boards cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoardModel {
    /// Seconds of the shortest call.
    pub call: f64,
    /// Seconds more where a call is too long for a line.
    pub staging: f64,
    /// Seconds for each byte that a rank writes or reads in a line.
    pub line_seconds_per_byte: f64,
    /// Seconds for each byte that a rank writes, combines or reads in the stage.
    pub stage_seconds_per_byte: f64,
    /// The most bytes that go in a line, among up to four ranks; half as many among more.
    pub line_bytes: f64,
    /// The bytes of a chunk.
    pub chunk_bytes: f64,
    /// The least bytes that one rank has for another of which a scatter is not staged: each rank copies its own from the
    /// root's memory, all at once.
    pub single_copy_bytes: f64,
}

impl Default for BoardModel {
    /// As measured between two cores that share a cache.
    fn default() -> Self {
        Self {
            call: 0.4e-6,
            staging: 1.5e-6,
            line_seconds_per_byte: 0.1e-9,
            stage_seconds_per_byte: 0.085e-9,
            line_bytes: (16 << 10) as f64,
            chunk_bytes: (64 << 10) as f64,
            single_copy_bytes: (64 << 10) as f64,
        }
    }
}

/// Estimates `collective` of `bytes` over boards among `size` ranks: of the whole buffer, as for the schedules.
pub fn estimate(collective: Collective, bytes: f64, size: usize, model: &CostModel) -> Estimate {
    let (n, boards) = (size as f64, &model.boards);
    let others = (n - 1.0) / n;
    let block = bytes / n;
    // What the busiest rank shows, as the line has it, and what it takes.
    let (shown, taken) = match collective {
        Collective::Allreduce | Collective::Reduce => (bytes, (n - 1.0) * bytes),
        Collective::Broadcast => (bytes, bytes),
        Collective::Allgather | Collective::Gather => (block, others * bytes),
        Collective::ReduceScatter | Collective::Alltoall => (bytes, others * bytes),
        Collective::Scatter => (bytes, block),
        Collective::Barrier | Collective::SendRecv => (0.0, 0.0),
    };
    let line = if size <= 4 { boards.line_bytes } else { boards.line_bytes / 2.0 };
    let shared = model.sharing(size);
    let fixed = boards.call + model.waiting(size, 0);
    let rooted =
        matches!(collective, Collective::Reduce | Collective::Broadcast | Collective::Gather | Collective::Scatter);
    let seconds = if shown <= line {
        fixed + (shown + taken) * boards.line_seconds_per_byte * if rooted { 1.0 } else { shared }
    } else {
        let chunk = bytes.min(boards.chunk_bytes);
        let (moved, shared) = match collective {
            Collective::Allreduce => (bytes * (3.0 - 2.0 / n), shared),
            // The root reads all results where the others are done with theirs.
            Collective::Reduce => (bytes * (3.0 - 2.0 / n), shared),
            Collective::ReduceScatter => (bytes * (2.0 - 1.0 / n), shared),
            Collective::Alltoall => (bytes * 2.0 * others, shared),
            Collective::Allgather => (bytes, shared),
            // The root writes once what all others read.
            Collective::Broadcast => (bytes + chunk, (n / 2.0).min(shared)),
            Collective::Scatter if block >= boards.single_copy_bytes => (block, shared),
            _ => (bytes, 1.0),
        };
        fixed + boards.staging + moved * boards.stage_seconds_per_byte * shared
    };
    Estimate { seconds, steps: 0, bytes: 0.0, segment: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_calls_and_more_ranks_cost_more() {
        let model = CostModel::default();
        for &collective in
            Collective::ALL.iter().filter(|one| !matches!(one, Collective::Barrier | Collective::SendRecv))
        {
            for size in 2..=MOST_RANKS_OF_BOARDS {
                let time = |bytes: usize| estimate(collective, bytes as f64, size, &model).seconds;
                // In a line, in the stage, and by single copy; from the one to the next it may become cheaper.
                let staged = 16 + size.next_power_of_two().ilog2();
                for powers in [3..14, 15..staged, staged..26] {
                    let sizes: Vec<usize> = powers.map(|power| 1 << power).collect();
                    assert!(sizes.is_sorted_by(|a, b| time(*a) < time(*b)), "{collective} among {size}");
                }
                assert!(time(8) < 1e-6, "{collective} among {size}");
            }
        }
    }

    #[test]
    fn ranks_that_share_processors_wait_for_them() {
        let alone = CostModel::default();
        let crowded =
            CostModel { host: Some(super::super::HostModel { processors: 2.0, ..Default::default() }), ..alone };
        let time = |model: &CostModel, size| estimate(Collective::Allreduce, 1e6, size, model).seconds;
        assert_eq!(time(&crowded, 2), time(&alone, 2));
        assert!(time(&crowded, 8) > 3.0 * time(&alone, 8));
    }
}
