//! `phalanx bench --limit`: what this machine's memory allows an allreduce of `f32` in one host.
//!
//! Threads that share all buffers do what no allreduce can do without, and nothing else. Up to [`IN_LINE_BYTES`] they
//! exchange one cache line each, with the numbers in it. Above, each waits for the others' inputs, adds up its share of
//! them, stores it in every output, and waits until the others did. No staging, no matching, no calls; the inputs are
//! not written again in between. A collective over private buffers cannot be faster, and need not be able to be as fast:
//! [`Limit::Private`] is the limit of those, whose bytes go through a stage (`stage`). [`Limit::Sockets`] is that of two
//! processes that share no memory at all, for every collective.

mod sockets;
mod stage;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use phalanx::launch::binding;
use phalanx::reduce::{copy_streaming, reduce};
use phalanx::sys::process;
use phalanx::types::{Collective, Finish, Reduction};
use phalanx::{DataType, Error, ReduceOp, Result};

use super::figures::{bandwidth_gbs, bus_factor, percentile};
use super::measure::Row;

/// What fits into a line beside the counter.
const IN_LINE_BYTES: usize = LINE_WORDS * size_of::<u64>();
const LINE_WORDS: usize = 7;

/// Elements of a cache line.
const LINE_ELEMENTS: usize = 64 / size_of::<f32>();

/// Elements that are added up before they are stored everywhere: in the nearest cache when they are copied.
const CHUNK: usize = 16 << 10 >> 2;

/// One figure is of so long a run of exchanges at least, that reading the clock does not count.
const FIGURE: Duration = Duration::from_micros(20);

/// What one size may take.
const BUDGET: Duration = Duration::from_millis(400);

/// Figures of one size: at least, and at most.
const FIGURES: (u64, u64) = (5, 500);

/// Rounds before the timed ones. The last of them says how many there can be.
const WARMUP: u32 = 3;

/// So often a waiting thread looks before it lets another have the core, in case it has to share it.
const LOOKS: u32 = 1 << 14;

/// Refuses what has no limit here: spinning threads need a core each, memory is measured for allreduce, and sockets for
/// two.
pub fn check(limit: Limit, collective: Collective, ranks: usize) -> Result<()> {
    let cores = cores().len();
    if ranks > cores {
        return Err(Error::invalid(format!("--limit: {ranks} ranks need a core each, and there are {cores}")));
    }
    if limit == Limit::Sockets {
        return match ranks {
            2 => Ok(()),
            _ => Err(Error::invalid(format!("--limit=sockets is that of 2 ranks, {ranks} given"))),
        };
    }
    match collective {
        Collective::Allreduce => Ok(()),
        _ => Err(Error::invalid(format!("the limit of memory is that of allreduce, {collective} given"))),
    }
}

fn cores() -> Vec<Vec<usize>> {
    binding::cores(binding::topology(&process::affinity().unwrap_or_default()))
}

/// Between what the limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Limit {
    /// Buffers that all threads read and write where they are.
    Shared,
    /// Buffers that are each thread's own: bytes go through a stage.
    Private,
    /// Processes with a connection over loopback between them.
    Sockets,
}

/// The limit for one size.
pub fn measure(limit: Limit, collective: Collective, ranks: usize, bytes: usize) -> Result<Row> {
    let count = (bytes / size_of::<f32>()).max(1);
    let (times, wrong) = if limit == Limit::Sockets {
        sockets::over_loopback(collective, bytes)?
    } else if count * size_of::<f32>() <= IN_LINE_BYTES {
        on_threads((0..ranks).map(|rank| InLine::new(rank, ranks, count)).collect())
    } else if limit == Limit::Private {
        stage::staged(ranks, count)
    } else {
        fastest([false, true].map(|streaming| shared(ranks, count, streaming)))
    };
    let p50 = percentile(&times, 50);
    let microseconds = |percent| percentile(&times, percent) as f64 / 1e6;
    // Figures are in picoseconds: an exchange takes tens of nanoseconds.
    let algbw = bandwidth_gbs(bytes, p50) * 1e3;
    let transport = match limit {
        Limit::Shared => "memory",
        Limit::Private => "stage",
        Limit::Sockets => "loopback",
    };
    Ok(Row {
        collective: collective.name().into(),
        bytes,
        count,
        dtype: DataType::F32.name().into(),
        op: ReduceOp::Sum.name().into(),
        root: -1,
        ranks,
        hosts: 1,
        transport: transport.into(),
        algorithm: "limit".into(),
        in_place: false,
        memory: "host".into(),
        iterations: times.len(),
        time_us_min: microseconds(0),
        time_us_p50: microseconds(50),
        time_us_p99: microseconds(99),
        algbw_gbs: algbw,
        busbw_gbs: algbw * bus_factor(collective, ranks),
        checked: 1,
        wrong,
    })
}

