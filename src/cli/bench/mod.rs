//! `phalanx bench`: how fast a collective is, and whether its results are right.
//!
//! `sizes` says how large buffers are, `values` what goes in and must come out, `layout` what lies where, `measure` what
//! each rank does, `figures` and `report` what comes of it. The first process starts this same program once for each rank
//! (in `namespaces`, if asked) and renders what rank 0 reports; started by a launcher, every process is a rank of that
//! world, and rank 0 renders itself. `limit` measures the memory instead, without ranks.

pub(super) mod beside;
mod figures;
mod layout;
mod limit;
mod measure;
mod namespaces;
#[cfg(not(feature = "cuda"))]
#[path = "no_device.rs"]
mod on_device;
#[cfg(feature = "cuda")]
mod on_device;
mod report;
pub(super) mod sizes;
pub(super) mod sweep;
mod values;

use std::io::{Stdout, stdout};
use std::process::ExitCode;
use std::thread;

use clap::ValueEnum;
use phalanx::launch::LaunchError;
use phalanx::launch::binding::Bind;
use phalanx::schedule::algorithms_for;
use phalanx::types::Collective;
use phalanx::{Algorithm, Communicator, DataType, Error, ReduceOp, Result, TransportKind};

use self::limit::Limit;
use self::measure::{Job, measure};
use self::report::{Message, Renderer};
use self::sizes::Sizes;
use super::workers::{self, Reports, Start, at_least};

/// What stands below the options.
const MORE: &str = "\
Bytes are those of the larger of a rank's input and output, as in nccl-tests: the whole buffer for allreduce, reduce, \
broadcast, alltoall and send_recv; all ranks' blocks for allgather (output), reduce_scatter (input), gather (the root's \
output) and scatter (the root's input). They are rounded down to whole elements, or to equal blocks of whole elements, \
but not below one element (a block). Count is the number of elements that the call names: of the buffer, or of one block \
for allgather, reduce_scatter, alltoall, gather and scatter. In send_recv each rank sends to the next and receives from \
the one before.

Before each iteration there is a barrier, which is not timed. An iteration takes as long as its slowest rank. algbw is \
bytes by the median time; busbw is algbw times 2(n-1)/n for allreduce, (n-1)/n for allgather, reduce_scatter, alltoall, \
gather and scatter, and 1 for the others. GB/s are 10^9 bytes a second.

Inputs are small numbers whose exact answer is known in every element type. Every element of every rank's result is \
compared with it: up to 64 KiB in every iteration, above in the first and the last. Outputs are spoilt beforehand. Wrong \
elements make the exit code 1.";

