//! `phalanx bench --sweep`: every algorithm that serves, beside what the model predicts of it, and what the choice costs.
//!
//! A cell is a collective of a size. In each the algorithms are forced one after the other, in several rounds, so that
//! what else goes on here meets all of them alike. The *loss* of a cell is by how much the chosen one is slower than the
//! fastest; a cell's *noise* is by how much the chosen one's two halves of the measurement differ.

use std::time::{Duration, Instant};

use phalanx::types::Collective;
use phalanx::{Communicator, Result};
use serde::{Deserialize, Serialize};

use super::figures::percentile;
use super::layout::{Layout, call_of, with_element_type};
use super::measure::{Job, Run};
use super::report::Message;
use super::sizes::Extent;
use super::values::{Exercise, Value, reduces};

/// What one algorithm takes in one cell at most.
const BUDGET: Duration = Duration::from_millis(30);

/// How often the algorithms take turns, and how many calls each has in a turn at least and at most.
const ROUNDS: usize = 4;
const CALLS: (usize, usize) = (2, 100);

/// More than this is said to be a loss.
const BAR: f64 = 0.15;

/// A collective of a size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The collective.
    pub collective: String,
    /// Bytes of the larger of input and output.
    pub bytes: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of hosts they are on.
    pub hosts: usize,
    /// The carriers in use.
    pub transport: String,
    /// The algorithm that a call uses if none is forced.
    pub chosen: String,
    /// All that serve.
    pub ways: Vec<Way>,
    /// Wrong elements, over all ranks.
    pub wrong: u64,
}

/// One algorithm in a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Way {
    /// The algorithm.
    pub algorithm: String,
    /// What the model predicts, in microseconds.
    pub predicted_us: f64,
    /// The median of the slowest rank's times.
    pub measured_us: f64,
    /// By which part of the smaller the medians of the first and the last rounds differ.
    pub noise: f64,
}

impl Cell {
    fn of(&self, algorithm: &str) -> Option<&Way> {
        self.ways.iter().find(|way| way.algorithm == algorithm)
    }

    fn best(&self) -> Option<&Way> {
        self.ways.iter().min_by(|a, b| a.measured_us.total_cmp(&b.measured_us))
    }

    /// By which part of the fastest the chosen one is slower.
    pub fn loss(&self) -> f64 {
        match (self.of(&self.chosen), self.best()) {
            (Some(chosen), Some(best)) if best.measured_us > 0.0 => chosen.measured_us / best.measured_us - 1.0,
            _ => 0.0,
        }
    }
}

/// Measures every cell, and tells `report` how it goes. Returns how many elements were wrong.
pub fn sweep(comm: &Communicator, job: &Job, of: &[Collective], report: &mut dyn FnMut(Message)) -> Result<u64> {
    let mut wrong = 0;
    let cells: Vec<(Collective, usize)> = of
        .iter()
        .flat_map(|&collective| match collective {
            Collective::Barrier => vec![(collective, 0)],
            _ => job.sizes.iter().map(|&bytes| (collective, bytes)).collect(),
        })
        .collect();
    for (done, &(collective, bytes)) in cells.iter().enumerate() {
        report(Message::Size { bytes, done, of: cells.len() });
        let job = Job { collective, in_place: false, ..job.clone() };
        job.check(comm.size())?;
        let extent = Extent::of(collective, bytes, job.dtype.size(), comm.size());
        let Job { dtype, op, root, .. } = job;
        let exercise = Exercise { collective, dtype, op, ranks: comm.size(), root, extent, salt: 0 };
        let cell = with_element_type!(dtype, one_cell(comm, exercise))?;
        wrong += cell.wrong;
        report(Message::Cell(Box::new(cell)));
    }
    report(Message::End);
    Ok(wrong)
}