/// What a thread writes and the others read, twice, by the parity of the round: a line is written again when all others
/// have answered the round after.
#[derive(Default)]
#[repr(align(128))]
struct Post([Line; 2]);

#[derive(Default)]
#[repr(align(64))]
struct Line {
    round: AtomicU64,
    words: [AtomicU64; LINE_WORDS],
}

/// One thread's view of all posts.
struct Meeting<'a> {
    posts: &'a [Post],
    rank: usize,
    round: u64,
}

impl Meeting<'_> {
    /// Writes the words, waits for the others' of the same round, and gives each of them, in rank order, to `take`.
    fn exchange(&mut self, words: &[u64], mut take: impl FnMut(usize, u64)) {
        self.round += 1;
        let side = (self.round % 2) as usize;
        let own = &self.posts[self.rank].0[side];
        for (word, value) in own.words.iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        own.round.store(self.round, Ordering::Release);
        for post in self.posts {
            let line = &post.0[side];
            let mut looks = 0;
            while line.round.load(Ordering::Acquire) != self.round {
                looks += 1;
                if looks % LOOKS == 0 {
                    thread::yield_now();
                }
            }
            for (at, word) in line.words.iter().take(words.len()).enumerate() {
                take(at, word.load(Ordering::Relaxed));
            }
        }
    }
}

/// What input `rank` holds at `index`: sums of it are exact.
fn input(rank: usize, index: usize) -> f32 {
    (rank * 3 + index % 17) as f32
}

fn answer(ranks: usize, index: usize) -> f32 {
    (0..ranks).map(|rank| input(rank, index)).sum()
}

/// Times in picoseconds, ascending, and how many elements of all outputs are wrong.
type Outcome = (Vec<u64>, u64);

/// The times of the fastest, and what is wrong with any.
fn fastest(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    let mut wrong = 0;
    let times = outcomes.into_iter().inspect(|outcome| wrong += outcome.1).map(|(times, _)| times);
    (times.min_by_key(|times| percentile(times, 50)).unwrap_or_default(), wrong)
}

/// A thread's part of one exchange.
trait Work: Send {
    fn once(&mut self, meeting: &mut Meeting);
    /// Wrong elements of this part.
    fn wrong(&self) -> u64;
}

/// Every number in the line of its flag: two in a word.
struct InLine {
    own: Vec<u64>,
    sums: Vec<[f32; 2]>,
    count: usize,
    ranks: usize,
}

impl InLine {
    fn new(rank: usize, ranks: usize, count: usize) -> Self {
        let bits = |index| if index < count { u64::from(input(rank, index).to_bits()) } else { 0 };
        let own: Vec<u64> = (0..count.div_ceil(2)).map(|word| bits(2 * word) | bits(2 * word + 1) << 32).collect();
        Self { sums: vec![[0.0; 2]; own.len()], own, count, ranks }
    }
}

impl Work for InLine {
    fn once(&mut self, meeting: &mut Meeting) {
        self.sums.fill([0.0; 2]);
        meeting.exchange(&self.own, |at, word| {
            self.sums[at][0] += f32::from_bits(word as u32);
            self.sums[at][1] += f32::from_bits((word >> 32) as u32);
        });
    }

    fn wrong(&self) -> u64 {
        let sums = self.sums.iter().flatten().take(self.count).enumerate();
        sums.filter(|(index, sum)| **sum != answer(self.ranks, *index)).count() as u64
    }
}

/// A thread's share of all inputs and outputs.
struct Share<'a> {
    start: usize,
    inputs: Vec<&'a [f32]>,
    outputs: Vec<&'a mut [f32]>,
    /// Where sums are put together that are stored past the caches.
    scratch: Option<Vec<f32>>,
    sum: Reduction,
}

