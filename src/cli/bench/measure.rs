//! One rank's measuring: prepare, meet at a barrier, call, check; and afterwards the times of the slowest rank.

use std::time::{Duration, Instant};

use phalanx::types::Collective;
use phalanx::{Communicator, DataType, Error, ReduceOp, Result};
use serde::{Deserialize, Serialize};

use super::figures::{bandwidth_gbs, bus_factor, percentile};
use super::layout::{Buffers, Layout, call_of, with_element_type};
use super::on_device::{self, OnDevice};
use super::report::Message;
use super::sizes::Extent;
use super::values::{Exercise, Value, reduces};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Job {
    /// The collective.
    pub collective: Collective,
    /// Bytes of the larger buffer, one run each.
    pub sizes: Vec<usize>,
    /// The element type.
    pub dtype: DataType,
    /// The operation, for collectives that reduce.
    pub op: ReduceOp,
    /// The root, for collectives that have one.
    pub root: usize,
    /// Whether input and output are one buffer.
    pub in_place: bool,
    /// Whether buffers are allocated by the communicator.
    pub registered: bool,
    /// Whether they lie in the memory of CUDA devices.
    pub on_device: bool,
    /// Timed iterations; by size if not given.
    pub iterations: Option<usize>,
    /// Iterations before the timed ones; by size if not given.
    pub warmup: Option<usize>,
}

/// One size's figures. Times are those of the slowest rank of each iteration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The collective.
    pub collective: String,
    /// Bytes of the larger of input and output.
    pub bytes: usize,
    /// Elements that the call names: of the buffer, or of one block.
    pub count: usize,
    /// The element type.
    pub dtype: String,
    /// The operation, or `none`.
    pub op: String,
    /// The root, or -1.
    pub root: i64,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of hosts they are on.
    pub hosts: usize,
    /// The carriers in use.
    pub transport: String,
    /// The algorithm.
    pub algorithm: String,
    /// Whether input and output were one buffer.
    pub in_place: bool,
    /// Where they lay: `host` or `device`.
    pub memory: String,
    /// Timed iterations.
    pub iterations: usize,
    /// The shortest time.
    pub time_us_min: f64,
    /// The median.
    pub time_us_p50: f64,
    /// The time that 99 of 100 iterations do not exceed.
    pub time_us_p99: f64,
    /// `bytes` by the median time, in GB/s (10^9 bytes a second).
    pub algbw_gbs: f64,
    /// algbw, made comparable over any number of ranks as nccl-tests does.
    pub busbw_gbs: f64,
    /// Iterations whose results were checked, every element on every rank.
    pub checked: usize,
    /// Wrong elements in those, over all ranks.
    pub wrong: u64,
}

/// Up to this size every iteration is checked; above it, the first and the last.
const ALWAYS_CHECKED_BYTES: usize = 64 << 10;

/// How many inputs follow each other in turn where every iteration is checked.
const SALTS: u64 = 3;

/// Timed iterations and those before them: (up to so many bytes, timed, before).
const ITERATIONS: [(usize, usize, usize); 3] = [(64 << 10, 2000, 200), (4 << 20, 200, 20), (usize::MAX, 20, 3)];

/// What one size may take at most, unless the user gives the number of iterations.
const TIME_BUDGET: Duration = Duration::from_secs(4);

/// However slow, so many iterations are timed.
const MIN_ITERATIONS: usize = 5;

impl Job {
    /// Whether this can be run over `ranks` ranks.
    pub fn check(&self, ranks: usize) -> Result<()> {
        if self.root >= ranks {
            return Err(Error::invalid(format!("--root {} given, but ranks are 0 to {}", self.root, ranks.max(1) - 1)));
        }
        if reduces(self.collective) && !self.op.supports(self.dtype) {
            return Err(Error::invalid(format!("--op {} is not defined for --dtype {}", self.op, self.dtype)));
        }
        if self.in_place && !super::layout::can_be_in_place(self.collective) {
            return Err(Error::invalid(format!("--in-place: {} has two buffers or none", self.collective)));
        }
        if self.on_device {
            on_device::check(self.collective)?;
        }
        if self.iterations == Some(0) {
            return Err(Error::invalid("--iters 0 measures nothing; give at least 1"));
        }
        Ok(())
    }
}

