//! From a question to a forecast: what is planned, who stands for whom, and when to give up.

use super::super::cost::{Choice, Selection, select, width_on_the_wire};
use super::super::plan::World;
use super::super::{Hosts, PlanError, PlanRequest, Schedule, Shape};
use super::Fabric;
use super::engine::{LinkKind, run};
use super::program::{Programs, same_but_for_place};
use crate::types::{Algorithm, Collective, DataType};

/// What is to be predicted.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Any collective with a plan; rooted ones have root 0.
    pub collective: Collective,
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// Number of ranks; at most 2^20 - 2.
    pub ranks: usize,
    /// Bytes of the larger buffer of a rank, made up to at least an element, or an equal block for each rank.
    pub bytes: usize,
    /// Element type.
    pub dtype: DataType,
    /// Where.
    pub fabric: &'a Fabric,
}

/// What a collective takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Until the last rank is through.
    pub seconds: f64,
    /// Messages of all ranks.
    pub messages: u64,
    /// Bytes that all ranks send.
    pub bytes_sent: u64,
    /// Bytes that were asked for, made up to a multiple of what is needed for ranks to stand for each other.
    pub bytes: usize,
    /// How many ranks were run; fewer than all where they stand for the others.
    pub ranks_run: usize,
    /// The kind of link of which one was busy for the greatest share of the time, and that share.
    pub busiest: (LinkKind, f64),
}

/// What selection by formula would choose, and the segment that goes with it; with `forced`, that algorithm's.
pub fn choice(question: &Question<'_>, forced: Option<Algorithm>) -> Choice {
    let Question { collective, ranks, bytes, dtype, fabric, .. } = *question;
    let elements = if collective == Collective::Barrier { 0 } else { bytes / dtype.size() };
    let hosts = fabric.hosts(ranks);
    let selection = Selection { forced, ..Selection::new(collective, elements, dtype, ranks, &hosts) };
    select(&selection, &fabric.cost_model())
}

/// Predicts. More than `most_messages` to run is an error, which says how many there are; so is an algorithm that does
/// not serve. Costs about 1 us for each message that is run, its plan included, and memory for the plans of the ranks that
/// are run.
pub fn forecast(question: &Question<'_>, most_messages: u64) -> Result<Forecast, String> {
    let job = Job::new(question)?;
    job.forecast(job.period, most_messages)
}

/// The most ranks: places have 20 bits in the order of events.
const MOST_RANKS: usize = (1 << 20) - 2;

/// A question whose counts are settled.
pub(super) struct Job<'a> {
    question: Question<'a>,
    hosts: Vec<usize>,
    world: World,
    width: usize,
    elements: usize,
    blocks: Vec<usize>,
    segment: usize,
    /// After how many ranks everything is the same again; all if never.
    pub(super) period: usize,
}

/// Whether the plans of an algorithm are the same for ranks that have the same place among the ranks of their rack, if
/// the buffer divides evenly and racks are full.
fn repeats(collective: Collective, algorithm: Algorithm) -> bool {
    use Algorithm::{Dissemination, Hierarchical, OneShot, Pairwise, Ring, TwoShot};
    match collective {
        Collective::Allreduce => matches!(algorithm, OneShot | TwoShot | Ring | Hierarchical),
        Collective::Allgather | Collective::ReduceScatter | Collective::Alltoall => {
            matches!(algorithm, OneShot | Ring | Pairwise)
        }
        Collective::Barrier => algorithm == Dissemination,
        _ => false,
    }
}

impl<'a> Job<'a> {
    pub(super) fn new(question: &Question<'a>) -> Result<Self, String> {
        let Question { collective, algorithm, ranks, bytes, dtype, fabric } = *question;
        if ranks == 0 || ranks > MOST_RANKS {
            return Err(format!("{ranks} ranks given, 1 to {MOST_RANKS} expected"));
        }
        let hosts = fabric.hosts(ranks);
        let layout = Hosts::new(&hosts, ranks);
        let width = match collective {
            Collective::Barrier => 0,
            _ => width_on_the_wire(&Selection::new(collective, 0, dtype, ranks, &hosts), algorithm, &layout),
        };
        let asked = bytes.div_ceil(dtype.size()).max(1);
        let blocks = !matches!(
            collective,
            Collective::Allreduce | Collective::Reduce | Collective::Broadcast | Collective::Barrier
        );
        // What one rank stands in for must divide among all of them.
        // Made up to an element for each rank, a short buffer would go another way between hosts.
        let is_short = algorithm == Algorithm::Hierarchical && asked < ranks;
        let even = blocks || repeats(collective, algorithm) && !is_short;
        let elements = if even { asked.next_multiple_of(ranks) } else { asked };
        let mut segment = choice(question, Some(algorithm)).segment;
        if algorithm == Algorithm::TwoShot {
            segment = segment.next_multiple_of(ranks);
        }
        let mut job = Self {
            question: *question,
            world: World::new(&hosts, ranks),
            hosts,
            width,
            elements,
            blocks: if blocks { vec![elements / ranks; ranks] } else { Vec::new() },
            segment,
            period: ranks,
        };
        if even {
            job.period = job.find_period()?;
        }
        Ok(job)
    }