impl Work for Share<'_> {
    fn once(&mut self, meeting: &mut Meeting) {
        meeting.exchange(&[], |_, _| {});
        let count = self.inputs[0].len();
        for start in (0..count).step_by(CHUNK) {
            let chunk = start..(start + CHUNK).min(count);
            let sources: Vec<_> = self.inputs.iter().map(|input| input[chunk.clone()].as_ptr().cast::<u8>()).collect();
            let streaming = self.scratch.is_some();
            let (first, others) = match &mut self.scratch {
                Some(scratch) => (&mut scratch[..chunk.len()], &mut self.outputs[..]),
                None => {
                    let (first, others) = self.outputs.split_first_mut().expect("an output for each rank");
                    (&mut first[chunk.clone()], others)
                }
            };
            let target = first.as_mut_ptr().cast();
            // SAFETY: sources and target are slices of as many elements, and the target is borrowed for this alone.
            unsafe { reduce(&self.sum, DataType::F32, target, &sources, chunk.len(), Finish::NONE) };
            for output in others {
                let output = &mut output[chunk.clone()];
                if streaming {
                    let (source, target) = (target.cast_const(), output.as_mut_ptr().cast());
                    // SAFETY: both are of the chunk's elements, and apart: scratch memory and an output.
                    unsafe { copy_streaming(source, target, size_of_val(output)) };
                } else {
                    output.copy_from_slice(first);
                }
            }
        }
        meeting.exchange(&[], |_, _| {});
    }

    fn wrong(&self) -> u64 {
        let ranks = self.outputs.len();
        let wrong = |(index, sum): (usize, &f32)| *sum != answer(ranks, self.start + index);
        self.outputs.iter().map(|output| output.iter().enumerate().filter(|at| wrong(*at)).count() as u64).sum()
    }
}

/// Memory for `count` elements that starts a cache line.
struct Aligned {
    memory: Vec<f32>,
    count: usize,
}

impl Aligned {
    fn new(count: usize) -> Self {
        Self { memory: vec![-1.0; count + LINE_ELEMENTS], count }
    }

    fn start(&self) -> usize {
        // Where there is no telling, it is not aligned, which is slower and no less right.
        self.memory.as_ptr().align_offset(64).min(LINE_ELEMENTS)
    }

    fn elements(&mut self) -> &mut [f32] {
        let start = self.start();
        &mut self.memory[start..start + self.count]
    }
}

/// Each adds up its share and stores it everywhere.
fn shared(ranks: usize, count: usize, streaming: bool) -> Outcome {
    let mut inputs: Vec<_> = (0..ranks).map(|_| Aligned::new(count)).collect();
    let mut outputs: Vec<_> = (0..ranks).map(|_| Aligned::new(count)).collect();
    for (rank, memory) in inputs.iter_mut().enumerate() {
        memory.elements().iter_mut().enumerate().for_each(|(index, element)| *element = input(rank, index));
    }
    let length = count.div_ceil(ranks).next_multiple_of(LINE_ELEMENTS);
    let mut shares: Vec<_> = (0..ranks)
        .map(|rank| Share {
            start: (rank * length).min(count),
            inputs: Vec::new(),
            outputs: Vec::new(),
            scratch: streaming.then(|| vec![0.0; CHUNK]),
            sum: Reduction::new(ReduceOp::Sum),
        })
        .collect();
    for memory in &mut inputs {
        let mut rest = &*memory.elements();
        for share in &mut shares {
            let (own, others) = rest.split_at(length.min(rest.len()));
            share.inputs.push(own);
            rest = others;
        }
    }
    for memory in &mut outputs {
        let mut rest = memory.elements();
        for share in &mut shares {
            let (own, others) = rest.split_at_mut(length.min(rest.len()));
            share.outputs.push(own);
            rest = others;
        }
    }
    on_threads(shares)
}

/// How many figures there are, and how many exchanges are in each: said by the first thread, read by all.
#[derive(Default)]
struct Plan {
    figures: AtomicU64,
    exchanges: AtomicU64,
}