/// Measures every size, and tells `report` how it goes. Returns how many elements were wrong.
pub fn measure(comm: &Communicator, job: &Job, report: &mut dyn FnMut(Message)) -> Result<u64> {
    job.check(comm.size())?;
    let mut wrong = 0;
    for (done, &bytes) in job.sizes.iter().enumerate() {
        report(Message::Size { bytes, done, of: job.sizes.len() });
        let extent = Extent::of(job.collective, bytes, job.dtype.size(), comm.size());
        let Job { collective, dtype, op, root, .. } = *job;
        let exercise = Exercise { collective, dtype, op, ranks: comm.size(), root, extent, salt: 0 };
        let row = with_element_type!(dtype, one_size(comm, job, exercise))?;
        wrong += row.wrong;
        report(Message::Row(Box::new(row)));
    }
    report(Message::End);
    Ok(wrong)
}

/// One rank's state while it measures one size.
pub(super) struct Run<'a, T> {
    pub comm: &'a Communicator,
    /// For everything that is not measured.
    control: Communicator,
    exercise: Exercise,
    buffers: Buffers<T>,
    /// What the calls are made on, if not those.
    device: Option<OnDevice<T>>,
    /// Whether each call destroys its input.
    in_place: bool,
    /// Whether inputs and answers of some salts are written down.
    is_written_down: bool,
    wrong: u64,
}

impl<'a, T: Value> Run<'a, T> {
    /// A run of `exercise` on `comm`, with its buffers, which `registered` allocates if it is given.
    pub fn new(
        comm: &'a Communicator,
        control: Communicator,
        exercise: Exercise,
        layout: Layout,
        registered: Option<&Communicator>,
    ) -> Result<Self> {
        let bytes = exercise.extent.total * exercise.dtype.size();
        let mut buffers = Buffers::<T>::new(layout, registered)?;
        let is_written_down = bytes <= ALWAYS_CHECKED_BYTES;
        if is_written_down {
            buffers.write_down(&exercise, comm.rank(), SALTS);
        }
        Ok(Run { comm, control, exercise, buffers, device: None, in_place: layout.in_place, is_written_down, wrong: 0 })
    }

    /// The same on device memory.
    fn on_device(mut self, layout: Layout) -> Result<Self> {
        self.device = Some(OnDevice::new(self.comm, layout)?);
        Ok(self)
    }

    /// Wrong elements over all ranks; what this rank saw itself counts even if the sum over the ranks is what is broken.
    pub fn all_wrong(&self) -> Result<u64> {
        let mut wrong = [self.wrong];
        self.control.allreduce(&mut wrong, ReduceOp::Sum)?;
        Ok(wrong[0].max(self.wrong))
    }

    /// One iteration, and how long the call took here.
    pub fn iterate(&mut self, check: bool) -> Result<Duration> {
        let rank = self.comm.rank();
        self.exercise.salt = if self.is_written_down { self.exercise.salt % SALTS + 1 } else { self.exercise.salt + 1 };
        if check || self.in_place {
            self.buffers.prepare(&self.exercise, rank);
            if let Some(device) = &mut self.device {
                let (input, output) = self.buffers.parts();
                device.write(input, output)?;
            }
        }
        self.control.barrier()?;
        let began = Instant::now();
        match &mut self.device {
            Some(device) => device.call(self.comm, &self.exercise)?,
            None => self.buffers.call(self.comm, &self.exercise)?,
        }
        let taken = began.elapsed();
        if check {
            // Where ranks share cores, one that checks already would take time from one that is still in its call.
            self.control.barrier()?;
            if let Some(device) = &self.device {
                let (input, output) = self.buffers.parts();
                device.read(input, output)?;
            }
            self.wrong += self.buffers.wrong(&self.exercise, rank);
        }
        Ok(taken)
    }

    /// The largest over the ranks, element by element.
    pub fn slowest(&self, times: &mut [u64]) -> Result<()> {
        self.control.allreduce(times, ReduceOp::Max)
    }
}

