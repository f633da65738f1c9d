//! `phalanx explain`.

use std::path::PathBuf;
use std::process::ExitCode;

use phalanx::bootstrap::MAX_SIZE;
use phalanx::schedule::cost::{CostModel, LinkModel};
use phalanx::schedule::explain::{Question, explain, spread};
use phalanx::schedule::cost::MOST_RANKS_OF_BOARDS as MOST_RANKS;
use phalanx::types::Collective;
use phalanx::{Algorithm, DataType, TransportKind};

use super::bench::sizes;

/// Show which algorithm a collective would use and why, what each would cost, and the plan as a drawing.
///
/// Nothing is run: plans are values, priced by a model of the links. Times are predictions of that model.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  phalanx explain allreduce --bytes 1M -np 8\n  phalanx explain allreduce --bytes 64M -np 8 \
                        --hosts 2 --svg plan.svg\n  phalanx explain broadcast --bytes 4K -np 6 --algorithm binomial"
)]
pub struct Explain {
    /// allreduce, reduce, broadcast, allgather, reduce_scatter, alltoall, gather, scatter or barrier
    collective: Collective,
    /// Bytes of the whole buffer, with K, M or G for powers of 1,024
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = sizes::bytes)]
    bytes: usize,
    /// Number of ranks
    #[arg(short = 'n', long = "np", alias = "np-with-one-dash", value_name = "N", default_value_t = 4)]
    np: usize,
    /// Number of hosts over which the ranks are spread evenly
    #[arg(long, value_name = "HOSTS", default_value_t = 1)]
    hosts: usize,
    /// Root of rooted collectives
    #[arg(long, default_value_t = 0)]
    root: usize,
    /// Element type
    #[arg(long, default_value = "f32")]
    dtype: DataType,
    /// Explain this algorithm instead of the one that would be chosen
    #[arg(long, env = "PHALANX_ALGORITHM")]
    algorithm: Option<Algorithm>,
    /// Reduce in rank order whatever the algorithm
    #[arg(long)]
    deterministic: bool,
    /// Carrier within a host: shm or tcp
    #[arg(long, value_name = "TRANSPORT", default_value = "shm")]
    transport: TransportKind,
    /// Speed of the link between hosts, in Gbit/s
    #[arg(long, value_name = "GBIT", default_value_t = 10.0)]
    network: f64,
    /// Also write the drawing as SVG to FILE
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Explain {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        match self.explain() {
            Ok(text) => super::print(&text, ExitCode::SUCCESS),
            Err(message) => {
                eprintln!("phalanx explain: {message}");
                ExitCode::from(2)
            }
        }
    }

    fn explain(&self) -> Result<String, String> {
        if self.collective == Collective::SendRecv {
            return Err("send_recv is one message between two ranks: there is nothing to choose".into());
        }
        for (option, given) in [("-np", self.np), ("--hosts", self.hosts)] {
            if given == 0 {
                return Err(format!("{option} 0 given, at least 1 expected"));
            }
        }
        if self.hosts > self.np {
            let (ranks, hosts) = (self.np, self.hosts);
            return Err(format!("-np {ranks} and --hosts {hosts} given, at least one rank for each host expected"));
        }
        if self.np > MAX_SIZE {
            return Err(format!("{} ranks given, at most {MAX_SIZE} expected", self.np));
        }
        if !self.network.is_finite() || self.network <= 0.0 {
            return Err(format!("a network of {} Gbit/s given, a speed above 0 expected", self.network));
        }
        let in_host = match self.transport {
            TransportKind::Inproc | TransportKind::Shm => LinkModel::SHARED_MEMORY,
            TransportKind::Tcp => LinkModel::LOOPBACK,
        };
        let between_hosts = LinkModel::ethernet(self.network);
        let model = CostModel { in_host, between_hosts, ..CostModel::default() };
        let hosts = spread(self.np, self.hosts);
        let question = Question {
            collective: self.collective,
            bytes: self.bytes,
            dtype: self.dtype,
            size: self.np,
            hosts: &hosts,
            root: self.root,
            deterministic: self.deterministic,
            algorithm: self.algorithm,
            boards: self.hosts == 1 && self.transport == TransportKind::Shm && (2..=MOST_RANKS).contains(&self.np),
        };
        let explanation = explain(&question, &model).map_err(|error| error.to_string())?;
        if let Some(path) = &self.svg {
            if explanation.svg.is_empty() {
                return Err(format!("{} ranks have too many messages to draw", self.np));
            }
            std::fs::write(path, &explanation.svg)
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        if self.json {
            let json = serde_json::to_string(&explanation).map_err(|error| error.to_string())?;
            return Ok(json + "\n");
        }
        Ok(explanation.to_string())
    }
}