/// Runs each part on a thread with a core of its own.
fn on_threads<W: Work>(parts: Vec<W>) -> Outcome {
    let cores = cores();
    let posts: Vec<Post> = parts.iter().map(|_| Post::default()).collect();
    let (posts, plan, barrier) = (&posts[..], &Plan::default(), &Barrier::new(parts.len()));
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let start = |(rank, mut part): (usize, W)| {
            let core = binding::bind(&cores, rank);
            scope.spawn(move || {
                // Unbound, figures are worse, and no less true.
                let _ = process::set_affinity(&core);
                let times = time(&mut part, Meeting { posts, rank, round: 0 }, plan, barrier);
                (times, part.wrong())
            })
        };
        let threads: Vec<_> = parts.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("these threads do not panic")).collect()
    });
    let wrong = outcomes.iter().map(|(_, wrong)| wrong).sum();
    (outcomes.into_iter().next().map_or_else(Vec::new, |(times, _)| times), wrong)
}

/// One thread's times, in picoseconds, ascending. All are through with an exchange at the same time.
fn time(part: &mut impl Work, mut meeting: Meeting, plan: &Plan, barrier: &Barrier) -> Vec<u64> {
    barrier.wait();
    let mut last = Duration::ZERO;
    for _ in 0..WARMUP {
        let began = Instant::now();
        part.once(&mut meeting);
        last = began.elapsed().max(Duration::from_nanos(1));
    }
    if meeting.rank == 0 {
        let exchanges = FIGURE.as_nanos().div_ceil(last.as_nanos()) as u64;
        let figure = last.as_nanos() * u128::from(exchanges);
        plan.exchanges.store(exchanges, Ordering::Relaxed);
        let figures = ((BUDGET.as_nanos() / figure) as u64).clamp(FIGURES.0, FIGURES.1);
        plan.figures.store(figures, Ordering::Relaxed);
    }
    barrier.wait();
    let exchanges = plan.exchanges.load(Ordering::Relaxed);
    let mut times = Vec::new();
    for _ in 0..plan.figures.load(Ordering::Relaxed) {
        let began = Instant::now();
        (0..exchanges).for_each(|_| part.once(&mut meeting));
        times.push((began.elapsed().as_nanos() * 1000 / u128::from(exchanges)) as u64);
    }
    times.sort_unstable();
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_right_in_lines_and_in_shares() {
        let ranks = cores().len().min(3);
        for limit in [Limit::Shared, Limit::Private] {
            for bytes in [4, 8, 52, 56, 60, 4096, 100_004, 1_200_004] {
                let row = measure(limit, Collective::Allreduce, ranks, bytes).unwrap();
                assert_eq!((row.wrong, row.ranks, row.bytes), (0, ranks, bytes), "{limit:?}");
                assert!(row.time_us_min > 0.0 && row.time_us_min <= row.time_us_p50, "{row:?}");
            }
        }
    }

    #[test]
    fn bytes_go_over_sockets_and_back() {
        if check(Limit::Sockets, Collective::Barrier, 2).is_err() {
            println!("skipped: there is one core");
            return;
        }
        for collective in [Collective::Allreduce, Collective::Alltoall, Collective::Broadcast, Collective::Barrier] {
            for bytes in [0, 8, 100_004, 1_200_004] {
                let row = measure(Limit::Sockets, collective, 2, bytes).unwrap();
                assert_eq!((row.wrong, row.ranks, row.bytes), (0, 2, bytes), "{collective}");
                assert!(row.time_us_min > 0.0 && row.time_us_min <= row.time_us_p50, "{row:?}");
            }
        }
    }

    #[test]
    fn a_wrong_sum_is_seen() {
        let mut line = InLine::new(0, 1, 3);
        line.sums = vec![[0.0, 1.0], [2.5, 0.0]];
        assert_eq!(line.wrong(), 1);
        let mut output = [0.0, 1.0, 7.0];
        let (scratch, sum) = (None, Reduction::new(ReduceOp::Sum));
        let share = Share { start: 0, inputs: Vec::new(), outputs: vec![&mut output], scratch, sum };
        assert_eq!(share.wrong(), 1);
    }

    #[test]
    fn what_has_no_limit_is_refused() {
        let refused = |limit, collective, ranks| check(limit, collective, ranks).expect_err("refused").to_string();
        let too_many = refused(Limit::Shared, Collective::Allreduce, cores().len() + 1);
        assert!(too_many.contains("need a core each"), "{too_many}");
        assert!(refused(Limit::Private, Collective::Reduce, 1).contains("that of allreduce, reduce given"));
        assert!(refused(Limit::Sockets, Collective::Reduce, 1).contains("that of 2 ranks, 1 given"));
        assert!(check(Limit::Shared, Collective::Allreduce, 1).is_ok());
    }
}