fn one_size<T: Value>(comm: &Communicator, job: &Job, exercise: Exercise) -> Result<Row> {
    let bytes = exercise.extent.total * exercise.dtype.size();
    let layout = Layout::of(&exercise, comm.rank(), job.in_place);
    let control = comm.with_algorithm(None);
    let registered = job.registered.then_some(comm);
    let mut run = Run::<T>::new(comm, control, exercise, layout, registered)?;
    if job.on_device {
        run = run.on_device(layout)?;
    }

    let (iterations, warmup) = usual_iterations(bytes);
    let warmup = job.warmup.unwrap_or(warmup);
    let mut warm = Vec::with_capacity(warmup);
    for _ in 0..warmup {
        warm.push(nanoseconds(run.iterate(false)?));
        if job.iterations.is_none() && job.warmup.is_none() && warm.len() == MIN_ITERATIONS {
            // A slow carrier need not be warmed up for minutes. All ranks come to the same decision.
            let mut spent = [warm.iter().sum()];
            run.slowest(&mut spent)?;
            if Duration::from_nanos(spent[0]) > TIME_BUDGET / 4 {
                break;
            }
        }
    }
    let mut usual = [warm[warm.len() / 2..].iter().sum::<u64>() / (warm.len() - warm.len() / 2).max(1) as u64];
    run.slowest(&mut usual)?;
    let iterations = job.iterations.unwrap_or_else(|| affordable(iterations, usual[0]));

    let mut times = Vec::with_capacity(iterations);
    let mut checked = 0;
    for number in 0..iterations {
        let check = bytes <= ALWAYS_CHECKED_BYTES || number == 0 || number + 1 == iterations;
        checked += usize::from(check);
        times.push(nanoseconds(run.iterate(check)?));
    }
    run.slowest(&mut times)?;
    times.sort_unstable();
    let wrong = run.all_wrong()?;

    let Exercise { collective, dtype, op, root, ranks, extent, .. } = exercise;
    let (transport, algorithm) = match (&run.device, call_of(&exercise, job.in_place)) {
        (Some(device), _) => device.carrier(comm),
        (None, Some(call)) => (comm.transport_summary(), comm.algorithm_for(&call)?.name()),
        (None, None) => (comm.transport_summary(), "linear"),
    };
    let p50 = percentile(&times, 50);
    let microseconds = |time: u64| time as f64 / 1e3;
    Ok(Row {
        collective: collective.name().into(),
        bytes,
        count: extent.count,
        dtype: dtype.name().into(),
        op: if reduces(collective) { op.name() } else { "none" }.into(),
        root: if has_root(collective) { root as i64 } else { -1 },
        ranks,
        hosts: comm.view().hosts.iter().max().map_or(1, |last| last + 1),
        transport,
        algorithm: algorithm.into(),
        in_place: layout.in_place,
        memory: if job.on_device { "device" } else { "host" }.into(),
        iterations,
        time_us_min: microseconds(percentile(&times, 0)),
        time_us_p50: microseconds(p50),
        time_us_p99: microseconds(percentile(&times, 99)),
        algbw_gbs: bandwidth_gbs(bytes, p50),
        busbw_gbs: bandwidth_gbs(bytes, p50) * bus_factor(collective, ranks),
        checked,
        wrong,
    })
}