fn one_cell<T: Value>(comm: &Communicator, exercise: Exercise) -> Result<Cell> {
    let bytes = exercise.extent.total * exercise.dtype.size();
    let choice = match call_of(&exercise, false) {
        Some(call) => comm.choice_for(&call)?,
        None => return Err(phalanx::Error::invalid("send_recv has nothing to choose")),
    };
    let control = comm.with_algorithm(None);
    let ways: Vec<Communicator> =
        choice.alternatives.iter().map(|(algorithm, _)| comm.with_algorithm(Some(*algorithm))).collect();
    let layout = Layout::of(&exercise, comm.rank(), false);
    let mut run = Run::<T>::new(comm, control, exercise, layout, None)?;
    let mut calls = Vec::new();
    for way in &ways {
        run.comm = way;
        // The first may make connections.
        run.iterate(false)?;
        let began = Instant::now();
        run.iterate(false)?;
        let mut taken = [u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)];
        run.slowest(&mut taken)?;
        let affordable = BUDGET.as_nanos() as u64 / taken[0] / ROUNDS as u64;
        calls.push(usize::try_from(affordable).unwrap_or(usize::MAX).clamp(CALLS.0, CALLS.1));
    }
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for ((way, calls), times) in ways.iter().zip(&calls).zip(&mut times) {
            run.comm = way;
            run.iterate(false)?;
            for _ in 0..*calls {
                times.push(u64::try_from(run.iterate(false)?.as_nanos()).unwrap_or(u64::MAX));
            }
        }
    }
    let mut measured = Vec::new();
    for ((mut times, way), (algorithm, estimate)) in times.into_iter().zip(&ways).zip(&choice.alternatives) {
        run.slowest(&mut times)?;
        run.comm = way;
        run.iterate(true)?;
        let half = times.len() / 2;
        let median = |times: &[u64]| {
            let mut times = times.to_vec();
            times.sort_unstable();
            percentile(&times, 50) as f64 / 1e3
        };
        let (first, last) = (median(&times[..half]), median(&times[half..]));
        measured.push(Way {
            algorithm: algorithm.name().into(),
            predicted_us: estimate.seconds * 1e6,
            measured_us: median(&times),
            noise: (first - last).abs() / first.min(last).max(1e-3),
        });
    }
    Ok(Cell {
        collective: exercise.collective.name().into(),
        bytes,
        ranks: comm.size(),
        hosts: comm.view().hosts.iter().max().map_or(1, |last| last + 1),
        transport: comm.transport_summary(),
        chosen: choice.algorithm.name().into(),
        ways: measured,
        wrong: run.all_wrong()?,
    })
}

/// Collectives that a sweep of all goes through.
pub fn all() -> Vec<Collective> {
    let barrier_last = Collective::ALL.iter().copied().filter(|one| *one != Collective::SendRecv);
    let (mut reducing, moving): (Vec<_>, Vec<_>) = barrier_last.partition(|one| reduces(*one));
    reducing.extend(moving);
    reducing
}

/// A cell in one line.
pub fn line(cell: &Cell) -> String {
    let chosen = cell.of(&cell.chosen);
    let mut line = format!(
        "{:<14} {:>10} {:>3} {:<18} {:>10.1} {:>10.1} {:>7.0}% {:>7.0}% ",
        cell.collective,
        cell.bytes,
        cell.ranks,
        cell.chosen,
        chosen.map_or(0.0, |way| way.measured_us),
        chosen.map_or(0.0, |way| way.predicted_us),
        cell.loss() * 100.0,
        chosen.map_or(0.0, |way| way.noise * 100.0)
    );
    for way in &cell.ways {
        line += &format!(" {} {:.1} ({:.1})", way.algorithm, way.measured_us, way.predicted_us);
    }
    line
}

/// What stands above the lines.
pub const HEADER: &str =
    "collective          bytes   n chosen                    us  predicted     loss    noise  each: us (predicted)";