/// Measure a collective and check every element of its results
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = MORE)]
pub struct Bench {
    /// allreduce, reduce, broadcast, allgather, reduce_scatter, alltoall, gather, scatter, barrier or send_recv
    #[arg(default_value = "allreduce")]
    collective: Collective,
    /// Ranks [default: 2, or those of the world this runs in]
    #[arg(long = "np", short = 'n', alias = "np-with-one-dash", visible_alias = "ranks", value_name = "N", value_parser = at_least(1))]
    ranks: Option<usize>,
    /// Sizes: FROM:TO, or a list with commas; K, M and G are powers of 1024
    #[arg(long, short, value_name = "SIZES", default_value = "8:128M")]
    bytes: Sizes,
    /// How much larger each size of a range is than the one before
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least(2))]
    factor: usize,
    /// Carry everything over shm, tcp, rdma or mpi [default: the fastest there is for each pair of ranks]
    #[arg(long, value_name = "NAME", value_parser = crate::cli::carrier)]
    transport: Option<TransportKind>,
    /// Use this algorithm [default: chosen by size]
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// Element type
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: DataType,
    /// Operation, for collectives that reduce
    #[arg(long, value_name = "OP", default_value = "sum")]
    op: ReduceOp,
    /// Root, for collectives that have one
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: usize,
    /// One buffer for input and output
    #[arg(long)]
    in_place: bool,
    /// Buffers from `comm.alloc`, which the ranks of one host read where they are
    #[arg(long)]
    registered: bool,
    /// Where the buffers lie: in host memory, or in that of CUDA devices, which the ranks of a host take in turn
    #[arg(long, value_name = "WHERE", default_value = "host", conflicts_with = "registered")]
    memory: Memory,
    /// Reduce in rank order whatever the algorithm
    #[arg(long)]
    deterministic: bool,
    /// Timed iterations [default: 2000 up to 64 KiB, 200 up to 4 MiB, 20 above; fewer if that took long]
    #[arg(long, value_name = "N", value_parser = at_least(1))]
    iters: Option<usize>,
    /// Iterations before the timed ones [default: a tenth of them]
    #[arg(long, value_name = "N")]
    warmup: Option<usize>,
    /// Network namespaces that stand for hosts, each with a block of the ranks (needs root)
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "threads")]
    hosts: Vec<String>,
    /// Ranks are threads of one process, over inproc
    #[arg(long, conflicts_with = "transport")]
    threads: bool,
    /// Bind each rank to a core: of its own, or shared in turn where there are more ranks than cores
    #[arg(long, value_name = "WHAT", default_value = "core")]
    bind_to: BindTo,
    /// Measure what the machine allows instead, to threads: an allreduce, f32, sum, of buffers that all share, or of
    /// private ones, whose bytes go through a stage; or the bytes of any collective of two over sockets on loopback
    #[arg(long, value_name = "WHAT", num_args = 0..=1, default_missing_value = "shared", require_equals = true,
          conflicts_with_all = ["hosts", "threads", "transport", "algorithm", "dtype", "op", "in_place",
        "registered", "memory", "deterministic", "iters", "warmup", "root", "bind_to", "sweep"])]
    limit: Option<Limit>,
    /// Measure every algorithm in alternation beside the model's prediction, of these collectives [default: all], and say
    /// what the choice loses against the fastest
    #[arg(long, value_name = "COLLECTIVES", num_args = 0..=1, value_delimiter = ',', default_missing_value = "all",
          require_equals = true, value_parser = swept,
          conflicts_with_all = ["collective", "algorithm", "in_place", "registered", "memory", "iters", "warmup"])]
    sweep: Option<Vec<Swept>>,
    /// Print one JSON object for each size
    #[arg(long)]
    json: bool,
    /// Where the process that started this one listens
    #[arg(long, hide = true, value_name = "DESCRIPTOR")]
    report_to: Option<i32>,
}

/// What a sweep goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swept {
    All,
    One(Collective),
}

impl Swept {
    fn collectives(&self) -> Vec<Collective> {
        match self {
            Swept::All => sweep::all(),
            Swept::One(collective) => vec![*collective],
        }
    }
}

fn swept(text: &str) -> std::result::Result<Swept, String> {
    match text {
        "all" => Ok(Swept::All),
        _ => match text.parse()? {
            Collective::SendRecv => Err("send_recv is one message: there is nothing to choose".into()),
            collective => Ok(Swept::One(collective)),
        },
    }
}

/// Where buffers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Memory {
    /// In host memory.
    Host,
    /// In the memory of CUDA devices.
    Device,
}

/// What a rank may be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BindTo {
    /// A core.
    Core,
    /// Nothing.
    None,
}

/// Ranks to start when nobody says how many.
const DEFAULT_RANKS: usize = 2;

impl Bench {
    fn job(&self) -> Job {
        Job {
            collective: self.collective,
            // A barrier has no size.
            sizes: if self.collective == Collective::Barrier { vec![0] } else { self.bytes.expand(self.factor) },
            dtype: self.dtype,
            op: self.op,
            root: self.root,
            in_place: self.in_place,
            registered: self.registered,
            on_device: self.memory == Memory::Device,
            iterations: self.iters,
            warmup: self.warmup,
        }
    }

    /// A call whose collective lacks the algorithm falls back to another one, which is not what was to be measured.
    fn check_algorithm(&self) -> Result<()> {
        let Some(asked) = self.algorithm else { return Ok(()) };
        let there = algorithms_for(self.collective);
        if asked == Algorithm::Boards && !there.is_empty() {
            return Ok(());
        }
        if there.contains(&asked) {
            return Ok(());
        }
        let names: Vec<_> = there.iter().map(ToString::to_string).collect();
        Err(Error::invalid(match names.is_empty() {
            true => format!("--algorithm {asked} given, but {} has nothing to choose", self.collective),
            false => format!("--algorithm {asked} given, {} expected for {}", names.join(", "), self.collective),
        }))
    }