/// Whether a collective has a root.
pub fn has_root(collective: Collective) -> bool {
    use Collective::*;
    matches!(collective, Reduce | Broadcast | Gather | Scatter)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Timed iterations for a size, and those before them.
fn usual_iterations(bytes: usize) -> (usize, usize) {
    let found = ITERATIONS.iter().find(|(limit, ..)| bytes <= *limit);
    found.map_or((MIN_ITERATIONS, 1), |&(_, iterations, warmup)| (iterations, warmup))
}

/// As many of `iterations` as fit into the budget when one takes so many nanoseconds.
fn affordable(iterations: usize, nanoseconds: u64) -> usize {
    let fit = TIME_BUDGET.as_nanos() / u128::from(nanoseconds.max(1));
    usize::try_from(fit).unwrap_or(usize::MAX).clamp(MIN_ITERATIONS, iterations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            collective: Collective::Allreduce,
            sizes: vec![8],
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            root: 0,
            in_place: false,
            registered: false,
            on_device: false,
            iterations: None,
            warmup: None,
        }
    }

    #[test]
    fn jobs_that_cannot_run_are_refused() {
        let refused = |job: Job| job.check(4).unwrap_err().to_string();
        assert!(job().check(1).is_ok());
        assert!(refused(Job { root: 4, ..job() }).contains("--root 4"));
        assert!(refused(Job { op: ReduceOp::BitXor, ..job() }).contains("bit_xor is not defined for --dtype f32"));
        assert!(Job { op: ReduceOp::BitXor, collective: Collective::Broadcast, ..job() }.check(4).is_ok());
        assert!(refused(Job { in_place: true, collective: Collective::Gather, ..job() }).contains("gather"));
        assert!(refused(Job { iterations: Some(0), ..job() }).contains("--iters 0"));
    }

    /// Rank 0's rows and every rank's count of wrong elements.
    fn run(ranks: usize, job: &Job) -> (Vec<Row>, Vec<u64>) {
        let world = phalanx::thread_world(ranks).expect("threads");
        let outcomes: Vec<(Vec<Row>, u64)> = std::thread::scope(|scope| {
            let rank = |comm: Communicator| {
                scope.spawn(move || {
                    let mut rows = Vec::new();
                    let mut keep = |message| {
                        if let Message::Row(row) = message {
                            rows.push(*row);
                        }
                    };
                    let wrong = measure(&comm, job, &mut keep).expect("a sound job");
                    (rows, wrong)
                })
            };
            let threads: Vec<_> = world.into_iter().map(rank).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let wrong = outcomes.iter().map(|(_, wrong)| *wrong).collect();
        (outcomes.into_iter().next().expect("a rank 0").0, wrong)
    }

    #[test]
    fn every_collective_is_measured_and_right() {
        for &collective in Collective::ALL {
            for in_place in [false, true] {
                let sizes = if collective == Collective::Barrier { vec![0] } else { vec![0, 8, 4099] };
                let job = Job { collective, sizes, in_place, root: 2, iterations: Some(3), warmup: Some(1), ..job() };
                if job.check(3).is_err() {
                    continue;
                }
                let (rows, wrong) = run(3, &job);
                assert_eq!(wrong, [0, 0, 0], "{collective}");
                assert_eq!(rows.len(), job.sizes.len());
                for row in rows {
                    assert_eq!((row.ranks, row.iterations, row.checked, row.wrong), (3, 3, 3, 0), "{row:?}");
                    assert!(row.time_us_min <= row.time_us_p50 && row.time_us_p50 <= row.time_us_p99);
                    assert!(row.time_us_p50 > 0.0 && row.transport == "inproc", "{row:?}");
                }
            }
        }
    }

    #[test]
    fn every_type_and_op_is_right() {
        for dtype in DataType::ALL {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
                let job = Job { dtype, op, sizes: vec![1000], iterations: Some(2), warmup: Some(0), ..job() };
                assert_eq!(run(3, &job).1, [0, 0, 0], "{dtype} {op}");
            }
        }
    }

    #[test]
    fn large_sizes_are_checked_at_both_ends() {
        let job = Job { sizes: vec![ALWAYS_CHECKED_BYTES + 4], iterations: Some(4), warmup: Some(0), ..job() };
        let (rows, wrong) = run(2, &job);
        assert_eq!((rows[0].checked, rows[0].iterations, &wrong[..]), (2, 4, &[0, 0][..]));
    }

    #[test]
    fn small_sizes_get_more_iterations_and_slow_ones_fewer() {
        assert_eq!(usual_iterations(0).0, 2000);
        assert_eq!(usual_iterations(1 << 20).0, 200);
        assert_eq!(usual_iterations(128 << 20).0, 20);
        assert_eq!(affordable(2000, 1000), 2000);
        assert_eq!(affordable(2000, 10_000_000), 400);
        assert_eq!(affordable(20, 60_000_000_000), MIN_ITERATIONS);
        assert_eq!(affordable(20, 0), 20);
    }
}