/// How far predictions are off, and what the choice loses, over all cells.
pub fn summary(cells: &[Cell]) -> String {
    let off = |way: &Way| {
        let ratio = way.predicted_us.max(1e-3) / way.measured_us.max(1e-3);
        ratio.max(1.0 / ratio)
    };
    let sorted = |values: &mut Vec<f64>| values.sort_by(f64::total_cmp);
    let mut all: Vec<f64> = cells.iter().flat_map(|cell| &cell.ways).map(off).collect();
    let mut chosen: Vec<f64> = cells.iter().filter_map(|cell| cell.of(&cell.chosen)).map(off).collect();
    let mut losses: Vec<f64> = cells.iter().map(Cell::loss).collect();
    sorted(&mut all);
    sorted(&mut chosen);
    sorted(&mut losses);
    let middle = |values: &[f64]| values.get(values.len() / 2).copied().unwrap_or(1.0);
    let last = |values: &[f64]| values.last().copied().unwrap_or(1.0);
    format!(
        "# {} cells: predictions are off by a factor of {:.2} in the middle and {:.2} at worst (the chosen one's by {:.2} \
         and {:.2});\n# the choice loses {:.0}% in the middle and {:.0}% at worst, more than {:.0}% in {} cells",
        cells.len(),
        middle(&all),
        last(&all),
        middle(&chosen),
        last(&chosen),
        middle(&losses) * 100.0,
        last(&losses).max(0.0) * 100.0,
        BAR * 100.0,
        losses.iter().filter(|loss| **loss > BAR).count()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(algorithm: &str, predicted_us: f64, measured_us: f64) -> Way {
        Way { algorithm: algorithm.into(), predicted_us, measured_us, noise: 0.0 }
    }

    fn cell(chosen: &str, ways: Vec<Way>) -> Cell {
        Cell {
            collective: "allreduce".into(),
            bytes: 8,
            ranks: 4,
            hosts: 1,
            transport: "shm".into(),
            chosen: chosen.into(),
            ways,
            wrong: 0,
        }
    }

    #[test]
    fn loss_and_error_are_reckoned_against_what_was_measured() {
        let ways = || vec![way("ring", 10.0, 20.0), way("two_shot", 30.0, 10.0)];
        assert_eq!(cell("ring", ways()).loss(), 1.0);
        assert_eq!(cell("two_shot", ways()).loss(), 0.0);
        let words = summary(&[cell("ring", ways()), cell("two_shot", ways())]);
        for expected in
            ["2 cells", "a factor of 3.00 in the middle and 3.00 at worst", "loses 100%", "more than 15% in 1 cells"]
        {
            assert!(words.contains(expected), "{expected:?} is missing from {words}");
        }
        assert!(summary(&[]).contains("0 cells"));
    }

    #[test]
    fn a_sweep_measures_every_algorithm_of_every_cell() {
        let job = Job {
            collective: Collective::Allreduce,
            sizes: vec![8, 4096],
            dtype: phalanx::DataType::F32,
            op: phalanx::ReduceOp::Sum,
            root: 0,
            in_place: false,
            registered: false,
            on_device: false,
            iterations: None,
            warmup: None,
        };
        let world = phalanx::thread_world(2).expect("threads");
        let cells: Vec<Vec<Cell>> = std::thread::scope(|scope| {
            let rank = |comm: Communicator| {
                let job = &job;
                scope.spawn(move || {
                    let mut cells = Vec::new();
                    let mut keep = |message| {
                        if let Message::Cell(cell) = message {
                            cells.push(*cell);
                        }
                    };
                    assert_eq!(sweep(&comm, job, &[Collective::Broadcast, Collective::Barrier], &mut keep), Ok(0));
                    cells
                })
            };
            let threads: Vec<_> = world.into_iter().map(rank).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let sizes: Vec<(&str, usize)> = cells[0].iter().map(|cell| (&*cell.collective, cell.bytes)).collect();
        assert_eq!(sizes, [("broadcast", 8), ("broadcast", 4096), ("barrier", 0)]);
        for cell in &cells[0] {
            let served = phalanx::schedule::algorithms_for(cell.collective.parse().expect("a collective"));
            assert_eq!((cell.ways.len(), cell.wrong), (served.len(), 0));
            assert!(cell.ways.iter().all(|way| way.measured_us > 0.0) && cell.of(&cell.chosen).is_some(), "{cell:?}");
        }
    }
}