    fn renderer(&self) -> Renderer<Stdout> {
        Renderer::new(stdout(), self.json)
    }

    /// Whether ranks that are started here are bound.
    fn bind(&self) -> Bind {
        match self.bind_to {
            BindTo::Core => Bind::Core,
            BindTo::None => Bind::None,
        }
    }
}

impl Bench {
    /// Runs the command, as a rank or as the process that starts the ranks.
    pub fn run(self) -> ExitCode {
        start_or_join(&self).unwrap_or_else(|error| {
            eprintln!("phalanx: {error}");
            ExitCode::from(error.code)
        })
    }
}

fn start_or_join(arguments: &Bench) -> Result<ExitCode, LaunchError> {
    let job = arguments.job();
    arguments.check_algorithm()?;
    let ranks = arguments.ranks.unwrap_or(DEFAULT_RANKS);
    if let Some(limit) = arguments.limit {
        return Ok(as_limit(arguments, limit, &job, ranks)?);
    }
    if arguments.threads {
        job.check(ranks)?;
        return Ok(as_threads(arguments, &job, ranks)?);
    }
    if let Some(config) = workers::existing_world(arguments.ranks, arguments.report_to.is_some())? {
        let transport = arguments.transport.or(config.settings.transport);
        let comm = config.with_transport(transport).connect()?;
        return Ok(as_rank(arguments, &job, comm)?);
    }
    job.check(ranks)?;
    let hosts = if arguments.hosts.is_empty() { Vec::new() } else { namespaces::hosts(&arguments.hosts, ranks)? };
    let address = namespaces::enter_first(&arguments.hosts)?;
    let start = Start { ranks, arguments: None, variables: Vec::new(), bind: arguments.bind(), hosts, address };
    let mut renderer = arguments.renderer();
    workers::run(start, move |message: Message| renderer.show(&message)).map(ExitCode::from)
}

/// No ranks: what they could not be faster than.
fn as_limit(arguments: &Bench, limit: Limit, job: &Job, ranks: usize) -> Result<ExitCode> {
    limit::check(limit, job.collective, ranks)?;
    let mut renderer = arguments.renderer();
    let mut wrong = 0;
    for (done, &bytes) in job.sizes.iter().enumerate() {
        renderer.show(&Message::Size { bytes, done, of: job.sizes.len() });
        let row = limit::measure(limit, job.collective, ranks, bytes)?;
        wrong += row.wrong;
        renderer.show(&Message::Row(Box::new(row)));
    }
    renderer.show(&Message::End);
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One rank of a world.
fn as_rank(arguments: &Bench, job: &Job, comm: Communicator) -> Result<ExitCode> {
    let comm = if arguments.algorithm.is_some() { comm.with_algorithm(arguments.algorithm) } else { comm };
    let comm = if arguments.deterministic { comm.with_deterministic(true) } else { comm };
    let measure = |report: &mut dyn FnMut(Message)| match &arguments.sweep {
        Some(swept) => sweep::sweep(&comm, job, &swept.iter().flat_map(Swept::collectives).collect::<Vec<_>>(), report),
        None => measure(&comm, job, report),
    };
    let wrong = match arguments.report_to {
        _ if comm.rank() != 0 => measure(&mut |_| {})?,
        Some(descriptor) => {
            let mut reports = Reports::open(descriptor)?;
            measure(&mut |message| reports.send(&message))?
        }
        None => {
            let mut renderer = arguments.renderer();
            measure(&mut |message| renderer.show(&message))?
        }
    };
    comm.shutdown();
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All ranks, as threads of this process.
fn as_threads(arguments: &Bench, job: &Job, ranks: usize) -> Result<ExitCode> {
    let world = phalanx::thread_world(ranks)?;
    let codes: Vec<Result<ExitCode>> = thread::scope(|scope| {
        let start = |comm: Communicator| scope.spawn(move || as_rank(arguments, job, comm));
        let threads: Vec<_> = world.into_iter().map(start).collect();
        let panicked = || Err(Error::internal("a rank's thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    let mut worst = ExitCode::SUCCESS;
    for code in codes {
        let code = code?;
        if code != ExitCode::SUCCESS {
            worst = code;
        }
    }
    Ok(worst)
}
