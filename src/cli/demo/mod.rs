//! `phalanx demo`: ranks train a small network on real images.
//!
//! The first process starts this same program once for each rank and renders what rank 0 reports. Started by a
//! launcher (`phalanx run`, `mpirun`), every process is a rank of that world, and rank 0 renders itself.
//!
//! `digits` are the images, `network` is the model, `training` what each rank does, `report` what a person sees.

mod chaos;
mod digest;
mod digits;
mod network;
mod random;
mod report;
mod training;

use std::io::{Stdout, stdout};
use std::process::ExitCode;

use phalanx::launch::LaunchError;
use phalanx::launch::binding::Bind;
use phalanx::{Algorithm, Config, Result, TransportKind};

use self::digits::Digits;
use self::report::{Message, Renderer};
use self::training::{Settings, train};
use super::workers::{self, Reports, Start, at_least};

/// Train a small network on handwritten digits over several processes
///
/// Every process (rank) holds the whole network and computes the gradient over its share of each step's images; Phalanx
/// sums the gradients, bucket by bucket, while earlier layers are still being computed. The same seed and number of
/// ranks give the same weights, bit for bit, over any transport and algorithm.
#[derive(Clone, Debug, clap::Args)]
pub struct Demo {
    /// Processes that train together [default: 4, or those of the world this runs in]
    #[arg(long, short = 'n', alias = "np-with-one-dash", visible_alias = "np", value_name = "N", value_parser = at_least(1))]
    ranks: Option<usize>,
    /// Carry everything over shm, tcp, rdma or mpi [default: the fastest there is for each pair of ranks]
    #[arg(long, value_name = "NAME", value_parser = crate::cli::carrier)]
    transport: Option<TransportKind>,
    /// Sum gradients by this algorithm [default: chosen by size]
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// Of the first weights and of the order of the images
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Passes over the training images
    #[arg(long, default_value_t = 30, value_parser = at_least(1))]
    epochs: usize,
    /// Images in a training step, over all ranks
    #[arg(long, default_value_t = 64, value_parser = at_least(1))]
    batch: usize,
    /// Kill, stop and start ranks meanwhile, at steps that the seed decides, and go on
    #[arg(long)]
    chaos: bool,
    /// Print the result as one JSON object in the last line
    #[arg(long)]
    json: bool,
    /// Where the process that started this one listens
    #[arg(long, hide = true, value_name = "DESCRIPTOR")]
    report_to: Option<i32>,
}

/// Ranks to start when nobody says how many.
const DEFAULT_RANKS: usize = 4;

impl Demo {
    fn settings(&self) -> Settings {
        Settings { seed: self.seed, epochs: self.epochs, batch: self.batch }
    }

    fn renderer(&self) -> Renderer<Stdout> {
        Renderer::new(stdout(), self.json)
    }

    fn renderer_without_json(&self) -> Renderer<Stdout> {
        Renderer::new(stdout(), false)
    }
}

impl Demo {
    /// Runs the command, as a rank or as the process that starts the ranks.
    pub fn run(self) -> ExitCode {
        start_or_join(&self).unwrap_or_else(|error| {
            eprintln!("phalanx: {error}");
            ExitCode::from(error.code)
        })
    }
}

fn start_or_join(arguments: &Demo) -> Result<ExitCode, LaunchError> {
    let digits = Digits::load()?;
    if arguments.chaos {
        if chaos::is_member() {
            return Ok(chaos::live(arguments, &digits)?);
        }
        let ranks = arguments.ranks.unwrap_or(DEFAULT_RANKS);
        arguments.settings().check(ranks, digits.training.len())?;
        return Ok(chaos::drive(arguments, ranks, &digits)?);
    }
    if let Some(config) = workers::existing_world(arguments.ranks, arguments.report_to.is_some())? {
        return Ok(as_rank(arguments, &digits, config)?);
    }
    let ranks = arguments.ranks.unwrap_or(DEFAULT_RANKS);
    arguments.settings().check(ranks, digits.training.len())?;
    let start =
        Start { ranks, arguments: None, variables: Vec::new(), bind: Bind::None, hosts: Vec::new(), address: None };
    let mut renderer = arguments.renderer();
    workers::run(start, move |message: Message| renderer.show(&message)).map(ExitCode::from)
}

fn as_rank(arguments: &Demo, digits: &Digits, config: Config) -> Result<ExitCode> {
    let transport = arguments.transport.or(config.settings.transport);
    let algorithm = arguments.algorithm.or(config.settings.algorithm);
    let comm = config.with_transport(transport).with_algorithm(algorithm).connect()?;
    let settings = arguments.settings();
    let summary = match arguments.report_to {
        _ if comm.rank() != 0 => train(&comm, digits, settings, &mut |_| {})?,
        Some(descriptor) => {
            let mut reports = Reports::open(descriptor)?;
            train(&comm, digits, settings, &mut |message| reports.send(&message))?
        }
        None => {
            let mut renderer = arguments.renderer();
            train(&comm, digits, settings, &mut |message| renderer.show(&message))?
        }
    };
    comm.shutdown();
    Ok(if summary.is_agreed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