    /// What a rank does.
    pub(super) fn plan(&self, rank: usize) -> Result<Schedule, PlanError> {
        let Question { collective, algorithm, ranks, .. } = self.question;
        let shape = match collective {
            Collective::Barrier => Shape::Whole(0),
            Collective::Alltoall => Shape::Exchange { send: &self.blocks, recv: &self.blocks, equal: true },
            _ if self.blocks.is_empty() => Shape::Whole(self.elements),
            _ => Shape::Blocks(&self.blocks),
        };
        self.world.plan(&PlanRequest {
            collective,
            algorithm,
            rank,
            size: ranks,
            root: 0,
            shape,
            in_place: true,
            hosts: &self.hosts,
            segment: self.segment,
            deterministic: false,
        })
    }

    /// Ranks that stand for all, if any do. That the plans do repeat is proved by tests for small worlds; here the
    /// edges of the first, the second and the last period are looked at, so that a plan that stops repeating is
    /// noticed.
    fn find_period(&self) -> Result<usize, String> {
        let Question { collective, algorithm, ranks, fabric, .. } = self.question;
        let host = fabric.ranks_per_host;
        let period = match fabric.ranks_per_rack() {
            Some(rack) if ranks > rack => rack,
            _ => host,
        };
        if fabric.one_machine || !repeats(collective, algorithm) || ranks % period != 0 || ranks <= period {
            return Ok(ranks);
        }
        let plan = |rank| self.plan(rank).map_err(|error| error.to_string());
        for edge in [0, period - 1] {
            let first = plan(edge)?;
            for other in [edge + period, ranks - period + edge] {
                if !same_but_for_place((edge, &first), (other, &plan(other)?), ranks) {
                    return Ok(ranks);
                }
            }
        }
        Ok(period)
    }

    /// Programs of all ranks, or of the first period alone.
    pub(super) fn programs(&self, run: usize, most_messages: u64) -> Result<Programs, String> {
        let Question { ranks, fabric, .. } = self.question;
        let stands_in = run < ranks;
        let mut programs = Programs::new(ranks, self.period);
        for rank in 0..run {
            let schedule = self.plan(rank).map_err(|error| error.to_string())?;
            programs.push(rank, &schedule, self.width, fabric, stands_in);
            // The first rank tells about how many there will be, before memory is spent on them.
            if rank == 0 || rank + 1 == run {
                let messages = programs.sent().0 * if rank == 0 { run as u64 } else { 1 };
                let most = most_messages.saturating_mul(if rank == 0 { 4 } else { 1 });
                if messages > most {
                    return Err(format!("{messages} messages to run, at most {most_messages} wanted"));
                }
            }
        }
        Ok(programs)
    }

    /// Runs ranks 0 to `run`: the period, or all.
    pub(super) fn forecast(&self, run_ranks: usize, most_messages: u64) -> Result<Forecast, String> {
        let Question { ranks, dtype, fabric, collective, algorithm, .. } = self.question;
        let programs = self.programs(run_ranks, most_messages)?;
        let outcome = run(&programs, fabric);
        if outcome.stuck > 0 {
            return Err(format!("{collective} by {algorithm}: {} ranks never come to an end", outcome.stuck));
        }
        let each = (ranks / run_ranks) as u64;
        let busiest = LinkKind::ALL.map(|kind| {
            let busy = outcome.servers[kind as usize].iter().map(|server| server.busy).max().unwrap_or(0);
            (kind, busy as f64 / outcome.end().max(1) as f64)
        });
        Ok(Forecast {
            seconds: outcome.end() as f64 * 1e-12,
            messages: outcome.messages * each,
            bytes_sent: outcome.bytes * each,
            bytes: self.elements * dtype.size(),
            ranks_run: run_ranks,
            busiest: busiest.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((LinkKind::Core, 0.0)),
        })
    }
}
